"""Handles the signals of this package's programs, and ends a program by force at its deadline.

the program starts    SIGTERM or SIGINT ends the process: the kernel ignores them for process 1 without a handler
the loop runs         the loop's own handlers act; handlers of Python count, because a task may block the loop
the program ends      signals are ignored: its exit status is decided
a child is forked     it has neither the handlers nor the wake-up descriptor: its signals do not reach its parent

The deadline is kept by a thread. It ends a process whose event loop, lifespan, threads or exit handlers do not end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from beanstalk_client.events import tell

FORCED: Final = 1
"""The exit status of a program that was ended by force."""

LOG_WITHIN: Final = 0.5
"""Seconds for the last line of the log: the thread that hangs may hold a lock of it."""

log: logging.Logger = logging.getLogger("beanstalk_client")

_handled: set[int] = set()  # signals with a handler of ours
_is_program = False
_masks = threading.local()  # the signals that a thread blocked before it forked
_ends: queue.SimpleQueue[float | None] | None = None  # new deadlines, on the monotonic clock; None lifts them


def handle(number: int, handler: Callable[[int, FrameType | None], Any]) -> None:
    """Handle a signal in this process, but not in its forked children.

    Raises:
        ValueError: this is not the main thread, or the system does not have the signal.
    """
    signal.signal(number, handler)
    _handled.add(number)


def unhandle(number: int, former: Any) -> None:
    """Handle a signal as before, or ignore it in a program, which ends now: Python itself keeps no handler to its end.

    Args:
        former: what `signal.getsignal` has returned.
    """
    signal.signal(number, signal.SIG_IGN if _is_program else signal.SIG_DFL if former is None else former)


@contextlib.contextmanager
def exiting(within: float) -> Iterator[None]:
    """Let SIGTERM and SIGINT end this process with status 0 until the block handles them. After the block, ignore them,
    and bound the exit.
    """
    global _is_program
    _is_program = True
    handle(signal.SIGTERM, _leave)
    handle(signal.SIGINT, _leave)
    try:
        yield
    finally:
        for number in _handled:
            unhandle(number, None)
        ends: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        ends.put(time.monotonic() + within)
        threading.Thread(target=_keep, args=[ends], name="deadline", daemon=True).start()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # an import could catch SystemExit


@contextlib.contextmanager
def deadlines_kept() -> Iterator[None]:
    """Enforce `end_within` until the block ends."""
    global _ends
    if _ends is not None:  # in a larger block
        yield
        return
    mine: queue.SimpleQueue[float | None] = queue.SimpleQueue()
    _ends = mine
    threading.Thread(target=_keep, args=[mine], name="deadline", daemon=True).start()
    try:
        yield
    finally:
        mine.put(None)
        _ends = None


def end_within(seconds: float) -> None:
    """End this process by force after this many seconds, unless an earlier deadline is set. A signal handler may call
    it. It has no effect outside of `deadlines_kept`.
    """
    if _ends is not None:
        _ends.put(time.monotonic() + seconds)


def _keep(ends: queue.SimpleQueue[float | None]) -> None:
    """End the process at the earliest deadline."""
    end = float("inf")
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            told = ends.get(timeout=min(left, threading.TIMEOUT_MAX))
            if told is None:
                return
            end = min(end, told)
    last = threading.Thread(target=_tell_forced, daemon=True)
    last.start()
    last.join(LOG_WITHIN)
    os._exit(FORCED)


def _tell_forced() -> None:
    message = f"process {os.getpid()} did not exit in time: forced to exit with status {FORCED}"
    tell(log, logging.ERROR, "forced-exit", message, status=FORCED)


def _before_fork() -> None:
    """Block the signals until the child has dropped the handlers: one of its own would reach its parent."""
    if _handled:
        _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _unblock() -> None:
    before = _masks.__dict__.pop("before", None)
    if before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _forget() -> None:
    """In a child: drop the handlers and the wake-up descriptor."""
    global _ends, _is_program
    _ends = None
    _is_program = False
    if _handled:
        signal.set_wakeup_fd(-1)
        for number in _handled:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        _handled.clear()
    _unblock()


if sys.platform != "win32":
    os.register_at_fork(before=_before_fork, after_in_parent=_unblock, after_in_child=_forget)
