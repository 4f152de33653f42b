"""Threads in which plain functions run, fed by the event loop and heard by it with as few wake-ups as there can be.

What costs is neither the queue nor the call but to wake a thread: a system call, and a fight for Python's lock. So
while functions are quick, one thread does all that wait, and wakes the event loop when none is left. Meanwhile the
event loop has a timer: if calls still wait when it ends, a function may have blocked. From then on a thread wakes the
next one before each call, and the event loop after it, until a function was quick and none blocks.

A thread cannot be ended from outside. One whose caller waits no longer is *overdue*: it goes on to its end, and another
one takes its place, of which there are at most as many again. All are daemons, so that none keeps the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

QUICK = 0.0002
"""Seconds that a quick function takes at the most."""

CHECK_DELAY = 0.001
"""Seconds until the event loop wakes another thread, if calls still wait for the one whose functions are quick."""


class Threads:
    """A limited number of threads, which are started as they are needed. For one event loop.

    Args:
        number: of threads.
    """

    def __init__(self, number: int) -> None:
        if number < 1:
            raise ValueError(f"{number} threads; there must be 1 or more")
        self._loop = asyncio.get_running_loop()
        self._number = number
        self._starting = threading.Lock()
        self._started = 0
        self._overdue = 0
        self._calls: deque[Any] = deque()
        self._results: deque[Any] = deque()
        self._idle: list[threading.Lock] = []  # of threads that wait: one is woken by releasing its lock
        self._busy: list[threading.Lock] = []  # of threads that are in a function
        self._waking = False  # a thread is on its way: it will see to what is in the queue
        self._told = False  # the event loop is on its way
        self._is_quick = False  # the last function was, and none blocks
        self._timer: asyncio.TimerHandle | None = None  # until `_check`
        self._closed = False

    @property
    def overdue(self) -> int:
        """How many threads run what nobody waits for any more."""
        return self._overdue

    async def run(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function in a thread, with the caller's context variables; return what it returns.

        If the caller is cancelled, the function goes on, and what becomes of it is not known.
        """
        future = self._loop.create_future()
        call = [future, copy_context(), function, args, kwargs, False]  # last: it is overdue, or has come back
        self._calls.append(call)
        if self._is_quick:
            if len(self._idle) == self._started:  # none is at work, or on its way
                self._wake()
            elif self._timer is None:
                self._timer = self._loop.call_later(CHECK_DELAY, self._check)
        elif not self._waking:
            self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():  # otherwise the function itself has raised it
                try:
                    self._calls.remove(call)  # it has not begun
                except ValueError:
                    if not call[5]:
                        call[5] = True
                        self._overdue += 1
            raise

    def close(self) -> None:
        """Let the threads end that have nothing to do; the others end when they have."""
        self._closed = True
        while self._idle:
            with contextlib.suppress(IndexError):
                self._idle.pop().release()

    def _wake(self) -> None:
        """Let one more thread look at the queue, if there is one."""
        self._waking = True
        try:
            lock = self._idle.pop()
        except IndexError:
            if not self._start():
                self._waking = False  # all are at work, and look at the queue when they are done
        else:
            lock.release()

    def _start(self) -> bool:
        """Start another thread, if there may be one; return whether there may."""
        with self._starting:
            if self._started >= self._number + min(self._overdue, self._number):
                return False
            self._started += 1
        threading.Thread(target=self._work, name=f"task-{self._started}", daemon=True).start()
        return True

    def _work(self) -> None:
        """What a thread does."""
        calls, results = self._calls, self._results
        lock = threading.Lock()
        lock.acquire()
        while not self._closed:
            self._waking = False
            try:
                call = calls.popleft()
            except IndexError:
                self._idle.append(lock)
                if calls:  # which came before we were to be found
                    self._wake()
                if results and not self._tell():
                    return
                lock.acquire()
                continue
            if calls and not self._will_be_checked():
                self._wake()
            future, context, function, args, kwargs, _ = call
            self._busy.append(lock)
            began = time.perf_counter()
            try:
                result, error = context.run(function, *args, **kwargs), None
            except BaseException as raised:
                result, error = None, raised
            self._busy.remove(lock)
            self._is_quick = time.perf_counter() - began < QUICK and not self._busy
            results.append((call, result, error))
            del call, future, context, function, args, kwargs, result, error
            if not (calls and self._will_be_checked()) and not self._tell():
                return

    def _tell(self) -> bool:
        """Let the event loop collect what has come back; False if it is closed."""
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                return False
        return True

    def _will_be_checked(self) -> bool:
        """Whether `_check` will wake another thread if the next function blocks."""
        return self._is_quick and self._timer is not None

    def _check(self) -> None:
        """On the event loop: collect results, and wake another thread if calls wait."""
        self._timer = None
        self._collect()
        if self._calls:
            self._is_quick = False
            self._wake()

    def _collect(self) -> None:
        """On the event loop: hand over what has come back."""
        self._told = False
        results = self._results
        while results:
            call, result, error = results.popleft()
            future = call[0]
            if future.done():
                if call[5]:
                    self._overdue -= 1
                call[5] = True  # its caller may not have seen yet that it is cancelled
            elif error is None:
                future.set_result(result)
            elif isinstance(error, (StopIteration, KeyboardInterrupt)):  # no future takes one; one would end the loop
                failure = RuntimeError(f"the function raised {type(error).__name__}")
                failure.__cause__ = error
                future.set_exception(failure)
            else:
                future.set_exception(error)
