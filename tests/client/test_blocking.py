"""The blocking client: with this server, with beanstalkd, and with servers that fail at every byte."""

import array
import asyncio
import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import programs
import pytest
from beanstalk_client import (
    Client,
    ConnectionLostError,
    ExistsError,
    ForbiddenError,
    Job,
    NoAnswerError,
    NotFoundError,
    NotIgnoredError,
    ReservationLostError,
    TimedOutError,
    TooLateError,
    UnauthorizedError,
    UndecodableError,
    UnknownCommandError,
    UnsupportedError,
)
from beanstalk_client.commands import make
from beanstalk_client.connection import Connection
from consuming import BEANSTALKD, imported, restartable
from scripted_server import CLOSE, RESET, SILENCE
from tls_peers import Files, client_context

from beanstalk_server import Server, TubeConfig
from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.settings.options import Config
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness import servers
from harness.waiting import WITHIN, eventually

TOKEN = new_token()
MAIL = UserConfig(name="mail", token_sha256=(hash_of_token(TOKEN),), produce=("mail-*",), consume=("mail-*",))


@pytest.mark.parametrize("encoding", ["utf-8", None])
def test_every_command_that_all_servers_have(either, encoding):
    def body(text):
        return text if encoding else text.encode()

    with Client(either.address, encoding, "t", "t") as queue:
        assert queue.encoding == encoding
        assert queue.using() == "t"
        assert queue.watching() == ["t"]
        assert queue.watch("u") == 2
        assert queue.ignore("u") == 1
        with pytest.raises(NotIgnoredError):
            queue.ignore("t")
        first = queue.put(body("one\r\n"), priority=1)
        second = queue.put(body("two"), 2, 100, 30)
        assert queue.peek(first).body == queue.peek_ready().body == body("one\r\n")
        assert queue.peek_delayed().id == second
        with pytest.raises(NotFoundError):
            queue.peek_buried()
        job = queue.reserve()
        assert (job.id, job.body) == (first, body("one\r\n"))
        queue.touch(job)
        queue.bury(job)
        assert queue.peek_buried().id == first
        assert queue.kick(5) == 1
        assert queue.reserve(timeout=1).id == first
        queue.release(job, 7, 100)
        assert queue.stats_job(job)["pri"] == 7
        queue.kick_job(first)
        queue.release(queue.reserve())
        assert queue.stats_job(first)["pri"] == 65536
        assert queue.reserve_job(second).body == body("two")
        assert [job.id for job in queue.reserve_batch(9, 1)] == [first]
        with pytest.raises(TimedOutError):
            queue.reserve_batch(9, 0)
        for number in (first, second):
            queue.delete(number)
        with pytest.raises(NotFoundError):
            queue.delete(job)
        queue.pause_tube("t", 0)
        assert queue.stats()["total-jobs"] == 2
        assert queue.stats_tube("t")["cmd-delete"] == 2
        assert set(queue.tubes()) == {"default", "t"}
        ids = [queue.put(body(str(number))) for number in range(5)]
        assert [job.id for job in queue.reserve_batch(3)] == ids[:3]
        assert queue.knows("put")
        queue.quit()
        with pytest.raises(ConnectionLostError, match="closed"):
            queue.put(body("x"))


def test_every_command_that_beanstalkd_has_not(run):
    server = run(tubes=[TubeConfig(match="work", max_tries=1, dead_tube="dead")])
    with Client(server.address, use="work", watch="work") as queue:
        first = queue.put_keyed("a", "one", delay=5.5)
        with pytest.raises(ExistsError) as exists:
            queue.put_keyed("a", "two")
        assert exists.value.id == first
        assert queue.replace_keyed("a", "three", priority=1, delay=100, ttr=30) == first
        assert queue.peek_keyed("a").body == "three"
        queue.reschedule(first, 50)
        queue.reschedule_keyed("a", 0.001)
        job = queue.reserve(5)
        for refused in (
            lambda: queue.cancel(job),
            lambda: queue.cancel_keyed("a"),
            lambda: queue.reschedule(job.id, 1),
            lambda: queue.replace_keyed("a", "five"),
        ):
            with pytest.raises(TooLateError):
                refused()
        queue.delete(job)
        second = queue.put_with("x", key="k", hold=100, at=datetime.datetime.now() + datetime.timedelta(hours=1))
        queue.cancel(second)
        assert queue.put_with("x", key="k", delay=9) != second
        queue.cancel_keyed("k")
        failing = queue.put("fails")
        queue.release(queue.reserve(1))
        assert queue.stats_job(failing)["tube"] == "dead"
        assert queue.redrive("dead", 9) == 1
        assert queue.move_jobs("work", "ready", "other", 5) == 1
        assert [entry["id"] for entry in queue.list_jobs("other")] == [failing]
        assert [entry["name"] for entry in queue.stats_tubes(prefix="o")] == ["other"]
        assert [entry["name"] for entry in queue.stats_tubes(first="other")] == ["other", "work"]
        assert len(queue.list_clients()) == 1
        assert queue.clear_tube("other") == 1
        with pytest.raises(NotFoundError):
            next(queue.list_jobs("other"))
        queue.drain()
        queue.undrain()
        for command in ("put-with", "reserve-batch", "stats-tubes", "drain", "list-clients", "cancel"):
            assert queue.knows(command)
        assert queue.stats()["draining"] == "false"


def test_beanstalkd_is_asked_what_it_knows_and_gets_no_byte_of_a_body(beanstalkd):
    with Client(beanstalkd.address) as queue:
        job = queue.put("precious")
        for _ in range(2):
            for put in (
                lambda: queue.put_keyed("k", f"delete {job}"),
                lambda: queue.replace_keyed("k", f"delete {job}"),
                lambda: queue.put_with(f"delete {job}"),
            ):
                with pytest.raises(UnsupportedError):
                    put()
        for asked in (
            lambda: queue.cancel(job),
            lambda: queue.clear_tube("default"),
            queue.drain,
            lambda: next(queue.stats_tubes()),
            lambda: next(queue.list_jobs("default")),
            queue.list_clients,
        ):
            with pytest.raises(UnknownCommandError):
                asked()
        for command in ("put-with", "reserve-batch", "stats-tubes", "drain", "cancel", "auth"):
            assert not queue.knows(command)
        assert queue.peek(job).body == "precious"


def test_a_put_with_a_body_is_asked_for_once_for_each_connection(scripted):
    put = b"put-keyed k 65536 0 60 1\r\nx\r\n"
    server = scripted(
        [(b"cancel-keyed -\r\n", b"BAD_FORMAT\r\n"), (put, b"INSERTED 1\r\n"), (put, b"INSERTED 2\r\n", CLOSE)],
        [(b"cancel-keyed -\r\n", b"UNKNOWN_COMMAND\r\n"), (b"cancel-keyed -\r\n", CLOSE)],
    )
    with Client(server.address) as queue:
        assert [queue.put_keyed("k", "x"), queue.put_keyed("k", "x")] == [1, 2]
        queue._used = 0  # long ago: so it is looked at
        eventually(lambda: not queue._connection.is_alive(), "the server has closed")
        for _ in range(2):
            with pytest.raises(UnsupportedError):
                queue.put_keyed("k", "x")


@pytest.mark.parametrize("give_up", [CLOSE, RESET])
def test_what_may_be_done_is_not_said_again(scripted, give_up):
    server = scripted(
        [(b"put 65536 0 60 1\r\nx\r\n", give_up)],
        [(b"put 65536 0 60 1\r\ny\r\n", b"INSERTED 1\r\n")],
    )
    with Client(server.address) as queue:
        with pytest.raises(ConnectionLostError, match="may or may not") as lost:
            queue.put("x")
        assert lost.value.maybe_done
        assert queue.put("y") == 1


@pytest.mark.parametrize("give_up", [CLOSE, RESET])
def test_what_changes_nothing_is_said_again_once(scripted, give_up):
    server = scripted(
        [(b"use t\r\n", b"USING t\r\n"), (b"peek 1\r\n", give_up)],
        [(b"use t\r\n", b"USING t\r\n"), (b"peek 1\r\n", b"FOUND 1 1\r\nx\r\n"), (b"peek 1\r\n", give_up)],
        [(b"use t\r\n", b"USING t\r\n"), (b"peek 1\r\n", give_up)],
    )
    with Client(server.address, use="t") as queue:
        assert queue.peek(1).body == "x"
        with pytest.raises(ConnectionLostError):
            queue.peek(1)


def test_without_reconnecting_every_command_fails_after_a_loss(scripted):
    server = scripted([(b"peek 1\r\n", CLOSE)], [(b"peek 1\r\n", b"NOT_FOUND\r\n")])
    with Client(server.address, reconnect=False) as queue:
        with pytest.raises(ConnectionLostError):
            queue.peek(1)
        with pytest.raises(ConnectionLostError, match="does not reconnect"):
            queue.peek(1)
    assert len(server.said) == 1


def test_after_a_loss_it_uses_and_watches_as_before_and_tells_what_is_reserved_no_more(scripted):
    greeting = [
        (b"use b\r\n", b"USING b\r\n"),
        (b"watch c\r\n", b"WATCHING 2\r\n"),
        (b"watch d\r\n", b"WATCHING 3\r\n"),
        (b"ignore default\r\n", b"WATCHING 2\r\n"),
    ]
    server = scripted(
        [
            (b"use a\r\n", b"USING a\r\n"),
            (b"watch c\r\n", b"WATCHING 2\r\n"),
            (b"use b\r\n", b"USING b\r\n"),
            (b"watch d\r\n", b"WATCHING 3\r\n"),
            (b"ignore default\r\n", b"WATCHING 2\r\n"),
            (b"reserve\r\n", b"RESERVED 7 1\r\nx\r\n"),
            (b"reserve\r\n", b"RESERVED 8 1\r\ny\r\n"),
            (b"delete 8\r\n", b"DELETED\r\n"),
            (b"reserve\r\n", CLOSE),
        ],
        [
            *greeting,
            (b"reserve\r\n", b"RESERVED 9 1\r\nz\r\n"),
            (b"release 9 65536 0\r\n", b"RELEASED\r\n"),
            (b"touch 7\r\n", b"NOT_FOUND\r\n"),
        ],
    )
    told = []
    with Client(server.address, use="a", watch=["c", "default"], on_reconnect=told.append) as queue:
        queue.use("b")
        queue.watch("d")
        queue.ignore("default")
        old, done = queue.reserve(), queue.reserve()
        queue.delete(done)
        new = queue.reserve()
        assert told == [{7}]
        for refused in (queue.touch, queue.release, queue.bury, queue.delete, queue.kick_job):
            with pytest.raises(ReservationLostError):
                refused(old)
        queue.release(new)
        with pytest.raises(NotFoundError):
            queue.touch(Job(7, "of somebody else"))
    assert server.said[1].endswith(b"release 9 65536 0\r\ntouch 7\r\n")


@pytest.mark.parametrize("program", [imported(), BEANSTALKD], ids=["ours", "beanstalkd"])
def test_a_job_is_deleted_on_the_server_that_it_has_come_from_and_on_no_other(program):
    with restartable(program) as server, Client(server.address, reconnect_timeout=WITHIN) as queue:
        queue.stats()
        queue.put("x")
        queue.put("y")
        old, seen = queue.reserve(0), queue.peek(2)
        with Client(server.address) as other:
            other.delete(seen)
            other.put("y")
        seen = queue.peek(3)
        queue._connection._sock.shutdown(socket.SHUT_RDWR)
        queue._used -= 2
        queue.delete(old)
        old = queue.reserve(0)
        assert old.id == 3
        server.kill()
        server.start()
        queue._used -= 2
        assert [queue.put("another") for _ in range(3)] == [1, 2, 3]
        refused = [queue.delete, queue.kick_job, queue.touch, queue.release, queue.bury]
        if program is not BEANSTALKD:
            refused += [queue.cancel, lambda job: queue.reschedule(job, 1), lambda job: queue.delete_batch([1, job])]
        for job in (old, seen):
            for refuse in refused:
                with pytest.raises(ReservationLostError):
                    refuse(job)
            with queue.pipeline(raise_errors=False) as together:
                replies = [together.delete(job), together.kick_job(job), together.put("z")]
            assert [type(reply.exception()) for reply in replies] == [ReservationLostError] * 2 + [type(None)]
        assert queue.peek(3).body == "another"
        queue.delete(queue.peek(3))


def test_a_job_in_a_pipeline_whose_connection_is_lost_is_not_named_to_another_server(scripted):
    server = scripted(
        [(b"reserve\r\n", b"RESERVED 7 1\r\nx\r\n", CLOSE)], [(b"put 65536 0 60 0\r\n\r\n", b"INSERTED 7\r\n")]
    )
    with Client(server.address) as queue:
        job = queue.reserve()
        with queue.pipeline(raise_errors=False) as together:
            deleted, put = together.delete(job), together.put("")
            eventually(lambda: not queue._connection.is_alive(), "the server has closed")
            queue._used -= 2
        assert put.result() == 7
        assert isinstance(deleted.exception(), ReservationLostError)


def test_a_loss_is_noticed_before_a_put_that_could_not_be_said_again(scripted):
    server = scripted([(b"stats\r\n", b"OK 4\r\n---\n\r\n", CLOSE)], [(b"put 65536 0 60 0\r\n\r\n", b"INSERTED 5\r\n")])
    with Client(server.address) as queue:
        assert queue.stats() == {}
        eventually(lambda: not queue._connection.is_alive(), "the server has closed")
        queue._used -= 2
        assert queue.put("") == 5


@pytest.mark.parametrize("script", [b"HTTP/1.1 400 Bad Request\r\n", b"DELETED\r\n", b"OK 3\r\n"])
def test_a_reply_that_makes_no_sense_ends_the_connection_and_nothing_is_said_again(scripted, script):
    server = scripted([(b"stats\r\n", script + b"abc\r\n" * 3)], [(b"stats\r\n", b"OK 4\r\n---\n\r\n")])
    with Client(server.address) as queue:
        with pytest.raises(ConnectionLostError, match=r"makes no sense|speaks HTTP"):
            queue.stats()
        assert queue.fileno() == -1
        assert queue.stats() == {}


CONVERSATION = [
    (b"auth secret\r\n", b"AUTHENTICATED\r\n"),
    (b"use t\r\n", b"USING t\r\n"),
    (b"put 65536 0 60 1\r\nx\r\n", b"INSERTED 1\r\n"),
    (b"reserve\r\n", b"RESERVED 1 1\r\nx\r\n"),
    (b"delete 1\r\n", b"DELETED\r\n"),
]


def converse(address, **keywords):
    """What CONVERSATION has, as calls."""
    with Client(address, use="t", token="secret", reconnect=False, **keywords) as queue:
        assert queue.put("x") == 1
        job = queue.reserve()
        queue.delete(job)


@pytest.mark.parametrize("give_up", [CLOSE, RESET], ids=["closed", "reset"])
def test_a_server_that_dies_at_each_byte_is_an_error(scripted, give_up):
    converse(scripted(CONVERSATION).address)
    scripts = []
    for at, (request, reply) in enumerate(CONVERSATION):
        scripts += [[*CONVERSATION[:at], (request, reply[:size], give_up)] for size in range(len(reply))]
    server = scripted(*scripts)
    for _ in scripts:
        with pytest.raises((ConnectionLostError, ConnectionResetError)):
            converse(server.address)


@pytest.mark.parametrize("give_up", [CLOSE, RESET], ids=["closed", "reset"])
def test_a_loss_at_any_byte_of_the_set_up_is_an_attempt_that_failed(scripted, give_up, monkeypatch):
    monkeypatch.setattr("beanstalk_client.core.LONGEST_PAUSE", 0.001)
    greeting = [
        (b"auth secret\r\n", b"AUTHENTICATED\r\n"),
        (b"use t\r\nwatch t\r\nignore default\r\n", b"USING t\r\nWATCHING 2\r\nWATCHING 1\r\n"),
    ]
    cuts = []
    for at, (request, reply) in enumerate(greeting):
        cuts += [[*greeting[:at], (request, reply[:size], give_up)] for size in range(len(reply))]
    asked = b"list-tube-used\r\n"
    server = scripted([*greeting, (asked, CLOSE)], *cuts, [*greeting, (asked, b"USING t\r\n")])
    with Client(server.address, use="t", watch="t", token="secret", reconnect_timeout=WITHIN) as queue:
        assert queue.using() == "t"
    assert len(server.said) == len(cuts) + 2


def test_a_first_connection_that_is_lost_while_it_is_set_up_has_done_nothing(scripted):
    server = scripted([(b"use t\r\n", b"USI", CLOSE)])
    with pytest.raises(ConnectionLostError, match="the server has closed it") as lost:
        Client(server.address, use="t")
    assert not lost.value.maybe_done


def test_a_server_that_is_silent_at_each_byte_is_an_error(scripted):
    scripts = []
    for at, (request, reply) in enumerate(CONVERSATION):
        sizes = [0, 1, len(reply) - 1]
        if request == b"reserve\r\n":
            sizes = [1, len(reply) - 1]  # with none, it waits for a job
        scripts += [[*CONVERSATION[:at], (request, reply[:size], SILENCE)] for size in sizes]
    server = scripted(*scripts)
    for _ in scripts:
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.1 s") as silence:
            converse(server.address, timeout=0.1, connect_timeout=0.1)
        assert isinstance(silence.value, TimeoutError)


def test_a_server_may_be_silent_for_as_long_as_it_was_asked_to_wait(scripted, run):
    server = run()
    with Client(server.address, timeout=0.6) as queue:
        with pytest.raises(TimedOutError):
            queue.reserve(timeout=0.8)
        with pytest.raises(TimedOutError):
            queue.reserve_batch(5, timeout=0.8)
        with Client(server.address) as other:
            late = threading.Timer(0.8, other.put, ["late"])
            late.start()
            assert queue.reserve().body == "late"
            late.join()
    silent = scripted([(b"release 0 0 0.001\r\n", b"NOT_FOUND\r\n"), (b"reserve-with-timeout 0.050\r\n", SILENCE)])
    with Client(silent.address, timeout=0.55, reconnect=False) as queue, pytest.raises(NoAnswerError, match=r"0\.6 s"):
        queue.reserve(0.05)


def reserve_in_pipeline(queue):
    with queue.pipeline() as together:
        together.reserve()


@pytest.mark.parametrize("ask", [Client.reserve, reserve_in_pipeline], ids=["one", "all"])
@pytest.mark.parametrize("timeout", [0.01, 60], ids=["looks", "waits"])
def test_who_waits_is_told_at_once_that_another_thread_has_closed_the_client(run, ask, timeout):
    server = run()
    queue = Client(server.address, timeout=timeout)
    told = []

    def wait():
        try:
            ask(queue)
        except ConnectionLostError as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    with Client(server.address) as other:
        eventually(lambda: other.stats()["current-waiting"] == 1, "it waits")
    queue.close()
    thread.join(30)
    assert len(told) == 1


def test_a_server_that_begins_a_reply_must_end_it_also_where_it_may_wait_for_ever(scripted):
    server = scripted([(b"reserve\r\n", b"RESERVED 1", SILENCE)])
    with Client(server.address, timeout=0.02, reconnect=False) as queue, pytest.raises(NoAnswerError):
        queue.reserve()


def test_an_interrupt_gives_up_the_connection_so_that_no_reply_is_taken_for_another(run):
    class InterruptError(Exception):
        pass

    def interrupt(*_):
        raise InterruptError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Client(run().address) as queue:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(InterruptError):
                queue.reserve()
            job = queue.put("x")
            assert queue.reserve(0).id == job
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_next_node_is_taken_when_one_is_lost(run, scripted):
    nobody = ("127.0.0.1", servers.unused_port())
    dying = scripted([(b"use t\r\n", b"USING t\r\n"), (b"list-tube-used\r\n", CLOSE)])
    server = run()
    addresses = [nobody, "{}:{}".format(*dying.address), server.address]
    with Client(addresses, use="t") as queue:
        assert "unused" not in repr(queue)
        assert queue.using() == "t"
        assert queue.put("x") == 1
    with pytest.raises(ConnectionRefusedError):
        Client([nobody, nobody])


class Clock:
    """In place of `time`: sleeping takes no time, and nobody answers."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def wait_in_vain(self, address, seconds):
        self.now += seconds
        raise TimeoutError(address)


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
def test_a_command_fails_after_a_second_while_the_server_is_down(scripted, monkeypatch, is_silent):
    clock = Clock()
    monkeypatch.setattr("beanstalk_client.blocking.time", clock)
    server = scripted([(b"use t\r\n", b"USING t\r\n"), (b"list-tube-used\r\n", CLOSE)])
    with Client([server.address, ("127.0.0.1", servers.unused_port())], use="t") as queue:
        if is_silent:
            monkeypatch.setattr("beanstalk_client.blocking.open_socket", clock.wait_in_vain)
        with pytest.raises(ConnectionLostError, match="no server can be reached"):
            queue.using()
    assert clock.now == pytest.approx(1, abs=0.01)


def test_a_command_waits_for_a_server_that_is_started_again(beanstalkd):
    port = beanstalkd.address[1]
    beanstalkd.kill()
    line = [*servers.command(servers.BEANSTALKD), "-l", "127.0.0.1", "-p", str(port)]
    server = servers.Restartable(servers.BEANSTALKD, line, port, address=("127.0.0.1", port))
    try:
        with Client(server.address, use="t", watch="t", reconnect_timeout=WITHIN) as queue:
            queue.put("x")
            server.kill()
            timer = threading.Timer(0.2, server.start)
            timer.start()
            with pytest.raises(NotFoundError):  # it was said again; this server keeps no jobs
                queue.peek_ready()
            timer.join()
            assert queue.put("y") == 1
            assert queue.reserve().body == "y"
    finally:
        server.kill()


@pytest.mark.parametrize("encoding", ["utf-8", None])
def test_tls_and_a_token(run, tmp_path, encoding):
    files = Files(tmp_path)
    listener = files.listener(auth="token")
    server = run(listeners=(listener,), users=(MAIL,))
    context = client_context()
    body = "x" * 60_000 if encoding else b"x" * 60_000
    options = {"tls": context, "server_name": "localhost"}
    told = []
    arguments = {"encoding": encoding, "use": "mail-out", "watch": "mail-out", "on_reconnect": told.append}
    with Client(server.address, token=TOKEN, **arguments, **options) as queue:
        assert TOKEN not in repr(vars(queue)) + repr(queue._session)
        queue.put(body)
        job = queue.reserve(timeout=60)
        assert job.body == body
        with pytest.raises(ForbiddenError):
            queue.use("bill")
        queue._connection._sock.shutdown(socket.SHUT_RDWR)
        assert queue.reserve(timeout=60).id == job.id
        assert told == [{job.id}]
        with pytest.raises(ReservationLostError):
            queue.touch(job)
        queue._used -= 2
        assert queue.using() == "mail-out"
    port = server.address[1]
    with Client(f"beanstalks://:{TOKEN}@localhost:{port}", tls=context, use="mail-out") as queue:
        assert queue.put("hello")
    wrong = new_token()
    with pytest.raises(UnauthorizedError) as refused:
        Client(server.address, token=wrong, **options)
    assert wrong not in "".join(traceback.format_exception(refused.value)) + repr(refused.value)


def test_a_token_is_forgotten_where_nothing_needs_it(run, tmp_path):
    server = run(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(MAIL,))
    with Client(server.address, token=TOKEN) as queue:
        assert queue._session._token == TOKEN
    assert queue._session._token == ""
    with Client(server.address, token=TOKEN, reconnect=False) as queue:
        assert queue._session._token == ""


def test_unix_sockets_and_sockets_that_are_connected_already(run, tmp_path):
    path = tmp_path / "socket"
    run(listeners=(ListenerConfig(address=f"unix:{path}"),))
    with Client(str(path)) as queue:
        assert queue.put("x") == 1
    with Client(f"unix:{path}") as queue:
        assert queue.put("x") == 2
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    with Client(sock, None) as queue:
        assert queue.put(b"x") == 3
        sock.close()
        assert not queue._connection.is_alive()
        (result,) = queue.run_all([make.stats()])
        assert isinstance(result, ConnectionLostError)
        with pytest.raises(ConnectionLostError):
            queue.put(b"x")
    with pytest.raises(FileNotFoundError):
        Client(f"unix:{tmp_path}/nowhere")


def test_any_number_of_commands_go_out_together_while_replies_come(either):
    with Client(either.address, timeout=20) as queue:
        job = queue.put("x" * 60_000)
        results = queue.run_all([make.peek(job)] * 500 + [make.put(b"y" * 60_000)] * 100)
        assert {len(result.body) for result in results[:500]} == {60_000}
        assert results[500:] == list(range(job + 1, job + 101))


def test_a_body_that_cannot_be_decoded_leaves_the_client_in_step(run):
    server = run()
    with Client(server.address) as queue, Client(server.address, encoding=None) as other:
        for body in (b"one", b"\xff", b"three"):
            other.put(body)
        with pytest.raises(UnicodeDecodeError):
            queue.reserve_batch(3)
        assert queue.using() == "default"
        with pytest.raises(TypeError):
            other.put("text")


@pytest.mark.parametrize("refused", [lambda q: q.put("x", -1), lambda q: q.use("a b"), lambda q: q.put_keyed("-", "x")])
def test_what_no_server_would_take_is_not_sent(scripted, refused):
    server = scripted([(b"list-tube-used\r\n", b"USING default\r\n")])
    with Client(server.address) as queue:
        with pytest.raises(ValueError, match="must be"):
            refused(queue)
        assert queue.using() == "default"


@pytest.mark.slow
def test_the_client_runs_on_the_oldest_python_that_it_promises(run):
    """Debian's pypy3 is a real Python 3.9."""
    program = """
import sys
import beanstalk_client
from beanstalk_client import Client
with Client(("127.0.0.1", int(sys.argv[1])), use="t", watch="t") as queue:
    queue.put_with("x", key="k", delay=0.001)
    job = queue.reserve(timeout=60)
    queue.release(job, delay=1.5)
    print(job.body, queue.stats_job(job)["releases"], [entry["id"] for entry in queue.list_jobs("t", "delayed")])
    queue.put("y" * 60000)
    print(len(queue.reserve_batch(5)[0].body))
"""
    port = run().address[1]
    done = servers.run([programs.find("pypy3"), "-c", program, str(port)], {"PYTHONPATH": str(servers.ROOT / "client")})
    assert done.stderr == ""
    assert done.stdout.split() == ["x", "1", "[1]", "60000"]


@pytest.mark.parametrize("give_up", [CLOSE, RESET])
def test_a_batch_that_is_lost_while_it_is_reserved_one_by_one_is_begun_again(scripted, give_up):
    server = scripted(
        [
            (b"reserve-batch 3 5\r\n", b"BAD_FORMAT\r\n"),  # as beanstalkd answers
            (b"reserve-with-timeout 5\r\n", b"RESERVED 1 1\r\nx\r\n"),
            (b"reserve-with-timeout 0\r\nreserve-with-timeout 0\r\n", b"RESERVED 2 1\r\ny\r\n", give_up),
        ],
        [
            (b"reserve-with-timeout 5\r\n", b"RESERVED 1 1\r\nx\r\n"),
            (b"reserve-with-timeout 0\r\nreserve-with-timeout 0\r\n", b"RESERVED 2 1\r\ny\r\nTIMED_OUT\r\n"),
        ],
    )
    with Client(server.address) as queue:
        assert [job.id for job in queue.reserve_batch(3, 5)] == [1, 2]


@pytest.mark.parametrize("give_up", [CLOSE, RESET, SILENCE], ids=["closed", "reset", "silent"])
def test_a_server_that_goes_while_much_is_written_is_the_result_of_all_that_is_left(scripted, give_up):
    first = b"put 65536 0 60 60000\r\n"
    server = scripted([(first + b"x" * 60_000 + b"\r\n", b"INSERTED 1\r\n", give_up)])
    with Client(server.address, timeout=0.1, reconnect=False) as queue:
        results = queue.run_all([make.put(b"x" * 60_000)] * 500)
        assert results[0] == 1
        assert {type(result) for result in results[1:]} <= {ConnectionLostError, NoAnswerError}
        assert len(results) == 500
        with pytest.raises(ConnectionLostError):
            queue.stats()


def test_a_server_that_knows_no_fractions_is_told_whole_seconds_and_does_no_body(either):
    with Client(either.address, use="t", watch="t") as queue:
        victim = queue.put("victim", 1, 100)
        late = queue.put(f"delete {victim}", 2, 1.5, ttr=61.5)
        assert queue.peek(victim).body == "victim"
        assert queue.peek(late).body == f"delete {victim}"
        with pytest.raises(TimedOutError):
            queue.reserve(0.001)
        queue.kick_job(victim)
        job = queue.reserve()
        queue.release(job, 1, 0.001)
        queue.pause_tube("t", 99.5)
        with queue.pipeline() as together:
            last = together.put("last", 3, 99.001)
        assert queue.stats_job(last.result())["delay"] in (99, 100)
        assert queue.stats_tube("t")["pause"] in (99, 100)


def test_whole_seconds_are_rounded_up_and_the_server_is_asked_once_for_each_connection(scripted):
    asked = (b"release 0 0 0.001\r\n", b"BAD_FORMAT\r\n")
    server = scripted(
        [
            asked,
            (b"put 65536 2 61 1\r\na\r\n", b"INSERTED 1\r\n"),
            (b"reserve-with-timeout 1\r\n", b"TIMED_OUT\r\n"),
            (b"put 65536 1 60 1\r\nb\r\n", CLOSE),
        ],
        [
            (b"release 0 0 0.001\r\n", b"NOT_FOUND\r\n"),
            (b"put 65536 0.250 60 1\r\nc\r\n", b"INSERTED 2\r\n"),
            (b"quit\r\n",),
        ],
    )
    queue = Client(server.address)
    assert queue.put("a", delay=1.001, ttr=60.5) == 1
    with pytest.raises(TimedOutError):
        queue.reserve(0.5)
    with pytest.raises(ConnectionLostError):
        queue.put("b", delay=0.5)
    assert queue.put("c", delay=0.25) == 2
    queue.quit()


def test_a_batch_with_a_body_that_is_no_text_is_not_lost(either):
    with Client(either.address, None) as raw, Client(either.address) as queue:
        bodies = [b"one", b"\xff", b"three"]
        ids = [raw.put(body) for body in bodies]
        with pytest.raises(UndecodableError, match=f"job {ids[1]}: ") as refused:
            queue.reserve_batch(9, 0)
        assert [(job.id, job.body) for job in refused.value.jobs] == [
            (ids[0], "one"),
            (ids[1], b"\xff"),
            (ids[2], "three"),
        ]
        for job in refused.value.jobs:
            queue.release(job)
        with pytest.raises(UndecodableError) as refused:
            queue.peek(ids[1])
        assert (refused.value.jobs[0].is_reserved, refused.value.object) == (False, b"\xff")


def test_a_reply_too_many_ends_the_connection(scripted):
    server = scripted(
        [(b"delete 1\r\n", b"DELETED\r\nDELETED\r\n", SILENCE)],
        [(b"delete 2\r\n", b"DELETED\r\n"), (b"quit\r\n",)],
    )
    queue = Client(server.address)
    queue.delete(1)
    queue.delete(2)
    assert server.said == [b"delete 1\r\n", b"delete 2\r\n"]
    queue.quit()


def test_what_is_no_body_is_refused(run):
    with Client(run().address) as queue:
        for body in (5, None, ["a"], bytearray(b"a"), memoryview(array.array("i", [1, 2]))):
            with pytest.raises(TypeError, match="a body must be"):
                queue.put(body)


@pytest.mark.parametrize("encoding", ["utf-9", "rot13"])
def test_an_encoding_that_there_is_not_is_refused_at_once(encoding):
    with pytest.raises(ValueError, match="encoding"):
        Client("127.0.0.1:1", encoding)


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "reconnect_timeout"])
@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_timeout_that_cannot_be_is_refused_at_once(name, seconds):
    with pytest.raises(ValueError, match=f"^{name} is "):
        Client("127.0.0.1:1", **{name: seconds})


FORK = """
import os, sys, threading
from beanstalk_client import Client, ReservationLostError
found = []
with Client(sys.argv[1], use="mine") as queue:
    busy = Client(sys.argv[1], watch="other")
    waits = threading.Thread(target=lambda: found.append(busy.reserve()), daemon=True)
    waits.start()
    while not queue.stats()["current-waiting"]:
        pass
    queue.put("a")
    queue.watch("mine")
    job = queue.reserve()
    child = os.fork()
    if child == 0:
        assert queue.using() == "mine" and queue.stats_job(job)["state"] == "reserved"
        try:
            queue.release(job)
        except ReservationLostError:
            sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    queue.release(job)
    queue.use("other")
    queue.put("b")
    waits.join(60)
    assert found[0].body == "b"
    assert queue.stats()["total-connections"] == 3  # of the child one
"""


def test_a_fork_does_not_use_its_parents_connection(run):
    host, port = run().address
    program = [sys.executable, "-P", "-c", FORK, f"{host}:{port}"]
    environment = os.environ | {"PYTHONPATH": str(servers.ROOT / "client")}
    assert subprocess.run(program, env=environment, timeout=WITHIN, check=False).returncode == 0


def test_what_beanstalkd_does_not_know_is_said(beanstalkd):
    with Client(beanstalkd.address) as queue:
        for ask in (queue.drain, queue.undrain, lambda: queue.clear_tube("t"), lambda: queue.redrive("t", 1)):
            with pytest.raises(UnknownCommandError, match="beanstalk-server has commands that beanstalkd has not"):
                ask()


def test_an_error_says_what_was_asked_of_whom(either):
    where = "{}:{}".format(*either.address)
    with Client(either.address) as queue:
        with pytest.raises(NotFoundError, match=f"^{where}: delete 999999999: NOT_FOUND: there is no such job"):
            queue.delete(999999999)
        with queue.pipeline(raise_errors=False) as together:
            reply = together.peek(999999999)
        assert str(reply.exception()).startswith(f"{where}: peek 999999999: NOT_FOUND: ")
    port = servers.unused_port()
    with pytest.raises(ConnectionRefusedError, match=f"^127.0.0.1:{port}: "):
        Client(("127.0.0.1", port))


def test_a_second_thread_is_refused_while_the_first_waits(run):
    server = run()
    with Client(server.address) as queue, Client(server.address) as other, ThreadPoolExecutor() as threads:
        waiting = threads.submit(queue.reserve)
        eventually(lambda: other.stats()["current-waiting"] == 1, "the first thread waits")
        with pytest.raises(RuntimeError, match="another thread"):
            queue.tubes()
        with pytest.raises(RuntimeError, match="another thread"):
            queue.run_all([make.stats()])
        other.put("a")
        assert waiting.result().body == "a"
        assert queue.tubes() == ["default"]


def test_a_name_whose_first_address_does_not_answer_is_reached_by_the_next(run, monkeypatch):
    server = run()
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.2", server.address[1]))
        deaf.listen(0)
        with contextlib.ExitStack() as filling:
            for _ in range(3):  # who comes now is not even refused
                sock = filling.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(deaf.getsockname())
            found = [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, server.address[1]))
                for host in ("127.0.0.2", "127.0.0.1")
            ]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            with Client("queue.example.com", connect_timeout=0.5) as queue:
                assert queue.put("a") == 1


def test_a_server_that_cannot_be_reached_has_done_nothing(scripted):
    closing = [(b"use t\r\n", CLOSE)]
    server = scripted([(b"use t\r\n", b"USING t\r\n"), (b"put 65536 0 60 1\r\na\r\n", CLOSE)], *[closing] * 30)
    with Client(server.address, use="t", reconnect_timeout=0.1) as queue:
        with pytest.raises(ConnectionLostError):
            queue.put("a")
        with pytest.raises(ConnectionLostError, match="no server can be reached") as lost:
            queue.put("a")
        assert "may not" not in str(lost.value)
        assert not lost.value.maybe_done


@pytest.mark.parametrize("where", ["127.0.0.1", "0.0.0.0", "unix:{}/socket"])
def test_a_server_in_the_event_loop_that_the_client_would_hold_up_is_told(where, tmp_path):
    async def story():
        async with Server(Config(listen=where.format(tmp_path), port=0)) as server:
            address = ("127.0.0.1", server.address[1]) if isinstance(server.address, tuple) else server.address
            with pytest.raises(RuntimeError, match=r"runs in the event loop of this thread.*AsyncClient"):
                Client(address, use="t", timeout=0.1)
            await asyncio.to_thread(in_a_thread, address)
        assert vars(asyncio.get_running_loop())["beanstalk_servers"] == []

    def in_a_thread(address):
        with Client(address, use="t") as queue:
            assert queue.put("a") == 1

    asyncio.run(story())


def test_the_client_looks_at_no_module_of_the_server():
    """What a server says of itself is in its event loop, so that either may change its modules."""
    sources = [
        path for path in (servers.ROOT / "client/beanstalk_client").rglob("*.py") if "testcontainers" not in path.name
    ]
    assert [path.name for path in sources if "beanstalk_server." in path.read_text()] == []


def test_a_server_of_another_event_loop_is_none_that_the_client_holds_up(run):
    address = run().address

    async def story():
        async with Server(Config(port=0)):
            with Client(address, use="t") as queue:
                assert queue.put("a") == 1

    asyncio.run(story())


def test_a_silent_server_costs_one_timeout_and_no_second_attempt(scripted):
    server = scripted([(b"stats\r\n", SILENCE)], [(b"stats\r\n", b"OK 4\r\n---\n\r\n")])
    with Client(server.address, timeout=0.05) as queue:
        with pytest.raises(NoAnswerError, match=r"within 0\.05 s"):
            queue.stats()
        assert len(server.said) == 1
        queue._timeout = WITHIN
        assert queue.stats() == {}


@pytest.mark.parametrize("token", ["", "secret"])
def test_connecting_again_is_part_of_the_timeout(scripted, token):
    """Each of the addresses is silent; the call ends when its own time is over, not that of each attempt."""
    proof = [(b"auth secret\r\n", b"AUTHENTICATED\r\n")] if token else []
    silent = scripted([*proof, (b"use t\r\n", b"USING t\r\n"), (b"stats\r\n", CLOSE)], *[[(b"?", SILENCE)]] * 50)
    other = scripted(*[[(b"?", SILENCE)]] * 50)
    silent.problems = other.problems = _Ignored()
    addresses = [silent.address, other.address]
    with Client(addresses, use="t", token=token, connect_timeout=1000, timeout=1000, reconnect_timeout=900) as queue:
        queue._timeout = 0.5
        with pytest.raises(ConnectionLostError):
            queue.stats()


class _Ignored(list):
    """Problems of servers that must answer nothing."""

    def append(self, problem):
        pass


class SlowSocket:
    """A connected socket of a clock that stands still but for the seconds that the pieces of replies take.

    Args:
        pieces: seconds and bytes, as they come; nothing comes after them, and an empty one is the end.
    """

    family = socket.AF_INET

    def __init__(self, clock, *pieces):
        self.clock = clock
        self.pieces = list(pieces)
        self.sent = b""
        self.timeout = None

    def settimeout(self, seconds):
        self.timeout = seconds

    def sendall(self, data):
        self.sent += data

    def send(self, data):
        self.sent += data
        return len(data)

    def recv(self, _):
        if self.timeout == 0:
            raise BlockingIOError
        seconds, data = self.pieces[0] if self.pieces else (float("inf"), b"")
        if self.timeout is not None and seconds > self.timeout:
            self.clock.now += self.timeout
            if self.pieces:
                self.pieces[0] = (seconds - self.timeout, data)
            raise TimeoutError
        self.clock.now += seconds
        if data:
            self.pieces.pop(0)
        return data

    def fileno(self):
        return 0

    def shutdown(self, how):
        pass

    def close(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("beanstalk_client.blocking.time", clock)
    monkeypatch.setattr("beanstalk_client.connection.time", clock)
    return clock


@pytest.fixture
def slow(clock, monkeypatch):
    """Makes a client that connects, one after the other, to sockets with these pieces."""

    def connect(*connections, **keywords):
        sockets = [SlowSocket(clock, *pieces) for pieces in connections]
        opened = iter(sockets)
        monkeypatch.setattr("beanstalk_client.blocking.open_socket", lambda *_: next(opened))
        queue = Client("h:1", **{"timeout": 1, "connect_timeout": 1, "reconnect_timeout": 9, **keywords})
        queue.sockets = sockets
        return queue

    return connect


def drip(data, seconds=0.4):
    return [(seconds, bytes([byte])) for byte in data]


def reserve_all(queue):
    return queue.run_all([make.reserve(5)])[0]


def raise_result(ask):
    def asked(queue):
        result = ask(queue)
        if isinstance(result, Exception):
            raise result

    return asked


@pytest.mark.parametrize(
    ("ask", "began", "ends"),
    [
        (lambda queue: queue.put("x"), 0, 1),
        (lambda queue: queue.reserve(5), 0, 6),
        (lambda queue: queue.reserve(5), 5.5, 6),
        (lambda queue: queue.reserve(), 100, 101),
        (raise_result(reserve_all), 5.5, 6),
        (reserve_in_pipeline, 100, 101),
    ],
    ids=["put", "waiting", "late", "endless", "together", "endless-together"],
)
def test_a_reply_that_drips_must_be_whole_in_time(slow, clock, ask, began, ends):
    queue = slow([(began, b"R"), *drip(b"ESERVED 1 1000000000000000000")], reconnect=False)
    with pytest.raises(NoAnswerError, match=r"no answer within [16] s"):
        ask(queue)
    assert clock.now == pytest.approx(ends, abs=0.02)


def test_a_long_body_that_comes_in_time_costs_no_more_than_the_looks_at_the_clock(slow, clock):
    queue = slow([(0, b"RESERVED 1 2000\r\n"), *drip(2000 * b"x" + b"\r\n", 0.0001)])
    allowed = []
    queue.sockets[0].settimeout = allowed.append
    assert queue.reserve(0).body == 2000 * "x"
    assert len(allowed) < 30
    assert allowed[-1] == 1


def test_the_time_of_each_reply_of_a_pipeline_begins_with_the_one_before(slow, clock):
    queue = slow(3 * [(0.9, b"INSERTED 1\r\n")] + drip(b"INSERTED 1111111"))
    assert queue.run_all([make.put(b"x")] * 3) == [1, 1, 1]
    assert clock.now == pytest.approx(2.7)
    with pytest.raises(NoAnswerError):
        queue.put("x")
    assert clock.now == pytest.approx(3.7, abs=0.02)


@pytest.mark.parametrize("ask", [lambda queue: queue.put("x", delay=0.5), lambda queue: put_later(queue)])
def test_a_question_before_a_command_is_part_of_its_timeout(slow, clock, ask):
    queue = slow([(0.9, b"NOT_FOUND\r\n")])
    with pytest.raises(NoAnswerError, match="no answer within 1 s"):
        ask(queue)
    assert b"put" in queue.sockets[0].sent
    assert clock.now == pytest.approx(1, abs=0.02)


def put_later(queue):
    with queue.pipeline() as together:
        together.put("x", delay=0.5)


def test_the_token_is_part_of_connect_timeout(slow, clock):
    with pytest.raises(NoAnswerError, match="no answer within 1 s"):
        slow(drip(b"AUTHENTICATED\r\n"), token="secret", insecure_token=True)
    assert clock.now == pytest.approx(1, abs=0.02)


def test_the_tubes_of_a_new_connection_are_part_of_the_timeout_of_a_call_only(slow, clock):
    told = [(0.9, b"USING t\r\n"), (0.9, b"WATCHING 2\r\n"), (0.9, b"WATCHING 1\r\n")]
    queue = slow([*told, (0, b"")], told, use="t", watch="t")
    assert clock.now == pytest.approx(2.7)
    with pytest.raises(NoAnswerError):
        queue.stats()
    assert clock.now == pytest.approx(3.7, abs=0.02)


@pytest.mark.parametrize("ask", [Client.stats, lambda queue: put_later(queue)], ids=["one", "together"])
def test_the_time_that_a_reconnect_took_is_not_given_again(slow, clock, ask):
    queue = slow([(0, b"USING t\r\n"), (0, b"")], [(0.9, b"USING t\r\n")], use="t")
    if ask is not Client.stats:
        queue._drop()
    with pytest.raises(NoAnswerError, match="no answer within 1 s"):
        ask(queue)
    assert len(queue.sockets[1].sent) > len(b"use t\r\n")
    assert clock.now == pytest.approx(1, abs=0.02)


def test_a_batch_that_is_reserved_one_by_one_is_not_begun_again_after_a_silence(slow, clock):
    queue = slow([(0, b"UNKNOWN_COMMAND\r\n")], [])
    with pytest.raises(NoAnswerError):
        queue.reserve_batch(3, 0)
    assert clock.now == pytest.approx(1, abs=0.02)


def test_the_time_in_which_a_server_reads_a_long_body_is_no_silence(slow, clock):
    queue = slow([(0.9, b"INSERTED "), (0.05, b"7\r\n")])

    def slowly(data):
        clock.now += 50

    queue.sockets[0].sendall = slowly
    assert queue.put("x" * (1 << 19)) == 7


def test_a_server_that_reads_a_batch_late_has_time_for_its_reply(slow, clock, monkeypatch):
    """It is full for most of the time, then reads all, and takes as long again for its replies."""
    queue = slow([(0.8, b"INSERTED 1\r\n"), (0.8, b"INSERTED 2\r\n")])
    (sock,) = queue.sockets
    held_up = [True]

    def send(data):
        if sock.timeout == 0 and held_up:
            raise BlockingIOError
        return len(data)

    def wait_for_room(*_):
        held_up.clear()
        clock.now += 0.9
        return True

    sock.send = send
    monkeypatch.setattr(Connection, "_wait_for_room", wait_for_room)
    assert queue.run_all([make.put(b"x")] * 2) == [1, 2]
