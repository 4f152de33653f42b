"""`beanstalk top`: samples a server at each interval, draws what it says, and takes keys.

    keys, signals ─┐                      ┌→ screen
                   ├→ Top: view, samples ─┤
    answers ───────┘                      └→ Feed: questions and orders, over one connection, in a thread

What a key does and what is drawn happens in one thread, which waits in one place, for the terminal and for a pipe that
signals and the feed write to: keys are answered while a server is slow, or away. The terminal is given back however
this ends: by a key, by a signal, or by an error of its own; and when the process is stopped (Ctrl-Z), for as long as it
is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import select
import shutil
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import beanstalk_client
from beanstalk_client.cli.output import UNAVAILABLE, USAGE, OperatorError, asks_a_person, on_terminal, show_json
from beanstalk_client.cli.target import connect, named, told
from beanstalk_client.cli.top_samples import (
    BURIED,
    DELAYED,
    PAUSE_LEFT,
    PUTS,
    READY,
    RESERVED,
    URGENT,
    USING,
    WAITING,
    WATCHING,
    Figures,
    Samples,
    number,
)
from beanstalk_client.cli.top_screen import Status, draw, paint
from beanstalk_client.cli.top_survey import READERS, Survey
from beanstalk_client.cli.top_terminal import ESCAPE_WITHIN, KeyDecoder, Terminal
from beanstalk_client.cli.top_view import JobsOfTube, Order, View, jobs
from beanstalk_client.commands import Command
from beanstalk_client.replies import Document

SHORTEST_INTERVAL: Final = 0.1
"""The shortest interval between two samples, in seconds."""

HURRY: Final = 0.25
"""How soon after a sample another one is taken because somebody has asked for it, in seconds."""

RETRY: Final = 1.0
"""How soon a lost connection is tried again, in seconds, if the interval is shorter."""

LONGEST_STILL: Final = 1.0
"""How long the screen stays as it is when nothing happens, in seconds: ages grow."""

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end it; the exit status is 128 more, as in a shell."""

TUBES_IN_JSON: Final = 100
"""How many tubes a sample has in JSON: the first ones by the order that was chosen."""

FIGURES_IN_JSON: Final = {
    "urgent": URGENT,
    "ready": READY,
    "reserved": RESERVED,
    "delayed": DELAYED,
    "buried": BURIED,
    "using": USING,
    "watching": WATCHING,
    "waiting": WAITING,
    "total": PUTS,
    "pause-left": PAUSE_LEFT,
}

TEXTS: Final = ("id", "hostname", "version", "server", "os", "platform")
"""What the server says of itself that is text, though it may have digits only."""

LOOKED_AT: Final = 50
"""How many jobs in each state are looked at."""

BODY: Final = 65_536
"""The longest body that is fetched to be looked at, in bytes, where its length is known before."""

STATES: Final = ("ready", "reserved", "delayed", "buried")

REFUSALS: Final = (
    beanstalk_client.NotFoundError,
    beanstalk_client.UnknownCommandError,
    beanstalk_client.ForbiddenError,
    beanstalk_client.BadFormatError,
    beanstalk_client.InternalError,
    beanstalk_client.OutOfMemoryError,
)
"""Replies to a question that a survey goes on after."""


class Asker:
    """One connection to the server that the options name, opened when it is needed: also after it was lost.

    Attributes:
        connections: how many have been opened.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._client: beanstalk_client.Client[bytes] | None = None
        self.connections: int = 0

    def connect(self) -> beanstalk_client.Client[bytes]:
        """The connection.

        Raises:
            OperatorError: there is no server, or it does not let us in.
        """
        if self._client is None:
            self._client = connect(self._options)
            self.connections += 1
        return self._client

    def close(self) -> None:
        """Close the connection, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(OSError):  # it is lost already
                client.close()

    @contextlib.contextmanager
    def _asking(self, what: str = "", extension: str = "") -> Iterator[beanstalk_client.Client[bytes]]:
        """The connection; what goes wrong is an OperatorError, and a connection that may be out of step is closed."""
        client = self.connect()
        try:
            with told(self._options, what, extension):
                yield client
        except OperatorError as error:
            if error.status == UNAVAILABLE:
                self.close()
            raise
        except BaseException:
            self.close()
            raise

    def ask(self, questions: Sequence[str]) -> tuple[int, list[tuple[float, Any]]]:
        """Ask the questions of a survey, all at once.

        Returns:
            the number of the connection, and when each was answered, and its answer.

        Raises:
            OperatorError: the connection is lost, or there is none.
        """
        with self._asking() as client:
            answers = client.run_all([_command(question) for question in questions])
            for answer in answers:
                if isinstance(answer, Exception) and not isinstance(answer, REFUSALS):
                    raise answer
            now = time.monotonic()
            return self.connections, [(now, answer) if isinstance(answer, Exception) else answer for answer in answers]

    def do(self, order: Order) -> str:
        """Pause, kick or clear a tube; return what came of it, in words."""
        act, name, count = order
        try:
            with self._asking(name, "clear-tube" if act == "clear" else "") as client:
                if act == "pause":
                    client.pause_tube(name, count)
                    return (
                        f"{name} is paused for {count // 60} minutes; P resumes it" if count else f"{name} is resumed"
                    )
                if act == "clear":
                    return f"{name}: {jobs(client.clear_tube(name))} deleted"
                with _using(client, name):
                    return f"{name}: {jobs(client.kick(count))} kicked"
        except OperatorError as error:
            doubt = "; whether it was done is not known" if error.status == UNAVAILABLE else ""
            return f"{error}{doubt}"

    def look_into(self, name: str) -> JobsOfTube:
        """Fetch the first jobs of a tube, in each state, and the body of the first of each."""
        try:
            with self._asking(name) as client:
                try:
                    found, bodies = _list_jobs(client, name)
                except beanstalk_client.UnknownCommandError:
                    found, bodies = _peek_jobs(client, name)
                return JobsOfTube(name, time.monotonic(), found, bodies, percentiles=_percentiles(client, name))
        except OperatorError as error:
            return JobsOfTube(name, time.monotonic(), error=str(error))


def _percentiles(client: beanstalk_client.Client[bytes], name: str) -> str:
    """What the server has measured of a tube: the 50th, 95th and 99th percentile of each; "" if it measures nothing."""
    found = client.stats_tube(name)
    if "wait-p50" not in found:
        return ""
    told = []
    for text, key in (("waited", "wait"), ("ran", "run"), ("late", "lateness")):
        numbers = [f"{float(found[f'{key}-p{share}']):.3g}" for share in (50, 95, 99)]
        told.append(f"{text} {' / '.join(numbers)} s")
    return ", ".join(told)


def _command(question: str) -> Command[Any]:
    """A question as it is sent: its reply is when it has come, and what it says."""
    read = READERS[question.partition(" ")[0]]
    return Command(question.encode() + b"\r\n", Document(lambda data: (time.monotonic(), read(data))), True)


def _list_jobs(client: beanstalk_client.Client[bytes], name: str) -> tuple[list[Figures], dict[int, bytes]]:
    found: list[Figures] = []
    bodies = {}
    for state in STATES:
        (answer,) = client.run_all([_command(f"list-jobs {name} {state} 0 {LOOKED_AT}")])
        if isinstance(answer, Exception):
            raise answer
        _, listed = answer[1]
        found += listed
        for job in listed[:1]:
            size = number(job, "size")
            if size is not None and size <= BODY:
                with contextlib.suppress(beanstalk_client.NotFoundError):  # it has gone since
                    bodies[job["id"]] = client.peek(job["id"]).body
    return found, bodies


def _peek_jobs(client: beanstalk_client.Client[bytes], name: str) -> tuple[list[Figures], dict[int, bytes]]:
    """The same where jobs cannot be listed: the first ready, delayed and buried one."""
    client.stats_tube(name)  # or `use` would make a tube that has gone
    found: list[Figures] = []
    bodies = {}
    with _using(client, name):
        for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
            with contextlib.suppress(beanstalk_client.NotFoundError):  # there is none, or it has gone since
                job = peek()
                found.append(client.stats_job(job.id) | {"size": len(job.body)})
                bodies[job.id] = job.body
    return found, bodies


@contextlib.contextmanager
def _using(client: beanstalk_client.Client[bytes], name: str) -> Iterator[None]:
    """Use a tube for a moment: a tube in use cannot go."""
    client.use(name)
    try:
        yield
    finally:
        # It may not use it: it stays here. The connection is lost: that is told elsewhere.
        with contextlib.suppress(beanstalk_client.Error, OSError):
            client.use(beanstalk_client.DEFAULT_TUBE)


class Feed:
    """A thread that asks.

    Args:
        asker: which from now on is this thread's.
        wake: is called in that thread when there is an answer.
    """

    def __init__(self, asker: Asker, wake: Callable[[], None]) -> None:
        self._asker = asker
        self._wake = wake
        self._wanted: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Any], None]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="beanstalk-top-feed", daemon=True).start()

    def want(self, ask: Callable[[], Any], take: Callable[[Any], None]) -> None:
        """Have `ask` called in the thread, when everything before has been done; `take` is for its result, or the
        OperatorError that it raises.
        """
        self._wanted.put((ask, take))

    def deliver(self) -> None:
        """Have all answers taken that have come."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._answers.get_nowait()()

    def stop(self) -> None:
        """End the thread, when it has done what it is doing; the process need not wait for that."""
        self._wanted.put(None)

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            ask, take = wanted
            try:
                result = ask()
            except OperatorError as error:
                result = error
            self._answers.put(partial(take, result))
            self._wake()
        self._asker.close()


def top(options: argparse.Namespace) -> int:
    """Show what a server does, live; return the exit status."""
    if options.interval < SHORTEST_INTERVAL:
        raise OperatorError(
            f"--interval {options.interval:g}: must be {SHORTEST_INTERVAL:g} seconds at the least", USAGE
        )
    live = not (options.json or options.once)
    if live and not (asks_a_person() and on_terminal()):
        raise OperatorError("no terminal to draw on: --once draws one screen, and --json prints samples", USAGE)
    asker = Asker(options)
    asker.connect()
    if live:
        return Top(options, asker).run()
    with contextlib.closing(asker):
        return _print_samples(options, asker)


def _print_samples(options: argparse.Namespace, asker: Asker) -> int:
    """Print samples as lines of JSON, or one screen."""
    samples = Samples()
    view = View(samples, options.sort, options.prefix or "")
    survey = Survey(samples)
    size = shutil.get_terminal_size()
    if not options.json:
        view.fit(size.lines)
    count = 0
    while True:
        began = time.monotonic()
        visible = view.ranked[:TUBES_IN_JSON] if options.json else view.visible
        questions = survey.begin(began, options.interval, visible, view.prefix)
        while questions:
            for question, (moment, answer) in zip(questions, asker.ask(questions)[1], strict=True):
                survey.take(moment, question, answer)
            questions = survey.more(time.monotonic())
        view.rank()
        samples.watch(view.visible)
        count += 1
        if options.json and (not options.once or count == 2):
            show_json(document(samples, view, survey))
        if count == 2 and (options.once or not options.json):
            break
        time.sleep(max(began + options.interval - time.monotonic(), 0.0))
    if not options.json:
        lines = _lines(options, samples, view, survey, (size.columns, size.lines), live=False)
        painted = paint(lines, styled=on_terminal(), colours=_has_colours())
        print("\n".join(line.rstrip() for line in painted).rstrip(), flush=True)
    return 0


def document(samples: Samples, view: View, survey: Survey) -> dict[str, Any]:
    """A sample as JSON: times in Unix seconds, ages in seconds, rates a second; null is what is not known."""
    now = time.monotonic()
    tubes = [samples.tubes[name] for name in view.ranked[:TUBES_IN_JSON] if name in samples.tubes]
    return {
        "time": round(time.time(), 3),
        "stats": {key: str(value) if key in TEXTS else value for key, value in samples.figures.items()},
        "rates": {name: _rounded(rate) for name, rate in samples.rates.items()},
        "matching": view.matching,
        "complete": survey.is_complete,
        "tubes": [
            {"name": tube.name, "age": round(tube.age(now), 3)}
            | {key: tube.figures[which] for key, which in FIGURES_IN_JSON.items()}
            | {"next-job-age": tube.next_age}
            | {"in": _rounded(tube.puts), "out": _rounded(tube.deletes), "growth": _rounded(tube.growth)}
            for tube in tubes
        ],
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _lines(
    options: argparse.Namespace,
    samples: Samples,
    view: View,
    survey: Survey,
    size: tuple[int, int],
    notice: str = "",
    *,
    live: bool = True,
) -> list[Any]:
    if not notice and survey.is_refused:
        notice = "this user may not see the figures of the server (it lacks the right to inspect every tube)"
    status = Status(
        target=named(options),
        clock=time.strftime("%H:%M:%S"),
        interval=options.interval,
        notice=notice,
        whole=survey.is_complete,
        live=live,
    )
    is_ascii = "utf" not in (sys.stdout.encoding or "").lower()
    return draw(samples, view, status, size, time.monotonic(), ascii_only=is_ascii)


def _has_colours() -> bool:
    return not os.environ.get("NO_COLOR")


class Top:
    """The live view.

    Args:
        asker: is connected.
    """

    def __init__(self, options: argparse.Namespace, asker: Asker) -> None:
        self._options = options
        self._asker = asker
        self._samples = Samples()
        self._survey = Survey(self._samples)
        self._view = View(self._samples, options.sort, options.prefix or "")
        self._decoder = KeyDecoder()
        self._terminal = Terminal(sys.stdin.fileno(), sys.stdout.fileno(), sys.stdout.encoding or "ascii")
        self._signals: list[int] = []
        self._ended: int | None = None  # the exit status
        self._connection = asker.connections  # the one that the survey is of
        self._notice = ""
        self._is_asking = False
        self._asked_at = 0.0
        self._next = 0.0  # when the next interval begins

    def run(self) -> int:
        """Show it until somebody ends it; return the exit status."""
        with self._wake_ups() as wake:
            feed = Feed(self._asker, wake)
            try:
                self._terminal.enter()
                while self._ended is None:
                    self._sample(feed)
                    self._draw()
                    self._wait(feed)
            finally:
                self._terminal.leave()
                feed.stop()
        return self._ended

    @contextlib.contextmanager
    def _wake_ups(self) -> Iterator[Any]:
        """Turn signals into bytes of a pipe, to which the function that is returned also writes."""
        self._woken, waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(waking, False)

        self._is_open = True

        def wake() -> None:
            if self._is_open:
                with contextlib.suppress(BlockingIOError):  # it is full, and will wake anyway
                    os.write(waking, b"\0")

        taken = (*ENDING, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
        before = {number: signal.signal(number, self._on_signal) for number in taken}
        previous = signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        try:
            yield wake
        finally:
            signal.set_wakeup_fd(previous)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._is_open = False  # the feed may still be waiting for a server
            os.close(waking)
            os.close(self._woken)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)

    def _sample(self, feed: Feed) -> None:
        """Begin an interval, if it is time."""
        now = time.monotonic()
        if self._is_asking or now < self._next:
            return
        self._asked_at, self._next = now, max(self._next + self._options.interval, now)
        self._samples.watch(self._view.visible)
        self._ask(feed, self._survey.begin(now, self._options.interval, self._view.visible, self._view.prefix))

    def _ask(self, feed: Feed, questions: Sequence[str]) -> None:
        self._is_asking = True
        feed.want(partial(self._asker.ask, questions), partial(self._take, feed, questions))

    def _draw(self) -> None:
        size = self._terminal.size()
        lines = _lines(self._options, self._samples, self._view, self._survey, size, self._notice)
        try:
            self._terminal.draw(paint(lines, styled=True, colours=_has_colours()))
        except OSError:  # the terminal has gone
            self._ended = 128 + signal.SIGHUP

    def _wait(self, feed: Feed) -> None:
        """Wait until something happens, or is due; deal with it."""
        now = time.monotonic()
        within = LONGEST_STILL if self._is_asking else min(max(self._next - now, 0.0), LONGEST_STILL)
        if self._decoder.pending:
            within = min(within, ESCAPE_WITHIN)
        ready, _, _ = select.select([self._terminal.fd_in, self._woken], [], [], within)
        keys = []
        if self._terminal.fd_in in ready:
            typed = self._terminal.read()
            if not typed:
                self._ended = 128 + signal.SIGHUP
                return
            keys = self._decoder.feed(typed)
        elif self._decoder.pending:
            keys = self._decoder.expire()
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
        for key in keys:
            self._press(feed, key)
        feed.deliver()
        while self._signals and self._ended is None:
            self._obey(self._signals.pop(0))

    def _press(self, feed: Feed, key: str) -> None:
        prefix = self._view.prefix
        order = self._view.press(key)
        match order:
            case None:
                pass
            case Order("quit"):
                self._ended = 0
            case Order("redraw"):
                self._terminal.forget()
            case Order("refresh"):
                self._hurry()
            case Order("look", name):
                feed.want(partial(self._asker.look_into, name), self._view.show_jobs)
            case _:
                feed.want(partial(self._asker.do, order), self._tell)
        if self._view.prefix != prefix:
            self._hurry()

    def _hurry(self) -> None:
        """Take the next sample soon."""
        self._next = min(self._next, self._asked_at + HURRY)

    def _tell(self, outcome: str) -> None:
        """Tell what has come of an order."""
        self._view.message = outcome
        self._hurry()

    def _take(
        self, feed: Feed, questions: Sequence[str], result: tuple[int, list[tuple[float, Any]]] | OperatorError
    ) -> None:
        """Take answers into the samples, and ask what remains to be asked."""
        self._is_asking = False
        if isinstance(result, OperatorError):
            self._notice = f"trying again: {result}"
            self._next = max(self._next, time.monotonic() + RETRY)
            return
        self._notice = ""
        connection, answers = result
        is_another = connection != self._connection  # to another server, perhaps, which knows other commands
        if is_another:
            self._connection = connection
            self._survey = Survey(self._samples)
            self._next = time.monotonic()
        for question, (moment, answer) in zip(questions, answers, strict=True):
            self._survey.take(moment, question, answer)
        if not is_another and (remaining := self._survey.more(time.monotonic())):
            self._ask(feed, remaining)
        self._view.rank()

    def _obey(self, number: int) -> None:
        """Do what a signal asks for."""
        if number in ENDING:
            self._ended = 128 + number
        elif number == signal.SIGTSTP:
            self._terminal.leave()
            ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)  # stopped here, until SIGCONT; not at all if no shell could continue it
            signal.signal(signal.SIGTSTP, ours)
            self._resume()
        elif number == signal.SIGCONT:
            self._resume()
        else:
            self._terminal.forget()  # SIGWINCH

    def _resume(self) -> None:
        """Take over the terminal again."""
        try:
            self._terminal.enter()
        except (OSError, termios.error):  # the terminal has gone
            self._ended = 128 + signal.SIGHUP
