"""Sends the commands of a routed client to a shard that another node leads, over a channel of the link between them.

event loop ⇄ transport ⇄ RoutedConnection ⇄ Router ⇄ Branch ⇄ LinkPlace ⇄ its channel on a link
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from beanstalk_server.link.link import Channel, Link

if TYPE_CHECKING:
    from beanstalk_server.routing.branch import Branch
    from beanstalk_server.routing.client import RoutedConnection


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
