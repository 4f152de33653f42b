"""A user: which rights it has to which tubes.

Rights are given by patterns of tube names. The rights to one tube are found once, and then remembered. Must never know
commands, tokens or certificates: only names of tubes.
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
        "_any",  # what the names of the tubes with any right look like; None if all do, or none
        "_patterns",  # what the names of the tubes with each right look like
        "_remembered",  # rights, by the name of a tube
        "everywhere",  # the rights to all tubes, also to those that do not exist
        "name",
        "pattern_count",  # how many patterns a name is compared with
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
        self._patterns: list[tuple[int, re.Pattern[str]]] = []
        self._remembered: dict[str, int] = {}
        every: list[str] = []
        for right, patterns in ((PRODUCE, produce), (CONSUME, consume), (INSPECT, inspect), (ADMIN, admin)):
            if ALL_TUBES in patterns:
                self.everywhere |= right
            elif patterns:
                self._patterns.append((right, _compile(patterns)))
                every.extend(patterns)
        self.pattern_count = len(set(every))
        self._any = _compile(sorted(set(every))) if every and not self.everywhere else None

    def rights(self, tube: str) -> int:
        """The rights to the tube of this name, which need not exist."""
        rights = self._remembered.get(tube, -1)
        return self._find_rights(tube) if rights < 0 else rights

    def has_rights_of(self, other: User) -> bool:
        """Whether both have been given their rights by the same patterns."""
        return self.everywhere == other.everywhere and self._patterns == other._patterns

    def select(self, tubes: list[str]) -> list[str]:
        """Those of these tubes to which there is any right, in their order. They are not remembered."""
        if self.everywhere:
            return tubes
        pattern = self._any
        return [] if pattern is None else [tube for tube in tubes if pattern.match(tube) is not None]

    def _find_rights(self, tube: str) -> int:
        rights = self.everywhere
        for right, pattern in self._patterns:
            if pattern.match(tube) is not None:
                rights |= right
        if len(self._remembered) >= REMEMBERED:
            self._remembered.clear()
        self._remembered[tube] = rights
        return rights


def _compile(patterns: Sequence[str]) -> re.Pattern[str]:
    """What fits one of the patterns."""
    return re.compile("|".join([fnmatch.translate(each) for each in patterns]))
