"""A broker written to be obviously right: lists, linear searches, no cleverness. The real one must agree with it.

Time is as coarse as the wheel's: what has a deadline happens at the first tick that is not before it, in the order in
which the deadlines were set.
"""

import copy
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from beanstalk_server.queue.job import DISCONNECTED, EXPIRED, MAX_U32, NEVER, NO_REASON, RELEASED, RUN_OUT
from beanstalk_server.queue.outcome import (
    AGAIN,
    BURIED_INSTEAD,
    DEADLINE_SOON,
    DONE,
    DRAINING,
    EXISTS,
    NOT_FOUND,
    NOT_IGNORED,
    PENDING,
    REPLACED,
    TIMED_OUT,
    TOO_BIG,
    TOO_LATE,
)
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels
from beanstalk_server.queue.units import FOREVER
from beanstalk_server.queue.weights import FAIR, PRIORITY, REMEMBERED

SAFETY_MARGIN = 1_000_000_000
NO_ATTRIBUTES = Attributes()
NO_LABELS = Labels()


@dataclass(eq=False)
class ModelJob:
    id: int
    priority: int
    delay: int
    ttr: int
    tube: str
    state: str = "new"
    client: "ModelClient | None" = None
    deadline: int = 0
    in_safety_margin: bool = False
    key: str = ""
    ttl: int = 0
    key_hold: int = 0
    has_terms: bool = False
    since: int = 0  # since when it is ready, or was before it was reserved; 0 if that is not known
    is_stored: bool = False  # a restart knows since when
    expires_at: int = 0  # while it is ready; 0 for never
    expiry_order: int = 0
    at: int = 0  # while it waits for a moment of the wall clock: that moment
    order: int = 0  # of the last thing that happened to it: of setting its deadline, of being buried
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    max_tries: int = 0
    backoff: int = 0
    tries: int = 0
    reason: int = NO_REASON
    origin: str = ""
    size: int = 0  # of its body
    letter: int = 0  # of its arrival in a dead tube, as an order
    group: str = ""
    after: str = ""  # while it waits for a group: the group's name
    is_released: bool = False  # that has ended, and it is about to be ready
    share: str = ""
    limit: str = ""
    limit_count: int = 0
    created_at: int = 0
    reserved_since: int = 0
    noted_since: bool = False  # its client had a name then
    again: object = (
        None  # while it is reserved, and has been replaced: the attributes, and its time to run from then on
    )

    def limit_name(self):
        """A limit without a slash is one of the job's tube."""
        return self.limit if "/" in self.limit else self.limit and f"{self.tube}/{self.limit}"


@dataclass(eq=False)
class ModelKey:
    """A held key, or a token, after a hyphen."""

    id: int
    tube: str
    key: str
    free_at: int
    order: int
    job_id: int = 0  # that of the job that was put with the token


@dataclass(eq=False)
class ModelGroup:
    """A group that has begun. Its members are the jobs with its name, apart from dead letters."""

    ends: Counter = field(default_factory=Counter)
    has_ended: bool = False
    forget_at: int = 0  # when that has been noted; 0 before


@dataclass(eq=False)
class ModelClient:
    use: str = "default"
    watched: list = field(default_factory=lambda: ["default"])
    held: list = field(default_factory=list)
    batch: int = 0
    uses: bool = True  # else a tube elsewhere
    counted: bool = True
    producer: bool = False
    worker: bool = False
    waiting: int = 0  # since when, as an order; 0 while it is not
    until: int = 0
    answers: list = field(default_factory=list)
    name: str = ""
    mode: int = PRIORITY
    served_at: Fraction = Fraction(0)  # the greatest finish with which a tube has been served
    turns: dict = field(default_factory=dict)  # by tube


@dataclass(eq=False)
class ModelTurn:
    """What a tube has had of a client."""

    weight: int = 0
    finish: Fraction = Fraction(0)
    is_idle: bool = True
    expected: list = field(default_factory=lambda: [0, 0])  # of its reserved jobs: how many, and nanoseconds
    ran: list = field(default_factory=lambda: [0, 0])  # of those before: how many, and nanoseconds


class Model:
    def __init__(self, tick):
        self.tick = tick
        self.jobs = []
        self.clients = []
        self.paused = {}  # tube -> (end, order)
        self.deletes = 0
        self.order = 0
        self.present = 0  # the last tick at which time has done something: what is due at once follows all else of it
        self.total_connections = 0
        self.wall_offset = 0  # the wall clock minus the clock
        self.wall_timer = None  # when the next moment of the wall clock comes, and since when that is known
        self.policies = {}  # of the tubes that have one
        self.held = []
        self.counted = Counter()  # what the policies have done
        self.full_at = {}  # tube -> when its bucket is full again; not in here if it is
        self.tokenless = {}  # tube without a token -> (when it has one, order)
        self.freed = {}  # tube where a place has become free for a client that waits -> order
        self.groups = {}
        self.group_ttl = 4_000_000_000  # nanoseconds
        self.ending = None  # since when a group has ended, as an order, and nothing has come of it yet
        self.turns = {}  # (tube, priority, share) with ready jobs -> the number of its turn
        self.limits = {}  # limit -> how many of its jobs may be reserved
        self.offers = {}  # limit that has a place for clients that wait -> (order, the tubes where they do)

    def next_order(self):
        self.order += 1
        return self.order

    def find(self, job_id):
        return next((job for job in self.jobs if job.id == job_id), None)

    def of(self, tube, state):
        return [job for job in self.jobs if job.tube == tube and job.state == state]

    def tubes(self):
        return self.needed_tubes() | set(self.full_at)

    def needed_tubes(self):
        names = {"default"} | {job.tube for job in self.jobs + self.held} | set(self.paused)
        for client in self.clients:
            names |= {client.use, *client.watched}
        return names

    # What clients do

    def connect(self, client):
        self.clients.append(client)
        self.total_connections += client.counted

    def counts(self):
        """The clients that the statistics count: all, producers, workers, those that wait."""
        counted = [client for client in self.clients if client.counted]
        return [
            len(counted),
            sum(client.producer for client in self.clients),
            sum(client.worker for client in self.clients),
            sum(client.waiting > 0 for client in self.clients),
        ]

    def put(self, client, job_id, priority, delay, ttr, now, size, attributes=NO_ATTRIBUTES):
        refused = self.refused(client.use, delay, size, now, attributes)
        if refused is not None:
            return refused
        job = ModelJob(job_id, priority, delay, ttr, client.use, key=attributes.key, size=size, created_at=now)
        waits = self.must_wait(attributes.labels or NO_LABELS)
        self.jobs.append(job)
        self.demand(job, attributes)
        self.join(job, attributes.labels or NO_LABELS)
        self.enter(job, delay, now, attributes, waits)
        return DONE

    def put_batch(self, client, job_ids, priority, delay, ttr, now, sizes):
        refused = self.refused(client.use, delay, sum(sizes), now, NO_ATTRIBUTES, None, len(sizes), max(sizes))
        if refused:
            return refused
        client.answers.append(("put batch", len(job_ids), job_ids[0], job_ids[-1]))
        for job_id, size in zip(job_ids, sizes, strict=True):
            self.put(client, job_id, priority, delay, ttr, now, size)
        return DONE

    def each(self, client, outcomes):
        missing = outcomes.count(NOT_FOUND)
        client.answers.append(("counted", len(outcomes) - missing, missing))
        return DONE

    def refused(self, tube, delay, size, now, attributes, replaced=None, count=1, largest=0):
        """The outcome of a put that a limit refuses, or None."""
        policy = self.policies.get(tube, NO_POLICY)
        if attributes.at:
            delay = max(attributes.at - self.wall_offset - now, 0)
        jobs = [job for job in self.jobs if job.tube == tube]
        holds = attributes.once or (attributes.key and (attributes.key_hold or policy.key_hold))
        held = sum(each.tube == tube for each in self.held)
        growth = size - replaced.size if replaced else size
        limits = [
            ("refused_size", TOO_BIG, largest or size, policy.max_job_size),
            ("refused_delay", DRAINING, delay, policy.max_delay),
            ("refused_jobs", DRAINING, 0 if replaced else len(jobs) + count, policy.max_jobs),
            ("refused_jobs", DRAINING, held + 1 if holds else 0, policy.max_held_keys or policy.max_jobs),
            ("refused_bytes", DRAINING, growth and sum(job.size for job in jobs) + growth, policy.max_bytes),
        ]
        if growth < 0:
            limits.pop()
        for name, outcome, wanted, limit in limits:
            if limit and wanted > limit:
                self.counted[name] += 1
                return outcome
        return None

    def find_keyed(self, tube, key):
        return next((job for job in self.jobs if job.tube == tube and job.key == key), None)

    def find_held(self, tube, key):
        return next((held for held in self.held if held.tube == tube and held.key == key), None)

    def put_with(self, client, job_id, attributes, priority, delay, ttr, now, size):
        key, replaces = attributes.key, attributes.replaces
        job = self.find_keyed(client.use, key) if key else None
        held = self.find_held(client.use, key)
        client.answers.append(("keyed", (job or held).id if job or held else job_id))
        if held:
            return TOO_LATE if replaces else EXISTS
        if job is not None and not replaces:
            return EXISTS
        if job is not None and job.client is not None and not attributes.again:
            return TOO_LATE
        first = now if job is None or job.client is not None else job.created_at
        delay, attributes = self.limited(delay, attributes, first, now)
        if job is None:
            return self.put(client, job_id, priority, delay, ttr, now, size, attributes)
        refused = self.refused(job.tube, delay, size, now, attributes, job)
        if refused is not None:
            return refused
        labels = attributes.labels or NO_LABELS
        waits = self.must_wait(labels)
        left = job.limit_name()
        self.renew(job)
        job.size, job.created_at, job.priority, job.delay = size, first, priority, delay
        self.demand(job, attributes)
        if job.client is not None:
            job.again, job.has_terms, job.order = (attributes, ttr), True, self.next_order()
            self.offer(left)
        else:
            job.state, job.ttr = "new", ttr
            self.end_moment(job)
            job.after, job.is_released = "", False
            self.enter(job, delay, now, attributes, waits)
        if job.group != labels.group:
            self.leave(job, "cancelled")
            self.join(job, labels)
            self.note_ends()
        return AGAIN if job.again and job.client is not None else REPLACED

    def put_once(self, client, job_id, token_id, attributes, priority, delay, ttr, now, size):
        """Put with a token, which has the id after that of a new job."""
        key = f"-{attributes.once}"
        taken = self.find_held(client.use, key)
        if taken:
            client.answers.append(("keyed", taken.job_id))
            return EXISTS
        outcome = self.put_with(client, job_id, attributes, priority, delay, ttr, now, size)
        if outcome in (DONE, REPLACED, AGAIN):
            token_id = token_id if outcome == DONE else job_id
            put_id = next(each[1] for each in reversed(client.answers) if each[0] == "keyed")
            free_at = now + attributes.once_ttl
            self.held.append(ModelKey(token_id, client.use, key, free_at, self.next_order(), put_id))
        return outcome

    def limited(self, delay, attributes, first, now):
        """The delay and the attributes of a put, as far as `within` allows them."""
        latest = max(first + attributes.within, now)
        if not attributes.within:
            return delay, attributes
        limited = copy.copy(attributes)
        if attributes.at:
            limited.at = min(attributes.at, latest + self.wall_offset)
        return min(delay, latest - now), limited

    def runs_again(self, job, now):
        """Whether a job that no client has any more was replaced meanwhile: then it is put."""
        if job.again is None:
            return False
        (attributes, job.ttr), job.again = job.again, None
        self.enter(job, job.delay, now, attributes, self.must_wait(attributes.labels or NO_LABELS))
        return True

    def enter(self, job, delay, now, attributes, waits):
        """It is put: it waits for a group, or is ready or delayed."""
        if not waits:
            self.ready_or_delayed(job, delay, now, attributes.at)
            return
        job.state, job.after, job.order = "delayed", attributes.labels.after, self.next_order()
        job.since, job.expires_at, job.deadline = 0, 0, NEVER

    def demand(self, job, attributes):
        """This is what its producer and its tube demand of a job that is put."""
        job.max_tries, job.backoff = attributes.max_tries, attributes.backoff
        job.ttl, job.key_hold = attributes.ttl, attributes.key_hold
        policy = self.policies.get(job.tube, NO_POLICY)
        labels = attributes.labels or NO_LABELS
        job.share, job.limit = labels.share or policy.share_of(job.key), labels.limit
        terms = (attributes.at, job.max_tries, job.backoff, job.ttl, job.key_hold, job.origin, policy.ttl, job.share)
        job.has_terms = any(terms) or attributes.labels is not None
        job.limit_count = labels.limit_count
        self.set_limit(job)

    def set_limit(self, job):
        """The last job that has been put says how many with its limit may be reserved."""
        if job.limit:
            self.limits[job.limit_name()] = job.limit_count
            self.offer(job.limit_name())

    def change_tube(self, job, tube):
        """A job that moves says so only if no other one with its limit is there."""
        if job.limit:
            job.limit_count = self.limits[job.limit_name()]
        job.tube = tube
        if job.limit and not any(other is not job and other.limit_name() == job.limit_name() for other in self.jobs):
            self.limits[job.limit_name()] = job.limit_count

    def is_limited(self, job):
        limit = job.limit_name()
        held = [other for other in self.jobs if other.state == "reserved" and other.limit_name() == limit]
        return limit != "" and len(held) >= self.limits[limit]

    def offer(self, limit):
        """If there is a place, clients that wait for jobs with this limit get them: the first job first."""
        jobs = [
            job for job in self.jobs if job.state == "ready" and job.limit_name() == limit and not self.is_limited(job)
        ]
        jobs.sort(key=lambda job: (job.priority, job.id))
        found = [job.tube for job in jobs if self.is_waited_for(job.tube) and not self.is_blocked(job.tube)]
        if found:
            _, tubes = self.offers.setdefault(limit, (self.next_order(), []))
            tubes.extend(tube for tube in dict.fromkeys(found) if tube not in tubes)

    def on_offer(self, limit, now):
        _, tubes = self.offers.pop(limit)
        for tube in tubes:
            self.match(now, tube)

    def take_place_among_shares(self, job):
        """It is ready now. A share that had no ready job comes last."""
        if job.share:
            others = [other for other in self.of(job.tube, "ready") if other is not job]
            if not any(other.priority == job.priority and other.share == job.share for other in others):
                self.end_turn(job)

    def end_turn(self, job):
        self.turns[job.tube, job.priority, job.share] = self.next_order()

    def next_of(self, tube):
        """The job of a tube that is reserved next."""
        ready = [job for job in self.of(tube, "ready") if not self.is_limited(job)]
        next_turn = {}
        for job in ready:
            if job.share:
                turn = self.turns[tube, job.priority, job.share]
                next_turn[job.priority] = min(next_turn.get(job.priority, turn), turn)
        shown = [
            job
            for job in ready
            if not job.share or self.turns[tube, job.priority, job.share] == next_turn[job.priority]
        ]
        return min(shown, key=lambda job: (job.priority, job.id), default=None)

    def renew(self, job):
        """Another job takes its place, which has its id, its key and its past, and all its tries."""
        job.max_tries = job.backoff = job.tries = job.ttl = job.key_hold = 0
        if job.origin:
            job.letter = self.next_order()
        else:
            job.reason = NO_REASON

    def cancel(self, job_id):
        job = self.find(job_id)
        if job is None or job.state != "delayed":
            return NOT_FOUND if job is None else TOO_LATE
        self.remove(job, "cancelled")
        self.set_wall_timer()
        return DONE

    def remove(self, job, end):
        """It is deleted."""
        self.leave(job, end)
        self.jobs.remove(job)
        self.note_ends()

    # Groups

    def members(self, name):
        return [job for job in self.jobs if job.group == name and not job.origin]

    def waiting(self, name):
        """The jobs that wait for a group, in the order in which they came."""
        found = [job for job in self.jobs if job.after == name and not job.is_released]
        return sorted(found, key=lambda job: job.order)

    def must_wait(self, labels):
        if not labels.after:
            return False
        return bool(self.members(labels.after)) if labels.after in self.groups else labels.after_waits

    def join(self, job, labels):
        job.group = labels.group
        if job.group and not job.origin:
            self.groups.setdefault(job.group, ModelGroup()).has_ended = False
            self.groups[job.group].forget_at = 0

    def leave(self, job, end):
        if job.group and not job.origin:
            self.groups[job.group].ends[end] += 1

    def note_ends(self):
        """Groups without a member end: what waits for them is released."""
        for name, group in self.groups.items():
            if not self.members(name) and not group.has_ended:
                group.has_ended = True
                self.let_go(self.waiting(name))

    def let_go(self, jobs):
        for job in jobs:
            job.is_released, job.order = True, self.next_order()
        self.ending = self.ending or self.next_order()

    def cancel_group(self, client, name):
        if name not in self.groups and not self.waiting(name):
            return NOT_FOUND
        cancelled = [job for job in self.members(name) if job.state != "reserved"]
        for job in cancelled:
            self.remove(job, "cancelled")
        self.set_wall_timer()
        client.answers.append(("counted", len(cancelled)))
        return DONE

    def on_ends(self, _, now):
        self.ending = None
        for job in sorted((job for job in self.jobs if job.is_released), key=lambda job: job.order):
            self.ready_or_delayed(job, job.delay, now)
        for group in self.groups.values():
            if group.has_ended and not group.forget_at:
                group.forget_at = now + self.group_ttl

    def on_forget(self, name, now):
        del self.groups[name]

    def reschedule(self, job_id, delay, now):
        job = self.find(job_id)
        if job is None or job.state != "delayed":
            return NOT_FOUND if job is None else TOO_LATE
        job.delay = delay
        self.ready_or_delayed(job, delay, now)
        return DONE

    def reprioritize(self, job, priority, now):
        if job is None or job.state == "reserved":
            return NOT_FOUND if job is None else TOO_LATE
        job.priority = priority
        if job.state == "ready":
            self.ready_again(job, now)
        return DONE

    def ready_again(self, job, now):
        """It is ready as before, in another place."""
        job.expires_at = 0
        self.take_place_among_shares(job)
        self.set_expiry(job, now)
        self.match(now, job.tube)

    def clear(self, client, tube):
        if tube not in self.tubes():
            return NOT_FOUND
        self.held = [held for held in self.held if held.tube != tube]
        cleared = [job for job in self.jobs if job.tube == tube and job.state != "reserved"]
        for job in cleared:
            self.remove(job, "cancelled")
        self.set_wall_timer()
        client.answers.append(("counted", len(cleared)))
        return DONE

    def reserve(self, client, timeout, now):
        client.worker = True
        job = self.reserve_best(client, now)
        if job is None:
            return self.wait(client, timeout, 0, now)
        client.answers.append(("reserved", job.id))
        return DONE

    def reserve_batch(self, client, limit, timeout, now):
        client.worker = True
        batch = self.best_batch(client, limit, now)
        if not batch:
            return self.wait(client, timeout, limit, now)
        client.answers.append(("batch", *batch))
        return DONE

    def best_batch(self, client, limit, now, tube=None):
        """The ids of the jobs that the client gets: of all tubes that it watches, or of this one."""
        job_ids = []
        while len(job_ids) < limit and (job := self.reserve_best(client, now, tube)):
            job_ids.append(job.id)
        return job_ids

    def ready_or_delayed(self, job, delay, now, at=0, since=0):
        self.end_moment(job)
        job.after, job.is_released = "", False
        job.since, job.expires_at = since, 0
        job.client = None
        job.in_safety_margin = False
        if at > now + self.wall_offset:
            job.state, job.at = "delayed", at
            self.set_wall_timer()
        elif delay:
            job.state, job.deadline, job.order = "delayed", now + delay, self.next_order()
        else:
            job.state = "ready"
            self.take_place_among_shares(job)
            self.set_expiry(job, now)
            self.match(now, job.tube)

    def ttl_of(self, job):
        return job.ttl or self.policies.get(job.tube, NO_POLICY).ttl

    def set_expiry(self, job, now):
        """Let a job that is ready expire in time, if it has a time to live."""
        ttl = self.ttl_of(job)
        job.has_terms = job.has_terms or ttl > 0
        job.since = (job.since or now) if job.has_terms else 0
        job.is_stored = ttl > 0
        expires_at = max(job.since + ttl, now // self.tick * self.tick) if ttl else 0
        if job.expires_at != expires_at:
            job.expires_at, job.expiry_order = expires_at, self.next_order()

    def change_policy(self, tube, policy, now):
        """Waiting clients come first. Another time to live concerns the ready jobs, from the last to the first."""
        before = {job: self.ttl_of(job) for job in self.jobs}
        old = self.policies.get(tube, NO_POLICY)
        self.policies[tube] = policy
        is_reviewed = tube in self.tubes() and policy.ttl != old.ttl
        if (policy.interval, policy.burst) != (old.interval, old.burst):
            self.change_rate(tube, old, policy, now)
        self.match(now, tube)
        for job in sorted(self.jobs, key=lambda job: -job.id):
            if job.state == "ready" and self.ttl_of(job) != before[job]:
                is_stored = job.is_stored or not before[job]  # a time to live that begins is recorded
                self.set_expiry(job, now)
                job.is_stored = job.is_stored and is_stored
            elif job.state == "reserved" and self.ttl_of(job) and is_reviewed:
                job.has_terms = True

    def on_expiry(self, job, now):
        dead_tube = self.policies.get(job.tube, NO_POLICY).dead_tube
        self.counted["expired"] += 1
        if dead_tube not in ("", job.tube):
            job.reason = EXPIRED
            self.give_up(job, dead_tube, now)
        else:
            self.remove(job, "expired")
            self.hold_key(job, now)

    def hold_key(self, job, now):
        hold = job.key_hold or self.policies.get(job.tube, NO_POLICY).key_hold
        if job.key and hold:
            self.held.append(ModelKey(job.id, job.tube, job.key, now + hold, self.next_order()))

    def on_free(self, held, now):
        self.held.remove(held)

    def find_best(self, client, tube=None):
        tubes = [tube] if tube else client.watched
        found = [job for tube in tubes if not self.is_blocked(tube) and (job := self.next_of(tube))]
        if tube or client.mode == PRIORITY:
            return min(found, key=lambda job: (job.priority, job.id), default=None)
        for tube in client.watched:
            turn = client.turns.get(tube)
            if turn and tube not in [job.tube for job in found]:
                turn.is_idle = True
        for job in found:
            self.begin_turn(client, client.turns.setdefault(job.tube, ModelTurn()))
        return min(found, key=lambda job: (client.turns[job.tube].finish, job.priority, job.id), default=None)

    def set_mode(self, client, mode):
        if client.mode or client.turns or mode:
            client.mode, client.served_at = mode, Fraction(0)
            client.turns = {tube: ModelTurn(turn.weight) for tube, turn in client.turns.items()}

    def begin_turn(self, client, turn):
        if turn.is_idle:
            turn.is_idle, turn.finish = False, max(turn.finish, client.served_at)

    def charge(self, tube, turn, cost):
        weight = turn.weight or self.policies.get(tube, NO_POLICY).weight
        turn.finish = max(turn.finish + Fraction(cost, weight), Fraction(0))

    def note_turn(self, job, client):
        """The client has reserved a job."""
        turn = client.turns.get(job.tube)
        if turn is None or client.mode == PRIORITY:
            return
        self.begin_turn(client, turn)
        client.served_at = max(client.served_at, turn.finish)
        cost = 1
        if client.mode == FAIR:
            jobs, nanoseconds = turn.ran
            cost = nanoseconds // jobs if jobs else 1_000_000
            turn.expected = [turn.expected[0] + 1, turn.expected[1] + cost]
        self.charge(job.tube, turn, cost)

    def note_time(self, job, now, ends=True):
        """The client touches a job that it has, or ends its reservation."""
        turn = job.client.turns.get(job.tube)
        if turn is None or job.client.mode != FAIR:
            return
        took = max(now - (job.deadline - job.ttr), 0)
        turn.ran = [turn.ran[0] + ends, turn.ran[1] + took]
        if turn.ran[0] >= REMEMBERED:
            turn.ran = [count // 2 for count in turn.ran]
        self.charge(job.tube, turn, took - (self.take_back(turn) if ends else 0))

    def note_undone(self, job):
        turn = job.client.turns.get(job.tube)
        if turn and job.client.mode:
            self.charge(job.tube, turn, -self.take_back(turn) if job.client.mode == FAIR else -1)

    def take_back(self, turn):
        jobs, nanoseconds = turn.expected
        each = nanoseconds // jobs if jobs else 0
        turn.expected = [max(jobs - 1, 0), nanoseconds - each]
        return each

    def probe(self, client):
        client.worker = True
        job = self.find_best(client)
        if job is None:
            return DEADLINE_SOON if any(job.in_safety_margin for job in client.held) else NOT_FOUND
        client.answers.append(("best", job.priority, job.id))
        return DONE

    def reserve_best(self, client, now, tube=None):
        job = self.find_best(client, tube)
        if job is not None:
            self.end_turn(job)
            self.hold(job, client, now)
        return job

    def end_moment(self, job):
        """It waits for the wall clock no longer."""
        job.at = 0
        self.set_wall_timer()

    def set_wall_timer(self):
        moment = min((job.at for job in self.jobs if job.at), default=None)
        if moment is None:
            self.wall_timer = None
        elif self.wall_timer is None or self.wall_timer[0] != moment - self.wall_offset:
            self.wall_timer = (moment - self.wall_offset, self.next_order())

    def set_wall_offset(self, offset):
        self.wall_offset = offset
        self.set_wall_timer()

    def due(self, job):
        """When the delay of a delayed job ends, or the ttr of a reserved one, by the clock. What waits for a group is
        due after all else."""
        return job.at - self.wall_offset if job.at else job.deadline

    def hold(self, job, client, now):
        self.end_moment(job)
        job.after, job.is_released = "", False
        if job.state != "ready":
            job.since = 0
        job.is_stored, job.expires_at = self.ttl_of(job) > 0, 0
        job.state, job.client = "reserved", client
        job.reserved_since, job.noted_since = now, client.name != ""
        job.reserves += 1
        self.take_token(job.tube, now)
        client.held.append(job)
        self.note_turn(job, client)
        self.set_time_to_run(job, now)

    def set_time_to_run(self, job, now):
        job.in_safety_margin = job.ttr <= SAFETY_MARGIN
        job.deadline = now + job.ttr
        job.order = self.next_order()

    def wait(self, client, timeout, batch, now):
        if any(job.in_safety_margin for job in client.held):
            return DEADLINE_SOON
        if timeout == 0:
            return TIMED_OUT
        client.waiting, client.batch = self.next_order(), batch
        client.until = 0 if timeout == FOREVER else now + timeout
        return PENDING

    def lacks_place(self, tube):
        limit = self.policies.get(tube, NO_POLICY).max_reserved
        return 0 < limit <= len(self.of(tube, "reserved"))

    def is_throttled(self, tube):
        return tube in self.tokenless or self.lacks_place(tube)

    def is_blocked(self, tube):
        return tube in self.paused or self.is_throttled(tube)

    def change_rate(self, tube, old, new, now):
        """There are as many tokens as before, or the whole burst if that is less or there was no rate."""
        exists = tube in self.tubes()
        full_at = max(self.full_at.pop(tube, 0), now)
        self.tokenless.pop(tube, None)
        if exists and new.interval and old.interval:
            token_in = full_at - (old.burst - 1) * old.interval - now
            full_at = now + token_in * new.interval // old.interval + (new.burst - 1) * new.interval
            if full_at > now:
                self.full_at[tube] = full_at
                self.await_token(tube, now)

    def is_waited_for(self, tube):
        return any(client.waiting and tube in client.watched for client in self.clients)

    def take_token(self, tube, now):
        interval = self.policies.get(tube, NO_POLICY).interval
        if interval:
            full_at = self.full_at.get(tube, 0)
            if full_at <= now - self.tick or not full_at:
                full_at = now
            self.full_at[tube] = full_at + interval
            self.await_token(tube, now)

    def give_token_back(self, tube, now):
        if tube in self.full_at:
            self.full_at[tube] -= self.policies[tube].interval
            self.await_token(tube, now)
            if not self.full_at[tube]:
                del self.full_at[tube]

    def await_token(self, tube, now):
        policy = self.policies[tube]
        token_at = self.full_at[tube] - (policy.burst - 1) * policy.interval
        lacked_token = self.tokenless.pop(tube, None)
        if token_at > now:
            self.tokenless[tube] = (token_at, self.next_order())
        elif lacked_token and self.is_waited_for(tube) and self.of(tube, "ready"):
            self.freed[tube] = self.next_order()

    def match(self, now, tube):
        """Give ready jobs of a tube to waiting clients, as long as there is a pair."""
        while not self.is_blocked(tube) and self.next_of(tube):
            waiting = [client for client in self.clients if client.waiting and tube in client.watched]
            if not waiting:
                return
            client = min(waiting, key=lambda client: client.waiting)
            client.waiting = 0
            if client.batch:
                client.answers.append(("batch", *self.best_batch(client, client.batch, now, tube)))
            else:
                client.answers.append(("reserved", self.reserve_best(client, now, tube).id))

    def drop(self, job):
        """The client that held it holds it no longer."""
        if job.client is not None:
            tube = job.tube
            lacked_place = self.lacks_place(tube)
            job.client.held.remove(job)
            job.client = None
            job.in_safety_margin = False
            job.state = "dropped"
            if lacked_place and not self.is_blocked(tube) and self.is_waited_for(tube) and self.of(tube, "ready"):
                self.freed[tube] = self.next_order()
            self.offer(job.limit_name())

    def reserve_job(self, client, job_id, now):
        job = self.find(job_id)
        if job is None or job.state == "reserved" or self.is_limited(job):
            return NOT_FOUND
        client.worker = True
        self.hold(job, client, now)
        client.answers.append(("reserved", job.id))
        return DONE

    def held_by(self, client, job_id):
        job = self.find(job_id)
        return job if job is not None and job.client is client else None

    def delete(self, client, job_id, now):
        job = self.find(job_id)
        if job is None or (job.state == "reserved" and job.client is not client):
            return NOT_FOUND
        end = "done" if job.state == "reserved" else "cancelled"
        if job.client:
            self.note_time(job, now)
        self.drop(job)
        if self.runs_again(job, now):
            return DONE
        self.remove(job, end)
        self.set_wall_timer()
        self.hold_key(job, now)
        return DONE

    def release(self, client, job_id, priority, delay, now):
        job = self.held_by(client, job_id)
        if job is None:
            return NOT_FOUND
        self.note_time(job, now)
        self.drop(job)
        job.releases += 1
        if self.runs_again(job, now):
            return DONE
        job.priority, job.delay = priority, delay
        return self.fail(job, RELEASED, delay, now)

    def fail(self, job, reason, delay, now):
        """Nobody has the job any more, and it has not been done."""
        policy = self.policies.get(job.tube, NO_POLICY)
        limit, backoff = job.max_tries or policy.max_tries, job.backoff or policy.backoff
        if limit or backoff:
            job.has_terms = True
            job.tries, job.reason = job.tries + 1, reason
            if limit and job.tries >= limit:
                return self.give_up(job, policy.dead_tube, now)
            if backoff and not delay:
                longest = MAX_U32 * 1_000_000_000
                delay = min(backoff * 2 ** (job.tries - 1), policy.backoff_max or longest, longest)
                self.counted["retried"] += 1
        self.ready_or_delayed(job, delay, now)
        return DONE

    def give_up(self, job, dead_tube, now):
        if dead_tube in ("", job.tube):
            self.set_aside(job)
            return BURIED_INSTEAD
        self.counted["dead"] += 1
        self.move(job, dead_tube, job.origin or job.tube, now)
        return DONE

    def move(self, job, tube, origin, now):
        if self.find_keyed(tube, job.key) or self.find_held(tube, job.key):
            job.key = ""
        self.change_tube(job, tube)
        job.tries = 0
        was_dead = bool(job.origin)
        job.origin, job.letter = (origin, self.next_order()) if origin != tube else ("", 0)
        self.ready_or_delayed(job, 0, now)
        self.note_letter(job, was_dead)

    def note_letter(self, job, was_dead):
        """It may have become a dead letter, or be one no longer."""
        if job.group and was_dead != bool(job.origin):
            if was_dead:
                self.join(job, Labels(group=job.group))
            ends = self.groups[job.group].ends
            ends["dead"] = max(ends["dead"] + (-1 if was_dead else 1), 0)
            ends["undone"] += was_dead
            self.note_ends()

    def letters(self, tube):
        """Those that have come from other tubes, first come first."""
        found = [job for job in self.jobs if job.tube == tube and job.origin]
        return sorted(found, key=lambda job: job.letter)

    def redrive(self, client, tube, bound, now):
        if tube not in self.tubes():
            return NOT_FOUND
        count = 0
        for job in self.letters(tube):
            if count == bound:
                break
            if job.state == "reserved":
                job.letter = self.next_order()
            else:
                self.move(job, job.origin, job.origin, now)
                count += 1
        self.counted["redriven"] += count
        client.answers.append(("counted", count))
        return DONE

    def move_jobs(self, client, tube, state, target, bound, now):
        if tube not in self.tubes():
            return NOT_FOUND
        count = 0
        for _ in [] if tube == target else self.of(tube, state)[:bound]:
            jobs = self.next_jobs(tube, state)
            if jobs:
                self.move_as_it_is(jobs[0], target, now)
                count += 1
        client.answers.append(("counted", count))
        return DONE

    def move_as_it_is(self, job, tube, now):
        if self.find_keyed(tube, job.key) or self.find_held(tube, job.key):
            job.key = ""
        moment = job.at
        self.end_moment(job)
        job.has_terms = True
        self.change_tube(job, tube)
        was_dead = bool(job.origin)
        job.origin, job.letter = (job.origin, self.next_order()) if job.origin not in ("", tube) else ("", 0)
        if job.after:
            pass  # it has its place among those that wait
        elif moment:
            job.at = moment
            self.set_wall_timer()
        elif job.state == "ready":
            self.ready_again(job, now)
        else:
            job.order = self.next_order()
        self.note_letter(job, was_dead)

    def set_aside(self, job):
        job.state, job.order = "buried", self.next_order()
        job.buries += 1

    def unreserve(self, client, job_id, now):
        job = self.held_by(client, job_id)
        if job is None:
            return NOT_FOUND
        self.note_undone(job)
        self.drop(job)
        self.give_token_back(job.tube, now)
        job.reserves -= 1
        if not self.runs_again(job, now):
            self.ready_or_delayed(job, 0, now, since=job.since)
        return DONE

    def bury(self, client, job_id, priority, now):
        job = self.held_by(client, job_id)
        if job is None:
            return NOT_FOUND
        self.note_time(job, now)
        self.drop(job)
        if self.runs_again(job, now):
            return DONE
        job.priority = priority
        self.set_aside(job)
        return DONE

    def save(self, client, job_id, size, now):
        job = self.held_by(client, job_id)
        if job is None or job.again:
            return NOT_FOUND if job is None else TOO_LATE
        refused = self.refused(job.tube, 0, size, now, NO_ATTRIBUTES, job)
        if refused is not None:
            return refused
        job.size, job.order = size, self.next_order()
        return DONE

    def touch(self, client, job_id, now):
        job = self.held_by(client, job_id)
        if job is None:
            return NOT_FOUND
        self.note_time(job, now, ends=False)
        self.set_time_to_run(job, now)
        return DONE

    def kick(self, client, bound, now):
        kicked = sorted(self.of(client.use, "buried"), key=lambda job: job.order)
        if not kicked:
            kicked = sorted(self.of(client.use, "delayed"), key=lambda job: (self.due(job), job.id))
        for job in kicked[:bound]:
            self.kick_job(job.id, now)
        client.answers.append(("counted", len(kicked[:bound])))
        return DONE

    def kick_job(self, job_id, now):
        job = self.find(job_id)
        if job is None or job.state not in ("buried", "delayed"):
            return NOT_FOUND
        job.kicks += 1
        job.tries = 0
        self.ready_or_delayed(job, 0, now)
        return DONE

    def peek(self, client, jobs):
        """Show the client the first of these jobs."""
        if not jobs:
            return NOT_FOUND
        client.answers.append(("found", jobs[0].id))
        return DONE

    def next_jobs(self, tube, state):
        """The jobs of a tube in one state, as peek-delayed and peek-buried order them; of ready ones the first."""
        if state == "ready":
            first = self.next_of(tube)
            return [first] if first else []
        orders = {
            "delayed": lambda job: (self.due(job), job.id),
            "buried": lambda job: job.order,
        }
        return sorted(self.of(tube, state), key=orders[state])

    def watch(self, client, tube, weight=0):
        if tube not in client.watched:
            client.watched.append(tube)
        if weight:
            client.turns.setdefault(tube, ModelTurn()).weight = weight

    def ignore(self, client, tube):
        if tube not in client.watched:
            return DONE
        if len(client.watched) == 1:
            return NOT_IGNORED
        self.unwatch(client, tube)
        return DONE

    def unwatch(self, client, tube):
        if tube in client.watched:
            client.watched.remove(tube)
            client.turns.pop(tube, None)

    def pause(self, tube, duration, now):
        if tube not in self.tubes():
            return NOT_FOUND
        self.paused.pop(tube, None)
        if duration:
            self.paused[tube] = (now + duration, self.next_order())
        self.match(now, tube)
        return DONE

    def disconnect(self, client, now, has_left=True):
        client.waiting = 0
        self.clients.remove(client)
        for job in list(client.held):
            self.drop(job)
            if self.runs_again(job, now):
                continue
            if has_left and self.policies.get(job.tube, NO_POLICY).count_disconnects:
                self.fail(job, DISCONNECTED, 0, now)
            else:
                self.ready_or_delayed(job, 0, now)

    def restart(self, now, wall_offset, known):
        """The process has ended, and another one begins: nobody is connected. Pauses go on.

        Reservations are not recorded, nor is it that one has ended, nor since when a job is ready while that means
        nothing: these are taken from `known`, the jobs of the new process. A job that was reserved is ready since now,
        also for all later processes.
        """
        self.clients = []
        self.paused = {tube: (end, self.next_order()) for tube, (end, _) in self.paused.items() if end > now}
        self.full_at, self.tokenless, self.freed = {}, {}, {}
        self.turns, self.offers = {}, {}
        self.total_connections = 0
        self.counted.clear()
        self.wall_offset, self.wall_timer = wall_offset, None
        for job in self.jobs:
            if job.again is not None:  # as it would be without its reservation
                (attributes, job.ttr), job.again = job.again, None
                job.at, job.deadline = attributes.at, job.created_at + job.delay
                job.state, job.is_stored = "delayed" if job.at or job.delay else "ready", False
                if attributes.labels is not None and attributes.labels.after:
                    job.after = known[job.id].labels().after if known[job.id].deadline == NEVER else ""
        moments = {job: job.at for job in self.jobs}
        for job in self.jobs:
            job.client, job.in_safety_margin, job.at, job.expires_at = None, False, 0, 0
        for job in sorted(self.jobs, key=lambda job: job.id):
            if job.state in ("ready", "reserved") and known[job.id].is_timed():
                # Its moment had come by a clock that is behind now, and nothing has been recorded since.
                job.state, moments[job] = "delayed", known[job.id].terms().at
            is_due = (moments[job] <= now + wall_offset) if moments[job] else (job.deadline <= now)
            if job.after:
                job.order = self.next_order()
            elif job.state == "ready" or job.state == "reserved" or (job.state == "delayed" and is_due):
                was_delayed = job.state == "delayed"
                can_expire = self.ttl_of(job) > 0
                is_stored = was_delayed or (job.is_stored if job.state == "ready" else can_expire)
                if was_delayed:
                    job.since = moments[job] - wall_offset if moments[job] else job.deadline
                elif job.state != "ready":
                    job.since = 0
                job.state, job.has_terms = "ready", known[job.id].terms() is not None
                if job.has_terms and not is_stored:
                    job.since = known[job.id].terms().ready_since
                if job.share and (job.tube, job.priority, job.share) not in self.turns:
                    self.end_turn(job)
                self.set_expiry(job, now)
                job.is_stored = (is_stored or can_expire) and not moments[job]  # the next start may have another clock
            elif job.state == "delayed" and moments[job]:
                job.at = moments[job]
                self.set_wall_timer()
            elif job.state == "delayed":
                job.order = self.next_order()
            if job.origin:
                job.letter = self.next_order()
            job.reserves, job.timeouts = known[job.id].reserves, known[job.id].extras.timeouts
            job.has_terms = known[job.id].terms() is not None
        self.ending = None
        for group in self.groups.values():
            if group.has_ended:
                group.forget_at, self.ending = 0, self.next_order()
        for held in sorted(self.held, key=lambda held: held.id):
            held.free_at, held.order = max(held.free_at, now // self.tick * self.tick), self.next_order()

    # Time

    def events(self):
        """(tick, order, what, whom) of everything that time will do."""
        found = []
        for job in self.jobs:
            if job.at or job.after:
                continue
            if job.state == "ready" and job.expires_at:
                found.append((job.expires_at, job.expiry_order, self.on_expiry, job))
            if job.state == "delayed":
                found.append((job.deadline, job.order, self.on_delay_over, job))
            elif job.state == "reserved":
                deadline = job.deadline if job.in_safety_margin else job.deadline - SAFETY_MARGIN
                found.append((deadline, job.order, self.on_time_running_out, job))
        for client in self.clients:
            if client.waiting and client.until:
                found.append((client.until, client.waiting, self.on_timeout, client))
        for held in self.held:
            found.append((held.free_at, held.order, self.on_free, held))
        for tube, (end, order) in self.paused.items():
            found.append((end, order, self.on_unpause, tube))
        for tube, (moment, order) in self.tokenless.items():
            found.append((moment, order, self.on_token, tube))
        for limit, (order, _) in self.offers.items():
            found.append((0, order, self.on_offer, limit))
        for tube, order in self.freed.items():
            found.append((self.present, order, self.on_place, tube))
        for tube, moment in self.full_at.items():
            if tube not in self.tokenless and tube not in self.needed_tubes():
                found.append((moment, 0, self.on_bucket_full, tube))
        if self.ending:
            found.append((self.present, self.ending, self.on_ends, None))
        for name, group in self.groups.items():
            if group.forget_at:
                found.append((group.forget_at, 0, self.on_forget, name))
        if self.wall_timer is not None:
            found.append((*self.wall_timer, self.on_moment, self.wall_offset))
        return [(-(-deadline // self.tick), order, what, whom) for deadline, order, what, whom in found]

    def sleep(self, now, end):
        while due := [event for event in self.events() if event[0] * self.tick <= end]:
            tick, _, what, whom = min(due, key=lambda event: event[:2])
            now = max(now, tick * self.tick)
            self.present = tick * self.tick
            what(whom, now)

    def on_moment(self, wall_offset, now):
        due = [job for job in self.jobs if 0 < job.at <= now + wall_offset]
        due.sort(key=lambda job: (job.at, job.id))
        for job in due:
            job.at = 0
        self.wall_timer = None
        moments, self.set_wall_timer = self.set_wall_timer, lambda: None  # it is set when all of them are ready
        for job in due:
            self.ready_or_delayed(job, 0, now)
            if job.state == "ready":
                job.is_stored = False
        self.set_wall_timer = moments
        self.set_wall_timer()

    def on_delay_over(self, job, now):
        self.ready_or_delayed(job, 0, now, since=job.deadline)

    def on_time_running_out(self, job, now):
        client = job.client
        if not job.in_safety_margin:
            job.in_safety_margin, job.order = True, self.next_order()
            if client.waiting:
                client.waiting = 0
                client.answers.append(("deadline soon",))
            return
        job.timeouts += 1
        self.note_time(job, job.deadline)
        self.drop(job)
        if not self.runs_again(job, now):
            self.fail(job, RUN_OUT, 0, now)

    def on_timeout(self, client, now):
        client.waiting = 0
        client.answers.append(("timed out",))

    def on_unpause(self, tube, now):
        del self.paused[tube]
        self.match(now, tube)

    def on_token(self, tube, now):
        del self.tokenless[tube]
        self.match(now, tube)

    def on_place(self, tube, now):
        del self.freed[tube]
        self.match(now, tube)

    def on_bucket_full(self, tube, now):
        """Nothing keeps the tube any more."""
        del self.full_at[tube]
