"""Runs a command for each job of a tube (`beanstalk work`).

`beanstalk_client.consumer` reserves, touches and releases jobs. This module runs the command, maps its exit status to
an outcome, and reports it. A command is ended by --timeout and by a second signal only, not by a loss of
the server. Must never delete a job whose command has not ended with status 0.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import shutil
import signal
import sys
import time
from contextlib import closing
from typing import Final, NamedTuple

import beanstalk_client
from beanstalk_client.cli.attempt import Rules, run
from beanstalk_client.cli.output import USAGE, OperatorError, OutputError, show_json, writing
from beanstalk_client.cli.target import connect, make_async_client, meaning
from beanstalk_client.consumer import DONE, GIVE_BACK, Bury, Consumer, Delivery, Outcome, Release

TAKEN: Final = "another worker reserved the job"
GONE: Final = "the job no longer exists"


class Attempted(NamedTuple):
    """How a command has ended for a job: its exit status is None if it could not be started."""

    try_number: int
    status: int | None
    why: str
    seconds: float


class Worker:
    """Runs commands for jobs, and tells what becomes of these."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._rules = Rules(options.backoff, options.backoff_max, options.max_tries)
        self._killed = asyncio.Event()
        self._failure: OperatorError | OutputError | None = None
        self._attempted: dict[Delivery, Attempted] = {}  # until the server has heard what becomes of the job
        self._client = make_async_client(options)  # asks what has become of those that are lost
        self._asking: set[asyncio.Task[None]] = set()
        self._consumer = Consumer(
            lambda: make_async_client(options),
            [options.tube],
            self._handle,
            at_once=options.number,
            last_attempts=options.answer_within,
            settled=self._settled,
        )
        self._signals = 0

    async def work(self) -> None:
        """Work until told to stop.

        Raises:
            OperatorError: the server does not let us do this.
            OutputError: the output cannot be written.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        log = logging.getLogger("beanstalk_client.consumer")
        log.addHandler(_Notes(self))
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            await self._consumer.run()
        except beanstalk_client.Error as error:
            raise OperatorError(f"tube {self._options.tube}: {meaning(error)}") from None
        finally:
            if self._asking:
                await asyncio.wait(self._asking)
            await self._client.close()
        if self._failure:
            raise self._failure

    def _on_signal(self) -> None:
        self._signals += 1
        self._consumer.stop()
        if self._signals == 1:
            self.note("stopping after the running commands; press Ctrl-C again to stop them")
        else:
            self._killed.set()

    def _fail(self, failure: OperatorError | OutputError) -> None:
        """Stop because of what no further attempt can mend."""
        self._failure = self._failure or failure
        self._consumer.stop()

    async def _handle(self, delivery: Delivery) -> Outcome:
        """Run the command for a job."""
        try:
            found = await delivery.stats()
        except (beanstalk_client.NotFoundError, OSError):
            return GIVE_BACK  # nothing has run, and it is ready again, or gone
        except beanstalk_client.Error as error:
            self._fail(needs_inspect(error))
            return GIVE_BACK
        tries = int(found["tries"]) + 1 if "tries" in found else int(found["reserves"])
        environment = {
            "BEANSTALK_JOB_ID": str(delivery.job_id),
            "BEANSTALK_JOB_TUBE": self._options.tube,
            "BEANSTALK_JOB_TRY": str(tries),
            "BEANSTALK_JOB_KEY": str(found.get("key", "")),
        }
        stdout = sys.stderr.fileno() if self._options.json else None  # which is for the outcomes
        timeout = self._options.timeout or None
        began = time.monotonic()
        try:
            status, why = await run(self._options.command, delivery.body, environment, stdout, timeout, self._killed)
        except OSError as error:
            why = f"cannot start the command: {error.strerror}"
            self._attempted[delivery] = Attempted(tries, None, why, 0)
            return self._in_whole_seconds(self._rules.later(tries))
        self._attempted[delivery] = Attempted(tries, status, why, time.monotonic() - began)
        if self._killed.is_set() and status != 0:
            return GIVE_BACK
        return self._in_whole_seconds(self._rules.fate(status, tries))

    @staticmethod
    def _in_whole_seconds(outcome: Outcome) -> Outcome:
        return Release(math.ceil(outcome.delay)) if isinstance(outcome, Release) else outcome

    def _settled(self, delivery: Delivery, outcome: Outcome, error: Exception | None) -> None:
        """Tell the outcome of a job."""
        attempted = self._attempted.pop(delivery, None)
        if attempted is None:
            return  # nothing has run
        if error is None:
            delay = outcome.delay if isinstance(outcome, Release) else 0
            self._report(delivery, attempted, _word(outcome), delay, attempted.why)
        elif isinstance(error, beanstalk_client.BuriedError):  # the tube's policy says that it has failed too often
            self._report(delivery, attempted, "buried", 0, attempted.why)
        elif isinstance(error, OSError) and not isinstance(error, beanstalk_client.NotFoundError):
            self._report(delivery, attempted, "lost", 0, "connection lost; the job may run twice")
        else:
            asking = asyncio.ensure_future(self._report_lost(delivery, attempted))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _report_lost(self, delivery: Delivery, attempted: Attempted) -> None:
        try:
            await self._client.stats_job(delivery.job_id)
            why = TAKEN
        except beanstalk_client.NotFoundError:
            why = GONE
        except (beanstalk_client.Error, OSError) as error:
            why = str(error)
        self._report(delivery, attempted, "lost", 0, f"{why}; the job may run twice")

    def _report(self, delivery: Delivery, attempted: Attempted, outcome: str, delay: float, why: str) -> None:
        try_number, status, _, seconds = attempted
        if self._options.json:
            self._say(
                {
                    "id": delivery.job_id,
                    "tube": self._options.tube,
                    "try": try_number,
                    "status": status,
                    "seconds": round(seconds, 3),
                    "outcome": outcome,
                    "delay": delay,
                    "why": why,
                }
            )
        elif self._options.verbose or outcome != "deleted":
            ended = f"status {status}" if status is not None else "not started"
            after = f" with a delay of {delay:g} s" if delay else ""
            because = f": {why}" if why else ""
            self.note(
                f"job {delivery.job_id}, try {try_number}: {ended} after {seconds:.1f} s, {outcome}{after}{because}"
            )

    def note(self, message: str) -> None:
        """Tell what has happened."""
        self._say(f"beanstalk work: {message}")

    def _say(self, what: object) -> None:
        """Print a line, on standard output if it is JSON; stop when it cannot be written."""
        try:
            with writing():
                if isinstance(what, str):
                    print(what, file=sys.stderr, flush=True)
                else:
                    show_json(what)
        except OutputError as error:
            self._fail(error)


class _Notes(logging.Handler):
    """Reports what the consumer logs of its connection, and of unexpected errors."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", "")
        if event in ("server-lost", "server-back", "reserve-refused", "bug-handler"):
            self._worker.note(self.format(record))


def _word(outcome: Outcome) -> str:
    return "deleted" if outcome is DONE else "buried" if isinstance(outcome, Bury) else "released"


def needs_inspect(error: beanstalk_client.Error) -> OperatorError:
    """The error of a worker that may not ask for the statistics of its jobs."""
    return OperatorError(f"a worker needs the right to inspect its tube: {meaning(error)}")


def work(options: argparse.Namespace) -> int:
    """Work until told to stop."""
    if shutil.which(options.command[0]) is None:
        raise OperatorError(f"{options.command[0]}: command not found", USAGE)
    with closing(connect(options)) as client:  # or there is no use in beginning
        try:
            client.stats_tube(options.tube)
        except beanstalk_client.NotFoundError:
            pass  # it is made by who watches it
        except beanstalk_client.ForbiddenError as error:
            raise needs_inspect(error) from None
    asyncio.run(Worker(options).work())
    return 0
