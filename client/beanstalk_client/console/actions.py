"""Runs the changes that an operator orders (kick, delete, move, ...) in the background, and keeps their log.

An action runs on a connection of its own, with the rights of who ordered it, goes on when the page is closed, tells how
far it is, and can be stopped between two steps. Where the server has a command for many jobs it is used
(clear-tube, move-jobs, redrive), STEP jobs at a time; otherwise commands for single jobs are sent BATCH at a time.

A job that is gone, or is in another state by now, is passed over and counted. What else the server refuses ends the
action; what has been done stays done.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.commands import Command, make
from beanstalk_client.console.security import who_has_most
from beanstalk_client.errors import (
    BeanstalkdError,
    Error,
    ForbiddenError,
    NotFoundError,
    TooLateError,
    UnauthorizedError,
    UnknownCommandError,
    shown,
)
from beanstalk_client.events import reason_of
from beanstalk_client.statistics import Statistics

STEP: Final = 1000
"""Jobs of one command: between two commands, progress is shown and the action can be stopped."""

BATCH: Final = 100
"""Number of commands that are sent together."""

HELD: Final = 10
"""Seconds for which a copy is delayed until the original is deleted."""

KEPT: Final = 500
"""Maximum number of actions in the log; beyond it, the oldest ended one of the token with most actions is evicted."""

MAX_RUNNING: Final = 16
"""Maximum number of actions of a token that run at a time."""

log: logging.Logger = logging.getLogger("beanstalk_client.console")

Client = AsyncClient[bytes]
Steps = AsyncIterator["Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """What a step has done: to how many jobs, and how many were passed over."""

    done: int = 0
    passed_over: int = 0
    note: str = ""


class RefusedError(Exception):
    """An action cannot be done; the message says why."""


@dataclass(slots=True)
class Action:
    """A change that an operator has ordered.

    Attributes:
        who: ordered it, as the log calls them.
        owner: whose token it was: only they see it.
        what: in words: "delete buried jobs of tube mails".
        total: how many jobs it is about; None if that is not known.
        note: what it has made, in words.
        state: "runs", "done", "stopped" or "failed".
    """

    id: int
    who: str
    owner: str
    what: str
    total: int | None
    began: datetime
    done: int = 0
    passed_over: int = 0
    note: str = ""
    state: str = "runs"
    error: str = ""
    seconds: float = 0.0
    is_to_stop: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def share(self) -> float:
        """Its progress, from 0 to 1."""
        return min((self.done + self.passed_over) / self.total, 1.0) if self.total else float(self.state != "runs")

    @property
    def told(self) -> str:
        """Its outcome, in a sentence."""
        jobs = f"{self.done:,} {'job' if self.done == 1 else 'jobs'}"
        parts = [self.note or jobs]
        if self.passed_over:
            parts.append(f"{self.passed_over:,} skipped (gone, or in another state)")
        if self.error:
            parts.append(self.error)
        return "; ".join(parts)


class Actions:
    """The actions of a console, and its log."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._log: dict[int, Action] = {}

    def of(self, owner: str) -> list[Action]:
        """The actions of a token, the latest first."""
        return [action for action in reversed(self._log.values()) if action.owner == owner]

    def find(self, owner: str, id: int) -> Action | None:
        action = self._log.get(id)
        return action if action is not None and action.owner == owner else None

    def begin(
        self,
        who: str,
        owner: str,
        what: str,
        total: int | None,
        connect: Callable[[], Client],
        steps: Callable[[Client], Steps],
    ) -> Action:
        """Begin an action.

        Raises:
            RefusedError: too many run.
        """
        if sum(action.state == "runs" for action in self.of(owner)) >= MAX_RUNNING:
            raise RefusedError(f"{MAX_RUNNING} actions are running: wait for one, or stop one.")
        action = Action(next(self._ids), who, owner, what, total, datetime.now(UTC))
        ended = [each for each in self._log.values() if each.state != "runs"]
        if len(self._log) >= KEPT and ended:
            most = who_has_most(each.owner for each in ended)
            del self._log[next(each.id for each in ended if each.owner == most)]
        self._log[action.id] = action
        action.task = asyncio.get_running_loop().create_task(_run(action, connect, steps))
        return action

    async def close(self) -> None:
        """Stop all that run."""
        running = [action.task for action in self._log.values() if action.task is not None and not action.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def _run(action: Action, connect: Callable[[], Client], steps: Callable[[Client], Steps]) -> None:
    began = time.monotonic()
    client = connect()
    try:
        async with contextlib.aclosing(steps(client)) as each:  # type: ignore[type-var]
            async for step in each:
                action.done += step.done
                action.passed_over += step.passed_over
                action.note = step.note or action.note
                action.seconds = time.monotonic() - began
                if action.is_to_stop:
                    action.state = "stopped"
                    break
                await asyncio.sleep(0)
            else:
                action.state = "done"
    except RefusedError as error:
        action.state, action.error = "failed", str(error)
    except (Error, OSError, ValueError, TypeError) as error:
        action.state, action.error = "failed", meaning(error)
    except asyncio.CancelledError:
        action.state = "stopped"
        raise
    finally:
        action.seconds = time.monotonic() - began
        with contextlib.suppress(Error, OSError):
            await client.close()
        who = json.dumps(shown(action.who, 80), ensure_ascii=False)  # people choose it: its quotes show where it ends
        token = f" (token {action.owner[:8]})" if action.owner else ""
        log.info("%s%s: %s: %s: %s", who, token, shown(action.what, 400), action.state, shown(action.told, 400))


def meaning(error: BaseException) -> str:
    """What an error means to an operator."""
    if isinstance(error, ForbiddenError):
        return "Permission denied: this token lacks the right to run this command (docs/access.md)."
    if isinstance(error, UnauthorizedError):
        return "The server does not accept this token."
    if isinstance(error, UnknownCommandError):
        command = (error.asked or "this command").split(" ")[0]
        return f"This server does not support {command}; beanstalk-server does."
    if isinstance(error, NotFoundError):
        return "There is no such job or tube, or this token may not see it."
    if isinstance(error, BeanstalkdError):
        text = error.args[0] if error.args and isinstance(error.args[0], str) else error.meaning
        return f"The server refused the command: {text or type(error).__name__}."
    if isinstance(error, OSError):
        return f"The server does not answer: {error}"
    return reason_of(error)


# ------------------------------------------------------------------------------------------- the steps


async def each_job(
    client: Client, ids: Iterable[int], command: Callable[[int], Command[Any]], tube: str = "", state: str = ""
) -> Steps:
    """Give a command for each of these jobs. Pass over those that are in another tube or state, if these are given."""
    rest = iter(ids)
    while batch := list(itertools.islice(rest, BATCH)):
        if state:
            found = await asyncio.gather(*map(client.stats_job, batch), return_exceptions=True)
            kept = [each for each, job in zip(batch, found, strict=True) if _is_in(job, tube, state)]
            if len(kept) < len(batch):
                yield Step(0, len(batch) - len(kept))
            batch = kept
        results = await asyncio.gather(*[client.execute(command(each)) for each in batch], return_exceptions=True)
        done = sum(not isinstance(result, BaseException) for result in results)
        passed = sum(isinstance(result, (NotFoundError, TooLateError)) for result in results)
        yield Step(done, passed)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, (NotFoundError, TooLateError)):
                raise result


def _is_in(job: Statistics | BaseException, tube: str, state: str) -> bool:
    if isinstance(job, NotFoundError):
        return False
    if isinstance(job, BaseException):
        raise job
    return job["state"] == state and tube in ("", job["tube"])


async def _pages(client: Client, tube: str, state: str, most: int) -> AsyncIterator[list[int]]:
    """The ids of the jobs of a tube in a state, `most` at most, a page at a time."""
    following, left = "0", most
    while following and left > 0:
        following, jobs = await client.execute(make._job_page(tube, state, following))
        yield [int(job["id"]) for job in jobs[:left]]
        left -= len(jobs)


async def all_in_state(
    client: Client, tube: str, state: str, most: int, command: Callable[[int], Command[Any]]
) -> Steps:
    """Give a command for each job of a tube in a state, as they are listed now, `most` at most."""
    try:
        async for ids in _pages(client, tube, state, most):
            async for step in each_job(client, ids, command):
                yield step
    except NotFoundError:  # the tube is gone
        return
    except UnknownCommandError:
        async for step in first_in_state(client, tube, state, most, command):
            yield step


async def first_in_state(
    client: Client, tube: str, state: str, most: int, command: Callable[[int], Command[Any]]
) -> Steps:
    """The same at a server that cannot list jobs, as beanstalkd cannot: the first one, again and again."""
    peeks = {"ready": client.peek_ready, "delayed": client.peek_delayed, "buried": client.peek_buried}
    await client.use(tube)
    for _ in range(most):
        try:
            job = await peeks[state]()
        except NotFoundError:
            return
        async for step in each_job(client, [job.id], command):
            yield step


async def reorder(client: Client, tube: str, state: str, most: int, command: Callable[[int], Command[Any]]) -> Steps:
    """The same as all_in_state for a command that changes the order of the jobs: all of them are listed first."""
    ids = [each async for page in _pages(client, tube, state, most) for each in page]
    async for step in each_job(client, ids, command):
        yield step


def kick(client: Client, tube: str, state: str, most: int) -> Steps:
    """Make jobs ready, by their ids: `kick` would kick delayed jobs if another client empties the buried ones."""
    return all_in_state(client, tube, state, most, make.kick_job)


async def in_parts(ask: Callable[[int], Awaitable[int]], most: int) -> Steps:
    """Give a command that is about some jobs at a time, until it has been about all."""
    left = most
    while left > 0:
        part = min(STEP, left)
        try:
            done = await ask(part)
        except NotFoundError:
            if left == most:
                raise
            return
        yield Step(done)
        left -= done
        if done < part:
            return


async def once(command: Awaitable[object], note: str = "") -> Steps:
    """Give one command. A number that it returns is that of the jobs."""
    done = await command
    yield Step(done if isinstance(done, int) else 0, note=note)


async def one_by_one(ids: Sequence[int], act: Callable[[int], Awaitable[str]]) -> Steps:
    """Do something for each of these jobs; `act` returns what, in words, which is shown if it is the only one."""
    for each in ids:
        try:
            note = await act(each)
        except NotFoundError:
            yield Step(0, 1)
        else:
            yield Step(1, note=note if len(ids) == 1 else "")


def bury(client: Client, ids: Sequence[int]) -> Steps:
    """Bury jobs with their own priorities: the protocol lets only who has reserved a job bury it."""

    async def bury_one(job_id: int) -> str:
        found = await client.stats_job(job_id)
        if found["state"] in ("buried", "reserved"):
            raise NotFoundError
        await client.bury(await client.reserve_job(job_id), int(found["pri"]))
        return ""

    return one_by_one(ids, bury_one)


def copy(client: Client, ids: Sequence[int], target: str) -> Steps:
    """Move single jobs, for which the protocol has no command: put a copy, then delete the job. Copies have new ids."""

    async def copy_one(job_id: int) -> str:
        return f"job {job_id} moved to tube {target} as job {await replace(client, job_id, target, None, {})}"

    return one_by_one(ids, copy_one)


async def change(client: Client, job_id: int, tube: str, body: bytes, settings: dict[str, int]) -> Steps:
    """Put a job again with another body."""
    new = await replace(client, job_id, tube, body, settings)
    yield Step(
        1, note=f"job {new} of tube {tube} replaces job {job_id}" if new != job_id else f"job {new} has the new body"
    )


async def replace(client: Client, job_id: int, target: str, body: bytes | None, settings: dict[str, int]) -> int:
    """Let a new job take the place of a job that is not reserved; return its id.

    A job with a key keeps its id, if it stays in its tube. Otherwise the new job is delayed until the other one is
    deleted, so that no worker gets both; a crash in between leaves both. The job is not reserved meanwhile, as to give
    it back would be a failed try.

    Raises:
        NotFoundError: it is gone, or a worker has reserved it.
        RefusedError: the connection was lost before the delete was answered.
    """
    found = await client.stats_job(job_id)
    if found["state"] == "reserved":
        raise NotFoundError
    key = str(found.get("key", ""))
    delay = settings.get("delay", int(found["time-left"]) if found["state"] == "delayed" and body is None else 0)
    how: dict[str, Any] = {
        "priority": settings.get("pri", int(found["pri"])),
        "ttr": settings.get("ttr", int(found["ttr"])),
    }
    content = (await client.peek(job_id)).body if body is None else body
    await client.use(target)
    if key and target == found["tube"]:
        new = await client.put_with(content, key=key, replace=True, delay=delay, **how)
        if new != job_id:
            await _take_back(client, new)
            raise NotFoundError
        return new
    how["delay"] = max(delay, HELD)
    new = await (client.put_with(content, key=key, **how) if key else client.put(content, **how))
    try:
        await client.delete(job_id)
    except BeanstalkdError:
        await _take_back(client, new)
        raise
    except (Error, OSError) as error:
        raise RefusedError(f"Job {new} of tube {target} was put, but job {job_id} may still exist: {error}") from None
    if delay < HELD:
        await _let_go(client, new, delay)
    return new


async def _take_back(client: Client, new: int) -> None:
    """Delete a job that was put for one that is gone; a worker may have it already."""
    with contextlib.suppress(NotFoundError):
        try:
            await client.cancel(new)
        except (TooLateError, UnknownCommandError):
            await client.delete(new)


async def _let_go(client: Client, new: int, delay: int) -> None:
    """Let a job that was held back be ready when it should be; at beanstalkd, one with a delay of its own is late."""
    with contextlib.suppress(NotFoundError, TooLateError):  # another client has kicked it
        try:
            await client.reschedule(new, delay)
        except UnknownCommandError:
            if not delay:
                await client.kick_job(new)
