"""What operations cost: the price list that keeps one client's work from delaying the others.

The unit is a simple command, one to three microseconds. To move a job from state to state costs 1.

    operation                                                 cost
    --------------------------------------------------------  -----------------------------------
    a command; a job moved; a timer                           1
    bytes read or answered                                    1 for each KiB
    bytes copied                                              1 for each 4 KiB
    a search of the watched tubes, or a list of them          1 for each 32 tubes
    the rights of a user to a tube found                      1 for each 64 of User.weight
    a client begins to wait in its watched tubes, or ends to  1 for each 4 tubes
    a delayed job kicked                                      KICK_COST
    a ready job expired                                       EXPIRY_COST
    a dead letter redriven, a job moved to another tube       MOVE_COST
    a job or a held key cleared                               CLEAR_COST
    a failure of a job counted                                FAILURE_COST
    a tube made                                               NEW_TUBE_COST
    a tube brought under another policy                       REVIEW_COST
    jobs looked at, most of which stay as they are            1 for each 32 jobs
    a page of the list of tubes written                       PAGE_COST
    statistics told                                           STATISTICS_COST
"""

from __future__ import annotations

from typing import Final

NEW_TUBE_COST: Final = 4
REVIEW_COST: Final = 4
KICK_COST: Final = 4
"""Each is the first of its tube's delayed jobs. To find the next one goes through the whole height of the heap: 5 to 9
microseconds among a million jobs."""

MOVE_COST: Final = 4
"""It may be anywhere in the heap of its delayed jobs, and its key goes from table to table."""

CLEAR_COST: Final = 4
"""Half a microsecond. But the last of a million jobs to go give back most of the memory, a mebibyte at a time: 128 of
them took 10 milliseconds for that."""

FAILURE_COST: Final = 2
"""It makes the job's terms, sets its timer, and is recorded."""

EXPIRY_COST: Final = 4
"""Likewise: what expires first is often the first of its tube's ready jobs."""

PAGE_COST: Final = 8
STATISTICS_COST: Final = 8

# By how many bits a number is shifted to the right to have its cost: no call for so little.
TRANSFER_SHIFT: Final = 10
"""Bytes read or answered."""

COPY_SHIFT: Final = 12
"""Bytes copied."""

LOOK_SHIFT: Final = 5
"""Jobs looked at."""

SEARCH_SHIFT: Final = 5
"""Tubes searched."""

WAIT_SHIFT: Final = 2
"""Tubes in which a client begins or ends to wait."""
