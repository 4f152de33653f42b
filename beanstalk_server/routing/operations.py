"""Commands that concern all shards, and those that change which tubes a client uses and watches.

What is asked of all may be done twice, so it is simply asked again where a leader has gone, and waits where there is
none. The command is given by its own name to one shard, which counts it, and to the others by another one, which is not
counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.wire import listings, replies
from beanstalk_server.wire.commands import HERE, Command
from beanstalk_server.wire.grammar import Arguments
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
    exactly once, perhaps in `begin`.

    Args:
        router: the client's router.
        command: its row.
        text: its arguments, which are well-formed; b"" if it takes none.
    """

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        self.router = router
        self.command = command
        self.text = text

    def begin(self) -> None:
        """Ask the branches."""

    def on_leader(self, shard: int) -> None:
        """The branch of this shard has got a place, after it had none."""

    def call_off(self) -> bool:
        """If it is a reserve, answer CANCELLED as soon as no shard has a job for it; return whether it is one."""
        return False


def _yaml_of(reply: bytes) -> bytes:
    """The body of a reply."""
    return reply.partition(_CRLF)[2].removesuffix(_CRLF)


def drop(_key: int, _reply: bytes) -> None:
    """Takes a reply that tells nothing."""


class AllShards(Operation):
    """Asks each of the shards once, and counts the command at the first of them only. As it is, it is drain or undrain:
    done when all shards have said the same.
    """

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        self.shards = router.all_shards()  # those that are asked, that of the default tube first
        self.line = command.name.encode()
        # What the reply of a shard begins with that has done it. Any other is the client's reply: all refuse alike.
        self.done = command.done or _OK
        self._outstanding = 0
        self._is_answered = False

    def begin(self) -> None:
        line = self.line
        self._outstanding = len(self.shards)
        for position, shard in enumerate(self.shards):
            self.router.branch(shard).ask(_HERE + line if position else line, self._on_reply, position)

    def _on_reply(self, position: int, reply: bytes) -> None:
        self._outstanding -= 1
        if self._is_answered:
            return
        is_done = reply.startswith(self.done)
        if is_done:
            self._add(position, reply)
        if not is_done or not self._outstanding:
            self._is_answered = True
            self.router.answer(self._reply() if is_done else reply)

    def _add(self, position: int, reply: bytes) -> None:
        """Take what the shard at this position has answered."""

    def _reply(self) -> bytes:
        return self.done


class Counted(AllShards):
    """A command whose reply is a count: those of all shards where the client holds jobs are added up."""

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        self.shards = router.holding() or [router.used_shard]
        self.done = command.counts + b" "
        self._count = 0

    def _add(self, _position: int, reply: bytes) -> None:
        self._count += int(reply[len(self.done) :])

    def _reply(self) -> bytes:
        return replies.counted(self.command.counts, self._count, -1)


class SummedStatistics(AllShards):
    """stats: the rows of which each shard has its part are added up as the replies come, which holds up no other
    client."""

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        self._sum = StatisticsSum()

    def _add(self, position: int, reply: bytes) -> None:
        self._sum.add(rows_of(_yaml_of(reply)), is_first=not position)

    def _reply(self) -> bytes:
        return replies.ok(yaml(self._sum.rows()))


class AllTubes(AllShards):
    """list-tubes: what each shard has, one after the other.

    No name is looked at: each shard has the tubes that belong to it, and the default tube, which is always its first.
    So a hundred thousand tubes are a few copies.
    """

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        self._lists = [b""] * len(self.shards)

    def _add(self, position: int, reply: bytes) -> None:
        self._lists[position] = _yaml_of(reply).removeprefix(_HEAD).removeprefix(_DEFAULT if position else b"")

    def _reply(self) -> bytes:
        return replies.ok_list(self._lists)


class AllClients(AllShards):
    """list-clients: those whom each shard counts, one after the other. No shard counts a client of another one."""

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        self._lists = [b""] * len(self.shards)

    def _add(self, position: int, reply: bytes) -> None:
        self._lists[position] = _yaml_of(reply).removeprefix(_HEAD).removeprefix(_NO_ENTRIES)

    def _reply(self) -> bytes:
        return listings.reply_of(self._lists)


class PageOfTubes(AllShards):
    """stats-tubes: the first tubes of what each shard has, in the order of their names.

    The names are divided among the shards by a hash, so that each is asked for its share of a page and some more. The
    page ends before the first tube that a shard has not been asked for: it may be shorter than the client wants.
    """

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        assert command.read is not None, "it has arguments"
        command.read(text, _ARGUMENTS)
        self._count = min(_ARGUMENTS.count, PAGE_ENTRIES)
        asked = min(self._count + 1, max(MERGED_ENTRIES // len(self.shards), LEAST_ENTRIES))
        self.line = b"%b %b %d" % (self.line, _ARGUMENTS.name.encode("ascii") or b"-", asked)
        self._entries: list[tuple[bytes, bytes]] = []  # names, and what is said of them
        self._next = b""  # the first name of all that no shard has been asked for; b"" if there is none

    def _add(self, position: int, reply: bytes) -> None:
        rows = _yaml_of(reply).splitlines(keepends=True)[1:]
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
    """

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        ids = command.ids(text, _ARGUMENTS)
        words = [command.name.encode(), *text.split(b" ")[: -len(ids)]]
        self._start = b"".join([word + b" " for word in words])
        self._parts: dict[int, list[int]] = {}
        for job_id in ids:
            self._parts.setdefault(router.places.of_job(job_id), []).append(job_id)
        self._outstanding = len(self._parts)
        self._done = self._missing = 0
        self._is_answered = False

    def begin(self) -> None:
        for shard, ids in self._parts.items():
            branch = self.router.branch(shard)
            line = self._start + b" ".join([b"%d" % job_id for job_id in ids])
            branch.ask(line, self._on_reply, shard, not branch.is_led, if_clean=True)

    def _on_reply(self, shard: int, reply: bytes) -> None:
        self._outstanding -= 1
        if self._is_answered:
            return
        name, *counts = reply.split()[:_COUNTS] or [b""]
        if len(counts) != _COUNTS - 1:
            self._is_answered = True
            if name:
                self.router.answer(reply)
            else:
                self.router.fail()
            return
        if name in self.command.ends:
            self.router.branch(shard).holdings.difference_update(self._parts[shard])
        self._done += int(counts[0])
        self._missing += int(counts[1])
        if not self._outstanding:
            self._is_answered = True
            self.router.answer(b"%b %d %d\r\n" % (name, self._done, self._missing))


_COUNTS: Final = 3
"""The words of a reply that counts."""


class _OfTube(Operation):
    """A command about one tube, which the shard of the tube is asked."""

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        self.name = text.decode("ascii")

    def begin(self) -> None:
        router = self.router
        shard = router.places.of_tube(self.text.partition(b" ")[0])
        router.branch(shard).ask(b"%b %b" % (self.command.name.encode(), self.text), self.end)

    def end(self, _key: int, reply: bytes) -> None:
        """Take the reply of the shard."""


class Use(_OfTube):
    """Use a tube of another shard than the one before."""

    def end(self, _key: int, reply: bytes) -> None:
        router = self.router
        if reply.startswith(b"USING "):
            left = router.branch(router.used_shard)
            router.note_used(self.name)
            if left.is_led:  # the next leader gets to know what is used
                left.ask(b"unuse", drop, repeatable=False)
        router.answer(reply)


class Watch(_OfTube):
    """Watch a tube; the answer says how many are watched in all shards."""

    def end(self, _key: int, reply: bytes) -> None:
        router = self.router
        if reply.startswith(b"WATCHING "):
            router.note_watched(self.name)
            reply = replies.watching(len(router.watched.names))
        router.answer(reply)


class TellAll(Operation):
    """Do a reserve-mode or client-name at all places that are open; others get it when they are opened."""

    def __init__(self, router: Router, command: Command, text: bytes) -> None:
        super().__init__(router, command, text)
        self._line = command.name.encode() + b" " + text
        self._reply = command.done or replies.reserve_mode(text.decode("ascii"))
        self._outstanding = 1

    def begin(self) -> None:
        router = self.router
        router.note_tubes(self._line, self._reply)
        for branch in list(router.branches.values()):
            if branch.is_led:
                self._outstanding += 1
                router.branch(branch.shard).ask(self._line, self._end, repeatable=False)
        self._end(0, b"")

    def _end(self, _key: int, _reply: bytes) -> None:
        self._outstanding -= 1
        if not self._outstanding:
            self.router.answer(self._reply)


class Ignore(_OfTube):
    """Watch a tube no more. A shard may be left without any, and only the last of all stays. No leader refuses that, so
    it need not wait for one."""

    def begin(self) -> None:
        name = self.text
        router = self.router
        is_watched = self.name in router.watched
        branch = router.branch(router.places.of_tube(name) if is_watched else router.default_shard)
        if is_watched and len(router.watched.names) == 1:
            if not branch.is_led:
                router.answer(replies.NOT_IGNORED)
            else:
                branch.ask(b"ignore " + name, self._refuse, repeatable=False)
        elif not branch.is_led:
            self.end(0, b"")
        else:
            branch.ask(b"unwatch " + name, self.end, repeatable=False)

    def end(self, _key: int, _reply: bytes) -> None:
        router = self.router
        router.note_ignored(self.name)
        router.answer(replies.watching(len(router.watched.names)))

    def _refuse(self, _key: int, _reply: bytes) -> None:
        self.router.answer(replies.NOT_IGNORED)
