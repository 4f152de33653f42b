"""The loads: clients on plain sockets that send prepared bytes, as fast as the server answers or as the load demands.

Each load is a function of a subject and its own arguments, and returns one or more samples. It runs in the generator's
process. Replies are not parsed: their lines are counted, and only the beginning of each reply is checked.
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
from collections.abc import Callable, Sequence
from typing import Any

from bench import process
from bench.attacks import Attack
from bench.protocols import MOVED, PROTOCOLS, TTR
from bench.results import Sample, percentiles
from bench.subject import (
    BUFFER,
    MILLISECOND,
    REPLY_WITHIN,
    SECOND,
    Subject,
    UnexpectedReplyError,
    ask,
    clock,
    no_reply,
    receive,
    statistic,
)

WARM_UP = 0.1  # seconds before a measurement, for each of its seconds


def after(seconds: float) -> int:
    """The moment after this many seconds."""
    return clock() + round(seconds * SECOND)


class Meter:
    """The CPU time that a server and the generator use from now on."""

    def __init__(self, subject: Subject) -> None:
        self.pid = subject.pid
        self.own = time.process_time()
        self.engine = subject.engine
        self.engine_cpu = process.cpu_of_family(self.engine) if self.engine else 0.0
        self.cpu = process.cpu(self.pid)
        self.started = clock()

    def sample(self, commands: int, latencies: Sequence[int] = ()) -> Sample:
        """The cost of this many commands; latencies in nanoseconds."""
        seconds = (clock() - self.started) / SECOND
        spent = process.cpu(self.pid).since(self.cpu)
        own = time.process_time() - self.own
        each = 1e6 / max(commands, 1)
        sample = {
            "commands": commands,
            "seconds": seconds,
            "rate": commands / seconds,
            "cpu": spent.total * each,
            "user": spent.user * each,
            "system": (spent.total - spent.user) * each,
            "server_busy": spent.total / seconds,
            "generator_busy": own / seconds,
        }
        if self.engine_cpu:
            sample["engine_cpu"] = (process.cpu_of_family(self.engine) - self.engine_cpu) * each
        return sample | percentiles(latencies, MILLISECOND)


# Jobs, each client in its own tube


class Client:
    """One connection that repeats its steps, with `depth` commands in flight in each."""

    __slots__ = ("data", "first", "left", "lines", "pieces", "prepared", "sent", "sock", "step", "tube")

    def __init__(self, sock: socket.socket, tube: bytes) -> None:
        self.sock = sock
        self.tube = tube
        self.prepared: dict[str, bytes] = {}  # what to send for steps that are always the same
        self.step = 0
        self.left = 0  # lines of the reply that are still to come
        self.sent = 0  # when `data` was sent, in nanoseconds
        self.data = b""  # what to send next
        self.lines = 0  # how many lines the reply to that has
        self.first = b""  # how each reply begins
        self.pieces: list[bytes] = []

    def send(self) -> None:
        self.left = self.lines
        self.sent = clock()
        self.sock.sendall(self.data)


def cycle(
    subject: Subject,
    *,
    connections: int,
    tube: str,
    seconds: float,
    depth: int = 1,
    body: int = 100,
    steps: Sequence[str] = ("put", "reserve", "delete"),
    watching: int = 1,
) -> Sample:
    """Each client repeats these steps, with `depth` commands in flight, for this many seconds.

    A latency is that of a whole step, from sending it to its last reply.

    Args:
        watching: how many tubes each client watches; all but one are empty.
    """
    with contextlib.ExitStack() as stack:
        cycling = _Cycling(subject, depth, body, steps)
        for number in range(connections):
            sock = stack.enter_context(subject.connect())
            name = b"%b%b-%d" % (subject.tubes.encode(), tube.encode(), number)
            ask(sock, *subject.commands.begin(name))
            for other in range(1, watching):
                ask(sock, b"watch %b-%d\r\n" % (name, other))
            cycling.add(Client(sock, name))
        cycling.run(seconds * WARM_UP)
        cycling.commands = 0
        del cycling.latencies[:]
        meter = Meter(subject)
        cycling.run(seconds)
        return meter.sample(cycling.commands, cycling.latencies)


class _Cycling:
    def __init__(self, subject: Subject, depth: int, body: int, steps: Sequence[str]) -> None:
        self.protocol = subject.commands
        self.depth = depth
        self.steps = steps
        self.payload = b"x" * body
        self.commands = 0
        self.latencies = array("q")
        self.poll = select.epoll()
        self.by_file: dict[int, Client] = {}

    def add(self, client: Client) -> None:
        self.by_file[client.sock.fileno()] = client
        self.poll.register(client.sock, select.EPOLLIN)
        client.prepared["reserve"] = self.protocol.reserve(client.tube) * self.depth
        client.prepared["put"] = self.protocol.put(client.tube, self.payload) * self.depth
        self._prepare(client, b"")

    def _prepare(self, client: Client, replies: bytes) -> None:
        """Prepare the client's next step; `replies` are those of the last one."""
        step = self.steps[client.step]
        if step == "delete":
            client.data = self.protocol.delete(client.tube, self.protocol.ids(replies))
        else:
            client.data = client.prepared[step]
        client.lines = self.protocol.lines[step] * self.depth
        client.first = self.protocol.replies[step]

    def run(self, seconds: float) -> None:
        """Run until the time is up; each client completes its step."""
        end = after(seconds)
        for client in self.by_file.values():
            client.send()
        active = len(self.by_file)
        by_file, latencies, poll = self.by_file, self.latencies.append, self.poll.poll
        while active:
            for descriptor, _ in poll(REPLY_WITHIN) or no_reply():
                client = by_file[descriptor]
                data = receive(client.sock)
                client.left -= data.count(b"\n")
                if client.left > 0:
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
                client.step = (client.step + 1) % len(self.steps)
                self._prepare(client, data)
                if now >= end:
                    active -= 1
                else:
                    client.send()


def _other(replies: bytes, first: bytes) -> bytes:
    """The first of these lines that is not the expected reply, where such a line can be told; else where they begin."""
    lines = replies.split(b"\r\n")
    return next((line for line in lines[:-1] if line[:1].isupper() and not line.startswith(first)), replies[:100])


# Many commands on one connection


def puts(subject: Subject, *, count: int, body: int = 100, delays: tuple[int, int] = (0, 0)) -> Sample:
    """Put jobs with random delays between these two, in seconds; the same in each run."""
    return _stream(subject, _puts(subject.protocol, count, body, delays), 1)


@functools.lru_cache(maxsize=2)  # the same for each peer in turn
def _puts(protocol: str, count: int, body: int, delays: tuple[int, int]) -> list[bytes]:
    rng = random.Random(1)
    put = PROTOCOLS[protocol].put
    payload = b"x" * body
    if protocol != "beanstalk":
        return [put(MOVED, payload, rng.randint(*delays)) for _ in range(count)]
    before, behind = put(b"", payload, 987654321).split(b"987654321")
    return [b"%b%d%b" % (before, rng.randint(*delays), behind) for _ in range(count)]


def deletes(subject: Subject, *, ids: Sequence[int], verb: str = "delete") -> Sample:
    """Delete these jobs, or cancel them."""
    if subject.protocol == "beanstalk":
        return _stream(subject, [b"%b %d\r\n" % (verb.encode(), number) for number in ids], 1)
    return _stream(subject, [subject.commands.delete(MOVED, [b"%d" % number]) for number in ids], 1)


def tubes(subject: Subject, *, count: int) -> Sample:
    """Make tubes, each with a job."""
    return _stream(subject, [b"use u%d\r\nput 0 0 1 1\r\nx\r\n" % number for number in range(1, count + 1)], 2)


def _stream(subject: Subject, commands: Sequence[bytes], lines: int, batch: int = 100) -> Sample:
    """Send commands, two batches in flight; each has a reply of this many lines."""
    batches = [commands[first : first + batch] for first in range(0, len(commands), batch)]
    prepared = [(b"".join(each), lines * len(each)) for each in batches]
    latencies = array("q")
    with subject.connect() as sock:
        ask(sock, *subject.commands.begin(MOVED))
        in_flight: deque[tuple[int, int]] = deque()
        ahead = 0  # lines of the batches after the first of those in flight
        meter = Meter(subject)
        for data, wanted in [*prepared, *[(b"", 0)] * 2]:
            if data:
                in_flight.append((clock(), wanted))
                sock.sendall(data)
            if len(in_flight) == 2 or (in_flight and not data):
                sent, wanted = in_flight.popleft()
                while ahead < wanted:
                    ahead += receive(sock).count(b"\n")
                ahead -= wanted
                latencies.append(clock() - sent)
        return meter.sample(len(commands), latencies)


def one_by_one(subject: Subject, *, command: str, count: int, lines: int = 1) -> Sample:
    """Send a command again and again, each after the reply to the one before; a reply has this many lines."""
    latencies = array("q")
    with subject.connect() as sock:
        ask(sock, *subject.commands.begin(MOVED))
        meter = Meter(subject)
        for _ in range(count):
            asked = clock()
            ask(sock, command.encode() + b"\r\n", lines)
            latencies.append(clock() - asked)
        return meter.sample(count, latencies)


def pages(subject: Subject, *, count: int, asked: int) -> Sample:
    """Put jobs with random priorities, and list pages of them, each from a random priority on."""
    rng = random.Random(5)
    most = (1 << 32) - 1
    _stream(subject, [b"put %d 0 60 100\r\n%b\r\n" % (rng.randint(0, most), b"x" * 100) for _ in range(count)], 1)
    latencies = array("q")
    with subject.connect() as sock, sock.makefile("rb") as replies:
        meter = Meter(subject)
        for _ in range(asked):
            began = clock()
            sock.sendall(b"list-jobs %b ready %d-0 1000\r\n" % (MOVED, rng.randint(0, most)))
            replies.read(int(replies.readline().split()[1]) + 2)
            latencies.append(clock() - began)
        return meter.sample(asked, latencies)


# Delays and idle time


def lateness(subject: Subject, *, count: int, span: int, put_seconds: float) -> Sample:
    """How late a worker gets jobs that are due: `count` jobs, due within `span` seconds.

    Another client asks something every two milliseconds; its latencies are in the sample as `other_...`. The worker
    always has some hundred reserves waiting, so that it is never late itself.
    """
    rng = random.Random(3)
    late, answers = array("q"), array("q")
    due = array("q")
    low = -int(-put_seconds // 1) + 2  # whole seconds: the first is not due before the last is put
    with (
        subject.connect() as producer,
        subject.connect() as worker,
        subject.connect() as other,
        select.epoll() as poll,
    ):
        for sock in (producer, worker, other):
            ask(sock, *subject.commands.begin(MOVED))
        started = clock()
        while len(due) < count:
            delays = [rng.randrange(low, low + span) for _ in range(min(100, count - len(due)))]
            data = [subject.commands.put(MOVED, b"%08d" % (len(due) + i), delay) for i, delay in enumerate(delays)]
            now = clock()
            ask(producer, b"".join(data), len(delays))
            due.extend([now + delay * SECOND for delay in delays])
            time.sleep(max(started + put_seconds * SECOND * len(due) / count - clock(), 0) / SECOND)
        poll.register(worker, select.EPOLLIN)
        poll.register(other, select.EPOLLIN)
        pending = b""
        asked = in_flight = 0
        other_due = clock()
        meter = Meter(subject)
        while len(late) < count:
            if in_flight < 200:
                worker.sendall(b"reserve\r\n" * 200)
                in_flight += 200
            if not asked and clock() >= other_due:
                asked = clock()
                other.sendall(b"list-tube-used\r\n")
            for descriptor, _ in poll.poll(0.001):
                if descriptor == other.fileno():
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
        sample = meter.sample(count, late)
    sample |= {f"other_{name}": value for name, value in percentiles(answers, MILLISECOND).items()}
    return sample | {"early": sum(value < 0 for value in late)}


def idle(subject: Subject, *, seconds: float) -> Sample:
    """Do nothing for this many seconds: measures what an idle server uses, and its engine."""
    pids = {"cpu_ms": subject.pid} | ({"engine_ms": subject.engine} if subject.engine else {})
    before, slept = {name: process.cpu(pid) for name, pid in pids.items()}, process.switches(subject.pid)
    time.sleep(seconds)
    spent = {name: process.cpu(pid).since(before[name]).total * 1e3 for name, pid in pids.items()}
    return spent | {"woken": process.switches(subject.pid) - slept, "seconds": seconds}


def spin(subject: Subject, *, seconds: float) -> Sample:
    """Look at the clock and do nothing else: what a machine takes from a busy process by itself.

    A hypervisor that gives the processor to another machine, and an interrupt, count as CPU time of the process that
    had it.
    """
    longest = most_cpu = 0
    now, cpu = time.monotonic_ns(), time.thread_time_ns()
    end = now + round(seconds * SECOND)
    while now < end:
        before, cpu_before = now, cpu
        now, cpu = time.monotonic_ns(), time.thread_time_ns()
        longest = max(longest, now - before)
        most_cpu = max(most_cpu, min(cpu - cpu_before, now - before))
    return {"longest": longest / MILLISECOND, "held_cpu": most_cpu / MILLISECOND}


def lapse(subject: Subject, *, state: str, count: int, ttr: int = TTR) -> Sample:
    """Put jobs, and reserve them if `state` says so; how long another client waits for its answers while time alone
    lets them leave that state.

    Args:
        state: "ready" or "reserved".
        ttr: their time to run, in seconds: reserving them all must not take as long.
    """
    put = b"put 0 0 %d 8\r\nxxxxxxxx\r\n" % ttr
    tube, name = b"stats-tube " + MOVED, b"current-jobs-%b" % state.encode()
    with subject.connect() as client, subject.connect() as other:
        ask(client, *subject.commands.begin(MOVED))
        for command, lines in ((put, 1), (b"reserve\r\n", 2))[: 1 + (state == "reserved")]:
            for left in range(count, 0, -1000):
                ask(client, command * min(left, 1000), lines * min(left, 1000))
        end = after(REPLY_WITHIN)
        while statistic(client, tube, name) == count:
            if clock() > end:
                raise UnexpectedReplyError(f"all jobs are still {state} after {REPLY_WITHIN} s")
            time.sleep(0.01)
        answers = array("q")
        meter = Meter(subject)
        while left := statistic(client, tube, name):
            if clock() > end:
                raise UnexpectedReplyError(f"{left} jobs are still {state} after {REPLY_WITHIN} s")
            for _ in range(50):
                asked = clock()
                ask(other, b"list-tube-used\r\n")
                answers.append(clock() - asked)
                time.sleep(0.001)
        return meter.sample(count, answers)


# Memory

RETURNED_AFTER = 15
"""Seconds of real time after which a server should have returned the memory of deleted jobs."""

KINDS = {
    "delayed": b"put 0 3600 60 100",
    "ready": b"put 0 0 60 100",
    "key": b"put-keyed key%(number)09d 0 0 60 100",
    "tries": b"put-with 0 0 60 100 tries=3",
    "ttl": b"put-with 0 0 60 100 ttl=3600",
    "at": b"put-with 0 0 60 100 at=4000000000",
    "key, tries": b"put-with 0 0 60 100 key=key%(number)09d tries=3",
    "key, ttl": b"put-with 0 0 60 100 key=key%(number)09d ttl=3600",
    "held key": b"put-with 0 0 60 100 key=key%(number)09d hold=3600",
}
"""How a job of each kind is put: bodies have 100 bytes, and keys 12. A held key remains of a job that is deleted."""


def memory(subject: Subject, *, kind: str, count: int) -> Sample:
    """Put jobs of a kind: the bytes that each adds to the process, and to the server's own account."""
    command = KINDS[kind] + b"\r\n" + b"x" * 100 + b"\r\n"
    account = b"stats", b"current-memory"
    with subject.connect() as sock:
        counted, resident = statistic(sock, *account), subject.resident()
        for first in range(0, count, 200):
            numbers = range(first, min(first + 200, count))
            replies = ask(sock, b"".join([command % {b"number": number} for number in numbers]), len(numbers))
            if replies.count(b"INSERTED ") != len(numbers):
                raise UnexpectedReplyError(f"{kind}: {replies[:100]!r}")
            if kind == "held key":
                ask(sock, b"delete " + b"\r\ndelete ".join(replies.split()[1::2]) + b"\r\n", len(numbers))
        resident = subject.resident() - resident
        return {"bytes_per_job": resident / count, "counted": (statistic(sock, *account) - counted) / count}


def backlog(subject: Subject, *, body: int, count: int) -> Sample:
    """Put jobs and delete them: the most memory that the process takes, and what it takes afterwards."""
    put = b"put 0 0 60 %d\r\n%b\r\n" % (body, bytes(body))
    ids: list[bytes] = []
    meter = Meter(subject)
    with subject.connect() as sock:
        for first in range(0, count, 100):
            part = min(100, count - first)
            ids += ask(sock, put * part, part).split()[1::2]
        for first in range(0, count, 100):
            some = ids[first : first + 100]
            ask(sock, b"delete " + b"\r\ndelete ".join(some) + b"\r\n", len(some))
        sample = meter.sample(2 * count)
        time.sleep(RETURNED_AFTER)
        return sample | {"peak": process.peak(subject.pid), "left": subject.resident()}


# Under attack


def hostile(
    subject: Subject, *, attack: str, probe: str, seconds: float, arguments: dict[str, Any], probes: int = 1
) -> Sample:
    """How long another client waits for its answers, one question at a time, until the attack or the time is over.

    With more than one of these clients, they ask in turn. The server's memory is its peak since the start.
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
        end = after(seconds)
        is_over = False
        asking = itertools.cycle(socks)
        while clock() < end:
            answers.extend(PROBES[probe](next(asking)))
            time.sleep(0.001)
            if not is_over and attacking.is_over():
                is_over = True
                end = min(end, after(0.1))  # it may leave work behind
        done = attacking.end()
        took = (clock() - began) / SECOND
    sample = {"attacks": done, "answers": len(answers), "peak": process.peak(subject.pid), "attack_rate": done / took}
    return sample | percentiles(answers, MILLISECOND)


def _timed(sock: socket.socket, command: bytes, expected: bytes) -> tuple[int, bytes]:
    asked = clock()
    answer = ask(sock, command)
    answered = clock()
    if not answer.startswith(expected):
        raise UnexpectedReplyError(f"{command.split()[0].decode()}: {answer[:100]!r}")
    return answered - asked, answer


def _peek(sock: socket.socket) -> list[int]:
    return [_timed(sock, b"peek 999999999999\r\n", b"NOT_FOUND\r\n")[0]]


def _put_and_delete(sock: socket.socket) -> list[int]:
    put, answer = _timed(sock, b"put 0 0 60 1\r\nx\r\n", b"INSERTED ")
    return [put, _timed(sock, b"delete %b\r\n" % answer.split()[1], b"DELETED\r\n")[0]]


PROBES: dict[str, Callable[[socket.socket], list[int]]] = {"peek": _peek, "put": _put_and_delete}
"""What the other client does; each returns how long it waited for each answer, in nanoseconds."""


def unauthorized(subject: Subject, *, count: int) -> Sample:
    """This many clients, one after the other, with a wrong token; how much the server's memory has grown.

    What the first tenth has left does not count: that is what the server needs for such clients at all.
    """
    wrong = b"auth " + b"x" * 43 + b"\r\n"
    forget = struct.pack("ii", 1, 0)  # a reset at the end: otherwise all ports would soon be in TIME_WAIT
    early = 0
    for number in range(count):
        if number == count // 10:
            early = subject.resident()
            meter = Meter(subject)
        with subject.connect() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, forget)
            _timed(sock, wrong, b"UNAUTHORIZED\r\n")
    return meter.sample(count - count // 10) | {"grown": subject.resident() - early}


def taken_over(subject: Subject, *, leader: int) -> Sample:
    """Kill the process of the leader, and wait for the next one's first answer to a client of a node that stood by."""
    question, answer = b"list-tube-used\r\n", b"USING default\r\n"
    with subject.connect() as sock:
        _timed(sock, question, answer)  # it is the leader's: the link is there
        os.kill(leader, signal.SIGKILL)
        return {"to_first_answer": _timed(sock, question, answer)[0] / MILLISECOND}
