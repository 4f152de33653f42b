"""Sentry for tasks: errors, traces from who puts to who runs, and monitors of schedules.

    import sentry_sdk
    from beanstalk_client.integrations.sentry import Sentry

    sentry_sdk.init(dsn="…", traces_sample_rate=0.1)
    tasks = Tasks("beanstalk://127.0.0.1:11300", middleware=[Sentry()])

A failed run is an event with the task, the tube, the number of the try, and what becomes of the job. Arguments are left
out unless `send_default_pii` is set, but Sentry sends the local variables of each frame, and with them the arguments,
unless `include_local_variables` is false. The trace context travels in the body, under "meta". Needs the
extra `sentry`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from beanstalk_client.schedules.schedule import SCHEDULE
from beanstalk_client.tasks.failure import Retry
from beanstalk_client.tasks.middleware import Failure, Middleware, Put, Run

try:
    import sentry_sdk
    from sentry_sdk.crons import monitor
    from sentry_sdk.scope import Scope, should_send_default_pii
    from sentry_sdk.utils import event_from_exception
except ImportError:
    raise ImportError("Sentry needs an extra: pip install './client[sentry]' in a clone of beanstalk-server") from None

if TYPE_CHECKING:
    from sentry_sdk._types import MonitorConfig

    from beanstalk_client.schedules import Schedule

HEADERS = ("sentry-trace", "baggage")
ORIGIN = "auto.queue.beanstalk"
SYSTEM = "beanstalk"

_ran: ContextVar[tuple[Run, Scope]] = ContextVar("beanstalk_client.sentry")
"""The run of this context, and its scope."""


class Sentry(Middleware):
    """Makes events, spans and check-ins.

    Args:
        every_try: each failed run is an event; otherwise only the last one of a job.
        monitor_schedules: each run of a schedule checks in with the monitor of its name, which is made when it does so
            for the first time. Schedules of less than a minute have none, as Sentry has none for them.
    """

    def __init__(self, *, every_try: bool = False, monitor_schedules: bool = False) -> None:
        self._every_try = every_try
        self._monitor_schedules = monitor_schedules

    @contextlib.contextmanager
    def putting(self, put: Put) -> Iterator[None]:
        """The span `queue.publish`, whose context goes with the message."""
        with sentry_sdk.start_span(op="queue.publish", name=put.message.task, origin=ORIGIN) as span:
            for name, value in zip(HEADERS, (sentry_sdk.get_traceparent(), sentry_sdk.get_baggage())):
                if value:
                    put.message.meta[name] = value
            _describe(span, put.tube)
            yield
            span.set_data("messaging.message.id", str(put.job_id))

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[None]:
        """A transaction in a scope of its own, which goes on the trace of the put."""
        with sentry_sdk.isolation_scope() as scope, self._checked_in(run):
            scope.clear_breadcrumbs()
            _ran.set((run, scope))
            scope.set_tag("beanstalk.task", run.message.task)
            transaction = sentry_sdk.continue_trace(
                _trace_of(run), op="queue.process", name=run.message.task, source="task", origin=ORIGIN
            )
            with sentry_sdk.start_transaction(transaction) as span:
                _describe(span, run.tube)
                span.set_data("messaging.message.id", str(run.job_id))
                yield

    def failed(self, run: Run, failure: Failure) -> None:
        """The event of a run that has failed. `Retry` is no error while there is a next try."""
        is_last = failure.delay is None
        if not is_last and (isinstance(failure.error, Retry) or not self._every_try):
            return
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            ran = _ran.get(None)
            if ran is not None and ran[0] is run:  # with the tags, the user and the breadcrumbs that the task has set
                scope.update_from_scope(ran[1])
            sentry_sdk.continue_trace(_trace_of(run))
            here = sentry_sdk.get_current_scope()
            here.clear()  # the span in which the event loop was started is not that of the run
            here.set_transaction_name(run.message.task, source="task")
            scope.set_tag("beanstalk.task", run.message.task)
            scope.set_tag("beanstalk.tube", run.tube)
            job: dict[str, Any] = {"id": run.job_id, "tube": run.tube, "task": run.message.task, "tries": failure.tries}
            job["next_try"] = "none: the job is buried" if is_last else f"in {failure.delay:.3g} s"
            if should_send_default_pii():
                job["args"], job["kwargs"] = run.message.args, run.message.kwargs
            scope.set_context("beanstalk", job)
            event, hint = event_from_exception(
                failure.error,
                client_options=sentry_sdk.get_client().options,
                mechanism={"type": SYSTEM, "handled": not is_last},
            )
            sentry_sdk.capture_event(event, hint=hint)

    def _checked_in(self, run: Run) -> contextlib.AbstractContextManager[None]:
        """The check-in of a schedule's monitor, if the run is one of a schedule."""
        name = run.message.meta.get(SCHEDULE)
        config = self._monitor_of(run, name) if self._monitor_schedules else None
        return contextlib.nullcontext() if config is None else monitor(name, config)

    def _monitor_of(self, run: Run, name: Any) -> MonitorConfig | None:
        """What Sentry should expect of a schedule; None if it has no monitor."""
        schedules = run._tasks.schedules if run._tasks is not None else ()
        return next((_config_of(schedule) for schedule in schedules if schedule.name == name), None)


def _config_of(schedule: Schedule) -> MonitorConfig | None:
    from beanstalk_client.schedules import Cron, Every

    moments = schedule.moments
    if isinstance(moments, Cron) and len(moments.expression.split()) == 5:
        return {"schedule": {"type": "crontab", "value": moments.expression}, "timezone": moments.tz}
    if isinstance(moments, Every):
        units: tuple[tuple[Any, int], ...] = (("day", 86400), ("hour", 3600), ("minute", 60))
        for unit, seconds in units:
            if moments.seconds % seconds == 0:
                return {"schedule": {"type": "interval", "value": int(moments.seconds // seconds), "unit": unit}}
    return None


def _trace_of(run: Run) -> dict[str, str]:
    """The trace context that came with the message."""
    return {name: run.message.meta[name] for name in HEADERS if isinstance(run.message.meta.get(name), str)}


def _describe(span: Any, tube: str) -> None:
    span.set_data("messaging.system", SYSTEM)
    if tube:
        span.set_data("messaging.destination.name", tube)
