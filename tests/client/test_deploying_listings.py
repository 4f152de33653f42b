"""The workers of docs/deploying.md run the jobs of the old version and of the new one."""

import json

import pytest
from beanstalk_client import Client
from consuming import SERVERS, running
from listings import Program

from harness.servers import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "deploying.md"

JOBS = {
    "Rename a task": (
        ("send_mail", ["ann@example.com", "Thank you"], "to ann@example.com: Thank you"),
        ("cancel_order", [17], "order 17 is cancelled"),
        ("cancel", [18], "order 18 is cancelled"),
    ),
    "Change the arguments": (
        ("invoice", [17], "invoice for order 17 in EUR"),
        ("invoice", [18, "USD"], "invoice for order 18 in USD"),
    ),
}
"""For each section with a program: jobs of both versions, by task and arguments, and what the worker prints."""


@pytest.mark.parametrize("section", JOBS)
def test_a_worker_runs_jobs_of_both_versions(section, tmp_path):
    with running(SERVERS[0]) as server:
        program = Program(PAGE, section, tmp_path, server.address)
        with Client(server.address, use="shop") as queue:
            for task, args, _ in JOBS[section]:
                queue.put(json.dumps({"task": task, "args": args}))
        expected = {line for _, _, line in JOBS[section]}
        log = program.work("-m", "beanstalk_client.worker", "shop:tasks", "--at-once", "1", until=expected)
        assert "buried" not in log


def test_a_worker_takes_jobs_of_the_old_tube_and_of_the_new_one(tmp_path):
    lines = PAGE.read_text().splitlines()
    arguments = next(line.split()[1:] for line in lines if line.startswith("    beanstalk-worker "))
    with running(SERVERS[0]) as server:
        program = Program(PAGE, "Change the arguments", tmp_path, server.address)
        with Client(server.address) as queue:
            for order, tube in enumerate(("shop", "mail")):
                queue.use(tube)
                queue.put(json.dumps({"task": "invoice", "args": [order]}))
        expected = {f"invoice for order {order} in EUR" for order in range(2)}
        assert expected <= set(program.work("-m", "beanstalk_client.worker", *arguments, until=expected).splitlines())


def test_every_listing_is_run():
    sections = PAGE.read_text().split("\n## ")
    assert {section.partition("\n")[0] for section in sections if "```" in section} == set(JOBS)
