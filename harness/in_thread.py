"""Runs this server in a thread of the test's own process, so that a test can look into it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from beanstalk_server import Config, Server, server_of
from conformance.address import Address
from harness.caller import Caller

T = TypeVar("T")

WITHIN: Final = 60.0
"""Seconds that a start, a call or a stop may take."""


class ServerThread:
    """A server with its own event loop, which the factory makes.

    Attributes:
        server: the server. Only its own thread may change it: see `call`.
        address: where it listens.
    """

    server: Server
    address: Address

    def __init__(
        self,
        config: Config,
        loop_factory: Callable[[], asyncio.AbstractEventLoop],
        make: Callable[[Config], Any] = server_of,
    ) -> None:
        self._config = config
        self._make = make
        self._loop_factory = loop_factory
        self._started = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._started.wait(WITHIN):
            raise AssertionError(f"the server did not start within {WITHIN:g} s")
        if self._error:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except Exception as error:
            self._error = error
            self._started.set()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with self._make(self._config) as self.server:
            self.address = self.server.address
            self._started.set()
            await self._stop.wait()

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in the server's thread; return its result."""

        async def work() -> T:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(WITHIN)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's thread to its end; return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN)

    def stop(self) -> None:
        self.call(self._stop.set)
        self._thread.join(WITHIN)
        if self._thread.is_alive():
            raise AssertionError(f"the server did not stop within {WITHIN:g} s")
        if self._error:
            raise self._error

    def connect(self) -> Caller:
        return Caller(self.address)
