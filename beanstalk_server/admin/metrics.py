"""Defines all metrics, and writes a page of them from statistics (docs/observability.md).

The figures of the server are those of `stats`, by their keys. A page takes one tube after the other: the first ones get
rows of their own, and the rest are summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import add, attrgetter
from typing import Any, Final, NamedTuple

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
from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.histogram import PERCENTILES, Histogram
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
        "CPU time of the process, in user or system mode (stats: rusage-utime, rusage-stime)",
        ("mode",),
    ): {"user": "rusage-utime", "system": "rusage-stime"},
    Family(
        "beanstalkd_current_jobs",
        GAUGE,
        "jobs by state; urgent jobs are also counted as ready (stats: current-jobs-…)",
        ("state",),
    ): {state: f"current-jobs-{state}" for state in STATES},
    Family(
        "beanstalkd_refused_puts_total",
        COUNTER,
        "puts refused by the policy of a tube, by limit (stats: refused-…)",
        ("limit",),
    ): {limit: f"refused-{limit}" for limit in LIMITS},
}
"""Families with a sample for each value of one label, and the key of stats for it."""

_PLAIN: Final = {
    key: Family(f"beanstalkd_{name}", kind, f"{meaning} (stats: {key})")
    for key, name, kind, meaning in (
        ("uptime", "uptime_seconds", GAUGE, "seconds since the start"),
        ("total-jobs", "jobs_total", COUNTER, "jobs put"),
        ("job-timeouts", "job_timeouts_total", COUNTER, "reserved jobs whose time to run ended"),
        ("current-tubes", "current_tubes", GAUGE, "tubes"),
        ("current-connections", "current_connections", GAUGE, "open connections"),
        ("current-producers", "current_producers", GAUGE, "connections that have put a job"),
        ("current-workers", "current_workers", GAUGE, "connections that have sent a reserve"),
        ("current-waiting", "current_waiting", GAUGE, "connections that wait for a job"),
        ("total-connections", "connections_total", COUNTER, "connections since the start"),
        ("max-job-size", "max_job_size_bytes", GAUGE, "maximum size of a body"),
        ("current-memory", "current_memory_bytes", GAUGE, "memory used by jobs"),
        ("max-memory", "max_memory_bytes", GAUGE, "maximum memory of jobs (0: no limit)"),
        ("binlog-oldest-index", "binlog_oldest_index", GAUGE, "number of the oldest binlog file"),
        ("binlog-current-index", "binlog_current_index", GAUGE, "number of the binlog file being written"),
        ("binlog-records-migrated", "binlog_records_migrated_total", COUNTER, "binlog records rewritten by cleaning"),
        ("binlog-records-written", "binlog_records_written_total", COUNTER, "binlog records written"),
        ("binlog-max-size", "binlog_max_size_bytes", GAUGE, "size of a binlog file"),
        ("expired-jobs", "expired_jobs_total", COUNTER, "jobs that have expired"),
        ("dead-jobs", "dead_jobs_total", COUNTER, "jobs moved to a dead tube"),
        ("retried-jobs", "retried_jobs_total", COUNTER, "failed jobs delayed by a backoff"),
        ("redriven-jobs", "redriven_jobs_total", COUNTER, "dead letters moved back to their origins"),
        ("held-keys", "current_held_keys", GAUGE, "keys held after their jobs are done"),
        ("current-groups", "current_groups", GAUGE, "groups that have jobs or that jobs wait for"),
    )
}
"""Families with a single sample, by the key of stats."""

_BUILD: Final = Family(
    "beanstalkd_build_info", INFO, "always 1; the labels are values of `stats`", ("version", "server")
)
_READY: Final = Family(
    "beanstalkd_ready",
    GAUGE,
    "1 if `/readyz/cluster` answers 200; a standby that reaches the leaders is ready",
)
_DRAINING: Final = Family(
    "beanstalkd_draining", GAUGE, "1 while the server refuses new jobs or hands its shards over (stats: draining)"
)
_COMMANDS: Final = Family("beanstalkd_commands_total", COUNTER, "commands by name (stats: cmd-…)", ("cmd",))
_REQUESTS: Final = Family("beanstalkd_http_requests_total", COUNTER, "HTTP responses, by status", ("code",))

_APART: Final = "; I/O processes are not included"
_OF_FIGURES: Final = {
    "forbidden": Family("beanstalkd_forbidden_commands_total", COUNTER, "commands answered FORBIDDEN"),
    "malformed_puts": Family(
        "beanstalkd_malformed_puts_total",
        COUNTER,
        "malformed puts, including bodies of the wrong length",
    ),
    "auth_failures": Family(
        "beanstalkd_auth_failures_total",
        COUNTER,
        f"clients refused because of missing or wrong credentials{_APART}",
    ),
    "auth_timeouts": Family(
        "beanstalkd_auth_timeouts_total",
        COUNTER,
        f"connections closed because they did not authenticate in time{_APART}",
    ),
    "pending_rejected": Family(
        "beanstalkd_pending_rejected_total",
        COUNTER,
        f"pending connections evicted to make room for newer ones{_APART}",
    ),
    "pending": Family("beanstalkd_pending_connections", GAUGE, f"connections that are not authenticated yet{_APART}"),
    "shortages": Family(
        "beanstalkd_accept_shortages_total",
        COUNTER,
        "pauses in accepting connections: no file descriptors or memory left, or the limit of "
        f"`--max-connections`{_APART}",
    ),
    "idle_closed": Family("beanstalkd_idle_closed_total", COUNTER, "clients disconnected by `--idle-timeout`"),
}
"""Families with a single sample, by the field of Figures."""

SERVER: Final = (
    _BUILD,
    _READY,
    _DRAINING,
    *_LABELLED,
    _COMMANDS,
    *_PLAIN.values(),
    *_OF_FIGURES.values(),
    _REQUESTS,
)

SHORTEST: Final = 6
"""The first bucket has what took 2^6 microseconds at most."""

_LONG: Final = 37
"""The last bound of what may take long is 2^37 microseconds, which is 38 hours."""

_SHORT: Final = 26
"""That of what should not: 67 seconds."""

WAITED: Final = Family(
    "beanstalkd_job_wait_seconds", HISTOGRAM, "time from when a job is ready until it is first reserved"
)
RAN: Final = Family(
    "beanstalkd_job_run_seconds",
    HISTOGRAM,
    "time from when a job is reserved until it is deleted, released or buried",
)
LATENESS: Final = Family(
    "beanstalkd_timer_lateness_seconds",
    HISTOGRAM,
    "lateness of timers: how late delays, times to run, timeouts and pauses end",
)
HELD: Final = Family(
    "beanstalkd_loop_held_seconds", HISTOGRAM, "duration of event loop stalls, in which no client is served"
)
COMMITS: Final = Family("beanstalkd_commit_seconds", HISTOGRAM, "duration of journal commits")
DURATIONS: Final = {WAITED: _LONG, RAN: _LONG, LATENESS: _SHORT, HELD: _SHORT, COMMITS: _SHORT}

_PREFIX: Final = "beanstalkd_tube_"
_COUNTED: Final = (*STATES, "total_jobs", "using", "watching", "waiting", "deletes", "pauses")
_LONGEST: Final = ("age", "pause", "pause_left")
_OF_A_POLICY: Final = (
    "bytes",
    "throttled",
    *(f"counters.refused_{limit}" for limit in LIMITS),
    "counters.expired",
    "counters.dead",
    "counters.retried",
    "counters.redriven",
)
"""The figures of a tube: those that are added up for the sum, those of which it has the longest, and those that a tube
with a policy has besides."""

_counted_of: Final = attrgetter(*_COUNTED)
_policy_of: Final = attrgetter(*_OF_A_POLICY)


class _TubeFamily(NamedTuple):
    """A family with samples of each tube, and the lines of one tube, with places for its name and its figures."""

    family: Family
    lines: str


def _of_tubes(name: str, kind: str, meaning: str, source: str | Mapping[str, str], label: str = "") -> _TubeFamily:
    """A family of tubes.

    Args:
        source: the figure of its one sample, or the figures of several by the value of their label.
    """
    family = Family(_PREFIX + name, kind, meaning, ("tube", label) if label else ("tube",))
    if isinstance(source, str):
        return _TubeFamily(family, f'{family.name}{{tube="%(name)s"}} %({source})s\n')
    lines = [f'{family.name}{{tube="%(name)s",{label}="{value}"}} %({key})s\n' for value, key in source.items()]
    return _TubeFamily(family, "".join(lines))


def _of_policies(name: str, kind: str, meaning: str, source: str | Mapping[str, str], label: str = "") -> _TubeFamily:
    """A family of tubes with a policy."""
    key = "refused-…" if label else name.removesuffix("_total").replace("_", "-")
    return _of_tubes(name, kind, f"{meaning}; only for tubes with a policy (stats-tube: {key})", source, label)


_OF_EACH_TUBE: Final = (
    _of_tubes(
        "current_jobs",
        GAUGE,
        "jobs of the tube, by state (stats-tube: current-jobs-…)",
        {state: state for state in STATES},
        "state",
    ),
    _of_tubes("jobs_total", COUNTER, "jobs put into the tube (stats-tube: total-jobs)", "total_jobs"),
    _of_tubes(
        "next_job_age_seconds", GAUGE, "seconds that the next ready job has been waiting (0: no ready job)", "age"
    ),
    _of_tubes("current_using", GAUGE, "clients that use the tube (stats-tube: current-using)", "using"),
    _of_tubes("current_watching", GAUGE, "clients that watch the tube (stats-tube: current-watching)", "watching"),
    _of_tubes(
        "current_waiting", GAUGE, "clients that wait for a job of the tube (stats-tube: current-waiting)", "waiting"
    ),
    _of_tubes(
        "commands_total",
        COUNTER,
        "delete and pause-tube commands on the tube (stats-tube: cmd-delete, cmd-pause-tube)",
        {"delete": "deletes", "pause-tube": "pauses"},
        "cmd",
    ),
    _of_tubes(
        "pause_seconds", GAUGE, "length of the current pause of the tube (0: not paused; stats-tube: pause)", "pause"
    ),
    _of_tubes(
        "pause_time_left_seconds",
        GAUGE,
        "time left of the current pause of the tube (stats-tube: pause-time-left)",
        "pause_left",
    ),
)
_OF_EACH_POLICY: Final = (
    _of_policies("bytes", GAUGE, "total size of the bodies of the tube's jobs", "bytes"),
    _of_policies("throttled", GAUGE, "1 while `rate` or `max-reserved` holds back the tube's jobs", "throttled"),
    _of_policies(
        "refused_puts_total",
        COUNTER,
        "puts refused by the policy of the tube",
        {limit: f"counters.refused_{limit}" for limit in LIMITS},
        "limit",
    ),
    _of_policies("expired_jobs_total", COUNTER, "jobs of the tube that have expired", "counters.expired"),
    _of_policies("dead_jobs_total", COUNTER, "jobs of the tube moved to a dead tube", "counters.dead"),
    _of_policies("retried_jobs_total", COUNTER, "jobs of the tube delayed by a backoff", "counters.retried"),
    _of_policies(
        "redriven_jobs_total", COUNTER, "dead letters of the tube moved back to their origins", "counters.redriven"
    ),
)
_MEASURED: Final = "; only for tubes with `measures`; of the latest 30,000 to 60,000 samples"
_OF_EACH_MEASURED: Final = {
    name: Family(_PREFIX + f"{name}_seconds", SUMMARY, meaning + _MEASURED, ("tube", "quantile"))
    for name, meaning in (
        ("job_wait", "time from when a job of the tube is ready until it is first reserved (stats-tube: wait-p…)"),
        ("job_run", "time that jobs of the tube are reserved (stats-tube: run-p…)"),
        (
            "timer_lateness",
            "time from when a delayed job of the tube is due until it is ready (stats-tube: lateness-p…)",
        ),
    )
}
_AGES: Final = (
    Family(
        _PREFIX + "oldest_ready_seconds",
        GAUGE,
        "age of the tube's oldest ready job; only for tubes with `measures` (stats-tube: oldest-ready)",
        ("tube",),
    ),
    Family(
        _PREFIX + "overdue_seconds",
        GAUGE,
        "time since the tube's first delayed job was due; only for tubes with `measures` (stats-tube: overdue)",
        ("tube",),
    ),
)
_ROWS_LIMIT: Final = Family(
    "beanstalkd_tube_series_limit", GAUGE, "maximum number of tubes with their own metrics: `--http-tubes`"
)
_ROWS_TRUNCATED: Final = Family(
    "beanstalkd_tube_series_truncated", GAUGE, "1 if some tubes have no metrics of their own"
)
_SUMMED: Final = Family("beanstalkd_tubes_summed", GAUGE, "number of tubes summed in `(other)`")
TUBES: Final = (
    *(each.family for each in (*_OF_EACH_TUBE, *_OF_EACH_POLICY)),
    *_OF_EACH_MEASURED.values(),
    *_AGES,
    _ROWS_LIMIT,
    _ROWS_TRUNCATED,
    _SUMMED,
)

_SHARDS: Final = Family("beanstalkd_cluster_shards", GAUGE, "shards of the cluster")
_SHARDS_LED: Final = Family("beanstalkd_cluster_shards_led", GAUGE, "shards that this node leads")
_ROLE: Final = Family(
    "beanstalkd_cluster_role",
    GAUGE,
    "1 for the role of the node in the shard, 0 for the other roles",
    ("shard", "role"),
)
_EPOCH: Final = Family(
    "beanstalkd_cluster_epoch",
    GAUGE,
    "epoch of the shard: number of leaders it has had, as seen by this node",
    ("shard",),
)
_SHARD_JOBS: Final = Family("beanstalkd_cluster_shard_jobs", GAUGE, "jobs of a shard that this node leads", ("shard",))
_LATENCY: Final = Family(
    "beanstalkd_cluster_commit_latency_seconds",
    SUMMARY,
    "duration of the latest commits to the engine: quantiles 0.5 and 0.99; only for shards that this node leads",
    ("shard", "quantile"),
)
CLUSTER: Final = (_SHARDS, _SHARDS_LED, _ROLE, _EPOCH, _SHARD_JOBS, _LATENCY)

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
    malformed_puts: int = 0
    auth_failures: int = 0
    auth_timeouts: int = 0
    pending_rejected: int = 0
    pending: int = 0
    shortages: int = 0
    idle_closed: int = 0
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
        self._lines: dict[Family, list[str]] = {each.family: [] for each in (*_OF_EACH_TUBE, *_OF_EACH_POLICY)}
        self._lines |= {family: [] for family in (*_OF_EACH_MEASURED.values(), *_AGES)}
        self._pieces: dict[Family, list[bytes]] = {family: [] for family in self._lines}

    def add(self, tube: TubeStatistics, age: int) -> None:
        """Take a tube.

        Args:
            age: nanoseconds that its next ready job has been waiting.
        """
        name = tube.name
        if name in self._names:
            return  # it has moved to another place in the list meanwhile
        longest = (age, tube.pause, tube.pause_left)
        if len(self._names) >= self._limit or name == OTHER:
            self._rest.add(_counted_of(tube), longest, _policy_of(tube) if tube.has_policy else None)
        else:
            self._names.add(name)
            self._write(name, _counted_of(tube), longest, _policy_of(tube) if tube.has_policy else None)
            if tube.durations is not None:
                self._write_durations(name, tube.durations)
                for family, duration in zip(_AGES, (tube.oldest, tube.overdue), strict=True):
                    self._lines[family].append(sample(family.name, duration / SECOND, tube=name))

    def _write_durations(self, name: str, durations: Durations) -> None:
        measured = (durations.waited, durations.ran, durations.lateness)
        for family, each in zip(_OF_EACH_MEASURED.values(), measured, strict=True):
            for share, found in zip(PERCENTILES, each.percentiles(PERCENTILES), strict=True):
                self._lines[family].append(sample(family.name, found / SECOND, tube=name, quantile=str(share)))

    def _write(self, name: str, counted: Sequence[int], longest: Sequence[int], policy: Sequence[int] | None) -> None:
        """Write the rows of a tube, in one piece for each family. No tube's name has anything to be escaped."""
        values: dict[str, Any] = {"name": name, **dict(zip(_COUNTED, counted, strict=True))}
        values |= {key: seconds(duration) for key, duration in zip(_LONGEST, longest, strict=True)}
        for family, lines in _OF_EACH_TUBE:
            self._lines[family].append(lines % values)
        if policy is not None:
            values |= {key: int(value) for key, value in zip(_OF_A_POLICY, policy, strict=True)}
            for family, lines in _OF_EACH_POLICY:
                self._lines[family].append(lines % values)

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
            self._write(OTHER, rest.counted, rest.longest, rest.policy)
        self.end_slice()
        pages = [(self._server(figures) + self._durations(figures.durations)).encode()]
        for family, pieces in self._pieces.items():
            pages += [self._format.head(family).encode(), *pieces]
        last = [
            self._single(_ROWS_LIMIT, self._limit),
            self._single(_ROWS_TRUNCATED, int(rest.count > 0)),
            self._single(_SUMMED, rest.count),
            self._cluster(figures.shards) if figures.shards else "",
            self._format.end,
        ]
        return [*pages, "".join(last).encode()]

    def _single(self, family: Family, value: float, **labels: str) -> str:
        """A family with one sample."""
        return self._format.head(family) + sample(family.name, value, **labels)

    def _server(self, figures: Figures) -> str:
        head = self._format.head
        found = figures.statistics
        text = [
            self._single(_BUILD, 1, version=found["version"].strip('"'), server=found["server"]),
            self._single(_READY, int(figures.is_ready)),
            self._single(_DRAINING, int(figures.is_draining or found["draining"] == "true")),
        ]
        for family, keys in _LABELLED.items():
            label = family.labels[0]
            text.append(head(family))
            text += [f'{family.name}{{{label}="{value}"}} {found[key]}\n' for value, key in keys.items()]
        text.append(head(_COMMANDS))
        for key, value in found.items():
            if key.startswith("cmd-"):
                text.append(f'{_COMMANDS.name}{{cmd="{key.removeprefix("cmd-")}"}} {value}\n')
        text += [f"{head(family)}{family.name} {found[key]}\n" for key, family in _PLAIN.items()]
        text += [self._single(family, getattr(figures, field)) for field, family in _OF_FIGURES.items()]
        text.append(head(_REQUESTS))
        text += [sample(_REQUESTS.name, count, code=str(code)) for code, count in sorted(figures.requests.items())]
        return "".join(text)

    def _durations(self, durations: Mapping[Family, Histogram]) -> str:
        text = ""
        for family, last in DURATIONS.items():
            if family in durations:
                measured = durations[family]
                powers = range(SHORTEST, last + 1)
                bounds = [(1 << power) / 1e6 for power in powers]
                counts = [*(measured.below(power) for power in powers), measured.count]
                text += self._format.head(family) + histogram(family.name, bounds, counts, measured.total / SECOND)
        return text

    def _cluster(self, shards: Sequence[ShardFigures]) -> str:
        head = self._format.head
        led = [(str(number), each, each.latency) for number, each in enumerate(shards) if each.latency is not None]
        text = [self._single(_SHARDS, len(shards)), self._single(_SHARDS_LED, len(led)), head(_ROLE)]
        for index, shard in enumerate(shards):
            text += [sample(_ROLE.name, int(shard.role == role), shard=str(index), role=role) for role in ROLES]
        text.append(head(_EPOCH))
        text += [sample(_EPOCH.name, shard.epoch, shard=str(index)) for index, shard in enumerate(shards)]
        text.append(head(_SHARD_JOBS))
        text += [sample(_SHARD_JOBS.name, shard.jobs, shard=name) for name, shard, _ in led]
        text.append(head(_LATENCY))
        for name, _, latency in led:
            for quantile, microseconds in zip(QUANTILES, latency, strict=True):
                text.append(sample(_LATENCY.name, microseconds / 1e6, shard=name, quantile=quantile))
        return "".join(text)


class _Sum:
    """The tubes without rows of their own, as if they were one."""

    def __init__(self) -> None:
        self.count = 0
        self.counted = [0] * len(_COUNTED)
        self.longest = [0] * len(_LONGEST)
        self.policy: list[int] | None = None  # if one of them has one

    def add(self, counted: Sequence[int], longest: Sequence[int], policy: Sequence[int] | None) -> None:
        """Add a tube."""
        self.count += 1
        self.counted = list(map(add, self.counted, counted))
        self.longest = list(map(max, self.longest, longest))
        if policy is not None:
            throttled = bool(policy[1] or (self.policy and self.policy[1]))  # one of them is
            self.policy = list(map(add, self.policy or [0] * len(policy), policy))
            self.policy[1] = throttled


def seconds(nanoseconds: int) -> str:
    """A duration in seconds, as a sample shows it."""
    return number(nanoseconds / SECOND) if nanoseconds else "0"
