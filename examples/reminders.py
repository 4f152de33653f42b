"""Reminders on days 23, 28 and 29, which are cancelled as soon as they are not needed.

Ann and Bob try something for 30 days. Three calls of a task remind each of them before the end, at a moment of the wall
clock: if that clock is set, they follow it. Each has a key that the application can make up again, so the one that
decides early is reminded no more. Run it while a server is running (a day takes a tenth of a second here):

    python examples/reminders.py [HOST:PORT]

It prints:

    day 0: ann and bob begin
    day 23: dear ann, 7 days are left
    day 23: dear bob, 7 days are left
    day 25: ann has decided, and 2 reminders are cancelled
    day 28: dear bob, 2 days are left
    day 29: dear bob, 1 day is left
    day 30: bob has not decided
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from beanstalk_client.tasks import Tasks
from beanstalk_client.worker.serving import Group, Worker

END = 30
REMINDERS = (23, 28, 29)

tasks = Tasks(
    sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else "127.0.0.1:11300",
    tube=f"reminders-{time.time_ns()}",  # of this run alone
)


@tasks.task
async def remind(name: str, day: int) -> None:
    left = END - day
    print(f"day {day}: dear {name}, {left} {'day is' if left == 1 else 'days are'} left", flush=True)


async def begin(name: str, began: datetime, day: timedelta) -> None:
    """Put the reminders of a user, each for its moment."""
    for number in REMINDERS:
        await remind.key(f"{name}/{number}").at(began + number * day).aput(name, number)


async def decide(name: str) -> int:
    """Cancel the reminders that have not been sent; return their number."""
    return sum([await remind.acancel(f"{name}/{number}") for number in REMINDERS])


async def story(began: datetime, day: timedelta, until: Callable[[int], Awaitable[object]]) -> None:
    """What happens to Ann and Bob.

    Args:
        day: how long a day is.
        until: waits until a day.
    """
    await begin("ann", began, day)
    await begin("bob", began, day)
    print("day 0: ann and bob begin", flush=True)
    await until(25)
    print(f"day 25: ann has decided, and {await decide('ann')} reminders are cancelled", flush=True)
    await until(END)
    print(f"day {END}: bob has not decided", flush=True)


async def main() -> None:
    began = datetime.now(UTC)
    day = timedelta(seconds=0.1)

    async def until(number: int) -> None:
        await asyncio.sleep((began + number * day - datetime.now(UTC)).total_seconds())

    worker = Worker(tasks, [Group((tasks.tube,), 10)], threads=1)  # usually: beanstalk-worker
    working = asyncio.create_task(worker.run())
    await story(began, day, until)
    worker.stop()
    await working


if __name__ == "__main__":
    asyncio.run(main())
