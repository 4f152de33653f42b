"""One end of a link: carries what it says over a connection, as the event loop has it.

It sends once in a round of the event loop, and does a bounded number of frames in each. After a GOODBYE, its receiver
closes the connection: an end that closes while bytes for it are on their way takes with it what it has sent, and the
other one would never see the GOODBYE.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from beanstalk_server.events import event
from beanstalk_server.link.link import TICK, Channel, Link, LinkError
from beanstalk_server.server.bounded import BoundedLog
from beanstalk_server.server.front.addresses import name_of_peer

CLOGGED: Final = 1 << 20
"""Bytes that may wait in this process for the system to take them, before nothing more is sent on a link."""

LOSSES: Final = 64
"""Clients that learn in one round of the event loop that their link is gone."""

FRAMES: Final = 128
"""Frames of a link that are done in one round of the event loop. A link carries the input of thousands of clients, and
those who are connected to this process must not wait for all of it."""

log = logging.getLogger("beanstalk_server")


class LinkEnd:
    """One end of a link. It has the methods of an asyncio protocol.

    Args:
        on_end: called once, with this end and why, when the connection is gone.
        on_lost: called once, with the link, when nothing is carried any more, and before any client is told.
        complains: whether the log is told why this end closes the link. Else its opener does that.
        complaints: bounds how often; None if only this server can open a link.
        name: what the log calls the other end; "" for its address.
    """

    link: Link
    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[LinkEnd, str], None],
        *,
        on_lost: Callable[[Link], None] | None = None,
        complains: bool = False,
        complaints: BoundedLog | None = None,
        name: str = "",
    ) -> None:
        self.loop = loop
        self._on_end = on_end
        self._on_lost = on_lost
        self._complains = complains
        self._complaints = complaints
        self._why = ""  # it ends
        self._flush_is_due = False
        self._has_more = False  # frames have come that are not done: nothing is read before they are
        self._timer: asyncio.TimerHandle | None = None
        self._name = name
        self._connected = False

    def begin(self, link: Link) -> None:
        """Use this link, whose `on_output` is `output`."""
        self.link = link

    def output(self) -> None:
        """Send soon what the link has to send."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self.loop.call_soon(self._flush)

    def close(self, why: str) -> None:
        """End at once."""
        self._why = self._why or why
        if self._connected:
            self.transport.abort()
        self._lose_all()  # at once, because what they send from now on would be lost

    def say_goodbye(self, why: str, *, is_clean: bool = False) -> None:
        """Let the clients of the other node go, and tell it why. It closes the connection.

        Args:
            is_clean: promise it that all that has been executed has been answered.
        """
        if self._connected and not (self._why or self.link.closing):
            self.link.say_goodbye(why, is_clean)
            self._flush()
            self._read_later(False)  # so that it is seen when the other end closes
        self._why = self._why or why
        self._lose_all()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connected = True
        self._name = self._name or name_of_peer(self.transport)
        self.transport.set_write_buffer_limits(CLOGGED)
        self._timer = self.loop.call_later(TICK, self._tick)
        if self._why:
            self.transport.abort()
        else:
            self._flush()

    def data_received(self, data: bytes) -> None:
        """Do the frames that have come, some in each round."""
        if self._why or not self._connected:
            return
        self._flush_is_due = True  # at the end of this, once for all frames
        try:
            has_more = self.link.receive(data, FRAMES)
        except LinkError as error:
            self._complain(str(error))
            self.close(str(error))
        except Exception:
            log.exception(
                "link with %(peer)s failed; this is a bug in the server", event("bug-in-link", peer=self._name)
            )
            self.close("the link failed because of a bug")
        else:
            if self.link.farewell is not None:
                self.close(self.link.farewell)
            elif self.link.closing:
                self._why = "the link was refused"
            self._flush()
            self._read_later(has_more)

    def _read_later(self, has_more: bool) -> None:
        """Read nothing while there are frames to be done, which are in the next round."""
        if has_more is not self._has_more and not self.transport.is_closing():
            self._has_more = has_more
            if has_more:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
        if has_more:
            self.loop.call_soon(self.data_received, b"")

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.link.clog()

    def resume_writing(self) -> None:
        self.link.unclog()

    def connection_lost(self, error: Exception | None) -> None:
        self._connected = False
        if self._timer is not None:
            self._timer.cancel()
        self._why = self._why or (str(error) if error else "the other end closed the link")
        self._on_end(self, self._why)
        self._lose_all()

    def _lose_all(self) -> None:
        """Let go of the link, and of all its clients."""
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost(self.link)
        self._lose(deque(self.link.take_channels()))
        self.link.detach()

    def _lose(self, channels: deque[Channel]) -> None:
        """Tell the clients, some in each round. Those that have another link by now have been told."""
        for _ in range(min(LOSSES, len(channels))):
            channel = channels.popleft()
            if channel.link is None:
                channel.on_lost(is_clean=self.link.is_clean)
        if channels:
            self.loop.call_soon(self._lose, channels)

    def _flush(self) -> None:
        self._flush_is_due = False
        if not self._connected or self.transport.is_closing():
            return
        data = self.link.take_output()
        if data:
            self.transport.write(data)

    def _complain(self, why: str) -> None:
        if self._complains and (self._complaints is None or self._complaints.admits()):
            log.warning("link with %(peer)s: %(reason)s; closed", event("link-closed", peer=self._name, reason=why))

    def _tick(self) -> None:
        if not self.link.tick():
            why = "no answer in time" if self.link.is_open else "not authenticated in time"
            if not self._why:
                self._complain(why)
            self.close(why)
            return
        self._timer = self.loop.call_later(TICK, self._tick)
