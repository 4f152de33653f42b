"""What is asked of a server that has no stats-tubes, as beanstalkd has none.

Must never print. (docs/protocol-extensions.md, "For operators")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import beanstalk_client
from beanstalk_client import Client


def all_tubes(client: Client[bytes], prefix: str = "") -> Iterator[dict[str, Any]]:
    """The statistics of all tubes whose names begin with the prefix.

    A server that knows no stats-tubes is asked for each tube by itself; a tube that goes meanwhile is left out.
    """
    try:
        yield from client.stats_tubes(prefix=prefix)
    except beanstalk_client.UnknownCommandError:
        for name in sorted(name for name in client.tubes() if name.startswith(prefix)):
            try:
                yield dict(client.stats_tube(name))
            except beanstalk_client.NotFoundError:
                continue
