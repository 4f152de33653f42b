"""structlog in tasks: each line that a task logs says which task, tube and job it is of.

    from beanstalk_client.integrations.structlog import LogContext

    tasks = Tasks("beanstalk://127.0.0.1:11300", middleware=[LogContext()])

structlog must merge context variables: `structlog.contextvars.merge_contextvars` is among its processors by default.
Needs structlog, which is no extra: who uses it has it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from structlog.contextvars import bound_contextvars

from beanstalk_client.tasks.middleware import Middleware, Run


class LogContext(Middleware):
    """Binds `task`, `tube` and `job` while a task runs, also in the thread of a plain function."""

    def running(self, run: Run) -> AbstractContextManager[Any]:
        return bound_contextvars(task=run.message.task, tube=run.tube, job=run.job_id)
