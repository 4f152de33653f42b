"""Checks what a configuration needs of this machine: libraries, services, users and files.

Must never import a library to check that it is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from beanstalk_server.settings.declaration import Mistake
from beanstalk_server.settings.engine_url import read_url
from beanstalk_server.settings.files import read_file, refuse_if_public
from beanstalk_server.settings.options import NO_SERVICE, option
from beanstalk_server.settings.sections import HTTP, ListenerConfig

NO_H11: Final = "needs h11, which is not installed: pip install '.[http]' in a clone of beanstalk-server"


def missing(
    values: Mapping[str, Any], listeners: Collection[ListenerConfig], place: Callable[[str], str] = option
) -> list[Mistake]:
    """The things that a server would miss only after it has opened its sockets.

    Args:
        values: of options, by name.
        place: what messages call an option.
    """
    http, user, binlog = values.get("http"), values.get("user"), values.get("binlog")
    of_option = [ListenerConfig(address=http, protocol=HTTP)] if http else []
    mistakes = [Mistake("", said) for said in http_mistakes([*listeners, *of_option])]
    for each in listeners:
        if isinstance(each.port, str):
            try:
                socket.getservbyname(each.port, "tcp")
            except OSError:
                where = place("port") if values.get("port") == each.port else f"listener {each.address}"
                mistakes.append(Mistake(where, f"{each.port!r}: {NO_SERVICE}"))
    if user:
        import pwd

        try:
            pwd.getpwnam(user)
        except KeyError:
            said = f"{user!r} is unknown: must be the name of a user of this system"
            mistakes.append(Mistake(place("user"), said))
    if binlog and os.path.exists(binlog):
        try:
            refuse_if_public(os.stat(binlog).st_mode)
        except PermissionError as error:
            mistakes.append(Mistake(place("binlog"), f"{binlog!r}: {error.strerror}"))
        if not os.path.isdir(binlog):
            said = f"{binlog!r} is not a directory: must be a directory, or a path that does not exist"
            mistakes.append(Mistake(place("binlog"), said))
    return mistakes + missing_for_engine(values.get("cluster", ""), place("cluster"))


def http_mistakes(listeners: Iterable[ListenerConfig]) -> list[str]:
    """One line for each of these listeners that speaks HTTP, if the library for it is missing."""
    spoken = [each for each in listeners if each.is_http]
    if not spoken or importlib.util.find_spec("h11") is not None:
        return []
    return [f"HTTP at {each.address}: {NO_H11}" for each in spoken]


def missing_for_engine(url: str, place: str = "") -> list[Mistake]:
    """The files that the URL of an engine names and that cannot be read.

    Args:
        place: the source of the URL, for messages; the flag by default.
    """
    mistakes = []
    with contextlib.suppress(ValueError):  # a check of its own reports a bad URL
        found = read_url(url)
        for name, path in found.files.items():
            try:
                read_file(path)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", error)
                said = f"{name}={path} cannot be read: {reason}: must be a PEM file"
                mistakes.append(Mistake(place or option("cluster"), said))
    return mistakes
