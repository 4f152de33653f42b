"""Declares this package to Django as an app, which adds a management command."""

from __future__ import annotations

from django.apps import AppConfig


class BeanstalkTasksConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    name = "beanstalk_client.integrations.django"
    label = "beanstalk_tasks"  # the last part of the name would be "django"
    verbose_name = "Tasks through a beanstalk server"
