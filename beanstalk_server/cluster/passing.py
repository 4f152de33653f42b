"""A client that is passed on: its bytes go to the leader as they are, and the leader's replies come back as they are.

What stands here knows only what it needs for the day when the leader goes: which commands have been passed on and not
answered, which tube the client uses, and which ones it watches. So it takes the bytes apart, as the leader does, and
finds out which reply belongs to which command.

    when the leader goes, and the client waits for            it
    --------------------------------------------------------  -----------------------------------------------
    nothing, or commands that change nothing                  stays; the next leader gets these commands again
    a command that changes something, or one unknown here     is disconnected: nobody knows what became of it
    the rest of a reply                                       is disconnected

What the client has sent and nobody has been passed waits for the next leader. A client that authenticates does so
here; the leader is told the user, and never sees a token.

Must never know sockets, links, or who leads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from beanstalk_server.access.user import CONSUME, User
from beanstalk_server.version import PROTOCOL
from beanstalk_server.wire import replies
from beanstalk_server.wire.commands import DIALECTS, LONG_COMMANDS
from beanstalk_server.wire.framing import LINE, LINE_TOO_LONG, NEED_MORE, Framer
from beanstalk_server.wire.grammar import AUTH, Arguments, parse_auth

REPEATABLE: Final = frozenset(
    {
        "ignore",
        "list-tube-used",
        "list-tubes",
        "list-tubes-watched",
        "peek",
        "peek-buried",
        "peek-delayed",
        "peek-keyed",
        "peek-ready",
        "reserve",
        "reserve-batch",
        "reserve-with-timeout",
        "stats",
        "stats-job",
        "stats-tube",
        "use",
        "watch",
    }
)
"""Commands that may be given again to another leader. A job that the old one may have reserved is ready at the new one,
and what is used and watched is as it was. The timeout of a reserve begins anew."""

CHANGE: Final = b""
"""Stands for a command that may not be given again."""

QUIT: Final = b"quit"
DEFAULT: Final = "default"
LONGEST_LINE: Final = 1 << 10
"""Bytes of the first line of a reply, at most: a longer one comes from no such leader."""

_CRLF: Final = b"\r\n"
_DIALECT: Final = DIALECTS[PROTOCOL]
_ARGUMENTS: Final = Arguments()


class PassingSession:
    """One client that is passed on.

    Args:
        authenticate: finds the user whose token this is, or None: auth is a command. None if it is not.
        user: who the client has proved to be; None where nobody is asked.
        used: the tube that it uses.
        watched: the tubes that it watches, in their order.
    """

    __slots__ = (
        "_authenticate",
        "_framer",
        "_in_body",  # the body of the last command has not all come
        "_in_long_line",  # the beginning of a line that is too long has been passed on
        "_input",  # has come, and has not been taken apart
        "_input_ended",
        "_is_opaque",  # the replies are not those of its commands: bytes are passed, and nothing is known of them
        "_needs_more",  # there is no whole command in what has come
        "_position",  # where in the first piece of the input begins what has not been taken apart
        "_quits",  # the last command is a quit: what follows it is nobody's business
        "_replies",
        "_token_line",  # an auth command that waits until those before it have been answered
        "_unanswered",  # commands that have been passed on: their lines, or CHANGE
        "_unsent",  # has been taken apart, and the leader has had no room for it
        "closed",  # nothing more is done for the client, once it has been sent what `take_replies` returns
        "input_size",
        "local_replies",
        "max_job_size",
        "used",
        "user",
        "user_has_changed",
        "watched",
    )

    def __init__(
        self,
        authenticate: Callable[[str], User | None] | None = None,
        user: User | None = None,
        used: str = DEFAULT,
        watched: list[str] | None = None,
    ) -> None:
        self._authenticate = authenticate
        self._framer = Framer(LONG_COMMANDS)
        self._in_body = False
        self._in_long_line = False
        self._input: deque[bytes] = deque()
        self._position = 0
        self._input_ended = False
        self._is_opaque = False
        self._needs_more = True
        self._quits = False
        self._replies = ReplyFramer()
        self._token_line = b""
        self._unanswered: deque[bytes] = deque()
        self._unsent = b""
        self.closed = False
        self.input_size = 0  # bytes that have come and have not been passed on
        self.local_replies = b""
        self.max_job_size = 0  # of the leader
        self.used = used
        self.user = user
        self.user_has_changed = (
            False  # the leader is to be told, before it gets more commands: whoever does so unsets it
        )
        self.watched = Watched([DEFAULT] if watched is None else watched)
        if user is not None:
            self.judge_watched(user)

    # What the client sends

    def receive(self, data: bytes) -> None:
        """Take bytes from the client. After a quit, they are dropped."""
        if self._quits or self.closed:
            return
        self._needs_more = False
        self._input.append(data)
        self.input_size += len(data)
        if not self._is_opaque:
            self._framer.feed(data)

    def end_input(self) -> None:
        """Note that the client sends nothing more."""
        self._input_ended = True

    def begin(self, max_job_size: int) -> None:
        """Be passed on to this leader from now on, which has been told who the client is, and what it has told the
        leader before: the commands that one has not answered are the first."""
        self.max_job_size = max_job_size
        self._unsent = b"".join([line + _CRLF for line in self._unanswered])
        self.user_has_changed = False

    def take_commands(self, limit: int) -> bytes:
        """Bytes for the leader, not more than the limit; b"" if there are none for now.

        If `user_has_changed` is set after that, the leader must be told, and there may be more.
        """
        if not self._unsent:
            if self._is_opaque:
                self._unsent = self._take_input(self.input_size)
            elif self._token_line:
                self._try_token()
            if not (self._unsent or self._token_line or self.user_has_changed or self.closed):
                self._unsent = self._frame(limit)
        data = self._unsent
        if len(data) <= limit:
            self._unsent = b""
            return data
        self._unsent = data[limit:]
        return data[:limit]

    @property
    def has_more(self) -> bool:
        """Whether there may be something to pass on, if the leader has room or has answered something."""
        return bool(self._unsent or self._token_line) or (self.input_size > 0 and not self._needs_more)

    def take_replies(self) -> bytes:
        """What is answered here, without the leader."""
        data = self.local_replies
        self.local_replies = b""
        return data

    @property
    def has_ended(self) -> bool:
        """Whether the client has sent all that it will, and that has been passed on. Half a line never is."""
        if not self._input_ended or self._unsent or self._token_line:
            return False
        return self._needs_more or not self.input_size

    @property
    def is_done(self) -> bool:
        """Whether the client has sent all that it will, and nothing that it is to be answered."""
        return self.has_ended and not self._unanswered

    # What the leader sends

    def note_replies(self, data: bytes) -> None:
        """Look at the bytes of the leader, which the client gets as they are."""
        if self._is_opaque:
            return
        unanswered = self._unanswered
        for reply in self._replies.feed(data):
            if not unanswered or (self._in_body and len(unanswered) == 1):
                self._be_opaque()
                return
            line = unanswered.popleft()
            if line and line[0] in b"uwi":
                self._note_tubes(line, reply)
        if self._replies.is_lost:
            self._be_opaque()

    # When the leader goes, or comes to be here

    def lose_leader(self) -> bool:
        """Forget the leader; False if the client must be disconnected."""
        self._unsent = b""
        return self.may_stay

    @property
    def may_stay(self) -> bool:
        """Whether nothing that the client has been promised, or may hope for, is lost with the leader."""
        if self._is_opaque or self._quits or self.closed or self._in_body or self._in_long_line:
            return False
        return not self._replies.is_within and CHANGE not in self._unanswered

    def take_all(self) -> bytes:
        """All commands that have not been answered: the client is passed on no more. None may be but those of a client
        that may stay."""
        lines = b"".join([line + _CRLF for line in self._unanswered])
        if self._token_line:
            lines += self._token_line + _CRLF
        self._unanswered.clear()
        return lines + self._take_input(self.input_size)

    # Taking commands apart

    def _frame(self, limit: int) -> bytes:
        """Take commands apart until there are as many bytes of them, or no more have come; return the bytes."""
        framer = self._framer
        before = size = framer.size()
        while before - size < limit:
            event = framer.next()
            if event == NEED_MORE:
                left = framer.size()
                if left != size and not self._in_body:
                    self._in_long_line = True
                size = left
                self._needs_more = True
                break
            if event == LINE:
                line = framer.take()
                if self._authenticate is not None and line.startswith(AUTH):
                    return self._take_auth(line, before - size, size - framer.size())
                self._note_command(line)
                if self._quits:
                    size = framer.size()
                    break
            elif event == LINE_TOO_LONG:
                self._in_long_line = False
                self._unanswered.append(CHANGE)
            else:
                self._in_body = False  # its command is noted
            size = framer.size()
        data = self._take_input(before - size)
        if self._quits:
            self._drop_input()
        return data

    def _note_command(self, line: bytes) -> None:
        word, space, text = line.partition(b" ")
        command = (_DIALECT.with_arguments if space else _DIALECT.without_arguments).get(word)
        if command is None:
            self._quits = line.startswith(QUIT) and b"\0" not in line
        elif command.name in REPEATABLE:
            self._unanswered.append(line)
            return
        elif command.has_body and command.read is not None and command.read(text, _ARGUMENTS):
            put = _ARGUMENTS.put
            assert put is not None, "the arguments of put have been read"
            if not put.trailing or put.size > self.max_job_size:
                self._in_body = True
                self._framer.begin_body(put.size, False)
        elif line == QUIT:
            self._quits = True
        self._unanswered.append(CHANGE)

    def _take_input(self, size: int) -> bytes:
        """The next bytes that have come."""
        if not size:
            return b""
        self.input_size -= size
        pieces = self._input
        first = pieces[0]
        start = self._position
        if len(first) - start > size:
            self._position = start + size
            return first[start : start + size]
        taken = [first[start:] if start else first]
        size -= len(first) - start
        pieces.popleft()
        self._position = 0
        while size:
            first = pieces[0]
            if len(first) > size:
                taken.append(first[:size])
                self._position = size
                break
            taken.append(pieces.popleft())
            size -= len(first)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def _drop_input(self) -> None:
        self._framer.clear()
        self._input.clear()
        self._position = self.input_size = 0

    def _be_opaque(self) -> None:
        self._is_opaque = True
        self._unanswered.clear()
        self._framer.clear()

    # Users

    def _take_auth(self, line: bytes, before: int, size: int) -> bytes:
        """Take an auth command out of the input; return what comes before it, which must be answered first."""
        data = self._take_input(before)
        self._take_input(size)
        self._token_line = line
        if not data:
            self._try_token()
        return data

    def _try_token(self) -> None:
        """Find the user of the token, if everything before it has been answered."""
        if self._unanswered:
            return
        token = parse_auth(self._token_line)
        self._token_line = b""
        assert self._authenticate is not None, "auth is a command"
        user = self._authenticate(token) if token else None
        if user is None:
            self.local_replies += replies.UNAUTHORIZED
            self.closed = True
            self._drop_input()
        else:
            self.user = user
            self.user_has_changed = True
            self.judge_watched(user)
            self.local_replies += replies.AUTHENTICATED

    # Tubes

    def judge_watched(self, user: User) -> None:
        """Note that the leader lets this user watch only what it may consume from, as it has the same users."""
        if not user.everywhere & CONSUME:
            for name in self.watched.names[::-1]:
                if not user.rights(name) & CONSUME:
                    self.watched.remove(name)

    def _note_tubes(self, line: bytes, reply: bytes) -> None:
        """Note what has come of a use, a watch or an ignore."""
        word, _, name = line.partition(b" ")
        if word == b"use":
            if reply.startswith(b"USING "):
                self.used = name.decode("ascii")
        elif reply.startswith(b"WATCHING "):
            if word == b"watch":
                self.watched.add(name.decode("ascii"))
            else:
                self.watched.remove(name.decode("ascii"))


class Watched:
    """The tubes that a client watches, in the order in which its leader has them."""

    __slots__ = ("_positions", "names")

    def __init__(self, names: list[str]) -> None:
        self.names = list(names)
        self._positions = {name: position for position, name in enumerate(names)}

    def add(self, name: str) -> None:
        if name not in self._positions:
            self._positions[name] = len(self.names)
            self.names.append(name)

    def remove(self, name: str) -> None:
        """Remove one. As in beanstalkd, the last one takes its place."""
        position = self._positions.pop(name, -1)
        if position < 0:
            return
        last = self.names.pop()
        if last != name:
            self.names[position] = last
            self._positions[last] = position


class ReplyFramer:
    """Finds out where replies end."""

    __slots__ = (
        "_body",  # bytes of a body that are to come, with its CR LF
        "_first",  # the first line of the reply whose end is to come
        "_jobs",  # jobs of a batch that are to come
        "_line",  # the beginning of a line
        "is_lost",  # what comes is no reply
    )

    def __init__(self) -> None:
        self._body = 0
        self._first = b""
        self._jobs = 0
        self._line = b""
        self.is_lost = False

    @property
    def is_within(self) -> bool:
        """Whether a reply has begun and not ended."""
        return bool(self._body or self._first or self._line)

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the first line, without its CR LF, of each reply that has ended."""
        ended: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._body:
                taken = min(self._body, end - position)
                self._body -= taken
                position += taken
                if not self._body:
                    self._end_part(ended)
                continue
            following = data.find(b"\n", position)
            if following < 0:
                self._line += data[position:]
                self.is_lost = self.is_lost or len(self._line) > LONGEST_LINE
                break
            line = data[position:following]
            position = following + 1
            if self._line:
                line = self._line + line
                self._line = b""
            self._take_line(line[:-1], ended)
        return ended

    def _take_line(self, line: bytes, ended: list[bytes]) -> None:
        word, space, numbers = line.partition(b" ")
        if not self._first:
            self._first = line
        if space and word in (b"OK", b"FOUND", b"RESERVED"):
            size = numbers.rpartition(b" ")[2]
            if size.isdigit():
                self._body = int(size) + len(_CRLF)
                return
            self.is_lost = True
        elif word == b"RESERVED_BATCH" and numbers.isdigit():
            self._jobs = int(numbers)
            return
        self._end_part(ended)

    def _end_part(self, ended: list[bytes]) -> None:
        if self._jobs:
            self._jobs -= 1
        if not self._jobs:
            ended.append(self._first)
            self._first = b""
