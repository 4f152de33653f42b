"""Writes the batches of the log to files; begins, ends and removes segments on the disk.

Before each step, everything that it relies on is on the disk, so that a crash at any point leaves a whole log. All
calls block; the binlog makes them off the event loop.
"""

from __future__ import annotations

from contextlib import closing

from beanstalk_server.storage.disk import Directory
from beanstalk_server.storage.segment import Segment, encode_header
from beanstalk_server.storage.segment_log import CommitBatch, cut_size
from beanstalk_server.storage.upkeep import Spare


class SegmentWriter:
    """Writes the segments of a directory, one call at a time.

    Args:
        directory: holds the segments and the spares.
        inside: the subdirectory that holds them instead, or "".
    """

    def __init__(self, directory: Directory, inside: str = "") -> None:
        self._directory = directory
        self._inside = inside
        self.tail: Segment | None = None
        """The segment that was written last; its file is open until `close`."""

    def write(self, batches: list[CommitBatch], sync: bool) -> None:
        """Write batches in their order. A segment begins only when all of the previous one is on the disk.

        Args:
            sync: return when everything is on the disk.

        Raises:
            OSError: records may be lost; the error names the file. The writer must not be used again.
        """
        try:
            for batch in batches:
                if batch.spare is None:
                    assert batch.segment.file is not None, "a segment is open while it is written"
                    batch.segment.file.write(batch.offset, b"".join(batch.chunks))
                else:
                    self._end_tail()
                    self._begin(batch.segment, batch.spare, b"".join(batch.chunks))
            if sync and self.tail is not None and self.tail.file is not None:
                self.tail.file.sync()
        except OSError as error:
            if error.filename is None:
                newest = batches[-1].segment if batches else self.tail
                error.filename = str(self._directory.path / self._path(newest.name if newest is not None else ""))
            raise

    def reopen(self, tail: Segment) -> None:
        """Continue in a segment that an earlier process began."""
        tail.file = self._directory.open(self._path(tail.name), write=True)
        self.tail = tail

    def close(self) -> None:
        if self.tail is not None and self.tail.file is not None:
            self.tail.file.close()
            self.tail.file = None

    def remove(self, segment: Segment) -> None:
        """Remove a segment durably: the next one may be removed only when this one cannot come back."""
        self._directory.remove(self._path(segment.name))
        self._directory.sync(self._inside)

    def recycle(self, segment: Segment, name: str) -> None:
        """Turn the file of a segment into a spare, which keeps its space. The segment is gone, as after `remove`."""
        self._directory.rename(self._path(segment.name), self._path(name))
        self._directory.sync(self._inside)
        with closing(self._directory.open(self._path(name), write=True)) as file:
            file.erase(0, segment.size)
            file.sync()

    def _end_tail(self) -> None:
        tail = self.tail
        if tail is not None and tail.file is not None:
            if tail.is_cut:
                tail.file.truncate(cut_size(tail))
            tail.file.sync()
            tail.file.close()
            tail.file = None

    def _begin(self, segment: Segment, spare: Spare, data: bytes) -> None:
        name = self._path(spare.name)
        try:
            segment.file = self._directory.open(name, write=True)
        except FileNotFoundError:  # it has been removed; it held nothing, but the segments do
            if self.tail is not None and self.tail.name not in self._directory.names(self._inside):
                raise
            segment.file = self._directory.create(name, spare.size)
        self.tail = segment
        segment.file.write(0, encode_header(segment.sequence, segment.salt) + data)
        segment.file.sync()
        self._directory.rename(name, self._path(segment.name))
        self._directory.sync(self._inside)

    def _path(self, name: str) -> str:
        return f"{self._inside}/{name}" if self._inside else name
