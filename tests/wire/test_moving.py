"""move-jobs: what its line may say, which rights it asks for, and what it answers."""

import pytest
from virtual import World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.wire.grammar import Arguments, read_move_jobs
from beanstalk_server.wire.places import Places

NOT_FOUND = b"NOT_FOUND\r\n"
FORBIDDEN = b"FORBIDDEN\r\n"
BAD_FORMAT = b"BAD_FORMAT\r\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a ready b 1", ("a", READY, "b", 1)),
        (b"a  delayed   b 4294967295", ("a", DELAYED, "b", 2**32 - 1)),
        (b"ready buried delayed 10", ("ready", BURIED, "delayed", 10)),
    ],
)
def test_what_a_line_says(text, expected):
    found = Arguments()
    assert read_move_jobs(text, found)
    assert (found.name, found.state, found.target, found.count) == expected


@pytest.mark.parametrize(
    "text",
    [b"", b"a", b"a ready", b"a ready b", b"a ready b 0", b"a ready b -1", b"a ready b 4294967296", b"a ready b 1 ",
     b"a reserved b 1", b"a READY b 1", b"a  b 1", b"-a ready b 1", b"a ready -b 1", b"a ready b 1\0", b"a ready b x",
     b"a" * 201 + b" ready b 1", b" a ready b 1"],
)  # fmt: skip
def test_a_malformed_line_is_refused_and_counts_nothing(client, text):
    assert client.send(b"move-jobs " + text + b"\r\n") == BAD_FORMAT
    assert client.yaml(b"stats")["cmd-move-jobs"] == "0"


def test_both_names_may_be_the_longest(client):
    assert client.send(b"move-jobs %b delayed %b 4294967295\r\n" % (b"a" * 200, b"b" * 200)) == NOT_FOUND


def test_a_move_of_many_jobs_is_answered_when_the_last_has_moved(world, client):
    client.send(b"put 0 0 60 1\r\nx\r\n" * 3000)
    client.session.receive(b"move-jobs default ready to 3000\r\nlist-tube-used\r\n", world.now)
    assert client.read() == b""
    other = world.connect()
    other.session.receive(b"list-tube-used\r\n", world.now)
    assert other.read() == b"USING default\r\n", "others are served meanwhile"
    world.settle()
    assert client.read() == b"MOVED 3000\r\nUSING default\r\n"


@pytest.mark.parametrize(
    ("admin", "inspect", "expected"),
    [
        (["from", "to"], [], b"MOVED 1\r\n"),
        (["*"], [], b"MOVED 1\r\n"),
        (["from"], [], NOT_FOUND),
        (["from"], ["to"], FORBIDDEN),
        (["to"], [], NOT_FOUND),
        (["to"], ["from"], FORBIDDEN),
        ([], ["*"], FORBIDDEN),
        ([], [], NOT_FOUND),
    ],
)
def test_the_right_to_both_tubes_is_needed(world, admin, inspect, expected):
    owner = world.connect()
    owner.send(b"use from\r\nput 0 0 60 1\r\nx\r\n")
    client = world.connect(User("u", admin=admin, inspect=inspect))
    assert client.send(b"move-jobs from ready to 9\r\n") == expected
    tube = "to" if expected.startswith(b"MOVED") else "from"
    assert [job.tube.name for job in world.broker.jobs.values()] == [tube]


def test_a_tube_of_another_shard_is_out_of_reach():
    world = World(shards=2, shard=0)
    places = Places(2)
    here, near, far = [[name for name in map(b"t%d".__mod__, range(99)) if places.of_tube(name) == shard][index]
                       for shard, index in ((0, 0), (0, 1), (1, 0))]  # fmt: skip
    client = world.connect()
    client.send(b"use %b\r\nput 0 0 60 1\r\nx\r\n" % here)
    assert client.send(b"move-jobs %b ready %b 9\r\n" % (here, far)) == b"OTHER_SHARD\r\n"
    assert [job.tube.name for job in world.broker.jobs.values()] == [here.decode()]
    assert client.send(b"move-jobs %b ready %b 9\r\n" % (here, near)) == b"MOVED 1\r\n"
