"""The client of this package at a real server: pages, keyed jobs, an unmodified client beside it, and an example."""

import re
import sys
from pathlib import Path

import beanstalk_client
import greenstalk
import pytest
from beanstalk_client import Client, commands

from harness import servers

EXAMPLE = Path(__file__).parents[2] / "examples" / "undo_delete.py"


@pytest.fixture
def server(run):
    return run()


def test_pages_of_tubes_are_asked_for_as_they_are_needed(server, monkeypatch):
    monkeypatch.setattr(commands, "PAGE_ENTRIES", 2)
    with Client(server.address, use="mail-2", watch=[f"mail-{number}" for number in range(5)]) as queue:
        queue.put("x", delay=9)
        found = {entry["name"]: entry for entry in queue.stats_tubes()}
        assert list(found) == ["default", *[f"mail-{number}" for number in range(5)]]
        for name, entry in found.items():
            assert entry == queue.stats_tube(name) | {"name": name}
        assert [entry["name"] for entry in queue.stats_tubes(prefix="mail", first="mail-3")] == ["mail-3", "mail-4"]
        assert [entry["name"] for entry in queue.stats_tubes(prefix="d")] == ["default"]
        assert not list(queue.stats_tubes(prefix="n"))


def test_pages_of_jobs_are_asked_for_as_they_are_needed(server, monkeypatch):
    monkeypatch.setattr(Client, "_job_page", lambda queue, *page: queue.execute(commands.make._job_page(*page, 2)))
    with Client(server.address, use="t", watch="t") as queue:
        with pytest.raises(beanstalk_client.NotFoundError):
            next(queue.list_jobs("nobody"))
        ids = [queue.put("x" * number, priority=9 - number) for number in range(5)]
        found = list(queue.list_jobs("t"))
        assert [entry["id"] for entry in found] == ids[::-1]
        assert [entry["size"] for entry in found] == [4, 3, 2, 1, 0]
        for entry in found:
            shown = queue.stats_job(entry["id"])
            assert {key: shown[key] for key in shown if key not in ("tube", "file")}.items() <= entry.items()
        assert not list(queue.list_jobs("t", "buried"))
        jobs = queue.list_jobs("t")
        next(jobs)
        queue.clear_tube("t")
        queue.use("default")
        queue.watch("default")
        queue.ignore("t")
        assert len(list(jobs)) == 1, "the rest of the page, and no more"


def test_an_undo_is_done_although_a_reminder_is_on_its_way(server):
    namespace = {"__name__": "example"}
    exec(EXAMPLE.read_text(), namespace)
    namespace["REMINDERS"] = (0, 50, 50)
    with Client(server.address) as queue:
        namespace["ask_for_deletion"](queue, "red")
        assert namespace["undo"](queue, "red") == 2
        assert queue.stats_tube("default")["current-jobs-delayed"] == 0
        with pytest.raises(beanstalk_client.NotFoundError):
            namespace["undo"](queue, "red")


def test_an_unmodified_greenstalk_works_in_tubes_with_keyed_jobs(server):
    with Client(server.address) as ours, greenstalk.Client(server.address) as stock:
        ours.put_keyed("k", "keyed", priority=1)
        stock.put("plain", priority=2)
        job = stock.reserve()
        assert job.body == "keyed"
        assert stock.stats_job(job)["key"] == "k"
        stock.release(job, delay=100, priority=1)
        assert stock.peek_delayed().body == "keyed"
        assert stock.kick(1) == 1
        job = stock.reserve()
        stock.bury(job, priority=1)
        stock.kick_job(job)
        stock.touch(stock.reserve())
        stock.delete(job)
        assert stock.reserve(timeout=0).body == "plain"
        assert stock.stats()["cmd-put-keyed"] == 1
        assert ours.put_keyed("k", "again") > job.id


@pytest.mark.parametrize("loop_factory", ["uvloop"], indirect=True)
def test_the_example_prints_what_its_docstring_promises(server):
    promised = re.search(r"It prints:\n\n(.*?)\n\"\"\"", EXAMPLE.read_text(), re.DOTALL)[1]
    host, port = server.address
    done = servers.run([sys.executable, str(EXAMPLE), f"{host}:{port}"])
    assert done.stderr == ""
    assert done.stdout.splitlines() == [line.strip() for line in promised.splitlines()]
