"""The engine in Redis or Valkey: a server alone, with replicas, with Sentinel, or a Redis Cluster; also managed ones.

One commit is one script and one WAIT, sent together on the same connection, because WAIT is about what its own
connection has written. Everything is in one database, under keys that begin with {NAME:0} (scripts.py). Must never know
what is in a file, and repeats only what cannot have happened: the server had not loaded the script, or was not the one.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from redis.exceptions import ResponseError

from beanstalk_server.cluster import redis_settings as settings
from beanstalk_server.cluster import scripts
from beanstalk_server.cluster.engine import (
    START,
    Answer,
    Commit,
    Engine,
    EngineError,
    EngineFullError,
    EngineRefusedError,
    File,
    Lease,
    Member,
    Position,
)
from beanstalk_server.cluster.redis_connection import MISPLACED, RedisConnection, ReplyError
from beanstalk_server.cluster.redis_primary import Primary, slot_of
from beanstalk_server.cluster.resp import Reply, bulk, lists_of, number_of, pack, text_of, understood
from beanstalk_server.cluster.scripts import Script
from beanstalk_server.cluster.url import ALONE, CLUSTER, EngineURL, Host, read_url

READ_CHUNK: Final = 1 << 20
"""Bytes that one command reads, which holds up all others on the server."""

READ_AHEAD: Final = 8
"""Commands that are sent before the answer to the first one is read."""

REMEMBERED: Final = 60
"""Seconds for which a node that does not report is a member."""

MOVES: Final = 3
"""How often a call follows MOVED."""

KEYS_KEPT: Final = 100
"""How many keys are kept as they are sent."""

WRITE_THIRD: Final = b"$1\r\nw\r\n$1\r\n3\r\n"
"""The operation that writes to the file of the third key, as arguments of a request."""

DISAGREE: Final = "engine: its nodes do not agree which of them has the keys"

LOOK_AGAIN: Final = 1.0
"""Seconds after which a primary without enough replicas may be another one."""


INFO: Final = pack(b"INFO", b"server", b"memory", b"replication")

log = logging.getLogger("beanstalk_server")


class Replica(NamedTuple):
    """A replica, as its primary sees it."""

    host: Host
    is_online: bool
    """Whether it has a copy, and follows."""
    lag: int
    """Bytes of changes that it has not confirmed yet."""


class Condition(NamedTuple):
    """How a server is."""

    name: str
    """The program, with its version."""
    host: Host
    memory: int
    """Bytes in use."""
    limit: int
    """Bytes that it may use; 0 for any number."""
    replicas: tuple[Replica, ...]


def open_engine(url: str, name: str, replicas: int, *, timeout: float = 2.0) -> RedisEngine:
    """The engine behind a URL. It is not connected before it is used.

    Args:
        url: as `url.py` describes it.
        name: of the cluster.
        replicas: how many replicas must confirm what is durable.
        timeout: seconds to connect, and until something of an answer comes.

    Raises:
        ValueError: the URL is bad.
    """
    return RedisEngine(read_url(url), name, replicas, timeout)


class RedisEngine:
    """An engine in Redis; see `Engine` for the methods without a docstring here."""

    def __init__(self, url: EngineURL, name: str, replicas: int, timeout: float) -> None:
        self._url = url
        self._replicas = replicas
        tag = f"{name}:0"
        self._prefix = f"{{{tag}}}:".encode()
        self._state = self._prefix + b"state"
        self._files = self._prefix + b"files"
        self._file = self._prefix + b"file:"
        self._nodes = self._prefix + b"nodes"
        self._primary = Primary(url, slot_of(tag.encode()), timeout)
        self._common = bulk(self._state) + bulk(self._files)
        self._packed: dict[str, bytes] = {}
        self._wait = pack(b"WAIT", b"%d" % replicas, b"%d" % int(timeout * 500))
        self._connection: RedisConnection | None = None
        self._last: RedisConnection | None = None  # which another thread may abort, connected or not
        self._found_at = 0.0
        self._lock = threading.Lock()  # held by the call that is under way
        self._is_closed = False

    def observe(self, node: str, address: str) -> Lease:
        return self._lease(scripts.OBSERVE, [self._state, self._nodes], [node, address])[0]

    def take(self, seen: Lease, lease: Lease) -> Lease:
        arguments: list[str | int] = [seen.epoch, lease.epoch, lease.renewals, lease.node, lease.address, lease.secret]
        arguments.append(lease.ttl)
        held, confirmed = self._lease(scripts.TAKE, [self._state], arguments, waits=True)
        if (held.epoch, held.node, held.secret) == (lease.epoch, lease.node, lease.secret):
            self._must_be_enough(confirmed)
        return held

    def renew(self, lease: Lease) -> Lease:
        arguments: list[str | int] = [lease.epoch, lease.renewals, lease.node, lease.address, lease.secret, lease.ttl]
        held, confirmed = self._lease(scripts.RENEW, [self._state], arguments, waits=True)
        if (held.epoch, held.node) == (lease.epoch, lease.node):
            self._must_be_enough(confirmed)
        return held

    def release(self, lease: Lease) -> Lease:
        return self._lease(scripts.RELEASE, [self._state], [lease.epoch], waits=True)[0]

    def append(self, commit: Commit, *, may_exceed: bool) -> Answer:
        position = commit.position
        script = scripts.COMMIT_BEYOND if may_exceed else scripts.COMMIT
        reply, confirmed = self._run(self._request(commit, script), script, waits=True, commits=True)
        if reply == 1:
            if confirmed < self._replicas:
                self._look_again()
            return Answer(position.epoch, position, confirmed)
        with understood():
            epoch, last = lists_of(reply)
            return Answer(number_of(epoch), _position(last), 0)

    def _request(self, commit: Commit, script: Script) -> bytes:
        """A commit as a command."""
        position, before, operations, _ = commit
        only = operations[0] if len(operations) == 1 else ()
        if len(only) == 4:  # nearly all just write: in one step
            _, name, offset, data = only
            epoch, old, new, start = b"%d" % position.epoch, b"%d.%d" % before, b"%d.%d" % position, b"%d" % offset
            return b"*13\r\n%b$1\r\n3\r\n%b%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                script.call,
                self._common,
                self._key(name),
                len(epoch),
                epoch,
                len(old),
                old,
                len(new),
                new,
                WRITE_THIRD,
                len(start),
                start,
                len(data),
                data,
            )
        keys = [self._state, self._files]
        arguments = [b"%d" % position.epoch, b"%d.%d" % before, b"%d.%d" % position]
        numbers: dict[str, bytes] = {}

        def number(name: str) -> bytes:
            """The number of the key of a file among the keys."""
            if name not in numbers:
                keys.append(self._file + name.encode())
                numbers[name] = b"%d" % len(keys)
            return numbers[name]

        for operation in operations:
            arguments += operation[0].encode(), number(operation[1])
            for each in operation[2:]:
                arguments.append(
                    each if isinstance(each, bytes) else number(each) if isinstance(each, str) else b"%d" % each
                )
        return pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments)

    def _key(self, name: str) -> bytes:
        """The key of a file, as an argument of a request."""
        packed = self._packed.get(name)
        if packed is None:
            if len(self._packed) >= KEYS_KEPT:
                self._packed.clear()
            packed = self._packed[name] = bulk(self._file + name.encode())
        return packed

    def files(self) -> dict[str, File]:
        with self._lock:
            sizes = lists_of(self._ask([pack(b"HGETALL", self._files)])[0])
            names: list[bytes] = list(sizes[::2])
            questions = [pack(b"STRLEN", self._file + each) for each in names]
            lengths = self._ask(questions) if questions else []
        with understood():
            return {
                name.decode(): File(max(number_of(size), number_of(length)), number_of(length))
                for name, size, length in zip(names, sizes[1::2], lengths, strict=True)
            }

    def read(self, name: str, offset: int, size: int) -> bytes:
        key = self._file + name.encode()
        end = offset + size
        pieces: list[bytes] = []
        while offset < end:
            starts = range(offset, min(end, offset + READ_AHEAD * READ_CHUNK), READ_CHUNK)
            questions = [
                pack(b"GETRANGE", key, b"%d" % start, b"%d" % (min(start + READ_CHUNK, end) - 1)) for start in starts
            ]
            with self._lock:
                replies = self._ask(questions)
            for start, reply in zip(starts, replies, strict=True):
                piece = reply if isinstance(reply, bytes) else b""
                pieces.append(piece)
                if len(piece) < min(READ_CHUNK, end - start):
                    return b"".join(pieces)
            offset = min(end, starts[-1] + READ_CHUNK)
        return b"".join(pieces)

    def members(self) -> list[Member]:
        with self._lock:
            reports, moment = self._ask([pack(b"HGETALL", self._nodes), pack(b"TIME")])
        with understood():
            seconds, micros = lists_of(moment)
            now = number_of(seconds) + number_of(micros) / 1e6
            fields = lists_of(reports)
            found = []
            for node, report in zip(fields[::2], fields[1::2], strict=True):
                address, _, reported = text_of(report).rpartition(" ")
                seen = now - float(reported)
                if seen <= REMEMBERED:
                    found.append(Member(text_of(node), address, max(seen, 0.0)))
            return found

    def check(self) -> list[str]:
        with self._lock:
            try:
                connection = self._connection or self._connect()
                found = [f"engine at {connection.host}: {each}" for each in self._bad_settings(connection)]
                try:
                    replicas = _condition(connection).replicas
                except EngineRefusedError as error:
                    log.warning("%s: whether it has enough replicas is not known", error)
                    return found
                online = sum(each.is_online for each in replicas)
                if few := settings.too_few(online, self._replicas):
                    log.warning("engine at %s: %s", connection.host, few)
                for replica in replicas:
                    found += self._check_replica(replica.host)
                shown = _settings(connection) or {}
                for each in settings.advice(shown, online, self._replicas, in_cluster=self._url.form == CLUSTER):
                    log.warning("engine at %s: %s", connection.host, each)
                return found
            finally:
                self._drop_if_dead()

    def inspect(self) -> Condition:
        """How the server is that has the keys, and its replicas."""
        with self._lock:
            try:
                return _condition(self._connection or self._connect())
            finally:
                self._drop_if_dead()

    def look(self) -> Lease:
        """Who leads, without a report that this node is alive."""
        with self._lock:
            return _lease_of(self._ask([pack(b"HMGET", self._state, *[each.encode() for each in scripts.FIELDS])])[0])

    def close(self) -> None:
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._drop()
            self._lock.release()
        elif (connection := self._last) is not None:
            connection.abort()  # and the call that is under way closes it

    def _lease(
        self, script: Script, keys: list[bytes], arguments: list[str | int], *, waits: bool = False
    ) -> tuple[Lease, int]:
        """Run one of the scripts that return the state; also how many replicas have confirmed it."""
        encoded = [str(each).encode() for each in arguments]
        request = pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *encoded)
        reply, confirmed = self._run(request, script, waits=waits)
        return _lease_of(reply), confirmed

    def _must_be_enough(self, confirmed: int) -> None:
        if confirmed < self._replicas:
            self._look_again()
            raise EngineError(f"engine: {confirmed} replicas have confirmed the lease: must be {self._replicas}")

    def _run(self, request: bytes, script: Script, *, waits: bool, commits: bool = False) -> tuple[Reply, int]:
        """Run a script; return its reply, and how many replicas have confirmed what it has written.

        Args:
            request: the command that runs it.
            waits: wait for the replicas.
            commits: it is mostly answered with 1.
        """
        waits = waits and self._replicas > 0
        if waits:
            request += self._wait
        try:
            with self._lock:
                said = ""
                for _ in range(MOVES):
                    connection = self._connection or self._connect()
                    confirmed: Reply = 0
                    if not waits:
                        reply = connection.ask(request)[0]
                    elif commits:
                        reply, confirmed = connection.ask_to_commit(request)
                    else:
                        reply, confirmed = connection.ask(request, 2)
                    if isinstance(reply, ResponseError):
                        if self._may_ask_again(connection, reply, script):
                            said = str(reply)
                            continue
                        raise self._error(connection, reply)
                    if not isinstance(confirmed, int):
                        raise self._error(connection, confirmed)
                    return reply, confirmed
                raise EngineError(DISAGREE if said.startswith("MOVED ") else f"engine: {said}")
        finally:
            self._drop_if_dead()

    def _may_ask_again(self, connection: RedisConnection, reply: ResponseError, script: Script) -> bool:
        """Whether a script has not run only because it has to be loaded, or asked of another server. It is, then."""
        text = str(reply)
        if text.startswith("NOSCRIPT"):
            loaded = connection.ask(pack(b"SCRIPT", b"LOAD", script.text))[0]
            if isinstance(loaded, ResponseError):
                raise self._error(connection, loaded)
            return True
        if self._has_moved(connection, reply):
            self._drop()
            return True
        return False

    def _ask(self, commands: list[bytes]) -> list[Reply]:
        """Ask something that changes nothing; no reply is an error."""
        try:
            for _ in range(MOVES):
                connection = self._connection or self._connect()
                replies = connection.ask(b"".join(commands), len(commands))
                refused = next((each for each in replies if isinstance(each, ResponseError)), None)
                if refused is None:
                    return replies
                if not self._has_moved(connection, refused):
                    raise self._error(connection, refused)
                self._drop()
            raise EngineError(DISAGREE)
        finally:
            self._drop_if_dead()

    def _error(self, connection: RedisConnection, reply: object) -> EngineError:
        """What an error reply means; the connection is left if another server may be the one to ask."""
        if not isinstance(reply, ResponseError):
            self._drop()
            return EngineError(f"engine at {connection.host}: an answer that was not expected: {reply!r:.60}")
        error = connection.error_of(reply)
        if not isinstance(error, (EngineFullError, EngineRefusedError)) and (
            not isinstance(error, ReplyError) or error.code in MISPLACED
        ):
            self._drop()
        return error

    def _connect(self) -> RedisConnection:
        """Connect to the primary, and make sure that the user may do all that is needed there."""
        question = pack(b"EVAL", scripts.RIGHTS.text, b"4", self._state, self._files, self._file + b"a", self._nodes)
        for _ in range(MOVES):
            connection = self._primary.connect(self._note)
            try:
                reply = connection.ask(question)[0]
                if not isinstance(reply, ResponseError):
                    self._must_be_allowed(connection, reply)
                    self._connection = connection
                    self._found_at = time.monotonic()
                    return connection
                if not self._has_moved(connection, reply):
                    raise connection.error_of(reply)
            except BaseException:
                connection.close()
                raise
            connection.close()
        raise EngineError(DISAGREE)

    def _must_be_allowed(self, connection: RedisConnection, refused: Reply) -> None:
        missing = ", ".join(sorted({text_of(each) for each in lists_of(refused)}))
        if missing:
            raise EngineRefusedError(
                f"engine at {connection.host}: user {self._url.user or 'default'!r} may not {missing}: "
                f"must have ~{self._prefix.decode()}* and these commands"
            )

    def _has_moved(self, connection: RedisConnection, reply: ResponseError) -> bool:
        """Whether a server has done nothing because another one has the keys, which is asked next."""
        if not str(reply).startswith("MOVED "):
            return False
        if self._url.form != CLUSTER:
            raise EngineRefusedError(
                f"engine at {connection.host}: {reply}: it is a node of Redis Cluster: must be redis+cluster://…"
            )
        self._primary.moved(str(reply), connection.host)
        return True

    def _note(self, connection: RedisConnection) -> None:
        self._last = connection
        if self._is_closed:
            raise EngineError("engine: it is closed")

    def _look_again(self) -> None:
        """Have the next call find the primary anew: too few replicas confirm what this one does."""
        if self._url.form != ALONE and time.monotonic() - self._found_at > LOOK_AGAIN:
            with self._lock:
                self._drop()

    def _drop_if_dead(self) -> None:
        """Forget a connection that has failed, or that another thread has closed."""
        if self._is_closed or (self._connection is not None and not self._connection.is_open):
            self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _bad_settings(self, connection: RedisConnection) -> list[str]:
        found = _settings(connection)
        if found is None:
            log.warning(
                "engine at %s: it does not show its settings: whether they lose jobs is not known", connection.host
            )
            return []
        return settings.losing(found, self._replicas)

    def _check_replica(self, host: Host) -> list[str]:
        """What in the settings of a replica would lose jobs once it is the primary."""
        connection = self._primary.connection_to(host)
        self._note(connection)
        try:
            connection.connect()
            return [f"replica at {host}: {each}" for each in self._bad_settings(connection)]
        except EngineError as error:  # it may have an address that is not for this machine
            log.warning("a replica cannot be asked for its settings: %s", error)
            return []
        finally:
            connection.close()


def _settings(connection: RedisConnection) -> dict[str, str] | None:
    """The settings of a server, or None if it does not show them."""
    reply = connection.ask(pack(b"CONFIG", b"GET", *[each.encode() for each in settings.ASKED]))[0]
    if not isinstance(reply, list):
        return None
    words = [text_of(each) for each in reply]
    return dict(zip(words[::2], words[1::2], strict=True))


def _condition(connection: RedisConnection) -> Condition:
    """What a server says of itself."""
    reply = connection.ask(INFO)[0]
    if isinstance(reply, ResponseError):
        raise connection.error_of(reply)
    with understood():
        told = {name: value for name, _, value in (line.partition(":") for line in text_of(reply).splitlines())}
        offset = int(told.get("master_repl_offset", 0))
        replicas = []
        for number in range(int(told.get("connected_slaves", 0))):
            of_one = dict(each.partition("=")[::2] for each in told.get(f"slave{number}", "").split(","))
            host = Host(of_one.get("ip", "?"), int(of_one.get("port", 0)))
            lag = max(offset - int(of_one.get("offset", 0)), 0)
            replicas.append(Replica(host, of_one.get("state") == "online", lag))
        valkey = told.get("valkey_version")
        name = f"Valkey {valkey}" if valkey else f"Redis {told.get('redis_version', '?')}"
        memory, limit = (int(told.get(each, 0)) for each in ("used_memory", "maxmemory"))
        return Condition(name, connection.host, memory, limit, tuple(replicas))


def _lease_of(reply: object) -> Lease:
    """The lease of the fields of the state.

    Raises:
        EngineRefusedError: a later release has written it.
    """
    with understood():
        version, epoch, renewals, node, address, secret, last, ttl = lists_of(reply)
        if version is not None and text_of(version) != scripts.VERSION:
            raise EngineRefusedError(
                f"the journal in the engine has version {text_of(version)}, and this server knows version "
                f"{scripts.VERSION}: must be a server of a later release"
            )
        return Lease(
            number_of(epoch),
            number_of(renewals),
            text_of(node),
            text_of(address),
            text_of(secret),
            _position(last),
            number_of(ttl),
        )


def _position(reply: object) -> Position:
    """A position as it is kept: "EPOCH.NUMBER"."""
    epoch, dot, number = text_of(reply).partition(".")
    return Position(int(epoch), int(number)) if dot else START


if TYPE_CHECKING:

    def _is_engine(engine: RedisEngine) -> Engine:
        return engine
