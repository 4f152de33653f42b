"""What may be asked of the queue: the commands of the protocol, with ids and names, and no bytes of the wire.

Must never know how a command is done. The broker does it in memory; another Queue may do it elsewhere, and later.

A command that changes something, or may wait, returns an Outcome. What it finds or counts, it tells the client by a
method for that (`on_reserved`, `on_kicked`, …), before it returns DONE. PENDING means that the client is told later, by
that method or by `on_outcome`, and asks for nothing else until then. A lookup returns what it finds, or None.

Moments and durations are in nanoseconds. `now` is the present, from which delays and timeouts are counted.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.outcome import Outcome
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics

FOREVER: Final = -1
"""The timeout of a reserve that waits until there is a job."""


class Queue:
    """The interface; `Broker` is the queue.

    Attributes:
        admits: what the journal may be told now: ALL, DELETIONS or NONE. Whoever asks for more has to wait.
        last_lsn: the number of the last change that the journal has been told of. A reply is durable when that is.
        cost: what all calls since it was last set to 0 have cost, where moving one job costs 1.
    """

    __slots__ = ("admits", "cost", "last_lsn")

    def __init__(self) -> None:
        self.admits = ALL
        self.last_lsn = 0
        self.cost = 0

    # Clients and their tubes

    def connect(self, client: Client) -> None:
        """Take in a client. It uses and watches the default tube."""
        raise NotImplementedError

    def disconnect(self, client: Client, now: int) -> None:
        """Let a client go: it is told nothing more, and its jobs are ready again, in the order it reserved them."""
        raise NotImplementedError

    def use(self, client: Client, name: str) -> Outcome:
        """Let the client put jobs into this tube from now on."""
        raise NotImplementedError

    def watch(self, client: Client, name: str) -> Outcome:
        """Let the client reserve jobs of this tube too."""
        raise NotImplementedError

    def ignore(self, client: Client, name: str) -> Outcome:
        """Undo `watch`. DONE also if the client does not watch the tube; NOT_IGNORED if it watches no other."""
        raise NotImplementedError

    # Producers

    def begin_put(self, client: Client) -> None:
        """Count the client as a producer: it has begun a put."""
        raise NotImplementedError

    def take_id(self) -> int:
        """An id for a job that is about to be put. It is used up even if nothing comes of the put."""
        raise NotImplementedError

    def put(
        self, client: Client, job_id: int, priority: int, delay: int, ttr: int, body: bytes, created_at: int, now: int
    ) -> Outcome:
        """Put a job into the used tube. If this is refused, by DRAINING or OUT_OF_MEMORY, there is no such job.

        Args:
            job_id: from `take_id`.
            priority: 0 to 2^32-1, the smallest first.
            delay: after which it is ready; 0 means at once.
            ttr: how long a worker may have it.
            body: any bytes.
            created_at: the moment from which its age is counted, when the command came, before its body.
        """
        raise NotImplementedError

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
        """Put a job under a key, as `put` does, or find the job of the used tube that has the key: then EXISTS.

        If the put `replaces`, that job gets what is put, and keeps its id, key, age and counters: REPLACED, or TOO_LATE
        if a client has reserved it. `on_keyed` tells the id of the job that has the key in the end.
        """
        raise NotImplementedError

    def cancel(self, client: Client, job_id: int) -> Outcome:
        """Delete a job that is still delayed. TOO_LATE if it is in another state: then nothing changes. NOT_FOUND."""
        raise NotImplementedError

    def cancel_keyed(self, client: Client, key: str) -> Outcome:
        """`cancel` the job of the used tube that has this key."""
        raise NotImplementedError

    def reschedule(self, client: Client, job_id: int, delay: int, now: int) -> Outcome:
        """Give a job that is still delayed another delay; 0 makes it ready. TOO_LATE or NOT_FOUND as `cancel`."""
        raise NotImplementedError

    def reschedule_keyed(self, client: Client, key: str, delay: int, now: int) -> Outcome:
        """`reschedule` the job of the used tube that has this key."""
        raise NotImplementedError

    # Workers

    def reserve(self, client: Client, timeout: int, now: int) -> Outcome:
        """Reserve the ready job with the smallest (priority, id) of the watched tubes: `on_reserved`.

        If there is none: DEADLINE_SOON if a job of the client is in its safety margin; else TIMED_OUT if the timeout is
        0; else PENDING, until there is a job or one of the two holds.
        """
        raise NotImplementedError

    def reserve_batch(self, client: Client, limit: int, timeout: int, now: int) -> Outcome:
        """Reserve all ready jobs of the watched tubes, up to a limit: `on_reserved_batch`. Else as `reserve`."""
        raise NotImplementedError

    def stop_waiting(self, client: Client) -> bool:
        """End the wait of the client's reserve, and tell it nothing. False if it was not waiting."""
        raise NotImplementedError

    def reserve_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Reserve one job, ready, delayed or buried: `on_reserved`. NOT_FOUND also if a client has reserved it."""
        raise NotImplementedError

    def delete(self, client: Client, job_id: int) -> Outcome:
        """Delete a job. NOT_FOUND also if another client has reserved it."""
        raise NotImplementedError

    def release(self, client: Client, job_id: int, priority: int, delay: int, now: int) -> Outcome:
        """Make a job that the client has reserved ready or delayed, with a new priority. Or NOT_FOUND."""
        raise NotImplementedError

    def bury(self, client: Client, job_id: int, priority: int) -> Outcome:
        """Put a job that the client has reserved aside, until it is kicked. Or NOT_FOUND."""
        raise NotImplementedError

    def touch(self, client: Client, job_id: int, now: int) -> Outcome:
        """Give a job that the client has reserved its whole time to run again. Or NOT_FOUND."""
        raise NotImplementedError

    # Everybody else

    def kick(self, client: Client, bound: int, now: int) -> Outcome:
        """Make buried jobs of the used tube ready, first buried first; if there is none, delayed ones, soonest first.

        At most as many as the bound says: `on_kicked` tells how many.
        """
        raise NotImplementedError

    def kick_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Make one buried or delayed job ready. Or NOT_FOUND."""
        raise NotImplementedError

    def pause(self, client: Client, name: str, duration: int, now: int) -> Outcome:
        """Let no job of this tube be reserved for so long; 0 ends the pause. NOT_FOUND if there is no such tube."""
        raise NotImplementedError

    def clear(self, client: Client, name: str) -> Outcome:
        """Delete all jobs of a tube but those that clients have reserved: no client gets one of them after this call.

        `on_cleared` tells how many. NOT_FOUND if there is no such tube; or OUT_OF_MEMORY, then nothing has changed.
        """
        raise NotImplementedError

    def peek(self, job_id: int) -> Job | None:
        """The job with this id, in any state."""
        raise NotImplementedError

    def peek_keyed(self, client: Client, key: str) -> Job | None:
        """The job of the used tube that has this key, in any state."""
        raise NotImplementedError

    def peek_ready(self, client: Client) -> Job | None:
        """The job of the used tube that is reserved next."""
        raise NotImplementedError

    def peek_delayed(self, client: Client) -> Job | None:
        """The job of the used tube whose delay ends next."""
        raise NotImplementedError

    def peek_buried(self, client: Client) -> Job | None:
        """The job of the used tube that has been buried longest."""
        raise NotImplementedError

    def list_tubes(self) -> bytes:
        """A line for each tube, as list-tubes has it ("- " and the name), in beanstalkd's order."""
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

    def drain(self) -> None:
        """Take no new jobs from now on."""
        raise NotImplementedError
