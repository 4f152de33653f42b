"""Holds the conversations with the servers that the command line names.

python -m conformance                         with this server, as installed
python -m conformance --start beanstalkd      with the installed beanstalkd
python -m conformance --start PATH            with the beanstalkd at this path
python -m conformance --compat 1.12           with this server, started with this option
python -m conformance --both                  with this server and with beanstalkd, side by side
python -m conformance --against HOST:PORT     with a running server without jobs, which will be cleaned
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from conformance import report
from conformance.conversation import Conversation, FormatError, read_all, read_file
from conformance.pool import Run, against, started
from conformance.servers import parse_address
from harness.servers import BEANSTALKD, INTERPRETED, OURS, ServerError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--start",
        action="append",
        metavar="WHICH",
        help="ours, interpreted (the sources), beanstalkd, or a path; may be repeated",
    )
    where.add_argument("--both", action="store_true", help="the same as --start beanstalkd --start ours")
    where.add_argument("--against", metavar="ADDRESS", help="HOST:PORT or unix:PATH")
    parser.add_argument("--compat", metavar="VERSION", help="the version of beanstalkd that ours answers as")
    parser.add_argument("--only", metavar="TEXT", help="only conversations with this in their title or theme")
    parser.add_argument("--at-once", type=int, default=6, help="how many are held at a time (default: 6)")
    parser.add_argument(
        "--write", metavar="FILE", type=Path, help="write the page about the run: docs/compatibility.md"
    )
    parser.add_argument("files", nargs="*", type=Path, help="files of conversations (default: all)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that the servers are stopped
    try:
        conversations = _chosen(options.files, options.only)
        runs = _runs(options, conversations)
    except (FormatError, ServerError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    print(report.failures(runs), end="")
    print(report.table(runs))
    if options.write:
        options.write.write_text(report.page(runs))
    return 0 if all(run.passed for run in runs) else 1


def _chosen(files: list[Path], only: str | None) -> list[Conversation]:
    found = [conversation for path in files for conversation in read_file(path)] if files else read_all()
    chosen = [
        conversation for conversation in found if not only or only in f"{conversation.theme}: {conversation.title}"
    ]
    if not chosen:
        raise FormatError(f"--only {only}: no conversation has this in its title or theme")
    return chosen


def _runs(options: argparse.Namespace, conversations: list[Conversation]) -> list[Run]:
    if options.against:
        return [against(parse_address(options.against), conversations)]
    programs = [BEANSTALKD, OURS] if options.both else options.start or [OURS]
    compat = ["--compat", options.compat] if options.compat else []
    return [
        started(program, conversations, options.at_once, compat if program in (OURS, INTERPRETED) else [])
        for program in programs
    ]


if __name__ == "__main__":
    sys.exit(main())
