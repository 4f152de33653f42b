"""Who should lead which shard, by figures alone; and when a node gives shards away, by a clock and who leads which."""

import asyncio
import random
from collections import Counter

import pytest
from effort import seeded

from beanstalk_server.cluster.balancer import DISTRUST, Balancer, successors, transfers
from beanstalk_server.cluster.engine.interface import EngineError, Lease, Member
from beanstalk_server.queue.units import SECOND

TTL = 10


class Shard:
    """One shard as a node sees it."""

    def __init__(self, view, index, leader):
        self.view, self.index, self.leader = view, index, leader
        self.successor = ""
        self.lost = None

    @property
    def holder(self):
        return self.leader or self.successor

    @property
    def led_since(self):
        return self.index if self.leader == "me" else -1

    async def hand_over(self, successor):
        self.view.given.append((self.index, successor))
        self.leader = self.successor = successor
        if successor in self.view.refusing:
            self.leader = "me"
            self.view.balancer.note_led(self.index)

    def lose(self, node=None, address=""):
        """Let its leader be gone, and anybody may take it."""
        self.lost = Lease(epoch=1, node=self.leader if node is None else node, address=address)


class View:
    """What a node sees: who leads which shard, which nodes report, and what time it is."""

    def __init__(self, *leaders, others=("other",)):
        self.now = 1000 * SECOND
        self.given = []
        self.refusing = set()
        self.unlinked = set()
        self.members = {node: Member(node, f"{node}:1", 0.0) for node in ("me", *others)}
        self.fails = False
        self.shards = [Shard(self, index, leader) for index, leader in enumerate(leaders)]
        self.balancer = Balancer("me", self.shards, TTL * SECOND, self.find_members, self.find_linked, lambda: self.now)

    async def find_members(self):
        if self.fails:
            raise EngineError("the engine cannot be reached")
        return list(self.members.values())

    def find_linked(self):
        return set(self.members) - self.unlinked

    def report(self, node, **what):
        self.members[node] = self.members.get(node, Member(node, f"{node}:1", 0.0))._replace(**what)

    def look(self):
        """Let the balancer do what it does once in a while; return what it has given away."""
        before = len(self.given)
        asyncio.run(self.balancer._even_out())
        return self.given[before:]

    def successors(self):
        return asyncio.run(self.balancer.successors())

    def successor(self, shard):
        return self.balancer.is_successor(shard, self.shards[shard].lost)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("beanstalk_server.cluster.balancer.PAUSE", 0)


def test_a_node_gives_away_what_is_more_than_its_share_and_first_what_it_has_led_longest():
    view = View("me", "me", "me", "me", "other")
    assert view.look() == [(0, "other")]
    assert view.look() == []


def test_a_node_that_leads_its_share_gives_nothing_away():
    assert View("me", "me", "other").look() == []
    assert View("me", "other", "other", "other").look() == []


def test_a_node_that_joins_is_given_nothing_for_a_while():
    view = View("me", "me", others=())
    assert view.look() == []
    view.report("new")
    assert view.look() == []
    view.now += TTL // 2 * SECOND + 1
    assert view.look() == [(0, "new")]


def test_the_process_whose_address_this_one_has_is_no_successor():
    view = View("led", others=("before", "led"))
    view.balancer.address = "me:1"
    view.report("before", address="me:1", seen=0.2)
    del view.members["me"]  # it has not reported yet
    view.look()
    view.shards[0].lose()
    view.shards[0].leader = ""
    assert view.successor(0)


def test_of_two_processes_with_one_address_the_last_is_a_successor():
    view = View("led", others=("before", "after", "led"))
    view.report("before", address="a:1", seen=0.2)
    view.report("after", address="a:1")
    view.balancer.takes = False
    view.look()
    asyncio.run(view.balancer.others_take())
    view.shards[0].lose()
    view.shards[0].leader = ""
    view.successor(0)
    assert view.balancer._successors == {0: "after"}


def test_the_process_whose_address_the_lost_leader_had_is_no_successor():
    view = View("led", others=("before",))  # the leader has not reported yet
    view.report("before", address="a:1", seen=0.2)
    view.look()
    view.shards[0].lose(address="a:1")
    view.shards[0].leader = ""
    assert view.successor(0)


def test_a_node_that_comes_and_goes_is_new_each_time():
    view = View("me", "me", others=())
    view.look()
    view.report("new")
    view.look()
    view.now += TTL // 4 * SECOND
    del view.members["new"]
    view.look()
    view.report("new")
    view.look()
    view.now += TTL // 4 * SECOND + 1
    assert view.look() == []


def test_a_node_that_has_not_reported_for_long_is_given_nothing():
    view = View("me", "me")
    view.report("other", seen=7.0)
    assert view.look() == []


def test_a_node_that_takes_no_shards_is_given_none_and_its_own_do_not_count():
    view = View("me", "me", "other", "other", "other", "other")
    view.report("other", takes=False)
    assert view.look() == []
    assert view.successors() == {}


def test_a_node_whose_process_has_ended_is_given_nothing_although_it_has_just_reported():
    view = View("me", "me")
    view.balancer.note_gone("other")
    assert view.look() == []
    assert not view.balancer.knows("other")


def test_a_node_that_has_no_link_here_is_given_nothing():
    view = View("me", "me", others=("one", "two"))
    view.unlinked = {"one"}
    assert view.look() == []
    assert view.successors() == {0: "two", 1: "two"}
    assert not view.balancer.knows("one")
    view.unlinked.clear()
    assert view.look() == [(0, "one")]


def test_nothing_is_given_away_while_a_shard_has_no_leader():
    view = View("me", "me", "me", "")
    assert view.look() == []
    view.shards[3].successor = "other"  # which is about to take it
    assert view.look() == [(0, "other")]


def test_nothing_is_given_away_while_the_engine_does_not_say_who_is_alive():
    view = View("me", "me")
    view.fails = True
    with pytest.raises(EngineError):
        view.look()
    assert view.given == []


def test_a_node_that_does_not_take_what_it_is_given_gets_nothing_more_for_a_while():
    view = View("me", "me", "me")
    view.refusing.add("other")
    assert view.look() == [(0, "other")]
    assert view.look() == []
    view.refusing.clear()
    view.now += DISTRUST * TTL * SECOND + 1
    assert len(view.look()) == 1


def test_a_node_that_has_led_a_shard_and_gives_it_back_is_trusted():
    view = View("me", "me", "me", "me")
    view.look()
    view.look()
    view.shards[0].leader = "me"
    view.balancer.note_led(0)
    assert view.look() == [(0, "other")]


def test_what_nobody_leads_has_one_heir():
    view = View("", "", "", "me", others=("other",))
    view.look()
    for shard in view.shards[:3]:
        shard.lost = Lease()
    assert [view.successor(index) for index in range(3)] == [False, True, False]


def test_what_a_dead_node_led_goes_to_the_living_evenly():
    view = View("me", "dead", "dead", "dead", "other", others=("other", "dead"))
    view.look()
    for shard in view.shards[1:4]:
        shard.lose()
    assert [view.successor(index) for index in (1, 2, 3)] == [True, False, True]


def test_when_one_shard_of_a_dead_node_is_lost_the_heirs_of_all_are_known():
    view = View("me", "dead", "dead", "other", others=("other", "dead"))
    view.look()
    view.shards[1].lose()
    assert view.successor(1)
    view.shards[2].lose()
    assert not view.successor(2)


def test_whoever_is_named_is_the_heir():
    view = View("me", "other", "other")
    view.look()
    view.shards[1].lost = Lease(epoch=1, successor="me")
    assert view.successor(1)


def test_a_node_that_knows_no_other_is_the_heir():
    view = View("", others=())
    view.shards[0].lost = Lease()
    assert view.successor(0)


def test_whoever_leaves_gives_its_shards_to_all_others():
    view = View("me", "me", "me", "me", "one", "two", others=("one", "two"))
    asyncio.run(view.balancer.stop())
    assert sorted(view.successors().values()) == ["one", "one", "two", "two"]


# By figures alone


def spread(counts):
    """The figures after all transfers."""
    after = Counter(counts)
    for giver, taker in transfers(counts):
        after[giver] -= 1
        after[taker] += 1
    return dict(after)


def is_even(counts):
    return max(counts.values()) - min(counts.values()) <= 1


def test_without_nodes_there_is_nothing_to_give():
    assert transfers({}) == []
    assert successors([1, 2], {}) == {}


def test_whoever_has_most_gives_first_and_whoever_has_fewest_takes_first():
    assert transfers({"a": 7, "b": 5, "c": 1, "d": 0}) == [
        ("a", "d"),
        ("a", "c"),
        ("a", "d"),
        ("b", "c"),
        ("b", "d"),
    ]


def test_nodes_that_have_seen_the_same_decide_the_same_in_whatever_order_they_have_seen_it():
    counts = {"a": 9, "b": 9, "c": 0, "d": 0, "e": 1}
    names = list(counts)
    for _ in range(20):
        random.shuffle(names)
        assert transfers({name: counts[name] for name in names}) == transfers(counts)


@seeded(50)
def test_any_figures_become_even_with_the_fewest_transfers(seed):
    rng = random.Random(seed)
    counts = {f"n{number}": rng.randrange(20) for number in range(rng.randrange(1, 12))}
    after = spread(counts)
    assert is_even(after)
    assert sum(after.values()) == sum(counts.values())
    kept = sum(min(counts[node], after[node]) for node in counts)
    assert len(transfers(counts)) == sum(counts.values()) - kept
    assert transfers(after) == []


@seeded(20)
def test_nodes_that_see_late_what_the_others_have_done_come_to_rest(seed):
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(rng.randrange(2, 9))]
    counts = dict.fromkeys(names, 0) | {names[0]: 64}
    seen = {name: dict(counts) for name in names}
    done = 0
    for _ in range(2000):
        name = rng.choice(names)
        if rng.random() < 0.5:
            seen[name] = dict(counts)
        seen[name][name] = counts[name]  # it knows what it leads itself
        for giver, taker in transfers(seen[name]):
            if giver == name and counts[name]:
                counts[giver] -= 1
                counts[taker] += 1
                seen[name][giver] -= 1
                seen[name][taker] += 1
                done += 1
                break
    assert is_even(counts)
    assert done < 3 * 64


def test_what_a_dead_node_led_goes_to_whoever_leads_fewest():
    assert successors([5, 1, 7], {"b": 2, "c": 0}) == {1: "c", 5: "c", 7: "b"}


def test_shards_that_nobody_has_ever_led_are_spread_evenly():
    found = successors(range(8), {"a": 0, "b": 0, "c": 0})
    assert sorted(Counter(found.values()).values()) == [2, 3, 3]


def test_all_nodes_name_the_same_heirs():
    assert successors([3, 1], {"b": 0, "a": 0}) == successors([1, 3], {"a": 0, "b": 0}) == {1: "a", 3: "b"}


def test_a_thousand_shards_of_one_node_are_given_to_63_others():
    counts = {f"node {number}": 0 for number in range(64)} | {"node 0": 1024}
    given = transfers(counts)
    assert {giver for giver, _ in given} == {"node 0"}
    assert sorted(Counter(taker for _, taker in given).values()) == [16] * 63
    assert len(successors(range(1024), counts)) == 1024
