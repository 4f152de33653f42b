"""What a routed client has at one of several shards: what operations ask there, and which jobs it holds."""

import pytest
from linked import pieces
from routed import RoutedCluster

from tests.shards.test_routing import tube


def test_what_a_client_had_reserved_at_a_shard_is_gone_with_its_leader():
    cluster = RoutedCluster(2)
    client = cluster.connect(used=tube(0, 2).decode(), watched=[tube(0, 2).decode()])
    client.send(b"put 0 0 60 1\r\nx\r\nreserve\r\n")
    assert client.router.branches[0].holdings == {2}
    cluster.lose(0, comes_back=True)
    assert client.router.branches[0].holdings == set()
    assert client.send(b"delete 2\r\nreserve\r\n") == b"DELETED\r\n"


def asked(cluster, line=b"peek 1", repeatable=True):
    client = cluster.connect()
    replies = []
    client.router.at(1).ask(line, lambda _, reply: replies.append(reply), 0, repeatable)
    return client, replies


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_repeatable_ask_goes_to_the_next_leader_and_another_is_lost(is_clean):
    cluster = RoutedCluster(2)
    client, replies = asked(cluster)
    lost = []
    client.router.at(1).ask(b"peek 3", lambda _, reply: lost.append(reply), repeatable=False)
    cluster.lose(1, is_clean)
    client.router.at(1).ask(b"peek 5", lambda _, reply: replies.append(reply))
    assert replies == []
    assert lost == [b""]
    assert not client.closed
    assert client.router.movable_to == -1
    cluster.lead(1)
    cluster.settle()
    assert replies == [b"NOT_FOUND\r\n"] * 2
    assert client.router.movable_to == 1


def test_part_of_a_reply_to_an_ask_is_forgotten_with_the_place():
    cluster = RoutedCluster(2, cut=lambda data: pieces(data, [5]))
    client, replies = asked(cluster)
    cluster.settle(most=3)
    cluster.lose(1, comes_back=True)
    cluster.settle()
    assert replies == [b"NOT_FOUND\r\n"]
    assert not client.closed


def test_a_sink_may_ask_more_and_no_command_of_the_client_goes_there_before_the_last_reply():
    cluster = RoutedCluster(2)
    client, replies = asked(cluster)
    branch = client.router.at(1)
    branch.ask(b"peek 3", lambda *_: branch.ask(b"peek 5", lambda _, reply: replies.append(reply)))
    client.give(b"peek 7\r\n")
    place = client.place(1)
    cluster.settle(most=2)
    assert b"peek 7" not in place.received + b"".join(place.there)
    assert client.read() == b"NOT_FOUND\r\n"
    assert place.received == b"peek 1\r\npeek 3\r\npeek 5\r\npeek 7\r\n"
    assert replies == [b"NOT_FOUND\r\n"] * 2
