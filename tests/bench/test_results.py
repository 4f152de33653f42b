"""Samples, percentiles, ratios and spreads are computed correctly."""

import pytest

from bench.results import Point, Results, percentiles, spread


def point(measure, *values):
    return Point("", "", "", 0, [{measure: value} for value in values])


def test_percentiles_are_values_that_were_measured():
    assert percentiles([3_000_000] * 990 + [7_000_000] * 9 + [20_000_000], 1_000_000) == {
        "p50": 3.0,
        "p99": 7.0,
        "p999": 20.0,
        "most": 20.0,
    }
    assert percentiles([5], 1) == {"p50": 5, "p99": 5, "p999": 5, "most": 5}
    assert percentiles([], 1) == {}


def test_a_spread_has_the_median_and_both_ends():
    assert spread([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


def test_a_ratio_is_taken_pair_by_pair_and_a_run_that_was_cut_short_has_half_a_pair_less():
    assert point("rate", 10.0, 40.0, 6.0).ratio(point("rate", 5.0, 10.0, 6.0), "rate") == (2.0, 1.0, 4.0)
    assert point("rate", 10.0).ratio(point("rate", 5.0, 1.0), "rate") == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("server", "generator", "limited"), [(0.9, 0.8, False), (0.7, 0.9, True), (0.2, 0.5, False), (0.99, 1.0, True)]
)
def test_a_rate_is_marked_if_the_generator_was_the_limit(server, generator, limited):
    sample = {"server_busy": server, "generator_busy": generator}
    assert Point("", "", "", 0, [sample]).limited_by_generator() is limited


def test_results_are_read_back_as_they_were_written(tmp_path):
    results = Results({"commit": "abc"}, missing={"redis": "not installed"})
    results.add("in-flight", "ours", "", 100, [{"rate": 1.5}])
    results.add("in-flight", "ours", "", 100, [{"rate": 2.5}])
    results.add("in-flight", "beanstalkd", "", 100, [{"rate": 1.0}, {"rate": 1.0}])
    results.write(tmp_path / "run" / "results.json")
    read = Results.read(tmp_path / "run" / "results.json")
    assert read == results
    assert read.find("in-flight", "ours", "", 100).values("rate") == [1.5, 2.5]
    assert read.find("in-flight", "ours", "", 1) is None
    assert [point.server for point in read.select("in-flight", size=100)] == ["ours", "beanstalkd"]


def test_a_file_of_another_format_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match="not a results file of this benchmark"):
        Results.read(tmp_path / "x.json")
