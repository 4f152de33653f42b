"""The table of the outbox, for migrations and queries. Rows are written with the statements of `outbox/database.py`."""

from __future__ import annotations

from typing import Any

from django.db import models

from beanstalk_client.outbox.database import TABLE


class OutboxRow(models.Model):  # type: ignore[misc]  # Django has no types
    """A command that waits for its relay."""

    id: Any = models.BigAutoField(primary_key=True)
    tube: Any = models.CharField(max_length=200)
    job_key: Any = models.CharField(max_length=200, null=True)
    command: Any = models.CharField(max_length=40)
    arguments: Any = models.TextField()
    body: Any = models.BinaryField()
    token: Any = models.CharField(max_length=40)
    written: Any = models.FloatField()
    failed: Any = models.TextField(null=True)
    retry_at: Any = models.FloatField(null=True)

    class Meta:
        app_label = "beanstalk_outbox"
        db_table = TABLE
        indexes: list[Any] = [models.Index(fields=["tube", "job_key", "id"], name=f"{TABLE}_order")]
