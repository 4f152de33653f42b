"""The inner loop of recovery: one record after the other, told to the replay. Must never know files."""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.replay import Replay
from beanstalk_server.storage.record import CHANGE, CLEAR, CLOCK, DELETE, PUT
from beanstalk_server.storage.segment import Reader, Segment

ROUND: Final = 20_000  # records, which is well below a second


def replay_records(reader: Reader, replay: Replay, segment: Segment) -> bool:
    """Tell a round of records; False when there are no more, or the next one is wrong."""
    scanner = reader.scanner
    ids = segment.ids
    sequence = segment.sequence
    for _ in range(ROUND):
        if not reader.next():
            return False
        kind = scanner.kind
        if kind == PUT:
            job = scanner.put(replay)
            job.file = sequence
            ids.append(job.id)
        elif kind == CHANGE:
            scanner.change(replay)
        elif kind == DELETE:
            replay.delete(scanner.id())
        elif kind == CLEAR:
            tube_name, reserved_ids = scanner.clear()
            replay.clear(tube_name, reserved_ids)
        elif kind == CLOCK:
            clock_offset, boot = scanner.clock()
            replay.clock(clock_offset, boot)
    return True
