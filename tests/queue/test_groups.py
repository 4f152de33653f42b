"""Groups, compared with the model and mixed with everything else: whatever happens, no job that comes after a group is
early, none waits for ever, and the group counts how each of its members has ended.
"""

import random
from collections import Counter

import pytest
from checking import check_broker
from effort import seeded
from virtual import FullJournal, MemoryJournal, RecordingClient, World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.groups import ENDS
from beanstalk_server.queue.job import BURIED, DELAYED, NEVER, READY, RESERVED
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.memory import BODY_COST, GROUP_COST, JOB_COST
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels, Policy
from beanstalk_server.queue.state import SLICE
from beanstalk_server.queue.units import SECOND
from tests.queue.test_broker import MOVED, BrokerAgainstModel, Drawn, ended, owes_answer

pytestmark = pytest.mark.compiled

NAMES = ["g", "h", "i"]
TUBES = ["default", "a", "b", "dead"]
STATES = {READY: "ready", RESERVED: "reserved", DELAYED: "delayed", BURIED: "buried"}


def waiting(slot):
    """The ids of the jobs in a slot, in their order."""
    found = []
    job = slot.after
    while job is not slot:
        found.append(job.id)
        job = job.after
    return found


class GroupsAgainstModel(BrokerAgainstModel):
    """Every other job belongs to a group, or comes after one."""

    def __init__(self):
        super().__init__()
        self.met = Counter()  # that the test does not compare nothing with nothing

    def new_broker(self, journal):
        broker = super().new_broker(journal)
        broker.groups.ttl = self.model.group_ttl = 4 * SECOND
        return broker

    def put_in_group(self, pair, group, after, after_waits, key, replaces, limit, ttl, delay, ttr):
        client, mirror = pair
        if owes_answer(client) or group == after:
            return
        self.step()
        job_id = self.broker.next_id
        labels = Labels(group=group, after=after, after_waits=after_waits and bool(after))
        attributes = Attributes(key=key, replaces=replaces, max_tries=limit, ttl=ttl, labels=labels)
        outcome = self.broker.put_with(client, attributes, 0, delay, ttr, b"grouped", self.now, self.now)
        assert outcome == self.model.put_with(mirror, job_id, attributes, 0, delay, ttr, self.now, 7)

    def cancel_group(self, pair, name):
        if owes_answer(pair[0]):
            return
        outcome = ended(pair[0], self.broker.cancel_group(pair[0], name))
        assert outcome == self.model.cancel_group(pair[1], name)

    def clear(self, pair, name):
        super().clear(pair, name)
        # In which order the groups end that one clear ends is nobody's business.
        for order, job_id in enumerate(waiting(self.broker.groups.released)):
            self.model.find(job_id).order = order

    def let_time_pass(self, duration):
        released = {job.id for job in self.model.jobs if job.is_released}
        self.met["released"] += len(released)
        super().let_time_pass(duration)

    def the_groups_agree(self):
        self.let_time_pass(0)
        groups = self.broker.groups
        awaited = {job.after for job in self.model.jobs if job.after}
        assert {group.key for group in groups.values()} == awaited | set(self.model.groups)
        for group in groups.values():
            name = group.key
            begun = self.model.groups.get(name)
            assert group.has_begun == (begun is not None)
            assert {job.id for job in group.members} == {job.id for job in self.model.members(name)}
            ids = [] if group.waiting is None else waiting(group.waiting)
            assert ids == [job.id for job in self.model.waiting(name)]
            found = {end: getattr(group, end) for end in ENDS[:4]}
            assert found == {end: begun.ends[end] if begun else 0 for end in found}
            self.met.update(end for end in ENDS if begun and begun.ends[end])
            search = self.broker.find_group(name)
            while not search.is_complete:
                search.go_on()
            states = [job.state for job in self.model.members(name)]
            assert {STATES[state]: count for state, count in search.counts.items()} == {
                state: states.count(state) for state in STATES.values()
            }
            assert set(search.buried) == {job.id for job in self.model.members(name) if job.state == "buried"}
        for mirror in self.model.jobs:
            job = self.broker.jobs[mirror.id]
            assert (job.state == DELAYED and job.deadline == NEVER) == (mirror.after != "")
        open_groups = awaited | {name for name in self.model.groups if self.model.members(name)}
        assert self.broker.server_statistics().groups == len(open_groups)

    def a_broker_that_starts_from_the_journal_has_the_same_jobs(self):
        again = super().a_broker_that_starts_from_the_journal_has_the_same_jobs()
        known = {group.key: group for group in again.groups.values()}
        assert known.keys() == {group.key for group in self.broker.groups.values()}
        for group in self.broker.groups.values():
            other = known[group.key]
            for name in (*ENDS[:4], "id", "has_begun"):
                assert getattr(other, name) == getattr(group, name)
            assert not group.has_begun or other.created_at == group.created_at
            assert {job.id for job in other.members} == {job.id for job in group.members}
        return again


POLICIES = (
    Policy(max_tries=2, dead_tube="dead"),
    Policy(backoff=SECOND, dead_tube="dead"),
    Policy(ttl=3 * SECOND, dead_tube="dead", max_reserved=2),
    Policy(ttl=3 * SECOND, key_hold=2 * SECOND),
    Policy(interval=SECOND // 2, burst=2, max_jobs=6),
    NO_POLICY,
)


def live_on(machine, rng):
    """One step, of those that concern groups: a property test needs a thousand steps for one of them."""
    pair = rng.choice(machine.pairs)
    delay = rng.choice((0, 0, SECOND // 2, 2 * SECOND))
    ttr = rng.choice((SECOND, 2 * SECOND, 3 * SECOND + 1))
    job_id = rng.choice(sorted(machine.broker.jobs) or [1])
    held = rng.choice([job.id for job in pair[0].reserved] or [1])
    name = rng.choice(NAMES)
    members = [job.id for job in machine.model.members(name)]
    member = rng.choice(members or [1])
    wait = rng.choice((0, SECOND // 3, 2 * SECOND))
    tube, other = rng.choice(TUBES), rng.choice(TUBES)
    timeout = rng.choice((0, 0, 0, SECOND))

    def put_in_group():
        group = name if len(members) < 2 else rng.choice(("", "", name))
        after = rng.choice(("", *[each for each in NAMES if each != group]))
        key = rng.choice(("", "", "k"))
        waits, replaces = rng.random() < 0.3, bool(key) and rng.random() < 0.7
        limit, ttl = rng.choice((0, 1)), rng.choice((0, 0, SECOND))
        machine.put_in_group(pair, group, after, waits, key, replaces, limit, ttl, delay, ttr)

    def work_off():
        machine.reserve_job(pair, member)
        rng.choice(
            (
                lambda: machine.delete(pair, member),
                lambda: machine.delete(pair, member),
                lambda: machine.release(pair, member, 0, 0),
                lambda: machine.bury(pair, member, 0),
                lambda: None,
            )
        )()

    if len(machine.broker.jobs) < 12:
        rng.choice((put_in_group, put_in_group, put_in_group, lambda: machine.put(pair, 0, delay, ttr)))()
    rng.choice(
        (
            *[work_off] * 20,
            *[lambda: machine.delete(pair, job_id)] * 5,
            lambda: machine.reserve(pair, timeout, rng.choice((0, 0, 2))),
            lambda: machine.reserve(pair, timeout, 0),
            lambda: machine.reserve_job(pair, job_id),
            lambda: machine.delete(pair, held),
            lambda: machine.delete(pair, member),
            lambda: machine.release(pair, held, 0, delay),
            lambda: machine.bury(pair, held, 0),
            lambda: machine.unreserve(pair, held),
            lambda: machine.cancel(pair, job_id),
            lambda: machine.cancel_group(pair, name),
            lambda: machine.clear(pair, tube),
            lambda: machine.kick_job(pair, job_id),
            lambda: machine.kick(pair, 2),
            lambda: machine.redrive(pair, "dead", 2),
            lambda: machine.redrive(pair, "dead", 2),
            lambda: machine.move_jobs(pair, tube, rng.choice(MOVED), other, 2),
            lambda: machine.move_jobs(pair, "dead", rng.choice(MOVED), other, 2),
            lambda: machine.reschedule(pair, job_id, delay),
            lambda: machine.put_at(pair, "k", True, 0, wait, ttr),
            lambda: machine.use(pair, tube),
            lambda: machine.watch(pair, tube),
            lambda: machine.peek_next(pair, "delayed"),
            lambda: machine.set_the_wall_clock(rng.choice((-SECOND, SECOND // 2))),
            lambda: machine.sleep(rng.choice((1, SECOND // 4, SECOND, 2 * SECOND))),
            lambda: machine.sleep(rng.choice((1, SECOND // 4, SECOND, 2 * SECOND))),
        )
    )()
    if rng.random() < 0.05:
        machine.disconnect(pair, rng.random() < 0.7)
        machine.connect(counted=True)
    if rng.random() < 0.02:
        machine.restart()
    if rng.random() < 0.02:
        machine.start_another_broker()
    machine.let_time_pass(0)
    if rng.random() < 0.04:
        machine.change_policy(tube, rng.choice(POLICIES))


def live(machine, seed, steps):
    rng = random.Random(seed)
    machine.begin(10**11, Drawn(rng, POLICIES))
    for _ in range(3):
        machine.connect(counted=True)
    for _ in range(steps):
        live_on(machine, rng)
        machine.they_agree()
        machine.the_groups_agree()
        machine.the_held_keys_agree()
        machine.the_answers_agree()


@seeded(8)
def test_groups_mixed_with_everything(seed):
    machine = GroupsAgainstModel()
    live(machine, seed, 500)
    assert machine.met["released"] and machine.met["done"]


# Between two turns of the broker


class Unsettled:
    """A broker whose commands come before it has settled, with small budgets and a journal that may admit nothing."""

    def __init__(self, rng):
        self.rng = rng
        self.now = 10**11
        self.broker = Broker(
            MemoryJournal(), self.now, policy_of=lambda name: POLICIES[0] if name == "a" else NO_POLICY
        )
        self.broker.groups.ttl = SECOND
        self.broker.groups.owner("").most = 2
        self.client = RecordingClient(self.broker)
        self.waiting = {}  # by job: the jobs that it waits with, as seen last
        self.met = Counter()

    def command(self):
        rng, broker, client = self.rng, self.broker, self.client
        self.now += 1
        jobs = list(broker.jobs.values())
        job_id = rng.choice(jobs).id if jobs else 1
        held = rng.choice([job.id for job in client.reserved] or [1])
        tube = rng.choice(("default", "a"))
        broker.use(client, tube)
        choice = rng.randrange(12)
        if client.busy or choice > 9:
            return
        if choice < 4:
            group = rng.choice(("", "", "g", "h", "i", "j"))
            after = rng.choice(("", "", *{"g", "h", "i"} - {group}))
            attributes = Attributes(labels=Labels(group=group, after=after, after_waits=rng.random() < 0.2))
            broker.put_with(client, attributes, 0, rng.choice((0, 0, SECOND)), SECOND, b"", self.now, self.now)
        elif choice < 6:
            broker.reserve(client, 0, self.now)
        elif choice < 8:
            broker.delete(client, held, self.now)
        elif broker.admits == ALL:
            self.waiting.pop(broker.jobs.get(job_id), None)
            rng.choice(
                (
                    lambda: broker.release(client, held, 0, 0, self.now),
                    lambda: broker.bury(client, held, 0, self.now),
                    lambda: broker.kick_job(client, job_id, self.now),
                    lambda: broker.move(client, "a", DELAYED, "default", 2, self.now),
                    lambda: broker.redrive(client, "dead", 5, self.now),
                )
            )()
        elif broker.admits == DELETIONS:
            rng.choice(
                (
                    lambda: broker.cancel(client, job_id),
                    lambda: broker.clear(client, tube),
                    lambda: broker.cancel_group(client, rng.choice(NAMES)),
                )
            )()

    def check(self):
        check_broker(self.broker)
        before, self.waiting = self.waiting, {}
        for job in self.broker.jobs.values():
            labels = job.labels()
            if labels is not None and labels.awaited is not None:
                self.waiting[job] = labels.awaited
        for job, awaited in before.items():
            if job not in self.waiting and job.id in self.broker.jobs and not job.tube.is_cleared(job):
                assert awaited.group is None, f"job {job.id} is early"
                self.met["let go"] += 1

    def settle(self):
        self.broker.set_admission(ALL)
        while self.broker.next_event() <= self.now:
            self.broker.advance(self.now)
        self.check()
        groups = self.broker.groups
        assert groups.released.is_empty() and groups.ending.is_empty() and groups.ended_count <= 2
        assert all(awaited.group is not None for awaited in self.waiting.values()), "a job waits for nothing"


@seeded(10)
def test_no_budget_and_no_full_disk_lets_a_job_be_early_or_forgets_it(seed):
    rng = random.Random(seed)
    life = Unsettled(rng)
    for _ in range(1500):
        life.command()
        if rng.random() < 0.3:
            life.broker.set_admission(rng.choice((ALL, ALL, DELETIONS, NONE)))
        if rng.random() < 0.3:
            life.now += rng.choice((0, 0, SECOND // 3))
            if life.broker.next_event() <= life.now:
                life.broker.advance(life.now, rng.choice((1, 2, 5)))
        life.check()
        if rng.random() < 0.02:
            life.settle()
    life.settle()
    assert life.met["let go"] > 10


# Many at once


@pytest.fixture
def world():
    return World()


@pytest.fixture
def client(world):
    return world.connect()


def put_many(client, count, attributes):
    replies = client.send(b"put-with 0 0 60 0 %b\r\n\r\n" % attributes * count)
    return [int(line.split()[1]) for line in replies.splitlines()]


def test_many_jobs_become_ready_in_slices(world, client):
    put_many(client, 1, b"group=g")
    put_many(client, 2000, b"after=g")
    world.broker.delete(client.session, 1, world.now)
    slices = 0
    while world.broker.next_event() <= world.now:
        before = world.broker.ready
        world.broker.advance(world.now)
        slices += 1
        assert world.broker.ready - before <= SLICE
        world.check()
        if slices == 2:
            assert world.broker.cancel(client.session, 1999) == DONE
            for labels in (Labels(group="g"), Labels(after="g")):  # a new round
                attributes = Attributes(labels=labels)
                assert (
                    world.broker.put_with(client.session, attributes, 0, 0, SECOND, b"", world.now, world.now) == DONE
                )
    assert slices > 3
    assert (world.broker.ready, world.broker.delayed) == (2000, 1)


def test_many_members_are_cancelled_in_slices_and_those_that_are_reserved_stay(world, client):
    numbers = put_many(client, 2000, b"group=g")
    waits = put_many(client, 1, b"after=g")[0]
    client.send(b"reserve\r\n" * 3)
    client.session.receive(b"cancel-group g\r\n", world.now)
    assert client.session.pending is not None
    world.check()
    assert world.broker.delete(client.session, numbers[1000], world.now) == DONE
    world.settle()
    assert client.read().endswith(b"CANCELLED_GROUP 1996\r\n")
    assert len(world.broker.jobs) == 4
    client.send(b"delete 1\r\n")  # the group has taken the second id
    for number in sorted(world.broker.jobs):
        if number != waits:
            client.send(b"delete %d\r\n" % number)
    assert world.broker.jobs[waits].state == READY


def test_what_a_clear_does_to_groups_waits_until_the_journal_admits_it(world, client):
    put_many(client, 600, b"group=g")
    waits = put_many(client.world.connect(), 1, b"after=g")[0]
    client.send(b"move-jobs default delayed b 1\r\n")
    client.session.receive(b"clear-tube default\r\n", world.now)
    assert client.session.pending is not None
    world.broker.set_admission(NONE)
    world.settle()
    assert world.broker.groups.get("g").members and world.broker.jobs[waits].state == DELAYED
    world.check()
    world.broker.set_admission(DELETIONS)
    world.settle()
    assert not world.broker.groups.get("g").members and world.broker.jobs[waits].state == DELAYED
    world.check()
    world.broker.set_admission(ALL)
    world.settle()
    assert world.broker.jobs[waits].state == READY
    assert client.read().endswith(b"CLEARED 600\r\n")


def test_no_user_makes_the_server_forget_the_groups_of_another_one():
    world = World()
    world.broker.groups.owner("a").most = world.broker.groups.owner("b").most = 2
    ann, bob = (world.connect(User(name, produce=[f"{name}-*"], admin=[f"{name}-*"])) for name in "ab")

    def end_group(client, tube, name):
        group = f"{tube}/{name}"
        client.send(f"use {tube}\r\nput-with 0 0 60 0 group={group}\r\n\r\ncancel-group {group}\r\n".encode())
        world.sleep(0)
        assert world.broker.groups.get(group).has_ended()

    end_group(bob, "b-1", "import")
    for number in range(20):
        end_group(ann, f"a-{number}", "g")
    kept = sorted(group.key for group in world.broker.groups.values())
    assert kept == ["a-18/g", "a-19/g", "b-1/import"]
    assert bob.send(b"put-with 0 0 60 0 after=b-1/import:wait\r\n\r\npeek-delayed\r\n").startswith(b"INSERTED ")
    assert world.broker.ready == 1
    for number in range(3):
        end_group(bob, "b-1", f"{number}")
    assert world.broker.groups.get("b-1/import") is None
    assert world.broker.groups.get("a-19/g") is not None
    world.check()


def test_a_group_that_begins_again_belongs_to_the_user_that_begins_it():
    world = World()
    ann, bob = (world.connect(User(name, produce=["g", "default"], admin=["g"])) for name in "ab")
    for client, name in ((ann, "a"), (bob, "b")):
        put_many(client, 1, b"group=g")
        put_many(ann, 1, b"group=g")
        client.send(b"cancel-group g\r\n")
        world.settle()
        assert world.broker.groups.get("g").owner is world.broker.groups.owner(name)
        assert [world.broker.groups.owner(each).count for each in "ab"] == [name == "a", name == "b"]
        world.check()


def test_groups_that_ended_before_a_restart_are_not_forgotten_for_those_that_end_after_it():
    journal = MemoryJournal()
    client = World(journal).connect()
    for number in range(5):
        put_many(client, 1, b"group=before%d" % number)
        client.send(b"cancel-group before%d\r\n" % number)
    world = World(journal.restarted())
    world.broker.restore(journal.clock_offset(), world.now)
    world.settle()
    world.broker.groups.owner("").most = 2
    client = world.connect()
    for number in range(5):
        put_many(client, 1, b"group=after%d" % number)
        client.send(b"cancel-group after%d\r\n" % number)
        world.settle()
    kept = sorted(group.key for group in world.broker.groups.values())
    assert kept == ["after3", "after4", *[f"before{number}" for number in range(5)]]
    world.check()
    world.sleep(3601)
    assert not world.broker.groups.values() and world.broker.memory.used == 0
    world.check()


@pytest.mark.parametrize("what", ["put", "begin_group"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_put_that_is_refused_begins_no_group(what, waits):
    journal = FullJournal()
    world = World(journal)
    client = world.connect()
    if waits:
        put_many(client, 1, b"after=g:wait")
    journal.refuses = (what,)
    assert client.send(b"put-with 0 0 60 0 group=g\r\n\r\n") == b"OUT_OF_MEMORY\r\n"
    world.check()
    assert len(journal.jobs) == waits
    assert (world.broker.groups.get("g") is not None) == waits
    journal.refuses = ()
    put_many(client, 1, b"group=g")
    world.check()
    assert client.yaml(b"stats-group g")["waiting-jobs"] == str(int(waits))


def test_groups_count_in_the_memory_that_a_put_may_take():
    world = World(max_memory=4 * (JOB_COST + BODY_COST))
    client = world.connect()
    assert client.send(b"put-with 0 0 60 0 group=%b\r\n\r\n" % (b"g" * 200)) == b"OUT_OF_MEMORY\r\n"
    assert client.put() and not world.broker.groups.values()
    world.check()


def test_groups_that_have_ended_count_until_they_are_forgotten():
    world = World()
    client = world.connect()
    for number in range(10):
        put_many(client, 1, b"group=%d" % number)
        client.send(b"cancel-group %d\r\n" % number)
        world.settle()
    assert world.broker.memory.used == 10 * (GROUP_COST + 1)
    world.broker.memory.limit = world.broker.memory.used + 600  # room for a job, and not for a group beside it
    assert client.send(b"put-with 0 0 60 0 group=10\r\n\r\n") == b"OUT_OF_MEMORY\r\n"
    put_many(client, 1, b"group=9")
    client.send(b"cancel-group 9\r\n")
    world.check()
    world.sleep(3601)
    assert world.broker.memory.used == 0
    assert client.send(b"put-with 0 0 60 0 group=10\r\n\r\n").startswith(b"INSERTED ")
    world.check()


def test_a_journal_that_keeps_no_groups_keeps_their_members(world):
    class Forgetful(MemoryJournal):
        def begin_group(self, group):
            return True

        def leave_group(self, group, end, job):
            if job is not None:
                self.delete(job)

    journal = Forgetful()
    client = World(journal).connect()
    put_many(client, 2, b"group=g")
    put_many(client, 1, b"after=g")
    put_many(client, 1, b"after=none:wait")
    again = Broker(journal.restarted(), 10**11)
    again.restore(journal.clock_offset(), 10**11)
    check_broker(again)
    worker = RecordingClient(again)
    for job in list(again.groups.get("g").members):
        again.delete(worker, job.id, 10**11)
    again.advance(10**11)
    check_broker(again)
    assert [job.state for job in again.jobs.values()] == [READY, DELAYED]


def test_a_broker_lets_go_of_groups(world, client):
    put_many(client, 5, b"group=g")
    put_many(client, 5, b"group=h after=g")
    put_many(client, 5, b"after=i:wait")
    put_many(client, 1, b"group=ended")
    client.send(b"cancel-group ended\r\n")
    jobs, groups = list(world.broker.jobs.values()), world.broker.groups.values()
    for _ in world.broker.drop_jobs():
        pass
    assert not any(group.members or group.waiting or group.is_linked() for group in groups)
    assert not any(job.labels().joined or job.labels().awaited for job in jobs)
