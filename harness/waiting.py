"""Waits for what must come to pass, and says what has not.

Whoever waits for another thread, process or task does so here and nowhere else: nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

WITHIN: Final = 20.0
"""Seconds that a condition may take: many times what it takes on a machine that is busy with something else."""

LONGEST_PAUSE: Final = 0.02
"""Seconds between two looks, once it has taken a while."""

STILL: Final = 30
"""How often in a row a value must be the same to have come to rest: looks, not seconds, as the machine may be busy."""


def eventually(condition: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """Return what the condition returns, as soon as it is true.

    Args:
        what: the condition in words, as an assertion says it: "the worker waits".
        within: seconds.

    Raises:
        AssertionError: it is not true in time.
    """
    began = time.monotonic()
    pause = 0.0
    while not (found := condition()):
        _check(what, began, within)
        time.sleep(pause)
        pause = min(pause + 0.001, LONGEST_PAUSE)
    return found


async def eventually_async(condition: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """The same in an event loop, which goes on: each look is a pass of the loop, and none sleeps for the first ten
    thousand, so that a simulation stays what it is.
    """
    began = time.monotonic()
    looks = 0
    while not (found := condition()):
        _check(what, began, within)
        await asyncio.sleep(0.0 if looks < 10_000 else 0.001)
        looks += 1
    return found


async def at_rest_async(value: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """Return a value that has come to rest: for what must not go on, which nothing announces.

    Raises:
        AssertionError: it goes on changing.
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
        raise AssertionError(f"not within {within:g} s: {what}")
