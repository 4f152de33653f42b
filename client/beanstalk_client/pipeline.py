"""Pipelines: commands that are sent together, whose replies are there at the end of a block.

    with queue.pipeline() as together:                async with queue.pipeline() as together:
        first = together.put("a")                         first = together.put("a")
        second = together.put("b")                        second = together.put("b")
    print(first.result(), second.result())            print(first.result(), second.result())

What differs between the two is who sends and who waits, which is the client's to know. Must never do any I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from beanstalk_client import commands
from beanstalk_client.commands import DEFAULT_DELAY, DEFAULT_PRIORITY, DEFAULT_TTR, FRACTIONS, Command, Duration
from beanstalk_client.errors import UnsupportedError
from beanstalk_client.job import Job, JobOrID, TBody, id_of

if TYPE_CHECKING:
    import asyncio
    import datetime
    from collections.abc import Awaitable
    from types import TracebackType
    from typing import Callable

    from beanstalk_client.session import Session
    from beanstalk_client.statistics import Statistics

T = TypeVar("T")


class Reply(Generic[T]):
    """What becomes of a command of a pipeline. To a connection it is who waits, as a future of asyncio is.

    Attributes:
        is_there: whether it has come, be it a result or an error.
    """

    __slots__ = (
        "_error",
        "_is_cancelled",
        "_result",
        "command",
        "is_there",
        "last",  # a future that is done with it, for the last one of a pipeline
        "required",  # what the server must be asked for before the command may be sent; "" if it need not be asked
    )

    _result: T

    def __init__(self, command: Command[T], required: str) -> None:
        self.command = command
        self.required = required
        self.is_there = False
        self.last: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_cancelled = False

    def __repr__(self) -> str:
        what = "is not there" if not self.is_there else repr(self._result if self._error is None else self._error)
        return f"<reply to {self.command.name}: {what}>"

    def result(self) -> T:
        """The result of the command, as the client's own method would return it.

        Raises:
            Error: as the client's own method would raise it.
            RuntimeError: the block of the pipeline has not ended, or was left by an error.
        """
        if self._error is not None:
            raise self._error
        if not self.is_there:
            raise RuntimeError("the reply is not there: a pipeline sends its commands at the end of its block")
        return self._result

    def exception(self) -> Exception | None:
        """The error that the command has ended with, or None."""
        return self._error

    def may_be_sent(self, session: Session) -> bool:
        """Whether there is a way to say the command to this server; if not, that is the reply."""
        if self.required:
            try:
                self.command = session.fit(self.required, self.command)
            except UnsupportedError as error:
                self.set_exception(error)
                return False
        return True

    def settle(self, result: T | Exception) -> None:
        """This is the result, or the error."""
        if isinstance(result, Exception):
            self.set_exception(result)
        else:
            self.set_result(result)

    def set_result(self, result: T) -> None:
        self._result = result
        self._end()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self.is_there = True
        last = self.last
        if last is not None and not last.done():
            last.set_result(None)

    def done(self) -> bool:
        return self.is_there

    def cancel(self) -> None:
        self._is_cancelled = not self.is_there

    def cancelled(self) -> bool:
        return self._is_cancelled


class _Commands(Generic[TBody]):
    """The commands that a pipeline takes: those of a client, each of which returns a Reply at once."""

    __slots__ = ("_is_ended", "_raises", "_replies", "_session")

    def __init__(self, session: Session, raises: bool) -> None:
        self._session = session
        self._raises = raises
        self._replies: list[Reply[Any]] = []
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._replies)

    def _add(self, command: Command[T], required: str = "") -> Reply[T]:
        if self._is_ended:
            raise RuntimeError("the pipeline has ended")
        reply = Reply(command, FRACTIONS if command.whole is not None else required)
        self._replies.append(reply)
        return reply

    def _take(self) -> list[Reply[Any]]:
        """All that is to be sent; there will be no more."""
        self._is_ended = True
        return self._replies

    def _raise_first(self) -> None:
        if self._raises:
            for reply in self._replies:
                error = reply.exception()
                if error is not None:
                    raise error

    # Jobs

    def put(
        self,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
    ) -> Reply[int]:
        return self._add(commands.put(self._session.encode(body), priority, delay, ttr))

    def put_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
    ) -> Reply[int]:
        return self._add(commands.put_keyed(key, self._session.encode(body), priority, delay, ttr), "put-keyed")

    def replace_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
    ) -> Reply[int]:
        return self._add(commands.replace_keyed(key, self._session.encode(body), priority, delay, ttr), "replace-keyed")

    def put_with(
        self,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
        *,
        key: str = "",
        replace: bool = False,
        at: float | datetime.datetime | None = None,
        tries: int = 0,
        backoff: Duration = 0,
        ttl: Duration = 0,
        hold: Duration = 0,
    ) -> Reply[int]:
        command = commands.put_with(
            self._session.encode(body),
            priority,
            delay,
            ttr,
            key=key,
            replace=replace,
            at=at,
            tries=tries,
            backoff=backoff,
            ttl=ttl,
            hold=hold,
        )
        return self._add(command, "put-with")

    def cancel(self, job: JobOrID[TBody]) -> Reply[None]:
        return self._add(commands.cancel(id_of(job)))

    def cancel_keyed(self, key: str) -> Reply[None]:
        return self._add(commands.cancel_keyed(key))

    def reschedule(self, job: JobOrID[TBody], delay: Duration) -> Reply[None]:
        return self._add(commands.reschedule(id_of(job), delay))

    def reschedule_keyed(self, key: str, delay: Duration) -> Reply[None]:
        return self._add(commands.reschedule_keyed(key, delay))

    def reserve(self, timeout: Duration | None = None) -> Reply[Job[TBody]]:
        return self._add(commands.reserve(timeout))

    def reserve_job(self, id: int) -> Reply[Job[TBody]]:
        return self._add(commands.reserve_job(id))

    def reserve_batch(self, limit: int, timeout: Duration | None = None) -> Reply[list[Job[TBody]]]:
        """Unlike the client's, for servers that know the command only."""
        return self._add(commands.reserve_batch(limit, timeout))

    def delete(self, job: JobOrID[TBody]) -> Reply[None]:
        return self._add(commands.delete(id_of(job)))

    def release(self, job: JobOrID[TBody], priority: int | None = None, delay: Duration = DEFAULT_DELAY) -> Reply[None]:
        return self._add(commands.release(self._session.held(job), priority, delay))

    def bury(self, job: JobOrID[TBody], priority: int | None = None) -> Reply[None]:
        return self._add(commands.bury(self._session.held(job), priority))

    def touch(self, job: JobOrID[TBody]) -> Reply[None]:
        return self._add(commands.touch(self._session.held(job)))

    def kick(self, limit: int) -> Reply[int]:
        return self._add(commands.kick(limit))

    def kick_job(self, job: JobOrID[TBody]) -> Reply[None]:
        return self._add(commands.kick_job(id_of(job)))

    def peek(self, id: int) -> Reply[Job[TBody]]:
        return self._add(commands.peek(id))

    def peek_ready(self) -> Reply[Job[TBody]]:
        return self._add(commands.peek_ready())

    def peek_delayed(self) -> Reply[Job[TBody]]:
        return self._add(commands.peek_delayed())

    def peek_buried(self) -> Reply[Job[TBody]]:
        return self._add(commands.peek_buried())

    def peek_keyed(self, key: str) -> Reply[Job[TBody]]:
        return self._add(commands.peek_keyed(key))

    # Tubes and statistics

    def use(self, tube: str) -> Reply[str]:
        return self._add(commands.use(tube))

    def using(self) -> Reply[str]:
        return self._add(commands.using())

    def watch(self, tube: str) -> Reply[int]:
        return self._add(commands.watch(tube))

    def ignore(self, tube: str) -> Reply[int]:
        return self._add(commands.ignore(tube))

    def watching(self) -> Reply[list[str]]:
        return self._add(commands.watching())

    def tubes(self) -> Reply[list[str]]:
        return self._add(commands.tubes())

    def stats(self) -> Reply[Statistics]:
        return self._add(commands.stats())

    def stats_job(self, job: JobOrID[TBody]) -> Reply[Statistics]:
        return self._add(commands.stats_job(id_of(job)))

    def stats_tube(self, tube: str) -> Reply[Statistics]:
        return self._add(commands.stats_tube(tube))

    def pause_tube(self, tube: str, delay: Duration) -> Reply[None]:
        return self._add(commands.pause_tube(tube, delay))

    def clear_tube(self, tube: str) -> Reply[int]:
        return self._add(commands.clear_tube(tube))

    def redrive(self, tube: str, limit: int) -> Reply[int]:
        return self._add(commands.redrive(tube, limit))

    def move_jobs(self, tube: str, state: str, target: str, limit: int) -> Reply[int]:
        return self._add(commands.move_jobs(tube, state, target, limit))


class Pipeline(_Commands[TBody]):
    """The pipeline of a blocking client.

    Args:
        send: sends the commands and waits for all replies.
    """

    __slots__ = ("_send",)

    def __init__(self, send: Callable[[list[Reply[Any]]], None], session: Session, raises: bool) -> None:
        super().__init__(session, raises)
        self._send = send

    def __enter__(self) -> Pipeline[TBody]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send all, unless the block was left by an error."""
        replies = self._take()
        if kind is None:
            self._send(replies)
            self._raise_first()


class AsyncPipeline(_Commands[TBody]):
    """The pipeline of a client for asyncio.

    Args:
        send: sends the commands and waits for all replies.
    """

    __slots__ = ("_send",)

    def __init__(self, send: Callable[[list[Reply[Any]]], Awaitable[None]], session: Session, raises: bool) -> None:
        super().__init__(session, raises)
        self._send = send

    async def __aenter__(self) -> AsyncPipeline[TBody]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send all, unless the block was left by an error."""
        replies = self._take()
        if kind is None:
            await self._send(replies)
            self._raise_first()
