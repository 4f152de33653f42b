"""The scenarios: what is measured, for which servers, at which sizes, and how it is shown."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.client
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from bench import instructions as counted
from bench import loads, process
from bench.clients import LOADS, python_client
from bench.console import show
from bench.doors import (
    CARRIED,
    CLUSTERED,
    IN_POSTGRESQL,
    MEASURED,
    OF_OTHERS,
    ROUTED,
    SCRAPED,
    carried,
    clustered,
    of_shards,
    opened,
    routed,
    two_nodes,
)
from bench.generator import Generator, LoadError
from bench.protocols import MOVED
from bench.results import Sample
from bench.run import Fresh, Run
from bench.servers import PEERS, SERVER_CPU, SYNCED, described, directories, started
from bench.subject import Subject
from bench.tables import CYCLE, LATENCIES, Layout
from bench.workers import KEPT, QUEUES, enqueue_and_run, package_versions
from harness import servers

HOUR = 3600
DAYLONG = (HOUR, 24 * HOUR)
CONNECTIONS = 50
DEPTHS = (1, 10, 100)


class Scenario(NamedTuple):
    """What `--scenario` takes."""

    measure: Callable[[Run], None]
    layout: Layout
    on_request: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(layout: Layout, *, on_request: bool = False) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Make a function a scenario of its name. Its docstring is the heading of its table.

    Args:
        on_request: whether it takes very long and is run only when it is asked for.
    """

    def register(measure: Callable[[Run], None]) -> Callable[[Run], None]:
        SCENARIOS[measure.__name__.replace("_", "-")] = Scenario(measure, layout, on_request)
        return measure

    return register


def _cycle(run: Run, server: Subject, seconds: float = 1.5, **arguments: Any) -> Sample:
    """put + reserve + delete for a while, in tubes of this load alone."""
    shape: dict[str, Any] = {"connections": CONNECTIONS, "tube": run.tube(), "seconds": run.seconds(seconds)}
    return run.load(loads.cycle, server, **shape | arguments)


def _cycles(run: Run, running: Sequence[Subject | Fresh], argument: str, values: Sequence[int]) -> None:
    """Measure servers in turn with each value of an argument, which is also the size."""
    for value in values:
        arguments: dict[str, Any] = {argument: value}
        run.in_turn(running, functools.partial(_cycle, run, **arguments), size=value)


@scenario(Layout(CYCLE, "connections", "cpu rate"))
def request_response(run: Run) -> None:
    """put + reserve + delete, one command in flight on each of this many connections"""
    with run.together(*run.peers) as running:
        _cycles(run, running, "connections", (1, 50, 500))


@scenario(Layout(CYCLE, "in flight", "cpu rate"))
def in_flight(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each"""
    with run.together(*run.peers) as running:
        _cycles(run, running, "depth", DEPTHS)


@scenario(Layout("instructions"), on_request=True)
def instructions(run: Run) -> None:
    """instructions that this server executes for a command, of each of its packages and of the libraries"""
    for work in counted.ALL_WORKS:
        run.tell(work)
        with run.part("ours", work):
            counts = counted.count(work, run.directory)
            for name, number in [("all", counts.total), *counts.packages.items()]:
                run.results.add(run.scenario, name, work, 0, [{"instructions": number}])


@scenario(Layout(CYCLE, "in flight", "cpu rate"))
def compiled(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight: the effect of compiling the hot modules"""
    with run.together("interpreted", "ours") as running:
        _cycles(run, running, "depth", (1, 100))


@scenario(Layout(CYCLE, "bytes", "cpu rate"))
def bodies(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, bodies of this many bytes"""
    with run.together(*[peer for peer in run.peers if peer != "redis-always"]) as running:
        _cycles(run, running, "body", (10, 1024, 65535))


@scenario(Layout(f"rate cpu {LATENCIES}", "other tubes"))
def other_tubes(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, with other tubes that have one job each"""
    for peer in run.beanstalk:
        # beanstalkd looks for a tube by its name among all: making 100,000 takes it minutes.
        sizes = [1, *run.sizes(1_000, 10_000, *([100_000] if peer in run.own else []))]
        with run.together(*[peer for _ in sizes]) as running:
            for server, size in zip(running, sizes, strict=False):
                run.tell(f"{size:,} tubes in {peer}")
                with run.part(peer, size=size):
                    run.load(loads.tubes, server, count=size)
                run.in_turn([server], functools.partial(_cycle, run), size=size)


@scenario(Layout("rate cpu p99 bytes_per_job", "jobs", "cpu rate"))
def delayed(run: Run) -> None:
    """jobs with delays of one to 24 hours, put into one tube: putting them, their memory, and commands among them"""
    run.in_turn([run.fresh(peer) for peer in run.peers if peer != "redis-always"], functools.partial(_delayed, run))


def _delayed(run: Run, server: Subject) -> None:
    empty, there = server.resident(), 0
    for size in run.sizes(10_000, 100_000, 1_000_000):
        sample = run.load(loads.puts, server, count=size - there, delays=DAYLONG)
        there = size
        run.add(server, sample | {"bytes_per_job": (server.resident() - empty) / size}, "put", size)
        if server.protocol == "beanstalk":
            for work, command, count, lines in (
                ("peek-delayed", "peek-delayed", 300, 2),
                ("stats-tube", "stats-tube delays", 300, 17),
                ("kick", "kick 1", 100, 1),
            ):
                sample = run.load(loads.one_by_one, server, command=command, count=count, lines=lines)
                run.add(server, sample, work, size)
    part = run.sized(100_000)
    ids = random.Random(4).sample(range(1, there + 1), min(part * 2, there))
    run.add(server, run.load(loads.deletes, server, ids=ids[:part]), "delete", there)
    if server.peer in run.own:
        run.add(server, run.load(loads.deletes, server, ids=ids[part:], verb="cancel"), "cancel", there)


@scenario(Layout("cpu p50 p99", "jobs"))
def listing(run: Run) -> None:
    """list-jobs of 1,000 jobs from a random place on, in a tube of this many jobs of random priorities"""
    for count in run.sizes(10_000, 100_000, 1_000_000):
        measure = functools.partial(run.load, loads.pages, count=count, asked=100)
        run.in_turn([run.fresh(peer) for peer in run.own], measure, size=count, pairs=3)


@scenario(Layout(f"early {LATENCIES} most other_p99", "timers"))
def timers(run: Run) -> None:
    """this many jobs due within 10 s, and a worker that waits for them: lateness of its jobs"""
    fresh = [run.fresh(peer) for peer in run.beanstalk]
    for count in run.sizes(1_000, 10_000, 100_000, 1_000_000):
        span, put_seconds = 10 if run.scale == 1 else 3, max(1.0, count / 100_000)
        measure = functools.partial(run.load, loads.lateness, count=count, span=span, put_seconds=put_seconds)
        run.in_turn(fresh, measure, size=count, pairs=3 if count >= 100_000 else 1)


@scenario(Layout("cpu_ms woken seconds"))
def idle(run: Run) -> None:
    """nothing to do, with a million jobs that are due in an hour: the cost of five seconds"""

    def measure(server: Subject) -> Sample:
        run.load(loads.puts, server, count=run.sized(1_000_000), delays=(HOUR, HOUR))
        time.sleep(1)  # real time: what the puts have left to do is done by then
        return run.load(loads.idle, server, seconds=run.seconds(5))

    run.in_turn([run.fresh(peer) for peer in run.peers], measure, pairs=1)


# With a binlog

POLICIES = ("-f0", "-f50", "-F")
"""Every sync policy that the servers share: -f0 is the default here, -f50 is beanstalkd's."""


def _kept(run: Run, peers: Sequence[str], policy: str, jobs: Path | None = None) -> list[Fresh]:
    """These peers with a binlog under a sync policy; one whose own options say a policy only where that belongs."""
    fresh = []
    for peer in peers:
        own = PEERS[peer].policy
        if not own:
            fresh.append(run.fresh(peer, policy, name=f"{peer} {policy}", keeps=True, jobs=jobs))
        elif policy == ("-f0" if own in SYNCED else "-F" if own == "-F" else "-f50"):
            fresh.append(run.fresh(peer, name=f"{peer} {own}", keeps=True, jobs=jobs))
    return fresh


@scenario(Layout(CYCLE, "in flight", "rate cpu"))
def binlog(run: Run) -> None:
    """put + reserve + delete with -b, 50 connections, this many commands in flight on each, under each sync policy"""
    kept = [fresh for policy in POLICIES for fresh in _kept(run, run.beanstalk, policy)]
    with run.together(*kept, *run.only("redis-always")) as running:
        _cycles(run, running, "depth", DEPTHS)


@scenario(Layout("bytes_per_job megabytes rate cpu", "jobs"))
def binlog_memory(run: Run) -> None:
    """delayed jobs with bodies of 1,000 bytes, put with -b and each server's default policy: their memory, and files"""
    count = run.sized(1_000_000)

    def measure(server: Subject) -> Sample:
        empty, there = server.resident(), 0
        parts = []
        while there < count:  # in parts, so that the generator does not need memory for all of them
            part = min(100_000, count - there)
            parts.append(run.load(loads.puts, server, count=part, body=1000, delays=DAYLONG))
            there += part
        time.sleep(1)  # real time: what the puts have left to do is done by then
        return {
            "rate": count / sum(sample["seconds"] for sample in parts),
            "cpu": sum(sample["cpu"] * sample["commands"] for sample in parts) / count,
            "bytes_per_job": (server.resident() - empty) / count,
            "megabytes": server.size_on_disk() / 1e6,
        }

    run.in_turn([run.fresh(peer, keeps=True) for peer in run.beanstalk], measure, size=count, pairs=3)


@scenario(Layout("seconds bytes_per_job megabytes", "jobs", "seconds"))
def start(run: Run) -> None:
    """the start on a binlog with a million live jobs of 100 bytes: from the process's start to its first reply"""
    for size in run.sizes(10_000, 100_000, 1_000_000):
        with directories(run.directory) as parent:
            written = _write_jobs(run, run.beanstalk, parent, size)
            fresh = [Fresh(peer, functools.partial(started, peer, directory=place)) for peer, place in written.items()]

            def measure(server: Subject, size: int = size) -> Sample:
                sample = {"seconds": server.process.first_answer, "megabytes": server.size_on_disk() / 1e6}
                return sample | {"bytes_per_job": server.resident() / size}

            run.in_turn(fresh, measure, size=size, pairs=0 if size == run.sized(1_000_000) else 1)


def _write_jobs(run: Run, peers: Sequence[str], parent: Path, count: int, body: int = 100) -> dict[str, Path]:
    """Have each peer write a binlog with delayed jobs; return the directories of those that have."""
    places = {}
    for peer in peers:
        run.tell(f"{count:,} jobs written by {peer}")
        place = parent / peer
        place.mkdir()
        with run.part(peer, size=count), started(peer, ("-F",), directory=place) as server:
            run.load(loads.puts, server, count=count, body=body, delays=DAYLONG)
            places[peer] = place
    return places


@scenario(Layout("to_first_answer cpu_ms"))
def launch(run: Run) -> None:
    """the start of a server that has nothing to read: from the process's start to its first reply"""

    def measure(server: Subject) -> Sample:
        return {"to_first_answer": server.process.first_answer * 1e3, "cpu_ms": process.cpu(server.pid).total * 1e3}

    for _ in range(4):  # what takes so little time varies more
        run.in_turn([run.fresh(peer) for peer in run.beanstalk], measure)


@scenario(Layout("bytes_per_job counted"), on_request=True)
def memory(run: Run) -> None:
    """a million jobs of each kind: the memory that each takes, and what the server counts for it (current-memory)"""
    for kind in loads.KINDS:
        measure = functools.partial(run.load, loads.memory, kind=kind, count=run.sized(1_000_000))
        run.in_turn([run.fresh(peer) for peer in run.own], measure, kind)


@scenario(Layout("peak left cpu", "bytes"), on_request=True)
def backlog(run: Run) -> None:
    """jobs with bodies of this size, put and deleted: the peak memory of the process, and its memory afterwards"""
    for body, count in ((600, 150_000), (1000, 150_000), (4000, 40_000)):
        measure = functools.partial(run.load, loads.backlog, body=body, count=run.sized(count))
        run.in_turn([run.fresh(peer) for peer in run.beanstalk], measure, size=body)


# What holds the event loop


@scenario(Layout("held_cpu longest"))
def stalls(run: Run) -> None:
    """the longest stall of the event loop (--slow-ms 1), under each of the loads above"""
    million = run.sized(1_000_000)

    def put(server: Subject) -> None:
        run.load(loads.puts, server, count=million, delays=DAYLONG)

    def cancel(server: Subject) -> None:
        put(server)
        run.load(loads.one_by_one, server, command="peek-delayed", count=100, lines=2)
        run.load(loads.one_by_one, server, command="kick 1000", count=100)
        ids = random.Random(4).sample(range(1, million + 1), million // 10)
        run.load(loads.deletes, server, ids=ids, verb="cancel")

    def clear(server: Subject) -> None:
        put(server)
        run.load(loads.one_by_one, server, command=f"clear-tube {MOVED.decode()}", count=1)

    def tubes(server: Subject) -> None:
        run.load(loads.tubes, server, count=run.sized(100_000))
        _cycle(run, server)

    def due(server: Subject) -> None:
        run.load(loads.lateness, server, count=million // 2, span=3, put_seconds=5 * run.scale)

    one = functools.partial(_cycle, run, seconds=3)
    many = functools.partial(one, depth=100)
    small = ("-s", str(1 << 20))
    loaded: list[tuple[str, bool, tuple[str, ...], Callable[[Subject], object]]] = [
        ("50 connections, 1 in flight", False, (), one),
        ("500 connections, 1 in flight", False, (), functools.partial(one, connections=500)),
        ("50 connections, 100 in flight", False, (), many),
        ("bodies of 64 KiB", False, (), functools.partial(one, body=65535)),
        ("beside 100,000 other tubes", False, (), tubes),
        ("a million delayed jobs put, a tenth cancelled", False, (), cancel),
        ("clear-tube of a million jobs", False, (), clear),
        ("half a million timers in 3 s", False, (), due),
        ("-b, 50 connections, 1 in flight", True, (), one),
        ("-b, 50 connections, 100 in flight", True, (), many),
        ("-b -s 1 MiB, 50 connections, 100 in flight: files are created and removed", True, small, many),
        ("-b, a million delayed jobs put, a tenth cancelled", True, (), cancel),
    ]
    spinning = Generator(SERVER_CPU)
    with contextlib.closing(spinning):
        spin = functools.partial(spinning.do, loads.spin, seconds=run.seconds(3))
        run.in_turn([Subject("no server", 0, 0)], spin, "reading the clock", pairs=3)
    for work, keeps, options, load in loaded:
        fresh = [run.fresh(peer, "--slow-ms", "1", *options, keeps=keeps) for peer in run.own]
        run.in_turn(fresh, functools.partial(_stalled, load), work, pairs=3)


def _stalled(load: Callable[[Subject], object], server: Subject) -> Sample:
    load(server)
    server.process.stop()
    return stalls_of(server.process.log)


def stalls_of(log: str) -> Sample:
    """The longest stall, and the most CPU time in one, that the log of a server with --slow-ms 1 has, in milliseconds.

    A server that logs none has none of a millisecond: both are 0 then.
    """
    found = re.findall(
        r"(?:the event loop stalled for|loop-held: \d+ more within .*, at most) (\S+) ms \((\S+) ms of CPU\)", log
    )
    return {
        "longest": max((float(held) for held, _ in found), default=0.0),
        "held_cpu": max((float(cpu) for _, cpu in found), default=0.0),
    }


# Policies of tubes

SETTINGS = {
    "max-jobs": "max-jobs = 1_000_000",
    "max-bytes": "max-bytes = 1_000_000_000",
    "max-delay": 'max-delay = "1h"',
    "max-job-size": "max-job-size = 1_000",
    "max-tries": "max-tries = 3",
    "backoff": 'backoff = "1h"',
    "ttl": 'ttl = "1h"',
    "max-reserved": "max-reserved = 1_000",
    "share": 'share = "/"',
    "weight": "weight = 3",
    "measures": "measures = true",
    "rate": 'rate = "1000000/s"\nburst = 1_000_000',
    "key-hold": 'key-hold = "1s"',
}
"""The policy of tubes whose names begin like this. None refuses anything here, or holds it up."""


def tube_section(beginning: str, settings: str) -> str:
    """The section of a config file for all tubes whose names begin like this."""
    return f'[[tube]]\nmatch = "{beginning}*"\n{settings}\n'


@scenario(Layout(f"rate cpu {LATENCIES} most", ratios="cpu"))
def policies(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, in tubes with each policy alone; and
    how long another client waits for a reply while a million jobs expire or time out
    """
    count = run.sized(1_000_000)
    ttl, ttr = max(count // 125_000, 2), max(count // 50_000, 5)  # putting and reserving them all takes less
    for peer in run.own:
        with contextlib.ExitStack() as stack, run.part(peer):
            plain = stack.enter_context(run.fresh(peer).open())
            sections = "".join([tube_section(f"{name}-", settings) for name, settings in SETTINGS.items()])
            limited = stack.enter_context(run.fresh(peer, config=sections).open())
            beside = dataclasses.replace(limited, name=peer + OF_OTHERS)
            within = [dataclasses.replace(limited, name=f"{peer}, {name}", tubes=f"{name}-") for name in SETTINGS]
            run.in_turn([plain, beside, *within], functools.partial(_cycle, run))
        for work, settings, shape in (
            (f"{count:,} jobs expire", f'ttl = "{ttl}s"', {"state": "ready"}),
            (f"{count:,} jobs time out, with backoff", 'backoff = "1h"', {"state": "reserved", "ttr": ttr}),
        ):
            fresh = run.fresh(peer, config=tube_section(MOVED.decode(), settings))
            measure = functools.partial(run.load, loads.lapse, count=count, **shape)
            run.in_turn([fresh], measure, work, count, pairs=3)


# Metrics


@contextlib.contextmanager
def scraping(port: int, interval: float) -> Iterator[list[int]]:
    """Scrape the metrics of a server as Prometheus does, in a thread of its own; yield the sizes of the answers.

    Args:
        interval: seconds from the end of a scrape to the next one.

    Raises:
        LoadError: a scrape has failed, or there was none.
    """
    sizes: list[int] = []
    stop = threading.Event()

    def scrape() -> None:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            while not stop.is_set():
                connection.request("GET", "/metrics")
                answer = connection.getresponse()
                sizes.append(len(answer.read()))
                if answer.status != http.HTTPStatus.OK:
                    raise LoadError(f"a scrape was answered with status {answer.status}")
                stop.wait(interval)

    with ThreadPoolExecutor(1) as pool:
        scraped = pool.submit(scrape)
        try:
            yield sizes
        finally:
            stop.set()
        try:
            scraped.result()
        except (OSError, http.client.HTTPException) as error:
            raise LoadError(f"a scrape has failed: {error}") from None
    if not sizes:
        raise LoadError("nothing has been scraped")


@scenario(Layout(f"rate cpu {LATENCIES} most scrapes scrape_bytes", ratios="cpu"))
def metrics(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, with metrics that no client reads, or that
    are scraped each second; and how long another client waits for a reply while 100,000 tubes are scraped continuously
    """
    count = run.sized(100_000)

    def measured(peer: str, added: str) -> Fresh:
        port = servers.unused_port()
        return run.fresh(peer, "--http", f"127.0.0.1:{port}", name=peer + added, http=port)

    def cycle(server: Subject) -> Sample:
        with scraping(server.http, 1) if server.name.endswith(SCRAPED) else contextlib.nullcontext():
            return _cycle(run, server, 5)

    def wait(again: bool, server: Subject) -> Sample:
        run.load(loads.tubes, server, count=count)
        shape: dict[str, Any] = {"attack": "nobody", "probe": "peek", "seconds": run.seconds(5), "arguments": {}}
        if not again:
            return run.load(loads.hostile, server, **shape)
        with scraping(server.http, 0) as sizes:
            sample = run.load(loads.hostile, server, **shape)
        return sample | {"scrapes": len(sizes), "scrape_bytes": sizes[-1]}

    for peer in run.own:
        fresh = measured(peer, MEASURED)
        with run.together(peer, fresh, measured(peer, SCRAPED)) as running:
            run.in_turn(running, cycle)
        for again, work in ((False, "no scrapes"), (True, "scraped continuously")):
            run.in_turn([fresh], functools.partial(wait, again), f"{count:,} tubes, {work}", count, pairs=3)


# Who is let in


@scenario(Layout(CYCLE, "in flight", "cpu rate"))
def tls(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each, bodies of 100 bytes: TLS and
    plain
    """
    with contextlib.ExitStack() as stack:
        running = [door for peer in run.own for door in _doors(run, stack, peer, "plain", "tls")]
        _cycles(run, running, "depth", (1, 100))


def _doors(run: Run, stack: contextlib.ExitStack, peer: str, *names: str) -> list[Subject]:
    """Open a server with these doors until the end; none, if it does not start."""
    doors: dict[str, Subject] = {}
    with run.part(peer):
        doors = stack.enter_context(opened(peer))
    return [doors[name] for name in names if name in doors]


@scenario(Layout(f"rate cpu engine_cpu {LATENCIES}", "connections", "cpu"))
def io_processes(run: Run) -> None:
    """put + reserve + delete, one command in flight on each of this many connections, plain and by TLS: in one process,
    and with the sockets in another one (--io-processes 1); the CPU of each process apart
    """
    for peer in run.own:
        with contextlib.ExitStack() as stack:
            running = _doors(run, stack, peer, "plain", "tls")
            with run.part(peer + CARRIED):
                running += stack.enter_context(carried(peer))
            _cycles(run, running, "connections", (50, 500))


@scenario(Layout("attack_rate held_cpu longest p50 p99 cpu grown"))
def arrivals(run: Run) -> None:
    """the cost of clients that connect: the event loop stalls, and the memory left by clients that are refused"""
    count, refused = run.sized(1_000), run.sized(1_000_000)

    @contextlib.contextmanager
    def door(peer: str, name: str, options: str = "") -> Iterator[Subject]:
        with opened(peer, options) as doors:
            mutual = doors["mutual"]
            secure.update(port=mutual.port, ca=mutual.ca, cert=mutual.cert)
            yield doors[name]

    secure: dict[str, object] = {}

    def come_back(server: Subject) -> Sample:
        shape: dict[str, Any] = {"attack": "returning", "probe": "put", "arguments": {"clients": count} | secure}
        sample = run.load(loads.hostile, server, seconds=run.seconds(10.0), probes=10, **shape)
        server.process.stop()
        return sample | stalls_of(server.process.log)

    for work, name, options, measure, pairs in (
        (f"{count:,} clients with certificates reconnect continuously", "plain", "slow-ms = 1", come_back, 3),
        (f"{refused:,} wrong tokens", "token", "", functools.partial(run.load, loads.unauthorized, count=refused), 1),
    ):
        fresh = [Fresh(peer, functools.partial(door, peer, name, options)) for peer in run.own]
        run.in_turn(fresh, measure, work, pairs=pairs)


# Several machines

COMMITS = "put, one connection"


def _commits(run: Run, running: Sequence[Subject | Fresh]) -> None:
    """One change at a time, each with a commit of its own: a latency is that of the commit, and little more."""
    run.in_turn(running, functools.partial(_cycle, run, connections=1, steps=["put"]), COMMITS, size=1)


@scenario(Layout(f"rate cpu engine_cpu {LATENCIES} to_first_answer", "in flight", "cpu rate"))
def cluster(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each; put alone, one connection: with the
    journal in a directory and in Redis with two replicas (--cluster), and a delay queue in Redis; and how long clients
    wait when the leader is killed
    """
    for peer in run.own:
        node = Fresh(peer + CLUSTERED, functools.partial(clustered, peer, run.directory))
        with run.together(run.fresh(peer, keeps=True), node, *run.only("redis")) as running:
            _cycles(run, running, "depth", (1, 100))
            _commits(run, running)
        for jobs in (1_000, 1_000_000):
            _takeovers(run, peer, jobs)


def _takeovers(run: Run, peer: str, jobs: int, engine: str = "alone", added: str = "") -> None:
    """Kill the leader again and again; measure how long a client of the other node waits."""
    work = f"leader killed, {jobs:,} jobs"
    with run.part(peer + added + CLUSTERED, work, 1), two_nodes(peer, run.directory, engine) as roles:
        run.load(loads.puts, roles()[1], count=run.sized(jobs), delays=DAYLONG)
        for pair in range(run.pairs):
            run.tell(f"{work}, {pair + 1} of {run.pairs}: {peer}{added}")
            leads, other = roles()
            run.add(other, run.load(loads.taken_over, other, leader=leads.pid), work, 1)
            leads.kill()  # it is dead: this takes note of it


SHARDS = 8
WATCHED = 8

ENGINES = {"alone": "", "postgresql": IN_POSTGRESQL}
"""What is added to a server's name for each kind of engine."""


@scenario(Layout(f"rate cpu engine_cpu {LATENCIES} to_first_answer", "in flight", "cpu rate"))
def engines(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each, and put alone, one connection: a
    node whose journal is in Redis, and one in PostgreSQL, each with two replicas, with one shard and with eight; and
    how long clients wait when the leader is killed
    """
    for peer in run.own:
        nodes = [
            Fresh(
                peer + added + CLUSTERED + of_shards(count),
                functools.partial(clustered, peer, run.directory, count, engine),
            )
            for count in (1, SHARDS)
            for engine, added in ENGINES.items()
        ]
        with run.together(*nodes) as running:
            _cycles(run, running, "depth", (1, 100))
            _commits(run, running)
        for engine, added in ENGINES.items():
            _takeovers(run, peer, 1_000_000, engine, added)


@scenario(Layout(f"rate cpu engine_cpu {LATENCIES} cpu_ms engine_ms seconds", "in flight", "cpu"))
def shards(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each, and put alone, one connection: a
    node that leads one shard, and one that leads eight; a node that leads nothing, whose clients another one serves;
    clients that watch tubes of all shards; and the CPU time of nodes and engine without commands
    """

    def leads(peer: str, count: int) -> Fresh:
        return Fresh(peer + CLUSTERED + of_shards(count), functools.partial(clustered, peer, run.directory, count))

    def stands_by(peer: str, count: int) -> Fresh:
        name = peer + CLUSTERED + of_shards(count) + ROUTED
        return Fresh(name, functools.partial(routed, peer, run.directory, count))

    counts = (1, SHARDS)
    for peer in run.own:
        both = [leads(peer, count) for count in counts] + [stands_by(peer, count) for count in counts]
        with run.together(*both) as running:
            leading = [server for server in running if not server.name.endswith(ROUTED)]
            _cycles(run, running, "depth", (1, 100))
            for depth in (1, 100):
                measure = functools.partial(_cycle, run, watching=WATCHED, depth=depth)
                run.in_turn(leading, measure, f"watching {WATCHED} tubes", size=depth)
            _commits(run, leading)
            run.in_turn(
                running, functools.partial(run.load, loads.idle, seconds=run.seconds(10)), "nothing to do", pairs=1
            )


# Under attack

LIMIT = 30.0  # seconds, for an attack that ends by itself


@scenario(Layout("most p99 p50 answers peak attacks", ratios="most"))
def hostile(run: Run) -> None:
    """how long another client waits for a reply, one command at a time, during each kind of attack"""
    both, own = [run.fresh(peer) for peer in run.beanstalk], [run.fresh(peer) for peer in run.own]
    synced = _kept(run, run.beanstalk, "-f0")
    kept = [*synced, *_kept(run, [peer for peer in run.beanstalk if peer not in run.own], "-f50")]
    seconds = run.seconds(1.0)
    attacked = functools.partial(_attacked, run)

    attacked("no attack", both, "nobody", "peek", seconds / 2)
    attacked("-b, no attack", kept, "nobody", "put", seconds / 2)

    limit = run.sized(750_000_000)
    for work, body, reads in (
        ("-b, puts of 64,000 bytes that wait for no reply", 64_000, True),
        ("-b, puts of 10 bytes that wait for no reply", 10, True),
        ("-b, puts of 10 bytes, the replies never read", 10, False),
    ):
        attacked(work, kept, "flood", "put", seconds, body=body, limit=limit, reads=reads)
    body = run.sized(100_000_000)
    large = [run.fresh(peer, "-z", str(200 << 20)) for peer in run.beanstalk]
    attacked(f"4 clients put {body:,} bytes, and delete", large, "bodies", "put", seconds, clients=4, body=body)
    attacked("-b, 4 clients put, quit, and keep sending", synced, "quitting", "peek", seconds, clients=4)
    _moved_at_once(run, synced)

    # Both look for a tube among all that a client watches, and beanstalkd among all that there are: to watch 100,000
    # takes them minutes.
    tubes = run.sized(1_000)
    work = f"100 clients watch {tubes:,} tubes, and wait for 1 s"
    attacked(work, both, "watchers", "peek", 2.2, clients=100, tubes=tubes)
    tubes = run.sized(10_000)
    attacked(f"a client watches {tubes:,} tubes", both, "watching", "peek", LIMIT, tubes=tubes)
    work = f"a client that waits on {tubes:,} tubes disconnects"
    attacked(work, both, "leaving", "peek", LIMIT, clients=2, tubes=tubes)
    for tubes, fresh in ((run.sized(20_000), both), (run.sized(100_000), own)):
        made = functools.partial(run.load, loads.tubes, count=tubes)
        attacked(f"8 clients list {tubes:,} tubes", fresh, "list_tubes", "peek", seconds, made, clients=8)


def _moved_at_once(run: Run, synced: list[Fresh]) -> None:
    """Attacks with one command that moves or removes many delayed jobs.

    beanstalkd -f0 syncs for each job that it kicks, which would take minutes for many jobs. So it kicks few; under
    -f50 it kicks many, which are put once and copied for each turn.
    """
    attacked = functools.partial(_attacked, run)
    few, many = run.sized(1_000), run.sized(500_000)
    made = functools.partial(run.load, loads.puts, count=few, body=10, delays=DAYLONG)
    work, line, reply = f"-b, kick of {few:,} delayed jobs", f"kick {few}", f"KICKED {few}"
    attacked(work, synced, "command", "put", LIMIT, made, line=line, reply=reply)
    with directories(run.directory) as parent:
        written = _write_jobs(run, run.beanstalk, parent, many, body=10)
        lazy = [fresh for peer, jobs in written.items() for fresh in _kept(run, [peer], "-f50", jobs)]
        own = [fresh for peer, jobs in written.items() if peer in run.own for fresh in _kept(run, [peer], "-f0", jobs)]
        work, line, reply = f"-b, kick of {many:,} delayed jobs", f"kick {many}", f"KICKED {many}"
        attacked(work, [*lazy, *own], "command", "put", LIMIT, line=line, reply=reply)
        work, line, reply = (
            f"-b, clear-tube of {many:,} delayed jobs",
            f"clear-tube {MOVED.decode()}",
            f"CLEARED {many}",
        )
        attacked(work, own, "command", "put", LIMIT, line=line, reply=reply)


def _attacked(
    run: Run,
    work: str,
    fresh: list[Fresh],
    attack: str,
    probe: str,
    seconds: float,
    prepare: Callable[[Subject], object] | None = None,
    **arguments: object,
) -> None:
    def measure(server: Subject) -> Sample:
        if prepare is not None:
            prepare(server)
        shape: dict[str, Any] = {"attack": attack, "probe": probe, "seconds": seconds, "arguments": arguments}
        return run.load(loads.hostile, server, **shape)

    run.in_turn(fresh, measure, work, pairs=3)


# Programs beside the server


@scenario(Layout("rate client_cpu server_cpu", ratios="client_cpu rate", first=True))
def clients(run: Run) -> None:
    """clients in Python, one connection each, with 100 bytes in a job"""
    count = run.sized(20_000)
    with run.together(*run.beanstalk) as running:
        for server in running:
            for work, of_work in LOADS.items():
                as_clients = [dataclasses.replace(server, name=client) for client in of_work]

                def measure(client: Subject, work: str = work) -> Sample:
                    return run.load(python_client, client, work=work, client=client.name, count=count)

                run.in_turn(as_clients, measure, f"{work}: {server.name}")


@scenario(
    Layout("rate cpu server_cpu put_cpu put_server_cpu", ratios="rate cpu put_cpu", first=True, ahead=True),
    on_request=True,
)
def workers(run: Run) -> None:
    """one worker that runs empty tasks which have been enqueued before; ten at a time where it can"""
    versions = run.results.about.setdefault("versions", {})
    versions |= {"redis": described("redis"), "task queues": package_versions()}

    def measure(subject: Subject) -> Sample:
        queue = QUEUES[subject.name]
        with directories(run.directory) as directory:
            kept = directory if queue.broker.endswith(KEPT) else None
            return enqueue_and_run(queue, run.sized(queue.jobs), kept)

    run.in_turn([Subject(name, 0, 0) for name in QUEUES], measure)


VIEWERS = 50


@scenario(Layout("without_ms one_ms many_ms own_ms first_page page page_again"), on_request=True)
def console(run: Run) -> None:
    """the cost of the console for a server with 100,000 tubes and a million jobs, and the load time of its pages"""
    tubes, jobs = run.sized(100_000), run.sized(1_000_000)
    seconds, pause = run.seconds(10), run.seconds(35)
    for peer in run.own:
        with run.together(peer) as running:
            for server in running:
                run.load(loads.tubes, server, count=tubes)
                run.load(loads.puts, server, count=jobs - tubes)
            work = f"{tubes:,} tubes, {jobs:,} jobs"
            run.in_turn(running, functools.partial(show, many=VIEWERS, seconds=seconds, pause=pause), work)
