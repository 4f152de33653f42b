"""A routed client: each of its commands goes to the shard that it concerns, and the replies come back in order.

    which shard              commands
    -----------------------  -----------------------------------------------------------------------------------
    of the tube in use       put, put-with, the keyed commands, peek-ready, peek-delayed, peek-buried, kick
    of the tube named        use, watch, ignore, pause-tube, stats-tube, clear-tube, redrive, list-jobs, move-jobs
    of the group's tube      stats-group, cancel-group
    of the job               commands with an id; delete-batch, release-batch and touch-batch are an operation if the
                             jobs are of several shards
    of the watched tubes     reserve, reserve-with-timeout, reserve-batch; an operation if there are several
    all of them              stats, list-tubes, stats-tubes, list-clients, drain, undrain: operations
    that of the reserve      cancel-reserve, which has no reply of its own; an operation is called off here
    none                     quit, requests of HTTP, and auth, because a leader gets the user, and never sees a
                             token; with several shards also list-tube-used and list-tubes-watched
    any                      what is unknown or malformed, so that a server of another version may know it; but not
                             what only nodes may say

With one shard, which another node leads then, all but quit, HTTP and auth goes there as it comes.

Commands are in flight at one shard at a time. Those that follow one another and concern the same shard go there in one
piece, and their replies come back as they are; the first that concerns another shard waits for the last of these
replies.

If the shard is led here, its session reads the commands one after the other, as they are taken apart here
(`find_next`), until one concerns another shard. For other nodes, the client's bytes are taken apart only to find where
commands end, and the replies only to find which of them are answered. That is needed for the day when a leader goes:
the next one is given the commands that have no answer, and which tubes the client uses and watches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from beanstalk_server import version
from beanstalk_server.access.rights import CONSUME, User
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.units import FOREVER
from beanstalk_server.queue.weights import PRIORITY
from beanstalk_server.routing.branch import Branch, Place
from beanstalk_server.routing.local import LocalPlace
from beanstalk_server.routing.operations import (
    AllClients,
    AllShards,
    AllTubes,
    Counted,
    Divided,
    Ignore,
    Operation,
    PageOfTubes,
    SummedStatistics,
    TellAll,
    Use,
    Watch,
)
from beanstalk_server.routing.reserving import Reserving
from beanstalk_server.server.turns import Turns
from beanstalk_server.wire import replies
from beanstalk_server.wire.commands import (
    ALL_PUTS,
    CANCEL_RESERVE,
    CANCELS,
    DIALECTS,
    EXTENSION_PUTS,
    EXTENSIONS,
    LONG_COMMANDS,
    LONGEST_COMMANDS,
    PAUSE_TUBE,
    PLACE_COMMANDS,
    PROTOCOL,
    PUT_PREFIX,
    QUIT,
    Command,
    Dialect,
)
from beanstalk_server.wire.framing import (
    HTTP_METHODS,
    LINE,
    LINE_LIMIT,
    LINE_LOST,
    LINE_TOO_LONG,
    NEED_MORE,
    Framer,
    Prefixes,
)
from beanstalk_server.wire.grammar import (
    AUTH,
    Arguments,
    parse_auth,
    parse_put,
    parse_watched,
    read_mode,
    read_name,
    size_of_body,
    write_duration,
    write_watched,
)
from beanstalk_server.wire.places import (
    COUNT,
    DIVISION,
    EVERYTHING,
    GROUP,
    IGNORE_TUBE,
    ITSELF,
    JOB,
    JOBS,
    LIST_OF_CLIENTS,
    LIST_OF_TUBES,
    NAMED,
    PAGE_OF_TUBES,
    RESERVE_OF_BEST,
    SAME_OF_ALL,
    SUM,
    TELL_ALL,
    USE_TUBE,
    USED,
    WATCH_TUBE,
    WATCHED,
    Places,
)
from beanstalk_server.wire.yaml import tube_list

DEFAULT: Final = "default"

QUANTUM: Final = 2048
"""The budget of one turn: this many commands, or 64 times as many bytes of replies that are made here."""

# Where a command goes, if it is not the number of a shard.
ANYWHERE: Final = -1
ALONE: Final = -2
"""It is begun when nothing is unanswered, and `begin` does it."""

UNSAFE: Final = -2
"""Instead of the size of a body: where it ends is uncertain, so nothing that follows may be taken for a command."""

TOO_LONG: Final = b"\r"
"""Stands for a line that was too long, and has been dropped: no line has a CR at its end."""

FORBIDDEN: Final = frozenset([command.name.encode() for command in PLACE_COMMANDS])
"""What sessions of places understand, and no client may say."""

_CALL_OFF: Final = CANCEL_RESERVE.name.encode()
"""The only command without a reply: it goes where the last one went, which it may call off."""

_WITH_BODIES: Final = [command for command in PROTOCOL + EXTENSIONS if command.has_body]
_BODIES: Final = Prefixes(tuple([command.name.encode() for command in _WITH_BODIES]))
_BODIES_OF_JOBS: Final = Prefixes(tuple([command.name.encode() for command in _WITH_BODIES if command.concerns == JOB]))
_QUIT: Final = QUIT.name.encode()
_CRLF: Final = 2

_SPECIAL: Final = Prefixes((_QUIT, AUTH, TOO_LONG, *HTTP_METHODS, *sorted(FORBIDDEN)))
"""How lines begin that do not go to the leader, perhaps."""

# What becomes of a command, if that is not what it concerns: USED, NAMED, JOB or WATCHED.
_USE: Final = -1
_WATCHING: Final = -2
_HERE: Final = -3
_OTHER: Final = -4


def _kinds(has_arguments: bool) -> dict[bytes, int]:
    """What becomes of commands, by name."""
    kinds = {}
    for command in PROTOCOL + EXTENSIONS:
        if has_arguments is (command.read is not None) and command not in (CANCEL_RESERVE, PAUSE_TUBE, QUIT):
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

_ARGUMENTS: Final = Arguments()


class Owner(Protocol):
    """Has the client, and knows the leaders."""

    has_left: bool
    """If the client goes now, it has done so by itself."""

    def begin(self) -> None:
        """Note that the router is about to be called by what follows from a turn or a commit, and `go_on` follows."""

    def go_on(self) -> None:
        """Send what the router has answered, and do what follows."""

    def open(self, branch: Branch, opening: Opening) -> Place | LocalPlace | None:
        """Open a place at the leader of the branch's shard. None if it has no leader now: `Branch.on_leader` follows
        when it has one."""

    def on_output(self) -> None:
        """There may be replies to take, and `closed` may have changed. Called by what a place calls, and not by what
        the owner calls, who looks for itself."""


class Watched:
    """The tubes that a client watches, in the order in which a session has them."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._positions: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._positions

    def add(self, name: str) -> bool:
        """Add one; False if it is watched already."""
        if name in self._positions:
            return False
        self._positions[name] = len(self.names)
        self.names.append(name)
        return True

    def remove(self, name: str) -> bool:
        """Remove one; False if it is not watched. As in beanstalkd, the last one takes its place."""
        position = self._positions.pop(name, -1)
        if position < 0:
            return False
        last = self.names.pop()
        if last != name:
            self.names[position] = last
            self._positions[last] = position
        return True


class Router:
    """One client that is routed.

    Args:
        places: which shard a tube or a job belongs to.
        owner: opens places.
        clock: nanoseconds.
        name: what the log calls the client.
        max_job_size: the longest body that leaders take, in bytes.
        authenticate: finds the user whose token this is, or None: auth is a command. None if it is not.
        user: who the client has proved to be; None where no proof is asked for.
        used: the tube that it uses.
        watched: the tubes that it watches, in their order.
        dialect: the commands that leaders know.
        closes_after_put: whether a malformed put closes the connection, as in Session.
    """

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
        self._authenticate = authenticate
        self._due: list[LocalPlace] = []  # places led here with replies to operations
        self._turns: Turns | None = None  # of a shard led here that has done something
        self._held: bytes | None = None  # a line that waits for its turn; its bytes are the first of the input
        self._held_shard = ALONE  # where it goes, if the session of a shard led here has found it
        self._input: deque[bytes] = deque()  # has come, and has not been passed on
        self._input_ended = False
        # the end of a body is uncertain: nothing that has come behind it may be taken for a command
        self._is_torn = False
        self._needs_more = True  # there is no whole command in what has come
        self._only = -1  # the shard of all watched tubes; -1 if there are several, or none is watched
        self._operation: Operation | None = None
        self._output: list[bytes] = []
        self._position = 0  # where in the first piece of the input begins what has not been passed on
        self._watching: dict[int, dict[str, None]] = {}  # the watched tubes of each shard
        self.aborted = False  # what has not been sent to the client is lost
        self.asked = 0  # commands without an answer that are not the client's, at all branches
        self.branches: dict[int, Branch] = {}  # opened when they are first needed
        self.budget = QUANTUM  # how much more this turn may cost
        self.client_name = ""  # the name that it has given itself, or ""
        self.clock = clock
        self.closed = False  # nothing more is done for the client, once it has been sent what `take_replies` returns
        self.closes_after_put = closes_after_put
        # default_shard: of the tube that every client begins with
        # counted_at: the shard whose statistics count the client
        self.counted_at = self.default_shard = places.of_tube(DEFAULT.encode("ascii"))
        self.current: Branch | None = None  # the branch that the last command went to
        self.dialect = dialect
        self.framer = Framer(LONG_COMMANDS, LONGEST_COMMANDS, ALL_PUTS if closes_after_put else EXTENSION_PUTS)
        # it is closed because a leader was lost, or has closed, and not because the client wants it
        self.failed = False
        self.finish = 0  # the greatest one with which a tube of it was served, if tubes take turns (queue/weights.py)
        self.has_more = False  # the turn was over before the input was: `run` can go on at once
        self.in_body = False  # the body of the last command has not all come
        self.input_size = 0  # bytes that have come and have not been passed on
        self.is_busy = False  # a command is under way that several shards are asked for
        self.malformed_puts = 0  # how many were answered here
        self.max_job_size = max_job_size
        self.may_wait = True  # a reserve may wait for a job
        self.mode = PRIORITY  # how its tubes are served: PRIORITY, WEIGHTED or FAIR
        self.name = name
        self.output_paused = False
        self.owner = owner
        self.places = places
        self.speaks_http = False  # it is closed because of that
        self.used = used
        self.used_shard = places.of_tube(used.encode("ascii"))
        self.user = user
        self.watched = Watched()
        self.weights: dict[str, int] = {}  # of tubes that it watches, if it has given them any, by name
        for tube in [DEFAULT] if watched is None else watched:
            self.note_watched(tube)
        if user is not None:
            self.judge_watched(user)

    # What the owner calls

    def start(self) -> None:
        """Open the places of a client that has come: where it is counted, and those of its tubes."""
        for shard in (self.default_shard, self.used_shard, *self._watching):
            self.branch(shard)

    def receive(self, data: bytes) -> None:
        """Take bytes from the client. After a quit, they are dropped."""
        if self.closed:
            return
        self._needs_more = False
        self._input.append(data)
        self.input_size += len(data)
        self.framer.feed(data)
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
            branch.hang_up()

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

    def is_idle(self) -> bool:
        """Whether the client waits for no job and holds none, and has been answered."""
        if self.is_busy or self.asked or self.has_more or self.output_paused or self._held is not None:
            return False
        for branch in self.branches.values():
            if self._waits_for(branch) or branch.holds():
                return False
        return not self.closed

    def change_user(self, user: User) -> None:
        """Let the client be this user from now on. Tubes that it may not consume from are watched no more."""
        self.user = user
        self.judge_watched(user)
        self.tell_user(user)

    def tell_user(self, user: User) -> None:
        """Let the client be this user at all places."""
        for branch in self.branches.values():
            branch.change_user(user)

    def deliver(self) -> None:
        """Hand over what shards led here have replied to operations."""
        due = self._due
        while due:
            due.pop(0).deliver()

    def take_turns(self) -> Turns | None:
        """The turns of a shard led here that has done something since the last call: they are to be given."""
        turns, self._turns = self._turns, None
        return turns

    def close(self) -> None:
        """Close all places, and forget the owner: the client is gone, or served by a connection."""
        self.closed = True
        self.owner = _GONE
        for branch in self.branches.values():
            branch.close()
        self.branches.clear()
        self.current = None
        self._operation = None  # they have referred to each other, and the collector may be off
        self._due.clear()

    # Where the client has something

    def _holds_elsewhere(self, shard: int) -> bool:
        return any(other != shard and branch.holds() for other, branch in self.branches.items())

    def holding(self) -> list[int]:
        """The shards where the client holds jobs."""
        return [shard for shard, branch in self.branches.items() if branch.holds()]

    def concerned(self) -> list[int]:
        """The shards where it watches tubes or holds jobs, that of the default tube first."""
        concerned = {*self._watching, *self.holding()}
        return [shard for shard in self.all_shards() if shard in concerned]

    def all_shards(self) -> list[int]:
        """All shards, that of the default tube first."""
        first = self.default_shard
        return [first, *[shard for shard in range(self.places.shards) if shard != first]]

    # Input that is read again

    def can_be_handed_over(self) -> bool:
        """Whether a connection can go on with the client, as there is one shard, whose place is lost: `take_all` is
        what it has to do."""
        current = self.current
        # If the end of a body is uncertain, and all is answered, the client is closed when it has read that.
        return not self._is_torn or (current is not None and bool(current.entries))

    def begin_again(self) -> None:
        """Let what has not been answered be read by the session at a shard that is led here."""
        data = self.take_all()
        self.framer.reset()
        self._is_torn = False
        self._needs_more = False
        self._input.append(data)
        self.input_size = len(data)
        self.framer.feed(data)

    def begin_put_again(self, line: bytes) -> None:
        """Let a put be read again whose body has not all come: its session, to which it was given, is gone.

        Args:
            line: the put, with its CR LF.
        """
        data = line + self.framer.take_rest()
        self._drop_input()
        self._needs_more = False
        self._input.append(data)
        self.input_size = len(data)
        self.framer.feed(data)

    def take_all(self) -> bytes:
        """All that the client has sent and has not been answered. No place may have it."""
        current = self.current
        lines = b"" if current is None or not current.entries else current.take_unanswered()
        if not self.in_body and self.framer.has_dropped():
            lines += _DROPPED
        elif self._held == TOO_LONG:
            lines += _DROPPED + b"\r\n"
        self._held = None
        self.in_body = False
        rest = self._take_input(self.input_size)
        self._drop_input()
        return lines + rest

    # What branches call

    def branch(self, shard: int) -> Branch:
        """What the client has at a shard. It is opened when it is first needed."""
        branch = self.branches.get(shard)
        if branch is None:
            branch = self.branches[shard] = Branch(self, shard)
            branch.reopen()
        return branch

    def opening(self, shard: int) -> Opening:
        """What a leader of this shard must know of the client."""
        used = self.used if self.used_shard == shard else ""
        here = self._watching.get(shard, {})
        watched = self.watch_entries([name for name in self.watched.names if name in here])
        return Opening(
            self.name, self.user_name(), used, watched, shard == self.counted_at, self.mode, self.client_name
        )

    def watch_entries(self, names: Iterable[str]) -> list[str]:
        """These tubes, with the weights that the client has given them."""
        weights = self.weights
        return [write_watched(name, weights.get(name, 0)) for name in names]

    def user_name(self) -> str | None:
        return None if self.user is None else self.user.name

    def find_next(self, shard: int) -> int:
        """Find what comes next, for the session of a shard that is led here: as `Framer.next`, but NEED_MORE if it does
        not concern the shard. The caller takes a line here, also one that is too long, and a body from the framer."""
        if self._held is None:
            framer = self.framer
            found = framer.next()
            self._needs_more = found == NEED_MORE or not framer.data  # the session asks only while there is something
            if found == LINE_TOO_LONG:
                self._held = TOO_LONG
                self._held_shard = shard
            elif found != LINE:
                return found
            else:
                line = framer.take()
                concerned = self.route(line)
                self._held = line
                self._held_shard = shard if concerned == ANYWHERE else concerned
        if self._held_shard != shard:
            return NEED_MORE
        return LINE_TOO_LONG if self._held == TOO_LONG else LINE

    def unread(self) -> bytes:
        """Some of what has come and has not been taken; b"" if there is nothing."""
        return self.framer.data if self._held is None else b"\n"

    def take_line(self) -> bytes:
        """Hand over the line that `find_next` has found."""
        line, self._held = self._held, None
        assert line is not None, "it has been found"
        return line

    def put_back(self, line: bytes) -> None:
        """Take back the line that was handed over last: it comes next again."""
        self._held = line

    def starts_with(self, prefixes: tuple[bytes, ...]) -> bool:
        """Whether the line that `find_next` has found begins with one of these."""
        line = self._held
        return line is not None and (line + b"\r\n").startswith(prefixes)

    def input_left(self) -> int:
        """How many bytes have come and have not been taken."""
        line = self._held
        return self.framer.size() + (0 if line is None or line == TOO_LONG else len(line) + _CRLF)

    def note_done(self, branch: Branch) -> int:
        """Note what the session at a branch has taken, and which tube it uses; return how many bytes it has taken."""
        left = self.input_left()
        taken = self.input_size - left
        if not left:
            self._input.clear()
            self._position = self.input_size = 0
        elif taken:
            self._skip_input(taken)
        if branch.shard == self.used_shard and branch.local is not None:
            session = branch.local.session
            if session.uses and session.use.name != self.used:
                self.used = session.use.name
        return taken

    def note_due(self, place: LocalPlace) -> None:
        """Let the replies of a place to operations, or its end, be handed over when the router is at rest."""
        self._due.append(place)
        self.owner.on_output()

    def note_turns(self, turns: Turns) -> None:
        """Let turns of a shard led here be given when the router is at rest: it may have served other clients."""
        before = self._turns
        if before is not None and before is not turns:
            before.run_pending_soon()
        self._turns = turns

    def pass_back(self, data: bytes) -> None:
        """Note bytes for the client."""
        self._output.append(data)

    def go_on(self) -> None:
        """Do what can be done now; tell the owner."""
        self.run()
        self.owner.on_output()

    def fail(self, at_once: bool = False) -> None:
        """Disconnect the client: what has become of its commands is not known."""
        self.failed = self.failed or not (self.closed or self._is_torn)
        self.closed = True
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
        if not branch.is_idle or self._operation is not None or branch is self.current:
            return True
        if shard in self._watching or shard == self.used_shard or shard == self.default_shard:
            return True
        self.branches.pop(shard, None)
        return False

    def note_tubes(self, line: bytes, reply: bytes) -> None:
        """Note what has come of a use, a watch, an ignore, a reserve-mode or a client-name."""
        word, _, name = line.partition(b" ")
        if word == b"use":
            if reply.startswith(b"USING "):
                self.note_used(name.decode("ascii"))
        elif word == b"client-name":
            if reply == replies.NAMED:
                self.client_name = name.decode("ascii")
        elif word == b"reserve-mode":
            if reply.startswith(b"RESERVE_MODE ") and read_mode(name, _ARGUMENTS):
                self.note_mode(_ARGUMENTS.mode)
        elif reply.startswith(b"WATCHING "):
            if word == b"watch":
                self.note_watched(name.decode("ascii"))
            else:
                self.note_ignored(name.decode("ascii"))

    def note_used(self, name: str) -> None:
        self.used = name
        self.used_shard = self._shard_of(name)

    def note_watched(self, entry: str) -> None:
        """Note a tube, and its weight if it has one."""
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

    def note_mode(self, mode: int) -> None:
        """Note how its tubes are served from now on: their turns begin anew."""
        self.mode = mode
        self.finish = 0

    def find_ends(self, data: bytes) -> list[int]:
        """Where commands end in these bytes, which begin with one."""
        framer = Framer(LONG_COMMANDS, LONGEST_COMMANDS)
        framer.feed(data)
        ends = []
        line = b""
        in_body = False
        while (event := framer.next()) != NEED_MORE:
            in_body = False
            line = framer.take()
            if event == LINE:
                size = self._body_size(line) if _BODIES.begin(line) else -1
                if size >= 0:
                    framer.begin_body(size, False)
                    in_body = True
            if not in_body and line != _CALL_OFF:
                ends.append(len(data) - framer.size())
        return ends

    def shorten(self, line: bytes, waited: int) -> bytes:
        """The line of a reserve with a timeout, which has waited for this many nanoseconds."""
        word, _, text = line.partition(b" ")
        command = self.dialect.with_arguments.get(word)
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
        self._run()
        while self._operation is not None and self._held is None and self.framer.begins_with(CANCELS):
            if not self._operation.call_off():
                return
            self.framer.next()
            self._take_input(len(self.framer.take()) + _CRLF)
            self._run()

    def _run(self) -> None:
        self.has_more = False
        self.budget = QUANTUM
        while not (self.closed or self.output_paused or self.is_busy) and self._pass_on():
            if self.budget <= 0:
                self.has_more = True
                return
        if self._input_ended and not self.closed:
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Close when all the input has been done. The rest may be half a command, which never is."""
        if self.is_busy or self._held is not None or not self._needs_more:
            return
        if self.current is None or not self._waits_for(self.current):
            self.closed = True

    def _waits_for(self, branch: Branch) -> bool:
        """Whether a command of the client has no answer there, which has come as a whole."""
        if branch.local is not None:
            return branch.is_busy()
        return len(branch.entries) > (1 if self.in_body and branch is self.current else 0)

    def _pull(self, branch: Branch) -> bool:
        """Let the session of a shard that is led here do commands; return whether there may be more to do."""
        local = branch.local
        assert local is not None, "it is led here"
        local.pull()
        self.budget -= local.session.cost
        self._needs_more = self._needs_more or (self._held is None and not self.framer.data)
        return self._held is not None and self._held_shard != branch.shard and not local.is_busy()

    def _pass_on(self) -> bool:
        """Pass commands on to one branch, or do one that is done here; return whether there may be more to do."""
        branch = self.current
        limit = 0
        taken = 0  # bytes for the branch
        ends = 0  # commands that end in them
        tail = 0  # bytes behind the last end
        dropped = 0  # bytes of a line that is too long
        goes_on = False
        framer = self.framer
        if branch is not None and branch.local is not None and not self._is_torn:
            if self._held is None:
                self._needs_more = self._needs_more or not self.framer.data
                return not self._needs_more and self._pull(branch)
            if branch.is_busy():
                return False
        size = framer.size()
        if branch is not None and branch.entries:
            limit = branch.limit()
            if limit <= 0 or self._is_torn:
                return False
        elif self._is_torn:
            self.end()
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
                    self._hold(TOO_LONG)
                    goes_on = True
                    break
                elif event == LINE_LOST:
                    if taken or (branch is not None and branch.entries) or self.asked:
                        goes_on = taken > 0
                        break
                    self._refuse_put()
                    return False
                else:  # the end of a body, whose command is an entry already
                    self.in_body = False
                    taken += consumed
                    tail = 0
                    ends += 1
                    if framer.is_torn:
                        assert branch is not None, "the command of a body has gone there"
                        if self._ends_behind(branch.entries[-1]):
                            break
                    if taken >= limit or ends >= QUANTUM:
                        goes_on = True
                        break
                    continue
            if line == _CALL_OFF:
                if branch is None:
                    branch = self.current = self.branch(self.used_shard)
                if branch.local is None:
                    if not branch.entries:  # nothing waits: the leader counts it, and nothing need be kept
                        branch.count_call_off(self._take_input(len(line) + _CRLF))
                        self.budget -= 1
                        return True
                    taken += len(line) + _CRLF
                    tail += len(line) + _CRLF
                    line = None
                    continue
            body = self._body_size(line) if _BODIES.begin(line) else -1
            if body == UNSAFE:
                shard = ALONE
            else:
                shard = self.used_shard if body >= 0 and not _BODIES_OF_JOBS.begin(line) else self.route(line)
            if branch is None or shard != branch.shard:
                if shard == ANYWHERE:
                    shard = self.used_shard if branch is None else branch.shard
                if branch is None or shard != branch.shard:
                    if taken or (branch is not None and branch.entries) or (shard == ALONE and self.asked):
                        self._hold(line)
                        goes_on = taken > 0
                        break
                    if body == UNSAFE:
                        self._refuse_put()
                        return False
                    if shard == ALONE:
                        self._take_input(0 if line == TOO_LONG else len(line) + _CRLF)
                        self.begin(line)
                        self.budget -= 1
                        return True
                    branch = self.current = self.branch(shard)
                    limit = 0
            if branch.local is not None:
                self._held = line
                self._held_shard = branch.shard
                return self._pull(branch)
            if not limit:
                limit = branch.limit()
                if limit <= 0:
                    self._hold(line)
                    break
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
        self.budget -= ends + 1
        if taken:
            assert branch is not None, "it has taken something"
            branch.pass_on(self._take_input(taken), ends, tail)
        if dropped:
            self._take_input(dropped)
        return goes_on

    def _hold(self, line: bytes) -> None:
        """Let a line wait until it can be routed again."""
        self._held = line
        self._held_shard = ALONE

    def route(self, line: bytes) -> int:
        """The shard that a command goes to, ANYWHERE, or ALONE."""
        if self.places.shards == 1:
            return self._route_special(line) if _SPECIAL.begin(line) else 0
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
        return self._route_special(line)

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

    def _route_special(self, line: bytes) -> int:
        """ALONE if a command is none that leaders are asked, else ANYWHERE."""
        if line.startswith((_QUIT, *HTTP_METHODS)) and b"\0" not in line:
            return ALONE
        if line == TOO_LONG or line.partition(b" ")[0] in FORBIDDEN:
            return ALONE
        return ALONE if self._authenticate is not None and line.startswith(AUTH) else ANYWHERE

    def _body_size(self, line: bytes) -> int:
        """The size of the body that follows a line; -1 if none does, UNSAFE if it is uncertain."""
        if line.startswith(PUT_PREFIX):
            put = parse_put(line, len(PUT_PREFIX))
        else:
            word, space, text = line.partition(b" ")
            command = self.dialect.with_arguments.get(word)
            if command is None or not command.has_body or command.read is None:
                return -1
            put = _ARGUMENTS.put if space and command.read(text, _ARGUMENTS) else None
        if put is not None and (not put.trailing or put.size > self.max_job_size):
            return put.size
        if line.startswith(PUT_PREFIX) or line == b"put":
            return UNSAFE if self.closes_after_put else -1
        size = size_of_body(line)
        return size if size >= 0 else UNSAFE

    def _ends_behind(self, line: bytes) -> bool:
        """Note that the body of the put on this line did not end with CR LF; return whether nothing more is done. The
        leader counts it."""
        self._is_torn = self.closes_after_put or not line.startswith(PUT_PREFIX)
        return self._is_torn

    def _refuse_put(self) -> None:
        """Answer a put whose body has an uncertain end, and do nothing more."""
        self.malformed_puts += 1
        self.answer(replies.BAD_FORMAT)
        self.end()

    def end(self) -> None:
        """Do nothing more: the client has given a command after which it is disconnected."""
        self.closed = True
        self._drop_input()

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

    def _skip_input(self, size: int) -> None:
        """Drop the next bytes that have come."""
        self.input_size -= size
        pieces = self._input
        size += self._position
        while size and size >= len(pieces[0]):
            size -= len(pieces.popleft())
        self._position = size

    def _drop_input(self) -> None:
        self.framer.clear()
        self._input.clear()
        self._held = None
        self._needs_more = True
        self._position = self.input_size = 0

    # Commands that are begun when nothing is unanswered

    def begin(self, line: bytes) -> None:
        """Do a command that is done here, or begin an operation."""
        word, space, text = line.partition(b" ")
        if line == TOO_LONG:
            self.answer(replies.BAD_FORMAT)
        elif line == b"list-tube-used":
            self.answer(replies.using(self.used))
        elif line == b"list-tubes-watched":
            entries = b"".join([b"- %b\n" % name.encode("ascii") for name in self.watched.names])
            self.answer(replies.ok(tube_list(entries)))
            self.budget -= len(entries) >> 6
        elif word in (_WITH_ARGUMENTS if space else _WITHOUT_ARGUMENTS):
            self.is_busy = True
            command = _ROWS[word]
            self._operation = _OPERATIONS[command.across](self, command, text)
            self._operation.begin()
        elif line.startswith((_QUIT, *HTTP_METHODS)):
            if not line.startswith(_QUIT):
                self.speaks_http = True
                self.answer(replies.UNKNOWN_COMMAND)
            self.end()
        elif line.startswith(AUTH):
            self._try_token(line)
        else:
            self.answer(replies.BAD_FORMAT if b"\0" in line else replies.UNKNOWN_COMMAND)

    def answer(self, reply: bytes) -> None:
        """Answer a command that is done here: nothing of it is under way any more."""
        self._operation = None
        self.is_busy = False
        self._output.append(reply)

    def _try_token(self, line: bytes) -> None:
        """Find the user of a token."""
        token = parse_auth(line)
        assert self._authenticate is not None, "auth is a command"
        user = self._authenticate(token) if token else None
        if user is None:
            self.answer(replies.UNAUTHORIZED)
            self.end()
        else:
            self.change_user(user)
            self.answer(replies.AUTHENTICATED)

    def judge_watched(self, user: User) -> None:
        """Note that leaders let this user watch only what it may consume from, as they have the same users."""
        if not user.everywhere & CONSUME:
            for name in self.watched.names[::-1]:
                if not user.rights(name) & CONSUME:
                    self.note_ignored(name)


class _Gone:
    """Takes the place of the owner of a client that is closed."""

    has_left = True

    def begin(self) -> None:
        """Do nothing: the client is gone."""

    def go_on(self) -> None:
        """Do nothing: the client is gone."""

    def open(self, _branch: Branch, _opening: Opening) -> Place | LocalPlace | None:
        return None

    def on_output(self) -> None:
        """Do nothing: the client is gone."""


_GONE: Final = _Gone()

_OPERATIONS: Final[dict[int, Callable[[Router, Command, bytes], Operation]]] = {
    USE_TUBE: Use,
    WATCH_TUBE: Watch,
    IGNORE_TUBE: Ignore,
    TELL_ALL: TellAll,
    RESERVE_OF_BEST: Reserving,
    SAME_OF_ALL: AllShards,
    SUM: SummedStatistics,
    LIST_OF_TUBES: AllTubes,
    LIST_OF_CLIENTS: AllClients,
    PAGE_OF_TUBES: PageOfTubes,
    DIVISION: Divided,
    COUNT: Counted,
}
"""How a command is done that concerns several shards, or changes which ones commands concern."""

_DROPPED: Final = b"x" * LINE_LIMIT
"""Stands for the beginning of a line that was too long, and has been dropped: a session drops it again."""
