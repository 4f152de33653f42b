"""Runs the program `beanstalk-conformance`: runs conversations against a running server, and prints a report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import address, report
from .conversation import GROUPS, Conversation, FormatError, read_all, read_file
from .run import against
from .servers import UnusableError
from .version import VERSION

EPILOG = """\
The server must have no jobs. The run deletes all jobs that a conversation leaves.
Exit status: 0 if all conversations that were run passed, 1 if one failed, 2 if none could be run.
"""


def main() -> int:
    """Run the program; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="beanstalk-conformance",
        description="Tests a server of the beanstalk protocol, and reports each reply that differs from beanstalkd's.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("address", metavar="ADDRESS", help="HOST:PORT or unix:PATH of the server")
    parser.add_argument("--group", action="append", choices=GROUPS, help="group to run; repeatable (default: all)")
    parser.add_argument(
        "--only", metavar="TEXT", help="run only conversations with this text in the file name or title"
    )
    parser.add_argument("--restart", metavar="COMMAND", default="", help="shell command that restarts the server")
    parser.add_argument("--file", action="append", type=Path, default=[], help="file of conversations to run instead")
    parser.add_argument("--version", action="version", version=f"beanstalk-conformance {VERSION}")
    options = parser.parse_args()
    try:
        conversations = choose(options.file, options.only, options.group or ())
        run = against(address.parse(options.address), conversations, options.restart, _report_progress)
    except (FormatError, address.AddressError, UnusableError, OSError) as error:
        print(f"beanstalk-conformance: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        _report_progress(0)
    print(f"{options.address}: {run.name}, {run.seconds:.0f} s\n")
    print(report.summary(run))
    print(report.failures([run]), end="")
    if not run.passed:
        return 1
    return 0 if any(outcome.status == "passed" for outcome in run.outcomes) else 2


def choose(files: list[Path], only: str | None, groups: list[str] | tuple[str, ...] = ()) -> list[Conversation]:
    """Choose conversations: of these files, or of all; with a text, and of these groups, if there are any.

    Raises:
        FormatError: a file cannot be read, or there is none.
    """
    found = [conversation for path in files for conversation in read_file(path)] if files else read_all()
    chosen = [
        conversation
        for conversation in found
        if (not groups or conversation.group in groups)
        and (not only or only in f"{conversation.theme}: {conversation.title}")
    ]
    if not chosen:
        raise FormatError("no conversation matches --group and --only")
    return chosen


def _report_progress(count: int) -> None:
    """Show on a terminal how many conversations are over; 0 removes that."""
    if sys.stderr.isatty():
        print(f"\r{count} conversations " if count else "\r\x1b[K", end="", file=sys.stderr, flush=True)
