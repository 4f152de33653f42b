"""Sends one server-sent event for each sample; the script of the page then fetches the page again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import Response, StreamingResponse

from beanstalk_client.console.security import who_has_most
from beanstalk_client.console.visit import BadRequestError, Visit

SILENCE: Final = 5.0
"""Seconds after which a comment is sent, so that proxies keep the connection."""

MAX_STREAMS: Final = 500
"""Maximum number of live pages; beyond it, the oldest one of who has the most ends."""

LIFE: Final = 600.0
"""Seconds after which the browser has to ask again: with a session that has ended, it gets nothing more."""


async def events(visit: Visit) -> Response:
    streams = visit.state.streams.values()
    if len(streams) >= MAX_STREAMS and who_has_most(streams) == _viewer(visit):
        raise BadRequestError("You have too many pages open.", 503)
    return StreamingResponse(
        _ticks(visit), media_type="text/event-stream", headers={"x-accel-buffering": "no", "cache-control": "no-store"}
    )


async def _ticks(visit: Visit) -> AsyncIterator[str]:
    sampler, streams = visit.user.sampler, visit.state.streams
    until = sampler.now + LIFE
    own = object()
    streams[own] = _viewer(visit)
    if len(streams) > MAX_STREAMS:
        most = who_has_most(streams.values())
        del streams[next(stream for stream, viewer in streams.items() if viewer == most)]
    try:
        yield "retry: 3000\n\n"
        while own in streams and sampler.now < until and not sampler.is_closed:
            await sampler.look()
            news = await sampler.wait(SILENCE) or sampler.problem
            yield "event: tick\ndata: 1\n\n" if news else ": \n\n"
    finally:
        streams.pop(own, None)


def _viewer(visit: Visit) -> str:
    """Who counts as one: a token, the name that a proxy gives, or an address."""
    return visit.owner or visit.who
