"""The account of the memory that jobs take, and its limit.

Each function that makes, drops, empties or refills a job tells the account, so that what is used is known at any
moment without a look at the jobs. A job counts for a measured constant, its key, its terms, and its body while that is
in memory; a held key for what is left of its job. A put beyond the limit is refused; nothing else asks.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.body_pages import BodyPages
from beanstalk_server.queue.job import DELETED, NO_EXTRAS, NOT_IN_MEMORY, Expiry, HeldKey, Job, Terms, Token
from beanstalk_server.queue.policy import Labels
from beanstalk_server.queue.units import SECOND

# These are the resident memory of a million jobs on a compiled server, divided (bench --scenario memory): 290 bytes for
# a body of 100, 246 if it is packed, 1202 for one of 1000; 192 more for a key of 12, 193 for terms or 97 if it has a
# key, 64 while it can expire. A held key of 12 takes 210.

JOB_COST: Final = 152
"""Bytes that a job takes without its body and its key: the job, its places in a heap and in the table of ids."""

BODY_COST: Final = 48
"""Bytes that a body in memory takes beside its own: the head of its object, and what the allocator rounds up."""

PACKED_COST: Final = 2
"""Bytes that a packed body takes beside its own: its part of its page, and of the slots that are free there."""

PACKED_FROM: Final = 60 * SECOND
"""The shortest delay, in nanoseconds, for which a body is packed: both that and unpacking it take time."""

PLAIN_COST: Final = JOB_COST + BODY_COST
"""What a job with a body in memory, and without extras, counts for beside the bytes of its body."""

KEY_COST: Final = 180
"""Bytes that a key takes beside its own: the head of its object, the extras, a place in the table of keys."""

EXTRAS_COST: Final = 96
"""Bytes of that which the extras take."""

TERMS_COST: Final = 192
"""Bytes that the terms of a job take. They are its extras, too, which a job with a key needs anyway."""

TIMER_COST: Final = 64
"""Bytes that the timer takes which lets a ready job expire."""

HELD_COST: Final = 196
"""Bytes that a held key takes beside its own: as a key, and 16 for its places in the tables of held keys."""

TOKEN_COST: Final = 16
"""Bytes that a token takes beside those of a held key."""

PAUSE_COST: Final = 1400
"""Bytes of a recorded pause, with the tube, which exists until the pause ends."""

LABELS_COST: Final = 128
"""Bytes that the labels of a job take beside the names themselves."""

GROUP_COST: Final = 400
"""Bytes that a group takes beside its name, until it is forgotten."""

LANE_COST: Final = 512
"""Bytes that a share takes, and a limit, if there is no other job with it."""

LETTER_COST: Final = 48
"""Bytes that the place of a job among the dead letters of its tube takes."""


def job_cost(job: Job) -> int:
    """Bytes that a job counts for at this moment."""
    cost = JOB_COST
    body = job.body
    if body is not NOT_IN_MEMORY:
        cost += len(body) + (PACKED_COST if job.is_packed() else BODY_COST)
    extras = job.extras
    if extras is not NO_EXTRAS:
        if extras.key:
            cost += KEY_COST + len(extras.key)
        if isinstance(extras, Terms):
            cost += TERMS_COST - EXTRAS_COST if extras.key else TERMS_COST
            if extras.expiry is not None:
                cost += TIMER_COST
            if extras.origin:
                cost += LETTER_COST
            if extras.labels is not None:
                cost += labels_cost(extras.labels)
    return cost


def labels_cost(labels: Labels) -> int:
    cost = LABELS_COST + labels.names()
    if labels.share:
        cost += LANE_COST
    if labels.limit:
        cost += LANE_COST
    return cost


def held_cost(held: HeldKey) -> int:
    if isinstance(held, Token):
        return HELD_COST + TOKEN_COST + len(held.key)
    return HELD_COST + len(held.key) if held.key else PAUSE_COST


def group_cost(name: str) -> int:
    return GROUP_COST + len(name)


class Memory:
    """What the jobs of a broker take.

    Args:
        limit: bytes; 0 for none.
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.used = 0  # bytes
        self.packed_from = PACKED_FROM  # tests lower it
        self.pages = BodyPages()

    def admits(self, job: Job, replaced: Job | None = None, more: int = 0) -> bool:
        """Whether a job may be put, in the place of another one or not, and this many bytes more.

        A limit that is passed already, because a restart has brought this many jobs back, stops only what adds to it.
        """
        if not self.limit:
            return True
        growth = job_cost(job) + more
        if replaced is not None:
            growth -= job_cost(replaced)
        return growth <= 0 or self.used + growth <= self.limit

    def admits_all(self, jobs: list[Job]) -> bool:
        """The same for several jobs that are new."""
        return not self.limit or self.used + sum(map(job_cost, jobs)) <= self.limit

    def admits_held(self, held: HeldKey) -> bool:
        """Whether there is room for a token, or the record of a pause."""
        return not self.limit or self.used + held_cost(held) <= self.limit

    def add_job(self, job: Job) -> None:
        """Count a job that the broker has taken in, with its body if that is in memory."""
        self.used += job_cost(job)

    def remove_job(self, job: Job) -> None:
        """Count a job no longer that the broker is about to drop. Later, its body may come and go uncounted."""
        if job.is_packed():
            self.unpack_body(job)
        self.used -= job_cost(job)

    def pack_body(self, job: Job) -> None:
        """Pack the body of a delayed job that is counted, if it is in memory, and not too large."""
        body = job.body
        if body is NOT_IN_MEMORY or job.is_packed():
            return
        page = self.pages.page_for(len(body))
        if page is not None:
            job.pack(page)
            self.used -= BODY_COST - PACKED_COST

    def unpack_body(self, job: Job) -> None:
        """Make the packed body of a job that is counted an object again."""
        job.unpack()
        self.used += BODY_COST - PACKED_COST

    def add_held(self, held: HeldKey) -> None:
        self.used += held_cost(held)

    def remove_held(self, held: HeldKey) -> None:
        self.used -= held_cost(held)

    def add_group(self, name: str) -> None:
        self.used += group_cost(name)

    def remove_group(self, name: str) -> None:
        self.used -= group_cost(name)

    def give_expiry(self, job: Job, terms: Terms) -> Expiry:
        """Make the timer that lets a job expire that is counted, and count it."""
        expiry = terms.expiry = Expiry(job)
        self.used += TIMER_COST
        return expiry

    def take_expiry(self, terms: Terms) -> None:
        """Drop that timer of a job that is counted still."""
        terms.expiry = None
        self.used -= TIMER_COST

    def give_terms(self, job: Job) -> Terms:
        """The own terms of a job that is counted: made when first needed, and then counted too."""
        extras = job.extras
        if isinstance(extras, Terms):
            return extras
        self.used -= job_cost(job)
        terms = job.own_terms()
        self.used += job_cost(job)
        return terms

    def drop_body(self, job: Job) -> None:
        """Take a job's body, which is in memory, out of memory. The journal keeps it."""
        if job.is_packed():
            self.unpack_body(job)
        if job.state != DELETED:
            self.used -= BODY_COST + len(job.body)
        job.body = NOT_IN_MEMORY

    def return_body(self, job: Job, body: bytes) -> None:
        """Give a job whose body is not in memory its body back."""
        job.body = body
        if job.state != DELETED:
            self.used += BODY_COST + len(body)
