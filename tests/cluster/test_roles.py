"""The roles of a node, and what its owner is told: over an engine in memory, in virtual time."""

import asyncio
import contextlib
import heapq
from collections import Counter

import pytest
from memory_engine import Servers

from beanstalk_server.cluster.engine.interface import Lease, Position, Report, move
from beanstalk_server.cluster.lease_calls import LeaseCalls
from beanstalk_server.cluster.roles import IS_SUSPENDED, LEADS, STANDING_BY, TAKING_OVER, Roles, TakeOverError
from beanstalk_server.queue.units import SECOND

TTL = 10


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as soon as there is nothing to do."""

    def __init__(self):
        super().__init__()
        self.now = 1000.0

    def time(self):
        return self.now

    def _run_once(self):
        while self._scheduled and self._scheduled[0]._cancelled:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            self._timer_cancelled_count = max(self._timer_cancelled_count - 1, 0)
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


class Owner:
    """Notes what it is told."""

    def __init__(self):
        self.told = []
        self.followed = []
        self.takes = 0.0
        self.fails = False
        self.waits = False  # another node is the successor

    def follow(self, lease):
        self.followed.append(lease)

    async def take_over(self, lease):
        await asyncio.sleep(self.takes)
        if self.fails:
            raise TakeOverError("damaged")
        await self.roles.confirm()
        self.told.append(f"serves {lease.epoch}")

    def is_successor(self, _):
        return not self.waits

    def on_successor(self, node):
        self.told.append(f"hand over to {node}")
        self.roles.hand_over(node)

    def suspend(self):
        self.told.append("suspend")

    def resume(self):
        self.told.append("resume")

    def mark(self):
        return "mark"

    def renewed(self, lease, mark):
        assert mark == "mark"
        self.position = lease.position

    async def finish(self):
        self.told.append("finish")

    async def step_down(self, why):
        self.told.append("step down")

    def cut_off(self):
        self.told.append("cut off")

    def give_up(self):
        raise AssertionError("a bug")


class Cluster:
    def __init__(self):
        self.servers = Servers(clock=lambda: asyncio.get_running_loop().time())
        self.nodes = []
        self.lookouts = []

    def add(self, name):
        owner = Owner()

        async def in_thread(call):
            await asyncio.sleep(0.001)
            return call()

        def clock():
            return round(asyncio.get_running_loop().time() * SECOND)

        engine = self.servers.engine()
        lease_calls = LeaseCalls(
            engine, TTL * SECOND, lambda: Report(name, f"{name}:1"), owner.cut_off, in_thread=in_thread, clock=clock
        )
        roles = owner.roles = Roles(
            0,
            name,
            TTL * SECOND,
            owner,
            lease_calls.ask,
            clock=clock,
            draw_secret=lambda: f"secret of {name}",
        )
        roles.engine = engine
        roles.start(f"{name}:1")
        self.nodes.append(roles)
        self.lookouts.append(lease_calls)
        return roles, owner

    async def leader(self):
        """A node that leads."""
        node, owner = self.add("a")
        await until(lambda: node.role == LEADS, "it leads")
        return node, owner

    async def stop(self):
        self.servers.is_reachable = True
        self.servers.lag(lags=False)
        for node in self.nodes:
            await node.stop()


@pytest.fixture
def loop_factory():
    return VirtualLoop


@pytest.fixture
@contextlib.asynccontextmanager
async def cluster(loop_factory):
    """A cluster in virtual time."""
    cluster = Cluster()
    yield cluster
    await cluster.stop()


async def until(condition, what, within=100):
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while not condition():
        assert loop.time() < end, f"not within {within} s: {what}"
        await asyncio.sleep(0.01)


def kill(node):
    """End a node as SIGKILL does."""
    node._task.cancel()
    node.engine.close()
    node.start = node.stop = None


async def test_one_of_two_leads_and_the_other_knows_it(cluster):
    first, _ = await cluster.leader()
    second, owner = cluster.add("b")
    await asyncio.sleep(100)
    assert (first.role, second.role, owner.told) == (LEADS, STANDING_BY, [])
    assert (second.leader, second.epoch) == ("a:1", 1)
    assert owner.followed[-1].secret.startswith("secret of a-")


async def test_of_several_nodes_the_one_that_a_leader_names_at_its_end_takes_the_lease_at_once(cluster):
    first, owner = await cluster.leader()
    second, _ = cluster.add("b")
    third, _ = cluster.add("c")
    await asyncio.sleep(1)
    renewals = first.lease.renewals
    first.retire("c")
    await first.stop()
    assert owner.told == ["serves 1", "finish", "step down"]
    for node in (second, third):
        node.look()
    await until(lambda: third.role == LEADS, "the named node leads", within=0.1)
    assert third.epoch == 2
    assert first.lease.renewals == renewals, "no lease had to run out"
    await asyncio.sleep(2 * TTL)
    assert (second.role, second.leader) == (STANDING_BY, "c:1")


async def test_a_node_that_hands_over_stays_and_leads_no_more(cluster):
    first, owner = await cluster.leader()
    second, _ = cluster.add("b")
    first.retire()
    await until(lambda: second.role == LEADS, "the other leads", within=2)
    await second.stop()
    await asyncio.sleep(100)
    assert (first.role, owner.told) == (STANDING_BY, ["serves 1", "finish", "step down"])


async def test_a_node_that_is_cut_off_is_suspended_before_the_other_leads(cluster):
    first, owner = await cluster.leader()
    second, _ = cluster.add("b")
    await asyncio.sleep(5)
    first.engine.close()
    await until(lambda: first.role == IS_SUSPENDED, "it is suspended", within=TTL)
    assert second.role == STANDING_BY
    await until(lambda: second.role == LEADS, "the other leads", within=TTL)
    assert owner.told == ["serves 1", "suspend"]
    first.engine.is_open = True
    await until(lambda: first.role == STANDING_BY, "it is fenced", within=1)
    assert owner.told == ["serves 1", "suspend", "step down"]
    assert first.leader == "b:1"


async def test_an_engine_that_fails_over_costs_a_pause_only(cluster):
    first, owner = await cluster.leader()
    _, other = cluster.add("b")
    await asyncio.sleep(5)
    cluster.servers.is_reachable = False
    await asyncio.sleep(1.5 * TTL)
    assert first.role == IS_SUSPENDED
    cluster.servers.is_reachable = True
    await until(lambda: first.role == LEADS, "it leads again", within=1)
    assert owner.told == ["serves 1", "suspend", "resume"]
    await asyncio.sleep(3 * TTL)
    assert other.told == []


async def test_a_node_that_has_no_answer_for_two_leases_is_cut_off_whatever_its_role(cluster):
    first, owner = await cluster.leader()
    _, other = cluster.add("b")
    await asyncio.sleep(5)
    cluster.servers.is_reachable = False
    await asyncio.sleep(2 * TTL)
    assert "cut off" not in owner.told + other.told
    await asyncio.sleep(TTL)
    assert "cut off" in owner.told
    assert "cut off" in other.told
    cluster.servers.is_reachable = True
    await until(lambda: first.role == LEADS, "it leads again", within=1)
    owner.told.clear()
    await asyncio.sleep(TTL)
    assert owner.told == []


async def test_without_enough_replicas_nobody_leads(cluster):
    cluster.servers.lag()
    node, owner = cluster.add("a")
    await asyncio.sleep(35)
    assert owner.told == []
    cluster.servers.lag(lags=False)
    await until(lambda: node.role == LEADS, "it leads", within=TTL)


async def test_an_engine_that_was_wiped_stays_with_the_leader(cluster):
    _, owner = await cluster.leader()
    _, other = cluster.add("b")
    await asyncio.sleep(5)
    cluster.servers.wipe()
    await asyncio.sleep(3 * TTL)
    assert (owner.told, other.told) == (["serves 1"], [])
    assert cluster.servers.primary.lease.epoch == 1
    assert owner.position == Position(0, 0)


async def test_an_engine_that_is_wiped_between_two_looks_at_an_empty_one_stays_with_its_first_leader(cluster):
    first, _ = cluster.add("a")
    await asyncio.sleep(0.1)
    second, _ = cluster.add("b")
    await until(lambda: first.tenure is not None, "it has taken the lease")
    assert not second.contender.lease.epoch, "it has looked before that"
    cluster.servers.wipe()
    await asyncio.sleep(3 * TTL)
    assert (first.role, second.role, second.epoch) == (LEADS, STANDING_BY, 1)


async def test_who_leads_in_an_engine_that_was_wiped_leads_on_when_the_earlier_leader_wakes(cluster):
    cluster.servers.primary.lease = Lease(3, 0, "", "z:1", "secret of z")
    first, owner = await cluster.leader()
    assert first.epoch == 4
    first.engine.close()  # as if it was stopped
    cluster.servers.wipe()
    second, other = cluster.add("b")
    await until(lambda: second.role == LEADS, "the other leads", within=2 * TTL)
    assert second.epoch == 1
    first.engine.is_open = True
    await until(lambda: first.role == STANDING_BY, "it is fenced", within=1)
    await asyncio.sleep(3 * TTL)
    assert (owner.told, other.told) == (["serves 4", "suspend", "step down"], ["serves 1"])
    assert first.leader == "b:1"
    await second.stop()
    await until(lambda: first.role == LEADS, "it leads again", within=2 * TTL)


async def test_a_leader_that_finds_its_lease_lost_renews_it_at_once(cluster):
    first, _ = await cluster.leader()
    cluster.servers.wipe()
    first.renew_soon()
    await until(lambda: cluster.servers.primary.lease.node == "a", "the engine has it again", within=0.1)


async def test_an_engine_that_was_wiped_while_nobody_reached_it_goes_back_to_whoever_has_the_jobs(cluster):
    first, owner = await cluster.leader()
    _, other = cluster.add("b")
    await asyncio.sleep(5)
    cluster.servers.is_reachable = False
    await asyncio.sleep(1.5 * TTL)
    cluster.servers.wipe()
    cluster.servers.is_reachable = True
    await asyncio.sleep(TTL / 2)
    assert first.role == IS_SUSPENDED
    await until(lambda: first.role == LEADS, "it leads again", within=TTL / 4)
    await asyncio.sleep(3 * TTL)
    assert (owner.told, other.told) == (["serves 1", "suspend", "resume"], [])


async def test_a_wiped_engine_whose_leader_is_dead_is_taken_after_a_lease_and_that_is_critical(cluster):
    await cluster.leader()
    second, owner = cluster.add("b")
    await asyncio.sleep(5)
    kill(cluster.nodes.pop(0))
    cluster.servers.wipe()
    await asyncio.sleep(TTL - 1)
    assert owner.told == []
    await until(lambda: second.role == LEADS, "the other leads", within=3)
    assert second.epoch == 2


async def test_a_commit_that_is_fenced_suspends_at_once(cluster):
    node, owner = await cluster.leader()
    cluster.servers.primary.lease = Lease(5, 0, "c", "c:1", "secret of c")
    node.fenced(5)
    assert owner.told == ["serves 1", "suspend"]
    await until(lambda: node.role == STANDING_BY, "it stands by", within=0.1)
    assert node.epoch == 5


async def test_a_node_that_cannot_serve_gives_the_lease_back_and_tries_again_less_and_less_often(cluster):
    node, owner = cluster.add("a")
    owner.fails = True
    await asyncio.sleep(TTL + 5)
    early = Counter(owner.told)["step down"]
    assert 1 < early <= 6
    await asyncio.sleep(20 * TTL)
    assert 10 <= Counter(owner.told)["step down"] - early <= 22
    owner.fails = False
    await until(lambda: node.role == LEADS, "it leads", within=1.5 * TTL)


async def test_the_lease_is_renewed_while_jobs_are_brought_back(cluster):
    first = cluster.add("a")
    first[1].takes = 5 * TTL
    await until(lambda: first[0].role == TAKING_OVER, "it takes over")
    _, other = cluster.add("b")
    await asyncio.sleep(5 * TTL - 5)
    assert first[0].role == TAKING_OVER
    await asyncio.sleep(10)
    assert (first[0].role, other.told) == (LEADS, [])


async def test_who_is_fenced_while_jobs_are_brought_back_never_serves(cluster):
    node, owner = cluster.add("a")
    owner.takes = 5
    await until(lambda: node.role == TAKING_OVER, "it takes over")
    cluster.servers.primary.lease = Lease(5, 0, "c", "c:1", "secret of c")
    await asyncio.sleep(4.5)
    assert node.role == TAKING_OVER  # until the work that is under way has ended
    await until(lambda: node.role == STANDING_BY, "it stands by")
    assert owner.told[-1] == "step down"


async def test_a_lease_that_runs_out_while_jobs_are_brought_back_is_renewed_before_the_node_serves(cluster):
    node, owner = cluster.add("a")
    owner.takes = TTL
    await until(lambda: node.role == TAKING_OVER, "it takes over")
    cluster.servers.is_reachable = False
    await asyncio.sleep(TTL + 1)
    assert (node.role, owner.told) == (TAKING_OVER, [])
    cluster.servers.is_reachable = True
    await until(lambda: node.role == LEADS, "it leads", within=5)
    assert owner.told == ["serves 1"]


async def test_a_node_that_is_to_stop_while_its_lease_has_run_out_keeps_what_it_has_and_hands_nothing_out(cluster):
    node, owner = cluster.add("a")
    owner.takes = TTL
    await until(lambda: node.role == TAKING_OVER, "it takes over")
    cluster.servers.is_reachable = False
    await asyncio.sleep(TTL + 1)
    node.retire()
    await until(lambda: node.role == STANDING_BY, "it stands by")
    assert owner.told == ["serves 1", "suspend", "finish", "step down"]


async def test_a_node_whose_lease_is_not_renewed_because_of_a_bug_does_not_wait_for_it_in_its_takeover(cluster, caplog):
    def fails():
        raise ZeroDivisionError("a bug")

    node, owner = cluster.add("a")
    gave_up = []
    owner.give_up = lambda: gave_up.append("gave up")
    owner.takes = 2 * TTL
    await until(lambda: node.role == TAKING_OVER, "it takes over")
    owner.mark = fails
    await until(lambda: gave_up, "it gives up", within=3 * TTL)
    assert owner.told == []
    caplog.clear()


@pytest.mark.parametrize("what", ["mark", "report"])
async def test_a_node_whose_lease_cannot_be_renewed_because_of_a_bug_ends_and_is_not_suspended(cluster, what, caplog):
    def fails(*_):
        raise ZeroDivisionError("a bug")

    node, owner = cluster.add("a")
    gave_up = []
    owner.give_up = lambda: gave_up.append("gave up")
    await until(lambda: node.role == LEADS, "it leads")
    if what == "mark":
        owner.mark = fails
    else:
        cluster.lookouts[0]._report = fails
    await until(lambda: gave_up, "it gives up", within=TTL / 2)
    assert owner.told == ["serves 1"]
    assert "this is a bug in the server" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("role", [STANDING_BY, TAKING_OVER, LEADS])
async def test_it_ends_in_every_role(cluster, role):
    cluster.add("b")
    await until(lambda: cluster.nodes[0].role == LEADS, "one leads")
    if role != STANDING_BY:
        await cluster.nodes.pop().stop()
    node, owner = cluster.add("a")
    owner.takes = 5 if role == TAKING_OVER else 0
    await until(lambda: node.role == role, "it has that role")
    await cluster.stop()
    assert node._task.done() and cluster.servers.primary.lease.node == ""


async def test_it_ends_while_the_engine_is_gone(cluster):
    node, owner = await cluster.leader()
    cluster.servers.is_reachable = False
    await asyncio.wait_for(node.stop(), 10)
    assert owner.told == ["serves 1", "finish", "step down"]


async def test_the_log_complains_of_an_engine_that_does_not_answer_every_ten_seconds_only(cluster, caplog):
    cluster.add("a")
    cluster.servers.is_reachable = False
    await asyncio.sleep(25)
    assert [record.message for record in caplog.records].count("the engine cannot be reached") == 3


async def test_two_nodes_with_one_address_do_not_take_the_lease_from_each_other_for_ever(cluster, caplog):
    first, owner = cluster.add("a")
    await until(lambda: first.role == LEADS, "the first leads")
    second, _ = cluster.add("b")
    second.address = second.contender.address = first.address
    await asyncio.sleep(5 * TTL)
    assert (first.role, second.role) == (STANDING_BY, LEADS)
    assert second.epoch == 2
    assert owner.followed[-1] == Lease()
    said = "the leader, node b, has the address a:1 of this node: each node must have its own --advertise"
    assert [record.message for record in caplog.records].count(said) == 1


async def test_a_shard_that_is_handed_over_is_taken_at_once_and_may_come_back(cluster):
    first, owner = await cluster.leader()
    second, other = cluster.add("b")
    await asyncio.sleep(1)
    first.hand_over("b")
    assert (first.lease.node, first.holder) == ("a", "b")
    await until(lambda: first.role == STANDING_BY, "it has handed over")
    second.look()
    await until(lambda: second.role == LEADS, "the other leads", within=0.1)
    await asyncio.sleep(2)
    assert (first.holder, first.lease.node) == ("b", "b")
    second.hand_over("a")
    await until(lambda: first.role == LEADS, "the first leads again")
    assert owner.told == ["serves 1", "finish", "step down", "serves 3"]
    assert other.told == ["serves 2", "finish", "step down"]


async def test_a_shard_that_is_given_to_a_node_which_does_not_take_it_is_taken_by_another_one(cluster):
    first, _ = await cluster.leader()
    first.hand_over("nobody")
    await until(lambda: first.role == STANDING_BY, "it has handed over")
    await asyncio.sleep(TTL / 5 - 0.1)
    assert first.role == STANDING_BY
    await until(lambda: first.role == LEADS, "it leads again", within=2)


async def test_who_has_nothing_to_hand_over_hands_nothing_over_later(cluster):
    first, owner = cluster.add("a")
    first.hand_over("b")
    await until(lambda: first.role == LEADS, "it leads")
    await asyncio.sleep(5 * TTL)
    assert owner.told == ["serves 1"]


async def test_a_leader_hands_over_to_whom_the_engine_names(cluster):
    _, owner = await cluster.leader()
    second, _ = cluster.add("b")
    await asyncio.sleep(1)
    cluster.servers.engine().perform([move(0, "b")])
    await until(lambda: second.role == LEADS, "the other leads", within=TTL / 2)
    assert owner.told == ["serves 1", "hand over to b", "finish", "step down"]


async def test_whoever_is_not_the_heir_of_a_dead_leader_waits_for_a_moment(cluster):
    await cluster.leader()
    second, owner = cluster.add("b")
    owner.waits = True
    await asyncio.sleep(1)
    kill(cluster.nodes.pop(0))
    second.note_gone(1, "a")
    await asyncio.sleep(TTL / 5 - 0.1)
    assert second.role == STANDING_BY
    assert second.lost.node == "a"
    await until(lambda: second.role == LEADS, "it leads", within=2)
    assert second.lost is None
