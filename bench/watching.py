"""What `beanstalk top` costs the server that it watches: CPU time with and without it, in turns.

    python -m bench.watching --tubes 100000 --rate 5000 --server interpreted

A server gets this many tubes with a job each, and commands at a steady rate; then its CPU time is read over some
seconds without top, over some with it, and so on. What top costs is the median of the differences, in milliseconds a
second: 10 of them are 1 % of a processor, however much of it the commands need. The first phases show a round that has
just begun, later ones a round that goes on; each top is a new one. How long it takes from its start to the first screen
with tubes is measured too.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import socket
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence

from bench import process
from harness import servers
from harness.servers import ROOT

SIZE = (120, 50)
"""The terminal of top: width and height."""

BATCH = 500
"""How many tubes are made in a write."""

BEAT = 0.01
"""Seconds from one batch of commands to the next."""

FIRST_SCREEN_WITHIN = 30.0
"""Seconds."""

TOP = "import sys; from beanstalk_client.cli.main import main; sys.exit(main())"


def fill(port: int, tubes: int) -> None:
    """Make tubes, each with a ready job."""
    with socket.create_connection(("127.0.0.1", port)) as sock, sock.makefile("rb") as replies:
        for first in range(0, tubes, BATCH):
            numbers = range(first, min(first + BATCH, tubes))
            sock.sendall(b"".join(b"use tube-%06d\r\nput 0 0 60 1\r\nx\r\n" % number for number in numbers))
            for _ in range(2 * len(numbers)):
                replies.readline()


def load(port: int, rate: int) -> None:
    """Put, reserve and delete jobs at a steady rate, in commands a second, until somebody ends this process."""
    each = max(round(rate * BEAT / 3), 1)
    with socket.create_connection(("127.0.0.1", port)) as sock, sock.makefile("rb") as replies:
        sock.sendall(b"use load\r\nwatch load\r\nignore default\r\n")
        for _ in range(3):
            replies.readline()
        due = time.monotonic()
        while True:
            sock.sendall((b"put 0 0 60 8\r\n12345678\r\n" + b"reserve\r\n") * each)
            ids = []
            for _ in range(each):
                replies.readline()
                ids.append(replies.readline().split()[1])
                replies.readline()
            sock.sendall(b"".join(b"delete %b\r\n" % job_id for job_id in ids))
            for _ in ids:
                replies.readline()
            due = max(due + BEAT, time.monotonic() - 1.0)
            time.sleep(max(due - time.monotonic(), 0.0))


class Watching:
    """A `beanstalk top` on a terminal that nobody looks at.

    Attributes:
        first_screen: seconds from its start to the first screen with tubes; 0.0 until then.
    """

    def __init__(self, port: int, interval: float) -> None:
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self.first_screen = 0.0
        self._master = master
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", TOP, "top", "--server", f"127.0.0.1:{port}", "--interval", str(interval)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env=servers.environment_of(servers.INTERPRETED, {"TERM": "xterm"}),
        )
        os.close(slave)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: it has ended
            while data := os.read(self._master, 1 << 16):
                if not self.first_screen and b"tubes 1 to" in data:
                    self.first_screen = time.monotonic() - self._started

    @property
    def cpu(self) -> float:
        """Its own CPU time so far, in seconds."""
        return process.cpu(self._process.pid).total

    def wait_for_tubes(self) -> None:
        while not self.first_screen:
            if time.monotonic() - self._started > FIRST_SCREEN_WITHIN or self._process.poll() is not None:
                raise SystemExit(f"top has drawn no tubes within {FIRST_SCREEN_WITHIN:g} s")
            time.sleep(0.001)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        os.close(self._master)


@contextlib.contextmanager
def under_load(port: int, rate: int) -> Iterator[None]:
    """Commands at a steady rate, from a process of its own."""
    if not rate:
        yield
        return
    command = [sys.executable, "-m", "bench.watching", "--load", str(port), "--rate", str(rate)]
    loading = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    finally:
        loading.kill()
        loading.wait()


def spent(pid: int, seconds: float) -> float:
    """The CPU time of a process, in milliseconds a second."""
    before, began = process.cpu(pid), time.monotonic()
    time.sleep(seconds)
    return process.cpu(pid).since(before).total * 1000 / (time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.watching", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--server", default=servers.OURS, help="ours, interpreted, beanstalkd, or a path")
    parser.add_argument("--tubes", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=0, help="commands a second; 0 for none")
    parser.add_argument("--interval", type=float, default=1.0, help="of top, in seconds")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each phase")
    parser.add_argument("--times", type=int, default=3, help="how many phases of each kind")
    parser.add_argument("--load", type=int, default=0, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.load:
        load(options.load, options.rate)
    server = servers.start(options.server)
    try:
        port = int(server.address[1])
        fill(port, options.tubes)
        with under_load(port, options.rate):
            measure(server, options)
    finally:
        server.kill()


def measure(server: servers.Process, options: argparse.Namespace) -> None:
    """Print what was spent in each phase, and the median of the differences."""
    spent(server.pid, 1.0)
    differences, firsts, owns = [], [], []
    for _ in range(options.times):
        without = spent(server.pid, options.seconds)
        top = Watching(int(server.address[1]), options.interval)
        try:
            top.wait_for_tubes()
            own = top.cpu
            beside = spent(server.pid, options.seconds)
            owns.append((top.cpu - own) * 1000 / options.seconds)
        finally:
            top.stop()
        differences.append(beside - without)
        firsts.append(top.first_screen)
        print(f"server without top {without:7.2f} ms/s, with it {beside:7.2f} ms/s; first screen {firsts[-1]:.2f} s")
    print(
        f"top costs the server {statistics.median(differences):.2f} ms/s, and itself {statistics.median(owns):.2f} ms/s"
    )
    print(f"first screen after {statistics.median(firsts):.2f} s")


if __name__ == "__main__":
    main()
