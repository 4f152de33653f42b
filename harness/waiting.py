"""Waits until a condition is true, and says which condition was not true in time.

All waiting for other threads, processes and tasks is done here, so that nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

WITHIN: Final = 60.0
"""Seconds that a condition may take: many times what it takes on a machine that is busy with something else, and less
than pytest gives to a test, so that the condition is named."""

LONGEST_PAUSE: Final = 0.02
"""The longest pause between two looks at a condition, in seconds."""

STILL: Final = 30
"""How many looks in a row must find the same value at rest: looks, not seconds, because the machine may be busy."""


def eventually(condition: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """Return what the condition returns, as soon as it is true.

    Args:
        what: the condition in words, for the error message: "the worker waits".
        within: seconds.

    Raises:
        AssertionError: the condition is not true in time.
    """
    began = time.monotonic()
    pause = 0.0
    while not (found := condition()):
        _check(what, began, within)
        time.sleep(pause)
        pause = min(pause + 0.001, LONGEST_PAUSE)
    return found


async def eventually_async(condition: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """Do as `eventually` does, while the event loop runs: each look is a pass of the loop. The first ten thousand looks
    do not sleep, so that a simulation takes no real time.
    """
    began = time.monotonic()
    looks = 0
    while not (found := condition()):
        _check(what, began, within)
        await asyncio.sleep(0.0 if looks < 10_000 else 0.001)
        looks += 1
    return found


async def eventually_asked(question: Callable[[], Awaitable[T]], what: str, within: float = WITHIN) -> T:
    """Do as `eventually` does with a condition that is a coroutine, such as one that asks a server."""
    began = time.monotonic()
    while not (found := await question()):
        _check(what, began, within)
        await asyncio.sleep(LONGEST_PAUSE)
    return found


async def at_rest_async(value: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """Return a value once it no longer changes: to show that something has stopped, which nothing announces.

    Raises:
        AssertionError: the value keeps changing.
    """
    began = time.monotonic()
    last, same = value(), 0
    while same < STILL:
        _check(what, began, within)
        await asyncio.sleep(0.01)
        now = value()
        last, same = now, same + 1 if now == last else 0
    return last


def _check(what: str, began: float, within: float) -> None:
    if time.monotonic() - began > within:
        raise AssertionError(f"timed out after {within:g} s, waiting until: {what}")
