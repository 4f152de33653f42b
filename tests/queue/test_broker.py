"""The broker, compared with the model: any clients, any commands, any times, any policies; every invariant after every
step.

Once with bodies in memory, and once with a journal that takes every body out of memory: then some answers come later,
and everything else is the same.
"""

import functools
import random

import pytest
from checking import check_broker
from effort import examples, seeded
from fields import fields_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from model import Model, ModelClient
from virtual import BodilessJournal, MemoryJournal, RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import READY, STATES, Job, Terms, Token
from beanstalk_server.queue.journal import Journal, JournalError
from beanstalk_server.queue.outcome import AGAIN, DONE, PENDING, REPLACED
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Counters, Labels, Policy
from beanstalk_server.queue.stored_job import stored_job
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.units import FOREVER, SECOND
from beanstalk_server.queue.weights import FAIR, PRIORITY, WEIGHTED
from beanstalk_server.queue.wheel import TICK

pytestmark = pytest.mark.compiled

tubes = st.sampled_from(["default", "a", "b", "dead"])
MOVED = ["ready", "delayed", "buried"]
priorities = st.sampled_from([0, 1, 1023, 1024, 2**32 - 1])
delays = st.one_of(st.just(0), st.integers(1, 5 * SECOND))
times_to_run = st.integers(SECOND, 4 * SECOND)
keys = st.sampled_from(["k", "l", "x-1"])
shares = st.sampled_from(["", "x", "y"])
names_of_limits = st.sampled_from(["", "m", "a/m", "n/m"])
job_ids = st.integers(1, 12)
timeouts = st.one_of(st.just(0), st.just(FOREVER), st.integers(1, 30_000_000), st.integers(1, 6 * SECOND))
limits = st.integers(0, 3)  # of tries


def some_limits(least, most):
    """A limit within these bounds, or none, which is more likely."""
    return st.one_of(st.just(0), st.just(0), st.integers(least, most))


intervals = st.one_of(st.just(0), st.just(SECOND), st.integers(1, 1_000_000), st.integers(1, 3 * SECOND))
backoffs = st.one_of(st.just(0), st.just(1), st.integers(1, 3 * SECOND))
times_to_live = st.one_of(st.just(0), st.just(0), st.integers(1, 30_000_000), st.integers(1, 6 * SECOND))
withins = st.one_of(st.just(0), st.just(0), st.integers(1, 4 * SECOND))
holds = st.one_of(st.just(0), st.integers(1, 6 * SECOND))
policies = st.one_of(
    st.just(NO_POLICY),
    st.builds(
        Policy,
        max_tries=limits,
        count_disconnects=st.booleans(),
        backoff=backoffs,
        backoff_max=st.one_of(st.just(0), st.integers(1, 5 * SECOND)),
        dead_tube=st.sampled_from(["", "", "a", "b", "dead"]),
        ttl=times_to_live,
        key_hold=holds,
        max_jobs=some_limits(1, 3),
        max_held_keys=some_limits(1, 2),
        max_bytes=some_limits(0, 20),
        max_delay=some_limits(1, 4 * SECOND),
        max_job_size=some_limits(4, 7),
        max_reserved=some_limits(1, 2),
        interval=intervals,
        burst=st.integers(1, 3),
        share=st.sampled_from(["", "", "-"]),
    ),
)
durations = st.one_of(st.integers(1, 30_000_000), st.integers(1, 6 * SECOND), st.integers(1, 3600 * SECOND))


def buried(tube):
    """The ids of its buried jobs, first buried first."""
    found = []
    job = tube.buried.after
    while job is not tube.buried:
        found.append(job.id)
        job = job.after
    return found


def letters(tube):
    """The ids of its dead letters, first come first."""
    found = []
    letter = tube.letters and tube.letters.after
    while letter is not tube.letters:
        found.append(letter.job.id)
        letter = letter.after
    return found


def owes_answer(client):
    """Whether the broker owes the client an answer: until then, the client gives no other command."""
    return client.waiting or client.busy


def ended(client, outcome):
    """The outcome of a command, as if all bodies had been in memory."""
    return DONE if outcome == PENDING and client.busy else outcome


clients = Bundle("clients")


def command(**strategies):
    """A rule: a client gives a command, a nanosecond later, unless the broker owes it an answer."""

    def decorate(method):
        @functools.wraps(method)
        def give(self, pair, *arguments, **drawn):
            if not owes_answer(pair[0]):
                self.step()
                method(self, *pair, *arguments, **drawn)

        return rule(pair=clients, **strategies)(give)

    return decorate


class BrokerAgainstModel(RuleBasedStateMachine):
    journal_type = MemoryJournal
    model_type = Model
    shards, shard = 1, 0

    policies = policies

    # Not near 0, which stands for no moment at all: the wall clock may be set back far, and a job be ready since then.
    @initialize(start=st.integers(10**11, 10**12), data=st.data())
    def begin(self, start, data):
        self.now = start
        self.journal = self.journal_type()
        self.model = self.model_type(TICK)
        for tube in ("default", "a"):
            self.model.policies[tube] = data.draw(self.policies, label=f"policy of {tube}")
        self.broker = self.new_broker(self.journal)
        self.pairs = []
        self.gone = []
        self.bodies = 0
        self.set_wall_offset(self.journal.clock_offset())

    def set_wall_offset(self, offset):
        self.wall_offset = offset
        self.broker.set_wall_offset(offset)
        self.model.set_wall_offset(offset)

    def new_broker(self, journal):
        broker = Broker(journal, self.now, TICK, 0, self.shards, self.shard, self.policy_of)
        broker.memory.packed_from = 2 * SECOND  # some of the delays are shorter, some longer
        return broker

    def policy_of(self, name):
        return self.model.policies.get(name, NO_POLICY)

    @rule(tube=tubes, policy=policies)
    def change_policy(self, tube, policy):
        self.step()
        self.broker.advance(self.now)  # or what expires at once would do so in the order of all time since it last was
        self.model.change_policy(tube, policy, self.now)
        self.broker.change_policies(self.policy_of, self.now)

    def step(self):
        self.now += 1

    @rule(target=clients, counted=st.booleans())
    def connect(self, counted):
        client = ModelClient(counted=counted)
        self.model.connect(client)
        self.pairs.append((RecordingClient(self.broker, counted), client))
        return self.pairs[-1]

    @rule(pair=clients, counted=st.booleans())
    def set_counted(self, pair, counted):
        self.broker.set_counted(pair[0], counted)
        pair[1].counted = counted

    @rule(pair=clients)
    def begin_put(self, pair):
        self.broker.begin_put(pair[0])
        pair[1].producer = True

    @rule(pair=consumes(clients), has_left=st.booleans())
    def disconnect(self, pair, has_left):
        self.step()
        self.pairs.remove(pair)
        self.broker.disconnect(pair[0], self.now, has_left)
        self.model.disconnect(pair[1], self.now, has_left)
        self.gone.append((pair[0], list(pair[0].answers)))

    @command(priority=priorities, delay=delays, ttr=times_to_run)
    def put(self, client, mirror, priority, delay, ttr):
        job_id = self.broker.take_id()
        body = b"%d" % job_id
        outcome = self.broker.put(client, job_id, priority, delay, ttr, body, self.now, self.now)
        assert outcome == self.model.put(mirror, job_id, priority, delay, ttr, self.now, len(body))

    @command(
        key=keys,
        replaces=st.booleans(),
        priority=priorities,
        delay=delays,
        ttr=times_to_run,
        again=st.booleans(),
        within=withins,
    )
    def put_keyed(self, client, mirror, key, replaces, priority, delay, ttr, again=False, within=0):
        job_id = self.broker.next_id
        self.bodies += 1
        body = b"body %d" % self.bodies
        before = self.model.find_keyed(mirror.use, key)
        kept = before and self.body(before.id)
        attributes = Attributes(key=key, replaces=replaces, again=again, within=within)
        outcome = self.broker.put_with(client, attributes, priority, delay, ttr, body, self.now, self.now)
        assert outcome == self.model.put_with(mirror, job_id, attributes, priority, delay, ttr, self.now, len(body))
        if before or outcome == DONE:  # else the key is held
            assert self.body(before.id if before else job_id) == (body if outcome in (DONE, REPLACED, AGAIN) else kept)

    @command(priority=priorities, delay=delays, sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def put_batch(self, client, mirror, priority, delay, sizes):
        job_ids = [self.broker.next_id + number * self.broker.stride for number in range(len(sizes))]
        bodies = [bytes(size) for size in sizes]
        outcome = self.broker.put_batch(client, priority, delay, SECOND, bodies, self.now, self.now)
        assert outcome == self.model.put_batch(mirror, job_ids, priority, delay, SECOND, self.now, sizes)

    @command(ids=st.lists(job_ids, min_size=1, max_size=4))
    def delete_batch(self, client, mirror, ids):
        assert self.broker.delete_batch(client, ids, self.now) == DONE
        self.model.each(mirror, [self.model.delete(mirror, each, self.now) for each in ids])

    @command(ids=st.lists(job_ids, min_size=1, max_size=4), priority=priorities, delay=delays)
    def release_batch(self, client, mirror, ids, priority, delay):
        assert self.broker.release_batch(client, ids, priority, delay, self.now) == DONE
        done = [self.model.release(mirror, each, priority, delay, self.now) for each in ids]
        self.model.each(mirror, done)

    @command(ids=st.lists(job_ids, min_size=1, max_size=4))
    def touch_batch(self, client, mirror, ids):
        assert self.broker.touch_batch(client, ids, self.now) == DONE
        self.model.each(mirror, [self.model.touch(mirror, each, self.now) for each in ids])

    @command()
    def touch_all(self, client, mirror):
        held = [job.id for job in client.reserved]
        assert self.broker.touch_all(client, self.now) == DONE
        assert [self.model.touch(mirror, each, self.now) for each in held] == [DONE] * len(held)
        mirror.answers.append(("counted", len(held)))

    @command(
        key=st.one_of(st.just(""), keys),
        replaces=st.booleans(),
        priority=priorities,
        wait=st.integers(-SECOND, 5 * SECOND),
        ttr=times_to_run,
        again=st.booleans(),
        within=withins,
    )
    def put_at(self, client, mirror, key, replaces, priority, wait, ttr, again=False, within=0):
        job_id = self.broker.next_id
        at = self.now + self.wall_offset + wait
        attributes = Attributes(key=key, replaces=replaces, at=at, again=again, within=within)
        outcome = self.broker.put_with(client, attributes, priority, 0, ttr, b"at", self.now, self.now)
        assert outcome == self.model.put_with(mirror, job_id, attributes, priority, 0, ttr, self.now, 2)

    @rule(by=st.one_of(st.integers(-1_000_000, 1_000_000), st.integers(-10 * SECOND, 10 * SECOND)))
    def set_the_wall_clock(self, by):
        self.set_wall_offset(self.wall_offset + by)

    @command(
        key=st.one_of(st.just(""), keys),
        replaces=st.booleans(),
        limit=limits,
        backoff=backoffs,
        ttl=times_to_live,
        hold=holds,
        delay=delays,
        ttr=times_to_run,
        again=st.booleans(),
    )
    def put_with(self, client, mirror, key, replaces, limit, backoff, ttl, hold, delay, ttr, again=False):
        job_id = self.broker.next_id
        attributes = Attributes(
            key=key,
            replaces=replaces,
            again=again,
            max_tries=limit,
            backoff=backoff,
            ttl=ttl,
            key_hold=hold if key else 0,
        )
        outcome = self.broker.put_with(client, attributes, 0, delay, ttr, b"with", self.now, self.now)
        assert outcome == self.model.put_with(mirror, job_id, attributes, 0, delay, ttr, self.now, 4)

    @command(
        key=st.one_of(st.just(""), keys),
        replaces=st.booleans(),
        share=shares,
        limit=names_of_limits,
        count=st.integers(1, 2),
        priority=st.integers(0, 1),
        delay=st.one_of(st.just(0), delays),
        again=st.booleans(),
    )
    def put_with_labels(self, client, mirror, key, replaces, share, limit, count, priority, delay, again):
        job_id = self.broker.next_id
        labels = Labels(share=share, limit=limit, limit_count=count if limit else 0)
        attributes = Attributes(key=key, replaces=replaces and bool(key), again=again, labels=labels)
        outcome = self.broker.put_with(client, attributes, priority, delay, SECOND, b"labels", self.now, self.now)
        assert outcome == self.model.put_with(mirror, job_id, attributes, priority, delay, SECOND, self.now, 6)

    @command(
        once=keys,
        lasts=durations,
        key=st.one_of(st.just(""), keys),
        replaces=st.booleans(),
        again=st.booleans(),
        delay=delays,
        ttl=times_to_live,
        hold=holds,
    )
    def put_once(self, client, mirror, once, lasts, key, replaces, again, delay, ttl, hold):
        job_id = self.broker.next_id
        token_id = job_id + self.broker.stride
        attributes = Attributes(
            key=key, replaces=replaces, again=again, ttl=ttl, key_hold=hold if key else 0, once=once, once_ttl=lasts
        )
        outcome = self.broker.put_with(client, attributes, 0, delay, SECOND, b"once", self.now, self.now)
        expected = self.model.put_once(mirror, job_id, token_id, attributes, 0, delay, SECOND, self.now, 4)
        assert outcome == expected

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

    @rule(pair=clients, job_id=job_ids, priority=priorities)
    def reprioritize(self, pair, job_id, priority):
        self.step()
        outcome = self.broker.reprioritize(pair[0], job_id, priority, self.now)
        assert outcome == self.model.reprioritize(self.model.find(job_id), priority, self.now)

    @rule(pair=clients, key=keys, priority=priorities)
    def reprioritize_keyed(self, pair, key, priority):
        self.step()
        job = self.model.find_keyed(pair[1].use, key)
        outcome = self.broker.reprioritize_keyed(pair[0], key, priority, self.now)
        assert outcome == self.model.reprioritize(job, priority, self.now)

    @command(name=tubes)
    def clear(self, client, mirror, name):
        assert self.broker.clear(client, name) == self.model.clear(mirror, name)

    @command(timeout=timeouts, batch=st.integers(0, 3))
    def reserve(self, client, mirror, timeout, batch):
        if batch:
            outcome = ended(client, self.broker.reserve_batch(client, batch, timeout, self.now))
            assert outcome == self.model.reserve_batch(mirror, batch, timeout, self.now)
        else:
            outcome = ended(client, self.broker.reserve(client, timeout, self.now))
            assert outcome == self.model.reserve(mirror, timeout, self.now)
        assert client.jobs_in_safety_margin == sum(held.in_safety_margin for held in mirror.held)

    @command()
    def probe(self, client, mirror):
        assert self.broker.probe(client, self.now) == self.model.probe(mirror)

    @command(job_id=job_ids)
    def unreserve(self, client, mirror, job_id):
        lsn = self.broker.last_lsn
        job = self.model.find(job_id)
        is_recorded = job and (job.again or self.model.ttl_of(job))
        done = self.broker.unreserve(client, job_id, self.now)
        assert done == self.model.unreserve(mirror, job_id, self.now)
        assert is_recorded or self.broker.last_lsn == lsn, "nothing is recorded"

    @rule(pair=clients)
    def stop_waiting(self, pair):
        was_waiting = bool(pair[1].waiting)
        assert self.broker.stop_waiting(pair[0]) == was_waiting
        pair[1].waiting = 0

    @command(job_id=job_ids)
    def reserve_job(self, client, mirror, job_id):
        outcome = ended(client, self.broker.reserve_job(client, job_id, self.now))
        assert outcome == self.model.reserve_job(mirror, job_id, self.now)

    @command(job_id=job_ids)
    def delete(self, client, mirror, job_id):
        assert self.broker.delete(client, job_id, self.now) == self.model.delete(mirror, job_id, self.now)

    @command(job_id=job_ids, priority=priorities, delay=delays)
    def release(self, client, mirror, job_id, priority, delay):
        done = self.broker.release(client, job_id, priority, delay, self.now)
        assert done == self.model.release(mirror, job_id, priority, delay, self.now)

    @command(job_id=job_ids, priority=priorities)
    def bury(self, client, mirror, job_id, priority):
        done = self.broker.bury(client, job_id, priority, self.now)
        assert done == self.model.bury(mirror, job_id, priority, self.now)

    @command(job_id=job_ids)
    def touch(self, client, mirror, job_id):
        assert self.broker.touch(client, job_id, self.now) == self.model.touch(mirror, job_id, self.now)

    @command(job_id=job_ids, size=st.integers(0, 9))
    def save(self, client, mirror, job_id, size):
        kept = self.body(job_id) if job_id in self.broker.jobs else None
        body = bytes(size)
        outcome = self.broker.save(client, job_id, body)
        assert outcome == self.model.save(mirror, job_id, size, self.now)
        if kept is not None:
            assert self.body(job_id) == (body if outcome == DONE else kept)

    @command(bound=st.integers(0, 3))
    def kick(self, client, mirror, bound):
        assert self.broker.kick(client, bound, self.now) == self.model.kick(mirror, bound, self.now)

    @command(tube=tubes, bound=st.integers(0, 3))
    def redrive(self, client, mirror, tube, bound):
        assert self.broker.redrive(client, tube, bound, self.now) == self.model.redrive(mirror, tube, bound, self.now)

    @command(tube=tubes, state=st.sampled_from(MOVED), to=tubes, bound=st.integers(1, 3))
    def move_jobs(self, client, mirror, tube, state, to, bound):
        outcome = self.broker.move(client, tube, STATES.index(state), to, bound, self.now)
        assert outcome == self.model.move_jobs(mirror, tube, state, to, bound, self.now)

    @rule(pair=clients, job_id=job_ids)
    def kick_job(self, pair, job_id):
        self.step()
        assert self.broker.kick_job(pair[0], job_id, self.now) == self.model.kick_job(job_id, self.now)

    @command(job_id=job_ids)
    def peek(self, client, mirror, job_id):
        found = self.model.find(job_id)
        assert ended(client, self.broker.peek(client, job_id)) == self.model.peek(mirror, [found] if found else [])

    @command(key=keys)
    def peek_keyed(self, client, mirror, key):
        found = self.model.find_keyed(mirror.use, key)
        assert ended(client, self.broker.peek_keyed(client, key)) == self.model.peek(mirror, [found] if found else [])

    @command(state=st.sampled_from(["ready", "delayed", "buried"]))
    def peek_next(self, client, mirror, state):
        outcome = ended(client, getattr(self.broker, f"peek_{state}")(client))
        assert outcome == self.model.peek(mirror, self.model.next_jobs(mirror.use, state))

    @command(tube=tubes)
    def use(self, client, mirror, tube):
        self.broker.use(client, tube)
        mirror.use, mirror.uses = tube, True

    @command()
    def unuse(self, client, mirror):
        self.broker.unuse(client)
        mirror.use, mirror.uses = "default", False

    @command(tube=tubes, weight=st.sampled_from([0, 0, 1, 2, 3]))
    def watch(self, client, mirror, tube, weight=0):
        self.broker.watch(client, tube, True, weight)
        self.model.watch(mirror, tube, weight)

    @command(name=st.sampled_from(["worker", "shop/web-3/4711"]))
    def name_client(self, client, mirror, name):
        self.broker.name_client(client, name)
        mirror.name = name

    @command(mode=st.sampled_from([PRIORITY, WEIGHTED, FAIR]))
    def set_mode(self, client, mirror, mode):
        self.broker.set_mode(client, mode)
        self.model.set_mode(mirror, mode)

    @command(tube=tubes)
    def ignore(self, client, mirror, tube):
        assert self.broker.ignore(client, tube) == self.model.ignore(mirror, tube)

    @command(tube=tubes)
    def unwatch(self, client, mirror, tube):
        self.broker.unwatch(client, tube)
        self.model.unwatch(mirror, tube)

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
        self.let_time_pass(duration)

    def let_time_pass(self, duration):
        end = self.now + duration
        self.model.sleep(self.now, end)
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
        self.now = end

    @invariant()
    def they_agree(self):
        self.let_time_pass(0)  # what a step has set free is given away at once, but not within the step
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
            terms = job.terms() or Terms()
            assert (terms.tries, terms.reason, terms.origin) == (mirror.tries, mirror.reason, mirror.origin)
            assert (terms.max_tries, terms.backoff) == (mirror.max_tries, mirror.backoff)
            assert (terms.ttl, terms.key_hold) == (mirror.ttl, mirror.key_hold)
            assert isinstance(job.extras, Terms) == mirror.has_terms
            if mirror.state == "ready":
                assert terms.ready_since == mirror.since
                ttl = self.model.ttl_of(mirror)
                assert (terms.expiry and terms.expiry.deadline) == (mirror.since + ttl if ttl else None)
            time_left = self.broker.job_statistics(job.id, 0).time_left
            is_timer = mirror.state in ("delayed", "reserved") and not mirror.after
            assert time_left == (max(self.model.due(mirror), 0) if is_timer else 0)
            assert job.is_timed() == bool(mirror.at)
        for name, tube in ((tube.name, tube) for tube in self.broker.tubes.values()):
            ids = {
                state: [job.id for job in self.model.next_jobs(name, state)] for state in ("ready", "delayed", "buried")
            }
            assert buried(tube) == ids["buried"]
            assert letters(tube) == [job.id for job in self.model.letters(name)]
            first = tube.ready.first()
            assert (first and first.id) == (ids["ready"][0] if ids["ready"] else None)
            soonest = self.broker.first_delayed(tube)
            assert (soonest and soonest.id) == (ids["delayed"][0] if ids["delayed"] else None)
            found = self.broker.tube_statistics(name, self.now)
            assert [found.ready, found.delayed, found.buried] == [len(self.model.of(name, state)) for state in ids]
            assert found.using == sum(mirror.uses and mirror.use == name for mirror in self.model.clients)
            assert found.watching == sum(name in mirror.watched for mirror in self.model.clients)

    def numbers_of_limits(self, broker):
        return {name: limit.count for name, limit in broker.limits.items()}

    @invariant()
    def the_numbers_of_limits_agree(self):
        found = self.numbers_of_limits(self.broker)
        assert found == {name: self.model.limits[name] for name in found}

    @invariant()
    def the_held_keys_agree(self):
        self.let_time_pass(0)
        held = {(held.id, held.tube, held.key, held.job_id) for held in self.model.held}
        found = [job for job in self.broker.held.values() if job.key]
        assert {(job.id, job.tube.name, job.key, job.job_id if isinstance(job, Token) else 0) for job in found} == held

    @invariant()
    def the_counts_of_clients_agree(self):
        self.let_time_pass(0)
        found = self.broker.server_statistics()
        counts = [found.connections, found.producers, found.workers, found.waiting]
        assert counts == self.model.counts()
        assert found.total_connections == self.model.total_connections
        assert {name: count for name in fields_of(Counters) if (count := getattr(found.counters, name))} == {
            name: count for name, count in self.model.counted.items() if count
        }

    @rule()
    def restart(self):
        """The process ends in the midst of all, another one begins, and the clients come back."""
        again = self.a_broker_that_starts_from_the_journal_has_the_same_jobs()
        self.broker, self.journal = again, again.journal
        self.wall_offset = self.journal.clock_offset()
        self.model.restart(self.now, self.wall_offset, again.jobs)
        for client, mirror in self.pairs:
            client.__init__(again, mirror.counted)
            mirror.__init__(counted=mirror.counted)
            self.model.connect(mirror)

    @rule()
    def start_another_broker(self):
        self.a_broker_that_starts_from_the_journal_has_the_same_jobs()

    def a_broker_that_starts_from_the_journal_has_the_same_jobs(self):
        again = self.new_broker(self.journal.restarted())
        wall_offset = self.journal.clock_offset()  # whatever it was set to meanwhile
        again.restore(wall_offset, self.now)
        check_broker(again)
        assert again.next_id % self.shards == self.shard
        assert sorted(again.jobs) == sorted(self.broker.jobs)
        for job_id, job in ((job.id, job) for job in self.broker.jobs.values()):
            other = again.jobs[job_id]
            names = ("id", "priority", "delay", "next_ttr", "key", "created_at")
            assert [getattr(other, name) for name in names] == [getattr(job, name) for name in names]
            assert again.journal.stored(other).body == self.body(job_id)
            names = ("releases", "buries", "kicks")
            assert [getattr(other.extras, name) for name in names] == [getattr(job.extras, name) for name in names]
            assert other.tube.name == job.tube.name
            terms, other_terms = job.terms() or Terms(), other.terms() or Terms()
            names = ("max_tries", "backoff", "tries", "reason", "origin", "ttl", "key_hold")
            assert [getattr(other_terms, name) for name in names] == [getattr(terms, name) for name in names]
            state = STATES[job.state]
            at = self.journal.jobs[job_id].at
            if at:
                state = "delayed" if at > self.now + wall_offset else "ready"
            elif job.runs_again():
                state = "delayed" if job.due_again() > self.now else "ready"
            elif state == "reserved" or (state == "delayed" and job.deadline <= self.now):
                state = "ready"
            assert STATES[other.state] == state
            if state == "delayed":
                assert other.deadline == (at or (job.due_again() if job.runs_again() else job.deadline))
        for name, tube in ((tube.name, tube) for tube in again.tubes.values()):
            if name in self.broker.tubes:
                assert buried(tube) == buried(self.broker.tubes[name])
        assert self.numbers_of_limits(again) == self.numbers_of_limits(self.broker)
        assert self.held_keys(again) == self.held_keys(self.broker)
        return again

    def held_keys(self, broker):
        """All of them, with pauses and tokens."""
        return {
            (held.id, held.tube.name, held.key, held.deadline, isinstance(held, Token) and held.job_id)
            for held in broker.held.values()
        }

    @invariant()
    def the_answers_agree(self):
        self.let_time_pass(0)
        for client, mirror in self.pairs:
            assert client.answers == mirror.answers[: len(mirror.answers) - client.busy]
            assert client.waiting == bool(mirror.waiting)
            client.reserved.check()
            assert sorted(tube.name for tube in client.watched) == sorted(mirror.watched)
            assert sorted(job.id for job in client.reserved) == sorted(job.id for job in mirror.held)
            assert client.client_name == mirror.name
            for job in mirror.held:
                if job.noted_since:
                    assert client.reserved_since(self.broker.jobs[job.id]) == job.reserved_since
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


class PacedBrokerAgainstModel(BrokerAgainstModel):
    """Tubes that are throttled much of the time."""

    policies = st.builds(Policy, max_reserved=some_limits(1, 2), interval=intervals, burst=st.integers(1, 2))


class ShardAgainstModel(BrokerAgainstModel):
    """One shard of two: half of the ids that clients name are another's."""

    shards, shard = 2, 1

    @invariant()
    def ids_are_its_own(self):
        assert all(job_id % 2 == 1 for job_id in self.broker.jobs)


BrokerAgainstModel.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=60)
BodilessBrokerAgainstModel.TestCase.settings = BrokerAgainstModel.TestCase.settings
PacedBrokerAgainstModel.TestCase.settings = BrokerAgainstModel.TestCase.settings
ShardAgainstModel.TestCase.settings = BrokerAgainstModel.TestCase.settings
TestBrokerAgainstModel = BrokerAgainstModel.TestCase
TestBodilessBrokerAgainstModel = BodilessBrokerAgainstModel.TestCase
TestPacedBrokerAgainstModel = PacedBrokerAgainstModel.TestCase
TestShardAgainstModel = ShardAgainstModel.TestCase


class LongAgainstModel(BodilessBrokerAgainstModel):
    """A hundred thousand steps and more, in longer lives."""


LongAgainstModel.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=150)
TestLongAgainstModel = pytest.mark.slow(pytest.mark.timeout(3600)(LongAgainstModel.TestCase))


# Lives in which jobs fail, expire, move and come back: in a thousand steps of a property test, few do


LIVES = (
    Policy(max_tries=2, dead_tube="dead"),
    Policy(max_tries=3, backoff=SECOND, dead_tube="dead", key_hold=2 * SECOND),
    Policy(max_tries=2, backoff=SECOND, backoff_max=SECOND),
    Policy(max_tries=1, dead_tube="a", count_disconnects=False),
    Policy(ttl=3 * SECOND, dead_tube="dead", max_reserved=1),
    Policy(ttl=2 * SECOND, key_hold=2 * SECOND, max_held_keys=2),
    Policy(interval=SECOND, burst=2, max_jobs=4, max_bytes=20, max_delay=3 * SECOND),
    NO_POLICY,
)


class Drawn:
    """Draws policies, in place of the data of a property test."""

    def __init__(self, rng, policies):
        self.rng, self.policies = rng, policies

    def draw(self, _, label):
        return self.rng.choice(self.policies)


def live_on(machine, rng):
    """Take one step, mostly with jobs that there are and clients that have them."""
    pair = rng.choice(machine.pairs)
    jobs = sorted(machine.broker.jobs) or [1]
    job_id, held = rng.choice(jobs), rng.choice([job.id for job in pair[0].reserved] or jobs)
    tube, other, key = rng.choice(LIVE_TUBES), rng.choice(LIVE_TUBES), rng.choice(("k", "l"))
    priority, delay = rng.choice((0, 1)), rng.choice((0, 0, 0, SECOND // 2, 2 * SECOND))
    ttr, wait = rng.choice((SECOND, 2 * SECOND)), rng.choice((0, SECOND // 3, 2 * SECOND))
    replaces, ttl, hold = rng.random() < 0.5, rng.choice((0, 0, SECOND)), rng.choice((0, 2 * SECOND))
    if len(jobs) < 10:
        rng.choice(
            (
                lambda: machine.put(pair, priority, delay, ttr),
                lambda: machine.put_keyed(pair, key, replaces, priority, delay, ttr),
                lambda: machine.put_keyed(pair, key, True, priority, delay, ttr, True, wait),
                lambda: machine.put_with(pair, key, replaces, rng.choice((0, 1, 2)), delay, ttl, hold, 0, ttr),
                lambda: machine.put_at(pair, rng.choice(("", key)), replaces, priority, wait, ttr),
                lambda: machine.put_once(pair, key, ttr, rng.choice(("", key)), replaces, replaces, delay, ttl, hold),
            )
        )()
    rng.choice(
        (
            *[lambda: machine.reserve(pair, rng.choice((0, 0, SECOND, FOREVER)), rng.choice((0, 0, 2)))] * 4,
            *[lambda: machine.reserve_job(pair, job_id)] * 3,
            *[lambda: machine.release(pair, held, priority, delay)] * 8,
            *[lambda: machine.sleep(rng.choice((1, SECOND // 4, SECOND, 2 * SECOND)))] * 4,
            *[lambda: machine.use(pair, tube), lambda: machine.watch(pair, tube)] * 2,
            *[lambda: machine.move_jobs(pair, tube, rng.choice(MOVED), other, 2)] * 3,
            *[lambda: machine.kick_job(pair, job_id), lambda: machine.kick(pair, 2)] * 2,
            *[lambda: machine.redrive(pair, "dead", 2)] * 2,
            lambda: machine.bury(pair, held, priority),
            lambda: machine.delete(pair, held),
            lambda: machine.delete(pair, job_id),
            lambda: machine.touch(pair, held),
            lambda: machine.name_client(pair, rng.choice(("a", "b"))),
            *[lambda: machine.save(pair, held, rng.randrange(9))] * 2,
            lambda: machine.unreserve(pair, held),
            lambda: machine.cancel(pair, job_id),
            lambda: machine.reschedule(pair, job_id, delay),
            lambda: machine.reprioritize(pair, job_id, priority),
            lambda: machine.clear(pair, tube),
            lambda: machine.pause(pair, tube, SECOND),
            lambda: machine.peek_next(pair, "delayed"),
            lambda: machine.set_the_wall_clock(rng.choice((-SECOND, SECOND // 2))),
        )
    )()
    chance = rng.random()
    if chance < 0.04:
        machine.change_policy(tube, rng.choice(LIVES))
    elif chance < 0.08:
        machine.pairs.remove(pair)
        machine.pairs.append(pair)
        machine.disconnect(pair, rng.random() < 0.7)
        machine.connect(counted=True)
    elif chance < 0.1:
        machine.restart()


LIVE_TUBES = ("default", "a", "dead")


@pytest.mark.parametrize("kind", [BrokerAgainstModel, BodilessBrokerAgainstModel])
@seeded(6)
def test_jobs_that_fail_expire_move_and_come_back(kind, seed):
    rng = random.Random(seed)
    machine = kind()
    machine.begin(10**11, Drawn(rng, LIVES))
    for _ in range(3):
        machine.connect(counted=True)
    for _ in range(500):
        live_on(machine, rng)
        machine.they_agree()
        machine.the_held_keys_agree()
        machine.the_answers_agree()
    machine.the_counts_of_clients_agree()


class KeepingJournal(Journal):
    """Has these jobs, and knows this id as the next one."""

    keeps = True

    def __init__(self, job_ids, next_id=1):
        self.job_ids = job_ids
        self.next = next_id

    def load(self):
        job = Job(0, 0, 0, SECOND, b"", Tube("default", 0), 0)
        job.state = READY
        for job_id in self.job_ids:
            job.id = job_id
            yield stored_job(job, 0)

    def next_id(self):
        return self.next


@pytest.mark.parametrize(
    ("job_ids", "known", "shards", "shard", "following"),
    [
        ([], 1, 1, 0, 1),
        ([7], 1, 1, 0, 8),
        ([], 1, 8, 0, 8),
        ([], 1, 8, 3, 11),
        ([11, 19], 1, 8, 3, 27),
        ([11], 12, 8, 3, 19),
        ([11], 20, 8, 3, 27),
        ([11], 27, 8, 3, 27),
        ([8], 9, 8, 0, 16),
    ],
)
def test_after_a_start_the_next_id_is_a_new_one_of_the_shard(job_ids, known, shards, shard, following):
    broker = Broker(KeepingJournal(job_ids, known), 0, TICK, 0, shards, shard)
    broker.restore(0, 0)
    assert (broker.take_id(), broker.take_id()) == (following, following + shards)


def test_a_journal_of_another_shard_is_refused():
    with pytest.raises(
        JournalError, match="the journal belongs to another shard: job 12 does not belong to shard 3 of 8"
    ):
        Broker(KeepingJournal([11, 12]), 0, TICK, 0, 8, 3).restore(0, 0)
