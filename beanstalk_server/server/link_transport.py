"""A client at the other end of a link, as a transport: its connection notices nothing.

Connection ⇄ LinkTransport ⇄ Link ⇄ LinkEnd ⇄ …
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from beanstalk_server.link.link import REST_LIMIT, Channel
from beanstalk_server.server.connection import CarrierLostError


class LinkTransport(Channel):
    """A client at the other end of a link, as a transport for its connection.

    Args:
        connection: what serves it. It has the methods of an asyncio protocol, and `on_hangup`; and if other nodes pass
            it on, `stop_waiting` and `can_move`.
        on_open: called with this transport when the channel is open, after the connection's `connection_made`.
        on_user: called with this transport and a name when the client is another user from now on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connection: Any,
        on_open: Callable[[LinkTransport], None] | None = None,
        on_user: Callable[[LinkTransport, str], None] | None = None,
    ) -> None:
        super().__init__()
        self._loop = loop
        self._connection: Any = connection
        self._on_open = on_open
        self._on_user = on_user
        self._closing = False  # nothing more is read
        self._lost = False  # the connection has been told, or is about to be
        self._ended = False  # the client has shut down its sending side, and the connection is to be told
        self._reading = True
        self._input: deque[bytes] = deque()  # while the connection does not read
        self._output: deque[bytes] = deque()  # what the standby has no room for
        self._output_size = 0
        self._position = 0  # where in the first piece of the output begins what has not been sent
        self._high = 1 << 16
        self._low = 1 << 14
        self._protocol_paused = False

    # What the link calls

    def on_open(self) -> None:
        self._connection.connection_made(self)
        on_open, self._on_open = self._on_open, None
        if on_open is not None and not self._closing:
            on_open(self)

    def on_data(self, data: bytes) -> None:
        if self._closing:
            return
        if self._reading and not self._input:
            self.consumed(len(data))
            self._connection.data_received(data)
        else:
            self._input.append(data)

    def on_stop(self) -> None:
        if not self._closing:
            self._connection.stop_waiting()

    def on_hangup(self) -> None:
        if not self._closing:
            self._connection.on_hangup()

    def on_end(self) -> None:
        if self._closing:
            return
        self._ended = True
        if self._reading and not self._input:
            self._deliver()
        else:
            self._connection.on_hangup()

    def on_user(self, name: str) -> None:
        if self._on_user is not None and not self._closing:
            self._on_user(self, name)

    def on_room(self) -> None:
        """Send what waits, as far as there is room."""
        output = self._output
        while output and (room := self.room()):
            first = output[0]
            start = self._position
            if len(first) - start <= room:
                output.popleft()
                self._position = 0
                piece = first[start:] if start else first
            else:
                self._position = start + room
                piece = first[start : start + room]
            self._output_size -= len(piece)
            self.send(piece)
        if self._protocol_paused and self._output_size <= self._low:
            self._protocol_paused = False
            self._connection.resume_writing()
        if self._closing and not output:
            self._end_channel()

    def on_close(self, *, at_once: bool) -> None:  # noqa: ARG002 nothing more can be sent to it in any case
        self._lose()

    def on_goodbye(self) -> None:
        """Send what waits, even beyond the room there is. A client that has not been answered what has been done for it
        must go."""
        if not (self._closing or self._connection.can_move()) or self._output_size > REST_LIMIT:
            self.abort()
            return
        if self._output:
            rest = b"".join(self._output)
            self._output.clear()
            self._output_size = 0
            self.send_rest(rest[self._position :])
            self._position = 0
        if self._closing:
            self._end_channel()

    def on_lost(self, *, is_clean: bool) -> None:  # noqa: ARG002 a client is new at another leader
        self._lose(CarrierLostError())

    # What the connection calls

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        if not self._output:
            room = self.room()
            if len(data) <= room:
                self.send(data)
                return
        self._output.append(data)
        self._output_size += len(data)
        self.on_room()
        if self._output_size > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._connection.pause_writing()

    def close(self) -> None:
        """Read no more, send what has been written, and then disconnect the client."""
        if self._closing:
            return
        self._closing = True
        self._input.clear()
        if not self._output:
            self._end_channel()

    def abort(self) -> None:
        """Disconnect the client at once."""
        if self._lost:
            return
        self.close_channel(at_once=True)
        self._lose()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._input or self._ended:
            self._loop.call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 1 << 16 if high is None else high
        self._low = self._high >> 2 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._output_size

    def get_extra_info(self, _: str, default: Any = None) -> Any:
        return default

    def set_protocol(self, protocol: Any) -> None:
        self._connection = protocol

    def get_protocol(self) -> Any:
        return self._connection

    def _deliver(self) -> None:
        """Hand over what has come while the connection did not read."""
        while self._input and self._reading and not self._closing:
            data = self._input.popleft()
            self.consumed(len(data))
            self._connection.data_received(data)
        if self._ended and self._reading and not self._input and not self._closing:
            self._ended = False
            self._connection.eof_received()

    def _end_channel(self) -> None:
        """Close when all has been sent."""
        self.close_channel(at_once=False)
        self._lose()

    def _lose(self, why: CarrierLostError | None = None) -> None:
        """Tell the connection soon that its client is gone."""
        self._closing = True
        self._input.clear()
        self._output.clear()
        self._output_size = 0
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self._tell, why)

    def _tell(self, why: CarrierLostError | None) -> None:
        self._connection.connection_lost(why)
        self._connection = None  # each has referred to the other, and the collector may be off
        self._on_user = None
