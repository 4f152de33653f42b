"""What an engine in Redis makes of errors, of answers that come half or late, and of servers that change roles."""

import contextlib
import gc
import socket
import threading
from contextlib import closing

import pytest
from commits import MINE, Journal

from beanstalk_server.cluster.engine.choice import connect_to
from beanstalk_server.cluster.engine.interface import (
    CREATE,
    EngineError,
    EngineFullError,
    EngineRefusedError,
    Lease,
    Position,
)
from beanstalk_server.cluster.engine.redis import resp, scripts
from beanstalk_server.cluster.engine.redis.connection import RedisConnection
from beanstalk_server.settings.engine_url import read_url
from harness.engines import Alone

STATE = (
    b"*11\r\n$1\r\n1\r\n$1\r\n3\r\n$1\r\n9\r\n$1\r\na\r\n$6\r\nhere:1\r\n$6\r\nsecret\r\n$3\r\n2.7\r\n$2\r\n50\r\n"
    b"$-1\r\n$-1\r\n$-1\r\n"
)
HELD = Lease(3, 9, "a", "here:1", "secret", Position(2, 7), 50)
PRIMARY = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n"


class PretendedRedis:
    """Listens, and answers as it is told: a script by the answers in `scripted`, each once, and then well."""

    def __init__(self):
        self.scripted = []
        """Bytes; b"" for none at all, and None to close the connection."""
        self.rights = b"*0\r\n"
        self.primary = 1
        """The port that it names as a Sentinel."""
        self.others = {}
        """Answers to other commands, by their first word."""
        self.asked = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def close(self):
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(sock)
                threading.Thread(target=self._serve, args=[sock], daemon=True).start()

    def _serve(self, sock):
        with contextlib.suppress(OSError, ValueError), sock.makefile("rb") as file:
            while line := file.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int(file.readline()[1:])
                    words.append(file.read(size + 2)[:size])
                self.asked.append(words)
                answer = self._answer(words)
                if answer is None:
                    sock.shutdown(socket.SHUT_RDWR)
                    return
                sock.sendall(answer)

    def _answer(self, words):
        if words[0] == b"EVALSHA":
            if self.scripted:
                return self.scripted.pop(0)
            return b":1\r\n" if words[1] == scripts.COMMIT.sha else STATE
        if words[0] == b"WAIT":
            return b":1\r\n" if not self.scripted else self.scripted.pop(0)
        if words[0] == b"SENTINEL":
            return b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(self.primary)), self.primary)
        if words[0] == b"CLUSTER" and words[0] not in self.others:
            return b"-NOPERM this user has no permissions to run the 'cluster|slots' command\r\n"
        return ({b"ROLE": PRIMARY, b"EVAL": self.rights} | self.others).get(words[0], b"+OK\r\n")


@pytest.fixture
def pretended():
    server = PretendedRedis()
    yield server
    server.close()


@pytest.fixture
def engine(pretended, open_engine):
    return open_engine(pretended.url, "x", timeout=0.5)


def append(engine):
    return engine.append(Journal(engine).commit((CREATE, "file", 9)), may_exceed=False)


NOT_READY = [
    "LOADING Redis is loading the dataset in memory",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "ASK 5 127.0.0.1:1",
    "ERR something new",
]


@pytest.mark.parametrize("error", NOT_READY)
def test_an_engine_that_is_not_ready_says_why_and_is_asked_again(pretended, engine, error):
    pretended.scripted = [b"-%b\r\n" % error.encode(), b":0\r\n"]
    with pytest.raises(EngineError) as raised:
        append(engine)
    assert not isinstance(raised.value, (EngineRefusedError, EngineFullError))
    assert str(raised.value) == f"engine at 127.0.0.1:{pretended.port}: {error}"
    assert append(engine).replicas == 1
    pretended.scripted = [b"-%b\r\n" % error.encode()]
    with pytest.raises(EngineError, match=error.split()[0]):
        engine.take(Lease(), MINE)
    assert engine.take(Lease(), MINE) == HELD


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("NOAUTH Authentication required.", EngineRefusedError),
        ("NOPERM this user has no permissions to run the 'evalsha' command", EngineRefusedError),
        ("OOM command not allowed when used memory > 'maxmemory'.", EngineFullError),
        ("ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'", EngineRefusedError),
    ],
)
def test_some_errors_have_a_meaning(pretended, engine, error, kind):
    pretended.scripted = [b"-%b\r\n" % error.encode(), b":0\r\n"]
    with pytest.raises(kind):
        append(engine)
    assert append(engine).replicas == 1


def test_a_server_that_is_too_old_is_told_in_one_line(pretended, engine):
    pretended.scripted = [b"-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n"]
    with pytest.raises(EngineRefusedError, match="version too old: must be Redis 7 or later, or Valkey"):
        engine.take(Lease(), MINE)


def test_a_journal_of_a_later_release_is_refused(pretended, engine):
    pretended.scripted = [STATE.replace(b"*11\r\n$1\r\n1\r\n", b"*11\r\n$1\r\n3\r\n")]
    with pytest.raises(EngineRefusedError, match=r"has version 3, .* use a later release of beanstalk-server"):
        engine.take(Lease(), MINE)


HALVES = {
    "no answer": [None],
    "a number without its end": [b":1", None],
    "one answer of two": [b":1\r\n", None],
    "one and a half": [b":1\r\n:", None],
    "half an array": [b"*2\r\n$1\r\n7\r\n", None],
    "half a string": [b"*2\r\n$10\r\n7\r\n", None],
    "another protocol": [b"HTTP/1.1 400 Bad Request\r\n\r\n", None],
    "not a number": [b":one\r\n", None],
    "a string of 4 GB": [b"$4294967296\r\n", None],
    "arrays within arrays": [b"*1\r\n" * 100, None],
}


@pytest.mark.parametrize("answers", HALVES.values(), ids=HALVES)
def test_half_an_answer_is_none_and_is_not_taken_for_the_next(pretended, engine, answers):
    append(engine)
    pretended.scripted = list(answers)
    with pytest.raises(EngineError, match=f"^engine at 127.0.0.1:{pretended.port}: ") as raised:
        append(engine)
    assert "\n" not in str(raised.value)
    pretended.scripted = []
    assert append(engine) == (1, (1, 1), 1)
    assert pretended.connections == 2


@pytest.mark.parametrize("answer", [b":0\r\n", b"$-1\r\n", b"*0\r\n", b"*2\r\n$1\r\nx\r\n$3\r\n1.1\r\n", b"+OK\r\n"])
def test_an_answer_of_another_kind_is_none(pretended, engine, answer):
    pretended.scripted = [answer, b":1\r\n"]
    with pytest.raises(EngineError, match="unexpected reply"):
        append(engine)
    pretended.scripted = [answer]
    with pytest.raises(EngineError, match="unexpected reply"):
        engine.take(Lease(), MINE)
    assert append(engine).replicas == 1


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("check", b"*1\r\n$10\r\nappendonly\r\n"),
        ("files", b":0\r\n"),
        ("files", b"*2\r\n:1\r\n:2\r\n"),
        ("damage", b"*4\r\n$1\r\n0\r\n$3\r\na x\r\n$16\r\n%b\r\n$-1\r\n" % Lease().stamp.encode()),
        ("look", b"*11\r\n" + b"*0\r\n" * 11),
        ("members", b"*-1\r\n"),
    ],
)
def test_what_no_engine_answers_is_an_error_of_the_engine(pretended, open_engine, asked, answer):
    pretended.others = dict.fromkeys((b"CONFIG", b"INFO", b"HGETALL", b"HMGET"), answer)
    if asked == "check":
        pretended.others[b"INFO"] = b"$0\r\n\r\n"
    if asked == "damage":
        pretended.others[b"HGETALL"] = b"*0\r\n"
    with pytest.raises(EngineError, match="unexpected reply"):
        getattr(open_engine(pretended.url, "x", timeout=0.5), asked)()


def test_replicas_that_are_not_listed_are_not_waited_for(pretended):
    text = b"connected_slaves:999999999999\r\nslave0:ip=here,port=1,state=online,offset=0"
    pretended.others[b"INFO"] = b"$%d\r\n%b\r\n" % (len(text), text)
    with closing(connect_to(pretended.url, "x", 1, timeout=0.5)()) as engine:
        assert [replica.host.name for replica in engine.inspect()[0].replicas] == ["here"]


def test_slots_that_nobody_has_are_an_error_of_the_engine(pretended, open_engine):
    pretended.others[b"CLUSTER"] = b"*1\r\n*2\r\n:0\r\n:16383\r\n"
    with pytest.raises(EngineError, match="unexpected reply"):
        append(open_engine(pretended.url.replace("redis:", "redis+cluster:"), "x"))


@pytest.mark.parametrize("place", ["127.0.0.1:" + "9" * 5000, "127.0.0.1:70000", "127.0.0.1", ""])
def test_a_key_that_has_moved_nowhere_is_an_error_of_the_engine(pretended, open_engine, place):
    pretended.scripted = [b"-MOVED 5 %b\r\n" % place.encode(), b":0\r\n"] * 9
    with pytest.raises(EngineError):
        append(open_engine(pretended.url.replace("redis:", "redis+cluster:"), "x"))


def test_an_error_of_wait_says_nothing_about_the_replicas(pretended, engine):
    pretended.scripted = [b":1\r\n", b"-UNBLOCKED force unblock from blocking operation, instance state changed\r\n"]
    with pytest.raises(EngineError, match="UNBLOCKED"):
        append(engine)
    assert append(engine).replicas == 1
    assert pretended.connections == 2  # the server may be a replica by now


def test_many_replicas_confirm(pretended, engine):
    pretended.scripted = [b":1\r\n", b":12\r\n", b"*2\r\n$1\r\n9\r\n$3\r\n8.7\r\n", b":0\r\n"]
    assert append(engine).replicas == 12
    assert append(engine) == (9, (8, 7), 0)
    assert append(engine).replicas == 1


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next(pretended, engine):
    append(engine)
    pretended.scripted = [b"", b""]
    with pytest.raises(EngineError, match=r"no answer within 0\.5 s"):
        append(engine)
    assert append(engine).replicas == 1
    assert pretended.connections == 2


class Dripping:
    """A socket on which each call moves this many bytes, and takes this many seconds."""

    def close(self):
        pass

    def __init__(self, answer, size, seconds):
        self.answer = answer
        self.size = size
        self.seconds = seconds
        self.now = 0.0

    def clock(self):
        return self.now

    def send(self, data):
        self.now += self.seconds
        return len(data[: self.size])

    def recv(self, size):
        self.now += self.seconds
        piece = self.answer[: min(size, self.size)]
        self.answer = self.answer[len(piece) :]
        return piece


def dripping(monkeypatch, *arguments):
    """A connection to an engine at the other end of such a socket, and the socket."""
    url = read_url("redis://127.0.0.1:1")
    connection = RedisConnection(url.hosts[0], url, 2.0)
    connection._replies.socket = drip = Dripping(*arguments)
    monkeypatch.setattr(resp, "monotonic", drip.clock)
    return connection, drip


DRIPS = {"a number": b":" + b"0" * 60_000, "a string": b"$60000\r\n" + b"x" * 60_000, "many": b":1\r\n" * 60_000}


@pytest.mark.parametrize("answer", DRIPS.values(), ids=DRIPS)
def test_an_answer_that_drips_is_none(monkeypatch, answer):
    connection, drip = dripping(monkeypatch, answer, 1, 1.9)
    with pytest.raises(EngineError, match=r"^engine at 127\.0\.0\.1:1: no answer within 2 s$"):
        connection.ask(b"", 60_000)
    assert drip.now < 3 * 2 + 1.9  # the request, which has two timeouts, too; the answer; and what takes a timeout more
    assert not connection.is_open


def test_a_request_that_drips_is_given_up(monkeypatch):
    connection, drip = dripping(monkeypatch, b"", 1, 1.9)
    with pytest.raises(EngineError, match="no answer within 2 s"):
        connection.send(bytes(60_000))
    assert drip.now < 3 * 2 + 1.9


def test_what_is_long_may_take_long(monkeypatch):
    connection, drip = dripping(monkeypatch, b"$1000000\r\n" + bytes(1_000_000) + b"\r\n", 65_536, 1.9)
    assert connection.ask(bytes(1_000_000)) == [bytes(1_000_000)]
    assert drip.now > 50


@pytest.fixture
def other():
    server = PretendedRedis()
    yield server
    server.close()


def moved_to(server, host=b"127.0.0.1"):
    return b"-MOVED 7 %b:%d\r\n" % (host, server.port)


@pytest.mark.parametrize("host", [b"127.0.0.1", b"", b"?"])
def test_in_a_cluster_another_node_is_asked_for_what_has_moved(pretended, other, open_engine, host):
    engine = open_engine(pretended.url.replace("redis:", "redis+cluster:"), "x")
    assert append(engine).replicas == 1
    pretended.scripted = [moved_to(other, host), b":0\r\n"]
    assert append(engine).replicas == 1
    assert [b"EVALSHA", scripts.COMMIT.sha] in [each[:2] for each in other.asked]
    other.scripted = [moved_to(pretended)]
    assert engine.take(Lease(), MINE) == HELD


def test_a_sentinel_that_does_not_know_of_a_failover_is_not_asked_for_ever(pretended, other, open_engine):
    engine = open_engine(f"redis+sentinel://127.0.0.1:{pretended.port},127.0.0.1:{other.port}/x", "x")
    other.primary = other.port
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:1: "):
        append(engine)
    assert append(engine).replicas == 1


def test_a_primary_without_replicas_may_be_the_one_before(pretended, other, open_engine, monkeypatch):
    monkeypatch.setattr("beanstalk_server.cluster.engine.redis.topology.LOOK_AGAIN", 0.0)
    engine = open_engine(f"redis+sentinel://127.0.0.1:{pretended.port}/x", "x")
    pretended.primary = pretended.port
    pretended.scripted = [b":1\r\n", b":0\r\n"]
    assert append(engine).replicas == 0
    pretended.primary = other.port
    assert append(engine).replicas == 1
    assert [b"EVALSHA", scripts.COMMIT.sha] in [each[:2] for each in other.asked]


def test_what_is_read_is_followed_to_another_node(pretended, other, open_engine):
    engine = open_engine(pretended.url.replace("redis:", "redis+cluster:"), "x")
    append(engine)
    pretended.others[b"HGETALL"] = moved_to(other)
    other.others[b"HGETALL"] = b"*2\r\n$4\r\nfile\r\n$2\r\n10\r\n"
    other.others[b"STRLEN"] = b":4\r\n"
    assert engine.files() == {"file": (10, 4)}
    other.others[b"HGETALL"] = moved_to(pretended)
    with pytest.raises(EngineError, match="disagree"):
        engine.files()
    pretended.others[b"HGETALL"] = b"-LOADING Redis is loading the dataset in memory\r\n"
    with pytest.raises(EngineError, match="LOADING"):
        engine.files()


@pytest.mark.parametrize("word", [b"ROLE", b"SCRIPT"])
def test_an_engine_may_refuse_at_any_moment(pretended, engine, word):
    pretended.others[word] = b"-NOAUTH Authentication required.\r\n"
    pretended.scripted = [b"-NOSCRIPT No matching script.\r\n", b":0\r\n"]
    with pytest.raises(EngineRefusedError, match="NOAUTH"):
        append(engine)
    del pretended.others[word]
    assert append(engine).replicas == 1


def test_an_engine_that_never_knows_a_script_is_not_asked_for_ever(pretended, engine):
    pretended.scripted = [b"-NOSCRIPT No matching script.\r\n", b":0\r\n"] * 10
    with pytest.raises(EngineError, match="NOSCRIPT"):
        append(engine)


def test_nodes_of_a_cluster_that_do_not_agree_are_not_asked_for_ever(pretended, other, open_engine):
    engine = open_engine(pretended.url.replace("redis:", "redis+cluster:"), "x")
    pretended.rights = moved_to(other)
    other.rights = moved_to(pretended)
    with pytest.raises(EngineError, match="disagree"):
        append(engine)
    pretended.rights = b"*0\r\n"
    assert append(engine).replicas == 1


def test_a_node_of_a_cluster_is_not_taken_for_a_server_alone(pretended, other, engine):
    pretended.rights = moved_to(other)
    with pytest.raises(EngineRefusedError, match=r"use a redis\+cluster:// URL"):
        append(engine)


def test_an_interrupted_answer_is_not_taken_for_the_next(pretended, engine, monkeypatch):
    append(engine)

    def interrupt(*_):
        raise KeyboardInterrupt

    for each in ("read", "read_made"):
        monkeypatch.setattr(resp.Replies, each, interrupt)
    with pytest.raises(KeyboardInterrupt):
        append(engine)
    monkeypatch.undo()
    assert append(engine).replicas == 1
    assert pretended.connections == 2


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis+sentinel://127.0.0.1:1,127.0.0.1:2/x"])
def test_an_engine_that_is_away_for_long_takes_no_memory(url, open_engine):
    engine = open_engine(url, "x")

    def ask(count):
        for _ in range(count):
            with contextlib.suppress(EngineError):
                engine.take(Lease(), MINE)

    ask(3)
    gc.collect()
    gc.disable()  # as in a server
    try:
        ask(200)
        assert gc.collect() < 200, "each of them has left something"  # other threads leave a few things too
    finally:
        gc.enable()


# Real servers


@pytest.fixture
def own(directory, name):
    """Servers of its own for a test that changes them."""
    servers = Alone(directory / f"own-{name}", replicas=1)
    yield servers
    servers.close()


def test_a_primary_that_became_a_replica_is_not_written_to(own, name, open_engine):
    engine = open_engine(own.url, name)
    journal = Journal(engine)
    journal.append((CREATE, "file", 9))
    first, second = own.servers
    second.ask("REPLICAOF", "NO", "ONE")
    first.ask("REPLICAOF", "127.0.0.1", second.port)
    commit = journal.commit((CREATE, "other", 9))
    with pytest.raises(EngineError, match="READONLY"):
        engine.append(commit, may_exceed=False)
    with pytest.raises(EngineError, match="this is a replica, not the primary"):
        engine.append(commit, may_exceed=False)
    with pytest.raises(EngineError, match="this is a replica, not the primary"):
        engine.files()
