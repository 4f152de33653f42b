"""Places: which shard of a cluster has a tube or a job.

Every node must find the same place for the same tube or id, in every version.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.tube_names import home_of, shard_of

# What a command concerns, and so where it must be done. A command has one of these.

USED: Final = 0
"""The tube that the client uses, and jobs in it."""

NAMED: Final = 1
"""The tube that the command names."""

JOB: Final = 2
"""The job whose id the command gives."""

WATCHED: Final = 3
"""The tubes that the client watches, and the jobs that it has reserved."""

EVERYTHING: Final = 4
"""All tubes and jobs."""

ITSELF: Final = 5
"""Nothing but the client itself."""

GROUP: Final = 6
"""The tube that the group belongs to which the command names."""

JOBS: Final = 7
"""The jobs whose ids the command gives, which may be of several shards."""

# How a command is done if what it concerns is in several shards, or depends on what the client has at each.

IN_ONE: Final = 0
"""It never is: the command goes to one shard, or is answered where the client is."""

USE_TUBE: Final = 1
"""The shard of the tube is told, and the one before it."""

WATCH_TUBE: Final = 2
IGNORE_TUBE: Final = 3
"""The shard of the tube is told; the reply counts the tubes of all shards."""

TELL_ALL: Final = 4
"""It is done in each shard that serves the client, and in others when they begin to."""

RESERVE_OF_BEST: Final = 5
"""Each shard says which job it would give, and the best one is reserved."""

SAME_OF_ALL: Final = 6
"""Each shard does it, and all reply alike."""

SUM: Final = 7
"""The statistics of all shards are added up."""

LIST_OF_TUBES: Final = 8
LIST_OF_CLIENTS: Final = 9
"""The lists of all shards follow one another."""

PAGE_OF_TUBES: Final = 10
"""The first tubes of all shards, by name."""

DIVISION: Final = 11
"""Each shard does its part of the jobs, and the counts are added up."""

COUNT: Final = 12
"""Each shard where the client holds jobs does it, and the counts are added up."""


class Places:
    """The places of tubes and jobs among this many shards.

    Args:
        shards: how many there are, at least 1. They are numbered from 0.
    """

    def __init__(self, shards: int) -> None:
        if shards < 1:
            raise ValueError(f"{shards} shards: must be 1 or more")
        self.shards = shards

    def of_tube(self, name: bytes) -> int:
        """The shard of the tube with this name."""
        return shard_of(name, self.shards)

    def of_group(self, name: bytes) -> int:
        """The shard of the group with this name: that of its tube."""
        return shard_of(home_of(name.decode("latin-1")).encode("latin-1"), self.shards)

    def of_job(self, job_id: int) -> int:
        """The shard of the job with this id, if there is one."""
        return job_id % self.shards
