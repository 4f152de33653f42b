"""The outbox of a project with Django, on SQLite and PostgreSQL."""

import contextlib
import io
import json
import time

import django
import pytest
from beanstalk_client.integrations.django.backend import BeanstalkBackend
from beanstalk_client.integrations.django.library import task_backends
from beanstalk_client.outbox.django import DjangoDatabase, Outbox
from beanstalk_client.outbox.relay import Relay
from beanstalk_client.tasks import Tasks
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.test import override_settings
from django_shop.tasks import remind
from outbox_servers import FakeServer

from harness.postgres import single_postgres

django.setup()
OutboxRow = apps.get_model("beanstalk_outbox", "OutboxRow")

SERVER = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres", "HOST": "127.0.0.1"}


@pytest.fixture(scope="module")
def postgresql():
    with single_postgres() as server:
        connections.settings = connections.configure_settings(
            connections.settings | {"postgresql": SERVER | {"PORT": server.port}}
        )
        yield "postgresql"
        connections["postgresql"].close()
        del connections["postgresql"]
        del connections.settings["postgresql"]


@pytest.fixture(params=["default", "postgresql"])
def alias(request):
    """A database with the table, which is empty."""
    alias = request.param if request.param == "default" else request.getfixturevalue(request.param)
    call_command("migrate", "beanstalk_outbox", database=alias, verbosity=0)
    yield alias
    OutboxRow.objects.using(alias).all().delete()


@pytest.fixture
def server():
    return FakeServer()


@pytest.fixture
def mail(alias):
    tasks = Tasks(outbox=Outbox(alias))
    tasks.only_in_memory = True  # no test connects

    @tasks.task(tube="mail")
    def mail(to): ...

    return mail


def test_jobs_of_committed_transactions_are_sent(alias, mail, server):
    with transaction.atomic(alias):
        mail.put("a")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(alias):
            mail.put("never")
            raise ZeroDivisionError
        mail.delay("1h").key("order-17").put("b")
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(alias):
        mail.put("never")
        raise ZeroDivisionError
    assert OutboxRow.objects.using(alias).count() == 2
    relay = Relay(DjangoDatabase(alias), server.connect)
    relay.run_once()
    assert server.puts == [("mail", None, mail.body("a")), ("mail", "order-17", mail.body("b"))]
    assert 3590 < server.delays[1] < 3600
    assert relay.status().waiting == 0


def test_outside_a_transaction_jobs_are_put_at_once(mail):
    with pytest.raises(RuntimeError, match="a test would connect"):
        mail.put("a")


def test_a_commit_wakes_a_relay_on_postgresql(postgresql):
    call_command("migrate", "beanstalk_outbox", database=postgresql, verbosity=0)
    database = DjangoDatabase(postgresql)
    assert database.wait(0)
    with transaction.atomic(postgresql):
        Outbox(postgresql).client("mail").put(b"a")
    began = time.monotonic()
    assert database.wait(60)
    assert time.monotonic() - began < 30
    database.close()
    OutboxRow.objects.using(postgresql).all().delete()


def test_a_relay_that_waits_goes_on_when_its_connection_is_lost(postgresql):
    database = DjangoDatabase(postgresql)
    assert database.wait(0)
    with connections[postgresql].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    with pytest.raises(ConnectionError):
        database.wait(60)
    database.close()
    assert database.wait(0)
    database.close()


def test_sqlite_has_no_notifications():
    assert not DjangoDatabase().wait(60)


def test_the_model_is_as_its_migration():
    call_command("makemigrations", "beanstalk_outbox", check=True, verbosity=0)
    assert OutboxRow._meta.db_table == "beanstalk_outbox"


@pytest.fixture
def backend():
    call_command("migrate", "beanstalk_outbox", verbosity=0)
    options = {"addresses": "127.0.0.1:1", "outbox": "default"}
    name = f"{BeanstalkBackend.__module__}.{BeanstalkBackend.__name__}"
    with override_settings(TASKS={"default": {"BACKEND": name, "QUEUES": ["default", "mail"], "OPTIONS": options}}):
        yield task_backends["default"]
    OutboxRow.objects.all().delete()


def test_the_backend_of_tasks_writes_rows(backend, server):
    with transaction.atomic():
        result = remind.enqueue(17)
        assert backend.cancel(result.id)
    commands = [(row.command, row.tube, json.loads(row.arguments)) for row in OutboxRow.objects.order_by("id")]
    assert commands[0][:2] == ("put_with", "default")
    assert [(command, tube) for command, tube, _ in commands[1:]] == [
        ("cancel_keyed", "default"),
        ("cancel_keyed", "mail"),
    ]
    assert result.id.encode() in OutboxRow.objects.earliest("id").body
    with pytest.raises(ConnectionError):
        remind.enqueue(17)


@pytest.mark.parametrize(
    ("options", "told"), [({"outbox": "nowhere"}, "'nowhere'"), ({"outbox": 17}, "17")], ids=["alias", "type"]
)
def test_the_option_is_checked(backend, options, told):
    found = [each.msg for each in BeanstalkBackend("default", {"OPTIONS": options}).check()]
    assert [each for each in found if f"OPTIONS['outbox'] is {told}" in each]


def test_the_option_needs_its_app(backend):
    with override_settings(INSTALLED_APPS=["django_shop", "beanstalk_client.integrations.django"]):
        found = [each.msg for each in backend.check()]
    assert [each for each in found if "OPTIONS['outbox'] requires its app" in each]


def command(*arguments):
    out = io.StringIO()
    call_command("beanstalk_outbox", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_prints_the_status_and_retries_failed_rows(backend):
    with transaction.atomic():
        remind.enqueue(17)
    OutboxRow.objects.update(failed="JobTooBigError")
    assert command("--status") == "0 rows waiting; 1 row failed\n"
    assert command("--retry-failed") == "1 failed row will be sent again\n"
    assert "1 row waiting" in command("--status")


def test_the_command_says_why_it_cannot_send(backend):
    with pytest.raises(CommandError, match="DATABASES has no 'other'"):
        command("--status", "--database", "other")
    with pytest.raises(CommandError, match=r"the server: 127\.0\.0\.1:1"):
        command("--once")
    with pytest.raises(CommandError, match="no module nowhere"):
        command("nowhere:tasks")
