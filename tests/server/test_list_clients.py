"""list-clients of a server: clients by UNIX sockets and behind I/O processes, beside HTTP, and blocked ones."""

import socket

from beanstalk_client import Client

from beanstalk_server import ListenerConfig, UserConfig
from harness.caller import Caller
from harness.waiting import eventually

HERE = "127.0.0.1:0"


def name_of(caller):
    host, port = caller.socket.getsockname()[:2]
    return f"{host}:{port}"


def test_who_does_not_read_is_blocked(run):
    server = run()
    caller = Caller(server.address)
    with Client(server.address) as client:
        job = client.put("x" * 60_000)
        caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        caller.socket.sendall(b"peek %d\r\n" % job * 400)

        def state():
            return {each["name"]: each["state"] for each in client.list_clients()}[name_of(caller)]

        eventually(lambda: state() == "blocked", "it is blocked")


def test_clients_of_unix_sockets_have_users_and_names_too(run, tmp_path):
    section = UserConfig(name='an "operator"', admin=["*"], inspect=["*"])
    listener = ListenerConfig(address=f"unix:{tmp_path}/s", user='an "operator"')
    run(listeners=(listener,), users=(section,))
    with Client(f"{tmp_path}/s") as client:
        (found,) = client.list_clients()
    assert str(found["name"]).startswith("unix client ")
    assert found["user"] == 'an "operator"'


def test_an_http_front_hides_no_client(run):
    server = run(listeners=(ListenerConfig(address=HERE), ListenerConfig(address=HERE, protocol="http")))
    with Client(server.address) as client:
        assert len(client.list_clients()) == 1


def test_clients_behind_io_processes_have_the_addresses_that_they_have_connected_from(launch):
    server = launch("-p", "0", "--io-processes", "1")
    caller = Caller(server.address)
    with Client(server.address) as client:
        assert name_of(caller) in {each["name"] for each in client.list_clients()}
