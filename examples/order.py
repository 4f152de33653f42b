"""An order that is cancelled after 15 minutes unless it is paid, and it is certain which of the two happens.

The key of the job is that of the order, so the payment code need not know the job. Its `cancel` says
whether the order can be had: True, and it is never cancelled; False, and it is cancelled already, or just now. Run it
while a server is running (a minute takes a twentieth of a second here):

    python examples/order.py [HOST:PORT]

It prints:

    order 17 is placed
    order 18 is placed
    order 17 is paid
    order 18 is cancelled: it was not paid in time
    order 18: the payment came too late
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from beanstalk_client.tasks import Tasks
from beanstalk_client.worker.serving import Group, Worker

MINUTES = 15

tasks = Tasks(
    sys.argv[1] if __name__ == "__main__" and len(sys.argv) > 1 else "127.0.0.1:11300",
    tube=f"orders-{time.time_ns()}",  # of this run alone
)


@tasks.task
async def cancel_order(number: int) -> None:
    print(f"order {number} is cancelled: it was not paid in time", flush=True)


async def place(number: int, minute: float) -> None:
    """Place an order, which is cancelled after 15 minutes."""
    await cancel_order.key(f"order-{number}").delay(MINUTES * minute).aput(number)
    print(f"order {number} is placed", flush=True)


async def pay(number: int) -> None:
    """Take the payment for an order, unless it is cancelled."""
    in_time = await cancel_order.acancel(f"order-{number}")
    print(f"order {number}{' is paid' if in_time else ': the payment came too late'}", flush=True)


async def story(minute: float, wait: Callable[[float], Awaitable[object]]) -> None:
    """Two orders, of which one is paid in time.

    Args:
        minute: how many seconds a minute has.
        wait: waits for this many seconds.
    """
    await place(17, minute)
    await place(18, minute)
    await wait(10 * minute)
    await pay(17)
    await wait(10 * minute)
    await pay(18)


async def main() -> None:
    worker = Worker(tasks, [Group((tasks.tube,), 10)], threads=1)  # usually: beanstalk-worker
    working = asyncio.create_task(worker.run())
    await story(0.05, asyncio.sleep)
    worker.stop()
    await working


if __name__ == "__main__":
    asyncio.run(main())
