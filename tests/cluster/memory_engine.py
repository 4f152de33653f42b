"""An engine in memory that breaks on purpose: a primary and its replicas, which may lag, fail over, fill up, be wiped.

`Servers` is what fails: the tests say how. A `MemoryEngine` is one connection to them, as a node has it, and does
exactly what `cluster/engine.py` says. Nothing waits here: what would take time fails at once.
"""

from collections import deque

from beanstalk_server.cluster.engine import (
    CREATE,
    REMOVE,
    RENAME,
    RESIZE,
    WRITE,
    Answer,
    EngineError,
    EngineFullError,
    EngineRefusedError,
    File,
    Lease,
    Member,
)

UNKNOWN = "?"
"""The node of a lease that was lost, while its epoch is known from a later commit."""

FORGET = 60.0
"""Seconds after which a node that does not report is no longer a member."""


class Dataset:
    """What one server holds."""

    def __init__(self):
        self.lease = Lease()
        self.files = {}  # name -> [size, bytearray]
        self.nodes = {}  # node -> (address, time)

    def copy(self):
        twin = Dataset()
        twin.lease = self.lease
        twin.files = {name: [size, bytearray(data)] for name, (size, data) in self.files.items()}
        twin.nodes = dict(self.nodes)
        return twin

    def used(self):
        """Bytes of memory that the files take."""
        return sum(len(data) for _, data in self.files.values())

    def apply(self, effect):
        """Make one change, as the primary has decided it."""
        kind, value = effect
        if kind == "lease":
            self.lease = value
        elif kind == "node":
            node, address, now = value
            self.nodes = {each: seen for each, seen in self.nodes.items() if now - seen[1] <= FORGET}
            self.nodes[node] = address, now
        else:
            commit = value
            for operation in commit.operations:
                self._operate(*operation)
            self.lease = self.lease._replace(position=commit.position)

    def _operate(self, what, name, *more):
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
            data = files[name][1]
            if offset > len(data):
                data.extend(bytes(offset - len(data)))
            data[offset : offset + len(written)] = written
            files[name][0] = max(files[name][0], len(data))


class Replica:
    """A copy of the primary. What it has not applied yet is lost if it becomes the primary now."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.waiting = deque()  # effects that it has not applied
        self.lags = False
        """Whether it applies nothing, and so confirms nothing, until it is False again and `catch_up` is called."""

    def catch_up(self, count=None):
        """Apply what it has missed, or only the first so many effects of that."""
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
        self.is_reachable = True
        self.refuses = False
        self.lost_answers = 0
        """How many of the next calls happen, and fail nevertheless."""
        self.before_call = lambda method: None
        """Called with the name of the method, before anything has happened; may raise."""
        self.after_call = lambda method: None
        """The same when it has happened. What it raises is what the caller gets."""
        self.faults = []
        """What `check` finds."""
        self.calls = 0

    def connect(self, replicas=1):
        """A connection that waits for so many replicas."""
        return MemoryEngine(self, replicas)

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

    def wipe(self):
        """Lose everything, in all servers."""
        self.primary = Dataset()
        self.replicas = [Replica(Dataset()) for _ in self.replicas]

    def copy(self):
        """Servers that hold the same, and work without a fault."""
        twin = Servers(len(self.replicas), limit=self.limit, clock=self.clock)
        twin.primary = self.primary.copy()
        twin.replicas = [Replica(self.primary.copy()) for _ in self.replicas]
        return twin


class MemoryEngine:
    """One connection, as `cluster.engine.Engine` has it."""

    def __init__(self, servers, replicas):
        self.servers = servers
        self.replicas = replicas
        self.is_open = True

    def observe(self, node, address):
        servers = self._begin("observe")
        servers.change("node", (node, address, servers.clock()))
        return self._end("observe", servers.primary.lease)

    def look(self):
        return self._end("look", self._begin("look").primary.lease)

    def take(self, seen, lease):
        servers = self._begin("take")
        held = servers.primary.lease
        if held.epoch == seen.epoch or (held.epoch == lease.epoch and held.secret == lease.secret):
            servers.change("lease", lease._replace(position=held.position))
            self._wait()
        return self._end("take", servers.primary.lease)

    def renew(self, lease):
        servers = self._begin("renew")
        held = servers.primary.lease
        if held.epoch < lease.epoch or (held.epoch == lease.epoch and held.node == UNKNOWN):
            servers.change("lease", lease._replace(renewals=lease.renewals + 1, position=held.position))
            self._wait()
        elif held.epoch == lease.epoch and held.node == lease.node:
            servers.change("lease", held._replace(renewals=held.renewals + 1))
            self._wait()
        return self._end("renew", servers.primary.lease)

    def release(self, lease):
        servers = self._begin("release")
        held = servers.primary.lease
        if held.epoch == lease.epoch:
            servers.change("lease", held._replace(node=""))
        return self._end("release", servers.primary.lease)

    def append(self, commit, *, may_exceed):
        servers = self._begin("append")
        if not may_exceed and servers.limit is not None and servers.primary.used() > servers.limit:
            raise EngineFullError("the engine has reached its limit of memory")
        held = servers.primary.lease
        epoch = commit.position.epoch
        if held.epoch > epoch:
            return self._end("append", Answer(held.epoch, held.position, 0))
        if held.epoch < epoch:
            held = held._replace(epoch=epoch, renewals=0, node=UNKNOWN)
            servers.change("lease", held)
        if held.position == commit.before:
            servers.change("commit", commit)
        elif held.position == commit.position:
            servers.change("lease", held)
        else:
            return self._end("append", Answer(epoch, held.position, 0))
        return self._end("append", Answer(epoch, commit.position, servers.confirmed()))

    def files(self):
        servers = self._begin("files")
        files = {name: File(max(size, len(data)), len(data)) for name, (size, data) in servers.primary.files.items()}
        return self._end("files", files)

    def read(self, name, offset, size):
        servers = self._begin("read")
        _, data = servers.primary.files.get(name, (0, b""))
        return self._end("read", bytes(data[offset : offset + size]))

    def members(self):
        servers = self._begin("members")
        now = servers.clock()
        members = [
            Member(node, address, seen)
            for node, (address, seen) in servers.primary.nodes.items()
            if now - seen <= FORGET
        ]
        return self._end("members", members)

    def check(self):
        return self._end("check", list(self._begin("check").faults))

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
