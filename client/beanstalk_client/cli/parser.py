"""Defines the command line of `beanstalk` in one table, from which parser, help, completion and manual page are made.

A new command is a row of COMMANDS.
"""

from __future__ import annotations

import argparse
import datetime
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from beanstalk_client.commands import (
    MAX_PRIORITY,
    MAX_SECONDS,
    MOVED_STATES,
    PAUSE_UNTIL_RESUMED,
    STATES,
    seconds_of,
)
from beanstalk_client.observe.samples import SORT_KEYS
from beanstalk_client.replies import is_name
from beanstalk_client.version import VERSION

PROGRAM: Final = "beanstalk"

ABOUT: Final = "Inspects and controls beanstalk-server or beanstalkd. beanstalkd does not have all commands."

STATUSES: Final = """\
Exit status: 0: success; 1: the server refused, or the job or tube does not exist; 2: bad command line; 69: no server,
or the connection was lost."""

FILES: Final = "files"
TUBES: Final = "tubes"
"""What completes an argument in a shell."""

SORTS: Final = ("tube", "urgent", "ready", "reserved", "delayed", "buried", "waiting", "total", "paused")
"""What `tubes` may be sorted by: its columns."""

WATCHABLE: Final = ("stats", "tubes", "ls", "peek", "show", "clients", "ping")
"""The commands that `watch` repeats: those that change nothing."""


class Argument:
    """One option or positional argument.

    Args:
        typed: as the help shows it: "--all", "-n, --lines N", "TUBE", "[TUBE]", "ID ...".
        help: what it is for; %(default)s is its default.
        name: of a positional argument; by default what stands for its value, in lower case.
        complete: what completes it in a shell; by default as KINDS says.
        settings: further ones of argparse; `type` is by default as KINDS says.
    """

    def __init__(self, typed: str, help: str, *, name: str = "", complete: str = "", **settings: Any) -> None:
        words = [word.strip(",[]") for word in typed.split()]
        self.flags: list[str] = [word for word in words if word.startswith("-")]
        self.value: str = next((word for word in words if not word.startswith("-")), "")
        self.synopsis: str = typed
        if self.flags:
            self.synopsis = f"[{self.flags[0]} {self.value}]" if self.value else f"[{self.flags[0]}]"
            settings |= {} if self.value else {"action": "store_true"}
        else:
            self.flags = [name or self.value.lower()]
            kinds = {"...]": argparse.REMAINDER, "...": "+", "[": "?"}
            settings |= next(({"nargs": kind} for mark, kind in kinds.items() if mark in typed), {})
        kind, completes = KINDS.get(self.value, (None, ""))
        # Expanded here: while CommandParser mixes options and arguments, argparse has no defaults.
        self.help: str = help.replace("%(default)s", str(settings.get("default")))
        self.complete: str = complete or completes
        self.settings: dict[str, Any] = {"help": self.help}
        self.settings |= ({"metavar": self.value} if self.value else {}) | ({"type": kind} if kind else {}) | settings


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

    def __init__(
        self, name: str, function: str, help: str, *arguments: Argument, about: str = "", tail: str = ""
    ) -> None:
        self.name: str = name
        self.module: str
        self.function: str
        self.module, _, self.function = function.partition(".")
        self.help: str = help
        self.arguments: tuple[Argument, ...] = arguments
        self.about: str = about
        self.tail: str = tail

    @property
    def synopsis(self) -> str:
        """How it is typed: its name, options and arguments."""
        words = sorted((argument.synopsis for argument in self.arguments), key=lambda word: not word.startswith("[-"))
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
                self.error(f"no command to run: add -- {self.tail}")
            namespace.command = behind
        return namespace, rest


def duration(text: str) -> float:
    """Read a duration: seconds, or with a unit: 0.5, 90s, 10m, 2h, 1d."""
    try:
        seconds = seconds_of(f"{text}s" if text[-1:].isdigit() else text)
    except ValueError:
        seconds = math.inf
    if seconds > MAX_SECONDS:
        raise argparse.ArgumentTypeError(
            f"bad duration {text!r}: must be seconds, or a number with a unit: 90s, 10m, 2h, 1d"
        )
    return seconds


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
    if not 0 <= seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"bad time {text!r}: must be like 2027-01-05T08:00, or Unix time in seconds")
    return seconds


def number(text: str) -> int:
    """Read a number from 0 to 2^32 - 1, as priorities and bounds are."""
    if not re.fullmatch(r"\d{1,10}", text) or int(text) > MAX_PRIORITY:
        raise argparse.ArgumentTypeError(f"bad number {text!r}: must be from 0 to {MAX_PRIORITY}")
    return int(text)


def count(text: str) -> int:
    """Read a number of jobs, which is 1 at the least."""
    if number(text) == 0:
        raise argparse.ArgumentTypeError("bad number '0': must be 1 or more")
    return int(text)


def job_id(text: str) -> int:
    """Read the id of a job."""
    if not re.fullmatch(r"\d{1,20}", text) or not 0 < int(text) < 2**64:
        raise argparse.ArgumentTypeError(f"bad id {text!r}: must be a number, 1 or more")
    return int(text)


def tube_name(text: str) -> str:
    """Read the name of a tube, or a key, whose rules are the same."""
    if not is_name(text):
        raise argparse.ArgumentTypeError(
            f"bad name {text!r}: must be 1 to 200 characters of A-Z a-z 0-9 - + / ; . $ _ ( ), "
            "not beginning with a hyphen"
        )
    return text


KINDS: Final[dict[str, tuple[Callable[[str], object] | None, str]]] = {
    "TUBE": (tube_name, TUBES),
    "TO": (tube_name, TUBES),
    "PREFIX": (tube_name, ""),
    "KEY": (tube_name, ""),
    "GROUP": (tube_name, ""),
    "ID": (job_id, ""),
    "N": (count, ""),
    "DURATION": (positive_duration, ""),
    "SECONDS": (positive_duration, ""),
    "FILE": (None, FILES),
}
"""How a value is read, and what completes it, by what stands for it in the help."""

COMMON: Final = (
    Argument(
        "--server ADDRESS",
        "address of the server: host:port, [v6]:port, unix:/path or a URL such as beanstalk://host:port (default: "
        "BEANSTALK_SERVER, or 127.0.0.1:11300)",
    ),
    Argument("--tls", "use TLS and trust the system's CAs"),
    Argument("--tls-ca FILE", "use TLS and trust the CAs in this file"),
    Argument("--tls-cert FILE", "client certificate"),
    Argument("--tls-key FILE", "private key of the client certificate (default: the file of --tls-cert)"),
    Argument("--tls-name NAME", "expected name in the server's certificate (default: the host)"),
    Argument("--token-file FILE", "file with the token (default: the token in BEANSTALK_TOKEN, if set)"),
    Argument("--answer-within SECONDS", "timeout for connecting and for each reply (default: %(default)s)", default=30),
    Argument("--json", "print JSON: one document, or one per line for continuous output"),
)
"""The options of every command, which may stand before its name or behind it."""

TUBE: Final = Argument("TUBE", "name of the tube")

COUNT: Final = Argument("[N]", "maximum number of jobs", name="count")

ALL: Final = Argument("--all", "all jobs")

NAMED: Final = (
    Argument("[TUBE]", "tube of the job"),
    Argument("[KEY]", "key of the job in this tube"),
    Argument("--job ID", "id of the job"),
)
"""What names one job."""

COMMANDS: Final = (
    Command("ping", "inspect.ping", "check that the server answers, and print the response time"),
    Command(
        "stats",
        "inspect.stats",
        "statistics of the server, a tube or a job",
        Argument("[TUBE]", "statistics of this tube"),
        Argument("--job ID", "statistics of this job"),
        Argument("--group GROUP", "statistics of this group of jobs"),
    ),
    Command(
        "top",
        "top.top",
        "live view: rates, ages and the busiest tubes",
        Argument("--interval SECONDS", "seconds between samples (default: %(default)s)", default=1),
        Argument(
            "--sort COLUMN",
            f"sort tubes by: {', '.join(SORT_KEYS.values())} (default: %(default)s)",
            choices=tuple(SORT_KEYS.values()),
            default="ready",
        ),
        Argument("--prefix PREFIX", "only tubes with this prefix"),
        Argument("--once", "print one screen or sample, then exit"),
        about="Press ? for the list of keys.",
    ),
    Command(
        "tubes",
        "inspect.tubes",
        "list tubes with the number of jobs in each state",
        Argument("[PREFIX]", "only tubes with this prefix", complete=TUBES),
        Argument(
            "--sort COLUMN",
            f"sort by this column, largest first: {', '.join(SORTS)} (default: %(default)s)",
            choices=SORTS,
            default="tube",
        ),
        Argument("--names", "print names only"),
        about="Without stats-tubes (beanstalkd), the command sends one request for each tube.",
    ),
    Command(
        "ls",
        "inspect.ls",
        "list the jobs of a tube in order",
        TUBE,
        Argument("[STATE]", f"only jobs in this state: {', '.join(STATES)}", choices=STATES),
        Argument("--limit N", "maximum number of jobs (default: %(default)s)", default=100),
        about="Needs list-jobs, which beanstalkd does not have.",
    ),
    Command(
        "peek",
        "inspect.peek",
        "print the body of a job",
        Argument("[ID]", "id of the job"),
        Argument("--ready TUBE", "next ready job of this tube"),
        Argument("--delayed TUBE", "next delayed job of this tube"),
        Argument("--buried TUBE", "oldest buried job of this tube"),
        about="Writes the body unchanged to a pipe or file. On a terminal, escapes control characters.",
    ),
    Command(
        "show",
        "show.show",
        "explain the state of a job",
        Argument("ID", "id of the job"),
        about="Shows the statistics of the job, the client that reserved it and when, and the report of the worker "
        "that buried it (time and error). Workers put reports into the tube NAME.errors.",
    ),
    Command(
        "clients",
        "inspect.clients",
        "list connected clients",
        about="Shows the name, the state and the first 16 watched tubes of each client. Needs list-clients, which "
        "beanstalkd does not have.",
    ),
    Command(
        "put",
        "mutate.put",
        "put a job and print its id",
        TUBE,
        Argument("[BODY]", "body of the job (default, and -: standard input)"),
        Argument("--pri N", "priority; 0 is the most urgent (default: %(default)s)", type=number, default=65536),
        Argument("--delay DURATION", "delay before the job is ready (90, 1.5, 10m, 2h, 1d)", type=duration, default=0),
        Argument(
            "--ttr DURATION",
            "time to run: the job becomes ready again if its worker does not finish within it (default: %(default)s)",
            type=duration,
            default=60,
        ),
        Argument("--key KEY", "key of the job, unique in the tube"),
        Argument("--replace", "with --key: replace the job that has the key"),
        Argument("--again", "with --replace: if the job is reserved, run this one after it"),
        Argument("--within DURATION", "with --replace: maximum time from the first put of the job until it is due"),
        Argument("--hold DURATION", "with --key: time that the key stays taken after the job is deleted or expires"),
        Argument(
            "--at MOMENT", "time when the job becomes ready, by the server's clock; instead of --delay", type=moment
        ),
        Argument("--tries N", "maximum failed attempts; then the job is buried, or moved to the dead tube"),
        Argument("--backoff DURATION", "delay after the first failed attempt; doubles with each further one"),
        Argument("--ttl DURATION", "maximum time in the ready state; then the job expires"),
        Argument("--share KEY", "share of the job; among jobs of the same priority, shares take turns"),
        Argument(
            "--limit KEY", "concurrency limit: at most --at-once jobs with this KEY are reserved at the same time"
        ),
        Argument(
            "--at-once N",
            "with --limit: maximum number of reserved jobs with its KEY (default: %(default)s)",
            default=1,
        ),
        Argument("--group GROUP", "group that the job belongs to"),
        Argument("--after GROUP", "group that must have ended before the job is ready"),
        about="--key and the options after it need put-with, which beanstalkd does not have. For beanstalkd, durations "
        "are rounded up to seconds.",
    ),
    Command(
        "tail",
        "tail.tail",
        "print the bodies of new jobs without reserving them",
        TUBE,
        Argument(
            "-n, --lines N",
            "maximum number of existing jobs to print first (default: %(default)s)",
            type=number,
            default=10,
        ),
        Argument("--interval DURATION", "time between polls (default: %(default)s)", default=1),
        Argument("--ids", "print the id before each body (default on a terminal)"),
        Argument("--jobs N", "exit after this many jobs"),
        about="Polls the first thousand ready and the first thousand reserved jobs. It does not affect workers. It "
        "misses jobs that are deleted between two polls, and prints a job only when it is among the first thousand. "
        "Without list-jobs (beanstalkd), it prints the next ready job whenever it changes.",
    ),
    Command(
        "kick",
        "mutate.kick",
        "make buried jobs of a tube ready, or delayed jobs if none is buried; with --job, one job",
        Argument("[TUBE]", "name of the tube"),
        Argument("[N]", "maximum number of jobs (default: %(default)s)", name="count", default=1),
        Argument("--job ID", "only the job with this id"),
    ),
    Command(
        "cancel",
        "mutate.cancel",
        "delete a delayed job before a worker gets it",
        *NAMED,
        about="Does nothing and exits with status 1 if the job is ready, reserved or buried. Needs cancel, which "
        "beanstalkd does not have.",
    ),
    Command(
        "cancel-group",
        "mutate.cancel_group",
        "delete the jobs of a group that are not reserved",
        Argument("GROUP", "name of the group"),
        Argument("--yes", "do not ask for confirmation"),
        about="Jobs that wait for the group become ready when it has no jobs left. Asks for confirmation. Needs "
        "cancel-group, which beanstalkd does not have.",
    ),
    Command(
        "reschedule",
        "mutate.reschedule",
        "change the delay of a delayed job",
        Argument("DURATION", "new delay from now (90, 1.5, 10m, 2h, 1d)", name="delay", type=duration),
        *NAMED,
        about="Does nothing and exits with status 1 if the job is ready, reserved or buried. Needs reschedule, "
        "which beanstalkd does not have.",
    ),
    Command(
        "reprioritize",
        "mutate.reprioritize",
        "change the priority of a ready, delayed or buried job",
        Argument("PRI", "new priority; 0 is the most urgent", type=number),
        *NAMED,
        about="Does nothing and exits with status 1 if a worker has reserved the job. Needs reprioritize, which "
        "beanstalkd does not have.",
    ),
    Command(
        "bury",
        "mutate.bury",
        "bury a job and keep its priority",
        Argument("ID", "id of the job"),
        about="In the protocol, only the worker that reserved a job can bury it. The command therefore "
        "reserves the job first, which counts as a reserve. It cannot bury a job that a worker has reserved.",
    ),
    Command(
        "delete",
        "mutate.delete",
        "delete jobs",
        Argument("ID ...", "ids of the jobs"),
        about="Skips jobs that a worker has reserved; if it skips any, the exit status is 1.",
    ),
    Command(
        "move",
        "mutate.move",
        "move jobs to another tube with all their attributes",
        TUBE,
        Argument("STATE", "state of the jobs: ready, delayed or buried", choices=MOVED_STATES),
        Argument("TO", "destination tube"),
        COUNT,
        ALL,
        about="Needs move-jobs, which beanstalkd does not have.",
    ),
    Command(
        "redrive",
        "mutate.redrive",
        "move jobs of a dead tube back to their origins",
        TUBE,
        COUNT,
        ALL,
        about="Needs redrive, which beanstalkd does not have.",
    ),
    Command(
        "pause",
        "mutate.pause",
        "pause a tube: its jobs cannot be reserved",
        TUBE,
        Argument(
            "[DURATION]",
            "length of the pause, rounded up to seconds (90, 10m, 2h); without it, until resumed",
            name="seconds",
            type=pause_duration,
            default=PAUSE_UNTIL_RESUMED,
        ),
    ),
    Command("resume", "mutate.resume", "end the pause of a tube", TUBE),
    Command(
        "clear",
        "mutate.clear",
        "delete all ready, delayed and buried jobs of a tube",
        TUBE,
        Argument("--yes", "do not ask for confirmation"),
        about="Asks for confirmation. Without a terminal on standard input, it requires --yes. Needs clear-tube, which "
        "beanstalkd does not have.",
    ),
    Command(
        "drain",
        "mutate.drain",
        "make the server refuse new jobs",
        about="Has the same effect as sending SIGUSR1 to the server. Needs drain, which beanstalkd does not have.",
    ),
    Command(
        "undrain",
        "mutate.undrain",
        "make the server accept new jobs again",
        about="Needs undrain, which beanstalkd does not have.",
    ),
    Command(
        "console",
        "console.serve",
        "serve a web console to inspect and control the server",
        Argument("[URL]", "address of the server, as for --server"),
        Argument("--listen HOST:PORT", "address of the console (default: %(default)s)", default="127.0.0.1:11380"),
        Argument("--login", "ask each user for a token of the server, and apply its rights"),
        Argument("--read-only", "allow no changes"),
        Argument("--behind-proxy HEADER", "header with the user's name, set by a proxy, such as X-Forwarded-User"),
        Argument(
            "--proxy-from NETWORK",
            "with --behind-proxy: network of the proxy; repeatable (default: loopback)",
            action="append",
        ),
        Argument(
            "--host NAME",
            "allowed host name of the console, besides IP addresses and localhost; repeatable",
            action="append",
        ),
        Argument("--base-path PATH", "path prefix of all pages behind a proxy, such as /queue"),
        Argument("--listen-cert FILE", "TLS certificate of the console"),
        Argument("--listen-key FILE", "private key of the certificate (default: the file of --listen-cert)"),
        Argument(
            "--metrics URL",
            "URL of a server's HTTP listener, for percentiles and shards; repeatable; its token is read from "
            "BEANSTALK_METRICS_TOKEN",
            action="append",
        ),
        Argument(
            "--schedules TUBE",
            "tube with a scheduler's plans: the value of the scheduler's --group; repeatable (default: schedules)",
            action="append",
        ),
        Argument("--open", "open the console in a browser"),
        about="A non-loopback address requires --login or --behind-proxy. Needs optional dependencies: pip install "
        "'./client[console]' in a clone of beanstalk-server.",
    ),
    Command(
        "work",
        "worker.work",
        "run a command for each job of a tube",
        TUBE,
        Argument("-n, --number N", "maximum number of running commands (default: %(default)s)", default=1),
        Argument("--timeout DURATION", "maximum run time of a command"),
        Argument(
            "--backoff DURATION",
            "delay of a job after its command failed; doubles with each further failure (default: %(default)s; 0: "
            "use the tube's policy)",
            type=duration,
            default=1,
        ),
        Argument("--backoff-max DURATION", "maximum of this delay (default: %(default)s)", type=duration, default=3600),
        Argument("--max-tries N", "maximum failed attempts before the job is buried (default: no limit)", default=0),
        Argument("-v, --verbose", "also report jobs that succeeded"),
        tail="COMMAND [ARGUMENT ...]",
        about="The command reads the body from standard input, or from a file whose path replaces the argument {}. Its "
        "environment has BEANSTALK_JOB_ID, BEANSTALK_JOB_TUBE, BEANSTALK_JOB_TRY (from 1) and BEANSTALK_JOB_KEY. "
        "Exit status 0 deletes the job; 65 (EX_DATAERR) buries it; 75 (EX_TEMPFAIL) releases it without counting a "
        "failure; any other status releases it, or buries it after --max-tries. The job is touched while the "
        "command runs. On SIGTERM or SIGINT, no more jobs are reserved and running commands finish; on a second "
        "signal, running commands are terminated and their jobs given back. The command continues if the connection is "
        "lost. Its job is then reserved again, unless another worker reserved it meanwhile. If the server was "
        "restarted, the command runs again.",
    ),
    Command(
        "watch",
        "watch.watch",
        f"repeat a read-only command: {', '.join(WATCHABLE)}",
        Argument("-n, --interval DURATION", "time between runs (default: %(default)s)", default=2),
        Argument("--times N", "exit after this many runs"),
        Argument("COMMAND [ARGUMENT ...]", "command with its options"),
    ),
    Command(
        "bench",
        "bench.bench",
        "measure rates and latencies of a server",
        Argument("-c, --clients N", "number of connections (default: %(default)s)", default=50),
        Argument("-P, --pipeline N", "commands in flight on each connection (default: %(default)s)", default=1),
        Argument(
            "-n, --jobs N",
            "maximum number of jobs (default: 100000, but at most 100 MB of bodies)",
        ),
        Argument(
            "--seconds SECONDS",
            "maximum duration of each phase: put, reserve and cycle (default: %(default)s)",
            default=3,
        ),
        Argument("--size BYTES", "size of a body in bytes (default: %(default)s)", type=number, default=100),
        Argument(
            "--delay DURATION",
            "put delayed jobs, and delete them without reserving them (90, 1.5, 10m, 2h, 1d; default: no delay)",
            type=duration,
            default=0,
        ),
        Argument(
            "--prefix PREFIX",
            "prefix of the tube's name, for a user with rights to some tubes only (default: %(default)s)",
            default="beanstalk-bench",
        ),
        about="Puts jobs into a tube of its own, then reserves and deletes them. Then each connection puts, reserves "
        "and deletes one job at a time (cycle). Prints jobs per second, and the median, 99th percentile and maximum "
        "latency. Loads the server and its disk for some seconds. Touches no other tube, and deletes all its jobs at "
        "the end, even after Ctrl-C or an error. The client is one Python process: if it uses nearly 100 % of a CPU "
        "core, or shares a core with the server, it is the bottleneck.",
    ),
    Command(
        "completion",
        "completion.completion",
        "print a shell completion script",
        Argument("SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),
        about='Completes tube names of the server in BEANSTALK_SERVER. In bash: eval "$(beanstalk completion bash)".',
    ),
    Command("man", "manual.man", "print the manual page (view it with man -l -)"),
)


def add_common(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """Add the options of every command.

    Args:
        again: behind a command's name, where an option that is not given must not undo the one before the name.
    """
    group = parser.add_argument_group("server and output") if again else parser
    for argument in COMMON:
        settings = argument.settings | ({"default": argparse.SUPPRESS} if again else {})
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
            action = one.add_argument(*argument.flags, **argument.settings)
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
