"""The histogram of durations, beside one that looks at every bound."""

import math
from bisect import bisect_right
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.histogram import CLASSES, PERCENTILES, Histogram, RecentHistogram, shortest
from beanstalk_server.queue.units import SECOND


def naive_counts(found):
    """How many durations are at least as long as the shortest of each class, and shorter than that of the next."""
    steps = [(16 + step) << shift for shift in range(1, 43) for step in range(16)]
    bounds = [*[1000 * each for each in (*range(32), *steps)][:CLASSES], float("inf")]
    tally = Counter(bisect_right(bounds, max(duration, 0)) - 1 for duration in found)
    return [tally[number] for number in range(len(bounds) - 1)]


moments = st.one_of(st.integers(-10, 5000), st.integers(0, 60 * SECOND), st.integers(0, 200 * 365 * 86400 * SECOND))


def counted(found):
    histogram = Histogram()
    for duration in found:
        histogram.add(duration)
    histogram.check()
    return histogram


@given(st.lists(moments))
def test_a_histogram_counts_durations_by_sixteenths_of_powers_of_two_of_a_microsecond(found):
    histogram = counted(found)
    assert histogram.counts == naive_counts(found)
    assert histogram.count == len(found)
    assert histogram.total == sum(max(duration, 0) for duration in found)


@given(st.lists(moments), st.lists(moments))
def test_histograms_of_two_places_add_up(here, there):
    histogram = counted(here)
    histogram.include(counted(there))
    histogram.check()
    both = counted(here + there)
    assert (histogram.counts, histogram.total) == (both.counts, both.total)


def test_a_duration_below_0_counts_as_0():
    histogram = counted([-SECOND])
    assert (histogram.counts[0], histogram.total) == (1, 0)


@pytest.mark.parametrize("index", range(CLASSES - 1))
def test_a_class_ends_where_the_next_begins(index):
    histogram = counted([shortest(index + 1) - 1, shortest(index + 1)])
    assert histogram.counts[index] == histogram.counts[index + 1] == 1


@pytest.mark.parametrize("total", [0, 2 * 1024_000])
def test_a_total_that_does_not_go_with_the_counts_is_found(total):
    histogram = counted([600_000])  # of the class from 592 to 608 microseconds
    histogram.total = total
    with pytest.raises(AssertionError, match="the total of a histogram is"):
        histogram.check()


@given(st.lists(moments), st.integers(4, 46))
def test_durations_below_a_power_of_two_are_counted(found, power):
    assert counted(found).below(power) == sum(each < 1000 << power for each in found)


@given(st.lists(st.integers(0, 60 * SECOND), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_never_too_short_and_a_sixteenth_too_long_at_most(found, share):
    true = sorted(found)[math.ceil(share * len(found)) - 1]
    assert true <= counted(found).percentile(share) <= true * 17 / 16 + 1000


def test_without_a_duration_a_percentile_is_0():
    assert Histogram().percentile(0.5) == 0


def test_old_durations_fade():
    histogram = RecentHistogram()
    for _ in range(RecentHistogram.MOST - 1):
        histogram.add(SECOND)
    for _ in range(2 * RecentHistogram.MOST):
        histogram.add(1000)
    histogram.check()
    assert histogram.percentile(0.7) < 10_000


@given(st.lists(st.integers(100_000, 10**15), min_size=1, max_size=300))
def test_percentiles_are_within_five_in_a_hundred(found):
    histogram = Histogram()
    for duration in found:
        histogram.add(duration)
    ordered = sorted(found)
    for share, said in zip(PERCENTILES, histogram.percentiles(PERCENTILES), strict=True):
        assert said == pytest.approx(ordered[math.ceil(share * len(ordered)) - 1], rel=0.05)
    assert Histogram().percentiles(PERCENTILES) == [0, 0, 0]
