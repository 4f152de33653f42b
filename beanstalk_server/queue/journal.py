"""What the broker asks of persistence, and the journal that keeps nothing.

The broker tells its journal of every change that outlives a reservation, in the order in which the changes happen: a
job put, changed or deleted. A reservation itself is not told: a reserved job comes back ready after a restart. The
server asks it to commit what it has been told, and sends no reply that reports a change before the commit has
returned. Whoever has a storage of their own subclasses Journal and hands it to `Server(journal=...)`: docs/journal.md.

Must never know clients or commands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from beanstalk_server.queue.job import RESERVED, STATES, Job


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it is stored. Times are wall clock, in nanoseconds since 1970, so that they outlive the process."""

    id: int
    tube: str
    key: str
    """Its name in the tube, or ""."""
    state: str
    """"ready", "delayed" or "buried"."""
    priority: int
    delay: int
    """As last given, in nanoseconds."""
    ttr: int
    """Nanoseconds."""
    body: bytes
    created_at: int
    deadline: int
    """When a delayed job is due; of no meaning in the other states."""
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


class Journal:
    """The interface, and an implementation that keeps nothing: jobs live as long as the process."""

    keeps = False
    """Whether there is anything to load and to commit. When not, replies do not wait, and `commit` is not called."""

    clock_offset = 0
    """Wall clock less the server's clock, in nanoseconds. The server sets it at the start and before each commit."""

    def load(self) -> Iterable[StoredJob]:
        """The jobs that were live when the last process ended; buried ones in the order in which they were buried."""
        return ()

    def next_id(self) -> int:
        """The smallest id that is greater than all that were ever told to `put`. Called after `load`."""
        return 1

    def put(self, job: Job) -> bool:
        """A job comes into being, or takes the place of the one with its id.

        It is in no state yet: it will be delayed until its `deadline` if it has a delay, else ready.

        Returns:
            False when there is no room for it: then nothing may have changed.
        """
        return True

    def change(self, job: Job) -> None:
        """A job was released, buried, kicked or rescheduled, or reserved from where it was delayed or buried.

        Its state, priority, delay, deadline or counters are new. If a client has it, it counts as ready.
        """

    def delete(self, job: Job) -> None:
        """A job is deleted."""

    async def commit(self) -> None:
        """Make durable what has been told so far; when this returns, it may be acknowledged.

        One commit at a time; what is told meanwhile belongs to the next. It must not hold the event loop.

        Raises:
            Exception: what has been told may be lost. The server acknowledges nothing any more, and stops.
        """

    def stored(self, job: Job) -> StoredJob:
        """A job as it should be stored at this moment."""
        state = STATES[job.state]
        if job.state == RESERVED or state == "new":
            state = "delayed" if state == "new" and job.delay else "ready"
        return StoredJob(
            job.id,
            job.tube.name,
            job.key,
            state,
            job.priority,
            job.delay,
            job.ttr,
            job.body,
            job.created_at + self.clock_offset,
            job.deadline + self.clock_offset,
            job.reserves,
            job.timeouts,
            job.releases,
            job.buries,
            job.kicks,
        )
