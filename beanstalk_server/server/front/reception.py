"""Where the clients of a process come in: its listeners, what each of them asks, and those who are not known yet.

The server has one, and so has each of its I/O processes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from beanstalk_server.server.front.entrance import Entrance
from beanstalk_server.server.front.listeners import Listener, Listeners
from beanstalk_server.server.turns import Turns

if TYPE_CHECKING:
    from beanstalk_server.server.front.pending import PendingConnections


class Reception:
    """The entrances of some listeners, and the pending connections at them.

    Args:
        turns: those of pending connections.
        client_maker: returns what makes the protocol of a client that is known, of its entrance, its user and its name.
        accepts: whether this process accepts clients; else others do, at the same sockets.
    """

    def __init__(
        self,
        listeners: Listeners,
        turns: Turns,
        client_maker: Callable[[], Callable[..., Any]],
        *,
        accepts: bool = True,
    ) -> None:
        self.listeners = listeners
        self.pending: PendingConnections | None = None  # if a listener wants to know who comes
        self._past_failures = 0  # at entrances that are gone
        self._turns = turns
        self._client_maker = client_maker
        self._accepts = accepts

    @property
    def entrances(self) -> list[Entrance]:
        """What the listeners ask of their clients, in their order."""
        return [listener.entrance for listener in self.listeners.all]

    def start(self, loop: asyncio.AbstractEventLoop, headroom: int) -> None:
        """Accept clients from now on, if this process does.

        Args:
            headroom: how many file descriptors no connection gets.
        """
        if self._accepts:
            for listener in self.listeners.all:
                self._serve(listener)
            self.listeners.start(loop, headroom)

    def _serve(self, listener: Listener) -> None:
        """Let a listener make what its entrance asks for: a connection at once, or first a pending connection."""
        entrance = listener.entrance
        if not entrance.asks:
            listener.make_protocol = functools.partial(self._client_maker(), entrance)
            listener.is_crowded = None
            return
        from beanstalk_server.server.front.pending import (
            PendingConnection,
            PendingConnections,
        )  # most servers need neither

        if self.pending is None:
            self.pending = PendingConnections(self._turns, self.listeners, self._client_maker())
            self.pending.start(asyncio.get_running_loop())
        listener.make_protocol = functools.partial(PendingConnection, self.pending, entrance)
        listener.is_crowded = self.pending.is_crowded

    def change(self, opened: Sequence[tuple[Listener, Entrance]]) -> None:
        """Let clients come in at these listeners, each as its entrance asks, and at no others."""
        gone = set(self.listeners.all)
        for listener, entrance in opened:
            listener.config = entrance.config
            if listener not in gone:
                listener.entrance = entrance
            elif not listener.entrance.become(entrance):
                self._abort_pending(listener.entrance)
            gone.discard(listener)
            if self._accepts:
                self._serve(listener)
        for listener in gone:
            listener.entrance.closed = True
            self._past_failures += listener.entrance.failures
            self._abort_pending(listener.entrance)
        self.listeners.replace([listener for listener, _ in opened])

    @property
    def failures(self) -> int:
        """How many clients have been refused here because of what they gave as a proof, or gave instead."""
        return self._past_failures + sum([entrance.failures for entrance in self.entrances])

    def _abort_pending(self, entrance: Entrance) -> None:
        if self.pending is not None:
            self.pending.abort(self.pending.at(entrance))
