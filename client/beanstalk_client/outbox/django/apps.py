"""Declares the outbox to Django as an app: a table and a management command."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    AppConfig = object  # Django has no types
else:
    from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "beanstalk_client.outbox.django"
    label = "beanstalk_outbox"  # the last part of the name would be "django"
    verbose_name = "Outbox of jobs"
    default_auto_field = "django.db.models.BigAutoField"
