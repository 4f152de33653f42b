"""Functions that are called by workers: `Tasks`, and what goes with it.

tasks = Tasks("beanstalk://127.0.0.1:11300")

@tasks.task(tube="mail", retries=12)
def send_mail(to, subject): ...

send_mail.put("a@example.com", subject="Hello")
"""

from __future__ import annotations

from beanstalk_client.tasks.failure import GiveUp, Retry
from beanstalk_client.tasks.group import JobGroup
from beanstalk_client.tasks.message import JSON, Message, Serializer
from beanstalk_client.tasks.middleware import Failure, Middleware, Put, Run, current_run
from beanstalk_client.tasks.results import Progress, Result, ResultGoneError, TaskFailedError
from beanstalk_client.tasks.task import Call, ResultCall, Task
from beanstalk_client.tasks.tasks import Tasks

__all__ = [
    "JSON",
    "Call",
    "Failure",
    "GiveUp",
    "JobGroup",
    "Message",
    "Middleware",
    "Progress",
    "Put",
    "Result",
    "ResultCall",
    "ResultGoneError",
    "Retry",
    "Run",
    "Serializer",
    "Task",
    "TaskFailedError",
    "Tasks",
    "current_run",
]
