"""Storms of cancelled commands, and of lost connections, over a server in virtual time: every job is accounted for.

A storm is drawn from a seed. Each of its tasks knows what it was told; at its end the server is asked what there is,
and the two must agree: only a delete that was sent ends a job, and none is held by a client that nobody told.
"""

import asyncio
import contextlib
import random

import pytest
from beanstalk_client import AsyncClient, BeanstalkdError, ConnectionLostError
from effort import seeded
from fake_network import network
from served import Served

pytestmark = pytest.mark.usefixtures("loop_factory")

STEPS = 60
"""Commands of each task of a storm."""

TASKS = 6

LONG = 1_000_000
"""A time to run that no storm takes, in seconds."""

OUTSIDE = b"somebody else's job"


class Storm:
    """Tasks that give commands over one client, some of which are cancelled.

    Attributes:
        bodies: of the jobs whose puts were answered, by id.
        held: the jobs that tasks hold.
        ended: the ids that were deleted, or whose deletion was sent.
    """

    def __init__(self, seed, served, queue, *, losses):
        self.rng = random.Random(seed)
        self.served = served
        self.queue = queue
        self.losses = losses
        self.one_by_one = seed % 2 == 1  # as with a server that does not know reserve-batch
        self.bodies = {}
        self.producer = served.world.connect()
        self.given = {OUTSIDE.decode()}  # bodies that were sent
        self.held = {}
        self.ended = set()
        self.buried = set()
        self.unsure = set()  # the ids of jobs that were to be ended: a cancelled command may not even have been given
        self.cancelled = 0
        self.lost = 0
        self.serial = 0

    async def __call__(self):
        tasks = [asyncio.ensure_future(self.work()) for _ in range(TASKS)]
        while not all(task.done() for task in tasks):
            await self.served.turn()
            if self.losses and self.rng.random() < 0.003:
                self.served.drop()
            if self.rng.random() < 0.02:
                self.served.world.sleep(self.rng.choice((0.1, 1.5)))
            if self.rng.random() < 0.01:  # what waits for ever gets something at last
                self.producer.put(OUTSIDE, priority=2, ttr=LONG)
        await asyncio.gather(*tasks)

    async def work(self):
        for _ in range(STEPS):
            action = self.rng.choice((self.put, self.put, self.reserve, self.reserve, self.batch, self.end, self.end))
            try:
                await action()
            except asyncio.CancelledError:
                self.cancelled += 1
            except ConnectionLostError:
                self.lost += 1
            except BeanstalkdError:
                pass

    async def maybe_cancelled(self, work):
        """The result of a command, unless it is cancelled first, after a few turns of the loop."""
        task = asyncio.ensure_future(work)
        if self.rng.random() < 0.5:
            for _ in range(self.rng.randint(0, 8)):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        return task.result()

    async def put(self):
        self.serial += 1
        body = f"job {self.serial}"
        self.given.add(body)
        job_id = await self.maybe_cancelled(self.queue.put(body, self.rng.randint(0, 3), 0, LONG))
        assert job_id not in self.bodies
        self.bodies[job_id] = body

    async def reserve(self):
        timeout = self.rng.choice((0, 0, 1, 3, None))
        if timeout is None and self.rng.random() < 0.5:
            work = self.queue.reserve()
            task = asyncio.ensure_future(work)
            for _ in range(self.rng.randint(0, 30)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            self.hold(task.result())
        else:
            self.hold(await self.maybe_cancelled(self.queue.reserve(timeout or 0)))

    async def batch(self):
        if self.one_by_one:
            self.queue._session.known["reserve-batch"] = False
        for job in await self.maybe_cancelled(
            self.queue.reserve_batch(self.rng.randint(1, 5), self.rng.choice((0, 1)))
        ):
            self.hold(job)

    def hold(self, job):
        assert self.bodies.get(job.id, job.body) == job.body, "a reply went to another command"
        assert job.body in self.given
        self.held[job.id] = job

    async def end(self):
        if not self.held:
            return
        job = self.held.pop(self.rng.choice(list(self.held)))
        self.unsure.add(job.id)
        way = self.rng.choice(("delete", "delete", "release", "bury"))
        if way == "delete":
            self.ended.add(job.id)
            await self.maybe_cancelled(self.queue.delete(job))
        elif way == "release":
            await self.maybe_cancelled(self.queue.release(job, 1))
        else:
            self.buried.add(job.id)
            await self.maybe_cancelled(self.queue.bury(job, 1))


async def jobs(served):
    """What a client that has nothing to do with it is told of each job, by id."""
    caller = served.world.connect()
    there = {}
    last = caller.put(OUTSIDE, ttr=LONG)  # a put that was cut off has an id too, and is not counted
    for job_id in range(1, last):
        with contextlib.suppress(AssertionError):
            there[job_id] = caller.yaml(b"stats-job %d" % job_id)
    caller.disconnect()
    return there


async def storm(seed, losses, **how):
    with network() as net:
        served = Served(net, seed, **how)
        forgotten = set()
        queue = AsyncClient("h:1", on_reconnect=forgotten.update)
        await served.finish(queue.connect())
        weather = Storm(seed, served, queue, losses=losses)
        await weather()
        there = await jobs(served)
        may_hold = set(weather.held) | weather.unsure
        for _ in range(100):
            if {job_id for job_id, state in there.items() if state["state"] == "reserved"} <= may_hold:
                break
            weather.producer.put(OUTSIDE, ttr=LONG)  # for a reserve that waits for nobody, and holds back a release
            await served.turns(100)
            there = await jobs(served)
        for job_id in weather.bodies:
            assert job_id in there or job_id in weather.ended, "a job is lost"
        for job_id, found in there.items():
            if found["state"] == "reserved":
                assert job_id in may_hold, "a job is held by nobody"
            if found["state"] == "buried":
                assert job_id in weather.buried
            assert 0 <= int(found["pri"]) <= 3
        if not losses:
            for job_id in weather.held:
                assert there[job_id]["state"] == "reserved"
        served.world.check()
        await served.finish(queue.close())
        await served.turns(3)
    return weather


@seeded(5)
async def test_no_job_is_lost_in_a_storm_of_cancels(seed):
    weather = await storm(seed, losses=False)
    assert weather.cancelled > 50
    assert weather.lost == 0


@seeded(5)
async def test_no_job_is_lost_in_a_storm_of_cancels_and_losses(seed):
    weather = await storm(seed, losses=True)
    assert weather.cancelled > 50


@pytest.mark.slow
@pytest.mark.parametrize("losses", [False, True])
async def test_no_job_is_lost_in_three_hundred_storms(losses):
    for seed in range(1000, 1150):
        await storm(seed, losses)
