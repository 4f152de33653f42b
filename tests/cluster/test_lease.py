"""The lease: a leader stops before anybody else begins, and somebody begins as soon as that is safe."""

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from beanstalk_server.cluster.engine.interface import LINEAGE, Lease, Position
from beanstalk_server.cluster.lease import (
    ABSENCES,
    DEFERENCES,
    FENCED,
    GIVEN_BACK,
    GONE,
    LEADING,
    LOST,
    NEVER_USED,
    RELEASED,
    RENEWALS,
    RUN_OUT,
    SUSPENDED,
    Contender,
    Tenure,
    margin,
)
from beanstalk_server.queue.units import SECOND
from beanstalk_server.settings.options import LONGEST_TTL

TTL = 10 * SECOND
A = Lease(5, 3, "a", "a:1", "secret of a")


def contender(**known):
    return Contender("b", "b:1", TTL, **known)


def watch(contender, lease, until, since=0, step=SECOND):
    """Observe the same lease again and again; return the reason at the end."""
    for now in range(since, until + 1, step):
        contender.observe(lease, now)
    return contender.reason(until)


# A node that stands by


def test_a_new_node_takes_an_engine_that_seems_never_used_after_a_ttl_as_it_may_have_been_wiped():
    node = contender()
    assert node.reason(0) == ""  # before the engine has answered
    assert watch(node, Lease(), TTL - SECOND) == ""
    node.observe(Lease(), TTL)
    assert node.reason(TTL) == NEVER_USED
    assert node.claim("s") == Lease(1, 0, "b", "b:1", "s", ttl=TTL).sealed()


def test_a_lease_that_is_not_renewed_may_be_taken_after_the_whole_ttl():
    node = contender()
    assert watch(node, A, TTL - SECOND) == ""
    node.observe(A, TTL - 1)
    assert node.reason(TTL - 1) == ""
    node.observe(A, TTL)
    assert node.reason(TTL) == RUN_OUT
    assert node.claim("s").epoch == 6


def test_a_leader_with_a_longer_ttl_has_that_long():
    node = contender()
    slow = A._replace(ttl=3 * TTL)
    assert watch(node, slow, 3 * TTL - SECOND) == ""
    assert watch(node, Lease(4, 1, "a"), 6 * TTL - SECOND, 3 * TTL) == ""  # the engine has lost it
    assert watch(node, slow, 9 * TTL, 6 * TTL) == RUN_OUT


def test_a_leader_with_a_shorter_ttl_has_that_of_whoever_waits():
    node = contender()
    assert watch(node, A._replace(ttl=TTL // 2), TTL - SECOND) == ""
    assert watch(node, A._replace(ttl=TTL // 2), TTL) == RUN_OUT


SEALED = A._replace(ttl=TTL, lineage="0123456789abcdef").sealed()


@pytest.mark.parametrize(
    "flipped",
    [
        SEALED._replace(epoch=4),
        SEALED._replace(address="b:1"),
        SEALED._replace(ttl=TTL - 1),
        SEALED._replace(ttl=1 << 62),
        SEALED._replace(lineage="0123456789abcdee"),
        SEALED._replace(secret=SEALED.secret.replace("a", "c", 1)),
        SEALED._replace(secret=SEALED.secret[:-1] + chr(ord(SEALED.secret[-1]) ^ 1)),
    ],
)
def test_a_flipped_bit_of_a_lease_is_found_and_its_leader_not_taken_for_gone(flipped):
    """Even if its address has become that of this node, which starts, or of a node that has exited."""
    assert flipped.is_damaged()
    for seen in (SEALED, SEALED._replace(renewals=9, position=Position(5, 7), successor="b", node="")):
        assert not seen.is_damaged()
    node = contender()
    node.observe(flipped, 0)
    node.note_gone(flipped.epoch, "a")
    assert (node.reason(0), node.rival(), watch(node, flipped, TTL - SECOND)) == ("", None, "")
    assert watch(node, flipped, TTL) == RUN_OUT


def test_a_leader_has_no_longer_than_a_node_can_be_given():
    """A flipped bit of the ttl in the engine does not keep a shard without a leader for years."""
    node = contender()
    assert watch(node, A._replace(ttl=1 << 62), LONGEST_TTL * SECOND - SECOND) == ""
    assert watch(node, A._replace(ttl=1 << 62), LONGEST_TTL * SECOND) == RUN_OUT


def test_each_renewal_starts_the_ttl_anew():
    node = contender()
    watch(node, A, TTL - SECOND)
    renewed = A._replace(renewals=4)
    node.observe(renewed, TTL)
    assert node.reason(TTL) == ""
    assert watch(node, renewed, 2 * TTL - SECOND, TTL) == ""
    node.observe(renewed, 2 * TTL)
    assert node.reason(2 * TTL) == RUN_OUT


def test_while_the_engine_does_not_answer_no_time_passes():
    node = contender()
    watch(node, A, TTL - SECOND)
    node.lose_sight()
    assert node.reason(2 * TTL) == ""
    node.observe(A, 2 * TTL)
    assert node.reason(2 * TTL) == ""
    assert watch(node, A, 3 * TTL, 2 * TTL) == RUN_OUT


def test_an_engine_that_has_not_been_asked_for_long_starts_the_ttl_anew_too():
    node = contender()
    node.observe(A, 0)
    node.observe(A, TTL)  # the process was stopped in between, say
    assert node.reason(TTL) == ""


def test_a_lease_that_was_given_back_may_be_taken_at_once():
    node = contender()
    node.observe(A._replace(node=""), 0)
    assert node.reason(0) == GIVEN_BACK


def test_a_lease_that_was_given_back_to_a_node_is_left_to_it_for_a_moment():
    given = A._replace(node="", successor="b")
    node, successor = Contender("c", "c:1", TTL), contender()
    for each in (node, successor):
        each.observe(A, 0)
        each.observe(given, SECOND)
    assert successor.reason(SECOND) == GIVEN_BACK
    assert node.reason(SECOND + TTL // DEFERENCES - 1) == ""
    node.observe(given, SECOND + TTL // DEFERENCES)
    assert node.reason(SECOND + TTL // DEFERENCES) == GIVEN_BACK


def test_the_lease_of_a_process_that_is_gone_may_be_taken_at_once():
    node = contender()
    node.observe(A, 0)
    node.note_gone(4, "a")
    assert node.reason(0) == ""
    node.note_gone(5, "a")
    assert node.reason(0) == GONE
    node.observe(Lease(6, 0, "c", "c:1", "secret of c"), 1)
    assert node.reason(1) == ""


def test_a_leader_that_was_never_reached_is_not_gone_while_it_renews_its_lease():
    """A firewall refuses connections too, and so does another machine's loopback address."""
    node = contender()
    for renewals in range(20):
        node.observe(A._replace(renewals=renewals), renewals * TTL // RENEWALS)
        node.note_gone(5, "a", is_sure=False)
        assert node.reason((renewals + 1) * TTL // RENEWALS) == ""
    node.observe(A._replace(renewals=19), 21 * TTL // RENEWALS)
    assert node.reason(21 * TTL // RENEWALS) == GONE
    node.note_gone(5, "a")
    node.note_gone(5, "a", is_sure=False)  # it was reached once
    node.observe(A._replace(renewals=20), 22 * TTL // RENEWALS)
    assert node.reason(22 * TTL // RENEWALS) == GONE


@pytest.mark.parametrize("left", [A._replace(node="b"), A._replace(node="x", address="b:1")])
def test_what_led_from_here_does_not_any_more(left):
    node = contender()
    node.observe(left, 0)
    assert node.reason(0) == GONE


def test_a_rival_that_comes_later_to_the_address_of_this_node_leads_on():
    node = contender()
    node.observe(A, 0)
    assert node.rival() is None
    rival = Lease(6, 0, "x", "b:1", "secret of x")
    node.observe(rival, 1)
    assert node.rival() == rival
    assert node.reason(1) == ""
    later = Contender("b", "b:1", TTL, 5)  # it has led epoch 5 itself
    later.observe(rival, 0)
    assert later.reason(0) == ""


@pytest.mark.parametrize("left", [Lease(), Lease(4, 9, "a"), Lease(4, 9, "")])
def test_an_engine_that_has_lost_the_lease_is_taken_after_a_whole_ttl_only(left):
    node = contender()
    node.observe(A, 0)
    node.note_gone(left.epoch, "a")
    assert watch(node, left, TTL, SECOND) == ""
    assert node.has_lost()
    node.observe(left, TTL + SECOND)
    assert node.reason(TTL + SECOND) == LOST
    assert node.claim("s").epoch == 6


def test_a_node_that_has_led_remembers_the_highest_epoch():
    node = contender(highest=7)
    node.observe(Lease(), 0)
    assert node.reason(0) == ""
    assert node.claim("s").epoch == 8


def test_a_lease_names_those_before_it_the_latest_first():
    leases = [A]
    for epoch in range(6, 30):
        node = contender()
        node.observe(leases[-1]._replace(node=""), 0)
        leases.append(node.claim(f"secret of {epoch}"))
    assert leases[1].lineage == A.stamp
    assert leases[-1].lineage.split() == [each.stamp for each in leases[-2 : -2 - LINEAGE : -1]]
    assert [leases[-1].follows(each) for each in leases] == [False] * 8 + [True] * LINEAGE + [False]
    assert leases[-1].follows(Lease()), "an engine that was wiped"
    assert not leases[-1].follows(Lease(3, 0, "x", "x:1", "secret of x"))


# The node that leads


def test_a_leader_renews_five_times_in_a_ttl():
    tenure = Tenure(A, TTL, 0)
    assert tenure.next_renewal == 2 * SECOND
    tenure.renewed(A, 2 * SECOND)
    assert tenure.next_renewal == 4 * SECOND
    tenure.failed(4 * SECOND)
    assert 4 * SECOND < tenure.next_renewal < 5 * SECOND


def test_a_leader_that_cannot_renew_hands_nothing_out_before_the_ttl_is_over():
    tenure = Tenure(A, TTL, 0)
    assert tenure.state(9 * SECOND - 1) == LEADING
    assert tenure.state(9 * SECOND) == SUSPENDED
    tenure.renewed(A, 8 * SECOND)
    assert tenure.state(9 * SECOND) == LEADING
    assert tenure.end == 17 * SECOND


def test_a_renewal_that_is_answered_late_counts_from_when_it_was_sent():
    tenure = Tenure(A, TTL, 0)
    tenure.renewed(A, 4 * SECOND)
    tenure.renewed(A, 2 * SECOND)  # its answer took longer than the next one's
    assert tenure.end == 13 * SECOND


@pytest.mark.parametrize(
    "found",
    [
        Lease(6, 0, "c", "c:1", "secret of c"),
        Lease(6, 0, ""),
        A._replace(node="c", secret="secret of c"),
        A._replace(secret="another"),
        A._replace(node=""),
        A._replace(address="c:1"),  # a bit has flipped in the engine: the next leader writes its own
        A._replace(ttl=1 << 60),
        A._replace(lineage="0123456789abcdef"),
    ],
)
def test_a_leader_that_finds_another_lease_is_fenced_for_good(found):
    tenure = Tenure(A, TTL, 0)
    tenure.renewed(found, SECOND)
    assert tenure.state(SECOND) == FENCED
    tenure.renewed(A, 2 * SECOND)
    assert tenure.state(2 * SECOND) == FENCED
    assert tenure.highest == found.epoch


def test_an_engine_that_has_lost_the_lease_neither_fences_nor_counts():
    tenure = Tenure(A, TTL, 0)
    tenure.renewed(Lease(), 5 * SECOND)
    assert tenure.state(5 * SECOND) == LEADING
    assert tenure.state(9 * SECOND) == SUSPENDED
    assert tenure.next_renewal > 5 * SECOND


@pytest.mark.parametrize("epoch", [1, 4, 5])
def test_a_lease_that_was_taken_since_the_engine_has_lost_its_own_fences_a_leader_whatever_its_epoch(epoch):
    tenure = Tenure(A._replace(lineage="0123456789abcdef"), TTL, 0)
    tenure.renewed(Lease(epoch, 0, "c", "c:1", "secret of c"), SECOND)
    assert tenure.state(SECOND) == FENCED


def restoring(tenure, found, since, until):
    """Renew again and again, and find the same; return when the engine may be given the lease again."""
    for now in range(since, until, SECOND // 5):
        if tenure.may_restore(now):
            return now
        tenure.renewed(found, now)
    return None


@pytest.mark.parametrize("found", [Lease(), Lease(4, 9, "b", "b:1", "secret of b")])
def test_a_leader_whose_lease_has_run_out_restores_it_only_when_another_leader_would_have(found):
    """Another one may have led meanwhile, and lives: it restores its own after one renewal."""
    tenure = Tenure(A._replace(lineage=f"0123456789abcdef {found.stamp}"), TTL, 0)
    assert tenure.may_restore(8 * SECOND)
    long = ABSENCES * TTL // RENEWALS
    assert restoring(tenure, found, 10 * SECOND, 10 * SECOND + long) is None
    tenure.lose_sight(10 * SECOND + long)
    assert restoring(tenure, found, 20 * SECOND, 22 * SECOND) is None
    assert restoring(tenure, found._replace(renewals=99), 22 * SECOND, 90 * SECOND) == 22 * SECOND + long
    assert long < TTL, "before a node that stands by"
    tenure.renewed(tenure.lease._replace(renewals=1), 30 * SECOND)
    assert tenure.state(30 * SECOND) == LEADING


def test_a_commit_that_was_refused_fences_too():
    tenure = Tenure(A, TTL, 0)
    tenure.fenced(9)
    assert (tenure.state(0), tenure.highest) == (FENCED, 9)


def test_a_leader_that_gives_the_lease_back_leads_no_more():
    tenure = Tenure(A, TTL, 0)
    tenure.released()
    assert tenure.state(0) == RELEASED
    tenure.renewed(A._replace(node=""), 0)
    assert tenure.state(0) == RELEASED
    tenure.renewed(Lease(6, 0, "c", "c:1", "secret of c"), 0)
    assert tenure.state(0) == FENCED


def test_the_margin_is_a_tenth_of_the_ttl_and_a_second_at_least():
    assert [margin(ttl * SECOND) // SECOND for ttl in (2, 10, 300)] == [1, 1, 30]


# Both


@settings(max_examples=examples(100))
@given(data=st.data(), ttl=st.integers(2, 60).map(lambda seconds: seconds * SECOND))
def test_a_leader_has_stopped_before_anybody_may_take_its_lease(data, ttl):
    """Whenever messages come, in whatever time: here each clock may be wrong by up to a twentieth of the margin."""
    lease, tenure = A, Tenure(A, ttl, 0)
    node = contender(highest=0)
    node.ttl = ttl
    now = 0
    drift = data.draw(st.integers(-margin(ttl) // 20, margin(ttl) // 20))

    def others_clock(moment):
        return moment + 12345 + drift * moment // ttl

    for _ in range(data.draw(st.integers(1, 60))):
        sent = now
        now += data.draw(st.integers(0, ttl // 5))
        if data.draw(st.booleans()):
            applied = data.draw(st.booleans())
            answered = applied and data.draw(st.booleans())
            if applied:
                lease = lease._replace(renewals=lease.renewals + 1)
            now += data.draw(st.integers(0, ttl // 10))
            if answered:
                tenure.renewed(lease, sent)
        else:
            seen = lease
            now += data.draw(st.integers(0, ttl // 10))
            node.observe(seen, others_clock(now))
        if node.reason(others_clock(now)):
            assert tenure.state(now) == SUSPENDED
            return
