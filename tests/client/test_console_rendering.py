"""How values become text and charts."""

import pytest
from beanstalk_client.console.charts import chart, compact, nice, recent, sparkline
from beanstalk_client.console.rendering import age, harmless, line, long, make_environment, rate, signed, size
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
        (age, 61, "1m 1s"),
        (age, 90_000, "1d 1h"),
        (age, None, "\u2013"),
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
