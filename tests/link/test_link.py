"""A link: both ends know the secret, each client has its own window, and who is silent is dead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from linked import Wire, link, pieces

from beanstalk_server.link import link as frames
from beanstalk_server.link.link import (
    FRAME_LIMIT,
    HEADER,
    NONCE_BYTES,
    SILENT_TICKS,
    WINDOW,
    Channel,
    Link,
    LinkError,
)
from beanstalk_server.link.opening import Opening

CLIENT = Opening("127.0.0.1:4711", "ann", "default", ["default"])


class Noting(Channel):
    """A channel that notes what happens to it, and gives credit for what it gets if it `reads`."""

    def __init__(self, opening=None):
        super().__init__()
        self.opening = opening
        self.events = []
        self.reads = True

    def on_data(self, data):
        self.events.append(data)
        if self.reads:
            self.consumed(len(data))

    def on_room(self):
        self.events.append("room")

    def on_hangup(self):
        self.events.append("hangup")

    def on_end(self):
        self.events.append("end")

    def on_user(self, name):
        self.events.append(name)

    def on_close(self, *, at_once):
        self.events.append("aborted" if at_once else "closed")

    def on_stop(self):
        self.events.append("stop")

    def on_lost(self, *, is_clean):
        self.events.append("lost, clean" if is_clean else "lost")

    def data(self):
        return b"".join(event for event in self.events if isinstance(event, bytes))


class Pair:
    """Both ends of a link, connected."""

    def __init__(self, cut=lambda data: [data], **leader):
        self.opened = []
        self.accepted = []
        self.standby = link(dials=True, opened=self.opened, max_job_size=0)
        self.leader = link(dials=False, opened=self.opened, accept=self.accept, **leader)
        self.wire = Wire(self.standby, self.leader, cut)
        self.wire.run()

    def accept(self, opening):
        self.accepted.append(Noting(opening))
        return self.accepted[-1]

    def open(self, opening=CLIENT):
        channel = Noting()
        assert self.standby.open(channel, opening.encode())
        self.wire.run()
        return channel, self.accepted[-1]


def frame(kind, payload=b"", number=0):
    return HEADER.pack(kind, number, len(payload)) + payload


# The handshake


@pytest.mark.parametrize("name", ["127.0.0.1:1\nforged", "\x1b[2J", "\x9b"])
def test_a_name_in_an_opening_is_printable(name):
    with pytest.raises(ValueError, match="not printable"):
        Opening.decode(Opening(name, None, "default", []).encode())


def test_both_ends_are_open_when_each_has_proved_that_it_knows_the_secret():
    pair = Pair(max_job_size=4711)
    assert pair.opened == [pair.leader, pair.standby]
    assert pair.standby.max_job_size == 4711
    assert pair.leader.peer == "standby"


def test_a_leader_that_does_not_know_the_secret_is_told_nothing():
    standby, leader = link(dials=True), link(dials=False, secret="another")
    with pytest.raises(LinkError, match="wrong lease secret"):
        Wire(standby, leader).run()
    assert not standby.take_output()
    assert not standby.is_open


class Impostor(Link):
    """An end that believes everything, and knows nothing."""

    __slots__ = ()

    def _demand(self, proof, role):
        pass


@pytest.mark.interpreted
def test_a_standby_that_does_not_know_the_secret_is_told_nothing():
    leader = link(dials=False)
    standby = Impostor(
        dials=True,
        secret="guessed",
        epoch=7,
        node="impostor",
        nonce=bytes(NONCE_BYTES),
        on_output=lambda: None,
        on_open=lambda _: None,
    )
    with pytest.raises(LinkError, match="wrong lease secret"):
        Wire(standby, leader).run()
    assert not leader.is_open


def test_a_proof_is_good_for_one_end_of_one_link():
    first = Pair()
    standby, leader = link(dials=True), link(dials=False)
    hello = standby.take_output()
    leader.receive(hello)
    challenge = leader.take_output()
    proof = challenge[-32:]
    with pytest.raises(LinkError, match="wrong lease secret"):  # its own proof, sent back
        leader.receive(frame(frames.PROOF, proof))
    assert first.leader._proof(b"leader") == proof  # the same nonces, so that only the role differs
    other = Link(
        dials=False,
        find=lambda _: ("known to both", 7),
        nonce=b"\2" * NONCE_BYTES,
        on_output=lambda: None,
        on_open=lambda _: None,
    )
    other.receive(hello)
    with pytest.raises(LinkError, match="wrong lease secret"):  # another nonce
        other.receive(frame(frames.PROOF, first.standby._proof(b"standby")))


def test_a_standby_that_has_seen_another_epoch_gets_a_goodbye():
    standby, leader = link(dials=True, epoch=6), link(dials=False, epoch=7)
    Wire(standby, leader).run()
    assert standby.farewell == "it leads in epoch 7, not 6"
    assert leader.closing
    with pytest.raises(LinkError):
        leader.receive(frame(frames.PROOF, leader._proof(b"standby")))


def test_another_version_gets_a_goodbye():
    leader = link(dials=False)
    leader.receive(frame(frames.HELLO, frames._GREETING.pack(99, 0, 7, bytes(NONCE_BYTES)) + b"node"))
    standby = link(dials=True)
    standby.receive(leader.take_output())
    assert standby.farewell == "link version 99 is not supported: must be 2"
    assert not standby.is_clean


def test_a_standby_of_another_shard_gets_a_goodbye():
    standby, leader = link(dials=True, shard=3), link(dials=False, shard=4)
    Wire(standby, leader).run()
    assert standby.farewell == "it does not lead"
    assert not leader.is_open


def test_a_link_is_for_the_shard_that_the_standby_names():
    standby, leader = link(dials=True, shard=1023), link(dials=False, shard=1023)
    assert leader.shard == -1
    Wire(standby, leader).run()
    assert leader.is_open
    assert leader.shard == standby.shard == 1023


def test_a_proof_is_good_for_one_shard():
    standby = link(dials=True, shard=3)
    leader = link(dials=False, shard=3)
    leader.receive(standby.take_output())
    leader.shard = 4
    standby.receive(leader.take_output())
    with pytest.raises(LinkError, match="wrong lease secret"):
        leader.receive(standby.take_output())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n",
        b"stats\r\nstats\r\n",
        frame(frames.OPEN, CLIENT.encode(), 1),
        frame(frames.DATA, b"x", 1),
        frame(frames.PROOF, bytes(32)),
        frame(frames.HELLO, b"short"),
        frame(frames.HELLO, bytes(2000)),
        frame(frames.HELLO, frames._GREETING.pack(2, 0, 7, bytes(NONCE_BYTES)) + b"\xff"),
        frame(frames.PING),
        frame(99),
    ],
)
def test_whoever_says_something_else_than_a_greeting_is_refused(sent):
    with pytest.raises(LinkError):
        link(dials=False).receive(sent)


@pytest.mark.parametrize(
    "sent",
    [
        frame(frames.DATA, b"x", 1),
        frame(frames.WELCOME, b"1234"),
        frame(frames.CHALLENGE, b"short"),
        frame(frames.HELLO, bytes(100)),
        frame(frames.GOODBYE, b""),
        frame(frames.GOODBYE, b"why"),
        frame(frames.GOODBYE, b"\0\xff"),
        frame(frames.GOODBYE, b"\0two\nlines"),
    ],
)
def test_a_leader_that_says_something_else_than_a_greeting_is_refused(sent):
    with pytest.raises(LinkError):
        link(dials=True).receive(sent)


def test_a_link_needs_a_secret():
    with pytest.raises(ValueError, match="secret"):
        link(dials=True, secret="")


# Clients


def test_the_leader_is_told_who_a_client_is():
    pair = Pair()
    _, accepted = pair.open()
    assert accepted.opening == CLIENT


def test_what_a_client_has_told_the_server_may_take_many_frames():
    pair = Pair()
    opening = Opening("x", None, "default", [f"tube-{number}" for number in range(50_000)])
    _, accepted = pair.open(opening)
    assert accepted.opening == opening


@pytest.mark.interpreted
def test_who_has_told_the_server_too_much_is_not_passed_on(monkeypatch):
    pair = Pair()
    monkeypatch.setattr(frames, "OPENING_LIMIT", 100)
    assert not pair.standby.open(Noting(), Opening("x", None, "t" * 200, []).encode())
    pair.standby.send(frames.OPEN_PART, 1, b"x" * 200)
    with pytest.raises(LinkError, match="more than 100 bytes"):
        pair.wire.run()


@pytest.mark.interpreted
def test_there_is_a_most_of_clients(monkeypatch):
    pair = Pair()
    pair.open()
    monkeypatch.setattr(frames, "CHANNEL_LIMIT", 1)
    assert not pair.standby.open(Noting(), CLIENT.encode())
    pair.standby.channels.clear()
    channel = Noting()
    pair.standby.open(channel, CLIENT.encode())
    pair.wire.run()
    assert channel.events == ["aborted"]


def test_numbers_are_used_again_when_there_are_no_more():
    pair = Pair()
    first, _ = pair.open()
    pair.standby._number = 2**32 - 2
    assert [pair.open()[0].number for _ in range(3)] == [2**32 - 1, 2, 3]
    assert first.number == 1


def test_everything_arrives_at_its_client_in_order():
    pair = Pair()
    first, at_first = pair.open()
    second, at_second = pair.open()
    first.send(b"one")
    second.send(b"two")
    first.send_hangup()
    first.stop_waiting()
    first.send(b"three")
    first.send_user("bob")
    first.send_end()
    at_second.send(b"reply")
    pair.wire.run()
    assert at_first.events == [b"one", "hangup", "stop", b"three", "bob", "end"]
    assert at_second.events == [b"two"]
    assert second.events == [b"reply"]


@given(
    sent=st.lists(st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=100)), max_size=30),
    cuts=st.lists(st.integers(0, 3000), max_size=30),
)
def test_frames_arrive_wherever_they_are_split(sent, cuts):
    pair = Pair(lambda data: pieces(data, cuts))
    channels = [pair.open() for _ in range(3)]
    for number, data in sent:
        channels[number][0].send(data)
        channels[number][1].send(data[::-1])
    pair.wire.run()
    for number, (here, there) in enumerate(channels):
        assert there.data() == b"".join(data for which, data in sent if which == number)
        assert here.data() == b"".join(data[::-1] for which, data in sent if which == number)


def test_a_client_that_is_abandoned_is_lost_at_the_other_end():
    pair = Pair()
    here, there = pair.open()
    here.send(b"last")
    here.abandon()
    here.abandon()
    pair.wire.run()
    assert there.events == [b"last", "lost"]
    assert not here.events and not pair.standby.channels and not pair.leader.channels


@pytest.mark.parametrize(("at_once", "seen"), [(False, "closed"), (True, "aborted")])
@pytest.mark.parametrize("by_leader", [False, True])
def test_a_client_that_one_side_closes_is_closed_at_the_other_after_all_that_was_sent(at_once, seen, by_leader):
    pair = Pair()
    here, there = pair.open()
    if by_leader:
        here, there = there, here
    here.send(b"last")
    here.close_channel(at_once=at_once)
    there.send(b"what was on its way")
    pair.wire.run()
    assert there.events == [b"last", seen]
    assert here.events == []
    assert not pair.standby.channels
    assert not pair.leader.channels
    there.close_channel(at_once=True)
    pair.wire.run()


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20), st.lists(st.integers(1, 2000)), st.integers(1, 5))
def test_frames_are_done_a_few_at_a_time_in_their_order(sizes, cuts, most):
    pair = Pair()
    _, there = pair.open()
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]
    for piece in pieces(b"".join(frame(frames.DATA, data, there.number) for data in sent), cuts):
        before = len(there.events)
        has_more = pair.leader.receive(piece, most)
        assert len(there.events) <= before + most
        while has_more:
            before = len(there.events)
            has_more = pair.leader.receive(b"", most)
            assert before < len(there.events) <= before + most
    assert there.events == sent


def test_a_client_that_does_not_read_is_sent_one_window_and_holds_up_nobody():
    pair = Pair()
    idle, at_idle = pair.open()
    busy, at_busy = pair.open()
    idle.reads = False
    assert at_idle.room() == WINDOW
    at_idle.send(b"x" * WINDOW)
    pair.wire.run()
    assert at_idle.room() == 0
    for _ in range(10):
        at_busy.send(b"y" * at_busy.room())
        pair.wire.run()
    assert len(busy.data()) == 10 * WINDOW
    idle.consumed(WINDOW)
    pair.wire.run()
    assert at_idle.room() == WINDOW
    assert at_idle.events == ["room"]


def test_credit_is_given_for_half_a_window_at_a_time():
    pair = Pair()
    here, there = pair.open()
    here.reads = False
    there.send(b"x" * WINDOW)
    pair.wire.run()
    here.consumed((WINDOW >> 1) - 1)
    assert not pair.standby.take_output()
    here.consumed(1)
    pair.wire.run()
    assert there.room() == WINDOW >> 1


def test_while_the_system_takes_no_more_nothing_is_sent_and_each_goes_on_in_its_turn():
    pair = Pair()
    channels = [pair.open()[0] for _ in range(3)]
    pair.standby.clog()
    assert [channel.room() for channel in channels] == [0, 0, 0]
    channels[1].close_channel(at_once=True)
    order = []
    for number in (0, 2):
        channels[number].__class__ = Filling
        channels[number].order = order
    pair.standby.unclog()
    assert order == [0]
    pair.standby.unclog()
    assert order == [0, 2]


@pytest.mark.parametrize(
    "sent",
    [
        frame(frames.DATA, b"x" * WINDOW, 1) + frame(frames.DATA, b"x", 1),
        frame(frames.DATA, b"", 1),
        frame(frames.CREDIT, b"\0\0\0\1", 1),
        frame(frames.CREDIT, b"1", 1),
        frame(frames.USER, b"\xff", 1),
        frame(frames.OPEN, CLIENT.encode(), 1),
        frame(frames.OPEN, b"{", 2),
        frame(frames.OPEN, b"[]", 2),
        frame(frames.OPEN, b"{}", 2),
        frame(frames.OPEN, b'{"name":"x","user":null,"used":"x","watched":[1]}', 2),
        frame(frames.OPEN_PART, b"{", 2) + frame(frames.OPEN, CLIENT.encode(), 3),
        frame(frames.DATA, b"", 1)[:5] + b"\xff" * 4,
        frame(frames.DATA, bytes(FRAME_LIMIT + 1), 1),
        frame(frames.HELLO),
        frame(frames.GOODBYE, b"\0"),
        frame(frames.REST, b"x", 1),
        frame(99),
    ],
)
def test_wrong_bytes_end_the_link(sent):
    pair = Pair()
    pair.open()
    pair.accepted[0].reads = False
    with pytest.raises(LinkError):
        pair.leader.receive(sent)


def test_a_client_that_fails_here_is_disconnected_and_no_other(caplog):
    pair = Pair()
    failing, at_failing = pair.open()
    other, at_other = pair.open()
    at_failing.__class__ = Failing
    failing.send(b"x")
    other.send(b"y")
    pair.wire.run()
    assert failing.events == ["aborted"]
    assert at_failing.events == ["aborted"]
    assert at_other.events == [b"y"]
    assert "a client of standby failed; this is a bug" in caplog.text


class Failing(Noting):
    def on_data(self, data):
        raise RuntimeError("a bug")


class Filling(Noting):
    def on_room(self):
        self.order.append(self.number - 1)
        self.link.clog()


# The end


def test_a_link_is_dead_after_three_seconds_of_silence():
    pair = Pair()
    assert all(pair.leader.tick() for _ in range(SILENT_TICKS))
    assert not pair.leader.tick()


def test_a_link_on_which_nothing_is_said_but_that_both_are_alive_lives():
    pair = Pair()
    for _ in range(20):
        assert pair.leader.tick()
        assert pair.standby.tick()
        pair.wire.run()


def test_who_has_not_greeted_in_time_is_dead_whatever_it_says():
    leader = link(dials=False)
    leader.receive(link(dials=True).take_output())
    for _ in range(SILENT_TICKS):
        assert leader.tick()
    assert not leader.tick()


def test_a_leader_says_goodbye():
    pair = Pair()
    pair.leader.say_goodbye("it hands over")
    pair.wire.run()
    assert pair.standby.farewell == "it hands over"
    assert not pair.standby.is_clean
    assert pair.leader.tick()
    assert not pair.leader.take_output()


def test_nothing_counts_that_follows_a_goodbye():
    pair = Pair()
    here, _ = pair.open()
    pair.leader.say_goodbye("it hands over", True)
    pair.standby.receive(pair.leader.take_output() + frame(frames.DATA, b"late", 1) + frame(99))
    assert pair.standby.is_clean
    assert here.events == []


def test_all_clients_of_a_link_that_ends_are_let_go():
    pair = Pair()
    channels = [pair.open()[0] for _ in range(3)]
    assert pair.standby.take_channels() == channels
    assert not any(channel.link for channel in channels)
    channels[0].consumed(WINDOW)
    channels[0].send_hangup()
    channels[0].send_end()
    channels[0].send_user("x")
    channels[0].stop_waiting()
    channels[0].close_channel(at_once=True)
    assert channels[0].room() == 0
    assert not pair.standby.take_output()
