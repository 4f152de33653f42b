"""Declares this package to Django as an app, which adds a management command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    AppConfig = object  # Django has no types
else:
    from django.apps import AppConfig


class BeanstalkTasksConfig(AppConfig):
    name = "beanstalk_client.integrations.django"
    label = "beanstalk_tasks"  # the last part of the name would be "django"
    verbose_name = "Tasks through a beanstalk server"
