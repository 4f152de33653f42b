"""The durations of jobs: how long they wait, how long clients have them, how late time is.

They are those of all tubes together, of one broker or of several, or those of one tube whose policy asks for them. What
they say is as exact as can be known without a byte more for each job:

    waited      from the moment when a job is ready to its first reservation
                    a job with terms notes that moment (`Terms.ready_since`)
                    any other is ready when its delay is over, counted from when its put came
                    not counted if neither is known: a job without terms that has been rescheduled, kicked, replaced or,
                    while it was ready, moved
                    not counted, either: a job that was there before a restart, when clients may have had it; and one
                    that is reserved again after `unreserve`, as if it never had been
                    time in a tube that is paused or throttled counts
    ran         from the reservation of a job, or from its last touch, to the delete, release or bury of its client
                    a job has the end of its time to run, and nothing else of its reservation: so a touch begins anew
                    not counted if the time to run ends, or the client disconnects: then it is not known when it stopped
    lateness    from the moment at which a delayed job is due to the one at which it is ready, by the clock of `advance`
                    up to a tick of it is the precision of the wheel
                    a job that is due by the wall clock is late by what that clock says, also if it has been set ahead
                    not counted if the delay ended while no server was running

The moment of a job with terms is that at which its delay was over, however late the server was; of one that is due by
the wall clock, that at which the server found this out; of one that a new policy has given a time to live while it was
ready, that at which it did; of one that had no terms and has been moved to another tube, that of the move.
"""

from __future__ import annotations

from collections.abc import Callable

from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.queue.job import SAFETY_MARGIN, Job


class Durations:
    """What is known of the durations of jobs. A broker or a tube that has one counts them in it.

    Args:
        make: makes each of the three histograms.
    """

    def __init__(self, make: Callable[[], Histogram] = Histogram) -> None:
        self.waited = make()
        self.ran = make()
        self.lateness = make()  # of delayed jobs

    def note_reservation(self, job: Job, now: int) -> None:
        """A job that is ready is about to be reserved."""
        if not job.reserves and job.page >= 0:
            self.waited.add(now - job.ready_since())

    def note_end(self, job: Job, now: int) -> None:
        """The client of a reserved job is about to delete, release or bury it."""
        end = job.deadline if job.in_safety_margin else job.deadline + SAFETY_MARGIN
        self.ran.add(now - (end - job.ttr))
