"""The histogram of durations, beside one that looks at every bound."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.histogram import CLASSES, Histogram, shortest
from beanstalk_server.queue.units import SECOND


def naive_counts(found):
    """How many durations are at least as long as the shortest of each class, and shorter than that of the next."""
    bounds = [0] + [1000 * 2**power for power in range(CLASSES - 1)] + [float("inf")]
    return [sum(least <= max(duration, 0) < bound for duration in found) for least, bound in pairwise(bounds)]


moments = st.one_of(st.integers(-10, 5000), st.integers(0, 60 * SECOND), st.integers(0, 200 * 365 * 86400 * SECOND))


def counted(found):
    histogram = Histogram()
    for duration in found:
        histogram.add(duration)
    histogram.check()
    return histogram


@given(st.lists(moments))
def test_a_histogram_counts_durations_by_powers_of_two_of_a_microsecond(found):
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
    histogram = counted([600_000])  # of the class from 512 to 1024 microseconds
    histogram.total = total
    with pytest.raises(AssertionError, match="the total of a histogram is"):
        histogram.check()
