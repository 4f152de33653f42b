"""Wakes the server at a moment: when the broker has something due.

There are two ways. The event loop's own timers count whole milliseconds. A timer of the kernel (`timerfd`, Linux)
counts nanoseconds, and the loop sees it as a file that can be read; to set it costs as much as the loop's: a
microsecond.

An alarm may go off early, or once more than it was set; the callback looks at what is due. One that is not set does not
wake the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.units import MILLISECOND, SECOND

UNSET: Final = -1
"""In place of a deadline: the alarm is not set."""

ABSOLUTE: Final = 1  # TFD_TIMER_ABSTIME
CLOCK_MONOTONIC: Final = 1
COUNT_SIZE: Final = 8  # bytes: how often the timer has gone off is what can be read from it

Clock = Callable[[], int]
Loop = asyncio.AbstractEventLoop
AlarmMaker = Callable[[Loop, Clock, Callable[[], None]], "Alarm"]
"""Makes an alarm of an event loop, a clock and what to call."""


class Alarm(ABC):
    """Calls `on_due` when the moment has come that was set last. Moments are in nanoseconds."""

    @abstractmethod
    def set(self, deadline: int) -> None:
        """Go off at this moment, and not at the one before. One that has passed is as soon as the loop can."""

    @abstractmethod
    def cancel(self) -> None:
        """Do not go off, unless it is set again."""

    def close(self) -> None:
        """Do not go off any more, and give back what the alarm has taken from the system."""
        self.cancel()


class LoopAlarm(Alarm):
    """An alarm that is a timer of the event loop. It works everywhere, and is late by up to a millisecond."""

    def __init__(self, loop: Loop, clock: Clock, on_due: Callable[[], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._on_due = on_due
        self._handle: asyncio.Handle | None = None

    def set(self, deadline: int) -> None:
        self.cancel()
        left = deadline - self._clock()
        if left <= 0:
            self._handle = self._loop.call_soon(self._on_due)
        else:
            # Rounded up to the milliseconds that the event loop counts in, so as not to wake twice.
            self._handle = self._loop.call_later(-(-left // MILLISECOND) / 1000, self._on_due)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class KernelAlarm(Alarm):
    """An alarm that is a timer of the kernel; `time.monotonic_ns` is its clock.

    Raises:
        ImportError, AttributeError, OSError: this system has no such timers, or they cannot be reached.
        NotImplementedError: the event loop cannot wait for files.
    """

    def __init__(self, loop: Loop, on_due: Callable[[], None]) -> None:
        import ctypes  # takes two milliseconds: imported when there is time for it

        library = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock: a call takes a microsecond
        self._settime = library.timerfd_settime
        self._descriptor: int = library.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._time = (ctypes.c_long * 4)()  # struct itimerspec: the interval, which stays 0, and the moment
        self._pointer = ctypes.byref(self._time)
        self._deadline = UNSET
        self._loop = loop
        self._on_due = on_due
        try:
            loop.add_reader(self._descriptor, self._go_off)
        except BaseException:
            os.close(self._descriptor)
            raise

    def set(self, deadline: int) -> None:
        if deadline != self._deadline:
            self._deadline = deadline
            self._arm(max(deadline, 1))

    def cancel(self) -> None:
        if self._deadline != UNSET:
            self._deadline = UNSET
            self._arm(0)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._deadline = UNSET

    def _arm(self, moment: int) -> None:
        """Go off at this moment, 0 for never. What has gone off before is forgotten with that."""
        time = self._time
        time[2], time[3] = divmod(moment, SECOND)
        self._settime(self._descriptor, ABSOLUTE, self._pointer, None)

    def _go_off(self) -> None:
        self._deadline = UNSET
        self._on_due()
        if self._deadline == UNSET and self._descriptor >= 0:
            # It has not been set anew, so the loop would go on to find it readable.
            with contextlib.suppress(BlockingIOError):
                os.read(self._descriptor, COUNT_SIZE)


def finest_alarm(loop: Loop, clock: Clock, on_due: Callable[[], None]) -> Alarm:
    """The most precise alarm that this system has. The clock must be `time.monotonic_ns`."""
    try:
        return KernelAlarm(loop, on_due)
    except (ImportError, AttributeError, OSError, NotImplementedError):
        return LoopAlarm(loop, clock, on_due)
