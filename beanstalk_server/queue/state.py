"""All that a queue has: jobs, tubes, timers, counters and the journal, and how they are found.

What changes them is in transitions.py, membership.py and timers.py; what the journal records, in recording.py. The
commands are in broker.py.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.costs import NEW_TUBE_COST
from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.fair_heap import FairHeap, Limit
from beanstalk_server.queue.groups import Groups
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import DELAYED, NOT_IN_MEMORY, READY, HeldKey, Holder, Job, Token
from beanstalk_server.queue.journal import ALL, Journal
from beanstalk_server.queue.memory import Memory
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.policy import Counters, Policy, PolicyOf
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.throttle import Throttle
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.tubes import TubeTable
from beanstalk_server.queue.wall_clock import WallClock
from beanstalk_server.queue.wheel import Slot, Wheel

SLICE: Final = 512
"""The budget of one call: the most jobs it moves, in about a millisecond. `Broker.advance` moves the rest."""


@mypyc_attr(allow_interpreted_subclasses=True)  # tests make some
class QueueState:
    """All jobs, and the clients that wait for one.

    Args:
        journal, now, tick, max_memory, stride, offset, policy_of: as in Broker.

    Attributes:
        admits: what the journal admits now: ALL, DELETIONS or NONE. A command that needs more has to wait.
        last_lsn: the number of the last change recorded in the journal. A reply may leave when that change is durable.
        once_lsn: the number of the last change that put a job with a token.
        cost: the cost of all calls since it was last set to 0; moving one job costs 1.
    """

    def __init__(
        self,
        journal: Journal,
        now: int,
        tick: int,
        max_memory: int,
        stride: int,
        offset: int,
        policy_of: PolicyOf,
    ) -> None:
        self.admits: int = ALL
        self.last_lsn: int = 0
        self.once_lsn: int = 0
        self.cost: int = 0
        self.stride = stride
        self.offset = offset
        self.next_id = stride + offset
        self.journal = journal
        self.records: bool = journal.keeps  # else nothing is recorded
        self.wheel = Wheel(now, tick)
        self.jobs: IdTable[Job] = IdTable(stride, offset)
        self.held: IdTable[HeldKey] = IdTable(stride, offset)
        journal.live = self.jobs
        journal.held = self.held
        self.groups = Groups(stride, offset)
        journal.groups = self.groups.by_id
        self.memory = journal.memory = Memory(max_memory)
        self.counters = Counters()  # what policies have done, also in tubes that have none: a job may have terms
        self.pauses = 0  # how many of the held keys are pauses, which have no key
        self.once: Token | None = None  # what the put that is being recorded takes
        self.halted = False
        self.suspended = Slot(-1, 0)  # timers that are due, and go on when the journal admits everything again
        self.suspended_deletions = Slot(-1, 0)  # likewise, when it admits deletions again
        self.policy_of = policy_of
        self.wall = WallClock()
        self.tubes = TubeTable()
        self.set_policy(self.tubes.default, policy_of(self.tubes.default.name))
        self.limits: dict[str, Limit] = {}  # by full name, while there are jobs with them
        self.durations: Durations | None = None  # those of its jobs, if they are measured
        self.draining = False
        # The counters of stats: the jobs in each state, its clients, and what has happened since the start.
        self.urgent = 0
        self.ready = 0
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.timeouts = 0
        self.total_jobs = 0
        self.connections = 0
        self.total_connections = 0
        self.producers = 0
        self.workers = 0
        self.waiting = 0
        self.watches = 0  # how many tubes clients watch, each beyond its free ones

    def body_size(self, job: Job) -> int:
        """Bytes, also of a body that is not in memory. The journal knows it until the job is deleted or replaced."""
        body = job.body
        return self.journal.body_size(job) if body is NOT_IN_MEMORY else len(body)

    def tube(self, name: str) -> Tube:
        tube = self.tubes.get(name)
        if tube is None:
            tube = self.tubes.add(name)
            self.set_policy(tube, self.policy_of(name))
            self.cost += NEW_TUBE_COST
        return tube

    def set_policy(self, tube: Tube, policy: Policy, now: int = 0) -> None:
        """Let a tube demand this of its jobs. The present matters only to a tube that has had another policy."""
        tube.set_policy(policy)
        throttle = tube.throttle
        if policy.interval or policy.max_reserved:
            if throttle is None:
                throttle = tube.throttle = Throttle(tube, self.wheel)
            throttle.follow(policy, now)
        elif throttle is not None:
            throttle.detach()

    def drop_unneeded(self, tube: Tube) -> None:
        throttle = tube.throttle
        if throttle is not None and self.keeps_pace(tube, throttle):
            return
        if self.tubes.drop_unneeded(tube):
            if isinstance(tube.ready, FairHeap):
                tube.ready = JobHeap()  # each refers to the other
            if tube.is_linked():
                self.wheel.remove(tube)
            if throttle is not None:
                throttle.detach()

    def keeps_pace(self, tube: Tube, throttle: Throttle) -> bool:
        """Whether a tube has to stay because of its throttle alone, which says later that it need not."""
        return tube is not self.tubes.default and not tube.is_needed() and throttle.keeps_tube()

    def find(self, job_id: int) -> Job | None:
        job = self.jobs.get(job_id)
        if job is not None and job.tube.is_cleared(job):
            return None
        return job

    def find_keyed(self, tube: Tube, key: str) -> Job | None:
        holder = self.holder(tube, key)
        return holder if isinstance(holder, Job) else None

    def holder(self, tube: Tube, key: str) -> Holder | None:
        """The job with this key, or the held key."""
        keys = tube.keys
        if keys is None:
            return None
        job = keys.get(key)
        if job is not None and tube.is_cleared(job):
            return None
        return job

    def first_delayed(self, tube: Tube) -> Job | None:
        jobs = tube.delayed.jobs
        first = jobs[0] if jobs else None
        if tube.timed is None:
            return first
        other = tube.timed.jobs[0]
        if first is None:
            return other
        deadline = other.deadline - self.wall.offset
        if deadline < first.deadline or (deadline == first.deadline and other.id < first.id):
            return other
        return first

    def first_of(self, tube: Tube, state: int) -> Job | None:
        """The first job of a tube in one state, as peek-ready, peek-delayed and peek-buried order them."""
        if state == READY:
            return tube.ready.first()
        if state == DELAYED:
            return self.first_delayed(tube)
        job = tube.buried.after
        return job if isinstance(job, Job) else None

    def time_wall_clock(self) -> None:
        """Let the wall clock be the timer of its first job, and be looked at now and then, if it has any."""
        wall = self.wall
        first = wall.first()
        if first is None:
            if wall.is_linked():
                self.wheel.remove(wall)
            if wall.check_timer.is_linked():
                self.wheel.remove(wall.check_timer)
            return
        deadline = first.deadline - wall.offset
        if not wall.is_linked() or wall.deadline != deadline:
            self.wheel.set(wall, deadline)
