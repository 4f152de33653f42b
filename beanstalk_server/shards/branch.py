"""A branch of a client that several shards serve: operations ask there, too, and it tells what the client has reserved.

At any time the entries of a branch are either commands of the client, whose replies go to the client as they come, or
asks of an operation, whose replies go to the operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from beanstalk_server.cluster.branch import Branch
from beanstalk_server.cluster.relay import Relay
from beanstalk_server.cluster.reply_framer import LOST
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL
from beanstalk_server.wire.grammar import Arguments

_CRLF: Final = b"\r\n"

_ENDING: Final = {command.name.encode(): command for command in PROTOCOL + EXTENSIONS if command.ends}
"""The commands that end a reservation, by name."""

_ARGUMENTS: Final = Arguments()

Sink = Callable[[int, bytes], None]
"""Gets the key of an ask and its whole reply, with its CR LF; b"" if the place is lost and it is not repeatable."""


class _Ask:
    """A command of an operation that has not been answered."""

    __slots__ = ("key", "line", "repeatable", "sink")

    def __init__(self, line: bytes, sink: Sink, key: int, repeatable: bool) -> None:
        self.line = line
        self.sink = sink
        self.key = key
        self.repeatable = repeatable


class ShardBranch(Branch):
    """What a client has at one of several shards."""

    __slots__ = (
        "_asks",  # commands of operations without an answer
        "_parts",  # of the reply to the first of them
        "_stops",  # the last ask is not to wait, and the place does not know it yet
    )

    def __init__(self, relay: Relay, shard: int) -> None:
        super().__init__(relay, shard)
        self._asks: deque[_Ask] = deque()
        self._parts: list[bytes] = []
        self._stops = False

    # What operations call

    def ask(self, line: bytes, sink: Sink, key: int = 0, repeatable: bool = True) -> None:
        """Give a command, and get its reply.

        Args:
            line: the command, without CR LF.
            sink: called once with the key and the whole reply; it may ask more. Never called before this returns.
            repeatable: it is kept while nobody leads, and given again to the next leader if the place is lost. If it is
                not, there must be a place, and the sink gets b"" if that is lost before the whole reply has come.
        """
        assert not self.entries, "the client's commands here have been answered"
        self._asks.append(_Ask(line, sink, key, repeatable))
        self.relay.asked += 1
        if self.place is not None:
            self.send(line + _CRLF)

    def stop_waiting(self) -> None:
        """Let the `await` that was asked last be answered now, if it waits. The place gets to know it after the await,
        which it may not have had room for yet. Without a place, there is nothing that waits."""
        if self.unsent:
            self._stops = True
        elif self.place is not None:
            self.place.stop_waiting()

    def has_nothing(self) -> bool:
        """Whether it is known without asking that a probe would be answered NOTHING now, and would change nothing."""
        return self.place is not None and not self._asks and not self.unsent and self.place.has_nothing()

    # What the router calls

    @property
    def is_idle(self) -> bool:
        """Whether nothing is unanswered."""
        return not (self.entries or self._asks)

    def limit(self) -> int:
        return 0 if self._asks else super().limit()

    def unanswered(self) -> bytes:
        if self._asks:
            return b"".join([ask.line + _CRLF for ask in self._asks])
        return super().unanswered()

    def close(self) -> None:
        self._asks.clear()  # an operation refers to the branch
        super().close()

    # What the place calls

    def on_data(self, data: bytes) -> None:
        place = self.place
        if place is None or not self._asks:
            super().on_data(data)
            return
        self._collect(data)
        if self.place is place:
            place.consumed(len(data))
        self.relay.go_on()

    def on_lost(self, is_clean: bool) -> None:
        if self.place is None:
            return
        self.holdings.clear()
        self._parts.clear()
        self._stops = False
        asks = list(self._asks)
        self._asks = deque([ask for ask in asks if ask.repeatable])
        if asks:
            self.place = None
            self.framer.clear()
            self.unsent = b""
            for ask in asks:
                if not ask.repeatable:
                    self.relay.asked -= 1
                    ask.sink(ask.key, b"")
            self.relay.on_lost(self)
        else:
            super().on_lost(is_clean)

    def flush(self) -> None:
        super().flush()
        if self._stops and not self.unsent and self.place is not None:
            self._stops = False
            self.place.stop_waiting()

    # Replies

    def note_jobs(self, line: bytes) -> None:
        framer = self.framer
        if framer.reserved:
            self.holdings.update(framer.reserved)
            framer.reserved.clear()
            return
        word, _, text = line.partition(b" ")
        command = _ENDING.get(word)
        if command is not None and framer.first.partition(b" ")[0] in command.ends:
            self.holdings.difference_update(command.ids(text, _ARGUMENTS))

    def _collect(self, data: bytes) -> None:
        """Give replies to the sinks."""
        relay = self.relay
        framer = self.framer
        position = 0
        while position < len(data):
            end = framer.find_end(data, position)
            if end == LOST or not self._asks:
                relay.fail()
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
                self.holdings.update(framer.reserved)
                framer.reserved.clear()
            ask = self._asks.popleft()
            relay.asked -= 1
            ask.sink(ask.key, reply)
            if relay.closed:
                return


class Router(Relay):
    """A relayed client that several shards serve, as operations have it.

    Attributes:
        finish: the greatest one with which a tube of it has been served, if tubes take turns (queue/weights.py).
    """

    __slots__ = ("finish",)

    finish: int

    def make_branch(self, shard: int) -> Branch:
        return ShardBranch(self, shard)

    def at(self, shard: int) -> ShardBranch:
        """What the client has at a shard. It is opened when it is first needed."""
        branch = self.branch(shard)
        assert isinstance(branch, ShardBranch), "it is made here"
        return branch


@mypyc_attr(allow_interpreted_subclasses=True)
class Operation:
    """One command that is under way. No other command of the client is begun before `router.answer`, which is called
    exactly once, perhaps in `begin`."""

    __slots__ = ()

    def begin(self) -> None:
        """Ask the branches whatever it takes."""
        raise NotImplementedError

    def on_leader(self, shard: int) -> None:
        """The branch of this shard has got a place, after it had none."""

    def call_off(self) -> bool:
        """If it is a reserve, answer CANCELLED as soon as no shard has a job for it; return whether it is one."""
        return False


def drop(_key: int, _reply: bytes) -> None:
    """Takes a reply that tells nothing."""
