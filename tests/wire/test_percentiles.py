"""The percentiles of a tube, as stats-tube shows them: of its own jobs, if its policy asks for them."""

import pytest
from virtual import World

from beanstalk_server.queue.policy import Policy


@pytest.fixture
def world():
    return World(policies={"a": Policy(measures=True)})


def percentiles(client, tube):
    found = client.yaml(b"stats-tube %b" % tube)
    return {key: float(value) for key, value in found.items() if "-p" in key and key.split("-p")[1].isdigit()}


def test_they_are_those_of_the_jobs_of_the_tube(world):
    client = world.connect()
    client.send(b"watch a\r\nwatch b\r\n")
    for tube, wait, run in ((b"a", 1, 2), (b"a", 1, 2), (b"a", 20, 30), (b"b", 500, 500)):
        client.send(b"use %b\r\nput 0 0 1000 1\r\nx\r\n" % tube)
        world.sleep(wait)
        job_id = client.send(b"reserve-with-timeout 0\r\n").split()[1]
        world.sleep(run)
        client.send(b"delete %b\r\n" % job_id)
    found = percentiles(client, b"a")
    assert list(found) == [f"{name}-p{share}" for name in ("wait", "run", "lateness") for share in (50, 95, 99)]
    expected = [1, 20, 20, 2, 30, 30, 0, 0, 0]
    assert list(found.values()) == [pytest.approx(each, rel=0.05) for each in expected]
    assert percentiles(client, b"b") == {}
    assert percentiles(client, b"default") == {}


def test_a_delayed_job_counts_as_late_by_its_due_time(world):
    client = world.connect()
    client.send(b"use a\r\nput 0 10 60 1\r\nx\r\n")
    world.now += 12 * 10**9
    world.settle()
    assert percentiles(client, b"a")["lateness-p99"] == pytest.approx(2, rel=0.05)


def test_a_policy_that_goes_takes_them_with_it(world):
    client = world.connect()
    client.send(b"use a\r\nput 0 0 60 1\r\nx\r\n")
    assert percentiles(client, b"a")
    world.broker.change_policies(lambda _name: Policy(weight=2), world.now)
    world.settle()
    assert percentiles(client, b"a") == {}
