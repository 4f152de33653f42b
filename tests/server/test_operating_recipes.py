"""What docs/operating.md tells an operator to do works as it stands there, and keeps what it promises."""

import contextlib
import os
import re
import subprocess

import beanstalk_client
import programs
import pytest
from beanstalk_client import Client

from harness.servers import ROOT
from harness.waiting import eventually

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "operating.md"

PORTS = ("11300", "11301", "11302", "6379", "6380")

LEADS_WITHIN = 90
"""Seconds until a node must lead: many times the lease."""


def address(recipe, port="11300"):
    return "127.0.0.1", recipe.ports[port]


def connect(recipe, port="11300", **keywords):
    return Client(address(recipe, port), **keywords)


def stop(recipe):
    """Follow the block that stops the server."""
    server = recipe.server
    recipe.run()
    assert server.wait() == 0


def restart(recipe):
    """Follow three blocks: the server is stopped, something is done, and it is started again."""
    stop(recipe)
    said = recipe.run()
    recipe.serve()
    return said


def test_upgrade_from_beanstalkd_and_back(follow, open_path):
    programs.find("beanstalkd")
    recipe = follow("Upgrade from beanstalkd", page=PAGE, ports=PORTS)
    beanstalkd = recipe.serve_proxy("11300")
    with beanstalk_client.Client(address(recipe), use="mail") as queue:
        for number in range(3):
            queue.put(str(number), priority=number, delay=0 if number < 2 else 1000)
    beanstalkd.kill()
    recipe.run()
    recipe.serve()
    assert "3 jobs" in recipe.server.log
    with connect(recipe, use="mail", watch="mail") as queue:
        assert queue.reserve(timeout=60).body == "0"
        queue.put("3")
        assert queue.stats()["current-jobs-delayed"] == 1
    stop(recipe)
    assert "exported 4 jobs" in recipe.run()
    beanstalkd = recipe.serve_proxy("11300")
    with beanstalk_client.Client(address(recipe), watch="mail") as queue:
        assert [queue.reserve(timeout=60).body for _ in range(3)] == ["0", "1", "3"]
        assert queue.stats()["current-jobs-delayed"] == 1
    beanstalkd.kill()


def test_upgrade_of_this_server(follow):
    recipe = follow("Upgrade this server", page=PAGE, ports=PORTS)
    recipe.serve()
    with connect(recipe) as queue:
        queue.put("x")
    assert "beanstalk-server" in recipe.run()
    with connect(recipe) as queue:
        assert queue.peek_ready().body == "x"  # nobody was disconnected by that
    assert "total" in restart(recipe)
    with connect(recipe) as queue:
        assert queue.reserve(timeout=60).body == "x"


def test_backup_and_restore(follow):
    recipe = follow("Back up and restore", page=PAGE, ports=PORTS)
    recipe.serve()
    with connect(recipe) as queue:
        queue.put("before the backup")
    restart(recipe)
    with connect(recipe) as queue:
        queue.delete(queue.reserve(timeout=60))
        queue.put("after the backup")
    assert '"body": "before the backup"' in recipe.run()
    restart(recipe)
    with connect(recipe) as queue:
        assert queue.reserve(timeout=60).body == "before the backup"
        with pytest.raises(beanstalk_client.TimedOutError):
            queue.reserve(timeout=0)


def test_move_to_another_host(follow):
    recipe = follow("Move to another host", page=PAGE, ports=PORTS)
    recipe.serve()
    with connect(recipe) as queue:
        queue.put("moved", priority=7)
    stop(recipe)
    recipe.run()
    assert "total" in recipe.run()
    recipe.serve()
    with connect(recipe, "11301") as queue:
        assert queue.stats_job(queue.peek_ready())["pri"] == 7
    recipe.ports["11300"] = recipe.ports["11301"]  # the old server, from here on, is the one that runs
    recipe.run_program()
    with connect(recipe) as queue:
        with pytest.raises(beanstalk_client.DrainingError):
            queue.put("late")
        job = queue.reserve(timeout=60)
        assert job.body == "moved"
        queue.bury(job)
        assert recipe.run_program() == "1\n"
        queue.kick_job(1)
        queue.delete(queue.reserve(timeout=60))
    recipe.again()
    assert recipe.run_program() == "0\n"


@contextlib.contextmanager
def small_disk(place):
    """A disk of 48 megabytes at this directory."""
    place.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "tmpfs", str(place)]
    if os.getuid() != 0 or subprocess.run(line, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk, and not everywhere")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(queue):
    """Put jobs until the disk is full; return how many there are."""
    for count in range(1000):
        try:
            queue.put("x" * 60_000)
        except beanstalk_client.OutOfMemoryError:
            return count
    raise AssertionError("the disk does not become full")


def test_a_full_disk(follow, open_path):
    with contextlib.ExitStack() as stack:
        place = open_path / "var-lib-beanstalk"
        stack.enter_context(small_disk(place))
        recipe = follow("A full disk", page=PAGE, ports=PORTS)
        stack.callback(recipe.end)
        recipe.serve()
        elsewhere = place / "log"
        elsewhere.write_bytes(bytes(8 << 20))
        with connect(recipe, use="debug", watch="debug") as queue:
            put = fill(queue)
            assert put > 1
            queue.delete(queue.reserve(timeout=60))  # which goes on
            while True:
                try:
                    queue.put("x" * 100)
                except beanstalk_client.OutOfMemoryError:
                    break
            assert str(place) in recipe.run()
            elsewhere.unlink()
            assert re.fullmatch(r"put \d+\n", recipe.run_program())
            fill(queue)
            said = recipe.run_program()
            jobs = queue.stats_tube("debug")["current-jobs-ready"]
            assert f"debug ready={jobs} delayed=0 buried=0" in said
            assert recipe.run_program() == f"ended {jobs}\n"
            eventually(lambda: puts(queue), "there is room again")


def puts(queue):
    try:
        queue.put("x")
    except beanstalk_client.OutOfMemoryError:
        return False
    return True


def test_a_slow_consumer(follow):
    recipe = follow("A slow consumer", page=PAGE, ports=PORTS)
    recipe.write()
    recipe.serve()
    with connect(recipe, use="pictures") as producer, connect(recipe, watch="pictures") as worker:
        for _ in range(1000):
            producer.put("x")
        job = worker.reserve(timeout=60)
        assert recipe.run_program().splitlines()[0] == "pictures 999 1 1"
        recipe.write()
        recipe.run()
        eventually(lambda: "reloaded" in recipe.server.log, "the server has read the file")
        with pytest.raises(beanstalk_client.DrainingError):
            producer.put("one too many")
        worker.delete(job)
        producer.put("one in its place")
        assert recipe.run_program() == "600\n"
        with pytest.raises(beanstalk_client.TimedOutError):
            worker.reserve(timeout=0)


def test_a_poison_job(follow):
    recipe = follow("A poison job", page=PAGE, ports=PORTS)
    recipe.write()
    recipe.serve()
    with connect(recipe, use="mail", watch="mail") as queue:
        queue.put("poison")
        for _ in range(2):
            queue.release(queue.reserve(timeout=60))
        assert recipe.run_program() == "1 reserves=2 timeouts=0 releases=2 poison\n"
        recipe.run_program()
        assert queue.stats_job(1)["state"] == "buried"
        recipe.write()
        recipe.run()
        eventually(lambda: "reloaded" in recipe.server.log, "the server has read the file")
        queue.kick_job(1)
        for _ in range(3):
            queue.release(queue.reserve(timeout=60))
        assert re.fullmatch(r"1 \w+ mail poison\n", recipe.run_program())
        with pytest.raises(beanstalk_client.TimedOutError):
            queue.reserve(timeout=0)
        assert recipe.run_program() == "sent back 1\n"
        eventually(lambda: queue.stats_job(1)["tube"] == "mail", "the job is back")
        assert queue.reserve(timeout=60).body == "poison"


def is_listed(recipe, node):
    """Follow the block that lists the nodes, which is to be followed until the new one is among them."""
    if node in recipe.run():
        return True
    recipe.again()
    return False


@pytest.mark.slow
def test_replace_a_node_of_a_cluster(follow):
    programs.find("redis-server")
    recipe = follow("Replace a node of a cluster", page=PAGE, ports=PORTS)
    recipe.run()
    for port in ("6379", "6380"):
        recipe.serve_proxy(port)
    recipe.serve()
    first = recipe.server
    eventually(lambda: "leads" in first.log, "the first node leads", LEADS_WITHIN)
    recipe.serve()
    with connect(recipe, "11301", use="mail") as queue:
        queue.put("kept")
        recipe.serve()
        new = re.search(r"reach this one at (\S+)", recipe.server.log)[1]
        eventually(lambda: is_listed(recipe, new), "the new node is in the list")
        recipe.variables["OLD"] = str(first.pid)
        recipe.run()
        assert first.wait() == 0
        assert re.fullmatch(r"1 jobs, led by \S+\n", recipe.run_program())
        assert queue.peek(1).body == "kept"
