"""What the console costs the server that it shows, with one viewer and with many, and how soon its pages come.

A viewer does what a browser with scripts does: it keeps a stream of events, and asks for its page again at each of
them.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from bench import process
from bench.results import Sample
from bench.subject import Subject
from harness import servers
from harness.console import BEANSTALK
from harness.servers import ServerError
from harness.waiting import eventually

PAGES = ("/", "/tubes", "/tubes?sort=name&page=7", "/tube?name=u1", "/failures")
"""What the viewers look at, in turn."""

SETTLED = 4.0
"""Seconds after which all viewers have come; two samples."""


@contextlib.contextmanager
def console(subject: Subject) -> Iterator[tuple[int, int]]:
    """Run `beanstalk console`; give its process, and its port."""
    port = servers.unused_port()
    line = [sys.executable, "-P", "-c", BEANSTALK, "console", f"127.0.0.1:{subject.port}", "--listen"]
    environment = servers.environment_of(servers.INTERPRETED)
    shown = subprocess.Popen([*line, f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL, env=environment)
    try:
        eventually(lambda: servers.accepts(port) or shown.poll() is not None, "the console has started")
        if shown.poll() is not None:
            raise ServerError(f"the console exited with status {shown.returncode}")
        yield shown.pid, port
    finally:
        shown.kill()
        shown.wait()


def get(connection: http.client.HTTPConnection, path: str, *, live: bool = False) -> float:
    """Ask for a page; return the seconds until all of it has come."""
    began = time.monotonic()
    connection.request("GET", path, headers={"x-live": "1"} if live else {})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise ServerError(f"{path}: {answer.status}")
    return time.monotonic() - began


def view(port: int, path: str, over: threading.Event) -> None:
    """Look at a page as a browser does, until it is over."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as pages:
        get(pages, path)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as events:
            events.request("GET", "/events")
            answer = events.getresponse()
            while not over.is_set() and (line := answer.readline()):
                if line.startswith(b"event: tick"):
                    get(pages, path, live=True)


@contextlib.contextmanager
def viewers(port: int, count: int, settled: float) -> Iterator[None]:
    """People who look, each at a page, for some seconds already."""
    over = threading.Event()
    threads = [threading.Thread(target=view, args=(port, PAGES[each % len(PAGES)], over)) for each in range(count)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(settled)
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def show(subject: Subject, many: int, seconds: float, pause: float) -> Sample:
    """What the console costs the server and itself, in milliseconds of CPU a second, and how soon its pages come.

    Args:
        pause: seconds without a viewer before a page is requested again.
    """

    def spent(*pids: int) -> list[float]:
        before = [process.cpu(pid) for pid in pids]
        time.sleep(seconds)
        return [
            process.cpu(pid).since(earlier).total * 1e3 / seconds for pid, earlier in zip(pids, before, strict=True)
        ]

    def once(path: str) -> float:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as asked:
            return get(asked, path)

    (without,) = spent(subject.pid)
    settled = min(seconds, SETTLED)
    with console(subject) as (pid, port):
        first = once("/")
        with viewers(port, 1, settled):
            (one,) = spent(subject.pid)
        with viewers(port, many, settled):
            with_many, own = spent(subject.pid, pid)
            pages = statistics.median(map(once, PAGES))
        time.sleep(pause)
        again = once("/")
    return {
        "without_ms": without,
        "one_ms": one - without,
        "many_ms": with_many - without,
        "own_ms": own,
        "first_page": first,
        "page": pages,
        "page_again": again,
    }
