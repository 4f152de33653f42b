"""Inspects the servers of an engine in Redis: version, memory, replicas, and settings that would lose jobs.

    appendonly no               a server that restarts comes back with nothing, and its replicas copy that
    maxmemory-policy allkeys-…  a full server throws files away
    appendfsync, without replicas   only `always` keeps what was acknowledged in the last second

Must never ask for anything that is kept there, and never change anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from beanstalk_server.cluster.engine.interface import Condition, EngineError, EngineRefusedError, Replica
from beanstalk_server.cluster.engine.redis.connection import RedisConnection
from beanstalk_server.cluster.engine.redis.resp import ResponseError, pack, text_of, understood
from beanstalk_server.events import event
from beanstalk_server.settings.engine_url import Host

INFO: Final = pack(b"INFO", b"server", b"memory", b"replication")

VALIDITY: Final = "cluster-replica-validity-factor"

ASKED: Final = ("appendonly", "appendfsync", "maxmemory-policy", "repl-backlog-size", VALIDITY)
"""The settings to ask for."""

BACKLOG: Final = 16 << 20
"""Bytes: what a busy leader writes in a second or two, for a replica that was away that long."""

log = logging.getLogger("beanstalk_server")


def condition_of(connection: RedisConnection) -> Condition:
    """How a server is.

    Raises:
        EngineError: it does not say.
    """
    reply = connection.ask(INFO)[0]
    if isinstance(reply, ResponseError):
        raise connection.error_of(reply)
    with understood():
        told = {name: value for name, _, value in (line.partition(":") for line in text_of(reply).splitlines())}
        offset = int(told.get("master_repl_offset", 0))
        replicas = []
        for number in range(int(told.get("connected_slaves", 0))):
            if (line := told.get(f"slave{number}")) is None:
                break
            of_one = dict(each.partition("=")[::2] for each in line.split(","))
            host = Host(of_one.get("ip", "?"), int(of_one.get("port", 0)))
            lag = max(offset - int(of_one.get("offset", 0)), 0)
            replicas.append(Replica(host, of_one.get("state") == "online", lag))
        valkey = told.get("valkey_version")
        name = f"Valkey {valkey}" if valkey else f"Redis {told.get('redis_version', '?')}"
        memory, limit = (int(told.get(each, 0)) for each in ("used_memory", "maxmemory"))
        return Condition(name, connection.host, memory, limit, tuple(replicas))


def faults(
    primary: RedisConnection,
    wanted: int,
    asking: Callable[[Host], AbstractContextManager[RedisConnection]],
    *,
    in_cluster: bool,
) -> list[str]:
    """What in the settings of a primary and its replicas would lose jobs; what is only unfortunate, the log says.

    Args:
        wanted: how many replicas must confirm what is durable.
        asking: connects to a replica for as long as it is asked.
        in_cluster: it is a node of Redis Cluster.

    Raises:
        EngineError: the primary does not say.
    """
    settings = _settings_of(primary)
    found = [f"engine at {primary.host}: {each}" for each in losing(settings, wanted)]
    try:
        replicas = condition_of(primary).replicas
    except EngineRefusedError as error:
        log.warning("%(error)s: the number of replicas is unknown", event("engine-replicas-unknown", error=error))
        return found
    online = sum(each.is_online for each in replicas)
    if few := too_few(online, wanted):
        log.warning("engine at %(engine)s: %(fault)s", event("engine-replicas-few", engine=primary.host, fault=few))
    for replica in replicas:
        try:
            with asking(replica.host) as connection:
                lost = losing(_settings_of(connection), wanted)
        except EngineError as error:  # it may have an address that is not for this machine
            log.warning("cannot read the settings of a replica: %(error)s", event("replica-unknown", error=error))
        else:
            found += [f"replica at {replica.host}: {each}" for each in lost]
    for each in advice(settings, online, wanted, in_cluster=in_cluster):
        log.warning("engine at %(engine)s: %(advice)s", event("engine-advice", engine=primary.host, advice=each))
    return found


def _settings_of(connection: RedisConnection) -> dict[str, str]:
    """The settings of a server; none if it does not show them."""
    reply = connection.ask(pack(b"CONFIG", b"GET", *[each.encode() for each in ASKED]))[0]
    if not isinstance(reply, list):
        log.warning(
            "engine at %(engine)s: cannot read its settings, so they are not checked",
            event("engine-settings-unknown", engine=connection.host),
        )
        return {}
    with understood():
        words = [text_of(each) for each in reply]
        return dict(zip(words[::2], words[1::2], strict=True))


def losing(settings: Mapping[str, str], replicas: int) -> list[str]:
    """What would lose jobs: a sentence each. Settings that are not known lose nothing.

    Args:
        replicas: how many must confirm what is durable.
    """
    found = []
    if settings.get("appendonly") == "no":
        found.append("appendonly is no, so a restart would lose all jobs: must be yes")
    policy = settings.get("maxmemory-policy", "")
    if policy.startswith("allkeys"):
        found.append(f"maxmemory-policy is {policy}, so a full engine would evict jobs: must be noeviction")
    fsync = settings.get("appendfsync", "always")
    if not replicas and fsync != "always" and settings.get("appendonly") == "yes":
        found.append(
            f"appendfsync is {fsync}, so a crash would lose acknowledged changes: must be always with --replicas 0"
        )
    return found


def too_few(online: int, replicas: int) -> str:
    """Why nothing can be acknowledged while this many replicas are online; "" if it can. Nothing is lost by that."""
    if online >= replicas:
        return ""
    has = "no replica is" if not online else "1 replica is" if online == 1 else f"{online} replicas are"
    return f"{has} connected: no change is acknowledged until {replicas} are (--replicas {replicas})"


def advice(settings: Mapping[str, str], online: int, replicas: int, *, in_cluster: bool) -> list[str]:
    """What loses nothing, and had better be otherwise: a sentence each.

    Args:
        online: how many replicas follow.
        in_cluster: the server is a node of Redis Cluster.
    """
    found = []
    factor = settings.get(VALIDITY, "0")
    if in_cluster and factor != "0":
        found.append(
            f"{VALIDITY} is {factor}, so a replica that was offline for a long time is not promoted: should be 0"
        )
    if replicas and online == replicas:
        are = "1 replica is" if online == 1 else f"{online} replicas are"
        found.append(f"{are} connected, and --replicas needs all of them: if one fails, no change is acknowledged")
    backlog = settings.get("repl-backlog-size", "")
    if replicas and backlog.isdigit() and int(backlog) < BACKLOG:
        found.append(
            f"repl-backlog-size is {backlog}, so a replica that reconnects may need a full resynchronization: "
            f"should be at least {BACKLOG >> 20}mb"
        )
    if replicas and settings.get("appendfsync") == "no":
        found.append("appendfsync is no, so a power failure of all servers would lose jobs: should be everysec")
    return found
