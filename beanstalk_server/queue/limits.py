"""The limits of a tube: which puts its policy refuses.

It is asked only where a tube has a policy.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.counters import Counters
from beanstalk_server.queue.outcome import DONE, DRAINING, TOO_BIG, Outcome
from beanstalk_server.queue.tube import Tube

NOTHING: Final = -1
"""Stands for the size of the body that is replaced where none is."""


def refusal(tube: Tube, totals: Counters, delay: int, size: int, holds: bool, replaced: int = NOTHING) -> Outcome:
    """Why a tube does not take a job with this delay, in nanoseconds, and a body of this size; DONE if it does.

    A limit that no later attempt could meet comes first. A job that replaces another one adds no job, and only what its
    body is larger.

    Args:
        totals: the counters of the queue; the tube has its own.
        holds: the job's key will stay taken when the job is gone.
        replaced: the size of the body that is replaced, or NOTHING.
    """
    policy = tube.policy
    counters = tube.counters
    if policy.max_job_size and size > policy.max_job_size:
        counters.refused_size += 1
        totals.refused_size += 1
        return TOO_BIG
    if policy.max_delay and delay > policy.max_delay:
        counters.refused_delay += 1
        totals.refused_delay += 1
        return DRAINING
    growth = size
    if replaced != NOTHING:
        growth -= replaced
    most = policy.max_jobs
    most_held = policy.max_held_keys or most
    if (most and replaced == NOTHING and tube.job_count() >= most) or (
        holds and most_held and len(tube.held) >= most_held
    ):
        counters.refused_jobs += 1
        totals.refused_jobs += 1
        return DRAINING
    if policy.max_bytes and growth > 0 and tube.bytes + growth > policy.max_bytes:
        counters.refused_bytes += 1
        totals.refused_bytes += 1
        return DRAINING
    return DONE
