"""The sample application of packaging/compose.yaml. Mount your own application in its place."""

import os

from beanstalk_client import Tasks

tasks = Tasks(os.environ["BEANSTALK_SERVER"])


@tasks.task
def remind(order: int) -> None:
    print(f"order {order} is not paid", flush=True)
