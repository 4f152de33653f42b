"""The durations that a broker counts are those that a naive recorder computes beside it: of any clients, commands,
times and policies; and a broker that counts none does everything else as it would.
"""

import random

import pytest
from effort import seeded
from fields import fields_of
from model import Model
from virtual import BrokerWorld, MemoryJournal, RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.job import READY, Job
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import NO_POLICY, Policy
from beanstalk_server.queue.stored_job import stored_job
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.units import MILLISECOND, SECOND
from tests.queue.test_broker import MOVED, BrokerAgainstModel
from tests.queue.test_histogram import naive_counts

NAMES = ("waited", "ran", "lateness")


class RecordingModel(Model):
    """Notes what happens to each job, and when."""

    def __init__(self, tick):
        super().__init__(tick)
        self.found = {name: [] for name in NAMES}
        self.put_at = {}  # by id
        self.began = {}  # by id: when it was reserved or touched last
        self.unknown = set()  # the ids of those that are not ready when the delay of their put is over
        self.renewed = None

    def put(self, client, job_id, priority, delay, ttr, now, size, *attributes):
        self.put_at[job_id] = now
        self.unknown.discard(job_id)  # a restart may give the id of a job that is gone once more
        return super().put(client, job_id, priority, delay, ttr, now, size, *attributes)

    def renew(self, job):
        super().renew(job)
        self.renewed = job

    def demand(self, job, attributes):
        super().demand(job, attributes)
        if job is self.renewed:
            self.unknown.discard(job.id)  # it is another job
            if not job.has_terms:
                self.unknown.add(job.id)
        self.renewed = None

    def lose_track(self, job_id, *states):
        job = self.find(job_id)
        if job is not None and job.state in states and not job.has_terms:
            self.unknown.add(job_id)

    def reschedule(self, job_id, delay, now):
        self.lose_track(job_id, "delayed")
        return super().reschedule(job_id, delay, now)

    def kick_job(self, job_id, now):
        self.lose_track(job_id, "delayed", "buried")
        return super().kick_job(job_id, now)

    def move_as_it_is(self, job, tube, now):
        self.lose_track(job.id, "ready")
        super().move_as_it_is(job, tube, now)

    def unreserve(self, client, job_id, now):
        if self.held_by(client, job_id):
            self.unknown.add(job_id)
        return super().unreserve(client, job_id, now)

    def restart(self, now, wall_offset, known):
        super().restart(now, wall_offset, known)
        self.unknown.update(job.id for job in self.jobs)

    def hold(self, job, client, now):
        if job.state == "ready" and not job.reserves and job.id not in self.unknown:
            since = job.since if job.has_terms else self.put_at[job.id] + job.delay
            self.found["waited"].append(now - since)
        super().hold(job, client, now)
        self.began[job.id] = now

    def touch(self, client, job_id, now):
        if self.held_by(client, job_id):
            self.began[job_id] = now
        return super().touch(client, job_id, now)

    def end(self, client, job_id, now):
        if self.held_by(client, job_id):
            self.found["ran"].append(now - self.began[job_id])

    def delete(self, client, job_id, now):
        self.end(client, job_id, now)
        return super().delete(client, job_id, now)

    def release(self, client, job_id, priority, delay, now):
        self.end(client, job_id, now)
        return super().release(client, job_id, priority, delay, now)

    def bury(self, client, job_id, priority, now):
        self.end(client, job_id, now)
        return super().bury(client, job_id, priority, now)

    def on_delay_over(self, job, now):
        self.found["lateness"].append(now - job.deadline)
        super().on_delay_over(job, now)

    def on_moment(self, wall_offset, now):
        self.found["lateness"] += [now + wall_offset - job.at for job in self.jobs if 0 < job.at <= now + wall_offset]
        super().on_moment(wall_offset, now)


class MeasuredBrokerAgainstModel(BrokerAgainstModel):
    """The broker counts what the model records; sometimes the server oversleeps."""

    model_type = RecordingModel
    durations = None

    def new_broker(self, journal):
        broker = super().new_broker(journal)
        broker.durations = self.durations = self.durations or Durations()
        return broker

    def oversleep(self, duration):
        """Nothing is done for a while, and then all of it at once."""
        due = self.model.events()
        if len({tick for tick, *_ in due if tick * self.model.tick <= self.now + duration}) > 1:
            return  # what comes first may set timers that come before the others
        self.now += duration
        self.model.sleep(self.now, self.now)
        self.let_broker_catch_up()

    def let_broker_catch_up(self):
        while self.broker.next_event() <= self.now:
            self.broker.advance(self.now)

    def the_durations_agree(self):
        self.let_time_pass(0)
        for name in NAMES:
            histogram, found = getattr(self.durations, name), self.model.found[name]
            histogram.check()
            assert histogram.counts == naive_counts(found), name
            assert (histogram.count, histogram.total) == (len(found), sum(max(each, 0) for each in found)), name

    def the_ages_of_ready_jobs_make_sense(self):
        self.let_time_pass(0)
        for tube in self.broker.tubes.values():
            first = self.model.next_jobs(tube.name, "ready")[:1]
            age = tube.next_ready_age(self.now)
            if not first:
                assert age == 0
            elif first[0].has_terms:
                assert age == max(self.now - first[0].since, 0)
            else:
                assert 0 <= age <= max(self.now - self.model.put_at[first[0].id], 0)


POLICIES = (Policy(max_tries=3, backoff=SECOND, dead_tube="dead"), Policy(ttl=5 * SECOND, dead_tube="dead"), NO_POLICY)


class Drawn:
    """Draws policies, in place of the data of a property test."""

    def __init__(self, rng):
        self.rng = rng

    def draw(self, _, label):
        return self.rng.choice((*POLICIES, NO_POLICY))


def live_on(machine, rng):
    """One step, of those that lead somewhere: of a thousand steps of a property test, few end a reservation."""
    pair = rng.choice(machine.pairs)
    delay = rng.choice((0, 0, 0, SECOND // 2, 3 * SECOND))
    ttr = rng.choice((SECOND, 2 * SECOND, 3 * SECOND + 1))
    job_id = rng.choice(sorted(machine.broker.jobs) or [1])
    held = rng.choice([job.id for job in pair[0].reserved] or [1])
    key = rng.choice(("k", "l"))
    wait = rng.choice((0, SECOND // 3, 2 * SECOND))
    put = rng.choice(
        (
            lambda: machine.put(pair, 0, delay, ttr),
            lambda: machine.put(pair, 1, delay, ttr),
            lambda: machine.put_keyed(pair, key, rng.random() < 0.7, 0, delay, ttr),
            lambda: machine.put_at(pair, "", False, 0, wait, ttr),
            lambda: machine.put_with(pair, key, True, 2, 0, 0, 0, delay, ttr),
        )
    )
    if len(machine.broker.jobs) < 8:
        put()
    rng.choice(
        (
            lambda: machine.reserve(pair, rng.choice((0, SECOND)), rng.choice((0, 0, 2))),
            lambda: machine.reserve(pair, 0, 0),
            lambda: machine.reserve(pair, 0, 0),
            lambda: machine.reserve_job(pair, job_id),
            lambda: machine.touch(pair, held),
            lambda: machine.delete(pair, held),
            lambda: machine.delete(pair, held),
            lambda: machine.delete(pair, job_id),
            lambda: machine.release(pair, held, 0, delay),
            lambda: machine.bury(pair, held, 0),
            lambda: machine.unreserve(pair, held),
            lambda: machine.kick_job(pair, job_id),
            lambda: machine.kick(pair, 2),
            lambda: machine.redrive(pair, "dead", 2),
            lambda: machine.move_jobs(pair, "default", rng.choice(MOVED), "a", 1),
            lambda: machine.move_jobs(pair, "a", rng.choice(MOVED), "default", 2),
            lambda: machine.reschedule(pair, job_id, delay),
            lambda: machine.use(pair, rng.choice(("default", "a"))),
            lambda: machine.watch(pair, rng.choice(("a", "dead"))),
            lambda: machine.pause(pair, "a", SECOND),
            lambda: machine.set_the_wall_clock(rng.choice((-SECOND, SECOND // 2))),
            lambda: machine.oversleep(rng.choice((1, SECOND // 4, SECOND, 2 * SECOND))),
            lambda: machine.sleep(rng.choice((1, SECOND // 4, SECOND, 2 * SECOND))),
            lambda: machine.sleep(rng.choice((1, SECOND // 4, SECOND, 2 * SECOND))),
        )
    )()
    if rng.random() < 0.01:
        machine.restart()
    if rng.random() < 0.01:
        machine.change_policy("default", rng.choice(POLICIES))


@seeded(2)
def test_the_durations_of_a_broker_are_those_that_a_recorder_computes(seed):
    rng = random.Random(seed)
    machine = MeasuredBrokerAgainstModel()
    machine.begin(10**9, Drawn(rng))
    for _ in range(3):
        machine.connect(counted=True)
    for number in range(1500):
        live_on(machine, rng)
        machine.the_durations_agree()
        machine.the_ages_of_ready_jobs_make_sense()
        if not number % 50:
            machine.they_agree()
            machine.the_answers_agree()
    found = machine.model.found
    assert min(len(found[name]) for name in NAMES) > 5 and max(found["lateness"]) > SECOND // 8


# A broker

NOW = 1000 * SECOND


class World(BrokerWorld):
    """A broker that counts, and a client."""

    tube = "default"

    def __init__(self, journal=None, counts=True):
        super().__init__(journal or Journal(), NOW)
        self.durations = Durations()
        if counts:
            self.broker.durations = self.durations

    def put(self, delay=0, ttr=60 * SECOND, key="", **attributes):
        job_id = self.broker.next_id
        super().put(delay=delay, ttr=ttr, key=key, **attributes)
        return job_id

    def reserve(self):
        assert self.broker.reserve(self.client, 0, self.now) == DONE

    def age(self):
        return self.broker.tubes.default.next_ready_age(self.now)


def counts_of(histogram):
    """How many there are, and how long they are in all, in milliseconds."""
    return histogram.count, round(histogram.total / MILLISECOND)


@pytest.mark.parametrize("ttr", [1, SECOND, SECOND + 1, 60 * SECOND])
@pytest.mark.parametrize("end", ["delete", "release", "bury"])
def test_a_job_has_run_from_its_last_touch_whatever_is_left_of_its_time_to_run(ttr, end):
    world = World()
    job_id = world.put(ttr=ttr)
    world.reserve()
    world.now += ttr // 2
    world.broker.touch(world.client, job_id, world.now)
    world.sleep(ttr - 1)
    arguments = {"delete": (), "release": (0, 0), "bury": (0,)}[end]
    assert getattr(world.broker, end)(world.client, job_id, *arguments, world.now) == DONE
    assert (world.durations.ran.count, world.durations.ran.total) == (1, ttr - 1)


def kick(world):
    world.broker.kick_job(world.client, 1, world.now)


def reschedule(world):
    world.broker.reschedule(world.client, 1, 0, world.now)


def replace(world):
    world.put(key="k", replaces=True)


@pytest.mark.parametrize("change", [kick, reschedule, replace])
def test_a_wait_whose_beginning_is_not_known_does_not_count_but_its_job_has_an_age(change):
    world = World()
    world.put(delay=3600 * SECOND, key="k")
    world.now += SECOND
    change(world)
    world.now += SECOND
    assert world.age() in (SECOND, 2 * SECOND), "it may be too long"
    world.reserve()
    assert counts_of(world.durations.waited) == (0, 0)


@pytest.mark.parametrize("change", [kick, reschedule, replace])
def test_a_job_with_terms_knows_since_when_it_waits(change):
    world = World()
    if change is replace:
        world.broker.change_policies(lambda _: Policy(ttl=7200 * SECOND), world.now)
    world.put(delay=3600 * SECOND, key="k", max_tries=3)
    world.now += SECOND
    change(world)
    world.now += SECOND
    assert world.age() == SECOND
    world.reserve()
    assert counts_of(world.durations.waited) == (1, 1000)


class Restored(Journal):
    """Has one ready job, that was put at this moment of the wall clock."""

    keeps = True

    def __init__(self, created_at):
        self.created_at = created_at

    def load(self):
        job = Job(7, 0, 0, SECOND, b"", Tube("default", 0), self.created_at)
        job.state = READY
        yield stored_job(job, 0)


@pytest.mark.parametrize(
    ("created_at", "age"),
    [
        (5_000_000 * SECOND, 1000),  # in a boot before
        (5_001_000 * SECOND, 0),
        (9_999_999 * SECOND, 0),  # the wall clock went wrong since, or was wrong then
        (0, 5_001_000),
    ],
)
def test_a_restored_job_has_the_age_that_the_wall_clock_says_and_none_below_0(created_at, age):
    world = World.__new__(World)
    world.now, world.durations = NOW, Durations()
    world.broker = Broker(Restored(created_at), NOW)
    world.broker.durations = world.durations
    assert world.broker.restore(5_000_000 * SECOND, NOW) == 1
    world.client = RecordingClient(world.broker)
    assert world.age() == age * SECOND
    world.reserve()
    assert counts_of(world.durations.waited) == (0, 0)
    world.now += SECOND // 2
    world.broker.delete(world.client, 7, world.now)
    assert counts_of(world.durations.ran) == (1, 500)


def live(counts):
    """A life of a thousand commands; all that clients and the journal have seen of it."""
    rng = random.Random(16)
    world = World(MemoryJournal(), counts=counts)
    broker = world.broker
    seen = []
    for _ in range(1000):
        world.sleep(rng.choice((1, MILLISECOND, SECOND)))
        job_id, now, client = rng.randrange(max(broker.next_id - 8, 0), broker.next_id), world.now, world.client
        commands = [
            lambda: world.put(rng.choice((0, 0, SECOND)), 2 * SECOND),
            lambda: world.put(0, SECOND, rng.choice("kl"), replaces=True),
            lambda: broker.reserve(client, 0, now),  # noqa: B023
            lambda: broker.reserve_job(client, job_id, now),  # noqa: B023
            lambda: broker.delete(client, job_id, now),  # noqa: B023
            lambda: broker.release(client, job_id, 1, rng.choice((0, SECOND)), now),  # noqa: B023
            lambda: broker.bury(client, job_id, 2, now),  # noqa: B023
            lambda: broker.touch(client, job_id, now),  # noqa: B023
            lambda: broker.kick_job(client, job_id, now),  # noqa: B023
        ]
        try:
            seen.append(rng.choice(commands)())
        except AssertionError:
            seen.append("a put that came too late")
    kept = [{name: getattr(job, name) for name in fields_of(type(job))} for job in world.broker.journal.jobs.values()]
    statistics = broker.server_statistics()
    totals = [getattr(statistics, name) for name in ("ready", "reserved", "delayed", "buried", "timeouts", "memory")]
    return (seen, world.client.answers, kept, totals), world.durations


def test_whether_durations_are_counted_makes_no_difference_to_anything_else():
    without, nothing = live(False)
    with_durations, found = live(True)
    assert with_durations == without
    assert [getattr(nothing, name).count for name in NAMES] == [0, 0, 0]
    assert min(getattr(found, name).count for name in NAMES) > 10
