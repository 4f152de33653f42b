"""One client as the queue sees it: what it uses, watches and holds, and how it is told what it waited for."""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.job import Job
from beanstalk_server.queue.outcome import Outcome
from beanstalk_server.queue.ring import UNLINKED, Link
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import Timer

WATCH_INDEX_THRESHOLD: Final = 32
"""A client that watches more tubes than this has an index of them."""


class Wait(Link):
    """A client among those that wait for a job of one tube."""

    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.before = self.after = UNLINKED
        self.client = client


class Client(Timer):
    """A client of the broker. Changed by the broker only; as a timer, its deadline is the end of its wait.

    The `on_` methods tell it what its commands found. While `waiting` is set, the broker owes exactly one answer:
    `on_reserved` (`on_reserved_batch` when `batch` is not 0), or `on_outcome` with TIMED_OUT or DEADLINE_SOON; while
    `busy` is set, `on_kicked`, `on_cleared`, or `on_outcome` with FAILED. They may be called in the midst of its own
    command, of another client's or of the passing of time: they must take note and return, and never call the broker.
    """

    __slots__ = (
        "batch",  # how many jobs it waits for at the most; 0 when it is one, and no batch
        "busy",  # a kick or a clear of many jobs is under way for it
        "jobs_in_safety_margin",  # how many of them are in the last second of their time to run
        "leaving",  # it has disconnected: until it has left all its tubes, those it waited in may still have it
        "producer",  # has sent a put
        "reserved",  # the jobs it holds, by id, in the order in which it reserved them
        "use",  # the tube that its puts go to
        "waiting",  # for a job of one of the tubes it watches
        "waits",  # as many as it has ever watched tubes when it waited: while it waits, one is in each tube's ring
        "watch_index",  # where in `watched` each of its tubes is, when they are many; else None
        "watched",  # those tubes, in the order of list-tubes-watched
        "worker",  # has sent a reserve
    )

    use: Tube

    def __init__(self) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.watched: list[Tube] = []
        self.reserved: dict[int, Job] = {}
        self.jobs_in_safety_margin = 0
        self.waiting = False
        self.waits: list[Wait] = []
        self.batch = 0
        self.busy = False
        self.leaving = False
        self.watch_index: dict[Tube, int] | None = None
        self.producer = False
        self.worker = False

    def watch_position(self, tube: Tube) -> int:
        """The index of a tube in `watched`; -1 when it is not watched."""
        index = self.watch_index
        if index is not None:
            return index.get(tube, -1)
        watched = self.watched
        return watched.index(tube) if tube in watched else -1

    def add_watched(self, tube: Tube) -> None:
        """Append a tube to `watched`."""
        watched = self.watched
        watched.append(tube)
        if self.watch_index is not None:
            self.watch_index[tube] = len(watched) - 1
        elif len(watched) > WATCH_INDEX_THRESHOLD:
            self.watch_index = {found: position for position, found in enumerate(watched)}

    def remove_watched(self, position: int) -> None:
        """Take a tube out of `watched`. As in beanstalkd, the last takes its place."""
        watched = self.watched
        index = self.watch_index
        tube = watched[position]
        last = watched.pop()
        if last is not tube:
            watched[position] = last
            if index is not None:
                index[last] = position
        if index is not None:
            del index[tube]

    def on_reserved(self, job: Job) -> None:
        """The job that it reserves."""
        raise NotImplementedError

    def on_reserved_batch(self, jobs: list[Job]) -> None:
        """The jobs that it reserves: one at least, as many as it asked for at the most, best first."""
        raise NotImplementedError

    def on_kicked(self, count: int) -> None:
        """So many jobs were kicked."""
        raise NotImplementedError

    def on_cleared(self, count: int) -> None:
        """So many jobs were cleared."""
        raise NotImplementedError

    def on_keyed(self, job_id: int) -> None:
        """The id of the job that has the key of its put: the new job's, or that of the one which has it already."""
        raise NotImplementedError

    def on_outcome(self, outcome: Outcome) -> None:
        """What was PENDING has come to this outcome, and there is nothing else to tell."""
        raise NotImplementedError
