"""The load: plain sockets, prepared bytes, one process. Knows no server but by its address."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from bench.servers import Server

BODY = b"x" * 100
PUT = b"put 65536 0 60 100\r\n" + BODY + b"\r\n"


class Cost:
    """What some commands took: throughput, and the server's own CPU time for each, in microseconds."""

    def __init__(self, commands: int, seconds: float, user: float, system: float) -> None:
        self.rate = commands / seconds
        self.user = user / commands * 1e6
        self.system = system / commands * 1e6
        self.cpu = self.user + self.system


def measure(server: Server, commands: int, work: Callable[[], None]) -> Cost:
    """Do the work, which is so many commands, and say what it cost."""
    user, system = server.cpu()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    later_user, later_system = server.cpu()
    return Cost(commands, seconds, later_user - user, later_system - system)


def ask(sock: socket.socket, data: bytes, lines: int = 1) -> bytes:
    """Send commands, and read so many lines of reply."""
    sock.sendall(data)
    received = b""
    while received.count(b"\n") < lines:
        received += sock.recv(1 << 20)
    return received


class Cycle:
    """One connection that puts, reserves and deletes jobs in a tube of its own, so many of them at a time."""

    def __init__(self, server: Server, number: int, depth: int) -> None:
        self.sock = server.connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.depth = depth
        self.received = b""
        self.step = 0
        self.jobs = 0
        ask(self.sock, b"use t%d\r\nwatch t%d\r\nignore default\r\n" % (number, number), 3)

    def send(self) -> None:
        if self.step == 0:
            self.sock.sendall(PUT * self.depth)
        elif self.step == 1:
            self.sock.sendall(b"reserve\r\n" * self.depth)
        else:
            ids = [line.split(b" ", 2)[1] for line in self.received.split(b"\r\n")[:-1:2]]
            self.sock.sendall(b"".join([b"delete %b\r\n" % number for number in ids]))
        self.received = b""

    def receive(self) -> bool:
        """Take what has come; whether the step is complete."""
        self.received += self.sock.recv(1 << 18)
        lines = self.depth * (2 if self.step == 1 else 1)
        if self.received.count(b"\n") < lines:
            return False
        self.step = (self.step + 1) % 3
        if self.step == 0:
            self.jobs += self.depth
        return True


def cycles(server: Server, connections: int, depth: int, jobs: int) -> Cost:
    """put + reserve + delete, on so many connections, with so many commands in flight on each."""
    each = max(jobs // connections // depth, 1) * depth
    clients = [Cycle(server, number, depth) for number in range(connections)]
    poll = select.epoll()
    by_file = {client.sock.fileno(): client for client in clients}
    for descriptor in by_file:
        poll.register(descriptor, select.EPOLLIN)

    def work() -> None:
        left = connections
        for client in clients:
            client.send()
        while left:
            for descriptor, _ in poll.poll():
                client = by_file[descriptor]
                if client.receive():
                    if client.jobs >= each:
                        left -= 1
                    else:
                        client.send()

    cost = measure(server, connections * each * 3, work)
    poll.close()
    for client in clients:
        client.sock.close()
    return cost


def pipelined(server: Server, count: int, make: Callable[[int], bytes], batch: int = 100) -> Cost:
    """Commands that are answered with a line each, so many in flight on one connection."""
    sock = server.connect()
    batches = [b"".join([make(i) for i in range(first, min(first + batch, count))]) for first in range(0, count, batch)]

    def work() -> None:
        for number, data in enumerate(batches):
            ask(sock, data, min(batch, count - number * batch))

    cost = measure(server, count, work)
    sock.close()
    return cost
