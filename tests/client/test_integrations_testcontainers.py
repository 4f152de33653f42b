"""A container with a server, by the real testcontainers and docker packages, at an imitation of an engine."""

import re

import pytest

pytest.importorskip("testcontainers")

from beanstalk_client import Client
from beanstalk_client.integrations.testcontainers import BeanstalkContainer
from docker_engine import PORT, Engine
from testcontainers.core.config import ConnectionMode, testcontainers_config

from harness.servers import ROOT


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(testcontainers_config, "ryuk_disabled", True)  # a container that removes the others
    monkeypatch.setattr(testcontainers_config, "connection_mode_override", ConnectionMode.docker_host)
    with Engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        yield engine


def test_it_waits_until_the_server_answers_and_gives_clients(engine):
    with BeanstalkContainer() as server:
        with server.get_client(use="mail", watch="mail") as queue:
            queue.put("hello")
        with Client(server.get_connection_url(), watch="mail") as other:
            assert other.reserve(timeout=10).body == "hello"
        (process,) = engine.processes
        assert server.get_connection_url() == f"beanstalk://127.0.0.1:{process.address[1]}"
    assert engine.processes == []


def test_the_listing_of_the_page_runs(engine, capsys):
    page = (ROOT / "docs" / "testing.md").read_text().split("## A server in a container")[1]
    (listing,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(listing)
    assert re.fullmatch(r"beanstalk://127\.0\.0\.1:\d+\n", capsys.readouterr().out)
    assert len(engine.created) == 1


def test_it_starts_the_image_and_command_that_it_is_given(engine):
    with BeanstalkContainer("queue.example.com/beanstalk-server:0.2.0", command="-l 0.0.0.0 -z 1000"):
        pass
    (created,) = engine.created
    assert created["Image"] == "queue.example.com/beanstalk-server:0.2.0"
    assert created["Cmd"] == ["-l", "0.0.0.0", "-z", "1000"]
    assert PORT in created["ExposedPorts"]
    with BeanstalkContainer():
        pass
    assert engine.created[1]["Image"] == "beanstalk-server"
    assert not engine.created[1].get("Cmd")


def test_one_that_does_not_answer_is_an_error_that_names_the_image(engine):
    engine.answers = False
    server = BeanstalkContainer()
    server._wait_strategy.with_startup_timeout(1).with_poll_interval(0.1)
    with pytest.raises(TimeoutError, match="beanstalk-server did not answer within 1 seconds"), server:
        raise AssertionError
