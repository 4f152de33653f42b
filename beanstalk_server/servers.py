"""Puts a server together from the rooms that its settings ask for; the others are not imported."""

from __future__ import annotations

from beanstalk_server.server.host import Host, MakeIo
from beanstalk_server.server.server import Server
from beanstalk_server.settings.options import Config


def server_of(config: Config) -> Host:
    """The server that the settings describe: alone or a node of a cluster, in one process or several.

    Raises:
        StartError: a library is missing.
    """
    make_io: MakeIo | None = None
    if config.io_processes:
        from beanstalk_server.io_processes.processes import IoProcesses

        make_io = IoProcesses
    if not config.cluster:
        return Server(config, make_io=make_io)
    from beanstalk_server.cluster.node import Node

    return Node(config, make_io=make_io)
