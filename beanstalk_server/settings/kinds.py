"""The kinds of values that settings have: each reads a value from text, checks it, and describes what is valid.

A value comes as text, from the command line or the environment, or with a type, from Python or from a config file. Must
never know which settings there are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from beanstalk_server.queue.units import SECOND
from beanstalk_server.tube_names import NAME_WANTED, is_name, is_pattern

if TYPE_CHECKING:
    from datetime import timedelta

UNIX: Final = "unix:"
"""What the address of a UNIX socket begins with; its path follows."""

LONGEST_TEXT: Final = 4096
"""Characters: no path of Linux is longer."""

LONGEST_SHOWN: Final = 80
"""Characters of a value that a message shows."""

LARGEST_UID: Final = (1 << 32) - 2
"""The system keeps 2^32 - 1 for "no user"."""

LONGEST_DURATION: Final = (1 << 32) - 1
"""Seconds: the longest delay of the protocol, 136 years."""

LONGEST_KEEPALIVE: Final = 32767
"""Seconds: Linux takes no longer ones for keepalive (MAX_TCP_KEEPIDLE)."""

MOST_PROBES: Final = 127
"""Linux sends no more (MAX_TCP_KEEPCNT)."""

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of durations."""

SHA256_OF_NOTHING: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def _same(value: Any) -> Any:
    return value


@dataclass(eq=False)
class Kind:
    """The type of a setting."""

    wanted: str
    """Describes a valid value; an error message says it after "must be"."""
    fits: Callable[[object], bool]
    """Whether a value, from text or from Python, is valid."""
    metavar: str = ""
    """Stands for a value in the help, such as "PORT"; "" if the option takes no value on the command line: then its
    value is the number of times that it is given."""
    typed: str = ""
    """Describes a valid value that does not come as text; the same as `wanted` if it is not given."""
    bounds: str = ""
    """Between which numbers a value is, for the help."""
    shows: bool = True
    """Whether a message may show a value: not what may be secret."""
    read: Callable[[str], object] = _same
    """Returns the value of a text, or raises ValueError if it has none."""
    take: Callable[[object], object] = _same
    """Returns what a typed value stands for, or raises ValueError if it is of a wrong type."""
    located: Callable[[object, str], object] = lambda value, _: value
    """Returns a typed value, with its path, if it is one, relative to a directory."""
    logged: Callable[[object], object] = _same
    """Returns a value as the log of a start shows it."""

    def __post_init__(self) -> None:
        self.typed = self.typed or self.wanted

    def mistakes(self, value: object) -> list[str]:
        """What is wrong with a typed value, before `take`: for each mistake, the value and what would be right."""
        try:
            good = self.fits(self.take(value))
        except ValueError:
            good = False
        return [] if good else [f"bad value {self.shown(value)}: must be {self.typed}"]

    def shown(self, value: object) -> str:
        """A value as messages show it, on one line."""
        if not self.shows:
            size = f", {len(value)} characters" if isinstance(value, str) else ""
            return f"(not shown{size})"
        try:
            text = str(value).lower() if isinstance(value, bool) else repr(value)
        except (ValueError, RecursionError):  # a number of many digits, or a list in a list in a list
            text = "too large to show"
        return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


class Several(Kind):
    """A list of values, or a single one.

    Args:
        least: how many there must be.
    """

    def __init__(self, each: Kind, least: int = 0) -> None:
        self._each = each
        self._least = least
        super().__init__(f"a list, each of it {each.wanted}", self._fits, shows=each.shows, take=self._take)

    def _take(self, value: object) -> object:
        return tuple([self._each.take(each) for each in _listed(value)])

    def _fits(self, value: object) -> bool:
        return isinstance(value, tuple) and len(value) >= self._least and all(self._each.fits(each) for each in value)

    def mistakes(self, value: object) -> list[str]:
        values = _listed(value)
        if len(values) < self._least:
            return [f"bad value []: must be {self.typed}, and not be empty"]
        return [mistake for each in values for mistake in self._each.mistakes(each)]


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number: True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or is_whole(value)


def _is_timedelta(value: object) -> TypeGuard[timedelta]:
    """Whether a value is a `datetime.timedelta`, which is only imported by those who have one."""
    return hasattr(value, "total_seconds")


def _is_text(value: object) -> TypeGuard[str]:
    """Whether the system takes a value as a text."""
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and "\0" not in value


# Texts, paths and addresses


def text(metavar: str, wanted: str) -> Kind:
    """Any text that the system takes."""
    return Kind(wanted, _is_text, metavar)


def _path(metavar: str, wanted: str) -> Kind:
    return Kind(
        wanted,
        _is_text,
        metavar,
        take=lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value,
        located=lambda value, directory: os.path.join(directory, value) if isinstance(value, str) and value else value,
    )


FILE: Final = _path("FILE", "the path of a file")
DIRECTORY: Final = _path("DIR", "the path of a directory")


def choice(metavar: str, choices: Sequence[str]) -> Kind:
    """One of a few words in lower case; a value may have them in any case."""
    typed = " or ".join(f'"{each}"' for each in choices)
    return Kind(
        " or ".join(choices),
        lambda value: value in choices,
        metavar,
        typed,
        read=str.lower,
        take=lambda value: value.lower() if isinstance(value, str) else value,
    )


def _is_port(port: str) -> bool:
    """Whether this is the number of a port, with any zeros before it, or may be the name of a service."""
    if not port.isdecimal():
        return re.search(r"[\s:/\0]", port) is None
    return port.isascii() and int(port.lstrip("0")[:6] or "0") <= 65535


def _fits_port(value: object) -> bool:
    if isinstance(value, str):
        return value != "" and _is_port(value)
    return is_whole(value) and 0 <= value <= 65535


PORT: Final = Kind(
    "a number from 0 to 65535, or the name of a service",
    _fits_port,
    "PORT",
    read=lambda port: int(port) if port.isascii() and port.isdecimal() else port,
)


def _is_place(value: object) -> TypeGuard[str]:
    return _is_text(value) and value not in ("", UNIX)


def _located_socket(value: object, directory: str) -> object:
    if isinstance(value, str) and value.startswith(UNIX) and value != UNIX:
        return UNIX + os.path.join(directory, value.removeprefix(UNIX))
    return value


def _is_address(value: object) -> TypeGuard[str]:
    if not _is_place(value):
        return False
    if value.startswith(UNIX):
        return True
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    return bool(colon and host.strip("[]") and port) and (bracketed or ":" not in host) and _is_port(port)


def _fits_host_port(value: object) -> bool:
    if value == "":
        return True
    if not _is_address(value) or value.startswith(UNIX):
        return False
    port = value.rpartition(":")[2]
    return port.isascii() and port.isdecimal() and int(port) > 0


_ADDRESS_WANTED: Final = "host:port, [v6]:port or unix:PATH"

LISTEN: Final = Kind("a host name, an address or unix:PATH", _is_place, "ADDR", located=_located_socket)
"""Where to listen, without a port."""

ADDRESS: Final = Kind(_ADDRESS_WANTED, _is_address, "ADDR", located=_located_socket)
"""Where to listen, with a port."""

ADDRESS_OR_NONE: Final = Kind(
    _ADDRESS_WANTED, lambda value: value == "" or _is_address(value), "ADDR", located=_located_socket
)

HOST_PORT_OR_NONE: Final = Kind("host:port or [v6]:port", _fits_host_port, "HOST:PORT")
"""A TCP address; "" if there is none."""

ENGINE_URL: Final = Kind(
    "a URL such as redis://host:6379",
    lambda value: isinstance(value, str) and len(value) <= LONGEST_TEXT and (value == "" or value.isprintable()),
    "URL",
    shows=False,
    logged=lambda value: re.sub("//.*@", "//…@", str(value), flags=re.DOTALL).partition("?")[0],
)
"""Where the journal of a cluster is; "" if there is none. It may have a password, and no message shows it."""

_HOST_PATTERN: Final = "[a-z0-9][a-z0-9_.-]{0,252}"

HOST: Final = Kind(
    "a host name in lower case, without a port",
    lambda value: isinstance(value, str) and re.fullmatch(_HOST_PATTERN, value) is not None,
)

HOSTS: Final = Kind(
    "host names in lower case, without ports, separated by commas",
    lambda value: (
        isinstance(value, str) and (value == "" or all(re.fullmatch(_HOST_PATTERN, one) for one in value.split(",")))
    ),
    "NAME,…",
)

CLUSTER_NAME: Final = Kind(
    "1 to 100 letters, digits, ., - or _",
    lambda value: isinstance(value, str) and re.fullmatch("[A-Za-z0-9._-]{1,100}", value) is not None,
    "NAME",
)


def _fits_network(value: object) -> bool:
    import ipaddress  # most servers have no network here

    try:
        return isinstance(value, str) and bool(ipaddress.ip_network(value))
    except ValueError:
        return False


NETWORK: Final = Kind("a network such as 10.0.0.0/8 or fd00::/8, without host bits", _fits_network)


# Numbers


def _between(least: float, most: float) -> Callable[[object], bool]:
    return lambda value: is_whole(value) and least <= value <= most


def whole(metavar: str, least: int, most: int, what: str = "a whole number") -> Kind:
    """A whole number within bounds."""
    bounds = f"{least} to {most}"
    return Kind(f"{what} from {bounds}", _between(least, most), metavar, bounds=bounds, read=int)


def size(least: int, most: int, *, lowers: bool = False) -> Kind:
    """A number of bytes.

    Args:
        lowers: one that is too large is lowered to what is possible, as beanstalkd does.
    """

    def take(value: object) -> object:
        if isinstance(value, str):
            found = re.fullmatch("([0-9]{1,20}) ?([kMGT])(i?)B", value.replace("Ki", "ki"))
            if found is None:
                raise ValueError
            value = int(found[1]) * (1024 if found[3] else 1000) ** (1 + "kMGT".index(found[2]))
        return min(value, most) if lowers and is_whole(value) else value

    return Kind(
        f"a whole number of bytes from {least} to {most}, or with a unit: 64MiB, 2GB",
        _between(least, most),
        "BYTES",
        read=lambda bytes_: take(int(bytes_) if bytes_[-1:].isdecimal() else bytes_),
        take=take,
    )


def milliseconds(least: float, most: int, word: str | None = None) -> Kind:
    """A number of milliseconds, or a word in its place."""
    numbers = f"a number of milliseconds from {least} to {most}"
    return Kind(
        f"{numbers}, or {word!r}" if word else numbers,
        lambda value: value == word if isinstance(value, str) else _is_number(value) and least <= value <= most,
        "MS",
        read=lambda number: word if number.lower() == word else float(number),
        take=lambda value: value.total_seconds() * 1000 if _is_timedelta(value) else value,
    )


COUNT: Final = Kind("a whole number, 0 or greater", lambda value: is_whole(value) and value >= 0, read=int)
"""The number of times that a flag is given."""


_SWITCHES: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _read_switch(text: str) -> object:
    if text.lower() in _SWITCHES:
        return _SWITCHES[text.lower()]
    return int(text) > 0 if int(text) >= 0 else int(text)  # giving it twice changes nothing


def _take_switch(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError
    return value


SWITCH: Final = Kind(
    "true or false, yes or no, on or off, 1 or 0",
    lambda value: isinstance(value, int) and value in (0, 1),
    typed="true or false",
    read=_read_switch,
    take=_take_switch,
)


def _take_duration(value: object) -> object:
    if _is_timedelta(value):
        return value.total_seconds()
    if not isinstance(value, str):
        return value
    found = re.fullmatch("([0-9]{1,10})([smhd])", value)
    if found is None:
        raise ValueError
    return int(found[1]) * SECONDS[found[2]]


DURATION: Final = Kind(
    f'a number of seconds from 0 to {LONGEST_DURATION}, or a whole number with a unit: "90s", "15m", "24h", "30d"',
    lambda value: _is_number(value) and (value == 0 or 1e-9 <= value <= LONGEST_DURATION),
    take=_take_duration,
)
"""A number of seconds, with a fraction down to a nanosecond, or a text with a unit; 0 for no limit, or nothing of the
kind."""


def interval_of(rate: str) -> int:
    """The time from one to the next at this rate, in nanoseconds: no less, so that it is kept.

    Raises:
        ValueError: it is not a rate.
    """
    found = re.fullmatch("([1-9][0-9]{0,9})/([1-9][0-9]{0,9})?([smhd])", rate)
    if found is None:
        raise ValueError(rate)
    time = int(found[2] or 1) * SECONDS[found[3]] * SECOND
    return -(-time // int(found[1]))


def _fits_rate(value: object) -> bool:
    try:
        return isinstance(value, str) and (value == "" or 1 <= interval_of(value) <= LONGEST_DURATION * SECOND)
    except ValueError:
        return False


RATE: Final = Kind('a number for each unit of time: "100/s", "5/m", "1000/h", or "1/10s"', _fits_rate)
"""A number in a time; "" if there is no limit."""


def keepalive_of(value: int | str) -> tuple[int, int, int] | None:
    """The seconds until the first probe, those between probes, and the number of probes; None for no probes.

    Raises:
        ValueError: it is neither.
    """
    if value == 0:
        return None
    found = re.fullmatch("([0-9]{1,5}):([0-9]{1,5}):([0-9]{1,3})", str(value))
    if found is None:
        raise ValueError(value)
    idle, interval, count = map(int, found.groups())
    if not (1 <= idle <= LONGEST_KEEPALIVE and 1 <= interval <= LONGEST_KEEPALIVE and 1 <= count <= MOST_PROBES):
        raise ValueError(value)
    return idle, interval, count


def _fits_keepalive(value: object) -> bool:
    if not (isinstance(value, str) or is_whole(value)):
        return False
    try:
        keepalive_of(value)
    except ValueError:
        return False
    return True


KEEPALIVE: Final = Kind(
    f"seconds, seconds and a number of probes, such as 60:15:4 (at most {LONGEST_KEEPALIVE}:{LONGEST_KEEPALIVE}:"
    f"{MOST_PROBES}), or 0",
    _fits_keepalive,
    "IDLE:INTERVAL:COUNT",
    take=lambda value: 0 if value == "0" else value,
)
"""When TCP keepalive probes a silent peer, and takes it for gone."""


# Users and tubes


def _is_user_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable() and value == value.strip()


NAME: Final = Kind("a name: 1 to 200 printable characters", _is_user_name)
"""The name of a user of this server: as in a certificate, and in the log."""

NAME_OR_NONE: Final = Kind('the name of a [[user]], or ""', lambda value: value == "" or _is_user_name(value))

PATTERN: Final = Kind(
    "a pattern: a tube's name, where * is any characters, ? is one, and [a-z] one of these",
    lambda value: isinstance(value, str) and len(value) <= 1000 and is_pattern(value),
)
"""A pattern of tube names, as `fnmatch` reads them."""

TUBE_OR_NONE: Final = Kind(
    f"a tube's name: {NAME_WANTED}", lambda value: isinstance(value, str) and (value == "" or is_name(value))
)

SEPARATOR_OR_NONE: Final = Kind(
    "1 to 8 of the letters of a tube's name, or empty",
    lambda value: isinstance(value, str) and (value == "" or (len(value) <= 8 and is_name("x" + value))),
)

TOKEN_HASH: Final = Kind(
    "the 64 hexadecimal digits that `beanstalk-server token` prints",
    lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value)) and value != SHA256_OF_NOTHING,
    shows=False,
    take=lambda value: value.lower() if isinstance(value, str) else value,
)
"""The SHA-256 of a token. A message does not show it: somebody may give the token by mistake."""


def _take_uid(value: object) -> object:
    if not isinstance(value, str):
        return value
    import pwd  # few settings have a name here

    try:
        return pwd.getpwnam(value).pw_uid
    except (KeyError, UnicodeError):
        raise ValueError from None


UID: Final = Kind(
    f"a number from 0 to {LARGEST_UID}, or the name of a user of this system", _between(0, LARGEST_UID), take=_take_uid
)
"""A user of the system, by number or by name."""
