"""The broker between its turns: commands come before it has settled, or late, and its budgets are small.

The machines of test_broker.py let the broker settle after each step, because a model must know what comes next. A
server does not: many commands may come in one turn, before it handles the timers that are due. Here are lives of such
a broker, by seed. Nothing says what comes next in them, only what holds at any moment, and what holds whenever the
broker has settled: no more jobs are reserved than may be, and no faster; nobody waits in vain; and nothing is left of a
job that is gone.
"""

import random
from collections import Counter
from math import inf

from checking import check_broker
from effort import seeded
from virtual import MemoryJournal, RecordingClient

from beanstalk_server.queue import broker as broker_module
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Policy
from beanstalk_server.queue.units import FOREVER, SECOND
from beanstalk_server.queue.wheel import END_OF_TIME, TICK

TUBES = ["default", "a", "dead"]
BUDGETS = [1, 2, 5, 512]
ROUNDING = 0.001  # of a token: a rate that changes rounds to a nanosecond


def capacity(policy):
    """How many tokens there are at most. A reservation that is late by less than a tick counts as if it were not."""
    return policy.burst + TICK / policy.interval if policy.interval else inf


class Bucket:
    """The tokens of one tube, counted as in the textbook: at least as many as the broker may believe that there are."""

    def __init__(self, tube, now):
        self.tube = tube
        self.policy = tube.policy
        self.tokens = capacity(tube.policy)
        self.now = now

    def refill(self, now):
        """Add the tokens that have come since, by the rate until now, and go on with the present one."""
        old, new = self.policy, self.tube.policy
        if old.interval:
            self.tokens += (now - self.now) / old.interval
        self.tokens = min(self.tokens, capacity(old), capacity(new)) if new.interval else inf
        self.policy = new
        self.now = now

    def is_full(self):
        return not self.policy.interval or self.tokens > self.policy.burst - ROUNDING


class Worker(RecordingClient):
    """A client that shows the life what it gets."""

    __slots__ = ("life",)

    def __init__(self, life):
        super().__init__(life.broker)
        self.life = life

    def on_reserved(self, job):
        super().on_reserved(job)
        self.life.see_reserved(self, [job])

    def on_reserved_batch(self, jobs):
        super().on_reserved_batch(jobs)
        self.life.see_reserved(self, jobs)


class Life:
    """Three clients that take turns, and a broker that goes on when a step says so. The same seed, the same steps."""

    def __init__(self, seed, monkeypatch):
        self.rng = random.Random(seed)
        self.pick = self.rng.choice
        slice_of_work = self.pick(BUDGETS)
        monkeypatch.setattr(broker_module, "SLICE", slice_of_work)
        monkeypatch.setattr(broker_module, "DISCONNECT_SLICE", slice_of_work)
        self.now = 7 * SECOND
        self.by_id = False
        self.policies = {"default": self.policy(), "a": self.policy()}
        self.buckets = {}
        self.broker = Broker(MemoryJournal(), self.now, policy_of=self.policy_of)
        self.clients = [self.connect() for _ in range(3)]

    def live(self, steps):
        for step in self.rng.choices(list(STEPS), STEPS.values(), k=steps):
            step(self)
            self.check()
        self.take_all_jobs()

    def policy(self):
        pick = self.pick
        return Policy(
            max_reserved=pick([0, 1, 1, 2]),
            interval=pick([0, 0, TICK // 10, TICK, SECOND]),
            burst=pick([1, 1, 3]),
            max_tries=pick([0, 0, 1, 2]),
            dead_tube=pick(["", "dead", "a"]),
            backoff=pick([0, 0, SECOND]),
            ttl=pick([0, 0, 0, 0, 1, SECOND]),
            key_hold=pick([0, 1, SECOND]),
        )

    def policy_of(self, name):
        return self.policies.get(name, NO_POLICY)

    def connect(self):
        client = Worker(self)
        self.broker.watch(client, "a")
        self.broker.use(client, "a")
        return client

    def client(self):
        """One of those that may give a command, because they are not owed an answer; a new one if there is none."""
        clients = [client for client in self.clients if not client.waiting and not client.busy]
        if clients:
            return self.pick(clients)
        self.clients.append(self.connect())
        return self.clients[-1]

    def job_id(self, client=None):
        """The id of one of the jobs that there are, or of those that the client has reserved; 0 if there are none."""
        jobs = [job.id for job in self.broker.jobs.values() if client is None or job.client is client]
        return self.pick(jobs) if jobs else 0

    def duration(self):
        return self.pick([1, TICK // 2, TICK, SECOND, self.rng.randrange(1, 5 * SECOND)])

    def delay(self):
        return self.pick([0, 0, 0, self.duration()])

    def timeout(self):
        return self.pick([0, FOREVER, FOREVER, self.duration()])

    # What clients do

    def put(self):
        client = self.client()
        for _ in range(self.rng.randrange(1, 4)):
            priority, ttr = self.pick([0, 1]), self.pick([SECOND, 5 * SECOND])
            self.broker.put(client, self.broker.take_id(), priority, self.delay(), ttr, b"x", self.now, self.now)

    def put_with(self):
        demands = Attributes(
            key=self.pick(["", "k", "l"]),
            replaces=self.pick([False, True]),
            max_tries=self.pick([0, 1]),
            ttl=self.pick([0, 0, SECOND]),
        )
        self.broker.put_with(self.client(), demands, 1, self.delay(), 2 * SECOND, b"body", self.now, self.now)

    def reserve(self):
        self.broker.reserve(self.client(), self.timeout(), self.now)

    def reserve_batch(self):
        self.broker.reserve_batch(self.client(), self.rng.randrange(1, 5), self.timeout(), self.now)

    def reserve_job(self):
        self.by_id = True
        self.broker.reserve_job(self.client(), self.job_id(), self.now)
        self.by_id = False

    def delete(self):
        self.broker.delete(self.client(), self.job_id(), self.now)

    def finish(self):
        client = self.client()
        self.broker.delete(client, self.job_id(client), self.now)

    def release(self):
        client = self.client()
        self.broker.release(client, self.job_id(client), 1, self.delay(), self.now)

    def bury(self):
        client = self.client()
        self.broker.bury(client, self.job_id(client), 1, self.now)

    def unreserve(self):
        client = self.client()
        job = self.broker.jobs.get(self.job_id(client))
        if job is not None:
            self.bucket(job.tube).tokens += 1
            self.broker.unreserve(client, job.id, self.now)

    def kick(self):
        self.broker.kick(self.client(), self.pick([1, 9]), self.now)

    def redrive(self):
        self.broker.redrive(self.client(), self.pick(["dead", "a"]), self.pick([1, 9]), self.now)

    def move_jobs(self):
        state = self.pick([READY, READY, DELAYED, BURIED])
        self.broker.move(self.client(), self.pick(TUBES), state, self.pick(TUBES), self.pick([1, 9]), self.now)

    def clear(self):
        self.broker.clear(self.client(), self.pick(TUBES))

    def pause(self):
        self.broker.pause(self.client(), self.pick(TUBES), self.delay(), self.now)

    def change_tubes(self):
        client = self.client()
        self.broker.use(client, self.pick(TUBES))
        self.broker.watch(client, self.pick(TUBES))
        self.broker.ignore(client, self.pick(TUBES))

    def stop_waiting(self):
        self.broker.stop_waiting(self.pick(self.clients))

    def disconnect(self):
        client = self.clients.pop(self.rng.randrange(len(self.clients)))
        self.broker.disconnect(client, self.now, self.pick([False, True]))
        if len(self.clients) < 3:
            self.clients.append(self.connect())

    # What the server does

    def change_policy(self):
        self.policies[self.pick(TUBES)] = self.pick([NO_POLICY, self.policy(), self.policy()])
        self.broker.change_policies(self.policy_of, self.now)

    def be_late(self):
        """Time passes, and nobody looks at the timers."""
        self.now += self.duration()

    def advance(self):
        self.broker.advance(self.now, self.pick(BUDGETS))

    def settle(self):
        while self.broker.next_event() <= self.now:
            self.advance()
            self.check()
        for client in self.clients:
            served = [tube.name for tube in client.watched if tube.ready.jobs and not tube.blocked]
            assert not (client.waiting and served), "a client waits, and there is a job for it"
        for tube in self.broker.tubes.values():
            assert tube.policy is self.policy_of(tube.name)

    def sleep(self):
        end = self.now + self.duration()
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.settle()
        self.now = end

    def sleep_until_something_happens(self):
        event = self.broker.next_event()
        assert event < END_OF_TIME, "nothing will ever happen"
        self.now = max(self.now, event)
        self.settle()

    def take_all_jobs(self):
        """Who waits for all that there is gets it in time, whatever is throttled; and nothing is left of it."""
        broker = self.broker
        for client in self.clients:
            broker.disconnect(client, self.now)
        self.settle()
        worker = self.connect()
        self.clients = [worker]
        for name in TUBES:
            broker.watch(worker, name)
            broker.pause(worker, name, 0, self.now)
        while len(broker.jobs):
            for job in list(broker.jobs.values()):
                if job.state in (BURIED, DELAYED) or job.client is worker:
                    broker.delete(worker, job.id, self.now)
            if not worker.waiting:
                broker.reserve(worker, FOREVER, self.now)
            if worker.waiting and len(broker.jobs):
                self.sleep_until_something_happens()
        broker.disconnect(worker, self.now)
        self.clients = []
        while broker.next_event() < END_OF_TIME:
            self.sleep_until_something_happens()
        self.check()
        assert [tube.name for tube in broker.tubes.values()] == ["default"]
        assert (broker.memory.used, broker.tubes.default.bytes, len(broker.held), broker.waiting) == (0, 0, 0, 0)

    # What holds

    def bucket(self, tube):
        """The tokens of a tube at this moment."""
        if tube.name in self.buckets and self.buckets[tube.name].tube is not tube:
            self.end_bucket(tube.name)
        bucket = self.buckets.setdefault(tube.name, Bucket(tube, self.now))
        bucket.refill(self.now)
        return bucket

    def end_bucket(self, name):
        """A tube has gone. It must have had all its tokens, because the next tube of its name has."""
        bucket = self.buckets.pop(name)
        bucket.refill(self.now)
        assert bucket.is_full(), f"tube {name} has gone, and so its rate begins anew"

    def see_reserved(self, client, jobs):
        """A client has got jobs: as many as may be reserved, and no faster; but by their ids, it gets any."""
        for job in jobs:
            assert job.client is client
            self.bucket(job.tube).tokens -= 1
        for tube in {job.tube for job in jobs}:
            reserved = sum(job.client is not None and job.tube is tube for job in self.broker.jobs.values())
            limit = tube.policy.max_reserved
            assert self.by_id or not limit or reserved <= limit, f"{reserved} jobs of {tube.name} are reserved"
            assert self.by_id or self.bucket(tube).tokens > -ROUNDING, f"tube {tube.name} is faster than its rate"

    def check(self):
        broker = self.broker
        check_broker(broker)
        for tube in broker.tubes.values():
            self.bucket(tube)
        for name in set(self.buckets) - set(broker.tubes):
            self.end_bucket(name)
        there = [job for job in broker.jobs.values() if not job.tube.is_cleared(job)]
        found = Counter((tube.name, job.id) for tube in broker.tubes.values() for job in jobs_of(tube))
        assert found == Counter((job.tube.name, job.id) for job in there), "a job is in another state, or in two"
        holders = [*there, *(held for held in broker.held.values() if not held.tube.is_cleared(held))]
        keys = Counter((holder.tube.name, holder.key) for holder in holders if holder.key)
        assert set(keys.values()) <= {1}, "two have the same key"


def jobs_of(tube):
    """All jobs that are in one of its queues: once for each."""
    yield from tube.ready.jobs
    yield from tube.delayed.jobs
    yield from tube.reserved
    job = tube.buried.after
    while job is not tube.buried:
        yield job
        job = job.after


STEPS = {
    Life.put: 6,
    Life.put_with: 2,
    Life.reserve: 8,
    Life.reserve_batch: 2,
    Life.reserve_job: 3,
    Life.delete: 1,
    Life.finish: 5,
    Life.release: 3,
    Life.bury: 1,
    Life.unreserve: 1,
    Life.kick: 1,
    Life.redrive: 1,
    Life.move_jobs: 1,
    Life.clear: 0.3,
    Life.pause: 1,
    Life.change_tubes: 1,
    Life.stop_waiting: 1,
    Life.disconnect: 1,
    Life.change_policy: 1,
    Life.be_late: 3,
    Life.advance: 3,
    Life.settle: 2,
    Life.sleep: 1,
}
"""How often each step comes, compared with the others."""


@seeded(100)
def test_whatever_comes_before_the_broker_has_settled_it_keeps_its_promises(seed, monkeypatch):
    Life(seed, monkeypatch).live(100)
