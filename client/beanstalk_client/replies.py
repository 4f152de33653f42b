"""How replies are read: each kind of reply makes a result or an error of its line and its body.

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

from collections.abc import Iterable
from typing import Any, Callable, Final, Generic, NoReturn, Protocol, TypeVar

from beanstalk_client.errors import (
    REPLIES,
    BuriedError,
    ConnectionLostError,
    Error,
    ExistsError,
    TimedOutError,
    UndecodableError,
    UnknownCommandError,
    UnknownResponseError,
)
from beanstalk_client.job import Job, Origin

T = TypeVar("T")

MAX_DIGITS: Final = 20
"""The most digits of a number in a reply: an id has 64 bits."""

MAX_BODY: Final = 1 << 30
"""Bytes of a reply's body: servers take no larger job, and a reply that announces more makes no sense."""

MAX_BATCH: Final = 512
"""The most jobs of a batch."""

MAX_IDS: Final = 1000
"""The most ids of a reply."""

MAX_NAME: Final = 200
NAME: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-+/;.$_()")


class Notes(Protocol):
    """What a session notes of replies (session.py)."""

    encoding: str | None
    origin: Origin
    reserved: set[int]
    used: str
    watched: dict[str, int | None]
    mode: str
    name: str | None
    known: dict[str, bool]


class NonsenseError(ValueError):
    """A reply that no server gives to this command: what follows cannot be told either."""


class Reading(Generic[T]):
    """How the reply to a command is read."""

    opening: bytes = b""
    """How the line of a reply begins that has a body; empty if none has."""

    is_batch: bool = False
    """Whether its line counts replies that follow."""

    def read(self, line: bytes) -> Any:
        """The result, or the error, of a reply without a body."""
        raise NotImplementedError

    def read_body(self, words: list[bytes], body: bytes, session: Notes) -> Any:
        """The result of a reply with a body, from the words of its line."""
        raise NotImplementedError


class Word(Reading[None]):
    """A reply that says only that it was done."""

    def __init__(self, word: bytes) -> None:
        self._word = word
        SUCCESSES.add(word)

    def read(self, line: bytes) -> Error | None:
        return None if line == self._word else error_of(line)


class Number(Reading[int]):
    """A reply with a number behind one of several words."""

    def __init__(self, first: bytes, *others: bytes) -> None:
        self._first = first + b" "
        self._size = len(self._first)
        self._others = others
        SUCCESSES.update((first, *others))

    def read(self, line: bytes) -> int | Error:
        if line.startswith(self._first):
            digits = line[self._size :]
            return int(digits) if digits.isdigit() and len(digits) <= MAX_DIGITS else nonsense(line)
        word, _, digits = line.partition(b" ")
        return number(digits) if word in self._others else error_of(line)


class Counts(Reading["tuple[int, int]"]):
    """A reply that counts the jobs of a batch: how many, and how many were not found."""

    def __init__(self, word: bytes) -> None:
        self._word = word
        SUCCESSES.add(word)

    def read(self, line: bytes) -> tuple[int, int] | Error:
        words = line.split(b" ")
        if words[0] != self._word:
            return error_of(line)
        return (number(words[1]), number(words[2])) if len(words) == 3 else nonsense(line)


class Ids(Reading["list[int]"]):
    """A reply with the first and the last id of several jobs, and how many there are: they are evenly spaced."""

    def read(self, line: bytes) -> list[int] | Error:
        word, *numbers = line.split(b" ")
        if word != b"INSERTED_BATCH":
            return error_of(line)
        if len(numbers) != 3:
            nonsense(line)
        count, first, last = map(number, numbers)
        step = (last - first) // (count - 1) if count > 1 else 1
        ids = list(range(first, last + 1, step)) if step > 0 and count <= MAX_IDS else []
        return ids if len(ids) == count else nonsense(line)


class Mode(Reading[None]):
    """The reply to reserve-mode."""

    def read(self, line: bytes) -> Error | None:
        return None if line.startswith(b"RESERVE_MODE ") else _unknown_if_misread(line)


class Name(Reading[str]):
    """A reply with a tube's name."""

    def read(self, line: bytes) -> str | Error:
        word, _, name = line.partition(b" ")
        if word != b"USING":
            return error_of(line)
        if not is_name(name):
            nonsense(line)
        return name.decode("ascii")


class JobReply(Reading[Any]):
    """A reply with a job and its body."""

    def __init__(self, word: bytes, *, reserves: bool) -> None:
        self.opening: bytes = word + b" "
        self._reserves = reserves
        SUCCESSES.add(word)

    def read(self, line: bytes) -> Error:
        return TimedOutError() if line == b"CANCELLED" and self._reserves else error_of(line)

    def read_body(self, words: list[bytes], body: bytes, session: Notes) -> Job[Any] | UndecodableError:
        if len(words) != 3:
            nonsense(b" ".join(words))
        job_id = number(words[1])
        origin, reserves = session.origin, self._reserves
        if reserves:
            session.reserved.add(job_id)
        if session.encoding is None:
            return Job(job_id, body, origin, reserves)
        try:
            return Job(job_id, body.decode(session.encoding), origin, reserves)
        except UnicodeError as error:
            return undecodable(error, Job(job_id, body, origin, reserves))


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


def jobs_of(results: Iterable[Any]) -> list[Job[Any]]:
    """The jobs of a batch that was reserved one by one: any error but these says that there are no more.

    Raises:
        ConnectionLostError: with the connection, they have all gone back.
        UndecodableError: a body cannot be decoded; it has all of them.
    """
    found = list(results)
    for result in found:
        if isinstance(result, ConnectionLostError):
            raise result
    jobs = batch_of(found)
    if isinstance(jobs, UndecodableError):
        raise jobs
    return jobs


class Document(Reading[T]):
    """A reply with a text, from which something is read."""

    opening = b"OK "

    def __init__(self, read: Callable[[bytes], T]) -> None:
        self._read = read

    def read(self, line: bytes) -> Error:
        return error_of(line)

    def read_body(self, words: list[bytes], body: bytes, session: Notes) -> T:
        if len(words) != 2:
            nonsense(b" ".join(words))
        return self._read(body)  # a ValueError is nonsense too


class Batch(Reading[Any]):
    """A reply that says how many replies with jobs follow."""

    is_batch = True
    word: Final = b"RESERVED_BATCH "

    def read(self, line: bytes) -> int | Error:
        """How many jobs follow, or the error."""
        if line == b"CANCELLED":
            return TimedOutError()
        if not line.startswith(self.word):
            return _unknown_if_misread(line)
        count = number(line[len(self.word) :])
        return count if 0 < count <= MAX_BATCH else nonsense(line)


class TubePage(Document[T]):
    """The reply to stats-tubes."""

    def read(self, line: bytes) -> Error:
        return _unknown_if_misread(line)


def _unknown_if_misread(line: bytes) -> Error:
    """The error of a command that beanstalkd misreads, and that is never sent malformed."""
    return UnknownCommandError() if line == b"BAD_FORMAT" else error_of(line)


SUCCESSES: Final[set[bytes]] = {b"OK", b"USING", b"RESERVED_BATCH", b"INSERTED_BATCH", b"RESERVE_MODE"}
"""The first words of replies that are no errors: in reply to another command, they are nonsense."""

RESERVED: Final = JobReply(b"RESERVED", reserves=True)


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


def is_name(text: bytes | str) -> bool:
    """Whether this is a name of a tube, or a key."""
    name = text.encode("utf-8", "replace") if isinstance(text, str) else text
    return 0 < len(name) <= MAX_NAME and name[0] != 0x2D and NAME.issuperset(name)
