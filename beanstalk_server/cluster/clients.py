"""What a node has of the clients that it serves; `shards/clients.py` has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from beanstalk_server.access.user import User
from beanstalk_server.link.link import Link
from beanstalk_server.server.connection import Connections
from beanstalk_server.server.front.entrance import Entrance
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.wire.places import Places
from beanstalk_server.wire.server_info import ServerInfo

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts


class Clients(Protocol):
    """All clients of a node."""

    places: Places
    """Which tube and which job is in which shard."""
    closing: bool
    """The server stops: new clients are refused."""

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve clients in this event loop from now on."""

    def make_client(self, entrance: Entrance, user: User | None = None, name: str = "") -> Any:
        """The protocol of a client that comes in."""

    def lead(self, shard: int, connections: Connections) -> None:
        """Serve a shard here, in these connections."""

    async def stop_leading(self, shard: int, is_clean: bool) -> int:
        """Serve a shard here no more; return how many clients had to be disconnected."""

    def follow(self, shard: int, link: Link) -> None:
        """Ask the other end of this link for what concerns a shard."""

    def lose(self, shard: int, link: Link) -> None:
        """Let clients wait for a shard: this link has ended."""

    def judge(self, accounts: Accounts | None) -> int:
        """Give clients that are not settled the rights that their users have from now on; return how many had none."""

    def disconnect_all(self) -> int:
        """Disconnect all clients that came to this node; return how many."""

    async def abort_all(self) -> None:
        """Disconnect all clients that are not settled; return when they are gone."""


MakeClients = Callable[[int, Listeners, HangupWatch, int, ServerInfo], Clients]
"""Makes them: the number of shards, where clients come in, and as `shards.clients.Clients`."""
