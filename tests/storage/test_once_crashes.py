"""A job and the token that it takes survive together or not at all, wherever the machine stops."""

import random

import pytest
from effort import seeded
from lives import SEGMENT, Clocks, History, Life, run_life
from memory_disk import MemoryDirectory

from beanstalk_server.queue.outcome import DONE, OUT_OF_MEMORY, REPLACED
from beanstalk_server.queue.policy import Attributes, Labels
from beanstalk_server.queue.units import SECOND

pytestmark = pytest.mark.usefixtures("places")

DAY = 86_400 * SECOND


@seeded(60)
def test_a_machine_that_stops_in_the_middle_keeps_a_job_with_its_token_or_neither(seed):
    rng = random.Random(seed)
    clocks = Clocks()
    history = History()

    class OnlyOnce(Life):
        put = 0

        def start(self):
            super().start()
            last = {}
            for token in sorted(self.broker.held.values(), key=lambda token: token.id):
                last[token.job_id] = int(token.key.removeprefix("-t"))
            assert last == {job.id: job.priority for job in self.broker.jobs.values()}

        def command(self):
            number = OnlyOnce.put = OnlyOnce.put + 1
            key = rng.choice(("", "a", "b"))
            labels = Labels(group=f"g{number}") if rng.random() < 0.3 else None
            once = Attributes(key=key, replaces=bool(key), once=f"t{number}", once_ttl=DAY, labels=labels)
            body = rng.randbytes(rng.choice((0, 90, 900, SEGMENT + 100)))
            outcome = self.broker.put_with(self.client, once, number, DAY, SECOND, body, self.now, self.now)
            assert outcome in (DONE, REPLACED, OUT_OF_MEMORY)

    directory = MemoryDirectory()
    directory.crash_at = rng.randrange(1, 90)
    run_life(history, directory, rng, clocks, 30, OnlyOnce)
    clocks.come_back(rng, has_crashed=True)
    run_life(history, directory.after_a_crash(rng), rng, clocks, 0, OnlyOnce)
