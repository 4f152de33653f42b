"""The commands that only look: ping, stats.

Must never change anything at the server.
"""

from __future__ import annotations

import argparse
import time

from beanstalk_server.cli.operator.failure import USAGE, OperatorError
from beanstalk_server.cli.operator.output import show_json, show_pairs
from beanstalk_server.cli.operator.target import asking, named


def ping(options: argparse.Namespace) -> int:
    """Ask for something that costs nothing, and say how long the answer took."""
    with asking(options) as client:
        began = time.perf_counter()
        client.using()
        took = time.perf_counter() - began
    if options.json:
        show_json({"server": named(options), "seconds": round(took, 6)})
    else:
        print(f"{named(options)} answers within {took * 1000:.3f} ms")
    return 0


def stats(options: argparse.Namespace) -> int:
    """Show what the server says of itself, of a tube or of a job."""
    if options.tube and options.job:
        raise OperatorError("a tube and --job: only one of them may be given", USAGE)
    what = f"tube {options.tube}" if options.tube else f"job {options.job}" if options.job else ""
    with asking(options, what) as client:
        if options.job:
            found = dict(client.stats_job(options.job))
        elif options.tube:
            found = dict(client.stats_tube(options.tube))
        else:
            found = dict(client.stats())
    if options.json:
        show_json(found)
    else:
        show_pairs(found)
    return 0
