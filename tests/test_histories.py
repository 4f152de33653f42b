"""The checker of histories finds each fault that is planted, and none where a server keeps its promises."""

import random
from zlib import crc32

import pytest
from effort import seeded

from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.policy import Policy
from tests.cluster.simulation.commands import command, ids_in, policed_tubes, terms_of
from tests.histories import SECOND, History, Recorder, Survivor, Terms, kinds_of, problems_of
from tests.virtual import MemoryJournal, World

MILLISECOND = SECOND // 1000


class Talk:
    """A history that a test makes up: each command takes a millisecond, and nothing happens at the same time."""

    def __init__(self):
        self.history = History()
        self.now = 0

    def say(self, client, line, reply, body=None, jobs=()):
        """A command and its reply; without a reply it is still under way."""
        self.now += MILLISECOND
        call = self.history.send(client, line.encode(), self.now, body and body.encode())
        if reply is not None:
            self.hear(call, reply, jobs)
        return call

    def hear(self, call, reply, jobs=()):
        self.now += MILLISECOND
        call.answer(reply.encode(), self.now, [(number, body.encode()) for number, body in jobs])

    def put(self, client, number, body, *, priority=0, delay=0, ttr=60, key=None):
        what = f"put-keyed {key}" if key else "put"
        return self.say(client, f"{what} {priority} {delay} {ttr} {len(body)}", f"INSERTED {number}", body)

    def reserve(self, client, number, body):
        return self.say(client, "reserve", f"RESERVED {number} {len(body)}", jobs=[(number, body)])

    def sleep(self, seconds):
        self.now += round(seconds * SECOND)

    def leave(self, client, *, by_itself=True):
        self.now += MILLISECOND
        self.history.leave(client, self.now, by_itself=by_itself)

    def take_over(self):
        self.now += 2 * MILLISECOND
        self.history.took_over(self.now - MILLISECOND, self.now)

    def problems(self, left=(), **bounds):
        self.now += MILLISECOND
        survivors = {
            number: body if isinstance(body, Survivor) else Survivor(body.encode())
            for number, body in dict(left).items()
        }
        return problems_of(self.history, survivors, self.now, **bounds)

    def kinds(self, left=(), **bounds):
        return dict(kinds_of(self.problems(left, **bounds)))


@pytest.fixture
def talk():
    return Talk()


def test_nothing_is_wrong_with_a_job_that_is_put_reserved_and_deleted(talk):
    talk.put("a", 1, "one")
    talk.put("a", 2, "two")
    talk.reserve("b", 1, "one")
    talk.say("b", "delete 1", "DELETED")
    talk.say("c", "peek 1", "NOT_FOUND")
    assert talk.problems({2: "two"}) == []


# Lost


def test_an_acknowledged_job_that_is_missing_is_lost(talk):
    talk.put("a", 1, "one")
    assert talk.kinds() == {"lost": 1}


def test_an_acknowledged_job_that_is_not_found_meanwhile_is_lost(talk):
    talk.put("a", 1, "one")
    talk.say("b", "peek 1", "NOT_FOUND")
    assert talk.kinds({1: "one"}) == {"lost": 1}


def test_a_job_may_be_missing_whose_put_or_delete_was_not_answered(talk):
    talk.put("a", 1, "one")
    talk.say("a", "delete 1", None)
    talk.say("b", "put 0 0 60 3", None, "two")
    talk.say("c", "put 0 0 60 5", None, "three")
    assert talk.problems({2: "two"}) == []


def test_a_cleared_job_is_not_lost_and_one_that_was_put_later_is(talk):
    talk.put("a", 1, "one")
    talk.say("b", "clear-tube default", "CLEARED 1")
    assert talk.problems() == []
    talk.put("a", 2, "two")
    assert talk.kinds() == {"lost": 1}


# Returned


@pytest.mark.parametrize(("line", "reply", "delay"), [("delete 1", "DELETED", 0), ("cancel 1", "CANCELLED", 50)])
def test_a_job_that_was_ended_may_not_be_there_again(talk, line, reply, delay):
    talk.put("a", 1, "one", delay=delay)
    talk.say("a", line, reply)
    assert talk.problems() == []
    assert talk.kinds({1: "one"}) == {"returned": 1}
    talk.sleep(60)
    talk.reserve("b", 1, "one")
    assert talk.kinds() == {"returned": 1}


def test_a_job_that_was_cancelled_by_its_key_may_not_be_there_again(talk):
    talk.put("a", 1, "one", delay=50, key="k")
    talk.say("a", "cancel-keyed k", "CANCELLED")
    assert talk.problems() == []
    assert talk.kinds({1: "one"}) == {"returned": 1}


def test_a_job_that_was_cleared_may_not_be_there_again(talk):
    talk.put("a", 1, "one")
    talk.say("b", "clear-tube default", "CLEARED 1")
    assert talk.kinds({1: "one"}) == {"returned": 1}


def test_a_job_that_somebody_may_have_held_during_the_clear_may_be_there(talk):
    talk.put("a", 1, "one")
    reserve = talk.say("b", "reserve", None)
    talk.say("a", "clear-tube default", "CLEARED 0")
    talk.hear(reserve, "RESERVED 1 3", [(1, "one")])
    assert talk.problems({1: "one"}) == []


def test_a_reserve_that_somebody_was_not_answered_holds_nothing_when_the_client_is_known_to_be_gone(talk):
    talk.put("a", 1, "one")
    talk.say("b", "reserve", None)
    talk.leave("b")
    talk.sleep(2)
    talk.say("a", "clear-tube default", "CLEARED 1")
    assert talk.problems({1: "one"}) == []
    assert talk.kinds({1: "one"}, notice=SECOND) == {"returned": 1}


def test_a_job_that_was_reserved_by_its_id_may_have_been_held_during_the_clear(talk):
    talk.put("a", 1, "one")
    talk.put("a", 2, "two")
    talk.say("b", "reserve-job 1", None)
    talk.say("a", "clear-tube default", "CLEARED 1")
    assert talk.problems({1: "one"}) == []
    assert talk.kinds({2: "two"}) == {"returned": 1}


@pytest.mark.parametrize("reply", ["RESERVED 2 3", "TIMED_OUT", "DEADLINE_SOON"])
def test_a_job_may_be_there_after_a_clear_if_a_reserve_that_was_given_twice_may_have_held_it(talk, reply):
    talk.put("a", 1, "one")
    reserve = talk.say("b", "reserve-with-timeout 9", None)
    talk.say("a", "clear-tube default", "CLEARED 0")
    lost = talk.now + 1
    talk.history.cut(lost, lost, lost + SECOND, ["b", "c"])
    talk.put("a", 2, "two")
    talk.hear(reserve, reply, [(2, "two")] if reply.startswith("RESERVED") else ())
    assert talk.problems({1: "one", 2: "two"}) == []


@pytest.mark.parametrize("why", ["another client", "another tube", "answered before", "over before"])
def test_a_reserve_that_was_given_twice_may_not_have_held_what_it_cannot_have_been_given(talk, why):
    talk.put("a", 1, "one")
    if why == "another tube":
        talk.say("b", "watch other", "WATCHING 2")
        talk.say("b", "ignore default", "WATCHING 1")
    reserve = talk.say("b", "reserve-with-timeout 9", None)
    if why == "answered before":
        talk.hear(reserve, "TIMED_OUT")
    lost = talk.now + 1
    talk.history.cut(lost, lost, lost + SECOND, ["c"] if why == "another client" else ["b"])
    if why == "over before":
        talk.sleep(2)
    talk.say("a", "clear-tube default", "CLEARED 1")
    if why != "answered before":
        talk.hear(reserve, "TIMED_OUT")
    assert talk.kinds({1: "one"}) == {"returned": 1}


def test_what_a_reserve_that_was_given_twice_may_have_held_is_ready_at_the_next_leader(talk):
    talk.put("a", 1, "one")
    reserve = talk.say("b", "reserve-with-timeout 9", None)
    lost = talk.now + 1
    talk.history.cut(lost, lost, lost + 60 * SECOND, ["b"])
    talk.take_over()
    talk.say("a", "clear-tube default", "CLEARED 1")
    talk.hear(reserve, "TIMED_OUT")
    assert talk.kinds({1: "one"}) == {"returned": 1}


def test_a_job_is_deleted_once(talk):
    talk.put("a", 1, "one")
    talk.say("a", "delete 1", "DELETED")
    talk.say("b", "delete 1", "DELETED")
    assert talk.kinds() == {"returned": 1}


def test_a_reserve_that_was_sent_before_the_delete_may_be_answered_after_it(talk):
    talk.put("a", 1, "one", ttr=1)
    early = talk.say("b", "reserve", None)
    talk.sleep(5)
    talk.reserve("a", 1, "one")
    talk.say("a", "delete 1", "DELETED")
    talk.hear(early, "RESERVED 1 3", [(1, "one")])
    assert talk.problems() == []
    assert talk.kinds(flight=1000) == {"returned": 1}


# Torn


def test_a_body_that_nobody_has_put_is_torn(talk):
    talk.put("a", 1, "one")
    assert talk.kinds({1: "on"}) == {"torn": 1}
    talk.reserve("b", 1, "ono")
    assert talk.kinds({1: "one"}) == {"torn": 1}


def test_a_body_from_before_a_replacement_is_torn(talk):
    talk.put("a", 1, "one", key="k")
    talk.say("a", "replace-keyed k 0 0 60 3", "REPLACED 1", "new")
    assert talk.problems({1: "new"}) == []
    assert talk.kinds({1: "one"}) == {"torn": 1}


def test_a_replacement_that_was_not_answered_may_have_happened(talk):
    talk.put("a", 1, "one", key="k")
    talk.say("a", "replace-keyed k 0 0 60 3", None, "new")
    assert talk.problems({1: "new"}) == []
    assert talk.problems({1: "one"}) == []


@pytest.mark.parametrize("what", ["put-keyed", "replace-keyed"])
def test_the_body_of_a_put_that_was_not_answered_may_have_been_replaced_before_anybody_saw_it(talk, what):
    talk.say("a", f"{what} k 0 0 60 3", None, "one")
    talk.say("b", "replace-keyed k 0 0 60 3", "REPLACED 1", "two")
    talk.say("c", "replace-keyed k 0 0 60 5", None, "three")
    assert talk.problems({1: "three"}) == []


def test_a_body_may_come_back_with_a_leader_that_has_not_heard_of_the_put_that_replaced_it(talk):
    talk.say("a", "put-keyed k 0 0 60 3", None, "one")
    talk.say("d", "peek-keyed k", "FOUND 1 3", jobs=[(1, "one")])
    talk.say("b", "replace-keyed k 0 0 60 3", None, "two")
    talk.reserve("c", 1, "two")
    talk.take_over()
    talk.reserve("d", 1, "one")
    assert talk.problems({1: "one"}) == []


def test_so_may_a_body_that_nobody_had_seen_before_it_was_replaced(talk):
    talk.say("a", "put-keyed k 0 0 60 3", None, "one")
    talk.say("d", "put-keyed k 0 0 60 4", "EXISTS 1", "none")
    talk.say("b", "replace-keyed k 0 0 60 3", None, "two")
    talk.reserve("c", 1, "two")
    talk.take_over()
    talk.reserve("d", 1, "one")
    assert talk.problems({1: "one"}) == []


def test_what_was_cancelled_by_its_key_may_have_been_a_job_that_nobody_has_seen(talk):
    talk.say("a", "put-keyed k 0 1 60 3", None, "one")
    cancelling = talk.say("b", "cancel-keyed k", None)
    talk.say("c", "put-keyed k 0 0 60 3", "INSERTED 2", "two")
    talk.hear(cancelling, "CANCELLED")
    talk.reserve("d", 2, "two")
    assert talk.problems({2: "two"}) == []


def test_a_job_that_was_there_before_anybody_had_put_it_is_torn(talk):
    talk.say("a", "put-keyed other 0 0 60 3", None, "one")
    talk.say("b", "replace-keyed k 0 0 60 3", "REPLACED 1", "two")
    talk.say("c", "replace-keyed k 0 0 60 5", None, "three")
    assert talk.kinds({1: "three"}) == {"torn": 1}


def test_a_job_that_is_handed_out_before_it_was_put_is_torn(talk):
    talk.reserve("b", 1, "one")
    talk.put("a", 1, "one")
    assert "torn" in talk.kinds({1: "one"})


# Doubled


def test_an_id_is_given_once(talk):
    talk.put("a", 1, "one")
    talk.put("a", 1, "two")
    assert "doubled" in talk.kinds({1: "two"})


def test_a_put_makes_one_job(talk):
    talk.put("a", 1, "one")
    assert talk.kinds({1: "one", 2: "one"}) == {"doubled": 1}


def test_a_put_that_was_not_answered_makes_one_job(talk):
    talk.say("a", "put 0 0 60 3", None, "one")
    assert talk.kinds({1: "one", 2: "one"}) == {"doubled": 1}


def test_an_id_that_somebody_has_seen_is_not_given_again(talk):
    talk.say("a", "put 0 0 60 3", None, "one")
    talk.reserve("b", 1, "one")
    talk.take_over()
    talk.put("a", 1, "two")
    assert "doubled" in talk.kinds({1: "two"})


# Shared


def test_two_clients_do_not_hold_a_job_at_the_same_time(talk):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    talk.reserve("c", 1, "one")
    talk.say("d", "stats", "OK 0")
    assert talk.kinds({1: "one"}) == {"shared": 1}


@pytest.mark.parametrize("line", ["release 1 0 0", "bury 1 0", "delete 1"])
def test_a_job_may_have_another_holder_once_the_first_may_have_given_it_away(talk, line):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    talk.say("b", line, None)
    talk.leave("b", by_itself=False)
    if line == "bury 1 0":
        talk.say("a", "kick 1", "KICKED 1")
    talk.reserve("c", 1, "one")
    assert talk.problems({1: "one"}) == []


def test_a_job_may_have_another_holder_after_its_time_to_run(talk):
    talk.put("a", 1, "one", ttr=2)
    talk.reserve("b", 1, "one")
    talk.sleep(1.9)
    touch = talk.say("b", "touch 1", "TOUCHED")
    talk.sleep(1.9)
    second = talk.reserve("c", 1, "one")
    assert talk.kinds({1: "one"}) == {"shared": 1}
    second.sent = second.answered = touch.answered + 2 * SECOND
    talk.now = second.answered
    assert talk.problems({1: "one"}) == []


def test_a_job_may_have_another_holder_after_its_client_is_gone(talk):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    talk.leave("b")
    talk.reserve("c", 1, "one")
    assert talk.problems({1: "one"}) == []


def test_a_client_that_was_disconnected_has_held_its_job_as_long_as_it_was_answered(talk):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    talk.reserve("c", 1, "one")
    talk.leave("b", by_itself=False)
    assert talk.problems({1: "one"}) == []


@pytest.mark.parametrize("what", ["took_over", "cut"])
def test_a_job_may_have_another_holder_when_the_first_one_does_not_count_any_more(talk, what):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    getattr(talk.history, what)(talk.now + 1, talk.now + 2)
    talk.reserve("c", 1, "one")
    talk.say("b", "delete 1", "NOT_FOUND")
    assert talk.problems({1: "one"}) == []


def test_a_job_is_not_taken_from_its_holder(talk):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    talk.say("b", "touch 1", "NOT_FOUND")
    assert talk.kinds({1: "one"}) == {"shared": 1}


# Early


def test_a_delayed_job_is_not_handed_out_early(talk):
    talk.put("a", 1, "one", delay=2)
    talk.sleep(1)
    talk.reserve("b", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}
    assert talk.problems({1: "one"}, skew=SECOND) == []
    assert talk.problems({1: "one"}, drift=0.5) == []


def test_a_delayed_job_may_be_handed_out_once_its_delay_is_over(talk):
    put = talk.put("a", 1, "one", delay=2)
    reserve = talk.reserve("b", 1, "one")
    reserve.answered = put.sent + 2 * SECOND
    talk.now = reserve.answered
    assert talk.problems({1: "one"}) == []


def test_a_job_that_was_released_with_a_delay_is_not_handed_out_early(talk):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    talk.say("b", "release 1 0 5", "RELEASED")
    talk.reserve("c", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}


def test_a_job_that_was_rescheduled_is_not_handed_out_before_its_new_moment(talk):
    talk.put("a", 1, "one", delay=2, key="k")
    talk.say("a", "reschedule 1 50", "RESCHEDULED")
    talk.say("a", "reschedule-keyed k 60", "RESCHEDULED")
    talk.sleep(55)
    talk.reserve("b", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("reschedule 1 0", None),
        ("reschedule-keyed k 0", "RESCHEDULED"),
        ("kick 7", None),
        ("kick 7", "KICKED 1"),
        ("kick-job 1", "KICKED"),
        ("replace-keyed k 0 0 60 3", None),
    ],
)
def test_a_delayed_job_may_be_handed_out_when_somebody_may_have_made_it_ready(talk, line, reply):
    talk.put("a", 1, "one", delay=50, key="k")
    talk.say("b", line, reply, "new" if "replace" in line else None)
    talk.reserve("c", 1, "one")
    assert talk.problems({1: "one"}) == []


def test_a_kick_of_nothing_makes_nothing_ready(talk):
    talk.put("a", 1, "one", delay=50)
    talk.say("b", "kick 7", "KICKED 0")
    talk.reserve("c", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}


def test_a_job_that_was_reserved_may_be_ready_again_at_once(talk):
    talk.put("a", 1, "one", delay=1)
    talk.sleep(1)
    talk.reserve("b", 1, "one")
    talk.leave("b")
    talk.reserve("c", 1, "one")
    assert talk.problems({1: "one"}) == []


def test_a_buried_job_is_not_handed_out(talk):
    talk.put("a", 1, "one")
    talk.reserve("b", 1, "one")
    talk.say("b", "bury 1 0", "BURIED")
    talk.take_over()
    assert talk.problems({1: Survivor(b"one", state="buried")}) == []
    assert talk.kinds({1: Survivor(b"one", state="ready")}) == {"early": 1}
    talk.reserve("c", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}


def test_a_job_of_a_paused_tube_is_not_handed_out(talk):
    talk.put("a", 1, "one")
    talk.say("a", "pause-tube default 5", "PAUSED")
    talk.reserve("b", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}
    talk.history.took_over(talk.now - 1, talk.now)
    assert talk.problems({1: "one"}) == []


# Keyed


def test_a_key_names_one_live_job(talk):
    talk.put("a", 1, "one", key="k")
    talk.put("a", 2, "two", key="k")
    assert "keyed" in talk.kinds({1: "one", 2: "two"})
    assert "keyed" in talk.kinds({2: "two"})


def test_a_key_is_free_again_when_its_job_may_have_been_deleted(talk):
    talk.put("a", 1, "one", key="k")
    talk.say("b", "delete 1", None)
    talk.put("a", 2, "two", key="k")
    assert talk.problems({2: "two"}) == []
    assert talk.kinds({1: "one", 2: "two"}) == {"keyed": 1}


def test_a_key_is_another_one_in_another_tube(talk):
    talk.put("a", 1, "one", key="k")
    talk.say("a", "use t", "USING t")
    talk.put("a", 2, "two", key="k")
    assert talk.problems({1: "one", 2: "two"}) == []


# Order


def test_jobs_of_a_tube_are_handed_out_in_their_order(talk):
    talk.put("a", 1, "one", priority=5)
    talk.put("a", 2, "two", priority=5)
    talk.put("a", 3, "three", priority=4)
    talk.reserve("b", 2, "two")
    assert talk.kinds({1: "one", 2: "two", 3: "three"}) == {"order": 1}


def test_a_job_that_was_released_comes_in_its_new_order(talk):
    talk.put("a", 1, "one")
    talk.put("a", 2, "two")
    talk.reserve("b", 1, "one")
    talk.say("b", "release 1 7 0", "RELEASED")
    talk.reserve("b", 2, "two")
    assert talk.problems({1: "one", 2: "two"}) == []
    talk.say("b", "release 2 7 0", "RELEASED")
    talk.reserve("c", 2, "two")
    assert talk.kinds({1: "one", 2: "two"}) == {"order": 1}


def test_somebody_who_was_not_told_may_hold_what_comes_first(talk):
    talk.put("a", 1, "one")
    talk.put("a", 2, "two")
    talk.say("b", "reserve", None)
    talk.leave("b")
    talk.reserve("c", 2, "two")
    assert talk.problems({1: "one", 2: "two"}) == []
    assert talk.problems({1: "one", 2: "two"}, notice=SECOND) == []
    talk.sleep(2)
    talk.put("a", 3, "three")
    talk.reserve("d", 3, "three")
    assert talk.kinds({1: "one", 2: "two", 3: "three"}, notice=SECOND) == {"order": 1}


def test_a_reserve_that_was_given_twice_may_have_held_what_comes_first(talk):
    talk.put("a", 1, "one")
    talk.put("a", 2, "two")
    reserve = talk.say("b", "reserve", None)
    talk.reserve("c", 2, "two")
    lost = talk.now + 1
    talk.history.cut(lost, lost, lost + SECOND, ["b"])
    talk.put("a", 3, "three")
    talk.hear(reserve, "RESERVED 3 5", [(3, "three")])
    left = {1: "one", 2: "two", 3: "three", 4: "four"}
    talk.sleep(2)
    talk.put("a", 4, "four")
    assert talk.problems(left) == []
    talk.reserve("d", 4, "four")
    assert talk.kinds(left) == {"order": 1}


# Shards

ONE, OTHER = "default", "other"  # of shards 1 and 0 of two


@pytest.fixture
def sharded(talk):
    """A talk with a server of two shards: the ids of the tube `default` are odd, those of `other` even."""
    assert [crc32(tube.encode()) % 2 for tube in (ONE, OTHER)] == [1, 0]
    talk.put("a", 3, "three")
    talk.say("a", f"use {OTHER}", f"USING {OTHER}")
    talk.put("a", 2, "two")
    for client in ("b", "c"):
        talk.say(client, f"watch {OTHER}", "WATCHING 2")
    return talk


LEFT = {2: "two", 3: "three"}


def test_a_job_has_an_id_of_the_shard_of_its_tube(sharded):
    assert sharded.problems(LEFT, shards=2) == []
    sharded.put("a", 5, "five")
    assert sharded.kinds({**LEFT, 5: "five"}, shards=2) == {"misplaced": 1}


def test_a_job_keeps_its_holder_when_another_shard_has_another_leader(sharded):
    sharded.reserve("b", 3, "three")
    sharded.history.took_over(sharded.now + 1, sharded.now + 2, 0)
    sharded.history.cut(sharded.now + 1, sharded.now + 2, shard=0)
    sharded.reserve("c", 3, "three")
    sharded.say("b", "touch 3", "NOT_FOUND")
    assert sharded.kinds(LEFT, shards=2) == {"shared": 2}


@pytest.mark.parametrize("what", ["took_over", "cut"])
def test_it_may_have_another_one_when_its_own_shard_has_another_leader(sharded, what):
    sharded.reserve("b", 2, "two")
    getattr(sharded.history, what)(sharded.now + 1, sharded.now + 2, shard=0)
    sharded.reserve("c", 2, "two")
    assert sharded.problems(LEFT, shards=2) == []


def test_a_pause_ends_with_the_leader_of_its_own_shard(sharded):
    sharded.say("a", f"pause-tube {OTHER} 5", "PAUSED")
    sharded.history.took_over(sharded.now + 1, sharded.now + 2, 1)
    sharded.reserve("b", 2, "two")
    assert sharded.kinds(LEFT, shards=2) == {"early": 1}
    sharded.history.took_over(sharded.now - 1, sharded.now, 0)
    assert sharded.problems(LEFT, shards=2) == []


def test_a_reserve_over_two_shards_may_hold_what_it_gives_back(sharded):
    reserve = sharded.say("b", "reserve-with-timeout 5", None)
    sharded.put("a", 4, "four")
    sharded.reserve("c", 4, "four")  # and not 2, which comes before it
    sharded.say("a", f"clear-tube {OTHER}", "CLEARED 0")
    sharded.hear(reserve, "RESERVED 3 5", [(3, "three")])
    left = {**LEFT, 4: "four"}
    assert sharded.problems(left, shards=2) == []
    assert set(sharded.kinds(left)) == {"order", "returned"}


def test_it_has_given_it_back_before_the_shard_answers_its_client_again(sharded):
    reserve = sharded.say("b", "reserve-with-timeout 5", None)
    sharded.hear(reserve, "RESERVED 3 5", [(3, "three")])
    sharded.say("b", "delete 3", "DELETED")  # it is of the other shard
    sharded.put("a", 4, "four")
    sharded.reserve("c", 4, "four")
    left = {2: "two", 4: "four"}
    assert sharded.problems(left, shards=2) == []
    sharded.say("b", "peek 2", "FOUND 2 3", jobs=[(2, "two")])
    assert sharded.problems(left, shards=2) == []
    sharded.put("a", 6, "six")
    sharded.say("c", "delete 4", "DELETED")
    sharded.reserve("d", 6, "six")
    assert sharded.kinds({2: "two", 6: "six"}, shards=2) == {"order": 1}


@pytest.mark.parametrize("why", ["reserve-job", "one shard"])
def test_a_reserve_of_one_shard_gives_nothing_back(sharded, why):
    if why == "one shard":
        sharded.say("b", f"ignore {OTHER}", "WATCHING 1")
    reserve = sharded.say("b", "reserve-job 3" if why == "reserve-job" else "reserve", None)
    sharded.put("a", 4, "four")
    sharded.reserve("c", 4, "four")
    sharded.hear(reserve, "RESERVED 3 5", [(3, "three")])
    assert sharded.kinds({**LEFT, 4: "four"}, shards=2) == {"order": 1}


def test_what_it_gives_back_is_ready_when_its_client_is_known_to_be_gone(sharded):
    reserve = sharded.say("b", "reserve-batch 2 5", None)
    sharded.hear(reserve, "TIMED_OUT")
    sharded.leave("b")
    sharded.sleep(2)
    sharded.put("a", 4, "four")
    sharded.reserve("c", 4, "four")
    left = {**LEFT, 4: "four"}
    assert sharded.problems(left, shards=2) == []
    assert sharded.kinds(left, shards=2, notice=SECOND) == {"order": 1}


# Terms of jobs, and policies of tubes


POLICIES = {
    "tried": Terms(tries=2, dead="dead"),
    "far": Terms(tries=2),  # its dead tube is in another shard
    "brief": Terms(ttl=3 * SECOND, hold=2 * SECOND),
}


def put_with(talk, number, body, demands, tube=None):
    if tube is not None:
        talk.say("a", f"use {tube}", f"USING {tube}")
        talk.say("b", f"watch {tube}", "WATCHING 2")
    return talk.say("a", f"put-with 0 0 60 {len(body)} {demands}".rstrip(), f"INSERTED {number}", body)


def fail(talk, number, body, reply="RELEASED", delay=0):
    talk.reserve("b", number, body)
    talk.say("b", f"release {number} 0 {delay}", reply)


@pytest.mark.parametrize(("demands", "tube"), [("tries=2", None), ("", "far")])
def test_a_job_is_given_up_when_it_has_failed_so_often_and_neither_before_nor_later(demands, tube):
    for replies, wrong in (("RB", {}), ("B", {"tries": 1}), ("RR", {"tries": 1})):
        talk = Talk()
        put_with(talk, 1, "one", demands, tube)
        for reply in replies:
            fail(talk, 1, "one", "BURIED" if reply == "B" else "RELEASED")
        assert talk.kinds({1: "one"}, policies=POLICIES) == wrong, replies


def test_a_kicked_job_has_all_its_tries_again(talk):
    put_with(talk, 1, "one", "tries=2")
    fail(talk, 1, "one")
    fail(talk, 1, "one", "BURIED")
    assert talk.problems({1: "one"}) == []
    talk.say("c", "kick-job 1", "KICKED")
    fail(talk, 1, "one")
    assert talk.problems({1: "one"}) == []
    talk.say("c", "kick 1", "KICKED 1")
    fail(talk, 1, "one")
    fail(talk, 1, "one", "BURIED")
    assert talk.problems({1: "one"}) == []


def test_who_was_not_told_may_have_failed(talk):
    put_with(talk, 1, "one", "tries=2")
    talk.say("c", "reserve", None)
    talk.leave("c")
    fail(talk, 1, "one", "BURIED")
    assert talk.problems({1: "one"}) == []


def test_a_job_that_nobody_limits_is_not_buried_by_a_release(talk):
    talk.put("a", 1, "one")
    fail(talk, 1, "one", "BURIED")
    assert talk.kinds({1: "one"}) == {"tries": 1}


def test_a_job_that_was_buried_by_a_release_is_not_handed_out(talk):
    put_with(talk, 1, "one", "tries=1")
    fail(talk, 1, "one", "BURIED")
    talk.reserve("b", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}


def test_a_job_is_in_the_dead_tube_of_its_own_tube_and_not_before_it_has_failed_so_often(talk):
    put_with(talk, 1, "one", "", "tried")
    fail(talk, 1, "one")
    left = {1: Survivor(b"one", "dead", "ready")}
    assert talk.kinds(left, policies=POLICIES) == {"tries": 1}
    fail(talk, 1, "one")
    assert talk.problems(left, policies=POLICIES) == []
    assert talk.problems({1: Survivor(b"one", "tried", "ready")}, policies=POLICIES) == []
    assert talk.kinds({1: Survivor(b"one", "default", "ready")}, policies=POLICIES) == {"misplaced": 1}
    assert talk.kinds(policies=POLICIES) == {"lost": 1}


def test_no_job_leaves_a_tube_without_a_dead_tube(talk):
    talk.put("a", 1, "one")
    assert talk.kinds({1: Survivor(b"one", "dead", "ready")}, policies=POLICIES) == {"misplaced": 1}


def test_a_job_in_the_dead_tube_may_be_cleared_or_cancelled_there(talk):
    for end in ("clear-tube dead", "cancel-keyed k"):
        talk = Talk()
        put_with(talk, 1, "one", "key=k", "tried")
        fail(talk, 1, "one")
        fail(talk, 1, "one")
        talk.say("c", "use dead", "USING dead")
        talk.say("c", end, "CLEARED 1" if end.startswith("clear") else "CANCELLED")
        assert talk.problems(policies=POLICIES) == []


def test_a_job_waits_for_its_backoff_at_least(talk):
    put_with(talk, 1, "one", "backoff=2")
    fail(talk, 1, "one")
    talk.sleep(1)
    talk.reserve("b", 1, "one")
    assert talk.kinds({1: "one"}) == {"early": 1}


def test_a_job_that_waits_for_its_backoff_comes_after_others(talk):
    put_with(talk, 1, "one", "backoff=2")
    fail(talk, 1, "one")
    talk.put("a", 2, "two")
    talk.reserve("b", 2, "two")
    assert talk.problems({1: "one", 2: "two"}) == []


@pytest.mark.parametrize(("demands", "tube"), [("ttl=3", None), ("", "brief")])
def test_a_job_may_be_missing_once_its_time_to_live_is_over_and_not_before(talk, demands, tube):
    put_with(talk, 1, "one", demands, tube)
    talk.sleep(2.9)
    assert talk.kinds(policies=POLICIES) == {"lost": 1}
    talk.sleep(0.1)
    assert talk.problems(policies=POLICIES) == []


def test_a_job_that_may_have_expired_may_have_been_passed_over(talk):
    put_with(talk, 1, "one", "ttl=3")
    talk.put("a", 2, "two")
    talk.sleep(4)
    talk.reserve("b", 2, "two")
    assert talk.problems({2: "two"}) == []
    assert talk.problems({1: "one", 2: "two"}) == []


@pytest.mark.parametrize(("demands", "tube"), [("key=k hold=2", None), ("key=k", "brief")])
def test_a_held_key_is_given_to_nobody_until_its_time_is_over(demands, tube):
    for seconds, end, wrong in ((1.9, "delete", 1), (2.1, "delete", 0), (0, "cancel", 0), (0, "clear", 0)):
        talk = Talk()
        put_with(talk, 1, "one", demands, tube)
        name = tube or "default"
        if end == "cancel":
            talk.say("a", "cancel 1", "CANCELLED")
        else:
            talk.say("a", "delete 1", "DELETED")
        if end == "clear":
            talk.say("a", f"clear-tube {name}", "CLEARED 0")
        elif end == "delete":
            talk.say("c", f"use {name}", f"USING {name}")
            talk.say("c", "put-keyed k 0 0 60 5", "EXISTS 1", "other")
        talk.sleep(seconds)
        put_with(talk, 2, "two", demands)
        assert talk.kinds({2: "two"}, policies=POLICIES) == ({"held": 1} if wrong else {}), (seconds, end)


def test_a_key_that_nobody_holds_is_not_said_to_be_taken_after_its_job_is_gone(talk):
    talk.put("a", 1, "one", key="k")
    talk.say("a", "delete 1", "DELETED")
    talk.say("c", "put-keyed k 0 0 60 5", "EXISTS 1", "other")
    assert talk.kinds() == {"returned": 1}


def test_no_job_is_handed_out_before_its_moment_of_the_wall_clock(talk):
    put_with(talk, 1, "one", "at=1002.5")
    talk.sleep(2.4)
    talk.reserve("b", 1, "one")
    assert talk.problems({1: "one"}, wall=1002 * SECOND) == []
    assert talk.kinds({1: "one"}, wall=1000 * SECOND) == {"early": 1}


def test_a_job_may_have_been_replaced_in_the_dead_tube_and_be_back_although_nobody_was_told(talk):
    talk.say("c", "use tried", "USING tried")
    talk.say("c", "put-with 0 0 60 3 key=k", None, "one")
    talk.say("d", "stats-job 1", "OK 3")
    talk.say("e", "use dead", "USING dead")
    talk.say("e", "put-with 0 0 60 3 key=k replace=1", None, "two")
    assert talk.problems({1: Survivor(b"two", "tried", "ready")}, policies=POLICIES) == []
    assert talk.kinds({1: Survivor(b"two", "other", "ready")}, policies=POLICIES) == {"misplaced": 1}


@pytest.mark.parametrize(("count", "wrong"), [(1, {}), (0, {"early": 1})])
def test_a_redriven_job_may_be_handed_out(talk, count, wrong):
    put_with(talk, 1, "one", "", "tried")
    fail(talk, 1, "one")
    fail(talk, 1, "one")
    talk.say("c", "reserve-job 1", "RESERVED 1 3", jobs=[(1, "one")])
    talk.say("c", "bury 1 0", "BURIED")
    talk.say("d", "redrive dead 5", f"REDRIVEN {count}")
    talk.reserve("b", 1, "one")
    assert talk.kinds({1: "one"}, policies=POLICIES) == wrong


# Groups, limits and counts of tries


@pytest.mark.parametrize(
    ("ends", "delivers", "wrong"),
    [("", True, {"early": 1}), ("delete 1", True, {}), ("kick-job 2", True, {}), ("", False, {})],
)
def test_a_job_that_comes_after_a_group_is_handed_out_when_no_job_of_the_group_is_left(talk, ends, delivers, wrong):
    put_with(talk, 1, "one", "group=g")
    put_with(talk, 2, "two", "after=g")
    talk.reserve("b", 1, "one")
    if ends:
        talk.say("b", ends, "KICKED" if "kick" in ends else "DELETED")
    if delivers:
        talk.reserve("c", 2, "two")
    left = {2: Survivor(b"two", "default", "ready" if delivers else "delayed"), 1: Survivor(b"one", "default", "ready")}
    if "delete" in ends:
        del left[1]
    assert talk.kinds(left) == wrong


def test_a_job_does_not_wait_for_a_group_without_jobs(talk):
    put_with(talk, 1, "one", "group=g")
    put_with(talk, 2, "two", "after=g:wait")
    talk.reserve("b", 1, "one")
    talk.say("b", "delete 1", "DELETED")
    assert talk.problems({2: Survivor(b"two", "default", "ready")}) == []
    assert talk.kinds({2: Survivor(b"two", "default", "delayed")}) == {"open": 1}


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"state": "open", "done-jobs": "1"}, {}),
        ({"state": "ended", "done-jobs": "1"}, {"counted": 1}),
        ({"state": "open", "done-jobs": "0"}, {"counted": 1}),
        ({"state": "open", "done-jobs": "1", "dead-jobs": "1"}, {"counted": 1}),
    ],
)
def test_a_group_counts_its_jobs_and_is_open_while_one_is_left(talk, found, wrong):
    put_with(talk, 1, "one", "group=g")
    put_with(talk, 2, "two", "group=g")
    talk.say("b", "reserve", "RESERVED 1 3", jobs=[(1, "one")])
    talk.say("b", "delete 1", "DELETED")
    assert talk.kinds({2: "two"}, groups={b"g": found}) == wrong


def test_clients_have_no_more_jobs_of_a_limit_at_a_time_than_it_allows(talk):
    for number, body in enumerate(("one", "two", "three"), 1):
        put_with(talk, number, body, "limit=l:2")
    talk.reserve("b", 1, "one")
    talk.reserve("b", 2, "two")
    talk.say("b", "release 1 0 0", "RELEASED")
    third = talk.reserve("c", 3, "three")
    left = {1: "one", 2: "two", 3: "three"}
    assert talk.problems(left) == []
    third.sent, third.answered = 7 * MILLISECOND, 9 * MILLISECOND
    talk.history.calls[-2].sent += 10 * MILLISECOND
    assert talk.kinds(left) == {"exceeded": 1}


@pytest.mark.parametrize(("tries", "wrong"), [(0, {"tries": 1}), (1, {}), (2, {"tries": 1})])
def test_a_job_counts_the_tries_that_it_has_had(talk, tries, wrong):
    put_with(talk, 1, "one", "tries=5")
    fail(talk, 1, "one")
    assert talk.kinds({1: Survivor(b"one", "default", "ready", tries=tries)}) == wrong


# Refused


def test_a_reply_that_no_server_in_order_gives_is_a_problem(talk):
    talk.say("a", "put 0 0 60 1", "INTERNAL_ERROR", "x")
    assert talk.kinds() == {"refused": 1}


# The recorder


def test_the_recorder_takes_replies_apart_in_whatever_pieces_they_come():
    history = History()
    recorder = Recorder(history, "a", clock=lambda: 7)
    assert recorder.send(b"put 0 0 60 1", b"x") == b"put 0 0 60 1\r\nx\r\n"
    assert recorder.send(b"reserve-batch 2 0") == b"reserve-batch 2 0\r\n"
    assert recorder.send(b"stats") == b"stats\r\n"
    assert recorder.send(b"reserve") == b"reserve\r\n"
    data = b"INSERTED 1\r\nRESERVED_BATCH 2\r\nRESERVED 1 1\r\nx\r\nRESERVED 2 2\r\n\r\n\r\nOK 3\r\n---\r\n"
    answered = [call for byte in data for call in recorder.receive(bytes([byte]))]
    assert [call.reply for call in answered] == [b"INSERTED 1", b"RESERVED_BATCH 2", b"OK 3"]
    assert answered[1].jobs == ((1, b"x"), (2, b"\r\n"))
    recorder.leave(by_itself=True)
    assert history.counts() == (3, 1)
    assert history.calls[-1].left == 7
    assert [call.is_harmless for call in history.calls] == [False, True, True, True]


# No false alarms


class RandomTalk:
    """Clients that do whatever there is with a server in virtual time, which stops and starts now and then."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.history = History()
        self.policed = policed_tubes(1)
        self.world = self.make_world(MemoryJournal())
        self.clients = {}  # name -> (Caller, Recorder, ids that it has heard of)
        self.names = 0

    def make_world(self, journal):
        policies = {
            name: Policy(
                max_tries=terms.tries,
                backoff=terms.backoff,
                dead_tube=terms.dead,
                ttl=terms.ttl,
                key_hold=terms.hold,
            )
            for name, terms in terms_of(self.policed, 1).items()
        }
        world = World(journal, policies=policies)
        world.info.clock_offset = journal.clock_offset
        return world

    def wall(self):
        return self.world.broker.journal.clock_offset()

    def connect(self):
        self.names += 1
        name = f"client {self.names}"
        recorder = Recorder(self.history, name, lambda: self.world.now)
        self.clients[name] = (self.world.connect(), recorder, [])
        return name

    def step(self):
        rng = self.rng
        for name, (caller, recorder, known) in list(self.clients.items()):
            self.hear(name, caller.read())
            if rng.random() < 0.01:
                recorder.leave(by_itself=True)
                caller.disconnect()
                del self.clients[name]
            elif not recorder.waiting and rng.random() < 0.5:
                moment = self.wall() + self.world.now
                line, body = command(
                    rng, known, self.names, len(self.history.calls), policed=tuple(self.policed), moment=moment
                )
                self.world.now += 1
                self.hear(name, caller.send(recorder.send(line, body)))
        while len(self.clients) < 6:
            self.connect()
        if rng.random() < 0.3:
            self.world.sleep(rng.choice((0.0001, 0.01, 0.5)))
        if rng.random() < 0.01:
            self.restart()
        self.world.check()

    def hear(self, name, data):
        _, recorder, known = self.clients[name]
        for call in recorder.receive(data):
            known += ids_in(call)

    def restart(self):
        """Everything that was committed is there again; here that is everything."""
        began = self.world.now
        for name, (caller, _, _) in self.clients.items():
            self.hear(name, caller.read())
        for _, recorder, _ in self.clients.values():
            recorder.leave(by_itself=False)
        self.clients.clear()
        world = self.make_world(self.world.broker.journal.restarted())
        world.now = self.world.now
        world.broker.restore(world.broker.journal.clock_offset(), world.now)
        world.broker.next_id = max(world.broker.next_id, self.world.broker.next_id)
        self.world = world
        self.history.took_over(began, world.now)

    def problems(self):
        self.world.now += 1
        survivors = {
            job.id: Survivor(job.body, job.tube.name, STATES[job.state], job.key)
            for job in self.world.broker.jobs.values()
        }
        policies = terms_of(self.policed, 1)
        return problems_of(
            self.history, survivors, self.world.now, flight=SECOND, notice=0, policies=policies, wall=self.wall()
        )


@seeded(12)
def test_a_server_that_keeps_its_promises_has_no_problems(seed):
    talk = RandomTalk(seed)
    for _ in range(300):
        talk.step()
    assert talk.problems() == []
    answered, _ = talk.history.counts()
    assert answered > 400


def test_a_journal_that_forgets_is_found_out():
    found = set()
    for seed in range(4):
        talk = RandomTalk(seed)
        for _ in range(200):
            talk.step()
        talk.world.broker.journal.jobs.popitem()
        talk.restart()
        found |= set(kinds_of(talk.problems()))
    assert found >= {"lost"}


def test_a_journal_that_keeps_nothing_is_found_out():
    assert not Journal.keeps
    talk = RandomTalk(1)
    for _ in range(200):
        talk.step()
    talk.world.broker.journal.jobs.clear()
    talk.restart()
    assert kinds_of(talk.problems())["lost"] > 5
