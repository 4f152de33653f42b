"""A client as the queue sees it: what it uses, watches and has reserved, and how it gets its answers."""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.job import SAFETY_MARGIN, Job
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.outcome import Outcome
from beanstalk_server.queue.reserved_jobs import ReservedJobs
from beanstalk_server.queue.ring import UNLINKED, RingNode
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.weights import Weights
from beanstalk_server.queue.wheel import Timer

WATCH_INDEX_THRESHOLD: Final = 32
"""A client that watches more tubes than this has an index of them."""

MOST_NOTED: Final = 4096
"""Maximum number of reserved jobs of a client for which the moments of their reservations are kept."""


class Wait(RingNode):
    """A client's place among the waiting clients of one tube."""

    def __init__(self, client: Client) -> None:
        self.before = self.after = UNLINKED
        self.client = client


# Tests subclass it, and so all its bases must allow that. Compiled subclasses are called as before.
@mypyc_attr(allow_interpreted_subclasses=True)
class Client(Timer):
    """A client of the queue, from `Queue.connect` on. Only the broker changes it; others may read.

    As a timer, its deadline is the end of its wait.

    The `on_` methods give the client its answers. A client that is `waiting` gets exactly one of `on_reserved`
    (`on_reserved_batch` if `batch` is not 0) and `on_outcome`, perhaps after it was `busy`; one that is `busy`, exactly
    one of `on_reserved`, `on_reserved_batch`, `on_found`, `on_counted` and `on_outcome`. The calls may come during a
    command of this client, during one of another client, as time passes, or when bodies have been fetched: the methods
    must take note and return, and must not call the queue. The bodies of the jobs that they get are in memory; after
    the call, they may be so no longer. Here, the methods ignore what they get.
    """

    __slots__ = (
        "batch",  # while it waits: the most jobs that it takes as a batch; 0 for a single job
        "busy",  # a kick, clear, redrive, move or cancel of many jobs, or a delivery, is under way for it
        "client_name",  # the name that it has given itself, or ""
        "counted",  # the statistics of the queue count it
        "jobs_in_safety_margin",  # how many of its jobs are in the last second of their time to run
        "leaving",  # it has disconnected, but may not have left all its tubes yet
        "owner",  # the name of its user, to whom the groups belong that it begins; "" without one
        "producer",  # it has sent a put
        "reserved",  # its jobs, in the order in which it reserved them
        "reserved_at",  # None, or since when it has its jobs reserved, by id, in nanoseconds: of MOST_NOTED at most
        "use",  # the tube that its puts go to
        "uses",  # that tube counts it; else it uses one elsewhere
        "waiting",  # for a job of one of the tubes it watches
        "waits",  # while it waits, one in the ring of each tube that it watches; kept for its next wait
        "watch_index",  # the position in `watched` of each tube, if there are many; else None
        "watched",  # the tubes that its reserves take from, in the order of list-tubes-watched
        "weights",  # None, or those of its tubes, and how it is served by them
        "worker",  # it has sent a reserve
    )

    use: Tube

    def __init__(self) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.watched: list[Tube] = []
        self.watch_index: dict[Tube, int] | None = None
        self.reserved = ReservedJobs()
        self.jobs_in_safety_margin = 0
        self.waiting = False
        self.waits: list[Wait] = []
        self.batch = 0
        self.busy = False
        self.client_name = ""
        self.reserved_at: dict[int, int] | None = None
        self.counted = True
        self.leaving = False
        self.uses = True
        self.owner = ""
        self.producer = False
        self.worker = False
        self.weights: Weights | None = None

    def note_reserved(self, job: Job, now: int) -> None:
        """Keep the moment at which it reserves a job, if it has a name."""
        moments = self.reserved_at
        if moments is not None and len(moments) < MOST_NOTED:
            moments[job.id] = now

    def reserved_since(self, job: Job) -> int:
        """When it reserved a job that it has, in nanoseconds; if not kept, when it reserved or touched it last."""
        moments = self.reserved_at
        since = -1 if moments is None else moments.get(job.id, -1)
        if since >= 0:
            return since
        return job.deadline - job.ttr + (0 if job.in_safety_margin else SAFETY_MARGIN)

    def watch_position(self, tube: Tube) -> int:
        """The position of a tube in `watched`; -1 if the client does not watch it."""
        index = self.watch_index
        if index is not None:
            return index.get(tube, -1)
        watched = self.watched
        return watched.index(tube) if tube in watched else -1

    def add_watched(self, tube: Tube) -> None:
        """Add a tube that the client does not watch yet."""
        watched = self.watched
        watched.append(tube)
        if self.watch_index is not None:
            self.watch_index[tube] = len(watched) - 1
        elif len(watched) > WATCH_INDEX_THRESHOLD:
            self.watch_index = {found: position for position, found in enumerate(watched)}

    def remove_watched(self, position: int) -> None:
        """Remove the tube at a position. As in beanstalkd, the last one takes its place."""
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
        if self.weights is not None:
            self.weights.drop(tube)

    def may_administer(self, _tube: str) -> bool:
        """Whether its redrive may send jobs to the tube of this name."""
        return True

    def may_consume(self, _tube: str) -> bool:
        """Whether its batch may concern jobs of the tube of this name; for it, other jobs are not found."""
        return True

    def on_reserved(self, job: Job) -> None:
        """It has reserved this job."""

    def on_reserved_batch(self, jobs: list[Job]) -> None:
        """It has reserved these jobs: at least one, at most as many as it asked for, the best first."""

    def on_best(self, job: Job, rank: int) -> None:
        """Its probe has found this job, whose body may not be in memory; at several places, the one with the smallest
        rank is next."""

    def on_found(self, job: Job) -> None:
        """Its peek has found this job."""

    def on_counted(self, count: int, missing: int = -1) -> None:
        """Its command is complete: it has done to this many jobs what it says, and has not found this many of those
        that it named; -1 if it named none."""

    def on_put_batch(self, count: int, first_id: int, last_id: int) -> None:
        """Its jobs are about to be put: their ids are evenly spaced."""

    def on_keyed(self, job_id: int) -> None:
        """This job has the key of the client's put: the new job, or the one that had the key before."""

    def on_outcome(self, outcome: Outcome) -> None:
        """Its pending command has ended with this outcome, and has found or counted nothing."""
