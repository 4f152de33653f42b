"""Delete with a grace period, reminders before its end, and an undo that is certain.

Two people delete a space each. Neither is deleted at once: that is a job with the space's name as its key, due when the
grace period is over, and three more jobs remind them before. A user who changes their mind cancels the jobs by name;
the answer says for good whether the deletion is off. Run it while a server is running (a grace period of days takes
three seconds here):

    python examples/undo_delete.py [HOST:PORT]

It prints:

    ann deletes red; bob deletes blue
    reminder 1: red will be deleted
    reminder 1: blue will be deleted
    ann changes her mind: red stays, and 2 reminders are cancelled
    reminder 2: blue will be deleted
    reminder 3: blue will be deleted
    deleting blue ...
    bob changes his mind: too late for blue
    blue is deleted
"""

from __future__ import annotations

import sys
import threading
import time

from beanstalk_client import Client, NotFoundError, TooLateError

GRACE = 3.0
REMINDERS = (0.5, 1.5, 2.5)
"""When each goes out, in seconds after the deletion was asked for."""


def ask_for_deletion(queue: Client[str], space: str) -> None:
    """Put the deletion and its reminders, each with a name that the application can make up again."""
    for number, delay in enumerate(REMINDERS, 1):
        queue.put_keyed(f"{space}/reminder-{number}", f"remind {number} {space}", delay=delay)
    queue.put_keyed(space, f"delete - {space}", delay=GRACE)


def undo(queue: Client[str], space: str) -> int:
    """Cancel the deletion, and the reminders that have not been sent; return their number.

    Raises:
        TooLateError: the deletion has begun, and cannot be cancelled.
        NotFoundError: it is over.
    """
    queue.cancel_keyed(space)
    cancelled = 0
    for number in range(1, len(REMINDERS) + 1):
        try:
            queue.cancel_keyed(f"{space}/reminder-{number}")
            cancelled += 1
        except (NotFoundError, TooLateError):
            pass  # it has gone out, or a worker has it
    return cancelled


def work(address: tuple[str, int], tube: str) -> None:
    """The worker: sends reminders, and runs deletions that have not been cancelled."""
    with Client(address, watch=tube) as queue:
        while True:
            job = queue.reserve()
            action, number, space = job.body.split()
            if action == "remind":
                print(f"reminder {number}: {space} will be deleted", flush=True)
            elif action == "delete":
                print(f"deleting {space} ...", flush=True)
                time.sleep(1)  # it takes its time
                print(f"{space} is deleted", flush=True)
            queue.delete(job)
            if action == "stop":
                return


def main(address: tuple[str, int]) -> None:
    tube = f"undo-delete-{time.time_ns()}"  # of this run alone
    with Client(address, use=tube) as queue:
        worker = threading.Thread(target=work, args=(address, tube), daemon=True)
        worker.start()
        print("ann deletes red; bob deletes blue", flush=True)
        ask_for_deletion(queue, "red")
        ask_for_deletion(queue, "blue")
        time.sleep(1)
        print(f"ann changes her mind: red stays, and {undo(queue, 'red')} reminders are cancelled", flush=True)
        time.sleep(GRACE - 1 + 0.5)
        try:
            undo(queue, "blue")
        except TooLateError:
            print("bob changes his mind: too late for blue", flush=True)
        queue.put("stop - -")
        worker.join()


if __name__ == "__main__":
    host, _, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:11300").rpartition(":")
    main((host, int(port)))
