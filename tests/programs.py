"""Programs that tests need and that are not part of the project: found, or said to be missing."""

import os
import shutil

import pytest

PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
"""Where programs are: Debian's haproxy is where only root looks for it."""


def missing(what, how):
    """Fail in CI, where nothing may be left out; skip elsewhere."""
    reason = f"{what} is not installed ({how})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def find(program):
    """The path of a program, whose package in Debian has its name."""
    return shutil.which(program, path=PLACES) or missing(program, f"Debian: apt-get install {program}")
