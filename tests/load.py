"""Keeps a server or a cluster busy while it is killed, and compares all replies with the jobs that are left
(histories.py).

A client connects to any node, sends commands in batches, and connects again when it is disconnected. What it has asked
for and has not been told may have happened or not.
"""

import contextlib
import itertools
import json
import random
import socket
import threading
import time
from time import monotonic_ns
from zlib import crc32

from histories import History, Recorder, Survivor, attributes_of, problems_of

from conformance.address import connect
from harness.caller import Caller
from harness.waiting import eventually
from tests.cluster.simulation.commands import DEAD, attributes, policed_tubes, terms_of

WITHIN = 90.0
"""Seconds until a command must be answered, or a node must accept, while others are killed."""

DEPTH = 16
"""Commands in flight on a connection, at the most."""

TTR = 600
"""Seconds: no time to run is over in a test."""

KEYS = 40
"""How many keys there are in each tube."""

SKEW = 20_000_000
"""Nanoseconds by which the clocks of the server and the clients may differ."""

PAUSE = 0.002
"""Seconds from one batch of a client to the next: a machine with two processors has more to do than to be a client."""

TUBES = (b"t0", b"t1")
"""Tubes without a policy, where there are no shards."""


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

    def __init__(self, history, addresses, number, rng, tubes=TUBES, shards=1, pause=PAUSE):
        super().__init__(daemon=True)
        self.pause = pause
        self.history, self.addresses, self.rng = history, addresses, rng
        self.number = number
        self.tubes = tubes
        self.tube = tubes[number % len(tubes)]
        self.shards = shards
        self.commutes = shards > 1 and number % 2
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
                commands = [self._command() for _ in range(self.rng.randrange(1, DEPTH))]
                self._ask(sock, self._put_group() if not self.rng.randrange(20) else commands)
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
            body = self._body()
            more = b"%d %d %d %d" % (rng.randrange(3), rng.choice((0, 0, 0, 1)), TTR, len(body))
            if choice < 3:
                return b"put " + more, body
            if choice > 3:
                return b"%b %b " % ((b"put-keyed", b"replace-keyed")[choice - 4], self._key()) + more, body
            demands, _ = attributes(rng, self._key().decode(), time.time_ns())
            return (b"put-with %d 0 %d %d %b" % (rng.randrange(3), TTR, len(body), demands.encode())).rstrip(), body
        if choice == 6:
            return b"kick %d" % rng.randrange(1, 5), None
        if choice == 7:
            return b"cancel-keyed " + self._key(), None
        return b"reserve-with-timeout " + (b"0.2" if choice == 8 else b"0"), None

    def _put_group(self):
        """Puts of the jobs of a group, and of a job that comes after it."""
        name = b"%b/%b%d" % (self.tube, self.prefix, next(self.names))
        demands = [b"group=" + name] * self.rng.randrange(1, 4) + [b"after=" + name]
        bodies = [self._body() for _ in demands]
        return [
            (b"put-with 1 0 %d %d %b" % (TTR, len(body), demand), body)
            for demand, body in zip(demands, bodies, strict=True)
        ]

    def _body(self):
        """A body that no other put has."""
        return self.prefix + b"%d-" % next(self.names) + b"x" * self.rng.choice((0, 10, 200, 3000))

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
        self.shards = shards
        tubes = TUBES if shards == 1 else tubes_of(shards)
        tubes += tuple(name.encode() for name in policed_tubes(shards))
        kinds = [(Client, tubes)] * clients
        if shards > 1:
            fed = tubes_of(shards, b"w")
            kinds += [(Feeder, fed), *[(Worker, fed)] * WORKERS]
            tubes += fed
        self.tubes = tubes
        self.clients = [
            make(self.history, addresses, number, random.Random(rng.random()), names, shards, pause)
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

    def problems(self, address):
        """Compare what the clients were told with the jobs that are left, now that they are gone, and remove those.

        Args:
            address: of a server that has all jobs, or asks for them.

        Returns:
            The problems, the ids that are left, and an id of each shard greater than every other.
        """
        self.check()
        with Auditor(address, (*self.tubes, DEAD.encode())) as auditor:
            ends = auditor.next_ids()
            survivors = auditor.survivors()
            groups = auditor.groups(self.history)
            moment = monotonic_ns()
            auditor.remove(survivors)
        problems = problems_of(
            self.history,
            survivors,
            moment,
            skew=SKEW,
            shards=self.shards,
            policies=terms_of(policed_tubes(self.shards), self.shards),
            wall=time.time_ns() - monotonic_ns(),
            groups=groups,
        )
        return problems, survivors, ends


class Auditor:
    """A client that is not recorded, and comes when all others are gone: it looks at all jobs, and removes them."""

    def __init__(self, address, tubes):
        self.caller = Caller(address)
        self.caller.socket.settimeout(WITHIN)
        self.tubes = tubes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.caller.close()

    def body(self, command):
        """The body of a reply; None if it has none."""
        line = self.caller.ask(command + b"\r\n")
        return self.caller.read(int(line.split()[-1]) + 2)[:-2] if line.startswith((b"OK", b"FOUND")) else None

    def figures(self, command):
        """What a command of statistics answers, by name; nothing if there is nothing."""
        rows = [line.split(": ", 1) for line in (self.body(command) or b"").decode().splitlines() if ": " in line]
        return dict(rows)

    def next_ids(self):
        """For each tube an id that is greater than every other of its shard; no job has it any more."""
        found = []
        for tube in self.tubes:
            self.caller.ask(b"use %b\r\n" % tube)
            found.append(int(self.caller.ask(b"put 0 100000 60 0\r\n\r\n").split()[1]))
            assert self.caller.ask(b"delete %d\r\n" % found[-1]) == b"DELETED\r\n"
        return found

    def survivors(self):
        """All jobs, as the checker wants them: those of clients that are only just gone are ready again."""
        found = {}

        def are_all_found():
            before = set(found)
            found.clear()
            for tube in self.tubes:
                for state in ("ready", "delayed", "buried"):
                    found.update(self._listed(tube, state))
            # Twice, because a job whose delay ends meanwhile is in neither list, and another one may expire.
            return before == set(found) and self._live() == len(found)

        eventually(are_all_found, "no job is reserved, and all are found", WITHIN)
        bodies = {number: self.body(b"peek %d" % number) for number in found}
        return {
            number: survivor._replace(body=bodies[number])
            for number, survivor in found.items()
            if bodies[number] is not None  # else its time to live has ended
        }

    def _listed(self, tube, state):
        page = "0"
        while page:
            text = self.body(f"list-jobs {tube.decode()} {state} {page} 1000".encode())
            if text is None:
                return
            lines = text.decode().splitlines()
            page = json.loads(lines[1].removeprefix("next: "))
            for line in lines[3:]:
                row = dict(entry.split(": ") for entry in line.removeprefix("- {").removesuffix("}").split(", "))
                key = json.loads(row["key"])
                yield int(row["id"]), Survivor(b"", tube.decode(), state, key, int(row["tries"]))

    def _live(self):
        figures = self.figures(b"stats")
        return sum(int(figures[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried"))

    def groups(self, history):
        """The statistics of each group that a put of the history has named."""
        names = {attributes_of(call.line).get("group") for call in history.calls if call.body is not None}
        return {name: self.figures(b"stats-group " + name) for name in sorted(names - {None})}

    def remove(self, jobs):
        """Delete jobs."""
        for number in jobs:
            assert self.caller.ask(b"delete %d\r\n" % number) in (b"DELETED\r\n", b"NOT_FOUND\r\n")
