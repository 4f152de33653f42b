"""Percentiles of durations are right to an eighth, and are those of the latest ones."""

import random

import pytest

from beanstalk_server.cluster.latency import MOST, Latency


def test_without_a_duration_a_percentile_is_0():
    assert Latency().percentile(0.5) == 0


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 1.0])
def test_a_percentile_is_never_too_short_and_an_eighth_too_long_at_most(share):
    rng = random.Random(3)
    for scale in (10, 1000, 10**6, 10**9):
        latency = Latency()
        durations = sorted(rng.randrange(scale) for _ in range(1000))
        for duration in durations:
            latency.add((duration + 0.5) / 1e6)
        true = durations[int(share * 1000) - 1]
        assert true <= latency.percentile(share) <= true * 9 / 8 + 1


def test_old_durations_fade():
    latency = Latency()
    for _ in range(MOST - 1):
        latency.add(1.0)
    for _ in range(MOST * 2):
        latency.add(1e-6)
    assert latency.percentile(0.7) < 10


def test_what_takes_for_ever_is_counted():
    latency = Latency()
    latency.add(1e12)
    assert latency.percentile(0.5) > 3600 * 10**6
