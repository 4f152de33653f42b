"""Pools the connections of a process that enqueues tasks; one thread uses a connection at a time.

Django makes a backend anew for each thread and each asynchronous request, so they cannot belong to a backend.
Must never hand a connection to two at once. In a process that was forked, each client connects anew by itself.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator, Mapping
from typing import Any

from beanstalk_client import Client

MOST_IDLE = 10
"""Connections that are kept while they are idle, for each server."""

_idle: dict[str, queue.LifoQueue[Client[bytes]]] = {}  # by options


@contextlib.contextmanager
def client_of(options: Mapping[str, Any], tube: str) -> Iterator[Client[bytes]]:
    """A client that uses a tube."""
    idle = _idle.setdefault(repr(sorted(options.items())), queue.LifoQueue(MOST_IDLE))
    try:
        client = idle.get_nowait()
    except queue.Empty:
        client = Client(**options, encoding=None, use=tube)
    try:
        if client._session.used != tube:
            client.use(tube)
        yield client
    finally:  # it knows by itself whether it is still connected, and leaves a connection in the middle of something
        try:
            idle.put_nowait(client)
        except queue.Full:
            client.close()


def close_idle() -> None:
    """Close all idle connections."""
    for idle in _idle.values():
        with contextlib.suppress(queue.Empty):
            while True:
                idle.get_nowait().close()
