"""Whether a server has what beanstalkd lacks, and what is asked of it instead where it has not.

Must never print. (docs/protocol-extensions.md, "For operators")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import greenstalk

from beanstalk_server.client import Client


def knows(client: Client[bytes], command: str) -> bool:
    """Whether the server knows a command, which is given without its arguments: so it does nothing."""
    try:
        client._send_cmd(f"{command} -".encode(), b"")
    except greenstalk.UnknownCommandError:
        return False
    except greenstalk.Error:
        return True
    return True


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
