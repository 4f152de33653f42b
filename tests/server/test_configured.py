"""A server process with a config file: malformed puts, warnings, and what SIGHUP makes of a changed file."""

import signal

import pytest

from beanstalk_server.access.accounts import hash_of_token
from harness.caller import Caller
from harness.servers import unused_port
from harness.waiting import eventually

TOKEN = "a token"
USER = f"[[user]]\nname = 'mail'\ntoken-sha256 = '{hash_of_token(TOKEN)}'\nproduce = 'mail-*'\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "server.toml"


def ask(address, sent):
    caller = Caller(address)
    answer = caller.ask(sent)
    caller.close()
    return answer


@pytest.mark.parametrize("processes", ["0", "1"])
@pytest.mark.parametrize(
    ("settings", "closes"), [("", False), ("malformed-put = 'close'", True), ("auth = 'token'", True)]
)
def test_a_listener_decides_what_follows_a_malformed_put(path, launch, settings, closes, processes):
    path.write_text(f"[[listener]]\naddress = '127.0.0.1:0'\n{settings}\n{USER}")
    process = launch("--config", str(path), "--io-processes", processes)
    caller = Caller(process.address)
    if "token" in settings:
        assert caller.ask(f"auth {TOKEN}\r\n".encode()) == b"AUTHENTICATED\r\n"
    caller.send(b"put 0 0 60 14 x\r\nlist-tube-used\r\nquit\r\n")
    assert caller.rest() == b"BAD_FORMAT\r\n" + b"USING default\r\n" * (not closes)
    caller.close()
    eventually(lambda: "WARNING malformed put from 127.0.0.1:" in process.log, "the malformed put is in the log")
    assert process.stop() == 0


def test_what_is_probably_not_meant_is_logged_at_the_start_and_after_a_reload(path, launch):
    warning = "WARNING listener 1: every client of this listener has all rights"
    path.write_text(f"[[listener]]\naddress = '127.0.0.1:0'\n{USER}")
    process = launch("--config", str(path))
    assert ask(process.address, b"use mail\r\n") == b"USING mail\r\n"  # until then, it ignores the signal
    eventually(lambda: process.log.count(warning) == 1, "the warning is in the log")
    process.send_signal(signal.SIGHUP)
    eventually(lambda: process.log.count(warning) == 2, "the warning is in the log again")
    assert process.stop() == 0


def test_a_file_that_goes_back_to_what_it_was_takes_effect(path, launch):
    first, second = unused_port(), unused_port()
    contents = (f"port = {first}\n", f"[[listener]]\naddress = '127.0.0.1:{second}'\n", f"port = {first}\n")
    path.write_text(contents[0])
    process = launch("--config", str(path))
    assert ask(process.address, b"use mail\r\n") == b"USING mail\r\n"  # until then, it ignores the signal
    for number, port in ((1, second), (2, first)):
        path.write_text(contents[number])
        process.send_signal(signal.SIGHUP)
        eventually(lambda: process.log.count("reloaded: listens on") == number, "the file is read again")  # noqa: B023
        assert ask(("127.0.0.1", port), b"use mail\r\n") == b"USING mail\r\n"
    assert process.stop() == 0
    assert "ignored" not in process.log
