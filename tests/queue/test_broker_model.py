"""The broker against the model: any clients, any commands, any times; every invariant checked after every step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from model import Model, ModelClient
from virtual import MemoryJournal

from beanstalk_server.queue.broker import DONE, NOT_FOUND, TOO_LATE, Broker
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.wheel import TICK

SECOND = 1_000_000_000

tubes = st.sampled_from(["default", "a", "b"])
priorities = st.sampled_from([0, 1, 1023, 1024, 2**32 - 1])
delays = st.one_of(st.just(0), st.integers(1, 5 * SECOND))
times_to_run = st.integers(SECOND, 4 * SECOND)
keys = st.sampled_from(["k", "l"])
numbers = st.integers(1, 12)
durations = st.one_of(st.integers(1, 30_000_000), st.integers(1, 6 * SECOND), st.integers(1, 3600 * SECOND))


def buried(tube):
    """The ids of its buried jobs, first buried first."""
    found = []
    job = tube.buried.after
    while job is not tube.buried:
        found.append(job.id)
        job = job.after
    return found


OUTCOMES = {DONE: "done", TOO_LATE: "too late", NOT_FOUND: "not found"}


class RecordingClient(Client):
    __slots__ = ("answers",)

    def __init__(self, broker):
        super().__init__(broker.default)
        self.answers = []
        broker.connect()

    def on_reserved(self, job):
        self.answers.append(("reserved", job.id))

    def on_reserved_batch(self, jobs):
        self.answers.append(("batch", *[job.id for job in jobs]))

    def on_timed_out(self):
        self.answers.append(("timed out",))

    def on_deadline_soon(self):
        self.answers.append(("deadline soon",))


class BrokerAgainstModel(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize(start=st.integers(0, 10**12))
    def begin(self, start):
        self.now = start
        self.journal = MemoryJournal()
        self.broker = Broker(self.journal, start, TICK)
        self.model = Model(TICK)
        self.pairs = []

    def step(self):
        self.now += 1

    @rule(target=clients)
    def connect(self):
        client = ModelClient()
        self.model.clients.append(client)
        self.pairs.append((RecordingClient(self.broker), client))
        return self.pairs[-1]

    @rule(pair=consumes(clients))
    def disconnect(self, pair):
        self.step()
        self.pairs.remove(pair)
        self.broker.disconnect(pair[0], self.now)
        self.model.disconnect(pair[1], self.now)

    @rule(pair=clients, priority=priorities, delay=delays, ttr=times_to_run)
    def put(self, pair, priority, delay, ttr):
        if pair[0].waiting:
            return
        self.step()
        number = self.broker.take_id()
        assert self.broker.put(pair[0], number, priority, delay, ttr, b"%d" % number, self.now, self.now)
        self.model.put(pair[1], number, priority, delay, ttr, self.now)

    @rule(pair=clients, key=keys, priority=priorities, delay=delays, ttr=times_to_run)
    def put_or_replace(self, pair, key, priority, delay, ttr):
        client, mirror = pair
        if client.waiting:
            return
        self.step()
        job = self.broker.find_keyed(client.use, key)
        known = self.model.find_keyed(mirror.use, key)
        assert (job and job.id) == (known and known.id)
        if job is None:
            number = self.broker.take_id()
            body = b"%d" % number
            assert self.broker.put(client, number, priority, delay, ttr, body, self.now, self.now, key)
            self.model.put(mirror, number, priority, delay, ttr, self.now, key)
        elif job.client is None:
            assert self.broker.replace(job, priority, delay, ttr, b"new", self.now)
            self.model.replace(known, priority, delay, ttr, self.now)
            assert self.broker.find(job.id).body == b"new"

    @rule(number=numbers)
    def cancel(self, number):
        assert OUTCOMES[self.broker.cancel(self.broker.find(number))] == self.model.cancel(number)

    @rule(number=numbers, delay=delays)
    def reschedule(self, number, delay):
        self.step()
        outcome = self.broker.reschedule(self.broker.find(number), delay, self.now)
        assert OUTCOMES[outcome] == self.model.reschedule(number, delay, self.now)

    @rule(pair=clients, name=tubes)
    def clear(self, pair, name):
        if pair[0].waiting or name not in self.broker.tubes:
            return
        assert self.broker.clear(pair[0], self.broker.tubes[name]) == self.model.clear(name)

    @rule(pair=clients, timeout=durations, forever=st.booleans(), batch=st.integers(0, 3))
    def reserve(self, pair, timeout, forever, batch):
        client, mirror = pair
        if client.waiting:
            return
        self.step()
        if batch:
            jobs = [job.id for job in self.broker.reserve_batch(client, batch, self.now)]
            assert jobs == self.model.reserve_batch(mirror, batch, self.now)
        else:
            job = self.broker.reserve(client, self.now)
            jobs = [job.id] if job else []
            assert jobs == [number for number in [self.model.reserve(mirror, self.now)] if number]
        assert bool(client.jobs_in_safety_margin) == any(held.in_safety_margin for held in mirror.held)
        if not jobs and not client.jobs_in_safety_margin:
            until = 0 if forever else self.now + timeout
            self.broker.wait(client, until, batch)
            self.model.wait(mirror, until, batch)

    @rule(pair=clients, number=numbers)
    def reserve_job(self, pair, number):
        if pair[0].waiting:
            return
        self.step()
        job = self.broker.reserve_job(pair[0], number, self.now)
        assert (job and job.id) == self.model.reserve_job(pair[1], number, self.now)

    @rule(pair=clients, number=numbers)
    def delete(self, pair, number):
        if pair[0].waiting:
            return
        assert self.broker.delete(pair[0], number) == self.model.delete(pair[1], number)

    @rule(pair=clients, number=numbers, priority=priorities, delay=delays)
    def release(self, pair, number, priority, delay):
        if pair[0].waiting:
            return
        self.step()
        done = self.broker.release(pair[0], number, priority, delay, self.now)
        assert done == self.model.release(pair[1], number, priority, delay, self.now)

    @rule(pair=clients, number=numbers, priority=priorities)
    def bury(self, pair, number, priority):
        if pair[0].waiting:
            return
        assert self.broker.bury(pair[0], number, priority) == self.model.bury(pair[1], number, priority)

    @rule(pair=clients, number=numbers)
    def touch(self, pair, number):
        if pair[0].waiting:
            return
        self.step()
        assert self.broker.touch(pair[0], number, self.now) == self.model.touch(pair[1], number, self.now)

    @rule(pair=clients, bound=st.integers(0, 3))
    def kick(self, pair, bound):
        if pair[0].waiting:
            return
        self.step()
        assert self.broker.kick(pair[0], bound, self.now) == self.model.kick(pair[1], bound, self.now)

    @rule(number=numbers)
    def kick_job(self, number):
        self.step()
        assert self.broker.kick_job(number, self.now) == self.model.kick_job(number, self.now)

    @rule(pair=clients, tube=tubes)
    def use(self, pair, tube):
        if pair[0].waiting:
            return
        self.broker.use(pair[0], tube)
        pair[1].use = tube

    @rule(pair=clients, tube=tubes)
    def watch(self, pair, tube):
        if pair[0].waiting:
            return
        self.broker.watch(pair[0], tube)
        self.model.watch(pair[1], tube)

    @rule(pair=clients, tube=tubes)
    def ignore(self, pair, tube):
        if pair[0].waiting:
            return
        assert self.broker.ignore(pair[0], tube) == self.model.ignore(pair[1], tube)

    @rule(tube=tubes, duration=st.one_of(st.just(0), durations))
    def pause(self, tube, duration):
        self.step()
        assert self.broker.pause(tube, duration, self.now) == self.model.pause(tube, duration, self.now)

    @rule(duration=durations)
    def sleep(self, duration):
        end = self.now + duration
        self.model.sleep(self.now, end)
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
        self.now = end

    @invariant()
    def they_agree(self):
        self.model.forget_pauses()
        self.broker.check()
        assert set(self.broker.tubes) == self.model.tubes()
        assert sorted(self.broker.jobs) == [job.id for job in self.model.jobs]
        for mirror in self.model.jobs:
            job = self.broker.jobs[mirror.id]
            assert STATES[job.state] == mirror.state
            assert (job.priority, job.delay, job.in_safety_margin) == (
                mirror.priority,
                mirror.delay,
                mirror.in_safety_margin,
            )
            assert (job.ttr, job.key) == (mirror.ttr, mirror.key)
            extras = job.extras
            counters = (job.reserves, extras.timeouts, extras.releases, extras.buries, extras.kicks)
            assert counters == (mirror.reserves, mirror.timeouts, mirror.releases, mirror.buries, mirror.kicks)
            assert self.broker.time_left(job, 0) == (mirror.deadline if mirror.state in ("delayed", "reserved") else 0)
        for name, tube in self.broker.tubes.items():
            buried = sorted(self.model.of(name, "buried"), key=lambda job: job.order)
            delayed = sorted(self.model.of(name, "delayed"), key=lambda job: (job.deadline, job.id))
            ready = sorted(self.model.of(name, "ready"), key=lambda job: (job.priority, job.id))
            for first, jobs in (
                (self.broker.first_buried(tube), buried),
                (self.broker.first_delayed(tube), delayed),
                (self.broker.first_ready(tube), ready),
            ):
                assert (first and first.id) == (jobs[0].id if jobs else None)

    @rule()
    def a_broker_that_starts_from_the_journal_has_the_same_jobs(self):
        again = Broker(self.journal, self.now, TICK)
        again.restore(self.journal.clock_offset(), self.now)
        again.check()
        assert sorted(again.jobs) == sorted(self.broker.jobs)
        for number, job in ((job.id, job) for job in self.broker.jobs.values()):
            other = again.jobs[number]
            names = ("id", "priority", "delay", "ttr", "body", "key", "created_at")
            assert [getattr(other, name) for name in names] == [getattr(job, name) for name in names]
            names = ("releases", "buries", "kicks")
            assert [getattr(other.extras, name) for name in names] == [getattr(job.extras, name) for name in names]
            assert other.tube.name == job.tube.name
            state = STATES[job.state]
            if state == "reserved" or (state == "delayed" and job.deadline <= self.now):
                state = "ready"
            assert STATES[other.state] == state
            if state == "delayed":
                assert other.deadline == job.deadline
        for name, tube in again.tubes.items():
            if name in self.broker.tubes:
                assert buried(tube) == buried(self.broker.tubes[name])

    @invariant()
    def the_answers_agree(self):
        for client, mirror in self.pairs:
            assert client.answers == mirror.answers
            assert client.waiting == bool(mirror.waiting)
            assert sorted(tube.name for tube in client.watched) == sorted(mirror.watched)
            assert sorted(client.reserved) == sorted(job.id for job in mirror.held)


BrokerAgainstModel.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestBrokerAgainstModel = BrokerAgainstModel.TestCase
