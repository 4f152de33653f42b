"""`beanstalk bench`: its arithmetic, what it prints, and that no job is left, however it ends."""

import itertools
import json
import signal

import pytest
from beanstalk_client import AsyncClient, Client, ConnectionLostError
from beanstalk_client.cli import bench
from beanstalk_client.cli.bench import Bench, measured, percentile, row
from beanstalk_client.cli.main import main
from beanstalk_client.cli.parser import parse
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server import ListenerConfig, UserConfig
from harness import servers
from harness.waiting import eventually

STEPS = ["_put", "_reserve", "_delete", "_cycle"]


@pytest.fixture(autouse=True)
def without_settings(monkeypatch):
    for name in ("BEANSTALK_SERVER", "BEANSTALK_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ask(either, capsys):
    """Calls `beanstalk bench` with few jobs; returns its exit status, what it printed, and what it complained of."""

    def call(*arguments):
        host, port = either.address
        status = main(["--server", f"{host}:{port}", "bench", "--clients", "3", "-P", "2", "--jobs", "50", *arguments])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def statistics(either):
    """Asks the server for its statistics, when all jobs are gone and all other clients, too."""

    def found():
        with Client(either.address) as client:
            eventually(lambda: client.stats()["current-connections"] == 1, "the connections to be closed")
            found = client.stats()
            assert [name for name in client.tubes() if name.startswith("beanstalk-bench")] == []
        assert {found[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")} == {0}
        return found

    return found


@pytest.fixture
def when(monkeypatch):
    """Lets something happen at the tenth call of a coroutine function of Bench, before it."""

    def patch(name, action):
        original = getattr(Bench, name)
        calls = []

        async def patched(self, client):
            calls.append(client)
            if len(calls) == 10:
                await action(self, client)
            return await original(self, client)

        monkeypatch.setattr(Bench, name, patched)

    return patch


@given(st.lists(st.integers(0, 20), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values, percent):
    reaching = [value for value in values if 100 * sum(other <= value for other in values) >= percent * len(values)]
    assert percentile(sorted(values), percent) == min(reaching)


def test_without_values_a_percentile_is_0():
    assert percentile([], 50) == 0


def test_rates_are_for_a_second_and_latencies_are_in_milliseconds_in_the_table_and_in_seconds_in_json():
    result = measured("put", 2, 1.5, [0.002, 0.003, 0.004] + [0.001] * 97)
    assert row(result) == ["put", 100, 50, 1, 3, 4, 75]
    assert result == {
        "operation": "put", "jobs": 100, "seconds": 2, "rate": 50, "p50": 0.001, "p99": 0.003, "max": 0.004,
        "client-cpu": 0.75,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("line", "jobs"),
    [("", 100_000), ("--size 0", 100_000), ("--size 1000000", 100), ("--size 200000000", 1), ("--jobs 7", 7),
     ("--size 1000000 --jobs 5000", 5000)],
)  # fmt: skip
def test_bodies_are_bounded_unless_the_number_of_jobs_is_given(line, jobs):
    assert Bench(parse(["bench", *line.split()])).jobs == jobs


def test_each_operation_is_measured_with_each_job(ask, statistics):
    status, out, err = ask("--json", "--size", "10")
    assert status == 0
    found = json.loads(out)
    assert (found["jobs"], found["clients"], found["pipeline"], found["size"]) == (50, 3, 2, 10)
    assert [result["operation"] for result in found["results"]] == ["put", "reserve", "delete", "cycle"]
    for result in found["results"]:
        assert result["jobs"] == 50
        assert result["rate"] == pytest.approx(50 / result["seconds"], rel=0.01)
        assert 0 < result["p50"] <= result["p99"] <= result["max"] <= result["seconds"]
        assert result["client-cpu"] > 0
    assert f"50 jobs of 10 bytes at a time in the tube {found['tube']}, all deleted at the end\n" in err
    assert statistics()["total-jobs"] == 100


def test_without_json_there_is_a_table(ask, statistics):
    status, out, _ = ask("--prefix", "beanstalk-bench-other")
    assert status == 0
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert tuple(header) == bench.COLUMNS
    assert [row[:2] for row in rows] == [[name, "50"] for name in ("put", "reserve", "delete", "cycle")]
    statistics()


def test_delayed_jobs_are_put_and_deleted_only(ask, statistics, when):
    async def look(self, client):
        assert (await client.stats_tube(self.tube))["current-jobs-delayed"] == 50 - 9

    when("_delete", look)
    status, out, _ = ask("--json", "--delay", "1h", "--pipeline", "1", "--clients", "1")
    assert status == 0
    assert [result["operation"] for result in json.loads(out)["results"]] == ["put", "delete"]
    assert statistics()["total-jobs"] == 50


def test_more_clients_than_jobs_are_not_connected(ask, statistics):
    assert ask("--clients", "20", "--jobs", "2")[0] == 0
    assert statistics()["total-connections"] < 10


@pytest.mark.parametrize("step", STEPS)
def test_it_ends_after_its_time_and_leaves_no_job(step, ask, statistics, monkeypatch):
    """The clock stands still but for this operation, of which there are a few jobs then."""
    now, ticks = [0], itertools.count(1)
    original = getattr(Bench, step)

    async def slow(self, client):
        now[0] += 1
        return await original(self, client)

    monkeypatch.setattr(Bench, step, slow)
    monkeypatch.setattr(bench.time, "perf_counter", lambda: now[0] + 1e-9 * next(ticks))
    status, out, _ = ask("--json", "--seconds", "20")
    assert status == 0
    jobs = {f"_{result['operation']}": result["jobs"] for result in json.loads(out)["results"]}
    expected = {"_put": 50, "_reserve": 50, "_delete": 50, "_cycle": 50}
    if step == "_put":
        expected |= {"_reserve": jobs["_put"], "_delete": jobs["_put"]}
    if step != "_delete":
        assert 20 <= jobs[step] < 30
        expected[step] = jobs[step]
    assert jobs == expected
    statistics()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", STEPS)
def test_a_signal_ends_it_and_no_job_is_left(step, number, ask, statistics, when):
    async def interrupt(self, client):
        signal.raise_signal(number)

    when(step, interrupt)
    status, out, err = ask("--jobs", "5000")
    assert (status, out) == (128 + number, "")
    assert err.endswith("beanstalk bench: stopping: deleting the jobs; press Ctrl-C again to leave them in the tube\n")
    assert statistics()["total-jobs"] < 10_000


def test_a_second_signal_leaves_jobs_and_says_where(ask, when, monkeypatch, either):
    async def interrupt(self, client):
        signal.raise_signal(signal.SIGINT)

    async def interrupt_again(self, client):
        signal.raise_signal(signal.SIGINT)
        await client.stats()

    when("_reserve", interrupt)
    monkeypatch.setattr(Bench, "_delete_known", interrupt_again)
    status, _, err = ask()
    assert status == 130
    left, tube = err.splitlines()[-1].rsplit(" ", 1)
    assert left == "beanstalk bench: jobs may be left in the tube"
    with Client(either.address) as client:
        eventually(lambda: client.stats_tube(tube)["current-jobs-ready"] == 50, "reserved jobs to be ready again")


@pytest.mark.parametrize("step", STEPS)
def test_a_lost_connection_ends_it_and_no_job_is_left(step, ask, statistics, when):
    async def lose(self, client):
        client._connection.abort()

    when(step, lose)
    status, out, err = ask()
    assert (status, out) == (69, "")
    assert "connection lost" in err
    assert "may be left" not in err
    statistics()


@pytest.mark.parametrize("name", ["put", "delete"])
@pytest.mark.parametrize("delay", ["0", "1h"])
def test_a_job_whose_reply_is_lost_is_looked_for(delay, name, ask, statistics, monkeypatch):
    original = AsyncClient.execute
    done = []

    async def lossy(self, command):
        result = await original(self, command)
        if command.name == name:
            done.append(result)
            if len(done) == 10:
                self._connection.abort()
                raise ConnectionLostError("lost", reason="lost", maybe_done=True)
        return result

    monkeypatch.setattr(AsyncClient, "execute", lossy)
    status, _, err = ask("--delay", delay)
    assert status == 69
    assert "connection lost" in err
    assert "may be left" not in err
    assert statistics()["total-jobs"] >= 10


def test_jobs_that_do_not_come_are_an_error(ask, statistics, when, monkeypatch):
    async def pause(self, client):
        await client.pause_tube(self.tube, 60)

    monkeypatch.setattr(bench, "READY_WITHIN", 0)
    when("_reserve", pause)
    status, out, err = ask()
    assert (status, out) == (1, "")
    assert "no job within 0 s: another worker is reserving its jobs, or the tube is paused\n" in err
    statistics()


def test_a_body_that_is_too_large_is_refused(ask, statistics):
    status, out, err = ask("--size", "70000")
    assert (status, out) == (1, "")
    assert err.endswith("refused: the body is too large\n")
    statistics()


@pytest.mark.parametrize(
    ("consume", "status", "end"), [("bench-*", 0, "at the end\n"), ("x", 1, "lacks the right to run this command\n")]
)
def test_it_needs_the_rights_to_produce_and_consume_and_no_others(consume, status, end, run, capsys):
    user = UserConfig(name="u", produce=("bench-*",), consume=(consume,))
    server = run(listeners=(ListenerConfig(address="127.0.0.1:0", user="u"),), users=(user,))
    host, port = server.address
    assert main(["--server", f"{host}:{port}", "bench", "--jobs", "10", "--prefix", "bench"]) == status
    assert end in capsys.readouterr().err


def test_without_a_server_there_is_the_usual_error(capsys):
    assert main(["--server", f"127.0.0.1:{servers.unused_port()}", "bench"]) == 69
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("beanstalk bench: 127.0.0.1:")
    assert "cannot connect" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("busy", "says"), [(0, True), (10, False)])
def test_a_client_that_is_the_limit_says_so(busy, says, ask, monkeypatch):
    monkeypatch.setattr(bench, "BUSY", busy)
    assert ("the client used a full CPU core and may be the bottleneck: the server may be faster\n" in ask()[2]) is says
