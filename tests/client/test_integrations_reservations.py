"""What a consumer holds over several connections: who waits, who touches, and what is lost with a connection."""

import contextlib
import socket
import threading
import time

import pytest
from beanstalk_client.connection import Connection
from beanstalk_client.errors import ConnectionLostError, ForbiddenError, NoAnswerError
from beanstalk_client.integrations.reservations import Reservations
from beanstalk_client.session import Session


class Peer:
    """The server's end of one connection, which the test plays."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.setblocking(False)

    def heard(self):
        """What the consumer has said since it was last asked for."""
        try:
            return self.sock.recv(1 << 16).decode().replace("\r\n", "\n").splitlines()
        except BlockingIOError:
            return []

    def says(self, *lines):
        self.sock.sendall("".join(line + "\r\n" for line in lines).encode())


class Stage:
    """A consumer's reservations, their server, and the clock of both. The test touches, unless a thread does."""

    def __init__(self, *, with_thread=False, **options):
        self.now = 100.0
        self.peers = []
        self.refuses = False
        self.reservations = Reservations(self.connect, clock=lambda: self.now, **options)
        self.reservations.watch(["mail"])
        if not with_thread:
            self.reservations._keeper = threading.current_thread()  # so that no other one is started

    def connect(self):
        if self.refuses:
            raise ConnectionRefusedError
        here, there = socket.socketpair()
        self.peers.append(Peer(there))
        return Connection(here, Session(), "the server", 60)

    def ask(self, limit=8, wait=30):
        self.reservations.ask(limit, wait)
        return [peer.heard() for peer in self.peers]

    def reply(self, number, *lines):
        self.peers[number].says(*lines)
        self.reservations.receive_all()

    def grant(self, number, *ids, ttr=60):
        """Let a slot reserve jobs, and describe them; return them."""
        bodies = [line for job in ids for line in (f"RESERVED {job} 1", "x")]
        self.reply(number, f"RESERVED_BATCH {len(ids)}", *bodies)
        assert self.peers[number].heard() == [f"stats-job {job}" for job in ids]
        self.reply(number, *[line for job in ids for line in described(job, ttr)])
        return [self.reservations.take() for _ in ids]

    def hold(self, *ids, ttr=60):
        """Let the first slot reserve jobs; return them."""
        self.ask()
        self.reply(0, "WATCHING 2", "WATCHING 1")
        return self.grant(0, *ids, ttr=ttr)


def described(job, ttr=60, reserves=1, tube="mail"):
    text = f"---\nid: {job}\ntube: {tube}\nstate: reserved\npri: 7\nttr: {ttr}\nreserves: {reserves}\n"
    return f"OK {len(text)}", text


@pytest.fixture
def play():
    stages = []

    def begin(**options):
        stages.append(Stage(**options))
        return stages[-1]

    yield begin
    for stage in stages:
        for peer in stage.peers:
            peer.sock.close()
        stage.reservations.close()


@pytest.fixture
def stage(play):
    return play()


def test_a_connection_waits_or_holds_jobs_and_never_both(stage):
    assert stage.ask() == [["watch mail", "ignore default", "reserve-batch 8 30"]]
    assert stage.ask() == [[]]  # one waits
    stage.reply(0, "WATCHING 2", "WATCHING 1")
    (held,) = stage.grant(0, 5)
    assert (held.id, held.body, held.tube, held.priority, held.ttr, held.reserves) == (5, b"x", "mail", 7, 60, 1)
    assert stage.ask(7) == [["reserve-batch 7 0"]]  # it holds a job, and waits for nothing
    stage.reply(0, "TIMED_OUT")
    assert stage.ask(7) == [[], ["watch mail", "ignore default", "reserve-batch 7 30"]]
    stage.reservations.delete(held)
    assert stage.peers[0].heard() == ["delete 5"]  # at once


def test_without_room_nothing_is_asked_for(stage):
    assert stage.ask(0) == []
    assert stage.reservations.slots == []


def test_a_server_without_batches_is_asked_for_one_job_and_then_for_those_that_are_there(play):
    stage = play(batches=False)
    assert stage.ask(3, 2.5) == [["watch mail", "ignore default", "reserve-with-timeout 2"]]
    stage.reply(0, "WATCHING 2", "WATCHING 1", "RESERVED 5 1", "x")
    stage.reply(0, *described(5))
    assert stage.peers[0].heard() == ["stats-job 5"]
    assert stage.ask(2) == [["reserve-with-timeout 0"] * 2]
    stage.reply(0, "RESERVED 6 1", "y", "TIMED_OUT")
    assert stage.reservations.outstanding == 2


def test_jobs_are_touched_when_a_third_of_their_time_has_gone(stage):
    stage.hold(5, 6)
    stage.now += 19.9
    assert stage.reservations.keep() == pytest.approx(0.1)
    assert stage.peers[0].heard() == []
    stage.now += 0.2
    assert stage.reservations.keep() == pytest.approx(20)
    assert stage.peers[0].heard() == ["touch 5", "touch 6"]


def test_while_the_consumer_is_blocked_replies_are_read_and_what_has_come_is_touched_too(stage):
    stage.hold(5)
    stage.ask(7)
    stage.reply(0, "TIMED_OUT")
    stage.ask(7)
    stage.now += 20
    stage.reservations.keep()
    stage.peers[0].says("TOUCHED")
    stage.peers[1].says("WATCHING 2", "WATCHING 1", "RESERVED_BATCH 1", "RESERVED 6 1", "x")  # and no thread reads
    stage.now += 20
    stage.reservations.keep()
    assert stage.peers[0].heard() == ["touch 5", "touch 5"]
    assert stage.peers[1].heard()[-2:] == ["touch 6", "stats-job 6"]
    stage.peers[1].says("TOUCHED", *described(6))
    stage.now += 20
    stage.reservations.keep()
    assert stage.reservations.take().id == 6


def test_a_reservation_that_nobody_looked_for_is_made_sure_of_before_it_is_handed_over(stage):
    stage.ask()
    stage.now += 90  # longer than the job may be reserved
    stage.reply(0, "WATCHING 2", "WATCHING 1", "RESERVED_BATCH 1", "RESERVED 5 1", "x")
    assert stage.peers[0].heard() == ["touch 5", "stats-job 5"]
    stage.reply(0, "NOT_FOUND", *described(5))
    assert stage.reservations.take() is None
    assert not stage.reservations.is_asking


def test_a_job_that_is_lost_is_deleted_all_the_same_but_not_released(stage, caplog):
    done, given_up = stage.hold(5, 6)
    stage.now += 20
    stage.reservations.keep()
    stage.peers[0].heard()
    stage.reply(0, "NOT_FOUND", "NOT_FOUND")
    assert "job 5 of tube mail is no longer reserved" in caplog.text
    stage.reservations.delete(done)
    stage.reservations.release(given_up)
    stage.reservations.bury(given_up)
    assert stage.peers[0].heard() == ["delete 5"]
    stage.reply(0, "NOT_FOUND")
    assert "delete came too late" in caplog.text


def test_a_job_that_is_buried_because_it_was_given_back_too_often_is_told(stage, caplog):
    (held,) = stage.hold(5)
    stage.reservations.release(held)
    stage.reply(0, "BURIED")
    assert "job 5 of tube mail: release was refused (BURIED: " in caplog.text


@pytest.mark.parametrize(("reply", "is_refused"), [("TOUCHED", True), ("NOT_FOUND", False)])
def test_a_job_of_which_nothing_may_be_known_is_an_error_and_one_that_is_gone_is_not(stage, reply, is_refused):
    stage.ask()
    stage.reply(0, "WATCHING 2", "WATCHING 1", "RESERVED_BATCH 1", "RESERVED 5 1", "x")
    stage.reply(0, "NOT_FOUND")
    assert stage.peers[0].heard()[-2:] == ["stats-job 5", "touch 5"]
    with pytest.raises(ForbiddenError, match="right to inspect") if is_refused else contextlib.nullcontext():
        stage.reply(0, reply)
    assert stage.reservations.outstanding == 0


def test_a_tube_that_may_not_be_watched_is_an_error_that_names_it(stage):
    stage.ask()
    with pytest.raises(ForbiddenError, match="watch mail"):
        stage.reply(0, "FORBIDDEN")


def test_a_job_that_nobody_waits_for_any_more_is_given_back_with_its_connection(stage):
    with pytest.raises(NoAnswerError):
        stage.reservations.get("mail", 0)
    assert stage.reservations.slots == []
    assert stage.peers[0].sock.recv(100).endswith(b"reserve-with-timeout 0\r\n")
    assert stage.peers[0].sock.recv(100) == b""


def test_a_connection_that_only_waits_is_replaced_when_it_is_lost(stage):
    stage.ask()
    stage.now += 10
    stage.peers[0].sock.close()
    stage.reservations.receive_all()
    assert stage.reservations.slots == []
    stage.reservations.ask(8, 30)
    assert stage.peers[1].heard()[-1] == "reserve-batch 8 30"


def test_with_a_connection_that_holds_jobs_they_are_lost_and_that_is_an_error(stage):
    (held,) = stage.hold(5)
    stage.peers[0].sock.close()
    with pytest.raises(ConnectionLostError):
        stage.reservations.receive_all()
    assert held.is_lost
    with pytest.raises(ConnectionLostError):
        stage.reservations.delete(held)
    with pytest.raises(ConnectionLostError):
        stage.ask()


def test_a_server_that_hangs_up_on_everybody_is_not_asked_for_ever(stage):
    stage.ask()
    stage.peers[0].sock.close()
    with pytest.raises(ConnectionLostError):
        stage.reservations.receive_all()


def test_a_server_that_cannot_be_reached_any_more_is_an_error(stage):
    stage.refuses = True
    with pytest.raises(ConnectionRefusedError):
        stage.ask()


def test_a_connection_that_is_silent_for_longer_than_it_was_asked_to_wait_is_given_up(play):
    stage = play(patience=60)
    stage.ask(8, 30)
    stage.now += 89
    assert len(stage.ask()) == 1
    stage.now += 2
    stage.ask()
    assert len(stage.peers) == 2
    assert stage.peers[0].sock.recv(1) == b""


def test_a_connection_that_is_silent_about_jobs_that_it_holds_is_an_error(play):
    stage = play(patience=60)
    stage.hold(5)
    stage.now += 20
    stage.reservations.keep()
    stage.now += 61
    with pytest.raises(NoAnswerError):
        stage.ask(0)


def test_where_all_connections_hold_jobs_one_of_them_waits_for_a_second_at_most(play):
    stage = play(most=1)
    stage.hold(5)
    stage.ask(7)
    stage.reply(0, "TIMED_OUT")
    assert stage.ask(7) == [["reserve-batch 7 1"]]
    assert len(stage.peers) == 1


def test_where_all_connections_hold_jobs_that_are_short_one_waits_for_a_part_of_their_time(play):
    stage = play(most=1)
    stage.hold(5, ttr=3)
    stage.ask(7)
    stage.reply(0, "TIMED_OUT")
    assert stage.ask(7) == [["reserve-batch 7 0.500"]]


def test_deadline_soon_has_all_jobs_of_the_connection_touched(stage):
    stage.hold(5)
    stage.ask(7)
    stage.reply(0, "DEADLINE_SOON")
    assert stage.peers[0].heard() == ["touch 5"]


def test_who_waits_for_other_tubes_than_are_wanted_is_hung_up(stage):
    stage.ask()
    stage.reservations.watch(["mail", "more"])
    assert stage.reservations.slots == []
    assert stage.ask()[-1] == ["watch mail", "watch more", "ignore default", "reserve-batch 8 30"]


def test_what_has_come_from_tubes_that_are_not_wanted_any_more_is_given_back(stage):
    stage.ask()
    stage.reply(0, "WATCHING 2", "WATCHING 1", "RESERVED_BATCH 1", "RESERVED 5 1", "x")
    stage.reply(0, *described(5))
    stage.peers[0].heard()
    stage.reservations.watch(["more"])
    assert stage.peers[0].heard() == ["give-back 5"]
    assert stage.reservations.take() is None


def test_what_was_said_is_answered_before_hanging_up(stage):
    (held,) = stage.hold(5)
    stage.reservations.delete(held)
    stage.peers[0].says("DELETED")
    stage.reservations.close()
    assert stage.peers[0].heard() == ["delete 5"]
    assert stage.peers[0].sock.recv(1) == b""
    with pytest.raises(ConnectionLostError):
        stage.reservations.delete(held)


def test_the_thread_touches_what_nobody_else_does(play):
    stage = play(with_thread=True)
    stage.reservations._clock = time.monotonic
    stage.hold(5, ttr=1)
    stage.peers[0].sock.settimeout(60)
    assert stage.peers[0].sock.recv(100) == b"touch 5\r\n"
