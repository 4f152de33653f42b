"""A routed client: each of its commands goes to the shard that it concerns, and the replies come back in order.

    which shard              commands
    -----------------------  -----------------------------------------------------------------------------------
    of the tube in use       put, put-with, the keyed commands, peek-ready, peek-delayed, peek-buried, kick
    of the tube named        use, watch, ignore, pause-tube, stats-tube, clear-tube, redrive, list-jobs, move-jobs
    of the job               whatever has an id
    of the watched tubes     reserve, reserve-with-timeout, reserve-batch; an operation if there are several
    all of them              stats, list-tubes, stats-tubes, list-clients, drain, undrain: operations
    none                     list-tube-used, list-tubes-watched, auth and quit are answered here
    any                      what is unknown or malformed, so that a server of another version may know it; but not
                             what only nodes may say

Commands are in flight at one shard at a time. Those that follow one another and concern the same shard go there in one
piece, and their replies come back as they are; the first that concerns another shard waits for the last of these
replies. With one shard, that is all: everything but auth and quit goes there as it is.

What stands here knows what is needed for the day when a leader goes: which commands have no answer, which tube the
client uses, and which ones it watches. A client that authenticates does so here; a leader is told the user, and never
sees a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar, Final

from beanstalk_server import version
from beanstalk_server.access.user import CONSUME, User
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.interface import FOREVER
from beanstalk_server.shards.branch import Branch, Place, PlaceOpener, Router
from beanstalk_server.shards.operations import AllClients, AllTubes, DrainMode, Operation, PageOfTubes, SummedStatistics
from beanstalk_server.shards.reserving import Reserving
from beanstalk_server.shards.watched import Watched
from beanstalk_server.wire import replies
from beanstalk_server.wire.commands import (
    DIALECTS,
    EXTENSIONS,
    LONG_COMMANDS,
    PAUSE_TUBE,
    PLACE_COMMANDS,
    PROTOCOL,
    QUIT,
    Dialect,
)
from beanstalk_server.wire.framing import HTTP_METHODS, LINE, LINE_TOO_LONG, NEED_MORE, Framer
from beanstalk_server.wire.grammar import AUTH, CACHE_SIZE, Arguments, parse_auth, read_name, write_duration
from beanstalk_server.wire.places import EVERYTHING, ITSELF, JOB, NAMED, USED, WATCHED, Places
from beanstalk_server.wire.statistics import tube_list

DEFAULT: Final = "default"

QUANTUM: Final = 2048
"""The budget of one turn: this many commands, or 64 times as many bytes of replies that are made here."""

# Where a command goes, if it is not the number of a shard.
_ANYWHERE: Final = -1
_ALONE: Final = -2
"""It is begun when nothing is unanswered, and `_begin` does it."""

_TOO_LONG: Final = b"\r"
"""Stands for a line that was too long, and has been dropped: no line has a CR at its end."""

_BODIES: Final = (b"put", b"replace-keyed ")
_QUIT: Final = b"quit"
_CRLF: Final = 2

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
            if name == b"use":
                kinds[name] = _USE
            elif name in (b"watch", b"ignore"):
                kinds[name] = _WATCHING
            else:
                kinds[name] = _HERE if command.concerns in (EVERYTHING, ITSELF) else command.concerns
    return kinds


_WITH_ARGUMENTS: Final = _kinds(True)
_WITHOUT_ARGUMENTS: Final = _kinds(False)
_PAUSE: Final = b"pause-tube"
_FORBIDDEN: Final = frozenset([command.name.encode() for command in PLACE_COMMANDS])
"""What sessions of places understand, and no client may say."""

_SPECIAL: Final = (_QUIT, AUTH, _TOO_LONG, *HTTP_METHODS, *sorted(_FORBIDDEN))
"""How lines begin that do not go to the only shard, perhaps."""

_ARGUMENTS: Final = Arguments()


class RoutingSession(Router):
    """One client that is routed.

    Args:
        places: which shard a tube or a job belongs to.
        owner: opens places.
        clock: nanoseconds.
        name: what the log calls the client.
        max_job_size: the longest body that leaders take, in bytes.
        authenticate: finds the user whose token this is, or None: auth is a command. None if it is not.
        user: who the client has proved to be; None where nobody is asked.
        used: the tube that it uses.
        watched: the tubes that it watches, in their order.
        dialect: the commands that leaders know.
    """

    __slots__ = (
        "_authenticate",
        "_bodies",  # sizes of bodies, by the lines of puts
        "_budget",  # how much more this turn may cost
        "_current",  # the branch that the last command went to
        "_dialect",
        "_framer",
        "_held",  # a line that waits for its turn; its bytes are the first of the input
        "_input",  # has come, and has not been passed on
        "_input_ended",
        "_needs_more",  # there is no whole command in what has come
        "_only",  # the shard of all watched tubes; -1 if there are several, or none is watched
        "_operation",
        "_output",
        "_position",  # where in the first piece of the input begins what has not been passed on
        "_used_shard",
        "_watching",  # the watched tubes of each shard
        "aborted",  # what has not been sent to the client is lost
        "branches",
        "default_shard",  # of the tube that every client begins with; the client is counted there
        "failed",  # it is closed because a leader was lost, or has closed, and not because the client wants it
        "has_more",  # the turn was over before the input was: `run` can go on at once
        "input_size",
        "max_job_size",
        "name",
        "places",
        "speaks_http",  # it is closed because of that
        "used",
        "user",
        "watched",
    )

    def __init__(
        self,
        places: Places,
        owner: PlaceOpener,
        clock: Callable[[], int],
        name: str,
        max_job_size: int,
        authenticate: Callable[[str], User | None] | None = None,
        user: User | None = None,
        used: str = DEFAULT,
        watched: list[str] | None = None,
        dialect: Dialect = DIALECTS[version.PROTOCOL],
    ) -> None:
        self._authenticate = authenticate
        self._bodies: dict[bytes, int] = _bodies.setdefault(max_job_size, {})
        self._budget = QUANTUM
        self._current: Branch | None = None
        self._dialect = dialect
        self._framer = Framer(LONG_COMMANDS)
        self._held: bytes | None = None
        self._input: deque[bytes] = deque()
        self._input_ended = False
        self._needs_more = True
        self._operation: Operation | None = None
        self._output: list[bytes] = []
        self._position = 0
        self.aborted = False
        self.asked = 0
        self.branches: dict[int, Branch] = {}  # opened when they are first needed
        self.clock = clock
        self.closed = False
        self.speaks_http = False
        self.failed = False
        self.has_more = False
        self.in_body = False
        self.input_size = 0  # bytes that have come and have not been passed on
        self.max_job_size = max_job_size
        self.may_wait = True
        self.name = name
        self.output_paused = False
        self.owner = owner
        self.places = places
        self.used = used
        self._used_shard = places.of_tube(used.encode("ascii"))
        self.default_shard = places.of_tube(DEFAULT.encode("ascii"))
        self.user = user
        self.watched = Watched([DEFAULT] if watched is None else watched)
        self._watching: dict[int, dict[str, None]] = {}
        self._only = -1
        self._count_watched()
        if user is not None:
            self.judge_watched(user)

    # What the owner calls

    def start(self) -> None:
        """Open the places of a client that has come: where it is counted, and those of its tubes."""
        self.branch(self.default_shard)
        self.branch(self._used_shard)
        for shard in self._watching:
            self.branch(shard)

    def adopt(self, shard: int, place: Place, holdings: set[int]) -> None:
        """Have this place of a shard, at which the client has been served as a plain one so far. Before `start`.

        The session there uses and watches what of the client's tubes belongs to the shard, and nothing is unanswered.

        Args:
            holdings: ids of the jobs that the client has reserved there.
        """
        branch = Branch(self, shard, self.places.shards > 1)
        branch.adopt(place, holdings)
        self.branches[shard] = branch

    def receive(self, data: bytes) -> None:
        """Take bytes from the client. After a quit, they are dropped."""
        if self.closed:
            return
        self._needs_more = False
        self._input.append(data)
        self.input_size += len(data)
        self._framer.feed(data)
        self.run()

    def end_input(self) -> None:
        """Do the rest of the input, wait for nothing, then be `closed`: the client sends nothing more."""
        self._input_ended = True
        self.forbid_waiting()
        self.run()

    def forbid_waiting(self) -> None:
        """Wait for no job any more: the client has hung up. Some of its input may still come."""
        if not self.may_wait:
            return
        self.may_wait = False
        for branch in self.branches.values():
            if branch.place is not None:
                branch.place.hang_up()

    def pause_output(self) -> None:
        """Begin no command until `resume_output`: the client does not read its replies."""
        self.output_paused = True

    def resume_output(self) -> None:
        """Begin commands again: the client reads its replies."""
        self.output_paused = False
        for branch in list(self.branches.values()):
            branch.resume()
        self.run()

    def take_replies(self) -> bytes:
        """The bytes for the client since the last call, in one piece; b"" when there are none."""
        pieces = self._output
        if not pieces:
            return b""
        taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return taken

    def change_user(self, user: User) -> None:
        """Let the client be this user from now on. Tubes that it may not consume from are watched no more."""
        self.user = user
        self.judge_watched(user)
        for branch in self.branches.values():
            if branch.place is not None:
                branch.place.change_user(user.name)

    def close(self) -> None:
        """Close all places, and forget the owner: the client is gone, or served as a plain one."""
        self.closed = True
        self.owner = _GONE
        for branch in self.branches.values():
            branch.close()
        self.branches.clear()
        self._current = None
        if self._operation is not None:
            self._operation.let_go()
            self._operation = None

    # Where the client is settled

    @property
    def settled_shard(self) -> int:
        """The shard at which all is that the client uses, watches and has reserved; -1 if there is none, or some
        command has been passed on and not been answered."""
        current = self._current
        if self._operation is not None or self.asked or (current is not None and current.entries):
            return -1
        return -1 if self._framer.has_dropped() else self._home()

    @property
    def candidate_shard(self) -> int:
        """As `settled_shard`, whatever has not been answered yet."""
        return self._home()

    @property
    def migratable(self) -> int:
        """As `settled_shard`, but where there is no place now, commands may be unanswered: `take_all` returns them."""
        if self._operation is not None or self.asked:
            return -1
        current = self._current
        if self.in_body or (current is not None and current.entries):
            assert current is not None, "a body goes somewhere"
            return -1 if current.place is not None or current.shard != self._home() else current.shard
        return -1 if self._framer.has_dropped() else self._home()

    def take_all(self) -> bytes:
        """All that the client has sent and has not been answered: it is routed no more. It must be `migratable`."""
        current = self._current
        lines = b"" if current is None or current.place is not None else current.take_unanswered()
        self._held = None
        self.in_body = False
        rest = self._take_input(self.input_size)
        self._drop_input()
        return lines + rest

    def _home(self) -> int:
        shard = self._used_shard
        if self._only != shard and self._watching:
            return -1
        return -1 if self._holds_elsewhere(shard) else shard

    def _holds_elsewhere(self, shard: int) -> bool:
        if len(self.branches) < 2:
            return False
        return any(branch.holdings for branch in self.branches.values() if branch.shard != shard)

    # What operations call

    def branch(self, shard: int) -> Branch:
        """What the client has at a shard. It is opened when it is first needed."""
        branch = self.branches.get(shard)
        if branch is None:
            branch = self.branches[shard] = Branch(self, shard, self.places.shards > 1)
            branch.reopen()
        return branch

    def finish(self, reply: bytes) -> None:
        """Answer the operation that is under way."""
        assert self._operation is not None, "it is answered once"
        self._operation = None
        self._output.append(reply)

    # What branches call

    def opening(self, shard: int) -> Opening:
        """What a leader of this shard must know of the client."""
        user = None if self.user is None else self.user.name
        used = self.used if self._used_shard == shard else ""
        if self.places.shards > 1:
            return Opening(self.name, user, used, list(self._watching.get(shard, ())), shard == self.default_shard)
        return Opening(self.name, user, used, list(self.watched.names))

    def pass_back(self, data: bytes) -> None:
        """Note bytes for the client."""
        self._output.append(data)

    def go_on(self) -> None:
        """Do what can be done now; tell the owner."""
        self.run()
        self.owner.on_output()

    def fail(self, at_once: bool = False) -> None:
        """Disconnect the client: nobody knows what has become of its commands."""
        self.closed = self.failed = True
        self.aborted = self.aborted or at_once
        self._drop_input()
        self.owner.on_output()

    def on_leader(self, branch: Branch) -> None:
        """A branch has got a place."""
        if self._operation is not None:
            self._operation.on_leader(branch.shard)
        self.go_on()

    def on_lost(self, branch: Branch) -> None:
        """A branch has lost its place."""
        self.keeps(branch)
        self.go_on()

    def keeps(self, branch: Branch) -> bool:
        """Whether the client needs a branch that has no place; else it is forgotten."""
        shard = branch.shard
        if not branch.is_idle or self._operation is not None or branch is self._current:
            return True
        if shard in self._watching or shard == self._used_shard or shard == self.default_shard:
            return True
        self.branches.pop(shard, None)
        return False

    def note_tubes(self, line: bytes, reply: bytes) -> None:
        """Note what has come of a use, a watch or an ignore."""
        word, _, name = line.partition(b" ")
        if word == b"use":
            if reply.startswith(b"USING "):
                self.note_used(name.decode("ascii"))
        elif reply.startswith(b"WATCHING "):
            if word == b"watch":
                self.note_watched(name.decode("ascii"))
            else:
                self.note_ignored(name.decode("ascii"))

    def note_used(self, name: str) -> None:
        self.used = name
        self._used_shard = self._shard_of(name)

    def note_watched(self, name: str) -> None:
        if self.watched.add(name):
            self._watching.setdefault(self._shard_of(name), {})[name] = None
            self._find_only()

    def note_ignored(self, name: str) -> None:
        if self.watched.remove(name):
            shard = self._shard_of(name)
            names = self._watching[shard]
            del names[name]
            if not names:
                del self._watching[shard]
                self._find_only()

    def find_ends(self, data: bytes) -> list[int]:
        """Where commands end in these bytes, which begin with one."""
        framer = Framer(LONG_COMMANDS)
        framer.feed(data)
        ends = []
        in_body = False
        while (event := framer.next()) != NEED_MORE:
            in_body = False
            if event == LINE:
                line = framer.take()
                size = self._body_size(line) if line.startswith(_BODIES) else -1
                if size >= 0:
                    framer.begin_body(size, False)
                    in_body = True
            if not in_body:
                ends.append(len(data) - framer.size())
        return ends

    def shorten(self, line: bytes, waited: int) -> bytes:
        """The line of a reserve with a timeout, which has waited for this many nanoseconds."""
        word, _, text = line.partition(b" ")
        command = self._dialect.with_arguments.get(word)
        if command is None or command.read is None or not command.read(text, _ARGUMENTS):
            return line
        timeout = _ARGUMENTS.duration
        if timeout == FOREVER or not timeout:
            return line
        left = write_duration(max(timeout - waited, 0))
        if word == b"reserve-batch":
            return b"reserve-batch %d %b" % (_ARGUMENTS.count, left)
        return b"reserve-with-timeout %b" % left

    # Taking commands apart

    def run(self) -> None:
        """Pass on commands, and do those that are done here, until one has to wait or the turn is over (then `has_more`
        is set)."""
        self.has_more = False
        self._budget = QUANTUM
        while not (self.closed or self.output_paused or self._operation is not None) and self._pass_on():
            if self._budget <= 0:
                self.has_more = True
                return
        if self._input_ended and not self.closed:
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Close when all the input has been done. The rest may be half a command, which never is."""
        if self._operation is not None or self._held is not None or not self._needs_more:
            return
        current = self._current
        if current is None or len(current.entries) == (1 if self.in_body else 0):
            self.closed = True

    def _pass_on(self) -> bool:
        """Pass commands on to one branch, or do one that is done here; return whether there may be more to do."""
        branch = self._current
        limit = 0
        taken = 0  # bytes for the branch
        ends = 0  # commands that end in them
        tail = 0  # bytes behind the last end
        dropped = 0  # bytes of a line that is too long
        goes_on = False
        framer = self._framer
        size = framer.size()
        if branch is not None and branch.entries:
            limit = branch.limit()
            if limit <= 0:
                return False
        elif self._needs_more and self._held is None:
            return False
        line = self._held
        self._held = None
        while True:
            if line is None:
                if not size:
                    self._needs_more = True
                    break
                event = framer.next()
                left = framer.size()
                consumed = size - left
                size = left
                if event == NEED_MORE:
                    self._needs_more = True
                    if self.in_body:
                        taken += consumed
                        tail += consumed
                    else:
                        dropped = consumed
                    break
                if event == LINE:
                    line = framer.take()
                elif event == LINE_TOO_LONG:
                    dropped = consumed
                    self._held = _TOO_LONG
                    goes_on = True
                    break
                else:  # the end of a body, whose command is an entry already
                    self.in_body = False
                    taken += consumed
                    tail = 0
                    ends += 1
                    if taken >= limit or ends >= QUANTUM:
                        goes_on = True
                        break
                    continue
            body = self._bodies.get(line, -1)
            shard = self._used_shard if body >= 0 else self._route(line)
            if branch is None or shard != branch.shard:
                if shard == _ANYWHERE:
                    shard = self._used_shard if branch is None else branch.shard
                if branch is None or shard != branch.shard:
                    if taken or (branch is not None and branch.entries) or (shard == _ALONE and self.asked):
                        self._held = line
                        goes_on = taken > 0
                        break
                    if shard == _ALONE:
                        self._take_input(0 if line == _TOO_LONG else len(line) + _CRLF)
                        self._begin(line)
                        self._budget -= 1
                        return True
                    branch = self._current = self.branch(shard)
                    limit = 0
            if not limit:
                limit = branch.limit()
                if limit <= 0:
                    self._held = line
                    break
            if body < 0 and line.startswith(_BODIES):
                body = self._body_size(line)
            branch.entries.append(line)
            taken += len(line) + _CRLF
            if body >= 0:
                framer.begin_body(body, False)
                self.in_body = True
                tail = len(line) + _CRLF
            else:
                ends += 1
                tail = 0
                if taken >= limit or ends >= QUANTUM:
                    goes_on = True
                    break
            line = None
        self._budget -= ends + 1
        if taken:
            assert branch is not None, "it has taken something"
            branch.pass_on(self._take_input(taken), ends, tail)
        if dropped:
            self._take_input(dropped)
        return goes_on

    def _route(self, line: bytes) -> int:
        """The shard that a command goes to, _ANYWHERE, or _ALONE."""
        if self.places.shards == 1 and not line.startswith(_SPECIAL):
            return 0
        word, space, text = line.partition(b" ")
        kind = (_WITH_ARGUMENTS if space else _WITHOUT_ARGUMENTS).get(word, _OTHER)
        if kind == USED:
            return self._used_shard
        if kind == JOB:
            return self._shard_of_job(text)
        if kind == WATCHED:
            return self._shard_of_reserve(word, text)
        if kind == NAMED:
            return self.places.of_tube(text.partition(b" ")[0])
        if kind == _USE:
            if not read_name(text, _ARGUMENTS):
                return _ANYWHERE
            shard = self.places.of_tube(text)
            return shard if shard == self._used_shard else _ALONE
        if kind == _WATCHING:
            return _ALONE if read_name(text, _ARGUMENTS) else _ANYWHERE
        if kind == _HERE:
            return _ALONE if self._is_well_formed(word, text) else _ANYWHERE
        if line.startswith(_PAUSE):
            return self.places.of_tube(line[len(_PAUSE) :].lstrip(b" ").partition(b" ")[0])
        if line.startswith((_QUIT, *HTTP_METHODS)) and b"\0" not in line:
            return _ALONE
        if line == _TOO_LONG or word in _FORBIDDEN:
            return _ALONE
        return _ALONE if self._authenticate is not None and line.startswith(AUTH) else _ANYWHERE

    def _shard_of(self, name: str) -> int:
        return self.places.of_tube(name.encode("ascii"))

    def _shard_of_job(self, text: bytes) -> int:
        digits = text if text.isdigit() else text.lstrip(b" ").partition(b" ")[0]
        return self.places.of_job(int(digits)) if digits.isdigit() else _ANYWHERE

    def _shard_of_reserve(self, word: bytes, text: bytes) -> int:
        shard = self._only
        if shard >= 0 and not self._holds_elsewhere(shard):
            return shard
        if not self._watching:
            return _ANYWHERE
        return _ALONE if self._is_well_formed(word, text) else _ANYWHERE

    def _is_well_formed(self, word: bytes, text: bytes) -> bool:
        """Whether the arguments of a command can be read; then they are at hand."""
        command = self._dialect.with_arguments.get(word)
        return command is None or command.read is None or command.read(text, _ARGUMENTS)

    def _body_size(self, line: bytes) -> int:
        """The size of the body that follows a line; -1 if none does."""
        word, _, text = line.partition(b" ")
        command = self._dialect.with_arguments.get(word)
        if command is None or not command.has_body or command.read is None or not command.read(text, _ARGUMENTS):
            return -1
        put = _ARGUMENTS.put
        assert put is not None, "the arguments of put have been read"
        if put.trailing and put.size <= self.max_job_size:
            return -1
        if word == b"put":
            if len(self._bodies) >= CACHE_SIZE:
                self._bodies.clear()
            self._bodies[line] = put.size
        return put.size

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
        self._held = None
        self._needs_more = True
        self._position = self.input_size = 0

    # Commands that are begun when nothing is unanswered

    def _begin(self, line: bytes) -> None:
        """Do a command that is done here, or begin an operation."""
        if line == _TOO_LONG:
            self._output.append(replies.BAD_FORMAT)
            return
        if line.startswith((_QUIT, *HTTP_METHODS)):
            self.closed = True
            if not line.startswith(_QUIT):
                self.speaks_http = True
                self._output.append(replies.UNKNOWN_COMMAND)
            self._drop_input()
            return
        word, _, text = line.partition(b" ")
        if word in _FORBIDDEN:
            self._output.append(replies.BAD_FORMAT if b"\0" in line else replies.UNKNOWN_COMMAND)
        elif word == b"auth":
            self._try_token(line)
        elif line == b"list-tube-used":
            self._output.append(replies.using(self.used))
        elif line == b"list-tubes-watched":
            entries = b"".join([b"- %b\n" % name.encode("ascii") for name in self.watched.names])
            self._output.append(replies.ok(tube_list(entries)))
            self._budget -= len(entries) >> 6
        else:
            self._operation = self._make_operation(word, text)
            self._operation.begin()

    def _make_operation(self, word: bytes, text: bytes) -> Operation:
        """An operation for a command that concerns several shards, or changes which ones commands concern."""
        if word == b"use":
            return _Use(self, text.decode("ascii"))
        if word == b"watch":
            return _Watch(self, text.decode("ascii"))
        if word == b"ignore":
            return _Ignore(self, text.decode("ascii"))
        if word == b"stats":
            return SummedStatistics(self, self._all_shards())
        if word == b"list-tubes":
            return AllTubes(self, self._all_shards())
        if word == b"stats-tubes":
            is_well_formed = self._is_well_formed(word, text)
            assert is_well_formed, "what is malformed goes anywhere"
            return PageOfTubes(self, self._all_shards(), _ARGUMENTS.name, _ARGUMENTS.count)
        if word == b"list-clients":
            return AllClients(self, self._all_shards())
        if word == b"drain":
            return DrainMode(self, self._all_shards(), word, replies.DRAINING)
        if word == b"undrain":
            return DrainMode(self, self._all_shards(), word, replies.NOT_DRAINING)
        return self._make_reserving(word, text)

    def _make_reserving(self, word: bytes, text: bytes) -> Operation:
        """A reserve of the tubes of several shards, or of one while the client holds jobs of another."""
        shards = set(self._watching)
        for branch in self.branches.values():
            if branch.holdings:
                shards.add(branch.shard)
        counting = self.default_shard
        ordered = sorted(shards)
        if counting in shards:
            ordered.remove(counting)
            ordered.insert(0, counting)
        if word == b"reserve":
            return Reserving(self, ordered, word, 0, FOREVER)
        read = self._dialect.with_arguments[word].read
        assert read is not None and read(text, _ARGUMENTS), "the line is well-formed"
        limit = _ARGUMENTS.count if word == b"reserve-batch" else 0
        return Reserving(self, ordered, word, limit, _ARGUMENTS.duration)

    def _all_shards(self) -> list[int]:
        """All of them, that of the default tube first."""
        first = self.default_shard
        return [first, *[shard for shard in range(self.places.shards) if shard != first]]

    def _try_token(self, line: bytes) -> None:
        """Find the user of a token."""
        token = parse_auth(line)
        assert self._authenticate is not None, "auth is a command"
        user = self._authenticate(token) if token else None
        if user is None:
            self._output.append(replies.UNAUTHORIZED)
            self.closed = True
            self._drop_input()
        else:
            self.change_user(user)
            self._output.append(replies.AUTHENTICATED)

    # Tubes

    def judge_watched(self, user: User) -> None:
        """Note that leaders let this user watch only what it may consume from, as they have the same users."""
        if not user.everywhere & CONSUME:
            for name in self.watched.names[::-1]:
                if not user.rights(name) & CONSUME:
                    self.note_ignored(name)

    def _count_watched(self) -> None:
        for name in self.watched.names:
            self._watching.setdefault(self._shard_of(name), {})[name] = None
        self._find_only()

    def _find_only(self) -> None:
        self._only = -1
        if len(self._watching) == 1:
            for shard in self._watching:
                self._only = shard


class _Gone:
    """Takes the place of the owner of a session that is closed."""

    def open(self, _branch: Branch, _opening: Opening) -> Place | None:
        return None

    def on_output(self) -> None:
        """Nobody is there who would look."""


_GONE: Final = _Gone()

_bodies: Final[dict[int, dict[bytes, int]]] = {}
"""Sizes of bodies by the lines of puts, for each limit of a body. Clients send a few such lines, over and over."""


class _OfTube(Operation):
    """A command that the shard of a tube is asked, whichever the client's are."""

    __slots__ = ("_name", "_router")

    word: ClassVar[bytes]

    def __init__(self, router: RoutingSession, name: str) -> None:
        self._router = router
        self._name = name

    def begin(self) -> None:
        name = self._name.encode("ascii")
        router = self._router
        router.branch(router.places.of_tube(name)).ask(b"%b %b" % (self.word, name), self._end)

    def _end(self, reply: bytes) -> None:
        raise NotImplementedError


class _Use(_OfTube):
    """Use a tube of another shard than the one before."""

    __slots__ = ()

    word = b"use"

    def _end(self, reply: bytes) -> None:
        router = self._router
        if reply.startswith(b"USING "):
            left = router.branch(router.places.of_tube(router.used.encode("ascii")))
            router.note_used(self._name)
            if left.place is not None:  # the next leader is told what is used
                left.ask(b"unuse", _drop, repeatable=False)
        router.finish(reply)


class _Watch(_OfTube):
    """Watch a tube; the answer says how many are watched in all shards."""

    __slots__ = ()

    word = b"watch"

    def _end(self, reply: bytes) -> None:
        router = self._router
        if reply.startswith(b"WATCHING "):
            router.note_watched(self._name)
            reply = replies.watching(len(router.watched.names))
        router.finish(reply)


class _Ignore(Operation):
    """Watch a tube no more. A shard may be left without any, and only the last of all stays. Nobody refuses that, so it
    need not wait for a leader."""

    __slots__ = ("_is_last", "_name", "_router")

    def __init__(self, router: RoutingSession, name: str) -> None:
        self._router = router
        self._name = name
        self._is_last = name in router.watched and len(router.watched.names) == 1

    def begin(self) -> None:
        name = self._name.encode("ascii")
        router = self._router
        branch = router.branch(router.places.of_tube(name) if self._name in router.watched else router.default_shard)
        if branch.place is None:
            self._end(b"")
        else:
            branch.ask(b"ignore " + name if self._is_last else b"unwatch " + name, self._end, repeatable=False)

    def _end(self, _: bytes) -> None:
        router = self._router
        if self._is_last:
            router.finish(replies.NOT_IGNORED)
        else:
            router.note_ignored(self._name)
            router.finish(replies.watching(len(router.watched.names)))


def _drop(_: bytes) -> None:
    """Takes a reply that tells nothing."""
