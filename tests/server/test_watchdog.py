"""systemd's watchdog is told that the event loop turns, and only while it does."""

import asyncio
import os
import selectors
import socket

import pytest

from beanstalk_server.cli.watchdog import SHARE, watchdog_of
from beanstalk_server.server.start_error import StartError
from harness.servers import run_to_end

MINUTE = {"WATCHDOG_USEC": "60000000"}


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on by as much as it would have waited for input."""

    def __init__(self):
        super().__init__(Selector(self))
        self.now = 0.0

    def time(self):
        return self.now


class Selector(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        self.loop.now += timeout or 0
        return super().select(0)


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.close()


def told(loop, seconds):
    """When the watchdog, which must be told within a minute, is told anything in this many seconds, and what."""
    said = []
    watchdog = watchdog_of(MINUTE, lambda state: said.append((loop.now, state)))
    watchdog.start(loop)
    loop.call_at(seconds, loop.stop)
    loop.run_forever()
    watchdog.stop()
    return said


def test_it_is_told_three_times_within_the_time_that_it_waits(loop):
    assert SHARE == 3
    assert told(loop, 70) == [(moment, "WATCHDOG=1") for moment in (0, 20, 40, 60)]


def test_while_the_event_loop_is_held_it_is_told_nothing(loop):
    def hold():
        loop.now += 100

    loop.call_at(30, hold)
    moments = [moment for moment, _ in told(loop, 165)]
    assert moments == [0, 20, 130, 150]  # systemd would have ended the process at 80


def test_it_is_told_nothing_when_the_server_stops(loop):
    said = []
    watchdog = watchdog_of(MINUTE, said.append)
    watchdog.start(loop)
    watchdog.stop()
    loop.call_at(100, loop.stop)
    loop.run_forever()
    assert said == ["WATCHDOG=1"]


def test_without_a_watchdog_or_with_that_of_another_process_nothing_is_told():
    assert watchdog_of({}, print) is None
    assert watchdog_of({"WATCHDOG_USEC": ""}, print) is None
    assert watchdog_of(MINUTE | {"WATCHDOG_PID": str(os.getppid())}, print) is None
    assert watchdog_of(MINUTE | {"WATCHDOG_PID": str(os.getpid())}, print) is not None


@pytest.mark.parametrize("given", ["x", "0", "-1", "1.5", "\u0661"])
def test_a_time_that_is_none_is_refused(given):
    with pytest.raises(StartError, match=r"WATCHDOG_USEC: '.*' is not a number of microseconds"):
        watchdog_of({"WATCHDOG_USEC": given}, print)


def test_a_server_tells_it_from_the_start_to_the_stop(launch, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.settimeout(60)
        supervisor.bind(f"{tmp_path}/notify")
        process = launch("-p", "0", environment={"NOTIFY_SOCKET": f"{tmp_path}/notify", "WATCHDOG_USEC": "100000"})
        said = [supervisor.recv(100) for _ in range(4)]
        assert said == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1", b"WATCHDOG=1"]
        process.stop()
        while said[-1] == b"WATCHDOG=1":
            said.append(supervisor.recv(100))
        assert said[-1] == b"STOPPING=1"


def test_a_bad_time_is_told_at_the_start():
    done = run_to_end("-p", "0", environment={"WATCHDOG_USEC": "x"})
    assert done == (111, "", "beanstalk-server: WATCHDOG_USEC: 'x' is not a number of microseconds\n")
