"""The states of jobs: what enters and leaves each of them, who gets a job that is ready, and what a failure leads to.

Only the methods here count the jobs of each state and keep them in order: those that enter or leave a state do all that
goes with it. The table of transitions is at the head of broker.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.costs import EXPIRY_COST, FAILURE_COST, NEW_TUBE_COST, copy_cost, wait_cost
from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.fair_heap import FairHeap, Limit
from beanstalk_server.queue.groups import (
    END_CANCELLED,
    END_DEAD,
    END_DONE,
    END_EXPIRED,
    END_UNDONE,
    EndedGroups,
    Group,
    Groups,
    waits,
)
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    DELETED,
    EXPIRED,
    NEVER,
    NOT_IN_MEMORY,
    READY,
    RESERVED,
    RUN_OUT,
    SAFETY_MARGIN,
    URGENT,
    Expiry,
    HeldKey,
    Holder,
    Job,
    Terms,
)
from beanstalk_server.queue.journal import ALL, NONE, Journal
from beanstalk_server.queue.lifetimes import Lifetimes
from beanstalk_server.queue.memory import group_cost
from beanstalk_server.queue.outcome import BURIED_INSTEAD, DEADLINE_SOON, DONE, FAILED, PENDING, TIMED_OUT, Outcome
from beanstalk_server.queue.policy import NO_POLICY, Labels, Policy, PolicyOf
from beanstalk_server.queue.throttle import Throttle
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.tubes import TubeTable
from beanstalk_server.queue.wall_clock import WALL_CHECK, WallCheck, WallClock
from beanstalk_server.queue.wheel import OVERDUE

BATCH_BYTES: Final = 1 << 20
"""Bytes: a batch of reserved jobs ends with the job whose body takes the batch past this size."""

SLICE: Final = 512
"""The budget of one call: the most jobs it moves, in about a millisecond. `advance` moves the rest."""

FREE_WATCHES: Final = 16
"""Tubes that each client may watch, whatever others watch."""


class BodyRead:
    """An answer that a client gets when bodies are in memory again. It is `busy` until then.

    The broker has done everything else at once. What has happened to the jobs meanwhile makes no difference, as if the
    reply had been on its way: the time to run of a job may have ended, and another client may have deleted it.

    Args:
        jobs: at least one, in the order in which the client gets them.
        tell: tells the client of a single job; None if the jobs are a batch.
    """

    __slots__ = ("client", "jobs", "tell")

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


class States(Lifetimes):
    """All tubes, with their jobs in each state and the clients that wait for one.

    Args:
        journal, now, tick, max_memory, stride, offset, policy_of: as in Broker.
    """

    __slots__ = (
        "buried",
        "delayed",
        "durations",
        "limits",
        "policy_of",
        "ready",
        "reserved",
        "timeouts",
        "tubes",
        "urgent",
        "waiting",
        "wall",
        "watches",  # how many tubes clients watch, each beyond its free ones
    )

    def __init__(
        self,
        journal: Journal,
        now: int,
        tick: int,
        max_memory: int,
        stride: int,
        offset: int,
        policy_of: PolicyOf,
    ) -> None:
        super().__init__(journal, now, tick, max_memory, stride, offset)
        self.policy_of = policy_of
        self.wall = WallClock()
        self.tubes = TubeTable()
        self.set_policy(self.tubes.default, policy_of(self.tubes.default.name))
        self.limits: dict[str, Limit] = {}  # by full name, while there are jobs with them
        self.durations: Durations | None = None  # those of its jobs, if anybody asks for them
        # The counters of stats: the jobs in each state, and what has happened since the start.
        self.urgent = 0
        self.ready = 0
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.timeouts = 0
        self.waiting = 0
        self.watches = 0

    # Tubes, and jobs by id and key

    def tube(self, name: str) -> Tube:
        tube = self.tubes.get(name)
        if tube is None:
            tube = self.tubes.add(name)
            self.set_policy(tube, self.policy_of(name))
            self.cost += NEW_TUBE_COST
        return tube

    def set_policy(self, tube: Tube, policy: Policy, now: int = 0) -> None:
        """Let a tube demand this of its jobs. The present matters only to a tube that has had another policy."""
        tube.set_policy(policy)
        throttle = tube.throttle
        if policy.interval or policy.max_reserved:
            if throttle is None:
                throttle = tube.throttle = Throttle(tube, self.wheel)
            throttle.follow(policy, now)
        elif throttle is not None:
            throttle.detach()

    def drop_unneeded(self, tube: Tube) -> None:
        throttle = tube.throttle
        if throttle is not None and self.keeps_pace(tube, throttle):
            return
        if self.tubes.drop_unneeded(tube):
            if isinstance(tube.ready, FairHeap):
                tube.ready = JobHeap()  # each refers to the other
            if tube.is_linked():
                self.wheel.remove(tube)
            if throttle is not None:
                throttle.detach()

    def keeps_pace(self, tube: Tube, throttle: Throttle) -> bool:
        """Whether a tube has to stay because of its throttle alone, which says later that it need not."""
        return tube is not self.tubes.default and not tube.is_needed() and throttle.keeps_tube()

    def find(self, job_id: int) -> Job | None:
        job = self.jobs.get(job_id)
        if job is not None and job.tube.is_cleared(job):
            return None
        return job

    def find_keyed(self, tube: Tube, key: str) -> Job | None:
        holder = self.holder(tube, key)
        return holder if isinstance(holder, Job) else None

    def holder(self, tube: Tube, key: str) -> Holder | None:
        """The job with this key, or the held key."""
        keys = tube.keys
        if keys is None:
            return None
        job = keys.get(key)
        if job is not None and tube.is_cleared(job):
            return None
        return job

    def first_delayed(self, tube: Tube) -> Job | None:
        jobs = tube.delayed.jobs
        first = jobs[0] if jobs else None
        if tube.timed is None:
            return first
        other = tube.timed.jobs[0]
        if first is None:
            return other
        deadline = other.deadline - self.wall.offset
        if deadline < first.deadline or (deadline == first.deadline and other.id < first.id):
            return other
        return first

    def first_of(self, tube: Tube, state: int) -> Job | None:
        """The first job of a tube in one state, as peek-ready, peek-delayed and peek-buried order them."""
        if state == READY:
            return tube.ready.first()
        if state == DELAYED:
            return self.first_delayed(tube)
        job = tube.buried.after
        return job if isinstance(job, Job) else None

    # Entering and leaving a state

    def enter(self, job: Job, delay: int, now: int) -> None:
        """Make a job delayed if its delay, which begins now, is not 0; else ready."""
        if not delay:
            self.enter_ready(job, now)
        elif job.is_timed():
            self.enter_at(job, now)
        else:
            self.enter_delayed(job, now + delay)

    def enter_new(self, job: Job, delay: int, now: int) -> None:
        """Do the same with a job that is put, unless it waits for a group."""
        if job.deadline == NEVER:
            self.enter_waiting(job)
        else:
            self.enter(job, delay, now)

    def enter_ready(self, job: Job, now: int) -> None:
        job.state = READY
        tube = job.tube
        priority = job.priority
        if isinstance(job.extras, Terms) and job.lane_labels() is not None and not isinstance(tube.ready, FairHeap):
            tube.ready = FairHeap(tube, tube.ready.jobs)
        tube.ready.push(job, priority)
        self.ready += 1
        if priority < URGENT:
            self.urgent += 1
            tube.urgent += 1
        if tube.policy is not NO_POLICY or isinstance(job.extras, Terms):
            self.review_expiry(job, now)
        if tube.waiting_count:
            self.serve_waiting(tube, 1, now)

    def leave_ready(self, job: Job) -> None:
        tube = job.tube
        tube.ready.remove(job)
        self.ready -= 1
        if job.priority < URGENT:
            self.urgent -= 1
            tube.urgent -= 1
        self.end_expiry(job)

    def note_reservation(self, job: Job, now: int) -> None:
        """Note how long a ready job has waited, for whom that concerns: it is about to be reserved."""
        if self.durations is not None:
            self.durations.note_reservation(job, now)
        if job.tube.durations is not None:
            job.tube.durations.note_reservation(job, now)

    def note_lateness(self, job: Job, lateness: int) -> None:
        """Note how late a job is ready, for whom that concerns."""
        if self.durations is not None:
            self.durations.lateness.add(lateness)
        if job.tube.durations is not None:
            job.tube.durations.lateness.add(lateness)

    def reserve_ready(self, job: Job, client: Client, now: int) -> None:
        tube = job.tube
        if self.durations is not None or tube.durations is not None:
            self.note_reservation(job, now)
        if isinstance(job.extras, Terms):
            tube.ready.end_turn(job)
        self.leave_ready(job)
        self.enter_reserved(job, client, now)
        self.record_stay(job)

    def enter_delayed(self, job: Job, deadline: int) -> None:
        job.state = DELAYED
        self.wheel.set(job, deadline)
        job.tube.delayed.push(job, deadline)
        self.delayed += 1

    def enter_at(self, job: Job, now: int) -> None:
        """Make a job delayed until its moment of the wall clock; or ready, if that has come."""
        terms = job.own_terms()
        wall = self.wall
        moment = terms.at
        if moment <= now + wall.offset:
            terms.at = 0
            self.enter_ready(job, now)
            return
        self.enter_timed(job, moment, now)

    def enter_timed(self, job: Job, moment: int, now: int) -> None:
        wall = self.wall
        job.state = DELAYED
        wall.add(job, moment)
        self.delayed += 1
        if not wall.check_timer.is_linked():
            self.wheel.set(wall.check_timer, now + WALL_CHECK)
        self.time_wall_clock()

    def leave_delayed(self, job: Job) -> None:
        self.delayed -= 1
        if not job.is_timed():
            job.tube.delayed.remove(job)
            self.wheel.remove(job)
            if job.deadline == NEVER:
                self.stop_awaiting(job)
            return
        self.end_moment(job)
        self.time_wall_clock()

    def end_moment(self, job: Job) -> None:
        self.wall.remove(job)
        job.own_terms().at = 0

    def time_wall_clock(self) -> None:
        """Let the wall clock be the timer of its first job, and be looked at now and then, if it has any."""
        wall = self.wall
        first = wall.first()
        if first is None:
            if wall.is_linked():
                self.wheel.remove(wall)
            if wall.check_timer.is_linked():
                self.wheel.remove(wall.check_timer)
            return
        deadline = first.deadline - wall.offset
        if not wall.is_linked() or wall.deadline != deadline:
            self.wheel.set(wall, deadline)

    def enter_buried(self, job: Job, sequence: int) -> None:
        job.state = BURIED
        tube = job.tube
        tube.bury_sequence = sequence
        extras = job.own_extras()
        extras.bury_sequence = sequence
        extras.clears = tube.clears
        tube.buried.append(job)
        tube.buried_count += 1
        self.buried += 1

    def enter_reserved(self, job: Job, client: Client, now: int) -> None:
        job.state = RESERVED
        job.client = client
        job.reserves += 1
        tube = job.tube
        tube.add_reserved(job)
        if tube.throttle is not None:
            tube.throttle.take(now)
        extras = job.extras
        if isinstance(extras, Terms) and extras.labels is not None and extras.labels.limiter is not None:
            extras.labels.limiter.take_place()
        self.reserved += 1
        client.reserved.add(job)
        if client.weights is not None:
            client.weights.note_reserved(tube)
        self.set_time_to_run(job, client, now)

    def set_time_to_run(self, job: Job, client: Client, now: int) -> None:
        ttr = job.ttr
        if ttr > SAFETY_MARGIN:
            self.wheel.set(job, now + ttr - SAFETY_MARGIN)
        else:
            job.in_safety_margin = True
            client.jobs_in_safety_margin += 1
            self.wheel.set(job, now + ttr)

    def leave_reserved(self, job: Job) -> None:
        client = job.client
        assert client is not None, "a reserved job has a client"
        if job.in_safety_margin:
            job.in_safety_margin = False
            client.jobs_in_safety_margin -= 1
        job.client = None
        extras = job.extras
        if isinstance(extras, Terms):
            extras.ready_since = 0
            if extras.labels is not None and extras.labels.limiter is not None:
                extras.labels.limiter.free_place()
        if not client.leaving:  # else a BulkDisconnect holds the job
            client.reserved.remove(job)
        tube = job.tube
        tube.remove_reserved(job)
        if tube.throttle is not None:
            tube.throttle.free_place()
        self.reserved -= 1
        if job.is_linked():
            self.wheel.remove(job)

    def leave(self, job: Job) -> None:
        state = job.state
        if state == RESERVED:
            self.leave_reserved(job)
        elif state == READY:
            self.leave_ready(job)
        elif state == DELAYED:
            self.leave_delayed(job)
        else:
            job.unlink()
            job.tube.buried_count -= 1
            self.buried -= 1

    # The end of a job

    def end_job(self, job: Job, free_at: int = 0, is_expired: bool = False) -> None:
        """Delete a job.

        Args:
            free_at: when its key is free, if not at once.
            is_expired: its time to live is over.
        """
        tube = job.tube
        size = self.body_size(job)
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
            self.record_hold(held)
            if group is not None:
                self.record_leave(group, end, None)
            tube.bytes -= size
            self.leave(job)
            self.forget(job)
            self.held.add(held)
            self.hold_key(held, free_at)
            return
        if group is None:
            self.record_delete(job)
        else:
            self.record_leave(group, end, job)
        tube.bytes -= size
        self.leave(job)
        self.forget(job)
        if not tube.using and not tube.watching:
            self.drop_unneeded(tube)

    def forget(self, job: Job) -> None:
        """Remove a job that has left its queue from the tables of ids and keys."""
        self.memory.remove_job(job)
        self.jobs.remove(job.id)
        job.state = DELETED
        extras = job.extras
        if isinstance(extras, Terms):
            self.drop_limit(job)
            job.tube.remove_letter(extras)
            if extras.labels is not None:
                self.drop_labels(job, extras.labels)
        if job.key:
            keys = job.tube.keys
            assert keys is not None, "a job with a key is in its tube's keys"
            keys.remove(job)

    def free_key(self, held: HeldKey) -> None:
        """Remove a key that is held no longer from the tables of ids and keys."""
        self.memory.remove_held(held)
        self.held.remove(held.id)
        keys = held.tube.keys
        assert keys is not None, "a held key is in its tube's keys"
        keys.remove(held)

    def take_limit(self, job: Job, is_moved: bool = False) -> None:
        """Note the limit of a job that is taken in, or has changed its tube, and is in no state yet. A move does not
        change how many of the jobs that are there may be reserved."""
        labels = job.lane_labels()
        if labels is None or not labels.limit:
            return
        name = labels.limit_in(job.tube.name)
        count = labels.limit_count
        limit = self.limits.get(name)
        if limit is None:
            limit = self.limits[name] = Limit(name, self.wheel)
        elif is_moved:
            count = limit.count
        elif limit.count != count and self.records:
            self.journal.set_limit(name, count)
        limit.jobs += 1
        limit.set_count(count)
        labels.limiter = limit

    def drop_limit(self, job: Job) -> None:
        """Undo `take_limit`, of a job that has left its state."""
        labels = job.lane_labels()
        if labels is None or labels.limiter is None:
            return
        limit = labels.limiter
        labels.limit_count = limit.count  # as its record says
        labels.limiter = None
        limit.jobs -= 1
        if not limit.jobs:
            del self.limits[limit.name]
            if limit.is_linked():
                self.wheel.remove(limit)

    def bury_one(self, job: Job) -> None:
        job.own_extras().buries += 1
        self.enter_buried(job, job.tube.bury_sequence + 1)
        self.record_change(job)

    # Failures, and jobs that change their tube

    def fail(self, job: Job, reason: int, delay: int, now: int) -> Outcome:
        """Count a failure of a job that has left RESERVED. It is tried again, perhaps after a delay, or given up.

        Args:
            delay: that with which it has been released; 0 if its backoff says how long it waits.
        """
        self.cost += FAILURE_COST
        terms = self.memory.give_terms(job)
        terms.tries += 1
        terms.reason = reason
        if job.has_failed_too_often(terms):
            return self.give_up_on(job, terms, now)
        if not delay:
            delay = job.backoff_delay(terms)
            if delay:  # not the job's own: that is what a client has given, and some release with it once more
                self.counters.retried += 1
                job.tube.counters.retried += 1
        self.enter(job, delay, now)
        self.record_change(job)
        return DONE

    def give_up_on(self, job: Job, terms: Terms, now: int) -> Outcome:
        """Send a job that has left its state to the dead tube, or bury it if its tube has none."""
        tube = job.tube
        name = tube.policy.dead_tube
        if not name or name == tube.name:
            self.bury_one(job)
            return BURIED_INSTEAD
        self.counters.dead += 1
        tube.counters.dead += 1
        origin = terms.origin or tube.name
        self.move_letter(job, terms, name, "" if origin == name else origin, now)
        return DONE

    def move_letter(self, job: Job, terms: Terms, name: str, origin: str, now: int) -> None:
        """Let a job that has left its state be ready in another tube, with all its tries.

        It loses its key if another job has it there.

        Args:
            origin: what is noted as the tube that it has come from; "" for none.
        """
        left = job.tube
        self.change_tube(job, terms, name, origin)
        terms.tries = 0
        terms.ready_since = 0
        self.enter_ready(job, now)
        self.record_change(job)
        if terms.labels is not None:
            self.review_group(job, terms, now)
        self.drop_unneeded(left)

    def change_tube(self, job: Job, terms: Terms, name: str, origin: str) -> None:
        """Let a job that has left its state belong to another tube, in none of its queues yet.

        It must have terms of its own, or the record of the change would not have the tube.
        """
        left = job.tube
        tube = self.tube(name)
        key = job.key
        size = self.body_size(job)
        self.memory.remove_job(job)
        left.bytes -= size
        left.remove_letter(terms)
        if key:
            assert left.keys is not None, "a job with a key is in its tube's keys"
            left.keys.remove(job)
            if self.holder(tube, key) is not None:
                job.key = ""
        job.tube = tube
        if terms.labels is not None and "/" not in terms.labels.limit:
            self.drop_limit(job)
            self.take_limit(job, is_moved=True)
        if job.key:
            self.add_key(tube, job)
        terms.origin = origin
        if origin:
            tube.add_letter(job, terms)
        self.memory.add_job(job)
        tube.bytes += size

    def move_one(self, job: Job, name: str, now: int) -> None:
        """Let a job be in another tube in the state that it is in, READY, DELAYED or BURIED, as the last of its equals.

        A dead letter stays one, unless that is the tube that it has come from.
        """
        left = job.tube
        state = job.state
        if state == READY:
            job.forget_since()  # the terms that it gets now will say that it is ready since now
        terms = self.memory.give_terms(job)
        moment = terms.at
        deadline = job.deadline
        origin = "" if terms.origin == name else terms.origin
        if waits(job):  # for its group, in the place that it has there
            left.delayed.remove(job)
            self.change_tube(job, terms, name, origin)
            job.tube.delayed.push(job, deadline)
        else:
            self.leave(job)
            self.change_tube(job, terms, name, origin)
            if state == READY:
                self.enter_ready(job, now)
            elif state == BURIED:
                self.enter_buried(job, job.tube.bury_sequence + 1)
            elif moment:
                terms.at = moment
                self.enter_timed(job, moment, now)
            else:
                self.enter_delayed(job, deadline)
        self.record_change(job)
        if terms.labels is not None:
            self.review_group(job, terms, now)
        self.drop_unneeded(left)

    def kick_one(self, job: Job, now: int) -> None:
        self.leave(job)
        job.forget_since()
        job.own_extras().kicks += 1
        terms = job.terms()
        if terms is not None:
            terms.tries = 0
        self.enter_ready(job, now)
        self.record_change(job)

    # Groups of jobs (groups.py)

    def must_wait(self, labels: Labels) -> bool:
        """Whether a job with these labels is to wait for a group: one that is open, or may begin."""
        group = self.groups.get(labels.after)
        return labels.after_waits if group is None or not group.has_begun else bool(group.members)

    def record_labelled(self, job: Job, labels: Labels, delay: int, now: int, replaced: Job | None = None) -> bool:
        """Record a job with labels that is about to be put, and before it the beginning of its group; False if there is
        no memory for them, or the journal has no room. The group is in `Labels.joined` then."""
        groups = self.groups
        group: Group | None = None
        cost = 0
        is_member = joins(job)
        if is_member:
            group = groups.get(labels.group)
            if group is None:
                cost = group_cost(labels.group)
        if job.deadline == NEVER and groups.get(labels.after) is None:
            cost += group_cost(labels.after)
        if not self.memory.admits(job, replaced, cost):
            return False
        is_new = is_member and (group is None or not group.id)
        if is_new:
            group = self.open_group(labels.group, now)
            if group is None:
                return False
        if self.record_put(job, delay, now):
            labels.joined = group
            return True
        if is_new and group is not None:
            self.record_delete(group)
            groups.undo_begin(group)
            if groups.get(labels.group) is None:
                self.memory.remove_group(labels.group)
        return False

    def open_group(self, name: str, now: int) -> Group | None:
        """The group of this name, which has begun, and is recorded; None if the journal has no room for it."""
        groups = self.groups
        group = groups.get(name)
        is_new = group is None
        if group is None:
            group = Group(name, now)
        elif group.id:
            return group
        group.id = self.take_id()
        if not group.has_begun:
            group.created_at = now
        if not self.record_group(group):
            group.id = 0
            return None
        groups.begin(group)
        if is_new:
            self.memory.add_group(name)
        return group

    def join_group(self, group: Group, job: Job, labels: Labels) -> None:
        """Let a job be a member of a group, which has begun."""
        self.groups.join(group, job, labels)

    def leave_group(self, group: Group, labels: Labels) -> None:
        """Let a job be a member no longer; the group has counted it."""
        if self.groups.leave(group, labels):
            self.end_group(group)

    def end_group(self, group: Group) -> None:
        """Let go what waits for a group that has begun and has no member left: `end_groups` follows at once."""
        self.groups.end(group)
        self.time_groups()

    def pass_on_group(self, old: Job, fresh: Job) -> None:
        """Let a job that replaces another one join its group. If it is another one, that counts the old job."""
        labels = fresh.labels()
        before = old.labels()
        group = None if before is None else before.joined
        if labels is not None and labels.joined is not None:
            if group is labels.joined and before is not None:
                self.groups.replace(group, before, fresh, labels)
                return
            self.join_group(labels.joined, fresh, labels)
        if group is not None and before is not None:
            group.count(END_CANCELLED)
            self.record_leave(group, END_CANCELLED, None)
            self.leave_group(group, before)

    def review_group(self, job: Job, terms: Terms, now: int) -> None:
        """Let a job whose tube has changed leave its group, if it has become a dead letter; or join it, if it is none
        any more."""
        labels = terms.labels
        if labels is None or not labels.group:
            return
        group = labels.joined
        if group is None and not terms.origin:
            group = self.open_group(labels.group, now)
            if group is not None:  # else there is no room to say so: it is none before the next start
                group.count(END_UNDONE)
                self.record_leave(group, END_UNDONE, None)
                self.join_group(group, job, labels)
        elif group is not None and terms.origin:
            group.count(END_DEAD)
            self.record_leave(group, END_DEAD, None)
            self.leave_group(group, labels)

    def enter_waiting(self, job: Job) -> None:
        """Make a job delayed until the end of the group that it comes after."""
        labels = job.labels()
        assert labels is not None, "a job that waits for a group has its name"
        job.state = DELAYED
        job.tube.delayed.push(job, NEVER)
        self.delayed += 1
        name = labels.after
        group = self.groups.get(name)
        if group is None:
            group = Group(name, 0)
            self.groups.add(group)
            self.memory.add_group(name)
        self.groups.await_end(group, job, labels)

    def enter_released(self, job: Job) -> None:
        """Make a job delayed until its turn comes, after its group has ended."""
        job.state = DELAYED
        job.tube.delayed.push(job, NEVER)
        self.delayed += 1
        self.groups.released.append(job)
        self.time_groups()

    def time_groups(self) -> None:
        """Let `end_groups` follow at once."""
        groups = self.groups
        if not (groups.is_linked() and groups.deadline == OVERDUE):
            self.wheel.set(groups, OVERDUE)

    def stop_awaiting(self, job: Job) -> None:
        labels = job.labels()
        assert labels is not None, "a job that waits for a group has its name"
        group = self.groups.stop_awaiting(labels)
        if group is not None and not group.has_begun:
            self.forget_group(group)

    def forget_group(self, group: Group) -> None:
        self.memory.remove_group(group.key)
        self.groups.forget(group)

    def drop_labels(self, job: Job, labels: Labels) -> None:
        """Take a job that is about to be forgotten out of what its labels have brought it into."""
        if labels.awaited is not None:  # a clear has taken it out of its queue
            self.stop_awaiting(job)
        if labels.joined is not None:
            self.leave_group(labels.joined, labels)

    # Clients that wait for a job, or get one

    def unuse(self, client: Client) -> None:
        if client.uses:
            left = client.use
            left.using -= 1
            self.drop_unneeded(left)
        client.use = self.tubes.default
        client.uses = False

    def leave_tube(self, client: Client, tube: Tube, position: int) -> None:
        assert not client.waiting, "a client waits in every tube that it watches"
        client.remove_watched(position)
        if len(client.watched) >= FREE_WATCHES:
            self.watches -= 1
        tube.watching -= 1
        self.drop_unneeded(tube)

    def stop_waiting(self, client: Client) -> bool:
        if not client.waiting:
            return False
        self.end_wait(client)
        self.cost += wait_cost(len(client.watched))
        for position, tube in enumerate(client.watched):
            client.waits[position].unlink()
            tube.waiting_count -= 1
        return True

    def end_wait(self, client: Client) -> None:
        """Note that the client waits no longer. The tubes that it waited in still list it."""
        client.waiting = False
        self.waiting -= 1
        if client.is_linked():
            self.wheel.remove(client)

    def serve_waiting(self, tube: Tube, budget: int, now: int) -> int:
        """Give the best ready jobs of a tube to the clients that have waited longest; return the rest of the budget.

        If nothing is left, there may be more to do: then the tube is in the wheel, as the timer that continues it.
        """
        while tube.waiting_count and not tube.blocked and tube.ready.first() is not None:
            if not budget:
                if not tube.is_linked():
                    self.wheel.set(tube, OVERDUE)
                return 0
            wait = tube.waiting.after
            assert isinstance(wait, Wait)
            client = wait.client
            if client.leaving:
                wait.unlink()
                tube.waiting_count -= 1
                continue
            budget = max(budget - 1 - wait_cost(len(client.watched)), 0)
            self.stop_waiting(client)
            if client.batch:
                budget = max(budget - self.serve_batch(tube, client, now), 0)
                continue
            job = tube.ready.first()
            assert job is not None, "the tube has a job for the client"
            self.reserve_ready(job, client, now)
            self.give(client, job)
        return budget

    def serve_batch(self, tube: Tube, client: Client, now: int) -> int:
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
            self.reserve_ready(job, client, now)
            batch.append(job)
            size += self.body_size(job)
        self.give_batch(client, batch)
        return len(batch)

    def give(self, client: Client, job: Job) -> Outcome:
        """Give a client the job that it has reserved, now or when its body has been fetched."""
        if job.body is NOT_IN_MEMORY:
            return self.deliver(client, [job], client.on_reserved)
        client.on_reserved(job)
        return DONE

    def give_batch(self, client: Client, jobs: list[Job]) -> Outcome:
        """Give a client the jobs that it has reserved, now or when their bodies have been fetched."""
        for job in jobs:
            if job.body is NOT_IN_MEMORY:
                return self.deliver(client, jobs, None)
        client.on_reserved_batch(jobs)
        return DONE

    def deliver(self, client: Client, jobs: list[Job], tell: Callable[[Job], None] | None) -> Outcome:
        """Have the journal fetch the bodies of jobs, and then give the client its answer."""
        client.busy = True
        self.journal.fetch(jobs, BodyRead(client, jobs, tell).on_fetched)
        return PENDING

    # Timers that are due

    def end_time(self, job: Job, now: int, budget: int) -> int:
        self._end_time(job, now)
        # Its body may have been copied into a reply, if it was in memory.
        return max(budget - copy_cost(len(job.body)) - self.cost, 0)

    def _end_time(self, job: Job, now: int) -> None:
        if job.tube.is_cleared(job):
            return
        if job.state == DELAYED:
            due = job.deadline
            self.note_lateness(job, now - due)
            job.tube.delayed.remove(job)
            self.delayed -= 1
            self.note_ready_since(job, due)
            self.enter_ready(job, now)
            return
        client = job.client
        assert client is not None, "only delayed and reserved jobs come due"
        if not job.in_safety_margin:
            job.in_safety_margin = True
            client.jobs_in_safety_margin += 1
            self.wheel.set(job, job.deadline + SAFETY_MARGIN)
            if self.stop_waiting(client):
                client.on_outcome(DEADLINE_SOON)
            return
        is_counted = job.counts_failures()
        if is_counted and self.admits != ALL:
            self.suspended.append(job)
            return
        job.own_extras().timeouts += 1
        self.timeouts += 1
        if client.weights is not None:
            client.weights.note_time(job, job.deadline, True)
        self.leave_reserved(job)
        if is_counted:
            self.fail(job, RUN_OUT, 0, now)
        else:
            self.enter_ready(job, now)
            self.record_stay(job)

    def end_life(self, expiry: Expiry, now: int, budget: int) -> int:
        self._end_life(expiry, now)
        return max(budget - self.cost, 0)

    def _end_life(self, expiry: Expiry, now: int) -> None:
        """End a ready job whose time to live is over, as soon as the journal admits it."""
        job = expiry.job
        tube = job.tube
        if tube.is_cleared(job):
            return
        dead_tube = tube.policy.dead_tube
        is_moved = bool(dead_tube) and dead_tube != tube.name
        hold = job.key_hold()
        if (is_moved or hold) and self.admits != ALL:
            self.suspended.append(expiry)
            return
        if self.admits == NONE:
            self.suspended_deletions.append(expiry)
            return
        self.cost += EXPIRY_COST
        self.counters.expired += 1
        tube.counters.expired += 1
        if is_moved:
            self.leave_ready(job)
            terms = job.own_terms()
            terms.reason = EXPIRED
            self.give_up_on(job, terms, now)
        else:
            self.end_job(job, now + hold if hold else 0, True)

    def end_hold(self, held: HeldKey, budget: int) -> int:
        """Free a key whose time is over, as soon as the journal admits it."""
        tube = held.tube
        if tube.is_cleared(held):
            return budget
        if self.admits == NONE:
            self.suspended_deletions.append(held)
            return budget
        self.record_delete(held)
        tube.remove_held(held)
        self.free_key(held)
        self.drop_unneeded(tube)
        return budget

    def end_timeout(self, client: Client, budget: int) -> int:
        self.stop_waiting(client)
        client.on_outcome(TIMED_OUT)
        return max(budget - self.cost, 0)

    def end_pause(self, tube: Tube, now: int, budget: int) -> int:
        tube.pause = 0
        tube.set_blocked()
        return self.serve_waiting(tube, max(budget, 1), now)

    def end_throttling(self, throttle: Throttle, now: int, budget: int) -> int:
        tube = throttle.tube
        throttle.look(now)
        budget = self.serve_waiting(tube, max(budget, 1), now)
        if throttle.full_at <= now and not tube.is_needed():
            throttle.full_at = 0
        self.drop_unneeded(tube)
        return budget

    def end_withdrawal(self, limit: Limit, now: int, budget: int) -> int:
        budget = max(budget, 1)
        while budget > 0:
            tube = limit.next_tube()
            if tube is None:
                return budget
            budget = self.serve_waiting(tube, budget, now) - 1
        if limit.has_offer():
            self.wheel.set(limit, OVERDUE)
        return 0

    def begin_moment(self, wall: WallClock, now: int, budget: int) -> int:
        """Make jobs ready whose moments have come. If nothing is left of the budget, there may be more to do: then the
        timer, which is that of the next job, is overdue."""
        budget = max(budget, 1)
        moment = now + wall.offset
        try:
            while budget and wall.heaps:
                job = wall.heaps[0].jobs[0]
                if job.deadline > moment:
                    break
                self.note_lateness(job, moment - job.deadline)
                self.end_moment(job)
                self.delayed -= 1
                self.cost = 0
                self.enter_ready(job, now)
                budget = max(budget - 1 - copy_cost(len(job.body)) - self.cost, 0)
        finally:
            self.time_wall_clock()
        return budget

    def check_wall_clock(self, check: WallCheck, now: int, budget: int) -> int:
        self.wheel.set(check, now + WALL_CHECK)  # the caller of `advance` has told what the wall clock says
        return budget

    def end_groups(self, groups: Groups, now: int, budget: int) -> int:
        """Let jobs go whose groups have ended, as soon as the journal admits it; then note the ends of the groups."""
        budget = max(budget, 1)
        released = groups.released
        while budget and not released.is_empty():
            if self.admits != ALL:
                self.suspended.append(groups)
                return budget
            job = released.after
            assert isinstance(job, Job), "only jobs wait for groups"
            budget -= 1
            if job.tube.is_cleared(job):
                job.unlink()
                continue
            self.cost = 0
            self.leave_delayed(job)
            delay = job.delay
            if delay:
                self.enter_delayed(job, now + delay)
            else:
                self.enter_ready(job, now)
            self.record_change(job)
            budget = max(budget - copy_cost(len(job.body)) - self.cost, 0)
        while budget and not groups.ending.is_empty():
            budget -= 1
            self.time_forgetting(groups.note_end(now))
        if groups.is_due():
            self.wheel.set(groups, OVERDUE)
        return budget

    def time_forgetting(self, ended: EndedGroups) -> None:
        """Let `forget_groups` follow in time."""
        due = ended.next_due()
        if due >= 0 and not (ended.is_linked() and ended.deadline <= due):
            self.wheel.set(ended, due)

    def forget_groups(self, ended: EndedGroups, now: int, budget: int) -> int:
        """Forget groups of a user whose time is over, or that are too many, as soon as the journal admits it."""
        budget = max(budget, 1)
        while budget:
            group = ended.first()
            if group is None or (group.deadline > now and ended.count <= ended.most):
                break
            if self.admits == NONE:
                self.suspended_deletions.append(ended)
                return budget
            budget -= 1
            if group.id:
                self.record_delete(group)
            self.forget_group(group)
        self.time_forgetting(ended)
        return budget


def joins(job: Job) -> bool:
    """Whether a job that is put is a member of a group: not if it takes the place of a dead letter."""
    terms = job.terms()
    return terms is not None and terms.labels is not None and bool(terms.labels.group) and not terms.origin
