"""Writes the jobs of a binlog into files that beanstalkd can start on: the way back.

What beanstalkd knows of a job is what it had when this server took it over, and so is what its stats-job says. The keys
are lost. Must never change the directory that the jobs come from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from beanstalk_server.queue.job import BURIED
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.storage.beanstalkd import format as beanstalkd7
from beanstalk_server.storage.binlog_reader import Damage, Progress
from beanstalk_server.storage.errors import DAMAGED, StorageError
from beanstalk_server.storage.inspection import Inspection


def export(
    inspection: Inspection, to: str | os.PathLike[str], on_progress: Progress | None = None
) -> beanstalkd7.Written:
    """Write all live jobs, and which ids are used up, into a directory, which is made if it is not there.

    Raises:
        StorageError: there is damage, or the jobs cannot be written there. Then nothing has been written.
    """

    def refuse(damage: Damage) -> NoReturn:
        raise StorageError(
            f"{inspection.directory.path}/{damage.segment}: {damage}; "
            "start beanstalk-server on it with --salvage, which goes on without what is lost",
            DAMAGED,
        )

    path = Path(to)
    jobs = inspection.live(refuse, on_progress)
    try:
        with _made(path):
            if path.samefile(inspection.directory.path) or any(
                name.startswith("segment.") for name in os.listdir(path)
            ):
                raise StorageError(f"{path}: a binlog of beanstalk-server is there; another directory is needed")
            return beanstalkd7.write(path, _as_before_a_start(jobs), next_id=inspection.next_id)
    except beanstalkd7.DirectoryInUseError as error:
        raise StorageError(str(error)) from None
    except ValueError as error:
        raise StorageError(f"{path}: {error}") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be written to: {error.strerror or error}") from error


def _as_before_a_start(jobs: Iterable[StoredJob]) -> Iterator[StoredJob]:
    """beanstalkd counts one more bury for each buried job when it starts: here is one less."""
    for job in jobs:
        if job.state == BURIED and job.buries:
            job.buries -= 1
        yield job


@contextmanager
def _made(path: Path) -> Iterator[None]:
    """Make a directory; it goes again when something fails."""
    is_new = not path.exists()
    if is_new:
        os.makedirs(path)
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                path.rmdir()
        raise
