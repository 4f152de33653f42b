"""Calls of tasks inside a transaction: rows, and what cannot be done there."""

import asyncio
import contextlib
import json
from datetime import datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest
from beanstalk_client.job import Job
from beanstalk_client.outbox.rows import OutboxClient, sent_arguments
from beanstalk_client.tasks import Middleware, Tasks


class FakeOutbox:
    """An outbox whose rows are in a list."""

    def __init__(self):
        self.rows = []
        self.is_inside = True
        self.is_async = False

    def client(self, tube):
        return OutboxClient(tube, self._write, self.is_async) if self.is_inside else None

    def _write(self, row):
        async def later():
            self.rows.append(row)

        return later() if self.is_async else self.rows.append(row)

    @property
    def commands(self):
        return [(row["command"], row["tube"], row["job_key"], json.loads(row["arguments"])) for row in self.rows]


@pytest.fixture
def outbox():
    return FakeOutbox()


@pytest.fixture
def tasks(outbox):
    tasks = Tasks(outbox=outbox, tube="shop")
    tasks.only_in_memory = True  # no test connects
    return tasks


@pytest.fixture
def mail(tasks):
    @tasks.task(tube="mail", retries=3)
    def mail(to, subject=""): ...

    return mail


def test_a_put_is_a_row(mail, outbox):
    assert mail.put("a@example.com", subject="Hello") == 0
    assert mail.delay("15m").key("order-17", hold="1h").priority(5).put("b") == 0
    assert mail.at(2e9).put("c") == 0
    common = {"priority": 65536, "delay": 0, "ttr": 60, "tries": 4}
    keyed = common | {"priority": 5, "delay": 900, "key": "order-17", "hold": 3600}
    assert outbox.commands == [
        ("put_with", "mail", None, common),
        ("put_with", "mail", "order-17", keyed),
        ("put_with", "mail", None, common | {"at": 2e9}),
    ]
    assert outbox.rows[0]["body"] == mail.body("a@example.com", subject="Hello")
    assert len({row["token"] for row in outbox.rows}) == 3


def test_changes_are_rows(mail, outbox):
    assert mail.cancel("order-17") is True
    assert mail.cancel(17) is True
    assert mail.reprioritize("order-17", 3) is True
    assert outbox.commands == [
        ("cancel_keyed", "mail", "order-17", {"key": "order-17"}),
        ("cancel", "mail", None, {"job": 17}),
        ("reprioritize_keyed", "mail", "order-17", {"key": "order-17", "priority": 3}),
    ]


@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asynchronous"])
def test_calls_for_asyncio_are_rows(mail, outbox, is_async):
    outbox.is_async = is_async

    async def main():
        return [await mail.aput("a"), await mail.acancel("order-17")]

    assert asyncio.run(main()) == [0, True]
    assert [command for command, *_ in outbox.commands] == ["put_with", "cancel_keyed"]


def test_a_blocking_call_in_an_asynchronous_transaction_is_an_error(mail, outbox):
    outbox.is_async = True
    with pytest.raises(RuntimeError, match="await aput"):
        mail.put("a")
    assert outbox.rows == []


def test_results_and_reading_commands_are_errors(tasks, mail, outbox):
    with pytest.raises(RuntimeError, match=r"so no result\(\)"):
        mail.result().put("a")
    with pytest.raises(RuntimeError, match="stats_group cannot be called inside a database transaction"):
        tasks.group("mail").stats()
    assert outbox.rows == []


@pytest.mark.parametrize("call", [lambda mail: mail.put(), lambda mail: mail.put(object())])
def test_a_call_that_is_wrong_writes_nothing(mail, outbox, call):
    with pytest.raises(TypeError):
        call(mail)
    assert outbox.rows == []


def test_arguments_of_all_types_are_kept(outbox):
    client = outbox.client("mail")
    client.put_with(b"", delay=Decimal("1.5"), ttl=timedelta(minutes=1))
    client.put_with(b"", at=datetime.fromtimestamp(2e9), tries=3)
    client.reschedule(Job(5, b""), "15m")
    assert [arguments for *_, arguments in outbox.commands] == [
        {"delay": 1.5, "ttl": 60},
        {"at": 2e9, "tries": 3},
        {"job": 5, "delay": 900},
    ]


@pytest.mark.parametrize(
    ("attributes", "once", "once_ttl"),
    [({}, "token", 3600), ({"once": "own"}, "own", 3600), ({"once": "own", "once_ttl": "2h"}, "own", 7200)],
)
def test_a_put_has_a_token(outbox, attributes, once, once_ttl):
    outbox.client("mail").put_with(b"a", **attributes)
    row = SimpleNamespace(**outbox.rows[0] | {"written": 0.0, "token": "token"})
    found = sent_arguments(row, 0.0, 3600.0)
    assert (found["once"], found["once_ttl"], found["body"]) == (once, once_ttl, b"a")


def test_the_arguments_of_commands_are_checked(outbox):
    client = outbox.client("mail")
    with pytest.raises(ValueError, match="key"):
        client.put_with(b"", key="no key")
    with pytest.raises(ValueError, match="delay"):
        client.put(b"", delay=-1)
    with pytest.raises(ValueError, match="tries"):
        client.put_with(b"", tries=2**40)
    assert outbox.rows == []


def test_middleware_sees_a_put(mail, outbox, tasks):
    class Marks(Middleware):
        @contextlib.contextmanager
        def putting(self, put):
            put.message.meta["mark"] = 1
            yield
            marked.append(put.job_id)

    marked = []
    tasks.middleware.append(Marks())
    mail.put("a")
    assert marked == [0]
    assert b'"mark"' in outbox.rows[0]["body"]


def test_outside_a_transaction_jobs_are_put_at_once(mail, outbox):
    outbox.is_inside = False
    with pytest.raises(RuntimeError, match="a test would connect"):
        mail.put("a")
    assert outbox.rows == []


def test_a_queue_in_memory_comes_first(tasks, mail, outbox):
    with tasks.in_memory() as queue:
        assert mail.put("a") > 0
        assert len(queue.jobs()) == 1
    assert outbox.rows == []
