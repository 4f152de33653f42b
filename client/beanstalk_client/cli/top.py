"""Shows a server live: samples it at each interval, draws the screen, and takes keys (`beanstalk top`).

    keys, signals → Top → View, Reader with Sampler → rich: screen

Everything happens in one event loop: keys are answered while the server is slow or away. The terminal is restored
however the program ends, and while it is stopped (Ctrl-Z).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live

from beanstalk_client.cli.output import (
    UNAVAILABLE,
    USAGE,
    OperatorError,
    abandon_output,
    asks_a_person,
    on_terminal,
    show_json,
)
from beanstalk_client.cli.target import connecting, make_async_client, named, told
from beanstalk_client.cli.top_keys import ESCAPE_WITHIN, KeyDecoder
from beanstalk_client.cli.top_screen import Status, draw
from beanstalk_client.cli.top_state import Action, JobsOfTube, View
from beanstalk_client.observe.reader import Reader
from beanstalk_client.observe.sampler import Sampler
from beanstalk_client.observe.samples import STATES, TUBE_FIGURES, Figures, ages, percentiles

SHORTEST_INTERVAL: Final = 0.1
"""The shortest interval between two samples, in seconds."""

LONGEST_STILL: Final = 1.0
"""Seconds after which the screen is drawn again, as ages grow."""

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end it; the exit status is 128 more, as in a shell."""

TUBES_IN_JSON: Final = 100
"""Maximum number of tubes in a sample in JSON: the first ones in the chosen order."""

TEXTS: Final = ("id", "hostname", "version", "server", "os", "platform")
"""Figures of the server that are text, though they may have digits only."""

JOBS: Final = 50
"""Maximum number of jobs in each state that are shown."""

REFUSED: Final = "no server statistics: this user lacks the right to inspect every tube"


def top(options: argparse.Namespace) -> int:
    """Show a server live; return the exit status."""
    if options.interval < SHORTEST_INTERVAL:
        raise OperatorError(f"--interval {options.interval:g}: must be at least {SHORTEST_INTERVAL:g} seconds", USAGE)
    if not (options.json or options.once or (asks_a_person() and on_terminal())):
        raise OperatorError("no terminal: use --once for one screen, or --json for samples", USAGE)
    return asyncio.run(_top(options))


async def _top(options: argparse.Namespace) -> int:
    interval: float = options.interval
    reader = Reader(lambda _: make_async_client(options), interval=interval, step=2 * interval)
    sampler = reader.sampler
    sampler.prefix = options.prefix or ""
    view = View(sampler.samples, options.sort, sampler.prefix)
    try:
        with connecting(options):
            await sampler.connect()
        if options.json or options.once:
            await _print_samples(options, sampler, view)
            return 0
        return await Top(options, reader, view).run()
    finally:
        await reader.close()


async def _print_samples(options: argparse.Namespace, sampler: Sampler, view: View) -> None:
    """Print samples as lines of JSON, or one screen."""
    if not options.json:
        console = Console(highlight=False)
        view.fit(console.height)
    count = 0
    while True:
        began = sampler.now
        sampler.show(view.ranked[:TUBES_IN_JSON] if options.json else view.visible)
        await sampler.sample()
        if error := _error(options, sampler):
            raise error
        view.rank()
        count += 1
        if options.json and (not options.once or count == 2):
            show_json(document(sampler, view))
        if count == 2 and (options.once or not options.json):
            break
        await asyncio.sleep(began + options.interval - sampler.now)
    if not options.json:
        console.print(_draw(options, sampler, view, console.size, console.encoding, live=False))


def _error(options: argparse.Namespace, sampler: Sampler) -> OperatorError | None:
    """Why the last sample failed."""
    try:
        with told(options):
            if sampler.error is not None:
                raise sampler.error
            if sampler.problem:  # the sample has not failed yet
                raise OperatorError(f"{named(options)}: {sampler.problem}", UNAVAILABLE)
    except OperatorError as error:
        return error
    return None


def document(sampler: Sampler, view: View) -> dict[str, Any]:
    """A sample as JSON: times in Unix seconds, ages in seconds, rates a second; null is what is not known."""
    samples, now = sampler.samples, sampler.now
    tubes = [samples.tubes[name] for name in view.ranked[:TUBES_IN_JSON]]
    return {
        "time": round(time.time(), 3),
        "stats": {key: str(value) if key in TEXTS else value for key, value in samples.figures.items()},
        "rates": {name: _rounded(rate) for name, rate in samples.rates.items()},
        "matching": view.matching,
        "complete": sampler.survey.is_complete,
        "tubes": [
            {"name": tube.name, "age": round(tube.age(now), 3)}
            | {name.replace("_", "-"): getattr(tube, name) for name in TUBE_FIGURES if name != "deleted"}
            | {"next-job-age": tube.next_age}
            | {"in": _rounded(tube.puts), "out": _rounded(tube.deletes), "growth": _rounded(tube.growth)}
            for tube in tubes
        ],
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _draw(
    options: argparse.Namespace, sampler: Sampler, view: View, size: tuple[int, int], encoding: str, *, live: bool
) -> Group:
    error = _error(options, sampler)
    notice = f"{error}; retrying" if error else REFUSED if sampler.survey.is_refused else ""
    status = Status(named(options), time.strftime("%H:%M:%S"), options.interval, notice, live, encoding)
    return draw(sampler, view, status, size)


class Top:
    """The live view.

    Args:
        reader: its sampler is connected.
    """

    def __init__(self, options: argparse.Namespace, reader: Reader, view: View) -> None:
        self._options = options
        self._reader = reader
        self._view = view
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._decoder = KeyDecoder()
        self._expiry: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: int | None = None  # the exit status
        self._failure: BaseException | None = None
        self._stdin = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._stdin)
        console = Console(force_terminal=True, highlight=False)
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    async def run(self) -> int:
        """Show it until a key or a signal ends it; return the exit status."""
        sampler, view = self._reader.sampler, self._view
        for number in ENDING:
            self._loop.add_signal_handler(number, self._end, 128 + number)
        self._loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._loop.add_signal_handler(signal.SIGCONT, self._enter)
        self._loop.add_reader(self._stdin, self._read)
        try:
            self._enter()
            self._start(self._follow())
            while self._ended is None:
                self._changed.clear()
                sampler.prefix = view.prefix
                self._draw()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), LONGEST_STILL)
        finally:
            self._loop.remove_reader(self._stdin)
            for task in self._tasks:
                task.cancel()
            self._leave()
        if self._failure is not None:
            raise self._failure
        return self._ended

    async def _follow(self) -> None:
        """Rank the tubes and draw after each sample."""
        while True:
            await self._reader.sampler.look(self._view.visible)
            self._view.rank()
            self._changed.set()
            await self._reader.sampler.wait(LONGEST_STILL)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failure = error
            self._end(1)

    def _end(self, status: int) -> None:
        if self._ended is None:
            self._ended = status
        self._changed.set()

    def _draw(self) -> None:
        console = self._live.console
        with self._terminal():
            width, height = os.get_terminal_size(sys.stdout.fileno())
            console.size = (width or 80, height or 24)
            screen = _draw(self._options, self._reader.sampler, self._view, console.size, console.encoding, live=True)
            self._live.update(screen, refresh=True)

    @contextlib.contextmanager
    def _terminal(self) -> Iterator[None]:
        """Use the terminal; end if it is gone."""
        try:
            yield
        except (OSError, termios.error):
            abandon_output()  # what could not be written must not fail again
            self._end(128 + signal.SIGHUP)

    def _enter(self) -> None:
        """Take over the terminal, also after another program has used it."""
        with self._terminal():
            self._live.stop()
            tty.setcbreak(self._stdin, termios.TCSADRAIN)  # Ctrl-C and Ctrl-Z stay signals
            self._live.start()
        self._changed.set()

    def _leave(self) -> None:
        """Restore the terminal."""
        with self._terminal():
            self._live.stop()
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._before)

    def _stop(self) -> None:
        """Stop, as SIGTSTP asks, until SIGCONT; go on at once if no shell could continue it."""
        self._leave()
        self._loop.remove_signal_handler(signal.SIGTSTP)
        signal.raise_signal(signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        self._enter()

    def _read(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        try:
            typed = os.read(self._stdin, 4096)
        except OSError:  # EIO: the terminal is gone
            typed = b""
        if not typed:
            self._end(128 + signal.SIGHUP)
            return
        self._press(self._decoder.feed(typed))
        if self._decoder.pending:
            self._expiry = self._loop.call_later(ESCAPE_WITHIN, lambda: self._press(self._decoder.expire()))

    def _press(self, keys: Iterable[str]) -> None:
        view = self._view
        for key in keys:
            prefix = view.prefix
            match view.press(key):
                case Action.QUIT:
                    self._end(0)
                case Action.FETCH:
                    self._start(self._fetch(view.tube))
                case Action.SAMPLE:
                    self._start(self._reader.sampler.again())
            if view.prefix != prefix:
                self._reader.sampler.prefix = view.prefix
                self._start(self._reader.sampler.again())
        self._changed.set()

    async def _fetch(self, name: str) -> None:
        """Fetch the first jobs of a tube in each state, and the body of the first of each."""
        jobs: list[Figures] = []
        bodies: dict[int, bytes] = {}
        error = ""
        figures: Figures = {}
        try:
            with told(self._options, name):
                figures = await self._reader.client.stats_tube(name)
                for state in STATES:
                    _, found = await self._reader.jobs(name, state, count=JOBS)
                    jobs += found
                    bodies |= await self._reader.bodies(found[:1])
        except OperatorError as failure:
            error = str(failure)
        self._view.show_jobs(
            JobsOfTube(name, self._reader.sampler.now, jobs, bodies, error, percentiles(figures), ages(figures))
        )
        self._changed.set()
