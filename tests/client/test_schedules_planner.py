"""What one pass of a scheduler plans: a function of the schedule, the moment, and what is planned already."""

import datetime

import pytest
from beanstalk_client.schedules.moments import Cron, Every, between
from beanstalk_client.schedules.planner import ALL, MOST, ONCE, RULES, SKIP, Plan, plan
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

MINUTE = 60
HOUR = 3600
DAY = 86400
AHEAD = 600
NOW = 1_800_000_000 - 1_800_000_000 % DAY  # midnight, UTC


def every(**interval):
    return Every(datetime.timedelta(**interval))


def make_pass(moments, now, old=None, missed=ONCE, work="work", tube="tube", ahead=AHEAD):
    """A pass while the server's clock is within a second that ends at `now`."""
    return plan(moments, work, tube, missed, old, now - 1, now, ahead, now + 450)


def test_a_first_start_fires_nothing_of_the_past_not_even_of_this_second():
    first = make_pass(every(minutes=5), NOW, missed=ALL)
    assert first.put == (NOW + 300, NOW + 600)
    assert (first.off, first.replaced, first.is_whole) == ((), (), True)
    assert first.plan == Plan("every 300 s", "work", "tube", NOW + 600, first.put, NOW + 450)


def test_what_was_missed_in_a_year_is_made_up_for_in_several_passes():
    old = make_pass(every(minutes=5), NOW, missed=ALL).plan
    fired = list(old.planned)
    passes = 0
    while True:
        to_do = make_pass(every(minutes=5), NOW + 20 * DAY, old, ALL)
        fired += to_do.put
        old = to_do.plan
        passes += 1
        if to_do.is_whole:
            break
        assert len(to_do.put) == MOST
    assert passes == 6
    assert fired == list(range(NOW + 300, NOW + 20 * DAY + 601, 300))


def test_another_expression_calls_off_what_is_planned_and_misses_nothing():
    daily = make_pass(Cron("0 8 * * *"), NOW)
    changed = make_pass(Cron("0 9 * * *"), NOW + 3 * DAY - 100, daily.plan, ALL)
    assert changed.off == ()  # it is due already
    assert changed.put == (NOW + 3 * DAY + 9 * HOUR,)
    soon = make_pass(Cron("0 9 * * *"), NOW + 100, daily.plan, ALL)
    assert soon.off == (NOW + 8 * HOUR,)
    assert soon.put == (NOW + 9 * HOUR,)


def test_a_firing_that_both_expressions_have_stays():
    old = make_pass(every(minutes=5), NOW).plan
    changed = make_pass(every(minutes=10), NOW + 10, old)
    assert (changed.off, changed.put) == ((NOW + 300,), (NOW + 600,))


def test_other_work_replaces_what_is_planned():
    old = make_pass(every(minutes=5), NOW).plan
    changed = make_pass(every(minutes=5), NOW + 301, old, work="other")
    assert (changed.off, changed.replaced, changed.put) == ((), (NOW + 600,), (NOW + 900,))
    both = make_pass(every(minutes=10), NOW + 10, old, work="other")
    assert (both.off, both.replaced, both.put) == ((NOW + 300,), (NOW + 600,), ())


def test_another_tube_takes_all_firings_with_it():
    old = make_pass(every(minutes=5), NOW).plan
    moved = make_pass(every(minutes=5), NOW + 10, old, tube="other")
    assert (moved.off, moved.replaced, moved.put) == ((NOW + 300, NOW + 600), (), (NOW + 300, NOW + 600))
    assert moved.plan.tube == "other"


def test_other_data_of_time_zones_move_what_is_planned():
    old = make_pass(Cron("0 8 * * *", "Europe/Berlin"), NOW).plan
    before_a_law = Plan(old.timing, old.work, old.tube, old.until + HOUR, (old.planned[0] + HOUR,), old.renewed_until)
    moved = make_pass(Cron("0 8 * * *", "Europe/Berlin"), NOW + 10, before_a_law)
    assert moved.off == before_a_law.planned
    assert old.planned[0] in moved.put


def test_a_scheduler_that_looks_less_far_ahead_calls_nothing_off():
    far = make_pass(every(minutes=5), NOW, ahead=HOUR)
    near = make_pass(every(minutes=5), NOW + 10, far.plan, ahead=60)
    assert near.off == ()
    assert near.plan.planned == far.plan.planned


def test_a_clock_that_is_set_back_loses_nothing():
    old = make_pass(every(minutes=5), NOW).plan
    back = make_pass(every(minutes=5), NOW - DAY, old)
    assert back.put[:2] == (NOW - DAY, NOW - DAY + 300)
    assert back.off == ()
    assert back.plan.until >= old.until


def test_a_plan_is_at_most_so_long():
    to_do = make_pass(every(seconds=1), NOW, ahead=DAY)
    assert len(to_do.put) == MOST
    assert len(to_do.plan.encode()) < 16_000
    assert make_pass(every(seconds=1), NOW + 1, to_do.plan, ahead=DAY).off == ()


PLANNED = make_pass(every(hours=1), NOW).plan.encode()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        "hello",
        "[" * 100_000,
        '{"timing": 1}',
        PLANNED.replace("[", '["x", '),
        PLANNED.replace("[", "[1e18, "),
        PLANNED.replace("[", "[1000000000000000000, "),
        PLANNED.replace("[", "[-1, "),
        PLANNED.replace('"tube": "tube"', '"tube": 1'),
        PLANNED.replace('"until": ', '"until": 9'),
        PLANNED.replace('"renewed_until": ', '"renewed_until": Infinity, "x": '),
        PLANNED.replace('"renewed_until": 1', '"renewed_until": 1e99, "work": 1'),
    ],
)
def test_what_is_no_plan_is_said_to_be_none(body):
    with pytest.raises(ValueError, match="not the plan"):
        Plan.decode(body)


def test_a_plan_is_read_as_it_was_written():
    old = make_pass(every(minutes=5), NOW).plan
    assert Plan.decode(old.encode()) == old


expressions = st.sampled_from(
    [every(minutes=5), every(seconds=7), every(hours=1), Cron("*/7 * * * *"), Cron("30 2 * * *", "Europe/Berlin")]
)


@settings(max_examples=examples(100))
@given(expressions, st.sampled_from(RULES), st.lists(st.integers(1, 5000), min_size=1, max_size=8))
def test_whenever_passes_are_made_each_moment_fires_as_the_rule_says(moments, missed, pauses):
    now = start = 1_774_742_400  # the evening before a clock is set forward
    old = None
    put = set()
    for pause in pauses:
        to_do = make_pass(moments, now, old, missed)
        due = set(between(moments, start, now - 1))
        absent = sorted(due - put) if old is not None else []
        wanted = {SKIP: [], ONCE: absent[-1:], ALL: absent}[missed]
        if old is not None:
            made_up = [moment for moment in to_do.put if moment < now]
            assert made_up == wanted[:MOST]
        put.update(to_do.put)
        if to_do.is_whole:
            put.update(due)  # whatever the rule says, it has been dealt with
        assert to_do.off == ()
        assert not to_do.is_whole or set(between(moments, now, now + AHEAD)) <= set(to_do.put)
        old = to_do.plan
        now += pause
