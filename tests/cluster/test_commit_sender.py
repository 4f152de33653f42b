"""The sender decides from answers alone: which commit is next, which again, and when there is nothing to be done."""

import pytest

from beanstalk_server.cluster.commit_sender import (
    COMMIT_COST,
    KEPT,
    CommitSender,
    DivergedError,
    FencedError,
    kept_within,
)
from beanstalk_server.cluster.engine.interface import START, Answer, EngineFullError, Lease, Position

BEFORE = Position(2, 40)
LEASE = Lease(3, 0, "a", "here:1", "secret", BEFORE)
ENOUGH = 1
FULL = EngineFullError("full")


def position(number, epoch=3):
    return Position(epoch, number)


def sender_with(count, **options):
    sender = CommitSender(LEASE, ENOUGH, **options)
    for number in range(count):
        sender.add([("d", str(number))], 10)
    return sender


def answer(sender, *answer, exceeded=False):
    """Let the engine answer the commit that is sent next; return why it is sent after a pause, or ""."""
    return sender.on_reply(Answer(*answer), exceeded, now=0.0)


def confirm(sender, count=1):
    for _ in range(count):
        assert not answer(sender, 3, sender.next().position, 2)


def test_commits_follow_each_other_and_the_one_that_the_engine_has():
    sender = sender_with(2)
    first = sender.next()
    assert (first.position, first.before) == (position(41), BEFORE)
    confirm(sender)
    assert sender.durable == position(41)
    assert (sender.next().position, sender.next().before) == (position(42), position(41))
    confirm(sender)
    assert sender.next() is None


def test_a_commit_without_an_answer_is_sent_again():
    sender = sender_with(1)
    assert sender.next() is sender.next()


def test_a_commit_that_too_few_replicas_have_is_sent_again():
    sender = sender_with(1)
    commit = sender.next()
    assert answer(sender, 3, commit.position, 0) == "fewer than 1 replicas have the last commit"
    assert sender.durable == BEFORE
    assert sender.next() is commit


def test_what_the_engine_has_lost_is_sent_again_in_order():
    sender = sender_with(5)
    confirm(sender, 4)
    assert not answer(sender, 3, position(42), 2)
    assert sender.next().position == position(43)
    assert sender.durable == position(44), "what was acknowledged stays acknowledged"
    confirm(sender)
    assert sender.next().position == position(44)
    confirm(sender, 2)
    assert sender.next() is None
    assert sender.durable == position(45)


def test_all_that_this_leader_has_written_can_be_sent_again():
    sender = sender_with(3)
    confirm(sender, 2)
    answer(sender, 3, BEFORE, 2)
    assert sender.next().position == position(41)


def test_an_engine_that_has_more_than_was_confirmed_gets_what_is_missing():
    sender = sender_with(3)
    answer(sender, 3, position(42), 2)
    assert sender.next().position == position(43)


def test_an_engine_that_has_everything_has_to_confirm_the_last_commit():
    sender = sender_with(2)
    answer(sender, 3, position(42), 2)
    assert sender.next().position == position(42)
    assert sender.durable == BEFORE
    confirm(sender)
    assert sender.durable == position(42)


@pytest.mark.parametrize("found", [START, position(39), position(42, epoch=2), position(77)])
def test_a_position_that_nobody_here_knows_means_that_the_engine_has_diverged(found):
    sender = sender_with(3)
    confirm(sender)
    with pytest.raises(DivergedError) as caught:
        answer(sender, 3, found, 2)
    assert caught.value.position == found


@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "later"])
def test_what_is_not_kept_any_more_cannot_be_sent_again(is_late):
    kept = 3 * (COMMIT_COST + 10)
    sender = sender_with(6, **({} if is_late else {"kept": kept}))
    confirm(sender, 5)
    if is_late:
        sender.keep(kept)
    answer(sender, 3, position(43), 2)
    assert sender.next().position == position(44)
    with pytest.raises(DivergedError):
        answer(sender, 3, position(42), 2)


def test_what_is_not_in_the_engine_is_kept_however_much_it_is():
    sender = sender_with(100, kept=1)
    confirm(sender, 100)
    assert sender.durable == position(140)


def test_a_node_keeps_no_more_than_a_part_of_its_memory():
    assert [kept_within(memory) for memory in (0, 80_000, 1 << 40)] == [KEPT, 10_000, KEPT]


@pytest.mark.parametrize(("epoch", "replicas"), [(4, 2), (3, 0)], ids=["a higher epoch", "another lease of this one"])
def test_another_lease_fences(epoch, replicas):
    with pytest.raises(FencedError) as caught:
        answer(sender_with(1), epoch, None, replicas)
    assert caught.value.epoch == epoch


def test_while_the_engine_has_lost_the_lease_nothing_is_sent_or_written_anew():
    sender = sender_with(2)
    confirm(sender)
    commit = sender.next()
    for epoch in (0, 2):
        assert answer(sender, epoch, None, 0) == "the engine has lost the lease"
    assert sender.next() is commit
    confirm(sender)


def test_a_commit_has_the_token_of_its_lease():
    assert sender_with(1).next().stamp.decode() == LEASE.stamp


def test_after_a_divergence_commits_follow_the_position_of_the_engine_and_use_none_twice():
    sender = sender_with(3)
    sender.restart(START)
    assert sender.next() is None
    sender.add([], 0)
    assert (sender.next().before, sender.next().position) == (START, position(44))
    confirm(sender)
    sender.restart(Position(3, 90))
    sender.add([], 0)
    assert sender.next().position == position(91)


def test_a_leader_without_a_commit_can_ask_what_the_engine_has():
    sender = sender_with(0)
    sender.verify()
    assert sender.next().operations == []
    sender.verify()
    confirm(sender)
    assert sender.next() is None
    sender.verify()
    assert sender.next().position == position(41), "the last commit once more"
    confirm(sender)
    assert sender.next() is None


def test_a_full_engine_is_gone_beyond_its_limit_and_asked_again_after_a_second():
    sender = sender_with(3)
    assert not sender.may_exceed(10.0)
    assert not sender.on_reply(FULL, exceeded=False, now=10.0), "the same again, at once"
    assert sender.may_exceed(10.0)
    assert not answer(sender, 3, position(41), 2, exceeded=True)
    assert sender.is_full
    assert sender.may_exceed(10.9)
    assert not sender.may_exceed(11.0)
    sender.on_reply(FULL, exceeded=False, now=11.0)
    assert sender.may_exceed(11.5)
    assert not sender.may_exceed(12.0)
    answer(sender, 3, position(42), 2)
    assert not sender.is_full
    assert not sender.may_exceed(12.0)


def test_an_engine_that_is_full_even_then_is_tried_after_a_pause():
    sender = sender_with(1)
    sender.on_reply(FULL, exceeded=False, now=1.0)
    assert sender.on_reply(FULL, exceeded=True, now=1.0) == "full"
