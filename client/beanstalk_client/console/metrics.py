"""Reads metrics over HTTP that the protocol does not have: percentiles of waiting and processing, leaders of shards.

Each INTERVAL seconds, while there are viewers, it reads a page of metrics. That is about all tubes: with --login, a
user needs the right to see the statistics of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import h11

from beanstalk_client.events import reason_of

INTERVAL: Final = 15.0
TIMEOUT: Final = 5.0
KEPT: Final = 20
"""Number of pages that the percentiles cover: five minutes."""
MAX_PAGE: Final = 8 * 1024 * 1024

LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([-+0-9.eE]+|\+Inf|NaN)")
LABEL: Final = re.compile(r'([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"')

WAIT: Final = "beanstalkd_job_wait_seconds"
RUN: Final = "beanstalkd_job_run_seconds"

QUANTILES: Final = (0.5, 0.95, 0.99)

Labels = dict[str, str]


@dataclass(slots=True)
class Node:
    """What a server has said last.

    Attributes:
        problem: why it says nothing; "" if it does.
        samples: by name: labels and values.
    """

    url: str
    problem: str = "not requested yet"
    samples: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float | None:
        """The value of a metric with these labels, or None."""
        for found, value in self.samples.get(name, []):
            if labels.items() <= found.items():
                return value
        return None

    def buckets(self, name: str) -> dict[float, float]:
        """The buckets of a histogram: by the seconds that each ends at, how many were no longer."""
        return {
            float(labels["le"]): value for labels, value in self.samples.get(f"{name}_bucket", []) if "le" in labels
        }

    @property
    def shards(self) -> list[dict[str, object]]:
        """The shards as this node sees them."""
        found: list[dict[str, object]] = []
        for labels, value in self.samples.get("beanstalkd_cluster_role", []):
            if value == 1:
                shard = labels.get("shard", "")
                latency = self.value("beanstalkd_cluster_commit_latency_seconds", shard=shard, quantile="0.99")
                found.append(
                    {
                        "shard": shard,
                        "role": labels.get("role", ""),
                        "epoch": self.value("beanstalkd_cluster_epoch", shard=shard),
                        "jobs": self.value("beanstalkd_cluster_shard_jobs", shard=shard),
                        "latency": latency,
                    }
                )
        return found


def read_metrics(text: str) -> dict[str, list[tuple[Labels, float]]]:
    """The samples of a page in Prometheus's text format, but for those of tubes."""
    found: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for row in text.splitlines():
        if row.startswith(("#", "beanstalkd_tube_")):
            continue
        matched = LINE.match(row)
        if matched:
            found[matched[1]].append((dict(LABEL.findall(matched[2] or "")), float(matched[3])))
    return dict(found)


def quantile(buckets: dict[float, float], share: float) -> float | None:
    """The value that this share of what a histogram counts does not exceed, as a bucket's end; None if it is empty."""
    total = max(buckets.values(), default=0.0)
    if not total:
        return None
    for end, count in sorted(buckets.items()):
        if count >= share * total:
            return end
    return None


class Metrics:
    """The metrics of some nodes.

    Args:
        urls: http://host:port; a token may stand before the host, as in http://:TOKEN@host:port.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self.nodes: list[Node] = [Node(_without_token(url)) for url in urls]
        self._asked = -INTERVAL
        self._task: asyncio.Task[None] | None = None
        self._counted: dict[str, deque[dict[float, float]]] = defaultdict(lambda: deque(maxlen=KEPT))

    def look(self) -> None:
        """Ask, if it is time to."""
        if not self._urls or time.monotonic() - self._asked < INTERVAL or (self._task and not self._task.done()):
            return
        self._asked = time.monotonic()
        self._task = asyncio.get_running_loop().create_task(self._ask())

    def percentiles(self, name: str) -> dict[float, float | None]:
        """The percentiles of a histogram in the last minutes, over all nodes; {} if nothing is known."""
        counted = self._counted[name]
        if not counted:
            return {}
        first, last = counted[0], counted[-1]
        recent = {end: max(count - first.get(end, 0.0), 0.0) for end, count in last.items()}
        return {share: quantile(recent if any(recent.values()) else last, share) for share in QUANTILES}

    async def _ask(self) -> None:
        for url, node in zip(self._urls, self.nodes, strict=True):
            try:
                node.samples = read_metrics(await asyncio.wait_for(get(url), TIMEOUT))
                node.problem = ""
            except (TimeoutError, OSError, ValueError) as error:
                node.problem = reason_of(error)
                node.samples = {}
        for name in (WAIT, RUN):
            together: dict[float, float] = defaultdict(float)
            for node in self.nodes:
                for end, count in node.buckets(name).items():
                    together[end] += count
            if together:
                self._counted[name].append(dict(together))


def _without_token(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def get(url: str) -> str:
    """The page of metrics at a server.

    Raises:
        OSError, ValueError: there is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"bad URL {_without_token(url)!r}: must be http://host:port")
    is_tls = parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or (443 if is_tls else 80), ssl=is_tls or None
    )
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", parts.netloc.rpartition("@")[2]), ("Connection", "close"), ("Accept", "text/plain")]
    if parts.password:
        headers.append(("Authorization", f"Bearer {parts.password}"))
    data = bytearray()
    try:
        request = h11.Request(method="GET", target=f"{parts.path.rstrip('/')}/metrics", headers=headers)
        writer.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
        while not isinstance(event := connection.next_event(), h11.EndOfMessage) and len(data) <= MAX_PAGE:
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Response) and event.status_code != 200:
                raise ValueError(f"the server answered with status {event.status_code}")
            elif isinstance(event, h11.Data):
                data += event.data
    except h11.ProtocolError as error:
        raise ValueError(f"malformed response: {error}") from None
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return data.decode("utf-8", "replace")
