"""TLS over sockets: Python's client and openssl's, good ones, bad ones, and those that send anything."""

import os
import random
import socket
import ssl
import struct
import subprocess
import threading

import programs
import pytest
from connected import nobody_is_left
from tls_peers import DAY, TODAY, Files, TlsCaller, TlsClient, client_certificate, client_context

from beanstalk_server import UserConfig
from beanstalk_server.server.connection import OUTPUT_LIMIT
from harness.caller import connect
from harness.waiting import eventually

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
MIB = 1 << 20
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


class PieceCaller:
    """A client whose every byte on the wire a test decides."""

    def __init__(self, address, context=None):
        self.socket = connect(address)
        self.client = TlsClient(context)
        self.client.give(b"")
        while not self.client.connected:
            self.socket.sendall(self.client.take())
            self.client.give(self.socket.recv(1 << 16))
        self.socket.sendall(self.client.take())

    def wait_for(self, what):
        while what not in self.client.received:
            received = self.socket.recv(1 << 16)
            assert received, f"the server closed before {what!r}; there was {self.client.received[-100:]!r}"
            self.client.give(received)

    def rest(self):
        while received := self.socket.recv(1 << 16):
            self.client.give(received)
        return self.client.received

    def close(self):
        self.socket.close()


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


def test_an_unmodified_client_may_be_given_a_tls_socket(server):
    greenstalk = pytest.importorskip("greenstalk")
    client = greenstalk.Client(("localhost", connect_through(server)))
    assert client.put("x") == 1
    assert client.reserve().body == "x"
    client.close()


def connect_through(server):
    """A port that leads to the server: one connection, encrypted on the way."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry():
        plain, _ = listener.accept()
        listener.close()
        caller = TlsCaller(server.address)
        with plain:
            while data := plain.recv(1 << 16):
                caller.send(data)
                plain.sendall(caller.socket.recv(1 << 16))
        caller.close()

    threading.Thread(target=carry, daemon=True).start()
    return listener.getsockname()[1]


def test_bodies_of_a_mebibyte_go_both_ways(serve, version):
    server = serve(max_job_size=MIB)
    caller = TlsCaller(server.address, client_context(version=version))
    body = random.Random(1).randbytes(MIB)
    assert caller.ask(b"put 0 0 60 %d\r\n%b\r\n" % (MIB, body)) == b"INSERTED 1\r\n"
    assert caller.ask(b"reserve\r\n") == b"RESERVED 1 %d\r\n" % MIB
    assert caller.read(MIB + 2) == body + b"\r\n"
    caller.close()


def test_many_commands_in_one_record_and_one_command_in_many(server):
    caller = PieceCaller(server.address)
    caller.socket.sendall(caller.client.write(b"list-tube-used\r\n" * 1000))
    caller.wait_for(b"USING default\r\n" * 1000)
    caller.socket.sendall(b"".join(caller.client.write(bytes([byte])) for byte in b"put 0 0 60 5\r\nhello\r\n"))
    caller.wait_for(b"INSERTED 1\r\n")
    caller.close()


def test_records_may_come_byte_by_byte(server):
    caller = PieceCaller(server.address)
    for byte in caller.client.write(b"put 0 0 60 5\r\nhello\r\n"):
        caller.socket.sendall(bytes([byte]))
    caller.wait_for(b"INSERTED 1\r\n")
    caller.close()


def test_a_client_that_ends_its_output_still_gets_its_replies(server):
    caller = PieceCaller(server.address)
    caller.socket.sendall(caller.client.write(b"put 0 0 60 1\r\nx\r\nreserve\r\n") + caller.client.close_notify())
    assert caller.rest() == b"INSERTED 1\r\nRESERVED 1 1\r\nx\r\n"
    assert caller.client.ended
    caller.close()
    nobody_is_left(server)


def test_a_tcp_end_without_a_close_notify_ends_the_input_too(server):
    caller = PieceCaller(server.address)
    caller.socket.sendall(caller.client.write(b"put 0 0 60 1\r\nx\r\nput 0 0 60 5\r\nhel"))
    caller.socket.shutdown(socket.SHUT_WR)
    assert caller.rest() == b"INSERTED 1\r\n", "a put that was cut is not done"
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
    caller.close()


def test_a_worker_that_hangs_up_while_nothing_is_read_from_it_gets_no_job(server):
    worker = TlsCaller(server.address)
    worker.socket.settimeout(None)
    worker.send(b"reserve\r\n")
    threading.Thread(target=worker.socket.sendall, args=(b"list-tube-used\r\n" * 10_000,), daemon=True).start()

    def paused():
        return any(not connection.intake.reading for connection in server.server.connections.open)

    eventually(lambda: server.call(paused), "the server reads no more")
    worker.socket.shutdown(socket.SHUT_RDWR)
    caller = TlsCaller(server.address)
    waiting = b"\ncurrent-waiting: 1\n"

    def still_waits():
        size = int(caller.ask(b"stats\r\n").split()[1])
        return waiting in caller.read(size + 2)

    eventually(lambda: not still_waits(), "the worker waits no more")
    worker.close()
    caller.close()


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
        (client_certificate("billing", by="another"), "certificate refused: unable to get local issuer certificate"),
        (client_certificate("billing", expires=TODAY - DAY), "certificate refused: certificate has expired"),
        (client_certificate("nobody"), "no user has the name"),
    ],
    ids=["none", "another authority", "expired", "nobody's"],
)
def test_whoever_has_no_good_certificate_is_refused_and_the_log_says_why(serve, caplog, version, certificate, reason):
    server = serve(mutual=True, auth="certificate")
    with caplog.at_level("INFO"):
        assert put(server, client_context(certificate, version=version)) in (b"", b"UNAUTHORIZED\r\n")
        eventually(lambda: reason in caplog.text, f"the log says {reason!r}")
    nobody_is_left(server)
    assert is_served(server, client_context(client_certificate("billing")))


def test_a_client_that_comes_back_with_a_ticket_is_the_same_user(serve, version):
    server = serve(mutual=True, auth="certificate")
    context = client_context(client_certificate("billing"), version=version)
    first = TlsCaller(server.address, context)
    first.ask(b"list-tube-used\r\n")
    plain = connect(server.address)
    again = context.wrap_socket(plain, server_hostname="localhost", session=first.socket.session)
    again.sendall(b"put 0 0 60 1\r\nx\r\n")
    assert again.recv(100) == b"INSERTED 1\r\n"
    assert again.session_reused
    again.close()
    first.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
def test_what_is_older_than_tls_1_2_is_refused(server):
    context = client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        TlsCaller(server.address, context)
    assert is_served(server)


def test_a_browser_is_refused(server):
    with pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"):
        TlsCaller(server.address, client_context(alpn=["h2", "http/1.1"]))
    caller = TlsCaller(server.address, client_context(alpn=["beanstalk"]))
    assert caller.socket.selected_alpn_protocol() == "beanstalk"
    caller.close()


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


# Anything at all


def test_a_client_without_tls_is_closed_and_the_log_says_why(server, caplog):
    with caplog.at_level("INFO"):
        caller = server.connect()
        caller.send(b"stats\r\n")
        assert caller.rest() == b""
        caller.close()
        eventually(lambda: "not TLS" in caplog.text, "the log says why")


def test_whatever_is_sent_first_the_server_goes_on(server):
    rng = random.Random(2)
    client = TlsClient()
    client.give(b"")
    hello = client.take()
    attempts = [rng.randbytes(rng.randint(1, 2000)) for _ in range(20)]
    attempts += [b"\x16\x03\x01" + rng.randbytes(rng.randint(1, 2000)) for _ in range(20)]
    attempts += [hello[:end] for end in range(1, len(hello), 7)]
    for at in range(0, len(hello), 3):
        damaged = bytearray(hello)
        damaged[at] ^= rng.randint(1, 255)
        attempts.append(bytes(damaged))
    attempts += [b"\x16\x03\x01\x40\x00" + b"\x01\x0f\xff\xff" + bytes(16380)] * 3
    callers = []
    for number, data in enumerate(attempts):
        sock = connect(server.address)
        sock.sendall(data)
        if number % 3 == 0:  # a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        elif number % 3 == 1:
            sock.close()
        else:
            callers.append(sock)
    assert is_served(server)
    for sock in callers:
        sock.close()
    nobody_is_left(server)


def test_whatever_is_sent_after_the_handshake_the_server_goes_on(server):
    rng = random.Random(3)
    for number in range(40):
        caller = PieceCaller(server.address)
        record = bytearray(caller.client.write(b"list-tube-used\r\n" * rng.randint(1, 50)))
        if number % 4 == 0:
            record = record[: rng.randint(1, len(record) - 1)]
        elif number % 4 == 1:
            record[rng.randrange(len(record))] ^= rng.randint(1, 255)
        elif number % 4 == 2:
            record = bytearray(rng.randbytes(rng.randint(1, 500)))
        else:
            record += rng.randbytes(30)
        caller.socket.sendall(bytes(record))
        caller.close()
    assert is_served(server)
    nobody_is_left(server)


def test_a_client_that_connects_and_says_nothing_holds_nobody(server):
    silent = [connect(server.address) for _ in range(50)]
    assert is_served(server)
    for sock in silent:
        sock.close()
    nobody_is_left(server)
