"""Fixtures of the conformance tests: the installed servers."""

import os

import pytest

from harness.servers import BEANSTALKD, advice, find, imported


def missing(what, how):
    """Fail in CI, where nothing may be left out; skip elsewhere."""
    reason = f"{what} is not installed ({how})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def beanstalkd():
    if find(BEANSTALKD) is None:
        missing(BEANSTALKD, advice(BEANSTALKD))
    return BEANSTALKD


@pytest.fixture
def program(request):
    """The server that the parameter names: "ours", the package under test, or beanstalkd."""
    return imported() if request.param == "ours" else request.getfixturevalue(request.param)
