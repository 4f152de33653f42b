"""The place of a routed client at a shard that this node leads itself: nothing goes over a link.

    router ⇄ Branch ⇄ LocalPlace ⇄ PlaceTransport ⇄ Connection

What the router sends reaches the connection at once. What the connection says reaches the router later, all of it at a
time: a reply that came while the router is still at work would find it in the middle of something.
"""

from __future__ import annotations

from typing import Any, Final, cast

from beanstalk_server.access.user import User
from beanstalk_server.link.link import WINDOW
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.server.connection import Connection
from beanstalk_server.shards.branch import Branch

OPEN: Final = 0
ENDING: Final = 1
"""The connection has closed: what it has written is still to be handed over."""
BROKEN: Final = 2
"""The connection has been aborted."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PlaceOwner:
    """What a place led here has of its client, which is a RoutedConnection."""

    __slots__ = ("has_left",)

    has_left: bool
    """If the client goes now, it has done so by itself."""

    @property
    def user(self) -> User | None:
        """The client's user; None for nobody, who may do everything."""
        raise NotImplementedError

    @property
    def proved(self) -> User | None:
        """The user that the client has proved to be; None where nobody is asked."""
        raise NotImplementedError

    def note(self, place: LocalPlace) -> None:
        """Hand over soon what a place has to say."""
        raise NotImplementedError


class LocalPlace:
    """What a routed client has open at a shard that is led here.

    Args:
        client: whose place it is.
        connection: what serves it there. Its transport is that of the place.
    """

    __slots__ = (
        "_output",  # what the connection has written, and has not been handed over
        "_unconsumed",  # how many bytes the connection has written that the client has not got
        "branch",
        "client",
        "connection",
        "is_due",  # `deliver` is to follow
        "transport",
    )

    def __init__(self, client: PlaceOwner, connection: Connection) -> None:
        self.client = client
        self.branch: Branch | None = None  # once the router has it, until it is closed or lost
        self.connection: Connection | None = connection
        self.transport = PlaceTransport(self)
        self.is_due = False
        self._output: list[bytes] = []
        self._unconsumed = 0

    # What the branch calls

    def room(self) -> int:
        """How many bytes may be sent now. If they are too few, `Branch.on_room` follows."""
        return WINDOW if self.transport.reading and self.connection is not None else 0

    def send(self, data: bytes) -> None:
        transport = self.transport
        if self.connection is not None and transport.state == OPEN:
            if len(data) >= WINDOW:  # the branch may have more, and the connection goes on reading
                transport.has_resumed = True
                self.announce()
            self.connection.data_received(data)

    def consumed(self, size: int) -> None:
        """Note that the client has got this many bytes of what the connection has written."""
        self._unconsumed -= size
        transport = self.transport
        if transport.output_paused and self._unconsumed <= transport.low and self.connection is not None:
            transport.output_paused = False
            self.connection.resume_writing()

    def stop_waiting(self) -> None:
        if self.connection is not None:
            self.connection.stop_waiting()

    def has_nothing(self) -> bool:
        connection = self.connection
        if connection is None or self.transport.state != OPEN or self.is_due or self._output:
            return False
        return connection.has_nothing()

    def change_user(self, name: str) -> None:
        """Let the connection have the user that the client has, whose name this is."""
        connection = self.connection
        user = self.client.user
        if connection is None or user is None or user.name != name:
            return  # it has gone, or is judged by the reload itself
        connection.user = self.client.proved
        connection.session.change_user(user)
        connection.turns.run_pending_soon()

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.on_hangup()

    def close(self) -> None:
        """End the connection: what it has reserved is ready."""
        connection = self.connection
        if connection is None:
            return
        self._let_go()
        connection.let_go(has_left=self.client.has_left)
        connection.turns.run_pending_soon()

    # What the transport calls

    def write(self, data: bytes) -> None:
        self._output.append(data)
        self._unconsumed += len(data)
        self.announce()
        transport = self.transport
        if self._unconsumed > transport.high and not transport.output_paused:
            transport.output_paused = True
            assert self.connection is not None, "it is what writes"
            self.connection.pause_writing()

    def announce(self) -> None:
        """Let `deliver` follow."""
        if not self.is_due:
            self.is_due = True
            self.client.note(self)

    # What the client and its owner call

    def deliver(self) -> None:
        """Hand over what the connection has said since the last call."""
        self.is_due = False
        if self._output:
            data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
            self._output.clear()
            if self.branch is not None:
                self.branch.on_data(data)
        if self.branch is None:
            return
        if self.transport.state != OPEN:
            branch = self.branch
            at_once = self.transport.state == BROKEN
            self.close()
            branch.on_closed(at_once)
        elif self.transport.has_resumed:
            self.transport.has_resumed = False
            self.branch.on_room()

    def lose(self, *, is_clean: bool) -> None:
        """Hand over what has been said, and end: the shard is led here no more.

        Args:
            is_clean: whatever has no answer has not been executed.
        """
        self.deliver()
        branch = self.branch
        if branch is not None:
            self.close()
            branch.on_lost(is_clean)

    def detach(self) -> Connection:
        """Give the connection away, which is the client's only one from now on: nothing is under way."""
        connection = self.connection
        assert connection is not None, "it is open"
        self._let_go()
        return connection

    def _let_go(self) -> None:
        self.transport.state = BROKEN
        self.transport.place = None  # they have referred to each other, and the collector may be off
        self.connection = None
        self.branch = None
        self._output.clear()


class PlaceTransport:
    """The transport of the connection at a place."""

    __slots__ = ("has_resumed", "high", "low", "output_paused", "place", "reading", "state")

    def __init__(self, place: LocalPlace) -> None:
        self.place: LocalPlace | None = place
        self.state = OPEN
        self.reading = True
        self.has_resumed = False  # the branch is to be told that there is room again
        self.output_paused = False  # the connection has been told that the client does not read
        self.high = WINDOW
        self.low = WINDOW >> 2

    def write(self, data: bytes) -> None:
        if self.place is not None and self.state == OPEN:
            self.place.write(data)

    def close(self) -> None:
        if self.place is not None and self.state == OPEN:
            self.state = ENDING
            self.place.announce()

    def abort(self) -> None:
        if self.place is not None:
            self.state = BROKEN
            self.place.announce()

    def is_closing(self) -> bool:
        return self.state != OPEN

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self.reading:
            self.reading = self.has_resumed = True
            if self.place is not None:
                self.place.announce()

    def is_reading(self) -> bool:
        return self.reading and self.state == OPEN

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = WINDOW if high is None else high
        self.low = self.high >> 2 if low is None else low

    def get_extra_info(self, _: str, default: Any = None) -> Any:
        return default


def place_of(connection: Connection) -> LocalPlace | None:
    """The place that a connection serves; None if it serves the client itself, or one of another node."""
    transport = cast(Any, connection.transport)
    return transport.place if isinstance(transport, PlaceTransport) else None
