"""Declares the outbox to Django as an app: a table and a management command."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    name = "beanstalk_client.outbox.django"
    label = "beanstalk_outbox"  # the last part of the name would be "django"
    verbose_name = "Outbox of jobs"
    default_auto_field = "django.db.models.BigAutoField"
