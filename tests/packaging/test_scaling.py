"""The manifests of docs/scaling.md: they are YAML that fits together, and every metric and option in them exists."""

import re
import tomllib

import pytest
import yaml
from beanstalk_client.worker.command import make_parser
from expressions import documented, metric_of, selectors

from beanstalk_server.settings.sections import LISTENER_KEYS, USER_KEYS
from harness.servers import ROOT

TEXT = (ROOT / "docs" / "scaling.md").read_text()
MANIFESTS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
(WORKER,) = [each for each in MANIFESTS if each["kind"] == "Deployment"]
SCALED = [each for each in MANIFESTS if each["kind"] == "ScaledObject"]
TRIGGERS = [trigger for each in SCALED for trigger in each["spec"]["triggers"]]

OF_KEDA = {
    "prometheus": ({"serverAddress", "query", "threshold"}, {"activationThreshold", "ignoreNullValues"}),
    "beanstalkd": ({"server", "tube", "value"}, {"activationValue", "includeDelayed", "timeout"}),
}
"""The parameters of triggers that KEDA requires, and others that it takes."""


def test_each_kind_of_manifest_is_there():
    assert len(SCALED) == 5
    assert {trigger["type"] for trigger in TRIGGERS} == set(OF_KEDA)
    assert {each["apiVersion"] for each in SCALED} == {"keda.sh/v1alpha1"}


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: trigger["type"])
def test_a_trigger_has_the_parameters_of_keda_as_strings(trigger):
    required, optional = OF_KEDA[trigger["type"]]
    assert required <= trigger["metadata"].keys() <= required | optional
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def queries():
    inline = re.findall(r"`unless on [^`]*`", TEXT)
    return [trigger["metadata"]["query"] for trigger in TRIGGERS if trigger["type"] == "prometheus"] + inline


@pytest.mark.parametrize("query", queries())
def test_every_metric_is_one_of_the_server_with_these_labels(query):
    known = documented()
    found = list(selectors(query))
    assert found
    for series, asked in found:
        assert asked <= known[metric_of(series, known)][1]


def test_every_metric_in_the_text_is_one_of_the_server():
    assert set(re.findall(r"beanstalkd_\w+", TEXT)) <= documented().keys()


def test_kubernetes_waits_longer_than_the_worker_needs_to_stop():
    pod = WORKER["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    program, *words = container["command"]
    assert program == "beanstalk-worker"
    options = make_parser().parse_args(words)
    assert options.grace + 10 <= pod["terminationGracePeriodSeconds"]
    assert "replicas" not in WORKER["spec"]


def test_the_formula_adds_up_triggers_that_have_these_names():
    (summed,) = [each["spec"] for each in SCALED if "scalingModifiers" in each["spec"].get("advanced", {})]
    names = re.findall(r"\w+", summed["advanced"]["scalingModifiers"]["formula"])
    assert names == [trigger["name"] for trigger in summed["triggers"]]
    assert names == [trigger["metadata"]["tube"] for trigger in summed["triggers"]]


def test_the_listener_of_keda_is_where_its_trigger_connects_and_its_user_may_inspect_alone():
    config = tomllib.loads("".join(re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)))
    ((listener,), (user,)) = (config["listener"], config["user"])
    assert listener.keys() <= {key.key for key in LISTENER_KEYS}
    assert user.keys() <= {key.key for key in USER_KEYS}
    assert listener["user"] == user["name"]
    assert user.keys() == {"name", "inspect"}
    servers = {trigger["metadata"]["server"] for trigger in TRIGGERS if trigger["type"] == "beanstalkd"}
    assert {server.rpartition(":")[2] for server in servers} == {listener["address"].rpartition(":")[2]}
