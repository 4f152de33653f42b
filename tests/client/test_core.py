"""What both clients do alike, at real and scripted servers: each test runs for the blocking and the asyncio client."""

import array
import contextlib
import datetime
import socket
import threading
import traceback

import pytest
from beanstalk_client import (
    BadFormatError,
    Client,
    ConnectionLostError,
    DeadlineSoonError,
    ExistsError,
    ForbiddenError,
    InternalError,
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
    UnreachableError,
    UnsupportedError,
)
from beanstalk_client.names import own_name
from consuming import BEANSTALKD, imported, restartable
from scripted_server import ASKED, CLOSE, RESET, SILENCE, extensions
from tls_peers import Files, client_context

from beanstalk_server import TubeConfig
from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness import servers
from harness.waiting import WITHIN

TOKEN = new_token()
MAIL = UserConfig(name="mail", token_sha256=(hash_of_token(TOKEN),), produce=("mail-*",), consume=("mail-*",))
HELD = "shop-worker/web-3/4711"
TOLD = b"client-name %b\r\n" % HELD.encode()


@pytest.mark.parametrize("encoding", ["utf-8", None])
def test_every_command_that_all_servers_have(connect, either, encoding):
    def body(text):
        return text if encoding else text.encode()

    with connect(either.address, encoding, "t", "t") as queue:
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


def test_every_command_that_beanstalkd_has_not(connect, run):
    server = run(tubes=[TubeConfig(match="work", max_tries=1, dead_tube="dead")])
    with connect(server.address, use="work", watch="work") as queue:
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
        for absent in (lambda: queue.cancel(second), lambda: queue.redrive("nowhere", 1)):
            with pytest.raises(NotFoundError):
                absent()
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
        versions = queue.list_extensions()
        assert versions["put-with"] == 3
        for extension in versions:
            assert queue.knows(extension)
        assert queue.stats()["draining"] == "false"


def test_beanstalkd_is_asked_what_it_knows_and_gets_no_byte_of_a_body(connect, beanstalkd):
    with connect(beanstalkd.address) as queue:
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
            lambda: queue.redrive("default", 1),
            queue.drain,
            queue.undrain,
            lambda: next(queue.stats_tubes()),
            lambda: next(queue.list_jobs("default")),
            queue.list_clients,
            queue.list_extensions,
        ):
            with pytest.raises(UnknownCommandError, match="beanstalk-server has more commands than beanstalkd"):
                asked()
        for extension in ("put-with", "reserve-batch", "stats-tubes", "drain", "cancel", "durations"):
            assert not queue.knows(extension)
        assert queue.peek(job).body == "precious"


def test_a_put_with_a_body_is_asked_for_once_for_each_connection(connect, scripted):
    put = b"put-keyed k 65536 0 60 1\r\nx\r\n"
    server = scripted(
        [
            (ASKED, extensions("put-keyed", "durations")),
            (put, b"INSERTED 1\r\n"),
            (put, b"INSERTED 2\r\n"),
            (b"put 65536 0.500 60 1\r\ny\r\n", b"INSERTED 3\r\n", CLOSE),
        ],
        [(ASKED, b"UNKNOWN_COMMAND\r\n"), (b"put 65536 1 60 1\r\ny\r\n", b"INSERTED 4\r\n")],
    )
    with connect(server.address) as queue:
        assert [queue.put_keyed("k", "x"), queue.put_keyed("k", "x"), queue.put("y", delay=0.5)] == [1, 2, 3]
        queue.see_loss()
        for _ in range(2):
            with pytest.raises(UnsupportedError):
                queue.put_keyed("k", "x")
        assert queue.put("y", delay=0.5) == 4


@pytest.mark.parametrize(
    ("refusal", "error"),
    [(b"BAD_FORMAT", BadFormatError), (b"FORBIDDEN", ForbiddenError), (b"INTERNAL_ERROR", InternalError)],
)
def test_a_refused_question_is_the_error_of_each_command_that_needs_its_answer(connect, scripted, refusal, error):
    server = scripted([*6 * [(ASKED, refusal + b"\r\n")], (b"put 65536 0 60 1\r\nx\r\n", b"INSERTED 1\r\n")])
    with connect(server.address) as queue:

        def in_pipeline():
            with queue.pipeline() as together:
                together.put_keyed("k", "x")

        for call in (
            lambda: queue.put_keyed("k", "x"),
            lambda: queue.put("x", delay=0.5),
            lambda: queue.reserve(0.5),
            lambda: queue.knows("cancel"),
            queue.list_extensions,
            in_pipeline,
        ):
            with pytest.raises(error):
                call()
        assert queue.put("x") == 1


@pytest.mark.parametrize("give_up", [CLOSE, RESET])
def test_what_may_be_done_is_not_said_again(connect, scripted, give_up):
    server = scripted(
        [(b"put 65536 0 60 1\r\nx\r\n", give_up)],
        [(b"put 65536 0 60 1\r\ny\r\n", b"INSERTED 1\r\n")],
    )
    with connect(server.address) as queue:
        with pytest.raises(ConnectionLostError, match="may have been executed") as lost:
            queue.put("x")
        assert lost.value.maybe_done
        assert queue.put("y") == 1


@pytest.mark.parametrize("give_up", [CLOSE, RESET])
def test_what_changes_nothing_is_said_again_once(connect, scripted, give_up):
    server = scripted(
        [(b"use t\r\n", b"USING t\r\n"), (b"peek 1\r\n", give_up)],
        [(b"use t\r\n", b"USING t\r\n"), (b"peek 1\r\n", b"FOUND 1 1\r\nx\r\n"), (b"peek 1\r\n", give_up)],
        [(b"use t\r\n", b"USING t\r\n"), (b"peek 1\r\n", give_up)],
    )
    with connect(server.address, use="t") as queue:
        assert queue.peek(1).body == "x"
        with pytest.raises(ConnectionLostError):
            queue.peek(1)


def test_without_reconnecting_every_command_fails_after_a_loss(connect, scripted):
    server = scripted([(b"peek 1\r\n", CLOSE)], [(b"peek 1\r\n", b"NOT_FOUND\r\n")])
    with connect(server.address, reconnect=False) as queue:
        with pytest.raises(ConnectionLostError):
            queue.peek(1)
        with pytest.raises(ConnectionLostError, match="does not reconnect"):
            queue.peek(1)
    assert len(server.said) == 1


def test_after_a_loss_it_uses_and_watches_as_before_and_tells_what_is_reserved_no_more(connect, scripted):
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
    with connect(server.address, use="a", watch=["c", "default"], on_reconnect=told.append) as queue:
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
            queue.touch(Job(7, "of another client"))
    assert server.said[1].endswith(b"release 9 65536 0\r\ntouch 7\r\n")


@pytest.mark.parametrize("program", [imported(), BEANSTALKD], ids=["ours", "beanstalkd"])
def test_a_job_is_deleted_on_the_server_that_it_has_come_from_and_on_no_other(connect, program):
    with restartable(program) as server, connect(server.address, reconnect_timeout=WITHIN) as queue:
        queue.stats()
        queue.put("x")
        queue.put("y")
        old, seen = queue.reserve(0), queue.peek(2)
        with connect(server.address) as other:
            other.delete(seen)
            other.put("y")
        seen = queue.peek(3)
        queue.lose()
        queue.see_loss()
        queue.delete(old)
        old = queue.reserve(0)
        assert old.id == 3
        server.kill()
        server.start()
        queue.see_loss()
        assert [queue.put("another") for _ in range(3)] == [1, 2, 3]
        refused = [queue.delete, queue.kick_job, queue.touch, queue.release, queue.bury]
        if program is not BEANSTALKD:
            refused += [queue.cancel, lambda job: queue.reschedule(job, 1), lambda job: queue.delete_batch([1, job])]
        for job in (old, seen):
            for refuse in refused:
                with pytest.raises(ReservationLostError):
                    refuse(job)
            with queue.pipeline(raise_errors=False) as together:
                replies = [together.delete(job), together.touch(job), together.put("z")]
            assert [type(reply.exception()) for reply in replies] == [ReservationLostError] * 2 + [type(None)]
        assert queue.peek(3).body == "another"
        queue.delete(queue.peek(3))


def test_a_job_in_a_pipeline_whose_connection_is_lost_is_not_named_to_another_server(connect, scripted):
    server = scripted(
        [(b"reserve\r\n", b"RESERVED 7 1\r\nx\r\n", CLOSE)], [(b"put 65536 0 60 0\r\n\r\n", b"INSERTED 7\r\n")]
    )
    with connect(server.address) as queue:
        job = queue.reserve()
        with queue.pipeline(raise_errors=False) as together:
            deleted, put = together.delete(job), together.put("")
            queue.see_loss()
        assert put.result() == 7
        assert isinstance(deleted.exception(), ReservationLostError)


def test_a_loss_is_noticed_before_a_put_that_could_not_be_said_again(connect, scripted):
    server = scripted([(b"stats\r\n", b"OK 4\r\n---\n\r\n", CLOSE)], [(b"put 65536 0 60 0\r\n\r\n", b"INSERTED 5\r\n")])
    with connect(server.address) as queue:
        assert queue.stats() == {}
        queue.see_loss()
        assert queue.put("") == 5


@pytest.mark.parametrize("script", [b"HTTP/1.1 400 Bad Request\r\n", b"DELETED\r\n", b"OK 3\r\n"])
def test_a_reply_that_makes_no_sense_ends_the_connection_and_nothing_is_said_again(connect, scripted, script):
    server = scripted([(b"stats\r\n", script + b"abc\r\n" * 3)], [(b"stats\r\n", b"OK 4\r\n---\n\r\n")])
    with connect(server.address) as queue:
        with pytest.raises(ConnectionLostError, match=r"invalid reply|speaks HTTP"):
            queue.stats()
        assert not queue.is_connected
        assert queue.stats() == {}


CONVERSATION = [
    (b"auth secret\r\n", b"AUTHENTICATED\r\n"),
    (b"use t\r\n", b"USING t\r\n"),
    (b"put 65536 0 60 1\r\nx\r\n", b"INSERTED 1\r\n"),
    (b"reserve\r\n", b"RESERVED 1 1\r\nx\r\n"),
    (b"delete 1\r\n", b"DELETED\r\n"),
]


def converse(connect, address, **keywords):
    """What CONVERSATION has, as calls."""
    with connect(address, use="t", token="secret", reconnect=False, **keywords) as queue:
        assert queue.put("x") == 1
        job = queue.reserve()
        queue.delete(job)


@pytest.mark.parametrize("give_up", [CLOSE, RESET], ids=["closed", "reset"])
def test_a_server_that_dies_at_each_byte_is_an_error(connect, scripted, give_up):
    converse(connect, scripted(CONVERSATION).address)
    scripts = []
    for at, (request, reply) in enumerate(CONVERSATION):
        scripts += [[*CONVERSATION[:at], (request, reply[:size], give_up)] for size in range(len(reply))]
    server = scripted(*scripts)
    for _ in scripts:
        with pytest.raises((ConnectionLostError, ConnectionResetError)):
            converse(connect, server.address)


def test_a_first_connection_that_is_lost_while_it_is_set_up_has_done_nothing(connect, scripted):
    server = scripted([(b"use t\r\n", b"USI", CLOSE)])
    with pytest.raises(ConnectionLostError, match="the server closed") as lost:
        connect(server.address, use="t")
    assert not lost.value.maybe_done


def test_a_server_that_is_silent_at_each_byte_is_an_error(connect, scripted):
    scripts = []
    for at, (request, reply) in enumerate(CONVERSATION):
        sizes = [0, 1, len(reply) - 1]
        if request == b"reserve\r\n":
            sizes = [1, len(reply) - 1]  # with none, it waits for a job
        scripts += [[*CONVERSATION[:at], (request, reply[:size], SILENCE)] for size in sizes]
    server = scripted(*scripts)
    for _ in scripts:
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.1 s") as silence:
            converse(connect, server.address, timeout=0.1, connect_timeout=0.1)
        assert isinstance(silence.value, TimeoutError)


def test_a_server_may_be_silent_for_as_long_as_it_was_asked_to_wait(connect, scripted, run):
    server = run()
    with connect(server.address, timeout=0.6) as queue:
        with pytest.raises(TimedOutError):
            queue.reserve(timeout=0.8)
        with pytest.raises(TimedOutError):
            queue.reserve_batch(5, timeout=0.8)
        with connect(server.address) as other:
            late = threading.Timer(0.8, other.put, ["late"])
            late.start()
            assert queue.reserve().body == "late"
            late.join()
        queue.put("x", ttr=2)
        queue.reserve()
        with pytest.raises(DeadlineSoonError):
            queue.reserve()
    silent = scripted([(ASKED, extensions("durations")), (b"reserve-with-timeout 0.050\r\n", SILENCE)])
    with connect(silent.address, timeout=0.55, reconnect=False) as queue, pytest.raises(NoAnswerError, match=r"0\.6 s"):
        queue.reserve(0.05)


def test_the_next_node_is_taken_when_one_is_lost(connect, run, scripted):
    closed = ("127.0.0.1", servers.unused_port())
    dying = scripted([(b"use t\r\n", b"USING t\r\n"), (b"list-tube-used\r\n", CLOSE)])
    server = run()
    addresses = [closed, "{}:{}".format(*dying.address), server.address]
    with connect(addresses, use="t") as queue:
        assert "unused" not in repr(queue)
        assert queue.using() == "t"
        assert queue.put("x") == 1
    with pytest.raises(ConnectionRefusedError):
        connect([closed, closed])


def test_a_command_waits_for_a_server_that_is_started_again(connect):
    with (
        restartable(BEANSTALKD) as server,
        connect(server.address, use="t", watch="t", reconnect_timeout=WITHIN) as queue,
    ):
        queue.put("x")
        server.kill()
        timer = threading.Timer(0.2, server.start)
        timer.start()
        with pytest.raises(NotFoundError):  # it was said again; this server keeps no jobs
            queue.peek_ready()
        timer.join()
        assert queue.put("y") == 1
        assert queue.reserve().body == "y"


@pytest.mark.parametrize("encoding", ["utf-8", None])
def test_tls_and_a_token(connect, run, tmp_path, encoding):
    files = Files(tmp_path)
    listener = files.listener(auth="token")
    server = run(listeners=(listener,), users=(MAIL,))
    context = client_context()
    body = "x" * 60_000 if encoding else b"x" * 60_000
    options = {"tls": context, "server_name": "localhost"}
    told = []
    arguments = {"encoding": encoding, "use": "mail-out", "watch": "mail-out", "on_reconnect": told.append}
    with connect(server.address, token=TOKEN, **arguments, **options) as queue:
        assert TOKEN not in repr(queue) + repr(queue._session) + repr(queue._target)
        queue.put(body)
        job = queue.reserve(timeout=60)
        assert job.body == body
        with pytest.raises(ForbiddenError):
            queue.use("bill")
        queue.lose()
        assert queue.reserve(timeout=60).id == job.id
        assert told == [{job.id}]
        with pytest.raises(ReservationLostError):
            queue.touch(job)
        assert queue.using() == "mail-out"
    port = server.address[1]
    with connect(f"beanstalks://:{TOKEN}@localhost:{port}", tls=context, use="mail-out") as queue:
        assert queue.put("hello")
    wrong = new_token()
    with pytest.raises(UnauthorizedError) as refused:
        connect(server.address, token=wrong, **options)
    assert wrong not in "".join(traceback.format_exception(refused.value)) + repr(refused.value)
    with pytest.raises(OSError, match="certificate"):
        connect(server.address, token=TOKEN, tls=client_context(trusts="others"), server_name="localhost")


def test_a_token_is_forgotten_where_nothing_needs_it(connect, run, tmp_path):
    server = run(listeners=(ListenerConfig(address="127.0.0.1:0", auth="token"),), users=(MAIL,))
    with connect(server.address, token=TOKEN) as queue:
        assert queue._session._token == TOKEN
    assert queue._session._token == ""
    with connect(server.address, token=TOKEN, reconnect=False) as queue:
        assert queue._session._token == ""


@pytest.mark.parametrize("refused", [lambda q: q.put("x", -1), lambda q: q.use("a b"), lambda q: q.put_keyed("-", "x")])
def test_what_no_server_would_take_is_not_sent(connect, scripted, refused):
    server = scripted([(b"list-tube-used\r\n", b"USING default\r\n")])
    with connect(server.address) as queue:
        with pytest.raises(ValueError, match="must be"):
            refused(queue)
        assert queue.using() == "default"


@pytest.mark.parametrize("give_up", [CLOSE, RESET])
def test_a_batch_that_is_lost_while_it_is_reserved_one_by_one_is_begun_again(connect, scripted, give_up):
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
    with connect(server.address) as queue:
        assert [job.id for job in queue.reserve_batch(3, 5)] == [1, 2]


def test_a_server_that_knows_no_fractions_is_told_whole_seconds_and_does_no_body(connect, either):
    with connect(either.address, use="t", watch="t") as queue:
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


def test_whole_seconds_are_rounded_up_and_the_server_is_asked_once_for_each_connection(connect, scripted):
    server = scripted(
        [
            (ASKED, b"UNKNOWN_COMMAND\r\n"),
            (b"put 65536 2 61 1\r\na\r\n", b"INSERTED 1\r\n"),
            (b"reserve-with-timeout 1\r\n", b"TIMED_OUT\r\n"),
            (b"put 65536 1 60 1\r\nb\r\n", CLOSE),
        ],
        [
            (ASKED, extensions("durations")),
            (b"put 65536 0.250 60 1\r\nc\r\n", b"INSERTED 2\r\n"),
            (b"quit\r\n",),
        ],
    )
    queue = connect(server.address)
    assert queue.put("a", delay=1.001, ttr=60.5) == 1
    with pytest.raises(TimedOutError):
        queue.reserve(0.5)
    with pytest.raises(ConnectionLostError):
        queue.put("b", delay=0.5)
    assert queue.put("c", delay=0.25) == 2
    queue.quit()


def test_a_batch_with_a_body_that_is_no_text_is_not_lost(connect, either):
    with connect(either.address, None) as raw, connect(either.address) as queue:
        bodies = [b"one", b"\xff", b"three"]
        ids = [raw.put(body) for body in bodies]
        with pytest.raises(TypeError):
            raw.put("text")
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


def test_what_is_no_body_is_refused(connect, run):
    with connect(run().address) as queue:
        for body in (5, None, ["a"], bytearray(b"a"), memoryview(array.array("i", [1, 2]))):
            with pytest.raises(TypeError, match="a body must be"):
                queue.put(body)


@pytest.mark.parametrize("encoding", ["utf-9", "rot13"])
def test_an_encoding_that_there_is_not_is_refused_at_once(connect, encoding):
    with pytest.raises(ValueError, match="encoding"):
        connect("127.0.0.1:1", encoding)


@pytest.mark.parametrize("name", ["timeout", "connect_timeout", "reconnect_timeout"])
@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_timeout_that_cannot_be_is_refused_at_once(connect, name, seconds):
    with pytest.raises(ValueError, match=f"^{name} is "):
        connect("127.0.0.1:1", **{name: seconds})


def test_an_error_says_what_was_asked_of_whom(connect, either):
    where = "{}:{}".format(*either.address)
    with connect(either.address) as queue:
        with pytest.raises(
            NotFoundError, match=f"^{where}: NOT_FOUND: there is no such job or tube, .* \\(delete 999999999\\)$"
        ):
            queue.delete(999999999)
        with queue.pipeline(raise_errors=False) as together:
            reply = together.peek(999999999)
        found = str(reply.exception())
        assert found.startswith(f"{where}: NOT_FOUND: ") and found.endswith(" (peek 999999999)")


def test_no_server_is_one_error_for_the_first_connection_and_later_ones(connect, tmp_path):
    port = servers.unused_port()
    for address, kind in (
        (f"127.0.0.1:{port}", ConnectionRefusedError),
        (f"unix:{tmp_path}/absent", FileNotFoundError),
    ):
        with pytest.raises(UnreachableError, match=f"^{address}: ") as first:
            connect(address)
        assert isinstance(first.value, kind) and not first.value.maybe_done
    with restartable(imported()) as server, connect(server.address, reconnect_timeout=0.2) as queue:
        server.kill()
        with pytest.raises(ConnectionLostError):
            queue.stats()
        with pytest.raises(UnreachableError, match=r"within 0\.2 s") as later:
            queue.stats()
        assert isinstance(later.value, ConnectionRefusedError)


@pytest.mark.parametrize(
    ("reply", "said"), [(b"", "may require TLS"), (b"HTTP/1.1 400 Bad Request\r\n", "speaks HTTP")]
)
def test_a_port_for_another_protocol_is_named(connect, scripted, reply, said):
    server = scripted([(b"put 65536 0 60 1\r\na\r\n", reply, CLOSE)])
    with connect(server.address) as queue, pytest.raises(ConnectionLostError, match=said):
        queue.put("a")


def test_a_name_whose_first_address_does_not_answer_is_reached_by_the_next(connect, run, monkeypatch):
    port = run().address[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with socket.socket() as deaf, contextlib.ExitStack() as filling:
        deaf.bind(("127.0.0.2", port))
        deaf.listen(0)
        for _ in range(3):  # a client that comes now is not even refused
            sock = filling.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(deaf.getsockname())
        with connect("queue.example.com", connect_timeout=0.5) as queue:
            assert queue.put("a") == 1


def test_a_server_that_cannot_be_reached_has_done_nothing(connect, scripted):
    closing = [(b"use t\r\n", CLOSE)]
    server = scripted([(b"use t\r\n", b"USING t\r\n"), (b"put 65536 0 60 1\r\na\r\n", CLOSE)], *[closing] * 30)
    with connect(server.address, use="t", reconnect_timeout=0.1) as queue:
        with pytest.raises(ConnectionLostError):
            queue.put("a")
        with pytest.raises(ConnectionLostError, match="cannot connect") as lost:
            queue.put("a")
        assert "may not" not in str(lost.value)
        assert not lost.value.maybe_done


def test_a_silent_server_costs_one_timeout_and_no_second_attempt(connect, scripted):
    server = scripted([(b"stats\r\n", SILENCE)], [(b"stats\r\n", b"OK 4\r\n---\n\r\n")])
    with connect(server.address, timeout=0.3) as queue:
        with pytest.raises(NoAnswerError, match=r"within 0\.3 s") as silence:
            queue.stats()
        assert silence.value.maybe_done
        assert len(server.said) == 1
        assert queue.stats() == {}


def test_a_batch_that_is_reserved_one_by_one_is_not_begun_again_after_a_silence(connect, scripted):
    server = scripted([(b"reserve-batch 3 0\r\n", b"UNKNOWN_COMMAND\r\n"), (b"reserve-with-timeout 0\r\n", SILENCE)])
    with connect(server.address, timeout=0.1) as queue, pytest.raises(NoAnswerError):
        queue.reserve_batch(3, 0)
    assert len(server.said) == 1


def test_a_unix_socket(connect, run, tmp_path):
    run(listeners=(ListenerConfig(address=f"unix:{tmp_path}/socket"),))
    for number, address in enumerate((f"{tmp_path}/socket", f"unix:{tmp_path}/socket"), 1):
        with connect(address) as queue:
            assert queue.put("x") == number


def names_at(server):
    with Client(server.address, name="") as client:
        return sorted(one["client-name"] for one in client.list_clients() if one["client-name"])


def test_a_client_has_the_name_that_it_is_given_by_default_its_own_and_none_if_that_is_empty(connect, run):
    server = run()
    with connect(server.address), connect(server.address, name=HELD), connect(server.address, name=""):
        assert names_at(server) == sorted([own_name(), HELD])


def test_another_name_holds_for_later_connections_too(connect, run):
    server = run()
    with connect(server.address) as queue:
        queue.client_name(HELD)
        assert names_at(server) == [HELD]
        queue.lose()
        queue.see_loss()
        queue.using()
        assert names_at(server) == [HELD]


def test_a_default_name_is_made_anew_for_each_connection(connect, run, monkeypatch):
    server = run()
    with connect(server.address) as queue:
        monkeypatch.setattr("beanstalk_client.session.own_name", lambda: HELD)
        queue.lose()
        queue.see_loss()
        queue.using()
        assert names_at(server) == [HELD]


def test_beanstalkd_serves_clients_whose_names_it_does_not_know(connect, beanstalkd):
    with connect(beanstalkd.address, use="t", name=HELD) as queue:
        queue.put("x")
        queue.lose()
        queue.see_loss()
        assert queue.peek_ready().body == "x"
        with pytest.raises(UnknownCommandError):
            queue.client_name(HELD)


def test_the_name_is_sent_with_what_else_a_new_connection_is_told(connect, scripted):
    server = scripted([(b"use t\r\n" + TOLD, b"USING t\r\nNAMED\r\n"), (b"peek 1\r\n", b"NOT_FOUND\r\n")])
    with connect(server.address, use="t", name=HELD) as queue, pytest.raises(NotFoundError):
        queue.peek(1)


def test_a_server_that_wants_a_token_refuses_a_connection_that_has_only_a_name(connect, scripted):
    server = scripted([(TOLD, b"UNAUTHORIZED\r\n"), (b"list-tube-used\r\n", b"UNAUTHORIZED\r\n")])
    with pytest.raises(UnauthorizedError), connect(server.address, name=HELD) as queue:
        queue.using()


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 201])
def test_a_name_that_servers_refuse_is_refused_before(connect, name):
    with pytest.raises(ValueError, match="bad name"):
        connect("127.0.0.1:1", name=name)
