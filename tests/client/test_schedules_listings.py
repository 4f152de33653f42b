"""The listings of docs/schedules.md: the program, what it prints of itself, and a scheduler beside other work."""

import re
import subprocess
import sys

import pytest
from beanstalk_client.blocking import Client

from harness import servers
from harness.servers import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "schedules.md").read_text()
PROGRAM, TEST, BESIDE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MOMENT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:00\+0\d:00"


def test_a_program_and_its_schedules(run, tmp_path):
    host, port = run().address
    (tmp_path / "jobs.py").write_text(PROGRAM.replace("127.0.0.1:11300", f"{host}:{port}"))
    (tmp_path / "beside.py").write_text(BESIDE.replace("    ...", "    while not scheduler._is_whole: pass"))

    def python(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            env=servers.environment_of(servers.imported()) | {"PYTHONPATH": str(ROOT / "client")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    shown = re.search(r"--list\n((?:    .*\n)+)", PAGE)[1].replace("    ", "")
    listed = python("-m", "beanstalk_client.scheduler", "jobs:tasks", "--list")
    assert re.sub(MOMENT, "…", listed) == re.sub(MOMENT, "…", shown)
    with Client(f"{host}:{port}") as queue:
        python("-m", "beanstalk_client.scheduler", "jobs:tasks", "--once")
        assert queue.stats_tube("reports")["current-jobs-delayed"] == 2
        assert 2 <= queue.stats_tube("upkeep")["current-jobs-delayed"] <= 3
        python("beside.py")
        assert 6 <= queue.stats_tube("upkeep")["current-jobs-delayed"] <= 7


def test_the_listing_of_a_test_passes():
    names = {"__name__": "listing"}
    exec(TEST, names)
    assert names["reports"] == ["the report of the week"]
