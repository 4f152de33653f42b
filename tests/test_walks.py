"""The paths of the most common commands stay short: files, and moves between them, as harness/walks.py counts them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LIMITS = {"put": (18, 40), "due": (12, 45)}


WALKS = 5
"""How often a path is walked for its shortest form: it is longer if the disk is slow and a thread commits."""


@pytest.mark.parametrize("path", LIMITS)
def test_a_path_is_short(path):
    for _ in range(WALKS):
        run = subprocess.run(
            [sys.executable, "-m", "harness.walks", path],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        files, calls, moves = map(int, re.search(r": (\d+) files, (\d+) calls, (\d+) moves\n", run.stdout).groups())
        assert calls > moves >= files
        if is_short := files <= LIMITS[path][0] and moves <= LIMITS[path][1]:
            break
    assert is_short, run.stdout
