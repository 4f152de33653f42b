"""Timers that are due: the ends of delays, times to run and to live, waits, pauses, throttles and groups."""

from __future__ import annotations

from beanstalk_server.queue import transitions
from beanstalk_server.queue.bulk import BulkOperation
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.costs import COPY_SHIFT, EXPIRY_COST
from beanstalk_server.queue.fair_heap import Limit
from beanstalk_server.queue.groups import EndedGroups, Groups
from beanstalk_server.queue.job import EXPIRED, Expiry, HeldKey, Job
from beanstalk_server.queue.journal import ALL, NONE
from beanstalk_server.queue.membership import forget_group, time_forgetting
from beanstalk_server.queue.outcome import TIMED_OUT
from beanstalk_server.queue.recording import forget_pause, record_change, record_delete, record_pause
from beanstalk_server.queue.state import QueueState
from beanstalk_server.queue.throttle import Throttle
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wall_clock import WALL_CHECK, WallCheck, WallClock
from beanstalk_server.queue.wheel import OVERDUE, Timer


def go_off(queue: QueueState, timer: Timer, now: int, budget: int) -> int:
    """Handle a timer whose deadline has come; return the rest of the budget, in the unit of costs.py."""
    match timer:
        case Client():
            return end_timeout(queue, timer, budget)
        case BulkOperation():
            timer.go_on(queue, now, budget)
            return 0
        case Expiry():
            return end_life(queue, timer, now, budget)
        case Tube():
            return end_pause(queue, timer, now, budget)
        case Throttle():
            return end_throttling(queue, timer, now, budget)
        case Limit():
            return end_withdrawal(queue, timer, now, budget)
        case WallClock():
            return begin_moment(queue, timer, now, budget)
        case WallCheck():
            return check_wall_clock(queue, timer, now, budget)
        case HeldKey():
            return end_hold(queue, timer, budget)
        case Groups():
            return end_groups(queue, timer, now, budget)
        case EndedGroups():
            return forget_groups(queue, timer, now, budget)
    raise AssertionError(f"{type(timer).__name__} is not a queue timer")


def end_life(queue: QueueState, expiry: Expiry, now: int, budget: int) -> int:
    _end_life(queue, expiry, now)
    return max(budget - queue.cost, 0)


def _end_life(queue: QueueState, expiry: Expiry, now: int) -> None:
    """End a ready job whose time to live is over, as soon as the journal admits it."""
    job = expiry.job
    tube = job.tube
    if tube.is_cleared(job):
        return
    dead_tube = tube.policy.dead_tube
    is_moved = bool(dead_tube) and dead_tube != tube.name
    hold = job.key_hold()
    if (is_moved or hold) and queue.admits != ALL:
        queue.suspended.append(expiry)
        return
    if queue.admits == NONE:
        queue.suspended_deletions.append(expiry)
        return
    queue.cost += EXPIRY_COST
    queue.counters.expired += 1
    tube.counters.expired += 1
    if is_moved:
        transitions.leave_ready(queue, job)
        terms = job.own_terms()
        terms.reason = EXPIRED
        transitions.give_up_on(queue, job, terms, now)
    else:
        transitions.end_job(queue, job, now + hold if hold else 0, True)


def end_hold(queue: QueueState, held: HeldKey, budget: int) -> int:
    """Free a key whose time is over, or drop the record of a pause, as soon as the journal admits it."""
    tube = held.tube
    if tube.is_cleared(held):
        return budget
    if queue.admits == NONE:
        queue.suspended_deletions.append(held)
        return budget
    if not held.key:
        forget_pause(queue, held)
        return budget
    record_delete(queue, held)
    tube.remove_held(held)
    transitions.free_key(queue, held)
    queue.drop_unneeded(tube)
    return budget


def end_timeout(queue: QueueState, client: Client, budget: int) -> int:
    transitions.stop_waiting(queue, client)
    client.on_outcome(TIMED_OUT)
    return max(budget - queue.cost, 0)


def end_pause(queue: QueueState, tube: Tube, now: int, budget: int) -> int:
    tube.pause = 0
    tube.set_blocked()
    record_pause(queue, tube, 0, now)
    budget = transitions.serve_waiting(queue, tube, max(budget, 1), now)
    queue.drop_unneeded(tube)
    return budget


def end_throttling(queue: QueueState, throttle: Throttle, now: int, budget: int) -> int:
    tube = throttle.tube
    throttle.look(now)
    budget = transitions.serve_waiting(queue, tube, max(budget, 1), now)
    if throttle.full_at <= now and not tube.is_needed():
        throttle.full_at = 0
    queue.drop_unneeded(tube)
    return budget


def end_withdrawal(queue: QueueState, limit: Limit, now: int, budget: int) -> int:
    budget = max(budget, 1)
    while budget > 0:
        tube = limit.next_tube()
        if tube is None:
            return budget
        budget = transitions.serve_waiting(queue, tube, budget, now) - 1
    if limit.has_offer():
        queue.wheel.set(limit, OVERDUE)
    return 0


def begin_moment(queue: QueueState, wall: WallClock, now: int, budget: int) -> int:
    """Make jobs ready whose moments have come. If nothing is left of the budget, there may be more to do: then the
    timer, which is that of the next job, is overdue."""
    budget = max(budget, 1)
    moment = now + wall.offset
    try:
        while budget and wall.heaps:
            job = wall.heaps[0].jobs[0]
            if job.deadline > moment:
                break
            transitions.note_lateness(queue, job, moment - job.deadline)
            transitions.end_moment(queue, job)
            queue.delayed -= 1
            queue.cost = 0
            transitions.enter_ready(queue, job, now)
            budget = max(budget - 1 - (len(job.body) >> COPY_SHIFT) - queue.cost, 0)
    finally:
        queue.time_wall_clock()
    return budget


def check_wall_clock(queue: QueueState, check: WallCheck, now: int, budget: int) -> int:
    queue.wheel.set(check, now + WALL_CHECK)  # the caller of `advance` has told what the wall clock says
    return budget


def end_groups(queue: QueueState, groups: Groups, now: int, budget: int) -> int:
    """Let jobs go whose groups have ended, as soon as the journal admits it; then note the ends of the groups."""
    budget = max(budget, 1)
    released = groups.released
    while budget and not released.is_empty():
        if queue.admits != ALL:
            queue.suspended.append(groups)
            return budget
        job = released.after
        assert isinstance(job, Job), "only jobs wait for groups"
        budget -= 1
        if job.tube.is_cleared(job):
            job.unlink()
            continue
        queue.cost = 0
        transitions.leave_delayed(queue, job)
        delay = job.delay
        if delay:
            transitions.enter_delayed(queue, job, now + delay, now)
        else:
            transitions.enter_ready(queue, job, now)
        record_change(queue, job)
        budget = max(budget - (len(job.body) >> COPY_SHIFT) - queue.cost, 0)
    while budget and not groups.ending.is_empty():
        budget -= 1
        time_forgetting(queue, groups.note_end(now))
    if groups.is_due():
        queue.wheel.set(groups, OVERDUE)
    return budget


def forget_groups(queue: QueueState, ended: EndedGroups, now: int, budget: int) -> int:
    """Forget groups of a user whose time is over, or that are too many, as soon as the journal admits it."""
    budget = max(budget, 1)
    while budget:
        group = ended.first()
        if group is None or (group.deadline > now and ended.count <= ended.most):
            break
        if queue.admits == NONE:
            queue.suspended_deletions.append(ended)
            return budget
        budget -= 1
        if group.id:
            record_delete(queue, group)
        forget_group(queue, group)
    time_forgetting(queue, ended)
    return budget
