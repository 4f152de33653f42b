"""A job and its states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.wheel import Timer

if TYPE_CHECKING:
    from beanstalk_server.queue.client import Client
    from beanstalk_server.queue.tube import Tube

NEW: Final = 0
READY: Final = 1
RESERVED: Final = 2
BURIED: Final = 3
DELAYED: Final = 4
DELETED: Final = 5

STATES: Final = ("new", "ready", "reserved", "buried", "delayed", "deleted")
"""The states by number, in the words of stats-job; a client never sees the first and the last."""

URGENT: Final = 1024
"""Jobs with a priority below this are counted as urgent (protocol: stats, current-jobs-urgent)."""


LAST_TIME: Final = (1 << 63) - 1
"""The last moment that can be stored, in nanoseconds."""


class Job(Timer):
    """One job. Changed by the broker only, but for `file`; everybody else reads.

    As a timer, `deadline` is when the broker has to look at the job again: the end of the delay of a delayed job; of a
    reserved job the end of its time to run, or, until it is in its safety margin, the beginning of that. Nothing is
    due for a buried job: its `deadline` is its number in the order of burials, which a restart must keep.
    """

    __slots__ = (
        "body",  # bytes, without the CRLF that follows it on the wire
        "buries",  # how often it has been buried
        "client",  # who has reserved it
        "created_at",  # nanoseconds
        "delay",  # nanoseconds, as last given by put or release
        "file",  # the number of the journal's file that has it, or 0; written by the journal only
        "heap_index",  # its index in the heap that holds it; reserved, in the list of its tube's reserved jobs
        "id",
        "in_safety_margin",  # reserved, and in the last second of its time to run
        "key",  # its name in its tube, or ""
        "kicks",  # how often it has been kicked
        "priority",  # 0 to 2^32-1, smallest first
        "releases",  # how often it has been released
        "reserves",  # how often it has been reserved
        "sort_key",  # what that heap orders it by, before the id; buried, the number of clears of its tube before
        "state",
        "timeouts",  # how often its time to run has run out
        "ttr",  # time to run, nanoseconds
        "tube",
    )

    def __init__(self, id: int, priority: int, delay: int, ttr: int, body: bytes, tube: Tube, now: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.id = id
        self.priority = priority
        self.delay = delay
        self.ttr = ttr
        self.body = body
        self.tube = tube
        self.created_at = now
        self.state: int = NEW
        self.key = ""
        self.client: Client | None = None
        self.in_safety_margin = False
        self.sort_key = 0
        self.file = 0
        self.heap_index = 0
        self.reserves = 0
        self.timeouts = 0
        self.releases = 0
        self.buries = 0
        self.kicks = 0


def stored_state(job: Job) -> int:
    """The state that a job should come back in after a restart: READY, DELAYED or BURIED."""
    state = job.state
    if state == RESERVED:
        return READY
    if state == NEW:  # about to be put
        return DELAYED if job.delay else READY
    return state


def stored_time(moment: int, clock_offset: int) -> int:
    """A moment as it should be stored: wall clock, but not beyond what 64 bits hold (the year 2262)."""
    return max(min(moment + clock_offset, LAST_TIME), -LAST_TIME)


def stored_deadline(job: Job, clock_offset: int) -> int:
    """A job's deadline as it should be stored: wall clock, or the number of a buried job; else 0."""
    state = stored_state(job)
    if state == DELAYED:
        return stored_time(job.deadline, clock_offset)
    return job.deadline if state == BURIED else 0
