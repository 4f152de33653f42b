"""Names the extensions of docs/protocol-extensions.md, and which of them a conversation needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .conversation import Conversation

DURATIONS: Final = "durations"

NAMES: Final = frozenset(
    """
    put-keyed replace-keyed peek-keyed cancel cancel-keyed reschedule reschedule-keyed reprioritize reprioritize-keyed
    reserve-batch cancel-reserve reserve-mode give-back save put-with put-batch delete-batch release-batch touch-batch
    touch-all redrive stats-group cancel-group list-jobs stats-tubes clear-tube move-jobs list-clients drain undrain
    client-name list-extensions durations
    """.split()
)
"""What list-extensions names: commands, and durations with decimals."""

ATTRIBUTES: Final = {" once=": 3, " again=": 2, " within=": 2}
"""The attributes of put-with that its first version does not have, and their versions."""

WEIGHT: Final = re.compile(r"watch \S+ \S+")
"""A `watch` with a weight, which is part of reserve-mode."""

WORD: Final = re.compile(r"[a-z]+(?:-[a-z]+)*(?= |\\|$)")


def needed_by(conversation: Conversation) -> dict[str, int]:
    """The extensions that a conversation needs, by name, each with its version."""
    needed = {DURATIONS: 1} if conversation.differs == DURATIONS else {}
    for step in conversation.steps:
        if step.action != ">":
            continue
        line = step.source.partition(">")[2].removeprefix(" ")
        word = WORD.match(line)
        if WEIGHT.fullmatch(line):
            needed["reserve-mode"] = 1
        elif word and word[0] in NAMES:
            version = max([1, *(ATTRIBUTES[each] for each in ATTRIBUTES if each in line and word[0] == "put-with")])
            needed[word[0]] = max(version, needed.get(word[0], 0))
    return needed
