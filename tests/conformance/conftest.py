"""Fixtures of the conformance tests: the installed servers."""

import pytest

from harness.servers import BEANSTALKD, command, imported


@pytest.fixture(scope="session")
def beanstalkd():
    command(BEANSTALKD)  # which raises an error without it
    return BEANSTALKD


@pytest.fixture
def program(request):
    """The server that the parameter names: "ours", the package under test, or beanstalkd."""
    return imported() if request.param == "ours" else request.getfixturevalue(request.param)
