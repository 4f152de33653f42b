"""The interface of a journal; without a subclass, it keeps nothing.

The broker records in its journal every change that outlives a reservation, in the order in which the changes happen: a
job put, changed or deleted, a tube cleared. A reservation itself is not recorded: after a restart, a reserved job is
ready. The server asks the journal to commit what has been recorded, and sends no reply that reports a change before the
commit has returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic_ns, time_ns
from typing import Final, NamedTuple

from beanstalk_server.queue.groups import Group
from beanstalk_server.queue.job import HeldKey, Holder, Job, Token
from beanstalk_server.queue.memory import Memory
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob, stored_job
from beanstalk_server.queue.table import IdTable

ALL: Final = 0
DELETIONS: Final = 1
NONE: Final = 2
"""What a journal admits: every change; only deletions, and puts, which it refuses; no change."""

OnCommit = Callable[[Exception | None], None]
"""Called when a commit has ended: with why it has failed, or None."""


class Files(NamedTuple):
    """What stats reports about files, in beanstalkd's terms (protocol: stats, binlog-oldest-index and so on)."""

    oldest: int = 0
    current: int = 0
    migrated: int = 0
    """Records written once more so that an old file could go."""
    written: int = 0
    """Records written since the start."""
    max_size: int = 10485760
    """The size of a file, in bytes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class JournalError(Exception):
    """A journal cannot restore its jobs: the message is one line for the operator, `status` the exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@mypyc_attr(allow_interpreted_subclasses=True)
class RestoreInterruptedError(Exception):
    """The server is to stop before its jobs have been restored."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """The interface. Its own methods keep nothing: jobs live as long as the process."""

    def __init__(self) -> None:
        # The live jobs, the held keys and the groups that have begun, by id, for journals that have to write one once
        # more. The broker sets them; only read them.
        self.live: IdTable[Job] = IdTable()
        self.held: IdTable[HeldKey] = IdTable()
        self.groups: IdTable[Group] = IdTable()
        # The account of memory, for journals that take bodies out of memory and bring them back; the broker sets it.
        # Before the end of `restore` nothing is counted: a body that a replay leaves on the disk is NOT_IN_MEMORY at
        # once.
        self.memory = Memory()

    @property
    def keeps(self) -> bool:
        """Whether the journal keeps anything. If not, nothing is recorded, no reply waits, and nothing is restored."""
        return False

    interrupted = False
    """The server sets it, perhaps in a signal handler, when it is to stop while jobs are being restored."""

    on_failure: Callable[[Exception], None] | None = None
    """The server sets it, and stops when it is called. Call it when recorded changes may be lost and no `commit`
    is under way that could raise."""

    on_admission: Callable[[int], None] | None = None
    """The server sets it. Call it with ALL, DELETIONS or NONE when what the journal admits changes: because much
    waits for a commit, say, or for room. The broker may still record the change that it is in the middle of."""

    on_fetches_done: Callable[[], None] | None = None
    """The server sets it. Call it after calls of `on_fetched` (see `fetch`): clients have got answers to send."""

    @property
    def admits(self) -> int:
        """What the journal admits now: ALL, DELETIONS or NONE. The server asks when it has restored the jobs in a
        thread, where `on_admission` must not be called."""
        return ALL

    def files(self) -> Files:
        """What stats reports about the files."""
        return Files()

    def file_number(self, job: Job) -> int:
        """The number of the file that a job's record is in, or 0, for stats-job."""
        return job.file

    def load(self) -> Iterable[StoredJob]:
        """The jobs that were live when the last process ended, in any order."""
        return ()

    def restore(self, replay: Replay) -> None:
        """Pass the jobs that were live to `replay`: those that `load` gives, unless there is a faster way.

        Raises:
            JournalError: they cannot be restored; the server does not start.
            RestoreInterruptedError: `interrupted` has been set meanwhile. To restore may take minutes, so look now and
                then.
        """
        for job in self.load():
            if self.interrupted:
                raise RestoreInterruptedError
            replay.put(job)

    def next_id(self) -> int:
        """An id that is greater than every id ever put. Called after `restore`."""
        return 1

    def put(self, job: Job) -> bool:
        """Record a new job, or one that replaces the job with its id.

        It has no state yet: it will be delayed until its `deadline` if it has a delay, and ready if not.

        Returns:
            False if there is no room for it: then it must not have changed anything.
        """
        return True

    def put_batch(self, jobs: list[Job]) -> bool:
        """Record new jobs, as `put` does: all of them survive, or none.

        A journal that does not override this records one after the other, and must refuse the first or none.

        Returns:
            False if there is no room for them: then it must not have changed anything.
        """
        return all(self.put(job) for job in jobs)

    def put_once(self, job: Job, token: Token) -> bool:
        """Record a job as `put` does, and a token that is taken with it: both survive, or none.

        `stored` gives the token as a held key. A journal that does not override this records one after the other.

        Returns:
            False if there is no room for them: then it must not have changed anything.
        """
        if not self.put(job):
            return False
        self.hold(token)
        return True

    def pause(self, pause: HeldKey) -> bool:
        """Record that a tube is paused until the deadline of a held key that is new, and has no key; False if there is
        no room for it. It must not take the room of changes, as its record stays."""
        self.hold(pause)
        return True

    def change(self, job: Job) -> None:
        """Record that a job was released, buried, kicked, rescheduled or moved, has failed, or was reserved while
        delayed or buried; if it can expire, also that it was reserved or given back, or that its time begins.

        Its state, priority, delay, deadline, counters, tube or terms are new. A reserved job counts as ready. One that
        has gone to a dead tube, or come back, may have lost its key, because another job of that tube has it.
        """

    def hold(self, held: HeldKey) -> None:
        """Record that the job with this id is deleted, but its key stays taken until the deadline.

        `held` is what is left of it, and in the table of this name afterwards; `delete` is its end. `stored` gives it
        as a job without a body, in the state HELD: so `load` must give it back, too. A journal that does not override
        this method loses it: after a restart, the key is free.
        """
        self.delete(held)

    def delete(self, job: Holder) -> None:
        """Record that a job is deleted, or that a held key is free."""

    def begin_group(self, group: Group) -> bool:
        """Record that a group has begun: its first member is about to be put.

        `stored` gives it as a job without a tube and a body, in the state GROUP, whose key is its name: so `load` must
        give it back, too. `delete` is its end. A journal that does not override this method and `leave_group` loses it:
        after a restart, only its members, and the jobs that wait for it, tell that it exists.

        Returns:
            False if there is no room for it: then it must not have changed anything.
        """
        return True

    def leave_group(self, group: Group, end: int, job: Job | None) -> None:
        """Record that a member has left a group, which has counted it already.

        Args:
            end: how, one of groups.ENDS.
            job: the member, if it is deleted: this stands for its `delete`.
        """
        if job is not None:
            self.delete(job)

    def clear(self, tube_name: str, reserved_ids: list[int]) -> bool:
        """Record that all jobs of a tube are deleted except these reserved ones, and its held keys; its pause stays.

        This is one change: all of it survives, or nothing. `leave_group` follows for each that is a member of a group.

        Returns:
            False if there is no room for it: then it must not have changed anything.
        """
        return True

    def set_limit(self, limit: str, count: int) -> None:
        """Record that a put, which `put` has recorded just before, gives a limit another number.

        From now on, `stored` of each job with this limit has the number as its `limit_count`, and `load` must give it
        so: the job that has been put may be deleted before the others. The limit is given by its full name, as
        `Labels.limit_in` has it. A journal that restores records in the order in which they were written need not
        override this: the last one has the number.
        """

    def forget(self, job: Holder) -> None:
        """Note that a job or held key which a clear has deleted leaves memory. There is nothing to record."""

    def body_size(self, job: Job) -> int:
        """The size of a job's body in bytes, also while the body is not in memory."""
        return len(job.body)

    def fetch(self, jobs: list[Job], on_fetched: Callable[[], None]) -> None:
        """Bring the bodies of these jobs back into memory, then call `on_fetched`: later, never within this call.

        Called only if the body of one of them is NOT_IN_MEMORY; the others may be in memory, and may be about to leave
        it. During `on_fetched`, the `body` of each is its body, even if the job has been replaced or deleted since. It
        may leave memory afterwards. Several fetches may be under way, for the same job too, and may end in any order.
        If a body cannot be read, the journal has failed (`on_failure`), and `on_fetched` is not called.
        """
        raise NotImplementedError("a journal that takes bodies out of memory must be able to fetch them")

    async def commit(self) -> None:
        """Make durable what has been recorded so far; when this returns, it may be acknowledged.

        One commit runs at a time; what is recorded meanwhile belongs to the next. It must not stall the event loop.

        Raises:
            Exception: recorded changes may be lost. The server acknowledges nothing more, and stops.
        """

    def begin_commit(self, may_wait: bool, on_end: OnCommit) -> bool:
        """Begin a commit without a task: a faster way than `commit`, for journals that have one.

        Args:
            may_wait: the event loop has nothing else to do: the commit may hold it for a millisecond or two.
            on_end: called once, on the event loop, when the commit has ended, within this call or later: with None,
                or with the exception that `commit` would raise.

        Returns:
            False if there is no such way now; then `commit` is called instead.
        """
        return False

    async def close(self) -> None:
        """Release what is held: the server has stopped, after a last commit unless one has failed."""

    def clock_offset(self) -> int:
        """The wall clock minus the server's clock at this moment, in nanoseconds."""
        return time_ns() - monotonic_ns()

    def stored(self, job: Holder) -> StoredJob:
        """A job, or a held key, as it should be stored at this moment."""
        return stored_job(job, self.clock_offset())
