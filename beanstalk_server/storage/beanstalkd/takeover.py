"""Takes over the jobs in beanstalkd's files: reads them into a replay.

The files stay as they are; the caller writes the jobs in this server's format and moves the files away.
"""

from __future__ import annotations

import logging

from beanstalk_server.events import event
from beanstalk_server.queue.job import BURIED
from beanstalk_server.queue.replay import Replay
from beanstalk_server.storage.beanstalkd.reader import UnknownVersionError, read
from beanstalk_server.storage.disk import Directory
from beanstalk_server.storage.errors import DAMAGED, StorageError

logger = logging.getLogger("beanstalk_server")


def take_over(directory: Directory, replay: Replay, salvage: bool) -> int:
    """Replay all jobs, buried ones in the order in which beanstalkd would load them; return the highest id ever used.

    Args:
        directory: one that no beanstalkd writes to.
        salvage: accept damage, and go on without what is lost.

    Raises:
        StorageError: a file is damaged, or has an unknown version.
        OSError: a file cannot be read.
    """
    warnings: list[str] = []
    try:
        contents = read(directory, warnings.append)
    except UnknownVersionError as error:
        raise StorageError(str(error)) from None
    for warning in warnings:
        logger.warning("%(warning)s", event("beanstalkd-file-warning", warning=warning))
    if contents.damages and not salvage:
        raise StorageError(f"{contents.damages[0]}; to start without what is lost, use --salvage", DAMAGED)
    for sequence, job in enumerate(contents.jobs(), 1):
        if job.state == BURIED:
            job.bury_sequence = sequence
        replay.put(job)
    return max(contents.last_id, replay.last_id)
