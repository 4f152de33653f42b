"""Takes over the jobs of a directory of beanstalkd: tells a replay what its files say.

The files stay as they are; to write the jobs anew and to set the files aside is left to the caller. Must never know
how this server keeps jobs.
"""

from __future__ import annotations

import logging

from beanstalk_server.queue.job import BURIED
from beanstalk_server.queue.replay import Replay
from beanstalk_server.storage.beanstalkd.reader import UnknownVersionError, read
from beanstalk_server.storage.disk import Directory
from beanstalk_server.storage.errors import DAMAGED, StorageError

logger = logging.getLogger("beanstalk_server")


def take_over(directory: Directory, replay: Replay, salvage: bool) -> int:
    """Tell all jobs, buried ones in the order in which beanstalkd would take them up; return the highest id ever given.

    Args:
        directory: no beanstalkd writes to it.
        salvage: go on without what is lost to damage.

    Raises:
        StorageError: a file is damaged, or of an unknown version.
        OSError: a file cannot be read.
    """
    warnings: list[str] = []
    try:
        contents = read(directory, warnings.append)
    except UnknownVersionError as error:
        raise StorageError(str(error)) from None
    for warning in warnings:
        logger.warning("%s", warning)
    if contents.damages and not salvage:
        raise StorageError(f"{contents.damages[0]}; --salvage goes on without what is lost", DAMAGED)
    for sequence, job in enumerate(contents.jobs(), 1):
        if job.state == BURIED:
            job.bury_sequence = sequence
        replay.put(job)
    return max(contents.last_id, replay.last_id)
