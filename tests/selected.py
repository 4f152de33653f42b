"""Conversations for servers of other shapes: seventy that show every command and every reply, or all of them."""

from itertools import combinations

import pytest

from conformance.compare import page

NUMBER = 70

ALWAYS = ("malformed-puts",)
"""Files whose conversations are all run: every part of a server takes its bytes apart."""


def words(conversation):
    """What a conversation shows: commands, replies, what clients do besides; and the file that it is in."""
    actions = {step.action for step in conversation.steps}
    return page.commands(conversation) | page.replies(conversation) | actions | {conversation.theme + ".txt"}


def _cost(conversation):
    """Roughly the time it takes: a server of its own takes as long as dozens of others, a wait passes in real time."""
    return 1 + 30 * conversation.waits + 30 * (conversation.options is not None)


def seventy(conversations):
    """Those that show most for their cost: first all words, by a greedy set cover, then as many pairs of words."""
    left = [(each, found := words(each), set(combinations(sorted(found), 2)), _cost(each)) for each in conversations]
    chosen = [each for each in conversations if each.theme in ALWAYS]
    shown, together = set(), set()
    left = [each for each in left if each[0] not in chosen]
    while left and len(chosen) < NUMBER:
        best = max(left, key=lambda each: (len(each[1] - shown) / each[3], len(each[2] - together) / each[3]))
        left.remove(best)
        chosen.append(best[0])
        shown |= best[1]
        together |= best[2]
    return [each for each in conversations if each in chosen]


def seventy_with_one_server(conversations):
    """Seventy of those that need no server of their own, because starting one takes long."""
    return seventy([each for each in conversations if each.options is None])


each_selection = pytest.mark.parametrize(
    ("select", "at_once"), [(seventy_with_one_server, 1), pytest.param(list, 6, id="all", marks=pytest.mark.slow)]
)
"""For servers of other shapes: which conversations `make test` runs against them, and which `make test-all` does. Drain
mode and memory in `make test`: io_processes/test_processes.py, cluster/test_operators_of_nodes.py and
conformance/test_through_a_standby.py.
"""
