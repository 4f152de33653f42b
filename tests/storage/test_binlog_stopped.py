"""After a clean stop, the next start finds every job, or it is refused and says what is missing."""

import asyncio
import errno
import logging

import pytest
from crc32c import crc32c
from effort import BASE_SEED, some_of
from memory_disk import MemoryDirectory, Node, at_once
from virtual import RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import RestoreInterruptedError
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage import binlog
from beanstalk_server.storage.binlog import NO_SYNC, UNKNOWN_IDS, Binlog
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.inspection import inspect
from beanstalk_server.storage.segment import segment_names
from harness.waiting import eventually_async

pytestmark = pytest.mark.usefixtures("bodies")

JOBS = 25


def start(directory, salvage=False, **options):
    journal = Binlog(directory, salvage=salvage, in_thread=at_once, **{"segment_size": 4096, **options})
    broker = Broker(journal, SECOND)
    broker.restore(journal.clock_offset(), SECOND)
    return broker


def put(broker, count):
    client = RecordingClient(broker)

    async def work():
        for _ in range(count):
            assert broker.put(client, broker.take_id(), 0, 0, SECOND, bytes(100), SECOND, SECOND) == DONE
            await broker.journal.commit()
        await eventually_async(lambda: broker.journal._upkeep is None, "the upkeep ends")

    asyncio.run(work())


def stop(broker):
    asyncio.run(broker.journal.close())


def copied(directory, **files):
    """The same directory, with other bytes for some of its files, or without them."""
    nodes = {name: Node(node.data) for name, node in directory.nodes.items()}
    for name, data in files.items():
        name = name.replace("_", ".")
        nodes.pop(name, None)
        if data is not None:
            nodes[name] = Node(data)
    return MemoryDirectory(nodes)


@pytest.fixture
def stopped():
    """A directory with two segments, in which JOBS were put before a clean stop."""
    directory = MemoryDirectory()
    broker = start(directory)
    put(broker, JOBS)
    stop(broker)
    assert len(segment_names(directory)) == 2
    return directory


def newest(directory):
    return segment_names(directory)[-1][1]


def damages(directory):
    nodes = {name: bytes(node.data) for name, node in directory.nodes.items()}
    with inspect(directory) as inspection:
        found = [damage for count in inspection.count() for damage in count.damages]
    assert nodes == {name: bytes(node.data) for name, node in directory.nodes.items()}
    return found


def test_a_start_after_a_clean_stop_finds_every_job(stopped, caplog):
    assert len(start(stopped).jobs) == JOBS
    assert not caplog.records


def test_a_newest_segment_that_is_missing_after_a_kill_cannot_be_found(stopped):
    """As docs/binlog.md says: it looks like an earlier moment."""
    broker = start(stopped)
    put(broker, 1)
    directory = copied(stopped, **{newest(stopped): None})  # after a kill
    assert len(start(directory).jobs) == JOBS


def test_a_newest_segment_that_is_cut_or_zeroed_is_refused_and_can_be_salvaged(stopped):
    name = newest(stopped)
    data = bytes(stopped.nodes[name].data)
    end = len(data.rstrip(b"\0"))
    for place in some_of(range(32, end, 7), 12, BASE_SEED):
        for spoilt in (data[:place], data[:place] + bytes(len(data) - place)):
            directory = copied(stopped, **{name: spoilt})
            with pytest.raises(StorageError) as caught:
                start(directory)
            assert caught.value.status == DAMAGED
            assert f"{name}: damaged at offset " in str(caught.value)
            assert "\n" not in str(caught.value)
            assert directory.nodes[name].data == spoilt, "a start that is refused changes nothing"
            assert damages(directory)[0].segment == name
            broker = start(directory, salvage=True)
            left = len(broker.jobs)
            assert left <= JOBS  # the last commit is empty
            directory.locked = False
            assert len(start(directory).jobs) == left


def test_a_newest_segment_that_is_missing_is_refused_and_can_be_salvaged(stopped):
    name = newest(stopped)
    directory = copied(stopped, **{name: None})
    with pytest.raises(
        StorageError, match=rf"{name}: damaged at offset 0: the file is missing; it was the newest segment"
    ):
        start(directory)
    (damage,) = damages(directory)
    assert (damage.segment, damage.offset) == (name, 0)
    broker = start(directory, salvage=True)
    put(broker, 1)
    stop(broker)
    assert len(start(directory).jobs) == len(broker.jobs) < JOBS


@pytest.mark.parametrize("missing", [1, 2])
def test_oldest_segments_that_are_missing_are_refused_and_can_be_salvaged(missing):
    directory = MemoryDirectory()
    broker = start(directory)
    put(broker, 2 * JOBS)
    stop(broker)
    names = [name for _, name in segment_names(directory)]
    assert len(names) > missing
    directory = copied(directory, **dict.fromkeys(names[:missing]))
    with pytest.raises(StorageError, match=f"{names[0]}: damaged at offset 0: the file is missing; it was the oldest"):
        start(directory)
    (damage,) = damages(directory)
    assert (damage.segment, damage.offset) == (names[0], 0)
    broker = start(directory, salvage=True)
    put(broker, 1)
    stop(broker)
    assert len(start(directory).jobs) == len(broker.jobs) < 2 * JOBS


def test_oldest_segments_that_were_cleaned_away_are_not_missed():
    directory = MemoryDirectory()
    broker = start(directory)
    for _ in range(4):
        put(broker, JOBS)
        for job_id in list(broker.jobs):
            assert broker.delete(RecordingClient(broker), job_id, SECOND) == DONE
    put(broker, 1)
    stop(broker)
    assert segment_names(directory)[0][0] > 1
    assert not damages(directory)
    assert not damages(copied(directory, stopped=None))
    assert len(start(directory).jobs) == 1


def test_a_mark_of_an_earlier_server_says_nothing_of_the_oldest_segment(stopped):
    text = bytes(stopped.nodes["stopped"].data).rpartition(b" ")[0].rpartition(b" ")[0] + b" "
    directory = copied(stopped, stopped=text + b"%08x\n" % crc32c(text))
    assert len(start(directory).jobs) == JOBS


def test_a_mark_without_any_segment_is_refused(stopped):
    with pytest.raises(StorageError, match="the file is missing; it was the newest segment"):
        start(MemoryDirectory({"stopped": stopped.nodes["stopped"]}))


def test_a_mark_that_the_log_has_passed_means_nothing(stopped):
    mark = bytes(stopped.nodes["stopped"].data)
    broker = start(stopped)
    put(broker, 30)
    killed = stopped.after_a_kill()
    assert killed.nodes["started"].data == mark
    assert not damages(killed.after_a_kill())
    assert len(start(killed).jobs) == JOBS + 30


@pytest.mark.parametrize("text", [b"", b"garbage", b"1 2 3 00000000\n", b"9 9 9 01234567\n1"])
def test_a_mark_that_cannot_be_read_is_reported_and_ignored(stopped, caplog, text):
    directory = copied(stopped, stopped=text)
    assert not damages(directory)
    assert "memory/stopped: ignored: not the mark of a clean stop" in caplog.text
    caplog.clear()
    broker = start(directory)
    assert len(broker.jobs) == JOBS
    assert "memory/stopped: ignored: not the mark of a clean stop" in caplog.text
    stop(broker)
    assert not damages(directory)


def test_a_stop_without_room_for_the_mark_loses_nothing(caplog):
    caplog.set_level(logging.INFO)
    directory = MemoryDirectory()
    broker = start(directory)
    put(broker, 3)
    failures = []
    broker.journal.on_failure = failures.append
    directory.fail["create"] = errno.ENOSPC
    stop(broker)
    assert not failures
    assert "memory/stopped: cannot write" in caplog.text
    assert "stopped" not in directory.nodes
    directory.fail.clear()
    assert len(start(directory).jobs) == 3


def test_a_server_that_has_failed_leaves_no_mark():
    directory = MemoryDirectory()
    broker = start(directory)
    put(broker, 3)
    directory.fail["sync"] = errno.EIO
    stop(broker)
    assert "stopped" not in directory.nodes


def give_up(directory):
    """Begin a start that must fail, and close the binlog, as a server does then; return what it has said."""
    journal = Binlog(directory, segment_size=4096, in_thread=at_once)
    with pytest.raises(StorageError) as refused:
        Broker(journal, SECOND).restore(journal.clock_offset(), SECOND)
    asyncio.run(journal.close())
    return str(refused.value)


def test_a_start_that_is_refused_leaves_the_mark_so_that_the_next_one_is_refused_too(stopped):
    directory = copied(stopped, **{newest(stopped): None})
    assert give_up(directory) == give_up(directory)
    assert directory.nodes["stopped"].data == stopped.nodes["stopped"].data


def test_a_start_in_a_directory_that_another_server_uses_leaves_no_mark():
    directory = MemoryDirectory()
    put(start(directory), 2)
    assert "another server" in give_up(directory)
    assert "stopped" not in directory.nodes


def test_a_start_that_is_interrupted_leaves_the_mark_as_it_is(stopped):
    directory = copied(stopped)
    journal = Binlog(directory, in_thread=at_once)
    journal.interrupted = True
    with pytest.raises(RestoreInterruptedError):
        Broker(journal, SECOND).restore(0, SECOND)
    asyncio.run(journal.close())
    assert directory.nodes["stopped"].data == stopped.nodes["stopped"].data


@pytest.mark.parametrize("operation", ["rename", "write", "sync"])
def test_a_start_on_a_disk_that_fails_once_leaves_nothing_that_the_next_one_refuses(operation):
    directory = MemoryDirectory()
    put(start(directory), 2)
    directory = directory.after_a_kill()
    touch = directory.touch

    def fail_once(name):
        if name == operation:
            directory.touch = touch
            raise OSError(errno.EIO, "failed on demand")
        touch(name)

    directory.touch = fail_once
    give_up(directory)
    assert "stopped" not in directory.nodes
    assert start(directory).next_id > UNKNOWN_IDS


@pytest.mark.parametrize("lives", [0, 1, 3])
@pytest.mark.parametrize("is_clean", [False, True])
def test_an_id_of_a_job_that_waits_for_its_commit_is_not_given_again_after_a_kill(lives, is_clean):
    directory = MemoryDirectory()
    if is_clean:
        broker = start(directory)
        put(broker, lives)
        stop(broker)
    given = set()
    for _ in range(3):
        broker = start(directory)
        if not is_clean:
            put(broker, lives)
        client = RecordingClient(broker)
        for _ in range(2):  # no commit follows, but a worker may have got it
            job_id = broker.take_id()
            assert broker.put(client, job_id, 0, 0, SECOND, b"", SECOND, SECOND) == DONE
            assert job_id > max(given, default=0)
            given.add(job_id)
        directory = directory.after_a_kill()


def test_ids_go_on_without_a_gap_after_a_clean_stop():
    directory = MemoryDirectory()
    for number in (0, 0, 1, 2):
        broker = start(directory)
        assert broker.next_id == max(number, 1)
        if number:
            put(broker, 1)
        stop(broker)
    assert not {"started", "stopped.new"} & set(directory.names())


def test_a_start_that_leaves_out_ids_says_so_in_the_log_before_anybody_is_served():
    directory = MemoryDirectory()
    put(start(directory), 2)
    for _ in range(3):
        directory = directory.after_a_crash()
        broker = start(directory)
    assert broker.next_id == 3 + 3 * UNKNOWN_IDS


@pytest.mark.interpreted
def test_a_segment_that_may_have_lost_more_jobs_leaves_out_more_ids(monkeypatch):
    monkeypatch.setattr(binlog, "UNKNOWN_IDS", 100)
    directory = MemoryDirectory()
    broker = start(directory, segment_size=65536, sync_interval=NO_SYNC)
    put(broker, 1)
    assert start(directory.after_a_crash()).next_id == 2 + 65536 // 64
