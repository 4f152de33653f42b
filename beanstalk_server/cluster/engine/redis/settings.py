"""What in the settings of Redis or Valkey would lose jobs, and what would only be unfortunate.

    appendonly no               a server that restarts comes back with nothing, and its replicas copy that
    maxmemory-policy allkeys-…  a full server throws files away
    appendfsync, without replicas   only `always` keeps what was acknowledged in the last second

Must never ask a server itself: settings and roles are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VALIDITY: Final = "cluster-replica-validity-factor"

ASKED: Final = ("appendonly", "appendfsync", "maxmemory-policy", "repl-backlog-size", VALIDITY)
"""The settings to ask for."""

BACKLOG: Final = 16 << 20
"""Bytes: what a busy leader writes in a second or two, for a replica that was away that long."""


def losing(settings: Mapping[str, str], replicas: int) -> list[str]:
    """What would lose jobs: a sentence each. Settings that are not known lose nothing.

    Args:
        replicas: how many must confirm what is durable.
    """
    found = []
    if settings.get("appendonly") == "no":
        found.append("appendonly is no: after a restart it would come back with nothing: must be yes")
    policy = settings.get("maxmemory-policy", "")
    if policy.startswith("allkeys"):
        found.append(f"maxmemory-policy is {policy}: when it is full, it would throw jobs away: must be noeviction")
    fsync = settings.get("appendfsync", "always")
    if not replicas and fsync != "always" and settings.get("appendonly") == "yes":
        found.append(f"appendfsync is {fsync}, and nothing waits for replicas: must be always with --replicas 0")
    return found


def too_few(online: int, replicas: int) -> str:
    """Why nothing can be acknowledged while this many replicas are online; "" if it can. Nothing is lost by that."""
    if online >= replicas:
        return ""
    has = "no replica is" if not online else "1 replica is" if online == 1 else f"{online} replicas are"
    return f"{has} connected: nothing is acknowledged before there are {replicas}, as --replicas says"


def advice(settings: Mapping[str, str], online: int, replicas: int, *, in_cluster: bool) -> list[str]:
    """What loses nothing, and had better be otherwise: a sentence each.

    Args:
        online: how many replicas follow.
        in_cluster: the server is a node of Redis Cluster.
    """
    found = []
    factor = settings.get(VALIDITY, "0")
    if in_cluster and factor != "0":
        found.append(f"{VALIDITY} is {factor}: no replica is promoted if all were away for long: had better be 0")
    if replicas and online == replicas:
        are = "1 replica is" if online == 1 else f"{online} replicas are"
        found.append(f"{are} connected, and none is to spare: when one is away, nothing is acknowledged")
    backlog = settings.get("repl-backlog-size", "")
    if replicas and backlog.isdigit() and int(backlog) < BACKLOG:
        found.append(
            f"repl-backlog-size is {backlog}: a replica that was away for a moment has to copy everything: "
            f"had better be {BACKLOG >> 20}mb at least"
        )
    if replicas and settings.get("appendfsync") == "no":
        found.append("appendfsync is no: had better be everysec, for the day when all servers lose their power")
    return found
