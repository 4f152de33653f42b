"""The bench reads processes and replies correctly, and puts a small load on each kind of server."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest

from beanstalk_server.queue.memory import BODY_COST, HELD_COST, JOB_COST, KEY_COST, PACKED_COST, TERMS_COST, TIMER_COST
from bench import loads, process
from bench.__main__ import main
from bench.attacks import ATTACKS
from bench.generator import LoadError
from bench.protocols import PROTOCOLS
from bench.results import Results
from bench.run import Run
from bench.scenarios import SCENARIOS, stalls_of
from bench.servers import PEERS, beside, described, missing, parse_peer, started
from bench.subject import statistic
from bench.targets import TARGETS
from harness.servers import ROOT
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
    assert (spent.total, spent.user) == pytest.approx((0.4, 0.3))


def test_cpu_time_is_known_even_if_the_kernel_counts_only_ticks(proc):
    for file in proc.glob("42/task/*/schedstat"):
        file.unlink()
    assert process.cpu(42, proc).total == 40 / os.sysconf("SC_CLK_TCK")


def test_shares_are_those_of_the_period_that_was_measured(proc):
    before = process.Cpu(0.1, 30, 0)
    spent = process.cpu(42, proc).since(before)
    assert (spent.user, spent.total) == pytest.approx((0.0, 0.3))


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


# Bytes


def test_ids_are_found_in_replies():
    assert PROTOCOLS["beanstalk"].ids(b"RESERVED 7 2\r\nxx\r\nRESERVED 81 2\r\nxx\r\n") == [b"7", b"81"]
    assert PROTOCOLS["redis"].ids(b"*2\r\n$1\r\n7\r\n$2\r\nxx\r\n*2\r\n$2\r\n81\r\n$2\r\nxx\r\n") == [b"7", b"81"]


def test_stalls_are_found_in_a_log():
    log = (
        "WARNING the event loop stalled for 3.0 ms (2.5 ms of CPU)\n"
        "WARNING slow-turn: 7 more within 10 s, at most 9.0 ms\n"
        "WARNING loop-held: 2 more within 10 s, at most 4.5 ms (1.5 ms of CPU)\n"
    )
    assert stalls_of(log) == {"longest": 4.5, "held_cpu": 2.5}
    assert stalls_of("nothing") == {"longest": 0, "held_cpu": 0}


def test_what_a_machine_takes_from_a_process_that_does_nothing_is_measured_too():
    found = loads.spin(None, seconds=0.05)
    assert 0 <= found["held_cpu"] <= found["longest"] and found["longest"] > 0


# Servers and loads


@pytest.fixture
def run(tmp_path):
    run = Run(["interpreted"], 1, 0.01, tmp_path, lambda what: None, results=Results(), scenario="small")
    yield run
    run.generator.close()


@pytest.mark.parametrize("peer", ["interpreted", "beanstalkd", "redis"])
def test_each_server_does_a_small_load(run, peer):
    if why := missing(peer):
        pytest.skip(why)
    with run.together(peer) as (server,):
        for depth in (1, 20):
            sample = run.load(loads.cycle, server, connections=3, depth=depth, seconds=0.05, tube=run.tube())
            assert sample["commands"] >= 3 * depth
            assert 0 < sample["p50"] <= sample["p99"] <= sample["most"]
        sample = run.load(loads.puts, server, count=250, delays=(10, 20))
        assert sample["commands"] == 250
        run.load(loads.deletes, server, ids=[249, 250])
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


def script(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return path


def test_replies_that_make_no_sense_are_quoted(run, named, tmp_path):
    wrong = pytest.raises(LoadError, match=r"lateness on skipper: UnexpectedReplyError: reserve: \[b'RESERVED 1 8'")
    with run.together(named(f"skipper={script(tmp_path, 'skipper', SKIPPER)}")) as (server,), wrong:
        run.load(loads.lateness, server, count=10, span=1, put_seconds=0.1)


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
    wrong = pytest.raises(LoadError, match=r"cycle on liar: UnexpectedReplyError: put: b'NOT_FOUND'")
    with run.together(named(f"liar={script(tmp_path, 'liar', LIAR)}")) as (server,), wrong:
        run.load(loads.cycle, server, connections=1, depth=10, seconds=1, body=1, tube=run.tube())


def test_a_load_that_fails_says_why_and_the_generator_lives_on(run):
    with run.together("interpreted") as (server,):
        with pytest.raises(LoadError, match=r"puts on interpreted: .*nonsense"):
            run.load(loads.puts, server, nonsense=1)
        run.load(loads.idle, server, seconds=0.01)


def test_a_server_that_does_not_start_is_named_as_missing(run):
    with run.together(run.fresh("interpreted", "--no-such-option", name="ours, oddly")) as running:
        assert running == []
    assert "--no-such-option: no such option" in run.results.missing["small: ours, oddly"]


def test_a_peer_that_is_not_installed_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert missing("redis") == "redis-server is not installed (Debian: apt-get install redis-server)"


def test_a_server_that_fails_in_a_part_has_no_figure_there_and_the_others_have_theirs(run, monkeypatch):
    class Named:
        def __init__(self, name):
            self.name = name

        def open(self):
            return contextlib.nullcontext(self)

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


@pytest.mark.slow
def test_a_server_may_begin_with_a_copy_of_jobs(run, tmp_path):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    with started("interpreted", directory=jobs) as server:
        run.load(loads.puts, server, count=3, delays=(1000, 2000))
    before = {file: file.read_bytes() for file in jobs.iterdir()}
    with run.together(run.fresh("interpreted", "-f0", keeps=True, jobs=jobs)) as (copy,):
        arguments = {"line": "kick 10", "reply": "KICKED 3"}
        sample = run.load(loads.hostile, copy, attack="command", probe="put", seconds=5, arguments=arguments)
        assert sample["attacks"] == 1
    assert {file: file.read_bytes() for file in jobs.iterdir()} == before


# Scenarios

FIGURES = {
    "arrivals": 2,
    "cluster": 4,
    "io-processes": 5,
    "launch": 1,
    "listing": 1,
    "metrics": 2,
    "policies": 2,
    "shards": 2,
    "tls": 2,
}
"""How many targets are found in a scenario that measures this server alone."""


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_scenario_measures_what_its_figures_need(run, name):
    if why := missing("redis"):
        pytest.skip(why)
    run.scenario = name
    SCENARIOS[name].measure(run)
    assert not run.results.missing
    for point in run.results.points:
        for sample in point.samples:
            assert sample.get("p50", 1) > 0 and sample.get("to_first_answer", 1) > 0 and sample.get("scrapes", 1) > 0
        point.server = point.server.replace("interpreted", "ours")
    assert sum(target.found(run.results) is not None for target in TARGETS) == FIGURES[name]


PLAIN = JOB_COST + BODY_COST + 100
PACKED = JOB_COST + PACKED_COST + 100


@pytest.mark.slow
def test_jobs_of_each_kind_are_put_and_counted(run):
    run.scenario = "memory"
    SCENARIOS["memory"].measure(run)
    counted = {point.work: point.samples[0]["counted"] for point in run.results.points}
    assert counted.keys() == loads.KINDS.keys()
    assert counted["delayed"] == PACKED
    assert counted["key"] == PLAIN + KEY_COST + 12
    assert counted["ttl"] == PLAIN + TERMS_COST + TIMER_COST
    assert counted["held key"] == HELD_COST + 12


@pytest.mark.slow
def test_the_memory_after_a_backlog_is_measured(run, monkeypatch):
    monkeypatch.setattr(loads, "RETURNED_AFTER", 0)
    run.scenario = "backlog"
    SCENARIOS["backlog"].measure(run)
    assert {point.size for point in run.results.points} == {600, 1000, 4000}
    for point in run.results.points:
        (sample,) = point.samples
        assert sample["peak"] >= sample["left"] > 0


# Peers of the command line


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


def started_with(tmp_path):
    return [line.split()[4:] for line in (tmp_path / "started").read_text().splitlines()]


@pytest.mark.slow
def test_any_server_that_speaks_the_protocol_is_measured_with_its_options(run, program, named, tmp_path):
    other = named(f"other={program},-D,-z,1000")
    assert described(other) == "other: other-queue 3.1 of -D -z 1000"
    kept, replaced = (run.fresh(other, *options, keeps=True) for options in ((), ("-F",)))
    with run.together(other, kept, replaced) as running:
        for server in running:
            assert run.load(loads.cycle, server, connections=2, seconds=0.05, tube=run.tube())["commands"] > 0
    plain, kept, replaced = started_with(tmp_path)
    assert plain == ["-z", "1000"]  # without a binlog there is nothing to sync
    assert (kept[0], kept[2:]) == ("-b", ["-D", "-z", "1000"])
    assert replaced == ["-b", replaced[1], "-z", "1000", "-F"]  # a scenario's policy takes the place of the peer's own


def test_a_peer_whose_options_say_its_policy_appears_only_beside_that_policy(run, program, named, monkeypatch):
    asked = []
    monkeypatch.setattr(run, "together", lambda *fresh: asked.extend(fresh) or contextlib.nullcontext([]))
    run.peers = ["beanstalkd", "redis", named(f"synced={program},-D"), named(f"now={program},-f0")]
    run.peers += [named(f"lazy={program},-f200"), named(f"never={program},-F"), named(f"any={program}")]
    SCENARIOS["binlog"].measure(run)
    of_policy = ["beanstalkd -f0", "synced -D", "now -f0", "any -f0", "beanstalkd -f50", "lazy -f200", "any -f50"]
    assert [fresh.name for fresh in asked] == [*of_policy, "beanstalkd -F", "never -F", "any -F"]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("fork", "'fork' must be NAME=PROGRAM[,OPTION…]"),
        ("fork=", "'fork=' must be NAME=PROGRAM[,OPTION…]"),
        ("a fork=/bin/sh", "the name 'a fork' must consist of letters, digits, dots, dashes and underscores"),
        ("a|b=/bin/sh", "the name 'a|b' must consist of letters, digits, dots, dashes and underscores"),
        ("=/bin/sh", "the name '' must consist of letters, digits, dots, dashes and underscores"),
        ("redis=/bin/sh", "the name 'redis' is taken"),
        ("fork=/no/such/program", "/no/such/program is not an executable file"),
        ("fork=/bin,-D", "/bin is not an executable file"),
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


def test_another_checkout_is_measured_as_it_is_installed_there(tmp_path):
    with pytest.raises(ValueError, match="beanstalk-server does not exist: `make` in that checkout installs it"):
        beside(tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    program = script(tmp_path / ".venv" / "bin", "beanstalk-server", "")
    assert (beside(tmp_path).program, beside(tmp_path).own) == (str(program), True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--peer", "fork=/no/such"], "/no/such is not an executable file"),
        (
            ["--beside", "/no/such"],
            "/no/such/.venv/bin/beanstalk-server does not exist: `make` in that checkout installs it",
        ),
        (["--peers", "beanstalkd,fork"], "--peers: no such peer: fork"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options, why, monkeypatch, capsys):
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
        return statistic(sock, b"stats", b"current-connections")


@pytest.mark.slow
@pytest.mark.parametrize("peer", ["interpreted", "beanstalkd"])
def test_during_an_attack_others_are_answered_and_it_leaves_no_connection_and_no_process(run, peer):
    if why := missing(peer):
        pytest.skip(why)
    assert SMALL_ATTACKS.keys() == ATTACKS.keys() - {"returning"}  # which needs TLS: the scenario of arrivals has it
    with run.together(peer) as (server,):
        run.load(loads.puts, server, count=100, delays=(1000, 2000))
        for attack, (probe, arguments) in SMALL_ATTACKS.items():
            for seconds in (1.5 if attack == "watchers" else 0.2, 2, 20):  # a busy machine begins late
                shape = {"attack": attack, "probe": probe, "seconds": seconds, "arguments": arguments}
                sample = run.load(loads.hostile, server, **shape)
                if sample["attacks"] or attack == "nobody":
                    break
            assert 0 < sample["p50"] <= sample["p99"] <= sample["most"], attack
            assert sample["answers"] > 0, attack
            assert (sample["attacks"] > 0) is (attack != "nobody"), attack
            assert sample["peak"] > 1_000_000, attack
            assert process.children(run.generator.process.pid) == [], attack
            eventually(lambda: connections_of(server) == 1, "only who asks is connected")
    assert server.process.status is not None


@pytest.mark.slow
def test_a_flood_of_puts_whose_replies_are_not_read_ends(run):
    with run.together("interpreted") as (server,):
        arguments = {"body": 10, "limit": 1 << 30, "reads": False}
        sample = run.load(loads.hostile, server, attack="flood", probe="put", seconds=0.2, arguments=arguments)
        assert sample["attacks"] * 10 < 1 << 30
        eventually(lambda: connections_of(server) == 1, "only who asks is connected")


@pytest.mark.slow
def test_an_attack_that_fails_says_why(run):
    with run.together("interpreted") as (server,):
        arguments = {"line": "kick many", "reply": "KICKED"}
        with pytest.raises(LoadError, match=r"hostile on interpreted: AttackError: .*kick many: b'BAD_FORMAT"):
            run.load(loads.hostile, server, attack="command", probe="peek", seconds=1, arguments=arguments)
        with pytest.raises(LoadError, match=r"AttackError: KeyError: 'nonsense'"):
            run.load(loads.hostile, server, attack="nonsense", probe="peek", seconds=1, arguments={})
        assert process.children(run.generator.process.pid) == []


@pytest.mark.slow
def test_an_attack_ends_with_the_generator(run):
    with run.together("interpreted") as (server,):

        def attack():
            with contextlib.suppress(LoadError):
                run.load(loads.hostile, server, attack="nobody", probe="peek", seconds=60, arguments={})

        loading = threading.Thread(target=attack)
        loading.start()
        eventually(lambda: run.generator.process and process.children(run.generator.process.pid), "it is under way")
        (attacking,) = process.children(run.generator.process.pid)
        run.generator.process.kill()
        loading.join(20)
        assert not loading.is_alive()
        eventually(lambda: not (process.PROC / str(attacking)).exists(), "the attack has ended")
        eventually(lambda: connections_of(server) == 1, "only who asks is connected")


# A whole run


@pytest.mark.slow
def test_a_quick_run_ends_with_tables_and_results(tmp_path):
    path = tmp_path / "run.json"
    options = ["--quick", "--pairs", "1", "--peers", "interpreted", "--scenario", "request-response"]
    command = [sys.executable, "-m", "bench", *options, "--results", str(path), "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "request-response: put + reserve + delete" in done.stdout
    assert "Targets:" in done.stdout
    results = Results.read(path)
    assert [point.size for point in results.select("request-response", server="interpreted")] == [1, 50, 500]
    assert results.about["quick"] is True
    assert not list(tmp_path.glob("bench-*"))
