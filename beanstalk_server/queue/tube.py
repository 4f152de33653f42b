"""One tube: its jobs in each state, the clients that wait for one of them, and its counters.

Must never know what moves a job from one state to another.
"""

from __future__ import annotations

from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import BURIED, READY, RESERVED, Job
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.table import KeyTable
from beanstalk_server.queue.wheel import Timer


class Tube(Timer):
    """One tube. Only the broker changes it; others may read.

    As a timer, its deadline is the end of its pause, or OVERDUE while its waiting clients are served in slices.
    """

    __slots__ = (
        "buried",  # its buried jobs, first buried first
        "buried_count",
        "clearing",  # how many clears of it are under way
        "clears",  # how many clears of it have begun
        "delayed",  # its delayed jobs, by (deadline, id)
        "deletes",  # how often delete has deleted one of its jobs
        "entry",  # its line in a list of tubes
        "keys",  # its jobs that have a key, by key; None before the first
        "name",
        "pause",  # the whole length of its present pause, in nanoseconds; 0 if it is not paused
        "pauses",  # how often pause-tube has named it
        "position",  # its index in the list of all tubes
        "ready",  # its ready jobs, by (priority, id)
        "reserved",  # its reserved jobs, in no order
        "total_jobs",  # how many jobs have been put into it
        "urgent",  # how many of its ready jobs are urgent
        "using",  # how many clients use it
        "waiting",  # a Wait for each client that waits for one of its jobs, longest waiting first
        "waiting_count",
        "watching",  # how many clients watch it
    )

    def __init__(self, name: str, position: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.name = name
        self.entry = f"- {name}\n".encode()
        self.position = position
        self.ready = JobHeap()
        self.delayed = JobHeap()
        self.buried = Ring()
        self.waiting = Ring()
        self.waiting_count = 0
        self.pause = 0
        self.keys: KeyTable | None = None
        self.clears = 0
        self.clearing = 0
        self.urgent = 0
        self.reserved: list[Job] = []
        self.buried_count = 0
        self.total_jobs = 0
        self.deletes = 0
        self.pauses = 0
        self.using = 0
        self.watching = 0

    def is_needed(self) -> bool:
        """Whether a job, or a client that uses or watches it, keeps it alive."""
        return bool(
            self.using or self.watching or self.reserved or self.buried_count or self.ready.jobs or self.delayed.jobs
        )

    def add_reserved(self, job: Job) -> None:
        """Add a job of this tube that has been reserved, and so has left its queue."""
        job.heap_index = len(self.reserved)
        self.reserved.append(job)

    def remove_reserved(self, job: Job) -> None:
        """Remove a job that is no longer reserved."""
        last = self.reserved.pop()
        if last is not job:
            self.reserved[job.heap_index] = last
            last.heap_index = job.heap_index

    def is_cleared(self, job: Job) -> bool:
        """Whether a clear that is still under way has taken this job of the tube out of its queue."""
        if not self.clearing or job.state == RESERVED:
            return False
        if job.state == BURIED:
            return job.extras.clears != self.clears
        heap = self.ready if job.state == READY else self.delayed
        return not heap.holds(job)
