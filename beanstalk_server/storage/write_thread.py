"""The thread that writes: does one piece of work after the other, off the event loop.

An executor would do, but hands each piece over through a task, two futures and several locks, which cost more than a
small write does. Here the event loop may also wait a moment for the end, as it would wait for input if it had nothing
else to do: then nothing has to wake it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVar

T = TypeVar("T")

OnEnd = Callable[[BaseException | None], None]
"""Called when a piece of work has ended: with what it has raised, or None."""


class Writer(Protocol):
    """Does the work of a binlog, off the event loop if it may take long."""

    def begin(self, work: Callable[[], object], on_end: OnEnd, wait: float = 0.0) -> None: ...

    async def run(self, work: Callable[[], T]) -> T: ...

    def close(self) -> None: ...


class _Piece:
    """A piece of work, and how it has ended."""

    __slots__ = ("error", "has_ended", "is_late", "loop", "on_end", "work")

    def __init__(self, work: Callable[[], object], on_end: OnEnd, is_late: bool) -> None:
        self.work = work
        self.on_end = on_end
        self.loop = asyncio.get_running_loop()
        self.is_late = is_late  # the event loop does not wait for it, and has to be woken
        self.has_ended = False
        self.error: BaseException | None = None


class WriteThread:
    """A thread that starts with its first piece of work and ends with `close`.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pieces: SimpleQueue[_Piece | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards `is_late` and `has_ended`
        self._ended = threading.Lock()  # released when a piece that is not late has ended
        self._ended.acquire()

    def begin(self, work: Callable[[], object], on_end: OnEnd, wait: float = 0.0) -> None:
        """Do a piece of work, and call `on_end` on the event loop with the exception that it has raised, or None.

        Args:
            wait: how long the event loop may be held, in seconds. If the work ends within that time, `on_end` is called
                within this call, and otherwise later.
        """
        if self._thread is None:
            # A daemon: a process that ends without `close` ends as in a crash, and does not wait for a disk.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        piece = _Piece(work, on_end, is_late=wait <= 0)
        self._pieces.put(piece)
        if wait > 0 and self._wait_for(piece, wait):
            on_end(piece.error)

    async def run(self, work: Callable[[], T]) -> T:
        return await await_end(self, work)

    def close(self) -> None:
        """End the thread, after all work."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()
            self._thread = None

    def _wait_for(self, piece: _Piece, wait: float) -> bool:
        """Wait for the end of a piece; False if it is late."""
        if self._ended.acquire(timeout=wait):
            return True
        with self._lock:
            if not piece.has_ended:
                piece.is_late = True
                return False
        self._ended.acquire()  # it has ended just now
        return True

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                piece.work()
            except BaseException as error:  # of any kind: the event loop has to know
                piece.error = error
            with self._lock:
                piece.has_ended = True
                is_late = piece.is_late
            if is_late:
                piece.loop.call_soon_threadsafe(piece.on_end, piece.error)
            else:
                self._ended.release()


async def await_end(writer: Writer, work: Callable[[], T]) -> T:
    """Let a writer do a piece of work; return what the work returns when it has ended, or raise what it raises."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    results: list[T] = []

    def on_end(error: BaseException | None) -> None:
        if ended.cancelled():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    writer.begin(lambda: results.append(work()), on_end)
    await ended
    return results[0]
