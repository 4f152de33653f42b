"""The broker, compared with the model: any clients, any commands, any times; every invariant after every step.

Once with bodies in memory, and once with a journal that takes every body out of memory: then some answers come later,
and everything else is the same.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from model import Model, ModelClient
from virtual import BodilessJournal, MemoryJournal, RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.check import check_broker
from beanstalk_server.queue.interface import FOREVER
from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.outcome import DONE, PENDING, REPLACED
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wheel import TICK

tubes = st.sampled_from(["default", "a", "b"])
priorities = st.sampled_from([0, 1, 1023, 1024, 2**32 - 1])
delays = st.one_of(st.just(0), st.integers(1, 5 * SECOND))
times_to_run = st.integers(SECOND, 4 * SECOND)
keys = st.sampled_from(["k", "l"])
job_ids = st.integers(1, 12)
timeouts = st.one_of(st.just(0), st.just(FOREVER), st.integers(1, 30_000_000), st.integers(1, 6 * SECOND))
durations = st.one_of(st.integers(1, 30_000_000), st.integers(1, 6 * SECOND), st.integers(1, 3600 * SECOND))


def buried(tube):
    """The ids of its buried jobs, first buried first."""
    found = []
    job = tube.buried.after
    while job is not tube.buried:
        found.append(job.id)
        job = job.after
    return found


def owes_answer(client):
    """Whether the broker owes the client an answer: until then, the client gives no other command."""
    return client.waiting or client.busy


def ended(client, outcome):
    """The outcome of a command, as if all bodies had been in memory."""
    return DONE if outcome == PENDING and client.busy else outcome


class BrokerAgainstModel(RuleBasedStateMachine):
    clients = Bundle("clients")
    journal_type = MemoryJournal

    @initialize(start=st.integers(0, 10**12))
    def begin(self, start):
        self.now = start
        self.journal = self.journal_type()
        self.broker = Broker(self.journal, start, TICK)
        self.model = Model(TICK)
        self.pairs = []
        self.gone = []
        self.bodies = 0

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
        self.gone.append((pair[0], list(pair[0].answers)))

    @rule(pair=clients, priority=priorities, delay=delays, ttr=times_to_run)
    def put(self, pair, priority, delay, ttr):
        if owes_answer(pair[0]):
            return
        self.step()
        job_id = self.broker.take_id()
        assert self.broker.put(pair[0], job_id, priority, delay, ttr, b"%d" % job_id, self.now, self.now) == DONE
        self.model.put(pair[1], job_id, priority, delay, ttr, self.now)

    @rule(pair=clients, key=keys, replaces=st.booleans(), priority=priorities, delay=delays, ttr=times_to_run)
    def put_keyed(self, pair, key, replaces, priority, delay, ttr):
        client, mirror = pair
        if owes_answer(client):
            return
        self.step()
        job_id = self.broker.next_id
        self.bodies += 1
        body = b"body %d" % self.bodies
        before = self.model.find_keyed(mirror.use, key)
        kept = before and self.body(before.id)
        outcome = self.broker.put_keyed(client, key, replaces, priority, delay, ttr, body, self.now, self.now)
        assert outcome == self.model.put_keyed(mirror, job_id, key, replaces, priority, delay, ttr, self.now)
        assert self.body(before.id if before else job_id) == (body if outcome in (DONE, REPLACED) else kept)

    def body(self, job_id):
        """The body of a job, wherever it is."""
        return self.journal.stored(self.broker.jobs[job_id]).body

    @rule(pair=clients, job_id=job_ids)
    def cancel(self, pair, job_id):
        assert self.broker.cancel(pair[0], job_id) == self.model.cancel(job_id)

    @rule(pair=clients, key=keys)
    def cancel_keyed(self, pair, key):
        job = self.model.find_keyed(pair[1].use, key)
        assert self.broker.cancel_keyed(pair[0], key) == self.model.cancel(job and job.id)

    @rule(pair=clients, job_id=job_ids, delay=delays)
    def reschedule(self, pair, job_id, delay):
        self.step()
        outcome = self.broker.reschedule(pair[0], job_id, delay, self.now)
        assert outcome == self.model.reschedule(job_id, delay, self.now)

    @rule(pair=clients, key=keys, delay=delays)
    def reschedule_keyed(self, pair, key, delay):
        self.step()
        job = self.model.find_keyed(pair[1].use, key)
        outcome = self.broker.reschedule_keyed(pair[0], key, delay, self.now)
        assert outcome == self.model.reschedule(job and job.id, delay, self.now)

    @rule(pair=clients, name=tubes)
    def clear(self, pair, name):
        if owes_answer(pair[0]):
            return
        assert self.broker.clear(pair[0], name) == self.model.clear(pair[1], name)

    @rule(pair=clients, timeout=timeouts, batch=st.integers(0, 3))
    def reserve(self, pair, timeout, batch):
        client, mirror = pair
        if owes_answer(client) or not mirror.watched:
            return
        self.step()
        if batch:
            outcome = ended(client, self.broker.reserve_batch(client, batch, timeout, self.now))
            assert outcome == self.model.reserve_batch(mirror, batch, timeout, self.now)
        else:
            outcome = ended(client, self.broker.reserve(client, timeout, self.now))
            assert outcome == self.model.reserve(mirror, timeout, self.now)
        assert client.jobs_in_safety_margin == sum(held.in_safety_margin for held in mirror.held)

    @rule(pair=clients, job_id=job_ids)
    def reserve_job(self, pair, job_id):
        if owes_answer(pair[0]):
            return
        self.step()
        outcome = ended(pair[0], self.broker.reserve_job(pair[0], job_id, self.now))
        assert outcome == self.model.reserve_job(pair[1], job_id, self.now)

    @rule(pair=clients, job_id=job_ids)
    def delete(self, pair, job_id):
        if owes_answer(pair[0]):
            return
        assert self.broker.delete(pair[0], job_id) == self.model.delete(pair[1], job_id)

    @rule(pair=clients, job_id=job_ids, priority=priorities, delay=delays)
    def release(self, pair, job_id, priority, delay):
        if owes_answer(pair[0]):
            return
        self.step()
        done = self.broker.release(pair[0], job_id, priority, delay, self.now)
        assert done == self.model.release(pair[1], job_id, priority, delay, self.now)

    @rule(pair=clients, job_id=job_ids, priority=priorities)
    def bury(self, pair, job_id, priority):
        if owes_answer(pair[0]):
            return
        assert self.broker.bury(pair[0], job_id, priority) == self.model.bury(pair[1], job_id, priority)

    @rule(pair=clients, job_id=job_ids)
    def touch(self, pair, job_id):
        if owes_answer(pair[0]):
            return
        self.step()
        assert self.broker.touch(pair[0], job_id, self.now) == self.model.touch(pair[1], job_id, self.now)

    @rule(pair=clients, bound=st.integers(0, 3))
    def kick(self, pair, bound):
        if owes_answer(pair[0]):
            return
        self.step()
        assert self.broker.kick(pair[0], bound, self.now) == self.model.kick(pair[1], bound, self.now)

    @rule(pair=clients, job_id=job_ids)
    def kick_job(self, pair, job_id):
        self.step()
        assert self.broker.kick_job(pair[0], job_id, self.now) == self.model.kick_job(job_id, self.now)

    @rule(pair=clients, job_id=job_ids)
    def peek(self, pair, job_id):
        if owes_answer(pair[0]):
            return
        found = self.model.find(job_id)
        assert ended(pair[0], self.broker.peek(pair[0], job_id)) == self.model.peek(pair[1], [found] if found else [])

    @rule(pair=clients, key=keys)
    def peek_keyed(self, pair, key):
        if owes_answer(pair[0]):
            return
        found = self.model.find_keyed(pair[1].use, key)
        assert ended(pair[0], self.broker.peek_keyed(pair[0], key)) == self.model.peek(
            pair[1], [found] if found else []
        )

    @rule(pair=clients, state=st.sampled_from(["ready", "delayed", "buried"]))
    def peek_next(self, pair, state):
        client, mirror = pair
        if owes_answer(client):
            return
        outcome = ended(client, getattr(self.broker, f"peek_{state}")(client))
        assert outcome == self.model.peek(mirror, self.model.next_jobs(mirror.use, state))

    @rule(pair=clients, tube=tubes)
    def use(self, pair, tube):
        if owes_answer(pair[0]):
            return
        self.broker.use(pair[0], tube)
        pair[1].use = tube

    @rule(pair=clients, tube=tubes)
    def watch(self, pair, tube):
        if owes_answer(pair[0]):
            return
        self.broker.watch(pair[0], tube)
        self.model.watch(pair[1], tube)

    @rule(pair=clients, tube=tubes)
    def ignore(self, pair, tube):
        if owes_answer(pair[0]):
            return
        assert self.broker.ignore(pair[0], tube) == self.model.ignore(pair[1], tube)

    @rule(pair=clients, tube=tubes)
    def unwatch(self, pair, tube):
        if owes_answer(pair[0]):
            return
        self.broker.unwatch(pair[0], tube)
        self.model.unwatch(pair[1], tube)

    @rule(job_id=job_ids)
    def find_the_tube_of_a_job(self, job_id):
        job = self.model.find(job_id)
        assert self.broker.tube_of(job_id) == (job.tube if job else "")

    @rule(pair=clients, tube=tubes, duration=st.one_of(st.just(0), durations))
    def pause(self, pair, tube, duration):
        self.step()
        assert self.broker.pause(pair[0], tube, duration, self.now) == self.model.pause(tube, duration, self.now)

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
        check_broker(self.broker)
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
            time_left = self.broker.job_statistics(job.id, 0).time_left
            assert time_left == (mirror.deadline if mirror.state in ("delayed", "reserved") else 0)
        for name, tube in ((tube.name, tube) for tube in self.broker.tubes.values()):
            ids = {
                state: [job.id for job in self.model.next_jobs(name, state)] for state in ("ready", "delayed", "buried")
            }
            assert buried(tube) == ids["buried"]
            for state, heap in (("ready", tube.ready), ("delayed", tube.delayed)):
                assert [job.id for job in heap.jobs[:1]] == ids[state][:1]
            found = self.broker.tube_statistics(name, self.now)
            assert [found.ready, found.delayed, found.buried] == [len(jobs) for jobs in ids.values()]
            assert found.using == sum(mirror.use == name for mirror in self.model.clients)
            assert found.watching == sum(name in mirror.watched for mirror in self.model.clients)

    @rule()
    def a_broker_that_starts_from_the_journal_has_the_same_jobs(self):
        again = Broker(self.journal.restarted(), self.now, TICK)
        again.restore(self.journal.clock_offset(), self.now)
        check_broker(again)
        assert sorted(again.jobs) == sorted(self.broker.jobs)
        for job_id, job in ((job.id, job) for job in self.broker.jobs.values()):
            other = again.jobs[job_id]
            names = ("id", "priority", "delay", "ttr", "key", "created_at")
            assert [getattr(other, name) for name in names] == [getattr(job, name) for name in names]
            assert other.body == self.body(job_id)
            names = ("releases", "buries", "kicks")
            assert [getattr(other.extras, name) for name in names] == [getattr(job.extras, name) for name in names]
            assert other.tube.name == job.tube.name
            state = STATES[job.state]
            if state == "reserved" or (state == "delayed" and job.deadline <= self.now):
                state = "ready"
            assert STATES[other.state] == state
            if state == "delayed":
                assert other.deadline == job.deadline
        for name, tube in ((tube.name, tube) for tube in again.tubes.values()):
            if name in self.broker.tubes:
                assert buried(tube) == buried(self.broker.tubes[name])

    @invariant()
    def the_answers_agree(self):
        for client, mirror in self.pairs:
            assert client.answers == mirror.answers[: len(mirror.answers) - client.busy]
            assert client.waiting == bool(mirror.waiting)
            client.reserved.check()
            assert sorted(tube.name for tube in client.watched) == sorted(mirror.watched)
            assert sorted(job.id for job in client.reserved) == sorted(job.id for job in mirror.held)
        assert all(client.answers == answers for client, answers in self.gone), "who has gone gets no answers"


class BodilessBrokerAgainstModel(BrokerAgainstModel):
    """Reserved jobs, and what peeks have found, are given later, in any order."""

    journal_type = BodilessJournal

    @rule(data=st.data())
    def end_fetch(self, data):
        if self.journal.fetches:
            self.journal.end_fetch(data.draw(st.integers(0, len(self.journal.fetches) - 1)))

    def teardown(self):
        while self.journal.fetches:
            self.journal.end_fetch()
        for client, mirror in self.pairs:
            assert not client.busy and client.answers == mirror.answers


BrokerAgainstModel.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
BodilessBrokerAgainstModel.TestCase.settings = BrokerAgainstModel.TestCase.settings
TestBrokerAgainstModel = pytest.mark.interpreted(BrokerAgainstModel.TestCase)
TestBodilessBrokerAgainstModel = pytest.mark.interpreted(BodilessBrokerAgainstModel.TestCase)
