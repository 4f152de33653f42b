"""The expressions of rules and of the dashboard, and the metrics that docs/observability.md has for them."""

import json
import re

import yaml

from harness.servers import ROOT

PROMETHEUS = ROOT / "packaging" / "prometheus"
RULES = sorted(path for path in PROMETHEUS.glob("*.yaml") if not path.name.endswith(".test.yaml"))
DASHBOARD = ROOT / "packaging" / "grafana" / "dashboard.json"
PAGE = ROOT / "docs" / "observability.md"

OF_EXPORTERS = [path for path in RULES if path.name.startswith("as-")]

PROMETHEUS_OWN = {"up", "ALERTS"}

ONLY_OF_A_NODE = "beanstalkd_cluster_"


def documented():
    """The metrics of the page, each with its type and the names of its labels."""
    found = {}
    for table in re.findall(r"<!-- metrics: \w+ -->\n(.*?)<!-- end", PAGE.read_text(), re.DOTALL):
        for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \|(.*?)\|", table, re.MULTILINE):
            found[name] = kind, set(re.findall(r"`(\w+)`", labels))
    return found


def rules(path):
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def panels():
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions():
    """Every expression, with where it is."""
    found = [(path.name, rule["expr"]) for path in RULES for rule in rules(path)]
    found += [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            found.append((variable["name"], re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"]["query"])))
    return found


def selectors(expression):
    """The metrics of an expression, each with the labels that are asked of it."""
    text = re.sub(r'"[^"]*"', '""', expression)
    for name, labels in re.findall(r"\b((?:beanstalkd_\w+)|up|ALERTS)\b(?:\{([^}]*)\})?", text):
        yield name, set(re.findall(r"(\w+)\s*(?:=|!=|=~|!~)", labels)) - {"job", "instance", "alertname"}


def metric_of(series, known):
    """The metric that has this series: of a histogram, several."""
    base = re.sub(r"_(bucket|sum|count)$", "", series)
    return base if known.get(base, ("",))[0] == "histogram" else series


def series_asked_for():
    """Every series that a rule or the dashboard asks for, but for those of Prometheus itself."""
    return {series for _, expression in expressions() for series, _ in selectors(expression)} - PROMETHEUS_OWN
