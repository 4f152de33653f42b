"""Decides which commit the engine gets next: the next one, the same again, or earlier ones that the engine has lost.

An engine may fail over to a replica that has not got everything. So the last commits are kept, and are sent again, from
the one behind the position that the engine has. If that position is not among them, the engine has *diverged*: it has
lost more than is kept here, or everything. If it has the lease of another node, this one is *fenced*.

A position counts as durable when enough replicas have confirmed it, and never before. What has been acknowledged on the
strength of that may nevertheless be lost by the engine; then it is sent again as long as this node lives.

Without I/O and clock: moments are arguments, in seconds.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from beanstalk_server.cluster.engine import interface

KEPT: Final = 64 << 20
"""Bytes of the last commits that a node keeps to send them again, of all its shards."""

KEPT_SHARE: Final = 8
"""What may be kept is the node's memory divided by this, if that is less."""

COMMIT_COST: Final = 512
"""Bytes that a commit is counted for, besides those of its operations."""

FULL_INTERVAL: Final = 1.0
"""Seconds after which an engine that was full is asked again whether it has room."""


def kept_within(max_memory: int) -> int:
    """Bytes of commits that a node keeps whose memory is limited; 0: it is not."""
    return min(KEPT, max_memory // KEPT_SHARE) if max_memory else KEPT


class FencedError(Exception):
    """Another node leads: nothing more may be acknowledged here."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"another node leads in epoch {epoch}")
        self.epoch = epoch


class DivergedError(Exception):
    """The engine does not have what this node has written, and cannot be given what is missing.

    `position` is that of the engine's last commit.
    """

    def __init__(self, position: interface.Position) -> None:
        super().__init__(f"the engine has lost commits: its last commit is {position.epoch}.{position.number}")
        self.position = position


class CommitSender:
    """The commits of one leader.

    Args:
        lease: of the leader, with the position of the engine's last commit.
        replicas: how many must have a commit before it counts as durable.
        kept: bytes of commits that are kept.
    """

    def __init__(self, lease: interface.Lease, replicas: int, kept: int = KEPT) -> None:
        self.epoch = lease.epoch
        self.last = position = lease.position
        """The position of the newest commit that has been added."""
        self.durable = position
        """The position of the newest commit that enough replicas have."""
        self.is_full = False
        """Whether the engine has refused to grow, and has not grown since."""
        self.replicas = replicas
        self._stamp = lease.stamp.encode()
        self._kept = kept
        self._number = position.number  # no commit of this epoch has a higher one
        self._commits: deque[interface.Commit] = deque()  # oldest first; each follows the one before
        self._next = 0  # the index of the one that is sent next; those before it are in the engine
        self._size = 0  # bytes of all of them
        self._tried = 0.0  # when a full engine was asked last whether it has room

    def add(self, operations: list[interface.Operation], size: int) -> interface.Position:
        """Make a commit of these operations, of this many bytes; return its position."""
        self._number += 1
        commit = interface.Commit(
            interface.Position(self.epoch, self._number), self.last, operations, size, self._stamp
        )
        self._commits.append(commit)
        self._size += size + COMMIT_COST
        self.last = commit.position
        return commit.position

    def next(self) -> interface.Commit | None:
        """The commit to send now, or None if the engine has all of them."""
        return self._commits[self._next] if self._next < len(self._commits) else None

    def may_exceed(self, now: float) -> bool:
        """Whether the next commit may go beyond the engine's limit of memory: while it is known to be full.

        Once a second it is tried without.
        """
        return self.is_full and now - self._tried < FULL_INTERVAL

    def on_reply(self, reply: interface.Answer | interface.EngineError, exceeded: bool, now: float) -> str:
        """Take the engine's reply to the commit that `next` has returned.

        Args:
            exceeded: whether the commit was allowed to go beyond the limit of memory.

        Returns:
            "" to send what `next` returns now at once; or why to send it after a pause.

        Raises:
            FencedError: another node leads.
            DivergedError: everything has to be written anew; `restart` comes before the next commit.
        """
        if isinstance(reply, interface.EngineError):
            if not isinstance(reply, interface.EngineFullError):
                return str(reply)
            self.is_full = True
            self._tried = now
            return str(reply) if exceeded else ""
        commit = self._commits[self._next]
        if reply.position is None:
            if reply.epoch >= self.epoch:
                raise FencedError(reply.epoch)
            return "the engine has lost the lease"
        if reply.position != commit.position:
            self._next = self._index_behind(reply.position)
            return ""
        if not exceeded:
            self.is_full = False
        if reply.replicas < self.replicas:
            return f"fewer than {self.replicas} replicas have the last commit"
        self._next += 1
        if commit.position > self.durable:
            self.durable = commit.position
        self.keep(self._kept)
        return ""

    def keep(self, kept: int) -> None:
        """Keep this many bytes of commits from now on, and what the engine does not have yet."""
        self._kept = kept
        while self._size > kept and self._next > 1:
            self._size -= self._commits.popleft().size + COMMIT_COST
            self._next -= 1

    def verify(self) -> None:
        """Send the newest commit once more, or an empty one if there is none: the answer tells what the engine has."""
        if self._next < len(self._commits):
            return
        if self._commits:
            self._next -= 1
        else:
            self.add([], 0)

    def restart(self, position: interface.Position) -> None:
        """Forget all commits: the next one follows this position of the engine. No position is used twice."""
        self._commits.clear()
        self._next = 0
        self._size = 0
        self._number = max(self._number, position.number)
        self.last = self.durable = position

    def _index_behind(self, position: interface.Position) -> int:
        """The index of the commit that follows this position; of the newest, if the engine has even that one."""
        commits = self._commits
        if position == commits[0].before:
            return 0
        index = position.number - commits[0].position.number
        if not 0 <= index < len(commits) or commits[index].position != position:
            raise DivergedError(position)
        return min(index + 1, len(commits) - 1)
