"""Encodes a task as the body of a job, and decodes it: JSON, in the shape that this package's own tasks have.

    {"task": "shop.tasks.send", "args": [17], "kwargs": {}, "meta": {"id": "…", "queue": "mail", "priority": 0,
     "enqueued_at": "2026-11-23T08:00:00+00:00", "run_after": null}}

Must never import what a body names: the worker does, and checks that it is a task.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any, NamedTuple


class Message(NamedTuple):
    """One task that has been enqueued.

    Attributes:
        path: module and name of its function.
        id: of its result: the job's key, if the task is deferred or its result is kept.
    """

    path: str
    args: list[Any]
    kwargs: dict[str, Any]
    id: str
    queue: str
    priority: int
    enqueued_at: datetime.datetime
    run_after: datetime.datetime | None


def encode(message: Message, result: Mapping[str, Any] | None = None) -> bytes:
    """The body of a job.

    Args:
        result: what is kept of the task's result, for the job that keeps it.

    Raises:
        TypeError, ValueError: an argument is not of JSON.
    """
    meta = {
        "id": message.id,
        "queue": message.queue,
        "priority": message.priority,
        "enqueued_at": message.enqueued_at.isoformat(),
        "run_after": message.run_after and message.run_after.isoformat(),
    }
    body: dict[str, Any] = {"task": message.path, "args": message.args, "kwargs": message.kwargs, "meta": meta}
    if result is not None:
        body["result"] = result
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def decode(body: bytes) -> Message:
    """
    Raises:
        ValueError: it is no body of a task; the message says why.
    """
    try:
        call = json.loads(body)
        path, args, kwargs, meta = call["task"], call["args"], call["kwargs"], call["meta"]
        if not (isinstance(path, str) and isinstance(args, list) and isinstance(kwargs, dict)):
            raise TypeError("task must be a string, args a list and kwargs an object")
        run_after = meta["run_after"] and datetime.datetime.fromisoformat(meta["run_after"])
        enqueued_at = datetime.datetime.fromisoformat(meta["enqueued_at"])
        return Message(path, args, kwargs, str(meta["id"]), meta["queue"], meta["priority"], enqueued_at, run_after)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"the body is not a task: {type(error).__name__}: {error}") from error
