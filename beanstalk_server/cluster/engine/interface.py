"""Interface of the engine that stores the journals of a cluster: leases, commits and files.

The engine holds, for each shard, the files of one binlog, the position of the last commit to them, and the lease of the
leader. All that changes in it is decided there, at once, by a comparison of leases and positions. So it does not matter
how often a call is made, or whether its answer was lost. A lease is its epoch and its stamp: an engine that was wiped
gives the same epoch to another leader.

    perform       takes, renews and gives back the leases of any shards
    append        appends commits to the journals of any shards
    files, read   names the files of a shard, and reads them

What concerns many shards is one call with an answer for each, because sending costs more than what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from typing import Final, NamedTuple, Protocol, TypeVar
from zlib import crc32

from beanstalk_server.settings.engine_url import Host

T = TypeVar("T")


class EngineError(Exception):
    """A call has failed: the engine cannot be reached, has not answered in time, or is not ready.

    What was asked for may have happened nevertheless. The message is one line for the operator.
    """


class EngineRefusedError(EngineError):
    """The engine does not know this user, or does not let it do this. Nothing has happened."""


class EngineFullError(EngineError):
    """The engine has reached its limit of memory, or its disk is full. Nothing has happened."""


class Position(NamedTuple):
    """Names one commit: no other commit ever has the same position."""

    epoch: int
    """Of the leader that made it."""
    number: int
    """One more than that of the commit before."""


START: Final = Position(0, 0)
"""The position of an engine without a commit."""

LINEAGE: Final = 16
"""How many earlier leases a lease names: an engine that fails over loses the last of them at most."""


SEAL: Final = "-"
"""What is between the secret of a lease and its checksum."""


class Lease(NamedTuple):
    """Who leads, as the engine has it."""

    epoch: int = 0
    """Goes up with each leader; 0 if there has never been one."""
    renewals: int = 0
    """Goes up with each renewal. Before there is a leader, it is a number of `observe`."""
    node: str = ""
    """The id of the leader, or "" if it has given the lease back."""
    address: str = ""
    """HOST:PORT where the leader takes links."""
    secret: str = ""
    """What the nodes prove to know when they open a link."""
    position: Position = START
    """Of the last commit."""
    ttl: int = 0
    """Nanoseconds for which the leader may lead without a renewal; 0 if it has not said."""
    successor: str = ""
    """While it is held: the node that the leader is asked to hand over to, or "". When it has been given back: the node
    that takes it at once, while others leave it alone for a moment."""
    lineage: str = ""
    """The stamps of the leases before it, the latest first, with spaces between them."""

    @property
    def stamp(self) -> str:
        """What no other lease has, not even one of the same epoch: it may be shown, unlike the secret."""
        secret = self.secret.encode("utf-8", "surrogateescape")  # a bit of it may have flipped in the engine
        return sha1(secret).hexdigest()[:16]  # what an engine has stays valid only if this stays

    def next_lineage(self) -> str:
        """The lineage of a lease that is taken after this one."""
        return " ".join([self.stamp, *self.lineage.split()][:LINEAGE]) if self.secret else ""

    def sealed(self) -> Lease:
        """The same with a checksum at the end of its secret, of what stays while this lease lasts."""
        return self._replace(secret=f"{self.secret}{SEAL}{self._checksum(self.secret)}")

    def _checksum(self, secret: str) -> str:
        return f"{crc32(repr((self.epoch, self.address, secret, self.ttl, self.lineage)).encode()):08x}"

    def is_damaged(self) -> bool:
        """Whether a bit of a sealed lease has flipped in the engine. Earlier versions did not seal theirs."""
        secret, seal, checksum = self.secret.rpartition(SEAL)
        return bool(seal) and checksum != self._checksum(secret)

    def _written(self) -> Lease:
        """What is written when it is taken, and stays."""
        return self._replace(renewals=0, position=START, successor="")

    def is_same(self, other: Lease) -> bool:
        """Whether both are the lease of one leader, whenever it was renewed, and no bit of it has flipped."""
        return self._written() == other._written()

    def follows(self, other: Lease) -> bool:
        """Whether an engine with the other lease has lost this one, and the owner of the other one leads no more.

        It is not so if the other one was taken after the loss.
        """
        return other.epoch < self.epoch and (not other.secret or other.stamp in self.lineage)


class Load(NamedTuple):
    """How much a node has to do."""

    shards: int = 0
    """How many it leads."""
    jobs: int = 0
    """In those shards."""
    size: int = 0
    """Bytes that these jobs take."""


class Report(NamedTuple):
    """What a node says of itself, to show that it is alive."""

    node: str
    address: str
    """HOST:PORT where it takes links."""
    load: Load = Load()
    takes: bool = True
    """Whether it may be given shards; not if it has been told to lead no more."""


class Member(NamedTuple):
    """A node, as the engine knows it."""

    node: str
    address: str
    """HOST:PORT where it takes links."""
    seen: float
    """Seconds since it reported last, by the engine's clock."""
    load: Load = Load()
    """As it was then."""
    takes: bool = True
    """As its report says."""


# Calls about a lease

OBSERVE: Final = "observe"
TAKE: Final = "take"
RENEW: Final = "renew"
RELEASE: Final = "release"
MOVE: Final = "move"


class LeaseCall(NamedTuple):
    """A call about the lease of one shard. The functions below make them."""

    what: str
    """OBSERVE, TAKE, RENEW, RELEASE or MOVE."""
    shard: int
    lease: Lease = Lease()
    """The one to take, or that the node has; for a look, one with its number."""
    seen: Lease = Lease()
    """The one that the engine must still have, for a lease to be taken."""
    successor: str = ""
    """The node that takes a lease that is given back, or that the leader is to hand over to."""
    restores: bool = True
    """Whether a renewal gives the lease to an engine that has lost it."""


def observe(shard: int, number: int = 0) -> LeaseCall:
    """Look who leads. The position and the TTL of the answer may be those of an earlier look at the same leader.

    Args:
        number: what an engine gets for its count of renewals that has had no leader, unless it has one; 0 for nothing.
            An engine that is wiped has another one then. So a node finds out, although it was empty at both looks.
    """
    return LeaseCall(OBSERVE, shard, Lease(renewals=number))


def take(shard: int, seen: Lease, lease: Lease) -> LeaseCall:
    """Make this the lease, if the engine still has the one that was seen, not renewed since. Its position is ignored.

    It is not taken before enough replicas have it: until then, the answer is an EngineError.
    """
    return LeaseCall(TAKE, shard, lease, seen)


def renew(shard: int, lease: Lease, *, restores: bool = True) -> LeaseCall:
    """Count a renewal, and confirm it by the replicas; the answer names the successor of this leader, if there is one.

    An engine that has lost the lease stays as it is if another one was taken since, or if the lease was given back.

    Args:
        restores: give it this lease again otherwise.
    """
    return LeaseCall(RENEW, shard, lease, restores=restores)


def release(shard: int, lease: Lease, successor: str = "") -> LeaseCall:
    """Give the lease back, if the engine still has it, to this node or to any."""
    return LeaseCall(RELEASE, shard, lease, successor=successor)


def move(shard: int, node: str) -> LeaseCall:
    """Ask the leader of a shard, if there is one, to hand over to a node; "" takes that back.

    The request ends with the leader.
    """
    return LeaseCall(MOVE, shard, successor=node)


# Operations on files

WRITE: Final = "w"
"""name, offset, bytes: write there. What lies between the end of the file's bytes and the offset is zeros."""

CREATE: Final = "c"
"""name, size: a new file of this many zeros, which take no memory."""

RENAME: Final = "m"
"""old name, new name: a file that has the new name is gone."""

REMOVE: Final = "d"
"""name"""

RESIZE: Final = "t"
"""name, size: cut the file, or let zeros follow."""

Operation = tuple[str, str, int, bytes] | tuple[str, str, int] | tuple[str, str, str] | tuple[str, str]


class Commit(NamedTuple):
    """Operations on files, of which all happen in their order, or none."""

    position: Position
    before: Position
    """Of the commit that must be the last one in the engine."""
    operations: list[Operation]
    size: int
    """Bytes of the operations, roughly."""
    stamp: bytes
    """Of the leader's lease."""


class Answer(NamedTuple):
    """What the engine says to a commit."""

    epoch: int
    """The engine's."""
    position: Position | None
    """Of the engine's last commit by now: that of the commit, if it has it. Any other: nothing has happened. None: the
    engine has another lease than that of the commit, of another leader if its epoch is not lower."""
    replicas: int
    """How many replicas have confirmed that they have the commit, if the engine has it."""


def made(result: T | EngineError) -> T:
    """The result of a call that must succeed.

    Raises:
        EngineError: it has failed.
    """
    try:
        if isinstance(result, EngineError):
            raise result
        return result
    finally:
        del result  # or this frame would have the error that has this frame


class CommitCall(NamedTuple):
    """A commit on its way to the engine."""

    shard: int
    commit: Commit
    may_exceed: bool
    """Go beyond the engine's limit of memory. If not, the answer there is an EngineFullError."""


LARGEST: Final = 1 << 29
"""Bytes of a file at most, in every engine: a string of Redis has no more."""


class File(NamedTuple):
    """A file in the engine."""

    size: int
    """Bytes, as a reader sees them."""
    length: int
    """Bytes that take memory: what follows them is zeros."""


def lacks(wanted: int, found: int) -> str:
    """What is wrong if this many files should be there, and this many are."""
    return "" if wanted == found else f"expected {wanted} files, found {found}"


def lacks_end(name: str, wanted: int, found: int) -> str:
    """What is wrong if this many bytes were written to a file, and it has this many."""
    return "" if found >= wanted else f"{name}: expected {wanted} bytes, found {found}"


class Replica(NamedTuple):
    """A replica, as its primary sees it."""

    host: Host
    is_online: bool
    """Whether it has a copy, and follows."""
    lag: int
    """Bytes of changes that it has not confirmed yet."""


class Condition(NamedTuple):
    """How a server is."""

    name: str
    """The program, with its version."""
    host: Host
    memory: int
    """Bytes in use."""
    limit: int
    """Bytes that it may use; 0 for any number."""
    replicas: tuple[Replica, ...]


class Engine(Protocol):
    """A connection to an engine, made with the first call. All methods block; one thread at a time makes calls.

    A method that does not return its errors raises EngineError, and means the same when it is called again.
    """

    def shards(self, wanted: int) -> int:
        """How many shards there are. If that has never been fixed, it is fixed by this call.

        Args:
            wanted: how many there are to be; 0 to fix nothing.

        Returns:
            How many there are, perhaps not as many as wanted; 0 if nothing is fixed yet, and nothing was wanted.

        Raises:
            EngineError: it is not known, or too few replicas know it.
        """

    def perform(self, calls: Sequence[LeaseCall], report: Report | None = None) -> list[Lease | EngineError]:
        """Make these calls, in one write for each primary; return the lease after each of them, or why it has failed.

        Args:
            report: shows that a node is alive. One that does not arrive is not told of: the next one comes soon.
        """

    def append(self, calls: Sequence[CommitCall]) -> list[Answer | EngineError]:
        """Make commits, in one write for each primary; return the answer to each, or why it has failed.

        A commit is made if its leader has the lease and the last position is its `before`. If its own position is the
        last one, it is written once more, so that waiting for the replicas means something. All commits wait for the
        replicas together. No two are of the same shard.
        """

    def files(self, shard: int) -> dict[str, File]:
        """All files of a shard by name."""

    def damage(self, shard: int) -> str:
        """What is missing of that which the last commit has left; "" if nothing is, as far as it was written down."""

    def read(self, shard: int, name: str, offset: int, size: int) -> bytes:
        """The bytes of a file from the offset on: fewer than `size` where its length ends. No zeros are added."""

    def members(self) -> list[Member]:
        """The nodes that have reported within the last minute."""

    def check(self) -> list[str]:
        """What in the engine's settings would lose jobs: a sentence each, with the value and what would be right."""

    def inspect(self) -> list[Condition]:
        """How the servers are that have any shard, and their replicas; none of an engine that does not say."""

    def close(self) -> None:
        """Close all connections. Calls in other threads end with an EngineError."""


Connect = Callable[[], Engine]
"""Makes a connection to one engine."""
