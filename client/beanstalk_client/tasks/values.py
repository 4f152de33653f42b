"""Writes and reads arguments that JSON lacks, as mappings that name their type:

    datetime, date, time    {"$type": "datetime", "value": "2027-01-01T06:00:00+01:00"}
    timedelta               {"$type": "timedelta", "value": 90.5}                            in seconds
    Decimal, UUID           {"$type": "Decimal", "value": "9.90"}
    members of enums        {"$type": "Colour", "value": "red"}
    dataclasses             {"$type": "Address", "value": {"street": "…"}}                   fields by name

A key of another mapping that begins with $ gets one more. A body without such values is plain JSON.

Must make no other types than these, and only those enums and dataclasses that the program names: in annotations of its
tasks, or with `Tasks(types=…)`. Any producer can write a body.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from beanstalk_client.tasks.message import JSON, Serializer

TYPE: Final = "$type"
VALUE: Final = "value"

WRITERS: Final[dict[type, Callable[[Any], Any]]] = {
    datetime.datetime: datetime.datetime.isoformat,  # before date, of which it is a subclass
    datetime.date: datetime.date.isoformat,
    datetime.time: datetime.time.isoformat,
    datetime.timedelta: datetime.timedelta.total_seconds,
    decimal.Decimal: str,
    uuid.UUID: str,
}

READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda seconds: datetime.timedelta(seconds=seconds),
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
}


class Values:
    """What a serializer for these types needs.

    Args:
        types: enums and dataclasses.
        functions: whose annotations have more of them; asked again when a type is unknown.

    Raises:
        TypeError: one of `types` is another thing.
    """

    def __init__(self, types: Iterable[type], functions: Callable[[], Iterable[Callable[..., Any]]]) -> None:
        self._functions = functions
        self._types: dict[str, type] = {}
        self._seen: set[Callable[..., Any]] = set()
        for each in types:
            if not _is_own(each):
                raise TypeError(f"types has {each!r}: must be dataclasses and enums")
            self._add(each)
        self.serializer: Serializer = Serializer(self._write, self._read)

    def _write(self, content: dict[str, Any]) -> bytes:
        try:
            body = JSON.write(content)
        except TypeError:  # it has values that JSON lacks
            body = b""
        return body if body and b'"$' not in body else JSON.write(self._tagged(content))

    def _read(self, body: bytes) -> Any:
        content = JSON.read(body)
        return self._untagged(content) if b'"$' in body else content

    def _tagged(self, value: Any) -> Any:
        if value is None or isinstance(value, (str, int, float)):  # also members of such enums: JSON has them
            return value
        if isinstance(value, enum.Enum):
            return {TYPE: self._name_of(type(value)), VALUE: self._tagged(value.value)}
        if isinstance(value, dict):
            return {f"${key}" if str(key).startswith("$") else key: self._tagged(each) for key, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._tagged(each) for each in value]
        for kind, write in WRITERS.items():
            if isinstance(value, kind):
                return {TYPE: kind.__name__, VALUE: write(value)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {each.name: self._tagged(getattr(value, each.name)) for each in _fields(type(value))}
            return {TYPE: self._name_of(type(value)), VALUE: fields}
        raise TypeError(
            f"{type(value).__name__} is not serializable: must be a JSON type, or a type that docs/workers.md lists"
        )

    def _untagged(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._untagged(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.keys() != {TYPE, VALUE}:
            return {key[1:] if key.startswith("$$") else key: self._untagged(each) for key, each in value.items()}
        name, inner = value[TYPE], value[VALUE]
        if name in READERS:
            return READERS[name](inner)
        kind = self._find(name)
        if issubclass(kind, enum.Enum):
            return kind(self._untagged(inner))
        return kind(**{each.name: self._untagged(inner[each.name]) for each in _fields(kind) if each.name in inner})

    def _name_of(self, kind: type) -> str:
        if self._find(kind.__qualname__) is not kind:
            raise TypeError(f"two types are named {kind.__qualname__}: rename one")
        return kind.__qualname__

    def _find(self, name: str) -> type:
        """The enum or dataclass with a name.

        Raises:
            TypeError: the program does not name it.
        """
        if name not in self._types:
            for function in self._functions():
                if function not in self._seen:
                    self._seen.add(function)
                    self._add_hints(function)
        if name not in self._types:
            raise TypeError(f"unknown type {name!r}: annotate a task with it, or list it in Tasks(types=…)")
        return self._types[name]

    def _add(self, kind: type) -> None:
        """Take a type, and the types of its fields."""
        name = kind.__qualname__
        if self._types.get(name) is kind:
            return
        if name in self._types or name in READERS:
            raise TypeError(f"two types are named {name}: rename one")
        self._types[name] = kind
        if dataclasses.is_dataclass(kind):
            self._add_hints(kind)

    def _add_hints(self, annotated: Any) -> None:
        try:
            hints = typing.get_type_hints(annotated)
        except Exception:  # a name that only type checkers import: no type of it can be read
            return
        for hint in hints.values():
            for kind in _types_in(hint):
                self._add(kind)


def _is_own(kind: Any) -> bool:
    return isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum))


def _types_in(hint: Any) -> Iterator[type]:
    """The enums and dataclasses that an annotation mentions: of list[Address] | None, Address."""
    if _is_own(hint):
        yield hint
    for each in typing.get_args(hint):
        yield from _types_in(each)


def _fields(kind: Any) -> list[dataclasses.Field[Any]]:
    return [each for each in dataclasses.fields(kind) if each.init]
