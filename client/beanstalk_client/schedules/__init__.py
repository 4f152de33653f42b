"""Schedules: tasks that are due at the moments of a cron expression, or again and again after an interval.

`Tasks.cron` and `Tasks.every` say what is due when; a `Scheduler`, or any number of them, sees to it
(docs/schedules.md).
"""

from __future__ import annotations

from beanstalk_client.schedules.moments import Cron, Every, Moments
from beanstalk_client.schedules.schedule import MOMENT, Firing, Schedule
from beanstalk_client.schedules.scheduler import Scheduler

__all__ = ["MOMENT", "Cron", "Every", "Firing", "Moments", "Schedule", "Scheduler"]
