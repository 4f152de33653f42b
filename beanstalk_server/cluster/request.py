"""Requests to Redis, as bytes (replies: resp.py).

Apart from those, because what packs a commit is compiled, also where redis-py is not installed. Must never know a
command.
"""

from __future__ import annotations


def pack(*arguments: bytes) -> bytes:
    """A command with its arguments, as it is sent."""
    return b"".join([b"*%d\r\n" % len(arguments), *map(bulk, arguments)])


def bulk(argument: bytes) -> bytes:
    """An argument of a command."""
    return b"$%d\r\n%b\r\n" % (len(argument), argument)
