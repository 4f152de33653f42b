"""The targets of the figures: the first of each, the one after it, and how to find the figure in a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from bench.doors import CARRIED, CLUSTERED, MEASURED, OF_OTHERS, SCRAPED, WITH_TLS, of_shards
from bench.results import Point, Results, Spread, spread

Found = Callable[[Results], Spread | None]

OURS = "ours"
BEANSTALKD = "beanstalkd"
FORK = "fork"
"""The name that a run gives a C fork of beanstalkd, which syncs in groups with -D."""

LARGEST = -1


@dataclass(frozen=True)
class Target:
    """One figure to reach.

    Args:
        found: finds the figure in a run, if it was measured.
        unit: of the figure; × for a ratio.
        then: the target after the first, or None if there is none yet.
        more: whether more is better.
        beside: a server that not every run has; without it, the figure is not shown.
    """

    work: str
    found: Found
    unit: str
    first: float
    then: float | None = None
    more: bool = False
    beside: str = ""

    def is_about(self, results: Results) -> bool:
        """Whether the run had the server that the figure is beside."""
        return not self.beside or self.beside in results.about.get("peers", [])

    def reached(self, figure: Spread, wanted: float) -> bool:
        """Whether the median is as good as wanted."""
        return figure.median >= wanted if self.more else figure.median <= wanted


def _point(results: Results, scenario: str, server: str, work: str, size: int) -> Point | None:
    if size != LARGEST:
        return results.find(scenario, server, work, size)
    return max(results.select(scenario, server=server, work=work), key=lambda point: point.size, default=None)


def alone(scenario: str, server: str, measure: str, size: int = 0, work: str = "") -> Found:
    """What a server took."""

    def found(results: Results) -> Spread | None:
        point = _point(results, scenario, server, work, size)
        return point.spread(measure) if point else None

    return found


def ratio(scenario: str, server: str, other: str, measure: str, size: int = 0, other_size: int | None = None) -> Found:
    """What a server took or did, over what another one did."""

    def found(results: Results) -> Spread | None:
        point = _point(results, scenario, server, "", size)
        beside = _point(results, scenario, other, "", size if other_size is None else other_size)
        return point.ratio(beside, measure) if point and beside else None

    return found


def worst(scenario: str, server: str, measure: str, *, most: bool = False, scale: float = 1.0, work: str = "") -> Found:
    """The largest median over all works and sizes; with `most`, the largest of all measurements.

    Args:
        work: a pattern of the works that count.
    """

    def found(results: Results) -> Spread | None:
        points = [p for p in results.select(scenario, server=server) if p.values(measure) and re.search(work, p.work)]
        if most and points:
            values = [value * scale for point in points for value in point.values(measure)]
            return Spread(max(values), min(values), max(values))
        return max((point.spread(measure) for point in points), default=None)

    return found


PATIENCE = 20.0  # milliseconds


def waited(results: Results) -> Spread | None:
    """How long another client waits under attack, as a share of what is allowed: the worst over all attacks."""
    found = []
    for point in results.select("hostile"):
        peer, _, policy = point.server.partition(" ")
        if peer == OURS:
            other = results.find("hostile", f"{BEANSTALKD} {policy}".rstrip(), point.work, point.size)
            theirs = other.values("most") if other else [0.0] * len(point.samples)
            shares = [mine / max(PATIENCE, 2 * its) for mine, its in zip(point.values("most"), theirs, strict=False)]
            found.append(spread(shares))
    return max(found, default=None)


def engine(results: Results) -> Spread | None:
    """The CPU of the engine's primary for a command, beside Redis's where the queue is made of scripts."""
    node = results.find("cluster", OURS + CLUSTERED, "", 100)
    scripts = results.find("cluster", "redis", "", 100)
    if not node or not scripts:
        return None
    pairs = zip(node.values("engine_cpu"), scripts.values("cpu"), strict=False)
    return spread([mine / its for mine, its in pairs])


NODE = OURS + CLUSTERED
KILLED = "leader killed, {} jobs"

TARGETS = [
    Target(
        "put + reserve + delete, 50 connections, one in flight: commands per CPU second, relative to beanstalkd",
        ratio("request-response", BEANSTALKD, OURS, "cpu", 50), "×", 1.25, more=True,
    ),
    Target(
        "the same, relative to the C fork",
        ratio("request-response", FORK, OURS, "cpu", 50), "×", 0.85, 1, more=True, beside=FORK,
    ),
    Target("as the first, 100 in flight on each", ratio("in-flight", BEANSTALKD, OURS, "cpu", 100), "×", 5, more=True),
    Target(
        "as the first, every acknowledgement synced: commands per second, relative to beanstalkd -f0",
        ratio("binlog", "ours -f0", "beanstalkd -f0", "rate", 1), "×", 8, 10, more=True,
    ),
    Target(
        "the same, relative to the C fork with -D: commands per CPU second",
        ratio("binlog", f"{FORK} -D", "ours -f0", "cpu", 1), "×", 0.85, 1, more=True, beside=FORK,
    ),
    Target(
        "as the first, each with its default sync policy: commands per second, relative to beanstalkd -f50",
        ratio("binlog", "ours -f0", "beanstalkd -f50", "rate", 1), "×", 1, 1.1, more=True,
    ),
    Target(
        "100 in flight on each, every acknowledgement synced: commands per second, relative to beanstalkd -f0",
        ratio("binlog", "ours -f0", "beanstalkd -f0", "rate", 100), "×", 10, more=True,
    ),
    Target(
        "as the first, with 100,000 other tubes: commands per CPU second, relative to one other tube",
        ratio("other-tubes", OURS, OURS, "cpu", 1, LARGEST), "×", 0.95, more=True,
    ),
    Target(
        "memory for each of a million delayed jobs of 100 bytes",
        alone("delayed", OURS, "bytes_per_job", LARGEST, "put"), "bytes", 299, 200,
    ),
    Target(
        "the same with -b, bodies of 1,000 bytes",
        alone("binlog-memory", OURS, "bytes_per_job", LARGEST), "bytes", 250, 150,
    ),
    Target(
        "list-jobs of 1,000 jobs, from a random position among a million with random priorities, 50th percentile",
        alone("listing", OURS, "p50", LARGEST), "ms", 3,
    ),
    Target(
        "start on a binlog with a million live jobs: time, relative to beanstalkd",
        ratio("start", OURS, BEANSTALKD, "seconds", LARGEST), "×", 0.7,
    ),
    Target("start without a binlog: time to the first reply", alone("launch", OURS, "to_first_answer"), "ms", 60),
    Target(
        "lateness of 100,000 timers within 10 s, 99th percentile",
        alone("timers", OURS, "p99", 100_000), "ms", 2, 1,
    ),
    Target(
        "lateness of a million timers within 10 s, 99.9th percentile",
        alone("timers", OURS, "p999", 1_000_000), "ms", 20, 5,
    ),
    Target(
        "longest event loop stall, in CPU time, under the worst load",
        worst("stalls", OURS, "held_cpu"), "ms", 5, 2,
    ),
    Target(
        "longest wait for a reply under the worst attack, relative to 20 ms or, if longer, twice beanstalkd's wait",
        waited, "×", 0.5,
    ),
    Target(
        "engine process with an I/O process, 50 connections, one in flight: CPU per command",
        alone("io-processes", OURS + CARRIED, "engine_cpu", 50), "µs", 2.5, 2,
    ),
    Target(
        "the same engine process, 500 connections",
        alone("io-processes", OURS + CARRIED, "engine_cpu", 500), "µs", 2.5, 2,
    ),
    Target(
        "the I/O process, 50 connections: CPU per command, relative to the server without I/O processes",
        ratio("io-processes", OURS + CARRIED, OURS, "cpu", 50), "×", 1.2, 1,
    ),
    Target(
        "the I/O process, 500 connections: CPU per command, relative to the server without I/O processes",
        ratio("io-processes", OURS + CARRIED, OURS, "cpu", 500), "×", 1.2, 1,
    ),
    Target(
        "engine process, 50 connections with TLS: CPU per command, relative to plain connections",
        ratio("io-processes", OURS + CARRIED + WITH_TLS, OURS + CARRIED, "engine_cpu", 50), "×", 1.1, 1.05,
    ),
    Target(
        "TLS, 50 connections, one in flight: CPU per command, relative to plain connections",
        ratio("tls", OURS + WITH_TLS, OURS, "cpu", 1), "×", 2, 1.6,
    ),
    Target("the same, 100 in flight on each", ratio("tls", OURS + WITH_TLS, OURS, "cpu", 100), "×", 1.5),
    Target(
        "the journal in Redis, confirmed by a replica, 50 connections, one in flight: CPU per command, relative to -b",
        ratio("cluster", NODE, OURS, "cpu", 1), "×", 1.3, 1.1,
    ),
    Target("the same journal, 100 in flight on each", ratio("cluster", NODE, OURS, "cpu", 100), "×", 1.15, 1),
    Target("CPU of Redis's primary for that journal, relative to a delay queue in Redis", engine, "×", 0.2, 0.1),
    Target(
        "leader killed with 1,000 jobs: time to the first reply of the next leader",
        alone("cluster", NODE, "to_first_answer", 1, KILLED.format("1,000")), "ms", 1000, 500,
    ),
    Target(
        "the same with a million jobs",
        alone("cluster", NODE, "to_first_answer", 1, KILLED.format("1,000,000")), "ms", 3500,
    ),
    Target(
        "a node that leads 8 shards, 50 connections, one in flight: CPU per command, relative to a node that leads 1",
        ratio("shards", NODE + of_shards(8), NODE, "cpu", 1), "×", 1.25, 1.1,
    ),
    Target(
        "a node that leads 8 shards, 100 in flight on each",
        ratio("shards", NODE + of_shards(8), NODE, "cpu", 100), "×", 1.25, 1.1,
    ),
    Target(
        "policies of other tubes, 50 connections, one in flight: CPU per command, relative to no policies",
        ratio("policies", OURS + OF_OTHERS, OURS, "cpu"), "×", 1.02, 1.01,
    ),
    Target(
        "a million jobs expire or time out: longest wait of another client for a reply",
        worst("policies", OURS, "most", work="expire|time out"), "ms", 5,
    ),
    Target(
        "metrics, scraped each second, 50 connections, one in flight: CPU per command, relative to no metrics",
        ratio("metrics", OURS + SCRAPED, OURS, "cpu"), "×", 1.02, 1.01,
    ),
    Target(
        "100,000 tubes, scraped continuously: longest wait of another client for a reply",
        worst("metrics", OURS + MEASURED, "most", work="continuously"), "ms", 5,
    ),
    Target(
        "1,000 clients with certificates reconnect: longest event loop stall, in CPU time",
        worst("arrivals", OURS, "held_cpu", most=True), "ms", 5, 2,
    ),
    Target(
        "a million clients with wrong tokens: memory growth",
        worst("arrivals", OURS, "grown", most=True, scale=1e-6), "MB", 1,
    ),
]  # fmt: skip
