"""Exports the jobs of a binlog to files that beanstalkd can start from.

Each job keeps everything that beanstalkd knows of a job, so its stats-job reports the same as this server's. Keys,
held ones too, and terms are lost. Must never change the directory that the jobs come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from beanstalk_server.queue.job import BURIED
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.storage.beanstalkd.writer import DirectoryInUseError, Written, write
from beanstalk_server.storage.binlog_reader import Damage, Progress
from beanstalk_server.storage.disk import Directory
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.inspection import Inspection


def export(inspection: Inspection, to: Directory, on_progress: Progress | None = None) -> Written:
    """Write all live jobs, and the highest id in use, to a directory, which is created if it is missing.

    Raises:
        StorageError: the binlog is damaged, or the jobs cannot be written. Then nothing has been written.
    """

    def refuse(damage: Damage) -> NoReturn:
        raise StorageError(
            f"{inspection.directory.path}/{damage.segment}: {damage}; "
            "to export without what is lost, first start beanstalk-server on it with --salvage",
            DAMAGED,
        )

    jobs = inspection.live(refuse, on_progress)
    try:
        with _made(to):
            if to.is_same(inspection.directory) or any(name.startswith("segment.") for name in to.names()):
                raise StorageError(f"{to.path}: holds a binlog of beanstalk-server: name another directory")
            return write(to, _as_before_a_start(jobs), next_id=inspection.next_id)
    except DirectoryInUseError as error:
        raise StorageError(str(error)) from None
    except ValueError as error:
        raise StorageError(f"{to.path}: {error}") from None
    except OSError as error:
        raise StorageError(f"{to.path}: cannot be written to: {error.strerror or error}") from error


def _as_before_a_start(jobs: Iterable[StoredJob]) -> Iterator[StoredJob]:
    """Subtract one bury from each buried job: beanstalkd adds one when it starts."""
    for job in jobs:
        if job.state == BURIED and job.buries:
            job.buries -= 1
        yield job


@contextmanager
def _made(directory: Directory) -> Iterator[None]:
    """Make a directory, and remove it again if something fails."""
    is_new = directory.make()
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                directory.discard()
        raise
