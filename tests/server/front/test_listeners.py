"""Several listeners at a time, each with its own way of knowing users."""

import asyncio
import os
import socket

import pytest
from activation import activated, run_shell

from beanstalk_server import Config, ListenerConfig, Server, StartError, UserConfig
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.server.front.listeners import port_holder
from harness.caller import Caller
from harness.servers import unused_port

USER = UserConfig(name="billing", token_sha256=(hash_of_token("token"),), uid=(os.getuid(),), produce=("bill-*",))


def test_each_listener_knows_users_in_its_own_way(run, tmp_path, caplog):
    caplog.set_level("INFO")
    server = run(
        listeners=(
            ListenerConfig(address="127.0.0.1:0"),
            ListenerConfig(address="[::1]:0", auth="token"),
            ListenerConfig(address=f"unix:{tmp_path}/peer", auth="peer"),
            ListenerConfig(address=f"unix:{tmp_path}/fixed", user="billing"),
            ListenerConfig(address="127.0.0.1:0", proxy_protocol=True, trusted=("127.0.0.1",)),
        ),
        users=(USER,),
    )
    everybody, token, peer, fixed, proxied = addresses = server.server.listeners.addresses
    for address, sent, reply in (
        (everybody, b"use mail\r\n", b"USING mail\r\n"),
        (token, b"auth token\r\nuse mail\r\n", b"AUTHENTICATED\r\nFORBIDDEN\r\n"),
        (peer, b"use mail\r\n", b"FORBIDDEN\r\n"),
        (fixed, b"use mail\r\n", b"FORBIDDEN\r\n"),
        (proxied, b"PROXY UNKNOWN\r\nuse mail\r\n", b"USING mail\r\n"),
    ):
        caller = Caller(address)
        caller.send(sent)
        assert caller.read(len(reply)) == reply
        caller.close()
    ports = [address[1] for address in addresses if not isinstance(address, str)]
    assert (
        f"listens on 127.0.0.1:{ports[0]}, [::1]:{ports[1]} (token), unix:{tmp_path}/peer (peer), "
        f"unix:{tmp_path}/fixed (user billing), 127.0.0.1:{ports[2]} (PROXY) with " in caplog.text
    )


def test_a_listener_that_cannot_be_opened_closes_the_others(run, tmp_path):
    taken = run().address
    port = unused_port()
    listeners = (
        ListenerConfig(address=f"127.0.0.1:{port}"),
        ListenerConfig(address=f"unix:{tmp_path}/s"),
        ListenerConfig(address=f"127.0.0.1:{taken[1]}"),
    )
    with pytest.raises(
        StartError, match=rf"^listener 127\.0\.0\.1:{taken[1]}: Address already in use by .* \(pid {os.getpid()}\)$"
    ):
        start_and_stop(Config(listeners=listeners))
    assert not (tmp_path / "s").exists()
    start_and_stop(Config(listeners=listeners[:2]))


def start_and_stop(config):
    async def main():
        async with Server(config):
            pass

    asyncio.run(main())


def test_a_unix_sockets_path_is_removed_at_the_end_of_each_listener(run, tmp_path):
    listeners = tuple(ListenerConfig(address=f"unix:{tmp_path}/{name}") for name in "ab")
    start_and_stop(Config(listeners=listeners))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="this system does not tell who a peer is")
def test_where_the_system_does_not_tell_who_a_peer_is_nobody_is_taken_for_somebody(monkeypatch, tmp_path):
    monkeypatch.delattr(socket, "SO_PEERCRED")
    listener = ListenerConfig(address=f"unix:{tmp_path}/s", auth="peer")
    with pytest.raises(StartError, match="auth: 'peer' cannot be used on this system"):
        start_and_stop(Config(listeners=(listener,), users=(USER,)))
    assert not (tmp_path / "s").exists()


def test_a_token_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(StartError, match=r"none. cannot be read: No such file"):
        start_and_stop(Config(port=0, token_file=f"{tmp_path}/none"))


# Sockets that systemd has opened


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.toml"

    def write(*listeners):
        path.write_text(
            "".join(f"[[listener]]\n{keys}\n" for keys in listeners)
            + '[[user]]\nname = "billing"\nproduce = ["bill-*"]\n'
        )
        return str(path)

    return write


def test_more_or_fewer_inherited_sockets_than_listeners_are_refused(config_file):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        path = config_file('address = "127.0.0.1:1"', 'address = "127.0.0.1:2"')
        status, _, said = run_shell(activated([sock], "--config", path), sock.fileno())
    assert (status, said) == (
        5,
        "beanstalk-server: LISTEN_FDS: bad value 1: must be 2, one socket for each [[listener]]\n",
    )


# Who has a port


def test_the_process_that_listens_at_a_port_is_named():
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as sock:
            sock.bind((host, 0))
            port = sock.getsockname()[1]
            assert port_holder(port) == "", "it is bound, but nobody listens"
            sock.listen()
            assert port_holder(port).endswith(f" (pid {os.getpid()})")


def test_nobody_is_named_where_nothing_can_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("beanstalk_server.server.front.listeners.PROC", tmp_path)
    assert port_holder(1) == ""
