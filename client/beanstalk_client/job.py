"""A job as a client sees it: an id and a body."""

from __future__ import annotations

from typing import Generic, TypeVar, Union

TBody = TypeVar("TBody", str, bytes)
"""The type of bodies: str with an encoding, otherwise bytes.

Example:
    def body_of(job: Job[TBody]) -> TBody:
        return job.body
"""


class Job(Generic[TBody]):
    """A job that was reserved, or looked at.

    Example:
        job: Job[str] = queue.reserve()
        print(job.id, job.body)

    Attributes:
        id: the server's number for it.
        body: text where the client has an encoding, otherwise bytes.
    """

    __slots__ = (
        "body",
        "epoch",  # the connection that has reserved it, by its number; 0 for one that was only looked at
        "id",
    )

    def __init__(self, id: int, body: TBody, epoch: int = 0) -> None:
        self.id: int = id
        self.body: TBody = body
        self.epoch: int = epoch

    def __repr__(self) -> str:
        return f"beanstalk_client.Job(id={self.id!r}, body={self.body!r})"


JobOrID = Union[Job[TBody], int]
"""A job, or its id.

Example:
    def drop(queue: Client[str], job: JobOrID[str]) -> None:
        queue.delete(job)
"""


def id_of(job: JobOrID[TBody]) -> int:
    """The id of a job, which may be given for it."""
    return job.id if isinstance(job, Job) else job
