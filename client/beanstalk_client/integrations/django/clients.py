"""Pools the connections of a process that enqueues tasks; one thread uses a connection at a time.

Django makes a backend anew for each thread and each asynchronous request, so they cannot belong to a backend.
Must never hand a connection to two at once, nor to a process that was forked while it was open.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from beanstalk_client import Client
from beanstalk_client.errors import Error

MOST_IDLE = 10
"""Connections that are kept while they are idle, for each server."""

_lock = threading.Lock()
_idle: dict[str, list[Client[bytes]]] = {}  # by options
_inherited: list[object] = []  # never closed: the other process uses them
_process = os.getpid()


@contextlib.contextmanager
def client_of(options: Mapping[str, Any], tube: str) -> Iterator[Client[bytes]]:
    """A client that uses a tube."""
    name = repr(sorted(options.items()))
    client = _take(name, options, tube)
    try:
        if client._session.used != tube:
            client.use(tube)
        yield client
    except Error:
        _give_back(name, client)  # it knows by itself whether it is still connected
        raise
    except BaseException:
        client.close()  # in the middle of something
        raise
    _give_back(name, client)


def close_idle() -> None:
    """Close all idle connections."""
    with _lock:
        clients = [client for kept in _idle.values() for client in kept]
        _idle.clear()
    for client in clients:
        client.close()


def _take(name: str, options: Mapping[str, Any], tube: str) -> Client[bytes]:
    global _process
    with _lock:
        if _process != os.getpid():
            _inherited.extend(_idle.values())
            _idle.clear()
            _process = os.getpid()
        kept = _idle.get(name)
        if kept:
            return kept.pop()
    return Client(**options, encoding=None, use=tube)


def _give_back(name: str, client: Client[bytes]) -> None:
    with _lock:
        kept = _idle.setdefault(name, [])
        if len(kept) < MOST_IDLE:
            kept.append(client)
            return
    client.close()
