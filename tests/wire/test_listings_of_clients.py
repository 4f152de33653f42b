"""list-clients: what it tells of each client, in slices, the one that comes and goes meanwhile."""

import pytest

from beanstalk_server.access.rights import User
from beanstalk_server.queue.units import SECOND
from beanstalk_server.wire.listings import ClientList, ListedClient
from beanstalk_server.wire.session import SESSION_QUANTUM

pytestmark = pytest.mark.compiled


class Named(ClientList):
    """The clients in a list of pairs: a caller of the world, and a name."""

    def __init__(self, clients, since=0, blocked=()):
        self.left = list(clients)
        self.since = since
        self.blocked = blocked

    def is_over(self):
        return not self.left

    def take(self, count):
        found, self.left = self.left[:count], self.left[count:]
        return [
            ListedClient(client.session, name, self.since, name in self.blocked)
            for client, name in found
            if client not in self.gone
        ]

    gone = ()


def entries(reply):
    head, _, text = reply.partition(b"\r\n")
    assert len(text) == int(head.split()[1]) + 2
    return text.decode().removeprefix("---\n").removesuffix("\n\r\n").split("\n")


def test_each_client_is_a_line(world):
    worker, producer, user = (
        world.connect(),
        world.connect(),
        world.connect(User('a"b\\', produce=["*"], consume=["*"])),
    )
    worker.send(b"client-name worker/h/1\r\nwatch a\r\nreserve\r\n")
    producer.send(b"use b\r\nput 0 0 60 1\r\nx\r\nput 0 0 60 1\r\nx\r\nwatch b\r\nreserve\r\n")
    user.session.pause_output()
    clients = [(worker, "127.0.0.1:1"), (producer, "[::1]:2"), (user, "unix client 3")]
    world.info.clients = lambda: Named(clients, world.now - 5 * SECOND - 1)
    assert entries(world.connect().send(b"list-clients\r\n")) == [
        '- {name: "127.0.0.1:1", user: "", state: "waiting", producer: 0, worker: 1, using: "default", watching: 2, '
        'reserved: 0, age: 5, client-name: "worker/h/1", tubes: "default a"}',
        '- {name: "[::1]:2", user: "", state: "idle", producer: 1, worker: 1, using: "b", watching: 2, '
        'reserved: 1, age: 5, client-name: "", tubes: "default b"}',
        '- {name: "unix client 3", user: "a\\"b\\\\", state: "blocked", producer: 0, worker: 0, using: "default", '
        'watching: 1, reserved: 0, age: 5, client-name: "", tubes: "default"}',
    ]


def test_who_waits_for_the_journal_is_blocked(world):
    client = world.connect()
    world.info.clients = lambda: Named([(client, "a"), (client, "b")], blocked=("a",))
    found = entries(world.connect().send(b"list-clients\r\n"))
    assert ['state: "blocked"' in found[0], 'state: "idle"' in found[1]] == [True, True]


def test_a_client_that_uses_a_tube_elsewhere_uses_none_here(world):
    client = world.connect()
    world.broker.unuse(client.session)
    world.info.clients = lambda: Named([(client, "a")])
    assert 'using: ""' in entries(world.connect().send(b"list-clients\r\n"))[0]


def test_nobody_is_an_empty_list(world):
    assert world.connect().send(b"list-clients\r\n") == b"OK 7\r\n---\n[]\n\r\n"


def test_many_clients_are_listed_in_slices_without_those_who_have_gone(world):
    client, asker = world.connect(), world.connect()
    named = [(client, f"client {number}") for number in range(5000)]
    client_list = Named(named)
    world.info.clients = lambda: client_list
    asker.session.receive(b"list-clients\r\nlist-tube-used\r\n", world.now)
    turns = 0
    while not asker.session.has_replies:
        assert world.answered.pop() is asker, "it is promised another turn"
        assert asker.session.cost <= 2 * SESSION_QUANTUM
        turns += 1
        if turns == 5:
            client_list.gone = (client,)
            told = 5000 - len(client_list.left)
        asker.session.run(world.now)
    reply = asker.read().removesuffix(b"USING default\r\n")
    assert len(entries(reply)) == told
    assert turns > 5
    assert told < 1000
