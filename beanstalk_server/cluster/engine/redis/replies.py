"""Decodes what Redis holds of a shard and of the nodes: leases, positions and reports."""

from __future__ import annotations

from typing import Final

from beanstalk_server.cluster.engine.interface import START, EngineRefusedError, Lease, Load, Member, Position
from beanstalk_server.cluster.engine.redis import scripts
from beanstalk_server.cluster.engine.redis.resp import Reply, lists_of, number_of, text_of, understood

REMEMBERED: Final = 60
"""Seconds for which a node that does not report is a member."""


def lease_of(reply: Reply, shards: int = 0) -> Lease:
    """The lease of the fields of the state.

    Args:
        shards: how many there are, as far as this node knows; 0 if it does not.

    Raises:
        EngineRefusedError: a later release has written it, or nodes with another number of shards.
        EngineError: it is something else.
    """
    with understood():
        version, epoch, renewals, node, address, secret, last, ttl, successor, lineage, held = lists_of(reply)
        if version is not None and text_of(version) not in scripts.VERSIONS:
            raise EngineRefusedError(
                f"the journal in the engine has version {text_of(version)}, but this server supports only version "
                f"{scripts.VERSIONS[-1]}: use a later release of beanstalk-server"
            )
        if shards and held is not None and number_of(held) != shards:
            raise EngineRefusedError(f"the engine has {number_of(held)} shards, but this node has {shards}")
        return Lease(
            number_of(epoch),
            number_of(renewals),
            text_of(node),
            text_of(address),
            text_of(secret, "surrogateescape"),  # its stamp is computed in Redis, too, even after a bit has flipped
            position_of(last),
            number_of(ttl),
            text_of(successor),
            text_of(lineage),
        )


def position_of(reply: object) -> Position:
    """A position as it is kept: "EPOCH.NUMBER".

    Raises:
        ValueError: it is something else.
    """
    epoch, dot, number = text_of(reply).partition(".")
    return Position(int(epoch), int(number)) if dot else START


def members_of(reports: Reply, moment: Reply) -> list[Member]:
    """The nodes that have reported within the last minute.

    Args:
        moment: the time of the engine.

    Raises:
        EngineError: it is something else.
    """
    with understood():
        seconds, micros = lists_of(moment)
        now = number_of(seconds) + number_of(micros) / 1e6
        fields = lists_of(reports)
        found = []
        for node, report in zip(fields[::2], fields[1::2], strict=True):
            address, *load, reported = text_of(report).split(" ")
            seen = now - float(reported)
            if seen <= REMEMBERED:
                shards, jobs, size, takes = map(int, load or (0, 0, 0, 1))
                found.append(Member(text_of(node), address, max(seen, 0.0), Load(shards, jobs, size), bool(takes)))
        return found
