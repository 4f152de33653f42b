"""A job as it is stored: everything that survives a restart.

Whatever stores, reads or shows jobs uses these two records: journals, the binlog's format, the files of beanstalkd, the
tools. A new field that a restart must keep is added here, in `describe`, in `Replay`, and in each format (for the
binlog's: docs/binlog-format.md, "How to change the record format").

Moments are those of the wall clock, in nanoseconds since 1970, because they outlive the process; durations are in
nanoseconds.
"""

from __future__ import annotations

from typing import Any, Final

from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    HELD,
    NEW,
    NO_REASON,
    READY,
    RESERVED,
    HeldKey,
    Holder,
    Job,
    Terms,
)

LAST_MOMENT: Final = (1 << 63) - 1
"""The last moment that can be stored, in nanoseconds: in the year 2262."""

FIELDS: Final = (
    "id", "tube", "key", "state", "priority", "delay", "ttr", "body", "created_at", "deadline", "bury_sequence",
    "reserves", "timeouts", "releases", "buries", "kicks", "has_terms", "max_tries", "backoff", "ttl", "key_hold", "at",
    "tries", "reason", "origin", "ready_since",
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
        "at",  # of a delayed job that is due by the wall clock: when; then it is the deadline, too
        "buries",
        "bury_sequence",  # of a buried job, its number in the order of burials; else 0
        "deadline",  # when a delayed job is due, or when a held key is free; else it means nothing
        "delay",  # as last given
        "has_terms",  # whether the job has terms, or is a held key; if not, what comes from them is as at first
        "id",
        "keeps_key",  # whether it still has the key that it was put with
        "kicks",
        "origin",  # the name of the tube that it has come from, if it is in a dead tube
        "priority",
        "ready_since",  # of a ready job: since when; 0 if that is not known
        "reason",  # why it has failed last
        "releases",
        "reserves",
        "state",  # READY, DELAYED, BURIED or HELD
        "timeouts",
        "tries",
        "tube",  # the name of its tube; a change says it only if the job has terms
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
        self.tube = ""
        self.keeps_key = True
        self.has_terms = False
        self.at = 0
        self.tries = 0
        self.reason = NO_REASON
        self.origin = ""
        self.ready_since = 0

    def describe(self, job: Job, clock_offset: int) -> None:
        """Take the values of a job that should be stored at this moment.

        A reserved job counts as ready, from the restart on. A job that is about to be put counts as delayed if it has a
        delay, or is due by the wall clock.

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
        if isinstance(extras, Terms):
            self.describe_terms(job, extras, clock_offset)
        elif self.has_terms:
            self.forget_terms()

    def describe_terms(self, job: Job, terms: Terms, clock_offset: int) -> None:
        """Take the values that only a job with terms has."""
        self.has_terms = True
        self.tube = job.tube.name
        self.keeps_key = bool(terms.key)
        self.at = 0
        self.tries = terms.tries
        self.reason = terms.reason
        self.origin = terms.origin
        self.ready_since = 0
        if terms.at and job.state in (NEW, DELAYED):
            self.state = DELAYED
            self.deadline = self.at = terms.at
        elif self.state == READY and terms.ready_since and job.state != RESERVED:
            self.ready_since = stored_moment(terms.ready_since, clock_offset)

    def describe_held(self, held: HeldKey, clock_offset: int) -> None:
        self.forget_terms()
        self.id = held.id
        self.state = HELD
        self.priority = 0
        self.delay = 0
        self.deadline = stored_moment(held.deadline, clock_offset)
        self.bury_sequence = 0
        self.reserves = self.timeouts = self.releases = self.buries = self.kicks = 0
        self.has_terms = True
        self.tube = held.tube.name

    def forget_terms(self) -> None:
        """Be that of a job without terms: the same object describes one job after the other."""
        self.has_terms = False
        self.keeps_key = True
        self.at = 0
        self.tries = 0
        self.reason = NO_REASON
        self.origin = ""
        self.ready_since = 0


class StoredJob(StoredChange):
    """A whole job."""

    __slots__ = (
        "backoff",  # as in Attributes, as are the next three
        "body",
        "created_at",
        "key",  # its name in the tube, or ""
        "key_hold",
        "max_tries",
        "ttl",
        "ttr",
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
        has_terms: int = False,
        max_tries: int = 0,
        backoff: int = 0,
        ttl: int = 0,
        key_hold: int = 0,
        at: int = 0,
        tries: int = 0,
        reason: int = NO_REASON,
        origin: str = "",
        ready_since: int = 0,
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
        self.has_terms = bool(has_terms)  # a database may give it back as a number
        self.max_tries = max_tries
        self.backoff = backoff
        self.ttl = ttl
        self.key_hold = key_hold
        self.at = at
        self.tries = tries
        self.reason = reason
        self.origin = origin
        self.ready_since = ready_since

    def describe(self, job: Job, clock_offset: int) -> None:
        super().describe(job, clock_offset)
        self.tube = job.tube.name
        self.key = job.key
        self.ttr = job.ttr
        self.body = job.body
        self.created_at = stored_moment(job.created_at, clock_offset)

    def describe_held(self, held: HeldKey, clock_offset: int) -> None:
        super().describe_held(held, clock_offset)
        self.key = held.key
        self.ttr = 0
        self.body = b""
        self.created_at = stored_moment(held.created_at, clock_offset)

    def describe_terms(self, job: Job, terms: Terms, clock_offset: int) -> None:
        super().describe_terms(job, terms, clock_offset)
        self.max_tries = terms.max_tries
        self.backoff = terms.backoff
        self.ttl = terms.ttl
        self.key_hold = terms.key_hold

    def forget_terms(self) -> None:
        super().forget_terms()
        self.max_tries = 0
        self.backoff = 0
        self.ttl = 0
        self.key_hold = 0

    def describe_holder(self, holder: Holder, clock_offset: int) -> None:
        if isinstance(holder, Job):  # asked first: nearly all are jobs
            self.describe(holder, clock_offset)
        else:
            assert isinstance(holder, HeldKey)
            self.describe_held(holder, clock_offset)

    def values(self) -> tuple[Any, ...]:
        """Its fields, in the order of FIELDS: `StoredJob(*job.values())` is equal to `job`."""
        return tuple([getattr(self, name) for name in FIELDS])

    def replace(self, **fields: Any) -> StoredJob:
        return StoredJob(**(dict(zip(FIELDS, self.values(), strict=True)) | fields))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredJob) and self.values() == other.values()

    def __repr__(self) -> str:
        return f"StoredJob({', '.join([f'{name}={getattr(self, name)!r}' for name in FIELDS])})"


def stored_job(job: Holder, clock_offset: int) -> StoredJob:
    """A job, or a held key, as it should be stored at this moment.

    Args:
        clock_offset: the wall clock minus the server's clock, in nanoseconds.
    """
    stored = StoredJob()
    stored.describe_holder(job, clock_offset)
    return stored
