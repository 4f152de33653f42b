"""Lifetimes: how long a job may be ready, how long its key stays taken after it, and what the journal is told of a job.

What the job's producer has demanded wins over the policy of its tube. What becomes of a job whose time is over is in
states.py.
"""

from __future__ import annotations

from beanstalk_server.queue.groups import Group, Groups
from beanstalk_server.queue.interface import Queue
from beanstalk_server.queue.job import NEVER, NOT_IN_MEMORY, HeldKey, Holder, Job, Terms
from beanstalk_server.queue.journal import ALL, NONE, Journal
from beanstalk_server.queue.memory import Memory
from beanstalk_server.queue.policy import Counters
from beanstalk_server.queue.table import IdTable, KeyTable
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import Slot, Wheel


class Lifetimes(Queue):
    """All jobs and held keys, their timers, and the journal that is told what becomes of them.

    Args:
        journal, now, tick, max_memory, stride, offset: as in Broker.
    """

    __slots__ = (
        "counters",
        "groups",
        "halted",
        "held",
        "jobs",
        "journal",
        "memory",
        "records",
        "suspended",
        "suspended_deletions",
        "wheel",
    )

    def __init__(self, journal: Journal, now: int, tick: int, max_memory: int, stride: int, offset: int) -> None:
        super().__init__()
        self.journal = journal
        self.records = journal.keeps  # else there is nobody to record anything for
        self.wheel = Wheel(now, tick)
        self.jobs: IdTable[Job] = IdTable(stride, offset)
        self.held: IdTable[HeldKey] = IdTable(stride, offset)
        journal.live = self.jobs
        journal.held = self.held
        self.groups = Groups(stride, offset)
        journal.groups = self.groups.by_id
        self.memory = journal.memory = Memory(max_memory)
        self.counters = Counters()  # what policies have done, also in tubes that have none: a job may have terms
        self.halted = False
        self.suspended = Slot(-1, 0)  # timers that are due, and go on when the journal admits everything again
        self.suspended_deletions = Slot(-1, 0)  # likewise, when it admits deletions again

    # The journal

    def record_put(self, job: Job, delay: int, now: int) -> bool:
        if delay:
            if job.deadline != NEVER:  # else it waits for a group
                job.deadline = now + delay
        elif job.deadline != NEVER:
            self.note_ready_since(job, now)
        if self.records:
            if not self.journal.put(job):
                return False
            self.last_lsn += 1
        return True

    def record_batch(self, jobs: list[Job], delay: int, now: int) -> bool:
        """Record new jobs of which nothing special is demanded, all or none."""
        for job in jobs:
            if delay:
                job.deadline = now + delay
            else:
                self.note_ready_since(job, now)
        if self.records:
            if not self.journal.put_batch(jobs):
                return False
            self.last_lsn += len(jobs)
        return True

    def record_change(self, job: Job) -> None:
        if self.records:
            self.last_lsn += 1
            self.journal.change(job)

    def record_hold(self, held: HeldKey) -> None:
        if self.records:
            self.last_lsn += 1
            self.journal.hold(held)

    def record_delete(self, job: Holder) -> None:
        if self.records:
            self.last_lsn += 1
            self.journal.delete(job)

    def record_group(self, group: Group) -> bool:
        if self.records:
            if not self.journal.begin_group(group):
                return False
            self.last_lsn += 1
        return True

    def record_leave(self, group: Group, end: int, job: Job | None) -> None:
        """Record that a member leaves a group; and is deleted, if it is given."""
        if self.records:
            self.last_lsn += 1
            self.journal.leave_group(group, end, job)

    def record_clear(self, tube: Tube) -> bool:
        if not self.records:
            return True
        if not self.journal.clear(tube.name, [job.id for job in tube.reserved]):
            return False
        self.last_lsn += 1
        return True

    def body_size(self, job: Job) -> int:
        """Bytes, also of a body that is not in memory. The journal knows it until the job is deleted or replaced."""
        body = job.body
        return self.journal.body_size(job) if body is NOT_IN_MEMORY else len(body)

    def set_admission(self, admits: int) -> None:
        """Set what the journal admits from now on: ALL, DELETIONS or NONE. What is suspended goes on if it may."""
        self.admits = admits
        if admits == ALL:
            self.wheel.make_due(self.suspended)
        if admits != NONE:
            self.wheel.make_due(self.suspended_deletions)

    def has_suspended(self) -> bool:
        """Whether something that is due waits until the journal admits it."""
        return not (self.suspended.is_empty() and self.suspended_deletions.is_empty())

    def note_ready_since(self, job: Job, moment: int) -> None:
        """Note since when a job is ready that is about to be: 0 for the moment at which it will be."""
        extras = job.extras
        if isinstance(extras, Terms):
            extras.ready_since = moment
        elif moment and job.tube.policy.ttl:
            self.memory.give_terms(job).ready_since = moment

    def review_expiry(self, job: Job, now: int) -> None:
        """Let a ready job expire when its time to live is over, if it has one."""
        terms = job.terms()
        ttl = job.ttl()
        if terms is None:
            if not ttl:
                return
            terms = self.memory.give_terms(job)
        if not terms.ready_since:
            terms.ready_since = now
        if not ttl:
            self.end_expiry(job)
            return
        expiry = terms.expiry
        if expiry is None:
            expiry = self.memory.give_expiry(job, terms)
        deadline = terms.ready_since + ttl
        if not expiry.is_linked() or expiry.deadline != deadline:
            self.wheel.set(expiry, deadline)

    def end_expiry(self, job: Job) -> None:
        extras = job.extras
        if isinstance(extras, Terms):
            expiry = extras.expiry
            if expiry is not None:
                self.memory.take_expiry(extras)
                if expiry.is_linked():
                    self.wheel.remove(expiry)

    def record_stay(self, job: Job) -> None:
        """Record that a job which can expire has become reserved or ready again, or a restart would count otherwise.

        While the journal does not admit it, it is left out: so much may happen that the journal would run out of room.
        """
        if isinstance(job.extras, Terms) and self.admits == ALL and not self.halted and job.ttl():
            self.record_change(job)

    def add_key(self, tube: Tube, job: Holder) -> None:
        if tube.keys is None:
            tube.keys = KeyTable()
        tube.keys.add(job)

    def hold_key(self, held: HeldKey, free_at: int) -> None:
        """Keep a key taken that is in the table of held keys."""
        tube = held.tube
        self.memory.add_held(held)
        tube.add_held(held)
        self.add_key(tube, held)
        self.wheel.set(held, free_at)
