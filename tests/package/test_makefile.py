"""The set-up that `make serve` does, with programs in the place of Python and pip that do what a test says."""

import re
import shutil
import subprocess
import tomllib

import pytest

from harness.servers import ROOT


@pytest.fixture
def make(tmp_path):
    """Makes a target with these programs; returns the status, what was printed, and whether the target was made."""
    for name in ("pyproject.toml", "setup.py", "client/pyproject.toml", "beanstalk_server/a.py", ".venv/python"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(ROOT / "Makefile", tmp_path)

    def run(target, *options, python):
        for name, text in (("python", python), ("pip", "cat > /dev/null")):
            path = tmp_path / ".venv/bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        done = subprocess.run(["make", target, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr, (tmp_path / target).exists()

    return run


def test_requirements_that_cannot_be_listed_fail_the_set_up_until_they_can(make):
    assert make(".venv/builder", python="exit 1")[::2] == (2, False)
    assert make(".venv/builder", python="echo uvloop")[::2] == (0, True)


def test_a_server_that_could_not_be_compiled_is_compiled_by_the_next_make(make):
    def build(tags):
        python = f'cd "${{0%/*}}/../.." && mkdir -p build/wheels && touch build/wheels/beanstalk_server-1-{tags}.whl'
        return make(".venv/installed", "PACKAGE=compiled", python=python)

    status, printed, is_made = build("py3-none-any")
    assert (status, "the next make tries again" in printed, is_made) == (0, True, False)
    assert build("cp311-cp311-linux_x86_64")[::2] == (0, True)


def test_the_package_is_compiled_without_what_only_an_extra_brings():
    """mypyc follows imports, and `make serve` installs no extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    missing = {
        name.removesuffix(".*")
        for each in project["tool"]["mypy"]["overrides"]
        if each.get("ignore_missing_imports")
        for name in each["module"]
    }
    extras = project["project"]["optional-dependencies"].values()
    assert {re.split(r"[\[>=<]", requirement)[0] for extra in extras for requirement in extra} <= missing
