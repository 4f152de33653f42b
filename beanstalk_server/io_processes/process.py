"""An I/O process: a program that accepts the clients of a server, and carries their bytes to its engine process.

    clients ⇄ Listeners, PendingConnections, TLS ⇄ CarriedConnection ⇄ Link ⇄ LinkEnd ⇄ pair of sockets ⇄ engine process

It is started by the engine process (processes.py), which hands it a pair of sockets for the link and another one for
its settings. It ends when the link ends. Signals are for the engine process.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import socket
import sys
from typing import Any, Final, cast

import uvloop

from beanstalk_server.events import event
from beanstalk_server.io_processes.carried import Carrier
from beanstalk_server.io_processes.notes import READY, NoteHandler
from beanstalk_server.io_processes.settings import SIGNALS, IoSettings, ListenSocket
from beanstalk_server.link.link import NOTE, Link
from beanstalk_server.server.front.connection_counts import ConnectionCounts
from beanstalk_server.server.front.listener_policy import listener_policy_of
from beanstalk_server.server.front.listeners import Listener, Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.link_end import LinkEnd
from beanstalk_server.server.turns import Turns
from beanstalk_server.settings.sections import ListenerConfig

HEADROOM: Final = 8
"""File descriptors that no connection gets, because the process may need them."""

ACCEPTS: Final = 4
"""Connections accepted from one socket in one round of the event loop: few, so that the other processes get some."""

PR_SET_PDEATHSIG: Final = 1
"""Of linux/prctl.h."""

log = logging.getLogger("beanstalk_server")


class IoProcess:
    """Carries clients from `run` on, until the link ends.

    Args:
        sock: the link's end of the pair.
        control: where settings come.
        counts: how many clients each I/O process has; None if that does not matter.
    """

    def __init__(self, sock: socket.socket, control: socket.socket, counts: ConnectionCounts | None = None) -> None:
        self._sock = sock
        self._control = control
        self.listeners = Listeners(ACCEPTS, counts)
        self._hangups = HangupWatch()
        self._turns = Turns()  # of pending connections and TLS
        self._listening: dict[int, Listener] = {}  # by the number of the listener policy
        self._end: LinkEnd
        self.carrier: Carrier

    async def run(self) -> None:
        """Carry clients, until the link ends."""
        settings = IoSettings.receive(self._control)
        if settings is None:
            return  # the engine process has ended meanwhile
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        end = self._end = LinkEnd(
            loop, lambda _, why: None if ended.done() else ended.set_result(why), name="the engine process"
        )
        link = Link(dials=True, on_output=end.output, trusts=True)
        end.begin(link)
        self.carrier = Carrier(loop, self.listeners, self._hangups)
        self.carrier.link = link
        self.listeners.serve(self._turns, lambda: self.carrier.make_client)
        self._turns.start(loop)
        self._hangups.start(loop)
        await loop.create_unix_connection(cast(Any, lambda: end), sock=self._sock)
        self._change(settings)
        self.listeners.start(loop, HEADROOM)
        self._control.setblocking(False)
        loop.add_reader(self._control.fileno(), self._take_settings)
        self.send_note(READY)
        await ended
        await self._stop(loop)

    def send_note(self, note: bytes) -> bool:
        """Send the engine process a note; return False without a link."""
        carrier = getattr(self, "carrier", None)
        if carrier is None or carrier.link is None:
            return False
        carrier.link.send(NOTE, 0, note)
        return True

    def _take_settings(self) -> None:
        """Let new settings take effect. If that fails, end: another process begins with them."""
        try:
            settings = IoSettings.receive(self._control)
            if settings is None:
                asyncio.get_running_loop().remove_reader(self._control.fileno())
                return
            self._change(settings)
        except Exception:
            log.exception(
                "an I/O process cannot apply its settings; this is a bug in the server", event("bug-in-io-settings")
            )
            self._end.close("the process cannot apply its settings")
        else:
            self.send_note(READY)

    def _change(self, settings: IoSettings) -> None:
        try:
            accounts = None
            if settings.users:
                from beanstalk_server.access.accounts import Accounts  # most servers have no users

                accounts = Accounts(settings.users)
            make_context = functools.partial(_make_context, settings)
            opened = []
            for listen_socket in settings.sockets:
                listener_policy = listener_policy_of(listen_socket.config, listen_socket.place, accounts, make_context)
                listener_policy.number = listen_socket.number
                opened.append(
                    (self._listening.get(listen_socket.number) or _listener_of(listen_socket), listener_policy)
                )
            self.listeners.allow(settings.max_connections)
            self.listeners.change(opened)
            self._listening = {listener_policy.number: listener for listener, listener_policy in opened}
        finally:
            settings.close()

    async def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._control.fileno())
        carrier = self.carrier
        carrier.link = None
        await self.listeners.stop()
        if self.listeners.pending is not None:
            await self.listeners.pending.stop()
        for client in list(carrier.open):
            client.abort()
        while carrier.open:
            await asyncio.sleep(0)
        self._hangups.stop()
        self._turns.stop()


def _listener_of(listen_socket: ListenSocket) -> Listener:
    """A listener at the socket of a listen_socket, which it takes over."""
    sock = socket.socket(fileno=listen_socket.descriptor)
    listen_socket.descriptor = -1
    sock.setblocking(False)
    return Listener(listen_socket.config, sock, listen_socket.place)


def _make_context(settings: IoSettings, config: ListenerConfig) -> Any:
    from beanstalk_server.server.front.tls_context import make_context  # only where there is TLS

    return make_context(config, lambda _: None, settings.place)  # the engine process has warned


def end_with_engine() -> None:
    """Let Linux end this process with the engine process: one that stands still would not see that its link has ended,
    and would keep the port. Elsewhere it has to be ended by hand."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def main() -> None:
    """Run an I/O process: the arguments are the descriptors of its two sockets, that of the counts, and its place
    there.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    end_with_engine()
    gc.disable()  # as in the engine process: nothing here makes reference cycles
    link, control, counts, place = map(int, sys.argv[1:])
    process = IoProcess(socket.socket(fileno=link), socket.socket(fileno=control), ConnectionCounts(counts, place))
    os.close(counts)
    # The engine process says when a line came, and how serious it is.
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[NoteHandler(process.send_note)])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(process.run())


if __name__ == "__main__":
    main()
