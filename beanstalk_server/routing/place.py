"""What a routed client has open at a shard: a channel on a link to another leader, or a connection of this node.

event loop ⇄ transport ⇄ RoutedConnection ⇄ Router ⇄ Branch ⇄ LinkPlace ⇄ its channel on a link
                                                    Branch ⇄ LocalPlace ⇄ Connection
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from beanstalk_server.link.link import WINDOW, Channel, Link
from beanstalk_server.server.connection import OUTPUT_LIMIT, Connection

if TYPE_CHECKING:
    from beanstalk_server.routing.branch import Branch
    from beanstalk_server.routing.client import RoutedConnection

# Whether a local place still has its connection
_OPEN: Final = 0
_ENDING: Final = 1  # it has closed: what it has written is still to be handed over
_BROKEN: Final = 2  # it has aborted, or is the place's no more


class LinkPlace(Channel):
    """What a routed client has open at a shard that another node leads.

    Args:
        client: whose place it is.
    """

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

    def leave(self) -> None:
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


class LocalPlace:
    """What a routed client has open at a shard that is led here: nothing goes over a link.

    For the branch it is a place, and for the connection a transport. What the router sends reaches the connection at
    once. What the connection says reaches the router later, all of it at a time: a reply that came while the router is
    still at work would find it in the middle of something.

    Args:
        client: whose place it is.
        connection: what serves it there. Its transport is to be this.
    """

    def __init__(self, client: RoutedConnection, connection: Connection) -> None:
        self.client = client
        self.branch: Branch | None = None  # once the router has it, until it is closed or lost
        self.connection: Connection | None = connection
        self._state = _OPEN
        self._is_due = False  # `deliver` is to follow
        self._output: list[bytes] = []  # what the connection has written, and has not been handed over
        self._unconsumed = 0  # how many bytes the connection has written that the client has not got
        self._output_paused = False  # the connection has been told that the client does not read
        self._reading = True
        self._has_resumed = False  # the branch is to be told that there is room again
        self._high = WINDOW
        self._low = WINDOW >> 2

    # What the branch calls

    def room(self) -> int:
        return WINDOW if self._reading and self.connection is not None else 0

    def send(self, data: bytes) -> None:
        if self.connection is not None and self._state == _OPEN:
            if len(data) >= WINDOW:  # the branch may have more, and the connection goes on reading
                self._has_resumed = True
                self._announce()
            self.connection.data_received(data)

    def consumed(self, size: int) -> None:
        self._unconsumed -= size
        if self._output_paused and self._unconsumed <= self._low and self.connection is not None:
            self._output_paused = False
            self.connection.resume_writing()

    def stop_waiting(self) -> None:
        if self.connection is not None:
            self.connection.stop_waiting()

    def has_nothing(self) -> bool:
        connection = self.connection
        if connection is None or self._state != _OPEN or self._is_due or self._output:
            return False
        return connection.has_nothing()

    def change_user(self, name: str) -> None:
        connection = self.connection
        user = self.client.user
        if connection is None or user is None or user.name != name:
            return  # it has gone, or is judged by the reload itself
        connection.user = self.client.router.user
        connection.session.change_user(user)
        connection.turns.run_pending_soon()

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.on_hangup()

    def leave(self) -> None:
        if self.connection is not None:
            connection = self.detach()
            connection.let_go(has_left=self.client.has_left)
            connection.turns.run_pending_soon()

    # What the client and its owner call

    def deliver(self) -> None:
        """Hand over what the connection has said since the last call."""
        self._is_due = False
        if self._output:
            data = self._output[0] if len(self._output) == 1 else b"".join(self._output)
            self._output.clear()
            if self.branch is not None:
                self.branch.on_data(data)
        branch = self.branch
        if branch is None or self._output:  # what has come of these replies is handed over next, before the end
            return
        if self._state != _OPEN:
            at_once = self._state == _BROKEN
            self.leave()
            branch.on_closed(at_once)
        elif self._has_resumed:
            self._has_resumed = False
            branch.on_room()

    def lose(self, *, is_clean: bool) -> None:
        """Hand over what has been said, and end: the shard is led here no more.

        Args:
            is_clean: what has no answer has not been executed.
        """
        self.deliver()
        branch = self.branch
        if branch is not None:
            self.leave()
            branch.on_lost(is_clean)

    def detach(self) -> Connection:
        """Give the connection away: nothing of it is handed over any more."""
        connection, self.connection = self.connection, None  # each has referred to the other
        assert connection is not None, "it is open"
        self._state = _BROKEN
        self.branch = None
        self._output.clear()
        return connection

    def _announce(self) -> None:
        """Let `deliver` follow."""
        if not self._is_due:
            self._is_due = True
            self.client.note(self)

    # What the connection calls

    def write(self, data: bytes) -> None:
        if self._state != _OPEN:
            return
        self._output.append(data)
        self._unconsumed += len(data)
        self._announce()
        if self._unconsumed > self._high and not self._output_paused:
            self._output_paused = True
            assert self.connection is not None, "it is what writes"
            self.connection.pause_writing()

    def close(self) -> None:
        if self._state == _OPEN:
            self._state = _ENDING
            self._announce()

    def abort(self) -> None:
        if self.connection is not None:
            self._state = _BROKEN
            self._announce()

    def is_closing(self) -> bool:
        return self._state != _OPEN

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = self._has_resumed = True
            if self.connection is not None:
                self._announce()

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high
        self._low = high >> 2

    def get_extra_info(self, _: str, default: Any = None) -> Any:
        return default


def open_local_place(client: RoutedConnection, branch: Branch, connection: Connection) -> LocalPlace:
    """Open a place of a client, which this connection serves."""
    place = LocalPlace(client, connection)
    place.branch = branch
    connection.begin(cast(Any, place))
    place.set_write_buffer_limits(OUTPUT_LIMIT)
    return place
