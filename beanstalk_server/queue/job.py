"""A job and its states.

Must never know which clients there are, or how jobs are ordered: it only has fields for both. A million jobs may be
delayed at once, so each byte counts a million times: compiled, a job takes 128. What few jobs need is in Extras; small
numbers take four bytes or one; and a job is none of the collector's business, which would cost 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.units import MILLISECOND, SECOND
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

MAX_U32: Final = 0xFFFFFFFF
MAX_I32: Final = 0x7FFFFFFF
_SIGN: Final = 0x80000000

STATES: Final = ("new", "ready", "reserved", "buried", "delayed", "deleted")
"""The states by number, in the words of stats-job; a client never sees the first and the last."""

URGENT: Final = 1024
"""Jobs with a priority below this are counted as urgent (protocol: stats, current-jobs-urgent)."""

NOT_IN_MEMORY: Final = bytes(bytearray(b"not in memory"))
"""Stands for a body that only the journal has. Compare with `is`: this object is made when the module is loaded, and
no client's body is the same object, even if it has the same bytes."""

SAFETY_MARGIN: Final = SECOND
"""The last second of a job's time to run, in which its client is not made to wait (protocol: DEADLINE_SOON)."""


def _signed(number: int) -> int:
    """A number of 32 bits as one with a sign, which an i32 holds: what is 2^31 or more becomes negative."""
    return ((number + _SIGN) & MAX_U32) - _SIGN


def _unsigned(number: int) -> int:
    """The number that `_signed` was given. Counters wrap around, as beanstalkd's do."""
    return number & MAX_U32


def _count(duration: int) -> int:
    """A duration in milliseconds or, if it is 24 days or more, in seconds below zero: what an i32 holds of it."""
    count = duration // MILLISECOND
    return count if count <= MAX_I32 else -min(duration // SECOND, MAX_I32)


def _duration(count: int) -> int:
    """The nanoseconds of such a count."""
    return count * MILLISECOND if count >= 0 else -count * SECOND


@mypyc_attr(acyclic=True)
class Extras:
    """What few jobs have: a key, counters of what has happened to the job, its place among the buried jobs."""

    __slots__ = (
        "buries",  # how often it has been buried
        "bury_sequence",  # buried: its number in the order of burials, which a restart must keep
        "clears",  # buried: how many clears of its tube had begun by then
        "delay_rest",  # nanoseconds that `Job._delay` does not hold
        "key",  # its name in its tube, or ""
        "kicks",  # how often it has been kicked
        "releases",  # how often it has been released
        "timeouts",  # how often its time to run has run out
        "ttr_rest",  # nanoseconds that `Job._ttr` does not hold
    )

    def __init__(self) -> None:
        self.key = ""
        self.timeouts = 0
        self.releases = 0
        self.buries = 0
        self.kicks = 0
        self.bury_sequence = 0
        self.clears = 0
        self.delay_rest = 0
        self.ttr_rest = 0


NO_EXTRAS: Final = Extras()
"""Shared by all jobs that have no extras of their own; never written to."""


@mypyc_attr(acyclic=True)
class Job(Timer):
    """One job. Only the broker changes it, except for `file` and `place`, which are the journal's; others may read.

    As a timer, its deadline is the end of its delay while it is delayed. While it is reserved, it is the beginning of
    its safety margin, and from then on the end of its time to run. While it is ready, it is in no slot of the wheel,
    and its deadline holds its priority: a heap orders jobs by their deadlines. It means nothing in the other states.

    Delay and ttr are kept in four bytes each. What these cannot hold, a fraction of a millisecond or, from 24 days on,
    of a second, is in Extras: so no nanosecond is lost.

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
        "_delay",  # as `_count` says, like `_ttr`
        "_priority",  # as `_signed` says, like `_reserves`
        "_reserves",
        "_ttr",
        "body",
        "client",  # the one that has reserved it, or None
        "created_at",
        "extras",  # NO_EXTRAS, or its own
        "file",  # the number of the journal's file that its record is in, or 0; only the journal writes it
        "heap_index",  # its index in its heap or, while it is reserved, in its tube's list of reserved jobs
        "id",
        "in_safety_margin",  # reserved, and in the last second of its time to run
        "page",  # reserved: the number of its page among its client's reserved jobs
        "place",  # where in that file; only the journal writes it
        "state",
        "tube",
    )

    def __init__(self, id: int, priority: int, delay: int, ttr: int, body: bytes, tube: Tube, created_at: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.id = id
        self.body = body
        self.tube = tube
        self.created_at = created_at
        self.client: Client | None = None
        self.extras = NO_EXTRAS
        # These are small, and share machine words: keep them together. With them, a job takes 128 bytes: one more byte
        # here would cost 16.
        self._priority: i32 = _signed(priority)
        self._delay: i32 = 0
        self._ttr: i32 = 0
        self._reserves: i32 = 0
        self.file: i32 = 0
        self.place: i32 = 0
        self.heap_index: i32 = 0
        self.page: i16 = 0
        self.state: u8 = NEW
        self.in_safety_margin = False
        self.ttr = ttr
        if delay:
            self.delay = delay

    @property
    def priority(self) -> int:
        """0 to 2^32-1, smallest first."""
        return _unsigned(self._priority)

    @priority.setter
    def priority(self, priority: int) -> None:
        self._priority = _signed(priority)

    @property
    def delay(self) -> int:
        """Nanoseconds, as last given by put, release or reschedule."""
        return _duration(self._delay) + self.extras.delay_rest

    @delay.setter
    def delay(self, delay: int) -> None:
        count = _count(delay)
        rest = delay - _duration(count)
        self._delay = count
        if rest or self.extras.delay_rest:
            self.own_extras().delay_rest = rest

    @property
    def ttr(self) -> int:
        """Time to run, nanoseconds."""
        return _duration(self._ttr) + self.extras.ttr_rest

    @ttr.setter
    def ttr(self, ttr: int) -> None:
        count = _count(ttr)
        rest = ttr - _duration(count)
        self._ttr = count
        if rest or self.extras.ttr_rest:
            self.own_extras().ttr_rest = rest

    @property
    def reserves(self) -> int:
        """How often it has been reserved."""
        return _unsigned(self._reserves)

    @reserves.setter
    def reserves(self, count: int) -> None:
        self._reserves = _signed(count)

    @property
    def key(self) -> str:
        """Its name in its tube, or ""."""
        return self.extras.key

    @key.setter
    def key(self, key: str) -> None:
        if key or self.extras.key:
            self.own_extras().key = key

    def own_extras(self) -> Extras:
        """Its own extras, which may be written to; made when first needed."""
        extras = self.extras
        if extras is NO_EXTRAS:
            extras = self.extras = Extras()
        return extras

    def renewed(self, priority: int, delay: int, ttr: int, body: bytes) -> Job:
        """A new job that replaces this one: it keeps the id, key, age and counters, and is about to be put."""
        job = Job(self.id, priority, delay, ttr, body, self.tube, self.created_at)
        job.reserves = self.reserves
        old = self.extras
        if old is not NO_EXTRAS:
            extras = job.own_extras()
            extras.key = old.key
            extras.timeouts = old.timeouts
            extras.releases = old.releases
            extras.buries = old.buries
            extras.kicks = old.kicks
        return job

    def detach(self, nowhere: Tube) -> None:
        """Let a job that nobody needs any more be freed with its ring, its client and its tube.

        These refer to the job, and the job to them; and compiled, a job is not collected.

        Args:
            nowhere: refers to no job.
        """
        self.before = self.after = UNLINKED
        self.client = None
        self.tube = nowhere
