"""The limits of a tube's policy: which puts they refuse, what counts towards them, and who is told how many."""

import pytest
from checking import check_broker
from virtual import BodilessJournal, RecordingClient, put

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.outcome import DONE, DRAINING, TOO_BIG
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Policy
from beanstalk_server.queue.units import SECOND

NOW = SECOND


class World:
    """A broker whose tubes named `t…` have a policy, and one client that uses `t`."""

    def __init__(self, journal, **limits):
        policy = Policy(**limits)
        self.journal = journal
        self.broker = Broker(journal, NOW, policy_of=lambda name: policy if name.startswith("t") else NO_POLICY)
        self.client = RecordingClient(self.broker)
        self.broker.use(self.client, "t")
        self.broker.watch(self.client, "t")

    def put(self, size=1, **settings):
        outcome = put(self.broker, self.client, body=b"x" * size, **settings)
        check_broker(self.broker)
        return outcome

    def replace(self, size=1, delay=0):
        fresh = Attributes(key="k", replaces=True)
        outcome = self.broker.put_with(self.client, fresh, 0, delay, SECOND, b"y" * size, NOW, NOW)
        check_broker(self.broker)
        return outcome

    def refused(self, tube="t"):
        """What stats-tube and stats say: puts refused for their jobs, bytes, delay and size."""
        found = [self.broker.tube_statistics(tube, NOW).counters, self.broker.server_statistics().counters]
        counts = [(each.refused_jobs, each.refused_bytes, each.refused_delay, each.refused_size) for each in found]
        assert counts[0] == counts[1]
        return counts[0]


@pytest.fixture(params=[Journal, BodilessJournal], ids=["in memory", "bodiless"])
def make_world(request):
    return lambda **limits: World(request.param(), **limits)


def test_a_tube_takes_max_jobs_in_any_state(make_world):
    world = make_world(max_jobs=4)
    broker, client = world.broker, world.client
    ready, delayed, buried, reserved = [broker.next_id + number for number in range(4)]
    assert [world.put(), world.put(delay=SECOND), world.put(), world.put()] == [DONE] * 4
    broker.reserve_job(client, buried, NOW)
    broker.bury(client, buried, 0, NOW)
    broker.reserve_job(client, reserved, NOW)
    assert world.put() == DRAINING
    for job_id in (ready, delayed, buried, reserved):
        assert broker.delete(client, job_id, NOW) == DONE
        assert world.put() == DONE
        assert world.put() == DRAINING
    assert world.refused() == (5, 0, 0, 0)


@pytest.mark.parametrize(
    ("limits", "most"),
    [({"max_jobs": 2}, 2), ({"max_jobs": 2, "max_held_keys": 3}, 3), ({"max_held_keys": 1}, 1)],
    ids=["as many as jobs", "more", "no other limit"],
)
def test_a_tube_holds_a_bounded_number_of_keys(make_world, limits, most):
    world = make_world(**limits)
    broker, client = world.broker, world.client

    def put(key, **demands):
        return broker.put_with(client, Attributes(key=key, **demands), 0, 0, SECOND, b"x", NOW, NOW)

    for number in range(most):
        assert put(f"k{number}", key_hold=3600 * SECOND) == DONE
        assert broker.delete(client, broker.next_id - 1, NOW) == DONE
    assert put("more", key_hold=SECOND) == DRAINING
    assert put("more") == DONE, "its key will be free when it is gone"
    assert put("more", key_hold=SECOND, replaces=True) == DRAINING
    assert world.refused() == (2, 0, 0, 0)
    broker.clear(client, "t")
    assert put("more", key_hold=SECOND) == DONE
    check_broker(broker)


def test_a_longer_delay_and_a_larger_body_are_refused(make_world):
    world = make_world(max_delay=5 * SECOND, max_job_size=3)
    assert world.put(3, delay=5 * SECOND, key="k") == DONE
    assert world.put(3, delay=5 * SECOND + 1) == DRAINING
    assert world.put(4) == TOO_BIG
    assert world.put(4, delay=5 * SECOND + 1) == TOO_BIG, "no later attempt could help"
    assert world.replace(4) == TOO_BIG
    assert world.replace(3, 5 * SECOND + 1) == DRAINING
    assert world.refused() == (0, 0, 2, 3)
