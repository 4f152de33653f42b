"""What a job costs in memory: a million of each kind, put into a server of their own.

    python -m bench.memory [KIND…]

For each kind, the bytes by which the server's resident memory has grown, and those that it says its jobs take
(`current-memory`), divided by the number of jobs. The constants of beanstalk_server/queue/memory.py are to make the two
agree. Bodies have 100 bytes, and keys 12. Must never measure two kinds in one process: the second would take what the
first has left.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
from collections.abc import Sequence

from bench.servers import PEERS, Server
from bench.subject import UnexpectedReplyError, ask
from bench.tables import markdown

BATCH = 200  # puts that are sent at a time
BODY = b"x" * 100

KINDS = {
    "delayed": b"put 0 3600 60 100",
    "ready": b"put 0 0 60 100",
    "key": b"put-keyed key%(number)09d 0 0 60 100",
    "tries": b"put-with 0 0 60 100 tries=3",
    "ttl": b"put-with 0 0 60 100 ttl=3600",
    "at": b"put-with 0 0 60 100 at=4000000000",
    "key, tries": b"put-with 0 0 60 100 key=key%(number)09d tries=3",
    "key, ttl": b"put-with 0 0 60 100 key=key%(number)09d ttl=3600",
    "held key": b"put-with 0 0 60 100 key=key%(number)09d hold=3600",
}
"""By name: how a job is put. A held key is what is left of one that is deleted at once."""

DELETED = "held key"


def measure(server: Server, kind: str, count: int) -> tuple[float, float]:
    """Put this many jobs; return the bytes that each takes of the process, and by its account."""
    delete = b"delete %(id)d\r\n" if kind == DELETED else b""
    command = KINDS[kind] + b"\r\n" + BODY + b"\r\n" + delete
    replies = 2 if delete else 1
    with server.connect() as sock:
        said = _account(sock)
        resident = server.resident()
        for start in range(0, count, BATCH):
            numbers = range(start, min(start + BATCH, count))
            commands = b"".join([command % {b"number": number, b"id": number + 1} for number in numbers])
            received = ask(sock, commands, replies * len(numbers))
            if received.count(b"INSERTED ") + received.count(b"DELETED") != replies * len(numbers):
                raise UnexpectedReplyError(f"{kind}: {received[:100]!r}")
        resident = server.resident() - resident
        said = _account(sock) - said
    return resident / count, said / count


def _account(sock: socket.socket) -> int:
    """What the jobs take as the server counts; 0 if it does not."""
    sock.sendall(b"stats\r\n")
    with sock.makefile("rb") as replies:
        stats = replies.read(int(replies.readline().split()[1]) + 2)
    found = re.search(rb"^current-memory: (\d+)", stats, re.MULTILINE)
    return int(found[1]) if found else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--peer", choices=list(PEERS), default="ours", help="which server (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1_000_000, help="how many (default: %(default)s)")
    options = parser.parse_args(arguments)
    if unknown := [kind for kind in options.kinds if kind not in KINDS]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(KINDS)}")
    rows = [["job", "resident, bytes", "by the account, bytes"]]
    for kind in options.kinds or KINDS:
        server = Server(options.peer)
        try:
            resident, said = measure(server, kind, options.jobs)
        finally:
            server.stop()
        rows.append([kind, f"{resident:.0f}", f"{said:.0f}"])
    print(markdown(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
