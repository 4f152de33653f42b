"""When a node gives shards away and takes them: with shards that are no more than who leads them, and a clock."""

import asyncio

import pytest

from beanstalk_server.cluster.engine.interface import EngineError, Lease, Member
from beanstalk_server.cluster.spreader import DISTRUST, Spreader
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
            self.view.spreader.note_led(self.index)

    def lose(self, node=None):
        """Let its leader be gone, and anybody may take it."""
        self.lost = Lease(epoch=1, node=self.leader if node is None else node)


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
        self.spreader = Spreader("me", self.shards, TTL * SECOND, self.find_members, self.find_linked, lambda: self.now)

    async def find_members(self):
        if self.fails:
            raise EngineError("the engine cannot be reached")
        return list(self.members.values())

    def find_linked(self):
        return set(self.members) - self.unlinked

    def report(self, node, **what):
        self.members[node] = self.members.get(node, Member(node, f"{node}:1", 0.0))._replace(**what)

    def look(self):
        """Let the spreader do what it does once in a while; return what it has given away."""
        before = len(self.given)
        asyncio.run(self.spreader._even_out())
        return self.given[before:]

    def successors(self):
        return asyncio.run(self.spreader.successors())

    def successor(self, shard):
        return self.spreader.is_successor(shard, self.shards[shard].lost)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("beanstalk_server.cluster.spreader.PAUSE", 0)


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
    view.spreader.note_gone("other")
    assert view.look() == []
    assert not view.spreader.knows("other")


def test_a_node_that_has_no_link_here_is_given_nothing():
    view = View("me", "me", others=("one", "two"))
    view.unlinked = {"one"}
    assert view.look() == []
    assert view.successors() == {0: "two", 1: "two"}
    assert not view.spreader.knows("one")
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
    view.spreader.note_led(0)
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
    asyncio.run(view.spreader.stop())
    assert sorted(view.successors().values()) == ["one", "one", "two", "two"]
