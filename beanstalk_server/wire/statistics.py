"""Formats statistics and lists as the YAML of the stats and list commands.

The keys and their order are beanstalkd's; keys that beanstalkd does not have come last. The quotation mark around
strings depends on the version of beanstalkd. Must never fetch anything: all figures come in as arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.job import REASONS, STATES, Terms
from beanstalk_server.queue.policy import Counters
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics
from beanstalk_server.queue.units import SECOND
from beanstalk_server.version import VERSION

if TYPE_CHECKING:
    from beanstalk_server.wire.server_info import ServerInfo

SUMMED: Final = frozenset(
    {
        b"binlog-records-migrated",
        b"binlog-records-written",
        b"current-connections",
        b"current-jobs-buried",
        b"current-jobs-delayed",
        b"current-jobs-ready",
        b"current-jobs-reserved",
        b"current-jobs-urgent",
        b"current-memory",
        b"current-producers",
        b"current-tubes",
        b"current-waiting",
        b"current-workers",
        b"dead-jobs",
        b"expired-jobs",
        b"held-keys",
        b"job-timeouts",
        b"max-memory",
        b"redriven-jobs",
        b"refused-bytes",
        b"refused-delay",
        b"refused-jobs",
        b"refused-size",
        b"retried-jobs",
        b"total-connections",
        b"total-jobs",
    }
)
"""The rows of stats of which each shard has its part, beside those that count a command. All other rows are what the
shard of the default tube says."""

DRAINING: Final = b"draining"
"""The row of stats that is true when it is at all shards."""

COUNT_OF_COMMAND: Final = b"cmd-"
"""What the names of the rows begin with that count a command."""

Counts = Iterable[tuple[str, int]]
"""Commands by name, and how often each has been given."""


def stats(
    queue: ServerStatistics, server: ServerInfo, protocol_counts: Counts, extension_counts: Counts, quote: str, now: int
) -> bytes:
    user, system = server.cpu_times()
    files = queue.files
    return (
        "---\n"
        f"current-jobs-urgent: {queue.urgent}\n"
        f"current-jobs-ready: {queue.ready}\n"
        f"current-jobs-reserved: {queue.reserved}\n"
        f"current-jobs-delayed: {queue.delayed}\n"
        f"current-jobs-buried: {queue.buried}\n"
        f"{_counts(protocol_counts)}"
        f"job-timeouts: {queue.timeouts}\n"
        f"total-jobs: {queue.total_jobs}\n"
        f"max-job-size: {server.max_job_size}\n"
        f"current-tubes: {queue.tubes}\n"
        f"current-connections: {queue.connections}\n"
        f"current-producers: {queue.producers}\n"
        f"current-workers: {queue.workers}\n"
        f"current-waiting: {queue.waiting}\n"
        f"total-connections: {queue.total_connections}\n"
        f"pid: {server.pid}\n"
        f'version: "{server.version}"\n'  # which 1.12 quotes too
        f"rusage-utime: {user:.6f}\n"
        f"rusage-stime: {system:.6f}\n"
        f"uptime: {(now - server.started_at) // SECOND}\n"
        f"binlog-oldest-index: {files.oldest}\n"
        f"binlog-current-index: {files.current}\n"
        f"binlog-records-migrated: {files.migrated}\n"
        f"binlog-records-written: {files.written}\n"
        f"binlog-max-size: {files.max_size}\n"
        f"draining: {'true' if queue.draining else 'false'}\n"
        f"id: {server.instance}\n"
        f"hostname: {quote}{server.hostname}{quote}\n"
        f"os: {quote}{server.os}{quote}\n"
        f"platform: {quote}{server.platform}{quote}\n"
        f"{_counts(extension_counts)}"
        f"current-memory: {queue.memory}\n"
        f"max-memory: {queue.max_memory}\n"
        f"{_counters(queue.counters, queue.held)}"
        f"{server.more()}"
        f"server: beanstalk-server {VERSION}\n"
    ).encode()


def _counts(counts: Counts) -> str:
    return "".join([f"cmd-{name}: {count}\n" for name, count in counts])


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


def tube_entry(tube: TubeStatistics) -> bytes:
    """An entry of the answer to stats-tubes: what stats-tube answers, on one line."""
    return b"- {%b}\n" % stats_tube(tube, '"')[len(b"---\n") : -len(b"\n")].replace(b"\n", b", ")


def _policy(tube: TubeStatistics) -> str:
    return f"{_counters(tube.counters, tube.held)}bytes: {tube.bytes}\nthrottled: {int(tube.throttled)}\n"


def _counters(counters: Counters, held: int) -> str:
    """What policies have done, and how many keys are held."""
    return (
        f"refused-jobs: {counters.refused_jobs}\n"
        f"refused-bytes: {counters.refused_bytes}\n"
        f"refused-delay: {counters.refused_delay}\n"
        f"refused-size: {counters.refused_size}\n"
        f"expired-jobs: {counters.expired}\n"
        f"dead-jobs: {counters.dead}\n"
        f"retried-jobs: {counters.retried}\n"
        f"redriven-jobs: {counters.redriven}\n"
        f"held-keys: {held}\n"
    )


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
        f'reason: "{"" if terms is None else REASONS[terms.reason]}", key: "{job.key}"}}\n'
    ).encode("ascii")


def _key(key: str, quote: str) -> str:
    return f"key: {quote}{key}{quote}\n" if key else ""


def _terms(statistics: JobStatistics, terms: Terms, quote: str, origin: str) -> str:
    return (
        f"tries: {terms.tries}\n"
        f"max-tries: {statistics.max_tries}\n"
        f"reason: {quote}{REASONS[terms.reason]}{quote}\n"
        f"origin: {quote}{origin}{quote}\n"
        f"expires-in: {statistics.expires_in // SECOND}\n"
    )


def tube_list(entries: bytes) -> bytes:
    """The answer to list-tubes-watched, from the lines of the tubes."""
    return b"---\n" + entries


def is_summed(key: bytes) -> bool:
    """Whether this row of stats is the sum of what the shards say."""
    return key.startswith(COUNT_OF_COMMAND) or key in SUMMED
