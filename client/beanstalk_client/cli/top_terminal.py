"""Takes over the terminal of a process and gives it back: keys come unbuffered, and lines are drawn in place.

What it was like before comes back in `leave`, whatever has happened since.
"""

from __future__ import annotations

import contextlib
import os
import termios
import tty
from collections.abc import Sequence
from typing import Any, Final

ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
"""The alternate screen, without cursor, without wrapping, cleared (xterm)."""

LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"

CLEAR: Final = "\x1b[0m\x1b[2J"

SIZE: Final = (80, 24)
"""What a terminal has that does not say."""


class Terminal:
    """A terminal, by its descriptors for input and output.

    Args:
        encoding: of the terminal; what it cannot show becomes `?`.
    """

    def __init__(self, fd_in: int, fd_out: int, encoding: str = "utf-8") -> None:
        self.fd_in = fd_in
        self._fd_out = fd_out
        self._encoding = encoding
        self._before: list[Any] | None = None
        self._drawn: list[str] = []
        self._entered = False

    def enter(self) -> None:
        """Take it over; also anew, when somebody else has had it meanwhile.

        Raises:
            termios.error: it has gone.
        """
        if self._before is None:
            self._before = termios.tcgetattr(self.fd_in)
        tty.setcbreak(self.fd_in, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
        self._entered = True
        self._write(ENTER)
        self._drawn = []

    def leave(self) -> None:
        """Give it back as it was."""
        if not self._entered:
            return
        self._entered = False
        # A terminal that has gone, with the window that it was in, cannot be given back.
        with contextlib.suppress(OSError):
            self._write(LEAVE)
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self.fd_in, termios.TCSADRAIN, self._before or [])

    def size(self) -> tuple[int, int]:
        """Width and height, in characters."""
        try:
            width, height = os.get_terminal_size(self._fd_out)
        except OSError:
            return SIZE
        return width or SIZE[0], height or SIZE[1]

    def read(self) -> bytes:
        """What has been typed; nothing if there will be no more."""
        try:
            return os.read(self.fd_in, 4096)
        except OSError:  # EIO: it has gone
            return b""

    def forget(self) -> None:
        """Whatever is on the screen is not what was drawn: draw all of it next time."""
        self._drawn = []

    def draw(self, lines: Sequence[str]) -> None:
        """Draw lines, those that have changed."""
        parts = []
        if len(lines) != len(self._drawn):
            parts.append(CLEAR)
            self._drawn = [""] * len(lines)
        for row, (line, before) in enumerate(zip(lines, self._drawn, strict=True), 1):
            if line != before:
                # Erased first: behind a full line, the cursor is still on its last character.
                parts.append(f"\x1b[{row};1H\x1b[0m\x1b[K{line}\x1b[0m")
        self._drawn = list(lines)
        if parts:
            self._write("".join(parts))

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        while data:
            data = data[os.write(self._fd_out, data) :]
