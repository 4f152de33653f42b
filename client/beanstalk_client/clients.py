"""Clients that are kept for the next call: a blocking one for each thread, one for asyncio for each event loop.

    ThreadClients   closes a client when its thread ends; a forked child has clients of its own
    LoopClients     closes a client when its event loop ends
    SharedClient    lets commands for different tubes take turns on one connection

A put goes to the tube that its connection uses. So a command for another tube waits until those for the tube in use
have their replies, and until the server has answered its `use`: a server may refuse that, and the put behind it would
go to the tube before.

Must never let a command reach a server while another tube is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Generic

from beanstalk_client.job import TBody

if TYPE_CHECKING:
    from beanstalk_client.asynchronous import AsyncClient
    from beanstalk_client.blocking import Client


class ThreadClients(Generic[TBody]):
    """The blocking clients of a program's threads.

    Args:
        connect: makes a client.
    """

    def __init__(self, connect: Callable[[], Client[TBody]]) -> None:
        self._connect: Callable[[], Client[TBody]] = connect
        self._of_thread = threading.local()
        self._all: weakref.WeakSet[Client[TBody]] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self._all)

    def get(self) -> Client[TBody]:
        """This thread's client; a new one if it has none, or was forked since."""
        mine = self._of_thread.__dict__
        if mine.get("process") != os.getpid():  # a child must not speak on its parent's connection
            client, end = self._connect(), _End()
            mine.update(client=client, process=os.getpid(), end=end)
            self._all.add(client)
            weakref.finalize(end, _close_in, os.getpid(), client).atexit = False
        found: Client[TBody] = mine["client"]
        return found

    def close(self) -> None:
        """Close the clients of all threads, which must not be using them."""
        for client in list(self._all):
            client.close()
        self._all.clear()
        self._of_thread = threading.local()


class _End:
    """Ends with its thread, which any library may have made: `threading.current_thread()` may not."""


def _close_in(process: int, client: Client[TBody]) -> None:
    """Close the client of a thread that has ended; in a child process, it has only been copied."""
    if process == os.getpid():
        client.close()


class LoopClients(Generic[TBody]):
    """The clients of a program's event loops.

    Args:
        connect: makes a client that is not connected yet.
    """

    def __init__(self, connect: Callable[[], AsyncClient[TBody]]) -> None:
        self._connect: Callable[[], AsyncClient[TBody]] = connect
        self._of_loop: dict[asyncio.AbstractEventLoop, tuple[SharedClient[TBody], AsyncGenerator[None, None]]] = {}

    def __len__(self) -> int:
        return len(self._of_loop)

    async def get(self) -> SharedClient[TBody]:
        """This event loop's client."""
        loop = asyncio.get_running_loop()
        found = self._of_loop.get(loop)
        if found is None:
            for closed in [each for each in list(self._of_loop) if each.is_closed()]:
                await self._close(closed)
            client = SharedClient(self._connect())
            found = self._of_loop[loop] = client, self._until_end(loop, client)
            await found[1].__anext__()  # from now on, the loop ends it
        return found[0]

    async def close(self) -> None:
        """Close the client of this event loop."""
        await self._close(asyncio.get_running_loop())

    async def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        found = self._of_loop.pop(loop, None)
        if found is not None:
            await found[0].close()

    async def _until_end(
        self, loop: asyncio.AbstractEventLoop, client: SharedClient[TBody]
    ) -> AsyncGenerator[None, None]:
        """Close the client with the generators of its loop, as `asyncio.run` does at its end."""
        try:
            yield
        finally:
            if self._of_loop.get(loop, (None,))[0] is client:
                del self._of_loop[loop]
            await client.close()


class SharedClient(Generic[TBody]):
    """A client whose connection serves one tube after the other.

    Args:
        client: which nothing else uses.
    """

    def __init__(self, client: AsyncClient[TBody]) -> None:
        self._client: AsyncClient[TBody] = client
        self._tube = ""  # that is in use; "" while that is not certain
        self._running = 0  # commands that have the tube in use
        self._switch: asyncio.Task[None] | None = None
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def connect(self) -> None:
        """Connect now, which may take longer than a command waits for it."""
        await self._client.connect()

    async def close(self) -> None:
        """Close the connection. Commands that wait get a ConnectionLostError."""
        await self._client.close()

    @contextlib.asynccontextmanager
    async def using(self, tube: str) -> AsyncIterator[AsyncClient[TBody]]:
        """The client, which uses this tube until the block ends.

        Raises:
            OSError, Error: it cannot use it.
        """
        if tube != self._tube or self._waiting:
            await self._turn(tube)
        else:
            self._running += 1
        try:
            yield self._client
        finally:
            self._leave()

    async def _turn(self, tube: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tube, []).append(turn)
        self._go_on()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:  # it was granted in the same round
                self._leave()
            raise

    def _leave(self) -> None:
        self._running -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Let those have their turn who have waited for longest, if no other tube is in use."""
        if self._waiting and not self._running and self._switch is None:
            tube = next(iter(self._waiting))
            self._switch = asyncio.get_running_loop().create_task(self._use(tube))

    async def _use(self, tube: str) -> None:
        """Use a tube: a task of its own, as a `use` that is cancelled may have been sent."""
        try:
            if tube != self._tube:
                self._tube = ""
                await self._client.use(tube)
                self._tube = tube
        except (OSError, asyncio.CancelledError) as error:  # the others wait for the same server, and loop
            for waiting in list(self._waiting):
                self._grant(waiting, error)
        except Exception as error:
            self._grant(tube, error)
        else:
            self._grant(tube)
        finally:
            self._switch = None
            self._go_on()

    def _grant(self, tube: str, error: BaseException | None = None) -> None:
        for turn in self._waiting.pop(tube, ()):
            if turn.done():
                continue
            if error is None:
                self._running += 1
                turn.set_result(None)
            elif isinstance(error, asyncio.CancelledError):
                turn.cancel()
            else:
                turn.set_exception(copy.copy(error))
