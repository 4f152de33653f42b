"""Task types, each with its executor: what was asked for is done, across restarts.

A type is a name, a tube and what it does when it fails: the picture is tried again soon, the invoice for a day. What is
put is kept by the server (`beanstalk-server -b /var/lib/queue`); a job is deleted when its executor is done, and not
before. So a server may be killed and started again, and a worker, too: its jobs go to another one, or wait. Who is told
to stop by SIGTERM lets its executors end first. In three terminals:

    beanstalk-server -b /tmp/queue
    cd examples; beanstalk-worker task_types:tasks --grace 60
    python examples/task_types.py 3

The worker prints:

    picture 0 has been resized
    picture 1 has been resized
    picture 2 has been resized
    invoice 0: the tax office does not answer, try again
    invoice 0 is filed
"""

from __future__ import annotations

import os
import sys

from beanstalk_client.tasks import Retry, Tasks, current_run

tasks = Tasks(os.environ.get("QUEUE", "127.0.0.1:11300"), reconnect_timeout=30.0)

asked: set[int] = set()
"""The jobs for which the tax office was asked already."""


@tasks.task(tube="pictures", retries=3, backoff=1, timeout=60)
def shrink(number: int) -> None:
    """The executor of pictures, a plain function: it runs in a thread, several at a time."""
    print(f"picture {number} has been resized", flush=True)


@tasks.task(tube="invoices", retries=12, backoff=20)
async def file_invoice(number: int) -> None:
    """The executor of invoices, a coroutine, which waits for others most of the time."""
    if current_run().job_id not in asked:
        asked.add(current_run().job_id)
        print(f"invoice {number}: the tax office does not answer, try again", flush=True)
        raise Retry(delay=0.2)
    print(f"invoice {number} is filed", flush=True)


def main(pictures: int) -> None:
    for number in range(pictures):
        shrink.put(number)
    file_invoice.put(0)
    tasks.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
