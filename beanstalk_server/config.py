"""Every setting: its default, its option, its environment variable and its check, in one place.

A setting is a field of `Config`; its metadata says how it is written on the command line. The options are those of
beanstalkd, with a long form beside each; the environment variable of `--max-job-size` is
BEANSTALK_SERVER_MAX_JOB_SIZE. The command line goes before the environment, and the environment before the default.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from beanstalk_server.version import VERSION

MAX_JOB_SIZE_LIMIT = 1 << 30
"""The largest value that beanstalkd takes for -z, in bytes."""

NEVER = "never"
"""The sync interval of -F."""

MAX_SEGMENT_SIZE = 1 << 40
"""Bytes."""

MAX_INTERVAL = 1 << 31
"""Milliseconds, which is 24 days."""

MAX_TICK = 1000.0
"""The longest tick, in milliseconds: the DEADLINE_SOON margin is a second."""


class ConfigError(ValueError):
    """A setting that cannot be: one line that names the option, the value and what would be right."""


def _setting(default: Any, short: str, meaning: str, *, metavar: str | None = None, count: bool = False) -> Any:
    return field(default=default, metadata={"short": short, "help": meaning, "metavar": metavar, "count": count})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a server.

    Raises:
        ConfigError: a value that cannot be.
    """

    listen: str = _setting("127.0.0.1", "-l", "listen on this host, address, or unix:PATH", metavar="ADDR")
    port: int | str = _setting(11300, "-p", "listen on this port, a number or a service name", metavar="PORT")
    user: str = _setting("", "-u", "become this user and its groups once the socket is open", metavar="USER")
    binlog: str = _setting("", "-b", "keep jobs in this directory, so that they outlive the process", metavar="DIR")
    sync_interval: float | str = _setting(
        0, "-f", "sync the binlog this often at least; 0: before each reply; never: as -F", metavar="MS"
    )
    segment_size: int = _setting(10485760, "-s", "the size of a file of the binlog, in bytes", metavar="BYTES")
    salvage: int = _setting(0, "", "start on a damaged binlog, without what is lost", count=True)
    max_job_size: int = _setting(65535, "-z", "the largest job body, in bytes", metavar="BYTES")
    tick: float = _setting(10.0, "", "the precision of delays and timeouts, in milliseconds", metavar="MS")
    verbosity: int = _setting(0, "-V", "log connections; twice, log commands too", count=True)
    stalls: int = _setting(0, "", "log the longest stretch for which the event loop was held", count=True)

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            self._check_type(setting.name, getattr(self, setting.name))
        if not self.listen or self.listen == "unix:":
            raise ConfigError(f"{option('listen')}: {self.listen!r} is no host, address or unix:PATH")
        if self.port == "":
            raise ConfigError(f"{option('port')}: {self.port!r} is no port")
        if str(self.port).isascii() and str(self.port).isdecimal() and int(self.port) > 65535:
            raise ConfigError(f"{option('port')}: {self.port!r} is not between 0 and 65535")
        if not 0 <= self.max_job_size <= MAX_JOB_SIZE_LIMIT:
            raise ConfigError(
                f"{option('max_job_size')}: {self.max_job_size!r} is not between 0 and {MAX_JOB_SIZE_LIMIT}"
            )
        if not 0.001 <= self.tick <= MAX_TICK:
            raise ConfigError(f"{option('tick')}: {self.tick!r} is not between 0.001 and {MAX_TICK:g} milliseconds")
        if isinstance(self.sync_interval, str) and self.sync_interval != NEVER:
            raise ConfigError(f"{option('sync_interval')}: {self.sync_interval!r} is neither a number nor {NEVER!r}")
        if not isinstance(self.sync_interval, str) and not 0 <= self.sync_interval <= MAX_INTERVAL:
            raise ConfigError(
                f"{option('sync_interval')}: {self.sync_interval!r} is not between 0 and {MAX_INTERVAL} milliseconds"
            )
        if not 1 <= self.segment_size <= MAX_SEGMENT_SIZE:
            raise ConfigError(
                f"{option('segment_size')}: {self.segment_size!r} is not between 1 and {MAX_SEGMENT_SIZE} bytes"
            )
        for name in ("verbosity", "stalls", "salvage"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{option(name)}: {getattr(self, name)!r} is negative")

    def _check_type(self, name: str, value: object) -> None:
        wanted = _TYPES[name]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ConfigError(f"{option(name)}: {value!r} is a {type(value).__name__}")

    def changed(self) -> dict[str, object]:
        """The settings that differ from their defaults, by name."""
        return {
            setting.name: getattr(self, setting.name)
            for setting in dataclasses.fields(self)
            if getattr(self, setting.name) != setting.default
        }


_TYPES: dict[str, tuple[type, ...]] = {
    "listen": (str,),
    "port": (int, str),
    "user": (str,),
    "binlog": (str,),
    "sync_interval": (float, int, str),
    "segment_size": (int,),
    "salvage": (int,),
    "max_job_size": (int,),
    "tick": (float, int),
    "verbosity": (int,),
    "stalls": (int,),
}


def option(name: str) -> str:
    """How the setting of this name is written on the command line, short and long."""
    short = Config.__dataclass_fields__[name].metadata["short"]
    long = "--" + name.replace("_", "-")
    return f"{short}/{long}" if short else long


def environment_variable(name: str) -> str:
    """The environment variable of the setting of this name."""
    return "BEANSTALK_SERVER_" + name.upper()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> _Parser:
    parser = _Parser(
        prog="beanstalk-server",
        usage="%(prog)s [OPTIONS]",
        description="A job queue with delays that speaks the beanstalk protocol.",
        epilog="Tools for the binlog: beanstalk-server binlog --help.",
        allow_abbrev=False,
    )
    for setting in dataclasses.fields(Config):
        facts = setting.metadata
        flags = [flag for flag in (facts["short"], "--" + setting.name.replace("_", "-")) if flag]
        variable = environment_variable(setting.name)
        if facts["count"]:
            parser.add_argument(*flags, dest=setting.name, action="count", help=f"{facts['help']} [{variable}]")
        else:
            shown = f" (default: {setting.default})" if setting.default != "" else ""
            parser.add_argument(
                *flags, dest=setting.name, metavar=facts["metavar"], help=f"{facts['help']}{shown} [{variable}]"
            )
    parser.add_argument("-F", action="store_const", dest="sync_interval", const=NEVER, help="never sync the binlog")
    parser.add_argument("-c", "-n", action="store_true", dest="ignored", help="accepted and ignored, as by beanstalkd")
    parser.add_argument("-v", "--version", action="version", version=f"beanstalk-server {VERSION}")
    return parser


def parse_command_line(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Read the settings from a command line and an environment.

    Raises:
        ConfigError: an option that does not exist, or a value that cannot be.
        SystemExit: help or version was asked for, and has been printed.
    """
    given = vars(_parser().parse_args(arguments))
    values: dict[str, Any] = {}
    for setting in dataclasses.fields(Config):
        name = setting.name
        source = option(name)
        text = given[name]
        if text is None and environment_variable(name) in environment:
            source = environment_variable(name)
            text = environment[source]
        if text is not None:
            values[name] = _read(name, text, source)
    if values.get("max_job_size", 0) > MAX_JOB_SIZE_LIMIT:  # beanstalkd lowers it too
        values["max_job_size"] = MAX_JOB_SIZE_LIMIT
    return Config(**values)


def _read(name: str, text: str | int, source: str) -> object:
    """A value from its text; what is not a number where one is wanted is refused here."""
    if isinstance(text, int) or name in ("listen", "port", "user", "binlog"):
        return text
    if name == "sync_interval" and text == NEVER:
        return text
    try:
        return float(text) if name in ("tick", "sync_interval") else int(text)
    except ValueError:
        raise ConfigError(f"{source}: {text!r} is not a number") from None
