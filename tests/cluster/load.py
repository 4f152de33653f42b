"""Clients that keep a cluster busy while it is killed, and that record all they say and hear (histories.py).

A client connects to any node, sends commands in batches, and connects again when it is disconnected. What it has asked
for and has not been told may have happened or not.
"""

import contextlib
import itertools
import random
import socket
import threading
import time
from time import monotonic_ns
from zlib import crc32

from histories import History, Recorder

from harness.caller import connect
from harness.waiting import eventually

WITHIN = 90.0
"""Seconds until a command must be answered, or a node must accept, whatever is killed meanwhile."""

DEPTH = 16
"""Commands in flight on a connection, at the most."""

TTR = 600
"""Seconds: no time to run is over in a test."""

KEYS = 40
"""How many keys there are in each tube."""

PAUSE = 0.002
"""Seconds from one batch of a client to the next: a machine with two processors has more to do than to be a client."""

TUBES = (b"t0", b"t1")
"""What the clients of a cluster without shards use."""


def tubes_of(shards, prefix=b"t"):
    """This many tubes, one of each shard."""
    found = {}
    numbers = itertools.count()
    while len(found) < shards:
        tube = prefix + b"%d" % next(numbers)
        found.setdefault(crc32(tube) % shards, tube)
    return tuple(found[shard] for shard in range(shards))


WORKERS = 3
"""How many workers wait for jobs of all shards."""


class Client(threading.Thread):
    """Sends commands until it is told to stop, over one connection after the other.

    Attributes:
        answered: how many commands were.
        failure: why it has ended too early.
    """

    def __init__(self, history, addresses, number, rng, tubes=TUBES, pause=PAUSE):
        super().__init__(daemon=True)
        self.pause = pause
        self.history, self.addresses, self.rng = history, addresses, rng
        self.number = number
        self.tubes = tubes
        self.tube = tubes[number % len(tubes)]
        self.commutes = len(tubes) > len(TUBES) and number % 2
        self.prefix = b"%d-%d-" % (monotonic_ns(), number)
        self.names = itertools.count()
        self.stops = False
        self.answered = 0
        self.failure = None
        self.recorder = None
        self.held = []

    def interrupt(self):
        """End a wait that may last for ever, once it is to stop: there is none."""

    def run(self):
        try:
            for life in itertools.count():
                if self.stops:
                    break
                sock = self._connect()
                self.recorder = Recorder(self.history, f"c{self.number}.{life}", monotonic_ns)
                self.held = []
                with sock:
                    self._talk(sock)
        except Exception as error:
            self.failure = error

    def _connect(self):
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                sock = connect(self.rng.choice(self.addresses))
            except ConnectionError:
                assert time.monotonic() < deadline, "no node accepts"
                time.sleep(0.02)
                continue
            sock.settimeout(WITHIN)
            return sock

    def _talk(self, sock):
        recorder = self.recorder
        try:
            self._ask(sock, [(b"use " + self.tube, None), *((b"watch " + tube, None) for tube in self.tubes)])
            self._ask(sock, [(b"ignore default", None)])
            while not self.stops:
                if self.commutes and not self.rng.randrange(100):
                    self._ask(sock, self._move())
                self._ask(sock, [self._command() for _ in range(self.rng.randrange(1, DEPTH))])
                time.sleep(self.pause)
        except (ConnectionError, EOFError):
            recorder.leave(by_itself=False)
        else:
            recorder.leave(by_itself=True)

    def _ask(self, sock, commands):
        recorder = self.recorder
        sock.sendall(b"".join([recorder.send(line, body) for line, body in commands]))
        while recorder.waiting:
            data = sock.recv(1 << 16)
            if not data:
                raise EOFError
            for call in recorder.receive(data):
                self.answered += 1
                if call.reply.startswith(b"RESERVED"):
                    self.held += [job_id for job_id, _ in call.jobs]

    def _command(self):
        """The next command: its line, and its body if it has one."""
        rng = self.rng
        choice = rng.randrange(20)
        if choice >= 10 and self.held:
            job_id = self.held.pop(rng.randrange(len(self.held)))
            if choice == 10:
                return b"bury %d 1" % job_id, None
            if choice == 11:
                return b"release %d 2 %d" % (job_id, rng.choice((0, 0, 1))), None
            if choice == 12:
                self.held.append(job_id)
                return b"touch %d" % job_id, None
            return b"delete %d" % job_id, None
        if choice < 6:
            body = self.prefix + b"%d-" % next(self.names) + b"x" * rng.choice((0, 10, 200, 3000))
            more = b"%d %d %d %d" % (rng.randrange(3), rng.choice((0, 0, 0, 1)), TTR, len(body))
            if choice < 4:
                return b"put " + more, body
            return b"%b %b " % ((b"put-keyed", b"replace-keyed")[choice - 4], self._key()) + more, body
        if choice == 6:
            return b"kick %d" % rng.randrange(1, 5), None
        if choice == 7:
            return b"cancel-keyed " + self._key(), None
        return b"reserve-with-timeout " + (b"0.2" if choice == 8 else b"0"), None

    def _move(self):
        """Commands after which the client uses another tube, and watches that one only, or all of them."""
        rng = self.rng
        self.tube = rng.choice(self.tubes)
        lines = [b"use " + self.tube, b"watch " + self.tube]
        word = b"ignore " if rng.randrange(2) else b"watch "
        lines += [word + tube for tube in self.tubes if tube != self.tube]
        return [(line, None) for line in lines]

    def _key(self):
        return b"k%d" % self.rng.randrange(KEYS)


class Feeder(Client):
    """Puts a job into one tube after the other, for workers."""

    def _talk(self, sock):
        try:
            while not self.stops:
                self.tube = self.rng.choice(self.tubes)
                body = self.prefix + b"%d" % next(self.names)
                self._ask(sock, [(b"use " + self.tube, None), (b"put 0 0 %d %d" % (TTR, len(body)), body)])
                time.sleep(2 * self.pause)
        except (ConnectionError, EOFError):
            self.recorder.leave(by_itself=False)
        else:
            self.recorder.leave(by_itself=True)


class Worker(Client):
    """Waits for a job of any tube, as long as it takes, and deletes it."""

    sock = None

    def _talk(self, sock):
        self.sock = sock
        try:
            self._ask(sock, [(b"watch " + tube, None) for tube in self.tubes])
            self._ask(sock, [(b"ignore default", None)])
            while not self.stops:
                self._ask(sock, [(b"reserve", None)])
                self._ask(sock, [(b"delete %d" % self.held.pop(), None)] if self.held else [])
        except (ConnectionError, EOFError):
            pass
        self.recorder.leave(by_itself=False)

    def interrupt(self):
        """End its wait."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


class Load:
    """This many clients of a cluster, until the end of a `with`.

    Args:
        addresses: of all nodes.
        shards: how many the cluster has. If there are several, every other client watches now tubes of all of them,
            and now one tube; and besides there are workers that wait for jobs of all shards, and are fed.

    Attributes:
        history: what they have said and heard.
        tubes: all that clients use.
    """

    def __init__(self, addresses, clients, rng, shards=1, pause=PAUSE):
        self.history = History()
        tubes = TUBES if shards == 1 else tubes_of(shards)
        kinds = [(Client, tubes)] * clients
        if shards > 1:
            fed = tubes_of(shards, b"w")
            kinds += [(Feeder, fed), *[(Worker, fed)] * WORKERS]
            tubes += fed
        self.tubes = tubes
        self.clients = [
            make(self.history, addresses, number, random.Random(rng.random()), names, pause)
            for number, (make, names) in enumerate(kinds)
        ]

    def __enter__(self):
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_):
        for client in self.clients:
            client.stops = True
        for client in self.clients:
            client.interrupt()
            client.join(2 * WITHIN)
            assert not client.is_alive(), "a client has no answer"

    def check(self):
        for client in self.clients:
            if client.failure:
                waiting = client.recorder and client.recorder.waiting[:3]
                raise AssertionError(f"a client has failed, and waits for {waiting}") from client.failure

    def answered(self):
        """How many commands each client has had answered."""
        self.check()
        return [client.answered for client in self.clients]


class Auditor:
    """A client that nobody records, and that comes when all others are gone: it takes all jobs, and removes them."""

    def __init__(self, address, tubes=TUBES):
        self.sock = connect(address)
        self.sock.settimeout(WITHIN)
        self.recorder = Recorder(History(), "auditor", monotonic_ns)
        self.tubes = tubes
        for tube in tubes:
            self.ask([b"watch " + tube])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def ask(self, lines, body=None):
        """Send commands, and return their calls."""
        calls = []
        self.sock.sendall(b"".join([self.recorder.send(line, body) for line in lines]))
        while self.recorder.waiting:
            data = self.sock.recv(1 << 16)
            assert data, "the leader has closed the connection"
            calls += self.recorder.receive(data)
        return calls

    def next_ids(self):
        """For each tube an id that is greater than every other of its shard; nobody has it any more."""
        found = []
        for tube in self.tubes:
            self.ask([b"use " + tube])
            (call,) = self.ask([b"put 0 100000 60 0"], b"")
            found.append(int(call.reply.split()[1]))
            self.ask([b"delete %d" % found[-1]])
        return found

    def take_all(self):
        """Reserve all jobs, id -> body: also those that are delayed or buried, or whose clients are only just gone."""
        jobs = {}

        def are_all_taken():
            for tube in self.tubes:
                self.ask([b"use " + tube, b"kick 100000"])
            found = [call.jobs[0] for call in self.ask([b"reserve-with-timeout 0"] * 100) if call.jobs]
            jobs.update(found)
            return not found and self._live() == len(jobs)

        eventually(are_all_taken, "all jobs are ready", WITHIN)
        return jobs

    def _live(self):
        self.sock.sendall(b"stats\r\n")
        with self.sock.makefile("rb") as file:
            text = file.read(int(file.readline().split()[1]) + 2).decode()
        figures = dict(line.split(": ") for line in text.splitlines() if ": " in line)
        return sum(int(figures[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried"))

    def remove(self, jobs):
        """Delete the jobs that it has taken."""
        calls = self.ask([b"delete %d" % job_id for job_id in jobs])
        assert all(call.reply == b"DELETED" for call in calls), calls
