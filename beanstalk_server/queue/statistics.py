"""What the queue tells of itself, as it is at one moment; see stats, stats-tube and stats-job in the protocol.

Must never know how it is written down. Times are in nanoseconds.
"""

from __future__ import annotations

from beanstalk_server.queue.job import Job
from beanstalk_server.queue.journal import Files


class JobStatistics:
    """A job, and what of it depends on the time."""

    __slots__ = ("age", "job", "time_left")

    def __init__(self, job: Job, age: int, time_left: int) -> None:
        self.job = job
        self.age = age
        self.time_left = time_left  # until time makes it ready, when it is delayed or reserved; else 0


class TubeStatistics:
    """A tube: its jobs in each state, its clients, and what has happened since it came into being."""

    __slots__ = (
        "buried",
        "delayed",
        "deletes",
        "name",
        "pause",
        "pause_left",
        "pauses",
        "ready",
        "reserved",
        "total_jobs",
        "urgent",
        "using",
        "waiting",
        "watching",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.urgent = 0
        self.ready = 0
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.total_jobs = 0
        self.using = 0
        self.watching = 0
        self.waiting = 0
        self.deletes = 0
        self.pauses = 0
        self.pause = 0  # the whole length of the pause that it is in, or 0
        self.pause_left = 0


class ServerStatistics:
    """The whole queue: its jobs in each state, its tubes and clients, and what has happened since the start."""

    __slots__ = (
        "buried",
        "connections",
        "delayed",
        "draining",
        "files",
        "producers",
        "ready",
        "reserved",
        "timeouts",
        "total_connections",
        "total_jobs",
        "tubes",
        "urgent",
        "waiting",
        "workers",
    )

    def __init__(self, files: Files) -> None:
        self.files = files  # the journal's
        self.urgent = 0
        self.ready = 0
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.timeouts = 0
        self.total_jobs = 0
        self.tubes = 0
        self.connections = 0
        self.producers = 0
        self.workers = 0
        self.waiting = 0
        self.total_connections = 0
        self.draining = False
