"""What a server measures if somebody asks for it: the durations of jobs, of commits, and of the event loop.

They are those of the whole process: of all services that it has and will have, so that no count goes down because a
shard has moved. What is not asked for costs the test of one attribute where it would be counted. `Server.measure` turns
all of it on.

Must never know who reads it.
"""

from __future__ import annotations

import asyncio

from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.server.held import HeldSamples


class Measurements:
    """All of them. Whoever reads them does so in the thread of the event loop.

    Attributes:
        durations: of jobs: `waited`, `ran` and `lateness`.
        commits: how long replies waited for their commits; empty without a journal.
        held: how long the event loop was held, at the moments of samples.
    """

    def __init__(self) -> None:
        self.durations = Durations()
        self.commits = Histogram()
        self.held = Histogram()
        self._samples = HeldSamples(self.held)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sample this event loop from now on."""
        self._samples.start(loop)

    def stop(self) -> None:
        """Sample it no more."""
        self._samples.stop()
