"""Names the keys of a shard in Redis, and turns a commit of its journal into commands of Redis.

Nearly all commits just write to one file, so that has a way of its own: what is the same each time is packed once. Must
never know where the keys are, or what is answered.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.cluster.engine.interface import Commit
from beanstalk_server.cluster.engine.redis.resp import bulk, pack
from beanstalk_server.cluster.engine.redis.scripts import COMMIT, COMMIT_BEYOND

KEYS_KEPT: Final = 100
"""How many keys of files are kept as they are sent."""

WRITE_THIRD: Final = b"$1\r\nw\r\n$1\r\n3\r\n"
"""The operation that writes to the file of the third key, as arguments of a request."""


class ShardKeys:
    """The keys of one shard.

    Args:
        name: of the cluster.
        shard: its number.
    """

    def __init__(self, name: str, shard: int) -> None:
        self.tag = f"{name}:{shard}".encode()
        """What Redis Cluster finds the slot by."""
        self.prefix = b"{%b}:" % self.tag
        self.state = self.prefix + b"state"
        self.files = self.prefix + b"files"
        self.file = self.prefix + b"file:"
        common = b"$1\r\n3\r\n" + bulk(self.state) + bulk(self.files)
        self._within = b"*14\r\n" + COMMIT.call + common  # how a commit begins that writes to one file
        self._beyond = b"*14\r\n" + COMMIT_BEYOND.call + common
        self._packed: dict[str, bytes] = {}

    def commit(self, commit: Commit, may_exceed: bool) -> bytes:
        """The command that makes a commit.

        Args:
            may_exceed: go beyond the limit of memory.
        """
        position, before, operations, _, stamp = commit
        if len(operations) == 1:
            only = operations[0]
            if len(only) == 4:
                _, name, offset, data = only
                key = self._packed.get(name)
                if key is None:
                    key = self._pack(name)
                epoch, old, new, start = b"%d" % position.epoch, b"%d.%d" % before, b"%d.%d" % position, b"%d" % offset
                return b"%b%b$16\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
                    self._beyond if may_exceed else self._within,
                    key,
                    stamp,
                    len(epoch),
                    epoch,
                    len(old),
                    old,
                    len(new),
                    new,
                    WRITE_THIRD,
                    len(start),
                    start,
                    len(data),
                    data,
                )
        return self._any(commit, may_exceed)

    def _pack(self, name: str) -> bytes:
        """The key of a file, as an argument of a request."""
        if len(self._packed) >= KEYS_KEPT:
            self._packed.clear()
        key = self._packed[name] = bulk(self.file + name.encode())
        return key

    def _any(self, commit: Commit, may_exceed: bool) -> bytes:
        """The command of a commit with any operations."""
        keys = [self.state, self.files]
        arguments = [commit.stamp, b"%d" % commit.position.epoch]
        arguments += [b"%d.%d" % commit.before, b"%d.%d" % commit.position]
        numbers: dict[str, bytes] = {}  # of the key of each file among the keys
        for operation in commit.operations:
            arguments.append(operation[0].encode())
            arguments.append(self._number(operation[1], keys, numbers))
            for each in operation[2:]:
                if isinstance(each, bytes):
                    arguments.append(each)
                elif isinstance(each, str):
                    arguments.append(self._number(each, keys, numbers))
                else:
                    arguments.append(b"%d" % each)
        script = COMMIT_BEYOND if may_exceed else COMMIT
        return pack(b"EVALSHA", script.sha, b"%d" % len(keys), *keys, *arguments)

    def _number(self, name: str, keys: list[bytes], numbers: dict[str, bytes]) -> bytes:
        number = numbers.get(name)
        if number is None:
            keys.append(self.file + name.encode())
            number = numbers[name] = b"%d" % len(keys)
        return number
