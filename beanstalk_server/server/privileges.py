"""Drops privileges: the server runs as another user once its sockets are open."""

from __future__ import annotations

import os
import pwd

from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.config import option


def drop_privileges(user: str) -> None:
    """Become this user, with its group and its supplementary groups.

    Raises:
        StartError: there is no such user (status 33), or this process may not become it (34).
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise StartError(f"{option('user')} {user}: no such user", 33) from None
    try:
        os.initgroups(user, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    except OSError as error:
        raise StartError(f"{option('user')} {user}: cannot become this user: {error.strerror}", 34) from error
