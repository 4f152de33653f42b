"""Puts the jobs that replay has read into their tubes and states, when a server starts."""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue import transitions
from beanstalk_server.queue.bulk import BulkRecord
from beanstalk_server.queue.groups import waits
from beanstalk_server.queue.job import BURIED, DELAYED, SINCE_UNKNOWN, HeldKey, Job
from beanstalk_server.queue.journal import JournalError
from beanstalk_server.queue.membership import end_group, joins
from beanstalk_server.queue.recording import add_key, count_pause, hold_key, note_ready_since
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.state import QueueState
from beanstalk_server.queue.table import ForeignJobError
from beanstalk_server.queue.wheel import END_OF_TIME, OVERDUE

FOREIGN: Final = 65
"""The exit status where a journal has jobs of another shard (EX_DATAERR of sysexits.h)."""


def _bury_order(job: Job) -> tuple[int, int]:
    return job.extras.bury_sequence, job.id


def _job_id(job: Job) -> int:
    return job.id


def restore(queue: QueueState, clock_offset: int, now: int) -> int:
    """Let the jobs and held keys of the queue's journal enter their states; return the last id that it knows.

    What came due while no server was running is due now.

    Args:
        clock_offset: the wall clock minus the clock of `now`, in nanoseconds.

    Raises:
        JournalError, RestoreInterruptedError: as `Broker.restore` does.
    """
    # Bodies that have all been read are not packed: what they leave between the jobs does not go back to the system.
    memory = queue.memory
    packed_from, memory.packed_from = memory.packed_from, END_OF_TIME
    replay = Replay(queue.jobs, clock_offset, queue.held, queue.groups.by_id)
    try:
        queue.journal.restore(replay)
    except ForeignJobError as error:
        raise JournalError(f"the journal belongs to another shard: {error}", FOREIGN) from error
    buried: list[Job] = []
    letters: list[Job] = []
    waiting: list[Job] = []
    members: list[Job] = []
    unrecorded: list[Job] = []  # they can expire, and are ready since now
    named = tube = queue.tubes.default  # a tube of the replay, and that of its name: the next job's are often the same
    for job in queue.jobs.values():
        if job.tube is not named:
            named = job.tube
            tube = queue.tube(named.name)
        job.tube = tube
        job.created_at -= clock_offset
        terms = job.terms()
        if terms is not None:
            if terms.ready_since:
                terms.ready_since -= clock_offset
            if terms.origin:
                letters.append(job)
            if terms.labels is not None and joins(job):
                members.append(job)
            transitions.take_limit(queue, job)
        queue.memory.add_job(job)
        tube.bytes += queue.body_size(job)
        if job.key:
            add_key(tube, job)
        if job.state == BURIED:
            buried.append(job)
        elif waits(job):
            waiting.append(job)
        elif job.is_timed():
            if job.deadline - clock_offset <= now:
                note_ready_since(queue, job, job.deadline - clock_offset)
            transitions.enter_at(queue, job, now)
        elif job.state == DELAYED and job.deadline - clock_offset > now:
            transitions.enter_delayed(queue, job, job.deadline - clock_offset, now)
        else:
            if job.state == DELAYED:
                note_ready_since(queue, job, job.deadline - clock_offset)
            elif (terms is None or not terms.ready_since) and job.ttl():
                unrecorded.append(job)
            transitions.enter_ready(queue, job, now)
        job.page = SINCE_UNKNOWN  # clients may have had it; last, or the job would get terms when it becomes ready
    if unrecorded:
        queue.wheel.set(BulkRecord(unrecorded), OVERDUE)
    buried.sort(key=_bury_order)
    for job in buried:
        transitions.enter_buried(queue, job, job.extras.bury_sequence)
    for held in queue.held.values():
        held.created_at -= clock_offset
        deadline = held.deadline - clock_offset
        if held.key:
            held.tube = queue.tube(held.tube.name)
            hold_key(queue, held, deadline)
        else:
            _restore_pause(queue, held, deadline, now)
    _restore_groups(queue, members, waiting, clock_offset, now)
    letters.sort(key=_job_id)  # nothing says in which order they came
    names: dict[str, str] = {}  # of origins: one object for all that have come from the same tube
    for job in letters:
        terms = job.own_terms()
        terms.origin = names.setdefault(terms.origin, terms.origin)
        job.tube.add_letter(job, terms)
    memory.packed_from = packed_from
    return replay.last_id


def _restore_pause(queue: QueueState, pause: HeldKey, deadline: int, now: int) -> None:
    """Pause a tube as recorded, unless that pause is over or a later one is recorded.

    Args:
        deadline: when the pause ends, in nanoseconds.
    """
    count_pause(queue, pause)
    pause.deadline = deadline
    if deadline <= now:
        queue.wheel.set(pause, deadline)
        return
    tube = pause.tube = queue.tube(pause.tube.name)
    before = tube.pause_record
    if before is not None and before.id > pause.id:
        queue.wheel.set(pause, OVERDUE)
        return
    if before is not None:
        queue.wheel.set(before, OVERDUE)
    tube.pause_record = pause
    tube.pause = deadline - pause.created_at
    tube.set_blocked()
    queue.wheel.set(tube, deadline)


def _restore_groups(queue: QueueState, members: list[Job], waiting: list[Job], clock_offset: int, now: int) -> None:
    """Let groups have their members, and jobs wait for them; those that have no member left have ended.

    A group of which the journal says nothing, because it does not keep groups or has lost it, has begun if it has
    members; else it never was.
    """
    groups = queue.groups
    for each in groups.by_id.values():
        each.created_at -= clock_offset
        groups.add(each)
        queue.memory.add_group(each.key)
    for job in members:
        labels = job.labels()
        assert labels is not None, "its group is one of them"
        joined = groups.get(labels.group)
        if joined is None:
            joined = groups.add_unrecorded(labels.group, job.created_at)
            queue.memory.add_group(labels.group)
        groups.join(joined, job, labels)
    waiting.sort(key=_job_id)  # nothing says in which order they came
    for job in waiting:
        labels = job.labels()
        group = None if labels is None else groups.get(labels.after)
        if labels is None or not labels.after:
            transitions.enter_ready(queue, job, now)
        elif (group is not None and group.has_begun) or labels.after_waits:
            transitions.enter_waiting(queue, job)
        else:
            transitions.enter_released(queue, job)
    for each in groups.values():
        if each.has_begun and not each.members:
            end_group(queue, each)
