"""A server that is killed again and again under load keeps what it has acknowledged, and brings nothing back.

Clients keep a book of their commands and the replies. After a restart, the jobs of the server are compared with it.
"""

import contextlib
import itertools
import random
import threading
import time
from collections import Counter

import pytest

from beanstalk_server.storage.binlog import UNKNOWN_IDS
from harness.caller import Caller
from harness.servers import launch
from harness.waiting import eventually

SEGMENT = 65536
CLIENTS = 4
AUDIT = 5  # restarts from one comparison to the next
ON_DISK = ("--body-threshold", "0", "--body-cache", "1000")
DEPTH = 32  # commands in flight on a connection, at the most


class Book:
    """What the clients have asked for and been told; each put has a body of its own."""

    def __init__(self):
        self.wanted = set()  # bodies of puts that were sent
        self.ids = {}  # body -> id, as acknowledged
        self.bodies = {}  # id -> body
        self.doomed = set()  # ids whose deletion was asked for
        self.deleted = set()  # ids whose deletion was acknowledged
        self.acknowledged = 0
        self.doubled = 0  # ids that were given twice
        self.starts = []  # the first id that each process has given

    def known_ids(self):
        """All ids that the log has known at some start."""
        for first, later in itertools.pairwise(self.starts):
            yield from range(first, later - UNKNOWN_IDS)

    def inserted(self, number, body):
        if number in self.bodies:
            self.doubled += 1
        self.bodies[number] = body
        self.ids[body] = number


class Worker(threading.Thread):
    """One connection that sends commands in batches until the server is gone."""

    def __init__(self, book, address, number, rng):
        super().__init__()
        self.book = book
        self.rng = rng
        self.name_of_bodies = itertools.count()
        self.prefix = b"%d-%d-" % (time.monotonic_ns(), number)
        self.caller = Caller(address)
        self.held = []  # ids
        self.failure = None

    def run(self):
        try:
            with contextlib.suppress(ConnectionError, EOFError):
                while True:
                    self._batch()
        except Exception as error:
            self.failure = error
        finally:
            self.caller.close()

    def _batch(self):
        rng = self.rng
        book = self.book
        asked = []  # (what, about what)
        data = []
        for _ in range(rng.randrange(1, DEPTH)):
            choice = rng.randrange(13)
            if choice < 4:
                body = self.prefix + b"%d-" % next(self.name_of_bodies)
                body += b"x" * rng.choice((0, 10, 200, 3000))
                book.wanted.add(body)
                pri, delay = rng.randrange(3), rng.choice((0, 0, 1, 1000))
                if choice == 0:
                    data.append(b"put-keyed %b %d %d 60 %d\r\n%b\r\n" % (body[:60], pri, delay, len(body), body))
                else:
                    data.append(b"put %d %d 60 %d\r\n%b\r\n" % (pri, delay, len(body), body))
                asked.append(("put", body))
            elif choice < 8:
                data.append(b"reserve-with-timeout 0\r\n")
                asked.append(("reserve", None))
            elif choice == 8:
                data.append(b"kick %d\r\n" % rng.randrange(1, 5))
                asked.append(("kick", None))
            elif self.held:
                number = self.held.pop()
                verb = (b"delete %d", b"delete %d", b"bury %d 1", b"release %d 2 0")[choice - 9] % number
                if choice < 11:
                    book.doomed.add(number)
                data.append(verb + b"\r\n")
                asked.append((verb.split()[0].decode(), number))
        self.caller.send(b"".join(data))
        for what, about in asked:
            self._hear(what, about)

    def _hear(self, what, about):
        line = self.caller.line()
        if not line.endswith(b"\r\n"):
            raise EOFError
        book = self.book
        if what == "put":
            assert line.startswith(b"INSERTED "), line
            book.inserted(int(line.split()[1]), about)
        elif what == "reserve":
            if line == b"TIMED_OUT\r\n":
                return
            assert line.startswith(b"RESERVED "), line
            _, number, size = line.split()
            body = self.caller.read(int(size) + 2)
            if len(body) < int(size) + 2:
                raise EOFError
            assert int(number) not in book.deleted, "it was deleted"
            assert book.bodies.get(int(number), body[:-2]) == body[:-2], "it was put otherwise"
            assert body[:-2] in book.wanted, "a body that no one has put, or only a part of one"
            self.held.append(int(number))
            return
        elif what == "delete":
            assert line == b"DELETED\r\n", line
            book.deleted.add(about)
        elif what == "kick":
            assert line.startswith(b"KICKED "), line
        else:
            assert line in (b"BURIED\r\n", b"RELEASED\r\n"), line
        book.acknowledged += 1


def jobs_of(address, ids):
    """All jobs of the server, id -> body."""
    caller = Caller(address)
    jobs = {}
    ids = iter(ids)
    while numbers := list(itertools.islice(ids, 500)):
        caller.send(b"".join(b"peek %d\r\n" % number for number in numbers))
        for _ in numbers:
            line = caller.line()
            if line == b"NOT_FOUND\r\n":
                continue
            _, number, size = line.split()
            jobs[int(number)] = caller.read(int(size) + 2)[:-2]
    caller.close()
    return jobs


def statistics(address):
    caller = Caller(address)
    size = int(caller.ask(b"stats\r\n").split()[1])
    text = caller.read(size + 2).decode()
    caller.close()
    return dict(line.split(": ") for line in text.splitlines() if ": " in line)


def next_id(address):
    """An id greater than every other, taken by a job that is deleted at once."""
    caller = Caller(address)
    number = int(caller.ask(b"put 0 1000 60 0\r\n\r\n").split()[1])
    assert caller.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
    caller.close()
    return number


def audit(book, address):
    """Compare the server's jobs with the book; return how many were lost, doubled, and returned from the dead."""
    jobs = jobs_of(address, book.known_ids())
    lost = [number for number in book.bodies if number not in jobs and number not in book.doomed]
    lost += [number for number, body in jobs.items() if book.bodies.get(number, body) != body]
    doubled = [body for body, count in Counter(jobs.values()).items() if count > 1]
    returned = [number for number in jobs if number in book.deleted]
    torn = [body for body in jobs.values() if body not in book.wanted]
    assert not torn, "a body that no one has put, or only a part of one"
    assert int(statistics(address)["current-jobs-ready"]) <= len(jobs)
    for number, body in jobs.items():  # an unacknowledged job that is there counts from now on
        if number not in book.bodies:
            book.bodies[number] = body
            book.ids[body] = number
    for number in [number for number in book.doomed if number not in jobs]:
        book.deleted.add(number)
    book.doomed &= book.deleted
    given_twice, book.doubled = book.doubled, 0
    return len(lost), len(doubled) + given_twice, len(returned)


def kill_again_and_again(directory, rounds, *options):
    rng = random.Random(rounds)
    book = Book()
    found = [0, 0, 0]
    recovery = time.monotonic()
    for round_number in range(rounds + 1):
        process = launch("-p", "0", "-b", str(directory), "-s", str(SEGMENT), *options)
        try:
            book.starts.append(next_id(process.address))
            book.doubled += book.starts[-1] in book.bodies
            if round_number % AUDIT == 0 or round_number == rounds:
                found = [one + more for one, more in zip(found, audit(book, process.address), strict=True)]
            assert found == [0, 0, 0], (round_number, found, process.log[-500:])
            assert "Traceback" not in process.log
            if round_number == rounds:
                assert process.stop() == 0
                assert "Traceback" not in process.log
                break
            workers = [Worker(book, process.address, number, random.Random(rng.random())) for number in range(CLIENTS)]
            for worker in workers:
                worker.start()
            work = book.acknowledged + rng.randrange(100, 2000)  # until then it works, and then it is killed
            eventually(
                lambda work=work, workers=workers: book.acknowledged >= work or any(each.failure for each in workers),
                "clients are answered",
            )
        finally:
            process.kill()
        for worker in workers:
            worker.join(60)
            assert worker.failure is None, worker.failure
    lost, doubled, returned = found
    print(
        f"killed {rounds} times{' with ' + ' '.join(options) if options else ''}: {book.acknowledged:,} acknowledged, "
        f"{lost} lost, {doubled} doubled, {returned} returned from the dead ({time.monotonic() - recovery:.0f} s)"
    )


@pytest.mark.parametrize("options", [(), ON_DISK], ids=["sync", "on-disk"])
def test_a_server_that_is_killed_keeps_what_it_has_acknowledged(tmp_path, options):
    kill_again_and_again(tmp_path, 4, *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rounds"),
    [((), 50), (("-f", "50"), 8), (("-F",), 8), (ON_DISK, 25), ((*ON_DISK, "-F"), 8)],
    ids=["sync", "f50", "F", "on-disk", "on-disk-F"],
)
def test_it_does_so_however_often(tmp_path, options, rounds):
    kill_again_and_again(tmp_path, rounds, *options)
