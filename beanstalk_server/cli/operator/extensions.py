"""What beanstalk-server knows and beanstalkd does not, asked through a client: pages of jobs and tubes, clients, moves.

Must never print. (docs/protocol-extensions.md, "For operators")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import greenstalk

from beanstalk_server.client import Client, _entry


def knows(client: Client[bytes], command: str) -> bool:
    """Whether the server knows a command, which is given without its arguments: so it does nothing."""
    try:
        client._send_cmd(f"{command} -".encode(), b"")
    except greenstalk.UnknownCommandError:
        return False
    except greenstalk.Error:
        return True
    return True


def list_clients(client: Client[bytes]) -> list[dict[str, Any]]:
    """All clients of the server."""
    size = client._int_cmd(b"list-clients", b"OK")
    lines = client._read_chunk(size).decode("utf-8", "replace").splitlines()
    return [dict(_entry(line)) for line in lines if line.startswith("- ")]


def all_tubes(client: Client[bytes], prefix: str = "") -> Iterator[dict[str, Any]]:
    """The statistics of all tubes whose names begin with the prefix.

    A server that knows no stats-tubes is asked for each tube by itself; a tube that goes meanwhile is left out.
    """
    try:
        yield from client.stats_tubes(prefix=prefix)
    except (greenstalk.UnknownCommandError, greenstalk.BadFormatError):  # beanstalkd reads stats-tube, and a bad name
        for name in sorted(name for name in client.tubes() if name.startswith(prefix)):
            try:
                yield dict(client.stats_tube(name))
            except greenstalk.NotFoundError:
                continue
