"""Every command as a value: the bytes that say it, and how its reply becomes a result or an error.

A command is made by the function of its name, which raises ValueError or TypeError for what no server would take: a bad
name, a number out of range. Nothing is sent then. Durations are seconds, or what `seconds_of` makes seconds of; those
that are not whole are sent in milliseconds, rounded up, so that no job is early; or in whole seconds, where the server
knows no others: beanstalkd would take a put with a fraction for malformed, and its body for commands. (The protocol,
and docs/protocol-extensions.md.)

    reply                                     how it is read      result
    DELETED, RELEASED, TOUCHED, …             Word                None
    INSERTED 5, KICKED 3, WATCHING 2, …       Number              int
    USING mails                               Name                str
    RESERVED 5 11, FOUND 5 11, and a body     JobReply            Job
    OK 40, and a body                         Document            what the body says
    RESERVED_BATCH 2, then RESERVED … twice   Batch               list of Job

Must never do any I/O, nor know the order in which replies come.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, Union, cast

from beanstalk_client import statistics
from beanstalk_client.errors import (
    REPLIES,
    BadFormatError,
    BuriedError,
    Error,
    ExistsError,
    ForbiddenError,
    NotFoundError,
    UndecodableError,
    UnknownCommandError,
    UnknownResponseError,
)
from beanstalk_client.job import Job
from beanstalk_client.statistics import Statistics

if TYPE_CHECKING:
    from beanstalk_client.session import Session

T = TypeVar("T")

DEFAULT_TUBE: Final = "default"
DEFAULT_PRIORITY: Final = 2**16
DEFAULT_DELAY: Final = 0
DEFAULT_TTR: Final = 60

MAX_PRIORITY: Final = 2**32 - 1
MAX_ID: Final = 2**64 - 1

MAX_TIMEOUT: Final = 2**31 - 1
"""The longest timeout of a command, in seconds; 68 years."""

MAX_SECONDS: Final = 2**32 - 1
"""The longest duration, in seconds; 136 years. The latest moment as well, in 2106."""

MAX_DIGITS: Final = 20
"""The most digits of a number in a reply: an id has 64 bits."""

MAX_BODY: Final = 1 << 30
"""Bytes of a reply's body: servers take no larger job, and whatever announces more makes no sense."""

MAX_BATCH: Final = 512
"""The most jobs of a batch."""

PAGE_ENTRIES: Final = 1000
"""How many entries of a list are asked for at a time: the most that a page has."""

MAX_NAME: Final = 200
NAME: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-+/;.$_()")
TOKEN: Final = frozenset(range(0x21, 0x7F))

EXTENSIONS: Final = frozenset(
    [
        "auth",
        "put-keyed",
        "replace-keyed",
        "peek-keyed",
        "cancel",
        "cancel-keyed",
        "reschedule",
        "reschedule-keyed",
        "put-with",
        "redrive",
        "reserve-batch",
        "clear-tube",
        "list-jobs",
        "stats-tubes",
        "list-clients",
        "move-jobs",
        "drain",
        "undrain",
    ]
)
"""The commands that beanstalkd does not have."""

BASE: Final = frozenset(
    [
        "put",
        "use",
        "reserve",
        "reserve-with-timeout",
        "reserve-job",
        "delete",
        "release",
        "bury",
        "touch",
        "watch",
        "ignore",
        "peek",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
        "kick",
        "kick-job",
        "stats-job",
        "stats-tube",
        "stats",
        "list-tubes",
        "list-tube-used",
        "list-tubes-watched",
        "quit",
        "pause-tube",
    ]
)
"""The commands that every server has."""

COUNTED: Final = frozenset(["reserve-batch", "stats-tubes", "list-clients", "drain", "undrain"])
"""Those that a server cannot be asked for without their arguments, because it would take them for malformed (the first
two are misread by beanstalkd as commands of its own), or because they have none: `stats` counts those that it knows.
"""

FRACTIONS: Final = "fractions of a second"
"""What beanstalkd lacks as well; it is asked for as commands are."""

Seconds = Union[int, float]

Duration = Union[int, float, str, datetime.timedelta]
"""Seconds; or a text with a unit: "0.5s", "250ms", "5m", "24h", "30d"; or a timedelta."""

UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of the units of durations, as the server's config file and `beanstalk` read them."""


class NonsenseError(ValueError):
    """A reply that no server gives to this command: what follows cannot be told either."""


class Reply(Generic[T]):
    """How the reply to a command is read."""

    __slots__ = ()

    opening: bytes = b""
    """How the line of a reply begins that has a body; empty if none has."""

    is_batch: bool = False
    """Whether its line counts replies that follow."""

    def read(self, line: bytes) -> Any:
        """The result, or the error, of a reply without a body."""
        raise NotImplementedError

    def read_body(self, words: list[bytes], body: bytes, session: Session) -> Any:
        """The result of a reply with a body, from the words of its line."""
        raise NotImplementedError


class Word(Reply[None]):
    """A reply that says only that it was done."""

    __slots__ = ("_word",)

    def __init__(self, word: bytes) -> None:
        self._word = word
        SUCCESSES.add(word)

    def read(self, line: bytes) -> Error | None:
        return None if line == self._word else error_of(line)


class Number(Reply[int]):
    """A reply with a number behind one word or another."""

    __slots__ = ("_first", "_second", "_size")

    def __init__(self, first: bytes, second: bytes = b"") -> None:
        self._first = first + b" "
        self._size = len(self._first)
        self._second = second and second + b" "
        SUCCESSES.update(word for word in (first, second) if word)

    def read(self, line: bytes) -> int | Error:
        if line.startswith(self._first):
            digits = line[self._size :]
            return int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else nonsense(line)
        if self._second and line.startswith(self._second):
            return number(line[len(self._second) :])
        return error_of(line)


class Name(Reply[str]):
    """A reply with a tube's name."""

    __slots__ = ()

    def read(self, line: bytes) -> str | Error:
        word, _, name = line.partition(b" ")
        if word != b"USING":
            return error_of(line)
        if not is_name(name):
            nonsense(line)
        return name.decode("ascii")


class JobReply(Reply[Any]):
    """A reply with a job and its body."""

    __slots__ = ("_reserves", "opening")

    def __init__(self, word: bytes, *, reserves: bool) -> None:
        self.opening = word + b" "
        self._reserves = reserves
        SUCCESSES.add(word)

    def read(self, line: bytes) -> Error:
        return error_of(line)

    def read_body(self, words: list[bytes], body: bytes, session: Session) -> Job[Any] | UndecodableError:
        if len(words) != 3:
            nonsense(b" ".join(words))
        job_id = number(words[1])
        epoch = 0
        if self._reserves:
            session.reserved.add(job_id)
            epoch = session.epoch
        if session.encoding is None:
            return Job(job_id, body, epoch)
        try:
            return Job(job_id, body.decode(session.encoding), epoch)
        except UnicodeError as error:
            return undecodable(error, Job(job_id, body, epoch))


def undecodable(error: UnicodeError, job: Job[bytes]) -> UndecodableError:
    """The error that a job has for a result whose body cannot be decoded."""
    if isinstance(error, UnicodeDecodeError):
        found = UndecodableError(error.encoding, job.body, error.start, error.end, error.reason)
    else:  # some encodings do not say where
        found = UndecodableError("unicode", job.body, 0, len(job.body), str(error))
    found.jobs = [job]
    return found


def batch_of(results: Iterable[Any]) -> list[Job[Any]] | UndecodableError:
    """The jobs of a batch; or the first error of one that cannot be decoded, which has all of them."""
    jobs: list[Job[Any]] = []
    error: UndecodableError | None = None
    for result in results:
        if isinstance(result, Job):
            jobs.append(result)
        elif isinstance(result, UndecodableError):
            jobs += result.jobs
            error = error or result
    if error is None:
        return jobs
    error.jobs = jobs
    return error


class Document(Reply[T]):
    """A reply with a text, from which something is read."""

    __slots__ = ("_read",)

    opening = b"OK "

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._read = read

    def read(self, line: bytes) -> Error:
        return error_of(line)

    def read_body(self, words: list[bytes], body: bytes, session: Session) -> T:
        if len(words) != 2:
            nonsense(b" ".join(words))
        return self._read(body)  # a ValueError is nonsense too


class Batch(Reply[Any]):
    """A reply that says how many replies with jobs follow."""

    __slots__ = ()

    is_batch = True
    word: Final = b"RESERVED_BATCH "

    def read(self, line: bytes) -> int | Error:
        """How many jobs follow, or the error."""
        if not line.startswith(self.word):
            return _unknown_if_misread(line)
        count = number(line[len(self.word) :])
        return count if 0 < count <= MAX_BATCH else nonsense(line)


class TubePage(Document[T]):
    """The reply to stats-tubes."""

    __slots__ = ()

    def read(self, line: bytes) -> Error:
        return _unknown_if_misread(line)


def _unknown_if_misread(line: bytes) -> Error:
    """The error of a command that beanstalkd misreads, and that is never sent malformed."""
    return UnknownCommandError() if line == b"BAD_FORMAT" else error_of(line)


SUCCESSES: Final[set[bytes]] = {b"OK", b"USING", b"RESERVED_BATCH"}
"""The first words of replies that are no errors: in reply to another command, they are nonsense."""

INSERTED: Final = Number(b"INSERTED")
INSERTED_OR_REPLACED: Final = Number(b"INSERTED", b"REPLACED")
RESERVED: Final = JobReply(b"RESERVED", reserves=True)
RESERVED_BATCH: Final = Batch()
FOUND: Final = JobReply(b"FOUND", reserves=False)
DELETED: Final = Word(b"DELETED")
RELEASED: Final = Word(b"RELEASED")
BURIED: Final = Word(b"BURIED")
TOUCHED: Final = Word(b"TOUCHED")
KICKED: Final = Number(b"KICKED")
JOB_KICKED: Final = Word(b"KICKED")
PAUSED: Final = Word(b"PAUSED")
USING: Final = Name()
WATCHING: Final = Number(b"WATCHING")
STATISTICS: Final = Document(statistics.read_statistics)
NAMES: Final = Document(statistics.read_names)
ENTRIES: Final = Document(statistics.read_entries)
PAGE: Final = Document(statistics.read_page)
TUBE_PAGE: Final = TubePage(statistics.read_page)
CANCELLED: Final = Word(b"CANCELLED")
RESCHEDULED: Final = Word(b"RESCHEDULED")
CLEARED: Final = Number(b"CLEARED")
REDRIVEN: Final = Number(b"REDRIVEN")
MOVED: Final = Number(b"MOVED")
DRAINED: Final = Word(b"DRAINING")
UNDRAINED: Final = Word(b"NOT_DRAINING")
AUTHENTICATED: Final = Word(b"AUTHENTICATED")
SUCCESSES.difference_update(REPLIES, [b"BURIED"])  # DRAINING and BURIED are both


class Command(Generic[T]):
    """A command that can be sent.

    Attributes:
        data: all that is sent, the body included.
        reply: how its reply is read.
        repeatable: it may be said again if the connection is lost before the reply: it changes nothing, or nothing more
            the second time.
        wait: the seconds for which the server is asked to wait before it replies; None: for ever.
        whole: if it has a fraction of a second, the same in whole seconds; otherwise None.
    """

    __slots__ = ("data", "repeatable", "reply", "wait", "whole")

    has_effect: bool = False
    """Whether a session must be told what has become of it."""

    def __init__(self, data: bytes, reply: Reply[T], repeatable: bool = False, wait: float | None = 0) -> None:
        self.data = data
        self.reply = reply
        self.repeatable = repeatable
        self.wait = wait
        self.whole: Command[T] | None = None

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

    def settle(self, result: T | Error, session: Session) -> None:
        """Tell the session what has become of it."""


class Ending(Command[None]):
    """A command that ends a reservation."""

    __slots__ = ("job_id",)

    has_effect = True

    def __init__(self, data: bytes, reply: Reply[None], job_id: int) -> None:
        self.data = data
        self.reply = reply
        self.repeatable = False
        self.wait = 0
        self.whole = None
        self.job_id = job_id

    def settle(self, result: Error | None, session: Session) -> None:
        if result is None or isinstance(result, (NotFoundError, BuriedError)):
            session.reserved.discard(self.job_id)


class Use(Command[str]):
    """A command that decides what later ones are about."""

    __slots__ = ()

    has_effect = True

    def settle(self, result: str | Error, session: Session) -> None:
        if isinstance(result, str):
            session.used = result


class Watch(Command[int]):
    """A command that watches a tube, or ignores it."""

    __slots__ = ("begins", "tube")

    has_effect = True

    def __init__(self, data: bytes, tube: str, begins: bool) -> None:
        super().__init__(data, WATCHING, True)
        self.tube = tube
        self.begins = begins

    def settle(self, result: int | Error, session: Session) -> None:
        if isinstance(result, int):
            if self.begins:
                session.watched[self.tube] = None
            else:
                session.watched.pop(self.tube, None)


class Probe(Command[Any]):
    """A command that is given without its arguments, to find out whether the server knows it: so it does nothing.

    To find out whether it knows fractions, a job that does not exist is released with one.
    """

    __slots__ = ("asked",)

    has_effect = True

    def __init__(self, asked: str) -> None:
        question = b"release 0 0 0.001\r\n" if asked == FRACTIONS else asked.encode("ascii") + b" -\r\n"
        super().__init__(question, DELETED, True)
        self.asked = asked

    def settle(self, result: Any, session: Session) -> None:
        if isinstance(result, REFUSALS):
            ignorance = BadFormatError if self.asked == FRACTIONS else UnknownCommandError
            session.known[self.asked] = not isinstance(result, ignorance)


class CountProbe(Command[Statistics]):
    """`stats`, to find out whether the server counts a command, and so knows it.

    A server that forbids it has users with rights: so it is beanstalk-server, of a version that knows all of COUNTED.
    """

    __slots__ = ("asked",)

    has_effect = True

    def __init__(self, asked: str) -> None:
        super().__init__(b"stats\r\n", STATISTICS, True)
        self.asked = asked

    def settle(self, result: Any, session: Session) -> None:
        if isinstance(result, ForbiddenError):
            session.known[self.asked] = True


REFUSALS: Final = (BadFormatError, ForbiddenError, NotFoundError, UnknownCommandError)
"""What a probe is answered."""


def error_of(line: bytes) -> Error:
    """The error that a reply stands for.

    Raises:
        NonsenseError: it stands for none.
    """
    known = REPLIES.get(line)
    if known is not None:
        return known()
    word, *values = line.split(b" ")
    if word == b"EXISTS":
        return ExistsError(number(b" ".join(values)))
    if word == b"BURIED" and len(values) < 2:
        return BuriedError(number(values[0]) if values else None)
    if word == b"TOO_LATE" and len(values) == 1 and number(values[0]):  # in reply to replace-keyed
        return REPLIES[word]()
    if word in SUCCESSES or word in REPLIES or not (word.isalpha() or word.replace(b"_", b"").isalpha()):
        nonsense(line)
    if not (word.isupper() and line.isascii() and line.decode("ascii").isprintable()):
        nonsense(line)
    return UnknownResponseError(word, values)


def number(digits: bytes) -> int:
    """A number of a reply."""
    return int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else nonsense(digits)


def nonsense(line: bytes) -> NoReturn:
    """Give up reading a reply."""
    raise NonsenseError(line[:80].decode("ascii", "backslashreplace"))


def is_name(name: bytes) -> bool:
    """Whether this is a name of a tube, or a key."""
    return 0 < len(name) <= MAX_NAME and name[0] != 0x2D and NAME.issuperset(name)


def _name(name: str, what: str = "tube") -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"{what} is {name!r}: must be a text")
    data = name.encode("utf-8", "replace")
    if not is_name(data):
        raise ValueError(
            f"bad {what} {name[: MAX_NAME + 1]!r}: must be 1 to {MAX_NAME} of A-Z a-z 0-9 - + / ; . $ _ ( ), "
            "the first not a hyphen"
        )
    return data


def _id(id: int) -> int:
    if type(id) is not int or not 0 <= id <= MAX_ID:
        within("id", id, MAX_ID)
    return id


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
    """The seconds of a duration, whatever their number.

    Raises:
        TypeError, ValueError: it is no duration.
    """
    if isinstance(duration, datetime.timedelta):
        return duration.total_seconds()
    if hasattr(duration, "__float__"):
        return cast(float, duration)
    right = 'must be seconds, a timedelta, or as "90s", "15m", "24h", "30d"'
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


def unix_time_of(at: float | datetime.datetime) -> float:
    """The Unix time of a moment.

    Raises:
        TypeError: it is none.
    """
    if isinstance(at, datetime.datetime):
        return at.timestamp()
    if not hasattr(at, "__float__"):
        raise TypeError(f"at is {at!r}: must be a datetime, or Unix time")
    return at


def _moment(at: float | datetime.datetime) -> bytes:
    """Unix time, with nanoseconds."""
    return b"%.9f" % _between("at", unix_time_of(at), MAX_SECONDS)


# Jobs: put, reserve, and what becomes of them


def put(
    body: bytes, priority: int = DEFAULT_PRIORITY, delay: Duration = DEFAULT_DELAY, ttr: Duration = DEFAULT_TTR
) -> Command[int]:
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        within("priority", priority, MAX_PRIORITY)
    if type(delay) is int and type(ttr) is int and 0 <= delay <= MAX_SECONDS and 0 <= ttr <= MAX_SECONDS:
        return Command(b"put %d %d %d %d\r\n%b\r\n" % (priority, delay, ttr, len(body), body), INSERTED)
    delay, ttr = seconds_of(delay, "delay"), seconds_of(ttr, "ttr")
    command: Command[int] = Command(_put(b"put", body, priority, delay, ttr), INSERTED)
    if not (_is_whole(delay) and _is_whole(ttr)):
        command.whole = put(body, priority, math.ceil(delay), math.ceil(ttr))
    return command


def put_keyed(
    key: str,
    body: bytes,
    priority: int = DEFAULT_PRIORITY,
    delay: Duration = DEFAULT_DELAY,
    ttr: Duration = DEFAULT_TTR,
) -> Command[int]:
    return Command(_put(b"put-keyed %b" % _name(key, "key"), body, priority, delay, ttr), INSERTED)


def replace_keyed(
    key: str,
    body: bytes,
    priority: int = DEFAULT_PRIORITY,
    delay: Duration = DEFAULT_DELAY,
    ttr: Duration = DEFAULT_TTR,
) -> Command[int]:
    return Command(_put(b"replace-keyed %b" % _name(key, "key"), body, priority, delay, ttr), INSERTED_OR_REPLACED)


def put_with(
    body: bytes,
    priority: int = DEFAULT_PRIORITY,
    delay: Duration = DEFAULT_DELAY,
    ttr: Duration = DEFAULT_TTR,
    *,
    key: str = "",
    replace: bool = False,
    at: float | datetime.datetime | None = None,
    tries: int = 0,
    backoff: Duration | None = 0,
    ttl: Duration | None = 0,
    hold: Duration | None = 0,
) -> Command[int]:
    delay, hold = seconds_of(delay, "delay"), seconds_of(0 if hold is None else hold, "hold")
    if (replace or hold) and not key:
        raise ValueError("replace and hold are about a key: it must be given")
    if at is not None and delay:
        raise ValueError("at and delay: only one of them may be given")
    attributes = [b" key=%b" % _name(key, "key")] if key else []
    if replace:
        attributes.append(b" replace=1")
    if at is not None:
        attributes.append(b" at=%b" % _moment(at))
    if tries:
        attributes.append(b" tries=%d" % within("tries", tries, MAX_SECONDS))
    for name, duration in (("backoff", backoff), ("ttl", ttl), ("hold", hold)):
        if duration is not None and seconds_of(duration, name):
            attributes.append(b" %b=%b" % (name.encode(), seconds(name, duration)))
    return Command(_put(b"put-with", body, priority, delay, ttr, b"".join(attributes)), INSERTED_OR_REPLACED)


def _put(command: bytes, body: bytes, priority: int, delay: Duration, ttr: Duration, attributes: bytes = b"") -> bytes:
    within("priority", priority, MAX_PRIORITY)
    arguments = (command, priority, seconds("delay", delay), seconds("ttr", ttr), len(body), attributes, body)
    return b"%b %d %b %b %d%b\r\n%b\r\n" % arguments


def cancel(id: int) -> Command[None]:
    return Command(b"cancel %d\r\n" % _id(id), CANCELLED)


def cancel_keyed(key: str) -> Command[None]:
    return Command(b"cancel-keyed %b\r\n" % _name(key, "key"), CANCELLED)


def reschedule(id: int, delay: Duration) -> Command[None]:
    return Command(b"reschedule %d %b\r\n" % (_id(id), seconds("delay", delay)), RESCHEDULED)


def reschedule_keyed(key: str, delay: Duration) -> Command[None]:
    return Command(b"reschedule-keyed %b %b\r\n" % (_name(key, "key"), seconds("delay", delay)), RESCHEDULED)


RESERVE: Final[Command[Any]] = Command(b"reserve\r\n", RESERVED, True, None)


def reserve(timeout: Duration | None = None) -> Command[Job[Any]]:
    if timeout is None:
        return RESERVE
    timeout = seconds_of(timeout, "timeout")
    wait = seconds("timeout", timeout, MAX_TIMEOUT)
    command: Command[Job[Any]] = Command(b"reserve-with-timeout %b\r\n" % wait, RESERVED, True, timeout)
    if not _is_whole(timeout):
        command.whole = reserve(math.ceil(timeout))
    return command


def reserve_job(id: int) -> Command[Job[Any]]:
    return Command(b"reserve-job %d\r\n" % _id(id), RESERVED, True)


def reserve_batch(limit: int, timeout: Duration | None = None) -> Command[list[Job[Any]]]:
    timeout = None if timeout is None else seconds_of(timeout, "timeout")
    wait = seconds("timeout", MAX_TIMEOUT if timeout is None else timeout, MAX_TIMEOUT)
    return Command(
        b"reserve-batch %d %b\r\n" % (within("limit", limit, MAX_PRIORITY, 1), wait), RESERVED_BATCH, True, timeout
    )


def delete(id: int) -> Command[None]:
    if type(id) is not int or not 0 <= id <= MAX_ID:
        within("id", id, MAX_ID)
    return Ending(b"delete %d\r\n" % id, DELETED, id)


def release(id: int, priority: int | None = None, delay: Duration = DEFAULT_DELAY) -> Command[None]:
    priority = DEFAULT_PRIORITY if priority is None else within("priority", priority, MAX_PRIORITY)
    delay = seconds_of(delay, "delay")
    command = Ending(b"release %d %d %b\r\n" % (_id(id), priority, seconds("delay", delay)), RELEASED, id)
    if not _is_whole(delay):
        command.whole = release(id, priority, math.ceil(delay))
    return command


def bury(id: int, priority: int | None = None) -> Command[None]:
    priority = DEFAULT_PRIORITY if priority is None else within("priority", priority, MAX_PRIORITY)
    return Ending(b"bury %d %d\r\n" % (_id(id), priority), BURIED, id)


def touch(id: int) -> Command[None]:
    return Command(b"touch %d\r\n" % _id(id), TOUCHED)


def kick(limit: int) -> Command[int]:
    return Command(b"kick %d\r\n" % within("limit", limit, MAX_PRIORITY), KICKED)


def kick_job(id: int) -> Command[None]:
    return Command(b"kick-job %d\r\n" % _id(id), JOB_KICKED)


def peek(id: int) -> Command[Job[Any]]:
    return Command(b"peek %d\r\n" % _id(id), FOUND, True)


def peek_ready() -> Command[Job[Any]]:
    return Command(b"peek-ready\r\n", FOUND, True)


def peek_delayed() -> Command[Job[Any]]:
    return Command(b"peek-delayed\r\n", FOUND, True)


def peek_buried() -> Command[Job[Any]]:
    return Command(b"peek-buried\r\n", FOUND, True)


def peek_keyed(key: str) -> Command[Job[Any]]:
    return Command(b"peek-keyed %b\r\n" % _name(key, "key"), FOUND, True)


# Tubes


def use(tube: str) -> Command[str]:
    return Use(b"use %b\r\n" % _name(tube), USING, True)


def using() -> Command[str]:
    return Command(b"list-tube-used\r\n", USING, True)


def watch(tube: str) -> Command[int]:
    return Watch(b"watch %b\r\n" % _name(tube), tube, True)


def ignore(tube: str) -> Command[int]:
    return Watch(b"ignore %b\r\n" % _name(tube), tube, False)


def watching() -> Command[list[str]]:
    return Command(b"list-tubes-watched\r\n", NAMES, True)


def tubes() -> Command[list[str]]:
    return Command(b"list-tubes\r\n", NAMES, True)


def pause_tube(tube: str, delay: Duration) -> Command[None]:
    delay = seconds_of(delay, "delay")
    command: Command[None] = Command(b"pause-tube %b %b\r\n" % (_name(tube), seconds("delay", delay)), PAUSED, True)
    if not _is_whole(delay):
        command.whole = pause_tube(tube, math.ceil(delay))
    return command


def clear_tube(tube: str) -> Command[int]:
    return Command(b"clear-tube %b\r\n" % _name(tube), CLEARED)


def redrive(tube: str, limit: int) -> Command[int]:
    return Command(b"redrive %b %d\r\n" % (_name(tube), within("limit", limit, MAX_PRIORITY, 1)), REDRIVEN)


def move_jobs(tube: str, state: str, target: str, limit: int) -> Command[int]:
    words = (_name(tube), _state(state, MOVED_STATES), _name(target), within("limit", limit, MAX_PRIORITY, 1))
    return Command(b"move-jobs %b %b %b %d\r\n" % words, MOVED)


STATES: Final = ("ready", "delayed", "reserved", "buried")
MOVED_STATES: Final = ("ready", "delayed", "buried")


def _state(state: str, states: Collection[str] = STATES) -> bytes:
    if state not in states:
        raise ValueError(f"bad state {state!r}: must be one of {', '.join(states)}")
    return state.encode("ascii")


# Statistics and lists


def stats() -> Command[Statistics]:
    return Command(b"stats\r\n", STATISTICS, True)


def stats_job(id: int) -> Command[Statistics]:
    return Command(b"stats-job %d\r\n" % _id(id), STATISTICS, True)


def stats_tube(tube: str) -> Command[Statistics]:
    return Command(b"stats-tube %b\r\n" % _name(tube), STATISTICS, True)


def list_jobs(
    tube: str, state: str = "ready", following: str = "0", limit: int = PAGE_ENTRIES
) -> Command[tuple[str, list[Statistics]]]:
    """A page of jobs, from `following` on; with it, where the next one begins ("" if there is none)."""
    if not following.isascii() or not following.replace("-", "").isdigit():
        raise ValueError(f"bad position {following!r}: must be 0, or what the page before has said")
    words = (_name(tube), _state(state), following.encode("ascii"), within("limit", limit, PAGE_ENTRIES, 1))
    return Command(b"list-jobs %b %b %b %d\r\n" % words, PAGE, True)


def stats_tubes(following: str = "", limit: int = PAGE_ENTRIES) -> Command[tuple[str, list[Statistics]]]:
    """A page of tubes, from `following` on; with it, where the next one begins ("" if there is none)."""
    first = _name(following) if following else b"-"
    return Command(b"stats-tubes %b %d\r\n" % (first, within("limit", limit, PAGE_ENTRIES, 1)), TUBE_PAGE, True)


def list_clients() -> Command[list[Statistics]]:
    return Command(b"list-clients\r\n", ENTRIES, True)


# The connection and the server


def auth(token: str) -> Command[None]:
    """Never to be shown: it holds the token."""
    if not is_token(token):
        raise ValueError("a token is one word of printable ASCII characters")  # and does not belong in a message
    return Command(b"auth %b\r\n" % token.encode("ascii"), AUTHENTICATED, True)


def is_token(token: str) -> bool:
    """Whether this can be sent as a token: which ones are valid, the server knows."""
    return bool(token) and token.isascii() and TOKEN.issuperset(token.encode("ascii"))


def probe(command: str) -> Command[Any]:
    """Asks whether the server knows a command of EXTENSIONS, or FRACTIONS; either way, the reply is an error."""
    if command not in EXTENSIONS and command != FRACTIONS:
        raise ValueError(f"{command!r} is no command that some servers have and others lack")
    return Probe(command)


def drain() -> Command[None]:
    return Command(b"drain\r\n", DRAINED, True)


def undrain() -> Command[None]:
    return Command(b"undrain\r\n", UNDRAINED, True)
