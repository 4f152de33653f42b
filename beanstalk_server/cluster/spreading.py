"""Spreads the shards over the nodes: how many each should lead, and who takes one that nobody leads.

    transfers    a node that leads more than its share gives some to those that lead fewer
    successors   a shard without a leader goes to the node that leads fewest

Every node decides for itself, from what it has seen. So both are functions of the figures alone, and nodes that have
seen the same decide the same: none gives to a node that others fill already, and no two take the same shard. What is
even is left alone, however it came about.

Without I/O and without a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping


def transfers(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """The fewest transfers after which no node leads more than one shard more than another.

    Args:
        counts: how many shards each node leads.

    Returns:
        for each transfer of one shard, the node that gives and the node that takes, in the order in which they are to
        happen: at any time, the node with most gives, and the node with fewest takes.
    """
    if not counts:
        return []
    share, rest = divmod(sum(counts.values()), len(counts))
    # Those that lead most keep one more, so that what is even already stays as it is.
    ordered = sorted(counts, key=lambda node: (-counts[node], node))
    excess: list[tuple[int, str]] = []
    lack: list[tuple[int, str]] = []
    for rank, node in enumerate(ordered):
        due = share + (rank < rest)
        excess += [(-count, node) for count in range(due + 1, counts[node] + 1)]
        lack += [(count, node) for count in range(counts[node], due)]
    return [(giver, taker) for (_, giver), (_, taker) in zip(sorted(excess), sorted(lack), strict=True)]


def successors(orphans: Iterable[int], counts: Mapping[str, int]) -> dict[int, str]:
    """Who is to take each of the shards that nobody leads.

    Args:
        orphans: their numbers.
        counts: how many shards each node leads that may take one.
    """
    if not counts:
        return {}
    fewest = [(count, node) for node, count in counts.items()]
    heapq.heapify(fewest)
    found = {}
    for shard in sorted(orphans):
        count, node = fewest[0]
        found[shard] = node
        heapq.heapreplace(fewest, (count + 1, node))
    return found
