"""The transitions of jobs between states: entering, leaving, giving ready jobs to clients, and retries of failed jobs.

Only the functions here count the jobs of each state and keep them in order: those that enter or leave a state do all
that goes with it. The table of transitions is at the head of broker.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue import recording
from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.costs import COPY_SHIFT, FAILURE_COST, WAIT_SHIFT
from beanstalk_server.queue.fair_heap import FairHeap, Limit
from beanstalk_server.queue.groups import END_CANCELLED, END_DONE, END_EXPIRED, Group, waits
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    DELETED,
    NEVER,
    NOT_IN_MEMORY,
    READY,
    RESERVED,
    RUN_OUT,
    SAFETY_MARGIN,
    URGENT,
    HeldKey,
    Job,
    Terms,
)
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.membership import drop_labels, must_wait, review_group, stop_awaiting, time_groups
from beanstalk_server.queue.outcome import BURIED_INSTEAD, DEADLINE_SOON, DONE, FAILED, PENDING, Outcome
from beanstalk_server.queue.policy import NO_POLICY
from beanstalk_server.queue.state import SLICE, QueueState
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wall_clock import WALL_CHECK
from beanstalk_server.queue.wheel import OVERDUE

BATCH_BYTES: Final = 1 << 20
"""Bytes: a batch of reserved jobs ends with the job whose body takes the batch past this size."""

FREE_WATCHES: Final = 16
"""Tubes that each client may always watch, however many others watch."""


class BodyRead:
    """An answer that a client gets when bodies are in memory again. It is `busy` until then.

    The broker has done everything else at once. What has happened to the jobs meanwhile makes no difference, as if the
    reply had been on its way: the time to run of a job may have ended, and another client may have deleted it.

    Args:
        jobs: at least one, in the order in which the client gets them.
        tell: tells the client of a single job; None if the jobs are a batch.
    """

    def __init__(self, client: Client, jobs: list[Job], tell: Callable[[Job], None] | None) -> None:
        self.client = client
        self.jobs = jobs
        self.tell = tell

    def on_fetched(self) -> None:
        client = self.client
        if client.leaving:
            return
        client.busy = False
        tell = self.tell
        try:
            if tell is None:
                client.on_reserved_batch(self.jobs)
            else:
                tell(self.jobs[0])
        except Exception:
            client.on_outcome(FAILED)
            raise


def enter(queue: QueueState, job: Job, delay: int, now: int) -> None:
    """Make a job delayed if its delay, which begins now, is not 0; else ready."""
    if not delay:
        enter_ready(queue, job, now)
    elif job.is_timed():
        enter_at(queue, job, now)
    else:
        enter_delayed(queue, job, now + delay, now)


def enter_new(queue: QueueState, job: Job, delay: int, now: int) -> None:
    """Do the same with a job that is put, unless it waits for a group."""
    if job.deadline == NEVER:
        enter_waiting(queue, job)
    else:
        enter(queue, job, delay, now)


def enter_ready(queue: QueueState, job: Job, now: int) -> None:
    tube = job.tube
    if tube.waiting_count and hand_over(queue, tube, job, now):
        return
    job.state = READY
    priority = job.priority
    if isinstance(job.extras, Terms) and job.lane_labels() is not None and not isinstance(tube.ready, FairHeap):
        tube.ready = FairHeap(tube, tube.ready.jobs)
    tube.ready.push(job, priority)
    queue.ready += 1
    if priority < URGENT:
        queue.urgent += 1
        tube.urgent += 1
    if tube.policy is not NO_POLICY or isinstance(job.extras, Terms):
        recording.review_expiry(queue, job, now)
    if tube.waiting_count:
        serve_waiting(queue, tube, 1, now)


def hand_over(queue: QueueState, tube: Tube, job: Job, now: int) -> bool:
    """Give a job that is about to be ready to the client that has waited longest, without a stay in the heap. False if
    the job must enter it: because others are ready, the tube is blocked, or something has to be counted or ordered."""
    if tube.blocked or tube.policy is not NO_POLICY or isinstance(job.extras, Terms):
        return False
    if queue.durations is not None or tube.durations is not None or isinstance(tube.ready, FairHeap) or tube.ready.jobs:
        return False
    wait = tube.waiting.after
    assert isinstance(wait, Wait)
    client = wait.client
    if client.leaving or client.batch:
        return False
    stop_waiting(queue, client)
    enter_reserved(queue, job, client, now)
    give(queue, client, job)
    return True


def leave_ready(queue: QueueState, job: Job) -> None:
    tube = job.tube
    tube.ready.remove(job)
    queue.ready -= 1
    if job.priority < URGENT:
        queue.urgent -= 1
        tube.urgent -= 1
    recording.end_expiry(queue, job)


def note_reservation(queue: QueueState, job: Job, now: int) -> None:
    """Note how long a ready job has waited, for whom that concerns: it is about to be reserved."""
    if queue.durations is not None:
        queue.durations.note_reservation(job, now)
    if job.tube.durations is not None:
        job.tube.durations.note_reservation(job, now)


def note_lateness(queue: QueueState, job: Job, lateness: int) -> None:
    """Note how late a job is ready, for whom that concerns."""
    if queue.durations is not None:
        queue.durations.lateness.add(lateness)
    if job.tube.durations is not None:
        job.tube.durations.lateness.add(lateness)


def reserve_ready(queue: QueueState, job: Job, client: Client, now: int) -> None:
    tube = job.tube
    if queue.durations is not None or tube.durations is not None:
        note_reservation(queue, job, now)
    if isinstance(job.extras, Terms):
        tube.ready.end_turn(job)
    leave_ready(queue, job)
    enter_reserved(queue, job, client, now)
    recording.record_stay(queue, job)


def enter_delayed(queue: QueueState, job: Job, deadline: int, now: int) -> None:
    job.state = DELAYED
    if deadline - now >= queue.memory.packed_from:
        queue.memory.pack_body(job)
    queue.wheel.set(job, deadline)
    job.tube.delayed.push(job, deadline)
    queue.delayed += 1


def enter_at(queue: QueueState, job: Job, now: int) -> None:
    """Make a job delayed until its moment of the wall clock; or ready, if that has come."""
    terms = job.own_terms()
    wall = queue.wall
    moment = terms.at
    if moment <= now + wall.offset:
        terms.at = 0
        enter_ready(queue, job, now)
        return
    enter_timed(queue, job, moment, now)


def enter_timed(queue: QueueState, job: Job, moment: int, now: int) -> None:
    wall = queue.wall
    job.state = DELAYED
    if moment - wall.offset - now >= queue.memory.packed_from:
        queue.memory.pack_body(job)
    wall.add(job, moment)
    queue.delayed += 1
    if not wall.check_timer.is_linked():
        queue.wheel.set(wall.check_timer, now + WALL_CHECK)
    queue.time_wall_clock()


def leave_delayed(queue: QueueState, job: Job) -> None:
    queue.delayed -= 1
    if not job.is_timed():
        job.tube.delayed.remove(job)
        queue.wheel.remove(job)
        if job.deadline == NEVER:
            stop_awaiting(queue, job)
        return
    end_moment(queue, job)
    queue.time_wall_clock()


def end_moment(queue: QueueState, job: Job) -> None:
    queue.wall.remove(job)
    job.own_terms().at = 0


def enter_buried(queue: QueueState, job: Job, sequence: int) -> None:
    job.state = BURIED
    tube = job.tube
    tube.bury_sequence = sequence
    extras = job.own_extras()
    extras.bury_sequence = sequence
    extras.clears = tube.clears
    tube.buried.append(job)
    tube.buried_count += 1
    queue.buried += 1


def enter_reserved(queue: QueueState, job: Job, client: Client, now: int) -> None:
    job.state = RESERVED
    if job.is_packed():
        queue.memory.unpack_body(job)
    job.client = client
    job.reserves += 1
    tube = job.tube
    job.heap_index = len(tube.reserved)
    tube.reserved.append(job)
    if tube.throttle is not None:
        tube.throttle.take(now)
    extras = job.extras
    if isinstance(extras, Terms) and extras.labels is not None and extras.labels.limiter is not None:
        extras.labels.limiter.take_place()
    queue.reserved += 1
    client.reserved.add(job)
    if client.reserved_at is not None:
        client.note_reserved(job, now)
    if client.weights is not None:
        client.weights.note_reserved(tube)
    set_time_to_run(queue, job, client, now)


def pass_on_reservation(queue: QueueState, old: Job, fresh: Job) -> None:
    """Let the job that replaces a reserved one take over its reservation, with the same deadline."""
    client = old.client
    assert client is not None, "a reserved job has a client"
    deadline = old.deadline
    if old.is_linked():
        queue.wheel.remove(old)
    client.reserved.replace(old, fresh)
    old.tube.reserved[old.heap_index] = fresh
    fresh.heap_index = old.heap_index
    fresh.client = client
    fresh.in_safety_margin = old.in_safety_margin
    fresh.state = RESERVED
    old.client = None
    old.state = DELETED
    queue.wheel.set(fresh, deadline)


def pass_on_place(old: Job, fresh: Job) -> None:
    """Let the job that replaces a reserved one take a place of its limit, and free the place of the old one."""
    labels = fresh.lane_labels()
    if labels is not None and labels.limiter is not None:
        labels.limiter.take_place()
    labels = old.lane_labels()
    if labels is not None and labels.limiter is not None:
        labels.limiter.free_place()


def run_again(queue: QueueState, job: Job, now: int) -> bool:
    """Put a job that has left RESERVED, if it was replaced while it was reserved; return False if it was not."""
    terms = job.terms()
    if terms is None or not terms.runs_again:
        return False
    terms.runs_again = False
    if terms.labels is not None and terms.labels.after and must_wait(queue, terms.labels):
        enter_waiting(queue, job)
    elif terms.at:
        enter_at(queue, job, now)
    else:
        enter(queue, job, job.delay, now)
    recording.record_change(queue, job)
    return True


def set_time_to_run(queue: QueueState, job: Job, client: Client, now: int) -> None:
    ttr = job.ttr
    if ttr > SAFETY_MARGIN:
        queue.wheel.set(job, now + ttr - SAFETY_MARGIN)
    else:
        job.in_safety_margin = True
        client.jobs_in_safety_margin += 1
        queue.wheel.set(job, now + ttr)


def end_time(queue: QueueState, job: Job, now: int, budget: int) -> int:
    """End the delay or the time to run of a job, or begin its safety margin; return the rest of the budget."""
    if job.tube.clearing and job.tube.is_cleared(job):
        return budget
    if job.state == DELAYED:
        end_delay(queue, job, now)
    else:
        end_time_to_run(queue, job, now)
    # Its body may have been copied into a reply, if it was in memory.
    return max(budget - (len(job.body) >> COPY_SHIFT) - queue.cost, 0)


def end_delay(queue: QueueState, job: Job, now: int) -> None:
    due = job.deadline
    tube = job.tube
    note_lateness(queue, job, now - due)
    tube.delayed.remove(job)
    queue.delayed -= 1
    if tube.policy is not NO_POLICY or isinstance(job.extras, Terms):
        recording.note_ready_since(queue, job, due)
    enter_ready(queue, job, now)


def end_time_to_run(queue: QueueState, job: Job, now: int) -> None:
    client = job.client
    assert client is not None, "only delayed and reserved jobs come due"
    if not job.in_safety_margin:
        job.in_safety_margin = True
        client.jobs_in_safety_margin += 1
        queue.wheel.set(job, job.deadline + SAFETY_MARGIN)
        if stop_waiting(queue, client):
            client.on_outcome(DEADLINE_SOON)
        return
    is_counted = job.counts_failures()
    if (is_counted or job.runs_again()) and queue.admits != ALL:
        queue.suspended.append(job)
        return
    job.own_extras().timeouts += 1
    queue.timeouts += 1
    if client.weights is not None:
        client.weights.note_time(job, job.deadline, True)
    leave_reserved(queue, job)
    if run_again(queue, job, now):
        return
    if is_counted:
        fail(queue, job, RUN_OUT, 0, now)
    else:
        enter_ready(queue, job, now)
        recording.record_stay(queue, job)


def leave_reserved(queue: QueueState, job: Job) -> None:
    client = job.client
    assert client is not None, "a reserved job has a client"
    if job.in_safety_margin:
        job.in_safety_margin = False
        client.jobs_in_safety_margin -= 1
    job.client = None
    if client.reserved_at is not None:
        client.reserved_at.pop(job.id, None)
    extras = job.extras
    if isinstance(extras, Terms):
        if extras.runs_again:
            job.ttr = extras.ready_since  # the next one, see Terms
        extras.ready_since = 0
        if extras.labels is not None and extras.labels.limiter is not None:
            extras.labels.limiter.free_place()
    if not client.leaving:  # else a BulkDisconnect holds the job
        client.reserved.remove(job)
    tube = job.tube
    tube.remove_reserved(job)
    if tube.throttle is not None:
        tube.throttle.free_place()
    queue.reserved -= 1
    if job.is_linked():
        queue.wheel.remove(job)


def leave(queue: QueueState, job: Job) -> None:
    state = job.state
    if state == RESERVED:
        leave_reserved(queue, job)
    elif state == READY:
        leave_ready(queue, job)
    elif state == DELAYED:
        leave_delayed(queue, job)
    else:
        job.unlink()
        job.tube.buried_count -= 1
        queue.buried -= 1


def end_job(queue: QueueState, job: Job, free_at: int = 0, is_expired: bool = False) -> None:
    """Delete a job.

    Args:
        free_at: when its key is free, if not at once.
        is_expired: its time to live is over.
    """
    tube = job.tube
    size = queue.body_size(job)
    extras = job.extras
    group: Group | None = None
    end = END_CANCELLED
    if isinstance(extras, Terms) and extras.labels is not None:
        group = extras.labels.joined
    if group is not None:
        end = END_EXPIRED if is_expired else END_DONE if job.state == RESERVED else END_CANCELLED
        group.count(end)
    if free_at:
        held = job.held_key()
        held.deadline = free_at
        recording.record_hold(queue, held)
        if group is not None:
            recording.record_leave(queue, group, end, None)
        tube.bytes -= size
        leave(queue, job)
        forget(queue, job)
        queue.held.add(held)
        recording.hold_key(queue, held, free_at)
        return
    if group is None:
        recording.record_delete(queue, job)
    else:
        recording.record_leave(queue, group, end, job)
    tube.bytes -= size
    leave(queue, job)
    forget(queue, job)
    if not tube.using and not tube.watching:
        queue.drop_unneeded(tube)


def forget(queue: QueueState, job: Job) -> None:
    """Remove a job that has left its queue from the tables of ids and keys."""
    queue.memory.remove_job(job)
    queue.jobs.remove(job.id)
    job.state = DELETED
    extras = job.extras
    if isinstance(extras, Terms):
        drop_limit(queue, job)
        job.tube.remove_letter(extras)
        if extras.labels is not None:
            drop_labels(queue, job, extras.labels)
    if job.key:
        keys = job.tube.keys
        assert keys is not None, "a job with a key is in its tube's keys"
        keys.remove(job)


def free_key(queue: QueueState, held: HeldKey) -> None:
    """Remove a key that is held no longer from the tables of ids and keys."""
    queue.memory.remove_held(held)
    queue.held.remove(held.id)
    keys = held.tube.keys
    assert keys is not None, "a held key is in its tube's keys"
    keys.remove(held)


def take_limit(queue: QueueState, job: Job, is_moved: bool = False) -> None:
    """Note the limit of a job that is taken in, or has changed its tube, and is in no state yet. A move does not
    change how many of the jobs that are there may be reserved."""
    labels = job.lane_labels()
    if labels is None or not labels.limit:
        return
    name = labels.limit_in(job.tube.name)
    count = labels.limit_count
    limit = queue.limits.get(name)
    if limit is None:
        limit = queue.limits[name] = Limit(name, queue.wheel)
    elif is_moved:
        count = limit.count
    elif limit.count != count and queue.records:
        queue.journal.set_limit(name, count)
    limit.jobs += 1
    limit.set_count(count)
    labels.limiter = limit


def drop_limit(queue: QueueState, job: Job) -> None:
    """Undo `take_limit`, of a job that has left its state."""
    labels = job.lane_labels()
    if labels is None or labels.limiter is None:
        return
    limit = labels.limiter
    labels.limit_count = limit.count  # as its record says
    labels.limiter = None
    limit.jobs -= 1
    if not limit.jobs:
        del queue.limits[limit.name]
        if limit.is_linked():
            queue.wheel.remove(limit)


def bury_one(queue: QueueState, job: Job) -> None:
    job.own_extras().buries += 1
    enter_buried(queue, job, job.tube.bury_sequence + 1)
    recording.record_change(queue, job)


def fail(queue: QueueState, job: Job, reason: int, delay: int, now: int) -> Outcome:
    """Count a failure of a job that has left RESERVED. It is tried again, perhaps after a delay, or given up.

    Args:
        delay: that with which it has been released; 0 if its backoff says how long it waits.
    """
    queue.cost += FAILURE_COST
    terms = queue.memory.give_terms(job)
    terms.tries += 1
    terms.reason = reason
    if job.has_failed_too_often(terms):
        return give_up_on(queue, job, terms, now)
    if not delay:
        delay = job.backoff_delay(terms)
        if delay:  # not the job's own: that is what a client has given, and some release with it once more
            queue.counters.retried += 1
            job.tube.counters.retried += 1
    enter(queue, job, delay, now)
    recording.record_change(queue, job)
    return DONE


def give_up_on(queue: QueueState, job: Job, terms: Terms, now: int) -> Outcome:
    """Send a job that has left its state to the dead tube, or bury it if its tube has none."""
    tube = job.tube
    name = tube.policy.dead_tube
    if not name or name == tube.name:
        bury_one(queue, job)
        return BURIED_INSTEAD
    queue.counters.dead += 1
    tube.counters.dead += 1
    origin = terms.origin or tube.name
    move_letter(queue, job, terms, name, "" if origin == name else origin, now)
    return DONE


def move_letter(queue: QueueState, job: Job, terms: Terms, name: str, origin: str, now: int) -> None:
    """Let a job that has left its state be ready in another tube, with all its tries.

    It loses its key if another job has it there.

    Args:
        origin: what is noted as the tube that it has come from; "" for none.
    """
    left = job.tube
    change_tube(queue, job, terms, name, origin)
    terms.tries = 0
    terms.ready_since = 0
    enter_ready(queue, job, now)
    recording.record_change(queue, job)
    if terms.labels is not None:
        review_group(queue, job, terms, now)
    queue.drop_unneeded(left)


def change_tube(queue: QueueState, job: Job, terms: Terms, name: str, origin: str) -> None:
    """Let a job that has left its state belong to another tube, in none of its queues yet.

    It must have terms of its own, or the record of the change would not have the tube.
    """
    left = job.tube
    tube = queue.tube(name)
    key = job.key
    size = queue.body_size(job)
    queue.memory.remove_job(job)
    left.bytes -= size
    left.remove_letter(terms)
    if key:
        assert left.keys is not None, "a job with a key is in its tube's keys"
        left.keys.remove(job)
        if queue.holder(tube, key) is not None:
            job.key = ""
    job.tube = tube
    if terms.labels is not None and "/" not in terms.labels.limit:
        drop_limit(queue, job)
        take_limit(queue, job, is_moved=True)
    if job.key:
        recording.add_key(tube, job)
    terms.origin = origin
    if origin:
        tube.add_letter(job, terms)
    queue.memory.add_job(job)
    tube.bytes += size


def move_one(queue: QueueState, job: Job, name: str, now: int) -> None:
    """Let a job be in another tube in the state that it is in, READY, DELAYED or BURIED, as the last of its equals.

    A dead letter stays one, unless that is the tube that it has come from.
    """
    left = job.tube
    state = job.state
    if state == READY:
        job.forget_since()  # the terms that it gets now will say that it is ready since now
    terms = queue.memory.give_terms(job)
    moment = terms.at
    deadline = job.deadline
    origin = "" if terms.origin == name else terms.origin
    if waits(job):  # for its group, in the place that it has there
        left.delayed.remove(job)
        change_tube(queue, job, terms, name, origin)
        job.tube.delayed.push(job, deadline)
    else:
        leave(queue, job)
        change_tube(queue, job, terms, name, origin)
        if state == READY:
            enter_ready(queue, job, now)
        elif state == BURIED:
            enter_buried(queue, job, job.tube.bury_sequence + 1)
        elif moment:
            terms.at = moment
            enter_timed(queue, job, moment, now)
        else:
            enter_delayed(queue, job, deadline, now)
    recording.record_change(queue, job)
    if terms.labels is not None:
        review_group(queue, job, terms, now)
    queue.drop_unneeded(left)


def kick_one(queue: QueueState, job: Job, now: int) -> None:
    leave(queue, job)
    job.forget_since()
    job.own_extras().kicks += 1
    terms = job.terms()
    if terms is not None:
        terms.tries = 0
    enter_ready(queue, job, now)
    recording.record_change(queue, job)


def enter_waiting(queue: QueueState, job: Job) -> None:
    """Make a job delayed until the end of the group that it comes after."""
    labels = job.labels()
    assert labels is not None, "a job that waits for a group has its name"
    job.state = DELAYED
    job.tube.delayed.push(job, NEVER)
    queue.delayed += 1
    name = labels.after
    group = queue.groups.get(name)
    if group is None:
        group = Group(name, 0)
        queue.groups.add(group)
        queue.memory.add_group(name)
    queue.groups.await_end(group, job, labels)


def enter_released(queue: QueueState, job: Job) -> None:
    """Make a job delayed until its turn comes, after its group has ended."""
    job.state = DELAYED
    job.tube.delayed.push(job, NEVER)
    queue.delayed += 1
    queue.groups.released.append(job)
    time_groups(queue)


def unuse(queue: QueueState, client: Client) -> None:
    if client.uses:
        left = client.use
        left.using -= 1
        queue.drop_unneeded(left)
    client.use = queue.tubes.default
    client.uses = False


def leave_tube(queue: QueueState, client: Client, tube: Tube, position: int) -> None:
    assert not client.waiting, "a client waits in every tube that it watches"
    client.remove_watched(position)
    if len(client.watched) >= FREE_WATCHES:
        queue.watches -= 1
    tube.watching -= 1
    queue.drop_unneeded(tube)


def stop_waiting(queue: QueueState, client: Client) -> bool:
    if not client.waiting:
        return False
    end_wait(queue, client)
    queue.cost += len(client.watched) >> WAIT_SHIFT
    for position, tube in enumerate(client.watched):
        client.waits[position].unlink()
        tube.waiting_count -= 1
    return True


def end_wait(queue: QueueState, client: Client) -> None:
    """Note that the client waits no longer. The tubes that it waited in still list it."""
    client.waiting = False
    queue.waiting -= 1
    if client.is_linked():
        queue.wheel.remove(client)


def serve_waiting(queue: QueueState, tube: Tube, budget: int, now: int) -> int:
    """Give the best ready jobs of a tube to the clients that have waited longest; return the rest of the budget.

    If nothing is left, there may be more to do: then the tube is in the wheel, as the timer that continues it.
    """
    while tube.waiting_count and not tube.blocked and tube.ready.first() is not None:
        if not budget:
            if not tube.is_linked():
                queue.wheel.set(tube, OVERDUE)
            return 0
        wait = tube.waiting.after
        assert isinstance(wait, Wait)
        client = wait.client
        if client.leaving:
            wait.unlink()
            tube.waiting_count -= 1
            continue
        budget = max(budget - 1 - (len(client.watched) >> WAIT_SHIFT), 0)
        stop_waiting(queue, client)
        if client.batch:
            budget = max(budget - serve_batch(queue, tube, client, now), 0)
            continue
        job = tube.ready.first()
        assert job is not None, "the tube has a job for the client"
        reserve_ready(queue, job, client, now)
        give(queue, client, job)
    return budget


def serve_batch(queue: QueueState, tube: Tube, client: Client, now: int) -> int:
    """Give a client that waited for a batch the ready jobs of this tube; return how many.

    The client's other tubes are not searched: they had no job for it until now. If the pause of one of them ends at
    this very moment, its jobs go to the clients that wait there then.
    """
    batch: list[Job] = []
    size = 0
    bound = min(client.batch, SLICE)
    while len(batch) < bound and size <= BATCH_BYTES and not tube.blocked:
        job = tube.ready.first()
        if job is None:
            break
        reserve_ready(queue, job, client, now)
        batch.append(job)
        size += queue.body_size(job)
    give_batch(queue, client, batch)
    return len(batch)


def give(queue: QueueState, client: Client, job: Job) -> Outcome:
    """Give a client the job that it has reserved, now or when its body has been fetched."""
    if job.body is NOT_IN_MEMORY:
        return deliver(queue, client, [job], client.on_reserved)
    client.on_reserved(job)
    return DONE


def give_batch(queue: QueueState, client: Client, jobs: list[Job]) -> Outcome:
    """Give a client the jobs that it has reserved, now or when their bodies have been fetched."""
    for job in jobs:
        if job.body is NOT_IN_MEMORY:
            return deliver(queue, client, jobs, None)
    client.on_reserved_batch(jobs)
    return DONE


def deliver(queue: QueueState, client: Client, jobs: list[Job], tell: Callable[[Job], None] | None) -> Outcome:
    """Have the journal fetch the bodies of jobs, and then give the client its answer."""
    client.busy = True
    queue.journal.fetch(jobs, BodyRead(client, jobs, tell).on_fetched)
    return PENDING
