"""Two samples of the figures of a server and its tubes, and what they say together."""

import pytest
from beanstalk_client.observe.samples import (
    COMMANDS,
    CPU,
    SHORTEST,
    TUBE_FIGURES,
    Samples,
    number,
)
from hypothesis import given
from hypothesis import strategies as st


def tube(puts=0, deletes=0, ready=0, **more):
    figures = dict.fromkeys(TUBE_FIGURES.values(), "0")
    figures |= {"total-jobs": str(puts), "cmd-delete": str(deletes), "current-jobs-ready": str(ready)}
    return figures | {key.replace("_", "-"): str(value) for key, value in more.items()}


def server(uptime=100, instance="a", **figures):
    return {"id": instance, "uptime": str(uptime)} | {key.replace("_", "-"): str(v) for key, v in figures.items()}


def sampled(*of):
    samples = Samples()
    for moment, figures in of:
        samples.take_tube(moment, "mail", figures)
    return samples.tubes["mail"]


def test_two_samples_make_rates():
    row = sampled((10.0, tube(puts=100, deletes=50, ready=7)), (12.0, tube(puts=130, deletes=54, ready=33)))
    assert (row.puts, row.deletes, row.growth, row.ready) == (15.0, 2.0, 13.0, 33)


def test_one_sample_makes_none():
    row = sampled((10.0, tube(puts=100)))
    assert (row.puts, row.deletes, row.growth) == (None, None, None)


def test_a_row_says_how_old_it_is():
    samples = Samples()
    samples.take_tube(10.0, "mail", tube())
    assert samples.tubes["mail"].age(73.5) == 63.5
    assert samples.oldest("", 73.5) == 63.5
    assert samples.oldest("m", 73.5) == 63.5
    assert samples.oldest("n", 73.5) == 0.0


def test_a_counter_that_goes_back_makes_no_rate():
    row = sampled((1.0, tube(100, 50, 5)), (2.0, tube(200, 60, 5)), (3.0, tube(10, 70, 6)))
    assert (row.puts, row.deletes, row.growth) == (None, None, None)
    row = sampled((1.0, tube(100)), (2.0, tube(10)), (3.0, tube(15)))
    assert row.puts == 5.0


def test_a_sample_that_comes_at_once_changes_figures_and_no_rates():
    row = sampled((1.0, tube(100)), (2.0, tube(200)), (2.0 + SHORTEST / 2, tube(201, ready=9)))
    assert (row.puts, row.ready, row.age(2.0 + SHORTEST / 2)) == (100.0, 9, 0.0)
    row = sampled((1.0, tube(100)), (2.0, tube(200)), (2.0, tube(300)), (3.0, tube(300)))
    assert row.puts == 100.0


def test_a_missing_key_is_not_known():
    bare = {"name": "mail", "current-jobs-ready": "3"}
    row = sampled((1.0, bare), (2.0, bare))
    assert (row.ready, row.buried, row.puts, row.pause_left) == (3, None, None, None)
    row = sampled((1.0, tube(5)), (2.0, bare), (3.0, tube(10)), (4.0, tube(11)))
    assert row.puts == 1.0


@pytest.mark.parametrize("value", ["", "x", "nan", "inf", "9" * 30, "9" * 5000, "-" * 3])
def test_what_is_no_number_is_not_known(value):
    assert number({"key": value}, "key") is None
    samples = Samples()
    for moment in (1.0, 2.0):
        samples.take_server(moment, server(rusage_utime=value, cmd_put=value, total_jobs=value))
        samples.take_tube(moment, "mail", tube(puts=value, ready=value))
    assert "puts" not in samples.rates
    assert samples.tubes["mail"].ready is None


def test_the_rates_of_the_server():
    samples = Samples()
    samples.take_server(1.0, server(rusage_utime="1.5", rusage_stime="0.5", cmd_put=10, cmd_reserve=1, total_jobs=10))
    samples.take_server(
        3.0, server(rusage_utime="2.0", rusage_stime="0.75", cmd_put=30, cmd_reserve=5, cmd_delete=6, total_jobs=31)
    )
    rates = samples.rates
    assert rates["puts"] == 10.5
    assert rates["reserves"] == 2.0
    assert rates[COMMANDS] == 12.0
    assert rates[CPU] == 0.375
    assert "deletes" not in rates
    assert samples.age(4.0) == 1.0


@pytest.mark.parametrize("after", [server(101, "b"), server(3)])
def test_after_a_restart_nothing_is_known_of_before(after):
    samples = Samples()
    samples.take_server(1.0, server(99, total_jobs=5))
    samples.take_server(2.0, server(100, total_jobs=6))
    samples.take_tube(2.0, "mail", tube(100))
    samples.take_server(3.0, after | {"total-jobs": "1000"})
    assert samples.tubes == {}
    assert samples.rates == {}
    samples.take_server(4.0, after | {"uptime": "200", "total-jobs": "1010"})
    assert samples.rates["puts"] == 10.0


def test_a_tube_that_was_not_seen_in_a_round_is_gone():
    samples = Samples()
    for name in ("mail-1", "mail-2", "bill"):
        samples.take_tube(1.0, name, tube())
    samples.end_round("")
    samples.take_tube(2.0, "mail-2", tube())
    samples.end_round("mail")
    assert set(samples.tubes) == {"mail-2", "bill"}


def test_the_age_of_the_next_job_goes_with_the_ready_jobs():
    samples = Samples()
    samples.take_tube(1.0, "mail", tube(ready=1))
    samples.tubes["mail"].next_age = 17
    samples.take_tube(2.0, "mail", tube(ready=0))
    assert samples.tubes["mail"].next_age is None


readings = st.lists(
    st.tuples(st.floats(0, 10), st.one_of(st.none(), st.integers(0, 50)), st.one_of(st.none(), st.integers(0, 50))),
    min_size=1,
    max_size=12,
)


@given(readings)
def test_rates_are_those_between_the_last_two_samples_that_were_far_enough_apart(of):
    samples = Samples()
    now, base = 0.0, None
    expected = None
    for step, puts, deletes in of:
        now += step
        figures = tube(puts=puts if puts is not None else "?", deletes=deletes if deletes is not None else "?")
        samples.take_tube(now, "mail", figures)
        if base is None:
            base = (now, puts, deletes)
        elif now - base[0] >= SHORTEST:
            went_back = any(b is not None and a is not None and a < b for b, a in ((base[1], puts), (base[2], deletes)))
            known = None not in (base[1], puts)
            expected = (puts - base[1]) / (now - base[0]) if known and not went_back else None
            base = (now, puts, deletes)
        row = samples.tubes["mail"]
        assert row.puts == expected
        assert row.puts is None or row.puts >= 0
        assert (row.age(now), row.total) == (0.0, puts)
