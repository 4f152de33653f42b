"""The outbox of a program with SQLAlchemy, and the database of its relay.

metadata = Base.metadata
outbox_table(metadata)
outbox = Outbox()
tasks = Tasks("beanstalk://127.0.0.1:11300", outbox=outbox)

with Session(engine) as session, outbox.using(session), session.begin():
    session.add(order)
    send_mail.put(order.id)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from beanstalk_client.outbox.database import CHANNEL, TABLE, Execute, immediate, insert_statement, listen_on
from beanstalk_client.outbox.rows import OutboxClient

MAX_BODY = 2**24 - 1
"""Bytes of the largest body that MySQL keeps; it chooses the type of the column by this."""


def outbox_table(metadata: sa.MetaData) -> sa.Table:
    """Add the table to a MetaData, for `create_all` or for Alembic.

    Example:
        outbox_table(Base.metadata)
    """
    return sa.Table(
        TABLE,
        metadata,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("tube", sa.String(200), nullable=False),
        sa.Column("job_key", sa.String(200)),
        sa.Column("command", sa.String(40), nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary(MAX_BODY), nullable=False),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("written", sa.Float(53), nullable=False),
        sa.Column("failed", sa.Text),
        sa.Column("retry_at", sa.Float(53)),
        sa.Index(f"{TABLE}_order", "tube", "job_key", "id"),
        sqlite_autoincrement=True,
    )


class _Use:
    """A block of `using`. Tasks of asyncio that it has started may run when it has ended.

    Args:
        session: what executes the statements.
        statement: writes a row.
    """

    def __init__(self, session: Any, statement: str) -> None:
        self.session = session
        self.statement = sa.text(statement)
        self.is_async: bool = inspect.iscoroutinefunction(session.execute)
        self.is_ended = False

    def write(self, row: Mapping[str, Any]) -> Any:
        return self.session.execute(self.statement, row)


class Outbox:
    """The outbox of a program.

    The session must be named with `using`: SQLAlchemy has no current session, a program may have several at a time, and
    a job in the transaction of another one would be lost or early.

    Example:
        outbox = Outbox()
        tasks = Tasks("beanstalk://127.0.0.1:11300", outbox=outbox)

    Args:
        notify: whether to wake relays with NOTIFY on PostgreSQL. Its commits with NOTIFY wait for each other.
    """

    def __init__(self, *, notify: bool = True) -> None:
        self._notify = notify
        self._use: ContextVar[_Use | None] = ContextVar("outbox", default=None)

    @contextlib.contextmanager
    def using(self, session: Any) -> Iterator[None]:
        """Write the jobs that are put in this block into the transaction of a session.

        Example:
            with outbox.using(session):
                send_mail.put("a@example.com")
            session.commit()

            with outbox.using(async_session):
                await send_mail.aput("a@example.com")
            await async_session.commit()

        Args:
            session: a Session, scoped_session or Connection; or an AsyncSession or AsyncConnection, in whose block only
                the calls for asyncio (`aput`, `acancel`) can be made: a statement of it must be awaited. It is not
                committed here.

        Raises:
            ValueError: the outbox does not support this database.
        """
        dialect = session.dialect if hasattr(session, "dialect") else session.get_bind().dialect
        use = _Use(session, insert_statement(_name_of(dialect), self._notify))
        token = self._use.set(use)
        try:
            yield
        finally:
            use.is_ended = True
            self._use.reset(token)

    def client(self, tube: str) -> OutboxClient | None:
        """Return a client that writes rows, inside `using`; None outside."""
        use = self._use.get()
        return None if use is None or use.is_ended else OutboxClient(tube, use.write, use.is_async)


def _name_of(dialect: Any) -> str:
    return "mysql" if dialect.name == "mariadb" else str(dialect.name)


class SqlalchemyDatabase:
    """The database of a relay, by an engine.

    Example:
        Relay(SqlalchemyDatabase(create_engine("postgresql+psycopg://shop@localhost/shop")), tasks.connect).run()

    Args:
        engine: a blocking one. On PostgreSQL, the relay keeps a second connection of its pool.

    Raises:
        ValueError: the outbox does not support this database.
    """

    errors: tuple[type[Exception], ...] = (DBAPIError, PoolTimeoutError)

    def __init__(self, engine: sa.Engine) -> None:
        self.dialect: str = _name_of(engine.dialect)
        insert_statement(self.dialect, False)  # which refuses others
        self._engine = engine
        self._listening: Any = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Execute]:
        is_sqlite = self.dialect == "sqlite"
        level = "AUTOCOMMIT" if is_sqlite else "READ COMMITTED"
        with self._engine.connect().execution_options(isolation_level=level) as connection:
            transaction = immediate(connection.exec_driver_sql) if is_sqlite else connection.begin()
            with transaction:
                yield functools.partial(_execute, connection)

    def wait(self, seconds: float) -> bool:
        if self.dialect != "postgresql":
            return False
        if self._listening is None:
            self._listening = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            self._listening.exec_driver_sql(f"LISTEN {CHANNEL}")
        return listen_on(self._listening.connection.driver_connection, seconds)

    def close(self) -> None:
        if self._listening is not None:
            self._listening.invalidate()  # it listens: no other user of the pool wants that
            self._listening.close()
            self._listening = None


def _execute(connection: Any, statement: str, values: Mapping[str, Any]) -> Sequence[Any]:
    result = connection.execute(sa.text(statement), values)
    return list(result) if result.returns_rows else ()
