"""Lifetimes: how long a job may be ready, and how long its key stays taken after it.

What the job's producer has demanded wins over the policy of its tube. Must never know what becomes of a job whose time
is over.
"""

from __future__ import annotations

from beanstalk_server.queue.job import Job, Terms


def ttl_of(job: Job) -> int:
    """So long the job may be ready without being reserved, in nanoseconds; 0 for ever."""
    extras = job.extras
    return (extras.ttl if isinstance(extras, Terms) else 0) or job.tube.policy.ttl


def key_hold_of(job: Job) -> int:
    """So long its key stays taken after the job has been deleted, in nanoseconds; 0 also if it has none."""
    extras = job.extras
    if not extras.key:
        return 0
    return (extras.key_hold if isinstance(extras, Terms) else 0) or job.tube.policy.key_hold
