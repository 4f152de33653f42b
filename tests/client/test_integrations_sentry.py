"""Sentry sees tasks: with its own SDK, whose events go into a list."""

import asyncio
import contextlib
import json

import pytest
import sentry_sdk
from beanstalk_client import AsyncClient, Client, Error
from beanstalk_client.integrations.sentry import Sentry
from beanstalk_client.tasks import GiveUp, Retry, Tasks
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from beanstalk_server import ListenerConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token


class Kept(Transport):
    def __init__(self):
        super().__init__()
        self.items = []

    def capture_envelope(self, envelope):
        self.items += [(item.type, item.payload.json) for item in envelope.items]


@pytest.fixture
def sent():
    """A function that sets up Sentry, and returns what it is sent of one kind."""
    transport = Kept()

    @contextlib.contextmanager
    def init(**options):
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:1/1",
            release="1",
            transport=transport,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
            **options,
        )
        try:
            yield lambda kind: [content for found, content in transport.items if found == kind]
        finally:
            sentry_sdk.get_client().close(timeout=0)
            sentry_sdk.get_global_scope().set_client(None)  # or it adds headers to requests of later tests

    return init


def make_tasks(**options):
    return Tasks("127.0.0.1:1", tube="mail", middleware=[Sentry(**options)])


def test_one_trace_leads_from_the_put_to_the_run(sent):
    tasks = make_tasks()

    @tasks.task
    def note(what):
        with sentry_sdk.start_span(op="inside", name="inside"):
            pass

    with sent() as items, tasks.in_memory() as queue:
        with sentry_sdk.start_transaction(name="request") as request:
            job_id = note.delay(3600).put("secret")
        assert queue.run(3600) == 1
        run = next(each for each in items("transaction") if each["transaction"] == "note")
    trace = run["contexts"]["trace"]
    assert (trace["trace_id"], trace["op"]) == (request.trace_id, "queue.process")
    assert trace.get("status") in (None, "ok")
    data = {"messaging.system": "beanstalk", "messaging.destination.name": "mail", "messaging.message.id": str(job_id)}
    assert data.items() <= trace["data"].items()
    assert [span["op"] for span in run["spans"]] == ["inside"]
    put = next(each for each in items("transaction") if each["transaction"] == "request")
    assert put["spans"][0]["span_id"] == trace["parent_span_id"]
    assert data.items() <= put["spans"][0]["data"].items()
    assert "secret" not in repr((run, put))


def failing(tasks):
    @tasks.task(retries=1, backoff=60)
    def fail(address):
        raise ValueError("no such mailbox")

    return fail


def test_the_last_failure_is_an_event_with_task_and_try_and_without_arguments(sent):
    tasks = make_tasks()
    fail = failing(tasks)
    with sent(include_local_variables=False) as items, tasks.in_memory() as queue:
        job_id = fail.put("ann@example.com")
        queue.run()
        assert items("event") == []
        queue.run("1h")
        (event,) = items("event")
    (error,) = event["exception"]["values"]
    assert (error["type"], error["value"], error["mechanism"]["handled"]) == ("ValueError", "no such mailbox", False)
    assert event["transaction"] == "fail"
    assert event["tags"] == {"beanstalk.task": "fail", "beanstalk.tube": "mail"}
    assert {k: v for k, v in event["contexts"]["beanstalk"].items() if k != "type"} == {
        "id": job_id,
        "tube": "mail",
        "task": "fail",
        "tries": 2,
        "next_try": "none: the job is buried",
    }
    runs = [each for each in items("transaction") if each["transaction"] == "fail"]
    assert event["contexts"]["trace"]["trace_id"] == runs[-1]["contexts"]["trace"]["trace_id"]
    assert [run["contexts"]["trace"]["status"] for run in runs] == ["internal_error", "internal_error"]
    assert "ann@example.com" not in repr(items("event") + items("transaction"))


@pytest.mark.filterwarnings("ignore:The send_default_pii option is deprecated:DeprecationWarning")
def test_each_try_may_be_an_event_and_arguments_may_be_sent(sent):
    tasks = make_tasks(every_try=True)
    fail = failing(tasks)
    with sent(send_default_pii=True) as items, tasks.in_memory() as queue:
        fail.put("ann@example.com")
        queue.run("1h")
        first, second = (each["contexts"]["beanstalk"] for each in items("event"))
    assert (first["tries"], first["next_try"], second["tries"]) == (1, "in 60 s", 2)
    assert first["args"] == ["ann@example.com"]


def test_a_task_that_asks_for_another_try_has_not_failed_until_it_gives_up(sent):
    tasks = make_tasks(every_try=True)
    asked = []

    @tasks.task
    def ask():
        asked.append(1)
        if len(asked) == 1:
            raise Retry("1m")
        raise GiveUp("it is no use")

    with sent() as items, tasks.in_memory() as queue:
        ask.put()
        queue.run("1h")
        (event,) = items("event")
    assert event["exception"]["values"][0]["value"] == "it is no use"


def test_a_schedule_checks_in_with_its_monitor(sent):
    tasks = make_tasks(monitor_schedules=True)
    ends = []

    @tasks.every("5m", name="pruning")
    @tasks.task(retries=0)
    def prune():
        if ends:
            raise ValueError("full")
        ends.append(1)

    @tasks.every("30s")
    @tasks.task
    def often(): ...

    with sent() as items, tasks.in_memory(now=1_000_000_200) as queue:
        prune.put()  # which no schedule has put
        queue.run(0)
        assert items("check_in") == []
        ends.clear()
        queue.run("5m")
        queue.run("5m")
        checked = items("check_in")
    assert [(each["monitor_slug"], each["status"]) for each in checked] == [
        ("pruning", "in_progress"),
        ("pruning", "ok"),
        ("pruning", "in_progress"),
        ("pruning", "error"),
    ]
    assert checked[0]["check_in_id"] == checked[1]["check_in_id"] != checked[2]["check_in_id"]
    assert checked[0]["monitor_config"] == {"schedule": {"type": "interval", "value": 5, "unit": "minute"}}


def test_a_cron_schedule_has_a_monitor_with_its_zone(sent):
    pytest.importorskip("cronsim")
    tasks = make_tasks(monitor_schedules=True)

    @tasks.cron("0 8 * * mon", tz="Europe/Berlin")
    @tasks.task
    def report(): ...

    with sent() as items, tasks.in_memory() as queue:
        queue.run("8d")
        (begun, *_) = items("check_in")
    assert begun["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 8 * * mon"},
        "timezone": "Europe/Berlin",
    }


def test_a_failure_is_one_event_and_has_the_job_where_sentry_makes_events_of_logs(sent):
    tasks = make_tasks()
    fail = failing(tasks)
    with sent(integrations=[LoggingIntegration(), DedupeIntegration()]) as items, tasks.in_memory() as queue:
        fail.put("ann@example.com")
        queue.run("1h")
        (event,) = items("event")
    assert event["contexts"]["beanstalk"]["task"] == "fail"


TOKEN = "-".join(["SECRET", "TOKEN"])  # an event has the lines of the source, too


def url_of(address):
    """A URL with a token, which no variable of a test holds."""
    return f"beanstalk://:{TOKEN}@{address}"


def connect(kind, address, options):
    client = kind(url_of(address), **options)
    if kind is AsyncClient:
        asyncio.run(client.connect())


@pytest.mark.sockets
@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("127.0.0.1:1", {"connect_timeout": 5, "reconnect_timeout": 0.1}),
        ("127.0.0.1:0", {}),
        ("192.0.2.1:1", {}),
        ("127.0.0.1:1", {"use": "not a name"}),
        ("127.0.0.1:1", {"timeout": "soon"}),
        (None, {}),
    ],
    ids=["no server", "bad port", "insecure", "bad name", "bad duration", "wrong token"],
)
def test_no_event_of_a_failed_connection_has_the_token_of_the_url(sent, run, kind, address, options):
    if address is None:
        user = UserConfig(name="root", token_sha256=(hash_of_token("another"),))
        server = run(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(user,))
        address = "{}:{}".format(*server.address)
    with sent(include_local_variables=True, max_value_length=100_000) as items:
        try:
            connect(kind, address, options)
        except (Error, OSError, ValueError):
            sentry_sdk.capture_exception()
        (event,) = items("event")
    text = json.dumps(event)
    assert '"vars"' in text and TOKEN not in text


@pytest.mark.parametrize("is_async", [True, False])
def test_an_event_has_the_tags_that_its_task_has_set_and_no_others(sent, is_async):
    tasks = make_tasks()

    def fail(tag):
        sentry_sdk.set_tag("customer", tag)
        sentry_sdk.set_user({"id": tag})
        raise ValueError(tag)

    async def fail_async(tag):
        fail(tag)

    task = tasks.task(name="fail", retries=0)(fail_async if is_async else fail)
    bare = tasks.task(name="bare", retries=0)(lambda: 1 // 0)
    with sent() as items, tasks.in_memory() as queue:
        task.put("a")
        bare.put()
        queue.run()
        first, second = items("event")
    assert (first["tags"]["customer"], first["user"]["id"]) == ("a", "a")
    assert "customer" not in second["tags"]
    assert first["tags"]["beanstalk.tube"] == "mail"
