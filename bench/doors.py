"""The doors of a server: one process that clients reach plain, by TLS, with certificates and with tokens, at a port for
each; and nodes whose journal is in Redis or PostgreSQL.

All raise ServerError if something does not start, or is not installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import process
from bench.servers import GENERATOR_CPU, PEERS, SERVER_CPU, START_WITHIN, TEMPORARY, directories
from bench.subject import Subject
from harness import servers
from harness.engines import KINDS
from harness.nodes import Node, leader, leaders
from harness.servers import POSTGRES
from harness.waiting import eventually

WITH_TLS = ", TLS"
CLUSTERED = ", cluster"
IN_POSTGRESQL = ", PostgreSQL"
CARRIED = ", I/O process"
ROUTED = ", routed"
OF_OTHERS = ", policies of other tubes"
MEASURED = ", metrics"
SCRAPED = ", scraped each second"
"""What is added to a server's name in the results."""

CONFIG = """
{options}
[[listener]]
address = "127.0.0.1:{plain}"

[[listener]]
address = "127.0.0.1:{tls}"
tls-cert = "server.pem"

[[listener]]
address = "127.0.0.1:{mutual}"
tls-cert = "server.pem"
tls-client-ca = "ca.pem"

[[listener]]
address = "127.0.0.1:{token}"
auth = "token"

[[user]]
name = "user"
token-sha256 = "{hash}"
"""


def of_shards(count: int) -> str:
    """What is added to a server's name for this many shards."""
    return f", {count} shards" if count > 1 else ""


def make_certificates(directory: Path) -> tuple[str, str]:
    """Make an authority, a server and a client; return the files of the first and of the last."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    for name in ("server", "client"):
        authority.issue_cert("localhost", name).private_key_and_cert_chain_pem.write_to_path(directory / f"{name}.pem")
    return str(directory / "ca.pem"), str(directory / "client.pem")


@contextlib.contextmanager
def opened(peer: str, options: str = "") -> Iterator[dict[str, Subject]]:
    """Run this server with all doors: plain, tls, mutual, token.

    Args:
        options: more lines of its config file.
    """
    with directories(TEMPORARY) as directory:
        ca, client = make_certificates(directory)
        ports = {door: servers.unused_port() for door in ("plain", "tls", "mutual", "token")}
        config = directory / "server.toml"
        config.write_text(CONFIG.format(options=options, hash="0" * 64, **ports))
        program = PEERS[peer].program
        line = [*servers.command(program), "--config", str(config)]
        address = "127.0.0.1", ports["plain"]
        running = servers.Process(program, line, address, within=START_WITHIN, processor=SERVER_CPU)
        try:
            plain = Subject(peer, ports["plain"], running.pid, peer, running=running)
            secure = dataclasses.replace(plain, name=peer + WITH_TLS, ca=ca)
            yield {
                "plain": plain,
                "tls": dataclasses.replace(secure, port=ports["tls"]),
                "mutual": dataclasses.replace(secure, port=ports["mutual"], cert=client),
                "token": dataclasses.replace(plain, port=ports["token"]),
            }
        finally:
            running.stop()


@contextlib.contextmanager
def carried(peer: str) -> Iterator[tuple[Subject, Subject]]:
    """Run this server with an I/O process; the doors are plain, and by TLS. Both processes share the server's
    processor: the generator needs the other one.
    """
    with opened(peer, "io-processes = 1") as doors:
        engine = doors["plain"].pid
        (sockets,) = process.children(engine)
        os.sched_setaffinity(sockets, {SERVER_CPU})
        plain = dataclasses.replace(doors["plain"], name=peer + CARRIED, pid=sockets, engine=engine)
        secure = dataclasses.replace(doors["tls"], name=peer + CARRIED + WITH_TLS, pid=sockets, engine=engine)
        yield plain, secure


class Cluster:
    """A primary with two replicas on the generator's processor, and nodes of this server on the other.

    Args:
        engine: its kind, as harness/engines.py names it.
    """

    def __init__(
        self, stack: contextlib.ExitStack, peer: str, parent: Path, shards: int = 1, engine: str = "alone"
    ) -> None:
        self.stack = stack
        self.peer = peer + (IN_POSTGRESQL if engine == POSTGRES else "")
        self.program = PEERS[peer].program
        self.shards = shards
        self.engine = KINDS[engine](stack.enter_context(directories(parent)) / "engine")
        stack.callback(self.engine.close)
        for server in self.engine.servers:
            for each in process.family(server.pid):  # those that it starts later inherit it
                os.sched_setaffinity(each, {GENERATOR_CPU})

    def node(self) -> Node:
        options = ["--shards", str(self.shards)] if self.shards > 1 else []
        node = Node(self.engine.url, options, program=self.program)
        self.stack.callback(node.kill)
        os.sched_setaffinity(node.pid, {SERVER_CPU})
        return node

    def leading(self) -> Node:
        """A node that leads all shards."""
        node = self.node()
        leaders(self.engine, [node], self.shards)
        return node

    def subject(self, node: Node, engine: int, added: str = "") -> Subject:
        name = self.peer + CLUSTERED + of_shards(self.shards) + added
        return Subject(name, node.port, node.pid, self.peer, engine=engine, url=self.engine.url)


@contextlib.contextmanager
def clustered(peer: str, parent: Path, shards: int = 1, engine: str = "alone") -> Iterator[Subject]:
    """Run a node that leads all shards; the CPU of the engine's primary is measured apart."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack, peer, parent, shards, engine)
        yield cluster.subject(cluster.leading(), cluster.engine.primary().pid)


@contextlib.contextmanager
def routed(peer: str, parent: Path, shards: int = 1) -> Iterator[Subject]:
    """Run two nodes: one leads all shards, and its CPU is measured apart; clients are at the other."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack, peer, parent, shards)
        leads, other = cluster.leading(), cluster.node()
        if shards > 1:
            with contextlib.closing(other.connect()) as caller:
                caller.ask(b"ping\r\n")  # it answers, so it handles signals
            other.process.send_signal(signal.SIGUSR1)  # otherwise it gets its share of them
            eventually(lambda: "draining" in other.process.log, "the node is in drain mode")
        yield cluster.subject(other, leads.pid, ROUTED)


@contextlib.contextmanager
def two_nodes(peer: str, parent: Path, engine: str = "alone") -> Iterator[Callable[[], tuple[Node, Subject]]]:
    """Run two nodes; yield what finds the one that leads, and the other. One that was killed is started again then."""
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack, peer, parent, engine=engine)
        nodes = [cluster.node(), cluster.node()]

        def roles() -> tuple[Node, Subject]:
            for node in nodes:
                if not node.is_running:
                    node.start()
                    os.sched_setaffinity(node.pid, {SERVER_CPU})
            leads = leader(cluster.engine, nodes)
            other = next(node for node in nodes if node is not leads)
            return leads, cluster.subject(other, 0)

        yield roles
