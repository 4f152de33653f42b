"""Leases, and commits that each follow upon the one before, for tests of engines."""

from beanstalk_server.cluster.engine import START, Commit, Lease, Position

MINE = Lease(1, 0, "a", "here:1", "secret", ttl=4)
OTHER = Lease(2, 0, "b", "there:2", "another secret")


class Journal:
    """Makes commits, each upon the one before."""

    def __init__(self, engine, epoch=1):
        self.engine = engine
        self.epoch = epoch
        self.last = START
        self.number = 0

    def commit(self, *operations):
        self.number += 1
        commit = Commit(Position(self.epoch, self.number), self.last, list(operations), 0)
        self.last = commit.position
        return commit

    def append(self, *operations):
        commit = self.commit(*operations)
        answer = self.engine.append(commit, may_exceed=False)
        assert (answer.epoch, answer.position) == (self.epoch, commit.position)
        assert answer.replicas >= 1
        return commit
