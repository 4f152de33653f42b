"""HTTP for operators over sockets: figures, health, tokens, TLS, reloads, and what is there while a server starts."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import programs
import pytest
from activation import activated
from operators import HERE, Operator, ask, figures, place
from tls_peers import Files, client_certificate, client_context

from beanstalk_server import Config, ListenerConfig, UserConfig
from beanstalk_server.access.accounts import hash_of_token
from beanstalk_server.cli.server import main
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings import system
from beanstalk_server.settings.declaration import BAD_OPTION, ConfigError
from conformance.address import TIMEOUT, connect
from harness.caller import Caller
from harness.in_thread import ServerThread
from harness.servers import environment_of, imported, unused_port
from harness.waiting import eventually

OPERATOR = UserConfig(name="operator", token_sha256=(hash_of_token("secret"),), inspect=("*",), uid=(os.getuid(),))
LIMITED = UserConfig(name="limited", token_sha256=(hash_of_token("small"),), inspect=("mail-*",))
BEARER = {"Authorization": "Bearer secret"}


def listener(**keys):
    return ListenerConfig(**{"address": HERE, "protocol": "http"} | keys)


@pytest.fixture
def serve(run):
    """Starts a server with a plain listener for clients, and others."""

    def start(*listeners, users=(OPERATOR, LIMITED), **settings):
        return run(listeners=(ListenerConfig(address=HERE), *listeners), users=users, **settings)

    return start


# What is there


def test_an_operator_sees_what_clients_do(run):
    server = run(http=HERE)
    caller = server.connect()
    assert caller.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    found = figures(place(server))
    assert found["beanstalkd_current_jobs", "ready"] == 1
    assert found["beanstalkd_tube_current_jobs", "default", "ready"] == 1
    assert found["beanstalkd_current_connections",] == 1  # without those of operators
    assert found["beanstalkd_commands_total", "put"] == 1
    status, body = ask(place(server), "/stats.json")
    assert (status, json.loads(body)["server"]["current-jobs-ready"]) == (200, 1)


@pytest.mark.slow
def test_promtool_has_nothing_to_say(run, tmp_path):
    server = run(http=HERE, http_tubes=2, binlog=str(tmp_path))
    caller = server.connect()
    for name in (b"a", b"b", b"c"):
        caller.ask(b"use %b\r\n" % name)
        caller.ask(b"put 0 0 60 1\r\nx\r\n")
    body = ask(place(server), "/metrics")[1]
    done = subprocess.run(
        [programs.find("promtool", "prometheus"), "check", "metrics"],
        input=body,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_scrapes_under_load_lose_nothing_and_count_everything(run):
    server = run(http=HERE, http_tubes=10)
    stop = threading.Event()
    done = []

    def work(number):
        caller = server.connect()
        count = 0
        caller.ask(b"watch load-%d\r\n" % number)
        while not stop.is_set():
            caller.ask(b"use load-%d-%d\r\n" % (number, count % 100))
            assert caller.ask(b"put 0 0 60 1\r\nx\r\n").startswith(b"INSERTED")
            count += 1
        done.append(count)
        caller.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    before = 0.0
    for _ in range(10):
        found = figures(place(server))
        assert found["beanstalkd_jobs_total",] >= before
        before = found["beanstalkd_jobs_total",]
    stop.set()
    for thread in threads:
        thread.join()
    found = figures(place(server))
    assert found["beanstalkd_current_jobs", "ready"] == sum(done)
    rows = [value for key, value in found.items() if key[0] == "beanstalkd_tube_current_jobs" and key[2] == "ready"]
    assert sum(rows) == sum(done)
    assert found["beanstalkd_tubes_summed",] == found["beanstalkd_current_tubes",] - 10


def test_what_is_measured_is_shown(run, tmp_path):
    server = run(http=HERE, binlog=str(tmp_path))
    caller = server.connect()
    caller.ask(b"put 0 0 60 0\r\n\r\n")
    assert caller.ask(b"reserve\r\n") == b"RESERVED 1 0\r\n"
    caller.line()
    assert caller.ask(b"delete 1\r\n") == b"DELETED\r\n"
    found = figures(place(server))
    assert found["beanstalkd_job_wait_seconds_count",] == 1
    assert found["beanstalkd_job_run_seconds_count",] == 1
    assert found["beanstalkd_timer_lateness_seconds_count",] == 0
    assert found["beanstalkd_commit_seconds_count",] == 2
    assert found["beanstalkd_loop_held_seconds_count",] >= 0


# Who may see it


def test_figures_need_a_token_at_a_listener_with_tokens_and_health_does_not(serve):
    server = serve(listener(auth="token"))
    address = place(server)
    assert [ask(address, path)[0] for path in ("/healthz", "/readyz", "/metrics", "/stats.json")] == [
        200,
        200,
        401,
        401,
    ]
    assert ask(address, "/metrics", {"Authorization": "Bearer wrong"})[0] == 401
    assert ask(address, "/metrics", {"Authorization": "Bearer small"})[0] == 403
    assert ask(address, "/metrics", BEARER)[0] == 200
    assert figures(address, headers=BEARER)["beanstalkd_auth_failures_total",] == 1


def test_whoever_is_refused_is_counted(serve, caplog):
    server = serve(listener())
    reload(server, listener(), ListenerConfig(address=HERE, auth="token"))
    clients = server.call(lambda: server.server.listeners.addresses[1])
    for line, reply in ((b"auth wrong\r\n", b"UNAUTHORIZED\r\n"), (b"auth small\r\n", b"AUTHENTICATED\r\n")):
        caller = Caller(clients)
        assert caller.ask(line) == reply
        if b"small" in line:
            assert caller.ask(b"put 0 0 60 0\r\n\r\n") == b"FORBIDDEN\r\n"
        caller.close()
    found = figures(place(server))
    assert found["beanstalkd_auth_failures_total",] == 1
    assert found["beanstalkd_forbidden_commands_total",] == 1
    assert any("forbidden for user limited at " in message for message in caplog.messages)


def test_a_long_page_comes_whole_over_tls(serve, tmp_path):
    server = serve(listener(**Files(tmp_path).keys()))
    server.call(lambda: [server.server.broker.tubes.add(f"t{index}") for index in range(2000)])
    assert figures(place(server), context=client_context())["beanstalkd_tubes_summed",] == 1001


def test_a_certificate_names_the_user(serve, tmp_path):
    server = serve(listener(auth="certificate", **Files(tmp_path).keys(mutual=True)))
    for name, expected in (("operator", 200), ("limited", 403), ("nobody", 403)):
        context = client_context(client_certificate(common_name=name))
        assert ask(place(server), "/metrics", context=context)[0] == expected
        assert ask(place(server), "/healthz", context=context)[0] == 200


def test_a_uid_names_the_user(serve, open_path):
    path = str(open_path / "http")
    serve(listener(address=f"unix:{path}", auth="peer"))
    assert ask(path, "/metrics")[0] == 200
    serve(listener(address=f"unix:{path}2", auth="peer"), users=(LIMITED,))
    assert ask(path + "2", "/metrics")[0] == 403
    assert ask(path + "2", "/healthz")[0] == 200


def test_a_proxy_may_speak_for_operators(serve):
    server = serve(listener(proxy_protocol=True, trusted=("127.0.0.0/8",), auth="token"))
    header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"
    assert ask(place(server), "/healthz", header=header)[0] == 200
    assert ask(place(server), "/metrics", BEARER, header=header)[0] == 200
    with connect(place(server)) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b" 200 " not in sock.recv(100)


def test_a_body_that_nobody_wants_does_not_keep_its_sender_from_the_answer(run):
    caller = Caller(place(run(http=HERE)))
    caller.send(b"POST /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 200000\r\n\r\n" + bytes(200000))
    assert caller.line() == b"HTTP/1.1 405 Method Not Allowed\r\n"
    caller.rest()


# Bounds


def test_more_operators_than_there_may_be_do_not_keep_out_others(run):
    server = run(http=HERE)
    idle = [connect(place(server)) for _ in range(200)]
    for sock in idle[::2]:
        sock.sendall(b"GET /healthz HTTP/1.1\r\n")
    for _ in range(3):
        assert ask(place(server), "/healthz")[0] == 200
    for sock in idle:
        sock.close()
    eventually(lambda: not server.call(lambda: server.server._http.listeners.taken), "all are gone")


# Health


@pytest.fixture
def recovering(monkeypatch, tmp_path, loop_factory):
    """A server that recovers its binlog for as long as a test wants."""
    from beanstalk_server.server.service import Service

    go_on, server = threading.Event(), None
    port = unused_port()
    restore = Service.restore

    def slow_restore(service):
        if service.journal.keeps:
            assert go_on.wait(TIMEOUT)
        restore(service)

    monkeypatch.setattr(Service, "restore", slow_restore)
    config = Config(port=0, http=f"127.0.0.1:{port}", binlog=str(tmp_path))
    starting = threading.Thread(target=lambda: servers.append(ServerThread(config, loop_factory)))
    servers = []
    starting.start()
    yield ("127.0.0.1", port), go_on
    go_on.set()
    starting.join()
    for server in servers:
        server.stop()


def is_there(address):
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_server_that_recovers_is_alive_and_not_ready(recovering):
    address, go_on = recovering
    eventually(lambda: is_there(address), "it listens for operators")
    assert ask(address, "/healthz") == (200, "ok\n")
    assert ask(address, "/readyz") == (503, "starting: recovering the jobs\n")
    assert ask(address, "/metrics")[0] == 503
    go_on.set()
    eventually(lambda: ask(address, "/readyz")[0] == 200, "it is ready")
    assert ask(address, "/metrics")[0] == 200


def test_a_binlog_that_cannot_be_used_ends_a_start_with_http_too(tmp_path, loop_factory):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="binlog"):
        ServerThread(Config(port=0, http=HERE, binlog=str(tmp_path / "file")), loop_factory)


SLOW_START = """
import sys, time
from beanstalk_server.cli.server import main
from beanstalk_server.queue.journal import RestoreInterruptedError
from beanstalk_server.server.service import Service

def restore(service):
    if service.journal.keeps:
        print("it restores", file=sys.stderr, flush=True)
        while not service.journal.interrupted:
            time.sleep(0.01)
        raise RestoreInterruptedError

Service.restore = restore
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("options", [(), ("--http", HERE)], ids=["in the event loop", "in a thread"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_recovers(tmp_path, number, options):
    line = [sys.executable, "-P", "-c", SLOW_START, "-p", "0", "-b", str(tmp_path), *options]
    environment = environment_of(imported())
    with subprocess.Popen(line, env=environment, cwd="/", stderr=subprocess.PIPE, text=True) as process:
        while process.stderr.readline() != "it restores\n":
            assert process.poll() is None
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "Traceback" not in said
    assert "stopped before the server was ready" in said


def test_a_server_that_drains_is_not_ready_until_it_drains_no_more(run):
    server = run(http=HERE)
    assert ask(place(server), "/readyz") == (200, "ok\n")
    server.call(server.server.drain)
    assert ask(place(server), "/readyz") == (503, "draining: refuses new jobs\n")
    assert ask(place(server), "/healthz")[0] == 200
    assert figures(place(server))["beanstalkd_draining",] == 1
    caller = server.connect()
    assert caller.ask(b"undrain\r\n") == b"NOT_DRAINING\r\n"
    assert ask(place(server), "/readyz") == (200, "ok\n")


def test_a_server_that_ends_says_why_until_the_last_commit(run, monkeypatch):
    for end, said in (("stops", "stopping\n"), ("fails", "failed: no more changes are acknowledged\n")):
        server = run(http=HERE)
        address = place(server)
        waiting = asyncio.Event()
        stop = server.server.service.stop

        async def slow_stop(waiting=waiting, stop=stop):
            await waiting.wait()
            await stop()

        monkeypatch.setattr(server.server.service, "stop", slow_stop)
        if end == "stops":
            server.call(server.server._begin_stop)
        else:
            server.call(server.server.gate.fail, OSError("no disk"))
        assert ask(address, "/readyz") == (503, said)
        assert ask(address, "/healthz")[0] == 200
        server.call(waiting.set)
        server.wait_for(server.server.stop())
        assert not is_there(address)


# Settings


def reload(server, *listeners, users=(OPERATOR, LIMITED), **settings):
    main = ListenerConfig(address=HERE)
    server.wait_for(server.server.reload(Config(listeners=(main, *listeners), users=users, **settings)))


def test_a_reload_opens_and_closes_listeners_and_changes_who_may_see(serve):
    server = serve()
    assert server.server._http is None
    reload(server, listener())
    first = place(server)
    assert ask(first, "/metrics")[0] == 200
    stays = Operator(first)
    assert stays.get("/metrics")[0] == 200
    reload(server, listener(auth="token"))
    assert place(server) == first
    assert stays.get("/metrics")[0] == 401
    assert stays.get("/metrics", BEARER)[0] == 200
    reload(server, listener(auth="token"), users=(LIMITED,))
    assert stays.get("/metrics", BEARER)[0] == 401
    reload(server, http=f"127.0.0.1:{unused_port()}")
    assert not is_there(first)
    assert ask(place(server), "/metrics")[0] == 200
    stays.close()
    reload(server)
    assert server.call(lambda: server.server._http.listeners.all) == []


def test_what_is_spoken_at_an_address_cannot_change_while_the_server_runs(serve):
    address = f"127.0.0.1:{unused_port()}"
    server = serve(ListenerConfig(address=address))
    with pytest.raises(ConfigError, match="protocol: cannot be changed by a reload"):
        reload(server, listener(address=address))
    Caller(("127.0.0.1", int(address.rpartition(":")[2]))).close()


@pytest.fixture
def without_library(monkeypatch):
    monkeypatch.setattr(system.importlib.util, "find_spec", lambda name: None)


def test_without_the_library_a_start_and_a_reload_are_refused_and_say_what_is_missing(serve, without_library):
    said = r"HTTP at 127.0.0.1:0: needs h11, which is not installed: pip install '.\[http\]' in a clone"
    with pytest.raises(StartError, match=said):
        serve(listener())
    server = serve()
    with pytest.raises(ConfigError, match=said):
        reload(server, http=HERE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http = '127.0.0.1:9'", "HTTP at 127.0.0.1:9: needs h11"),
        ("[[listener]]\naddress = 'h:1'\n[[listener]]\naddress = 'h:9'\nprotocol = 'http'", "HTTP at h:9: needs h11"),
    ],
)
def test_the_check_of_a_configuration_says_so_too(tmp_path, capsys, without_library, text, expected):
    path = tmp_path / "server.toml"
    path.write_text(text)
    assert main(["--config", str(path), "--check-config"]) == BAD_OPTION
    assert expected in capsys.readouterr().err


def test_a_start_that_fails_before_anybody_could_ask_says_why(run, tmp_path):
    with pytest.raises(StartError, match="token"):
        run(http=HERE, token_file=str(tmp_path / "nothing"))
    with pytest.raises(StartError, match="--listen"):
        run(http=HERE, listen="host.invalid")


def test_an_address_that_is_taken_is_named(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartError, match=f"--http {address}: Address already in use"):
            run(http=address)


def test_systemd_may_open_the_socket(launch):
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        port = second.getsockname()[1]
        line = activated([first, second], "--http", f"127.0.0.1:{port}")
        process = launch(line=line, pass_fds=[first.fileno(), second.fileno()])
        assert ask(("127.0.0.1", port), "/healthz")[0] == 200
        assert process.stop() == 0


def test_io_processes_leave_operators_to_the_process_with_the_jobs(run):
    server = run(http=HERE, io_processes=1)
    caller = server.connect()
    assert caller.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED 1\r\n"
    found = figures(place(server))
    assert found["beanstalkd_current_jobs", "ready"] == 1
    assert found["beanstalkd_current_connections",] == 1
