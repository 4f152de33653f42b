"""Which settings go together with --cluster: what must be refused, and what deserves a warning.

Must never ask the engine for anything.
"""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Final

from beanstalk_server.access.patterns import is_name
from beanstalk_server.cluster.url import read_url
from beanstalk_server.settings.config import Mistake, TubeConfig, label_of, option
from beanstalk_server.settings.files import read_file
from beanstalk_server.wire.places import Places

if TYPE_CHECKING:
    from beanstalk_server.settings.config import Config

_OF_A_DIRECTORY: Final = {
    "binlog": "the engine keeps the jobs",
    "sync_interval": "a reply always waits for the engine and its replicas",
    "salvage": "nothing is lost bit by bit in an engine",
    "body_threshold": "all bodies stay in memory",
    "body_cache": "all bodies stay in memory",
}
"""The options that only a server with a directory of its own has, and why a node has none of them."""

NO_LIBRARY: Final = "needs redis, which is not installed: pip install '.[cluster]' in a clone of beanstalk-server"

LARGEST: Final = 1 << 28
"""Bytes of a segment, and of a job. A string of Redis has 512 MiB at most, and so has an argument of a script."""

EVERYWHERE: Final = ("0.0.0.0", "::", "0")
"""Hosts that can be listened at, and not connected to."""


def of_config(config: Config) -> list[Mistake]:
    """What does not go together with --cluster."""
    mistakes = []
    try:
        read_url(config.cluster)
    except ValueError as error:
        mistakes.append(Mistake(option("cluster"), f"bad value (not shown): {error}"))
    for name, reason in _OF_A_DIRECTORY.items():
        value = getattr(config, name)
        if value != type(config).__dataclass_fields__[name].default:
            given = "given" if value is True else repr(value)
            mistakes.append(
                Mistake(option(name), f"{given} beside {option('cluster')}, where {reason}: must be left out")
            )
    for name in ("segment_size", "max_job_size"):
        value = getattr(config, name)
        if value > LARGEST:
            place = option(name)
            mistakes.append(Mistake(place, f"{value} beside {option('cluster')}: must be {LARGEST} at most"))
    host = config.advertise.rpartition(":")[0].strip("[]")
    if host in EVERYWHERE:
        mistakes.append(Mistake(option("advertise"), f"{config.advertise!r} is every address: must be one of them"))
    return mistakes


def missing(url: str) -> list[Mistake]:
    """What the URL of an engine needs, and is not on this machine."""
    mistakes = []
    if importlib.util.find_spec("redis") is None:
        mistakes.append(Mistake(option("cluster"), NO_LIBRARY))
    with contextlib.suppress(ValueError):  # which `of_config` tells
        found = read_url(url)
        for name, path in (("ca", found.ca), ("cert", found.cert), ("key", found.key)):
            try:
                if path:
                    read_file(path)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", error)
                said = f"{name}={path} cannot be read: {reason}: must be a PEM file"
                mistakes.append(Mistake(option("cluster"), said))
    return mistakes


def warnings(config: Config) -> list[str]:
    """What is allowed, and may lose jobs or leave them somewhere else: each in one line."""
    found = []
    if not config.replicas:
        found.append(f"{option('replicas')} 0: what the engine has acknowledged is lost with it: should be 1 or more")
    if config.shards > 1:
        places = Places(config.shards)
        found += [warning for each in config.tubes if (warning := _of_dead_tube(each, places))]
    return found


def _of_dead_tube(tube: TubeConfig, places: Places) -> str:
    """Which jobs cannot go to the dead tube of a section, because it may be in another shard than they are."""
    dead = tube.dead_tube
    shard = places.of_tube(dead.encode())
    if not dead or all(is_name(each) and places.of_tube(each.encode()) == shard for each in tube.match):
        return ""
    return (
        f"{label_of(tube.match)}: dead-tube: {dead!r} is in shard {shard}: "
        "jobs of other shards are buried instead, or deleted when they expire"
    )
