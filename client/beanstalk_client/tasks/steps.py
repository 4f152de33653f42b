"""Runs commands that are written once, as generators, with a blocking client or with one for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, Union

if TYPE_CHECKING:
    from beanstalk_client.tasks.message import Serializer

Step = Union[Callable[[Any], Any], float]
"""A command, as a function of a client: `methodcaller("stats_job", 17)`. A number: wait for this many seconds."""

Steps = Generator[Step, Any, Any]
"""Steps, without I/O: the answer of each command is sent to the generator, and its error is thrown into it."""


class TaskQueue(Protocol):
    """What results and runs need of `Tasks`."""

    serializer: Serializer

    @property
    def is_in_memory(self) -> bool:
        """Whether its jobs are put into a queue in memory."""

    @property
    def schedules(self) -> Sequence[Any]:
        """The schedules of `cron` and `every`, in this order."""

    def _do(self, tube: str, steps: Steps) -> Any: ...

    async def _ado(self, tube: str, steps: Steps) -> Any: ...


def run_steps(steps: Steps, client: Callable[[], Any]) -> Any:
    """Take steps with a blocking client, and return what they return.

    Args:
        client: returns the client, for each command.

    Raises:
        RuntimeError: a step waits, and an event loop runs in this thread.
    """
    try:
        step = steps.send(None)
        while True:
            try:
                answer = _take(step, client)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


def _take(step: Step, client: Callable[[], Any]) -> Any:
    if callable(step):
        return step(client())
    if asyncio._get_running_loop() is not None:  # in memory, where plain functions run in a loop
        raise RuntimeError("the job cannot run before this call returns: the queue is in memory")
    time.sleep(step)
    return None


async def run_steps_async(steps: Steps, client: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
    """As `run_steps`, in asyncio.

    Args:
        client: returns a context manager that enters the client, for each command.
    """
    try:
        step = steps.send(None)
        while True:
            try:
                answer = await _take_async(step, client)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value


async def _take_async(step: Step, client: Callable[[], AbstractAsyncContextManager[Any]]) -> Any:
    if not callable(step):
        return await asyncio.sleep(step)
    async with client() as entered:
        answer = step(entered)
        return await answer if inspect.isawaitable(answer) else answer
