"""The interface of the queue: the commands of the protocol, as methods that take ids and names.

A command returns an Outcome. Before it returns DONE, it has passed what it found or counted to the client
(`on_reserved`, `on_found`, `on_kicked`, …). PENDING means that the answer comes later, by the same method or by
`on_outcome`; until then, the client gives no other command. Lists and statistics are returned at once.

Moments and durations are in nanoseconds. `now` is the present, from which delays and timeouts are counted.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.groups import GroupSearch
from beanstalk_server.queue.job_search import JobSearch
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.outcome import Outcome
from beanstalk_server.queue.policy import Attributes
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics
from beanstalk_server.queue.wheel import Due

FOREVER: Final = -1
"""The timeout of a reserve that waits until there is a job."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Queue(Due):
    """The interface; `Broker` is the queue.

    Attributes:
        admits: what the journal admits now: ALL, DELETIONS or NONE. A command that needs more has to wait.
        last_lsn: the number of the last change recorded in the journal. A reply may leave when that change is durable.
        cost: the cost of all calls since it was last set to 0; moving one job costs 1.
    """

    __slots__ = ("admits", "cost", "last_lsn")

    def __init__(self) -> None:
        self.admits = ALL
        self.last_lsn = 0
        self.cost = 0

    # Clients and their tubes

    def connect(self, client: Client, counted: bool = True) -> None:
        """Take in a client. It uses and watches the default tube.

        Args:
            counted: whether the statistics of the queue count it among its connections. They count it among producers,
                workers and waiting clients in any case, and so do tubes.
        """
        raise NotImplementedError

    def set_counted(self, client: Client, counted: bool) -> None:
        """Count the client from now on, or do not: as a connection that has existed all the time."""
        raise NotImplementedError

    def disconnect(self, client: Client, now: int, has_left: bool = True) -> None:
        """Let a client go: it gets no more answers, and its jobs become ready, in the order it reserved them.

        Args:
            has_left: it has gone by itself, and so its jobs have failed.
        """
        raise NotImplementedError

    def use(self, client: Client, name: str) -> Outcome:
        """Let the client put jobs into this tube from now on."""
        raise NotImplementedError

    def unuse(self, client: Client) -> None:
        """Undo `use`: what the client uses is elsewhere. Nothing counts it as a user of a tube until its next `use`; a
        put of it would go to the default tube."""
        raise NotImplementedError

    def watch(self, client: Client, name: str, bounded: bool = True, weight: int = 0) -> Outcome:
        """Let the client reserve jobs of this tube too.

        Args:
            bounded: OUT_OF_MEMORY if it, or all clients, watch too many already.
            weight: its weight for this client from now on; 0: that which it has.
        """
        raise NotImplementedError

    def set_mode(self, client: Client, mode: int) -> None:
        """Say how the client's tubes are served, as weights.py has it: PRIORITY, WEIGHTED or FAIR."""
        raise NotImplementedError

    def ignore(self, client: Client, name: str) -> Outcome:
        """Undo `watch`. DONE also if the client does not watch the tube; NOT_IGNORED if it watches no other."""
        raise NotImplementedError

    def unwatch(self, client: Client, name: str) -> None:
        """Undo `watch`, even if the client watches no other tube. It must not be waiting."""
        raise NotImplementedError

    # Producers

    def begin_put(self, client: Client) -> None:
        """Count the client as a producer: it has begun a put."""
        raise NotImplementedError

    def take_id(self) -> int:
        """An id for a job that is about to be put. It is used up even if the put fails."""
        raise NotImplementedError

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
        raise NotImplementedError

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
        and keeps its id, key, age and counters: REPLACED, or TOO_LATE if a client has reserved it. `on_keyed` gives the
        id of the job in any case; with a key, of the one that has the key afterwards. TOO_BIG if the body is larger
        than the tube takes. If it comes after a group that is open, its delay begins when that ends.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def delete_batch(self, client: Client, job_ids: list[int], now: int) -> Outcome:
        """Delete jobs, one after the other, as `delete` does: `on_deleted_batch`."""
        raise NotImplementedError

    def release_batch(self, client: Client, job_ids: list[int], priority: int, delay: int, now: int) -> Outcome:
        """Release jobs, one after the other, as `release` does: `on_released_batch`."""
        raise NotImplementedError

    def touch_batch(self, client: Client, job_ids: list[int], now: int) -> Outcome:
        """Touch jobs, one after the other, as `touch` does: `on_touched_batch`."""
        raise NotImplementedError

    def cancel(self, client: Client, job_id: int) -> Outcome:
        """Delete a job that is still delayed. TOO_LATE if it is in another state; NOT_FOUND if there is none."""
        raise NotImplementedError

    def cancel_keyed(self, client: Client, key: str) -> Outcome:
        """`cancel` the job of the used tube that has this key."""
        raise NotImplementedError

    def reschedule(self, client: Client, job_id: int, delay: int, now: int) -> Outcome:
        """Give a job that is still delayed another delay; 0 makes it ready. TOO_LATE and NOT_FOUND as in `cancel`."""
        raise NotImplementedError

    def reschedule_keyed(self, client: Client, key: str, delay: int, now: int) -> Outcome:
        """`reschedule` the job of the used tube that has this key."""
        raise NotImplementedError

    # Workers

    def reserve(self, client: Client, timeout: int, now: int) -> Outcome:
        """Reserve the ready job with the smallest (priority, id) of the watched tubes: `on_reserved`.

        If there is none: DEADLINE_SOON if a job of the client is in its safety margin; else TIMED_OUT if the timeout is
        0; else PENDING, until a job is ready or one of these two applies. A client that watches no tube can wait, too.
        """
        raise NotImplementedError

    def reserve_batch(self, client: Client, limit: int, timeout: int, now: int) -> Outcome:
        """Reserve ready jobs of the watched tubes, at most `limit`: `on_reserved_batch`. With none, as `reserve`."""
        raise NotImplementedError

    def probe(self, client: Client, now: int, finish: int = 0) -> Outcome:
        """Find the job that `reserve` would reserve, and leave it there: `on_best`.

        If there is none: DEADLINE_SOON as in `reserve`, else NOT_FOUND.

        Args:
            finish: the greatest one with which a tube of the client has been served anywhere, if tubes take turns.
        """
        raise NotImplementedError

    def has_nothing(self, client: Client) -> bool:
        """Whether a probe would surely find nothing, and change nothing. False also if that is not known at once."""
        raise NotImplementedError

    def unreserve(self, client: Client, job_id: int, now: int) -> Outcome:
        """Undo the reservation of a job by `reserve`, as if it had not been. NOT_FOUND if the client has not got it.

        The job is ready, with the place among the others that it had, and counts one reservation less.
        """
        raise NotImplementedError

    def stop_waiting(self, client: Client) -> bool:
        """End the wait of the client's reserve without an answer. False if it was not waiting."""
        raise NotImplementedError

    def reserve_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Reserve one job, ready, delayed or buried: `on_reserved`. NOT_FOUND also if a client has reserved it."""
        raise NotImplementedError

    def delete(self, client: Client, job_id: int, now: int) -> Outcome:
        """Delete a job. NOT_FOUND also if another client has reserved it."""
        raise NotImplementedError

    def release(self, client: Client, job_id: int, priority: int, delay: int, now: int) -> Outcome:
        """Give back a job that the client has reserved, with a new priority and delay. NOT_FOUND if it has not.

        BURIED_INSTEAD if it has failed too often. DONE if it has gone to the dead tube for that reason.
        """
        raise NotImplementedError

    def bury(self, client: Client, job_id: int, priority: int, now: int) -> Outcome:
        """Set aside a job that the client has reserved, with a new priority. NOT_FOUND if it has not."""
        raise NotImplementedError

    def touch(self, client: Client, job_id: int, now: int) -> Outcome:
        """Restart the time to run of a job that the client has reserved. NOT_FOUND if it has not."""
        raise NotImplementedError

    # Any client

    def kick(self, client: Client, bound: int, now: int) -> Outcome:
        """Make buried jobs of the used tube ready, first buried first; if there is none, delayed ones, soonest first.

        At most `bound` jobs: `on_kicked` gives their number.
        """
        raise NotImplementedError

    def kick_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Make one buried or delayed job ready. NOT_FOUND if it is in another state."""
        raise NotImplementedError

    def redrive(self, client: Client, name: str, bound: int, now: int) -> Outcome:
        """Send the dead letters of this tube back to the tubes that they have come from: ready, with all their tries.

        At most `bound` jobs, those that have been here longest first. Reserved ones stay, and those from a tube that
        the client may not administer. `on_redriven` gives their number. NOT_FOUND if there is no such tube.
        """
        raise NotImplementedError

    def move(self, client: Client, name: str, state: int, target: str, bound: int, now: int) -> Outcome:
        """Let jobs of a tube be in another one, in the same state: READY, DELAYED or BURIED.

        At most `bound` jobs, the first ones: of ready jobs those that are reserved next, of delayed ones those that are
        due next, of buried ones those that have been buried longest. `on_moved` gives their number. They keep all but
        their tube; a key that is taken in the other tube is dropped. That tube is made if it does not exist, and its
        limits are not asked. NOT_FOUND if there is no tube of the first name.
        """
        raise NotImplementedError

    def pause(self, client: Client, name: str, duration: int, now: int) -> Outcome:
        """Reserve no job of this tube for this duration; 0 ends the pause. NOT_FOUND if there is no such tube."""
        raise NotImplementedError

    def clear(self, client: Client, name: str) -> Outcome:
        """Delete all jobs of a tube that are not reserved: no client gets one of them after this call.

        `on_cleared` gives their number. NOT_FOUND if there is no such tube; OUT_OF_MEMORY if the journal refuses
        the change.
        """
        raise NotImplementedError

    def cancel_group(self, client: Client, name: str) -> Outcome:
        """Delete the jobs of this group that are not reserved: `on_group_cancelled` gives their number.

        NOT_FOUND if there is no such group. Jobs that join it meanwhile may stay.
        """
        raise NotImplementedError

    def find_group(self, name: str) -> GroupSearch | None:
        """Begin to look at the members of this group. None if there is no such group."""
        raise NotImplementedError

    def peek(self, client: Client, job_id: int) -> Outcome:
        """Find the job with this id, in any state: `on_found`. NOT_FOUND if there is none."""
        raise NotImplementedError

    def peek_keyed(self, client: Client, key: str) -> Outcome:
        """`peek` at the job of the used tube that has this key, in any state."""
        raise NotImplementedError

    def peek_ready(self, client: Client) -> Outcome:
        """`peek` at the job of the used tube that is reserved next."""
        raise NotImplementedError

    def peek_delayed(self, client: Client) -> Outcome:
        """`peek` at the job of the used tube whose delay ends next."""
        raise NotImplementedError

    def peek_buried(self, client: Client) -> Outcome:
        """`peek` at the job of the used tube that has been buried longest."""
        raise NotImplementedError

    def tube_of(self, job_id: int) -> str:
        """The name of the tube that the job with this id is in; "" if there is no such job."""
        raise NotImplementedError

    def list_tubes(self) -> list[bytes]:
        """A line for each tube, as list-tubes has it ("- " and the name), in beanstalkd's order; many on each page."""
        raise NotImplementedError

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
        raise NotImplementedError

    def tube_names(self, first: str, count: int) -> list[str]:
        """The names of tubes, at most this many, in the order of names, from the first that is `first` or follows
        it.
        """
        raise NotImplementedError

    def server_statistics(self) -> ServerStatistics:
        """The whole queue as it is now."""
        raise NotImplementedError

    def tube_statistics(self, name: str, now: int) -> TubeStatistics | None:
        """The tube of this name as it is now."""
        raise NotImplementedError

    def job_statistics(self, job_id: int, now: int) -> JobStatistics | None:
        """The job with this id as it is now."""
        raise NotImplementedError

    def set_wall_offset(self, offset: int) -> None:
        """Note what the wall clock says: nanoseconds more than the clock of `now`.

        Must be told before a job is put that is to wait for a moment of the wall clock.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """Take no new jobs from now on."""
        raise NotImplementedError

    def undrain(self) -> None:
        """Undo `drain`."""
        raise NotImplementedError
