"""Traces of tasks: from who puts to who runs, by OpenTelemetry's own exporter in memory."""

import asyncio

import pytest
from beanstalk_client import AsyncClient, Client, NotFoundError
from beanstalk_client.integrations.opentelemetry import Tracing, instrument, uninstrument
from beanstalk_client.tasks import Tasks
from consuming import SERVERS, running
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


@pytest.fixture
def tasks(provider):
    return Tasks(tube="mail", middleware=[Tracing(provider)])


def test_one_trace_leads_from_the_put_to_the_run(tasks, provider, exporter):
    @tasks.task
    def note(what):
        with provider.get_tracer("the task").start_as_current_span("inside"):
            pass

    with tasks.in_memory() as queue:
        with provider.get_tracer("the caller").start_as_current_span("request"):
            job_id = note.delay(3600).put("secret")
        assert queue.jobs()[0].message.meta["traceparent"].startswith("00-")
        assert queue.run(3600) == 1
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"request", "send mail", "process mail", "inside"}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    send, process = spans["send mail"], spans["process mail"]
    assert send.parent.span_id == spans["request"].context.span_id
    assert process.parent.span_id == process.links[0].context.span_id == send.context.span_id
    assert spans["inside"].parent.span_id == process.context.span_id
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    for span, operation in ((send, "send"), (process, "process")):
        assert dict(span.attributes) == {
            "messaging.system": "beanstalk",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": "mail",
            "messaging.message.id": str(job_id),
            "beanstalk.task": "note",
        }


def test_a_run_that_fails_is_an_error_and_shows_no_argument(tasks, exporter):
    @tasks.task(retries=0)
    def note(what):
        raise ValueError(what)

    with tasks.in_memory() as queue:
        note.put("secret")
        queue.run()
    (process,) = [span for span in exporter.get_finished_spans() if span.name == "process mail"]
    assert process.status.status_code is StatusCode.ERROR
    assert process.attributes["error.type"] == "ValueError"
    assert process.status.description == "ValueError"


def test_a_job_without_a_context_begins_a_trace(tasks, exporter):
    tasks.task(name="note")(lambda: None)
    with tasks.in_memory() as queue:
        queue.client("mail").put(b'{"task": "note", "meta": {"traceparent": 7}}')
        queue.run()
    (process,) = exporter.get_finished_spans()
    assert process.parent is None
    assert not process.links


@pytest.fixture
def instrumented(provider):
    instrument(provider)
    yield
    uninstrument()


def told(exporter):
    found = []
    for span in exporter.get_finished_spans():
        attributes = {name.removeprefix("messaging."): value for name, value in span.attributes.items()}
        assert attributes.pop("system") == "beanstalk"
        assert attributes.pop("server.address") == "127.0.0.1"
        assert attributes.pop("server.port") > 0
        found.append((span.name, span.kind, attributes))
    return found


COMMANDS = [
    (
        "send mail",
        SpanKind.PRODUCER,
        {"operation.name": "put", "operation.type": "send", "destination.name": "mail", "message.id": "1"},
    ),
    (
        "receive",
        SpanKind.CLIENT,
        {"operation.name": "reserve-with-timeout", "operation.type": "receive", "message.id": "1"},
    ),
    ("settle", SpanKind.CLIENT, {"operation.name": "delete", "operation.type": "settle"}),
    ("stats-job", SpanKind.CLIENT, {"operation.name": "stats-job", "error.type": "NotFoundError"}),
]


@pytest.mark.sockets
def test_each_command_of_a_client_has_a_span(exporter, instrumented):
    with running(SERVERS[0]) as server, Client(server.address, use="mail", watch="mail") as queue:
        queue.put("secret")
        queue.delete(queue.reserve(timeout=1))
        with pytest.raises(NotFoundError):
            queue.stats_job(1)
        uninstrument()
        queue.put("x")
    assert told(exporter) == COMMANDS
    assert exporter.get_finished_spans()[-1].status.status_code is StatusCode.ERROR


@pytest.mark.sockets
def test_each_command_of_an_asynchronous_client_has_one(exporter, instrumented):
    async def story(address):
        async with AsyncClient(address, use="mail", watch="mail") as queue:
            await queue.put("secret")
            await queue.delete(await queue.reserve(timeout=1))
            with pytest.raises(NotFoundError):
                await queue.stats_job(1)

    with running(SERVERS[0]) as server:
        asyncio.run(story(server.address))
    assert told(exporter) == COMMANDS
