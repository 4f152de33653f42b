"""Names what the log tells: each line is an event, with a stable name and its fields.

    log.info("recovered %(jobs)d jobs", event("recovered", jobs=12))

The standard library formats a message with the one dictionary that follows it; the dictionary also carries the name,
and fields that the text does not show. So each value is given once, and a formatter of JSON finds all of them.
docs/observability.md lists the events.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

NAME: Final = "event"
"""The key of the name among the fields."""

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
"""What takes lines: a logger, or one that says for which shard."""


def event(name: str, **fields: object) -> dict[str, object]:
    """The one argument of a line of the log: what has happened, in kebab-case, and its fields."""
    return {NAME: name, **fields}


def event_of(record: logging.LogRecord) -> Mapping[str, object]:
    """What `event` has made for a line; empty for a line of another library."""
    fields = record.args
    return fields if isinstance(fields, Mapping) and NAME in fields else {}


class ShardLog(logging.LoggerAdapter[logging.Logger]):
    """The log of one shard among several: each line names it."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        assert self.extra is not None, "it is made with a shard"
        return f"shard {self.extra['shard']}: {msg}", {**kwargs, "extra": self.extra}


def log_of_shard(log: logging.Logger, shard: int, shards: int) -> Log:
    """The log for lines about a shard: the same one where there are no others.

    Args:
        shards: how many there are.
    """
    return log if shards == 1 else ShardLog(log, {"shard": shard})
