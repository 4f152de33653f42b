"""Reminders on days 23, 28 and 29, which are off as soon as nobody needs them.

Ann and Bob try something for 30 days. Three jobs remind each of them before the end, at a moment of the wall clock: if
that clock is set, they follow it. Each has a key that the application can make up again, so whoever decides early is
reminded no more. Run it while a server is running (a day takes a tenth of a second here):

    python examples/reminders.py [HOST:PORT]

It prints:

    day 0: ann and bob begin
    day 23: dear ann, 7 days are left
    day 23: dear bob, 7 days are left
    day 25: ann has decided, and 2 reminders are off
    day 28: dear bob, 2 days are left
    day 29: dear bob, 1 day is left
    day 30: bob has not decided
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import greenstalk

from beanstalk_server.client import Client, TooLateError

END = 30
REMINDERS = (23, 28, 29)


class Trial:
    """The trials that began at a moment, and the queue with their reminders.

    Args:
        began: the moment of day 0.
        day: how long a day is; at the end of a test it need not be long.
        clock: returns the present.
    """

    def __init__(
        self, queue: Client[str], began: datetime, day: timedelta, clock: Callable[[], datetime] = lambda: now()
    ) -> None:
        self.queue = queue
        self.began = began
        self.day = day
        self.clock = clock

    def today(self) -> int:
        return round((self.clock() - self.began) / self.day)

    def begin(self, name: str) -> None:
        """Put the reminders of somebody, each for its moment."""
        for number in REMINDERS:
            self.queue.put_with(name, key=f"{name}/{number}", at=self.began + number * self.day)

    def decide(self, name: str) -> int:
        """Call the reminders off that have not gone out; return how many those were."""
        off = 0
        for number in REMINDERS:
            try:
                self.queue.cancel_keyed(f"{name}/{number}")
                off += 1
            except (greenstalk.NotFoundError, TooLateError):
                pass  # it has gone out, or a worker has it
        return off

    def work_until(self, number: int) -> None:
        """The worker: send what is due, until that day."""
        end = self.began + number * self.day
        while (left := (end - self.clock()).total_seconds()) > 0:
            try:
                jobs = self.queue.reserve_batch(10, timeout=left)
            except greenstalk.TimedOutError:
                return
            for job in jobs:
                days = END - self.today()
                print(f"day {self.today()}: dear {job.body}, {days} {'day is' if days == 1 else 'days are'} left")
                self.queue.delete(job)


def story(trial: Trial) -> None:
    trial.begin("ann")
    trial.begin("bob")
    print(f"day {trial.today()}: ann and bob begin")
    trial.work_until(25)
    print(f"day {trial.today()}: ann has decided, and {trial.decide('ann')} reminders are off")
    trial.work_until(END)
    print(f"day {trial.today()}: bob has not decided")


def now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11300").rpartition(":")
    tube = f"reminders-{time.time_ns()}"  # of this run alone
    with Client((host, int(port)), use=tube, watch=tube) as queue:
        story(Trial(queue, now(), timedelta(seconds=0.1)))
