"""What clients may rely on where tubes have policies, and a load and a book that find out whether they can.

Clients keep a book of what they ask and are told. What is told counts for certain; what was asked and not answered may
have happened or not. After a restart, or when another leader has taken over, each job must be as the book says, within
these bounds:

    lost      a job whose put was acknowledged is missing, and no one has asked for its deletion, nor has it expired
    returned  a job is there after DELETED
    doubled   one put has made two jobs, or one id was given to two
    tries     a job has failed more or less often than its `tries` say
    dead      a job is in the dead tube without having failed so often, or is not there although it has; or not whole.
              Where the dead tube is of another shard, the same of a job that is buried in place
    held      a key was given to another job before its time was over
    early     a job was handed out before its moment of the wall clock, after its last failure, or while a job of the
              group that it comes after was left
    open      a job waits for a group that has no job left, or does not wait for one that has
    counted   a group has counted more or fewer jobs than it has had
    exceeded  clients had more jobs of a limit at a time than it allows
"""

import contextlib
import itertools
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from harness.caller import Caller

CONFIG = """
[[tube]]
match = "dead"

[[tube]]
match = "work*"
max-tries = 3
backoff = 0.01
backoff-max = 0.04
dead-tube = "dead"
"""

POLICY_TRIES = 3
FOR_EVER = 1000
"""Tries of a job that has a key: if it went to the dead tube, its key would be free."""

HOLD = 2.0
TTL = 0.4
KEYS = 8
LIMITS = (1, 2, 3)
"""How many jobs of each limit may be reserved at a time."""

CLIENTS = 4
AUDIT = 5  # restarts from one comparison to the next
DEPTH = 24  # commands in flight on a connection, at the most
DEAD = b"dead"
BRIEF = b"brief"

SLOWLY = 0.02
"""Seconds by which two clocks may differ: how long a key is held, the server measures with another than the clients."""


class Tubes(NamedTuple):
    """Where the load puts its jobs."""

    near: tuple = (b"work",)  # whose dead tube is of the same shard
    far: tuple = ()  # whose dead tube is of another one: a job that has failed too often is buried in place
    shards: int = 1

    @property
    def working(self):
        return self.near + self.far

    @property
    def all(self):
        return *self.working, BRIEF


def tubes_of(shards):
    """Tubes of which one is near the dead tube, and two are far from it and from each other."""
    if shards == 1:
        return Tubes()
    names = [b"work-%d" % number for number in range(100)]
    of_shard = {crc32(name) % shards: name for name in reversed(names)}
    near = of_shard.pop(crc32(DEAD) % shards)
    return Tubes((near,), tuple(of_shard[shard] for shard in sorted(of_shard)[:2]), shards)


@dataclass(eq=False)
class Entry:
    """What is known of one job."""

    body: bytes
    tube: bytes
    asked: float  # when its put was sent
    tries: int = POLICY_TRIES  # that it may have
    key: bytes = b""
    ttl: float = 0
    at: float = 0
    number: int = 0  # its id, or 0 as long as nobody knows it
    acknowledged: bool = False
    low: int = 0  # so often it has certainly failed
    high: int = 0  # so often it may have failed
    dropped: int = 0  # so often a client has left it, in this life of the server: it counts if a later change does
    left: bool = False  # the client that had it is gone, and it was not seen since
    doomed: float = 0  # when its deletion was first asked for
    deleted: bool = False
    may_be_buried: bool = False
    gone: float = 0  # when its last failure was acknowledged
    group: "Batch | None" = None  # that it is a job of
    after: "Batch | None" = None  # that it comes after
    limit: bytes = b""  # its name
    limit_count: int = 0  # how many jobs with it may be reserved
    may_have_died: bool = False  # it may have gone to the dead tube, at any time

    def may_have_ended(self):
        """Whether it may have left its group, at any time."""
        return bool(self.doomed or self.deleted or self.gone or self.may_have_died or self.high >= self.tries)


@dataclass(eq=False)
class Batch:
    """What is known of one group."""

    name: bytes
    members: list  # entries


class Book:
    """All entries, and what was found to be wrong."""

    def __init__(self, shards=1):
        self.tubes = tubes_of(shards)
        self.lock = threading.Lock()
        self.entries = {}  # body -> entry
        self.numbered = {}  # id -> entry
        self.keys = {}  # (tube, key) -> the entry that was told last to have it
        self.problems = Counter()
        self.stories = []
        self.told = Counter()
        self.groups = []
        self.held = {}  # by the name of a limit: jobs that a client has for certain
        self.sure = True  # nobody is about to kill the server

    def report(self, kind, entry, *what):
        self.problems[kind] += 1
        self.stories.append((kind, entry, *what))

    def number(self, entry, number):
        """Note the id of a job."""
        other = self.numbered.setdefault(number, entry)
        if other is not entry or entry.number not in (0, number):
            self.report("doubled", entry, number, other)
        entry.number = number

    def inserted(self, entry, number, now):
        self.number(entry, number)
        entry.acknowledged = True
        if entry.key:
            before = self.keys.get((entry.tube, entry.key))
            if before is not None and not before.deleted and not before.doomed:
                self.report("held", before, "it lives", entry)
            elif before is not None and now < before.doomed + HOLD - SLOWLY:
                self.report("held", before, now - before.doomed, entry)
            self.keys[entry.tube, entry.key] = entry

    def reserved(self, number, body, asked):
        """Note that a client has been given a job; return its entry."""
        entry = self.entries[body]
        self.number(entry, number)
        if entry.deleted:
            self.report("returned", entry)
        if entry.at > time.time():
            self.report("early", entry, entry.at - time.time())
        if entry.gone and asked > entry.gone:
            self.report("early", entry, "it is dead")
        if entry.after is not None:
            self.told[b"(after a group)"] += 1
            for member in entry.after.members:
                if member.acknowledged and not member.may_have_ended():
                    self.report("early", entry, member)
        if entry.limit and self.sure:
            # Who is told so has not given it back, and neither have those who were told so before: all of them had
            # theirs when the last one was granted, in whatever order that was.
            held = self.held.setdefault(entry.limit, set())
            held.add(entry)
            self.told[b"(limited)"] += 1
            if len(held) > entry.limit_count:
                self.report("exceeded", entry, held)
        if entry.left:
            entry.left = False
            entry.dropped += self.sure
        return entry

    def failed(self, entry, word, now):
        """Note that a release was acknowledged: it and what came before it are there for good.

        Two clients may hear of two failures of a job in another order than they happened: RELEASED after BURIED.
        """
        entry.low += 1 + (entry.dropped if self.sure else 0)
        entry.dropped = 0
        is_buried = word == b"BURIED"
        if is_buried and entry.tube in self.tubes.near:
            self.report("dead", entry, word)
        must = entry.low >= entry.tries
        may = entry.high >= entry.tries
        lives_on = must and not is_buried and not entry.gone and entry.tube in self.tubes.far
        if (is_buried and not may) or lives_on:
            self.report("dead", entry, word)
        if must or is_buried:
            entry.gone = now

    def let_go(self, entry):
        """Note that a client is about to say what has become of its job, or to leave."""
        if entry.limit:
            self.held.get(entry.limit, set()).discard(entry)

    def begin_kill(self):
        """The server is about to be killed: from now on nobody can tell before or after."""
        with self.lock:
            self.sure = False
            self.held.clear()

    def new_life(self):
        """The server has started anew, and no one has asked it anything: what was not acknowledged may be forgotten."""
        self.sure = True
        self.held.clear()
        for entry in self.entries.values():
            entry.dropped, entry.left = 0, False


class Worker(threading.Thread):
    """Sends commands in batches, over one connection after the other, until the server is gone."""

    def __init__(self, book, address, number, rng):
        super().__init__(daemon=True)
        self.stops = False
        self.book, self.address, self.rng = book, address, rng
        self.names = itertools.count()
        self.prefix = b"%d-%d-" % (time.monotonic_ns(), number)
        self.held = []  # entries
        self.failure = None
        self.caller = None

    def run(self):
        try:
            with contextlib.suppress(ConnectionError, EOFError):
                while not self.stops:
                    self._live()
        except Exception as error:
            self.failure = error
        finally:
            if self.caller is not None:
                self.caller.close()

    def _live(self):
        """One connection: it ends while it has reserved some jobs, which have failed with that."""
        self.caller = caller = Caller(self.address)
        self.held = []
        tubes = self.book.tubes.all
        caller.send(b"".join([b"watch %b\r\n" % tube for tube in tubes]) + b"ignore default\r\n")
        for count in (*range(2, len(tubes) + 2), len(tubes)):
            line = self._line()
            assert line == b"WATCHING %d" % count, line
        for _ in range(self.rng.randrange(2, 12)):
            self._batch()
        with self.book.lock:
            for entry in self.held:
                self.book.let_go(entry)
                entry.high += 1
                entry.left = True
        caller.close()

    def _batch(self):
        asked, data = [], []
        for _ in range(self.rng.randrange(1, DEPTH)):
            for line, what in self._commands():
                data.append(line)
                asked.append((*what, time.time()))
        self.caller.send(b"".join(data))
        for what, entry, moment in asked:
            self._hear(what, entry, moment)

    def _commands(self):
        return self._put_group() if self.rng.random() < 0.05 else [self._command()]

    def _put_group(self):
        """A group of jobs, and a job that comes after it."""
        rng, book = self.rng, self.book
        tube = rng.choice(book.tubes.working)
        group = Batch(b"%b/%b%d" % (tube, self.prefix, next(self.names)), [])
        entries = []
        for number in range(rng.randrange(2, 5)):
            body = self.prefix + b"%d-" % next(self.names) + b"x" * rng.choice((0, 200, 3000))
            entries.append(Entry(body, tube, time.time(), group=group))
            if not number:
                entries[0].group, entries[0].after = None, group
        after, *group.members = entries
        with book.lock:
            book.groups.append((group, after))
            book.entries |= {entry.body: entry for entry in entries}
        puts = [(entry, b"group=" + group.name) for entry in group.members]
        puts.append((after, b"after=%b%b" % (group.name, rng.choice((b"", b":wait")))))
        return [
            (b"use %b\r\nput-with 1 0 60 %d %b\r\n%b\r\n" % (tube, len(entry.body), label, entry.body), ("put", entry))
            for entry, label in puts
        ]

    def _command(self):
        rng, book = self.rng, self.book
        choice = rng.randrange(16)
        if choice < 5:
            entry, line = self._put(choice)
            with book.lock:
                book.entries[entry.body] = entry
            return line, ("put", entry)
        if choice < 9 or not self.held:
            return b"reserve-with-timeout 0\r\n", ("reserve", None)
        entry = self.held.pop(rng.randrange(len(self.held)))
        with book.lock:
            book.let_go(entry)
            if choice < 13:
                entry.high += 1
                return b"release %d 1 0\r\n" % entry.number, ("release", entry)
            if choice == 13:
                entry.may_be_buried = True
                return b"bury %d 1\r\n" % entry.number, ("bury", entry)
            entry.doomed = entry.doomed or time.time()
            return b"delete %d\r\n" % entry.number, ("delete", entry)

    def _put(self, choice):
        rng = self.rng
        body = self.prefix + b"%d-" % next(self.names) + b"x" * rng.choice((0, 10, 200, 3000))
        now = time.time()
        entry = Entry(body, BRIEF if choice == 4 else rng.choice(self.book.tubes.working), now)
        more = b""
        if choice == 0:
            entry.key, entry.tries = b"k%d" % rng.randrange(KEYS), FOR_EVER
            more = b" key=%b hold=%.1f tries=%d" % (entry.key, HOLD, FOR_EVER)
        elif choice == 1:
            entry.tries = 2
            more = b" tries=2 backoff=0.005"
        elif choice == 2:
            entry.at = now + rng.choice((-1, 0.02, 0.5, 1.5))
            more = b" at=%.6f" % entry.at
            entry.at = float(more[4:])
        elif choice == 3 and rng.random() < 0.7:
            entry.limit_count = rng.choice(LIMITS)
            entry.limit = b"%b-%d" % (entry.tube, entry.limit_count)  # each shard has its own
            more = b" limit=%b:%d share=s%d" % (entry.limit, entry.limit_count, rng.randrange(3))
        elif choice == 4:
            entry.tries = FOR_EVER
            entry.ttl = rng.choice((TTL, 1000))
            more = b" ttl=%.1f" % entry.ttl
        line = b"use %b\r\nput-with 1 0 60 %d%b\r\n%b\r\n" % (entry.tube, len(body), more, body)
        return entry, line

    def _line(self):
        line = self.caller.line()
        if not line.endswith(b"\r\n"):
            raise EOFError
        return line[:-2]

    def _hear(self, what, entry, asked):
        book = self.book
        line = self._line()
        if what == "put":
            assert line == b"USING " + entry.tube, line
            line = self._line()
        word = line.split()[0]
        if what == "reserve" and word == b"RESERVED":
            size = int(line.split()[2])
            body = self.caller.read(size + 2)
            if len(body) < size + 2:
                raise EOFError
        with book.lock:
            book.told[word] += 1
            if what == "put":
                assert word == b"INSERTED" or (word == b"EXISTS" and entry.key), line
                if word == b"INSERTED":
                    book.inserted(entry, int(line.split()[1]), time.time())
                else:
                    del book.entries[entry.body]
            elif what == "reserve":
                assert word in (b"RESERVED", b"TIMED_OUT"), line
                if word == b"RESERVED":
                    self.held.append(book.reserved(int(line.split()[1]), body[:-2], asked))
            elif what == "release":
                self._expect(line, b"RELEASED", b"BURIED")
                if word != b"NOT_FOUND":
                    book.failed(entry, word, time.time())
            elif what == "bury":
                self._expect(line, b"BURIED")
            else:
                self._expect(line, b"DELETED")
                entry.deleted = entry.deleted or word == b"DELETED"

    def _expect(self, line, *words):
        """It has the job; but not if another leader has taken over, and nobody has told the client."""
        assert line in words or (line == b"NOT_FOUND" and not self.book.sure), line


class Auditor:
    """Compares the jobs of a server with the book, while nobody else is there."""

    def __init__(self, book, address, rng):
        self.book, self.rng = book, rng
        self.caller = Caller(address)

    def yaml(self, command):
        """What a stats command answers; None for NOT_FOUND."""
        line = self.caller.ask(command + b"\r\n")
        if line == b"NOT_FOUND\r\n":
            return None
        text = self.caller.read(int(line.split()[1]) + 2).decode()
        rows = [row.split(": ", 1) for row in text.splitlines() if ": " in row]
        return {name: value.strip('"') for name, value in rows}

    def audit(self):
        book, caller = self.book, self.caller
        before = time.time()
        shards = book.tubes.shards
        last = [self.next_id(shard) for shard in range(shards)]
        there, states = {}, {}
        # Another leader leaves out a million ids: only those near a known one can be those of unacknowledged puts.
        part = DEPTH * shards
        near = {number // part + step for number in book.numbered for step in (-4, -3, -2, -1, 0, 1, 2, 3, 4)}
        for number in sorted(number for place in near for number in range(place * part, (place + 1) * part)):
            if not 0 < number < last[number % shards]:
                continue
            known = book.numbered.get(number)
            if known is not None and known.deleted and self.rng.randrange(20):
                continue  # a sample of them
            statistics = self.yaml(b"stats-job %d" % number)
            if statistics is None:
                continue
            line = caller.ask(b"peek %d\r\n" % number)
            if line == b"NOT_FOUND\r\n":
                continue  # it has expired since
            entry = book.entries[caller.read(int(line.split()[2]) + 2)[:-2]]
            book.number(entry, number)
            there[number] = statistics["tube"]
            states[number] = statistics["state"]
            self.check(entry, statistics)
        for entry in book.entries.values():
            if entry.number in there or not entry.acknowledged or entry.doomed:
                entry.deleted = entry.deleted or bool(entry.doomed and entry.number not in there)
            elif not (entry.ttl and time.time() >= entry.asked + entry.ttl):
                book.report("lost", entry, before)
        self.count(Counter(there.values()))
        self.check_groups(there, states)

    def check_groups(self, there, states):
        """Compare groups with the jobs that were found: those that something waits for, and some others."""
        book = self.book
        waits = [each for each in book.groups if each[1].number in states]
        for group, after in waits + self.rng.sample(book.groups, min(len(book.groups), 20)):
            left = [entry for entry in group.members if there.get(entry.number) == entry.tube.decode()]
            state = states.get(after.number)
            if state is not None and not left and state == "delayed":
                book.report("open", after, group.name)
            elif state not in (None, "delayed") and not all(entry.may_have_ended() for entry in left):
                book.report("early", after, left)
            found = self.yaml(b"stats-group " + group.name) or {}
            if bool(left) != (found.get("state") == "open"):
                book.report("open", group, found)
            ended = sum(int(found.get(f"{end}-jobs", 0)) for end in ("done", "cancelled", "expired", "dead"))
            known = sum(entry.acknowledged for entry in group.members)
            if not known <= ended + len(left) <= len(group.members):
                book.report("counted", group, found)

    def next_id(self, shard):
        """The id that a job of this shard gets now."""
        shards = self.book.tubes.shards
        tube = next(name for name in (b"t%d" % number for number in range(1000)) if crc32(name) % shards == shard)
        assert self.caller.ask(b"use %b\r\n" % tube) == b"USING %b\r\n" % tube
        number = int(self.caller.ask(b"put 0 100 60 0\r\n\r\n").split()[1])
        assert self.caller.ask(b"delete %d\r\n" % number) == b"DELETED\r\n"
        return number

    def check(self, entry, found):
        """Compare one job with its entry; what is found counts from now on."""
        book = self.book
        if entry.deleted:
            book.report("returned", entry, found)
        tries = int(found.get("tries", 0))
        tube = found["tube"].encode()
        if tube == entry.tube:
            if not entry.low <= tries <= entry.high and entry.tube != BRIEF:
                book.report("tries", entry, found)
            is_buried = found["state"] == "buried"
            if entry.low >= entry.tries or tries >= entry.tries:
                if is_buried and tube in book.tubes.far and tries == entry.tries:
                    entry.gone = entry.gone or time.time()
                else:
                    book.report("dead", entry, found)
            elif is_buried and not entry.may_be_buried:
                book.report("dead", entry, found)
            entry.may_have_died = entry.may_have_died or entry.high >= entry.tries
            entry.low = entry.high = tries
        else:
            whole = found["origin"].encode() == entry.tube and tries == 0
            whole = whole and found["reason"] in ("released", "disconnected") and entry.tube in book.tubes.near
            if tube != DEAD or entry.high < entry.tries or found["state"] != "ready" or not whole:
                book.report("dead", entry, found)
            entry.gone = entry.gone or time.time()

    def count(self, tubes):
        """Each job is in one tube: what the tubes count is what was found."""
        for name in (*self.book.tubes.working, DEAD):
            found = self.yaml(b"stats-tube " + name) or {}
            states = ("ready", "reserved", "delayed", "buried")
            assert sum(int(found.get(f"current-jobs-{state}", 0)) for state in states) == tubes[name.decode()], name

    def redrive(self):
        """Send all dead letters back: they have all their tries again."""
        dead = int((self.yaml(b"stats-tube dead") or {"current-jobs-ready": 0})["current-jobs-ready"])
        told = self.caller.ask(b"redrive dead 100000\r\n")
        assert told == b"REDRIVEN %d\r\n" % dead or (told == b"NOT_FOUND\r\n" and not dead), told
        for entry in self.book.entries.values():
            if entry.gone and entry.tube in self.book.tubes.near:
                entry.may_have_died = True
                entry.low = entry.high = 0
                entry.gone = 0
        return dead

    def kick(self):
        """Kick what is buried: it has all its tries again. Return how many had lost all of them."""
        ended = 0
        for tube in self.book.tubes.working:
            buried = int((self.yaml(b"stats-tube " + tube) or {"current-jobs-buried": 0})["current-jobs-buried"])
            if not buried:
                continue
            assert self.caller.ask(b"use %b\r\n" % tube) == b"USING %b\r\n" % tube
            assert self.caller.ask(b"kick %d\r\n" % buried) == b"KICKED %d\r\n" % buried
            for entry in self.book.entries.values():
                if entry.tube != tube:
                    continue
                entry.may_have_died = entry.may_have_died or entry.high >= entry.tries
                if entry.gone:
                    entry.low = entry.high = 0
                    entry.gone = 0
                    ended += 1
                elif entry.may_be_buried:  # perhaps it was not: then it has what it had
                    entry.low = 0
        return ended

    def close(self):
        self.caller.close()
