"""The paths of the most common commands stay short: files, and moves between them, as harness/walks.py counts them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LIMITS = {"put": (18, 40), "due": (12, 45)}


@pytest.mark.parametrize("path", LIMITS)
def test_a_path_is_short(path):
    run = subprocess.run(
        [sys.executable, "-m", "harness.walks", path], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    files, calls, moves = map(int, re.search(r": (\d+) files, (\d+) calls, (\d+) moves\n", run.stdout).groups())
    assert calls > moves >= files
    assert (files, moves) <= LIMITS[path] and moves <= LIMITS[path][1], run.stdout
