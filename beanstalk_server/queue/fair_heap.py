"""The ready jobs of a tube in which names take turns, or in which some jobs have a limit.

Such a job has labels (`queue/policy.py`). It waits in a lane, which shows one of its jobs at a time. What is shown in
the heap of the tube is there among the jobs without such labels: so `first` is what is to be reserved next, and
nothing else that orders tubes and jobs knows of lanes.

    what                has the jobs of one              shows its first
    ------------------  -------------------------------  -----------------------------------------------------
    limit lane          priority, share and limit        by id, in the lane of its share, or in the tube's heap
    share lane          priority and share               by id, in the level
    level               priority, of all shares          by the number of its share's turn, in the tube's heap

A job is in one heap at a time: what is shown has been taken out of where it waited. The share with the smallest number
comes first. A share gets the next number when it gets ready jobs, and when a reserve takes one of its jobs. So shares
take turns, and a share keeps its place while its jobs are held back by limits.

That a limit is reached changes nothing at first. A job that is shown all the same is withdrawn, with its lane, when it
comes first in its tube; when the limit has a place, the lane is due to show a job again, which it does when a caller
asks for the first job of the tube. So each withdrawal is paid for by the lane that became due before, and a million
jobs behind a limit cost a reserve nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.policy import Labels
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.wheel import OVERDUE, Timer, Wheel

if TYPE_CHECKING:
    from beanstalk_server.queue.tube import Tube

AT_ONCE: Final = 16
"""The most lanes that become due as soon as their limit has a place; more do so in slices."""


class Limit(Timer):
    """The jobs that have the same limit: of one tube, or of all if its home is given (`Labels.limit_in`).

    As a timer, it is OVERDUE while lanes have to become due, or clients that wait in their tubes to be served: who
    frees a place does not know the present.
    """

    def __init__(self, name: str, wheel: Wheel) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.name = name  # with its home
        self.wheel = wheel
        self.count = 0  # how many of its jobs may be reserved at a time
        self.jobs = 0  # how many there are, in any state
        self.reserved = 0  # how many of them are reserved
        # tubes where there is a job for a client that waits, in the order in which they are served
        self.unserved: dict[Tube, None] = {}
        # the lanes that become due when there is a place, first withdrawn first
        self.withdrawn: dict[LimitLane, None] = {}

    def is_reached(self) -> bool:
        return self.reserved >= self.count

    def set_count(self, count: int) -> None:
        self.count = count
        self._offer()

    def take_place(self) -> None:
        self.reserved += 1

    def free_place(self) -> None:
        self.reserved -= 1
        self._offer()

    def _offer(self) -> None:
        """Let lanes show their jobs again if there is a place: the first job first, where clients wait in their tubes.
        If they are many, they do so in slices, in any order."""
        if self.is_reached() or not self.withdrawn:
            return
        if len(self.withdrawn) <= AT_ONCE:
            lanes = list(self.withdrawn)
            for _, _, lane in sorted([(lane.key[0], lane.jobs[0].id, lane) for lane in lanes if not lane.is_cleared()]):
                self._return(lane)
        if (self.withdrawn or self.unserved) and not self.is_linked():
            self.wheel.set(self, OVERDUE)

    def _return(self, lane: LimitLane) -> None:
        del self.withdrawn[lane]
        lane.is_withdrawn = False
        if lane.is_cleared():
            return
        lane.come_due()
        tube = lane.heap.tube
        if tube.waiting_count and not tube.blocked:
            self.unserved[tube] = None

    def has_offer(self) -> bool:
        """Whether something is left to do for `next_tube`."""
        return bool(self.unserved) or (bool(self.withdrawn) and not self.is_reached())

    def next_tube(self) -> Tube | None:
        """The next tube whose clients are to be served, if any wait; None if there is none."""
        if not self.unserved and self.withdrawn and not self.is_reached():
            lane = next(iter(self.withdrawn))
            self._return(lane)
            return lane.heap.tube
        if not self.unserved:
            return None
        tube = next(iter(self.unserved))
        del self.unserved[tube]
        return tube

    def check(self) -> None:
        assert 0 <= self.reserved <= self.jobs > 0 < self.count
        for lane in self.withdrawn:
            assert lane.limit is self and lane.is_withdrawn
        assert self.is_linked() or not self.has_offer(), "a limit has a place that no lane offers"
        if self.is_linked():
            assert self.deadline == OVERDUE


class Lane(JobHeap):
    """Jobs of one tube and priority, by id, of which one is shown elsewhere."""

    def __init__(self, heap: FairHeap) -> None:
        super().__init__()
        self.heap = heap  # that of the tube
        self.shown: Job | None = None  # the job that it shows: smaller than all others

    def add(self, job: Job) -> None:
        """Add a job. It is shown if it comes before the one that is."""
        shown = self.shown
        if shown is not None:
            if job.id > shown.id:
                self.push(job, job.priority)
                return
            self.shown = None
            self._hide(shown)
            self.push(shown, shown.priority)
        if self.may_show(job):
            self.shown = job
            self._show(job)
            return
        self.push(job, job.priority)
        self._offer()

    def take(self, job: Job) -> None:
        """Take a job out, shown or not."""
        if self.shown is job:
            self.shown = None
            self._hide(job)
            if self.jobs:
                self._offer()
        else:
            self.remove(job)

    def show(self) -> None:
        """Show the first job; none is shown, and there is one."""
        job = self.jobs[0]
        self.remove(job)
        self.shown = job
        self._show(job)

    def may_show(self, job: Job) -> bool:
        """Whether this job, which has come, can be shown at once; none is."""
        return True

    def _offer(self) -> None:
        """See to it that the first job is shown; none is, and there is one."""

    def _show(self, job: Job) -> None:
        """Show this job in the heap above."""

    def _hide(self, job: Job) -> None:
        """Show this job there no longer."""


class ShareLane(Lane):
    """The jobs of one share."""

    def __init__(self, heap: FairHeap, level: Level, name: str, number: int) -> None:
        super().__init__(heap)
        self.level = level
        self.name = name
        self.number = number  # of its turn
        self.lanes = 0  # how many limit lanes there are of this share

    def _offer(self) -> None:
        self.show()

    def _show(self, job: Job) -> None:
        self.level.add(job, self.number)

    def _hide(self, job: Job) -> None:
        self.level.take(job)

    def is_empty(self) -> bool:
        return not self.jobs and self.shown is None and not self.lanes


class LimitLane(Lane):
    """The jobs of one share that have the same limit; the share may be none."""

    def __init__(self, heap: FairHeap, key: tuple[int, str, str], share: ShareLane | None, limit: Limit) -> None:
        super().__init__(heap)
        self.key = key  # its name in the heap: priority, share, limit
        self.share = share  # the lane that it shows its job in; None: the tube's heap
        self.limit = limit
        self.is_due = False  # `first` lets it show a job
        self.is_withdrawn = False  # it shows none before its limit has a place

    def may_show(self, job: Job) -> bool:
        if self.is_due or self.is_withdrawn or self.limit.is_reached():
            return False
        return not self.jobs or job.id < self.jobs[0].id

    def _offer(self) -> None:
        if not self.is_withdrawn:
            self.come_due()

    def is_cleared(self) -> bool:
        """Whether a clear has taken its jobs out of the tube."""
        return self.heap.tube.ready is not self.heap

    def come_due(self) -> None:
        if not self.is_due:
            self.is_due = True
            self.heap.due[self] = None

    def settle(self) -> None:
        """Show a job, or be withdrawn: it has been due."""
        self.is_due = False
        if not self.jobs or self.shown is not None:
            return
        if self.limit.is_reached():
            self.is_withdrawn = True
            self.limit.withdrawn[self] = None
        else:
            self.show()

    def withdraw(self) -> None:
        """Show no job before the limit has a place."""
        shown = self.shown
        assert shown is not None, "it is the first job of its tube"
        self.shown = None
        self._hide(shown)
        self.push(shown, shown.priority)
        self.is_withdrawn = True
        self.limit.withdrawn[self] = None

    def _show(self, job: Job) -> None:
        if self.share is None:
            self.heap.show(job)
        else:
            self.share.add(job)

    def _hide(self, job: Job) -> None:
        if self.share is None:
            self.heap.hide(job)
        else:
            self.share.take(job)


class Level(JobHeap):
    """The jobs that the shares of one priority show, by the numbers of their turns."""

    def __init__(self, heap: FairHeap, priority: int) -> None:
        super().__init__()
        self.heap = heap
        self.priority = priority
        self.lanes: dict[str, ShareLane] = {}  # its shares, by name
        self.number = 0  # that of the job that is shown
        self.shown: Job | None = None  # in the tube's heap: that with the smallest number

    def add(self, job: Job, number: int) -> None:
        shown = self.shown
        if shown is not None:
            if self.number < number:
                self.push(job, number)
                return
            self.heap.hide(shown)
            self.push(shown, self.number)
        self._show(job, number)

    def take(self, job: Job) -> None:
        if self.shown is not job:
            self.remove(job)
            return
        self.shown = None
        self.heap.hide(job)
        if self.jobs:
            first = self.jobs[0]
            number = first.deadline
            self.remove(first)
            self._show(first, number)

    def _show(self, job: Job, number: int) -> None:
        self.shown = job
        self.number = number
        self.heap.show(job)


class FairHeap(JobHeap):
    """The ready jobs of a tube. `jobs` has those without a share or a limit, and those that are shown.

    Args:
        tube: which refers to it; both are let go together.
        jobs: those that are ready already, of which none has a share or a limit.
    """

    def __init__(self, tube: Tube, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.tube = tube
        self.hidden = 0  # how many jobs are not in `jobs`
        self.due: dict[LimitLane, None] = {}  # the limit lanes that are to show a job
        self.lanes: dict[tuple[int, str, str], LimitLane] = {}  # the limit lanes, by their keys
        self.levels: dict[int, Level] = {}  # by priority
        self.next_number = 1

    # What the broker calls

    def push(self, job: Job, sort_key: int) -> None:
        labels = job.lane_labels()
        if labels is None:
            super().push(job, sort_key)
            return
        self.hidden += 1
        lane = labels.lane = self._lane(labels, sort_key)
        lane.add(job)

    def remove(self, job: Job) -> None:
        labels = job.lane_labels()
        if labels is None:
            super().remove(job)
            return
        lane = labels.lane
        assert lane is not None, "a ready job with a share or a limit is in a lane"
        labels.lane = None
        lane.take(job)
        self.hidden -= 1
        if not lane.jobs and lane.shown is None:
            self._drop(lane)

    def first(self) -> Job | None:
        jobs = self.jobs
        while True:
            while self.due:
                self.due.popitem()[0].settle()
            if not jobs:
                return None
            job = jobs[0]
            labels = job.lane_labels()
            if labels is None or labels.limiter is None or not labels.limiter.is_reached():
                return job
            lane = labels.lane
            assert isinstance(lane, LimitLane), "a ready job with a limit is in its lane"
            lane.withdraw()

    def end_turn(self, job: Job) -> None:
        labels = job.lane_labels()
        if labels is not None and labels.share:
            self.levels[job.priority].lanes[labels.share].number = self.next_number
            self.next_number += 1

    def count(self) -> int:
        return len(self.jobs) + self.hidden

    def holds(self, job: Job) -> bool:
        labels = job.lane_labels()
        if labels is None:
            return super().holds(job)
        return labels.lane is not None and labels.lane.heap is self

    def pop_any(self) -> Job | None:
        if self.jobs:
            job = self.jobs.pop()
            labels = job.lane_labels()
            if labels is not None:
                labels.lane = None
            return job
        for level in self.levels.values():
            if level.jobs:
                return self._popped(level)
            while level.lanes:
                lane = next(reversed(level.lanes.values()))
                if lane.jobs:
                    return self._popped(lane)
                level.lanes.popitem()
        self.levels.clear()
        while self.lanes:
            key, limited = self.lanes.popitem()
            if limited.jobs:
                self.lanes[key] = limited
                return self._popped(limited)
            limited.limit.withdrawn.pop(limited, None)
        self.due.clear()
        return None

    def dissolve(self) -> None:
        for level in self.levels.values():
            level.lanes.clear()
        self.levels.clear()
        self.lanes.clear()
        self.due.clear()

    def _popped(self, heap: JobHeap) -> Job:
        job = heap.jobs.pop()
        self.hidden -= 1
        labels = job.lane_labels()
        assert labels is not None
        labels.lane = None
        return job

    # What lanes call

    def show(self, job: Job) -> None:
        """Let a job of a lane be among those of the tube."""
        super().push(job, job.priority)
        self.hidden -= 1

    def hide(self, job: Job) -> None:
        super().remove(job)
        self.hidden += 1

    # Lanes, which exist while they have jobs

    def _lane(self, labels: Labels, priority: int) -> Lane:
        share = self._share(priority, labels.share) if labels.share else None
        limiter = labels.limiter
        if limiter is None:
            assert share is not None, "a job in a lane has a share or a limit"
            return share
        key = (priority, labels.share, labels.limit)
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = LimitLane(self, key, share, limiter)
            if share is not None:
                share.lanes += 1
        return lane

    def _share(self, priority: int, name: str) -> ShareLane:
        level = self.levels.get(priority)
        if level is None:
            level = self.levels[priority] = Level(self, priority)
        lane = level.lanes.get(name)
        if lane is None:
            lane = level.lanes[name] = ShareLane(self, level, name, self.next_number)
            self.next_number += 1
        return lane

    def _drop(self, lane: Lane) -> None:
        """Forget a lane that has lost its last job, unless it is that of a share with limit lanes."""
        share: ShareLane | None
        if isinstance(lane, LimitLane):
            del self.lanes[lane.key]
            if lane.is_due:
                del self.due[lane]
            if lane.is_withdrawn:
                del lane.limit.withdrawn[lane]
            share = lane.share
            if share is None:
                return
            share.lanes -= 1
        else:
            assert isinstance(lane, ShareLane)
            share = lane
        if share.is_empty():
            level = share.level
            del level.lanes[share.name]
            if not level.lanes:
                del self.levels[level.priority]

    def check(self) -> None:
        super().check()
        jobs = [job for job in self.jobs if job.lane_labels() is None]
        seen = 0
        for lane in [
            *self.lanes.values(),
            *[share for level in self.levels.values() for share in level.lanes.values()],
        ]:
            JobHeap.check(lane)
            held = [*lane.jobs, lane.shown] if lane.shown is not None else lane.jobs
            own = [job for job in held if job.own_labels().lane is lane]
            seen += len(own)
            assert lane.shown is None or all(lane.shown.id < job.id for job in lane.jobs), "a lane shows another job"
            if isinstance(lane, LimitLane):
                assert self.lanes[lane.key] is lane and own == held != [], "a lane has no jobs, or those of others"
                assert lane.is_due == (lane in self.due) and lane.is_withdrawn == (lane in lane.limit.withdrawn)
                assert lane.is_due or lane.is_withdrawn or lane.shown is not None, "a lane will never show its jobs"
                assert not lane.is_withdrawn or lane.shown is None
            else:
                assert isinstance(lane, ShareLane) and lane.level.lanes[lane.name] is lane and not lane.is_empty()
                assert lane.shown is not None or not lane.jobs, "a share does not show its first job"
        for priority, level in self.levels.items():
            JobHeap.check(level)
            assert level.priority == priority and level.lanes, "a level has no shares"
            shown = [lane.number for lane in level.lanes.values() if lane.shown is not None]
            assert sorted(shown) == sorted([job.deadline for job in level.jobs] + [level.number] * bool(level.shown))
            assert len(set(shown)) == len(shown) and (level.shown is None or level.number == min(shown))
            assert level.shown is not None or not level.jobs
        assert len(jobs) + seen == self.count(), "the hidden jobs are counted wrongly"
