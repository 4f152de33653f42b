"""The composition of server, worker, console, Prometheus and Grafana: its schema, and that its parts fit together."""

import io
import json
import re
import subprocess
import sys

import programs
import pytest
import yaml
from beanstalk_client import Client
from dockerfile_parse import DockerfileParser
from expressions import DASHBOARD, PROMETHEUS
from lint import passes

from beanstalk_server.settings.options import OPTIONS
from harness import servers
from harness.servers import ROOT, environment_of, imported
from harness.waiting import eventually

PACKAGING = ROOT / "packaging"
COMPOSE = PACKAGING / "compose.yaml"
PARTS = PACKAGING / "compose"

SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]
OURS = ("server", "worker", "console")


def mounted(service):
    """The files of a service: where each is in the container, and its path here."""
    parts = [each.split(":") for each in SERVICES[service].get("volumes", ()) if each.startswith("./")]
    return {there: COMPOSE.parent / here for here, there, _ in parts}


@pytest.mark.slow
def test_its_schema_is_that_of_compose(tools):
    passes(tools / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)


def test_what_it_builds_and_mounts_is_there():
    for service in OURS:
        build = SERVICES[service]["build"]
        assert (COMPOSE.parent / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).exists()
    for service in SERVICES:
        assert all(path.exists() for path in mounted(service).values())


def test_other_machines_reach_nothing():
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert service.get("network_mode") != "host" or service is SERVICES["console"]
    assert not {"--listen", "--login", "--behind-proxy"} & set(SERVICES["console"]["command"])


def test_no_service_has_rights_and_each_writes_to_its_volume_only():
    for service in SERVICES.values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["pids_limit"]
        assert service["mem_limit"]


def test_images_of_others_are_pinned_by_digest_and_have_no_root():
    for name in SERVICES.keys() - OURS:
        assert re.fullmatch(r"\S+:\S+@sha256:[0-9a-f]{64}", SERVICES[name]["image"])
        assert int(SERVICES[name]["user"].partition(":")[0]) > 0


def test_grafana_has_no_account():
    variables = SERVICES["grafana"]["environment"]
    assert variables["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == variables["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert (variables["GF_AUTH_BASIC_ENABLED"], variables["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("false", "Viewer")


def test_the_server_refuses_puts_before_its_container_has_no_memory():
    option = next(each for each in OPTIONS if each.name == "max_memory")
    limit = option.read(SERVICES["server"]["environment"][option.variable], option.variable)
    assert 0 < limit < 0.75 * (1 << 30)
    assert SERVICES["server"]["mem_limit"] == "1g"


def test_its_health_check_is_that_of_the_image():
    recipe = io.BytesIO((PACKAGING / "container" / "Containerfile").read_bytes())
    (value,) = [
        each["value"] for each in DockerfileParser(fileobj=recipe).structure if each["instruction"] == "HEALTHCHECK"
    ]
    options, _, command = value.partition(" CMD ")
    found = dict(SERVICES["server"]["healthcheck"])
    assert found.pop("test") == ["CMD", *json.loads(command)]
    given = {name.replace("-", "_"): each for name, each in re.findall(r"--([\w-]+)=(\w+)", options)}
    assert given == {name: str(each) for name, each in found.items()}


@pytest.fixture
def address():
    process = servers.start(imported())
    yield process.address
    process.stop()


def test_the_worker_runs_a_task_of_its_application(address, tmp_path):
    host, port = address
    variables = SERVICES["worker"]["environment"] | {"BEANSTALK_SERVER": f"beanstalk://{host}:{port}"}
    (shop,) = mounted("worker").values()
    path = f"{shop.parent}:{ROOT / 'client'}"
    environment = environment_of(imported()) | variables | {"PYTHONPATH": path}
    program, *arguments = SERVICES["worker"]["command"]
    assert program == "beanstalk-worker"
    (typed,) = re.findall(r"python -c '(.*)'", COMPOSE.read_text())
    subprocess.run([sys.executable, "-c", typed.replace("10s", "0s")], env=environment, check=True, timeout=60)
    with (tmp_path / "log").open("w+") as log:
        line = [sys.executable, "-m", "beanstalk_client.worker", *arguments]
        worker = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
        try:
            eventually(lambda: "order 17 is not paid" in (tmp_path / "log").read_text(), "its task runs")
        finally:
            worker.terminate()
            worker.wait(60)
    with Client((host, port)) as client:
        assert client.stats()["current-jobs-ready"] == 0


def test_a_worker_may_end_its_task_before_it_is_killed():
    command = SERVICES["worker"]["command"]
    assert int(SERVICES["worker"]["stop_grace_period"].removesuffix("s")) > int(command[command.index("--grace") + 1])


def test_the_console_is_started_with_options_that_it_has():
    from beanstalk_client.cli.parser import make_parser

    program, *arguments = SERVICES["console"]["command"]
    options = make_parser().parse_args(arguments)
    assert (program, options.url, options.listen) == ("beanstalk", "beanstalk://127.0.0.1:11300", "127.0.0.1:11380")


@pytest.mark.slow
def test_promtool_finds_nothing_wrong_with_the_configuration(tmp_path):
    promtool = programs.find("promtool", "prometheus")
    for name, path in mounted("prometheus").items():
        (tmp_path / name.rpartition("/")[2]).write_text(path.read_text())
    passes(promtool, "check", "config", tmp_path / "prometheus.yaml")
    assert f"--config.file={next(iter(mounted('prometheus')))}" in SERVICES["prometheus"]["command"]


def test_prometheus_asks_the_server_under_the_name_that_the_alerts_have():
    (scraped,) = yaml.safe_load((PARTS / "prometheus.yaml").read_text())["scrape_configs"]
    assert f'job="{scraped["job_name"]}"' in (PROMETHEUS / "alerts.yaml").read_text()
    ((target,),) = [each["targets"] for each in scraped["static_configs"]]
    host, _, port = target.partition(":")
    assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]


def test_grafana_finds_prometheus_and_the_dashboard():
    files = mounted("grafana")
    (source,) = yaml.safe_load((PARTS / "grafana-datasource.yaml").read_text())["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert f"127.0.0.1:{port}:{port}" in SERVICES[host]["ports"]
    (provider,) = yaml.safe_load((PARTS / "grafana-dashboards.yaml").read_text())["providers"]
    assert files[f"{provider['options']['path']}/dashboard.json"] == DASHBOARD
