"""One client as the queue sees it: what it uses, watches and holds, and how it is told what it waited for."""

from __future__ import annotations

from beanstalk_server.queue.job import Job
from beanstalk_server.queue.ring import UNLINKED, Link
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import Timer


class Wait(Link):
    """A client among those that wait for a job of one tube."""

    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.before = self.after = UNLINKED
        self.client = client


class Client(Timer):
    """A client of the broker. Changed by the broker only; as a timer, its deadline is the end of its wait.

    While `waiting` is set, the broker owes exactly one answer: `on_reserved` (`on_reserved_batch` when `batch` is not
    0), `on_timed_out` or `on_deadline_soon`; while `busy` is set, `on_kicked`, `on_cleared` or `on_failed`. They are
    called in the midst of another client's command or of the passing of time, so they must take note and return, and
    never call the broker.
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

    def __init__(self, tube: Tube) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.use = tube
        self.watched: list[Tube] = [tube]
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

    def on_reserved(self, job: Job) -> None:
        """The job it waited for."""
        raise NotImplementedError

    def on_reserved_batch(self, jobs: list[Job]) -> None:
        """The jobs it waited for: one at least, `batch` at the most, best first."""
        raise NotImplementedError

    def on_timed_out(self) -> None:
        """No job came in the time it wanted to wait."""
        raise NotImplementedError

    def on_deadline_soon(self) -> None:
        """No job came, and one that it holds has entered the last second of its time to run."""
        raise NotImplementedError

    def on_kicked(self, count: int) -> None:
        """The kick that was under way is done."""
        raise NotImplementedError

    def on_cleared(self, count: int) -> None:
        """The clear that was under way is done."""
        raise NotImplementedError

    def on_failed(self) -> None:
        """The kick or clear that was under way has failed, by a bug or by the journal's fault."""
        raise NotImplementedError
