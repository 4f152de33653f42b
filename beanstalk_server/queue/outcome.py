"""How a command ended, as the queue tells it: one small number, so that telling it allocates nothing.

Must never know the reply that a client gets for it.
"""

from __future__ import annotations

from typing import Final

Outcome = int
"""One of the constants below."""

DONE: Final = 0
"""The command is done; what it found or counted, the client has been told."""

PENDING: Final = 1
"""It is not decided yet: the client will be told."""

NOT_FOUND: Final = 2
"""There is no such job or tube, or it is not this client's to change."""

TOO_LATE: Final = 3
"""The job is not delayed any more, or a client has it: nothing has changed."""

EXISTS: Final = 4
"""A live job of the tube has the key: nothing has changed."""

REPLACED: Final = 5
"""The job with the key has been replaced."""

NOT_IGNORED: Final = 6
"""It is the only tube that the client watches."""

DRAINING: Final = 7
"""The queue takes no new jobs."""

OUT_OF_MEMORY: Final = 8
"""The journal has no room: nothing has changed."""

TIMED_OUT: Final = 9
"""No job came in the time that the client wanted to wait."""

DEADLINE_SOON: Final = 10
"""No job came, and one that the client holds is in its safety margin."""

FAILED: Final = 11
"""A bug, or the journal's fault: the command may have been done in part."""
