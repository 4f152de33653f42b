"""The server: sockets and the event loop around the sessions and the broker, which know neither.

One asyncio protocol for each connection hands bytes to its session and writes the replies of one read in one piece.
One timer drives the broker. A client that does not read is not read from: while its replies pile up in the transport,
its session is choked, and reading from it is paused.

Nobody waits for somebody else's load: a session does one turn of work at a time, and a round of the event loop a
bounded number of turns. Who has more to do stands in a queue, first come, first served.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import secrets
import select
import socket
from collections import deque
from time import monotonic_ns
from types import TracebackType
from typing import Any, Final, Self, cast

from beanstalk_server.config import Config, option
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE, Journal
from beanstalk_server.queue.wheel import END_OF_TIME
from beanstalk_server.server.stalls import Stalls
from beanstalk_server.server.startup import (
    StartError,
    become,
    connections_allowed,
    inherited_sockets,
    listen,
    open_inet_socket,
    open_unix_socket,
)
from beanstalk_server.storage.binlog import NO_SYNC, Binlog
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.recovery import StorageError
from beanstalk_server.version import full_version, version_in_stats
from beanstalk_server.wire.session import SESSION_QUANTUM, Session
from beanstalk_server.wire.statistics import Process

INPUT_LIMIT: Final = 1 << 16
"""Bytes of commands that may pile up behind one that waits, before the client is not read from."""

OUTPUT_LIMIT: Final = 1 << 18
"""Bytes of replies that may pile up in front of a client, before it is not read from.

Where replies wait for a commit, the commands that they answer count too: a change of 64 KiB is answered in 12 bytes.
"""

ROUND: Final = 16 * SESSION_QUANTUM
"""How much work, in the unit of a session's turn, one round of the event loop does before it looks for input again."""

SHORT_ROUND: Final = 6 * SESSION_QUANTUM
"""The same with a journal: a reply to a change may wait for two commits, and their ends are noticed between rounds."""

TRANSFER: Final = 4
"""What it costs to be read from and written to, in the same unit: the system calls are more than a simple command.

A kilobyte that is read is a unit more, so that who sends large bodies waits for the next round too.
"""

CLOSE: Final = 12
"""What it costs to close a connection, in the same unit."""

SLOW: Final = 512
"""From how many tubes on a client waits in a queue of its own, so that others do not stand behind its reserves."""

ADVANCE_TIME: Final = 4_000_000
"""How long one round of the event loop does what is due, in nanoseconds."""

ACCEPTS: Final = 64  # connections taken in one round
KEPT_BACK: Final = 8
"""File descriptors that no connection gets, because the process may need them."""

KEPT_BACK_FOR_JOURNAL: Final = 32
"""The same with a journal: without a file to write to it could keep nothing, and the server would have to stop."""

FULL_LOG_INTERVAL: Final = 60
"""Seconds between two lines of the log that tell that all connections are taken."""

OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
MILLISECOND: Final = 1_000_000

log = logging.getLogger("beanstalk_server")


class Connection:
    """One client's socket, and the session behind it.

    An asyncio protocol by what it can do, not by what it inherits: compiled, a class that inherits from one that is
    not is as slow as if it were not either.
    """

    __slots__ = (
        "blocked",
        "held",
        "held_size",
        "looked_at",
        "lost",
        "name",
        "queued",
        "reading",
        "server",
        "session",
        "transport",
    )

    session: Session
    transport: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reading = True
        self.held: deque[tuple[int, bytes, int]] = deque()  # which commit, the replies that wait for it, their weight
        self.held_size = 0  # the sum of the weights: bytes of the replies, and of the commands that they answer
        self.blocked = False  # among those that wait for the journal
        self.queued = False  # in the server's queue of those that have more to do
        self.lost = True  # its session is not there yet, or no more
        self.looked_at = -1  # its file descriptor, while the server looks out for its hang-up
        self.name = ""

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        server = self.server
        self.transport = cast(asyncio.Transport, transport)
        if server.stopping:  # it was accepted before the sockets were closed
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(OUTPUT_LIMIT)
        verbosity = server.config.verbosity
        if verbosity:
            self.name = _name_of_peer(self.transport)
            log.info("%s connected", self.name)
        self.session = Session(server.broker, server.process, self.on_answer, self.name, verbosity > 1)
        self.lost = False
        server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        server = self.server
        session = self.session
        if self.queued or server.work_left <= 0:
            server.work_left -= len(data) >> 10
            session.queue_input(data)
            server.enqueue(self)
            self._regulate()
            server.settle()
            return
        session.receive(data, monotonic_ns())
        server.work_left -= session.cost + TRANSFER + (len(data) >> 10)
        if session.replies:
            self._send()
        if session.input_size or session.closed or self.held_size > OUTPUT_LIMIT:
            self._regulate()
        if server.queue or server.slow_queue:
            server.serve_queue()
        if server.wheel.next_event < server.armed_for:
            server.arm()

    def eof_received(self) -> bool:
        self.session.end_input()
        self.server.enqueue(self)
        self.server.settle()
        return True  # replies may still have to be sent; `_regulate` closes

    def pause_writing(self) -> None:
        self.session.pause_output()
        self._regulate()

    def resume_writing(self) -> None:
        self.session.resume_output()
        self.server.enqueue(self)
        self.server.settle_soon()

    def connection_lost(self, error: Exception | None) -> None:
        server = self.server
        server.give_back_connection()
        if server.config.verbosity:
            log.info("%s disconnected", self.name)
        self.held.clear()
        server.forget_hang_up(self)
        server.forget_held(self)
        if self.blocked:
            server.blocked.remove(self)
            self.blocked = False
        server.connections.discard(self)
        if not server.connections:
            server.all_lost.set()
        if not server.stopping:
            self._hang_up()
            server.settle()

    # What the session and the server call

    def on_answer(self) -> None:
        self.server.enqueue(self)

    def go_on(self) -> None:
        """Go on with what is left of the input, and send what there is to send."""
        if self.lost or self.transport.is_closing():
            return
        self.session.run(monotonic_ns())
        if self.session.replies:
            self._send()
        self._regulate()

    def on_hang_up(self) -> None:
        """The client has shut down its sending side, or is gone, while it waits and is not read from."""
        self.session.forbid_waiting()
        self.server.enqueue(self)

    def _send(self) -> None:
        """Send the replies in one write."""
        session = self.session
        consumed = session.consumed
        data = session.take_replies()
        server = self.server
        if server.journal.keeps and (self.held or session.reply_lsn > server.committed):
            weight = len(data) + consumed
            self.held.append((session.reply_lsn, data, weight))
            self.held_size += weight
            server.hold(self)
        else:
            self.transport.write(data)

    def release(self) -> None:
        """Send the replies whose commit has returned."""
        held = self.held
        while held and held[0][0] <= self.server.committed:
            _, data, weight = held.popleft()
            self.held_size -= weight
            self.transport.write(data)
        self._regulate()

    def _regulate(self) -> None:
        """Close, come back or not, and read or not, as the session's state has it."""
        session = self.session
        if session.closed:
            if not self.transport.is_closing():
                self._hang_up()
                if not self.held:
                    self.transport.close()
                    self.server.work_left -= CLOSE
                elif self.reading and not session.input_ended:
                    self.reading = False  # what comes after a quit is nobody's
                    self.transport.pause_reading()
            return
        if session.blocked and not self.blocked:
            self.blocked = True
            self.server.blocked.append(self)
        if session.has_more and not session.output_paused and self.held_size <= OUTPUT_LIMIT:
            self.server.enqueue(self)
        reading = not session.output_paused and session.input_size <= INPUT_LIMIT and self.held_size <= OUTPUT_LIMIT
        if reading is not self.reading and not session.input_ended and not self.transport.is_closing():
            self.reading = reading
            if reading:
                self.server.forget_hang_up(self)
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
                self.server.look_out_for_hang_up(self)

    def _hang_up(self) -> None:
        """Give back what the client holds, at once and once only."""
        if not self.lost:
            self.lost = True
            self.session.disconnect(monotonic_ns())


class Server:
    """A server that is listening from `start` to `stop`, and as an asynchronous context manager in between.

    Args:
        config: its settings.
        journal: keeps the jobs that must outlive the process (docs/journal.md), instead of the config's binlog.

    When the journal fails to commit, the server stops by itself; `failed` is set, and `failure` says why.
    """

    def __init__(self, config: Config | None = None, *, journal: Journal | None = None) -> None:
        self.config = config or Config()
        now = monotonic_ns()
        self.journal = journal or journal_of(self.config)
        self.broker = Broker(self.journal, now, round(self.config.tick * MILLISECOND))
        self.wheel = self.broker.wheel
        self.process = this_process(self.config.max_job_size, now)
        self.connections: set[Connection] = set()
        self.queue: deque[Connection] = deque()  # those that have more to do, or an answer to send
        self.blocked: deque[Connection] = deque()  # those that want to change something when the journal has room
        self.slow_queue: deque[Connection] = deque()  # those of them whose next command may take a whole round
        self.round = SHORT_ROUND if self.journal.keeps else ROUND
        self.work_left = self.round  # how much more work this round of the event loop may do
        self.armed_for = END_OF_TIME
        self.stopping = False
        self.committed = 0  # how many of the changes that the journal has been told of are durable
        self.failure: BaseException | None = None  # what the journal could not do: the server has stopped
        self._commit: asyncio.Task[None] | None = None  # under way; when it has failed, for good
        self.restoring = False  # in `start`, and holding the event loop
        self.failed = asyncio.Event()  # set with `failure`
        self._stopped: asyncio.Task[None] | None = None  # from the first call of `stop`
        self._holding: set[Connection] = set()
        self.all_lost = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._next_round: asyncio.Handle | None = None
        self._hang_ups: select.epoll | None = None  # on Linux
        self._looked_at: dict[int, Connection] = {}  # by file descriptor
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[object]] = set()
        self._connections_left = 0  # how many more may be accepted
        self._full_told = -FULL_LOG_INTERVAL * 1_000 * MILLISECOND
        self._addresses: list[tuple[str, int] | str] = []
        self._own_path: tuple[str, int] | None = None  # of a UNIX socket that this server has made, and its inode
        self._stalls = Stalls() if self.config.stalls else None
        self.loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> tuple[str, int] | str:
        """Where it listens: host and port, or the path of a UNIX socket. The first, if there are several."""
        return self._addresses[0]

    async def start(self) -> None:
        """Open the sockets and serve.

        Raises:
            StartError: a socket cannot be opened, there is no such user, or the binlog cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        self.journal.on_failure = self._fail
        self.journal.on_admission = self._on_admission
        sockets = inherited_sockets() or [self._open_socket()]
        try:
            if self.config.user:
                become(self.config.user)
            self._restore()  # as that user, and before anybody can connect
            for sock in sockets:
                listen(sock)
        except BaseException:
            for sock in sockets:
                sock.close()
            self._remove_own_path()
            self.stopping = True
            await self.journal.close()
            raise
        if hasattr(select, "epoll"):
            self._hang_ups = select.epoll()
            self.loop.add_reader(self._hang_ups.fileno(), self._on_hang_ups)
        self._connections_left = connections_allowed(KEPT_BACK_FOR_JOURNAL if self.journal.keeps else KEPT_BACK)
        for sock in sockets:
            self._listeners.append(sock)
            self.loop.add_reader(sock.fileno(), self._accept, sock)
            name = sock.getsockname()
            self._addresses.append(name if isinstance(name, str) else (name[0], name[1]))
        settings = ", ".join(f"{name}={value}" for name, value in self.config.changed().items()) or "default settings"
        places = ", ".join(_name_of_address(address) for address in self._addresses)
        log.info("beanstalk-server %s listens on %s with %s", full_version(), places, settings)
        if self._stalls is not None:
            self._stalls.start(self.loop)

    async def stop(self) -> None:
        """Close the sockets and every connection, and commit. Returns when that is done; a second call only waits."""
        self.stopping = True
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._stopped)

    async def _stop(self) -> None:
        if self._stalls is not None:
            self._stalls.stop()
        count = len(self.connections)
        for listener in self._listeners:
            self.loop.remove_reader(listener.fileno())
            listener.close()
        self._cancel_timer()
        if self._next_round is not None:
            self._next_round.cancel()
        self.queue.clear()
        for connection in self.blocked:
            connection.blocked = False
        self.blocked.clear()
        self.slow_queue.clear()
        await asyncio.gather(*self._accepting)
        while self.connections:
            self.all_lost.clear()
            for connection in list(self.connections):
                connection.transport.abort()
            await self.all_lost.wait()
        if self.journal.keeps and self.failure is None:
            await (self._commit or self._commit_all())
        await self.journal.close()
        if self._hang_ups is not None:
            self.loop.remove_reader(self._hang_ups.fileno())
            self._hang_ups.close()
        self._remove_own_path()
        log.info("stopped; %d clients were connected, %d jobs are left", count, len(self.broker.jobs))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def drain(self) -> None:
        """Take no new jobs from now on: put answers DRAINING, all else goes on."""
        self.broker.draining = True
        log.info("draining: no new jobs are taken")

    # The journal

    def _restore(self) -> None:
        if self.journal.keeps:
            now = monotonic_ns()
            self.restoring = True
            try:
                count = self.broker.restore(self.journal.clock_offset(), now)
            except StorageError as error:
                raise StartError(f"{option('binlog')} {error}", error.status) from error
            finally:
                self.restoring = False
            log.info("%d jobs are there from before", count)

    def hold(self, connection: Connection) -> None:
        """Let a connection send what it holds when the journal has committed."""
        self._holding.add(connection)
        if self._commit is None:
            self._commit = self.loop.create_task(self._commit_all())

    def forget_held(self, connection: Connection) -> None:
        """Undo `hold`: there is nobody to send it to."""
        self._holding.discard(connection)

    def _on_admission(self, admits: int) -> None:
        """What the journal may be told has changed."""
        if self.stopping:
            return
        self.broker.set_admission(admits)
        if admits == DELETIONS:
            for connection in self.blocked:  # those that want to delete something may go on
                connection.blocked = False
                self.enqueue(connection)
            self.blocked.clear()
        if admits != NONE:
            self.settle_soon()
        if admits != ALL and self._commit is None:
            self._commit = self.loop.create_task(self._commit_all())

    async def _commit_all(self) -> None:
        """Commit, until everything is: one commit for all that came while the one before was in flight."""
        while True:
            position = self.broker.last_lsn
            try:
                await self.journal.commit()
            except Exception as error:
                self._fail(error)
                return
            self.committed = position
            holding = self._holding
            self._holding = set()
            for connection in holding:
                connection.release()
                if connection.held:
                    self._holding.add(connection)
            self.settle()
            if self.broker.last_lsn == position:
                break
        self._commit = None

    def _fail(self, error: Exception) -> None:
        """What was told to the journal may be lost: acknowledge nothing any more, and stop."""
        if self.failure is not None:
            return
        log.critical(
            "the journal failed: nothing more is acknowledged, and the server stops: %s",
            error,
            exc_info=None if isinstance(error, OSError) else error,
        )
        self.failure = error
        self.failed.set()
        self._stopped = self._stopped or self.loop.create_task(self._stop())
        self.stopping = True

    # Whose turn it is, and the broker's time

    def enqueue(self, connection: Connection) -> None:
        """Let a connection go on when it is its turn; `settle` must follow."""
        if not connection.queued:
            connection.queued = True
            if len(connection.session.watched) > SLOW:
                self.slow_queue.append(connection)
            else:
                self.queue.append(connection)

    def settle(self) -> None:
        """Do what follows from what has been done: others may go on, and something may be due sooner."""
        if self.queue or self.slow_queue or self.blocked:
            self.serve_queue()
        if self.wheel.next_event < self.armed_for:
            self.arm()

    def settle_soon(self) -> None:
        """`settle`, from where nothing else may be done now."""
        if self._next_round is None and not self.stopping:
            self._next_round = self.loop.call_soon(self._begin_round)

    def serve_queue(self) -> None:
        """Let those in the queues go on, one turn each, as long as the round has work left.

        After them those that had to wait for the journal, as long as it may be told everything.
        """
        queue = self.queue
        slow_queue = self.slow_queue
        blocked = self.blocked
        while self.work_left > 0:
            if queue:
                self._serve(queue.popleft())
            elif slow_queue:
                self._serve(slow_queue.popleft())
            elif blocked and self.broker.admits == ALL:
                self._serve_blocked()
            else:
                return
        if queue or slow_queue or blocked:
            self.settle_soon()

    def _serve(self, connection: Connection) -> None:
        connection.queued = False
        self._let_go_on(connection)

    def _serve_blocked(self) -> None:
        connection = self.blocked.popleft()
        connection.blocked = False
        self._let_go_on(connection)

    def _let_go_on(self, connection: Connection) -> None:
        try:
            connection.go_on()
        except Exception:
            log.exception("%s: a connection failed; this is a bug of the server", connection.name)
            connection.transport.abort()
        self.work_left -= connection.session.cost + TRANSFER

    def _begin_round(self) -> None:
        self._next_round = None
        self.work_left = self.round
        if self.slow_queue:  # one in each round, however many others there are
            self._serve(self.slow_queue.popleft())
        if self.blocked and self.broker.admits == ALL:
            self._serve_blocked()
        self.settle()

    def arm(self) -> None:
        """Set the timer for the next event."""
        self._cancel_timer()
        when = self.broker.next_event()
        self.armed_for = when
        if when >= END_OF_TIME or self.stopping:
            return
        left = when - monotonic_ns()
        if left <= 0:
            self._timer = self.loop.call_soon(self._advance)
        else:
            # Rounded up to the milliseconds that the event loop counts in, so as not to wake twice.
            self._timer = self.loop.call_later(-(-left // MILLISECOND) / 1000, self._advance)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advance(self) -> None:
        """Do what is due, for some milliseconds; what is left after that is done in the next round."""
        self._timer = None
        now = monotonic_ns()
        end = now + ADVANCE_TIME
        try:
            while now < end and self.broker.next_event() <= now:
                self.broker.advance(now)
                now = monotonic_ns()
        except Exception:
            log.exception("a timer failed; this is a bug of the server")
        self.arm()
        self.settle()

    def look_out_for_hang_up(self, connection: Connection) -> None:
        """Notice when a client hangs up that is not read from, and so whose end would not be seen.

        What it sent is still there to be read; but if it waits for a job, it should not get one any more.
        """
        if self._hang_ups is None:
            return  # elsewhere than on Linux, it is noticed when it is read from again
        descriptor = connection.transport.get_extra_info("socket").fileno()
        try:
            self._hang_ups.register(descriptor, select.EPOLLRDHUP)
        except OSError as error:
            log.warning("%s is not looked out for: %s", connection.name, error.strerror)
            return
        connection.looked_at = descriptor
        self._looked_at[descriptor] = connection

    def forget_hang_up(self, connection: Connection) -> None:
        """Undo `look_out_for_hang_up`, if it has been done."""
        if connection.looked_at >= 0:
            assert self._hang_ups is not None
            self._hang_ups.unregister(connection.looked_at)
            del self._looked_at[connection.looked_at]
            connection.looked_at = -1

    def _on_hang_ups(self) -> None:
        assert self._hang_ups is not None
        for descriptor, _ in self._hang_ups.poll(0):
            connection = self._looked_at[descriptor]
            self.forget_hang_up(connection)
            connection.on_hang_up()
        self.settle()

    # Sockets

    def _accept(self, listener: socket.socket) -> None:
        """Take the connections that have piled up.

        Not left to the event loop, because uvloop's takes one a round: when a thousand workers come back to a server
        that is busy, each of them would wait for the rounds of all before it.
        """
        for _ in range(ACCEPTS):
            if not self._connections_left:
                self._stop_accepting()
                return
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno not in OUT_OF_FILES:  # nobody is there any more, or that one is gone again
                    return
                # Those that wait stay in the backlog.
                log.warning("no connection can be accepted for a second: %s", error.strerror)
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(1, self._accept_again, listener)
                return
            sock.setblocking(False)
            self._connections_left -= 1
            task = self.loop.create_task(self._begin(sock))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    def _accept_again(self, listener: socket.socket) -> None:
        if not self.stopping and self._connections_left:
            self.loop.add_reader(listener.fileno(), self._accept, listener)

    def _stop_accepting(self) -> None:
        """Every connection that the file limit allows is taken: who comes now stays in the backlog."""
        for listener in self._listeners:
            self.loop.remove_reader(listener.fileno())
        now = monotonic_ns()
        if now - self._full_told >= FULL_LOG_INTERVAL * 1_000 * MILLISECOND:
            self._full_told = now
            count = len(self.connections) + len(self._accepting)
            log.warning("%d connections are all that the file limit allows: others wait until one is gone", count)

    def give_back_connection(self) -> None:
        """One is gone, and whoever waits may take its place."""
        self._connections_left += 1
        if self._connections_left == 1:
            for listener in self._listeners:
                self.loop.call_soon(self._accept_again, listener)

    async def _begin(self, sock: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: cast(Any, Connection(self)), sock)
        except OSError as error:
            log.info("a client was gone before it was served: %s", error.strerror)
            sock.close()
            self.give_back_connection()

    def _open_socket(self) -> socket.socket:
        listen = self.config.listen
        if not listen.startswith("unix:"):
            return open_inet_socket(listen, self.config.port)
        path = listen.removeprefix("unix:")
        sock = open_unix_socket(path)
        self._own_path = path, os.stat(path).st_ino
        return sock

    def _remove_own_path(self) -> None:
        if self._own_path is None:
            return
        path, inode = self._own_path
        try:
            if os.stat(path).st_ino == inode:  # and not the socket of a server that has taken its place
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s: the socket stays behind: %s", path, error.strerror)


def journal_of(config: Config) -> Journal:
    """The binlog that the settings ask for, or the journal that keeps nothing."""
    if not config.binlog:
        return Journal()
    interval = config.sync_interval
    return Binlog(
        RealDirectory(config.binlog),
        segment_size=config.segment_size,
        sync_interval=NO_SYNC if isinstance(interval, str) else interval,
        salvage=bool(config.salvage),
    )


def this_process(max_job_size: int, now: int) -> Process:
    """What stats tells of the process that this is."""
    node = os.uname()
    return Process(
        pid=os.getpid(),
        version=version_in_stats(),
        instance=secrets.token_hex(8),
        hostname=node.nodename,
        os=node.version,
        platform=node.machine,
        max_job_size=max_job_size,
        started_at=now,
        cpu_times=cpu_times,
    )


def cpu_times() -> tuple[float, float]:
    """Seconds that this process has spent in user and in system mode."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime


def _name_of_address(address: tuple[str, int] | str) -> str:
    if isinstance(address, str):
        return "unix:" + address
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _name_of_peer(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    if isinstance(peer, tuple):
        return _name_of_address((peer[0], peer[1]))
    return f"unix client {transport.get_extra_info('socket').fileno()}"
