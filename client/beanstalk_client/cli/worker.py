"""A worker whose work is done by a command, once for each job: `beanstalk work`.

Each of the N slots is a thread with a connection of its own, because a connection that waits for a job cannot touch
another one. A slot reserves a job, runs the command, touches the job as long as that takes, and does with the job what
the command's exit status says.

When the connection is lost, the server makes the job ready at once. The command goes on; the slot connects again, and
takes the job back by reserve-job if no one has had it in between (its count of reserves, and its body, are what they
were). Then nothing has happened. Otherwise it says that the job may run twice. A command is ended by --timeout and by a
second signal only.
Must never delete a job whose command has not ended with status 0.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import beanstalk_client
from beanstalk_client import Client
from beanstalk_client.cli.attempt import Attempt, Rules
from beanstalk_client.cli.failure import REFUSED, USAGE, OperatorError
from beanstalk_client.cli.output import OutputError, show_json, writing
from beanstalk_client.cli.target import connect, meaning, named, reason_of, told

LOOK: Final = 1
"""Seconds that a slot waits for a job at a time: so soon an idle worker ends when it is told to."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts to connect again: doubled with each."""

LONGEST_UNTOUCHED: Final = 60.0
"""Seconds after which a job is touched, however long its time to run is."""

TAKEN: Final = "another worker has had the job"
GONE: Final = "the job is not there any more"
KILLED: Final = "the worker was told twice to stop"


class Reserved:
    """A job that a slot has: what must be known to report its outcome, or to take it back."""

    __slots__ = ("body", "gone", "holder", "id", "key", "priority", "reserves", "try_number", "ttr")

    def __init__(self, job: beanstalk_client.Job[bytes], found: dict[str, Any], holder: Client[bytes]) -> None:
        self.id: int = job.id
        self.body: bytes = job.body
        self.priority: int = int(found["pri"])
        self.ttr: float = max(1.0, float(found["ttr"]))
        self.reserves: int = int(found["reserves"])
        self.try_number: int = int(found["tries"]) + 1 if "tries" in found else self.reserves
        self.key: str = str(found.get("key", ""))
        self.holder: Client[bytes] | None = holder
        """The connection that has reserved it, which may be lost."""
        self.gone: str = ""
        """Why it cannot be taken back, once it cannot."""


class Worker:
    """All slots, and what they have in common: whether to stop, and what is told."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rules: Rules = Rules(options.backoff, options.backoff_max, options.max_tries)
        self.stopping: threading.Event = threading.Event()
        self.killed: threading.Event = threading.Event()
        self.killing: int
        self.killing, self._kill = os.pipe()
        self.failure: OperatorError | OutputError | None = None
        self._lock = threading.Lock()
        self._signals = 0

    def run(self) -> int:
        """Work until told to stop; return the exit status."""
        slots = [
            WorkerThread(self, connect(self.options) if number == 0 else None) for number in range(self.options.number)
        ]
        told, tells = os.pipe()  # Python calls its handlers once for two signals that come together; this counts both
        os.set_blocking(tells, False)
        before_fd = signal.set_wakeup_fd(tells)
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            threads = [threading.Thread(target=slot.run, name=f"slot {i}") for i, slot in enumerate(slots)]
            for thread in threads:
                thread.start()
            while threads:
                if select.select([told], [], [], LOOK / 4)[0]:
                    for number in os.read(told, 100):
                        if number in before:
                            self._on_signal()
                threads = [thread for thread in threads if thread.is_alive()]
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.close(told)
            os.close(tells)
            os.close(self.killing)
            os.close(self._kill)
        if self.failure:
            raise self.failure
        return 0

    def _on_signal(self) -> None:
        self._signals += 1
        self.stopping.set()
        if self._signals == 1:
            self.note("told to stop: it ends with the commands that run; told once more, it ends them")
        if self._signals == 2:
            self.killed.set()
            os.write(self._kill, b"\n")  # nobody reads it: it stays

    def fail(self, failure: OperatorError | OutputError) -> None:
        """End all slots because of what no further attempt can mend."""
        self.failure = self.failure or failure
        self.stopping.set()

    def note(self, message: str) -> None:
        """Tell what has happened beside the outcomes of jobs."""
        with self._lock, self._output():
            print(f"beanstalk work: {message}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _output(self) -> Iterator[None]:
        """Stop when nobody can be told any more, but not in the midst of a job."""
        try:
            with writing():
                yield
        except OutputError as error:
            self.fail(error)

    def report(self, job: Reserved, outcome: str, status: int | None, seconds: float, delay: float, why: str) -> None:
        """Tell the outcome of a job."""
        options = self.options
        with self._lock, self._output():
            if options.json:
                show_json(
                    {
                        "id": job.id,
                        "tube": options.tube,
                        "try": job.try_number,
                        "status": status,
                        "seconds": round(seconds, 3),
                        "outcome": outcome,
                        "delay": delay,
                        "why": why,
                    }
                )
            elif options.verbose or outcome != "deleted":
                ended = f"status {status}" if status is not None else "not started"
                after = f" for {delay:g} s" if delay else ""
                because = f": {why}" if why else ""
                message = (
                    f"job {job.id}, try {job.try_number}: {ended} after {seconds:.1f} s, {outcome}{after}{because}"
                )
                print(f"beanstalk work: {message}", file=sys.stderr, flush=True)


class WorkerThread:
    """One job at a time, and the connection that has it."""

    def __init__(self, worker: Worker, client: Client[bytes] | None) -> None:
        self._worker = worker
        self._options = worker.options
        self._client: Client[bytes] | None = client
        self._watching = False
        self._pause = FIRST_PAUSE
        self._retry_at = 0.0
        self._was_lost = False

    def run(self) -> None:
        """Take job after job, until the worker stops."""
        try:
            while not self._worker.stopping.is_set():
                client = self._connection()
                if client is None:
                    self._worker.stopping.wait(max(0.0, self._retry_at - time.monotonic()))
                    continue
                try:
                    job = client.reserve(LOOK)
                except (beanstalk_client.TimedOutError, beanstalk_client.DeadlineSoonError):
                    continue
                except OSError as error:
                    self._lose(error)
                    continue
                except beanstalk_client.Error as error:
                    raise OperatorError(f"tube {self._options.tube}: {meaning(error)}") from None
                self._do(client, job)
        except OperatorError as failure:
            self._worker.fail(failure)
        except BaseException:
            self._worker.fail(OperatorError("a slot has failed, which is a bug of this program"))
            raise
        finally:
            if self._client:
                self._client.close()

    def _connection(self) -> Client[bytes] | None:
        """The connection; if it is lost, another one, if there can be one by now.

        Raises:
            OperatorError: the server does not let us do this.
        """
        if self._client is None:
            if time.monotonic() < self._retry_at:
                return None
            try:
                self._client = connect(self._options)
            except OperatorError as failure:
                if failure.status in (REFUSED, USAGE):
                    raise
                self._postpone()
                return None
            self._watching = False
        if not self._watching:
            try:
                with told(self._options, f"tube {self._options.tube}"):
                    self._client.watch(self._options.tube)
                    if self._options.tube != beanstalk_client.DEFAULT_TUBE:
                        self._client.ignore(beanstalk_client.DEFAULT_TUBE)
            except OperatorError as failure:
                if failure.status == REFUSED:
                    raise
                self._lose(failure)
                return None
            self._watching = True
            if self._was_lost:
                self._was_lost = False
                self._worker.note(f"{named(self._options)}: connected again")
            self._pause = FIRST_PAUSE
        return self._client

    def _lose(self, error: Exception) -> None:
        if self._client:
            self._client.close()
            self._client = None
        if not self._was_lost:
            reason = reason_of(error) if isinstance(error, OSError) else error
            self._worker.note(f"{named(self._options)}: the connection is lost: {reason}")
        self._was_lost = True
        self._postpone()

    def _postpone(self) -> None:
        self._retry_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _do(self, client: Client[bytes], job: beanstalk_client.Job[bytes]) -> None:
        """Run the command for a job, and report how it has ended."""
        try:
            reserved = Reserved(job, dict(client.stats_job(job)), client)
        except OSError as error:
            self._lose(error)  # nothing has run, and the job is ready again
            return
        except beanstalk_client.NotFoundError:
            return  # its time to run is over already, and another worker has deleted it
        except beanstalk_client.Error as error:
            raise OperatorError(f"a worker must be allowed to look at its jobs (inspect): {meaning(error)}") from None
        began = time.monotonic()
        try:
            attempt = self._start(reserved)
        except OSError as error:
            delay = self._worker.rules.fate(1, reserved.try_number)[1]
            outcome, _ = self._settle(reserved, "released", delay)
            self._worker.report(reserved, outcome, None, 0, delay, f"the command does not start: {error.strerror}")
            return
        try:
            status, why = self._attend(reserved, attempt, began)
        finally:
            attempt.close()
        seconds = time.monotonic() - began
        if self._worker.killed.is_set() and status != 0:
            outcome, delay = "released", 0.0
        else:
            outcome, delay = self._worker.rules.fate(status, reserved.try_number)
        outcome, lost = self._settle(reserved, outcome, delay)
        delay = delay if outcome == "released" else 0
        self._worker.report(reserved, outcome, status, seconds, delay, lost or why)

    def _start(self, job: Reserved) -> Attempt:
        environment = {
            "BEANSTALK_JOB_ID": str(job.id),
            "BEANSTALK_JOB_TUBE": self._options.tube,
            "BEANSTALK_JOB_TRY": str(job.try_number),
            "BEANSTALK_JOB_KEY": job.key,
        }
        stdout = sys.stderr.fileno() if self._options.json else None  # which is for the outcomes
        return Attempt(self._options.command, job.body, environment, stdout)

    def _attend(self, job: Reserved, attempt: Attempt, began: float) -> tuple[int, str]:
        """Keep the job while its command runs; return the exit status, and why we have ended it, if we have."""
        interval = min(job.ttr / 3, LONGEST_UNTOUCHED)
        limit = began + self._options.timeout if self._options.timeout else math.inf
        touch_at = began + interval
        why = ""
        while True:
            others = [self._worker.killing]
            if self._worker.killed.is_set():  # before each wait, which nothing would end otherwise
                why = why or KILLED
                attempt.terminate()
                others = []
            if self._client is not None and not job.gone:
                others.append(self._client.fileno())  # there is something to read when the connection is lost
            until = min(limit, touch_at if self._client is not None or job.gone else self._retry_at)
            status = attempt.wait(min(until, time.monotonic() + interval), *others)
            if status is not None:
                return status, why
            if time.monotonic() >= limit:
                why = f"it took longer than {self._options.timeout:g} s"
                limit = math.inf
                attempt.terminate()
            self._touch(job)
            touch_at = time.monotonic() + interval

    def _touch(self, job: Reserved) -> None:
        """Keep a job ours; if it is not any more, take it back."""
        client = self._hold(job)
        if client is None:
            return
        try:
            client.touch(beanstalk_client.Job(job.id, job.body))
        except OSError as error:
            self._lose(error)
        except beanstalk_client.NotFoundError:  # its time to run was over before we came: we were stopped, say
            job.holder = None
            self._hold(job)
        except beanstalk_client.Error as error:
            job.gone = meaning(error)

    def _hold(self, job: Reserved) -> Client[bytes] | None:
        """The connection that has the job reserved, which is another one than before if that was lost; None if there is
        no connection at present, or the job cannot be taken back.
        """
        if job.gone:
            return None
        try:
            client = self._connection()
        except OperatorError as failure:
            self._worker.fail(failure)
            job.gone = str(failure)
            return None
        if client is None or job.holder is client:
            return client
        try:
            job.gone = self._take_back(client, job)
        except OSError as error:
            self._lose(error)
            return None
        except beanstalk_client.Error as error:
            job.gone = meaning(error)
        if job.gone:
            return None
        job.holder = client
        return client

    def _take_back(self, client: Client[bytes], job: Reserved) -> str:
        """Reserve a job again if no one has had it since; else return why not."""
        try:
            found = client.stats_job(job.id)
            if found["tube"] != self._options.tube or found["reserves"] > job.reserves:
                return TAKEN
            if found["state"] not in ("ready", "delayed"):
                return TAKEN if found["state"] == "reserved" else f"it is {found['state']}"
            again = client.reserve_job(job.id)
            now = int(client.stats_job(job.id)["reserves"])
        except beanstalk_client.NotFoundError:
            return GONE
        except beanstalk_client.UnknownCommandError:
            return "the server does not know reserve-job"
        if again.body != job.body or now > found["reserves"] + 1:  # another job, or somebody was faster, and is done
            client.release(again, job.priority)
            return TAKEN
        job.reserves = now
        return ""

    def _settle(self, job: Reserved, outcome: str, delay: float) -> tuple[str, str]:
        """Let the server do with the job what its outcome is, and connect again for that if need be.

        Returns:
            the outcome that there is in the end, and if that is "lost", why.
        """
        give_up_at = math.inf
        asked = False
        while True:
            client = self._hold(job)
            if client is not None:
                try:
                    return self._tell(client, job, outcome, delay), ""
                except OSError as error:
                    asked = True
                    self._lose(error)
                except beanstalk_client.NotFoundError:
                    job.holder = None  # its time to run was over
                except beanstalk_client.Error as error:
                    job.gone = meaning(error)
                continue
            if job.gone:
                if asked and job.gone == {"deleted": GONE, "buried": "it is buried"}.get(outcome):
                    return outcome, ""  # the answer was lost, not what was asked
                return "lost", f"{job.gone}; it may run twice"
            if self._worker.stopping.is_set():
                give_up_at = min(give_up_at, time.monotonic() + self._options.answer_within)
                if time.monotonic() >= give_up_at or self._worker.killed.is_set():
                    return "lost", "there is no connection; it may run twice"
            self._worker.killed.wait(max(0.0, self._retry_at - time.monotonic()))

    def _tell(self, client: Client[bytes], job: Reserved, outcome: str, delay: float) -> str:
        mine = beanstalk_client.Job(job.id, job.body)
        if outcome == "deleted":
            client.delete(mine)
        elif outcome == "buried":
            client.bury(mine, job.priority)
        else:
            try:
                client.release(mine, job.priority, math.ceil(delay))
            except beanstalk_client.BuriedError:  # the tube's policy says that it has failed too often
                return "buried"
        return outcome


def work(options: argparse.Namespace) -> int:
    """Work until told to stop."""
    if shutil.which(options.command[0]) is None:
        raise OperatorError(f"{options.command[0]}: there is no such command", USAGE)
    return Worker(options).run()
