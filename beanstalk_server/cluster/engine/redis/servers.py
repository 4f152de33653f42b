"""What the servers of an engine in Redis say of themselves: which they are, how full, and which settings they have.

Must never ask for anything that is kept there, and never change anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from beanstalk_server.cluster.engine.interface import EngineError, EngineRefusedError
from beanstalk_server.cluster.engine.redis import settings
from beanstalk_server.cluster.engine.redis.connection import RedisConnection
from beanstalk_server.cluster.engine.redis.resp import ResponseError, pack, text_of, understood
from beanstalk_server.events import event
from beanstalk_server.settings.engine_url import Host

INFO: Final = pack(b"INFO", b"server", b"memory", b"replication")

log = logging.getLogger("beanstalk_server")


class Replica(NamedTuple):
    """A replica, as its primary sees it."""

    host: Host
    is_online: bool
    """Whether it has a copy, and follows."""
    lag: int
    """Bytes of changes that it has not confirmed yet."""


class Condition(NamedTuple):
    """How a server is."""

    name: str
    """The program, with its version."""
    host: Host
    memory: int
    """Bytes in use."""
    limit: int
    """Bytes that it may use; 0 for any number."""
    replicas: tuple[Replica, ...]


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


def losing(
    primary: RedisConnection, wanted: int, connection_to: Callable[[Host], RedisConnection], *, in_cluster: bool
) -> list[str]:
    """What in the settings of a primary and its replicas would lose jobs; what is only unfortunate, the log says.

    Args:
        wanted: how many replicas must confirm what is durable.
        connection_to: makes a connection to a replica, which is closed again.
        in_cluster: it is a node of Redis Cluster.

    Raises:
        EngineError: the primary does not say.
    """
    found = [f"engine at {primary.host}: {each}" for each in _bad_settings(primary, wanted)]
    try:
        replicas = condition_of(primary).replicas
    except EngineRefusedError as error:
        log.warning(
            "%(error)s: whether it has enough replicas is not known", event("engine-replicas-unknown", error=error)
        )
        return found
    online = sum(each.is_online for each in replicas)
    if few := settings.too_few(online, wanted):
        log.warning("engine at %(engine)s: %(fault)s", event("engine-replicas-few", engine=primary.host, fault=few))
    for replica in replicas:
        found += _losing_at_replica(replica.host, wanted, connection_to)
    shown = _settings(primary) or {}
    for each in settings.advice(shown, online, wanted, in_cluster=in_cluster):
        log.warning("engine at %(engine)s: %(advice)s", event("engine-advice", engine=primary.host, advice=each))
    return found


def _losing_at_replica(host: Host, wanted: int, connection_to: Callable[[Host], RedisConnection]) -> list[str]:
    """What in the settings of a replica would lose jobs once it is the primary."""
    connection = connection_to(host)
    try:
        connection.connect()
        return [f"replica at {host}: {each}" for each in _bad_settings(connection, wanted)]
    except EngineError as error:  # it may have an address that is not for this machine
        log.warning("a replica cannot be asked for its settings: %(error)s", event("replica-unknown", error=error))
        return []
    finally:
        connection.close()


def _bad_settings(connection: RedisConnection, wanted: int) -> list[str]:
    found = _settings(connection)
    if found is None:
        log.warning(
            "engine at %(engine)s: it does not show its settings: whether they lose jobs is not known",
            event("engine-settings-unknown", engine=connection.host),
        )
        return []
    return settings.losing(found, wanted)


def _settings(connection: RedisConnection) -> dict[str, str] | None:
    """The settings of a server, or None if it does not show them."""
    reply = connection.ask(pack(b"CONFIG", b"GET", *[each.encode() for each in settings.ASKED]))[0]
    if not isinstance(reply, list):
        return None
    with understood():
        words = [text_of(each) for each in reply]
        return dict(zip(words[::2], words[1::2], strict=True))
