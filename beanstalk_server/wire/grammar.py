r"""The commands and replies of the beanstalk protocol as bytes.

Source of every rule: beanstalkd 1.13, doc/protocol.txt, and where that is silent what the program does. A line is
given without its CR LF, the arguments of a command without its name and the space behind it. What is not well-formed
gives None or a negative number, never an exception.

    durations are numbers of seconds, and here may have a fraction of one to three digits: `put 0 0.25 60 5`
    numbers   one or more digits, any spaces before them, no sign: `delete   7` is well-formed, `delete +7` is not
    names     1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ), the first not a hyphen; no spaces before them, but for
              pause-tube
    the end   is the end of the line, but for kick and reserve-with-timeout, which ignore what follows their number
    kick      reads its number as C's strtoul does: white space, a sign (minus wraps around), modulo 2^32

Must never know what a command does.
"""

from __future__ import annotations

import re
from typing import Final

LONG_COMMANDS: Final = (b"put-keyed ", b"replace-keyed ", b"reschedule-keyed ")
"""How the commands begin whose line may be as long as framing.EXTENDED_LINE_LIMIT."""

CHANGES: Final = (
    b"release ",
    b"bury ",
    b"kick ",
    b"kick-job ",
    b"reserve-job ",
    b"reschedule ",
    b"reschedule-keyed ",
)
DELETIONS: Final = (b"delete ", b"cancel ", b"cancel-keyed ", b"clear-tube ")
"""How the commands begin that the journal may have to be told of; a put is told when its body has come."""

STATISTICS: Final = 0x73
"""An "s": how the commands begin that tell statistics, and no others."""

MAX_U32: Final = 2**32 - 1
MAX_U64: Final = 2**64 - 1
MAX_TIMEOUT: Final = 2**31 - 1
"""The longest timeout of reserve-with-timeout, in seconds; a longer one is BAD_FORMAT."""

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
"""Nanoseconds in the unit of delay, ttr, timeout and pause."""

COMMANDS: Final = (
    "put",
    "peek",
    "peek-ready",
    "peek-delayed",
    "peek-buried",
    "reserve",
    "reserve-with-timeout",
    "delete",
    "release",
    "use",
    "watch",
    "ignore",
    "bury",
    "kick",
    "touch",
    "stats",
    "stats-job",
    "stats-tube",
    "list-tubes",
    "list-tube-used",
    "list-tubes-watched",
    "pause-tube",
)
"""The commands that stats counts, in its order (it does not count kick-job, reserve-job and quit)."""

EXTENSIONS: Final = (
    "put-keyed",
    "replace-keyed",
    "cancel",
    "cancel-keyed",
    "reschedule",
    "reschedule-keyed",
    "peek-keyed",
    "reserve-batch",
    "clear-tube",
)
"""The commands that beanstalkd does not have (docs/protocol-extensions.md); stats counts them behind all its keys."""

# The index of each in COMMANDS + EXTENSIONS.
PUT: Final = 0
PEEK: Final = 1
PEEK_READY: Final = 2
PEEK_DELAYED: Final = 3
PEEK_BURIED: Final = 4
RESERVE: Final = 5
RESERVE_WITH_TIMEOUT: Final = 6
DELETE: Final = 7
RELEASE: Final = 8
USE: Final = 9
WATCH: Final = 10
IGNORE: Final = 11
BURY: Final = 12
KICK: Final = 13
TOUCH: Final = 14
STATS: Final = 15
STATS_JOB: Final = 16
STATS_TUBE: Final = 17
LIST_TUBES: Final = 18
LIST_TUBE_USED: Final = 19
LIST_TUBES_WATCHED: Final = 20
PAUSE_TUBE: Final = 21
PUT_KEYED: Final = 22
REPLACE_KEYED: Final = 23
CANCEL: Final = 24
CANCEL_KEYED: Final = 25
RESCHEDULE: Final = 26
RESCHEDULE_KEYED: Final = 27
PEEK_KEYED: Final = 28
RESERVE_BATCH: Final = 29
CLEAR_TUBE: Final = 30

BAD_FORMAT: Final = b"BAD_FORMAT\r\n"
BURIED: Final = b"BURIED\r\n"
CANCELLED: Final = b"CANCELLED\r\n"
DEADLINE_SOON: Final = b"DEADLINE_SOON\r\n"
DELETED: Final = b"DELETED\r\n"
DRAINING: Final = b"DRAINING\r\n"
EXPECTED_CRLF: Final = b"EXPECTED_CRLF\r\n"
INTERNAL_ERROR: Final = b"INTERNAL_ERROR\r\n"
JOB_TOO_BIG: Final = b"JOB_TOO_BIG\r\n"
KICKED: Final = b"KICKED\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
NOT_IGNORED: Final = b"NOT_IGNORED\r\n"
OUT_OF_MEMORY: Final = b"OUT_OF_MEMORY\r\n"
PAUSED: Final = b"PAUSED\r\n"
RELEASED: Final = b"RELEASED\r\n"
RESCHEDULED: Final = b"RESCHEDULED\r\n"
TIMED_OUT: Final = b"TIMED_OUT\r\n"
TOO_LATE: Final = b"TOO_LATE\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
UNKNOWN_COMMAND: Final = b"UNKNOWN_COMMAND\r\n"

_SECONDS: Final = rb"(\d+(?:\.\d{1,3})?)"
_KEY: Final = rb"([A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199})"
_PUT_ARGUMENTS: Final = rb" *(\d+) +" + _SECONDS + rb" +" + _SECONDS + rb" +(\d+)(.*)"
_PUT: Final = re.compile(_PUT_ARGUMENTS, re.DOTALL)
_PUT_KEYED: Final = re.compile(_KEY + rb" " + _PUT_ARGUMENTS, re.DOTALL)
_RELEASE: Final = re.compile(rb" *(\d+) +(\d+) +" + _SECONDS)
_BURY: Final = re.compile(rb" *(\d+) +(\d+)")
_NUMBER_AND_SECONDS: Final = re.compile(rb" *(\d+) +" + _SECONDS)
_KEY_AND_SECONDS: Final = re.compile(_KEY + rb" +" + _SECONDS)
_LEADING_SECONDS: Final = re.compile(rb" *" + _SECONDS)
_KICK: Final = re.compile(rb"[ \t\n\v\f\r]*([-+]?)(\d+)")
_NAME: Final = re.compile(_KEY)
_PAUSE: Final = re.compile(rb" *([-A-Za-z0-9+/;.$_()]+) +" + _SECONDS)

_TAKE_NO_ARGUMENT: Final = (
    b"peek-ready",
    b"peek-delayed",
    b"peek-buried",
    b"reserve",
    b"stats",
    b"list-tube-used",
    b"list-tubes",
)


KNOWN: Final = 4096
"""How many numbers, and as many durations, are kept by their digits.

An application uses few priorities, delays and sizes, over and over: finding one again costs less than reading it, and a
million jobs with the same delay share one number.
"""

_numbers: Final[dict[bytes, int]] = {}
_durations: Final[dict[bytes, int]] = {}


def parse_u32(digits: bytes) -> int:
    """A number below 2^32 from its digits; -1 when it is not."""
    number = _numbers.get(digits, -1)
    if number < 0:
        number = int(digits)
        if number > MAX_U32:
            return -1
        if len(_numbers) >= KNOWN:
            _numbers.clear()
        _numbers[digits] = number
    return number


def parse_duration(digits: bytes) -> int:
    """A number of seconds below 2^32 from its digits, in nanoseconds; -1 when it is not."""
    duration = _durations.get(digits, -1)
    if duration < 0:
        duration = _nanoseconds(digits, MAX_U32)
        if duration < 0:
            return -1
        if len(_durations) >= KNOWN:
            _durations.clear()
        _durations[digits] = duration
    return duration


def _nanoseconds(digits: bytes, limit: int) -> int:
    whole, _, fraction = digits.partition(b".")
    seconds = int(whole)
    if seconds > limit:
        return -1
    return seconds * SECOND + int(fraction.ljust(3, b"0")) * MILLISECOND


def parse_id(arguments: bytes) -> int:
    """The only argument of delete, peek, touch, kick-job, reserve-job and stats-job."""
    if not arguments.isdigit():
        arguments = arguments.lstrip(b" ")
        if not arguments.isdigit():
            return -1
    number = int(arguments)
    return number if number <= MAX_U64 else -1


class Put:
    """The arguments of put, put-keyed and replace-keyed.

    `trailing` is what follows them: refused, unless the body is too big anyway. `key` is "" for put.
    """

    __slots__ = ("delay", "key", "priority", "replaces", "size", "trailing", "ttr")

    def __init__(
        self, key: str, replaces: bool, priority: int, delay: int, ttr: int, size: int, trailing: bytes
    ) -> None:
        self.key = key
        self.replaces = replaces
        self.priority = priority
        self.delay = delay
        self.ttr = ttr
        self.size = size
        self.trailing = trailing


def parse_put(arguments: bytes) -> Put | None:
    words = arguments.split(b" ")
    if len(words) == 4:  # four numbers, as clients send them; the pattern takes four times as long
        priority, delay, ttr, size = _number(words[0]), _duration(words[1]), _duration(words[2]), _number(words[3])
        if priority >= 0 and delay >= 0 and ttr >= 0 and size >= 0:
            return Put("", False, priority, delay, ttr, size, b"")
    match = _PUT.fullmatch(arguments)
    if match is None:
        return None
    first, second, third, fourth, trailing = match.groups()
    return _put("", False, first, second, third, fourth, trailing)


def _number(word: bytes) -> int:
    """A number below 2^32; -1 when the word is not simply that."""
    number = _numbers.get(word, -1)
    return number if number >= 0 else parse_u32(word) if word.isdigit() else -1


def _duration(word: bytes) -> int:
    """A whole number of seconds below 2^32, in nanoseconds; -1 when the word is not simply that."""
    duration = _durations.get(word, -1)
    return duration if duration >= 0 else parse_duration(word) if word.isdigit() else -1


def parse_put_keyed(arguments: bytes, replaces: bool) -> Put | None:
    """The arguments of put-keyed, or of replace-keyed."""
    match = _PUT_KEYED.fullmatch(arguments)
    if match is None:
        return None
    key, priority, delay, ttr, size, trailing = match.groups()
    return _put(key.decode("ascii"), replaces, priority, delay, ttr, size, trailing)


def _put(
    key: str, replaces: bool, priority: bytes, delay: bytes, ttr: bytes, size: bytes, trailing: bytes
) -> Put | None:
    put = Put(key, replaces, parse_u32(priority), parse_duration(delay), parse_duration(ttr), parse_u32(size), trailing)
    if put.priority < 0 or put.delay < 0 or put.ttr < 0 or put.size < 0:
        return None
    return put


def parse_release(arguments: bytes) -> tuple[int, int, int] | None:
    """Id, priority, and delay in nanoseconds."""
    match = _RELEASE.fullmatch(arguments)
    if match is None:
        return None
    number, priority, delay = parse_id(match[1]), parse_u32(match[2]), parse_duration(match[3])
    return None if number < 0 or priority < 0 or delay < 0 else (number, priority, delay)


def parse_bury(arguments: bytes) -> tuple[int, int] | None:
    """Id and priority."""
    match = _BURY.fullmatch(arguments)
    if match is None:
        return None
    number, priority = parse_id(match[1]), parse_u32(match[2])
    return None if number < 0 or priority < 0 else (number, priority)


def parse_kick(arguments: bytes) -> int:
    """The bound, as C's strtoul cut to 32 bits reads it: `kick -1` is 2^32-1."""
    match = _KICK.match(arguments)
    if match is None or b"\0" in arguments:
        return -1
    number = int(match[2])
    if number > MAX_U64:
        return -1
    return (-number if match[1] == b"-" else number) & MAX_U32


def parse_timeout(arguments: bytes) -> int:
    """The timeout of reserve-with-timeout, in nanoseconds."""
    match = _LEADING_SECONDS.match(arguments)
    if match is None or b"\0" in arguments:
        return -1
    return _nanoseconds(match[1], MAX_TIMEOUT)


def parse_reschedule(arguments: bytes) -> tuple[int, int] | None:
    """Id, and delay in nanoseconds."""
    match = _NUMBER_AND_SECONDS.fullmatch(arguments)
    if match is None:
        return None
    number, delay = parse_id(match[1]), parse_duration(match[2])
    return None if number < 0 or delay < 0 else (number, delay)


def parse_reschedule_keyed(arguments: bytes) -> tuple[str, int] | None:
    """Key, and delay in nanoseconds."""
    match = _KEY_AND_SECONDS.fullmatch(arguments)
    if match is None:
        return None
    delay = parse_duration(match[2])
    return None if delay < 0 else (match[1].decode("ascii"), delay)


def parse_reserve_batch(arguments: bytes) -> tuple[int, int] | None:
    """The most jobs to reserve, one at least, and timeout in nanoseconds."""
    match = _NUMBER_AND_SECONDS.fullmatch(arguments)
    if match is None:
        return None
    limit, timeout = parse_u32(match[1]), _nanoseconds(match[2], MAX_TIMEOUT)
    return None if limit < 1 or timeout < 0 else (limit, timeout)


def parse_name(arguments: bytes) -> str | None:
    """The only argument of use, watch, ignore and stats-tube, and of the commands that take a key or a tube alone."""
    return arguments.decode("ascii") if _NAME.fullmatch(arguments) else None


def parse_pause(arguments: bytes) -> tuple[str | None, int] | None:
    """Tube and duration in nanoseconds. The name is None when it is not one: beanstalkd counts that as a command."""
    match = _PAUSE.fullmatch(arguments)
    if match is None:
        return None
    duration = parse_duration(match[2])
    return None if duration < 0 else (parse_name(match[1]), duration)


def refusal(line: bytes) -> bytes:
    """What to answer to a line that is no command: beanstalkd knows some of them by how they begin."""
    return BAD_FORMAT if b"\0" in line or line.startswith(_TAKE_NO_ARGUMENT) else UNKNOWN_COMMAND


def inserted(number: int) -> bytes:
    return b"INSERTED %d\r\n" % number


def reserved(number: int, body: bytes) -> bytes:
    return b"RESERVED %d %d\r\n%b\r\n" % (number, len(body), body)


def reserved_batch(jobs: list[tuple[int, bytes]]) -> bytes:
    return b"".join([b"RESERVED_BATCH %d\r\n" % len(jobs), *[reserved(number, body) for number, body in jobs]])


def exists(number: int) -> bytes:
    return b"EXISTS %d\r\n" % number


def replaced(number: int) -> bytes:
    return b"REPLACED %d\r\n" % number


def too_late(number: int) -> bytes:
    return b"TOO_LATE %d\r\n" % number


def cleared(count: int) -> bytes:
    return b"CLEARED %d\r\n" % count


def found(number: int, body: bytes) -> bytes:
    return b"FOUND %d %d\r\n%b\r\n" % (number, len(body), body)


def kicked(count: int) -> bytes:
    return b"KICKED %d\r\n" % count


def using(name: str) -> bytes:
    return b"USING %b\r\n" % name.encode("ascii")


def watching(count: int) -> bytes:
    return b"WATCHING %d\r\n" % count


def ok(yaml: bytes) -> bytes:
    """The answer to stats and list commands, around a YAML document."""
    return b"OK %d\r\n%b\r\n" % (len(yaml), yaml)
