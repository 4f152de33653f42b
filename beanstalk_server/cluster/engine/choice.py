"""Chooses the engine that a URL names."""

from __future__ import annotations

import functools

from beanstalk_server.cluster.engine.interface import Connect
from beanstalk_server.settings.engine_url import read_url


def connect_to(url: str, name: str, replicas: int, timeout: float = 2.0) -> Connect:
    """What makes connections to an engine.

    Args:
        url: as settings/engine_url.py describes it.
        name: of the cluster.
        replicas: how many replicas must confirm what is durable.
        timeout: seconds to connect, and for a part of an answer.

    Raises:
        ValueError: the URL is bad.
    """
    from beanstalk_server.cluster.engine.redis.engine import RedisEngine  # only the engine that is used

    return functools.partial(RedisEngine, read_url(url), name, replicas, timeout=timeout)
