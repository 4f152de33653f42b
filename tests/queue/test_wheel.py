"""The timing wheel: compared with a sorted list, at its edges, and in slices."""

from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.wheel import END_OF_TIME, Timer, Wheel

TICK = 10
FOREVER = 2**32 * 10**9


def new_timer():
    timer = Timer()
    timer.before = timer.after = UNLINKED
    return timer


def take_due(wheel):
    taken = []
    while not wheel.due.is_empty():
        taken.append(wheel.due.after)
        wheel.due.after.unlink()
    return taken


def run_to(wheel, end, budget=1000):
    """Drive the wheel as a server does; return (moment, timer) for each timer that came due by the end."""
    fired = []
    now = wheel.now * wheel.tick
    while wheel.next_event <= end:
        now = max(now, wheel.next_event)
        wheel.advance(now, budget)
        wheel.check()
        fired += [(now, timer) for timer in take_due(wheel)]
    wheel.advance(end, budget)
    return fired


def test_an_empty_wheel_wakes_nobody():
    wheel = Wheel(0, TICK)
    assert wheel.next_event == END_OF_TIME
    wheel.advance(10**18, 100)
    assert wheel.next_event == END_OF_TIME


def test_a_timer_fires_at_the_first_tick_that_is_not_before_its_deadline():
    for deadline, moment in [(1, 10), (9, 10), (10, 10), (11, 20), (12345, 12350)]:
        wheel = Wheel(0, TICK)
        timer = new_timer()
        wheel.set(timer, deadline)
        assert run_to(wheel, moment - 1) == []
        assert run_to(wheel, moment) == [(moment, timer)]


def test_a_deadline_that_has_passed_is_due_at_the_next_advance():
    wheel = Wheel(1000, TICK)
    timer = new_timer()
    wheel.set(timer, 0)
    assert wheel.next_event <= 1000
    wheel.advance(1000, 1)
    assert take_due(wheel) == [timer]


def test_a_timer_a_day_away_wakes_the_driver_only_to_cascade():
    wheel = Wheel(0, 10_000_000)
    timer = new_timer()
    wheel.set(timer, 86_400 * 10**9)
    wakes = 0
    while wheel.due.is_empty():
        wheel.advance(wheel.next_event, 100)
        wakes += 1
    assert wakes <= 5


def test_deadlines_reach_beyond_2_to_the_32_seconds_at_the_shortest_tick():
    wheel = Wheel(0, 1000)
    timer = new_timer()
    wheel.set(timer, FOREVER)
    wheel.check()
    assert run_to(wheel, FOREVER - 1) == []
    assert [found for _, found in run_to(wheel, FOREVER)] == [timer]


def test_removing_the_last_timer_of_a_slot_empties_the_wheel():
    wheel = Wheel(0, TICK)
    timers = [new_timer() for _ in range(3)]
    for timer in timers:
        wheel.set(timer, 5000)
    for timer in timers:
        wheel.remove(timer)
        wheel.check()
    wheel.advance(0, 1)
    assert wheel.next_event == END_OF_TIME


def test_a_timer_that_is_due_can_still_be_removed():
    wheel = Wheel(0, TICK)
    timers = [new_timer() for _ in range(3)]
    for timer in timers:
        wheel.set(timer, 50)
    wheel.advance(50, 1)
    wheel.remove(timers[1])
    wheel.check()
    assert take_due(wheel) == [timers[0], timers[2]]


def test_timers_of_one_tick_come_due_in_the_order_in_which_they_were_set():
    wheel = Wheel(0, TICK)
    far = [new_timer() for _ in range(5)]
    for timer in far:
        wheel.set(timer, 1_000_000)
    run_to(wheel, 999_900)
    near = [new_timer() for _ in range(5)]
    for timer in near:
        wheel.set(timer, 1_000_000)
    assert [timer for _, timer in run_to(wheel, 1_000_000)] == far + near


def test_a_slot_of_many_timers_cascades_in_slices_and_loses_none():
    wheel = Wheel(0, TICK)
    timers = [new_timer() for _ in range(1000)]
    for index, timer in enumerate(timers):
        wheel.set(timer, 64 * 64 * TICK + index)
    now = 64 * 64 * TICK
    slices = 0
    late = new_timer()
    while wheel.next_event <= now:
        assert wheel.advance(now, 64) >= 0
        wheel.check()
        slices += 1
        if slices == 3:
            wheel.remove(timers[-1])  # still in the slot that cascades
            wheel.set(late, now + 1)  # and one set meanwhile
            wheel.check()
    assert slices >= 15
    fired = take_due(wheel) + [timer for _, timer in run_to(wheel, now + 1000)]
    assert len(fired) == 1000
    assert set(fired) == set(timers[:-1]) | {late}


deadlines = st.one_of(
    st.integers(0, 300), st.integers(0, 60_000), st.integers(0, 10**7), st.integers(0, 10**12), st.integers(0, 10**16)
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 15), deadlines),
        st.tuples(st.just("remove"), st.integers(0, 15)),
        st.tuples(st.just("pass"), deadlines),
    ),
    max_size=60,
)


@given(steps=steps, budget=st.integers(1, 5))
def test_the_wheel_is_a_list_sorted_by_tick(steps, budget):
    """Compared with the obvious: a list of (tick, order of setting), sorted whenever time passes."""
    wheel = Wheel(0, TICK)
    timers = [new_timer() for _ in range(16)]
    pending = {}
    now = 0
    for order, step in enumerate(steps):
        if step[0] == "set":
            timer, deadline = timers[step[1]], now + step[2]
            wheel.set(timer, deadline)
            pending[timer] = (max(-(-deadline // TICK), wheel.now), order)
        elif step[0] == "remove":
            timer = timers[step[1]]
            assert timer.is_linked() == (timer in pending)
            if pending.pop(timer, None):
                wheel.remove(timer)
        else:
            end = now + step[1]
            expected = sorted((key, id(timer)) for timer, key in pending.items() if key[0] * TICK <= end)
            fired = run_to(wheel, end, budget)
            assert sorted(id(timer) for _, timer in fired) == sorted(found for _, found in expected)
            for moment, timer in fired:
                tick, _ = pending.pop(timer)
                assert moment == max(now, tick * TICK), "the timer is early or late"
            now = end
        assert wheel.check() == len(pending)
