"""The generator: a separate process that generates the loads, so that the bench itself disturbs no measurement."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from bench.subject import REPLY_WITHIN, Subject

Result = TypeVar("Result")

SPAWNED = multiprocessing.get_context("spawn")


class LoadError(Exception):
    """A load failed; the message says why."""


class Generator:
    """A process on one processor that runs loads, one at a time. It is started on first use, and ended by `close`."""

    def __init__(self, processor: int) -> None:
        self.processor = processor
        self.process: multiprocessing.process.BaseProcess | None = None

    def do(self, load: Callable[..., Result], subject: Subject, **arguments: Any) -> Result:
        """Run a load; return its result.

        Raises:
            LoadError: it has failed.
        """
        if self.process is None:
            self._pipe, other = SPAWNED.Pipe()
            self.process = SPAWNED.Process(target=_serve, args=(other, self.processor))
            self.process.start()
            other.close()
        try:
            self._pipe.send((load, subject, arguments))
            failure, result = self._pipe.recv()
        except (EOFError, OSError):
            failure, result = "the generator has exited", None
        if failure:
            raise LoadError(f"{load.__name__} on {subject.name}: {failure}")
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self._pipe.close()
            self.process = None


def _serve(pipe: Connection, processor: int) -> None:
    os.sched_setaffinity(0, {processor})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends it
    gc.disable()  # a search for reference cycles would count as latency
    while True:
        try:
            load, subject, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[str, Any] = "", load(subject, **arguments)
        except BlockingIOError:
            answer = f"no reply within {REPLY_WITHIN} s", None
        except Exception as error:
            answer = f"{type(error).__name__}: {error}", None
        pipe.send(answer)
        gc.collect()
