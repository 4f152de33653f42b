"""Routed clients of several shards, beside plain ones of a server that has everything: who does the same is told the
same, whatever clients do, as long as messages take no time. Ids differ, so jobs are known by their bodies.

What differs is left out here, and each of it is documented and tested elsewhere: which of two jobs with the same
priority is first if they are of different shards; a batch, which is of one shard; the order of list-tubes; and how the
default tube counts those that use it.
"""

import re

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import ShardedCluster
from virtual import World

from beanstalk_server.wire.session import Session
from beanstalk_server.wire.yaml import is_summed

CLIENTS = 3
STEP = 0.0617
"""Seconds between two steps: so that of two deadlines, both sides see the same one first."""

DIFFERS = {"current-producers", "current-waiting", "current-workers", "cmd-list-tube-used", "cmd-list-tubes-watched"}
"""Rows of stats that count a client at each shard where it does so, or only those who are settled."""


class Plain:
    """A plain client of a server."""

    def __init__(self, world):
        self.world = world
        self.session = Session(world.broker, world.info, lambda: world.answered.append(self))

    def send(self, data):
        self.session.receive(data, self.world.now)
        self.go_on()
        self.world.settle()

    def go_on(self):
        self.session.run(self.world.now)
        while self.session.has_more:
            self.session.run(self.world.now)

    def read(self):
        return self.session.take_replies()

    def disconnect(self):
        self.session.disconnect(self.world.now)
        self.world.settle()


class One:
    """A server that has everything."""

    def __init__(self):
        self.world = World()
        self.jobs = Jobs()

    def connect(self):
        return Plain(self.world)

    def sleep(self, seconds):
        self.world.sleep(seconds)

    def check(self):
        self.world.check()


class Routed:
    """A routed client."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.client = cluster.connect()
        cluster.settle()

    def send(self, data):
        self.client.send(data)
        self.cluster.settle()

    def read(self):
        return self.cluster.read(self.client)

    def disconnect(self):
        self.client.disconnect()
        self.cluster.settle()


class Several:
    """Several shards."""

    def __init__(self, shards):
        self.cluster = ShardedCluster(shards)
        self.jobs = Jobs()

    def connect(self):
        return Routed(self.cluster)

    def sleep(self, seconds):
        self.cluster.sleep(seconds)

    def check(self):
        self.cluster.check()


class Jobs:
    """The ids of jobs, by the number of the put."""

    def __init__(self):
        self.ids = {}
        self.numbers = {}

    def note(self, number, reply):
        if reply.startswith(b"INSERTED "):
            job_id = int(reply.split()[1])
            self.ids[number] = job_id
            self.numbers[job_id] = number

    def line(self, command, number):
        """A command about a job; about none if no one has put it."""
        return re.sub(rb"ID", b"%d" % self.ids.get(number, 987654321), command) + b"\r\n"

    def comparable(self, reply):
        """A reply in which jobs have the numbers of their puts."""

        def number_of(match):
            return match[1] + b"job %d" % self.numbers[int(match[2])]

        reply = re.sub(rb"^((?:RESERVED|FOUND|EXISTS|REPLACED|TOO_LATE) )(\d+)", number_of, reply, flags=re.MULTILINE)
        reply = re.sub(rb"^(id: )(\d+)$", number_of, reply, flags=re.MULTILINE)
        reply = re.sub(rb"^(- {id: )(\d+)", number_of, reply, flags=re.MULTILINE)
        lines = reply.split(b"\n")
        if reply.startswith(b"OK ") and lines[2].startswith(b"- "):
            return sorted(lines)
        if reply.startswith(b"OK ") and lines[2].startswith(b"current-jobs-urgent"):
            figures = [line.decode().partition(": ") for line in lines[2:-2]]
            return {key: figure for key, _, figure in figures if is_summed(key) and key not in DIFFERS}
        return re.sub(rb"^OK \d+", b"OK", reply)


tubes = st.sampled_from([b"default", b"a", b"b", b"c", b"d", b"e"])
numbers = st.integers(0, 12)
seconds = st.integers(0, 4)


def lines(template, *strategies):
    return st.tuples(*strategies).map(lambda found: (template % found + b"\r\n", 0))


def about_jobs(*commands):
    return st.tuples(st.sampled_from(commands), numbers)


PUTS = [
    (b"put", b""),
    (b"put-keyed k", b""),
    (b"replace-keyed k", b""),
    (b"put-keyed l", b""),
    (b"put-with", b" key=k tries=2"),
    (b"put-with", b" key=l replace=1 hold=3"),
    (b"put-with", b" tries=2 backoff=1 ttl=3"),
]
"""What puts begin with, and what follows their numbers."""

often = st.one_of(
    st.tuples(st.just((b"put", b"")), st.just(0), st.integers(1, 4)),
    lines(b"use %b", tubes),
    lines(b"watch %b", tubes),
    st.sampled_from([(b"reserve\r\n", 0), (b"reserve-with-timeout 0\r\n", 0)]),
    st.tuples(st.just(b"sleep"), st.sampled_from([0.3, 1, 2.5])),
)
sometimes = st.one_of(
    st.tuples(st.sampled_from(PUTS), seconds, st.integers(1, 4)),
    lines(b"ignore %b", tubes),
    lines(b"reserve-with-timeout %d", seconds),
    lines(b"reserve-batch 1 %d", seconds),
    about_jobs(b"delete ID", b"release ID 7 0", b"release ID 9 2", b"bury ID 3", b"touch ID", b"kick-job ID"),
    about_jobs(b"peek ID", b"stats-job ID", b"reserve-job ID", b"cancel ID", b"reschedule ID 1"),
    lines(b"kick %d", st.integers(1, 3)),
    st.sampled_from([b"peek-ready", b"peek-delayed", b"peek-buried", b"peek-keyed k", b"cancel-keyed k"]).map(
        lambda line: (line + b"\r\n", 0)
    ),
    st.sampled_from([b"drain", b"undrain", b"undrain", b"undrain"]).map(lambda line: (line + b"\r\n", 0)),
    st.sampled_from([b"stats", b"list-tubes", b"list-tube-used", b"list-tubes-watched", b"unknown"]).map(
        lambda line: (line + b"\r\n", 0)
    ),
    lines(b"pause-tube %b %d", tubes, seconds),
    lines(b"clear-tube %b", tubes),
    lines(b"redrive %b 2", tubes),
    lines(b"list-jobs %b %b 0 1000", tubes, st.sampled_from([b"ready", b"delayed", b"reserved", b"buried"])),
    lines(b"stats-tubes %b 1000", st.sampled_from([b"e", b"f"])),
    lines(b"stats-tube %b", tubes.filter(lambda name: name != b"default")),
    st.tuples(st.just(b"disconnect"), st.just(0)),
)


def do(server, clients, client, step, number):
    """Do a step at one server; return what each client has been told."""
    what = step[0]
    if what == b"sleep":
        server.sleep(step[1])
    elif what == b"disconnect":
        clients[client].disconnect()
        clients[client] = server.connect()
    elif len(step) == 3:
        body = b"%d" % number
        word, attributes = what
        # No two jobs have the same priority.
        figures = number * 61 % 97, step[1], step[2] + 1, len(body)
        clients[client].send(b"%b %d %d %d %d%b\r\n%b\r\n" % (word, *figures, attributes, body))
    elif what.endswith(b"\r\n"):
        clients[client].send(what)
    else:
        clients[client].send(server.jobs.line(what, step[1]))
    told = [each.read() for each in clients]
    if len(step) == 3:
        server.jobs.note(number, told[client])
        told[client] = re.sub(rb"^INSERTED \d+", b"INSERTED", told[client])
    server.sleep(STEP)
    told = [first + each.read() for first, each in zip(told, clients, strict=True)]
    return [server.jobs.comparable(each) for each in told]


def compare(shards, script):
    one, several = One(), Several(shards)
    pairs = [(one, [one.connect() for _ in range(CLIENTS)]), (several, [several.connect() for _ in range(CLIENTS)])]
    for number, (client, step) in enumerate(BEFORE + script):
        waits = pairs[0][1][client].session.pending is not None
        if waits and step[0] not in (b"sleep", b"disconnect"):
            continue
        expected, found = [do(server, clients, client, step, number) for server, clients in pairs]
        assert found == expected, f"step {number}: {step}"
        several.check()
    one.check()


BEFORE = [
    (0, (b"watch a\r\nwatch b\r\nwatch d\r\n", 0)),
    (1, (b"use b\r\nwatch b\r\nwatch d\r\n", 0)),
    (2, (b"use d\r\nwatch e\r\n", 0)),
]
"""So that most reserves are of several shards."""

scripts = st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.one_of(often, sometimes)), min_size=20, max_size=60)


@settings(max_examples=examples(40))
@given(shards=st.integers(1, 6), script=scripts)
def test_clients_of_several_shards_are_told_what_those_of_one_server_are(shards, script):
    compare(shards, script)
