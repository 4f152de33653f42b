"""Every option of the server: its default, how its text is read, what it may be and what its help says, in one place.

An option is a field of `Config`. The command line, the environment, the checks, `--help` and the README's table follow
from the field, so adding an option is adding a field. Must never know what the server does with a value.

The options are beanstalkd's, with a long form beside each. The environment variable of `--max-job-size` is
BEANSTALK_SERVER_MAX_JOB_SIZE. The command line takes precedence over the environment, and the environment over the
default.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, NoReturn, TypeGuard

from beanstalk_server.version import PROTOCOL, PROTOCOLS, full_version

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


class _Kind:
    """A kind of values: what is right, how a value is read from its text, and whether a value is one of this kind.

    Args:
        wanted: what is right, as an error says it behind "must be".
        argument: how the command line takes such a value, in argparse's words.
    """

    def __init__(self, wanted: str, **argument: Any) -> None:
        self.wanted = wanted
        self.argument = argument

    def read(self, text: str) -> object:
        """The value that a text stands for; ValueError when it stands for none."""
        return text

    def fits(self, value: object) -> bool:
        """Whether a value, from a text or from Python, is right."""
        raise NotImplementedError


class _Text(_Kind):
    def __init__(self, metavar: str, wanted: str, *, but_not: Sequence[str] = ()) -> None:
        super().__init__(wanted, metavar=metavar)
        self._but_not = but_not

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and value not in self._but_not


class _Choice(_Kind):
    def __init__(self, metavar: str, choices: Sequence[str]) -> None:
        super().__init__(" or ".join(choices), metavar=metavar)
        self._choices = choices

    def fits(self, value: object) -> bool:
        return value in self._choices


class _Port(_Kind):
    def __init__(self) -> None:
        super().__init__("a number from 0 to 65535, or the name of a service", metavar="PORT")

    def read(self, text: str) -> object:
        return int(text) if text.isascii() and text.isdecimal() else text

    def fits(self, value: object) -> bool:
        return value != "" if isinstance(value, str) else _is_whole(value) and 0 <= value <= 65535


class _Size(_Kind):
    def __init__(self, least: int, most: int) -> None:
        super().__init__(f"a whole number of bytes from {least} to {most}", metavar="BYTES")
        self._least = least
        self._most = most

    def read(self, text: str) -> object:
        return int(text)

    def fits(self, value: object) -> bool:
        return _is_whole(value) and self._least <= value <= self._most


class _JobSize(_Size):
    def read(self, text: str) -> object:
        return min(int(text), self._most)  # beanstalkd lowers it too


class _Milliseconds(_Kind):
    """A number, or a word instead of one."""

    def __init__(self, least: float, most: int, word: str | None = None) -> None:
        numbers = f"a number of milliseconds from {least} to {most}"
        super().__init__(f"{numbers}, or {word!r}" if word else numbers, metavar="MS")
        self._least = least
        self._most = most
        self._word = word

    def read(self, text: str) -> object:
        return text if text == self._word else float(text)

    def fits(self, value: object) -> bool:
        if isinstance(value, str):
            return value == self._word
        return (isinstance(value, float) or _is_whole(value)) and self._least <= value <= self._most


class _Count(_Kind):
    """How often an option without a value is given."""

    def __init__(self) -> None:
        super().__init__("a whole number, 0 or greater", action="count")

    def read(self, text: str) -> object:
        return int(text)

    def fits(self, value: object) -> bool:
        return _is_whole(value) and value >= 0


class _Switch(_Kind):
    """Whether an option without a value is given."""

    def __init__(self) -> None:
        super().__init__("0 or 1", action="store_true", default=None)

    def read(self, text: str) -> object:
        return bool(("0", "1").index(text))

    def fits(self, value: object) -> bool:
        return isinstance(value, int) and value in (0, 1)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _option(default: Any, kind: _Kind, short: str, meaning: str, *, also: str = "") -> Any:
    """A field that is an option.

    Args:
        short: its short form, or "".
        meaning: what it does, as `--help` and the README say it.
        also: another short form, and the value that it stands for: "-F never".
    """
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
        also=f"-F {NEVER_SYNC}",
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
    stalls: bool = _option(False, _Switch(), "", "log how long the event loop was held at the longest")

    def __post_init__(self) -> None:
        for setting in fields(self):
            value, kind = getattr(self, setting.name), setting.metadata["kind"]
            if not kind.fits(value):
                raise _bad_value(option(setting.name), value, kind)

    def changed(self) -> dict[str, object]:
        """The options that differ from their defaults, by name."""
        return {
            setting.name: getattr(self, setting.name)
            for setting in fields(self)
            if getattr(self, setting.name) != setting.default
        }


def option(name: str) -> str:
    """How the option of this name is written on the command line: -p/--port."""
    return "/".join(_flags(Config.__dataclass_fields__[name]))


def environment_variable(name: str) -> str:
    """The environment variable of the option of this name."""
    return "BEANSTALK_SERVER_" + name.upper()


def parse_command_line(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Read the options from a command line and an environment.

    Raises:
        ConfigError: an option that does not exist, or a bad value.
        SystemExit: help or the version was asked for, and has been printed.
    """
    given = vars(_parser().parse_args(arguments))
    values: dict[str, Any] = {}
    for setting in fields(Config):
        name = setting.name
        variable = environment_variable(name)
        if given[name] is not None:
            values[name] = _value(setting, given[name], option(name))
        elif variable in environment:
            values[name] = _value(setting, environment[variable], variable)
    return Config(**values)


def _value(setting: Field[Any], given: object, source: str) -> object:
    """A value that is given as it is, or as text; it is checked here, so that an error names where it comes from."""
    kind: _Kind = setting.metadata["kind"]
    try:
        value = kind.read(given) if isinstance(given, str) else given
    except ValueError:
        raise _bad_value(source, given, kind) from None
    if not kind.fits(value):
        raise _bad_value(source, given, kind)
    return value


def _bad_value(source: str, value: object, kind: _Kind) -> ConfigError:
    return ConfigError(f"{source}: bad value {value!r}: must be {kind.wanted}")


def _flags(setting: Field[Any]) -> list[str]:
    return [flag for flag in (setting.metadata["short"], "--" + setting.name.replace("_", "-")) if flag]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> _Parser:
    parser = _Parser(
        prog="beanstalk-server",
        usage="%(prog)s [OPTIONS]",
        description="A job queue with delays that speaks the beanstalk protocol.",
        epilog="The environment variable in brackets counts where the option is not given. "
        "Tools for the binlog: beanstalk-server binlog --help.",
        allow_abbrev=False,
    )
    for setting in fields(Config):
        short, kind, meaning, also = (setting.metadata[name] for name in ("short", "kind", "meaning", "also"))
        default = f" (default: {setting.default})" if setting.default != "" and "metavar" in kind.argument else ""
        text = f"{meaning}{default} [{environment_variable(setting.name)}]"
        parser.add_argument(*_flags(setting), dest=setting.name, help=text, **kind.argument)
        if also:
            flag, value = also.split()
            text = f"the same as {short} {value}"
            parser.add_argument(flag, dest=setting.name, action="store_const", const=value, help=text)
    parser.add_argument("-c", "-n", action="store_true", dest="ignored", help="ignored, as by beanstalkd")
    parser.add_argument(
        "-v",
        "--version",
        action="version",
        version=f"beanstalk-server {full_version()}",
        help="show the version and exit",
    )
    return parser
