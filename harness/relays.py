"""A relay of TCP connections that can be cut, delayed or silenced: a network that fails on demand.

It passes bytes between its clients and one address.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

PIECE: Final = 1 << 16
"""Bytes that are read at a time."""

AHEAD: Final = 16
"""Pieces that may wait in one direction of a connection before no more are read."""

RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: a close that the other end sees as a reset."""

WITHIN: Final = 60.0
"""Seconds that a change of its ways, or its end, may take."""


def _close(client: socket.socket, _: asyncio.Task[None]) -> None:
    client.close()


class Relay:
    """Listens on a port of 127.0.0.1, and passes each connection on; in a thread of its own.

    Args:
        target: host and port that it connects to. It may be changed, for the connections that come then.

    Attributes:
        address: where it listens.
    """

    address: tuple[str, int]

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self._rewritten: dict[bytes, bytes] = {}
        self._delay = 0.0
        self._is_cut = False
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._call(self._listen())

    @property
    def port(self) -> int:
        return self.address[1]

    def rewrite(self, old: str, new: str) -> None:
        """Say this in the place of that from now on, where the target says it: of the same length, and whole in one
        piece of what is read. So a program that receives an address from the target connects through another relay.
        """
        if len(old) != len(new):
            raise ValueError(f"{old} must be replaced by text of the same length, not by {new}")
        self._rewritten = self._rewritten | {old.encode(): new.encode()}

    def cut(self) -> None:
        """Reset all connections, and those that come from now on."""
        self._call(self._change(is_cut=True))

    def silence(self) -> None:
        """Pass nothing more, not even an end, as if a cable had been pulled: what is sent waits, and is passed after
        `mend`, as TCP would send it again. Connections that come meanwhile are accepted, and hear nothing.
        """
        self._call(self._change(is_silent=True))

    def delay(self, seconds: float) -> None:
        """Pass everything that is read from now on so much later, in both directions."""
        self._call(self._change(delay=seconds))

    def mend(self) -> None:
        """Pass everything at once again."""
        self._call(self._change())

    def close(self) -> None:
        """End the relay and its connections."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN)
        if self._thread.is_alive():
            raise AssertionError(f"the relay did not exit within {WITHIN:g} s")
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN)

    # In its thread

    async def _listen(self) -> None:
        self._passes = asyncio.Event()
        self._passes.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = ("127.0.0.1", self._listener.getsockname()[1])
        self._loop.add_reader(self._listener, self._accept)

    async def _change(self, *, is_cut: bool = False, is_silent: bool = False, delay: float = 0.0) -> None:
        self._is_cut, self._delay = is_cut, delay
        if is_silent:
            self._passes.clear()
        else:
            self._passes.set()
        if is_cut:
            await self._end_connections()

    async def _end(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        await self._end_connections()

    async def _end_connections(self) -> None:
        ended = list(self._connections)
        for connection in ended:
            connection.cancel()
        for result in await asyncio.gather(*ended, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _accept(self) -> None:
        """Take a connection at once: a task that is cancelled while it accepts one would lose it."""
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._listener.accept()
            connection = self._loop.create_task(self._serve(client))
            self._connections.add(connection)
            connection.add_done_callback(partial(_close, client))  # it may end before it has begun
            connection.add_done_callback(self._connections.discard)

    async def _serve(self, client: socket.socket) -> None:
        """One connection, from its begin to its end: it ends when both directions have, or one is broken."""
        with client, socket.socket() as target:
            client.setblocking(False)
            target.setblocking(False)
            try:
                if self._is_cut:
                    raise ConnectionResetError
                await self._passes.wait()
                await self._loop.sock_connect(target, self.target)
                for sock in (client, target):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with asyncio.TaskGroup() as group:
                    for source, sink in ((client, target), (target, client)):
                        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(AHEAD)
                        group.create_task(self._read(source, waiting, from_target=source is target))
                        group.create_task(self._pass(sink, waiting))
            except* (OSError, asyncio.CancelledError):
                for sock in (client, target):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    async def _read(
        self, source: socket.socket, waiting: asyncio.Queue[tuple[float, bytes]], *, from_target: bool
    ) -> None:
        data = b"more"
        while data:
            await self._passes.wait()
            data = await self._loop.sock_recv(source, PIECE)
            if from_target:
                for old, new in self._rewritten.items():
                    data = data.replace(old, new)
            await waiting.put((self._loop.time() + self._delay, data))

    async def _pass(self, sink: socket.socket, waiting: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"more"
        while data:
            due, data = await waiting.get()
            await asyncio.sleep(max(due - self._loop.time(), 0.0))
            await self._passes.wait()
            if data:
                await self._loop.sock_sendall(sink, data)
            else:
                with contextlib.suppress(OSError):  # its other end may be gone by now
                    sink.shutdown(socket.SHUT_WR)
