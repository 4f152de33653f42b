"""What the bench asks of the system, how it speaks, and one small load on each kind of server."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from bench import process
from bench.dialect import DIALECTS
from bench.generator import LoadError
from bench.results import Results
from bench.run import Run, Variant
from bench.servers import SOURCES, ServerError, missing, stalls_of

# /proc


@pytest.fixture
def proc(tmp_path):
    directory = tmp_path / "42"
    (directory / "task" / "42").mkdir(parents=True)
    (directory / "task" / "43").mkdir()
    (directory / "stat").write_text("42 (a (name)) S " + " ".join(["0"] * 10) + " 30 10 0 0\n")
    (directory / "task" / "42" / "schedstat").write_text("300000000 5 7\n")
    (directory / "task" / "43" / "schedstat").write_text("100000000 5 7\n")
    (directory / "statm").write_text("1000 250 3 4 0 5 0\n")
    (directory / "status").write_text("Name:\tx\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n")
    return tmp_path


def test_cpu_time_is_that_of_all_threads_and_has_its_shares(proc):
    spent = process.cpu(42, proc)
    assert (spent.total, spent.user, spent.system) == pytest.approx((0.4, 0.3, 0.1))


def test_cpu_time_where_the_kernel_counts_ticks_only(proc):
    for file in proc.glob("42/task/*/schedstat"):
        file.unlink()
    assert process.cpu(42, proc).total == 40 / os.sysconf("SC_CLK_TCK")


def test_shares_are_those_of_the_stretch_that_was_measured(proc):
    before = process.Cpu(0.1, 30, 0)
    spent = process.cpu(42, proc).since(before)
    assert (spent.user, spent.system) == pytest.approx((0.0, 0.3))


def test_memory_and_sleep(proc):
    assert process.resident(42, proc) == 250 * os.sysconf("SC_PAGE_SIZE")
    assert process.switches(42, proc) == 17


def test_this_process_can_be_read():
    before = process.cpu(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert 0.04 < process.cpu(os.getpid()).since(before).total < 5


# Bytes


def test_ids_are_found_in_replies():
    assert DIALECTS["beanstalk"].ids(b"RESERVED 7 2\r\nxx\r\nRESERVED 81 2\r\nxx\r\n") == [b"7", b"81"]
    assert DIALECTS["redis"].ids(b"*2\r\n$1\r\n7\r\n$2\r\nxx\r\n*2\r\n$2\r\n81\r\n$2\r\nxx\r\n") == [b"7", b"81"]


def test_the_summary_of_stalls_is_found_in_a_log():
    log = (
        "INFO event loop held 3.0 ms (2.5 ms of CPU)\nINFO event loop held 3.0 ms at the longest, 2.5 ms of CPU at the "
        "most; of 1000 looks, 99 % found it held 0.1 ms or less, 99.9 % 1.2 ms or less\n"
    )
    assert stalls_of(log) == {"longest": 3.0, "cpu": 2.5, "looks": 1000.0, "p99": 0.1, "p999": 1.2}
    with pytest.raises(ServerError):
        stalls_of("nothing")


# Servers and loads


@pytest.fixture
def run(tmp_path):
    run = Run([], 1, 0.01, tmp_path, lambda what: None, results=Results(), scenario="small")
    yield run
    run.generator.stop()


@pytest.mark.parametrize("peer", ["interpreted", "beanstalkd", "redis"])
def test_a_small_load_on_each_server(run, peer):
    if why := missing(peer):
        pytest.skip(why)
    with run.servers(peer) as servers:
        for server in servers:
            for depth in (1, 20):
                sample = run.load("cycle", server, connections=3, depth=depth, rounds=2, tube=run.tube())
                assert sample["commands"] == 3 * 2 * 3 * depth
                assert 0 < sample["p50"] <= sample["p99"] <= sample["most"]
            sample = run.load("stream", server, kind="put", count=250, delays=(10, 20))
            assert sample["commands"] == 250
            run.load("stream", server, kind="delete", count=2, ids=[19, 20])
            if peer != "redis":
                sample = run.load("handover", server, workers=3, in_flight=2, seconds=0.05)
                assert sample["commands"] >= 6
                assert len(run.load("steady", server, connections=2, seconds=0.1, window=0.05)) == 2
    assert server.process.poll() is not None


def test_a_load_that_fails_says_why_and_the_generator_lives_on(run):
    with run.servers("interpreted") as (server,):
        with pytest.raises(LoadError, match=r"handover on interpreted: .*nonsense"):
            run.load("handover", server, nonsense=1)
        run.load("idle", server, seconds=0.01)


def test_a_server_that_does_not_start_is_named_as_missing(run):
    with run.servers(Variant("ours, oddly", "interpreted", ("--no-such-option",))) as servers:
        assert servers == []
    assert "unrecognized arguments: --no-such-option" in run.results.missing["small: ours, oddly"]


def test_a_peer_that_is_not_installed_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert missing("redis") == "redis-server is not installed (Debian: apt-get install redis-server)"


# All of it


def test_a_quick_run_ends_with_tables_results_and_plots(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with `make bench`")
    pytest.importorskip("rich", reason="rich comes with `make bench`")
    path = tmp_path / "run.json"
    options = ["--quick", "--pairs", "1", "--peers", "interpreted", "--scenario", "request-response"]
    command = [sys.executable, "-m", "bench", *options, "--results", str(path), "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=SOURCES, check=False)
    assert done.returncode == 0, done.stderr
    assert "request-response" in done.stdout
    assert "the figures to reach" in done.stdout
    results = Results.read(path)
    assert [point.size for point in results.select("request-response", server="interpreted")] == [1, 50, 500]
    assert results.about["quick"] is True
    assert (tmp_path / "run" / "request-response.svg").exists()
    assert not list(tmp_path.glob("bench-*"))
