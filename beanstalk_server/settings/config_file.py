"""Reads a config file: from TOML to the values of options, to listeners, users and tubes, with all that is wrong.

Keys and their kinds come from the fields of `settings/options.py`; docs/config.md describes them.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, Final, TypeVar

from beanstalk_server.settings import kinds
from beanstalk_server.settings.declaration import ConfigError, Mistake, Option, meant_by
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

_KEYS: Final = {LISTENER: LISTENER_KEYS, USER: USER_KEYS, TUBE: TUBE_KEYS}

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,60}")

_Section = TypeVar("_Section", ListenerConfig, UserConfig, TubeConfig)


@dataclass
class ConfigFile:
    """What a config file says. Only what is good is here; the rest is in `mistakes`."""

    given: set[str] = field(default_factory=set)
    """The names of the options that it sets, be it well or not."""
    values: dict[str, object] = field(default_factory=dict)
    """The values of options, by name."""
    listeners: dict[str, ListenerConfig] = field(default_factory=dict)
    """The sections, by what messages call them: `listener 2`."""
    users: list[UserConfig] = field(default_factory=list)
    tubes: list[TubeConfig] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """The names of all users, also of those with mistakes."""
    has_listeners: bool = False
    """Whether there is a `[[listener]]`, be it good or not."""
    mistakes: list[Mistake] = field(default_factory=list)
    """What is wrong; the places do not name the file."""


def read(path: str) -> ConfigFile:
    """Read a config file. Paths in it are relative to its directory.

    Raises:
        ConfigError: it cannot be read, or is not TOML; the message names the file and, if it can, the line.
    """
    table = _parse(path, _text(path))
    found = ConfigFile()
    directory = os.path.dirname(path)
    listeners, users, tubes = [_sections(name, table, found) for name in _KEYS]
    found.has_listeners = bool(listeners)
    found.given = {each.name for each in OPTIONS if each.key in table}
    found.values = _values("", table, OPTIONS, directory, found)
    for number, section in enumerate(listeners, 1):
        label = f"{LISTENER} {number}"
        listener = _section(ListenerConfig, label, section, LISTENER_KEYS, directory, found)
        if listener is not None:
            found.listeners[label] = listener
    for number, section in enumerate(users, 1):
        name = section.get("name")
        label = f"{USER} {number}"
        if kinds.NAME.fits(name):
            label = f'{USER} "{name}"'
            found.names.add(str(name))
        user = _section(UserConfig, label, section, USER_KEYS, directory, found)
        found.users += [] if user is None else [user]
    for number, section in enumerate(tubes, 1):
        match = section.get("match")
        is_bad = _of(TUBE_KEYS, "match").kind.mistakes(match)
        label = f"{TUBE} {number}" if is_bad else label_of(match if isinstance(match, list) else [str(match)])
        tube = _section(TubeConfig, label, section, TUBE_KEYS, directory, found)
        found.tubes += [] if tube is None else [tube]
    return found


def _text(path: str) -> str:
    try:
        content = read_file(path)
    except (OSError, ValueError) as error:
        raise ConfigError(Mistake(path, f"cannot be read: {getattr(error, 'strerror', error)}")) from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(Mistake(path, TOO_LONG))
    if not content:  # cut off while it is written, or a pipe that was read before: the server would be an open one
        raise ConfigError(Mistake(path, "empty: must have a line, be it a comment"))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(Mistake(f"{path}:{line}", "not UTF-8, which TOML is written in")) from None


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
        hint = f"; the option --user is `{_of(OPTIONS, 'user').key}` here" if _sets_user(text) else ""
        raise ConfigError(Mistake(place, f"not TOML: {said}{hint}")) from None


def _sets_user(text: str) -> bool:
    """Whether a text tries to set the option --user beside the sections of the same name."""
    return re.search(r"^[ \t]*user[ \t]*=", text, re.MULTILINE) is not None and f"[[{USER}]]" in text


def _sections(name: str, table: dict[str, Any], found: ConfigFile) -> list[dict[str, Any]]:
    """Take the sections of a name from a table; none, and a mistake, if there is anything else.

    An empty list is a mistake, too: without a [[listener]], the server would have an open one.
    """
    if name not in table:
        return []
    value = table.pop(name)
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return value
    hint = f"; the option --{name} is `{_of(OPTIONS, 'user').key}` here" if name == USER else ""
    said = "[...]" if isinstance(value, dict) else kinds.ADDRESS.shown(value)
    found.mistakes.append(Mistake(name, f"bad value {said}: must be sections that begin with [[{name}]]{hint}"))
    return []


def _section(
    kind: type[_Section],
    label: str,
    section: dict[str, Any],
    keys: Sequence[Option],
    directory: str,
    found: ConfigFile,
) -> _Section | None:
    before = len(found.mistakes)
    values = _values(label, section, keys, directory, found)
    for each in keys:
        if each.default is MISSING and each.key not in section:
            found.mistakes.append(Mistake(f"{label}: {each.key}", f"missing: must be {each.kind.typed}"))
    wrong = found.mistakes[before:]
    if any(each.default is MISSING and each.name not in values for each in keys):
        return None
    try:
        made = kind(**values)
    except ConfigError as error:
        bad = {mistake.place.rpartition(": ")[2] for mistake in wrong}  # what needs one of these may be good with it
        found.mistakes += [each for each in error.within(label) if not any(key in each.said for key in bad)]
        return None
    return None if wrong else made


def _values(
    label: str, table: dict[str, Any], keys: Sequence[Option], directory: str, found: ConfigFile
) -> dict[str, Any]:
    """The good values of a table, by name."""
    values = {}
    known = {each.key: each for each in keys}
    for key, value in table.items():
        place = f"{label}: {_shown_key(key)}" if label else _shown_key(key)
        if key not in known:
            found.mistakes.append(Mistake(place, f"no such key{_hint(key, known, label)}"))
            continue
        kind = known[key].kind
        wrong = kind.mistakes(value)
        if value == "" and not wrong:  # of a template that was not filled in, say: a listener would be an open one
            wrong = [f"bad value '': must be {kind.typed}, or be left out"]
        found.mistakes += [Mistake(place, said) for said in wrong]
        if not wrong:
            values[known[key].name] = kind.take(kind.located(value, directory))
    return values


def _shown_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else repr(key[:60])


def _hint(key: str, known: Iterable[str], label: str) -> str:
    """Where an unknown key may belong, or what may be meant."""
    if label and any(each.key == key for each in OPTIONS):
        return ": it is an option, and must stand before the first [[...]]"
    for name, keys in _KEYS.items():
        if not label.startswith(name) and any(each.key == key for each in keys):
            return f": it must stand in a [[{name}]]"
    meant = key[:60].lower().replace("_", "-")
    if not label:
        for name in _KEYS:
            if meant in (name, name + "s"):
                return f": did you mean [[{name}]]?"
    near = meant_by(meant, known)
    return f": did you mean {near}?" if near else f": must be one of {', '.join(known)}"


def _of(keys: Sequence[Option], name: str) -> Option:
    return next(each for each in keys if each.name == name)
