"""The command line of `beanstalk`: one table of commands, from which help, completion and manual pages are made.

Must never know what a command does: the table says in which module its function is. A new command is a row of COMMANDS.
"""

from __future__ import annotations

import argparse
import datetime
import math
import re
from collections.abc import Sequence
from typing import Any, Final

from beanstalk_client.cli.top_keys import SORT_KEYS
from beanstalk_client.version import VERSION

PROGRAM: Final = "beanstalk"

ABOUT: Final = (
    "Looks into a beanstalk server and steers it: beanstalk-server, and beanstalkd as far as its commands go."
)

STATUSES: Final = """\
Exit status: 0; 1 if the server refuses, or there is no such job or tube; 2 if the command line is wrong; 69 if there is
no server, or it is lost."""

TUBE_NAME: Final = r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}"
"""The pattern of a valid name of a tube, and of a key."""

MAX_NUMBER: Final = 2**32 - 1

DURATION_UNITS: Final = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

FILES: Final = "files"
TUBES: Final = "tubes"
"""What completes an argument in a shell."""

STATES: Final = ("ready", "delayed", "reserved", "buried")

SORTS: Final = ("tube", "urgent", "ready", "reserved", "delayed", "buried", "waiting", "total", "paused")
"""What `tubes` may be sorted by: its columns."""

WATCHABLE: Final = ("stats", "tubes", "ls", "peek", "show", "clients", "ping")
"""The commands that `watch` repeats: those that change nothing."""


class Argument:
    """One option or positional argument: what argparse is told, and what completes it."""

    __slots__ = ("complete", "flags", "settings")

    def __init__(self, *flags: str, complete: str = "", **settings: Any) -> None:
        self.flags = flags
        self.settings = settings
        self.complete = complete

    @property
    def value(self) -> str:
        """What stands for its value; "" for an option that has none."""
        if "action" in self.settings:
            return ""
        return str(self.settings.get("metavar") or "{" + ",".join(self.settings["choices"]) + "}")

    @property
    def typed(self) -> str:
        """How it is typed, in brackets if it may be left out."""
        if self.flags[0].startswith("-"):
            return f"[{self.flags[0]} {self.value}]" if self.value else f"[{self.flags[0]}]"
        several = {"?": f"[{self.value}]", "+": f"{self.value} ...", argparse.REMAINDER: f"{self.value} [ARGUMENT ...]"}
        return several.get(self.settings.get("nargs", ""), self.value)

    @property
    def help(self) -> str:
        """What it is for, with its default."""
        return str(self.settings["help"]).replace("%(default)s", str(self.settings.get("default")))


class Command:
    """One row of the table.

    Attributes:
        name: what is typed.
        function: where it is: the module beside this one, and the function that gets the options and returns the exit
            status: "inspect.ping".
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

    @property
    def synopsis(self) -> str:
        """How it is typed: its name, options and arguments."""
        words = sorted((argument.typed for argument in self.arguments), key=lambda word: not word.startswith("[-"))
        return " ".join([self.name, *words, *(["--", self.tail] if self.tail else [])])

    @property
    def description(self) -> str:
        """What it does, and what else has to be known."""
        return f"{self.help[0].upper()}{self.help[1:]}. {' '.join(self.about.split())}".strip()


class CommandParser(argparse.ArgumentParser):
    """Reads the arguments of one command; what stands behind ` -- ` is left alone if the command wants it."""

    tail = ""
    mixes = False
    _is_mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        if self._is_mixing:
            return super().parse_known_args(args, namespace)
        behind: list[str] = []
        if self.tail and args is not None and "--" in args:
            cut = list(args).index("--")
            args, behind = args[:cut], args[cut + 1 :]
        if self.mixes:  # otherwise an argument that may be left out would have to stand before all options
            self._is_mixing = True
            try:
                namespace, rest = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._is_mixing = False
        else:
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


def pause_duration(text: str) -> float:
    """Read for how long a tube is paused."""
    if not duration(text):
        raise argparse.ArgumentTypeError(f"bad duration {text!r}: must be more than 0; `beanstalk resume` ends a pause")
    return duration(text)


def moment(text: str) -> float:
    """Read a moment: Unix time, or ISO 8601, which without a time zone is local time."""
    try:
        seconds = (
            float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else datetime.datetime.fromisoformat(text).timestamp()
        )
    except (ValueError, OverflowError):
        seconds = math.inf
    if not 0 <= seconds <= MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"bad moment {text!r}: must be as 2027-01-05T08:00 or Unix time in seconds")
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
        help="host:port, [v6]:port, unix:/path or a URL, beanstalk://host:port "
        "(default: BEANSTALK_SERVER, or 127.0.0.1:11300)",
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

COUNT: Final = Argument("count", metavar="N", nargs="?", type=count, help="at most this many")

ALL: Final = Argument("--all", action="store_true", help="all of them")

NAMED: Final = (
    Argument("tube", metavar="TUBE", nargs="?", type=tube_name, help="the tube of the job", complete=TUBES),
    Argument("key", metavar="KEY", nargs="?", type=tube_name, help="the key of the job in this tube"),
    Argument("--job", metavar="ID", type=job_id, help="the job with this id"),
)
"""What names one job."""

COMMANDS: Final = (
    Command("ping", "inspect.ping", "ask the server for a sign of life, and say how long it took"),
    Command(
        "stats",
        "inspect.stats",
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
        Argument("--prefix", metavar="PREFIX", type=tube_name, help="only tubes whose names begin with this"),
        Argument("--once", action="store_true", help="draw one screen, or print one sample, and end"),
        about="The key ? lists all keys.",
    ),
    Command(
        "tubes",
        "inspect.tubes",
        "the tubes, and how many jobs each has in which state",
        Argument(
            "prefix",
            metavar="PREFIX",
            nargs="?",
            type=tube_name,
            help="only those whose names begin with this",
            complete=TUBES,
        ),
        Argument(
            "--sort",
            metavar="COLUMN",
            choices=SORTS,
            default="tube",
            help=f"by this column, largest first: {', '.join(SORTS)} (default: %(default)s)",
        ),
        Argument("--names", action="store_true", help="their names only"),
        about="A server that does not know stats-tubes (beanstalkd) is asked for each tube by itself.",
    ),
    Command(
        "ls",
        "inspect.ls",
        "the jobs of a tube, in the order in which they would go",
        TUBE,
        Argument(
            "state", metavar="STATE", nargs="?", choices=STATES, help=f"only those in this state: {', '.join(STATES)}"
        ),
        Argument("--limit", metavar="N", type=count, default=100, help="at most this many (default: %(default)s)"),
        about="Needs list-jobs, which beanstalkd does not have.",
    ),
    Command(
        "peek",
        "inspect.peek",
        "the body of a job",
        Argument("id", metavar="ID", nargs="?", type=job_id, help="of this job"),
        Argument("--ready", metavar="TUBE", type=tube_name, help="of the next ready job of this tube", complete=TUBES),
        Argument(
            "--delayed", metavar="TUBE", type=tube_name, help="of the delayed job that is due next", complete=TUBES
        ),
        Argument("--buried", metavar="TUBE", type=tube_name, help="of the job that was buried first", complete=TUBES),
        about="Into a pipe or a file the body goes byte for byte; on a terminal, control characters are escaped.",
    ),
    Command(
        "show",
        "showing.show",
        "a job, and why it is where it is",
        Argument("id", metavar="ID", type=job_id, help="the id of the job"),
        about="It shows the statistics of the job, its tries among them, and the report that a worker has put into "
        "the tube of its name with .errors behind it: who has buried the job, when, and with which error.",
    ),
    Command(
        "clients", "inspect.clients", "who is connected", about="Needs list-clients, which beanstalkd does not have."
    ),
    Command(
        "put",
        "mutate.put",
        "put a job, and print its id",
        TUBE,
        Argument("body", metavar="BODY", nargs="?", help="the body; - or none: standard input, to its end"),
        Argument(
            "--pri",
            metavar="N",
            type=number,
            default=65536,
            help="priority, 0 is the most urgent (default: %(default)s)",
        ),
        Argument(
            "--delay",
            metavar="DURATION",
            type=duration,
            default=0,
            help="how long until it is ready (90, 1.5, 10m, 2h, 1d)",
        ),
        Argument(
            "--ttr",
            metavar="DURATION",
            type=duration,
            default=60,
            help="how long a worker may take before another one gets the job (default: %(default)s)",
        ),
        Argument(
            "--key", metavar="KEY", type=tube_name, help="the job has this name, and at most one of the tube has it"
        ),
        Argument("--replace", action="store_true", help="with --key: replace the job that has the key"),
        Argument(
            "--hold",
            metavar="DURATION",
            type=positive_duration,
            help="with --key: how long the key stays taken after the job is gone",
        ),
        Argument(
            "--at", metavar="MOMENT", type=moment, help="ready at this moment by the server's clock, instead of --delay"
        ),
        Argument(
            "--tries",
            metavar="N",
            type=count,
            help="how often it may fail; then it is buried, or goes to the dead tube",
        ),
        Argument(
            "--backoff",
            metavar="DURATION",
            type=positive_duration,
            help="how long it is delayed when it fails; twice as long each further time",
        ),
        Argument(
            "--ttl", metavar="DURATION", type=positive_duration, help="it expires when it has been ready for so long"
        ),
        about="The options from --key on need put-with, which beanstalkd does not have. There, durations are "
        "rounded up to seconds.",
    ),
    Command(
        "tail",
        "tail.tail",
        "show the bodies of jobs as they come, and take none of them",
        TUBE,
        Argument(
            "-n",
            "--lines",
            metavar="N",
            type=number,
            default=10,
            help="begin with at most this many that are there already (default: %(default)s)",
        ),
        Argument(
            "--interval",
            metavar="DURATION",
            type=positive_duration,
            default=1,
            help="how long from one look to the next (default: %(default)s)",
        ),
        Argument("--ids", action="store_true", help="the id before each body, as on a terminal"),
        Argument("--jobs", metavar="N", type=count, help="end after this many jobs"),
        about="It looks into the first thousand ready jobs and the first thousand reserved ones again and again, "
        "and workers notice nothing. A job that comes and is deleted between two looks is not seen; nor is "
        "one far behind in a long queue, until it comes nearer. Of a server that does not know list-jobs "
        "(beanstalkd) it shows the next ready job, each time that it is another one.",
    ),
    Command(
        "kick",
        "mutate.kick",
        "make jobs ready: the buried ones of a tube, or if it has none, delayed ones; or one job",
        Argument("tube", metavar="TUBE", nargs="?", type=tube_name, help="of this tube", complete=TUBES),
        Argument(
            "count", metavar="N", nargs="?", type=count, default=1, help="at most this many (default: %(default)s)"
        ),
        Argument("--job", metavar="ID", type=job_id, help="this job only"),
    ),
    Command(
        "cancel",
        "mutate.cancel",
        "delete a job that is still delayed, so that no worker ever gets it",
        *NAMED,
        about="A job that is ready, reserved or buried is left alone, and the exit status is 1. Needs cancel, which "
        "beanstalkd does not have.",
    ),
    Command(
        "reschedule",
        "mutate.reschedule",
        "give a job that is still delayed another delay",
        Argument("delay", metavar="DURATION", type=duration, help="from now until it is ready (90, 1.5, 10m, 2h, 1d)"),
        *NAMED,
        about="A job that is ready, reserved or buried is left alone, and the exit status is 1. Needs reschedule, "
        "which beanstalkd does not have.",
    ),
    Command(
        "bury",
        "mutate.bury",
        "set a job aside, with the priority it has",
        Argument("id", metavar="ID", type=job_id, help="the job"),
        about="The protocol lets only a worker bury. So this reserves the job, which counts as one of its reserves, "
        "and buries it at once. A job that a worker has reserved cannot be buried.",
    ),
    Command(
        "delete",
        "mutate.delete",
        "delete jobs",
        Argument("id", metavar="ID", nargs="+", type=job_id, help="the jobs"),
        about="A job that a worker has reserved cannot be deleted. The others are, and the exit status is 1.",
    ),
    Command(
        "move",
        "mutate.move",
        "move jobs to another tube, with all that they are",
        TUBE,
        Argument(
            "state",
            metavar="STATE",
            choices=("ready", "delayed", "buried"),
            help="those that are ready, delayed or buried",
        ),
        Argument("to", metavar="TO", type=tube_name, help="the tube that they go to", complete=TUBES),
        COUNT,
        ALL,
        about="Needs move-jobs, which beanstalkd does not have.",
    ),
    Command(
        "redrive",
        "mutate.redrive",
        "send jobs of a dead tube back to where they came from",
        TUBE,
        COUNT,
        ALL,
        about="Needs redrive, which beanstalkd does not have.",
    ),
    Command(
        "pause",
        "mutate.pause",
        "let nobody reserve from a tube for some time",
        TUBE,
        Argument(
            "seconds",
            metavar="DURATION",
            type=pause_duration,
            help="for how long, rounded up to seconds (90, 10m, 2h)",
        ),
    ),
    Command("resume", "mutate.resume", "end the pause of a tube", TUBE),
    Command(
        "clear",
        "mutate.clear",
        "delete all jobs of a tube that are ready, delayed or buried",
        TUBE,
        Argument("--yes", action="store_true", help="do not ask"),
        about="It asks first. Where nobody can be asked, because standard input is not a terminal, it refuses "
        "without --yes. Needs clear-tube, which beanstalkd does not have.",
    ),
    Command(
        "drain",
        "mutate.drain",
        "let the server take no more jobs; everything else goes on",
        about="As SIGUSR1 does. Needs drain, which beanstalkd does not have.",
    ),
    Command(
        "undrain",
        "mutate.undrain",
        "let the server take jobs again",
        about="Needs undrain, which beanstalkd does not have.",
    ),
    Command(
        "work",
        "worker.work",
        "run a command for each job of a tube",
        TUBE,
        Argument(
            "-n", "--number", metavar="N", type=count, default=1, help="how many jobs at a time (default: %(default)s)"
        ),
        Argument("--timeout", metavar="DURATION", type=positive_duration, help="end a command that takes longer"),
        Argument(
            "--backoff",
            metavar="DURATION",
            type=duration,
            default=1,
            help="how long a job is delayed when its command fails; twice as long each further time "
            "(default: %(default)s; 0: as the tube's policy says)",
        ),
        Argument(
            "--backoff-max",
            metavar="DURATION",
            type=duration,
            default=3600,
            help="the longest of these delays (default: %(default)s)",
        ),
        Argument(
            "--max-tries",
            metavar="N",
            type=count,
            default=0,
            help="bury a job that has failed this often (default: never)",
        ),
        Argument("-v", "--verbose", action="store_true", help="tell of jobs that are done, too"),
        tail="COMMAND [ARGUMENT ...]",
        about="The command gets the body on standard input, and as a file whose path takes the place of an argument "
        "{}. BEANSTALK_JOB_ID, BEANSTALK_JOB_TUBE, BEANSTALK_JOB_TRY (1 for the first) and BEANSTALK_JOB_KEY "
        "are in its environment. Exit status 0 deletes the job; 65 (EX_DATAERR) buries it; 75 (EX_TEMPFAIL) "
        "releases it, however often it has been tried; any other releases it, and buries it after "
        "--max-tries. While the command runs, the job is touched. SIGTERM and SIGINT let the commands that "
        "run end, and take no more jobs; a second one ends the commands, and releases their jobs. When the "
        "connection is lost, the command goes on, and its job is taken back if nobody has had it in between.",
    ),
    Command(
        "watch",
        "watch.watch",
        f"repeat a command that looks: {', '.join(WATCHABLE)}",
        Argument(
            "-n",
            "--interval",
            metavar="DURATION",
            type=positive_duration,
            default=2,
            help="how long from one time to the next (default: %(default)s)",
        ),
        Argument("--times", metavar="N", type=count, help="end after this many times"),
        Argument("command", metavar="COMMAND", nargs=argparse.REMAINDER, help="the command, with its options"),
    ),
    Command(
        "completion",
        "shells.completion",
        "print a script that completes this command line in a shell",
        Argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish"),
        about='Names of tubes are asked from the server that BEANSTALK_SERVER names. For bash: eval "$(beanstalk '
        'completion bash)".',
    ),
    Command("man", "manual.man", "print the manual page, for man -l -"),
)


def add_common(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add the options of every command.

    Args:
        again: behind a command's name, where an option that is not given must not undo the one before the name.
    """
    group = parser.add_argument_group("server and output") if again else parser
    for argument in COMMON:
        settings = argument.settings | ({"default": argparse.SUPPRESS} if again else {})
        settings["help"] = argument.help
        group.add_argument(*argument.flags, **settings).complete = argument.complete  # type: ignore[attr-defined]


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line, which sets `name`, `module` and `function` of the command."""
    parser = CommandParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [OPTION ...] COMMAND [ARGUMENT ...]",
        description=ABOUT,
        epilog=STATUSES,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    add_common(parser)
    commands = parser.add_subparsers(prog=PROGRAM, metavar="COMMAND", required=True, parser_class=CommandParser)
    for command in COMMANDS:
        one = commands.add_parser(
            command.name,
            help=command.help,
            description=command.description,
            allow_abbrev=False,
        )
        for argument in command.arguments:
            settings = argument.settings | {"help": argument.help}  # expanded: while it mixes, argparse has no defaults
            action = one.add_argument(*argument.flags, **settings)
            action.complete = argument.complete  # type: ignore[attr-defined]
        one.tail = command.tail
        one.mixes = all(argument.settings.get("nargs") != argparse.REMAINDER for argument in command.arguments)
        one.usage = f"{PROGRAM} [OPTION ...] {command.synopsis}"
        add_common(one, again=True)
        one.set_defaults(name=command.name, module=command.module, function=command.function)
    return parser


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line; what is wrong with it is printed, and ends the program with status 2."""
    return make_parser().parse_args(arguments)
