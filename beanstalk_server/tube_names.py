"""The names of tubes: their grammar, and patterns of them.

A pattern is as `fnmatch` reads it: `*` is any characters, `?` is one, `[a-z]` one of these. The rights of a user are
patterns, and so is what a policy is for. They are made while others wait, so that must be quick however many there are:
to compile one to a regular expression takes a tenth of a millisecond.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final
from zlib import crc32

NAME: Final = r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}"
"""The name of a tube, or a key, as a regular expression."""

NAME_WANTED: Final = "1 to 200 letters, digits, or - + / ; . $ _ ( ), the first not a hyphen"
"""The same for people."""

ALL_TUBES: Final = "*"
"""The pattern that every name fits."""

PRIVATE_SUFFIXES: Final = (".results", ".errors")
"""How the names of tubes end in which beanstalk-client keeps results of tasks and reports of failures. A wildcard of a
user's rights does not match these ends: a pattern must have them."""

_NAME: Final = re.compile(NAME)
_WILDCARD: Final = re.compile(r"[*?\[]")
_PATTERN: Final = re.compile(r"(?!-)(?:[A-Za-z0-9+/;.$_()*?-]|\[!?[A-Za-z0-9+/;.$_()-]+\])+")


def is_name(text: str) -> bool:
    """Whether this may be the name of a tube."""
    return _NAME.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """Whether this may be a pattern of names."""
    return _PATTERN.fullmatch(text) is not None


def is_literal(pattern: str) -> bool:
    """Whether only the name that it is fits a pattern."""
    return _WILDCARD.search(pattern) is None


def is_beginning(pattern: str) -> bool:
    """Whether a pattern has no wildcard but the * at its end."""
    return pattern.endswith("*") and is_literal(pattern[:-1])


def shard_of(name: bytes, shards: int) -> int:
    """The shard of a cluster that the tube with this name is in.

    Every node must find the same one, in every version: this can never change without moving jobs.
    """
    return crc32(name) % shards


def home_of(name: str) -> str:
    """The tube that a group, or a limit with a slash, belongs to, which decides about rights to it and about its shard,
    and need not exist: what comes before the last slash of its name, or the whole name."""
    return name.rpartition("/")[0] or name


class Patterns:
    """What fits one of some patterns. Names, and beginnings of names, are looked up, however many there are."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._names: set[str] = set()  # the patterns that are names
        self._beginnings: set[str] = set()  # of the patterns that end with their only *
        self._parts: list[list[str]] = []  # of each other pattern with no wildcard but *: what is between the wildcards
        others: list[str] = []
        self.weight = 1  # what it costs to look at a name
        for each in patterns:
            if is_literal(each):
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
        self._lengths = sorted({len(each) for each in self._beginnings})  # of these
        self.weight += len(self._lengths)
        # those with other wildcards than *; None if there are none
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


NONE: Final = -1


class FirstMatch:
    """Which of several lists of patterns is the first that a name fits. Names, and beginnings of names, are looked up,
    however many there are."""

    def __init__(self, lists: Sequence[Sequence[str]]) -> None:
        self._count = len(lists)
        self._names: dict[str, int] = {}
        self._beginnings: dict[str, int] = {}  # of the patterns that end with their only *
        self._others: list[tuple[int, Patterns]] = []  # in the order of the lists
        for index, patterns in enumerate(lists):
            others = []
            for pattern in patterns:
                if is_literal(pattern):
                    self._names.setdefault(pattern, index)
                elif is_beginning(pattern):
                    self._beginnings.setdefault(pattern[:-1], index)
                else:
                    others.append(pattern)
            if others:
                self._others.append((index, Patterns(others)))
        self._lengths = sorted({len(each) for each in self._beginnings})

    def of(self, name: str) -> int:
        """The index of the list; NONE if the name fits none."""
        first = self._names.get(name, self._count)
        for length in self._lengths:
            first = min(first, self._beginnings.get(name[:length], self._count))
        for index, patterns in self._others:
            if index >= first:
                break
            if patterns.fit(name):
                first = index
                break
        return NONE if first == self._count else first
