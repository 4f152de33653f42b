"""A user: which rights it has to which tubes.

Rights are given by patterns of tube names. The rights to one tube are found once, and then remembered. A user is made
when somebody has proved to be it, while others wait, so that must be quick however many patterns it has: to compile one
to a regular expression takes a tenth of a millisecond. Must never know commands, tokens or certificates: only names of
tubes.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import Final

NO_RIGHT: Final = 0
PRODUCE: Final = 1
CONSUME: Final = 2
INSPECT: Final = 4
ADMIN: Final = 8
ANY_RIGHT: Final = PRODUCE | CONSUME | INSPECT | ADMIN
"""A right is a bit, so that several are one number."""

ALL_TUBES: Final = "*"
"""The pattern that every name fits."""

_WILDCARD: Final = re.compile(r"[*?\[]")

REMEMBERED: Final = 4096
"""How many tubes a user remembers its rights to. A client may name as many as it likes."""


class User:
    """Whoever a client has proved to be.

    Args:
        name: as in the config, for the log.
        produce, consume, inspect, admin: patterns of the tubes that the user has this right to, as `fnmatch` reads
            them: `*` is any characters, `?` is one.
    """

    __slots__ = (
        "_given",  # the patterns of each right
        "_patterns",  # what the names of the tubes with each right look like, but for those that all tubes have
        "_remembered",  # rights, by the name of a tube
        "everywhere",  # the rights to all tubes, also to those that do not exist
        "name",
        "weight",  # what it costs to find the rights to a tube, in 64ths of a simple command
    )

    def __init__(
        self,
        name: str,
        *,
        produce: Sequence[str] = (),
        consume: Sequence[str] = (),
        inspect: Sequence[str] = (),
        admin: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.everywhere = 0
        self.weight = 3
        self._given = (tuple(produce), tuple(consume), tuple(inspect), tuple(admin))
        self._patterns: list[tuple[int, _Patterns]] = []
        self._remembered: dict[str, int] = {}
        for right, given in zip((PRODUCE, CONSUME, INSPECT, ADMIN), self._given, strict=True):
            if ALL_TUBES in given:
                self.everywhere |= right
            elif given:
                patterns = _Patterns(given)
                self._patterns.append((right, patterns))
                self.weight += patterns.weight

    def remembers(self, tube: str) -> bool:
        """Whether the rights to the tube of this name are at hand."""
        return tube in self._remembered

    def rights(self, tube: str) -> int:
        """The rights to the tube of this name, which need not exist."""
        rights = self._remembered.get(tube, -1)
        return self._find_rights(tube) if rights < 0 else rights

    def has_rights_of(self, other: User) -> bool:
        """Whether both have been given their rights by the same patterns."""
        return self._given == other._given

    def select(self, tubes: list[str]) -> list[str]:
        """Those of these tubes to which there is any right, in their order. They are not remembered."""
        return tubes if self.everywhere else [tube for tube in tubes if self._has_any(tube)]

    def _has_any(self, tube: str) -> bool:
        return any(patterns.fit(tube) for _, patterns in self._patterns)

    def _find_rights(self, tube: str) -> int:
        rights = self.everywhere
        for right, patterns in self._patterns:
            if patterns.fit(tube):
                rights |= right
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        self._remembered[tube] = rights
        return rights


class _Patterns:
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
            if _WILDCARD.search(each) is None:
                self._names.add(each)
            elif each.endswith("*") and _WILDCARD.search(each[:-1]) is None:
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
