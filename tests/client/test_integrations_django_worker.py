"""Django's worker: what becomes of tasks that run, fail, or are interrupted; in this process, and as a command."""

import asyncio
import collections
import contextlib
import io
import json
import logging
import threading
import time

import django
import pytest
from beanstalk_client import Client
from beanstalk_client.integrations.django import cancel
from beanstalk_client.integrations.django.clients import close_idle
from beanstalk_client.integrations.django.library import (
    NAME,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from beanstalk_client.integrations.django.worker import DjangoTaskRunner
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.test import override_settings
from django.utils import timezone
from django_projects import BACKEND, made_project
from django_shop import tasks as shop
from working import Shop

from harness.waiting import eventually

django.setup()


@pytest.fixture
def project(address, tmp_path, monkeypatch):
    yield from made_project(address, tmp_path, monkeypatch)


@pytest.fixture
def our_project(ours, tmp_path, monkeypatch):
    yield from made_project(ours, tmp_path, monkeypatch)


@pytest.fixture
def told():
    """What the signals have told: their names, the status by then, and the errors."""
    told = []

    def started(sender, task_result, **more):
        told.append(("started", task_result.status, len(task_result.errors), task_result))

    def finished(sender, task_result, **more):
        told.append(("finished", task_result.status, len(task_result.errors), task_result))

    task_started.connect(started)
    task_finished.connect(finished)
    yield told
    task_started.disconnect(started)
    task_finished.disconnect(finished)


RUNNING, DONE, FAILED = TaskResultStatus.RUNNING, TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED


def test_functions_and_coroutines_run_and_their_jobs_are_deleted(project, told):
    sent = [shop.remind.enqueue(17), shop.mail.enqueue(18)]
    project.work_off()
    assert sorted(line.split()[0] for line in project.notes) == ["17", "mail"]
    assert project.jobs() == project.jobs("mail") == {}
    for result in sent:
        (began, ended) = [one for one in told if one[3].id == result.id]
        assert (began[:3], ended[:3]) == (("started", RUNNING, 0), ("finished", DONE, 0))
        known = ended[3]
        assert known.enqueued_at == result.enqueued_at <= known.started_at <= known.finished_at
        assert (known.task, known.args, known.worker_ids, known.return_value) == (
            result.task, result.args, ["worker-1"], None,
        )  # fmt: skip


def test_a_task_that_fails_is_buried_at_once_unless_it_has_retries(project, told, caplog):
    with caplog.at_level(logging.INFO, NAME):
        shop.fail.enqueue()
        project.work_off()
    assert project.jobs() == {"buried": 1}
    assert [one[:3] for one in told][-1] == ("finished", FAILED, 1)
    error = told[-1][3].errors[0]
    assert error.exception_class is OSError
    assert "at once" in error.traceback
    assert any(record.exc_info and record.exc_info[0] is OSError for record in caplog.records), "with its traceback"
    found = project.report()
    assert (found["task"], found["tries"], found["error"]) == ("django_shop.tasks.fail", 1, "OSError: at once")
    assert "in fail" in "".join(found["traceback"])


@pytest.mark.parametrize("name", ["deliver", "deliver_later"])
def test_a_task_with_retries_is_tried_again_and_told_to_have_failed_once(project, told, name):
    getattr(shop, name).enqueue(17)
    project.work_off()
    assert project.notes == ["attempt 1", "attempt 2", "attempt 3"]
    assert project.jobs() == {"buried": 1}
    assert [one[0] for one in told] == ["started"] * 3 + ["finished"]
    assert (told[-1][3].status, told[-1][3].attempts) == (FAILED, 3)
    assert project.report()["tries"] == 3


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fail_and_cancel_itself_later", "OSError: at once"),
        ("raise_hostile", "a HostileError that cannot be shown"),
        ("raise_hostile_later", "a HostileError that cannot be shown"),
        ("close_itself", "GeneratorExit"),
    ],
)
def test_each_exception_is_a_failure_that_is_retried(our_project, name, error, caplog):
    getattr(shop, name).enqueue()
    our_project.work_off()
    assert our_project.notes == ["attempt 1", "attempt 2"]
    assert our_project.jobs() == {"buried": 1}
    assert error in our_project.report()["error"]
    assert "bug-handler" not in [getattr(record, "event", "") for record in caplog.records]


def test_a_task_that_cancels_itself_when_it_has_returned_is_done(our_project):
    shop.cancel_itself_later.enqueue()
    our_project.work_off()
    assert our_project.notes == ["attempt 1"]
    assert our_project.jobs() == {}


def test_a_job_that_is_kicked_has_all_its_retries_again(project):
    shop.deliver.enqueue(17)
    project.work_off()
    with Client(project.address, use=project.prefix + "default") as client:
        client.kick(1)
    project.work_off()
    assert project.notes[:3] == ["attempt 1", "attempt 2", "attempt 3"]
    assert len(project.notes) == 6


@pytest.mark.parametrize(
    ("name", "error"),
    [("return_an_object", "TypeError"), ("give_up", "CancelledError"), ("exit_at_once", "SystemExit")],
)
def test_whatever_a_task_does_has_failed_if_it_has_not_returned(our_project, told, name, error):
    getattr(shop, name).enqueue()
    our_project.work_off()
    assert our_project.jobs() == {"buried": 1}
    assert (told[-1][0], told[-1][1]) == ("finished", FAILED)
    assert error in our_project.report()["error"]


def call(path, kwargs=None, **more):
    """The body of a job of this task, with more in its `meta`."""
    meta = {"id": "a", "queue": "default", "priority": 0, "enqueued_at": "2026-11-23T08:00:00+00:00", "run_after": None}
    return json.dumps({"task": path, "args": [], "kwargs": kwargs or {}, "meta": meta | more}).encode()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\xff", "the body is not a task"),
        (b"[]", "the body is not a task"),
        (b'{"task": "django_shop.tasks.remind", "args": 1, "kwargs": {}, "meta": {}}', "the body is not a task"),
        (call("django_shop.tasks.none"), "cannot be imported"),
        (call("django_shop.no_such.module"), "cannot be imported"),
        (call("no_such.module"), "not in an installed app"),
        (call("antigravity.webbrowser"), "not in an installed app"),  # which opens one when it is imported
        (call("django_shop.tasks.no_task"), ", not a task"),
        (call("os.abort"), ", not a task"),
        (call("django_shop.tasks.remind", priority=1000), "cannot run here"),
        (call("django_shop.tasks.remind", queue="bills"), "cannot run here"),
        (
            call("django_shop.tasks.deliver", {"order": 1, "new": 2}),  # which has retries
            "django_shop.tasks.deliver: got an unexpected keyword argument 'new'",
        ),
    ],
)
def test_a_job_that_no_task_can_run_is_buried_at_once_and_nothing_of_it_runs(our_project, told, body, what):
    with Client(our_project.address, encoding=None, use=our_project.prefix + "default") as client:
        client.put(body)
    our_project.work_off()
    assert our_project.jobs() == {"buried": 1}
    assert (told, our_project.notes) == ([], [])
    assert what in our_project.report()["error"]


def test_an_unknown_task_is_left_to_other_workers_at_first(our_project):
    class Delivery:
        job_id, tube, body = 7, "mail", call("django_shop.tasks.none")

        async def stats(self):
            return {"tube": "mail", "pri": 3, "age": 0, "delay": 0, "reserves": 1, "releases": 0}

    async def main():
        runner = DjangoTaskRunner(task_backends["default"], 2, "worker-1", 300)
        try:
            return await runner(Delivery())
        finally:
            await runner.close()

    outcome = asyncio.run(main())
    assert (5 <= outcome.delay <= 5.5, outcome.priority) == (True, 3)


def test_a_listener_that_fails_changes_nothing(our_project, caplog):
    def listen(sender, task_result, **more):
        raise RuntimeError("a bad listener")

    task_started.connect(listen)
    task_finished.connect(listen)
    try:
        shop.remind.enqueue(17)
        our_project.work_off()
    finally:
        task_started.disconnect(listen)
        task_finished.disconnect(listen)
    assert len(our_project.notes) == 1
    assert our_project.jobs() == {}
    assert "a bad listener" in caplog.text


@pytest.mark.parametrize("name", ["count_rows", "count_rows_later"])
def test_no_database_connection_that_is_too_old_outlives_its_task(our_project, name, monkeypatch):
    closed = []
    monkeypatch.setattr(DatabaseWrapper, "close", lambda self: closed.append(threading.current_thread().name))
    for _ in range(3):
        getattr(shop, name).enqueue()
    our_project.work_off(at_once=1)  # CONN_MAX_AGE is 0: each is too old after its task
    assert our_project.notes == ["rows 0"] * 3
    assert len(closed) >= 3
    assert threading.current_thread().name not in closed


def test_a_deferred_task_that_waits_for_its_retry_can_be_cancelled(our_project):
    deferred = shop.deliver.using(run_after=timezone.now()).enqueue(17)
    with Client(our_project.address, watch=our_project.prefix + "default") as client:
        client.release(client.reserve(timeout=60), delay=900)  # as a worker does
    assert cancel(deferred)
    assert our_project.jobs() == {}


# As a command


@pytest.fixture
def workers(restartable, tmp_path):
    settings = {"DJANGO_SETTINGS_MODULE": "django_shop.settings"}
    shop = Shop(restartable.address, tmp_path, "django", "beanstalk_worker", **settings)
    options = {"addresses": shop.url, "ttr": 60}
    here = override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}})
    with contextlib.closing(shop), here:
        yield shop
    close_idle()


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_lets_tasks_end_and_gives_back_those_that_do_not(workers):
    shop.bake.enqueue(1, 0.3)
    shop.simmer.enqueue(2, 60)
    shop.bake.enqueue(3, 60)
    worker = workers.start("--queue", "default", "--at-once", "3", "--grace", "3")
    eventually(lambda: len(workers.notes) == 3, "all have begun")
    shop.remind.enqueue(4)
    began = time.monotonic()
    assert workers.stop(worker) == 0
    assert time.monotonic() - began >= 3
    assert sorted(workers.notes) == ["begun 1", "begun 2", "begun 3", "done 1"]
    assert workers.jobs("default") == (3, 0, 0)


def test_a_worker_that_is_killed_costs_no_task(workers):
    for number in range(30):
        shop.bake.enqueue(number, 0.1)
    worker = workers.start("--at-once", "5")
    eventually(lambda: "done" in " ".join(workers.notes), "a cake is done")
    workers.kill(worker)
    worker = workers.start("--at-once", "5")
    eventually(lambda: workers.jobs("default") == (0, 0, 0), "nothing is left to do")
    done = collections.Counter(note for note in workers.notes if note.startswith("done"))
    assert len(done) == 30
    assert sum(done.values()) <= 35, "those that ran may have run twice: five at most"
    assert workers.stop(worker) == 0


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--queue", "bills"], "queue 'bills' is unknown: must be one of default, mail"),
        (["--backend", "other"], "other"),
        (["--at-once", "0"], "must be a number, 1 or more"),
        (["--grace", "nan"], "must be seconds, 0 or more"),
    ],
)
def test_the_worker_refuses_what_makes_no_sense(our_project, arguments, what):
    with pytest.raises(CommandError, match=what):
        call_command("beanstalk_worker", *arguments, stdout=io.StringIO())


def test_the_worker_refuses_bad_settings_and_other_backends():
    bad = override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"ttr": 0}}})
    with bad, pytest.raises(CommandError, match="OPTIONS"):
        call_command("beanstalk_worker")
    with override_settings(TASKS={"default": {"BACKEND": f"{NAME}.backends.dummy.DummyBackend"}}):
        with pytest.raises(CommandError, match="not a BeanstalkBackend"):
            call_command("beanstalk_worker")
        with pytest.raises(ImproperlyConfigured, match="not a BeanstalkBackend"):
            cancel("x")
