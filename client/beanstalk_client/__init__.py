"""Clients for beanstalk job queues: beanstalkd's, and beanstalk-server's with all that it has beyond them.

from beanstalk_client import Client

with Client("127.0.0.1:11300") as queue:
    queue.put("hello")
"""

from __future__ import annotations

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
    UnknownCommandError,
    UnknownResponseError,
    UnsupportedError,
)
from beanstalk_client.job import Job, JobOrID, TBody
from beanstalk_client.version import VERSION

__version__ = VERSION

__all__ = [
    "DEFAULT_DELAY",
    "DEFAULT_PRIORITY",
    "DEFAULT_TTR",
    "DEFAULT_TUBE",
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
    "TBody",
    "TimedOutError",
    "TooLateError",
    "UnauthorizedError",
    "UnknownCommandError",
    "UnknownResponseError",
    "UnsupportedError",
    "__version__",
]
