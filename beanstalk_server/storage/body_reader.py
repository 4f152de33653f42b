"""Reads bodies back from the segments, and verifies each by its checksum.

Records that lie close together are read in one piece. `read_cached` reads what the system has in memory, and may be
called on the event loop; `read` blocks. The caller makes sure that no file is removed meanwhile.
"""

from __future__ import annotations

import errno
from typing import Final

from beanstalk_server.storage.disk import Directory, ReadableFile
from beanstalk_server.storage.record import PUT, PUT_WITH, Scanner
from beanstalk_server.storage.segment import Location, Segment

GAP: Final = 1 << 12
"""Bytes between two records that are read, rather than to read twice."""

PIECE: Final = 1 << 20
"""Bytes that are read at once, unless one record is longer."""


class BodyReader:
    """Reads from the segments of a directory, one call at a time.

    Args:
        directory: holds the segments, under their names.
        most_files: how many files stay open after a read.
    """

    def __init__(self, directory: Directory, most_files: int = 0) -> None:
        self._directory = directory
        self._most_files = most_files
        self._files: dict[str, ReadableFile] = {}  # those that are open, by their names; the oldest first

    def read(self, places: list[Location]) -> dict[Location, bytes]:
        """Read the bodies of the records at these places.

        Raises:
            OSError: one of them cannot be read, or is damaged; the error names the file and the offset.
        """
        bodies: dict[Location, bytes] = {}
        for name, wanted in _by_segment(places).items():
            file = self._open(name, wanted[0])
            try:
                for piece in _pieces(wanted):
                    self._read_piece(file, piece, bodies)
            finally:
                if not self._most_files:
                    self.close()
        return bodies

    def read_one(self, place: Location) -> bytes:
        """Read the body of one record; raises as `read` does."""
        return self.read([place])[place]

    def read_cached(self, places: list[Location]) -> dict[Location, bytes]:
        """Read those of these bodies that are at hand: in memory, in an open file, and not too long to copy here.

        Raises:
            OSError: one of them is damaged; the error names the file and the offset.
        """
        bodies: dict[Location, bytes] = {}
        for name, wanted in _by_segment(places).items():
            file = self._files.get(name)
            if file is None:
                continue
            for piece in _pieces(wanted):
                size = _size(piece)
                data = file.read_cached(piece[0].offset, size) if size <= PIECE else None
                if data is not None:
                    self._take_apart(data, piece, bodies)
        return bodies

    def forget(self, segment: Segment) -> None:
        """Close the file of a segment that is about to go, and is not being read from. May run beside `read`."""
        file = self._files.pop(segment.name, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def _open(self, name: str, place: Location) -> ReadableFile:
        file = self._files.get(name)
        if file is not None:
            return file
        names = list(self._files)  # in one step, because of `forget`
        if names and len(names) >= self._most_files:
            oldest = self._files.pop(names[0], None)
            if oldest is not None:  # unless its segment has just gone
                oldest.close()
        try:
            file = self._files[name] = self._directory.open(name)
        except OSError as error:
            raise self._named(error, place) from error
        return file

    def _read_piece(self, file: ReadableFile, piece: list[Location], bodies: dict[Location, bytes]) -> None:
        first = piece[0]
        try:
            data = file.read(first.offset, _size(piece))
        except OSError as error:
            raise self._named(error, first) from error
        self._take_apart(data, piece, bodies)

    def _take_apart(self, data: bytes, piece: list[Location], bodies: dict[Location, bytes]) -> None:
        first = piece[0]
        scanner = Scanner(first.segment.seed, first.segment.version)
        scanner.data = data
        for place in piece:
            scanner.end = place.offset - first.offset
            bodies[place] = self._body(scanner, place)

    def _body(self, scanner: Scanner, place: Location) -> bytes:
        if not scanner.next():
            raise self._damaged(place, scanner.fault or "the record is missing")
        is_put = scanner.kind in (PUT, PUT_WITH)
        if not is_put or scanner.job_id() != place.job_id or scanner.end - scanner.start != place.size:
            raise self._damaged(place, "another record is in its place")
        return scanner.put().body

    def _damaged(self, place: Location, what: str) -> OSError:
        what = f"damaged at offset {place.offset}, the put of job {place.job_id}: {what}"
        return OSError(errno.EIO, what, str(self._directory.path / place.segment.name))

    def _named(self, error: OSError, place: Location) -> OSError:
        what = f"{error.strerror or error}, at offset {place.offset}, the put of job {place.job_id}"
        return OSError(error.errno, what, str(self._directory.path / place.segment.name))


def _by_segment(places: list[Location]) -> dict[str, list[Location]]:
    found: dict[str, list[Location]] = {}
    for place in places:
        found.setdefault(place.segment.name, []).append(place)
    return found


def _pieces(places: list[Location]) -> list[list[Location]]:
    """Divide places of one segment into pieces that are read at once, each in the order of the file."""
    if len(places) == 1:
        return [places]
    pieces: list[list[Location]] = []
    start = end = 0
    for place in sorted(set(places), key=_offset):
        if pieces and place.offset - end <= GAP and place.offset + place.size - start <= PIECE:
            pieces[-1].append(place)
        else:
            pieces.append([place])
            start = place.offset
        end = place.offset + place.size
    return pieces


def _size(piece: list[Location]) -> int:
    """Bytes from the beginning of a piece to its end."""
    last = piece[-1]
    return last.offset + last.size - piece[0].offset


def _offset(place: Location) -> int:
    return place.offset
