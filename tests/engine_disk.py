"""A directory whose files are in an engine in memory, in the place of `memory_disk.MemoryDirectory`.

The machine can stop before each call to the engine, and after each. What the engine has then is what the next process
finds: commits as a whole, in their order.
"""

from collections.abc import MutableMapping

from cluster.memory_engine import Servers
from memory_disk import Crash

from beanstalk_server.cluster.commit_sender import CommitSender
from beanstalk_server.cluster.directory import EngineDirectory
from beanstalk_server.cluster.engine.interface import EngineRefusedError


class Content:
    """The content of a file, with the zeros that the engine does not keep."""

    def __init__(self, file):
        size, self.data = file
        self.data.extend(bytes(size - len(self.data)))


class Contents(MutableMapping):
    """What the engine has, by the names of the files."""

    def __init__(self, files):
        self.files = files

    def __getitem__(self, name):
        return Content(self.files[name])

    def __setitem__(self, name, node):
        self.files[name] = [len(node.data), bytearray(node.data)]

    def __delitem__(self, name):
        del self.files[name]

    def __iter__(self):
        return iter(self.files)

    def __len__(self):
        return len(self.files)


class EngineDisk:
    """As storage.disk.Directory has it, in the direct way: an EngineDirectory with an engine of its own.

    Args:
        nodes: the files by name, each with its `data`.
        capacity: bytes of all files together.
    """

    def __init__(self, nodes=None, capacity=None, *, servers=None):
        self.servers = servers or Servers(0, limit=capacity)
        self.servers.misses_files = False
        self.nodes.update(nodes or {})
        sender = CommitSender(self.servers.lead(), 0)
        self._directory = EngineDirectory(self.servers.engine(0), sender, "memory", timeout=0.0)
        self.lock()  # files are looked at before a binlog begins
        self.servers.before_call = self.servers.after_call = self._touch
        self.operations = 0
        self.crash_at = None  # the number of the operation at which the machine stops
        self.fail = {}  # if it has anything, no commit is taken
        self.crashed = False

    def __getattr__(self, name):
        return getattr(self._directory, name)

    @property
    def nodes(self):
        return Contents(self.servers.primary.files)

    @property
    def capacity(self):
        return self.servers.limit

    @capacity.setter
    def capacity(self, capacity):
        self.servers.limit = capacity

    def remove(self, name):
        self._directory.remove(name)
        self.sync()  # a spare is removed without a sync that follows; the tests look at once

    def _touch(self, method):
        """Count an operation that is about to happen, or has happened."""
        if self.crashed:
            raise Crash
        self.operations += 1
        if self.operations == self.crash_at:
            self.crashed = True
            raise Crash
        if method == "append" and self.fail:
            raise EngineRefusedError("failed on demand")

    def after_a_crash(self, rng=None):
        """The directory as the next process finds it."""
        return EngineDisk(servers=self.servers.copy())

    def after_a_kill(self):
        """The same: the engine does not know what has happened to whom it serves."""
        return self.after_a_crash()
