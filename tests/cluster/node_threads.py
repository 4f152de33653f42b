"""Nodes of a cluster, each in a thread, over an engine in memory that the test breaks; and what they tell clients."""

import asyncio
import threading
from contextlib import ExitStack

from memory_engine import Servers

from beanstalk_server import Config
from beanstalk_server.cluster.node import Node
from beanstalk_server.cluster.roles import LEADS
from beanstalk_server.io_processes.processes import IoProcesses
from harness.in_thread import ServerThread
from harness.waiting import eventually

TTL = 2


class Locked:
    """A connection to the engine whose calls happen at once, as Redis's scripts do, although threads make them."""

    def __init__(self, engine, lock):
        self._engine, self._lock = engine, lock

    def __getattr__(self, name):
        method = getattr(self._engine, name)
        if name == "close":
            return method  # of another thread's call, too

        def call(*arguments, **options):
            with self._lock:
                return method(*arguments, **options)

        return call


class Cluster:
    """Nodes, each in a thread, over an engine that the test breaks."""

    def __init__(self):
        self.servers = Servers()
        self.lock = threading.Lock()
        self.stack = ExitStack()
        self.nodes = []

    def add(self, *, waits_for=None, **options):
        """Start a node; wait until it has this role."""
        port = {} if "listeners" in options else {"port": 0}
        config = Config(cluster="redis://127.0.0.1", lease_ttl=TTL, **(port | options))
        node = ServerThread(config, asyncio.new_event_loop, self.make)
        node.has_stopped = False
        self.nodes.append(node)
        if waits_for:
            eventually(lambda: role(node) == waits_for, f"its role is {waits_for!r}")
        return node

    def make(self, config):
        make_io = IoProcesses if config.io_processes else None
        return Node(config, connect=self.connect_engine, make_io=make_io)

    def connect_engine(self):
        """A connection to the engine, as a node or a tool has it."""
        return Locked(self.servers.engine(), self.lock)

    def two(self, leads=None, **options):
        """A leader, and a node that stands by and passes clients on.

        Args:
            leads: options that the leader has besides, or instead.
        """
        leader = self.add(waits_for=LEADS, **(options | (leads or {})))
        standby = self.add(**options)
        eventually(lambda: standby.server.shards[0].link.is_open, "clients are passed on")
        return leader, standby

    def connect(self, node):
        client = node.connect()
        self.stack.callback(client.close)
        return client

    def stop(self, node):
        if not node.has_stopped:
            node.has_stopped = True
            node.stop()

    def close(self):
        self.servers.is_reachable = True
        for node in self.nodes:
            self.stop(node)
        self.stack.close()


def role(node):
    return node.server.shards[0].roles.role


def lead_all(*nodes):
    """Wait until these nodes together lead all shards."""
    shards = len(nodes[0].server.shards)
    eventually(
        lambda: sum(shard.leads for node in nodes for shard in node.server.shards) == shards, "all shards are led", 60
    )


def put(client, body=b"x", delay=0):
    return client.ask(b"put 0 %d 60 %d\r\n%b\r\n" % (delay, len(body), body))


def reserved(client):
    """The rest of the reply to a reserve: the id and the body of the job."""
    word, job_id, size = client.line().split()
    assert word == b"RESERVED"
    return int(job_id), client.read(int(size) + 2)[:-2]


def stats(client):
    size = int(client.ask(b"stats\r\n").split()[1])
    text = client.read(size + 2).decode()
    return dict(line.split(": ") for line in text.splitlines() if ": " in line)
