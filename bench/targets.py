"""The figures to reach: the first target of each, what comes then, and how to find the figure in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.doors import CARRIED, CLUSTERED, MEASURED, OF_OTHERS, SCRAPED, WITH_TLS, of_shards
from bench.results import Point, Results
from bench.samples import Spread, ratio


@dataclass(frozen=True)
class Target:
    """One figure to reach.

    Args:
        unit: of the figure; × for a ratio.
        then: the target after the first, or None if there is none yet.
        more: whether more is better.
        found: finds the figure in a run, if it was measured.
        beside: a server that not every run has; without it, the figure is not shown.
    """

    work: str
    scenario: str
    unit: str
    first: float
    then: float | None
    more: bool
    found: Callable[[Results], Spread | None]
    beside: str = ""

    def is_about(self, results: Results) -> bool:
        """Whether the run had the server that the figure is beside."""
        return not self.beside or self.beside in results.about.get("peers", [])

    def reached(self, figure: Spread, wanted: float) -> bool:
        """Whether the median is as good as wanted."""
        return figure.median >= wanted if self.more else figure.median <= wanted


def _ratio(results: Results, point: Point | None, other: Point | None, measure: str) -> Spread | None:
    return results.ratio(point, other, measure) if point and other else None


def _cpu(scenario: str, size: int, ours: str, theirs: str) -> Callable[[Results], Spread | None]:
    """The ratio to one of their servers of commands for each second of CPU time."""

    def found(results: Results) -> Spread | None:
        return _ratio(results, results.find(scenario, theirs, "", size), results.find(scenario, ours, "", size), "cpu")

    return found


def _largest(results: Results, scenario: str, server: str, work: str = "") -> Point | None:
    points = results.select(scenario, server=server, work=work)
    return max(points, key=lambda point: point.size, default=None)


def _synced(depth: int, theirs: str) -> Callable[[Results], Spread | None]:
    """The ratio of commands a second when each acknowledgement of ours is synced."""

    def found(results: Results) -> Spread | None:
        ours, other = (results.find("binlog", server, "", depth) for server in ("ours -f0", theirs))
        return _ratio(results, ours, other, "rate")

    return found


def _crowded(results: Results) -> Spread | None:
    return _ratio(results, results.find("other-tubes", "ours", "", 1), _largest(results, "other-tubes", "ours"), "cpu")


def _memory(scenario: str, work: str = "") -> Callable[[Results], Spread | None]:
    def found(results: Results) -> Spread | None:
        point = _largest(results, scenario, "ours", work)
        return point.spread("bytes_per_job") if point else None

    return found


def _start(results: Results) -> Spread | None:
    return _ratio(results, _largest(results, "start", "ours"), _largest(results, "start", "beanstalkd"), "seconds")


def _launch(results: Results) -> Spread | None:
    point = results.find("launch", "ours", "", 0)
    return point.spread("to_first_answer") if point else None


def _late(count: int, measure: str) -> Callable[[Results], Spread | None]:
    def found(results: Results) -> Spread | None:
        point = results.find("timers", "ours", "", count)
        return point.spread(measure) if point else None

    return found


def _held(results: Results) -> Spread | None:
    """The most CPU time of one stall, under the worst of all loads."""
    return max((point.spread("cpu") for point in results.select("stalls", server="ours")), default=None)


PATIENCE = 20.0  # milliseconds


def _waited(results: Results) -> Spread | None:
    """How long another client waits under attack, as a share of what is allowed: the worst over all attacks."""
    found = []
    for point in results.select("hostile"):
        peer, _, policy = point.server.partition(" ")
        if peer == "ours":
            other = results.find("hostile", f"beanstalkd {policy}".rstrip(), point.work, point.size)
            samples = other.samples if other else [{"most": 0.0}] * len(point.samples)
            allowed = [{"most": max(PATIENCE, 2 * sample["most"])} for sample in samples]
            found.append(ratio(point.samples, allowed, "most"))
    return max(found, default=None)


def _beside_plain(scenario: str, size: int, added: str) -> Callable[[Results], Spread | None]:
    """The CPU of a command where this is added to the server's name, beside the same server without."""

    def found(results: Results) -> Spread | None:
        more, plain = (results.find(scenario, server, "", size) for server in ("ours" + added, "ours"))
        return _ratio(results, more, plain, "cpu")

    return found


def _of_arrivals(measure: str, scale: float = 1.0) -> Callable[[Results], Spread | None]:
    """The worst of a measure over those who arrive."""

    def found(results: Results) -> Spread | None:
        points = results.select("arrivals", server="ours")
        values = [sample[measure] * scale for point in points for sample in point.samples if measure in sample]
        return Spread(max(values), min(values), max(values)) if values else None

    return found


def _engine(results: Results) -> Spread | None:
    """The CPU of the engine's primary for a command, beside Redis's where the queue is made of scripts."""
    node = results.find("cluster", "ours" + CLUSTERED, "", 100)
    scripts = results.find("cluster", "redis", "", 100)
    if not node or not scripts:
        return None
    return ratio([{"cpu": sample["engine_cpu"]} for sample in node.samples], scripts.samples, "cpu")


def _taken_over(jobs: str) -> Callable[[Results], Spread | None]:
    """How long clients wait for the next leader, in milliseconds."""

    def found(results: Results) -> Spread | None:
        point = results.find("cluster", "ours" + CLUSTERED, f"leader killed, {jobs} jobs", 1)
        return point.spread("to_first_answer") if point else None

    return found


def _engine_process(connections: int) -> Callable[[Results], Spread | None]:
    """The CPU of a command in the process that has the jobs, where another one has the sockets."""

    def found(results: Results) -> Spread | None:
        point = results.find("io-processes", "ours" + CARRIED, "", connections)
        return point.spread("engine_cpu") if point else None

    return found


def _engine_process_with_tls(results: Results) -> Spread | None:
    """The CPU of a command in the process that has the jobs, where clients speak TLS, beside plain."""
    secure, plain = (
        results.find("io-processes", server, "", 50) for server in ("ours" + CARRIED + WITH_TLS, "ours" + CARRIED)
    )
    return _ratio(results, secure, plain, "engine_cpu")


def _beside_policies(results: Results) -> Spread | None:
    """CPU a command where other tubes have policies, beside a server without any."""
    with_others, without = (results.find("policies", "ours" + how, "", 0) for how in (OF_OTHERS, ""))
    return _ratio(results, with_others, without, "cpu")


def _lapsed(results: Results) -> Spread | None:
    """What another client waits for an answer, under the worse of the two loads."""
    points = [point for point in results.select("policies", server="ours") if point.size]
    return max((point.spread("most") for point in points), default=None)


def _beside_scrapes(results: Results) -> Spread | None:
    """CPU a command where metrics are scraped each second, beside a server without any."""
    with_metrics, without = (results.find("metrics", "ours" + how, "", 0) for how in (SCRAPED, ""))
    return _ratio(results, with_metrics, without, "cpu")


def _waited_for_scrapes(results: Results) -> Spread | None:
    """What another client waits for an answer while many tubes are scraped."""
    points = [point for point in results.select("metrics", server="ours" + MEASURED) if "again" in point.work]
    return max((point.spread("most") for point in points), default=None)


def _sharded(size: int) -> Callable[[Results], Spread | None]:
    """The CPU of a command at a node that leads eight shards, beside one that leads one."""

    def found(results: Results) -> Spread | None:
        whole = "ours" + CLUSTERED
        more, one = (results.find("shards", server, "", size) for server in (whole + of_shards(8), whole))
        return _ratio(results, more, one, "cpu")

    return found


FORK = "fork"
"""The name that a run gives a C fork of beanstalkd, which syncs in groups with -D."""

TARGETS = [
    Target(
        "put + reserve + delete, 50 connections, one in flight: commands a CPU second, beside beanstalkd",
        *("request-response", "×", 1.25, None, True, _cpu("request-response", 50, "ours", "beanstalkd")),
    ),
    Target(
        "the same beside the C fork",
        *("request-response", "×", 0.85, 1, True, _cpu("request-response", 50, "ours", FORK), FORK),
    ),
    Target(
        "as the first, 100 in flight on each",
        *("in-flight", "×", 5, None, True, _cpu("in-flight", 100, "ours", "beanstalkd")),
    ),
    Target(
        "as the first, every acknowledgement synced: commands a second, beside beanstalkd -f0",
        *("binlog", "×", 8, 10, True, _synced(1, "beanstalkd -f0")),
    ),
    Target(
        "the same beside the C fork's -D: commands a CPU second",
        *("binlog", "×", 0.85, 1, True, _cpu("binlog", 1, "ours -f0", f"{FORK} -D"), FORK),
    ),
    Target(
        "as the first, each with its default: ours synced, beside beanstalkd -f50: commands a second",
        *("binlog", "×", 1, 1.1, True, _synced(1, "beanstalkd -f50")),
    ),
    Target(
        "100 in flight on each, every acknowledgement synced: commands a second, beside beanstalkd -f0",
        *("binlog", "×", 10, None, True, _synced(100, "beanstalkd -f0")),
    ),
    Target(
        "as the first, beside 100,000 other tubes: commands a CPU second, beside the same with one",
        *("other-tubes", "×", 0.95, None, True, _crowded),
    ),
    Target(
        "memory for each of a million delayed jobs of 100 bytes",
        *("delayed", "bytes", 299, 200, False, _memory("delayed", "put")),
    ),
    Target(
        "the same with -b, bodies of 1,000 bytes",
        *("binlog-memory", "bytes", 250, 150, False, _memory("binlog-memory")),
    ),
    Target(
        "start on a binlog with a million live jobs: time, beside beanstalkd",
        *("start", "×", 0.7, None, False, _start),
    ),
    Target("start without a binlog, to the first answer", "launch", "ms", 60, None, False, _launch),
    Target(
        "lateness of 100,000 timers within 10 s, 99th percentile",
        *("timers", "ms", 2, 1, False, _late(100_000, "p99")),
    ),
    Target(
        "lateness of a million timers within 10 s, 99.9th percentile",
        *("timers", "ms", 20, 5, False, _late(1_000_000, "p999")),
    ),
    Target("longest stretch the event loop is held, its own CPU time, worst load", "stalls", "ms", 5, 2, False, _held),
    Target(
        "worst answer beside a hostile client, worst attack: of 20 ms, or of twice beanstalkd's where that is more",
        *("hostile", "×", 0.5, None, False, _waited),
    ),
    Target(
        "engine process with an I/O process, 50 connections, one in flight: CPU a command",
        *("io-processes", "µs", 2.5, 2, False, _engine_process(50)),
    ),
    Target(
        "the engine process there, 500 connections",
        *("io-processes", "µs", 2.5, 2, False, _engine_process(500)),
    ),
    Target(
        "the I/O process there, 50 connections: CPU a command, beside the whole server without one",
        *("io-processes", "×", 1.2, 1, False, _beside_plain("io-processes", 50, CARRIED)),
    ),
    Target(
        "the I/O process there, 500 connections: beside the whole server without one",
        *("io-processes", "×", 1.2, 1, False, _beside_plain("io-processes", 500, CARRIED)),
    ),
    Target(
        "engine process, 50 connections that speak TLS: CPU a command, beside plain",
        *("io-processes", "×", 1.1, 1.05, False, _engine_process_with_tls),
    ),
    Target(
        "TLS, 50 connections, one in flight: CPU a command, beside plain",
        *("tls", "×", 2, 1.6, False, _beside_plain("tls", 1, WITH_TLS)),
    ),
    Target("the same, 100 in flight on each", *("tls", "×", 1.5, None, False, _beside_plain("tls", 100, WITH_TLS))),
    Target(
        "the journal in Redis, confirmed by a replica, 50 connections, one in flight: CPU a command, beside -b",
        *("cluster", "×", 1.3, 1.1, False, _beside_plain("cluster", 1, CLUSTERED)),
    ),
    Target(
        "the same journal, 100 in flight on each",
        *("cluster", "×", 1.15, 1, False, _beside_plain("cluster", 100, CLUSTERED)),
    ),
    Target(
        "CPU of Redis's primary there, beside that of a delay queue in Redis",
        *("cluster", "×", 0.2, 0.1, False, _engine),
    ),
    Target(
        "leader killed with 1,000 jobs, to the first answer of the next one",
        *("cluster", "ms", 1000, 500, False, _taken_over("1,000")),
    ),
    Target("the same with a million jobs", *("cluster", "ms", 3500, None, False, _taken_over("1,000,000"))),
    Target(
        "a node that leads 8 shards, 50 connections, one in flight: CPU a command, beside one that leads 1",
        *("shards", "×", 1.1, 1.05, False, _sharded(1)),
    ),
    Target("a node that leads 8 shards, 100 in flight on each", *("shards", "×", 1.1, 1.05, False, _sharded(100))),
    Target(
        "policies of other tubes, 50 connections, one in flight: CPU a command, beside none",
        *("policies", "×", 1.02, 1.01, False, _beside_policies),
    ),
    Target(
        "a million jobs expire, or run out of time: what another client waits for an answer at the most",
        *("policies", "ms", 5, None, False, _lapsed),
    ),
    Target(
        "metrics, scraped each second, 50 connections, one in flight: CPU a command, beside none",
        *("metrics", "×", 1.02, 1.01, False, _beside_scrapes),
    ),
    Target(
        "100,000 tubes, scraped again and again: what another client waits for an answer at the most",
        *("metrics", "ms", 5, None, False, _waited_for_scrapes),
    ),
    Target(
        "1,000 clients with certificates come back: longest stretch the event loop is held, its own CPU time",
        *("arrivals", "ms", 5, 2, False, _of_arrivals("held_cpu")),
    ),
    Target(
        "a million clients with wrong tokens: memory that they leave",
        *("arrivals", "MB", 1, None, False, _of_arrivals("grown", 1e-6)),
    ),
]
