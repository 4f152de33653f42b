"""What a tube demands of its jobs, and what a producer demands of one of them: limits, tries, expiry, pace.

Both only say what is wanted; the broker does it. They are immutable, and shared: a million jobs of a tube have one
policy, and a tube without one shares NO_POLICY, which the broker tells by its identity. So what no one has asked for
costs one comparison.

Durations are in nanoseconds; 0 stands for no limit, and for nothing of the kind, in every field of both. Must never
know files, globs, or which tubes there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i32

    from beanstalk_server.queue.fair_heap import Lane, Limit
    from beanstalk_server.queue.groups import Group, Waiting


@dataclass(kw_only=True, eq=False)
class Policy:
    """What a tube demands of its jobs.

    Args:
        max_jobs: jobs in the tube, in any state; a put beyond it is refused with DRAINING.
        max_bytes: bytes of their bodies; likewise.
        max_delay: the longest delay of a put; likewise.
        max_job_size: bytes of a body; a larger one is refused with TOO_BIG.
        max_tries: maximum failed attempts: releases, timeouts and lost clients. Then
            it is buried, or goes to the dead tube.
        count_disconnects: the loss of a client counts as a failed attempt.
        dead_tube: the name of the tube for jobs that have failed too often or have expired; "" for none.
        backoff: the delay after the first failure; it doubles with each further one.
        backoff_max: the longest such delay.
        ttl: maximum time that a job is ready without being reserved; then it is deleted, or goes to the dead tube.
        key_hold: time that a key stays taken after its job has been deleted.
        max_held_keys: such keys; a put whose key would be held is refused beyond it with DRAINING. 0: max_jobs.
        max_reserved: maximum number of reserved jobs.
        interval: the average time from one reservation to the next, at least.
        burst: maximum number of reservations at once; at least 1.
        measures: how long its jobs wait and run, and how late they are, is measured for it alone.
        weight: that of the tube for clients whose tubes are served by weight, and that give it none; at least 1.
        share: a separator; what comes before it in the key of a job that has no share is its share. "": it has none.
    """

    max_jobs: int = 0
    max_bytes: int = 0
    max_delay: int = 0
    max_job_size: int = 0
    max_tries: int = 0
    count_disconnects: bool = True
    dead_tube: str = ""
    backoff: int = 0
    backoff_max: int = 0
    ttl: int = 0
    key_hold: int = 0
    max_held_keys: int = 0
    max_reserved: int = 0
    interval: int = 0
    burst: int = 1
    share: str = ""
    weight: int = 1
    measures: bool = False

    def share_of(self, key: str) -> str:
        """The share of a job with this key, if it has none of its own; "" for none."""
        name, separator, _ = key.partition(self.share) if self.share else ("", "", "")
        return name if separator else ""


NO_POLICY: Final = Policy()
"""That of tubes without one. Compare with `is`."""

PolicyOf = Callable[[str], Policy]
"""Finds the policy of the tube of a name: NO_POLICY, or another one."""


def no_policies(_: str) -> Policy:
    """The policies of a server that has none."""
    return NO_POLICY


def full_name_of_limit(limit: str, tube: str) -> str:
    """The name of a limit with its home, as `home_of` finds it: the tube of the job if the name has no slash."""
    return limit if "/" in limit else f"{tube}/{limit}"


class Labels:
    """The names that a producer has given a job, beside its key; "" for none of the kind.

    Args:
        share: among jobs of the same priority in a tube, names take turns.
        limit: at most `limit_count` jobs with this name are reserved at a time, of those in the same tube; of all tubes
            if it has a slash.
        group: the group that the job belongs to.
        after: the group that must have ended before the job is ready.
        after_waits: it waits also for a group that has not begun.

    While a job has them, the broker notes here what has come of them: no two jobs have the same.
    """

    def __init__(
        self,
        *,
        share: str = "",
        limit: str = "",
        limit_count: int = 0,
        group: str = "",
        after: str = "",
        after_waits: bool = False,
    ) -> None:
        self.share = share
        self.limit = limit
        self.limit_count = limit_count
        self.group = group
        self.after = after
        self.after_waits = after_waits
        self.joined: Group | None = None  # the group that it is a member of at present
        self.awaited: Waiting | None = None  # while it waits for a group: the jobs that do (groups.py)
        self.member: i32 = 0  # its index among the members of that group
        self.lane: Lane | None = None  # while its job is ready: the lane that it is in; the broker's, as `limiter`
        # while there is its job: what counts the jobs with this limit; None if it has none
        self.limiter: Limit | None = None

    def limit_in(self, tube: str) -> str:
        """The full name of its limit, if its job is in this tube."""
        return full_name_of_limit(self.limit, tube)

    def names(self) -> int:
        """Bytes of all its names."""
        return len(self.share) + len(self.limit) + len(self.group) + len(self.after)


class Attributes:
    """What a producer demands of the job that it puts, beside priority, delay and time to run.

    Args:
        key: its name in the tube, or "".
        replaces: with a key: it replaces the job that has the key.
        again: if it replaces: it also replaces a reserved job, which is put when its reservation ends.
        within: if it replaces: the maximum time from the first put of the job until it is due, in nanoseconds; or 0.
        at: when it is due, by the wall clock, in nanoseconds since 1970, instead of a delay.
        max_tries, backoff, ttl, key_hold: instead of what the tube's policy says.
        once: a token that no other put into the tube has taken, or "".
        once_ttl: with a token: time that it stays taken.
        labels: its names in other respects, or None. The job takes them over.
    """

    def __init__(
        self,
        *,
        key: str = "",
        replaces: bool = False,
        again: bool = False,
        within: int = 0,
        at: int = 0,
        max_tries: int = 0,
        backoff: int = 0,
        ttl: int = 0,
        key_hold: int = 0,
        once: str = "",
        once_ttl: int = 0,
        labels: Labels | None = None,
    ) -> None:
        self.key = key
        self.replaces = replaces
        self.again = again
        self.within = within
        self.at = at
        self.max_tries = max_tries
        self.backoff = backoff
        self.ttl = ttl
        self.key_hold = key_hold
        self.once = once
        self.once_ttl = once_ttl
        self.labels = labels

    def limit_delay(self, delay: int, first: int, now: int) -> int:
        """The delay, in nanoseconds, or less if `within` demands it.

        Args:
            first: when the job was first put, in nanoseconds.
        """
        return min(delay, max(first + self.within - now, 0)) if self.within else delay

    def ask_for_terms(self) -> bool:
        """Whether the job needs terms: something is demanded that is not about its key alone."""
        return bool(self.at or self.max_tries or self.backoff or self.ttl or self.key_hold or self.labels is not None)


class Counters:
    """What policies have done: to all jobs of a queue, or to those of one tube."""

    def __init__(self) -> None:
        self.dead = 0  # a job has gone to a dead tube; counted in the tube that it has left
        self.expired = 0  # a job has expired, and was deleted or went to the dead tube
        self.redriven = 0  # a job has gone back to where it came from; counted in the dead tube
        self.refused_bytes = 0  # a put was refused because of max_bytes, and so on
        self.refused_delay = 0
        self.refused_jobs = 0
        self.refused_size = 0
        self.retried = 0  # a job has failed, and was delayed by a backoff


UNREAD: Final = Counters()
"""Shared by all tubes without a policy, whose counters are never read: so counting needs no test."""
