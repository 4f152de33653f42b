"""Relays the clients of an I/O process: their input to the engine process, and replies back to them.

event loop ⇄ transport ⇄ CarriedConnection ⇄ its channel on the link ⇄ engine process
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, cast

from beanstalk_server.access.rights import User
from beanstalk_server.events import event
from beanstalk_server.link.link import Channel, Link
from beanstalk_server.server.front.addresses import name_of_peer
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.intake import Intake

NUMBER_BYTES: Final = 4
"""Of the number of a listener policy, with which an opening begins."""

SEPARATOR: Final = b"\0"
"""Stands in an opening between the user and the name for the log. Neither has it."""

log = logging.getLogger("beanstalk_server")


def encode_opening(listener_policy: int, user: str, name: str) -> bytes:
    """Describe a client to the engine process.

    Args:
        listener_policy: the number of the listener_policy by which it has come in.
        user: the name of the authenticated user; "" without authentication.
        name: what the log calls it.
    """
    return listener_policy.to_bytes(NUMBER_BYTES, "big") + user.encode() + SEPARATOR + name.encode()


def decode_opening(payload: bytes) -> tuple[int, str, str]:
    """The listener policy, the user and the name in an opening.

    Raises:
        ValueError: it is none.
    """
    user, separator, name = payload[NUMBER_BYTES:].partition(SEPARATOR)
    if not separator:
        raise ValueError("truncated OPEN frame")
    shown = name.decode()
    if not shown.isprintable():
        raise ValueError("name is not printable")
    return int.from_bytes(payload[:NUMBER_BYTES], "big"), user.decode(), shown


class CarriedConnection(Channel):
    """One client, whose bytes are carried. It has the methods of an asyncio protocol.

    Args:
        listener_policy: where the client came in.
        user: the authenticated user; None without authentication.
        name: what the log calls the client; "" for the address that it has connected from.
    """

    _transport: asyncio.Transport

    def __init__(
        self, carrier: Carrier, listener_policy: ListenerPolicy, user: User | None = None, name: str = ""
    ) -> None:
        super().__init__()
        self._carrier = carrier
        self._listener_policy = listener_policy
        self._user = "" if user is None else user.name
        self._name = name
        self._ended = False  # the client has shut down its sending side
        self._intake = Intake()
        self._input: deque[bytes] = deque()  # has come, and waits for room on the link
        self._output_paused = False  # the client does not read
        self._taken = 0  # bytes that came while the client did not read: the engine process gets no credit for them yet

    # What the event loop, TLS or a pending connection calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        carrier = self._carrier
        carrier.open[self] = None
        link = carrier.link
        if link is None or self._listener_policy.closed:
            self._transport.abort()
            return
        name = self._name or name_of_peer(self._transport)
        if not link.open(self, encode_opening(self._listener_policy.number, self._user, name)):
            log.warning("%(client)s: disconnected: too many clients", event("too-many-clients", client=name))
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._input and len(data) <= self.room():
            self.send(data)
        else:
            self._input.append(data)
            self.on_room()

    def eof_received(self) -> bool:
        self._ended = True
        if self._input:
            self.send_hangup()  # the engine process will have the rest of the input later
        else:
            self.send_end()
        return True  # replies may still come; the engine process closes

    def pause_writing(self) -> None:
        self._output_paused = True

    def resume_writing(self) -> None:
        self._output_paused = False
        taken = self._taken
        self._taken = 0
        self.consumed(taken)

    def connection_lost(self, _: Exception | None) -> None:
        self._intake.unwatch()
        self.close_channel(at_once=True)
        self._input.clear()
        self._carrier.remove(self)

    def abort(self) -> None:
        """Disconnect the client soon: what it has been sent in this round of the event loop goes out first."""
        self._carrier.loop.call_soon(self._transport.abort)

    # What the link calls

    def on_data(self, data: bytes) -> None:
        self._transport.write(data)
        if self._output_paused:
            self._taken += len(data)
        else:
            self.consumed(len(data))

    def on_room(self) -> None:
        waiting = self._input
        if not waiting:
            return
        while waiting:
            room = self.room()
            if not room:
                break
            first = waiting[0]
            if len(first) <= room:
                waiting.popleft()
                self.send(first)
            else:
                waiting[0] = first[room:]
                self.send(first[:room])
        if self._ended:
            if not waiting:
                self.send_end()
        else:
            self._intake.regulate(not waiting, self._transport, self._carrier.hangups, self.send_hangup)

    def on_close(self, *, at_once: bool) -> None:
        if at_once:
            self.abort()
        else:
            self._transport.close()

    def on_lost(self, *, is_clean: bool) -> None:  # noqa: ARG002 there is no other engine process
        self.abort()


class Carrier:
    """State that all clients of an I/O process share.

    Args:
        listeners: where clients come in; they are told when one has gone.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, listeners: Listeners, hangups: HangupWatch) -> None:
        self.loop = loop
        self.listeners = listeners
        self.hangups = hangups
        self.link: Link | None = None  # to the engine process, as long as there is one
        self.open: dict[CarriedConnection, None] = {}

    def make_client(
        self, listener_policy: ListenerPolicy, user: User | None = None, name: str = ""
    ) -> CarriedConnection:
        """The protocol of a client that is known."""
        return CarriedConnection(self, listener_policy, user, name)

    def remove(self, client: CarriedConnection) -> None:
        """Forget a client that is gone."""
        self.open.pop(client, None)
        self.listeners.connection_closed()
