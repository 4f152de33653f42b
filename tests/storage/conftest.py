"""Runs tests of the binlog twice: with all bodies in memory, and with none there that has been written."""

import pytest

from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.recovery import recover


@pytest.fixture(scope="module", params=["in-memory", "on-disk"])
def bodies(request):
    """Where bodies are: the defaults of a Binlog. For modules with `pytestmark = pytest.mark.usefixtures("bodies")`."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "on-disk":
            patch.setitem(Binlog.__init__.__kwdefaults__, "body_threshold", 0)
            patch.setitem(Binlog.__init__.__kwdefaults__, "body_cache", 0)
            patch.setitem(recover.__kwdefaults__, "body_threshold", 0)
        yield request.param
