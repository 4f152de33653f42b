"""Wherever the machine stops: tries are neither lost nor counted twice, a held key is not free before its time, a dead
letter is in one tube, and a group has counted each of its members that has ended.

As in test_binlog_crashes.py: what a process comes back with is compared with all that its broker ever recorded, job by
job, with the terms of the jobs and the held keys.
"""

import random

import pytest
from effort import seeded, some_of
from lives import Clocks, History, run_life
from memory_disk import MemoryDirectory
from policy_lives import PolicyLife

pytestmark = pytest.mark.usefixtures("places")


def crash_and_recover(seed, crash_at):
    """Live, stop at an operation, come back; return how many operations there were."""
    rng = random.Random(seed)
    history = History()
    clocks = Clocks()
    first = run_life(history, MemoryDirectory(), rng, clocks, 40, PolicyLife)
    clocks.come_back(rng)
    directory = first.directory.after_a_kill()
    directory.crash_at = crash_at
    run_life(history, directory, rng, clocks, 80, PolicyLife)
    clocks.come_back(rng, has_crashed=True)
    after = directory.after_a_crash(rng)
    run_life(history, after, rng, clocks, 10, PolicyLife)
    assert not after.crashed
    return directory.operations


def test_tries_held_keys_dead_letters_and_groups_come_about():
    """So that the other tests do not compare nothing with nothing."""
    PolicyLife.met = frozenset()
    seeds = iter(range(100))
    while PolicyLife.met != {
        *("tries", "reason", "letter", "at", "ttl", "held", "moved"),
        *("open", "ended", "waits", "released"),
    }:
        crash_and_recover(next(seeds), None)


@seeded(2)
def test_a_machine_that_stops_at_any_operation_keeps_tries_held_keys_and_dead_letters(seed):
    operations = crash_and_recover(seed, None)
    assert operations > 20
    for crash_at in some_of(range(1, operations + 1), 15, seed):
        crash_and_recover(seed, crash_at)


@seeded(5)
def test_a_process_that_is_killed_keeps_them(seed):
    rng = random.Random(seed)
    history = History()
    directory = MemoryDirectory()
    clocks = Clocks()
    for _ in range(3):
        life = run_life(history, directory, rng, clocks, 60, PolicyLife)
        directory = life.directory.after_a_kill()
        clocks.come_back(rng)
