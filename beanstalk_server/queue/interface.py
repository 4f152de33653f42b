"""What a client's conversation may ask of the queue: the commands of the protocol, by ids and names.

Must never know how they are done: the broker does them in memory, and something else may do them elsewhere.

A command that changes something, or that may wait, returns an Outcome. DONE means that it is done, and PENDING that its
outcome comes later, by `client.on_outcome`; until then the client may not ask for anything else. What a command finds
or counts, the client is told by its method for that (`on_reserved`, `on_kicked`, …), within the call or later; when it
comes later, it stands for the outcome DONE. A lookup returns what it finds, or None.

Times are in nanoseconds: `now` is the present, a delay or a timeout is counted from it.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.outcome import Outcome
from beanstalk_server.queue.statistics import JobStatistics, ServerStatistics, TubeStatistics

FOREVER: Final = -1
"""The timeout of a reserve that waits until a job comes."""


class Queue:
    """The commands; `Broker` does them.

    Attributes:
        admits: what the journal may be told now (ALL, DELETIONS or NONE); who comes with more has to wait.
        last_lsn: the number of the last change that the journal has been told of.
        cost: what the calls so far have cost, where one job moved costs 1; whoever has counted it sets it back to 0.
    """

    __slots__ = ("admits", "cost", "last_lsn")

    def __init__(self) -> None:
        self.admits = ALL
        self.last_lsn = 0
        self.cost = 0

    # Clients and their tubes

    def connect(self, client: Client) -> None:
        """A client is there. It uses and watches the default tube."""
        raise NotImplementedError

    def disconnect(self, client: Client, now: int) -> None:
        """A client is gone: it is told nothing more, and its jobs are ready again, in the order it reserved them."""
        raise NotImplementedError

    def use(self, client: Client, name: str) -> Outcome:
        """Let the client put into this tube from now on."""
        raise NotImplementedError

    def watch(self, client: Client, name: str) -> Outcome:
        """Let the client reserve from this tube too."""
        raise NotImplementedError

    def ignore(self, client: Client, name: str) -> Outcome:
        """Undo `watch`; DONE also when the client does not watch it. NOT_IGNORED when it watches no other."""
        raise NotImplementedError

    # Producers

    def begin_put(self, client: Client) -> None:
        """The client has begun a put, and is a producer."""
        raise NotImplementedError

    def take_id(self) -> int:
        """The id of a job that is about to be put. It is used up even if the put comes to nothing."""
        raise NotImplementedError

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
    ) -> Outcome:
        """Put a job into the tube that the client uses. DRAINING, or OUT_OF_MEMORY: there is no such job.

        Args:
            job_id: its id, from `take_id`.
            priority: 0 to 2^32-1, smallest first.
            delay: until it is ready; 0 means at once.
            ttr: the time that a worker has for it.
            body: any bytes.
            created_at: what its age is counted from; the command may have come before the last of its body.
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
        """Put a job under a key, unless a live job of the tube has it: then EXISTS, or REPLACED if it `replaces`.

        The id of the job that has the key is told by `on_keyed`. A replaced job keeps its id, key, age and counters;
        its delay counts from now. TOO_LATE when a client has it. Else as `put`.
        """
        raise NotImplementedError

    def cancel(self, client: Client, job_id: int) -> Outcome:
        """Delete a job that is still delayed. In another state it is TOO_LATE, and nothing changes; or NOT_FOUND."""
        raise NotImplementedError

    def cancel_keyed(self, client: Client, key: str) -> Outcome:
        """`cancel` the job of the used tube that has this key."""
        raise NotImplementedError

    def reschedule(self, client: Client, job_id: int, delay: int, now: int) -> Outcome:
        """Give a job that is still delayed another delay; 0 makes it ready. Else TOO_LATE, or NOT_FOUND."""
        raise NotImplementedError

    def reschedule_keyed(self, client: Client, key: str, delay: int, now: int) -> Outcome:
        """`reschedule` the job of the used tube that has this key."""
        raise NotImplementedError

    # Workers

    def reserve(self, client: Client, timeout: int, now: int) -> Outcome:
        """Reserve the ready job with the smallest (priority, id) of the watched tubes: `on_reserved`.

        When there is none: DEADLINE_SOON if a job of the client is in its safety margin; else TIMED_OUT if the timeout
        is 0; else PENDING, for that long or FOREVER.
        """
        raise NotImplementedError

    def reserve_batch(self, client: Client, limit: int, timeout: int, now: int) -> Outcome:
        """As `reserve`, but all jobs that are ready, up to a limit: `on_reserved_batch`."""
        raise NotImplementedError

    def stop_waiting(self, client: Client) -> bool:
        """Let the client's reserve wait no longer, and tell it nothing. False when it was not waiting."""
        raise NotImplementedError

    def reserve_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Reserve one job, whether ready, delayed or buried: `on_reserved`. NOT_FOUND also when a client has it."""
        raise NotImplementedError

    def delete(self, client: Client, job_id: int) -> Outcome:
        """Delete a job. NOT_FOUND also when another client has it."""
        raise NotImplementedError

    def release(self, client: Client, job_id: int, priority: int, delay: int, now: int) -> Outcome:
        """Make a job that the client has ready, or delayed, with a new priority. NOT_FOUND when it does not have it."""
        raise NotImplementedError

    def bury(self, client: Client, job_id: int, priority: int) -> Outcome:
        """Put a job that the client has aside until it is kicked. NOT_FOUND when it does not have it."""
        raise NotImplementedError

    def touch(self, client: Client, job_id: int, now: int) -> Outcome:
        """Give a job that the client has its whole time to run again. NOT_FOUND when it does not have it."""
        raise NotImplementedError

    # Everybody else

    def kick(self, client: Client, bound: int, now: int) -> Outcome:
        """Make buried jobs of the used tube ready, first buried first, or if there is none delayed ones, soonest first.

        No more than the bound; how many is told by `on_kicked`.
        """
        raise NotImplementedError

    def kick_job(self, client: Client, job_id: int, now: int) -> Outcome:
        """Make one buried or delayed job ready, or NOT_FOUND."""
        raise NotImplementedError

    def pause(self, client: Client, name: str, duration: int, now: int) -> Outcome:
        """Let no job of this tube be reserved for so long; 0 ends a pause. NOT_FOUND when there is no such tube."""
        raise NotImplementedError

    def clear(self, client: Client, name: str) -> Outcome:
        """Delete all jobs of a tube, as they are now, that no client has: nobody gets one of them after this call.

        How many is told by `on_cleared`. NOT_FOUND when there is no such tube, or OUT_OF_MEMORY.
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
        """A line for each tube, "- " and its name, in beanstalkd's order."""
        raise NotImplementedError

    def server_statistics(self) -> ServerStatistics:
        raise NotImplementedError

    def tube_statistics(self, name: str, now: int) -> TubeStatistics | None:
        raise NotImplementedError

    def job_statistics(self, job_id: int, now: int) -> JobStatistics | None:
        raise NotImplementedError

    def drain(self) -> None:
        """Take no new jobs from now on."""
        raise NotImplementedError
