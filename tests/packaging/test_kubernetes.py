"""The manifests for Kubernetes: whole, by its own schemas, and what they promise of the server and of Redis."""

import os
import re
import subprocess
import urllib.error
import urllib.request

import programs
import pytest
import redis
import trustme
import yaml
from expressions import ONLY_OF_A_NODE, series_asked_for
from lint import passes
from options import options_of

from beanstalk_server.cluster.engine.redis import servers as redis_servers
from beanstalk_server.settings.options import Config
from harness.servers import ROOT, Process, command, imported, unused_port
from harness.waiting import eventually

MANIFESTS = ROOT / "packaging" / "kubernetes"
FILES = sorted(path for path in MANIFESTS.rglob("*.yaml") if path.name != "kustomization.yaml")

RECOVERS_WITHIN = 3600
"""Seconds that a start may take before it counts as failed."""


def objects(path):
    return list(yaml.safe_load_all(path.read_text()))


ALL = [(path, each) for path in FILES for each in objects(path)]
WORKLOADS = [each for _, each in ALL if each["kind"] in ("Deployment", "StatefulSet")]
OURS = [each for each in WORKLOADS if each["metadata"]["name"] != "beanstalk-redis"]


def name(workload):
    return workload["metadata"]["name"]


def pod(workload):
    return workload["spec"]["template"]["spec"]


def container(workload):
    (only,) = pod(workload)["containers"]
    return only


@pytest.fixture(params=WORKLOADS, ids=name)
def workload(request):
    return request.param


@pytest.fixture(params=OURS, ids=name)
def server(request):
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_kubernetes_schemas_know_every_field(tools, path):
    assert passes(tools / "kubernetes-validate", "--strict", path).count(" passed ") == len(objects(path))


def test_each_directory_lists_its_files():
    for directory in MANIFESTS.iterdir():
        listed = yaml.safe_load((directory / "kustomization.yaml").read_text())["resources"]
        assert sorted(listed) == sorted(path.name for path in FILES if path.parent == directory)


def test_a_pod_has_no_rights_that_it_does_not_need(workload):
    context = pod(workload)["securityContext"]
    assert context["runAsNonRoot"]
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod(workload)["automountServiceAccountToken"] is False
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_no_variable_of_kubernetes_is_taken_for_an_option(workload):
    """A Service that is named beanstalk-server would set BEANSTALK_SERVER_PORT, to a URL."""
    assert pod(workload)["enableServiceLinks"] is False


def test_clients_need_a_token_and_tls_which_come_from_a_secret(server):
    found = options_of(container(server)["args"])
    (volume,) = [each for each in pod(server)["volumes"] if "secret" in each]
    (mount,) = [each for each in container(server)["volumeMounts"] if each["name"] == volume["name"]]
    assert (volume["secret"], mount["readOnly"]) == ({"secretName": "beanstalk-access", "defaultMode": 0o440}, True)
    assert pod(server)["securityContext"]["fsGroup"] == pod(server)["securityContext"]["runAsGroup"]
    files = {"--tls-cert": "tls.crt", "--tls-key": "tls.key", "--token-file": "tokens"}
    assert {flag: found[flag] for flag in files} == {flag: f"{mount['mountPath']}/{files[flag]}" for flag in files}


def test_only_clients_prometheus_and_nodes_reach_a_port(server):
    labels = server["spec"]["template"]["metadata"]["labels"]
    (policy,) = [
        each["spec"]
        for _, each in ALL
        if each["kind"] == "NetworkPolicy" and each["spec"]["podSelector"]["matchLabels"] == labels
    ]
    assert policy["policyTypes"] == ["Ingress"]
    admitted = {each["ports"][0]["port"]: each["from"] for each in policy["ingress"]}
    assert admitted.pop("beanstalk") == [{"podSelector": {"matchLabels": {"beanstalk-client": "true"}}}]
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    assert admitted.pop("http") == [{"namespaceSelector": {"matchLabels": monitoring}}]
    is_node = server["kind"] == "Deployment"
    assert admitted == ({"link": [{"podSelector": {"matchLabels": labels}}]} if is_node else {})


def test_the_image_of_redis_is_pinned_by_digest():
    (redis_,) = [each for each in WORKLOADS if each not in OURS]
    assert re.fullmatch(r"docker\.io/library/redis:\S+@sha256:[0-9a-f]{64}", container(redis_)["image"])


def test_a_start_that_reads_many_jobs_is_not_killed(workload):
    probe = container(workload)["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == RECOVERS_WITHIN


def test_probes_ask_what_the_server_answers(server):
    ports = {each["name"]: each["containerPort"] for each in container(server)["ports"]}
    asked = {kind: container(server)[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: each["path"] for kind, each in asked.items()} == {
        "startup": "/healthz",
        "liveness": "/healthz",
        # A node that stands by serves clients: an update that waited for it to lead would wait for ever.
        "readiness": "/readyz/cluster" if server["kind"] == "Deployment" else "/readyz",
    }
    assert {each["port"] for each in asked.values()} == {"http"}
    found = options_of(container(server)["args"])
    assert found["--http"] == f"0.0.0.0:{ports['http']}"
    assert ports["beanstalk"] == Config().port


def test_it_is_restarted_only_when_its_loop_has_been_held_for_as_long_as_systemd_waits(server):
    probe = container(server)["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 60


def test_a_single_server_keeps_its_jobs_on_its_volume():
    (single,) = [each for each in OURS if each["kind"] == "StatefulSet"]
    assert single["spec"]["replicas"] == 1
    (claim,) = single["spec"]["volumeClaimTemplates"]
    (mount,) = [each for each in container(single)["volumeMounts"] if each["name"] == claim["metadata"]["name"]]
    assert options_of(container(single)["args"])["--binlog"].startswith(mount["mountPath"] + "/")


def test_there_are_three_nodes_which_reach_each_other():
    (nodes,) = [each for each in OURS if each["kind"] == "Deployment"]
    assert nodes["spec"]["replicas"] == 3
    ports = {each["name"]: each["containerPort"] for each in container(nodes)["ports"]}
    assert options_of(container(nodes)["args"])["--advertise"] == f"$(POD_IP):{ports['link']}"
    assert "POD_IP" in {each["name"] for each in container(nodes)["env"]}


def test_what_is_selected_is_there_and_may_be_away_one_at_a_time():
    for path in FILES:
        labels = [
            each["spec"]["template"]["metadata"]["labels"]
            for each in objects(path)
            if "template" in each.get("spec", {})
        ]
        for each in objects(path):
            spec = each.get("spec", {})
            if each["kind"] == "Service":
                assert spec["selector"] in labels
            if each["kind"] == "PodDisruptionBudget":
                assert (spec["selector"]["matchLabels"] in labels, spec["maxUnavailable"]) == (True, 1)
            if each["kind"] == "NetworkPolicy":
                assert spec["podSelector"]["matchLabels"] in labels
            if "template" in spec:
                assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        budgets = [each for each in objects(path) if each["kind"] == "PodDisruptionBudget"]
        assert len(budgets) == len(labels)


def test_what_is_secret_is_in_a_secret_and_in_no_file():
    assert "Secret" not in {each["kind"] for _, each in ALL}
    for workload in WORKLOADS:
        for variable in container(workload).get("env", []):
            assert "value" not in variable
    for path in FILES:
        assert not re.search(r"rediss?://\S*:\S+@", path.read_text())
    secrets = {
        (variable["valueFrom"]["secretKeyRef"]["name"], variable["valueFrom"]["secretKeyRef"]["key"])
        for workload in WORKLOADS
        for variable in container(workload).get("env", [])
        if "secretKeyRef" in variable["valueFrom"]
    }
    assert secrets == {("beanstalk-engine", "url"), ("beanstalk-engine", "password")}


@pytest.fixture
def start_redis(tmp_path):
    """Starts a pod's Redis, with what its manifest says, on this machine."""
    running = []
    ports = [unused_port() for _ in range(2)]
    (workload,) = [each for each in WORKLOADS if each["metadata"]["name"] == "beanstalk-redis"]
    (settings,) = [each["data"] for _, each in ALL if each["kind"] == "ConfigMap"]

    def start(number):
        directory = tmp_path / str(number)
        directory.mkdir()
        text = settings["redis.conf"].replace("dir /data", f"dir {directory}")
        (directory / "redis.conf").write_text(f"{text}port {ports[number]}\nbind 127.0.0.1\n")
        *shell, script = container(workload)["command"]
        script = script.replace("/etc/redis/redis.conf", str(directory / "redis.conf"))
        script = script.replace("beanstalk-redis-0.beanstalk-redis 6379", f"127.0.0.1 {ports[0]}")
        environment = {
            "POD_NAME": f"beanstalk-redis-{number}",
            "REDIS_PASSWORD": "not-secret",
            "PATH": os.environ["PATH"],
        }
        with (directory / "log").open("w") as log:
            running.append(subprocess.Popen([*shell, script], env=environment, stdout=log, stderr=log))
        client = redis.Redis(port=ports[number], password="not-secret", decode_responses=True)
        eventually(lambda: answers(client), "Redis answers", 20)
        return client

    programs.find("redis-server")
    yield start
    for process in running:
        process.kill()
        process.wait()


def answers(client):
    try:
        return client.ping()
    except redis.ConnectionError:
        return False


@pytest.mark.slow
def test_redis_is_a_primary_with_replicas_that_the_server_takes(start_redis):
    first, second = start_redis(0), start_redis(1)
    eventually(lambda: first.info("replication")["connected_slaves"] == 1, "the replica is connected", 20)
    assert second.info("replication")["role"] == "slave"
    port = first.config_get("port")["port"]
    with redis.Redis(port=int(port)) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    found = {key: value for asked in redis_servers.ASKED for key, value in first.config_get(asked).items()}
    assert found["appendonly"] == "yes"
    assert redis_servers.losing(found, 1) == redis_servers.advice(found, 2, 1, in_cluster=False) == []
    for client in (first, second):
        pid = client.info("server")["process_id"]
        with open(f"/proc/{pid}/cmdline") as command_line:
            assert "not-secret" not in command_line.read()
        client.close()


@pytest.mark.slow
def test_a_node_with_these_arguments_leads_is_ready_and_shows_every_metric_of_a_node(start_redis, tmp_path):
    certificate = trustme.CA().issue_cert("beanstalk")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    (tmp_path / "tokens").write_text(f"{'ab' * 32} shop\n")
    start_redis(1)
    engine = start_redis(0).config_get("port")["port"]
    (nodes,) = [each for each in OURS if each["kind"] == "Deployment"]
    ports = {str(each["containerPort"]): str(unused_port()) for each in container(nodes)["ports"]}
    words = " ".join(container(nodes)["args"]).replace("$(POD_IP)", "127.0.0.1").replace("0.0.0.0", "127.0.0.1")
    words = words.replace("/etc/beanstalk/", f"{tmp_path}/")
    words = re.sub(r"\b\d{4,5}\b", lambda port: ports.get(port[0], port[0]), words).split()
    process = Process(
        imported(),
        [*command(imported()), *words, "-p", ports["11300"], "--lease-ttl", "2"],
        environment={"BEANSTALK_SERVER_CLUSTER": f"redis://:not-secret@127.0.0.1:{engine}"},
    )
    try:
        page = f"http://127.0.0.1:{ports['9113']}"
        eventually(lambda: ask(f"{page}/readyz")[0] == 200, "it leads", 60)
        assert ask(f"{page}/readyz/cluster")[0] == ask(f"{page}/healthz")[0] == 200
        shown = set(re.findall(r"^(\w+)", ask(f"{page}/metrics")[1], re.MULTILINE))
    finally:
        process.kill()
    asked = {series for series in series_asked_for() if series.startswith(ONLY_OF_A_NODE)}
    assert len(asked) > 3
    assert asked - shown == set()


def ask(url):
    """The status and the text of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=20) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
