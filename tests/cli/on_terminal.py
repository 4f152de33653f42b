"""Runs a command in a pseudo-terminal of its own, and shows what a person would see there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios

import pyte

from harness.servers import environment_of, imported
from harness.waiting import eventually

OWN_TERMINAL = "import os, sys; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
"""What a new session does first, so that its terminal sends it signals."""

BEANSTALK = "from beanstalk_client.cli.main import main; sys.exit(main())"


class OnTerminal:
    """A process and its terminal.

    Args:
        arguments: of `beanstalk`, or of the program.
        program: what to run instead, in Python.
        line: the whole command line instead.
    """

    def __init__(self, *arguments, program=BEANSTALK, line=(), size=(100, 24), environment=None):
        self.master, self.slave = os.openpty()
        self.attributes_before = self.attributes
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.resize(*size, tell=False)
        self.process = subprocess.Popen(
            line or [sys.executable, "-P", "-c", OWN_TERMINAL + program, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            cwd="/",
            env=environment_of(
                imported(), {"TERM": "xterm", "PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8"} | (environment or {})
            ),
        )

    @property
    def attributes(self):
        """How the terminal treats keys and output; what it has been set to, and not what it happens to do just now."""
        return termios.tcgetattr(self.slave)[:4]

    @property
    def is_as_before(self):
        """Whether the terminal is as it was before the command came."""
        return self.attributes == self.attributes_before and not self.screen.cursor.hidden

    def resize(self, width, height, tell=True):
        """Give it another size, of which a terminal tells the processes in it."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.screen.resize(height, width)
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    @property
    def lines(self):
        """What is on the screen, as far as it has come."""
        while select.select([self.master], [], [], 0.0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            self.raw += data
            self._stream.feed(data)
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self):
        return "\n".join(self.lines)

    def shows(self, text):
        """Wait until a text is on the screen; return the first line that has it."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: text in self.text or self.process.poll() is not None, f"{text!r} on the screen")
        found = [line for line in self.lines if text in line]
        assert found, f"{text!r} is not on the screen, and {self.process.poll()} is the status:\n{self.text}"
        return found[0]

    def hides(self, text):
        """Wait until a text is not on the screen."""
        eventually(lambda: text not in self.text, f"{text!r} not on the screen")

    def type(self, keys):
        os.write(self.master, keys if isinstance(keys, bytes) else keys.encode())

    def ends(self):
        """Wait for its end; return its exit status."""
        eventually(lambda: (self.lines, self.process.poll() is not None)[1], "the end of the process")
        _ = self.lines
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)

    def hang_up(self):
        """Close the terminal, as when its window is closed."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1
