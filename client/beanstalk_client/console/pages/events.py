"""Server-sent events: one for each sample. The script then asks again for what is on the screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response, StreamingResponse

from beanstalk_client.console.visit import BadRequestError, Visit

SILENCE: Final = 5.0
"""Seconds after which a comment is sent, so that proxies keep the connection."""

MAX_STREAMS: Final = 500
"""How many pages are live at a time."""

LIFE: Final = 600.0
"""Seconds after which the browser has to ask again: with a session that has ended, it gets nothing more."""


async def events(visit: Visit) -> Response:
    if visit.state.streams >= MAX_STREAMS:
        raise BadRequestError("Too many pages are open.", 503)
    return StreamingResponse(
        _ticks(visit), media_type="text/event-stream", headers={"x-accel-buffering": "no", "cache-control": "no-store"}
    )


async def _ticks(visit: Visit) -> AsyncIterator[str]:
    sampler = visit.user.sampler
    until = sampler.now + LIFE
    visit.state.streams += 1
    try:
        yield "retry: 3000\n\n"
        while sampler.now < until:
            await sampler.look()
            news = await sampler.wait(SILENCE) or sampler.problem
            yield "event: tick\ndata: 1\n\n" if news else ": \n\n"
    finally:
        visit.state.streams -= 1
