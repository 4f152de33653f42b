"""The outbox of a project with Django: an app, and the database of its relay.

    INSTALLED_APPS = [..., "beanstalk_client.outbox.django"]        # then manage.py migrate

    tasks = Tasks("beanstalk://127.0.0.1:11300", outbox=Outbox())   # in a module of an app

    with transaction.atomic():
        order = Order.objects.create(...)
        send_mail.put(order.id)

Must not import models: Django imports this package while it reads its settings.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from beanstalk_client.outbox.database import CHANNEL, Execute, immediate, insert_statement, listen_on
from beanstalk_client.outbox.rows import OutboxClient


class Outbox:
    """The outbox of a project: jobs that are put in a transaction of a database are written into it.

    Example:
        tasks = Tasks("beanstalk://127.0.0.1:11300", outbox=Outbox())

    Args:
        using: alias of the database.
        notify: whether to wake relays with NOTIFY on PostgreSQL. Its commits with NOTIFY wait for each other.
    """

    def __init__(self, using: str = DEFAULT_DB_ALIAS, *, notify: bool = True) -> None:
        self.using = using
        self._notify = notify

    def client(self, tube: str) -> OutboxClient | None:
        """Return a client that writes rows, inside a transaction; None outside."""
        return OutboxClient(tube, self._write) if connections[self.using].in_atomic_block else None

    def _write(self, row: Mapping[str, Any]) -> None:
        connection = connections[self.using]
        with connection.cursor() as cursor:
            cursor.execute(_spelled(insert_statement(connection.vendor, self._notify)), row)


@functools.lru_cache(maxsize=64)
def _spelled(statement: str) -> str:
    """A statement with the parameters of Django."""
    return re.sub(r":(\w+)", r"%(\1)s", statement)


def _execute(cursor: Any, statement: str, values: Mapping[str, Any]) -> Sequence[Any]:
    cursor.execute(_spelled(statement) if values else statement, values or None)
    return list(cursor.fetchall()) if cursor.description else ()


class DjangoDatabase:
    """The database of a relay, by its alias.

    Example:
        Relay(DjangoDatabase(), tasks.connect).run()

    Args:
        using: alias of the database.

    Raises:
        ValueError: the outbox does not support this database.
    """

    errors: tuple[type[Exception], ...] = (Error,)

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self.dialect: str = connections[using].vendor
        insert_statement(self.dialect, False)  # which refuses others
        self._using = using
        self._listening: Any = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Execute]:
        with connections[self._using].cursor() as cursor:
            is_sqlite = self.dialect == "sqlite"
            with immediate(cursor.execute) if is_sqlite else transaction.atomic(self._using, durable=True):
                yield functools.partial(_execute, cursor)

    def wait(self, seconds: float) -> bool:
        if self.dialect != "postgresql":
            return False
        if self._listening is None:
            self._listening = connections[self._using].copy()
            with self._listening.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        return listen_on(self._listening.connection, seconds)

    def close(self) -> None:
        """Close the connections of this thread, also one that is lost."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        connections[self._using].close()
