"""Projects with the tasks of `django_shop`, at a server: each has tubes of its own, and a worker in this process."""

import asyncio
import json
import uuid

from beanstalk_client import Client
from beanstalk_client.consumer import Consumer
from beanstalk_client.errors import NotFoundError
from beanstalk_client.integrations.django.clients import close_idle
from beanstalk_client.integrations.django.library import task_backends
from beanstalk_client.integrations.django.worker import DjangoTaskRunner
from django.test import override_settings

from harness.waiting import WITHIN

BACKEND = "beanstalk_client.integrations.django.BeanstalkBackend"


class Project:
    """The project of `django_shop`, whose tubes nobody else has, and a worker in this process."""

    def __init__(self, address, notes, **options):
        self.address, self._notes = address, notes
        self.prefix = f"{uuid.uuid4().hex}."
        options = {"addresses": "beanstalk://{}:{}".format(*address), "prefix": self.prefix, "backoff": 0.01} | options
        settings = {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}
        self.settings = override_settings(TASKS={"default": settings})

    @property
    def notes(self):
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def jobs(self, queue="default"):
        with Client(self.address) as client:
            try:
                found = client.stats_tube(self.prefix + queue)
            except NotFoundError:
                return {}
        states = {state: found[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")}
        return {state: number for state, number in states.items() if number}

    def report(self, queue="default"):
        """Why a job is buried, as the tube of errors says."""
        with Client(self.address, use=f"{self.prefix}{queue}.errors") as client:
            return json.loads(client.peek_ready().body)

    def work_off(self, at_once=3, grace=None):
        """Run tasks until there are none to run."""

        async def main():
            backend = task_backends["default"]
            runner = DjangoTaskRunner(backend, 2, "worker-1")
            tubes = [backend.tube(queue) for queue in ("default", "mail")]
            consumer = Consumer(runner.connect, tubes, runner, at_once=at_once)
            running = asyncio.get_running_loop().create_task(consumer.run())
            while {*self.jobs(), *self.jobs("mail")} - {"buried"}:
                await asyncio.sleep(0.005)
            consumer.stop()
            await running
            await runner.close()

        asyncio.run(asyncio.wait_for(main(), WITHIN))


def made_project(address, tmp_path, monkeypatch, **options):
    monkeypatch.setenv("SHOP_NOTES", str(tmp_path / "notes"))
    project = Project(address, tmp_path / "notes", **options)
    with project.settings:
        yield project
    close_idle()
