"""The options as they are typed in a shell: the command line, the environment, the help.

The command line takes precedence over the environment, and the environment over the default. Must never know what an
option does: that and its values are in config.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from beanstalk_server.config import OPTIONS, Config, ConfigError, Option
from beanstalk_server.version import full_version

HELP: Final = ("-h", "--help")
VERSION: Final = ("-v", "--version")
IGNORED: Final = ("-c", "-n")
"""What beanstalkd ignores, too."""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Config | str:
    """Read the options; or return the help or the version, if that is asked for.

    Raises:
        ConfigError: an option that does not exist, or a bad value.
    """
    given: dict[str, str] = {}
    for flag, value in _split(arguments):
        if flag in HELP:
            return help_text()
        if flag in VERSION:
            return f"beanstalk-server {full_version()}"
        if flag not in IGNORED:
            name, constant = _FLAGS[flag]
            if constant:
                given[name] = constant
            elif value is None:
                given[name] = str(int(given.get(name, 0)) + 1)
            else:
                given[name] = value
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.name in given:
            values[option.name] = option.read(given[option.name], "/".join(option.flags))
        elif option.variable in environment:
            values[option.name] = option.read(environment[option.variable], option.variable)
    return Config(**values)


_FLAGS: Final[dict[str, tuple[str, str]]] = {flag: (option.name, "") for option in OPTIONS for flag in option.flags} | {
    option.also[0]: (option.name, option.also[1]) for option in OPTIONS if option.also
}
"""By each way to write an option: its name, and the value that this way stands for, or ""."""

_WITH_VALUE: Final = {flag for option in OPTIONS if option.kind.metavar for flag in option.flags}
_WITHOUT_VALUE: Final = {*_FLAGS, *HELP, *VERSION, *IGNORED} - _WITH_VALUE


def _split(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Each option with its value, None for one that takes none: `-p 1`, `-p1`, `--port 1`, `--port=1`, `-cnV`."""
    left = list(reversed(arguments))
    while left:
        argument = left.pop()
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
        else:
            flag, value = argument[:2], argument[2:]
            equals = value
        if flag in _WITH_VALUE:
            if not equals:
                if not left:
                    raise ConfigError(f"{argument}: a value is missing")
                value = left.pop()
            yield flag, value
        elif flag not in _WITHOUT_VALUE:
            raise ConfigError(f"{argument}: no such option; beanstalk-server --help lists them")
        elif not equals:
            yield flag, None
        elif flag.startswith("--"):
            raise ConfigError(f"{argument}: {flag} takes no value")
        else:
            yield flag, None
            left.append("-" + value)


def help_text() -> str:
    """What `--help` prints."""
    from shutil import get_terminal_size  # here, because a start does not need these two
    from textwrap import fill

    width = min(get_terminal_size().columns, 120)
    rows = [(", ".join(option.flags) + f" {option.kind.metavar}", _meaning(option)) for option in OPTIONS]
    rows += [(option.also[0], f"the same as {option.short} {option.also[1]}") for option in OPTIONS if option.also]
    rows += [
        (", ".join(IGNORED), "ignored, as by beanstalkd"),
        (", ".join(VERSION), "print the version"),
        (", ".join(HELP), "print this help"),
    ]
    return "\n".join(
        [
            "Usage: beanstalk-server [OPTIONS]",
            "       beanstalk-server binlog --help",
            "",
            fill("A job queue with delays that speaks the beanstalk protocol.", width),
            "",
            *(
                fill(meaning, width, initial_indent=f"  {flags:<25} ", subsequent_indent=" " * 28)
                for flags, meaning in rows
            ),
            "",
            fill(
                "Each option has an environment variable, which counts where the option is not given: "
                "BEANSTALK_SERVER_MAX_JOB_SIZE for --max-job-size.",
                width,
            ),
        ]
    )


def _meaning(option: Option) -> str:
    shown = option.kind.metavar and option.default != ""
    return f"{option.meaning} (default: {option.default})" if shown else option.meaning
