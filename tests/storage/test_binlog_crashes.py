"""Nothing acknowledged is lost, and nothing deleted comes back, wherever the machine stops.

A broker with a binlog on a disk in memory does random commands. The machine stops at one of its operations on the disk.
What it comes back with is compared with everything that the broker ever recorded, job by job: each job must be as it
was when it was last acknowledged, or as it was recorded after that. The same commands are repeated for each operation
at which the machine can stop.
"""

import asyncio
import errno
import random

import pytest
from effort import seeded, some_of
from lives import SEGMENT, Clocks, History, Life, assert_bound, live, run_life
from memory_disk import MemoryDirectory
from virtual import put, reserve_job

from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import NO_SYNC

pytestmark = [pytest.mark.usefixtures("places"), pytest.mark.compiled]

AN_HOUR = 3_600_000.0  # of sync_interval: its timer goes by real time, so it must not come by itself


def crash_and_recover(seed, crash_at, sync_interval, places):
    """Live, stop at an operation, come back; return how many operations there were."""
    until_killed = 0.0 if places == "in-engine" else sync_interval  # what was not synced may not have left the process
    rng = random.Random(seed)
    history = History()
    clocks = Clocks()
    first = run_life(history, MemoryDirectory(), rng, clocks, 40, sync_interval=until_killed)
    clocks.come_back(rng)
    directory = first.directory.after_a_kill()
    directory.crash_at = crash_at
    run_life(history, directory, rng, clocks, 100, sync_interval=sync_interval)
    if sync_interval:  # the disk may know of any step, also if the machine was booted since and nothing was compared
        clocks.offsets = clocks.known = clocks.all_offsets
    clocks.come_back(rng, has_crashed=True)
    if sync_interval:  # then a reply means written, not on the disk
        history.acknowledged = 0
    after = directory.after_a_crash(rng)
    run_life(history, after, rng, clocks, 10)
    assert not after.crashed
    return directory.operations


def some_crashes(seed, sync_interval, places):
    """Crash at some of the operations, under the profile `deep` at nearly all."""
    operations = crash_and_recover(seed, None, sync_interval, places)
    assert operations > 20
    for crash_at in some_of(range(1, operations + 1), 20, seed):
        crash_and_recover(seed, crash_at, sync_interval, places)


@seeded(3)
def test_a_machine_that_stops_at_any_operation_loses_nothing_that_was_acknowledged(places, seed):
    some_crashes(seed, 0.0, places)


@seeded(2)
@pytest.mark.parametrize("sync_interval", [AN_HOUR, NO_SYNC])
def test_without_a_sync_for_each_reply_a_crash_goes_back_to_what_was_recorded_at_some_moment(
    places, seed, sync_interval
):
    some_crashes(seed, sync_interval, places)


@seeded(3)
def test_a_start_relies_on_nothing_that_is_not_on_the_disk(seed, needs_a_disk):
    """Killed at any operation without a sync, then started with one for each reply; then the power fails."""

    def live_until(kill_at):
        rng = random.Random(seed)
        history = History()
        clocks = Clocks()
        directory = MemoryDirectory()
        directory.crash_at = kill_at
        run_life(history, directory, rng, clocks, 60, sync_interval=NO_SYNC)
        clocks.come_back(rng)
        second = run_life(history, directory.after_a_kill(), rng, clocks, 10)
        clocks.come_back(rng, has_crashed=True)
        run_life(history, second.directory.after_a_crash(rng), rng, clocks, 5)
        return directory.operations

    operations = live_until(None)
    assert operations > 20
    for kill_at in some_of(range(1, operations + 1), 12, seed):
        live_until(kill_at)


@seeded(4)
@pytest.mark.parametrize("sync_interval", [0.0, AN_HOUR, NO_SYNC])
def test_a_process_that_is_killed_loses_nothing_that_was_acknowledged(places, seed, sync_interval):
    if places == "in-engine" and sync_interval:
        pytest.skip("what was written without a sync may not have left the process")
    rng = random.Random(seed)
    history = History()
    directory = MemoryDirectory()
    clocks = Clocks()
    for _ in range(3):
        life = run_life(history, directory, rng, clocks, 60, sync_interval=sync_interval)
        directory = life.directory.after_a_kill()
        clocks.come_back(rng)


@seeded(10)
def test_a_full_disk_refuses_puts_and_nothing_else(seed):
    """Until the disk has room again: then puts succeed by themselves."""
    rng = random.Random(seed)
    segments = 2 + seed % 7
    history = History()
    life = Life(history, MemoryDirectory(capacity=segments * SEGMENT), rng, Clocks())

    async def work():
        life.start()
        refused = 0
        for _ in range(200):
            before = len(life.broker.jobs), history.position
            if put(life.broker, life.client, body=rng.randbytes(500), now=life.now) == DONE:
                await life.commit()
            else:
                refused += 1
                assert (len(life.broker.jobs), history.position) == before, "a put that is refused changes nothing"
            await life.settle()
        assert refused
        for _ in range(300):
            await life.room()
            number = rng.choice(list(life.broker.jobs))
            assert reserve_job(life.broker, life.client, number, life.now)
            choice = rng.randrange(20)
            if choice == 0 and len(life.broker.jobs) > 1:
                assert life.broker.delete(life.client, number, life.now) == DONE
            elif choice < 10:
                assert life.broker.release(life.client, number, 1, 0, life.now) == DONE
            else:
                assert life.broker.bury(life.client, number, 1, life.now) == DONE
                await life.room()
                assert life.broker.kick_job(life.client, number, life.now) == DONE
            if rng.random() < 0.7:
                await life.commit()
            await life.settle()
        await life.commit()
        life.directory.capacity = 1 << 30
        life.now += 2 * SECOND
        assert put(life.broker, life.client, body=bytes(500), now=life.now) == DONE
        await life.commit()
        for number in list(life.broker.jobs):
            await life.room()
            assert life.broker.delete(life.client, number, life.now) == DONE
        await life.commit()
        await life.settle()
        life.binlog._log.check()
        assert_bound(life)

    asyncio.run(work())
    run_life(history, life.directory.after_a_kill(), rng, life.clocks, 10)


@seeded(5)
@pytest.mark.parametrize("operation", ["write", "sync", "rename", "sync_directory"])
def test_a_disk_that_fails_once_is_never_trusted_again(operation, seed):
    """After a failed commit all others fail, and what comes back is what was acknowledged before."""
    rng = random.Random(seed)
    history = History()
    life = run_life(history, MemoryDirectory(), rng, Clocks(), 20)
    life = Life(history, life.directory.after_a_kill(), rng, life.clocks)

    async def work():
        life.start()
        history.compare(life)
        life.directory.fail[operation] = errno.EIO
        with pytest.raises(OSError, match="failed on demand"):
            await live(life, 1000)
        with pytest.raises(OSError, match="failed on demand"):
            await life.commit()
        await life.binlog.close()

    asyncio.run(work())
    run_life(history, life.directory.after_a_crash(rng), rng, life.clocks, 10)
