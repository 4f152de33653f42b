"""Leases, and commits that each follow upon the one before, for tests of engines."""

from beanstalk_server.cluster.engine.interface import START, Commit, Lease, Position

MINE = Lease(1, 0, "a", "here:1", "secret", ttl=4)
OTHER = Lease(2, 0, "b", "there:2", "another secret")


class Journal:
    """Makes commits, each upon the one before.

    Args:
        lease: that the engine has; if it is not given, MINE is taken before the first append.
    """

    def __init__(self, engine, lease=None):
        self.engine = engine
        self.lease = lease or MINE
        self.leads = lease is not None
        self.epoch = self.lease.epoch
        self.last = START
        self.number = 0

    def commit(self, *operations):
        self.number += 1
        commit = Commit(Position(self.epoch, self.number), self.last, list(operations), 0, self.lease.stamp.encode())
        self.last = commit.position
        return commit

    def append(self, *operations):
        if not self.leads:
            self.engine.take(Lease(), self.lease)
            self.leads = True
        commit = self.commit(*operations)
        answer = self.engine.append(commit, may_exceed=False)
        assert (answer.epoch, answer.position) == (self.epoch, commit.position)
        assert answer.replicas >= 1
        return commit
