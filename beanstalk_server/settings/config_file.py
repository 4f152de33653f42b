"""Reads a config file: from TOML to the values of options, listeners, users and tubes, with all mistakes.

Keys and their kinds come from the fields of `settings/options.py`; docs/config.md describes them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import MISSING
from typing import Any, Final

from beanstalk_server.settings import kinds
from beanstalk_server.settings.declaration import ConfigError, Mistake, Option, meant_by, within, without_bad
from beanstalk_server.settings.files import LARGEST_FILE, TOO_LONG, read_file
from beanstalk_server.settings.options import OPTIONS
from beanstalk_server.settings.sections import (
    LISTENER_KEYS,
    TUBE_KEYS,
    USER_KEYS,
    ListenerConfig,
    TubeConfig,
    UserConfig,
    label_of,
)

LISTENER: Final = "listener"
USER: Final = "user"
TUBE: Final = "tube"

_SECTIONS: Final[dict[str, tuple[type, Sequence[Option]]]] = {
    LISTENER: (ListenerConfig, LISTENER_KEYS),
    USER: (UserConfig, USER_KEYS),
    TUBE: (TubeConfig, TUBE_KEYS),
}

_STAND_IN: Final = ListenerConfig(address="localhost:0")
"""Takes the place of a listener with mistakes, so that messages number the others correctly."""

_RUN_AS: Final = "; the option --user is `run-as` here"

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")


def read(path: str, mistakes: list[Mistake]) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a config file: the values that are good, and the place of each option that it sets, by name.

    The values are arguments of `Config`. Paths in the file are relative to its directory.

    Args:
        mistakes: gets the mistakes in the file.

    Raises:
        ConfigError: it cannot be read, or is not TOML; the message names the file and, if it can, the line.
    """
    table = _parse(path, _text(path))
    reader = _Reader(os.path.dirname(path))
    sections = {name: reader.take_sections(name, table) for name in _SECTIONS}
    values = reader.values("", table, OPTIONS)
    for name, found in sections.items():
        made = [reader.section(name, number, section) for number, section in enumerate(found, 1)]
        values[f"{name}s"] = tuple([each for each in made if each is not None])
    mistakes += within(path, reader.mistakes)
    return values, {each.name: f"{path}: {each.key}" for each in OPTIONS if each.key in table}


def _text(path: str) -> str:
    try:
        content = read_file(path)
    except (OSError, ValueError) as error:
        raise ConfigError(Mistake(path, f"cannot be read: {getattr(error, 'strerror', error)}")) from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(Mistake(path, TOO_LONG))
    if not content:  # cut off while it is written, or a pipe that was read before: the server would be an open one
        raise ConfigError(Mistake(path, "empty: must have at least one line, such as a comment"))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(Mistake(f"{path}:{line}", "not UTF-8: a TOML file must be in UTF-8")) from None


def _parse(path: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # the former also for a number with too many digits
        said = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        found = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", said)
        place = path
        if found is not None:
            place = f"{path}:{found[1] or text.count(chr(10)) + 1}"
            said = said[: found.start()]
        sets_user = re.search(r"^[ \t]*user[ \t]*=", text, re.MULTILINE) is not None and f"[[{USER}]]" in text
        raise ConfigError(Mistake(place, f"not TOML: {said}{_RUN_AS if sets_user else ''}")) from None


class _Reader:
    """Takes values from the tables of a file.

    Args:
        directory: paths in the file are relative to it.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.mistakes: list[Mistake] = []
        """Their places do not name the file."""

    def take_sections(self, name: str, table: dict[str, Any]) -> list[dict[str, Any]]:
        """Take the sections of a name from a table; none, and a mistake, if it is anything else.

        An empty list is a mistake, too: without a [[listener]], the server would have an open one.
        """
        value = table.pop(name, None)
        if value is None or (isinstance(value, list) and value and all(isinstance(each, dict) for each in value)):
            return value or []
        shown = "[...]" if isinstance(value, dict) else kinds.ADDRESS.shown(value)
        hint = _RUN_AS if name == USER else ""
        self.mistakes.append(Mistake(name, f"bad value {shown}: must be sections that begin with [[{name}]]{hint}"))
        return []

    def section(self, name: str, number: int, section: dict[str, Any]) -> object:
        """Make a section of its good values; None, or a stand-in for a listener, if this is not possible."""
        kind, keys = _SECTIONS[name]
        label = _label(name, number, section)
        before = len(self.mistakes)
        values = self.values(label, section, keys)
        needed = [each for each in keys if each.default is MISSING]
        self.mistakes += [
            Mistake(f"{label}: {each.key}", f"missing: must be {each.kind.typed}")
            for each in needed
            if each.key not in section
        ]
        try:
            if all(each.name in values for each in needed):
                return kind(**values)
        except ConfigError as error:
            bad = [place.rpartition(": ")[2] for place, _ in self.mistakes[before:]]
            self.mistakes += without_bad(within(label, error.mistakes), bad)
        return _STAND_IN if name == LISTENER else None

    def values(self, label: str, table: dict[str, Any], keys: Sequence[Option]) -> dict[str, Any]:
        """The good values of a table, by name."""
        values = {}
        known = {each.key: each for each in keys}
        for key, value in table.items():
            shown = key if _BARE_KEY.fullmatch(key) else repr(key[:60])
            place = f"{label}: {shown}" if label else shown
            if key not in known:
                self.mistakes.append(Mistake(place, f"no such key{_hint(key, known, label)}"))
                continue
            kind = known[key].kind
            wrong = kind.mistakes(kind.located(value, self._directory))
            if value == "" and not wrong:  # as of a template that was not filled in: a listener would be an open one
                wrong = [f"bad value '': must be {kind.typed}, or be left out"]
            self.mistakes += [Mistake(place, said) for said in wrong]
            if not wrong:
                values[known[key].name] = kind.take(kind.located(value, self._directory))
        return values


def _label(name: str, number: int, section: dict[str, Any]) -> str:
    """What messages call a section: by its name or patterns, if these are good."""
    if name == USER and not kinds.NAME.mistakes(section.get("name")):
        return f'{USER} "{section["name"]}"'
    match = section.get("match")
    if name == TUBE and not TUBE_KEYS[0].kind.mistakes(match):
        return label_of(match if isinstance(match, list) else [str(match)])
    return f"{name} {number}"


def _hint(key: str, known: Iterable[str], label: str) -> str:
    """The place where an unknown key belongs, or the key that is probably meant."""
    if label and any(each.key == key for each in OPTIONS):
        return ": this is an option: it must come before the first [[...]]"
    for name, (_, keys) in _SECTIONS.items():
        if not label.startswith(name) and any(each.key == key for each in keys):
            return f": must be in a [[{name}]] section"
    meant = key[:60].lower().replace("_", "-")
    if not label and meant.removesuffix("s") in _SECTIONS:
        return f": did you mean [[{meant.removesuffix('s')}]]?"
    near = meant_by(meant, known)
    return f": did you mean {near}?" if near else f": must be one of {', '.join(known)}"
