"""A binary heap of jobs in which each job knows its index, so that any job can be removed in O(log n).

A tube has two: its ready jobs by (priority, id), and its delayed jobs by (deadline, id). The wheel knows when each
delayed job of the server is due; the heap knows which job of a tube is next (`peek-delayed`, `kick`). A job is in at
most one heap. It carries its index in that heap itself, and its sort key as its deadline, because a ready job has no
other. A put with the usual priority or the usual delay goes to the end of the heap, and costs one comparison.

`heapq` will not do: it cannot remove from the middle, and the usual remedy, dead entries that are skipped when they
reach the top, keeps their memory until then.
"""

from __future__ import annotations

from beanstalk_server.queue.job import Job


class JobHeap:
    """Jobs by (sort key, id): `jobs[0]` is the smallest. Others may read `jobs`, not change it.

    Of the ready jobs of a tube, some may not be in `jobs` (`queue/fair_heap.py`): `first` and `count` know.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def push(self, job: Job, sort_key: int) -> None:
        """Add a job that is in no heap. Its deadline becomes the sort key."""
        job.deadline = sort_key
        jobs = self.jobs
        index = len(jobs)
        jobs.append(job)
        if index:
            self._rise(job, index)
        else:
            job.heap_index = 0

    def remove(self, job: Job) -> None:
        jobs = self.jobs
        last = jobs.pop()
        if last is job:
            return
        index = job.heap_index
        # The last job takes the free place, and moves up or down from there.
        if index and self._before(last, jobs[(index - 1) >> 1]):
            self._rise(last, index)
        else:
            self._sink(last, index)

    def first(self) -> Job | None:
        """The job that comes first of those that may be reserved; None if there is none."""
        jobs = self.jobs
        return jobs[0] if jobs else None

    def end_turn(self, job: Job) -> None:
        """Note that the first job is about to be reserved, because it is the first."""

    def count(self) -> int:
        """How many jobs it has, also those that may not be reserved."""
        return len(self.jobs)

    def pop_any(self) -> Job | None:
        """Take out a job, any of them, of a heap that is not used otherwise any more; None if there is none."""
        return self.jobs.pop() if self.jobs else None

    def dissolve(self) -> None:
        """Let go what refers to it, of a heap that is not used any more."""

    def holds(self, job: Job) -> bool:
        return job.heap_index < len(self.jobs) and self.jobs[job.heap_index] is job

    def _before(self, a: Job, b: Job) -> bool:
        return a.deadline < b.deadline or (a.deadline == b.deadline and a.id < b.id)

    def _rise(self, job: Job, index: int) -> None:
        jobs = self.jobs
        sort_key = job.deadline
        job_id = job.id
        while index:
            above = (index - 1) >> 1
            parent = jobs[above]
            if parent.deadline < sort_key or (parent.deadline == sort_key and parent.id < job_id):
                break
            jobs[index] = parent
            parent.heap_index = index
            index = above
        jobs[index] = job
        job.heap_index = index

    def _sink(self, job: Job, index: int) -> None:
        jobs = self.jobs
        sort_key = job.deadline
        job_id = job.id
        size = len(jobs)
        below = 2 * index + 1
        while below < size:
            child = jobs[below]
            right = below + 1
            if right < size:
                other = jobs[right]
                if other.deadline < child.deadline or (other.deadline == child.deadline and other.id < child.id):
                    child = other
                    below = right
            if sort_key < child.deadline or (sort_key == child.deadline and job_id < child.id):
                break
            jobs[index] = child
            child.heap_index = index
            index = below
            below = 2 * index + 1
        jobs[index] = job
        job.heap_index = index

    def check(self) -> None:
        for index, job in enumerate(self.jobs):
            assert job.heap_index == index, f"job {job.id} does not know its index"
            if index:
                assert not self._before(job, self.jobs[(index - 1) >> 1]), f"job {job.id} is before its parent"
