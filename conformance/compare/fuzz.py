"""Differential fuzzing: compares drawn scripts until the time is over, and writes each difference as a conversation.

python -m conformance.compare.fuzz --seconds 600                   with the installed beanstalkd
python -m conformance.compare.fuzz --reference PATH --seed 7       with another one, and the scripts of an earlier run

A difference shrinks to the smallest script that shows it. The last line names the directory that it is written to;
`python -m conformance.compare --both FILE` repeats it.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from conformance.compare.differential import DifferenceError, Pair
from conformance.compare.strategies import Script, scripts
from harness.servers import BEANSTALKD, INTERPRETED, OURS, ServerError

ROUND = 200
"""How many scripts are drawn from one seed."""

REPORT_EVERY = 60.0
"""Seconds between two progress reports."""


def compare_round(pair: Pair, number: int, count: int = ROUND, drawn: SearchStrategy[Script] = scripts) -> str | None:
    """Compare this many scripts that one seed draws; return a difference, shrunk, as a conversation, or None."""

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(drawn)
    def compare(script: Script) -> None:
        pair.compare(script)

    try:
        compare()
    except (DifferenceError, Flaky) as error:
        kind = "" if isinstance(error, DifferenceError) else " (not every time)"
        return f"# {pair.difference}\n" + pair.conversation(f"found with seed {number}{kind}")
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="duration in seconds (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first round (default: random)")
    parser.add_argument("--reference", default=BEANSTALKD, help="reference server: beanstalkd, or a path")
    parser.add_argument(
        "--ours", default=OURS, choices=[OURS, INTERPRETED], help="this server: as installed, or from the sources"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that the servers are stopped
    number = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {number}", flush=True)
    began = reported = time.monotonic()
    found = 0
    directory = None
    try:
        with Pair(options.reference, options.ours) as pair, contextlib.suppress(KeyboardInterrupt):
            while time.monotonic() - began < options.seconds:
                if conversation := compare_round(pair, number):
                    found += 1
                    directory = directory or Path(tempfile.mkdtemp(prefix="conformance-"))
                    (directory / f"seed-{number}.txt").write_text(conversation)
                    print(conversation, flush=True)
                number += 1
                if time.monotonic() - reported > REPORT_EVERY:
                    reported = time.monotonic()
                    print(_so_far(pair, found, began), flush=True)
        print(_so_far(pair, found, began))
    except ServerError as error:
        print(f"fuzz: {error}", file=sys.stderr)
        return 2
    if directory:
        print(f"the differences are in {directory}")
    return 1 if found else 0


def _so_far(pair: Pair, found: int, began: float) -> str:
    said = f"{pair.scripts} scripts, {pair.commands} commands, {pair.replies.total()} replies"
    return f"{time.monotonic() - began:.0f} s: {said}, {found} differences ({pair.voids} scripts took too long)"


if __name__ == "__main__":
    sys.exit(main())
