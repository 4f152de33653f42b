"""The client for asyncio at real servers, on both kinds of loops: every command, TLS, sockets, silences; and at servers
that are killed in the middle of everything: what was acknowledged is there, and what is in doubt is an error.
"""

import asyncio
import contextlib
import gc
import random
import warnings
from collections import Counter

import pytest
import uvloop
from beanstalk_client import (
    AsyncClient,
    BeanstalkdError,
    ConnectionLostError,
    TimedOutError,
    asynchronous_connection,
)
from beanstalk_client.asynchronous_connection import AsyncConnection
from consuming import SERVERS, restartable
from tls_peers import Files, client_context

from harness.engines import Alone
from harness.nodes import Node, leader
from harness.waiting import WITHIN, eventually_async


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)])
def loop_factory(request):
    return {"asyncio": asyncio, "uvloop": uvloop}[request.param].new_event_loop


@pytest.mark.parametrize("tls", [False, True])
async def test_a_connection_that_a_child_may_have_is_made_anew(loop_factory, run, tmp_path, monkeypatch, tls):
    """A child that is forked before the connection is made cannot close its copy of the socket."""
    server = run(listeners=(Files(tmp_path).listener(),)) if tls else run()
    how = {"tls": client_context(), "server_name": "localhost"} if tls else {}
    make, made = AsyncConnection.connection_made, []

    def fork_before(connection, transport):
        made.append(connection)
        if len(made) == 1:
            asynchronous_connection._count_fork()
        make(connection, transport)

    monkeypatch.setattr(AsyncConnection, "connection_made", fork_before)

    async with AsyncClient(server.address, **how) as queue:
        await queue.put("x")
        assert [connection.is_lost for connection in made] == [True, False]
        while (await queue.stats())["current-connections"] > 1:
            await asyncio.sleep(0.001)
    assert len(asyncio.all_tasks()) == 1, "a task is left over"


class Worked:
    """Producers and workers over their clients, while the server is killed; and the replies that they got.

    Attributes:
        put: the bodies whose puts were acknowledged, and the times that each was run.
        perhaps: the bodies whose puts may have been done.
    """

    def __init__(self, addresses, seed):
        self.addresses = addresses
        self.rng = random.Random(seed)
        self.put = set()
        self.perhaps = set()
        self.runs = Counter()
        self.deleted = set()
        self.is_over = False
        self.doubts = 0

    async def produce(self, name):
        async with AsyncClient(self.addresses, reconnect_timeout=WITHIN) as queue:
            serial = 0
            while not self.is_over:
                bodies = [f"{name} {serial + number}" for number in range(self.rng.choice((1, 1, 20)))]
                serial += len(bodies)
                async with queue.pipeline(raise_errors=False) as together:
                    replies = [(body, together.put(body, ttr=600)) for body in bodies]
                for body, reply in replies:
                    try:
                        reply.result()
                    except ConnectionLostError as error:
                        if error.maybe_done:
                            self.perhaps.add(body)
                    else:
                        self.put.add(body)
                await asyncio.sleep(0.002)

    async def consume(self, until_empty=False):
        async with AsyncClient(self.addresses, reconnect_timeout=WITHIN) as queue:
            while until_empty or not self.is_over:
                try:
                    jobs = await queue.reserve_batch(10, 0 if until_empty else 0.1)
                except TimedOutError:
                    if until_empty:
                        return
                    continue
                except ConnectionLostError:
                    if until_empty:
                        raise
                    continue  # it was asked again, and the connection was one more that the dying server had accepted
                self.runs.update(job.body for job in jobs)
                for job in jobs:
                    try:
                        await queue.delete(job)
                    except ConnectionLostError:
                        self.doubts += 1
                    except BeanstalkdError:  # another client has it
                        continue
                    self.deleted.add(job.body)

    async def work_through(self, kill, kills):
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.produce(f"p{number}")) for number in range(3)]
        tasks += [loop.create_task(self.consume()) for _ in range(3)]
        for _ in range(kills):
            done = len(self.deleted)
            await eventually_async(lambda done=done: len(self.deleted) > done + 50, "work goes on")
            await loop.run_in_executor(None, kill)
        done = len(self.deleted)
        await eventually_async(lambda: len(self.deleted) > done + 50, "work goes on after the last kill")
        self.is_over = True
        await asyncio.gather(*tasks)
        await self.consume(until_empty=True)
        lost = self.put - set(self.runs)
        made_up = set(self.runs) - self.put - self.perhaps
        twice = sum(count > 1 for count in self.runs.values())
        print(f"{len(self.put)} puts acknowledged, {len(self.perhaps)} in doubt, {twice} run twice, {len(lost)} lost")
        assert not lost
        assert not made_up
        assert self.doubts + kills > 0


@pytest.mark.parametrize("program", SERVERS)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed_again_and_again(tmp_path, program):
    with restartable(program, tmp_path) as server:

        def kill():
            server.kill()
            server.start()

        asyncio.run(Worked(server.address, 1).work_through(kill, 3))


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_nodes_of_a_cluster_are_killed(tmp_path):
    with contextlib.ExitStack() as stack:
        engine = Alone(tmp_path / "engine")
        stack.callback(engine.close)
        nodes = [Node(engine.url, ["--lease-ttl", "4"]) for _ in range(2)]
        for node in nodes:
            stack.callback(node.kill)
        leader(engine, nodes)

        def kill():
            node = leader(engine, nodes)
            node.kill()
            leader(engine, nodes)
            node.start()

        asyncio.run(Worked([node.address for node in nodes], 2).work_through(kill, 4))


def test_a_client_goes_on_in_another_loop_when_the_first_is_closed(run):
    server = run()
    queue = AsyncClient(server.address, use="mine")

    async def work():
        return await queue.using()

    with asyncio.Runner() as first:
        assert first.run(work()) == "mine"
        with asyncio.Runner() as second, pytest.raises(RuntimeError, match="another event loop"):
            second.run(work())
        assert first.run(work()) == "mine"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # what has not been closed says so
        with asyncio.Runner() as third:
            assert third.run(work()) == "mine"
        with asyncio.Runner() as fourth:
            fourth.run(queue.close())
        gc.collect()
