"""A job as it is stored: everything that survives a restart.

Whatever stores, reads or shows jobs uses these two records: journals, the binlog's format, the files of beanstalkd, the
tools. A new field that a restart must keep is added here, in `describe`, in `Replay`, and in
each format (for the binlog's: docs/binlog-format.md, "How to change the record format"). Must never know how jobs are
stored.

Moments are those of the wall clock, in nanoseconds since 1970, because they outlive the process; durations are in
nanoseconds.
"""

from __future__ import annotations

from typing import Any, Final

from beanstalk_server.queue.job import BURIED, DELAYED, NEW, READY, RESERVED, Job

LAST_MOMENT: Final = (1 << 63) - 1
"""The last moment that can be stored, in nanoseconds: in the year 2262."""

FIELDS: Final = (
    "id", "tube", "key", "state", "priority", "delay", "ttr", "body", "created_at", "deadline", "bury_sequence",
    "reserves", "timeouts", "releases", "buries", "kicks",
)  # fmt: skip
"""The fields of a StoredJob, in the order of its arguments."""


def stored_moment(moment: int, clock_offset: int) -> int:
    """A moment of the server's clock as it is stored: by the wall clock, and limited to what 64 bits hold.

    Args:
        clock_offset: the wall clock minus the server's clock, in nanoseconds.
    """
    return max(min(moment + clock_offset, LAST_MOMENT), -LAST_MOMENT)


class StoredChange:
    """What can change of a job that has been stored before."""

    __slots__ = (
        "buries",
        "bury_sequence",  # of a buried job, its number in the order of burials; else 0
        "deadline",  # when a delayed job is due; else it means nothing
        "delay",  # as last given
        "id",
        "kicks",
        "priority",
        "releases",
        "reserves",
        "state",  # READY, DELAYED or BURIED
        "timeouts",
    )

    def __init__(self, id: int = 0) -> None:
        self.id = id
        self.state = READY
        self.priority = 0
        self.delay = 0
        self.deadline = 0
        self.bury_sequence = 0
        self.reserves = 0
        self.timeouts = 0
        self.releases = 0
        self.buries = 0
        self.kicks = 0

    def describe(self, job: Job, clock_offset: int) -> None:
        """Take the values of a job that should be stored at this moment.

        A reserved job counts as ready. A job that is about to be put counts as delayed if it has a delay.

        Args:
            clock_offset: the wall clock minus the server's clock, in nanoseconds.
        """
        state: int = job.state
        if state == RESERVED:
            state = READY
        elif state == NEW:
            state = DELAYED if job.delay else READY
        extras = job.extras
        self.id = job.id
        self.state = state
        self.priority = job.priority
        self.delay = job.delay
        self.deadline = stored_moment(job.deadline, clock_offset) if state == DELAYED else 0
        self.bury_sequence = extras.bury_sequence if state == BURIED else 0
        self.reserves = job.reserves
        self.timeouts = extras.timeouts
        self.releases = extras.releases
        self.buries = extras.buries
        self.kicks = extras.kicks


class StoredJob(StoredChange):
    """A whole job."""

    __slots__ = (
        "body",
        "created_at",
        "key",  # its name in the tube, or ""
        "ttr",
        "tube",  # the name of its tube
    )

    def __init__(
        self,
        id: int = 0,
        tube: str = "",
        key: str = "",
        state: int = READY,
        priority: int = 0,
        delay: int = 0,
        ttr: int = 0,
        body: bytes = b"",
        created_at: int = 0,
        deadline: int = 0,
        bury_sequence: int = 0,
        reserves: int = 0,
        timeouts: int = 0,
        releases: int = 0,
        buries: int = 0,
        kicks: int = 0,
    ) -> None:
        super().__init__(id)
        self.tube = tube
        self.key = key
        self.state = state
        self.priority = priority
        self.delay = delay
        self.ttr = ttr
        self.body = body
        self.created_at = created_at
        self.deadline = deadline
        self.bury_sequence = bury_sequence
        self.reserves = reserves
        self.timeouts = timeouts
        self.releases = releases
        self.buries = buries
        self.kicks = kicks

    def describe(self, job: Job, clock_offset: int) -> None:
        super().describe(job, clock_offset)
        self.tube = job.tube.name
        self.key = job.key
        self.ttr = job.ttr
        self.body = job.body
        self.created_at = stored_moment(job.created_at, clock_offset)

    def values(self) -> tuple[Any, ...]:
        """Its fields, in the order of FIELDS: `StoredJob(*job.values())` is equal to `job`."""
        return tuple([getattr(self, name) for name in FIELDS])

    def replace(self, **fields: Any) -> StoredJob:
        """A copy in which these fields have other values."""
        return StoredJob(**(dict(zip(FIELDS, self.values(), strict=True)) | fields))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredJob) and self.values() == other.values()

    def __repr__(self) -> str:
        return f"StoredJob({', '.join([f'{name}={getattr(self, name)!r}' for name in FIELDS])})"


def stored_job(job: Job, clock_offset: int) -> StoredJob:
    """A job as it should be stored at this moment.

    Args:
        clock_offset: the wall clock minus the server's clock, in nanoseconds.
    """
    stored = StoredJob()
    stored.describe(job, clock_offset)
    return stored
