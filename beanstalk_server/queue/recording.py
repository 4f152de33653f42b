"""What the journal records of a job, how long a job may be ready, and how long its key stays taken after it.

What the job's producer has demanded wins over the policy of its tube. What becomes of a job whose time is over is in
timers.py.
"""

from __future__ import annotations

from beanstalk_server.queue.groups import Group
from beanstalk_server.queue.job import NEVER, HeldKey, Holder, Job, Terms, Token
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.state import QueueState
from beanstalk_server.queue.table import KeyTable
from beanstalk_server.queue.tube import Tube


def record_put(queue: QueueState, job: Job, delay: int, now: int) -> bool:
    if delay:
        if job.deadline != NEVER:  # else it waits for a group
            job.deadline = now + delay
    elif job.deadline != NEVER:
        note_ready_since(queue, job, now)
    if queue.once is not None:
        return record_once(queue, job, queue.once)
    if queue.records:
        if not queue.journal.put(job):
            return False
        queue.last_lsn += 1
    return True


def record_once(queue: QueueState, job: Job, token: Token) -> bool:
    """Record a job that is about to be put together with its token, which is taken from now on."""
    token.id = queue.next_id
    token.job_id = job.id
    if queue.records:
        if not queue.journal.put_once(job, token):
            return False
        queue.last_lsn += 1
        queue.once_lsn = queue.last_lsn
    queue.next_id += queue.stride
    queue.held.add(token)
    hold_key(queue, token, token.deadline)
    return True


def record_batch(queue: QueueState, jobs: list[Job], delay: int, now: int) -> bool:
    """Record new jobs of which nothing special is demanded, all or none."""
    for job in jobs:
        if delay:
            job.deadline = now + delay
        else:
            note_ready_since(queue, job, now)
    if queue.records:
        if not queue.journal.put_batch(jobs):
            return False
        queue.last_lsn += len(jobs)
    return True


def record_change(queue: QueueState, job: Job) -> None:
    if queue.records:
        queue.last_lsn += 1
        queue.journal.change(job)


def record_hold(queue: QueueState, held: HeldKey) -> None:
    if queue.records:
        queue.last_lsn += 1
        queue.journal.hold(held)


def record_delete(queue: QueueState, job: Holder) -> None:
    if queue.records:
        queue.last_lsn += 1
        queue.journal.delete(job)


def record_pause(queue: QueueState, tube: Tube, end: int, now: int) -> bool:
    """Record the pause of a tube instead of the one before; return False if there is no room for the record.

    Args:
        end: when the pause ends, in nanoseconds; 0 if the tube is not paused any more.
    """
    before = tube.pause_record
    if end:
        pause = HeldKey(queue.next_id, "", tube, now)
        pause.deadline = end
        if before is None and not queue.memory.admits_held(pause):
            return False
        if not queue.journal.pause(pause):
            return False
        queue.last_lsn += 1
        queue.next_id += queue.stride
        tube.pause_record = pause
        queue.held.add(pause)
        count_pause(queue, pause)
    else:
        tube.pause_record = None
    if before is None:
        return True
    if queue.admits == NONE:
        queue.suspended_deletions.append(before)
    else:
        forget_pause(queue, before)
    return True


def count_pause(queue: QueueState, pause: HeldKey) -> None:
    queue.pauses += 1
    queue.memory.add_held(pause)


def forget_pause(queue: QueueState, pause: HeldKey) -> None:
    """Record that a pause is over, and drop it."""
    record_delete(queue, pause)
    queue.held.remove(pause.id)
    queue.memory.remove_held(pause)
    queue.pauses -= 1


def record_group(queue: QueueState, group: Group) -> bool:
    if queue.records:
        if not queue.journal.begin_group(group):
            return False
        queue.last_lsn += 1
    return True


def record_leave(queue: QueueState, group: Group, end: int, job: Job | None) -> None:
    """Record that a member leaves a group; and is deleted, if it is given."""
    if queue.records:
        queue.last_lsn += 1
        queue.journal.leave_group(group, end, job)


def record_clear(queue: QueueState, tube: Tube) -> bool:
    if not queue.records:
        return True
    if not queue.journal.clear(tube.name, [job.id for job in tube.reserved]):
        return False
    queue.last_lsn += 1
    return True


def note_ready_since(queue: QueueState, job: Job, moment: int) -> None:
    """Note since when a job is ready that is about to be: 0 for the moment at which it will be."""
    extras = job.extras
    if isinstance(extras, Terms):
        extras.ready_since = moment
    elif moment and (job.tube.policy.ttl or job.needs_since()):
        queue.memory.give_terms(job).ready_since = moment


def review_expiry(queue: QueueState, job: Job, now: int) -> None:
    """Let a ready job expire when its time to live is over, if it has one."""
    terms = job.terms()
    ttl = job.ttl()
    if terms is None:
        if not ttl and not job.needs_since():
            return
        terms = queue.memory.give_terms(job)
    if not terms.ready_since:
        terms.ready_since = now
    if not ttl:
        end_expiry(queue, job)
        return
    expiry = terms.expiry
    if expiry is None:
        expiry = queue.memory.give_expiry(job, terms)
    deadline = terms.ready_since + ttl
    if not expiry.is_linked() or expiry.deadline != deadline:
        queue.wheel.set(expiry, deadline)


def end_expiry(queue: QueueState, job: Job) -> None:
    extras = job.extras
    if isinstance(extras, Terms):
        expiry = extras.expiry
        if expiry is not None:
            queue.memory.take_expiry(extras)
            if expiry.is_linked():
                queue.wheel.remove(expiry)


def record_stay(queue: QueueState, job: Job) -> None:
    """Record that a job which can expire has become reserved or ready again, or a restart would count otherwise.

    While the journal does not admit it, it is left out: so much may happen that the journal would run out of room.
    """
    if isinstance(job.extras, Terms) and queue.admits == ALL and not queue.halted and job.ttl():
        record_change(queue, job)


def add_key(tube: Tube, job: Holder) -> None:
    if tube.keys is None:
        tube.keys = KeyTable()
    tube.keys.add(job)


def hold_key(queue: QueueState, held: HeldKey, free_at: int) -> None:
    """Keep a key taken that is in the table of held keys."""
    tube = held.tube
    queue.memory.add_held(held)
    tube.add_held(held)
    add_key(tube, held)
    queue.wheel.set(held, free_at)
