"""The empty task for Celery. No results, no events, no rate limits, 64 tasks fetched ahead for each that may run."""

from __future__ import annotations

from celery import Celery

from bench.tasks import marks

app = Celery("bench", broker=marks.redis_url())
app.conf.update(
    task_ignore_result=True,
    worker_disable_rate_limits=True,
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def empty() -> None:
    """Do nothing."""


@app.task
def mark() -> None:
    marks.mark()


class Producer:
    """Enqueues in the ordinary way."""

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        app.close()

    def put(self, count: int) -> None:
        for _ in range(count):
            empty.delay()

    def put_mark(self) -> None:
        mark.delay()
