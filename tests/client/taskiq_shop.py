"""A program with taskiq's tasks, as a worker imports it: `taskiq worker taskiq_shop:broker`.

The environment says where the server is, and to which file each task writes a line once it has run.
"""

import asyncio
import os
import time
from typing import Annotated

from beanstalk_client.integrations.taskiq import BeanstalkBroker
from taskiq import Context, SmartRetryMiddleware, TaskiqDepends

broker = BeanstalkBroker(os.environ.get("SHOP_QUEUE", "127.0.0.1:11300"), tube="shop", at_once=10, ttr=5)
broker.add_middlewares(SmartRetryMiddleware(default_delay=0))


def note(line):
    with open(os.environ["SHOP_NOTES"], "a") as notes:
        notes.write(f"{line}\n")


@broker.task
async def remind(order, due=0.0):
    note(f"{order} {time.time() - due:.6f}")


@broker.task
async def bake(order, seconds):
    note(f"begun {order}")
    await asyncio.sleep(seconds)
    note(f"done {order}")


@broker.task
def grind(order):
    note(f"{order}")


@broker.task(retry_on_error=True, max_retries=3)
async def deliver(order, context: Annotated[Context, TaskiqDepends()]):
    note(f"{order} {context.message.labels.get('_retries', 0)}")
    raise OSError("nobody is at home")
