"""A batch is put as a whole or not at all, wherever the machine stops."""

import random
from collections import Counter

import pytest
from effort import seeded
from lives import SEGMENT, Clocks, History, Life, run_life
from memory_disk import MemoryDirectory

from beanstalk_server.queue.outcome import DONE, OUT_OF_MEMORY
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.upkeep import SEGMENT_OVERHEAD

pytestmark = pytest.mark.usefixtures("places")

DAY = 86_400 * SECOND


class BatchLife(Life):
    """Puts batches of delayed jobs and does other things. The jobs of a batch have its number as their priority."""

    put = {}  # by number: how many jobs
    others = 0.5  # how often it does other things

    def command(self):
        if self.rng.random() < self.others:
            super().command()
            return
        number = 1_000_000 + len(self.put)
        bodies = [self.rng.randbytes(self.rng.choice((0, 90))) for _ in range(self.rng.randrange(1, 20))]
        self.put[number] = len(bodies)  # the machine may stop while the disk is asked for room
        outcome = self.broker.put_batch(self.client, number, DAY, SECOND, bodies, self.now, self.now)
        assert outcome in (DONE, OUT_OF_MEMORY)


@seeded(60)
def test_a_machine_that_stops_in_the_middle_keeps_all_of_a_batch_or_nothing(seed):
    rng = random.Random(seed)
    clocks = Clocks()
    history = History()

    class OnlyBatches(BatchLife):
        put = {}
        others = 0

        def start(self):
            super().start()
            found = Counter(job.priority for job in self.broker.jobs.values())
            assert found.items() <= self.put.items(), "a batch has lost a part"

    directory = MemoryDirectory()
    directory.crash_at = rng.randrange(1, 60)
    run_life(history, directory, rng, clocks, 30, OnlyBatches)
    clocks.come_back(rng, has_crashed=True)
    run_life(history, directory.after_a_crash(rng), rng, clocks, 0, OnlyBatches)


@seeded(5)
def test_a_history_with_batches_is_kept(seed):
    rng = random.Random(seed)
    history = History()
    clocks = Clocks()
    directory = MemoryDirectory()
    for _ in range(4):
        directory = run_life(history, directory, rng, clocks, 30, BatchLife).directory.after_a_kill()
        clocks.come_back(rng)


def test_a_batch_that_does_not_fit_into_a_segment_is_refused():
    class Large(Life):
        def command(self):
            fits = (SEGMENT - SEGMENT_OVERHEAD) // 100
            for count, wanted in ((fits, DONE), (2 * fits, OUT_OF_MEMORY)):
                before = len(self.broker.jobs)
                outcome = self.broker.put_batch(self.client, 0, 0, SECOND, [bytes(10)] * count, self.now, self.now)
                assert outcome == wanted
                assert len(self.broker.jobs) == before + (count if wanted == DONE else 0)

    run_life(History(), MemoryDirectory(), random.Random(1), Clocks(), 1, Large)
