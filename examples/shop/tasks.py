"""What a shop does later: cancel orders that nobody pays, send mails, report every night.

python -m beanstalk_client.worker tasks:tasks
"""

import os

from beanstalk_client import Tasks

tasks = Tasks(os.environ.get("BEANSTALK_URL", "beanstalk://127.0.0.1:11300"), tube="shop")

orders: dict[int, str] = {}
"""The state of each order. A real shop has a database."""

mails: list[str] = []
"""What was sent. A real shop has a mail server."""


@tasks.task
def cancel_order(number: int) -> None:
    """Cancel an order that is not paid in time."""
    if orders.get(number) == "ordered":
        orders[number] = "cancelled"
        send_mail.put(f"order {number} is cancelled")


@tasks.task(tube="mail", retries=5, backoff="10s")
def send_mail(text: str) -> None:
    """Send a mail; if the mail server is down, again after 10, 20, 40 … seconds."""
    mails.append(text)


@tasks.cron("0 3 * * *", tz="Europe/Berlin")
@tasks.task
def report() -> None:
    """Report what became of the orders, every night at three."""
    states = list(orders.values())
    send_mail.put(", ".join(f"{states.count(state)} {state}" for state in ("ordered", "paid", "cancelled")))
