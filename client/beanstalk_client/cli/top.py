"""`beanstalk top`: samples a server at each interval, draws what it says, and takes keys.

    keys, signals ─┐                      ┌→ screen
                   ├→ Top: view, samples ─┤
    news from Feed ┘                      └→ questions and orders to Feed

All of that happens in one thread, which waits in one place, for the terminal and for a pipe that signals and the feed
write to. The terminal is given back however this ends: by a key, by a signal, or by an error of its own; and when the
process is stopped (Ctrl-Z), for as long as it is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any, Final

from beanstalk_client.cli.failure import USAGE, OperatorError
from beanstalk_client.cli.output import asks_a_person, on_terminal, show_json
from beanstalk_client.cli.target import named
from beanstalk_client.cli.top_feed import Answered, Asker, Done, Feed, News, Unanswered
from beanstalk_client.cli.top_keys import ESCAPE_WITHIN, KeyDecoder
from beanstalk_client.cli.top_samples import Samples
from beanstalk_client.cli.top_screen import Status, draw, paint
from beanstalk_client.cli.top_survey import Survey
from beanstalk_client.cli.top_terminal import Terminal
from beanstalk_client.cli.top_view import Ask, JobsOfTube, View

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

TEXTS: Final = ("id", "hostname", "version", "server", "os", "platform")
"""What the server says of itself that is text, though it may have digits only."""


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
    view = View(options.sort, options.prefix or "")
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
            for question, (moment, answer) in zip(questions, asker.ask(questions), strict=True):
                survey.take(moment, question, answer)
            questions = survey.more(time.monotonic())
        view.rank(samples)
        samples.watch(view.visible)
        count += 1
        if options.json and not options.once:
            show_json(document(samples, view, survey))
        elif count == 2:
            break
        time.sleep(max(began + options.interval - time.monotonic(), 0.0))
    if options.json:
        show_json(document(samples, view, survey))
        return 0
    now = time.monotonic()
    status = _status(options, samples, view, survey, "", now, live=False)
    lines = draw(samples, view, status, (size.columns, size.lines), now, ascii_only=_is_ascii())
    painted = paint(lines, styled=on_terminal(), colours=_has_colours())
    print("\n".join(line.rstrip() for line in painted).rstrip(), flush=True)
    return 0


def document(samples: Samples, view: View, survey: Survey) -> dict[str, Any]:
    """A sample as JSON: times in Unix seconds, ages in seconds, rates a second; null is what is not known."""
    now = time.monotonic()
    server = samples.server(now)
    tubes = []
    for name in view.ranked[:TUBES_IN_JSON]:
        row = samples.row(name, now)
        if row is not None:
            keys = ("urgent", "ready", "reserved", "delayed", "buried", "using", "watching", "waiting", "total")
            tubes.append(
                {"name": name, "age": round(row.age, 3)}
                | {key: getattr(row, key) for key in keys}
                | {"pause-left": row.pause_left, "next-job-age": row.next_age}
                | {"in": _rounded(row.puts), "out": _rounded(row.deletes), "growth": _rounded(row.growth)}
            )
    return {
        "time": round(time.time(), 3),
        "stats": {
            key: int(value) if value.isdigit() and key not in TEXTS else value for key, value in server.figures.items()
        },
        "rates": {name: _rounded(rate) for name, rate in server.rates.items()},
        "matching": view.matching,
        "complete": survey.is_complete,
        "tubes": tubes,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _status(
    options: argparse.Namespace,
    samples: Samples,
    view: View,
    survey: Survey,
    notice: str,
    now: float,
    *,
    live: bool = True,
) -> Status:
    if not notice and survey.is_refused:
        notice = "this user may not see the figures of the server (it lacks the right to inspect every tube)"
    return Status(
        target=named(options),
        clock=time.strftime("%H:%M:%S"),
        interval=options.interval,
        notice=notice,
        whole=survey.is_complete,
        round=samples.oldest(view.prefix, now),
        live=live,
    )


def _is_ascii() -> bool:
    return "utf" not in (sys.stdout.encoding or "").lower()


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
        self._view = View(options.sort, options.prefix or "")
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
        self._want(feed, now)

    def _want(self, feed: Feed, now: float) -> None:
        self._is_asking = True
        feed.want(self._survey.begin(now, self._options.interval, self._view.visible, self._view.prefix))

    def _draw(self) -> None:
        now = time.monotonic()
        size = self._terminal.size()
        status = _status(self._options, self._samples, self._view, self._survey, self._notice, now)
        lines = draw(self._samples, self._view, status, size, now, ascii_only=_is_ascii())
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
        for news in feed.news():
            self._hear(feed, news)
        while self._signals and self._ended is None:
            self._obey(self._signals.pop(0))

    def _press(self, feed: Feed, key: str) -> None:
        prefix = self._view.prefix
        order = self._view.press(key, self._samples)
        match order:
            case None:
                pass
            case Ask.QUIT:
                self._ended = 0
            case Ask.REDRAW:
                self._terminal.forget()
            case Ask.REFRESH:
                self._hurry()
            case _:
                feed.want(order)
        if self._view.prefix != prefix:
            self._hurry()

    def _hurry(self) -> None:
        """Take the next sample soon."""
        self._next = min(self._next, self._asked_at + HURRY)

    def _hear(self, feed: Feed, news: News) -> None:
        match news:
            case Answered():
                self._take(feed, news)
            case Unanswered(reason):
                self._is_asking = False
                self._notice = f"trying again: {reason}"
                self._next = max(self._next, time.monotonic() + RETRY)
            case Done(text):
                self._view.message = text
                self._hurry()
            case JobsOfTube():
                self._view.show_jobs(news)

    def _take(self, feed: Feed, answered: Answered) -> None:
        """Take answers into the samples, and ask what remains to be asked."""
        self._notice = ""
        self._is_asking = False
        if answered.connection != self._connection:  # another server, perhaps, which knows other commands
            self._connection = answered.connection
            self._survey = Survey(self._samples)
            self._next = time.monotonic()
        for question, (moment, answer) in zip(answered.questions, answered.answers, strict=True):
            self._survey.take(moment, question, answer)
        questions = self._survey.more(time.monotonic()) if answered.connection == self._connection else []
        if questions:
            self._is_asking = True
            feed.want(questions)
        self._view.rank(self._samples)

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
