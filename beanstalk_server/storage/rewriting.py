"""Replaces files with new segments that hold the same jobs: all files or, if the start is interrupted, none.

Takeovers of beanstalkd's files and salvages need this. The new segments are first written to a subdirectory,
`rewriting`. When they are complete and on the disk, a file there says which files they replace. An interrupted
rewriting is finished at the next start if that file exists, and undone if not.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Final

from beanstalk_server.events import event
from beanstalk_server.queue.job import NOT_IN_MEMORY, Holder, Job
from beanstalk_server.queue.memory import Memory
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.table import IdTable
from beanstalk_server.storage.bodies import ALL_IN_MEMORY, Bodies
from beanstalk_server.storage.body_reader import BodyReader
from beanstalk_server.storage.disk import Directory, write_file
from beanstalk_server.storage.record_writer import put_size
from beanstalk_server.storage.segment import Segment
from beanstalk_server.storage.segment_log import NoRoomError, SegmentLog
from beanstalk_server.storage.segment_writer import SegmentWriter
from beanstalk_server.storage.spares import spare_name
from beanstalk_server.storage.upkeep import COMMIT_LIMIT, SEGMENT_OVERHEAD, Spare

REWRITING: Final = "rewriting"
COMPLETE: Final = "rewriting/complete"

logger = logging.getLogger("beanstalk_server")


class Rewriting:
    """Writes new segments for all jobs of a finished replay.

    Args:
        directory: locked, and without an unfinished rewriting.
        replay: holds the jobs; their times are wall clock.
        segments: hold the bodies that are not in memory; a job with the slot s refers to segments[s - 1].
        segment_size: bytes.
        draw_salt: draws a random number of 32 bits.
        body_threshold: bytes; longer bodies leave memory when they have been written.
        next_id: the smallest id that has never been given.
        sequence, commit_number: those of the last segment and the last commit; the new ones follow.
    """

    def __init__(
        self,
        directory: Directory,
        replay: Replay,
        segments: list[Segment],
        segment_size: int,
        draw_salt: Callable[[], int],
        body_threshold: int,
        next_id: int,
        sequence: int,
        commit_number: int,
    ) -> None:
        self._directory = directory
        self._replay = replay
        self._segments = segments
        self._reader = BodyReader(directory, 1)
        self._body_threshold = body_threshold
        self._segment_size = segment_size
        self._writer = SegmentWriter(directory, REWRITING)
        self._spares = 0  # how many have been made
        bodies = Bodies(ALL_IN_MEMORY, 0, Memory())
        self.log = SegmentLog(IdTable(), IdTable(), segment_size, draw_salt, bodies, replay.boot)
        self.log.adopt([], [], next_id, sequence, commit_number)
        self.log.recorded_offset = replay.clock_offset

    def replace(self, aside: str, kept: list[str], removed: list[str]) -> None:
        """Write the jobs, and replace old files with them; afterwards each job knows its segment.

        Args:
            aside: the subdirectory to which the files in `kept` are moved.
            removed: files to remove.
        """
        directory = self._directory
        directory.make_directory(REWRITING)
        self._write_jobs()
        text = {"aside": aside, "kept": kept, "removed": removed}
        write_file(directory, f"{COMPLETE}.new", json.dumps(text).encode())
        directory.rename(f"{COMPLETE}.new", COMPLETE)
        directory.sync(REWRITING)
        directory.sync()
        finish_rewriting(directory)

    def _write_jobs(self) -> None:
        """Write the jobs to at least one segment, so that the next id is kept."""
        log = self.log
        self._add_spare(0)
        log.seal()
        for job in self._replay.holders():
            self._append(job)
            if log.room.pending >= COMMIT_LIMIT:
                self._write(sync=False)
        self._reader.close()
        self._write(sync=True)
        self._writer.close()
        for segment in log.segments:
            segment.size = segment.durable = segment.end  # no space was allocated ahead
            segment.is_closed = True

    def _append(self, job: Holder) -> None:
        if isinstance(job, Job) and job.body is NOT_IN_MEMORY:
            job.body = self._reader.read_one(self._segments[job.file - 1].place_of(job))
        try:
            self.log.append(job)
        except NoRoomError:
            self._add_spare(put_size(job))
            self.log.append(job)
        if isinstance(job, Job) and len(job.body) > self._body_threshold:
            job.body = NOT_IN_MEMORY  # it is not needed until everything has been written

    def _add_spare(self, size: int) -> None:
        self._spares += 1
        name = spare_name(self._spares)
        self._directory.create(f"{REWRITING}/{name}").close()
        self.log.room.add_spare(Spare(name, max(self._segment_size, SEGMENT_OVERHEAD + size)))

    def _write(self, *, sync: bool) -> None:
        batches = self.log.take(0, self.log.recorded_offset)
        self._writer.write(batches, sync)
        self.log.confirm(batches, None)


def finish_rewriting(directory: Directory) -> None:
    """Replace the old files with the new segments if these are complete; otherwise remove the new segments."""
    names = directory.names(REWRITING)
    if "complete" in names:
        file = directory.open(COMPLETE)
        text = json.loads(file.read(0, file.size()))
        file.close()
        aside: str = text["aside"]
        directory.make_directory(aside)
        there = set(directory.names())
        for name in text["kept"]:
            if name in there:
                directory.rename(name, f"{aside}/{name}")
        for name in text["removed"]:
            if name in there:
                directory.remove(name)
        directory.sync(aside)
        directory.sync()
        for name in sorted(names):
            if name.startswith("segment."):
                directory.rename(f"{REWRITING}/{name}", name)
        directory.sync()
        directory.sync(REWRITING)
    elif names:
        logger.info(
            "%(path)s: removing incomplete files of an interrupted start",
            event("incomplete-work-removed", path=f"{directory.path}/{REWRITING}"),
        )
    for name in directory.names(REWRITING):
        directory.remove(f"{REWRITING}/{name}")
    if REWRITING in directory.names():
        directory.remove(REWRITING)
        directory.sync()
