"""The command line of `beanstalk`: one table of commands, from which help, completion and manual pages are made.

Must never know what a command does: the table says in which module its function is. A new command is a row of COMMANDS.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from beanstalk_server.cli.operator.top_keys import SORT_KEYS
from beanstalk_server.version import full_version

PROGRAM: Final = "beanstalk"

ABOUT: Final = "Looks into a beanstalk server and steers it: beanstalk-server, and beanstalkd for what it can."

STATUSES: Final = """\
Exit status: 0; 1 if the server refuses, or there is no such job or tube; 2 if the command line is wrong; 69 if there is
no server, or it is lost."""

TUBE_NAME: Final = r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}"
"""The pattern of a valid name of a tube, and of a key."""

MAX_NUMBER: Final = 2**32 - 1

DURATION_UNITS: Final = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

TUBES: Final = {
    "bash": "_beanstalk_tubes",
    "zsh": "_beanstalk_tubes",
    "fish": "(__beanstalk_tubes)",
}
"""What completes the name of a tube in each shell: functions that `shells.py` puts in front of its script."""

FILES: Final = {"bash": "_shtab_compgen_files", "zsh": "_files", "fish": "__fish_complete_path"}

Parser = TypeVar("Parser", bound="CommandParser")


class Argument:
    """One option or positional argument: what argparse is told, and what completes it."""

    __slots__ = ("complete", "flags", "settings")

    def __init__(self, *flags: str, complete: dict[str, str] | None = None, **settings: Any) -> None:
        self.flags = flags
        self.settings = settings
        self.complete = complete


class Command:
    """One row of the table.

    Attributes:
        name: what is typed.
        function: where it is: the module beside this one, and the function that gets the options and returns the exit
            status: "looking.ping".
        help: what it does, in one line.
        about: what else has to be known, in sentences.
        tail: whether what stands behind ` -- ` is a command line of its own, and its name in the help.
    """

    __slots__ = ("about", "arguments", "function", "help", "module", "name", "tail")

    def __init__(
        self, name: str, function: str, help: str, *arguments: Argument, about: str = "", tail: str = ""
    ) -> None:
        self.name = name
        self.module, _, self.function = function.partition(".")
        self.help = help
        self.arguments = arguments
        self.about = about
        self.tail = tail


class CommandParser(argparse.ArgumentParser):
    """Reads the arguments of one command; what stands behind ` -- ` is left alone if the command wants it."""

    tail = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        behind: list[str] = []
        if self.tail and args is not None and "--" in args:
            cut = list(args).index("--")
            args, behind = args[:cut], args[cut + 1 :]
        namespace, rest = super().parse_known_args(args, namespace)
        if self.tail:
            if not behind:
                self.error(f"what to run must follow: -- {self.tail}")
            namespace.command = behind
        return namespace, rest


def duration(text: str) -> float:
    """Read a duration: seconds, or with a unit: 0.5, 90s, 10m, 2h, 1d."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|[smhd]?)", text)
    seconds = float(found[1]) * DURATION_UNITS[found[2]] if found else math.inf
    if not 0 <= seconds <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"bad duration {text!r}: must be seconds, or as 90s, 10m, 2h, 1d")
    return int(seconds) if seconds == int(seconds) else seconds


def positive_duration(text: str) -> float:
    """Read a duration that is more than none."""
    seconds = duration(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"bad duration {text!r}: must be more than 0")
    return seconds


def number(text: str) -> int:
    """Read a number from 0 to 2^32 - 1, as priorities and bounds are."""
    if not re.fullmatch(r"\d{1,10}", text) or int(text) > MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"bad number {text!r}: must be from 0 to {MAX_NUMBER}")
    return int(text)


def count(text: str) -> int:
    """Read a number of jobs, which is 1 at the least."""
    if number(text) == 0:
        raise argparse.ArgumentTypeError("bad number '0': must be 1 at the least")
    return int(text)


def job_id(text: str) -> int:
    """Read the id of a job."""
    if not re.fullmatch(r"\d{1,20}", text) or not 0 < int(text) < 2**64:
        raise argparse.ArgumentTypeError(f"bad id {text!r}: must be a number from 1 on")
    return int(text)


def tube_name(text: str) -> str:
    """Read the name of a tube, or a key, whose rules are the same."""
    if not re.fullmatch(TUBE_NAME, text):
        raise argparse.ArgumentTypeError(
            f"bad name {text!r}: must be 1 to 200 of A-Z a-z 0-9 - + / ; . $ _ ( ), the first not a hyphen"
        )
    return text


COMMON: Final = (
    Argument(
        "--server",
        metavar="ADDRESS",
        help="host:port, [v6]:port or unix:/path (default: BEANSTALK_SERVER, or 127.0.0.1:11300)",
    ),
    Argument("--tls", action="store_true", help="speak TLS, and trust the authorities that the system trusts"),
    Argument("--tls-ca", metavar="FILE", help="speak TLS, and trust these authorities", complete=FILES),
    Argument("--tls-cert", metavar="FILE", help="our certificate, if the server asks for one", complete=FILES),
    Argument("--tls-key", metavar="FILE", help="its key, if it is in another file", complete=FILES),
    Argument("--tls-name", metavar="NAME", help="the name in the server's certificate (default: the host)"),
    Argument(
        "--token-file",
        metavar="FILE",
        help="a file with our token (default: the token is in BEANSTALK_TOKEN, or there is none)",
        complete=FILES,
    ),
    Argument(
        "--answer-within",
        metavar="SECONDS",
        type=positive_duration,
        default=30,
        help="how long the server may take to accept, and to answer a command (default: %(default)s)",
    ),
    Argument("--json", action="store_true", help="JSON: one document, or one a line for what goes on"),
)
"""The options of every command, which may stand before its name or behind it."""

TUBE: Final = Argument("tube", metavar="TUBE", type=tube_name, help="the name of the tube", complete=TUBES)

COMMANDS: Final = (
    Command("ping", "looking.ping", "ask the server for a sign of life, and say how long it took"),
    Command(
        "stats",
        "looking.stats",
        "statistics of the server, a tube or a job",
        Argument("tube", metavar="TUBE", nargs="?", type=tube_name, help="this tube", complete=TUBES),
        Argument("--job", metavar="ID", type=job_id, help="this job"),
    ),
    Command(
        "top",
        "top.top",
        "show live what the server does: rates, ages, and the busiest of its tubes",
        Argument(
            "--interval",
            metavar="SECONDS",
            type=positive_duration,
            default=1,
            help="how long from one sample to the next (default: %(default)s)",
        ),
        Argument(
            "--sort",
            metavar="COLUMN",
            choices=tuple(SORT_KEYS.values()),
            default="ready",
            help=f"the order of the tubes: {', '.join(SORT_KEYS.values())} (default: %(default)s)",
        ),
        Argument("--prefix", metavar="PREFIX", type=tube_name, help="only tubes whose names begin so"),
        Argument("--once", action="store_true", help="draw one screen, or print one sample, and end"),
        about="The key ? shows what can be done with the others.",
    ),
)


def add_common(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add the options of every command.

    Args:
        again: behind a command's name, where an option that is not given must not undo the one before the name.
    """
    group = parser.add_argument_group("server and output") if again else parser
    for argument in COMMON:
        settings = argument.settings | ({"default": argparse.SUPPRESS} if again else {})
        if again and argument.flags[0] == "--answer-within":
            settings["help"] = argument.settings["help"].replace("%(default)s", str(argument.settings["default"]))
        group.add_argument(*argument.flags, **settings).complete = argument.complete  # type: ignore[attr-defined]


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, which sets `name`, `module` and `function` of the command."""
    parser = CommandParser(prog=PROGRAM, description=ABOUT, epilog=STATUSES, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {full_version()}")
    add_common(parser)
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=CommandParser)
    for command in COMMANDS:
        one = commands.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}. {command.about}".strip(),
            allow_abbrev=False,
        )
        for argument in command.arguments:
            action = one.add_argument(*argument.flags, **argument.settings)
            action.complete = argument.complete  # type: ignore[attr-defined]
        one.tail = command.tail
        add_common(one, again=True)
        one.set_defaults(name=command.name, module=command.module, function=command.function)
        if command.tail:
            one.usage = f"{one.format_usage().removeprefix('usage: ').strip()} -- {command.tail}"
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line; what is wrong with it is printed, and ends the program with status 2."""
    return make_parser().parse_args(arguments)
