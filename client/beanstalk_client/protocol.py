"""The client's half of the protocol as a state machine: commands out in order, bytes in, results out.

    send(command)  -> bytes for the wire; the command is pending
    receive(bytes) -> what has become of the commands whose replies are whole, in the order of the commands
    lose(error)    -> the connection is gone: what has become of all that are pending

Any split of the bytes gives the same results. A reply that is an error is a result like any other, and nothing here
raises. A reply that makes no sense ends it: every command that is pending then has a ConnectionLostError for its
result, `is_lost` is set, and all that follows is ignored.

Must never do any I/O, nor read a clock.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, TypeVar, Union

from beanstalk_client.commands import Command
from beanstalk_client.errors import ConnectionLostError, Error, ForbiddenError, shown
from beanstalk_client.replies import MAX_BODY, MAX_DIGITS, RESERVED, batch_of, nonsense
from beanstalk_client.session import Session

T = TypeVar("T")

Result = Union[T, Error]
"""What has become of a command."""

Done = tuple[Command[Any], Any]
"""A command whose reply is whole, and its Result."""

MAX_LINE: Final = 1024
"""The longest line of a reply, in bytes: a name has 200 at most."""

CRLF: Final = b"\r\n"


class Protocol:
    """One connection's conversation.

    Args:
        session: what outlives the connection; the reservations, uses and watches that replies tell of are noted there.

    Attributes:
        has_replied: a reply has come.
        is_lost: the connection is gone, or what it says makes no sense.
        is_nonsense: the latter.
        missing: how many bytes must come at least before there can be another result; 1 if that is not known.
    """

    def __init__(self, session: Session | None = None) -> None:
        self.session: Session = Session() if session is None else session
        self._pending: deque[Command[Any]] = deque()  # the commands without a result, in their order
        self._pieces: list[bytes] = []  # what has come of a reply that is not whole
        self._count = 0  # the replies that are still to come of the batch that is being read
        self._jobs: list[Any] = []  # those that have come of it
        self.missing: int = 1
        self.has_replied: bool = False
        self.is_lost: bool = False
        self.is_nonsense: bool = False

    @property
    def pending(self) -> int:
        """The number of commands without a result."""
        return len(self._pending)

    @property
    def first(self) -> Command[Any] | None:
        """The command whose reply comes next."""
        return self._pending[0] if self._pending else None

    @property
    def is_in_reply(self) -> bool:
        """Whether a reply has begun to come, and is not whole."""
        return bool(self._pieces or self._count)

    def send(self, command: Command[T]) -> bytes:
        """Let the command be pending, and return what must be sent."""
        self._pending.append(command)
        return command.data

    def receive(self, data: bytes) -> list[Done]:
        """Read what the server has sent: return the commands whose replies are whole, each with its Result."""
        if self.is_lost:
            return []
        if self._pieces:
            self._pieces.append(data)
            self.missing -= len(data)
            if self.missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        self.missing = 1
        done: list[Done] = []
        pending, position, size = self._pending, 0, len(data)
        try:
            while position < size:
                if not pending:
                    raise ValueError("a reply without a command")
                end = data.find(CRLF, position)
                if end - position > MAX_LINE or (end < 0 and size - position > MAX_LINE + 1):
                    raise ValueError("a line without an end")
                if end < 0:
                    self._pieces.append(data[position:])
                    break
                command = pending[0]
                reply = RESERVED if self._count else command.reply
                line = data[position:end]
                end += 2
                if reply.opening and line.startswith(reply.opening):
                    words = line.split(b" ")
                    digits = words[-1]
                    length = int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else -1
                    if not 0 <= length <= MAX_BODY:
                        nonsense(line)
                    body_end = end + length
                    if size < body_end + 2:
                        self.missing = body_end + 2 - size
                        self._pieces.append(data[position:])
                        break
                    if not data.startswith(CRLF, body_end):
                        raise ValueError("a body without an end")
                    result = reply.read_body(words, data[end:body_end], self.session)
                    end = body_end + 2
                else:
                    result = reply.read(line)
                position = end
                if self._count:
                    if not line.startswith(RESERVED.opening):
                        raise ValueError("a batch without its jobs")
                    self._jobs.append(result)
                    self._count -= 1
                    if self._count:
                        continue
                    result, self._jobs = batch_of(self._jobs), []
                elif reply.is_batch and type(result) is int:
                    self._count = result
                    continue
                pending.popleft()
                if command.effect is not None:
                    command.effect(command.about, result, self.session)
                if type(result) is ForbiddenError:
                    result.used = self.session.used
                done.append((command, result))
        except ValueError as error:
            self.is_nonsense = True
            if data.startswith(b"HTTP/", position):
                reason = f"the server speaks HTTP: use its port for jobs ({shown(error)})"
            else:
                reason = f"invalid reply from the server ({shown(error)})"
            done += self.lose(ConnectionLostError(reason, reason=reason, maybe_done=True))
        self.has_replied = self.has_replied or bool(done)
        return done

    def lose(self, error: ConnectionLostError) -> list[tuple[Command[Any], ConnectionLostError]]:
        """Note that the connection is gone: return all commands that are pending, each with this error."""
        lost = [(command, error) for command in self._pending]
        self._pending.clear()
        self._pieces = []
        self.is_lost = True
        return lost
