"""The bench reads processes and replies correctly, and puts a small load on each kind of server."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import zlib
from collections import Counter

import pytest

from beanstalk_server.settings.sections import TUBE_KEYS
from bench import backlog, process
from bench.attacks import ATTACKS
from bench.doors import behind_stunnel, missing_stunnel
from bench.generator import LoadError
from bench.protocols import PROTOCOLS
from bench.results import Results
from bench.run import Run, Variant
from bench.scenarios import ATTRIBUTES, SCENARIOS, SETTINGS, binlog, hostile
from bench.servers import PEERS, Server, described, missing, parse_peer, stalls_of, stalls_of_nothing
from bench.subject import Subject, UnexpectedReplyError, ask
from harness.servers import ROOT, ServerError
from harness.waiting import eventually

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
    (directory / "status").write_text(
        "Name:\tx\nVmHWM:\t    2000 kB\nvoluntary_ctxt_switches:\t17\nnonvoluntary_ctxt_switches:\t3\n"
    )
    return tmp_path


def test_cpu_time_is_that_of_all_threads_and_has_its_shares(proc):
    spent = process.cpu(42, proc)
    assert (spent.total, spent.user, spent.system) == pytest.approx((0.4, 0.3, 0.1))


def test_cpu_time_is_known_even_if_the_kernel_counts_only_ticks(proc):
    for file in proc.glob("42/task/*/schedstat"):
        file.unlink()
    assert process.cpu(42, proc).total == 40 / os.sysconf("SC_CLK_TCK")


def test_shares_are_those_of_the_period_that_was_measured(proc):
    before = process.Cpu(0.1, 30, 0)
    spent = process.cpu(42, proc).since(before)
    assert (spent.user, spent.system) == pytest.approx((0.0, 0.3))


def test_memory_and_sleep_are_read(proc):
    assert process.resident(42, proc) == 250 * os.sysconf("SC_PAGE_SIZE")
    assert process.peak(42, proc) == 2000 * 1024
    assert process.switches(42, proc) == 17


def test_this_process_can_be_read():
    before = process.cpu(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass  # what is measured
    assert 0.04 < process.cpu(os.getpid()).since(before).total < 5


def test_processes_can_be_read_together():
    alone = process.cpu(os.getpid())
    both = process.cpu_of_all([os.getpid(), os.getpid()])
    assert both.total >= 2 * alone.total and both.user_ticks >= 2 * alone.user_ticks


# Bytes


def test_ids_are_found_in_replies():
    assert PROTOCOLS["beanstalk"].ids(b"RESERVED 7 2\r\nxx\r\nRESERVED 81 2\r\nxx\r\n") == [b"7", b"81"]
    assert PROTOCOLS["redis"].ids(b"*2\r\n$1\r\n7\r\n$2\r\nxx\r\n*2\r\n$2\r\n81\r\n$2\r\nxx\r\n") == [b"7", b"81"]


def test_stalls_are_found_in_a_log():
    log = (
        "WARNING the event loop stalled for 3.0 ms (2.5 ms of CPU)\n"
        "WARNING 7 more of slow-turn within 10 s, at most 9.0 ms\n"
        "WARNING 2 more of loop-held within 10 s, at most 4.5 ms (1.5 ms of CPU)\n"
    )
    assert stalls_of(log) == {"longest": 4.5, "cpu": 2.5}
    assert stalls_of("nothing") == {"longest": 0, "cpu": 0}


def test_what_a_machine_takes_from_a_process_that_does_nothing_is_measured_too():
    found = stalls_of_nothing(0.05)
    assert 0 <= found["cpu"] <= found["longest"] and found["longest"] > 0


# Servers and loads


@pytest.fixture
def run(tmp_path):
    run = Run([], 1, 0.01, tmp_path, lambda what: None, results=Results(), scenario="small")
    yield run
    run.generator.stop()


@pytest.mark.parametrize("peer", ["interpreted", "beanstalkd", "redis"])
def test_each_server_does_a_small_load(run, peer):
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
                windows = run.load("steady", server, connections=2, seconds=0.1, window=0.05)
                assert len(windows) in (1, 2)  # a busy machine may skip one
    assert server.process.status is not None


SKIPPER = """
import socketserver, sys
class Client(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            if line.startswith(b"ping"):
                self.wfile.write(b"UNKNOWN_COMMAND\\r\\n")
            elif line.startswith(b"reserve"):
                self.wfile.write(b"RESERVED 1 8\\r\\n")
            elif line[:1].isalpha():
                self.wfile.write(b"OK\\r\\n")
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
Server(("127.0.0.1", int(sys.argv[4])), Client).serve_forever()
"""


def test_replies_that_make_no_sense_are_quoted(run, named, tmp_path):
    path = tmp_path / "skipper"
    path.write_text(f"#!{sys.executable}\n{SKIPPER}")
    path.chmod(0o755)
    wrong = pytest.raises(LoadError, match=r"lateness on skipper: UnexpectedReplyError: reserve: \[b'RESERVED 1 8'")
    with run.servers(named(f"skipper={path}")) as (server,), wrong:
        run.load("lateness", server, count=10, span=1, put_seconds=0.1)


def test_a_load_that_fails_says_why_and_the_generator_lives_on(run):
    with run.servers("interpreted") as (server,):
        with pytest.raises(LoadError, match=r"handover on interpreted: .*nonsense"):
            run.load("handover", server, nonsense=1)
        run.load("idle", server, seconds=0.01)


def test_a_server_that_does_not_start_is_named_as_missing(run):
    with run.servers(Variant("ours, oddly", "interpreted", ("--no-such-option",))) as servers:
        assert servers == []
    assert "--no-such-option: no such option" in run.results.missing["small: ours, oddly"]


def test_a_peer_that_is_not_installed_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert missing("redis") == "redis-server is not installed (Debian: apt-get install redis-server)"


# Doors


@pytest.mark.slow
def test_the_same_process_is_measured_plain_and_with_tls(run):
    run.peers = ["interpreted"]
    run.scenario = "tls"
    SCENARIOS["tls"](run)
    points = {(point.server, point.size): point.samples[0] for point in run.results.points}
    assert set(points) == {(name, size) for name in ("interpreted", "interpreted, TLS") for size in (1, 100)}
    assert not run.results.missing
    assert points["interpreted, TLS", 1]["cpu"] > points["interpreted", 1]["cpu"] / 2


@pytest.mark.slow
def test_a_server_without_tls_is_measured_behind_stunnel(run):
    if why := missing("beanstalkd") or missing_stunnel():
        pytest.skip(why)
    with run.servers("beanstalkd") as (server,), behind_stunnel(server) as door:
        sample = run.load("cycle", door, connections=2, depth=20, rounds=2, tube=run.tube())
    assert sample["commands"] == 2 * 20 * 2 * 3


@pytest.mark.slow
def test_a_node_whose_journal_is_in_redis_is_measured_with_its_engine(run):
    if why := missing("redis"):
        pytest.skip(why)
    run.peers = ["interpreted", "redis"]
    run.scenario = "cluster"
    SCENARIOS["cluster"](run)
    assert not run.results.missing
    points = {(point.server, point.work, point.size): point.samples[0] for point in run.results.points}
    names = ("interpreted", "interpreted, cluster", "redis")
    assert set(points) == {
        (name, work, size) for name in names for work, size in (("", 1), ("", 100), ("put, one connection", 1))
    } | {("interpreted, cluster", f"leader killed, {jobs} jobs", 1) for jobs in ("1,000", "1,000,000")}
    assert points["interpreted, cluster", "leader killed, 1,000 jobs", 1]["to_first_answer"] > 0
    assert points["interpreted, cluster", "", 1]["engine_cpu"] > 0
    assert "engine_cpu" not in points["interpreted", "", 1]


@pytest.mark.slow
def test_a_node_is_measured_with_its_shards_and_beside_one_that_serves_its_clients(run):
    if why := missing("redis"):
        pytest.skip(why)
    run.peers = ["interpreted"]
    run.scenario = "shards"
    SCENARIOS["shards"](run)
    assert not run.results.missing
    points = {(point.server, point.work, point.size): point.samples[0] for point in run.results.points}
    whole, parted = "interpreted, cluster", "interpreted, cluster, 8 shards"
    rest = {(whole + how, f"nothing to do, {count} shards", 0) for how in ("", ", routed") for count in (1, 8, 64)}
    assert set(points) == rest | {
        (whole, "looks at 64 leases", 0),
        *((name + how, "", size) for name in (whole, parted) for how in ("", ", routed") for size in (1, 100)),
        *((name, "watching 8 tubes", size) for name in (whole, parted) for size in (1, 100)),
        *((name, "put, one connection", 1) for name in (whole, parted)),
    }
    assert all(sample["engine_cpu"] > 0 for (_, _, size), sample in points.items() if size)
    assert all("engine_ms" in points[each] for each in rest), "in so short a time, it may be less than can be measured"


@pytest.mark.slow
def test_each_policy_and_each_attribute_is_measured_alone(run):
    run.peers = ["interpreted"]
    run.scenario = "policies"
    SCENARIOS["policies"](run)
    assert not run.results.missing
    points = {(point.server, point.work) for point in run.results.points}
    settings = {f"interpreted, {name}" for name in SETTINGS}
    asked = {f"interpreted, put-with {name}" for name in ATTRIBUTES}
    assert points == {
        *((name, "") for name in {"interpreted", "interpreted, policies of other tubes"} | settings | asked),
        *((name, "jobs that fail once") for name in ("interpreted", "interpreted, max-tries")),
        ("interpreted", "10,000 jobs expire"),
        ("interpreted", "10,000 jobs run out of time, into backoff"),
    }


@pytest.mark.slow
def test_metrics_are_measured_unread_and_scraped_and_what_others_wait_for_meanwhile(run):
    run.peers = ["interpreted"]
    run.scenario = "metrics"
    SCENARIOS["metrics"](run)
    assert not run.results.missing
    points = {(point.server, point.work): point.samples[0] for point in run.results.points}
    assert set(points) == {
        ("interpreted", ""),
        ("interpreted, metrics", ""),
        ("interpreted, scraped each second", ""),
        ("interpreted, metrics", "1,000 tubes, no scrapes"),
        ("interpreted, metrics", "1,000 tubes, scraped again and again"),
    }
    assert points["interpreted, metrics", "1,000 tubes, scraped again and again"]["scrapes"] > 0


def test_every_policy_that_a_tube_may_have_is_measured():
    measured = {key for lines in SETTINGS.values() for key in tomllib.loads(lines)}
    of_no_effect_alone = {"match", "dead-tube", "backoff-max", "burst", "max-held-keys"}
    assert measured | of_no_effect_alone == {key.name.replace("_", "-") for key in TUBE_KEYS}


@pytest.mark.slow
def test_an_io_process_and_its_engine_process_are_measured_apart(run):
    run.peers = ["interpreted"]
    run.scenario = "io-processes"
    SCENARIOS["io-processes"](run)
    assert not run.results.missing
    points = {(point.server, point.size): point.samples[0] for point in run.results.points}
    direct, carried = (
        {name: points[server, 50] for name, server in (("plain", name), ("tls", f"{name}, TLS"))}
        for name in ("interpreted", "interpreted, I/O process")
    )
    assert len(points) == 8
    for name in ("plain", "tls"):
        assert "engine_cpu" not in direct[name]
        assert carried[name]["engine_cpu"] > 0 and carried[name]["cpu"] > 0


@pytest.mark.slow
def test_clients_that_come_back_and_clients_without_a_token_are_measured(run):
    run.peers = ["interpreted"]
    run.scenario = "arrivals"
    SCENARIOS["arrivals"](run)
    returning, refused = run.results.points
    assert not run.results.missing
    assert returning.samples[0]["answers"] > 0 and returning.samples[0]["held_cpu"] > 0
    assert refused.samples[0]["commands"] == 9_000


# Peers that somebody names


@pytest.fixture
def program(tmp_path):
    """A server of no other name: it speaks the protocol, and writes down what it was started with."""
    path = tmp_path / "other-queue"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -v ] && exec echo other-queue 3.1 of today\n'
        f'echo "$@" >> {tmp_path}/started\n'
        f'for option; do shift; [ "$option" = -D ] || set -- "$@" "$option"; done\n'
        f'PYTHONPATH={ROOT} exec {sys.executable} -P -m beanstalk_server "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def named(monkeypatch):
    def named(asked):
        name, peer = parse_peer(asked)
        monkeypatch.setitem(PEERS, name, peer)
        return name

    return named


def started(tmp_path):
    return [line.split()[4:] for line in (tmp_path / "started").read_text().splitlines()]


@pytest.mark.slow
def test_any_server_that_speaks_the_protocol_is_measured_with_its_options(run, program, named, tmp_path):
    other = named(f"other={program},-D,-z,1000")
    assert described(other) == "other: other-queue 3.1 of -D -z 1000"
    replacing = Variant("other -F", other, ("-F",), keeps=True)
    with run.servers(other, Variant("other kept", other, keeps=True), replacing) as servers:
        assert [server.name for server in servers] == ["other", "other kept", "other -F"]
        for server in servers:
            assert run.load("cycle", server, connections=2, depth=3, rounds=2, tube=run.tube())["commands"] == 36
    plain, kept, replaced = started(tmp_path)
    assert plain == ["-z", "1000"]  # without a binlog there is nothing to sync
    assert (kept[0], kept[2:]) == ("-b", ["-D", "-z", "1000"])
    assert replaced == ["-b", replaced[1], "-z", "1000", "-F"]  # a scenario's policy takes the place of the peer's own


@pytest.mark.slow
def test_a_peer_whose_options_say_its_policy_appears_only_beside_that_policy(run, program, named, monkeypatch):
    asked = []
    monkeypatch.setattr(run, "in_turn", lambda servers, *more, **sizes: None)
    monkeypatch.setattr(run, "servers", lambda *variants: asked.extend(variants) or contextlib.nullcontext([]))
    run.peers = ["beanstalkd", "redis", named(f"synced={program},-D"), named(f"now={program},-f0")]
    run.peers += [named(f"lazy={program},-f200"), named(f"never={program},-F"), named(f"any={program}")]
    binlog(run)
    of_policy = ["beanstalkd -f0", "synced -D", "now -f0", "any -f0", "beanstalkd -f50", "lazy -f200", "any -f50"]
    of_policy += ["beanstalkd -F", "never -F", "any -F"]
    assert [variant.name for variant in asked] == of_policy
    assert all(variant.keeps for variant in asked)


@pytest.mark.slow
def test_a_named_peer_is_measured_wherever_beanstalkd_is(run, program, named, monkeypatch):
    asked = Counter()

    def servers(*variants):
        asked.update(variant if isinstance(variant, str) else variant.peer for variant in variants)
        return contextlib.nullcontext([])

    def start(peer, *how, **more):
        asked[peer] += 1
        raise ServerError("not today")

    for made in ("opened", "clustered", "routed", "two_nodes", "measured"):
        monkeypatch.setattr(f"bench.scenarios.{made}", start)
    monkeypatch.setattr(run, "peers", ["beanstalkd", "ours", named(f"other={program}")])
    monkeypatch.setattr(run, "servers", servers)
    monkeypatch.setattr("bench.scenarios.Server", start)
    monkeypatch.setattr("bench.scenarios.workers.QUEUES", {})  # which have peers of their own
    for name, scenario in SCENARIOS.items():
        asked.clear()
        run.scenario = name
        scenario(run)
        assert asked["other"] == asked["beanstalkd"], name
    assert run.results.missing["start: 100, other"] == "not today"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("fork", "'fork' must be NAME=PROGRAM[,OPTION…]"),
        ("fork=", "'fork=' must be NAME=PROGRAM[,OPTION…]"),
        ("a fork=/bin/sh", "the name 'a fork' must be of letters, digits, dots, dashes and underscores"),
        ("a|b=/bin/sh", "the name 'a|b' must be of letters, digits, dots, dashes and underscores"),
        ("=/bin/sh", "the name '' must be of letters, digits, dots, dashes and underscores"),
        ("redis=/bin/sh", "the name 'redis' is taken"),
        ("fork=/no/such/program", "/no/such/program is not a program that can be run"),
        ("fork=/bin,-D", "/bin is not a program that can be run"),
        ("fork=/bin/sh,-f,50", "-f and its milliseconds must be one word, such as -f50"),
    ],
)
def test_a_peer_that_cannot_be_is_refused_with_what_would_be_right(asked, why):
    with pytest.raises(ValueError, match="^" + re.escape(why)):
        parse_peer(asked)


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="the name 'fork' is taken"):
        parse_peer("fork=/bin/sh", taken={"fork": None})


@pytest.mark.slow
def test_a_peer_that_reports_no_version_is_measured_all_the_same(named):
    assert described(named("silent=/bin/false,-D")) == "silent: unknown version -D"
    assert described(named("garbled=/bin/cat")) == "garbled: unknown version"


@pytest.mark.slow
def test_a_server_that_fails_in_a_part_has_no_figure_there_and_the_others_have_theirs(run, monkeypatch):
    class Named:
        def __init__(self, name):
            self.name = name

    def measure(server):
        if server.name == "other" and run.results.find("small", "other", "", 100):
            raise LoadError("a job was lost")
        return {"rate": 1.0}

    monkeypatch.setattr(run, "pairs", 3)
    for size in (10, 100):
        run.in_turn([Named("ours"), Named("other")], measure, size=size)
    assert {(point.server, point.size): len(point.samples) for point in run.results.points} == {
        ("ours", 10): 3, ("other", 10): 3, ("ours", 100): 3,
    }  # fmt: skip
    assert run.results.missing == {"small: 100, other": "a job was lost"}


LIAR = """
import socketserver, sys
class Client(socketserver.StreamRequestHandler):
    def handle(self):
        lines = 0
        while line := self.rfile.readline():
            lines += line.startswith(b"put")
            if not line.startswith(b"x"):
                word = b"NOT_FOUND" if lines > 4 else b"INSERTED 1" if lines else b"UNKNOWN_COMMAND"
                self.wfile.write(word + b"\\r\\n")
socketserver.ThreadingTCPServer(("127.0.0.1", int(sys.argv[4])), Client).serve_forever()
"""


@pytest.mark.slow
def test_a_server_that_answers_wrongly_among_many_in_flight_is_caught(run, named, tmp_path):
    path = tmp_path / "liar"
    path.write_text(f"#!{sys.executable}\n{LIAR}")
    path.chmod(0o755)
    wrong = pytest.raises(LoadError, match=r"cycle on liar: UnexpectedReplyError: put: b'NOT_FOUND'")
    with run.servers(named(f"liar={path}")) as (server,), wrong:
        run.load("cycle", server, connections=1, depth=10, rounds=1, body=1, tube=run.tube())


# The backlog


@pytest.fixture
def phases(run, tmp_path, monkeypatch):
    """Starts a server, and does phases of its backlog in this process."""
    with contextlib.ExitStack() as stack:
        (server,) = stack.enter_context(run.servers(Variant("interpreted", "interpreted", keeps=True)))
        shape = {"jobs": 205, "body": 300, "spread": 1, "ledger": str(tmp_path / "ledger"), "verb": "cancel"}
        shape |= {"directory": str(server.directory), "memory": 1 << 40}
        subject = Subject(server.port, server.pid, server.protocol)
        yield lambda phase, **other: backlog.backlog(subject, phase=phase, **(shape | other))


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["interpreted", "beanstalkd"])
def test_a_backlog_is_put_a_tenth_is_cancelled_and_all_others_come(run, peer):
    if why := missing(peer):
        pytest.skip(why)
    run.peers, run.backlog, run.scale, run.scenario = [peer], (1_234, 2_000), 1.0, "backlog"
    SCENARIOS["backlog"](run)
    assert run.results.missing == {}
    points = run.results.select("backlog", server=peer, size=1_234)
    assert [(point.work, point.samples[-1]["jobs"]) for point in points] == [
        *(("put", 1_234), ("cancel a tenth", 124), ("reserve + delete", 1_110))
    ]
    put = points[0].samples
    assert (put[0]["seconds"] < put[-1]["seconds"], put[0]["jobs"]) == (True, 0)
    assert put[-1]["directory"] > 1_234 * 2_000
    assert put[-1]["peak"] >= put[-1]["resident"] > 1_000_000
    assert put[-1]["cpu"] > 0


@pytest.mark.slow
def test_a_worker_that_gets_another_body_than_was_put_says_so(phases, tmp_path):
    phases("put")
    ledger = backlog.Ledger(str(tmp_path / "ledger"), 205)
    job = next(job for job in range(1, 206) if ledger.numbers[job] == 3)  # the job of number 2 is ready
    ledger.numbers[job] = 5
    ledger.close()
    with pytest.raises(UnexpectedReplyError, match=f"^reserve: the body of job {job} is not what was put$"):
        phases("take")


@pytest.mark.slow
def test_a_job_that_comes_again_is_caught(phases, tmp_path):
    phases("put")
    ledger = backlog.Ledger(str(tmp_path / "ledger"), 205)
    ledger.numbers[3] = 0
    ledger.close()
    with pytest.raises(UnexpectedReplyError, match="job 3 was not put, was cancelled, or comes again"):
        phases("take")


@pytest.mark.slow
def test_a_job_that_never_comes_is_waited_for_only_so_long(phases, monkeypatch):
    monkeypatch.setattr(backlog, "PATIENCE", 1)
    phases("put")
    stopped = phases("take", verb="delete", jobs=215)  # ten more than there are
    assert stopped["why_stopped"] == "no more jobs for 2 s"
    assert stopped["samples"][-1]["jobs"] == 205 - 21


@pytest.mark.slow
def test_an_id_that_is_not_new_is_caught(phases):
    phases("put")
    with pytest.raises(UnexpectedReplyError, match=r"^put: an id that is not new, or too large: 2\d\d$"):
        phases("put")


@pytest.mark.slow
def test_a_cancel_that_is_refused_says_what_came(phases):
    phases("put")
    with pytest.raises(UnexpectedReplyError, match=r"^cancel many \d+, …: b'BAD_FORMAT"):
        phases("cancel", verb="cancel many")


@pytest.mark.slow
def test_a_load_ends_before_the_server_has_taken_all_memory_or_the_disk(phases, run, monkeypatch):
    assert phases("put", memory=1_000_000)["why_stopped"] == "the server holds more than 0.0 GB"
    monkeypatch.setattr(backlog, "FREE", 1 << 60)
    assert phases("take")["why_stopped"] == "the disk is nearly full"


@pytest.mark.slow
def test_the_scenario_notes_why_a_phase_was_stopped_and_keeps_what_was_measured(run, monkeypatch):
    monkeypatch.setattr("bench.scenarios.MEMORY", 1_000_000)
    run.peers, run.backlog, run.scale, run.scenario = ["interpreted"], (100, 100), 1.0, "backlog"
    SCENARIOS["backlog"](run)
    assert run.results.missing == {"backlog: interpreted": "put: the server holds more than 0.0 GB"}
    assert [point.work for point in run.results.points] == ["put"]


def test_bodies_follow_from_their_numbers_and_no_two_are_the_same():
    for size in (backlog.SMALLEST_BODY, 100, backlog.LARGEST_BODY):
        bodies = [backlog.body_of(number, size) for number in (0, 1, 2, 12, 1 << 16, 9_999_999)]
        assert {len(body) for body in bodies} == {size}
        assert len(set(bodies)) == len(bodies)
        assert bodies[-1] == backlog.body_of(9_999_999, size)
    assert len(zlib.compress(backlog.body_of(7, 10_000))) < 5_000


def test_samples_become_rarer_and_not_more(tmp_path, monkeypatch):
    monkeypatch.setattr(backlog, "LOOKS", 8)
    watch = backlog.Watch(Subject(0, os.getpid(), "beanstalk"), str(tmp_path), 1 << 40, 60)
    for jobs in range(1, 100):
        watch.look(jobs)
    numbers = [sample["jobs"] for sample in watch.samples]
    assert len(numbers) < 8
    assert numbers[0] == 0
    assert numbers[-1] == 99
    assert watch.every > 4 * backlog.SECOND


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--jobs", "0"], "--jobs: must be at least 1, not 0"),
        (["--body", "15"], "--body: must be from 16 to 65535 bytes, not 15"),
        (["--body", "65536"], "--body: must be from 16 to 65535 bytes, not 65536"),
        (["--peer", "fork=/no/such"], "--peer: /no/such is not a program that can be run"),
        (["--results", "here/now"], "--results: must end in a suffix, such as here/now.json: plots are put beside it"),
        (["--peers", "beanstalkd,fork"], "--peers: no such peer: fork"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options, why, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib comes with `make bench`")
    pytest.importorskip("rich", reason="rich comes with `make bench`")
    from bench.__main__ import main

    monkeypatch.setattr(sys, "argv", ["bench", *options])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err.endswith(f"error: {why}\n")


# Attacks

SMALL_ATTACKS = {
    "nobody": ("peek", {}),
    "flood": ("put", {"body": 10, "limit": 100_000, "reads": True}),
    "bodies": ("put", {"clients": 2, "body": 60_000}),
    "quitting": ("peek", {"clients": 2}),
    "command": ("put", {"line": "kick 100", "reply": "KICKED 100"}),
    "watchers": ("peek", {"clients": 3, "tubes": 20}),
    "watching": ("peek", {"tubes": 200}),
    "leaving": ("peek", {"clients": 2, "tubes": 20}),
    "list_tubes": ("peek", {"clients": 2}),
}


def connections_of(server):
    with server.connect() as sock:
        stats = ask(sock, b"stats\r\n", 40)
    return int(stats.split(b"\ncurrent-connections: ")[1].split()[0])


def processes_that_attack(server):
    found = []
    for command in process.PROC.glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            words = command.read_bytes().split(b"\0")
            if b"bench.attacks" in words and any(b'"pid": %d' % server.pid in word for word in words):
                found.append(command.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["interpreted", "beanstalkd"])
def test_during_an_attack_others_are_answered_and_it_leaves_no_connection_and_no_process(run, peer):
    if why := missing(peer):
        pytest.skip(why)
    assert SMALL_ATTACKS.keys() == ATTACKS.keys() - {"returning"}  # which needs TLS: the scenario of arrivals has it
    with run.servers(peer) as (server,):
        run.load("stream", server, kind="put", count=100, delays=(1000, 2000))
        for attack, (probe, arguments) in SMALL_ATTACKS.items():
            seconds = 1.2 if attack == "watchers" else 0.2
            sample = run.load("hostile", server, attack=attack, probe=probe, seconds=seconds, arguments=arguments)
            assert 0 < sample["p50"] <= sample["p99"] <= sample["most"], attack
            assert sample["answers"] > 0, attack
            assert (sample["attacks"] > 0) is (attack != "nobody"), attack
            assert sample["peak"] > 1_000_000, attack
            assert processes_that_attack(server) == [], attack
            eventually(lambda: connections_of(server) == 1, "only who asks is connected")
    assert server.process.status is not None


@pytest.mark.slow
def test_a_flood_of_puts_whose_replies_are_not_read_ends(run):
    with run.servers("interpreted") as (server,):
        arguments = {"body": 10, "limit": 1 << 30, "reads": False}
        sample = run.load("hostile", server, attack="flood", probe="put", seconds=0.2, arguments=arguments)
        assert sample["attacks"] * 10 < 1 << 30
        assert processes_that_attack(server) == []
        eventually(lambda: connections_of(server) == 1, "only who asks is connected")


@pytest.mark.slow
def test_an_attack_that_fails_says_why(run):
    with run.servers("interpreted") as (server,):
        arguments = {"line": "kick many", "reply": "KICKED"}
        with pytest.raises(LoadError, match=r"hostile on interpreted: AttackError: .*kick many: b'BAD_FORMAT"):
            run.load("hostile", server, attack="command", probe="peek", seconds=1, arguments=arguments)
        with pytest.raises(LoadError, match=r"AttackError: KeyError: 'nonsense'"):
            run.load("hostile", server, attack="nonsense", probe="peek", seconds=1, arguments={})
        assert processes_that_attack(server) == []


@pytest.mark.slow
def test_an_attack_ends_with_the_generator(run):
    with run.servers("interpreted") as (server,):

        def attack():
            with contextlib.suppress(LoadError):
                run.load("hostile", server, attack="nobody", probe="peek", seconds=60, arguments={})

        loading = threading.Thread(target=attack)
        loading.start()
        eventually(lambda: processes_that_attack(server), "the attack is under way")
        run.generator._process.kill()
        loading.join(20)
        assert not loading.is_alive()
        eventually(lambda: not processes_that_attack(server), "the attack has ended")
        eventually(lambda: connections_of(server) == 1, "only who asks is connected")


@pytest.mark.slow
def test_an_attack_that_fails_costs_its_own_row_only(run, monkeypatch):
    def load(load, server, *, attack="", **arguments):
        if attack == "quitting":
            raise LoadError("it would not")
        return {"most": 1.0}

    made = []
    monkeypatch.setattr(run, "load", load)
    monkeypatch.setattr(run, "peers", ["interpreted"])
    monkeypatch.setattr("bench.run.Server", lambda *asked, **more: made.append(Server(*asked, **more)) or made[-1])
    run.scenario = "hostile"
    hostile(run)
    assert len(run.results.select("hostile")) > 10
    assert all(len(point.samples) == run.pairs for point in run.results.points)
    assert run.results.missing == {
        "hostile: -b, 4 clients put, quit, and go on sending, interpreted -f0": "it would not"
    }
    assert made
    assert all(server.process.status is not None for server in made)


@pytest.mark.slow
def test_a_server_may_begin_with_a_copy_of_jobs(run, tmp_path):
    (tmp_path / "jobs").mkdir()
    server = Server("interpreted", directory=tmp_path / "jobs")
    try:
        run.load("stream", server, kind="put", count=3, delays=(1000, 2000))
    finally:
        server.stop()
    before = {file: file.read_bytes() for file in (tmp_path / "jobs").iterdir()}
    with run.servers(Variant("kept", "interpreted", ("-f0",), keeps=True, jobs=tmp_path / "jobs")) as (copy,):
        arguments = {"line": "kick 10", "reply": "KICKED 3"}
        sample = run.load("hostile", copy, attack="command", probe="put", seconds=5, arguments=arguments)
        assert sample["attacks"] == 1
    assert {file: file.read_bytes() for file in (tmp_path / "jobs").iterdir()} == before


# A whole run


@pytest.mark.slow
def test_a_quick_run_ends_with_tables_results_and_plots(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib comes with `make bench`")
    pytest.importorskip("rich", reason="rich comes with `make bench`")
    path = tmp_path / "run.json"
    options = ["--quick", "--pairs", "1", "--peers", "interpreted", "--scenario", "request-response"]
    command = [sys.executable, "-m", "bench", *options, "--results", str(path), "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "request-response" in done.stdout
    assert "the figures to reach" in done.stdout
    results = Results.read(path)
    assert [point.size for point in results.select("request-response", server="interpreted")] == [1, 50, 500]
    assert results.about["quick"] is True
    assert (tmp_path / "run" / "request-response.svg").exists()
    assert not list(tmp_path.glob("bench-*"))
