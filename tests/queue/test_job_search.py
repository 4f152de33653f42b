"""Pages of list-jobs as the queue finds them, while jobs come, go and move: each job that stays is found once."""

import random
from itertools import pairwise

import pytest
from checking import check_broker
from effort import seeded
from virtual import RecordingClient, World

from beanstalk_server.queue import job_search, table
from beanstalk_server.queue.job import BURIED, DELAYED, READY, RESERVED
from beanstalk_server.queue.job_search import POSITIONS
from beanstalk_server.queue.outcome import DONE, PENDING
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.units import SECOND

STATES = [READY, DELAYED, RESERVED, BURIED]


class Life:
    """A broker whose clients do anything."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.world = World()
        self.broker = self.world.broker
        self.client = RecordingClient(self.broker)
        self.client_of_others = RecordingClient(self.broker)
        self.broker.watch(self.client, "t")
        self.broker.use(self.client, "t")
        self.spread = self.rng.choice([1, 1, 3, 1000])
        self.wall = 1_800_000_000 * SECOND
        self.broker.set_wall_offset(self.wall)

    def put(self, delay=0):
        priority = self.rng.randrange(self.spread)
        self.broker.put(
            self.client, self.broker.take_id(), priority, delay, 9 * SECOND, b"x", self.world.now, self.world.now
        )

    def job(self):
        jobs = list(self.broker.jobs.values())
        return self.rng.choice(jobs).id if jobs else 0

    def do(self):
        rng, broker, client, now = self.rng, self.broker, self.client, self.world.now
        what = rng.randrange(16)
        if what < 3:
            self.put()
        elif what < 5:
            self.put(rng.choice([1, 2, 3, 4]) * SECOND + rng.randrange(3))
        elif what == 5:
            moment = self.wall + now + rng.choice([1, 2, 3]) * SECOND
            broker.put_with(client, Attributes(at=moment), 0, 0, 9 * SECOND, b"x", now, now)
        elif what == 6:
            broker.reserve(client, 0, now)
        elif what == 7:
            broker.reserve_job(client, self.job(), now)
        elif what == 8:
            broker.delete(client, self.job(), now)
        elif what in (9, 10):
            broker.reserve_job(client, job := self.job(), now)
            broker.bury(client, job, rng.randrange(self.spread), now)
        elif what == 11:
            broker.release(client, self.job(), rng.randrange(self.spread), rng.choice([0, SECOND]), now)
        elif what == 12:
            broker.kick_job(client, self.job(), now)
        elif what == 13:
            self.world.sleep(rng.choice([0.001, 0.5]))
        elif what == 14 and rng.random() < 0.1:
            broker.clear(client, "t")
        elif what == 14:
            other = self.client_of_others
            broker.put(other, broker.take_id(), 0, rng.choice([0, SECOND]), 9 * SECOND, b"y", now, now)
        elif rng.random() < 0.2:
            self.wall += rng.choice([-1, 1]) * SECOND
            broker.set_wall_offset(self.wall)

    def places(self, state):
        """Where each job is in the tube, by id."""
        return {
            job.id: key_of(job)
            for job in self.broker.jobs.values()
            if job.state == state and job.tube.name == "t" and not job.tube.is_cleared(job)
        }


def key_of(job):
    if job.state == RESERVED:
        return (0,)
    if job.state == BURIED:
        return (job.extras.bury_sequence,)
    return job.is_timed(), job.deadline


class Searcher:
    """A client that goes from page to page."""

    def __init__(self):
        self.search = None


def page(broker, state, position=(), count=1000, meanwhile=lambda: None, tube="t", searcher=None):
    """The ids on a page, and the position at its end."""
    search = broker.find_jobs(tube, state, list(position), count, searcher and searcher.search)
    if searcher is not None:
        searcher.search = search
    while not search.is_complete:
        assert search.go_on() >= 0
        meanwhile()
    assert len(search.found) <= count
    assert not search.next_position or len(search.next_position) == POSITIONS[state]
    return [entry[1] for entry in search.found if search.is_here(entry)], search.next_position


@pytest.fixture(params=["at once", "in the table"])
def way(request, monkeypatch):
    """How jobs are found. Compiled, constants are as they are, and it is always at once."""
    monkeypatch.setattr(table, "PAGE_BITS", 2)
    monkeypatch.setattr(table, "PAGE_SIZE", 4)
    monkeypatch.setattr(table, "PAGE_MASK", 3)
    monkeypatch.setattr(job_search, "SPARE_ENTRIES", 1)
    if request.param == "in the table":
        monkeypatch.setattr(job_search, "AT_ONCE", 1)


@pytest.mark.parametrize("state", STATES)
@seeded(20)
def test_each_job_that_stays_is_found_once_and_in_order(way, state, seed):
    life = Life(seed)
    broker, rng = life.broker, life.rng
    for _ in range(rng.randrange(150)):
        life.do()
    for _ in range(rng.choice([0, 0, 60])):
        life.put()
    if life.broker.tubes.get("t") is None:
        return
    stays = life.places(state)
    clock_is_set = False
    wall = life.wall

    def churn():
        nonlocal stays, clock_is_set
        for _ in range(rng.randrange(3)):
            life.do()
            clock_is_set = clock_is_set or wall != life.wall  # it may be set back before the end
            now = life.places(state)
            stays = {job_id: key for job_id, key in stays.items() if now.get(job_id) == key}

    found, position, has_more = [], [], True
    searcher = rng.choice([None, Searcher()])
    while has_more:
        ids, position = page(broker, state, position, rng.choice([1, 2, 7]), churn, searcher=searcher)
        found += ids
        has_more = bool(position)
        churn()
    listed = [job_id for job_id in found if job_id in stays]
    assert sorted(listed) == sorted(stays), "each once"
    assert listed == sorted(stays, key=lambda job_id: order(state, stays[job_id], job_id, wall)) or (
        state == DELAYED and clock_is_set
    )
    check_broker(broker)


def order(state, key, job_id, wall):
    if state == DELAYED:
        is_timed, deadline = key
        return deadline - wall if is_timed else deadline, job_id
    return *key, job_id


@pytest.mark.parametrize("state", STATES)
@seeded(5)
def test_both_ways_find_the_same(state, seed, monkeypatch):
    life = Life(seed)
    for _ in range(200):
        life.do()
    places = life.places(state)
    for count in (1, 3, 1000):
        lists = []
        for at_once in (4096, 1):
            monkeypatch.setattr(job_search, "AT_ONCE", at_once)
            found, position = page(life.broker, state, [], count)
            while position:
                ids, position = page(life.broker, state, position, count)
                found += ids
            lists.append(found)
        assert (
            lists[0] == lists[1] == sorted(places, key=lambda job_id: order(state, places[job_id], job_id, life.wall))
        )


@pytest.mark.parametrize("state", STATES)
def test_a_state_without_jobs_is_an_empty_page(state):
    broker = World().broker
    assert page(broker, state, tube="default") == ([], [])
    assert page(broker, state, [5] * POSITIONS[state], tube="default") == ([], [])
    assert broker.find_jobs("nobody", state, [], 1) is None


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("number", [0, 1, 2**64, 10**20 - 1])
def test_any_position_is_good(way, state, number):
    life = Life(3)
    for _ in range(100):
        life.do()
    ids, _ = page(life.broker, state, [number] * POSITIONS[state])
    assert set(ids) <= set(life.places(state))
    if number > 1:
        assert not ids


def put_many(broker, client, count, priority_of=lambda number: 0, delay=0):
    for number in range(count):
        broker.put(client, broker.take_id(), priority_of(number), delay, 60 * SECOND, b"x", SECOND, SECOND)


def test_a_job_that_leaves_between_two_slices_is_left_out(monkeypatch):
    world = World()
    client = RecordingClient(world.broker)
    put_many(world.broker, client, 9)
    search = world.broker.find_jobs("default", READY, [], 4)
    while not search.is_complete:
        search.go_on()
    assert [search.is_here(entry) for entry in search.found] == [True] * 4
    world.broker.delete(client, 2, world.now)
    world.broker.reserve_job(client, 3, world.now)
    assert [search.is_here(entry) for entry in search.found] == [True, False, False, True]
    assert search.next_position == [0, 4], "the next page begins where this one would have ended"


def test_the_tube_may_go_during_the_search(way):
    world = World()
    client = RecordingClient(world.broker)
    world.broker.use(client, "t")
    put_many(world.broker, client, 20, lambda number: number % 3)
    search = world.broker.find_jobs("t", READY, [0, 7], 4)
    search.go_on()
    world.broker.use(client, "default")
    assert world.broker.clear(client, "t") in (DONE, PENDING)
    world.settle()
    assert world.broker.tubes.get("t") is None
    while not search.is_complete:
        search.go_on()
    assert not [entry for entry in search.found if search.is_here(entry)]


def test_jobs_that_a_clear_has_taken_are_not_found_while_it_is_under_way(way):
    world = World()
    client = RecordingClient(world.broker)
    put_many(world.broker, client, 1000)
    put_many(world.broker, client, 100, delay=5 * SECOND)
    assert world.broker.clear(client, "default") == PENDING
    other = RecordingClient(world.broker)
    put_many(world.broker, other, 3)
    assert page(world.broker, READY, tube="default")[0] == [1101, 1102, 1103]
    assert page(world.broker, READY, [0, 1101], tube="default")[0] == [1102, 1103]
    assert page(world.broker, DELAYED, tube="default")[0] == []


# What it costs


def slices(broker, state, position, count=1000):
    search = broker.find_jobs("default", state, position, count)
    costs = []
    while not search.is_complete:
        costs.append(search.go_on())
    return costs, [entry[1] for entry in search.found]


def test_a_deep_page_of_jobs_with_the_same_priority_looks_at_few_others():
    world = World()
    client = RecordingClient(world.broker)
    put_many(world.broker, client, 30_000)
    costs, found = slices(world.broker, READY, [0, 20_000])
    assert found == list(range(20_001, 21_001))
    assert len(costs) <= 4, "only the page of the table that the position is on, and the next one"


def test_a_deep_page_of_jobs_with_many_priorities_goes_through_the_table_in_slices():
    world = World()
    client = RecordingClient(world.broker)
    put_many(world.broker, client, 30_000, lambda number: number * 7919 % 30_011)
    costs, found = slices(world.broker, READY, [20_000, 0], 50)
    assert [world.broker.jobs[job_id].priority for job_id in found[:3]] == [20_000, 20_001, 20_002]
    assert len(costs) > 7
    assert max(costs) <= 256, "two turns of a session"


@pytest.mark.parametrize("state", [READY, DELAYED])
def test_what_a_search_has_found_beyond_its_page_is_the_next_one(state):
    world = World()
    client = RecordingClient(world.broker)
    for number in range(30_000):
        place = number * 7919 % 30_011
        priority, delay = (place, 0) if state == READY else (0, SECOND + place)
        world.broker.put(client, world.broker.take_id(), priority, delay, 60 * SECOND, b"x", SECOND, SECOND)
    start = [20_000, 0] if state == READY else [2 * SECOND + 20_000, 0, 0, 0]
    searcher, position = Searcher(), start
    costs, found = [], []
    for _ in range(8):
        search = world.broker.find_jobs("default", state, position, 50, searcher.search)
        fresh = world.broker.find_jobs("default", state, position, 50)
        slices = 0
        while not search.is_complete:
            search.go_on()
            slices += 1
        while not fresh.is_complete:
            fresh.go_on()
        ids, expected = [entry[1] for entry in search.found], [entry[1] for entry in fresh.found]
        assert ids == expected[: len(ids)]
        found += ids
        costs.append(slices)
        searcher.search, position = search, search.next_position
        search.forget_found()
    assert len(found) == len(set(found)) > 300
    assert costs[0] > 7
    assert 4 <= costs.count(1) < 8
    again = world.broker.find_jobs("default", state, start, 50, searcher.search)
    again.go_on()
    assert not again.is_complete, "what begins elsewhere is searched for anew"


def test_buried_jobs_go_on_behind_the_last_one_without_a_search():
    world = World()
    client = RecordingClient(world.broker)
    put_many(world.broker, client, 10_000)
    for job_id in range(10_000, 0, -1):
        world.broker.reserve_job(client, job_id, world.now)
        world.broker.bury(client, job_id, 0, world.now)
    found, _ = page(world.broker, BURIED, tube="default")
    assert found == list(range(10_000, 9_000, -1))
    costs, found = slices(world.broker, BURIED, [9_000, 1_001])
    assert len(costs) == 1
    assert found == list(range(1_000, 0, -1))
    world.broker.delete(client, 1_001, world.now)
    costs, again = slices(world.broker, BURIED, [9_000, 1_001])
    assert len(costs) > 1
    assert again == found
    assert all(one > other for one, other in pairwise(again))


def test_jobs_of_few_priorities_are_found_in_order_page_after_page():
    world = World()
    client = RecordingClient(world.broker)
    put_many(world.broker, client, 15_000, lambda number: number % 3)
    searcher, position, found = Searcher(), [], []
    while not found or position:
        ids, position = page(world.broker, READY, position, 500, tube="default", searcher=searcher)
        found += ids
    assert found == [number + 1 for rest in range(3) for number in range(rest, 15_000, 3)]
