"""What is not with several shards as it is with one: each row of the table in docs/cluster.md is shown here."""

import functools
import re
from zlib import crc32

import orders
import pytest
from node_threads import lead_all, put, reserved, stats
from orders import ShardedCluster

from beanstalk_server import TubeConfig
from beanstalk_server.storage.binlog import UNKNOWN_IDS
from harness.servers import ROOT
from harness.waiting import eventually

SHARDS = 8
PAGE = ROOT / "docs" / "cluster.md"

ROWS = {}
"""Each row of the table by its name, and the test that shows it."""


def shows(row):
    """The test shows what a row of the table says."""

    def note(test):
        ROWS[row] = test
        return test

    return note


tube_of = functools.partial(orders.tube_of, shards=SHARDS)
ONE, OTHER, NEAR = tube_of(0), tube_of(1), tube_of(0, number=1)


@pytest.fixture
def node(cluster):
    made = cluster.add(shards=SHARDS)
    lead_all(made)
    return made


@pytest.fixture
def client(cluster, node):
    return cluster.connect(node)


def use(client, tube):
    assert client.ask(b"use %b\r\n" % tube) == b"USING %b\r\n" % tube


def watch(client, *tubes):
    for tube in tubes:
        assert client.ask(b"watch %b\r\n" % tube).startswith(b"WATCHING ")


def put_into(client, tube, body=b"x"):
    use(client, tube)
    return int(put(client, body).split()[1])


def yaml(client, command):
    size = int(client.ask(command + b"\r\n").split()[1])
    return client.read(size + 2).decode().splitlines()


def join(cluster, node):
    """Add a node, which leads half of the shards."""
    other = cluster.add(shards=SHARDS)
    eventually(lambda: sum(shard.leads for shard in other.server.shards) == SHARDS // 2, "it leads half of them", 60)
    lead_all(node, other)
    return other


# Without sockets


@pytest.fixture
def say():
    """Says something as a routed client of shards in memory; returns the replies."""
    shards = ShardedCluster(SHARDS)
    client = shards.connect()
    return lambda data: shards.send(client, data)


def puts(*tubes):
    return b"".join([b"use %b\r\nput 0 0 60 1\r\nx\r\n" % tube for tube in tubes])


def watches(*tubes):
    return b"".join([b"watch %b\r\n" % tube for tube in tubes])


@shows("ids")
def test_an_id_tells_the_shard_and_the_ids_of_a_tube_are_so_far_from_each_other(say):
    assert re.findall(rb"INSERTED (\d+)", say(puts(ONE, OTHER, ONE))) == [b"8", b"9", b"16"]


@shows("jobs of the same priority")
def test_of_jobs_of_the_same_priority_the_one_with_the_lower_id_comes_first_whenever_it_was_put(say):
    say(puts(ONE, ONE, OTHER) + watches(ONE, OTHER))
    assert re.findall(rb"RESERVED (\d+)", say(b"reserve\r\n" * 3)) == [b"8", b"9", b"16"]


@shows("reserve-batch")
def test_a_batch_is_of_the_shard_that_has_the_best_job(say):
    say(puts(OTHER, ONE, OTHER) + watches(ONE, OTHER))
    assert say(b"reserve-batch 9 0\r\n") == b"RESERVED_BATCH 1\r\nRESERVED 8 1\r\nx\r\n"
    assert say(b"reserve-batch 9 0\r\n").startswith(b"RESERVED_BATCH 2\r\nRESERVED 9 1\r\n")


@shows("put-batch")
def test_the_ids_of_a_batch_are_as_many_apart_as_there_are_shards(say):
    data = b"0\r\n\r\n" * 3
    assert say(b"use %b\r\nput-batch 0 0 60 15\r\n%b\r\n" % (ONE, data)).endswith(b"INSERTED_BATCH 3 8 24\r\n")


@shows("reserve-mode")
def test_tubes_of_several_shards_take_turns_and_the_lowest_id_begins(say):
    put = b"use %b\r\n" + b"put %d 0 60 1\r\nx\r\n" * 2
    say(put % (ONE, 5, 5) + put % (OTHER, 1, 1) + watches(ONE, OTHER) + b"reserve-mode weighted\r\n")
    assert re.findall(rb"RESERVED (\d+)", say(b"reserve\r\n" * 4)) == [b"8", b"9", b"16", b"17"]


@shows("limits")
def test_each_shard_counts_its_own_limits(say):
    put = b"use %b\r\n" + b"put-with 0 0 60 1 limit=one:1\r\nx\r\n" * 2
    say(put % ONE + put % OTHER + watches(ONE, OTHER))
    found = say(b"reserve-with-timeout 0\r\n" * 3)
    assert re.findall(rb"RESERVED (\d+)", found) == [b"8", b"9"] and found.endswith(b"TIMED_OUT\r\n")


@shows("list-tubes")
def test_tubes_are_listed_by_their_shards(say):
    say(watches(OTHER, ONE))
    assert say(b"list-tubes\r\n").endswith(b"---\n- default\n- %b\n- %b\n\r\n" % (ONE, OTHER))
    assert say(b"list-tubes-watched\r\n").endswith(b"---\n- default\n- %b\n- %b\n\r\n" % (OTHER, ONE))


@shows("stats-tubes")
def test_statistics_of_tubes_are_in_the_order_of_their_names(say):
    say(watches(OTHER, ONE))
    page = say(b"stats-tubes - 1000\r\n")
    assert b'next: ""\n' in page
    assert re.findall(rb'- {name: "(\w+)"', page) == sorted([b"default", ONE, OTHER])


@shows("current-producers, current-workers, current-waiting")
def test_who_puts_or_waits_at_several_shards_counts_at_each_of_them():
    shards = ShardedCluster(SHARDS)
    client, worker = shards.connect(), shards.connect()
    shards.send(worker, watches(ONE, OTHER) + b"reserve\r\n")
    found = shards.send(client, puts(tube_of(2), tube_of(3)) + b"stats\r\n")
    for figure in (b"waiting: 3", b"workers: 3", b"producers: 2", b"connections: 2"):
        assert b"\ncurrent-%b\n" % figure in found


@shows("move-jobs")
def test_jobs_move_within_a_shard_and_not_to_another_one(say):
    move = b"move-jobs %b ready %b 100\r\n"
    assert say(puts(ONE) + move % (ONE, OTHER)).endswith(b"OTHER_SHARD\r\n")
    assert say(b"peek-ready\r\n" + move % (ONE, NEAR)) == b"FOUND 8 1\r\nx\r\nMOVED 1\r\n"
    assert say(b"use %b\r\npeek-ready\r\n" % NEAR).endswith(b"FOUND 8 1\r\nx\r\n")


@shows("groups")
def test_a_group_is_within_the_shard_of_its_tube(say):
    put = b"use %b\r\nput-with 0 0 60 1 %b=%b\r\nx\r\n"
    assert say(put % (ONE, b"group", OTHER + b"/g")).endswith(b"OTHER_SHARD\r\n")
    assert say(put % (ONE, b"after", OTHER + b"/g:wait")).endswith(b"OTHER_SHARD\r\n")
    assert say(put % (ONE, b"group", ONE + b"/g")).endswith(b"INSERTED 8\r\n")
    assert say(put % (NEAR, b"after", ONE + b"/g")).endswith(b"INSERTED 24\r\n")
    say(puts(OTHER))  # the client uses a tube of another shard
    assert b"\nwaiting-jobs: 1\n" in say(b"stats-group %b/g\r\n" % ONE)
    assert say(b"stats-group %b/g\r\n" % OTHER) == b"NOT_FOUND\r\n"
    assert say(b"cancel-group %b/g\r\npeek-ready\r\n" % ONE).startswith(b"CANCELLED_GROUP 1\r\nFOUND 9 ")
    assert say(b"use %b\r\npeek-ready\r\n" % NEAR).endswith(b"FOUND 24 1\r\nx\r\n")


# With nodes


@shows("ids after a change of leader")
def test_the_ids_of_a_shard_go_on_higher_after_a_change_of_its_leader(cluster, node, client):
    assert put_into(client, OTHER) == 9
    cluster.stop(node)
    node = cluster.add(shards=SHARDS)
    lead_all(node)
    client = cluster.connect(node)
    assert put_into(client, OTHER) == 9 + SHARDS * (1 + UNKNOWN_IDS)


@shows("list-tube-used and list-tubes-watched")
def test_what_a_client_uses_and_watches_is_not_counted_when_it_asks(client):
    client.ask(b"list-tube-used\r\n")
    yaml(client, b"list-tubes-watched")
    figures = stats(client)
    assert (figures["cmd-list-tube-used"], figures["cmd-list-tubes-watched"]) == ("0", "0")


@shows("totals")
@pytest.mark.slow
def test_totals_begin_anew_for_a_shard_whose_leader_changes(cluster, node, client):
    for shard in range(SHARDS):
        put_into(client, tube_of(shard))
    assert stats(client)["total-jobs"] == str(SHARDS)
    other = cluster.add(shards=SHARDS)
    eventually(lambda: any(shard.leads for shard in other.server.shards), "it leads some shards", 60)

    def anew():
        return sum(shard.leads for shard in other.server.shards)

    eventually(lambda: stats(client)["total-jobs"] == str(SHARDS - anew()), "those are counted anew", 60)
    assert 0 < anew() < SHARDS
    assert stats(client)["current-jobs-ready"] == str(SHARDS)


@shows("a dead tube")
def test_a_job_whose_dead_tube_is_of_another_shard_is_buried_where_it_is(cluster):
    section = TubeConfig(match=[name.decode() for name in (ONE, OTHER)], max_tries=1, dead_tube=NEAR.decode())
    node = cluster.add(shards=SHARDS, tubes=[section])
    lead_all(node)
    client = cluster.connect(node)
    for tube, reply in ((ONE, b"RELEASED\r\n"), (OTHER, b"BURIED\r\n")):
        use(client, tube)
        job_id = put(client, b"x").split()[1]
        client.send(b"reserve-job %b\r\n" % job_id)
        assert reserved(client) == (int(job_id), b"x")
        assert client.ask(b"release %b 0 0\r\n" % job_id) == reply
    use(client, NEAR)
    assert client.ask(b"peek-ready\r\n").startswith(b"FOUND ")


@shows("`[[tube]]`")
def test_a_policy_is_that_of_one_tube_in_whichever_shard_it_is(cluster):
    node = cluster.add(shards=SHARDS, tubes=[TubeConfig(match="t*", max_jobs=1)])
    lead_all(node)
    client = cluster.connect(node)
    for tube in (ONE, OTHER):
        use(client, tube)
        assert put(client, b"x").startswith(b"INSERTED ")
        assert put(client, b"x") == b"DRAINING\r\n"


@shows("`--max-memory`")
def test_the_limit_of_memory_is_divided_among_the_shards_that_a_node_leads(cluster):
    node = cluster.add(shards=SHARDS, max_memory=80_000)
    lead_all(node)
    client = cluster.connect(node)
    assert stats(client)["max-memory"] == "70000"
    use(client, ONE)
    assert put(client, b"x" * 11_000) == b"OUT_OF_MEMORY\r\n"
    assert put(client, b"x" * 5_000).startswith(b"INSERTED ")
    assert put(client, b"x" * 5_000) == b"OUT_OF_MEMORY\r\n"
    use(client, OTHER)
    assert put(client, b"x" * 5_000).startswith(b"INSERTED ")


@shows("list-clients")
def test_all_clients_are_listed_with_what_the_shard_knows_that_counts_them(cluster, node, client):
    use(client, ONE)
    watch(client, ONE)
    other = join(cluster, node)
    asker = cluster.connect(other)
    host, port = client.socket.getsockname()[:2]
    found = yaml(asker, b"list-clients")[1:-1]
    assert len(found) == int(stats(asker)["current-connections"]) == 2
    (line,) = [each for each in found if f'"{host}:{port}"' in each]
    assert 'using: "", watching: 1, reserved: 0' in line
    assert yaml(client, b"list-clients")[0] == "---"


@shows("drain and undrain")
def test_drain_mode_is_that_of_all_shards_until_the_leader_of_one_changes(cluster, node, client):
    assert client.ask(b"drain\r\n") == b"DRAINING\r\n"
    for shard in range(SHARDS):
        use(client, tube_of(shard))
        assert put(client, b"x") == b"DRAINING\r\n"
    assert stats(client)["draining"] == "true"
    other = join(cluster, node)
    client = cluster.connect(other)
    assert stats(client)["draining"] == "false"
    for shard in range(SHARDS):
        use(client, tube_of(shard))
        takes = other.server.shards[shard].leads
        assert put(client, b"x").startswith(b"INSERTED " if takes else b"DRAINING"), shard
    assert client.ask(b"undrain\r\n") == b"NOT_DRAINING\r\n"
    for shard in range(SHARDS):
        use(client, tube_of(shard))
        assert put(client, b"x").startswith(b"INSERTED ")


@shows("other values of stats")
def test_what_cannot_be_summed_is_what_the_leader_of_the_default_tube_says(cluster, node):
    other = join(cluster, node)
    shard = crc32(b"default") % SHARDS
    leads = next(each for each in (node, other) if each.server.shards[shard].leads)
    answers = [stats(cluster.connect(each)) for each in (node, other)]
    assert answers[0]["id"] == answers[1]["id"]
    assert {each["cluster-leader"] for each in answers} == {leads.server.shards[shard].roles.leader}


def test_every_row_of_the_table_is_shown():
    table = PAGE.read_text().split("### Differences with several shards\n")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| **")]
    assert sorted(re.match(r"\| \*\*(.+?)\*\* \|", row)[1] for row in rows) == sorted(ROWS)
