"""The journal's contract: with the binlog, the one that keeps nothing, and broken ones."""

import asyncio
import shutil
import time

import pytest
from checking import check_broker
from virtual import World

from beanstalk_server import Config, Server, StartError
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import BURIED, DELAYED, NOT_IN_MEMORY, READY
from beanstalk_server.queue.journal import ALL, Journal, JournalError, RestoreInterruptedError
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.disk import RealDirectory
from harness.waiting import eventually_async


class KeptInBinlog:
    """Binlogs over one directory; what one on a copy of it recovers is what would be there after a crash."""

    def __init__(self, path):
        self._path = path

    def open(self):
        return Binlog(RealDirectory(self._path / "binlog"), segment_size=4096)

    def live(self):
        return self._recovered()[0]

    def next_id(self):
        return self._recovered()[1]

    def _recovered(self):
        copy = self._path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._path / "binlog", copy)
        binlog = Binlog(RealDirectory(copy))
        replay = Replay(IdTable())
        binlog.restore(replay)  # wall clock, as it is stored
        jobs = {job.id: binlog.stored(job) for job in replay.jobs.values()}
        next_id = binlog.next_id()
        binlog.directory.unlock()
        return jobs, next_id


class KeptInBinlogOnly(KeptInBinlog):
    """The same, and no body in memory."""

    def open(self):
        return Binlog(RealDirectory(self._path / "binlog"), segment_size=4096, body_threshold=0, body_cache=0)


@pytest.fixture(params=[KeptInBinlog, KeptInBinlogOnly], ids=["binlog", "bodies-on-disk"])
def kept(request, tmp_path):
    """The place of the jobs: opens journals, and shows what a crash would leave."""
    return request.param(tmp_path)


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


async def test_each_acknowledged_change_is_there_after_a_crash_right_then(kept):
    async with Server(Config(port=0), _journal=kept.open()) as server:
        client = await Conversation.with_(server)

        async def change(command, reply):
            assert await client.ask(command) == reply
            return kept.live()

        jobs = await change(b"put 5 0 60 3\r\none\r\n", b"INSERTED 1\r\n")
        assert jobs[1].body == b"one"
        assert (jobs[1].state, jobs[1].priority, jobs[1].ttr, jobs[1].tube) == (READY, 5, 60 * SECOND, "default")
        jobs = await change(b"put-keyed k 0 100.5 60 3\r\ntwo\r\n", b"INSERTED 2\r\n")
        assert (jobs[2].key, jobs[2].state, jobs[2].delay) == ("k", DELAYED, 100_500_000_000)
        assert abs(jobs[2].deadline - time.time_ns() - 100.5 * SECOND) < 5 * SECOND
        jobs = await change(b"replace-keyed k 7 0 60 5\r\nthree\r\n", b"REPLACED 2\r\n")
        assert (jobs[2].body, jobs[2].state, jobs[2].priority) == (b"three", READY, 7)
        assert await client.ask(b"reserve\r\n") == b"RESERVED 1 3\r\n"
        await client.reader.readline()
        assert kept.live()[1].state == READY, "a reserved job comes back ready"
        jobs = await change(b"release 1 9 50\r\n", b"RELEASED\r\n")
        assert (jobs[1].state, jobs[1].priority, jobs[1].releases) == (DELAYED, 9, 1)
        jobs = await change(b"reschedule 1 500\r\n", b"RESCHEDULED\r\n")
        assert jobs[1].delay == 500 * SECOND
        jobs = await change(b"kick-job 1\r\n", b"KICKED\r\n")
        assert (jobs[1].state, jobs[1].kicks) == (READY, 1)
        await client.ask(b"reserve-job 1\r\n")
        await client.reader.readline()
        jobs = await change(b"bury 1 3\r\n", b"BURIED\r\n")
        assert (jobs[1].state, jobs[1].priority, jobs[1].buries) == (BURIED, 3, 1)
        jobs = await change(b"kick 5\r\n", b"KICKED 1\r\n")
        assert jobs[1].state == READY
        assert list(await change(b"delete 1\r\n", b"DELETED\r\n")) == [2]
        await change(b"put 0 100 60 1\r\nx\r\n", b"INSERTED 3\r\n")
        assert list(await change(b"cancel 3\r\n", b"CANCELLED\r\n")) == [2]
        assert await change(b"clear-tube default\r\n", b"CLEARED 1\r\n") == {}
        await client.close()
    assert kept.next_id() == 4


@pytest.mark.parametrize("numbers", [(1, 3), (3, 1)])
async def test_a_limit_keeps_the_number_of_the_last_put_over_restarts(kept, numbers):
    async def first():
        async with Server(Config(port=0), _journal=kept.open()) as server:
            client = await Conversation.with_(server)
            for number in (*numbers, numbers[0], numbers[1]):
                await client.ask(b"put-with 0 0 60 1 limit=l:%d\r\nx\r\n" % number)
            assert await client.ask(b"delete 4\r\n") == b"DELETED\r\n"
            assert {job.limit_count for job in kept.live().values()} == {numbers[1]}
            await client.close()

    async def later():
        async with Server(Config(port=0), _journal=kept.open()) as server:
            client = await Conversation.with_(server)
            assert await client.ask(b"reserve-batch 9 0\r\n") == b"RESERVED_BATCH %d\r\n" % numbers[1]
            await client.close()

    for work in (first, later, later):
        await work()


async def test_a_body_that_is_not_in_memory_is_fetched_for_each_client_that_asks(tmp_path):
    kept = KeptInBinlogOnly(tmp_path)

    async with Server(Config(port=0), _journal=kept.open()) as server:
        client, other = await Conversation.with_(server), await Conversation.with_(server)
        for body in (b"one", b"two", b"six"):
            await client.ask(b"put-keyed %b 0 0 60 3\r\n%b\r\n" % (body, body))
        jobs = server.broker.jobs
        assert all(jobs[number].body is NOT_IN_MEMORY for number in (1, 2, 3))
        client.writer.write(b"peek 2\r\nreserve-batch 2 0\r\nrelease 1 5 0\r\ndelete 2\r\npeek-ready\r\n")
        expected = (
            b"FOUND 2 3\r\ntwo\r\nRESERVED_BATCH 2\r\nRESERVED 1 3\r\none\r\nRESERVED 2 3\r\ntwo\r\n"
            b"RELEASED\r\nDELETED\r\nFOUND 3 3\r\nsix\r\n"
        )
        assert await asyncio.wait_for(client.reader.readexactly(len(expected)), 60) == expected
        client.writer.write(b"peek 3\r\n")
        other.writer.write(b"peek 3\r\nreplace-keyed six 0 0 60 4\r\nmore\r\nreserve-job 3\r\n")
        expected = b"FOUND 3 3\r\nsix\r\nREPLACED 3\r\nRESERVED 3 4\r\nmore\r\n"
        assert await asyncio.wait_for(other.reader.readexactly(len(expected)), 60) == expected
        assert await client.ask(b"") in (b"FOUND 3 3\r\n", b"FOUND 3 4\r\n")
        check_broker(server.broker)
        await client.close()
        await other.close()
    assert {job.id: job.body for job in kept.live().values()} == {1: b"one", 3: b"more"}


async def test_a_restarted_server_goes_on_where_the_last_one_was(kept):
    async with Server(Config(port=0), _journal=kept.open()) as server:
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
    async with Server(Config(port=0), _journal=kept.open()) as server:
        check_broker(server.broker)
        client = await Conversation.with_(server)
        assert await client.ask(b"peek-buried\r\n") == b"FOUND 2 1\r\n", "the first buried first"
        await client.reader.readline()
        assert await client.ask(b"cancel-keyed k5\r\n") == b"CANCELLED\r\n"
        assert await client.ask(b"put 0 0 60 1\r\ny\r\n") == b"INSERTED 11\r\n", "ids are never given twice"
        assert {job.id for job in kept.live().values()} - {8} == {1, 2, 3, 4, 9, 10, 11}
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
