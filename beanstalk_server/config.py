"""Every option of the server: its default, how its text is read, what it may be and what it does, in one place.

An option is a field of `Config`. The command line, the environment, the checks, `--help` and the README's table follow
from the field, so adding an option is adding a field. Options with a short form are beanstalkd's. Must never know what
the server does with a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeGuard

from beanstalk_server.version import PROTOCOL, PROTOCOLS

LARGEST_JOB_SIZE: Final = 1 << 30
"""The largest value that beanstalkd takes for -z, in bytes."""

LARGEST_SEGMENT_SIZE: Final = 1 << 40
"""Bytes."""

LONGEST_SYNC_INTERVAL: Final = 1 << 31
"""Milliseconds, which is 24 days."""

LONGEST_TICK: Final = 1000
"""Milliseconds: the safety margin of a reservation is a second."""

NEVER_SYNC: Final = "never"
"""The sync interval of -F."""


class ConfigError(ValueError):
    """A bad option or value: one line that names the option, the value and what would be right."""


class Kind:
    """A kind of values: what is right, how a value is read from its text, and whether a value is one of this kind.

    Args:
        wanted: what is right, as an error says it behind "must be".
        metavar: what stands for a value in the help, such as "PORT"; "" for an option that takes none on the command
            line, where its value is how often it is given.
    """

    def __init__(self, wanted: str, metavar: str = "") -> None:
        self.wanted = wanted
        self.metavar = metavar

    def read(self, text: str) -> object:
        """The value that a text stands for; ValueError when it stands for none."""
        return text

    def fits(self, value: object) -> bool:
        """Whether a value, from a text or from Python, is right."""
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
        return min(int(text), self._most)  # beanstalkd lowers it too


class _Milliseconds(Kind):
    """A number, or a word instead of one."""

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
        return int(text) > 0  # twice is as good as once

    def fits(self, value: object) -> bool:
        return isinstance(value, int) and value in (0, 1)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


class Option(NamedTuple):
    """An option, with all that follows from its field of `Config`."""

    name: str
    default: Any
    kind: Kind
    short: str
    """Its short form, or ""."""
    meaning: str
    """What it does, as the help and the README say it."""
    also: tuple[str, str] | None
    """Another short form, and the value that this one stands for."""

    @property
    def flags(self) -> list[str]:
        """How it is written on the command line: the short form, if it has one, and the long one."""
        long = "--" + self.name.replace("_", "-")
        return [self.short, long] if self.short else [long]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "BEANSTALK_SERVER_" + self.name.upper()

    def read(self, text: str, source: str) -> object:
        """The value that a text stands for.

        Args:
            source: where the text comes from, as an error names it.

        Raises:
            ConfigError: it stands for no value, or for a bad one.
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
class Config:
    """The options of a server.

    Raises:
        ConfigError: a bad value.
    """

    listen: str = _option(
        "127.0.0.1",
        _Text("ADDR", "a host name, an address or unix:PATH", but_not=("", "unix:")),
        "-l",
        "listen on this host or address; or on a UNIX socket, as unix:PATH",
    )
    port: int | str = _option(11300, _Port(), "-p", "listen on this TCP port; 0 takes any that is free")
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
    segment_size: int = _option(10485760, _Size(1, LARGEST_SEGMENT_SIZE), "-s", "size of a file of the binlog")
    salvage: bool = _option(False, _Switch(), "", "start on a damaged binlog, without the jobs that are lost")
    max_job_size: int = _option(
        65535, _JobSize(0, LARGEST_JOB_SIZE), "-z", "size of the largest body that a job may have"
    )
    tick: float = _option(10, _Milliseconds(0.001, LONGEST_TICK), "", "precision of delays and timeouts")
    compat: str = _option(
        PROTOCOL, _Choice("VERSION", PROTOCOLS), "", "answer as this version of beanstalkd, where versions differ"
    )
    verbosity: int = _option(0, _Count(), "-V", "log connections; given twice, log commands too")
    stalls: bool = _option(False, _Switch(), "", "log the longest stalls of the event loop")

    def __post_init__(self) -> None:
        for each in OPTIONS:
            each.check(getattr(self, each.name))

    def changed(self) -> dict[str, object]:
        """The values that differ from the defaults, by the names of their options."""
        return {each.name: getattr(self, each.name) for each in OPTIONS if getattr(self, each.name) != each.default}


OPTIONS: Final = tuple(Option(name=each.name, default=each.default, **each.metadata) for each in fields(Config))


def option(name: str) -> str:
    """How the option of this name is written on the command line: -p/--port."""
    return next("/".join(each.flags) for each in OPTIONS if each.name == name)
