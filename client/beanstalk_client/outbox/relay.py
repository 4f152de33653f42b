"""Sends the commands of committed rows to the server, beside any number of other relays.

A pass is one transaction: it locks rows, sends their commands, deletes the rows whose replies have come, and commits.

    rows with a key     one after the other, so that those of a tube and key keep their order
    once=TOKEN          a put that was made, but whose reply or commit was lost, is answered EXISTS the next time

What a reply means for its row:

    INSERTED, EXISTS of the token, …            sent         the row is deleted
    EXISTS of the key, TOO_LATE, NOT_FOUND      dropped      likewise: no later attempt can do better
    DRAINING, OUT_OF_MEMORY, …                  later        the row and those of its key wait
    JOB_TOO_BIG, FORBIDDEN, …                   failed       the row stays for an operator, and blocks no other
    none: the connection is lost                             the row is as it was

Must never delete a row whose reply has not come.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from beanstalk_client.commands import Duration, function_of, make, seconds_of, text_of, within
from beanstalk_client.errors import (
    BeanstalkdError,
    BuriedError,
    ConnectionLostError,
    DrainingError,
    ExistsError,
    InternalError,
    NotFoundError,
    OutOfMemoryError,
    TooLateError,
    UnauthorizedError,
    UnknownCommandError,
    UnknownResponseError,
    UnsupportedError,
)
from beanstalk_client.events import reason_of, tell
from beanstalk_client.outbox import database as sql
from beanstalk_client.outbox.database import Database, Execute
from beanstalk_client.outbox.rows import sent_arguments
from beanstalk_client.outbox.status import EVERY, KEY, TUBE, Status
from beanstalk_client.passes import Passes
from beanstalk_client.schedules.scheduler import END_OF_TIME
from beanstalk_client.tasks.failure import ERRORS, REPORT_TTL, report
from beanstalk_client.version import VERSION

if TYPE_CHECKING:
    from beanstalk_client.blocking import Client

POLL: Final = 0.5
"""Seconds between two looks at the table, by default."""

HOLD: Final = 3600.0
"""Seconds for which the server remembers a put, by default: a relay that dies must be replaced within this time."""

BATCH: Final = 500
"""Maximum number of rows of a pass, by default."""

ROUNDS: Final = 20
"""Rows of one key that a pass sends at most: each waits for the reply to the one before."""

LATER: Final = (1.0, 60.0)
"""Seconds until a refused row is sent again: its age, at least and at most this. So the time doubles with each try."""

ONCE_SINCE: Final = 3
"""The version of put-with that has `once`, in list-extensions."""

_LOST: Final = (OSError, UnauthorizedError)  # the latter in reply to a new connection
_DROPPED: Final = (ExistsError, TooLateError, NotFoundError)
_LATER: Final = (DrainingError, OutOfMemoryError, InternalError, UnknownCommandError, UnknownResponseError)

_UNREADABLE: Final = (TypeError, ValueError, ArithmeticError, RecursionError)

log: logging.Logger = logging.getLogger("beanstalk_client.outbox")


class Row(NamedTuple):
    """A row, with the columns that LOCK selects."""

    id: int
    written: float
    tube: str
    job_key: str | None
    command: str
    arguments: str
    body: Any
    token: str


class Outcomes(NamedTuple):
    """The rows of a pass by what their replies mean, with the errors of those that were not sent."""

    sent: list[Row]
    dropped: list[tuple[Row, Exception]]
    later: list[tuple[Row, Exception]]
    failed: list[tuple[Row, Exception]]

    def add(self, row: Row, error: Exception | None) -> None:
        if error is None or isinstance(error, BuriedError) or (isinstance(error, ExistsError) and not row.job_key):
            self.sent.append(row)
        elif isinstance(error, _DROPPED):
            self.dropped.append((row, error))
        elif isinstance(error, _LATER):
            self.later.append((row, error))
        else:
            self.failed.append((row, error))


class Relay(Passes):
    """Sends rows, again and again.

    Example:
        with Relay(SqlalchemyDatabase(engine), tasks.connect).in_thread():
            serve()

    Args:
        database: where the table is.
        connect: makes a client of the server; its encoding must be None.
        name: of the outbox, in its status job; each database that shares a server needs another one.
        poll: time between two looks at the table. PostgreSQL wakes the relay earlier.
        hold: for how long the server remembers a put, so that it is not made twice.
        batch: maximum number of rows of a pass.
        errors: what the name of a tube ends with where reports about failed rows are put; None for nowhere.
        clock: returns Unix time in seconds; None for the clock of the database. For tests.

    Raises:
        TypeError, ValueError: an argument is out of range.
    """

    def __init__(
        self,
        database: Database,
        connect: Callable[[], Client[bytes]],
        *,
        name: str = "default",
        poll: Duration = POLL,
        hold: Duration = HOLD,
        batch: int = BATCH,
        errors: str | None = ERRORS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__("outbox")
        self.name: str = text_of(name, "name")
        make.cancel_keyed(self._report_key(2**63))  # which refuses a bad one
        self._database = database
        self._lost = (*super()._lost, *database.errors)
        self._connect: Callable[[], Client[bytes]] = function_of(connect, "connect")
        self._poll, self._hold = seconds_of(poll, "poll"), seconds_of(hold, "hold")
        if not (0 < self._poll < 1e9 and 0 < self._hold < 1e9):
            raise ValueError(f"poll is {poll!r} and hold is {hold!r}: must be seconds, more than 0 and below 1e9")
        self._batch: int = within("batch", batch, 10_000, 1)
        self._errors = errors
        self._clock = clock
        self._sent = self._dropped = 0
        self._status_at = 0.0

    def _run_connected(self) -> None:
        with self._connected() as queue:
            while not self._stopped.is_set():
                is_more = self.make_pass(queue)
                self._note_pass()
                if not (is_more or self._database.wait(self._poll)):
                    self._stopped.wait(self._poll)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Client[bytes]]:
        """A client of a server that has what is needed, if the rows that are sent can be deleted."""
        with contextlib.closing(self._connect()) as queue:
            check_server(queue)
            with self._database.transaction() as execute:
                execute(sql.of_rows(sql.DELETE, [0]), {})
            yield queue

    def _disconnect(self) -> None:
        self._database.close()

    def _tell_failed(self, described: str) -> None:
        message = f"outbox {self.name} cannot send, retrying; its rows are kept: {described}"
        tell(log, logging.WARNING, "outbox-waits", message)

    def _tell_resumed(self) -> None:
        tell(log, logging.INFO, "outbox-resumed", f"outbox {self.name} is sending again")

    def _tell_ended(self, described: str, error: Exception) -> None:
        message = f"outbox {self.name} has stopped: {described}"
        tell(log, logging.ERROR, "outbox-ended", message, error)

    def run_once(self) -> None:
        """Send the rows that can be sent now.

        Raises:
            Error, OSError: the server refuses, or is lost. Exceptions of the database.
        """
        with self._connected() as queue:
            while self.make_pass(queue):
                pass

    def make_pass(self, queue: Client[bytes]) -> bool:
        """Send the rows that are next.

        Args:
            queue: a client whose encoding is None. It uses another tube afterwards.

        Returns:
            Whether another pass should follow at once.

        Raises:
            Error, OSError: the connection is lost. What was sent before is done. Exceptions of the database.
        """
        outcomes = Outcomes([], [], [], [])
        with self._database.transaction() as execute:
            now = self._now(execute)
            lost = self._send(queue, self._lock(execute, now), now, outcomes)
            self._note(execute, now, outcomes)
        self._sent += len(outcomes.sent)
        self._dropped += len(outcomes.dropped)
        self._tell(queue, outcomes, is_lost=lost is not None)
        if lost is not None:
            raise lost
        if now - self._status_at >= EVERY:
            self._status_at = now
            self._leave_status(queue)
        return bool(outcomes.sent or outcomes.dropped or outcomes.failed)

    def _now(self, execute: Execute) -> float:
        if self._clock is not None:
            return self._clock()
        return float(execute(f"SELECT {sql.NOW[self._database.dialect]}", {})[0][0])

    def _lock(self, execute: Execute, now: float) -> list[list[Row]]:
        """Lock the rows that are next, and that no other relay has locked; return those of each key in their order."""
        after = 0
        while True:
            found = execute(sql.SELECT, {"after": after, "now": now, "batch": self._batch})
            chains: dict[Any, list[int]] = {}
            for row_id, tube, key in found:
                chains.setdefault(row_id if key is None else (tube, key), []).append(row_id)
            firsts = [ids[0] for key, ids in chains.items() if isinstance(key, tuple)]
            values = {"end": found[-1][0], "now": now} if found else {}
            blocked = {each for (each,) in execute(sql.of_rows(sql.BLOCKED, firsts), values)} if firsts else ()
            ids = [each for ids in chains.values() if ids[0] not in blocked for each in ids[:ROUNDS]]
            rows = execute(sql.of_rows(sql.LOCK, ids, self._database.dialect), {"now": now}) if ids else ()
            locked = {row[0]: Row(*row) for row in rows}
            ours = [[locked[each] for each in takewhile(locked.__contains__, ids[:ROUNDS])] for ids in chains.values()]
            if any(ours) or len(found) < self._batch:
                return [chain for chain in ours if chain]
            after = found[-1][0]

    def _send(self, queue: Client[bytes], chains: list[list[Row]], now: float, outcomes: Outcomes) -> Exception | None:
        """Send rows, in as many rounds as a key has rows; return why the connection was lost."""
        while chains:
            lost = self._send_round(queue, [chain[0] for chain in chains], now, outcomes)
            if lost is not None:
                return lost
            later = {row.id for row, _ in outcomes.later}
            chains = [chain[1:] for chain in chains if len(chain) > 1 and chain[0].id not in later]
        return None

    def _send_round(self, queue: Client[bytes], rows: list[Row], now: float, outcomes: Outcomes) -> Exception | None:
        """Send rows of different keys, in a pipeline for each tube that the server accepts."""
        by_tube: dict[str, list[Row]] = {}
        for row in rows:
            by_tube.setdefault(row.tube, []).append(row)
        for tube, of_tube in by_tube.items():
            replies = []
            try:
                queue.use(tube)
                with queue.pipeline(raise_errors=False) as together:
                    for row in of_tube:
                        try:
                            arguments = sent_arguments(row, now, self._hold)
                            replies.append((row, getattr(together, row.command)(**arguments)))
                        except _UNREADABLE as error:  # of another version of this package, or written by hand
                            outcomes.add(row, error)
            except _LOST as error:
                return error
            except (BeanstalkdError, ValueError) as error:  # it refuses the tube, or its name is none
                for row in of_tube:
                    outcomes.add(row, error)
                continue
            results = [(row, reply.exception() if reply.done() else ConnectionLostError()) for row, reply in replies]
            for row, result in results:
                if not isinstance(result, _LOST):
                    outcomes.add(row, result)
            lost = [result for _, result in results if isinstance(result, _LOST)]
            if lost:
                return lost[0]
        return None

    def _note(self, execute: Execute, now: float, outcomes: Outcomes) -> None:
        done = [row.id for row in (*outcomes.sent, *(row for row, _ in outcomes.dropped))]
        if done:
            execute(sql.of_rows(sql.DELETE, done), {})
        for row, _ in outcomes.later:
            execute(sql.RETRY, {"at": now + min(max(now - row.written, LATER[0]), LATER[1]), "id": row.id})
        for row, error in outcomes.failed:
            execute(sql.FAIL, {"why": f"{type(error).__name__}: {reason_of(error)}"[:1000], "id": row.id})

    def _tell(self, queue: Client[bytes], outcomes: Outcomes, is_lost: bool) -> None:
        """Log what was not sent, and report rows that failed."""
        for event, level, told, rows in (
            ("outbox-dropped", logging.INFO, "too late, nothing to do", outcomes.dropped),
            ("outbox-later", logging.INFO, "will be retried", outcomes.later),
            ("outbox-failed", logging.ERROR, "failed", outcomes.failed),
        ):
            for row, error in rows:
                named = f"{row.command}, tube {row.tube}" + (f", key {row.job_key}" if row.job_key else "")
                message = f"outbox {self.name}: row {row.id} ({named}): {told}: {reason_of(error)}"
                tell(log, level, event, message, row=row.id, tube=row.tube)
        if self._errors is None or is_lost:
            return
        for row, error in outcomes.failed:
            why = f"{type(error).__name__}: {reason_of(error)}"
            body = report(None, row.tube, why, 1, by="relay", outbox=self.name, row=row.id, command=row.command)
            with self._refusals("outbox-report-refused", f"outbox {self.name}: report of row {row.id} not saved"):
                queue.use(f"{row.tube}{self._errors}")
                queue.put_with(body, key=self._report_key(row.id), replace=True, ttl=REPORT_TTL)

    def _report_key(self, row: int) -> str:
        return f"outbox-{self.name}-{row}"

    def status(self) -> Status:
        """Return the status of the outbox.

        Example:
            print(relay.status().lag)
        """
        with self._database.transaction() as execute:
            now = self._now(execute)
            ((waiting, failed, oldest),) = execute(sql.STATUS, {})
        lag = 0.0 if oldest is None else max(now - float(oldest), 0.0)
        return Status(int(waiting), int(failed), round(lag, 3), self._sent, self._dropped, now)

    def _leave_status(self, queue: Client[bytes]) -> None:
        """Put the status where the console finds it."""
        body = self.status().encode()
        with self._refusals("outbox-status-refused", f"outbox {self.name}: status not saved in tube {TUBE}"):
            queue.use(TUBE)
            queue.put_with(body, key=KEY + self.name, replace=True, at=END_OF_TIME)

    @contextlib.contextmanager
    def _refusals(self, event: str, message: str) -> Iterator[None]:
        """Log what the server refuses of reports and statuses: rows are sent nevertheless."""
        try:
            yield
        except (BeanstalkdError, ValueError) as error:  # the name of the tube may be too long
            tell(log, logging.WARNING, event, f"{message}: {reason_of(error)}")

    def retry_failed(self) -> int:
        """Let failed rows be sent again, and return their number.

        Example:
            print(relay.retry_failed(), "rows are sent again")
        """
        with self._database.transaction() as execute:
            failed = int(execute(sql.STATUS, {})[0][1])
            execute(sql.RESET_FAILED, {})
        return failed


def check_server(queue: Client[bytes]) -> None:
    """
    Raises:
        UnsupportedError: the server does not know `once` of put-with.
    """
    extensions = queue.list_extensions() if queue.knows("list-extensions") else {}
    if int(extensions.get("put-with", 0)) < ONCE_SINCE:
        raise UnsupportedError(
            'the outbox needs the attribute "once" of put-with, which the server does not support; '
            f"use beanstalk-server {VERSION} or later"
        )
