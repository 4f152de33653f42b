"""A binary heap of jobs that knows where each job is, so that any of them can be removed in O(log n).

The ready jobs of a tube are one, by (priority, id), and its delayed jobs another, by (deadline, id): the wheel knows
when every delayed job of the server is due, this heap which of one tube is the next (`peek-delayed`, `kick`). A job
is in one heap at the most, and carries its own rank and its place. Putting a job behind all others, which is what a
put with the usual priority or the usual delay does, compares it with one other job.

`heapq` is no substitute: it cannot remove from the middle, and entries left behind to be skipped later are a leak
that somebody has to scan away.
"""

from __future__ import annotations

from beanstalk_server.queue.job import Job


class JobHeap:
    """Jobs by (rank, id), smallest first. `jobs[0]` is the first job; `jobs` may be read, not written."""

    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def push(self, job: Job, rank: int) -> None:
        """Add a job that is in no heap."""
        job.rank = rank
        jobs = self.jobs
        place = len(jobs)
        jobs.append(job)
        if place:
            self._rise(job, place)
        else:
            job.place = 0

    def remove(self, job: Job) -> None:
        """Remove a job that is in this heap."""
        jobs = self.jobs
        last = jobs.pop()
        if last is job:
            return
        place = job.place
        # The last job takes the free place, and moves up or down from there.
        if place and self._before(last, jobs[(place - 1) >> 1]):
            self._rise(last, place)
        else:
            self._sink(last, place)

    def holds(self, job: Job) -> bool:
        """Whether the job is in this heap."""
        return job.place < len(self.jobs) and self.jobs[job.place] is job

    def _before(self, a: Job, b: Job) -> bool:
        return a.rank < b.rank or (a.rank == b.rank and a.id < b.id)

    def _rise(self, job: Job, place: int) -> None:
        jobs = self.jobs
        rank = job.rank
        number = job.id
        while place:
            above = (place - 1) >> 1
            parent = jobs[above]
            if parent.rank < rank or (parent.rank == rank and parent.id < number):
                break
            jobs[place] = parent
            parent.place = place
            place = above
        jobs[place] = job
        job.place = place

    def _sink(self, job: Job, place: int) -> None:
        jobs = self.jobs
        rank = job.rank
        number = job.id
        size = len(jobs)
        below = 2 * place + 1
        while below < size:
            child = jobs[below]
            right = below + 1
            if right < size:
                other = jobs[right]
                if other.rank < child.rank or (other.rank == child.rank and other.id < child.id):
                    child = other
                    below = right
            if rank < child.rank or (rank == child.rank and number < child.id):
                break
            jobs[place] = child
            child.place = place
            place = below
            below = 2 * place + 1
        jobs[place] = job
        job.place = place

    def check(self) -> None:
        """Verify the order and every job's place."""
        for place, job in enumerate(self.jobs):
            assert job.place == place, f"job {job.id} does not know its place"
            if place:
                assert not self._before(job, self.jobs[(place - 1) >> 1]), f"job {job.id} is before its parent"
