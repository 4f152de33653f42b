"""The rules for Prometheus and the dashboard for Grafana: well formed, tried, and every metric in them exists."""

import json
import re
import urllib.request

import programs
import pytest
import yaml
from beanstalk_client import Client
from expressions import (
    DASHBOARD,
    OF_EXPORTERS,
    ONLY_OF_A_NODE,
    PAGE,
    PROMETHEUS,
    PROMETHEUS_OWN,
    RULES,
    documented,
    expressions,
    metric_of,
    panels,
    rules,
    selectors,
    series_asked_for,
)
from lint import passes

from harness.servers import Process, command, imported, unused_port


def promtool(*arguments):
    return passes(programs.find("promtool", "prometheus"), *arguments, cwd=PROMETHEUS)


@pytest.mark.slow
def test_promtool_finds_nothing_wrong_with_the_rules():
    assert promtool("check", "rules", *RULES).count("SUCCESS") == len(RULES)


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_not_before():
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yaml")


def test_every_alert_is_tried_and_says_what_is_wrong():
    tried = (PROMETHEUS / "alerts.test.yaml").read_text()
    for rule in rules(PROMETHEUS / "alerts.yaml"):
        assert f'alertname="{rule["alert"]}"' in tried
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"].keys() == {"summary", "description"}


@pytest.mark.parametrize(("where", "expression"), expressions())
def test_every_metric_is_one_of_the_page_with_these_labels(where, expression):
    known = documented()
    found = list(selectors(expression))
    assert found
    for series, asked in found:
        if series not in PROMETHEUS_OWN:
            kind, labels = known[metric_of(series, known)]
            assert asked <= labels | ({"le"} if kind == "histogram" else set())
            assert (kind == "histogram") == (metric_of(series, known) != series)


def test_rates_are_of_counters_and_nothing_else():
    known = documented()
    for where, expression in expressions():
        text = re.sub(r"\{[^}]*\}", "", expression)
        for function, series in re.findall(r"\b(\w+)\((beanstalkd_\w+)\[", text):
            kind = known[metric_of(series, known)][0]
            assert (kind in ("counter", "histogram")) == (function in ("rate", "increase")), (where, function, series)


@pytest.mark.parametrize("path", OF_EXPORTERS, ids=lambda path: path.stem)
def test_names_of_an_exporter_are_those_of_the_page(path):
    """Each name that the page has in full is recorded, and from what stands there, if that is in full, too."""
    section = (
        PAGE.read_text()
        .split(path.stem.removeprefix("as-") + "/beanstalkd_exporter")[2]
        .split("\n[")[0]
        .split("\n## ")[0]
    )
    records = {rule["record"]: rule["expr"] for rule in rules(path)}
    assert len(records) == len(rules(path))
    for there, here in re.findall(r"^\| (.*?) \| (.*?) \|$", section, re.MULTILINE)[1:]:
        for name in re.findall(r"`(\w+)`", there):
            (used,) = [metric for metric, _ in selectors(records[name])]
            assert "…" in here or used in re.findall(r"`(beanstalkd_\w+)", here)


@pytest.mark.parametrize("path", OF_EXPORTERS, ids=lambda path: path.stem)
def test_every_command_and_state_of_beanstalkd_has_its_old_name(path, stats):
    records = {re.sub(r"^beanstalkd_|_(count|total)$", "", rule["record"]) for rule in rules(path)}
    ours, of_tube = stats
    wanted = {key for key in ours if key.startswith(("cmd-", "current-jobs-"))} & OF_BEANSTALKD
    wanted |= {f"tube_{key}" for key in of_tube if key.startswith(("cmd-", "current-", "total-"))}
    assert {key.replace("-", "_") for key in wanted} <= records


OF_BEANSTALKD = {
    *[f"current-jobs-{state}" for state in ("urgent", "ready", "reserved", "delayed", "buried")],
    *[f"cmd-{name}" for name in "put peek peek-ready peek-delayed peek-buried reserve reserve-with-timeout".split()],
    *[f"cmd-{name}" for name in "delete release use watch ignore bury kick touch stats stats-job stats-tube".split()],
    *[f"cmd-{name}" for name in "list-tubes list-tube-used list-tubes-watched pause-tube".split()],
}


@pytest.fixture(scope="module")
def stats():
    """The keys of `stats` and of `stats-tube`."""
    process = Process(imported(), [*command(imported()), "-p", "0"])
    try:
        with Client(process.address) as client:
            return set(client.stats()), set(client.stats_tube("default"))
    finally:
        process.kill()


@pytest.mark.slow
def test_promtool_reads_every_expression_of_the_dashboard(tmp_path):
    found = [
        target["expr"].replace("$__rate_interval", "5m").replace("$job", "beanstalkd")
        for panel in panels()
        for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(found)]
    file = tmp_path / "dashboard.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(found)} rules found" in promtool("check", "rules", file)


def test_panels_have_places_of_their_own():
    everything = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_metric_is_shown_by_a_server(tmp_path):
    """All but those that only a node of a cluster has."""
    config = tmp_path / "server.toml"
    config.write_text('[[tube]]\nmatch = "mail"\nmax-jobs = 2\nttl = 3600\ndead-tube = "dead"\nmeasures = true\n')
    port = unused_port()
    line = [*command(imported()), "-p", "0", "-b", str(tmp_path / "jobs"), "--http", f"127.0.0.1:{port}"]
    process = Process(imported(), [*line, "--config", str(config)])
    try:
        with Client(process.address, use="mail", watch="mail") as client:
            client.put("x")
            client.delete(client.reserve(timeout=5))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as page:
                shown = set(re.findall(r"^(\w+)", page.read().decode(), re.MULTILINE))
    finally:
        process.kill()
    asked = {series for series in series_asked_for() if not series.startswith(ONLY_OF_A_NODE)}
    assert len(asked) > 40
    assert asked - shown == set()
