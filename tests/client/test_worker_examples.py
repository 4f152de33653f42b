"""The examples of workers, at real servers, and through restarts."""

import asyncio
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib import util

import pytest
from consuming import SERVERS, restartable, running
from working import WorkerProcess

from harness.servers import ROOT, run
from harness.waiting import eventually

EXAMPLES = ROOT / "examples"


def load(name):
    """An example as a module of its own."""
    spec = util.spec_from_file_location(f"worker_examples_{name}", EXAMPLES / f"{name}.py")
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def promised(text):
    """The lines that a docstring promises."""
    return [line.strip() for line in re.split(r"prints:\n\n", text)[1].strip().splitlines()]


def test_an_order_is_paid_or_cancelled_after_15_minutes(capsys):
    module = load("order")
    with module.tasks.in_memory() as queue:
        began = datetime.fromtimestamp(queue.now, UTC)
        asyncio.run(module.story(60, queue.arun))
        assert datetime.fromtimestamp(queue.now, UTC) - began == timedelta(minutes=20)
    assert capsys.readouterr().out.splitlines() == promised(module.__doc__)


@pytest.mark.slow
def test_an_order_at_a_server():
    with running(SERVERS[0]) as server:
        host, port = server.address
        line = [sys.executable, str(EXAMPLES / "order.py"), f"{host}:{port}"]
        done = run(line, {"PYTHONPATH": str(ROOT / "client")})
    assert done.stdout.splitlines() == promised(load("order").__doc__)


@pytest.mark.slow
def test_task_types_survive_restarts_of_server_and_worker(tmp_path):
    """The server is killed with everything in it, then the worker, in the midst; each task is done all the same."""
    source = (EXAMPLES / "task_types.py").read_text()
    (tmp_path / "binlog").mkdir()
    with restartable(SERVERS[0], tmp_path / "binlog") as server:
        worker = WorkerProcess(server, tmp_path, "--grace", "60", program=source)
        try:
            worker.wait_for("takes jobs from", "it has started")
            worker.kill()

            def put(count):
                subprocess.run(
                    [sys.executable, tmp_path / "program.py", str(count)], env=worker.environment, check=True
                )

            put(3)
            server.kill()
            server.start()
            worker.start()
            lines = promised(load("task_types").__doc__)
            eventually(lambda: all(line in worker.log for line in lines), "all is done")
            server.kill()
            server.start()
            put(4)
            eventually(lambda: "picture 3 has been resized" in worker.log, "it is done")
            eventually(lambda: worker.log.count("invoice 0 is filed") == 2, "it is done")
            assert worker.stop() == 0
        finally:
            worker.close()
