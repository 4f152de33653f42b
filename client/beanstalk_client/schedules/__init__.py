"""Schedules: tasks that are due at the moments of a cron expression, or again and again after an interval."""

from __future__ import annotations

from beanstalk_client.schedules.moments import Cron, Every, Moments

__all__ = ["Cron", "Every", "Moments"]
