"""The YAML of the stats and list commands, key for key and quote for quote as beanstalkd 1.13 writes it. What it has
not stands behind.

Must never change anything; what the process itself knows (its pid, its CPU time) is an argument.
"""

from __future__ import annotations

from collections.abc import Callable

from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics
from beanstalk_server.queue.tube import Tube
from beanstalk_server.wire.grammar import COMMANDS, EXTENSIONS, SECOND


class Process:
    """What stats tells of the process.

    Args:
        pid: its process id.
        version: the server's version.
        instance: a random id of this start of the server.
        hostname, os, platform: as uname gives nodename, version and machine.
        max_job_size: the largest body, in bytes.
        started_at: the moment of the start, in nanoseconds of the clock that every command is given.
        cpu_times: gives the seconds that the process has spent in user and in system mode.
    """

    def __init__(
        self,
        *,
        pid: int = 0,
        version: str = "",
        instance: str = "",
        hostname: str = "",
        os: str = "",
        platform: str = "",
        max_job_size: int = 65535,
        started_at: int = 0,
        cpu_times: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0),
    ) -> None:
        self.pid = pid
        self.version = version
        self.instance = instance
        self.hostname = hostname
        self.os = os
        self.platform = platform
        self.max_job_size = max_job_size
        self.started_at = started_at
        self.cpu_times = cpu_times
        self.commands = [0] * len(COMMANDS + EXTENSIONS)
        """How often each command has been given, in the order of COMMANDS and EXTENSIONS."""


def stats(queue: ServerStatistics, process: Process, now: int) -> str:
    """The answer to stats."""
    user, system = process.cpu_times()
    files = queue.files
    lines = [
        "---",
        f"current-jobs-urgent: {queue.urgent}",
        f"current-jobs-ready: {queue.ready}",
        f"current-jobs-reserved: {queue.reserved}",
        f"current-jobs-delayed: {queue.delayed}",
        f"current-jobs-buried: {queue.buried}",
    ]
    lines += _counts(COMMANDS, process.commands[: len(COMMANDS)])
    lines += [
        f"job-timeouts: {queue.timeouts}",
        f"total-jobs: {queue.total_jobs}",
        f"max-job-size: {process.max_job_size}",
        f"current-tubes: {queue.tubes}",
        f"current-connections: {queue.connections}",
        f"current-producers: {queue.producers}",
        f"current-workers: {queue.workers}",
        f"current-waiting: {queue.waiting}",
        f"total-connections: {queue.total_connections}",
        f"pid: {process.pid}",
        f'version: "{process.version}"',
        f"rusage-utime: {user:.6f}",
        f"rusage-stime: {system:.6f}",
        f"uptime: {(now - process.started_at) // SECOND}",
        f"binlog-oldest-index: {files.oldest}",
        f"binlog-current-index: {files.current}",
        f"binlog-records-migrated: {files.migrated}",
        f"binlog-records-written: {files.written}",
        f"binlog-max-size: {files.max_size}",
        f"draining: {'true' if queue.draining else 'false'}",
        f"id: {process.instance}",
        f'hostname: "{process.hostname}"',
        f'os: "{process.os}"',
        f'platform: "{process.platform}"',
    ]
    lines += _counts(EXTENSIONS, process.commands[len(COMMANDS) :])
    return "\n".join(lines) + "\n"


def _counts(names: tuple[str, ...], counts: list[int]) -> list[str]:
    return [f"cmd-{name}: {count}" for name, count in zip(names, counts, strict=True)]


def stats_tube(tube: TubeStatistics) -> str:
    """The answer to stats-tube."""
    return (
        "---\n"
        f'name: "{tube.name}"\n'
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
    )


def stats_job(statistics: JobStatistics) -> str:
    """The answer to stats-job."""
    job = statistics.job
    extras = job.extras
    return (
        "---\n"
        f"id: {job.id}\n"
        f'tube: "{job.tube.name}"\n'
        f"state: {STATES[job.state]}\n"
        f"pri: {job.priority}\n"
        f"age: {statistics.age // SECOND}\n"
        f"delay: {job.delay // SECOND}\n"
        f"ttr: {job.ttr // SECOND}\n"
        f"time-left: {statistics.time_left // SECOND}\n"
        f"file: {job.file}\n"
        f"reserves: {job.reserves}\n"
        f"timeouts: {extras.timeouts}\n"
        f"releases: {extras.releases}\n"
        f"buries: {extras.buries}\n"
        f"kicks: {extras.kicks}\n" + (f'key: "{job.key}"\n' if job.key else "")
    )


def tube_list(tubes: list[Tube]) -> bytes:
    """The answer to list-tubes-watched."""
    return b"---\n" + b"".join([tube.entry for tube in tubes])
