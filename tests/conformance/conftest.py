"""Fixtures of the conformance tests: the installed servers."""

import pytest
from programs import missing

from harness.servers import BEANSTALKD, advice, find, imported


@pytest.fixture(scope="session")
def beanstalkd():
    if find(BEANSTALKD) is None:
        missing(BEANSTALKD, advice(BEANSTALKD))
    return BEANSTALKD


@pytest.fixture
def program(request):
    """The server that the parameter names: "ours", the package under test, or beanstalkd."""
    return imported() if request.param == "ours" else request.getfixturevalue(request.param)
