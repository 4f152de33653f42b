"""What Django is told of this package as an app: its name, and that it brings a command."""

from __future__ import annotations

from django.apps import AppConfig


class BeanstalkTasksConfig(AppConfig):  # type: ignore[misc]
    name = "beanstalk_client.integrations.django"
    label = "beanstalk_tasks"  # the last part of the name would be "django"
    verbose_name = "Tasks through a beanstalk server"
