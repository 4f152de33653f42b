"""Plays rounds for this long: PYTHONPATH=client:tests:tests/client python -m tests.client.stress --seconds 600

A round that fails is printed with its problems and the history of their jobs: --seed SEED plays it again.
"""

import argparse
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
    began = time.monotonic()
    seed = options.first if options.seed is None else options.seed
    failed, idle, stops, jobs = [], [], [], 0
    print(*generators(), sep="\n")
    while True:
        with tempfile.TemporaryDirectory() as directory:
            one = run(seed, Path(directory) / "round", options.kinds, is_calm=options.calm)
        jobs += one.count
        idle += one.figures["idle"]
        stops += one.figures["stop"]
        if one.problems:
            failed.append(seed)
        print(f"seed {seed}, {one}: {len(one.problems)} problems", *firsts(one.problems), sep="\n", flush=True)
        seed += 1
        if options.seed is not None or time.monotonic() - began > options.seconds:
            break
    print(
        f"{seed - (options.first if options.seed is None else options.seed)} rounds in {time.monotonic() - began:.0f} s, "
        f"{jobs} jobs; an idle worker used {max(idle, default=0):.4f} s of CPU time in a second at most; "
        f"a worker stopped within {max(stops, default=0):.1f} s; failed: {', '.join(map(str, failed)) or 'none'}"
    )
    return bool(failed or [*generators()])


if __name__ == "__main__":
    raise SystemExit(main())
