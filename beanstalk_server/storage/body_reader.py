"""Reads bodies back from the segments, and verifies each by its checksum.

Records that lie close together are read in one piece. All calls block; the binlog makes them off the event loop, and
sees to it that no file goes meanwhile. Must never know why a body is wanted.
"""

from __future__ import annotations

import errno
from typing import Final

from beanstalk_server.storage.disk import Directory, ReadableFile
from beanstalk_server.storage.record import PUT, Scanner
from beanstalk_server.storage.segment import Place

GAP: Final = 1 << 12
"""Bytes between two records that are read, rather than to read twice."""

PIECE: Final = 1 << 20
"""Bytes that are read at once, unless one record is longer."""


class BodyReader:
    """Reads from the segments of a directory.

    Args:
        directory: holds the segments, under their names.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def read(self, places: list[Place]) -> list[bytes]:
        """Read the bodies of the records at these places.

        Raises:
            OSError: one of them cannot be read, or is damaged; the error names the file and the offset.
        """
        bodies: dict[Place, bytes] = {}
        by_segment: dict[str, list[Place]] = {}
        for place in places:
            by_segment.setdefault(place.segment.name, []).append(place)
        for name, wanted in by_segment.items():
            try:
                file = self._directory.open(name)
            except OSError as error:
                raise self._named(error, wanted[0]) from error
            try:
                for piece in _pieces(wanted):
                    self._read_piece(file, piece, bodies)
            finally:
                file.close()
        return [bodies[place] for place in places]

    def read_one(self, place: Place) -> bytes:
        """Read the body of one record; raises as `read` does."""
        return self.read([place])[0]

    def _read_piece(self, file: ReadableFile, piece: list[Place], bodies: dict[Place, bytes]) -> None:
        first, last = piece[0], piece[-1]
        try:
            data = file.read(first.offset, last.offset + last.size - first.offset)
        except OSError as error:
            raise self._named(error, first) from error
        scanner = Scanner(first.segment.seed, first.segment.version)
        scanner.data = data
        for place in piece:
            scanner.end = place.offset - first.offset
            bodies[place] = self._body(scanner, place)

    def _body(self, scanner: Scanner, place: Place) -> bytes:
        if not scanner.next():
            raise self._damaged(place, scanner.fault or "the record is missing")
        if scanner.kind != PUT or scanner.job_id() != place.job_id or scanner.end - scanner.start != place.size:
            raise self._damaged(place, "another record is in its place")
        return scanner.put().body

    def _damaged(self, place: Place, what: str) -> OSError:
        what = f"damaged at offset {place.offset}, the put of job {place.job_id}: {what}"
        return OSError(errno.EIO, what, str(self._directory.path / place.segment.name))

    def _named(self, error: OSError, place: Place) -> OSError:
        what = f"{error.strerror or error}, at offset {place.offset}, the put of job {place.job_id}"
        return OSError(error.errno, what, str(self._directory.path / place.segment.name))


def _pieces(places: list[Place]) -> list[list[Place]]:
    """Divide places of one segment into pieces that are read at once, each in the order of the file."""
    pieces: list[list[Place]] = []
    start = end = 0
    for place in sorted(set(places), key=_offset):
        if pieces and place.offset - end <= GAP and place.offset + place.size - start <= PIECE:
            pieces[-1].append(place)
        else:
            pieces.append([place])
            start = place.offset
        end = place.offset + place.size
    return pieces


def _offset(place: Place) -> int:
    return place.offset
