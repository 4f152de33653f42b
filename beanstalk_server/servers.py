"""Puts a server together from the rooms that its settings ask for; the others are not imported."""

from __future__ import annotations

from beanstalk_server.queue.journal import Journal
from beanstalk_server.server.host import Host, MakeIo
from beanstalk_server.server.server import Server
from beanstalk_server.settings.declaration import ConfigError
from beanstalk_server.settings.options import Config, option


def server_of(config: Config, *, journal: Journal | None = None) -> Host:
    """The server that the settings describe: alone or a node of a cluster, in one process or several.

    Args:
        journal: as in Server.

    Raises:
        ConfigError: there is both a journal and a cluster, which keeps the jobs.
        StartError: a library is missing.
    """
    make_io: MakeIo | None = None
    if config.io_processes:
        from beanstalk_server.io_processes.processes import IoProcesses

        make_io = IoProcesses
    if not config.cluster:
        return Server(config, journal=journal, make_io=make_io)
    if journal is not None:
        raise ConfigError(f"{option('cluster')}: keeps the jobs: there must be no other journal")
    from beanstalk_server.cluster.node import Node

    return Node(config, make_io=make_io)
