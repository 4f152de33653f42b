"""Asks a server what `beanstalk top` wants to know, and does what its user orders, over one connection.

`Asker` does that at once. `Feed` lets one do it in a thread, so that keys are answered while a server is slow, or away.
Whatever happens to the connection, the next thing that is asked opens another one.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import beanstalk_client
from beanstalk_client.cli.failure import UNAVAILABLE, OperatorError
from beanstalk_client.cli.target import connect, told
from beanstalk_client.cli.top_samples import Figures, number
from beanstalk_client.cli.top_survey import (
    Answer,
    Gone,
    Names,
    NextJob,
    Page,
    PageOfTubes,
    Question,
    Refused,
    Stats,
    Tube,
    Unknown,
)
from beanstalk_client.cli.top_view import (
    Ask,
    ClearTube,
    JobRow,
    JobsOfTube,
    KickJobs,
    LookInto,
    Order,
    PauseTube,
    jobs,
)
from beanstalk_client.commands import Command
from beanstalk_client.replies import Document

if TYPE_CHECKING:
    import argparse

    from beanstalk_client import Client

LOOKED_AT: Final = 50
"""How many jobs in each state are looked at."""

BODY: Final = 65_536
"""The longest body that is fetched to be looked at, in bytes, where its length is known before."""

STATES: Final = ("ready", "reserved", "delayed", "buried")

REFUSALS: Final[dict[type[Exception], type[Gone | Unknown | Refused]]] = {
    beanstalk_client.NotFoundError: Gone,
    beanstalk_client.UnknownCommandError: Unknown,
    beanstalk_client.ForbiddenError: Refused,
    beanstalk_client.BadFormatError: Unknown,  # beanstalkd takes stats-tubes for a stats with an argument
    beanstalk_client.InternalError: Refused,
    beanstalk_client.OutOfMemoryError: Refused,
}
"""What a reply means that is no answer."""

TEXT: Final = Document(lambda data: (time.monotonic(), data.decode("utf-8", "replace")))
"""A reply as text, and when it has come."""

PAIR: Final = re.compile(r'([a-z-]+): (?:"([^"]*)"|([^,}]*))')
"""A key of a flow mapping and its value, with or without quotes."""


class Asker:
    """One connection to the server that the options name, opened when it is needed.

    Attributes:
        connections: how many have been opened.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._client: Client[bytes] | None = None
        self.connections: int = 0

    def connect(self) -> Client[bytes]:
        """The connection.

        Raises:
            OperatorError: there is no server, or it does not let us in.
        """
        if self._client is None:
            self._client = connect(self._options)
            self.connections += 1
        return self._client

    def close(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(OSError):  # it is lost already
                client.close()

    def ask(self, questions: Sequence[Question]) -> list[tuple[float, Answer]]:
        """Ask questions, all at once; return the moments at which they were answered, and the answers.

        Raises:
            OperatorError: the connection is lost, or there is none.
        """
        with self._asking() as client:
            results = client.run_all([Command(_command(question), TEXT, True) for question in questions])
            return [_answered(question, result) for question, result in zip(questions, results, strict=True)]

    def do(self, order: Order) -> str:
        """Do what is ordered; return what came of it, in words.

        Raises:
            OperatorError: the connection is lost, or the server refuses.
        """
        match order:
            case PauseTube(name, seconds):
                with self._asking(name) as client:
                    client.pause_tube(name, seconds)
                return (
                    f"{name} is paused for {seconds // 60} minutes; P resumes it" if seconds else f"{name} is resumed"
                )
            case KickJobs(name, count):
                with self._asking(name) as client, _using(client, name):
                    return f"{name}: {jobs(client.kick(count))} kicked"
            case ClearTube(name):
                with self._asking(name, "clear-tube") as client:
                    return f"{name}: {jobs(client.clear_tube(name))} deleted"
        raise ValueError(f"{order} is no order for a server")

    def look_into(self, name: str) -> JobsOfTube:
        """Fetch the first jobs of a tube, in each state.

        Raises:
            OperatorError: the connection is lost, or the server refuses.
        """
        with self._asking(name) as client:
            try:
                rows = [row for state in STATES for row in self._list_jobs(client, name, state)]
                bodies = self._first_bodies(client, rows)
            except beanstalk_client.UnknownCommandError:
                rows, bodies = self._peek_jobs(client, name)
        return JobsOfTube(name, time.monotonic(), rows, bodies)

    @contextlib.contextmanager
    def _asking(self, what: str = "", extension: str = "") -> Iterator[Client[bytes]]:
        """The connection; what goes wrong is an OperatorError, and a connection that may be out of step is closed."""
        client = self.connect()
        try:
            with told(self._options, what, extension):
                yield client
        except OperatorError as error:
            if error.status == UNAVAILABLE:
                self.close()
            raise
        except BaseException:
            self.close()
            raise

    def _list_jobs(self, client: Client[bytes], name: str, state: str) -> list[JobRow]:
        line = f"list-jobs {name} {state} 0 {LOOKED_AT}\r\n"
        (result,) = client.run_all([Command(line.encode(), TEXT, True)])
        if isinstance(result, Exception):
            raise result
        return [job_row(figures) for figures in read_entries(result[1])]

    def _first_bodies(self, client: Client[bytes], rows: Sequence[JobRow]) -> dict[int, bytes]:
        """The bodies of the first job in each state."""
        first = {row.state: row for row in reversed(rows)}
        bodies = {}
        for row in first.values():
            if row.size is not None and row.size <= BODY:
                with contextlib.suppress(beanstalk_client.NotFoundError):  # it has gone since
                    bodies[row.id] = client.peek(row.id).body
        return bodies

    def _peek_jobs(self, client: Client[bytes], name: str) -> tuple[list[JobRow], dict[int, bytes]]:
        """The same where jobs cannot be listed: the first ready, delayed and buried one."""
        client.stats_tube(name)  # or `use` would make a tube that has gone
        rows, bodies = [], {}
        with _using(client, name):
            for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
                with contextlib.suppress(beanstalk_client.NotFoundError):  # there is none, or it has gone since
                    job = peek()
                    figures = {key: str(value) for key, value in client.stats_job(job.id).items()}
                    rows.append(job_row(figures | {"size": str(len(job.body))}))
                    bodies[job.id] = job.body
        return rows, bodies


@contextlib.contextmanager
def _using(client: Client[bytes], name: str) -> Iterator[None]:
    """Use a tube for a moment: a tube in use cannot go."""
    client.use(name)
    try:
        yield
    finally:
        with contextlib.suppress(
            beanstalk_client.Error, OSError
        ):  # may not use it: stays here; is lost: is told elsewhere
            client.use(beanstalk_client.DEFAULT_TUBE)


def _answered(question: Question, result: Any) -> tuple[float, Answer]:
    """When a question was answered, and what."""
    refusal = REFUSALS.get(type(result))
    if refusal is not None:
        return time.monotonic(), refusal()
    if isinstance(result, Exception):
        raise result
    moment, text = result
    return moment, read_answer(question, text)


def _command(question: Question) -> bytes:
    match question:
        case Stats():
            return b"stats\r\n"
        case Page(first, count):
            return f"stats-tubes {first} {count}\r\n".encode()
        case Tube(name):
            return f"stats-tube {name}\r\n".encode()
        case Names():
            return b"list-tubes\r\n"
        case NextJob(name):
            return f"list-jobs {name} ready 0 1\r\n".encode()


def read_answer(question: Question, text: str) -> Answer:
    """Read the YAML of an answer."""
    match question:
        case Stats() | Tube():
            return read_figures(text)
        case Page():
            return PageOfTubes(read_entries(text), read_figures(text[:512]).get("next", ""))
        case Names():
            return [line[2:].strip("\"'") for line in text.splitlines() if line.startswith("- ")]
        case NextJob():
            return next((number(figures, "age") for figures in read_entries(text)), None)


def read_figures(text: str) -> Figures:
    """Read keys and values, one pair a line."""
    found = {}
    for line in text.splitlines():
        key, colon, value = line.partition(": ")
        if colon and not key.startswith("-"):
            found[key] = value.strip("\"'")
    return found


def read_entries(text: str) -> list[Figures]:
    """Read a list of flow mappings, one a line."""
    return [
        {key: quoted or plain for key, quoted, plain in PAIR.findall(line)}
        for line in text.splitlines()
        if line.startswith("- {")
    ]


def job_row(figures: Figures) -> JobRow:
    """A job from what `list-jobs` or `stats-job` says of it."""
    return JobRow(
        id=number(figures, "id") or 0,
        state=figures.get("state", ""),
        priority=number(figures, "pri"),
        age=number(figures, "age"),
        delay=number(figures, "delay"),
        ttr=number(figures, "ttr"),
        time_left=number(figures, "time-left"),
        size=number(figures, "size"),
        reserves=number(figures, "reserves"),
        reason=figures.get("reason", ""),
        key=figures.get("key", ""),
    )


@dataclass(frozen=True, slots=True)
class Answered:
    """Questions were answered, at these moments, over the connection of this number."""

    questions: Sequence[Question]
    answers: Sequence[tuple[float, Answer]]
    connection: int


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Questions were not answered: the connection is lost, or there is none."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """An order was done or refused: what came of it, in words."""

    text: str


News = Answered | Unanswered | Done | JobsOfTube


class Feed:
    """A thread that asks.

    Args:
        asker: which from now on is this thread's.
        tell: is called in that thread when there are news.
    """

    def __init__(self, asker: Asker, tell: Callable[[], None]) -> None:
        self._asker = asker
        self._tell = tell
        self._wanted: queue.SimpleQueue[Sequence[Question] | Order | None] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="beanstalk-top-feed", daemon=True)
        self._thread.start()

    def want(self, wanted: Sequence[Question] | Order) -> None:
        """Ask questions, or do what is ordered, when everything before has been done."""
        self._wanted.put(wanted)

    def news(self) -> list[News]:
        """What has happened since this was called last."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._news.get_nowait())
        return found

    def stop(self) -> None:
        """End the thread, when it has done what it is doing; the process need not wait for that."""
        self._wanted.put(None)

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            self._news.put(self._do(wanted))
            self._tell()
        self._asker.close()

    def _do(self, wanted: Sequence[Question] | Order) -> News:
        try:
            match wanted:
                case LookInto(name):
                    return self._look_into(name)
                case PauseTube() | KickJobs() | ClearTube() | Ask():
                    return self._order(wanted)
                case questions:
                    return Answered(questions, self._asker.ask(questions), self._asker.connections)
        except OperatorError as error:
            return Unanswered(str(error))

    def _order(self, order: Order) -> News:
        try:
            return Done(self._asker.do(order))
        except OperatorError as error:
            doubt = "; whether it was done is not known" if error.status == UNAVAILABLE else ""
            return Done(f"{error}{doubt}")

    def _look_into(self, name: str) -> News:
        try:
            return self._asker.look_into(name)
        except OperatorError as error:
            return JobsOfTube(name, time.monotonic(), error=str(error))
