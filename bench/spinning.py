"""Looks at the clock and does nothing else: what a machine takes from a busy process by itself.

    python -m bench.spinning 0 3.0      # on this processor, for this many seconds; prints what `--slow-ms 1` would log

A hypervisor that gives the processor to another machine, and an interrupt, count as CPU time of the process that had
it.
"""

from __future__ import annotations

import sys
from time import monotonic_ns, thread_time_ns

from bench.loads import pin

MILLISECOND = 1e6


def main() -> None:
    pin(int(sys.argv[1]))
    longest = most_cpu = 0
    now, cpu = monotonic_ns(), thread_time_ns()
    end = now + round(float(sys.argv[2]) * 1e9)
    while now < end:
        before, cpu_before = now, cpu
        now, cpu = monotonic_ns(), thread_time_ns()
        longest = max(longest, now - before)
        most_cpu = max(most_cpu, min(cpu - cpu_before, now - before))
    print(f"the event loop stalled for {longest / MILLISECOND:.1f} ms ({most_cpu / MILLISECOND:.1f} ms of CPU)")


if __name__ == "__main__":
    main()
