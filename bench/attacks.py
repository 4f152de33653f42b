"""The attacks: a separate process acts as hostile clients, while the generator asks as another client.

    python -m bench.attacks '{"port": 11300, "pid": 42}' '{"attack": "flood", "arguments": {"body": 10, …}}'

It connects and prepares, reports that in a line of JSON, and attacks from the first line of its input on. When the
attack is over or the input ends (also because the generator was killed), it closes its sockets and reports what it
did:

    {"done": 0}
    {"done": 3841}

It runs only while the generator does not need the processor, so that it delays no answer itself.

Each attack is a Python generator. It prepares until its first `yield`. After that it yields about every STEP seconds,
as far as the server lets it, the number of actions so far: answered ones, if it reads answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from bench.protocols import MOVED, PROTOCOLS
from bench.subject import BUFFER, SECOND, Subject, UnexpectedReplyError, ask, clock
from harness.servers import ROOT
from harness.waiting import eventually

STEP = 0.01  # seconds
PIECE = 1 << 20  # bytes sent at once, and read at once
PREPARED = 120.0  # seconds that preparing may take
ENDED = 30.0  # seconds that ending may take

Progress = Generator[int, None, None]


def nobody(subject: Subject) -> Progress:
    """Do nothing: the baseline, which shows how the machine alone delays the answers."""
    while True:
        yield 0
        time.sleep(STEP)  # real time: it does nothing for as long as it is asked to


# Input without end


def flood(subject: Subject, *, body: int, limit: int, reads: bool) -> Progress:
    """Send puts without waiting for replies, up to this many bytes. Read the replies every STEP seconds, or never."""
    put = PROTOCOLS["beanstalk"].put(b"", b"x" * body)
    data = memoryview(put * max(PIECE // len(put), 1))
    sent = replies = 0
    read_at = clock()
    with subject.connect() as sock:
        ask(sock, b"use hostile\r\n")
        sock.setblocking(False)
        yield 0
        while sent < limit or replies < sent // len(put):
            select.select([], [sock] if sent < limit else [], [], STEP)
            with contextlib.suppress(BlockingIOError):
                sent += sock.send(data[sent % len(data) :]) if sent < limit else 0
            if reads and clock() >= read_at:
                replies += _drain(sock).count(b"\n")
                read_at = clock() + round(STEP * SECOND)
            yield replies if reads else sent // len(put)


def _drain(sock: socket.socket) -> bytes:
    """Receive what can be read now."""
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while True:
            pieces.append(sock.recv(PIECE))
            if not pieces[-1]:
                raise UnexpectedReplyError("the server closed a connection")
    return b"".join(pieces)


def bodies(subject: Subject, *, clients: int, body: int) -> Progress:
    """Clients that put a job with a body of this many bytes, and delete it: all at the same time, again and again."""
    put = memoryview(PROTOCOLS["beanstalk"].put(b"", b"x" * body))
    sent: dict[socket.socket, int] = {}
    done = 0
    with _connected(subject, clients) as sockets, select.epoll() as poll:
        by_file = {sock.fileno(): sock for sock in sockets}
        for sock in sockets:
            sock.setblocking(False)
            poll.register(sock, select.EPOLLOUT)
            sent[sock] = 0
        yield 0
        while True:
            for descriptor, _ in poll.poll(STEP):
                sock = by_file[descriptor]
                if sent[sock] < len(put):
                    sent[sock] += sock.send(put[sent[sock] : sent[sock] + PIECE])
                    if sent[sock] == len(put):
                        poll.modify(sock, select.EPOLLIN)
                    continue
                reply = sock.recv(BUFFER)
                if reply.startswith(b"INSERTED"):
                    sock.send(b"delete %b\r\n" % reply.split()[1])
                elif reply == b"DELETED\r\n":
                    done += 1
                    sent[sock] = 0
                    poll.modify(sock, select.EPOLLOUT)
                else:
                    raise UnexpectedReplyError(f"put of {body} bytes: {reply[:100]!r}")
            yield done


def quitting(subject: Subject, *, clients: int) -> Progress:
    """Clients that put a job, quit, and keep sending until the server closes; then they connect again."""
    last_words = PROTOCOLS["beanstalk"].put(b"", b"x") + b"quit\r\n"
    noise = bytes(PIECE)
    done = 0
    by_file: dict[int, socket.socket] = {}
    with select.epoll() as poll:

        def come() -> None:
            sock = subject.connect()
            sock.sendall(last_words)
            sock.setblocking(False)
            by_file[sock.fileno()] = sock
            poll.register(sock, select.EPOLLIN | select.EPOLLOUT)

        try:
            yield 0
            while len(by_file) < clients:
                come()
            while True:
                for descriptor, events in poll.poll(STEP):
                    sock = by_file[descriptor]
                    try:
                        closed = bool(events & select.EPOLLIN) and not sock.recv(BUFFER)
                        if not closed and events & select.EPOLLOUT:
                            sock.send(noise)
                    except BlockingIOError:
                        closed = False
                    except OSError:
                        closed = True
                    if closed:
                        del by_file[descriptor]
                        sock.close()
                        done += 1
                        come()
                yield done
        finally:
            for sock in by_file.values():
                sock.close()


# Much to do at once


def command(subject: Subject, *, line: str, reply: str) -> Progress:
    """Send one command in the tube that `stream` puts into."""
    with subject.connect() as sock:
        ask(sock, *subject.commands.begin(MOVED))
        yield 0
        answer = ask(sock, line.encode() + b"\r\n")
        if not answer.startswith(reply.encode()):
            raise UnexpectedReplyError(f"{line}: {answer[:100]!r}")
        yield 1


def watchers(subject: Subject, *, clients: int, tubes: int) -> Progress:
    """Clients that watch this many tubes and wait for a second, all at the same time, again and again."""
    done = 0
    with _connected(subject, clients) as sockets, select.epoll() as poll:
        by_file = {sock.fileno(): sock for sock in sockets}
        for sock in sockets:
            for _ in _watch(sock, tubes):
                pass
            poll.register(sock, select.EPOLLIN)
        yield 0
        while True:
            for sock in sockets:
                sock.sendall(b"reserve-with-timeout 1\r\n")
            waiting = clients
            while waiting:
                for descriptor, _ in poll.poll(STEP):
                    reply = by_file[descriptor].recv(BUFFER)
                    if reply != b"TIMED_OUT\r\n":
                        raise UnexpectedReplyError(f"reserve-with-timeout 1: {reply[:100]!r}")
                    waiting -= 1
                    done += 1
                yield done


def watching(subject: Subject, *, tubes: int) -> Progress:
    """A client that watches more and more tubes, a thousand commands in flight."""
    with subject.connect() as sock:
        yield 0
        yield from _watch(sock, tubes, 1000)


def leaving(subject: Subject, *, clients: int, tubes: int) -> Progress:
    """Clients that wait on this many tubes and disconnect one after the other, a fifth of a second apart."""
    with _connected(subject, clients) as sockets:
        for sock in sockets:
            for _ in _watch(sock, tubes):
                pass
            sock.sendall(b"reserve\r\n")
        with subject.connect() as other:
            eventually(lambda: _waiting(other) == clients, "all of them wait", PREPARED)
        yield 0
        for number, sock in enumerate(sockets):
            sock.close()
            left = clock() + SECOND // 5
            while clock() < left:
                time.sleep(STEP)  # real time: who asks meanwhile sees what each departure costs
                yield number + 1


def list_tubes(subject: Subject, *, clients: int) -> Progress:
    """Clients that list all tubes, and read the list, again and again."""
    done = 0
    left: dict[int, int] = {}  # bytes of the list that are still to come; -1 before its first line
    with _connected(subject, clients) as sockets, select.epoll() as poll:
        by_file = {sock.fileno(): sock for sock in sockets}
        for sock in sockets:
            poll.register(sock, select.EPOLLIN)
        yield 0
        for sock in sockets:
            sock.sendall(b"list-tubes\r\n")
            left[sock.fileno()] = -1
        while True:
            for descriptor, _ in poll.poll(STEP):
                sock = by_file[descriptor]
                received = sock.recv(PIECE)
                if left[descriptor] < 0:
                    head, _, received = received.partition(b"\r\n")
                    if not head.startswith(b"OK "):
                        raise UnexpectedReplyError(f"list-tubes: {head[:100]!r}")
                    left[descriptor] = int(head[3:]) + len(b"\r\n")
                left[descriptor] -= len(received)
                if not left[descriptor]:
                    left[descriptor] = -1
                    done += 1
                    sock.sendall(b"list-tubes\r\n")
            yield done


def returning(subject: Subject, *, clients: int, port: int, ca: str, cert: str) -> Progress:
    """Clients with certificates that connect all at once and say something; when the last has its answer, all hang up,
    and come back.

    Args:
        port: where they connect, with TLS.
        ca, cert: what they trust and what they show, files.
    """
    door = dataclasses.replace(subject, port=port, ca=ca, cert=cert)
    context = door.context
    done = 0
    yield 0
    while True:
        with contextlib.ExitStack() as stack:
            poll = stack.enter_context(select.epoll())
            coming: dict[int, _Returning] = {}
            for _ in range(clients):
                sock = stack.enter_context(socket.socket())
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(("127.0.0.1", port))
                coming[sock.fileno()] = _Returning(sock, context)
                poll.register(sock, select.EPOLLIN | select.EPOLLOUT)
            while coming:
                for descriptor, _ in poll.poll(STEP):
                    client = coming[descriptor]
                    if client.go_on(poll):
                        poll.unregister(client.sock)
                        del coming[descriptor]
                        done += 1
                yield done


class _Returning:
    """A client in its handshake, and until its first answer."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.begun = self.asked = False

    def go_on(self, poll: select.epoll) -> bool:
        """Do what can be done now; return whether it has its answer."""
        if not self.begun:
            self.begun = True
            poll.modify(self.sock, select.EPOLLIN)
        else:
            received = self.sock.recv(BUFFER)
            if not received:
                raise UnexpectedReplyError("the server closed a connection")
            self.incoming.write(received)
        try:
            if not self.asked:
                self.tls.do_handshake()
                self.asked = True
                self.tls.write(b"list-tube-used\r\n")
                self.sock.send(self.outgoing.read())
            return self.tls.read(BUFFER) == b"USING default\r\n"
        except ssl.SSLWantReadError:
            if self.outgoing.pending:
                self.sock.send(self.outgoing.read())
            return False


@contextlib.contextmanager
def _connected(subject: Subject, count: int) -> Iterator[list[socket.socket]]:
    """Open this many connections, which are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(subject.connect()) for _ in range(count)]


def _waiting(sock: socket.socket) -> int:
    """The number of clients that wait for a job."""
    stats = ask(sock, b"stats\r\n", 40)
    return int(stats.split(b"\ncurrent-waiting: ")[1].split()[0])


def _watch(sock: socket.socket, tubes: int, batch: int = 100) -> Progress:
    for first in range(0, tubes, batch):
        last = min(first + batch, tubes)
        ask(sock, b"".join([b"watch w%d\r\n" % number for number in range(first, last)]), last - first)
        yield last
    ask(sock, b"ignore default\r\n")


ATTACKS: dict[str, Callable[..., Progress]] = {
    attack.__name__: attack
    for attack in (nobody, flood, bodies, quitting, command, watchers, watching, leaving, list_tubes, returning)
}


# The process


class AttackError(Exception):
    """An attack could not be carried out; the message says why."""


class Attack:
    """An attack, as the generator controls it: prepares, begins and ends it. It ends at the latest with the generator.

    Raises:
        AttackError: it could not be prepared, or failed.
    """

    def __init__(self, subject: Subject, attack: str, arguments: dict[str, Any]) -> None:
        order = json.dumps({"attack": attack, "arguments": arguments})
        command = [sys.executable, "-m", "bench.attacks", json.dumps(dataclasses.asdict(subject)), order]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def __enter__(self) -> Attack:
        try:
            self._answer(PREPARED)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._kill()

    def begin(self) -> None:
        self._input.write(b"\n")
        self._input.flush()

    def is_over(self) -> bool:
        """Whether it has ended or failed."""
        return bool(select.select([self._output], [], [], 0)[0])

    def end(self) -> int:
        """End it; return how many actions it has done."""
        self._input.close()
        return self._answer(ENDED)

    def _answer(self, timeout: float) -> int:
        if not select.select([self._output], [], [], timeout)[0]:
            raise AttackError(f"the attack said nothing for {timeout:g} s")
        said = json.loads(self._output.readline() or '{"error": "the attack has ended"}')
        if "error" in said:
            raise AttackError(said["error"])
        return int(said["done"])

    def _kill(self) -> None:
        """Kill it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):  # data that it has not read
                pipe.close()


def _say(what: str, value: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the generator is gone
        os.write(sys.stdout.fileno(), json.dumps({what: value}).encode() + b"\n")


def _is_ended() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main(arguments: Sequence[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the generator ends it
    subject = Subject(**json.loads(arguments[0]))
    order = json.loads(arguments[1])
    try:
        attack = ATTACKS[order["attack"]](subject, **order["arguments"])
        next(attack)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _say("done", 0)
        done = 0
        if os.read(sys.stdin.fileno(), 1):
            while not _is_ended() and (progress := next(attack, None)) is not None:
                done = progress
        attack.close()  # and its sockets
        _say("done", done)
    except Exception as error:
        _say("error", f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
