"""Schedulers at a cluster: at several nodes at once, for tubes of all shards, and when one of the nodes is gone."""

from concurrent.futures import ThreadPoolExecutor

from beanstalk_client.schedules import MOMENT, Scheduler
from beanstalk_client.tasks import Tasks
from node_threads import lead_all

from beanstalk_server.wire.places import Places

SHARDS = 4
TUBES = {Places(SHARDS).of_tube(name): name.decode() for name in (b"tube-%d" % number for number in range(50))}
"""A tube of each shard."""


def program(*nodes):
    """A scheduler of the same program, which connects to these nodes; and its tasks."""
    tasks = Tasks([f"127.0.0.1:{node.address[1]}" for node in nodes])
    for shard, tube in TUBES.items():

        @tasks.every(minutes=1, args=[MOMENT])
        @tasks.task(tube=tube, name=f"of-{shard}")
        def note(moment): ...

    return Scheduler(tasks.connect, tasks.schedules), tasks


def keys(tasks):
    """The keys of all firings that wait, by tube."""
    with tasks.connect() as queue:
        return {tube: [entry["key"] for entry in queue.list_jobs(tube, "delayed")] for tube in TUBES.values()}


def test_schedulers_at_two_nodes_put_each_firing_once_in_tubes_of_all_shards(cluster):
    nodes = [cluster.add(shards=SHARDS) for _ in range(2)]
    lead_all(*nodes)
    first, tasks = program(nodes[0])
    second, _ = program(nodes[1])
    with ThreadPoolExecutor() as pool:
        list(pool.map(Scheduler.run_once, (first, second, first, second)))
    planned = keys(tasks)
    assert len(planned) == SHARDS
    for found in planned.values():
        assert 10 <= len(set(found)) == len(found) <= 11

    # One node stops. What it led is led by the other, and schedulers that knew both go on there.
    either, tasks = program(*nodes)
    cluster.stop(nodes[0])
    lead_all(nodes[1])
    either.run_once()
    for found, after in zip(planned.values(), keys(tasks).values(), strict=True):
        assert set(after) >= set(found[1:])  # the first may be due by now
