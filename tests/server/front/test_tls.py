"""TLS over sockets: Python's client and openssl's, good ones, bad ones, and those that send anything."""

import os
import ssl
import subprocess
import threading

import programs
import pytest
from connected import nobody_is_left
from tls_peers import Files, TlsCaller, client_context

from harness.waiting import eventually


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def server(run, files):
    """A server with one listener that speaks TLS."""
    return run(listeners=(files.listener(),))


def is_served(server):
    """Whether a client that does nothing wrong is served."""
    caller = TlsCaller(server.address)
    answer = caller.ask(b"list-tube-used\r\n")
    caller.close()
    return answer == b"USING default\r\n"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_commands_and_replies_go_through(server, version):
    caller = TlsCaller(server.address, client_context(version=version))
    assert caller.socket.version() == version.name.replace("_", ".")
    assert caller.ask(b"put 0 0 60 5\r\nhello\r\n") == b"INSERTED 1\r\n"
    assert caller.ask(b"reserve\r\n") + caller.line() == b"RESERVED 1 5\r\nhello\r\n"
    caller.send(b"delete 1\r\nquit\r\n")
    assert caller.rest() == b"DELETED\r\n"
    caller.close()
    nobody_is_left(server)


# openssl s_client


class SClient:
    """openssl s_client: what is typed is sent, but for a line that is one of its own commands."""

    def __init__(self, server, *options):
        host, port = server.address
        self._process = subprocess.Popen(
            [programs.find("openssl"), "s_client", "-connect", f"{host}:{port}", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._said = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while data := os.read(self._process.stdout.fileno(), 1 << 16):
            self._said += data

    def type(self, data):
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def has_said(self, what, count=1):
        eventually(lambda: self._said.count(what) >= count or not self._reader.is_alive(), f"s_client says {what!r}")
        assert self._said.count(what) >= count, self._said
        return self._said

    def end(self):
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def s_client():
    started = []

    def start(server, *options):
        started.append(SClient(server, *options))
        return started[-1]

    yield start
    for client in started:
        client.end()


@pytest.mark.parametrize("option", ["-tls1_2", "-tls1_3"])
def test_openssl_talks_to_the_server(server, files, s_client, option):
    client = s_client(server, option, "-CAfile", files.ca, "-verify_return_error", "-crlf")
    client.type(b"put 0 0 60 1\nx\n")
    assert b"Verify return code: 0 (ok)" in client.has_said(b"INSERTED 1")


def test_a_change_of_keys_is_followed(server, s_client):
    client = s_client(server, "-tls1_3", "-crlf")
    for number in range(1, 4):
        client.type(b"list-tube-used\n")
        client.has_said(b"USING default", number)
        client.type(b"K\n")
        client.has_said(b"KEYUPDATE", number)


def test_a_new_handshake_on_an_old_connection_is_refused(server, s_client):
    client = s_client(server, "-tls1_2", "-crlf")
    client.type(b"list-tube-used\n")
    client.has_said(b"USING default")
    client.type(b"R\n")
    client.has_said(b"no renegotiation")
    assert is_served(server)
