"""What the broker asks of a journal, and the journal that keeps nothing.

The broker tells its journal of every change that outlives a reservation, in the order in which the changes happen: a
job put, changed or deleted, a tube cleared. A reservation itself is not told: a reserved job comes back ready after a
restart. The server asks it to commit what it has been told, and sends no reply that reports a change before the commit
has returned. To keep jobs elsewhere, subclass Journal and hand it to `Server(journal=...)`: docs/journal.md.

Must never know clients or commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic_ns, time_ns
from typing import Final, NamedTuple

from beanstalk_server.queue.job import Job
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob, stored_job
from beanstalk_server.queue.table import JobTable

ALL: Final = 0
DELETIONS: Final = 1
NONE: Final = 2
"""What a journal may be told now: everything; deletions, and puts, which it refuses; nothing."""


class Files(NamedTuple):
    """What stats tells of a journal's files, in beanstalkd's terms (protocol: stats, binlog-oldest-index and so on)."""

    oldest: int = 0
    current: int = 0
    migrated: int = 0
    """Records written again to get rid of a file."""
    written: int = 0
    """Records written since the start."""
    max_size: int = 10485760
    """Bytes of a file."""


class Journal:
    """The interface, and an implementation that keeps nothing: jobs live as long as the process."""

    keeps = False
    """Whether there is anything to restore and to commit. If not, no reply waits, and `commit` is not called."""

    live = JobTable()
    """The live jobs by id. The broker sets it, for journals that have to write a job again; theirs to read only."""

    on_failure: Callable[[Exception], None] | None = None
    """The server sets it, and stops when it is called. Call it when what has been told may be lost and no `commit` is
    under way that could raise."""

    on_admission: Callable[[int], None] | None = None
    """The server sets it. Call it with ALL, DELETIONS or NONE when that changes, because much waits for a commit, or
    for room. What the broker is in the midst of may still be told."""

    def files(self) -> Files:
        """What stats tells of the files."""
        return Files()

    def load(self) -> Iterable[StoredJob]:
        """The jobs that were live when the last process ended, in any order."""
        return ()

    def restore(self, replay: Replay) -> None:
        """Tell what was live when the last process ended: what `load` gives, unless a journal knows a shorter way."""
        for job in self.load():
            replay.put(job)

    def next_id(self) -> int:
        """An id that is greater than all that `put` was ever told. Called after `restore`."""
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

    def clear(self, tube_name: str, reserved_ids: list[int]) -> bool:
        """All jobs of a tube are gone but those that a client has. This is one change: all of it survives, or nothing.

        Returns:
            False when there is no room for it: then nothing may have changed.
        """
        return True

    def forget(self, job: Job) -> None:
        """A job that a clear has ended leaves the memory. There is nothing to keep of this."""

    async def commit(self) -> None:
        """Make durable what has been told so far; when this returns, it may be acknowledged.

        One commit at a time; what is told meanwhile belongs to the next. It must not hold the event loop.

        Raises:
            Exception: what has been told may be lost. The server acknowledges nothing any more, and stops.
        """

    async def close(self) -> None:
        """The server has stopped, after a last commit unless one has failed: release whatever is held."""

    def clock_offset(self) -> int:
        """Wall clock less the server's clock, in nanoseconds, as they are at this moment."""
        return time_ns() - monotonic_ns()

    def stored(self, job: Job) -> StoredJob:
        """A job as it should be stored at this moment."""
        return stored_job(job, self.clock_offset())
