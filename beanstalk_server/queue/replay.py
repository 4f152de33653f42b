"""Turns the changes that a journal has kept into jobs, when a server starts; then restore.py puts them into states.

The journal calls a method for each change, in the order in which the changes happened. Jobs are made and changed in
place, so that memory holds only live ones.

The time that a clear takes does not depend on how many jobs it deletes: it gives the tube's name to a new tube, and
moves the reserved jobs there. `finish` drops the jobs of all tubes that have lost their name.
"""

from __future__ import annotations

from collections.abc import Iterator

from beanstalk_server.queue.groups import END_CANCELLED, Group
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    GROUP,
    HELD,
    NEVER,
    NO_EXTRAS,
    READY,
    HeldKey,
    Holder,
    Job,
    Terms,
    Token,
)
from beanstalk_server.queue.policy import Labels, full_name_of_limit
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.stored_job import LAST_MOMENT, StoredJob, stored_moment
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.tube import Tube


class Replay:
    """The jobs that were live when the last process ended.

    All moments are those of the wall clock, in nanoseconds since 1970. But a delay lasts as long as the server's clock
    says, even if the wall clock is set meanwhile. So when the journal reports a step of the wall clock within
    one boot of the machine, all moments before move with it. `shift` is the sum of these steps: a moment is kept minus
    the shift at that time, and `finish` adds the final shift. Only when a job is due by the wall clock (`Terms.at`)
    stays what it is, however that clock is set.

    Held keys and groups are in tables of their own, as in the broker. Who is a member of a group, its job says; the
    group only counts those that have left it. A job that waits for a group keeps the deadline NEVER.

    Args:
        jobs: the table to put them into.
        clock_offset: the wall clock minus the server's clock, at present, in nanoseconds.
        held: the table to put held keys into.
        groups: the table to put groups into.
    """

    def __init__(
        self,
        jobs: IdTable[Job],
        clock_offset: int = 0,
        held: IdTable[HeldKey] | None = None,
        groups: IdTable[Group] | None = None,
    ) -> None:
        self.jobs = jobs
        self.held: IdTable[HeldKey] = held if held is not None else IdTable(jobs.stride, jobs.offset)
        self.groups: IdTable[Group] = groups if groups is not None else IdTable(jobs.stride, jobs.offset)
        self.clock_offset = clock_offset
        self.tubes: dict[str, Tube] = {}
        self.limits: dict[str, int] = {}  # the number of each limit, as the last record says that has it
        self.renumbers = False  # jobs may have another number in their labels
        self.has_clears = False
        self.has_keys = False
        self.boot = b""  # as last given to `clock`
        self.last_offset = 0  # as last given to `clock`
        self.shift = 0
        self.last_id = 0

    def put(self, stored: StoredJob) -> Holder:
        """Make a job, a held key or a group from its stored form. It replaces the job with its id. The caller may use
        `stored` again."""
        if stored.id > self.last_id:
            self.last_id = stored.id
        if stored.state == GROUP:
            group = Group(stored.key, stored.created_at - self.shift, stored.id)
            group.has_begun = True
            group.done = stored.reserves
            group.expired = stored.timeouts
            group.cancelled = stored.releases
            group.dead = stored.buries
            self.groups.add(group)
            return group
        if stored.key:
            self.has_keys = True
        tube = self._tube(stored.tube)
        created_at = stored.created_at - self.shift
        if stored.state == HELD:
            if stored.is_token():
                held: HeldKey = Token(stored.id, stored.key, tube, created_at, stored.token_job())
            else:
                held = HeldKey(stored.id, stored.key, tube, created_at)
            self._hold(held, stored.deadline)
            return held
        job = Job(stored.id, stored.priority, stored.delay, stored.ttr, stored.body, tube, created_at)
        job.key = stored.key
        if stored.has_terms:
            terms = job.own_terms()
            terms.max_tries = stored.max_tries
            terms.backoff = stored.backoff
            terms.ttl = stored.ttl
            terms.key_hold = stored.key_hold
            if stored.has_labels():
                if stored.limit:
                    self._set_limit(full_name_of_limit(stored.limit, stored.tube), stored.limit_count)
                terms.labels = Labels(
                    share=stored.share,
                    limit=stored.limit,
                    limit_count=stored.limit_count,
                    group=stored.group,
                    after=stored.after,
                    after_waits=bool(stored.after_waits),
                )
        self._set(job, stored)
        self.jobs.add(job)
        return job

    def _hold(self, held: HeldKey, free_at: int) -> None:
        """Let a held key take the place of the job with its id."""
        held.deadline = free_at - self.shift
        self.jobs.remove(held.id)
        self.held.add(held)

    def change(self, stored: StoredJob) -> None:
        """Change a job. Does nothing if the job is gone."""
        job = self.jobs.get(stored.id)
        if job is None:
            return
        job.priority = stored.priority
        job.delay = stored.delay
        if stored.has_terms:
            labels = job.own_terms().labels  # before anything of the job changes: they note what its record has of it
            if stored.tube != job.tube.name and job.tube is self.tubes.get(job.tube.name):  # else it has been cleared
                job.tube = self._tube(stored.tube)
            if not stored.keeps_key:
                job.key = ""
            if labels is not None and labels.limit:
                name = labels.limit_in(job.tube.name)
                count = stored.limit_count or self.limits.get(name, labels.limit_count)  # older records do not have it
                labels.limit_count = count
                self._set_limit(name, count)
        if stored.state == HELD:
            self._hold(job.held_key(), stored.deadline)
        else:
            self._set(job, stored)

    def _set_limit(self, name: str, count: int) -> None:
        """Note the number of a limit, which is given by its full name."""
        if self.limits.setdefault(name, count) != count:
            self.limits[name] = count
            self.renumbers = True

    def _tube(self, name: str) -> Tube:
        tube = self.tubes.get(name)
        if tube is None:
            tube = self.tubes[name] = Tube(name, 0)
        return tube

    def _set(self, job: Job, stored: StoredJob) -> None:
        """Set the fields that a put and a change have in common, except those that the constructor takes."""
        state = stored.state
        job.state = state
        job.deadline = stored.deadline - self.shift if state == DELAYED else 0
        if stored.deadline == LAST_MOMENT and state == DELAYED:
            job.deadline = NEVER
        job.reserves = stored.reserves
        if (
            stored.timeouts
            or stored.releases
            or stored.buries
            or stored.kicks
            or state == BURIED
            or job.extras is not NO_EXTRAS
        ):
            extras = job.own_extras()
            extras.timeouts = stored.timeouts
            extras.releases = stored.releases
            extras.buries = stored.buries
            extras.kicks = stored.kicks
            extras.bury_sequence = stored.bury_sequence if state == BURIED else 0
            if stored.has_terms:
                self._set_terms(job, stored)

    def _set_terms(self, job: Job, stored: StoredJob) -> None:
        terms = job.own_terms()
        terms.tries = stored.tries
        terms.reason = stored.reason
        terms.origin = stored.origin
        terms.at = stored.at
        terms.ready_since = 0
        if stored.at:
            job.deadline = stored.at
        elif stored.state == READY and stored.ready_since:
            terms.ready_since = stored.ready_since - self.shift

    def delete(self, job_id: int) -> None:
        """Delete a job, free a held key, or forget a group. Does nothing if it is gone."""
        self.jobs.remove(job_id)
        if self.held:
            self.held.remove(job_id)
        if self.groups:
            self.groups.remove(job_id)

    def leave(self, group_id: int, end: int, job_id: int) -> None:
        """Count a member that has left a group, if the group is there.

        Args:
            end: how, one of groups.ENDS.
            job_id: that of the member, if it is deleted; else 0.
        """
        group = self.groups.get(group_id)
        if group is not None:
            group.count(end)
        if job_id:
            self.delete(job_id)

    def clear(self, tube_name: str, reserved_ids: list[int]) -> None:
        """Delete all jobs of a tube except these, and free its held keys."""
        cleared = self.tubes.get(tube_name)
        if cleared is None:
            return
        self.has_clears = True
        for ring in (cleared.buried, cleared.waiting):
            ring.before = ring.after = UNLINKED  # an empty ring refers to itself, and would never be freed
        tube = self.tubes[tube_name] = Tube(tube_name, 0)
        for job_id in reserved_ids:
            job = self.jobs.get(job_id)
            if job is not None and job.tube is cleared:
                job.tube = tube

    def clock(self, clock_offset: int, boot: bytes) -> None:
        """Note the clocks of the changes that follow.

        Args:
            clock_offset: the wall clock minus the server's clock, in nanoseconds.
            boot: identifies the boot of the machine.
        """
        if boot == self.boot:
            self.shift += clock_offset - self.last_offset
        self.last_offset = clock_offset
        self.boot = boot

    def finish(self, boot: bytes) -> None:
        """Complete the jobs, after the last change.

        Args:
            boot: the present boot of the machine.
        """
        self.clock(self.clock_offset, boot)
        if self.shift:
            for job in self.jobs.values():
                self._move_moments(job)
            for held in self.held.values():
                held.created_at = stored_moment(held.created_at, self.shift)
                held.deadline = stored_moment(held.deadline, self.shift)
            for group in self.groups.values():
                group.created_at = stored_moment(group.created_at, self.shift)
        if self.has_clears:
            groups = {group.key: group for group in self.groups.values()}
            for job in [job for job in self.jobs.values() if self._is_cleared(job)]:
                self.jobs.remove(job.id)
                labels = job.labels()
                if labels is not None and labels.group in groups and not job.own_terms().origin:
                    groups[labels.group].count(END_CANCELLED)  # the crash has come before the clear said so
            for job_id in [held.id for held in self.held.values() if held.key and self._is_cleared(held)]:
                self.held.remove(job_id)
        if self.renumbers:
            for job in self.jobs.values():
                labels = job.labels()
                if labels is not None and labels.limit:
                    labels.limit_count = self.limits[labels.limit_in(job.tube.name)]
        self.shift = 0
        self.has_clears = self.renumbers = False

    def _is_cleared(self, job: Holder) -> bool:
        return self.tubes[job.tube.name] is not job.tube

    def _move_moments(self, job: Job) -> None:
        job.created_at = stored_moment(job.created_at, self.shift)
        extras = job.extras
        terms = extras if isinstance(extras, Terms) else None
        if terms is not None and terms.ready_since:
            terms.ready_since = stored_moment(terms.ready_since, self.shift)
        if job.state == DELAYED and (terms is None or not terms.at) and job.deadline != NEVER:
            job.deadline = stored_moment(job.deadline, self.shift)

    def holders(self) -> Iterator[Holder]:
        """All that has a record; groups first, as their members' records follow theirs."""
        yield from self.groups.values()
        yield from self.jobs.values()
        yield from self.held.values()

    def give_up_shared_keys(self) -> list[tuple[Job, str, Holder]]:
        """Let each key name only one job of its tube: the one with the highest id keeps it.

        A held key that a job with a higher id has, too, is free: its time had ended when the job got the key.

        Returns:
            For each job that has lost its key: the job, the key, and a job with a higher id that has the key too.
        """
        if not self.has_keys:
            return []
        shared: list[tuple[Holder, str, Holder]] = []
        holders: dict[tuple[str, str], Holder] = {}
        for job in self.holders():
            if job.key and not isinstance(job, Group):
                name = (job.tube.name, job.key)
                holder = holders.get(name)
                if holder is None:
                    holders[name] = job
                elif holder.id < job.id:
                    holders[name] = job
                    shared.append((holder, job.key, job))
                else:
                    shared.append((job, job.key, holder))
        found: list[tuple[Job, str, Holder]] = []
        for loser, key, other in shared:
            if isinstance(loser, Job):
                loser.own_terms()  # these note what its record has of the key
                loser.key = ""
                found.append((loser, key, other))
            else:
                self.held.remove(loser.id)
        return found
