"""Orders while others change the same jobs: what is done then, and what is left alone."""

import asyncio

import pytest
from beanstalk_client import AsyncClient, Client
from beanstalk_client.commands import make
from beanstalk_client.console import actions
from beanstalk_client.errors import ExistsError, NotFoundError
from visiting import bury


@pytest.fixture
def server(run):
    return run()


@pytest.fixture
def queue(server):
    with Client(server.address, encoding=None) as client:
        yield client


class Meddled(AsyncClient):
    """A client before one of whose commands another client does something."""

    def __init__(self, address, name, meddle):
        super().__init__(address, encoding=None)
        self._name = name
        self._meddle = meddle

    async def execute(self, command):
        if command.data.startswith(self._name) and self._meddle is not None:
            meddle, self._meddle = self._meddle, None
            meddle()
        return await super().execute(command)


def run_steps(client, steps):
    """Run an action; return how many were done and passed over."""

    async def told():
        async with client:
            found = [step async for step in steps(client)]
        return sum(step.done for step in found), sum(step.passed_over for step in found)

    return asyncio.run(told())


@pytest.mark.parametrize("when", [b"stats-tube", b"list-jobs", b"kick"])
def test_kicking_buried_jobs_kicks_no_delayed_one_when_another_client_empties_them(server, queue, when):
    ids = bury(queue, "mails", 3)
    later = queue.put(b"later", delay=1000)
    client = Meddled(server.address, when, lambda: [queue.delete(each) for each in ids])
    run_steps(client, lambda client: actions.kick(client, "mails", "buried", 3))
    assert queue.stats_job(later)["state"] == "delayed"


def test_a_job_in_another_state_or_tube_is_passed_over(server, queue):
    mails, moved = bury(queue, "mails", 3), bury(queue, "letters")
    queue.kick_job(mails[1])
    client = AsyncClient(server.address, encoding=None)
    ids = [*mails, *moved, 10**6]
    found = run_steps(client, lambda client: actions.each_job(client, ids, make.delete, "mails", "buried"))
    assert found == (2, 3)
    assert queue.stats_job(mails[1])["state"] == "ready" and queue.stats_job(moved[0])["state"] == "buried"


def test_jobs_that_change_places_while_they_are_reprioritized_are_done_once(server, queue):
    queue.use("mails")
    for priority, number in ((5, 500), (5, 502), (20, 100)):  # of two pages; the first jobs come to be among the others
        queue.put_batch([b"x"] * number, priority)
    found = run_steps(
        AsyncClient(server.address, encoding=None),
        lambda client: actions.reorder(client, "mails", "ready", 1102, lambda each: make.reprioritize(each, 10)),
    )
    assert found == (1102, 0)
    assert {job["pri"] for job in queue.list_jobs("mails", "ready")} == {10}


async def test_a_job_that_a_worker_got_before_its_copy_took_its_place_has_no_copy(server, queue):
    queue.use("mails")
    job_id = queue.put(b"x", ttr=1)
    queue.watch("mails")
    client = Meddled(server.address, b"delete", lambda: queue.reserve(10))  # when its time to run has ended

    async with client:
        with pytest.raises(NotFoundError):
            await actions.replace(client, job_id, "letters", None, {})
    assert queue.stats()["current-jobs-ready"] == 0
    assert queue.stats_job(job_id)["state"] == "reserved"


async def test_a_job_with_a_key_that_was_done_meanwhile_is_not_put_again(server, queue):
    queue.use("mails")
    job_id = queue.put_with(b"x", key="once")
    client = Meddled(server.address, b"put-with", lambda: queue.delete(job_id))

    async with client:
        with pytest.raises(NotFoundError):
            await actions.replace(client, job_id, "mails", b"y", {})
    assert queue.stats_tube("mails")["current-jobs-ready"] == 0


async def test_a_job_that_cannot_be_moved_has_not_failed(server, queue):
    queue.use("letters")
    queue.put_with(b"y", key="once")
    queue.use("mails")
    job_id = queue.put_with(b"x", key="once", tries=1)

    async with AsyncClient(server.address, encoding=None) as client:
        with pytest.raises(ExistsError):
            await actions.replace(client, job_id, "letters", None, {})
    found = queue.stats_job(job_id)
    assert (found["state"], found["tries"], found["reserves"]) == ("ready", 0, 0)


@pytest.mark.parametrize(("delay", "state"), [(0, "ready"), (500, "delayed")])
def test_a_copy_is_ready_when_the_job_was(either, delay, state):
    with Client(either.address, encoding=None) as queue:
        queue.use("mails")
        job_id = queue.put(b"x", delay=delay)

        async def told():
            async with AsyncClient(either.address, encoding=None) as client:
                return await actions.replace(client, job_id, "letters", None, {})

        found = queue.stats_job(asyncio.run(told()))
        assert (found["tube"], found["state"]) == ("letters", state)
        assert found["time-left"] >= delay - 5
        with pytest.raises(NotFoundError):
            queue.stats_job(job_id)
