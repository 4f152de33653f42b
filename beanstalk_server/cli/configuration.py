"""Makes a configuration of options and a config file, and checks the files that it names.

Finds every mistake before it fails, so that one attempt shows them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from beanstalk_server.settings.declaration import ConfigError, Mistake, within, without_bad
from beanstalk_server.settings.options import OF_ONE_LISTENER, Config, option
from beanstalk_server.settings.sections import ListenerConfig, of_users

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
    """The configuration of a config file and of options, which override it.

    Args:
        path: the config file, or "".
        given: the values that the command line and the environment give, by the names of the options.
        sources: the flag or the variable that gives each option, also those whose values are bad.
        mistakes: those in these values.
        warn: is called with each fault of a file that can be used all the same.
        checks_system: also check what a server would miss only after it has opened its sockets.

    Raises:
        ConfigError: the message has all mistakes.
    """
    found = list(mistakes)
    values, places = dict(given), dict(sources)
    if path:
        from beanstalk_server.settings import config_file  # with the parser of TOML

        try:
            in_file, set_there = config_file.read(path, found)
        except ConfigError as error:
            raise ConfigError(*found, *error.mistakes) from None
        values, places = in_file | values, set_there | places

    def place(name: str) -> str:
        return places.get(name) or option(name)

    config = None
    try:
        config = Config(**values, file=path, sources=places)
    except ConfigError as error:
        bad = [name.replace("_", "-") for name in TLS_FILES if name in places and name not in values]
        found += without_bad(error.mistakes, bad)
    listeners: Sequence[ListenerConfig] = values.get("listeners", ()) or _one_listener(values)
    if "token_file" in values and not values.get("listeners"):
        from beanstalk_server.settings import token_file

        try:
            users = token_file.read(values["token_file"], place("token_file"))
            found += within(path, of_users((*values.get("users", ()), *users)))
        except ConfigError as error:
            found += error.mistakes
    for number, listener in enumerate(listeners, 1):
        bad_files = _bad_files(listener, warn)
        if values.get("listeners"):
            found += within(f"{path}: listener {number}", bad_files)
        else:
            found += [Mistake(place(key.replace("-", "_")), said) for key, said in bad_files]
    if checks_system:
        from beanstalk_server.settings.system import missing

        found += missing(values, listeners, place)
    if found or config is None:
        raise ConfigError(*dict.fromkeys(found))
    return config


def _one_listener(values: Mapping[str, Any]) -> tuple[ListenerConfig, ...]:
    """The listener that the options describe, if it can be made."""
    try:
        return Config(**{name: values[name] for name in OF_ONE_LISTENER if name in values}).all_listeners()
    except ConfigError:
        return ()


def _bad_files(listener: ListenerConfig, warn: Callable[[str], object]) -> list[Mistake]:
    """The mistakes in the certificates and keys of a listener; the places are keys."""
    paths = [(name.replace("_", "-"), getattr(listener, name)) for name in TLS_FILES if getattr(listener, name)]
    if not paths:
        return []
    from beanstalk_server.server.front.tls_context import make_context
    from beanstalk_server.server.start_error import StartError
    from beanstalk_server.settings.files import read_file

    mistakes = []
    for key, path in paths:
        try:
            read_file(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", error)
            mistakes.append(Mistake(key, f"{path!r} cannot be read: {reason}: must be a PEM file"))
    if not mistakes:
        try:
            make_context(listener, warn)
        except StartError as error:
            key, _, said = str(error).partition(" ")
            mistakes.append(Mistake(key, said))
    return mistakes
