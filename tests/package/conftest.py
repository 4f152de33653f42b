"""A Python that builds packages, and nothing else."""

import subprocess
import sys
import tomllib

import pytest

from harness.servers import ROOT


@pytest.fixture
def run_alone():
    """Runs Python with the packages of one directory only; returns what it prints. It may print no errors."""

    def run(packages, *arguments):
        done = subprocess.run(  # -S: without the packages of this environment
            [sys.executable, "-S", *arguments],
            env={"PYTHONPATH": str(packages)},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stderr == ""
        return done.stdout

    return run


@pytest.fixture(scope="session")
def builder(tmp_path_factory):
    """A Python with what the builds require and what checks wheels, and nothing else."""
    place = tmp_path_factory.mktemp("builder")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "build", "check-wheel-contents", *requires], check=True)
    return python
