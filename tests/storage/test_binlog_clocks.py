"""A job is never ready early: within one boot of the machine, its delay counts, no matter how the wall clock is set."""

import asyncio
import struct

import pytest
from crc32c import crc32c
from memory_disk import MemoryDirectory, Node, at_once
from reference_records import encode_clock, encode_put
from virtual import RecordingClient, put

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import DELAYED
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import LAST_MOMENT, StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage import disk
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.errors import StorageError
from beanstalk_server.storage.record import CLOCK
from beanstalk_server.storage.record_writer import encode_commit
from beanstalk_server.storage.recovery import recover
from beanstalk_server.storage.segment import MAGIC, VERSION, seed_of, segment_names
from beanstalk_server.storage.segment_reader import SegmentReader

pytestmark = pytest.mark.usefixtures("bodies")

HOUR = 3600 * SECOND
OFFSET = 1_700_000_000 * SECOND


class Machine:
    """A disk and two clocks."""

    def __init__(self):
        self.directory = MemoryDirectory()
        self.now = SECOND
        self.wall = OFFSET
        self.boot = b"the first boot.."

    def sleep(self, duration):
        self.now += duration
        self.wall += duration

    def reboot(self):
        self.boot = b"the second boot."
        self.now = 5 * SECOND

    def start(self):
        """Kill the process, and start the next one."""
        self.directory = self.directory.after_a_kill()
        self.binlog = Binlog(
            self.directory,
            segment_size=8192,
            clock=lambda: self.now,
            wall_clock=lambda: self.wall,
            boot=self.boot,
            in_thread=at_once,
        )
        self.broker = Broker(self.binlog, self.now)
        self.broker.restore(self.binlog.clock_offset(), self.now)
        self.client = RecordingClient(self.broker)
        return self

    def put(self, delay):
        number = self.broker.take_id()
        assert self.broker.put(self.client, number, 0, delay, SECOND, b"", self.now, self.now) == DONE
        self.commit()
        return number

    def put_at(self, at):
        """Put a job that is due when the wall clock says so."""
        self.broker.set_wall_offset(self.binlog.clock_offset())
        asked = Attributes(at=at)
        assert self.broker.put_with(self.client, asked, 0, 0, SECOND, b"", self.now, self.now) == DONE
        self.commit()
        return self.broker.next_id - 1

    def commit(self):
        asyncio.run(self.binlog.commit())

    def left(self, number=1):
        return self.broker.job_statistics(number, self.now).time_left

    def age(self, number=1):
        return self.broker.job_statistics(number, self.now).age


@pytest.fixture
def machine():
    return Machine().start()


STEPS = [2 * HOUR, -2 * HOUR, 0]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_while_nothing_happens_is_known_to_the_next_record(machine, step):
    machine.put(0)
    machine.wall += step
    number = machine.put(HOUR)
    machine.sleep(HOUR // 4)
    assert machine.start().left(number) == HOUR * 3 // 4


@pytest.mark.parametrize("step", STEPS)
def test_a_step_before_the_first_record_of_a_process_changes_no_delay(machine, step):
    machine.put(10 * HOUR)
    machine.start()
    machine.wall += step
    number = machine.put(HOUR)
    assert (machine.start().left(1), machine.left(number)) == (10 * HOUR, HOUR)


@pytest.mark.parametrize("step", STEPS)
def test_what_is_due_by_the_wall_clock_moves_with_each_step_and_with_no_restart(machine, step):
    number = machine.put_at(machine.wall + 10 * HOUR)
    assert machine.start().left(number) == 10 * HOUR
    machine.wall += step
    delayed = machine.put(HOUR)
    machine.sleep(HOUR // 2)
    assert (machine.start().left(number), machine.left(delayed)) == (10 * HOUR - step - HOUR // 2, HOUR // 2)


def test_it_is_due_by_the_clock_of_whoever_takes_over(machine):
    number = machine.put_at(machine.wall + HOUR)
    machine.reboot()  # another machine, as far as anybody can tell
    machine.wall += HOUR - 7
    assert machine.start().left(number) == 7
    machine.wall += 7
    machine.start()
    assert (machine.broker.ready, machine.broker.delayed) == (1, 0)


def test_what_was_released_before_its_moment_does_not_wait_for_it_again(machine):
    number = machine.put_at(machine.wall + HOUR)
    machine.broker.reserve_job(machine.client, number, machine.now)
    assert machine.broker.release(machine.client, number, 0, 0, machine.now) == DONE
    machine.commit()
    machine.wall -= HOUR
    assert machine.start().broker.ready == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_step_after_a_put_changes_no_delay(machine, step):
    machine.put(HOUR)
    machine.wall += step
    machine.put(0)
    machine.wall -= step // 2
    machine.sleep(HOUR // 2)
    assert (machine.start().left(), machine.age()) == (HOUR // 2, HOUR // 2)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_between_two_processes_of_one_boot_changes_no_delay(machine, step):
    machine.put(10 * HOUR)
    for _ in range(3):
        machine.wall += step
        machine.sleep(HOUR)
        machine.start()
        machine.put(0)
    assert (machine.left(), machine.age()) == (7 * HOUR, 3 * HOUR)


@pytest.mark.parametrize("step", STEPS)
def test_across_a_boot_the_wall_clock_counts(machine, step):
    machine.put(10 * HOUR)
    machine.wall += step  # the next commit records it
    machine.put(0)
    machine.wall += 3 * HOUR
    machine.reboot()
    assert machine.start().left() == 7 * HOUR
    machine.put(0)
    machine.wall += step
    machine.put(0)
    assert machine.start().left() == 7 * HOUR, "and within the new boot, the server's clock"


def test_a_step_across_a_boot_cannot_be_known(machine):
    machine.put(10 * HOUR)
    machine.wall += 3 * HOUR
    machine.reboot()
    assert machine.start().left() == 7 * HOUR


def test_a_step_within_one_commit_changes_no_delay(machine):
    """Neither of the job before it nor of the one after it."""
    for _ in range(2):
        assert put(machine.broker, machine.client, delay=HOUR, now=machine.now) == DONE
        machine.wall += 2 * HOUR
    machine.commit()
    machine.reboot()
    assert (machine.start().left(1), machine.left(2)) == (HOUR, HOUR)


def test_steps_are_recorded_and_jitter_is_not(machine):
    machine.put(0)
    for step in (SECOND // 1000, -SECOND // 1000, HOUR, SECOND // 1000):
        machine.wall += step
        machine.put(0)
    ((_, name),) = segment_names(machine.directory)
    reader = SegmentReader(machine.directory.open(name), name)
    offsets = []
    while reader.next():
        if reader.scanner.kind == CLOCK:
            offsets.append(reader.scanner.clock()[0])
    assert offsets == [OFFSET - SECOND, OFFSET - SECOND + HOUR]


def test_a_full_segment_has_room_to_record_a_step(machine):
    for n in range(300):
        machine.wall += HOUR
        machine.put(n * HOUR)
        machine.binlog._log.check()
    assert machine.binlog._log.sequence > 3
    started = machine.start()
    assert [started.left(n) for n in range(2, 300)] == [(n - 1) * HOUR for n in range(2, 300)]


def test_salvaged_jobs_keep_their_delay(machine):
    machine.put(10 * HOUR)
    machine.put(0)
    machine.wall += 2 * HOUR
    name = segment_names(machine.directory)[0][1]
    machine.directory.nodes[name].data[130] ^= 1  # within the first put
    machine.put(5 * HOUR)
    machine.directory = machine.directory.after_a_kill()
    machine.binlog = Binlog(
        machine.directory, salvage=True, boot=machine.boot, clock=lambda: machine.now, wall_clock=lambda: machine.wall
    )
    broker = Broker(machine.binlog, machine.now)
    broker.restore(machine.binlog.clock_offset(), machine.now)
    machine.directory.locked = False
    machine.wall += 2 * HOUR
    machine.start()
    assert sorted(machine.broker.jobs) == [2, 3]
    assert machine.left(3) == 5 * HOUR


def test_the_longest_delay_can_be_stored_in_the_year_2127(machine):
    machine.wall = 157 * 365 * 24 * HOUR
    longest = ((1 << 32) - 1) * SECOND
    machine.put(longest)
    assert machine.binlog.stored(machine.broker.jobs[1]).deadline == LAST_MOMENT
    assert Journal().stored(machine.broker.jobs[1]).deadline > 0
    assert 100 * 365 * 24 * HOUR < machine.start().left() <= longest


def test_a_boot_without_an_id_is_unlike_any_other(monkeypatch, tmp_path):
    known = disk.boot_id()
    assert known == disk.boot_id()
    assert len(known) == 16
    monkeypatch.setattr(disk, "BOOT", tmp_path / "missing")
    assert len({known, disk.boot_id(), disk.boot_id()}) == 3


def test_segments_of_version_1_are_read_and_have_no_clock(machine):
    """A record type that is new in version 2 is damage in them."""
    header = MAGIC + struct.pack("<IQII", 1, 1, 7, 0)
    seed = seed_of(7)
    put = encode_put(StoredJob(1, "old", "", DELAYED, 3, HOUR, SECOND, b"x", machine.wall, machine.wall + HOUR), seed)
    for more in (b"", encode_clock(0, machine.boot, seed)):
        commit = encode_commit(1, 0, len(put) + len(more), 2, 0, seed)
        data = header + crc32c(header).to_bytes(4, "little") + commit + put + more
        machine.directory = MemoryDirectory({"segment.0000000001": Node(data)})
        if more:
            machine.directory.lock()
            with pytest.raises(StorageError, match="unknown record type"):
                recover(machine.directory, Replay(IdTable()), salvage=False, segment_size=4096, draw_salt=int)
            continue
        assert machine.start().left() == HOUR
        assert [segment.version for segment in machine.binlog._log.segments] == [1, VERSION]
        machine.wall += HOUR
        machine.put(0)
        assert [segment.version for segment in machine.binlog._log.segments] == [1, VERSION]
        assert machine.start().left() == HOUR, "from the first record of version 2 on, the clocks are known"
