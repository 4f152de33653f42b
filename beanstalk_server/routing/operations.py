"""Commands that concern all shards, and those that change which tubes a client uses and watches.

What is asked of all may be done twice, so it is simply asked again where a leader has gone, and waits where there is
none. The command is given by its own name to one shard, which counts it, and to the others by another one, which is not
counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.wire import listings, replies
from beanstalk_server.wire.commands import HERE
from beanstalk_server.wire.grammar import Arguments, read_mode
from beanstalk_server.wire.listings import PAGE_ENTRIES, page
from beanstalk_server.wire.yaml import StatisticsSum, rows_of, yaml

if TYPE_CHECKING:
    from beanstalk_server.routing.router import Router

_ARGUMENTS: Final = Arguments()

_HERE: Final = HERE.encode()
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
    """One command that is under way. No other command of the client is begun before `router.answer`, which is called
    exactly once, perhaps in `begin`."""

    def begin(self) -> None:
        """Ask the branches."""
        raise NotImplementedError

    def on_leader(self, shard: int) -> None:
        """The branch of this shard has got a place, after it had none."""

    def call_off(self) -> bool:
        """If it is a reserve, answer CANCELLED as soon as no shard has a job for it; return whether it is one."""
        return False


def drop(_key: int, _reply: bytes) -> None:
    """Takes a reply that tells nothing."""


class AllShards(Operation):
    """Asks each of the shards once, and counts the command at the first of them only. As it is, it is drain or undrain:
    done when all shards have said the same.

    Args:
        router: the client's router.
        shards: all shards, that of the default tube first.
        line: the command.
        done: what the reply of a shard begins with that has done it. Any other is the client's reply: all shards refuse
            alike.
    """

    def __init__(self, router: Router, shards: list[int], line: bytes, done: bytes = _OK) -> None:
        self._router = router
        self._shards = shards
        self._line = line
        self._done = done
        self._outstanding = len(shards)
        self._is_answered = False

    def begin(self) -> None:
        line = self._line
        for position, shard in enumerate(self._shards):
            self._router.branch(shard).ask(_HERE + line if position else line, self._on_reply, position)

    def _on_reply(self, position: int, reply: bytes) -> None:
        self._outstanding -= 1
        if self._is_answered:
            return
        is_done = reply.startswith(self._done)
        if is_done:
            self._add(position, reply.partition(_CRLF)[2].removesuffix(_CRLF))
        if not is_done or not self._outstanding:
            self._is_answered = True
            self._router.answer(self._reply() if is_done else reply)

    def _add(self, position: int, text: bytes) -> None:
        """Take the YAML of what the shard at this position answers."""

    def _reply(self) -> bytes:
        return self._done


class SummedStatistics(AllShards):
    """stats: the rows of which each shard has its part are added up as the replies come, which holds up no other
    client."""

    def __init__(self, router: Router, shards: list[int], line: bytes) -> None:
        super().__init__(router, shards, line)
        self._sum = StatisticsSum()

    def _add(self, position: int, text: bytes) -> None:
        self._sum.add(rows_of(text), is_first=not position)

    def _reply(self) -> bytes:
        return replies.ok(yaml(self._sum.rows()))


class AllTubes(AllShards):
    """list-tubes: what each shard has, one after the other.

    No name is looked at: each shard has the tubes that belong to it, and the default tube, which is always its first.
    So a hundred thousand tubes are a few copies.
    """

    def __init__(self, router: Router, shards: list[int], line: bytes) -> None:
        super().__init__(router, shards, line)
        self._lists = [b""] * len(shards)

    def _add(self, position: int, text: bytes) -> None:
        self._lists[position] = text.removeprefix(_HEAD).removeprefix(_DEFAULT if position else b"")

    def _reply(self) -> bytes:
        return replies.ok_list(self._lists)


class AllClients(AllShards):
    """list-clients: those whom each shard counts, one after the other. No shard counts a client of another one."""

    def __init__(self, router: Router, shards: list[int], line: bytes) -> None:
        super().__init__(router, shards, line)
        self._lists = [b""] * len(shards)

    def _add(self, position: int, text: bytes) -> None:
        self._lists[position] = text.removeprefix(_HEAD).removeprefix(_NO_ENTRIES)

    def _reply(self) -> bytes:
        return listings.reply_of(self._lists)


class PageOfTubes(AllShards):
    """stats-tubes: the first tubes of what each shard has, in the order of their names.

    The names are divided among the shards by a hash, so that each is asked for its share of a page and some more. The
    page ends before the first tube that a shard has not been asked for: it may be shorter than the client wants.

    Args:
        router, shards: as above.
        word: the command.
        first: the name from which on; "" for the beginning.
        count: the most tubes, as the client says.
    """

    def __init__(self, router: Router, shards: list[int], word: bytes, first: str, count: int) -> None:
        self._count = min(count, PAGE_ENTRIES)
        asked = min(self._count + 1, max(MERGED_ENTRIES // len(shards), LEAST_ENTRIES))
        super().__init__(router, shards, b"%b %b %d" % (word, first.encode("ascii") or b"-", asked))
        self._entries: list[tuple[bytes, bytes]] = []  # names, and what is said of them
        self._next = b""  # the first name of all that no shard has been asked for; b"" if there is none

    def _add(self, position: int, text: bytes) -> None:
        rows = text.splitlines(keepends=True)[1:]
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


class Divided(Operation):
    """delete-batch, release-batch or touch-batch of jobs in several shards: each shard gets its part, and what they
    answer is added up. If one is lost before it answers, and not cleanly, what has become of its part is not known, and
    the client is disconnected, as after a single delete.

    Args:
        router: the client's router.
        word, text: the command, and its arguments, which end with the ids.
    """

    def __init__(self, router: Router, word: bytes, text: bytes, ids: list[int]) -> None:
        self._router = router
        self._start = word + b" " + b"".join([each + b" " for each in text.split(b" ")[: -len(ids)]])
        self._parts: dict[int, list[int]] = {}
        for job_id in ids:
            self._parts.setdefault(router.places.of_job(job_id), []).append(job_id)
        self._outstanding = len(self._parts)
        self._done = self._missing = 0
        self._is_answered = False

    def begin(self) -> None:
        for shard, ids in self._parts.items():
            branch = self._router.branch(shard)
            line = self._start + b" ".join([b"%d" % job_id for job_id in ids])
            branch.ask(line, self._on_reply, shard, branch.place is None, if_clean=True)

    def _on_reply(self, shard: int, reply: bytes) -> None:
        self._outstanding -= 1
        if self._is_answered:
            return
        name, *counts = reply.split()[:_COUNTS] or [b""]
        if len(counts) != _COUNTS - 1:
            self._is_answered = True
            if name:
                self._router.answer(reply)
            else:
                self._router.fail()
            return
        if name != _TOUCHED:
            self._router.branch(shard).holdings.difference_update(self._parts[shard])
        self._done += int(counts[0])
        self._missing += int(counts[1])
        if not self._outstanding:
            self._is_answered = True
            self._router.answer(b"%b %d %d\r\n" % (name, self._done, self._missing))


_COUNTS: Final = 3
"""The words of a reply that counts."""

_TOUCHED: Final = b"TOUCHED_BATCH"


class _OfTube(Operation):
    """A command about one tube, which the shard of the tube is asked."""

    word: ClassVar[bytes]

    def __init__(self, router: Router, name: bytes) -> None:
        self.router = router
        self.name = name.decode("ascii")

    def begin(self) -> None:
        text = self.name.encode("ascii")
        router = self.router
        router.branch(router.places.of_tube(text.partition(b" ")[0])).ask(b"%b %b" % (self.word, text), self.end)

    def end(self, _key: int, reply: bytes) -> None:
        raise NotImplementedError


class Use(_OfTube):
    """Use a tube of another shard than the one before."""

    word = b"use"

    def end(self, _key: int, reply: bytes) -> None:
        router = self.router
        if reply.startswith(b"USING "):
            left = router.branch(router.used_shard)
            router.note_used(self.name)
            if left.place is not None:  # the next leader is told what is used
                left.ask(b"unuse", drop, repeatable=False)
        router.answer(reply)


class Watch(_OfTube):
    """Watch a tube; the answer says how many are watched in all shards."""

    word = b"watch"

    def end(self, _key: int, reply: bytes) -> None:
        router = self.router
        if reply.startswith(b"WATCHING "):
            router.note_watched(self.name)
            reply = replies.watching(len(router.watched.names))
        router.answer(reply)


class Mode(Operation):
    """Say how tubes are served, at every place that there is; others learn it when they are opened."""

    def __init__(self, router: Router, text: bytes) -> None:
        read_mode(text, _ARGUMENTS)
        self._router = router
        self._text = text
        self._mode = _ARGUMENTS.mode
        self._outstanding = 1

    def begin(self) -> None:
        router = self._router
        router.note_mode(self._mode)
        for branch in list(router.branches.values()):
            if branch.place is not None:
                self._outstanding += 1
                router.branch(branch.shard).ask(b"reserve-mode " + self._text, self._end, repeatable=False)
        self._end(0, b"")

    def _end(self, _key: int, _reply: bytes) -> None:
        self._outstanding -= 1
        if not self._outstanding:
            self._router.answer(replies.reserve_mode(self._text.decode("ascii")))


class Ignore(_OfTube):
    """Watch a tube no more. A shard may be left without any, and only the last of all stays. Nobody refuses that, so it
    need not wait for a leader."""

    def begin(self) -> None:
        name = self.name.encode("ascii")
        router = self.router
        is_watched = self.name in router.watched
        branch = router.branch(router.places.of_tube(name) if is_watched else router.default_shard)
        if is_watched and len(router.watched.names) == 1:
            if branch.place is None:
                router.answer(replies.NOT_IGNORED)
            else:
                branch.ask(b"ignore " + name, self._refuse, repeatable=False)
        elif branch.place is None:
            self.end(0, b"")
        else:
            branch.ask(b"unwatch " + name, self.end, repeatable=False)

    def end(self, _key: int, _reply: bytes) -> None:
        router = self.router
        router.note_ignored(self.name)
        router.answer(replies.watching(len(router.watched.names)))

    def _refuse(self, _key: int, _reply: bytes) -> None:
        self.router.answer(replies.NOT_IGNORED)
