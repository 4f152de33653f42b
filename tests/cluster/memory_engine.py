"""An engine in memory that breaks on purpose: a primary and its replicas, which may lag, fail over, fill up, be wiped.

`Servers` is what fails: the tests say how. `MemoryEngine` is a connection to them, and does exactly what
`cluster/engine/interface.py` says.
Nothing waits here: what would take time fails at once.
"""

from collections import deque
from functools import partial

from beanstalk_server.cluster.engine.interface import (
    CREATE,
    MOVE,
    OBSERVE,
    RELEASE,
    REMOVE,
    RENAME,
    RENEW,
    RESIZE,
    TAKE,
    WRITE,
    Answer,
    CommitCall,
    EngineError,
    EngineFullError,
    EngineRefusedError,
    File,
    Lease,
    Member,
    Report,
    lacks,
    lacks_end,
    made,
    observe,
    release,
    renew,
    take,
)

FORGET = 60.0
"""Seconds after which a node that does not report is no longer a member."""


class ShardData:
    """What one server holds of one shard."""

    def __init__(self):
        self.lease = Lease()
        self.files = {}  # name -> [size, bytearray]
        self.count = 0  # how many files there must be
        self.tail = None  # the file that was written last, and its bytes

    def copy(self):
        twin = ShardData()
        twin.lease = self.lease
        twin.files = {name: [size, bytearray(data)] for name, (size, data) in self.files.items()}
        twin.count, twin.tail = self.count, self.tail
        return twin

    def make(self, operations):
        """Do what a commit says, and note what must be there from now on."""
        for what, name, *more in operations:
            before = len(self.files)
            self.operate(what, name, *more)
            self.count += len(self.files) - before
            self.tail = (name, len(self.files[name][1])) if what == WRITE else None

    def operate(self, what, name, *more):
        files = self.files
        if what == CREATE:
            files[name] = [more[0], bytearray()]
        elif what == REMOVE:
            files.pop(name, None)
        elif what == RENAME:
            files[more[0]] = files.pop(name)
        elif what == RESIZE:
            files[name][0] = more[0]
            del files[name][1][more[0] :]
        else:
            assert what == WRITE, what
            offset, written = more
            data = files.setdefault(name, [0, bytearray()])[1]
            if offset > len(data):
                data.extend(bytes(offset - len(data)))
            data[offset : offset + len(written)] = written
            files[name][0] = max(files[name][0], len(data))


class Dataset:
    """What one server holds: `lease` and `files` are those of shard 0."""

    def __init__(self):
        self.journals = {}  # shard -> ShardData
        self.shards = 0  # how many there are; 0 if that is not fixed
        self.nodes = {}  # node -> (address, time, load, whether it takes shards)

    def of(self, shard):
        """What it holds of a shard."""
        return self.journals.setdefault(shard, ShardData())

    @property
    def lease(self):
        return self.of(0).lease

    @lease.setter
    def lease(self, lease):
        self.of(0).lease = lease

    @property
    def files(self):
        return self.of(0).files

    def copy(self):
        twin = Dataset()
        twin.journals = {shard: data.copy() for shard, data in self.journals.items()}
        twin.shards = self.shards
        twin.nodes = dict(self.nodes)
        return twin

    def used(self):
        """Bytes of memory that the files take."""
        return sum(len(content) for each in self.journals.values() for _, content in each.files.values())

    def apply(self, effect):
        """Make one change, as the primary has decided it."""
        kind, *values = effect
        if kind == "lease":
            shard, lease, shards = values
            self.of(shard).lease = lease
            self.shards = shards or self.shards
        elif kind == "shards":
            (self.shards,) = values
        elif kind == "report":
            report, now = values
            self.nodes = {each: seen for each, seen in self.nodes.items() if now - seen[1] <= FORGET}
            self.nodes[report.node] = report.address, now, report.load, report.takes
        else:
            shard, commit = values
            data = self.of(shard)
            data.make(commit.operations)
            data.lease = data.lease._replace(position=commit.position)


class Replica:
    """A copy of the primary. What it has not applied yet is lost if it becomes the primary now."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.waiting = deque()  # effects that it has not applied
        self.lags = False
        """Whether it applies nothing, and so confirms nothing, until it is False again and `catch_up` is called."""

    def catch_up(self, count=None):
        """Apply what it has missed, or only the first this many effects of that."""
        while self.waiting and count != 0:
            self.dataset.apply(self.waiting.popleft())
            count = None if count is None else count - 1

    @property
    def is_current(self):
        return not self.waiting


class Servers:
    """A primary and its replicas.

    Args:
        replicas: how many.
        limit: bytes that the files may take, or None.
        clock: seconds, as the engine has them.
    """

    def __init__(self, replicas=2, *, limit=None, clock=lambda: 0.0):
        self.primary = Dataset()
        self.replicas = [Replica(Dataset()) for _ in range(replicas)]
        self.limit = limit
        self.clock = clock
        self.misses_files = True
        """Whether it tells which files are gone; not if a test damages them."""
        self.is_reachable = True
        self.refuses = False
        self.lost_answers = 0
        """How many of the next calls happen, and fail nevertheless."""
        self.before_call = lambda method: None
        """Called with the name of the method, before anything has happened; may raise.

        When many calls are made at once, then also for each of them: with its name, or the shard of a commit.
        """
        self.after_call = lambda method: None
        """The same when it has happened. What it raises is what the caller gets."""
        self.faults = []
        """What `check` finds."""
        self.calls = 0

    def engine(self, replicas=1):
        """A connection that waits for this many replicas."""
        return MemoryEngine(self, replicas)

    def connect(self, replicas=1, shard=0):
        """A connection to one shard."""
        return OneShard(self.engine(replicas), shard)

    def change(self, *effect):
        """Apply an effect in the primary, and in all replicas that do not lag."""
        self.primary.apply(effect)
        for replica in self.replicas:
            replica.waiting.append(effect)
            if not replica.lags:
                replica.catch_up()

    def confirmed(self):
        """How many replicas have all that the primary has."""
        return sum(replica.is_current for replica in self.replicas)

    def lag(self, lags=True):
        """Let all replicas lag behind from now on, or catch up."""
        for replica in self.replicas:
            replica.lags = lags
            if not lags:
                replica.catch_up()

    def fail_over(self, number=None):
        """Make a replica the primary: the one that has most, unless its number is given. All others get its data.

        What it had not applied is lost.
        """
        if number is None:
            number = min(range(len(self.replicas)), key=lambda each: len(self.replicas[each].waiting))
        self.primary = self.replicas[number].dataset
        self.replicas = [Replica(self.primary.copy()) for _ in self.replicas]

    def lead(self, shard=0, epoch=None):
        """Take the lease, as the next leader; return it."""
        held = self.primary.of(shard).lease
        epoch = held.epoch + 1 if epoch is None else epoch
        lease = Lease(epoch, 0, f"node {epoch}", "here:1", f"secret {epoch}", held.position)
        lease = lease._replace(lineage=held.next_lineage())
        self.change("lease", shard, lease, 0)
        self.led = lease
        return lease

    def renew(self):
        """Restore the lease that `lead` has returned last, if it is lost."""
        held = self.primary.lease
        if self.led.follows(held):
            self.change("lease", 0, self.led._replace(position=held.position), 0)

    def wipe(self):
        """Lose everything, in all servers."""
        self.primary = Dataset()
        self.replicas = [Replica(Dataset()) for _ in self.replicas]

    def copy(self):
        """Servers that hold the same, and work without a fault."""
        twin = Servers(len(self.replicas), limit=self.limit, clock=self.clock)
        twin.misses_files = self.misses_files
        twin.primary = self.primary.copy()
        twin.replicas = [Replica(self.primary.copy()) for _ in self.replicas]
        return twin


def _is(held, lease):
    return (held.epoch, held.secret) == (lease.epoch, lease.secret)


class MemoryEngine:
    """One connection, which breaks when its servers do."""

    def __init__(self, servers, replicas=1):
        self.servers = servers
        self.replicas = replicas
        self.is_open = True
        self._shards = 0  # how many there are, as far as it knows

    def close(self):
        self.is_open = False

    def _begin(self, method):
        servers = self.servers
        servers.calls += 1
        servers.before_call(method)
        if not self.is_open:
            raise EngineError("the connection is closed")
        if not servers.is_reachable:
            raise EngineError("the engine cannot be reached")
        if servers.refuses:
            raise EngineRefusedError("the engine refuses this user")
        return servers

    def _end(self, method, answer):
        servers = self.servers
        servers.after_call(method)
        if servers.lost_answers:
            servers.lost_answers -= 1
            raise EngineError("the answer was lost")
        return answer

    def _wait(self):
        """Raise an error unless enough replicas have everything."""
        confirmed = self.servers.confirmed()
        if confirmed < self.replicas:
            raise EngineError(f"{confirmed} of {self.replicas} replicas have confirmed")

    def shards(self, wanted):
        servers = self._begin("shards")
        primary = servers.primary
        found = primary.shards
        if not found and primary.lease.epoch:
            found = 1
        if not found and wanted:
            servers.change("shards", wanted)
            found = wanted
        if found == wanted:
            self._wait()
        self._shards = found
        return self._end("shards", found)

    def perform(self, calls, report=None):
        try:
            servers = self._begin("perform")
            if report is not None:
                servers.change("report", report, servers.clock())
            return self._end("perform", [self._made(call.what, self._lease, call) for call in calls])
        except EngineError as error:
            return [error for _ in calls]

    def append(self, calls):
        try:
            self._begin("append")
            return self._end("append", [self._made(call.shard, self._commit, *call) for call in calls])
        except EngineError as error:
            return [error for _ in calls]

    def _made(self, name, make, *arguments):
        try:
            self.servers.before_call(name)
            return make(*arguments)
        except EngineError as error:
            return error

    def _lease(self, call):
        if call.what == OBSERVE:
            self._mark(call.shard, call.lease.renewals)
        elif call.what == TAKE:
            self._take(call.shard, call.seen, call.lease)
        elif call.what == RENEW:
            self._renew(call.shard, call.lease, restores=call.restores)
        elif call.what == RELEASE:
            self._release(call.shard, call.lease, call.successor)
        elif call.what == MOVE:
            self._move(call.shard, call.successor)
        return self.servers.primary.of(call.shard).lease

    def members(self):
        now = self._begin("members").clock()
        nodes = self.servers.primary.nodes.items()
        found = [
            Member(node, address, now - seen, load, takes)
            for node, (address, seen, load, takes) in nodes
            if now - seen <= FORGET
        ]
        return self._end("members", found)

    def inspect(self):
        return []

    def check(self):
        return self._end("check", list(self._begin("check").faults))

    def files(self, shard):
        files = self._begin("files").primary.of(shard).files.items()
        found = {name: File(max(size, len(data)), len(data)) for name, (size, data) in files}
        return self._end("files", found)

    def damage(self, shard):
        data = self._begin("damage").primary.of(shard)
        found = lacks(data.count, len(data.files)) if self.servers.misses_files else ""
        if not found and data.tail and self.servers.misses_files:
            name, length = data.tail
            found = lacks_end(name, length, len(data.files.get(name, (0, b""))[1]))
        return self._end("damage", found)

    def read(self, shard, name, offset, size):
        _, data = self._begin("read").primary.of(shard).files.get(name, (0, b""))
        return self._end("read", bytes(data[offset : offset + size]))

    # What the engine does at once

    def _mark(self, shard, number):
        held = self.servers.primary.of(shard).lease
        if number and not held.epoch and not held.renewals:
            self.servers.change("lease", shard, held._replace(renewals=number), 0)

    def _take(self, shard, seen, lease):
        servers = self.servers
        held = servers.primary.of(shard).lease
        if (_is(held, seen) and held.renewals == seen.renewals) or _is(held, lease):
            servers.change("lease", shard, lease._replace(position=held.position, successor=""), self._shards)
            self._wait()

    def _renew(self, shard, lease, *, restores=True):
        servers = self.servers
        held = servers.primary.of(shard).lease
        if restores and lease.follows(held):
            renewed = lease._replace(renewals=lease.renewals + 1, position=held.position, successor="")
            servers.change("lease", shard, renewed, self._shards)
            self._wait()
        elif _is(held, lease) and held.node == lease.node:
            servers.change("lease", shard, held._replace(renewals=held.renewals + 1), 0)
            self._wait()

    def _release(self, shard, lease, successor):
        held = self.servers.primary.of(shard).lease
        if _is(held, lease):
            self.servers.change("lease", shard, held._replace(node="", successor=successor), self._shards)

    def _move(self, shard, node):
        held = self.servers.primary.of(shard).lease
        if held.node:
            self.servers.change("lease", shard, held._replace(successor=node), 0)

    def _commit(self, shard, commit, may_exceed):
        servers = self.servers
        if not may_exceed and servers.limit is not None and servers.primary.used() > servers.limit:
            raise EngineFullError("the engine has reached its memory limit")
        held = servers.primary.of(shard).lease
        epoch = commit.position.epoch
        if (held.epoch, held.stamp.encode()) != (epoch, commit.stamp):
            return Answer(held.epoch, None, 0)
        if held.position == commit.before:
            servers.change("commit", shard, commit)
        elif held.position == commit.position:
            servers.change("lease", shard, held, 0)
        else:
            return Answer(epoch, held.position, 0)
        return Answer(epoch, commit.position, servers.confirmed())


class OneShard:
    """A connection to any engine, for one shard; failures are raised."""

    def __init__(self, engine, shard=0):
        self.shard = shard
        self.engine = engine
        self.files, self.damage, self.read = (
            partial(getattr(engine, name), shard) for name in ("files", "damage", "read")
        )
        self.members, self.check, self.close = engine.members, engine.check, engine.close

    def append(self, commit, *, may_exceed):
        return made(self.engine.append([CommitCall(self.shard, commit, may_exceed)])[0])

    def look(self):
        return made(self.engine.perform([observe(self.shard)])[0])

    def observe(self, node, address):
        return made(self.engine.perform([observe(self.shard)], Report(node, address))[0])

    def take(self, seen, lease):
        return made(self.engine.perform([take(self.shard, seen, lease)])[0])

    def renew(self, lease, **options):
        return made(self.engine.perform([renew(self.shard, lease, **options)])[0])

    def release(self, lease):
        return made(self.engine.perform([release(self.shard, lease)])[0])
