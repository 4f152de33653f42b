"""A job as it is stored: everything that survives a restart.

All code that stores, reads or shows jobs uses this record: journals, the binlog's format, the files of beanstalkd, the
tools. A new field that a restart must keep is added here, in `describe`, in `Replay`, and in each format (for the
binlog's: docs/binlog-format.md, "How to change the record format").

Moments are those of the wall clock, in nanoseconds since 1970, because they outlive the process; durations are in
nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from beanstalk_server.queue.groups import Group
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    GROUP,
    HELD,
    MAX_U32,
    NEVER,
    NEW,
    NO_REASON,
    READY,
    RESERVED,
    TOKEN_MARK,
    Holder,
    Job,
    Terms,
    Token,
)
from beanstalk_server.queue.units import GREATEST_SHORT

LAST_MOMENT: Final = (1 << 63) - 1
"""The last moment that can be stored, in nanoseconds: in the year 2262. As the deadline of a delayed job, it says that
the job waits for a group."""


def stored_moment(moment: int, clock_offset: int) -> int:
    """A moment of the server's clock as it is stored: by the wall clock, and limited to what 64 bits hold.

    Args:
        clock_offset: the wall clock minus the server's clock, in nanoseconds.
    """
    stored = moment + clock_offset
    if -GREATEST_SHORT <= stored <= GREATEST_SHORT:
        return stored
    return max(min(stored, LAST_MOMENT), -LAST_MOMENT)


@dataclass
class StoredJob:
    """A whole job; or what can change of a job that has been stored before, which is all but its demands (`max_tries`,
    `backoff`, `ttl`, `key_hold`), its labels, `ttr`, `body` and `created_at`. Of its key, a change says only whether it
    is kept.

    Or a held key; or the pause of a tube, which is a held key without a key; or a token, which is one whose key begins
    with TOKEN_MARK, and whose `reserves` and `timeouts` are the lower and the upper 32 bits of the id of its job; or a
    group, whose counters are in those of a job: as GROUP_COUNTERS says."""

    id: int = 0
    tube: str = ""  # the name; a change says it only if the job has terms
    key: str = ""  # its name in the tube, or ""
    state: int = READY  # READY, DELAYED, BURIED, HELD or GROUP
    priority: int = 0
    delay: int = 0  # as last given
    ttr: int = 0
    body: bytes = b""
    created_at: int = 0
    deadline: int = 0  # when a delayed job is due, a held key is free or a pause ends; else it means nothing
    bury_sequence: int = 0  # of a buried job, its number in the order of burials in its tube; else 0
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    has_terms: int = False  # it has terms, or is a held key; else what comes from them is as at first. A truth value
    max_tries: int = 0  # as in Attributes, as are the next three
    backoff: int = 0
    ttl: int = 0
    key_hold: int = 0
    share: str = ""  # as in Labels, as are the next five
    limit: str = ""
    limit_count: int = 0
    group: str = ""
    after: str = ""
    after_waits: int = False  # a truth value
    at: int = 0  # of a delayed job that is due by the wall clock: when; then it is the deadline, too
    tries: int = 0
    reason: int = NO_REASON  # why it has failed last
    origin: str = ""  # the name of the tube that it has come from, if it is in a dead tube
    ready_since: int = 0  # of a ready job: since when; 0 if that is not known
    keeps_key: bool = field(default=True, repr=False, compare=False)  # it has the key that it was put with

    def describe_change(self, job: Job, clock_offset: int) -> None:
        """Take the values that can change, as they should be stored at this moment.

        A reserved job counts as ready, from the restart on; one that runs again is stored as if its reservation had
        ended. A job that is about to be put counts as delayed if it has a delay, or is due by the wall clock.

        Args:
            clock_offset: the wall clock minus the server's clock, in nanoseconds.
        """
        state: int = job.state
        deadline = job.deadline
        if state == RESERVED:
            deadline = job.due_again() if job.runs_again() else 0
            state = DELAYED if deadline else READY
        elif state == NEW:
            state = DELAYED if job.delay or deadline == NEVER else READY
        extras = job.extras
        self.id = job.id
        self.state = state
        self.priority = job.priority
        self.delay = job.delay
        self.deadline = 0
        if state == DELAYED:
            self.deadline = LAST_MOMENT if deadline == NEVER else stored_moment(deadline, clock_offset)
        self.bury_sequence = extras.bury_sequence if state == BURIED else 0
        self.reserves = job.reserves
        self.timeouts = extras.timeouts
        self.releases = extras.releases
        self.buries = extras.buries
        self.kicks = extras.kicks
        if isinstance(extras, Terms):
            self._describe_terms(job, extras, clock_offset)
        elif self.has_terms:
            self.forget_terms()

    def _describe_terms(self, job: Job, terms: Terms, clock_offset: int) -> None:
        self.has_terms = True
        self.tube = job.tube.name
        self.keeps_key = bool(terms.key)
        self.max_tries = terms.max_tries
        self.backoff = terms.backoff
        self.ttl = terms.ttl
        self.key_hold = terms.key_hold
        labels = terms.labels
        if labels is not None:
            self.share = labels.share
            self.limit = labels.limit
            limiter = labels.limiter
            self.limit_count = labels.limit_count if limiter is None else limiter.count  # of the last put, not its own
            self.group = labels.group
            self.after = labels.after
            self.after_waits = labels.after_waits
        elif self.has_labels():
            self.forget_labels()
        self.at = 0
        self.tries = terms.tries
        self.reason = terms.reason
        self.origin = terms.origin
        self.ready_since = 0
        if terms.at and (job.state in (NEW, DELAYED) or terms.runs_again):
            self.state = DELAYED
            self.deadline = self.at = terms.at
        elif self.state == READY and terms.ready_since and job.state != RESERVED:
            self.ready_since = stored_moment(terms.ready_since, clock_offset)

    def is_token(self) -> bool:
        return self.state == HELD and self.key.startswith(TOKEN_MARK)

    def token_job(self) -> int:
        """The id of the job that was put with this token."""
        return self.timeouts << 32 | self.reserves

    def set_token_job(self, job_id: int) -> None:
        self.reserves = job_id & MAX_U32
        self.timeouts = job_id >> 32

    def forget_terms(self) -> None:
        """Be that of a job without terms: the same object describes one job after the other."""
        self.has_terms = False
        self.keeps_key = True
        self.max_tries = self.backoff = self.ttl = self.key_hold = self.at = self.tries = self.ready_since = 0
        self.limit_count = 0  # a change may have it without the other labels
        self.reason = NO_REASON
        self.origin = ""
        if self.has_labels():
            self.forget_labels()

    def has_labels(self) -> bool:
        return bool(self.share or self.limit or self.group or self.after)

    def forget_labels(self) -> None:
        self.share = self.limit = self.group = self.after = ""
        self.limit_count = 0
        self.after_waits = False

    def describe(self, holder: Holder, clock_offset: int) -> None:
        """Take all values of a job, as `describe_change` does; or those of a held key, or a group: as those of a job
        with terms of which nothing else is left."""
        if isinstance(holder, Job):  # asked first: nearly all are jobs
            self.describe_change(holder, clock_offset)
            self.ttr = holder.next_ttr
            self.body = holder.body
        else:
            self.forget_terms()
            self.id = holder.id
            self.priority = self.delay = self.ttr = self.bury_sequence = 0
            self.reserves = self.timeouts = self.releases = self.buries = self.kicks = 0
            if isinstance(holder, Group):
                self.state = GROUP
                self.deadline = 0
                self.reserves = holder.done
                self.timeouts = holder.expired
                self.releases = holder.cancelled
                self.buries = holder.dead
            else:
                self.state = HELD
                self.deadline = stored_moment(holder.deadline, clock_offset)
                if isinstance(holder, Token):
                    self.set_token_job(holder.job_id)
            self.body = b""
            self.has_terms = True
        self.tube = holder.tube.name
        self.key = holder.key
        self.created_at = stored_moment(holder.created_at, clock_offset)

    def values(self) -> tuple[Any, ...]:
        """Its fields, in the order of FIELDS: `StoredJob(*job.values())` is equal to `job`."""
        return tuple([getattr(self, name) for name in FIELDS])

    def replace(self, **changes: Any) -> StoredJob:
        """A copy in which these fields have other values."""
        return StoredJob(**(dict(zip(FIELDS, self.values(), strict=True)) | changes))


GROUP_COUNTERS: Final = {"done": "reserves", "expired": "timeouts", "cancelled": "releases", "dead": "buries"}
"""The fields that a group's counters are stored in."""

FIELDS: Final = tuple([each.name for each in fields(StoredJob) if each.compare])
"""The fields of a StoredJob, in the order of its arguments."""


def stored_job(job: Holder, clock_offset: int) -> StoredJob:
    """A job, a held key or a group, as it should be stored at this moment.

    Args:
        clock_offset: the wall clock minus the server's clock, in nanoseconds.
    """
    stored = StoredJob()
    stored.describe(job, clock_offset)
    return stored
