"""The listings of docs/idempotency.md do what the page says."""

import re

import pytest
from listings import Program

from harness.servers import ROOT

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "idempotency.md"


def test_a_task_that_runs_twice_charges_once(tmp_path, run):
    program = Program(PAGE, "A task that may run twice", tmp_path, run().address)
    program.run("order.py")
    program.write("again.py", program.read("order.py").replace("17", "18"))
    program.run("again.py")
    until = {"order 18: ann has 5000 cents left"}
    log = program.work("-m", "beanstalk_client.worker", "shop:tasks", "--at-once", "1", until=until)
    assert [line for line in log.splitlines() if line.startswith("order ")][:3] == [
        "order 17: ann has 7500 cents left",
        "order 17: ann has 7500 cents left",
        "order 18: ann has 5000 cents left",
    ]


def test_a_key_lets_one_of_several_puts_through(tmp_path, run, capsys):
    (listing,) = Program(PAGE, "Keys: one job for one thing", tmp_path, run().address).more
    exec(listing, {"__name__": "listing"})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", listing, re.MULTILINE)


def test_a_put_with_a_token_happens_once(tmp_path, run):
    program = Program(PAGE, "Once: the same put twice", tmp_path, run().address)
    assert program.run("paid.py") == "True\n1\n"


def test_every_listing_is_run():
    with_listings = [part.partition("\n")[0] for part in PAGE.read_text().split("\n## ")[1:] if "```" in part]
    assert with_listings == ["A task that may run twice", "Keys: one job for one thing", "Once: the same put twice"]
