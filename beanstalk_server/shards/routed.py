"""One routed client: its transport, and the router that asks the shards of a cluster on its behalf.

    event loop ⇄ transport ⇄ RoutedConnection ⇄ RoutingSession ⇄ Branch ⇄ LinkPlace ⇄ its channel on a link
                                                                Branch ⇄ LocalPlace ⇄ Connection

A client is routed when no shard that this node leads has all that it uses, watches and has reserved. It is asked who it
is here, as on every server. Whatever calls into the router does so between two methods of this module: `begin` and
`go_on`, which sends what the router has answered and does what follows. So nothing happens in the middle of anything.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from beanstalk_server.access.user import User
from beanstalk_server.events import event
from beanstalk_server.link.link import Channel, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.server.connection import (
    INPUT_LIMIT,
    OUTPUT_LIMIT,
    CarrierLostError,
    Connection,
    Connections,
    log_connected,
    name_of_peer,
)
from beanstalk_server.server.front.entrance import NONE, TOKEN, Entrance
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.intake import Intake
from beanstalk_server.shards.branch import Branch, Place
from beanstalk_server.shards.local_place import LocalPlace, PlaceOwner
from beanstalk_server.shards.routing import RoutingSession
from beanstalk_server.wire.commands import Dialect
from beanstalk_server.wire.places import Places

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts

MAX_REHOMES: Final = 16
"""How many times in a row a client must have been answered while all that it has was at one shard, before it is settled
there. To move costs about as much as to be routed for this long, so that a client that goes to and fro pays no more
than twice what it must."""

log = logging.getLogger("beanstalk_server")


class LinkPlace(Channel):
    """What a routed client has open at a shard that another node leads.

    Args:
        client: whose place it is.
    """

    __slots__ = ("_client", "_leader", "branch")

    def __init__(self, client: RoutedConnection, branch: Branch, leader: Link) -> None:
        super().__init__()
        self._client = client
        self._leader = leader
        self.branch: Branch | None = branch  # until it is closed or lost

    # What the branch calls, besides the methods of a channel

    def has_nothing(self) -> bool:
        return False  # only the leader knows

    def change_user(self, name: str) -> None:
        self.send_user(name)

    def hang_up(self) -> None:
        self.send_hangup()

    def close(self) -> None:
        self.branch = None
        if self._client.has_left:
            self.close_channel(at_once=True)
        else:
            self.abandon()

    # What the link calls

    def on_data(self, data: bytes) -> None:
        branch = self.branch
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_data(data)
            client.go_on()

    def on_room(self) -> None:
        branch = self.branch
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_room()
            client.go_on()

    def on_close(self, *, at_once: bool) -> None:
        branch, self.branch = self.branch, None
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_closed(at_once)
            client.go_on()

    def lose(self) -> None:
        """Tell the branch that the link has ended."""
        self.on_lost(is_clean=self._leader.is_clean)

    def on_lost(self, *, is_clean: bool) -> None:
        branch, self.branch = self.branch, None
        if branch is not None:
            client = self._client
            client.begin()
            branch.on_lost(is_clean)
            client.go_on()


@mypyc_attr(allow_interpreted_subclasses=True)
class RoutedOwner:
    """What a routed connection has of all clients of its node, which are a Clients.

    Attributes:
        clock: nanoseconds.
        closing: the server stops: new clients are refused.
        first_shard: the shard of the tube that each client begins with.
        shards: how many there are.
        verbosity: 1: log connections.
    """

    clock: Callable[[], int]
    closing: bool
    dialect: Dialect
    first_shard: int
    hangups: HangupWatch
    listeners: Listeners
    max_job_size: int
    places: Places
    shards: int
    verbosity: int

    def add(self, client: RoutedConnection) -> None:
        """Remember a client that has come in."""
        raise NotImplementedError

    def remove(self, client: RoutedConnection) -> None:
        """Forget a client that is gone, or settled."""
        raise NotImplementedError

    def settled(self) -> Connections | None:
        """What serves a client that comes in now, if that is here."""
        raise NotImplementedError

    def leads(self, shard: int) -> bool:
        """Whether a shard is served here."""
        raise NotImplementedError

    def connections_of(self, shard: int) -> Connections:
        """What serves a shard that is led here."""
        raise NotImplementedError

    def open_place(self, client: RoutedConnection, branch: Branch, opening: Opening) -> Place | None:
        """Open a place at the leader of a shard; None if there is none."""
        raise NotImplementedError

    def give_turn_soon(self, client: RoutedConnection) -> None:
        """Let a client take a turn in the next round."""
        raise NotImplementedError


class RoutedConnection(PlaceOwner):
    """One client that is routed. It has the methods of an asyncio protocol.

    Args:
        entrance: where the client came in.
        user: who it has proved to be; None where nobody is asked.
        name: what the log calls the client; "" for the address that it has connected from.
    """

    __slots__ = (
        "_clients",
        "_counted_at",  # the shard whose statistics count it
        "_due",  # places led here that have something to say, while the router is at work
        "_ended",  # the client has shut down its sending side
        "_hung_up",  # the same, seen while it was not read from
        "_intake",
        "_is_at_work",  # `go_on` is to follow
        "_output_paused",
        "_stays",  # how often in a row it has been answered and could have been settled
        "_user",  # who it was when it came
        "entrance",
        "is_due",  # a turn has been promised
        "name",
        "router",
        "transport",
    )

    router: RoutingSession
    transport: Any

    def __init__(self, clients: RoutedOwner, entrance: Entrance, user: User | None = None, name: str = "") -> None:
        self.entrance = entrance
        self.name = name
        self.has_left = True
        self._stays = 0
        self.is_due = False
        self._clients = clients
        self._counted_at = clients.first_shard
        self._user = user
        self._due: deque[LocalPlace] = deque()
        self._ended = False
        self._hung_up = False
        self._intake = Intake()
        self._is_at_work = False
        self._output_paused = False

    # What the event loop calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        clients = self._clients
        entrance = self.entrance
        settled = clients.settled()
        if settled is not None:  # only since the client was accepted
            connection = Connection(settled, entrance, self._user, self.name)
            transport.set_protocol(cast(Any, connection))
            connection.connection_made(transport)
            return
        self._make_router("default", ["default"])
        if clients.closing or entrance.closed or (self._user is None and entrance.auth != NONE):
            transport.abort()
            return
        transport.set_write_buffer_limits(OUTPUT_LIMIT)
        self.name = self.name or name_of_peer(transport)
        if clients.verbosity:
            log_connected(self.name, self.user)
        clients.add(self)
        self.begin()
        self.router.start()
        self.go_on()

    def data_received(self, data: bytes) -> None:
        self._is_at_work = True
        self.router.receive(data)
        self.go_on()

    def eof_received(self) -> bool:
        self._ended = True
        self.begin()
        self.router.end_input()
        self.go_on()
        return True  # replies may still have to be sent; `go_on` closes

    def pause_writing(self) -> None:
        self._output_paused = True
        self.router.pause_output()

    def resume_writing(self) -> None:
        self._output_paused = False
        self.begin()
        self.router.resume_output()
        self.go_on()

    def connection_lost(self, error: Exception | None) -> None:
        clients = self._clients
        if isinstance(error, CarrierLostError):
            self.has_left = False
        if clients.verbosity:
            log.info("%(client)s disconnected", event("disconnected", client=self.name))
        self._let_go()
        if not self.entrance.carried:
            clients.listeners.connection_closed()

    def on_hangup(self) -> None:
        """Let the client wait for nothing: it has hung up while nothing was read from it."""
        self._hung_up = True
        self.begin()
        self.router.forbid_waiting()
        self.go_on()

    # What its router calls

    def open(self, branch: Branch, opening: Opening) -> Place | None:
        """Open a place at a shard; None if nobody leads it now."""
        user = self.user
        opening = opening._replace(
            name=self.name, user=None if user is None else user.name, counted=branch.shard == self._counted_at
        )
        return self._clients.open_place(self, branch, opening)

    def on_output(self) -> None:
        """Look soon at what the router has to say, unless it is being called just now."""
        self._go_on_soon()

    # What its owner and its places call

    @property
    def user(self) -> User | None:
        """The client's user; None for nobody, who may do everything."""
        return self.router.user or self.entrance.user

    @property
    def proved(self) -> User | None:
        return self.router.user

    def begin(self) -> None:
        """Something is about to call into the router: `go_on` follows."""
        self._is_at_work = True

    def note(self, place: LocalPlace) -> None:
        """Hand over soon what a place led here has to say."""
        self._due.append(place)
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not (self._is_at_work or self.is_due):
            self.is_due = True
            self._clients.give_turn_soon(self)

    def go_on(self) -> None:
        """Send what the router has answered, and do what follows from what it has been told."""
        due = self._due
        while due:
            due.popleft().deliver()
        self._is_at_work = False
        router = self.router
        replies = router.take_replies()
        transport = self.transport
        if transport.is_closing():
            return
        if replies:
            transport.write(replies)
        if router.closed:
            if router.speaks_http:
                self._clients.listeners.refuse_http(self.entrance, self.name)
            self.has_left = self.has_left and not router.failed
            if router.aborted:
                transport.abort()
            else:
                transport.close()
            router.close()
            return
        settled = router.settled_shard
        if settled < 0:
            if router.candidate_shard < 0:
                self._stays = 0  # otherwise it only waits for an answer
        elif not self._clients.leads(settled):
            self._stays = 0
        elif self._stays < MAX_REHOMES and self._clients.shards > 1:
            self._stays += 1
        else:
            self.unroute(self._clients.connections_of(settled), settled)
            return
        if router.has_more:
            self._go_on_soon()
        if router.input_size > INPUT_LIMIT or not self._intake.reading:
            self._regulate()

    def take_turn(self) -> None:
        """Let the router do more of what has come, if its last turn was over before that; and `go_on`."""
        self.begin()
        if self.router.has_more:
            self.router.run()
        self.go_on()

    def take_over(self, connection: Connection) -> None:
        """Route a client that a connection has served alone until now. `restart` must follow."""
        session = connection.session
        self.transport = transport = connection.transport
        self._ended = session.input_ended
        self._hung_up = not session.may_wait and not session.input_ended
        self._intake, connection.intake = connection.intake, Intake()
        self._output_paused = session.output_paused
        self._make_router(session.use.name, [tube.name for tube in session.watched])
        self._intake.unwatch()
        if not (self._intake.reading or self._ended or self._hung_up):
            self._intake.watch(transport, self._hangups, self.on_hangup)
        transport.set_protocol(cast(Any, self))

    def adopt(self, place: LocalPlace, shard: int, holdings: set[int]) -> None:
        """Have this place at a shard, whose connection has served the client so far. Before `restart`."""
        self._counted_at = shard
        self.router.adopt(shard, place, holdings)
        place.branch = self.router.branches[shard]

    def restart(self, data: bytes) -> None:
        """Go on with a client that was served alone, and what it has sent and not been answered."""
        router = self.router
        self.begin()
        router.start()
        if self._output_paused:
            router.pause_output()
        if data:
            router.receive(data)
        if self._ended:
            router.end_input()
        elif self._hung_up:
            router.forbid_waiting()
        self.go_on()

    def unroute(self, connections: Connections, shard: int) -> None:
        """Be served by one connection of a shard that is led here, which has all that the client has."""
        router = self.router
        transport = self.transport
        branch = router.branches.get(shard)
        place = None if branch is None else branch.place
        used, watched, user = router.used, list(router.watched.names), router.user
        data = router.take_all()
        if isinstance(place, LocalPlace):
            connection = place.detach()
            connection.unroute(transport, user, watched)
        else:
            connection = Connection(connections, self.entrance, user, self.name)
            connection.begin(transport)
            connection.session.restore(used, watched)
        self._let_go()
        transport.set_protocol(cast(Any, connection))
        if not self._intake.reading and not self._ended:
            transport.resume_reading()
        if self._output_paused:
            connection.pause_writing()
        if data:
            connection.data_received(data)
        if transport.is_closing():
            return
        if self._ended:
            connection.eof_received()
        elif self._hung_up:
            connection.on_hangup()

    def judge(self, accounts: Accounts | None) -> bool:
        """Let the client be the user of its name from now on; disconnect it, and return False, if there is none."""
        router = self.router
        entrance = self.entrance
        if router.user is not None:
            user = None if accounts is None else accounts.by_name(router.user.name)
            if user is None:
                self.abort()
                router.close()  # at once, so that its places led here are not judged, too
                return False
            router.change_user(user)
        elif not entrance.closed:
            if entrance.auth != NONE:
                self.abort()
                return False
            if entrance.user is not None:
                router.judge_watched(entrance.user)
                for branch in router.branches.values():
                    if branch.place is not None:
                        branch.place.change_user(entrance.user.name)
        return True

    def abort(self) -> None:
        """Disconnect the client, whatever is still to be sent."""
        self.transport.abort()

    def cut_off(self) -> None:
        """Disconnect the client, which may find another node: it has not left by itself."""
        self.has_left = False
        self.abort()

    def _make_router(self, used: str, watched: list[str]) -> None:
        clients = self._clients
        entrance = self.entrance
        self.router = RoutingSession(
            clients.places,
            self,
            clients.clock,
            self.name,
            clients.max_job_size,
            entrance.authenticate if entrance.auth == TOKEN else None,
            self._user,
            used,
            watched,
            clients.dialect,
        )
        if self._user is None and entrance.user is not None:
            self.router.judge_watched(entrance.user)

    def _let_go(self) -> None:
        """Have nothing to do with the client any more."""
        self._intake.unwatch()
        self.router.close()
        self._due.clear()
        self._is_at_work = False
        self._clients.remove(self)

    # Reading

    def _regulate(self) -> None:
        """Pause or resume reading, as what waits here demands."""
        if not self._ended:
            reading = self.router.input_size <= INPUT_LIMIT
            self._intake.regulate(reading, self.transport, self._hangups, self.on_hangup)

    @property
    def _hangups(self) -> HangupWatch | None:
        """What watches its socket; None if another process has it."""
        return None if self.entrance.carried else self._clients.hangups


def open_link_place(client: RoutedConnection, branch: Branch, link: Link, opening: Opening) -> LinkPlace | None:
    """Open a place at the other end of a link; None, and the client is disconnected, if there are too many there."""
    place = LinkPlace(client, branch, link)
    if link.open(place, opening.encode()):
        return place
    log.warning(
        "%(client)s: cannot be passed on: there are too many clients, or it watches too many tubes",
        event("not-passed-on", client=client.name),
    )
    client.abort()
    return None
