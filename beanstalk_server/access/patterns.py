"""Patterns of tube names, as `fnmatch` reads them: `*` is any characters, `?` is one, `[a-z]` one of these.

The rights of a user are patterns, and so is what a policy is for. They are made while others wait, so that must be
quick however many there are: to compile one to a regular expression takes a tenth of a millisecond. Must never know
what a name that fits is good for.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

ALL_TUBES: Final = "*"
"""The pattern that every name fits."""

_WILDCARD: Final = re.compile(r"[*?\[]")


def is_name(pattern: str) -> bool:
    """Whether only the name that it is fits a pattern."""
    return _WILDCARD.search(pattern) is None


def is_beginning(pattern: str) -> bool:
    """Whether a pattern has no wildcard but the * at its end."""
    return pattern.endswith("*") and is_name(pattern[:-1])


class Patterns:
    """What fits one of some patterns. Names, and beginnings of names, are looked up, however many there are."""

    __slots__ = (
        "_beginnings",  # of the patterns that end with their only *
        "_lengths",  # of these
        "_names",  # the patterns that are names
        "_others",  # those with other wildcards than *; None if there are none
        "_parts",  # of each other pattern with no wildcard but *: what is between the wildcards
        "weight",  # what it costs to look at a name
    )

    def __init__(self, patterns: Sequence[str]) -> None:
        self._names: set[str] = set()
        self._beginnings: set[str] = set()
        self._parts: list[list[str]] = []
        others: list[str] = []
        self.weight = 1
        for each in patterns:
            if is_name(each):
                self._names.add(each)
            elif is_beginning(each):
                self._beginnings.add(each[:-1])
            elif _WILDCARD.search(each.replace("*", "")) is None:
                parts = each.split("*")
                self._parts.append(parts)
                self.weight += 4 + len(parts)
            else:
                others.append(each)
                self.weight += 32
        self._lengths = sorted({len(each) for each in self._beginnings})
        self.weight += len(self._lengths)
        self._others = re.compile("|".join([fnmatch.translate(each) for each in others])) if others else None

    def fit(self, name: str) -> bool:
        """Whether a name fits any of them."""
        if name in self._names:
            return True
        for length in self._lengths:
            if name[:length] in self._beginnings:
                return True
        for parts in self._parts:
            if _fits(parts, name):
                return True
        return self._others is not None and self._others.match(name) is not None


def _fits(parts: list[str], name: str) -> bool:
    """Whether a name has these parts one after the other, the first at its beginning and the last at its end."""
    first, last = parts[0], parts[-1]
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in parts[1:-1]:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
