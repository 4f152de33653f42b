"""Finds the rights of a user to tubes.

Rights are given by patterns of tube names. The rights to a tube are found once, and then remembered. A name with one of
PRIVATE_SUFFIXES matches only `*` and the patterns with the same suffix: a user who puts tasks must not put their
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from beanstalk_server.tube_names import ALL_TUBES, PRIVATE_SUFFIXES, Patterns

NO_RIGHT: Final = 0
PRODUCE: Final = 1
CONSUME: Final = 2
INSPECT: Final = 4
ADMIN: Final = 8
ANY_RIGHT: Final = PRODUCE | CONSUME | INSPECT | ADMIN
"""A right is a bit, so that several are one number."""

REMEMBERED: Final = 4096
"""Maximum number of tubes whose rights a user remembers. A client may name any number."""


class User:
    """The identity that a client has proved.

    Args:
        name: as in the config, for the log.
        produce, consume, inspect, admin: patterns of the tubes that the user has this right to, as `fnmatch` reads
            them: `*` is any characters, `?` is one. PRIVATE_SUFFIXES must be part of the pattern, unless it is `*`.
    """

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
        self.everywhere = 0  # the rights to all tubes, also to those that do not exist
        self.weight = 3  # what it costs to find the rights to a tube, in 64ths of a simple command
        self._given = (tuple(produce), tuple(consume), tuple(inspect), tuple(admin))  # the patterns of each right
        # each right that not all tubes have, with its patterns: of private tubes, and of others
        self._patterns: list[tuple[int, Patterns, Patterns]] = []
        self._remembered: dict[str, int] = {}  # rights, by the name of a tube
        for right, given in zip((PRODUCE, CONSUME, INSPECT, ADMIN), self._given, strict=True):
            if ALL_TUBES in given:
                self.everywhere |= right
            elif given:
                patterns = Patterns(given)
                private = Patterns([each for each in given if each.endswith(PRIVATE_SUFFIXES)])
                self._patterns.append((right, private, patterns))
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

    def select(self, tubes: list[str], asked: int) -> list[str]:
        """Those of these tubes to which there is a right that is asked for, in their order. They are not remembered."""
        return tubes if self.everywhere & asked else [tube for tube in tubes if self._has_any(tube, asked)]

    def _has_any(self, tube: str, asked: int) -> bool:
        is_private = tube.endswith(PRIVATE_SUFFIXES)
        return any(
            (private if is_private else patterns).fit(tube)
            for right, private, patterns in self._patterns
            if right & asked
        )

    def _find_rights(self, tube: str) -> int:
        rights = self.everywhere
        is_private = tube.endswith(PRIVATE_SUFFIXES)
        for right, private, patterns in self._patterns:
            if (private if is_private else patterns).fit(tube):
                rights |= right
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        self._remembered[tube] = rights
        return rights
