"""Batches: many jobs in one command, each as if it had a command of its own, and one reply."""

import pytest
from checking import check_broker
from virtual import World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.policy import Policy
from beanstalk_server.queue.reserved_jobs import PAGE_JOBS
from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.wire.framing import LONGEST_LINE_LIMIT
from beanstalk_server.wire.grammar import BATCH_SIZE, MOST_IN_BATCH, MOST_PUT


def put_batch(client, bodies, head=b"0 0 60"):
    data = b"".join([b"%d\r\n%b\r\n" % (len(body), body) for body in bodies])
    return client.send(b"put-batch %b %d\r\n%b\r\n" % (head, len(data), data))


def bodies_of(client, count):
    reply = client.send(b"reserve-batch %d 0\r\n" % count)
    return reply.split(b"\r\n")[2::2][:-1] if reply.startswith(b"RESERVED_BATCH") else []


def test_bodies_of_any_bytes_are_put_in_their_order(world):
    client = world.connect()
    bodies = [b"", b"\r\n", b"5\r\nabc", bytes(range(256))]
    assert put_batch(client, bodies) == b"INSERTED_BATCH 4 1 4\r\n"
    for job_id, body in enumerate(bodies, 1):
        assert client.send(b"reserve\r\n") == b"RESERVED %d %d\r\n%b\r\n" % (job_id, len(body), body)
    check_broker(world.broker)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1",
        b"1\r\n",
        b"1\r\nx",
        b"1\r\nxy\r\n",
        b"2\r\nx\r\n",
        b"-1\r\nx\r\n",
        b"+1\r\nx\r\n",
        b"1 \r\nx\r\n",
        b"1\r\nx\r\ny",
        b"1\r\nx\r\n1\r\n",
        b"99999999999999999999\r\nx\r\n",
        b"65536\r\n" + bytes(65536) + b"\r\n",
        b"0\r\n\r\n" * (MOST_PUT + 1),
    ],
)
def test_data_that_is_malformed_puts_nothing(world, data):
    client = world.connect()
    assert client.send(b"put-batch 0 0 60 %d\r\n%b\r\n" % (len(data), data)) == b"BAD_FORMAT\r\n"
    assert not world.broker.jobs
    assert client.send(b"list-tube-used\r\n") == b"USING default\r\n"


def test_the_most_jobs_and_the_most_bytes(world):
    client = world.connect()
    assert put_batch(client, [b""] * MOST_PUT) == b"INSERTED_BATCH 512 1 512\r\n"
    body = bytes(50_000)
    assert put_batch(client, [body] * 20) == b"INSERTED_BATCH 20 513 532\r\n"
    assert put_batch(client, [body] * 21) == b"JOB_TOO_BIG\r\n"
    assert len(world.broker.jobs) == 532
    assert BATCH_SIZE > 20 * 50_000


def test_the_largest_body_is_the_one_that_a_policy_may_refuse():
    client = World(policies={"default": Policy(max_job_size=3)}).connect()
    assert put_batch(client, [b"abc", b"abc"]) == b"INSERTED_BATCH 2 1 2\r\n"
    assert put_batch(client, [b"a", b"abcd"]) == b"JOB_TOO_BIG\r\n"
    assert client.yaml(b"stats")["current-jobs-ready"] == "2"


def test_what_each_job_would_have_got_is_counted(world):
    client, other = world.connect(), world.connect()
    put_batch(client, [b"x"] * 5)
    other.send(b"reserve\r\n")
    client.send(b"reserve-batch 2 0\r\n")
    assert client.send(b"touch-batch 1 2 3 4 9\r\n") == b"TOUCHED_BATCH 2 3\r\n"
    assert client.send(b"release-batch 7 5 1 2 3 2\r\n") == b"RELEASED_BATCH 2 2\r\n"
    assert client.yaml(b"stats-job 2")["pri"] == "7"
    assert client.yaml(b"stats-job 3")["delay"] == "5"
    assert client.send(b"delete-batch 1 2 3 4 5 6 5\r\n") == b"DELETED_BATCH 4 3\r\n"
    assert list(world.broker.jobs) == [1] if isinstance(world.broker.jobs, dict) else len(world.broker.jobs) == 1


def test_touch_all_of_very_many_jobs_takes_several_slices(world):
    client, other = world.connect(), world.connect()
    for _ in range(18):  # more than one page of ReservedJobs
        put_batch(client, [b""] * 500)
        client.send(b"reserve-batch 500 0\r\n")
    world.sleep(50)
    client.session.receive(b"touch-all\r\n", world.now)
    assert client.session.pending is not None
    assert other.send(b"list-tube-used\r\n") == b"USING default\r\n"
    world.settle()
    assert client.read() == b"TOUCHED_ALL 9000\r\n"
    world.sleep(50)
    assert len(client.session.reserved) == 9000


def test_touch_all_counts_each_job_once_if_the_jobs_before_the_last_page_run_out_meanwhile(world):
    client = world.connect()
    for ttr, count in ((1, PAGE_JOBS), (1000, 3000)):
        for number in range(0, count, 500):
            put_batch(client, [b""] * min(500, count - number), b"0 0 %d" % ttr)
    while b"RESERVED" in client.send(b"reserve-batch 500 0\r\n"):
        pass
    world.now += 999 * MILLISECOND  # those of the first page are about to run out
    client.session.receive(b"touch-all\r\n", world.now)
    world.now += 2 * MILLISECOND
    while client.session.pending is not None:
        world.broker.advance(world.now, 128)
    assert client.read() == b"TOUCHED_ALL %d\r\n" % len(client.session.reserved)


def test_touch_all_touches_no_job_of_a_tube_that_the_user_may_consume_from_no_more(world):
    client = world.connect(user=User("u", consume=["a", "b"], produce=["*"]))
    client.send(b"watch a\r\nuse a\r\nput 0 0 60 0\r\n\r\nuse b\r\nwatch b\r\nput 0 0 60 0\r\n\r\n")
    assert client.send(b"reserve-batch 2 0\r\n").count(b"RESERVED ") == 2
    client.session.change_user(User("u", consume=["b"]))
    assert client.send(b"touch-all\r\n") == b"TOUCHED_ALL 1\r\n"


def test_a_thousand_take_several_slices_and_others_are_served_between(world):
    client, other = world.connect(), world.connect()
    put_batch(client, [b""] * 500)
    put_batch(client, [b""] * 500)
    line = b"delete-batch " + b" ".join([b"%d" % number for number in range(1, 1001)]) + b"\r\n"
    client.session.receive(line, world.now)
    assert client.session.pending is not None
    assert other.send(b"list-tube-used\r\n") == b"USING default\r\n"
    world.settle()
    assert client.read() == b"DELETED_BATCH 1000 0\r\n"


def test_a_client_that_leaves_meanwhile_is_answered_nothing(world):
    client = world.connect()
    put_batch(client, [b""] * 500)
    put_batch(client, [b""] * 500)
    client.session.receive(b"delete-batch " + b" ".join([b"%d" % n for n in range(1, 1001)]) + b"\r\n", world.now)
    client.session.disconnect(world.now)
    world.settle()
    check_broker(world.broker)
    assert 0 < len(world.broker.jobs) < 1000


@pytest.mark.parametrize("word", [b"delete-batch", b"touch-batch", b"release-batch 4294967295 4294967295"])
def test_the_longest_line_fits(world, word):
    client = world.connect()
    ids = b" ".join([b"%d" % (2**64 - 1 - number) for number in range(MOST_IN_BATCH)])
    line = word + b" " + ids + b"\r\n"
    assert len(line) <= LONGEST_LINE_LIMIT
    for size in (len(line), 999, 7):
        client = world.connect()
        replies = b"".join([client.send(line[at : at + size]) for at in range(0, len(line), size)])
        assert replies.split()[1:] == [b"0", b"1000"]


@pytest.mark.parametrize(
    "line",
    [
        b"delete-batch",
        b"delete-batch ",
        b"delete-batch 1  2",
        b"delete-batch 1 2 ",
        b"delete-batch 1 x",
        b"delete-batch 1 -2",
        b"delete-batch 1 18446744073709551616",
        b"delete-batch " + b"1 " * 1000 + b"1",
        b"release-batch 1 0",
        b"release-batch 1 0 ",
        b"release-batch x 0 1",
        b"delete-batch " + b"1" * 5000,
        b"release-batch " + b"1" * 5000 + b" 0 1",
        b"release-batch 0 " + b"1" * 5000 + b" 1",
        b"release-batch 0 0 " + b"0" * 5000,
        b"release-batch 0 x 1",
        b"put-batch 0 0 60",
    ],
)
def test_lines_that_are_malformed_change_nothing(world, line):
    client = world.connect()
    put_batch(client, [b"x"])
    wanted = b"UNKNOWN_COMMAND\r\n" if b" " not in line else b"BAD_FORMAT\r\n"
    assert client.send(line + b"\r\n") == wanted
    assert len(world.broker.jobs) == 1


def test_jobs_of_tubes_that_a_user_may_not_consume_from_are_not_found(world):
    owner = world.connect()
    for tube in (b"mine", b"theirs", b"mine"):
        owner.send(b"use %b\r\n" % tube)
        put_batch(owner, [b"x"])
    user = world.connect(User("u", consume=["mine"], inspect=["theirs"]))
    assert user.send(b"delete-batch 1 2 3 4\r\n") == b"DELETED_BATCH 2 2\r\n"
    assert owner.send(b"peek 2\r\n").startswith(b"FOUND 2")
    assert user.send(b"use mine\r\n") == b"USING mine\r\n"
    assert put_batch(user, [b"x"]) == b"FORBIDDEN\r\n"
