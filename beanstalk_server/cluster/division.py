"""Divides the jobs of a binlog among shards, each into a directory of its own, and joins those of shards.

A shard has its own ids, so a job gets another one: n becomes n · S + s, in shard s of S. So jobs keep their order, and
no two have the same id. A job whose origin lies in another shard than its tube forgets it, because nothing goes from
one shard to another. A group whose jobs would be in other shards than the group itself cannot be divided: its jobs, or
what comes after them, would not find it. Joined jobs keep their ids, because those of different shards differ. All jobs
are in memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from secrets import randbits
from typing import Final

from beanstalk_server.queue.job import DELAYED, GROUP, Job
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import LAST_MOMENT, StoredJob, stored_job
from beanstalk_server.queue.table import IdTable
from beanstalk_server.settings.options import Config
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.beanstalkd.reader import take_over
from beanstalk_server.storage.binlog_reader import Damage
from beanstalk_server.storage.bodies import ALL_IN_MEMORY
from beanstalk_server.storage.disk import Directory
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.inspection import inspect
from beanstalk_server.storage.rewriting import REWRITING, Rewriting
from beanstalk_server.tube_names import home_of
from beanstalk_server.wire.places import Places

NO_BOOT: Final = bytes(16)
"""The boot of no machine: no clock is compared with that of these jobs."""


def divide(source: Directory, directories: Sequence[Directory]) -> None:
    """Write the jobs of a binlog, of this server or of beanstalkd, into the directories of shards, which are made.

    Args:
        source: one that no server uses, and that is not damaged.
        directories: one for each shard.

    Raises:
        StorageError: the source is damaged, or cannot be read; or a group would be in several shards.
        OSError: the others cannot be written.
    """
    shards = len(directories)
    places = Places(shards)
    replays = [_replay(IdTable(shards, shard)) for shard in range(shards)]
    with _jobs_of(source) as (jobs, next_id):
        for job in jobs:
            shard = places.of_tube((home_of(job.key) if job.state == GROUP else job.tube).encode())
            _refuse_other_shards(job, shard, places, source)
            job.id = job.id * shards + shard
            if job.is_token():
                job.set_token_job(job.token_job() * shards + shard)  # wrong if it has moved to another shard's tube
            if job.origin and places.of_tube(job.origin.encode()) != shard:
                job.origin = job.group = ""  # a dead letter is in no group, and stays in none
            replays[shard].put(job)
        last = next_id()
    for shard, (to, replay) in enumerate(zip(directories, replays, strict=True)):
        to.make()
        _write(to, replay, last * shards + shard)


def join(sources: Iterable[Directory], to: Directory) -> None:
    """Write the jobs of shards into one directory, which is empty: all of them, or none.

    Raises:
        StorageError: a source is damaged, or cannot be read.
        OSError: the directory cannot be written.
    """
    replay = _replay(IdTable())
    last = 1
    for source in sources:
        with _jobs_of(source) as (jobs, next_id):
            for job in jobs:
                replay.put(job)
            last = max(last, next_id())
    _write(to, replay, last)


def _refuse_other_shards(job: StoredJob, shard: int, places: Places, source: Directory) -> None:
    """Refuse a job of this shard that has to do with a group of another one."""
    is_waiting = job.state == DELAYED and job.deadline == LAST_MOMENT
    for group in ("" if job.origin else job.group, job.after if is_waiting else ""):
        if group and places.of_tube(home_of(group).encode()) != shard:
            raise StorageError(
                f"{source.path}: job {job.id} of tube {job.tube} would be in a different shard from its group {group}: "
                "import after the group has ended, or into one shard"
            )


@contextmanager
def _jobs_of(source: Directory) -> Iterator[tuple[Iterable[StoredJob], partial[int]]]:
    """The jobs in a directory, and what tells the next id when they have been read."""
    if file_names(source.names()):
        replay = Replay(IdTable())
        last = take_over(source, replay, salvage=False)
        replay.finish(NO_BOOT)
        yield (stored_job(job, 0) for job in replay.jobs.values()), partial(int, last + 1)
    else:
        with inspect(source) as binlog:

            def refuse(damage: Damage) -> None:
                raise StorageError(f"{source.path}/{damage.segment}: {damage}", DAMAGED)

            yield binlog.live(refuse), partial(getattr, binlog, "next_id")


def _replay(jobs: IdTable[Job]) -> Replay:
    replay = Replay(jobs)
    replay.boot = NO_BOOT
    return replay


def _write(to: Directory, replay: Replay, next_id: int) -> None:
    rewriting = Rewriting(
        to, replay, [], Config.segment_size, partial(randbits, 32), ALL_IN_MEMORY, next_id, sequence=0, commit_number=0
    )
    rewriting.replace(REWRITING, [], [])
