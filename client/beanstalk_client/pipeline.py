"""Pipelines: commands that are sent together, whose replies are there at the end of a block.

    with queue.pipeline() as together:                async with queue.pipeline() as together:
        first = together.put("a")                         first = together.put("a")
        second = together.put("b")                        second = together.put("b")
    print(first.result(), second.result())            print(first.result(), second.result())

What differs between the two is who sends and who waits, which is the client's to know. Must never do any I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from beanstalk_client.commands import Command, Pipelined, Reply
from beanstalk_client.errors import ReservationLostError, UnsupportedError
from beanstalk_client.job import TBody

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Callable

    from beanstalk_client.session import Session

T = TypeVar("T")


def may_be_sent(reply: Reply[Any], session: Session) -> bool:
    """Whether there is a way to say a command to this server; if not, that is its reply."""
    if reply.command.needs or not session.is_origin(reply.command.origin):
        try:
            reply.command = session.fit(reply.command)
        except (ReservationLostError, UnsupportedError) as error:
            reply.set_exception(error)
            return False
    return True


class _Collecting(Pipelined[TBody]):
    """What a pipeline has been given.

    Args:
        send: sends the commands and waits for all replies.
        raises: whether the end of the block raises the first error.
    """

    def __init__(self, send: Callable[[list[Reply[Any]]], Any], session: Session, raises: bool) -> None:
        self._send = send
        self._session = session
        self._raises = raises
        self._replies: list[Reply[Any]] = []
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._replies)

    def execute(self, command: Command[T]) -> Reply[T]:
        if self._is_ended:
            raise RuntimeError("the pipeline has ended")
        reply = Reply(command)
        self._replies.append(reply)
        return reply

    def _raise_first(self) -> None:
        if self._raises:
            for reply in self._replies:
                error = reply.exception()
                if error is not None:
                    raise error


class Pipeline(_Collecting[TBody]):
    """The pipeline of a blocking client.

    Example:
        with Client() as queue, queue.pipeline() as together:  # a Pipeline
            together.put("a")
            together.put("b")
    """

    def __enter__(self) -> Pipeline[TBody]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send all, unless the block was left by an error."""
        self._is_ended = True
        if kind is None:
            self._send(self._replies)
            self._raise_first()


class AsyncPipeline(_Collecting[TBody]):
    """The pipeline of a client for asyncio.

    Example:
        async with AsyncClient() as queue, queue.pipeline() as together:  # an AsyncPipeline
            together.put("a")
            together.put("b")
    """

    async def __aenter__(self) -> AsyncPipeline[TBody]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Send all, unless the block was left by an error."""
        self._is_ended = True
        if kind is None:
            await self._send(self._replies)
            self._raise_first()
