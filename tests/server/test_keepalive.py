"""Which sockets have keepalive: all TCP sockets that accept connections, without a call for each accept."""

import asyncio
import socket
from types import SimpleNamespace

import pytest
import uvloop
from activation import activated
from tls_peers import Files, TlsCaller, client_context

from beanstalk_server import Config, ListenerConfig
from beanstalk_server.server import keepalive
from beanstalk_server.server.keepalive import set_keepalive
from harness.caller import Caller
from harness.waiting import eventually

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="other systems have other options")

HERE = "127.0.0.1:0"
DEFAULT = (1, 60, 15, 4, 120_000)


def options(sock):
    """Whether keepalive is on; idle, interval and count; and the milliseconds without an acknowledgement."""
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    found = [sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    return (sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *found)


def of_accepted(server):
    """Those of the clients that are connected."""

    def find():
        return [options(each.transport.get_extra_info("socket")) for each in server.server.connections.open]

    return server.call(find)


def of_listeners(server):
    return server.call(lambda: [options(each.sock) for each in server.server._in_order])


@pytest.mark.parametrize("kind", ["plain", "plain IPv6", "TLS", "PROXY"])
def test_a_client_has_it(run, tmp_path, kind):
    files = Files(tmp_path)
    listener = {
        "plain": ListenerConfig(address=HERE),
        "plain IPv6": ListenerConfig(address="[::1]:0"),
        "TLS": files.listener(),
        "PROXY": ListenerConfig(address=HERE, proxy_protocol=True, trusted=("127.0.0.1",)),
    }[kind]
    server = run(listeners=(listener,))
    caller = TlsCaller(server.address, client_context()) if kind == "TLS" else Caller(server.address)
    if kind == "PROXY":
        caller.send(b"PROXY UNKNOWN\r\n")
    assert caller.ask(b"list-tube-used\r\n") == b"USING default\r\n"
    assert of_accepted(server) == [DEFAULT]


def test_an_operator_has_it(run):
    server = run(http=HERE)
    http = server.server._http
    caller = Caller(http.listeners.addresses[0])
    caller.ask(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    (connection,) = server.call(lambda: list(http.connections._all))
    assert server.call(lambda: options(connection._transport.get_extra_info("socket"))) == DEFAULT


def test_io_processes_accept_at_sockets_that_have_it(run):
    server = run(io_processes=1, keepalive="7:5:3")
    assert of_listeners(server) == [(1, 7, 5, 3, 22_000)]


def test_sockets_of_systemd_have_it(launch):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        process = launch(line=activated([sock], "--keepalive", "7:5:3"), pass_fds=[sock.fileno()])
        assert options(sock) == (1, 7, 5, 3, 22_000)
        assert process.stop() == 0


def test_it_can_be_turned_off_and_changed_without_a_restart(run, tmp_path):
    server = run(keepalive="0", listeners=(ListenerConfig(address=HERE), ListenerConfig(address=f"unix:{tmp_path}/s")))
    (off, *rest) = server.call(lambda: [options(server.server._in_order[0].sock)])
    assert (off[0], off[-1], rest) == (0, 0, [])
    new = ListenerConfig(address="[::1]:0")
    for value, expected in (("9:8:7", (1, 9, 8, 7, 65_000)), (0, (0, 9, 8, 7, 0))):
        config = Config(listeners=(ListenerConfig(address=HERE), new), keepalive=value)
        server.wait_for(server.server.reload(config))
        caller = server.connect()
        caller.ask(b"list-tube-used\r\n")
        assert expected in of_accepted(server)
        assert {each[0] for each in of_listeners(server)} == {expected[0]}
        caller.close()
        eventually(lambda: not server.server.connections.open, "it is gone")


def test_a_connection_that_is_lost_before_it_gets_keepalive_is_no_error():
    """uvloop shows no socket of it: a standby that failed in this would never dial its leader again."""

    async def main():
        loop = asyncio.get_running_loop()
        lost = loop.create_future()
        protocol = type("Losing", (asyncio.Protocol,), {"connection_lost": lambda _, error: lost.set_result(error)})()
        with socket.create_server(("127.0.0.1", 0)) as server:
            transport, _ = await loop.create_connection(lambda: protocol, *server.getsockname())
            transport.abort()
            await asyncio.wait_for(lost, 30)
        set_keepalive(transport.get_extra_info("socket"), "60:15:4")
        return transport.get_extra_info("socket")

    assert uvloop.run(main()) is None


def test_a_unix_socket_and_a_system_without_the_options_are_no_errors(monkeypatch):
    with socket.socket(socket.AF_UNIX) as sock:
        set_keepalive(sock, "1:1:1")
    few = SimpleNamespace(**{name: getattr(socket, name) for name in ("AF_INET", "AF_INET6", "SOL_SOCKET")})
    few.SO_KEEPALIVE, few.IPPROTO_TCP = socket.SO_KEEPALIVE, socket.IPPROTO_TCP
    monkeypatch.setattr(keepalive, "socket", few)
    with socket.socket() as sock:
        before = options(sock)
        set_keepalive(sock, "1:1:1")
        assert options(sock) == (1, *before[1:])


@pytest.mark.parametrize(
    "value",
    ["60", "60:15", "0:15:4", "60:0:4", "60:15:0", "60:15:128", "32768:1:1", "on", "", "-1:1:1", 60, True, "1:1:1 "],
)
def test_values_that_the_system_would_refuse_are_refused_at_the_start(value):
    with pytest.raises(ValueError, match=r"--keepalive: bad value .*: must be SECONDS:SECONDS:PROBES"):
        Config(keepalive=value)


def test_the_largest_values_are_taken(run):
    server = run(keepalive="32767:32767:127")
    assert of_listeners(server) == [(1, 32767, 32767, 127, (1 << 31) - 1)]
