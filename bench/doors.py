"""The doors of a server: one process that clients reach plain, by TLS, with certificates and with tokens, at a port for
each; stunnel in front of a server that has no TLS; and nodes whose journal is in Redis.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import process
from bench.servers import GENERATOR_CPU, PEERS, SERVER_CPU, START_WITHIN, STOP_WITHIN, Server
from harness import servers
from harness.engines import Alone
from harness.nodes import Node, leader, leaders
from harness.servers import ServerError
from harness.waiting import eventually

WITH_TLS = ", TLS"
BEHIND_STUNNEL = " behind stunnel"
CLUSTERED = ", cluster"
CARRIED = ", I/O process"
SHARDED = ", {} shards"
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
name = "somebody"
token-sha256 = "{hash}"
"""

STUNNEL = """
foreground = yes
pid =
syslog = no
debug = 3
socket = l:TCP_NODELAY=1
socket = r:TCP_NODELAY=1
[queue]
accept = 127.0.0.1:{port}
connect = 127.0.0.1:{behind}
cert = {directory}/server.pem
"""


@dataclass
class Door:
    """One way into a server, for loads: they take it for a server.

    Args:
        name: what the results call it.
        pid: the server's process.
        also: processes whose CPU time counts as well.
        ca: the authority of its certificate, a file; "" where it speaks plain.
        cert: the certificate that clients show there, a file.
        engine: the process that keeps its journal, or has its jobs, if another one does.
        url: that a node knows its engine by.
    """

    name: str
    port: int
    pid: int
    also: Sequence[int] = ()
    ca: str = ""
    cert: str = ""
    protocol: str = "beanstalk"
    engine: int = 0
    url: str = ""

    def resident(self) -> int:
        return process.resident(self.pid)


class Certificates:
    """Files in a directory: an authority's certificate, and of a server and a client each certificate and key."""

    def __init__(self, directory: Path) -> None:
        import trustme

        authority = trustme.CA()
        self.ca = directory / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        for name in ("server", "client"):
            authority.issue_cert("localhost", name).private_key_and_cert_chain_pem.write_to_path(
                directory / f"{name}.pem"
            )
        self.client = directory / "client.pem"


@contextlib.contextmanager
def opened(peer: str, options: str = "") -> Iterator[tuple[servers.Process, dict[str, Door]]]:
    """Start this server with all doors: plain, tls, mutual, token; stop it at the end.

    Args:
        options: more lines of its config file.

    Raises:
        ServerError: it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        made = Certificates(directory)
        ports = {door: servers.unused_port() for door in ("plain", "tls", "mutual", "token")}
        config = directory / "server.toml"
        config.write_text(CONFIG.format(options=options, hash="0" * 64, **ports))
        program = PEERS[peer].program
        running = servers.Process(
            program,
            [*servers.command(program), "--config", str(config)],
            ("127.0.0.1", ports["plain"]),
            within=START_WITHIN,
            processor=SERVER_CPU,
        )
        try:
            ca, client = str(made.ca), str(made.client)
            yield (
                running,
                {
                    "plain": Door(peer, ports["plain"], running.pid),
                    "tls": Door(peer + WITH_TLS, ports["tls"], running.pid, ca=ca),
                    "mutual": Door(peer + WITH_TLS, ports["mutual"], running.pid, ca=ca, cert=client),
                    "token": Door(peer, ports["token"], running.pid),
                },
            )
        finally:
            running.stop(within=STOP_WITHIN)


@contextlib.contextmanager
def with_policies(peer: str, sections: Mapping[str, str]) -> Iterator[servers.Process]:
    """Start this server with policies of tubes; stop it at the end.

    Args:
        sections: the settings of all tubes whose names begin like this, as lines of its config file.

    Raises:
        ServerError: it does not start.
    """
    lines = [f'[[tube]]\nmatch = "{tubes}*"\n{settings}' for tubes, settings in sections.items()]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        config = Path(name) / "server.toml"
        config.write_text("\n".join(lines) + "\n")
        asked = ["--config", str(config)]
        running = servers.start(PEERS[peer].program, asked, within=START_WITHIN, processor=SERVER_CPU)
        try:
            yield running
        finally:
            running.stop(within=STOP_WITHIN)


@contextlib.contextmanager
def measured(peer: str) -> Iterator[tuple[Door, int]]:
    """Start this server with metrics; stop it at the end. The door is that of its clients, and the port that of HTTP.

    Raises:
        ServerError: it does not start.
    """
    port = servers.unused_port()
    asked = ["--http", f"127.0.0.1:{port}"]
    running = servers.start(PEERS[peer].program, asked, within=START_WITHIN, processor=SERVER_CPU)
    try:
        yield Door(peer + MEASURED, int(running.address[1]), running.pid), port
    finally:
        running.stop(within=STOP_WITHIN)


@contextlib.contextmanager
def carried(peer: str) -> Iterator[tuple[Door, Door]]:
    """Start this server with an I/O process; the doors are plain, and by TLS. Both processes share the server's
    processor: the generator needs the other one.

    Raises:
        ServerError: it does not start.
    """
    with opened(peer, "io-processes = 1") as (running, doors):
        (process_id,) = process.children(running.pid)
        os.sched_setaffinity(process_id, {SERVER_CPU})
        for door in (doors["plain"], doors["tls"]):
            door.name = door.name.replace(peer, peer + CARRIED, 1)
            door.pid = process_id
            door.engine = running.pid
        yield doors["plain"], doors["tls"]


@contextlib.contextmanager
def clustered(peer: str, directory: Path, shards: int = 1) -> Iterator[Door]:
    """Start a node that leads all shards, over a primary of Redis with two replicas, which share the generator's
    processor.

    Raises:
        ServerError: Redis is not installed, or something does not start.
    """
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(_engine(directory))
        node = _node(stack, peer, engine, shards)
        leaders(engine, [node], shards)
        name = peer + CLUSTERED + of_shards(shards)
        yield Door(name, node.port, node.pid, engine=engine.primary().pid, url=engine.url)


@contextlib.contextmanager
def routed(peer: str, directory: Path, shards: int = 1) -> Iterator[Door]:
    """Start two nodes over such an engine, on the server's processor; the door is that of the one that leads nothing.
    The CPU of the one that leads all shards is measured apart.

    Raises:
        ServerError: as above.
    """
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(_engine(directory))
        leads = _node(stack, peer, engine, shards)
        leaders(engine, [leads], shards)
        other = _node(stack, peer, engine, shards)
        if shards > 1:
            with contextlib.closing(other.connect()) as caller:
                caller.ask(b"ping\r\n")  # it answers, so it hears signals
            other.process.send_signal(signal.SIGUSR1)  # otherwise it gets its share of them
            eventually(lambda: "draining" in other.process.log, "it does not want to lead")
        name = peer + CLUSTERED + of_shards(shards) + ROUTED
        yield Door(name, other.port, other.pid, engine=leads.pid)


def of_shards(count: int) -> str:
    """What is added to a server's name for this many shards."""
    return SHARDED.format(count) if count > 1 else ""


@contextlib.contextmanager
def _engine(directory: Path) -> Iterator[Alone]:
    """A primary with two replicas, on the generator's processor."""
    engine = Alone(directory)
    try:
        for each in engine.servers:
            os.sched_setaffinity(each.pid, {GENERATOR_CPU})
        yield engine
    finally:
        engine.close()


def _node(stack: contextlib.ExitStack, peer: str, engine: Alone, shards: int) -> Node:
    """A node on the server's processor."""
    node = Node(engine.url, ["--shards", str(shards)] if shards > 1 else [], program=peer)
    stack.callback(node.kill)
    os.sched_setaffinity(node.pid, {SERVER_CPU})
    return node


@contextlib.contextmanager
def two_nodes(peer: str, directory: Path) -> Iterator[Callable[[], tuple[Node, Door]]]:
    """Start two nodes over such an engine; yield what finds the one that leads, and the door of the other.

    The one that was killed is started again then, and both are on the server's processor.

    Raises:
        ServerError: as above.
    """
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(_engine(directory))
        nodes = [_node(stack, peer, engine, 1) for _ in range(2)]

        def roles() -> tuple[Node, Door]:
            for node in nodes:
                if not node.is_running:
                    node.start()
                os.sched_setaffinity(node.pid, {SERVER_CPU})
            leads = leader(engine, nodes)
            other = next(node for node in nodes if node is not leads)
            return leads, Door(peer + CLUSTERED, other.port, other.pid)

        yield roles


def missing_stunnel() -> str:
    """Why stunnel cannot be put in front of a server here, or ""."""
    return "" if shutil.which("stunnel") else "stunnel is not installed (Debian: apt-get install stunnel4)"


@contextlib.contextmanager
def behind_stunnel(server: Server) -> Iterator[Door]:
    """Put stunnel in front of a server, on the same processor.

    Raises:
        ServerError: stunnel is not installed, or does not start.
    """
    if why := missing_stunnel():
        raise ServerError(why)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        made = Certificates(directory)
        port = servers.unused_port()
        config = directory / "stunnel.conf"
        config.write_text(STUNNEL.format(port=port, behind=server.port, directory=directory))
        log = directory / "log"
        with log.open("wb") as out:
            stunnel = subprocess.Popen(["stunnel", str(config)], stdout=out, stderr=out, start_new_session=True)
        try:
            os.sched_setaffinity(stunnel.pid, {SERVER_CPU})
            door = Door(server.name + BEHIND_STUNNEL, port, server.pid, also=[stunnel.pid], ca=str(made.ca))
            eventually(lambda: stunnel.poll() is not None or servers.accepts(port), "stunnel accepts connections")
            if stunnel.poll() is not None:
                raise ServerError(f"stunnel does not start: {log.read_text(errors='replace')[-500:].strip()}")
            yield door
        finally:
            stunnel.kill()
            stunnel.wait()
