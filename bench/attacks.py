"""The attacks: a separate process acts as hostile clients, while the generator asks as another client.

It runs only while the generator does not need the processor, so that it delays no answer itself.

Each attack is a Python generator. It prepares until its first `yield`. After that it yields about every STEP seconds,
as far as the server lets it, the number of actions so far: answered ones, if it reads answers.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import ssl
import time
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from typing import Any

from bench.generator import SPAWNED
from bench.protocols import MOVED, PROTOCOLS
from bench.subject import BUFFER, SECOND, Subject, UnexpectedReplyError, ask, client_context, clock, receive, statistic
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
            pieces.append(receive(sock, PIECE))
    return b"".join(pieces)


Talk = Generator[bytes | memoryview, bytes, None]
"""A client: yields what to send, or b"" for nothing, and is sent what has come."""


def _talking(
    subject: Subject, clients: int, talk: Callable[[], Talk], prepare: bytes = b"", lines: int = 0
) -> Progress:
    """Clients that talk at the same time, again and again; what counts is how often one has come to its end.

    Args:
        prepare: commands that each sends first, in this many lines, each of which has an answer.
    """
    done = 0
    with contextlib.ExitStack() as stack:
        poll = stack.enter_context(select.epoll())
        talks: dict[int, tuple[socket.socket, Talk]] = {}
        left: dict[int, memoryview] = {}
        for _ in range(clients):
            sock = stack.enter_context(subject.connect())
            for first in range(0, lines, 100):
                ask(sock, b"".join(prepare.splitlines(keepends=True)[first : first + 100]), min(100, lines - first))
            talks[sock.fileno()] = sock, talk()
        yield 0
        for descriptor, (sock, client) in talks.items():
            sock.setblocking(False)
            left[descriptor] = memoryview(next(client))
            poll.register(sock, select.EPOLLIN | select.EPOLLOUT)
        while True:
            for descriptor, _ in poll.poll(STEP):
                sock, client = talks[descriptor]
                if left[descriptor]:
                    left[descriptor] = left[descriptor][sock.send(left[descriptor][:PIECE]) :]
                    if not left[descriptor]:
                        poll.modify(sock, select.EPOLLIN)
                    continue
                try:
                    data = client.send(receive(sock, PIECE))
                except StopIteration:
                    done += 1
                    client = talk()
                    talks[descriptor] = sock, client
                    data = next(client)
                if data:
                    left[descriptor] = memoryview(data)
                    poll.modify(sock, select.EPOLLOUT)
            yield done


def bodies(subject: Subject, *, clients: int, body: int) -> Progress:
    """Clients that put a job with a body of this many bytes, and delete it: all at the same time, again and again."""
    put = PROTOCOLS["beanstalk"].put(b"", b"x" * body)

    def talk() -> Talk:
        reply = yield put
        if not reply.startswith(b"INSERTED"):
            raise UnexpectedReplyError(f"put of {body} bytes: {reply[:100]!r}")
        reply = yield b"delete %b\r\n" % reply.split()[1]
        if reply != b"DELETED\r\n":
            raise UnexpectedReplyError(f"delete: {reply[:100]!r}")

    return _talking(subject, clients, talk)


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
    """Clients that watch this many tubes and wait for a second, again and again."""

    def talk() -> Talk:
        reply = yield b"reserve-with-timeout 1\r\n"
        if reply != b"TIMED_OUT\r\n":
            raise UnexpectedReplyError(f"reserve-with-timeout 1: {reply[:100]!r}")

    return _talking(subject, clients, talk, _watches(0, tubes) + b"ignore default\r\n", tubes + 1)


def watching(subject: Subject, *, tubes: int) -> Progress:
    """A client that watches more and more tubes, a thousand commands in flight."""
    with subject.connect() as sock:
        yield 0
        yield from _watch(sock, tubes, 1000)


def leaving(subject: Subject, *, clients: int, tubes: int) -> Progress:
    """Clients that wait on this many tubes and disconnect one after the other, a fifth of a second apart."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(subject.connect()) for _ in range(clients)]
        for sock in sockets:
            for _ in _watch(sock, tubes):
                pass
            sock.sendall(b"reserve\r\n")
        with subject.connect() as other:
            waiting = b"stats", b"current-waiting"
            eventually(lambda: statistic(other, *waiting) == clients, "all of them wait", PREPARED)
        yield 0
        for number, sock in enumerate(sockets):
            sock.close()
            left = clock() + SECOND // 5
            while clock() < left:
                time.sleep(STEP)  # real time: who asks meanwhile sees what each departure costs
                yield number + 1


def list_tubes(subject: Subject, *, clients: int) -> Progress:
    """Clients that list all tubes, and read the list, again and again."""

    def talk() -> Talk:
        head, _, received = (yield b"list-tubes\r\n").partition(b"\r\n")
        if not head.startswith(b"OK "):
            raise UnexpectedReplyError(f"list-tubes: {head[:100]!r}")
        left = int(head[3:]) + len(b"\r\n") - len(received)
        while left:
            left -= len((yield b""))

    return _talking(subject, clients, talk)


def returning(subject: Subject, *, clients: int, port: int, ca: str, cert: str) -> Progress:
    """Clients with certificates that connect all at once and say something; when the last has its answer, all hang up,
    and come back.

    Args:
        port: where they connect, with TLS.
        ca, cert: what they trust and what they show, files.
    """
    context = client_context(ca, cert)
    done = 0
    yield 0
    while True:
        with contextlib.ExitStack() as stack:
            poll = stack.enter_context(select.epoll())
            coming: dict[int, Generator[None, None, None]] = {}
            for _ in range(clients):
                sock = stack.enter_context(socket.socket())
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    sock.connect(("127.0.0.1", port))
                poll.register(sock, select.EPOLLIN | select.EPOLLOUT)
                coming[sock.fileno()] = _greet(sock, context, poll)
            while coming:
                for descriptor, _ in poll.poll(STEP):
                    if next(coming[descriptor], done) is not None:
                        poll.unregister(descriptor)
                        del coming[descriptor]
                        done += 1
                yield done


def _greet(sock: socket.socket, context: ssl.SSLContext, poll: select.epoll) -> Generator[None, None, None]:
    """A client in its handshake, and until its first answer: yields whenever it waits for the server."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    poll.modify(sock, select.EPOLLIN)
    answer: object = None
    for step in (tls.do_handshake, lambda: tls.write(b"list-tube-used\r\n"), lambda: tls.read(BUFFER)):
        while True:
            try:
                answer = step()
                break
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    sock.send(outgoing.read())
                yield
                incoming.write(receive(sock))
        if outgoing.pending:
            sock.send(outgoing.read())
    if answer != b"USING default\r\n":
        raise UnexpectedReplyError(f"list-tube-used: {answer!r}")


def _watches(first: int, last: int) -> bytes:
    return b"".join([b"watch w%d\r\n" % number for number in range(first, last)])


def _watch(sock: socket.socket, tubes: int, batch: int = 100) -> Progress:
    for first in range(0, tubes, batch):
        last = min(first + batch, tubes)
        ask(sock, _watches(first, last), last - first)
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
        self._pipe, other = SPAWNED.Pipe()
        self._process = SPAWNED.Process(target=_attack, args=(other, subject, attack, arguments))
        self._process.start()
        other.close()

    def __enter__(self) -> Attack:
        try:
            self._answer(PREPARED)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def begin(self) -> None:
        self._pipe.send("begin")

    def is_over(self) -> bool:
        """Whether it has ended or failed."""
        return self._pipe.poll()

    def end(self) -> int:
        """End it; return how many actions it has done."""
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            self._pipe.send("end")
        return self._answer(ENDED)

    def _answer(self, timeout: float) -> int:
        if not self._pipe.poll(timeout):
            raise AttackError(f"no output from the attack for {timeout:g} s")
        try:
            done: int | str = self._pipe.recv()
        except EOFError:
            done = "the attack has exited"
        if isinstance(done, str):
            raise AttackError(done)
        return done


def _attack(pipe: Connection, subject: Subject, name: str, arguments: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the generator ends it
    with contextlib.suppress(EOFError, BrokenPipeError):  # the generator is gone
        try:
            attack = ATTACKS[name](subject, **arguments)
            done = next(attack)
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            pipe.send(done)
            pipe.recv()
            while not pipe.poll() and (progress := next(attack, None)) is not None:
                done = progress
            attack.close()  # and its sockets
            pipe.send(done)
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
