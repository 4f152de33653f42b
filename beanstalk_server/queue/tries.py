"""Tries: whether the failures of a job are counted, and what follows from their number.

What the job's producer has demanded wins over the policy of its tube.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.job import MAX_U32, Job, Terms
from beanstalk_server.queue.policy import NO_POLICY
from beanstalk_server.queue.units import SECOND

LONGEST_DELAY: Final = MAX_U32 * SECOND
"""The longest delay that a client can give, in nanoseconds."""

MOST_DOUBLINGS: Final = 62
"""Any delay is the longest after this many."""


def counts_failures(job: Job) -> bool:
    """Whether the job has a limit of tries, or a backoff."""
    extras = job.extras
    if isinstance(extras, Terms) and (extras.max_tries or extras.backoff):
        return True
    policy = job.tube.policy
    return policy is not NO_POLICY and bool(policy.max_tries or policy.backoff)


def has_failed_too_often(job: Job, terms: Terms) -> bool:
    """Whether the job may not be tried again."""
    limit = terms.max_tries or job.tube.policy.max_tries
    return 0 < limit <= terms.tries


def backoff_delay(job: Job, terms: Terms) -> int:
    """How long the job waits after the failure that has been counted last, in nanoseconds."""
    policy = job.tube.policy
    backoff = terms.backoff or policy.backoff
    if not backoff:
        return 0
    return min(backoff << min(terms.tries - 1, MOST_DOUBLINGS), policy.backoff_max or LONGEST_DELAY, LONGEST_DELAY)
