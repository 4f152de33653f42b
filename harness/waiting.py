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


def eventually(condition: Callable[[], T], what: str, within: float = WITHIN) -> T:
    """Return what the condition says as soon as it is true.

    Args:
        what: it stands for, as an assertion says it: "the worker waits".
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
    """The same, while the event loop goes on. The first looks are taken in one pass of the loop each."""
    began = time.monotonic()
    looks = 0
    while not (found := condition()):
        _check(what, began, within)
        await asyncio.sleep(0.0 if looks < 1000 else 0.001)
        looks += 1
    return found


async def settled_async(value: Callable[[], object], what: str, quiet: float = 0.3, within: float = WITHIN) -> None:
    """Wait until a value has not changed for so many seconds: for what must not go on, which nothing announces.

    Raises:
        AssertionError: it goes on changing.
    """
    began = since = time.monotonic()
    last = value()
    while time.monotonic() - since < quiet:
        _check(what, began, within)
        await asyncio.sleep(0.01)
        if (now := value()) != last:
            last, since = now, time.monotonic()


def _check(what: str, began: float, within: float) -> None:
    if time.monotonic() - began > within:
        raise AssertionError(f"not within {within:g} s: {what}")
