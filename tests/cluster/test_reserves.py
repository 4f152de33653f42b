"""Reserves over several shards: what `routing/test_reserving.py` and `routing/test_router.py` do not compare."""

import pytest
from orders import STOP, ShardedCluster

from beanstalk_server.access.rights import User
from beanstalk_server.routing.reserving import ATTEMPTS, reserved_ids

SHARDS = 3


@pytest.fixture
def cluster():
    return ShardedCluster(SHARDS)


def watching(cluster, shards=range(SHARDS), **how):
    """A client that watches a tube of each of these shards, and no other."""
    client = cluster.connect(**how)
    watches = b"".join([b"watch %b\r\n" % cluster.tube(shard) for shard in shards])
    assert cluster.send(client, watches + b"ignore default\r\n").endswith(b"WATCHING %d\r\n" % len(shards))
    return client


def put(cluster, shard, body=b"x", priority=0, ttr=60, delay=0):
    """Put a job into the shard's tube; return its id."""
    producer = cluster.worlds[shard].connect()
    producer.send(b"use %b\r\n" % cluster.tube(shard))
    job_id = producer.put(body, priority, delay, ttr)
    producer.disconnect()
    return job_id


def reserved(job_id, body=b"x"):
    return b"RESERVED %d %d\r\n%b\r\n" % (job_id, len(body), body)


def counts(cluster, row):
    return sum(int(world.connect().yaml(b"stats")[row]) for world in cluster.worlds)


# Jobs whose time to run is nearly over


@pytest.mark.parametrize("shards", [(0, 1, 2), (0, 2)])
def test_a_shard_where_the_client_only_holds_a_job_says_that_its_time_is_nearly_over(cluster, shards):
    client = watching(cluster, shards)
    held = put(cluster, 0, ttr=5)
    assert cluster.send(client, b"reserve\r\n") == reserved(held)
    assert cluster.send(client, b"ignore %b\r\n" % cluster.tube(0)) == b"WATCHING %d\r\n" % (len(shards) - 1)
    assert cluster.send(client, b"reserve\r\n") == b""
    cluster.sleep(4.1)
    assert cluster.read(client) == b"DEADLINE_SOON\r\n"
    assert cluster.send(client, b"reserve\r\n") == b"DEADLINE_SOON\r\n"
    job_id = put(cluster, 2)
    assert cluster.send(client, b"reserve\r\n") == reserved(job_id), "a ready job comes before a warning"
    assert cluster.send(client, b"touch %d\r\n" % held) == b"TOUCHED\r\n"
    assert cluster.send(client, b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"


def test_a_shard_that_got_its_job_back_is_asked_no_more_when_it_is_not_watched(cluster):
    client = watching(cluster, (0, 1, 2))
    cluster.send(client, b"reserve\r\n")
    jobs = [put(cluster, shard) for shard in (0, 1)]
    assert cluster.read(client) == reserved(jobs[0])
    cluster.send(client, b"delete %d\r\nignore %b\r\nignore %b\r\n" % (jobs[0], cluster.tube(0), cluster.tube(1)))
    client.send(b"reserve-with-timeout 0\r\n")
    assert {shard for _, shard, _ in cluster.messages()} == {2}
    assert cluster.read(client) == b"TIMED_OUT\r\n"


# Shards that nobody leads


def test_a_reserve_whose_time_is_over_gets_a_job_while_another_shard_has_no_leader(cluster):
    client = watching(cluster)
    assert cluster.send(client, b"reserve-with-timeout 1\r\n") == b""
    cluster.lose(1)
    cluster.sleep(3)
    assert cluster.read(client) == b""
    job_id = put(cluster, 0)
    assert cluster.read(client) == reserved(job_id)
    cluster.lead(1)
    assert cluster.send(client, b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    cluster.lose(1)
    assert cluster.send(client, b"reserve-with-timeout 0\r\n") == b"", "a shard has not said so"
    cluster.lead(1)
    assert cluster.read(client) == b"TIMED_OUT\r\n"


def test_a_new_leader_is_asked_for_the_rest_of_the_time(cluster):
    client = watching(cluster)
    assert cluster.send(client, b"reserve-with-timeout 4\r\n") == b""
    cluster.sleep(1)
    cluster.hand_over(2)
    cluster.settle()
    cluster.lead(2)
    cluster.sleep(2.9)
    assert cluster.read(client) == b""
    cluster.sleep(0.2)
    assert cluster.read(client) == b"TIMED_OUT\r\n"


def test_the_command_counts_once_whoever_leads(cluster):
    client = watching(cluster)
    for shard in range(SHARDS):
        cluster.lose(shard)
        client.send(b"reserve-with-timeout 0\r\n")
        cluster.settle()
        cluster.lead(shard)
        assert cluster.read(client) == b"TIMED_OUT\r\n"
        assert counts(cluster, "cmd-reserve-with-timeout") == shard + 1


# Shards that the client's own node leads


def test_a_shard_that_this_node_leads_and_that_has_nothing_is_not_asked(cluster):
    client = watching(cluster)
    assert cluster.send(client, b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
    for world in cluster.worlds:
        world.is_near = True
    job_id = put(cluster, 1)
    client.send(b"reserve\r\n")
    assert [list(client.places[shard].down) for shard in range(SHARDS)] == [[], [b"probe reserve\r\n"], []]
    cluster.settle()
    assert cluster.read(client) == reserved(job_id)
    client.send(b"reserve-with-timeout 0\r\n")
    asked = [each for shard in range(SHARDS) for each in client.places[shard].down]
    assert asked == [b"probe reserve-with-timeout\r\n"], "one has to count the command"
    cluster.settle()
    assert cluster.read(client) == b"TIMED_OUT\r\n"
    assert counts(cluster, "cmd-reserve-with-timeout") == 2


def test_a_shard_is_asked_where_the_client_has_never_reserved_or_a_job_of_its_is_nearly_due(cluster):
    client = watching(cluster)
    job_id = put(cluster, 0, ttr=2)
    for world in cluster.worlds:
        world.is_near = True
    client.send(b"reserve\r\n")
    assert all(client.places[shard].down for shard in range(SHARDS)), "a client that reserves is counted as a worker"
    cluster.settle()
    assert cluster.read(client) == reserved(job_id)
    cluster.sleep(1.5)
    assert cluster.send(client, b"reserve\r\n") == b"DEADLINE_SOON\r\n"


# Others are quicker


def test_a_client_whose_rivals_are_always_quicker_is_answered_after_a_few_attempts(cluster):
    client = watching(cluster)
    rival = cluster.worlds[0].connect()
    rival.send(b"watch %b\r\n" % cluster.tube(0))
    put(cluster, 0)
    client.send(b"reserve-with-timeout 0\r\n")
    taken = 0
    while messages := cluster.messages():
        place = client.places[0]
        if place.down and place.down[0].startswith(b"await"):
            assert rival.send(b"reserve-with-timeout 0\r\n").startswith(b"RESERVED ")
            taken += 1
            cluster.deliver((0, 0, "down"))
            put(cluster, 0)
        else:
            cluster.deliver(messages[0])
    assert taken <= ATTEMPTS
    assert cluster.read(client) == b"TIMED_OUT\r\n"


# Places without room


def test_the_end_of_a_wait_does_not_overtake_its_beginning(cluster):
    client = watching(cluster)
    place = client.places[1]
    client.send(b"reserve\r\n")
    deliver_until(cluster, lambda message: "up" in message)  # all have been probed
    place.window = 4
    deliver_until(cluster, lambda message: message == (0, 1, "down"))
    assert list(place.down) == [b"awai"]
    job_id = put(cluster, 0)
    cluster.deliver((0, 0, "up"))
    assert client.arrived == reserved(job_id)
    assert list(place.down) == [b"awai"], "the end comes when the rest has been sent"
    place.window = 1 << 20
    place.branch.on_room()
    assert list(place.down) == [b"awai", b"t -1 0\r\n", STOP]
    cluster.settle()
    assert cluster.read(client) == reserved(job_id)
    assert cluster.send(client, b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"


def deliver_until(cluster, holds):
    """Deliver what this does not hold for."""
    while found := [message for message in cluster.messages() if not holds(message)]:
        cluster.deliver(found[0])


# Users


def user(name):
    return {"all": User("all", consume=["*"]), "none": User("none", inspect=["*"])}[name]


def test_a_client_that_loses_its_tubes_while_it_waits_is_told_so_once():
    cluster = ShardedCluster(SHARDS, users=user)
    client = watching(cluster, user=user("all"))
    assert cluster.send(client, b"reserve\r\n") == b""
    client.router.change_user(user("none"))
    assert cluster.read(client) == b"FORBIDDEN\r\n"
    assert cluster.send(client, b"reserve\r\n") == b"FORBIDDEN\r\n"


def test_the_ids_of_a_reply_are_found_whatever_is_in_the_bodies():
    body = b"RESERVED 9 1\r\nx\r\n"
    assert reserved_ids(reserved(4, body)) == [4]
    assert reserved_ids(b"RESERVED_BATCH 2\r\n" + reserved(4, body) + reserved(5, b"")) == [4, 5]
    assert reserved_ids(b"TIMED_OUT\r\n") == []
    assert reserved_ids(b"") == []
