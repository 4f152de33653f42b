"""The servers that are measured: started on a free port, pinned to a processor, stopped when the work is done.

Knows nothing of the work. What a server has cost is read from the system, not from the server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SERVER_CPU = 0
GENERATOR_CPU = (os.cpu_count() or 1) - 1

PEERS = ("beanstalkd", "ours", "interpreted")
"""beanstalkd as installed; this server as installed, with its hot modules compiled; this server's plain sources."""


class Server:
    """A running server."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        command, environment, directory = _command(peer, self.port)
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment, cwd=directory)
        os.sched_setaffinity(self.process.pid, {SERVER_CPU})
        deadline = time.monotonic() + 10
        while True:
            try:
                self.connect().close()
                return
            except ConnectionRefusedError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise SystemExit(f"{peer} does not start: {' '.join(command)}") from None
                time.sleep(0.02)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def cpu(self) -> tuple[float, float]:
        """Seconds spent in user and in system mode so far."""
        fields = Path(f"/proc/{self.process.pid}/schedstat").read_text().split()
        user, system = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        ticks = int(user) + int(system)
        total = int(fields[0]) / 1e9  # in nanoseconds, where the two in `stat` are in ticks: they give the shares
        share = int(user) / ticks if ticks else 0.0
        return total * share, total * (1 - share)

    def resident(self) -> int:
        """Bytes of memory in use."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def switches(self) -> int:
        """How often it has gone to sleep so far: an idle process that wakes up does so again."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def _command(peer: str, port: int) -> tuple[list[str], dict[str, str], str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BEANSTALK_SERVER_")}
    environment.pop("PYTHONPATH", None)
    sources = Path(__file__).parents[1]
    if peer == "beanstalkd":
        return [shutil.which("beanstalkd") or "beanstalkd", "-l", "127.0.0.1", "-p", str(port)], environment, "/"
    if peer == "interpreted":
        environment["PYTHONPATH"] = str(sources)
    return [sys.executable, "-P", "-m", "beanstalk_server", "-p", str(port)], environment, "/"


@contextlib.contextmanager
def running(*peers: str) -> Iterator[list[Server]]:
    """Servers that are stopped at the end, whatever happens."""
    with contextlib.ExitStack() as stack:
        servers = []
        for peer in peers:
            server = Server(peer)
            stack.callback(server.stop)
            servers.append(server)
        os.sched_setaffinity(0, {GENERATOR_CPU})
        yield servers
