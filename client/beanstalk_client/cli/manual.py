r"""Prints the manual page of `beanstalk`, made from the table of its commands, as man reads it.

Written here rather than by a library: argparse-manpage, which is kept, repeats the options of the server under each of
twenty commands, and knows nothing of environment variables and exit statuses.
(groff_man(7); `\-` is the hyphen that can be typed.)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from beanstalk_client.cli.parser import ABOUT, COMMANDS, COMMON, PROGRAM, STATUSES, Argument
from beanstalk_client.version import VERSION

ENVIRONMENT: Final = (
    ("BEANSTALK_SERVER", "address of the server, as for --server"),
    ("BEANSTALK_TOKEN", "token, unless --token-file is given"),
    ("NO_COLOR", "if set, the output has no colours"),
)


def man(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Print the page."""
    print(page(), end="")
    return 0


def page() -> str:
    """The manual page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'.TH {PROGRAM.upper()} 1 "" "beanstalk\\-client {VERSION}" "User Commands"'
    yield from (".SH NAME", rf"{PROGRAM} \- inspect and control a beanstalk server")
    yield from (".SH SYNOPSIS", rf".B {PROGRAM}", _text("[OPTION ...] COMMAND [ARGUMENT ...]"))
    yield from (".SH DESCRIPTION", _text(ABOUT))
    yield ".SH COMMANDS"
    for command in COMMANDS:
        yield f".SS {_quoted(command.synopsis)}"
        yield _text(command.description)
        for argument in command.arguments:
            yield from _entry(argument)
    yield ".SH OPTIONS"
    yield "Options may come before or after the command."
    for argument in COMMON:
        yield from _entry(argument)
    yield ".SH ENVIRONMENT"
    for name, meaning in ENVIRONMENT:
        yield from (".TP", f".B {name}", _text(meaning))
    yield from (".SH EXIT STATUS", _text(STATUSES.removeprefix("Exit status: ")))
    yield from (".SH SEE ALSO", r".BR beanstalk\-server (1)")


def _entry(argument: Argument) -> Iterator[str]:
    value = argument.value
    flags = argument.flags
    yield ".TP"
    if flags[0].startswith("-"):
        typed = ", ".join(rf"\fB{_escaped(flag)}\fR" for flag in flags)
        yield typed + (rf" \fI{_escaped(value)}\fR" if value else "")
    else:
        yield rf"\fI{_escaped(value)}\fR"
    yield _text(argument.help)


def _text(text: str) -> str:
    """A paragraph: no line of it may begin with what troff takes for a request."""
    line = _escaped(" ".join(text.split()))
    return rf"\&{line}" if line.startswith((".", "'")) else line


def _quoted(text: str) -> str:
    return '"' + _escaped(text).replace('"', r"\(dq") + '"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
