"""Whether a client is read from. While it is not, its hang-up must be noticed all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from beanstalk_server.server.hangups import HangupWatch


class Intake:
    """Reads from one client, or does not."""

    def __init__(self) -> None:
        self.reading = True
        self._descriptor = -1  # of the socket that is watched; -1 if none is
        self._hangups: HangupWatch | None = None  # what watches it
        self._on_hangup: Callable[[], None] | None = None

    def regulate(
        self, reading: bool, transport: asyncio.Transport, hangups: HangupWatch | None, on_hangup: Callable[[], None]
    ) -> None:
        """Read from now on, or read no more.

        Args:
            hangups: watches the client's socket while it is not read from; None if another process has the socket.
            on_hangup: called once, if the client hangs up meanwhile.
        """
        if reading is self.reading or transport.is_closing():
            return
        self.reading = reading
        if reading:
            self.unwatch()
            transport.resume_reading()
        else:
            transport.pause_reading()
            self.watch(transport, hangups, on_hangup)

    def watch(self, transport: asyncio.Transport, hangups: HangupWatch | None, on_hangup: Callable[[], None]) -> None:
        """Watch for a hang-up: `regulate` does so by itself."""
        if hangups is None:
            return
        descriptor: int = transport.get_extra_info("socket").fileno()
        if hangups.watch(descriptor, self._report):
            self._descriptor = descriptor
            self._hangups = hangups
            self._on_hangup = on_hangup

    def unwatch(self) -> None:
        """Watch for nothing: another object does, or the client is gone."""
        hangups = self._hangups
        if hangups is not None:
            hangups.unwatch(self._descriptor)
            self._forget()

    def _report(self) -> None:
        on_hangup = self._on_hangup
        self._forget()
        assert on_hangup is not None, "it is watched"
        on_hangup()

    def _forget(self) -> None:
        """Refer to no object that refers to this."""
        self._hangups = None
        self._on_hangup = None
