"""What a routed client has at a shard: what becomes of it when the leader of the shard goes."""

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from linked import pieces
from routed import RoutedCluster

from beanstalk_server.link.link import WINDOW
from beanstalk_server.queue.journal import NONE
from beanstalk_server.routing.branch import KEPT_LIMIT, REPEATABLE
from beanstalk_server.wire.commands import CANCEL_RESERVE, EXTENSIONS, PROTOCOL, QUIT
from tests.routing.test_router import Reference, check_places, cuts, named, seen, simple, tube


def test_every_command_may_be_given_again_or_changes_something():
    changes = {
        command.name
        for command in PROTOCOL + EXTENSIONS
        if command.needs != NONE or command.name in ("touch", "touch-batch", "touch-all")
    }
    repeatable = {name.decode() for name in REPEATABLE}
    assert {command.name for command in PROTOCOL + EXTENSIONS} == repeatable | changes | {
        QUIT.name,
        CANCEL_RESERVE.name,
    }
    assert not repeatable & changes


# A leader that goes without having answered all that it has done


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    "sent",
    [b"put 0 0 60 1\r\nx\r\n", b"reserve\r\ndelete 2\r\n", b"peek 2\r\ntouch 2\r\n", b"unknown\r\n", b"peek 2\r\n\r\n"],
)
def test_a_client_that_waits_for_a_change_is_disconnected(shards, sent):
    cluster = RoutedCluster(shards)
    client = cluster.connect(used=tube(0, shards).decode(), watched=[tube(0, shards).decode()])
    client.give(sent)
    cluster.lose(0)
    assert client.closed


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"reserve\r\n",
        b"put 0 0 60",
        b"put 0 0 60 10\r\nhalf of",  # it cannot have been executed
        b"peek 2\r\nuse t0\r\nput 0 0 60 10\r\n",
        b"x" * 400,
        b"reserve\r\nquit\r\n",
    ],
)
def test_a_client_that_waits_for_no_change_stays(shards, sent):
    cluster = RoutedCluster(shards)
    client = cluster.connect(used=tube(0, shards).decode(), watched=[tube(0, shards).decode()])
    client.give(sent)
    cluster.lose(0)
    assert not client.closed


def test_a_client_that_has_half_of_a_reply_is_disconnected():
    cluster = RoutedCluster(cut=lambda data: pieces(data, [100]))
    client = cluster.connect()
    client.send(b"put 0 0 60 1000\r\n" + b"j" * 1000 + b"\r\n")
    client.give(b"reserve\r\n")
    cluster.settle(most=2)
    assert client.arrived.startswith(b"RESERVED 1 1000\r\n")
    cluster.lose(0)
    assert client.closed


def test_a_client_that_has_hung_up_has_done_so_for_the_next_leader():
    cluster = RoutedCluster()
    client = cluster.connect()
    client.give(b"reserve\r\n")
    client.router.end_input()
    cluster.lose(0)
    assert not client.closed
    cluster.lead(0)
    assert client.read() == b"TIMED_OUT\r\n"
    assert client.closed


def test_a_client_stays_when_a_leader_goes_that_it_waits_for_nothing_from():
    cluster = RoutedCluster(2)
    client = cluster.connect(used=tube(0, 2).decode(), watched=[tube(0, 2).decode()])
    client.send(b"stats-tube %b\r\n" % tube(1, 2))
    client.give(b"put 0 0 60 1\r\nx\r\n")
    cluster.lose(1)
    assert client.read() == b"INSERTED 2\r\n"
    cluster.lead(1)
    assert client.send(b"stats-tube %b\r\n" % tube(1, 2)) == b"NOT_FOUND\r\n"


# Reserves


def test_nothing_is_kept_of_jobs_that_a_client_of_one_shard_has_reserved():
    client = RoutedCluster().connect()
    for job_id in range(1, 4):
        client.send(b"put 0 0 60 1\r\nx\r\n")
        assert client.send(b"reserve\r\ndelete %d\r\n" % job_id).endswith(b"DELETED\r\n")
    assert client.router.branches[0].framer.reserved == []


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("line", [b"reserve", b"reserve-with-timeout 10"])
def test_a_reserve_that_is_called_off_is_answered_by_the_next_leader(shards, is_clean, line):
    cluster = RoutedCluster(shards)
    client = cluster.connect(used=tube(0, shards).decode(), watched=[tube(0, shards).decode()])
    for _ in range(2):
        client.give(line + b"\r\ncancel-reserve\r\n" + line + b"\r\n")
        cluster.lose(0, is_clean)
        client.give(b"cancel-reserve\r\nlist-tube-used\r\ncancel-reserve\r\n")
        cluster.lead(0)
        assert client.read() == b"CANCELLED\r\n" * 2 + b"USING %b\r\n" % tube(0, shards)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_leader_goes_when_one_of_two_reserves_has_been_called_off(shards):
    cluster = RoutedCluster(shards)
    client = cluster.connect(used=tube(0, shards).decode(), watched=[tube(0, shards).decode()])
    client.give(b"reserve\r\n")
    assert client.send(b"cancel-reserve\r\nreserve-with-timeout 10\r\n") == b"CANCELLED\r\n"
    cluster.lose(0)
    cluster.lead(0)
    assert client.read() == b""
    cluster.sleep(11)
    assert client.send(b"list-tube-used\r\n") == b"TIMED_OUT\r\nUSING %b\r\n" % tube(0, shards)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    ("line", "given_again"),
    [
        (b"reserve", b"reserve"),
        (b"reserve-with-timeout 10", b"reserve-with-timeout 7"),
        (b"reserve-with-timeout 10.5", b"reserve-with-timeout 7.500"),
        (b"reserve-batch 5 10", b"reserve-batch 5 7"),
    ],
)
def test_a_reserve_waits_at_the_next_leader_for_the_rest_of_its_time(is_clean, line, given_again):
    cluster = RoutedCluster(tick=1)
    client = cluster.connect()
    now = cluster.now
    client.give(b"peek 1\r\n" + line + b"\r\npeek 1\r\nput 0 0 60 1\r\n")
    place = client.place(0)
    for item in place.there:
        place.received += item
    place.there.clear()  # it stands still
    cluster.worlds[0].now = now + 3_000_000_000
    cluster.lose(0, is_clean)
    cluster.lead(0)
    sent = b"".join(client.place(0).there)
    assert sent == b"peek 1\r\n" + line + b"\r\npeek 1\r\nput 0 0 60 1\r\n"  # it had not begun to wait
    cluster.lose(0, is_clean)
    cluster.lead(0)
    assert client.read() == b"NOT_FOUND\r\n"
    cluster.sleep(3)
    cluster.lose(0, is_clean)
    cluster.lead(0)
    assert b"".join(client.place(0).there).split(b"\r\n")[0] == given_again


def test_a_reserve_that_has_waited_for_all_its_time_without_a_leader_is_answered_at_once():
    cluster = RoutedCluster()
    client = cluster.connect()
    client.send(b"reserve-with-timeout 5\r\n")
    cluster.lose(0)
    cluster.sleep(60)
    cluster.lead(0)
    assert client.read() == b"TIMED_OUT\r\n"


# Any loss, at any point

keeping = st.one_of(
    st.just(b"put 0 0 60 3\r\nabc\r\n"),
    simple,
    named,
    seen,
    st.builds(
        lambda command, job_id: command % job_id,
        st.sampled_from([b"delete %d\r\n", b"peek %d\r\n", b"stats-job %d\r\n", b"cancel %d\r\n"]),
        st.integers(0, 20),
    ),
)


@settings(max_examples=examples(200))
@given(
    shards=st.integers(1, 3),
    is_clean=st.booleans(),
    room=st.sampled_from([100, WINDOW]),
    data=st.lists(keeping, max_size=14).map(b"".join),
    how=cuts,
    back=cuts,
    losses=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 20), st.integers(0, 2), st.booleans()), min_size=1, max_size=4
    ),
)
def test_a_client_that_stays_gets_each_reply_once(shards, is_clean, room, data, how, back, losses):
    """With commands that reserve nothing, as that would be ready afterwards. If the leader goes cleanly, it stays."""
    reference = Reference(shards)
    session = reference.caller.session
    replies = reference.send(data)
    cluster = RoutedCluster(shards, lambda sent: pieces(sent, back), room=room)
    client = cluster.connect()
    for number, part in enumerate(pieces(data, how)):
        client.give(part)
        for at, most, shard, comes_back in losses:
            if at == min(number, 12):
                cluster.settle(most)
                cluster.lose(shard % shards, is_clean, comes_back)
    for shard in range(shards):
        cluster.lead(shard)
    cluster.settle()
    if is_clean:
        assert not client.closed or session.closed
    if not client.closed or session.closed:
        arrived = client.read()
        assert replies.startswith(arrived) if client.closed and not is_clean else arrived == replies
    if not client.closed:
        check_places(client, session)
    cluster.check()


# Big bodies


def test_a_body_streams_through_and_is_kept_no_longer_than_it_is_worth():
    cluster = RoutedCluster(max_job_size=1 << 24)
    client = cluster.connect()
    client.router.max_job_size = 1 << 24
    body = bytes(range(256)) * (1 << 14)
    client.give(b"put 0 0 60 %d\r\n" % len(body))
    for start in range(0, len(body), WINDOW):
        client.give(body[start : start + WINDOW])
        cluster.settle()
        assert client.router.input_size <= WINDOW
        assert client.router.branches[0].kept_size <= KEPT_LIMIT + WINDOW
    assert client.router.branches[0].kept_size == 0
    assert client.send(b"\r\npeek 1\r\n") == b"INSERTED 1\r\nFOUND 1 %d\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(("size", "stays"), [(KEPT_LIMIT // 2, True), (KEPT_LIMIT * 2, False)])
def test_half_a_body_goes_to_the_next_leader_if_it_is_kept(is_clean, size, stays):
    cluster = RoutedCluster(max_job_size=1 << 24)
    client = cluster.connect()
    client.router.max_job_size = 1 << 24
    client.send(b"peek 1\r\nput 0 0 60 %d\r\n" % size + b"x" * (size - 100))
    cluster.lose(0, is_clean, comes_back=True)
    assert client.closed is not stays
    if stays:
        assert client.send(b"y" * 100 + b"\r\ndelete 1\r\n") == b"INSERTED 1\r\nDELETED\r\n"


# A client that does not read, or sends without waiting


def test_a_client_that_does_not_read_its_replies_takes_no_more_than_a_window():
    cluster = RoutedCluster(2)
    client = cluster.connect(used=tube(0, 2).decode())
    client.send(b"put 0 0 60 60000\r\n" + b"j" * 60000 + b"\r\n")
    client.read()
    client.reads = False
    for _ in range(3):
        client.give(b"peek 2\r\n" * 8 + b"list-tubes-watched\r\n")
        cluster.settle()
    assert 60000 < len(client.arrived) <= 2 * WINDOW
    found = b"FOUND 2 60000\r\n" + b"j" * 60000 + b"\r\n"
    assert client.read() == (found * 8 + b"OK 14\r\n---\n- default\n\r\n") * 3


def test_thousands_of_commands_without_waiting_are_answered_in_their_order():
    cluster = RoutedCluster(3, room=1000)
    client = cluster.connect()
    tubes = [tube(shard, 3) for shard in range(3)]
    given_ids = [0, 0, 0]
    replies = []
    sent = []
    for number in range(6000):
        shard = number // 100 % 3
        if number % 100 == 0:
            sent.append(b"use %b\r\n" % tubes[shard])
            replies.append(b"USING %b\r\n" % tubes[shard])
        given_ids[shard] += 1
        sent.append(b"put 0 0 60 5\r\nhello\r\n")
        replies.append(b"INSERTED %d\r\n" % (given_ids[shard] * 3 + shard))
    assert client.send(b"".join(sent)) == b"".join(replies)


def test_commands_without_an_answer_are_bounded():
    cluster = RoutedCluster(room=1 << 30)
    client = cluster.connect()
    place = client.place(0)
    place.credit = 1 << 30
    body = b"x" * 10_000
    command = b"put 0 0 60 10000\r\n%b\r\n" % body
    for _ in range(300):
        client.give(command)
    branch = client.router.branches[0]
    assert KEPT_LIMIT <= branch.kept_size <= KEPT_LIMIT + len(command)
    assert client.router.input_size >= len(command) * 150
    assert client.read().count(b"INSERTED ") == 300
    assert branch.kept_size == 0


# Leaders that misbehave


@pytest.mark.parametrize(
    "reply",
    [b"NOT_FOUND\r\nNOT_FOUND\r\n", b"x" * 2000, b"OK so\r\n", b"NOT_FOUND\r\nhalf", b"RESERVED x 1\r\na\r\n"],
)
def test_a_client_whose_leader_gives_other_replies_than_it_should_is_disconnected(reply):
    cluster = RoutedCluster()
    client = cluster.connect()
    client.give(b"peek 1\r\n")
    client.router.branches[0].on_data(reply)
    assert client.closed


def test_a_leader_that_answers_a_put_before_its_body_is_not_believed():
    cluster = RoutedCluster()
    client = cluster.connect()
    client.give(b"put 0 0 1 100\r\n")
    client.router.branches[0].on_data(b"INTERNAL_ERROR\r\n")
    assert client.closed


@pytest.mark.parametrize("at_once", [True, False])
def test_a_client_that_a_leader_disconnects_is_disconnected(at_once):
    cluster = RoutedCluster()
    client = cluster.connect()
    place = client.place(0)
    place.end()
    client.router.branches[0].on_closed(at_once)
    assert client.closed
    assert client.router.aborted is at_once


@pytest.mark.parametrize("shards", [1, 2])
def test_a_cancel_reserve_with_which_nothing_is_called_off_is_counted(shards):
    client = RoutedCluster(shards).connect()
    told = client.send(b"cancel-reserve\r\nlist-tube-used\r\ncancel-reserve\r\nstats\r\n")
    assert b"\ncmd-cancel-reserve: 2\n" in told


# Batches


def held(client):
    """The ids of the jobs that its branches have noted."""
    return {job_id for branch in client.router.branches.values() for job_id in branch.holdings}


def test_a_batch_of_several_shards_is_divided_and_counted_together():
    cluster = RoutedCluster(2)
    client = cluster.connect()
    ids = []
    for shard in (0, 1):
        client.send(b"use %b\r\nwatch %b\r\n" % (tube(shard, 2), tube(shard, 2)))
        _, first, last = client.send(b"put-batch 0 0 60 12\r\n1\r\na\r\n1\r\nb\r\n\r\n").split()[1:]
        ids += [first, last]
    assert [int(each) % 2 for each in ids] == [0, 0, 1, 1]
    assert client.send(b"reserve-batch 4 0\r\nreserve-batch 4 0\r\n").count(b"RESERVED ") == 4
    assert held(client) == set(map(int, ids))
    assert client.send(b"touch-batch %b 77\r\n" % b" ".join(ids)) == b"TOUCHED_BATCH 4 1\r\n"
    assert client.send(b"touch-all\r\n") == b"TOUCHED_ALL 4\r\n"
    assert client.send(b"release-batch 0 0 %b %b\r\n" % (ids[0], ids[3])) == b"RELEASED_BATCH 2 0\r\n"
    assert held(client) == set(map(int, ids[1:3]))
    assert client.send(b"delete-batch %b %b\r\n" % (ids[0], ids[2])) == b"DELETED_BATCH 2 0\r\n"
    assert client.send(b"delete-batch %b\r\n" % b" ".join(ids)) == b"DELETED_BATCH 2 2\r\n"
    assert not held(client)
    assert client.send(b"touch-all\r\n") == b"TOUCHED_ALL 0\r\n"


@pytest.mark.parametrize(
    ("line", "is_held"),
    [
        (b"delete 1", False),
        (b"delete  01", False),
        (b"release 1 0 0", False),
        (b"bury 1 0", False),
        (b"delete-batch 1 7", False),
        (b"touch 1", True),
        (b"delete 7", True),
        (b"delete 1x", True),
        (b"peek 1", True),
    ],
)
def test_it_is_noted_which_reservations_have_ended(line, is_held):
    client = RoutedCluster(1).connect()
    client.send(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
    client.send(line + b"\r\n")
    assert held(client) == ({1} if is_held else set())


@pytest.mark.parametrize("shards", [1, 2])
def test_a_client_is_disconnected_if_a_part_of_its_batch_is_lost(shards):
    cluster = RoutedCluster(shards)
    client = cluster.connect()
    client.give(b"delete-batch 2 3\r\n")
    cluster.lose(0)
    assert client.closed


# What operations ask


def test_what_a_client_had_reserved_at_a_shard_is_gone_with_its_leader():
    cluster = RoutedCluster(2)
    client = cluster.connect(used=tube(0, 2).decode(), watched=[tube(0, 2).decode()])
    client.send(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
    assert client.router.branches[0].holdings == {2}
    cluster.lose(0, comes_back=True)
    assert client.router.branches[0].holdings == set()
    assert client.send(b"delete 2\r\nreserve\r\n") == b"DELETED\r\n"


def asked(cluster, line=b"peek 1", repeatable=True):
    client = cluster.connect()
    replies = []
    client.router.branch(1).ask(line, lambda _, reply: replies.append(reply), 0, repeatable)
    return client, replies


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_repeatable_ask_goes_to_the_next_leader_and_another_is_lost(is_clean):
    cluster = RoutedCluster(2)
    client, replies = asked(cluster)
    lost = []
    client.router.branch(1).ask(b"peek 3", lambda _, reply: lost.append(reply), repeatable=False)
    cluster.lose(1, is_clean)
    client.router.branch(1).ask(b"peek 5", lambda _, reply: replies.append(reply))
    assert replies == []
    assert lost == [b""]
    assert not client.closed
    cluster.lead(1)
    cluster.settle()
    assert replies == [b"NOT_FOUND\r\n"] * 2


def test_part_of_a_reply_to_an_ask_is_forgotten_with_the_place():
    cluster = RoutedCluster(2, cut=lambda data: pieces(data, [5]))
    client, replies = asked(cluster)
    cluster.settle(most=3)
    cluster.lose(1, comes_back=True)
    cluster.settle()
    assert replies == [b"NOT_FOUND\r\n"]
    assert not client.closed


def test_a_sink_may_ask_more_and_no_command_of_the_client_goes_there_before_the_last_reply():
    cluster = RoutedCluster(2)
    client, replies = asked(cluster)
    branch = client.router.branch(1)
    branch.ask(b"peek 3", lambda *_: branch.ask(b"peek 5", lambda _, reply: replies.append(reply)))
    client.give(b"peek 7\r\n")
    place = client.place(1)
    cluster.settle(most=2)
    assert b"peek 7" not in place.received + b"".join(place.there)
    assert client.read() == b"NOT_FOUND\r\n"
    assert place.received == b"peek 1\r\npeek 3\r\npeek 5\r\npeek 7\r\n"
    assert replies == [b"NOT_FOUND\r\n"] * 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_batch_over_two_shards_goes_to_the_next_leader_if_the_one_before_has_left_cleanly(is_clean):
    cluster = RoutedCluster(2)
    client = cluster.connect()
    client.give(b"delete-batch 2 3\r\n")
    cluster.lose(1, is_clean)
    assert client.closed is not is_clean
    cluster.lead(1)
    cluster.settle()
    assert client.arrived == (b"DELETED_BATCH 0 2\r\n" if is_clean else b"")
