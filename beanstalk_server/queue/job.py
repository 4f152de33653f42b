"""A job and its states, and the held key that may be left of it.

A million jobs may be delayed at once, so each byte counts a million times: compiled, a job takes 128, and a held key
96, as the extras of a job that has a key. What few jobs need is in Extras; small numbers take four bytes or one; and a
job is none of the collector's business, which would cost 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.body_pages import BodyPage
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels
from beanstalk_server.queue.ring import UNLINKED, RingNode
from beanstalk_server.queue.units import GREATEST_SHORT, MILLISECOND, SECOND
from beanstalk_server.queue.wheel import Timer

if TYPE_CHECKING:
    from mypy_extensions import i16, i32, u8

    from beanstalk_server.queue.client import Client
    from beanstalk_server.queue.groups import Group
    from beanstalk_server.queue.tube import Tube

NEW: Final = 0
READY: Final = 1
RESERVED: Final = 2
BURIED: Final = 3
DELAYED: Final = 4
DELETED: Final = 5
HELD: Final = 6
"""Deleted, but its key is still taken: only where jobs are stored. In memory, a HeldKey is left of it."""
GROUP: Final = 7
"""No job, but a group of jobs: only where jobs are stored. In memory, it is a Group (groups.py)."""

MAX_U32: Final = 0xFFFFFFFF
MAX_I32: Final = 0x7FFFFFFF
_SIGN: Final = 0x80000000

STATES: Final = ("new", "ready", "reserved", "buried", "delayed", "deleted", "held", "group")
"""The states by number, in the words of stats-job; a client never sees the first and the last three."""

# Why a job has failed last.
NO_REASON: Final = 0
RELEASED: Final = 1
RUN_OUT: Final = 2
DISCONNECTED: Final = 3
EXPIRED: Final = 4

REASONS: Final = ("", "released", "timed-out", "disconnected", "expired")
"""The reasons by number, in the words of stats-job."""

URGENT: Final = 1024
"""Jobs with a priority below this are counted as urgent (protocol: stats, current-jobs-urgent)."""

NOT_IN_MEMORY: Final = bytes(bytearray(b"not in memory"))
"""Stands for a body that only the journal has. Compare with `is`: this object is made when the module is loaded, and
no client's body is the same object, even if it has the same bytes."""

SINCE_UNKNOWN: Final = -1
"""In place of the page of a job that has not been reserved: it is not known since when it is ready. For a packed job,
each negative number means that."""

LONGEST_DELAY: Final = MAX_U32 * SECOND
"""The longest delay that a client can give, in nanoseconds."""

NEVER: Final = GREATEST_SHORT
"""The deadline of a delayed job that waits for a group: after every other. It is in no slot of the wheel."""

MOST_DOUBLINGS: Final = 62
"""Any backoff is the longest after this many."""

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
        "bury_sequence",  # buried: its number in the order of burials in its tube, which a restart must keep
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


@mypyc_attr(acyclic=True)
class Terms(Extras):
    """What only jobs have that a policy applies to, or for which a producer has asked for something special: what that
    is (0 or "": nothing but what the policy of its tube says), and what has come of it so far."""

    __slots__ = (
        "at",  # while it waits for it, or is to run again: when it is due by the wall clock, in nanoseconds since 1970
        "backoff",  # as in Policy, as are the next three
        "expiry",  # while it is ready and can expire: the timer of that
        "growth",  # by how many bytes its record would be longer if it were written now; only the journal writes it
        "key_hold",
        "labels",  # None, or its names beside its key
        "letter",  # its place among the dead letters of its tube, if it has an origin
        "max_tries",
        "origin",  # the name of the tube that it has come from, if it is in a dead tube
        "ready_since",  # while it is ready: a moment, in nanoseconds; while `runs_again`: its next time to run
        "reason",  # why it has failed last
        "recorded",  # bytes that its record has for its names and its terms; the journal's, as `growth`
        "runs_again",  # while it is reserved: it has been replaced, and is put when its reservation ends
        "tries",  # how often it has failed since it was put, kicked or redriven
        "ttl",
    )

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.max_tries = 0
        self.backoff = 0
        self.ttl = 0
        self.key_hold = 0
        self.tries = 0
        self.origin = ""
        self.ready_since = 0
        self.expiry: Expiry | None = None
        self.letter: DeadLetter | None = None
        self.labels: Labels | None = None
        self.recorded: i32 = 0  # these four share a machine word
        self.growth: i16 = 0
        self.reason: u8 = NO_REASON
        self.runs_again = False

    def take(self, attributes: Attributes) -> None:
        """Take over what a producer demands, in place of what it demanded before."""
        self.at = attributes.at
        self.max_tries = attributes.max_tries
        self.backoff = attributes.backoff
        self.ttl = attributes.ttl
        self.key_hold = attributes.key_hold
        self.labels = attributes.labels


NO_EXTRAS: Final = Extras()
"""Shared by all jobs that have no extras of their own; never written to."""


@mypyc_attr(acyclic=True)
class Holder(Timer):
    """What has an id, and may have a key in its tube: a job, or a held key. Only the broker changes it, except for
    `file` and `place`, which are the journal's; others may read."""

    __slots__ = (
        "created_at",  # when its job was put, in nanoseconds
        "file",  # the number of the journal's file that its record is in, or 0; only the journal writes it
        "heap_index",  # its index in its heap, or in its tube's list of reserved jobs or of held keys
        "id",
        "place",  # where in that file; only the journal writes it
        "tube",
    )

    def __init__(self, id: int, tube: Tube, created_at: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.id = id
        self.tube = tube
        self.created_at = created_at
        self.file: i32 = 0
        self.place: i32 = 0
        self.heap_index: i32 = 0  # the small numbers of a job follow

    @property
    def key(self) -> str:
        """Its name in its tube, or ""."""
        return ""

    def detach(self, nowhere: Tube) -> None:
        """Let what is not needed any more be freed with its ring, its client and its tube.

        These refer to it, and it to them; and compiled, it is not collected.

        Args:
            nowhere: refers to no job.
        """
        self.before = self.after = UNLINKED
        self.tube = nowhere


@mypyc_attr(acyclic=True)
class HeldKey(Holder):
    """What is left of a job that has been deleted, while its key stays taken. As a timer, its deadline is when that
    time is over. A million of them take what the keys of a million jobs take.

    Without a key, it is the record of a pause of its tube, which ends at that moment."""

    __slots__ = ("_key",)

    def __init__(self, id: int, key: str, tube: Tube, created_at: int) -> None:
        super().__init__(id, tube, created_at)
        self._key = key

    @property
    def key(self) -> str:
        return self._key


TOKEN_MARK: Final = "-"
"""What the key of a token begins with: so it is the key of no job."""


@mypyc_attr(acyclic=True)
class Token(HeldKey):
    """A token of put-with (`once`): a held key that no job has had. Its key is the token after TOKEN_MARK."""

    __slots__ = ("job_id",)  # that of the job that was put with it

    def __init__(self, id: int, key: str, tube: Tube, created_at: int, job_id: int) -> None:
        super().__init__(id, key, tube, created_at)
        self.job_id = job_id


@mypyc_attr(acyclic=True)
class Job(Holder):
    """One job.

    As a timer, its deadline is the end of its delay while it is delayed; or, if it waits for a moment of the wall
    clock, that moment, and then it is in no slot of the wheel. It is NEVER while it waits for a group. While it is
    reserved, it is the beginning of its safety margin, and from then on the end of its time to run. While it is ready,
    it is in no slot of the wheel, and its deadline holds its priority: a heap orders jobs by their deadlines. It means
    nothing in the other states.

    Delay and ttr are kept in four bytes each. What these cannot hold, a fraction of a millisecond or, from 24 days on,
    of a second, is in Extras: so no nanosecond is lost.

    Args:
        id: from the broker's `take_id`, or as it was before a restart.
        priority: 0 to 2^32-1, smallest first.
        delay: nanoseconds, as last given by put, release or reschedule.
        ttr: time to run, nanoseconds.
        body: without the CRLF that follows it on the wire. NOT_IN_MEMORY while only the journal has it.
        tube: where it has been put; it stays there, unless it goes to a dead tube.
        created_at: nanoseconds.
    """

    __slots__ = (
        "_body",  # or the page that has it, if it is packed
        "_delay",  # as `_count` says, like `_ttr`
        "_priority",  # as `_signed` says, like `_reserves`
        "_reserves",
        "_ttr",
        "client",  # the one that has reserved it, or None
        "extras",  # NO_EXTRAS, or its own
        "in_safety_margin",  # reserved, and in the last second of its time to run
        "page",  # reserved: the number of its page among its client's reserved jobs; packed: its slot, or -1 minus its
        # slot if it is not known since when it is ready; else before it is reserved: 0 or SINCE_UNKNOWN
        "state",
    )

    def __init__(self, id: int, priority: int, delay: int, ttr: int, body: bytes, tube: Tube, created_at: int) -> None:
        super().__init__(id, tube, created_at)
        # These are small, and share machine words with those of Holder: keep them together. With them, a job takes 128
        # bytes: one more byte here would cost 16.
        self.state: u8 = NEW
        self.in_safety_margin = False
        self.page: i16 = 0
        self._priority: i32 = _signed(priority)
        self._delay: i32 = 0
        self._ttr: i32 = 0
        self._reserves: i32 = 0
        self._body: bytes | BodyPage = body
        self.client: Client | None = None
        self.extras = NO_EXTRAS
        self.ttr = ttr
        if delay:
            self.delay = delay

    @property
    def body(self) -> bytes:
        """Without the CRLF that follows it on the wire. NOT_IN_MEMORY while only the journal has it."""
        body = self._body
        return body if isinstance(body, bytes) else body.read(self._slot())

    @body.setter
    def body(self, body: bytes) -> None:
        assert not self.is_packed(), "its slot would stay taken"
        self._body = body

    def is_packed(self) -> bool:
        """Whether its body is in a page (body_pages.py). A reserved job is never packed."""
        return not isinstance(self._body, bytes)

    def pack(self, page: BodyPage) -> None:
        """Move its body, which is an object, into a page that has a free slot for it."""
        slot = page.add(self.body)
        self.page = -1 - slot if self.page < 0 else slot
        self._body = page

    def unpack(self) -> None:
        """Move its body, which is packed, out of its page."""
        page = self._body
        assert isinstance(page, BodyPage), "it is packed"
        self._body = page.take(self._slot())
        self.page = SINCE_UNKNOWN if self.page < 0 else 0

    def _slot(self) -> int:
        return -1 - self.page if self.page < 0 else self.page

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
    def next_ttr(self) -> int:
        """Its time to run from its next reservation on, in nanoseconds."""
        extras = self.extras
        return extras.ready_since if isinstance(extras, Terms) and extras.runs_again else self.ttr

    @property
    def reserves(self) -> int:
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

    def terms(self) -> Terms | None:
        """Its terms, which may be written to, if it has any."""
        extras = self.extras
        return extras if isinstance(extras, Terms) else None

    def own_terms(self) -> Terms:
        """Its terms, which may be written to; made when first needed."""
        old = self.extras
        if isinstance(old, Terms):
            return old
        terms = Terms()
        terms.key = old.key
        terms.timeouts = old.timeouts
        terms.releases = old.releases
        terms.buries = old.buries
        terms.kicks = old.kicks
        terms.bury_sequence = old.bury_sequence
        terms.clears = old.clears
        terms.delay_rest = old.delay_rest
        terms.ttr_rest = old.ttr_rest
        terms.recorded = len(self.tube.name) + len(old.key)  # its record, if there is one, has no terms
        self.extras = terms
        return terms

    def lane_labels(self) -> Labels | None:
        """Its labels, if it has a share or a limit: while it is ready, it is in a lane."""
        extras = self.extras
        if isinstance(extras, Terms):
            labels = extras.labels
            if labels is not None and (labels.share or labels.limit):
                return labels
        return None

    def is_limited(self) -> bool:
        """Whether it may not be reserved, because its limit is reached."""
        labels = self.lane_labels()
        return labels is not None and labels.limiter is not None and labels.limiter.is_reached()

    def own_labels(self) -> Labels:
        """Its own labels, which may be written to; made when first needed."""
        terms = self.own_terms()
        if terms.labels is None:
            terms.labels = Labels()
        return terms.labels

    def forget_since(self) -> None:
        """Note that it is not known since when it is ready, or will be: not at the end of its delay after its put.

        A job with terms knows it in any case.
        """
        if not isinstance(self.extras, Terms) and self.page >= 0:
            self.page = -1 - self.page if self.is_packed() else SINCE_UNKNOWN

    def needs_since(self) -> bool:
        """Whether its tube measures ages, and `ready_since` would not know it without terms."""
        return self.tube.policy.measures and (self.page < 0 or self.reserves > 0)

    def ready_since(self) -> int:
        """Since when it is ready, as well as that is known: if it is, in nanoseconds.

        A job without terms says: since the end of its delay, counted from its put. That is too early for one that has
        been reserved before, rescheduled or replaced, and it may be in the future for one that has been kicked.
        """
        extras = self.extras
        if isinstance(extras, Terms) and extras.ready_since:
            return extras.ready_since
        return self.created_at + self.delay

    def is_timed(self) -> bool:
        """Whether it is delayed until a moment of the wall clock, which is its deadline then."""
        extras = self.extras
        return isinstance(extras, Terms) and extras.at != 0 and not extras.runs_again

    def runs_again(self) -> bool:
        """Whether it is reserved, was replaced meanwhile, and is put when its reservation ends."""
        extras = self.extras
        return isinstance(extras, Terms) and extras.runs_again

    def run_again(self, ttr: int) -> None:
        """Note that it is put when its reservation ends.

        Args:
            ttr: the time to run of that reservation, in nanoseconds.
        """
        terms = self.own_terms()
        terms.ready_since = self.ttr
        terms.runs_again = True
        self.ttr = ttr

    def due_again(self) -> int:
        """When it is due if it runs again and a restart ends its reservation: 0 at once, NEVER if after a group."""
        labels = self.labels()
        if labels is not None and labels.after:
            return NEVER
        return self.created_at + self.delay if self.delay else 0

    def labels(self) -> Labels | None:
        """Its names beside its key, if it has any."""
        extras = self.extras
        return extras.labels if isinstance(extras, Terms) else None

    def group(self) -> Group | None:
        """The group that it is a member of at present."""
        extras = self.extras
        if not isinstance(extras, Terms) or extras.labels is None:
            return None
        return extras.labels.joined

    def counts_failures(self) -> bool:
        """Whether it has a limit of tries, or a backoff."""
        extras = self.extras
        if isinstance(extras, Terms) and (extras.max_tries or extras.backoff):
            return True
        policy = self.tube.policy
        return policy is not NO_POLICY and bool(policy.max_tries or policy.backoff)

    def has_failed_too_often(self, terms: Terms) -> bool:
        """Whether it may not be tried again, after the number of failures in its terms."""
        limit = terms.max_tries or self.tube.policy.max_tries
        return 0 < limit <= terms.tries

    def backoff_delay(self, terms: Terms) -> int:
        """How long it waits after the failure that has been counted last, in nanoseconds."""
        policy = self.tube.policy
        backoff = terms.backoff or policy.backoff
        if not backoff:
            return 0
        return min(backoff << min(terms.tries - 1, MOST_DOUBLINGS), policy.backoff_max or LONGEST_DELAY, LONGEST_DELAY)

    def ttl(self) -> int:
        """How long it may be ready without being reserved, in nanoseconds; 0 for ever."""
        extras = self.extras
        return (extras.ttl if isinstance(extras, Terms) else 0) or self.tube.policy.ttl

    def key_hold(self) -> int:
        """How long its key stays taken after it has been deleted, in nanoseconds; 0 also if it has none."""
        extras = self.extras
        if not extras.key:
            return 0
        return (extras.key_hold if isinstance(extras, Terms) else 0) or self.tube.policy.key_hold

    def renewed(self, priority: int, delay: int, ttr: int, body: bytes, created_at: int) -> Job:
        """A new job that replaces this one: it keeps the id, key and counters, and is about to be put.

        If it has an origin, it keeps that too, and why it has failed. It has all its tries.
        """
        job = Job(self.id, priority, delay, ttr, body, self.tube, created_at)
        job.reserves = self.reserves
        old = self.extras
        if old is not NO_EXTRAS:
            extras = job.own_extras()
            extras.key = old.key
            extras.timeouts = old.timeouts
            extras.releases = old.releases
            extras.buries = old.buries
            extras.kicks = old.kicks
        if isinstance(old, Terms) and old.origin:
            terms = job.own_terms()
            terms.origin = old.origin
            terms.reason = old.reason
        return job

    def with_body(self, body: bytes) -> Job:
        """A new job that replaces this one, which is reserved: it has another body, and takes over everything else."""
        job = Job(self.id, self.priority, self.delay, self.ttr, body, self.tube, self.created_at)
        job.reserves = self.reserves
        job.extras = self.extras
        return job

    def held_key(self) -> HeldKey:
        """What is left of this job when it is deleted, and its key stays taken: also its record in the journal."""
        held = HeldKey(self.id, self.extras.key, self.tube, self.created_at)
        held.file = self.file
        held.place = self.place
        return held

    def detach(self, nowhere: Tube) -> None:
        super().detach(nowhere)
        self.client = None
        terms = self.terms()
        if terms is not None and terms.expiry is not None:
            terms.expiry.before = terms.expiry.after = UNLINKED
            terms.expiry = None
        if terms is not None and terms.letter is not None:
            terms.letter.before = terms.letter.after = UNLINKED
            terms.letter = None
        if terms is not None and terms.labels is not None:
            terms.labels.joined = None
            terms.labels.awaited = None
            terms.labels.lane = None
            terms.labels.limiter = None


@mypyc_attr(acyclic=True)
class Expiry(Timer):
    """When a ready job expires: it is in no slot of the wheel itself, because its deadline holds its priority.

    Who takes it out of the wheel sets `Terms.expiry` to None: job and expiry refer to each other, and compiled, neither
    is collected.
    """

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.job = job


@mypyc_attr(acyclic=True)
class DeadLetter(RingNode):
    """The place of a job among the dead letters of its tube. Who takes it out sets `Terms.letter` to None, as above."""

    __slots__ = ("job",)

    def __init__(self, job: Job) -> None:
        self.before = self.after = UNLINKED
        self.job = job
