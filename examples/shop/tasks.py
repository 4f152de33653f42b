"""What a shop does later: cancel orders that are not paid, send mails, report every night.

beanstalk-worker tasks:tasks --schedule
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator

from beanstalk_client import Tasks

tasks = Tasks(os.environ.get("BEANSTALK_URL", "beanstalk://127.0.0.1:11300"), tube="shop")

DATABASE = os.environ.get("SHOP_DATABASE", "shop.db")
"""The file with the orders and the mails. The application and its workers share it."""

TABLES = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS mails (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
"""


@contextlib.contextmanager
def database() -> Iterator[sqlite3.Connection]:
    """Connect to the database; what the block changes is one transaction."""
    connection = sqlite3.connect(DATABASE, timeout=30)
    try:
        connection.executescript(TABLES)
        with connection:
            yield connection
    finally:
        connection.close()


@tasks.task
def cancel_order(number: int) -> None:
    """Cancel an order that is not paid in time."""
    with database() as shop:
        changed = shop.execute("UPDATE orders SET state = 'cancelled' WHERE number = ? AND state = 'ordered'", [number])
        if changed.rowcount:
            send_mail.put(f"order {number} is cancelled")


@tasks.task(tube="mail", retries=5, backoff="10s")
def send_mail(text: str) -> None:
    """Send a mail; if the mail server is down, again after 10, 20, 40 … seconds. A real shop has a mail server."""
    with database() as shop:
        shop.execute("INSERT INTO mails (text) VALUES (?)", [text])
    print(f"mail: {text}", flush=True)


@tasks.cron("0 3 * * *", tz="Europe/Berlin")
@tasks.task
def report() -> None:
    """Report the number of orders in each state, every night at three."""
    with database() as shop:
        counts = dict(shop.execute("SELECT state, count(*) FROM orders GROUP BY state").fetchall())
    send_mail.put(", ".join(f"{counts.get(state, 0)} {state}" for state in ("ordered", "paid", "cancelled")))
