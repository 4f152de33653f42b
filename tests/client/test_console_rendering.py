"""How values become text and charts."""

import datetime
import re
import time

import pytest
from beanstalk_client.console.app import STATIC
from beanstalk_client.console.charts import chart, compact, nice, recent, sparkline
from beanstalk_client.console.rendering import (
    TEMPLATES,
    age,
    due,
    harmless,
    line,
    long,
    make_environment,
    moment,
    pause,
    rate,
    signed,
    size,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (compact, 950, "950"),
        (compact, 12_345, "12.3k"),
        (compact, 4_500_000, "4.5M"),
        (compact, None, "\u2013"),
        (rate, 0.01, "0"),
        (rate, 9.96, "10.0"),
        (signed, -3, "\u22123"),
        (size, 999, "999 B"),
        (size, 10**10, "10.0 GB"),
        (age, 0, "0s"),
        (age, 59, "59s"),
        (age, 60, "1m 0s"),
        (age, 61, "1m 1s"),
        (age, 3600, "1h 0m"),
        (age, 4 * 3600 + 39, "4h 0m"),
        (age, 86400 + 59, "1d 0h"),
        (age, 90_000, "1d 1h"),
        (age, 30 * 86400 + 7200, "30d 2h"),
        (age, None, "\u2013"),
        (pause, 599, "for 9m 59s more"),
        (pause, 100 * 365 * 86400, "for 36500d 0h more"),
        (pause, 2**32 - 1, "until resumed"),
        (long, 0.000064, "64 µs"),
        (long, 0.262144, "262 ms"),
        (long, 2.5, "2.5 s"),
    ],
)
def test_figures_are_short(function, value, text):
    assert function(value) == text


@given(st.floats(0, 1e15))
def test_a_compact_number_has_six_characters_at_most(value):
    assert len(compact(value)) <= 6


def test_help_lists_every_key():
    shown = re.findall("<kbd>(.+?)</kbd>", (TEMPLATES / "base.html").read_text().partition('id="help"')[2])
    table = (STATIC / "console.js").read_text().partition("const keys = {")[2].partition("};")[0]
    pages = re.findall(r'"[a-z]*", "\w+", "\w+", "(\w)"', (TEMPLATES / "base.html").read_text())
    keys = [quoted or bare for quoted, bare in re.findall(r'^    (?:"(.)"|(\w)): \(\) =>', table, re.MULTILINE)]
    assert len(keys) == 10 and len(pages) == 7
    assert sorted(shown) == sorted([*keys, "Enter", "Esc", "g", *pages])


def test_the_theme_is_set_before_a_page_is_painted():
    head = (TEMPLATES / "base.html").read_text().partition("</head>")[0]
    assert '<script src="{{ base }}/static/choices.js"></script>' in head.partition("<link")[0]


@given(st.text())
def test_text_from_outside_is_printable_and_escaped(text):
    assert harmless(text).isprintable() and line(text).isprintable()
    shown = make_environment().from_string('<a title="{{ text }}">{{ text }}</a>').render(text=text)
    assert shown.count("<") == 2 and shown.count('"') == 2


VALUES = st.lists(st.none() | st.floats(0, 1e12), max_size=40)


@given(VALUES, st.text(max_size=5))
def test_charts_are_markup_of_numbers(values, label):
    shown = chart(label, [(label, values), ("b", values)]) + sparkline(values, label)
    assert "nan" not in shown and "style=" not in shown and "<script" not in shown


@given(st.floats(0, 1e15))
def test_the_top_of_a_chart_is_not_below_its_values(value):
    assert nice(value) >= min(value, nice(value) * 1.0000001)


def test_a_chart_begins_when_something_is_known_but_shows_some_minutes():
    assert len(recent([None] * 350 + [1.0] * 10)[0]) == 30
    assert len(recent([None] * 100 + [1.0] * 260)[0]) == 260
    assert recent([], []) == [[], []]


@pytest.mark.parametrize(
    ("when", "text"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (datetime.datetime(2026, 11, 28, 1, 40, tzinfo=datetime.UTC), "2026-11-28 01:40:00 UTC"),
        ("2026-11-28T02:40:00+01:00", "2026-11-28 01:40:00 UTC"),
        ("2026-11-28T01:40:00Z", "2026-11-28 01:40:00 UTC"),
        ("2026-11-28T01:40:00", "2026-11-28T01:40:00 (zone unknown)"),
        ("0001-01-01T00:00:00+05:00", "0001-01-01T00:00:00+05:00"),
        ("yesterday", "yesterday"),
        ("", "\u2013"),
        (None, "\u2013"),
    ],
)
def test_a_moment_has_its_zone(when, text):
    assert moment(when) == text


def test_only_a_delayed_or_a_reserved_job_is_due_at_a_moment():
    for state in ("delayed", "reserved"):
        shown = datetime.datetime.strptime(due({"state": state, "time-left": 3600}), "%Y-%m-%d %H:%M:%S UTC")
        left = shown.replace(tzinfo=datetime.UTC).timestamp() - time.time()
        assert 3500 < left <= 3600
    assert due({"state": "ready", "time-left": 0}) == due({"state": "delayed", "time-left": 0}) == ""
