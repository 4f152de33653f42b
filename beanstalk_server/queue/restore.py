"""Restores jobs at the start: those that the journal has kept enter their states again."""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.job import BURIED, DELAYED, SINCE_UNKNOWN, Job
from beanstalk_server.queue.journal import JournalError
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.states import States
from beanstalk_server.queue.table import ForeignJobError

FOREIGN: Final = 65
"""The exit status where a journal has jobs of another shard (EX_DATAERR of sysexits.h)."""


def _bury_order(job: Job) -> tuple[int, int]:
    return job.extras.bury_sequence, job.id


def _job_id(job: Job) -> int:
    return job.id


def restore(queue: States, clock_offset: int, now: int) -> int:
    """Let the jobs and held keys of the queue's journal enter their states; return the last id that it knows.

    What came due while no server was running is due now.

    Args:
        clock_offset: the wall clock minus the clock of `now`, in nanoseconds.

    Raises:
        JournalError, RestoreInterruptedError: as `Broker.restore` does.
    """
    replay = Replay(queue.jobs, clock_offset, queue.held)
    try:
        queue.journal.restore(replay)
    except ForeignJobError as error:
        raise JournalError(f"the journal is not that of this shard: {error}", FOREIGN) from error
    buried: list[Job] = []
    letters: list[Job] = []
    for job in queue.jobs.values():
        job.tube = queue.tube(job.tube.name)
        job.created_at -= clock_offset
        job.page = SINCE_UNKNOWN
        terms = job.terms()
        if terms is not None and terms.ready_since:
            terms.ready_since -= clock_offset
        if terms is not None and terms.origin:
            letters.append(job)
        queue.memory.add_job(job)
        job.tube.bytes += queue.body_size(job)
        if job.key:
            queue.add_key(job.tube, job)
        if job.state == BURIED:
            buried.append(job)
        elif job.is_timed():
            if job.deadline - clock_offset <= now:
                queue.note_ready_since(job, job.deadline - clock_offset)
            queue.enter_at(job, now)
        elif job.state == DELAYED and job.deadline - clock_offset > now:
            queue.enter_delayed(job, job.deadline - clock_offset)
        else:
            if job.state == DELAYED:
                queue.note_ready_since(job, job.deadline - clock_offset)
            queue.enter_ready(job, now)
    buried.sort(key=_bury_order)
    for job in buried:
        queue.enter_buried(job, job.extras.bury_sequence)
    if buried:
        queue.bury_sequence = buried[-1].extras.bury_sequence
    for held in queue.held.values():
        held.tube = queue.tube(held.tube.name)
        held.created_at -= clock_offset
        queue.hold_key(held, held.deadline - clock_offset)
    letters.sort(key=_job_id)  # nothing says in which order they came
    names: dict[str, str] = {}  # of origins: one object for all that have come from the same tube
    for job in letters:
        terms = job.own_terms()
        terms.origin = names.setdefault(terms.origin, terms.origin)
        job.tube.add_letter(job, terms)
    return replay.last_id
