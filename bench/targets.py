"""The figures to reach: the first and the final target of each, and how to find the figure in a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.results import Point, Results
from bench.samples import Spread, ratio


@dataclass(frozen=True)
class Target:
    """One figure to reach.

    Args:
        unit: of the figure; × for a ratio.
        more: whether more is better.
        found: finds the figure in a run, if it was measured.
    """

    work: str
    scenario: str
    unit: str
    first: float
    then: float
    more: bool
    found: Callable[[Results], Spread | None]

    def reached(self, figure: Spread, wanted: float) -> bool:
        """Whether the median is as good as wanted."""
        return figure.median >= wanted if self.more else figure.median <= wanted


def _ratio(results: Results, point: Point | None, other: Point | None, measure: str) -> Spread | None:
    return results.ratio(point, other, measure) if point and other else None


def _cpu(scenario: str, size: int) -> Callable[[Results], Spread | None]:
    """The ratio to beanstalkd of commands for each second of CPU time."""

    def found(results: Results) -> Spread | None:
        return _ratio(
            results, results.find(scenario, "beanstalkd", "", size), results.find(scenario, "ours", "", size), "cpu"
        )

    return found


def _largest(results: Results, scenario: str, server: str, work: str = "") -> Point | None:
    points = results.select(scenario, server=server, work=work)
    return max(points, key=lambda point: point.size, default=None)


def _synced(depth: int) -> Callable[[Results], Spread | None]:
    """The ratio to beanstalkd of commands a second when each acknowledgement is synced."""

    def found(results: Results) -> Spread | None:
        ours, theirs = (results.find("binlog", f"{server} -f0", "", depth) for server in ("ours", "beanstalkd"))
        return _ratio(results, ours, theirs, "rate")

    return found


def _crowded(results: Results) -> Spread | None:
    return _ratio(results, results.find("other-tubes", "ours", "", 1), _largest(results, "other-tubes", "ours"), "cpu")


def _memory(results: Results) -> Spread | None:
    point = _largest(results, "delayed", "ours", "put")
    return point.spread("bytes_per_job") if point else None


def _start(results: Results) -> Spread | None:
    return _ratio(results, _largest(results, "start", "ours"), _largest(results, "start", "beanstalkd"), "seconds")


def _launch(results: Results) -> Spread | None:
    point = results.find("launch", "ours", "", 0)
    return point.spread("to_first_answer") if point else None


def _late(results: Results) -> Spread | None:
    point = results.find("timers", "ours", "", 100_000)
    return point.spread("p99") if point else None


def _held(results: Results) -> Spread | None:
    """The most CPU time of one stall, the worst over all loads: the machine's own stalls are not the server's."""
    worst = [max(sample["cpu"] for sample in point.samples) for point in results.select("stalls")]
    return Spread(max(worst), min(worst), max(worst)) if worst else None


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


TARGETS = [
    Target(
        "put + reserve + delete, 50 connections, one in flight: commands a CPU second, beside beanstalkd",
        *("request-response", "×", 0.75, 1.1, True, _cpu("request-response", 50)),
    ),
    Target("the same, 100 in flight on each", "in-flight", "×", 2.5, 5, True, _cpu("in-flight", 100)),
    Target(
        "as the first, every acknowledgement synced: commands a second, beside beanstalkd -f0",
        *("binlog", "×", 4, 10, True, _synced(1)),
    ),
    Target("as the second, every acknowledgement synced", "binlog", "×", 4, 10, True, _synced(100)),
    Target(
        "as the first, beside 100,000 other tubes: commands a CPU second, beside the same with one",
        *("other-tubes", "×", 0.9, 0.95, True, _crowded),
    ),
    Target("memory for each of a million delayed jobs of 100 bytes", "delayed", "bytes", 600, 299, False, _memory),
    Target(
        "start on a binlog with a million live jobs: time, beside beanstalkd", "start", "×", 1.5, 0.7, False, _start
    ),
    Target("start without a binlog, to the first answer", "launch", "ms", 80, 60, False, _launch),
    Target("lateness of 100,000 timers within 10 s, 99th percentile", "timers", "ms", 20, 10, False, _late),
    Target("longest stretch the event loop is held, its own CPU time, worst load", "stalls", "ms", 20, 5, False, _held),
    Target(
        "worst answer beside a hostile client, worst attack: of 20 ms, or of twice beanstalkd's where that is more",
        *("hostile", "×", 1, 0.5, False, _waited),
    ),
]
