"""Statistics of the queue, a tube or a job at one moment: what stats, stats-tube and stats-job report.

Moments and durations are in nanoseconds.
"""

from __future__ import annotations

from beanstalk_server.queue.job import DELAYED, NEVER, RESERVED, SAFETY_MARGIN, Job, Terms
from beanstalk_server.queue.policy import NO_POLICY
from beanstalk_server.queue.state import QueueState
from beanstalk_server.queue.tube import Tube


class JobStatistics:
    """A job, its age, the time it has left, and the size of its body in bytes."""

    def __init__(self, job: Job, file: int, now: int, wall_offset: int = 0, size: int = 0) -> None:
        self.job = job
        self.file = file  # the number of the journal's file that its record is in, or 0
        self.size = size
        self.age = max(now - job.created_at, 0)  # commands of one turn follow each other by a nanosecond
        self.time_left = 0  # until a delayed or reserved job becomes ready by itself; 0 for any other
        if job.state == DELAYED and job.deadline != NEVER:
            moment = now + wall_offset if job.is_timed() else now
            self.time_left = max(job.deadline - moment, 0)
        elif job.state == RESERVED:
            end = job.deadline if job.in_safety_margin else job.deadline + SAFETY_MARGIN
            self.time_left = max(end - now, 0)
        holder = job.client
        self.holder = None if holder is None else holder.client_name  # the name of that client, or ""
        # for how long its client has had it reserved, in nanoseconds
        self.held = 0 if holder is None else max(now - holder.reserved_since(job), 0)
        terms = job.terms()
        if terms is None and job.counts_failures():
            terms = Terms()
        self.terms = terms
        self.max_tries = 0  # that of the job, or else of its tube; 0 for no limit
        self.expires_in = 0  # until a ready job expires; 0 if it does not
        if terms is not None:
            self.max_tries = terms.max_tries or job.tube.policy.max_tries
            if terms.expiry is not None:
                self.expires_in = max(terms.expiry.deadline - now, 0)


class TubeStatistics:
    """A tube: its jobs in each state, its clients, and what has happened to it so far.

    Args:
        oldest: since when its oldest ready job has been ready (oldest.py), in nanoseconds; 0 if unknown or none.
        wall_offset: the wall clock minus the server's clock, in nanoseconds.
    """

    def __init__(self, tube: Tube, now: int, oldest: int = 0, wall_offset: int = 0) -> None:
        self.name = tube.name
        self.urgent = tube.urgent
        self.ready = tube.ready.count()
        self.reserved = len(tube.reserved)
        self.delayed = tube.delayed_count()
        self.buried = tube.buried_count
        self.total_jobs = tube.total_jobs
        self.using = tube.using
        self.watching = tube.watching
        self.waiting = tube.waiting_count
        self.deletes = tube.deletes
        self.pauses = tube.pauses
        self.pause = tube.pause  # the whole length of its present pause, or 0
        self.pause_left = max(tube.deadline - now, 0) if tube.pause else 0
        self.has_policy = tube.policy is not NO_POLICY
        self.counters = tube.counters
        self.held = len(tube.held)
        self.bytes = tube.bytes
        self.throttled = tube.is_throttled()
        self.durations = tube.durations
        self.oldest = max(now - oldest, 0) if oldest else 0  # how long its oldest ready job has been ready
        self.overdue = max(now - _first_due(tube, wall_offset, now), 0)  # for how long a delayed job has been due


def _first_due(tube: Tube, wall_offset: int, default: int) -> int:
    """When the first delayed job of a tube is due, in nanoseconds; the default if it has none."""
    due = tube.delayed.jobs[0].deadline if tube.delayed.jobs else default
    return due if tube.timed is None else min(due, tube.timed.jobs[0].deadline - wall_offset)


class ServerStatistics:
    """The queue: its jobs in each state, its tubes and clients, and what has happened so far."""

    def __init__(self, queue: QueueState) -> None:
        self.files = queue.journal.files()
        self.counters = queue.counters  # what policies have done
        self.urgent = queue.urgent
        self.ready = queue.ready
        self.reserved = queue.reserved
        self.delayed = queue.delayed
        self.buried = queue.buried
        self.timeouts = queue.timeouts
        self.total_jobs = queue.total_jobs
        self.tubes = len(queue.tubes)
        self.connections = queue.connections
        self.producers = queue.producers
        self.workers = queue.workers
        self.waiting = queue.waiting
        self.total_connections = queue.total_connections
        self.draining = queue.draining
        self.held = len(queue.held) - queue.pauses  # keys
        self.groups = queue.groups.open_count()  # those with members, and those that jobs wait for
        self.memory = queue.memory.used  # bytes that the jobs take, as `queue/memory.py` counts
        self.max_memory = queue.memory.limit  # bytes; 0 if there is no limit
