"""The rate of a tube: it holds for any tick and any number of clients, and waiting clients cost no polling.

Which client is served, and when, is compared with the model (test_broker.py), and with a textbook token bucket
(test_broker_unsettled.py).
"""

from checking import check_broker
from virtual import RecordingClient, put

from beanstalk_server.queue.broker import SLICE, Broker
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.outcome import DONE, PENDING, TIMED_OUT
from beanstalk_server.queue.policy import NO_POLICY, Policy, no_policies
from beanstalk_server.queue.units import FOREVER, MILLISECOND, SECOND
from beanstalk_server.queue.wheel import END_OF_TIME, TICK


class World:
    """A broker whose tubes named `t…` have a policy, in virtual time; all clients watch `t` alone."""

    def __init__(self, **settings):
        self.start = self.now = 7 * SECOND
        policy = Policy(**settings)
        self.broker = Broker(Journal(), self.now, TICK, policy_of=lambda name: policy if name[0] == "t" else NO_POLICY)
        self.advances = 0
        self.producer = self.connect()

    def connect(self, *tubes):
        client = RecordingClient(self.broker)
        for tube in tubes or ["t"]:
            self.broker.watch(client, tube)
        self.broker.ignore(client, "default")
        self.broker.use(client, (tubes or ["t"])[0])
        return client

    def put(self, count=1, tube="t"):
        """Put jobs; return their ids."""
        self.broker.use(self.producer, tube)
        first = self.broker.next_id
        for _ in range(count):
            assert put(self.broker, self.producer, ttr=100 * SECOND, now=self.now) == DONE
        check_broker(self.broker)
        return list(range(first, first + count))

    def change(self, **settings):
        """Let all tubes have another policy."""
        policy = Policy(**settings)
        self.broker.change_policies(lambda _: policy, self.now)
        check_broker(self.broker)

    def reserve(self, client, timeout=0):
        outcome = self.broker.reserve(client, timeout, self.now)
        check_broker(self.broker)
        return outcome

    def delete(self, client, job_id):
        assert self.broker.delete(client, job_id, self.now) == DONE
        check_broker(self.broker)

    def sleep(self, duration):
        end = self.now + duration
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
            self.advances += 1
            check_broker(self.broker)
        self.now = end

    def work(self, clients, duration):
        """Let clients reserve and delete without a pause; return when each job was reserved, from the start on."""
        moments = []
        end = self.now + duration
        while self.now < end:
            for client in clients:
                while client.answers:
                    _, job_id = client.answers.pop(0)
                    moments.append(self.now - self.start)
                    self.delete(client, job_id)
                if not client.waiting:
                    self.reserve(client, FOREVER)
            if not any(client.answers for client in clients):
                self.now = max(self.now, min(self.broker.next_event(), end))
                self.broker.advance(self.now)
        return moments


def count(client):
    """How many jobs a client has got."""
    return sum(answer[0] == "reserved" for answer in client.answers)


def test_a_waiting_client_is_woken_when_there_is_a_token_and_nobody_polls_until_then():
    world = World(interval=10 * SECOND)
    first, second = world.connect(), world.connect()
    world.put(3)
    assert world.reserve(first, FOREVER) == DONE
    assert world.reserve(first, FOREVER) == PENDING
    assert world.reserve(second, FOREVER) == PENDING
    world.sleep(0)
    world.advances = 0
    world.sleep(10 * SECOND - 1)
    assert (count(first), count(second)) == (1, 0)
    asked = world.advances
    world.sleep(1)
    assert (count(first), count(second)) == (2, 0)
    world.sleep(10 * SECOND)
    assert (count(first), count(second)) == (2, 1), "who has waited longest comes first"
    assert asked < 5 and world.advances < 10, "the wheel cascades now and then, and does nothing else"


def test_a_rate_holds_whatever_the_tick_and_the_clients():
    for interval in (TICK // 5, TICK // 2 + 1, TICK * 3 // 2, 10 * MILLISECOND):
        for workers in (1, 5):
            world = World(interval=interval)
            clients = [world.connect() for _ in range(workers)]
            total = 100
            world.put(total)
            moments = world.work(clients, interval * (total // 2))
            lag = TICK // interval + 2
            assert total // 2 - lag <= len(moments) <= total // 2 + lag
            for number, moment in enumerate(moments):
                assert moment >= (number - lag) * interval, "no more by then than the rate allows"


def test_who_gives_a_job_back_as_if_it_had_not_had_it_gives_back_its_token():
    world = World(interval=SECOND)
    worker, waiting = world.connect(), world.connect()
    (job_id,) = world.put(1)
    for _ in range(3):
        assert world.reserve(worker) == DONE
        assert world.broker.unreserve(worker, job_id, world.now) == DONE
        check_broker(world.broker)
    world.reserve(worker)
    world.reserve(waiting, FOREVER)
    world.broker.unreserve(worker, job_id, world.now)
    assert waiting.answers == [("reserved", job_id)]


def test_each_tube_has_a_rate_of_its_own():
    world = World(interval=SECOND)
    worker = world.connect("t1", "t2", "t3")
    for tube in ("t1", "t2", "t3"):
        world.put(100, tube)
    moments = world.work([worker], 10 * SECOND - 1)
    assert len(moments) == 30
    left = [world.broker.tubes[tube].job_count() for tube in ("t1", "t2", "t3")]
    assert left == [90] * 3, "none is served before another because it comes first, though all jobs look the same"


def test_many_waiting_clients_of_a_tube_whose_rate_is_lifted_are_served_in_slices():
    world = World(interval=3600 * SECOND)
    clients = [world.connect() for _ in range(2 * SLICE)]
    world.put(2 * SLICE + 1)
    world.reserve(world.connect())
    for client in clients:
        world.broker.reserve(client, FOREVER, world.now)
    world.broker.change_policies(no_policies, world.now)
    assert 0 < sum(count(client) for client in clients) < len(clients)
    while world.broker.next_event() <= world.now:
        before = sum(count(client) for client in clients)
        world.broker.advance(world.now)
        assert sum(count(client) for client in clients) - before <= SLICE
    check_broker(world.broker)
    assert all(count(client) == 1 for client in clients)


def test_tokens_stay_when_the_rate_changes_and_come_by_the_new_one():
    world = World(interval=SECOND, burst=4)
    worker, waiting = world.connect(), world.connect()
    world.put(20)
    world.reserve(worker)
    world.change(interval=10 * SECOND, burst=6)
    assert [world.reserve(worker) for _ in range(4)] == [DONE] * 3 + [TIMED_OUT]
    assert world.reserve(waiting, FOREVER) == PENDING
    world.sleep(5 * SECOND)
    world.change(interval=SECOND, burst=1)
    world.sleep(SECOND // 2 - 1)
    assert count(waiting) == 0, "half of a token was there, and the other half takes half a second now"
    world.sleep(1)
    assert count(waiting) == 1
    world.sleep(100 * SECOND)
    world.change(interval=SECOND, burst=3)
    assert [world.reserve(worker) for _ in range(2)] == [DONE, TIMED_OUT], "what was full has one token"


def test_a_tube_that_nobody_needs_stays_until_its_bucket_is_full():
    world = World(interval=SECOND, burst=2)
    worker = world.connect()
    ids = world.put(2)
    world.reserve(worker)
    world.reserve(worker)
    for job_id in ids:
        world.delete(worker, job_id)
    world.broker.use(world.producer, "default")
    world.broker.watch(world.producer, "default")
    world.broker.ignore(world.producer, "t")
    world.broker.disconnect(worker, world.now)
    check_broker(world.broker)
    assert "t" in world.broker.tubes
    world.sleep(2 * SECOND - 1)
    assert "t" in world.broker.tubes
    world.sleep(1)
    assert "t" not in world.broker.tubes
    world.sleep(3600 * SECOND)
    assert world.broker.next_event() == END_OF_TIME, "nothing is left in the wheel"
