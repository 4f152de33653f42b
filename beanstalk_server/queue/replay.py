"""Replay: turns what a journal has kept into jobs, at the start.

The journal calls a method for each change, in the order in which the changes happened. Jobs are made and changed in
place, so that memory holds only live ones. `Broker.restore` puts them into their queues at the end. Must never know how
a journal keeps its changes.

The time that a clear takes does not depend on how many jobs it deletes: it gives the tube's name to a new tube, and
moves the reserved jobs there. `finish` drops the jobs of all tubes that have lost their name.
"""

from __future__ import annotations

from beanstalk_server.queue.job import BURIED, DELAYED, NO_EXTRAS, Job
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.stored_job import StoredChange, StoredJob, stored_moment
from beanstalk_server.queue.table import JobTable
from beanstalk_server.queue.tube import Tube


class Replay:
    """The jobs that were live when the last process ended.

    All moments are those of the wall clock, in nanoseconds since 1970. But a delay lasts as long as the server's clock
    says, even if somebody sets the wall clock meanwhile. So when the journal reports a step of the wall clock within
    one boot of the machine, all moments before move with it. `shift` is the sum of these steps: a moment is kept minus
    the shift at that time, and `finish` adds the final shift.

    Args:
        jobs: the table to put them into.
        clock_offset: the wall clock minus the server's clock, at present, in nanoseconds.
    """

    __slots__ = ("boot", "clock_offset", "has_clears", "jobs", "last_id", "last_offset", "shift", "tubes")

    def __init__(self, jobs: JobTable, clock_offset: int = 0) -> None:
        self.jobs = jobs
        self.clock_offset = clock_offset
        self.tubes: dict[str, Tube] = {}
        self.has_clears = False
        self.boot = b""  # as last given to `clock`
        self.last_offset = 0  # as last given to `clock`
        self.shift = 0
        self.last_id = 0

    def put(self, stored: StoredJob) -> Job:
        """Make a job from its stored form. It replaces the job with its id. The caller may use `stored` again."""
        tube = self.tubes.get(stored.tube)
        if tube is None:
            tube = self.tubes[stored.tube] = Tube(stored.tube, 0)
        created_at = stored.created_at - self.shift
        job = Job(stored.id, stored.priority, stored.delay, stored.ttr, stored.body, tube, created_at)
        job.key = stored.key
        self._set(job, stored)
        self.jobs.add(job)
        if job.id > self.last_id:
            self.last_id = job.id
        return job

    def change(self, stored: StoredChange) -> None:
        """Change a job. Does nothing if the job is gone."""
        job = self.jobs.get(stored.id)
        if job is None:
            return
        job.priority = stored.priority
        job.delay = stored.delay
        self._set(job, stored)

    def _set(self, job: Job, stored: StoredChange) -> None:
        """Set the fields that a put and a change have in common, except those that the constructor takes."""
        state = stored.state
        job.state = state
        job.deadline = stored.deadline - self.shift if state == DELAYED else 0
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

    def delete(self, job_id: int) -> None:
        """Delete a job. Does nothing if the job is gone."""
        self.jobs.remove(job_id)

    def clear(self, tube_name: str, reserved_ids: list[int]) -> None:
        """Delete all jobs of a tube except these."""
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
                job.created_at = stored_moment(job.created_at, self.shift)
                if job.state == DELAYED:
                    job.deadline = stored_moment(job.deadline, self.shift)
            self.shift = 0
        if self.has_clears:
            for job_id in [job.id for job in self.jobs.values() if self.tubes[job.tube.name] is not job.tube]:
                self.jobs.remove(job_id)
            self.has_clears = False

    def give_up_shared_keys(self) -> list[tuple[Job, str, Job]]:
        """Let each key name only one job of its tube: the one with the highest id keeps it.

        Returns:
            For each job that has lost its key: the job, the key, and a job with a higher id that has the key too.
        """
        shared: list[tuple[Job, str, Job]] = []
        holders: dict[tuple[str, str], Job] = {}
        for job in self.jobs.values():
            if job.key:
                name = (job.tube.name, job.key)
                holder = holders.get(name)
                if holder is None:
                    holders[name] = job
                elif holder.id < job.id:
                    holders[name] = job
                    shared.append((holder, job.key, job))
                else:
                    shared.append((job, job.key, holder))
        for job, _, _ in shared:
            job.key = ""
        return shared
