"""Limits through the protocol: which jobs share one, and who may put into it."""

from virtual import World

from beanstalk_server.access.rights import User
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
