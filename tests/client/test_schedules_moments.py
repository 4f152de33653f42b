"""When schedules fire, beside a clock that is looked at each minute."""

import datetime
from zoneinfo import ZoneInfo

import pytest
from beanstalk_client.schedules.moments import Cron, Every, between, last
from cronsim import CronSim
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

MINUTE = 60
DAY = 86400

CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-04-05", "2026-10-04"),  # by half an hour
    "America/Havana": ("2026-03-08", "2026-11-01"),  # at midnight
    "Asia/Beirut": ("2022-03-27", "2022-10-29"),  # at midnight
    "Pacific/Apia": ("2011-12-30", "2012-04-01"),  # by a whole day
    "Asia/Kathmandu": ("2026-05-05", "2026-05-05"),  # never, and not by whole hours from UTC
}
"""Zones, and the days on which their clocks are set forward and back."""


def clock(expression, tz, begin, end):
    """All moments of an expression, found by looking at the zone's clock each minute.

    One that names its hour fires when the clock shows or passes its time, for the first time; any other whenever the
    clock shows it.
    """
    fields = CronSim(expression, datetime.datetime(2026, 1, 1))
    names_its_hour = not any(field.startswith("*") for field in expression.split()[:2])

    def fits(wall):
        return (
            wall.minute in fields.minutes
            and wall.hour in fields.hours
            and wall.month in fields.months
            and fields.match_day(wall.date())
        )

    def shown(moment):
        return datetime.datetime.fromtimestamp(moment, ZoneInfo(tz)).replace(tzinfo=None, fold=0)

    latest_shown = shown(begin)
    for moment in range(begin + MINUTE, end + 1, MINUTE):
        wall = shown(moment)
        passed = []
        while latest_shown < wall:
            latest_shown += datetime.timedelta(minutes=1)
            passed.append(latest_shown)
        if any(map(fits, passed)) if names_its_hour else fits(wall):
            yield moment


def unix(text):
    return round(datetime.datetime.fromisoformat(text).timestamp())


@st.composite
def days_of_change(draw):
    """A zone, and two days around one on which its clock is set."""
    tz = draw(st.sampled_from(list(CHANGES)))
    noon = unix(draw(st.sampled_from(CHANGES[tz])) + "T12:00+00:00")
    return tz, noon - 2 * DAY, noon + DAY


minutes = st.sampled_from(["*", "*/15", "*/7", "0", "30", "59", "0,30", "5-10", "10-50/20"])
hours = st.sampled_from(["*", "*/2", "*/5", "0", "1", "2", "3", "2,3", "0-4", "23"])
days = st.sampled_from(["* * *", "* * sun", "* * mon,sat", "29 * *", "1-7 * 6", "L * *", "* * sun#1"])


@settings(max_examples=examples(40))
@given(minutes, hours, days, days_of_change(), st.lists(st.floats(0, 1), max_size=4))
@example("*/7", "1", "* * sun", ("Asia/Beirut", unix("2022-03-25T12:00+00:00"), unix("2022-03-28T12:00+00:00")), [])
@example(
    "*/7", "23", "* * *", ("Australia/Lord_Howe", unix("2026-10-02T12:00+00:00"), unix("2026-10-05T12:00+00:00")), []
)
def test_a_schedule_fires_as_a_clock_shows_its_times_where_clocks_are_set(minute, hour, day, when, starts):
    tz, begin, end = when
    expression = f"{minute} {hour} {day}"
    fires = list(clock(expression, tz, begin - DAY, end))
    cron = Cron(expression, tz)
    assert list(between(cron, begin, end)) == [moment for moment in fires if moment > begin]
    for share in starts:  # whenever somebody asks
        start = round(begin + share * (end - begin))
        assert next(between(cron, start, end), None) == next((moment for moment in fires if moment > start), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "tz"),
    [
        ("30 2 * * *", "Europe/Berlin"),
        ("*/20 * * * *", "America/New_York"),
        ("0 0 29 2 *", "UTC"),
        ("15 1-3 L * *", "Australia/Lord_Howe"),
        ("0 8 * * mon#1", "Asia/Beirut"),
    ],
)
def test_a_schedule_fires_as_a_clock_shows_its_times_for_years(expression, tz):
    begin, end = unix("2022-12-31T00:00+00:00"), unix("2025-01-02T00:00+00:00")  # with a leap day
    assert list(between(Cron(expression, tz), begin, end)) == list(clock(expression, tz, begin, end))


@pytest.mark.parametrize(
    ("expression", "after", "fires"),
    [
        ("30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),  # a gap
        ("30 2 * * *", "2026-10-24T12:00+02:00", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),  # twice
        ("0 2,3 * * *", "2026-03-29T00:00+01:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]),
        ("*/30 2 * * *", "2026-03-29T00:00+01:00", ["2026-03-30T02:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("0 * * * *", "2026-10-25T01:30+02:00", ["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"]),
        ("0 12 29 2 *", "2026-01-01T00:00+01:00", ["2028-02-29T12:00:00+01:00", "2032-02-29T12:00:00+01:00"]),
    ],
)
def test_what_the_documents_say_of_half_past_two(expression, after, fires):
    cron = Cron(expression, "Europe/Berlin")
    first = cron.after(unix(after))
    assert [cron.spelled(first), cron.spelled(cron.after(first))] == fires


@pytest.mark.parametrize(
    ("expression", "tz", "complaint"),
    [
        ("0 8 * *", "UTC", "five fields"),
        ("0 0 8 * * *", "UTC", "five fields"),
        ("61 8 * * *", "UTC", "minute"),
        ("0 0 31 2 *", "UTC", "day-of-month"),
        ("0 0 30 2 *", "UTC", "day-of-month"),
        ("0 8 * * *", "Europe/Atlantis", "Europe/Atlantis"),
        ("0 8 * * *", "/etc/passwd", "/etc/passwd"),
    ],
)
def test_what_never_fires_is_no_schedule(expression, tz, complaint):
    with pytest.raises(ValueError, match=complaint):
        Cron(expression, tz)


def test_an_interval_has_the_same_moments_whenever_a_scheduler_is_started():
    every = Every(datetime.timedelta(minutes=5))
    for start in (unix("2027-01-01T10:00:01+00:00"), unix("2027-01-01T10:04:59+00:00")):
        assert every.spelled(every.after(start)) == "2027-01-01T10:05:00+00:00"
    assert every.after(every.after(start)) == every.after(start) + 300
    assert Every("5m").text() == Every(300).text() == every.text()


@pytest.mark.parametrize("seconds", [0, -1, 0.5, 1.5])
def test_an_interval_has_whole_seconds(seconds):
    with pytest.raises(ValueError, match="whole seconds"):
        Every(datetime.timedelta(seconds=seconds))


@given(st.integers(0, 3 * DAY), st.integers(0, 3 * DAY))
def test_the_last_moment_of_a_time_is_the_last_of_all(begin, length):
    cron = Cron("*/40 */5 * * *", "Europe/Berlin")
    begin += unix("2026-03-28T00:00+00:00")
    assert last(cron, begin, begin + length) == max(between(cron, begin, begin + length), default=None)
