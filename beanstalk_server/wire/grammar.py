r"""The grammar of the commands' arguments.

The source of every rule is doc/protocol.txt of beanstalkd 1.13 or, where that is silent, the program's behaviour. A
`text` is what follows the command and one space, without the CR LF. Malformed text gives False, None or a negative
number, never an exception.

    durations numbers of seconds, here with an optional fraction of one to three digits: `put 0 0.25 60 5`
    numbers   one or more digits, any spaces before them, no sign: `delete   7` is well-formed, `delete +7` is not
    names     1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ), the first not a hyphen; no spaces before them, except
              in pause-tube
    the end   is the end of the line, except for kick and reserve-with-timeout, which ignore what follows their number
    kick      reads its number as C's strtoul does: white space, a sign (minus wraps around), modulo 2^32
    put-with  has attributes behind its numbers, each a name, "=" and a value, with spaces before it, in any order
    states    of jobs are the words ready, delayed, reserved and buried
    cursors   are digits and hyphens: "0" for the beginning, else what a page of list-jobs has ended with
"""

from __future__ import annotations

import re
from typing import Final

from beanstalk_server.queue.job import NEW, STATES
from beanstalk_server.queue.job_search import POSITIONS
from beanstalk_server.queue.native import i64
from beanstalk_server.queue.policy import Attributes, Labels
from beanstalk_server.queue.units import FOREVER, MILLISECOND, SECOND
from beanstalk_server.queue.weights import MAX_WEIGHT, MODES, PRIORITY
from beanstalk_server.tube_names import NAME, home_of

MAX_U32: Final = 2**32 - 1
MAX_U64: Final = 2**64 - 1
MAX_I64: Final = 2**63 - 1
MAX_TIMEOUT: Final = 2**31 - 1
"""The longest timeout of a reserve, in seconds; a longer one is BAD_FORMAT."""

AUTH: Final = b"auth "
"""What a line that has a token begins with."""

_SECONDS: Final = rb"(\d+(?:\.\d{1,3})?)"
_KEY: Final = b"(" + NAME.encode() + b")"
_MOMENT: Final = re.compile(rb"(\d+)(?:\.(\d{1,9}))?")
_KEY_AND_SECONDS: Final = re.compile(_KEY + rb" +" + _SECONDS)
_STATE: Final = rb"(ready|delayed|reserved|buried)"
_CURSOR: Final = rb"(\d{1,20}(?:-\d{1,20}){0,3})"
_LIST_JOBS: Final = re.compile(_KEY + rb" +" + _STATE + rb" +" + _CURSOR + rb" +(\d+)")
_NAME_OR_HYPHEN_AND_NUMBER: Final = re.compile(rb"(?:-|" + _KEY + rb") +(\d+)")
_MOVE_JOBS: Final = re.compile(_KEY + rb" +(ready|delayed|buried) +" + _KEY + rb" +(\d+)")
_NAME_AND_NUMBER: Final = re.compile(_KEY + rb" +(\d+)")
_LEADING_SECONDS: Final = re.compile(rb" *" + _SECONDS)
_KICK: Final = re.compile(rb"[ \t\n\v\f\r]*([-+]?)(\d+)")
_NAME: Final = re.compile(_KEY)
_AWAIT: Final = re.compile(rb"(-1|\d+) (\d+)")
_TOKEN_FOLLOWS: Final = re.compile(rb"""\n|(?:auth|bearer)["']?\s""", re.IGNORECASE)
_PAUSE: Final = re.compile(rb" *([-A-Za-z0-9+/;.$_()]+) +" + _SECONDS)

_OLD_TIMEOUT: Final = re.compile(rb"[ \t\n\v\f\r]*([-+]?\d+)")

_SPACE: Final = 32
_DOT: Final = 46
_ZERO: Final = 48
_NINE: Final = 57


class Put:
    """The arguments of put, put-keyed, replace-keyed, put-with, put-batch and save. They last until the body has come.

    `attributes` are None for put and put-batch. `trailing` is what follows the arguments of put: it is refused, unless
    the body is too big anyway, as in beanstalkd.
    """

    def __init__(
        self, attributes: Attributes | None, priority: int, delay: int, ttr: int, size: int, trailing: bytes
    ) -> None:
        self.attributes = attributes
        self.priority = priority
        self.delay = delay
        self.ttr = ttr
        self.size = size
        self.trailing = trailing
        self.is_batch = False
        self.saves = -1  # the id of the job that gets the body; -1 if it is a put

    def is_extension(self) -> bool:
        """Whether beanstalkd does not have the command."""
        return self.is_batch or self.attributes is not None or self.saves >= 0

    def line(self) -> bytes:
        """A line that gives these arguments."""
        if self.saves >= 0:
            return b"save %d %d" % (self.saves, self.size)
        delay, ttr = write_duration(self.delay), write_duration(self.ttr)
        numbers = b"%d %b %b %d" % (self.priority, delay, ttr, self.size)
        attributes = self.attributes
        if attributes is None:
            return b"%b %b" % (b"put-batch" if self.is_batch else b"put", numbers)
        is_plain = not (attributes.ask_for_terms() or attributes.again or attributes.within or attributes.once)
        if attributes.key and is_plain:
            word = b"replace-keyed" if attributes.replaces else b"put-keyed"
            return b"%b %b %b" % (word, attributes.key.encode(), numbers)
        return b"put-with %b%b" % (numbers, _write_attributes(attributes))


class Arguments:
    """The arguments of one command. The function that reads them sets those that the command has, and no others."""

    def __init__(self) -> None:
        self.count = 0  # the most jobs to kick, redrive, reserve or list, or tubes to list
        self.duration = 0  # a delay, timeout or pause, in nanoseconds
        self.finish = 0  # the greatest one with which a tube has been served (queue/weights.py)
        self.ids: list[int] = []  # of jobs
        self.job_id = 0
        self.mode = PRIORITY  # how tubes are served: PRIORITY, WEIGHTED or FAIR
        self.name = ""  # of a tube, or a key
        self.position: list[int] = []  # where a page of jobs begins
        self.priority = 0
        self.put: Put | None = None
        self.state = NEW  # of jobs: READY, DELAYED, RESERVED or BURIED
        self.target = ""  # the name of a second tube, or of a group
        self.token = ""
        self.weight = 0  # of a tube; 0 if none is given


# Numbers and durations. A number ends only where no digit follows, so the next one has at least one space before it.

_HUGE: Final = 1 << 59
"""A number from here on is not read exactly: one more digit might not fit into 64 bits."""


def _digits(text: bytes, at: i64) -> tuple[i64, i64]:
    """The number that begins at this index, and the index where it ends. Instead of a number: -1 if there is none, and
    any from _HUGE on if it is that large."""
    number: i64 = 0
    end = at
    while end < len(text):
        byte: i64 = text[end]
        if byte < _ZERO or byte > _NINE:
            break
        if number < _HUGE:
            number = number * 10 + byte - _ZERO
        end += 1
    if end == at:
        number = -1
    return number, end


def _number_at(text: bytes, at: i64) -> tuple[i64, i64]:
    """The number below 2^32 at this index or behind the spaces there, or -1 if there is none; and where it ends."""
    number, end = _digits(text, _skip_spaces(text, at))
    if number > MAX_U32:
        number = -1
    return number, end


def _seconds_at(text: bytes, at: i64) -> tuple[i64, i64]:
    """Nanoseconds from the number of seconds at this index or behind the spaces there, or -1 if there is none; and
    where it ends. The number is below 2^32, with up to three digits behind a point."""
    duration, end = _number_at(text, at)
    if duration < 0:
        return duration, end
    duration *= SECOND
    if end < len(text) and text[end] == _DOT:
        start = end + 1
        fraction, end = _digits(text, start)
        if fraction < 0 or end > start + 3:
            return -1, end
        for _ in range(end, start + 3):
            fraction *= 10
        duration += fraction * MILLISECOND
    return duration, end


def _skip_spaces(text: bytes, at: i64) -> i64:
    while at < len(text) and text[at] == _SPACE:
        at += 1
    return at


def write_duration(duration: int) -> bytes:
    """A number of seconds, with a fraction if it is not whole, from nanoseconds; less than a millisecond is lost."""
    seconds, milliseconds = divmod(duration // MILLISECOND, 1000)
    return b"%d.%03d" % (seconds, milliseconds) if milliseconds else b"%d" % seconds


def _id_at(text: bytes, at: i64) -> tuple[int, i64]:
    """The id at this index or behind the spaces there, or -1 if there is none; and where it ends."""
    start = _skip_spaces(text, at)
    number, end = _digits(text, start)
    if number < _HUGE:
        return number, end
    job_id = int(text[start:end])
    return job_id if job_id <= MAX_U64 else -1, end


def parse_id(text: bytes, at: i64) -> int:
    """The job's id that the text has from this index on, and nothing else; -1 if it is malformed."""
    job_id, end = _id_at(text, at)
    return job_id if end == len(text) else -1


def _number(word: bytes) -> int:
    """A number below 2^32; -1 if the word is anything else."""
    number, end = _digits(word, 0)
    return number if number <= MAX_U32 and end == len(word) else -1


def _seconds(word: bytes) -> int:
    """Nanoseconds from a number of seconds below 2^32; -1 if the word is anything else."""
    if not word or word[0] == _SPACE:
        return -1
    duration, end = _seconds_at(word, 0)
    return duration if end == len(word) else -1


# Arguments of put, put-keyed, replace-keyed and put-with


def parse_put(text: bytes, at: i64) -> Put | None:
    """The arguments of put, which begin at this index."""
    priority, at = _number_at(text, at)
    delay, at = _seconds_at(text, at)
    ttr, at = _seconds_at(text, at)
    size, at = _number_at(text, at)
    if priority < 0 or delay < 0 or ttr < 0 or size < 0:
        return None
    trailing = b""
    if at < len(text):
        trailing = text[at:]
        if b"\0" in trailing:
            return None
    return Put(None, priority, delay, ttr, size, trailing)


def _put_keyed(text: bytes, replaces: bool) -> Put | None:
    key, space, numbers = text.partition(b" ")
    if not space or _NAME.fullmatch(key) is None:
        return None
    put = parse_put(numbers, 0)
    if put is None or put.trailing:
        return None
    put.attributes = Attributes(key=key.decode("ascii"), replaces=replaces)
    return put


def _put_with(text: bytes) -> Put | None:
    put = parse_put(text, 0)
    if put is None:
        return None
    attributes = put.attributes = _attributes(put.trailing)
    put.trailing = b""
    if attributes is None or (attributes.at and put.delay):
        return None  # a moment and a delay: one of them is too much
    labels = attributes.labels
    if labels is not None and labels.after and (attributes.at or attributes.within or labels.after == labels.group):
        return None  # likewise a moment and a group; and a job cannot wait for itself
    return put


def size_of_body(line: bytes) -> int:
    """The size of the body behind the malformed line of a put that beanstalkd does not have; -1 if it is uncertain.

    The size is certain if it is in its place: the fourth number of put-with and put-batch, if nothing follows that
    begins as a number; the last of the five words of put-keyed and replace-keyed, whose key may be malformed, and of
    the two of save.
    """
    words = line.split(b" ")
    if words[0].endswith(b"-keyed"):
        word = words[5] if len(words) == 6 else b""
    elif words[0] == b"save":
        word = words[2] if len(words) == 3 else b""
    else:
        words = line.split()
        word = words[4] if len(words) == 5 or (len(words) > 5 and words[5][0] not in _BEGINS_NUMBER) else b""
    if b"\r" in line or b"\n" in line:
        return -1  # it hides where the line was meant to end
    return _number(word) if len(word) <= _LONGEST_NUMBER else -1  # more digits than these are no size


_BEGINS_NUMBER: Final = b"+-.0123456789"


def _attributes(text: bytes) -> Attributes | None:
    """What follows the numbers of put-with; None if it is malformed. No value stands for none: not even 0."""
    if text and (text[0] != _SPACE or text[-1] == _SPACE):
        return None
    key = once = ""
    once_ttl = 0
    labels: Labels | None = None
    found: dict[bytes, int] = {}
    for word in text.split(b" "):
        if not word:
            continue
        name, _, value = word.partition(b"=")
        if name == b"key" and not key and _NAME.fullmatch(value) is not None:
            key = value.decode("ascii")
            continue
        if name == b"once" and not once:
            token, colon, seconds = value.partition(b":")
            once_ttl = _seconds(seconds) if colon else ONCE_TTL
            if _NAME.fullmatch(token) is None or once_ttl <= 0:
                return None
            once = token.decode("ascii")
            continue
        if name in LABELS:
            if labels is None:
                labels = Labels()
            if not _read_label(name, value, labels):
                return None
            continue
        read = _READ_ATTRIBUTE.get(name)
        number = -1 if read is None or name in found else read(value)
        if number <= 0:
            return None
        found[name] = number
    if not key and (b"replace" in found or b"hold" in found):
        return None
    if b"replace" not in found and (b"again" in found or b"within" in found):
        return None
    return Attributes(
        key=key,
        replaces=b"replace" in found,
        again=b"again" in found,
        within=found.get(b"within", 0),
        at=found.get(b"at", 0),
        max_tries=found.get(b"tries", 0),
        backoff=found.get(b"backoff", 0),
        ttl=found.get(b"ttl", 0),
        key_hold=found.get(b"hold", 0),
        once=once,
        once_ttl=once_ttl,
        labels=labels,
    )


ONCE_TTL: Final = 3600 * SECOND
"""How long a token stays taken, unless its put says so."""

LABELS: Final = (b"share", b"limit", b"group", b"after")
"""The attributes that are labels."""


def _read_label(name: bytes, value: bytes, labels: Labels) -> bool:
    """Set the label of this name; False if it is malformed, or has been set before."""
    value, colon, rest = value.partition(b":")
    if _NAME.fullmatch(value) is None or (colon and not rest):
        return False
    label = value.decode("ascii")
    if name == b"limit":
        count = _number(rest) if colon else 1
        if labels.limit or count < 1:
            return False
        labels.limit, labels.limit_count = label, count
    elif name == b"after":
        if labels.after or (colon and rest != b"wait"):
            return False
        labels.after, labels.after_waits = label, bool(colon)
    elif colon:
        return False
    elif name == b"share":
        if labels.share:
            return False
        labels.share = label
    else:
        if labels.group:
            return False
        labels.group = label
    return True


def _one(word: bytes) -> int:
    return 1 if word == b"1" else -1


def _moment(word: bytes) -> int:
    """Nanoseconds since 1970 from a number of seconds below 2^32; -1 if the word is anything else. Never 0."""
    match = _MOMENT.fullmatch(word)
    if match is None:
        return -1
    whole, fraction = match.groups()
    seconds = int(whole)
    if seconds > MAX_U32:
        return -1
    return max(seconds * SECOND + int((fraction or b"").ljust(9, b"0")), 1)


_READ_ATTRIBUTE: Final = {
    b"replace": _one,
    b"again": _one,
    b"within": _seconds,
    b"at": _moment,
    b"tries": _number,
    b"backoff": _seconds,
    b"ttl": _seconds,
    b"hold": _seconds,
}
"""Reads the value of an attribute, but for the key and the token; below 1 if it is malformed."""


def _write_attributes(attributes: Attributes) -> bytes:
    """Attributes as they follow the numbers of put-with."""
    parts = []
    if attributes.key:
        parts.append(b" key=%b" % attributes.key.encode())
    if attributes.replaces:
        parts.append(b" replace=1")
    if attributes.again:
        parts.append(b" again=1")
    if attributes.at:
        parts.append(b" at=%d.%09d" % divmod(attributes.at, SECOND))
    if attributes.max_tries:
        parts.append(b" tries=%d" % attributes.max_tries)
    for name, duration in (
        (b"within", attributes.within),
        (b"backoff", attributes.backoff),
        (b"ttl", attributes.ttl),
        (b"hold", attributes.key_hold),
    ):
        if duration:
            parts.append(b" %b=%b" % (name, write_duration(duration)))
    if attributes.once:
        parts.append(b" once=%b:%b" % (attributes.once.encode(), write_duration(attributes.once_ttl)))
    if attributes.labels is not None:
        parts.append(_write_labels(attributes.labels))
    return b"".join(parts)


def _write_labels(labels: Labels) -> bytes:
    parts = []
    if labels.share:
        parts.append(f" share={labels.share}")
    if labels.limit:
        parts.append(f" limit={labels.limit}:{labels.limit_count}")
    if labels.group:
        parts.append(f" group={labels.group}")
    if labels.after:
        parts.append(f" after={labels.after}:wait" if labels.after_waits else f" after={labels.after}")
    return "".join(parts).encode()


def read_put(text: bytes, into: Arguments) -> bool:
    into.put = parse_put(text, 0)
    return into.put is not None


def read_put_keyed(text: bytes, into: Arguments) -> bool:
    into.put = _put_keyed(text, False)
    return into.put is not None


def read_replace_keyed(text: bytes, into: Arguments) -> bool:
    into.put = _put_keyed(text, True)
    return into.put is not None


def read_put_with(text: bytes, into: Arguments) -> bool:
    into.put = _put_with(text)
    return into.put is not None


def read_save(text: bytes, into: Arguments) -> bool:
    """Id and size."""
    into.job_id, end = _id_at(text, 0)
    size, end = _number_at(text, end)
    if into.job_id < 0 or size < 0 or end != len(text):
        return False
    put = into.put = Put(None, 0, 0, 0, size, b"")
    put.saves = into.job_id
    return True


MOST_IN_BATCH: Final = 1000
"""The most jobs of a batch that a client names."""

MOST_PUT: Final = 512
"""The most jobs of a put-batch: all are put at once, which holds up the others for two milliseconds."""

BATCH_SIZE: Final = 1 << 20
"""Bytes of a put-batch that a server takes at least, with the sizes of its bodies."""


def read_put_batch(text: bytes, into: Arguments) -> bool:
    put = into.put = parse_put(text, 0)
    if put is None or put.trailing:
        return False
    put.is_batch = True
    return True


def parse_bodies(data: bytes, largest: int) -> list[bytes] | None:
    """The bodies of a put-batch, each with its size and CR LF before it and CR LF behind it; None if they are
    malformed, or too many.

    Args:
        largest: bytes of a body at most.
    """
    bodies: list[bytes] = []
    position = 0
    while position < len(data):
        end = data.find(_CRLF, position, position + _LONGEST_SIZE)
        size = _number(data[position:end]) if end >= 0 else -1
        start = end + len(_CRLF)
        position = start + size + len(_CRLF)
        if size < 0 or size > largest or data[start + size : position] != _CRLF or len(bodies) == MOST_PUT:
            return None
        bodies.append(data[start : start + size])
    return bodies or None


_CRLF: Final = b"\r\n"
_LONGEST_SIZE: Final = 12
"""Bytes of the longest size of a body, and its CR LF."""


# Arguments of the other commands

_LONGEST_NUMBER: Final = 20
"""Digits of a number in a line that may be very long: int raises an error for more than 4,300."""


def read_ids(text: bytes, into: Arguments) -> bool:
    """Ids, one to a thousand, with one space between two of them."""
    ids: list[int] = []
    end: i64 = -1
    while end < len(text):
        start = end + 1
        number, end = _digits(text, start)
        if number < 0 or end > start + _LONGEST_NUMBER or len(ids) == MOST_IN_BATCH:
            return False
        if end < len(text) and text[end] != _SPACE:
            return False
        ids.append(number if number < _HUGE else int(text[start:end]))
    into.ids = ids
    return max(ids) <= MAX_U64


def read_release_batch(text: bytes, into: Arguments) -> bool:
    """Priority, delay and ids."""
    words = text.split(b" ", 2)
    if len(words) < 3:
        return False
    into.priority = _number(words[0])
    into.duration = _seconds(words[1])
    return into.priority >= 0 and into.duration >= 0 and read_ids(words[2], into)


def read_id(text: bytes, into: Arguments) -> bool:
    into.job_id = parse_id(text, 0)
    return into.job_id >= 0


def read_name(text: bytes, into: Arguments) -> bool:
    """A tube's name, or a key."""
    if _NAME.fullmatch(text) is None:
        return False
    into.name = text.decode("ascii")
    return True


def read_watch(text: bytes, into: Arguments) -> bool:
    """A tube's name, and perhaps its weight."""
    name, space, number = text.partition(b" ")
    into.weight = _number(number) if space else 0
    return read_name(name, into) and (1 <= into.weight <= MAX_WEIGHT or not space)


def parse_watched(text: str) -> tuple[str, int]:
    """The name of a tube that is watched, and its weight, or 0, as `watch` gives them."""
    name, _, weight = text.partition(" ")
    return name, int(weight or 0)


def write_watched(name: str, weight: int) -> str:
    """The same as a text."""
    return f"{name} {weight}" if weight else name


def read_mode(text: bytes, into: Arguments) -> bool:
    for mode, name in enumerate(MODES):
        if text == name.encode():
            into.mode = mode
            return True
    return False


def read_group(text: bytes, into: Arguments) -> bool:
    """A group's name; its tube is the one that is named."""
    if _NAME.fullmatch(text) is None:
        return False
    into.target = text.decode("ascii")
    into.name = home_of(into.target)
    return True


def read_release(text: bytes, into: Arguments) -> bool:
    into.job_id, end = _id_at(text, 0)
    into.priority, end = _number_at(text, end)
    into.duration, end = _seconds_at(text, end)
    return into.job_id >= 0 and into.priority >= 0 and into.duration >= 0 and end == len(text)


def read_bury(text: bytes, into: Arguments) -> bool:
    into.job_id, end = _id_at(text, 0)
    into.priority, end = _number_at(text, end)
    return into.job_id >= 0 and into.priority >= 0 and end == len(text)


def read_kick(text: bytes, into: Arguments) -> bool:
    """A count as C's strtoul reads it, cut to 32 bits: `kick -1` is 2^32-1."""
    match = _KICK.match(text)
    if match is None or b"\0" in text:
        return False
    number = int(match[2])
    if number > MAX_U64:
        return False
    into.count = (-number if match[1] == b"-" else number) & MAX_U32
    return True


def read_redrive(text: bytes, into: Arguments) -> bool:
    match = _NAME_AND_NUMBER.fullmatch(text)
    if match is None:
        return False
    into.name = match[1].decode("ascii")
    into.count = _number(match[2])
    return into.count >= 0


def parse_state(word: bytes) -> int:
    """The state that a word names, one of those that _STATE matches."""
    return STATES.index(word.decode("ascii"))


def read_list_jobs(text: bytes, into: Arguments) -> bool:
    """Tube, state, cursor and count, which is at least one."""
    match = _LIST_JOBS.fullmatch(text)
    if match is None:
        return False
    into.name = match[1].decode("ascii")
    into.state = parse_state(match[2])
    into.position = [] if match[3] == b"0" else [int(number) for number in match[3].split(b"-")]
    into.count = _number(match[4])
    return into.count >= 1 and len(into.position) in (0, POSITIONS[into.state])


def write_cursor(position: list[int]) -> str:
    """A position as `read_list_jobs` reads it; "0" for the beginning."""
    return "-".join([str(number) for number in position]) or "0"


def read_stats_tubes(text: bytes, into: Arguments) -> bool:
    """A tube's name, or a hyphen, which is read as "", and a count, which is at least one."""
    match = _NAME_OR_HYPHEN_AND_NUMBER.fullmatch(text)
    if match is None:
        return False
    into.name = (match[1] or b"").decode("ascii")
    into.count = _number(match[2])
    return into.count >= 1


def read_move_jobs(text: bytes, into: Arguments) -> bool:
    """Tube, state, other tube and count, which is at least one."""
    match = _MOVE_JOBS.fullmatch(text)
    if match is None:
        return False
    into.name = match[1].decode("ascii")
    into.state = parse_state(match[2])
    into.target = match[3].decode("ascii")
    into.count = _number(match[4])
    return into.count >= 1


def read_timeout(text: bytes, into: Arguments) -> bool:
    """The timeout of reserve-with-timeout."""
    duration = _seconds(text)
    if duration < 0:  # there may be spaces before it, and anything behind it
        match = _LEADING_SECONDS.match(text)
        if match is None or b"\0" in text:
            return False
        duration = _seconds(match[1])
    into.duration = duration
    return 0 <= duration <= MAX_TIMEOUT * SECOND


def read_old_timeout(text: bytes, into: Arguments) -> bool:
    """The timeout as beanstalkd 1.12 reads it, by C's strtol cut to 32 bits: below 0 is for ever, no number is 0."""
    if read_timeout(text, into):
        return True
    match = _OLD_TIMEOUT.match(text)
    number = 0 if match is None else int(match[1])
    if b"\0" in text or not -MAX_I64 - 1 <= number <= MAX_I64:
        return False
    seconds = number & MAX_U32
    into.duration = seconds * SECOND if seconds <= MAX_TIMEOUT else FOREVER
    return True


def read_reschedule(text: bytes, into: Arguments) -> bool:
    into.job_id, end = _id_at(text, 0)
    into.duration, end = _seconds_at(text, end)
    return into.job_id >= 0 and into.duration >= 0 and end == len(text)


def read_reschedule_keyed(text: bytes, into: Arguments) -> bool:
    match = _KEY_AND_SECONDS.fullmatch(text)
    if match is None:
        return False
    into.name = match[1].decode("ascii")
    into.duration = _seconds(match[2])
    return into.duration >= 0


def read_reprioritize_keyed(text: bytes, into: Arguments) -> bool:
    """Key and priority."""
    match = _NAME_AND_NUMBER.fullmatch(text)
    if match is None:
        return False
    into.name = match[1].decode("ascii")
    into.priority = _number(match[2])
    return into.priority >= 0


def read_reserve_batch(text: bytes, into: Arguments) -> bool:
    """Count, at least one, and timeout."""
    into.count, end = _number_at(text, 0)
    into.duration, end = _seconds_at(text, end)
    return into.count >= 1 and 0 <= into.duration <= MAX_TIMEOUT * SECOND and end == len(text)


def read_pause(text: bytes, into: Arguments) -> bool:
    """Tube and duration. A malformed name is read as "", because beanstalkd counts the command before it refuses it."""
    match = _PAUSE.fullmatch(text)
    if match is None:
        return False
    if not read_name(match[1], into):
        into.name = ""
    into.duration = _seconds(match[2])
    return into.duration >= 0


# Arguments of the commands that nodes give each other


def read_await(text: bytes, into: Arguments) -> bool:
    """Milliseconds, -1 for ever, and the most jobs of a batch, 0 for a single one."""
    match = _AWAIT.fullmatch(text)
    if match is None:
        return False
    milliseconds = int(match[1])
    into.duration = FOREVER if milliseconds < 0 else milliseconds * MILLISECOND
    into.count = _number(match[2])
    return into.count >= 0 and into.duration <= MAX_TIMEOUT * SECOND


def read_probe(text: bytes, into: Arguments) -> bool:
    """A command's name, or a hyphen, and perhaps a finish."""
    word, space, number = text.partition(b" ")
    if space and not number.isdigit():
        return False
    into.name = word.decode("ascii", "replace")
    into.finish = int(number) if space else 0
    return True


# Tokens


def parse_token(text: bytes) -> str:
    """A token, which may be any text; "" if it is none."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return ""


def parse_auth(line: bytes) -> str:
    """The token of a line that is an auth command; "" if there is none, or the line is another one."""
    return parse_token(line.removeprefix(AUTH)) if line.startswith(AUTH) else ""


def read_token(text: bytes, into: Arguments) -> bool:
    into.token = parse_token(text)
    return True


def without_token(line: bytes) -> bytes:
    """A command as the log may show it: without a token behind it, and without what follows a LF, which may be one."""
    found = _TOKEN_FOLLOWS.search(line)
    return line[: found.end()] + b"..." if found else line
