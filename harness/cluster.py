"""Runs a cluster on this machine for a demonstration: Redis with two replicas, and two nodes. `make cluster` runs it.

It prints the addresses of the nodes, then their logs, until Ctrl-C stops everything.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from harness.engines import KINDS
from harness.nodes import Node, leader
from harness.servers import OURS, ServerError, accepts

PORTS: Final = (11300, 11301)
"""The ports of the nodes; a port that is taken is replaced by an unused one."""

LOOK: Final = 0.2
"""Seconds between two looks at the logs."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="make cluster", description=__doc__.splitlines()[0])
    made.add_argument("--engine", choices=KINDS, default="alone", help="engine of the cluster (default: %(default)s)")
    made.add_argument(
        "--replicas", type=int, default=2, help="number of replicas of each Redis primary (default: %(default)s)"
    )
    made.add_argument("--program", default=OURS, help=argparse.SUPPRESS)  # tests run the sources, too
    made.add_argument("options", nargs="*", help="options of the nodes, after --")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(_ignore_signals)
            _run(stack, options)
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped")
    return 0


def _ignore_signals() -> None:
    """Let nothing interrupt the end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _run(stack: contextlib.ExitStack, asked: argparse.Namespace) -> None:
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="beanstalk-cluster-"))
    stack.callback(_ignore_signals)
    engine = KINDS[asked.engine](Path(directory) / "engine", asked.replicas)
    stack.callback(engine.close)
    nodes: list[Node] = []
    for port in PORTS:
        node = Node(engine.url, asked.options, port=0 if accepts(port) else port, program=asked.program)
        stack.callback(node.process.stop)
        nodes.append(node)
    leads = leader(engine, nodes)
    _tell(f"engine  {engine.url}, primary: process {engine.primary().pid}, {len(engine.servers) - 1} more")
    for number, node in enumerate(nodes, 1):
        role = "leader" if node is leads else "standby"
        _tell(f"node {number}  127.0.0.1:{node.port}, process {node.pid}, {role}")
    _tell(f"Clients can connect to any node. To test a failover: kill -9 {leads.pid}. Press Ctrl-C to stop everything.")
    _follow(nodes)


def _follow(nodes: Sequence[Node]) -> None:
    """Print what the nodes log, and when one has ended, until all have."""
    told = [0] * len(nodes)
    running = set(range(len(nodes)))
    while running:
        for number in sorted(running):
            process = nodes[number].process
            status = process.status
            lines = process.log[told[number] :]
            whole = len(lines) if status is not None else lines.rfind("\n") + 1
            told[number] += whole
            for line in lines[:whole].splitlines():
                _tell(f"node {number + 1}: {line}")
            if status is not None:
                _tell(f"node {number + 1} has exited with status {status}")
                running.discard(number)
        time.sleep(LOOK)


def _tell(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
