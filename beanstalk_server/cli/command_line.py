"""Reads the options from the command line and from the environment, and writes the help.

The command line takes precedence over the environment, the environment over the config file, and that over the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from beanstalk_server.settings.declaration import ConfigError, Mistake, Option
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
"""What a configuration cannot have as an option, because it is about configurations: its flags, and what it does."""

LOG_FORMAT: Final = "--log-format"
NEEDS_A_LOOK: Final = ("tls_cert", "tls_key", "tls_client_ca", "token_file")
"""The options that name files which must be good, or go together with others."""


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Config | str:
    """Read the options and the config file; if --help, --version or --check-config is given, return its text instead.

    Raises:
        ConfigError: an option does not exist, a value is missing or bad, or a file is bad. The message has a line for
            each mistake.
    """
    given: dict[str, str] = {}
    path, path_source = environment.get(CONFIG_VARIABLE), CONFIG_VARIABLE
    checks = False
    for flag, value in _split(arguments):
        if flag in HELP:
            return help_text()
        if flag in VERSION:
            return f"beanstalk-server {full_version()}"
        if flag == CONFIG:
            path, path_source = value, CONFIG
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
            text, source = given[option.name], "/".join(option.flags)
        elif option.variable in environment:
            text, source = environment[option.variable], option.variable
        else:
            continue
        sources[option.name] = source
        try:
            values[option.name] = option.read(text, source)
        except ConfigError as error:
            mistakes += error.mistakes
    if path == "":  # of a variable that is not set, say: the server would be an open one
        mistakes.append(Mistake(path_source, "bad value '': must be the path of a file"))
    if path or checks or any(name in values for name in NEEDS_A_LOOK):
        from beanstalk_server.cli.configuration import put_together  # with all that such a configuration needs
        from beanstalk_server.settings.warnings import warnings_of

        warnings: list[str] = []  # a server gives them itself, to its log
        config = put_together(path or "", values, sources, mistakes, warnings.append, checks_system=checks)
        return (
            _report(path or "the options", [*warnings, *odd_variables(environment), *warnings_of(config)])
            if checks
            else config
        )
    if mistakes:
        raise ConfigError(*mistakes)
    return Config(**values)


def odd_variables(environment: Mapping[str, str]) -> list[str]:
    """What is wrong with the names of environment variables: those that begin as if they set an option, and set none.

    Kubernetes gives a pod variables with the addresses of a service that is called beanstalk-server.
    """
    ours = {name.removeprefix(PREFIX) for name in environment if name.startswith(PREFIX)}
    if not ours:
        return []
    import difflib  # most servers are given options by flags or a file
    import re

    known = {"CONFIG", "PURE", *(option.variable.removeprefix(PREFIX) for option in OPTIONS)}
    said = []
    for name in sorted(ours - known):
        if not re.match("SERVICE_(HOST|PORT)|PORT_[0-9]", name):
            near = difflib.get_close_matches(name, known, 1)
            said.append(f"{PREFIX}{name}: sets no option{f': did you mean {PREFIX}{near[0]}?' if near else ''}")
    return said


def asks_for_json(arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the log is to be JSON, as far as options that are bad can tell; a config file is not asked."""
    asked = environment.get("BEANSTALK_SERVER_LOG_FORMAT", "")
    for before, each in zip(["", *arguments], arguments, strict=False):
        if before == LOG_FORMAT:
            asked = each
        elif each.startswith(f"{LOG_FORMAT}="):
            asked = each.partition("=")[2]
    return asked == "json"


def _report(what: str, warnings: Sequence[str]) -> str:
    """What --check-config prints of a good configuration."""
    return "\n".join([*(f"{what}: warning: {each}" for each in warnings), f"{what}: good"])


_FLAGS: Final[dict[str, tuple[str, str]]] = {flag: (option.name, "") for option in OPTIONS for flag in option.flags} | {
    option.also[0]: (option.name, option.also[1]) for option in OPTIONS if option.also
}
"""The name of the option behind each flag, and the value that the flag implies, or ""."""

_WITH_VALUE: Final = {flag for option in OPTIONS if option.kind.metavar for flag in option.flags} | {CONFIG}
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
            raise ConfigError(f"{argument}: no such option; beanstalk-server --help lists all options")
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
