"""Clients for beanstalk job queues: beanstalkd's, and beanstalk-server's with all that it has beyond them.

from beanstalk_client import Client

with Client("127.0.0.1:11300") as queue:
    queue.put("hello")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from beanstalk_client.address import OneAddress as Address
from beanstalk_client.blocking import Client
from beanstalk_client.commands import DEFAULT_DELAY, DEFAULT_PRIORITY, DEFAULT_TTR, DEFAULT_TUBE
from beanstalk_client.errors import (
    BadFormatError,
    BeanstalkdError,
    BuriedError,
    ConnectionLostError,
    DeadlineSoonError,
    DrainingError,
    Error,
    ExistsError,
    ExpectedCrlfError,
    ForbiddenError,
    InternalError,
    JobTooBigError,
    NoAnswerError,
    NotFoundError,
    NotIgnoredError,
    OtherShardError,
    OutOfMemoryError,
    ReservationLostError,
    TimedOutError,
    TooLateError,
    UnauthorizedError,
    UndecodableError,
    UnknownCommandError,
    UnknownResponseError,
    UnreachableError,
    UnsupportedError,
)
from beanstalk_client.job import Job, JobOrID, TBody
from beanstalk_client.statistics import Statistics as Stats
from beanstalk_client.version import VERSION

if TYPE_CHECKING:
    from beanstalk_client.asynchronous import AsyncClient
    from beanstalk_client.tasks import Tasks

__version__ = VERSION
"""The version of this package.

Example:
    print(beanstalk_client.__version__)
"""

__all__ = [
    "DEFAULT_DELAY",
    "DEFAULT_PRIORITY",
    "DEFAULT_TTR",
    "DEFAULT_TUBE",
    "Address",
    "AsyncClient",
    "BadFormatError",
    "BeanstalkdError",
    "BuriedError",
    "Client",
    "ConnectionLostError",
    "DeadlineSoonError",
    "DrainingError",
    "Error",
    "ExistsError",
    "ExpectedCrlfError",
    "ForbiddenError",
    "InternalError",
    "Job",
    "JobOrID",
    "JobTooBigError",
    "NoAnswerError",
    "NotFoundError",
    "NotIgnoredError",
    "OtherShardError",
    "OutOfMemoryError",
    "ReservationLostError",
    "Stats",
    "TBody",
    "Tasks",
    "TimedOutError",
    "TooLateError",
    "UnauthorizedError",
    "UndecodableError",
    "UnknownCommandError",
    "UnknownResponseError",
    "UnreachableError",
    "UnsupportedError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for: a blocking program does not wait for the import of asyncio."""
    if name == "AsyncClient":
        from beanstalk_client.asynchronous import AsyncClient

        return AsyncClient
    if name == "Tasks":
        from beanstalk_client.tasks import Tasks

        return Tasks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
