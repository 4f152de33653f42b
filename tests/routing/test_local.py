"""A shard that is led here: what its session does for a routed client is what it does for a client of its own."""

import re
from zlib import crc32

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from sharded import ShardedNode
from virtual import World

from beanstalk_server.access.accounts import Accounts
from beanstalk_server.queue.journal import ALL, DELETIONS
from beanstalk_server.server.connection import UNCOMMITTED_LIMIT
from beanstalk_server.settings.sections import UserConfig

SHARDS = 4
HERE = crc32(b"default") % SHARDS
NAMES = [b"tube-%d" % number for number in range(40)]
OURS = [name for name in NAMES if crc32(name) % SHARDS == HERE][:3]
ELSEWHERE = next(name for name in NAMES if crc32(name) % SHARDS != HERE)
PUT = b"put 0 0 60 1\r\nx\r\n"

BY_NAME = [
    b"use %b",
    b"watch %b",
    b"ignore %b",
    b"pause-tube %b 1",
    b"pause-tube%b 1",
    b"stats-tube %b",
    b"clear-tube %b",
    b"redrive %b 5",
    b"move-jobs %b ready default 5",
    b"list-jobs %b ready 0 1",
]
BY_ID = [
    b"peek %d",
    b"reserve-job %d",
    b"delete %d",
    b"delete   %d",
    b"release %d 0 0",
    b"bury %d 0",
    b"kick-job %d",
    b"touch %d",
    b"stats-job %d",
    b"cancel %d",
    b"reschedule %d 5",
]
OTHERS = [
    b"ignore %b" % ELSEWHERE,
    b"peek-ready",
    b"peek-delayed",
    b"peek-buried",
    b"peek-keyed k",
    b"cancel-keyed k",
    b"reschedule-keyed k 0",
    b"reserve-with-timeout 0",
    b"reserve-batch 9 0",
    b"reserve-mode weighted",
    b"touch-all",
    b"kick 9",
    b"cancel-reserve",
    b"list-tube-used",
    b"list-tubes-watched",
    b"put 0 0 60 1\r\nx",
    b"put 0 0 60 1\r\nxyz",
    b"put 0 0 60 65536\r\n" + b"x" * 65536,
    b"put 0 0 0 x",
    b"put-keyed k 1 0 60 1\r\nx",
    b"put-with 0 0 60 1 key=k\r\nx",
    b"put-batch 0 0 60 15\r\n1 a\r\n1 b\r\n1 c",
    b"delete-batch %d %d" % (SHARDS + HERE, 2 * SHARDS + HERE),
    b"x" * 300,
    b"nonsense",
    b"",
    b"auth x",
    b"use -x",
    b"use",
    b"delete x",
    b"list-jobs %b ready 0 0" % OURS[0],
    b"stats-tubes - 0",
    b"probe",
    b"unwatch %b" % OURS[0],
]
TIME_LEFT = re.compile(rb"time-left: \d+")
lines = st.one_of(
    st.builds(lambda line, name: line % name, st.sampled_from(BY_NAME), st.sampled_from(OURS)),
    st.builds(lambda line, number: line % (number * SHARDS + HERE), st.sampled_from(BY_ID), st.integers(1, 9)),
    st.sampled_from([*OTHERS, PUT[:-2], b"reserve-with-timeout 0"]),
)


@pytest.fixture(autouse=True)
def no_log_of_malformed_puts(monkeypatch):
    """Its timer needs an event loop."""
    monkeypatch.setattr("beanstalk_server.server.front.listeners.Listeners.note_malformed_puts", lambda *_: None)


@pytest.fixture
def node():
    return ShardedNode(SHARDS, range(SHARDS))


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(lines, max_size=30), st.data())
def test_the_replies_are_those_of_a_plain_session_wherever_the_input_is_cut(conversation, data):
    script = b"".join(line + b"\r\n" for line in conversation)
    caller = ShardedNode(SHARDS, range(SHARDS)).connect()
    twin = World(shards=SHARDS, shard=HERE).connect()
    cuts = data.draw(st.lists(st.integers(0, len(script)), max_size=5).map(sorted))
    pieces = [script[start:end] for start, end in zip([0, *cuts], [*cuts, len(script)], strict=True)]
    replies = b"".join(caller.send(piece) for piece in pieces if piece and not caller.socket.closed)
    # Each command of a turn is done a nanosecond after the one before, and these may be in other turns than those.
    assert TIME_LEFT.sub(b"", replies) == TIME_LEFT.sub(b"", twin.send(script))
    assert caller.socket.closed == twin.session.closed
    caller.disconnect()


def test_a_cancel_reserve_with_which_nothing_is_called_off_is_counted(node):
    told = node.connect().send(b"cancel-reserve\r\nlist-tube-used\r\ncancel-reserve\r\nstats\r\n")
    assert b"\ncmd-cancel-reserve: 2\n" in told


def test_a_reserve_that_waits_is_called_off_and_what_follows_is_done(node):
    caller = node.connect()
    assert caller.send(b"reserve\r\n") == b""
    assert caller.send(b"cancel-res") == b""
    assert caller.send(b"erve\r\nlist-tube-used\r\n") == b"CANCELLED\r\nUSING default\r\n"


def test_what_the_journal_of_one_shard_does_not_admit_does_not_hold_up_another_shard(node):
    caller = node.connect()
    turns, broker = node.shards[HERE].turns, node.shards[HERE].broker
    broker.set_admission(DELETIONS)
    turns.on_admission(DELETIONS)
    kick = b"kick 1\r\n"
    assert caller.send(b"peek-ready\r\nuse %b\r\n" % ELSEWHERE + kick) == (
        b"NOT_FOUND\r\nUSING %b\r\nKICKED 0\r\n" % ELSEWHERE
    )
    assert caller.send(b"use default\r\n" + kick + b"peek-ready\r\n") == b"USING default\r\n"
    broker.set_admission(ALL)
    turns.on_admission(ALL)
    node.loop.settle()
    assert caller.read() == b"KICKED 0\r\nNOT_FOUND\r\n"


def test_commands_wait_while_many_of_their_replies_wait_for_a_commit(node):
    caller = node.connect()
    shard = node.shards[HERE]
    shard.journal.is_slow = True
    count = 10
    for _ in range(count):
        caller.protocol.data_received(b"put 0 0 60 60000\r\n" + b"x" * 60_000 + b"\r\n")
    node.loop.settle()
    assert UNCOMMITTED_LIMIT // 60_000 <= shard.broker.total_jobs < count
    assert not caller.socket.reading
    replies = b""
    for _ in range(count):
        shard.journal.end_commit()
        node.loop.settle()
        replies += caller.read()
    assert replies.count(b"INSERTED") == count == shard.broker.total_jobs
    assert caller.socket.reading


def test_a_client_with_many_commands_does_not_keep_another_one_waiting(node):
    busy, other = node.connect(), node.connect()
    busy.send(b"touch 1\r\n" * 3000, settle=False)
    replies = other.send(b"peek-ready\r\n", settle=False)
    for _ in range(5):
        node.loop.go_round()
        replies += other.read()
    assert replies == b"NOT_FOUND\r\n"
    assert busy.read().count(b"NOT_FOUND\r\n") < 3000
    node.loop.settle()


def test_a_put_whose_body_has_half_come_goes_on_at_the_next_leader(node):
    caller = node.connect()
    assert caller.send(PUT + b"put 0 0 60 5\r\nab") == b"INSERTED %d\r\n" % (SHARDS + HERE)
    assert node.stop_leading(HERE) == 0
    assert caller.send(b"cd") == b""
    node.lead(HERE)
    assert caller.send(b"e\r\npeek-ready\r\n").startswith(b"INSERTED")
    assert node.shards[HERE].broker.total_jobs == 2


def test_what_is_refused_and_has_half_come_cannot_go_on_at_the_next_leader(node):
    caller = node.connect()
    assert caller.send(b"put 0 0 60 70000\r\nab") == b""
    assert node.stop_leading(HERE) == 1
    assert caller.socket.is_closing()


def test_a_client_that_shuts_down_its_sending_side_is_closed_when_all_is_answered(node):
    caller = node.connect()
    assert caller.send(PUT) == b"INSERTED %d\r\n" % (SHARDS + HERE)
    caller.shut_down()
    assert caller.socket.closed


@pytest.mark.parametrize("is_led_here", [False, True])
def test_a_line_that_is_too_long_behind_a_reserve_that_waits_is_answered(is_led_here):
    node = ShardedNode(2)
    for shard in (0, 1):
        (node.lead if is_led_here else node.link)(shard)
    caller = node.connect()
    caller.send(b"use default\r\n")
    assert caller.send(b"reserve-with-timeout 1\r\n" + b"x" * 300 + b"\r\nlist-tube-used\r\n") == b""
    node.loop.sleep(2)
    assert caller.read() == b"TIMED_OUT\r\nBAD_FORMAT\r\nUSING default\r\n"


def test_a_line_that_is_too_long_is_answered_while_the_journal_admits_deletions_only():
    node = ShardedNode(2, (0, 1))
    caller = node.connect()
    caller.send(b"use default\r\n")
    shard = node.shards[node.first]
    shard.broker.set_admission(DELETIONS)
    shard.turns.on_admission(DELETIONS)
    assert caller.send(b"x" * 300 + b"\r\npeek-ready\r\n") == b"BAD_FORMAT\r\nNOT_FOUND\r\n"


@pytest.mark.parametrize("is_led_here", [False, True])
@pytest.mark.usefixtures("no_log_of_malformed_puts")
def test_a_put_whose_body_has_an_uncertain_end_is_answered_by_the_next_leader(is_led_here):
    node = ShardedNode(2)
    node.link(0)
    node.link(1)
    node.listener_policy.closes_after_put = True
    caller = node.connect()
    assert caller.send(PUT).startswith(b"INSERTED")
    caller.send(b"put 0 0 60 3\r\nabcd\ndelete 1\r\n", settle=False)
    node.unlink(node.first)
    (node.lead if is_led_here else node.link)(node.first)
    node.loop.settle()
    assert caller.read() == b"EXPECTED_CRLF\r\n"
    assert caller.socket.closed


def test_a_client_that_has_hung_up_is_closed_when_its_last_command_follows_an_operation():
    node = ShardedNode(2, (0, 1))
    first, name = node.first, node.tube(1 - node.first)
    caller = node.connect()
    other = node.shards[1 - first].turns
    other.suspend()
    caller.send(b"use %b\r\npeek %d\r\n" % (name, 2 + first))
    caller.shut_down()
    assert not caller.socket.closed
    other.resume()
    node.loop.settle()
    assert caller.read() == b"USING %b\r\nNOT_FOUND\r\n" % name
    assert caller.socket.closed


@pytest.mark.parametrize("is_led_here", [False, True])
def test_a_reserve_that_waits_is_forbidden_as_soon_as_the_right_is_withdrawn(is_led_here, monkeypatch):
    monkeypatch.setattr("beanstalk_server.server.front.listeners.Listeners.note_forbidden", lambda *_: None)
    node = ShardedNode(2)
    for shard in (0, 1):
        (node.lead if is_led_here else node.link)(shard)
    caller = None
    for consume in ("*", "nothing"):
        accounts = Accounts([UserConfig(name="ann", produce=("*",), consume=(consume,))])
        node.users = {"ann": accounts.by_name("ann")}
        for leader in node.leaders.values():
            leader.users = node.users
        node.listener_policy.user = node.users["ann"]
        if caller is None:
            caller = node.connect()
            assert caller.send(b"reserve\r\n") == b""
        else:
            node.clients.judge(accounts)
    node.loop.settle()
    assert caller.read() == b"FORBIDDEN\r\n"
