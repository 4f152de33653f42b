"""What the cluster asks of the engine that keeps its journal: a lease, commits, and files to read.

The engine holds the files of one binlog, the position of the last commit to them, and the lease of the leader. All
that changes in it is decided there, at once, by a comparison of epochs and positions. So it does not matter how often
a call is made, or whether its answer was lost.

All methods block, and one object is used by one thread at a time. Must never know what is in a file, and never repeats
a call: `sender.py` and `lease.py` decide what follows from an answer.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol


class EngineError(Exception):
    """A call has failed: the engine cannot be reached, has not answered in time, or is not ready.

    What was asked for may have happened nevertheless. The message is one line for the operator.
    """


class EngineRefusedError(EngineError):
    """The engine does not know this user, or does not let it do this. Nothing has happened."""


class EngineFullError(EngineError):
    """The engine has reached its limit of memory. Nothing has happened."""


class Position(NamedTuple):
    """Names one commit: no other commit ever has the same position."""

    epoch: int
    """Of the leader that made it."""
    number: int
    """One more than that of the commit before."""


START: Final = Position(0, 0)
"""The position of an engine without a commit."""

UNKNOWN: Final = "?"
"""The node of a lease that the engine has lost, while it knows the epoch from a later commit."""


class Lease(NamedTuple):
    """Who leads, as the engine has it."""

    epoch: int = 0
    """Goes up with each leader; 0 if there has never been one."""
    renewals: int = 0
    """Goes up with each renewal."""
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


class Member(NamedTuple):
    """A node, as the engine knows it."""

    node: str
    address: str
    """HOST:PORT where it takes links."""
    seen: float
    """Seconds since it reported last, by the engine's clock."""


# Operations on files

WRITE: Final = "w"
"""name, offset, bytes: write there. What lies between the end of the file's bytes and the offset is zeros."""

CREATE: Final = "c"
"""name, size: a new file of so many zeros, which take no memory."""

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


class Answer(NamedTuple):
    """What the engine says to a commit."""

    epoch: int
    """The engine's. If it is greater than that of the commit, nothing has happened: there is another leader."""
    position: Position
    """Of the engine's last commit by now: that of the commit, if it has it. Any other: nothing has happened."""
    replicas: int
    """How many replicas have confirmed that they have the commit, if the engine has it."""


class File(NamedTuple):
    """A file in the engine."""

    size: int
    """Bytes, as a reader sees them."""
    length: int
    """Bytes that take memory: what follows them is zeros."""


class Engine(Protocol):
    """An engine that may be reached. All methods raise EngineError, and mean the same when they are called again."""

    def observe(self, node: str, address: str) -> Lease:
        """Report that a node is alive; return who leads."""

    def look(self) -> Lease:
        """Who leads, without a report that a node is alive."""

    def take(self, seen: Lease, lease: Lease) -> Lease:
        """Make this the lease, if the epoch in the engine is still that of `seen`; return the lease as it is then.

        It is not taken before enough replicas have it: until then, an EngineError is raised. Its position is ignored.
        """

    def renew(self, lease: Lease) -> Lease:
        """Count a renewal, and confirm it by the replicas; return the lease as it is then.

        An engine with a lower epoch has lost something: it gets this lease again. One with a higher epoch, or whose
        lease was given back, stays as it is.
        """

    def release(self, lease: Lease) -> Lease:
        """Give the lease back, if the epoch is still the same; return the lease as it is then."""

    def append(self, commit: Commit, *, may_exceed: bool) -> Answer:
        """Make a commit if the last position is its `before` and there is no higher epoch, and wait for the replicas.

        If its own position is the last one, it is written once more, so that waiting for the replicas means something.
        A lower epoch becomes that of the commit.

        Args:
            may_exceed: go beyond the limit of memory. If not, EngineFullError is raised there.
        """

    def files(self) -> dict[str, File]:
        """All files by name."""

    def read(self, name: str, offset: int, size: int) -> bytes:
        """The bytes of a file from the offset on: fewer than `size` where its length ends. No zeros are added."""

    def members(self) -> list[Member]:
        """The nodes that have reported within the last minute."""

    def check(self) -> list[str]:
        """What in the engine's settings would lose jobs: a sentence each, with the value and what would be right."""

    def close(self) -> None:
        """Close all connections. Calls in other threads end with an EngineError."""
