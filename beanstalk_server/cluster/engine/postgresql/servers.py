"""Inspects the servers of an engine in PostgreSQL: version, size, standbys, and settings that would lose jobs.

    fsync off                   a crash of the machine loses or damages anything
    synchronous_commit          off: a commit is acknowledged before it is on a disk; local: before it is on a standby
    synchronous_standby_names   empty, or fewer standbys than --replicas: a failover loses what was acknowledged

Must never ask for anything that is kept there, and never change anything.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Final

from beanstalk_server.cluster.engine.interface import Condition, Replica
from beanstalk_server.cluster.engine.postgresql.connection import Connection, Row, Statement
from beanstalk_server.cluster.engine.postgresql.schema import CONDITIONS
from beanstalk_server.events import event
from beanstalk_server.settings.engine_url import Host

SETTINGS: Final = f"SELECT {CONDITIONS}, current_setting('fsync')".encode()

STANDBYS: Final = (
    b"SELECT coalesce(host(client_addr), client_hostname, 'localhost'), coalesce(client_port, 0), state = 'streaming', "
    b"coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn), 0)::bigint, coalesce(sync_state, '') "
    b"FROM pg_stat_replication ORDER BY application_name, pid"
)

SIZE: Final = (
    b"SELECT current_setting('server_version'), coalesce(sum(pg_table_size(c.oid)), 0)::bigint FROM pg_class c "
    b"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND relkind = 'r'"
)

LOCAL: Final = ("off", "local")
"""Values of synchronous_commit with which a commit waits for no standby."""

log = logging.getLogger("beanstalk_server")


@lru_cache(maxsize=16)  # each commit asks
def confirmations(settings: Row) -> int:
    """How many standbys have a commit that has ended, by the first two settings of its session."""
    commit, names, *_ = settings
    if commit in LOCAL or not names.strip():
        return 0
    number = re.match(r"\s*(?:(?:any|first)\s+)?(\d+)\s*\(", names, re.IGNORECASE)
    return int(number[1]) if number else 1


def condition_of(connection: Connection, schema: str) -> Condition:
    """How the primary is, with its standbys as far as the user may see them."""
    ((version, size),), rows = connection.run([Statement(SIZE, (schema.encode(),)), Statement(STANDBYS)])
    replicas = tuple(
        [Replica(Host(name, int(port)), is_online == "t", int(lag)) for name, port, is_online, lag, _ in rows]
    )
    return Condition(f"PostgreSQL {version.partition(' ')[0]}", connection.host, int(size), 0, replicas)


def faults(connection: Connection, wanted: int) -> list[str]:
    """What in the settings of the primary would lose jobs; what only stops commits, the log says.

    Args:
        wanted: how many standbys must confirm what is durable.
    """
    ((commit, names, _, fsync),), rows = connection.run([Statement(SETTINGS), Statement(STANDBYS)])
    found = []
    if fsync == "off":
        found.append("fsync is off, so a crash of the machine would lose jobs: must be on")
    if commit == "off" or (wanted and commit == "local"):
        found.append(f"synchronous_commit is {commit}, so a failover would lose acknowledged jobs: must be on")
    confirmed = confirmations(("on", names))
    if confirmed < wanted:
        found.append(
            f"synchronous_standby_names is {names!r}, so a commit waits for {confirmed} of {wanted} standbys: "
            f"must be 'ANY {wanted} (*)' or more, or use --replicas {confirmed}"
        )
    online = sum(1 for row in rows if row[4] in ("sync", "quorum"))
    if not found and online < wanted:
        are = "1 synchronous standby is" if online == 1 else f"{online} synchronous standbys are"
        fault = f"{are} connected: no change is acknowledged until {wanted} are (--replicas {wanted})"
        log.warning(
            "engine at %(engine)s: %(fault)s", event("engine-replicas-few", engine=connection.host, fault=fault)
        )
    return [f"engine at {connection.host}: {each}" for each in found]
