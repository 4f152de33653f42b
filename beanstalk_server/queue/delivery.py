"""Deliveries: jobs that a client is to get when their bodies are in memory again.

When a client reserves or peeks at a job whose body only the journal has, the broker does everything but the answer at
once. A delivery holds what is left: to give the client its answer when the journal has fetched the bodies. What has
happened to the jobs by then makes no difference, as if the reply had been on its way: the time to run of a job may have
ended, and another client may have deleted it.
"""

from __future__ import annotations

from beanstalk_server.queue.client import Client
from beanstalk_server.queue.job import Job
from beanstalk_server.queue.outcome import FAILED


class BodyRead:
    """One answer for one client, which is `busy` meanwhile."""

    __slots__ = (
        "client",
        "jobs",  # at least one, in the order in which the client gets them
    )

    def __init__(self, client: Client, jobs: list[Job]) -> None:
        self.client = client
        self.jobs = jobs

    def on_fetched(self) -> None:
        """Give the client its answer, unless it is gone: the bodies of all jobs are in memory."""
        client = self.client
        if client.leaving:
            return
        client.busy = False
        try:
            self.answer()
        except Exception:
            client.on_outcome(FAILED)
            raise

    def answer(self) -> None:
        raise NotImplementedError


class ReservedDelivery(BodyRead):
    """A job that the client has reserved."""

    def answer(self) -> None:
        self.client.on_reserved(self.jobs[0])


class BatchDelivery(BodyRead):
    """A batch of jobs that the client has reserved."""

    def answer(self) -> None:
        self.client.on_reserved_batch(self.jobs)


class FoundDelivery(BodyRead):
    """A job that a peek of the client has found."""

    def answer(self) -> None:
        self.client.on_found(self.jobs[0])
