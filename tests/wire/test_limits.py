"""Limits through the protocol: which jobs share one, and who may put into it."""

import pytest
from virtual import MemoryJournal, World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.policy import Policy
from beanstalk_server.wire.places import Places

TIMED_OUT = b"TIMED_OUT\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"


def user(world, name, *homes):
    tubes = [f"{name}-*", *homes]
    return world.connect(User(name, produce=tubes, consume=tubes, inspect=tubes, admin=tubes))


def put(client, tube, limit):
    reply = client.send(f"use {tube}\r\nput-with 0 0 60 1 limit={limit}\r\nx\r\n".encode())
    assert reply.startswith(f"USING {tube}\r\nINSERTED ".encode()), reply
    return int(reply.split()[3])


def reserve(client, *tubes):
    """The id of the job that is reserved next, of these tubes only; None if there is none."""
    for tube in tubes:
        client.send(f"watch {tube}\r\n".encode())
    client.send(b"ignore default\r\n")
    reply = client.send(b"reserve-with-timeout 0\r\n")
    return None if reply == TIMED_OUT else int(reply.split()[1])


def test_a_limit_without_a_slash_is_one_of_its_tube(world):
    ann, bob = user(world, "a"), user(world, "b")
    first, second = put(ann, "a-1", "cust:1"), put(bob, "b-1", "cust:1")
    assert reserve(ann, "a-1") == first
    assert bob.send(b"peek-ready\r\n") == b"FOUND %d 1\r\nx\r\n" % second
    assert reserve(bob, "b-1") == second

    third = put(bob, "b-1", "cust:1")
    put(ann, "a-1", "cust:1000")
    assert reserve(bob) is None and bob.send(b"peek-ready\r\n") == NOT_FOUND
    assert bob.send(b"delete %d\r\n" % second) == b"DELETED\r\n"
    assert reserve(bob) == third


def test_a_user_needs_the_right_to_produce_to_the_home_of_a_limit(world):
    client = world.connect(User("u", produce=["default", "mine"]))
    line = b"put-with 0 0 60 1 limit=%b\r\nx\r\n"
    for allowed in (b"theirs", b"mine/1", b"default/theirs:2"):
        assert client.send(line % allowed).startswith(b"INSERTED ")
    for refused in (b"theirs/1", b"mine/theirs/1", b"/theirs"):
        assert client.send(line % refused) == b"FORBIDDEN\r\n"


def test_a_limit_is_in_the_shard_of_its_home():
    near, far = "t4", "t0"
    world = World(shards=8, shard=Places(8).of_tube(near.encode()))
    client = world.connect()
    put(client, near, far)
    put(client, near, f"{near}/l")
    assert client.send(f"put-with 0 0 60 1 limit={far}/l\r\nx\r\n".encode()) == b"OTHER_SHARD\r\n"
    assert client.yaml(b"stats")["current-jobs-ready"] == "2"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_that_moves_is_in_the_limit_of_its_new_tube(restarts):
    journal = MemoryJournal()
    policies = {"a": Policy(max_tries=1, dead_tube="dead")}
    world = World(journal, policies=policies)
    client = world.connect()
    held = put(client, "a", "cust")
    assert reserve(client, "a") == held
    letter = put(client, "b", "cust")
    assert client.send(b"move-jobs b ready a 1\r\n") == b"MOVED 1\r\n"
    assert reserve(client) is None
    assert client.send(b"release %d 0 0\r\n" % held) == b"RELEASED\r\n"  # it goes to the dead tube
    assert reserve(client) == letter
    world.check()
    if restarts:
        client.send(b"release %d 0 0\r\n" % letter)
        world = World(journal.restarted(), policies=policies)
        world.broker.restore(world.broker.journal.clock_offset(), world.now)
        client = world.connect()
        assert reserve(client, "dead") in (held, letter)
        assert reserve(client) is None
        assert set(world.broker.limits) == {"dead/cust"}
    else:
        assert reserve(client, "dead") == held
        assert set(world.broker.limits) == {"a/cust", "dead/cust"}
        client.send(b"delete %d\r\n" % letter)
        client.send(b"release %d 0 0\r\nredrive dead 1\r\n" % held)
        assert set(world.broker.limits) == {"a/cust"}
    world.check()


def test_a_move_does_not_change_how_many_jobs_may_be_reserved(world):
    client = world.connect()
    put(client, "a", "cust:1")
    put(client, "b", "cust:9")
    assert client.send(b"move-jobs b ready a 1\r\n") == b"MOVED 1\r\n"
    assert world.broker.limits["a/cust"].count == 1
    assert client.send(b"move-jobs a ready b 9\r\n") == b"MOVED 2\r\n"
    assert world.broker.limits["b/cust"].count == 1


def test_a_move_of_its_only_job_does_not_change_a_limit_that_names_its_home(world):
    client = world.connect()
    put(client, "a", "home/cust:1")
    client.send(b"delete %d\r\n" % put(client, "b", "home/cust:9"))
    assert client.send(b"move-jobs a ready b 1\r\n") == b"MOVED 1\r\n"
    assert world.broker.limits["home/cust"].count == 9
