"""The loads: clients on plain sockets that send prepared bytes, as fast as the server answers or as the load demands.

Each load is a function of a subject and its own arguments, which must be valid in JSON, and returns one or more
samples. It runs in the generator's process. Replies are not parsed: their lines are counted, and only the beginning of
each reply is checked.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import select
import signal
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench import process
from bench.attacks import Attack
from bench.backlog import backlog
from bench.protocols import MOVED, PRIORITY, PROTOCOLS, TTR, QueueProtocol
from bench.samples import Sample, percentiles
from bench.subject import (
    BUFFER,
    MILLISECOND,
    REPLY_WITHIN,
    SECOND,
    Subject,
    UnexpectedReplyError,
    ask,
    clock,
    none_came,
)

WARM_UP = 0.1  # seconds before a measurement, for each of its seconds


class Meter:
    """The CPU time that a server and the generator use from now on."""

    def __init__(self, subject: Subject) -> None:
        self.pids = [subject.pid, *subject.also]
        self.own = time.process_time()
        self.engine = subject.engine
        self.engine_cpu = process.cpu(self.engine) if self.engine else None
        self.cpu = process.cpu_of_all(self.pids)
        self.started = clock()

    def sample(self, commands: int, latencies: Sequence[int] = ()) -> Sample:
        """The cost of this many commands; latencies in nanoseconds."""
        seconds = (clock() - self.started) / SECOND
        spent = process.cpu_of_all(self.pids).since(self.cpu)
        own = time.process_time() - self.own
        each = 1e6 / max(commands, 1)
        apart = {}
        if self.engine_cpu:
            apart = {"engine_cpu": process.cpu(self.engine).since(self.engine_cpu).total * each}
        return (
            apart
            | {
                "commands": commands,
                "seconds": seconds,
                "rate": commands / seconds,
                "cpu": spent.total * each,
                "user": spent.user * each,
                "system": spent.system * each,
                "server_busy": spent.total / seconds,
                "generator_busy": own / seconds,
            }
            | percentiles(latencies, MILLISECOND)
        )


# Jobs, each client in its own tube


class Client:
    """One connection that repeats its steps, with `depth` commands in flight in each."""

    __slots__ = ("data", "first", "left", "lines", "pieces", "recv", "round", "sendall", "sent", "sock", "step", "tube")

    def __init__(self, subject: Subject, tube: bytes, watching: int = 1) -> None:
        self.sock = subject.connect()
        self.tube = tube
        self.recv = self.sock.recv
        self.sendall = self.sock.sendall
        ask(self.sock, *subject.commands.begin(tube))
        for number in range(1, watching):
            ask(self.sock, b"watch %b-%d\r\n" % (tube, number))
        self.step = 0
        self.round = 0  # how often it has completed all its steps
        self.left = 0  # lines of the reply that are still to come
        self.sent = 0  # when `data` was sent, in nanoseconds
        self.data = b""  # what to send next
        self.lines = 0  # how many lines the reply to that has
        self.first = b""
        self.pieces: list[bytes] = []


def cycle(
    subject: Subject,
    *,
    connections: int,
    tube: str,
    depth: int = 1,
    body: int = 100,
    steps: Sequence[str] = ("put", "reserve", "delete"),
    seconds: float = 0.0,
    rounds: int = 0,
    watching: int = 1,
    attributes: str = "",
) -> Sample:
    """Each client repeats these steps, with `depth` commands in flight, for this many seconds or rounds.

    A latency is that of a whole step, from sending it to its last reply.

    Args:
        watching: how many tubes each client watches; all but one are empty.
        attributes: what put-with demands of each job; "{}" stands for a number that no other job has.
    """
    clients = [Client(subject, b"%b-%d" % (tube.encode(), number), watching) for number in range(connections)]
    cycling = _Cycling(subject, clients, depth, body, steps, attributes)
    if seconds:
        cycling.go(clock() + round(seconds * WARM_UP * SECOND), 0)
    cycling.commands = 0
    del cycling.latencies[:]
    meter = Meter(subject)
    cycling.go(clock() + round((seconds or 1e6) * SECOND), rounds)
    sample = meter.sample(cycling.commands, cycling.latencies)
    cycling.close()
    return sample


class _Cycling:
    def __init__(
        self, subject: Subject, clients: list[Client], depth: int, body: int, steps: Sequence[str], attributes: str
    ) -> None:
        self.protocol = subject.commands
        self.clients = clients
        self.depth = depth
        self.steps = list(steps)
        self.commands = 0
        self.latencies = array("q")
        self.by_file = {client.sock.fileno(): client for client in clients}
        self.poll = select.epoll()
        self.prepared: dict[tuple[bytes, str], bytes] = {}
        payload = b"x" * body
        self.put_with = put_with(attributes, payload) if attributes else None
        self.numbers = itertools.count(1)
        for client in clients:
            self.poll.register(client.sock, select.EPOLLIN)
            for step in self.steps:
                if step == "put" and not attributes:
                    self.prepared[client.tube, step] = self.protocol.put(client.tube, payload) * depth
                elif step == "reserve":
                    self.prepared[client.tube, step] = self.protocol.reserve(client.tube) * depth
            self._prepare(client, b"")

    def _prepare(self, client: Client, replies: bytes) -> None:
        """Prepare the client's next step; `replies` are those of the last one."""
        step = self.steps[client.step]
        if step == "delete":
            client.data = self.protocol.delete(client.tube, self.protocol.ids(replies))
        elif step == "release":
            client.data = b"".join([b"release %b 0 0\r\n" % number for number in self.protocol.ids(replies)])
        elif step == "put" and self.put_with is not None:
            client.data = b"".join([self.put_with(next(self.numbers)) for _ in range(self.depth)])
        else:
            client.data = self.prepared[client.tube, step]
        client.lines = self.protocol.lines[step] * self.depth
        client.first = self.protocol.replies[step]

    def go(self, end: int, rounds: int) -> None:
        """Run until the time is up, or each client has done this many rounds. Each client completes its step."""
        for client in self.clients:
            client.left = client.lines
            client.sent = clock()
            client.sendall(client.data)
        active = len(self.clients)
        by_file, latencies, poll = self.by_file, self.latencies.append, self.poll.poll
        while active:
            for descriptor, _ in poll(REPLY_WITHIN) or none_came():
                client = by_file[descriptor]
                data = client.recv(BUFFER)
                client.left -= data.count(b"\n")
                if client.left > 0:
                    if not data:
                        raise UnexpectedReplyError("the server closed a connection")
                    client.pieces.append(data)
                    continue
                if client.pieces:
                    data = b"".join([*client.pieces, data])
                    client.pieces.clear()
                if not data.startswith(client.first) or (self.depth > 1 and data.count(client.first) != self.depth):
                    raise UnexpectedReplyError(f"{self.steps[client.step]}: {_other(data, client.first)!r}")
                now = clock()
                latencies(now - client.sent)
                self.commands += self.depth
                client.step += 1
                if client.step == len(self.steps):
                    client.step = 0
                    client.round += 1
                self._prepare(client, data)
                if now >= end or (rounds and client.step == 0 and client.round == rounds):
                    active -= 1
                    continue
                client.left = client.lines
                client.sent = clock()
                client.sendall(client.data)

    def close(self) -> None:
        self.poll.close()
        for client in self.clients:
            client.sock.close()


def put_with(attributes: str, payload: bytes) -> Callable[[int], bytes]:
    """Make puts with attributes, of which each is given its number."""
    head = f"put-with {PRIORITY} 0 {TTR} {len(payload)} "
    tail = b"\r\n" + payload + b"\r\n"
    return lambda number: f"{head}{attributes.replace('{}', str(number))}".encode() + tail


def _other(replies: bytes, first: bytes) -> bytes:
    """The first of these lines that is not the expected reply, where such a line can be told; else where they begin."""
    lines = replies.split(b"\r\n")
    return next((line for line in lines[:-1] if line[:1].isupper() and not line.startswith(first)), replies[:100])


# Many commands on one connection


def stream(
    subject: Subject,
    *,
    kind: str,
    count: int,
    body: int = 100,
    delays: tuple[int, int] = (0, 0),
    ids: Sequence[int] = (),
    verb: str = "delete",
    batch: int = 100,
) -> Sample:
    """Send `count` commands of one kind, two batches in flight: put, delete (or another verb with an id), tubes."""
    kinds: dict[str, Callable[..., Batches]] = {"put": _puts, "delete": _deletes, "tubes": _tubes}
    batches = kinds[kind](subject.protocol, count, body, tuple(delays), tuple(ids), verb, batch)
    latencies = array("q")
    with subject.connect() as sock:
        ask(sock, *subject.commands.begin(MOVED))
        in_flight: deque[tuple[int, int]] = deque()
        ahead = 0  # lines of the batches after the first of those in flight
        sendall, recv = sock.sendall, sock.recv
        meter = Meter(subject)
        for data, lines in [*batches, *[(b"", 0)] * 2]:
            if data:
                in_flight.append((clock(), lines))
                sendall(data)
            if len(in_flight) == 2 or (in_flight and not data):
                sent, wanted = in_flight.popleft()
                while ahead < wanted:
                    received = recv(BUFFER)
                    ahead += received.count(b"\n")
                    if not received:
                        raise UnexpectedReplyError("the server closed a connection")
                ahead -= wanted
                latencies.append(clock() - sent)
        return meter.sample(count, latencies)


Batches = list[tuple[bytes, int]]


def _in_batches(commands: Iterator[bytes], count: int, batch: int) -> Batches:
    result = []
    for first in range(0, count, batch):
        size = min(batch, count - first)
        result.append((b"".join([next(commands) for _ in range(size)]), size))
    return result


@functools.lru_cache(maxsize=2)  # the same for each peer in turn
def _puts(
    protocol: str, count: int, body: int, delays: tuple[int, int], ids: object, verb: object, batch: int
) -> Batches:
    """Puts with random delays between these two, in seconds; the same in each run."""
    rng = random.Random(1)
    low, high = delays
    put = PROTOCOLS[protocol].put
    payload = b"x" * body
    if protocol == "beanstalk":
        made = put(b"", payload, 987654321).split(b"987654321")
        return _in_batches((b"%b%d%b" % (made[0], rng.randint(low, high), made[1]) for _ in range(count)), count, batch)
    return _in_batches((put(MOVED, payload, rng.randint(low, high)) for _ in range(count)), count, batch)


def _deletes(
    protocol: str, count: int, body: object, delays: object, ids: tuple[int, ...], verb: str, batch: int
) -> Batches:
    if protocol == "beanstalk":
        return _in_batches((b"%b %d\r\n" % (verb.encode(), number) for number in ids), count, batch)
    delete = PROTOCOLS[protocol].delete
    return _in_batches((delete(MOVED, [b"%d" % number]) for number in ids), count, batch)


def _tubes(
    protocol: str, count: int, body: object, delays: object, ids: tuple[int, ...], verb: object, batch: int
) -> Batches:
    """Puts of one job in each of `count` tubes; the first of `ids` is the number of the first tube."""
    first = ids[0]
    commands = (b"use u%d\r\nput 0 0 1 1\r\nx\r\n" % number for number in range(first, first + count))
    return [(data, 2 * size) for data, size in _in_batches(commands, count, batch)]


def one_by_one(subject: Subject, *, commands: Sequence[str], lines: int, body: str = "") -> Sample:
    """Send commands, each after the reply to the one before; each reply has `lines` lines."""
    latencies = array("q")
    with subject.connect() as sock:
        ask(sock, *subject.commands.begin(MOVED))
        meter = Meter(subject)
        for command in commands:
            asked = clock()
            ask(sock, command.encode() + b"\r\n", lines)
            latencies.append(clock() - asked)
        return meter.sample(len(commands), latencies)


# Workers that wait


def handover(subject: Subject, *, workers: int, in_flight: int, seconds: float) -> Sample:
    """Workers wait for a job, and a producer puts one whenever one is done: put, reserve, delete.

    A latency is the time from the put to the reply that the worker gets.
    """
    producer = subject.connect()
    ask(producer, b"use w\r\n")
    waiting = {}
    poll = select.epoll()
    for _ in range(workers):
        sock = subject.connect()
        ask(sock, b"watch w\r\nignore default\r\n", 2)
        sock.sendall(b"reserve\r\n")
        waiting[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)
    put = PROTOCOLS["beanstalk"].put
    latencies = array("q")
    sent: dict[bytes, int] = {}
    number = done = 0
    inserted = 0  # replies to the producer; they are read when there are some
    end = clock() + round(seconds * SECOND)
    poll.register(producer, select.EPOLLIN)
    meter = Meter(subject)
    for _ in range(in_flight):
        number += 1
        sent[b"%08d" % number] = clock()
        producer.sendall(put(b"", b"%08d" % number))
    while done < number or inserted < number:
        for descriptor, _ in poll.poll(REPLY_WITHIN) or none_came():
            if descriptor == producer.fileno():
                inserted += producer.recv(BUFFER).count(b"\n")
                continue
            sock = waiting[descriptor]
            data = sock.recv(1000)
            at = data.find(b"RESERVED")
            if data.startswith(b"DELETED"):
                done += 1
                if clock() < end:
                    number += 1
                    sent[b"%08d" % number] = clock()
                    producer.sendall(put(b"", b"%08d" % number))
            if at >= 0:
                _, job, _, body = data[at:].split(None, 3)
                latencies.append(clock() - sent.pop(body.strip()))
                sock.sendall(b"delete %b\r\nreserve\r\n" % job)
    sample = meter.sample(3 * number, latencies)
    poll.close()
    for sock in [producer, *waiting.values()]:
        sock.close()
    return sample


# Delays and idle time


def lateness(subject: Subject, *, count: int, span: int, put_seconds: float) -> Sample:
    """How late a worker gets jobs that are due: `count` jobs, due within `span` seconds.

    Another client asks something every two milliseconds; its latencies are in the sample as `other_...`.
    """
    rng = random.Random(3)
    producer, worker, other = subject.connect(), subject.connect(), subject.connect()
    protocol = subject.commands
    for sock in (producer, worker, other):
        ask(sock, *protocol.begin(MOVED))
    due = array("q", [0]) * count
    low = -int(-put_seconds // 1) + 2  # whole seconds: the first is not due before the last is put
    number = 0
    started = clock()
    while number < count:
        batch = min(100, count - number)
        delays = [rng.randrange(low, low + span) for _ in range(batch)]
        data = [protocol.put(MOVED, b"%08d" % (number + i), delay) for i, delay in enumerate(delays)]
        now = clock()
        ask(producer, b"".join(data), batch)
        for i, delay in enumerate(delays):
            due[number + i] = now + delay * SECOND
        number += batch
        left = started + put_seconds * SECOND * number / count - clock()
        if left > 0:
            time.sleep(left / SECOND)
    put_took = (clock() - started) / SECOND
    late, answers = array("q"), array("q")
    meter = Meter(subject)
    receive = _reserved_by_polling if subject.protocol == "redis" else _reserved
    receive(protocol, worker, other, count, due, late, answers)
    sample = meter.sample(count, late)
    sample |= {f"other_{name}": value for name, value in percentiles(answers, MILLISECOND).items()}
    sample |= {"early": sum(value < 0 for value in late), "put_seconds": put_took}
    for sock in (producer, worker, other):
        sock.close()
    return sample


def _reserved(
    protocol: QueueProtocol,
    worker: socket.socket,
    other: socket.socket,
    count: int,
    due: Sequence[int],
    late: array[int],
    answers: array[int],
) -> None:
    """A worker that always has some hundred reserves waiting, so that the worker itself is never late."""
    poll = select.epoll()
    poll.register(worker, select.EPOLLIN)
    poll.register(other, select.EPOLLIN)
    other_file = other.fileno()
    question = b"list-tube-used\r\n"
    pending = b""
    asked = in_flight = 0
    other_due = clock()
    while len(late) < count:
        if in_flight < 200:
            worker.sendall(b"reserve\r\n" * 200)
            in_flight += 200
        if not asked and clock() >= other_due:
            asked = clock()
            other.sendall(question)
        for descriptor, _ in poll.poll(0.001):
            if descriptor == other_file:
                other.recv(1000)
                now = clock()
                answers.append(now - asked)
                asked, other_due = 0, now + 2 * MILLISECOND
                continue
            pending += worker.recv(BUFFER)
            now = clock()  # not before: a job that came meanwhile would seem to be early
            lines = pending.split(b"\r\n")
            whole = (len(lines) - 1) // 2 * 2
            try:
                late.extend([now - due[int(body)] for body in lines[1:whole:2]])
            except ValueError:
                raise UnexpectedReplyError(f"reserve: {lines[:4]!r}") from None
            in_flight -= whole // 2
            pending = b"\r\n".join(lines[whole:])
    poll.close()


def _reserved_by_polling(
    protocol: QueueProtocol,
    worker: socket.socket,
    other: socket.socket,
    count: int,
    due: Sequence[int],
    late: array[int],
    answers: array[int],
) -> None:
    """A worker that asks for a hundred jobs every five milliseconds, or again at once if it got a hundred."""
    question = protocol.reserve(MOVED) * 100
    while len(late) < count:
        worker.sendall(question)
        data, answered = b"", 0
        while answered < 100:
            data += worker.recv(BUFFER)
            if not data.endswith(b"\r\n"):
                continue
            got = data.count(b"*2\r\n")
            answered = data.count(b"$-1\r\n") + (got if data.count(b"\n") >= got * protocol.lines["reserve"] else 0)
        now = clock()
        words = data.replace(b"$-1\r\n", b"").split(b"\r\n")
        late.extend([now - due[int(body)] for body in words[4::5]])
        asked = clock()
        ask(other, b"*1\r\n$4\r\nPING\r\n")
        answers.append(clock() - asked)
        if got < 100:
            time.sleep(0.005)


def idle(subject: Subject, *, seconds: float) -> Sample:
    """Do nothing for this many seconds: measures what an idle server uses, and its engine."""
    engine = process.cpu(subject.engine) if subject.engine else None
    before, slept = process.cpu(subject.pid), process.switches(subject.pid)
    time.sleep(seconds)
    spent = process.cpu(subject.pid).since(before)
    apart = {} if engine is None else {"engine_ms": process.cpu(subject.engine).since(engine).total * 1e3}
    return apart | {"cpu_ms": spent.total * 1e3, "woken": process.switches(subject.pid) - slept, "seconds": seconds}


def looks(subject: Subject, *, url: str, shards: int, seconds: float) -> Sample:
    """Look at the leases of all shards, as a node does that leads none, again and again: measures the engine."""
    from beanstalk_server.cluster.engine.interface import EngineError, observe  # the other loads need no redis-py
    from beanstalk_server.cluster.engine.redis.connector import RedisConnector
    from beanstalk_server.settings.config import Config

    registry = RedisConnector(url, Config().cluster_name, 0, timeout=REPLY_WITHIN).registry()
    try:
        asked = [observe(shard) for shard in range(shards)]
        registry.perform(asked)  # it connects, and has all fields of all leases
        meter = Meter(subject)
        count = 0
        end = clock() + round(seconds * SECOND)
        while clock() < end:
            for lease in registry.perform(asked):
                if isinstance(lease, EngineError):
                    raise UnexpectedReplyError(str(lease))
            count += shards
        return meter.sample(count)
    finally:
        registry.close()


# A long life in a short time


def steady(subject: Subject, *, connections: int, seconds: float, window: float) -> list[Sample]:
    """A mix of all commands, as fast as possible, with about the same number of live jobs at any time.

    Returns a sample for each window of `window` seconds, with the memory at its end.
    """
    rng = random.Random(6)
    body = b"x" * 100
    clients = [subject.connect() for _ in range(connections)]
    poll = select.epoll()
    state: dict[int, _Mixed] = {}
    for number, sock in enumerate(clients):
        ask(sock, b"use m%d\r\nwatch m%d\r\nignore default\r\n" % (number % 5, number % 5), 3)
        poll.register(sock, select.EPOLLIN)
        state[sock.fileno()] = _Mixed(sock, rng, body)
    samples: list[Sample] = []
    end = clock() + round(seconds * SECOND)
    for mixed in state.values():
        mixed.go_on()
    while clock() < end:
        latencies = array("q")
        meter = Meter(subject)
        over = clock() + round(window * SECOND)
        while clock() < over:
            for descriptor, _ in poll.poll(REPLY_WITHIN) or none_came():
                mixed = state[descriptor]
                if mixed.receive():
                    latencies.append(clock() - mixed.sent)
                    mixed.go_on()
        samples.append(meter.sample(len(latencies), latencies) | {"resident": process.resident(subject.pid)})
    poll.close()
    for sock in clients:
        sock.close()
    return samples


class _Mixed:
    """A client that sends random commands, with one command in flight."""

    def __init__(self, sock: socket.socket, rng: random.Random, body: bytes) -> None:
        self.sock = sock
        self.rng = rng
        self.body = body
        self.put: deque[bytes] = deque()
        self.held: list[bytes] = []
        self.command = b""
        self.received = b""
        self.sent = 0

    def go_on(self) -> None:
        rng = self.rng
        choice = rng.random()
        if len(self.put) > 500:
            self.command = b"delete %b\r\n" % self.put.popleft()
        elif self.held and choice < 0.6:
            job = self.held.pop()
            if choice < 0.35:
                self.command = b"delete %b\r\n" % job
            elif choice < 0.5:
                self.command = b"release %b 1024 %d\r\n" % (job, rng.randrange(3))
            else:
                self.command = b"bury %b 2048\r\n" % job
        elif choice < 0.7:
            self.command = b"reserve-with-timeout 0\r\n"
        elif choice < 0.75:
            self.command = b"kick 3\r\n"
        else:
            self.command = b"put %d %d 5 100\r\n%b\r\n" % (rng.randrange(2000), rng.randrange(4), self.body)
        self.sent = clock()
        self.sock.sendall(self.command)

    def receive(self) -> bool:
        """Process what has come; return whether the reply is complete."""
        self.received += self.sock.recv(BUFFER)
        received = self.received
        if received.count(b"\n") < 1 + received.startswith(b"RESERVED"):
            return False
        if received.startswith(b"RESERVED"):
            self.held.append(received.split(b" ", 2)[1])
        elif received.startswith(b"INSERTED"):
            self.put.append(received.split()[1])
        self.received = b""
        return True


def clear(subject: Subject, *, count: int) -> Sample:
    """clear-tube of this many jobs: how long it takes, and how long another client waits for its answers meanwhile."""
    stream(subject, kind="put", count=count, delays=(0, 1))
    client, other = subject.connect(), subject.connect()
    ask(other, b"list-tube-used\r\n")
    answers = array("q")
    started = clock()
    client.sendall(b"clear-tube %b\r\n" % MOVED)
    client.setblocking(False)
    while True:
        asked = clock()
        ask(other, b"list-tube-used\r\n")
        answers.append(clock() - asked)
        try:
            answer = client.recv(100)
            break
        except BlockingIOError:
            pass
    if not answer.startswith(b"CLEARED"):
        raise UnexpectedReplyError(answer.decode())
    sample = {"seconds": (clock() - started) / SECOND} | percentiles(answers, MILLISECOND)
    client.close()
    other.close()
    return sample


def come_and_go(subject: Subject, *, total: int, alive: int) -> Sample:
    """Jobs put and cancelled in random order, `alive` of them live at a time: what they leave in memory."""
    rng = random.Random(5)
    ids: list[int] = []
    number = early = 0
    body = b"x" * 100
    with subject.connect() as sock:
        while number < total:
            puts = [b"put 0 %d 60 100\r\n%b\r\n" % (rng.randrange(3600, 360_000), body) for _ in range(100)]
            ask(sock, b"".join(puts), 100)
            ids += range(number + 1, number + 101)
            number += 100
            if len(ids) > alive:
                rng.shuffle(ids)
                ask(sock, b"".join([b"cancel %d\r\n" % ids.pop() for _ in range(100)]), 100)
            if not early and number >= total / 10:
                early = process.resident(subject.pid)
    return {"jobs": total, "grown": process.resident(subject.pid) - early}


def lapse(subject: Subject, *, state: str, count: int, ttr: int = TTR) -> Sample:
    """How many jobs are put, and reserved if `state` says so; how long another client waits for its answers while time
    alone lets them leave that state.

    Args:
        state: "ready" or "reserved".
        ttr: their time to run, in seconds: reserving them all must not take as long.
    """
    put = b"put 0 0 %d 8\r\nxxxxxxxx\r\n" % ttr
    with subject.connect() as client, subject.connect() as other:
        ask(client, *subject.commands.begin(MOVED))
        for left in range(count, 0, -1000):
            ask(client, put * min(left, 1000), min(left, 1000))
        if state == "reserved":
            for left in range(count, 0, -1000):
                ask(client, b"reserve\r\n" * min(left, 1000), 2 * min(left, 1000))
        end = clock() + REPLY_WITHIN * SECOND
        while number_of_jobs(client, state) == count:
            if clock() > end:
                raise UnexpectedReplyError(f"all jobs are {state} after {REPLY_WITHIN} s")
            time.sleep(0.01)
        answers = array("q")
        meter = Meter(subject)
        while left := number_of_jobs(client, state):
            if clock() > end:
                raise UnexpectedReplyError(f"{left} jobs are {state} after {REPLY_WITHIN} s")
            for _ in range(50):
                asked = clock()
                ask(other, b"list-tube-used\r\n")
                answers.append(clock() - asked)
                time.sleep(0.001)
        return meter.sample(count, answers)


def number_of_jobs(sock: socket.socket, state: str) -> int:
    """How many jobs of the tube of all loads but `cycle` are in this state."""
    sock.sendall(b"stats-tube %b\r\n" % MOVED)
    received = b""
    while not received.endswith(b"\r\n") or received.count(b"\r\n") < 2:
        data = sock.recv(BUFFER)
        if not data:
            raise UnexpectedReplyError("the server closed a connection")
        received += data
    name = b"\ncurrent-jobs-%b: " % state.encode()
    return int(received.partition(name)[2].partition(b"\n")[0])


# Under attack


def hostile(
    subject: Subject, *, attack: str, probe: str, seconds: float, arguments: dict[str, Any], probes: int = 1
) -> Sample:
    """How long another client waits for its answers, one question at a time, until the attack or the time is over.

    With more than one of these clients, they ask in turn.

    The server's memory is its peak since the start.
    """
    answers = array("q")
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(subject.connect()) for _ in range(probes)]
        attacking = stack.enter_context(Attack(subject, attack, arguments))
        for sock in socks:
            ask(sock, b"use probe\r\n")
            for _ in range(20):  # a first answer is late by itself
                PROBES[probe](sock)
        attacking.begin()
        began = clock()
        end = began + round(seconds * SECOND)
        is_over = False
        asking = itertools.cycle(socks)
        while clock() < end:
            answers.extend(PROBES[probe](next(asking)))
            time.sleep(0.001)
            if not is_over and attacking.is_over():
                is_over = True
                end = min(end, clock() + SECOND // 10)  # it may leave work behind
        done = attacking.end()
        took = (clock() - began) / SECOND
    sample = {"attacks": done, "answers": len(answers), "peak": process.peak(subject.pid), "attack_rate": done / took}
    return sample | percentiles(answers, MILLISECOND)


def unauthorized(subject: Subject, *, count: int) -> Sample:
    """This many clients, one after the other, with a token that nobody has; how much the server's memory has grown.

    What the first tenth has left does not count: that is what the server needs for such clients at all.
    """
    wrong = b"auth " + b"x" * 43 + b"\r\n"
    forget = struct.pack("ii", 1, 0)  # a reset at the end: otherwise all ports would soon be in TIME_WAIT
    early = 0
    for number in range(count):
        if number == count // 10:
            early = process.resident(subject.pid)
            meter = Meter(subject)
        with subject.connect() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, forget)
            answer = ask(sock, wrong)
            if answer != b"UNAUTHORIZED\r\n":
                raise UnexpectedReplyError(f"auth: {answer[:100]!r}")
    return meter.sample(count - count // 10) | {"grown": process.resident(subject.pid) - early}


def taken_over(subject: Subject, *, leader: int) -> Sample:
    """Kill the process of the leader, and wait for the next one's first answer to a client of a node that stood by."""
    question, answer = b"list-tube-used\r\n", b"USING default\r\n"
    with subject.connect() as sock:
        answers = [ask(sock, question)]  # it is the leader's: the link is there
        os.kill(leader, signal.SIGKILL)
        killed = clock()
        answers.append(ask(sock, question))
        took = clock() - killed
    if answers != [answer, answer]:
        raise UnexpectedReplyError(f"list-tube-used: {answers}")
    return {"to_first_answer": took / MILLISECOND}


def _peek(sock: socket.socket) -> list[int]:
    asked = clock()
    answer = ask(sock, b"peek 999999999999\r\n")
    answered = clock()
    if answer != b"NOT_FOUND\r\n":
        raise UnexpectedReplyError(f"peek: {answer[:100]!r}")
    return [answered - asked]


def _put_and_delete(sock: socket.socket) -> list[int]:
    put = clock()
    answer = ask(sock, b"put 0 0 60 1\r\nx\r\n")
    inserted = clock()
    if not answer.startswith(b"INSERTED "):
        raise UnexpectedReplyError(f"put: {answer[:100]!r}")
    command = b"delete %b\r\n" % answer.split()[1]
    delete = clock()
    answer = ask(sock, command)
    deleted = clock()
    if answer != b"DELETED\r\n":
        raise UnexpectedReplyError(f"delete: {answer[:100]!r}")
    return [inserted - put, deleted - delete]


PROBES: dict[str, Callable[[socket.socket], list[int]]] = {"peek": _peek, "put": _put_and_delete}
"""What the other client does; each returns how long it waited for each answer, in nanoseconds."""


LOADS: dict[str, Callable[..., Any]] = {
    load.__name__: load
    for load in (
        cycle,
        stream,
        one_by_one,
        handover,
        lateness,
        idle,
        looks,
        steady,
        clear,
        come_and_go,
        lapse,
        hostile,
        backlog,
        unauthorized,
        taken_over,
    )
}


def pin(processor: int) -> None:
    """Keep this process on one processor."""
    os.sched_setaffinity(0, {processor})
