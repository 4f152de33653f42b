"""Finds out where replies end, in bytes that come in any pieces.

    framer.find_end(data, 0)      where the reply ends that begins there, or goes on; -1 if its end is to come
    framer.first                  the first line of the reply that has just ended, without its CR LF
    framer.reserved               the ids of the jobs in RESERVED lines, until the caller clears the list

Nothing of a body is kept.
"""

from __future__ import annotations

from typing import Final

LONGEST_LINE: Final = 1 << 10
"""Bytes of the first line of a reply, at most: a longer one comes from no server of ours."""

LOST: Final = -2
"""Instead of a position: what comes is no reply."""

# The first letters of replies that may have a body, and of no more than two others each.
_F: Final = 70
_O: Final = 79
_R: Final = 82


class ReplyFramer:
    """Finds out where replies end."""

    def __init__(self) -> None:
        self._body = 0  # bytes of a body that are to come, with its CR LF
        self._jobs = 0  # jobs of a batch that are to come
        self._line = b""  # the beginning of a line
        self.first = b""
        self.is_within = False  # a reply has begun and not ended
        self.reserved: list[int] = []

    def clear(self) -> None:
        """Forget the reply whose end is to come: it never will."""
        self._body = self._jobs = 0
        self._line = b""
        self.is_within = False
        self.reserved.clear()

    def find_end(self, data: bytes, position: int) -> int:
        """Where the reply ends that begins at this position, or goes on there; -1 if it does not end in these bytes,
        LOST if they are no reply."""
        if not self.is_within:
            # Of most replies, all is here.
            following = data.find(b"\n", position, position + LONGEST_LINE) + 1
            if following:
                line = data[position : following - 2]
                self.first = line
                letter = data[position]
                if letter != _R and letter != _F and letter != _O:
                    return following
                body = self._body_behind(line)
                if body < 0:
                    return LOST
                if not self._jobs and following + body <= len(data):
                    return following + body
                self.is_within = True
                self._body = body
                if not body and self._ends_part():
                    return following
                return self._go_on(data, following)
            self.is_within = True
            self.first = b""
        return self._go_on(data, position)

    def _go_on(self, data: bytes, position: int) -> int:
        end = len(data)
        while position < end:
            if self._body:
                taken = min(self._body, end - position)
                self._body -= taken
                position += taken
                if self._body:
                    return -1
                if self._ends_part():
                    return position
                continue
            following = data.find(b"\n", position)
            if following < 0:
                self._line += data[position:]
                return -1 if len(self._line) <= LONGEST_LINE else LOST
            line = data[position:following]
            position = following + 1
            if self._line:
                line = self._line + line
                self._line = b""
            line = line[:-1]
            if not self.first:
                self.first = line
            self._body = self._body_behind(line)
            if self._body < 0:
                return LOST
            if not self._body and self._ends_part():
                return position
        return -1

    def _body_behind(self, line: bytes) -> int:
        """How many bytes of a body follow a line, with its CR LF; -1 if it is no line of a reply."""
        word, space, numbers = line.partition(b" ")
        if not space:
            return 0
        if word == b"RESERVED" or word == b"FOUND" or word == b"OK":
            job_id, _, size = numbers.rpartition(b" ")
            if not size.isdigit():
                return -1
            if word == b"RESERVED":
                if not job_id.isdigit():
                    return -1
                self.reserved.append(int(job_id))
            return int(size) + 2
        if word == b"RESERVED_BATCH":
            if not numbers.isdigit():
                return -1
            self._jobs = int(numbers) + 1  # with this line, as a part of its own
        return 0

    def _ends_part(self) -> bool:
        """Note that a line or a job has ended; return whether the reply has."""
        if self._jobs:
            self._jobs -= 1
        if self._jobs:
            return False
        self.is_within = False
        return True
