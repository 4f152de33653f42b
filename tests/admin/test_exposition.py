"""The two formats: which of them is chosen, and what others make of them."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
from prometheus_client.parser import text_string_to_metric_families as read_text

from beanstalk_server.admin.exposition import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    INFO,
    OPEN_METRICS,
    TEXT,
    Family,
    choose,
    escaped,
    histogram,
    sample,
)

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/html, */*;q=0.8", TEXT),
        ("application/json", TEXT),
        ("text/plain", TEXT),
        ("application/openmetrics-text", OPEN_METRICS),
        ("Application/OpenMetrics-Text; Version=1.0.0", OPEN_METRICS),
        ('application/openmetrics-text; version="1.0.0"', OPEN_METRICS),
        ("application/openmetrics-text; version=2.0.0", TEXT),
        ("application/openmetrics-text; version=2.0.0, application/*", OPEN_METRICS),
        ("application/openmetrics-text;q=0.3, text/plain;q=0.5", TEXT),
        ("application/openmetrics-text;q=0.5, text/plain;q=0.3", OPEN_METRICS),
        ("application/openmetrics-text;q=0, */*", TEXT),
        ("application/openmetrics-text;q=x, text/plain;q=0.1", TEXT),
        ("text/plain;q=0, application/openmetrics-text;q=0", TEXT),
        ("text/plain;q=0, */*;q=0.4", OPEN_METRICS),
        (";;=,,q=1;", TEXT),
        (PROMETHEUS_2, OPEN_METRICS),
        (PROMETHEUS_3, OPEN_METRICS),
    ],
)
def test_whoever_asks_gets_what_it_wants_most(accept, expected):
    assert choose(accept) is expected


def page(text_format):
    head = text_format.head
    return "".join(
        [
            head(Family("a_build_info", INFO, "the build")),
            sample("a_build_info", 1, version='1"\\\n'),
            head(Family("a_jobs_total", COUNTER, 'jobs: "all"\\\n')),
            sample("a_jobs_total", 5, tube="t"),
            head(Family("a_level", GAUGE, "a level")),
            sample("a_level", 0.5),
            head(Family("a_wait_seconds", HISTOGRAM, "how long")),
            histogram("a_wait_seconds", [0.000064, 1.0, 2.0], [1, 1, 3, 6], 42.5),
            text_format.end,
        ]
    )


@pytest.mark.parametrize(("text_format", "read"), [(TEXT, read_text), (OPEN_METRICS, read_open)])
def test_the_parsers_of_prometheus_client_read_both(text_format, read):
    families = {family.name: family for family in read(page(text_format))}
    jobs = families["a_jobs"]
    assert (jobs.type, [(each.name, each.labels, each.value) for each in jobs.samples]) == (
        "counter",
        [("a_jobs_total", {"tube": "t"}, 5)],
    )
    build = families["a_build" if text_format is OPEN_METRICS else "a_build_info"]
    assert build.samples[0].labels == {"version": '1"\\\n'}
    assert families["a_level"].samples[0].value == 0.5
    waits = families["a_wait_seconds"]
    assert waits.type == "histogram"
    assert [(each.labels.get("le"), each.value) for each in waits.samples] == [
        ("6.4e-05", 1),
        ("1.0", 1),
        ("2.0", 3),
        ("+Inf", 6),
        (None, 42.5),
        (None, 6),
    ]


def test_a_text_stays_on_one_line():
    assert escaped('a"\\\nb') == 'a\\"\\\\\\nb'
