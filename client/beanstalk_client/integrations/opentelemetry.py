"""OpenTelemetry for tasks: a span for each put and each run, in one trace from who puts to who runs.

    from beanstalk_client.integrations.opentelemetry import Tracing

    tasks = Tasks("beanstalk://127.0.0.1:11300", middleware=[Tracing()])

The trace context travels in the body, under "meta", as the configured propagator writes it (`traceparent`). Names and
attributes are those of OpenTelemetry's semantic conventions for messaging: `send mail` and `process mail` for a tube
called mail. Needs the extra: `pip install './client[opentelemetry]' in a clone of beanstalk-server`.
Must never put the arguments of a task into a span, but in what its exception says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from beanstalk_client.tasks.middleware import Middleware, Put, Run

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode
except ImportError:
    raise ImportError(
        "tracing needs an extra: pip install './client[opentelemetry]' in a clone of beanstalk-server"
    ) from None

SYSTEM = "beanstalk"
TASK = "beanstalk.task"
"""The attribute with the name of the task, which the conventions have no word for."""


class Tracing(Middleware):
    """Makes the spans.

    Args:
        provider: of tracers; by default the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("beanstalk_client", tracer_provider=provider)

    @contextlib.contextmanager
    def putting(self, put: Put) -> Iterator[None]:
        """The span `send`, whose context goes with the message."""
        attributes = _attributes("send", put.tube, put.message.task)
        with self._tracer.start_as_current_span(
            f"send {put.tube}", kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            propagate.inject(put.message.meta)
            yield
            span.set_attribute("messaging.message.id", str(put.job_id))

    @contextlib.contextmanager
    def running(self, run: Run) -> Iterator[None]:
        """The span `process`: a child of `send`, and linked to it, as it may come days later."""
        context = propagate.extract({name: value for name, value in run.message.meta.items() if isinstance(value, str)})
        sent = trace.get_current_span(context).get_span_context()
        name = f"process {run.tube}" if run.tube else "process"
        attributes = {**_attributes("process", run.tube, run.message.task), "messaging.message.id": str(run.job_id)}
        with self._tracer.start_as_current_span(
            name,
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(sent)] if sent.is_valid else [],
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
                raise


def _attributes(operation: str, tube: str, task: str) -> dict[str, Any]:
    found = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": tube,
        TASK: task,
    }
    return {name: value for name, value in found.items() if value}
