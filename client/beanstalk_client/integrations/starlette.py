"""A client for Starlette and FastAPI: one for the application, which its requests share.

    from beanstalk_client.integrations.starlette import client_of, lifespan

    app = FastAPI(lifespan=lifespan("beanstalk://127.0.0.1:11300"))

    Queue = Annotated[AsyncClient[str], Depends(client_of)]

    @app.post("/orders")
    async def order(queue: Queue): ...

The client connects with its first command, so the application starts without the queue, too. It needs Starlette, which
is no extra: who uses it has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Callable

from starlette.requests import HTTPConnection

from beanstalk_client.address import Addresses
from beanstalk_client.asynchronous import AsyncClient

KEY = "beanstalk"
"""Where the state of the lifespan has the client."""

Lifespan = Callable[[Any], contextlib.AbstractAsyncContextManager[Any]]


def lifespan(addresses: Addresses, *, also: Lifespan | None = None, **options: Any) -> Lifespan:
    """The lifespan of an application with a client, which is closed at the end.

    Args:
        addresses: as `AsyncClient` takes them.
        also: the lifespan that the application has besides.
        options: keywords of `AsyncClient`.
    """

    @contextlib.asynccontextmanager
    async def with_client(app: Any) -> AsyncIterator[dict[str, Any]]:
        client: AsyncClient[str] = AsyncClient(addresses, **options)
        try:
            async with also(app) if also is not None else contextlib.nullcontext() as state:
                yield {**(state or {}), KEY: client}
        finally:
            await client.close()

    return with_client


def client_of(connection: HTTPConnection) -> AsyncClient[str]:
    """The client of the application that a request or a WebSocket belongs to: `Depends(client_of)` in FastAPI.

    Raises:
        RuntimeError: the application has none.
    """
    client: AsyncClient[str] | None = getattr(connection.state, KEY, None)
    if client is None:
        raise RuntimeError(
            "the application has no client: create the application with FastAPI(lifespan=lifespan('beanstalk://…'))"
        )
    return client
