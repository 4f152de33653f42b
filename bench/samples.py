"""What is measured, as numbers: samples, their percentiles, their spread, and the ratio of two servers pair by pair.

A sample is what one server did in one measurement, by name: CPU times in microseconds a command, latencies in
milliseconds, memory in bytes. Knows no server and no file.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

Sample = dict[str, float]

PERCENTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "most": 1.0}


def percentiles(values: Sequence[float], unit: float) -> Sample:
    """The percentiles of values, each divided by the unit; empty without values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {name: ordered[min(int(len(ordered) * part), last)] / unit for name, part in PERCENTILES.items() if ordered}


class Spread(NamedTuple):
    """The median of several measurements, with the smallest and the largest."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """The spread of several measurements of the same thing."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(samples: Sequence[Sample], others: Sequence[Sample], measure: str) -> Spread:
    """The ratio of one server's measurements to another's, pair by pair, as they were taken in turn."""
    pairs = zip(samples, others, strict=False)  # a run that was cut short has half a pair at its end
    return spread([sample[measure] / other[measure] for sample, other in pairs if other[measure]])


def generator_was_busier(samples: Sequence[Sample]) -> bool:
    """Whether a throughput shows the limit of the generator, not of the server.

    Where both had time to spare, as with a disk that both wait for, it does not.
    """
    busy = [(sample["generator_busy"], sample["server_busy"]) for sample in samples if "generator_busy" in sample]
    if not busy:
        return False
    generator = statistics.median(first for first, _ in busy)
    return generator > max(0.6, statistics.median(second for _, second in busy))
