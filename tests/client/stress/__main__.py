"""Plays rounds for this long: PYTHONPATH=client:tests:tests/client python -m tests.client.stress --seconds 600

A round that fails is printed with its problems and the history of their jobs: --seed SEED plays it again.
"""

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.client.stress.program import KINDS, generators
from tests.client.stress.round import run


def firsts(problems):
    """The first problem of each kind of task."""
    return {problem.partition("-")[0]: problem for problem in reversed(problems)}.values()


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.client.stress", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="play this round only")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds after which no round is begun")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), help="of tasks, instead of those that a seed draws")
    parser.add_argument("--calm", action=argparse.BooleanOptionalAction, help="whether only tasks fail")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends the processes of the round, too
    print(*generators(), sep="\n")
    began = time.monotonic()
    rounds = {}
    seed = options.first if options.seed is None else options.seed
    while not rounds or (options.seed is None and time.monotonic() - began < options.seconds):
        with tempfile.TemporaryDirectory() as directory:
            one = rounds[seed] = run(seed, Path(directory) / "round", options.kinds, is_calm=options.calm)
        print(f"seed {seed}, {one}: {len(one.problems)} problems", *firsts(one.problems), sep="\n", flush=True)
        seed += 1
    failed = [str(seed) for seed, one in rounds.items() if one.problems]
    loads = [load for one in rounds.values() for load in one.loads]
    stops = [seconds for one in rounds.values() for seconds in one.stops]
    print(
        f"{len(rounds)} rounds in {time.monotonic() - began:.0f} s, {sum(one.count for one in rounds.values())} jobs; "
        f"an idle worker used {max(loads, default=0):.4f} s of CPU time in a second at most; "
        f"a worker stopped within {max(stops, default=0):.1f} s; failed: {', '.join(failed) or 'none'}"
    )
    return bool(failed or [*generators()])


if __name__ == "__main__":
    raise SystemExit(main())
