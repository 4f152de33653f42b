"""A routed client: each of its commands goes to the shard that it concerns, and the replies come back in order.

    which shard              commands
    -----------------------  -----------------------------------------------------------------------------------
    of the tube in use       put, put-with, the keyed commands, peek-ready, peek-delayed, peek-buried, kick
    of the tube named        use, watch, ignore, pause-tube, stats-tube, clear-tube, redrive, list-jobs, move-jobs
    of the group's tube      stats-group, cancel-group
    of the job               whatever has an id; delete-batch, release-batch and touch-batch are an operation if the
                             jobs are of several shards
    of the watched tubes     reserve, reserve-with-timeout, reserve-batch; an operation if there are several
    all of them              stats, list-tubes, stats-tubes, list-clients, drain, undrain: operations
    that of the reserve      cancel-reserve, which has no reply of its own; an operation is called off here
    none                     list-tube-used, list-tubes-watched, auth and quit are answered here
    any                      what is unknown or malformed, so that a server of another version may know it; but not
                             what only nodes may say

Commands are in flight at one shard at a time. Those that follow one another and concern the same shard go there in one
piece, and their replies come back as they are; the first that concerns another shard waits for the last of these
replies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from beanstalk_server import version
from beanstalk_server.access.user import User
from beanstalk_server.cluster.branch import Branch, Place
from beanstalk_server.cluster.relay import ALONE, ANYWHERE, DEFAULT, Owner
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.interface import FOREVER
from beanstalk_server.shards.branch import Operation, Router, ShardBranch, drop
from beanstalk_server.shards.operations import AllClients, AllShards, AllTubes, Divided, PageOfTubes, SummedStatistics
from beanstalk_server.shards.reserving import Reserving
from beanstalk_server.wire import replies
from beanstalk_server.wire.commands import (
    CANCELS,
    DIALECTS,
    EXTENSIONS,
    PAUSE_TUBE,
    PROTOCOL,
    QUIT,
    RESERVE_BATCH,
    Dialect,
)
from beanstalk_server.wire.grammar import Arguments, parse_watched, read_mode, read_name
from beanstalk_server.wire.places import (
    DIVISION,
    EVERYTHING,
    GROUP,
    IGNORE_TUBE,
    ITSELF,
    JOB,
    JOBS,
    LIST_OF_CLIENTS,
    LIST_OF_TUBES,
    MODE_OF_ALL,
    NAMED,
    PAGE_OF_TUBES,
    RESERVE_OF_BEST,
    SAME_OF_ALL,
    SUM,
    USE_TUBE,
    USED,
    WATCH_TUBE,
    WATCHED,
    Places,
)
from beanstalk_server.wire.yaml import tube_list

# What becomes of a command, if that is not what it concerns: USED, NAMED, JOB or WATCHED.
_USE: Final = -1
_WATCHING: Final = -2
_HERE: Final = -3
_OTHER: Final = -4


def _kinds(has_arguments: bool) -> dict[bytes, int]:
    """What becomes of commands, by name."""
    kinds = {}
    for command in PROTOCOL + EXTENSIONS:
        if has_arguments is (command.read is not None) and command not in (PAUSE_TUBE, QUIT):
            name = command.name.encode()
            if command.across == USE_TUBE:
                kinds[name] = _USE
            elif command.across in (WATCH_TUBE, IGNORE_TUBE):
                kinds[name] = _WATCHING
            else:
                kinds[name] = _HERE if command.concerns in (EVERYTHING, ITSELF) else command.concerns
    return kinds


_WITH_ARGUMENTS: Final = _kinds(True)
_WITHOUT_ARGUMENTS: Final = _kinds(False)
_ROWS: Final = {command.name.encode(): command for command in PROTOCOL + EXTENSIONS}
_PAUSE: Final = PAUSE_TUBE.name.encode()
_CRLF: Final = 2

_ARGUMENTS: Final = Arguments()


class RoutingSession(Router):
    """One client that is routed. The arguments are those of Relay."""

    __slots__ = (
        "_only",  # the shard of all watched tubes; -1 if there are several, or none is watched
        "_operation",
        "_watching",  # the watched tubes of each shard
        "counted_at",  # the shard whose statistics count the client
        "default_shard",  # of the tube that every client begins with
    )

    def __init__(
        self,
        places: Places,
        owner: Owner,
        clock: Callable[[], int],
        name: str,
        max_job_size: int,
        authenticate: Callable[[str], User | None] | None = None,
        user: User | None = None,
        used: str = DEFAULT,
        watched: list[str] | None = None,
        dialect: Dialect = DIALECTS[version.PROTOCOL],
        closes_after_put: bool = False,
    ) -> None:
        self._watching: dict[int, dict[str, None]] = {}
        self._only = -1
        self._operation: Operation | None = None
        self.finish = 0
        self.counted_at = self.default_shard = places.of_tube(DEFAULT.encode("ascii"))
        super().__init__(
            places, owner, clock, name, max_job_size, authenticate, user, used, watched, dialect, closes_after_put
        )

    # What the owner calls

    def start(self) -> None:
        """Open the places of a client that has come: where it is counted, and those of its tubes."""
        for shard in (self.default_shard, self.used_shard, *self._watching):
            self.branch(shard)

    def adopt(self, shard: int, place: Place, holdings: set[int]) -> None:
        """Have this place of a shard, at which the client has been served as a plain one so far. Before `start`.

        The session there uses and watches what of the client's tubes belongs to the shard, and nothing is unanswered.

        Args:
            holdings: ids of the jobs that the client has reserved there.
        """
        branch = ShardBranch(self, shard)
        branch.place = place
        branch.holdings = holdings
        self.branches[shard] = branch
        self.counted_at = shard

    def close(self) -> None:
        super().close()
        self._operation = None  # they have referred to each other, and the collector may be off

    def settled_shard(self) -> int:
        shard = self.used_shard
        if self._only != shard and self._watching:
            return -1
        return -1 if self._holds_elsewhere(shard) else shard

    def _holds_elsewhere(self, shard: int) -> bool:
        return len(self.branches) > 1 and self._holding() not in ([], [shard])

    def _holding(self) -> list[int]:
        """The shards where the client holds jobs."""
        return [shard for shard, branch in self.branches.items() if branch.holdings]

    # What branches call

    def opening(self, shard: int) -> Opening:
        used = self.used if self.used_shard == shard else ""
        watched = list(self._watching.get(shard, ()))
        watched = self.watch_entries(watched)
        return Opening(self.name, self.user_name(), used, watched, shard == self.counted_at, self.mode)

    def on_leader(self, branch: Branch) -> None:
        if self._operation is not None:
            self._operation.on_leader(branch.shard)
        self.go_on()

    def keeps(self, branch: Branch) -> bool:
        shard = branch.shard
        if not self.at(shard).is_idle or self._operation is not None or branch is self._current:
            return True
        if shard in self._watching or shard == self.used_shard or shard == self.default_shard:
            return True
        self.branches.pop(shard, None)
        return False

    def note_used(self, name: str) -> None:
        self.used = name
        self.used_shard = self._shard_of(name)

    def note_watched(self, entry: str) -> None:
        name, weight = parse_watched(entry)
        if weight:
            self.weights[name] = weight
        if self.watched.add(name):
            self._watching.setdefault(self._shard_of(name), {})[name] = None
            self._find_only()

    def note_ignored(self, name: str) -> None:
        self.weights.pop(name, None)
        if self.watched.remove(name):
            shard = self._shard_of(name)
            names = self._watching[shard]
            del names[name]
            if not names:
                del self._watching[shard]
                self._find_only()

    def _find_only(self) -> None:
        self._only = -1
        if len(self._watching) == 1:
            for shard in self._watching:
                self._only = shard

    # Taking commands apart

    def run(self) -> None:
        super().run()
        while self._operation is not None and self._held is None and self._framer.begins_with(CANCELS):
            if not self._operation.call_off():
                return
            self._framer.next()
            self._take_input(len(self._framer.take()) + _CRLF)
            super().run()

    def route(self, line: bytes) -> int:
        word, space, text = line.partition(b" ")
        kind = (_WITH_ARGUMENTS if space else _WITHOUT_ARGUMENTS).get(word, _OTHER)
        if kind == USED:
            return self.used_shard
        if kind == JOB:
            return self._shard_of_job(text)
        if kind == JOBS:
            if not self._is_well_formed(word, text):
                return ANYWHERE
            shards = {self.places.of_job(job_id) for job_id in _ARGUMENTS.ids}
            return ALONE if len(shards) > 1 else shards.pop()
        if kind == WATCHED:
            return self._shard_of_reserve(word, text)
        if kind == NAMED:
            return self.places.of_tube(text.partition(b" ")[0])
        if kind == GROUP:
            return self.places.of_group(text)
        if kind == _USE:
            if not read_name(text, _ARGUMENTS):
                return ANYWHERE
            shard = self.places.of_tube(text)
            return shard if shard == self.used_shard else ALONE
        if kind == _WATCHING:
            return ALONE if self._is_well_formed(word, text) else ANYWHERE
        if kind == _HERE:
            return ALONE if self._is_well_formed(word, text) else ANYWHERE
        if line.startswith(_PAUSE):
            return self.places.of_tube(line[len(_PAUSE) :].lstrip(b" ").partition(b" ")[0])
        return self.route_special(line)

    def _shard_of(self, name: str) -> int:
        return self.places.of_tube(name.encode("ascii"))

    def _shard_of_job(self, text: bytes) -> int:
        digits = text if text.isdigit() else text.lstrip(b" ").partition(b" ")[0]
        return self.places.of_job(int(digits)) if digits.isdigit() else ANYWHERE

    def _shard_of_reserve(self, word: bytes, text: bytes) -> int:
        shard = self._only
        if shard >= 0 and not self.mode and not self._holds_elsewhere(shard):
            return shard  # but if tubes take turns, it must be known how far they are
        return ALONE if self._watching and self._is_well_formed(word, text) else ANYWHERE

    def _is_well_formed(self, word: bytes, text: bytes) -> bool:
        """Whether the arguments of a command can be read; then they are at hand."""
        command = self.dialect.with_arguments.get(word)
        return command is None or command.read is None or command.read(text, _ARGUMENTS)

    # Commands that are begun when nothing is unanswered

    def begin(self, line: bytes) -> None:
        """Do a command that is done here, or begin an operation."""
        word, space, text = line.partition(b" ")
        if line == b"list-tube-used":
            self.answer(replies.using(self.used))
        elif line == b"list-tubes-watched":
            entries = b"".join([b"- %b\n" % name.encode("ascii") for name in self.watched.names])
            self.answer(replies.ok(tube_list(entries)))
            self.budget -= len(entries) >> 6
        elif word in (_WITH_ARGUMENTS if space else _WITHOUT_ARGUMENTS):
            self.is_busy = True
            self._operation = self._make_operation(word, text)
            self._operation.begin()
        else:
            super().begin(line)

    def answer(self, reply: bytes) -> None:
        self._operation = None
        super().answer(reply)

    def _make_operation(self, word: bytes, text: bytes) -> Operation:
        """An operation for a command that concerns several shards, or changes which ones commands concern."""
        command = _ROWS[word]
        across = command.across
        if across == USE_TUBE:
            return _Use(self, text)
        if across == WATCH_TUBE:
            return _Watch(self, text)
        if across == IGNORE_TUBE:
            return _Ignore(self, text)
        if across == MODE_OF_ALL:
            return _Mode(self, text)
        first = self.default_shard
        shards = [first, *[shard for shard in range(self.places.shards) if shard != first]]
        if across == SUM:
            return SummedStatistics(self, shards, word)
        if across == LIST_OF_TUBES:
            return AllTubes(self, shards, word)
        if across == LIST_OF_CLIENTS:
            return AllClients(self, shards, word)
        if across == SAME_OF_ALL:
            return AllShards(self, shards, word, command.done)
        is_well_formed = self._is_well_formed(word, text)
        assert is_well_formed, "what is malformed goes anywhere"
        if across == PAGE_OF_TUBES:
            return PageOfTubes(self, shards, word, _ARGUMENTS.name, _ARGUMENTS.count)
        if across == DIVISION:
            return Divided(self, word, text, _ARGUMENTS.ids)
        assert across == RESERVE_OF_BEST, command.name
        concerned = {*self._watching, *self._holding()}
        shards = [shard for shard in shards if shard in concerned]
        limit = _ARGUMENTS.count if command is RESERVE_BATCH else 0
        return Reserving(self, shards, word, limit, FOREVER if command.read is None else _ARGUMENTS.duration)


class _OfTube(Operation):
    """A command about one tube, which the shard of the tube is asked."""

    __slots__ = ("name", "session")

    word: ClassVar[bytes]

    def __init__(self, session: RoutingSession, name: bytes) -> None:
        self.session = session
        self.name = name.decode("ascii")

    def begin(self) -> None:
        text = self.name.encode("ascii")
        session = self.session
        session.at(session.places.of_tube(text.partition(b" ")[0])).ask(b"%b %b" % (self.word, text), self.end)

    def end(self, _key: int, reply: bytes) -> None:
        raise NotImplementedError


class _Use(_OfTube):
    """Use a tube of another shard than the one before."""

    __slots__ = ()

    word = b"use"

    def end(self, _key: int, reply: bytes) -> None:
        session = self.session
        if reply.startswith(b"USING "):
            left = session.at(session.used_shard)
            session.note_used(self.name)
            if left.place is not None:  # the next leader is told what is used
                left.ask(b"unuse", drop, repeatable=False)
        session.answer(reply)


class _Watch(_OfTube):
    """Watch a tube; the answer says how many are watched in all shards."""

    __slots__ = ()

    word = b"watch"

    def end(self, _key: int, reply: bytes) -> None:
        session = self.session
        if reply.startswith(b"WATCHING "):
            session.note_watched(self.name)
            reply = replies.watching(len(session.watched.names))
        session.answer(reply)


class _Mode(Operation):
    """Say how tubes are served, at every place that there is; others learn it when they are opened."""

    __slots__ = ("_mode", "_outstanding", "_session", "_text")

    def __init__(self, session: RoutingSession, text: bytes) -> None:
        read_mode(text, _ARGUMENTS)
        self._session = session
        self._text = text
        self._mode = _ARGUMENTS.mode
        self._outstanding = 1

    def begin(self) -> None:
        session = self._session
        session.mode = self._mode
        session.finish = 0
        for branch in list(session.branches.values()):
            if branch.place is not None:
                self._outstanding += 1
                session.at(branch.shard).ask(b"reserve-mode " + self._text, self._end, repeatable=False)
        self._end(0, b"")

    def _end(self, _key: int, _reply: bytes) -> None:
        self._outstanding -= 1
        if not self._outstanding:
            self._session.answer(replies.reserve_mode(self._text.decode("ascii")))


class _Ignore(_OfTube):
    """Watch a tube no more. A shard may be left without any, and only the last of all stays. Nobody refuses that, so it
    need not wait for a leader."""

    __slots__ = ()

    def begin(self) -> None:
        name = self.name.encode("ascii")
        session = self.session
        is_watched = self.name in session.watched
        branch = session.at(session.places.of_tube(name) if is_watched else session.default_shard)
        if is_watched and len(session.watched.names) == 1:
            if branch.place is None:
                session.answer(replies.NOT_IGNORED)
            else:
                branch.ask(b"ignore " + name, self._refuse, repeatable=False)
        elif branch.place is None:
            self.end(0, b"")
        else:
            branch.ask(b"unwatch " + name, self.end, repeatable=False)

    def end(self, _key: int, _reply: bytes) -> None:
        session = self.session
        session.note_ignored(self.name)
        session.answer(replies.watching(len(session.watched.names)))

    def _refuse(self, _key: int, _reply: bytes) -> None:
        self.session.answer(replies.NOT_IGNORED)
