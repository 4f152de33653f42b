"""Runs seeds, for this long or this many: python -m tests.cluster.simulation --seconds 3600

A seed that fails is printed with its problems and the end of its log, and replays: --seed SEED, with the same --shards.
"""

import argparse
import time
from collections import Counter

from tests.cluster.simulation.cluster import KEEP_BUSY, run


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="run this one, and print its log")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=60.0, help="real seconds after which no seed is begun")
    parser.add_argument("--busy", type=float, default=KEEP_BUSY, help="virtual seconds with faults in a seed")
    parser.add_argument("--shards", type=int, default=1, help="how many the cluster has")
    parser.add_argument("--calm", action="store_true", help="nothing fails: nodes join and leave, and shards move")
    parser.add_argument("--locks", action="store_true", help="the engine waits for replicas as PostgreSQL does")
    parser.add_argument("--log", type=int, default=0, help="lines of the log of a seed that fails")
    options = parser.parse_args()
    if options.seed is not None:
        cluster = run(options.seed, options.busy, options.shards, is_calm=options.calm, locks=options.locks)
        print(*cluster.lines, sep="\n")
        print(*cluster.problems[:20] or ["no problems"], sep="\n")
        return bool(cluster.problems)
    began = time.monotonic()
    seed = options.first
    failed = []
    commands = unanswered = takeovers = virtual = 0
    faults, rot = Counter(), Counter()
    while time.monotonic() - began < options.seconds:
        cluster = run(seed, options.busy, options.shards, is_calm=options.calm, locks=options.locks)
        answered, not_answered = cluster.history.counts()
        commands += answered
        unanswered += not_answered
        takeovers += sum(map(len, cluster.epochs.values()))
        faults += cluster.faults
        rot.update(cluster.servers.bit_rot.counts())
        virtual += cluster.loop.now / 1e9 - 1000
        if cluster.problems:
            failed.append(seed)
            print(
                f"seed {seed} failed: {len(cluster.problems)} problems", *cluster.problems[:5], sep="\n  ", flush=True
            )
            print(*cluster.lines[-options.log :] if options.log else [], sep="\n", flush=True)
        seed += 1
    print(
        f"{seed - options.first} seeds in {time.monotonic() - began:.0f} s, {virtual / 3600:.1f} h of virtual time: "
        f"{commands:,} commands answered, {unanswered:,} not; {sum(faults.values()):,} faults, {takeovers:,} leaders; "
        f"{len(failed)} seeds failed{': ' if failed else ''}{', '.join(map(str, failed))}"
    )
    print(", ".join(f"{count:,} × {name}" for name, count in faults.most_common()))
    print("bits: " + ", ".join(f"{count:,} {what}" for what, count in rot.items()))
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
