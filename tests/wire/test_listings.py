"""Lists and pages under way: what becomes of them when their client leaves, or goes to another server."""

import pytest

from beanstalk_server.access.rights import User
from tests.wire.test_listings_of_clients import Named

ONE_TUBE = User("u", inspect=["t7"])
"""For a client without a user, list-tubes is answered at once."""


@pytest.fixture(params=[b"list-tubes", b"list-clients", b"stats-tubes - 999", b"list-jobs default ready 1-2 999"])
def line(request, world):
    """A command whose reply takes many turns."""
    owner = world.connect()
    for number in range(3000):
        owner.send(b"watch t%d\r\nput 2 0 60 1\r\nx\r\n" % number)
    world.info.clients = lambda: Named([(owner, "a")] * 5000)
    return request.param + b"\r\n"


@pytest.fixture
def client(world, line):
    return world.connect(ONE_TUBE if line.startswith(b"list-tubes") else None)


def test_a_client_may_disconnect_meanwhile(world, client, line):
    client.session.receive(line, world.now)
    assert world.answered.pop() is client
    client.disconnect()
    assert not world.answered
    assert client.read() == b""


def test_another_server_begins_anew(world, client, line):
    client.session.receive(line + b"list-tube-used\r\n", world.now)
    assert client.session.can_move()
    assert client.session.take_commands(world.now) == line + b"list-tube-used\r\n"
