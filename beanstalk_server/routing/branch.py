"""What a client has at one shard: the commands that have gone there, and the replies that come from there.

At any time the commands without an answer are either the client's, whose replies go to the client as they come, or
those of an operation, whose replies go to the operation.

A branch lives longer than its place. When the place is lost, the branch keeps the bytes of the commands that have not
been answered, and gives them to the next leader of the shard, if they may be given again:

    the place is lost            commands without an answer
    ---------------------------  ----------------------------------------------------------------------------
    cleanly                      none has been executed: all go to the next leader
    not cleanly                  those that change nothing, and what cannot have been executed because its last
                                 byte had not been sent, go to the next leader; else the client is disconnected
    in the middle of a reply     the client has a part of it: it is disconnected

A reserve that is given again waits for the rest of its time.

Over a link, commands are bytes, which are kept until the replies have come. A shard that is led here reads the commands
itself, one after the other (local.py): what it has not begun is the router's. When it is led here no more, its clients
that have not been answered what was done for them are disconnected. A reserve that waits, or a list that is being made,
goes to the next leader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from beanstalk_server.routing.local import LocalPlace
from beanstalk_server.routing.reply_framer import LOST, ReplyFramer
from beanstalk_server.wire.commands import CANCELS, CHANGES_OF_CLIENT, EXTENSIONS, PROTOCOL, REPEATABLE, TIMED
from beanstalk_server.wire.framing import Prefixes
from beanstalk_server.wire.grammar import Arguments

if TYPE_CHECKING:
    from beanstalk_server.access.rights import User
    from beanstalk_server.routing.router import Router

KEPT_LIMIT: Final = 1 << 20
"""Bytes of commands without an answer that are kept, at most. More than that is not sent before there are answers; but
a body that is larger than this goes on, and then its command is not kept."""

UNANSWERED_LIMIT: Final = 4096
"""Commands of a client at one shard without an answer; one turn may take this many more. The next wait for answers."""


_ENDING: Final = {command.name.encode(): command for command in PROTOCOL + EXTENSIONS if command.ends}
"""The commands that end a reservation, by name."""

_ENDINGS: Final = Prefixes(tuple([name + b" " for name in _ENDING]))

_CRLF: Final = b"\r\n"

_ARGUMENTS: Final = Arguments()

Sink = Callable[[int, bytes], None]
"""Gets the key of an ask and its whole reply, with its CR LF; b"" if the place is lost and it is not repeatable."""


class Place(Protocol):
    """What a client has open at another node, the leader of a shard: a conversation with a session there.

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

    def leave(self) -> None:
        """End the conversation: what the client has reserved there is released."""


class _Ask:
    """A command of an operation that has not been answered."""

    def __init__(self, line: bytes, sink: Sink, key: int, repeatable: bool, if_clean: bool) -> None:
        self.if_clean = if_clean
        self.line = line
        self.sink = sink
        self.key = key
        self.repeatable = repeatable


class Branch:
    """What a client has at one shard."""

    def __init__(self, router: Router, shard: int) -> None:
        self.router = router
        self.shard = shard
        # Both are None while the shard has no leader.
        self.local: LocalPlace | None = None  # if it is led here
        self.place: Place | None = None  # if it is led elsewhere
        self.entries: deque[bytes] = deque()  # the lines of the client's commands without an answer
        self.framer = ReplyFramer()
        self.holdings: set[int] = set()  # ids of jobs that the client has reserved at another node
        self.unsent = b""  # the last bytes that are kept: the place has had no room for them
        self.kept_size = 0  # how many bytes are kept
        # these bytes in pieces, each with how many commands end in it, and its bytes after the last of them
        self._kept: deque[tuple[bytes, int, int]] = deque()
        self._is_kept = True  # all bytes of the commands without an answer are at hand
        self._answered = 0  # commands that have been answered, and whose bytes have not been dropped
        self._owed = 0  # bytes that the client has been sent and has not taken
        self._since = 0  # when the first command without an answer could begin, if it is a reserve, in nanoseconds
        self.asks: list[_Ask] = []  # commands of operations without an answer
        self._parts: list[bytes] = []  # of the reply to the first ask
        self._stops = False  # the last ask is not to wait, and the place does not know it yet

    # What operations call

    def ask(self, line: bytes, sink: Sink, key: int = 0, repeatable: bool = True, if_clean: bool = False) -> None:
        """Give a command, and get its reply.

        Args:
            line: the command, without CR LF.
            sink: called once with the key and the whole reply; it may ask more. Never called before this returns.
            repeatable: it is kept while there is no leader, and given again to the next one if the place is lost. If it
                is not, there must be a place, and the sink gets b"" if that is lost before the whole reply has come.
            if_clean: it is repeatable if the place is lost cleanly.
        """
        assert not self.entries, "the client's commands here have been answered"
        self.asks.append(_Ask(line, sink, key, repeatable, if_clean))
        self.router.asked += 1
        if self.local is not None:
            self.local.ask(line)
        elif self.place is not None:
            self.send(line + _CRLF)

    def stop_waiting(self) -> None:
        """Let the `await` that was asked last be answered now, if it waits. The place gets to know it after the await,
        which it may not have had room for yet. Without a place, there is nothing that waits."""
        if self.local is not None:
            self.local.stop_waiting()
        elif self.unsent:
            self._stops = True
        elif self.place is not None:
            self.place.stop_waiting()

    def has_nothing(self) -> bool:
        """Whether it is known without asking that a probe would be answered NOTHING now, and would change nothing."""
        if self.asks or self.unsent:
            return False
        if self.local is not None:
            return self.local.has_nothing()
        return self.place is not None and self.place.has_nothing()

    # What the router calls

    @property
    def is_led(self) -> bool:
        """Whether the shard has a leader."""
        return self.local is not None or self.place is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is unanswered."""
        return not (self.asks or self.is_busy())

    def is_busy(self) -> bool:
        """Whether a command of the client has no answer."""
        return bool(self.entries) or (self.local is not None and not self.asks and self.local.is_busy())

    def holds(self) -> bool:
        """Whether the client has reserved a job there."""
        return bool(self.holdings) if self.local is None else len(self.local.session.reserved) > 0

    def change_user(self, user: User) -> None:
        """Let the client be this user from now on."""
        if self.local is not None:
            self.local.change_user(user)
        elif self.place is not None:
            self.place.change_user(user.name)

    def hang_up(self) -> None:
        """Let the client wait for nothing there: it has hung up."""
        if self.local is not None:
            self.local.on_hangup()
        elif self.place is not None:
            self.place.hang_up()

    def limit(self) -> int:
        """How many bytes of the client's commands are taken now."""
        if self.place is None or self.unsent or self.asks or len(self.entries) >= UNANSWERED_LIMIT:
            return 0
        if self.kept_size >= KEPT_LIMIT or not self._is_kept:
            if not self.router.in_body or (self._is_kept and len(self.entries) > 1):
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
            if not self._kept and TIMED.begin(self.entries[0]):
                self._since = self.router.clock()
            self._kept.append((data, ends, tail))
            self.kept_size += len(data)
        self.send(data)

    def count_call_off(self, data: bytes) -> None:
        """Let the leader count a cancel-reserve with which nothing is called off; without a leader, none does."""
        if self.place is not None and self.place.room() >= len(data):
            self.place.send(data)

    def resume(self) -> None:
        """Note that the client takes its replies again."""
        owed, self._owed = self._owed, 0
        if self.local is not None:
            self.local.resume()
        elif owed and self.place is not None:
            self.place.consumed(owed)

    def reopen(self) -> bool:
        """Open a place, and give it what has not been answered; False if there is no leader."""
        router = self.router
        place = router.owner.open(self, router.opening(self.shard))
        if place is None:
            return False
        if isinstance(place, LocalPlace):
            self._reopen_here(place)
            return True
        self.place = place
        self._owed = 0
        if not router.may_wait:
            place.hang_up()
        self.unsent = self.unanswered()
        self.flush()
        return True

    def _reopen_here(self, place: LocalPlace) -> None:
        self.local = place
        if not self.router.may_wait:
            place.on_hangup()
        if self.asks:
            for ask in self.asks:
                place.input.ask(ask.line)
            place.pull()
        elif self.entries:
            self.router.begin_again()

    def unanswered(self) -> bytes:
        """What the next leader is given, of a branch without a place."""
        if self.asks:
            return b"".join([ask.line + _CRLF for ask in self.asks])
        self._shorten_wait()
        return b"".join([piece[0] for piece in self._kept])

    def take_unanswered(self) -> bytes:
        """The same, which is kept no more."""
        data = self.unanswered()
        self.entries.clear()
        self._forget_kept()
        return data

    def close(self) -> None:
        """Close the place: nothing more comes."""
        self.asks.clear()  # an operation refers to the branch
        local, self.local = self.local, None
        place, self.place = self.place, None
        if local is not None:
            local.leave()
        elif place is not None:
            place.leave()

    # What the place calls

    def on_leader(self) -> None:
        """Open a place at a new leader of the shard, if the client still needs one."""
        if not self.is_led and self.router.keeps(self) and self.reopen():
            self.router.on_leader(self)

    def on_data(self, data: bytes) -> None:
        """Take replies."""
        place = self.place
        if place is None:
            return
        router = self.router
        if self.asks:
            self._collect(data)
            if self.place is place:
                place.consumed(len(data))
            router.go_on()
            return
        if not self._note_replies(data):
            router.fail()
            return
        router.pass_back(data)
        router.go_on()
        if router.output_paused:
            self._owed += len(data)
        elif self.place is place:
            place.consumed(len(data))

    def on_room(self) -> None:
        """The place has room again."""
        self.flush()
        self.router.go_on()

    def on_lost(self, is_clean: bool) -> None:
        """The place is lost.

        Args:
            is_clean: everything that was executed there has been answered, and the replies have come.
        """
        if self.place is None:
            return
        self.place = None
        self._owed = 0
        is_within = self.framer.is_within
        self.framer.clear()
        self.holdings.clear()
        self._parts.clear()
        self._stops = False
        if self.entries and (is_within or not self._may_repeat(is_clean)):
            self.router.fail()
            return
        self.unsent = b""
        self._end_asks(is_clean)
        self.router.on_lost(self)

    def on_local_lost(self, may_move: bool, unanswered: bytes, is_put: bool, is_clean: bool) -> None:
        """Note that the shard is led here no more.

        Args:
            may_move: all that has been done for the client there has been answered.
            unanswered: the line of a command that waits, or of a put whose body has not all come.
            is_put: it is a put.
            is_clean: no ask without an answer has been executed.
        """
        self.local = None
        router = self.router
        if not self.asks:
            if not may_move:
                router.fail()
                return
            if is_put:
                router.begin_put_again(unanswered)
            elif unanswered:
                self.entries.append(unanswered[: -len(_CRLF)])
                self._kept.append((unanswered, 1, 0))
                self.kept_size = len(unanswered)
                self._since = router.clock()
        self._end_asks(is_clean)
        router.on_lost(self)

    def _end_asks(self, is_clean: bool) -> None:
        """Keep the asks that may be repeated, and end the others."""
        lost: list[_Ask] = []
        kept: list[_Ask] = []
        for ask in self.asks:
            (kept if ask.repeatable or (ask.if_clean and is_clean) else lost).append(ask)
        self.asks = kept
        for ask in lost:
            self.router.asked -= 1
            ask.sink(ask.key, b"")

    def on_closed(self, at_once: bool) -> None:
        """The leader disconnects the client.

        Args:
            at_once: what has been sent to the client, and has not arrived, is lost.
        """
        if self.place is not None:
            self.place = None
            self.router.fail(at_once)

    def on_ended(self) -> None:
        """Disconnect the client, which has given a malformed command to a shard led here."""
        self.close()
        self.router.end()

    # Sending

    def send(self, data: bytes) -> None:
        """Send bytes as soon as there is room for them. Another node must lead."""
        place = self.place
        assert place is not None, "there is a leader"
        if self.unsent:
            self.unsent += data
            return
        room = place.room()
        if len(data) <= room:
            place.send(data)
            return
        if room:
            place.send(data[:room])
        self.unsent = data[room:]

    def flush(self) -> None:
        """Send what there was no room for."""
        unsent = self.unsent
        if unsent and self.place is not None:
            self.unsent = b""
            self.send(unsent)
        if self._stops and not self.unsent and self.place is not None:
            self._stops = False
            self.place.stop_waiting()

    # Replies

    def _note_replies(self, data: bytes) -> bool:
        """Find the commands that are answered by these bytes; False if they are no replies to them."""
        router = self.router
        framer = self.framer
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
            if not entries or (router.in_body and len(entries) == 1):
                return False
            line = entries.popleft()
            answered += 1
            if framer.reserved:
                self._note_reserved()
            elif self.holdings and _ENDINGS.begin(line):
                self._note_end(line)
            if CHANGES_OF_CLIENT.begin(line):
                router.note_tubes(line, framer.first)
        if framer.is_within and not entries:
            return False
        if entries:
            if answered:
                if TIMED.begin(entries[0]):
                    self._since = router.clock()
                self._answered += answered
                self._drop_answered()
        elif answered:
            self._forget_kept()
        return True

    def _note_reserved(self) -> None:
        """Note which jobs the client has got by the reply that the framer has."""
        reserved = self.framer.reserved
        for job_id in reserved:
            self.holdings.add(job_id)
        reserved.clear()

    def _note_end(self, line: bytes) -> None:
        """Note which jobs the client has no more. The framer has the reply to the command on this line."""
        word, _, text = line.partition(b" ")
        command = _ENDING[word]
        if self.framer.first.partition(b" ")[0] in command.ends:
            if text.isdigit():
                self.holdings.discard(int(text))
            else:
                self.holdings.difference_update(command.ids(text, _ARGUMENTS))

    def _collect(self, data: bytes) -> None:
        """Give replies to the sinks."""
        router = self.router
        framer = self.framer
        position = 0
        while position < len(data):
            end = framer.find_end(data, position)
            if end == LOST or not self.asks:
                router.fail()
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
                self._note_reserved()
            self.on_reply(reply)
            if router.closed:
                return

    def on_reply(self, reply: bytes) -> None:
        """Give a whole reply to the first sink."""
        ask = self.asks.pop(0)
        self.router.asked -= 1
        ask.sink(ask.key, reply)

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
        ends = self.router.find_ends(data)
        if not is_clean:
            sent = len(data) - len(self.unsent)
            for line, end in zip(entries, ends[self._answered :], strict=False):
                if end > sent:
                    break
                if line.partition(b" ")[0] not in REPEATABLE:
                    return False
        start = ends[self._answered - 1] if self._answered else 0
        while data.startswith(CANCELS, start):  # of a reserve that has been answered
            start = data.index(b"\n", start) + 1
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
        if not self.entries or not TIMED.begin(self.entries[0]):
            return
        now = self.router.clock()
        line = self.router.shorten(self.entries[0], now - self._since)
        self._since = now
        if line != self.entries[0]:
            data, ends, tail = self._kept.popleft()
            rest = data[len(self.entries[0]) :]
            self.kept_size += len(line) - len(self.entries[0])
            self._kept.appendleft((line + rest, ends, tail))
            self.entries[0] = line
