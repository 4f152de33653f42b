"""One tube: its jobs in each state, the clients that wait for one of them, and its counters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from beanstalk_server.queue.durations import Durations
from beanstalk_server.queue.heap import JobHeap
from beanstalk_server.queue.histogram import RecentHistogram
from beanstalk_server.queue.job import BURIED, DELAYED, READY, RESERVED, DeadLetter, HeldKey, Holder, Job, Terms
from beanstalk_server.queue.outcome import DONE, DRAINING, TOO_BIG, Outcome
from beanstalk_server.queue.policy import NO_POLICY, UNREAD, Counters, Policy
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.table import KeyTable
from beanstalk_server.queue.wall_clock import TimedJobs
from beanstalk_server.queue.wheel import Timer

if TYPE_CHECKING:
    from beanstalk_server.queue.throttle import Throttle


class Tube(Timer):
    """One tube. Only the broker changes it; others may read.

    As a timer, its deadline is the end of its pause, or OVERDUE while its waiting clients are served in slices.
    """

    __slots__ = (
        "blocked",  # paused or throttled: reserve takes no job of it
        "buried",  # its buried jobs, first buried first
        "buried_count",
        "bury_sequence",  # the number of the last burial
        "bytes",  # of the bodies of its jobs, in memory or not
        "clearing",  # how many clears of it are under way
        "clears",  # how many clears of it have begun
        "counters",  # what its policy has done; UNREAD before it has had one
        "delayed",  # its delayed jobs, by (deadline, id), but for the timed ones
        "deletes",  # how often delete has deleted one of its jobs
        "durations",  # None, or those of its jobs
        "entry",  # its line in a list of tubes
        "held",  # its held keys, in no order
        "keys",  # its jobs that have a key, and its held keys, by key; None before the first
        "letter_count",
        "letters",  # its jobs that have come from other tubes, first come first; None if there are none
        "name",
        "pause",  # the whole length of its present pause, in nanoseconds; 0 if it is not paused
        "pause_record",  # None, or the record of its pause in the journal: a held key without a key
        "pauses",  # how often pause-tube has named it
        "policy",  # NO_POLICY, or what it demands of its jobs
        "position",  # its index in the list of all tubes
        "ready",  # its ready jobs, by (priority, id)
        "reserved",  # its reserved jobs, in no order
        "throttle",  # None, or what keeps it to a rate and a number of reserved jobs
        "timed",  # its delayed jobs that are due by the wall clock, by (moment, id); None while there are none
        "total_jobs",  # how many jobs have been put into it
        "urgent",  # how many of its ready jobs are urgent
        "using",  # how many clients use it
        "waiting",  # a Wait for each client that waits for one of its jobs, longest waiting first
        "waiting_count",
        "watching",  # how many clients watch it
    )

    def __init__(self, name: str, position: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.name = name
        self.entry = f"- {name}\n".encode()
        self.position = position
        self.ready = JobHeap()
        self.delayed = JobHeap()
        self.timed: TimedJobs | None = None
        self.buried = Ring()
        self.waiting = Ring()
        self.waiting_count = 0
        self.pause = 0
        self.pause_record: HeldKey | None = None
        self.throttle: Throttle | None = None
        self.blocked = False
        self.keys: KeyTable | None = None
        self.held: list[HeldKey] = []
        self.clears = 0
        self.clearing = 0
        self.urgent = 0
        self.reserved: list[Job] = []
        self.buried_count = 0
        self.bury_sequence = 0
        self.letters: Ring | None = None
        self.letter_count = 0
        self.total_jobs = 0
        self.deletes = 0
        self.pauses = 0
        self.policy = NO_POLICY
        self.durations: Durations | None = None
        self.counters = UNREAD
        self.bytes = 0
        self.using = 0
        self.watching = 0

    def set_policy(self, policy: Policy) -> None:
        """Let it demand this of its jobs, from now on; what it has counted under another policy stays."""
        self.policy = policy
        if policy is not NO_POLICY and self.counters is UNREAD:
            self.counters = Counters()
        if not policy.measures:
            self.durations = None
        elif self.durations is None:
            self.durations = Durations(RecentHistogram)

    def refusal(
        self, totals: Counters, delay: int, size: int, holds: bool, replaced: int = -1, count: int = 1, largest: int = 0
    ) -> Outcome:
        """Why its policy refuses a put with this delay, in nanoseconds, and a body of this size; DONE if it does not.

        A limit that no later attempt could meet comes first. A job that replaces another one adds no job, and only what
        its body is larger.

        Args:
            totals: the counters of the queue.
            holds: the job takes a token, or its key will stay taken when the job is gone.
            replaced: the size of the body that is replaced, if there is one.
            count: how many jobs are put at once; the size is that of all their bodies then.
            largest: the size of the largest of several bodies.
        """
        policy = self.policy
        counters = self.counters
        if policy.max_job_size and (largest or size) > policy.max_job_size:
            counters.refused_size += 1
            totals.refused_size += 1
            return TOO_BIG
        if policy.max_delay and delay > policy.max_delay:
            counters.refused_delay += 1
            totals.refused_delay += 1
            return DRAINING
        most = policy.max_jobs
        most_held = policy.max_held_keys or most
        has_too_many_keys = holds and most_held and len(self.held) >= most_held
        if has_too_many_keys or (most and replaced < 0 and self.job_count() + count > most):
            counters.refused_jobs += 1
            totals.refused_jobs += 1
            return DRAINING
        growth = size - max(replaced, 0)
        if policy.max_bytes and growth > 0 and self.bytes + growth > policy.max_bytes:
            counters.refused_bytes += 1
            totals.refused_bytes += 1
            return DRAINING
        return DONE

    def set_blocked(self) -> None:
        """Note that its pause, or what its throttle lacks, has changed."""
        self.blocked = self.pause != 0 or self.is_throttled()

    def is_throttled(self) -> bool:
        """Whether its throttle lets no job be reserved but by its id."""
        return self.throttle is not None and self.throttle.is_closed()

    def is_needed(self) -> bool:
        """Whether a job, a held key, a pause that is recorded, or a client that uses or watches it, keeps it alive."""
        return bool(
            self.using
            or self.watching
            or self.reserved
            or self.buried_count
            or self.ready.count()
            or self.delayed.jobs
            or self.timed is not None
            or self.held
            or self.pause_record is not None
        )

    def job_count(self) -> int:
        return self.ready.count() + self.delayed_count() + self.buried_count + len(self.reserved)

    def next_ready_age(self, now: int) -> int:
        """How long the job that is to be reserved next has been ready, in nanoseconds; 0 if no job is ready.

        As well as that is known (`Job.ready_since`), and rather too long than too short: for a worker more is less
        harm than one too few. A job that has not been ready at the end of its delay counts from its put; only one that
        has been moved while it was ready, or whose tube has got a time to live meanwhile, counts from then.
        """
        job = self.ready.first()
        if job is None:
            return 0
        since = job.ready_since()
        if since > now:
            since = job.created_at
        return max(now - since, 0)

    def delayed_count(self) -> int:
        return len(self.delayed.jobs) + (0 if self.timed is None else len(self.timed.jobs))

    def count_of(self, state: int) -> int:
        """How many of its jobs are in this state, one of READY, DELAYED, RESERVED and BURIED."""
        if state == READY:
            return self.ready.count()
        if state == DELAYED:
            return self.delayed_count()
        return self.buried_count if state == BURIED else len(self.reserved)

    def remove_reserved(self, job: Job) -> None:
        last = self.reserved.pop()
        if last is not job:
            self.reserved[job.heap_index] = last
            last.heap_index = job.heap_index

    def add_letter(self, job: Job, terms: Terms) -> None:
        """Add a job of this tube that has come from another one to the dead letters, as the last."""
        letters = self.letters
        if letters is None:
            letters = self.letters = Ring()
        letter = terms.letter = DeadLetter(job)
        letters.append(letter)
        self.letter_count += 1

    def remove_letter(self, terms: Terms) -> None:
        """Remove the job with these terms from the dead letters, if it is among them."""
        letter = terms.letter
        letters = self.letters
        if letter is None or letters is None:
            return
        letter.unlink()
        terms.letter = None
        self.letter_count -= 1
        if letters.is_empty():
            letters.dissolve()
            self.letters = None

    def add_held(self, held: HeldKey) -> None:
        held.heap_index = len(self.held)
        self.held.append(held)

    def remove_held(self, held: HeldKey) -> None:
        last = self.held.pop()
        if last is not held:
            self.held[held.heap_index] = last
            last.heap_index = held.heap_index

    def is_cleared(self, job: Holder) -> bool:
        """Whether a clear that is still under way has taken this job of the tube, or held key, out of its queue."""
        if not self.clearing:
            return False
        if not isinstance(job, Job):
            return job.key != "" and not (job.heap_index < len(self.held) and self.held[job.heap_index] is job)
        if job.state == RESERVED:
            return False
        if job.state == BURIED:
            return job.extras.clears != self.clears
        if job.state == READY:
            return not self.ready.holds(job)
        return not self.delayed.holds(job) and (self.timed is None or not self.timed.holds(job))
