"""Sends the settings of an I/O process over a socket, with file descriptors.

    number     what
    ---------  -----------------------------------------------------------------
    1          the settings, as JSON
    any        the listening sockets, in the order of the listeners in the JSON
    any        the files of their certificates and keys, in the order of the JSON

All of them are descriptors, so that nothing secret is on a command line or in the environment, and an I/O process needs
no right to open a file: it can be started when the server has dropped its privileges.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.files import read_file
from beanstalk_server.settings.options import option
from beanstalk_server.settings.sections import ListenerConfig, UserConfig

AT_ONCE: Final = 200
"""Descriptors in a message. Linux takes 253 (SCM_MAX_FD)."""

LEFT_BYTES: Final = 4
"""Of a message: how many descriptors follow in others."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Those that an I/O process ignores: what they ask for, the engine process tells it."""

RECOGNIZED_BY: Final = ("name", "token_sha256", "uid")
"""What of a user an I/O process must know. Rights are the business of the engine process."""


class KeptFiles:
    """Files as they are when they are read first, for those who may not read them later."""

    def __init__(self) -> None:
        self.descriptors: dict[str, int] = {}  # by path

    def place(self, path: str) -> str:
        """Where the content of a file is from now on; the path itself if it cannot be kept, and so cannot be used.

        Raises:
            StartError: this system cannot keep files.
        """
        descriptor = self.descriptors.get(path)
        if descriptor is None:
            if not hasattr(os, "memfd_create"):
                raise StartError(f"{option('io_processes')}: TLS in I/O processes needs Linux")
            try:
                if stat.S_ISFIFO(os.stat(path).st_mode):
                    return path
                content = read_file(path)
            except (OSError, ValueError):
                return path
            descriptor = self.descriptors[path] = file_of(content)
        return place_of_descriptor(descriptor)

    def close(self) -> None:
        """Keep them no longer."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)
        self.descriptors.clear()


@dataclass
class ListenSocket:
    """One listener, as an I/O process knows it.

    Attributes:
        number: names its listener_policy.
        place: names it in the log.
        descriptor: of the listening socket.
    """

    number: int
    place: str
    config: ListenerConfig
    descriptor: int = -1


@dataclass
class IoSettings:
    """All that an I/O process must know.

    Attributes:
        files: the descriptors of the files that its listeners name, by path.
        max_connections: of all I/O processes together.
    """

    sockets: list[ListenSocket] = field(default_factory=list)
    users: list[UserConfig] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    max_connections: int = 0

    def place(self, path: str) -> str:
        """Where a file is that a listener names."""
        return place_of_descriptor(self.files[path])

    def send(self, sock: socket.socket) -> None:
        """Send the settings; the descriptors stay open here.

        Raises:
            OSError: the I/O process has ended.
        """
        text = file_of(json.dumps(self._as_json()).encode())
        try:
            descriptors = [text, *(listen_socket.descriptor for listen_socket in self.sockets), *self.files.values()]
            for start in range(0, len(descriptors), AT_ONCE):
                left = max(len(descriptors) - start - AT_ONCE, 0)
                socket.send_fds(sock, [left.to_bytes(LEFT_BYTES, "big")], descriptors[start : start + AT_ONCE])
        finally:
            os.close(text)

    def _as_json(self) -> dict[str, Any]:
        users = [{key: getattr(user, key) for key in RECOGNIZED_BY} for user in self.users]
        sockets = [
            {"number": listen_socket.number, "place": listen_socket.place, "config": asdict(listen_socket.config)}
            for listen_socket in self.sockets
        ]
        return {
            "sockets": sockets,
            "users": users,
            "files": list(self.files),
            "max_connections": self.max_connections,
        }

    @classmethod
    def receive(cls, sock: socket.socket) -> IoSettings | None:
        """Settings that have been sent; None if none will ever come. The descriptors are the caller's."""
        descriptors = _receive_descriptors(sock)
        if not descriptors:
            return None
        text, *others = descriptors
        found = json.loads(os.pread(text, os.fstat(text).st_size, 0))
        os.close(text)
        sockets = [
            ListenSocket(each["number"], each["place"], ListenerConfig(**each["config"])) for each in found["sockets"]
        ]
        for listen_socket, descriptor in zip(sockets, others, strict=False):
            listen_socket.descriptor = descriptor
        files = dict(zip(found["files"], others[len(sockets) :], strict=True))
        return cls(sockets, [UserConfig(**each) for each in found["users"]], files, found["max_connections"])

    def close(self) -> None:
        """Close the descriptors, except those of listening sockets in use."""
        for descriptor in (*(listen_socket.descriptor for listen_socket in self.sockets), *self.files.values()):
            if descriptor >= 0:
                os.close(descriptor)


def _receive_descriptors(sock: socket.socket) -> Sequence[int]:
    found: array.array[int] = array.array("i")
    while True:
        message, descriptors, _, _ = socket.recv_fds(sock, LEFT_BYTES, AT_ONCE)
        if len(message) < LEFT_BYTES:
            return ()
        found.extend(descriptors)
        if not int.from_bytes(message, "big"):
            return found


def file_of(content: bytes) -> int:
    """The descriptor of a file in memory with this content, sealed against changes."""
    descriptor = make_file()
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    if hasattr(os, "memfd_create"):
        import fcntl  # constants that only Linux has

        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def make_file() -> int:
    """The descriptor of an empty file that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("beanstalk-server", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    import tempfile  # where there are no files in memory

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def place_of_descriptor(descriptor: int) -> str:
    """A path by which this process can open a file that it has open."""
    return f"/proc/self/fd/{descriptor}"
