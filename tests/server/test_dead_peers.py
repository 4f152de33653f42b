"""A worker whose host has lost its network: another worker gets the job, and nothing waits for the time to run.

The server and the worker are in network namespaces of their own, and a cable connects them until it is cut.
"""

import contextlib
import ctypes
import os
import subprocess
import threading

import pytest
from programs import find, missing

from harness.caller import Caller
from harness.servers import command, imported
from harness.waiting import eventually

CLONE_NEWNET = 0x40000000  # setns(2)
SERVER, WORKER = "198.18.73.1", "198.18.73.2"  # of a network for tests, RFC 2544


class Network:
    """Two namespaces with a cable between them."""

    def __init__(self, ip):
        self._ip = ip
        self.server, self.worker = (f"beanstalk-{os.getpid()}-{end}" for end in ("server", "worker"))

    def run(self, *arguments):
        return subprocess.run([self._ip, *arguments], check=True, capture_output=True, text=True, timeout=60).stdout

    def __enter__(self):
        try:
            self.run("netns", "add", self.server)
        except subprocess.CalledProcessError:
            missing("the right to make network namespaces", "run as root")
        self.run("netns", "add", self.worker)
        self.run("-n", self.server, "link", "add", "s", "type", "veth", "peer", "name", "w", "netns", self.worker)
        for namespace, name, address in ((self.server, "s", SERVER), (self.worker, "w", WORKER)):
            self.run("-n", namespace, "address", "add", f"{address}/30", "dev", name)
            self.run("-n", namespace, "link", "set", name, "up")
            self.run("-n", namespace, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for namespace in (self.server, self.worker):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.run("netns", "del", namespace)

    def connect(self, namespace, address):
        """A client in a namespace."""
        made = []

        def connect():
            with open(f"/var/run/netns/{namespace}") as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(Caller(address))

        thread = threading.Thread(target=connect)  # only this thread is there
        thread.start()
        thread.join()
        return made[0]

    def cut(self):
        """Let the worker's host vanish. As behind a router, the server's system does not notice."""
        hardware = self.run("-n", self.worker, "-brief", "link", "show", "w").split()[2]
        neighbour = ("neighbour", "replace", WORKER, "lladdr", hardware, "dev", "s", "nud", "permanent")
        self.run("-n", self.server, *neighbour)
        self.run("-n", self.worker, "address", "flush", "dev", "w")


@pytest.fixture
def network():
    with Network(find("ip", "iproute2")) as made:
        yield made


@pytest.mark.parametrize("in_flight", [False, True], ids=["while it waits", "before it is sent a job"])
@pytest.mark.parametrize("processes", [0, 1])
def test_another_worker_gets_the_job_of_one_whose_host_has_vanished(network, launch, processes, in_flight):
    options = ("-l", SERVER, "-p", "0", "--keepalive", "1:1:1", "--io-processes", str(processes))
    server = launch(line=[network._ip, "netns", "exec", network.server, *command(imported()), *options])
    dead = network.connect(network.worker, server.address)
    other = network.connect(network.server, server.address)
    dead.send(b"reserve\r\n")
    eventually(lambda: other.stats()["current-waiting"] == "1", "it waits")
    network.cut()
    if not in_flight:
        eventually(lambda: other.stats()["current-connections"] == "1", "it is found to be gone")
    assert other.ask(b"put 0 0 3600 1\r\nx\r\n") == b"INSERTED 1\r\n"
    if in_flight:
        assert other.stats()["current-jobs-reserved"] == "1", "it has been given the job"
    assert other.ask(b"reserve-with-timeout 60\r\n") == b"RESERVED 1 1\r\n"
    for caller in (dead, other):
        caller.close()
    assert server.stop() == 0
