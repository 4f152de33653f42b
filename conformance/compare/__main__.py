"""Runs the conversations against servers that it starts, and prints a table.

python -m conformance.compare                         with this server, as installed
python -m conformance.compare --start beanstalkd      with the installed beanstalkd
python -m conformance.compare --start PATH            with the beanstalkd at this path
python -m conformance.compare --compat 1.12           with this server, started with this option
python -m conformance.compare --both                  with this server and with beanstalkd, side by side
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from conformance import report
from conformance.command import choose
from conformance.compare import page
from conformance.compare.pool import started
from conformance.conversation import FormatError
from conformance.servers import UnusableError
from harness.servers import BEANSTALKD, INTERPRETED, OURS, ServerError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--start",
        action="append",
        metavar="WHICH",
        help="server to start: ours, interpreted (ours, from the sources), beanstalkd, or a path; repeatable",
    )
    where.add_argument("--both", action="store_true", help="the same as --start beanstalkd --start ours")
    parser.add_argument("--compat", metavar="VERSION", help="version of beanstalkd that ours emulates (its --compat)")
    parser.add_argument(
        "--only", metavar="TEXT", help="run only conversations with this text in the file name or title"
    )
    parser.add_argument(
        "--at-once", type=int, default=6, help="maximum number of concurrent conversations (default: 6)"
    )
    parser.add_argument("--write", metavar="FILE", type=Path, help="file for the report, such as docs/compatibility.md")
    parser.add_argument("files", nargs="*", type=Path, help="files of conversations (default: all)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that the servers are stopped
    programs = [BEANSTALKD, OURS] if options.both else options.start or [OURS]
    compat = ["--compat", options.compat] if options.compat else []
    try:
        conversations = choose(options.files, options.only)
        runs = [
            started(program, conversations, options.at_once, compat if program in (OURS, INTERPRETED) else [])
            for program in programs
        ]
    except (FormatError, ServerError, UnusableError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    print(report.failures(runs), end="")
    print(page.table(runs))
    if options.write:
        options.write.write_text(page.page(runs))
    return 0 if all(run.passed for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
