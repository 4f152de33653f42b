"""Keys, batches and clears of tubes: bounds, slices, and what fails.

What the commands answer is in conformance/conversations/extensions.txt.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual import BreakingJournal, FullJournal, World

from beanstalk_server.queue.journal import Journal

BAD = b"BAD_FORMAT\r\n"


def keyed(command, key=b"k", priority=0, delay=b"0", ttr=b"60", body=b"x"):
    return b"%b %b %d %b %b %d\r\n%b\r\n" % (command, key, priority, delay, ttr, len(body), body)


# Keys


def test_the_longest_key_and_the_largest_numbers_fit_into_a_line(world):
    world.info.max_job_size = 2**32 - 1
    client = world.connect()
    key = b"k" * 200
    for command in (b"put-keyed", b"replace-keyed"):
        line = command + b" " + key + b" 4294967295 4294967295.999 4294967295.999 4294967295\r\n"
        assert len(line) > 224
        caller = world.connect()
        assert caller.send(line) == b""  # it waits for the body
        assert caller.session.framer._left == 4294967297
    assert client.send(b"reschedule-keyed " + key + b" 4294967295.999\r\n") == b"NOT_FOUND\r\n"
    assert client.send(b"reschedule-keyed " + key + b"k 1\r\n") == BAD
    assert world.connect().send(b"put-keyed " + key + b" " * 320 + b"\r\n") == BAD
    assert client.send(b"put-keyed " + key + b" " * 100) == b""
    assert client.send(b"\r\n") == BAD


# replace-keyed


def test_replace_keyed_without_room_changes_nothing():
    journal = FullJournal()
    world = World(journal)
    client = world.connect()
    client.send(keyed(b"put-keyed", delay=b"9", body=b"old"))
    journal.refuses = ("put",)
    assert client.send(keyed(b"replace-keyed", body=b"new")) == b"OUT_OF_MEMORY\r\n"
    assert client.send(keyed(b"put-keyed", key=b"l")) == b"OUT_OF_MEMORY\r\n"
    assert client.send(b"peek-keyed k\r\npeek-keyed l\r\n") == b"FOUND 1 3\r\nold\r\nNOT_FOUND\r\n"
    world.check()


# cancel and reschedule


@given(due=st.integers(0, 30), at=st.integers(0, 30), slices=st.integers(0, 3))
def test_a_job_is_either_cancelled_or_received_and_never_both(due, at, slices):
    """At any millisecond around the tick in which it comes due, however much of the work of that tick is done."""
    world = World()
    worker, canceller = world.connect(), world.connect()
    worker.send(b"reserve\r\n")
    canceller.send(keyed(b"put-keyed", delay=b"1.%03d" % due))
    world.now += 1_000_000_000 + at * 1_000_000
    for _ in range(slices):
        world.broker.advance(world.now, 1)
    canceller.session.receive(b"cancel-keyed k\r\n", world.now)
    answer = canceller.read()
    world.settle()
    world.sleep(10)
    received = worker.read()
    assert (answer, received) in [(b"CANCELLED\r\n", b""), (b"TOO_LATE\r\n", b"RESERVED 1 1\r\nx\r\n")]
    world.check()


# reserve-batch


def test_a_batch_is_never_larger_than_a_slice_or_much_larger_than_a_megabyte(world, client):
    for _ in range(600):
        client.put()
    assert client.send(b"reserve-batch 4294967295 0\r\n").startswith(b"RESERVED_BATCH 512\r\n")
    assert client.send(b"reserve-batch 4294967295 0\r\n").startswith(b"RESERVED_BATCH 88\r\n")
    for _ in range(30):
        client.put(b"x" * 60_000)
    assert client.send(b"reserve-batch 100 0\r\n").startswith(b"RESERVED_BATCH 18\r\n")


def test_a_batch_over_many_tubes_is_smaller(client):
    for number in range(640):
        client.send(b"watch t%d\r\nuse t%d\r\n" % (number, number))
        client.put()
    assert client.send(b"reserve-batch 600 0\r\n").startswith(b"RESERVED_BATCH 24\r\n")


# clear-tube


class CountingJournal(Journal):
    keeps = True

    def __init__(self):
        self.cleared = []
        self.forgotten = set()

    def clear(self, tube_name, reserved_ids):
        self.cleared.append((tube_name, reserved_ids))
        return True

    def forget(self, job):
        self.forgotten.add(job.id)


def test_a_clear_of_more_than_a_slice_takes_effect_at_once_and_is_answered_when_it_is_done():
    journal = CountingJournal()
    world = World(journal)
    client, other = world.connect(), world.connect()
    worker = world.connect()
    for number in range(1, 2001):
        client.put(delay=number % 2 * 5)
    client.send(keyed(b"put-keyed", delay=b"1"))
    for number in range(2, 1002, 2):
        client.send(b"reserve-job %d\r\nbury %d 0\r\n" % (number, number))
    worker.send(b"reserve-job 2000\r\n")
    client.session.receive(b"clear-tube default\r\nlist-tube-used\r\n", world.now)
    assert client.read() == b""
    world.check()
    stats = other.session
    other.session.receive(b"peek-ready\r\npeek 1\r\ndelete 3\r\nkick-job 5\r\nkick 9\r\ncancel 7\r\n", world.now)
    other.session.receive(b"reserve-job 9\r\npeek-keyed k\r\nstats-job 1\r\nreschedule 11 1\r\n", world.now)
    assert other.read() == b"NOT_FOUND\r\n" * 4 + b"KICKED 0\r\n" + b"NOT_FOUND\r\n" * 5
    stats.receive(keyed(b"put-keyed", body=b"new") + b"put 0 0 1 3\r\nnew\r\n", world.now)
    worker.session.receive(b"bury 2000 0\r\n", world.now)
    assert other.read() == b"INSERTED 2002\r\nINSERTED 2003\r\n"
    world.now += 6 * 1_000_000_000  # delayed jobs come due while they are being cleared
    world.settle()
    assert client.read() == b"CLEARED 2000\r\nUSING default\r\n"
    assert journal.cleared == [("default", [2000])]
    assert journal.forgotten == set(range(1, 2002)) - {2000}
    assert sorted(world.broker.jobs) == [2000, 2002, 2003]
    assert other.send(b"peek-keyed k\r\n") == b"FOUND 2002 3\r\nnew\r\n"
    world.check()


def test_a_clear_that_the_journal_has_no_room_for_changes_nothing():
    world = World(FullJournal("clear"))
    client = world.connect()
    for _ in range(1500):
        client.put(delay=5)
    assert client.send(b"clear-tube default\r\nlist-tube-used\r\n") == b"OUT_OF_MEMORY\r\nUSING default\r\n"
    assert len(world.broker.jobs) == 1500
    world.check()


def test_a_clear_that_fails_in_its_first_slice_leaves_nothing_behind():
    journal = BreakingJournal()
    world = World(journal)
    client = world.connect()
    for number in range(1500):
        client.send(keyed(b"put-keyed", key=b"k%d" % number))
    journal.breaks = 1
    assert client.send(b"clear-tube default\r\nlist-tube-used\r\n") == b"INTERNAL_ERROR\r\nUSING default\r\n"
    assert not world.broker.jobs
    assert not world.broker.tubes.default.keys
    world.check()


def test_a_clear_that_has_failed_does_not_answer_for_the_next_command():
    journal = BreakingJournal()
    world = World(journal)
    client = world.connect()
    for tube in (b"a", b"b"):
        client.send(b"use " + tube + b"\r\n")
        for _ in range(1500 if tube == b"a" else 2500):
            client.put()
    client.session.receive(b"clear-tube a\r\nclear-tube b\r\nlist-tube-used\r\n", world.now)
    journal.breaks = 1
    with pytest.raises(RuntimeError):
        world.settle()
    world.settle()
    assert client.read() == b"INTERNAL_ERROR\r\nCLEARED 2500\r\nUSING b\r\n"
    assert not world.broker.jobs


@pytest.mark.parametrize("failures", [1, 3])
def test_a_clear_that_fails_is_answered_and_leaves_nothing_behind(failures):
    journal = BreakingJournal()
    world = World(journal)
    client = world.connect()
    for _ in range(1500):
        client.put()
    client.session.receive(b"clear-tube default\r\nlist-tube-used\r\n", world.now)
    journal.breaks = failures
    for _ in range(failures):
        with pytest.raises(RuntimeError):
            world.settle()
    world.settle()
    assert client.read() == b"INTERNAL_ERROR\r\nUSING default\r\n"
    assert not world.broker.jobs
    world.check()
