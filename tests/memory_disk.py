"""A directory in memory that forgets what was not synced, tears writes, runs out of space and fails on demand.

What is on the "disk" after a crash: everything that was synced; of the writes to a file since its last sync, either the
first few, the last of them torn at any byte, or any sectors of any of them; of the changes to directories that were
not synced since, the first few. A process that is killed loses nothing of that.
"""

import errno
from pathlib import Path

from beanstalk_server.storage.disk import fill_with_zeros

SECTOR = 512


async def at_once(work):
    """Do what is done in a thread for a real disk."""
    return work()


class Crash(BaseException):
    """The machine stopped here. Not an Exception: nothing may catch it and go on."""


class Node:
    """The content of a file, which does not know its name."""

    def __init__(self, data=b""):
        self.data = bytearray(data)
        self.durable = bytes(data)
        self.pending = []  # (offset, data) of each write since the last sync, or (size, None) for truncate

    def after_a_crash(self, rng):
        data = bytearray(self.durable)
        if rng is None:
            return Node(data)
        if rng.random() < 0.5:
            writes = self.pending[: rng.randint(0, len(self.pending))]
            torn = len(writes) - 1
            for number, (offset, written) in enumerate(writes):
                if written is not None and number == torn:
                    written = written[: rng.randint(0, len(written))]
                apply(data, offset, written)
        else:
            for offset, written in self.pending:
                if written is None:
                    apply(data, offset, written)
                    continue
                for start in range(0, len(written), SECTOR):
                    if rng.random() < 0.5:
                        apply(data, offset + start, written[start : start + SECTOR])
        return Node(data)


def apply(data, offset, written):
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    if written is None:
        del data[offset:]
        return
    data[offset : offset + len(written)] = written


class MemoryFile:
    def __init__(self, directory, node):
        if directory.opened == directory.descriptors:
            raise OSError(errno.EMFILE, "Too many open files")
        directory.opened += 1
        self.directory = directory
        self.node = node
        self.is_open = True

    def read(self, offset, size):
        self.directory.touch("read")
        return bytes(self.node.data[offset : offset + size])

    def read_cached(self, offset, size):
        is_there = self.directory.has_cached() and offset + size <= len(self.node.data)
        return bytes(self.node.data[offset : offset + size]) if is_there else None

    def write(self, offset, data):
        if self.directory.crashed:  # a machine that has stopped writes nothing more
            raise Crash
        self.node.pending.append((offset, bytes(data)))  # so that a crash within it may leave some of it
        self.directory.touch("write")
        grown = max(offset + len(data) - len(self.node.data), 0)
        if grown and grown > self.directory.free():
            raise OSError(errno.ENOSPC, "No space left on device")
        apply(self.node.data, offset, data)

    def erase(self, offset, size):
        fill_with_zeros(self, size, offset)

    def truncate(self, size):
        self.directory.touch("truncate")
        self.node.pending.append((size, None))
        apply(self.node.data, size, None)

    def size(self):
        return len(self.node.data)

    def sync(self):
        self.directory.touch("sync")
        self.node.durable = bytes(self.node.data)
        self.node.pending.clear()

    def close(self):
        assert self.is_open, "a file is closed once"
        self.is_open = False
        self.directory.opened -= 1


class MemoryDirectory:
    """As storage.disk.Directory has it.

    Args:
        nodes: the files by name.
        capacity: bytes of all files together.
    """

    def __init__(self, nodes=None, capacity=1 << 40):
        self.tears_writes = True
        self.path = Path("memory")
        self.nodes = dict(nodes or {})
        self.durable = dict(self.nodes)
        self.pending = []  # changes to the directory since it was synced: each some (name, node or None)
        self.capacity = capacity
        self.opened = 0  # files that are open
        self.has_cached = lambda: False  # whether what is read is in memory
        self.descriptors = 16  # how many may be at a time: what is kept back for a journal is more
        self.ballast = 0  # bytes of other people's files on the same disk
        self.operations = 0
        self.crash_at = None  # the number of the operation at which the machine stops
        self.fail = {}  # what raises from now on: operation -> errno
        self.crashed = False
        self.locked = False

    def touch(self, operation):
        """Count an operation that is about to happen."""
        if self.crashed:
            raise Crash
        self.operations += 1
        if self.operations == self.crash_at:
            self.crashed = True
            raise Crash
        if operation in self.fail:
            raise OSError(self.fail[operation], "failed on demand")

    def after_a_crash(self, rng=None):
        """The directory as the next process finds it. Without a random generator, only what was synced is there."""
        nodes = dict(self.durable)
        kept = rng.randint(0, len(self.pending)) if rng else 0
        for name, node in [change for changes in self.pending[:kept] for change in changes]:
            if node is None:
                nodes.pop(name, None)
            else:
                nodes[name] = node
        fresh = {}  # a file with two names stays one
        return MemoryDirectory(
            {name: fresh.setdefault(id(node), node.after_a_crash(rng)) for name, node in nodes.items()},
            self.capacity,
        )

    def after_a_kill(self):
        """The directory as the next process finds it when only this process has ended: nothing is lost yet."""
        after = MemoryDirectory(capacity=self.capacity)
        copies = {}  # a file with two names stays one

        def copy(node):
            if node is not None and id(node) not in copies:
                copies[id(node)] = twin = Node(node.data)
                twin.durable, twin.pending = node.durable, list(node.pending)
            return None if node is None else copies[id(node)]

        after.nodes = {name: copy(node) for name, node in self.nodes.items()}
        after.durable = {name: copy(node) for name, node in self.durable.items()}
        after.pending = [[(name, copy(node)) for name, node in changes] for changes in self.pending]
        after.ballast = self.ballast
        return after

    def used(self):
        """Bytes that the files here take."""
        return sum(len(node.data) for node in self.nodes.values())

    def free(self):
        """Bytes that the disk has left."""
        return self.capacity - self.ballast - self.used()

    def make(self):
        self.touch("make")
        return False

    def discard(self):
        raise AssertionError("it was there before")

    def is_same(self, other):
        return self is other

    def lock(self):
        self.touch("lock")
        if self.locked:
            return False
        self.locked = True
        return True

    def keeps_lock(self):
        return self.locked

    def unlock(self):
        self.locked = False

    def names(self, inside=""):
        self.touch("names")
        prefix = inside + "/" if inside else ""
        return list({name[len(prefix) :].split("/")[0] for name in self.nodes if name.startswith(prefix)})

    def open(self, name, *, write=False):
        self.touch("open")
        if name not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        return MemoryFile(self, self.nodes[name])

    def create(self, name, size=0, *, fill=True):
        self.touch("create")
        assert name not in self.nodes
        if size > self.free():
            raise OSError(errno.ENOSPC, "No space left on device")
        node = Node()
        if size:
            node.pending.append((0, bytes(size)))
            node.data.extend(bytes(size))
        self._put(name, node)
        return MemoryFile(self, node)

    def make_directory(self, name):
        self.touch("make_directory")

    def rename(self, old, new):
        self.touch("rename")
        node = self.nodes[new] = self.nodes.pop(old)
        self.pending.append([(old, None), (new, node)])

    def remove(self, name):
        self.touch("remove")
        if name not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", name)
        self._put(name, None)

    def sync(self, inside=""):
        self.touch("sync_directory")
        left = []
        for changes in self.pending:
            for name, node in changes:
                if name.rpartition("/")[0] != inside:
                    left.append([(name, node)])  # a rename from one directory to another is two changes to the disk
                elif node is None:
                    self.durable.pop(name, None)
                else:
                    self.durable[name] = node
        self.pending = left

    def _put(self, name, node):
        if node is None:
            del self.nodes[name]
        else:
            self.nodes[name] = node
        self.pending.append([(name, node)])
