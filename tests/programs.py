"""Programs that tests need and that are not part of the project.

A test is skipped without them. In CI, one that needs beanstalkd or redis-server fails instead.
"""

import os
import shutil

import pytest

from harness.servers import PACKAGES, NotInstalledError

PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
"""Where programs are: Debian's haproxy is where only root looks for it."""

IN_CI = os.environ.get("CI") == "true"


def missing(what, how):
    """Skip the test, and say how to install what it needs."""
    reason = f"{what} is not installed ({how})"
    if IN_CI and what in PACKAGES.values():
        pytest.fail(reason)
    pytest.skip(reason)


def find(program, package=""):
    """The path of a program; its package in Debian has the same name if none is given."""
    return shutil.which(program, path=PLACES) or missing(program, f"Debian: apt-get install {package or program}")


def skipping():
    """A wrapper of pytest's hooks: skip the test if a server that it starts is not installed."""
    try:
        return (yield)
    except NotInstalledError as error:
        if IN_CI:
            raise
        pytest.skip(str(error))
