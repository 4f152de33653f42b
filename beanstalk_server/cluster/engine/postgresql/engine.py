"""The engine in PostgreSQL: leases are rows, and a commit is one transaction (schema.py).

A commit to the tail of a journal is one statement, and such commits of several shards are one pipeline and one
transaction, so they wait for the disk and for replication together. All others are rare: they lock the row of their
shard, look at it, and change what they have to.

What is acknowledged is replicated as the server is configured. Each transaction reads what its commit waits for, and
so does the one behind it: a commit that waits is let go when an operator empties `synchronous_standby_names`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from psycopg import Error, conninfo

from beanstalk_server.cluster.engine.interface import (
    CREATE,
    MOVE,
    OBSERVE,
    RELEASE,
    REMOVE,
    RENAME,
    RENEW,
    RESIZE,
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
from beanstalk_server.cluster.engine.postgresql.schema import CONDITIONS, TABLES, VERSION, WARNS, Schema
from beanstalk_server.cluster.engine.postgresql.servers import condition_of, confirmations, faults

WINDOW: Final = 32 << 20
"""Bytes of a file that are read at once, and kept for the next calls."""

NO_WINDOW: Final = ("", 0, b"")

UNDEFINED_TABLE: Final = "42P01"

BEGIN: Final = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT: Final = Statement(b"COMMIT")
NOTHING: Final = Statement(b"SELECT WHERE false")
ROLLBACK: Final = Statement(b"ROLLBACK")
SETTINGS: Final = Statement(f"SELECT {CONDITIONS}, {WARNS}".encode(), is_prepared=True)

DROP_TIMEOUT: Final = 100
"""Milliseconds to wait for a table that another session reads, such as a backup, before it is dropped later."""

NEVER: Final = Lease(-1)
"""No lease of any shard."""


class Held(NamedTuple):
    """What the engine has of a shard, but for its files."""

    lease: Lease = Lease()
    """Its position is that of the last commit that has changed the row."""
    shards: int = 0
    """How many there are; 0 if that was not written."""
    tail: str = ""
    """The table with the last commit, or ""."""


class PostgresEngine:
    """A connection to an engine in PostgreSQL; see `Engine` for the methods without a docstring here.

    Args:
        hosts: what `hosts_of` has read of the URL.
        name: of the cluster.
        replicas: how many standbys must confirm what is durable.
        timeout: seconds to connect, and for the answers to each MiB of a pipeline.
    """

    def __init__(self, hosts: Sequence[dict[str, str]], name: str, replicas: int, *, timeout: float = 2.0) -> None:
        self._hosts = list(hosts)
        self._replicas = replicas
        self._timeout = timeout
        self._schema = Schema(name)
        self._lock = threading.RLock()  # held by the call that is under way
        self._connection: Connection | None = None
        self._is_closed = False
        self._settings: list[Row] = []  # what the transaction that goes on has read of SETTINGS
        self._shards = 0  # how many there are; 0 if it does not know
        self._seen: dict[int, Lease] = {}  # by shard, with its position
        self._tails: dict[int, tuple[str, bytes]] = {}  # by shard: the last file, and the statement that appends to it
        self._window: tuple[str, int, bytes] = NO_WINDOW  # a table, an offset, and the bytes from there on

    def close(self) -> None:
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._disconnect()
            self._lock.release()
        elif (connection := self._connection) is not None:
            connection.abort()  # and the call that is under way closes it

    def shards(self, wanted: int) -> int:
        with self._calling() as connection, _transaction(connection):
            held = self._read_leases(connection, [0], locks=True)[0]
            found = held.shards or (1 if held.lease.epoch else 0)
            if not wanted or found not in (0, wanted):
                connection.run([ROLLBACK])
            else:
                found = wanted
                _, confirmed = self._end(connection, [Statement(self._schema.number, _values(VERSION, wanted))])
                self._must_be_enough(connection, confirmed, "the number of shards")
        self._shards = found
        return found

    def members(self) -> list[Member]:
        with self._calling() as connection:
            (rows,) = connection.run([Statement(self._schema.members)])
        return [
            Member(node, address, max(float(seen), 0.0), Load(*map(int, load)), takes == "t")
            for node, address, seen, takes, *load in rows
        ]

    def check(self) -> list[str]:
        with self._calling() as connection:
            return faults(connection, self._replicas)

    def inspect(self) -> list[Condition]:
        with self._calling() as connection:
            return [condition_of(connection, self._schema.name)]

    # Leases

    def perform(self, calls: Sequence[LeaseCall], report: Report | None = None) -> list[Lease | EngineError]:
        try:
            with self._calling() as connection, _transaction(connection):
                answers = self._perform(connection, calls, any(call.what != OBSERVE for call in calls))
        except EngineError as error:
            return [error.with_traceback(None) for _ in calls]
        if report is not None:
            node, address, load, takes = report
            values = _values(node, address, *load, takes)
            with suppress(EngineError), self._calling() as connection:  # as the interface allows
                connection.run([Statement(self._schema.report, values), Statement(self._schema.forget)])
        return answers

    def _perform(self, connection: Connection, calls: Sequence[LeaseCall], changes: bool) -> list[Lease | EngineError]:
        """Make calls about leases. The position of a lease is looked up if it is changed, or new here."""
        schema = self._schema
        shards = sorted({call.shard for call in calls})
        before = self._read_leases(connection, shards, locks=changes)
        if not changes and any(_changed(call, before[call.shard], 0) != before[call.shard] for call in calls):
            return self._perform(connection, calls, changes=True)  # an engine gets a number
        held = dict(before)
        after = []
        waits = False
        for call in calls:
            was = now = held[call.shard]
            if not self._refusal(was):
                now = held[call.shard] = _changed(call, was, self._shards)
            waits = waits or (now != was and call.what in (TAKE, RENEW))
            after.append(now)
        asked = [
            shard for shard, each in before.items() if changes or not each.lease.is_same(self._seen.get(shard, NEVER))
        ]
        statements = [Statement(schema.last(before[shard].tail)) for shard in asked if before[shard].tail]
        for shard, now in held.items():
            statements += self._writes(shard, before[shard], now)
        rows, confirmed = self._end(connection, statements) if changes else (connection.run(statements), 0)
        if waits:
            self._must_be_enough(connection, confirmed, "the lease")
        found = iter(rows)
        for shard in asked:
            position = before[shard].lease.position
            self._seen[shard] = held[shard].lease._replace(
                position=_position_of(next(found), position) if before[shard].tail else position
            )
        return [
            self._refusal(each) or each.lease._replace(position=self._seen[call.shard].position)
            for call, each in zip(calls, after, strict=True)
        ]

    def _read_leases(self, connection: Connection, shards: Sequence[int], *, locks: bool) -> dict[int, Held]:
        """What shards have; if `locks`, in a transaction that goes on, in which nothing else changes that."""
        of_all = ("{" + ",".join(map(str, shards)) + "}").encode()
        statements = [Statement(self._schema.read, (of_all,), is_prepared=not locks)]
        if locks:  # the server ends the transaction if this node is gone in the middle of it
            limit = Statement(b"SET LOCAL idle_in_transaction_session_timeout = %d" % int(self._timeout * 1000))
            lock = [Statement(self._schema.add_shards, (of_all,)), Statement(self._schema.lock, (of_all,))]
            statements = [BEGIN, SETTINGS, limit, *lock, *statements]
        rows = connection.run(statements)
        if locks:
            self._settings = rows[1]
        return dict.fromkeys(shards, Held()) | {int(row[0]): _held(row) for row in rows[-1]}

    def _writes(self, shard: int, before: Held, now: Held) -> list[Statement]:
        """The statements that write what has changed about a lease."""
        made = []
        lease = now.lease
        if now._replace(lease=lease._replace(renewals=before.lease.renewals)) != before:
            epoch, _, node, address, secret, _, *more = lease
            values = _values(shard, VERSION, now.shards, epoch, lease.stamp, node, address, secret, *more)
            made.append(Statement(self._schema.write, values))
        if lease.renewals != before.lease.renewals:
            made.append(Statement(self._schema.count, _values(shard, lease.renewals)))
        return made

    def _refusal(self, held: Held) -> EngineRefusedError | None:
        """Why this node must not have to do with a shard, or None."""
        if self._shards and held.shards not in (0, self._shards):
            return EngineRefusedError(f"the engine has {held.shards} shards, but this node has {self._shards}")
        return None

    def _end(self, connection: Connection, statements: Sequence[Statement]) -> tuple[list[list[Row]], int]:
        """Make statements and commit the transaction; return their rows, and how many standbys have confirmed it."""
        *rows, _, after = connection.run([*statements, COMMIT, SETTINGS])
        return rows, _confirmed(connection, self._settings, after)

    def _must_be_enough(self, connection: Connection, confirmed: int, what: str) -> None:
        if confirmed < self._replicas:
            raise EngineError(
                f"{connection.place}: only {confirmed} of {self._replicas} standbys have confirmed {what}"
            )

    # Commits

    def append(self, calls: Sequence[CommitCall]) -> list[Answer | EngineError]:
        self._window = NO_WINDOW
        try:
            with self._calling() as connection, _transaction(connection):
                answers = self._append_to_tails(connection, calls)
        except EngineError as error:
            return [error.with_traceback(None) for _ in calls]
        return [answers.get(call.shard) or self._commit(call) for call in calls]

    def _append_to_tails(self, connection: Connection, calls: Sequence[CommitCall]) -> dict[int, Answer]:
        """Make those commits that only write to a tail, together; return the answers to those that were made."""
        statements: list[Statement] = []
        sent: list[tuple[int, Position]] = []
        for shard, commit, _ in calls:
            position, before, operations, _, stamp = commit
            name, append = self._tails.get(shard, ("", b""))
            only = operations[0] if len(operations) == 1 else ()
            if len(only) == 4 and only[1] == name:
                values = _values(shard, position.epoch, stamp.decode(), *before, *position, only[2])
                statements.append(Statement(append, (*values, only[3]), data=8, is_prepared=True))
                sent.append((shard, position))
        if not statements:
            return {}
        try:
            _, *rows, _, after = connection.run([BEGIN, *statements, COMMIT, SETTINGS])
        except SQLError as error:
            if error.code != UNDEFINED_TABLE:
                raise
            rows, after = [[] for _ in statements], []
        made = {}
        for (shard, position), settings in zip(sent, rows, strict=True):
            if settings:
                made[shard] = Answer(position.epoch, position, _confirmed(connection, settings, after))
            else:
                self._tails.pop(shard, None)
        return made

    def _commit(self, call: CommitCall) -> Answer | EngineError:
        """Make any commit."""
        shard, commit, _ = call
        try:
            with self._calling() as connection, _transaction(connection):
                held = self._read_leases(connection, [shard], locks=True)[shard]
                last, places = connection.run(
                    [
                        Statement(self._schema.last(held.tail)) if held.tail else NOTHING,
                        Statement(self._schema.places, _values(shard)),
                    ]
                )
                position = _position_of(last, held.lease.position)
                epoch = held.lease.epoch
                is_held = (epoch, held.lease.stamp) == (commit.position.epoch, commit.stamp.decode())
                if not is_held or position not in (commit.position, commit.before):
                    connection.run([ROLLBACK])
                    return Answer(epoch, position if is_held else None, 0)
                made = _Operations(self._schema, shard, commit, dict(places))
                again = [Statement(self._schema.touch, _values(shard))]  # and wait for it once more
                statements = again if position == commit.position else made.statements()
                _, confirmed = self._end(connection, statements)
                answer = Answer(epoch, commit.position, confirmed)
                if position != commit.position:
                    name, place = made.tail
                    self._tails[shard] = name, self._schema.append(place)
                    if made.removes:
                        self._drop_unused(connection, shard)
                return answer
        except EngineError as error:
            return error.with_traceback(None)

    def _drop_unused(self, connection: Connection, shard: int) -> None:
        """Drop the tables of files that are gone. One that another session reads is left for the next time."""
        (rows,) = connection.run([Statement(self._schema.unused, _values(f"^{shard}_[0-9]+_[0-9]+_[0-9]+$"))])
        timeout = Statement(b"SET LOCAL lock_timeout = %d" % DROP_TIMEOUT)
        asynchronous = Statement(b"SET LOCAL synchronous_commit = off")
        for (place,) in rows:
            try:
                connection.run([BEGIN, timeout, asynchronous, Statement(self._schema.drop(place)), COMMIT])
            except SQLError:
                if not connection.is_open:
                    return
                connection.run([ROLLBACK])

    # Files

    def files(self, shard: int) -> dict[str, File]:
        self._window = NO_WINDOW
        with self._calling() as connection:
            (rows,) = connection.run([Statement(self._schema.files, _values(shard))])
            there = [place for _, place, _, is_gone in rows if is_gone == "f"]
            found = connection.run([Statement(self._schema.length(place)) for place in there])
        lengths = {place: int(row[0]) for place, (row,) in zip(there, found, strict=True)}
        return {
            name: File(max(int(size), lengths.get(place, 0)), lengths.get(place, 0)) for name, place, size, _ in rows
        }

    def damage(self, shard: int) -> str:
        with self._calling() as connection:
            statements = [Statement(text, _values(shard)) for text in (self._schema.expected, self._schema.files)]
            expected, rows = connection.run(statements)
        gone = min((name for name, _, _, is_gone in rows if is_gone == "t"), default="")
        if gone:
            return f"{gone}: its table is missing"
        return lacks(int(expected[0][0]), len(rows)) if expected else ""

    def read(self, shard: int, name: str, offset: int, size: int) -> bytes:
        with self._calling() as connection:
            (rows,) = connection.run([Statement(self._schema.places, _values(shard))])
            place = next((place for each, place in rows if each == name), "")
            table, start, data = self._window
            if place and (table != place or not start <= offset <= offset + size <= start + len(data)):
                data = self._read(connection, place, offset, offset + max(size, WINDOW))
                table, start, _ = self._window = place, offset, data
            return data[offset - start :][:size] if place else b""

    def _read(self, connection: Connection, place: str, start: int, end: int) -> bytes:
        """The bytes of a file from `start` to `end`, or to where its length ends."""
        piece = Statement(self._schema.piece(place), _values(start, end), is_binary=True)
        lengths, rows = connection.run([Statement(self._schema.length(place)), piece])
        size = max(min(int(lengths[0][0]), end) - start, 0)
        found = bytearray(size)
        for at, data in rows:
            begin = int.from_bytes(at) - start
            skipped, begin = max(-begin, 0), max(begin, 0)
            shown = bytes(max(size - begin, 0)) if data is None else data[skipped : skipped + max(size - begin, 0)]
            found[begin : begin + len(shown)] = shown
        return bytes(found)

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

    def _connect(self) -> Connection:
        self._tails.clear()
        prepares = self._connection is None or self._connection.prepares
        failures: list[EngineError] = []
        for parameters in list(self._hosts):
            if self._is_closed:
                raise EngineError("engine: connection closed")
            connection = self._connection = Connection(parameters, self._timeout, prepares=prepares)
            try:
                connection.connect()
                self._prepare(connection)
            except EngineError as error:
                connection.close()
                failures.append(error.with_traceback(None))
                self._hosts.append(self._hosts.pop(0))
                continue
            return connection
        try:  # to report one that is not over by itself, or the first
            raise next((each for each in failures if isinstance(each, EngineRefusedError)), failures[0])
        finally:
            failures.clear()  # or this frame would have the error that has this frame

    def _prepare(self, connection: Connection) -> None:
        """Make the tables, if they are missing."""
        (((tables, has_schema),),) = connection.run([Statement(self._schema.exists)])
        if not int(tables):
            create = self._schema.create_tables if has_schema == "t" else self._schema.create
            connection.run([Statement(each) for each in create])
        elif int(tables) < len(TABLES):
            raise EngineRefusedError(
                f"schema {self._schema.name} has only {tables} of the tables {', '.join(TABLES)}: must have all or none"
            )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _Operations:
    """The statements that make the operations of a commit, and what they leave.

    Args:
        places: the table of each file, by its name.

    Attributes:
        removes: whether a file is gone.
        tail: the file that was written last, and its table; empty if it is gone, or if none was written.
    """

    def __init__(self, schema: Schema, shard: int, commit: Commit, places: dict[str, str]) -> None:
        self._schema = schema
        self._shard = shard
        self._commit = commit
        self._places = places
        self._parts: dict[str, int] = {}  # rows by table
        self._made: list[Statement] = []
        self._written = ""  # the table that was written last
        for index, operation in enumerate(commit.operations):
            self._do(operation, f"{shard}_{commit.position.epoch}_{commit.position.number}_{index}")
        self.removes: bool = any(each.text in (schema.remove, schema.add_file) for each in self._made)
        name = next((name for name, place in places.items() if place == self._written), "")
        self.tail = (name, self._written if name else "")

    def statements(self) -> list[Statement]:
        """All of them, in their order."""
        tail = self.tail[1].encode() or None
        move_on = Statement(self._schema.move_on, (*_values(self._shard, *self._commit.position), tail))
        return [*self._made, move_on]

    def _do(self, operation: tuple[Any, ...], place: str) -> None:
        what, name, *more = operation
        schema, places = self._schema, self._places
        if what == CREATE or (what == WRITE and name not in places):
            places[name] = place
            self._add(schema.add_file, name, place, more[0] if what == CREATE else 0)
            self._made += [Statement(schema.create_table(place)), Statement(schema.store_plainly(place))]
        if what == WRITE:
            self._insert(places[name], *more)
        elif what == RENAME and more != [name]:
            (other,) = more
            places.pop(other, None)
            self._add(schema.remove, other)
            if name in places:
                places[other] = places.pop(name)
                self._add(schema.rename, name, other)
        elif what == REMOVE:
            places.pop(name, None)
            self._add(schema.remove, name)
        elif what == RESIZE and name in places:
            self._add(schema.resize, name, *more)
            self._insert(places[name], *more)

    def _insert(self, place: str, offset: int, data: bytes | None = None) -> None:
        """Add a row to the table of a file."""
        part = self._parts[place] = self._parts.get(place, -1) + 1
        values = _values(self._commit.before.number, part, *self._commit.position, offset)
        self._made.append(Statement(self._schema.insert(place), (*values, data), data=5))
        self._written = place

    def _add(self, text: bytes, *values: object) -> None:
        self._made.append(Statement(text, _values(self._shard, *values)))


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """Leave no transaction open: the connection is closed if a call within it fails."""
    try:
        yield
    except EngineError:
        connection.close()
        raise


def _confirmed(connection: Connection, before: list[Row], after: list[Row]) -> int:
    """How many standbys have the last commit, with what SETTINGS had in its transaction and behind it."""
    return confirmations(after[0]) if before == after and not connection.was_canceled else 0


def _changed(call: LeaseCall, held: Held, shards: int) -> Held:
    """What a shard has after a call."""
    what, _, lease, seen, successor, restores = call
    has = held.lease
    is_own = (has.epoch, has.secret) == (lease.epoch, lease.secret)
    now = has
    if what == OBSERVE and not has.epoch and not has.renewals:
        now = has._replace(renewals=lease.renewals)
    elif what == MOVE and has.node:
        now = has._replace(successor=successor)
    elif what == RELEASE and is_own:
        now = has._replace(node="", successor=successor)
    elif what == RENEW and is_own and has.node == lease.node:
        now = has._replace(renewals=has.renewals + 1)
    else:
        is_seen = (has.epoch, has.secret, has.renewals) == (seen.epoch, seen.secret, seen.renewals)
        is_taken = what == TAKE and (is_own or is_seen)
        is_restored = what == RENEW and not is_own and restores and lease.follows(has)
        if is_taken or is_restored:
            renewals = lease.renewals + is_restored
            now = lease._replace(renewals=renewals, position=has.position, successor="")
            return Held(now, shards or held.shards, held.tail)
    return held._replace(lease=now)


def _held(row: Row) -> Held:
    _, version, shards, tail, epoch, renewals, node, address, secret, base_epoch, base_number, ttl, *more = row
    if version not in ("", VERSION):
        raise EngineRefusedError(
            f"the journal in the engine has version {version}, but this server supports only version {VERSION}: "
            "use a later release of beanstalk-server"
        )
    base = Position(int(base_epoch), int(base_number))
    lease = Lease(int(epoch), int(renewals), node, address, secret, base, int(ttl), *more)
    return Held(lease, int(shards), tail)


def _position_of(last: Sequence[Row], base: Position) -> Position:
    """The position of the last commit: that of the last row of the tail, if there is one."""
    return Position(*map(int, last[0])) if last else base


def hosts_of(url: str) -> list[dict[str, str]]:
    """The parameters of each host of a URL.

    Raises:
        ValueError: libpq does not know an option, or it is bad.
    """
    try:
        parameters = {name: str(value) for name, value in conninfo.conninfo_to_dict(url).items()}
    except Error as error:
        said = " ".join(str(error).split())  # after a colon, it may quote a part of the password
        is_safe = said.startswith("invalid URI query parameter")
        raise ValueError(f"libpq: {said if is_safe else said.partition(':')[0]}") from None
    for option in ("hostaddr", "service"):
        if option in parameters:
            raise ValueError(f"must not have the option {option}: name the servers in the URL")
    names = parameters.pop("host", "").split(",")
    ports = [port or "5432" for port in parameters.pop("port", "").split(",")]
    ports = ports * len(names) if len(ports) == 1 else ports
    if len(ports) != len(names) or not all(port.isascii() and port.isdigit() for port in ports):
        raise ValueError("must have one port for all hosts, or one for each")
    fixed = {"target_session_attrs": "read-write", "application_name": "beanstalk-server", "client_encoding": "UTF8"}
    return [parameters | fixed | {"host": name, "port": port} for name, port in zip(names, ports, strict=True)]


def _values(*values: object) -> tuple[bytes, ...]:
    return tuple([str(each).encode() for each in values])
