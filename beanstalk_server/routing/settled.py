"""A client that one of several shards serves alone: its session, and how its connection leaves and comes back.

As long as a client uses, watches and names nothing but tubes and jobs of one shard, its session there does everything
that a server alone would do. The first line that concerns another shard leads it away: nothing of it is done, and what
serves the client goes on with it elsewhere. Connection and session stay as the client's place at this shard, with what
it uses, watches and has reserved, and may serve it alone again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from beanstalk_server.access.user import NO_RIGHT, User
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.outcome import PENDING, Outcome
from beanstalk_server.server.commits import CommitWaiter
from beanstalk_server.server.connection import OUTPUT_LIMIT, Connection
from beanstalk_server.server.front.addresses import name_of_peer
from beanstalk_server.server.front.listener_policy import TOKEN
from beanstalk_server.server.intake import Intake
from beanstalk_server.wire.authorization import NO_TUBE
from beanstalk_server.wire.commands import IGNORE, Command
from beanstalk_server.wire.grammar import Arguments
from beanstalk_server.wire.places import EVERYTHING, GROUP, JOB, JOBS, NAMED, Places
from beanstalk_server.wire.server_info import ServerInfo
from beanstalk_server.wire.session import OUTCOME, Session


def _wait_elsewhere(_session: Session, _arguments: Arguments, _now: int) -> Outcome:
    return PENDING


_AWAY: Final = Command("(away)", None, _wait_elsewhere, NO_RIGHT, NO_TUBE, is_counted=False)
"""What is pending in a session that has been led away: no other command is done, and its outcome never comes."""


class SettledSession(Session):
    """One client's conversation with one shard.

    Args:
        places: the places of all tubes and jobs.
        shard: which one this is.
        on_unsettled: called when a line leads away. The call comes during a command: take note, and return.
        is_place: whether it begins as a place of a client, as in Session, and not as a settled client.

    The other arguments are those of Session.
    """

    def __init__(
        self,
        places: Places,
        shard: int,
        on_unsettled: Callable[[], None],
        queue: Broker,
        server: ServerInfo,
        on_answer: Callable[[], None],
        name: str = "",
        logs_commands: bool = False,
        user: User | None = None,
        authenticate: Callable[[str], User | None] | None = None,
        is_place: bool = False,
        counted: bool = True,
        closes_after_put: bool = False,
    ) -> None:
        super().__init__(
            queue, server, on_answer, name, logs_commands, user, authenticate, is_place, counted, closes_after_put
        )
        self.places = places
        self.shard = shard
        self.on_unsettled = on_unsettled
        self.is_settled = not is_place and places.shards > 1
        self.is_away = False  # a line has led away: only `unsettle`, `take_commands` or `disconnect` may follow

    def unsettle(self) -> bytes:
        """Be the client's place at this shard from now on, after a line has led away.

        Returns:
            What the client has sent and has not been answered, that line first.
        """
        assert self.is_away, "only a line leads away"
        self.is_away = self.is_settled = False
        self._end_wait()
        self.dialect = self.server.linked_dialect
        self.is_stopped = False
        self.input_ended = False  # it is the client's input that has ended, not that of a place
        self.may_wait = True
        return self.framer.take_rest()

    def unroute(self, watched: list[str]) -> None:
        """Be the client's only place from now on, and look at every line again: it has been answered everything here,
        and nothing more has come.

        Args:
            watched: the tubes that the client watches, in their order; meanwhile there may have been others between.
        """
        assert self.pending is None and not self.framer.size(), "the client is settled between two commands"
        self.is_settled = self.places.shards > 1
        self.is_stopped = False
        self.dialect = self.server.dialect
        if [tube.name for tube in self.watched] != watched:
            self.order_watched(watched)

    def can_move(self) -> bool:
        if self.is_away:
            return not self.closed and not self.replies
        return super().can_move()

    def _pending_line(self, now: int) -> bytes:
        return b"" if self.is_away else super()._pending_line(now)

    def disconnect(self, now: int, has_left: bool = True) -> None:
        super().disconnect(now, has_left)
        self.on_unsettled = _ignore

    def needs_routing(self, command: Command, arguments: Arguments, line: bytes) -> bool:
        concerns = command.concerns
        if concerns == JOB:
            is_elsewhere = self.places.of_job(arguments.job_id) != self.shard
        elif concerns == JOBS:
            is_elsewhere = any(self.places.of_job(job_id) != self.shard for job_id in arguments.ids)
        elif concerns in (NAMED, GROUP):
            # All watched tubes are here: any other is ignored already. A malformed name is "".
            name = arguments.name
            is_elsewhere = command is not IGNORE and name != "" and self.places.of_tube(name.encode()) != self.shard
        else:
            is_elsewhere = concerns == EVERYTHING
        if is_elsewhere:
            self.framer.put_back(line)
            self.pending = _AWAY
            self.wait = OUTCOME
            self.is_away = True
            self.on_unsettled()
        return is_elsewhere


def _ignore() -> None:
    """Replaces `on_unsettled` when the client is gone."""


def unsettle(connection: Connection, transport: asyncio.Transport) -> bytes:
    """Serve a place of the client from now on: its own transport has another protocol.

    Returns:
        What the client has sent and has not been answered.
    """
    session = connection.session
    assert isinstance(session, SettledSession), "it has served the client alone"
    connection.name = connection.name or name_of_peer(connection.transport)
    connection.transport = transport
    transport.set_write_buffer_limits(OUTPUT_LIMIT)
    connection.intake = Intake()
    connection.is_place = True
    session.resume_output()
    return session.unsettle()


def unroute(connection: Connection, transport: asyncio.Transport, user: User | None, watched: list[str]) -> None:
    """Serve the client alone from now on, whose transport this is. It waits for nothing here.

    Args:
        watched: the tubes that it watches, in their order.
    """
    session = connection.session
    listener_policy = connection.listener_policy
    assert isinstance(session, SettledSession), "it has served a place on the same node"
    connection.transport = transport
    connection.user = user
    connection.intake = Intake()
    connection.is_place = False
    session.authenticate = listener_policy.authenticate if listener_policy.auth == TOKEN else None
    session.unroute(watched)
    session.resume_output()
    if not session.counted:
        connection.connections.queue.set_counted(session, True)


class Departure(CommitWaiter):
    """Waits until a connection has sent what it has answered, before its client gets a router.

    Args:
        on_end: called with the connection then.
    """

    def __init__(self, connection: Connection, on_end: Callable[[Connection], None]) -> None:
        super().__init__()
        self._connection = connection
        self._on_end = on_end

    def on_commit(self) -> bool:
        if self._connection.uncommitted:
            return True
        self._on_end(self._connection)
        return False

    def abort(self) -> None:
        self._connection.abort()

    def label(self) -> str:
        return self._connection.label()
