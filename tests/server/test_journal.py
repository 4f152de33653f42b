"""The journal's contract: with the binlog, the one that keeps nothing, and broken ones."""

import asyncio

import pytest
from checking import check_broker
from virtual import World

from beanstalk_server import Config, Server, StartError
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.queue.journal import ALL, Journal, JournalError, RestoreInterruptedError
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.disk import RealDirectory
from harness.waiting import eventually_async


@pytest.fixture(params=[{}, {"body_threshold": 0, "body_cache": 0}], ids=["bodies-in-memory", "bodies-on-disk"])
def open_binlog(request, tmp_path):
    return lambda: Binlog(RealDirectory(tmp_path), segment_size=4096, **request.param)


class Conversation:
    """A client of a server in the same event loop."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def with_(cls, server):
        return cls(*await asyncio.open_connection(*server.address))

    async def ask(self, data):
        self.writer.write(data)
        return await asyncio.wait_for(self.reader.readline(), 60)

    async def close(self):
        self.writer.close()
        await self.writer.wait_closed()


async def test_a_restarted_server_goes_on_where_the_last_one_was(open_binlog):
    async with Server(Config(port=0), _journal=open_binlog()) as server:
        client = await Conversation.with_(server)
        for delay in (0, 0, 0, 1, 100):
            await client.ask(b"put-keyed k%d 0 %d 60 1\r\nx\r\n" % (server.broker.next_id, delay))
        for number in (2, 1):
            await client.ask(b"reserve-job %d\r\n" % number)
            await client.reader.readline()
            await client.ask(b"bury %d 0\r\n" % number)
        await client.ask(b"put 0 0 60 1\r\nx\r\n")
        await client.ask(b"delete 6\r\n")
        for attribute in (b"group=g", b"group=g", b"after=g"):  # 7, after which the group has 8, and 9 and 10
            await client.ask(b"put-with 9 0 60 1 %b\r\nx\r\n" % attribute)
        await client.ask(b"delete 7\r\n")
        await client.close()
    async with Server(Config(port=0), _journal=open_binlog()) as server:
        check_broker(server.broker)
        client = await Conversation.with_(server)
        assert await client.ask(b"peek-buried\r\n") == b"FOUND 2 1\r\n", "the first buried first"
        await client.reader.readline()
        assert await client.ask(b"cancel-keyed k5\r\n") == b"CANCELLED\r\n"
        assert await client.ask(b"put 0 0 60 1\r\ny\r\n") == b"INSERTED 11\r\n", "ids are never given twice"
        assert {job.id for job in server.broker.jobs.values()} == {1, 2, 3, 4, 9, 10, 11}
        group = server.broker.groups.get("g")
        assert (group.id, group.cancelled, [job.id for job in group.members]) == (8, 1, [9])
        assert group.waiting is not None and group.waiting.count == 1
        await client.close()


async def test_a_journal_that_cannot_restore_its_jobs_stops_the_start_with_its_own_words_and_status():
    class Broken(Journal):
        keeps = True

        def load(self):
            raise JournalError("jobs.db: the disk image is malformed", 65)

    with pytest.raises(StartError, match=r"^jobs\.db: the disk image is malformed$") as caught:
        await Server(Config(port=0), _journal=Broken()).start()
    assert caught.value.status == 65


async def test_a_server_that_is_to_stop_while_it_restores_jobs_stops_in_the_midst_of_them():
    given = []

    class Endless(Journal):
        keeps = True

        def load(self):
            for job_id in range(1, 1000):
                if job_id == 10:
                    server.interrupt()  # as a signal handler would
                given.append(job_id)
                yield stored(job_id, READY)

    server = Server(Config(port=0), _journal=Endless())
    with pytest.raises(RestoreInterruptedError):
        await server.start()
    assert given[-1] == 10


def test_a_journal_that_says_nothing_of_it_admits_every_change():
    assert Journal().admits == ALL


class RecordingJournal(Journal):
    """Commits when it is told to."""

    keeps = True

    def __init__(self, jobs=()):
        self.jobs = jobs
        self.commits = 0
        self.may_commit = asyncio.Event()
        self.error = None

    def load(self):
        return self.jobs

    async def commit(self):
        await self.may_commit.wait()
        self.commits += 1
        if self.error:
            raise self.error


async def recorded(server, count):
    """Return when the journal has recorded this many changes."""
    await eventually_async(lambda: server.broker.last_lsn >= count, f"the journal has recorded {count} changes")


async def test_a_client_that_half_closes_gets_the_replies_that_wait_for_a_commit():
    journal = RecordingJournal()
    async with Server(Config(port=0), _journal=journal) as server:
        client = await Conversation.with_(server)
        client.writer.write(b"put 0 0 60 1\r\nx\r\ndelete 1\r\n")
        client.writer.write_eof()
        await recorded(server, 2)
        journal.may_commit.set()
        assert await asyncio.wait_for(client.reader.read(), 60) == b"INSERTED 1\r\nDELETED\r\n"
        await client.close()


def stored(number, state, deadline=0, **more):
    fields = {"tube": "t", "key": "", "priority": 0, "delay": 0, "ttr": SECOND, "body": b"x", "created_at": 0}
    return StoredJob(id=number, state=state, deadline=deadline, **(fields | more))


def test_jobs_that_came_due_while_no_server_ran_are_ready_at_once_and_the_rest_later():
    offset = 1000 * SECOND
    journal = RecordingJournal(
        [stored(9, DELAYED, offset + 50 * SECOND), stored(4, DELAYED, offset + 20 * SECOND), stored(2, BURIED)]
    )
    broker = Broker(journal, 30 * SECOND)
    assert broker.restore(offset, 30 * SECOND) == 3
    check_broker(broker)
    assert (broker.ready, broker.delayed, broker.buried) == (1, 1, 1)
    assert broker.tubes["t"].ready.jobs[0].id == 4
    assert broker.next_id == 10
    assert broker.job_statistics(9, 30 * SECOND).time_left == 20 * SECOND
    assert broker.jobs[2].extras.buries == 0, "it is not buried again"


def test_with_the_journal_that_keeps_nothing_no_reply_waits():
    world = World()
    client = world.connect()
    client.put()
    journal = Journal()
    assert list(journal.load()) == []
    assert journal.next_id() == 1
    assert not journal.keeps
    asyncio.run(journal.commit())
    asyncio.run(journal.close())
