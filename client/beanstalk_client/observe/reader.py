"""Reads jobs and clients of a server with the rights of one token, and owns the sampler of that token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.commands import DEFAULT_TUBE, Command, make
from beanstalk_client.errors import Error, NotFoundError, UnknownCommandError
from beanstalk_client.job import Job
from beanstalk_client.observe.sampler import INTERVAL, STEP, Sampler, Shared
from beanstalk_client.statistics import Statistics

PAGE_SIZE: Final = 50
"""Number of jobs on a page of a tube."""

MAX_SUMMARIZED: Final = 8192
"""Maximum length of a body that is read for a line of a list, in bytes."""

Connect = Callable[[str], AsyncClient[bytes]]
"""Makes a client that is not connected, with this token; "" for the console's own."""

CLIENTS_A_SECOND: Final = 1000
"""Maximum entries of list-clients a second, on average: a millisecond or two of the server's time."""


class Reader:
    """Reads with the rights of a token.

    Args:
        users, interval, step: as of `Sampler`.

    Attributes:
        client: of pages, whose tube in use is for `using` to change.
        sampler: the figures that this token may see.
    """

    def __init__(
        self,
        connect: Connect,
        token: str = "",
        users: Callable[[], int] = lambda: 1,
        interval: float = INTERVAL,
        step: float = STEP,
    ) -> None:
        self._connect = connect
        self._token = token
        self.client: AsyncClient[bytes] = connect(token)
        self._lock = asyncio.Lock()  # `use` and what follows are two commands
        self._clients: Shared[list[Statistics]] = Shared()
        self.sampler: Sampler = Sampler(connect(token), users=users, interval=interval, step=step)

    def connect(self) -> AsyncClient[bytes]:
        """A client of its own, for an action."""
        return self._connect(self._token)

    @contextlib.asynccontextmanager
    async def using(self, tube: str) -> AsyncIterator[AsyncClient[bytes]]:
        """The client while it uses a tube that exists.

        Raises:
            NotFoundError: there is no such tube.
        """
        async with self._lock:
            await self.client.stats_tube(tube)  # or `use` would make a tube that has gone
            await self.client.use(tube)
            try:
                yield self.client
            finally:
                with contextlib.suppress(Error, OSError):  # without the right, it stays; a loss is reported elsewhere
                    await self.client.use(DEFAULT_TUBE)

    async def jobs(
        self, tube: str, state: str, following: str = "0", count: int = PAGE_SIZE
    ) -> tuple[str, list[Statistics]]:
        """A page of the jobs of a tube in a state, and where the next one begins; "" if there is none.

        A server that cannot list jobs is asked for the first one.

        Raises:
            NotFoundError: there is no such tube.
        """
        try:
            return await self.page(tube, state, following, count)
        except UnknownCommandError:
            return "", await self._first(tube, state)

    async def page(self, tube: str, state: str, following: str, count: int) -> tuple[str, list[Statistics]]:
        """The same, of a server that can list jobs."""
        return await self.client.execute(make._job_page(tube, state, following, count))

    async def _first(self, tube: str, state: str) -> list[Statistics]:
        if state == "reserved":
            return []
        async with self.using(tube) as client:
            peek = {"ready": client.peek_ready, "delayed": client.peek_delayed, "buried": client.peek_buried}[state]
            try:
                job: Job[bytes] = await peek()
                found = await client.stats_job(job.id)
            except NotFoundError:
                return []
        return [{**found, "size": len(job.body)}]

    async def bodies(self, jobs: Iterable[Statistics]) -> dict[int, bytes]:
        """The bodies of some jobs by their ids; those above MAX_SUMMARIZED and those of deleted jobs are missing."""
        ids = [int(job["id"]) for job in jobs if int(job.get("size", 0)) <= MAX_SUMMARIZED]
        found = await self.together([make.peek(each) for each in ids])
        return {job.id: job.body for job in found if isinstance(job, Job)}

    async def together(self, commands: Iterable[Command[Any]]) -> list[Any]:
        """Give commands that depend on no tube in use, all at once; return results, or errors that are replies."""
        results = await asyncio.gather(*map(self.client.execute, commands), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, Error):
                raise result
        return results

    async def list_clients(self) -> list[Statistics]:
        """The clients of the server: fetched once for all viewers, less often if there are many."""
        latest = self._clients.latest or []
        return await self._clients.get(self.client.list_clients, max(2.0, len(latest) / CLIENTS_A_SECOND))

    async def close(self) -> None:
        await self.sampler.close()
        await self.client.close()
