"""Prints the path of five commands through the sources: the files in order, and the number of calls.

`python -m harness.walks` is how to learn the code: read the files of a path in the order in which it prints them. A
call counts if the function is in the package; a move is a call in another file than the call before. Reading a
property is not a call: a reader of the code sees an attribute. The interpreted sources are counted, without what a
library or the event loop calls in between. What follows the reply is left out: a path of the server ends where the last
byte is handed to the socket. Each path is walked several times, and the run with the fewest calls is printed, so that
caches are filled and no timer is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import itertools
import logging
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import beanstalk_client
from beanstalk_client.tasks import Tasks
from beanstalk_client.worker.serving import Group, Worker

import beanstalk_server
from beanstalk_server import Config
from harness.caller import Caller
from harness.engines import Alone
from harness.in_thread import ServerThread
from harness.servers import unused_port
from harness.waiting import eventually

WALKS: Final = 5
"""How many times each path is walked."""

PACKAGES: Final = {package.__name__: str(package.__path__[0]) + "/" for package in (beanstalk_server, beanstalk_client)}

Walk = list[tuple[str, str]]
"""The file and the function of each call, in order."""


@functools.cache
def _getters() -> set[CodeType]:
    """The functions of all properties of the package's classes that are imported."""
    found: set[CodeType] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            for kind in [value for value in vars(module).values() if isinstance(value, type)]:
                for value in vars(kind).values():
                    if isinstance(value, property) and value.fget is not None:
                        found.add(value.fget.__code__)
    return found


class Recorder:
    """Notes the calls of functions of one package in all threads that are started after it is."""

    def __init__(self) -> None:
        self._root = ""
        self._walk: Walk = []
        self._sent = 0  # how many calls there were when a socket was written to last

    def start(self) -> None:
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        root = self._root
        if not root:
            return
        if event == "call":
            code = frame.f_code
            caller = frame.f_back
            if code in _getters() or (caller is not None and caller.f_code in _getters()):
                return
            if code.co_filename.startswith(root) and code.co_name[0] != "<":
                self._walk.append((code.co_filename[len(root) :], code.co_qualname))
        elif event == "c_call" and argument.__name__ == "send" and frame.f_code.co_name == "write":  # of a transport
            self._sent = len(self._walk)

    def stop(self) -> None:
        """Note no more calls: the path has ended."""
        self._root = ""

    @contextlib.contextmanager
    def recording(self, package: str, *, to_reply: bool = True) -> Iterator[Walk]:
        """Note the calls within this package until the end of the block, or until the last bytes were sent in it."""
        walk: Walk = []
        self._walk = walk
        self._root = PACKAGES[package]
        try:
            yield walk
        finally:
            self.stop()
            if to_reply:
                del walk[self._sent :]


def describe(name: str, walk: Walk, with_calls: bool) -> str:
    """The text about one path."""
    files = Counter(file for file, _ in walk)
    moves = sum(one[0] != other[0] for one, other in itertools.pairwise(walk))
    lines = [f"{name}: {len(files)} files, {len(walk)} calls, {moves} moves"]
    if with_calls:
        for file, calls in itertools.groupby(walk, lambda call: call[0]):
            lines.append(f"    {file}: {', '.join(function for _, function in calls)}")
    else:
        lines += [f"    {calls:4} {file}" for file, calls in files.items()]
    return "\n".join(lines)


class Walks:
    """The paths. Each method walks one of them once, and returns the calls."""

    def __init__(self, recorder: Recorder, stack: contextlib.ExitStack, directory: Path) -> None:
        self._recorder = recorder
        self._stack = stack
        self._directory = directory
        self._servers: dict[str, ServerThread] = {}

    def put(self) -> Walk:
        """put with -b: from the line to INSERTED."""
        server = self._server("binlog", binlog=str(self._directory / "binlog"))
        return self._ask(server, b"put 0 0 60 5\r\nhello\r\n")

    def reserve(self) -> Walk:
        """reserve that waits: from the line until the client waits."""
        server = self._server("memory")
        with self._caller(server) as caller, self._recorder.recording("beanstalk_server", to_reply=False) as walk:
            self._wait_for_job(server, caller)
        return walk

    def due(self) -> Walk:
        """delayed job that becomes ready for a client that waits: from the alarm to RESERVED."""
        server = self._server("memory")
        with self._caller(server) as caller:
            caller.ask(b"put 0 1 60 5\r\nhello\r\n")
            self._wait_for_job(server, caller)
            with self._recorder.recording("beanstalk_server") as walk:
                job_id = caller.line().split()[1]
            caller.line()
            caller.ask(b"delete " + job_id + b"\r\n")
        alarms = [number for number, (_, function) in enumerate(walk) if function.endswith("._go_off")]
        return walk[alarms[-1] :]  # the alarms before it let slots of the wheel cascade

    def standby(self) -> Walk:
        """put sent to a standby: from its line to INSERTED, at both nodes."""
        if "standby" not in self._servers:
            engine = Alone(self._directory / "redis", replicas=0, options=["--appendfsync", "always"])
            self._stack.callback(engine.close)
            for name in ("leader", "standby"):
                advertise = f"127.0.0.1:{unused_port()}"
                server = self._server(name, cluster=engine.url, advertise=advertise, replicas=0)
                with self._caller(server) as caller:
                    caller.ask(b"put 0 0 60 5\r\nhello\r\n")
        return self._ask(self._servers["standby"], b"put 0 0 60 5\r\nhello\r\n")

    def task(self) -> Walk:
        """task.put to the end of the call in a worker, in the client."""
        server = self._server("memory")
        tasks = Tasks("{}:{}".format(*server.address), tube="walk")
        done = threading.Event()

        @tasks.task
        async def note() -> None:
            self._recorder.stop()
            done.set()

        def put_and_wait() -> None:
            eventually(lambda: server.server.broker.waiting, "the worker waits")
            note.put()
            if not done.wait(60):
                raise AssertionError("the task did not run within 60 s")
            done.clear()

        async def work() -> Walk:
            worker = Worker(tasks, [Group(("walk",), 1)], threads=1)
            running = asyncio.create_task(worker.run())
            try:
                await asyncio.to_thread(put_and_wait)
                await asyncio.to_thread(eventually, lambda: server.server.broker.waiting, "the worker waits")
                with self._recorder.recording("beanstalk_client", to_reply=False) as walk:
                    await asyncio.to_thread(put_and_wait)
            finally:
                worker.stop()
                await running
            return walk

        return asyncio.run(work())

    def _ask(self, server: ServerThread, command: bytes) -> Walk:
        with self._caller(server) as caller:
            server.call(int)
            with self._recorder.recording("beanstalk_server") as walk:
                caller.ask(command)
        return walk

    def _wait_for_job(self, server: ServerThread, caller: Caller) -> None:
        caller.send(b"reserve\r\n")
        eventually(lambda: server.server.broker.waiting, "the client waits")
        server.call(int)

    def _server(self, name: str, **settings: Any) -> ServerThread:
        if name not in self._servers:
            server = ServerThread(Config(port=0, **settings), asyncio.new_event_loop)
            self._stack.callback(server.stop)
            self._servers[name] = server
        return self._servers[name]

    @contextlib.contextmanager
    def _caller(self, server: ServerThread) -> Iterator[Caller]:
        with contextlib.closing(server.connect()) as caller:
            caller.ask(b"list-tube-used\r\n")
            yield caller


PATHS: Final[dict[str, Callable[[Walks], Walk]]] = {
    "put": Walks.put,
    "reserve": Walks.reserve,
    "due": Walks.due,
    "standby": Walks.standby,
    "task": Walks.task,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m harness.walks", description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"paths: {', '.join(PATHS)} (default: all)")
    parser.add_argument("--calls", action="store_true", help="also print the functions")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.paths if name not in PATHS]
    if unknown:
        parser.error(f"unknown path {unknown[0]!r}: must be one of {', '.join(PATHS)}")
    logging.disable()
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        recorder.start()
        walks = Walks(recorder, stack, Path(directory))
        for name in options.paths or PATHS:
            path = PATHS[name]
            walk = min([path(walks) for _ in range(WALKS)], key=len)
            assert path.__doc__ is not None
            sys.stdout.write(describe(path.__doc__.rstrip("."), walk, options.calls) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
