"""stats, list-tubes, stats-tubes, list-clients, drain and undrain: each asks all shards, and makes one reply of theirs.

What is asked may be done twice, so it is simply asked again where a leader has gone, and waits where there is none. The
command is given by its own name to one shard, which counts it, and to the others as what they do not count.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.shards.branch import Router
from beanstalk_server.wire import listings, replies
from beanstalk_server.wire.listings import PAGE_ENTRIES, page
from beanstalk_server.wire.statistics import StatisticsSum, rows_of, yaml

_OK: Final = b"OK "
_CRLF: Final = b"\r\n"
_HEAD: Final = b"---\n"
_DEFAULT: Final = b"- default\n"
_NO_ENTRIES: Final = b"[]\n"
_DEFAULT_NAME: Final = b"default"
_ENTRY: Final = b'- {name: "'

MERGED_ENTRIES: Final = 4096
"""How many tubes all shards together are asked for, for one page: they are sorted in some milliseconds."""

LEAST_ENTRIES: Final = 8
"""How many each is asked for at least."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Operation:
    """One command that is under way. No other command of the client is begun before `router.finish`, which is called
    exactly once, perhaps in `begin`."""

    __slots__ = ()

    def begin(self) -> None:
        """Ask the branches whatever it takes."""
        raise NotImplementedError

    def let_go(self) -> None:
        """The client is gone: refer to nothing that refers to this, because the collector may be off."""

    def on_leader(self, shard: int) -> None:
        """The branch of this shard has got a place, after it had none."""


class _Answer:
    """What one shard answers an operation that asks each of them once."""

    __slots__ = ("_operation", "_position")

    def __init__(self, operation: _AskingAll, position: int) -> None:
        self._operation = operation
        self._position = position

    def take(self, reply: bytes) -> None:
        self._operation.on_reply(self._position, reply)


class _AskingAll(Operation):
    """Asks each of the shards once, and counts the command at the first of them only.

    Args:
        router: the client's router.
        shards: all shards, that of the default tube first.
    """

    __slots__ = ("_is_finished", "_outstanding", "_router", "_shards")

    def __init__(self, router: Router, shards: list[int]) -> None:
        self._router = router
        self._shards = shards
        self._outstanding = len(shards)
        self._is_finished = False

    def _ask(self, first: bytes, other: bytes) -> None:
        for position, shard in enumerate(self._shards):
            self._router.branch(shard).ask(other if position else first, _Answer(self, position).take)

    def on_reply(self, position: int, reply: bytes) -> None:
        """Take what the shard at this position answers. A refusal is the client's answer: all shards refuse alike."""
        self._outstanding -= 1
        if self._is_finished:
            return
        if not self._is_done(reply):
            self._end(reply)
            return
        self._add(position, reply)
        if not self._outstanding:
            self._end(self._reply())

    def _end(self, reply: bytes) -> None:
        self._is_finished = True
        self._router.finish(reply)

    def _is_done(self, reply: bytes) -> bool:
        """Whether a shard has done what it was asked."""
        return reply.startswith(_OK)

    def _add(self, position: int, reply: bytes) -> None:
        raise NotImplementedError

    def _reply(self) -> bytes:
        raise NotImplementedError


class SummedStatistics(_AskingAll):
    """stats: the rows of which each shard has its part are added up as the replies come, so that nobody is held up."""

    __slots__ = ("_sum",)

    def __init__(self, router: Router, shards: list[int]) -> None:
        super().__init__(router, shards)
        self._sum = StatisticsSum()

    def begin(self) -> None:
        self._ask(b"stats", b"shard-stats")

    def _add(self, position: int, reply: bytes) -> None:
        self._sum.add(rows_of(_HEAD + _text(reply)), is_first=not position)

    def _reply(self) -> bytes:
        return replies.ok(yaml(self._sum.rows()))


class AllTubes(_AskingAll):
    """list-tubes: what each shard has, one after the other.

    No name is looked at: each shard has the tubes that belong to it, and the default tube, which is always its first.
    So a hundred thousand tubes are a few copies.
    """

    __slots__ = ("_lists",)

    def __init__(self, router: Router, shards: list[int]) -> None:
        super().__init__(router, shards)
        self._lists = [b""] * len(shards)

    def begin(self) -> None:
        self._ask(b"list-tubes", b"shard-list-tubes")

    def _add(self, position: int, reply: bytes) -> None:
        lines = _text(reply)
        self._lists[position] = lines.removeprefix(_DEFAULT) if position else lines

    def _reply(self) -> bytes:
        return replies.ok_list(self._lists)


class AllClients(_AskingAll):
    """list-clients: those whom each shard counts, one after the other. No shard counts a client of another one."""

    __slots__ = ("_lists",)

    def __init__(self, router: Router, shards: list[int]) -> None:
        super().__init__(router, shards)
        self._lists = [b""] * len(shards)

    def begin(self) -> None:
        self._ask(b"list-clients", b"shard-list-clients")

    def _add(self, position: int, reply: bytes) -> None:
        entries = _text(reply)
        self._lists[position] = b"" if entries == _NO_ENTRIES else entries

    def _reply(self) -> bytes:
        return listings.reply_of(self._lists)


class PageOfTubes(_AskingAll):
    """stats-tubes: the first tubes of what each shard has, in the order of their names.

    The names are divided among the shards by a hash, so that each is asked for its share of a page and some more. The
    page ends before the first tube that a shard has not been asked for: it may be shorter than the client wants.

    Args:
        router, shards: as above.
        first: the name from which on; "" for the beginning.
        count: the most tubes, as the client says.
    """

    __slots__ = ("_asked", "_count", "_entries", "_first", "_next")

    def __init__(self, router: Router, shards: list[int], first: str, count: int) -> None:
        super().__init__(router, shards)
        self._first = first
        self._count = min(count, PAGE_ENTRIES)
        self._asked = min(self._count + 1, max(MERGED_ENTRIES // len(shards), LEAST_ENTRIES))
        self._entries: list[tuple[bytes, bytes]] = []  # names, and what is said of them
        self._next = b""  # the first name of all that no shard has been asked for; b"" if there is none

    def begin(self) -> None:
        arguments = f" {self._first or '-'} {self._asked}".encode("ascii")
        self._ask(b"stats-tubes" + arguments, b"shard-stats-tubes" + arguments)

    def _add(self, position: int, reply: bytes) -> None:
        rows = _text(reply).splitlines(keepends=True)
        following = rows[0].split(b'"')[1]
        if following and (not self._next or following < self._next):
            self._next = following
        for row in rows[2:]:
            name = row[len(_ENTRY) : row.index(b'"', len(_ENTRY))]
            if not position or name != _DEFAULT_NAME:
                self._entries.append((name, row))

    def _reply(self) -> bytes:
        end = self._next
        entries = sorted(self._entries)
        found = [entry for entry in entries[: self._count] if not end or entry[0] < end]
        if len(found) < len(entries) and (not end or entries[len(found)][0] < end):
            end = entries[len(found)][0]
        return replies.ok(page(end.decode("ascii"), "tubes", [row for _, row in found]))


class DrainMode(_AskingAll):
    """drain or undrain, at all shards.

    Args:
        command: which of them.
        done: what a shard answers when it has done it, and the client is answered when all have.
    """

    __slots__ = ("_command", "_done")

    def __init__(self, router: Router, shards: list[int], command: bytes, done: bytes) -> None:
        super().__init__(router, shards)
        self._command = command
        self._done = done

    def begin(self) -> None:
        self._ask(self._command, b"shard-" + self._command)

    def _is_done(self, reply: bytes) -> bool:
        return reply == self._done

    def _add(self, position: int, reply: bytes) -> None:
        """What is said once is enough."""

    def _reply(self) -> bytes:
        return self._done


def _text(reply: bytes) -> bytes:
    """The YAML of a reply, without the line that begins it."""
    return reply[reply.index(_CRLF) + len(_CRLF) + len(_HEAD) : -len(_CRLF)]
