"""Whatever one node sends another over a link: nothing fails, and nothing is left of it in the end."""

import asyncio
import socket

import pytest
from checking import check_broker
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds import Rounds
from sharded import ShardedNode
from unfailing import Plug, failing_in_nothing

from beanstalk_server.access.rights import User
from beanstalk_server.cluster.engine.interface import Lease
from beanstalk_server.cluster.links import LinkListener
from beanstalk_server.link.link import (
    CLOSE,
    CREDIT,
    DATA,
    END,
    GOODBYE,
    HANGUP,
    HEADER,
    HELLO,
    NONCE_BYTES,
    NOTE,
    OPEN,
    OPEN_PART,
    PING,
    PROOF,
    REST,
    STOP,
    USER,
    WELCOME,
    Channel,
    Link,
)
from beanstalk_server.link.opening import Opening
from beanstalk_server.server.link_end import LinkEnd

ANN = User("ann", produce="*", consume=["a", "default"], inspect="*")


def frame(kind, number=0, payload=b""):
    return HEADER.pack(kind, number, len(payload)) + payload


def pieces(data, cuts):
    ends = sorted(cut for cut in cuts if cut < len(data))
    return [data[start:end] for start, end in zip([0, *ends], [*ends, None], strict=True)]


def open_end(listener):
    """The leader's end of a link that is open."""
    end = listener.make_end()
    end.connection_made(Plug())
    standby = Link(dials=True, shard=3, secret="a secret", epoch=7, nonce=bytes(NONCE_BYTES), on_output=lambda: None)
    while said := standby.take_output():
        end.link.receive(said)
        standby.receive(end.link.take_output())
    assert listener.links
    return end


# From a standby

openings = st.builds(
    Opening,
    st.just("a client"),
    st.sampled_from([None, "ann", "bob"]),
    st.sampled_from(["default", "a", "", "-x", "two words"]),
    st.lists(st.sampled_from(["default", "a", "b", "-"]), max_size=3),
    st.booleans(),
).map(Opening.encode)
commands = st.sampled_from(
    [
        b"put 0 0 60 1\r\nx\r\n",
        b"put 0 0 60 5\r\nhal",
        b"reserve\r\n",
        b"await 0 0\r\n",
        b"await -1 5\r\n",
        b"probe\r\n",
        b"probe reserve\r\n",
        b"unreserve 1\r\n",
        b"unuse\r\n",
        b"unwatch default\r\n",
        b"watch a\r\n",
        b"use b\r\n",
        b"kick 5\r\nstats\r\nlist-tubes\r\n",
        b"quit\r\n",
        b"nonsense\r\n",
    ]
)
from_standby = st.tuples(
    st.sampled_from(
        [OPEN, OPEN, DATA, DATA, DATA, CREDIT, HANGUP, END, USER, CLOSE, OPEN_PART, STOP, NOTE, PING, GOODBYE, REST, 99]
    ),
    st.integers(0, 3),
    openings | commands | st.binary(max_size=40) | st.sampled_from([b"", b"ann", b"bob", b"\0", b"\0\0\1\0"]),
)


@given(st.lists(from_standby, max_size=30), st.binary(max_size=20), st.lists(st.integers(0, 600), max_size=6))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_standby_sends_the_leader_fails_in_nothing(sent, rest, cuts):
    async def main():
        loop = asyncio.get_running_loop()
        failures = []
        loop.set_exception_handler(lambda _, context: failures.append(context))
        rounds = Rounds(loop=loop)
        listener = LinkListener("leader", 65535)
        lease = Lease(7, 1, "leader", "127.0.0.1:1", "a secret")
        listener.lead(3, lease, rounds.connections, lambda name: ANN if name == "ann" else None)
        end = open_end(listener)
        for piece in pieces(b"".join(frame(*each) for each in sent) + rest, cuts):
            end.data_received(piece)
            await asyncio.sleep(0)
        end.close("the test is over")
        end.connection_lost(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not failures
        assert not listener.links
        assert not rounds.connections.open
        assert not rounds.broker.connections
        check_broker(rounds.broker)

    with failing_in_nothing():
        asyncio.run(main())


def test_a_link_that_fails_just_before_the_leader_hands_over_is_forgotten():
    async def main():
        rounds = Rounds(loop=asyncio.get_running_loop())
        listener = LinkListener("leader", 65535)
        listener.lead(3, Lease(7, 1, "leader", "127.0.0.1:1", "a secret"), rounds.connections, lambda _: None)
        end = open_end(listener)
        end.data_received(frame(99))
        listener.stand_by(3, "it hands over", is_clean=True)
        end.connection_lost(None)
        await listener.stop()

    with failing_in_nothing():
        asyncio.run(main())


greetings = st.tuples(
    st.sampled_from([HELLO, HELLO, PROOF, OPEN, DATA, PING, GOODBYE, STOP]),
    st.integers(0, 1),
    st.binary(max_size=60)
    | st.builds(
        lambda version, shard, epoch, name: (
            b"\0%c\0%c" % (version, shard) + epoch.to_bytes(8, "big") + bytes(32) + name
        ),
        st.integers(1, 3),
        st.integers(2, 4),
        st.integers(6, 8),
        st.sampled_from([b"", b"node", b"\n", b"\xff"]),
    ),
)


@given(st.lists(greetings, max_size=4), st.lists(st.integers(0, 200), max_size=4))
def test_nobody_is_let_in_who_does_not_know_the_secret(sent, cuts):
    async def main():
        listener = LinkListener("leader", 65535)
        listener.lead(3, Lease(7, 1, "leader", "127.0.0.1:1", "a secret"), None, None)
        end = listener.make_end()
        end.connection_made(Plug())
        for piece in pieces(b"".join(frame(*each) for each in sent), cuts):
            end.data_received(piece)
        assert not end.link.is_open
        end.close("the test is over")
        end.connection_lost(None)

    with failing_in_nothing():
        asyncio.run(main())


# From a leader

replies = st.sampled_from(
    [
        b"INSERTED 1\r\n",
        b"RESERVED 1 5\r\nhello\r\n",
        b"RESERVED 1 5\r\nhel",
        b"RESERVED_BATCH 1\r\n1 5\r\nhello\r\n",
        b"OK 4\r\n---\n\r\n",
        b"WATCHING 2\r\n",
        b"USING a\r\n",
        b"BEST 0 1\r\n",
        b"NOTHING\r\n",
        b"DEADLINE_SOON\r\n",
        b"TIMED_OUT\r\n",
        b"UNRESERVED\r\n",
        b"NOT_FOUND\r\n",
        b"OK -1\r\n",
        b"RESERVED x y\r\n",
        b"\r\n",
        b"no such reply\r\n",
        b"x" * 300,
    ]
)
from_leader = st.tuples(
    st.sampled_from([DATA] * 8 + [REST, CREDIT, CLOSE, PING, NOTE, WELCOME, STOP, GOODBYE, 99]),
    st.integers(1, 4),
    replies | st.binary(max_size=30) | st.sampled_from([b"\0", b"\1", b"\1it hands over", b"\0\0\1\0"]),
)
asked = st.tuples(
    st.integers(0, 2),
    st.sampled_from(
        [
            b"put 0 0 60 1\r\nx\r\n",
            b"reserve\r\n",
            b"reserve-with-timeout 0\r\n",
            b"reserve-batch 5 0\r\n",
            b"use HERE\r\n",
            b"use THERE\r\n",
            b"watch HERE\r\n",
            b"watch THERE\r\n",
            b"ignore THERE\r\n",
            b"delete 2\r\n",
            b"delete 3\r\n",
            b"stats\r\n",
            b"list-tubes\r\n",
            b"quit\r\n",
        ]
    ),
)


@given(st.lists(from_leader | asked, max_size=40))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_whatever_a_leader_sends_a_standby_fails_in_nothing(steps):
    node = ShardedNode(2, leads=(0,))
    loop = node.loop
    nonce = bytes(NONCE_BYTES)
    end = LinkEnd(loop, lambda *_: None, name="leader", on_lost=lambda link: node.clients.lose(1, link))
    end.begin(Link(dials=True, shard=1, secret="s", epoch=1, nonce=nonce, on_output=end.output))
    leader = Link(dials=False, find=lambda _: ("s", 1), nonce=nonce, on_output=lambda: None, accept=lambda _: Channel())
    while said := end.link.take_output():
        leader.receive(said)
        end.link.receive(leader.take_output())
    end.connection_made(Plug())
    node.clients.follow(1, end.link)
    callers = [node.connect() for _ in range(3)]
    with failing_in_nothing():
        for step in steps:
            if len(step) == 3:
                end.data_received(frame(*step))
            else:
                number, command = step
                caller = callers[number]
                if caller.socket.reading and not caller.socket.is_closing():
                    command = command.replace(b"HERE", node.tube(0)).replace(b"THERE", node.tube(1))
                    caller.protocol.data_received(command)
            loop.settle()
        end.close("the test is over")
        loop.settle()
        for caller in callers:
            if not caller.socket.is_closing():
                caller.disconnect()
        loop.settle()
    assert not node.clients.open
    assert not node.shards[0].broker.connections
    check_broker(node.shards[0].broker)


# The sockets


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="other systems have other options")
def test_both_ends_of_a_link_have_keepalive(cluster):
    leader, standby = cluster.two(keepalive="7:5:3")
    dialled = standby.server.shards[0].link._end
    (accepted,) = leader.call(lambda: list(leader.server.links._ends))
    for node, end in ((standby, dialled), (leader, accepted)):
        sock = end.transport.get_extra_info("socket")
        assert node.call(sock.getsockopt, socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for name, value in (("KEEPIDLE", 7), ("KEEPINTVL", 5), ("KEEPCNT", 3), ("USER_TIMEOUT", 22_000)):
            assert node.call(sock.getsockopt, socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}")) == value
