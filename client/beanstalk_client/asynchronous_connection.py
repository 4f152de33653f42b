"""One connection of the asyncio client: sends the commands of a loop turn in one write, and hands out the replies.

Each command has a *waiter* of its own, in the order of the commands, and a reply goes to the waiter that is first. What
is cancelled leaves its waiter where it is: so a reply never goes to another caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import socket
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, Final, TypeVar, Union, cast

from beanstalk_client.commands import Command, Reply
from beanstalk_client.connection import TLS_HINT, abandoned_in_forks, keep_alive
from beanstalk_client.core import CLOSED
from beanstalk_client.errors import ConnectionLostError, UndecodableError, no_answer, of_command
from beanstalk_client.job import Job
from beanstalk_client.protocol import Protocol

if TYPE_CHECKING:
    from beanstalk_client.session import Session

T = TypeVar("T")

Waiter = Union["asyncio.Future[Any]", Reply[Any]]
"""Gets the result of a command, or its error."""

WRITE_SIZE: Final = 1 << 16
"""Bytes of commands that are written at once, without waiting for the end of the turn."""

IDLE: Final = 1.0
"""Seconds after which a connection may have been lost unnoticed."""

CLOSE_WITHIN: Final = 1.0
"""Seconds for the goodbyes of TLS."""

CANCEL_RESERVE: Final = b"cancel-reserve\r\n"
"""Has no reply of its own: that to the reserve is CANCELLED, or a job that was faster."""


class AsyncConnection(asyncio.Protocol):
    """One connection: what is said on it, and who waits for what.

    Args:
        session: what outlives it.
        name: what errors call the server.
        timeout: the seconds that a reply may take beyond what the server was asked to wait, from the end of the one
            before.
        on_loss: is called once, when it is lost.
        on_unclaimed: is called with jobs that have no caller, and must be released.

    Attributes:
        is_lost: it is gone, or given up.
        is_shared: a child that was forked while it was made may have a copy of its socket.
        loop: the one that it was made in, and can be used in.
        is_hindered: a command must not go out at once: the server does not read, or it waits for a
            job that no caller waits for.
        is_full: the server must read before there is room for another command.
        room: is set while there is, and when the connection is lost.
        orphans: reserves that wait at the server and whose callers were cancelled.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        session: Session,
        name: str,
        timeout: float | None,
        on_loss: Callable[[AsyncConnection], None],
        on_unclaimed: Callable[[AsyncConnection, list[Job[Any]]], None],
    ) -> None:
        self._on_loss = on_loss
        self._on_unclaimed = on_unclaimed
        self._name = name
        self._forks = _forks  # of this process when it began
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._protocol = Protocol(session)
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None  # looks after the server's silence while it owes replies
        self._closed: asyncio.Future[None] = self.loop.create_future()  # done when its socket is
        self._waiters: deque[Waiter] = deque()  # one for each command without a reply, in order
        self._out: list[bytes] = []  # commands of this turn
        self._out_size = 0  # their bytes
        self._is_flushing = False  # the end of this turn writes them
        self._last: Command[Any] | None = None
        self._heard = 0.0  # since when the next reply is owed: the one before, or a command to a server that owed none
        self._begun = 0.0  # when a reply has begun to come that may take any time to begin
        self._left_over = 0  # bytes that the transport could not write, when that was looked at last
        self._was_idle = False  # nothing was asked for a while
        self.room: asyncio.Event = asyncio.Event()
        self.room.set()
        self.orphans: set[Waiter] = set()
        self.is_full: bool = False
        self.is_hindered: bool = False
        self.is_lost: bool = False
        self.is_shared: bool = False

    # Commands

    def call(self, command: Command[T]) -> asyncio.Future[T]:
        """Send a command at the end of this turn: return what will have its result, or its error."""
        waiter: asyncio.Future[T] = self.loop.create_future()
        self.send(command, waiter)
        return waiter

    def send(self, command: Command[Any], waiter: Waiter) -> None:
        """Send a command at the end of this turn. The waiter gets its result, or its error."""
        if self.orphans and self.may_adopt(command):
            self.orphans.discard(self._waiters[-1])
            self._waiters[-1] = waiter
            self._look_for_hindrances()
            return
        waiters = self._waiters
        if not waiters:
            if self.is_lost:
                waiter.set_exception(self._unsent())
                return
            self._expect_a_reply()
        waiters.append(waiter)
        data = self._protocol.send(command)
        self._last = command
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size >= WRITE_SIZE:
            self._flush()
        elif not self._is_flushing:
            self._is_flushing = True
            self.loop.call_soon(self._flush_at_end_of_turn)

    def may_adopt(self, command: Command[Any]) -> bool:
        """Whether the command is what an orphan already asks for, with nothing behind it."""
        last = self._last
        return (
            command.wait is None
            and last is not None
            and last.data == command.data
            and self._waiters[-1] in self.orphans
        )

    @property
    def makes_sense(self) -> bool:
        """Whether all replies were valid, so that another connection may do better."""
        return not self._protocol.is_nonsense

    @property
    def is_forsaken(self) -> bool:
        """Whether it waits for a job, and no caller waits for any of its replies."""
        return bool(self.orphans) and all(waiter.cancelled() for waiter in self._waiters)

    def forsake(self, command: Command[Any], waiter: Waiter) -> None:
        """No caller waits for this reply any more. A job that comes with it, or has come, is given back."""
        if waiter.cancelled():
            # A future may have been cancelled some time ago, and its reply have come since.
            if command.wait != 0 and not self.is_lost and (isinstance(waiter, Reply) or waiter in self._waiters):
                if waiter is self._waiters[-1] and self._protocol.session.known.get("cancel-reserve"):
                    self._out.append(CANCEL_RESERVE)
                    self._flush()
                    return
                self.orphans.add(waiter)
                self.is_hindered = True
        elif waiter.done():
            error = waiter.exception()  # asyncio reports it unless it is read
            self.give_back(waiter.result() if error is None else error)

    def give_back(self, result: Any) -> None:
        """Release a result that has no caller, if it is a job, or jobs."""
        if isinstance(result, UndecodableError):
            result = result.jobs
        jobs = result if isinstance(result, list) else [result]
        jobs = [job for job in jobs if isinstance(job, Job) and job.is_reserved]
        if jobs and not self.is_lost:
            self._on_unclaimed(self, jobs)

    def _flush_at_end_of_turn(self) -> None:
        if self._was_idle:  # a loss may wait to be read: then nothing has left, and nothing is in doubt
            self._was_idle = False
            self.loop.call_soon(self._flush_at_end_of_turn)
            return
        self._is_flushing = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if out:
            self._out = []
            self._out_size = 0
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # which uvloop's does not inherit from
        _connections.add(self)
        self.is_shared = self._forks != _forks
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            keep_alive(sock)

    def data_received(self, data: bytes) -> None:
        protocol = self._protocol
        done = protocol.receive(data)
        if done:
            self._heard = self.loop.time()
        if protocol.is_lost:
            if not self.is_lost:
                self._end(done)
                self._transport.abort()
            return
        waiters = self._waiters
        for command, result in done:
            waiter = waiters.popleft()
            if waiter.cancelled():
                self._answer_nobody(waiter, result)
            elif isinstance(result, Exception):
                waiter.set_exception(of_command(result, command.line, self._name))
            else:
                waiter.set_result(result)
        if not done and self._heard != self._begun:
            first = protocol.first
            if first is not None and first.wait is None:
                self._heard = self._begun = self.loop.time()

    def eof_received(self) -> None:
        self.lose(f"the server closed the connection{self._hint()}")

    def connection_lost(self, error: Exception | None) -> None:
        self.lose(f"connection lost{f' ({error})' if error else ''}{self._hint()}")
        _connections.discard(self)
        if not self._closed.done():
            self._closed.set_result(None)

    def _hint(self) -> str:
        is_plain = self._transport.get_extra_info("sslcontext") is None
        return TLS_HINT if is_plain and not self._protocol.has_replied else ""

    def pause_writing(self) -> None:
        self.is_full = self.is_hindered = True
        self.room.clear()

    def resume_writing(self) -> None:
        self.is_full = False
        self.room.set()
        self._look_for_hindrances()

    def _answer_nobody(self, waiter: Waiter, result: Any) -> None:
        self.orphans.discard(waiter)
        self._look_for_hindrances()
        self.give_back(result)

    def _look_for_hindrances(self) -> None:
        self.is_hindered = self.is_full or bool(self.orphans)

    # Silence

    def _expect_a_reply(self) -> None:
        """The server owes a reply from now on. One timer serves them all: it looks whether there is time left for the
        next one, which must be whole then.
        """
        now = self.loop.time()
        self._was_idle = now - self._heard > IDLE
        self._heard = now
        if self._timer is None and self._timeout is not None:
            self._timer = self.loop.call_later(self._timeout, self._look_at_silence)

    def _look_at_silence(self) -> None:
        self._timer = None
        first = self._protocol.first
        timeout = self._timeout
        if first is None or timeout is None:
            return  # it owes nothing
        now = self.loop.time()
        left_over = self._transport.get_write_buffer_size()
        if left_over < self._left_over:
            self._heard = now  # it reads
        self._left_over = left_over
        wait = first.wait
        if wait is None and self._protocol.is_in_reply:
            wait = 0  # it must end what it has begun
        patience = timeout if wait is None else timeout + wait + self._heard - now
        if patience > 0:
            self._timer = self.loop.call_later(min(patience, timeout), self._look_at_silence)
        else:
            self._lose(no_answer(self._name, timeout + (wait or 0)))

    # The end

    def lose(self, why: str) -> None:
        """Give up the connection: all waiters for replies get an error."""
        self._lose(ConnectionLostError(f"{self._name}: {why}", reason=why, maybe_done=True))

    def _lose(self, error: ConnectionLostError) -> None:
        if not self.is_lost:
            self._end(self._protocol.lose(error))
            self.abort()

    def _end(self, done: list[tuple[Command[Any], Any]]) -> None:
        """Nothing more is said: tell all who wait what has become of their commands."""
        waiters, unsent = self._waiters, len(self._out)
        self.is_lost = True
        self._waiters = deque()
        self._out = []
        self.orphans.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_loss(self)
        self.resume_writing()  # those who wait for room look again
        sent = len(waiters) - unsent
        for number, (waiter, (_, result)) in enumerate(zip(waiters, done)):
            if waiter.cancelled():
                continue  # what it was granted, the server itself takes back
            if isinstance(result, ConnectionLostError):
                waiter.set_exception(copy.copy(result) if number < sent else self._unsent())
            elif isinstance(result, Exception):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)

    def _unsent(self) -> ConnectionLostError:
        return ConnectionLostError(f"{self._name}: connection lost; the command was not sent")

    def shut(self) -> None:
        """Close a connection of whose socket a child may have a copy."""
        self.is_lost = True
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError), sock.dup() as copied:  # uvloop's own can not
                copied.shutdown(socket.SHUT_RDWR)
        self.abort()

    def leave_closed_loop(self) -> None:
        """End a connection whose loop is closed, and can close no socket any more."""
        self.is_lost = True
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # uvloop has closed it
                sock.shutdown(socket.SHUT_RDWR)

    def _abandon(self) -> None:
        """In a process that was forked: close its copy of the socket, so that the connection ends with the parent.

        The number stays in use, by /dev/null: the copy of the transport would close it again.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self.loop.is_closed():  # which would have closed it
            null = os.open(os.devnull, os.O_RDWR)
            with contextlib.suppress(OSError):  # asyncio has closed it
                os.dup2(null, sock.fileno(), inheritable=False)
            os.close(null)

    def abort(self) -> None:
        """Close the socket at once."""
        transport = getattr(self, "_transport", None)
        if transport is not None:
            transport.abort()

    async def close(self) -> None:
        """Close the connection, and return when its socket is closed. All waiters for replies get an error."""
        if not self.is_lost:
            self._flush()
            self._end(self._protocol.lose(ConnectionLostError(CLOSED, maybe_done=True)))
            self._transport.close()
        timer = self.loop.call_later(CLOSE_WITHIN, self.abort)
        try:
            await self._closed
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            timer.cancel()


_connections: weakref.WeakSet[AsyncConnection] = abandoned_in_forks()
"""All open connections of this process."""

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_fork, after_in_parent=_count_fork)
