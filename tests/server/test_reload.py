"""New settings while the server runs: all of them, or none; and what becomes of those who are connected."""

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import threading
import time

import pytest
import trustme
from activation import activated
from connected import pending, users
from tls_peers import Files, TlsCaller, TlsClient, authority, client_certificate, client_context

from beanstalk_server import Config, ConfigError, ListenerConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.server import host
from harness.caller import Caller
from harness.in_thread import ServerThread
from harness.servers import unused_port
from harness.waiting import eventually


def user(name, **rights):
    """A user whose token is its name."""
    return UserConfig(name=name, token_sha256=(hash_of_token(name),), **(rights or {"produce": "*", "consume": "*"}))


def listener(port=0, **keys):
    return ListenerConfig(address=f"127.0.0.1:{port}", **keys)


TOKENS = listener(auth="token")
BILLING, MAIL = user("billing"), user("mail")


@pytest.fixture
def serve(run):
    def start(*listeners, users=(BILLING, MAIL)):
        return run(listeners=listeners, users=users)

    return start


def reload(server, *listeners, users=(BILLING, MAIL), **settings):
    server.wait_for(server.server.reload(Config(listeners=listeners, users=users, **settings)))


def authenticated(server, name, address=None):
    caller = Caller(address or server.address)
    assert caller.ask(b"auth %b\r\n" % name.encode()) == b"AUTHENTICATED\r\n"
    return caller


def connect(address):
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as sock:
        sock.connect(address)


def addresses(server):
    return list(server.server.listeners.addresses)


# Users


def test_open_connections_have_the_rights_of_the_new_settings(serve):
    server = serve(TOKENS)
    billing, mail = authenticated(server, "billing"), authenticated(server, "mail")
    assert billing.ask(b"use other\r\n") == b"USING other\r\n"
    reload(server, TOKENS, users=(user("billing", produce="bill-*"), MAIL))
    assert billing.ask(b"put 0 0 60 0\r\n\r\n") == b"FORBIDDEN\r\n"
    assert billing.ask(b"use bill-1\r\n") == b"USING bill-1\r\n"
    assert mail.ask(b"use other\r\n") == b"USING other\r\n"
    reload(server, TOKENS)
    assert billing.ask(b"use other\r\n") == b"USING other\r\n"
    billing.close()
    mail.close()


def test_a_user_that_is_gone_is_closed_and_its_jobs_are_ready(serve, caplog):
    caplog.set_level("INFO")
    server = serve(TOKENS)
    gone, stays = authenticated(server, "billing"), authenticated(server, "mail")
    assert gone.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    assert gone.ask(b"reserve\r\n") == b"RESERVED 1 1\r\n"
    reload(server, TOKENS, users=(MAIL,))
    assert gone.rest() == b"x\r\n"
    assert stays.ask(b"reserve\r\n") == b"RESERVED 1 1\r\n"
    assert "; connections closed because their user was removed: 1" in caplog.text
    gone.close()
    stays.close()


def test_a_token_that_is_gone_opens_nothing_and_a_new_one_does(serve):
    server = serve(TOKENS)
    waiting = Caller(server.address)
    waiting.send(b"auth bil")
    eventually(lambda: pending(server) == 1, "it has arrived")
    known = authenticated(server, "billing")
    new = UserConfig(name="billing", token_sha256=(hash_of_token("new"),), produce="*")
    reload(server, TOKENS, users=(new,))
    waiting.send(b"ling\r\n")
    assert waiting.rest() == b"UNAUTHORIZED\r\n"
    waiting.close()
    assert known.ask(b"use other\r\n") == b"USING other\r\n"
    assert known.ask(b"auth new\r\n") == b"AUTHENTICATED\r\n"
    known.send(b"auth billing\r\n")
    assert known.rest() == b"UNAUTHORIZED\r\n"
    known.close()


def test_a_reload_goes_on_with_others_between_two_connections(serve, monkeypatch):
    """Also if one of those that it has not come to yet leaves."""
    monkeypatch.setattr(host, "JUDGE_TIME", 0)
    server = serve(TOKENS)
    callers = [authenticated(server, "billing") for _ in range(50)]

    async def reload_while_some_leave():
        work = asyncio.ensure_future(
            server.server.reload(Config(listeners=(TOKENS,), users=(user("billing", produce="bill-*"),)))
        )
        while not any(not connection.session.user.everywhere for connection in server.server.connections.open):
            await asyncio.sleep(0)
        for connection in list(server.server.connections.open)[::7]:
            connection.transport.abort()
        assert not work.done()
        await work

    server.wait_for(reload_while_some_leave())
    left = 0
    for caller in callers:
        caller.send(b"use other\r\n")
        left += caller.line() == b"FORBIDDEN\r\n"
        caller.close()
    assert left == 50 - len(range(0, 50, 7))


# Listeners without a question


def test_whoever_came_in_where_nobody_was_asked_becomes_that_listeners_user(serve):
    server = serve(listener())
    caller = Caller(server.address)
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    restricted = user("legacy", produce="bill-*")
    reload(server, listener(user="legacy"), users=(restricted,))
    assert caller.ask(b"use mail\r\n") == b"FORBIDDEN\r\n"
    reload(server, listener(user="mail"), users=(restricted, MAIL))
    assert users(server) == ["mail"]
    reload(server, listener(), users=(MAIL,))  # who was somebody does not become nobody
    assert users(server) == ["mail"]
    other = Caller(server.address)
    assert other.ask(b"use mail\r\n") == b"USING mail\r\n"
    assert users(server) == ["mail", "nobody"]
    reload(server, listener(), users=())
    assert caller.rest() == b""
    assert other.ask(b"use mail\r\n") == b"USING mail\r\n"


def test_whoever_was_not_asked_is_closed_when_the_listener_asks(serve):
    server = serve(listener())
    caller = Caller(server.address)
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    reload(server, TOKENS)
    assert caller.rest() == b""
    caller.close()
    authenticated(server, "billing").close()
    reload(server, listener())
    caller = Caller(server.address)
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"


def test_whoever_is_not_known_yet_begins_anew_when_the_listener_asks_otherwise(serve):
    server = serve(TOKENS)
    caller = Caller(server.address)
    caller.send(b"auth ")
    eventually(lambda: pending(server) == 1, "it has arrived")
    reload(server, listener(user="mail"))
    assert caller.rest() == b""
    caller.close()
    eventually(lambda: not server.call(lambda: server.server.listeners.taken), "no client is connected")


# Listeners that come and go


def test_listeners_come_and_go_and_their_connections_stay(serve, tmp_path, caplog):
    caplog.set_level("INFO")
    gone, path = unused_port(), f"unix:{tmp_path}/s"
    server = serve(listener(), listener(gone, user="mail"), ListenerConfig(address=path))
    first, second, third = addresses(server)
    callers = [Caller(address) for address in (first, second, third)]
    for caller in callers:
        assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    waiting = Caller(second)
    limit = server.server.listeners.limit
    new = unused_port()
    reload(server, listener(new, user="billing"), listener(), users=(BILLING, user("mail", produce="bill-*")))
    assert addresses(server) == [("127.0.0.1", new), first]
    assert server.server.listeners.limit - limit in (0, 1)
    for address in (second, third):
        with pytest.raises(OSError, match=r"refused|No such file"):
            connect(address)
    replies = [caller.ask(b"use mail\r\n") for caller in callers]
    assert replies == [b"USING mail\r\n", b"FORBIDDEN\r\n", b"USING mail\r\n"]
    assert f"reloaded: listens on 127.0.0.1:{new} (user billing), 127.0.0.1:{first[1]};" in caplog.text
    reload(server, listener(), users=(BILLING,))
    assert callers[1].rest() == b""
    waiting.close()


def test_whoever_may_still_do_everything_after_its_listener_is_gone_is_told(serve, caplog):
    server = serve(TOKENS, listener())
    billing = authenticated(server, "billing", addresses(server)[0])
    anyone = [Caller(addresses(server)[1]) for _ in range(2)]
    for each in anyone:
        assert each.ask(b"use mail\r\n") == b"USING mail\r\n"
    reload(server, TOKENS)
    for each in anyone:
        assert each.ask(b"use bill\r\n") == b"USING bill\r\n"
    assert "2 connections of removed listeners stay open and keep all rights" in caplog.text
    for each in (billing, *anyone):
        each.close()


def test_a_handshake_under_authorities_that_are_replaced_is_not_ended(serve, tmp_path):
    files = Files(tmp_path)
    clients = files.listener(mutual=True, auth="certificate")
    server = serve(clients)
    certificate = client_certificate(common_name="mail")
    known, begun = TlsCaller(server.address, client_context(certificate)), Caller(server.address)
    tls = TlsClient(client_context(certificate))
    begun.send(tls.hello())
    while not tls.connected:
        tls.give(begun.socket.recv(65536))
    assert pending(server) == 1, "it has not sent its certificate"
    reload(server, clients)
    assert pending(server) == 1, "nothing has changed for it"
    files.write("clients.pem", authority("theirs").cert_pem.bytes())
    reload(server, clients)
    answer = b""
    with contextlib.suppress(OSError):
        begun.send(tls.take() + tls.write(b"list-tube-used\r\n"))
        answer = begun.socket.recv(65536)
    assert answer == b"", "it is let in by nobody"
    assert known.ask(b"use mail\r\n") == b"USING mail\r\n", "its user is there"


def test_whoever_is_not_known_yet_goes_with_its_listener(serve):
    server = serve(listener(), listener(unused_port(), auth="token"))
    caller = Caller(addresses(server)[1])
    caller.send(b"auth bil")
    eventually(lambda: pending(server) == 1, "it has arrived")
    reload(server, listener())
    assert caller.rest() == b""


def test_a_listener_that_stays_keeps_its_socket_and_who_waits_there(serve):
    server = serve(listener())
    server.call(setattr, server.server.listeners, "limit", 1)
    first, waiting = Caller(server.address), Caller(server.address)
    assert first.ask(b"use mail\r\n") == b"USING mail\r\n"
    eventually(lambda: server.server.listeners._full, "it accepts nobody")
    new = unused_port()
    reload(server, listener(), listener(new))
    other = Caller(("127.0.0.1", new))
    waiting.send(b"use mail\r\n")
    other.send(b"use mail\r\n")
    server.call(setattr, server.server.listeners, "limit", 10)
    first.close()
    assert waiting.line() == b"USING mail\r\n"
    assert other.line() == b"USING mail\r\n"


# All or nothing


@pytest.fixture
def pem(tmp_path):
    path = tmp_path / "server.pem"

    def issue(authority):
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(path))
        return str(path)

    return issue


def test_what_fails_is_said_in_a_line_each_and_nothing_has_changed(serve, tmp_path, pem):
    authority = trustme.CA()
    server = serve(TOKENS, listener(unused_port()))
    before = addresses(server)
    caller = authenticated(server, "billing")
    (tmp_path / "bad.pem").write_text("no certificate")
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        listeners = (
            listener(auth="token", tls_cert=f"{tmp_path}/bad.pem"),
            ListenerConfig(address=f"unix:{tmp_path}/s"),
            listener(taken),
            listener(unused_port(), tls_cert=pem(authority)),
            ListenerConfig(address="no.such.host.invalid:1"),
        )
        with pytest.raises(ConfigError) as failure:
            reload(server, *listeners, users=(MAIL,))
    lines = str(failure.value).splitlines()
    assert len(lines) == 3
    assert f"tls-cert {tmp_path}/bad.pem: contains no PEM certificate" in lines[0]
    assert lines[1].startswith(f"listener 127.0.0.1:{taken}: Address already in use")
    assert lines[2].startswith("listener no.such.host.invalid:1: ")
    assert not (tmp_path / "s").exists()
    assert addresses(server) == before
    assert caller.ask(b"use other\r\n") == b"USING other\r\n"
    authenticated(server, "billing").close()
    Caller(before[1]).close()


def test_a_bad_token_file_changes_nothing(run, tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{hash_of_token('one')} one\n")
    server = run(token_file=str(path))
    path.write_text("what is this?\n")
    with pytest.raises(ConfigError, match=str(path)):
        server.wait_for(server.server.reload(Config(port=0, token_file=str(path))))
    authenticated(server, "one").close()
    path.write_text(f"{hash_of_token('two')} two\n")
    server.wait_for(server.server.reload(Config(port=0, token_file=str(path))))
    authenticated(server, "two").close()


def test_a_new_certificate_is_for_new_connections(serve, pem):
    old, new = trustme.CA(), trustme.CA()
    keys = {"tls_cert": pem(old)}
    server = serve(listener(**keys))

    def connect_tls(authority):
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context.wrap_socket(socket.create_connection(server.address, 20), server_hostname="127.0.0.1")

    first = connect_tls(old)
    pem(new)
    reload(server, listener(**keys))
    with connect_tls(new) as second:
        for sock in (first, second):
            sock.sendall(b"use mail\r\n")
            assert sock.recv(100) == b"USING mail\r\n"
    first.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        connect_tls(old)


def test_of_two_reloads_at_once_the_last_wins(serve):
    server = serve(TOKENS)
    caller = authenticated(server, "billing")

    async def reload_often():
        await asyncio.gather(
            *[
                server.server.reload(Config(listeners=(TOKENS,), users=(user("billing", produce=f"tube-{number}"),)))
                for number in range(20)
            ]
        )

    server.wait_for(reload_often())
    assert caller.ask(b"use tube-19\r\n") == b"USING tube-19\r\n"
    assert caller.ask(b"use tube-18\r\n") == b"FORBIDDEN\r\n"


def test_reloads_while_clients_come_and_work(serve):
    server = serve(TOKENS, listener(user="mail"))
    failures = []
    over = threading.Event()

    def work(address, first):
        try:
            while not over.is_set():
                caller = Caller(address)
                if first:
                    assert caller.ask(first) == b"AUTHENTICATED\r\n"
                for _ in range(5):
                    assert caller.ask(b"put 0 0 60 1\r\nx\r\n").startswith(b"INSERTED")
                    assert caller.ask(b"reserve\r\n").startswith(b"RESERVED")
                    caller.line()
                caller.close()
        except Exception as error:
            failures.append(error)

    token, fixed = addresses(server)
    threads = [
        threading.Thread(target=work, args=pair) for pair in [(token, b"auth billing\r\n"), (fixed, b"")] for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for number in range(30):
        more = [listener(unused_port())] if number % 2 else []
        reload(server, TOKENS, listener(user="mail"), *more)
    over.set()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_a_server_that_stops_while_it_reloads_leaves_no_socket(loop_factory, monkeypatch, tmp_path):
    server = ServerThread(Config(listeners=(TOKENS,), users=(BILLING,)), loop_factory)
    resolving, resolved = threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def slow(host, *arguments, **keywords):
        if host == "slow":
            resolving.set()
            assert resolved.wait(60)
            host = "127.0.0.1"
        return look_up(host, *arguments, **keywords)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    port = unused_port()
    config = Config(
        listeners=(ListenerConfig(address=f"unix:{tmp_path}/s"), ListenerConfig(address=f"slow:{port}")), users=()
    )
    work = asyncio.run_coroutine_threadsafe(server.server.reload(config), server._loop)
    assert resolving.wait(60)
    threading.Timer(0.05, resolved.set).start()
    server.stop()
    assert work.done()
    assert not (tmp_path / "s").exists()
    socket.create_server(("127.0.0.1", port)).close()


# SIGHUP


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.toml"

    def write(text):
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", path)  # it may be read at any moment
        return str(path)

    return write


ONE_USER = """
[[listener]]
address = "127.0.0.1:{}"
user = "billing"
[[user]]
name = "billing"
produce = ["{}"]
"""


def test_sighup_reads_the_config_file_again(launch, config_file):
    port = unused_port()
    process = launch("--config", config_file(ONE_USER.format(port, "bill-*")))
    caller = Caller(process.address)
    assert caller.ask(b"use mail\r\n") == b"FORBIDDEN\r\n"
    at_once = 'keepalive = "9:9:9"\nmax-connections = 9\nidle-timeout = 60\n'
    config_file("tick = 5\nslow-ms = 1\n" + at_once + ONE_USER.format(port, "mail"))
    process.send_signal(signal.SIGHUP)
    eventually(lambda: "reloaded: listens on" in process.log, "the log says so")
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    eventually(lambda: "--tick, --slow-ms: changes take effect at the next start" in process.log, "it is said")
    config_file("tick = 'often'\n" + ONE_USER.format(port, "").replace('user = "billing"', 'user = "nobody"'))
    process.send_signal(signal.SIGHUP)
    eventually(lambda: process.log.count("SIGHUP: not reloaded: ") >= 2, "each mistake has its line")
    assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
    assert process.stop() == 0
    assert "Traceback" not in process.log


def test_sighup_reads_the_token_file_of_the_command_line_again(launch, tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{hash_of_token('one')} one\n")
    process = launch("-p", "0", "--token-file", str(path))
    caller = Caller(process.address)
    assert caller.ask(b"auth one\r\n") == b"AUTHENTICATED\r\n"
    path.write_text(f"{hash_of_token('two')} two\n")
    process.send_signal(signal.SIGHUP)
    assert caller.rest() == b""
    caller.close()
    caller = Caller(process.address)
    assert caller.ask(b"auth two\r\n") == b"AUTHENTICATED\r\n"
    assert process.stop() == 0


def test_systemd_is_told_when_a_reload_begins_and_when_it_is_over(launch, tmp_path, config_file):
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    supervisor.settimeout(60)
    supervisor.bind(f"{tmp_path}/notify")
    path = config_file(ONE_USER.format(unused_port(), "*"))
    process = launch("--config", path, environment={"NOTIFY_SOCKET": f"{tmp_path}/notify"})
    assert supervisor.recv(100) == b"READY=1"
    for text in (None, "nonsense"):
        if text:
            config_file(text)
        before = time.monotonic_ns() // 1000
        process.send_signal(signal.SIGHUP)
        state, moment = supervisor.recv(100).split(b"\n")
        assert state == b"RELOADING=1"
        assert before <= int(moment.removeprefix(b"MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
        assert supervisor.recv(100) == b"READY=1"
    process.stop()
    assert supervisor.recv(100) == b"STOPPING=1"
    supervisor.close()


def test_inherited_sockets_are_those_of_the_listeners_in_order_and_stay_whatever_the_addresses_are(launch, config_file):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    fixed = '[[listener]]\naddress = "127.0.0.1:{}"\nuser = "billing"\n'
    users = '[[user]]\nname = "billing"\nproduce = ["{}"]\n'
    path = config_file('[[listener]]\naddress = "127.0.0.1:1"\n' + fixed.format(2) + users.format("bill-*"))
    process = launch(line=activated(sockets, "--config", path), pass_fds=[sock.fileno() for sock in sockets])
    callers = [Caller(sock.getsockname()) for sock in sockets]
    assert [caller.ask(b"use mail\r\n") for caller in callers] == [b"USING mail\r\n", b"FORBIDDEN\r\n"]
    config_file(fixed.format(3) + fixed.format(4) + users.format("*"))
    process.send_signal(signal.SIGHUP)
    for caller in callers:
        eventually(lambda caller=caller: caller.ask(b"use mail\r\n") == b"USING mail\r\n", "it has the new rights")
    config_file(fixed.format(3) + users.format("*"))
    process.send_signal(signal.SIGHUP)
    eventually(lambda: "SIGHUP: not reloaded: LISTEN_FDS: bad value 2: must be 1" in process.log, "it is said")
    for sock in sockets:
        caller = Caller(sock.getsockname())
        assert caller.ask(b"use mail\r\n") == b"USING mail\r\n"
        caller.close()
        sock.close()
    for caller in callers:
        caller.close()
    assert process.stop() == 0
