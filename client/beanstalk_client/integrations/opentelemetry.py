"""OpenTelemetry: a span for each put and each run of a task, in one trace; and for each command of the clients.

    from beanstalk_client.integrations.opentelemetry import Tracing, instrument

    tasks = Tasks("beanstalk://127.0.0.1:11300", middleware=[Tracing()])
    instrument()

The trace context travels in the body, under "meta", as the configured propagator writes it (`traceparent`). Names and
attributes are those of OpenTelemetry's semantic conventions for messaging: `send mail` and `process mail` for a tube
called mail. Needs the extra: `pip install './client[opentelemetry]' in a clone of beanstalk-server`.
Must never put the arguments of a task into a span, but in what its exception says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable

from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.blocking import Client
from beanstalk_client.commands import Command
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
        with (
            self._tracer.start_as_current_span(
                name,
                context=context,
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=[Link(sent)] if sent.is_valid else [],
                set_status_on_exception=False,
            ) as span,
            _error_noted(span),
        ):
            yield


OPERATIONS = {
    **dict.fromkeys(("put", "put-with", "put-keyed", "replace-keyed"), "send"),
    **dict.fromkeys(("reserve", "reserve-with-timeout", "reserve-job", "reserve-batch"), "receive"),
    **dict.fromkeys(("delete", "release", "bury", "touch"), "settle"),
}
"""The conventions' word for what a command does, where they have one."""

_plain: dict[type, Any] = {}
"""`execute` of the classes that are instrumented, as it was."""


def instrument(provider: trace.TracerProvider | None = None) -> None:
    """Make a span for each command of `Client` and `AsyncClient` from now on, but not for those of pipelines.

    `send mail` and `receive`; a command for which the conventions have no word has its own name, such as `stats-job`.

    Args:
        provider: of tracers; by default the global one.
    """
    if _plain:
        return
    tracer = trace.get_tracer("beanstalk_client", tracer_provider=provider)
    execute, aexecute = Client.execute, AsyncClient.execute
    _plain.update({Client: execute, AsyncClient: aexecute})

    def traced(self: Client[Any], command: Command[Any]) -> Any:
        with _command_span(tracer, self, command) as end:
            return end(execute(self, command))

    async def atraced(self: AsyncClient[Any], command: Command[Any]) -> Any:
        with _command_span(tracer, self, command) as end:
            return end(await aexecute(self, command))

    Client.execute = traced  # type: ignore[method-assign]
    AsyncClient.execute = atraced  # type: ignore[method-assign]


def uninstrument() -> None:
    """Make no spans for commands any more."""
    while _plain:
        kind, execute = _plain.popitem()
        kind.execute = execute  # type: ignore[attr-defined]


@contextlib.contextmanager
def _command_span(
    tracer: trace.Tracer, client: Client[Any] | AsyncClient[Any], command: Command[Any]
) -> Iterator[Callable[[Any], Any]]:
    operation = OPERATIONS.get(command.name, "")
    tube = client._session.used if operation == "send" else ""
    attributes = _attributes(operation, tube, "", command.name)
    address = client._target.addresses[0]
    attributes["server.address"] = address.path or address.host
    if not address.path:
        attributes["server.port"] = address.port
    kind = SpanKind.PRODUCER if operation == "send" else SpanKind.CLIENT
    name = f"{operation or command.name} {tube}".rstrip()
    with tracer.start_as_current_span(name, kind=kind, attributes=attributes, set_status_on_exception=False) as span:

        def end(result: Any) -> Any:
            job_id = result if operation == "send" else getattr(result, "id", None)
            if isinstance(job_id, int):
                span.set_attribute("messaging.message.id", str(job_id))
            return result

        with _error_noted(span):
            yield end


@contextlib.contextmanager
def _error_noted(span: trace.Span) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, type(error).__qualname__))
        raise


def _attributes(operation: str, tube: str, task: str, command: str = "") -> dict[str, Any]:
    found = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": command or operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": tube,
        TASK: task,
    }
    return {name: value for name, value in found.items() if value}
