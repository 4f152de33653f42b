"""What servers answer as YAML, as values: statistics, lists of names, pages of entries.

Only the little YAML that beanstalk servers write: `key: value` lines, `- name` lines, and entries as flow mappings on
one line each. Anything else is a ValueError. Must never do any I/O.
"""

from __future__ import annotations

import re
from typing import Any

Statistics = dict[str, Any]
"""What a server tells of itself, a tube or a job; the package calls it `Stats`. Numbers are int, all else is text.

Example:
    stats: Stats = queue.stats_tube("mail")
    print(stats["current-jobs-ready"])
"""

HEAD = "---\n"

FIELD = re.compile(r'([-a-z0-9]+): (?:"((?:[^"\\]|\\.)*)"|(\d+(?:\.\d+)?))(?:, |$)')
"""A key of an entry, and its text or its number."""

ESCAPED = re.compile(r"\\(.)")


def read_statistics(data: bytes) -> Statistics:
    """The mapping that `stats`, `stats-job` and `stats-tube` answer. Whole numbers are int, all else is text."""
    found: Statistics = {}
    for line in _lines(data):
        key, colon, value = line.partition(":")
        if not colon or value[:1] not in ("", " "):
            raise ValueError(f"bad statistics: {line!r}")
        value = value[1:]
        found[key] = int(value) if value.isascii() and value.isdigit() else _unquoted(value)
    return found


def read_names(data: bytes) -> list[str]:
    """The names that `list-tubes` and `list-tubes-watched` answer."""
    names = []
    for line in _lines(data):
        if not line.startswith("- "):
            raise ValueError(f"bad name: {line!r}")
        names.append(_unquoted(line[2:]))
    return names


def read_entries(data: bytes) -> list[Statistics]:
    """The entries that `list-clients` answers."""
    return [_entry(line) for line in _lines(data) if line != "[]"]


def read_page(data: bytes) -> tuple[str, list[Statistics]]:
    """Where the page behind this one begins ("" if there is none), and the entries that `list-jobs` or `stats-tubes`
    answers.
    """
    following, _, *entries = _lines(data)
    if not (following.startswith('next: "') and following.endswith('"')):
        raise ValueError(f"bad page: {following!r}")
    return following[len('next: "') : -1], [_entry(line) for line in entries]


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8")
    if not text.startswith(HEAD):
        raise ValueError("not the YAML of a beanstalk server")
    return text[len(HEAD) :].removesuffix("\n").split("\n") if len(text) > len(HEAD) else []


def _entry(line: str) -> Statistics:
    if not (line.startswith("- {") and line.endswith("}")):
        raise ValueError(f"bad entry: {line!r}")
    position, end = len("- {"), len(line) - 1
    entry: Statistics = {}
    while position < end:
        found = FIELD.match(line, position, end)
        if found is None:
            raise ValueError(f"bad entry: {line!r}")
        key, text, number = found.groups()
        if number is None:
            entry[key] = ESCAPED.sub(r"\1", text)
        else:
            entry[key] = int(number) if number.isdigit() else number
        position = found.end()
    return entry


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
