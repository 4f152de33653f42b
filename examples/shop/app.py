"""A shop with FastAPI: an order that is not paid within 15 minutes is cancelled.

    uvicorn app:app

`PUT /orders/17` orders, `POST /orders/17/payment` pays, `GET /orders/17` tells, and `GET /queue` shows the queue.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from beanstalk_client import AsyncClient
from beanstalk_client.integrations.starlette import client_of, lifespan
from fastapi import Depends, FastAPI, HTTPException
from tasks import cancel_order, orders, send_mail, tasks


@asynccontextmanager
async def close_tasks(_: FastAPI) -> AsyncIterator[None]:
    """Close the connections of `aput` when the application ends."""
    yield
    await tasks.aclose()


app = FastAPI(lifespan=lifespan(tasks.addresses, also=close_tasks))
Queue = Annotated[AsyncClient[str], Depends(client_of)]


@app.put("/orders/{number}", status_code=201)
async def order(number: int) -> dict[str, str]:
    if number in orders:
        raise HTTPException(409, f"order {number} exists")
    orders[number] = "ordered"
    await cancel_order.key(f"order-{number}").delay("15m").aput(number)
    await send_mail.aput(f"thank you for order {number}")
    return {"state": orders[number]}


@app.post("/orders/{number}/payment")
async def pay(number: int) -> dict[str, str]:
    if orders.get(number) != "ordered" or not await cancel_order.acancel(f"order-{number}"):
        raise HTTPException(409, f"order {number} is {orders.get(number, 'unknown')}")
    orders[number] = "paid"
    await send_mail.aput(f"order {number} is paid")
    return {"state": orders[number]}


@app.get("/orders/{number}")
async def look(number: int) -> dict[str, str]:
    if number not in orders:
        raise HTTPException(404)
    return {"state": orders[number]}


@app.get("/queue")
async def queue(client: Queue) -> dict[str, int]:
    found = await client.stats()
    return {name: int(found[f"current-jobs-{name}"]) for name in ("ready", "delayed", "buried")}
