"""What the tests of the conformance room share: the server to compare with, where there is one."""

import os

import pytest

from conformance.servers import BEANSTALKD, find


def missing(what, how):
    """Fail where nothing may be left out, skip elsewhere."""
    reason = f"{what} is not installed ({how})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def beanstalkd():
    if find(BEANSTALKD) is None:
        missing("beanstalkd", "Debian: apt-get install beanstalkd")
    return BEANSTALKD
