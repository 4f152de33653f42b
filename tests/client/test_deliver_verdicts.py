"""What becomes of a job after an attempt, and when it is tried again."""

from datetime import UTC, datetime, timedelta

import pytest
from beanstalk_client.deliver.verdicts import BURY, RETRY, Rules, is_delivered, judge, read_retry_after
from hypothesis import given
from hypothesis import strategies as some

NOW = datetime(2027, 3, 5, 12, 0, 0, tzinfo=UTC)
RULES = Rules(tries=5, backoff=10, backoff_max=60, retry_after_max=3600)


def fate(status=0, tries=1, retry_after=None, chance=0.5, rules=RULES):
    verdict = judge(rules, tries, chance, status=status, reason="why", retry_after=retry_after)
    assert verdict.reason.startswith("why")
    return verdict.fate, verdict.delay


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_success(status):
    assert is_delivered(status)


@pytest.mark.parametrize(
    "status", [101, 300, 301, 304, 400, 401, 403, 404, 408, 413, 418, 429, 500, 502, 503, 504, 999, 0]
)
def test_all_else_is_tried_again(status):
    assert not is_delivered(status)
    assert fate(status) == (RETRY, 10)


@pytest.mark.parametrize("tries", [1, 5, 100])
def test_gone_is_gone(tries):
    assert fate(410, tries) == (BURY, 0)


def test_the_last_try_is_the_last():
    assert [fate(500, tries)[0] for tries in range(1, 8)] == [RETRY] * 4 + [BURY] * 3
    assert judge(RULES, 5, 0, status=500, reason="status 500").reason == "status 500 (try 5 of 5)"
    assert fate(500, 10**9, rules=Rules(tries=0, backoff=1, backoff_max=60)) == (RETRY, 60)


def test_backoff_doubles_up_to_its_longest():
    assert [fate(500, tries)[1] for tries in range(1, 5)] == [10, 20, 40, 60]


@given(some.integers(1, 10**6), some.floats(0, 1))
def test_backoff_is_drawn_around_its_length(tries, chance):
    rules = Rules(backoff=10, backoff_max=1e9)
    length = 10 * 2.0 ** min(tries - 1, 62)
    assert min(1e9, 0.75 * length) <= rules.delay(tries, None, chance) <= min(1e9, 1.25 * length)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("asked", "least"), [(0, 10), (1, 10), (30, 30), (3600, 3600), (1e18, 3600)])
def test_retry_after_is_obeyed_within_its_bound(status, asked, least):
    for chance in (0, 0.5, 1):
        verdict, delay = fate(status, 4, asked, chance)
        assert verdict == RETRY and least <= delay <= min(least * 1.1, 3600)


def test_a_bound_holds_with_the_random_part():
    rules = Rules(backoff=5, backoff_max=5, retry_after_max=10)
    for chance in (0, 0.5, 1):
        assert rules.delay(1, 3600, chance) == 10
        assert rules.delay(1, 0, chance) <= 5
        assert rules.delay(9, None, chance) <= 5


def test_retry_after_counts_as_a_try_and_only_with_its_two_statuses():
    assert fate(429, 5, 30) == (BURY, 0)
    assert fate(500, 1, 30) == (RETRY, 10)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 120 ", 120),
        ("0", 0),
        ("9" * 18, 1e18),
        ("9" * 10_000, 1e18),
        ("Fri, 05 Mar 2027 12:01:00 GMT", 60),
        ("Friday, 05-Mar-27 12:01:00 GMT", 60),
        ("Fri Mar  5 12:01:00 2027", 60),
        ("Fri, 05 Mar 2027 11:00:00 GMT", 0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("+5", None),
        ("0x10", None),
        ("soon", None),
        ("١٢٠", None),
        ("Fri, 99 Mar 2027 12:00:00 GMT", None),
        ("Fri, 05 Mar 99999999999 12:00:00 GMT", None),
        ("Fri, " * 1000, None),
        ("\x00", None),
    ],
)
def test_what_retry_after_says(value, seconds):
    found = read_retry_after(value, NOW.timestamp())
    assert found == (None if seconds is None else pytest.approx(seconds))


@given(some.text(max_size=80))
def test_whatever_it_says_it_is_read_or_not(value):
    found = read_retry_after(value, NOW.timestamp())
    assert found is None or 0 <= found <= 1e18


@given(some.timedeltas(timedelta(0), timedelta(days=5000)))
def test_a_date_is_as_far_away_as_it_is(away):
    value = (NOW + away).strftime("%a, %d %b %Y %H:%M:%S GMT")
    assert read_retry_after(value, NOW.timestamp()) == int(away.total_seconds())
