"""Tries and dead letters survive in the binlog: whatever fails, moves and comes back, a restart finds it as it was."""

import asyncio
import random

import pytest
from checking import check_broker
from effort import seeded
from memory_disk import MemoryDirectory
from virtual import RecordingClient, reserve_job

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import READY, RESERVED, Terms
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Policy
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import Binlog
from harness.waiting import eventually_async

pytestmark = pytest.mark.usefixtures("bodies")

POLICIES = {
    "a": Policy(max_tries=2, dead_tube="dead"),
    "b": Policy(max_tries=3, backoff=SECOND, dead_tube="dead"),
    "c": Policy(max_tries=2),
    "dead": Policy(max_tries=3, dead_tube="deader"),
}
KEYS = ["", "k", "l", "m"]


async def at_once(work):
    return work()


class Process:
    """A broker over a directory whose segments are small, and a client of it."""

    def __init__(self, directory, now, rng):
        self.now = now
        self.rng = rng
        self.binlog = Binlog(directory, segment_size=4096, clock=lambda: self.now, in_thread=at_once)
        self.broker = Broker(self.binlog, now, policy_of=lambda name: POLICIES.get(name, NO_POLICY))
        self.binlog.on_admission = self.broker.set_admission
        self.broker.restore(self.binlog.clock_offset(), now)
        self.client = RecordingClient(self.broker)

    def jobs(self):
        """What a restart must find: for each job what is stored of it, but for its body and its reservations."""
        found = {}
        for job in self.broker.jobs.values():
            terms = job.terms() or Terms()
            state = READY if job.state == RESERVED else job.state
            extras = job.extras
            found[job.id] = (
                job.tube.name, job.key, state, job.priority, job.delay, extras.releases, extras.buries, extras.kicks,
                terms.max_tries, terms.backoff, terms.tries, terms.reason, terms.origin,
            )  # fmt: skip
        return found

    def step(self):
        """Do one thing at random: mostly to jobs that there are."""
        rng, broker, client = self.rng, self.broker, self.client
        job_id = rng.choice(sorted(broker.jobs) or [1])
        match rng.randrange(8):
            case 0 | 1:
                broker.use(client, rng.choice("abc"))
                asked = Attributes(
                    key=rng.choice(KEYS), replaces=rng.random() < 0.5, max_tries=rng.choice([0, 0, 1, 4])
                )
                broker.put_with(client, asked, 5, 0, 2 * SECOND, rng.randbytes(rng.randrange(300)), self.now, self.now)
            case 2 | 3 | 4:
                reserve_job(broker, client, job_id, self.now)
                if rng.random() < 0.8 and not client.busy:
                    broker.release(client, job_id, rng.randrange(9), rng.choice([0, 0, SECOND]), self.now)
            case 5:
                broker.redrive(client, rng.choice(["dead", "deader"]), rng.randrange(4), self.now)
            case 6:
                if rng.random() < 0.5:
                    broker.disconnect(client, self.now)
                    self.client = RecordingClient(broker)
                else:
                    broker.kick_job(client, job_id, self.now)
            case 7:
                if rng.random() < 0.3:
                    broker.delete(client, job_id, self.now)
                self.sleep(rng.randrange(2 * SECOND))

    def sleep(self, duration):
        end = self.now + duration
        while (event := self.broker.next_event()) <= end:
            self.now = max(self.now, event)
            self.broker.advance(self.now)
        self.now = end

    async def live(self, steps):
        for _ in range(steps):
            self.sleep(0)  # a redrive that has to wait goes on
            await eventually_async(lambda: not self.client.busy, "the body is fetched")
            if self.broker.admits == ALL:
                self.step()
            check_broker(self.broker)
            self.binlog._log.check()
            if self.broker.admits != ALL or self.rng.random() < 0.2:
                await self.binlog.commit()
                await eventually_async(lambda: self.binlog._upkeep is None, "the upkeep ends")
        await self.binlog.commit()


@seeded(5)
def test_whatever_fails_moves_and_comes_back_survives(seed):
    rng = random.Random(seed)
    directory = MemoryDirectory()
    now, left, moved = SECOND, {}, 0
    for _ in range(5):

        async def live(directory=directory, now=now, left=left):
            process = Process(directory, now, rng)
            assert process.jobs() == left
            await process.live(80)
            return process

        process = asyncio.run(live())
        directory = directory.after_a_kill()
        now, left = process.now, process.jobs()
        moved += process.broker.counters.dead + process.broker.counters.redriven
    assert moved
