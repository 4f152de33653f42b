"""What a journal tells the broker at the start: the changes that it has kept, in the order in which they happened.

The jobs are made at once, and changed in place, so that the live ones are all that memory holds. In which queue they
stand is decided when all has been told (`Broker.restore`). Must never know how a journal keeps them.

A clear is counted, and looks at the jobs that it spares only: each job knows (as its `sort_key`) how many clears of its
tube there were when it was last told whole, or spared. Those that there have been more of since are dropped by
`finish`, all at once.
"""

from __future__ import annotations

from beanstalk_server.queue.job import BURIED, DELAYED, NO_EXTRAS, Job, stored_time
from beanstalk_server.queue.table import JobTable
from beanstalk_server.queue.tube import Tube


class Replay:
    """The jobs of before.

    All times are wall clock, in nanoseconds since 1970. A `deadline` is when a delayed job is due; of a buried job it
    is its number in the order in which jobs were buried; in the other states it means nothing.

    Within one boot of the machine, the server's clock counts: where a journal tells of its clocks, a step of the wall
    clock moves all times along that were told before. That is one sum, `shift`: times are kept less what it is when
    they are told, and `finish` adds what it is then.

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
        self.boot = b""  # whose clocks were told last
        self.told_offset = 0  # between those
        self.shift = 0  # by how much the wall clock was set, as far as it is known
        self.last_id = 0

    def put(
        self,
        number: int,
        tube_name: str,
        key: str,
        state: int,
        priority: int,
        delay: int,
        ttr: int,
        body: bytes,
        created_at: int,
        deadline: int,
        reserves: int,
        timeouts: int,
        releases: int,
        buries: int,
        kicks: int,
    ) -> Job:
        """A job as it is, whatever was told of one with this id before; the state is READY, DELAYED or BURIED."""
        tube = self.tubes.get(tube_name)
        if tube is None:
            tube = self.tubes[tube_name] = Tube(tube_name, 0)
        job = Job(number, priority, delay, ttr, body, tube, created_at - self.shift)
        job.key = key
        job.sort_key = tube.clears
        self._set(job, state, deadline, reserves, timeouts, releases, buries, kicks)
        self.jobs.add(job)
        if number > self.last_id:
            self.last_id = number
        return job

    def change(
        self,
        number: int,
        state: int,
        priority: int,
        delay: int,
        deadline: int,
        reserves: int,
        timeouts: int,
        releases: int,
        buries: int,
        kicks: int,
    ) -> None:
        """What is new of a job; nothing, when there is no such job any more."""
        job = self.jobs.get(number)
        if job is None:
            return
        job.priority = priority
        job.delay = delay
        self._set(job, state, deadline, reserves, timeouts, releases, buries, kicks)

    def delete(self, number: int) -> None:
        """A job is gone; nothing, when there is no such job."""
        self.jobs.remove(number)

    def clear(self, tube_name: str, reserved_ids: list[int]) -> None:
        """All jobs of a tube but these are gone."""
        tube = self.tubes.get(tube_name)
        if tube is None:
            return
        self.has_clears = True
        tube.clears += 1
        for number in reserved_ids:
            job = self.jobs.get(number)
            if job is not None and job.tube is tube:
                job.sort_key = tube.clears

    def clock(self, clock_offset: int, boot: bytes) -> None:
        """The clocks, from here on: wall clock less the server's clock, and the boot of the machine."""
        if boot == self.boot:
            self.shift += clock_offset - self.told_offset
        self.told_offset = clock_offset
        self.boot = boot

    def finish(self, boot: bytes) -> None:
        """All has been told.

        Args:
            boot: the present one.
        """
        self.clock(self.clock_offset, boot)
        if self.shift:
            for job in self.jobs.values():
                job.created_at = stored_time(job.created_at, self.shift)
                if job.state == DELAYED:
                    job.deadline = stored_time(job.deadline, self.shift)
            self.shift = 0
        if self.has_clears:
            for number in [job.id for job in self.jobs.values() if job.sort_key != job.tube.clears]:
                self.jobs.remove(number)
            self.has_clears = False

    def give_up_shared_keys(self) -> list[tuple[Job, str, Job]]:
        """See to it that a key names one job of a tube: of two, the one with the higher id keeps it.

        Returns:
            Each job that has lost its key, that key, and a job of a higher id that it was found with.
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

    def _set(
        self,
        job: Job,
        state: int,
        deadline: int,
        reserves: int,
        timeouts: int,
        releases: int,
        buries: int,
        kicks: int,
    ) -> None:
        """What is told of a job each time."""
        job.state = state
        job.deadline = deadline - self.shift if state == DELAYED else 0
        job.reserves = reserves
        if timeouts or releases or buries or kicks or state == BURIED or job.extras is not NO_EXTRAS:
            extras = job.own_extras()
            extras.timeouts = timeouts
            extras.releases = releases
            extras.buries = buries
            extras.kicks = kicks
            extras.bury_sequence = deadline if state == BURIED else 0
