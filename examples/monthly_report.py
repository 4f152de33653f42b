"""A report on the first of each month at six in the morning, in Berlin, however many schedulers see to it.

Two schedulers start at the same moment, as two replicas of a service do. Both put the next firing; it has a key, so
there is one. It waits in the server, and comes due though no scheduler should be alive then. In a program of one's own,
schedulers are `python -m beanstalk_client.scheduler reports:tasks`, or workers with `--schedule`. Here the program
does not wait for the end of the month: the job is kicked. Run it while a server is running:

    python examples/monthly_report.py [HOST:PORT]

It prints:

    two schedulers have planned, and put 1 job
    the job is due on day 1 of a month, at 06:00 in Berlin
    an operator does not wait, and kicks the job
    the report due on day 1 at 06:00 is written
    the schedulers plan again, and put 0 more jobs
"""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from beanstalk_client.schedules import MOMENT, Scheduler
from beanstalk_client.tasks import Tasks
from beanstalk_client.worker.serving import Group, Worker

TUBE = f"reports-{time.time_ns()}"  # of this run alone

tasks = Tasks(sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else "127.0.0.1:11300", tube=TUBE)
written = asyncio.Event()


@tasks.cron("0 6 1 * *", tz="Europe/Berlin", missed="once", args=[MOMENT])
@tasks.task
async def write_report(moment: str) -> None:
    due = datetime.fromisoformat(moment)
    print(f"the report due on day {due.day} at {due:%H:%M} is written")
    written.set()


def plan() -> int:
    """Let two schedulers plan at once; return how many jobs there are then."""
    schedulers = [Scheduler(tasks.connect, tasks.schedules, group=f"{TUBE}-schedules") for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Scheduler.run_once, schedulers))
    with tasks.connect() as queue:
        return int(queue.stats_tube(TUBE)["current-jobs-delayed"])


async def work() -> None:
    """The worker, until the report is written."""
    worker = Worker(tasks, [Group((TUBE,), 1)], threads=1)
    working = asyncio.create_task(worker.run())
    await written.wait()
    worker.stop()
    await working


def main() -> None:
    print(f"two schedulers have planned, and put {plan()} job")
    with tasks.connect(use=TUBE) as queue:
        job = queue.peek_delayed()
        due = datetime.fromisoformat(tasks.serializer.read(job.body)["args"][0])
        print(f"the job is due on day {due.day} of a month, at {due:%H:%M} in Berlin")
        print("an operator does not wait, and kicks the job")
        queue.kick_job(job)
        asyncio.run(work())
        print(f"the schedulers plan again, and put {plan()} more jobs")


if __name__ == "__main__":
    main()
