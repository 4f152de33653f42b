"""Creates the table of the outbox."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    initial = True
    dependencies: list[Any] = []
    operations: list[Any] = [
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("tube", models.CharField(max_length=200)),
                ("job_key", models.CharField(max_length=200, null=True)),
                ("command", models.CharField(max_length=40)),
                ("arguments", models.TextField()),
                ("body", models.BinaryField()),
                ("token", models.CharField(max_length=40)),
                ("written", models.FloatField()),
                ("failed", models.TextField(null=True)),
                ("retry_at", models.FloatField(null=True)),
            ],
            options={
                "db_table": "beanstalk_outbox",
                "indexes": [models.Index(fields=["tube", "job_key", "id"], name="beanstalk_outbox_order")],
            },
        ),
    ]
