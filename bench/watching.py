"""What `beanstalk top` costs the server that it watches: CPU time with and without it.

The server has many tubes with a job each, and serves commands at a steady rate. Its CPU time is read over some seconds
without top, and over some with it. How long top takes from its start to the first screen with tubes is measured too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator

from bench import process
from bench.generator import SPAWNED
from bench.results import Sample
from bench.subject import Subject, ask
from harness import servers
from harness.servers import ServerError
from harness.waiting import eventually

SIZE = (120, 50)
"""The terminal of top: width and height."""

BEAT = 0.01
"""Seconds from one batch of commands to the next."""

TOP = "import sys; from beanstalk_client.cli.main import main; sys.exit(main())"


def load(subject: Subject, rate: int) -> None:
    """Put, reserve and delete jobs at a steady rate, in commands a second, until this process is killed."""
    each = max(round(rate * BEAT / 3), 1)
    with subject.connect() as sock:
        ask(sock, b"use load\r\nwatch load\r\nignore default\r\n", 3)
        due = time.monotonic()
        while True:
            replies = ask(sock, (b"put 0 0 60 8\r\n12345678\r\n" + b"reserve\r\n") * each, 3 * each)
            jobs = [line.split()[1] for line in replies.splitlines() if line.startswith(b"RESERVED")]
            ask(sock, b"".join([b"delete %b\r\n" % job for job in jobs]), len(jobs))
            due = max(due + BEAT, time.monotonic() - 1.0)
            time.sleep(max(due - time.monotonic(), 0.0))


@contextlib.contextmanager
def under_load(subject: Subject, rate: int) -> Iterator[None]:
    """Commands at a steady rate, from a process of its own."""
    loading = SPAWNED.Process(target=load, args=(subject, rate), daemon=True)
    if rate:
        loading.start()
    try:
        yield
    finally:
        if rate:
            loading.kill()
            loading.join()


@contextlib.contextmanager
def top(subject: Subject) -> Iterator[tuple[int, float]]:
    """Run `beanstalk top` on a terminal that nobody reads; give its process, and the seconds to its first screen."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    began = time.monotonic()
    drawn: list[float] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # EIO: it has ended
            while data := os.read(master, 1 << 16):
                if not drawn and b"tubes 1 to" in data:
                    drawn.append(time.monotonic() - began)

    watching = subprocess.Popen(
        [sys.executable, "-P", "-c", TOP, "top", "--server", f"127.0.0.1:{subject.port}", "--interval", "1"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env=servers.environment_of(servers.INTERPRETED, {"TERM": "xterm"}),
    )
    os.close(slave)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        eventually(lambda: drawn or watching.poll() is not None, "top has drawn its first screen")
        if not drawn:
            raise ServerError(f"top has ended with {watching.returncode}")
        yield watching.pid, drawn[0]
    finally:
        watching.kill()
        watching.wait()
        reader.join()
        os.close(master)


def watch(subject: Subject, rate: int, seconds: float) -> Sample:
    """What top costs the server and itself, in milliseconds of CPU a second, and its first screen."""

    def spent(*pids: int) -> list[float]:
        before = [process.cpu(pid) for pid in pids]
        time.sleep(seconds)
        return [
            process.cpu(pid).since(earlier).total * 1e3 / seconds for pid, earlier in zip(pids, before, strict=True)
        ]

    with under_load(subject, rate):
        time.sleep(min(seconds, 1.0))  # real time: the load has begun
        (without,) = spent(subject.pid)
        with top(subject) as (watching, drawn):
            beside, own = spent(subject.pid, watching)
    return {"without_ms": without, "top_ms": beside - without, "own_ms": own, "screen": drawn}
