"""A scheduler as a process, for test_schedules_race: it makes passes as fast as it can, by a clock that is moved.

racing_scheduler.py ADDRESS BEGAN SPEED     the clock said BEGAN then, and goes SPEED times as fast since
"""

import contextlib
import datetime
import sys
import time

from beanstalk_client.errors import Error
from beanstalk_client.schedules import MOMENT, Every, Schedule, Scheduler, scheduler
from beanstalk_client.tasks import Tasks

scheduler.LOCK_FOR = 0.3  # some of these are killed while they have it
scheduler.RENEW_AFTER = 0.05


def main(address, began, speed):
    tasks = Tasks(address)

    @tasks.task(tube="work")
    def note(which, moment):
        """It is never called: the test reads the job."""

    def clock():
        return began / speed + (time.time() - began) * speed

    rules = [
        Schedule("sevens", Every(datetime.timedelta(seconds=7)), note, missed="all", args=["sevens", MOMENT]),
        Schedule("elevens", Every(datetime.timedelta(seconds=11)), note, missed="all", args=["elevens", MOMENT]),
    ]
    one = Scheduler(tasks.connect, rules, ahead=120, clock=clock)
    queue = tasks.connect()
    while True:
        with contextlib.suppress(Error):
            one.make_pass(queue)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
