"""Runs plain functions in threads, for one event loop.

`concurrent.futures.ThreadPoolExecutor` costs twice the CPU time for each call, and the process waits for its threads at
the end: one that hangs keeps it. These threads are daemons.

A thread cannot be ended from outside. One whose caller has stopped waiting is *overdue* until its function ends.
Threads that have all been overdue for `PATIENCE` seconds are said to hang. Calls that wait for them get new ones, so
that the program can end in good order. All counts belong to the event loop, so they need no lock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from beanstalk_client.tasks.failure import RunTimeoutError, for_waiter

PATIENCE = 5.0
"""Seconds after which threads that are all overdue are said to hang."""


@dataclasses.dataclass(eq=False, repr=False)
class _Call:
    """A call of a function. The thread that begins it takes the ticket, or the event loop that drops it before."""

    future: asyncio.Future[Any]
    function: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    context: Context = dataclasses.field(default_factory=copy_context)
    ticket: list[bool] = dataclasses.field(default_factory=lambda: [True])  # its `pop` is atomic
    began: float = 0.0  # by time.monotonic
    is_back: bool = False
    is_overdue: bool = False
    timer: asyncio.TimerHandle | None = None


class Threads:
    """A limited number of threads, which are started as they are needed. To be made on the event loop.

    Args:
        number: of threads.
        on_room: called when a thread is free after none was.
        on_hang: called once, when all threads hang: the program should make no calls but those that it must.
    """

    def __init__(
        self, number: int, *, on_room: Callable[[], None] | None = None, on_hang: Callable[[], None] | None = None
    ) -> None:
        if number < 1:
            raise ValueError(f"threads is {number}: must be 1 or more")
        self._loop = asyncio.get_running_loop()
        self._number: int = number
        self.on_room = on_room
        self._on_hang = on_hang
        self._started = 0
        self._active = 0  # calls that have a thread or wait for one
        self._overdue = 0
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._results: deque[tuple[_Call, Any, BaseException | None]] = deque()
        self._will_collect = False
        self._hang: asyncio.TimerHandle | None = None  # until `_replace`
        self._hangs = False

    @property
    def overdue(self) -> int:
        """Number of threads whose function runs on while no caller waits for it."""
        return self._overdue

    def room(self) -> int:
        """Number of calls that would begin at once; below 0 if calls wait for a thread."""
        return self._number - self._active

    async def run(
        self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any], timeout: float | None = None
    ) -> Any:
        """Call a function in a thread, with the caller's context variables; return what it returns.

        If the caller is cancelled, a function that has begun goes on, and its result is lost.

        Args:
            timeout: seconds, from the moment at which a thread begins the call.

        Raises:
            RunTimeoutError: the function took longer; it goes on.
        """
        self._start(self._active + 1)
        call = _Call(self._loop.create_future(), function, args, kwargs)
        self._active += 1
        self._calls.put(call)
        if timeout is not None:
            call.timer = self._loop.call_later(timeout, self._check, call, timeout)
        try:
            return await call.future
        except asyncio.CancelledError:
            if call.future.cancelled():  # otherwise the function itself has raised it
                self._drop(call)
            raise
        finally:
            if call.timer is not None:
                call.timer.cancel()

    def close(self) -> None:
        """Let each thread end after its function."""
        if self._hang is not None:
            self._hang.cancel()
        for _ in range(self._started):
            self._calls.put(None)

    def _start(self, calls: int) -> None:
        """Start the threads that this many calls need."""
        while self._started < min(calls, self._number):
            threading.Thread(target=self._work, name=f"task-{self._started + 1}", daemon=True).start()
            self._started += 1

    def _work(self) -> None:
        """What a thread does."""
        process = os.getpid()
        while (call := self._calls.get()) is not None:
            try:
                call.ticket.pop()
            except IndexError:  # it was dropped
                continue
            call.began = time.monotonic()
            try:
                result, error = call.context.run(call.function, *call.args, **call.kwargs), None
            except BaseException as raised:
                result, error = None, raised
            if os.getpid() != process:  # the function has forked, and returned in the child as well
                os._exit(0 if error is None else 1)
            self._results.append((call, result, error))
            del call, result, error
            if not self._will_collect:
                self._will_collect = True
                try:
                    self._loop.call_soon_threadsafe(self._collect)
                except RuntimeError:  # the event loop is closed
                    return

    # On the event loop

    def _collect(self) -> None:
        """Hand over what functions have returned or raised."""
        self._will_collect = False
        had_room = self._active < self._number
        results = self._results
        while results:
            call, result, error = results.popleft()
            call.is_back = True
            self._active -= 1
            if call.is_overdue:
                self._overdue -= 1
                if self._hang is not None:
                    self._hang.cancel()
                    self._hang = None
            future = call.future
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(for_waiter(error, "function"))
        self._tell_room(had_room)

    def _check(self, call: _Call, timeout: float) -> None:
        """End the wait for a call whose time is over, or look again later: a call that waits has all its time left."""
        self._collect()
        if call.future.done():
            return
        left = call.began + timeout - time.monotonic() if call.began else timeout
        if left > 0:
            call.timer = self._loop.call_later(left, self._check, call, timeout)
            return
        call.future.set_exception(RunTimeoutError(f"timed out after {timeout:g} s"))
        self._drop(call)

    def _drop(self, call: _Call) -> None:
        """Forget a call whose caller has stopped waiting, or count its thread as overdue."""
        try:
            call.ticket.pop()
        except IndexError:
            if not call.is_back:
                call.is_overdue = True
                self._overdue += 1
                if self._overdue == self._number:
                    self._hang = self._loop.call_later(PATIENCE, self._replace)
        else:
            had_room = self._active < self._number
            self._active -= 1
            self._tell_room(had_room)

    def _tell_room(self, had_room: bool) -> None:
        if self.on_room is not None and not had_room and self._active < self._number:
            self.on_room()

    def _replace(self) -> None:
        """All threads hang: let others take their place."""
        self._hang = None
        if not self._hangs:
            self._hangs = True
            if self._on_hang is not None:
                self._on_hang()
        self._number += self._overdue
        self._start(self._active)
