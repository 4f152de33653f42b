"""A Python that builds packages, and nothing else."""

import subprocess
import sys
import tomllib

import pytest

from harness.servers import ROOT


@pytest.fixture(scope="session")
def builder(tmp_path_factory):
    """A Python with what the builds require and what checks wheels, and nothing else."""
    place = tmp_path_factory.mktemp("builder")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "build", "check-wheel-contents", *requires], check=True)
    return python
