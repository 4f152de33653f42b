"""Defines the kinds of values that settings have: how each is read from text, checked, and described.

A value comes as text, from the command line or the environment, or with a type, from Python or from a config file. Must
never know which settings exist.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from beanstalk_server.queue.units import SECOND
from beanstalk_server.tube_names import NAME_WANTED, is_name, is_pattern

UNIX: Final = "unix:"
"""The prefix of the address of a UNIX socket; its path follows."""

LONGEST_TEXT: Final = 4096
"""Characters: no path of Linux is longer."""

LONGEST_SHOWN: Final = 80
"""Characters of a value that a message shows."""

LARGEST_UID: Final = (1 << 32) - 2
"""The system keeps 2^32 - 1 for "no user"."""

LONGEST_DURATION: Final = (1 << 32) - 1
"""Seconds: the longest delay of the protocol, 136 years."""

LONGEST_KEEPALIVE: Final = 32767
"""Seconds: the longest that Linux takes for keepalive (MAX_TCP_KEEPIDLE)."""

MOST_PROBES: Final = 127
"""The most that Linux sends (MAX_TCP_KEEPCNT)."""

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of durations."""

SHA256_OF_NOTHING: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

Take = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


@dataclass(eq=False)
class Kind:
    """The type of a setting."""

    wanted: str
    """Describes a valid value; an error message says it after "must be"."""
    take: Take
    """Returns the value that a typed value stands for; raises ValueError if it is not valid."""
    metavar: str = ""
    """Stands for a value in the help, such as "PORT"; "" if the option takes no value on the command line: then its
    value is the number of times that it is given."""
    typed: str = ""
    """Describes a valid value that does not come as text; the same as `wanted` if it is not given."""
    bounds: str = ""
    """The numbers between which a value is, for the help."""
    shows: bool = True
    """Whether a message may show a value: not one that may be secret."""
    read: Callable[[str], object] = _same
    """Returns the typed value of a text; raises ValueError if it has none."""
    located: Callable[[Any, str], object] = lambda value, _: value
    """Returns a value of a config file, with a path relative to a directory."""
    logged: Callable[[Any], object] = _same
    """Returns a value as the log of a start shows it."""

    def __post_init__(self) -> None:
        self.typed = self.typed or self.wanted

    def mistakes(self, value: object) -> list[str]:
        """The mistakes in a typed value, before `take`: each says the value and what would be right."""
        try:
            self.take(value)
        except ValueError:
            return [f"bad value {self.shown(value)}: must be {self.typed}"]
        return []

    def shown(self, value: object) -> str:
        """A value as messages show it, on one line."""
        if not self.shows:
            size = f", {len(value)} characters" if isinstance(value, str) else ""
            return f"(not shown{size})"
        try:
            text = str(value).lower() if isinstance(value, bool) else repr(value)
        except (ValueError, RecursionError):  # a number of many digits, or lists that are nested deeply
            text = "too large to show"
        return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


class Several(Kind):
    """A list of values, or a single one.

    Args:
        least: the smallest number of values.
    """

    def __init__(self, each: Kind, least: int = 0) -> None:
        self._each = each
        self._least = least
        super().__init__(f"a list of values, each of them {each.wanted}", self._take, shows=each.shows)

    def _take(self, value: object) -> object:
        values = tuple([self._each.take(each) for each in _listed(value)])
        if len(values) < self._least:
            raise ValueError(value)
        return values

    def mistakes(self, value: object) -> list[str]:
        values = _listed(value)
        if len(values) < self._least:
            return ["bad value []: must not be empty"]
        return [mistake for each in values for mistake in self._each.mistakes(each)]


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else [value]


# How values are taken


def _if(fits: Callable[[Any], bool]) -> Take:
    """Take a value as it is, if it fits."""

    def take(value: Any) -> Any:
        if not fits(value):
            raise ValueError(value)
        return value

    return take


def _or_none(take: Take) -> Take:
    """Take "" as it is, for a setting that is not set."""
    return lambda value: "" if value == "" else take(value)


def _matching(pattern: str) -> Take:
    return _if(lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number: True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or _is_whole(value)


def _between(least: float, most: float) -> Take:
    return _if(lambda value: _is_whole(value) and least <= value <= most)


def _seconds_of(value: Any, scale: int = 1) -> Any:
    """The seconds of a `datetime.timedelta`, times a scale; any other value as it is."""
    return value.total_seconds() * scale if hasattr(value, "total_seconds") else value


def _is_text(value: object) -> TypeGuard[str]:
    """Whether the system takes a value as a text."""
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and "\0" not in value


# Texts, paths and addresses


def text(metavar: str, wanted: str) -> Kind:
    """Any text that the system takes."""
    return Kind(wanted, _if(_is_text), metavar)


def _path(metavar: str, wanted: str) -> Kind:
    def take(value: object) -> object:
        return _if(_is_text)(os.fspath(value) if isinstance(value, os.PathLike) else value)

    def located(value: object, directory: str) -> object:
        return os.path.join(directory, value) if isinstance(value, str) and value else value

    return Kind(wanted, take, metavar, located=located)


FILE: Final = _path("FILE", "the path of a file")
DIRECTORY: Final = _path("DIR", "the path of a directory")


def choice(metavar: str, choices: Sequence[str]) -> Kind:
    """One of a few words in lower case; a value may have them in any case."""
    typed = " or ".join(f'"{each}"' for each in choices)
    take = _if(lambda value: value in choices)
    return Kind(" or ".join(choices), lambda value: take(_lower(value)), metavar, typed)


def _is_port(port: object) -> bool:
    """Whether this is the number of a port, as a text with any zeros before it, or may be the name of a service."""
    if not isinstance(port, str):
        return _is_whole(port) and 0 <= port <= 65535
    if not port.isdecimal():
        return port != "" and re.search(r"[\s:/\0]", port) is None
    return port.isascii() and int(port.lstrip("0")[:6] or "0") <= 65535


PORT: Final = Kind(
    "a number from 0 to 65535, or the name of a service",
    _if(_is_port),
    "PORT",
    read=lambda port: int(port) if port.isascii() and port.isdecimal() else port,
)


def _is_place(value: object) -> TypeGuard[str]:
    return _is_text(value) and value not in ("", UNIX)


def _is_address(value: object) -> TypeGuard[str]:
    if not _is_place(value):
        return False
    if value.startswith(UNIX):
        return True
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    return bool(host.strip("[]")) and (bracketed or ":" not in host) and _is_port(port)


def _is_host_port(value: object) -> bool:
    if not _is_address(value) or value.startswith(UNIX):
        return False
    port = value.rpartition(":")[2]
    return port.isascii() and port.isdecimal() and int(port) > 0


def _located_socket(value: object, directory: str) -> object:
    if isinstance(value, str) and value.startswith(UNIX) and value != UNIX:
        return UNIX + os.path.join(directory, value.removeprefix(UNIX))
    return value


LISTEN: Final = Kind("a host name, an address or unix:PATH", _if(_is_place), "ADDR", located=_located_socket)
"""An address to listen on, without a port."""

ADDRESS: Final = Kind("host:port, [v6]:port or unix:PATH", _if(_is_address), "ADDR", located=_located_socket)
"""An address to listen on, with a port."""

ADDRESS_OR_NONE: Final = replace(ADDRESS, take=_or_none(ADDRESS.take))

HOST_PORT_OR_NONE: Final = Kind("host:port or [v6]:port", _or_none(_if(_is_host_port)), "HOST:PORT")
"""A TCP address; "" if there is none."""

ENGINE_URL: Final = Kind(
    "a URL such as redis://host:6379 or postgresql://host/database",
    _or_none(_if(lambda value: isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable())),
    "URL",
    shows=False,
    logged=lambda value: re.sub("//.*@", "//…@", value, flags=re.DOTALL).partition("?")[0],
)
"""The engine of a cluster; "" if there is none. It may have a password, and no message shows it."""

_HOST_PATTERN: Final = "[a-z0-9][a-z0-9_.-]{0,252}"

HOST: Final = Kind("a host name in lower case, without a port", _matching(_HOST_PATTERN))

HOSTS: Final = Kind(
    "host names in lower case, without ports, separated by commas",
    _or_none(_matching(f"{_HOST_PATTERN}(,{_HOST_PATTERN})*")),
    "NAME,…",
)

CLUSTER_NAME: Final = Kind("1 to 100 letters, digits, ., - or _", _matching("[A-Za-z0-9._-]{1,100}"), "NAME")


def _take_network(value: object) -> object:
    import ipaddress  # most servers have no network here

    if not isinstance(value, str):
        raise ValueError(value)
    ipaddress.ip_network(value)
    return value


NETWORK: Final = Kind("a network such as 10.0.0.0/8 or fd00::/8, without host bits", _take_network)


# Numbers


def whole(metavar: str, least: int, most: int, what: str = "a whole number") -> Kind:
    """A whole number within bounds."""
    bounds = f"{least} to {most}"
    return Kind(f"{what} from {bounds}", _between(least, most), metavar, bounds=bounds, read=int)


def _bytes_of(value: Any) -> Any:
    """The number of bytes of a text with a unit; any other value as it is."""
    text = value.replace("Ki", "ki") if isinstance(value, str) else ""
    found = re.fullmatch("([0-9]{1,20}) ?([kMGT])(i?)B", text)
    return int(found[1]) * (1024 if found[3] else 1000) ** (1 + "kMGT".index(found[2])) if found else value


def size(least: int, most: int, *, lowers: bool = False) -> Kind:
    """A number of bytes.

    Args:
        lowers: a value that is too large is lowered to `most`, as in beanstalkd, unless it comes from Python.
    """
    take = _between(least, most)

    def lowered(value: object, _directory: str = "") -> object:
        value = _bytes_of(value)
        return min(value, most) if lowers and _is_whole(value) else value

    return Kind(
        f"a whole number of bytes from {least} to {most}, or with a unit: 64MiB, 2GB",
        lambda value: take(_bytes_of(value)),
        "BYTES",
        read=lambda text: lowered(int(text) if text[-1:].isdecimal() else text),
        located=lowered,
    )


def milliseconds(least: float, most: int, word: str | None = None) -> Kind:
    """A number of milliseconds, or a word in its place."""
    numbers = f"a number of milliseconds from {least} to {most}"

    def fits(value: object) -> bool:
        if isinstance(value, str):
            return value == word
        return _is_number(value) and least <= value <= most

    take = _if(fits)
    return Kind(
        f"{numbers}, or {word!r}" if word else numbers,
        lambda value: take(_seconds_of(value, 1000)),
        "MS",
        read=lambda number: word if number.lower() == word else float(number),
    )


COUNT: Final = Kind("a whole number, 0 or greater", _if(lambda value: _is_whole(value) and value >= 0), read=int)
"""The number of times that a flag is given."""


_SWITCHES: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _read_switch(text: str) -> object:
    if text.lower() in _SWITCHES:
        return _SWITCHES[text.lower()]
    return int(text) > 0 if int(text) >= 0 else text  # a flag that is given twice changes nothing


SWITCH: Final = Kind(
    "true or false, yes or no, on or off, 1 or 0",
    _if(lambda value: isinstance(value, bool)),
    typed="true or false",
    read=_read_switch,
)


def _take_duration(value: object) -> object:
    value = _seconds_of(value)
    if isinstance(value, str):
        found = re.fullmatch("([0-9]{1,10})([smhd])", value)
        value = int(found[1]) * SECONDS[found[2]] if found else None
    if not _is_number(value) or not (value == 0 or 1e-9 <= value <= LONGEST_DURATION):
        raise ValueError(value)
    return value


DURATION: Final = Kind(
    f'a number of seconds from 0 to {LONGEST_DURATION}, or a whole number with a unit: "90s", "15m", "24h", "30d"',
    _take_duration,
)
"""A number of seconds, with a fraction down to a nanosecond, or a text with a unit; 0 for none, or no limit."""


def interval_of(rate: str) -> int:
    """The time between two events at this rate, in nanoseconds, rounded up so that the rate is not exceeded.

    Raises:
        ValueError: it is not a rate.
    """
    found = re.fullmatch("([1-9][0-9]{0,9})/([1-9][0-9]{0,9})?([smhd])", rate)
    if found is None:
        raise ValueError(rate)
    time = int(found[2] or 1) * SECONDS[found[3]] * SECOND
    return -(-time // int(found[1]))


RATE: Final = Kind(
    'a number per unit of time: "100/s", "5/m", "1000/h", or "1/10s"',
    _or_none(_if(lambda value: isinstance(value, str) and 1 <= interval_of(value) <= LONGEST_DURATION * SECOND)),
)
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


def _take_keepalive(value: Any) -> object:
    value = 0 if value == "0" else value
    if isinstance(value, bool | float) or keepalive_of(value) is None:
        return _between(0, 0)(value)
    return value


KEEPALIVE: Final = Kind(
    f"SECONDS:SECONDS:PROBES, such as 60:15:4 (at most {LONGEST_KEEPALIVE}:{LONGEST_KEEPALIVE}:{MOST_PROBES}), or 0",
    _take_keepalive,
    "IDLE:INTERVAL:COUNT",
)
"""The TCP keepalive probes to a silent peer."""


# Users and tubes


NAME: Final = Kind(
    "a name: 1 to 200 printable characters",
    _if(lambda name: isinstance(name, str) and 1 <= len(name) <= 200 and name.isprintable() and name == name.strip()),
)
"""The name of a user of this server: as in a certificate, and in the log."""

NAME_OR_NONE: Final = Kind('the name of a [[user]], or ""', _or_none(NAME.take))

PATTERN: Final = Kind(
    "a pattern for tube names: * matches any characters, ? one character, [a-z] one of these",
    _if(lambda value: isinstance(value, str) and len(value) <= 1000 and is_pattern(value)),
)
"""A pattern of tube names, as `fnmatch` reads them."""

TUBE_OR_NONE: Final = Kind(
    f"a tube's name: {NAME_WANTED}", _or_none(_if(lambda value: isinstance(value, str) and is_name(value)))
)

SEPARATOR_OR_NONE: Final = Kind(
    "1 to 8 characters that a tube's name may contain, or empty",
    _or_none(_if(lambda value: isinstance(value, str) and len(value) <= 8 and is_name("x" + value))),
)

_take_digest: Final = _matching(f"(?!{SHA256_OF_NOTHING})[0-9a-f]{{64}}")

TOKEN_HASH: Final = Kind(
    "the 64 hexadecimal digits that `beanstalk-server token` prints",
    lambda value: _take_digest(_lower(value)),
    shows=False,
)
"""The SHA-256 of a token. A message does not show it, because it may be the token by mistake."""


def _take_uid(value: object) -> object:
    if isinstance(value, str):
        import pwd  # few settings have a name here

        try:
            value = pwd.getpwnam(value).pw_uid
        except (KeyError, UnicodeError):
            raise ValueError(value) from None
    return _between(0, LARGEST_UID)(value)


UID: Final = Kind(f"a number from 0 to {LARGEST_UID}, or the name of a user of this system", _take_uid)
"""A user of the system, by number or by name."""
