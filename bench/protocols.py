"""The commands that put, reserve and delete a job, as bytes: in the beanstalk protocol, and in Redis.

A load knows jobs and ids; a protocol knows how they are written, how many lines each reply has, and where the ids are
in a reply. Redis has no job queue, so people build one as `SCRIPTS` does: a hash of bodies, a list of ready ids, sorted
sets of delayed and reserved ids by the time when they are due, and one Lua script for each step. Once a second, a
process beside redis-server moves what is due to the ready list.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import time
from collections.abc import Sequence
from typing import Protocol

PRIORITY = 65536
TTR = 600  # seconds

MOVED = b"delays"
"""The only tube in Redis whose due jobs are moved: the mover must know its name."""


class QueueProtocol(Protocol):
    """Commands as bytes."""

    lines: dict[str, int]
    """How many lines the reply to each step has."""

    replies: dict[str, bytes]
    """How the reply to each step begins when all is well."""

    def begin(self, tube: bytes) -> tuple[bytes, int]:
        """What a client sends first, to work in its own tube, and how many lines the reply has."""

    def put(self, tube: bytes, body: bytes, delay: int = 0) -> bytes:
        """Put one job. The delay is in seconds."""

    def reserve(self, tube: bytes) -> bytes:
        """Reserve one job."""

    def ids(self, replies: bytes) -> list[bytes]:
        """The ids of the jobs in the replies to `reserve`."""

    def delete(self, tube: bytes, ids: Sequence[bytes]) -> bytes:
        """Delete these jobs, one command each."""


class Beanstalk:
    """The beanstalk protocol. A client uses and watches one tube."""

    lines = {"put": 1, "reserve": 2, "delete": 1}
    replies = {"put": b"INSERTED ", "reserve": b"RESERVED ", "delete": b"DELETED"}

    def begin(self, tube: bytes) -> tuple[bytes, int]:
        return b"use %b\r\nwatch %b\r\nignore default\r\n" % (tube, tube), 3

    def put(self, tube: bytes, body: bytes, delay: int = 0) -> bytes:
        return b"put %d %d %d %d\r\n%b\r\n" % (PRIORITY, delay, TTR, len(body), body)

    def reserve(self, tube: bytes) -> bytes:
        return b"reserve\r\n"

    def ids(self, replies: bytes) -> list[bytes]:
        return replies.split(b" ")[1::2]  # bodies have no spaces

    def delete(self, tube: bytes, ids: Sequence[bytes]) -> bytes:
        return b"delete " + b"\r\ndelete ".join(ids) + b"\r\n"


SCRIPTS = {
    "put": b"""
        local id = redis.call('INCR', KEYS[1] .. ':id')
        redis.call('HSET', KEYS[1] .. ':bodies', id, ARGV[2])
        if ARGV[1] == '0' then
            redis.call('RPUSH', KEYS[1] .. ':ready', id)
        else
            local now = redis.call('TIME')
            redis.call('ZADD', KEYS[1] .. ':delayed', now[1] + now[2] / 1000000 + ARGV[1], id)
        end
        return id""",
    "reserve": b"""
        local id = redis.call('LPOP', KEYS[1] .. ':ready')
        if not id then return false end
        local now = redis.call('TIME')
        redis.call('ZADD', KEYS[1] .. ':reserved', now[1] + now[2] / 1000000 + ARGV[1], id)
        return {id, redis.call('HGET', KEYS[1] .. ':bodies', id)}""",
    "delete": b"""
        local was_reserved = redis.call('ZREM', KEYS[1] .. ':reserved', ARGV[1])
        if was_reserved == 1 or redis.call('ZREM', KEYS[1] .. ':delayed', ARGV[1]) == 1 then
            redis.call('HDEL', KEYS[1] .. ':bodies', ARGV[1])
            return 1
        end
        return 0""",
    "move": b"""
        local now = redis.call('TIME')
        now = now[1] + now[2] / 1000000
        local moved = 0
        for _, from in ipairs({':delayed', ':reserved'}) do
            local due = redis.call('ZRANGEBYSCORE', KEYS[1] .. from, '-inf', now, 'LIMIT', 0, 1000)
            for _, id in ipairs(due) do
                redis.call('ZREM', KEYS[1] .. from, id)
                redis.call('RPUSH', KEYS[1] .. ':ready', id)
            end
            moved = moved + #due
        end
        return moved""",
}
"""Each step of the delay queue, as Redis runs it: atomically. At most a thousand jobs are moved at once."""


class Redis:
    """A delay queue in Redis, which runs `SCRIPTS`; `load_scripts` must have loaded them."""

    lines = {"put": 1, "reserve": 5, "delete": 1}
    replies = {"put": b":", "reserve": b"*2", "delete": b":1"}

    def begin(self, tube: bytes) -> tuple[bytes, int]:
        return resp(b"PING"), 1

    def put(self, tube: bytes, body: bytes, delay: int = 0) -> bytes:
        return evaluate("put", tube, b"%d" % delay, body)

    def reserve(self, tube: bytes) -> bytes:
        return evaluate("reserve", tube, b"%d" % TTR)

    def ids(self, replies: bytes) -> list[bytes]:
        return replies.split(b"\r\n")[2::5]

    def delete(self, tube: bytes, ids: Sequence[bytes]) -> bytes:
        return b"".join([evaluate("delete", tube, job_id) for job_id in ids])


PROTOCOLS: dict[str, QueueProtocol] = {"beanstalk": Beanstalk(), "redis": Redis()}


def resp(*words: bytes) -> bytes:
    """Encode a command in Redis's protocol."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


_HASHES = {name: hashlib.sha1(script).hexdigest().encode() for name, script in SCRIPTS.items()}


def evaluate(script: str, tube: bytes, *arguments: bytes) -> bytes:
    """Encode one step of the delay queue."""
    return resp(b"EVALSHA", _HASHES[script], b"1", tube, *arguments)


def load_scripts(sock: socket.socket) -> None:
    """Load the scripts into a Redis server."""
    for name, script in SCRIPTS.items():
        sock.sendall(resp(b"SCRIPT", b"LOAD", script))
        reply = sock.recv(1000)
        assert _HASHES[name] in reply, f"Redis does not accept the script {name}: {reply!r}"


def move_once_a_second(port: int) -> None:
    """Move jobs that are due to the ready list once a second, until the server is gone."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as sock:
        while True:
            started = time.monotonic()
            while (reply := _move(sock)) != b":0\r\n":
                if not reply:
                    return
            time.sleep(max(0.0, started + 1 - time.monotonic()))


def _move(sock: socket.socket) -> bytes:
    sock.sendall(evaluate("move", MOVED))
    return sock.recv(100)
