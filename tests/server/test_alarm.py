"""When an alarm goes off: by the event loop's timers, and by the kernel's."""

import asyncio
import ctypes
import os
import select
import sys
from time import monotonic_ns

import pytest
import uvloop
from read_files import ReadFiles

from beanstalk_server import Config, Server
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.server.alarm import KernelAlarm, LoopAlarm, finest_alarm
from harness.waiting import eventually_async

WITHIN = 60.0  # seconds until an alarm of a few milliseconds must have gone off
HOUR = 3600 * SECOND

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such timers")


class Wakings:
    """Counts how often it is called, and can wait for the next time in a real event loop."""

    def __init__(self, loop):
        self.loop = loop
        self.count = 0
        self.at = 0  # when it was called last
        self._seen = 0  # how often it had been called when the last wait was over
        self._next = loop.create_future()

    def __call__(self):
        self.count += 1
        self.at = monotonic_ns()
        self._next.set_result(None)
        self._next = self.loop.create_future()

    def wait(self):
        """Wait for a call after those that have been waited for."""

        async def until_called():
            if self.count == self._seen:
                await asyncio.wait_for(self._next, WITHIN)

        self.loop.run_until_complete(until_called())
        self._seen += 1

    def settle(self):
        """Let the loop report whatever it has to report by now."""
        for _ in range(5):
            self.loop.run_until_complete(asyncio.sleep(0.001))


@pytest.fixture(params=[uvloop.new_event_loop, pytest.param(asyncio.new_event_loop, marks=pytest.mark.slow)])
def loop(request):
    loop = request.param()
    yield loop
    loop.close()


@pytest.fixture
def wakings(loop):
    return Wakings(loop)


@pytest.fixture(params=[pytest.param("kernel", marks=linux), "loop"])
def alarm(request, loop, wakings):
    made = KernelAlarm(loop, wakings) if request.param == "kernel" else LoopAlarm(loop, monotonic_ns, wakings)
    yield made
    made.close()


def test_it_goes_off_once_when_its_moment_has_come(alarm, wakings):
    alarm.set(monotonic_ns() + 5 * MILLISECOND)
    wakings.wait()
    wakings.settle()
    assert wakings.count == 1


def test_a_moment_that_has_passed_is_now(alarm, wakings):
    for moment in (0, 1, monotonic_ns() - 1, monotonic_ns()):
        alarm.set(moment)
        wakings.wait()
    wakings.settle()
    assert wakings.count == 4


def test_an_earlier_moment_takes_the_place_of_a_later_one(alarm, wakings):
    alarm.set(monotonic_ns() + HOUR)
    alarm.set(monotonic_ns() + MILLISECOND)
    wakings.wait()
    wakings.settle()
    assert wakings.count == 1


def test_a_later_moment_takes_the_place_of_an_earlier_one(alarm, wakings):
    alarm.set(monotonic_ns() + 2 * MILLISECOND)
    alarm.set(monotonic_ns() + HOUR)
    wakings.settle()
    assert wakings.count == 0


def test_it_can_be_set_again_and_again_also_while_it_goes_off(alarm, loop, wakings):
    goals = [monotonic_ns() + step * MILLISECOND for step in (1, 2, 3)]

    def go_off():
        wakings()
        if goals:
            alarm.set(goals.pop(0))

    alarm._on_due = go_off
    alarm.set(monotonic_ns())
    for _ in range(4):
        wakings.wait()
    wakings.settle()
    assert wakings.count == 4


@pytest.mark.parametrize("give_up", ["cancel", "close"])
def test_one_that_is_given_up_does_not_go_off(alarm, wakings, give_up):
    alarm.set(monotonic_ns() + MILLISECOND)
    getattr(alarm, give_up)()
    getattr(alarm, give_up)()
    wakings.settle()
    assert wakings.count == 0


def test_it_may_be_closed_while_it_goes_off(alarm, loop, wakings):
    def go_off():
        alarm.close()
        wakings()

    alarm._on_due = go_off
    alarm.set(monotonic_ns())
    wakings.wait()
    wakings.settle()
    assert wakings.count == 1


# The kernel's alone


@linux
def test_the_kernels_is_never_early_and_counts_finer_than_milliseconds(loop, wakings):
    alarm = KernelAlarm(loop, wakings)
    sooner_than_a_millisecond = 0
    for _ in range(200):
        moment = monotonic_ns() + MILLISECOND // 4
        alarm.set(moment)
        wakings.wait()
        assert wakings.at >= moment
        sooner_than_a_millisecond += wakings.at < moment + MILLISECOND // 2
    alarm.close()
    assert sooner_than_a_millisecond, "of all these, not one was on time"


class Files(ReadFiles):
    """The test asks whether they can be read."""

    def report(self, within=0.0):
        """Report what can be read, once; return whether there was anything."""
        poll = select.poll()
        for descriptor in self.readers:
            poll.register(descriptor, select.POLLIN)
        found = poll.poll(within * 1000)
        for descriptor, _ in found:
            self.readers[descriptor]()
        return bool(found)


@linux
def test_one_that_has_gone_off_wakes_nobody_any_more():
    files = Files()
    alarm = KernelAlarm(files, lambda: None)
    alarm.set(1)
    assert files.report(WITHIN)
    assert not files.report()
    alarm.close()
    assert not files.readers


@linux
def test_one_that_is_set_before_the_loop_reports_it_does_no_harm():
    files, called = Files(), []
    alarm = KernelAlarm(files, lambda: called.append(True))
    alarm.set(1)
    (report,) = files.readers.values()
    alarm.set(monotonic_ns() + HOUR)  # the loop knows already that the file can be read
    report()
    assert called == [True]
    assert not files.report()
    alarm.close()


@linux
def test_the_moment_that_it_is_set_for_already_costs_no_system_call():
    alarm = KernelAlarm(Files(), lambda: None)
    calls = []
    real = alarm._settime
    alarm._settime = lambda *arguments: calls.append(arguments) or real(*arguments)
    moment = monotonic_ns() + HOUR
    for _ in range(3):
        alarm.set(moment)
    assert len(calls) == 1
    alarm.cancel()
    alarm.cancel()
    assert len(calls) == 2
    alarm.close()


# Which one is taken


@linux
def test_a_server_takes_the_kernels_soon_after_its_start(loop):
    async def serve():
        async with Server(Config(listen="127.0.0.1", port=0)) as server:
            await eventually_async(lambda: isinstance(server.service.timers._alarm, KernelAlarm), "it has the kernel's")

    loop.run_until_complete(serve())


class NoTimers:
    """A C library as it is elsewhere."""


class NoFiles:
    """A C library whose kernel has no file descriptor left."""

    timerfd_settime = None

    def timerfd_create(self, clock, flags):
        return -1


@pytest.mark.parametrize("library", [NoTimers, NoFiles])
def test_the_loops_is_taken_where_the_kernel_has_none(monkeypatch, loop, wakings, library):
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_, **__: library())
    before = set(os.listdir("/proc/self/fd")) if sys.platform == "linux" else None
    alarm = finest_alarm(loop, monotonic_ns, wakings)
    assert isinstance(alarm, LoopAlarm)
    assert before is None or set(os.listdir("/proc/self/fd")) == before
    alarm.set(monotonic_ns() + MILLISECOND)
    wakings.wait()


def test_the_loops_is_taken_by_a_python_that_cannot_call_c(monkeypatch, loop, wakings):
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert isinstance(finest_alarm(loop, monotonic_ns, wakings), LoopAlarm)


@linux
def test_a_loop_that_reads_no_files_gets_its_own(wakings):
    class NoReaders(Files):
        def add_reader(self, descriptor, callback):
            raise NotImplementedError

    before = set(os.listdir("/proc/self/fd"))
    assert isinstance(finest_alarm(NoReaders(), monotonic_ns, wakings), LoopAlarm)
    assert set(os.listdir("/proc/self/fd")) == before
