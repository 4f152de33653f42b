"""What a start asks of the system: listening sockets, opened, inherited or taken over, and another user.

Whatever can be wrong here is a StartError, one line that a person can act on. Knows no event loop.
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import resource
import socket
import stat
import sys
from typing import Final

from beanstalk_server.config import option

BACKLOG: Final = 1024
FIRST_INHERITED: Final = 3  # sd_listen_fds(3)

log = logging.getLogger("beanstalk_server")


class StartError(Exception):
    """The server cannot start: one line that names the setting and its value. `status` is the exit status for it."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def inherited_sockets() -> list[socket.socket]:
    """The listening sockets that systemd has opened for this process, as sd_listen_fds(3) has it.

    Raises:
        StartError: one of them is no listening stream socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    given = os.environ.get("LISTEN_FDS", "0")
    if not (given.isascii() and given.isdecimal()):
        raise StartError(f"LISTEN_FDS: {given!r} is not a number", 111)
    for variable in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(variable, None)
    sockets = []
    for descriptor in range(FIRST_INHERITED, FIRST_INHERITED + int(given)):
        try:
            sock = socket.socket(fileno=descriptor)
            listens = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError as error:
            raise StartError(f"LISTEN_FDS: file {descriptor} is no socket: {error.strerror}", 111) from error
        if not listens:
            raise StartError(f"LISTEN_FDS: file {descriptor} is no listening TCP or UNIX socket", 111)
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


def open_inet_socket(host: str, port: int | str) -> socket.socket:
    """A TCP socket that is bound to the first address of the host that works.

    Raises:
        StartError: none does.
    """
    where = f"{option('listen')} {host} {option('port')} {port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise StartError(f"{where}: {getattr(error, 'strerror', None) or 'no such host'}", 111) from error
    failure = OSError(errno.EADDRNOTAVAIL, "no such address")
    for family, kind, protocol, _, address in found:
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # its connections inherit these two
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.bind(address)
        except OSError as error:
            failure = error
            sock.close()
            continue
        return sock
    raise StartError(f"{where}: {failure.strerror}", 111)


def open_unix_socket(path: str) -> socket.socket:
    """A UNIX socket bound to a path; one that a dead server has left there is replaced, a live one is not.

    Raises:
        StartError: something else is there, a server is alive there, or the path cannot be used.
    """
    where = f"{option('listen')} unix:{path}"
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            if _is_alive(path):
                raise StartError(f"{where}: another server listens there", 111)
            log.info("%s: replacing the socket of a server that is gone", path)
            os.unlink(path)
        else:
            raise StartError(f"{where}: something that is no socket is there", 111)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StartError(f"{where}: {error.strerror or error}", 111) from error
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.setblocking(False)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise StartError(f"{where}: {error.strerror or error}", 111) from error
    return sock


def listen(sock: socket.socket) -> None:
    """Let clients connect from now on. Nothing, when they may already.

    Raises:
        StartError: another server was quicker.
    """
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        raise StartError(f"{option('listen')} {sock.getsockname()}: {error.strerror}", 111) from error


def _is_alive(path: str) -> bool:
    """Whether a server listens on this UNIX socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # it does, and is so busy that connections pile up
            return True
    return True


def connections_allowed(kept_back: int) -> int:
    """How many connections this process may have besides what it has open now; one at the least.

    Args:
        kept_back: how many file descriptors it will need for other things.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        taken = len(os.listdir("/dev/fd")) - 1  # but for the one of this look
    except OSError:
        taken = FIRST_INHERITED
    return max(limit - taken - kept_back, 1)


def become(user: str) -> None:
    """Become a user and its groups.

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
