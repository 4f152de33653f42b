"""Reports about buried jobs: they go when their job does, and nothing else goes with them."""

import asyncio
import functools
import json

from beanstalk_client import AsyncClient, Client, NotFoundError
from beanstalk_client.tasks import Tasks, reports
from beanstalk_client.tasks.failure import task_report
from beanstalk_client.tasks.reports import forget_gone, tidied
from beanstalk_client.worker.serving import Group, Worker

from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness.servers import unused_port
from harness.waiting import eventually_asked


def forget(address, *tubes, **options):
    async def ask():
        async with AsyncClient(address, encoding=None, **options) as client:
            return await forget_gone(client, tubes)

    return asyncio.run(ask())


def put_report(queue, job_id):
    """As a worker does that has buried a job of the tube mail."""
    queue.use("mail.errors")
    return queue.put_with(task_report(job_id, "mail", "send", 3, RuntimeError("no luck")), key=f"job-{job_id}")


def is_there(queue, job_id):
    try:
        queue.stats_job(job_id)
    except NotFoundError:
        return False
    return True


def test_a_report_goes_when_its_job_has_gone_and_not_before(run):
    address = run().address
    with Client(address, encoding=None, use="mail", watch=["mail"]) as queue:
        kept, deleted, kicked = (queue.put(b"x") for _ in range(3))
        for job in queue.reserve_batch(3):
            queue.bury(job)
        about = {job_id: put_report(queue, job_id) for job_id in (kept, deleted, kicked)}
        queue.delete(deleted)
        queue.kick_job(kicked)
        assert forget(address, "mail.errors", "other.errors") == 3
        assert {job_id: is_there(queue, found) for job_id, found in about.items()} == {
            kept: True,
            deleted: False,
            kicked: True,
        }
        queue.delete(queue.reserve(0))  # it is done
        assert forget(address, "mail.errors") == 2
        assert not is_there(queue, about[kicked])
        queue.watch("mail.errors")
        queue.reserve(0)
        queue.delete(kept)
        assert forget(address, "mail.errors") == 0  # somebody has it in hand


def test_what_is_no_report_stays(run):
    address = run().address
    with Client(address, encoding=None, use="mail.errors") as queue:
        mine = [
            queue.put_with(b"mine", key="job-999"),
            queue.put_with(json.dumps({"job": 998, "say": "mine"}).encode(), key="job-998"),
            queue.put_with(task_report(1000, "mail", "send", 3, RuntimeError()), key="of-1000"),
            queue.put(task_report(1001, "mail", "send", 3, RuntimeError())),
        ]
        forget(address, "mail.errors")
        assert [is_there(queue, each) for each in mine] == [True] * 4


def test_a_job_that_may_not_be_seen_is_not_taken_for_one_that_is_gone(run):
    worker, other = new_token(), new_token()
    rights = dict.fromkeys(("produce", "consume", "inspect"), ("mail", "mail.errors"))
    users = (
        UserConfig(name="worker", token_sha256=(hash_of_token(worker),), **rights),
        UserConfig(name="other", token_sha256=(hash_of_token(other),), **dict.fromkeys(rights, ("*",))),
    )
    server = run(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=users)
    with Client(server.address, encoding=None, token=other, use="dead") as queue:
        about = put_report(queue, queue.put(b"from mail"))
        forget(server.address, "mail.errors", token=worker)
        assert is_there(queue, about)
        gone = put_report(queue, 999)
        forget(server.address, "mail.errors", token=other)
        assert (is_there(queue, about), is_there(queue, gone)) == (True, False)


def test_beanstalkd_keeps_reports_until_somebody_deletes_them(beanstalkd):
    with Client(beanstalkd.address, encoding=None, use="mail.errors") as queue:
        about = queue.put(task_report(999, "mail", "send", 3, RuntimeError()))
        assert forget(beanstalkd.address, "mail.errors") == 0
        assert is_there(queue, about)


async def is_none(queue):
    try:
        await queue.peek_keyed("job-999")
    except NotFoundError:
        return True
    return False


async def test_a_worker_looks_from_time_to_time(run, monkeypatch):
    monkeypatch.setattr(reports, "PAUSE", 0.01)
    tasks = Tasks(run().address, tube="mail")

    worker = Worker(tasks, [Group(("mail",), 1)], threads=1)
    async with tasks.connect_async(use="mail.errors") as queue:
        work = asyncio.ensure_future(worker.run())
        for _ in range(2):
            await queue.put_with(task_report(999, "mail", "send", 3, RuntimeError()), key="job-999")
            await eventually_asked(lambda: is_none(queue), "the report is gone")
        worker.stop()
        await work


async def test_a_look_that_fails_is_repeated(run, monkeypatch):
    monkeypatch.setattr(reports, "PAUSE", 0.01)
    address = run().address
    addresses = [address, ("127.0.0.1", unused_port())]

    def connect():
        return AsyncClient(addresses.pop() if len(addresses) > 1 else address, encoding=None, connect_timeout=5)

    async with AsyncClient(address, encoding=None, use="mail.errors") as queue:
        await queue.put_with(task_report(999, "mail", "send", 3, RuntimeError()), key="job-999")
        async with tidied(connect, ["mail"]):
            await eventually_asked(lambda: is_none(queue), "the report is gone")
    assert addresses == [address]


async def test_a_job_that_lost_its_worker_in_the_last_attempt_gets_one_report(run):
    server = run()

    connect = functools.partial(AsyncClient, server.address, encoding=None)
    async with connect(use="mail") as queue, connect(use="mail.errors") as errors:
        ids = [await queue.put_with(b"send", tries=tries) for tries in (1, 1, 2)]
        buried = await queue.put_with(b"send", tries=1)
        async with connect(watch=["mail"]) as worker:
            for _ in ids:
                await worker.reserve(0)
            await worker.bury(await worker.reserve(0))

        async def states():
            return [(await queue.stats_job(job_id))["state"] for job_id in (*ids, buried)]

        async def have_failed():
            return await states() == ["buried", "buried", "ready", "buried"]

        await eventually_asked(have_failed, "the server has noticed the loss")
        await errors.put_with(b"its own", key=f"job-{ids[1]}")
        seen = await reports.report_lost(queue, ["mail", "none"], ".errors", (), bytes.decode)
        assert seen == {(ids[0], 1), (ids[1], 1), (buried, 1)}
        report = await errors.peek_keyed(f"job-{ids[0]}")
        assert json.loads(report.body)["task"] == "send"
        assert json.loads(report.body)["error"] == reports.LOST["disconnected"]
        assert (await errors.peek_keyed(f"job-{ids[1]}")).body == b"its own"
        assert (await errors.stats_tube("mail.errors"))["current-jobs-ready"] == 2
        await errors.delete(report.id)  # read and deleted by a person
        assert await reports.report_lost(queue, ["mail"], ".errors", seen) == seen
        assert (await errors.stats_tube("mail.errors"))["current-jobs-ready"] == 1
