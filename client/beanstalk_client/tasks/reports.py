"""Puts a report beside each buried job, for people, and deletes it when the job is gone.

The worker that runs the last attempt puts the report. If that worker is lost, another one finds the buried job.

Each has a key that names its job, so there is one for each job, and it is found by the job's id. No server knows what a
report is about: workers look from time to time which jobs are gone, since any client may delete them, and they expire.
Must never delete what is not known to be a report about a job that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
from collections.abc import AsyncIterator, Callable, Container, Iterable
from typing import TYPE_CHECKING, Any, Final

from beanstalk_client.clients import SharedClient
from beanstalk_client.consumer import start
from beanstalk_client.errors import Error, ExistsError, ForbiddenError, NotFoundError, TooLateError
from beanstalk_client.events import tell
from beanstalk_client.tasks.failure import ERRORS, REPORT_TTL, report

if TYPE_CHECKING:
    from beanstalk_client.asynchronous import AsyncClient

PAUSE: Final = 60.0
"""Seconds between two looks at least, and up to twice as many, so that workers do not look together."""

PAUSE_EACH: Final = 0.1
"""Seconds for each report that there is, if that is more: so a look takes no server more than ten commands a second."""

LOST: Final = {
    "disconnected": "WorkerLostError: the connection of the worker was lost in the last attempt",
    "timed-out": "WorkerLostError: the worker did not touch the job within its time to run in the last attempt",
}
"""The errors of jobs that the server itself has buried, by the reason of `stats-job`."""

_KEY: Final = re.compile(r"job-([0-9]+)")

log: logging.Logger = logging.getLogger("beanstalk_client.reports")


async def put_report(client: AsyncClient[bytes], job_id: int, body: bytes) -> None:
    """Put a report into the tube that a client uses: once for each job, where the server can do that."""
    if await client.knows("put-with"):
        with contextlib.suppress(TooLateError):  # a client has reserved the former one
            await client.put_with(body, key=f"job-{job_id}", replace=True, ttl=REPORT_TTL)
    else:
        await client.put(body)


class Reports:
    """Puts reports, on a connection of its own.

    Args:
        connect: makes a client that is not connected yet.
    """

    def __init__(self, connect: Callable[[], AsyncClient[bytes]]) -> None:
        self._client: SharedClient[bytes] = SharedClient(connect())

    async def __call__(self, tube: str, job_id: int, body: bytes) -> None:
        """Put a report about a job into a tube.

        Raises:
            Error, OSError: the server is not reached, or refuses it.
        """
        await self._client.connect()  # which waits for longer than a put
        async with self._client.using(tube) as client:
            await put_report(client, job_id, body)

    async def close(self) -> None:
        await self._client.close()


@contextlib.asynccontextmanager
async def tidied(
    connect: Callable[[], AsyncClient[bytes]],
    tubes: Iterable[str],
    errors: str = ERRORS,
    name_of: Callable[[bytes], str] | None = None,
) -> AsyncIterator[None]:
    """Report the jobs whose worker was lost in the last attempt, and delete the reports of jobs that are gone: at
    once, and from time to time while the block runs.

    Args:
        connect: makes a client that is not connected yet.
        tubes: where the jobs are.
        errors: what the names of the tubes of their reports end with.
        name_of: returns the name of the task from the body of a job.
    """
    tidying = start(_tidy(connect, list(tubes), errors, name_of), asyncio.get_running_loop())
    try:
        yield
    finally:
        tidying.cancel()
        await asyncio.wait([tidying])
        if not tidying.cancelled():
            tidying.result()  # it has failed


async def _tidy(
    connect: Callable[[], AsyncClient[bytes]], tubes: list[str], errors: str, name_of: Callable[[bytes], str] | None
) -> None:
    pause = PAUSE
    seen: set[tuple[int, int]] = set()
    is_first = True
    while True:
        try:
            async with connect() as client:
                seen = await report_lost(client, tubes, errors, seen, name_of)
                if not is_first:
                    reports = [tube + errors for tube in tubes]
                    pause = max(PAUSE, PAUSE_EACH * (len(seen) + await forget_gone(client, reports)))
        except (Error, OSError) as error:
            tell(log, logging.DEBUG, "reports-kept", f"cannot update the reports: {error}")
        is_first = False
        await asyncio.sleep(pause * (1 + random.random()))


async def report_lost(
    client: AsyncClient[bytes],
    tubes: Iterable[str],
    errors: str,
    seen: Container[tuple[int, int]] = (),
    name_of: Callable[[bytes], str] | None = None,
) -> set[tuple[int, int]]:
    """Put a report about each job that the server has buried because its worker was lost, unless there is one.

    Args:
        seen: the burials that need no look any more: what this function has returned before.

    Returns:
        the burials of these tubes: the id of the job, and how often it has been buried.
    """
    found: set[tuple[int, int]] = set()
    if not await client.knows("list-jobs"):
        return found
    for tube in tubes:
        with contextlib.suppress(NotFoundError, ForbiddenError):  # there is no such tube, or it may not be inspected
            async for job in client.list_jobs(tube, "buried"):
                burial = int(job["id"]), int(job["buries"])
                found.add(burial)
                if burial not in seen and job.get("reason") in LOST:
                    await _report_if_lost(client, tube, errors, burial[0], name_of)
    return found


async def _report_if_lost(
    client: AsyncClient[bytes], tube: str, errors: str, job_id: int, name_of: Callable[[bytes], str] | None
) -> None:
    with contextlib.suppress(NotFoundError, ExistsError):  # it is gone; or there is a report
        stats = await client.stats_job(job_id)
        tries = int(stats.get("tries", 0))
        if stats["state"] == "buried" and 0 < int(stats.get("max-tries", 0)) <= tries:
            fields = {} if name_of is None else {"task": name_of((await client.peek(job_id)).body)}
            body = report(job_id, tube, LOST[str(stats["reason"])], tries, by="reporter", **fields)
            await client.use(tube + errors)
            await client.put_with(body, key=f"job-{job_id}", ttl=REPORT_TTL)


async def forget_gone(client: AsyncClient[bytes], tubes: Iterable[str]) -> int:
    """Delete the reports in these tubes whose jobs are gone; return how many were looked at.

    Nothing is done if the server cannot list jobs, or if the user may not inspect all tubes: a job that it may not see
    would be taken for one that is gone.
    """
    if not await client.knows("list-jobs"):
        return 0
    try:
        await client.stats()  # which asks for the right to inspect all tubes
    except ForbiddenError:
        return 0
    seen = 0
    for tube in tubes:
        with contextlib.suppress(NotFoundError):  # there is no such tube
            async for found in client.list_jobs(tube, "ready"):
                matched = _KEY.fullmatch(str(found.get("key", "")))
                if matched:
                    seen += 1
                    await _forget_if_gone(client, int(found["id"]), int(matched[1]))
    return seen


async def _forget_if_gone(client: AsyncClient[bytes], report_id: int, job_id: int) -> None:
    try:
        await client.stats_job(job_id)
    except NotFoundError:
        with contextlib.suppress(NotFoundError):  # a client has deleted it
            if _is_about((await client.peek(report_id)).body, job_id):
                await client.delete(report_id)


def _is_about(body: bytes, job_id: int) -> bool:
    """Whether this is a report about a job, and not another job with such a key."""
    try:
        content: Any = json.loads(body)
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("job") == job_id and "error" in content and "buried" in content
