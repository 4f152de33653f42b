"""Reads and writes the body of a task's job: the task, its arguments, and the metadata of middleware.

    {"task": "shop.send_mail", "args": ["a@example.com"], "kwargs": {"subject": "Hello"}, "meta": {"traceparent": "…"}}

Any program can write such a body, in any language; "args", "kwargs" and "meta" may be left out. While it runs, a task
may add a "checkpoint" for its next attempt. values.py adds the types that JSON lacks. A serializer of one's own writes
and reads the whole body: it is two functions, of which `write` gets this mapping. Must never unpickle: producers could
then run any code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

current: ContextVar[Any] = ContextVar("beanstalk_client.run")
"""The Run (tasks/middleware.py) that the code of this context is part of."""


class Serializer(NamedTuple):
    """How bodies are written and read.

    Example:
        tasks = Tasks(serializer=Serializer(write=msgpack.packb, read=msgpack.unpackb))

    Attributes:
        write: a mapping as above to bytes. What it cannot write, it raises TypeError or ValueError for.
        read: bytes to such a mapping. It raises an exception for all other bytes.
    """

    write: Callable[[dict[str, Any]], bytes]
    read: Callable[[bytes], Any]


class UnreadableError(ValueError):
    """A body that is not that of a task's job."""


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


def _write_json(content: dict[str, Any]) -> bytes:
    return _encode(content).encode()


def _read_json(body: bytes) -> Any:
    return _decode(body.decode())


JSON = Serializer(_write_json, _read_json)
"""Text, numbers, true, false, null, lists and mappings; tuples arrive as lists, and keys of mappings as text.

Example:
    tasks = Tasks(serializer=JSON)  # the default also has other types
"""


@dataclasses.dataclass(eq=False, repr=False)
class Message:
    """A call of a task.

    Example:
        message = Message("send_mail", ["a@example.com"], {"subject": "Hello"}, {})

    Attributes:
        task: its name.
        args: by position.
        kwargs: by name.
        meta: what middleware has added; {} for nothing.
        checkpoint: what an earlier attempt saved last, or None.
    """

    task: str
    args: Any
    kwargs: dict[str, Any]
    meta: dict[str, Any]
    checkpoint: Any = None

    def __repr__(self) -> str:
        return f"Message(task={self.task!r})"  # arguments may be secret

    def body(self, serializer: Serializer) -> bytes:
        """Its bytes.

        Raises:
            TypeError, ValueError: the serializer cannot write an argument.
        """
        content: dict[str, Any] = {"task": self.task, "args": self.args, "kwargs": self.kwargs}
        if self.meta:
            content["meta"] = self.meta
        return serializer.write(content)


def read(body: bytes, serializer: Serializer) -> Message:
    """The call in a body.

    Raises:
        UnreadableError: there is none; the message says what is wrong, and shows nothing of the body.
    """
    try:
        content = serializer.read(body)
    except Exception as error:
        raise UnreadableError(f"the body cannot be read: {type(error).__name__}: {_without_content(error)}") from None
    try:
        name = content["task"]
        args = content.get("args") or []
        kwargs = content.get("kwargs") or {}
        meta = content.get("meta") or {}
        checkpoint = content.get("checkpoint")
    except (AttributeError, KeyError, TypeError):
        raise UnreadableError('the body is not a mapping with "task", "args" and "kwargs"') from None
    if "buried" in content:
        raise UnreadableError("the body is the report of a buried job, not a call")
    if not (type(name) is str and type(args) in (list, tuple) and type(kwargs) is dict and type(meta) is dict):
        raise UnreadableError('in the body, "task" must be a string, "args" a list, "kwargs" and "meta" mappings')
    return Message(name, args, kwargs, meta, checkpoint)


def with_checkpoint(body: bytes, value: Any, serializer: Serializer) -> bytes:
    """A body with another checkpoint. It is made from the bytes, because the task may have changed its arguments.

    Raises:
        TypeError, ValueError: the serializer cannot write the value.
    """
    return serializer.write({**serializer.read(body), "checkpoint": value})


def _without_content(error: Exception) -> str:
    """What an exception says, without the bytes that it is about."""
    if isinstance(error, UnicodeDecodeError):
        return f"{error.reason} at byte {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error)[:200]
