"""The engine in PostgreSQL: leases are rows, and a commit is one transaction (schema.py).

A commit to the tail of a journal is one statement, and such commits of several shards are one pipeline and one
transaction, so they wait for the disk and for replication together. All others are rare: they lock the row of their
shard, look at it, and change what they have to.

What is acknowledged is replicated as the server is configured: each commit returns what its session waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from psycopg import Error, conninfo

from beanstalk_server.cluster.engine.interface import (
    CREATE,
    MOVE,
    OBSERVE,
    RELEASE,
    REMOVE,
    RENAME,
    RENEW,
    TAKE,
    WRITE,
    Answer,
    Commit,
    CommitCall,
    Condition,
    EngineError,
    EngineRefusedError,
    File,
    Lease,
    LeaseCall,
    Load,
    Member,
    Position,
    Report,
    lacks,
)
from beanstalk_server.cluster.engine.postgresql.connection import Connection, Row, SQLError, Statement
from beanstalk_server.cluster.engine.postgresql.schema import CONDITIONS, VERSION, Schema
from beanstalk_server.cluster.engine.postgresql.servers import condition_of, confirmations, faults

WINDOW: Final = 32 << 20
"""Bytes of a file that are read at once, and kept for the next calls."""

UNDEFINED_TABLE: Final = "42P01"

BEGIN: Final = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT: Final = Statement(b"COMMIT")
ROLLBACK: Final = Statement(b"ROLLBACK")
SETTINGS: Final = Statement(f"SELECT {CONDITIONS}".encode())

DROP_TIMEOUT: Final = 100
"""Milliseconds to wait for a table that another session reads, such as a backup, before it is dropped later."""


class Held(NamedTuple):
    """What the engine has of a shard, but for its files."""

    lease: Lease = Lease()
    """Its position is that of the last commit that has changed the row."""
    stamp: str = ""
    shards: int = 0
    """How many there are; 0 if that was not written."""
    tail: str = ""
    """The table with the last commit, or ""."""


class PostgresEngine:
    """A connection to an engine in PostgreSQL; see `Engine` for the methods without a docstring here.

    Args:
        url: as libpq reads it.
        name: of the cluster.
        replicas: how many standbys must confirm what is durable.
        timeout: seconds to connect, and for the answers to a pipeline.

    Raises:
        ValueError: libpq does not know an option of the URL.
    """

    def __init__(self, url: str, name: str, replicas: int, *, timeout: float = 2.0) -> None:
        self._hosts = _hosts_of(url)
        self._replicas = replicas
        self._timeout = timeout
        self._schema = Schema(name)
        self._lock = threading.RLock()  # held by the call that is under way
        self._connection: Connection | None = None
        self._is_closed = False
        self._shards = 0  # how many there are; 0 if it does not know
        self._seen: dict[int, Lease] = {}  # by shard, with its position
        self._tails: dict[int, tuple[str, str]] = {}  # by shard: the file that was written last, and its table
        self._window: tuple[str, int, bytes] = ("", 0, b"")  # a table, an offset, and the bytes from there on

    def close(self) -> None:
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._disconnect()
            self._lock.release()
        elif (connection := self._connection) is not None:
            connection.abort()  # and the call that is under way closes it

    def shards(self, wanted: int) -> int:
        with self._calling() as connection, _transaction(connection):
            shard_0 = _array([0])
            begin = [BEGIN, Statement(self._schema.add_shards, (shard_0,)), Statement(self._schema.lock, (shard_0,))]
            *_, rows = self._begin(connection, [*begin, Statement(self._schema.read, (shard_0,))])
            held = _held(rows[0])
            found = held.shards or (1 if held.lease.epoch else 0)
            if not wanted or found not in (0, wanted):
                connection.run([ROLLBACK])
            else:
                found = wanted
                number = Statement(self._schema.number, (VERSION.encode(), b"%d" % wanted))
                settings, *_ = connection.run([SETTINGS, number, COMMIT])
                self._must_be_enough(connection, settings[0], "the number of shards")
        self._shards = found
        return found

    def members(self) -> list[Member]:
        with self._calling() as connection:
            (rows,) = connection.run([Statement(self._schema.members)])
        found = []
        for node, address, seen, *numbers in rows:
            shards, jobs, size, takes = map(_number, numbers)
            found.append(
                Member(_text(node), _text(address), max(float(seen or 0), 0.0), Load(shards, jobs, size), bool(takes))
            )
        return found

    def check(self) -> list[str]:
        with self._calling() as connection:
            return faults(connection, self._replicas)

    def inspect(self) -> list[Condition]:
        with self._calling() as connection:
            return [condition_of(connection, self._schema.name)]

    # Leases

    def perform(self, calls: Sequence[LeaseCall], report: Report | None = None) -> list[Lease | EngineError]:
        try:
            with self._calling() as connection:
                if report is not None:
                    self._report(connection, report)
                if not calls:
                    return []
                changes = any(call.what != OBSERVE or call.lease.renewals for call in calls)
                if not changes:
                    return self._look(connection, calls)
                with _transaction(connection):
                    return self._change(connection, calls)
        except EngineError as error:
            return [_without_frames(error) for _ in calls]

    def _report(self, connection: Connection, report: Report) -> None:
        node, address, load, takes = report
        values = (node, address, load.shards, load.jobs, load.size, takes)
        try:
            connection.run([Statement(self._schema.report, _values(values)), Statement(self._schema.forget)])
        except SQLError:  # the next one comes soon
            if not connection.is_open:
                raise

    def _look(self, connection: Connection, calls: Sequence[LeaseCall]) -> list[Lease | EngineError]:
        """Look at leases, and at the last commit where there is another leader."""
        shards = sorted({call.shard for call in calls})
        (rows,) = connection.run([Statement(self._schema.read, (_array(shards),), is_prepared=True)])
        held = _by_shard(rows)
        new = []
        for shard in shards:
            lease = held.get(shard, Held()).lease
            seen = self._seen.get(shard)
            if seen is None or not seen.is_same(lease):
                new.append(shard)
        last = connection.run([Statement(self._schema.last(held[each].tail)) for each in new if _tail(held, each)])
        found = iter(last)
        for shard in new:
            self._seen[shard] = _at(held.get(shard, Held()), next(found) if _tail(held, shard) else [])
        return [self._known(held.get(call.shard, Held()), call.shard) for call in calls]

    def _known(self, held: Held, shard: int) -> Lease | EngineError:
        """The lease as it is now, with the position of an earlier look."""
        return self._checked(held, held.lease._replace(position=self._seen[shard].position))

    def _change(self, connection: Connection, calls: Sequence[LeaseCall]) -> list[Lease | EngineError]:
        """Make calls that change leases, in one transaction."""
        schema = self._schema
        shards = sorted({call.shard for call in calls})
        of_all = (_array(shards),)
        begin = [BEGIN, Statement(schema.add_shards, of_all), Statement(schema.lock, of_all)]
        *_, rows = self._begin(connection, [*begin, Statement(schema.read, of_all)])
        before = _by_shard(rows)
        held = dict(before)
        leases: list[Held] = []
        waits = False
        for call in calls:
            was = held[call.shard]
            now = held[call.shard] = was if self._refusal(was) else _changed(call, was, self._shards)
            waits = waits or (now != was and call.what in (TAKE, RENEW))
            leases.append(now)
        statements = [SETTINGS]
        statements += [Statement(schema.last(each.tail)) for each in before.values() if each.tail]
        for shard, now in held.items():
            statements += self._writes(shard, before[shard], now)
        settings, *found = connection.run([*statements, COMMIT])
        if waits:
            self._must_be_enough(connection, settings[0], "the lease")
        last = iter(found)
        positions = {shard: _at(each, next(last) if each.tail else []).position for shard, each in before.items()}
        answers: list[Lease | EngineError] = []
        for call, now in zip(calls, leases, strict=True):
            lease = self._checked(now, now.lease._replace(position=positions[call.shard]))
            if isinstance(lease, Lease):
                self._seen[call.shard] = lease
            answers.append(lease)
        return answers

    def _writes(self, shard: int, before: Held, now: Held) -> list[Statement]:
        """The statements that write what has changed about a lease."""
        made = []
        lease = now.lease
        if now._replace(lease=lease._replace(renewals=before.lease.renewals)) != before:
            fields = (lease.epoch, now.stamp, lease.node, lease.address, lease.secret, lease.ttl, lease.successor)
            values = _values((shard, VERSION, *fields, lease.lineage, now.shards))
            made.append(Statement(self._schema.write, values))
        if lease.renewals != before.lease.renewals:
            made.append(Statement(self._schema.count, _values((shard, lease.renewals))))
        return made

    def _checked(self, held: Held, lease: Lease) -> Lease | EngineError:
        return self._refusal(held) or lease

    def _refusal(self, held: Held) -> EngineRefusedError | None:
        """Why this node must not have to do with a shard, or None."""
        if self._shards and held.shards not in (0, self._shards):
            return EngineRefusedError(f"the engine has {held.shards} shards, and this node {self._shards}")
        return None

    def _must_be_enough(self, connection: Connection, settings: Row, what: str) -> None:
        confirmed = 0 if connection.was_canceled else confirmations(settings)
        if confirmed < self._replicas:
            raise EngineError(
                f"{connection.place}: {confirmed} standbys have confirmed {what}: must be {self._replicas}"
            )

    # Commits

    def append(self, calls: Sequence[CommitCall]) -> list[Answer | EngineError]:
        self._window = ("", 0, b"")
        try:
            with self._calling() as connection:
                answers = self._append_to_tails(connection, calls)
                return [
                    self._commit(call) if answer is None else answer
                    for call, answer in zip(calls, answers, strict=True)
                ]
        except EngineError as error:
            _without_frames(error)
            return [error for _ in calls]

    def _append_to_tails(self, connection: Connection, calls: Sequence[CommitCall]) -> list[Answer | None]:
        """Make those commits that only write to a tail; return their answers, and None for each other."""
        statements: list[Statement] = []
        is_sent = []
        for shard, commit, _ in calls:
            operations = commit.operations
            tail = self._tails.get(shard)
            is_tail = len(operations) == 1 and len(operations[0]) == 4 and tail is not None
            is_tail = is_tail and tail is not None and operations[0][1] == tail[0]
            is_sent.append(is_tail)
            if is_tail and tail is not None:
                statements.append(self._append_statement(shard, commit, tail[1]))
        if not statements:
            return [None for _ in calls]
        try:
            rows = iter(connection.run(statements))
        except SQLError as error:
            if error.code != UNDEFINED_TABLE:
                raise
            self._tails.clear()
            return [None for _ in calls]
        answers: list[Answer | None] = []
        for (shard, commit, _), was_sent in zip(calls, is_sent, strict=True):
            made = next(rows) if was_sent else []
            if not made:
                self._tails.pop(shard, None)
            answers.append(self._made(connection, commit, made[0]) if made else None)
        return answers

    def _append_statement(self, shard: int, commit: Commit, place: str) -> Statement:
        position, before, operations, _, stamp = commit
        _, _, offset, data = operations[0]  # type: ignore[misc]
        values = (
            *(b"%d" % shard, b"%d" % position.epoch, stamp, b"%d" % before.epoch, b"%d" % before.number),
            *(b"%d" % position.epoch, b"%d" % position.number, b"%d" % offset, data),
        )
        return Statement(self._schema.append(place), values, data=8, is_prepared=True)

    def _made(self, connection: Connection, commit: Commit, settings: Row) -> Answer:
        confirmed = 0 if connection.was_canceled else confirmations(settings)
        return Answer(commit.position.epoch, commit.position, confirmed)

    def _commit(self, call: CommitCall) -> Answer | EngineError:
        """Make any commit."""
        try:
            with self._calling() as connection, _transaction(connection):
                return self._commit_locked(connection, call.shard, call.commit)
        except EngineError as error:
            return _without_frames(error)

    def _commit_locked(self, connection: Connection, shard: int, commit: Commit) -> Answer:
        schema = self._schema
        of_shard = (_array([shard]),)
        lock, read = Statement(schema.lock, of_shard), Statement(schema.read, of_shard)
        *_, rows, places = self._begin(connection, [BEGIN, lock, read, Statement(schema.places, (b"%d" % shard,))])
        held = _held(rows[0]) if rows else Held()
        (last,) = connection.run([Statement(schema.last(held.tail))]) if held.tail else ([],)
        position = _at(held, last).position
        epoch = held.lease.epoch
        if (epoch, held.stamp) != (commit.position.epoch, commit.stamp.decode()):
            connection.run([ROLLBACK])
            return Answer(epoch, None, 0)
        operations = None
        if position == commit.position:
            statements = [Statement(schema.touch, (b"%d" % shard,))]
        elif position != commit.before:
            connection.run([ROLLBACK])
            return Answer(epoch, position, 0)
        else:
            operations = _Operations(schema, shard, commit, {_text(name): _text(place) for name, place in places})
            statements = operations.statements()
        settings, *_ = connection.run([SETTINGS, *statements, COMMIT])
        answer = self._made(connection, commit, settings[0])
        if operations is not None:
            if operations.tail_name:
                self._tails[shard] = operations.tail_name, operations.tail
            if operations.removes:
                self._drop_unused(connection, shard)
        return answer

    def _drop_unused(self, connection: Connection, shard: int) -> None:
        """Drop the tables of files that are gone. One that another session reads is left for the next time."""
        (rows,) = connection.run([Statement(self._schema.unused, (rf"{shard}\_%".encode(),))])
        timeout = Statement(b"SET LOCAL lock_timeout = %d" % DROP_TIMEOUT)
        asynchronous = Statement(b"SET LOCAL synchronous_commit = off")
        for (place,) in rows:
            try:
                connection.run([BEGIN, timeout, asynchronous, Statement(self._schema.drop(_text(place))), COMMIT])
            except SQLError:
                if not connection.is_open:
                    return
                connection.run([ROLLBACK])

    # Files

    def files(self, shard: int) -> dict[str, File]:
        self._window = ("", 0, b"")
        with self._calling() as connection:
            (rows,) = connection.run([Statement(self._schema.files, (b"%d" % shard,))])
            there = [_text(place) for _, place, _, is_gone in rows if is_gone == b"f"]
            lengths = connection.run([Statement(self._schema.length(place)) for place in there])
        found = {place: _number(length[0][0]) for place, length in zip(there, lengths, strict=True)}
        return {
            _text(name): File(max(_number(size), found.get(_text(place), 0)), found.get(_text(place), 0))
            for name, place, size, _ in rows
        }

    def damage(self, shard: int) -> str:
        with self._calling() as connection:
            of_shard = (b"%d" % shard,)
            expected, rows = connection.run(
                [Statement(self._schema.expected, of_shard), Statement(self._schema.files, of_shard)]
            )
        gone = sorted(_text(name) for name, _, _, is_gone in rows if is_gone == b"t")
        if gone:
            return f"{gone[0]}: its table is gone"
        return lacks(_number(expected[0][0]), len(rows)) if expected else ""

    def read(self, shard: int, name: str, offset: int, size: int) -> bytes:
        with self._calling() as connection:
            (rows,) = connection.run([Statement(self._schema.places, (b"%d" % shard,))])
            place = next((_text(place) for each, place in rows if _text(each) == name), "")
            pieces = []
            while place and size > 0:
                table, start, data = self._window
                if table != place or not start <= offset < start + len(data):
                    start, data = offset, self._read(connection, place, offset)
                    self._window = place, start, data
                piece = data[offset - start : offset - start + size]
                if not piece:
                    break
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
            return b"".join(pieces)

    def _read(self, connection: Connection, place: str, start: int) -> bytes:
        """The bytes of a file from an offset on, as many as are read at once."""
        end = start + WINDOW
        lengths, rows = connection.run(
            [
                Statement(self._schema.length(place)),
                Statement(self._schema.piece(place), (b"%d" % start, b"%d" % end), is_binary=True),
            ]
        )
        size = min(_number(lengths[0][0]), end) - start
        found = bytearray(max(size, 0))
        for at, data in rows:
            begin = int.from_bytes(at or b"") - start
            if data is None:
                cut = max(begin, 0)
                found[cut:] = bytes(len(found) - cut) if cut < len(found) else b""
            else:
                shown = data[max(-begin, 0) :][: size - max(begin, 0)]
                found[max(begin, 0) : max(begin, 0) + len(shown)] = shown
        return bytes(found[: max(size, 0)])

    # The connection

    @contextmanager
    def _calling(self) -> Iterator[Connection]:
        """A connection to the primary, for one call."""
        with self._lock:
            try:
                connection = self._connection
                if connection is None or not connection.is_open:
                    connection = self._connect()
                yield connection
            finally:
                if self._is_closed:
                    self._disconnect()

    def _begin(self, connection: Connection, statements: list[Statement]) -> list[list[Row]]:
        """Begin a transaction that goes on after a look at its first results; it ends if this node is gone then."""
        limit = Statement(b"SET LOCAL idle_in_transaction_session_timeout = %d" % int(self._timeout * 1000))
        return connection.run([statements[0], limit, *statements[1:]])

    def _connect(self) -> Connection:
        self._tails.clear()
        failures: list[EngineError] = []
        for parameters in list(self._hosts):
            if self._is_closed:
                raise EngineError("engine: it is closed")
            connection = self._connection = Connection(parameters, self._timeout)
            try:
                connection.connect()
                self._prepare(connection)
            except EngineError as error:
                connection.close()
                failures.append(_without_frames(error))
                self._hosts.append(self._hosts.pop(0))
                continue
            return connection
        try:  # to report one that is not over by itself, or the first
            raise next((each for each in failures if isinstance(each, EngineRefusedError)), failures[0])
        finally:
            failures.clear()  # or this frame would have the error that has this frame

    def _prepare(self, connection: Connection) -> None:
        """Make the tables, if they are missing."""
        ((tables, schema),) = connection.run([Statement(self._schema.exists)])[0]
        if tables == b"t":
            return
        create = [] if schema == b"t" else [self._schema.create_schema]
        connection.run([Statement(each) for each in [*create, *self._schema.create]])

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _Operations:
    """The statements that make the operations of a commit, and what they leave.

    Args:
        places: the table of each file, by its name.
    """

    def __init__(self, schema: Schema, shard: int, commit: Commit, places: dict[str, str]) -> None:
        self.removes = False
        """Whether a file is gone."""
        self.tail_name = ""
        self.tail = ""
        """The table that was written last, and the file that it belongs to, if that is still there."""
        self._schema = schema
        self._shard = b"%d" % shard
        self._commit = commit
        self._places = places
        self._parts: dict[str, int] = {}  # rows by table
        self._statements: list[Statement] = []
        for index, operation in enumerate(commit.operations):
            self._do(operation, f"{shard}_{commit.position.epoch}_{commit.position.number}_{index}")
        names = {place: name for name, place in places.items()}
        self.tail_name = names.get(self.tail, "")
        self.tail = self.tail if self.tail_name else ""

    def statements(self) -> list[Statement]:
        """All of them, in their order."""
        epoch, number = self._commit.position
        tail = self.tail.encode() if self.tail else None
        values = (self._shard, b"%d" % epoch, b"%d" % number, tail)
        return [*self._statements, Statement(self._schema.move_on, values)]

    def _do(self, operation: tuple[object, ...], place: str) -> None:
        what, name, *more = operation
        assert isinstance(name, str), "each names its file"
        schema, places = self._schema, self._places
        if what == CREATE:
            self.removes = self.removes or name in places
            self._create(name, place, more[0])
        elif what == WRITE:
            if name not in places:
                self._create(name, place, 0)
            self._insert(places[name], *more)
        elif what == RENAME:
            (other,) = more
            assert isinstance(other, str), "a file has a name"
            self.removes = places.pop(other, "") != "" or self.removes
            self._add(schema.remove, other)
            if name in places:
                places[other] = places.pop(name)
                self._add(schema.rename, name, other)
        elif what == REMOVE:
            self.removes = places.pop(name, "") != "" or self.removes
            self._add(schema.remove, name)
        elif name in places:
            self._add(schema.resize, name, more[0])
            self._insert(places[name], more[0], None)

    def _create(self, name: str, place: str, size: object) -> None:
        self._places[name] = place
        self._add(self._schema.add_file, name, place, size)
        self._statements += [Statement(self._schema.create_table(place)), Statement(self._schema.store_plainly(place))]

    def _insert(self, place: str, offset: object, data: object) -> None:
        """Add a row to the table of a file."""
        part = self._parts.get(place, 0)
        self._parts[place] = part + 1
        commit = self._commit
        numbers = _values((commit.before.number, part, *commit.position, offset))
        assert data is None or isinstance(data, bytes), "these are the bytes of a file"
        self._statements.append(Statement(self._schema.insert(place), (*numbers, data), data=5))
        self.tail = place

    def _add(self, text: bytes, *values: object) -> None:
        self._statements.append(Statement(text, (self._shard, *_values(values))))


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """Leave no transaction open: the connection is closed if a call within it fails."""
    try:
        yield
    except EngineError:
        connection.close()
        raise


def _changed(call: LeaseCall, held: Held, shards: int) -> Held:
    """What a shard has after a call."""
    what, _, lease, seen, successor, restores = call
    has = held.lease
    is_own = (has.epoch, held.stamp) == (lease.epoch, lease.stamp)
    if what == OBSERVE:
        is_new = lease.renewals and not has.epoch and not has.renewals
        return held._replace(lease=has._replace(renewals=lease.renewals)) if is_new else held
    if what == TAKE:
        is_seen = (has.epoch, held.stamp, has.renewals) == (seen.epoch, _stamp(seen), seen.renewals)
        return _taken(lease, held, shards) if is_own or is_seen else held
    if what == RENEW:
        if is_own:
            return held._replace(lease=has._replace(renewals=has.renewals + 1)) if has.node == lease.node else held
        if restores and lease.follows(has):
            return _taken(lease._replace(renewals=lease.renewals + 1), held, shards)
        return held
    if what == RELEASE:
        return held._replace(lease=has._replace(node="", successor=successor)) if is_own else held
    assert what == MOVE, what
    return held._replace(lease=has._replace(successor=successor)) if has.node else held


def _taken(lease: Lease, held: Held, shards: int) -> Held:
    lease = lease._replace(position=held.lease.position, successor="")
    return Held(lease, lease.stamp, shards or held.shards, held.tail)


def _stamp(lease: Lease) -> str:
    """The stamp that an engine has of a lease: none before there was a leader."""
    return lease.stamp if lease.secret else ""


def _by_shard(rows: Sequence[Row]) -> dict[int, Held]:
    return {_number(row[0]): _held(row) for row in rows}


def _held(row: Row) -> Held:
    _, version, epoch, renewals, node, address, secret, base_epoch, base_number, ttl, successor, lineage, *more = row
    if _text(version) not in ("", VERSION):
        raise EngineRefusedError(
            f"the journal in the engine has version {_text(version)}, and this server knows version {VERSION}: "
            "must be a server of a later release"
        )
    lease = Lease(
        _number(epoch),
        _number(renewals),
        _text(node),
        _text(address),
        _text(secret),
        Position(_number(base_epoch), _number(base_number)),
        _number(ttl),
        _text(successor),
        _text(lineage),
    )
    shards, tail, stamp = more
    return Held(lease, _text(stamp), _number(shards), _text(tail))


def _at(held: Held, last: Sequence[Row]) -> Lease:
    """A lease with the position of the last commit: that of the last row of the tail, if there is one."""
    if not last:
        return held.lease
    epoch, number = last[0]
    return held.lease._replace(position=Position(_number(epoch), _number(number)))


def _tail(held: dict[int, Held], shard: int) -> str:
    return held[shard].tail if shard in held else ""


def _hosts_of(url: str) -> list[dict[str, str]]:
    """The parameters of each host of a URL.

    Raises:
        ValueError: libpq does not know an option.
    """
    try:
        parameters = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except Error as error:
        raise ValueError(f"libpq: {' '.join(str(error).split())}") from None
    names = parameters.pop("host", "").split(",")
    ports = parameters.pop("port", "5432").split(",")
    ports = ports * len(names) if len(ports) == 1 else ports
    fixed = {"target_session_attrs": "read-write", "application_name": "beanstalk-server", "client_encoding": "UTF8"}
    return [parameters | fixed | {"host": name, "port": port} for name, port in zip(names, ports, strict=True)]


def _values(values: Sequence[object]) -> tuple[bytes, ...]:
    return tuple([str(int(each) if isinstance(each, bool) else each).encode() for each in values])


def _array(numbers: Sequence[int]) -> bytes:
    return ("{" + ",".join(map(str, numbers)) + "}").encode()


def _number(value: bytes | None) -> int:
    return int(value or 0)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _without_frames(error: EngineError) -> EngineError:
    """An error that refers to no frame, so that it may be kept."""
    return error.with_traceback(None)
