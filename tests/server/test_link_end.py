"""A leader that hands over says a clean goodbye: what it has done has been answered, the one that reads, and however
full the link is."""

import asyncio
import re

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import Rounds
from standing_by import Leader

from beanstalk_server import Config
from beanstalk_server.link.link import NONCE_BYTES, REST_LIMIT, WINDOW, Channel, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.journal import Journal
from beanstalk_server.server.connection import Connection
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.link_end import LinkEnd
from beanstalk_server.server.link_transport import LinkTransport
from harness.waiting import eventually_async

SECRET = "known to both"
MANY = 600
"""Jobs that a kick does not kick in one go."""
BODY = re.compile(rb"(?:RESERVED|FOUND) (\d+) (\d+)\r\n")


class Passed(Channel):
    """A client's channel at the standby, which notes what comes."""

    def __init__(self):
        super().__init__()
        self.data = b""
        self.end = None  # how its channel has ended
        self.reads = True
        self.kept = 0  # bytes for which there is no credit yet
        self.sent = []  # commands
        self.unsent = b""

    def on_data(self, data):
        self.data += data
        self.kept += len(data)
        if self.reads:
            self.read()

    def read(self):
        kept, self.kept = self.kept, 0
        self.consumed(kept)

    def on_room(self):
        room = self.room()
        if room and self.unsent:
            now, self.unsent = self.unsent[:room], self.unsent[room:]
            self.send(now)

    def on_close(self, *, at_once):
        self.end = "aborted" if at_once else "closed"

    def on_lost(self, *, is_clean):
        self.end = "lost, clean" if is_clean else "lost"

    def give(self, command):
        """Send a command."""
        self.sent.append(command)
        self.unsent += command
        self.on_room()

    def replies(self):
        """What has come, in replies; the last one may be a part of one."""
        found = []
        data = self.data
        while data:
            body = BODY.match(data)
            end = body.end() + int(body[2]) + 2 if body else data.index(b"\n") + 1
            if len(data) < end:
                raise AssertionError(f"half a reply: {data[:50]}")
            found.append(data[:end])
            data = data[end:]
        return found


class Pipe:
    """The transport of one end: what is written is kept until it is carried."""

    def __init__(self):
        self.written = b""
        self.gone = False

    def write(self, data):
        self.written += data

    def take(self):
        written, self.written = self.written, b""
        return written

    def is_closing(self):
        return self.gone

    def abort(self):
        self.gone = True

    def set_write_buffer_limits(self, high): ...

    pause_reading = resume_reading = lambda self: None


class Pair:
    """A leader without sockets, in rounds, and the end of a standby."""

    def __init__(self, journal=None):
        self.rounds = Rounds(journal)
        self.listener_policy = ListenerPolicy("link")
        self.listener_policy.is_link = self.listener_policy.carried = True
        loop = self.rounds.loop
        self.ended = []
        nonce = bytes(NONCE_BYTES)
        self.leader = LinkEnd(loop, lambda _, why: self.ended.append(why), name="standby")
        self.leader.begin(
            Link(
                dials=False,
                find=lambda _: (SECRET, 7),
                nonce=nonce,
                on_output=self.leader.output,
                accept=self.accept,
            )
        )
        self.lost = []
        self.standby = LinkEnd(loop, lambda *_: None, name="leader", on_lost=lambda link: self.lost.append(link))
        self.standby.begin(Link(dials=True, secret=SECRET, epoch=7, nonce=nonce, on_output=self.standby.output))
        self.pipes = {self.leader: Pipe(), self.standby: Pipe()}
        self.transports = []
        self.leader.connection_made(self.pipes[self.leader])
        self.standby.connection_made(self.pipes[self.standby])
        self.carry()

    def accept(self, _):
        connection = Connection(self.rounds.connections, self.listener_policy, None, "a client")
        self.transports.append(LinkTransport(self.rounds.loop, connection))
        return self.transports[-1]

    def connect(self):
        client = Passed()
        assert self.standby.link.open(client, b"")
        self.carry()
        return client

    def carry(self):
        """Let everything arrive, and be done."""
        while self.carry_some():
            pass

    def carry_some(self):
        """Let arrive what has been sent; return whether anything has happened."""
        found = [(self.standby, self.pipes[self.leader].take()), (self.leader, self.pipes[self.standby].take())]
        for end, data in found:
            if data:
                end.data_received(data)
        return self.rounds.loop.go_round() or any(data for _, data in found)

    def deliver(self):
        """Let only that arrive which the standby has sent."""
        self.rounds.loop.go_round()
        data = self.pipes[self.standby].take()
        if data:
            self.leader.data_received(data)

    def hand_over(self):
        """As a shard does."""
        self.rounds.turns.suspend()
        self.rounds.connections.send_replies()
        self.leader.say_goodbye("it hands over", is_clean=True)


def test_a_clean_goodbye_is_the_last_word():
    pair = Pair()
    client = pair.connect()
    client.give(b"put 0 0 60 1\r\nx\r\n")
    pair.carry()
    pair.hand_over()
    pair.carry()
    assert client.replies() == [b"INSERTED 1\r\n"]
    assert client.end == "lost, clean"
    assert [link.farewell for link in pair.lost] == ["it hands over"]
    assert pair.lost[0].is_clean
    assert not pair.rounds.connections.open


def test_another_goodbye_promises_nothing():
    pair = Pair()
    client = pair.connect()
    pair.leader.say_goodbye("it is fenced off")
    pair.carry()
    assert client.end == "lost"
    assert not pair.lost[0].is_clean


def test_replies_that_wait_for_room_come_before_the_goodbye():
    pair = Pair()
    client = pair.connect()
    client.reads = False
    body = bytes(60_000)
    client.give(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
    pair.carry()
    for _ in range(4):
        client.give(b"peek 1\r\n")
    pair.carry()
    assert len(client.data) == WINDOW
    pair.hand_over()
    pair.carry()
    assert client.replies()[1:] == [b"FOUND 1 %d\r\n%b\r\n" % (len(body), body)] * 4
    assert client.end == "lost, clean"


def test_replies_that_wait_for_a_clogged_link_come_before_the_goodbye():
    pair = Pair()
    client = pair.connect()
    pair.leader.pause_writing()
    client.give(b"put 0 0 60 1\r\nx\r\n")
    pair.carry()
    assert not client.data
    pair.hand_over()
    pair.carry()
    assert client.replies() == [b"INSERTED 1\r\n"]
    assert client.end == "lost, clean"


def test_whoever_would_be_sent_too_much_is_disconnected():
    pair = Pair()
    other, client = pair.connect(), pair.connect()
    client.reads = False
    body = bytes(60_000)
    client.give(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body))
    for _ in range(3 * REST_LIMIT // len(body)):
        client.give(b"peek 1\r\n")
    pair.carry()
    transport = pair.transports[1]
    while transport.get_write_buffer_size() <= REST_LIMIT:  # one very long reply, say
        transport.write(body)
    pair.hand_over()
    pair.carry()
    assert client.end == "aborted"
    assert other.end == "lost, clean"


def test_a_client_whose_command_is_under_way_is_disconnected():
    pair = Pair()
    client = pair.connect()
    client.give(b"put 0 100 60 1\r\nx\r\n" * MANY)
    pair.carry()
    client.give(b"kick %d\r\n" % MANY)
    pair.deliver()
    assert pair.transports[0].get_protocol().session.pending
    pair.hand_over()
    pair.carry()
    assert client.end == "aborted"


def test_an_answer_that_waits_for_a_turn_comes_before_the_goodbye():
    pair = Pair()
    worker, producer = pair.connect(), pair.connect()
    worker.give(b"reserve\r\n")
    pair.carry()
    pair.rounds.turns.budget = 1
    producer.give(b"put 0 0 60 1\r\nx\r\n")
    pair.deliver()
    assert pair.transports[0].get_protocol().session.has_replies
    pair.hand_over()
    pair.carry()
    assert producer.replies() == [b"INSERTED 1\r\n"]
    assert worker.replies() == [b"RESERVED 1 1\r\nx\r\n"]
    assert worker.end == "lost, clean"


def test_a_client_that_waits_is_not_answered_and_may_wait_elsewhere():
    pair = Pair()
    client = pair.connect()
    client.give(b"reserve\r\n")
    pair.carry()
    pair.hand_over()
    pair.carry()
    assert not client.data
    assert client.end == "lost, clean"


def test_a_client_that_has_quit_gets_all_its_replies_and_is_closed():
    pair = Pair()
    client = pair.connect()
    client.reads = False
    body = bytes(60_000)
    client.give(b"put 0 0 60 %d\r\n%b\r\npeek 1\r\npeek 1\r\nquit\r\n" % (len(body), body))
    pair.carry()
    assert client.end is None
    pair.hand_over()
    pair.carry()
    assert len(client.replies()) == 3
    assert client.end == "closed"


class Keeping(Journal):
    """A journal whose commits never end."""

    keeps = True

    async def commit(self):
        await asyncio.Event().wait()

    def begin_commit(self, may_wait, on_end):
        return True


def test_a_client_whose_change_is_not_committed_is_disconnected():
    pair = Pair(Keeping())
    client, other = pair.connect(), pair.connect()
    client.give(b"put 0 0 60 1\r\nx\r\n")
    other.give(b"list-tube-used\r\n")
    pair.carry()
    assert not client.data
    pair.hand_over()
    pair.carry()
    assert client.end == "aborted"
    assert other.end == "lost, clean"


class Broken(Connection):
    __slots__ = ()

    def can_move(self):
        raise RuntimeError("a bug")


@pytest.mark.interpreted
def test_a_client_that_fails_at_the_goodbye_is_disconnected_and_no_other(caplog):
    pair = Pair()
    client, other = pair.connect(), pair.connect()
    pair.transports[0].get_protocol().__class__ = Broken
    pair.hand_over()
    pair.carry()
    assert client.end == "aborted"
    assert other.end == "lost, clean"
    assert "this is a bug in the server" in caplog.text


async def test_a_goodbye_arrives_while_much_is_on_its_way_to_the_leader(loop_factory):
    async def hand_over(leader):
        loop = asyncio.get_running_loop()
        lost = []
        end = LinkEnd(loop, lambda *_: None, on_lost=lost.append)
        secret, nonce = leader.lease.secret, bytes(NONCE_BYTES)
        end.begin(Link(dials=True, secret=secret, epoch=leader.lease.epoch, nonce=nonce, on_output=end.output))
        host, port = leader.lease.address.rsplit(":", 1)
        await loop.create_connection(lambda: end, host, int(port))
        await eventually_async(lambda: end.link.is_open, "the link is open")
        clients = [Passed() for _ in range(200)]
        for client in clients:
            assert end.link.open(client, Opening("a client", None, "default", ["default"]).encode())
        clients[0].give(b"put 0 0 60 60000\r\n%b\r\n" % bytes(60000))
        await eventually_async(lambda: clients[0].data, "there is a job")
        end.transport.pause_reading()
        for client in clients:
            client.give(b"peek 1\r\n" * 3)
        size = end_of(leader).transport.get_write_buffer_size
        await eventually_async(lambda: size() > 1 << 20, "the link is full")
        leader.turns.suspend()
        leader.connections.send_replies()
        leader.links.stand_by(0, "it hands over", is_clean=True)
        leader.turns.resume()
        for client in clients:
            client.give(b"list-tube-used\r\n" * 2000)  # never to be done
        await asyncio.sleep(0)
        end.transport.resume_reading()
        await eventually_async(lambda: lost, "the link has ended")
        assert lost[0].is_clean
        await eventually_async(lambda: all(client.end for client in clients), "each has been told")
        assert {client.end for client in clients} == {"lost, clean"}

    def end_of(leader):
        (found,) = leader.links._ends
        return found

    async with Leader(Config(port=0)) as leader:
        await hand_over(leader)


# Whatever clients are doing

ACTIONS = "put,long put,half put,reserve,poll,peek,use,kick,quit,read,ignore,hang up,stop".split(",")
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(ACTIONS)) | st.sampled_from(["carry", "deliver", "clog", "unclog"]),
    min_size=10,
    max_size=60,
)


class Story:
    """Clients that do this and that, until their leader hands over."""

    def __init__(self):
        self.pair = Pair()
        self.clients = [self.pair.connect() for _ in range(3)]
        self.puts = 0
        self.bodies = {}  # of puts, by client and the place of the command among its own
        setup = self.pair.connect()
        setup.give(b"use delayed\r\n" + b"put 0 100 60 1\r\nx\r\n" * MANY)
        self.pair.carry()
        assert len(setup.replies()) == MANY + 1

    def put(self, client, size, rest=b"\r\n"):
        self.puts += 1
        body = b"%d " % self.puts + bytes(size)
        self.bodies[client, len(client.sent)] = body
        client.give(b"put 0 0 60 %d\r\n%b%b" % (len(body), body, rest))

    def step(self, step):
        pair = self.pair
        match step:
            case "carry":
                pair.carry()
            case "deliver":
                pair.deliver()
            case "clog":
                pair.leader.pause_writing()
            case "unclog":
                pair.leader.resume_writing()
            case number, action:
                self.act(self.clients[number], action)

    def act(self, client, action):
        if client.end or (client.sent and client.sent[-1] in (b"quit\r\n", "half")):
            return
        match action:
            case "put":
                self.put(client, 3)
            case "long put":
                self.put(client, 50_000)
            case "half put":
                self.put(client, 3, b"")
                client.sent[-1] = "half"
            case "reserve":
                client.give(b"reserve\r\n")
            case "poll":
                client.give(b"reserve-with-timeout 0\r\n")
            case "peek":
                client.give(b"peek-ready\r\n")
            case "use":
                client.give(b"use delayed\r\n" if len(client.sent) % 2 else b"use default\r\n")
            case "kick":
                client.give(b"kick 1000\r\n")
            case "quit":
                client.give(b"quit\r\n")
            case "read":
                client.reads = True
                client.read()
            case "ignore":
                client.reads = False
            case "hang up":
                client.send_hangup()
            case "stop":
                client.stop_waiting()

    def end(self):
        """What has an answer has been done, and what has none has not, unless the client has been disconnected."""
        pair = self.pair
        pair.deliver()
        pair.hand_over()
        served = [transport.get_protocol() for transport in pair.transports[:3]]
        held = [len(connection.session.reserved) if connection else 0 for connection in served]
        pair.carry()
        present = {bytes(job.body) for job in pair.rounds.broker.jobs.values()}
        for client, count in zip(self.clients, held, strict=True):
            if client.end == "aborted":
                continue
            assert client.end in ("lost, clean", "closed")
            replies = client.replies()
            for place in range(len(client.sent)):
                body = self.bodies.get((client, place))
                if body is not None:
                    assert (body in present) == (place < len(replies))
            if client.end != "closed":
                assert count == sum(reply.startswith(b"RESERVED") for reply in replies)


@given(STEPS)
@settings(max_examples=examples(60))
def test_what_has_an_answer_has_been_done_and_what_has_none_has_not(steps):
    story = Story()
    for step in steps:
        story.step(step)
    story.end()
