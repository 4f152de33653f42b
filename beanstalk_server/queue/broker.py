"""The broker: moves jobs from state to state, as clients ask for it and as time passes.

Each transition is one method, which updates everything that the transition touches: queues, wheel, counters, waiting
clients and journal. Must never see a command or a reply as bytes, do I/O, or read a clock: `now` is an argument, in
nanoseconds.

    from                      to          by                             who
    ------------------------  ----------  -----------------------------  -----------------------------------------
    (new)                     ready       put without delay              any client
    (new)                     delayed     put with delay                 any client
    delayed                   ready       the end of its delay           time
    ready                     reserved    reserve, or a waiting client   any client that watches its tube
    ready, delayed, buried    reserved    reserve_job                    any client
    reserved                  ready       release without delay          the client that reserved it
    reserved                  delayed     release with delay             the client that reserved it
    reserved                  buried      bury                           the client that reserved it
    reserved                  reserved    touch                          the client that reserved it
    reserved                  ready       the end of its time to run     time
    reserved                  ready       disconnect                     the client that reserved it
    buried, delayed           ready       kick, kick_job                 any client
    ready, delayed, buried    (deleted)   delete, clear                  any client
    delayed                   (deleted)   cancel                         any client
    delayed                   delayed     reschedule with delay          any client
    delayed                   ready       reschedule without delay       any client
    ready, delayed, buried    delayed     replace with delay             any client
    ready, delayed, buried    ready       replace without delay          any client
    reserved                  (deleted)   delete                         the client that reserved it

Two invariants hold between calls. A tube that is not paused has ready jobs or waiting clients, never both; the only
exception is a tube whose pause has ended and whose waiting clients are still being served in slices. And a waiting
client waits in every tube that it watches.

A change is recorded in the journal before the transition or after it, never in the middle, because the journal may
rewrite any live job while it records a change. What creates or deletes jobs (put, replace, clear, delete) is recorded
before: the journal may refuse it, and a job must still exist when its deletion is recorded. What changes a job's state
(release, bury, kick, reschedule, and reserve_job of a job that was not ready) is recorded after: the record holds the
new state.

What may concern any number of jobs (a kick, a clear, the jobs and tubes of a client that disconnects) is done in
slices. A BulkOperation holds what is left; it is in the wheel with a deadline in the past, so that `advance` continues
it, and other commands are served between the slices. Only waiting is not divided: a client starts or stops waiting in
all its tubes at once, and what that costs is added to `cost`.

Whether a delayed job is cancelled or becomes ready is decided here, once, when its state changes: `cancel` deletes a
job that is still delayed, and leaves any other as it is. A job whose delay has ended stays delayed until `advance`
reaches it.

The body of a job may be where the journal keeps it (NOT_IN_MEMORY). Nothing here reads a body; a client that is to get
one gets it by a Delivery, when the journal has fetched it. Its command is PENDING until then, and everything else that
the command does has been done: the job is reserved, and its time to run has begun.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.bulk import BulkClear, BulkDisconnect, BulkKick
from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.costs import NEW_TUBE_COST, PAGE_COST, copy_cost, search_cost, wait_cost
from beanstalk_server.queue.delivery import BatchDelivery, Delivery, FoundDelivery, ReservedDelivery
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.interface import FOREVER, Queue
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    DELETED,
    NOT_IN_MEMORY,
    READY,
    RESERVED,
    SAFETY_MARGIN,
    URGENT,
    Job,
)
from beanstalk_server.queue.journal import ALL, Journal
from beanstalk_server.queue.memory import Memory
from beanstalk_server.queue.outcome import (
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
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics
from beanstalk_server.queue.table import JobTable, KeyTable
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.tubes import TubeTable
from beanstalk_server.queue.wheel import TICK, Wheel

BATCH_BYTES: Final = 1 << 20
"""Bytes: a batch of reserved jobs ends with the job whose body takes the batch past this size."""

SLICE: Final = 512
"""The budget of one call: the most jobs it moves, in about a millisecond. `advance` moves the rest."""

DISCONNECT_SLICE: Final = 64
"""The budget of a disconnect: smaller, because many clients may disconnect at the same moment."""

NOWHERE: Final = Tube("", 0)
"""The tube of jobs that the broker has dropped."""

OVERDUE: Final = 0
"""A deadline in the past: a timer with it is due at the next `advance`."""


def _bury_sequence(job: Job) -> int:
    return job.extras.bury_sequence


class Broker(Queue):
    """The queue: all jobs, tubes and clients, in memory.

    Args:
        journal: records each change that must outlive the process.
        now: the present, in nanoseconds.
        tick: the precision of deadlines, in nanoseconds.
        max_memory: bytes that jobs may take; a put beyond it is refused. 0 for no limit.
    """

    __slots__ = (
        "buried",
        "bury_sequence",
        "connections",
        "delayed",
        "draining",
        "jobs",
        "journal",
        "memory",
        "next_id",
        "producers",
        "ready",
        "records",
        "reserved",
        "suspended",
        "timeouts",
        "total_connections",
        "total_jobs",
        "tubes",
        "urgent",
        "waiting",
        "wheel",
        "workers",
    )

    def __init__(self, journal: Journal, now: int = 0, tick: int = TICK, max_memory: int = 0) -> None:
        super().__init__()
        self.journal = journal
        self.records = journal.keeps  # else there is nobody to record anything for
        self.wheel = Wheel(now, tick)
        self.jobs = JobTable()
        journal.live = self.jobs
        self.memory = journal.memory = Memory(max_memory)
        self.tubes = TubeTable()
        self.next_id = 1
        self.draining = False
        self.suspended: list[BulkKick] = []  # kicks that go on when the journal admits everything again
        self.bury_sequence = 0  # the number of the last burial
        # The counters of stats: the jobs in each state, and what has happened since the start.
        self.urgent = 0
        self.ready = 0
        self.reserved = 0
        self.delayed = 0
        self.buried = 0
        self.timeouts = 0
        self.total_jobs = 0
        self.connections = 0
        self.total_connections = 0
        self.producers = 0
        self.workers = 0
        self.waiting = 0

    # Clients and tubes

    def connect(self, client: Client) -> None:
        self.connections += 1
        self.total_connections += 1
        tube = self.tubes.default
        client.use = tube
        tube.using += 1
        client.add_watched(tube)
        tube.watching += 1

    def disconnect(self, client: Client, now: int) -> None:
        """As in Queue.

        Its jobs become ready first, then it leaves its tubes. Many jobs or tubes take several slices; until the last
        slice, tubes may still count the client.
        """
        self.connections -= 1
        if client.producer:
            self.producers -= 1
        if client.worker:
            self.workers -= 1
        operation = BulkDisconnect(client)
        client.leaving = True
        if client.waiting:
            self._end_wait(client)
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
        left = client.use
        client.use = tube
        left.using -= 1
        self._drop_unneeded(left)
        return DONE

    def watch(self, client: Client, name: str) -> Outcome:
        tube = self._tube(name)
        if client.watch_position(tube) < 0:
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
        tube.watching -= 1
        self._drop_unneeded(tube)

    def pause(self, client: Client, name: str, duration: int, now: int) -> Outcome:
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        tube.pauses += 1
        tube.pause = duration
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
            self.cost += NEW_TUBE_COST
        return tube

    def _drop_unneeded(self, tube: Tube) -> None:
        if self.tubes.drop_unneeded(tube) and tube.is_linked():
            self.wheel.remove(tube)

    def list_tubes(self) -> list[bytes]:
        self.cost += self.tubes.write_pages() * PAGE_COST
        return self.tubes.pages()

    def drain(self) -> None:
        self.draining = True

    def drop_jobs(self) -> None:
        """Let all jobs be freed with the broker, which must not be used any more.

        Without this, a compiled broker that has jobs stays in memory, and they with it (`Job.detach` says why).
        """
        for job in self.jobs.values():
            job.detach(NOWHERE)

    # The journal

    def set_admission(self, admits: int) -> None:
        """Set what the journal admits from now on: ALL, DELETIONS or NONE. With ALL, suspended kicks go on."""
        self.admits = admits
        if admits == ALL:
            for operation in self.suspended:
                self.wheel.set(operation, OVERDUE)
            self.suspended.clear()

    def restore(self, clock_offset: int, now: int) -> int:
        """Recover the jobs that the journal has kept; return how many. Must come before the first `connect`.

        A job whose delay ended while no server was running is ready at once.

        Args:
            clock_offset: the wall clock minus the clock of `now`, in nanoseconds.
        """
        replay = Replay(self.jobs, clock_offset)
        self.journal.restore(replay)
        buried: list[Job] = []
        for job in self.jobs.values():
            job.tube = self._tube(job.tube.name)
            job.created_at -= clock_offset
            self.memory.add_job(job)
            if job.key:
                self._set_key(job.tube, job)
            if job.state == BURIED:
                buried.append(job)
            elif job.state == DELAYED and job.deadline - clock_offset > now:
                self._enter_delayed(job, job.deadline - clock_offset)
            else:
                self._enter_ready(job, now)
        buried.sort(key=_bury_sequence)
        for job in buried:
            self._enter_buried(job, job.extras.bury_sequence)
        if buried:
            self.bury_sequence = buried[-1].extras.bury_sequence
        self.next_id = max(self.next_id, replay.last_id + 1, self.journal.next_id())
        return len(self.jobs)

    def _record_put(self, job: Job, delay: int, now: int) -> bool:
        if delay:
            job.deadline = now + delay
        if self.records:
            if not self.journal.put(job):
                return False
            self.last_lsn += 1
        return True

    def _record_change(self, job: Job) -> None:
        if self.records:
            self.last_lsn += 1
            self.journal.change(job)

    def _record_delete(self, job: Job) -> None:
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
        self.next_id = job_id + 1
        return job_id

    def put(
        self, client: Client, job_id: int, priority: int, delay: int, ttr: int, body: bytes, created_at: int, now: int
    ) -> Outcome:
        return self._put(client.use, job_id, "", priority, delay, ttr, body, created_at, now)

    def put_keyed(
        self,
        client: Client,
        key: str,
        replaces: bool,
        priority: int,
        delay: int,
        ttr: int,
        body: bytes,
        created_at: int,
        now: int,
    ) -> Outcome:
        tube = client.use
        job = self._find_keyed(tube, key)
        if job is None:
            job_id = self.take_id()
            client.on_keyed(job_id)
            return self._put(tube, job_id, key, priority, delay, ttr, body, created_at, now)
        client.on_keyed(job.id)
        if not replaces:
            return EXISTS
        if job.client is not None:
            return TOO_LATE
        return self._replace(job, priority, delay, ttr, body, now)

    def _put(
        self,
        tube: Tube,
        job_id: int,
        key: str,
        priority: int,
        delay: int,
        ttr: int,
        body: bytes,
        created_at: int,
        now: int,
    ) -> Outcome:
        if self.draining:
            return DRAINING
        job = Job(job_id, priority, delay, ttr, body, tube, created_at)
        if key:
            job.key = key
        if not self.memory.admits(job) or not self._record_put(job, delay, now):
            return OUT_OF_MEMORY
        self.jobs.add(job)
        self.memory.add_job(job)
        if key:
            self._set_key(tube, job)
        self.total_jobs += 1
        tube.total_jobs += 1
        self._enter(job, delay, now)
        return DONE

    def _replace(self, job: Job, priority: int, delay: int, ttr: int, body: bytes, now: int) -> Outcome:
        """Give a job that is not reserved a new priority, delay, ttr and body."""
        tube = job.tube
        fresh = job.renewed(priority, delay, ttr, body)
        if not self.memory.admits(fresh, job) or not self._record_put(fresh, delay, now):
            return OUT_OF_MEMORY
        self._leave(job)
        self.memory.remove_job(job)
        job.state = DELETED
        self.jobs.add(fresh)
        self.memory.add_job(fresh)
        if fresh.key:
            self._set_key(tube, fresh)
        self._enter(fresh, delay, now)
        return REPLACED

    def _set_key(self, tube: Tube, job: Job) -> None:
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
            size += self._body_size(job)
        if not jobs:
            return self._wait(client, timeout, limit, now)
        self.cost += len(jobs) * cost
        return self._give_batch(client, jobs)

    def _reserve_best(self, client: Client, now: int) -> Job | None:
        """Reserve the ready job with the smallest (priority, id) of the tubes that the client watches."""
        best: Job | None = None
        for tube in client.watched:
            jobs = tube.ready.jobs
            if not jobs or tube.pause:
                continue
            if tube.waiting_count:  # its pause has ended: the clients that wait come first
                self._serve_waiting(tube, SLICE, now)
                if not jobs or tube.waiting_count:
                    continue
            job = jobs[0]
            # The deadline of a ready job is its priority.
            if best is None or job.deadline < best.deadline or (job.deadline == best.deadline and job.id < best.id):
                best = job
        if best is not None:
            self._leave_ready(best)
            self._enter_reserved(best, client, now)
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
        self._leave(job)
        self._enter_reserved(job, client, now)
        if not was_ready:
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

    def _body_size(self, job: Job) -> int:
        """Bytes, also of a body that is not in memory."""
        body = job.body
        return self.journal.body_size(job) if body is NOT_IN_MEMORY else len(body)

    # Deleting, releasing, burying and touching jobs

    def delete(self, client: Client, job_id: int) -> Outcome:
        job = self._find(job_id)
        if job is None or (job.state == RESERVED and job.client is not client):
            return NOT_FOUND
        job.tube.deletes += 1
        self._delete(job)
        return DONE

    def _delete(self, job: Job) -> None:
        self._record_delete(job)
        self._leave(job)
        self._forget(job)
        tube = job.tube
        if not tube.using and not tube.watching:
            self._drop_unneeded(tube)

    def _forget(self, job: Job) -> None:
        """Remove a job that has left its queue from the tables of ids and keys."""
        self.memory.remove_job(job)
        job.state = DELETED
        self.jobs.remove(job.id)
        if job.key:
            keys = job.tube.keys
            assert keys is not None, "a job with a key is in its tube's keys"
            keys.remove(job)

    def release(self, client: Client, job_id: int, priority: int, delay: int, now: int) -> Outcome:
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        self._leave_reserved(job)
        job.priority = priority
        job.delay = delay
        job.own_extras().releases += 1
        self._enter(job, delay, now)
        self._record_change(job)
        return DONE

    def bury(self, client: Client, job_id: int, priority: int) -> Outcome:
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        self._leave_reserved(job)
        job.priority = priority
        job.own_extras().buries += 1
        self.bury_sequence += 1
        self._enter_buried(job, self.bury_sequence)
        self._record_change(job)
        return DONE

    def touch(self, client: Client, job_id: int, now: int) -> Outcome:
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        if job.in_safety_margin:
            job.in_safety_margin = False
            client.jobs_in_safety_margin -= 1
        self._set_time_to_run(job, client, now)
        return DONE

    # Kicking jobs

    def kick(self, client: Client, bound: int, now: int) -> Outcome:
        operation = BulkKick(client, client.use, bound)
        is_done = self._kick(operation, SLICE, now)
        self.cost += operation.count * operation.price
        if is_done:
            client.on_kicked(operation.count)
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
                if not tube.delayed.jobs:
                    return True
                job = tube.delayed.jobs[0]
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
        job.own_extras().kicks += 1
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
        self._enter(job, delay, now)
        self._record_change(job)
        return DONE

    def clear(self, client: Client, name: str) -> Outcome:
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        if not (tube.ready.jobs or tube.delayed.jobs or tube.buried_count):
            client.on_cleared(0)
            return DONE
        if not self._record_clear(tube):
            return OUT_OF_MEMORY
        operation = BulkClear(client, tube)
        self.ready -= len(operation.ready)
        self.delayed -= len(operation.delayed)
        self.buried -= tube.buried_count
        self.urgent -= tube.urgent
        tube.ready = JobHeap()
        tube.delayed = JobHeap()
        tube.buried_count = tube.urgent = 0
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
            elif operation.delayed:
                job = operation.delayed.pop()
                if job.is_linked():  # unless it has come due since
                    self.wheel.remove(job)
            elif not operation.buried.is_empty():
                link = operation.buried.after
                assert isinstance(link, Job)
                job = link
                job.unlink()
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
        jobs = client.use.delayed.jobs
        return self._show(client, jobs[0] if jobs else None)

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
        found = ServerStatistics(self.journal.files())
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
        found.memory = self.memory.used
        found.max_memory = self.memory.limit
        return found

    def tube_statistics(self, name: str, now: int) -> TubeStatistics | None:
        tube = self.tubes.get(name)
        return None if tube is None else TubeStatistics(tube, now)

    def job_statistics(self, job_id: int, now: int) -> JobStatistics | None:
        job = self._find(job_id)
        return None if job is None else JobStatistics(job, self.journal.file_number(job), now)

    # Time

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
                budget = self._serve_waiting(timer, max(budget, 1), now)
            elif isinstance(timer, BulkKick):
                self._continue_kick(timer, max(budget, 1), now)
                budget = 0
            elif isinstance(timer, BulkClear):
                self._continue_clear(timer, max(budget, 1))
                budget = 0
            elif isinstance(timer, BulkDisconnect):
                self._continue_disconnect(timer, max(budget, 1), now)
                budget = 0

    def next_event(self) -> int:
        """When to call `advance` next, in nanoseconds: a moment in the past if there is something to do at once."""
        due = self.wheel.due
        return 0 if due.after is not due else self.wheel.next_event

    def _continue_kick(self, operation: BulkKick, budget: int, now: int) -> None:
        client = operation.client
        try:
            done = self._kick(operation, budget, now)
        except Exception:
            client.busy = False
            client.on_outcome(FAILED)
            raise
        if done:
            client.busy = False
            client.on_kicked(operation.count)

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
            job.tube.delayed.remove(job)
            self.delayed -= 1
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
        job.own_extras().timeouts += 1
        self.timeouts += 1
        self._leave_reserved(job)
        self._enter_ready(job, now)

    def _continue_disconnect(self, operation: BulkDisconnect, budget: int, now: int) -> None:
        """Continue a disconnect within the budget: the client's jobs become ready, then it leaves its tubes."""
        client = operation.client
        if not operation.collect_jobs():
            self.wheel.set(operation, OVERDUE)
            return
        jobs = operation.jobs
        while jobs and budget > self.cost:
            job = jobs.pop()
            if job.client is client:  # unless its time to run has ended since
                self._leave_reserved(job)
                self._enter_ready(job, now)
            budget -= 1
        watched = client.watched
        waits = client.waits
        while watched and not jobs and budget > self.cost:
            tube = watched[0]
            client.remove_watched(0)
            if operation.waited:
                wait = waits[0]
                waits[0] = waits[len(watched)]
                waits.pop()
                if wait.is_linked():  # unless its turn has come since: then `_serve_waiting` has skipped it
                    wait.unlink()
                    tube.waiting_count -= 1
            tube.watching -= 1
            self._drop_unneeded(tube)
            budget -= 1
        if watched:
            self.wheel.set(operation, OVERDUE)
            return
        waits.clear()  # each refers to the client, and would keep it in memory
        client.use.using -= 1
        self._drop_unneeded(client.use)

    # Entering and leaving a state: only these methods count the jobs of each state and keep them in order.

    def _enter(self, job: Job, delay: int, now: int) -> None:
        """Make a job delayed if its delay, which begins now, is not 0; else ready."""
        if delay:
            self._enter_delayed(job, now + delay)
        else:
            self._enter_ready(job, now)

    def _enter_ready(self, job: Job, now: int) -> None:
        job.state = READY
        tube = job.tube
        priority = job.priority
        tube.ready.push(job, priority)
        self.ready += 1
        if priority < URGENT:
            self.urgent += 1
            tube.urgent += 1
        if tube.waiting_count:
            self._serve_waiting(tube, 1, now)

    def _leave_ready(self, job: Job) -> None:
        tube = job.tube
        tube.ready.remove(job)
        self.ready -= 1
        if job.priority < URGENT:
            self.urgent -= 1
            tube.urgent -= 1

    def _enter_delayed(self, job: Job, deadline: int) -> None:
        job.state = DELAYED
        self.wheel.set(job, deadline)
        job.tube.delayed.push(job, deadline)
        self.delayed += 1

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
        job.tube.add_reserved(job)
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
        if not client.leaving:  # else a BulkDisconnect holds the job
            client.reserved.remove(job)
        job.tube.remove_reserved(job)
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
            job.tube.delayed.remove(job)
            self.wheel.remove(job)
            self.delayed -= 1
        else:
            job.unlink()
            job.tube.buried_count -= 1
            self.buried -= 1

    def _serve_waiting(self, tube: Tube, budget: int, now: int) -> int:
        """Give the best ready jobs of a tube to the clients that have waited longest; return the rest of the budget.

        If nothing is left, there may be more to do: then the tube is in the wheel, as the timer that continues it.
        """
        if tube.pause:
            return budget
        jobs = tube.ready.jobs
        while jobs and tube.waiting_count:
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
            self._leave_ready(job)
            self._enter_reserved(job, client, now)
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
        while jobs and len(batch) < client.batch and len(batch) < SLICE and size <= BATCH_BYTES:
            job = jobs[0]
            self._leave_ready(job)
            self._enter_reserved(job, client, now)
            batch.append(job)
            size += self._body_size(job)
        self._give_batch(client, batch)
        return len(batch)
