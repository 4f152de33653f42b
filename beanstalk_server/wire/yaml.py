"""Formats statistics and lists as the YAML of the stats and list commands.

The keys and their order are beanstalkd's; keys that beanstalkd does not have come last. The quotation mark around
strings depends on the version of beanstalkd. Must never fetch anything: all figures come in as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.groups import GroupSearch
from beanstalk_server.queue.histogram import PERCENTILES
from beanstalk_server.queue.job import BURIED, DELAYED, READY, REASONS, RESERVED, STATES, Terms
from beanstalk_server.queue.policy import Counters, Labels
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics
from beanstalk_server.queue.units import SECOND
from beanstalk_server.version import VERSION

if TYPE_CHECKING:
    from beanstalk_server.wire.server_info import ServerInfo

SUMMED: Final = frozenset(
    {
        "binlog-records-migrated",
        "binlog-records-written",
        "current-connections",
        "current-groups",
        "current-jobs-buried",
        "current-jobs-delayed",
        "current-jobs-ready",
        "current-jobs-reserved",
        "current-jobs-urgent",
        "current-memory",
        "current-producers",
        "current-tubes",
        "current-waiting",
        "current-workers",
        "dead-jobs",
        "expired-jobs",
        "held-keys",
        "job-timeouts",
        "max-memory",
        "redriven-jobs",
        "refused-bytes",
        "refused-delay",
        "refused-jobs",
        "refused-size",
        "retried-jobs",
        "total-connections",
        "total-jobs",
    }
)
"""The rows of stats of which each shard has its part, beside those that count a command. All other rows are what the
shard of the default tube says."""

DRAINING: Final = "draining"
"""The row of stats that is true when it is at all shards."""

COUNT_OF_COMMAND: Final = "cmd-"
"""What the names of the rows begin with that count a command."""

TUBES: Final = "current-tubes"
"""The row of stats that counts the default tube of each shard, of which a cluster has one."""

Rows = dict[str, str]
"""Figures and other values by their keys, in the order in which they are written."""

Counts = Iterable[tuple[str, int]]
"""Commands by name, and how often each has been given."""


def stats(
    queue: ServerStatistics, server: ServerInfo, protocol_counts: Counts, extension_counts: Counts, quote: str, now: int
) -> Rows:
    user, system = server.cpu_times()
    files = queue.files
    return {
        "current-jobs-urgent": str(queue.urgent),
        "current-jobs-ready": str(queue.ready),
        "current-jobs-reserved": str(queue.reserved),
        "current-jobs-delayed": str(queue.delayed),
        "current-jobs-buried": str(queue.buried),
        **_counts(protocol_counts),
        "job-timeouts": str(queue.timeouts),
        "total-jobs": str(queue.total_jobs),
        "max-job-size": str(server.max_job_size),
        "current-tubes": str(queue.tubes),
        "current-connections": str(queue.connections),
        "current-producers": str(queue.producers),
        "current-workers": str(queue.workers),
        "current-waiting": str(queue.waiting),
        "total-connections": str(queue.total_connections),
        "pid": str(server.pid),
        "version": f'"{server.version}"',  # which 1.12 quotes too
        "rusage-utime": f"{user:.6f}",
        "rusage-stime": f"{system:.6f}",
        "uptime": str((now - server.started_at) // SECOND),
        "binlog-oldest-index": str(files.oldest),
        "binlog-current-index": str(files.current),
        "binlog-records-migrated": str(files.migrated),
        "binlog-records-written": str(files.written),
        "binlog-max-size": str(files.max_size),
        "draining": "true" if queue.draining else "false",
        "id": server.instance,
        "hostname": f"{quote}{server.hostname}{quote}",
        "os": f"{quote}{server.os}{quote}",
        "platform": f"{quote}{server.platform}{quote}",
        **_counts(extension_counts),
        "current-memory": str(queue.memory),
        "max-memory": str(queue.max_memory),
        **_counters(queue.counters, queue.held),
        "current-groups": str(queue.groups),
        **server.more(),
        "server": f"beanstalk-server {VERSION}",
    }


def _counts(counts: Counts) -> Rows:
    return {COUNT_OF_COMMAND + name: str(count) for name, count in counts}


def yaml(rows: Rows) -> bytes:
    """Rows as the answer to a command."""
    return f"---\n{_lines(rows)}".encode()


def _lines(rows: Rows) -> str:
    return "".join([f"{key}: {value}\n" for key, value in rows.items()])


def rows_of(answer: bytes) -> Rows:
    """The rows of an answer to stats or stats-tube, which begins with a line of its own."""
    rows: Rows = {}
    for line in answer.decode().splitlines()[1:]:
        key, _, value = line.partition(": ")
        rows[key] = value
    return rows


class StatisticsSum:
    """The rows of stats for several shards: each is a sum, or what the first shard says."""

    def __init__(self) -> None:
        self._first: Rows = {}
        self._sums: dict[str, int] = {}
        self._is_draining = True

    def add(self, rows: Rows, *, is_first: bool) -> None:
        """Add what a shard says. They may come in any order."""
        sums = self._sums
        for key, value in rows.items():
            if is_summed(key):
                sums[key] = sums.get(key, 0) + int(value)
        self._is_draining = self._is_draining and rows[DRAINING] == "true"
        if is_first:
            self._first = rows
        else:
            sums[TUBES] -= 1

    def rows(self) -> Rows:
        """What is said of all shards together."""
        draining = {DRAINING: "true" if self._is_draining else "false"}
        return {**self._first, **{key: str(total) for key, total in self._sums.items()}, **draining}


def stats_tube(tube: TubeStatistics, quote: str) -> bytes:
    return (
        "---\n"
        f"name: {quote}{tube.name}{quote}\n"
        f"current-jobs-urgent: {tube.urgent}\n"
        f"current-jobs-ready: {tube.ready}\n"
        f"current-jobs-reserved: {tube.reserved}\n"
        f"current-jobs-delayed: {tube.delayed}\n"
        f"current-jobs-buried: {tube.buried}\n"
        f"total-jobs: {tube.total_jobs}\n"
        f"current-using: {tube.using}\n"
        f"current-watching: {tube.watching}\n"
        f"current-waiting: {tube.waiting}\n"
        f"cmd-delete: {tube.deletes}\n"
        f"cmd-pause-tube: {tube.pauses}\n"
        f"pause: {tube.pause // SECOND}\n"
        f"pause-time-left: {tube.pause_left // SECOND}\n"
        f"{_policy(tube) if tube.has_policy else ''}"
    ).encode()


def stats_group(search: GroupSearch, age: int, quote: str) -> bytes:
    """The answer to stats-group.

    Args:
        search: has looked at all members.
        age: since its first member was put, in nanoseconds.
    """
    group = search.group
    counts = search.counts
    state = "open" if group.members else "ended" if group.has_begun else "awaited"
    waiting = 0 if group.waiting is None else group.waiting.count
    return (
        "---\n"
        f"name: {quote}{group.key}{quote}\n"
        f"state: {state}\n"
        f"age: {age // SECOND}\n"
        f"current-jobs-ready: {counts[READY]}\n"
        f"current-jobs-reserved: {counts[RESERVED]}\n"
        f"current-jobs-delayed: {counts[DELAYED]}\n"
        f"current-jobs-buried: {counts[BURIED]}\n"
        f"waiting-jobs: {waiting}\n"
        f"done-jobs: {group.done}\n"
        f"cancelled-jobs: {group.cancelled}\n"
        f"expired-jobs: {group.expired}\n"
        f"dead-jobs: {group.dead}\n"
        f"buried: {sorted(search.buried)}\n"
    ).encode()


def tube_entry(tube: TubeStatistics) -> bytes:
    """An entry of the answer to stats-tubes: what stats-tube answers, on one line."""
    return b"- {%b}\n" % stats_tube(tube, '"')[len(b"---\n") : -len(b"\n")].replace(b"\n", b", ")


def _policy(tube: TubeStatistics) -> str:
    rows = f"{_lines(_counters(tube.counters, tube.held))}bytes: {tube.bytes}\nthrottled: {int(tube.throttled)}\n"
    return rows if tube.durations is None else rows + _percentiles(tube.durations) + _ages(tube)


def _ages(tube: TubeStatistics) -> str:
    return f"oldest-ready: {tube.oldest / SECOND:.6f}\noverdue: {tube.overdue / SECOND:.6f}\n"


def _percentiles(durations: Durations) -> str:
    """The latest durations of a tube's jobs, in seconds."""
    rows = []
    for name, measured in (
        ("wait", durations.waited),
        ("run", durations.ran),
        ("lateness", durations.lateness),
    ):
        found = measured.percentiles(PERCENTILES)
        rows += [
            f"{name}-p{share * 100:.0f}: {each / SECOND:.6f}\n" for share, each in zip(PERCENTILES, found, strict=True)
        ]
    return "".join(rows)


def _counters(counters: Counters, held: int) -> Rows:
    """What policies have done, and how many keys are held."""
    return {
        "refused-jobs": str(counters.refused_jobs),
        "refused-bytes": str(counters.refused_bytes),
        "refused-delay": str(counters.refused_delay),
        "refused-size": str(counters.refused_size),
        "expired-jobs": str(counters.expired),
        "dead-jobs": str(counters.dead),
        "retried-jobs": str(counters.retried),
        "redriven-jobs": str(counters.redriven),
        "held-keys": str(held),
    }


def stats_job(statistics: JobStatistics, quote: str, origin: str) -> bytes:
    """The answer to stats-job.

    Args:
        origin: the tube that it has come from, if the client may know it, or "".
    """
    job = statistics.job
    extras = job.extras
    return (
        "---\n"
        f"id: {job.id}\n"
        f"tube: {quote}{job.tube.name}{quote}\n"
        f"state: {STATES[job.state]}\n"
        f"pri: {job.priority}\n"
        f"age: {statistics.age // SECOND}\n"
        f"delay: {job.delay // SECOND}\n"
        f"ttr: {job.ttr // SECOND}\n"
        f"time-left: {statistics.time_left // SECOND}\n"
        f"file: {statistics.file}\n"
        f"reserves: {job.reserves}\n"
        f"timeouts: {extras.timeouts}\n"
        f"releases: {extras.releases}\n"
        f"buries: {extras.buries}\n"
        f"kicks: {extras.kicks}\n"
        f"{_key(job.key, quote)}"
        f"{_holder(statistics, quote)}"
        f"{'' if statistics.terms is None else _terms(statistics, statistics.terms, quote, origin)}"
    ).encode()


def job_entry(statistics: JobStatistics) -> bytes:
    job = statistics.job
    extras = job.extras
    terms = statistics.terms
    return (
        f'- {{id: {job.id}, state: "{STATES[job.state]}", pri: {job.priority}, age: {statistics.age // SECOND}, '
        f"delay: {job.delay // SECOND}, ttr: {job.ttr // SECOND}, time-left: {statistics.time_left // SECOND}, "
        f"reserves: {job.reserves}, timeouts: {extras.timeouts}, releases: {extras.releases}, "
        f"buries: {extras.buries}, kicks: {extras.kicks}, size: {statistics.size}, "
        f"tries: {0 if terms is None else terms.tries}, "
        f'reason: "{"" if terms is None else REASONS[terms.reason]}", key: "{job.key}"'
        f"{'' if statistics.holder is None else _held(statistics)}}}\n"
    ).encode("ascii")


def _held(statistics: JobStatistics) -> str:
    return f', client: "{statistics.holder}", reserved-for: {statistics.held // SECOND}'


def _holder(statistics: JobStatistics, quote: str) -> str:
    """The rows about the client that has reserved a job; "" if no client has, or it has no name."""
    if not statistics.holder:
        return ""
    return f"client: {quote}{statistics.holder}{quote}\nreserved-for: {statistics.held // SECOND}\n"


def _key(key: str, quote: str) -> str:
    return f"key: {quote}{key}{quote}\n" if key else ""


def _terms(statistics: JobStatistics, terms: Terms, quote: str, origin: str) -> str:
    return (
        f"tries: {terms.tries}\n"
        f"max-tries: {statistics.max_tries}\n"
        f"reason: {quote}{REASONS[terms.reason]}{quote}\n"
        f"origin: {quote}{origin}{quote}\n"
        f"expires-in: {statistics.expires_in // SECOND}\n"
        f"{'' if terms.labels is None else _labels(terms.labels, quote)}"
    )


def _labels(labels: Labels, quote: str) -> str:
    lines = ""
    if labels.group:
        lines += f"group: {quote}{labels.group}{quote}\n"
    if labels.after:
        lines += f"after: {quote}{labels.after}{quote}\n"
    if labels.share:
        lines += f"share: {quote}{labels.share}{quote}\n"
    if labels.limit:
        lines += f"limit: {quote}{labels.limit}{quote}\n"
    return lines


def tube_list(entries: bytes) -> bytes:
    """The answer to list-tubes-watched, from the lines of the tubes."""
    return b"---\n" + entries


def is_summed(key: str) -> bool:
    """Whether this row of stats is the sum of what the shards say."""
    return key.startswith(COUNT_OF_COMMAND) or key in SUMMED
