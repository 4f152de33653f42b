"""Counts the instructions that this server executes for a command, by package and by function.

Unlike times, they depend on neither the machine's clock nor its load; but they do on the build of Python, on the
compiler and on the libraries. What the kernel executes is not counted.

The server runs under valgrind, and its clients send in step: each sends its commands, and then each reads its replies.
So it finds the same input in each round, and two runs differ by half a percent.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.doors import routed
from bench.servers import directories, started
from bench.subject import Subject, UnexpectedReplyError, ask, statistic
from harness.servers import COUNTED, ROOT, counts_of

CONNECTIONS = 50
COMMANDS = 3000
"""How many are counted, at least."""

DUE = 1000
"""Jobs that are due in one second."""

BODY = b"x" * 100
PUT = b"put 0 0 60 %d\r\n%b\r\n" % (len(BODY), BODY)

LIBRARIES = {
    "libpython": "Python", "python3": "Python", "libc.": "C library", "ld-": "C library", "loop.": "uvloop",
    "crc32c": "crc32c", "beanstalk_server": "mypyc's runtime", "__mypyc": "mypyc's runtime",
}  # fmt: skip
"""To what the functions of a shared object count, by the beginning of its name."""

_LINE = re.compile(r"\s*([\d,]+) \([^)]*\)\s+\S*?:(\S.*?)(?: \[(.*)\])?$")
_COMPILED = re.compile(r"CPy(?:Def|Py)_(\w+)")


class Counts(NamedTuple):
    """Instructions a command.

    Args:
        total: of all functions.
        packages: of the functions of each package of the server, and of each library, the most first.
        functions: of each function, the most first.
    """

    total: float
    packages: dict[str, float]
    functions: dict[str, float]


class Clients:
    """Connections that send in step, each in a tube of its own."""

    def __init__(self, subject: Subject, stack: contextlib.ExitStack, depth: int) -> None:
        self.depth = depth
        self.sockets = [stack.enter_context(subject.connect()) for _ in range(CONNECTIONS)]
        for number, sock in enumerate(self.sockets):
            ask(sock, b"use t%d\r\nwatch t%d\r\nignore default\r\n" % (number, number), 3)
        self.producers = [stack.enter_context(subject.connect()) for _ in range(CONNECTIONS)]
        for number, sock in enumerate(self.producers):
            ask(sock, b"use t%d\r\n" % number)

    def send(self, data: bytes) -> None:
        for sock in self.sockets:
            sock.sendall(data * self.depth)

    def read(self, lines: int = 1) -> list[bytes]:
        return [ask(sock, b"", lines * self.depth) for sock in self.sockets]

    def put(self) -> None:
        self.send(PUT)
        self.read()

    def delete(self, reserved: Sequence[bytes]) -> None:
        for sock, replies in zip(self.sockets, reserved, strict=True):
            sock.sendall(b"".join([b"delete %b\r\n" % found for found in re.findall(rb"RESERVED (\d+)", replies)]))
        self.read()


def cycle(clients: Clients) -> int:
    """put + reserve + delete; return the number of commands."""
    clients.put()
    clients.send(b"reserve\r\n")
    clients.delete(clients.read(2))
    return 3 * CONNECTIONS * clients.depth


def waiting(clients: Clients) -> int:
    """reserve + put + delete: each reserve waits for the put of another client."""
    clients.send(b"reserve\r\n")
    for sock in clients.producers:
        sock.sendall(PUT)
    for sock in clients.producers:
        ask(sock, b"")
    clients.delete(clients.read(2))
    return 3 * CONNECTIONS * clients.depth


def puts(clients: Clients) -> int:
    """put alone."""
    clients.put()
    return CONNECTIONS * clients.depth


def _control(option: str, pid: int) -> None:
    subprocess.run(["callgrind_control", option, str(pid)], check=True, capture_output=True, timeout=60)


def _measure(step: Callable[[], int], *pids: int) -> Counts:
    """Count what these processes execute in a step, which returns the number of commands."""
    for pid in pids:
        _control("--instr=on", pid)
    commands = step()
    for pid in pids:
        _control("--instr=off", pid)
    packages: dict[str, float] = defaultdict(float)
    functions: dict[str, float] = defaultdict(float)
    for pid in pids:
        _control("--dump", pid)
        for function, library, count in _counted(Path(f"{counts_of(pid)}.1")):
            functions[function] += count / commands
            packages[package_of(function, library)] += count / commands
    return Counts(sum(functions.values()), _most_first(packages), _most_first(functions))


def _most_first(numbers: dict[str, float]) -> dict[str, float]:
    return dict(sorted(numbers.items(), key=lambda item: -item[1]))


def _counted(path: Path) -> Iterator[tuple[str, str, int]]:
    """Each function with its library and its instructions."""
    done = subprocess.run(
        ["callgrind_annotate", "--threshold=100", str(path)], check=True, capture_output=True, text=True, timeout=60
    )
    for line in done.stdout.splitlines():
        if found := _LINE.match(line):
            yield found[2], Path(found[3] or "").name, int(found[1].replace(",", ""))


def package_of(function: str, library: str) -> str:
    """The package of the server that a function belongs to, or the library.

    Args:
        function: its name, as in the symbol table.
        library: the name of the file that it is in.
    """
    if found := _COMPILED.match(function):
        words = found[1].split("___")
        for count in range(len(words), 0, -1):
            if package := _modules().get("___".join(words[:count])):
                return package
    return next((name for start, name in LIBRARIES.items() if library.startswith(start)), library or "other")


@functools.cache
def _modules() -> dict[str, str]:
    """The package of each module, by the names that mypyc may give it: the last parts of its path, as few as are
    unique."""
    found: dict[str, str] = {}
    for path in re.findall(r'"(beanstalk_server/\S+)\.py"', (ROOT / "setup.py").read_text()):
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            found["___".join(parts[-count:])] = parts[1]
    return found


class Work(NamedTuple):
    """What is counted.

    Args:
        step: sends commands, and returns how many.
        depth: commands in flight on each connection.
        keeps: whether the server keeps its jobs in a directory.
    """

    step: Callable[[Clients], int]
    depth: int = 1
    keeps: bool = False


WORKS = {
    "in memory": Work(cycle),
    "in memory, 10 in flight": Work(cycle, 10),
    "in memory, 100 in flight": Work(cycle, 100),
    "with -b": Work(cycle, keeps=True),
    "with -b, 100 in flight": Work(cycle, 100, keeps=True),
    "a reserve waits": Work(waiting),
}
DUE_JOB = "a due job"
STANDBY = "put sent to a standby"
ALL_WORKS = (*WORKS, DUE_JOB, STANDBY)


def count(work: str, parent: Path) -> Counts:
    """Count the instructions of a command.

    Args:
        work: one of ALL_WORKS.
        parent: servers keep their jobs in a temporary directory in this one.

    Raises:
        ServerError: the server does not start, or valgrind is not installed.
    """
    pids: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_counts, pids)  # last: valgrind writes when the servers end
        if work == STANDBY:
            subject = stack.enter_context(routed(COUNTED, parent))
        else:
            keeps = work in WORKS and WORKS[work].keeps
            directory = stack.enter_context(directories(parent)) if keeps else None
            subject = stack.enter_context(started(COUNTED, directory=directory))
        pids += [pid for pid in (subject.pid, subject.engine) if pid]
        if work == DUE_JOB:
            return _count_due(subject)
        step, depth, _ = WORKS.get(work, Work(puts))
        clients = Clients(subject, stack, depth)
        repeats = max(COMMANDS // (3 * CONNECTIONS * depth), 2)

        def repeated() -> int:
            return sum([step(clients) for _ in range(repeats)])

        repeated()
        return _measure(repeated, *pids)


def _remove_counts(pids: Sequence[int]) -> None:
    for pid in pids:
        for path in counts_of(pid).parent.glob(f"{counts_of(pid).name}*"):
            path.unlink()


def _count_due(subject: Subject) -> Counts:
    """Count the instructions with which a delayed job gets ready: no client waits for it."""
    with subject.connect() as sock:

        def due() -> int:
            time.sleep(4)  # to ask whether they are due would be counted
            return DUE

        puts = b"put 0 2 60 %d\r\n%b\r\n" % (len(BODY), BODY) * DUE
        ask(sock, puts, DUE)
        due()  # not counted: the server may import a module when it has done something for the first time
        ask(sock, puts, DUE)
        counts = _measure(due, subject.pid)
        if statistic(sock, b"stats", b"current-jobs-delayed"):
            raise UnexpectedReplyError("jobs are not ready two seconds after their delay")
        return counts


def main() -> int:
    """Print what is counted: the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.instructions", description=__doc__)
    parser.add_argument("--top", type=int, default=30, help="number of functions to list (default: 30)")
    parser.add_argument("work", nargs="*", help=f"workloads to count: {', '.join(ALL_WORKS)} (default: all)")
    options = parser.parse_args()
    for work in options.work or ALL_WORKS:
        counts = count(work, ROOT)
        rows = [f"{work}: {counts.total:,.0f} instructions per command"]
        for counted in (counts.packages, counts.functions):
            rows += [f"{number:10,.0f}  {name}" for name, number in list(counted.items())[: options.top]] + [""]
        sys.stdout.write("\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
