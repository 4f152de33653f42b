"""The account of the memory that jobs take, and its limit.

Whatever makes, drops, empties or refills a job tells the account, so that what is used is known at any moment without
a look at the jobs. A job counts for a measured constant, and for its body while that is in memory. Must never know why
a body leaves memory, or where it is then.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.job import DELETED, NOT_IN_MEMORY, Job

JOB_COST: Final = 240
"""Bytes that a job takes without its body."""

BODY_COST: Final = 40
"""Bytes that a body in memory takes beside its own: the head of its object, and what the allocator rounds up."""


def job_cost(job: Job) -> int:
    """Bytes that a job counts for at this moment."""
    body = job.body
    return JOB_COST if body is NOT_IN_MEMORY else JOB_COST + BODY_COST + len(body)


class Memory:
    """What the jobs of a broker take.

    Args:
        limit: bytes; 0 for none.
    """

    __slots__ = (
        "limit",
        "used",  # bytes
    )

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self.used = 0

    def add_job(self, job: Job) -> None:
        """Count a job that the broker has taken in, with its body if that is in memory."""
        self.used += job_cost(job)

    def remove_job(self, job: Job) -> None:
        """Count a job no longer that the broker is about to drop. Later, its body may come and go uncounted."""
        self.used -= job_cost(job)

    def drop_body(self, job: Job) -> None:
        """Take a job's body, which is in memory, out of memory. The journal keeps it."""
        if job.state != DELETED:
            self.used -= BODY_COST + len(job.body)
        job.body = NOT_IN_MEMORY

    def return_body(self, job: Job, body: bytes) -> None:
        """Give a job whose body is not in memory its body back."""
        job.body = body
        if job.state != DELETED:
            self.used += BODY_COST + len(body)
