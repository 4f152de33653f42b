"""The metrics: which there are, and how they follow from statistics (docs/observability.md).

The figures of the server are those of `stats`, by their keys; those of a tube are its statistics, and a page of metrics
takes one tube after the other, with rows of its own or into the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from beanstalk_server.admin.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    INFO,
    SUMMARY,
    Family,
    Format,
    histogram,
    number,
    sample,
)
from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.queue.statistics import TubeStatistics
from beanstalk_server.queue.units import SECOND

OTHER: Final = "(other)"
"""What stands for the tubes that have no rows of their own. A tube may be named so: then it is among them."""

STATES: Final = ("urgent", "ready", "reserved", "delayed", "buried")
LIMITS: Final = ("jobs", "bytes", "delay", "size")

_LABELLED: Final = {
    Family(
        "beanstalkd_cpu_seconds_total",
        COUNTER,
        "CPU time of the process: user or system (stats: rusage-utime, rusage-stime)",
        ("mode",),
    ): {"user": "rusage-utime", "system": "rusage-stime"},
    Family(
        "beanstalkd_current_jobs",
        GAUGE,
        "jobs that are urgent, ready, reserved, delayed or buried; urgent ones are ready, too (stats: current-jobs-…)",
        ("state",),
    ): {state: f"current-jobs-{state}" for state in STATES},
    Family(
        "beanstalkd_refused_puts_total",
        COUNTER,
        "puts refused by the policy of a tube: jobs, bytes, delay or size (stats: refused-…)",
        ("limit",),
    ): {limit: f"refused-{limit}" for limit in LIMITS},
}
"""Families with a sample for each value of one label, and the key of stats for it."""

_PLAIN: Final = (
    ("uptime", "beanstalkd_uptime_seconds", GAUGE, "seconds since the start"),
    ("total-jobs", "beanstalkd_jobs_total", COUNTER, "jobs that have been put"),
    ("job-timeouts", "beanstalkd_job_timeouts_total", COUNTER, "reserved jobs whose time to run was over"),
    ("current-tubes", "beanstalkd_current_tubes", GAUGE, "tubes"),
    ("current-connections", "beanstalkd_current_connections", GAUGE, "open connections"),
    ("current-producers", "beanstalkd_current_producers", GAUGE, "of these, those that have put a job"),
    ("current-workers", "beanstalkd_current_workers", GAUGE, "of these, those that have reserved a job or tried to"),
    ("current-waiting", "beanstalkd_current_waiting", GAUGE, "of these, those that wait for a job"),
    ("total-connections", "beanstalkd_connections_total", COUNTER, "connections so far"),
    ("max-job-size", "beanstalkd_max_job_size_bytes", GAUGE, "size of the largest body that a put may have"),
    ("current-memory", "beanstalkd_current_memory_bytes", GAUGE, "memory that jobs take"),
    ("max-memory", "beanstalkd_max_memory_bytes", GAUGE, "memory that jobs may take; 0 without a limit"),
    ("binlog-oldest-index", "beanstalkd_binlog_oldest_index", GAUGE, "number of the oldest file of the binlog"),
    ("binlog-current-index", "beanstalkd_binlog_current_index", GAUGE, "number of the file that is written"),
    (
        "binlog-records-migrated",
        "beanstalkd_binlog_records_migrated_total",
        COUNTER,
        "records written again by cleaning",
    ),
    ("binlog-records-written", "beanstalkd_binlog_records_written_total", COUNTER, "records written"),
    ("binlog-max-size", "beanstalkd_binlog_max_size_bytes", GAUGE, "size of a file"),
    ("expired-jobs", "beanstalkd_expired_jobs_total", COUNTER, "jobs that have expired"),
    ("dead-jobs", "beanstalkd_dead_jobs_total", COUNTER, "jobs that have gone to a dead tube"),
    ("retried-jobs", "beanstalkd_retried_jobs_total", COUNTER, "jobs that have failed, and were delayed by a backoff"),
    ("redriven-jobs", "beanstalkd_redriven_jobs_total", COUNTER, "jobs that have gone back from a dead tube"),
    ("held-keys", "beanstalkd_current_held_keys", GAUGE, "keys that stay taken after their jobs are gone"),
)
"""Families with a single sample: the key of stats, name, kind and meaning."""

BUILD: Final = Family("beanstalkd_build_info", INFO, "always 1; what `stats` shows", ("version", "server"))
READY: Final = Family(
    "beanstalkd_ready",
    GAUGE,
    "whether `/readyz/cluster` answers 200: a node that stands by, and reaches the leaders, is ready",
)
DRAINING: Final = Family(
    "beanstalkd_draining", GAUGE, "whether new jobs are refused here, or another node is to lead (stats: draining)"
)
COMMANDS: Final = Family("beanstalkd_commands_total", COUNTER, "commands by name (stats: cmd-…)", ("cmd",))

_APART: Final = "; without those of I/O processes"
AUTH_FAILURES: Final = Family(
    "beanstalkd_auth_failures_total",
    COUNTER,
    f"clients refused because of what they gave as a proof, or gave instead{_APART}",
)
AUTH_TIMEOUTS: Final = Family(
    "beanstalkd_auth_timeouts_total",
    COUNTER,
    f"clients closed because they did not become known in time{_APART}",
)
PENDING_REJECTED: Final = Family(
    "beanstalkd_pending_rejected_total",
    COUNTER,
    f"clients closed before they were known, to make room for newer ones{_APART}",
)
PENDING: Final = Family("beanstalkd_pending_connections", GAUGE, f"connections whose clients are not known yet{_APART}")
FORBIDDEN: Final = Family(
    "beanstalkd_forbidden_commands_total", COUNTER, "commands answered FORBIDDEN, for lack of a right"
)
SHORTAGES: Final = Family(
    "beanstalkd_accept_shortages_total",
    COUNTER,
    f"how often clients had to wait until they were accepted, for lack of file descriptors or memory{_APART}",
)
REQUESTS: Final = Family("beanstalkd_http_requests_total", COUNTER, "answers to HTTP requests, by status", ("code",))

PLAIN: Final = {key: Family(name, kind, f"{meaning} (stats: {key})") for key, name, kind, meaning in _PLAIN}
SERVER: Final = (
    BUILD,
    READY,
    DRAINING,
    *_LABELLED,
    COMMANDS,
    *PLAIN.values(),
    FORBIDDEN,
    AUTH_FAILURES,
    AUTH_TIMEOUTS,
    PENDING_REJECTED,
    PENDING,
    SHORTAGES,
    REQUESTS,
)

SHORTEST: Final = 6
"""The first bucket has what took 2^6 microseconds at most."""

_LONG: Final = 37
"""The last bound of what may take long is 2^37 microseconds, which is 38 hours."""

_SHORT: Final = 26
"""That of what should not: 67 seconds."""

WAITED: Final = Family(
    "beanstalkd_job_wait_seconds", HISTOGRAM, "how long jobs were ready until they were first reserved"
)
RAN: Final = Family(
    "beanstalkd_job_run_seconds",
    HISTOGRAM,
    "how long jobs were reserved until they were deleted, released or buried",
)
LATENESS: Final = Family("beanstalkd_timer_lateness_seconds", HISTOGRAM, "how late what was due was done")
HELD: Final = Family(
    "beanstalkd_loop_held_seconds", HISTOGRAM, "how long the event loop was held, in which nobody was served"
)
COMMITS: Final = Family("beanstalkd_commit_seconds", HISTOGRAM, "how long commits of the journal took")
DURATIONS: Final = {WAITED: _LONG, RAN: _LONG, LATENESS: _SHORT, HELD: _SHORT, COMMITS: _SHORT}

_OF_POLICIES: Final = "; only of tubes with a policy"
TUBE_JOBS: Final = Family(
    "beanstalkd_tube_current_jobs",
    GAUGE,
    "jobs of the tube that are urgent, ready, reserved, delayed or buried (stats-tube: current-jobs-…)",
    ("tube", "state"),
)
TUBE_TOTAL: Final = Family(
    "beanstalkd_tube_jobs_total", COUNTER, "jobs that have been put into it (stats-tube: total-jobs)", ("tube",)
)
TUBE_AGE: Final = Family(
    "beanstalkd_tube_next_job_age_seconds",
    GAUGE,
    "seconds that the next ready job has been waiting; 0 without one",
    ("tube",),
)
TUBE_USING: Final = Family(
    "beanstalkd_tube_current_using", GAUGE, "clients that use it (stats-tube: current-using)", ("tube",)
)
TUBE_WATCHING: Final = Family(
    "beanstalkd_tube_current_watching", GAUGE, "clients that watch it (stats-tube: current-watching)", ("tube",)
)
TUBE_WAITING: Final = Family(
    "beanstalkd_tube_current_waiting",
    GAUGE,
    "clients that wait for a job of it (stats-tube: current-waiting)",
    ("tube",),
)
TUBE_COMMANDS: Final = Family(
    "beanstalkd_tube_commands_total",
    COUNTER,
    "commands: delete and pause-tube (stats-tube: cmd-delete, cmd-pause-tube)",
    ("tube", "cmd"),
)
TUBE_PAUSE: Final = Family(
    "beanstalkd_tube_pause_seconds", GAUGE, "length of its present pause, or 0 (stats-tube: pause)", ("tube",)
)
TUBE_PAUSE_LEFT: Final = Family(
    "beanstalkd_tube_pause_time_left_seconds", GAUGE, "what is left of it (stats-tube: pause-time-left)", ("tube",)
)
TUBE_BYTES: Final = Family(
    "beanstalkd_tube_bytes", GAUGE, f"bytes of its jobs' bodies{_OF_POLICIES} (stats-tube: bytes)", ("tube",)
)
TUBE_THROTTLED: Final = Family(
    "beanstalkd_tube_throttled",
    GAUGE,
    f"whether it is offered to nobody for now{_OF_POLICIES} (stats-tube: throttled)",
    ("tube",),
)
TUBE_REFUSED: Final = Family(
    "beanstalkd_tube_refused_puts_total",
    COUNTER,
    f"puts refused by its policy{_OF_POLICIES} (stats-tube: refused-…)",
    ("tube", "limit"),
)
TUBE_EXPIRED: Final = Family(
    "beanstalkd_tube_expired_jobs_total",
    COUNTER,
    f"its jobs that have expired{_OF_POLICIES} (stats-tube: expired-jobs)",
    ("tube",),
)
TUBE_DEAD: Final = Family(
    "beanstalkd_tube_dead_jobs_total",
    COUNTER,
    f"its jobs that have gone to a dead tube{_OF_POLICIES} (stats-tube: dead-jobs)",
    ("tube",),
)
TUBE_RETRIED: Final = Family(
    "beanstalkd_tube_retried_jobs_total",
    COUNTER,
    f"its jobs that were delayed by a backoff{_OF_POLICIES} (stats-tube: retried-jobs)",
    ("tube",),
)
TUBE_REDRIVEN: Final = Family(
    "beanstalkd_tube_redriven_jobs_total",
    COUNTER,
    f"jobs that have gone back from it{_OF_POLICIES} (stats-tube: redriven-jobs)",
    ("tube",),
)
OF_EACH_TUBE: Final = (
    TUBE_JOBS,
    TUBE_TOTAL,
    TUBE_AGE,
    TUBE_USING,
    TUBE_WATCHING,
    TUBE_WAITING,
    TUBE_COMMANDS,
    TUBE_PAUSE,
    TUBE_PAUSE_LEFT,
)
OF_EACH_POLICY: Final = (
    TUBE_BYTES,
    TUBE_THROTTLED,
    TUBE_REFUSED,
    TUBE_EXPIRED,
    TUBE_DEAD,
    TUBE_RETRIED,
    TUBE_REDRIVEN,
)
ROWS_LIMIT: Final = Family(
    "beanstalkd_tube_series_limit", GAUGE, "how many tubes may have rows of their own: `--http-tubes`"
)
ROWS_TRUNCATED: Final = Family("beanstalkd_tube_series_truncated", GAUGE, "whether some have none")
SUMMED: Final = Family("beanstalkd_tubes_summed", GAUGE, "how many tubes are summed in `(other)`")
TUBES: Final = (*OF_EACH_TUBE, *OF_EACH_POLICY, ROWS_LIMIT, ROWS_TRUNCATED, SUMMED)

SHARDS: Final = Family("beanstalkd_cluster_shards", GAUGE, "shards of the cluster")
SHARDS_LED: Final = Family("beanstalkd_cluster_shards_led", GAUGE, "of these, those that this node leads")
ROLE: Final = Family(
    "beanstalkd_cluster_role",
    GAUGE,
    "1 for the node's role in the shard, 0 for the others: leader, suspended, standby",
    ("shard", "role"),
)
EPOCH: Final = Family(
    "beanstalkd_cluster_epoch",
    GAUGE,
    "how often the shard has had a new leader, as far as this node knows",
    ("shard",),
)
SHARD_JOBS: Final = Family("beanstalkd_cluster_shard_jobs", GAUGE, "jobs of a shard that this node leads", ("shard",))
COMMIT_LATENCY: Final = Family(
    "beanstalkd_cluster_commit_latency_seconds",
    SUMMARY,
    "how long the latest commits to the engine took: 0.5 and 0.99 of them no longer; of shards that this node leads",
    ("shard", "quantile"),
)
CLUSTER: Final = (SHARDS, SHARDS_LED, ROLE, EPOCH, SHARD_JOBS, COMMIT_LATENCY)

LEADER: Final = "leader"
SUSPENDED: Final = "suspended"
STANDBY: Final = "standby"
ROLES: Final = (LEADER, SUSPENDED, STANDBY)
QUANTILES: Final = ("0.5", "0.99")


class ShardFigures(NamedTuple):
    """A shard, as a node sees it."""

    role: str
    """One of ROLES."""
    epoch: int
    jobs: int
    latency: tuple[int, int] | None
    """Microseconds that half of the latest commits, and 99 of 100, took at most; None if the node does not lead it."""


class Figures(NamedTuple):
    """All that a page of metrics shows beside tubes, at one moment."""

    statistics: Mapping[str, str]
    """The rows of stats."""
    is_ready: bool
    is_draining: bool = False
    forbidden: int = 0
    auth_failures: int = 0
    auth_timeouts: int = 0
    pending_rejected: int = 0
    pending: int = 0
    shortages: int = 0
    requests: Mapping[int, int] = {}
    """How many requests have been answered with each status."""
    durations: Mapping[Family, Histogram] = {}
    """What has been measured, by the families of DURATIONS."""
    shards: Sequence[ShardFigures] = ()
    """Of a node of a cluster."""


class MetricsPage:
    """A page of metrics that is being written: first the tubes, then everything else.

    Args:
        limit: how many tubes get rows of their own.
    """

    sums = True
    """Whether it wants the tubes beyond the limit, too."""

    def __init__(self, text_format: Format, limit: int) -> None:
        self.content_type = text_format.content_type
        self._format = text_format
        self._limit = limit
        self._names: set[str] = set()  # of the tubes that have rows
        self._rest = _Sum()
        self._lines: dict[Family, list[str]] = {family: [] for family in (*OF_EACH_TUBE, *OF_EACH_POLICY)}
        self._pieces: dict[Family, list[bytes]] = {family: [] for family in self._lines}

    def add(self, tube: TubeStatistics, age: int) -> None:
        """Take a tube.

        Args:
            age: nanoseconds that its next ready job has been waiting.
        """
        name = tube.name
        if len(self._names) >= self._limit or name == OTHER:
            if name not in self._names:  # it has moved to another place in the list meanwhile
                self._rest.add(tube, age)
        elif name not in self._names:
            self._names.add(name)
            self._write(tube, age)

    def _write(self, tube: TubeStatistics | _Sum, age: int) -> None:
        """Write the rows of a tube, in one piece for each family."""
        lines = self._lines
        label = f'{{tube="{tube.name}"'  # no tube's name has anything that must be escaped
        name = "beanstalkd_tube_current_jobs" + label
        lines[TUBE_JOBS].append(
            f'{name},state="urgent"}} {tube.urgent}\n{name},state="ready"}} {tube.ready}\n'
            f'{name},state="reserved"}} {tube.reserved}\n{name},state="delayed"}} {tube.delayed}\n'
            f'{name},state="buried"}} {tube.buried}\n'
        )
        lines[TUBE_TOTAL].append(f"beanstalkd_tube_jobs_total{label}}} {tube.total_jobs}\n")
        lines[TUBE_AGE].append(f"beanstalkd_tube_next_job_age_seconds{label}}} {seconds(age)}\n")
        lines[TUBE_USING].append(f"beanstalkd_tube_current_using{label}}} {tube.using}\n")
        lines[TUBE_WATCHING].append(f"beanstalkd_tube_current_watching{label}}} {tube.watching}\n")
        lines[TUBE_WAITING].append(f"beanstalkd_tube_current_waiting{label}}} {tube.waiting}\n")
        name = "beanstalkd_tube_commands_total" + label
        lines[TUBE_COMMANDS].append(f'{name},cmd="delete"}} {tube.deletes}\n{name},cmd="pause-tube"}} {tube.pauses}\n')
        lines[TUBE_PAUSE].append(f"beanstalkd_tube_pause_seconds{label}}} {seconds(tube.pause)}\n")
        lines[TUBE_PAUSE_LEFT].append(f"beanstalkd_tube_pause_time_left_seconds{label}}} {seconds(tube.pause_left)}\n")
        if tube.has_policy:
            self._write_policy(tube, label)

    def _write_policy(self, tube: TubeStatistics | _Sum, label: str) -> None:
        lines = self._lines
        counters = tube.counters
        lines[TUBE_BYTES].append(f"beanstalkd_tube_bytes{label}}} {tube.bytes}\n")
        lines[TUBE_THROTTLED].append(f"beanstalkd_tube_throttled{label}}} {int(tube.throttled)}\n")
        name = "beanstalkd_tube_refused_puts_total" + label
        lines[TUBE_REFUSED].append(
            f'{name},limit="jobs"}} {counters.refused_jobs}\n{name},limit="bytes"}} {counters.refused_bytes}\n'
            f'{name},limit="delay"}} {counters.refused_delay}\n{name},limit="size"}} {counters.refused_size}\n'
        )
        lines[TUBE_EXPIRED].append(f"beanstalkd_tube_expired_jobs_total{label}}} {counters.expired}\n")
        lines[TUBE_DEAD].append(f"beanstalkd_tube_dead_jobs_total{label}}} {counters.dead}\n")
        lines[TUBE_RETRIED].append(f"beanstalkd_tube_retried_jobs_total{label}}} {counters.retried}\n")
        lines[TUBE_REDRIVEN].append(f"beanstalkd_tube_redriven_jobs_total{label}}} {counters.redriven}\n")

    def end_slice(self) -> None:
        """Join what has been written since the last slice, so that the end of a long page costs no more than that."""
        for family, lines in self._lines.items():
            if lines:
                self._pieces[family].append("".join(lines).encode())
                lines.clear()

    def finish(self, figures: Figures) -> list[bytes]:
        """The whole page, in pieces."""
        rest = self._rest
        if rest.count:
            self._write(rest, rest.age)
        self.end_slice()
        head = self._format.head
        text = [self._server(figures), self._durations(figures.durations)]
        pages = ["".join(text).encode()]
        for family, pieces in self._pieces.items():
            pages += [head(family).encode(), *pieces]
        text = [
            head(ROWS_LIMIT) + sample(ROWS_LIMIT.name, self._limit),
            head(ROWS_TRUNCATED) + sample(ROWS_TRUNCATED.name, int(rest.count > 0)),
            head(SUMMED) + sample(SUMMED.name, rest.count),
            self._cluster(figures.shards) if figures.shards else "",
            self._format.end,
        ]
        return [*pages, "".join(text).encode()]

    def _server(self, figures: Figures) -> str:
        head = self._format.head
        found = figures.statistics
        text = [head(BUILD), sample(BUILD.name, 1, version=found["version"].strip('"'), server=found["server"])]
        text += [head(READY), sample(READY.name, int(figures.is_ready))]
        text += [head(DRAINING), sample(DRAINING.name, int(figures.is_draining or found["draining"] == "true"))]
        for family, keys in _LABELLED.items():
            text.append(head(family))
            text += [f'{family.name}{{{family.labels[0]}="{value}"}} {found[key]}\n' for value, key in keys.items()]
        text.append(head(COMMANDS))
        text += [
            sample(COMMANDS.name, int(count), cmd=key.removeprefix("cmd-"))
            for key, count in found.items()
            if key.startswith("cmd-")
        ]
        for key, family in PLAIN.items():
            text += [head(family), f"{family.name} {found[key]}\n"]
        for family, value in (
            (FORBIDDEN, figures.forbidden),
            (AUTH_FAILURES, figures.auth_failures),
            (AUTH_TIMEOUTS, figures.auth_timeouts),
            (PENDING_REJECTED, figures.pending_rejected),
            (PENDING, figures.pending),
            (SHORTAGES, figures.shortages),
        ):
            text += [head(family), sample(family.name, value)]
        text.append(head(REQUESTS))
        text += [sample(REQUESTS.name, count, code=str(code)) for code, count in sorted(figures.requests.items())]
        return "".join(text)

    def _durations(self, durations: Mapping[Family, Histogram]) -> str:
        text = []
        for family, last in DURATIONS.items():
            if family in durations:
                measured = durations[family]
                powers = range(SHORTEST, last + 1)
                counts = [measured.below(power) for power in powers]
                text += [
                    self._format.head(family),
                    histogram(
                        family.name,
                        [(1 << power) / 1e6 for power in powers],
                        [*counts, measured.count],
                        measured.total / SECOND,
                    ),
                ]
        return "".join(text)

    def _cluster(self, shards: Sequence[ShardFigures]) -> str:
        head = self._format.head
        led = [(str(number), shard) for number, shard in enumerate(shards) if shard.latency is not None]
        text = [head(SHARDS), sample(SHARDS.name, len(shards)), head(SHARDS_LED), sample(SHARDS_LED.name, len(led))]
        text.append(head(ROLE))
        for index, shard in enumerate(shards):
            text += [sample(ROLE.name, int(shard.role == role), shard=str(index), role=role) for role in ROLES]
        text.append(head(EPOCH))
        text += [sample(EPOCH.name, shard.epoch, shard=str(index)) for index, shard in enumerate(shards)]
        text.append(head(SHARD_JOBS))
        text += [sample(SHARD_JOBS.name, shard.jobs, shard=name) for name, shard in led]
        text.append(head(COMMIT_LATENCY))
        for name, shard in led:
            assert shard.latency is not None, "it is led here"
            text += [
                sample(COMMIT_LATENCY.name, latency / 1e6, shard=name, quantile=quantile)
                for quantile, latency in zip(QUANTILES, shard.latency, strict=True)
            ]
        return "".join(text)


class _Sum:
    """The tubes without rows of their own, as if they were one."""

    name = OTHER

    def __init__(self) -> None:
        self.count = 0
        self.age = 0  # of the job that has been waiting longest, in nanoseconds
        self.urgent = self.ready = self.reserved = self.delayed = self.buried = 0
        self.total_jobs = self.using = self.watching = self.waiting = self.deletes = self.pauses = 0
        self.pause = self.pause_left = 0  # the longest
        self.has_policy = False  # one of them has
        self.bytes = 0
        self.throttled = False  # one of them is
        self.counters = _Counts()

    def add(self, tube: TubeStatistics, age: int) -> None:
        """Add a tube."""
        self.count += 1
        if age > self.age:
            self.age = age
        self.urgent += tube.urgent
        self.ready += tube.ready
        self.reserved += tube.reserved
        self.delayed += tube.delayed
        self.buried += tube.buried
        self.total_jobs += tube.total_jobs
        self.using += tube.using
        self.watching += tube.watching
        self.waiting += tube.waiting
        self.deletes += tube.deletes
        self.pauses += tube.pauses
        if tube.pause:
            self.pause = max(self.pause, tube.pause)
            self.pause_left = max(self.pause_left, tube.pause_left)
        if tube.has_policy:
            self.has_policy = True
            self.bytes += tube.bytes
            self.throttled = self.throttled or tube.throttled
            self.counters.add(tube)


class _Counts:
    """What policies have done in the tubes without rows of their own."""

    def __init__(self) -> None:
        self.dead = self.expired = self.redriven = self.retried = 0
        self.refused_bytes = self.refused_delay = self.refused_jobs = self.refused_size = 0

    def add(self, tube: TubeStatistics) -> None:
        """Add those of a tube."""
        counters = tube.counters
        self.dead += counters.dead
        self.expired += counters.expired
        self.redriven += counters.redriven
        self.retried += counters.retried
        self.refused_bytes += counters.refused_bytes
        self.refused_delay += counters.refused_delay
        self.refused_jobs += counters.refused_jobs
        self.refused_size += counters.refused_size


def seconds(nanoseconds: int) -> str:
    """A duration in seconds, as a sample shows it."""
    return number(nanoseconds / SECOND) if nanoseconds else "0"


def rows_of(statistics: bytes) -> dict[str, str]:
    """The rows of a reply to stats or stats-tube, without the line that begins it."""
    rows = {}
    for line in statistics.decode().splitlines()[1:]:
        key, _, value = line.partition(": ")
        rows[key] = value
    return rows
