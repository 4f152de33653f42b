"""The timing wheel: compared with a sorted list, at its edges, ahead of time, and in slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.wheel import END_OF_TIME, RATIO, Timer, Wheel

TICK = 10
FOREVER = 2**32 * 10**9
YEAR = 365 * 86_400 * 10**9
WIDTH = RATIO * TICK  # of a slot of level 1, in nanoseconds


def new_timer():
    timer = Timer()
    timer.before = timer.after = UNLINKED
    return timer


def set_at(wheel, *deadlines):
    timers = [new_timer() for _ in deadlines]
    for timer, deadline in zip(timers, deadlines, strict=True):
        wheel.set(timer, deadline)
    return timers


def take_due(wheel):
    taken = []
    while not wheel.due.is_empty():
        taken.append(wheel.due.after)
        wheel.due.after.unlink()
    return taken


def advance(wheel, now, budget=1000):
    """Do all that there is to do at one moment; return the timers that came due."""
    fired = []
    while True:
        assert 0 <= wheel.advance(now, budget) <= budget
        wheel.check()
        fired += take_due(wheel)
        if wheel.next_event > now:
            return fired


def run_to(wheel, end, budget=1000, now=0):
    """Drive the wheel as a server does; return (moment, timer) for each timer that came due by the end."""
    fired = [(now, timer) for timer in take_due(wheel)]
    while wheel.next_event <= end:
        now = max(now, wheel.next_event)
        fired += [(now, timer) for timer in advance(wheel, now, budget)]
    wheel.advance(end, budget)
    return fired


def level_of(wheel, timer):
    while timer.__class__ is Timer:
        timer = timer.before
    return timer.level


def test_an_empty_wheel_wakes_nobody():
    wheel = Wheel(0, TICK)
    assert wheel.next_event == END_OF_TIME
    wheel.advance(10**18, 100)
    assert wheel.next_event == END_OF_TIME


def test_a_timer_fires_at_the_first_tick_that_is_not_before_its_deadline():
    for deadline, moment in [(1, 10), (9, 10), (10, 10), (11, 20), (12345, 12350)]:
        wheel = Wheel(0, TICK)
        [timer] = set_at(wheel, deadline)
        assert run_to(wheel, moment - 1) == []
        assert run_to(wheel, moment) == [(moment, timer)]


def test_a_deadline_that_has_passed_is_due_at_the_next_advance():
    wheel = Wheel(1000, TICK)
    [timer] = set_at(wheel, 0)
    assert wheel.next_event <= 1000
    wheel.advance(1000, 1)
    assert take_due(wheel) == [timer]


def test_a_timer_a_day_away_wakes_the_driver_only_to_cascade():
    wheel = Wheel(0, 1_000_000)
    set_at(wheel, 86_400 * 10**9)
    wakes = 0
    while wheel.due.is_empty():
        wheel.advance(wheel.next_event, 100)
        wakes += 1
    assert wakes <= 6


def test_deadlines_reach_beyond_2_to_the_32_seconds_at_the_shortest_tick():
    wheel = Wheel(10 * YEAR, 1000)
    [timer] = set_at(wheel, 10 * YEAR + FOREVER)
    wheel.check()
    assert run_to(wheel, 10 * YEAR + FOREVER - 1) == []
    assert [found for _, found in run_to(wheel, 10 * YEAR + FOREVER)] == [timer]


def test_removing_the_last_timer_of_a_slot_empties_the_wheel():
    wheel = Wheel(0, TICK)
    for timer in set_at(wheel, 5000, 5000, 5000):
        wheel.remove(timer)
        wheel.check()
    wheel.advance(0, 1)
    assert wheel.next_event == END_OF_TIME


def test_a_timer_that_is_due_can_still_be_removed():
    wheel = Wheel(0, TICK)
    timers = set_at(wheel, 50, 50, 50)
    wheel.advance(50, 1)
    wheel.remove(timers[1])
    wheel.check()
    assert take_due(wheel) == [timers[0], timers[2]]


@pytest.mark.parametrize("left", [100, 300, 500, 700, 10_000])
def test_timers_of_one_tick_come_due_in_the_order_in_which_they_were_set(left):
    wheel = Wheel(0, TICK)
    far = set_at(wheel, *[1_000_000] * 5)
    run_to(wheel, 1_000_000 - left)
    near = set_at(wheel, *[1_000_000] * 5)
    assert [timer for _, timer in run_to(wheel, 1_000_000)] == far + near


def test_a_slot_cascades_while_the_slot_before_it_runs():
    wheel = Wheel(0, TICK)
    timers = set_at(wheel, *range(2 * WIDTH, 3 * WIDTH, TICK))
    assert {level_of(wheel, timer) for timer in timers} == {1}
    assert wheel.next_event == WIDTH
    advance(wheel, WIDTH - 1)
    assert {level_of(wheel, timer) for timer in timers} == {1}
    assert advance(wheel, WIDTH) == []
    assert {level_of(wheel, timer) for timer in timers} == {0}
    assert wheel.next_event == 2 * WIDTH


def test_no_timer_is_placed_where_its_slot_would_cascade_at_once():
    wheel = Wheel(0, TICK)
    for now in range(0, 5 * WIDTH, 7):
        wheel.advance(now, 0)
        for deadline in range(now + TICK, now + 5 * WIDTH, 3):
            [timer] = set_at(wheel, deadline)
            assert wheel.next_event > now
            wheel.remove(timer)


def test_what_is_due_comes_before_what_can_cascade_later():
    wheel = Wheel(0, TICK)
    many = set_at(wheel, *[2 * WIDTH + 50] * 80)
    soon = set_at(wheel, *range(WIDTH, 2 * WIDTH, TICK))
    for position, timer in enumerate(soon):
        now = WIDTH + position * TICK
        assert wheel.advance(now, 3) == 3, "nothing cascades while something is due"
        assert take_due(wheel) == [timer]
        left = 80 - 3 * position
        assert (wheel.next_event <= now) == (left > 0), "there is more to cascade"
        assert wheel.advance(now, 3) == max(3 - max(left, 0), 0)
        assert take_due(wheel) == []
        wheel.check()
    assert [timer for _, timer in run_to(wheel, 3 * WIDTH, 3)] == many


def test_a_slot_whose_time_has_come_cascades_before_anything_later_is_due():
    wheel = Wheel(0, TICK)
    deadlines = [3 * WIDTH, 2 * WIDTH + 50, 100 * WIDTH + 1, 40 * WIDTH, 50, 2 * YEAR, YEAR + 1]
    timers = dict(zip(deadlines, set_at(wheel, *deadlines), strict=True))
    assert advance(wheel, 3 * YEAR, 1) == [timers[deadline] for deadline in sorted(deadlines)]
    assert wheel.next_event == END_OF_TIME


@pytest.mark.parametrize("now", [WIDTH, 2 * WIDTH, 2 * WIDTH + 50 * TICK], ids=["ahead", "on time", "late"])
def test_a_slot_of_many_timers_cascades_in_slices_and_loses_none(now):
    wheel = Wheel(0, TICK)
    timers = set_at(wheel, *[2 * WIDTH + 1 + index // 4 for index in range(1000)])
    slices = 0
    fired = []
    late = new_timer()
    while wheel.next_event <= now:
        wheel.advance(now, 64)
        wheel.check()
        fired += take_due(wheel)
        slices += 1
        if slices == 3:
            wheel.remove(timers[-1])  # still in the slot that cascades
            wheel.set(late, 2 * WIDTH + 100)  # and one set meanwhile
            wheel.set(timers[-2], 10 * WIDTH)  # one moved out of it
            wheel.check()
    assert slices >= 15
    fired += [timer for _, timer in run_to(wheel, 20 * WIDTH)]
    assert len(fired) == 1000
    assert set(fired) == set(timers[:-1]) | {late}
    assert fired[-1] is timers[-2]
    ticks = [-(-timer.deadline // TICK) for timer in fired]
    assert ticks == sorted(ticks)


deadlines = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2_000),
    st.integers(0, 60_000),
    st.integers(0, 10**7),
    st.integers(0, 10**12),
    st.integers(0, 3 * YEAR),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 15), deadlines),
        st.tuples(st.just("remove"), st.integers(0, 15)),
        st.tuples(st.just("pass"), deadlines),
        st.tuples(st.just("jump"), deadlines, st.integers(0, 3)),
    ),
    max_size=60,
)


class Compared:
    """A wheel beside the obvious: a list of (tick, order of setting), sorted whenever time passes."""

    def __init__(self, start, budget):
        self.wheel = Wheel(start, TICK)
        self.now = start
        self.budget = budget
        self.timers = [new_timer() for _ in range(16)]
        self.pending = {}

    def set(self, number, delay, order):
        timer = self.timers[number]
        self.wheel.set(timer, self.now + delay)
        self.pending[timer] = (max(-(-(self.now + delay) // TICK), self.wheel.present[0]), order)

    def remove(self, number):
        timer = self.timers[number]
        assert timer.is_linked() == (timer in self.pending)
        if self.pending.pop(timer, None):
            self.wheel.remove(timer)

    def come_due(self, moment, timer):
        tick, _ = self.pending.pop(timer)
        assert tick * TICK <= moment, "the timer is early"
        assert all(tick <= other for other, _ in self.pending.values()), "another is due before it"

    def let_pass(self, duration):
        """Call the wheel whenever it asks for it."""
        end = self.now + duration
        expected = sorted((key, id(timer)) for timer, key in self.pending.items() if key[0] * TICK <= end)
        fired = run_to(self.wheel, end, self.budget, self.now)
        assert sorted(id(timer) for _, timer in fired) == sorted(found for _, found in expected)
        for moment, timer in fired:
            tick, _ = self.pending[timer]
            assert moment == max(self.now, tick * TICK), "the timer is late"
            self.come_due(moment, timer)
        self.now = end

    def jump(self, duration, calls):
        """Call the wheel late, and so few times that it may not be finished."""
        self.now += duration
        for _ in range(calls):
            self.wheel.advance(self.now, self.budget)
            self.wheel.check()
            if not self.wheel.due.is_empty():
                timer = self.wheel.due.after
                timer.unlink()
                self.come_due(self.now, timer)


@given(steps=steps, start=st.integers(0, YEAR), budget=st.integers(1, 5))
def test_the_wheel_is_a_list_sorted_by_tick(steps, start, budget):
    compared = Compared(start, budget)
    for order, (what, *arguments) in enumerate(steps):
        if what == "set":
            compared.set(*arguments, order)
        elif what == "remove":
            compared.remove(*arguments)
        elif what == "pass":
            compared.let_pass(*arguments)
        else:
            compared.jump(*arguments)
        assert compared.wheel.check() == len(compared.pending)


@given(steps=steps)
def test_timers_of_one_tick_keep_the_order_of_setting_while_the_budget_lasts(steps):
    compared = Compared(0, 1000)
    for order, (what, *arguments) in enumerate(steps):
        if what == "set":
            compared.set(*arguments, order)
        elif what == "remove":
            compared.remove(*arguments)
        else:
            compared.now += arguments[0]
            pending = compared.pending
            expected = sorted((key, id(timer)) for timer, key in pending.items() if key[0] * TICK <= compared.now)
            assert [id(timer) for timer in advance(compared.wheel, compared.now)] == [found for _, found in expected]
            for timer in [timer for timer in pending if not timer.is_linked()]:
                del pending[timer]
