"""The broker: the one place where a job changes state.

Each transition is one method and does all of it: queues, wheel, counters, waiting clients, journal. Must never know
commands or replies as bytes, do I/O, or read a clock; `now` is an argument, in nanoseconds.

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
    delayed                   delayed     reschedule                     any client
    ready, delayed, buried    (new)       replace                        any client
    reserved                  (deleted)   delete                         the client that reserved it

Two things hold between any two calls. A tube that is not paused has ready jobs or waiting clients, never both (while
the end of a pause is served in slices, it may). And a client that waits, waits in every tube it watches.

What may concern any number of jobs (a kick, a clear, the jobs and tubes of a client that disconnects) is done in
slices: the rest is a BulkOperation, which stands in the wheel as overdue, so that `advance` goes on with it. That a
client waits, or waits no more, concerns each tube it watches: it is done at once, and its cost is added to `cost`.

Whether a delayed job is called off or becomes ready is decided once, here, when its state changes: `cancel` finds it
delayed and deletes it, or finds it in another state and changes nothing. That it is due already, but that its turn
has not come, makes no difference.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from beanstalk_server.queue.bulk import BulkClear, BulkDisconnect, BulkKick
from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import BURIED, DELAYED, DELETED, NEW, NO_EXTRAS, READY, RESERVED, URGENT, Job
from beanstalk_server.queue.journal import ALL, Journal
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.table import JobTable, KeyTable
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import TICK, Wheel

SAFETY_MARGIN: Final = 1_000_000_000
"""The last second of a job's time to run, in which its client is not made to wait (protocol: DEADLINE_SOON)."""

DONE: Final = 0
TOO_LATE: Final = 1
NOT_FOUND: Final = 2
"""What became of calling off a job, or of putting it off."""

NO_ROOM: Final = -2
"""What a clear returns that the journal has no room for."""

BATCH_BYTES: Final = 1 << 20
"""A batch of reserved jobs ends when its bodies are more than this; it has one job at the least."""

SLICE: Final = 512
"""The budget of one call: the jobs that it moves at the most. The rest follows in `advance`. About a millisecond."""

DISCONNECT_SLICE: Final = 64
"""The same for a disconnect: many clients may disconnect at one moment."""

WATCH_INDEX_THRESHOLD: Final = 32
"""A client that watches more tubes than this has an index of them."""

NEW_TUBE_COST: Final = 4
"""What it costs to make a tube; a job moved costs 1."""

LISTED: Final = 256
"""How many tubes are in one page of the list of all. A change costs the writing of a page, not of the list."""

OVERDUE: Final = 0
"""A deadline that has passed: due at the next `advance`."""

DEFAULT: Final = "default"
"""The tube that every client starts with, and that is always there."""


def _bury_sequence(job: Job) -> int:
    return job.extras.bury_sequence


class Broker:
    """All jobs, tubes and clients.

    Args:
        journal: is told of each change that must outlive the process.
        now: the present, in nanoseconds.
        tick: the precision of deadlines, in nanoseconds.
    """

    __slots__ = (
        "admits",
        "buried",
        "bury_sequence",
        "connections",
        "cost",
        "default",
        "delayed",
        "draining",
        "jobs",
        "journal",
        "last_lsn",
        "listing",
        "next_id",
        "producers",
        "ready",
        "reserved",
        "suspended",
        "timeouts",
        "total_connections",
        "total_jobs",
        "tube_list",
        "tubes",
        "urgent",
        "waiting",
        "wheel",
        "workers",
    )

    def __init__(self, journal: Journal, now: int = 0, tick: int = TICK) -> None:
        self.journal = journal
        self.wheel = Wheel(now, tick)
        self.jobs = JobTable()
        journal.live = self.jobs
        self.tubes: dict[str, Tube] = {}
        self.tube_list: list[Tube] = []  # in beanstalkd's order: the last takes the place of one that goes
        self.listing: list[bytes] = []  # their entries, in pages; empty when out of date
        self.cost = 0  # of watch lists gone through and tubes made; whoever has spent it sets it back to 0
        self.default = self._tube(DEFAULT)
        self.next_id = 1
        self.draining = False
        self.last_lsn = 0  # how many changes the journal has been told of
        self.admits = ALL  # what the journal may be told now; who comes with more has to wait
        self.suspended: list[BulkKick] = []  # what goes on when it may be told everything
        self.bury_sequence = 0  # how many jobs have ever been buried: the place of the last of them in that order
        # As in stats: how many jobs are in each state, and what has happened since the start.
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

    def connect(self) -> None:
        """A client is there. It uses and watches the default tube."""
        self.connections += 1
        self.total_connections += 1
        self.default.using += 1
        self.default.watching += 1

    def disconnect(self, client: Client, now: int) -> None:
        """A client is gone: it is given nothing more, and its jobs are ready again, in the order in which it got them.

        It leaves its tubes after that. With many of either, it takes several slices; the tubes count it until then.
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

    def set_producer(self, client: Client) -> None:
        if not client.producer:
            client.producer = True
            self.producers += 1

    def set_worker(self, client: Client) -> None:
        if not client.worker:
            client.worker = True
            self.workers += 1

    def use(self, client: Client, name: str) -> None:
        """Send the client's puts to this tube from now on."""
        tube = self._tube(name)
        tube.using += 1
        left = client.use
        client.use = tube
        left.using -= 1
        self._drop_unneeded(left)

    def watch(self, client: Client, name: str) -> None:
        """Let the client's reserves take jobs of this tube too."""
        tube = self._tube(name)
        if self._watch_position(client, tube) >= 0:
            return
        watched = client.watched
        watched.append(tube)
        tube.watching += 1
        if client.watch_index is not None:
            client.watch_index[tube] = len(watched) - 1
        elif len(watched) > WATCH_INDEX_THRESHOLD:
            client.watch_index = {watched_tube: position for position, watched_tube in enumerate(watched)}

    def _watch_position(self, client: Client, tube: Tube) -> int:
        """Where in the list of what the client watches the tube is; -1 when it is not."""
        if client.watch_index is not None:
            return client.watch_index.get(tube, -1)
        watched = client.watched
        return watched.index(tube) if tube in watched else -1

    def ignore(self, client: Client, name: str) -> bool:
        """Undo watch. False when it is the only tube that the client watches; unwatched tubes change nothing."""
        tube = self.tubes.get(name)
        watched = client.watched
        position = -1 if tube is None else self._watch_position(client, tube)
        if tube is None or position < 0:
            return True
        if len(watched) == 1:
            return False
        # As in beanstalkd, whose order list-tubes-watched shows: the last takes the place of the one that goes.
        index = client.watch_index
        last = watched.pop()
        if last is not tube:
            watched[position] = last
            if index is not None:
                index[last] = position
        if index is not None:
            del index[tube]
        tube.watching -= 1
        self._drop_unneeded(tube)
        return True

    def pause(self, name: str, duration: int, now: int) -> bool:
        """Let no job of this tube be reserved for that many nanoseconds; 0 ends a pause.

        Returns:
            False when there is no such tube.
        """
        tube = self.tubes.get(name)
        if tube is None:
            return False
        tube.pauses += 1
        tube.pause = duration
        if duration:
            self.wheel.set(tube, now + duration)
            return True
        if tube.is_linked():
            self.wheel.remove(tube)
        self._serve_waiting(tube, SLICE, now)
        return True

    def _tube(self, name: str) -> Tube:
        tube = self.tubes.get(name)
        if tube is None:
            tube = Tube(name, len(self.tube_list))
            self.tubes[name] = tube
            self.tube_list.append(tube)
            self.cost += NEW_TUBE_COST
            if tube.position % LISTED == 0:
                if self.listing:
                    self._list_page(len(self.listing) - 1)  # now, so that the first list need not write all pages
                self.listing.append(b"")
            else:
                self.listing[-1] = b""
        return tube

    def list_of_tubes(self) -> bytes:
        """The entries of all tubes, one behind the other."""
        for place, page in enumerate(self.listing):
            if not page:
                self._list_page(place)
        return b"".join(self.listing)

    def _list_page(self, place: int) -> None:
        tubes = self.tube_list[place * LISTED : (place + 1) * LISTED]
        self.listing[place] = b"".join([tube.entry for tube in tubes])
        self.cost += LISTED >> 5

    def _drop_unneeded(self, tube: Tube) -> None:
        if tube.is_needed() or tube is self.default or self.tubes.get(tube.name) is not tube:
            return
        if tube.is_linked():
            self.wheel.remove(tube)
        for ring in (tube.buried, tube.waiting):
            ring.before = ring.after = UNLINKED  # an empty ring refers to itself, and would never be freed
        del self.tubes[tube.name]
        last = self.tube_list.pop()
        if last.position % LISTED == 0:
            self.listing.pop()
        else:
            self.listing[-1] = b""
        if last is not tube:
            self.tube_list[tube.position] = last
            last.position = tube.position
            self.listing[tube.position // LISTED] = b""

    # Jobs: into the queue

    def set_admission(self, admits: int) -> None:
        """What the journal may be told from now on: ALL, DELETIONS or NONE. When it is ALL, suspended work goes on."""
        self.admits = admits
        if admits == ALL:
            for operation in self.suspended:
                self.wheel.set(operation, OVERDUE)
            self.suspended.clear()

    def take_id(self) -> int:
        """The id of a job that is about to be put. It is used up even if the put comes to nothing."""
        job_id = self.next_id
        self.next_id = job_id + 1
        return job_id

    def put(
        self,
        client: Client,
        job_id: int,
        priority: int,
        delay: int,
        ttr: int,
        body: bytes,
        created_at: int,
        now: int,
        key: str = "",
    ) -> bool:
        """Put a job into the tube that the client uses.

        Args:
            job_id: its id, from `take_id`.
            priority: 0 to 2^32-1, smallest first.
            delay: nanoseconds until it is ready; 0 means at once.
            ttr: nanoseconds that a worker has for it.
            body: any bytes.
            created_at: what its age is counted from; the command may have come before the last of its body.
            key: a name that no live job of the tube has, or "" for none.

        Returns:
            False when the journal has no room: then there is no such job.
        """
        tube = client.use
        job = Job(job_id, priority, delay, ttr, body, tube, created_at)
        job.key = key
        if not self._record_put(job, now):
            return False
        self.jobs.add(job)
        if key:
            self._set_key(tube, job)
        self.total_jobs += 1
        tube.total_jobs += 1
        self._enter(job, now)
        return True

    def replace(self, job: Job, priority: int, delay: int, ttr: int, body: bytes, now: int) -> bool:
        """Give a job that no client has another body, priority, delay and ttr, as if it had been put like that.

        Its id, key, age and counters stay; the delay counts from now.

        Returns:
            False when the journal has no room: then nothing has changed.
        """
        tube = job.tube
        fresh = job.renewed(priority, delay, ttr, body)
        if not self._record_put(fresh, now):
            return False
        self._leave(job)
        job.state = DELETED
        self.jobs.add(fresh)
        if fresh.key:
            self._set_key(tube, fresh)
        self._enter(fresh, now)
        return True

    def _set_key(self, tube: Tube, job: Job) -> None:
        if tube.keys is None:
            tube.keys = KeyTable()
        tube.keys.add(job)

    def _record_put(self, job: Job, now: int) -> bool:
        if job.delay:
            job.deadline = now + job.delay
        if not self.journal.put(job):
            return False
        self.last_lsn += 1
        return True

    def _record_change(self, job: Job) -> None:
        self.last_lsn += 1
        self.journal.change(job)

    def _record_delete(self, job: Job) -> None:
        self.last_lsn += 1
        self.journal.delete(job)

    def _record_clear(self, tube: Tube) -> bool:
        if not self.journal.clear(tube.name, [job.id for job in tube.reserved]):
            return False
        self.last_lsn += 1
        return True

    def restore(self, clock_offset: int, now: int) -> int:
        """Take in the jobs that the journal has kept, before the first client; return how many.

        What came due while nobody was there is ready at once.

        Args:
            clock_offset: wall clock less the clock of `now`, in nanoseconds.
        """
        replay = Replay(self.jobs, clock_offset)
        self.journal.restore(replay)
        buried: list[Job] = []
        for job in self.jobs.values():
            job.tube = self._tube(job.tube.name)
            job.created_at -= clock_offset
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

    # Jobs: to a worker

    def reserve(self, client: Client, now: int) -> Job | None:
        """Reserve the ready job with the smallest (priority, id) of the tubes that the client watches."""
        best: Job | None = None
        for tube in client.watched:
            jobs = tube.ready.jobs
            if not jobs or tube.pause:
                continue
            if tube.waiting_count:  # its pause has ended, and is being served in slices: those that wait come first
                self._serve_waiting(tube, SLICE, now)
                if not jobs or tube.waiting_count:
                    continue
            job = jobs[0]
            if best is None or job.priority < best.priority or (job.priority == best.priority and job.id < best.id):
                best = job
        if best is not None:
            self._leave_ready(best)
            self._enter_reserved(best, client, now)
        return best

    def reserve_batch(self, client: Client, limit: int, now: int) -> list[Job]:
        """Reserve up to so many jobs, best first, as many calls of `reserve` would; SLICE jobs at the most.

        Fewer than are ready, when the bodies of those before are more than BATCH_BYTES, or when the client watches so
        many tubes that looking at all of them for each job takes long.
        """
        jobs: list[Job] = []
        size = 0
        most = min(limit, SLICE // (1 + (len(client.watched) >> 5)) or 1)
        while len(jobs) < most and size <= BATCH_BYTES:
            job = self.reserve(client, now)
            if job is None:
                break
            jobs.append(job)
            size += len(job.body)
        return jobs

    def wait(self, client: Client, until: int, batch: int = 0) -> None:
        """Answer the client with the next job of the tubes it watches.

        None is ready now: ask `reserve` first. No job of the client may be in its safety margin: it would not be told.

        Args:
            until: when to answer `on_timed_out` instead, in nanoseconds; 0 means never.
            batch: answer with all jobs there are then, so many at the most; 0 means with one, and not as a batch.
        """
        client.waiting = True
        client.batch = batch
        self.waiting += 1
        self.cost += len(client.watched) >> 2
        waits = client.waits
        while len(waits) < len(client.watched):
            waits.append(Wait(client))
        for place, tube in enumerate(client.watched):
            tube.waiting.append(waits[place])
            tube.waiting_count += 1
        if until:
            self.wheel.set(client, until)

    def stop_waiting(self, client: Client) -> bool:
        """Owe the client no answer any more. False when it was not waiting."""
        if not client.waiting:
            return False
        self._end_wait(client)
        self.cost += len(client.watched) >> 2
        for place, tube in enumerate(client.watched):
            client.waits[place].unlink()
            tube.waiting_count -= 1
        return True

    def _end_wait(self, client: Client) -> None:
        """Owe it no answer; it still has to leave the tubes that it waited in."""
        client.waiting = False
        self.waiting -= 1
        if client.is_linked():
            self.wheel.remove(client)

    def reserve_job(self, client: Client, job_id: int, now: int) -> Job | None:
        """Reserve one job, ready, delayed or buried. None when there is none, or a client has it."""
        job = self.find(job_id)
        if job is None or job.state == RESERVED:
            return None
        was_ready = job.state == READY
        self._leave(job)
        self._enter_reserved(job, client, now)
        if not was_ready:
            self._record_change(job)  # it is not delayed or buried any more, also after a restart
        return job

    # Jobs: what a worker does with them

    def delete(self, client: Client, job_id: int) -> bool:
        """Delete a job. False when there is none, or another client has it."""
        job = self.find(job_id)
        if job is None or (job.state == RESERVED and job.client is not client):
            return False
        job.tube.deletes += 1
        self._delete(job)
        return True

    def _delete(self, job: Job) -> None:
        self._record_delete(job)
        self._leave(job)
        self._forget(job)
        tube = job.tube
        if not tube.using and not tube.watching:
            self._drop_unneeded(tube)

    def _forget(self, job: Job) -> None:
        """It is in no queue any more: let its id and its key go too."""
        job.state = DELETED
        self.jobs.remove(job.id)
        if job.key:
            keys = job.tube.keys
            assert keys is not None, "a job with a key is in its tube's keys"
            keys.remove(job)

    def release(self, client: Client, job_id: int, priority: int, delay: int, now: int) -> bool:
        """Make a reserved job ready, or delayed, with a new priority. False when the client does not have it."""
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return False
        self._leave_reserved(job)
        job.priority = priority
        job.delay = delay
        job.own_extras().releases += 1
        self._enter(job, now)
        self._record_change(job)
        return True

    def bury(self, client: Client, job_id: int, priority: int) -> bool:
        """Put a reserved job aside until it is kicked. False when the client does not have it."""
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return False
        self._leave_reserved(job)
        job.priority = priority
        job.own_extras().buries += 1
        self.bury_sequence += 1
        self._enter_buried(job, self.bury_sequence)
        self._record_change(job)
        return True

    def touch(self, client: Client, job_id: int, now: int) -> bool:
        """Give a reserved job its whole time to run again. False when the client does not have it."""
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return False
        if job.in_safety_margin:
            job.in_safety_margin = False
            client.jobs_in_safety_margin -= 1
        self._set_time_to_run(job, client, now)
        return True

    # Jobs: kicked

    def kick(self, client: Client, bound: int, now: int) -> int:
        """Make buried jobs of the used tube ready, first buried first; if none is buried, delayed ones, soonest first.

        Returns:
            How many it was; -1 when there are more to kick than one slice: then `client.busy` is set, and `on_kicked`
            follows.
        """
        operation = BulkKick(client, client.use, bound)
        if self._kick(operation, SLICE, now):
            return operation.count
        client.busy = True
        return -1

    def kick_job(self, job_id: int, now: int) -> bool:
        """Make one buried or delayed job ready. False when there is no such job."""
        job = self.find(job_id)
        if job is None or (job.state != BURIED and job.state != DELAYED):
            return False
        self._kick_job(job, now)
        return True

    def _kick(self, operation: BulkKick, budget: int, now: int) -> bool:
        """Kick as many jobs as the budget is; whether that was all."""
        tube = operation.tube
        while operation.left:
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
            operation.left -= 1
            operation.count += 1
            budget -= 1
        return True

    def _kick_job(self, job: Job, now: int) -> None:
        self._leave(job)
        job.own_extras().kicks += 1
        self._enter_ready(job, now)
        self._record_change(job)

    # Jobs: called off, and put off

    def cancel(self, job: Job | None) -> int:
        """Delete a job that is still delayed: then nobody ever receives it.

        Returns:
            DONE; TOO_LATE when it is in another state, and nothing has changed; NOT_FOUND.
        """
        if job is None:
            return NOT_FOUND
        if job.state != DELAYED:
            return TOO_LATE
        self._delete(job)
        return DONE

    def reschedule(self, job: Job | None, delay: int, now: int) -> int:
        """Give a job that is still delayed another delay, counted from now; 0 makes it ready.

        Returns:
            DONE; TOO_LATE when it is in another state, and nothing has changed; NOT_FOUND.
        """
        if job is None:
            return NOT_FOUND
        if job.state != DELAYED:
            return TOO_LATE
        self._leave(job)
        job.delay = delay
        self._enter(job, now)
        self._record_change(job)
        return DONE

    def clear(self, client: Client, tube: Tube) -> int:
        """Delete all jobs of a tube that no client has, as they are now: nobody gets one of them after this.

        Returns:
            How many it was; -1 when they are more than one slice: then `client.busy` is set, and `on_cleared` follows
            when the last has been forgotten; NO_ROOM when the journal has none: then nothing has changed.
        """
        if not (tube.ready.jobs or tube.delayed.jobs or tube.buried_count):
            return 0
        if not self._record_clear(tube):
            return NO_ROOM
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
            self.wheel.set(operation, OVERDUE)  # its jobs are in no queue, and must not stay
            raise
        finally:
            self._drop_unneeded(tube)
        if done:
            return operation.count
        client.busy = operation.owes = True
        return -1

    def _clear(self, operation: BulkClear, budget: int) -> bool:
        """Forget as many jobs as the budget is; whether that was all."""
        while budget:
            budget -= 1
            if operation.ready:
                job = operation.ready.pop()
            elif operation.delayed:
                job = operation.delayed.pop()
                if job.is_linked():  # else it came due meanwhile
                    self.wheel.remove(job)
            elif not operation.buried.is_empty():
                link = operation.buried.after
                assert isinstance(link, Job)
                job = link
                job.unlink()
            else:
                operation.buried.before = operation.buried.after = UNLINKED  # as in _drop_unneeded
                operation.tube.clearing -= 1
                return True
            self._forget(job)
            self.journal.forget(job)
        self.wheel.set(operation, OVERDUE)
        return False

    # Jobs: looked at

    def find(self, job_id: int) -> Job | None:
        """The job with this id, in any state."""
        job = self.jobs.get(job_id)
        if job is not None and job.tube.is_cleared(job):
            return None
        return job

    def find_keyed(self, tube: Tube, key: str) -> Job | None:
        """The job of this tube that has the key, in any state."""
        keys = tube.keys
        if keys is None:
            return None
        job = keys.get(key)
        if job is not None and tube.is_cleared(job):
            return None
        return job

    def first_ready(self, tube: Tube) -> Job | None:
        return tube.ready.jobs[0] if tube.ready.jobs else None

    def first_delayed(self, tube: Tube) -> Job | None:
        return tube.delayed.jobs[0] if tube.delayed.jobs else None

    def first_buried(self, tube: Tube) -> Job | None:
        job = tube.buried.after
        return job if isinstance(job, Job) else None

    def time_left(self, job: Job, now: int) -> int:
        """Nanoseconds until time makes a reserved or delayed job ready; 0 in the other states."""
        if job.state == DELAYED:
            return job.deadline - now
        if job.state == RESERVED:
            return job.deadline - now + (0 if job.in_safety_margin else SAFETY_MARGIN)
        return 0

    # Time

    def advance(self, now: int, budget: int = SLICE) -> None:
        """Do what is due by now, in the order in which it came due.

        Args:
            budget: how many timers to handle at the most, so that nobody is kept waiting. When `next_event()` is
                not after now, there is more to do at once.
        """
        wheel = self.wheel
        # What is due gets half of the budget at least, however much is far away and has to cascade.
        budget = max(wheel.advance(now, budget), budget >> 1, 1)
        due = wheel.due
        while budget and due.after is not due:
            budget -= 1
            self.cost = 0
            timer = due.after
            timer.unlink()
            if isinstance(timer, Job):
                self._on_job_due(timer, now)
                # A large body may have had to be copied for a client.
                budget = max(budget - (len(timer.body) >> 12) - self.cost, 0)
            elif isinstance(timer, Client):
                self.stop_waiting(timer)
                timer.on_timed_out()
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
        """When to call `advance`, in nanoseconds: in the past when there is more to do at once."""
        due = self.wheel.due
        return 0 if due.after is not due else self.wheel.next_event

    def _continue_kick(self, operation: BulkKick, budget: int, now: int) -> None:
        client = operation.client
        try:
            done = self._kick(operation, budget, now)
        except Exception:
            client.busy = False
            client.on_failed()
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
            if operation.owes:
                client.busy = operation.owes = False
                client.on_failed()
            raise
        if done and operation.owes:
            client.busy = operation.owes = False
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
        assert client is not None, "a job that is due is delayed or reserved"
        if not job.in_safety_margin:
            job.in_safety_margin = True
            client.jobs_in_safety_margin += 1
            self.wheel.set(job, job.deadline + SAFETY_MARGIN)
            if self.stop_waiting(client):
                client.on_deadline_soon()
            return
        job.own_extras().timeouts += 1
        self.timeouts += 1
        self._leave_reserved(job)
        self._enter_ready(job, now)

    def _continue_disconnect(self, operation: BulkDisconnect, budget: int, now: int) -> None:
        """Make jobs of a client that is gone ready, then leave tubes, as many of both as the budget is."""
        client = operation.client
        for job in list(islice(client.reserved.values(), budget)):
            if budget <= self.cost:
                break
            self._leave_reserved(job)
            self._enter_ready(job, now)
            budget -= 1
        watched = client.watched
        waits = client.waits
        while watched and not client.reserved and budget > self.cost:
            # In beanstalkd's order, which list-tubes shows: the last takes the place of one that goes.
            tube = watched[0]
            last = watched.pop()
            if watched:
                watched[0] = last
            if operation.waited:
                wait = waits[0]
                waits[0] = waits[len(watched)]
                waits.pop()
                if wait.is_linked():  # else its turn came meanwhile
                    wait.unlink()
                    tube.waiting_count -= 1
            if client.watch_index is not None:
                del client.watch_index[tube]  # here, because to let go of all at the end would take long
            tube.watching -= 1
            self._drop_unneeded(tube)
            budget -= 1
        if watched:
            self.wheel.set(operation, OVERDUE)
            return
        waits.clear()  # they refer to the client, as it does to them
        client.use.using -= 1
        self._drop_unneeded(client.use)

    # A job enters and leaves a state; whatever counts or orders the jobs of that state is done here

    def _enter(self, job: Job, now: int) -> None:
        """Be delayed by its delay from now on, or ready if it has none."""
        if job.delay:
            self._enter_delayed(job, now + job.delay)
        else:
            self._enter_ready(job, now)

    def _enter_ready(self, job: Job, now: int) -> None:
        job.state = READY
        tube = job.tube
        tube.ready.push(job, job.priority)
        self.ready += 1
        if job.priority < URGENT:
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
        client.reserved[job.id] = job
        self._set_time_to_run(job, client, now)

    def _set_time_to_run(self, job: Job, client: Client, now: int) -> None:
        if job.ttr > SAFETY_MARGIN:
            self.wheel.set(job, now + job.ttr - SAFETY_MARGIN)
        else:
            job.in_safety_margin = True
            client.jobs_in_safety_margin += 1
            self.wheel.set(job, now + job.ttr)

    def _leave_reserved(self, job: Job) -> None:
        client = job.client
        assert client is not None, "a reserved job has a client"
        if job.in_safety_margin:
            job.in_safety_margin = False
            client.jobs_in_safety_margin -= 1
        job.client = None
        del client.reserved[job.id]
        job.tube.remove_reserved(job)
        self.reserved -= 1
        if job.is_linked():
            self.wheel.remove(job)

    def _leave(self, job: Job) -> None:
        """Leave whatever state it is in."""
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
        """Give the best ready jobs of a tube to the clients that have waited longest; return the budget left."""
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
            budget = max(budget - 1 - (len(client.watched) >> 2), 0)
            self.stop_waiting(client)
            if client.batch:
                budget = max(budget - self._serve_batch(tube, client, now), 0)
                continue
            job = jobs[0]
            self._leave_ready(job)
            self._enter_reserved(job, client, now)
            client.on_reserved(job)
        return budget

    def _serve_batch(self, tube: Tube, client: Client, now: int) -> int:
        """Give a client that waited for a batch what this tube has; return how many jobs.

        It does not look at the other tubes that the client watches: they had nothing for it, and if another pause ends
        at the same moment, their jobs go to whoever waits for them then.
        """
        jobs = tube.ready.jobs
        batch: list[Job] = []
        size = 0
        while jobs and len(batch) < client.batch and len(batch) < SLICE and size <= BATCH_BYTES:
            job = jobs[0]
            self._leave_ready(job)
            self._enter_reserved(job, client, now)
            batch.append(job)
            size += len(job.body)
        client.on_reserved_batch(batch)
        return len(batch)

    def check(self) -> None:
        """Verify every invariant there is, at a moment when no call is under way."""
        self.wheel.check()
        assert self.tube_list == list(self.tubes.values()) or set(self.tube_list) == set(self.tubes.values())
        self._check_extras()
        counts = [0] * (DELETED + 1)
        urgent = 0
        clients: dict[Client, int] = {}
        self.jobs.check()
        for job in self.jobs.values():
            job_id = job.id
            assert job_id < self.next_id
            if job.tube.is_cleared(job):
                continue
            counts[job.state] += 1
            assert self.tubes[job.tube.name] is job.tube
            assert not job.key or self.find_keyed(job.tube, job.key) is job
            assert (job.client is not None) == (job.state == RESERVED)
            assert job.is_linked() == (job.state != READY), f"job {job_id} is {job.state} and in the wrong queue"
            assert job.in_safety_margin <= (job.state == RESERVED)
            if job.client is not None:
                assert job.client.reserved[job_id] is job
                clients[job.client] = clients.get(job.client, 0) + job.in_safety_margin
            if job.state == READY and job.priority < URGENT:
                urgent += 1
        for client, count in clients.items():
            assert client.jobs_in_safety_margin == count
            assert not (client.waiting and client.jobs_in_safety_margin), (
                "a client waits beside a job in its safety margin"
            )
        assert counts[NEW] == counts[DELETED] == 0
        assert [self.ready, self.reserved, self.buried, self.delayed] == counts[READY:DELETED]
        assert self.urgent == urgent
        self._check_tubes()

    def _check_extras(self) -> None:
        shared = NO_EXTRAS
        counters = (shared.timeouts, shared.releases, shared.buries, shared.kicks, shared.bury_sequence, shared.clears)
        assert not any(counters), "a job has written to what it has not got"

    def _check_tubes(self) -> None:
        cost = self.cost
        assert self.list_of_tubes() == b"".join([tube.entry for tube in self.tube_list])
        assert all(self.listing)
        self.cost = cost
        totals = [0, 0, 0, 0, 0]
        waiting: set[Client] = set()
        for position, tube in enumerate(self.tube_list):
            assert tube.position == position
            assert tube is self.default or tube.is_needed(), f"tube {tube.name} is not needed"
            self._check_heap(tube.ready, READY, tube)
            self._check_heap(tube.delayed, DELAYED, tube)
            for index, job in enumerate(tube.reserved):
                assert job.state == RESERVED and job.tube is tube and job.heap_index == index
            assert tube.buried.check() == tube.buried_count
            assert tube.urgent == sum(job.priority < URGENT for job in tube.ready.jobs)
            assert not (tube.ready.jobs and tube.waiting_count) or (
                tube.is_linked() and (tube.pause or tube.deadline == OVERDUE)
            ), f"tube {tube.name} keeps clients waiting for its ready jobs"
            assert not tube.pause or tube.is_linked(), "nobody will end a pause"
            if tube.keys is not None:
                tube.keys.check()
                for job in tube.keys.values():
                    assert self.jobs[job.id] is job
            assert tube.waiting.check() == tube.waiting_count
            for client in self._waiting_in(tube):
                assert client.waiting is not client.leaving
                assert tube in client.watched
                if client.waiting:
                    waiting.add(client)
            found = (len(tube.ready.jobs), len(tube.delayed.jobs), tube.buried_count, len(tube.reserved), tube.urgent)
            totals = [total + part for total, part in zip(totals, found, strict=True)]
        assert totals == [self.ready, self.delayed, self.buried, self.reserved, self.urgent]
        assert self.waiting == len(waiting)
        for client in waiting:
            assert all(client in self._waiting_in(tube) for tube in client.watched)

    def _waiting_in(self, tube: Tube) -> list[Client]:
        """The clients in a tube's waiting list, in their order."""
        found: list[Client] = []
        wait = tube.waiting.after
        while isinstance(wait, Wait):
            found.append(wait.client)
            wait = wait.after
        return found

    def _check_heap(self, heap: JobHeap, state: int, tube: Tube) -> None:
        heap.check()
        for job in heap.jobs:
            assert job.state == state and job.tube is tube and self.jobs[job.id] is job
            assert job.sort_key == (job.priority if state == READY else job.deadline)
