"""Runs tests of the binlog with bodies in memory, and with none there that has been written; some also in an engine."""

from functools import partial

import binlog_process
import lives
import pytest
from engine_disk import EngineDisk

from beanstalk_server.storage.bodies import ALL_IN_MEMORY
from beanstalk_server.storage.recovery import recover


def with_bodies(request, place):
    """The defaults of a Binlog, for bodies in this place."""
    with pytest.MonkeyPatch.context() as patch:
        threshold = 0 if place == "on-disk" else ALL_IN_MEMORY
        for module in (request.module, lives, binlog_process):
            if hasattr(module, "Binlog"):
                patch.setattr(module, "Binlog", partial(module.Binlog, body_threshold=threshold, body_cache=0))
        patch.setitem(recover.__kwdefaults__, "body_threshold", threshold)
        if place == "in-engine":
            patch.setattr(request.module, "MemoryDirectory", EngineDisk)
        yield place


@pytest.fixture(scope="module", params=["in-memory", "on-disk"])
def bodies(request):
    """Where bodies are. For modules with `pytestmark = pytest.mark.usefixtures("bodies")`."""
    yield from with_bodies(request, request.param)


@pytest.fixture(scope="module", params=["in-memory", "on-disk", "in-engine"])
def places(request):
    """Where bodies are, and in the end all files: in an engine, in the place of the module's MemoryDirectory."""
    yield from with_bodies(request, request.param)


@pytest.fixture
def needs_a_disk(places):
    """For tests of what only a disk can do: to write without a sync."""
    if places == "in-engine":
        pytest.skip("an engine has a commit, or does not have it")
