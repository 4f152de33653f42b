"""A connection to the primary: runs statements in pipelines, each within a deadline.

It uses libpq by `psycopg.pq`, because psycopg's cursors have no deadline: a commit that waits for a standby would hold
the thread for ever. A deadline that passes closes the connection. What was sent may happen nevertheless.

PostgreSQL reports a canceled wait for replication as a warning, and the commit as a success: it is visible, and perhaps
on no standby. `Connection.was_canceled` tells.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha1
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import conninfo, pq

from beanstalk_server.cluster.engine.interface import EngineError, EngineFullError, EngineRefusedError
from beanstalk_server.settings.engine_url import Host

LOCK_SHARE: Final = 0.5
"""The part of the timeout for which the server waits for a lock: a client that has given up leaves no waiter behind."""

FULL: Final = frozenset(("53100",))
"""disk_full"""

REFUSED: Final = frozenset(("28000", "28P01", "3D000", "42501"))
"""invalid authorization, wrong password, no such database, insufficient privilege"""

KEPT: Final = frozenset(("2BP01", "40001", "40P01", "53100", "53200", "55P03", "57014"))
"""Codes after which a connection is used again: a view that needs a table, serialization, deadlock, disk, memory, lock
timeout, canceled."""

WAIT: Final = b"SyncRepWaitForLSN"
"""The function of the server that warns when a wait for replication is canceled: the warning may have no code."""

MOST_NAMES: Final = 100
"""Prepared statements of a session at most: there is one for each table that was a tail."""

MIB: Final = 1 << 20

FAILED: Final = (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE)

REFUSALS: Final = ("authentication failed", "pg_hba.conf", "does not exist", "not permitted to log in")
"""Parts of the messages of a server that refuses a connection: libpq has no codes for them."""

Row = tuple[Any, ...]
"""Each value is a str, "" for NULL; of a binary statement, bytes or None."""


class Statement(NamedTuple):
    """One statement with its values, all in the text format but for bytes in `data`."""

    text: bytes
    values: tuple[bytes | None, ...] = ()
    data: int = -1
    """The index of the value in the binary format, or -1."""
    is_prepared: bool = False
    """It is run often, and worth a name at the server."""
    is_binary: bool = False
    """Whether its rows are in the binary format."""


class SQLError(EngineError):
    """A statement has failed, and with it the transaction. `code` is its SQLSTATE."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Connection:
    """A connection to a server that can write.

    Args:
        parameters: those of libpq, for one host.
        timeout: seconds to connect, and for the answers to each MiB of a pipeline.
        prepares: whether it prepares statements.
    """

    def __init__(self, parameters: dict[str, str], timeout: float, *, prepares: bool = True) -> None:
        self.host = Host(parameters.get("host", "") or "localhost", int(parameters.get("port", 0) or 5432))
        self.is_open = True
        self.was_canceled = False
        """Whether a commit of the last pipeline has not waited for replication to its end."""
        self._parameters = parameters
        self._timeout = timeout
        self._names: dict[bytes, bytes] = {}  # of prepared statements, by their texts
        self.prepares = prepares
        """Whether it prepares statements: not if a pooler has changed its session."""
        self._poll = select.poll()
        self._descriptor = -1
        self._is_aborted = False
        self._pg: pq.abc.PGconn | None = None

    @property
    def place(self) -> str:
        """What messages call the server."""
        return f"engine at {self.host}"

    def connect(self) -> None:
        """Connect.

        Raises:
            EngineError: it is impossible, or the server only reads.
        """
        deadline = time.monotonic() + self._timeout
        try:
            pg = self._pg = pq.PGconn.connect_start(conninfo.make_conninfo("", **self._parameters).encode())
            while True:
                if pg.status == pq.ConnStatus.BAD:
                    raise self._connect_error(pg)
                status = pg.connect_poll()
                if status == pq.PollingStatus.OK:
                    break
                if status == pq.PollingStatus.FAILED:
                    raise self._connect_error(pg)
                self._wait(pg, deadline, writes=status == pq.PollingStatus.WRITING)
            pg.nonblocking = 1
            pg.notice_handler = self._on_notice
            pg.enter_pipeline_mode()
            self.run([Statement(b"SET lock_timeout = %d" % int(self._timeout * LOCK_SHARE * 1000))])
        except psycopg.Error as error:
            self.close()
            raise EngineError(f"{self.place}: {_line(str(error))}") from None
        except BaseException:
            self.close()
            raise

    def run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run statements in one pipeline; return the rows of each. They are one transaction, unless they say otherwise.

        Raises:
            SQLError, EngineFullError, EngineRefusedError: one of them has failed, and all have had no effect.
            EngineError: the connection is lost, or there was no answer in time.
        """
        pg = self._pg
        if pg is None or not self.is_open:
            raise EngineError("engine: connection closed")
        self.was_canceled = False
        size = sum(len(value) for each in statements for value in each.values if value is not None)
        deadline = time.monotonic() + self._timeout * (1 + size / MIB)  # the network may be slow
        results: list[pq.abc.PGresult] = []
        try:
            sent = [each for statement in statements for each in self._send(pg, statement)]
            pg.pipeline_sync()
            while True:
                while pg.flush() or pg.is_busy():
                    self._wait(pg, deadline, writes=bool(pg.flush()))
                    pg.consume_input()
                result = pg.get_result()
                if result is None:  # the end of one statement
                    continue
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    break
                results.append(result)
            failed = next((each for each in results if each.status in FAILED), None)
            if failed is None:
                found = zip(results, sent, strict=True)
                return [_rows(each, of.is_binary) for each, of in found if isinstance(of, Statement)]
        except psycopg.Error as error:
            self.close()
            raise EngineError(f"{self.place}: {_line(str(error))}") from None
        except EngineError:
            self.close()
            raise
        for result, of in zip(results, sent, strict=False):
            if isinstance(of, bytes) and result.status != pq.ExecStatus.COMMAND_OK:
                self._names.pop(of, None)  # it was not prepared, because of an earlier statement
        raise self._error_of(failed)

    def abort(self) -> None:
        """Have a call of another thread end with an EngineError."""
        self._is_aborted = True
        with suppress(OSError), socket.socket(fileno=os.dup(self._descriptor)) as sock:
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, for good."""
        self.is_open = False
        self._descriptor = -1
        pg, self._pg = self._pg, None
        if pg is not None:
            pg.notice_handler = None
            pg.finish()

    def _send(self, pg: pq.abc.PGconn, statement: Statement) -> list[Statement | bytes]:
        """Send a statement; return what each of the answers belongs to: the text, for one that only prepares it."""
        text, values, data, is_prepared, is_binary = statement
        formats = [pq.Format.BINARY if index == data else pq.Format.TEXT for index in range(len(values))]
        rows = pq.Format.BINARY if is_binary else pq.Format.TEXT
        if not (is_prepared and self.prepares):
            pg.send_query_params(text, values, param_formats=formats, result_format=rows)
            return [statement]
        sent: list[Statement | bytes] = [statement]
        if len(self._names) >= MOST_NAMES:
            self._names.clear()
            pg.send_query_params(b"DEALLOCATE ALL", ())
            sent.insert(0, b"")
        name = self._names.get(text)
        if name is None:  # behind a pooler, others may share the session
            name = self._names[text] = b"beanstalk_" + sha1(text).hexdigest().encode()
            pg.send_prepare(name, text)
            sent.insert(-1, text)
        pg.send_query_prepared(name, values, param_formats=formats, result_format=rows)
        return sent

    def _wait(self, pg: pq.abc.PGconn, deadline: float, *, writes: bool) -> None:
        """Wait until there is something to read, or to write if that is wanted."""
        if self._descriptor != pg.socket:  # each host that libpq tries has a socket of its own
            if self._descriptor >= 0:
                self._poll.unregister(self._descriptor)
            self._descriptor = pg.socket
        self._poll.register(self._descriptor, select.POLLIN | (select.POLLOUT if writes else 0))
        left = deadline - time.monotonic()
        if self._is_aborted:
            raise EngineError("engine: connection closed")
        if left <= 0 or not self._poll.poll(left * 1000):
            raise EngineError(f"{self.place}: no answer within {self._timeout:g} s")

    def _on_notice(self, notice: pq.abc.PGresult) -> None:
        if notice.error_field(pq.DiagnosticField.SOURCE_FUNCTION) == WAIT:
            self.was_canceled = True

    def _connect_error(self, pg: pq.abc.PGconn) -> EngineError:
        said = _line(pg.get_error_message())
        kind = EngineRefusedError if any(each in said for each in REFUSALS) else EngineError
        return kind(f"{self.place}: {said}")

    def _error_of(self, failed: pq.abc.PGresult) -> EngineError:
        """What the failure of a statement means."""
        code = (failed.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        said = (failed.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
        message = f"{self.place}: {_line(said)}"
        if code in ("26000", "42P05"):  # of a statement that is prepared in another session
            self.prepares = False
        elif code not in KEPT:
            self.close()
        if code in FULL:
            return EngineFullError(message)
        return EngineRefusedError(message) if code in REFUSED else SQLError(code, message)


def _rows(result: pq.abc.PGresult, is_binary: bool) -> list[Row]:
    columns = range(result.nfields)
    rows = [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]
    try:
        return [tuple(row if is_binary else [(value or b"").decode() for value in row]) for row in rows]
    except UnicodeDecodeError:
        raise EngineError("engine: a row is damaged: its text is not valid UTF-8") from None


def _line(text: str) -> str:
    return " ".join(text.split())
