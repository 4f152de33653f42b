"""Runs tests of the binlog twice: with all bodies in memory, and with none there that has been written."""

import pytest

from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.bodies import ALL_IN_MEMORY
from beanstalk_server.storage.recovery import recover


@pytest.fixture(scope="module", params=["in-memory", "on-disk"])
def bodies(request):
    """Where bodies are: the defaults of a Binlog. For modules with `pytestmark = pytest.mark.usefixtures("bodies")`."""
    with pytest.MonkeyPatch.context() as patch:
        threshold = 0 if request.param == "on-disk" else ALL_IN_MEMORY
        patch.setitem(Binlog.__init__.__kwdefaults__, "body_threshold", threshold)
        patch.setitem(Binlog.__init__.__kwdefaults__, "body_cache", 0)
        patch.setitem(recover.__kwdefaults__, "body_threshold", threshold)
        yield request.param
