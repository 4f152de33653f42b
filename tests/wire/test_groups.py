"""Groups through the protocol: how long they are remembered, their statistics, and the rights to them."""

import pytest
from virtual import World

from beanstalk_server.queue.policy import Policy
from beanstalk_server.wire.places import Places

NOT_FOUND = b"NOT_FOUND\r\n"
TIMED_OUT = b"TIMED_OUT\r\n"


@pytest.fixture
def world():
    return World(policies={"tried": Policy(max_tries=1, dead_tube="dead")})


def put(client, attributes, tube="default", delay=0, body=b"body"):
    """Put a job; return its id."""
    line = b"put-with 0 %d 60 %d %b\r\n%b\r\n" % (delay, len(body), attributes.encode(), body)
    reply = client.send(b"use %b\r\n" % tube.encode() + line).split(b"\r\n")[1]
    assert reply.startswith(b"INSERTED "), reply
    return int(reply.split()[1])


def reserve(client):
    """The id of the job that the client gets; 0 if there is none."""
    reply = client.send(b"reserve-with-timeout 0\r\n")
    return 0 if reply == TIMED_OUT else int(reply.split()[1])


def state(client, job_id):
    return client.yaml(b"stats-job %d" % job_id)["state"]


def test_the_statistics_of_a_group_count_how_its_jobs_have_ended(world, client):
    numbers = [put(client, "group=g") for _ in range(7)]
    dead = put(client, "group=g", "tried")
    put(client, "group=g ttl=1", "brief")
    put(client, "group=g", "cleared")
    put(client, "group=g", delay=1000)
    after = put(client, "after=g")
    reserved = [reserve(client) for _ in range(3)]
    client.send(b"delete %d\r\nbury %d 0\r\n" % (reserved[0], reserved[1]))
    client.send(b"delete %d\r\nreserve-job %d\r\nrelease %d 0 0\r\n" % (numbers[3], dead, dead))
    client.send(b"clear-tube cleared\r\n")
    world.sleep(7)
    assert client.yaml(b"stats-group g") == {
        "name": '"g"',
        "state": "open",
        "age": "7",
        "current-jobs-ready": "3",
        "current-jobs-reserved": "1",
        "current-jobs-delayed": "1",
        "current-jobs-buried": "1",
        "waiting-jobs": "1",
        "done-jobs": "1",
        "cancelled-jobs": "2",
        "expired-jobs": "1",
        "dead-jobs": "1",
        "buried": f"[{reserved[1]}]",
    }
    assert client.yaml(b"stats")["current-groups"] == "1"
    assert client.send(b"cancel-group g\r\n") == b"CANCELLED_GROUP 5\r\n"
    assert state(client, after) == "delayed", "one of its jobs is reserved"
    client.send(b"delete %d\r\n" % reserved[2])
    assert state(client, after) == "ready"
    found = client.yaml(b"stats-group g")
    assert [found[f"{end}-jobs"] for end in ("done", "cancelled", "expired", "dead")] == ["2", "7", "1", "1"]
    assert client.yaml(b"stats")["current-groups"] == "0"
    assert client.send(b"redrive dead 9\r\n") == b"REDRIVEN 1\r\n"
    found = client.yaml(b"stats-group g")
    assert (found["state"], found["dead-jobs"], found["current-jobs-ready"]) == ("open", "0", "1")
    world.check()


def test_there_is_no_group_without_jobs(client):
    assert client.send(b"stats-group none\r\ncancel-group none\r\n") == NOT_FOUND * 2
    assert client.send(b"stats-group -\r\ncancel-group \r\nstats-group\r\n") == b"BAD_FORMAT\r\n" * 3


def test_a_job_that_waits_is_the_last_delayed_one_and_may_be_ended_by_an_operator(client):
    put(client, "group=g")
    waits = [put(client, "after=g") for _ in range(4)]
    delayed = put(client, "tries=2", delay=4294967295)
    listed = client.send(b"list-jobs default delayed 0 9\r\n").decode()
    assert [int(part.split(",")[0]) for part in listed.split("{id: ")[1:]] == [delayed, *waits]
    found = client.yaml(b"stats-job %d" % waits[0])
    assert (found["time-left"], found["after"]) == ("0", '"g"')
    assert client.send(b"reschedule %d 3\r\n" % waits[0]) == b"RESCHEDULED\r\n"
    assert client.yaml(b"stats-job %d" % waits[0])["time-left"] == "2"
    assert client.send(b"kick 9\r\n") == b"KICKED 5\r\n"
    assert client.yaml(b"stats-group g")["waiting-jobs"] == "0"
    assert reserve(client) and state(client, waits[3]) == "ready"


def test_a_group_is_in_the_shard_of_its_tube():
    places = Places(8)
    near, far = "t4", "t0"
    world = World(shards=8, shard=places.of_tube(near.encode()))
    client = world.connect()
    client.send(b"use t4\r\n")
    assert client.send(b"put-with 0 0 60 1 group=t4/g\r\nx\r\n").startswith(b"INSERTED ")
    for attributes in (f"group={far}/g", f"after={far}", f"group={near} after={far}/g:wait"):
        assert client.send(f"put-with 0 0 60 1 {attributes}\r\nx\r\n".encode()) == b"OTHER_SHARD\r\n"
    assert client.yaml(b"stats")["current-jobs-ready"] == "1"
