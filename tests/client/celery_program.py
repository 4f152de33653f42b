"""An application of Celery that its tests start workers of: its tasks write down when they run, a line each.

The environment says where the broker is (BROKER), its transport options as JSON (OPTIONS), and the directory for lines
and results (DIRECTORY).
"""

import json
import os
import time
from pathlib import Path

import beanstalk_client.integrations.kombu  # noqa: F401 makes Celery know beanstalk://
from celery import Celery

DIRECTORY = Path(os.environ["DIRECTORY"])

app = Celery("celery_program", broker=os.environ["BROKER"], backend=f"file://{DIRECTORY}")
app.conf.broker_transport_options = json.loads(os.environ.get("OPTIONS", "{}"))


def write(*words):
    with (DIRECTORY / "lines").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


@app.task
def note(name, due=0.0):
    write(name, due, time.time())


@app.task(acks_late=True, reject_on_worker_lost=True)
def note_late(name, due=0.0):
    write(name, due, time.time())


@app.task(bind=True, acks_late=True)
def take(self, name, seconds):
    write("begin", name, self.request.delivery_info["redelivered"])
    time.sleep(seconds)
    write("end", name)


@app.task
def add(a, b):
    return a + b


@app.task(bind=True)
def try_again(self):
    write("try", self.request.retries, time.time())
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)
    return "done"
