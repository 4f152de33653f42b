"""Clients of a node: where they are served, and what becomes of them when leaders change."""

import gc

import pytest
from sharded import Caller, ShardedNode

from beanstalk_server.access.accounts import Accounts, hash_of_token
from beanstalk_server.queue.policy import Policy
from beanstalk_server.routing import clients
from beanstalk_server.server.connection import CarrierLostError
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.settings.sections import UserConfig

PUT = b"put 0 0 60 1\r\nx\r\n"


@pytest.fixture
def both():
    """A node that leads both of two shards."""
    return ShardedNode(2, (0, 1))


def here_and_there(index, linked):
    """A node that leads one of two shards, while the other one is led elsewhere, or here too."""
    node = ShardedNode(2, (index,) if linked else (0, 1))
    if linked:
        node.link(1 - index)
    return node


def test_with_one_shard_a_client_of_its_leader_is_served_as_on_a_single_server():
    assert ShardedNode(1, (0,)).connect().has_connection()


@pytest.mark.parametrize("linked", [False, True])
def test_a_client_goes_on_at_another_shard_with_all_that_it_has(linked):
    node = here_and_there(ShardedNode(2).first, linked)
    caller = node.connect()
    used, other = node.tube(node.first), node.tube(1 - node.first)
    assert caller.send(b"use %b\r\nwatch %b\r\n" % (used, used)) == b"USING %b\r\nWATCHING 2\r\n" % used
    assert caller.send(PUT + b"reserve\r\n").endswith(b"RESERVED %d 1\r\nx\r\n" % (2 + node.first))
    job_id = 2 + node.first
    script = b"touch %d\r\nwatch %b\r\ntouch %d\r\nlist-tube-used\r\nuse %b\r\n" % (
        job_id,
        other,
        job_id,
        other,
    )
    replies = b"TOUCHED\r\nWATCHING 3\r\nTOUCHED\r\nUSING %b\r\nUSING %b\r\n" % (used, other)
    assert caller.send(script) == replies
    assert caller.send(PUT) == b"INSERTED %d\r\n" % (3 - node.first)
    assert caller.send(b"delete %d\r\nreserve\r\n" % job_id) == b"DELETED\r\nRESERVED %d 1\r\nx\r\n" % (3 - node.first)
    assert node.connections() == 1
    caller.disconnect()
    assert node.connections() == 0
    assert node.shards[1 - node.first].broker.ready == 1


@pytest.mark.parametrize("linked", [False, True])
def test_more_than_there_is_room_for_at_once_arrives_at_a_shard_all_the_same(linked):
    node = here_and_there(ShardedNode(2).first, linked)
    caller = node.connect()
    caller.send(b"use %b\r\n" % node.tube(1 - node.first))
    caller.send(b"watch %b\r\n" % node.tube(1 - node.first))
    replies = caller.send((b"put 0 0 60 65535\r\n" + b"x" * 65535 + b"\r\n") * 40)
    assert replies.count(b"INSERTED") == 40


ELSEWHERE = {
    "use": b"use %(other)b\r\n",
    "watch": b"watch %(other)b\r\n",
    "by id": b"peek %(id)d\r\n",
    "by name": b"stats-tube %(other)b\r\n",
    "list-tubes": b"list-tubes\r\n",
    "stats": b"stats\r\n",
}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_command_for_another_shard_is_answered_once_and_in_its_place_wherever_the_input_is_cut(how):
    def conversation(cut):
        node = ShardedNode(2, (0, 1))
        line = ELSEWHERE[how] % {b"other": node.tube(1 - node.first), b"id": 5 - node.first}
        script = b"put 0 0 60 5\r\na\r\nbc\r\n" + line + b"list-tube-used\r\n" + line + PUT + b"peek-ready\r\n"
        caller = node.connect()
        return caller.send(script[:cut]) + (caller.send(script[cut:]) if cut < len(script) else b""), len(script)

    whole, size = conversation(1000)
    assert whole.startswith(b"INSERTED") and b"UNKNOWN" not in whole and b"BAD" not in whole
    if how != "stats":  # which shows times
        for cut in range(1, size):
            assert conversation(cut)[0] == whole, cut


def test_what_is_not_committed_is_answered_before_another_shard_is_asked(both):
    caller = both.connect()
    journal = both.shards[both.first].journal
    journal.is_slow = True
    other = both.tube(1 - both.first)
    assert caller.send(PUT + b"use %b\r\n" % other + b"list-tube-used\r\n") == b""
    journal.end_commit()
    both.loop.settle()
    assert caller.read() == b"INSERTED %d\r\n" % (2 + both.first) + b"USING %b\r\n" % other * 2


def test_a_client_that_goes_while_a_command_for_another_shard_waits_for_a_commit_is_gone(both):
    caller = both.connect()
    journal = both.shards[both.first].journal
    journal.is_slow = True
    caller.send(PUT + b"use %b\r\n" % both.tube(1 - both.first))
    caller.disconnect()
    journal.end_commit()
    both.loop.settle()
    assert both.connections() == 0
    assert not both.clients.open


def test_a_client_that_has_shut_down_its_sending_side_gets_all_replies(both):
    caller = both.connect()
    other = both.tube(1 - both.first)
    script = b"use %b\r\n" % other + PUT + b"watch %b\r\nreserve\r\nreserve\r\nhalf a li" % other
    replies = caller.send(script, settle=False)
    caller.shut_down()
    job_id = 3 - both.first
    assert (
        replies + caller.read()
        == b"USING %b\r\nINSERTED %d\r\nWATCHING 2\r\nRESERVED %d 1\r\nx\r\nTIMED_OUT\r\n"
        % (
            other,
            job_id,
            job_id,
        )
    )
    assert caller.socket.closed
    assert both.connections() == 0


def test_no_command_is_done_for_a_client_that_does_not_read(both):
    caller = both.connect()
    other = both.tube(1 - both.first)
    caller.protocol.pause_writing()
    assert caller.send(PUT + b"use %b\r\n" % other + PUT) == b""
    assert both.shards[0].broker.total_jobs == both.shards[1].broker.total_jobs == 0
    caller.protocol.resume_writing()
    both.loop.settle()
    assert caller.read() == b"INSERTED %d\r\nUSING %b\r\nINSERTED %d\r\n" % (2 + both.first, other, 3 - both.first)


def test_a_client_that_hangs_up_while_it_is_not_read_from_gets_no_job(both):
    caller = both.connect()
    other = both.tube(1 - both.first)
    assert caller.send(b"watch %b\r\nreserve\r\n" % other + b"watch a\r\n" * 20_000) == b"WATCHING 2\r\n"
    assert not caller.socket.reading
    caller.hang_up()
    assert caller.read().startswith(b"TIMED_OUT\r\nWATCHING")
    assert both.connect().send(PUT).startswith(b"INSERTED")
    assert sum(shard.broker.ready for shard in both.shards) == 1


# Leaders change


@pytest.mark.parametrize("is_clean", [False, True])
def test_a_client_goes_on_when_the_shard_that_it_uses_is_led_here_no_more_and_again(is_clean):
    node = ShardedNode(2, (0, 1))
    first = node.first
    caller, waiting, half = node.connect(), node.connect(), node.connect()
    tube = node.tube(first)
    caller.send(b"use %b\r\n" % tube)
    waiting.send(b"watch %b\r\nreserve-with-timeout 10\r\nlist-tube-used\r\n" % tube)
    assert waiting.read() == b""
    half.send(b"use %b\r\nput 0 0 60 5\r\nab" % tube)
    assert node.stop_leading(first, is_clean=is_clean) == 0
    assert caller.send(b"list-tube-used\r\n" + PUT) == b"USING %b\r\n" % tube
    assert half.send(b"c") == b""
    node.link(first)
    inserted = caller.read()
    assert inserted.startswith(b"INSERTED")
    assert waiting.read() == b"RESERVED %b 1\r\nx\r\nUSING default\r\n" % inserted.split()[1]
    assert half.send(b"de\r\n").startswith(b"INSERTED")
    node.unlink(first, is_clean=is_clean)
    node.lead(first)
    assert caller.send(b"list-tube-used\r\n") == b"USING %b\r\n" % tube
    assert node.connections() == 3


def test_a_reserve_that_goes_to_a_standby_and_back_times_out_at_its_time():
    node = ShardedNode(1, (0,))
    caller = node.connect()
    caller.send(b"reserve-with-timeout 10\r\n")
    node.loop.sleep(3)
    node.stop_leading(0)
    node.link(0)
    node.loop.sleep(2)
    node.unlink(0)
    node.lead(0)
    assert caller.has_connection()
    node.loop.sleep(4.5)
    assert caller.read() == b""
    node.loop.sleep(1)
    assert caller.read() == b"TIMED_OUT\r\n"


def test_who_waits_for_a_commit_is_disconnected_if_it_may_have_failed():
    node = ShardedNode(2, (0, 1))
    first = node.first
    at_home, routed = node.connect(), node.connect()
    routed.send(b"watch %b\r\n" % node.tube(1 - first))
    node.shards[first].journal.is_slow = True
    assert at_home.send(PUT) + routed.send(PUT) == b""
    assert node.stop_leading(first, is_clean=False) == 2
    assert at_home.socket.is_closing() and routed.socket.is_closing()
    assert at_home.read() + routed.read() == b""


def test_what_has_been_committed_is_answered_before_a_shard_is_led_here_no_more():
    node = ShardedNode(2, (0, 1))
    first = node.first
    at_home, routed = node.connect(), node.connect()
    routed.send(b"watch %b\r\n" % node.tube(1 - first))
    routed.read()
    node.shards[first].journal.is_slow = True
    assert at_home.send(PUT) + routed.send(PUT) == b""
    assert node.stop_leading(first) == 0
    assert sorted([at_home.read(), routed.read()]) == [b"INSERTED %d\r\n" % (n + first) for n in (2, 4)]


def test_a_shard_that_is_handed_over_does_nothing_twice_and_leaves_nothing_out(both):
    first = both.first
    caller, worker = both.connect(), both.connect()
    other = both.tube(1 - first)
    worker.send(b"watch %b\r\n" % other)
    caller.send(b"use %b\r\n" % other)
    turns = both.shards[1 - first].turns
    turns.suspend()
    assert caller.send(PUT * 3) == b""
    turns.resume()
    both.stop_leading(1 - first)
    worker.send(b"reserve-with-timeout 5\r\n")
    answered = caller.send(PUT)
    both.link(1 - first)
    answered += caller.read()
    assert answered == b"".join([b"INSERTED %d\r\n" % (2 * number - first + 1) for number in range(1, 5)])
    assert both.shards[1 - first].broker.total_jobs == 4
    assert b"RESERVED" in worker.read()


def test_clients_that_come_too_late_for_the_shard_that_would_have_served_them_are_routed():
    node = ShardedNode(2, (0, 1))
    client = node.clients.make_client(node.listener_policy)
    node.stop_leading(node.first)
    caller = Caller(node, client)
    node.lead(node.first)
    assert caller.send(b"list-tube-used\r\n") == b"USING default\r\n"


def test_with_one_shard_clients_that_came_just_before_the_node_leads_are_not_routed():
    node = ShardedNode(1)
    client = node.clients.make_client(node.listener_policy)
    node.lead(node.first)
    caller = Caller(node, client)
    assert caller.send(b"list-tube-used\r\n" + PUT) == b"USING default\r\nINSERTED 1\r\n"
    assert len(node.clients.open) == 0 and node.connections() == 1


@pytest.mark.parametrize(
    "command", [b"kick 5", b"list-tubes", b"reserve-with-timeout 5", b"reserve-batch 2 5", b"stats"]
)
def test_with_one_shard_a_client_goes_on_that_has_asked_for_something_before_its_node_leads(command):
    node = ShardedNode(1)
    node.link(0)
    caller = node.connect()
    assert caller.send(PUT) == b"INSERTED 1\r\n" and not caller.has_connection()
    node.unlink(0)
    assert caller.send(command + b"\r\nput 0 0 60 10\r\nhalf") == b""
    node.lead(0)
    assert caller.send(b" a job\r\nlist-tube-used\r\n").endswith(b"INSERTED 2\r\nUSING default\r\n")
    assert caller.has_connection()


def test_a_node_that_stops_disconnects_all(both):
    callers = [both.connect() for _ in range(3)]
    callers[0].send(b"watch %b\r\n" % both.tube(1 - both.first))
    assert both.clients.disconnect_all() == 3
    both.loop.settle()
    assert both.connections() == 0
    assert not both.clients.open


# Users


@pytest.fixture(autouse=True)
def no_log_of_forbidden_commands(monkeypatch):
    """Its timer needs an event loop."""
    monkeypatch.setattr(Listeners, "note_forbidden", lambda *_: None)


def accounts(*names):
    """Users who may do anything with tubes that begin with their name, and watch only these."""
    everything = {"produce": ("*",), "inspect": ("*",), "admin": ("*",)}
    return Accounts([UserConfig(name=name, consume=(f"{name}-*",), **everything) for name in names])


@pytest.mark.parametrize("linked", [False, True])
def test_a_client_that_is_a_user_by_where_it_comes_in_watches_what_that_user_may(linked):
    both = here_and_there(ShardedNode(2).first, linked)
    both.listener_policy.accounts = accounts("ann", "bob")
    both.listener_policy.user = both.listener_policy.accounts.by_name("ann")
    both.users = {name: both.listener_policy.accounts.by_name(name) for name in ("ann", "bob")}
    for leader in both.leaders.values():
        leader.users = both.users
    caller = both.connect()
    ours = next(b"ann-%d" % n for n in range(9) if both.places.of_tube(b"ann-%d" % n) != both.first)
    assert caller.send(b"reserve\r\nwatch %b\r\n" % ours) == b"FORBIDDEN\r\nWATCHING 1\r\n"
    both.listener_policy.user = both.users["bob"]
    assert both.clients.judge(both.listener_policy.accounts) == 0
    both.loop.settle()
    assert caller.send(b"reserve\r\nwatch bob-1\r\nwatch bob-2\r\n") == b"FORBIDDEN\r\nWATCHING 1\r\nWATCHING 2\r\n"
    assert caller.send(b"use bob-1\r\n" + PUT + b"reserve\r\n").startswith(b"USING bob-1\r\nINSERTED")
    both.listener_policy.auth = "token"
    assert both.clients.judge(both.listener_policy.accounts) == 1
    both.loop.settle()
    assert both.connections() == 0


@pytest.mark.parametrize("linked", [False, True])
def test_a_client_that_authenticates_is_that_user_at_all_its_places(linked):
    node = here_and_there(ShardedNode(2).first, linked)
    config = [
        UserConfig(name=name, token_sha256=(hash_of_token(name * 9),), produce=("*",), consume=(f"{name}-*",))
        for name in ("ann", "bob")
    ]
    node.listener_policy.auth = "token"
    node.listener_policy.accounts = Accounts(config)
    node.users = {name: node.listener_policy.accounts.by_name(name) for name in ("ann", "bob")}
    for leader in node.leaders.values():
        leader.users = node.users
    caller = node.connect(node.users["ann"])
    tubes = [[b"%b-%d" % (name, n) for n in range(20)] for name in (b"ann", b"bob")]
    here, there = (
        [next(tube for tube in names if node.places.of_tube(tube) == index) for names in tubes]
        for index in (node.first, 1 - node.first)
    )
    assert caller.send(b"watch %b\r\nwatch %b\r\n" % (here[0], there[0])) == b"WATCHING 1\r\nWATCHING 2\r\n"
    bob = b"auth %b\r\n" % (b"bob" * 9)
    assert caller.send(b"watch %b\r\n" % here[1] + bob + b"watch %b\r\nwatch %b\r\n" % (there[0], there[1])) == (
        b"FORBIDDEN\r\nAUTHENTICATED\r\nFORBIDDEN\r\nWATCHING 1\r\n"
    )
    assert caller.send(b"use %b\r\n" % there[1] + PUT + b"reserve\r\n").endswith(
        b"RESERVED %d 1\r\nx\r\n" % (3 - node.first)
    )
    assert node.clients.judge(Accounts(config[1:])) == 0
    assert node.clients.judge(Accounts(config[:1])) == 1
    node.loop.settle()
    assert node.connections() == 0


# What is left


KEPT = (
    "RoutedConnection Router Branch Reserving _Part _Ask Watch LinkPlace LocalPlace ShardInput Connection "
    "Session".split()
)


@pytest.mark.parametrize("linked", [False, True])
def test_nothing_is_left_of_clients_that_are_gone_without_the_cycle_collector(linked):
    node = here_and_there(ShardedNode(2).first, linked)
    other = node.tube(1 - node.first)

    def left():
        names = [type(found).__name__ for found in gc.get_objects()]
        return {name: names.count(name) for name in KEPT}

    def come_and_go():
        caller = node.connect()
        said = caller.send(b"use %b\r\nwatch %b\r\n" % (other, other) + PUT + b"reserve\r\n")
        job_id = int(said.partition(b"RESERVED ")[2].split()[0])
        caller.send(b"release %d 0 0\r\nignore %b\r\nuse default\r\n" % (job_id, other))
        caller.disconnect()
        caller = node.connect()
        caller.send(b"watch %b\r\nreserve\r\nreserve\r\n" % other)
        caller.disconnect()
        caller = node.connect()
        caller.send(b"watch %b\r\n" % other)
        node.stop_leading(node.first)
        node.lead(node.first)
        caller.send(b"quit\r\n")

    come_and_go()
    gc.collect()
    before = left()
    gc.disable()
    try:
        for _ in range(3):
            come_and_go()
        assert left() == before
    finally:
        gc.enable()


@pytest.mark.interpreted
def test_many_clients_leave_in_many_rounds_and_nothing_that_they_say_meanwhile_is_lost(monkeypatch):
    monkeypatch.setattr(clients, "MOVES", 1)
    node = ShardedNode(2, (0, 1))
    first = node.first
    callers = [node.connect() for _ in range(6)]
    for caller in callers[:3]:
        caller.send(b"watch %b\r\n" % node.tube(1 - first))
    for caller in callers:
        caller.read()
    callers[5].send(b"put 0 0 60 5\r\nab")
    shard = node.shards[first]
    shard.turns.suspend()
    shard.commit()
    task = node.clients.stop_leading(first, True)
    task.send(None)
    for caller in callers[:5]:
        caller.send(PUT + b"list-tube-used\r\n")
    callers[5].send(b"cde\r\n")
    callers[4].disconnect()
    assert node.run(task) == 0
    shard.turns.resume()
    node.link(first)
    for caller in callers[:4]:
        said = caller.read()
        assert said.startswith(b"INSERTED") and said.endswith(b"\r\nUSING default\r\n") and said.count(b"\r\n") == 2
    assert callers[5].read().startswith(b"INSERTED")
    assert shard.broker.ready == 5
    assert node.connections() == 5


# Whether a client has left by itself


def carrier_dies(node, caller):
    caller.protocol.connection_lost(CarrierLostError())
    node.loop.settle()


def cut_off(node, _):
    assert node.clients.disconnect_all() == 1
    node.loop.settle()


def another_leader_dies(node, caller):
    """It has been asked for something that it has not answered, so the client must go."""
    node.link(2)
    node.shards[2].journal.is_slow = True
    assert caller.send(b"use %b\r\n" % node.tube(2) + PUT) == b"USING %b\r\n" % node.tube(2)
    node.unlink(2, is_clean=False)


def its_leader_dies(node, _):
    node.unlink(1, is_clean=False)


def it_leaves(_, caller):
    caller.disconnect()


def it_quits(_, caller):
    assert caller.send(b"quit\r\n") == b""


ENDS = [carrier_dies, cut_off, another_leader_dies, its_leader_dies, it_leaves, it_quits]


@pytest.mark.parametrize(
    ("end", "linked"), [*((end, True) for end in ENDS), *((end, False) for end in ENDS if end is not its_leader_dies)]
)
def test_a_job_has_failed_if_its_client_has_left_by_itself_and_not_if_its_carrier_is_gone(end, linked):
    node = ShardedNode(3, [0] if linked else [0, 1])
    if linked:
        node.link(1)
    broker = node.shards[1].broker
    broker.change_policies(lambda _: Policy(max_tries=2), node.loop.clock())
    caller = node.connect()
    caller.send(b"use %b\r\nwatch %b\r\n" % (node.tube(1), node.tube(1)))
    assert caller.send(PUT) == b"INSERTED 4\r\n"
    assert caller.send(b"reserve-job 4\r\n") == b"RESERVED 4 1\r\nx\r\n"
    assert broker.reserved == 1
    end(node, caller)
    assert broker.reserved == 0
    has_left = end in (it_leaves, it_quits)
    assert getattr(broker.jobs[4].extras, "tries", 0) == has_left


@pytest.mark.parametrize("end", [carrier_dies, cut_off, it_leaves, it_quits])
def test_the_same_is_true_of_a_client_that_is_not_routed(end):
    node = ShardedNode(1, [0])
    broker = node.shards[0].broker
    broker.change_policies(lambda _: Policy(max_tries=2), node.loop.clock())
    caller = node.connect()
    assert caller.send(PUT + b"reserve\r\n") == b"INSERTED 1\r\nRESERVED 1 1\r\nx\r\n"
    assert caller.has_connection()
    end(node, caller)
    assert broker.reserved == 0
    assert getattr(broker.jobs[1].extras, "tries", 0) == (end in (it_leaves, it_quits))


# Malformed puts


@pytest.fixture
def noted(monkeypatch):
    """How many malformed puts have been counted each time; a real count begins a log of an event loop."""
    counts = []
    monkeypatch.setattr(
        Listeners, "note_malformed_puts", lambda _self, count, _listener_policy, _name: counts.append(count)
    )
    return counts


@pytest.mark.parametrize("linked", [False, True])
def test_what_a_malformed_put_does_is_the_same_at_each_shard(noted, linked):
    node = here_and_there(0, linked)
    node.listener_policy.closes_after_put = True
    caller = node.connect()
    other = node.tube(1 - node.first if node.first == 0 and not linked else 0)
    caller.send(b"use %b\r\nwatch %b\r\nignore default\r\n" % (other, other))
    assert caller.send(b"put 0 0 60 x\r\nlist-tube-used\r\n") == b"BAD_FORMAT\r\n"
    assert caller.socket.closed
    assert noted == [1]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("line", [b"put 0 0 60 3", b"put-with 0 0 60 3 key=k", b"put-with 0 0 60 3 key=?"])
def test_a_routed_put_whose_body_is_too_long_is_counted_once(noted, line, linked):
    node = here_and_there(ShardedNode(2).first, linked)
    node.listener_policy.closes_after_put = True
    caller = node.connect()
    caller.send(b"use %b\r\n" % node.tube(1 - node.first))
    reply = caller.send(line + b"\r\nabcd\r\nlist-tube-used\r\n")
    assert reply in (b"EXPECTED_CRLF\r\n", b"BAD_FORMAT\r\n")
    assert caller.socket.closed
    assert noted == [1]


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("pauses", [False, True])
def test_a_client_that_a_malformed_put_disconnects_has_failed_with_the_jobs_of_other_shards(linked, pauses):
    node = here_and_there(ShardedNode(2).first, linked)
    caller = node.connect()
    here, there = node.tube(node.first), node.tube(1 - node.first)
    script = b"use %b\r\nput-with 0 0 60 1 tries=1\r\nx\r\nwatch %b\r\nreserve\r\nuse %b\r\n" % (here, here, there)
    assert b"RESERVED %d 1\r\n" % (2 + node.first) in caller.send(script)
    caller.send(b"put-with 0 0 60 3\r\nabcd\r\n", settle=False)
    if pauses:
        caller.protocol.pause_writing()
    node.loop.settle()
    assert caller.socket.closed
    assert b"\nstate: buried\n" in node.connect().send(b"stats-job %d\r\n" % (2 + node.first))


@pytest.mark.usefixtures("noted")
def test_the_last_reply_comes_before_the_end_if_the_put_was_passed_on_behind_another_reply(both):
    caller = both.connect()
    first, second = both.tube(1 - both.first), both.tube(both.first)
    script = b"use %b\r\nuse %b\r\nput-with 0 0 60 3 key=?\r\nabcd\r\n" % (first, second)
    assert caller.send(script) == b"USING %b\r\nUSING %b\r\nBAD_FORMAT\r\n" % (first, second)
    assert caller.socket.closed


@pytest.mark.usefixtures("noted")
def test_no_byte_behind_a_malformed_put_is_a_command_for_the_next_leader():
    node = ShardedNode(1)
    node.link(0)
    node.listener_policy.closes_after_put = True
    caller = node.connect()
    assert caller.send(PUT) == b"INSERTED 1\r\n"
    caller.send(b"put 0 0 60 3\r\nabcd\ndelete 1\r\n", settle=False)
    caller.protocol.pause_writing()
    node.loop.settle()
    assert caller.read() == b"EXPECTED_CRLF\r\n"
    node.unlink(0)
    node.lead(0)
    caller.protocol.resume_writing()
    node.loop.settle()
    assert caller.read() == b""
    assert caller.socket.closed
    assert node.connect().send(b"peek 1\r\n").startswith(b"FOUND 1 ")
