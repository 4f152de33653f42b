"""The outcomes of commands: small numbers, so that returning one allocates nothing."""

from __future__ import annotations

from typing import Final

Outcome = int
"""One of the constants below."""

DONE: Final = 0
"""The command is done, and the client has what it found or counted."""

PENDING: Final = 1
"""The command has not ended yet: its answer comes later."""

NOT_FOUND: Final = 2
"""There is no such job or tube, or it is not this client's to change: nothing has changed."""

TOO_LATE: Final = 3
"""The job is no longer delayed, or a client has reserved it: nothing has changed."""

EXISTS: Final = 4
"""A job of the tube has the key already: nothing has changed."""

REPLACED: Final = 5
"""The job that had the key has been replaced."""

NOT_IGNORED: Final = 6
"""The tube is the only one that the client watches: nothing has changed."""

DRAINING: Final = 7
"""The queue takes no new jobs: nothing has changed."""

OUT_OF_MEMORY: Final = 8
"""The journal has no room: nothing has changed."""

TIMED_OUT: Final = 9
"""No job was ready for as long as the client was willing to wait."""

DEADLINE_SOON: Final = 10
"""No job was ready, and one that the client has reserved is in its safety margin."""

FAILED: Final = 11
"""A bug, or a failure of the journal: the command may have been done in part."""

TOO_BIG: Final = 12
"""The body is larger than the tube takes: nothing has changed."""

BURIED_INSTEAD: Final = 13
"""The job has failed too often: it has been buried instead of released."""

AGAIN: Final = 14
"""The job that had the key has been replaced and stays reserved: it is put when its reservation ends."""
