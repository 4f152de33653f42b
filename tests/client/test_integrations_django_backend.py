"""Django's backend: what enqueueing makes of a task, what is refused, and what `manage.py check` says."""

import asyncio
import contextlib
import datetime
import functools
import json
import logging
import os
import threading
import time

import django
import pytest
from beanstalk_client import Client
from beanstalk_client.errors import JobTooBigError, NotFoundError, UnknownCommandError
from beanstalk_client.integrations.django import BeanstalkBackend, acancel, cancel
from beanstalk_client.integrations.django.clients import close_idle
from beanstalk_client.integrations.django.library import (
    NAME,
    InvalidTask,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
)
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from django_shop import tasks as shop

from harness import servers

django.setup()

BACKEND = "beanstalk_client.integrations.django.BeanstalkBackend"
SERVERS = ("address", "ours", "stock")
"""The fixtures by which a test names its server."""


def tasks_at(address, **options):
    """Settings whose backend is at a server."""
    url = "beanstalk://{}:{}".format(*address)
    options = {"addresses": url} | options
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}})


@pytest.fixture(autouse=True)
def backend(request):
    """The backend is at the server that the test names, which has no job when the test is over."""
    address = next((request.getfixturevalue(name) for name in SERVERS if name in request.fixturenames), None)
    with tasks_at(address) if address else contextlib.nullcontext():
        yield
    close_idle()
    if address:
        with Client(address) as client:
            for tube in client.tubes():
                client.watch(tube)
                for _ in range(client.stats_tube(tube)["current-jobs-buried"]):
                    client.use(tube)
                    client.kick(100)
                for job in iter(functools.partial(peeked, client, tube), None):
                    client.delete(job)


def peeked(client, tube):
    client.use(tube)
    for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
        try:
            return peek()
        except NotFoundError:
            pass
    return None


def the_job(address, tube="default"):
    with Client(address) as client:
        job = peeked(client, tube)
        return (None, None) if job is None else (json.loads(job.body), client.stats_job(job))


def later(**duration):
    return timezone.now() + datetime.timedelta(**duration)


def test_a_task_is_a_job_in_the_tube_of_its_queue(address):
    before = timezone.now()
    result = shop.remind.enqueue(17, due=2.5)
    body, found = the_job(address)
    assert result.status == TaskResultStatus.READY
    assert (result.args, result.kwargs, result.backend, result.attempts) == ([17], {"due": 2.5}, "default", 0)
    assert before <= result.enqueued_at <= timezone.now()
    assert (result.started_at, result.finished_at, result.errors) == (None, None, [])
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value
    assert body["task"] == "django_shop.tasks.remind"
    assert (body["args"], body["kwargs"]) == ([17], {"due": 2.5})
    assert body["meta"]["id"] == result.id
    assert (found["state"], found["pri"], found["ttr"]) == ("ready", 65536, 60)


def test_coroutines_are_enqueued_too_and_from_coroutines(address):
    result = asyncio.run(shop.mail.aenqueue(17))
    assert the_job(address, "mail")[0]["meta"]["id"] == result.id


@pytest.mark.parametrize(("given", "sent"), [(-100, 65636), (0, 65536), (1, 65535), (100, 65436)])
def test_what_django_finds_urgent_comes_first(ours, given, sent):
    shop.remind.using(priority=given).enqueue(17)
    assert the_job(ours)[1]["pri"] == sent


def test_a_prefix_and_the_time_to_run_are_options(ours):
    with tasks_at(ours, prefix="shop.", ttr=7):
        shop.remind.enqueue(17)
        assert the_job(ours, "shop.default")[1]["ttr"] == 7


def test_a_deferred_task_waits_at_the_server(address):
    moment = later(seconds=899.5)
    result = shop.remind.using(run_after=moment).enqueue(17)
    body, found = the_job(address)
    assert found["state"] == "delayed"
    assert 898 <= found["time-left"] <= 900
    assert result.task.run_after == moment
    assert datetime.datetime.fromisoformat(body["meta"]["run_after"]) == moment


def test_a_task_whose_moment_is_past_is_ready(address):
    shop.remind.using(run_after=later(seconds=-10)).enqueue(17)
    assert the_job(address)[1]["state"] == "ready"


def test_without_time_zones_a_moment_is_in_that_of_the_settings(ours):
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        in_tokyo = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=9))).replace(tzinfo=None)
        result = shop.remind.using(run_after=in_tokyo + datetime.timedelta(seconds=900)).enqueue(17)
        body, found = the_job(ours)
        assert 898 <= found["time-left"] <= 900
        assert abs(result.enqueued_at - in_tokyo) < datetime.timedelta(minutes=1)
        assert body["meta"]["run_after"].endswith("+09:00")


def test_a_deferred_task_is_cancelled_for_good(ours):
    deferred = shop.mail.using(run_after=later(hours=1)).enqueue(1)
    assert cancel(deferred.id)
    assert not cancel(deferred.id), "it is cancelled already"
    assert the_job(ours, "mail") == (None, None)
    assert asyncio.run(acancel(shop.mail.using(run_after=later(hours=1)).enqueue(2)))
    due = shop.mail.using(run_after=later(seconds=-1)).enqueue(3)
    assert not cancel(due), "it is ready"
    assert not cancel(shop.mail.enqueue(4)), "it was not deferred"
    assert not cancel("x" * 32), "it never was"


def test_where_any_queue_is_valid_what_is_cancelled_must_say_which(ours):
    task_backends["default"].queues = set()
    deferred = shop.remind.using(run_after=later(hours=1), queue_name="any").enqueue(1)
    with pytest.raises(ValueError, match="the backend has no QUEUES"):
        cancel(deferred.id)
    assert cancel(deferred)


def test_beanstalkd_cannot_cancel_with_certainty_so_nobody_is_told_that_it_can(stock):
    deferred = shop.remind.using(run_after=later(hours=1)).enqueue(1)
    with pytest.raises(UnknownCommandError):
        cancel(deferred)
    assert the_job(stock)[1]["state"] == "delayed"


def test_a_task_is_put_at_once_and_on_commit_if_the_program_says_so(ours):
    with transaction.atomic():
        shop.remind.enqueue(1)
        assert the_job(ours)[0]["args"] == [1]
    with transaction.atomic():
        transaction.on_commit(functools.partial(shop.mail.enqueue, 2))
        assert the_job(ours, "mail") == (None, None)
    assert the_job(ours, "mail")[0]["args"] == [2]


def test_signals_and_the_log_tell_of_it(ours, caplog):
    told = []

    def listen(sender, task_result, **more):
        told.append((sender, task_result.id))

    task_enqueued.connect(listen)
    try:
        with caplog.at_level(logging.DEBUG, NAME):
            result = shop.remind.enqueue(17)
    finally:
        task_enqueued.disconnect(listen)
    assert told == [(BeanstalkBackend, result.id)]
    assert result.id in caplog.text
    assert "enqueued" in caplog.text


def test_without_a_ttl_results_are_not_kept_and_the_backend_says_so(ours):
    assert not task_backends["default"].supports_get_result
    result = shop.remind.enqueue(17)
    for ask in (result.refresh, functools.partial(shop.remind.get_result, result.id)):
        with pytest.raises(NotImplementedError):
            ask()


@pytest.mark.parametrize("arguments", [(object(),), ({1, 2},), (b"\xff",)], ids=["object", "set", "bytes"])
def test_arguments_that_are_not_of_json_are_refused_and_nothing_is_put(ours, arguments):
    with pytest.raises((TypeError, ValueError)):
        shop.remind.enqueue(*arguments)
    assert the_job(ours) == (None, None)


def test_a_task_that_is_too_big_is_an_error_and_the_next_one_goes_on(address):
    with pytest.raises(JobTooBigError):
        shop.remind.enqueue("x" * 70_000)
    shop.remind.enqueue("x" * 60_000)
    assert the_job(address)[1]["state"] == "ready"


def test_a_server_that_is_not_there_is_an_error():
    with tasks_at(("127.0.0.1", servers.unused_port()), connect_timeout=0.1), pytest.raises(ConnectionError):
        shop.remind.enqueue(17)


@pytest.mark.parametrize(
    "settings",
    [{"retries": -1}, {"retries": 1.5}, {"retries": True}, {"backoff": -1}, {"backoff": "2"}, {"priority": 101},
     {"queue_name": "bills"}],
    ids=str,
)  # fmt: skip
def test_a_task_that_makes_no_sense_is_invalid(ours, settings):
    with pytest.raises(InvalidTask):
        task(**settings)(shop.no_task)


def test_each_thread_has_a_connection_and_they_are_kept(ours):
    with Client(ours) as client:
        before = client.stats()["total-connections"]
        for _ in range(3):
            threads = [threading.Thread(target=shop.remind.enqueue, args=(17,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert client.stats()["total-connections"] - before <= 4
        assert client.stats_tube("default")["total-jobs"] >= 12


def test_a_process_that_is_forked_has_connections_of_its_own(ours):
    shop.remind.enqueue(1)
    child = os.fork()
    if not child:
        status = 1
        try:
            for _ in range(100):
                shop.remind.enqueue(2)
            status = 0
        finally:
            os._exit(status)
    for _ in range(100):
        shop.remind.enqueue(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Client(ours) as client:
        assert client.stats_tube("default")["current-jobs-ready"] == 201


def errors_of(**parameters):
    with override_settings(TASKS={"default": {"BACKEND": BACKEND} | parameters}):
        found = list(task_backends["default"].check())
        if found:
            with pytest.raises(ImproperlyConfigured):
                shop.remind.enqueue(1)
        return [f"{message.msg} {message.hint}" for message in found]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"adress": "a"}, "OPTIONS['adress'] is unknown"),
        ({"addresses": "a:b:c"}, "bad address"),
        ({"addresses": 5}, "the server's address is not valid"),
        ({"addresses": "queue.example.com", "token": "secret"}, "without TLS"),
        ({"ttr": 0.5}, "OPTIONS['ttr'] is 0.5"),
        ({"retries": "3"}, "OPTIONS['retries'] is '3'"),
        ({"backoff": -1}, "OPTIONS['backoff'] is -1"),
        ({"timeout": 0}, "OPTIONS['timeout'] is 0"),
        ({"result_ttl": 0}, "OPTIONS['result_ttl'] is 0"),
        ({"result_ttl": True}, "OPTIONS['result_ttl'] is True"),
        ({"prefix": "a b"}, "queue 'default' does not give a valid tube name"),
    ],
)
def test_check_says_what_is_wrong_with_the_settings_and_what_would_be_right(options, what):
    (found,) = errors_of(OPTIONS=options)
    assert what in found
    assert "secret" not in found


def test_check_finds_nothing_in_good_settings():
    assert errors_of() == []
    options = {
        "addresses": ["a:1", "b:2"],
        "retries": 3,
        "backoff": 0,
        "ttr": "1m",
        "timeout": "9s",
        "prefix": "x.",
        "result_ttl": "1h",
    }
    assert errors_of(OPTIONS=options) == []


def test_results_need_the_names_of_all_queues():
    (found,) = errors_of(OPTIONS={"result_ttl": "1h"}, QUEUES=[])
    assert "OPTIONS['result_ttl'] requires QUEUES" in found


def test_check_tells_of_the_command_that_is_missing():
    with override_settings(INSTALLED_APPS=["django_tasks"] if NAME == "django_tasks" else []):
        (found,) = task_backends["default"].check()
        assert "INSTALLED_APPS" in found.hint


def test_manage_py_check_runs_it():
    with tasks_at(("127.0.0.1", 1), ttr=0), pytest.raises(Exception, match="OPTIONS\\['ttr'\\] is 0"):
        call_command("check")


def test_none_is_early_by_the_clock_of_the_server(ours):
    with Client(ours) as client:
        moment = later(seconds=0.25)
        shop.remind.using(run_after=moment).enqueue(1)
        client.delete(client.reserve(timeout=60))
        assert time.time() >= moment.timestamp()
