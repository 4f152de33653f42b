"""list-jobs on the wire: what is said of jobs, in slices, and who may ask."""

import pytest
import yaml
from virtual import World

from beanstalk_server.wire.listings import PAGE_ENTRIES
from beanstalk_server.wire.session import SESSION_QUANTUM


def page(client, state="ready", position="0", count=1000, tube="default"):
    return read(client.send(f"list-jobs {tube} {state} {position} {count}\r\n".encode()))


def read(reply):
    head, _, text = reply.partition(b"\r\n")
    assert head == b"OK %d" % (len(text) - 2), reply
    document = yaml.safe_load(text)
    assert list(document) == ["next", "jobs"]
    return document["next"], document["jobs"]


def ids(entries):
    return [entry["id"] for entry in entries]


def test_an_entry_says_what_stats_job_says(client, world):
    client.send(b"put-with 3 0 60 5 key=k tries=3\r\nhello\r\nreserve-job 1\r\nrelease 1 4 20\r\n")
    client.send(b"put 7 0 90 1\r\nx\r\nreserve-job 2\r\nbury 2 8\r\nkick-job 2\r\nreserve-job 2\r\n")
    world.sleep(2.5)
    delayed, reserved = page(client, "delayed")[1], page(client, "reserved")[1]
    assert delayed == [
        {"id": 1, "state": "delayed", "pri": 4, "age": 2, "delay": 20, "ttr": 60, "time-left": 17, "reserves": 1,
         "timeouts": 0, "releases": 1, "buries": 0, "kicks": 0, "size": 5, "tries": 1, "reason": "released", "key": "k"}
    ]  # fmt: skip
    assert reserved == [
        {"id": 2, "state": "reserved", "pri": 8, "age": 2, "delay": 0, "ttr": 90, "time-left": 87, "reserves": 2,
         "timeouts": 0, "releases": 0, "buries": 1, "kicks": 1, "size": 1, "tries": 0, "reason": "", "key": "",
         "client": "", "reserved-for": 2}
    ]  # fmt: skip
    for entry in delayed + reserved:
        shown = client.yaml(b"stats-job %d" % entry["id"])
        assert {key: str(value) for key, value in entry.items() if key in shown and key not in ("key", "reason")} == {
            key: shown[key] for key in entry if key in shown and key not in ("key", "reason")
        }


def test_a_reserved_job_says_who_has_it_and_since_when(client, world):
    client.send(b"put 0 0 60 1\r\nx\r\nput 0 0 60 1\r\nx\r\nreserve\r\n")
    client.send(b"client-name worker/h/1\r\nreserve\r\n")
    world.sleep(5)
    client.send(b"touch-all\r\n")
    world.sleep(2)
    assert [(job["client"], job["reserved-for"]) for job in page(client, "reserved")[1]] == [
        ("worker/h/1", 2),  # it was reserved before the client had a name, and touched since
        ("worker/h/1", 7),
    ]
    assert client.yaml(b"stats-job 2")["reserved-for"] == "7"
    client.send(b"release 2 0 0\r\nreserve\r\n")
    assert client.yaml(b"stats-job 2")["reserved-for"] == "0"


def test_an_entry_is_one_line_that_can_be_read_without_a_parser_of_yaml(client):
    client.send(b"put-keyed k-1 10 0 60 11\r\nhello world\r\n")
    assert client.send(b"list-jobs default ready 0 1\r\n").decode().split("\n")[1:-2] == [
        "---",
        'next: ""',
        "jobs:",
        '- {id: 1, state: "ready", pri: 10, age: 0, delay: 0, ttr: 60, time-left: 0, reserves: 0, timeouts: 0, '
        'releases: 0, buries: 0, kicks: 0, size: 11, tries: 0, reason: "", key: "k-1"}',
    ]


@pytest.mark.parametrize("compat", ["1.12", "1.13"])
def test_text_is_in_quotes_in_either_dialect(compat):
    client = World(compat=compat).connect()
    client.put()
    assert b'state: "ready"' in client.send(b"list-jobs default ready 0 1\r\n")


def test_pages_follow_from_each_other(client):
    for number in range(7):
        client.put(priority=number % 3)
    found, position = [], "0"
    while position:
        position, entries = page(client, position=position, count=2)
        found += ids(entries)
    assert found == [1, 4, 7, 2, 5, 3, 6]


def test_a_page_has_a_thousand_jobs_at_most(client):
    for _ in range(PAGE_ENTRIES + 1):
        client.put()
    position, entries = page(client, count=2**32 - 1)
    assert (position, len(entries)) == (f"0-{PAGE_ENTRIES}", PAGE_ENTRIES)
    assert ids(page(client, position=position)[1]) == [PAGE_ENTRIES + 1]


def test_there_is_no_such_tube(client):
    assert client.send(b"list-jobs nobody ready 0 1\r\n") == b"NOT_FOUND\r\n"
    assert page(client, "buried") == ("", [])


BAD = ["0 0", "0 -1", "0 4294967296", "0 1 ", "0", "x 1", "- 1", "1 1", "1-2-3 1", "1-2-3-4 1", "-1-2 1", "1-2- 1",
       "1--2 1", f"{10**20}-1 1", "0-0\0 1", "0 1x"]  # fmt: skip


@pytest.mark.parametrize("arguments", [*[f"default ready {end}" for end in BAD], "default delayed 1-2 1",
    "default reserved 1-2 1", "default buried 1 1", "default Ready 0 1", "default new 0 1", "default  0 1",
    "-a ready 0 1", "a* ready 0 1", "a" * 201 + " ready 0 1", "default ready 0 " + "1" * 400])  # fmt: skip
def test_what_is_malformed_is_refused(client, arguments):
    assert client.send(f"list-jobs {arguments}\r\n".encode()) == b"BAD_FORMAT\r\n"
    assert client.yaml(b"stats")["cmd-list-jobs"] == "0"


def test_the_longest_line_is_understood(client):
    position = "-".join(["9" * 20] * 4)
    name = "a" * 200
    client.send(f"use {name}\r\n".encode())
    assert page(client, "reserved", "9" * 20, 2**32 - 1, name) == ("", [])
    assert page(client, "delayed", position, 2**32 - 1, name) == ("", [])


def test_a_long_page_takes_many_turns_and_leaves_out_what_goes(world, client):
    for _ in range(1500):
        client.put()
    other = world.connect()
    session = client.session
    session.receive(b"list-jobs default ready 0 1000\r\nlist-tube-used\r\n", world.now)
    turns = 0
    while not (reply := client.read()):
        assert world.answered.pop() is client, "it is promised another turn"
        assert not world.answered
        other.send(b"delete %d\r\nput 0 0 60 1\r\nx\r\n" % (1000 - turns))
        session.run(world.now)
        assert session.cost <= 6 * SESSION_QUANTUM or session.has_replies
        turns += 1
    assert turns > 10
    position, entries = read(reply.removesuffix(b"USING default\r\n"))
    assert position == "0-1000"
    assert ids(entries) == list(range(1, len(entries) + 1))
    assert 1000 - turns <= len(entries) < 1000
