"""A job as a client sees it: an id and a body."""

from __future__ import annotations

from typing import Generic, TypeVar, Union

TBody = TypeVar("TBody", str, bytes)
"""The type of bodies: str with an encoding, otherwise bytes.

Example:
    def body_of(job: Job[TBody]) -> TBody:
        return job.body
"""


class Origin:
    """The connection that jobs have come from: ids mean the same jobs only on the same server.

    Attributes:
        server: the `id` in the server's `stats`, which is new with each start; "" if it was not asked.
    """

    __slots__ = ("server",)

    def __init__(self) -> None:
        self.server: str = ""


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
        "id",
        "is_reserved",  # it was reserved, and not only looked at
        "origin",  # the connection that it has come from; None for one that the caller has made
    )

    def __init__(self, id: int, body: TBody, origin: Origin | None = None, is_reserved: bool = False) -> None:
        self.id: int = id
        self.body: TBody = body
        self.origin: Origin | None = origin
        self.is_reserved: bool = is_reserved

    def __repr__(self) -> str:
        return f"beanstalk_client.Job(id={self.id!r}, body={self.body!r})"


JobOrID = Union[Job[TBody], int]
"""A job, or its id.

Example:
    def drop(queue: Client[str], job: JobOrID[str]) -> None:
        queue.delete(job)
"""
