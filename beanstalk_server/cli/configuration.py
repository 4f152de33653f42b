"""Puts a configuration together from options and a config file, and looks at the files that it names.

Finds every mistake before it gives up, so that a person needs one attempt and not five. What has no config file, no
certificates and no tokens needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from beanstalk_server.settings import token_file
from beanstalk_server.settings.declaration import ConfigError, Mistake
from beanstalk_server.settings.files import read_file
from beanstalk_server.settings.options import OF_ONE_LISTENER, OPTIONS, Config, beside_listeners, option
from beanstalk_server.settings.sections import ListenerConfig, TubeConfig, UserConfig, of_listeners, of_users
from beanstalk_server.settings.system import missing

TLS_FILES: Final = ("tls_cert", "tls_key", "tls_client_ca")


def put_together(
    path: str,
    given: Mapping[str, Any],
    sources: Mapping[str, str],
    mistakes: Sequence[Mistake],
    warn: Callable[[str], object],
    *,
    checks_system: bool,
) -> Config:
    """The configuration of a config file and of options, which go over it.

    Args:
        path: the config file, or "".
        given: the values that the command line and the environment give, by the names of the options.
        sources: the flag or the variable that gives each option, also those whose values are bad.
        mistakes: what is wrong with these.
        warn: is told what is wrong with files that can be used all the same.
        checks_system: look also for what a server would miss only once it has opened its sockets.

    Raises:
        ConfigError: something is wrong; the message has all of it.
    """
    mistakes = list(mistakes)
    values = dict(given)
    places = dict(sources)
    sections: dict[str, ListenerConfig] = {}
    users: list[UserConfig] = []
    tubes: list[TubeConfig] = []
    has_sections = False
    if path:
        from beanstalk_server.settings import config_file  # with the parser of TOML

        try:
            file = config_file.read(path)
        except ConfigError as error:
            raise ConfigError(*mistakes, *error.mistakes) from None
        mistakes += _in_file(path, file.mistakes)
        values = file.values | values
        places = {each.name: f"{path}: {each.key}" for each in OPTIONS if each.name in file.given} | places
        sections, users, has_sections = file.listeners, file.users, file.has_listeners
        tubes = file.tubes
        mistakes += _in_file(path, of_listeners(sections, file.names))
    if has_sections:
        mistakes += _beside_sections(path, values, sources, places)
        listeners = sections
    else:
        listeners, found = _one_listener(values, places)
        mistakes += found
    everybody = list(users)
    if "token_file" in values:
        try:
            everybody += token_file.read(values["token_file"])
        except ConfigError as error:
            mistakes += _renamed(error.mistakes, places)
    mistakes += _in_file(path, of_users(everybody))
    for label, listener in listeners.items():
        found = _bad_files(listener, warn)
        if label:
            mistakes += _in_file(path, ConfigError(*found).within(label))
        else:
            mistakes += _renamed([Mistake(option(key.replace("-", "_")), said) for key, said in found], places)
    if checks_system:
        mistakes += _renamed(missing(values, listeners.values()), places)
    if mistakes:
        raise ConfigError(*mistakes)
    return Config(
        **values,
        listeners=tuple(sections.values()),
        users=tuple(users),
        tubes=tuple(tubes),
        file=path,
        sources=places,
    )


def _in_file(path: str, mistakes: Sequence[Mistake]) -> list[Mistake]:
    return [Mistake(f"{path}: {place}" if path else place, said) for place, said in mistakes]


def _renamed(mistakes: Sequence[Mistake], places: Mapping[str, str]) -> list[Mistake]:
    """Mistakes of options, with the place where each was given instead of its flags."""
    given = {option(name): place for name, place in places.items()}
    return [Mistake(given.get(place, place), said) for place, said in mistakes]


def _beside_sections(
    path: str, values: dict[str, Any], sources: Mapping[str, str], places: Mapping[str, str]
) -> list[Mistake]:
    """Take the options that describe a listener from the values: none may stand beside a [[listener]]."""
    mistakes = []
    for name in OF_ONE_LISTENER:
        if name in values:
            said = beside_listeners(values.pop(name))
            place, said = (f"{path}: listener", f"{sources[name]}: {said}") if name in sources else (places[name], said)
            mistakes.append(Mistake(place, said))
    return mistakes


def _one_listener(
    values: Mapping[str, Any], places: Mapping[str, str]
) -> tuple[dict[str, ListenerConfig], list[Mistake]]:
    """The listener that the options describe, with "" as its name, unless one of them is bad."""
    if any(name in places and name not in values for name in OF_ONE_LISTENER):
        return {}, []
    try:
        config = Config(**{name: values[name] for name in OF_ONE_LISTENER if name in values}, sources=places)
    except ConfigError as error:
        return {}, list(error.mistakes)
    return {"": config.all_listeners()[0]}, []


def _bad_files(listener: ListenerConfig, warn: Callable[[str], object]) -> list[Mistake]:
    """What is wrong with the certificates and keys of a listener; the places are keys."""
    mistakes = []
    for name in TLS_FILES:
        path = getattr(listener, name)
        if path:
            try:
                read_file(path)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", error)
                mistakes.append(
                    Mistake(name.replace("_", "-"), f"{path!r} cannot be read: {reason}: must be a PEM file")
                )
    if listener.tls_cert and not mistakes:
        from beanstalk_server.server.front.tls_context import make_context
        from beanstalk_server.server.start_error import StartError

        try:
            make_context(listener, warn)
        except StartError as error:
            key, _, said = str(error).partition(" ")
            mistakes.append(Mistake(key, said))
    return mistakes
