"""The listings of docs/workers.md: each is run, and does what the page says."""

import re
import subprocess
import sys

import pytest
from beanstalk_client.worker.command import make_parser
from consuming import SERVERS, running
from working import WorkerProcess

from harness.servers import ROOT

PAGE = (ROOT / "docs" / "workers.md").read_text()
LISTINGS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOP, ORDER, *OTHERS = LISTINGS


@pytest.mark.slow
def test_the_shop_and_its_worker(tmp_path):
    with running(SERVERS[0]) as server:
        host, port = server.address
        source = SHOP.replace("127.0.0.1:11300", f"{host}:{port}")
        (tmp_path / "shop.py").write_text(source)
        worker = WorkerProcess(server, tmp_path, program=source)
        try:
            done = subprocess.run(
                [sys.executable, "-c", ORDER],
                env=worker.environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert done.stdout == "True\n"
            worker.wait_for("to ann@example.com: Thank you", "the mail is sent")
            assert worker.stop() == 0
            assert "is cancelled" not in worker.log
        finally:
            worker.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "listing", OTHERS, ids=[re.findall(r"from beanstalk_client\S* import .*", each)[0] for each in OTHERS]
)
def test_each_listing_is_a_program(listing, capsys):
    """Its tasks run in memory; the test at the end of the page runs itself. A comment says what is printed."""
    names = {"__name__": "listing"}
    exec(listing, names)
    assert capsys.readouterr().out.splitlines() == re.findall(
        r"^(?:print\(.*  )?# (?!shop.py)(.*)", listing, re.MULTILINE
    )
    tasks = names["tasks"]
    with tasks.in_memory() as queue:
        for name in ("charge", "note"):
            if (task := tasks.get(name)) is not None:
                task.put(*[0][: name == "charge"])
        queue.run()
        assert {job.state for job in queue.jobs("default")} <= {"buried"}


def test_every_option_is_in_the_table():
    table = PAGE.partition("## The worker")[2].partition("## ")[0]
    options = {
        option for action in make_parser()._actions for option in action.option_strings if option.startswith("--")
    }
    assert set(re.findall(r"^\| `(--[a-z-]+)", table, re.MULTILINE)) == options - {"--help", "--version"}


def test_every_event_is_in_the_table():
    table = PAGE.partition("## The log")[2].partition("## ")[0]
    named = set(re.findall(r"`([a-z]+-[a-z-]+)`", table))
    modules = ["consumer.py", "logs.py", "signals.py", "tasks/middleware.py", "tasks/reports.py", "tasks/results.py"]
    modules += ["tasks/runner.py"]
    modules += ["worker/command.py", "worker/processes.py", "worker/serving.py"]
    sources = "".join((ROOT / "client" / "beanstalk_client" / module).read_text() for module in modules)
    told = set(re.findall(r'tell\(\s*(?:log,\s*)?logging\.[A-Z]+,\s*"([a-z-]+)"', sources))
    ends = re.findall(r'f"{self._name}-([a-z-]+)"', (ROOT / "client" / "beanstalk_client" / "consumers.py").read_text())
    assert named == told | {f"worker-{end}" for end in ends}
