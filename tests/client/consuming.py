"""What tests of consumers and workers share: servers, clients, and a handler that does as it is told."""

import asyncio
import contextlib
import itertools

from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.consumer import DONE, Consumer

from harness.servers import BEANSTALKD, Restartable, command, imported, start, unused_port
from harness.waiting import eventually_async

SERVERS = (imported(), BEANSTALKD)

_numbers = itertools.count()


def new_tube():
    """The name of a tube that no other test uses."""
    return f"tube-{next(_numbers)}"


@contextlib.contextmanager
def running(program):
    """A server, while the block lasts."""
    server = start(program)
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def restartable(program, directory=None):
    """A server that can be killed and started again on its port, with a binlog that syncs each change, or with none."""
    port = unused_port()
    line = [*command(program), "-l", "127.0.0.1", "-p", str(port)]
    line += ["-b", str(directory), "-f0"] if directory else []
    server = Restartable(program, line, port, address=("127.0.0.1", port))
    try:
        yield server
    finally:
        if server.is_running:
            server.kill()


def run(coroutine):
    """Run a test to its end, which comes within a minute or never."""
    return asyncio.run(asyncio.wait_for(coroutine, 60))


class Handler:
    """Notes each job that it is given, and returns DONE, or what `outcomes` says for its body.

    Attributes:
        began: the bodies, in the order in which they came.
        gates: bodies whose runs wait until their event is set.
    """

    def __init__(self, outcomes=None):
        self.outcomes = outcomes or {}
        self.began = []
        self.ended = []
        self.gates = {}
        self.most = 0
        self.at_once = 0

    async def __call__(self, delivery):
        body = delivery.body.decode()
        self.began.append(body)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if body in self.gates:
                await self.gates[body].wait()
            self.ended.append(body)
        finally:
            self.at_once -= 1
        outcome = self.outcomes.get(body, DONE)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def gate(self, body):
        self.gates[body] = asyncio.Event()
        return self.gates[body]


@contextlib.asynccontextmanager
async def connected(server, tube):
    """A client that puts into a tube, and looks at it."""
    async with AsyncClient(server.address, encoding=None, use=tube, watch=tube) as client:
        yield client


@contextlib.asynccontextmanager
async def consuming(server, tube, handler, connect_timeout=10, **options):
    """A consumer of a tube, while the block lasts."""

    def connect():
        return AsyncClient(server.address, encoding=None, connect_timeout=connect_timeout)

    consumer = Consumer(connect, [tube], handler, **options)
    task = asyncio.ensure_future(consumer.run())
    try:
        yield consumer
    except BaseException:
        consumer.end()  # what has failed is not waited for
        await task
        raise
    consumer.stop()
    await task


async def states(client, tube):
    """How many jobs of a tube are in which state."""
    found = await client.stats_tube(tube)
    return {state: found[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")}


async def is_empty(client, tube):
    return not any((await states(client, tube)).values())


async def emptied(client, tube):
    """Wait until a tube has no job in any state."""
    while not await is_empty(client, tube):  # ends with the test's own deadline
        await asyncio.sleep(0.005)


async def until(condition, what):
    await eventually_async(condition, what)
