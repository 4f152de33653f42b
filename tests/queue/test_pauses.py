"""Pauses that a journal keeps: they go on after a restart, and keep their tube."""

import pytest
from checking import check_broker
from virtual import FullJournal, MemoryJournal, RecordingClient, put

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE, Journal
from beanstalk_server.queue.memory import PAUSE_COST
from beanstalk_server.queue.outcome import DONE, NOT_FOUND, OUT_OF_MEMORY, PENDING, TIMED_OUT
from beanstalk_server.queue.units import SECOND

pytestmark = pytest.mark.compiled

UNTIL_RESUMED = (2**32 - 1) * SECOND


def started(journal, now, **options):
    broker = Broker(journal, now, **options)
    broker.restore(journal.clock_offset(), now)
    return broker, RecordingClient(broker)


def advance(broker, now):
    while broker.next_event() <= now:
        broker.advance(now)


def paused(broker, client, name, duration, now):
    broker.use(client, name)
    assert broker.pause(client, name, duration, now) == DONE
    broker.use(client, "default")
    check_broker(broker)


@pytest.mark.parametrize("duration", [10 * SECOND, UNTIL_RESUMED])
def test_a_pause_goes_on_after_a_restart(duration):
    broker, client = started(MemoryJournal(), SECOND)
    paused(broker, client, "mail", duration, SECOND)
    put(broker, client, 0, 0, SECOND, b"x", SECOND)
    broker, client = started(broker.journal.restarted(), 4 * SECOND)
    check_broker(broker)
    found = broker.tube_statistics("mail", 4 * SECOND)
    assert (found.pause, found.pause_left) == (duration, duration - 3 * SECOND)
    assert broker.server_statistics().held == 0, "a pause is no held key"
    broker.watch(client, "mail")
    broker.ignore(client, "default")
    broker.use(client, "mail")
    put(broker, client, 0, 0, SECOND, b"y", 4 * SECOND)
    assert broker.reserve(client, 0, 4 * SECOND) == TIMED_OUT
    assert broker.reserve(client, 100 * SECOND, 4 * SECOND) == PENDING
    assert broker.pause(client, "mail", 0, 5 * SECOND) == DONE
    assert client.answers[-1][0] == "reserved"
    again, _ = started(broker.journal.restarted(), 6 * SECOND)
    assert again.tube_statistics("mail", 6 * SECOND).pause == 0


@pytest.mark.parametrize("while_down", [False, True])
def test_a_pause_that_ends_lets_its_tube_go(while_down):
    broker, client = started(MemoryJournal(), SECOND)
    paused(broker, client, "mail", 10 * SECOND, SECOND)
    if while_down:
        broker, client = started(broker.journal.restarted(), 20 * SECOND)
        check_broker(broker)
    else:
        advance(broker, 10 * SECOND)
        assert "mail" in broker.tubes
    advance(broker, 20 * SECOND)
    check_broker(broker)
    assert "mail" not in broker.tubes
    assert broker.journal.jobs == {} and not len(broker.held) and not broker.memory.used
    assert broker.pause(client, "mail", SECOND, 20 * SECOND) == NOT_FOUND


def test_the_last_pause_counts_and_a_clear_ends_none():
    broker, client = started(MemoryJournal(), SECOND)
    for duration in (10, 1000, 100):
        paused(broker, client, "mail", duration * SECOND, SECOND)
    assert len(broker.held) == 1
    assert broker.clear(client, "mail") == DONE
    broker, client = started(broker.journal.restarted(), 2 * SECOND)
    assert broker.tube_statistics("mail", 2 * SECOND).pause_left == 99 * SECOND
    check_broker(broker)


def test_without_a_journal_a_tube_takes_its_pause_with_it():
    broker, client = started(Journal(), SECOND)
    paused(broker, client, "mail", 10 * SECOND, SECOND)
    assert "mail" not in broker.tubes


def test_pauses_count_for_the_limit_on_memory():
    broker, client = started(MemoryJournal(), SECOND, max_memory=2 * PAUSE_COST)
    for name in ("a", "b"):
        paused(broker, client, name, UNTIL_RESUMED, SECOND)
    broker.use(client, "c")
    assert broker.pause(client, "c", UNTIL_RESUMED, SECOND) == OUT_OF_MEMORY
    assert broker.tube_statistics("c", SECOND).pause == 0
    assert broker.pause(client, "a", SECOND, SECOND) == DONE  # takes the room of the pause before
    assert broker.pause(client, "a", 0, SECOND) == DONE
    assert broker.pause(client, "c", UNTIL_RESUMED, SECOND) == DONE


def test_a_journal_without_room_begins_no_pause_but_ends_one():
    journal = FullJournal()
    broker, client = started(journal, SECOND)
    paused(broker, client, "mail", 10 * SECOND, SECOND)
    next_id = broker.next_id
    journal.refuses = ("pause",)
    broker.set_admission(DELETIONS)
    assert broker.pause(client, "mail", SECOND, SECOND) == OUT_OF_MEMORY
    assert broker.next_id == next_id and broker.tube_statistics("mail", SECOND).pause == 10 * SECOND
    check_broker(broker)
    assert broker.pause(client, "mail", 0, SECOND) == DONE
    assert journal.jobs == {}
    check_broker(broker)


def test_a_journal_that_admits_no_change_ends_a_pause_later():
    broker, client = started(MemoryJournal(), SECOND)
    paused(broker, client, "mail", 10 * SECOND, SECOND)
    broker.set_admission(NONE)
    advance(broker, 20 * SECOND)
    assert "mail" not in broker.tubes and len(broker.journal.jobs) == 1
    broker.set_admission(ALL)
    advance(broker, 20 * SECOND)
    assert broker.journal.jobs == {}
    check_broker(broker)
