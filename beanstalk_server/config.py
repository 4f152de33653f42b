"""Defines every option of the server: its name, its default, its valid values and its text in the help.

An option is a field of `Config`. The command line, the environment, the checks, `--help` and the README's table are all
derived from that field, so a new option is just a new field. Options with a short form are beanstalkd's. Must never
know what the server does with a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeGuard

from beanstalk_server.version import PROTOCOL, PROTOCOLS

LARGEST_JOB_SIZE: Final = 1 << 30
"""The largest value that beanstalkd takes for -z, in bytes."""

LARGEST_SEGMENT_SIZE: Final = 1 << 37
"""Bytes. A segment of this size has fewer than 2^31 puts, so that a job can number its own in four bytes."""

LARGEST_MEMORY: Final = 1 << 50
"""Bytes: more than a machine has."""

LONGEST_SYNC_INTERVAL: Final = 1 << 31
"""Milliseconds, which is 24 days."""

LONGEST_TICK: Final = 1000
"""Milliseconds: no longer than the safety margin of a reservation, which is a second."""

NEVER_SYNC: Final = "never"
"""The value of --sync-interval that -F stands for."""


class ConfigError(ValueError):
    """An option or a value is bad: the message is one line with the option, the value and what would be right."""


class Kind:
    """The type of an option: reads a value from text, checks it, and describes what is valid.

    Args:
        wanted: describes a valid value; an error message says it after "must be".
        metavar: stands for a value in the help, such as "PORT"; "" if the option takes no value on the command line:
            then its value is the number of times that it is given.
    """

    def __init__(self, wanted: str, metavar: str = "") -> None:
        self.wanted = wanted
        self.metavar = metavar

    def read(self, text: str) -> object:
        """Return the value of a text, or raise ValueError if it has none."""
        return text

    def fits(self, value: object) -> bool:
        """Whether a value, from text or from Python, is valid."""
        raise NotImplementedError


class _Text(Kind):
    def __init__(self, metavar: str, wanted: str, *, but_not: Sequence[str] = ()) -> None:
        super().__init__(wanted, metavar)
        self._but_not = but_not

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and value not in self._but_not


class _Choice(Kind):
    def __init__(self, metavar: str, choices: Sequence[str]) -> None:
        super().__init__(" or ".join(choices), metavar)
        self._choices = choices

    def fits(self, value: object) -> bool:
        return value in self._choices


class _Port(Kind):
    def __init__(self) -> None:
        super().__init__("a number from 0 to 65535, or the name of a service", "PORT")

    def read(self, text: str) -> object:
        return int(text) if text.isascii() and text.isdecimal() else text

    def fits(self, value: object) -> bool:
        return value != "" if isinstance(value, str) else _is_whole(value) and 0 <= value <= 65535


class _Size(Kind):
    def __init__(self, least: int, most: int) -> None:
        super().__init__(f"a whole number of bytes from {least} to {most}", "BYTES")
        self._least = least
        self._most = most

    def read(self, text: str) -> object:
        return int(text)

    def fits(self, value: object) -> bool:
        return _is_whole(value) and self._least <= value <= self._most


class _JobSize(_Size):
    def read(self, text: str) -> object:
        return min(int(text), self._most)  # beanstalkd lowers it, too


class _Milliseconds(Kind):
    """A number of milliseconds, or a word in its place."""

    def __init__(self, least: float, most: int, word: str | None = None) -> None:
        numbers = f"a number of milliseconds from {least} to {most}"
        super().__init__(f"{numbers}, or {word!r}" if word else numbers, "MS")
        self._least = least
        self._most = most
        self._word = word

    def read(self, text: str) -> object:
        return text if text == self._word else float(text)

    def fits(self, value: object) -> bool:
        if isinstance(value, str):
            return value == self._word
        return (isinstance(value, float) or _is_whole(value)) and self._least <= value <= self._most


class _Count(Kind):
    def __init__(self) -> None:
        super().__init__("a whole number, 0 or greater")

    def read(self, text: str) -> object:
        return int(text)

    def fits(self, value: object) -> bool:
        return _is_whole(value) and value >= 0


class _Switch(Kind):
    def __init__(self) -> None:
        super().__init__("0 or 1")

    def read(self, text: str) -> object:
        number = int(text)
        return number > 0 if number >= 0 else number  # giving it twice changes nothing

    def fits(self, value: object) -> bool:
        return isinstance(value, int) and value in (0, 1)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


class Option(NamedTuple):
    """One option, as its field of `Config` defines it."""

    name: str
    default: Any
    kind: Kind
    short: str
    """Its short form, or ""."""
    meaning: str
    """What it does, in the words of the help and the README."""
    also: tuple[str, str] | None
    """Another short form, and the value that it stands for."""

    @property
    def flags(self) -> list[str]:
        """Its flags on the command line: the short form, if it has one, and the long form."""
        long = "--" + self.name.replace("_", "-")
        return [self.short, long] if self.short else [long]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "BEANSTALK_SERVER_" + self.name.upper()

    def read(self, text: str, source: str) -> object:
        """Return the value of a text.

        Args:
            source: the flag or the variable that the text comes from, for messages.

        Raises:
            ConfigError: the text has no value, or a bad one.
        """
        try:
            value = self.kind.read(text)
        except ValueError:
            raise self._bad_value(text, source) from None
        if not self.kind.fits(value):
            raise self._bad_value(text, source)
        return value

    def check(self, value: object) -> None:
        """Raise a ConfigError for a bad value."""
        if not self.kind.fits(value):
            raise self._bad_value(value, "/".join(self.flags))

    def _bad_value(self, value: object, source: str) -> ConfigError:
        return ConfigError(f"{source}: bad value {value!r}: must be {self.kind.wanted}")


def _option(default: Any, kind: Kind, short: str, meaning: str, also: tuple[str, str] | None = None) -> Any:
    return field(default=default, metadata={"kind": kind, "short": short, "meaning": meaning, "also": also})


@dataclass(frozen=True, kw_only=True)
class ListenerConfig:
    """One `[[listener]]`: where clients connect, and how they are known there."""

    address: str
    """host:port, [v6]:port or unix:PATH."""
    tls_cert: str = ""
    """A file with the certificate and its chain; "" for plain connections."""
    tls_key: str = ""
    """A file with its key; "" if it is in the certificate's file."""
    tls_client_ca: str = ""
    """A file with the authorities for clients' certificates; then a client must have one."""
    auth: str = "none"
    """How a client is known: none, token, certificate or peer."""
    user: str = ""
    """With auth = "none": whoever comes in here is this user. "" is nobody, who may do everything."""
    proxy_protocol: bool = False
    """A PROXY header, version 1 or 2, comes first."""
    trusted: tuple[str, ...] = ()
    """The networks whose PROXY headers are believed."""


@dataclass(frozen=True, kw_only=True)
class UserConfig:
    """One `[[user]]`: how it is recognized, and its rights, each a list of patterns of tube names."""

    name: str
    """A certificate with this name is this user's."""
    token_sha256: tuple[str, ...] = ()
    """Its tokens, as 64 hexadecimal digits of their SHA-256."""
    uid: tuple[int, ...] = ()
    """Its user ids, where auth = "peer"."""
    produce: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    inspect: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of a server.

    Raises:
        ConfigError: a bad value.
    """

    listen: str = _option(
        "127.0.0.1",
        _Text("ADDR", "a host name, an address or unix:PATH", but_not=("", "unix:")),
        "-l",
        "listen on this host name or address, or on a UNIX socket: unix:PATH",
    )
    port: int | str = _option(11300, _Port(), "-p", "listen on this TCP port; 0 picks a free one")
    user: str = _option(
        "", _Text("USER", "the name of a user"), "-u", "run as this user, with its groups, once the sockets are open"
    )
    binlog: str = _option(
        "",
        _Text("DIR", "the path of a directory"),
        "-b",
        "keep the jobs in this directory, so that they survive a restart",
    )
    sync_interval: float | str = _option(
        0,
        _Milliseconds(0, LONGEST_SYNC_INTERVAL, NEVER_SYNC),
        "-f",
        "sync the binlog at least every MS milliseconds; 0: before each reply; never: only when a file is full",
        also=("-F", NEVER_SYNC),
    )
    segment_size: int = _option(10485760, _Size(1, LARGEST_SEGMENT_SIZE), "-s", "size of a binlog file")
    body_threshold: int = _option(
        256,
        _Size(0, LARGEST_JOB_SIZE),
        "",
        "with a binlog, keep a longer body on the disk only, once it has been written",
    )
    body_cache: int = _option(
        16777216, _Size(0, LARGEST_SEGMENT_SIZE), "", "memory for the latest of these bodies, which saves reading them"
    )
    salvage: bool = _option(False, _Switch(), "", "start from a damaged binlog, without the jobs that are lost")
    max_job_size: int = _option(
        65535, _JobSize(0, LARGEST_JOB_SIZE), "-z", "size of the largest body that a put may have"
    )
    max_memory: int = _option(
        0, _Size(0, LARGEST_MEMORY), "", "memory that jobs may take; a put beyond it is refused; 0: no limit"
    )
    tick: float = _option(0.25, _Milliseconds(0.001, LONGEST_TICK), "", "precision of delays and timeouts")
    compat: str = _option(
        PROTOCOL, _Choice("VERSION", PROTOCOLS), "", "answer as this version of beanstalkd, where versions differ"
    )
    verbosity: int = _option(0, _Count(), "-V", "log connections; given twice, log commands too")
    stalls: bool = _option(False, _Switch(), "", "log the longest stalls of the event loop")

    def __post_init__(self) -> None:
        for each in OPTIONS:
            each.check(getattr(self, each.name))

    def changed(self) -> dict[str, object]:
        """The values that differ from their defaults, by the name of the option."""
        return {each.name: getattr(self, each.name) for each in OPTIONS if getattr(self, each.name) != each.default}


OPTIONS: Final = tuple(Option(name=each.name, default=each.default, **each.metadata) for each in fields(Config))


def option(name: str) -> str:
    """The flags of the option with this name, as messages show them: -p/--port."""
    return next("/".join(each.flags) for each in OPTIONS if each.name == name)
