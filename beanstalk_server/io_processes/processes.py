"""The I/O processes of a server, as its engine process has them: starts them, serves their clients, replaces the dead.

    Connection ⇄ LinkTransport ⇄ Link ⇄ LinkEnd ⇄ pair of sockets ⇄ I/O process (process.py)

An I/O process that ends takes its clients with it: what they had reserved is ready at once. Another one is started in
its place; the listening sockets are open here all the time, so clients that connect meanwhile wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final, cast

from beanstalk_server.events import event
from beanstalk_server.io_processes.carried import decode_opening
from beanstalk_server.io_processes.notes import READY, log_line
from beanstalk_server.io_processes.settings import SIGNALS, IoSettings, KeptFiles, ListenSocket, make_file
from beanstalk_server.link.link import Channel, Link, LinkError
from beanstalk_server.server.front.connection_counts import prepare_counts
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.link_end import LinkEnd
from beanstalk_server.server.link_transport import LinkTransport
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.options import option
from beanstalk_server.settings.sections import ListenerConfig

PROGRAM: Final = "beanstalk_server.io_processes.process"

READY_WITHIN: Final = 30
"""Seconds until an I/O process must have said its first word, and taken settings: a hundred times as long as usual."""

END_WITHIN: Final = 3.0
"""Seconds until an I/O process must have ended after it was told to."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds until an I/O process is started again: none at first, and then each time twice as long."""

LIVES_LONG: Final = 10.0
"""Seconds after which one that ends is started again at once."""

log = logging.getLogger("beanstalk_server")


class IoProcesses:
    """The I/O processes, from `start` to `stop`, and what they must know of the server's listeners.

    Args:
        client_maker: returns what makes the protocol of a client, of its listener_policy, its user and its name.
    """

    def __init__(self, count: int, listeners: Listeners, client_maker: Callable[[], Callable[..., Any]]) -> None:
        self.client_maker = client_maker
        self.listener_policies: dict[int, ListenerPolicy] = {}
        self.all: list[IoProcessHandle] = [IoProcessHandle(self, number) for number in range(1, count + 1)]
        self.counts = -1  # the descriptor of what they share, while they run
        self.settings = IoSettings()
        self.stopping = asyncio.Event()
        self._listeners = listeners
        self._files = KeptFiles()  # of the settings in effect
        self._read: KeptFiles | None = None  # of the settings that are being prepared
        self._number = 0  # of the last new listener policy

    def make_context(self) -> Callable[[ListenerConfig], Any]:
        """What makes the TLS contexts of new settings. Their files are kept for the processes."""
        if self._read is not None:
            self._read.close()  # those settings have not taken effect
        read = self._read = KeptFiles()

        def make(config: ListenerConfig) -> Any:
            from beanstalk_server.server.front.tls_context import make_context  # only where there is TLS

            return make_context(config, place=read.place)

        return make

    def start(self) -> None:
        """Start them. They load while the jobs are restored.

        Raises:
            StartError: a process cannot be started.
        """
        self.counts = make_file()
        prepare_counts(self.counts, len(self.all))
        try:
            for each in self.all:
                each.start()
        except OSError as error:
            self.give_up()
            what = f"user id {os.geteuid()} cannot run {sys.executable}"
            raise StartError(f"{option('io_processes')}: {what}: {error.strerror or error}") from error

    async def serve(self) -> None:
        """Let them accept clients; return when all of them do.

        Raises:
            StartError: one of them cannot.
        """
        self._take()
        await asyncio.gather(*(each.connect() for each in self.all))
        for each in self.all:
            why = await each.is_ready()
            if why:
                raise StartError(f"{option('io_processes')}: {each.name} did not start: {why}")
        for each in self.all:
            each.keep_alive()

    async def change(self) -> None:
        """Apply new listeners and users, and what `make_context` has read last; return when all live processes have."""
        self._take()
        for each in self.all:
            each.tell()
        for each in self.all:
            await each.is_ready()

    def _take(self) -> None:
        if self._read is not None:
            self._files.close()
            self._files, self._read = self._read, None
        users: list[Any] = []
        sockets = []
        self.listener_policies = {}
        for listener in self._listeners.all:
            listener_policy = listener.policy
            if not listener_policy.number:
                self._number += 1
                listener_policy.number = self._number
                listener_policy.carried = True
            if listener_policy.accounts is not None:
                users = listener_policy.accounts.configs
            sockets.append(
                ListenSocket(listener_policy.number, listener_policy.place, listener.config, listener.sock.fileno())
            )
            self.listener_policies[listener_policy.number] = listener_policy
        self.settings = IoSettings(sockets, users, dict(self._files.descriptors), self._listeners.max_connections)

    def give_up(self) -> None:
        """End them at once, because the start has failed."""
        self.stopping.set()
        for each in self.all:
            each.kill()
        self._close()

    async def stop(self) -> None:
        """Let them send what they have been given, disconnect their clients, and end."""
        self.stopping.set()
        await asyncio.gather(*(each.stop() for each in self.all))
        self._close()

    def _close(self) -> None:
        if self.counts >= 0:
            os.close(self.counts)
            self.counts = -1
        for files in (self._files, self._read):
            if files is not None:
                files.close()


class IoProcessHandle:
    """One I/O process after the other, each in the place of the one before.

    Attributes:
        name: what the log calls it.
    """

    def __init__(self, owner: IoProcesses, number: int) -> None:
        self.name = f"I/O process {number}"
        self._place = number - 1
        self._owner = owner
        self._restarts = False  # it is started again when it ends
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket
        self._control: socket.socket
        self._end: LinkEnd | None = None
        self._untaken = 0  # settings that have been sent, and are not in effect
        self._ready: asyncio.Future[str] | None = None  # "", or why it will not be
        self._overdue: asyncio.TimerHandle | None = None  # while settings are not in effect
        self._began = 0.0
        self._pause = 0.0
        self._replacing: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the program.

        Raises:
            OSError: that is impossible.
        """
        self._sock, sock = socket.socketpair()
        self._control, control = socket.socketpair()
        with sock, control:
            # What a signal does to it is decided when it runs; until then it must not be ended by one.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                descriptors = (sock.fileno(), control.fileno(), self._owner.counts)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", PROGRAM, *map(str, descriptors), str(self._place)],
                    pass_fds=descriptors,
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                )
            except OSError:
                self._sock.close()
                self._control.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    async def connect(self) -> None:
        """Open the link, and tell it its settings."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._untaken = 0
        self._began = loop.time()
        end = self._end = LinkEnd(loop, self._on_end, name=self.name)
        end.begin(
            Link(
                dials=False,
                on_output=end.output,
                accept=self._accept,
                on_note=self._on_note,
                handshake_grace=READY_WITHIN,
            )
        )
        await loop.create_unix_connection(cast(Any, lambda: end), sock=self._sock)
        self.tell()

    def tell(self) -> None:
        """Send the settings."""
        end = self._end
        if end is None or self._ready is None:
            return  # the next one gets them when it begins
        if self._ready.done():
            self._ready = end.loop.create_future()
        self._untaken += 1
        if self._overdue is None:
            why = f"settings not applied within {READY_WITHIN} s"
            self._overdue = end.loop.call_later(READY_WITHIN, end.close, why)
        try:
            self._owner.settings.send(self._control)
        except OSError as error:
            end.close(f"cannot send settings: {error.strerror or error}")

    async def is_ready(self) -> str:
        """Wait until the settings are in effect; return "", or why they never will be."""
        return "the process has exited" if self._ready is None else await self._ready

    def _on_note(self, note: bytes) -> None:
        if note != READY:
            try:
                log_line(note)
            except ValueError as error:
                raise LinkError(str(error)) from error
            return
        if not self._untaken or self._ready is None:
            raise LinkError("unexpected READY: no settings were sent")
        self._untaken -= 1
        if not self._untaken:
            self._settle("")

    def _settle(self, why: str) -> None:
        """Let those go on who wait until its settings are in effect, or until it is clear that they never will be."""
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(why)

    def _accept(self, payload: bytes) -> Channel:
        """Serve a client."""
        number, user_name, name = decode_opening(payload)
        listener_policy = self._owner.listener_policies.get(number)
        if listener_policy is None:
            return Refused()  # its listener has gone, with those who had not come in
        user = None
        if user_name:
            user = None if listener_policy.accounts is None else listener_policy.accounts.by_name(user_name)
            if user is None:
                return Refused()  # the user has gone meanwhile
        assert self._end is not None, "it is connected"
        return LinkTransport(self._end.loop, self._owner.client_maker()(listener_policy, user, name))

    def _on_end(self, _: LinkEnd, why: str) -> None:
        """Begin to replace it."""
        self._end = None
        self._control.close()
        self._settle(why)
        if self._restarts and not self._owner.stopping.is_set():
            log.error(
                "%(process)s (pid %(pid)d) exited, and its clients were disconnected: %(reason)s",
                event("io-process-ended", process=self.name, pid=self.pid, reason=why),
            )
            self._begin_replacing()

    def keep_alive(self) -> None:
        """Start it again from now on when it ends, or has ended."""
        self._restarts = True
        if self._end is None:
            self._begin_replacing()

    def _begin_replacing(self) -> None:
        assert self._process is not None, "it was started"
        self._replacing = asyncio.get_running_loop().create_task(self._replace(self._process))

    async def _replace(self, old: subprocess.Popen[bytes]) -> None:
        """Start another one, again and again, until one lives."""
        loop = asyncio.get_running_loop()
        stopping = self._owner.stopping
        await asyncio.to_thread(end_process, old, 0.0)
        while not stopping.is_set():
            self._pause = 0.0 if loop.time() - self._began > LIVES_LONG else self._pause
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._pause)
                return
            self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
            self._began = loop.time()
            try:
                await asyncio.to_thread(self.start)
            except OSError as error:
                log.error(
                    "cannot start %(process)s: %(error)s",
                    event("io-process-not-started", process=self.name, error=error.strerror or error),
                )
                continue
            if stopping.is_set():
                self.kill()
                return
            await self.connect()
            if not await self.is_ready():
                log.info(
                    "%(process)s was restarted (pid %(pid)d)",
                    event("io-process-restarted", process=self.name, pid=self.pid),
                )
            return  # if it has ended, that has begun the next replacement

    async def stop(self) -> None:
        """Tell it to end; return when it has."""
        if self._replacing is not None:
            await self._replacing
        if self._end is not None:
            self._end.say_goodbye("the server is stopping")
        if self._process is not None:
            await asyncio.to_thread(end_process, self._process, END_WITHIN)
            self._process = None

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            end_process(self._process, 0.0)
            self._process = None
            if self._end is None:
                self._sock.close()
                self._control.close()


class Refused(Channel):
    """A client that may not come in any more: its user or its listener has gone while it was on its way."""

    def on_open(self) -> None:
        self.close_channel(at_once=True)


def end_process(process: subprocess.Popen[bytes], within: float) -> None:
    """Wait until a process has ended by itself, and end it if it does not within this many seconds."""
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def environment() -> dict[str, str]:
    """The environment of an I/O process: where its modules are, and nothing of this server."""
    ours = ("BEANSTALK_SERVER_", "LISTEN_", "NOTIFY_", "WATCHDOG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"PYTHONPATH": os.pathsep.join([os.path.abspath(path) for path in sys.path])}
