"""What the broker asks of persistence, and the journal that keeps nothing.

The broker tells its journal of every change that outlives a reservation, in the order in which the changes happen:
a job put, changed or deleted. A reservation itself is not told: a reserved job comes back ready after a restart.

Must never know clients or commands.
"""

from __future__ import annotations

from beanstalk_server.queue.job import Job


class Journal:
    """The interface, and an implementation that keeps nothing: jobs live as long as the process."""

    def put(self, job: Job) -> bool:
        """A job comes into being, or takes the place of the one with its id.

        Its `deadline` is set if it has a delay; it is in no state yet.

        Returns:
            False when there is no room for it: then nothing may have changed.
        """
        return True

    def change(self, job: Job) -> None:
        """A job was released, buried, kicked or rescheduled: its state, priority, delay, deadline or counters are new.

        It may have gone to a client at once: then it is reserved, and counts as ready.
        """

    def delete(self, job: Job) -> None:
        """A job is deleted."""
