"""A shop with much to do and much that fails: the work that `make console` shows (harness/console.py).

python -m harness.shop put HOST:PORT        puts jobs, until it is ended
python -m beanstalk_client.worker harness.shop:tasks, with the server in SHOP_SERVER
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import sys
import time

from beanstalk_client import Client
from beanstalk_client.schedules import MOMENT
from beanstalk_client.tasks import Tasks

tasks = Tasks(os.environ.get("SHOP_SERVER", "127.0.0.1:11300"), tube="mails")


class CardDeclinedError(Exception):
    pass


@tasks.task(retries=2, backoff="1s")
def send_mail(address: str, *, subject: str) -> None:
    assert subject
    time.sleep(random.uniform(0.005, 0.03))
    if address.endswith(".invalid"):
        raise ValueError(f"no mail server for {address!r}")
    if random.random() < 0.002:
        raise TimeoutError("smtp.example.com did not answer within 10 s")


@tasks.task(tube="payments", retries=1, backoff="2s")
def charge(order: int, cents: int) -> None:
    assert cents > 0
    time.sleep(random.uniform(0.02, 0.08))
    if order % 23 == 0:
        raise CardDeclinedError(f"the bank has declined order {order}: code {order % 7 + 51}")


@tasks.task(tube="images")
def make_thumbnail(picture: str, width: int = 320) -> None:
    time.sleep(random.uniform(0.05, 0.4))
    if width > 4000:
        raise MemoryError(f"{picture} has 41000 x 30000 pixels")


@tasks.every("30s", args=[MOMENT])
@tasks.task(tube="reports")
def count_orders(moment: str) -> None:
    if not moment:
        raise ValueError("no moment")
    time.sleep(0.5)


@tasks.every("1h", args=[MOMENT])
@tasks.task(tube="reports")
def clean_carts(moment: str) -> None:
    if not moment:
        raise ValueError("no moment")
    time.sleep(1)


def put(server: str) -> None:
    """Put jobs, at a rate that goes up and down."""
    with Client(server, encoding=None) as queue:
        _put_once(queue)
        for order in itertools.count(1000):
            queue.use("mails")
            ending = "invalid" if order % 40 == 0 else "example.com"
            queue.put(send_mail.body(f"customer-{order}@{ending}", subject=f"Your order {order}"))
            if order % 3 == 0:
                queue.use("payments")
                queue.put(charge.body(order, random.randrange(500, 90_000)))
            if order % 5 == 0:
                queue.use("images")
                queue.put(make_thumbnail.body(f"upload-{order}.jpg", 5000 if order % 60 == 0 else 320))
            if order % 9 == 0:
                queue.use("reminders")
                queue.put(json.dumps({"task": "remind", "args": [order]}).encode(), delay=random.randrange(60, 86400))
            if order % 25 == 0:
                queue.use("newsletter")
                queue.put(json.dumps({"campaign": "autumn", "customer": order}).encode())
            time.sleep(random.uniform(0.01, 0.05) * (1.2 + (time.time() // 60 % 3)))


def _put_once(queue: Client[bytes]) -> None:
    """Jobs of others: bodies of each kind."""
    queue.use("others")
    command = 'O:18:"App\\Jobs\\ShipOrder":2:{s:8:"\0*\0order";i:4711;s:7:"carrier";s:3:"DHL";}'
    call = base64.b64encode(json.dumps([[4711], {"express": True}, {}]).encode()).decode()
    bodies: list[object] = [
        {"displayName": "App\\Jobs\\ShipOrder", "job": "x@call", "maxTries": 3, "data": {"command": command}},
        {
            "body": call,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"task": "shop.ship", "id": "5b0a"},
            "properties": {"body_encoding": "base64"},
        },
        {"task_id": "9c1f", "task_name": "shop:ship", "labels": {}, "args": [4711], "kwargs": {"express": True}},
    ]
    for body in bodies:
        queue.put(json.dumps(body).encode())
    queue.put("Grüße, <b>nobody</b> \u202e reads this\n\x1b[31mred".encode())
    queue.put(bytes(range(256)) * 3)
    queue.put(b"", ttr=5)
    for number in range(300):
        queue.use(f"tenant-{number:03}.import")
        queue.put(b'{"file": "import.csv"}', delay=random.choice([0, 0, 3600]))
    queue.pause_tube("tenant-007.import", 3600)


if __name__ == "__main__":
    put(sys.argv[1])
