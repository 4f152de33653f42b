"""The metrics: those that the documents list, and what they say of jobs, tubes and shards."""

import json
import re
from pathlib import Path

import pytest
from operator_site import Operators
from operators import samples
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open

from beanstalk_server.admin import metrics
from beanstalk_server.admin.exposition import OPEN_METRICS
from beanstalk_server.admin.metrics import CLUSTER, DURATIONS, SERVER, TUBES, ShardFigures
from beanstalk_server.admin.stats_json import typed
from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.queue.policy import Policy

PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
SECTIONS = {"server": SERVER, "durations": DURATIONS, "tubes": TUBES, "cluster": CLUSTER}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_documents_list_every_metric(section):
    rows = []
    for each in SECTIONS[section]:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        rows.append(f"| `{each.name}` | {each.kind} |{labels and f' {labels}'} | {each.meaning} |")
    table = "\n".join(
        [
            f"<!-- metrics: {section} -->",
            "| name | type | labels | meaning |",
            "|---|---|---|---|",
            *rows,
            f"<!-- end of metrics: {section} -->",
        ]
    )
    assert table in PAGE.read_text(), f"docs/observability.md must have:\n\n{table}\n"


def show(operators, **keywords):
    status, _, body = operators.ask("/metrics", **keywords)
    assert status == 200
    return samples(body)


@pytest.fixture
def busy():
    operators = Operators()
    caller = operators.world.connect()
    caller.send(b"use a\r\nput 5 0 60 1\r\nx\r\nput 5000 0 60 1\r\nx\r\nput 5 100 60 1\r\nx\r\n")
    caller.send(
        b"use b\r\nput 0 0 60 1\r\nx\r\nwatch b\r\nignore default\r\nreserve\r\nbury 4 0\r\nput 0 0 60 0\r\n\r\n"
    )
    caller.send(b"reserve\r\npause-tube a 30\r\n")
    operators.world.sleep(2)
    return operators


def test_figures_are_those_of_stats(busy):
    found = show(busy)
    states = {"urgent": 1, "ready": 2, "reserved": 1, "delayed": 1, "buried": 1}
    assert {state: found["beanstalkd_current_jobs", state] for state in states} == states
    assert found["beanstalkd_jobs_total",] == 5
    assert found["beanstalkd_commands_total", "put"] == 5
    assert found["beanstalkd_commands_total", "pause-tube"] == 1
    assert found["beanstalkd_commands_total", "put-with"] == 0
    assert found["beanstalkd_current_tubes",] == 3
    assert found["beanstalkd_draining",] == 0
    assert found["beanstalkd_ready",] == 1


def test_a_tube_has_rows_of_its_own(busy):
    found = show(busy)
    states = {"urgent": 1, "ready": 2, "reserved": 0, "delayed": 1, "buried": 0}
    assert {state: found["beanstalkd_tube_current_jobs", "a", state] for state in states} == states
    assert found["beanstalkd_tube_jobs_total", "a"] == 3
    assert found["beanstalkd_tube_commands_total", "a", "pause-tube"] == 1
    assert found["beanstalkd_tube_pause_seconds", "a"] == 30
    assert found["beanstalkd_tube_pause_time_left_seconds", "a"] == pytest.approx(28, abs=0.1)
    assert found["beanstalkd_tube_next_job_age_seconds", "a"] == pytest.approx(2, abs=0.1)
    assert found["beanstalkd_tube_next_job_age_seconds", "b"] == 0
    assert found["beanstalkd_tube_current_watching", "b"] == 1
    assert found["beanstalkd_tubes_summed",] == 0
    assert found["beanstalkd_tube_series_truncated",] == 0


def many_tubes(operators, count):
    caller = operators.world.connect()
    for index in range(count):
        caller.send(b"use t%d\r\nput 5 0 60 3\r\nxxx\r\n" % index)


def test_tubes_beyond_the_bound_are_summed():
    operators = Operators(limit=3)
    many_tubes(operators, 10)
    operators.world.sleep(5)
    found = show(operators)
    rows = [key[1] for key in found if key[0] == "beanstalkd_tube_jobs_total"]
    assert rows == ["default", "t0", "t1", "(other)"]
    assert found["beanstalkd_tube_current_jobs", "(other)", "ready"] == 8
    assert found["beanstalkd_tube_jobs_total", "(other)"] == 8
    assert found["beanstalkd_tube_next_job_age_seconds", "(other)"] == pytest.approx(5, abs=0.1)
    assert found["beanstalkd_tubes_summed",] == 8
    assert found["beanstalkd_tube_series_limit",] == 3
    assert found["beanstalkd_tube_series_truncated",] == 1
    assert found["beanstalkd_current_tubes",] == 11


def test_without_rows_all_tubes_are_summed():
    operators = Operators(limit=0)
    many_tubes(operators, 2)
    found = show(operators)
    assert [key[1] for key in found if key[0] == "beanstalkd_tube_jobs_total"] == ["(other)"]
    assert found["beanstalkd_tube_jobs_total", "(other)"] == 2


def test_a_tube_that_is_named_as_the_others_are_is_one_of_them():
    """A series that is there twice would make Prometheus refuse the whole page."""
    operators = Operators(limit=5)
    operators.world.connect().send(b"use (other)\r\nput 5 0 60 0\r\n\r\n")
    many_tubes(operators, 10)
    assert show(operators)["beanstalkd_tube_jobs_total", "(other)"] == 1 + 10 - 4


def test_tubes_with_a_policy_have_more_rows():
    operators = Operators()
    operators.world.policies["a"] = Policy(max_jobs=1)
    operators.world.policies["b"] = Policy(max_jobs=1)
    caller = operators.world.connect()
    caller.send(b"use b\r\nuse a\r\nput 0 0 60 3\r\nxxx\r\nput 0 0 60 0\r\n\r\nuse c\r\n")
    found = show(operators)
    assert found["beanstalkd_tube_bytes", "a"] == 3
    assert found["beanstalkd_tube_throttled", "a"] == 0
    assert found["beanstalkd_tube_refused_puts_total", "a", "jobs"] == 1
    assert found["beanstalkd_refused_puts_total", "jobs"] == 1
    assert ("beanstalkd_tube_dead_jobs_total", "c") not in found
    operators = Operators(limit=1)
    operators.world.policies["a"] = Policy(max_jobs=1)
    operators.world.connect().send(b"use a\r\nput 0 0 60 3\r\nxxx\r\nput 0 0 60 0\r\n\r\n")
    found = show(operators)
    assert found["beanstalkd_tube_refused_puts_total", "(other)", "jobs"] == 1
    assert found["beanstalkd_tube_bytes", "(other)"] == 3


def test_histograms_end_at_powers_of_two():
    measured = Histogram()
    for microseconds in (0, 63, 64, 65, 1 << 25, 1 << 26, 1 << 40):
        measured.add(microseconds * 1000)
    found = show(Operators(durations={metrics.HELD: measured, metrics.WAITED: measured}))
    held = {key[1]: value for key, value in found.items() if key[0] == "beanstalkd_loop_held_seconds_bucket"}
    assert [held["6.4e-05"], held["0.000128"], held["33.554432"], held["67.108864"], held["+Inf"]] == [2, 4, 4, 5, 7]
    assert len(held) == 22
    waited = {key[1]: value for key, value in found.items() if key[0] == "beanstalkd_job_wait_seconds_bucket"}
    assert [waited["67.108864"], waited["134.217728"], waited["137438.953472"], waited["+Inf"]] == [5, 6, 6, 7]
    assert found["beanstalkd_job_wait_seconds_count",] == 7
    assert found["beanstalkd_job_wait_seconds_sum",] == pytest.approx(measured.total / 1e9)
    assert not [key for key in found if key[0].startswith("beanstalkd_commit_seconds")]


def test_a_node_shows_its_part_in_each_shard():
    found = show(Operators(shards=[ShardFigures("leader", 3, 12, (250, 1000)), ShardFigures("standby", 4, 0, None)]))
    assert found["beanstalkd_cluster_shards",] == 2
    assert found["beanstalkd_cluster_shards_led",] == 1
    roles = {key[1:]: value for key, value in found.items() if key[0] == "beanstalkd_cluster_role"}
    assert {key for key, value in roles.items() if value} == {("0", "leader"), ("1", "standby")}
    assert len(roles) == 6
    assert found["beanstalkd_cluster_epoch", "1"] == 4
    assert found["beanstalkd_cluster_shard_jobs", "0"] == 12
    assert found["beanstalkd_cluster_commit_latency_seconds", "0", "0.5"] == 0.00025
    assert found["beanstalkd_cluster_commit_latency_seconds", "0", "0.99"] == 0.001


def test_both_formats_say_the_same(busy):
    busy.source.more |= {"durations": {metrics.RAN: Histogram()}, "requests": {200: 3, 404: 1}}
    busy.source.more |= {"shards": [ShardFigures("suspended", 3, 12, (250, 1000))]}
    _, headers, text = busy.ask("/metrics")
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    _, headers, open_text = busy.ask("/metrics", "Accept: " + OPEN_METRICS.content_type)
    assert headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert samples(open_text, read_open) == samples(text)


def test_every_family_of_the_table_is_on_a_page_and_no_other():
    durations = {family: Histogram() for family in DURATIONS}
    operators = Operators(durations=durations, shards=[ShardFigures("leader", 1, 0, (0, 0))])
    named = re.findall(r"^# TYPE (\S+)", operators.ask("/metrics")[2], re.MULTILINE)
    assert sorted(named) == sorted(each.name for section in SECTIONS.values() for each in section)


def test_statistics_as_json_are_those_of_stats(busy):
    status, headers, body = busy.ask("/stats.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    found = json.loads(body)
    server = found["server"]
    assert server["current-jobs-ready"] == 2
    assert server["draining"] is False
    assert isinstance(server["rusage-utime"], float)
    assert found["ready"] is True
    assert [tube["name"] for tube in found["tubes"]] == ["default", "a", "b"]
    assert found["tubes"][1]["pause"] == 30
    assert found["tubes"][1]["next-job-age"] == pytest.approx(2, abs=0.1)


def test_statistics_as_json_show_as_many_tubes_as_metrics_do():
    operators = Operators(limit=2)
    many_tubes(operators, 100)
    found = json.loads(operators.ask("/stats.json")[2])
    assert [tube["name"] for tube in found["tubes"]] == ["default", "t0"]
    assert found["tube-limit"] == 2
    assert json.loads(Operators(limit=0).ask("/stats.json")[2])["tubes"] == []


def test_what_looks_like_a_number_and_is_none_stays_a_text():
    rows = {"id": "1234567890123456", "hostname": '"12"', "uptime": "7", "version": '"1.13"', "odd": "12e3", "n": "-1"}
    assert typed(rows) == {
        "id": "1234567890123456",
        "hostname": "12",
        "uptime": 7,
        "version": "1.13",
        "odd": "12e3",
        "n": -1,
    }
