"""From what a journal has kept to the broker's jobs, at the start.

The journal tells its changes in the order in which they happened. The jobs are made at once, and changed in place, so
that memory holds the live ones only. Which queue each belongs in is decided when everything has been told
(`Broker.restore`). Must never know how a journal keeps them.

A clear costs nothing for each job that it ends: it gives the tube's name to a new tube, and takes those that it spares
along. `finish` drops the jobs of all tubes that have lost their name.
"""

from __future__ import annotations

from beanstalk_server.queue.job import BURIED, DELAYED, NO_EXTRAS, Job
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.stored_job import StoredChange, StoredJob, stored_moment
from beanstalk_server.queue.table import JobTable
from beanstalk_server.queue.tube import Tube


class Replay:
    """The jobs that were live when the last process ended.

    All moments are wall clock, in nanoseconds since 1970. Within one boot of the machine, though, the server's clock
    counts: where a journal tells of its clocks, a step of the wall clock moves all moments that were told before. The
    sum of these steps is `shift`: a moment is kept less the shift at that time, and `finish` adds the shift at the end.

    Args:
        jobs: where they are put.
        clock_offset: wall clock less the server's clock, at present.
    """

    __slots__ = ("boot", "clock_offset", "has_clears", "jobs", "last_id", "shift", "told_offset", "tubes")

    def __init__(self, jobs: JobTable, clock_offset: int = 0) -> None:
        self.jobs = jobs
        self.clock_offset = clock_offset
        self.tubes: dict[str, Tube] = {}
        self.has_clears = False
        self.boot = b""  # the boot whose clocks were told last
        self.told_offset = 0  # between those clocks
        self.shift = 0
        self.last_id = 0

    def put(self, stored: StoredJob) -> Job:
        """Make a job as it is stored, whatever was told before of one with this id. The record may be used again."""
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
        """Take in what is new of a job; nothing, when there is no such job any more."""
        job = self.jobs.get(stored.id)
        if job is None:
            return
        job.priority = stored.priority
        job.delay = stored.delay
        self._set(job, stored)

    def _set(self, job: Job, stored: StoredChange) -> None:
        """Take in what a put and a change tell alike, but for what a job is made with."""
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
        """A job is gone; nothing, when there is no such job."""
        self.jobs.remove(job_id)

    def clear(self, tube_name: str, reserved_ids: list[int]) -> None:
        """All jobs of a tube are gone but these."""
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
        """The clocks, from here on: wall clock less the server's clock, and the boot of the machine."""
        if boot == self.boot:
            self.shift += clock_offset - self.told_offset
        self.told_offset = clock_offset
        self.boot = boot

    def finish(self, boot: bytes) -> None:
        """Everything has been told.

        Args:
            boot: the present one.
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
        """Make each key name one job of its tube: of two, the one with the higher id keeps it.

        Returns:
            Each job that has lost its key, that key, and a job with a higher id that has it too.
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
