"""The broker: moves jobs from state to state, as clients ask for it and as time passes.

Each transition is one function, which updates everything that the transition touches: queues, wheel, counters, waiting
clients and journal. What enters and leaves a state is in transitions.py, what concerns any number of jobs in bulk.py;
the commands are here, as methods that take ids and names. Must never see a command or a reply as bytes, do I/O, or read
a clock: `now` is an argument, in nanoseconds.

A command returns an Outcome. Before it returns DONE, it has passed what it found or counted to the client
(`on_reserved`, `on_found`, `on_counted`, …). PENDING means that the answer comes later, by the same method or by
`on_outcome`; until then, the client gives no other command. Lists and statistics are returned at once.

    from                      to          by                             who
    ------------------------  ----------  -----------------------------  -----------------------------------------
    (new)                     ready       put without delay              any client
    (new)                     delayed     put with delay                 any client
    (new)                     delayed     put with a moment to come      any client
    delayed                   ready       the end of its delay           time
    delayed                   ready       its moment of the wall clock   time
    (new)                     delayed     put after a group that is open any client
    delayed                   ready       the end of that group [3]      who or what ends its last member
    ready                     reserved    reserve, or a waiting client   any client that watches its tube
    ready, delayed, buried    reserved    reserve_job                    any client
    reserved                  ready       release without delay [1]      the client that reserved it
    reserved                  delayed     release with delay [1]         the client that reserved it
    reserved                  buried      bury                           the client that reserved it
    reserved                  reserved    touch, save                    the client that reserved it
    reserved                  reserved    replace that says again [4]    any client
    reserved [4]              ready       any end of its reservation     the client that reserved it, or time
    reserved [4]              delayed     the same, if it has a delay    the client that reserved it, or time
    reserved                  ready       the end of its time to run [1] time
    reserved                  ready       disconnect [1]                 the client that reserved it
    reserved                  ready       unreserve (give-back)          the client that reserved it
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
    ready, delayed, buried    the same    reprioritize                   any client
    ready, delayed, buried    delayed     replace with delay             any client
    ready, delayed, buried    ready       replace without delay          any client
    reserved                  (deleted)   delete                         the client that reserved it
    ready                     (deleted)   the end of its time to live    time

A key may stay taken when its job has been deleted, by delete or by time: it is *held*. What is left of the job is in no
queue, and no command but a put with its key meets it.

    (deleted)                 held        as its policy or terms say     the same
    (new)                     held        put with a token: that is held any client
    held                      (gone)      the end of that time           time
    held                      (gone)      clear                          any client

    [1] unless failures of the job are counted, by its tube's policy or its own terms
    [2] a release, the end of its time to run, or a disconnect, of a job whose failures are counted
    [3] or delayed, if it has a delay, which begins then
    [4] it was replaced while it was reserved, and is put when its reservation ends

Several brokers may share the tubes and jobs of one queue (docs/cluster.md): each gives other ids, by its `stride` and
`offset`, and knows nothing of the others. For clients that are served by several of them there are `probe` and
`unreserve`, clients that no statistics count, and clients that wait although they watch no tube here.

Two invariants hold between calls. A tube that is not blocked has ready jobs or waiting clients, never both; the only
exception is a tube that was blocked and whose waiting clients are still being served in slices. And a waiting client
waits in every tube that it watches. A tube is blocked while it is paused, or throttled by its policy
(`queue/throttle.py`): reserve finds none of its jobs then; reserve_job does.

A change is recorded in the journal before the transition or after it, never in the middle, because the journal may
rewrite any live job while it records a change. What creates or deletes jobs or changes a body (put, replace, save,
clear, delete), and a pause, is recorded before: the journal may refuse it, and a job must still exist when its deletion
is recorded. What changes a job's state or priority (release, bury, kick, redrive, move, reschedule, reprioritize, a
counted failure, the end of the reservation of a replaced job, and reserve_job of a job that was not ready) is recorded
after: the record holds the new state, and the tube. A deletion whose key is held is recorded before, as a hold.

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
once more when its time comes: none is early by what was told last. A job that has left this state, for any reason,
has no such moment any more: it stays as it is when the wall clock goes back.

The body of a job may be where the journal keeps it (NOT_IN_MEMORY). Nothing here reads a body; a client that is to get
one gets it by a BodyRead, when the journal has fetched it. Its command is PENDING until then, and everything else that
the command does has been done: the job is reserved, and its time to run has begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from beanstalk_server.queue import bulk, recording, transitions
from beanstalk_server.queue.client import Client, Wait
from beanstalk_server.queue.costs import PAGE_COST, SEARCH_SHIFT, WAIT_SHIFT
from beanstalk_server.queue.groups import GroupSearch
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.job import (
    BURIED,
    DELAYED,
    DELETED,
    NEVER,
    NO_EXTRAS,
    NOT_IN_MEMORY,
    READY,
    RELEASED,
    RESERVED,
    SINCE_UNKNOWN,
    TOKEN_MARK,
    Job,
    Terms,
    Token,
)
from beanstalk_server.queue.job_search import JobSearch
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE, Journal
from beanstalk_server.queue.membership import must_wait, pass_on_group, record_labelled
from beanstalk_server.queue.memory import PLAIN_COST
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.oldest import OldestSearch
from beanstalk_server.queue.outcome import (
    AGAIN,
    DEADLINE_SOON,
    DONE,
    DRAINING,
    EXISTS,
    NOT_FOUND,
    NOT_IGNORED,
    OUT_OF_MEMORY,
    PENDING,
    REPLACED,
    TIMED_OUT,
    TOO_LATE,
    Outcome,
)
from beanstalk_server.queue.policy import NO_POLICY, Attributes, PolicyOf, no_policies
from beanstalk_server.queue.restore import restore
from beanstalk_server.queue.state import SLICE, QueueState
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics
from beanstalk_server.queue.timers import go_off
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.units import FOREVER
from beanstalk_server.queue.weights import Weights
from beanstalk_server.queue.wheel import OVERDUE, TICK, Timer

MOST_WATCHED: Final = 16384
"""The most tubes that a client watches: 25 MB if no other client needs them, and it waits."""

MOST_WATCHES: Final = 131_072
"""The most that all clients watch, each beyond its free ones: 200 MB."""

FEW_TUBES: Final = 64
"""What a client watches at most for `has_nothing` to look: that costs no more than a simple command."""

DISCONNECT_SLICE: Final = 64
"""The budget of a disconnect: smaller, because many clients may disconnect at the same moment."""

NOWHERE: Final = Tube("", 0)
"""The tube of jobs that the broker has dropped."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Broker(QueueState):
    """The queue: all jobs, tubes and clients, in memory.

    Args:
        journal: records each change that must outlive the process.
        now: the present, in nanoseconds.
        tick: the precision of deadlines, in nanoseconds.
        max_memory: bytes that jobs may take; a put beyond it is refused. 0 for no limit.
        stride, offset: the ids that it gives are `offset` more than the multiples of `stride`, from `stride` on.
        policy_of: finds what a tube demands of its jobs. Asked when the tube is made; `change_policies` changes it.
    """

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
        super().__init__(journal, now, tick, max_memory, stride, offset, policy_of)
        self.review: bulk.BulkReview | None = None  # that of the last change of policies

    # Clients and tubes

    def connect(self, client: Client, counted: bool = True) -> None:
        """Take in a client. It uses and watches the default tube.

        Args:
            counted: whether the statistics of the queue count it among its connections. They count it among producers,
                workers and waiting clients in any case, and so do tubes.
        """
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
        """Count the client from now on, or do not: as a connection that has existed all the time."""
        if client.counted != counted:
            client.counted = counted
            self.connections += 1 if counted else -1

    def disconnect(self, client: Client, now: int, has_left: bool = True) -> None:
        """Let a client go: it gets no more answers, and its jobs become ready, in the order it reserved them.

        Its jobs become ready first, then it leaves its tubes. Many jobs or tubes take several slices; until the last
        slice, tubes may still count the client.

        Args:
            has_left: it has gone by itself, and so its jobs have failed.
        """
        operation = bulk.BulkDisconnect(client, has_left)
        client.leaving = True
        if client.waiting:
            transitions.end_wait(self, client)
        self.set_counted(client, False)
        self.producers -= client.producer
        self.workers -= client.worker
        self.cost = 0
        operation.step(self, DISCONNECT_SLICE, now)

    def unuse(self, client: Client) -> None:
        """Undo `use`: what the client uses is elsewhere. Nothing counts it as a user of a tube until its next `use`; a
        put of it would go to the default tube."""
        transitions.unuse(self, client)

    def stop_waiting(self, client: Client) -> bool:
        """End the wait of the client's reserve without an answer. False if it was not waiting."""
        return transitions.stop_waiting(self, client)

    def begin_put(self, client: Client) -> None:
        """Count the client as a producer: it has begun a put."""
        if not client.producer:
            client.producer = True
            self.producers += 1

    def take_id(self) -> int:
        """An id for a job that is about to be put. It is used up even if the put fails."""
        job_id = self.next_id
        self.next_id = job_id + self.stride
        return job_id

    def _begin_reserve(self, client: Client) -> None:
        if not client.worker:
            client.worker = True
            self.workers += 1

    def use(self, client: Client, name: str) -> Outcome:
        """Let the client put jobs into this tube from now on."""
        tube = self.tube(name)
        tube.using += 1
        transitions.unuse(self, client)
        client.use = tube
        client.uses = True
        return DONE

    def watch(self, client: Client, name: str, bounded: bool = True, weight: int = 0) -> Outcome:
        """Let the client reserve jobs of this tube too.

        Args:
            bounded: OUT_OF_MEMORY if it, or all clients, watch too many already.
            weight: its weight for this client from now on; 0: that which it has.
        """
        tube = self.tubes.get(name)
        if tube is not None and client.watch_position(tube) >= 0:
            if weight:
                self._weights(client).set_weight(tube, weight)
            return DONE
        count = len(client.watched)
        if count >= transitions.FREE_WATCHES:
            if bounded and (count >= MOST_WATCHED or self.watches >= MOST_WATCHES):
                return OUT_OF_MEMORY
            self.watches += 1
        tube = self.tube(name)
        client.add_watched(tube)
        tube.watching += 1
        if weight:
            self._weights(client).set_weight(tube, weight)
        return DONE

    def _weights(self, client: Client) -> Weights:
        weights = client.weights
        if weights is None:
            weights = client.weights = Weights()
        return weights

    def name_client(self, client: Client, name: str) -> None:
        """Set the name of a client. From now on, the moments of its reservations are kept, too."""
        client.client_name = name
        if client.reserved_at is None:
            client.reserved_at = {}

    def set_mode(self, client: Client, mode: int) -> None:
        """Say how the client's tubes are served, as weights.py has it: PRIORITY, WEIGHTED or FAIR."""
        if client.weights is not None or mode:
            self._weights(client).set_mode(mode)

    def ignore(self, client: Client, name: str) -> Outcome:
        """Undo `watch`. DONE also if the client does not watch the tube; NOT_IGNORED if it watches no other."""
        tube = self.tubes.get(name)
        position = -1 if tube is None else client.watch_position(tube)
        if tube is None or position < 0:
            return DONE
        if len(client.watched) == 1:
            return NOT_IGNORED
        transitions.leave_tube(self, client, tube, position)
        return DONE

    def unwatch(self, client: Client, name: str) -> None:
        """Undo `watch`, even if the client watches no other tube. It must not be waiting."""
        tube = self.tubes.get(name)
        if tube is not None:
            position = client.watch_position(tube)
            if position >= 0:
                transitions.leave_tube(self, client, tube, position)

    def pause(self, client: Client, name: str, duration: int, now: int) -> Outcome:
        """Reserve no job of this tube for this duration; 0 ends the pause. NOT_FOUND if there is no such tube.

        If the pause is recorded, the tube exists until it ends. OUT_OF_MEMORY if there is no room for the record.
        """
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        if self.records and not recording.record_pause(self, tube, now + duration if duration else 0, now):
            return OUT_OF_MEMORY
        tube.pauses += 1
        tube.pause = duration
        tube.set_blocked()
        if duration:
            self.wheel.set(tube, now + duration)
            return DONE
        if tube.is_linked():
            self.wheel.remove(tube)
        transitions.serve_waiting(self, tube, SLICE, now)
        self.drop_unneeded(tube)
        return DONE

    def change_policies(self, policy_of: PolicyOf, now: int) -> None:
        """Let tubes demand something else of their jobs from now on.

        New tubes do so at once; those that exist, and the jobs in them, in slices, which `advance` goes on with.
        """
        self.policy_of = policy_of
        review = bulk.BulkReview(len(self.tubes))
        old = self.review
        if old is not None and not old.is_complete:
            review.concerns_jobs = old.concerns_jobs  # it may not have come to them
            self.wheel.remove(old)
        self.review = review
        review.step(self, SLICE, now)

    def list_tubes(self) -> list[bytes]:
        """A line for each tube, as list-tubes has it ("- " and the name), in beanstalkd's order; many on each page."""
        self.cost += self.tubes.write_pages() * PAGE_COST
        return self.tubes.pages()

    def find_jobs(
        self, name: str, state: int, position: list[int], count: int, before: JobSearch | None = None
    ) -> JobSearch | None:
        """Begin to look for the jobs of a tube in a state, at most this many, that follow a position in their order.

        None if there is no such tube.

        Args:
            state: READY, DELAYED, RESERVED or BURIED.
            position: that at the end of the page before (`JobSearch.next_position`); [] for the beginning.
            before: the same client's search before, which may have found this page already.
        """
        tube = self.tubes.get(name)
        return None if tube is None else JobSearch(self.jobs, tube, state, position, count, self.wall.offset, before)

    def tube_names(self, first: str, count: int) -> list[str]:
        """The names of tubes, at most this many, in the order of names, from the first that is `first` or follows
        it.
        """
        return self.tubes.names_from(first, count)

    def drain(self) -> None:
        """Take no new jobs from now on."""
        self.draining = True

    def undrain(self) -> None:
        """Undo `drain`."""
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
            tube.ready.dissolve()
            tube.ready = JobHeap()
            tube.delayed = JobHeap()
            if tube.throttle is not None:
                tube.throttle.detach()
            self.wall.take(tube)
            tube.reserved = []
            tube.held = []
            tube.pause_record = None
            tube.letters = None
            while tube.keys is not None and tube.keys.pop_page():
                yield
        self.limits.clear()
        while jobs := self.jobs.pop_page():
            for job in jobs:
                job.detach(NOWHERE)
            yield
        self.groups.detach()
        while self.groups.by_id.pop_page():
            yield
        while holders := self.groups.by_name.take_page():
            for group in holders:
                group.detach(NOWHERE)
            yield
        while keys := self.held.pop_page():
            for held in keys:
                held.detach(NOWHERE)
            yield

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
        next_id = max(self.next_id, restore(self, clock_offset, now) + 1, self.journal.next_id())
        self.next_id = next_id + (self.offset - next_id) % self.stride
        return len(self.jobs)

    def put(
        self, client: Client, job_id: int, priority: int, delay: int, ttr: int, body: bytes, created_at: int, now: int
    ) -> Outcome:
        """Put a job into the used tube. With DRAINING or OUT_OF_MEMORY, the job is refused.

        Args:
            job_id: from `take_id`.
            priority: 0 to 2^32-1, the smallest first.
            delay: how long until it is ready; 0 means at once.
            ttr: how long a worker may have it.
            body: any bytes.
            created_at: when the command came, before its body: the job's age counts from then.
        """
        job = Job(job_id, priority, delay, ttr, body, client.use, created_at)
        return self._put(client.use, job, len(body), delay, now)

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
        """Put a job of which the producer demands something special, with or without a key, as `put` does.

        EXISTS if a job of the used tube has the key already. If the put `replaces`, that job takes what is new instead,
        and keeps its id, key, age and counters: REPLACED, or TOO_LATE if a client has reserved it. With `again`, a
        reserved job is replaced, too: AGAIN. It stays reserved, and is put when its reservation ends in any way. Its
        age counts from this put, and its new time to run applies from its next reservation on. `on_keyed` gives the id
        of the job in any case; with a key, of the one that has the key afterwards. TOO_BIG if the body is larger than
        the tube takes. If it comes after a group that is open, its delay begins when that ends.

        If it takes a token (`once`) that is taken, EXISTS comes before anything else, with the id of the job that was
        put with it. It is taken if the put changes something, and stays taken also if the job is gone.
        """
        key = attributes.key
        tube = client.use
        token: Token | None = None
        if attributes.once:
            name = TOKEN_MARK + attributes.once
            taken = self.holder(tube, name)
            if isinstance(taken, Token):
                client.on_keyed(taken.job_id)
                return EXISTS
            token = Token(0, name, tube, now, 0)
            token.deadline = now + attributes.once_ttl
        old = self.holder(tube, key) if key else None
        if old is None:
            job_id = self.take_id()
            client.on_keyed(job_id)
            delay = attributes.limit_delay(delay, created_at, now)
            job = Job(job_id, priority, delay, ttr, body, tube, created_at)
            job.key = key
        else:
            client.on_keyed(old.id)
            if not attributes.replaces:
                return EXISTS
            if not isinstance(old, Job) or (old.client is not None and not attributes.again):
                return TOO_LATE
            first = old.created_at if old.client is None else created_at
            delay = attributes.limit_delay(delay, first, now)
            job = old.renewed(priority, delay, ttr, body, first)
        share = tube.policy.share_of(key)
        if attributes.ask_for_terms():
            terms = job.own_terms()
            terms.take(attributes)
            if terms.at:
                at = now + self.wall.offset
                delay = attributes.limit_delay(max(terms.at - at, 0), job.created_at, now)
                terms.at = min(terms.at, at + delay) if delay else 0
            labels = attributes.labels
            if labels is not None and labels.after and must_wait(self, labels):
                job.deadline = NEVER
        if share and not job.own_labels().share:
            job.own_labels().share = share
        extras = job.extras
        if token is not None:
            if not self.memory.admits_held(token):
                return OUT_OF_MEMORY
            self.memory.add_held(token)  # here, so that there is room for both
            self.once = token
            job.own_extras()  # so that `_put` goes by `record_put`, which takes the token
        try:
            outcome = (
                self._put(tube, job, len(body), delay, now) if old is None else self._replace(old, job, delay, now)
            )
        finally:
            if token is not None:
                self.once = None
                self.memory.remove_held(token)
                if extras is NO_EXTRAS and not isinstance(job.extras, Terms):
                    job.extras = NO_EXTRAS
        labels = job.labels()
        if labels is not None and labels.joined is not None and len(labels.joined.members) == 1:
            labels.joined.owner = self.groups.owner(client.owner)
        return outcome

    def put_batch(
        self,
        client: Client,
        priority: int,
        delay: int,
        ttr: int,
        bodies: list[bytes],
        created_at: int,
        now: int,
    ) -> Outcome:
        """Put jobs into the used tube, as `put` does, all or none: `on_put_batch` gives their ids.

        DRAINING, OUT_OF_MEMORY or TOO_BIG if any of them is refused.
        """
        if self.draining:
            return DRAINING
        tube = client.use
        count = len(bodies)
        sizes = [len(body) for body in bodies]
        size = sum(sizes)
        if tube.policy is not NO_POLICY:
            refused = tube.refusal(self.counters, delay, size, False, count=count, largest=max(sizes))
            if refused != DONE:
                return refused
        jobs = [Job(self.take_id(), priority, delay, ttr, body, tube, created_at) for body in bodies]
        if tube.policy.ttl:
            for job in jobs:
                job.own_terms()
        if not self.memory.admits_all(jobs) or not recording.record_batch(self, jobs, delay, now):
            return OUT_OF_MEMORY
        for job in jobs:
            self.jobs.add(job)
            self.memory.add_job(job)
        self.total_jobs += count
        tube.total_jobs += count
        tube.bytes += size
        self.cost += count
        client.on_put_batch(count, jobs[0].id, jobs[-1].id)
        for job in jobs:
            transitions.enter(self, job, delay, now)
        return DONE

    def _put(self, tube: Tube, job: Job, size: int, delay: int, now: int) -> Outcome:
        """Put a new job with a body of this many bytes."""
        if self.draining:
            return DRAINING
        if tube.policy is not NO_POLICY:
            holds = job.extras is not NO_EXTRAS and (job.key_hold() != 0 or self.once is not None)
            refused = tube.refusal(self.counters, delay, size, holds)
            if refused != DONE:
                return refused
            if tube.policy.ttl:
                job.own_terms()  # before it is recorded
        extras = job.extras
        labels = extras.labels if isinstance(extras, Terms) else None
        if labels is not None:
            if not record_labelled(self, job, labels, delay, now):
                return OUT_OF_MEMORY
        elif self.memory.limit and not self.memory.admits(job):
            return OUT_OF_MEMORY
        elif extras is not NO_EXTRAS:
            if not recording.record_put(self, job, delay, now):
                return OUT_OF_MEMORY
        else:  # the shortest way for nearly all
            if delay:
                job.deadline = now + delay
            if self.records:
                if not self.journal.put(job):
                    return OUT_OF_MEMORY
                self.last_lsn += 1
        self.jobs.add(job)
        if extras is NO_EXTRAS and job.body is not NOT_IN_MEMORY:
            self.memory.used += PLAIN_COST + size
        else:
            self.memory.add_job(job)
            if extras.key:
                recording.add_key(tube, job)
        self.total_jobs += 1
        tube.total_jobs += 1
        tube.bytes += size
        if labels is None:
            transitions.enter(self, job, delay, now)
            return DONE
        transitions.take_limit(self, job)
        if labels.joined is not None:
            self.groups.join(labels.joined, job, labels)
        transitions.enter_new(self, job, delay, now)
        return DONE

    def _replace(self, job: Job, fresh: Job, delay: int, now: int) -> Outcome:
        """Let a fresh job take the place of one, with its id and its key, and its reservation if it has one."""
        tube = job.tube
        size = len(fresh.body)
        old_size = self.body_size(job)  # now: once the journal has the new body, it does not know the old one
        if tube.policy is not NO_POLICY:
            holds = fresh.key_hold() != 0 or self.once is not None
            refused = tube.refusal(self.counters, delay, size, holds, old_size)
            if refused != DONE:
                return refused
            if tube.policy.ttl or fresh.needs_since():
                fresh.own_terms()  # before it is counted
        if job.client is not None:
            fresh.own_terms()  # `run_again` needs them; made now, so that its memory and its record count them
        labels = fresh.labels()
        if labels is not None:
            if not record_labelled(self, fresh, labels, delay, now, job):
                return OUT_OF_MEMORY
        elif not self.memory.admits(fresh, job) or not recording.record_put(self, fresh, delay, now):
            return OUT_OF_MEMORY
        fresh.forget_since()
        stays_reserved = job.client is not None and not job.client.leaving
        if not stays_reserved:
            transitions.leave(self, job)
        self.memory.remove_job(job)
        self.jobs.add(fresh)
        self.memory.add_job(fresh)
        transitions.take_limit(self, fresh)
        if stays_reserved:
            fresh.run_again(job.ttr)
            transitions.pass_on_reservation(self, job, fresh)
            transitions.pass_on_place(job, fresh)
        transitions.drop_limit(self, job)
        job.state = DELETED
        tube.bytes += size - old_size
        terms = job.terms()
        if terms is not None and terms.letter is not None:
            tube.remove_letter(terms)
            tube.add_letter(fresh, fresh.own_terms())
        if fresh.key:
            recording.add_key(tube, fresh)
        if not stays_reserved:
            transitions.enter_new(self, fresh, delay, now)
        pass_on_group(self, job, fresh)  # last: it may wait for the group that the old one is the last member of
        return AGAIN if stays_reserved else REPLACED

    def reserve(self, client: Client, timeout: int, now: int) -> Outcome:
        """Reserve the ready job with the smallest (priority, id) of the watched tubes: `on_reserved`.

        If there is none: DEADLINE_SOON if a job of the client is in its safety margin; else TIMED_OUT if the timeout is
        0; else PENDING, until a job is ready or one of these two applies. A client that watches no tube can wait, too.
        """
        self._begin_reserve(client)
        self.cost += len(client.watched) >> SEARCH_SHIFT
        job = self._reserve_best(client, now)
        if job is None:
            return self._wait(client, timeout, 0, now)
        return transitions.give(self, client, job)

    def reserve_batch(self, client: Client, limit: int, timeout: int, now: int) -> Outcome:
        """Reserve ready jobs of the watched tubes, at most `limit`: `on_reserved_batch`. With none, as `reserve`.

        The batch is smaller where more jobs would take too long. It has at most SLICE jobs, and none after the job
        whose body takes it past BATCH_BYTES. The more tubes the client watches, the smaller the batch, because each job
        takes a search of all of them.
        """
        self._begin_reserve(client)
        jobs: list[Job] = []
        size = 0
        cost = 1 + (len(client.watched) >> SEARCH_SHIFT)
        bound = min(limit, SLICE // cost or 1)
        while len(jobs) < bound and size <= transitions.BATCH_BYTES:
            job = self._reserve_best(client, now)
            if job is None:
                break
            jobs.append(job)
            size += self.body_size(job)
        if not jobs:
            return self._wait(client, timeout, limit, now)
        self.cost += len(jobs) * cost
        return transitions.give_batch(self, client, jobs)

    def probe(self, client: Client, now: int, finish: int = 0) -> Outcome:
        """Find the job that `reserve` would reserve, and leave it there: `on_best`.

        If there is none: DEADLINE_SOON as in `reserve`, else NOT_FOUND.

        Args:
            finish: the greatest one with which a tube of the client has been served anywhere, if tubes take turns.
        """
        if client.weights is not None and finish > client.weights.now:
            client.weights.now = finish
        self._begin_reserve(client)
        self.cost += len(client.watched) >> SEARCH_SHIFT
        job = self._find_best(client, now)
        if job is None:
            return DEADLINE_SOON if client.jobs_in_safety_margin else NOT_FOUND
        weights = client.weights
        client.on_best(job, job.priority if weights is None or not weights.mode else weights.finish(job.tube))
        return DONE

    def has_nothing(self, client: Client) -> bool:
        """Whether a probe would surely find nothing, and change nothing. False also if that is not known at once."""
        watched = client.watched
        if not client.worker or client.jobs_in_safety_margin or len(watched) > FEW_TUBES:
            return False
        return all(tube.ready.first() is None for tube in watched)

    def _reserve_best(self, client: Client, now: int) -> Job | None:
        """Reserve the ready job with the smallest (priority, id) of the tubes that the client watches."""
        best = self._find_best(client, now)
        if best is not None:
            transitions.reserve_ready(self, best, client, now)
        return best

    def _find_best(self, client: Client, now: int) -> Job | None:
        """Find the ready job with the smallest (priority, id) of the tubes that the client watches, unless these take
        turns."""
        weights = client.weights
        if weights is not None and weights.mode:
            return self._find_in_turn(client, weights, now)
        best: Job | None = None
        for tube in client.watched:
            job = tube.ready.first()
            if job is None or tube.blocked:
                continue
            if tube.waiting_count:
                job = self._first_left(tube, now)
                if job is None:
                    continue
            # The deadline of a ready job is its priority.
            if best is None or job.deadline < best.deadline or (job.deadline == best.deadline and job.id < best.id):
                best = job
        return best

    def _first_left(self, tube: Tube, now: int) -> Job | None:
        """The first ready job of a tube that is left by the clients that wait there: its pause has ended, or a place is
        free, and they come first."""
        transitions.serve_waiting(self, tube, SLICE, now)
        return None if tube.waiting_count or tube.blocked else tube.ready.first()

    def _find_in_turn(self, client: Client, weights: Weights, now: int) -> Job | None:
        """Find the first ready job of the tube whose turn it is; of several, the one with the better job."""
        best: Job | None = None
        best_finish = 0
        for tube in client.watched:
            job = tube.ready.first()
            if job is not None and tube.waiting_count:
                job = self._first_left(tube, now)
            if job is None or tube.blocked:
                weights.note_idle(tube)
                continue
            finish = weights.finish(tube)
            if best is None or (finish, job.deadline, job.id) < (best_finish, best.deadline, best.id):
                best = job
                best_finish = finish
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
        self.cost += len(client.watched) >> WAIT_SHIFT
        waits = client.waits
        while len(waits) < len(client.watched):
            waits.append(Wait(client))
        for position, tube in enumerate(client.watched):
            tube.waiting.append(waits[position])
            tube.waiting_count += 1
        if timeout != FOREVER:
            self.wheel.set(client, now + timeout)
        return PENDING

    def reserve_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Reserve one job, ready, delayed or buried: `on_reserved`. NOT_FOUND also if a client has reserved it."""
        job = self.find(job_id)
        if job is None or job.state == RESERVED or job.is_limited():
            return NOT_FOUND
        self._begin_reserve(client)
        was_ready = job.state == READY
        if was_ready:
            transitions.note_reservation(self, job, now)
        transitions.leave(self, job)
        transitions.enter_reserved(self, job, client, now)
        if was_ready:
            recording.record_stay(self, job)
        else:
            recording.record_change(self, job)  # or a restart would find it delayed or buried
        return transitions.give(self, client, job)

    def delete(self, client: Client, job_id: int, now: int) -> Outcome:
        """Delete a job. NOT_FOUND also if another client has reserved it."""
        job = self.find(job_id)
        if job is None or (job.state == RESERVED and job.client is not client):
            return NOT_FOUND
        tube = job.tube
        measures = self.durations is not None or tube.durations is not None or client.weights is not None
        if measures and job.state == RESERVED:
            self._note_end(client, job, now)
        tube.deletes += 1
        if job.extras is not NO_EXTRAS and job.runs_again():
            transitions.leave_reserved(self, job)
            transitions.run_again(self, job, now)
            return DONE
        hold = job.key_hold()
        transitions.end_job(self, job, now + hold if hold else 0)
        return DONE

    def _note_end(self, client: Client, job: Job, now: int) -> None:
        """Note how long the client has had a job, for whom it concerns: it is about to end its reservation."""
        if self.durations is not None:
            self.durations.note_end(job, now)
        if job.tube.durations is not None:
            job.tube.durations.note_end(job, now)
        if client.weights is not None:
            client.weights.note_time(job, now, True)

    def release(self, client: Client, job_id: int, priority: int, delay: int, now: int) -> Outcome:
        """Give back a job that the client has reserved, with a new priority and delay. NOT_FOUND if it has not.

        BURIED_INSTEAD if it has failed too often. DONE if it has gone to the dead tube for that reason.
        """
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        self._note_end(client, job, now)
        transitions.leave_reserved(self, job)
        job.own_extras().releases += 1
        if transitions.run_again(self, job, now):
            return DONE
        job.priority = priority
        job.delay = delay
        if job.counts_failures():
            return transitions.fail(self, job, RELEASED, delay, now)
        transitions.enter(self, job, delay, now)
        recording.record_change(self, job)
        return DONE

    def save(self, client: Client, job_id: int, body: bytes) -> Outcome:
        """Give a job that the client has reserved another body, for its next attempt. NOT_FOUND if it has not.

        TOO_LATE if it was replaced, and runs again with that body. DRAINING, TOO_BIG or OUT_OF_MEMORY as for a put.
        """
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        if job.runs_again():
            return TOO_LATE
        tube = job.tube
        size = len(body)
        old_size = self.body_size(job)  # now: once the journal has the new body, it does not know the old one
        if tube.policy is not NO_POLICY:
            refused = tube.refusal(self.counters, 0, size, False, old_size)
            if refused != DONE:
                return refused
        fresh = job.with_body(body)
        fresh.state = RESERVED
        if not self.memory.admits(fresh, job):
            return OUT_OF_MEMORY
        if self.records:
            if not self.journal.put(fresh):
                return OUT_OF_MEMORY
            self.last_lsn += 1
        self.memory.remove_job(job)
        self.jobs.add(fresh)
        self.memory.add_job(fresh)
        transitions.pass_on_reservation(self, job, fresh)
        tube.bytes += size - old_size
        if fresh.key:
            recording.add_key(tube, fresh)
        terms = fresh.terms()
        if terms is not None and terms.letter is not None:
            terms.letter.job = fresh
        labels = fresh.labels()
        if labels is not None and labels.joined is not None:
            self.groups.replace(labels.joined, labels, fresh, labels)
        return DONE

    def bury(self, client: Client, job_id: int, priority: int, now: int) -> Outcome:
        """Set aside a job that the client has reserved, with a new priority. NOT_FOUND if it has not."""
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        self._note_end(client, job, now)
        transitions.leave_reserved(self, job)
        if transitions.run_again(self, job, now):
            return DONE
        job.priority = priority
        transitions.bury_one(self, job)
        return DONE

    def touch(self, client: Client, job_id: int, now: int) -> Outcome:
        """Restart the time to run of a job that the client has reserved. NOT_FOUND if it has not."""
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        if client.weights is not None:
            client.weights.note_time(job, now, False)
        if job.in_safety_margin:
            job.in_safety_margin = False
            client.jobs_in_safety_margin -= 1
        transitions.set_time_to_run(self, job, client, now)
        return DONE

    def delete_batch(self, client: Client, job_ids: list[int], now: int) -> Outcome:
        """Delete jobs, one after the other, as `delete` does: `on_counted`."""
        return self._begin(bulk.BulkBatch(client, job_ids, self.delete, DELETIONS), now)

    def release_batch(self, client: Client, job_ids: list[int], priority: int, delay: int, now: int) -> Outcome:
        """Release jobs, one after the other, as `release` does: `on_counted`."""
        return self._begin(bulk.BulkBatch(client, job_ids, partial(self._release_one, priority, delay), ALL), now)

    def _release_one(self, priority: int, delay: int, client: Client, job_id: int, now: int) -> Outcome:
        return self.release(client, job_id, priority, delay, now)

    def touch_batch(self, client: Client, job_ids: list[int], now: int) -> Outcome:
        """Touch jobs, one after the other, as `touch` does: `on_counted`."""
        return self._begin(bulk.BulkBatch(client, job_ids, self.touch, NONE), now)

    def touch_all(self, client: Client, now: int) -> Outcome:
        """Restart the time to run of all jobs that the client has reserved: `on_counted`."""
        return self._begin(bulk.BulkTouchAll(client, self.touch), now)

    def unreserve(self, client: Client, job_id: int, now: int) -> Outcome:
        """Undo the reservation of a job by `reserve`, as if it had not been. NOT_FOUND if the client has not got it.

        The job is ready, with the place among the others that it had, and counts one reservation less.
        """
        job = self.jobs.get(job_id)
        if job is None or job.client is not client:
            return NOT_FOUND
        terms = job.terms()
        ready_since = 0 if terms is None else terms.ready_since
        if client.weights is not None:
            client.weights.note_undone(job.tube)
        transitions.leave_reserved(self, job)
        throttle = job.tube.throttle
        if throttle is not None:
            throttle.give_back(now)
        job.reserves -= 1
        if transitions.run_again(self, job, now):
            return DONE
        job.page = SINCE_UNKNOWN  # or its next reservation would count as its first once more
        recording.note_ready_since(self, job, ready_since)
        transitions.enter_ready(self, job, now)
        recording.record_stay(self, job)
        return DONE

    def redrive(self, client: Client, name: str, bound: int, now: int) -> Outcome:
        """Send the dead letters of this tube back to the tubes that they have come from: ready, with all their tries.

        At most `bound` jobs, those that have been here longest first. Reserved ones stay, and those from a tube that
        the client may not administer. `on_counted` gives their number. NOT_FOUND if there is no such tube.
        """
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        return self._begin(bulk.BulkRedrive(client, tube, bound), now)

    def move(self, client: Client, name: str, state: int, target: str, bound: int, now: int) -> Outcome:
        """Let jobs of a tube be in another one, in the same state: READY, DELAYED or BURIED.

        At most `bound` jobs, the first ones: of ready jobs those that are reserved next, of delayed ones those that are
        due next, of buried ones those that have been buried longest. `on_counted` gives their number. They keep all but
        their tube; a key that is taken in the other tube is dropped. That tube is made if it does not exist, and its
        limits are not asked. NOT_FOUND if there is no tube of the first name.
        """
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        return self._begin(bulk.BulkMove(client, tube, state, target, 0 if name == target else bound), now)

    def kick(self, client: Client, bound: int, now: int) -> Outcome:
        """Make buried jobs of the used tube ready, first buried first; if there is none, delayed ones, soonest first.

        At most `bound` jobs: `on_counted` gives their number.
        """
        return self._begin(bulk.BulkKick(client, client.use, bound), now)

    def _begin(self, operation: bulk.BulkCommand, now: int) -> Outcome:
        if operation.step(self, SLICE, now):
            operation.answer()
            return DONE
        operation.client.busy = True
        return PENDING

    def kick_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Make one buried or delayed job ready. NOT_FOUND if it is in another state."""
        job = self.find(job_id)
        if job is None or (job.state != BURIED and job.state != DELAYED):
            return NOT_FOUND
        transitions.kick_one(self, job, now)
        return DONE

    def cancel(self, client: Client, job_id: int) -> Outcome:
        """Delete a job that is still delayed. TOO_LATE if it is in another state; NOT_FOUND if there is none."""
        return self._cancel(self.find(job_id))

    def cancel_keyed(self, client: Client, key: str) -> Outcome:
        """`cancel` the job of the used tube that has this key."""
        return self._cancel(self.find_keyed(client.use, key))

    def _cancel(self, job: Job | None) -> Outcome:
        if job is None:
            return NOT_FOUND
        if job.state != DELAYED:
            return TOO_LATE
        transitions.end_job(self, job)
        return DONE

    def reschedule(self, client: Client, job_id: int, delay: int, now: int) -> Outcome:
        """Give a job that is still delayed another delay; 0 makes it ready. TOO_LATE and NOT_FOUND as in `cancel`."""
        return self._reschedule(self.find(job_id), delay, now)

    def reschedule_keyed(self, client: Client, key: str, delay: int, now: int) -> Outcome:
        """`reschedule` the job of the used tube that has this key."""
        return self._reschedule(self.find_keyed(client.use, key), delay, now)

    def _reschedule(self, job: Job | None, delay: int, now: int) -> Outcome:
        if job is None:
            return NOT_FOUND
        if job.state != DELAYED:
            return TOO_LATE
        transitions.leave(self, job)
        job.delay = delay
        job.forget_since()
        transitions.enter(self, job, delay, now)
        recording.record_change(self, job)
        return DONE

    def reprioritize(self, client: Client, job_id: int, priority: int, now: int) -> Outcome:
        """Give a job that is not reserved another priority. TOO_LATE if it is; NOT_FOUND if there is no such job."""
        return self._reprioritize(self.find(job_id), priority, now)

    def reprioritize_keyed(self, client: Client, key: str, priority: int, now: int) -> Outcome:
        """`reprioritize` the job of the used tube that has this key."""
        return self._reprioritize(self.find_keyed(client.use, key), priority, now)

    def _reprioritize(self, job: Job | None, priority: int, now: int) -> Outcome:
        if job is None:
            return NOT_FOUND
        if job.state == RESERVED:
            return TOO_LATE
        if job.state == READY:
            transitions.leave_ready(self, job)
            job.priority = priority
            transitions.enter_ready(self, job, now)
        else:
            job.priority = priority
        recording.record_change(self, job)
        return DONE

    def clear(self, client: Client, name: str) -> Outcome:
        """Delete all jobs of a tube that are not reserved: no client gets one of them after this call.

        `on_counted` gives their number. NOT_FOUND if there is no such tube; OUT_OF_MEMORY if the journal refuses
        the change.
        """
        tube = self.tubes.get(name)
        if tube is None:
            return NOT_FOUND
        if not (tube.ready.count() or tube.delayed_count() or tube.buried_count or tube.held):
            client.on_counted(0)
            return DONE
        if not recording.record_clear(self, tube):
            return OUT_OF_MEMORY
        operation = bulk.BulkClear(client, tube, self.wall.take(tube))
        self.time_wall_clock()
        self.ready -= operation.ready.count()
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
            is_done = operation.step(self, SLICE, 0)
        except Exception:
            self.wheel.set(operation, OVERDUE)  # its jobs have left their queues, and would stay in memory
            raise
        finally:
            self.drop_unneeded(tube)
        if is_done:
            self.cost += operation.count
            client.on_counted(operation.count)
            return DONE
        client.busy = operation.owes_answer = True
        return PENDING

    def cancel_group(self, client: Client, name: str) -> Outcome:
        """Delete the jobs of this group that are not reserved: `on_counted` gives their number.

        NOT_FOUND if there is no such group. Jobs that join it meanwhile may stay.
        """
        group = self.groups.get(name)
        if group is None:
            return NOT_FOUND
        return self._begin(bulk.BulkCancel(client, group), 0)

    def find_group(self, name: str) -> GroupSearch | None:
        """Begin to look at the members of this group. None if there is no such group."""
        group = self.groups.get(name)
        return None if group is None else GroupSearch(group)

    def peek(self, client: Client, job_id: int) -> Outcome:
        """Find the job with this id, in any state: `on_found`. NOT_FOUND if there is none."""
        return self._show(client, self.find(job_id))

    def tube_of(self, job_id: int) -> str:
        """The name of the tube that the job with this id is in; "" if there is no such job."""
        job = self.find(job_id)
        return "" if job is None else job.tube.name

    def peek_keyed(self, client: Client, key: str) -> Outcome:
        """`peek` at the job of the used tube that has this key, in any state."""
        return self._show(client, self.find_keyed(client.use, key))

    def peek_ready(self, client: Client) -> Outcome:
        """`peek` at the job of the used tube that is reserved next."""
        return self._show(client, client.use.ready.first())

    def peek_delayed(self, client: Client) -> Outcome:
        """`peek` at the job of the used tube whose delay ends next."""
        return self._show(client, self.first_delayed(client.use))

    def peek_buried(self, client: Client) -> Outcome:
        """`peek` at the job of the used tube that has been buried longest."""
        job = client.use.buried.after
        return self._show(client, job if isinstance(job, Job) else None)

    def _show(self, client: Client, job: Job | None) -> Outcome:
        """Show a client the job that its peek has found, if any, now or when its body has been fetched."""
        if job is None:
            return NOT_FOUND
        if job.body is NOT_IN_MEMORY:
            return transitions.deliver(self, client, [job], client.on_found)
        client.on_found(job)
        return DONE

    def server_statistics(self) -> ServerStatistics:
        """The whole queue as it is now."""
        return ServerStatistics(self)

    def tube_statistics(self, name: str, now: int, oldest: int = 0) -> TubeStatistics | None:
        """The tube of this name as it is now.

        Args:
            oldest: `since` of a complete search for its oldest ready job (`find_oldest`); 0 without one.
        """
        tube = self.tubes.get(name)
        return None if tube is None else TubeStatistics(tube, now, oldest, self.wall.offset)

    def find_oldest(self, name: str) -> OldestSearch | None:
        """Begin a search for the oldest ready job of a tube. None if it is not measured, or does not exist."""
        tube = self.tubes.get(name)
        return None if tube is None or tube.durations is None else OldestSearch(self.jobs, tube)

    def job_statistics(self, job_id: int, now: int) -> JobStatistics | None:
        """The job with this id as it is now."""
        job = self.find(job_id)
        if job is None:
            return None
        return JobStatistics(job, self.journal.file_number(job), now, self.wall.offset, self.body_size(job))

    def set_wall_offset(self, offset: int) -> None:
        """Note what the wall clock says: nanoseconds more than the clock of `now`.

        Must be told before a job is put that is to wait for a moment of the wall clock.
        """
        wall = self.wall
        if offset != wall.offset:
            wall.offset = offset
            self.time_wall_clock()

    def follows_wall_clock(self) -> bool:
        """Whether a job waits for a moment of the wall clock: then `set_wall_offset` must come before `advance`."""
        return bool(self.wall.heaps)

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
            assert isinstance(timer, Timer), "only timers are in the wheel"
            budget = (
                transitions.end_time(self, timer, now, budget)
                if isinstance(timer, Job)
                else go_off(self, timer, now, budget)
            )

    def next_event(self) -> int:
        """When to call `advance` next, in nanoseconds: a moment in the past if there is something to do at once."""
        due = self.wheel.due
        return 0 if due.after is not due else self.wheel.next_event
