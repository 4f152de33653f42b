"""What asks all shards (stats, list-tubes, stats-tubes): what one server would say, as far as shards can."""

import re
import tracemalloc
from pathlib import Path

import pytest
from orders import ShardedCluster
from virtual import World

import beanstalk_server.cluster
from beanstalk_server.access.rights import User
from beanstalk_server.routing.operations import AllTubes, PageOfTubes
from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL
from beanstalk_server.wire.places import Places
from beanstalk_server.wire.yaml import SUMMED, is_summed

OF_ONE_SHARD = {
    "binlog-current-index",
    "binlog-max-size",
    "binlog-oldest-index",
    "hostname",
    "id",
    "max-job-size",
    "os",
    "pid",
    "platform",
    "server",
    "rusage-stime",
    "rusage-utime",
    "uptime",
    "version",
}
"""What the shard of the default tube says of itself."""

TRUE_OF_ALL = {"draining"}

SHARDS = 3


def rows(reply):
    assert reply.startswith(b"OK "), reply
    head, _, text = reply.partition(b"\r\n")
    assert len(text) == int(head.split()[1]) + 2
    return dict(line.split(": ", 1) for line in text.decode().split("\n")[1:-2])


def names(reply):
    head, _, text = reply.partition(b"\r\n")
    assert len(text) == int(head.split()[1]) + 2
    assert text.startswith(b"---\n")
    assert text.endswith(b"\n\r\n")
    return [line.removeprefix(b"- ") for line in text[4:-3].split(b"\n")]


@pytest.fixture
def cluster():
    return ShardedCluster(SHARDS)


def test_every_row_is_either_a_sum_or_what_one_shard_says():
    found = set(World().connect().yaml(b"stats"))
    assert {row for row in found if not is_summed(row)} == OF_ONE_SHARD | TRUE_OF_ALL
    assert found >= SUMMED


def test_rows_that_only_a_node_has_are_what_one_shard_says():
    """They tell of a leader, or are figures that cannot be added."""
    sources = [path.read_text() for path in Path(beanstalk_server.cluster.__file__).parent.glob("*.py")]
    found = {row for source in sources for row in re.findall(r'"(cluster-[\w-]+)": ', source)}
    assert "cluster-leader" in found
    assert not [row for row in found if is_summed(row)]


def test_stats_has_the_rows_of_a_plain_server_in_their_order(cluster):
    assert list(rows(cluster.send(cluster.connect(), b"stats\r\n"))) == list(World().connect().yaml(b"stats"))


COMMANDS = [b"stats\r\n", b"list-tubes\r\n", b"stats-tubes - 9\r\n", b"drain\r\n", b"undrain\r\n"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("is_clean", [False, True])
def test_a_shard_that_is_lost_meanwhile_is_asked_again(cluster, command, is_clean):
    client = cluster.connect()
    expected = cluster.send(client, command)
    client.send(command)
    cluster.deliver(cluster.messages()[0])
    (cluster.hand_over if is_clean else cluster.lose)(1)
    cluster.settle()
    cluster.lead(1)
    found = cluster.read(client)
    for row in (b"cmd-stats", b"total-connections"):  # the brokers here outlive their leaders
        found = found.replace(row + b": 2", row + b": 1")
    assert found == expected


def test_a_cluster_of_which_one_shard_takes_jobs_does_not_drain(cluster):
    client = cluster.connect()
    cluster.send(client, b"drain\r\n")
    for shard, world in enumerate(cluster.worlds):
        world.broker.undrain()
        assert rows(cluster.send(client, b"stats\r\n"))["draining"] == "false", shard
        world.broker.drain()
    assert rows(cluster.send(client, b"stats\r\n"))["draining"] == "true"


def test_who_may_not_drain_drains_no_shard():
    cluster = ShardedCluster(SHARDS, users=user)
    assert cluster.send(cluster.connect(user=user("all")), b"drain\r\nundrain\r\n") == b"FORBIDDEN\r\n" * 2
    assert not any(world.broker.draining for world in cluster.worlds)


def user(name):
    return {
        "all": User("all", inspect=["*"]),
        "some": User("some", inspect=["t1*"]),
        "none": User("none"),
    }[name]


def test_a_user_is_told_what_it_may_see():
    cluster = ShardedCluster(SHARDS, users=user)
    neighbour = cluster.connect()
    tubes = [b"t%d" % number for number in range(30)]
    cluster.send(neighbour, b"".join([b"watch %b\r\n" % tube for tube in tubes]))
    seen = {name: cluster.send(cluster.connect(user=user(name)), b"list-tubes\r\n") for name in ("all", "some", "none")}
    assert sorted(names(seen["all"])) == sorted([b"default", *tubes])
    assert sorted(names(seen["some"])) == sorted(tube for tube in tubes if tube.startswith(b"t1"))
    assert seen["none"] == b"OK 4\r\n---\n\r\n"
    assert cluster.send(cluster.connect(user=user("all")), b"stats\r\n").startswith(b"OK ")
    assert cluster.send(cluster.connect(user=user("some")), b"stats\r\nlist-tube-used\r\n") == (
        b"FORBIDDEN\r\nUSING default\r\n"
    )


# Pages of stats-tubes


def page(reply):
    """Where the next page begins, and the entries of this one: names, and the rest of their lines."""
    head, _, text = reply.partition(b"\r\n")
    assert len(text) == int(head.split()[1]) + 2
    following, tubes, *lines = text.removeprefix(b"---\n").removesuffix(b"\n\r\n").split(b"\n")
    assert tubes == (b"tubes:" if lines else b"tubes: []")
    return following.split(b'"')[1], {line.split(b'"')[1]: line for line in lines}


def ask_for_page(cluster, client, first=b"-", count=1000):
    return page(cluster.send(client, b"stats-tubes %b %d\r\n" % (first, count)))


def test_a_page_of_tubes_is_merged_from_those_of_all_shards(cluster):
    client = cluster.connect()
    tubes = sorted([b"default", *[b"t%d" % number for number in range(40)]])
    cluster.send(client, b"".join([b"watch %b\r\n" % tube for tube in tubes]))
    cluster.send(client, b"use t7\r\nput 0 0 60 1\r\nx\r\n")
    following, entries = ask_for_page(cluster, client)
    assert (following, list(entries)) == (b"", tubes)
    assert b"current-jobs-ready: 1, " in entries[b"t7"]
    assert b"current-watching: 1, " in entries[b"default"], "as the shard says that it belongs to"
    for count in (1, 2, 7):
        found, following = [], b"-"
        while following:
            following, entries = ask_for_page(cluster, client, following, count)
            assert len(entries) <= count
            found += entries
        assert found == tubes
    assert ask_for_page(cluster, client, b"u") == (b"", {})


def test_a_user_is_shown_its_tubes_of_all_shards():
    cluster = ShardedCluster(SHARDS, users=user)
    cluster.send(cluster.connect(), b"".join([b"watch t%d\r\n" % number for number in range(30)]))
    client = cluster.connect(user=user("some"))
    assert list(ask_for_page(cluster, client)[1]) == sorted(
        b"t1%b" % end for end in [b"", *b"0 1 2 3 4 5 6 7 8 9".split()]
    )
    assert ask_for_page(cluster, client, count=2)[0] == b"t11"


class Asked:
    """A branch, or the router: it keeps what it is asked, and how it is answered."""

    def __init__(self, shards):
        self.sinks = []
        self.reply = None
        self.shards = shards

    def all_shards(self):
        return list(range(self.shards))

    def branch(self, shard):
        return self

    def ask(self, line, sink, key):
        self.sinks.append(lambda reply: sink(key, reply))

    def answer(self, reply):
        assert self.reply is None
        self.reply = reply


def start(operation, router, line):
    word, _, text = line.partition(b" ")
    command = next(command for command in PROTOCOL + EXTENSIONS if command.name.encode() == word)
    operation(router, command, text).begin()


def answered(operation, line, shards, answers):
    """What an operation says in the end. Before the last answer, it says nothing."""
    asked = Asked(shards)
    start(operation, asked, line)
    for sink, answer in zip(asked.sinks, answers, strict=True):
        assert asked.reply is None
        sink(answer)
    return asked.reply


@pytest.mark.interpreted
def test_a_page_of_tubes_of_a_thousand_shards_is_full_and_ends_before_what_has_not_been_asked_for():
    names_of = [[] for _ in range(1024)]
    everything = sorted(b"t%07d" % number for number in range(100_000))
    places = Places(1024)
    for name in everything:
        names_of[places.of_tube(name)].append(name)

    def page_of(names, asked):
        following = names[asked : asked + 1]
        text = b'---\nnext: "%b"\ntubes:\n' % b"".join(following)
        return b"OK 1\r\n" + text + b"".join([b'- {name: "%b", x: 1}\n' % name for name in names[:asked]]) + b"\r\n"

    reply = answered(
        PageOfTubes,
        b"stats-tubes - 1000",
        1024,
        [page_of(names, 8) for names in names_of],
    )
    following, entries = page(reply)
    assert list(entries) == everything[: len(entries)]
    assert following == everything[len(entries)]
    assert len(entries) == 1000


@pytest.mark.interpreted
def test_the_list_of_all_tubes_takes_no_more_memory_than_the_answer_and_what_it_is_made_of():
    answers = [b"OK 1000009\r\n---\n- " + b"x" * 1_000_002 + b"\n\r\n"] * SHARDS
    asked = Asked(SHARDS)
    start(AllTubes, asked, b"list-tubes")
    tracemalloc.start()
    try:
        for sink, answer in zip(asked.sinks, answers, strict=True):
            sink(answer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(asked.reply) > 3_000_000
    assert peak < 2.5 * len(asked.reply)
