"""What the tests of the conformance room share: the servers, where they are installed."""

import os

import pytest

from harness.servers import BEANSTALKD, advice, find, imported


def missing(what, how):
    """Fail where nothing may be left out, skip elsewhere."""
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
    """A server by its parameter: "ours", the package that the tests run on, or beanstalkd."""
    return imported() if request.param == "ours" else request.getfixturevalue(request.param)
