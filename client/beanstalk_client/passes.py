"""Makes passes again and again: what a scheduler and a relay have in common.

run                retries with growing pauses while the server is lost
in_thread          the same beside what else a process does
run_until_signal   the same as a program
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Final

from beanstalk_client.errors import Error, UnauthorizedError, UnsupportedError

RETRY_AFTER: Final = (1.0, 30.0)
"""Seconds between two attempts to reach a server: the first pause, which doubles, and the longest."""

END_WITHIN: Final = 5.0
"""Seconds that the pass of a thread gets to its end; what it leaves undone another process does."""


class Passes:
    """Makes passes until `stop`.

    Args:
        thread: name of the thread of `in_thread`.
    """

    _lost: tuple[type[Exception], ...] = (Error, OSError)
    """The exceptions after which it tries again."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self._failure = ""  # why the last pass failed, in words; "" if it did not
        self._stopped = threading.Event()

    def run_once(self) -> None:
        """Make the passes that can be made now."""
        raise NotImplementedError

    def _run_connected(self) -> None:
        """Connect, and make passes until `stop`. Each calls `_note_pass`."""
        raise NotImplementedError

    def _disconnect(self) -> None:
        """Close what `_run_connected` has left open."""

    def _tell_failed(self, described: str) -> None:
        """Log why no pass is made at present."""
        raise NotImplementedError

    def _tell_resumed(self) -> None:
        """Log that passes are made again."""
        raise NotImplementedError

    def _tell_ended(self, described: str, error: Exception) -> None:
        """Log why the thread has ended."""
        raise NotImplementedError

    def _note_pass(self) -> None:
        """Note that a pass was made."""
        if self._failure:
            self._failure = ""
            self._tell_resumed()

    def run(self) -> None:
        """Make passes until `stop`, also through losses of the server.

        Raises:
            UnsupportedError: the server lacks what the passes need, as beanstalkd does.
            UnauthorizedError: it does not know the client's token.
        """
        pause, longest = RETRY_AFTER
        while not self._stopped.is_set():
            try:
                self._run_connected()
            except (UnsupportedError, UnauthorizedError):
                raise
            except self._lost as error:
                if not self._failure:  # since the last one all went well
                    pause = RETRY_AFTER[0]
                if self._failure != (described := described_of(error)):
                    self._failure = described
                    self._tell_failed(described)
                self._stopped.wait(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, longest)
            finally:
                self._disconnect()

    @contextlib.contextmanager
    def in_thread(self) -> Iterator[None]:
        """Make passes in a thread until the block ends. An error that ends it is logged, and the block goes on."""

        def run() -> None:
            try:
                self.run()
            except Exception as error:
                self._tell_ended(described_of(error), error)

        thread = threading.Thread(target=run, name=self._thread, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join(END_WITHIN)

    def stop(self) -> None:
        """Let `run` return when the pass is made that it may be at. Any thread may say so."""
        self._stopped.set()


def described_of(error: Exception) -> str:
    """An error with its public name, without the statement that drivers of databases add."""
    name = next(each.__name__ for each in type(error).__mro__ if not each.__name__.startswith("_"))
    return f"{name}: {error}".partition("\n")[0].removesuffix(": ")
