"""Decides which bodies stay in memory: the short ones, those that are not written yet, and the latest of the others.

A body above the threshold may leave memory once its record has been written as the sync policy promises. It stays while
there is room for it in the cache, and leaves in the order in which the bodies came: with their put, or when they were
read again. Those that cleaning has moved leave first, because no one has asked for them. The log says when a record is
there and when it is garbage. Must never touch a file, or know who needs a body.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from beanstalk_server.queue.job import NOT_IN_MEMORY, Job
from beanstalk_server.queue.memory import Memory

ALL_IN_MEMORY: Final = 1 << 30
"""A threshold, in bytes, that no body is above."""


class Bodies:
    """The bodies above the threshold that are in memory.

    Args:
        threshold: bytes; a body that is longer may leave memory.
        cache_size: bytes of such bodies that stay in memory when they have been written.
        memory: the account of memory, which hears of each body that leaves it or comes back.
    """

    def __init__(self, threshold: int, cache_size: int, memory: Memory) -> None:
        self.threshold = threshold
        self.cache_size = cache_size
        self.memory = memory
        self.size = 0  # bytes of the bodies here
        self._jobs: OrderedDict[Job, None] = OrderedDict()  # the oldest first
        self._moved: OrderedDict[Job, None] = OrderedDict()  # the same of those that cleaning has moved

    def add(self, job: Job, is_moved: bool = False) -> None:
        """Note that the body of a recorded job is in memory: as the newest, or because cleaning has moved it."""
        size = len(job.body)
        if size > self.threshold:
            jobs = self._moved if is_moved else self._jobs
            jobs[job] = None
            self.size += size

    def discard(self, job: Job) -> None:
        """Forget the body of a job whose record is garbage now. The body leaves memory with the job."""
        body = job.body
        if body is not NOT_IN_MEMORY and len(body) > self.threshold:
            jobs = self._moved if job in self._moved else self._jobs
            del jobs[job]
            self.size -= len(body)

    def oldest(self) -> Job:
        """The job whose body should leave memory next."""
        job: Job = next(iter(self._moved or self._jobs))
        return job

    def drop_oldest(self) -> None:
        job, _ = (self._moved or self._jobs).popitem(last=False)
        self.size -= len(job.body)
        self.memory.drop_body(job)

    def bring_back(self, job: Job, body: bytes) -> None:
        """Give a job its body back, which has been read; it is the newest here, unless the job's record is garbage."""
        self.memory.return_body(job, body)
        if job.file:
            self.add(job)

    def check(self) -> None:
        jobs = [*self._moved, *self._jobs]
        assert self.size == sum(len(job.body) for job in jobs)
        for job in jobs:
            assert job.file, f"the record of job {job.id} is garbage"
            assert job.body is not NOT_IN_MEMORY and len(job.body) > self.threshold
