"""What a routed client has at one shard: the commands that have gone there, and the replies that come from there.

A branch lives longer than its place. When the place is lost, the branch keeps the bytes of the commands that have not
been answered, and gives them to the next leader of the shard, if they may be given again:

    the place is lost            commands without an answer
    ---------------------------  ----------------------------------------------------------------------------
    cleanly                      none has been executed: all go to the next leader
    not cleanly                  those that change nothing, and what cannot have been executed because its last
                                 byte had not been sent, go to the next leader; else the client is disconnected
    in the middle of a reply     the client has a part of it: it is disconnected

A reserve that is given again waits for the rest of its time.

At any time the entries of a branch are either commands of the client, whose replies go to the client as they come, or
asks of an operation, whose replies go to their sinks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from beanstalk_server.link.opening import Opening
from beanstalk_server.shards.reply_framer import LOST, ReplyFramer

KEPT_LIMIT: Final = 1 << 20
"""Bytes of commands without an answer that are kept, at most. More than that is not sent before there are answers; but
a body that is larger than this goes on, and then its command is not kept."""

UNANSWERED_LIMIT: Final = 4096
"""Commands of a client at one shard without an answer; one turn may take this many more. The next wait for answers."""

REPEATABLE: Final = frozenset(
    {
        b"drain",
        b"ignore",
        b"list-clients",
        b"list-jobs",
        b"list-tube-used",
        b"list-tubes",
        b"list-tubes-watched",
        b"peek",
        b"peek-buried",
        b"peek-delayed",
        b"peek-keyed",
        b"peek-ready",
        b"reserve",
        b"reserve-batch",
        b"reserve-with-timeout",
        b"stats",
        b"stats-job",
        b"stats-tube",
        b"stats-tubes",
        b"undrain",
        b"use",
        b"watch",
    }
)
"""Commands that may be given again to another leader, whatever became of them at the one before. A job that this one
may have reserved is ready at the next, and what is used and watched is as it was."""

TIMED: Final = (b"reserve-with-timeout ", b"reserve-batch ")
"""What a line begins with whose command may have a timeout."""

_CRLF: Final = b"\r\n"

# The first letters of use, watch and ignore.
_U: Final = 117
_W: Final = 119
_I: Final = 105

Sink = Callable[[bytes], None]
"""Gets the whole reply to an ask, with its CR LF; b"" if the place is lost and the ask is not repeatable."""


class Place(Protocol):
    """What a client has open at the leader of a shard: a conversation with a session there.

    No method calls the branch: what follows from it comes in a later call.
    """

    def room(self) -> int:
        """How many bytes may be sent now; if they are too few, `Branch.on_room` follows."""

    def send(self, data: bytes) -> None:
        """Send commands, not more than there is room for."""

    def consumed(self, size: int) -> None:
        """Note that this many bytes which have come are kept here no more."""

    def stop_waiting(self) -> None:
        """Let a reserve that waits there be answered TIMED_OUT."""

    def has_nothing(self) -> bool:
        """Whether it is known here that a probe would be answered NOTHING now, and would change nothing."""

    def change_user(self, name: str) -> None:
        """Tell it that the client is this user from now on."""

    def hang_up(self) -> None:
        """Tell it that the client has hung up, though some of its commands may still come."""

    def close(self) -> None:
        """End the conversation: what the client has reserved there is released."""


class PlaceOpener(Protocol):
    """Has the client, and knows the leaders."""

    def open(self, branch: Branch, opening: Opening) -> Place | None:
        """Open a place at the leader of the branch's shard. None if nobody leads it now: `Branch.on_leader` follows
        when somebody does."""

    def on_output(self) -> None:
        """There may be replies to take, and `closed` or `settled_shard` may have changed. Called by what a place calls,
        and not by what the owner calls, who looks for itself."""


class Router:
    """What a branch, and an operation, has of the client's router, which is a RoutingSession."""

    __slots__ = (
        "asked",  # asks without an answer, at all branches
        "clock",
        "closed",  # nothing more is done for the client, once it has been sent what `take_replies` returns
        "in_body",  # the body of the last command has not all come
        "may_wait",  # a reserve may wait for a job
        "output_paused",
        "owner",
    )

    asked: int
    clock: Callable[[], int]
    closed: bool
    in_body: bool
    may_wait: bool
    output_paused: bool
    owner: PlaceOpener

    def branch(self, shard: int) -> Branch:
        """What the client has at a shard. It is opened when it is first needed."""
        raise NotImplementedError

    def finish(self, reply: bytes) -> None:
        """Answer the operation that is under way."""
        raise NotImplementedError

    def opening(self, shard: int) -> Opening:
        """What a leader of this shard must know of the client."""
        raise NotImplementedError

    def pass_back(self, data: bytes) -> None:
        """Note bytes for the client."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Do what can be done now; tell the owner."""
        raise NotImplementedError

    def fail(self, at_once: bool = False) -> None:
        """Disconnect the client: nobody knows what has become of its commands."""
        raise NotImplementedError

    def on_leader(self, branch: Branch) -> None:
        """A branch has got a place."""
        raise NotImplementedError

    def on_lost(self, branch: Branch) -> None:
        """A branch has lost its place."""
        raise NotImplementedError

    def keeps(self, branch: Branch) -> bool:
        """Whether the client needs a branch that has no place; else it is forgotten."""
        raise NotImplementedError

    def note_tubes(self, line: bytes, reply: bytes) -> None:
        """Note what has come of a use, a watch or an ignore."""
        raise NotImplementedError

    def find_ends(self, data: bytes) -> list[int]:
        """Where commands end in these bytes, which begin with one."""
        raise NotImplementedError

    def shorten(self, line: bytes, waited: int) -> bytes:
        """The line of a reserve with a timeout, which has waited for this many nanoseconds."""
        raise NotImplementedError


class _Ask:
    """A command of an operation that has not been answered."""

    __slots__ = ("line", "repeatable", "sink")

    def __init__(self, line: bytes, sink: Sink, repeatable: bool) -> None:
        self.line = line
        self.sink = sink
        self.repeatable = repeatable


class Branch:
    """What a client has at one shard.

    Args:
        tracks: whether `holdings` are wanted.
    """

    __slots__ = (
        "_answered",  # commands that have been answered, and whose bytes have not been dropped
        "_asks",  # commands of operations without an answer
        "_framer",
        "_is_kept",  # all bytes of the commands without an answer are at hand
        "_kept",  # these bytes in pieces, each with how many commands end in it, and its bytes after the last of them
        "_owed",  # bytes that the client has been sent and has not taken
        "_parts",  # of the reply to the first ask
        "_session",
        "_since",  # when the first command without an answer could begin, if it is a reserve, in nanoseconds
        "_stops",  # the last ask is not to wait, and the place does not know it yet
        "_tracks",
        "_unsent",  # the last bytes that are kept, or asked: the place has had no room for them
        "entries",  # the lines of the client's commands without an answer
        "holdings",  # ids of jobs that the client has reserved there, as far as the replies tell
        "kept_size",  # how many bytes are kept
        "place",  # None while nobody leads the shard
        "shard",
    )

    def __init__(self, session: Router, shard: int, tracks: bool) -> None:
        self._session = session
        self._tracks = tracks
        self._framer = ReplyFramer()
        self._asks: deque[_Ask] = deque()
        self._parts: list[bytes] = []
        self._kept: deque[tuple[bytes, int, int]] = deque()
        self.kept_size = 0
        self._is_kept = True
        self._answered = 0
        self._unsent = b""
        self._owed = 0
        self._since = 0
        self._stops = False
        self.entries: deque[bytes] = deque()
        self.holdings: set[int] = set()
        self.place: Place | None = None
        self.shard = shard

    # What operations call

    def ask(self, line: bytes, sink: Sink, repeatable: bool = True) -> None:
        """Give a command, and get its reply.

        Args:
            line: the command, without CR LF.
            sink: called once with the whole reply; it may ask more. Never called before this returns.
            repeatable: it is kept while nobody leads, and given again to the next leader if the place is lost. If it is
                not, there must be a place, and the sink gets b"" if that is lost before the whole reply has come.
        """
        assert not self.entries, "the client's commands here have been answered"
        self._asks.append(_Ask(line, sink, repeatable))
        self._session.asked += 1
        if self.place is not None:
            self._send(line + _CRLF)

    def stop_waiting(self) -> None:
        """Let the `await` that was asked last be answered now, if it waits. The place gets to know it after the await,
        which it may not have had room for yet. Without a place, there is nothing that waits."""
        if self._unsent:
            self._stops = True
        elif self.place is not None:
            self.place.stop_waiting()

    def has_nothing(self) -> bool:
        """Whether it is known without asking that a probe would be answered NOTHING now, and would change nothing."""
        return self.place is not None and not self._asks and not self._unsent and self.place.has_nothing()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is unanswered."""
        return not (self.entries or self._asks)

    # What the router calls

    def limit(self) -> int:
        """How many bytes of the client's commands are taken now."""
        if self.place is None or self._unsent or self._asks or len(self.entries) >= UNANSWERED_LIMIT:
            return 0
        if self.kept_size >= KEPT_LIMIT or not self._is_kept:
            if not self._session.in_body or (self._is_kept and len(self.entries) > 1):
                return 0
            if self._is_kept:
                self._is_kept = False
                self._kept.clear()
                self.kept_size = 0
        return self.place.room()

    def pass_on(self, data: bytes, ends: int, tail: int) -> None:
        """Send commands of the client, whose lines are entries already.

        Args:
            ends: how many of them end in these bytes.
            tail: how many bytes are left behind the last end.
        """
        if self._is_kept:
            if not self._kept and self.entries[0].startswith(TIMED):
                self._since = self._session.clock()
            self._kept.append((data, ends, tail))
            self.kept_size += len(data)
        self._send(data)

    def resume(self) -> None:
        """Note that the client takes its replies again."""
        owed, self._owed = self._owed, 0
        if owed and self.place is not None:
            self.place.consumed(owed)

    def reopen(self) -> bool:
        """Open a place, and give it what has not been answered; False if nobody leads."""
        session = self._session
        place = session.owner.open(self, session.opening(self.shard))
        if place is None:
            return False
        self.place = place
        self._owed = 0
        if not session.may_wait:
            place.hang_up()
        if self._asks:
            self._unsent = b"".join([ask.line + _CRLF for ask in self._asks])
        elif self.entries:
            self._shorten_wait()
            self._unsent = b"".join([piece[0] for piece in self._kept])
        self._flush()
        return True

    def adopt(self, place: Place, holdings: set[int]) -> None:
        """Have this place from now on, where the client has been served so far."""
        self.place = place
        self.holdings = holdings

    def take_unanswered(self) -> bytes:
        """The client's commands without an answer, of a branch without a place: they are kept no more."""
        self._shorten_wait()
        data = b"".join([piece[0] for piece in self._kept])
        self.entries.clear()
        self._forget_kept()
        return data

    def close(self) -> None:
        """Close the place: nothing more comes. What is asked is forgotten: an operation refers to the branch."""
        self._asks.clear()
        place, self.place = self.place, None
        if place is not None:
            place.close()

    # What the place calls

    def on_leader(self) -> None:
        """Somebody leads the shard: open a place there, if the client still needs one."""
        if self.place is None and self._session.keeps(self) and self.reopen():
            self._session.on_leader(self)

    def on_data(self, data: bytes) -> None:
        """Take replies."""
        place = self.place
        if place is None:
            return
        session = self._session
        if self._asks:
            self._collect(data)
            if self.place is place:
                place.consumed(len(data))
            session.go_on()
            return
        if not self._note_replies(data):
            session.fail()
            return
        session.pass_back(data)
        session.go_on()
        if session.output_paused:
            self._owed += len(data)
        elif self.place is place:
            place.consumed(len(data))

    def on_room(self) -> None:
        """The place has room again."""
        self._flush()
        self._session.go_on()

    def on_lost(self, is_clean: bool) -> None:
        """The place is lost.

        Args:
            is_clean: everything that was executed there has been answered, and the replies have come.
        """
        if self.place is None:
            return
        self.place = None
        self.holdings.clear()
        self._owed = 0
        is_within = self._framer.is_within
        self._framer.clear()
        self._parts.clear()
        session = self._session
        self._stops = False
        if self._asks:
            self._unsent = b""
            self._lose_asks()
        elif self.entries and (is_within or not self._may_repeat(is_clean)):
            session.fail()
            return
        self._unsent = b""
        session.on_lost(self)

    def on_closed(self, at_once: bool) -> None:
        """The leader disconnects the client.

        Args:
            at_once: what has been sent to the client, and has not arrived, is lost.
        """
        if self.place is not None:
            self.place = None
            self._session.fail(at_once)

    # Sending

    def _send(self, data: bytes) -> None:
        place = self.place
        assert place is not None, "somebody leads"
        if self._unsent:
            self._unsent += data
            return
        room = place.room()
        if len(data) <= room:
            place.send(data)
            return
        if room:
            place.send(data[:room])
        self._unsent = data[room:]

    def _flush(self) -> None:
        """Send what there was no room for."""
        unsent = self._unsent
        if unsent and self.place is not None:
            self._unsent = b""
            self._send(unsent)
            if self._stops and not self._unsent:
                self._stops = False
                self.place.stop_waiting()

    # Replies

    def _note_replies(self, data: bytes) -> bool:
        """Find the commands that are answered by these bytes; False if they are no replies to them."""
        session = self._session
        framer = self._framer
        entries = self.entries
        size = len(data)
        position = 0
        answered = 0
        while position < size:
            position = framer.find_end(data, position)
            if position < 0:
                if position == LOST:
                    return False
                break
            if not entries or (session.in_body and len(entries) == 1):
                return False
            line = entries.popleft()
            answered += 1
            if self._tracks:
                self._note_holding(line)
            if line:
                letter = line[0]
                if letter in (_U, _W, _I):
                    session.note_tubes(line, framer.first)
        if framer.is_within and not entries:
            return False
        if entries:
            if answered:
                if entries[0].startswith(TIMED):
                    self._since = session.clock()
                self._answered += answered
                self._drop_answered()
        elif answered:
            self._forget_kept()
        return True

    def _note_holding(self, line: bytes) -> None:
        framer = self._framer
        if framer.reserved:
            self.holdings.update(framer.reserved)
            framer.reserved.clear()
        elif self.holdings and line and line[0] in b"drbt":
            word, _, text = line.partition(b" ")
            first = framer.first
            if (
                (word == b"delete" and first in (b"DELETED", b"NOT_FOUND"))
                or (word == b"release" and first in (b"RELEASED", b"BURIED", b"NOT_FOUND"))
                or (word == b"bury" and first in (b"BURIED", b"NOT_FOUND"))
                or (word == b"touch" and first == b"NOT_FOUND")
            ):
                job_id = text.lstrip(b" ").partition(b" ")[0]
                if job_id.isdigit():
                    self.holdings.discard(int(job_id))

    def _collect(self, data: bytes) -> None:
        """Give replies to the sinks."""
        session = self._session
        framer = self._framer
        position = 0
        while position < len(data):
            end = framer.find_end(data, position)
            if end == LOST or not self._asks:
                session.fail()
                return
            if end < 0:
                self._parts.append(data[position:] if position else data)
                return
            reply = data[position:end]
            position = end
            if self._parts:
                self._parts.append(reply)
                reply = b"".join(self._parts)
                self._parts.clear()
            if framer.reserved:
                if self._tracks:
                    self.holdings.update(framer.reserved)
                framer.reserved.clear()
            ask = self._asks.popleft()
            session.asked -= 1
            ask.sink(reply)
            if session.closed:
                return

    # What is kept

    def _forget_kept(self) -> None:
        self._kept.clear()
        self.kept_size = 0
        self._is_kept = True
        self._answered = 0

    def _drop_answered(self) -> None:
        """Drop the bytes of commands that have been answered, in whole pieces."""
        kept = self._kept
        while True:
            pieces = 0
            ends = 0
            for piece in kept:
                pieces += 1
                ends = piece[1]
                if ends:
                    break
            if not ends or ends > self._answered:
                return
            self._answered -= ends
            for _ in range(pieces):
                data, _ends, tail = kept.popleft()
                self.kept_size -= len(data)
            if tail:
                kept.appendleft((data[-tail:], 0, tail))
                self.kept_size += tail

    def _may_repeat(self, is_clean: bool) -> bool:
        """Whether the commands without an answer may be given to another leader; then only they are kept."""
        if not self._is_kept:
            return False
        entries = self.entries
        data = b"".join([piece[0] for piece in self._kept])
        ends = self._session.find_ends(data)
        if not is_clean:
            sent = len(data) - len(self._unsent)
            for line, end in zip(entries, ends[self._answered :], strict=False):
                if end > sent:
                    break
                if line.partition(b" ")[0] not in REPEATABLE:
                    return False
        start = ends[self._answered - 1] if self._answered else 0
        middle = ends[-1] if ends else 0
        count = len(ends) - self._answered
        self._kept.clear()
        self._answered = 0
        if middle > start:
            self._kept.append((data[start:middle], count, 0))
        if middle < len(data):
            self._kept.append((data[middle:], 0, len(data) - middle))
        self.kept_size = len(data) - start
        return True

    def _shorten_wait(self) -> None:
        """Let the first command, if it is a reserve that has waited, wait for the rest of its time only."""
        session = self._session
        if not self.entries or not self.entries[0].startswith(TIMED):
            return
        now = session.clock()
        line = session.shorten(self.entries[0], now - self._since)
        self._since = now
        if line != self.entries[0]:
            data, ends, tail = self._kept.popleft()
            rest = data[len(self.entries[0]) :]
            self.kept_size += len(line) - len(self.entries[0])
            self._kept.appendleft((line + rest, ends, tail))
            self.entries[0] = line

    def _lose_asks(self) -> None:
        """Keep those that are repeatable, and tell the others' sinks."""
        asks = list(self._asks)
        self._asks.clear()
        for ask in asks:
            if ask.repeatable:
                self._asks.append(ask)
        for ask in asks:
            if not ask.repeatable:
                self._session.asked -= 1
                ask.sink(b"")
