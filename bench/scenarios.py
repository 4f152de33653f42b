"""The scenarios: what is measured, for which servers, at which sizes. Tables show the docstring of each scenario."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import clients, process, workers
from bench.doors import (
    BEHIND_STUNNEL,
    CARRIED,
    CLUSTERED,
    MEASURED,
    OF_OTHERS,
    ROUTED,
    SCRAPED,
    Door,
    behind_stunnel,
    carried,
    clustered,
    measured,
    of_shards,
    opened,
    routed,
    two_nodes,
    with_policies,
)
from bench.generator import LoadError
from bench.protocols import MOVED
from bench.run import Run, Variant
from bench.samples import Sample
from bench.scraping import scraped
from bench.servers import PEERS, SYNCED, Server, directories, stalls_of, stalls_of_nothing, version
from harness.servers import Process

HOUR = 3600
CONNECTIONS = 50


def _cycle(run: Run, server: Server | Door, seconds: float = 1.5, **arguments: object) -> Sample:
    """put + reserve + delete for a while, in tubes of this load alone."""
    shape = {"connections": CONNECTIONS, "tube": run.tube(), "seconds": run.seconds(seconds)}
    sample: Sample = run.load("cycle", server, **shape | arguments)
    return sample


def request_response(run: Run) -> None:
    """put + reserve + delete, one command in flight on each of this many connections"""
    with run.servers(*run.peers) as servers:
        for connections in (1, 50, 500):
            run.in_turn(servers, functools.partial(_cycle, run, connections=connections), size=connections)


def in_flight(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each"""
    with run.servers(*run.peers) as servers:
        for depth in (1, 10, 100):
            run.in_turn(servers, functools.partial(_cycle, run, depth=depth), size=depth)


def compiled(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight: what compiling the hot modules does"""
    with run.servers("interpreted", "ours") as servers:
        for depth in (1, 100):
            run.in_turn(servers, functools.partial(_cycle, run, depth=depth), size=depth)


def bodies(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, bodies of this many bytes"""
    with run.servers(*[peer for peer in run.peers if peer != "redis-always"]) as servers:
        for size in (10, 1024, 65535):
            run.in_turn(servers, functools.partial(_cycle, run, body=size), size=size)


def halves(run: Run) -> None:
    """put alone, then reserve + delete of those jobs; 50 connections, one command in flight on each"""
    rounds = run.sized(1500)
    with run.servers(*[peer for peer in run.peers if peer != "redis-always"]) as servers:
        for pair in range(run.pairs):
            for server in servers:
                if run.has_failed(server.name):
                    continue
                run.tell(f"{pair + 1} of {run.pairs}: {server.name}")
                shape = {"connections": CONNECTIONS, "tube": run.tube(), "rounds": rounds}
                with run.part(server.name):
                    run.add(server, run.load("cycle", server, steps=["put"], **shape), "put")
                    run.add(server, run.load("cycle", server, steps=["reserve", "delete"], **shape), "reserve + delete")


def other_tubes(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, beside other tubes that hold a job each"""
    for peer in run.beanstalk:
        # beanstalkd looks for a tube by its name among all: making 100,000 takes it minutes.
        sizes = [1, run.sized(1_000), run.sized(10_000)]
        sizes += [run.sized(100_000)] if peer in run.own else []
        with run.servers(*[Variant(peer, peer) for _ in sizes]) as servers:
            crowded = list(zip(servers, sizes, strict=False))
            for server, size in crowded:
                run.tell(f"{size:,} tubes in {peer}")
                with run.part(peer, size=size):
                    run.load("stream", server, kind="tubes", count=size, ids=[1])
            for pair in range(run.pairs):
                for server, size in crowded:
                    if run.has_failed(peer, size=size):
                        continue
                    run.tell(f"{size:,} other tubes, {pair + 1} of {run.pairs}: {peer}")
                    with run.part(peer, size=size):
                        run.add(server, _cycle(run, server), size=size)


def waiting(run: Run) -> None:
    """this many workers wait for a job; 10 jobs at a time are put, reserved and deleted; latency from put to worker"""
    with run.servers(*run.beanstalk) as servers:
        for workers in (1, 10, 100, 1000):
            load = functools.partial(run.load, "handover", workers=workers, in_flight=10, seconds=run.seconds(1.0))
            run.in_turn(servers, load, size=workers)


def delayed(run: Run) -> None:
    """jobs with delays of one to 24 hours, put into one tube: putting them, their memory, and commands among them"""
    sizes = sorted({run.sized(size) for size in (10_000, 100_000, 1_000_000)})
    peers = [peer for peer in run.peers if peer != "redis-always"]
    for pair in range(run.pairs):
        for peer in peers:
            with run.servers(peer) as servers:
                for server in servers:
                    with run.part(peer):
                        _delayed(run, server, sizes, pair)


def _delayed(run: Run, server: Server, sizes: list[int], pair: int) -> None:
    empty = server.resident()
    there = 0
    for size in sizes:
        run.tell(f"{size:,} jobs, {pair + 1} of {run.pairs}: {server.name}")
        sample = run.load("stream", server, kind="put", count=size - there, delays=(HOUR, 24 * HOUR))
        there = size
        run.add(server, sample | {"bytes_per_job": (server.resident() - empty) / size}, "put", size)
        if server.protocol == "beanstalk":
            _among(run, server, size)
    rng = random.Random(4 + pair)
    part = run.sized(100_000)
    ids = rng.sample(range(1, there + 1), part * 2)
    run.add(server, run.load("stream", server, kind="delete", count=part, ids=ids[:part]), "delete", there)
    if server.peer in run.own:
        rest = ids[part:]
        run.add(server, run.load("stream", server, kind="delete", count=part, ids=rest, verb="cancel"), "cancel", there)


def _among(run: Run, server: Server, size: int) -> None:
    """Single commands, while there are that many delayed jobs."""
    count = 300
    single: dict[str, tuple[int, list[str]]] = {
        "peek-delayed": (2, ["peek-delayed"] * count),
        "stats-tube": (17, ["stats-tube delays"] * count),
        "kick": (1, ["kick 1"] * 100),
    }
    for work, (lines, commands) in single.items():
        run.add(server, run.load("one_by_one", server, commands=commands, lines=lines), work, size)


def come_and_go(run: Run) -> None:
    """jobs put and cancelled, a thousand alive at a time: what is left of them in memory"""
    with run.servers(*run.own) as servers:
        for server in servers:
            run.tell(server.name)
            total = run.sized(3_000_000)
            run.add(server, run.load("come_and_go", server, total=total, alive=1000), size=total)


def clear(run: Run) -> None:
    """clear-tube of this many jobs: how long it takes, and what another client waits for an answer meanwhile"""
    sizes = sorted({run.sized(size) for size in (10_000, 100_000, 1_000_000)})
    with run.servers(*run.own) as servers:
        for server in servers:
            for size in sizes:
                run.tell(f"{size:,} jobs: {server.name}")
                run.add(server, run.load("clear", server, count=size), size=size)


def timers(run: Run) -> None:
    """this many jobs due within 10 s, and a worker that waits for them: how late it gets them"""
    span = 10 if run.scale == 1 else 3
    for count in sorted({run.sized(size) for size in (1_000, 10_000, 100_000, 1_000_000)}):
        quoted = count == 100_000
        peers = [*run.beanstalk, *(run.only("redis") if quoted else [])]
        for pair in range(min(run.pairs, 3) if quoted else 1):
            for peer in peers:
                if run.has_failed(peer, size=count):
                    continue
                with run.servers(peer) as servers:
                    for server in servers:
                        run.tell(f"{count:,} timers, {pair + 1}: {peer}")
                        seconds = max(1.0, count / 100_000)
                        with run.part(peer, size=count):
                            late = run.load("lateness", server, count=count, span=span, put_seconds=seconds)
                            run.add(server, late, size=count)


def idle(run: Run) -> None:
    """nothing to do, with a million delayed jobs an hour away: what five seconds of it cost"""
    with run.servers(*run.peers) as servers:
        for server in servers:
            run.tell(server.name)
            count = run.sized(1_000_000)
            with run.part(server.name):
                run.load("stream", server, kind="put", count=count, delays=(HOUR, HOUR))
                time.sleep(1)  # real time: what the puts have left to do is done by then
                run.add(server, run.load("idle", server, seconds=run.seconds(5)))


def steady(run: Run) -> None:
    """every kind of command as fast as it goes, about as many jobs alive at any time: does memory or latency creep?"""
    for peer in run.beanstalk:
        with run.servers(peer) as servers:
            for server in servers:
                run.tell(f"steady load, {peer}")
                seconds = run.seconds(60)
                with run.part(peer):
                    samples = run.load("steady", server, connections=20, seconds=seconds, window=seconds / 30)
                    run.results.add(run.scenario, server.name, "", 0, samples)


# With a binlog

POLICIES = ("-f0", "-f50", "-F")
"""Every sync policy that the servers share: -f0 is the default here, -f50 is beanstalkd's."""


def _kept(peers: list[str], policy: str) -> list[Variant]:
    """These peers with a binlog under a sync policy; one whose own options say a policy only where that belongs."""
    variants = []
    for peer in peers:
        own = PEERS[peer].policy
        if not own:
            variants.append(Variant(f"{peer} {policy}", peer, (policy,), keeps=True))
        elif policy == ("-f0" if own in SYNCED else "-F" if own == "-F" else "-f50"):
            variants.append(Variant(f"{peer} {own}", peer, keeps=True))
    return variants


def binlog(run: Run) -> None:
    """put + reserve + delete with -b, 50 connections, this many commands in flight on each, under each sync policy"""
    variants = [variant for policy in POLICIES for variant in _kept(run.beanstalk, policy)]
    with run.servers(*variants, *run.only("redis-always")) as servers:
        for depth in (1, 10, 100):
            run.in_turn(servers, functools.partial(_cycle, run, depth=depth), size=depth)


def binlog_memory(run: Run) -> None:
    """delayed jobs with bodies of 1,000 bytes, put with -b and each server's default policy: their memory, and files"""
    count = run.sized(1_000_000)
    for pair in range(min(run.pairs, 3)):
        for peer in run.beanstalk:
            with run.servers(Variant(peer, peer, keeps=True)) as servers:
                for server in servers:
                    run.tell(f"{count:,} jobs, {pair + 1} of {min(run.pairs, 3)}: {peer}")
                    with run.part(peer, size=count):
                        run.add(server, _binlog_memory(run, server, count), size=count)


def _binlog_memory(run: Run, server: Server, count: int) -> Sample:
    empty = server.resident()
    there, cost, seconds = 0, 0.0, 0.0
    while there < count:  # in parts, so that the generator does not need memory for all of them
        part = min(100_000, count - there)
        sample = run.load("stream", server, kind="put", count=part, body=1000, delays=(HOUR, 24 * HOUR))
        there += part
        cost += sample["cpu"] * part
        seconds += sample["seconds"]
    time.sleep(1)  # real time: what the puts have left to do is done by then
    return {
        "rate": count / seconds,
        "cpu": cost / count,
        "bytes_per_job": (server.resident() - empty) / count,
        "megabytes": server.size_on_disk() / 1e6,
    }


def start(run: Run) -> None:
    """the start on a binlog with a million live jobs of 100 bytes: from the process's start to its first answer"""
    sizes = sorted({run.sized(size) for size in (10_000, 100_000, 1_000_000)})
    for size in sizes:
        _start(run, size)


def _start(run: Run, size: int) -> None:
    with directories(run.directory) as parent:
        places = {}
        for peer in run.beanstalk:
            run.tell(f"{size:,} jobs written by {peer}")
            place = parent / peer
            place.mkdir()
            with run.part(peer, size=size):
                server = Server(peer, ("-F",), directory=place)
                places[peer] = place
                try:
                    run.load("stream", server, kind="put", count=size, delays=(HOUR, 24 * HOUR))
                finally:
                    server.stop()
        for pair in range(run.pairs if size == run.sized(1_000_000) else 1):
            for peer, place in places.items():
                if run.has_failed(peer, size=size):
                    continue
                run.tell(f"{size:,} jobs, {pair + 1} of {run.pairs}: {peer}")
                with run.part(peer, size=size):
                    server = Server(peer, directory=place)
                    try:
                        sample = {"seconds": server.first_answer, "bytes_per_job": server.resident() / size}
                        sample["megabytes"] = server.size_on_disk() / 1e6
                        run.add(server, sample, size=size)
                    finally:
                        server.stop()


def backlog(run: Run) -> None:
    """very many jobs with large bodies put with -b, ready or due soon; a tenth cancelled; all others taken out again"""
    jobs, body = run.sized(run.backlog[0]), run.backlog[1]
    for peer in run.beanstalk:
        with directories(run.directory) as beside, run.servers(Variant(peer, peer, keeps=True)) as servers:
            shape = {"jobs": jobs, "body": body, "spread": max(jobs // 10_000, 1), "ledger": str(beside / "ledger")}
            shape |= {"memory": MEMORY, "verb": "cancel" if peer in run.own else "delete"}
            for server in servers:
                with run.part(peer):
                    for phase, work in PHASES.items():
                        run.tell(f"{work}: {jobs:,} jobs of {body:,} bytes, {peer}")
                        done = run.load("backlog", server, phase=phase, directory=str(server.directory), **shape)
                        run.results.add(run.scenario, peer, work, jobs, done["samples"])
                        if done["why_stopped"]:
                            raise LoadError(f"{work}: {done['why_stopped']}")


PHASES = {"put": "put", "cancel": "cancel a tenth", "take": "reserve + delete"}
"""The phases of the backlog, in their order, and their names in the results."""

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
"""Bytes that a server may hold in memory: it is stopped before the machine has none left."""


LAUNCHES = 4
"""How often a server is launched for each pair: what takes so little time varies more."""


def launch(run: Run) -> None:
    """the start of a server that has nothing to read: from the process's start to its first answer"""
    for number in range(LAUNCHES * run.pairs):
        for peer in run.beanstalk:
            run.tell(f"{number + 1} of {LAUNCHES * run.pairs}: {peer}")
            with run.servers(peer) as servers:
                for server in servers:
                    spent = process.cpu(server.pid).total
                    run.add(server, {"to_first_answer": server.first_answer * 1e3, "cpu_ms": spent * 1e3})


# What holds the event loop


def stalls(run: Run) -> None:
    """the longest stall of the event loop (--slow-ms 1), under each of the loads above"""
    million = run.sized(1_000_000)
    watched = ("--slow-ms", "1")
    small = (*watched, "-s", str(1 << 20))

    def cancel(server: Server) -> None:
        run.load("stream", server, kind="put", count=million, delays=(HOUR, 24 * HOUR))
        _among_only(run, server)
        ids = random.Random(4).sample(range(1, million + 1), million // 10)
        run.load("stream", server, kind="delete", count=len(ids), ids=ids, verb="cancel")

    def tubes(server: Server) -> None:
        run.load("stream", server, kind="tubes", count=run.sized(100_000), ids=[1])
        _cycle(run, server)

    def due(server: Server) -> None:
        run.load("lateness", server, count=million // 2, span=3, put_seconds=5 * run.scale)

    loads: dict[str, tuple[Variant, Callable[[Server], object]]] = {}
    plain = Variant("ours", "ours", watched)
    kept = Variant("ours -b", "ours", watched, keeps=True)
    rotating = Variant("ours -b -s 1 MiB", "ours", small, keeps=True)
    loads["50 connections, 1 in flight"] = plain, lambda server: _cycle(run, server, 3)
    loads["500 connections, 1 in flight"] = plain, lambda server: _cycle(run, server, 3, connections=500)
    loads["50 connections, 100 in flight"] = plain, lambda server: _cycle(run, server, 3, depth=100)
    loads["bodies of 64 KiB"] = plain, lambda server: _cycle(run, server, 3, body=65535)
    loads["beside 100,000 other tubes"] = plain, tubes
    loads["1,000 waiting workers"] = (
        plain,
        lambda server: run.load("handover", server, workers=1000, in_flight=10, seconds=run.seconds(3)),
    )
    loads["a million delayed jobs put, a tenth cancelled"] = plain, cancel
    loads["clear-tube of a million jobs"] = plain, lambda server: run.load("clear", server, count=million)
    loads["half a million timers in 3 s"] = plain, due
    loads["-b, 50 connections, 1 in flight"] = kept, lambda server: _cycle(run, server, 3)
    loads["-b, 50 connections, 100 in flight"] = kept, lambda server: _cycle(run, server, 3, depth=100)
    loads["-b -s 1 MiB, 50 connections, 100 in flight: files come and go"] = (
        rotating,
        lambda server: _cycle(run, server, 5, depth=100),
    )
    loads["-b, a million delayed jobs put, a tenth cancelled"] = kept, cancel
    if "ours" not in run.peers:
        return
    for number in range(min(run.pairs, 3)):
        run.tell(f"nothing, {number + 1}")
        run.results.add(run.scenario, "no server", "a look at the clock", 0, [stalls_of_nothing(run.seconds(3))])
        for work, (variant, load) in loads.items():
            if run.has_failed("ours", work):
                continue
            run.tell(f"{work}, {number + 1}")
            with run.servers(variant) as servers:
                for server in servers:
                    with run.part("ours", work):
                        load(server)
                        server.stop()
                        run.results.add(run.scenario, "ours", work, 0, [stalls_of(server.log())])


def _among_only(run: Run, server: Server) -> None:
    run.load("one_by_one", server, commands=["peek-delayed"] * 100, lines=2)
    run.load("one_by_one", server, commands=["kick 1000"] * 100, lines=1)


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
    "rate": 'rate = "1000000/s"\nburst = 1_000_000',
    "key-hold": 'key-hold = "1s"',
}
"""The policy of tubes whose names begin like this. None refuses anything here, or holds it up."""

ATTRIBUTES = {
    "tries": "tries=3",
    "backoff": "backoff=3600",
    "ttl": "ttl=3600",
    "at": "at=1",
    "key": "key=k{}",
    "key and hold": "key=k{} hold=1",
}
"""What put-with demands of each job."""

FAILS_ONCE = ("put", "reserve", "release", "reserve", "delete")


def policies(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, in tubes with each policy alone, and of
    jobs with each attribute alone; the same with jobs that fail once; and what another client waits for an answer while
    a million jobs expire or run out of time
    """
    for peer in run.own:
        with contextlib.ExitStack() as stack, run.part(peer):
            plain = stack.enter_context(with_policies(peer, {}))
            limited = stack.enter_context(with_policies(peer, {f"{name}-": SETTINGS[name] for name in SETTINGS}))
            without = _LimitedDoor.into(plain, peer)
            beside = _LimitedDoor.into(limited, peer + OF_OTHERS)
            within = [_LimitedDoor.into(limited, f"{peer}, {name}", tubes=f"{name}-") for name in SETTINGS]
            asking = [
                _LimitedDoor.into(plain, f"{peer}, put-with {name}", attributes=ATTRIBUTES[name]) for name in ATTRIBUTES
            ]
            run.in_turn([without, beside, *within, *asking], functools.partial(_limited, run))
            failing = [without, *[door for door in within if door.tubes == "max-tries-"]]
            run.in_turn(failing, functools.partial(_limited, run, steps=FAILS_ONCE), "jobs that fail once")
        _lapsing(run, peer)


@dataclasses.dataclass
class _LimitedDoor(Door):
    """A server whose clients all use tubes with the same beginning, or demand the same of each job."""

    tubes: str = ""
    attributes: str = ""

    @classmethod
    def into(cls, running: Process, name: str, tubes: str = "", attributes: str = "") -> _LimitedDoor:
        return cls(name, int(running.address[1]), running.pid, tubes=tubes, attributes=attributes)


def _limited(run: Run, door: _LimitedDoor, steps: Sequence[str] = ("put", "reserve", "delete")) -> Sample:
    return _cycle(run, door, tube=door.tubes + run.tube(), attributes=door.attributes, steps=steps)


def _lapsing(run: Run, peer: str) -> None:
    """What another client waits for while the time of a million jobs runs out."""
    count = run.sized(1_000_000)
    ttl, ttr = max(count // 125_000, 2), max(count // 50_000, 5)  # putting and reserving them all takes less
    loads: dict[str, tuple[str, dict[str, Any]]] = {
        f"{count:,} jobs expire": (f'ttl = "{ttl}s"', {"state": "ready"}),
        f"{count:,} jobs run out of time, into backoff": ('backoff = "1h"', {"state": "reserved", "ttr": ttr}),
    }
    for pair in range(min(run.pairs, 3)):
        for work, (settings, arguments) in loads.items():
            if run.has_failed(peer, work, count):
                continue
            run.tell(f"{work}, {pair + 1}: {peer}")
            with run.part(peer, work, count), with_policies(peer, {MOVED.decode(): settings}) as running:
                door = _LimitedDoor.into(running, peer)
                run.add(door, run.load("lapse", door, count=count, **arguments), work, count)


# Metrics


def metrics(run: Run) -> None:
    """put + reserve + delete, 50 connections, one command in flight on each, with metrics that nobody reads, or that
    are scraped each second; and what another client waits for an answer while 100,000 tubes are scraped again and again
    """
    for peer in run.own:
        with contextlib.ExitStack() as stack, run.part(peer):
            doors: list[Server | Door] = [*stack.enter_context(run.servers(peer))]
            door, _ = stack.enter_context(measured(peer))
            other, port = stack.enter_context(measured(peer))
            other.name = peer + SCRAPED

            doors += [door, other]
            run.in_turn(doors, functools.partial(_cycle_scraped, run, other, port))
        _scraping(run, peer)


def _cycle_scraped(run: Run, door: Door, port: int, server: Server | Door) -> Sample:
    """A cycle, during which the server of this door is scraped each second, and no other."""
    with scraped(port, 1) if server is door else contextlib.nullcontext():
        return _cycle(run, server, 5)


def _scraping(run: Run, peer: str) -> None:
    """What another client waits for while a server with many tubes is scraped, each time as soon as it has answered."""
    count = run.sized(100_000)
    for pair in range(min(run.pairs, 3)):
        for work, interval in (("no scrapes", None), ("scraped again and again", 0.0)):
            name = f"{count:,} tubes, {work}"
            if run.has_failed(peer + MEASURED, name, count):
                continue
            run.tell(f"{name}, {pair + 1}: {peer}")
            with run.part(peer + MEASURED, name, count), measured(peer) as (door, port):
                run.load("stream", door, kind="tubes", count=count, ids=[1])
                load = functools.partial(
                    run.load, "hostile", door, attack="nobody", probe="peek", seconds=run.seconds(5), arguments={}
                )
                if interval is None:
                    sample = load()
                else:
                    with scraped(port, interval) as scraper:
                        sample = load()
                    sample |= {"scrapes": scraper.scrapes, "scrape_bytes": scraper.size}
                run.add(door, sample, name, count)


# Who is let in


def tls(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each, bodies of 100 bytes: TLS and
    plain
    """
    with contextlib.ExitStack() as stack:
        servers: list[Server | Door] = []
        for peer in run.own:
            with run.part(peer):
                _, doors = stack.enter_context(opened(peer))
                servers += [doors["plain"], doors["tls"]]
        for server in stack.enter_context(run.servers(*[peer for peer in run.beanstalk if peer not in run.own])):
            servers.append(server)
            with run.part(server.name + BEHIND_STUNNEL):
                servers.append(stack.enter_context(behind_stunnel(server)))
        for depth in (1, 100):
            run.in_turn(servers, functools.partial(_cycle, run, depth=depth), size=depth)


def io_processes(run: Run) -> None:
    """put + reserve + delete, one command in flight on each of this many connections, plain and by TLS: in one process,
    and with the sockets in another one (--io-processes 1); the CPU of each process apart
    """
    for peer in run.own:
        with contextlib.ExitStack() as stack:
            servers: list[Server | Door] = []
            with run.part(peer):
                _, doors = stack.enter_context(opened(peer))
                servers += [doors["plain"], doors["tls"]]
            with run.part(peer + CARRIED):
                servers += stack.enter_context(carried(peer))
            for connections in (50, 500):
                run.in_turn(servers, functools.partial(_cycle, run, connections=connections), size=connections)


def arrivals(run: Run) -> None:
    """what clients cost that come in: how long the event loop is held, and what is left of those who are refused"""
    clients = run.sized(1_000)
    returning = f"{clients:,} clients with certificates come back, again and again"
    count = run.sized(1_000_000)
    refused = f"{count:,} wrong tokens"
    for pair in range(min(run.pairs, 3)):
        for peer in run.own:
            run.tell(f"{returning}, {pair + 1}: {peer}")
            with run.part(peer, returning):
                run.add(*_returning(run, peer, clients), returning)
    for peer in run.own:
        run.tell(f"{refused}: {peer}")
        with run.part(peer, refused), opened(peer) as (_, doors):
            run.add(doors["token"], run.load("unauthorized", doors["token"], count=count), refused)


def _returning(run: Run, peer: str, clients: int) -> tuple[Door, Sample]:
    with opened(peer, "slow-ms = 1") as (server, doors):
        plain, mutual = doors["plain"], doors["mutual"]
        arguments = {"clients": clients, "port": mutual.port, "ca": mutual.ca, "cert": mutual.cert}
        seconds = run.seconds(10.0)
        shape = {"attack": "returning", "probe": "put", "probes": 10, "arguments": arguments}
        sample = run.load("hostile", plain, seconds=seconds, **shape)
    held = stalls_of(server.log)
    return plain, sample | {"longest": held["longest"], "held_cpu": held["cpu"]}


# Several machines


def cluster(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each; put alone, one connection: with the
    journal in a directory and in Redis with two replicas (--cluster), and a delay queue in Redis; and how long clients
    wait when the leader is killed
    """
    for peer in run.own:
        with contextlib.ExitStack() as stack:
            servers: list[Server | Door] = [*stack.enter_context(run.servers(Variant(peer, peer, keeps=True)))]
            with run.part(peer + CLUSTERED):
                directory = stack.enter_context(directories(run.directory))
                servers.append(stack.enter_context(clustered(peer, directory / "engine")))
            servers += stack.enter_context(run.servers(*run.only("redis")))
            for depth in (1, 100):
                run.in_turn(servers, functools.partial(_cycle, run, depth=depth), size=depth)
            run.in_turn(servers, functools.partial(_commits, run), COMMITS, size=1)
        for jobs in (1_000, 1_000_000):
            _take_over(run, peer, jobs)


def shards(run: Run) -> None:
    """put + reserve + delete, 50 connections, this many commands in flight on each, and put alone, one connection: a
    node that leads one shard, and one that leads eight; a node that leads nothing, whose clients another one serves;
    clients that watch tubes of all shards; and what nodes and engine do when nobody asks for anything
    """
    for peer in run.own:
        with contextlib.ExitStack() as stack:
            whole: list[Door] = []
            parted: list[Door] = []
            away: list[Door] = []
            for count in (1, SHARDS):
                with run.part(peer + CLUSTERED + of_shards(count)):
                    directory = stack.enter_context(directories(run.directory))
                    door = stack.enter_context(clustered(peer, directory / "engine", count))
                    (whole if count == 1 else parted).append(door)
            for count in (1, SHARDS):
                with run.part(peer + CLUSTERED + of_shards(count) + ROUTED):
                    directory = stack.enter_context(directories(run.directory))
                    away.append(stack.enter_context(routed(peer, directory / "engine", count)))
            for depth in (1, 100):
                run.in_turn([*whole, *parted, *away], functools.partial(_cycle, run, depth=depth), size=depth)
            wide = functools.partial(_cycle, run, watching=WATCHED)
            for depth in (1, 100):
                run.in_turn([*whole, *parted], functools.partial(wide, depth=depth), WATCHING, size=depth)
            run.in_turn([*whole, *parted], functools.partial(_commits, run), COMMITS, size=1)
        for count in (1, SHARDS, MANY_SHARDS):
            _at_rest(run, peer, count)


SHARDS = 8
MANY_SHARDS = 64

WATCHED = 8
WATCHING = f"watching {WATCHED} tubes"

AT_REST = "nothing to do"

LOOKS = f"looks at {MANY_SHARDS} leases"


def _at_rest(run: Run, peer: str, count: int) -> None:
    """A node that leads all shards, and one that leads none: what they, and the engine, use when nobody asks."""
    work = f"{AT_REST}, {count} shards"
    with run.part(peer + CLUSTERED, work), directories(run.directory) as directory:
        with clustered(peer, directory / "engine", count) as door:
            run.tell(f"{work}: {peer}")
            run.results.add(run.scenario, peer + CLUSTERED, work, 0, [_idle(run, door)])
            if count == MANY_SHARDS:
                looks = run.load("looks", door, url=door.url, shards=count, seconds=run.seconds(2))
                run.results.add(run.scenario, peer + CLUSTERED, LOOKS, 0, [looks])
        with routed(peer, directory / "other", count) as door:
            run.tell(f"{work}, another node: {peer}")
            run.results.add(run.scenario, peer + CLUSTERED + ROUTED, work, 0, [_idle(run, door)])


def _idle(run: Run, door: Door) -> Sample:
    sample: Sample = run.load("idle", door, seconds=run.seconds(10))
    return sample


COMMITS = "put, one connection"


def _commits(run: Run, server: Server | Door) -> Sample:
    """One change at a time, each with a commit of its own: a latency is that of the commit, and little more."""
    return _cycle(run, server, connections=1, steps=["put"])


def _take_over(run: Run, peer: str, jobs: int) -> None:
    work = f"leader killed, {jobs:,} jobs"
    with (
        run.part(peer + CLUSTERED, work, 1),
        directories(run.directory) as directory,
        two_nodes(peer, directory / "engine") as roles,
    ):
        run.load("stream", roles()[1], kind="put", count=run.sized(jobs), delays=(HOUR, 24 * HOUR))
        for pair in range(run.pairs):
            run.tell(f"{work}, {pair + 1} of {run.pairs}: {peer}")
            leads, other = roles()
            run.add(other, run.load("taken_over", other, leader=leads.pid), work, 1)
            leads.kill()  # it is dead: this takes note of it


# Under attack

LIMIT = 30.0  # seconds, for an attack that ends by itself


def hostile(run: Run) -> None:
    """what another client waits for an answer, one question at a time, while one kind of hostile client is at work"""
    both, own = _named(run.beanstalk), _named(run.own)
    synced = _kept(run.beanstalk, "-f0")
    kept = [*synced, *_kept([peer for peer in run.beanstalk if peer not in run.own], "-f50")]
    seconds = run.seconds(1.0)

    _attacked(run, "no attack", both, "nobody", "peek", seconds / 2)
    _attacked(run, "-b, no attack", kept, "nobody", "put", seconds / 2)

    limit = run.sized(750_000_000)
    for work, body, reads in (
        ("-b, puts of 64,000 bytes that wait for no reply", 64_000, True),
        ("-b, puts of 10 bytes that wait for no reply", 10, True),
        ("-b, puts of 10 bytes, the replies never read", 10, False),
    ):
        _attacked(run, work, kept, "flood", "put", seconds, body=body, limit=limit, reads=reads)
    body = run.sized(100_000_000)
    large = [dataclasses.replace(variant, options=("-z", str(200 << 20))) for variant in both]
    _attacked(run, f"4 clients put {body:,} bytes, and delete", large, "bodies", "put", seconds, clients=4, body=body)
    _attacked(run, "-b, 4 clients put, quit, and go on sending", synced, "quitting", "peek", seconds, clients=4)
    _moved_at_once(run, synced)

    # Both look for a tube among all that a client watches, and beanstalkd among all that there are: to watch 100,000
    # takes them minutes.
    tubes = run.sized(1_000)
    work = f"100 clients watch {tubes:,} tubes, and wait for 1 s"
    _attacked(run, work, both, "watchers", "peek", 2.2, clients=100, tubes=tubes)
    tubes = run.sized(10_000)
    _attacked(run, f"a client watches {tubes:,} tubes", both, "watching", "peek", LIMIT, tubes=tubes)
    work = f"a client that waits on {tubes:,} tubes disconnects"
    _attacked(run, work, both, "leaving", "peek", LIMIT, clients=2, tubes=tubes)
    for tubes, variants in ((run.sized(20_000), both), (run.sized(100_000), own)):
        made = functools.partial(run.load, "stream", kind="tubes", count=tubes, ids=[1])
        _attacked(run, f"8 clients list {tubes:,} tubes", variants, "list_tubes", "peek", seconds, made, clients=8)


def _moved_at_once(run: Run, synced: list[Variant]) -> None:
    """Attacks with one command that moves or removes many delayed jobs.

    beanstalkd -f0 syncs for each job that it kicks, which would take minutes for many jobs. So it kicks few; under
    -f50 it kicks many, which are put once and copied for each turn.
    """
    few, many = run.sized(1_000), run.sized(500_000)
    put = functools.partial(run.load, "stream", kind="put", body=10, delays=(HOUR, 24 * HOUR))
    work, kick = f"-b, kick of {few:,} delayed jobs", f"kick {few}"
    made = functools.partial(put, count=few)
    _attacked(run, work, synced, "command", "put", LIMIT, made, line=kick, reply=f"KICKED {few}")
    with directories(run.directory) as parent:
        loaded = {}
        for variant in synced:
            run.tell(f"{many:,} jobs written by {variant.peer}")
            jobs = parent / variant.peer
            jobs.mkdir()
            with run.part(variant.name, f"-b, {many:,} delayed jobs"):
                server = Server(variant.peer, ("-F",), directory=jobs)
                try:
                    put(server, count=many)
                finally:
                    server.stop()
                loaded[variant.peer] = jobs
        work, kick = f"-b, kick of {many:,} delayed jobs", f"kick {many}"
        variants = [*_kept(list(loaded), "-f50"), *_kept([peer for peer in loaded if peer in run.own], "-f0")]
        variants = [dataclasses.replace(variant, jobs=loaded[variant.peer]) for variant in variants]
        _attacked(run, work, variants, "command", "put", LIMIT, line=kick, reply=f"KICKED {many}")
        work, clear = f"-b, clear-tube of {many:,} delayed jobs", f"clear-tube {MOVED.decode()}"
        variants = [variant for variant in variants if variant.name.endswith("-f0")]
        _attacked(run, work, variants, "command", "put", LIMIT, line=clear, reply=f"CLEARED {many}")


def _named(peers: list[str]) -> list[Variant]:
    """These peers as variants."""
    return [Variant(peer, peer) for peer in peers]


def _attacked(
    run: Run,
    work: str,
    variants: list[Variant],
    attack: str,
    probe: str,
    seconds: float,
    prepare: Callable[[Server], object] | None = None,
    **arguments: object,
) -> None:
    """Measure the servers in turn, each one fresh; an attack that fails costs its own row only."""
    for pair in range(min(run.pairs, 3)):
        for variant in variants:
            if run.has_failed(variant.name, work):
                continue
            with run.servers(variant) as servers:
                for server in servers:
                    run.tell(f"{work}, {pair + 1}: {server.name}")
                    with run.part(server.name, work):
                        if prepare is not None:
                            prepare(server)
                        sample = run.load(
                            "hostile", server, attack=attack, probe=probe, seconds=seconds, arguments=arguments
                        )
                        run.add(server, sample, work)


def clients_in_python(run: Run) -> None:
    """clients in Python, one connection each, with 100 bytes in a job"""
    jobs = run.sized(20_000)
    with run.servers(*run.beanstalk) as servers:
        for pair in range(run.pairs):
            for server in servers:
                for work, of_work in clients.LOADS.items():
                    for client in of_work:
                        told = f"{work}: {server.name}"
                        run.tell(f"{told}, {client}, {pair + 1} of {run.pairs}")
                        if not run.has_failed(client, told):
                            with run.part(client, told):
                                sample = clients.measure(server, work, client, jobs)
                                run.results.add(run.scenario, client, told, 0, [sample])


def workers_of_task_queues(run: Run) -> None:
    """one worker that runs empty tasks which have been enqueued before; ten at a time where it can"""
    run.results.about.setdefault("versions", {})["redis"] = version("redis")
    for pair in range(run.pairs):
        for name, queue in workers.QUEUES.items():
            if run.has_failed(name):
                continue
            with run.part(name), contextlib.ExitStack() as stack:
                workers.install(queue, run.tell)
                run.tell(f"{name}, {pair + 1} of {run.pairs}")
                keeps = queue.broker.endswith(workers.KEPT)
                directory = stack.enter_context(directories(run.directory)) if keeps else None
                sample = workers.measure(queue, run.sized(queue.jobs), directory)
                run.results.add(run.scenario, name, "", 0, [sample])
            if versions := workers.versions(queue):
                run.results.about["versions"][queue.group] = versions


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "request-response": request_response,
    "in-flight": in_flight,
    "compiled": compiled,
    "bodies": bodies,
    "halves": halves,
    "other-tubes": other_tubes,
    "waiting": waiting,
    "delayed": delayed,
    "come-and-go": come_and_go,
    "clear": clear,
    "timers": timers,
    "idle": idle,
    "steady": steady,
    "binlog": binlog,
    "binlog-memory": binlog_memory,
    "start": start,
    "backlog": backlog,
    "launch": launch,
    "stalls": stalls,
    "policies": policies,
    "metrics": metrics,
    "hostile": hostile,
    "tls": tls,
    "io-processes": io_processes,
    "arrivals": arrivals,
    "cluster": cluster,
    "shards": shards,
    "clients": clients_in_python,
    "workers": workers_of_task_queues,
}

ON_REQUEST = ("backlog", "workers")
"""Those that take very long, or install what is measured; they are only run when they are asked for."""
