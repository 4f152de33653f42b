"""Chooses the engine that a URL names."""

from __future__ import annotations

import functools
import importlib.util
from typing import Final

from beanstalk_server.cluster.engine.interface import Connect
from beanstalk_server.settings.engine_url import POSTGRESQL, read_url

NO_PSYCOPG: Final = "needs psycopg, which is not installed: pip install '.[postgresql]' in a clone of beanstalk-server"


def connect_to(url: str, name: str, replicas: int, timeout: float = 2.0) -> Connect:
    """What makes connections to an engine.

    Args:
        url: as settings/engine_url.py describes it.
        name: of the cluster.
        replicas: how many replicas must confirm what is durable.
        timeout: seconds to connect, and for a part of an answer.

    Raises:
        ValueError: the URL is bad, or the library for its engine is not installed.
    """
    read = read_url(url)
    if read.form == POSTGRESQL:  # only the engine that is used is imported
        if importlib.util.find_spec("psycopg") is None:
            raise ValueError(NO_PSYCOPG)
        from beanstalk_server.cluster.engine.postgresql.engine import PostgresEngine, hosts_of

        return functools.partial(PostgresEngine, hosts_of(url), name, replicas, timeout=timeout)
    from beanstalk_server.cluster.engine.redis.engine import RedisEngine

    return functools.partial(RedisEngine, read, name, replicas, timeout=timeout)
