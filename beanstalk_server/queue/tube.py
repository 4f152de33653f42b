"""One tube: its ready, delayed and buried jobs, the clients that wait for one, and its counters."""

from __future__ import annotations

from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import BURIED, READY, RESERVED, Job
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.table import KeyTable
from beanstalk_server.queue.wheel import Timer


class Tube(Timer):
    """One tube. Changed by the broker only; as a timer, its deadline is the end of its pause."""

    __slots__ = (
        "buried",  # first buried first
        "buried_count",
        "clearing",  # how many clears of it are under way
        "clears",  # how many have begun
        "delayed",  # by (deadline, id)
        "deletes",  # how many of its jobs have been deleted by command
        "entry",  # its line in a list of tubes
        "keys",  # its jobs that have a key, by key; None before the first
        "name",
        "pause",  # how long the pause is that it is in, nanoseconds; 0 when it is not paused
        "pauses",  # how often it has been paused
        "position",  # its index in the broker's list of tubes
        "ready",  # by (priority, id)
        "reserved",  # its jobs that are reserved, in no order
        "total_jobs",  # how many jobs have been put into it
        "urgent",  # how many of its ready jobs are urgent
        "using",  # how many clients use it
        "waiting",  # the clients that wait for a job of it, longest waiting first: a Wait for each
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
        """Whether anything keeps the tube alive: a client that uses or watches it, or a job."""
        return bool(
            self.using or self.watching or self.reserved or self.buried_count or self.ready.jobs or self.delayed.jobs
        )

    def add_reserved(self, job: Job) -> None:
        """A job of this tube is reserved; it stands in none of the queues."""
        job.heap_index = len(self.reserved)
        self.reserved.append(job)

    def remove_reserved(self, job: Job) -> None:
        """It is reserved no longer."""
        last = self.reserved.pop()
        if last is not job:
            self.reserved[job.heap_index] = last
            last.heap_index = job.heap_index

    def is_cleared(self, job: Job) -> bool:
        """Whether a clear that is still under way has taken a job of this tube out of its queue."""
        if not self.clearing or job.state == RESERVED:
            return False
        if job.state == BURIED:
            return job.extras.clears != self.clears
        heap = self.ready if job.state == READY else self.delayed
        return not heap.holds(job)
