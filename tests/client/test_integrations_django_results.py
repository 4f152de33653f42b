"""Results of Django's tasks: what programs find while a task waits, runs, and has ended, and when its job is gone."""

import asyncio
import contextlib
import datetime
import json
import sys

import django
import pytest
from beanstalk_client import AsyncClient, Client
from beanstalk_client.errors import ConnectionLostError, DrainingError, UnsupportedError
from beanstalk_client.integrations.django import cancel, results
from beanstalk_client.integrations.django.clients import close_idle
from beanstalk_client.integrations.django.library import (
    NAME,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from beanstalk_client.integrations.django.message import decode
from beanstalk_client.integrations.django.results import ResultStore, change, record_of
from django.test import override_settings
from django.utils import timezone
from django_projects import BACKEND, made_project
from django_shop import tasks as shop
from working import Shop

from harness.waiting import eventually

django.setup()

READY, RUNNING, DONE, FAILED = (
    TaskResultStatus.READY,
    TaskResultStatus.RUNNING,
    TaskResultStatus.SUCCESSFUL,
    TaskResultStatus.FAILED,
)
TTL = 3600


@pytest.fixture
def project(ours, tmp_path, monkeypatch):
    yield from made_project(ours, tmp_path, monkeypatch, result_ttl=TTL)


@pytest.fixture
def client(project):
    with Client(project.address, encoding=None, use=f"{project.prefix}default") as client:
        client.watch(f"{project.prefix}default")
        yield client


def kept(result):
    """The result that is found by its id."""
    return result.task.get_result(result.id)


def found(result):
    """The same, of a task that nothing happens to: `refresh` and coroutines find the same."""
    found = kept(result)
    assert asyncio.run(result.task.aget_result(result.id)) == found
    result.refresh()
    assert result == found
    return found


def is_gone(result):
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    return True


def record(project, result):
    """The job that keeps a result, and its statistics."""
    with Client(project.address, encoding=None, use=f"{project.prefix}django.results") as client:
        job = client.peek_keyed(result.id)
        return job, client.stats_job(job)


@pytest.mark.parametrize("task", [shop.add, shop.add_later], ids=["function", "coroutine"])
def test_a_result_is_ready_then_running_then_successful(project, task):
    assert task_backends["default"].supports_get_result
    result = task.enqueue(1, other=2)
    waiting = found(result)
    assert (waiting.status, waiting.attempts, waiting.started_at) == (READY, 0, None)
    assert (waiting.args, waiting.kwargs, waiting.backend) == ([1], {"other": 2}, "default")
    assert waiting.task.func is task.func
    project.work_off()
    assert project.notes == ["RUNNING 1"]
    done = found(result)
    assert (done.status, done.return_value, done.errors, done.worker_ids) == (DONE, {"sum": 3}, [], ["worker-1"])
    assert done.enqueued_at <= done.started_at == done.last_attempted_at <= done.finished_at
    assert TTL - 60 < record(project, result)[1]["expires-in"] <= TTL
    assert project.jobs() == {}


def test_a_result_has_the_options_of_its_task(project):
    moment = timezone.now() + datetime.timedelta(hours=1)
    deferred = found(shop.remind.using(run_after=moment, priority=7, queue_name="mail").enqueue(17))
    assert deferred.status == READY
    assert (deferred.task.run_after, deferred.task.priority, deferred.task.queue_name) == (moment, 7, "mail")


@pytest.mark.parametrize("name", ["deliver", "deliver_later"])
def test_each_attempt_leaves_an_error(project, name):
    seen = []

    def look(sender, task_result, **more):
        seen.append(kept(task_result))

    task_started.connect(look)
    result = getattr(shop, name).enqueue(17)
    try:
        project.work_off()
    finally:
        task_started.disconnect(look)
    assert [(each.status, len(each.errors), each.attempts) for each in seen] == [
        (RUNNING, 0, 1),
        (RUNNING, 1, 2),
        (RUNNING, 2, 3),
    ]
    assert len({each.started_at for each in seen}) == 1
    assert len({each.last_attempted_at for each in seen}) == 3
    failed = found(result)
    assert (failed.status, failed.attempts) == (FAILED, 3)
    assert [error.exception_class for error in failed.errors] == [OSError] * 3
    assert all("nobody is at home for 17" in error.traceback for error in failed.errors)
    assert failed.finished_at >= failed.last_attempted_at > failed.started_at
    with pytest.raises(ValueError, match="failed"):
        _ = failed.return_value


def test_signals_come_when_the_result_is_there(project):
    seen = []

    def look(sender, task_result, **more):
        seen.append(kept(task_result).status)

    task_finished.connect(look)
    try:
        shop.add.enqueue(1, 2)
        shop.add_later.enqueue(1, 2)
        shop.fail.enqueue()
        project.work_off(at_once=1)
    finally:
        task_finished.disconnect(look)
    assert seen == [DONE, DONE, FAILED]


def test_a_failed_task_that_is_kicked_is_ready_and_runs_again(project, client):
    result = shop.fail.enqueue()
    project.work_off()
    assert found(result).status == FAILED
    client.kick(1)
    kicked = found(result)
    assert (kicked.status, kicked.finished_at, len(kicked.errors)) == (READY, None, 1)
    project.work_off()
    again = found(result)
    assert (again.status, len(again.errors), again.attempts) == (FAILED, 2, 2)


@pytest.mark.parametrize("kept", [None, READY, RUNNING, FAILED, DONE])
@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("ready", READY),
        ("delayed", READY),
        ("reserved", RUNNING),
        ("buried", FAILED),
        ("moved", FAILED),
        ("gone", None),
    ],
)
def test_the_state_of_the_job_is_the_status_until_the_task_has_finished(project, client, kept, state, status):
    result = shop.repeat.enqueue("a", 2)
    job = client.reserve(timeout=60)
    if kept is not None:
        put(project, result, job.id, kept)
    if state == "ready":
        client.release(job)
    elif state == "delayed":
        client.release(job, delay=900)
    elif state == "buried":
        client.bury(job)
    elif state == "moved":
        client.release(job)
        client.move_jobs(f"{project.prefix}default", "ready", f"{project.prefix}dead", 1)
    elif state == "gone":
        client.delete(job)
    if kept == DONE or (kept == FAILED and state in ("reserved", "gone")):
        status = kept
    if status is None or (kept is None and state == "moved"):
        assert is_gone(result)
    else:
        assert found(result).status == status
        assert found(result).is_finished == (status in (DONE, FAILED))


def put(project, result, job_id, status):
    """Keep a result, as a worker does."""
    change(result, status=status)
    with Client(project.address, encoding=None, use=f"{project.prefix}default") as client:
        message = decode(client.peek(job_id).body)

    async def keep():
        backend = task_backends["default"]
        store = ResultStore(lambda: AsyncClient(project.address, encoding=None), backend.results_tube, TTL)
        await store.put(message, record_of(result, job_id))
        await store.close()

    asyncio.run(keep())


@pytest.mark.parametrize("result_id", ["x" * 32, "", "a b", "-a", "é", "x" * 300])
def test_an_id_that_is_unknown_does_not_exist(project, result_id):
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result_id)


def test_the_result_of_another_task_is_a_mismatch(project):
    result = shop.fail.enqueue()
    with pytest.raises(Exception, match="does not match") as caught:
        shop.add.get_result(result.id)
    assert type(caught.value).__name__ == "TaskResultMismatch"


def test_a_cancelled_task_has_no_result(project):
    deferred = shop.add.using(run_after=timezone.now() + datetime.timedelta(hours=1)).enqueue(1, 2)
    assert found(deferred).status == READY
    assert cancel(deferred.id)
    assert is_gone(deferred)


@pytest.mark.parametrize("tube", ["default", "django.results"])
@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"[]",
        b'{"result": {"job": 1}}',
        json.dumps(
            {
                "task": "antigravity.webbrowser",  # which opens one when it is imported
                "args": [],
                "kwargs": {},
                "meta": {"id": "a", "queue": "default", "priority": 0, "enqueued_at": "2026-11-23T08:00:00+00:00"}
                | {"run_after": None},
                "result": {"job": 1, "status": "SUCCESSFUL", "worker_ids": [], "errors": [], "value": 1}
                | dict.fromkeys(("started_at", "last_attempted_at", "finished_at")),
            }
        ).encode(),
    ],
)
def test_what_another_program_has_put_is_no_result_and_is_not_imported(project, tube, body):
    with Client(project.address, encoding=None, use=f"{project.prefix}{tube}") as client:
        client.put_with(body, key="a")
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result("a")
    assert "antigravity" not in sys.modules


def test_a_successful_result_stays_when_its_job_runs_again(project, client):
    """A worker that is lost after it has put the result, and before it deletes the job."""
    result = shop.fail.enqueue()
    job = client.reserve(timeout=60)
    put(project, result, job.id, DONE)
    client.release(job)
    project.work_off()
    assert project.jobs() == {"buried": 1}
    assert found(result).status == DONE


def test_a_return_value_that_does_not_fit_into_a_job_is_a_failure_that_is_not_retried(project):
    result = shop.repeat.enqueue("x", 70_000)
    project.work_off()
    assert project.notes == ["repeated"]
    failed = found(result)
    assert (failed.status, failed.attempts) == (FAILED, 1)
    assert "too large for a job" in failed.errors[0].traceback


def test_of_an_error_that_is_too_large_the_end_of_its_traceback_is_kept_or_none(project):
    long, wide = shop.shout.enqueue("x", 70_000), shop.shout.enqueue("\U0001f600", 70_000)
    project.work_off()
    assert found(long).errors[0].traceback == "x" * 19_999 + "\n"
    assert (found(wide).status, found(wide).errors[0].traceback) == (FAILED, "")


def test_arguments_that_a_task_does_not_take_are_its_error(project):
    result = shop.add.enqueue(1, 2, 3)
    project.work_off()
    failed = found(result)
    assert failed.status == FAILED
    assert "too many positional arguments" in failed.errors[0].traceback


def test_a_result_that_the_server_refuses_is_logged_and_the_task_runs_once(project, monkeypatch, caplog):
    async def refuse(*_):
        raise DrainingError

    monkeypatch.setattr(ResultStore, "put", refuse)
    monkeypatch.setattr(ResultStore, "load", refuse)
    result = shop.repeat.enqueue("a", 2)
    project.work_off()
    assert project.notes == ["repeated"]
    assert "result-lost" in {getattr(entry, "event", "") for entry in caplog.records}
    assert is_gone(result)


@pytest.mark.parametrize("lost", ["load", "put"])
def test_a_task_whose_result_does_not_reach_the_server_is_given_back(project, monkeypatch, lost):
    original = getattr(ResultStore, lost)
    calls = []

    async def lose_once(self, *arguments):
        calls.append(arguments)
        if len(calls) == (1 if lost == "load" else 2):  # of the second, the first is that it runs
            raise ConnectionLostError("connection lost")
        return await original(self, *arguments)

    monkeypatch.setattr(ResultStore, lost, lose_once)
    monkeypatch.setattr("beanstalk_client.integrations.django.worker.LOOKUP_DELAY", 0.01)
    result = shop.repeat.enqueue("a", 2)
    project.work_off()
    assert project.notes == ["repeated"] * (1 if lost == "load" else 2)
    done = found(result)
    assert (done.return_value, done.attempts) == ("aa", len(project.notes))


def test_without_time_zones_moments_are_in_that_of_the_settings(project):
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        result = shop.add.enqueue(1, 2)
        project.work_off()
        done = found(result)
        in_tokyo = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=9))).replace(tzinfo=None)
        for moment in (done.enqueued_at, done.started_at, done.last_attempted_at, done.finished_at):
            assert abs(in_tokyo - moment) < datetime.timedelta(minutes=10)
    assert record(project, result)[0].body.count(b"+09:00") == 3


def test_beanstalkd_keeps_no_results_and_nothing_is_put(stock, tmp_path, monkeypatch):
    for project in made_project(stock, tmp_path, monkeypatch, result_ttl="1h"):
        with pytest.raises(UnsupportedError, match="results need jobs with keys"):
            shop.add.enqueue(1, 2)
        assert project.jobs() == {}


@pytest.mark.parametrize(("task", "status", "errors"), [(shop.add, DONE, 0), (shop.fail, FAILED, 1)])
def test_a_result_that_is_put_between_two_questions_is_found(project, monkeypatch, task, status, errors):
    result = task.enqueue(*([1, 2] if task is shop.add else []))
    project.work_off()
    answers = [None]
    look = results._kept
    monkeypatch.setattr(results, "_kept", lambda *asked: answers.pop() if answers else look(*asked))
    late = kept(result)
    assert (late.status, len(late.errors), answers) == (status, errors, [])


def test_the_result_of_a_task_whose_worker_is_killed_is_that_of_the_next_one(restartable, tmp_path):
    settings = {"DJANGO_SETTINGS_MODULE": "django_shop.settings", "SHOP_RESULT_TTL": "1h"}
    workers = Shop(restartable.address, tmp_path, "django", "beanstalk_worker", **settings)
    options = {"addresses": workers.url, "result_ttl": "1h"}
    here = override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}})
    with contextlib.closing(workers), here:
        result = shop.hang_at_first.enqueue()
        killed = workers.start("--worker-id", "one")
        eventually(lambda: workers.notes == ["attempt 1"], "it has begun")
        assert found(result).status == RUNNING
        workers.kill(killed)
        eventually(lambda: kept(result).status == READY, "the server has the job back")
        assert found(result).worker_ids == ["one"]
        worker = workers.start("--worker-id", "other")
        eventually(lambda: kept(result).is_finished, "it has ended")
        assert (found(result).status, found(result).worker_ids) == (DONE, ["one", "other"])
        assert workers.stop(worker) == 0
    close_idle()


def test_the_library_is_the_one_that_has_the_exception():
    assert TaskResultDoesNotExist.__module__ == f"{NAME}.exceptions"
