"""The mark of a clean stop: where the log ended, so that the next start knows what must be there.

Without it, nobody can tell a newest segment that has lost its end from one that ends there, or whose last write was
torn. If the log goes further than the mark, it has been written to since, and the mark means nothing any more. Must
never know what is in a record.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from crc32c import crc32c

from beanstalk_server.storage.disk import Directory

STOPPED: Final = "stopped"

_TEXT: Final = re.compile(rb"(\d+) (\d+) (\d+) ([0-9a-f]{8})\n")
_LONGEST: Final = 100  # bytes


class Mark(NamedTuple):
    """Where the log ended."""

    sequence: int
    """Of the newest segment."""
    end: int
    """The offset in it at which its records end."""
    commit_number: int
    """Of the last commit."""


def read_mark(directory: Directory) -> tuple[Mark | None, str]:
    """The mark, or None; and what is wrong with it, or ""."""
    if STOPPED not in directory.names():
        return None, ""
    file = directory.open(STOPPED)
    try:
        text = file.read(0, _LONGEST)
    finally:
        file.close()
    found = _TEXT.fullmatch(text)
    if found is None or int(found[4], 16) != crc32c(text[: found.start(4)]):
        return None, "ignored: it is not the mark of a clean stop, or it is damaged"
    return Mark(int(found[1]), int(found[2]), int(found[3])), ""


def write_mark(directory: Directory, mark: Mark) -> None:
    """Leave a mark in the place of the last one; everything that it tells of is on the disk."""
    text = b"%d %d %d " % mark
    file = directory.create(f"{STOPPED}.new")
    try:
        file.write(0, b"%b%08x\n" % (text, crc32c(text)))
        file.sync()
    finally:
        file.close()
    directory.rename(f"{STOPPED}.new", STOPPED)
    directory.sync()
