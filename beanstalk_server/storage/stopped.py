"""The mark that a clean stop leaves: how far the log goes, so that the next start knows what must be there.

Without it, a newest segment that has lost its end cannot be told from one whose last write was torn, or that just ends
there. A log that goes further than the mark says was written to since, and the mark means nothing more. Must never
know what the records mean.
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
    """The mark, if there is one, or what is wrong with it."""
    if STOPPED not in directory.names():
        return None, ""
    file = directory.open(STOPPED)
    try:
        text = file.read(0, _LONGEST)
    finally:
        file.close()
    found = _TEXT.fullmatch(text)
    if found is None or int(found[4], 16) != crc32c(text[: found.start(4)]):
        return None, "this is no mark of a clean stop, or a damaged one: it is ignored"
    return Mark(int(found[1]), int(found[2]), int(found[3])), ""


def write_mark(directory: Directory, mark: Mark) -> None:
    """Leave a mark, in the place of the last one; what it tells of must be on the disk."""
    text = b"%d %d %d " % mark
    file = directory.create(f"{STOPPED}.new")
    try:
        file.write(0, b"%b%08x\n" % (text, crc32c(text)))
        file.sync()
    finally:
        file.close()
    directory.rename(f"{STOPPED}.new", STOPPED)
    directory.sync()
