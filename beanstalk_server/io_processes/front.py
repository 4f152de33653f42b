"""The front of a server with I/O processes: what they must know of its listeners, at its start and each reload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from beanstalk_server.io_processes.processes import IoProcesses
from beanstalk_server.io_processes.settings import Door, IoSettings, KeptFiles
from beanstalk_server.server.front.entrance import Entrance
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.settings.sections import ListenerConfig


class IoFront:
    """Keeps the I/O processes told.

    Args:
        client_maker: returns what makes the protocol of a client, of its entrance, its user and its name.
    """

    def __init__(self, count: int, listeners: Listeners, client_maker: Callable[[], Callable[..., Any]]) -> None:
        self.processes = IoProcesses(count, lambda *client: client_maker()(*client))
        self._listeners = listeners
        self._files = KeptFiles()  # of the settings in effect
        self._read: KeptFiles | None = None  # of the settings that are being prepared
        self._number = 0  # of the last new entrance

    def make_context(self) -> Callable[[ListenerConfig], Any]:
        """What makes the TLS contexts of new settings. Their files are kept for the I/O processes."""
        if self._read is not None:
            self._read.close()  # those settings have not taken effect
        read = self._read = KeptFiles()

        def make(config: ListenerConfig) -> Any:
            from beanstalk_server.server.front.tls_context import make_context  # only where there is TLS

            return make_context(config, place=read.place)

        return make

    def start(self) -> None:
        """Start the processes.

        Raises:
            StartError: that is impossible.
        """
        self.processes.start()

    async def serve(self, entrances: list[Entrance]) -> None:
        """Let clients come in; return when they can.

        Raises:
            StartError: they cannot.
        """
        await self.processes.serve(entrances, self._settings(entrances))

    async def change(self, entrances: list[Entrance]) -> None:
        """Let new entrances and users take effect, and what `make_context` has read last."""
        await self.processes.change(entrances, self._settings(entrances))

    def _settings(self, entrances: list[Entrance]) -> IoSettings:
        if self._read is not None:
            self._files.close()
            self._files, self._read = self._read, None
        users: list[Any] = []
        doors = []
        for listener, entrance in zip(self._listeners.all, entrances, strict=True):
            if not entrance.number:
                self._number += 1
                entrance.number = self._number
                entrance.carried = True
            if entrance.accounts is not None:
                users = entrance.accounts.configs
            doors.append(
                Door(
                    number=entrance.number,
                    place=entrance.place,
                    config=listener.config,
                    descriptor=listener.sock.fileno(),
                )
            )
        return IoSettings(
            doors=doors, users=users, files=dict(zip(self._files.paths, self._files.descriptors, strict=True))
        )

    def give_up(self) -> None:
        """End the processes: no one has been served."""
        self.processes.kill()
        self._close_files()

    async def stop(self) -> None:
        """End the processes, when they have sent what they have been given."""
        await self.processes.stop()
        self._close_files()

    def _close_files(self) -> None:
        self._files.close()
        if self._read is not None:
            self._read.close()
