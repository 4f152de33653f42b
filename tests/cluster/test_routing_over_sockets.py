"""Clients of a standby, over sockets: they are passed on, and stay when the leader changes."""

import asyncio
import contextlib
import gc
import socket
import threading
from collections import deque

import pytest
from standing_by import PassingServer

from beanstalk_server import Config
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.cluster import links
from beanstalk_server.link.link import HEADER, PING, WINDOW
from beanstalk_server.server import link_end
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness.caller import Caller
from harness.in_thread import ServerThread
from harness.waiting import at_rest_async, eventually


class Thread(ServerThread):
    """A leader and a standby in a thread."""

    def __init__(self, *arguments):
        self.callers = []
        super().__init__(*arguments)

    def connect(self):
        return self.caller(self.address)

    def caller(self, address):
        self.callers.append(Caller(address))
        return self.callers[-1]

    @property
    def leader(self):
        return self.server.leader

    def passed(self):
        """How many clients the leader has that were passed on to it."""
        return self.call(lambda: len(self.leader.connections.open))

    def is_linked(self):
        return self.call(lambda: self.server.link.is_open)

    def follow(self, lease):
        self.call(self.server.link.follow, lease)

    def stand_by(self, why="it hands over"):
        """Let the leader lead no more."""
        self.call(self.leader.links.stand_by, 0, why)
        eventually(lambda: not self.is_linked(), "the link is closed")

    def lead_again(self):
        """Let it lead once more, in a new epoch."""
        self.leader.lease = self.leader.lease._replace(epoch=self.leader.lease.epoch + 1)
        self.call(self.leader.lead)
        self.follow(self.leader.lease)
        eventually(self.is_linked, "there is a link")

    def take_over(self):
        """Let the standby lead, with jobs of its own."""
        self.call(self.server.link.close)
        self.call(self.server.clients.lead, 0, self.server.connections)

    def step_down(self, is_clean=False):
        """Let it stand by again; return how many clients had to be disconnected."""
        return self.wait_for(self.server.clients.stop_leading(0, is_clean))

    def put(self, body=b"x", tube=b"default"):
        """Put a job at the leader itself."""
        with_leader = self.caller(self.leader.address)
        assert with_leader.ask(b"use %b\r\n" % tube) == b"USING %b\r\n" % tube
        assert with_leader.ask(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body)).startswith(b"INSERTED")


@pytest.fixture
def pair(loop_factory):
    started = []

    def start(**settings):
        port = {} if "listeners" in settings else {"port": 0}
        server = Thread(Config(**(port | settings)), loop_factory, PassingServer)
        started.append(server)
        eventually(server.is_linked, "there is a link")
        return server

    yield start
    for server in started:
        for caller in server.callers:
            caller.close()
        server.stop()


# Users


def of_token(token, **rights):
    return {"token_sha256": (hash_of_token(token),), **rights}


ANN = UserConfig(name="ann", **of_token("a" * 40, produce=("*",), consume=("*",)))
BOB = UserConfig(name="bob", **of_token("b" * 40, produce=("bob-*",)))


def test_a_client_is_asked_who_it_is_by_the_standby_and_has_its_rights_at_the_leader(pair):
    server = pair(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(ANN, BOB))
    oldest = server.connect()
    assert oldest.ask(b"auth nobody\r\n") == b"UNAUTHORIZED\r\n"
    assert server.passed() == 0
    caller = server.connect()
    assert caller.ask(b"auth %b\r\n" % (b"b" * 40)) == b"AUTHENTICATED\r\n"
    assert caller.ask(b"put 0 0 60 1\r\nx\r\n") == b"FORBIDDEN\r\n"
    assert caller.ask(b"use bob-1\r\n") == b"USING bob-1\r\n"
    assert caller.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    caller.send(b"auth %b\r\nput 0 0 60 1\r\nx\r\nauth nobody\r\nstats\r\n" % (b"a" * 40))
    assert caller.rest() == b"AUTHENTICATED\r\nINSERTED 2\r\nUNAUTHORIZED\r\n"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_user_whom_the_leader_does_not_know_is_disconnected(pair, is_first, caplog):
    server = pair(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(ANN, BOB))
    caller = server.connect()
    if not is_first:
        assert caller.ask(b"auth %b\r\n" % (b"b" * 40)) == b"AUTHENTICATED\r\n"
        assert caller.ask(b"use bob-1\r\n") == b"USING bob-1\r\n"
    server.leader.users = None
    caller.send(b"auth %b\r\n" % (b"a" * 40))
    assert caller.rest() in (b"AUTHENTICATED\r\n", b"")
    assert "this node has no user 'ann'; disconnected" in caplog.text


# When the leader goes


def test_a_client_that_comes_while_the_leader_ends_is_not_refused(pair):
    server = pair()
    connections = server.leader.connections
    server.call(setattr, connections, "closing", True)  # as when the leader makes its last commit
    caller = server.connect()
    caller.send(b"list-tube-used\r\n")
    assert caller.line() == b"USING default\r\n"
    assert server.passed() == 1
    server.call(setattr, connections, "closing", False)
    server.stand_by()
    server.lead_again()
    assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"


def test_a_client_learns_late_that_its_link_broke_and_keeps_the_link_that_it_has_by_then(pair):
    server = pair()
    callers = [server.connect() for _ in range(3)]
    for caller in callers:
        caller.send(b"use mail\r\nreserve\r\n")
        assert caller.line() == b"USING mail\r\n"

    def cut():
        end = server.server.link._end
        channels = end.link.take_channels()
        end.close("it is cut")
        return end, channels

    end, channels = server.call(cut)
    eventually(lambda: server.server.link._end is not end and server.is_linked(), "there is another link")
    eventually(lambda: all(channel.branch is None for channel in channels), "all have been passed on again")
    server.call(end._lose, deque(channels))
    for caller in callers:
        server.put()
        assert caller.line().startswith(b"RESERVED")
        assert caller.line() == b"x\r\n"
        assert caller.ask(b"list-tube-used\r\n") == b"USING mail\r\n"


def test_what_a_client_has_not_read_of_one_leader_is_no_credit_for_the_next_one(pair):
    server = pair()
    size = 1008  # with its first line, a reply is 1 KiB, so that no half of one is left when a window is full
    server.put(b"x" * size)
    caller, other = server.connect(), server.connect()
    caller.send(b"peek 1\r\n" * 12000)
    eventually(
        lambda: server.call(
            lambda: WINDOW in [client.router.branches[0]._owed for client in server.server.clients.open]
        ),
        "it has been sent all that it may be",
    )
    before = server.server.link._end
    server.call(before.close, "it is cut")
    eventually(lambda: server.server.link._end is not before and server.is_linked(), "there is another link")
    assert other.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    end = server.server.link._end
    for _ in range(12000):
        assert caller.line() == b"FOUND 1 %d\r\n" % size
        caller.read(size + 2)
    assert other.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    assert server.server.link._end is end


def test_nothing_is_lost_when_a_link_does_a_frame_in_each_round(pair, monkeypatch):
    monkeypatch.setattr(link_end, "FRAMES", 1)
    server = pair()
    callers = [server.connect() for _ in range(20)]
    for caller in callers:
        caller.send(b"use mail\r\n" * 100)
    for caller in callers:
        for _ in range(100):
            assert caller.line() == b"USING mail\r\n"


def test_what_a_link_carries_is_done_in_many_rounds_so_that_others_have_a_turn(pair):
    server = pair()
    end = next(iter(server.leader.links._ends))

    async def receive():
        end.data_received(HEADER.pack(PING, 0, 0) * (5 * link_end.FRAMES))
        count = 1
        while not end.transport.is_reading():
            count += 1
            await asyncio.sleep(0)
        return count

    assert server.wait_for(receive()) >= 5


def test_a_client_that_hangs_up_while_nobody_leads_is_gone_at_once_if_it_waits_for_nothing(pair):
    server = pair()
    idle, ended, waiting = server.connect(), server.connect(), server.connect()
    for caller in (idle, ended, waiting):
        assert caller.ask(b"use a\r\n") == b"USING a\r\n"
    server.stand_by()
    idle.socket.shutdown(socket.SHUT_WR)
    assert idle.rest() == b""
    waiting.send(b"list-tube-used\r\n")
    waiting.socket.shutdown(socket.SHUT_WR)
    eventually(lambda: server.call(lambda: len(server.server.clients.open)) == 2, "one is gone")
    server.lead_again()
    assert waiting.rest() == b"USING a\r\n"
    assert ended.ask(b"list-tube-used\r\n") == b"USING a\r\n"


def test_a_leader_whose_process_is_gone_is_noticed(pair):
    server = pair()
    server.call(lambda: server.leader.links._server.close())
    server.call(lambda: [end.transport.abort() for end in server.leader.links._ends])
    eventually(lambda: server.server.gone, "the address refuses")
    assert server.server.gone[0] == (7, "leader", True)


def test_whoever_refuses_at_an_address_where_the_leader_was_never_reached_may_be_somebody_else(pair):
    server = pair()
    server.follow(server.leader.lease._replace(epoch=8, address="127.0.0.1:1"))
    eventually(lambda: server.server.gone, "the address refuses")
    assert server.server.gone[0] == (8, "leader", False)


def test_a_leader_that_does_not_answer_is_tried_again(pair, caplog):
    server = pair()
    server.stand_by()
    server.call(server.leader.links.lead, 0, server.leader.lease, server.leader.connections, server.leader.find_user)
    eventually(server.is_linked, "there is a link again")
    server.follow(server.leader.lease._replace(epoch=6))
    eventually(lambda: "it leads in epoch 7, not 6" in caplog.text, "the epochs differ")
    server.follow(server.leader.lease._replace(secret="guessed"))
    eventually(lambda: "wrong lease secret" in caplog.text, "the secrets differ")
    server.follow(server.leader.lease._replace(epoch=8, address="nowhere"))
    eventually(lambda: "invalid literal" in caplog.text or "nowhere" in caplog.text, "there is no such address")
    server.follow(server.leader.lease._replace(node=""))
    assert not server.is_linked()
    server.follow(server.leader.lease)
    eventually(server.is_linked, "there is a link again")


def test_a_link_that_is_silent_is_closed(pair, monkeypatch, caplog):
    server = pair()
    monkeypatch.setattr(link_end, "TICK", 0.01)
    with socket.create_connection(("127.0.0.1", int(server.leader.lease.address.split(":")[1]))) as sock:
        assert sock.recv(100) == b""
    assert "not authenticated in time; closed" in caplog.text


def test_of_many_unauthenticated_the_first_are_logged_and_the_others_counted(pair, caplog):
    server = pair()
    address = ("127.0.0.1", int(server.leader.lease.address.split(":")[1]))
    for _ in range(links.COMPLAINTS + 3):
        with socket.create_connection(address) as sock:
            sock.sendall(b"stats\r\nstats\r\n")
            assert sock.recv(100) == b""
    server.wait_for(server.leader.links.stop())
    said = [each for each in caplog.messages if "closed" in each]
    assert [each.endswith("; closed") for each in said[:-1]] == [True] * links.COMPLAINTS
    assert said[-1] == "3 more links were closed within 60 s"


def test_there_is_a_most_of_connections_that_have_proved_nothing(pair, monkeypatch):
    server = pair()
    monkeypatch.setattr(links, "MAX_UNAUTHENTICATED", 1)  # and one for the shard
    port = int(server.leader.lease.address.split(":")[1])
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(3)]
        with contextlib.suppress(ConnectionResetError):
            assert socks[0].recv(100) == b""
        assert server.connect().ask(b"list-tube-used\r\n") == b"USING default\r\n"
        assert server.is_linked()


# When the standby becomes the leader, and when it is one no more


def test_a_client_that_was_not_read_from_moves_with_all_that_it_has_sent(pair):
    server = pair()
    caller = server.connect()
    server.stand_by()
    sender = threading.Thread(target=caller.send, args=(b"list-tube-used\r\n" * 100_000,))
    sender.start()
    clients = server.server.clients.open
    server.wait_for(at_rest_async(lambda: [client.router.input_size for client in clients], "no more is read"))
    server.take_over()
    assert caller.read(100_000 * 15) == b"USING default\r\n" * 100_000
    sender.join()


KEPT = "RoutedConnection Router Branch LinkPlace LinkTransport Connection Session LinkEnd Link Framer Task".split()


def test_nothing_is_left_of_clients_and_links_that_are_gone_without_the_cycle_collector(pair):
    def left():
        names = [type(found).__name__ for found in gc.get_objects()]
        return {name: names.count(name) for name in KEPT}

    server = pair()

    def come_and_go():
        staying = server.connect()
        for sent in (
            b"put 0 0 60 1\r\nx\r\nreserve\r\nquit\r\n",
            b"reserve\r\n",
            b"watch a\r\nignore default\r\nreserve\r\n",
        ):
            caller = server.connect()
            caller.send(sent)
            if b"quit" in sent:
                caller.rest()
            caller.close()
        assert staying.ask(b"use a\r\n") == b"USING a\r\n"
        server.stand_by()
        server.lead_again()
        assert staying.ask(b"use b\r\n") == b"USING b\r\n"
        server.take_over()
        assert staying.ask(b"use c\r\n") == b"USING c\r\n"
        server.step_down()
        server.follow(server.leader.lease._replace(address="127.0.0.1:1"))
        eventually(lambda: server.server.gone, "the address refuses")
        server.follow(server.leader.lease)
        eventually(server.is_linked, "there is a link")
        assert staying.ask(b"use d\r\n") == b"USING d\r\n"
        staying.close()
        eventually(lambda: server.passed() == 0 and not server.server.clients.open, "no client is connected")
        server.callers.clear()
        server.server.gone.clear()

    come_and_go()
    gc.collect()
    before = left()
    gc.disable()
    try:
        for _ in range(3):
            come_and_go()
        eventually(lambda: left() == before, f"nothing is left: {before}, and not {left()}")
    finally:
        gc.enable()
