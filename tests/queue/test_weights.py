"""Tubes that are served by weight: each gets its share, exactly, of jobs or of the time of those who work."""

import pytest
from routed import RoutedCluster
from virtual import World

from beanstalk_server.queue.policy import Policy
from tests.routing.test_router import tube as tube_of


@pytest.fixture
def world():
    return World(policies={"heavy": Policy(weight=4)})


def fill(world, tubes, count, ttr=1000):
    client = world.connect()
    for tube in tubes:
        client.send(b"use %b\r\n" % tube.encode())
        for _ in range(count):
            client.send(b"put %d 0 %d 4\r\n%b\r\n" % (len(tube), ttr, tube.encode()[:4].ljust(4)))


def served(client, count, seconds=None, world=None):
    """How often each tube is served: of one job after the other, which takes this many seconds."""
    found = {}
    for _ in range(count):
        line, body, _ = client.send(b"reserve-with-timeout 0\r\n").split(b"\r\n")
        tube = body.strip().decode()
        found[tube] = found.get(tube, 0) + 1
        if seconds:
            world.sleep(seconds[tube])
        client.send(b"delete %b\r\n" % line.split()[1])
    return found


def test_jobs_are_served_by_weight_and_not_by_priority(world):
    fill(world, ["a", "bb", "ccc"], 1000)
    client = world.connect()
    assert client.send(b"reserve-mode weighted\r\n") == b"RESERVE_MODE weighted\r\n"
    client.send(b"watch a\r\nwatch bb 3\r\nwatch ccc 6\r\n")
    assert served(client, 1000) == {"a": 100, "bb": 300, "ccc": 600}
    client.send(b"reserve-mode priority\r\n")
    assert served(client, 100) == {"a": 100}


def test_the_policy_of_a_tube_gives_the_weight_of_clients_that_give_none(world):
    fill(world, ["a", "heav"], 1)
    fill(world, ["a", "heavy"], 100)
    client = world.connect()
    client.send(b"reserve-mode weighted\r\nwatch a\r\nwatch heavy\r\n")
    assert served(client, 50) == {"a": 10, "heav": 40}
    other = world.connect()
    other.send(b"reserve-mode weighted\r\nwatch a\r\nwatch heavy 1\r\n")
    assert served(other, 50) == {"a": 25, "heav": 25}


def test_the_time_of_a_worker_is_shared(world):
    fill(world, ["slow", "fast"], 1000)
    client = world.connect()
    client.send(b"reserve-mode fair\r\nwatch slow\r\nwatch fast\r\n")
    found = served(client, 550, {"slow": 10, "fast": 1}, world)
    assert found["fast"] / found["slow"] == pytest.approx(10, rel=0.02)


def test_touches_are_a_part_of_the_time(world):
    fill(world, ["slow", "fast"], 500)
    client = world.connect()
    client.send(b"reserve-mode fair\r\nwatch slow\r\nwatch fast\r\n")
    time = {"slow": 0, "fast": 0}
    for _ in range(200):
        line, body, _ = client.send(b"reserve-with-timeout 0\r\n").split(b"\r\n")
        tube = body.decode()
        for _ in range(5 if tube == "slow" else 1):
            world.sleep(2)
            client.send(b"touch %b\r\n" % line.split()[1])
            time[tube] += 2
        client.send(b"delete %b\r\n" % line.split()[1])
    assert time["slow"] == pytest.approx(time["fast"], rel=0.05)


def test_jobs_at_the_same_time_are_expected_to_take_what_the_last_ones_took(world):
    fill(world, ["slow", "fast"], 1000)
    client = world.connect()
    client.send(b"reserve-mode fair\r\nwatch slow\r\nwatch fast\r\n")
    served(client, 110, {"slow": 10, "fast": 1}, world)
    reply = client.send(b"reserve-batch 110 0\r\n")
    assert reply.count(b"\r\nslow\r\n") == pytest.approx(10, abs=2)


@pytest.mark.parametrize(
    "line",
    [
        b"watch a 0",
        b"watch a 10001",
        b"watch a  2",
        b"watch a 2 3",
        b"watch a -1",
        b"watch a ",
        b"reserve-mode ",
        b"reserve-mode none",
        b"reserve-mode weighted ",
    ],
)
def test_what_is_malformed_changes_nothing(world, line):
    client = world.connect()
    assert client.send(line + b"\r\n") == b"BAD_FORMAT\r\n"
    assert client.send(b"list-tubes-watched\r\n").count(b"- ") == 1
    assert client.session.weights is None


# Over several shards


def test_tubes_of_several_shards_have_turns_by_their_weights():
    cluster = RoutedCluster(2)
    client = cluster.connect()
    names = [tube_of(0, 2), tube_of(1, 2)]
    for name in names:
        client.send(b"use %b\r\n" % name + b"put 0 0 60 %d\r\n%b\r\n" % (len(name), name) * 300)
    client.send(b"watch %b 1\r\nwatch %b 2\r\nreserve-mode weighted\r\n" % tuple(names))
    found = [client.send(b"reserve-with-timeout 0\r\n").split(b"\r\n")[1] for _ in range(300)]
    assert (found.count(names[0]), found.count(names[1])) == (100, 200)
    for shard in (0, 1):
        cluster.lose(shard)
        cluster.lead(shard)
    assert client.read() == b""
    for name in names:
        client.send(b"use %b\r\n" % name + b"put 0 0 60 %d\r\n%b\r\n" % (len(name), name) * 30)
    found = [client.send(b"reserve-with-timeout 0\r\n").split(b"\r\n")[1] for _ in range(30)]
    assert (found.count(names[0]), found.count(names[1])) == (10, 20), "the next leaders know the weights"


def test_the_next_leader_of_one_shard_knows_the_weights():
    cluster = RoutedCluster(1)
    client = cluster.connect()
    client.send(b"watch a 1\r\nwatch b 2\r\nreserve-mode weighted\r\n")
    cluster.lose(0)
    cluster.lead(0)
    for name in (b"a", b"b"):
        client.send(b"use %b\r\n" % name + b"put 0 0 60 1\r\n%b\r\n" % name * 30)
    found = [client.send(b"reserve-with-timeout 0\r\n").split(b"\r\n")[1] for _ in range(30)]
    assert (found.count(b"a"), found.count(b"b")) == (10, 20)


def test_a_tube_of_another_shard_that_comes_later_catches_nothing_up():
    cluster = RoutedCluster(2)
    client = cluster.connect()
    names = [tube_of(0, 2), tube_of(1, 2)]
    client.send(b"watch %b\r\nignore default\r\nreserve-mode weighted\r\nuse %b\r\n" % (names[0], names[0]))
    client.send(b"put 0 0 60 1\r\na\r\n" * 50)
    assert client.send(b"reserve\r\n" * 20).count(b"\r\na\r\n") == 20
    client.send(b"watch %b\r\nuse %b\r\n" % (names[1], names[1]) + b"put 0 0 60 1\r\nb\r\n" * 50)
    found = b"".join(client.send(b"reserve-with-timeout 0\r\n").split(b"\r\n")[1] for _ in range(20))
    assert abs(found.count(b"b") - 10) <= 1, found
