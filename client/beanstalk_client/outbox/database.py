"""The statements of an outbox, and what a relay needs of a database.

The table is the same everywhere; its front ends declare it (`sqlalchemy.py`, `django/models.py`). Statements have named
parameters, as `:name`. A relay looks for rows, and then locks those that still are as they were:

    SELECT     the next rows, in the order of their ids.
    BLOCKED    those of them that are the first of their key here, but not in the table. It is a later snapshot, so it
               has all rows that were committed before.
    LOCK       the rest, without those that another relay has locked, deleted or changed.

Each reads as many rows as a pass takes, however many wait. One statement with all conditions would look for earlier
rows of each row that waits, and could miss one on MySQL, where a locking read and its subquery see different moments.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

TABLE: Final = "beanstalk_outbox"
CHANNEL: Final = "beanstalk_outbox"
"""Where PostgreSQL notifies relays of new rows."""

NOW: Final = {
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "mysql": "timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) / 1000000.0",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}
"""Unix time by the clock of the database. Its keys are the dialects that are supported."""

COLUMNS: Final = "tube, job_key, command, arguments, body, token"

SELECT: Final = f"""
SELECT id, tube, job_key FROM {TABLE}
WHERE id > :after AND failed IS NULL AND (retry_at IS NULL OR retry_at <= :now) ORDER BY id LIMIT :batch"""

BLOCKED: Final = f"""
SELECT id FROM {TABLE} first WHERE id IN ({{ids}}) AND EXISTS (SELECT 1 FROM {TABLE} other
    WHERE other.tube = first.tube AND other.job_key = first.job_key AND other.id < :end AND other.failed IS NULL
    AND (other.id < first.id OR other.retry_at > :now))"""

LOCK: Final = f"""
SELECT id, written, {COLUMNS} FROM {TABLE}
WHERE id IN ({{ids}}) AND failed IS NULL AND (retry_at IS NULL OR retry_at <= :now) ORDER BY id"""

DELETE: Final = f"DELETE FROM {TABLE} WHERE id IN ({{ids}})"
RETRY: Final = f"UPDATE {TABLE} SET retry_at = :at WHERE id = :id"
FAIL: Final = f"UPDATE {TABLE} SET failed = :why WHERE id = :id"
RESET_FAILED: Final = f"UPDATE {TABLE} SET failed = NULL, retry_at = NULL WHERE failed IS NOT NULL"
STATUS: Final = f"""
SELECT count(CASE WHEN failed IS NULL THEN 1 END), count(failed), min(CASE WHEN failed IS NULL THEN written END)
FROM {TABLE}"""

Execute = Callable[[str, Mapping[str, Any]], Sequence[Any]]
"""Executes a statement with its parameters, and returns its rows."""


class Database(Protocol):
    """What a relay needs of a database.

    Attributes:
        dialect: one of NOW.
        errors: the exceptions after which a relay tries again.
    """

    dialect: str
    errors: tuple[type[Exception], ...]

    def transaction(self) -> AbstractContextManager[Execute]:
        """Return a context with a transaction, which commits at its end. In SQLite, it locks the database."""

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most this long; return False at once if this database has none."""

    def close(self) -> None:
        """Close the connection that waits."""


def insert_statement(dialect: str, notify: bool) -> str:
    """Return the statement that writes a row.

    Args:
        dialect: of the database.
        notify: whether PostgreSQL wakes the relays at the commit; once, for all rows of a transaction.

    Raises:
        ValueError: this database is not supported.
    """
    if dialect not in NOW:
        raise ValueError(f"the outbox does not support {dialect}: must be {', '.join(NOW)}")
    source = f" FROM pg_notify('{CHANNEL}', '')" if notify and dialect == "postgresql" else ""
    values = ", ".join(f":{name}" for name in COLUMNS.split(", "))
    return f"INSERT INTO {TABLE} ({COLUMNS}, written) SELECT {values}, {NOW[dialect]}{source}"


def of_rows(statement: str, ids: Iterable[int], dialect: str = "sqlite") -> str:
    """A statement about rows; one of another database than SQLite locks them."""
    skip = "" if dialect == "sqlite" else " FOR UPDATE SKIP LOCKED"
    return statement.format(ids=", ".join(map(str, ids))) + skip


@contextlib.contextmanager
def immediate(execute: Callable[[str], Any]) -> Iterator[None]:
    """A transaction of SQLite that locks the database when it begins."""
    execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        execute("ROLLBACK")
        raise
    execute("COMMIT")


def listen_on(driver: Any, seconds: float) -> bool:
    """Wait for a notification on a connection that listens, at most this long.

    Returns:
        False at once, if the driver is neither psycopg 3.2 or later nor psycopg2.

    Raises:
        ConnectionError: the connection is lost.
    """
    if not hasattr(driver, "notifies"):
        return False
    try:
        if callable(driver.notifies):
            for _ in driver.notifies(timeout=seconds, stop_after=1):
                pass
        else:
            select.select([driver], [], [], seconds)
            driver.poll()
            driver.notifies.clear()
    except driver.Error as error:
        raise ConnectionError(str(error)) from error
    return True
