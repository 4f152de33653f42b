r"""Framing: takes a client's bytes apart into command lines and bodies.

    framer.feed(data)             take bytes as they come, in any pieces
    framer.next()                 find what comes next in them: LINE, BODY, …, or NEED_MORE
    framer.take()                 the line or the body just found, without its CR LF
    framer.begin_body(5, True)    five bytes and CR LF follow the line just taken

How the bytes were split makes no difference to what is found. Pieces are joined only when they must be, and only once.
A body that comes in pieces is kept once; an unwanted body is not kept at all.
"""

from __future__ import annotations

import io
from typing import Final

from beanstalk_server.queue.native import i64

LINE_LIMIT: Final = 224
"""The longest command line, in bytes, its CR LF included (protocol: BAD_FORMAT)."""

EXTENDED_LINE_LIMIT: Final = 1536
"""The longest line of a command with a key, in bytes: beanstalkd's limit leaves no room for a long key. A put-with that
has every attribute but `at`, which excludes `after`, with the longest names and the largest numbers, has 1,421."""

LONGEST_LINE_LIMIT: Final = 22_000
"""The longest line of a command with many ids, in bytes: a thousand of the longest."""

HTTP_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ")
"""How requests of HTTP begin. A browser sends them wherever a page tells it to, with commands in the body perhaps."""

NEED_MORE: Final = 0
"""Nothing: the bytes end in the middle of a line or a body."""
LINE: Final = 1
"""A command line, to be taken."""
LINE_TOO_LONG: Final = 2
"""The end of a line that was longer than the limit; nothing of it is kept."""
BODY: Final = 3
"""A body, to be taken."""
BODY_WITHOUT_CRLF: Final = 4
"""A body, and two bytes other than CR LF; nothing of it is kept."""
BODY_SKIPPED: Final = 5
"""The end of an unwanted body."""
BODY_LOST: Final = 6
"""The end of a body that did not fit into memory."""
LINE_LOST: Final = 7
"""A line with a body behind it that is longer than the limit: where the body ends is unknown. Nothing is consumed."""

_AGAIN: Final = -1

_CR: Final = 13
_LF: Final = 10
_CRLF: Final = b"\r\n"

_LONGEST_PREFIX: Final = 32


def _end_of_line(data: bytes, start: i64) -> i64:
    """The index of the CR LF that ends the line which begins at `start`; -1 if it does not end within LINE_LIMIT.

    As in beanstalkd, a line ends at its first CR, if LF follows, and nowhere else within the limit.
    """
    size: i64 = len(data)
    last = start + LINE_LIMIT - 1
    if last >= size:
        last = size - 1
    for index in range(start, last):
        if data[index] == _CR:
            if data[index + 1] == _LF:
                return index
            break
    return -1


class Prefixes:
    """Tells whether lines begin with one of these prefixes: of most lines by their first byte, because a `startswith`
    with several prefixes takes a thousand instructions.
    """

    def __init__(self, prefixes: tuple[bytes, ...]) -> None:
        self._prefixes = prefixes
        firsts = {prefix[0] for prefix in prefixes}
        self._is_first = bytes(byte in firsts for byte in range(256))

    def begin(self, line: bytes) -> bool:
        """Whether the line begins with one of them."""
        return len(line) > 0 and self._is_first[line[0]] != 0 and line.startswith(self._prefixes)


class Framer:
    """Takes one client's bytes apart.

    Args:
        long_commands: the prefixes of lines that may be as long as EXTENDED_LINE_LIMIT.
        longest_commands: those of lines that may be as long as LONGEST_LINE_LIMIT; also among the long ones.
        lost_commands: those of lines that are LINE_LOST, and not LINE_TOO_LONG, if they are too long.

    Attributes:
        content: the line or body that `next` has found, until it is taken: b"" must take its place.
        data: what is being taken apart; b"" if nothing is left of what has come.
        is_torn: the body that was BODY_SKIPPED or BODY_LOST did not end with CR LF.
    """

    def __init__(
        self,
        long_commands: tuple[bytes, ...] = (),
        longest_commands: tuple[bytes, ...] = (),
        lost_commands: tuple[bytes, ...] = (),
    ) -> None:
        self._long_commands = long_commands
        self._longest_commands = longest_commands
        self._lost_commands = lost_commands
        self.data = b""
        self._position: i64 = 0  # the first byte of `data` that has not been consumed
        # _queued: pieces that have come after `data`; None if there are none
        self._queued: list[bytes] | None = None  # not an empty list, because most clients never need one
        self._queued_size = 0  # their size in bytes
        self._in_long_line = False  # the beginning of a line that is too long has been dropped
        self._left: i64 = 0  # how many bytes of a body and its CR LF are still to come; 0 outside of a body
        self._body_event = BODY  # how the body will end: BODY while it is kept, BODY_SKIPPED or BODY_LOST
        self._body: io.BytesIO | None = None  # the first pieces of a body that comes in pieces
        self.content = b""
        self.is_torn = False

    def feed(self, data: bytes) -> None:
        if not self.data:
            self.data = data
            return
        if self._queued is None:
            self._queued = [data]
        else:
            self._queued.append(data)
        self._queued_size += len(data)

    def size(self) -> int:
        """How many bytes have been fed and not consumed."""
        return len(self.data) - self._position + self._queued_size

    def clear(self) -> None:
        self.data = b""
        self._position = 0
        self._queued = None
        self._queued_size = 0

    def reset(self) -> None:
        """Forget all that has been fed: a line comes next."""
        self.clear()
        self._in_long_line = False
        self._left = 0
        self._body = None

    def in_body(self) -> bool:
        """Whether the next bytes are of a body."""
        return self._left > 0

    def has_dropped(self) -> bool:
        """Whether the beginning of a line or a body has been consumed and dropped, and the rest is still to come."""
        return self._in_long_line or (self._left > 0 and self._body_event != BODY)

    def take_rest(self) -> bytes:
        """Hand over what has been fed and not handed over yet: the beginning of a body as well. A line comes next."""
        if self._queued is not None:
            self._join()
        rest = self.data[self._position :]
        if self._body is not None:
            rest = self._body.getvalue() + rest
            self._body = None
        self._left = 0
        self.clear()
        return rest

    def put_back(self, line: bytes) -> None:
        """Take back the line that was handed over last: it comes next again."""
        self.data = line + _CRLF + self.data[self._position :]
        self._position = 0

    def begin_body(self, size: int, is_wanted: bool) -> None:
        """Read the next bytes as a body of this size and its CR LF, and keep it if it is wanted."""
        self._left = size + 2
        self._body_event = BODY if is_wanted else BODY_SKIPPED

    def next(self) -> int:
        """Find what comes next: one of the constants above, LINE or BODY with something to take."""
        while self._position < len(self.data):
            data = self.data
            start = self._position
            if self._left:
                event = self._next_body(data, start)
            else:
                end = _end_of_line(data, start)
                if end >= 0:
                    self._consume(end + 2)
                    if self._in_long_line:
                        self._in_long_line = False
                        return LINE_TOO_LONG
                    self.content = data[start:end]
                    return LINE
                event = self._next_long_line(data, start)
            if event != _AGAIN:
                return event
        return NEED_MORE

    def take(self) -> bytes:
        """Hand over the line or body that `next` has just found."""
        content = self.content
        self.content = b""
        return content

    def begins_with(self, prefixes: tuple[bytes, ...]) -> bool:
        """Whether the next bytes are a line with one of these prefixes."""
        if self._left or self._in_long_line:
            return False
        if self._queued is not None and len(self.data) - self._position < _LONGEST_PREFIX:
            self._join()
        return self.data.startswith(prefixes, self._position)

    def ends_body(self) -> bool:
        """Whether all of a body that is kept has come."""
        return self._left > 0 and self._body_event == BODY and self.size() >= self._left

    def _next_long_line(self, data: bytes, start: i64) -> int:
        """Handle a line that does not end within LINE_LIMIT: it has not all come yet, may be longer, or is too long."""
        left = len(data) - start
        limit = LINE_LIMIT
        if left >= LINE_LIMIT and not self._in_long_line and data.startswith(self._long_commands, start):
            # A CR LF before the limit is not its end, as another CR is before it: whether it is must not be decided by
            # what has come behind it, or the leader to which the line is passed alone would wait for more.
            limit = EXTENDED_LINE_LIMIT
            if self._longest_commands and data.startswith(self._longest_commands, start):
                limit = LONGEST_LINE_LIMIT
            end = data.find(_CRLF, start + LINE_LIMIT - len(_CRLF), start + limit)
            if end >= 0:
                self._consume(end + 2)
                self.content = data[start:end]
                return LINE
        if left >= limit:
            if not self._in_long_line and data.startswith(HTTP_METHODS, start):
                self.content = data[start : start + LINE_LIMIT - len(_CRLF)]
                self._in_long_line = True
                self._consume(start + LINE_LIMIT)
                return LINE  # its beginning, which tells what it is
            if not self._in_long_line and self._lost_commands and data.startswith(self._lost_commands, start):
                return LINE_LOST
            # As in beanstalkd, it is dropped in pieces of LINE_LIMIT, and a CR LF that straddles two is not its end.
            self._in_long_line = True
            self._consume(start + LINE_LIMIT)
            return _AGAIN
        if self._queued is None:
            return NEED_MORE
        self._join()
        return _AGAIN

    def _next_body(self, data: bytes, start: i64) -> int:
        if self._body_event != BODY:
            return self._skip_body(data, start)
        end = start + self._left
        try:
            if end <= len(data) and self._body is None:  # all of it is here, in one piece
                self._left = 0
                self._consume(end)
                if data[end - 2] != _CR or data[end - 1] != _LF:
                    return BODY_WITHOUT_CRLF
                self.content = data[start : end - 2]
                return BODY
            end = min(end, len(data))
            self._left -= end - start
            self._consume(end)
            if self._body is None:
                self._body = io.BytesIO()
            self._body.write(data if end - start == len(data) else data[start:end])
            if not self._left:
                return self._end_body(self._body)
        except MemoryError:
            self._body_event = BODY_LOST
            self._body = None
            self.is_torn = True  # its end is unseen, unless more of it comes
            if not self._left:
                return BODY_LOST
        return _AGAIN

    def _skip_body(self, data: bytes, start: i64) -> int:
        """Drop a body that is not kept, up to its CR LF, which is looked at in one piece."""
        left = self._left
        available = len(data) - start
        if available >= left:
            end = start + left
            self.is_torn = data[end - 1] != _LF or (left > 1 and data[end - 2] != _CR)
            self._left = 0
            self._consume(end)
            return self._body_event
        dropped = min(available, max(left - len(_CRLF), 0))
        if dropped:
            self._left = left - dropped
            self._consume(start + dropped)
        elif self._queued is None:
            return NEED_MORE
        else:
            self._join()
        return _AGAIN

    def _end_body(self, body: io.BytesIO) -> int:
        size = body.seek(-len(_CRLF), io.SEEK_END)
        if body.read() != _CRLF:
            self._body = None
            return BODY_WITHOUT_CRLF
        body.truncate(size)
        self.content = body.getvalue()  # the bytes themselves, not a copy
        self._body = None
        return BODY

    def _consume(self, position: i64) -> None:
        if position < len(self.data):
            self._position = position
        elif self._queued is None:
            self.data = b""
            self._position = 0
        else:
            self._position = len(self.data)
            self._join()

    def _join(self) -> None:
        """Join the queued pieces to what is left of the data."""
        queued = self._queued
        assert queued is not None, "something is queued"
        if self._position < len(self.data):
            queued.insert(0, self.data[self._position :])
        self.data = b"".join(queued)
        self._position = 0
        self._queued = None
        self._queued_size = 0
