"""TLS over sockets: Python's client and openssl's, good ones, bad ones, and those that send anything."""

import os
import ssl
import subprocess
import threading

import programs
import pytest
from connected import nobody_is_left
from tls_peers import Files, TlsCaller, client_certificate, client_context

from beanstalk_server import UserConfig
from beanstalk_server.server.connection import OUTPUT_LIMIT
from harness.waiting import eventually

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
BILLING = UserConfig(name="billing", produce=("*",), consume=("*",), inspect=("*",))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve(run, files):
    """Starts a server with one listener that speaks TLS."""

    def start(*, mutual=False, auth="none", **settings):
        return run(listeners=(files.listener(mutual=mutual, auth=auth),), users=(BILLING,), **settings)

    return start


@pytest.fixture
def server(serve):
    return serve()


@pytest.fixture(params=[TLS_1_2, TLS_1_3], ids=["TLS 1.2", "TLS 1.3"])
def version(request):
    return request.param


def is_served(server, context=None):
    """Whether a client that does nothing wrong is served."""
    caller = TlsCaller(server.address, context)
    answer = caller.ask(b"list-tube-used\r\n")
    caller.close()
    return answer == b"USING default\r\n"


def put(server, context):
    """What a put is answered; b"" if there is no connection any more, or was none."""
    try:
        caller = TlsCaller(server.address, context)
    except OSError:
        return b""
    try:
        return caller.ask(b"put 0 0 60 1\r\nx\r\n")
    except OSError:
        return b""
    finally:
        caller.close()


# What works


def test_commands_and_replies_go_through(server, version):
    caller = TlsCaller(server.address, client_context(version=version))
    assert caller.socket.version() == version.name.replace("_", ".")
    assert caller.ask(b"put 0 0 60 5\r\nhello\r\n") == b"INSERTED 1\r\n"
    assert caller.ask(b"reserve\r\n") + caller.line() == b"RESERVED 1 5\r\nhello\r\n"
    caller.send(b"delete 1\r\nquit\r\n")
    assert caller.rest() == b"DELETED\r\n"
    caller.close()
    nobody_is_left(server)


def test_a_client_that_reads_nothing_is_read_from_no_more_and_gets_everything_later(server):
    caller = TlsCaller(server.address)
    body = b"x" * 60_000
    assert caller.ask(b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body)) == b"INSERTED 1\r\n"
    sender = threading.Thread(target=caller.send, args=(b"peek 1\r\n" * 500,))
    sender.start()

    def paused():
        (connection,) = server.server.connections.open
        return not connection.intake.reading and connection.transport.get_write_buffer_size()

    size = eventually(lambda: server.call(paused), "the server reads no more")
    assert size <= OUTPUT_LIMIT + 5 * len(body)
    assert is_served(server)
    for _ in range(500):
        assert caller.line() == b"FOUND 1 60000\r\n"
        assert caller.read(len(body) + 2) == body + b"\r\n"
    sender.join()


# Who is let in


def test_a_certificate_says_who_the_client_is(serve, version):
    server = serve(mutual=True, auth="certificate")
    for certificate in (
        client_certificate("billing"),
        client_certificate("host.example.org", common_name="billing"),
    ):
        caller = TlsCaller(server.address, client_context(certificate, version=version))
        assert caller.ask(b"put 0 0 60 1\r\nx\r\n").startswith(b"INSERTED ")
        assert caller.ask(b"kick 1\r\n") == b"FORBIDDEN\r\n"
        caller.close()


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (None, "no certificate"),
        (client_certificate("nobody"), "no user has the name"),
    ],
    ids=["none", "nobody's"],
)
def test_whoever_has_no_good_certificate_is_refused_and_the_log_says_why(serve, caplog, version, certificate, reason):
    server = serve(mutual=True, auth="certificate")
    with caplog.at_level("INFO"):
        assert put(server, client_context(certificate, version=version)) in (b"", b"UNAUTHORIZED\r\n")
        eventually(lambda: reason in caplog.text, f"the log says {reason!r}")
    nobody_is_left(server)
    assert is_served(server, client_context(client_certificate("billing")))


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
