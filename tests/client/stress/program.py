"""The tasks of the stress program: they end well, fail, hang, crash or fork, and note each run in a file of their job.

A file has a line for each event: `began`, `ended` or `problem`, with the moment and the process. KINDS is what a judge
expects of each task. A job's name is its kind and a number, such as `killed-17`.
"""

import asyncio
import contextlib
import fcntl
import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from beanstalk_client.tasks import GiveUp, Middleware, Retry, Tasks

LOCKED_WITHIN = 0.2
"""Seconds that the system may take to release the lock of a process that has died."""

FOREVER = 3600
RETRY = 0.4

_locked: set[str] = set()
_guard = threading.Lock()


def directory():
    return Path(os.environ["STRESS"])


def write(name, *words):
    """Append a line in one write, so that lines of several processes do not mix."""
    line = f"{time.monotonic():.3f} pid {os.getpid()} {' '.join(map(str, words))}\n"
    file = os.open(directory() / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line.encode())
    os.close(file)


def lines(name):
    path = directory() / name
    return path.read_text().splitlines() if path.exists() else []


@contextlib.contextmanager
def alone(name):
    """Hold the lock of a job; note a problem if another run has it. A lock of a process ends with it, and only then."""
    with _guard:
        is_first = name not in _locked
        _locked.add(name)
    if not is_first:
        write(name, "overlaps with a run of the same process")
        yield
        return
    try:
        with (directory() / f"{name}.lock").open("a") as file:
            began = time.monotonic()
            while True:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() - began > LOCKED_WITHIN:
                        write(name, "overlaps with a run of another process")
                        break
                    time.sleep(0.01)
            yield
    finally:
        _locked.discard(name)


@contextlib.contextmanager
def run(name):
    """Note the begin and the end of a run; the block gets its number, from 1 on."""
    number = 1 + sum(" began" in line for line in lines(name))
    write(name, "began", number)
    with alone(name):
        try:
            yield number
        except BaseException as error:
            write(name, "ended", number, type(error).__name__)
            raise
        write(name, "ended", number, "well")


# Tasks that end well


async def rest(name):
    with run(name):
        await asyncio.sleep(0.3)


def work(name):
    with run(name):
        time.sleep(0.05)


async def rest_long(name):
    with run(name):
        await asyncio.sleep(6)


def work_long(name):
    with run(name):
        time.sleep(4)


def work_in_child(name):
    with run(name):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.1,))
        child.start()
        child.join(10)
        if child.exitcode != 0:
            write(name, f"problem: a forked child ended with {child.exitcode}")
            child.kill()


def terminate_child(name):
    with run(name):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER,))
        child.start()
        child.terminate()
        child.join(5)
        if child.is_alive():
            write(name, "problem: a forked child does not end by terminate()")
            child.kill()


async def terminate_child_async(name):
    await asyncio.sleep(0)
    terminate_child(name)


def read_input(name):
    with run(name):
        try:
            subprocess.run(["cat"], timeout=5, check=False)
        except subprocess.TimeoutExpired:
            write(name, "problem: the standard input of a child does not end")


# Tasks that fail


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("no text")


RAISED = {
    "value": lambda: ValueError("no such luck"),
    "surrogate": lambda: ValueError("file \udcff"),
    "unprintable": UnprintableError,
    "huge": lambda: ValueError("x" * 1_000_000),
    "cancelled": asyncio.CancelledError,
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator_exit": GeneratorExit,
    "stop": StopIteration,
    "stop_async": StopAsyncIteration,
    "timeout": TimeoutError,
    "connection": lambda: ConnectionResetError("of another server"),
    "retry": lambda: Retry(RETRY),
}


def failing(which, *, is_async):
    if is_async:

        async def fail(name):
            with run(name):
                await asyncio.sleep(0.01)
                raise RAISED[which]()
    else:

        def fail(name):
            with run(name):
                raise RAISED[which]()

    return fail


def give_up(name):
    with run(name):
        raise GiveUp


async def cancel_child(name):
    with run(name):
        child = asyncio.ensure_future(asyncio.sleep(9))
        child.cancel()
        await child


async def cancel_itself(name):
    with run(name):
        asyncio.current_task().cancel()
        await asyncio.sleep(1)


async def be_late(name):
    with run(name):
        await asyncio.sleep(FOREVER)


def be_late_plain(name):
    with run(name):
        time.sleep(2)


# Tasks that end their process, at their first run or at each


def crashing(end, last):
    def crash(name):
        with run(name) as number:
            if number <= last:
                write(name, "crashes")
                end()
                time.sleep(5)

    return crash


def kill_itself(number):
    return lambda: os.kill(os.getpid(), number)


# Tasks that hang, until their worker stops


def hangs():
    return not (directory() / "over").exists()


async def hang(name):
    with run(name):
        if hangs():
            await asyncio.sleep(FOREVER)


async def hang_on(name):
    with run(name):
        while hangs():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(FOREVER)


def hang_plain(name):
    with run(name):
        if hangs():
            time.sleep(FOREVER)


def hang_in_child(name):
    with run(name):
        if hangs():
            subprocess.run(["sleep", "30"], check=False)


class Kind(NamedTuple):
    """What is expected of a task.

    Attributes:
        runs: their number, if neither a server nor a connection nor a process fails meanwhile.
        end: "done" or "buried".
        crashes: it ends its process.
        hangs: it ends only with its worker.
        delay: seconds until it runs again, if it asks for them itself.
    """

    function: Callable
    runs: int = 1
    end: str = "done"
    retries: int = 12
    backoff: float = 0.5
    timeout: float | None = None
    crashes: bool = False
    hangs: bool = False
    delay: float = 0.0

    @property
    def is_async(self):
        return inspect.iscoroutinefunction(self.function)

    def pause(self, failure):
        """Seconds from a failure to the next run at least."""
        return self.delay or self.backoff * 2 ** min(failure - 1, 10)


def fails(function, **options):
    return Kind(function, runs=3, end="buried", retries=2)._replace(**options)


def fails_by(which, *, is_async):
    return fails(failing(which, is_async=is_async), delay=RETRY if which == "retry" else 0.0)


KINDS = {
    "rest": Kind(rest),
    "rest_long": Kind(rest_long),
    "work": Kind(work, retries=0, timeout=3),
    "work_long": Kind(work_long),
    "work_in_child": Kind(work_in_child),
    "terminate_child": Kind(terminate_child),
    "terminate_child_async": Kind(terminate_child_async),
    "read_input": Kind(read_input),
    **{f"fail_{which}": fails_by(which, is_async=False) for which in RAISED},
    **{f"fail_{which}_async": fails_by(which, is_async=True) for which in RAISED},
    "give_up": Kind(give_up, end="buried"),
    "cancel_child": fails(cancel_child),
    "cancel_itself": fails(cancel_itself),
    "hook": fails(failing("value", is_async=False)),
    "be_late": fails(be_late, timeout=0.5),
    "be_late_plain": fails(be_late_plain, timeout=0.5, backoff=3),
    "exit_0": Kind(crashing(lambda: os._exit(0), 1), runs=2, crashes=True),
    "exit_1": Kind(crashing(lambda: os._exit(1), 1), runs=2, crashes=True),
    "killed": Kind(crashing(kill_itself(signal.SIGKILL), 1), runs=2, crashes=True),
    "terminated": Kind(crashing(kill_itself(signal.SIGTERM), 1), crashes=True, runs=2),
    "crash_always": fails(crashing(lambda: os._exit(1), sys.maxsize), crashes=True),
    "hang": Kind(hang, runs=2, hangs=True),
    "hang_on": Kind(hang_on, runs=2, hangs=True),
    "hang_plain": Kind(hang_plain, runs=2, hangs=True),
    "hang_in_child": Kind(hang_in_child, runs=2, hangs=True),
}


class Hooks(Middleware):
    """Raises where a task of the kind `hook` has failed."""

    def failed(self, run, failure):
        if run.message.task == "hook":
            raise RuntimeError("the hook has failed, too")


def make(address):
    """The tasks of all kinds, at a server."""
    tasks = Tasks(address, tube="stress", middleware=[Hooks()], connect_timeout=1.0)
    for name, kind in KINDS.items():
        options = {"retries": kind.retries, "backoff": kind.backoff, "timeout": kind.timeout}
        tasks.task(name=name, **options)(kind.function)
    return tasks


def generators():
    """The problems with generator functions as tasks: each must be refused."""

    async def asynchronous():
        yield

    def plain():
        yield

    for function in (asynchronous, plain):
        try:
            Tasks().task(function)
        except TypeError:
            continue
        yield f"@tasks.task accepts the {function.__name__} generator function"
