"""Sessions with a user: what it may do, and what it is told of the rest."""

import pytest
from virtual import World

from beanstalk_server.access.user import User

FORBIDDEN = b"FORBIDDEN\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"

ROOT = User("root", produce=["*"], consume=["*"], inspect=["*"], admin=["*"])


@pytest.fixture
def world():
    world = World()
    yield world
    world.check()


# change_user


def test_a_reserve_that_waits_is_forbidden_when_a_tube_is_withdrawn(world):
    client = world.connect(User("u", consume=["default", "a"]))
    assert client.send(b"watch a\r\nreserve\r\nlist-tubes-watched\r\n") == b"WATCHING 2\r\n"
    client.session.change_user(User("u", consume=["a"]))
    world.settle()
    assert client.read() == FORBIDDEN + b"OK 8\r\n---\n- a\n\r\n"
    assert client.send(b"reserve-with-timeout 0\r\nwatch default\r\n") == b"TIMED_OUT\r\n" + FORBIDDEN


def test_a_reserve_goes_on_waiting_when_none_of_its_tubes_is_withdrawn(world):
    client = world.connect(User("u", consume=["default", "a"]))
    assert client.send(b"reserve\r\n") == b""
    client.session.change_user(User("u", consume=["default"]))
    world.settle()
    assert client.read() == b""
    world.connect().put()
    assert client.read() == b"RESERVED 1 1\r\nx\r\n"
