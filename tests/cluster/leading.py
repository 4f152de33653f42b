"""A node that leads shards of an engine in memory: what writes to them, without a broker."""

import asyncio
import functools
import inspect

from memory_engine import Servers

from beanstalk_server.cluster.commit_sender import CommitSender
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine.interface import Position
from beanstalk_server.cluster.engine_writer import EngineWriter
from beanstalk_server.cluster.lanes import Lanes
from harness.waiting import eventually_async


class Spy:
    """An engine that notes which shards it is called for."""

    def __init__(self, engine):
        self._engine = engine
        self.calls = []
        self.on_call = lambda: None

    def append(self, calls):
        self.calls.append(sorted(call.shard for call in calls))
        self.on_call()
        return self._engine.append(calls)

    def close(self):
        self._engine.close()


class Leader:
    """A leader of one shard, whose writer works on a file in the engine."""

    def __init__(self, node, shard):
        self.shard = shard
        self.servers = node.servers
        lease = self.servers.lead(shard)
        before = EngineDirectory(self.servers.engine(), CommitSender(lease, 1), shard=shard)
        before.create("a")
        before.sync()
        sender = CommitSender(lease._replace(position=Position(1, 1)), 1)
        self.directory = EngineDirectory(self.servers.engine(), sender, shard=shard)
        self.directory.lock()
        self.writer = EngineWriter(self.directory, node.lanes)
        self.file = self.directory.open("a")
        self.writer.start()
        self.ends = []

    def write(self, text=b"x", wait=0.0):
        """Begin a commit; `ends` gets its error, or the text."""
        end = self.file.size()
        self.writer.begin(
            lambda: self.file.write(end, text), lambda error: self.ends.append(text if error is None else error), wait
        )

    async def ended(self, count):
        await eventually_async(lambda: len(self.ends) >= count, f"{count} commits of shard {self.shard} end")
        return self.ends

    def stored(self):
        return bytes(self.servers.primary.of(self.shard).files["a"][1])


class Joining:
    """Notes what the lanes tell it. At the next write, `joiners` write something."""

    def __init__(self):
        self.told = []
        self.joiners = []

    def join(self):
        self.told.append("join")
        while self.joiners:
            self.joiners.pop()()

    def hold(self):
        self.told.append("hold")

    def release(self):
        self.told.append("release")


class LeadingNode:
    """A node that leads some shards."""

    def __init__(self, servers, shards):
        self.servers = servers
        self.engine = Spy(servers.engine())
        self.pace = Joining()
        self.lanes = Lanes(self.engine, pace=self.pace)
        self.leaders = [Leader(self, shard) for shard in range(shards)]


def on(shards, **options):
    """Run a test as a coroutine that gets a node with this many shards, its leaders, and fixtures by keyword.

    Args:
        options: of the servers.
    """

    def decorate(test):
        async def work(fixtures):
            node = LeadingNode(Servers(**options), shards)
            try:
                await test(node, *node.leaders, **fixtures)
            finally:
                for leader in node.leaders:
                    leader.writer.close()
                node.lanes.close()

        @functools.wraps(test)
        def run(**fixtures):
            asyncio.run(work(fixtures))

        parameters = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature([each for each in parameters if each.kind == each.KEYWORD_ONLY])
        return run

    return decorate
