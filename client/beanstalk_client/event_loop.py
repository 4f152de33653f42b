"""The event loop of a program that works for a tube: uvloop's where it is installed.

Must never be used by a library: whose loop runs is its program's to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in an event loop, uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(main)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
