"""Decodes the body of a job for display: a call of a task queue, JSON, text or bytes.

Decoders are pure functions from bytes to a call, or None. None of them runs, imports or unpickles what a body names.

    beanstalk_client.tasks, Django    {"task": "shop.send_mail", "args": [17], "kwargs": {}}
    Celery                            {"headers": {"task": …}, "body": base64 of [args, kwargs, embedded], …}
    taskiq                            {"task_name": …, "args": […], "kwargs": {…}}
    Laravel                           {"displayName": …, "data": {"command": a serialized object of PHP}}
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

MAX_SHOWN: Final = 65_536
"""Bytes of a body that are shown; the rest can be downloaded."""

MAX_LINES: Final = 2000
"""Lines of a body that are shown."""

MAX_DECODED: Final = 262_144
"""Bytes of the largest body that decoders read: hostile JSON of this size takes 40 ms."""

MAX_SUMMARY: Final = 120
"""Characters of a body in one line."""

HEX_ROW: Final = 16
HEX_SHOWN: Final = 4096

MAX_DEPTH: Final = 32
MAX_VALUES: Final = 10_000
"""Bounds of a serialized object of PHP."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments.

    Attributes:
        source: what has written the body: "beanstalk", "Celery", "taskiq" or "Laravel".
        args: by position.
        kwargs: by name.
        notes: what else the body says, by name.
    """

    source: str
    function: str
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker has said of a job that it has buried (tasks/failure.py)."""

    job: int
    tube: str
    task: str
    error: str
    tries: int
    buried: str
    worker: str
    traceback: list[str]


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it is shown.

    Attributes:
        kind: "empty", "json", "text" or "binary".
        lines: JSON indented, the text, or rows of hexadecimal digits.
        size: in bytes.
        is_cut: whether there is more of it than `lines` have.
    """

    kind: str
    lines: list[str]
    is_cut: bool
    size: int
    call: Call | None
    report: Report | None


def describe(body: bytes) -> Body:
    """What a body is."""
    call, report, value = None, None, None
    if len(body) <= MAX_DECODED:
        value = _json(body)
        call, report = call_in(value), report_in(value)
    if not body:
        return Body("empty", [], False, 0, None, None)
    if isinstance(value, (dict, list)) and (text := _indented(value)) is not None:
        return Body("json", *_lines(text), call=call, report=report, size=len(body))
    plain = _text(body)
    if plain is None:
        return Body("binary", list(hex_rows(body[:HEX_SHOWN])), len(body) > HEX_SHOWN, len(body), call, report)
    return Body("text", *_lines(plain), call=call, report=report, size=len(body))


def _lines(text: str) -> tuple[list[str], bool]:
    """The lines of a text that are shown, and whether there are more."""
    *lines, rest = text[:MAX_SHOWN].split("\n", MAX_LINES)
    if len(lines) < MAX_LINES:
        return [*lines, rest], len(text) > MAX_SHOWN
    return lines, True


def summary(body: bytes) -> str:
    """A body in one line: the function and its arguments, or how it begins."""
    value = _json(body)
    call, report = call_in(value), report_in(value)
    if report is not None:
        return f"report on job {report.job}: {report.error}"[:MAX_SUMMARY]
    if call is not None:
        args = [in_json(each) for each in call.args] + [f"{name}={in_json(each)}" for name, each in call.kwargs.items()]
        return f"{call.function}({', '.join(args)})"[:MAX_SUMMARY]
    text = _text(body)
    return body[:24].hex(" ") if text is None else " ".join(text[:MAX_SUMMARY].split())


def in_json(value: Any) -> str:
    """A value in JSON on one line, or what stands for one that is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "(nested too deeply)"


def _indented(value: Any) -> str | None:
    """A value in JSON on several lines, not much longer than what is shown; None if it is nested too deeply.

    Indentation can make a body a thousand times as long, so the rest is not made.
    """
    parts: list[str] = []
    size = 0
    try:
        for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
            parts.append(part)
            size += len(part)
            if size > MAX_SHOWN:
                break
    except RecursionError:
        return None
    return "".join(parts)


def call_of(body: bytes) -> Call | None:
    """The call that a body asks for, or None."""
    return call_in(_json(body)) if len(body) <= MAX_DECODED else None


def report_of(body: bytes) -> Report | None:
    """The report of a worker that a body is, or None."""
    return report_in(_json(body)) if len(body) <= MAX_DECODED else None


def hex_rows(body: bytes) -> Iterator[str]:
    """Rows of an offset, hexadecimal digits, and what of them is ASCII."""
    for offset in range(0, len(body), HEX_ROW):
        row = body[offset : offset + HEX_ROW]
        digits = row.hex(" ").ljust(3 * HEX_ROW - 1)
        ascii_ = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"{offset:08x}  {digits}  {ascii_}"


def call_in(value: Any) -> Call | None:
    """The call in what JSON says, or None."""
    if not isinstance(value, dict):
        return None
    for decode in (_beanstalk, _celery, _taskiq, _laravel):
        call = decode(value)
        if call is not None:
            return call
    return None


def report_in(value: Any) -> Report | None:
    """The report in what JSON says, or None."""
    if not (isinstance(value, dict) and type(value.get("job")) is int and "error" in value and "buried" in value):
        return None
    trace = value.get("traceback")
    tries = value.get("tries")
    return Report(
        job=value["job"],
        tube=str(value.get("tube", "")),
        task=str(value.get("task", "")),
        error=str(value["error"]),
        tries=tries if type(tries) is int else 0,
        buried=str(value["buried"]),
        worker=str(value.get("worker") or value.get("sender") or ""),
        traceback=[str(line) for line in trace] if isinstance(trace, list) else [],
    )


def _json(body: bytes) -> Any:
    """What the JSON of a body says; None if it is none."""
    if body[:1] not in b" \t\r\n{[":
        return None
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        return None


def _text(body: bytes) -> str | None:
    """A body as text; None if it is none: not UTF-8, or with bytes that no text has. What is cut may end in the middle
    of a character.
    """
    head = body[: 4 * MAX_SHOWN]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) == len(body) or error.start < len(head) - 3:
            return None
        text = head[: error.start].decode()
    return None if "\0" in text else text


def _beanstalk(value: dict[str, Any]) -> Call | None:
    task, args, kwargs = value.get("task"), value.get("args") or [], value.get("kwargs") or {}
    if not isinstance(task, str) or "buried" in value or not isinstance(args, list) or not isinstance(kwargs, dict):
        return None
    meta = value.get("meta")
    return Call("beanstalk", task, args, kwargs, meta if isinstance(meta, dict) else {})


def _celery(value: dict[str, Any]) -> Call | None:
    headers, body, properties = value.get("headers"), value.get("body"), value.get("properties")
    if not (isinstance(headers, dict) and isinstance(headers.get("task"), str) and isinstance(properties, dict)):
        return None
    notes = {
        name: headers[name] for name in ("id", "eta", "expires", "retries", "origin", "root_id") if headers.get(name)
    }
    content = body
    if isinstance(body, str) and properties.get("body_encoding") == "base64":
        try:
            content = base64.b64decode(body, validate=True).decode()
        except (binascii.Error, ValueError):
            content = None
    if isinstance(content, str) and "json" in str(value.get("content-type", "")):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            content = None
    if (
        isinstance(content, list)
        and len(content) >= 2
        and isinstance(content[0], list)
        and isinstance(content[1], dict)
    ):
        return Call("Celery", headers["task"], content[0], content[1], notes)
    if headers.get("argsrepr") or headers.get("kwargsrepr"):  # pickled: what the producer says of it is all there is
        notes |= {"args": headers.get("argsrepr"), "kwargs": headers.get("kwargsrepr")}
    return Call("Celery", headers["task"], [], {}, notes)


def _taskiq(value: dict[str, Any]) -> Call | None:
    name, args, kwargs = value.get("task_name"), value.get("args"), value.get("kwargs")
    if not (isinstance(name, str) and isinstance(args, list) and isinstance(kwargs, dict)):
        return None
    labels = value.get("labels")
    notes = dict(labels) if isinstance(labels, dict) else {}
    return Call("taskiq", name, args, kwargs, {"task_id": value.get("task_id"), **notes})


def _laravel(value: dict[str, Any]) -> Call | None:
    data, name = value.get("data"), value.get("displayName") or value.get("job")
    if not (isinstance(name, str) and "data" in value and ("job" in value or "displayName" in value)):
        return None
    notes = {name: value[name] for name in ("uuid", "attempts", "maxTries", "timeout", "backoff") if value.get(name)}
    command = data.get("command") if isinstance(data, dict) else None
    if isinstance(command, str):
        try:
            properties = read_php(command.encode())
        except ValueError:
            return Call("Laravel", name, [], {}, notes | {"command": command})
        if isinstance(properties, dict):
            shown = {key: item for key, item in properties.items() if item is not None}
            return Call("Laravel", name, [], shown, notes)
        return Call("Laravel", name, [properties], {}, notes)
    if isinstance(data, dict):
        return Call("Laravel", name, [], data, notes)
    return Call("Laravel", name, data if isinstance(data, list) else [data], {}, notes)


# ------------------------------------------------------------------------------------------- PHP's serialize()

_SCALAR: Final = re.compile(rb"N;|b:([01]);|i:(-?\d{1,20});|d:([^;]{1,40});|[rR]:(\d{1,9});")
_LENGTH: Final = re.compile(rb"(?:([saOC]):(\d{1,9}):|(E):(\d{1,9}):)")


def read_php(data: bytes) -> Any:
    """What PHP's serialize() has written: an object is a mapping of its properties, without their visibility.

    Raises:
        ValueError: it is malformed, too deep or too large.
    """
    reader = _Php(data)
    value = reader.read(0)
    if reader.position != len(data):
        raise ValueError("unexpected bytes after the value")
    return value


class _Php:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._values = 0

    def read(self, depth: int) -> Any:
        self._values += 1
        if depth > MAX_DEPTH or self._values > MAX_VALUES:
            raise ValueError("nested too deeply, or too many values")
        found = _SCALAR.match(self._data, self.position)
        if found is not None:
            self.position = found.end()
            truth, number, decimal, reference = found.groups()
            if truth is not None:
                return truth == b"1"
            if number is not None:
                return int(number)
            if reference is not None:
                return f"(value {int(reference)})"
            return None if decimal is None else float(decimal)
        found = _LENGTH.match(self._data, self.position)
        if found is None:
            raise ValueError(f"expected a value at byte {self.position}")
        kind, length = (found[1] or found[3]), int(found[2] or found[4])
        self.position = found.end()
        if kind in b"sE":
            text = self._quoted(length)
            self._skip(b";")
            return text
        if kind == b"C":
            raise ValueError("an object with its own serialization")
        name = ""
        if kind == b"O":
            name = self._quoted(length)
            self._skip(b":")
            found = re.compile(rb"(\d{1,9}):").match(self._data, self.position)
            if found is None:
                raise ValueError("an object without the number of its properties")
            length, self.position = int(found[1]), found.end()
        self._skip(b"{")
        members: dict[str, Any] = {}
        for _ in range(length):
            key = str(self.read(depth + 1)).rpartition("\0")[2]  # "\0*\0name" is protected, "\0Class\0name" private
            members[key] = self.read(depth + 1)
        self._skip(b"}")
        if kind == b"a" and list(members) == [str(number) for number in range(len(members))]:
            return list(members.values())
        return {"class": name, **members} if name and depth else members

    def _quoted(self, length: int) -> str:
        self._skip(b'"')
        end = self.position + length
        text = self._data[self.position : end].decode("utf-8", "backslashreplace")
        self.position = end
        self._skip(b'"')
        return text

    def _skip(self, expected: bytes) -> None:
        if not self._data.startswith(expected, self.position):
            raise ValueError(f"expected {expected!r} at byte {self.position}")
        self.position += len(expected)
