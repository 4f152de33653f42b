"""Reads and writes the mark of a clean stop, which tells the next start where the log must end.

Without the mark, a newest segment that has lost its end looks like one that ended there, or whose last write was torn.
A log that continues after the mark was written to since, and the mark no longer counts. A server that starts renames
the mark: the next start sees by its name whether a clean stop was the last thing that happened.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import Final, NamedTuple

from crc32c import crc32c

from beanstalk_server.storage.disk import Directory, write_file

STOPPED: Final = "stopped"

STARTED: Final = "started"
"""Its name while a server runs, and after a stop that was not clean."""

_TEXT: Final = re.compile(rb"(\d+) (\d+) (\d+) (?:(\d+) )?([0-9a-f]{8})\n")
_LONGEST: Final = 100  # bytes


class Mark(NamedTuple):
    """Where the log ended."""

    sequence: int
    """The sequence number of the newest segment."""
    end: int
    """The offset at which the records of that segment end."""
    commit_number: int
    """The number of the last commit."""
    first: int = 0
    """The sequence number of the oldest segment; 0 in a mark that an earlier server has left."""


def mark_name(directory: Directory) -> str:
    """Return the name that the mark has, or "" if there is none."""
    names = directory.names()
    return STOPPED if STOPPED in names else STARTED if STARTED in names else ""


def read_mark(directory: Directory, name: str) -> tuple[Mark | None, str]:
    """Return the mark in this file, or None; and what is wrong with it, or ""."""
    with closing(directory.open(name)) as file:
        text = file.read(0, _LONGEST)
    found = _TEXT.fullmatch(text)
    if found is None or int(found[5], 16) != crc32c(text[: found.start(5)]):
        return None, "ignored: not the mark of a clean stop, or damaged"
    return Mark(int(found[1]), int(found[2]), int(found[3]), int(found[4] or 0)), ""


def use_mark(directory: Directory) -> None:
    """Note durably that a server runs: there is no clean stop until `write_mark`."""
    if STOPPED in directory.names():
        directory.rename(STOPPED, STARTED)
        directory.sync()


def write_mark(directory: Directory, mark: Mark) -> None:
    """Replace the mark; everything in the log up to the new mark must be on the disk."""
    text = b"%d %d %d %d " % mark
    write_file(directory, f"{STOPPED}.new", b"%b%08x\n" % (text, crc32c(text)))
    directory.rename(f"{STOPPED}.new", STOPPED)
    if STARTED in directory.names():
        directory.remove(STARTED)
    directory.sync()
