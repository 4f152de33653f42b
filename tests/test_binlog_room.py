"""Room for changes that come faster than room is made ahead."""

import asyncio

import pytest
from memory_disk import MemoryDirectory

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.client import Client
from beanstalk_server.storage.binlog import Binlog

SECOND = 1_000_000_000


async def at_once(work):
    return work()


def test_changes_that_outrun_the_upkeep_make_room_on_the_spot():
    """As when a tube is kicked while the disk is slow: there is room, and it is only not there yet."""

    async def work():
        binlog = Binlog(MemoryDirectory(), segment_size=4096, in_thread=at_once)
        broker = Broker(binlog, SECOND)
        broker.restore(0, SECOND)
        client = Client(broker.default)
        broker.connect()
        for _ in range(500):
            assert broker.put(client, broker.take_id(), 0, 100 * SECOND, SECOND, b"", SECOND, SECOND)
        await binlog.commit()
        for _ in range(10):
            for number in list(broker.jobs):
                assert broker.kick_job(number, SECOND)
                assert broker.reserve_job(client, number, SECOND)
                assert broker.release(client, number, 1, 100 * SECOND, SECOND)
        for number in list(broker.jobs):
            assert broker.delete(client, number)
        await binlog.commit()
        binlog._log.check()
        await binlog.close()

    asyncio.run(work())


def test_changes_that_find_no_room_anywhere_fail_the_commit_that_they_belong_to():
    async def work():
        directory = MemoryDirectory()
        binlog = Binlog(directory, segment_size=4096, in_thread=at_once)
        broker = Broker(binlog, SECOND)
        broker.restore(0, SECOND)
        client = Client(broker.default)
        broker.connect()
        assert broker.put(client, broker.take_id(), 0, 100 * SECOND, SECOND, b"", SECOND, SECOND)
        await binlog.commit()
        directory.capacity = directory.used()
        for _ in range(1000):
            broker.reschedule(broker.find(1), 100 * SECOND, SECOND)
        with pytest.raises(OSError, match="no space is left, not even what was set aside"):
            await binlog.commit()
        await binlog.close()

    asyncio.run(work())
