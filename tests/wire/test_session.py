"""Conversations in virtual time: what each command answers, in every case that beanstalkd distinguishes."""

import io
import tracemalloc

import pytest
from virtual import World

from beanstalk_server.access.user import User
from beanstalk_server.queue.broker import FREE_WATCHES, MOST_WATCHED, MOST_WATCHES, SLICE
from beanstalk_server.queue.costs import KICK_COST
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE, Journal
from beanstalk_server.version import VERSION
from beanstalk_server.wire.session import SESSION_QUANTUM

BAD = b"BAD_FORMAT\r\n"
UNKNOWN = b"UNKNOWN_COMMAND\r\n"
LONGEST = b"pause-tube " + b"a" * 200 + b" 4294967295\r\n"


@pytest.fixture
def world():
    world = World()
    yield world
    world.check()


@pytest.fixture
def client(world):
    return world.connect()


# Lines


@pytest.mark.parametrize(
    ("sent", "replies"),
    [
        (b"\r\n", UNKNOWN),
        (b"put\r\n", UNKNOWN),
        (b"delete\r\n", UNKNOWN),
        (b"kick\r\n", UNKNOWN),
        (b"LIST-TUBES\r\n", UNKNOWN),
        (b" stats\r\n", UNKNOWN),
        (b"pause-tube\r\n", BAD),
        (b"stats \r\n", BAD),
        (b"stats-job\r\n", BAD),
        (b"stats-tube\r\n", BAD),
        (b"list-tubesx\r\n", BAD),
        (b"list-tube-used \r\n", BAD),
        (b"list-tubes-watched 1\r\n", BAD),
        (b"reserve \r\n", BAD),
        (b"reserved\r\n", BAD),
        (b"reserve-with-timeout\r\n", BAD),
        (b"reserve-job\r\n", BAD),
        (b"peek-ready \r\n", BAD),
        (b"peek-delayedx\r\n", BAD),
        (b"peek-buried 1\r\n", BAD),
        (b"unknown\0\r\n", BAD),
        (b"quit\0\r\n", BAD),
        (b"list-tube-used\0\r\n", BAD),
        (b"delete 1\0\r\n", BAD),
        (b"kick 1\0\r\n", BAD),
        (b"reserve-with-timeout 0\0\r\n", BAD),
        (b"put 0 0 1 1\0\r\n", BAD),
        (b"\n\r\n", UNKNOWN),
        (b"list-tube-used\n\r\n", BAD),
    ],
)
def test_lines_that_are_not_commands_are_refused(client, sent, replies):
    assert client.send(sent) == replies
    assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"


def test_a_line_of_224_bytes_is_a_command_and_one_of_226_is_not(client):
    assert len(LONGEST) == 224
    assert client.send(LONGEST) == b"NOT_FOUND\r\n"
    assert client.send(b"pause-tube   " + LONGEST[11:]) == BAD


@pytest.mark.parametrize("length", [225, 449])
def test_a_line_whose_crlf_straddles_the_limit_ends_with_the_next_line_as_in_beanstalkd(client, length):
    assert client.send(b"x" * (length - 2) + b"\r\n") == b""
    assert client.send(b"list-tube-used\r\n") == BAD
    assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"


@pytest.mark.parametrize("length", [226, 300, 447, 448, 450, 10_000])
def test_a_line_that_is_too_long_is_dropped_to_its_end(client, length):
    assert client.send(b"x" * (length - 2)) == b""
    assert client.send(b"\r\nlist-tube-used\r\n") == BAD + b"USING default\r\n"


def test_a_line_that_is_too_long_is_answered_once_it_has_ended(client):
    assert client.send(b"x" * 1000) == b""
    assert client.send(b"y" * 1000) == b""
    assert client.send(b"\r\n") == BAD


def test_a_bare_cr_or_lf_ends_nothing(client):
    assert client.send(b"list-tube-used\n") == b""
    assert client.send(b"list-tube-used\r\n") == BAD
    assert client.send(b"stats\rlist-tube-used\r\n") == b""  # a bare CR hides what follows, up to 224 bytes
    assert client.send(b"x" * 300 + b"\r\n") == BAD
    assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"


def test_commands_come_split_at_any_byte(client):
    replies = b""
    for byte in b"use a\r\nput 0 0 1 3\r\nabc\r\npeek-ready\r\n":
        replies += client.send(bytes([byte]))
    assert replies == b"USING a\r\nINSERTED 1\r\nFOUND 1 3\r\nabc\r\n"


def test_many_commands_in_one_packet_are_answered_in_order(client):
    count = 3 * SESSION_QUANTUM
    sent = b"".join(b"put 0 0 1 1\r\nx\r\ndelete %d\r\n" % number for number in range(1, count + 1))
    replies = b"".join(b"INSERTED %d\r\nDELETED\r\n" % number for number in range(1, count + 1))
    assert client.send(sent) == replies


def test_a_turn_ends_when_its_quantum_is_spent(world, client):
    client.session.receive(b"list-tube-used\r\n" * (SESSION_QUANTUM + 1), world.now)
    assert len(client.session.replies) == SESSION_QUANTUM
    assert client.session.has_more
    client.go_on()
    assert len(client.session.replies) == SESSION_QUANTUM + 1
    client.read()
    client.put(b"x" * 60_000)
    client.session.receive(b"peek-ready\r\n" * 100, world.now)
    assert len(client.session.replies) == 3
    client.go_on()
    assert len(client.session.replies) == 100


def test_costly_commands_end_a_turn_sooner(world, client):
    def done_in_a_turn(data):
        client.session.receive(data, world.now)
        count = len(client.session.replies)
        client.go_on()
        client.read()
        return count

    assert done_in_a_turn(b"stats\r\n" * 100) < SESSION_QUANTUM / 8
    assert done_in_a_turn(b"stats-tube default\r\n" * 100) < SESSION_QUANTUM / 8
    for _ in range(100):
        client.put(delay=100)
    assert done_in_a_turn(b"kick 100\r\n" + b"list-tube-used\r\n" * 100) < SESSION_QUANTUM - 90
    client.send(b"delete 1\r\n" + b"".join(b"watch t%d\r\n" % number for number in range(320)))
    client.send(b"ignore default\r\n")
    assert done_in_a_turn(b"reserve-with-timeout 0\r\n" * 100) < SESSION_QUANTUM / 9
    assert done_in_a_turn(b"list-tubes\r\n" * 100) < SESSION_QUANTUM / 2
    assert done_in_a_turn(b"list-tubes-watched\r\n" * 100) < SESSION_QUANTUM / 10


class NeverSearched(list):
    """A watch list that fails when it is searched."""

    def __contains__(self, tube):
        raise AssertionError("it is searched")

    index = __contains__


def test_a_long_watch_list_is_not_searched(world, client):
    client.send(b"".join(b"watch t%d\r\n" % number for number in range(100)))
    client.session.watched = NeverSearched(client.session.watched)
    assert client.send(b"watch t7\r\nwatch t100\r\n") == b"WATCHING 101\r\nWATCHING 102\r\n"
    assert client.send(b"ignore t7\r\nignore t100\r\nignore t100\r\nignore none\r\n").endswith(b"WATCHING 100\r\n")
    assert client.send(b"watch t7\r\nignore t99\r\nignore t8\r\n").endswith(b"WATCHING 99\r\n")
    names = client.send(b"list-tubes-watched\r\n").split(b"\n- ")[1:]
    assert names[:10] == [b"default", *[b"t%d" % number for number in range(8)], b"t98"]
    assert names[-1] == b"t97\n\r\n"


def test_the_list_of_all_tubes_is_written_again_only_where_it_has_changed(world, client):
    def work():
        client.session.receive(b"list-tubes\r\n", world.now)
        return client.session.cost - (len(client.read()) >> 10)

    for number in range(3000):
        client.send(b"watch tube-%d\r\n" % number)
    assert work() < 20, "full pages are written already"
    assert work() < 3
    client.send(b"watch another\r\nignore tube-1000\r\n")
    assert work() < 20
    world.check()
    for number in range(3000):
        client.send(b"ignore tube-%d\r\n" % number)
        if number % 500 == 0:
            world.check()
    assert client.send(b"list-tubes\r\n") == b"OK 24\r\n---\n- default\n- another\n\r\n"


def test_making_a_tube_costs_more_than_using_one(world, client):
    client.session.receive(b"".join(b"use t%d\r\n" % number for number in range(SESSION_QUANTUM)), world.now)
    assert len(client.session.replies) < SESSION_QUANTUM / 4
    client.go_on()


def wide(world, count=4000):
    """A client that watches many tubes."""
    client = world.connect()
    client.send(b"".join(b"watch t%d\r\n" % number for number in range(count)))
    return client


def test_a_turn_ends_sooner_when_it_serves_clients_that_watch_many_tubes(world, client):
    waiting = [wide(world) for _ in range(10)]
    for other in waiting:
        other.send(b"reserve\r\n")
    client.session.receive(b"put 0 0 60 1\r\nx\r\n" * 10, world.now)
    assert len(client.session.replies) == 1, "each of them is taken from 4,000 waiting lists"
    client.go_on()
    assert client.read().count(b"INSERTED") == 10
    world.settle()
    assert [other.read()[:8] for other in waiting] == [b"RESERVED"] * 10


def test_a_turn_ends_sooner_when_its_client_waits_in_many_tubes_over_and_over(world):
    client = wide(world)
    client.session.receive(b"reserve-with-timeout 1\r\n", world.now)
    assert client.session.budget < -400
    client.session.end_input()
    client.session.run(world.now)
    assert client.session.budget < -300
    assert client.read() == b"TIMED_OUT\r\n"


def test_clients_that_wait_in_many_tubes_time_out_in_slices(world):
    waiting = [wide(world) for _ in range(10)]
    for other in waiting:
        other.session.receive(b"reserve-with-timeout 1\r\n", world.now)
    world.now += 2_000_000_000
    world.broker.advance(world.now)
    assert world.broker.waiting >= 8
    world.settle()
    assert [other.read() for other in waiting] == [b"TIMED_OUT\r\n"] * 10


def test_a_kick_that_serves_clients_of_many_tubes_is_done_in_slices(world, client):
    for _ in range(10):
        client.put(delay=60)
    waiting = [wide(world) for _ in range(10)]
    for other in waiting:
        other.send(b"reserve\r\n")
    client.session.receive(b"kick 10\r\n", world.now)
    assert world.broker.delayed >= 8
    world.settle()
    assert client.read() == b"KICKED 10\r\n"
    assert world.broker.reserved == 10


def test_the_jobs_of_a_client_that_is_gone_go_to_clients_of_many_tubes_in_slices(world, client):
    for _ in range(10):
        client.put()
    holder = world.connect()
    holder.send(b"reserve\r\n" * 10)
    waiting = [wide(world) for _ in range(10)]
    for other in waiting:
        other.send(b"reserve\r\n")
    holder.session.disconnect(world.now)
    assert world.broker.waiting >= 8
    world.settle()
    assert [other.read()[:8] for other in waiting] == [b"RESERVED"] * 10


def test_deadlines_keep_the_order_of_the_commands_of_one_packet(client):
    client.send(b"put 0 10 1 1\r\na\r\nput 0 10 1 1\r\nb\r\nreserve-job 1\r\nrelease 1 0 10\r\n")
    assert client.send(b"peek-delayed\r\n") == b"FOUND 2 1\r\nb\r\n"


def test_timers_beyond_the_budget_are_handled_at_once_afterwards(world, client):
    for _ in range(3):
        client.put(delay=1)
    world.now += 2_000_000_000
    while not world.broker.ready:
        assert world.broker.next_event() <= world.now
        world.broker.advance(world.now, 1)
    assert world.broker.ready == 1
    assert world.broker.next_event() <= world.now
    assert client.yaml(b"stats-job 3")["time-left"] == "0", "overdue, but not negative"
    world.settle()
    assert world.broker.ready == 3


# put


@pytest.mark.parametrize(
    "line",
    [
        b"put 0 0 1",
        b"put 0 0 1 ",
        b"put  ",
        b"put -1 0 1 1",
        b"put +1 0 1 1",
        b"put 0 -1 1 1",
        b"put 0 0 -1 1",
        b"put 0 0 1 -1",
        b"put 4294967296 0 1 1",
        b"put 0 4294967296 1 1",
        b"put 0 0 4294967296 1",
        b"put 0 0 1 4294967296",
        b"put 99999999999999999999999 0 1 1",
        b"put 0 0 1 1 ",
        b"put 0 0 1 1 x",
        b"put 0 0 1 1x",
        b"put 0x0 0 1 1",
        b"put 0 0 1 a",
        b"put 0,0 1 1",
        b"put\t0 0 1 1",
        b"put 0\t0 1 1",
    ],
)
def test_malformed_puts_are_refused(client, line):
    reply = BAD if line.startswith(b"put ") else UNKNOWN
    assert client.send(line + b"\r\n") == reply
    assert client.put() == 1


def test_put_takes_spaces_before_numbers_and_the_largest_numbers(client):
    assert client.send(b"put   0  0   1  1\r\nx\r\n") == b"INSERTED 1\r\n"
    assert client.send(b"put 4294967295 4294967295 4294967295 000001\r\nx\r\n") == b"INSERTED 2\r\n"
    stats = client.yaml(b"stats-job 2")
    assert (stats["pri"], stats["delay"], stats["ttr"]) == ("4294967295",) * 3


def test_a_body_may_hold_any_bytes(client):
    body = bytes(range(256)) + b"\r\nquit\r\n"
    number = client.put(body)
    assert client.send(b"reserve\r\n") == b"RESERVED %d %d\r\n%b\r\n" % (number, len(body), body)


def test_a_body_may_be_empty(client):
    assert client.send(b"put 0 0 1 0\r\n\r\npeek-ready\r\n") == b"INSERTED 1\r\nFOUND 1 0\r\n\r\n"


def test_a_ttr_of_0_is_1(client):
    client.put(ttr=0)
    assert client.yaml(b"stats-job 1")["ttr"] == "1"


def test_a_body_without_its_crlf_uses_up_an_id(client):
    assert client.send(b"put 0 0 1 3\r\nabcde") == b"EXPECTED_CRLF\r\n"
    assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"
    assert client.put() == 2


def test_a_body_may_have_the_largest_size_and_not_one_byte_more(client):
    assert client.put(b"x" * 65535) == 1
    assert client.send(b"put 0 0 1 65536\r\n" + b"x" * 65536 + b"\r\n") == b"JOB_TOO_BIG\r\n"
    assert client.send(b"put 0 0 1 65536 and more\r\n" + b"x" * 65538) == b"JOB_TOO_BIG\r\n"
    assert client.put() == 2


def test_nothing_is_kept_of_a_body_of_4_gib(client):
    assert client.send(b"put 0 0 1 4294967295\r\n") == b""
    left = 4294967297
    piece = b"x" * (1 << 22)
    while left:
        sent = piece[:left]
        left -= len(sent)
        assert client.send(sent) == (b"" if left else b"JOB_TOO_BIG\r\n")
        assert not client.session.input_size
        assert not client.session.framer._body
    assert client.put() == 1


def test_memory_for_a_body_is_taken_as_it_arrives():
    client = World(max_job_size=1 << 30).connect()
    assert client.send(b"put 0 0 1 1073741824\r\nabc") == b""
    assert client.session.framer._body.getvalue() == b"abc"


class NoRoom(io.BytesIO):
    """Stands for a body when memory is short."""

    def write(self, piece):
        raise MemoryError


def test_a_large_body_in_pieces_is_in_memory_once():
    client = World(max_job_size=1 << 30).connect()
    size = 16 << 20
    piece = b"x" * (1 << 18)
    tracemalloc.start()
    try:
        client.send(b"put 0 0 60 %d\r\n" % size)
        for _ in range(size // len(piece)):
            client.send(piece)
        assert client.send(b"\r\n") == b"INSERTED 1\r\n"
        assert tracemalloc.get_traced_memory()[1] < size * 1.3
    finally:
        tracemalloc.stop()
    assert client.session.queue.jobs[1].body == b"x" * size


def test_a_body_that_does_not_fit_into_memory_is_dropped_to_its_end(world, client):
    assert client.send(b"put 0 0 1 20\r\n") == b""
    client.session.framer._body = NoRoom()
    assert client.send(b"0123456789") == b""
    assert client.send(b"0123456789\r\nlist-tube-used\r\n") == b"OUT_OF_MEMORY\r\nUSING default\r\n"
    assert client.send(b"put 0 0 1 20\r\n0123456789") == b""
    client.session.framer._body = NoRoom(b"0123456789")
    assert client.send(b"0123456789\r\nlist-tube-used\r\n") == b"OUT_OF_MEMORY\r\nUSING default\r\n"
    assert client.send(b"put 0 0 1 65536\r\n" + b"x" * 65538) == b"JOB_TOO_BIG\r\n"
    assert client.put() == 3
    assert client.yaml(b"stats")["total-jobs"] == "1"


def test_a_body_may_come_in_pieces(client):
    assert client.send(b"put 0 0 1 5\r\nab") == b""
    assert client.send(b"cde") == b""
    assert client.send(b"\r") == b""
    assert client.send(b"\npeek-ready\r\n") == b"INSERTED 1\r\nFOUND 1 5\r\nabcde\r\n"


def test_bodies_in_pieces_do_not_mix(client):
    for body in (b"first", b"other"):
        assert client.send(b"put 0 0 1 5\r\n" + body[:2]) == b""
        assert client.send(body[2:] + b"\r\n").startswith(b"INSERTED")
    assert client.send(b"peek 1\r\npeek 2\r\n") == b"FOUND 1 5\r\nfirst\r\nFOUND 2 5\r\nother\r\n"


def test_a_nul_after_a_put_that_is_too_big_makes_it_malformed(client):
    assert client.send(b"put 0 0 1 99999999 \0\r\nlist-tube-used\r\n") == BAD + b"USING default\r\n"


def test_drain_mode(world, client):
    client.put()
    world.broker.drain()
    assert client.send(b"put 0 0 1 1\r\nx\r\n") == b"DRAINING\r\n"
    assert client.send(b"put 0 0 1 1\r\nxyz") == b"EXPECTED_CRLF\r\n"
    assert client.send(b"reserve\r\n") == b"RESERVED 1 1\r\nx\r\n"
    assert client.send(b"release 1 0 0\r\n") == b"RELEASED\r\n"
    assert client.yaml(b"stats")["draining"] == "true"


def test_drain_mode_begins_and_ends_by_command_and_the_log_says_so(client, caplog):
    caplog.set_level("INFO")
    assert client.send(b"drain\r\nput 0 0 1 1\r\nx\r\n") == b"DRAINING\r\nDRAINING\r\n"
    assert client.yaml(b"stats")["draining"] == "true"
    assert client.send(b"undrain\r\nput 0 0 1 1\r\nx\r\n").startswith(b"NOT_DRAINING\r\nINSERTED ")
    assert client.yaml(b"stats")["draining"] == "false"
    assert caplog.messages == ["draining: new jobs are refused", "not draining any more: new jobs are taken"]


def test_a_put_whose_body_comes_after_a_drain_is_refused(world, client):
    assert client.send(b"put 0 0 1 5\r\nhel") == b""
    assert world.connect().send(b"drain\r\n") == b"DRAINING\r\n"
    assert client.send(b"lo\r\n") == b"DRAINING\r\n"


class FullJournal(Journal):
    keeps = True

    def put(self, job):
        return False


def test_put_without_room_changes_nothing():
    world = World(FullJournal())
    client = world.connect()
    assert client.send(b"put 0 0 1 1\r\nx\r\n") == b"OUT_OF_MEMORY\r\n"
    assert client.yaml(b"stats")["total-jobs"] == "0"
    assert client.send(b"peek 1\r\n") == b"NOT_FOUND\r\n"
    world.check()


# reserve


def test_reserve_takes_the_smallest_priority_and_then_the_smallest_id_over_all_watched_tubes(client):
    client.send(b"use a\r\n")
    client.put(priority=5)
    client.put(priority=3)
    client.send(b"use b\r\n")
    client.put(priority=3)
    client.put(priority=4)
    client.send(b"watch a\r\nwatch b\r\n")
    replies = client.send(b"reserve\r\n" * 4)
    assert [line for line in replies.split(b"\r\n") if line.startswith(b"RESERVED")] == [
        b"RESERVED 2 1",
        b"RESERVED 3 1",
        b"RESERVED 4 1",
        b"RESERVED 1 1",
    ]


def test_a_released_job_comes_back_at_its_old_place(client):
    for _ in range(3):
        client.put()
    client.send(b"reserve\r\nrelease 1 0 0\r\n")
    assert client.send(b"reserve\r\n").startswith(b"RESERVED 1 ")


def test_waiting_clients_are_served_longest_waiting_first(world, client):
    waiting = [world.connect() for _ in range(3)]
    for worker in waiting:
        assert worker.send(b"reserve\r\n") == b""
    for number, worker in enumerate(waiting, 1):
        client.put()
        assert worker.read() == b"RESERVED %d 1\r\nx\r\n" % number


def test_commands_after_a_waiting_reserve_wait_too(world, client):
    worker = world.connect()
    assert worker.send(b"reserve\r\nlist-tube-used\r\ndelete 1\r\n") == b""
    client.put()
    assert worker.read() == b"RESERVED 1 1\r\nx\r\nUSING default\r\nDELETED\r\n"


def test_reserve_with_timeout(world, client):
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    assert client.send(b"reserve-with-timeout 2\r\n") == b""
    world.sleep(1.999)
    assert client.read() == b""
    world.sleep(0.011)
    assert client.read() == b"TIMED_OUT\r\n"
    assert world.is_idle()


def test_a_wait_that_ends_with_a_job_leaves_no_timer(world, client):
    worker = world.connect()
    worker.send(b"reserve-with-timeout 5\r\n")
    client.put()
    worker.read()
    worker.send(b"delete 1\r\n")
    world.sleep(10)
    assert worker.read() == b""
    assert world.is_idle()


@pytest.mark.parametrize("number", [b"", b" ", b"x", b"-1", b"+1", b"2147483648", b"99999999999999999999999"])
def test_reserve_with_a_timeout_that_is_not_a_number(client, number):
    assert client.send(b"reserve-with-timeout " + number + b"\r\n") == BAD


def test_reserve_with_timeout_ignores_what_follows_its_number(client):
    assert client.send(b"reserve-with-timeout  0 seconds\r\n") == b"TIMED_OUT\r\n"


def test_deadline_soon_at_once_and_while_waiting(world, client):
    client.put(ttr=3)
    client.send(b"reserve\r\n")
    assert client.send(b"reserve\r\n") == b""
    world.sleep(2.02)
    assert client.read() == b"DEADLINE_SOON\r\n"
    assert client.send(b"reserve\r\n") == b"DEADLINE_SOON\r\n"
    assert client.send(b"reserve-with-timeout 0\r\n") == b"DEADLINE_SOON\r\n"
    assert client.send(b"touch 1\r\nreserve-with-timeout 0\r\n") == b"TOUCHED\r\nTIMED_OUT\r\n"
    world.sleep(2.5)
    client.put(b"y")
    assert client.send(b"reserve\r\n") == b"RESERVED 2 1\r\ny\r\n", "a ready job goes before DEADLINE_SOON"


def test_deadline_soon_where_only_a_paused_tube_has_a_ready_job(client):
    client.put(ttr=1)
    client.put()
    client.send(b"reserve\r\npause-tube default 10\r\n")
    assert client.send(b"reserve\r\n") == b"DEADLINE_SOON\r\n"


def test_a_job_whose_ttr_runs_out_is_ready_again(world, client):
    client.put(ttr=2)
    worker = world.connect()
    client.send(b"reserve\r\n")
    worker.send(b"reserve\r\n")
    world.sleep(1.99)
    assert worker.read() == b""
    world.sleep(0.02)
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"
    assert client.send(b"delete 1\r\ntouch 1\r\nrelease 1 0 0\r\nbury 1 0\r\n") == b"NOT_FOUND\r\n" * 4
    stats = client.yaml(b"stats-job 1")
    assert (stats["timeouts"], stats["reserves"], stats["releases"]) == ("1", "2", "0")
    assert client.yaml(b"stats")["job-timeouts"] == "1"


def test_a_client_that_shuts_down_its_sending_side_while_it_waits_gets_timed_out(world, client):
    worker = world.connect()
    assert worker.send(b"reserve\r\nlist-tube-used\r\nreserve\r\n") == b""
    assert worker.shut_down() == b"TIMED_OUT\r\nUSING default\r\nTIMED_OUT\r\n"
    assert worker.session.closed
    assert client.yaml(b"stats")["current-waiting"] == "0"


def test_a_client_that_shuts_down_after_half_a_command_is_closed(client):
    client.send(b"put 0 0 1 100\r\nhalf")
    assert client.shut_down() == b""
    assert client.session.closed


def test_a_client_that_disconnects_gives_back_its_jobs_and_its_place(world, client):
    first, second = world.connect(), world.connect()
    holder = world.connect()
    client.put(priority=1)
    client.put(priority=0)
    client.put(priority=2)
    for number in (1, 3, 2):
        holder.send(b"reserve-job %d\r\n" % number)
    first.send(b"reserve\r\n")
    second.send(b"reserve\r\n")
    first.disconnect()
    holder.disconnect()
    assert second.read() == b"RESERVED 1 1\r\nx\r\n"
    assert client.yaml(b"stats-tube default")["current-jobs-ready"] == "2"


def test_what_was_sent_before_a_half_close_is_done_over_many_turns(world, client):
    client.session.receive(b"list-tube-used\r\n" * 3 * SESSION_QUANTUM, world.now)
    assert client.session.has_more
    assert client.shut_down() == b"USING default\r\n" * 3 * SESSION_QUANTUM
    assert client.session.closed


def test_a_half_close_waits_for_the_answer_to_a_kick(world, client):
    for _ in range(600):
        client.put(delay=100)
    client.session.receive(b"kick 600\r\n", world.now)
    client.session.receive(b"list-tube-used\r\n", world.now)  # comes while the kick is under way
    client.session.end_input()
    client.go_on()
    assert client.read() == b""
    assert not client.session.closed
    world.settle()
    assert client.read() == b"KICKED 600\r\nUSING default\r\n"
    assert client.session.closed


def test_nothing_is_kept_of_what_comes_after_a_quit(client):
    assert client.send(b"put 0 0 60 1\r\nx\r\nquit\r\nlist-tube-used\r\n") == b"INSERTED 1\r\n"
    assert client.session.closed
    assert client.session.input_size == 0
    for _ in range(3):
        assert client.send(b"list-tube-used\r\n") == b""
    assert client.session.input_size == 0


def test_input_that_comes_in_pieces_during_a_wait_is_joined_once(world, client):
    client.send(b"reserve\r\n")
    sent = b"list-tube-used\r\n" * 1000
    for place in range(0, len(sent), 2):
        client.send(sent[place : place + 2])
    assert len(client.session.framer._queued) == len(sent) / 2 - 1, (
        "otherwise, each piece costs a copy of all before it"
    )
    assert client.session.input_size == len(sent)
    world.connect().put()
    assert client.read() == b"RESERVED 1 1\r\nx\r\n" + b"USING default\r\n" * 1000


@pytest.mark.parametrize("user", [None, User("u", produce=["*"])])
@pytest.mark.parametrize("target", [b"/", b"/" + b"a" * 300, b"/" + b"a" * 1000], ids=len)
def test_what_a_browser_sends_puts_no_job(world, user, target):
    request = b"POST %b HTTP/1.1\r\nHost: localhost:11300\r\n\r\n" % target
    for pieces in ([request + b"put 0 0 60 1\r\nx\r\n"], [request, b"put 0 0 60 1\r\nx\r\n"]):
        client = world.connect(user)
        assert b"".join(map(client.send, pieces)) == b"UNKNOWN_COMMAND\r\n"
        assert client.session.closed and client.session.speaks_http
    assert not world.broker.jobs


def test_a_word_that_is_a_method_of_http_is_an_unknown_command(client):
    assert client.send(b"GET\r\npost / HTTP/1.1\r\nGETTER x\r\n") == b"UNKNOWN_COMMAND\r\n" * 3
    assert not client.session.closed


def test_quit_ends_the_conversation(client):
    assert client.send(b"list-tube-used\r\nquit\r\nlist-tube-used\r\n") == b"USING default\r\n"
    assert client.session.closed


@pytest.mark.parametrize("line", [b"quit now", b"quitter", b"quit"])
def test_every_line_that_begins_with_quit_is_a_quit(client, line):
    client.send(line + b"\r\n")
    assert client.session.closed


def test_reserve_job_from_ready_delayed_and_buried(world, client):
    worker = world.connect()
    client.put()
    client.put(delay=100)
    client.put()
    client.send(b"reserve-job 3\r\nbury 3 0\r\n")
    for number in (1, 2, 3):
        assert worker.send(b"reserve-job %d\r\n" % number) == b"RESERVED %d 1\r\nx\r\n" % number
        assert client.send(b"reserve-job %d\r\n" % number) == b"NOT_FOUND\r\n"
    assert worker.send(b"reserve-job 4\r\nreserve-job x\r\nreserve-job 1 \r\n") == b"NOT_FOUND\r\n" + BAD + BAD
    world.sleep(61)
    assert client.yaml(b"stats")["current-jobs-ready"] == "3"


# What a worker does with a job


def test_delete_in_every_state(world, client):
    other = world.connect()
    for delay in (0, 0, 100, 0):
        client.put(delay=delay)
    client.send(b"reserve-job 2\r\nbury 2 0\r\nreserve-job 4\r\n")
    assert other.send(b"delete 4\r\n") == b"NOT_FOUND\r\n"
    assert client.send(b"delete 1\r\ndelete 2\r\ndelete 3\r\ndelete 4\r\n") == b"DELETED\r\n" * 4
    assert client.send(b"delete 1\r\n") == b"NOT_FOUND\r\n"
    assert client.yaml(b"stats-tube default")["cmd-delete"] == "4"
    world.sleep(200)
    assert world.is_idle()


@pytest.mark.parametrize("command", [b"delete", b"peek", b"touch", b"kick-job", b"stats-job", b"reserve-job"])
def test_ids_are_numbers_below_2_to_the_64(client, command):
    for number in (b"1", b"   1", b"0", b"007", b"18446744073709551615"):
        assert client.send(command + b" " + number + b"\r\n") == b"NOT_FOUND\r\n"
    for number in (b"", b" ", b"-1", b"+1", b"1 ", b"1x", b"1 2", b"\t1", b"1_0", b"18446744073709551616"):
        assert client.send(command + b" " + number + b"\r\n") == BAD


def test_release_with_and_without_delay(world, client):
    client.put(priority=9)
    client.send(b"reserve\r\n")
    assert client.send(b"release 1 2000 3\r\n") == b"RELEASED\r\n"
    stats = client.yaml(b"stats-job 1")
    assert (stats["state"], stats["pri"], stats["delay"], stats["releases"]) == ("delayed", "2000", "3", "1")
    assert client.send(b"reserve-with-timeout 2\r\n") == b""
    world.sleep(2.5)
    assert client.read() == b"TIMED_OUT\r\n"
    assert client.send(b"reserve\r\n") == b""
    world.sleep(0.6)
    assert client.read() == b"RESERVED 1 1\r\nx\r\n"
    assert client.send(b"release 1 0 0\r\nrelease 1 0 0\r\n") == b"RELEASED\r\nNOT_FOUND\r\n"


@pytest.mark.parametrize(
    "line", [b"1 0", b"1 0 0 ", b"1 0 0 0", b"x 0 0", b"1 -1 0", b"1 0 4294967296", b"1 4294967296 0"]
)
def test_malformed_releases_are_refused(client, line):
    assert client.send(b"release " + line + b"\r\n") == BAD


@pytest.mark.parametrize("line", [b"1", b"1 ", b"1 0 ", b"1 x", b"1 4294967296", b"18446744073709551616 0"])
def test_malformed_buries_are_refused(client, line):
    assert client.send(b"bury " + line + b"\r\n") == BAD


def test_buried_jobs_are_kicked_first_buried_first(client):
    for _ in range(3):
        client.put()
    client.send(b"reserve\r\nreserve\r\nreserve\r\nbury 2 0\r\nbury 3 0\r\nbury 1 0\r\n")
    assert client.send(b"peek-buried\r\n") == b"FOUND 2 1\r\nx\r\n"
    assert client.send(b"kick 2\r\npeek-buried\r\n") == b"KICKED 2\r\nFOUND 1 1\r\nx\r\n"
    stats = client.yaml(b"stats-job 2")
    assert (stats["state"], stats["buries"], stats["kicks"]) == ("ready", "1", "1")


def test_kick_takes_delayed_jobs_soonest_first_when_none_is_buried(client):
    client.put(delay=30)
    client.put(delay=10)
    client.put(delay=20)
    client.put()
    client.send(b"reserve\r\nbury 4 0\r\n")
    assert client.send(b"kick 10\r\n") == b"KICKED 1\r\n"
    assert client.send(b"peek-delayed\r\nkick 2\r\npeek-delayed\r\n") == (
        b"FOUND 2 1\r\nx\r\nKICKED 2\r\nFOUND 1 1\r\nx\r\n"
    )


@pytest.mark.parametrize(
    ("number", "reply"),
    [
        (b"1", b"KICKED 1\r\n"),
        (b"0", b"KICKED 0\r\n"),
        (b" \t1", b"KICKED 1\r\n"),
        (b"+1x", b"KICKED 1\r\n"),
        (b"-1", b"KICKED 3\r\n"),
        (b"4294967296", b"KICKED 0\r\n"),
        (b"4294967297", b"KICKED 1\r\n"),
        (b"18446744073709551615", b"KICKED 3\r\n"),
        (b"18446744073709551616", BAD),
        (b"", BAD),
        (b"x", BAD),
        (b"- 1", BAD),
    ],
)
def test_kick_reads_its_number_as_beanstalkd_does(client, number, reply):
    for _ in range(3):
        client.put(delay=10)
    assert client.send(b"kick " + number + b"\r\n") == reply


def test_kick_job(client):
    client.put(delay=10)
    client.put()
    assert client.send(b"kick-job 1\r\nkick-job 1\r\nkick-job 2\r\nkick-job 9\r\n") == (
        b"KICKED\r\nNOT_FOUND\r\nNOT_FOUND\r\nNOT_FOUND\r\n"
    )


def test_a_kick_of_more_jobs_than_a_slice_is_answered_when_it_is_done(world, client):
    other = world.connect()
    for _ in range(1300):
        client.put(delay=100)
    client.session.receive(b"kick 1200\r\nlist-tube-used\r\n", world.now)
    assert client.read() == b""
    assert other.send(b"list-tube-used\r\n") == b"USING default\r\n"
    world.settle()
    assert client.read() == b"KICKED 1200\r\nUSING default\r\n"
    assert client.yaml(b"stats-tube default")["current-jobs-delayed"] == "100"


@pytest.mark.parametrize(("is_buried", "price"), [(True, 1), (False, KICK_COST)])
def test_what_a_kick_does_at_once_is_charged_and_delayed_jobs_have_another_price(world, client, is_buried, price):
    for number in range(1, 601):
        client.put(delay=0 if is_buried else 100)
        if is_buried:
            client.send(b"reserve-job %d\r\nbury %d 0\r\n" % (number, number))
    client.session.receive(b"kick 600\r\n", world.now)
    kicked = world.broker.ready
    assert kicked == SLICE // price
    assert client.session.cost >= kicked * price, "though there is no answer yet"
    world.settle()
    assert client.read() == b"KICKED 600\r\n"


def test_a_kick_ends_although_a_worker_buries_again_what_it_kicks(world, client):
    worker = world.connect()
    for _ in range(600):
        client.put()
    worker.send(b"reserve\r\n" * 600 + b"".join(b"bury %d 0\r\n" % number for number in range(1, 601)))
    client.session.receive(b"kick 4294967295\r\n", world.now)
    for number in range(1, 101):
        worker.session.receive(b"reserve-job %d\r\nbury %d 0\r\n" % (number, number), world.now)
        worker.go_on()
    world.settle()
    assert client.read() == b"KICKED 600\r\n"


def test_a_kick_that_fails_in_a_later_slice_is_answered(caplog):
    journal = BreakingJournal()
    world = World(journal)
    client = world.connect()
    for _ in range(600):
        client.put(delay=100)
    client.session.receive(b"kick 600\r\nlist-tube-used\r\n", world.now)
    journal.breaks = True
    with pytest.raises(RuntimeError):
        world.settle()
    journal.breaks = False
    world.settle()
    assert client.read() == b"INTERNAL_ERROR\r\nUSING default\r\n"
    world.check()


def test_a_client_may_disconnect_during_its_kick(world, client):
    for _ in range(1300):
        client.put(delay=100)
    client.session.receive(b"kick 1200\r\n", world.now)
    client.disconnect()
    assert world.connect().yaml(b"stats")["current-jobs-ready"] == "1200"


def test_a_client_that_waits_in_many_tubes_leaves_them_in_slices_and_is_served_no_more(world, client):
    gone = wide(world)
    gone.send(b"reserve\r\n")
    client.send(b"use t3999\r\nwatch t3999\r\nignore default\r\n")
    before = len(world.broker.tubes)
    gone.session.disconnect(world.now)
    world.check()
    assert before - 512 <= len(world.broker.tubes) < before
    assert world.broker.waiting == 0
    assert client.send(b"reserve\r\n") == b""
    world.check()
    assert client.session.waiting
    other = world.connect()
    other.session.receive(b"use t3998\r\nput 0 0 60 1\r\nx\r\nuse t3999\r\nput 0 0 60 1\r\ny\r\n", world.now)
    world.check()
    world.settle()
    assert client.read() == b"RESERVED 2 1\r\ny\r\n"
    assert not gone.session.reserved
    assert other.send(b"list-tubes\r\n").endswith(b"\r\n---\n- default\n- t3999\n- t3998\n\r\n")
    assert other.yaml(b"stats-tube t3998")["current-waiting"] == "0"
    assert other.yaml(b"stats-tube t3999")["current-watching"] == "1"


def test_a_tube_that_is_left_in_slices_may_be_used_and_paused_meanwhile(world, client):
    gone = wide(world)
    gone.send(b"reserve\r\n")
    gone.session.disconnect(world.now)
    client.session.receive(b"use t3000\r\npause-tube t3000 10\r\nput 0 0 60 1\r\nx\r\nwatch t3000\r\n", world.now)
    world.check()
    world.settle()
    assert client.read().endswith(b"WATCHING 2\r\n")
    assert client.send(b"reserve\r\n") == b""
    world.sleep(11)
    assert client.read() == b"RESERVED 1 1\r\nx\r\n"
    assert len(world.broker.tubes) == 2


def test_a_client_that_held_thousands_of_jobs_gives_them_back_in_slices(world, client):
    holder = world.connect()
    for _ in range(1300):
        client.put()
    holder.send(b"reserve\r\n" * 1300)
    holder.session.disconnect(world.now)
    world.check()
    assert 1300 - 512 <= world.broker.reserved < 1300
    assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"
    world.settle()
    assert world.broker.ready == 1300


def test_jobs_of_a_client_that_is_gone_may_time_out_and_be_reserved_before_they_are_given_back(world, client):
    holder = world.connect()
    for ttr in (1, 60):
        client.send(b"put 0 0 %d 1\r\nx\r\n" % ttr * 1000)
    holder.send(b"reserve\r\n" * 2000)
    holder.session.disconnect(world.now)
    world.check()
    world.now += 2_000_000_000
    worker = world.connect()
    while world.broker.next_event() <= world.now:
        world.broker.advance(world.now, 100)
        worker.session.receive(b"reserve-with-timeout 0\r\n", world.now)
        world.check()
    held = [job.id for job in worker.session.reserved]
    assert held[0] == 1
    assert len(set(held)) == len(held) == world.broker.reserved
    assert world.broker.ready == 2000 - len(held)
    assert 0 < world.broker.timeouts <= 1000


# Tubes


@pytest.mark.parametrize("name", [b"a", b"a" * 200, b"0", b"+/;.$_()-", b"A-Z"])
def test_names_of_tubes(client, name):
    assert client.send(b"use " + name + b"\r\n") == b"USING " + name + b"\r\n"
    assert client.send(b"watch " + name + b"\r\n") == b"WATCHING 2\r\n"
    assert client.send(b"list-tube-used\r\n") == b"USING " + name + b"\r\n"


@pytest.mark.parametrize("name", [b"", b"-a", b"a" * 201, b"a b", b"a ", b" a", "ä".encode(), b"a\n", b"a*", b"a\0"])
@pytest.mark.parametrize("command", [b"use", b"watch", b"ignore", b"stats-tube"])
def test_malformed_names_are_refused(client, command, name):
    assert client.send(command + b" " + name + b"\r\n") == BAD


def test_watch_twice_counts_once_and_the_last_tube_cannot_be_ignored(client):
    assert client.send(b"watch a\r\nwatch a\r\nignore default\r\nignore a\r\nignore b\r\n") == (
        b"WATCHING 2\r\nWATCHING 2\r\nWATCHING 1\r\nNOT_IGNORED\r\nWATCHING 1\r\n"
    )
    assert client.send(b"list-tubes-watched\r\n") == b"OK 8\r\n---\n- a\n\r\n"


def test_a_tube_exists_while_it_has_a_job_a_user_or_a_watcher(world, client):
    def names():
        return [line[2:] for line in client.send(b"list-tubes\r\n").decode().split("\n")[2:-2]]

    assert names() == ["default"]
    client.send(b"use a\r\nwatch b\r\n")
    client.put(delay=1)
    client.send(b"use default\r\n")
    assert "a" in names()
    assert "b" in names()
    client.send(b"ignore b\r\n")
    assert "b" not in names()
    client.send(b"delete 1\r\n")
    assert "a" not in names()
    assert client.send(b"stats-tube a\r\n") == b"NOT_FOUND\r\n"
    assert client.send(b"stats-tube default\r\n").startswith(b"OK ")


def test_lists_are_in_the_order_of_beanstalkd_where_the_last_entry_fills_a_gap(client):
    client.send(b"watch a\r\nwatch b\r\nwatch c\r\nignore a\r\n")
    assert client.send(b"list-tubes-watched\r\n") == b"OK 22\r\n---\n- default\n- c\n- b\n\r\n"
    assert client.send(b"list-tubes\r\n") == b"OK 22\r\n---\n- default\n- c\n- b\n\r\n"


def test_a_paused_tube_keeps_its_clients_waiting_until_the_pause_ends(world, client):
    worker = world.connect()
    worker.send(b"reserve\r\n")
    assert client.send(b"pause-tube default 2\r\n") == b"PAUSED\r\n"
    client.put()
    client.put()
    assert worker.read() == b""
    assert client.send(b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    stats = client.yaml(b"stats-tube default")
    assert (stats["pause"], stats["pause-time-left"], stats["cmd-pause-tube"]) == ("2", "1", "1")
    world.sleep(1.9)
    assert worker.read() == b""
    world.sleep(0.11)
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"
    assert client.yaml(b"stats-tube default")["pause"] == "0"


def test_a_pause_of_0_ends_at_once(client):
    client.put()
    assert client.send(b"pause-tube default 0\r\nreserve-with-timeout 0\r\n") == b"PAUSED\r\nRESERVED 1 1\r\nx\r\n"


def test_a_pause_that_is_ended_early_serves_all_waiting_clients(world, client):
    workers = [world.connect() for _ in range(600)]
    for worker in workers:
        worker.send(b"reserve\r\n")
    client.send(b"pause-tube default 3600\r\n")
    for _ in range(600):
        client.put()
    client.session.receive(b"pause-tube default 0\r\n", world.now)
    world.check()
    world.settle()
    assert [worker.read() for worker in workers] == [b"RESERVED %d 1\r\nx\r\n" % n for n in range(1, 601)]


def test_no_client_overtakes_those_that_wait_while_they_are_served_after_a_pause(world, client):
    workers = [world.connect() for _ in range(1300)]
    for worker in workers:
        worker.send(b"reserve\r\n")
    client.send(b"pause-tube default 3600\r\n")
    for _ in range(1301):
        client.put()
    client.session.receive(b"pause-tube default 0\r\n", world.now)
    newcomer = world.connect()
    newcomer.session.receive(b"reserve\r\n", world.now)
    assert newcomer.read() == b""
    world.settle()
    assert newcomer.read() == b"RESERVED 1301 1\r\nx\r\n"
    assert workers[-1].read() == b"RESERVED 1300 1\r\nx\r\n"


def test_a_pause_of_0_gives_the_jobs_to_waiting_clients(world, client):
    worker = world.connect()
    client.put()
    client.send(b"pause-tube default 100\r\n")
    worker.send(b"reserve\r\n")
    assert client.send(b"pause-tube default 0\r\nreserve-with-timeout 0\r\n") == b"PAUSED\r\nTIMED_OUT\r\n"
    assert worker.read() == b"RESERVED 1 1\r\nx\r\n"


def test_a_tube_that_goes_takes_its_pause_with_it(world, client):
    client.send(b"watch a\r\npause-tube a 100\r\nignore a\r\nwatch a\r\n")
    assert client.yaml(b"stats-tube a")["pause-time-left"] == "0"
    assert world.broker.wheel.check() == 0


def test_a_pause_with_many_waiting_clients_ends_in_slices(world, client):
    workers = [world.connect() for _ in range(1200)]
    for worker in workers:
        worker.send(b"reserve\r\n")
    client.send(b"pause-tube default 1\r\n")
    for _ in range(1100):
        client.put()
    world.now += 2_000_000_000
    world.broker.advance(world.now)
    world.check()
    assert 0 < world.broker.reserved < 1100
    client.put(priority=1)  # must not overtake the jobs that are ready
    world.check()
    world.settle()
    assert [worker.read() for worker in workers[:1100]] == [b"RESERVED %d 1\r\nx\r\n" % n for n in range(1, 1101)]
    assert workers[1100].read() == b"RESERVED 1101 1\r\nx\r\n"


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"pause-tube default 1", b"PAUSED\r\n"),
        (b"pause-tube   default   1", b"PAUSED\r\n"),
        (b"pause-tubedefault 1", b"PAUSED\r\n"),
        (b"pause-tube other 1", b"NOT_FOUND\r\n"),
        (b"pause-tube default", BAD),
        (b"pause-tube default ", BAD),
        (b"pause-tube default x", BAD),
        (b"pause-tube default 1 ", BAD),
        (b"pause-tube default -1", BAD),
        (b"pause-tube default 4294967296", BAD),
        (b"pause-tube -default 1", BAD),
        (b"pause-tube " + b"a" * 201 + b" 1", BAD),
        (b"pause-tube", BAD),
    ],
)
def test_the_arguments_of_pause_tube(client, line, reply):
    assert client.send(line + b"\r\n") == reply


# peek and statistics


def test_peeks_look_at_the_used_tube_and_peek_at_any_job(client):
    client.put(b"ready")
    client.put(b"delayed", delay=9)
    client.put(b"buried", priority=0)
    client.send(b"reserve-job 3\r\nbury 3 0\r\n")
    assert client.send(b"peek-ready\r\npeek-delayed\r\npeek-buried\r\n") == (
        b"FOUND 1 5\r\nready\r\nFOUND 2 7\r\ndelayed\r\nFOUND 3 6\r\nburied\r\n"
    )
    client.send(b"use other\r\n")
    assert client.send(b"peek-ready\r\npeek-delayed\r\npeek-buried\r\n") == b"NOT_FOUND\r\n" * 3
    assert client.send(b"peek 2\r\npeek 4\r\n") == b"FOUND 2 7\r\ndelayed\r\nNOT_FOUND\r\n"


def test_the_age_of_a_job_is_counted_from_its_command_not_from_the_end_of_its_body(world, client):
    client.send(b"put 0 0 1 1\r\n")
    world.sleep(2.5)
    client.send(b"x\r\n")
    assert client.yaml(b"stats-job 1")["age"] == "2"


def test_stats_job_has_every_key_in_order(world, client):
    client.send(b"use tube\r\n")
    client.put(priority=7, delay=3, ttr=5)
    world.sleep(1.5)
    document = (
        b'---\nid: 1\ntube: "tube"\nstate: delayed\npri: 7\nage: 1\ndelay: 3\nttr: 5\ntime-left: 1\nfile: 0\n'
        b"reserves: 0\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0\n"
    )
    assert client.send(b"stats-job 1\r\n") == b"OK %d\r\n%b\r\n" % (len(document), document)
    client.send(b"reserve-job 1\r\n")
    world.sleep(1.5)
    stats = client.yaml(b"stats-job 1")
    assert (stats["state"], stats["time-left"], stats["age"]) == ("reserved", "3", "3")
    world.sleep(3)
    assert client.yaml(b"stats-job 1")["time-left"] == "0"


def test_stats_tube_has_every_key_in_order(client):
    client.put(priority=1023)
    client.put(priority=1024)
    client.put(delay=9)
    document = (
        b'---\nname: "default"\ncurrent-jobs-urgent: 1\ncurrent-jobs-ready: 2\ncurrent-jobs-reserved: 0\n'
        b"current-jobs-delayed: 1\ncurrent-jobs-buried: 0\ntotal-jobs: 3\ncurrent-using: 1\ncurrent-watching: 1\n"
        b"current-waiting: 0\ncmd-delete: 0\ncmd-pause-tube: 0\npause: 0\npause-time-left: 0\n"
    )
    assert client.send(b"stats-tube default\r\n") == b"OK %d\r\n%b\r\n" % (len(document), document)


STATS = f"""---
current-jobs-urgent: 0
current-jobs-ready: 0
current-jobs-reserved: 0
current-jobs-delayed: 0
current-jobs-buried: 0
cmd-put: 0
cmd-peek: 0
cmd-peek-ready: 0
cmd-peek-delayed: 0
cmd-peek-buried: 0
cmd-reserve: 0
cmd-reserve-with-timeout: 0
cmd-delete: 0
cmd-release: 0
cmd-use: 0
cmd-watch: 0
cmd-ignore: 0
cmd-bury: 0
cmd-kick: 0
cmd-touch: 0
cmd-stats: 1
cmd-stats-job: 0
cmd-stats-tube: 0
cmd-list-tubes: 0
cmd-list-tube-used: 0
cmd-list-tubes-watched: 0
cmd-pause-tube: 0
job-timeouts: 0
total-jobs: 0
max-job-size: 65535
current-tubes: 1
current-connections: 1
current-producers: 0
current-workers: 0
current-waiting: 0
total-connections: 1
pid: 0
version: "1.13"
rusage-utime: 1.500000
rusage-stime: 0.000001
uptime: 0
binlog-oldest-index: 0
binlog-current-index: 0
binlog-records-migrated: 0
binlog-records-written: 0
binlog-max-size: 10485760
draining: false
id: 0123456789abcdef
hostname: "host"
os: "#1 SMP"
platform: "x86_64"
cmd-put-keyed: 0
cmd-replace-keyed: 0
cmd-cancel: 0
cmd-cancel-keyed: 0
cmd-reschedule: 0
cmd-reschedule-keyed: 0
cmd-peek-keyed: 0
cmd-reserve-batch: 0
cmd-clear-tube: 0
cmd-put-with: 0
cmd-redrive: 0
cmd-list-jobs: 0
cmd-stats-tubes: 0
cmd-list-clients: 0
cmd-move-jobs: 0
cmd-drain: 0
cmd-undrain: 0
current-memory: 0
max-memory: 0
refused-jobs: 0
refused-bytes: 0
refused-delay: 0
refused-size: 0
expired-jobs: 0
dead-jobs: 0
retried-jobs: 0
redriven-jobs: 0
held-keys: 0
server: beanstalk-server {VERSION}
"""


def test_stats_has_every_key_in_order(world, client):
    process = world.info
    process.instance, process.hostname = "0123456789abcdef", "host"
    process.os, process.platform = "#1 SMP", "x86_64"
    process.cpu_times = lambda: (1.5, 0.000001)
    assert client.send(b"stats\r\n") == b"OK %d\r\n%b\r\n" % (len(STATS), STATS.encode())


def test_every_command_is_counted_when_it_is_well_formed(client):
    client.send(b"put 0 0 1 1\r\nx\r\nput 0 0 1 99999999 x\r\n" + b"x" * 100_000_001)
    lines = (
        "peek 1|peek-ready|peek-delayed|peek-buried|reserve|reserve-with-timeout 0|delete 9|release 9 0 0|use a|"
        "watch a|ignore a|bury 9 0|kick 1|touch 9|stats-job 9|stats-tube a|list-tubes|list-tube-used|"
        "list-tubes-watched|pause-tube a 1|pause-tube -a 1|cancel 9|cancel-keyed k|reschedule 9 1|reschedule-keyed k 1|"
        "peek-keyed k|reserve-batch 1 0|clear-tube a|put-keyed k 0 0 1 99999999|replace-keyed k 0 0 1 99999999|"
        "put-with 0 0 1 99999999 tries=2|redrive a 5|list-jobs a ready 0 1|stats-tubes - 1|"
        "list-clients|move-jobs a ready b 1|undrain|drain"
    )
    for line in lines.split("|"):
        client.send(line.encode() + b"\r\n" + (b"x" * 100_000_001 if "999" in line else b""))
    client.send(
        b"cancel x\r\nstats-tubes a 0\r\nreschedule 1\r\nreserve-batch 0 0\r\nclear-tube -\r\nput-keyed k 0 0 1\r\n"
    )
    client.send(b"list-jobs a ready 0 0\r\n")
    client.send(b"delete x\r\nput 0 0 1 1 \r\nreserve \r\nrelease 1\r\nkick\r\nuse -\r\n")
    stats = client.yaml(b"stats")
    counts = {key: int(value) for key, value in stats.items() if key.startswith("cmd-")}
    twice = {"cmd-put": 3, "cmd-pause-tube": 2}
    assert counts == {key: twice.get(key, 1) for key in counts}


def test_stats_count_connections_by_what_they_have_done(world, client):
    producer, worker, waiting = (world.connect() for _ in range(3))
    producer.send(b"use other\r\n")
    producer.put()
    producer.put()
    worker.send(b"reserve-job 1\r\nreserve-job 1\r\n")
    waiting.send(b"watch third\r\nreserve\r\n")
    stats = client.yaml(b"stats")
    names = "current-connections current-producers current-workers current-waiting current-tubes total-jobs"
    assert [stats[name] for name in names.split()] == ["4", "1", "2", "1", "3", "2"]
    assert client.yaml(b"stats-tube third")["current-waiting"] == "1"
    assert client.yaml(b"stats-tube default")["current-using"] == "3"
    for caller in (producer, worker, waiting):
        caller.disconnect()
    stats = client.yaml(b"stats")
    assert [stats[name] for name in names.split()] == ["1", "0", "0", "0", "2", "2"]
    assert stats["total-connections"] == "4"


# What goes wrong


class BreakingJournal(Journal):
    keeps = True

    def __init__(self):
        self.breaks = False

    def put(self, job):
        return self._fail()

    def change(self, job):
        self._fail()

    def delete(self, job):
        self._fail()

    def _fail(self):
        if self.breaks:
            raise RuntimeError("broken")
        return True


def test_a_bug_in_a_command_answers_internal_error_and_affects_no_other_client(caplog):
    journal = BreakingJournal()
    world = World(journal)
    client, other = world.connect(), world.connect()
    for _ in range(4):
        client.put()
    client.send(b"reserve\r\nreserve\r\nreserve\r\nbury 3 0\r\n")
    journal.breaks = True
    sent = b"put 0 0 1 1\r\nx\r\ndelete 1\r\nrelease 1 0 0\r\nbury 2 0\r\nkick 1\r\nlist-tube-used\r\n"
    assert client.send(sent) == b"INTERNAL_ERROR\r\n" * 5 + b"USING default\r\n"
    assert "RuntimeError: broken" in caplog.text
    world.check()
    journal.breaks = False
    assert other.send(b"reserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\nx\r\n"
    assert other.send(b"delete 1\r\n") == b"DELETED\r\n"


def test_no_command_is_done_for_a_client_that_does_not_read(world, client):
    client.session.pause_output()
    assert client.send(b"list-tube-used\r\n") == b""
    client.session.resume_output()
    client.go_on()
    assert client.read() == b"USING default\r\n"


def test_commands_can_be_logged(world, caplog):
    caplog.set_level("INFO")
    world.connect().session.logs_commands = True
    caller = world.connect()
    caller.session.logs_commands = True
    caller.session.name = "somebody"
    caller.send(b"use caf\xe9\x1b\r\nuse\x1b\r\n")
    assert "somebody < use caf\\xe9\\x1b" in caplog.text
    assert "somebody < no command, of 4 bytes" in caplog.text


# What the journal admits


@pytest.mark.parametrize(
    ("admits", "waits", "goes_on"),
    [
        (NONE, [b"delete 1", b"cancel 1", b"release 1 0 0", b"kick 5", b"reserve-job 1"], [b"peek 1", b"stats-job 1"]),
        (DELETIONS, [b"release 1 0 0", b"bury 1 0", b"kick-job 1", b"reschedule 1 5"], [b"cancel 1", b"delete 1"]),
    ],
)
def test_a_command_that_the_journal_does_not_admit_waits(admits, waits, goes_on):
    world = World()
    caller = world.connect()
    assert caller.put() == 1
    world.broker.set_admission(admits)
    for command in goes_on:
        assert caller.send(command + b"\r\n"), command
    for command in waits:
        waiting = world.connect()
        assert waiting.send(command + b"\r\nlist-tube-used\r\n") == b"", command
        assert waiting.session.blocked
        world.broker.set_admission(ALL)
        waiting.go_on()
        assert waiting.read().endswith(b"USING default\r\n")
        world.broker.set_admission(admits)


def test_a_put_that_the_journal_does_not_admit_waits_when_its_body_ends():
    world = World()
    caller = world.connect()
    world.broker.set_admission(NONE)
    assert caller.send(b"put 0 0 60 5\r\nab") == b""
    assert not caller.session.blocked
    assert caller.send(b"cde\r\n") == b""
    assert caller.session.blocked
    world.broker.set_admission(ALL)
    caller.go_on()
    assert caller.read() == b"INSERTED 1\r\n"


def test_a_client_that_does_not_read_is_not_blocked_by_the_journal():
    """It goes on when it reads its replies again."""
    world = World()
    caller = world.connect()
    world.broker.set_admission(NONE)
    caller.send(b"delete 1\r\n")
    assert caller.session.blocked
    caller.session.pause_output()
    world.broker.set_admission(ALL)
    caller.go_on()
    assert not caller.session.blocked
    caller.session.resume_output()
    caller.go_on()
    assert caller.read() == b"NOT_FOUND\r\n"


def test_a_kick_is_suspended_between_two_jobs_and_goes_on():
    world = World()
    caller = world.connect()
    for _ in range(1000):
        caller.put(delay=100)
    caller.session.receive(b"kick 1000\r\n", world.now)
    world.broker.set_admission(NONE)
    world.settle()
    assert caller.read() == b""
    assert world.is_idle() or world.broker.suspended
    assert 0 < world.broker.ready < 1000
    world.check()
    world.broker.set_admission(ALL)
    world.settle()
    assert caller.read() == b"KICKED 1000\r\n"
    world.check()


# What clients may watch


def watch_many(client, first, count):
    return client.send(b"".join([b"watch t%d\r\n" % number for number in range(first, first + count)]))


def test_a_client_watches_a_bounded_number_of_tubes(world, client):
    assert watch_many(client, 1, MOST_WATCHED - 1).endswith(b"WATCHING %d\r\n" % MOST_WATCHED)
    assert client.send(b"watch more\r\nwatch t1\r\n") == b"OUT_OF_MEMORY\r\nWATCHING %d\r\n" % MOST_WATCHED
    assert b"more" not in client.send(b"list-tubes\r\n"), "no tube is made"
    assert client.send(b"ignore t1\r\nwatch more\r\n").endswith(b"\r\nWATCHING %d\r\n" % MOST_WATCHED)


def test_all_clients_watch_a_bounded_number_of_tubes_beyond_the_first_of_each(world, client):
    watch_many(client, 1, 99)
    assert world.broker.watches == 100 - FREE_WATCHES
    world.broker.watches += MOST_WATCHES - 100  # as if others watched the rest, but for a few
    assert watch_many(client, 100, FREE_WATCHES + 1).endswith(b"WATCHING 116\r\nOUT_OF_MEMORY\r\n")
    other = world.connect()
    assert watch_many(other, 1, FREE_WATCHES).endswith(b"WATCHING 16\r\nOUT_OF_MEMORY\r\n")
    assert client.send(b"ignore t1\r\n") == b"WATCHING 115\r\n"
    assert other.send(b"watch t16\r\n") == b"WATCHING 17\r\n"
    other.disconnect()
    client.disconnect()
    assert world.broker.watches == MOST_WATCHES - 100


def test_a_restored_client_watches_what_it_has_watched_before(world, client):
    world.broker.watches = MOST_WATCHES
    client.session.restore("default", [f"t{number}" for number in range(100)])
    assert len(client.session.watched) == 100


# A client that another server has served before


@pytest.mark.parametrize(
    "watched",
    [["default"], ["default", "a", "b"], ["a", "default"], ["b", "a"], ["a"], [f"tube-{n}" for n in range(100)], []],
)
def test_a_client_is_restored_with_the_tubes_that_it_uses_and_watches(world, client, watched):
    client.session.restore("elsewhere", watched)
    assert client.send(b"list-tube-used\r\n") == b"USING elsewhere\r\n"
    assert [tube.name for tube in client.session.watched] == watched
    world.check()
    client.disconnect()
    world.check()


@pytest.mark.parametrize(
    ("consume", "left"), [(["*"], ["a", "b", "c"]), (["a", "c"], ["a", "c"]), (["default"], []), ([], [])]
)
def test_a_restored_client_watches_only_what_its_user_may_consume_from(world, consume, left):
    client = world.connect(User("ann", consume=consume))
    client.session.restore("default", ["a", "b", "c"])
    assert sorted(tube.name for tube in client.session.watched) == left
    world.check()
