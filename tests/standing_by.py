"""A leader and a standby in one process, joined by a link: clients come to the standby. No engine is asked.

As a program, it takes the command line of beanstalk-server: the standby listens where that says.
"""

import asyncio
import dataclasses
import functools
import sys

from beanstalk_server.cli import process, server
from beanstalk_server.cluster.engine.interface import Lease
from beanstalk_server.cluster.links import LeaderLink, LinkListener
from beanstalk_server.routing.clients import Clients
from beanstalk_server.server.front.listener_policy import accounts_of
from beanstalk_server.server.server import Server


class Leader(Server):
    """A server that takes links, at an address that nobody else knows."""

    def __init__(self, config):
        plain = {"tls_cert": "", "tls_key": "", "tls_client_ca": "", "token_file": "", "listeners": (), "users": ()}
        super().__init__(dataclasses.replace(config, listen="127.0.0.1", port=0, user="", file="", **plain))
        self.users = accounts_of(config)

    async def start(self):
        await super().start()
        self.links = LinkListener("leader", self.config.max_job_size)
        port = await self.links.start("127.0.0.1", 0)
        self.lease = Lease(7, 1, "leader", f"127.0.0.1:{port}", "a secret")
        self.lead()

    def lead(self):
        self.links.lead(0, self.lease, self.connections, self.find_user)

    def find_user(self, name):
        return None if self.users is None else self.users.by_name(name)

    async def _stop(self):
        await self.links.stop()
        await super()._stop()


class PassingServer(Server):
    """A server whose clients are passed on to a leader of its own."""

    def __init__(self, config):
        super().__init__(dataclasses.replace(config, binlog=""))
        self.leader = Leader(config)
        self.clients = Clients(1, self.listeners, self.hangups, self.config.verbosity, self.info)
        self.gone = []
        self.farewells = 0
        self.link = LeaderLink(
            0,
            "standby",
            functools.partial(self.clients.follow, 0),
            functools.partial(self.clients.lose, 0),
            lambda *who: self.gone.append(who),
            self._on_farewell,
        )

    def _client_maker(self):
        return self.clients.make_client

    def _on_farewell(self):
        self.farewells += 1

    async def start(self):
        self.clients.start(asyncio.get_running_loop())
        await self.leader.start()
        try:
            await super().start()
        except BaseException:
            await self.leader.stop()
            raise
        self.link.follow(self.leader.lease)

    def drain(self):
        self.leader.drain()

    async def _stop(self):
        await self.link.stop()
        await self.clients.abort_all()
        await super()._stop()
        await self.leader.stop()


if __name__ == "__main__":
    process.Server = PassingServer
    sys.exit(server.main())
