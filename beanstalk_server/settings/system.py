"""What a configuration needs of this machine, and is not there: libraries, services, users, files.

Must never import a library to know that it is there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from beanstalk_server.settings.declaration import Mistake
from beanstalk_server.settings.engine_url import read_url
from beanstalk_server.settings.files import read_file, refuse_if_public
from beanstalk_server.settings.options import NO_SERVICE, option
from beanstalk_server.settings.sections import HTTP, ListenerConfig

NO_H11: Final = "needs h11, which is not installed: pip install '.[http]' in a clone of beanstalk-server"


def missing(values: Mapping[str, Any], listeners: Collection[ListenerConfig]) -> list[Mistake]:
    """What a server would miss only once it has opened its sockets."""
    mistakes = []
    http = values.get("http")
    spoken = [each for each in listeners if each.is_http]
    if http or spoken:
        option_of_http = [ListenerConfig(address=http, protocol=HTTP)] if http else []
        mistakes += [Mistake("", said) for said in http_mistakes([*spoken, *option_of_http])]
    for each in listeners:
        if isinstance(each.port, str):
            try:
                socket.getservbyname(each.port, "tcp")
            except OSError:
                place = option("port") if values.get("port") == each.port else f"listener {each.address}"
                mistakes.append(Mistake(place, f"{each.port!r}: {NO_SERVICE}"))
    user = values.get("user")
    if user:
        import pwd

        try:
            pwd.getpwnam(user)
        except KeyError:
            mistakes.append(Mistake(option("user"), f"{user!r} is not here: must be the name of a user of this system"))
    binlog = values.get("binlog")
    if binlog and os.path.exists(binlog):
        if not os.path.isdir(binlog):
            mistakes.append(
                Mistake(option("binlog"), f"{binlog!r} is something else: must be a directory, or not be there")
            )
        else:
            try:
                refuse_if_public(os.stat(binlog).st_mode)
            except PermissionError as error:
                mistakes.append(Mistake(option("binlog"), f"{binlog!r}: {error.strerror}"))
    cluster = values.get("cluster")
    if cluster:
        mistakes += missing_for_engine(cluster)
    return mistakes


def http_mistakes(listeners: Iterable[ListenerConfig]) -> list[str]:
    """What keeps these listeners from being served: one line for each that speaks HTTP, if the library is missing."""
    spoken = [each for each in listeners if each.is_http]
    if not spoken or importlib.util.find_spec("h11") is not None:
        return []
    return [f"HTTP at {each.address}: {NO_H11}" for each in spoken]


def missing_for_engine(url: str) -> list[Mistake]:
    """The files that the URL of an engine names and this machine does not have."""
    mistakes = []
    with contextlib.suppress(ValueError):  # which its check tells
        found = read_url(url)
        for name, path in (("ca", found.ca), ("cert", found.cert), ("key", found.key)):
            try:
                if path:
                    read_file(path)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", error)
                said = f"{name}={path} cannot be read: {reason}: must be a PEM file"
                mistakes.append(Mistake(option("cluster"), said))
    return mistakes
