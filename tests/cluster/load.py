"""Clients that keep a cluster busy while it is killed, and a book of what they have asked for and been told.

A client connects to any node, sends commands in batches, and connects again when it is disconnected. What it has asked
for and has not been told may have happened or not. The book finds what cannot be: at once, where a reply shows it, and
in an audit, where all jobs that are there are compared with it.
"""

import itertools
import random
import threading
import time
from collections import Counter

from harness.caller import Caller

WITHIN = 90.0
"""Seconds until a command must be answered, or a node must accept, whatever is killed meanwhile."""

DEPTH = 16
"""Commands in flight on a connection, at the most."""

TTR = 600
"""Seconds: no time to run is over in a test."""

KEYS = 40
"""How many keys there are in each tube."""

LIVE = 3000
"""So many jobs are live, roughly, at the most."""

PAUSE = 0.001
"""Seconds from one batch of a client to the next: a machine with two processors has more to do than to be a client."""


class Put:
    """One put: sent once, and answered at the most once."""

    __slots__ = ("body", "delay", "is_refused", "is_told", "key", "sent", "tube")

    def __init__(self, body, tube, delay, key):
        self.body, self.tube, self.delay, self.key = body, tube, delay, key
        self.sent = time.monotonic()
        self.is_told = False  # INSERTED
        self.is_refused = False  # EXISTS


class Book:
    """What the clients have asked for and been told. Only one thread at a time may write into it: it has a lock.

    Attributes:
        acknowledged: how many changes.
        found: how many of each kind of mistake.
        mistakes: each in words.
        disturbances: goes up when something is killed, and again when all is well: odd in between.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.puts = {}  # body -> Put
        self.jobs = {}  # id -> Put
        self.asked_to_end = Counter()  # id -> how many have asked, and were not told that it was in vain
        self.ended = {}  # id -> when that was heard, or was found
        self.holders = {}  # id -> (connection, disturbances then, when heard)
        self.live_keys = {}  # (tube, key) -> id
        self.over = 0  # how many of `ended` are no longer in `jobs`
        self.acknowledged = 0
        self.disturbances = 0
        self.found = Counter()
        self.mistakes = []

    def mistake(self, kind, what):
        self.found[kind] += 1
        self.mistakes.append(f"{kind}: {what}")

    @property
    def live(self):
        """How many jobs there are, roughly."""
        return len(self.jobs) - len(self.ended) + self.over

    def disturb(self):
        with self.lock:
            self.disturbances += 1

    def inserted(self, put, job_id):
        with self.lock:
            self.acknowledged += 1
            put.is_told = True
            other = self.jobs.setdefault(job_id, put)
            if other is not put or job_id in self.ended:
                self.mistake("doubled", f"the id {job_id} was given to {other.body[:40]} and {put.body[:40]}")
            if put.key:
                last = self.live_keys.get((put.tube, put.key), 0)
                if last < job_id:
                    if last and not self.asked_to_end[last]:
                        self.mistake("doubled", f"the key {put.key} has the jobs {last} and {job_id}")
                    self.live_keys[put.tube, put.key] = job_id

    def not_inserted(self, put):
        with self.lock:
            put.is_refused = True

    def will_end(self, job_id):
        with self.lock:
            self.asked_to_end[job_id] += 1

    def has_ended(self, job_id):
        with self.lock:
            self.acknowledged += 1
            if job_id in self.ended:
                self.mistake("returned", f"the job {job_id} has ended twice")
            self.ended[job_id] = time.monotonic()

    def has_not_ended(self, job_id):
        with self.lock:
            self.asked_to_end[job_id] -= 1

    def was_changed(self):
        with self.lock:
            self.acknowledged += 1

    def not_found(self, job_id, disturbances):
        """A client is told that a job is not there, or not its own, which it has reserved in this disturbance."""
        with self.lock:
            if disturbances == self.disturbances and disturbances % 2 == 0:
                self.mistake("lost", f"the job {job_id} was taken from its worker")

    def reserved(self, job_id, body, sent, connection):
        """Return the disturbances at this moment."""
        with self.lock:
            now = time.monotonic()
            put = self.puts.get(body)
            if put is None:
                self.mistake("torn", f"the body of the job {job_id} is one that nobody has put: {body[:40]}")
                return self.disturbances
            if self.jobs.get(job_id, put) is not put:
                self.mistake("lost", f"the job {job_id} has another body")
            if self.ended.get(job_id, sent) < sent:
                self.mistake("returned", f"the job {job_id} was reserved after it had ended")
            if put.is_refused:
                self.mistake("returned", f"the job {job_id} is there after all")
            if now < put.sent + put.delay:
                self.mistake("early", f"the job {job_id} came {put.sent + put.delay - now:g} s early")
            holder, disturbances, heard = self.holders.get(job_id, (None, 0, 0.0))
            calm = disturbances == self.disturbances and disturbances % 2 == 0
            if holder is not None and calm and heard < sent and holder.is_open:
                self.mistake("two holders", f"the job {job_id}")
            self.holders[job_id] = connection, self.disturbances, now
            return self.disturbances

    def is_of_tube(self, job_id, tube):
        with self.lock:
            put = self.jobs.get(job_id)
            return put is not None and put.tube == tube

    def given_up(self, job_id):
        """Its holder is about to say so, or is gone."""
        with self.lock:
            self.holders.pop(job_id, None)

    def audit(self, jobs):
        """Compare all jobs that are there, id -> body, with the book, while no client asks for anything."""
        bodies = Counter(jobs.values())
        for job_id, body in jobs.items():
            put = self.puts.get(body)
            if put is None:
                self.mistake("torn", f"the body of the job {job_id} is one that nobody has put: {body[:40]}")
                continue
            if job_id in self.ended:
                self.mistake("returned", f"the job {job_id} is there, and has ended")
            if put.is_refused:
                self.mistake("returned", f"the job {job_id} is there after all")
            if self.jobs.setdefault(job_id, put) is not put:
                self.mistake("lost", f"the job {job_id} has another body")
        for body, count in bodies.items():
            if count > 1:
                self.mistake("doubled", f"{count} jobs have the body {body[:40]}")
        for job_id in self.jobs:
            if job_id not in jobs and job_id not in self.ended:
                if not self.asked_to_end[job_id]:
                    self.mistake("lost", f"the job {job_id} is gone")
                self.ended[job_id] = time.monotonic()
        self._forget(bodies)

    def _forget(self, bodies):
        """Forget the puts that have come to nothing, and those whose jobs are over: if one of these bodies came back,
        nobody would have put it.
        """
        self.puts = {body: put for body, put in self.puts.items() if put.is_told or body in bodies}
        for job_id in [job_id for job_id in self.jobs if job_id in self.ended]:
            self.puts.pop(self.jobs.pop(job_id).body, None)
            self.over += 1

    def summary(self):
        return ", ".join(
            [f"{self.acknowledged:,} acknowledged"]
            + [f"{self.found[kind]} {kind}" for kind in ("lost", "doubled", "returned", "early", "two holders", "torn")]
        )


class Connection:
    """One connection to a node, and the jobs that it holds."""

    def __init__(self, address, tube):
        self.caller = Caller(address)
        self.caller.socket.settimeout(WITHIN)
        self.held = []
        self.is_open = True
        self.caller.send(b"use %b\r\nwatch t0\r\nwatch t1\r\nignore default\r\n" % tube)
        for _ in range(4):
            self.line()

    def line(self):
        line = self.caller.line()
        if not line.endswith(b"\r\n"):
            raise EOFError
        return line

    def body(self, size):
        data = self.caller.read(size + 2)
        if len(data) < size + 2:
            raise EOFError
        return data[:-2]


class Client(threading.Thread):
    """Sends commands until it is told to stop, over one connection after the other.

    Attributes:
        answered: how many commands were.
        failure: why it has ended too early.
        connections: how many it has had.
    """

    def __init__(self, book, addresses, number, rng):
        super().__init__(daemon=True)
        self.book, self.addresses, self.rng = book, addresses, rng
        self.kicks = number % 2 == 0  # in a tube where no job is delayed: a kick could make that look early
        self.tube = b"t%d" % (number % 2)
        self.prefix = b"%d-%d-" % (time.monotonic_ns(), number)
        self.names = itertools.count()
        self.may_run = threading.Event()
        self.may_run.set()
        self.rests = threading.Event()
        self.stops = False
        self.answered = self.connections = 0
        self.failure = None
        self.asked = []  # (verb, about what, when sent)

    def run(self):
        try:
            while not self.stops:
                connection = self._connect()
                try:
                    while not self.stops:
                        if not self.may_run.is_set():
                            self.rests.set()
                            self.may_run.wait()
                            self.rests.clear()
                            continue
                        self._batch(connection)
                        time.sleep(PAUSE)
                except (ConnectionError, EOFError):
                    pass
                finally:
                    self._left(connection)
        except Exception as error:
            self.failure = error
        finally:
            self.rests.set()

    def _connect(self):
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                connection = Connection(self.rng.choice(self.addresses), self.tube)
            except (ConnectionError, EOFError):
                assert time.monotonic() < deadline, "no node accepts"
                time.sleep(0.02)
                continue
            self.connections += 1
            return connection

    def _left(self, connection):
        connection.is_open = False
        connection.caller.close()
        for job_id, _ in connection.held:
            self.book.given_up(job_id)

    def _batch(self, connection):
        self.asked = []
        data = []
        for _ in range(self.rng.randrange(1, DEPTH)):
            data.append(self._command(connection))
        connection.caller.send(b"".join(data))
        for verb, about, sent in self.asked:
            self._hear(connection, verb, about, sent)
            self.answered += 1

    def _command(self, connection):
        """The next command, which is noted."""
        rng, book = self.rng, self.book
        choice = rng.randrange(16)
        now = time.monotonic()
        if choice >= 9 and connection.held:
            job_id, disturbances = connection.held.pop(rng.randrange(len(connection.held)))
            book.given_up(job_id)
            verb = ("delete", "delete", "delete", "delete", "delete", "bury", "release")[choice - 9]
            if verb == "delete":
                book.will_end(job_id)
            elif not book.is_of_tube(job_id, b"t0"):
                verb = "release"  # nobody kicks the others
            self.asked.append((verb, (job_id, disturbances), now))
            return {"delete": b"delete %d\r\n", "bury": b"bury %d 1\r\n", "release": b"release %d 2 0\r\n"}[
                verb
            ] % job_id
        if choice < 5 and book.live < LIVE:
            body = self.prefix + b"%d-" % next(self.names) + b"x" * rng.choice((0, 10, 200, 3000))
            key = b"k%d" % rng.randrange(KEYS) if choice == 0 else b""
            put = Put(body, self.tube, 0 if self.kicks else rng.choice((0, 1)), key)
            with book.lock:
                book.puts[body] = put
            self.asked.append(("put", put, now))
            what = b"put-keyed %b" % key if key else b"put"
            return b"%b %d %d %d %d\r\n%b\r\n" % (what, rng.randrange(3), put.delay, TTR, len(body), body)
        if choice == 5 and self.kicks:
            self.asked.append(("kick", None, now))
            return b"kick %d\r\n" % rng.randrange(1, 5)
        self.asked.append(("reserve", None, now))
        return b"reserve-with-timeout %d\r\n" % (choice == 6)

    def _hear(self, connection, verb, about, sent):
        line = connection.line()
        word = line.split()[0]
        book = self.book
        if verb == "put":
            if word == b"EXISTS" and about.key:
                book.not_inserted(about)
                return
            assert word == b"INSERTED", line
            book.inserted(about, int(line.split()[1]))
        elif verb == "reserve":
            if word == b"TIMED_OUT":
                return
            assert word == b"RESERVED", line
            _, job_id, size = line.split()
            body = connection.body(int(size))
            connection.held.append((int(job_id), book.reserved(int(job_id), body, sent, connection)))
        elif verb == "kick":
            assert word == b"KICKED", line
            book.was_changed()
        elif word == b"NOT_FOUND":  # the leader that had given it to this client is gone
            book.not_found(*about)
            if verb == "delete":
                book.has_not_ended(about[0])
        elif verb == "delete":
            assert word == b"DELETED", line
            book.has_ended(about[0])
        else:
            assert word in (b"BURIED", b"RELEASED"), line
            book.was_changed()


class Load:
    """So many clients of a cluster, until the end of a `with`.

    Args:
        addresses: of all nodes.
    """

    def __init__(self, book, addresses, clients, seed):
        rng = random.Random(seed)
        self.book = book
        self.clients = [Client(book, addresses, number, random.Random(rng.random())) for number in range(clients)]

    def __enter__(self):
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.stops = True
            client.may_run.set()
        for client in self.clients:
            client.join(2 * WITHIN)
            assert not client.is_alive(), "a client has no answer"

    def check(self):
        for client in self.clients:
            if client.failure:
                raise AssertionError(f"a client has failed, with {client.asked[:3]} asked") from client.failure

    def rest(self):
        """Let every client finish its batch, and wait until it has."""
        for client in self.clients:
            client.may_run.clear()
        for client in self.clients:
            assert client.rests.wait(2 * WITHIN), "a client has no answer"
        self.check()

    def go_on(self):
        for client in self.clients:
            client.may_run.set()

    def answered(self):
        """How many commands each client has had answered."""
        self.check()
        return [client.answered for client in self.clients]


def jobs_of(address, book):
    """All jobs that are there, id -> body."""
    caller = Caller(address)
    caller.socket.settimeout(WITHIN)
    try:
        highest = int(caller.ask(b"put 0 100000 60 0\r\n\r\n").split()[1])
        assert caller.ask(b"delete %d\r\n" % highest) == b"DELETED\r\n"
        if highest in book.jobs:
            book.mistake("doubled", f"the id {highest} was given twice")
        jobs = {}
        for first in range(1, highest, 500):
            numbers = range(first, min(first + 500, highest))
            caller.send(b"".join(b"peek %d\r\n" % number for number in numbers))
            for _ in numbers:
                line = caller.line()
                if line == b"NOT_FOUND\r\n":
                    continue
                _, job_id, size = line.split()
                jobs[int(job_id)] = caller.read(int(size) + 2)[:-2]
        return jobs
    finally:
        caller.close()
