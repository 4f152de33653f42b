"""Decides how far the log may grow, when to allocate files, and when to clean the oldest segment of its garbage.

Room ahead is the rest of the tail, the newest segment, and the spares, files of zeros that will become segments.
Garbage is removed at the other end: the live jobs of the oldest segment are moved to the tail, and then the segment is
removed. The log and the binlog report what exists; the room answers questions and gives advice.

Five rules, in bytes, where S is the size of a segment:

- One spare is *kept*, so that the jobs of any segment can be moved into it: it is as large as a segment, or as the
  largest job. While the oldest segment is moved, its own file is the next one to keep, if it is large enough. All other
  free room is the *surplus*.
- A put must leave the *headroom* in the surplus: an eighth of S and a sixteenth of the live records. Changes and
  deletions may use it. When it is used up, they wait until cleaning has turned garbage into room. By then there is
  enough garbage, because the used headroom has become garbage. If the files on a full disk differ so much in size that
  nothing fits anywhere, deletions may use what is left.
- What live records will grow by when they are moved, because their jobs have got terms, or names that are longer, is
  not part of the surplus.
- The upkeep aims at a surplus of S/2 more than the headroom.
- All files together take no more than twice the live records and 2 S. The kept spare, a place for a job that is being
  moved, and one for a put that fits nowhere, may exceed that for a while.

Changes also wait while too many records are waiting to be written. So commits stay small, and no client waits long for
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.storage.record import CHANGE_SIZE, CLOCK_SIZE, COMMIT_SIZE, LEAVE_SIZE, LONGEST_CHANGE, PUT_SIZE
from beanstalk_server.storage.segment import HEADER_SIZE, Segment

BATCH_OVERHEAD: Final = COMMIT_SIZE + CLOCK_SIZE
"""Bytes that may come before the first record of a batch. (One more CLOCK always fits after the last.)"""

SEGMENT_OVERHEAD: Final = HEADER_SIZE + BATCH_OVERHEAD + CLOCK_SIZE
"""Bytes of a file that are not available to its records."""

LONE_CHANGE_SIZE: Final = BATCH_OVERHEAD + LONGEST_CHANGE + LEAVE_SIZE
"""Bytes of the longest change in a commit of its own, with which a job leaves its group: changes are accepted while
this much room is left."""

COMMIT_LIMIT: Final = 1 << 20
"""Bytes of records that may wait to be written; while more are waiting, clients wait before they add to them."""

CLEANING_SLICE: Final = 1 << 16
URGENT_CLEANING_SLICE: Final = 1 << 18
"""Bytes of records that a slice of cleaning moves. The urgent slice is for waiting clients; it takes about 2 ms."""

NOTHING: Final = 0
ALLOCATE: Final = 1
CLEAN: Final = 2
DROP_SPARE: Final = 3
SEAL: Final = 4
"""The steps of the upkeep: what to do next."""


class Spare:
    """A file of zeros that will become a segment.

    Args:
        name: of the file.
        size: of the file, in bytes.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size


class Room:
    """The sizes of all segments and spares, in bytes, and what follows from them.

    Args:
        segments: the log's own list, oldest first; only the log changes it.
        segment_size: bytes.
        on_admission: called with ALL, DELETIONS or NONE when what the binlog admits changes.
    """

    def __init__(
        self, segments: list[Segment], segment_size: int, on_admission: Callable[[int], None] = lambda _: None
    ) -> None:
        self.segments = segments
        self.segment_size = segment_size
        self.on_admission = on_admission
        # The log, which appends, counts these:
        self.live_size = 0  # bytes of the PUT records of all live jobs, held keys and groups
        self.growth = 0  # bytes by which some of them would be longer if they were written again
        self.record_size = 0  # bytes of all records
        self.pending = 0  # bytes of records that wait to be written
        # The log, which cleans, sets these:
        self.is_cleaning = False  # the jobs of the oldest segment are being moved; once begun, it is completed
        self.stuck_on = 0  # bytes of the record that cleaning found no place for, or 0
        # The allocator, which makes files, sets this:
        self.disk_is_full = False  # space that is given back may be lost
        # These are counted here:
        self.spares: list[Spare] = []
        self.spare_room = 0  # bytes of records that fit into the spares
        self.disk_size = 0  # bytes of all segments and spares
        self.largest_live = 0  # no segment but the tail has more bytes of live records
        # `review` sets these:
        self.admits = ALL  # what the binlog admits: ALL, DELETIONS or NONE
        self.put_end = 0  # offset in the tail: a put that ends before it fits
        self.change_end = 0  # offset in the tail: a record that ends after it requires a review

    # Segments and spares

    def adopt(self) -> None:
        """Count the segments found at the start."""
        self.largest_live = max([segment.live for segment in self.segments], default=0)
        self.disk_size = sum([segment.size for segment in self.segments])
        self.record_size = sum([segment.end - HEADER_SIZE for segment in self.segments])
        self.live_size = sum([segment.live for segment in self.segments])

    def add_spare(self, spare: Spare) -> None:
        self.spares.append(spare)
        self.spare_room += capacity(spare)
        self.disk_size += spare.size
        if self.stuck_on <= capacity(spare):
            self.stuck_on = 0
        self.review()

    def begin_segment(self, spare: Spare) -> None:
        """Make a spare the tail; its segment is not in the list yet."""
        self.spares.remove(spare)
        self.spare_room -= capacity(spare)
        if self.segments:
            tail = self.segments[-1]
            self.largest_live = max(self.largest_live, tail.live)
            # If much space is unused, it is given back, unless it may be lost on a full disk.
            tail.is_cut = (
                not self.disk_is_full and tail.size - tail.end > self.segment_size >> 2 and self._is_at_limit()
            )
        self.put_end = self.change_end = 0

    def drop_spare(self) -> Spare:
        """Give up a spare that is not needed. The caller removes its file."""
        spare = self._droppable()
        assert spare is not None, "`next_step` has returned DROP_SPARE"
        self.spares.remove(spare)
        self.spare_room -= capacity(spare)
        self.disk_size -= spare.size
        self.review()
        return spare

    def resize(self, segment: Segment, size: int) -> None:
        """Note that the file of a segment becomes shorter."""
        self.disk_size -= segment.size - size
        segment.size = size

    def remove_oldest(self, segment: Segment) -> None:
        """Note that the oldest segment is gone; it is no longer in the list."""
        self.is_cleaning = False
        self.stuck_on = 0
        self.disk_size -= segment.size
        self.record_size -= segment.end - HEADER_SIZE
        self.largest_live = max([other.live for other in self.segments[:-1]], default=0)
        self.review()

    def grow(self, growth: int) -> None:
        """Note by how many more bytes live records will be longer when they are moved; fewer if it is below 0."""
        if growth:
            self.growth += growth
            if growth > 0:  # as if they had been appended
                self.put_end -= growth
                self.change_end -= growth

    # Places

    def tail_room(self) -> int:
        """Bytes of the longest record, with its commit, that fits into the tail."""
        if not self.segments:
            return 0
        tail = self.segments[-1]
        return 0 if tail.is_closed else max(tail.size - tail.end - CLOCK_SIZE, 0)

    def fits_tail(self, size: int) -> bool:
        """Whether a job may be put into the tail."""
        return size + BATCH_OVERHEAD <= self.tail_room() and not self.would_overfill(self.segments[-1], size)

    def would_overfill(self, segment: Segment, size: int) -> bool:
        """Whether one more job would fill a segment made for a large job with more than an ordinary one can take."""
        return segment.size > self.segment_size and 0 < segment.live > self.segment_size - SEGMENT_OVERHEAD - size

    def smallest_spare(self, size: int) -> Spare | None:
        """The smallest spare that a record fits into."""
        best: Spare | None = None
        for spare in self.spares:
            if size <= capacity(spare) and (best is None or spare.size < best.size):
                best = spare
        return best

    def has_usual_spare(self) -> bool:
        return any(spare.size >= self.segment_size for spare in self.spares)

    def may_move_into(self, spare: Spare | None, oldest: Segment) -> bool:
        """Whether jobs of the oldest segment may be moved into a spare: not if that leaves none for a larger job."""
        if spare is None:
            return False
        needed = self._needed(0)
        if oldest.size - SEGMENT_OVERHEAD >= needed:
            return True
        return any(capacity(other) >= needed for other in self.spares if other is not spare)

    def may_begin(self, spare: Spare) -> bool:
        """Whether any segment could still be moved if this spare became the tail."""
        return self._surplus_if(0, capacity(spare), spare, self.segments[0]) >= 0

    # Who may use it

    def is_before_put_end(self, size: int) -> bool:
        """Whether a put fits for certain: the quick answer. If it is False, ask `spare_needed`."""
        return bool(self.segments) and self.segments[-1].end + size + BATCH_OVERHEAD <= self.put_end

    def spare_needed(self, size: int) -> int:
        """The size in bytes of the spare that a put needs, or needs first; 0 if the put fits.

        If the files already take all that they should, and the disk has room, a put need not leave the headroom.

        Args:
            size: bytes of the PUT record.
        """
        surplus = self._surplus_with(size)
        is_at_limit = self.disk_size + self.segment_size > self.limit() + 2 * size
        if surplus >= (0 if is_at_limit and not self.disk_is_full else self.headroom()):
            return 0
        if not self.fits_tail(size) and self.smallest_spare(size) is None:
            return max(SEGMENT_OVERHEAD + size, self.segment_size)
        if surplus < 0 and self._surplus_if(size, self.tail_room(), None, self.oldest()) < 0:
            return max(SEGMENT_OVERHEAD + self._needed(size), self.segment_size)
        if surplus < 0 and not self.fits_tail(size):
            return max(SEGMENT_OVERHEAD + size, self.segment_size)  # so that the kept spare need not be used
        return self.segment_size

    def may_put(self) -> bool:
        """Whether a put of a small job fits."""
        return not self.spare_needed(PUT_SIZE)

    def review(self) -> None:
        """Find out how far puts and changes may go, and what the binlog admits."""
        tail_room = self.tail_room()
        surplus = self._surplus()
        step = min(self.segment_size >> 4, CLEANING_SLICE)
        wanted = self.headroom() + step
        is_crowded = self.disk_is_full or self._is_at_limit()
        if self.pending > COMMIT_LIMIT:
            admits = NONE
        elif surplus < (wanted if is_crowded else LONE_CHANGE_SIZE) and self._can_clean():
            admits = NONE  # until cleaning has made room
        elif surplus >= LONE_CHANGE_SIZE or (surplus < 0 and not self.disk_is_full) or not self.live_size:
            admits = ALL
        else:
            admits = DELETIONS if max(tail_room, self.spare_room) >= LONE_CHANGE_SIZE else NONE
        if tail_room:
            tail = self.segments[-1]
            room = min(tail_room, max(COMMIT_LIMIT - self.pending, 0))
            for_jobs = (
                room if tail.size <= self.segment_size else max(self.segment_size - SEGMENT_OVERHEAD - tail.live, 0)
            )
            self.put_end = tail.end + min(room, for_jobs, max(surplus - wanted, 0) >> 1)
            self.change_end = tail.end + min(
                room, surplus - wanted if surplus >= wanted else min(surplus - LONE_CHANGE_SIZE, step)
            )
        else:
            self.put_end = self.change_end = 0
        if admits != self.admits:
            self.admits = admits
            self.on_admission(admits)

    # What to do next

    def limit(self) -> int:
        """The most bytes that all files together should take."""
        return 2 * self.live_size + 2 * self.segment_size

    def headroom(self) -> int:
        """Bytes of surplus that a put must leave for changes and deletions."""
        return (self.segment_size >> 3) + (self.live_size >> 4)

    def next_step(self, may_allocate: bool) -> int:
        """What to do next: ALLOCATE a spare, CLEAN the oldest segment, DROP_SPARE, SEAL the tail, or NOTHING.

        Args:
            may_allocate: whether the disk may have room; False for a while after it was found to be full.
        """
        oldest = self.oldest()
        if oldest is not None and not oldest.live:
            return CLEAN
        if self.stuck_on:  # in the middle of cleaning
            return ALLOCATE if may_allocate else NOTHING
        surplus = self._surplus()
        if surplus < 0 and may_allocate:
            return ALLOCATE
        if self.is_cleaning and oldest is not None:
            return CLEAN
        limit = self.limit()
        is_short = surplus < self.headroom() + (self.segment_size >> 1)
        is_large = self.disk_size > limit
        if is_short and may_allocate and self.disk_size + self.segment_size <= limit:
            return ALLOCATE
        if is_large and may_allocate and self._has_large_tail():
            spare = self.smallest_spare(CHANGE_SIZE)
            return SEAL if spare is not None and spare.size <= self.segment_size else ALLOCATE
        if is_large and self._droppable() is not None:
            return DROP_SPARE
        if is_large and may_allocate and self._smaller_capacity():
            return ALLOCATE
        if (is_short or is_large) and self._is_worth_cleaning():
            if oldest is not None:
                return CLEAN
            spare = self.smallest_spare(CHANGE_SIZE)
            if self.segments and spare is not None:
                if is_large or 0 <= surplus < LONE_CHANGE_SIZE:
                    return SEAL
                # On a full disk, the only segment can be cleaned if its jobs fit into the only spare.
                if self.disk_is_full and self._surplus_if(0, capacity(spare), spare, self.segments[0]) > surplus:
                    return SEAL
        if surplus < LONE_CHANGE_SIZE and may_allocate:
            return ALLOCATE
        return NOTHING

    def spare_size(self) -> int:
        """Bytes of the next spare: as many as a segment has, or more for a larger job."""
        needed = self.stuck_on
        if not needed:
            if self._surplus() < 0:
                needed = self._needed(0)
            elif self.disk_size > self.limit():
                needed = self._smaller_capacity()
        return max(SEGMENT_OVERHEAD + needed, self.segment_size)

    def should_recycle(self, size: int) -> bool:
        """Whether the file of a segment that is removed should become a spare; `size` is that of the file."""
        if self.disk_is_full:
            return size > SEGMENT_OVERHEAD + LONE_CHANGE_SIZE
        surplus = self._surplus()
        is_short = surplus < self.headroom() + (self.segment_size >> 1)
        is_as_wanted = size >= self.spare_size() and (size == self.segment_size or surplus < 0)
        return is_short and is_as_wanted and (surplus < 0 or self.disk_size + size <= self.limit())

    def has_room_to_clean(self) -> bool:
        """Whether the jobs of the oldest segment can be moved."""
        return bool(self.segments or self.spares) and not self.stuck_on and self._surplus() >= 0

    def oldest(self) -> Segment | None:
        """The oldest segment, if it is not the tail."""
        return self.segments[0] if len(self.segments) > 1 else None

    def waste(self) -> int:
        """Unused bytes after the last record of each segment but the tail."""
        taken = self.disk_size - self.spare_room - len(self.spares) * SEGMENT_OVERHEAD
        return taken - self.record_size - len(self.segments) * HEADER_SIZE - self.tail_room()

    # Surplus and garbage

    def _surplus(self) -> int:
        """Bytes of small records that fit besides the jobs of the oldest segment; below 0 if these may not fit."""
        return self._surplus_if(0, self.tail_room(), None, self.oldest())

    def _surplus_if(self, size: int, tail_room: int, taken: Spare | None, oldest: Segment | None) -> int:
        """The surplus with one more job of this size, this much room in the tail, and without the spare `taken`.

        Args:
            oldest: the segment that would be moved next, or None if it is the tail.
        """
        needed = self._needed(size)
        room = tail_room - self.growth
        kept: Spare | None = None
        for spare in self.spares:
            if spare is not taken:
                room += capacity(spare)
                if capacity(spare) >= needed and (kept is None or spare.size < kept.size):
                    kept = spare
        if not needed:
            return room
        if kept is not None:
            room -= capacity(kept)
            if oldest is None or oldest.size - SEGMENT_OVERHEAD >= needed:
                return room
        elif oldest is None or oldest.size - SEGMENT_OVERHEAD < needed:
            return -1
        # Its jobs must fit beside the kept spare. Then its own file is kept, if it is large enough.
        commits = 2 + (oldest.live + self.growth) // CLEANING_SLICE  # one for each slice, and a checkpoint
        return room - oldest.live - commits * BATCH_OVERHEAD

    def _surplus_with(self, size: int) -> int:
        """The surplus that a job would leave; below 0 if it does not fit."""
        if self.fits_tail(size):
            tail_room = self.tail_room() - size - BATCH_OVERHEAD
            return self._surplus_if(size, tail_room, None, self.oldest())
        spare = self.smallest_spare(size)  # it becomes the tail
        if spare is None:
            return -1
        oldest = self.segments[0] if self.segments else None
        return self._surplus_if(size, capacity(spare) - size, spare, oldest)

    def _needed(self, size: int) -> int:
        """The most bytes of live records that any one segment may hold, with one more job of this size."""
        tail_live = self.segments[-1].live if self.segments else 0
        return max(self.largest_live, tail_live, min(tail_live + size, max(self.segment_size - SEGMENT_OVERHEAD, size)))

    def _smaller_capacity(self) -> int:
        """Bytes that a new spare should hold to replace one that is larger than needed; 0 if no spare is."""
        needed = self._needed(0)
        kept = self.smallest_spare(needed)
        if kept is None:
            return 0
        slack = self.segment_size >> 4
        if kept.size > max(SEGMENT_OVERHEAD + needed, self.segment_size) + slack:
            return max(needed, 1)
        oldest = self.oldest()
        beside = 2 * (BATCH_OVERHEAD + LONE_CHANGE_SIZE) + (0 if oldest is None else oldest.live)
        others = [spare.size for spare in self.spares if spare is not kept and capacity(spare) >= beside]
        if others and min(others) > max(SEGMENT_OVERHEAD + beside, self.segment_size) + slack:
            return beside
        return 0

    def _droppable(self) -> Spare | None:
        """A spare that is not needed, or None; never the last one that is as large as a segment."""
        tail_room = self.tail_room()
        usual = [spare for spare in self.spares if spare.size >= self.segment_size]
        for spare in sorted(self.spares, key=self._size_difference, reverse=True):
            if usual == [spare]:
                continue
            if self._surplus_if(0, tail_room, spare, self.oldest()) >= LONE_CHANGE_SIZE:
                return spare
        return None

    def _size_difference(self, spare: Spare) -> int:
        return abs(spare.size - self.segment_size)

    def _is_at_limit(self) -> bool:
        return self.disk_size + self.segment_size > self.limit()

    def _has_large_tail(self) -> bool:
        """Whether the tail is larger than a segment, and much of it is free."""
        return self.tail_room() > self.segment_size >> 4 and self.segments[-1].size > self.segment_size

    def _can_clean(self) -> bool:
        return self.oldest() is not None and not self.stuck_on and self._is_worth_cleaning()

    def _is_worth_cleaning(self) -> bool:
        if self._garbage() >= self._garbage_worth_cleaning():
            return True
        # The space after a segment's records may be too small for a job, but large enough for changes.
        return self._garbage() + self.waste() >= self.segment_size >> 6 and self._surplus() < LONE_CHANGE_SIZE

    def _garbage_worth_cleaning(self) -> int:
        """How many bytes of garbage make cleaning worthwhile."""
        much = (self.segment_size >> 4) + (self.live_size >> 5)
        return much if self.admits == ALL else much >> 3

    def _garbage(self) -> int:
        """Bytes of records that cleaning everything would remove, less the commits that it would add."""
        own = 4 * COMMIT_SIZE + BATCH_OVERHEAD + self.segment_size // CLEANING_SLICE * COMMIT_SIZE
        return self.record_size - self.live_size - len(self.segments) * own

    def check(self) -> None:
        sizes = [segment.size for segment in self.segments] + [spare.size for spare in self.spares]
        assert self.disk_size == sum(sizes)
        assert self.record_size == sum(segment.end - HEADER_SIZE for segment in self.segments)
        assert self.live_size == sum(segment.live for segment in self.segments)
        assert self.spare_room == sum(capacity(spare) for spare in self.spares)
        assert self.largest_live >= max([segment.live for segment in self.segments[:-1]], default=0)
        assert self.waste() == sum(segment.size - segment.end for segment in self.segments) - self.tail_room()


def capacity(spare: Spare) -> int:
    """Bytes of the longest record that fits into a spare."""
    return spare.size - SEGMENT_OVERHEAD
