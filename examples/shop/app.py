"""A shop with FastAPI: an order that is not paid within 15 minutes is cancelled.

    uvicorn app:app

`PUT /orders/17` orders, `POST /orders/17/payment` pays, and `GET /orders/17` shows the order. `GET /mails` shows what
was sent, and `GET /queue` the queue. A worker (tasks.py) runs beside it, with the same database.
"""

import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from beanstalk_client import AsyncClient
from beanstalk_client.integrations.starlette import client_of, lifespan
from fastapi import Depends, FastAPI, HTTPException
from tasks import cancel_order, database, send_mail, tasks

PAY_WITHIN = os.environ.get("SHOP_PAY_WITHIN", "15m")


@asynccontextmanager
async def close_tasks(_: FastAPI) -> AsyncIterator[None]:
    """Close the connections of `put` when the application ends."""
    yield
    tasks.close()


app = FastAPI(lifespan=lifespan(tasks.addresses, also=close_tasks))
Queue = Annotated[AsyncClient[str], Depends(client_of)]


def state_of(shop: sqlite3.Connection, number: int) -> str:
    """The state of an order, or "unknown"."""
    found = shop.execute("SELECT state FROM orders WHERE number = ?", [number]).fetchone()
    return str(found[0]) if found else "unknown"


# These are plain functions, which run in threads, because sqlite3 blocks.


@app.put("/orders/{number}", status_code=201)
def order(number: int) -> dict[str, str]:
    with database() as shop:
        if not shop.execute("INSERT OR IGNORE INTO orders VALUES (?, 'ordered')", [number]).rowcount:
            raise HTTPException(409, f"order {number} exists")
        cancel_order.key(f"order-{number}", replace=True).delay(PAY_WITHIN).put(number)
        send_mail.put(f"thank you for order {number}")
    return {"state": "ordered"}


@app.post("/orders/{number}/payment")
def pay(number: int) -> dict[str, str]:
    with database() as shop:
        paid = shop.execute("UPDATE orders SET state = 'paid' WHERE number = ? AND state = 'ordered'", [number])
        if not paid.rowcount:
            raise HTTPException(409, f"order {number} is {state_of(shop, number)}")
        send_mail.put(f"order {number} is paid")
    cancel_order.cancel(f"order-{number}")  # if it is too late, the task finds that the order is paid
    return {"state": "paid"}


@app.get("/orders/{number}")
def look(number: int) -> dict[str, str]:
    with database() as shop:
        state = state_of(shop, number)
    if state == "unknown":
        raise HTTPException(404)
    return {"state": state}


@app.get("/mails")
def mails() -> list[str]:
    with database() as shop:
        return [text for (text,) in shop.execute("SELECT text FROM mails ORDER BY id")]


@app.get("/queue")
async def queue(client: Queue) -> dict[str, int]:
    found = await client.stats()
    return {name: int(found[f"current-jobs-{name}"]) for name in ("ready", "delayed", "buried")}
