"""Stalls of the event loop, by clocks that a test moves."""

import logging

import pytest

from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.server.stalls import Stalls


class Loop:
    """An event loop with one timer, and the clocks of its thread."""

    def __init__(self):
        self.now = 0
        self.cpu = 0
        self.cancelled = False

    def call_later(self, delay, callback):
        self.due = self.now + round(delay * 1e9)
        self.callback = callback
        return self

    def cancel(self):
        self.cancelled = True

    def fire(self, late=0.0, cpu=0.0):
        """Call the timer this many milliseconds late, of which that many were the thread's own work."""
        self.now = self.due + round(late * MILLISECOND)
        self.cpu += round(cpu * MILLISECOND)
        self.callback()


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def stalls(loop, caplog):
    caplog.set_level(logging.INFO)
    stalls = Stalls(lambda: loop.now, lambda: loop.cpu)
    stalls.start(loop)
    return stalls


def test_each_new_longest_stall_is_logged_with_its_cpu_time(loop, stalls, caplog):
    for late, cpu in ((12.34, 11.9), (5, 5), (20, 0.5), (13, 12.5)):
        loop.fire(late, cpu)
    assert caplog.messages == [
        "event loop stalled for 12.3 ms (11.9 ms of CPU)",
        "event loop stalled for 20.0 ms (0.5 ms of CPU)",
        "event loop stalled for 13.0 ms (12.5 ms of CPU)",  # not the longest, but the most work
    ]
    assert (stalls.longest, stalls.most_cpu) == (20 * MILLISECOND, 12.5 * MILLISECOND)


def test_a_stall_of_up_to_a_millisecond_is_not_logged(loop, stalls, caplog):
    loop.fire(1, 1)
    loop.fire(0.5)
    assert caplog.messages == []


def test_work_between_two_looks_that_delays_neither_is_no_stall(loop, stalls):
    loop.fire(0, 0.9)
    loop.fire(0.2, 1.1)
    assert (stalls.longest, stalls.most_cpu) == (0.2 * MILLISECOND, 0.2 * MILLISECOND)


def test_a_timer_that_comes_too_soon_is_not_late(loop, stalls):
    loop.fire(-0.4)
    assert stalls.longest == 0


def test_the_summary(loop, stalls, caplog):
    for late in [0.01] * 980 + [2.04] * 15 + [7.5] * 4 + [30]:
        loop.fire(late, late / 2)
    caplog.clear()
    stalls.stop()
    assert loop.cancelled
    assert caplog.messages == [
        "event loop stalled for at most 30.0 ms, with at most 15.0 ms of CPU; of 1000 looks at the clock, "
        "99 % were at most 2.1 ms late, 99.9 % at most 7.5 ms"
    ]


def test_the_summary_of_nothing(stalls):
    assert stalls.summary() == (
        "event loop stalled for at most 0.0 ms, with at most 0.0 ms of CPU; of 0 looks at the clock, "
        "99 % were at most 0.0 ms late, 99.9 % at most 0.0 ms"
    )
