"""A change of policies: tubes that exist follow it, those that come later too, and nobody waits for many of them."""

import pytest
from checking import check_broker
from virtual import RecordingClient, put

from beanstalk_server.queue.broker import SLICE, Broker
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.policy import NO_POLICY, Policy
from beanstalk_server.queue.table import PAGE_SIZE
from beanstalk_server.queue.units import SECOND

NOW = SECOND
FULL = Policy(max_jobs=1)


def all_full(_):
    return FULL


class World:
    def __init__(self):
        self.broker = Broker(Journal(), NOW)
        self.client = RecordingClient(self.broker)

    def use_many(self, count):
        """Make tubes that a client each uses; return the clients."""
        clients = []
        for number in range(count):
            client = RecordingClient(self.broker)
            self.broker.use(client, f"t{number}")
            clients.append(client)
        return clients

    def settle(self):
        """Let everything happen that needs no time; return in how many slices."""
        slices = 0
        while self.broker.next_event() <= NOW:
            self.broker.advance(NOW)
            slices += 1
        check_broker(self.broker)
        return slices

    def policies(self):
        return {tube.policy for tube in self.broker.tubes.values()}


@pytest.fixture
def world():
    return World()


def test_many_tubes_follow_in_slices(world):
    world.use_many(2 * SLICE)
    world.broker.change_policies(all_full, NOW)
    assert world.policies() == {FULL, NO_POLICY}
    assert world.settle() > 4
    assert world.policies() == {FULL}


def test_no_tube_is_passed_over_when_others_come_and_go_meanwhile(world):
    clients = world.use_many(2 * SLICE)
    world.broker.change_policies(all_full, NOW)
    while world.broker.next_event() <= NOW:
        world.broker.advance(NOW)
        for client in (clients.pop(0), clients.pop(), clients.pop(len(clients) // 2)):
            world.broker.disconnect(client, NOW)
        world.broker.use(RecordingClient(world.broker), f"new {len(clients)}")
    check_broker(world.broker)
    assert world.policies() == {FULL}


def test_a_second_change_takes_the_place_of_the_first(world):
    world.use_many(2 * SLICE)
    world.broker.change_policies(all_full, NOW)
    world.broker.advance(NOW)
    other = Policy(max_jobs=2)
    world.broker.change_policies(lambda _: other, NOW)
    world.settle()
    assert world.policies() == {other}
    assert world.broker.review.is_complete


def test_many_jobs_follow_in_slices_while_others_come_and_go(world):
    ids = [world.broker.next_id + number for number in range(3 * PAGE_SIZE)]
    for _ in ids:
        put(world.broker, world.client)
    world.broker.change_policies(lambda _: Policy(ttl=SECOND), NOW)
    slices = 0
    while world.broker.next_event() <= NOW:
        for _ in range(2):
            world.broker.delete(world.client, ids.pop(len(ids) // 2), NOW)
            world.broker.delete(world.client, ids.pop(0), NOW)
        put(world.broker, world.client, now=NOW)
        world.broker.advance(NOW)
        slices += 1
    assert slices > 2 * PAGE_SIZE // SLICE
    check_broker(world.broker)
    assert all(job.terms().expiry is not None for job in world.broker.jobs.values())


def test_jobs_that_a_first_change_has_not_come_to_follow_the_second(world):
    for _ in range(3 * SLICE):
        put(world.broker, world.client)
    world.broker.change_policies(lambda _: Policy(ttl=SECOND), NOW)
    world.broker.change_policies(lambda _: Policy(ttl=SECOND, max_jobs=5), NOW)
    world.settle()
    assert all(job.terms().expiry is not None for job in world.broker.jobs.values())
