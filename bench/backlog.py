"""The backlog: loads that put very many jobs with large bodies, cancel a part of them, and take all others out again.

A worker checks that each body is, byte for byte, what was put for that id, and that each id comes once. So that the
generator needs no memory for all that: a body follows from its number, and the ledger, a file, has four bytes for each
id, the number of what was put for it. The loads are done one after the other with the same ledger. What a server holds
is looked at about once a second, and a load ends before the server has taken the machine's memory or disk.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import random
import select
import shutil
from collections.abc import Callable, Generator, Iterator
from typing import Any

from bench import process
from bench.samples import Sample
from bench.subject import BUFFER, REPLY_WITHIN, SECOND, Subject, UnexpectedReplyError, clock, none_came

DAY = 86_400  # seconds: the delay of a job that will be cancelled
TTR = 3_600  # seconds
CONNECTIONS = 4
WORKERS = 8
BATCH = 20  # commands that a client has in flight
SMALLEST_BODY = 16  # bytes: its number
LARGEST_BODY = 65_535  # bytes: the largest job by default
POOL = 1 << 16  # bytes, of which a body is a part
LOOKS = 240  # samples of a load at most: then every second one is dropped, and they become rarer
FREE = 1 << 30  # bytes that stay free on the disk
LONGEST = 4 * 3600  # seconds of a load
PATIENCE = 60  # seconds, longer than the longest delay, in which some job must come


@functools.lru_cache(maxsize=1)
def _pool(size: int) -> bytes:
    """Words in random order, which can be compressed as text can."""
    rng = random.Random(8)
    words = [bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(500)]
    text = b" ".join(rng.choices(words, k=(POOL + size) // 2))
    return text[: POOL + size]


def body_of(number: int, size: int) -> bytes:
    """The body of the job of this number, of `size` bytes: no two are the same."""
    start = number * 7919 % POOL
    return b"%016d" % number + _pool(size)[start : start + size - SMALLEST_BODY]


def is_cancelled(number: int) -> bool:
    """Whether the job of this number is one of those that are cancelled, a tenth of all."""
    return number % 10 == 0


def _delay(number: int, spread: int) -> int:
    """Of those that are not cancelled, every second one is ready at once, and the others within `spread` seconds."""
    if is_cancelled(number):
        return DAY
    return number * 7919 % spread + 1 if number % 2 else 0


class Ledger:
    """For each id the number of the job that was put, plus one; 0 if there is none (any more). Kept in a file.

    Raises:
        UnexpectedReplyError: an id is not what it should be, for jobs counted from 1 on a fresh server.
    """

    def __init__(self, path: str, jobs: int) -> None:
        size = 4 * (jobs + 1)
        with open(path, "a+b") as file:
            file.truncate(size)
            self._mapped = mmap.mmap(file.fileno(), size)
        self.numbers = memoryview(self._mapped).cast("I")

    def note(self, job: int, number: int) -> None:
        """A job was put."""
        if not 0 < job < len(self.numbers) or self.numbers[job]:
            raise UnexpectedReplyError(f"put: an id that is not new, or too large: {job}")
        self.numbers[job] = number + 1

    def take(self, job: int) -> int:
        """A job has come: return its number. It must not come again."""
        number = self.numbers[job] if 0 < job < len(self.numbers) else 0
        if not number:
            raise UnexpectedReplyError(f"reserve: job {job} was not put, was cancelled, or comes again")
        self.numbers[job] = 0
        return number - 1

    def cancelled(self) -> Iterator[int]:
        """The ids of the jobs that are to be cancelled."""
        for job, number in enumerate(self.numbers):
            if number and is_cancelled(number - 1):
                yield job

    def is_empty(self) -> bool:
        return not any(self.numbers)

    def close(self) -> None:
        self.numbers.release()
        self._mapped.close()


class Watch:
    """Looks at the server about once a second while a load is done.

    Args:
        directory: where the server keeps its jobs.
        memory: bytes, of which the server may not hold more.
        patience: seconds without a job done, after which the rest is given up.
    """

    def __init__(self, subject: Subject, directory: str, memory: int, patience: float) -> None:
        self.pid = subject.pid
        self.directory = directory
        self.memory = memory
        self.patience = patience
        self.samples: list[Sample] = []
        self.why_stopped = ""
        self.started = self.due = self.moved = clock()
        self.every = SECOND
        self.jobs = 0
        self.cpu = process.cpu(self.pid)
        self.look(0)

    def is_due(self) -> bool:
        return clock() >= self.due

    def look(self, jobs: int) -> None:
        """Take a sample, after this many jobs; find whether the load must stop."""
        now = clock()
        sample: Sample = {
            "seconds": (now - self.started) / SECOND,
            "jobs": jobs,
            "resident": process.resident(self.pid),
            "peak": process.peak(self.pid),
            "directory": size_of(self.directory),
            "cpu": process.cpu(self.pid).since(self.cpu).total,
        }
        self.samples.append(sample)
        if len(self.samples) == LOOKS:
            del self.samples[1:-1:2]
            self.every *= 2
        self.due = now + self.every
        if jobs > self.jobs:
            self.jobs, self.moved = jobs, now
        if sample["resident"] > self.memory:
            self.why_stopped = f"the server holds more than {self.memory / 1e9:.1f} GB"
        elif shutil.disk_usage(self.directory).free < FREE:
            self.why_stopped = "the disk is nearly full"
        elif now - self.moved > self.patience * SECOND:
            self.why_stopped = f"no more jobs for {self.patience:.0f} s"
        elif now - self.started > LONGEST * SECOND:
            self.why_stopped = f"it takes more than {LONGEST // 3600} hours"


def size_of(directory: str) -> int:
    """Bytes of all files of a directory."""
    found = 0
    with os.scandir(directory) as files:
        for file in files:
            try:
                found += file.stat().st_size
            except FileNotFoundError:  # removed meanwhile
                continue
    return found


# Clients

Talk = Generator[bytes, bytes, None]
"""A client: yields what to send (b"" for nothing), and is sent what was received."""


class Work:
    """What the clients of a load share: how many jobs are to do, and are done."""

    def __init__(self, jobs: int, ledger: Ledger, size: int, spread: int, verb: bytes) -> None:
        self.jobs = jobs
        self.ledger = ledger
        self.size = size
        self.spread = spread
        self.verb = verb
        self.begun = 0
        self.done = 0
        self.doomed = ledger.cancelled()


def _put(work: Work) -> Talk:
    while work.begun < work.jobs:
        numbers = range(work.begun, min(work.begun + BATCH, work.jobs))
        work.begun = numbers.stop
        replies = yield b"".join(
            [
                b"put 1024 %d %d %d\r\n%b\r\n"
                % (_delay(number, work.spread), TTR, work.size, body_of(number, work.size))
                for number in numbers
            ]
        )
        while replies.count(b"\n") < len(numbers):
            replies += yield b""
        for number, reply in zip(numbers, replies.splitlines(), strict=True):
            word, _, job = reply.partition(b" ")
            if word != b"INSERTED":
                raise UnexpectedReplyError(f"put: {reply[:100]!r}")
            work.ledger.note(int(job), number)
        work.done += len(numbers)


def _cancel(work: Work) -> Talk:
    expected = b"CANCELLED\r\n" if work.verb == b"cancel" else b"DELETED\r\n"
    while jobs := list(itertools.islice(work.doomed, BATCH)):
        yield from _expect(b"".join([b"%b %d\r\n" % (work.verb, job) for job in jobs]), expected * len(jobs))
        for job in jobs:
            work.ledger.take(job)
        work.done += len(jobs)


def _take(work: Work) -> Talk:
    """A worker: reserves some jobs, compares their bodies, and deletes them."""
    reserves = b"reserve-with-timeout 1\r\n" + b"reserve-with-timeout 0\r\n" * (BATCH - 1)
    while True:
        received = yield reserves
        jobs, at = [], 0
        for _ in range(BATCH):
            while (end := received.find(b"\r\n", at)) < 0:
                received, at = received[at:] + (yield b""), 0
            line = received[at:end]
            if line == b"TIMED_OUT":
                at = end + 2
                continue
            if not line.startswith(b"RESERVED "):
                raise UnexpectedReplyError(f"reserve: {line[:100]!r}")
            job, size = map(int, line.split()[1:])
            start = end + 2 - at
            while len(received) < at + start + size + 2:
                received, at = received[at:] + (yield b""), 0
            if received[at + start : at + start + size] != body_of(work.ledger.take(job), work.size):
                raise UnexpectedReplyError(f"reserve: the body of job {job} is not what was put")
            at += start + size + 2
            jobs.append(job)
        if jobs:
            yield from _expect(b"".join([b"delete %d\r\n" % job for job in jobs]), b"DELETED\r\n" * len(jobs))
            work.done += len(jobs)


def _expect(commands: bytes, expected: bytes) -> Talk:
    """Send commands whose replies must be exactly these."""
    replies = yield commands
    while len(replies) < len(expected) and expected.startswith(replies):
        replies += yield b""
    if replies != expected:
        wrong = [reply for reply in replies.splitlines() if reply not in expected]
        raise UnexpectedReplyError(f"{commands.splitlines()[0].decode()}, …: {b' '.join(wrong)[:100]!r}")


def _talk(subject: Subject, work: Work, client: Callable[[Work], Talk], clients: int, watch: Watch) -> None:
    """Let the clients talk until the work is done, or the watch stops it."""
    poll = select.epoll()
    talks = {}
    try:
        for _ in range(clients):
            sock = subject.connect()
            talk = client(work)
            talks[sock.fileno()] = sock, talk
            poll.register(sock, select.EPOLLIN)
            if first := next(talk, b""):
                sock.sendall(first)
        while work.done < work.jobs and not watch.why_stopped:
            for descriptor, _ in poll.poll(REPLY_WITHIN) or none_came():
                sock, talk = talks[descriptor]
                received = sock.recv(BUFFER)
                if not received:
                    raise UnexpectedReplyError("the server closed a connection")
                try:
                    if data := talk.send(received):
                        sock.sendall(data)
                except StopIteration:
                    poll.unregister(sock)
            if watch.is_due():
                watch.look(work.done)
    finally:
        poll.close()
        for sock, _ in talks.values():
            sock.close()
    watch.look(work.done)


def backlog(
    subject: Subject,
    *,
    phase: str,
    ledger: str,
    jobs: int,
    body: int,
    spread: int,
    directory: str,
    memory: int,
    verb: str = "delete",
) -> dict[str, Any]:
    """One phase: "put" this many jobs with bodies of this many bytes; "cancel" a tenth of them; "take" all the others.

    Args:
        ledger: a file, which "put" creates.
        spread: the longest delay of the jobs that are taken, in seconds.
        directory: where the server keeps its jobs.
        memory: bytes, of which the server may not hold more.
        verb: the command that cancels: servers without `cancel` have `delete`.

    Returns a sample for every this many seconds, and why it was stopped before its end, if it was.
    """
    kept = Ledger(ledger, jobs)
    try:
        doomed = -(-jobs // 10)
        count, client, clients = {
            "put": (jobs, _put, CONNECTIONS),
            "cancel": (doomed, _cancel, CONNECTIONS),
            "take": (jobs - doomed, _take, WORKERS),
        }[phase]
        watch = Watch(subject, directory, memory, PATIENCE + spread)
        _talk(subject, Work(count, kept, body, spread, verb.encode()), client, clients, watch)
        if phase == "take" and not watch.why_stopped and not kept.is_empty():
            raise UnexpectedReplyError("a job that was put has not come")
        return {"samples": watch.samples, "why_stopped": watch.why_stopped}
    finally:
        kept.close()
