"""Groups, compared with the model and mixed with everything else: whatever happens, no job that comes after a group is
early, none waits for ever, and the group counts how each of its members has ended.
"""

import random
from collections import Counter

import pytest
from effort import seeded

from beanstalk_server.queue.groups import ENDS
from beanstalk_server.queue.job import BURIED, DELAYED, NEVER, READY, RESERVED
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels, Policy
from beanstalk_server.queue.units import SECOND
from tests.queue.test_broker import MOVED, BrokerAgainstModel, ended, owes_answer

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


class Drawn:
    """Draws policies, in place of the data of a property test."""

    def __init__(self, rng):
        self.rng = rng

    def draw(self, _, label):
        return self.rng.choice(POLICIES)


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
    machine.begin(10**11, Drawn(rng))
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
