"""The delayed jobs that are due at a moment of the wall clock, which may be set while they wait.

A delay lasts as long as the server's own clock says; such a job waits for what the wall clock says. So these jobs are
not in the wheel, and not among the other delayed jobs of their tube. Each tube has a heap of its own for them, by
(moment, id), and the WallClock orders these heaps by their first jobs:

    WallClock.heaps    tube b, 08:00 --- tube a, 08:05 --- tube c, 09:30     a heap of heaps
                       |                 |                 |
    TimedJobs.jobs     08:00 08:00 12:00 08:05             09:30 09:31       one for each tube that has such jobs

All of them share one timer, which is that of the first. When the wall clock is set, only this timer moves, however many
jobs and tubes there are: what is by the wall clock does not change when the clock does. Must never read a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wheel import Timer

if TYPE_CHECKING:
    from beanstalk_server.queue.job import Job
    from beanstalk_server.queue.tube import Tube


WALL_CHECK: Final = SECOND // 2
"""Nanoseconds from one look at the wall clock to the next, at the most, while a job waits for it."""


class TimedJobs(JobHeap):
    """Those of one tube, by (moment, id); their deadlines are moments of the wall clock. It is never empty."""

    def __init__(self) -> None:
        super().__init__()
        self.index = 0


class WallCheck(Timer):
    """When to look at the wall clock next; in the wheel while there are jobs that it concerns."""

    def __init__(self) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0


class WallClock(Timer):
    """Those of all tubes. As a timer, its deadline is when the first of them is due, by the server's clock."""

    def __init__(self) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.offset = 0  # the wall clock minus the server's clock, in nanoseconds, as last said
        # of the tubes that have such jobs: `heaps[0]` is the one whose first job is the first of all
        self.heaps: list[TimedJobs] = []
        self.check_timer = WallCheck()

    def first(self) -> Job | None:
        heaps = self.heaps
        return heaps[0].jobs[0] if heaps else None

    def add(self, job: Job, moment: int) -> None:
        """Add a job. Its deadline becomes this moment of the wall clock, in nanoseconds since 1970."""
        tube = job.tube
        timed = tube.timed
        if timed is None:
            timed = tube.timed = TimedJobs()
            timed.push(job, moment)
            timed.index = len(self.heaps)
            self.heaps.append(timed)
            self._rise(timed)
            return
        timed.push(job, moment)
        if timed.jobs[0] is job:
            self._rise(timed)

    def remove(self, job: Job) -> None:
        tube = job.tube
        timed = tube.timed
        assert timed is not None, "a job of the wall clock is in its tube's heap of such jobs"
        if len(timed.jobs) == 1:
            self.take(tube)
            return
        was_first = timed.jobs[0] is job
        timed.remove(job)
        if was_first:
            self._sink(timed)

    def take(self, tube: Tube) -> list[Job]:
        timed = tube.timed
        if timed is None:
            return []
        tube.timed = None
        last = self.heaps.pop()
        if last is not timed:
            last.index = timed.index
            self.heaps[last.index] = last
            self._rise(last)
            self._sink(last)
        return timed.jobs

    def _before(self, a: TimedJobs, b: TimedJobs) -> bool:
        one = a.jobs[0]
        other = b.jobs[0]
        return one.deadline < other.deadline or (one.deadline == other.deadline and one.id < other.id)

    def _rise(self, timed: TimedJobs) -> None:
        heaps = self.heaps
        index = timed.index
        while index:
            above = (index - 1) >> 1
            parent = heaps[above]
            if not self._before(timed, parent):
                break
            heaps[index] = parent
            parent.index = index
            index = above
        heaps[index] = timed
        timed.index = index

    def _sink(self, timed: TimedJobs) -> None:
        heaps = self.heaps
        index = timed.index
        below = 2 * index + 1
        while below < len(heaps):
            child = heaps[below]
            if below + 1 < len(heaps) and self._before(heaps[below + 1], child):
                below += 1
                child = heaps[below]
            if not self._before(child, timed):
                break
            heaps[index] = child
            child.index = index
            index = below
            below = 2 * index + 1
        heaps[index] = timed
        timed.index = index

    def check(self) -> None:
        for index, timed in enumerate(self.heaps):
            assert timed.jobs, "an empty heap of timed jobs is kept"
            assert timed.index == index, "a heap of timed jobs does not know its index"
            assert timed.jobs[0].tube.timed is timed, "a tube has lost its timed jobs"
            timed.check()
            if index:
                assert not self._before(timed, self.heaps[(index - 1) >> 1]), "a tube's first job is before its parent"
