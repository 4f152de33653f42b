"""What signals do to a server that has not started yet, with a server that only takes note of calls."""

import asyncio
import os
import signal
from types import SimpleNamespace

import pytest

from beanstalk_server import Config
from beanstalk_server.cli import process
from beanstalk_server.cli.server import EARLY_SIGNALS
from beanstalk_server.server.start_error import CANNOT_OPEN


class Recording:
    """A server that sends its own process a signal while it starts, and fails when it has started."""

    failure = None

    def __init__(self, number):
        self.number, self.calls, self.failed, self.config = number, [], asyncio.Event(), Config()
        self.new_config = Config(token_file="tokens") if number == signal.SIGHUP else self.config

    async def start(self):
        os.kill(os.getpid(), self.number)
        self.calls.append("started")
        if self.number != signal.SIGHUP:
            self.failed.set()

    async def reload(self, config):
        assert config is self.new_config
        self.calls.append("reloaded")
        self.failed.set()

    def interrupt(self):
        self.calls.append("interrupted")

    def drain(self):
        self.calls.append("drained")

    async def stop(self):
        self.calls.append("stopped")


@pytest.fixture(autouse=True)
def _handlers():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "calls"),
    [
        (signal.SIGUSR1, ["started", "drained", "stopped"]),
        (signal.SIGHUP, ["started", "reloaded", "stopped"]),
        (signal.SIGTERM, ["interrupted", "started", "stopped"]),
    ],
)
def test_a_signal_during_the_start_takes_effect_when_the_server_has_started(monkeypatch, number, calls):
    async def run():
        server = Recording(number)
        monkeypatch.setattr(process, "server_of", lambda _: server)
        monkeypatch.setattr(process.sdnotify, "SystemdNotifier", lambda: SimpleNamespace(notify=lambda _: None))
        assert await process.serve(server.config, lambda: server.new_config, EARLY_SIGNALS) == 0
        return server.calls

    assert asyncio.run(run()) == calls


@pytest.mark.parametrize("files", [0, 12, 63])
def test_a_limit_of_too_few_open_files_is_refused_with_a_sentence(monkeypatch, capsys, files):
    monkeypatch.setattr(process.resource, "getrlimit", lambda _: (files, files))
    monkeypatch.setattr(process.resource, "setrlimit", lambda *_: None)
    monkeypatch.setattr(process, "serve", lambda *_: pytest.fail("it starts"))
    assert process.run(Config(port=0)) == CANNOT_OPEN
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"beanstalk-server: the limit on open files is {files}, but must be at least 64: ")


@pytest.mark.parametrize("files", [64, process.resource.RLIM_INFINITY])
def test_a_sufficient_limit_of_open_files_is_taken(monkeypatch, files):
    limits = []
    monkeypatch.setattr(process.resource, "getrlimit", lambda _: (files, files))
    monkeypatch.setattr(process.resource, "setrlimit", lambda *limit: limits.append(limit))
    process.raise_file_limit()
    assert limits == [(process.resource.RLIMIT_NOFILE, (files, files))]
