"""Wherever the machine stops during a takeover, a salvage or an export, no job is lost or doubled.

Each of them is repeated for operations on the disk at which it can be stopped. Then a broker starts on what the
machine comes back with, and may be stopped once more.
"""

import asyncio
import contextlib
import random

import pytest
from checking import check_broker
from effort import BASE_SEED, some_of
from memory_disk import Crash, MemoryDirectory, Node, at_once
from virtual import RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage import rewriting
from beanstalk_server.storage.beanstalkd import reader, writer
from beanstalk_server.storage.beanstalkd.writer import export
from beanstalk_server.storage.binlog import UNKNOWN_IDS, Binlog
from beanstalk_server.storage.inspection import inspect
from beanstalk_server.storage.segment import segment_names

pytestmark = pytest.mark.usefixtures("places")

OFFSET = 1_700_000_000 * SECOND
SEGMENT = 4096


def start(directory, salvage=False):
    """Start a broker on a directory; return its jobs by id, and the next id without those left out after a crash."""
    binlog = Binlog(
        directory,
        segment_size=SEGMENT,
        salvage=salvage,
        clock=lambda: SECOND,
        wall_clock=lambda: OFFSET + SECOND,
        boot=b"one boot for all",
        in_thread=at_once,
        draw_salt=lambda: 7,
    )
    broker = Broker(binlog, SECOND)
    broker.restore(OFFSET, SECOND)
    check_broker(broker)
    binlog._log.check()
    return {job.id: binlog.stored(job) for job in broker.jobs.values()}, broker.next_id % UNKNOWN_IDS


def stored(job_id):
    """A job, in a state that depends on its id; a few jobs fill a segment."""
    state = (READY, DELAYED, BURIED)[job_id % 3]
    deadline = OFFSET + 1000 * SECOND if state == DELAYED else 0
    return StoredJob(
        job_id, f"tube{job_id % 2}", "", state, job_id, 5 * SECOND, 60 * SECOND, bytes([job_id]) * 700, OFFSET, deadline
    )


def copied(directory):
    return MemoryDirectory({name: Node(node.data) for name, node in directory.nodes.items()})


def after_crashes(origin, work):
    """Yield the number of an operation at which `work` on a copy is stopped, and the directory then.

    Some operations are drawn, under the profile `deep` all; last comes the directory after work that was not stopped.
    """
    whole = copied(origin)
    work(whole)
    for crash_at in some_of(range(1, whole.operations + 1), 16, BASE_SEED):
        directory = copied(origin)
        directory.crash_at = crash_at
        with contextlib.suppress(Crash):
            work(directory)
        assert directory.crashed
        yield crash_at, directory
    yield whole.operations + 1, whole


def assert_starts_again(directory, expected, seed, salvage=False):
    """The jobs are there after a crash, and after another one in the start that follows it."""
    for again in range(6):
        rng = random.Random(f"{seed} {again}")
        after = directory.after_a_crash(rng) if again % 2 else directory.after_a_kill()
        after.crash_at = rng.randrange(1, 60) if again > 1 else None
        with contextlib.suppress(Crash):
            start(after, salvage)
        last = after.after_a_crash(rng) if after.crashed else copied(after)
        assert start(last, salvage) == expected
        assert start(copied(last)) == expected, "the next start needs no salvage"
        assert not last.names("rewriting")


@pytest.fixture
def beanstalkd_directory():
    """A directory that beanstalkd has written, in several files, with ids that are used up."""
    directory = MemoryDirectory()
    writer.write(directory, [stored(job_id) for job_id in (4, 2, 9, 3, 6, 5, 1, 7)], next_id=21, size=2000)
    assert len(directory.nodes) > 2
    return directory


@pytest.mark.parametrize("commit_limit", [1000, 1 << 20])
def test_an_interrupted_takeover_loses_nothing(beanstalkd_directory, monkeypatch, commit_limit):
    monkeypatch.setattr(rewriting, "COMMIT_LIMIT", commit_limit)
    expected = jobs, next_id = start(copied(beanstalkd_directory))
    assert sorted(jobs) == [1, 2, 3, 4, 5, 6, 7, 9]
    assert next_id == 21
    for job_id, job in jobs.items():
        assert job == stored(job_id).replace(bury_sequence=job.bury_sequence)
    assert sorted((2, 5), key=lambda job_id: jobs[job_id].bury_sequence) == [2, 5]
    for crash_at, directory in after_crashes(beanstalkd_directory, start):
        assert_starts_again(directory, expected, crash_at)
    assert crash_at > 30  # an engine has fewer operations than a disk
    for name, node in beanstalkd_directory.nodes.items():
        assert directory.nodes[f"beanstalkd/{name}"].data == node.data
        assert name not in directory.nodes


def test_a_takeover_writes_whole_segments(beanstalkd_directory):
    directory = copied(beanstalkd_directory)
    start(directory)
    assert len(segment_names(directory)) > 1
    directory.locked = False
    with inspect(directory) as binlog:
        counts = binlog.count()
    assert [count.damages for count in counts] == [[] for _ in counts]
    assert sum(count.live for count in counts) == sum(count.records for count in counts) == 8


def test_an_interrupted_salvage_loses_nothing_more():
    async def work(directory):
        binlog = Binlog(directory, segment_size=SEGMENT, in_thread=at_once)
        broker = Broker(binlog, SECOND)
        broker.restore(OFFSET, SECOND)
        client = RecordingClient(broker)
        for job_id in range(1, 13):
            body = bytes([job_id]) * 700
            assert broker.put(client, broker.take_id(), job_id, 0, SECOND, body, SECOND, SECOND) == DONE
            await binlog.commit()
        await binlog.close()

    origin = MemoryDirectory()
    asyncio.run(work(origin))
    damaged = segment_names(origin)[0][1]
    origin.nodes[damaged].data[300] ^= 1
    expected = jobs, _ = start(copied(origin), salvage=True)
    assert sorted(jobs) == list(range(2, 13))
    for crash_at, directory in after_crashes(origin, lambda directory: start(directory, salvage=True)):
        assert_starts_again(directory, expected, crash_at, salvage=True)
    assert crash_at > 40
    assert directory.nodes[f"damaged/{damaged}"].data == origin.nodes[damaged].data


def assert_whole_or_not_begun(directory, seed, jobs):
    """If the first file exists, everything does: beanstalkd looks for that file first."""
    for again in range(10):
        after = directory.after_a_crash(random.Random(f"{seed} {again}")) if again else directory.after_a_kill()
        if "binlog.1" in after.nodes:
            contents = reader.read(after, pytest.fail)
            assert list(contents.jobs()) == jobs
            assert contents.last_id == 20


def test_files_for_beanstalkd_are_all_there_once_the_first_one_is():
    jobs = [stored(job_id) for job_id in range(1, 9)]
    for crash_at, directory in after_crashes(
        MemoryDirectory(), lambda directory: writer.write(directory, jobs, next_id=21, size=2000)
    ):
        assert_whole_or_not_begun(directory, crash_at, jobs)
    assert crash_at > 8
    assert sorted(directory.nodes) == sorted(f"binlog.{number}" for number in range(1, len(directory.nodes) + 1))


def test_an_export_leaves_its_binlog_as_it_is(beanstalkd_directory):
    source = copied(beanstalkd_directory)
    start(source)
    source.locked = False
    before = {name: bytes(node.data) for name, node in source.nodes.items()}

    def back(directory):
        with inspect(source) as binlog:
            export(binlog, directory)

    with inspect(source) as binlog:
        jobs = [job.replace(bury_sequence=0) for job in binlog.live(pytest.fail)]
    assert len(jobs) == 8
    for crash_at, directory in after_crashes(MemoryDirectory(), back):
        assert_whole_or_not_begun(directory, crash_at, jobs)
        assert {name: bytes(node.data) for name, node in source.nodes.items()} == before
        source.locked = False
    assert list(directory.nodes) == ["binlog.1"]


def test_a_commit_whose_records_have_another_length_than_was_counted_is_not_written():
    replay = Replay(IdTable())  # not finished, so it has no boot, which a record of 33 bytes would have
    directory = MemoryDirectory()
    counts = {"sequence": 0, "commit_number": 0}
    rewriting_of_all = rewriting.Rewriting(directory, replay, [], SEGMENT, lambda: 5, 1 << 30, 20, **counts)
    with pytest.raises(RuntimeError, match="a commit of 33 bytes has records of 17 bytes"):
        rewriting_of_all.replace("aside", [], [])
