"""A job and its states.

Must never know which clients there are, or how jobs are ordered: it only has fields for both. A million jobs may be
delayed at once, so each byte counts a million times. What few jobs need is in Extras; the small numbers stand together,
so that compiled code packs them into four, one and one bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wheel import Timer

if TYPE_CHECKING:
    from mypy_extensions import i16, i32, u8

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

NOT_IN_MEMORY: Final = bytes(bytearray(b"not in memory"))
"""Stands for a body that only the journal has. Compare with `is`: this object is made when the module is loaded, and
no client's body is the same object, even if it has the same bytes."""

SAFETY_MARGIN: Final = SECOND
"""The last second of a job's time to run, in which its client is not made to wait (protocol: DEADLINE_SOON)."""


class Extras:
    """What few jobs need: counters of what has happened to the job, and its place among the buried jobs."""

    __slots__ = (
        "buries",  # how often it has been buried
        "bury_sequence",  # buried: its number in the order of burials, which a restart must keep
        "clears",  # buried: how many clears of its tube had begun by then
        "kicks",  # how often it has been kicked
        "releases",  # how often it has been released
        "timeouts",  # how often its time to run has run out
    )

    def __init__(self) -> None:
        self.timeouts = 0
        self.releases = 0
        self.buries = 0
        self.kicks = 0
        self.bury_sequence = 0
        self.clears = 0


NO_EXTRAS: Final = Extras()
"""Shared by all jobs that have no extras of their own; never written to."""


class Job(Timer):
    """One job. Only the broker changes it, except for `file` and `place`, which are the journal's; others may read.

    As a timer, its deadline is the end of its delay while it is delayed. While it is reserved, it is the beginning of
    its safety margin, and from then on the end of its time to run. It means nothing in the other states.

    Args:
        id: from the broker's `take_id`, or as it was before a restart.
        priority: 0 to 2^32-1, smallest first.
        delay: nanoseconds, as last given by put, release or reschedule.
        ttr: time to run, nanoseconds.
        body: without the CRLF that follows it on the wire. NOT_IN_MEMORY while only the journal has it.
        tube: where it has been put; it stays there.
        created_at: nanoseconds.
    """

    __slots__ = (
        "body",
        "client",  # the one that has reserved it, or None
        "created_at",
        "delay",
        "extras",  # NO_EXTRAS, or its own
        "file",  # the number of the journal's file that its record is in, or 0; only the journal writes it
        "heap_index",  # its index in its heap or, while it is reserved, in its tube's list of reserved jobs
        "id",
        "in_safety_margin",  # reserved, and in the last second of its time to run
        "key",  # its name in its tube, or ""
        "page",  # reserved: the number of its page among its client's reserved jobs
        "place",  # where in that file; only the journal writes it
        "priority",
        "reserves",  # how often it has been reserved
        "sort_key",  # what its heap orders it by, before the id
        "state",
        "ttr",
        "tube",
    )

    def __init__(self, id: int, priority: int, delay: int, ttr: int, body: bytes, tube: Tube, created_at: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.id = id
        self.priority = priority
        self.delay = delay
        self.ttr = ttr
        self.body = body
        self.tube = tube
        self.created_at = created_at
        self.key = ""
        self.client: Client | None = None
        self.sort_key = 0
        self.reserves = 0
        self.extras = NO_EXTRAS
        # The small ones share machine words: keep them together.
        self.file: i32 = 0
        self.place: i32 = 0
        self.heap_index: i32 = 0
        self.page: i16 = 0
        self.state: u8 = NEW
        self.in_safety_margin = False

    def own_extras(self) -> Extras:
        """Its own extras, which may be written to; made when first needed."""
        extras = self.extras
        if extras is NO_EXTRAS:
            extras = self.extras = Extras()
        return extras

    def renewed(self, priority: int, delay: int, ttr: int, body: bytes) -> Job:
        """A new job that replaces this one: it keeps the id, key, age and counters, and is about to be put."""
        job = Job(self.id, priority, delay, ttr, body, self.tube, self.created_at)
        job.key = self.key
        job.reserves = self.reserves
        job.extras = self.extras  # shared, because one of the two is about to go
        return job
