"""The broker: moves jobs from state to state, as clients ask for it and as time passes.

Each transition is one method, which updates everything that the transition touches: queues, wheel, counters, waiting
clients and journal. Must never see a command or a reply as bytes, do I/O, or read a clock: `now` is an argument, in
nanoseconds.

    from                      to          by                             who
    ------------------------  ----------  -----------------------------  -----------------------------------------
    (new)                     ready       put without delay              any client
    (new)                     delayed     put with delay                 any client
    (new)                     delayed     put with a moment to come      any client
    delayed                   ready       the end of its delay           time
    delayed                   ready       its moment of the wall clock   time
    ready                     reserved    reserve, or a waiting client   any client that watches its tube
    ready, delayed, buried    reserved    reserve_job                    any client
    reserved                  ready       release without delay [1]      the client that reserved it
    reserved                  delayed     release with delay [1]         the client that reserved it
    reserved                  buried      bury                           the client that reserved it
    reserved                  reserved    touch                          the client that reserved it
    reserved                  ready       the end of its time to run [1] time
    reserved                  ready       disconnect [1]                 the client that reserved it
    reserved                  ready       unreserve                      the client that reserved it
    reserved                  delayed     a failure [2], with a backoff  who or what has made it fail
    reserved                  buried      one failure [2] too many       who or what has made it fail
    reserved                  ready       the same, with a dead tube:    who or what has made it fail
                                          it is in the dead tube then
    buried, delayed           ready       kick, kick_job                 any client
    ready, delayed, buried    ready       redrive of its dead tube:      any client
                                          it is where it came from then
    ready, delayed, buried    the same    move: it is in another tube    any client
                                          then
    ready, delayed, buried    (deleted)   delete, clear                  any client
    delayed                   (deleted)   cancel                         any client
    delayed                   delayed     reschedule with delay          any client
    delayed                   ready       reschedule without delay       any client
    ready, delayed, buried    delayed     replace with delay             any client
    ready, delayed, buried    ready       replace without delay          any client
    reserved                  (deleted)   delete                         the client that reserved it
    ready                     (deleted)   the end of its time to live    time

A key may stay taken when its job has been deleted, by delete or by time: it is *held*. What is left of the job is in no
queue, and no command but a put with its key meets it.

    (deleted)                 held        as its policy or terms say     the same
    held                      (gone)      the end of that time           time
    held                      (gone)      clear                          any client

    [1] unless failures of the job are counted, by its tube's policy or its own terms
    [2] a release, the end of its time to run, or a disconnect, of a job whose failures are counted

Several brokers may share the tubes and jobs of one queue (docs/cluster.md): each gives other ids, by its `stride` and
`offset`, and knows nothing of the others. For clients that are served by several of them there are `probe` and
`unreserve`, clients that no statistics count, and clients that wait although they watch no tube here.

Two invariants hold between calls. A tube that is not blocked has ready jobs or waiting clients, never both; the only
exception is a tube that was blocked and whose waiting clients are still being served in slices. And a waiting client
waits in every tube that it watches. A tube is blocked while it is paused, or throttled by its policy
(`queue/throttle.py`): reserve finds none of its jobs then; reserve_job does.

A change is recorded in the journal before the transition or after it, never in the middle, because the journal may
rewrite any live job while it records a change. What creates or deletes jobs (put, replace, clear, delete) is recorded
before: the journal may refuse it, and a job must still exist when its deletion is recorded. What changes a job's state
(release, bury, kick, redrive, move, reschedule, a counted failure, and reserve_job of a job that was not ready) is
recorded after: the record holds the new state, and the tube. A deletion whose key is held is recorded before, as a
hold.

A job that can expire does not while a client has it, whenever the server ends: so its reservation is a change, unless
the journal does not admit it, and so is what gives it back.

Clients whose command would record something wait while the journal does not admit it. What time or a disconnect would
record is suspended meanwhile: the job stays reserved, or ready, or its key held.

What may concern any number of jobs (a kick, a redrive, a move, a clear, the jobs and tubes of a client that
disconnects) is done in slices. A BulkOperation holds what is left; it is in the wheel with a deadline in the past, so
that `advance` continues it, and other commands are served between the slices. Only waiting is not divided: a client
starts or stops waiting in all its tubes at once, and what that costs is added to `cost`.

Whether a delayed job is cancelled or becomes ready is decided here, once, when its state changes: `cancel` deletes a
job that is still delayed, and leaves any other as it is. A job whose delay has ended stays delayed until `advance`
reaches it.

A job may be delayed until a moment of the wall clock, which may be set meanwhile (`queue/wall_clock.py`). The broker is
told what that clock says, as its offset from the server's clock (`set_wall_offset`), and compares each such job with it
once more when its time comes: none is early by what was told last. A job that has left this state, for whatever reason,
has no such moment any more: it stays as it is when the wall clock goes back.

The body of a job may be where the journal keeps it (NOT_IN_MEMORY). Nothing here reads a body; a client that is to get
one gets it by a Delivery, when the journal has fetched it. Its command is PENDING until then, and everything else that
the command does has been done: the job is reserved, and its time to run has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from beanstalk_server.queue.bulk import BulkClear, BulkDisconnect, BulkKick, BulkMove, BulkRedrive, BulkReview
from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.costs import (
    EXPIRY_COST,
    FAILURE_COST,
    MOVE_COST,
    NEW_TUBE_COST,
    PAGE_COST,
    REVIEW_COST,
    copy_cost,
    look_cost,
    search_cost,
    wait_cost,
)
from beanstalk_server.queue.counters import Counters
from beanstalk_server.queue.delivery import BatchDelivery, Delivery, FoundDelivery, ReservedDelivery
from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.interface import FOREVER, Queue
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    DELETED,
    DISCONNECTED,
    EXPIRED,
    NOT_IN_MEMORY,
    READY,
    RELEASED,
    RESERVED,
    RUN_OUT,
    SAFETY_MARGIN,
    SINCE_UNKNOWN,
    URGENT,
    DeadLetter,
    Expiry,
    HeldKey,
    Holder,
    Job,
    Terms,
)
from beanstalk_server.queue.job_search import JobSearch
from beanstalk_server.queue.journal import ALL, NONE, Journal, JournalError
from beanstalk_server.queue.lifetimes import key_hold_of, ttl_of
from beanstalk_server.queue.limits import refusal
from beanstalk_server.queue.memory import Memory
from beanstalk_server.queue.outcome import (
    BURIED_INSTEAD,
    DEADLINE_SOON,
    DONE,
    DRAINING,
    EXISTS,
    FAILED,
    NOT_FOUND,
    NOT_IGNORED,
    OUT_OF_MEMORY,
    PENDING,
    REPLACED,
    TIMED_OUT,
    TOO_LATE,
    Outcome,
)
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Policy, PolicyOf, no_policies
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics
from beanstalk_server.queue.table import ForeignJobError, IdTable, KeyTable
from beanstalk_server.queue.throttle import Throttle
from beanstalk_server.queue.tries import backoff_delay, counts_failures, has_failed_too_often
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.tubes import TubeTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wall_clock import WallCheck, WallClock
from beanstalk_server.queue.wheel import OVERDUE, TICK, Slot, Wheel

BATCH_BYTES: Final = 1 << 20
"""Bytes: a batch of reserved jobs ends with the job whose body takes the batch past this size."""

FREE_WATCHES: Final = 16
"""Tubes that each client may watch, whatever others watch."""

MOST_WATCHED: Final = 16384
"""The most tubes that a client watches: 25 MB if nobody else needs them, and it waits."""

MOST_WATCHES: Final = 131_072
"""The most that all clients watch, each beyond its free ones: 200 MB."""

FEW_TUBES: Final = 64
"""What a client watches at most for `has_nothing` to look: that costs no more than a simple command."""

SLICE: Final = 512
"""The budget of one call: the most jobs it moves, in about a millisecond. `advance` moves the rest."""

DISCONNECT_SLICE: Final = 64
"""The budget of a disconnect: smaller, because many clients may disconnect at the same moment."""

FOREIGN: Final = 65
"""The exit status where a journal has jobs of another shard (EX_DATAERR of sysexits.h)."""

NOWHERE: Final = Tube("", 0)
"""The tube of jobs that the broker has dropped."""

WALL_CHECK: Final = SECOND // 2
"""Nanoseconds from one look at the wall clock to the next, at the most, while a job waits for it."""


def _bury_order(job: Job) -> tuple[int, int]:
    return job.extras.bury_sequence, job.id


def _job_id(job: Job) -> int:
    return job.id


class Broker(Queue):
    """The queue: all jobs, tubes and clients, in memory.

    Args:
        journal: records each change that must outlive the process.
        now: the present, in nanoseconds.
        tick: the precision of deadlines, in nanoseconds.
        max_memory: bytes that jobs may take; a put beyond it is refused. 0 for no limit.
        stride, offset: the ids that it gives are `offset` more than the multiples of `stride`, from `stride` on.
        policy_of: finds what a tube demands of its jobs. Asked when the tube is made; `change_policies` changes it.
    """

    __slots__ = (
        "buried",
        "bury_sequence",
        "connections",
        "counters",
        "delayed",
        "draining",
        "durations",
        "halted",
        "held",
        "jobs",
        "journal",
        "memory",
        "next_id",
        "offset",
        "policy_of",
        "producers",
        "ready",
        "records",
        "reserved",
        "review",
        "stride",
        "suspended",
        "suspended_deletions",
        "timeouts",
        "total_connections",
        "total_jobs",
        "tubes",
        "urgent",
        "waiting",
        "wall",
        "watches",  # how many tubes clients watch, each beyond its free ones
        "wheel",
        "workers",
    )

    def __init__(
        self,
        journal: Journal,
        now: int = 0,
        tick: int = TICK,
        max_memory: int = 0,
        stride: int = 1,
        offset: int = 0,
        policy_of: PolicyOf = no_policies,
    ) -> None:
        super().__init__()
        self.policy_of = policy_of
        self.journal = journal
        self.records = journal.keeps  # else there is nobody to record anything for
        self.wheel = Wheel(now, tick)
        self.wall = WallClock()
        self.jobs: IdTable[Job] = IdTable(stride, offset)
        self.held: IdTable[HeldKey] = IdTable(stride, offset)
        journal.live = self.jobs
        journal.held = self.held
        self.memory = journal.memory = Memory(max_memory)
        self.tubes = TubeTable()
        self.review: BulkReview | None = None  # that of the last change of policies, until it is complete
        self._set_policy(self.tubes.default, policy_of(self.tubes.default.name))
        self.stride = stride
        self.offset = offset
        self.next_id = stride + offset
        self.draining = False
        self.durations: Durations | None = None  # those of its jobs, if anybody asks for them
        self.halted = False
        self.suspended = Slot(-1, 0)  # timers that are due, and go on when the journal admits everything again
        self.suspended_deletions = Slot(-1, 0)  # likewise, when it admits deletions again
        self.bury_sequence = 0  # the number of the last burial
        # The counters of stats: the jobs in each state, and what has happened since the start.
        self.urgent = 0
        self.ready = 0
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.timeouts = 0
        self.total_jobs = 0
        self.counters = Counters()  # what policies have done, also in tubes that have none: a job may have terms
        self.connections = 0
        self.total_connections = 0
        self.producers = 0
        self.workers = 0
        self.waiting = 0
        self.watches = 0

    # Clients and tubes

    def connect(self, client: Client, counted: bool = True) -> None:
        client.counted = counted
        if counted:
            self.connections += 1
            self.total_connections += 1
        tube = self.tubes.default
        client.use = tube
        tube.using += 1
        client.add_watched(tube)
        tube.watching += 1

    def set_counted(self, client: Client, counted: bool) -> None:
        if client.counted != counted:
            client.counted = counted
            self.connections += 1 if counted else -1

    def disconnect(self, client: Client, now: int, has_left: bool = True) -> None:
        """As in Queue.

        Its jobs become ready first, then it leaves its tubes. Many jobs or tubes take several slices; until the last
        slice, tubes may still count the client.
        """
        operation = BulkDisconnect(client, has_left)
        client.leaving = True
        if client.waiting:
            self._end_wait(client)
        self.set_counted(client, False)
        self.producers -= client.producer
        self.workers -= client.worker
        self.cost = 0
        self._continue_disconnect(operation, DISCONNECT_SLICE, now)

    def begin_put(self, client: Client) -> None:
        if not client.producer:
            client.producer = True
            self.producers += 1

    def _begin_reserve(self, client: Client) -> None:
        if not client.worker:
            client.worker = True
            self.workers += 1

    def use(self, client: Client, name: str) -> Outcome:
        tube = self._tube(name)
        tube.using += 1
        self.unuse(client)
        client.use = tube
        client.uses = True
        return DONE

    def unuse(self, client: Client) -> None:
        if client.uses:
            left = client.use
            left.using -= 1
            self._drop_unneeded(left)
        client.use = self.tubes.default
        client.uses = False

    def watch(self, client: Client, name: str, bounded: bool = True) -> Outcome:
        tube = self.tubes.get(name)
        if tube is not None and client.watch_position(tube) >= 0:
            return DONE
        count = len(client.watched)
        if count >= FREE_WATCHES:
            if bounded and (count >= MOST_WATCHED or self.watches >= MOST_WATCHES):
                return OUT_OF_MEMORY
            self.watches += 1
        tube = self._tube(name)
        client.add_watched(tube)
        tube.watching += 1
        return DONE

    def ignore(self, client: Client, name: str) -> Outcome:
        tube = self.tubes.get(name)
        position = -1 if tube is None else client.watch_position(tube)
        if tube is None or position < 0:
            return DONE
        if len(client.watched) == 1:
            return NOT_IGNORED
        self._unwatch(client, tube, position)
        return DONE

    def unwatch(self, client: Client, name: str) -> None:
        tube = self.tubes.get(name)
        if tube is not None:
            position = client.watch_position(tube)
            if position >= 0:
                self._unwatch(client, tube, position)

    def _unwatch(self, client: Client, tube: Tube, position: int) -> None:
        assert not client.waiting, "a client waits in every tube that it watches"
        client.remove_watched(position)
        if len(client.watched) >= FREE_WATCHES:
            self.watches -= 1
        tube.watching -= 1
        self._drop_unneeded(tube)

    def pause(self, client: Client, name: str, duration: int, now: int) -> Outcome:
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        tube.pauses += 1
        tube.pause = duration
        tube.set_blocked()
        if duration:
            self.wheel.set(tube, now + duration)
            return DONE
        if tube.is_linked():
            self.wheel.remove(tube)
        self._serve_waiting(tube, SLICE, now)
        return DONE

    def _tube(self, name: str) -> Tube:
        tube = self.tubes.get(name)
        if tube is None:
            tube = self.tubes.add(name)
            self._set_policy(tube, self.policy_of(name))
            self.cost += NEW_TUBE_COST
        return tube

    def _set_policy(self, tube: Tube, policy: Policy, now: int = 0) -> None:
        """Let a tube demand this of its jobs. The present matters only to a tube that has had another policy."""
        tube.set_policy(policy)
        throttle = tube.throttle
        if policy.interval or policy.max_reserved:
            if throttle is None:
                throttle = tube.throttle = Throttle(tube, self.wheel)
            throttle.follow(policy, now)
        elif throttle is not None:
            throttle.detach()

    def change_policies(self, policy_of: PolicyOf, now: int) -> None:
        """Let tubes demand something else of their jobs from now on.

        New tubes do so at once; those that exist, and the jobs in them, in slices, which `advance` goes on with.
        """
        self.policy_of = policy_of
        review = BulkReview(len(self.tubes))
        old = self.review
        if old is not None:
            review.concerns_jobs = old.concerns_jobs  # it may not have come to them
            self.wheel.remove(old)
        self._continue_review(review, SLICE, now)

    def _continue_review(self, review: BulkReview, budget: int, now: int) -> None:
        done = False
        try:
            done = self._review(review, budget, now)
        finally:
            if not done:
                self.wheel.set(review, OVERDUE)
        self.review = None if done else review

    def _review(self, review: BulkReview, budget: int, now: int) -> bool:
        """Bring as many tubes and jobs under their new policies as the budget allows; return whether all are."""
        while budget > 0:
            position = review.next_position(len(self.tubes))
            if position < 0:
                return not review.concerns_jobs or self._review_jobs(review, budget, now)
            budget -= REVIEW_COST
            tube = self.tubes.at(position)
            policy = self.policy_of(tube.name)
            if policy.ttl != tube.policy.ttl:
                review.concerns_jobs = True
            self._set_policy(tube, policy, now)
            budget = self._serve_waiting(tube, budget, now)
            self._drop_unneeded(tube)
        return False

    def _review_jobs(self, review: BulkReview, budget: int, now: int) -> bool:
        """Let as many ready jobs as the budget allows live as long as they may now; return whether all do."""
        if review.pages is None:
            review.pages = self.jobs.page_indexes()
        while budget > 0:
            if not review.jobs:
                if not review.pages:
                    return True
                review.jobs = self.jobs.page_jobs(review.pages.pop())
                budget -= 1 + look_cost(len(review.jobs))
                continue
            job = review.jobs.pop()
            if job.state == READY and not job.tube.is_cleared(job):
                self._review_expiry(job, now)
                budget -= 1
        return False

    def _drop_unneeded(self, tube: Tube) -> None:
        throttle = tube.throttle
        if throttle is not None and self._keeps_pace(tube, throttle):
            return
        if self.tubes.drop_unneeded(tube):
            if tube.is_linked():
                self.wheel.remove(tube)
            if throttle is not None:
                throttle.detach()

    def _keeps_pace(self, tube: Tube, throttle: Throttle) -> bool:
        """Whether a tube has to stay because of its throttle alone, which says later that it need not."""
        return tube is not self.tubes.default and not tube.is_needed() and throttle.keeps_tube()

    def list_tubes(self) -> list[bytes]:
        self.cost += self.tubes.write_pages() * PAGE_COST
        return self.tubes.pages()

    def find_jobs(
        self, name: str, state: int, position: list[int], count: int, before: JobSearch | None = None
    ) -> JobSearch | None:
        tube = self.tubes.get(name)
        return None if tube is None else JobSearch(self.jobs, tube, state, position, count, self.wall.offset, before)

    def tube_names(self, first: str, count: int) -> list[str]:
        return self.tubes.names_from(first, count)

    def drain(self) -> None:
        self.draining = True

    def undrain(self) -> None:
        self.draining = False

    def halt(self) -> None:
        """The server ends: no client that is gone from now on has left by itself, and nothing of it is recorded. The
        journal is about to be closed, and what came after its last commit would look like damage at the next start.
        """
        self.halted = True

    def drop_jobs(self) -> Iterator[None]:
        """Free all jobs of a broker that must not be used any more, a page of them in each step of the iterator.

        Without this, a compiled broker that has jobs stays in memory, and they with it (`Job.detach` says why).
        """
        for tube in self.tubes.values():
            tube.ready = JobHeap()
            tube.delayed = JobHeap()
            if tube.throttle is not None:
                tube.throttle.detach()
            self.wall.take(tube)
            tube.reserved = []
            tube.held = []
            tube.letters = None
            while tube.keys is not None and tube.keys.pop_page():
                yield
        while jobs := self.jobs.pop_page():
            for job in jobs:
                job.detach(NOWHERE)
            yield
        while keys := self.held.pop_page():
            for held in keys:
                held.detach(NOWHERE)
            yield

    # The journal

    def set_admission(self, admits: int) -> None:
        """Set what the journal admits from now on: ALL, DELETIONS or NONE. What is suspended goes on if it may."""
        self.admits = admits
        if admits == ALL:
            self.wheel.make_due(self.suspended)
        if admits != NONE:
            self.wheel.make_due(self.suspended_deletions)

    def has_suspended(self) -> bool:
        """Whether something that is due waits until the journal admits it."""
        return not (self.suspended.is_empty() and self.suspended_deletions.is_empty())

    def restore(self, clock_offset: int, now: int) -> int:
        """Recover the jobs that the journal has kept; return how many. Must come before the first `connect`.

        A job whose delay ended while no server was running is ready at once. The next id is greater than all that the
        journal knows.

        Args:
            clock_offset: the wall clock minus the clock of `now`, in nanoseconds: the first `set_wall_offset`.

        Raises:
            JournalError: the jobs cannot be restored.
            RestoreInterruptedError: the server is to stop.
        """
        self.set_wall_offset(clock_offset)
        replay = Replay(self.jobs, clock_offset, self.held)
        try:
            self.journal.restore(replay)
        except ForeignJobError as error:
            raise JournalError(f"the journal is not that of this shard: {error}", FOREIGN) from error
        buried: list[Job] = []
        letters: list[Job] = []
        for job in self.jobs.values():
            job.tube = self._tube(job.tube.name)
            job.created_at -= clock_offset
            job.page = SINCE_UNKNOWN
            terms = job.terms()
            if terms is not None and terms.ready_since:
                terms.ready_since -= clock_offset
            if terms is not None and terms.origin:
                letters.append(job)
            self.memory.add_job(job)
            job.tube.bytes += self.body_size(job)
            if job.key:
                self._set_key(job.tube, job)
            if job.state == BURIED:
                buried.append(job)
            elif job.is_timed():
                if job.deadline - clock_offset <= now:
                    self._note_ready_since(job, job.deadline - clock_offset)
                self._enter_at(job, now)
            elif job.state == DELAYED and job.deadline - clock_offset > now:
                self._enter_delayed(job, job.deadline - clock_offset)
            else:
                if job.state == DELAYED:
                    self._note_ready_since(job, job.deadline - clock_offset)
                self._enter_ready(job, now)
        buried.sort(key=_bury_order)
        for job in buried:
            self._enter_buried(job, job.extras.bury_sequence)
        if buried:
            self.bury_sequence = buried[-1].extras.bury_sequence
        for held in self.held.values():
            held.tube = self._tube(held.tube.name)
            held.created_at -= clock_offset
            self._enter_held(held, held.deadline - clock_offset)
        letters.sort(key=_job_id)  # nothing says in which order they came
        names: dict[str, str] = {}  # of origins: one object for all that have come from the same tube
        for job in letters:
            terms = job.own_terms()
            terms.origin = names.setdefault(terms.origin, terms.origin)
            job.tube.add_letter(job, terms)
        next_id = max(self.next_id, replay.last_id + 1, self.journal.next_id())
        self.next_id = next_id + (self.offset - next_id) % self.stride
        return len(self.jobs)

    def _record_put(self, job: Job, delay: int, now: int) -> bool:
        if delay:
            job.deadline = now + delay
        else:
            self._note_ready_since(job, now)
        if self.records:
            if not self.journal.put(job):
                return False
            self.last_lsn += 1
        return True

    def _record_change(self, job: Job) -> None:
        if self.records:
            self.last_lsn += 1
            self.journal.change(job)

    def _record_hold(self, held: HeldKey) -> None:
        if self.records:
            self.last_lsn += 1
            self.journal.hold(held)

    def _record_delete(self, job: Holder) -> None:
        if self.records:
            self.last_lsn += 1
            self.journal.delete(job)

    def _record_clear(self, tube: Tube) -> bool:
        if not self.records:
            return True
        if not self.journal.clear(tube.name, [job.id for job in tube.reserved]):
            return False
        self.last_lsn += 1
        return True

    # Putting jobs

    def take_id(self) -> int:
        job_id = self.next_id
        self.next_id = job_id + self.stride
        return job_id

    def put(
        self, client: Client, job_id: int, priority: int, delay: int, ttr: int, body: bytes, created_at: int, now: int
    ) -> Outcome:
        return self._put(client.use, Job(job_id, priority, delay, ttr, body, client.use, created_at), delay, now)

    def put_with(
        self,
        client: Client,
        attributes: Attributes,
        priority: int,
        delay: int,
        ttr: int,
        body: bytes,
        created_at: int,
        now: int,
    ) -> Outcome:
        key = attributes.key
        tube = client.use
        old = self._holder(tube, key) if key else None
        if old is None:
            job_id = self.take_id()
            client.on_keyed(job_id)
            job = Job(job_id, priority, delay, ttr, body, tube, created_at)
            job.key = key
        else:
            client.on_keyed(old.id)
            if not attributes.replaces:
                return EXISTS
            if not isinstance(old, Job) or old.client is not None:
                return TOO_LATE
            job = old.renewed(priority, delay, ttr, body)
        if attributes.ask_for_terms():
            terms = job.own_terms()
            terms.take(attributes)
            if terms.at:
                delay = max(terms.at - self.wall.offset - now, 0)
                if not delay:
                    terms.at = 0
        return self._put(tube, job, delay, now) if old is None else self._replace(old, job, delay, now)

    def _put(self, tube: Tube, job: Job, delay: int, now: int) -> Outcome:
        if self.draining:
            return DRAINING
        size = len(job.body)
        if tube.policy is not NO_POLICY:
            refused = refusal(tube, self.counters, delay, size, key_hold_of(job) != 0)
            if refused != DONE:
                return refused
            if tube.policy.ttl:
                job.own_terms()  # before it is recorded
        if not self.memory.admits(job) or not self._record_put(job, delay, now):
            return OUT_OF_MEMORY
        self.jobs.add(job)
        self.memory.add_job(job)
        if job.key:
            self._set_key(tube, job)
        self.total_jobs += 1
        tube.total_jobs += 1
        tube.bytes += size
        self._enter(job, delay, now)
        return DONE

    def _replace(self, job: Job, fresh: Job, delay: int, now: int) -> Outcome:
        """Let a fresh job take the place of one that is not reserved: with its id and its key."""
        tube = job.tube
        size = len(fresh.body)
        old_size = self.body_size(job)  # now: once the journal has the new body, it does not know the old one
        if tube.policy is not NO_POLICY:
            refused = refusal(tube, self.counters, delay, size, key_hold_of(fresh) != 0, old_size)
            if refused != DONE:
                return refused
            if tube.policy.ttl:
                fresh.own_terms()
        if not self.memory.admits(fresh, job) or not self._record_put(fresh, delay, now):
            return OUT_OF_MEMORY
        fresh.forget_since()
        self._leave(job)
        self.memory.remove_job(job)
        job.state = DELETED
        self.jobs.add(fresh)
        self.memory.add_job(fresh)
        tube.bytes += size - old_size
        terms = job.terms()
        if terms is not None and terms.letter is not None:
            tube.remove_letter(terms)
            tube.add_letter(fresh, fresh.own_terms())
        if fresh.key:
            self._set_key(tube, fresh)
        self._enter(fresh, delay, now)
        return REPLACED

    def _set_key(self, tube: Tube, job: Holder) -> None:
        if tube.keys is None:
            tube.keys = KeyTable()
        tube.keys.add(job)

    # Reserving jobs

    def reserve(self, client: Client, timeout: int, now: int) -> Outcome:
        self._begin_reserve(client)
        self.cost += search_cost(len(client.watched))
        job = self._reserve_best(client, now)
        if job is None:
            return self._wait(client, timeout, 0, now)
        return self._give(client, job)

    def reserve_batch(self, client: Client, limit: int, timeout: int, now: int) -> Outcome:
        """As in Queue, but the batch is smaller where more jobs would take too long.

        It has at most SLICE jobs, and none after the job whose body takes it past BATCH_BYTES. The more tubes the
        client watches, the smaller the batch, because each job takes a search of all of them.
        """
        self._begin_reserve(client)
        jobs: list[Job] = []
        size = 0
        cost = 1 + search_cost(len(client.watched))
        bound = min(limit, SLICE // cost or 1)
        while len(jobs) < bound and size <= BATCH_BYTES:
            job = self._reserve_best(client, now)
            if job is None:
                break
            jobs.append(job)
            size += self.body_size(job)
        if not jobs:
            return self._wait(client, timeout, limit, now)
        self.cost += len(jobs) * cost
        return self._give_batch(client, jobs)

    def probe(self, client: Client, now: int) -> Outcome:
        self._begin_reserve(client)
        self.cost += search_cost(len(client.watched))
        job = self._find_best(client, now)
        if job is None:
            return DEADLINE_SOON if client.jobs_in_safety_margin else NOT_FOUND
        client.on_best(job)
        return DONE

    def has_nothing(self, client: Client) -> bool:
        watched = client.watched
        if not client.worker or client.jobs_in_safety_margin or len(watched) > FEW_TUBES:
            return False
        return all(not tube.ready.jobs for tube in watched)

    def _reserve_best(self, client: Client, now: int) -> Job | None:
        """Reserve the ready job with the smallest (priority, id) of the tubes that the client watches."""
        best = self._find_best(client, now)
        if best is not None:
            self._reserve_ready(best, client, now)
        return best

    def _find_best(self, client: Client, now: int) -> Job | None:
        """Find the ready job with the smallest (priority, id) of the tubes that the client watches."""
        best: Job | None = None
        for tube in client.watched:
            jobs = tube.ready.jobs
            if not jobs or tube.blocked:
                continue
            if tube.waiting_count:  # its pause has ended, or a place is free: the clients that wait come first
                self._serve_waiting(tube, SLICE, now)
                if not jobs or tube.waiting_count or tube.blocked:
                    continue
            job = jobs[0]
            # The deadline of a ready job is its priority.
            if best is None or job.deadline < best.deadline or (job.deadline == best.deadline and job.id < best.id):
                best = job
        return best

    def _wait(self, client: Client, timeout: int, batch: int, now: int) -> Outcome:
        """Let a client for which no job is ready wait in all tubes that it watches, unless it must be answered now.

        Args:
            batch: the most jobs that it takes as a batch; 0 for a single job.
        """
        if client.jobs_in_safety_margin:
            return DEADLINE_SOON
        if not timeout:
            return TIMED_OUT
        client.waiting = True
        client.batch = batch
        self.waiting += 1
        self.cost += wait_cost(len(client.watched))
        waits = client.waits
        while len(waits) < len(client.watched):
            waits.append(Wait(client))
        for position, tube in enumerate(client.watched):
            tube.waiting.append(waits[position])
            tube.waiting_count += 1
        if timeout != FOREVER:
            self.wheel.set(client, now + timeout)
        return PENDING

    def stop_waiting(self, client: Client) -> bool:
        if not client.waiting:
            return False
        self._end_wait(client)
        self.cost += wait_cost(len(client.watched))
        for position, tube in enumerate(client.watched):
            client.waits[position].unlink()
            tube.waiting_count -= 1
        return True

    def _end_wait(self, client: Client) -> None:
        """Note that the client waits no longer. The tubes that it waited in still list it."""
        client.waiting = False
        self.waiting -= 1
        if client.is_linked():
            self.wheel.remove(client)

    def reserve_job(self, client: Client, job_id: int, now: int) -> Outcome:
        job = self._find(job_id)
        if job is None or job.state == RESERVED:
            return NOT_FOUND
        self._begin_reserve(client)
        was_ready = job.state == READY
        if was_ready and self.durations is not None:
            self.durations.note_reservation(job, now)
        self._leave(job)
        self._enter_reserved(job, client, now)
        if was_ready:
            self._record_stay(job)
        else:
            self._record_change(job)  # or a restart would find it delayed or buried
        return self._give(client, job)

    def _give(self, client: Client, job: Job) -> Outcome:
        """Give a client the job that it has reserved, now or when its body has been fetched."""
        if job.body is NOT_IN_MEMORY:
            return self._deliver(ReservedDelivery(client, [job]))
        client.on_reserved(job)
        return DONE

    def _give_batch(self, client: Client, jobs: list[Job]) -> Outcome:
        """Give a client the jobs that it has reserved, now or when their bodies have been fetched."""
        for job in jobs:
            if job.body is NOT_IN_MEMORY:
                return self._deliver(BatchDelivery(client, jobs))
        client.on_reserved_batch(jobs)
        return DONE

    def _deliver(self, delivery: Delivery) -> Outcome:
        """Have the journal fetch the bodies of a delivery, which then answers its client."""
        delivery.client.busy = True
        self.journal.fetch(delivery.jobs, delivery.on_fetched)
        return PENDING

    def body_size(self, job: Job) -> int:
        """Bytes, also of a body that is not in memory. The journal knows it until the job is deleted or replaced."""
        body = job.body
        return self.journal.body_size(job) if body is NOT_IN_MEMORY else len(body)

    # Deleting, releasing, burying and touching jobs

    def delete(self, client: Client, job_id: int, now: int) -> Outcome:
        job = self._find(job_id)
        if job is None or (job.state == RESERVED and job.client is not client):
            return NOT_FOUND
        if self.durations is not None and job.state == RESERVED:
            self.durations.note_end(job, now)
        job.tube.deletes += 1
        hold = key_hold_of(job)
        self._delete(job, now + hold if hold else 0)
        return DONE

    def _delete(self, job: Job, free_at: int = 0) -> None:
        """Delete a job.

        Args:
            free_at: when its key is free, if not at once.
        """
        tube = job.tube
        size = self.body_size(job)
        if free_at:
            held = job.held_key()
            held.deadline = free_at
            self._record_hold(held)
            tube.bytes -= size
            self._leave(job)
            self._forget(job)
            self.held.add(held)
            self._enter_held(held, free_at)
            return
        self._record_delete(job)
        tube.bytes -= size
        self._leave(job)
        self._forget(job)
        if not tube.using and not tube.watching:
            self._drop_unneeded(tube)

    def _forget(self, job: Job) -> None:
        """Remove a job that has left its queue from the tables of ids and keys."""
        self.memory.remove_job(job)
        self.jobs.remove(job.id)
        job.state = DELETED
        terms = job.terms()
        if terms is not None:
            job.tube.remove_letter(terms)
        if job.key:
            keys = job.tube.keys
            assert keys is not None, "a job with a key is in its tube's keys"
            keys.remove(job)

    def _free(self, held: HeldKey) -> None:
        """Remove a key that is held no longer from the tables of ids and keys."""
        self.memory.remove_held(held)
        self.held.remove(held.id)
        keys = held.tube.keys
        assert keys is not None, "a held key is in its tube's keys"
        keys.remove(held)

    def release(self, client: Client, job_id: int, priority: int, delay: int, now: int) -> Outcome:
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        if self.durations is not None:
            self.durations.note_end(job, now)
        self._leave_reserved(job)
        job.priority = priority
        job.delay = delay
        job.own_extras().releases += 1
        if counts_failures(job):
            return self._fail(job, RELEASED, delay, now)
        self._enter(job, delay, now)
        self._record_change(job)
        return DONE

    def bury(self, client: Client, job_id: int, priority: int, now: int) -> Outcome:
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        if self.durations is not None:
            self.durations.note_end(job, now)
        self._leave_reserved(job)
        job.priority = priority
        self._bury(job)
        return DONE

    def _bury(self, job: Job) -> None:
        """Bury a job that has left its state."""
        job.own_extras().buries += 1
        self.bury_sequence += 1
        self._enter_buried(job, self.bury_sequence)
        self._record_change(job)

    def touch(self, client: Client, job_id: int, now: int) -> Outcome:
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        if job.in_safety_margin:
            job.in_safety_margin = False
            client.jobs_in_safety_margin -= 1
        self._set_time_to_run(job, client, now)
        return DONE

    def unreserve(self, client: Client, job_id: int, now: int) -> Outcome:
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        terms = job.terms()
        ready_since = 0 if terms is None else terms.ready_since
        self._leave_reserved(job)
        throttle = job.tube.throttle
        if throttle is not None:
            throttle.give_back(now)
        job.reserves -= 1
        job.page = SINCE_UNKNOWN  # or its next reservation would count as its first once more
        self._note_ready_since(job, ready_since)
        self._enter_ready(job, now)
        self._record_stay(job)
        return DONE

    # Failures

    def _fail(self, job: Job, reason: int, delay: int, now: int) -> Outcome:
        """Count a failure of a job that has left RESERVED. It is tried again, perhaps after a delay, or given up.

        Args:
            delay: that with which it has been released; 0 if its backoff says how long it waits.
        """
        self.cost += FAILURE_COST
        terms = self.memory.give_terms(job)
        terms.tries += 1
        terms.reason = reason
        if has_failed_too_often(job, terms):
            return self._give_up(job, terms, now)
        if not delay:
            delay = backoff_delay(job, terms)
            if delay:  # not the job's own: that is what a client has given, and some release with it once more
                self.counters.retried += 1
                job.tube.counters.retried += 1
        self._enter(job, delay, now)
        self._record_change(job)
        return DONE

    def _give_up(self, job: Job, terms: Terms, now: int) -> Outcome:
        """Send a job that has left its state to the dead tube, or bury it if its tube has none."""
        tube = job.tube
        name = tube.policy.dead_tube
        if not name or name == tube.name:
            self._bury(job)
            return BURIED_INSTEAD
        self.counters.dead += 1
        tube.counters.dead += 1
        origin = terms.origin or tube.name
        self._move(job, terms, name, "" if origin == name else origin, now)
        return DONE

    def _move(self, job: Job, terms: Terms, name: str, origin: str, now: int) -> None:
        """Let a job that has left its state be ready in another tube, with all its tries.

        It loses its key if another job has it there.

        Args:
            origin: what is noted as the tube that it has come from; "" for none.
        """
        left = job.tube
        self._change_tube(job, terms, name, origin)
        terms.tries = 0
        terms.ready_since = 0
        self._enter_ready(job, now)
        self._record_change(job)
        self._drop_unneeded(left)

    def _change_tube(self, job: Job, terms: Terms, name: str, origin: str) -> None:
        """Let a job that has left its state belong to another tube, in none of its queues yet.

        It must have terms of its own, or the record of the change would not have the tube.
        """
        left = job.tube
        tube = self._tube(name)
        key = job.key
        size = self.body_size(job)
        self.memory.remove_job(job)
        left.bytes -= size
        left.remove_letter(terms)
        if key:
            assert left.keys is not None, "a job with a key is in its tube's keys"
            left.keys.remove(job)
            if self._holder(tube, key) is not None:
                job.key = ""
        job.tube = tube
        if job.key:
            self._set_key(tube, job)
        terms.origin = origin
        if origin:
            tube.add_letter(job, terms)
        self.memory.add_job(job)
        tube.bytes += size

    def redrive(self, client: Client, name: str, bound: int, now: int) -> Outcome:
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        operation = BulkRedrive(client, tube, bound)
        if self._redrive(operation, SLICE, now):
            operation.answer()
            return DONE
        client.busy = True
        return PENDING

    def _redrive(self, operation: BulkRedrive, budget: int, now: int) -> bool:
        """Redrive as many dead letters as the budget allows; return whether the redrive is complete."""
        tube = operation.tube
        budget += self.cost
        while operation.remaining and operation.visits and tube.letters is not None:
            if self.admits != ALL:
                self.suspended.append(operation)
                return False
            if budget <= self.cost:
                self.wheel.set(operation, OVERDUE)
                return False
            operation.visits -= 1
            self.cost += 1
            letter = tube.letters.after
            assert isinstance(letter, DeadLetter)
            job = letter.job
            terms = job.own_terms()
            if job.state == RESERVED or tube.is_cleared(job) or not operation.client.may_administer(terms.origin):
                letter.unlink()
                tube.letters.append(letter)
                continue
            self.cost += MOVE_COST
            operation.remaining -= 1
            operation.count += 1
            self.counters.redriven += 1
            tube.counters.redriven += 1
            self._leave(job)
            self._move(job, terms, terms.origin, "", now)
        return True

    def move(self, client: Client, name: str, state: int, target: str, bound: int, now: int) -> Outcome:
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        operation = BulkMove(client, tube, state, target, 0 if name == target else bound)
        if self._move_jobs(operation, SLICE, now):
            operation.answer()
            return DONE
        client.busy = True
        return PENDING

    def _move_jobs(self, operation: BulkMove, budget: int, now: int) -> bool:
        """Move as many jobs as the budget allows; return whether the move is complete."""
        budget += self.cost
        while operation.remaining:
            job = self._first_of(operation.tube, operation.state)
            if job is None:
                return True
            if self.admits != ALL:
                self.suspended.append(operation)
                return False
            if budget <= self.cost:
                self.wheel.set(operation, OVERDUE)
                return False
            self.cost += 1 + MOVE_COST
            operation.remaining -= 1
            operation.count += 1
            self._move_as_it_is(job, operation.target, now)
        return True

    def _first_of(self, tube: Tube, state: int) -> Job | None:
        """The first job of a tube in one state, as peek-ready, peek-delayed and peek-buried order them."""
        if state == READY:
            return tube.ready.jobs[0] if tube.ready.jobs else None
        if state == DELAYED:
            return self._first_delayed(tube)
        job = tube.buried.after
        return job if isinstance(job, Job) else None

    def _move_as_it_is(self, job: Job, name: str, now: int) -> None:
        """Let a job be in another tube in the state that it is in, READY, DELAYED or BURIED, as the last of its equals.

        A dead letter stays one, unless that is the tube that it has come from.
        """
        left = job.tube
        state = job.state
        if state == READY:
            job.forget_since()  # the terms that it gets now will say that it is ready since now
        terms = self.memory.give_terms(job)
        moment = terms.at
        deadline = job.deadline
        self._leave(job)
        self._change_tube(job, terms, name, "" if terms.origin == name else terms.origin)
        if state == READY:
            self._enter_ready(job, now)
        elif state == BURIED:
            self.bury_sequence += 1
            self._enter_buried(job, self.bury_sequence)
        elif moment:
            terms.at = moment
            self._enter_timed(job, moment, now)
        else:
            self._enter_delayed(job, deadline)
        self._record_change(job)
        self._drop_unneeded(left)

    # Kicking jobs

    def kick(self, client: Client, bound: int, now: int) -> Outcome:
        operation = BulkKick(client, client.use, bound)
        is_done = self._kick(operation, SLICE, now)
        self.cost += operation.count * operation.price
        if is_done:
            operation.answer()
            return DONE
        client.busy = True
        return PENDING

    def kick_job(self, client: Client, job_id: int, now: int) -> Outcome:
        job = self._find(job_id)
        if job is None or (job.state != BURIED and job.state != DELAYED):
            return NOT_FOUND
        self._kick_job(job, now)
        return DONE

    def _kick(self, operation: BulkKick, budget: int, now: int) -> bool:
        """Kick as many jobs as the budget allows; return whether the kick is complete."""
        tube = operation.tube
        while operation.remaining:
            if operation.buried:
                if not tube.buried_count:
                    return True
                job = tube.buried.after
            else:
                first = self._first_delayed(tube)
                if first is None:
                    return True
                job = first
            if self.admits != ALL:
                self.suspended.append(operation)
                return False
            if budget <= self.cost:
                self.wheel.set(operation, OVERDUE)
                return False
            assert isinstance(job, Job)
            self._kick_job(job, now)
            operation.remaining -= 1
            operation.count += 1
            budget -= operation.price
        return True

    def _kick_job(self, job: Job, now: int) -> None:
        self._leave(job)
        job.forget_since()
        job.own_extras().kicks += 1
        terms = job.terms()
        if terms is not None:
            terms.tries = 0
        self._enter_ready(job, now)
        self._record_change(job)

    # Cancelling, rescheduling and clearing jobs

    def cancel(self, client: Client, job_id: int) -> Outcome:
        return self._cancel(self._find(job_id))

    def cancel_keyed(self, client: Client, key: str) -> Outcome:
        return self._cancel(self._find_keyed(client.use, key))

    def _cancel(self, job: Job | None) -> Outcome:
        if job is None:
            return NOT_FOUND
        if job.state != DELAYED:
            return TOO_LATE
        self._delete(job)
        return DONE

    def reschedule(self, client: Client, job_id: int, delay: int, now: int) -> Outcome:
        return self._reschedule(self._find(job_id), delay, now)

    def reschedule_keyed(self, client: Client, key: str, delay: int, now: int) -> Outcome:
        return self._reschedule(self._find_keyed(client.use, key), delay, now)

    def _reschedule(self, job: Job | None, delay: int, now: int) -> Outcome:
        if job is None:
            return NOT_FOUND
        if job.state != DELAYED:
            return TOO_LATE
        self._leave(job)
        job.delay = delay
        job.forget_since()
        self._enter(job, delay, now)
        self._record_change(job)
        return DONE

    def clear(self, client: Client, name: str) -> Outcome:
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        if not (tube.ready.jobs or tube.delayed_count() or tube.buried_count or tube.held):
            client.on_cleared(0)
            return DONE
        if not self._record_clear(tube):
            return OUT_OF_MEMORY
        operation = BulkClear(client, tube, self.wall.take(tube))
        self._time_wall_clock()
        self.ready -= len(operation.ready)
        self.delayed -= len(operation.delayed) + len(operation.timed)
        self.buried -= tube.buried_count
        self.urgent -= tube.urgent
        tube.ready = JobHeap()
        tube.delayed = JobHeap()
        tube.held = []
        tube.buried_count = tube.urgent = 0
        tube.bytes = sum([self.body_size(job) for job in tube.reserved])
        tube.clears += 1
        tube.clearing += 1
        try:
            done = self._clear(operation, SLICE)
        except Exception:
            self.wheel.set(operation, OVERDUE)  # its jobs have left their queues, and would stay in memory
            raise
        finally:
            self._drop_unneeded(tube)
        if done:
            self.cost += operation.count
            client.on_cleared(operation.count)
            return DONE
        client.busy = operation.owes_answer = True
        return PENDING

    def _clear(self, operation: BulkClear, budget: int) -> bool:
        """Forget as many cleared jobs as the budget allows; return whether the clear is complete."""
        while budget:
            budget -= 1
            if operation.ready:
                job = operation.ready.pop()
                self._end_expiry(job)
            elif operation.delayed:
                job = operation.delayed.pop()
                if job.is_linked():  # unless it has come due since
                    self.wheel.remove(job)
            elif operation.timed:
                job = operation.timed.pop()
            elif not operation.buried.is_empty():
                link = operation.buried.after
                assert isinstance(link, Job)
                job = link
                job.unlink()
            elif operation.held:
                held = operation.held.pop()
                if held.is_linked():  # unless its time has come since
                    self.wheel.remove(held)
                self._free(held)
                if self.records:
                    self.journal.forget(held)
                continue
            else:
                operation.buried.dissolve()
                operation.tube.clearing -= 1
                return True
            self._forget(job)
            if self.records:
                self.journal.forget(job)
        self.wheel.set(operation, OVERDUE)
        return False

    # Looking at jobs

    def peek(self, client: Client, job_id: int) -> Outcome:
        return self._show(client, self._find(job_id))

    def _find(self, job_id: int) -> Job | None:
        job = self.jobs.get(job_id)
        if job is not None and job.tube.is_cleared(job):
            return None
        return job

    def tube_of(self, job_id: int) -> str:
        job = self._find(job_id)
        return "" if job is None else job.tube.name

    def peek_keyed(self, client: Client, key: str) -> Outcome:
        return self._show(client, self._find_keyed(client.use, key))

    def _find_keyed(self, tube: Tube, key: str) -> Job | None:
        holder = self._holder(tube, key)
        return holder if isinstance(holder, Job) else None

    def _holder(self, tube: Tube, key: str) -> Holder | None:
        """The job with this key, or the held key."""
        keys = tube.keys
        if keys is None:
            return None
        job = keys.get(key)
        if job is not None and tube.is_cleared(job):
            return None
        return job

    def peek_ready(self, client: Client) -> Outcome:
        jobs = client.use.ready.jobs
        return self._show(client, jobs[0] if jobs else None)

    def peek_delayed(self, client: Client) -> Outcome:
        return self._show(client, self._first_delayed(client.use))

    def _first_delayed(self, tube: Tube) -> Job | None:
        """The job of a tube whose delay ends first."""
        jobs = tube.delayed.jobs
        first = jobs[0] if jobs else None
        if tube.timed is None:
            return first
        other = tube.timed.jobs[0]
        if first is None:
            return other
        deadline = other.deadline - self.wall.offset
        if deadline < first.deadline or (deadline == first.deadline and other.id < first.id):
            return other
        return first

    def peek_buried(self, client: Client) -> Outcome:
        job = client.use.buried.after
        return self._show(client, job if isinstance(job, Job) else None)

    def _show(self, client: Client, job: Job | None) -> Outcome:
        """Show a client the job that its peek has found, if any, now or when its body has been fetched."""
        if job is None:
            return NOT_FOUND
        if job.body is NOT_IN_MEMORY:
            return self._deliver(FoundDelivery(client, [job]))
        client.on_found(job)
        return DONE

    def server_statistics(self) -> ServerStatistics:
        found = ServerStatistics(self.journal.files(), self.counters)
        found.urgent = self.urgent
        found.ready = self.ready
        found.reserved = self.reserved
        found.delayed = self.delayed
        found.buried = self.buried
        found.timeouts = self.timeouts
        found.total_jobs = self.total_jobs
        found.tubes = len(self.tubes)
        found.connections = self.connections
        found.producers = self.producers
        found.workers = self.workers
        found.waiting = self.waiting
        found.total_connections = self.total_connections
        found.draining = self.draining
        found.held = len(self.held)
        found.memory = self.memory.used
        found.max_memory = self.memory.limit
        return found

    def tube_statistics(self, name: str, now: int) -> TubeStatistics | None:
        tube = self.tubes.get(name)
        return None if tube is None else TubeStatistics(tube, now)

    def job_statistics(self, job_id: int, now: int) -> JobStatistics | None:
        job = self._find(job_id)
        if job is None:
            return None
        return JobStatistics(job, self.journal.file_number(job), now, self.wall.offset, self.body_size(job))

    # Time

    def set_wall_offset(self, offset: int) -> None:
        wall = self.wall
        if offset != wall.offset:
            wall.offset = offset
            self._time_wall_clock()

    def follows_wall_clock(self) -> bool:
        """Whether a job waits for a moment of the wall clock: then `set_wall_offset` must come before `advance`."""
        return bool(self.wall.heaps)

    def _time_wall_clock(self) -> None:
        """Let the wall clock be the timer of its first job, and be looked at now and then, if it has any."""
        wall = self.wall
        first = wall.first()
        if first is None:
            if wall.is_linked():
                self.wheel.remove(wall)
            if wall.check_timer.is_linked():
                self.wheel.remove(wall.check_timer)
            return
        deadline = first.deadline - wall.offset
        if not wall.is_linked() or wall.deadline != deadline:
            self.wheel.set(wall, deadline)

    def advance(self, now: int, budget: int = SLICE) -> None:
        """Handle the timers that are due, in the order in which they came due.

        Args:
            budget: the most timers to handle. If `next_event()` is not after `now` when this returns, there is more to
                do at once.
        """
        wheel = self.wheel
        # However many timers have to cascade, at least half of the budget is left for those that are due.
        budget = max(wheel.advance(now, budget), budget >> 1, 1)
        due = wheel.due
        while budget and due.after is not due:
            budget -= 1
            self.cost = 0
            timer = due.after
            timer.unlink()
            if isinstance(timer, Job):
                self._on_job_due(timer, now)
                # Its body may have been copied into a reply, if it was in memory.
                budget = max(budget - copy_cost(len(timer.body)) - self.cost, 0)
            elif isinstance(timer, Client):
                self.stop_waiting(timer)
                timer.on_outcome(TIMED_OUT)
                budget = max(budget - self.cost, 0)
            elif isinstance(timer, Tube):
                timer.pause = 0
                timer.set_blocked()
                budget = self._serve_waiting(timer, max(budget, 1), now)
            elif isinstance(timer, Expiry):
                self._on_expiry(timer, now)
                budget = max(budget - self.cost, 0)
            elif isinstance(timer, HeldKey):
                self._end_hold(timer)
            elif isinstance(timer, Throttle):
                budget = self._on_throttle_due(timer, max(budget, 1), now)
            elif isinstance(timer, (BulkKick, BulkRedrive, BulkMove)):
                self._continue_counted(timer, max(budget, 1), now)
                budget = 0
            elif isinstance(timer, BulkClear):
                self._continue_clear(timer, max(budget, 1))
                budget = 0
            elif isinstance(timer, BulkDisconnect):
                self._continue_disconnect(timer, max(budget, 1), now)
                budget = 0
            elif isinstance(timer, BulkReview):
                self._continue_review(timer, max(budget, 1), now)
                budget = 0
            elif isinstance(timer, WallClock):
                budget = self._on_moments_due(timer, max(budget, 1), now)
            elif isinstance(timer, WallCheck):
                self.wheel.set(timer, now + WALL_CHECK)  # whoever has called this has told what the wall clock says

    def next_event(self) -> int:
        """When to call `advance` next, in nanoseconds: a moment in the past if there is something to do at once."""
        due = self.wheel.due
        return 0 if due.after is not due else self.wheel.next_event

    def _continue_counted(self, operation: BulkKick | BulkRedrive | BulkMove, budget: int, now: int) -> None:
        client = operation.client
        try:
            if isinstance(operation, BulkKick):
                done = self._kick(operation, budget, now)
            elif isinstance(operation, BulkMove):
                done = self._move_jobs(operation, budget, now)
            else:
                done = self._redrive(operation, budget, now)
        except Exception:
            client.busy = False
            client.on_outcome(FAILED)
            raise
        if done:
            client.busy = False
            operation.answer()

    def _continue_clear(self, operation: BulkClear, budget: int) -> None:
        client = operation.client
        try:
            done = self._clear(operation, budget)
        except Exception:
            self.wheel.set(operation, OVERDUE)
            if operation.owes_answer:
                client.busy = operation.owes_answer = False
                client.on_outcome(FAILED)
            raise
        if done and operation.owes_answer:
            client.busy = operation.owes_answer = False
            client.on_cleared(operation.count)

    def _on_job_due(self, job: Job, now: int) -> None:
        if job.tube.is_cleared(job):
            return
        if job.state == DELAYED:
            due = job.deadline
            if self.durations is not None:
                self.durations.lateness.add(now - due)
            job.tube.delayed.remove(job)
            self.delayed -= 1
            self._note_ready_since(job, due)
            self._enter_ready(job, now)
            return
        client = job.client
        assert client is not None, "only delayed and reserved jobs come due"
        if not job.in_safety_margin:
            job.in_safety_margin = True
            client.jobs_in_safety_margin += 1
            self.wheel.set(job, job.deadline + SAFETY_MARGIN)
            if self.stop_waiting(client):
                client.on_outcome(DEADLINE_SOON)
            return
        is_counted = counts_failures(job)
        if is_counted and self.admits != ALL:
            self.suspended.append(job)
            return
        job.own_extras().timeouts += 1
        self.timeouts += 1
        self._leave_reserved(job)
        if is_counted:
            self._fail(job, RUN_OUT, 0, now)
        else:
            self._enter_ready(job, now)
            self._record_stay(job)

    def _on_throttle_due(self, throttle: Throttle, budget: int, now: int) -> int:
        """Serve the clients that wait for a tube that may be throttled no longer; return the rest of the budget."""
        tube = throttle.tube
        throttle.on_due(now)
        budget = self._serve_waiting(tube, budget, now)
        if throttle.full_at <= now and not tube.is_needed():
            throttle.full_at = 0
        self._drop_unneeded(tube)
        return budget

    def _on_moments_due(self, wall: WallClock, budget: int, now: int) -> int:
        """Make jobs ready whose moments of the wall clock have come; return the rest of the budget.

        If nothing is left, there may be more to do: then the timer, which is that of the next job, is overdue.
        """
        moment = now + wall.offset
        try:
            while budget and wall.heaps:
                job = wall.heaps[0].jobs[0]
                if job.deadline > moment:
                    break
                if self.durations is not None:
                    self.durations.lateness.add(moment - job.deadline)
                self._end_moment(job)
                self.delayed -= 1
                self.cost = 0
                self._enter_ready(job, now)
                budget = max(budget - 1 - copy_cost(len(job.body)) - self.cost, 0)
        finally:
            self._time_wall_clock()
        return budget

    def _continue_disconnect(self, operation: BulkDisconnect, budget: int, now: int) -> None:
        """Continue a disconnect within the budget: the client's jobs become ready, then it leaves its tubes."""
        client = operation.client
        if not operation.collect_jobs():
            self.wheel.set(operation, OVERDUE)
            return
        jobs = operation.jobs
        while jobs and budget > self.cost:
            job = jobs[-1]
            if job.client is client:  # unless its time to run has ended since
                is_counted = operation.has_left and counts_failures(job) and not self.halted
                if is_counted and self.admits != ALL:
                    self.suspended.append(operation)
                    return
                self._leave_reserved(job)
                if is_counted:
                    self._fail(job, DISCONNECTED, 0, now)
                else:
                    self._enter_ready(job, now)
                    self._record_stay(job)
            jobs.pop()
            budget -= 1
        watched = client.watched
        waits = client.waits
        while watched and not jobs and budget > self.cost:
            tube = watched[0]
            if operation.waited:
                wait = waits[0]
                waits[0] = waits[len(watched) - 1]
                waits.pop()
                if wait.is_linked():  # unless its turn has come since: then `_serve_waiting` has skipped it
                    wait.unlink()
                    tube.waiting_count -= 1
            self._unwatch(client, tube, 0)
            budget -= 1
        if jobs or watched:
            self.wheel.set(operation, OVERDUE)
            return
        waits.clear()  # each refers to the client, and would keep it in memory
        self.unuse(client)

    # Time to live, and held keys

    def _note_ready_since(self, job: Job, moment: int) -> None:
        """Note since when a job is ready that is about to be: 0 for the moment at which it will be."""
        extras = job.extras
        if isinstance(extras, Terms):
            extras.ready_since = moment
        elif moment and job.tube.policy.ttl:
            self.memory.give_terms(job).ready_since = moment

    def _review_expiry(self, job: Job, now: int) -> None:
        """Let a ready job expire when its time to live is over, if it has one."""
        terms = job.terms()
        ttl = ttl_of(job)
        if terms is None:
            if not ttl:
                return
            terms = self.memory.give_terms(job)
        if not terms.ready_since:
            terms.ready_since = now
        if not ttl:
            self._end_expiry(job)
            return
        expiry = terms.expiry
        if expiry is None:
            expiry = self.memory.give_expiry(job, terms)
        deadline = terms.ready_since + ttl
        if not expiry.is_linked() or expiry.deadline != deadline:
            self.wheel.set(expiry, deadline)

    def _end_expiry(self, job: Job) -> None:
        extras = job.extras
        if isinstance(extras, Terms):
            expiry = extras.expiry
            if expiry is not None:
                self.memory.take_expiry(extras)
                if expiry.is_linked():
                    self.wheel.remove(expiry)

    def _record_stay(self, job: Job) -> None:
        """Record that a job which can expire has become reserved or ready again, or a restart would count otherwise.

        While the journal does not admit it, it is left out: so much may happen that the journal would run out of room.
        """
        if isinstance(job.extras, Terms) and self.admits == ALL and not self.halted and ttl_of(job):
            self._record_change(job)

    def _on_expiry(self, expiry: Expiry, now: int) -> None:
        """End a ready job whose time to live is over, as soon as the journal admits it."""
        job = expiry.job
        tube = job.tube
        if tube.is_cleared(job):
            return
        dead_tube = tube.policy.dead_tube
        is_moved = bool(dead_tube) and dead_tube != tube.name
        hold = key_hold_of(job)
        if (is_moved or hold) and self.admits != ALL:
            self.suspended.append(expiry)
            return
        if self.admits == NONE:
            self.suspended_deletions.append(expiry)
            return
        self.cost += EXPIRY_COST
        self.counters.expired += 1
        tube.counters.expired += 1
        if is_moved:
            self._leave_ready(job)
            terms = job.own_terms()
            terms.reason = EXPIRED
            self._give_up(job, terms, now)
        else:
            self._delete(job, now + hold if hold else 0)

    def _enter_held(self, held: HeldKey, free_at: int) -> None:
        """Keep a key taken that is in the table of held keys."""
        tube = held.tube
        self.memory.add_held(held)
        tube.add_held(held)
        self._set_key(tube, held)
        self.wheel.set(held, free_at)

    def _end_hold(self, held: HeldKey) -> None:
        """Free a key whose time is over, as soon as the journal admits it."""
        tube = held.tube
        if tube.is_cleared(held):
            return
        if self.admits == NONE:
            self.suspended_deletions.append(held)
            return
        self._record_delete(held)
        tube.remove_held(held)
        self._free(held)
        self._drop_unneeded(tube)

    # Entering and leaving a state: only these methods count the jobs of each state and keep them in order.

    def _enter(self, job: Job, delay: int, now: int) -> None:
        """Make a job delayed if its delay, which begins now, is not 0; else ready."""
        if not delay:
            self._enter_ready(job, now)
        elif job.is_timed():
            self._enter_at(job, now)
        else:
            self._enter_delayed(job, now + delay)

    def _enter_ready(self, job: Job, now: int) -> None:
        job.state = READY
        tube = job.tube
        priority = job.priority
        tube.ready.push(job, priority)
        self.ready += 1
        if priority < URGENT:
            self.urgent += 1
            tube.urgent += 1
        if tube.policy is not NO_POLICY or isinstance(job.extras, Terms):
            self._review_expiry(job, now)
        if tube.waiting_count:
            self._serve_waiting(tube, 1, now)

    def _leave_ready(self, job: Job) -> None:
        tube = job.tube
        tube.ready.remove(job)
        self.ready -= 1
        if job.priority < URGENT:
            self.urgent -= 1
            tube.urgent -= 1
        self._end_expiry(job)

    def _reserve_ready(self, job: Job, client: Client, now: int) -> None:
        """Reserve a ready job."""
        if self.durations is not None:
            self.durations.note_reservation(job, now)
        self._leave_ready(job)
        self._enter_reserved(job, client, now)
        self._record_stay(job)

    def _enter_delayed(self, job: Job, deadline: int) -> None:
        job.state = DELAYED
        self.wheel.set(job, deadline)
        job.tube.delayed.push(job, deadline)
        self.delayed += 1

    def _enter_at(self, job: Job, now: int) -> None:
        """Make a job delayed until its moment of the wall clock; or ready, if that has come."""
        terms = job.own_terms()
        wall = self.wall
        moment = terms.at
        if moment <= now + wall.offset:
            terms.at = 0
            self._enter_ready(job, now)
            return
        self._enter_timed(job, moment, now)

    def _enter_timed(self, job: Job, moment: int, now: int) -> None:
        wall = self.wall
        job.state = DELAYED
        wall.add(job, moment)
        self.delayed += 1
        if not wall.check_timer.is_linked():
            self.wheel.set(wall.check_timer, now + WALL_CHECK)
        self._time_wall_clock()

    def _leave_delayed(self, job: Job) -> None:
        self.delayed -= 1
        if not job.is_timed():
            job.tube.delayed.remove(job)
            self.wheel.remove(job)
            return
        self._end_moment(job)
        self._time_wall_clock()

    def _end_moment(self, job: Job) -> None:
        """Let a job wait for the wall clock no longer."""
        self.wall.remove(job)
        job.own_terms().at = 0

    def _enter_buried(self, job: Job, sequence: int) -> None:
        job.state = BURIED
        tube = job.tube
        extras = job.own_extras()
        extras.bury_sequence = sequence
        extras.clears = tube.clears
        tube.buried.append(job)
        tube.buried_count += 1
        self.buried += 1

    def _enter_reserved(self, job: Job, client: Client, now: int) -> None:
        job.state = RESERVED
        job.client = client
        job.reserves += 1
        tube = job.tube
        tube.add_reserved(job)
        if tube.throttle is not None:
            tube.throttle.take(now)
        self.reserved += 1
        client.reserved.add(job)
        self._set_time_to_run(job, client, now)

    def _set_time_to_run(self, job: Job, client: Client, now: int) -> None:
        ttr = job.ttr
        if ttr > SAFETY_MARGIN:
            self.wheel.set(job, now + ttr - SAFETY_MARGIN)
        else:
            job.in_safety_margin = True
            client.jobs_in_safety_margin += 1
            self.wheel.set(job, now + ttr)

    def _leave_reserved(self, job: Job) -> None:
        client = job.client
        assert client is not None, "a reserved job has a client"
        if job.in_safety_margin:
            job.in_safety_margin = False
            client.jobs_in_safety_margin -= 1
        job.client = None
        extras = job.extras
        if isinstance(extras, Terms):
            extras.ready_since = 0
        if not client.leaving:  # else a BulkDisconnect holds the job
            client.reserved.remove(job)
        tube = job.tube
        tube.remove_reserved(job)
        if tube.throttle is not None:
            tube.throttle.free_place()
        self.reserved -= 1
        if job.is_linked():
            self.wheel.remove(job)

    def _leave(self, job: Job) -> None:
        """Take a job out of its present state, whichever that is."""
        state = job.state
        if state == RESERVED:
            self._leave_reserved(job)
        elif state == READY:
            self._leave_ready(job)
        elif state == DELAYED:
            self._leave_delayed(job)
        else:
            job.unlink()
            job.tube.buried_count -= 1
            self.buried -= 1

    def _serve_waiting(self, tube: Tube, budget: int, now: int) -> int:
        """Give the best ready jobs of a tube to the clients that have waited longest; return the rest of the budget.

        If nothing is left, there may be more to do: then the tube is in the wheel, as the timer that continues it.
        """
        jobs = tube.ready.jobs
        while jobs and tube.waiting_count and not tube.blocked:
            if not budget:
                if not tube.is_linked():
                    self.wheel.set(tube, OVERDUE)
                return 0
            wait = tube.waiting.after
            assert isinstance(wait, Wait)
            client = wait.client
            if client.leaving:
                wait.unlink()
                tube.waiting_count -= 1
                continue
            budget = max(budget - 1 - wait_cost(len(client.watched)), 0)
            self.stop_waiting(client)
            if client.batch:
                budget = max(budget - self._serve_batch(tube, client, now), 0)
                continue
            job = jobs[0]
            self._reserve_ready(job, client, now)
            self._give(client, job)
        return budget

    def _serve_batch(self, tube: Tube, client: Client, now: int) -> int:
        """Give a client that waited for a batch the ready jobs of this tube; return how many.

        The client's other tubes are not searched: they had no job for it until now. If the pause of one of them ends at
        this very moment, its jobs go to the clients that wait there then.
        """
        jobs = tube.ready.jobs
        batch: list[Job] = []
        size = 0
        bound = min(client.batch, SLICE)
        while jobs and len(batch) < bound and size <= BATCH_BYTES and not tube.blocked:
            job = jobs[0]
            self._reserve_ready(job, client, now)
            batch.append(job)
            size += self.body_size(job)
        self._give_batch(client, batch)
        return len(batch)
