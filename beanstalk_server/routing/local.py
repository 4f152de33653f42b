"""What a routed client has open at a shard that is led here: a session, which reads its commands from the router.

event loop ⇄ transport ⇄ RoutedConnection ⇄ Router ⇄ Branch ⇄ LocalPlace ⇄ Session, which reads ShardInput

The session does the commands of the client that concern its shard as it does those of a client of a single server: it
asks for the next one, until that concerns another shard. So each command is taken apart once, by the framer of the
router, and the reply needs no framing: it is the reply to the command that has just been done.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from beanstalk_server.events import event
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.costs import TRANSFER_SHIFT
from beanstalk_server.server.connection import IO_COST, UNCOMMITTED_LIMIT, Connection, Connections
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.wire.framing import LINE, LINE_TOO_LONG, NEED_MORE, Framer
from beanstalk_server.wire.session import ADMISSION

if TYPE_CHECKING:
    from beanstalk_server.access.rights import User
    from beanstalk_server.routing.branch import Branch
    from beanstalk_server.routing.router import Owner

log = logging.getLogger("beanstalk_server")


def log_bug(client: str) -> None:
    """Log the exception that is being handled, with which a routed client has failed."""
    log.exception(
        "%(client)s: a client failed; this is a bug in the server", event("bug-in-routed-client", client=client)
    )


class ShardInput(Framer):
    """What the session at one shard reads: lines that operations ask, or the client's commands that concern the shard.

    Its methods mean what those of Framer do; `data` only says whether there may be something to read. There is nothing
    as long as the next command concerns another shard, an operation is under way, or the reply to a line that was asked
    is to come.
    """

    def __init__(self, branch: Branch) -> None:
        super().__init__()
        self.branch = branch
        self.lines: list[bytes] = []  # that operations ask, and that have not been read
        self.may_ask = False  # the next of them may be read in this turn: each turn has one reply then

    def is_open(self) -> bool:
        """Whether the client's commands may be read."""
        branch = self.branch
        router = branch.router
        return router.current is branch and not router.is_busy and not branch.asks

    def size(self) -> int:
        if self.is_open():
            return self.branch.router.input_left()
        return sum([len(line) for line in self.lines])

    def ask(self, line: bytes) -> None:
        """Let a line be read that an operation asks."""
        self.lines.append(line)
        self.data = line

    def begin_turn(self) -> None:
        """Let the session read: the client's commands, or one line that is asked."""
        self.may_ask = True
        if self.is_open():
            self.data = self.branch.router.unread()
        else:
            self.data = self.lines[0] if self.lines else b""

    def clear(self) -> None:
        self.lines.clear()  # the rest is the router's
        self.data = b""

    def has_dropped(self) -> bool:
        framer = self.branch.router.framer
        return self.is_open() and framer.in_body() and framer.has_dropped()

    def take_rest(self) -> bytes:
        return b""  # the router has it

    def put_back(self, line: bytes) -> None:
        self.data = line
        if self.is_open():
            self.branch.router.put_back(line)
        else:
            self.lines.insert(0, line)

    def begin_body(self, size: int, is_wanted: bool) -> None:
        self.branch.router.framer.begin_body(size, is_wanted)

    def next(self) -> int:
        if not self.is_open():
            if not self.may_ask or not self.lines:
                return NEED_MORE
            self.may_ask = False
            self.content = self.lines.pop(0)
            self.data = self.lines[0] if self.lines else b""
            return LINE
        branch = self.branch
        router = branch.router
        found = router.find_next(branch.shard)
        if found == NEED_MORE:
            self.data = b""
            return found
        if found == LINE:
            self.content = router.take_line()
        elif found == LINE_TOO_LONG:
            router.take_line()
        else:
            self.content = router.framer.take()
            self.is_torn = router.framer.is_torn
        self.data = router.framer.data
        return found

    def begins_with(self, prefixes: tuple[bytes, ...]) -> bool:
        if not self.is_open():
            return self.may_ask and bool(self.lines) and self.lines[0].startswith(prefixes)
        branch = self.branch
        router = branch.router
        if router.framer.in_body():
            return False
        return router.find_next(branch.shard) == LINE and router.starts_with(prefixes)

    def ends_body(self) -> bool:
        return self.is_open() and self.branch.router.framer.ends_body()


class LocalPlace(Connection):
    """What a routed client has open at a shard that is led here.

    Its transport is that of the client, but its replies go there by way of the router, or to an operation.

    Args:
        connections: of the shard.
        owner: has the client.
        opening: what the client uses and watches there.
        listener_policy: where it came in.
        transport: that of the client.
    """

    def __init__(
        self,
        branch: Branch,
        connections: Connections,
        owner: Owner,
        opening: Opening,
        listener_policy: ListenerPolicy,
        transport: asyncio.Transport,
    ) -> None:
        router = branch.router
        dialect = connections.server_info.linked_dialect
        super().__init__(connections, listener_policy, router.user, router.name, dialect, opening.counted)
        self.owner = owner
        self.branch = branch
        self.input = ShardInput(branch)
        self.is_due = False  # `deliver` is to follow
        self._has_ended = False  # the session has closed; the branch does not know it yet
        self._replies: list[bytes] = []  # to operations, not handed over yet
        self._may_move = False  # as `prepare_loss` has found it
        self._unanswered = b""
        self.begin(transport)
        self.session.framer = self.input
        self.session.restore(opening.used, opening.watched, opening.mode, opening.client_name)

    # What the branch and the router call

    def ask(self, line: bytes) -> None:
        """Do a command of an operation; its reply follows by `Branch.on_reply`, in a later call."""
        self.input.ask(line)
        self.pull()

    def pull(self) -> None:
        """Let the session do commands for one turn, unless it has to wait for that."""
        turns = self.turns
        session = self.session
        while self.connected:
            if self.uncommitted_size > UNCOMMITTED_LIMIT and not self.input.lines:
                return
            if self.queued or turns.budget <= 0:
                break
            now = turns.clock()
            if now >= turns.lease_end:
                turns.lose_lease()
                break
            session.sees_hangups = False
            self._begin_turn()
            session.run(now)
            taken = self.branch.router.note_done(self.branch)
            turns.budget -= session.cost + IO_COST + (taken >> TRANSFER_SHIFT)
            if session.has_replies:
                self._send()
            if session.closed or session.has_more or session.wait == ADMISSION or session.malformed_puts:
                self._regulate()
            if turns.slow is not None:
                turns.note_turn(self, now)
            self.branch.router.note_turns(turns)
            if not self.input.lines or session.pending is not None or session.wait == ADMISSION:
                return
        if self.connected:
            turns.enqueue(self)
            turns.run_pending_soon()

    def is_busy(self) -> bool:
        """Whether a command has been begun that has no reply yet."""
        session = self.session
        return session.pending is not None or self.uncommitted is not None or session.has_replies or not self.connected

    def resume(self) -> None:
        """Go on with what has waited for the client to read its replies."""
        if self.session.pending is not None:
            self.turns.enqueue(self)
            self.turns.run_pending_soon()

    def has_nothing(self) -> bool:
        return not self.is_due and super().has_nothing()

    def change_user(self, user: User) -> None:
        """Let the client be this user from now on."""
        self.user = self.branch.router.user
        self.session.change_user(user)
        self.turns.run_pending_soon()

    def leave(self) -> None:
        """End: what the client has reserved there is released."""
        self.drop_uncommitted()
        self.let_go(has_left=self.owner.has_left)
        self.turns.run_pending_soon()

    # What the router and the clients of the node call

    def deliver(self) -> None:
        """Hand over the replies to operations, or the end."""
        self.is_due = False
        branch = self.branch
        while self._replies and branch.local is self:
            branch.on_reply(self._replies.pop(0))
        if branch.local is not self:
            return
        if self._has_ended:
            branch.on_ended()
        else:
            branch.router.go_on()

    def prepare_loss(self) -> None:
        """Note what has not been answered, before any other client goes: the shard is led here no more, and no turn is
        given."""
        self._may_move = self.can_move()
        self._unanswered = self.session.take_commands(self.turns.clock()) if self._may_move else b""

    def lose(self, *, is_clean: bool) -> None:
        """Hand over what has been said, and end.

        Args:
            is_clean: what has no answer has not been executed.
        """
        self.deliver()
        branch = self.branch
        if branch.local is self:
            is_put = self.session.put is not None
            self.leave()
            branch.on_local_lost(self._may_move, self._unanswered, is_put=is_put, is_clean=is_clean and self._may_move)

    # What the turns and the gate call

    def take_turn(self) -> int:
        owner = self.owner
        router = self.branch.router
        owner.begin()
        self._begin_turn()
        cost = super().take_turn()
        try:
            if self.connected:
                router.note_done(self.branch)
                if self.input.lines:
                    self.pull()
            router.run()
            owner.go_on()
        except Exception:
            log_bug(router.name)
            self.abort()
        return cost

    def on_commit(self) -> bool:
        owner = self.owner
        owner.begin()
        has_more = super().on_commit()
        self.branch.router.run()
        owner.go_on()
        return has_more

    def send_replies(self) -> None:
        self.owner.begin()
        super().send_replies()
        self.owner.go_on()

    # Replies and the end

    def _begin_turn(self) -> None:
        branch = self.branch
        self.input.begin_turn()
        self.session.output_paused = branch.router.output_paused and not branch.asks

    def _write(self, data: bytes) -> None:
        if self.branch.asks:
            self._replies.append(data)
            self._announce()
        else:
            self.branch.router.pass_back(data)

    def _announce(self) -> None:
        """Let `deliver` follow."""
        if not self.is_due:
            self.is_due = True
            self.branch.router.note_due(self)

    def _regulate(self) -> None:
        """Close, or ask for another turn, as the session's state demands. The client reads, or does not."""
        session = self.session
        if session.malformed_puts:
            self._note_malformed_puts()
        if session.closed:
            self._disconnect()
            if self.uncommitted is None:
                self._has_ended = True
                self._announce()
            return
        if self._ask_for_turn():
            self.turns.run_pending_soon()
