"""Reads the options from the command line and from the environment, and writes the help.

The command line takes precedence over the environment, the environment over the config file, and that over the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from beanstalk_server.cli.configuration import TLS_FILES, put_together
from beanstalk_server.settings.declaration import ConfigError, Mistake, Option, meant_by
from beanstalk_server.settings.options import OPTIONS, Config
from beanstalk_server.version import full_version

HELP: Final = ("-h", "--help")
VERSION: Final = ("-v", "--version")
IGNORED: Final = ("-c", "-n")
"""Options without effect, which beanstalkd ignores, too."""

CONFIG: Final = "--config"
CONFIG_VARIABLE: Final = "BEANSTALK_SERVER_CONFIG"
PREFIX: Final = "BEANSTALK_SERVER_"
CHECK: Final = "--check-config"
BEHIND_THEM: Final = (
    (
        f"{CONFIG} FILE",
        "config file with options, listeners, users and policies (docs/config.md); command-line options override it",
    ),
    (CHECK, "check the options and their files, then exit"),
)
"""Flags that are about configurations, and so are not options of one: each with its meaning."""

LOG_FORMAT: Final = "--log-format"
_PROTECTS: Final = {CONFIG_VARIABLE, *(each.variable for each in OPTIONS if each.name in (*TLS_FILES, "token_file"))}
"""Without these variables, the server may be open to all clients."""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Config | str:
    """Read the options and the config file; if --help, --version or --check-config is given, return its text instead.

    Raises:
        ConfigError: an option does not exist, a value is missing or bad, or a file is bad. The message has a line for
            each mistake.
    """
    given: dict[str, str] = {}
    variables = set_variables(environment)
    path = variables.get(CONFIG_VARIABLE)
    checks = False
    for flag, value in _split(arguments):
        if flag in HELP:
            return help_text()
        if flag in VERSION:
            return f"beanstalk-server {full_version()}"
        if flag == CONFIG:
            path = value
        elif flag == CHECK:
            checks = True
        elif flag not in IGNORED:
            name, constant = _FLAGS[flag]
            if constant:
                given[name] = constant
            elif value is None:
                given[name] = str(int(given.get(name, 0)) + 1)
            else:
                given[name] = value
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    mistakes: list[Mistake] = []
    for option in OPTIONS:
        if option.name in given:
            text, source = given[option.name], option.place
        elif option.variable in variables:
            text, source = variables[option.variable], option.variable
        else:
            continue
        sources[option.name] = source
        try:
            values[option.name] = option.read(text, source)
        except ConfigError as error:
            mistakes += error.mistakes
    if path == "":  # as of a shell variable that is not set: the server would be an open one
        mistakes.append(Mistake(CONFIG, "bad value '': must be the path of a file"))
    warnings: list[str] = []  # a server gives them itself, to its log
    config = put_together(path or "", values, sources, mistakes, warnings.append, checks_system=checks)
    if not checks:
        return config
    from beanstalk_server.settings.warnings import warnings_of

    what = path or "the options"
    said = [*warnings, *odd_variables(environment), *warnings_of(config)]
    return "\n".join([*(f"{what}: warning: {each}" for each in said), f"{what}: valid"])


def set_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of this program that have a value: empty ones are not set.

    Kubernetes gives a pod BEANSTALK_SERVER_PORT=tcp://ADDRESS:PORT for a Service named beanstalk-server. This is no
    port, and not meant as an option.
    """
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(PREFIX) and value and not value.startswith("tcp://")
    }


def odd_variables(environment: Mapping[str, str]) -> list[str]:
    """Warnings of variables that begin as if they set an option: those that set none, and empty ones that protect.

    Kubernetes gives a pod variables with the addresses of a Service that is called beanstalk-server, or
    beanstalk-server-http. These are not worth a warning.
    """
    ours = {name for name in environment if name.startswith(PREFIX)}
    if not ours:
        return []
    import re

    known = [CONFIG_VARIABLE, f"{PREFIX}PURE", *(option.variable for option in OPTIONS)]
    said = []
    for name in sorted(ours):
        if name in known:
            if not environment[name] and name in _PROTECTS:
                said.append(f"{name}: empty, so it has no effect: must be the path of a file, or be unset")
        elif not re.search("_(SERVICE_(HOST|PORT)|PORT$|PORT_[0-9]+_(TCP|UDP))", name):
            near = meant_by(name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in known])
            said.append(f"{name}: unknown variable{f': did you mean {PREFIX}{near}?' if near else ''}")
    return said


def asks_for_json(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether bad options ask for a log in JSON; the config file is not read."""
    asked = environment.get(f"{PREFIX}LOG_FORMAT", "")
    for before, each in zip(["", *arguments], arguments, strict=False):
        if before == LOG_FORMAT:
            asked = each
        elif each.startswith(f"{LOG_FORMAT}="):
            asked = each.partition("=")[2]
    return asked.lower() == "json"


_FLAGS: Final[dict[str, tuple[str, str]]] = {flag: (option.name, "") for option in OPTIONS for flag in option.flags} | {
    option.also[0]: (option.name, option.also[1]) for option in OPTIONS if option.also
}
"""The name of the option behind each flag, and the value that the flag implies, or ""."""

_WITH_VALUE: Final = {flag for option in OPTIONS if option.kind.metavar for flag in option.flags} | {CONFIG}
_LONG: Final = [flag[2:] for flag in (*_FLAGS, CONFIG, CHECK, *HELP, *VERSION) if flag.startswith("--")]
_WITHOUT_VALUE: Final = {*_FLAGS, *HELP, *VERSION, *IGNORED, CHECK} - _WITH_VALUE


def _split(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each flag with its value, or with None if it takes none: `-p 1`, `-p1`, `--port 1`, `--port=1`, `-cnV`."""
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
                    raise ConfigError(f"{argument}: needs a value")
                value = left.pop()
            yield flag, value
        elif flag not in _WITHOUT_VALUE:
            near = meant_by(flag[2:], _LONG) if flag.startswith("--") else ""
            hint = f": did you mean --{near}?" if near else "; beanstalk-server --help lists all options"
            raise ConfigError(f"{argument}: no such option{hint}")
        elif not equals:
            yield flag, None
        elif flag.startswith("--"):
            raise ConfigError(f"{argument}: {flag} takes no value")
        else:
            yield flag, None
            left.append("-" + value)


def help_text() -> str:
    """What `--help` prints."""
    from shutil import get_terminal_size  # imported here, because only the help needs these two
    from textwrap import fill

    width = min(get_terminal_size().columns, 120)
    rows = [(", ".join(option.flags) + f" {option.kind.metavar}", _meaning(option)) for option in OPTIONS]
    rows += [(option.also[0], f"the same as {option.short} {option.also[1]}") for option in OPTIONS if option.also]
    rows += BEHIND_THEM
    rows += [
        (", ".join(IGNORED), "ignored, as in beanstalkd"),
        (", ".join(VERSION), "print the version"),
        (", ".join(HELP), "print this help"),
    ]
    return "\n".join(
        [
            "Usage: beanstalk-server [OPTIONS]",
            "       beanstalk-server binlog --help",
            "       beanstalk-server cluster --help",
            "       beanstalk-server token",
            "",
            fill("A job queue with delays that speaks the beanstalk protocol.", width),
            "",
            *(
                fill(meaning, width, initial_indent=f"  {flags:<25} ", subsequent_indent=" " * 28)
                for flags, meaning in rows
            ),
            "",
            fill(
                "An environment variable sets an option that is not given on the command line: "
                "BEANSTALK_SERVER_MAX_JOB_SIZE sets --max-job-size.",
                width,
            ),
        ]
    )


def _meaning(option: Option) -> str:
    told = [option.kind.bounds] if option.kind.bounds else []
    if option.kind.metavar and option.default != "":
        told.append(f"default: {option.default}")
    return f"{option.meaning} ({'; '.join(told)})" if told else option.meaning
