"""The command line of the bench."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess

from bench.scenarios import SCENARIOS
from bench.servers import PEERS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this one; may be repeated")
    parser.add_argument("--peers", default="beanstalkd,ours", help=f"of {', '.join(PEERS)}; the first is the measure")
    parser.add_argument("--pairs", type=int, default=5, help="how often each is measured, in turn (default: 5)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: to try it, not to quote it")
    options = parser.parse_args()
    peers = options.peers.split(",")
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers: no such peer: {', '.join(unknown)}")
    if "beanstalkd" in peers and not shutil.which("beanstalkd"):
        parser.error("--peers: beanstalkd is not installed (Debian: apt-get install beanstalkd)")
    print(
        f"Python {platform.python_version()}, Linux {platform.release()}, {platform.processor() or 'unknown processor'}"
    )
    if "beanstalkd" in peers:
        print(subprocess.run(["beanstalkd", "-v"], capture_output=True, text=True, check=True).stdout.strip())
    for name in options.scenario or SCENARIOS:
        print(f"\n{name}: {SCENARIOS[name].__doc__}")
        SCENARIOS[name](peers, options.pairs, 0.1 if options.quick else 1.0)


if __name__ == "__main__":
    main()
