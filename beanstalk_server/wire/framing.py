r"""Bytes to lines and bodies: where a command line ends, when it is too long, and what body follows it.

    framer.feed(data)             take bytes as they come, in any pieces
    framer.next()                 find what comes next in them: LINE, BODY, …, or NEED_MORE
    framer.take()                 the line or the body just found, without its CR LF
    framer.begin_body(5, True)    five bytes and CR LF follow the line just taken

How the bytes were split makes no difference to what is found. Bytes that wait behind others are joined only when they
are needed, and then once. A body that comes in pieces is kept once; of one that nobody wants, nothing is kept.

Must never know what a line means: only how long it is, how it begins, and where it ends.
"""

from __future__ import annotations

import io
from typing import Final

LINE_LIMIT: Final = 224
"""The longest command line, in bytes, its CR LF included (protocol: BAD_FORMAT)."""

EXTENDED_LINE_LIMIT: Final = 320
"""The same for the commands that may be longer: beanstalkd's limit has no room for a long key."""

NEED_MORE: Final = 0
"""Nothing: the bytes end in the midst of a line or a body."""
LINE: Final = 1
"""A command line, to be taken."""
LINE_TOO_LONG: Final = 2
"""The end of a line that was longer than the limit; nothing of it is kept."""
BODY: Final = 3
"""A body, to be taken."""
BODY_WITHOUT_CRLF: Final = 4
"""A body, and two bytes other than CR LF; nothing of it is kept."""
BODY_SKIPPED: Final = 5
"""The end of a body that nobody wants."""
BODY_LOST: Final = 6
"""The end of a body that did not fit into memory."""

_AGAIN: Final = -1

_CR: Final = 13
_LF: Final = 10
_CRLF: Final = b"\r\n"

_LONGEST_BEGINNING: Final = 32


class Framer:
    """Takes one client's bytes apart.

    Args:
        long_commands: how the lines begin that may be as long as EXTENDED_LINE_LIMIT.
    """

    __slots__ = (
        "_body",  # what has come of a body that comes in pieces
        "_body_event",  # how the body will end: BODY while it is kept, BODY_SKIPPED or BODY_LOST
        "_content",  # the line or body that `next` has found, until it is taken
        "_data",  # the bytes that are being taken apart
        "_in_long_line",  # the beginning of a line that is too long has been dropped
        "_left",  # how many bytes of a body and its CR LF are still to come; 0 outside of a body
        "_long_commands",
        "_position",  # where the first byte of `_data` is that is part of nothing yet
        "_queued",  # what has come behind `_data`; None when nothing has
        "_queued_size",  # its bytes
    )

    def __init__(self, long_commands: tuple[bytes, ...] = ()) -> None:
        self._long_commands = long_commands
        self._data = b""
        self._position = 0
        self._queued: list[bytes] | None = None  # not an empty list, for those thousands that never need one
        self._queued_size = 0
        self._in_long_line = False
        self._left = 0
        self._body_event = BODY
        self._body: io.BytesIO | None = None
        self._content = b""

    def feed(self, data: bytes) -> None:
        """Take bytes, to stand behind those that are there."""
        if not self._data:
            self._data = data
            return
        if self._queued is None:
            self._queued = [data]
        else:
            self._queued.append(data)
        self._queued_size += len(data)

    def size(self) -> int:
        """How many bytes have been fed that are part of nothing yet."""
        return len(self._data) - self._position + self._queued_size

    def clear(self) -> None:
        """Forget what has been fed."""
        self._data = b""
        self._position = 0
        self._queued = None
        self._queued_size = 0

    def begin_body(self, size: int, is_wanted: bool) -> None:
        """Read the next bytes as a body of this size and its CR LF, and keep it if it is wanted."""
        self._left = size + 2
        self._body_event = BODY if is_wanted else BODY_SKIPPED

    def next(self) -> int:
        """Find what comes next: one of the constants above, LINE or BODY with something to take."""
        while self._data:
            data = self._data
            start = self._position
            if self._left:
                event = self._next_body(data, start)
            else:
                # As in beanstalkd, a line ends at its first CR, if LF follows, and nowhere else within the limit.
                end = data.find(b"\r", start, start + LINE_LIMIT - 1)
                if end >= 0 and end + 1 < len(data) and data[end + 1] == _LF:
                    self._pass(end + 2)
                    if self._in_long_line:
                        self._in_long_line = False
                        return LINE_TOO_LONG
                    self._content = data[start:end]
                    return LINE
                event = self._next_long_line(data, start)
            if event != _AGAIN:
                return event
        return NEED_MORE

    def take(self) -> bytes:
        """The line or body that `next` has just found; it is not kept here any longer."""
        content = self._content
        self._content = b""
        return content

    def begins_with(self, beginnings: tuple[bytes, ...]) -> bool:
        """Whether a line is next that begins with one of these."""
        if self._left or self._in_long_line:
            return False
        if self._queued is not None and len(self._data) - self._position < _LONGEST_BEGINNING:
            self._join()
        return self._data.startswith(beginnings, self._position)

    def ends_body(self) -> bool:
        """Whether the rest of a body that is kept has come."""
        return self._left > 0 and self._body_event == BODY and self.size() >= self._left

    def _next_long_line(self, data: bytes, start: int) -> int:
        """No line ends within LINE_LIMIT: it has not all come yet, it may be longer, or it is too long."""
        left = len(data) - start
        limit = LINE_LIMIT
        if left >= LINE_LIMIT and not self._in_long_line and data.startswith(self._long_commands, start):
            end = data.find(_CRLF, start, start + EXTENDED_LINE_LIMIT)
            if end >= 0:
                self._pass(end + 2)
                self._content = data[start:end]
                return LINE
            limit = EXTENDED_LINE_LIMIT
        if left >= limit:
            # As in beanstalkd, it is dropped in pieces of LINE_LIMIT, and a CR LF that straddles two is not its end.
            self._in_long_line = True
            self._pass(start + LINE_LIMIT)
            return _AGAIN
        if self._queued is None:
            return NEED_MORE
        self._join()
        return _AGAIN

    def _next_body(self, data: bytes, start: int) -> int:
        """Take what has come of a body."""
        end = start + self._left
        try:
            if end <= len(data) and self._body is None and self._body_event == BODY:  # it is here in one piece
                self._left = 0
                self._pass(end)
                if data[end - 2] != _CR or data[end - 1] != _LF:
                    return BODY_WITHOUT_CRLF
                self._content = data[start : end - 2]
                return BODY
            end = min(end, len(data))
            self._left -= end - start
            self._pass(end)
            if self._body_event == BODY:
                if self._body is None:
                    self._body = io.BytesIO()
                self._body.write(data if end - start == len(data) else data[start:end])
                if not self._left:
                    return self._end_body(self._body)
        except MemoryError:
            self._body_event = BODY_LOST
            self._body = None
        if not self._left:
            return self._body_event
        return _AGAIN

    def _end_body(self, body: io.BytesIO) -> int:
        size = body.seek(-len(_CRLF), io.SEEK_END)
        if body.read() != _CRLF:
            self._body = None
            return BODY_WITHOUT_CRLF
        body.truncate(size)
        self._content = body.getvalue()  # the bytes themselves, and no copy of them
        self._body = None
        return BODY

    def _pass(self, position: int) -> None:
        """What comes before this position has been taken."""
        if position < len(self._data):
            self._position = position
        elif self._queued is None:
            self._data = b""
            self._position = 0
        else:
            self._position = len(self._data)
            self._join()

    def _join(self) -> None:
        """Let what is queued follow what is left of the data."""
        queued = self._queued
        assert queued is not None, "something is queued"
        if self._position < len(self._data):
            queued.insert(0, self._data[self._position :])
        self._data = b"".join(queued)
        self._position = 0
        self._queued = None
        self._queued_size = 0
