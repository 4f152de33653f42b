"""Every command, declared once: the arguments, the bytes that say it, and how its reply is read.

A method of `Commands` makes a command. It raises ValueError or TypeError for what no server would take: a bad name, a
number out of range. Nothing is sent then. Clients and pipelines have the same methods, which execute the command:

    make.delete(5)             Command[None]     what is sent
    client.delete(5)           None              Blocking: when the reply has come
    await client.delete(5)     None              Asynchronous: likewise
    pipeline.delete(5)         Reply[None]       Pipelined: at once

Durations are seconds, or what `seconds_of` makes seconds of; those that are not whole are sent in milliseconds, rounded
up, so that no job is early; or in whole seconds, where the server knows no others: beanstalkd would take a put with a
fraction for malformed, and its body for commands. (The protocol, and docs/protocol-extensions.md.)

Must never do any I/O.
"""

from __future__ import annotations

import datetime
import math
import re
import types
from collections.abc import Collection, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Callable, Final, Generic, TypeVar, Union, cast, overload

from beanstalk_client.errors import (
    BuriedError,
    ForbiddenError,
    NotFoundError,
    ReservationLostError,
    UnknownCommandError,
)
from beanstalk_client.job import Job, JobOrID, Origin, TBody
from beanstalk_client.replies import (
    MAX_NAME,
    RESERVED,
    SUCCESSES,
    Batch,
    Counts,
    Document,
    Ids,
    JobReply,
    Mode,
    Name,
    Notes,
    Number,
    Reading,
    TubePage,
    Word,
    is_name,
)
from beanstalk_client.statistics import Statistics, read_entries, read_names, read_page, read_statistics

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

DEFAULT_TUBE: Final = "default"
"""The tube that a new connection uses and watches.

Example:
    Client("127.0.0.1:11300", watch=[DEFAULT_TUBE, "mail"])
"""

DEFAULT_PRIORITY: Final = 2**16
"""The priority of a job for which none is given; 0 is the most urgent.

Example:
    queue.put("hello", priority=DEFAULT_PRIORITY - 1)
"""

DEFAULT_DELAY: Final = 0
"""The delay of a job for which none is given, in seconds.

Example:
    queue.put("hello", delay=DEFAULT_DELAY + 60)
"""

DEFAULT_TTR: Final = 60
"""The time to run of a job for which none is given, in seconds.

Example:
    queue.put("hello", ttr=2 * DEFAULT_TTR)
"""

MAX_PRIORITY: Final = 2**32 - 1
MAX_ID: Final = 2**64 - 1
MAX_WEIGHT: Final = 10_000

MAX_JOBS: Final = 1000
"""The most jobs that one command names."""

MAX_PUT: Final = 512
"""The most jobs that one command puts."""

MAX_TIMEOUT: Final = 2**31 - 1
"""The longest timeout of a command, in seconds; 68 years."""

MAX_SECONDS: Final = 2**32 - 1
"""The longest duration, in seconds; 136 years. The latest moment as well, in 2106."""

PAUSE_UNTIL_RESUMED: Final = MAX_SECONDS
"""The length of a pause that ends only when the tube is resumed, in seconds: the maximum of the protocol."""

PAGE_ENTRIES: Final = 1000
"""How many entries of a list are asked for at a time: the most that a page has."""

TOKEN: Final = frozenset(range(0x21, 0x7F))

IDENTITY: Final = "the id of the server"
"""What `stats` says; it is asked for before a job of another connection is named."""

FRACTIONS: Final = "durations"
"""The name in `list-extensions` of durations with fractions of a second, which beanstalkd lacks, too."""

BOUND: Final = (
    *(b"release ", b"bury ", b"touch ", b"give-back ", b"save "),
    *(b"release-batch ", b"touch-batch ", b"touch-all\r\n"),
)
"""Commands that mean nothing to another connection than the one that has reserved the job."""

INSERTED: Final = Number(b"INSERTED")
INSERTED_OR_REPLACED: Final = Number(b"INSERTED", b"REPLACED", b"AGAIN")
SAVED: Final = Word(b"SAVED")
RESERVED_BATCH: Final = Batch()
FOUND: Final = JobReply(b"FOUND", reserves=False)
DELETED: Final = Word(b"DELETED")
RELEASED: Final = Word(b"RELEASED")
BURIED: Final = Word(b"BURIED")
TOUCHED: Final = Word(b"TOUCHED")
GIVEN_BACK: Final = Word(b"GIVEN_BACK")
KICKED: Final = Number(b"KICKED")
JOB_KICKED: Final = Word(b"KICKED")
PAUSED: Final = Word(b"PAUSED")
USING: Final = Name()
WATCHING: Final = Number(b"WATCHING")
STATISTICS: Final = Document(read_statistics)
NAMES: Final = Document(read_names)
ENTRIES: Final = Document(read_entries)
PAGE: Final = Document(read_page)
TUBE_PAGE: Final = TubePage(read_page)
CANCELLED: Final = Word(b"CANCELLED")
GROUP_CANCELLED: Final = Number(b"CANCELLED_GROUP")
INSERTED_BATCH: Final = Ids()
DELETED_BATCH: Final = Counts(b"DELETED_BATCH")
RELEASED_BATCH: Final = Counts(b"RELEASED_BATCH")
TOUCHED_BATCH: Final = Counts(b"TOUCHED_BATCH")
ALL_TOUCHED: Final = Number(b"TOUCHED_ALL")
MODE: Final = Mode()
REPRIORITIZED: Final = Word(b"REPRIORITIZED")
RESCHEDULED: Final = Word(b"RESCHEDULED")
CLEARED: Final = Number(b"CLEARED")
REDRIVEN: Final = Number(b"REDRIVEN")
MOVED: Final = Number(b"MOVED")
NAMED: Final = Word(b"NAMED")
DRAINED: Final = Word(b"DRAINING")
UNDRAINED: Final = Word(b"NOT_DRAINING")
AUTHENTICATED: Final = Word(b"AUTHENTICATED")
SUCCESSES.discard(b"BURIED")  # which is an error as well

Seconds = Union[int, float]

Duration = Union[int, float, str, datetime.timedelta]
"""Seconds; or a text with a unit: "0.5s", "250ms", "5m", "24h", "30d"; or a timedelta."""

UNITS: Final[dict[str, float]] = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of the units of durations, as the server's config file and `beanstalk` read them."""


def is_until_resumed(left: float) -> bool:
    """Whether a pause with this many seconds left, over a century, is one of PAUSE_UNTIL_RESUMED."""
    return left > 100 * 365 * UNITS["d"]


class Command(Generic[T]):
    """A command that can be sent.

    Attributes:
        data: all that is sent, the body included.
        reply: how its reply is read.
        repeatable: it may be said again if the connection is lost before the reply: it changes nothing, or nothing more
            the second time.
        wait: the seconds for which the server is asked to wait before it replies; None: for ever.
        needs: what the server must know, or it would take the command for another one; "" if nothing.
        whole: if it has a fraction of a second, the same in whole seconds; otherwise None.
        origin: the connection from which its job has come, if it is given a `Job`.
        effect: called with `about`, the result and the session, which notes what has changed; None if nothing changes.
        about: the job, tube or mode that the effect concerns.
    """

    __slots__ = ("about", "data", "effect", "needs", "origin", "repeatable", "reply", "wait", "whole")

    def __init__(
        self,
        data: bytes,
        reply: Reading[T],
        repeatable: bool = False,
        wait: float | None = 0,
        effect: Callable[[Any, Any, Notes], None] | None = None,
        about: Any = None,
    ) -> None:
        self.data: bytes = data
        self.reply: Reading[T] = reply
        self.repeatable: bool = repeatable
        self.wait: float | None = wait
        self.effect: Callable[[Any, Any, Notes], None] | None = effect
        self.about: Any = about
        self.needs: str = ""
        self.whole: Command[T] | None = None
        self.origin: Origin | None = None

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def name(self) -> str:
        """Its first word. What follows may be a token, or a body."""
        return self.data.split(b"\r", 1)[0].split(b" ", 1)[0].decode("ascii")

    @property
    def line(self) -> str:
        """What may be shown of it: its first line, without a token."""
        return self.name if self.reply is AUTHENTICATED else self.data[: self.data.index(b"\r")].decode("ascii")

    @property
    def is_bound(self) -> bool:
        """Whether it means nothing to another connection."""
        return self.data.startswith(BOUND)

    def of_job(self, job: Job[Any] | int) -> Command[T]:
        """This command, for the connection from which its job has come."""
        if isinstance(job, Job):
            self.origin = job.origin
        return self

    def of_jobs(self, jobs: Iterable[Job[Any] | int]) -> Command[T]:
        """This command, for the connection from which its jobs have come: an id of one is an id of all, or of none.

        Raises:
            ReservationLostError: they have come from several servers; or connections, where those must be the same.
        """
        origins = {job.origin for job in jobs if isinstance(job, Job) and job.origin is not None}
        if len(origins if self.is_bound else {origin.server or origin for origin in origins}) > 1:
            raise ReservationLostError(
                "the jobs were reserved on different connections: send one batch for each connection"
            )
        self.origin = origins.pop() if origins else None
        return self

    def or_whole(self, whole: Command[T]) -> Command[T]:
        """This command, for a server that knows fractions of a second; else the other one."""
        self.needs, self.whole = FRACTIONS, whole
        return self

    def of_extension(self) -> Command[T]:
        """This command, for a server that knows it."""
        self.needs = self.name
        return self


def _end(job_id: int, result: object, session: Notes) -> None:
    """A job was deleted, released or buried."""
    if result is None or isinstance(result, (NotFoundError, BuriedError)):
        session.reserved.discard(job_id)


def _end_batch(job_ids: list[int], result: object, session: Notes) -> None:
    """Jobs were deleted or released."""
    if isinstance(result, tuple):
        session.reserved.difference_update(job_ids)


def _use(_: object, result: object, session: Notes) -> None:
    if isinstance(result, str):
        session.used = result


def _watch(watched: tuple[str, int | None], result: object, session: Notes) -> None:
    tube, weight = watched
    if isinstance(result, int):
        session.watched[tube] = weight or session.watched.get(tube)


def _ignore(tube: str, result: object, session: Notes) -> None:
    if isinstance(result, int):
        session.watched.pop(tube, None)


def _set_mode(mode: str, result: object, session: Notes) -> None:
    if result is None:
        session.mode = mode


def _take_name(name: str, result: object, session: Notes) -> None:
    if result is None:
        session.name = name


def _note_server(_: object, result: object, session: Notes) -> None:
    """`stats` was answered, which says which server it is."""
    if isinstance(result, dict):
        session.origin.server = str(result.get("id", ""))
    if isinstance(result, (dict, ForbiddenError)):
        session.known[IDENTITY] = True  # as far as it says


def _note_extensions(_: object, result: object, session: Notes) -> None:
    """`list-extensions` was answered; UNKNOWN_COMMAND means that the server has no extensions."""
    if isinstance(result, (dict, UnknownCommandError)):
        found = result if isinstance(result, dict) else ()
        session.known.update({name: name in found for name in (*EXTENSIONS, FRACTIONS)})


class Reply(Generic[T]):
    """The result or the error of a command of a pipeline. A connection sets it, as it sets a future of asyncio.

    Attributes:
        is_there: whether it has come, be it a result or an error.
    """

    __slots__ = (
        "_error",
        "_is_cancelled",
        "_result",
        "command",
        "is_there",
        "last",  # a future that is done with it, for the last one of a pipeline
    )

    _result: T

    def __init__(self, command: Command[T]) -> None:
        self.command: Command[T] = command
        self.is_there: bool = False
        self.last: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._is_cancelled = False

    def __repr__(self) -> str:
        what = "no reply yet" if not self.is_there else repr(self._result if self._error is None else self._error)
        return f"<reply to {self.command.name}: {what}>"

    def result(self) -> T:
        """The result of the command, as the client's own method would return it.

        Raises:
            Error: as the client's own method would raise it.
            RuntimeError: the block of the pipeline has not ended, or was left by an error.
        """
        if self._error is not None:
            raise self._error
        if not self.is_there:
            raise RuntimeError("no reply yet: a pipeline sends its commands at the end of its block")
        return self._result

    def exception(self) -> Exception | None:
        """The error that the command has ended with, or None."""
        return self._error

    def settle(self, result: T | Exception) -> None:
        """This is the result, or the error."""
        if isinstance(result, Exception):
            self.set_exception(result)
        else:
            self.set_result(result)

    def set_result(self, result: T) -> None:
        self._result = result
        self._end()

    def set_exception(self, error: Exception) -> None:
        self._error = error
        self._end()

    def _end(self) -> None:
        self.is_there = True
        last = self.last
        if last is not None and not last.done():
            last.set_result(None)

    def done(self) -> bool:
        return self.is_there

    def cancel(self) -> None:
        self._is_cancelled = not self.is_there

    def cancelled(self) -> bool:
        return self._is_cancelled


def text_of(value: Any, name: str) -> str:
    """A text.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}: must be a string")
    return value


def function_of(value: Any, name: str) -> Any:
    """What can be called.

    Raises:
        TypeError: it cannot.
    """
    if not callable(value):
        raise TypeError(f"{name} is {value!r}: must be a function")
    return value


def sequence_of(values: Any, name: str) -> tuple[Any, ...]:
    """The values of a sequence, which a text is not.

    Raises:
        TypeError: it is none.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} is {values!r}: must be a list or a tuple")
    return tuple(values)


def _name(name: str, what: str = "tube") -> bytes:
    data = text_of(name, what).encode("utf-8", "replace")
    if not is_name(data):
        raise ValueError(
            f"bad {what} {name[: MAX_NAME + 1]!r}: must be 1 to {MAX_NAME} characters of A-Z a-z 0-9 - + / ; . $ _ "
            "( ), not beginning with a hyphen"
        )
    return data


def _id(job: JobOrID[Any]) -> int:
    job_id = job.id if isinstance(job, Job) else job
    if type(job_id) is not int or not 0 <= job_id <= MAX_ID:
        within("id", job_id, MAX_ID)
    return job_id


def within(name: str, value: Any, most: int, least: int = 0) -> Any:
    """A whole number that is not out of range.

    Raises:
        TypeError, ValueError: it is another thing, or out of range.
    """
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}: must be a whole number")
    return _between(name, value, most, least)


def _between(name: str, value: Any, most: int, least: int = 0) -> Any:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}: must be from {least} to {most}")
    return value


def seconds_of(duration: Duration, name: str = "duration") -> Seconds:
    """The seconds of a duration, in any range.

    Raises:
        TypeError, ValueError: it is no duration.
    """
    if isinstance(duration, datetime.timedelta):
        return duration.total_seconds()
    if hasattr(duration, "__float__"):
        return cast(float, duration)
    right = 'must be seconds, a timedelta, or a number with a unit: "90s", "15m", "24h", "30d"'
    if not isinstance(duration, str):
        raise TypeError(f"{name} is {duration!r}: {right}")
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhd])", duration)
    if found is None:
        raise ValueError(f"{name} is {duration[:80]!r}: {right}")
    number = float(found[1]) * UNITS[found[2]]
    return int(number) if number.is_integer() else number


def seconds(name: str, duration: Duration, most: int = MAX_SECONDS) -> bytes:
    """A duration: whole seconds, or with milliseconds, rounded up so that no job is early."""
    duration = seconds_of(duration, name)
    _between(name, duration, most)
    if _is_whole(duration):
        return b"%d" % duration
    milliseconds = math.ceil(round(duration * 1000, 6))  # 1.1 seconds are 1100.0000000000002 milliseconds
    return b"%d.%03d" % divmod(milliseconds, 1000)


def _is_whole(duration: Seconds) -> bool:
    return duration == int(duration)


def unix_time_of(at: float | datetime.datetime, name: str = "at") -> float:
    """The Unix time of a moment.

    Raises:
        TypeError: it is none.
    """
    if isinstance(at, datetime.datetime):
        return at.timestamp()
    if not hasattr(at, "__float__"):
        raise TypeError(f"{name} is {at!r}: must be a datetime, or Unix time")
    return at


def moment(at: float | datetime.datetime) -> bytes:
    """Unix time, with nanoseconds."""
    return b"%.9f" % _between("at", unix_time_of(at), MAX_SECONDS)


def _put(command: bytes, body: bytes, priority: int, delay: Duration, ttr: Duration, attributes: bytes = b"") -> bytes:
    within("priority", priority, MAX_PRIORITY)
    arguments = (command, priority, seconds("delay", delay), seconds("ttr", ttr), len(body), attributes, body)
    return b"%b %d %b %b %d%b\r\n%b\r\n" % arguments


def _batch(
    words: bytes,
    jobs: Iterable[JobOrID[Any]],
    reply: Reading[tuple[int, int]],
    effect: Callable[[list[int], Any, Notes], None] | None = _end_batch,
) -> Command[tuple[int, int]]:
    given = list(jobs)
    ids = [_id(job) for job in given]
    within("number of jobs", len(ids), MAX_JOBS, 1)
    data = words + b"".join([b" %d" % job_id for job_id in ids]) + b"\r\n"
    return Command(data, reply, effect=effect, about=ids).of_jobs(given)


RESERVE: Final[Command[Any]] = Command(b"reserve\r\n", RESERVED, True, None)

MODES: Final = ("priority", "weighted", "fair")
STATES: Final = ("ready", "delayed", "reserved", "buried")
MOVED_STATES: Final = ("ready", "delayed", "buried")  # in which no worker has a job


def _state(state: str, states: Collection[str] = STATES) -> bytes:
    if state not in states:
        raise ValueError(f"bad state {state!r}: must be one of {', '.join(states)}")
    return state.encode("ascii")


def auth(token: str) -> Command[None]:
    """Never to be shown: it holds the token."""
    if not is_token(token):
        raise ValueError(
            "bad token: must be one word of printable ASCII characters"
        )  # and does not belong in a message
    return Command(b"auth %b\r\n" % token.encode("ascii"), AUTHENTICATED, True)


def is_token(token: str) -> bool:
    """Whether this can be sent as a token: which ones are valid, the server knows."""
    return bool(token) and token.isascii() and TOKEN.issuperset(token.encode("ascii"))


def probe(asked: str) -> Command[Any]:
    """The question whether the server knows a command of EXTENSIONS, FRACTIONS or IDENTITY.

    Raises:
        ValueError: it is no command that some servers list and others do not.
    """
    if asked == IDENTITY:
        return make.stats()
    if asked not in EXTENSIONS and asked != FRACTIONS:
        raise ValueError(f"{asked!r} is not an extension of the protocol")
    return make.list_extensions()


# Every command, declared once


if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

    class command(Generic[P, T]):  # noqa: N801  # a decorator
        """A method that declares a command: what calling it returns depends on whose method it is."""

        def __init__(self, declaration: Callable[Concatenate[Any, P], Command[T]]) -> None: ...

        @overload
        def __get__(self, client: Maker, owner: object = None) -> Callable[P, Command[T]]: ...
        @overload
        def __get__(self, client: Blocking[Any], owner: object = None) -> Callable[P, T]: ...
        @overload
        def __get__(self, client: Asynchronous[Any], owner: object = None) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, client: Pipelined[Any], owner: object = None) -> Callable[P, Reply[T]]: ...
        @overload
        def __get__(self, client: None, owner: object) -> Any: ...
        def __get__(self, client: Any, owner: object = None) -> Any: ...

    extension = command
    """Likewise, of a command that beanstalkd does not have."""

else:

    def command(declaration: Callable[..., Command[Any]]) -> Callable[..., Command[Any]]:
        DECLARED.append(declaration)
        return declaration

    def extension(declaration: Callable[..., Command[Any]]) -> Callable[..., Command[Any]]:
        EXTENDING.append(declaration)
        return command(declaration)


DECLARED: Final[list[Callable[..., Command[Any]]]] = []
"""The methods of Commands that declare commands."""

EXTENDING: Final[list[Callable[..., Command[Any]]]] = []
"""Those of them that declare commands that beanstalkd does not have."""

SPELLED: Final = {
    "using": "list-tube-used",
    "watching": "list-tubes-watched",
    "tubes": "list-tubes",
    "_job_page": "list-jobs",
    "_tube_page": "stats-tubes",
}
"""The commands of methods that have another name."""


class Commands(Generic[TBody]):
    """Every command, as a method. A method here makes the command, and refuses what no server would take; those of a
    client or a pipeline have the same names, arguments and documentation, and execute it."""

    _session: Any  # a Maker

    # Jobs

    @command
    def put(
        self,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
    ) -> Command[int]:
        """Inserts a job into the tube that is used, and returns its id.

        Example:
            job_id = queue.put("hello", delay="15m")

        Args:
            body: what the job is.
            priority: from 0, the most urgent, to 4,294,967,295.
            delay: seconds until it is ready.
            ttr: seconds for which it may be reserved before it times out.
        """
        data = self._session.encode(body)
        if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
            within("priority", priority, MAX_PRIORITY)
        if type(delay) is int and type(ttr) is int and 0 <= delay <= MAX_SECONDS and 0 <= ttr <= MAX_SECONDS:
            return Command(b"put %d %d %d %d\r\n%b\r\n" % (priority, delay, ttr, len(data), data), INSERTED)
        delay, ttr = seconds_of(delay, "delay"), seconds_of(ttr, "ttr")
        made: Command[int] = Command(_put(b"put", data, priority, delay, ttr), INSERTED)
        if _is_whole(delay) and _is_whole(ttr):
            return made
        return made.or_whole(Command(_put(b"put", data, priority, math.ceil(delay), math.ceil(ttr)), INSERTED))

    @extension
    def put_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
    ) -> Command[int]:
        """Inserts a job with a key into the tube that is used, and returns its id.

        Example:
            queue.put_keyed("order-17", "hello", delay="15m")
            queue.cancel_keyed("order-17")

        Args:
            key: the name of the job, by the rules of tube names.

        Raises:
            ExistsError: a live job of this tube has the key, or had it and it is held.
            UnsupportedError: the server knows no keys; nothing was sent.
        """
        words = b"put-keyed %b" % _name(key, "key")
        return Command(_put(words, self._session.encode(body), priority, delay, ttr), INSERTED).of_extension()

    @extension
    def replace_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
    ) -> Command[int]:
        """Replaces the body, priority, delay and time to run of the job with this key, or inserts it. Returns its id.

        Example:
            queue.replace_keyed("order-17", "hello again", delay="15m")

        Raises:
            TooLateError: a worker has reserved the job, or it is done and the key is held.
            UnsupportedError: the server knows no keys; nothing was sent.
        """
        words = b"replace-keyed %b" % _name(key, "key")
        data = _put(words, self._session.encode(body), priority, delay, ttr)
        return Command(data, INSERTED_OR_REPLACED).of_extension()

    @extension
    def put_with(
        self,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
        *,
        key: str = "",
        replace: bool = False,
        again: bool = False,
        within: Duration | None = 0,
        at: float | datetime.datetime | None = None,
        tries: int = 0,
        backoff: Duration | None = 0,
        ttl: Duration | None = 0,
        hold: Duration | None = 0,
        once: str = "",
        once_ttl: Duration | None = 0,
        share: str = "",
        limit: str = "",
        limit_count: int = 1,
        group: str = "",
        after: str = "",
        after_waits: bool = False,
    ) -> Command[int]:
        """Inserts a job into the tube that is used, and demands something special of it. Returns its id.

        What is 0 or not given is as the policy of the tube says.

        Example:
            queue.put_with("hello", key="order-17", tries=5, backoff="10s", ttl="24h")

        Args:
            key: the name of the job, by the rules of tube names.
            replace: whether to replace the job that has this key.
            again: with `replace`: whether to replace it also while it is reserved. It runs again when that ends.
            within: with `replace`: maximum seconds from the first put of the job until it is due; 0 for no maximum.
            at: when the job is to be ready by the server's wall clock, instead of a delay: Unix time in seconds, or
                a datetime, which without a time zone is local time.
            tries: how often it may be released, time out or lose its worker, before it is buried or goes to the dead
                tube.
            backoff: seconds to delay it for after the first of these, doubled with each further one.
            ttl: seconds for which it may be ready, before it is deleted or goes to the dead tube.
            hold: seconds for which its key stays taken when it has been deleted.
            once: a token, by the rules of tube names. If another put into the tube has taken it, nothing changes: so
                a put can be repeated whose reply was lost.
            once_ttl: seconds for which the token stays taken, also if the job is gone; 0 for an hour.
            share: among jobs of the same priority, these names take turns.
            limit: of the jobs of the tube with this name, at most `limit_count` are reserved at a time; of all tubes
                if the name has a slash: "home/name".
            group: the group of jobs that it belongs to.
            after: it is ready when no job of this group is left; with `after_waits`, also if it has had none yet.

        Raises:
            ExistsError, TooLateError: as for `put_keyed` and `replace_keyed`. ExistsError also if the token is taken,
                with the id of the job that was put with it.
            UnsupportedError: the server does not know the command; nothing was sent.
            ValueError: the attributes do not go together or are out of range; nothing was sent.
        """
        delay, hold = seconds_of(delay, "delay"), seconds_of(0 if hold is None else hold, "hold")
        wait = seconds_of(0 if within is None else within, "within")
        if (replace or hold) and not key:
            raise ValueError("replace and hold require a key")
        if (again or wait) and not replace:
            raise ValueError("again and within require replace")
        if at is not None and delay:
            raise ValueError("at and delay cannot be combined")
        if after and (at is not None or wait or after == group):
            raise ValueError("after cannot be combined with at, within or the same group")
        token_ttl = seconds_of(0 if once_ttl is None else once_ttl, "once_ttl")
        if token_ttl and not once:
            raise ValueError("once_ttl requires once")
        if limit_count != 1 and not limit:
            raise ValueError("limit_count requires limit")
        attributes = [b" key=%b" % _name(key, "key")] if key else []
        if replace:
            attributes.append(b" replace=1")
        if again:
            attributes.append(b" again=1")
        if at is not None:
            attributes.append(b" at=%b" % moment(at))
        if tries:
            attributes.append(b" tries=%d" % _between("tries", tries, MAX_SECONDS))
        for name, duration in (("within", within), ("backoff", backoff), ("ttl", ttl), ("hold", hold)):
            if duration is not None and seconds_of(duration, name):
                attributes.append(b" %b=%b" % (name.encode(), seconds(name, duration)))
        if once:
            lasts = b":" + seconds("once_ttl", token_ttl) if token_ttl else b""
            attributes.append(b" once=%b%b" % (_name(once, "once"), lasts))
        if share:
            attributes.append(b" share=%b" % _name(share, "share"))
        if limit:
            count = _between("limit_count", limit_count, MAX_PRIORITY, 1)
            attributes.append(b" limit=%b:%d" % (_name(limit, "limit"), count))
        if group:
            attributes.append(b" group=%b" % _name(group, "group"))
        if after:
            attributes.append(b" after=%b%b" % (_name(after, "after"), b":wait" if after_waits else b""))
        data = _put(b"put-with", self._session.encode(body), priority, delay, ttr, b"".join(attributes))
        return Command(data, INSERTED_OR_REPLACED).of_extension()

    @extension
    def put_batch(
        self,
        bodies: Iterable[TBody],
        priority: int = DEFAULT_PRIORITY,
        delay: Duration = DEFAULT_DELAY,
        ttr: Duration = DEFAULT_TTR,
    ) -> Command[list[int]]:
        """Inserts jobs into the tube that is used, all or none, and returns their ids.

        Example:
            ids = queue.put_batch(["a", "b", "c"], delay="15m")

        Args:
            bodies: 1 to 512, of a megabyte together.

        Raises:
            UnsupportedError: the server does not know the command; nothing was sent.
        """
        encoded = [self._session.encode(body) for body in bodies]
        within("number of bodies", len(encoded), MAX_PUT, 1)
        data = b"".join([b"%d\r\n%b\r\n" % (len(body), body) for body in encoded])
        return Command(_put(b"put-batch", data, priority, delay, ttr), INSERTED_BATCH).of_extension()

    @extension
    def stats_group(self, group: str) -> Command[Statistics]:
        """Returns the statistics of a group of jobs.

        Example:
            print(queue.stats_group("import-17")["state"])
        """
        return Command(b"stats-group %b\r\n" % _name(group, "group"), STATISTICS, True).of_extension()

    @extension
    def cancel_group(self, group: str) -> Command[int]:
        """Deletes the jobs of a group that are not reserved. Returns how many.

        Example:
            print(queue.cancel_group("import-17"), "jobs are deleted")
        """
        return Command(b"cancel-group %b\r\n" % _name(group, "group"), GROUP_CANCELLED)

    @extension
    def cancel(self, job: JobOrID[TBody]) -> Command[None]:
        """Deletes a job that is still delayed, so that no worker ever receives it.

        Example:
            job_id = queue.put("hello", delay="15m")
            queue.cancel(job_id)

        Raises:
            TooLateError: it is ready, reserved or buried.
        """
        return Command(b"cancel %d\r\n" % _id(job), CANCELLED).of_job(job)

    @extension
    def cancel_keyed(self, key: str) -> Command[None]:
        """Deletes the job with this key in the tube that is used, if it is still delayed.

        Example:
            queue.put_keyed("order-17", "hello", delay="15m")
            queue.cancel_keyed("order-17")
        """
        return Command(b"cancel-keyed %b\r\n" % _name(key, "key"), CANCELLED)

    @extension
    def reschedule(self, job: JobOrID[TBody], delay: Duration) -> Command[None]:
        """Gives a job that is still delayed another delay, in seconds from now.

        Example:
            job_id = queue.put("hello", delay="15m")
            queue.reschedule(job_id, "30m")

        Raises:
            TooLateError: it is ready, reserved or buried.
        """
        return Command(b"reschedule %d %b\r\n" % (_id(job), seconds("delay", delay)), RESCHEDULED).of_job(job)

    @extension
    def reschedule_keyed(self, key: str, delay: Duration) -> Command[None]:
        """Gives the job with this key in the tube that is used another delay, if it is still delayed.

        Example:
            queue.put_keyed("order-17", "hello", delay="15m")
            queue.reschedule_keyed("order-17", "30m")
        """
        return Command(b"reschedule-keyed %b %b\r\n" % (_name(key, "key"), seconds("delay", delay)), RESCHEDULED)

    @extension
    def reprioritize(self, job: JobOrID[TBody], priority: int) -> Command[None]:
        """Gives a ready, delayed or buried job another priority.

        Example:
            job_id = queue.put("hello")
            queue.reprioritize(job_id, 0)

        Args:
            priority: from 0, the most urgent, to 4,294,967,295.

        Raises:
            TooLateError: a worker has reserved it.
        """
        words = _id(job), within("priority", priority, MAX_PRIORITY)
        return Command(b"reprioritize %d %d\r\n" % words, REPRIORITIZED).of_job(job)

    @extension
    def reprioritize_keyed(self, key: str, priority: int) -> Command[None]:
        """Gives the job with this key in the tube that is used another priority, unless a worker has reserved it.

        Example:
            queue.put_keyed("order-17", "hello")
            queue.reprioritize_keyed("order-17", 0)
        """
        words = _name(key, "key"), within("priority", priority, MAX_PRIORITY)
        return Command(b"reprioritize-keyed %b %d\r\n" % words, REPRIORITIZED)

    @command
    def reserve(self, timeout: Duration | None = None) -> Command[Job[TBody]]:
        """Reserves a job of the tubes that are watched, and returns it. Waits until there is one.

        Example:
            job = queue.reserve(timeout=5)
            print(job.id, job.body)
            queue.delete(job)

        Args:
            timeout: the most seconds to wait; None: for ever.

        Raises:
            TimedOutError: there was none in this time.
            DeadlineSoonError: a job that is reserved already times out within a second.
        """
        if timeout is None:
            return RESERVE
        timeout = seconds_of(timeout, "timeout")
        wait = seconds("timeout", timeout, MAX_TIMEOUT)
        made: Command[Job[Any]] = Command(b"reserve-with-timeout %b\r\n" % wait, RESERVED, True, timeout)
        if not _is_whole(timeout):
            made.or_whole(make.reserve(math.ceil(timeout)))
        return made

    @command
    def reserve_job(self, id: int) -> Command[Job[TBody]]:
        """Reserves the job with this id, in any tube, and returns it.

        Example:
            job = queue.reserve_job(17)

        Raises:
            NotFoundError: there is none, or it is reserved.
        """
        return Command(b"reserve-job %d\r\n" % _id(id), RESERVED, True)

    @extension
    def reserve_batch(self, limit: int, timeout: Duration | None = None) -> Command[list[Job[TBody]]]:
        """Reserves as many jobs as there are, at least one and at most `limit`. Waits until there is one.

        A server that does not know reserve-batch is asked for one job, and then for what else is ready.

        Example:
            for job in queue.reserve_batch(100, timeout=5):
                queue.delete(job)

        Args:
            timeout: the most seconds to wait; None: for ever.

        Raises:
            TimedOutError, DeadlineSoonError: as for `reserve`.
        """
        timeout = None if timeout is None else seconds_of(timeout, "timeout")
        wait = seconds("timeout", MAX_TIMEOUT if timeout is None else timeout, MAX_TIMEOUT)
        return Command(
            b"reserve-batch %d %b\r\n" % (within("limit", limit, MAX_PRIORITY, 1), wait), RESERVED_BATCH, True, timeout
        )

    @command
    def delete(self, job: JobOrID[TBody]) -> Command[None]:
        """Deletes a job.

        Example:
            job = queue.reserve()
            queue.delete(job)

        Raises:
            ReservationLostError: it has come from another connection, and may be another job here: the server's `id`
                in `stats` is not the same, or was not asked on both connections. Nothing was sent.
        """
        job_id = _id(job)
        return Command(b"delete %d\r\n" % job_id, DELETED, effect=_end, about=job_id).of_job(job)

    @extension
    def delete_batch(self, jobs: Iterable[JobOrID[TBody]]) -> Command[tuple[int, int]]:
        """Deletes jobs, at most 1,000. Returns how many were deleted, and how many were not found.

        Example:
            queue.delete_batch(queue.reserve_batch(100))

        Raises:
            ReservationLostError: as for `delete`.
        """
        return _batch(b"delete-batch", jobs, DELETED_BATCH)

    @extension
    def release_batch(
        self, jobs: Iterable[JobOrID[TBody]], priority: int | None = None, delay: Duration = DEFAULT_DELAY
    ) -> Command[tuple[int, int]]:
        """Gives reserved jobs back, at most 1,000. Returns how many were released, and how many were not found.

        Example:
            queue.release_batch(queue.reserve_batch(100), delay="1m")

        Args:
            priority, delay: as for `release`.

        Raises:
            ReservationLostError: one was reserved on a connection that is lost; nothing was sent.
        """
        priority = DEFAULT_PRIORITY if priority is None else within("priority", priority, MAX_PRIORITY)
        words = b"release-batch %d %b" % (priority, seconds("delay", delay))
        return _batch(words, jobs, RELEASED_BATCH)

    @extension
    def touch_batch(self, jobs: Iterable[JobOrID[TBody]]) -> Command[tuple[int, int]]:
        """Lets the times to run of reserved jobs, at most 1,000, begin anew. Returns how many did, and how many were
        not found.

        Example:
            queue.touch_batch(queue.reserve_batch(100))

        Raises:
            ReservationLostError: one was reserved on a connection that is lost; nothing was sent.
        """
        return _batch(b"touch-batch", jobs, TOUCHED_BATCH, effect=None)

    @extension
    def touch_all(self) -> Command[int]:
        """Restarts the times to run of all jobs that this connection has reserved. Returns how many there were.

        Example:
            queue.touch_all()
        """
        return Command(b"touch-all\r\n", ALL_TOUCHED)

    @command
    def release(
        self, job: JobOrID[TBody], priority: int | None = None, delay: Duration = DEFAULT_DELAY
    ) -> Command[None]:
        """Gives a reserved job back.

        Example:
            job = queue.reserve()
            queue.release(job, delay="1m")

        Args:
            priority: its priority from now on; None for the default one.
            delay: seconds until it is ready.

        Raises:
            BuriedError: it has been buried instead.
            ReservationLostError: it was reserved on a connection that is lost; nothing was sent.
        """
        job_id = _id(job)
        priority = DEFAULT_PRIORITY if priority is None else within("priority", priority, MAX_PRIORITY)
        delay = seconds_of(delay, "delay")
        line = b"release %d %d %b\r\n" % (job_id, priority, seconds("delay", delay))
        made: Command[None] = Command(line, RELEASED, effect=_end, about=job_id)
        if not _is_whole(delay):
            made.or_whole(make.release(job_id, priority, math.ceil(delay)).of_job(job))
        return made.of_job(job)

    @extension
    def give_back(self, job: JobOrID[TBody]) -> Command[None]:
        """Gives a reserved job back as if it had not been reserved: no failure and no reserve is counted.

        It is ready at once, in its former place by priority and id.

        Example:
            job = queue.reserve()
            queue.give_back(job)

        Raises:
            ReservationLostError: it was reserved on a connection that is lost; nothing was sent.
        """
        job_id = _id(job)
        return Command(b"give-back %d\r\n" % job_id, GIVEN_BACK, effect=_end, about=job_id).of_job(job)

    @command
    def bury(self, job: JobOrID[TBody], priority: int | None = None) -> Command[None]:
        """Buries a reserved job: no client can reserve it until it is kicked.

        Example:
            job = queue.reserve()
            queue.bury(job)

        Args:
            priority: its priority from now on; None for the default one.

        Raises:
            ReservationLostError: it was reserved on a connection that is lost; nothing was sent.
        """
        job_id = _id(job)
        priority = DEFAULT_PRIORITY if priority is None else within("priority", priority, MAX_PRIORITY)
        return Command(b"bury %d %d\r\n" % (job_id, priority), BURIED, effect=_end, about=job_id).of_job(job)

    @command
    def touch(self, job: JobOrID[TBody]) -> Command[None]:
        """Lets the time to run of a reserved job begin anew.

        Example:
            job = queue.reserve()
            queue.touch(job)

        Raises:
            ReservationLostError: it was reserved on a connection that is lost; nothing was sent.
        """
        job_id = _id(job)
        return Command(b"touch %d\r\n" % job_id, TOUCHED).of_job(job)

    @extension
    def save(self, job: JobOrID[TBody], body: TBody) -> Command[None]:
        """Gives a reserved job another body, for its next attempt. The job stays reserved.

        Example:
            job = queue.reserve()
            queue.save(job, "half of it is done")

        Raises:
            NotFoundError: it is not reserved any more.
            TooLateError: it was replaced meanwhile, and runs again with that body.
            ReservationLostError: it was reserved on a connection that is lost; nothing was sent.
            UnsupportedError: the server does not know the command; nothing was sent.
        """
        data = self._session.encode(body)
        made: Command[None] = Command(b"save %d %d\r\n%b\r\n" % (_id(job), len(data), data), SAVED)
        return made.of_extension().of_job(job)

    @command
    def kick(self, limit: int) -> Command[int]:
        """Makes buried jobs of the tube that is used ready, or if there are none, delayed ones. Returns how many.

        Example:
            print(queue.kick(100), "jobs are ready again")

        Args:
            limit: the most jobs to kick.
        """
        return Command(b"kick %d\r\n" % within("limit", limit, MAX_PRIORITY), KICKED)

    @command
    def kick_job(self, job: JobOrID[TBody]) -> Command[None]:
        """Makes a buried or delayed job ready.

        Example:
            queue.kick_job(17)

        Raises:
            ReservationLostError: as for `delete`.
        """
        return Command(b"kick-job %d\r\n" % _id(job), JOB_KICKED).of_job(job)

    @command
    def peek(self, id: int) -> Command[Job[TBody]]:
        """Returns the job with this id, without reserving it.

        Example:
            print(queue.peek(17).body)
        """
        return Command(b"peek %d\r\n" % _id(id), FOUND, True)

    @command
    def peek_ready(self) -> Command[Job[TBody]]:
        """Returns the next ready job of the tube that is used.

        Example:
            print(queue.peek_ready().body)
        """
        return Command(b"peek-ready\r\n", FOUND, True)

    @command
    def peek_delayed(self) -> Command[Job[TBody]]:
        """Returns the delayed job of the tube that is used which is due first.

        Example:
            print(queue.peek_delayed().body)
        """
        return Command(b"peek-delayed\r\n", FOUND, True)

    @command
    def peek_buried(self) -> Command[Job[TBody]]:
        """Returns the job of the tube that is used which was buried first.

        Example:
            job = queue.peek_buried()
            queue.kick_job(job)
        """
        return Command(b"peek-buried\r\n", FOUND, True)

    @extension
    def peek_keyed(self, key: str) -> Command[Job[TBody]]:
        """Returns the job with this key in the tube that is used.

        Example:
            print(queue.peek_keyed("order-17").body)
        """
        return Command(b"peek-keyed %b\r\n" % _name(key, "key"), FOUND, True)

    # Tubes

    @command
    def use(self, tube: str) -> Command[str]:
        """Uses another tube from now on, also after reconnecting.

        Example:
            queue.use("mail")
            queue.put("hello")
        """
        return Command(b"use %b\r\n" % _name(tube), USING, True, effect=_use)

    @command
    def using(self) -> Command[str]:
        """Returns the tube that is used.

        Example:
            print("put goes to", queue.using())
        """
        return Command(b"list-tube-used\r\n", USING, True)

    @command
    def watch(self, tube: str, weight: int | None = None) -> Command[int]:
        """Watches one more tube, also after reconnecting. Returns how many are watched.

        Example:
            queue.watch("mail")
            job = queue.reserve()

        Args:
            weight: from 1 to 10,000, for `reserve_mode`; None for that which the tube has.
        """
        words = b"" if weight is None else b" %d" % within("weight", weight, MAX_WEIGHT, 1)
        line = b"watch %b%b\r\n" % (_name(tube), words)
        made: Command[int] = Command(line, WATCHING, True, effect=_watch, about=(tube, weight))
        made.needs = "" if weight is None else "reserve-mode"
        return made

    @extension
    def reserve_mode(self, mode: str) -> Command[None]:
        """Says which of the tubes that are watched serves the next reserve, also after reconnecting.

        Example:
            queue.watch("mail", 3)
            queue.reserve_mode("weighted")

        Args:
            mode: "priority": that of the most urgent job; "weighted": tubes take turns by their weights; "fair": so
                that the client's time is divided by their weights.

        Raises:
            UnsupportedError: the server does not know the command; nothing was sent.
        """
        if mode not in MODES:
            raise ValueError(f"bad mode {mode!r}: must be one of {', '.join(MODES)}")
        line = b"reserve-mode %b\r\n" % mode.encode("ascii")
        return Command(line, MODE, True, effect=_set_mode, about=mode).of_extension()

    @command
    def ignore(self, tube: str) -> Command[int]:
        """Watches a tube no more. Returns how many are watched.

        Example:
            queue.watch("mail")
            queue.ignore("default")

        Raises:
            NotIgnoredError: it is the only one.
        """
        return Command(b"ignore %b\r\n" % _name(tube), WATCHING, True, effect=_ignore, about=tube)

    @command
    def watching(self) -> Command[list[str]]:
        """Returns the tubes that are watched.

        Example:
            print("reserve takes from", *queue.watching())
        """
        return Command(b"list-tubes-watched\r\n", NAMES, True)

    @command
    def tubes(self) -> Command[list[str]]:
        """Returns all tubes.

        Example:
            print(*queue.tubes())
        """
        return Command(b"list-tubes\r\n", NAMES, True)

    @command
    def pause_tube(self, tube: str, delay: Duration) -> Command[None]:
        """Pauses a tube: no job of it can be reserved for this many seconds. 0 ends the pause.

        Example:
            queue.pause_tube("mail", "5m")
        """
        delay = seconds_of(delay, "delay")
        made: Command[None] = Command(b"pause-tube %b %b\r\n" % (_name(tube), seconds("delay", delay)), PAUSED, True)
        if not _is_whole(delay):
            made.or_whole(make.pause_tube(tube, math.ceil(delay)))
        return made

    @extension
    def clear_tube(self, tube: str) -> Command[int]:
        """Deletes all ready, delayed and buried jobs of a tube. Returns how many.

        Example:
            print(queue.clear_tube("mail"), "jobs are deleted")
        """
        return Command(b"clear-tube %b\r\n" % _name(tube), CLEARED)

    @extension
    def redrive(self, tube: str, limit: int) -> Command[int]:
        """Sends jobs of a dead tube back to the tubes that they have come from, ready. Returns how many.

        Example:
            print(queue.redrive("mail.dead", 100), "jobs are ready again")

        Args:
            limit: the most jobs to send back.
        """
        return Command(b"redrive %b %d\r\n" % (_name(tube), within("limit", limit, MAX_PRIORITY, 1)), REDRIVEN)

    @extension
    def move_jobs(self, tube: str, state: str, target: str, limit: int) -> Command[int]:
        """Moves the first jobs of a tube in one state to another tube. Returns how many.

        They keep their ids, states, priorities and deadlines.

        Example:
            queue.move_jobs("mail", "buried", "mail.later", 100)

        Args:
            state: `ready`, `delayed` or `buried`.
            target: the other tube, which need not exist.
            limit: the most jobs to move.

        Raises:
            OtherShardError: the other tube is in another shard of a cluster.
        """
        words = (_name(tube), _state(state, MOVED_STATES), _name(target), within("limit", limit, MAX_PRIORITY, 1))
        return Command(b"move-jobs %b %b %b %d\r\n" % words, MOVED)

    # Statistics, and the server

    @command
    def stats(self) -> Command[Statistics]:
        """Returns the statistics of the server.

        Example:
            print(queue.stats()["current-jobs-ready"])
        """
        return Command(b"stats\r\n", STATISTICS, True, effect=_note_server)

    @command
    def stats_job(self, job: JobOrID[TBody]) -> Command[Statistics]:
        """Returns the statistics of a job.

        Example:
            print(queue.stats_job(17)["state"])
        """
        return Command(b"stats-job %d\r\n" % _id(job), STATISTICS, True)

    @command
    def stats_tube(self, tube: str) -> Command[Statistics]:
        """Returns the statistics of a tube.

        Example:
            print(queue.stats_tube("mail")["current-jobs-ready"])
        """
        return Command(b"stats-tube %b\r\n" % _name(tube), STATISTICS, True)

    @extension
    def client_name(self, name: str) -> Command[None]:
        """Gives the client another name, also for later connections. Operators see it in the log, in `list_clients`,
        and at its reserved jobs.

        Example:
            queue.client_name("shop-worker/web-3/4711")

        Args:
            name: by the rules of tube names.
        """
        return Command(b"client-name %b\r\n" % _name(name, "name"), NAMED, True, effect=_take_name, about=name)

    @extension
    def list_extensions(self) -> Command[Statistics]:
        """Returns the extensions of the protocol that the server has, with their versions.

        Example:
            print(queue.list_extensions()["put-with"])

        Raises:
            UnknownCommandError: the server has none, because it is a beanstalkd.
        """
        return Command(b"list-extensions\r\n", STATISTICS, True, effect=_note_extensions)

    @extension
    def list_clients(self) -> Command[list[Statistics]]:
        """Returns all clients of the server, each with its name, user, state and figures.

        Example:
            print(*(client["name"] for client in queue.list_clients()))
        """
        return Command(b"list-clients\r\n", ENTRIES, True)

    @extension
    def drain(self) -> Command[None]:
        """Puts the server into drain mode: it accepts no new jobs, and everything else goes on.

        Example:
            queue.drain()
        """
        return Command(b"drain\r\n", DRAINED, True)

    @extension
    def undrain(self) -> Command[None]:
        """Ends drain mode.

        Example:
            queue.undrain()
        """
        return Command(b"undrain\r\n", UNDRAINED, True)

    # What clients have in another form: in pages, or with a way around it

    @extension
    def _job_page(
        self, tube: str, state: str = "ready", following: str = "0", count: int = PAGE_ENTRIES
    ) -> Command[tuple[str, list[Statistics]]]:
        """A page of jobs, from `following` on; with it, where the next one begins ("" if there is none)."""
        if not following.isascii() or not following.replace("-", "").isdigit():
            raise ValueError(f"bad position {following!r}: must be 0, or the position that the previous page returned")
        words = (_name(tube), _state(state), following.encode("ascii"), count)
        return Command(b"list-jobs %b %b %b %d\r\n" % words, PAGE, True)

    @extension
    def _tube_page(self, following: str = "") -> Command[tuple[str, list[Statistics]]]:
        """A page of tubes, from `following` on; with it, where the next one begins ("" if there is none)."""
        first = _name(following) if following else b"-"
        return Command(b"stats-tubes %b %d\r\n" % (first, PAGE_ENTRIES), TUBE_PAGE, True)


def _spelled(declaration: Callable[..., Command[Any]]) -> str:
    return SPELLED.get(declaration.__name__, declaration.__name__.replace("_", "-"))


EXTENSIONS: Final = frozenset(map(_spelled, EXTENDING)) | {"cancel-reserve"}
"""The commands that `list-extensions` lists, none of which beanstalkd has."""

BASE: Final = frozenset(map(_spelled, DECLARED)) - EXTENSIONS | {"reserve-with-timeout", "quit"}
"""The commands that every server has."""


class Maker(Commands[Any]):
    """Makes commands: its methods return them."""

    @property
    def _session(self) -> Maker:
        return self

    def encode(self, body: str | bytes) -> bytes:
        """The bytes of a body."""
        if isinstance(body, bytes):
            return body
        raise TypeError(f"a body must be bytes, not {type(body).__name__}")


make: Final = Maker()


class Blocking(Commands[TBody]):
    """Whose methods execute a command and return its result."""

    def execute(self, command: Command[T]) -> T:
        """Execute a command: return its result, or raise its error.

        Example:
            job_id = queue.execute(make.put(b"hello"))
        """
        raise NotImplementedError


class Asynchronous(Commands[TBody]):
    """Whose methods are coroutines, which do so."""

    async def execute(self, command: Command[T]) -> T:
        """Execute a command: return its result, or raise its error.

        Example:
            job_id = await queue.execute(make.put(b"hello"))
        """
        raise NotImplementedError


class Pipelined(Commands[TBody]):
    """Whose methods return a Reply, which has the result at the end of the block."""

    def execute(self, command: Command[T]) -> Reply[T]:
        """Execute a command together with others.

        Example:
            reply = together.execute(make.put(b"hello"))
        """
        raise NotImplementedError


def _executes(declaration: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **named: Any) -> Any:
        return self.execute(declaration(self, *args, **named))

    return method


def _awaits(declaration: Callable[..., Any]) -> Callable[..., Any]:
    async def method(self: Any, *args: Any, **named: Any) -> Any:
        return await self.execute(declaration(self, *args, **named))

    return method


def _document(method: Callable[..., Any], declaration: Callable[..., Any], result: str) -> Callable[..., Any]:
    """Let a method be shown with the arguments of its declaration, and what it returns itself."""
    shown = types.FunctionType(declaration.__code__, declaration.__globals__, declaration.__name__)
    shown.__defaults__, shown.__kwdefaults__ = declaration.__defaults__, declaration.__kwdefaults__
    inner = declaration.__annotations__["return"][len("Command[") : -1]
    shown.__annotations__ = {**declaration.__annotations__, "return": result % inner}
    method.__name__, method.__qualname__ = declaration.__name__, declaration.__qualname__
    method.__doc__, method.__module__ = declaration.__doc__, declaration.__module__
    method.__wrapped__ = shown  # type: ignore[attr-defined]  # which inspect.signature looks at
    return method


for _each in DECLARED:
    setattr(Blocking, _each.__name__, _document(_executes(_each), _each, "%s"))
    setattr(Asynchronous, _each.__name__, _document(_awaits(_each), _each, "%s"))
    setattr(Pipelined, _each.__name__, _document(_executes(_each), _each, "Reply[%s]"))
