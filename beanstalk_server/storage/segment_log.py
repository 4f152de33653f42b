"""Where records go: which segment has room, which job is where, what is garbage, and what should be done about it.

The log is told of changes and encodes them; it hands out what has to be written and says what should be done next to
have room ahead and no garbage behind. It does nothing itself: must never touch a file.

Segments stand in the order of their numbers; the last one, the tail, is appended to. Room ahead is the rest of the
tail and the spares: files of zeros that are no segments yet. Garbage is got rid of at the other end: the jobs that the
oldest segment still has are put into the tail once more, and it goes. Always the oldest, so that no record goes
before one that it undoes: a DELETE before its PUT, or a PUT before an earlier one of the same job.

Four rules, in bytes, S being the size of a segment:

- One spare is kept that the jobs of any segment can be moved into: as large as a segment, or as the largest job. While
  the oldest segment is moved, its own file is the next to be kept, if it is large enough. What is free beside that is
  the *surplus*.
- A put leaves a surplus of a *headroom*, an eighth of S and a sixteenth of the live records, for changes and deletions.
  When they have used it up, they wait until cleaning has turned garbage into room: there is enough garbage then,
  because only garbage has used up the headroom. Where the files of a full disk differ so much in size that nothing fits
  any more, deletions go on in what is left.
- Half of S more than that is wanted ahead.
- All files together take no more than twice the live records and two segments. What is kept to move into, a place for a
  job that is being moved, and for a put that fits nowhere, may exceed that for a while.

Changes wait, too, while much is waiting to be written: a commit has a size, so that nobody waits long for his.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.job import Job, stored_deadline, stored_state, stored_time
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.table import JobTable
from beanstalk_server.storage.record import (
    CHANGE_SIZE,
    CLOCK_SIZE,
    COMMIT_SIZE,
    DELETE_SIZE,
    NO_BOOT,
    PUT_SIZE,
    clear_size,
    encode_change,
    encode_clear,
    encode_clock,
    encode_commit,
    encode_delete,
    encode_put,
    put_size,
)
from beanstalk_server.storage.segment import HEADER_SIZE, Segment

BATCH_OVERHEAD: Final = COMMIT_SIZE + CLOCK_SIZE
"""Bytes that may stand before the first record of a batch. (Behind its last, there is always room for one more
CLOCK.)"""

CLOCK_TOLERANCE: Final = 10_000_000
"""A wall clock that differs from what was told by no more is not told anew, in nanoseconds: a tick. The two clocks are
read one after the other, and a process may have to wait in between. What adds up is told when it is more."""

CLEANING_SLICE: Final = 1 << 16
URGENT_CLEANING_SLICE: Final = 1 << 18
"""Bytes of records that one slice of cleaning moves; the large one, about two milliseconds, while somebody waits."""

COMMIT_LIMIT: Final = 1 << 20
"""Bytes of records that may wait to be written, before whoever wants to add to them waits too."""

LONE_CHANGE_SIZE: Final = BATCH_OVERHEAD + CHANGE_SIZE
"""Bytes of a change in a commit of its own: what there must be room for, for a change to be accepted."""

SEGMENT_OVERHEAD: Final = HEADER_SIZE + BATCH_OVERHEAD + CLOCK_SIZE
"""Bytes of a file that its records do not get."""

GARBAGE_COST: Final = 16
"""What it takes to look at a record that is garbage, in the same unit."""

SMALL_CLEAR: Final = 1024
"""A clear of no more bytes is taken from the room that is kept for changes; a larger one needs room as a put does."""

NOTHING: Final = 0
ALLOCATE: Final = 1
CLEAN: Final = 2
DROP_SPARE: Final = 3
SEAL: Final = 4
"""What should be done next."""


class Spare:
    """A file of zeros that will be a segment."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size


class CommitBatch:
    """Records that go into one segment in one piece."""

    def __init__(self, segment: Segment, spare: Spare | None) -> None:
        self.segment = segment
        self.spare = spare  # the file that becomes the segment with this batch, if it is its first
        self.offset = segment.end
        self.chunks: list[bytes] = [b""]  # the first is its COMMIT record
        self.size = 0  # bytes of its records, without that one


class SegmentLog:
    """The segments and what is to be written.

    Args:
        live: the broker's table of jobs.
        segment_size: bytes.
        draw_salt: draws a random number of 32 bits.
        boot: tells the boots of all machines apart, 16 bytes.
        on_admission: called with what may be told, when that changes: ALL, DELETIONS or NONE.
    """

    def __init__(
        self,
        live: JobTable,
        segment_size: int,
        draw_salt: Callable[[], int],
        boot: bytes = NO_BOOT,
        on_admission: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.live = live
        self.segment_size = segment_size
        self.draw_salt = draw_salt
        self.boot = boot
        self.on_admission = on_admission
        self.clock_offset = 0  # wall clock less the server's clock, as it is told to the replay; nanoseconds
        self.has_told_clock = False  # since the start
        self.segments: list[Segment] = []  # oldest first
        self.by_sequence: dict[int, Segment] = {}
        self.spares: list[Spare] = []
        self.spare_room = 0  # bytes of records that fit into them
        self.batches: list[CommitBatch] = []  # to be written; the last one is open
        self.sequence = 0  # of the last segment
        self.commit_number = 0  # of the last commit
        self.next_id = 1
        self.live_size = 0  # bytes of the records of all jobs
        self.record_size = 0  # bytes of all records that there are
        self.disk_size = 0  # bytes of all segments and spares
        self.written = 0  # records
        self.migrated = 0
        self.pending = 0  # bytes of records that are to be written
        self.largest_live = 0  # bytes of live records; no segment but the tail has more
        self.stuck_on = 0  # bytes of the record that cleaning found no place for, or 0
        self.disk_is_full = False  # what is given away now may not be had again
        self.is_cleaning = False  # the oldest segment, which is then done to the end
        self.may_leave_tail = False  # there is nothing more to be moved that fits into it
        self.admits = ALL
        # Offsets in the tail: up to here, nothing needs to be looked at.
        self.put_end = 0
        self.end = 0

    # What the journal is told

    def put(self, job: Job) -> bool:
        """Take note of a whole job, which takes the place of the one with its id. False when there is no room."""
        size = put_size(job)
        if not self._is_before_put_end(size):
            self.look_at_room()
            if not self._is_before_put_end(size) and self.lacks(size):
                return False
        old = self.live.get(job.id)
        if old is not None:
            self._forget(old)
        self._append_put(job, size)
        if job.id >= self.next_id:
            self.next_id = job.id + 1
        return True

    def change(self, job: Job) -> None:
        """Take note of what is new of a job.

        Raises:
            NoRoomError: all room is used up; as in `delete`.
        """
        segment = self._make_place(CHANGE_SIZE)
        deadline = stored_deadline(job, self.clock_offset)
        self._append(segment, encode_change(job, stored_state(job), deadline, segment.seed))
        if segment.end > self.end:
            self.look_at_room()

    def delete(self, job: Job) -> None:
        """Take note that a job is gone."""
        segment = self._make_place(DELETE_SIZE)
        self._append(segment, encode_delete(job, segment.seed))
        self._forget(job)
        self.stuck_on = 0
        if segment.end > self.end:
            self.look_at_room()

    def clear(self, tube_name: str, reserved_ids: list[int]) -> bool:
        """Take note that all jobs of a tube but these are gone; `forget` follows for each. False without room."""
        size = clear_size(tube_name, reserved_ids)
        has_place = size + BATCH_OVERHEAD <= self._tail_room() or self._smallest(size) is not None
        if not has_place or (size > SMALL_CLEAR and self.lacks(size)):
            return False
        segment = self._make_place(size)
        self._append(segment, encode_clear(tube_name, reserved_ids, segment.seed))
        if segment.end > self.end:
            self.look_at_room()
        return True

    def forget(self, job: Job) -> None:
        """A job that a clear has ended is garbage, and in the table no more."""
        self._forget(job)
        self.stuck_on = 0

    def _append_put(self, job: Job, size: int) -> None:
        segment = self._make_place(size, True)
        created_at = stored_time(job.created_at, self.clock_offset)
        deadline = stored_deadline(job, self.clock_offset)
        self._append(segment, encode_put(job, stored_state(job), created_at, deadline, segment.seed))
        job.file = segment.sequence
        segment.ids.append(job.id)
        segment.live += size
        self.live_size += size
        if segment.end > self.end:
            self.look_at_room()

    def _forget(self, job: Job) -> None:
        """A job's record is garbage."""
        if job.file:
            size = put_size(job)
            self.by_sequence[job.file].live -= size
            self.live_size -= size
            job.file = 0

    def _append(self, segment: Segment, record: bytes) -> None:
        size = len(record)
        batch = self.batches[-1]
        batch.chunks.append(record)
        batch.size += size
        segment.end += size
        self.record_size += size
        self.pending += size
        self.written += 1

    def _make_place(self, size: int, is_job: bool = False) -> Segment:
        """The segment that the next record goes into; a batch of it is open.

        Raises:
            NoRoomError: all room is used up.
        """
        if self.segments:
            segment = self.segments[-1]
            is_open = bool(self.batches) and self.batches[-1].segment is segment
            needed = size if is_open else size + BATCH_OVERHEAD
            if needed <= self._tail_room() and not (is_job and self._is_too_much(segment, size)):
                if not is_open:
                    self._open_portion(segment, None)
                return segment
        spare = self._smallest(size)
        if spare is not None:
            return self._begin_segment(spare)
        raise NoRoomError("no space is left, not even what was set aside")

    def _begin_segment(self, spare: Spare) -> Segment:
        """Make a spare the tail; a batch of it is open."""
        self.spares.remove(spare)
        self.spare_room -= _capacity(spare)
        if self.segments:
            before = self.segments[-1]
            self.largest_live = max(self.largest_live, before.live)
            # What is left of its space is given back where it is much, and can be had again.
            before.is_cut = (
                not self.disk_is_full and before.size - before.end > self.segment_size >> 2 and self._is_at_limit()
            )
        self.sequence += 1
        segment = Segment(self.sequence, spare.size, self.draw_salt())
        self.segments.append(segment)
        self.by_sequence[segment.sequence] = segment
        self.put_end = self.end = 0
        self._open_portion(segment, spare)
        return segment

    def _open_portion(self, segment: Segment, spare: Spare | None) -> None:
        self.batches.append(CommitBatch(segment, spare))
        segment.end += COMMIT_SIZE
        self.record_size += COMMIT_SIZE
        self.pending += COMMIT_SIZE
        if spare is not None or not self.has_told_clock:
            self._tell_clock()

    def _tell_clock(self) -> None:
        batch = self.batches[-1]
        segment = batch.segment
        batch.chunks.append(encode_clock(self.clock_offset, self.boot, segment.seed))
        batch.size += CLOCK_SIZE
        segment.end += CLOCK_SIZE
        self.record_size += CLOCK_SIZE
        self.pending += CLOCK_SIZE
        self.has_told_clock = True

    # What is to be written

    def take(self, written_at: int, clock_offset: int) -> list[CommitBatch]:
        """What has to be written now, in this order; the next record begins a new batch.

        If the wall clock has been set, that is told at the end: it is true of all that stands before.

        Args:
            written_at: wall clock, nanoseconds.
            clock_offset: that less the server's clock.
        """
        batches = self.batches
        if batches and abs(clock_offset - self.clock_offset) > CLOCK_TOLERANCE and self._has_place_for_clock():
            self.clock_offset = clock_offset
            self._tell_clock()
        self.batches = []
        self.pending = 0
        for batch in batches:
            segment = batch.segment
            self.commit_number += 1
            batch.chunks[0] = encode_commit(
                self.commit_number, segment.durable, batch.size, self.next_id, written_at, segment.seed
            )
        if self.admits != ALL:
            self.look_at_room()
        return batches

    def _has_place_for_clock(self) -> bool:
        tail = self.segments[-1]
        return tail.size - tail.end >= CLOCK_SIZE

    def checkpoint(self, written_at: int, clock_offset: int) -> list[CommitBatch]:
        """What has to be written so that it is known how much has reached the disk: a commit, of nothing if need be.

        None, when there is no place for it, or no segment.
        """
        if self.batches:
            return self.take(written_at, clock_offset)
        if not self.segments or self.segments[-1].is_closed:
            return []
        if self._tail_room() >= BATCH_OVERHEAD:
            self._open_portion(self.segments[-1], None)
        else:
            spare = self._smallest(CHANGE_SIZE)
            if spare is not None and self._surplus_if(0, _capacity(spare), spare, self.segments[0]) >= 0:
                self.seal()  # that there is a next segment says it too
        return self.take(written_at, clock_offset)

    # Room

    def _is_before_put_end(self, size: int) -> bool:
        return bool(self.segments) and self.segments[-1].end + size + BATCH_OVERHEAD <= self.put_end

    def _tail_room(self) -> int:
        if not self.segments:
            return 0
        tail = self.segments[-1]
        return 0 if tail.is_closed else max(tail.size - tail.end - CLOCK_SIZE, 0)

    def _fits_tail(self, size: int) -> bool:
        """Whether a job may be put into the tail."""
        return size + BATCH_OVERHEAD <= self._tail_room() and not self._is_too_much(self.segments[-1], size)

    def _is_too_much(self, segment: Segment, size: int) -> bool:
        """Whether a segment, made for one large job, would have more to move than another file can take."""
        return segment.size > self.segment_size and 0 < segment.live > self.segment_size - SEGMENT_OVERHEAD - size

    def _smallest(self, size: int) -> Spare | None:
        """The smallest spare that a record fits into."""
        best: Spare | None = None
        for spare in self.spares:
            if size <= _capacity(spare) and (best is None or spare.size < best.size):
                best = spare
        return best

    def headroom(self) -> int:
        """Bytes of surplus that a put leaves for changes and deletions."""
        return (self.segment_size >> 3) + (self.live_size >> 4)

    def _surplus(self) -> int:
        """Bytes of small records that fit beside the jobs of the oldest segment; below 0 when those may not fit."""
        return self._surplus_if(0, self._tail_room(), None, self._oldest())

    def _surplus_if(self, size: int, tail_room: int, taken: Spare | None, oldest: Segment | None) -> int:
        """`_surplus`, if there were one more job of this size, so much room in the tail, and one spare less.

        Args:
            oldest: the segment that would have to be moved, unless it is the tail.
        """
        needed = self._needed(size)
        room = tail_room
        kept: Spare | None = None
        for spare in self.spares:
            if spare is not taken:
                room += _capacity(spare)
                if _capacity(spare) >= needed and (kept is None or spare.size < kept.size):
                    kept = spare
        if not needed:
            return room
        if kept is not None:
            room -= _capacity(kept)
            if oldest is None or oldest.size - SEGMENT_OVERHEAD >= needed:
                return room
        elif oldest is None or oldest.size - SEGMENT_OVERHEAD < needed:
            return -1
        # What is moved beside what is kept is moved into the tail. Its file, if it is large enough, is kept then.
        commits = 2 + oldest.live // CLEANING_SLICE  # of what is moved; and a mark
        return room - oldest.live - commits * BATCH_OVERHEAD

    def has_usual_spare(self) -> bool:
        """Whether a spare is there that is as large as a segment."""
        return any(spare.size >= self.segment_size for spare in self.spares)

    def has_room_to_clean(self) -> bool:
        """Whether the jobs of the oldest segment can be moved."""
        return bool(self.segments or self.spares) and not self.stuck_on and self._surplus() >= 0

    def _needed(self, size: int) -> int:
        """Bytes of records that any segment would have to find a place for, with one more job of this size."""
        tail_live = self.segments[-1].live if self.segments else 0
        return max(self.largest_live, tail_live, min(tail_live + size, max(self.segment_size - SEGMENT_OVERHEAD, size)))

    def _surplus_with(self, size: int) -> int:
        """The surplus that a job would leave; below 0 when it does not fit."""
        if self._fits_tail(size):
            tail_room = self._tail_room() - size - BATCH_OVERHEAD
            return self._surplus_if(size, tail_room, None, self._oldest())
        spare = self._smallest(size)  # the rest of the tail is given up
        if spare is None:
            return -1
        oldest = self.segments[0] if self.segments else None
        return self._surplus_if(size, _capacity(spare) - size, spare, oldest)

    def lacks(self, size: int) -> int:
        """How large a spare would have to be, in bytes, for a put to find room, or to be nearer to it; 0 if it fits.

        Where the files take all that they should, a put need not leave the headroom: the disk has room.

        Args:
            size: of the put record.
        """
        surplus = self._surplus_with(size)
        is_at_limit = self.disk_size + self.segment_size > self.limit() + 2 * size
        if surplus >= (0 if is_at_limit and not self.disk_is_full else self.headroom()):
            return 0
        if not self._fits_tail(size) and self._smallest(size) is None:
            return max(SEGMENT_OVERHEAD + size, self.segment_size)
        if surplus < 0 and self._surplus_if(size, self._tail_room(), None, self._oldest()) < 0:
            return max(SEGMENT_OVERHEAD + self._needed(size), self.segment_size)
        if surplus < 0 and not self._fits_tail(size):
            return max(SEGMENT_OVERHEAD + size, self.segment_size)  # and what is kept to move into stays that
        return self.segment_size

    def spare_size(self) -> int:
        """How large the next spare should be: a segment, or larger for jobs that are larger."""
        needed = self.stuck_on
        if not needed:
            if self._surplus() < 0:
                needed = self._needed(0)
            elif self.disk_size > self.limit():
                needed = self._smaller()
        return max(SEGMENT_OVERHEAD + needed, self.segment_size)

    def _smaller(self) -> int:
        """How many bytes a spare should hold so that a larger one can go, which was made for a larger job; or 0."""
        needed = self._needed(0)
        kept = self._smallest(needed)
        if kept is None:
            return 0
        slack = self.segment_size >> 4
        if kept.size > max(SEGMENT_OVERHEAD + needed, self.segment_size) + slack:
            return max(needed, 1)
        oldest = self._oldest()
        beside = 2 * (BATCH_OVERHEAD + LONE_CHANGE_SIZE) + (0 if oldest is None else oldest.live)
        others = [spare.size for spare in self.spares if spare is not kept and _capacity(spare) >= beside]
        if others and min(others) > max(SEGMENT_OVERHEAD + beside, self.segment_size) + slack:
            return beside
        return 0

    def look_at_room(self) -> None:
        """Find out how far puts and changes may go, and what may be told at all."""
        tail_room = self._tail_room()
        surplus = self._surplus()
        step = min(self.segment_size >> 4, CLEANING_SLICE)
        soon = self.headroom() + step
        is_crowded = self.disk_is_full or self._is_at_limit()
        if self.pending > COMMIT_LIMIT:
            admits = NONE
        elif surplus < (soon if is_crowded else LONE_CHANGE_SIZE) and self._can_clean():
            admits = NONE  # cleaning makes the room that puts, or even changes, need
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
            self.put_end = tail.end + min(room, for_jobs, max(surplus - soon, 0) >> 1)
            self.end = tail.end + min(
                room, surplus - soon if surplus >= soon else min(surplus - LONE_CHANGE_SIZE, step)
            )
        else:
            self.put_end = self.end = 0
        if admits != self.admits:
            self.admits = admits
            self.on_admission(admits)

    def _much_garbage(self) -> int:
        """Bytes of garbage that are worth a cleaning."""
        much = (self.segment_size >> 4) + (self.live_size >> 5)
        return much if self.admits == ALL else much >> 3

    def add_spare(self, spare: Spare) -> None:
        self.spares.append(spare)
        self.spare_room += _capacity(spare)
        self.disk_size += spare.size
        if self.stuck_on <= _capacity(spare):
            self.stuck_on = 0
        self.look_at_room()

    # What should be done

    def limit(self) -> int:
        """Bytes that all files together should take at the most."""
        return 2 * self.live_size + 2 * self.segment_size

    def next_step(self, may_allocate: bool) -> int:
        """What should be done next: ALLOCATE a spare, CLEAN the oldest segment, DROP_SPARE, SEAL the tail, or NOTHING.

        Args:
            may_allocate: not right after the disk was found to be full.
        """
        oldest = self._oldest()
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
            spare = self._smallest(CHANGE_SIZE)
            return SEAL if spare is not None and spare.size <= self.segment_size else ALLOCATE
        if is_large and self._droppable() is not None:
            return DROP_SPARE
        if is_large and may_allocate and self._smaller():
            return ALLOCATE
        if (is_short or is_large) and self._is_worth_cleaning():
            if oldest is not None:
                return CLEAN
            if (
                self.segments
                and self._smallest(CHANGE_SIZE) is not None
                and (is_large or 0 <= surplus < LONE_CHANGE_SIZE)
            ):
                return SEAL
        if surplus < LONE_CHANGE_SIZE and may_allocate:
            return ALLOCATE
        return NOTHING

    def _is_at_limit(self) -> bool:
        return self.disk_size + self.segment_size > self.limit()

    def _has_large_tail(self) -> bool:
        """Whether the tail was made for a larger job than it has, and could be cut."""
        tail_room = self._tail_room()
        return tail_room > self.segment_size >> 4 and self.segments[-1].size > self.segment_size

    def _can_clean(self) -> bool:
        return self._oldest() is not None and not self.stuck_on and self._is_worth_cleaning()

    def _is_worth_cleaning(self) -> bool:
        if self._garbage() >= self._much_garbage():
            return True
        # Behind the records of a segment there may be more room than a job needs; a change can use it.
        return self._garbage() + self._waste() >= self.segment_size >> 6 and self._surplus() < LONE_CHANGE_SIZE

    def _droppable(self) -> Spare | None:
        """A spare without which there is room all the same; not the last that is as large as a segment."""
        tail_room = self._tail_room()
        usual = [spare for spare in self.spares if spare.size >= self.segment_size]
        for spare in sorted(self.spares, key=self._oddness, reverse=True):
            if usual == [spare]:
                continue
            if self._surplus_if(0, tail_room, spare, self._oldest()) >= LONE_CHANGE_SIZE:
                return spare
        return None

    def _oddness(self, spare: Spare) -> int:
        return abs(spare.size - self.segment_size)

    def wants(self, size: int) -> bool:
        """Whether a file of this size should become a spare, when it is a segment no longer."""
        if self.disk_is_full:
            return size > SEGMENT_OVERHEAD + LONE_CHANGE_SIZE
        surplus = self._surplus()
        is_short = surplus < self.headroom() + (self.segment_size >> 1)
        is_as_wanted = size >= self.spare_size() and (size == self.segment_size or surplus < 0)
        return is_short and is_as_wanted and (surplus < 0 or self.disk_size + size <= self.limit())

    def seal(self) -> None:
        """Write no more into the tail, so that it can be cleaned; a spare is the tail now."""
        spare = self._smallest(CHANGE_SIZE)
        assert spare is not None, "`next_step` has said SEAL"
        self._begin_segment(spare)
        self.look_at_room()

    def _oldest(self) -> Segment | None:
        """The oldest segment, if it is not the tail."""
        return self.segments[0] if len(self.segments) > 1 else None

    def _garbage(self) -> int:
        """Bytes of records that cleaning everything would get rid of: its own commits are not among them."""
        own = 4 * COMMIT_SIZE + BATCH_OVERHEAD + self.segment_size // CLEANING_SLICE * COMMIT_SIZE
        return self.record_size - self.live_size - len(self.segments) * own

    def _waste(self) -> int:
        """Bytes behind the records of segments that nothing is appended to."""
        taken = self.disk_size - self.spare_room - len(self.spares) * SEGMENT_OVERHEAD
        return taken - self.record_size - len(self.segments) * HEADER_SIZE - self._tail_room()

    # Cleaning

    def clean(self) -> bool:
        """Put jobs that the oldest segment has into the tail once more: a slice of them.

        Returns:
            Whether it has none any more. `remove_oldest` may follow when all that is to be written is on the disk.
        """
        segment = self.segments[0]
        budget = CLEANING_SLICE if self.admits == ALL else URGENT_CLEANING_SLICE
        self.is_cleaning = True
        ids = segment.ids
        while budget > 0 and segment.live:
            if segment.cleaned == len(ids):  # what fits into the tail has been moved
                segment.cleaned = 0
                self.may_leave_tail = True
            job_id: int = ids[segment.cleaned]
            job = self.live.get(job_id)
            if job is None or job.file != segment.sequence:
                budget -= GARBAGE_COST
            elif job.tube.is_cleared(job):  # to put it again would bring it back
                self._forget(job)
                budget -= GARBAGE_COST
            else:
                size = put_size(job)
                if not self._fits_tail(size):
                    if self.disk_is_full and not self.may_leave_tail:  # smaller jobs may still fit
                        budget -= GARBAGE_COST
                        segment.cleaned += 1
                        continue
                    if not self._may_move_into(self._smallest(size), segment):
                        self.stuck_on = size
                        break
                    self.may_leave_tail = False
                self._forget(job)
                self._append_put(job, size)
                self.migrated += 1
                budget -= size
            segment.cleaned += 1
        self.look_at_room()
        return not segment.live

    def _may_move_into(self, spare: Spare | None, oldest: Segment) -> bool:
        """Whether jobs of the oldest segment may be moved into a spare: not if that leaves none for larger jobs."""
        if spare is None:
            return False
        needed = self._needed(0)
        if oldest.size - SEGMENT_OVERHEAD >= needed:
            return True
        return any(_capacity(other) >= needed for other in self.spares if other is not spare)

    def close_segments(self) -> None:
        """All but the tail are on the disk, some cut to what is in them."""
        for segment in reversed(self.segments[:-1]):
            if segment.is_closed:
                break
            segment.is_closed = True
            if segment.is_cut:
                self._cut(segment)
        self.look_at_room()

    def remove_oldest(self) -> Segment:
        """The oldest segment is none any more: what becomes of its file is the caller's."""
        segment = self.segments.pop(0)
        self.is_cleaning = self.may_leave_tail = False
        assert not segment.live, f"{segment.name} still has jobs"
        del self.by_sequence[segment.sequence]
        self.disk_size -= segment.size
        self.record_size -= segment.end - HEADER_SIZE
        self.stuck_on = 0
        self.largest_live = max([other.live for other in self.segments[:-1]], default=0)
        self.look_at_room()
        return segment

    def drop_spare(self) -> Spare:
        """A spare that is not needed is none any more: its file is the caller's to remove."""
        spare = self._droppable()
        assert spare is not None, "`next_step` has said DROP_SPARE"
        self.spares.remove(spare)
        self.spare_room -= _capacity(spare)
        self.disk_size -= spare.size
        self.look_at_room()
        return spare

    def adopt(
        self, segments: list[Segment], spares: list[Spare], next_id: int, sequence: int, commit_number: int
    ) -> None:
        """Begin behind what is there at the start.

        Args:
            segments: oldest first; nothing is appended to them, unless `reopen` follows.
            spares: files of zeros.
            next_id: the smallest id that has never been given.
            sequence, commit_number: of the last segment and the last commit.
        """
        self.segments = segments
        self.by_sequence = {segment.sequence: segment for segment in segments}
        for job in self.live.values():
            size = put_size(job)
            segment = self.by_sequence[job.file]
            segment.live += size
            self.live_size += size
        self.largest_live = max([segment.live for segment in segments], default=0)
        self.disk_size = sum([segment.size for segment in segments])
        for spare in spares:
            self.add_spare(spare)
        self.record_size = sum([segment.end - HEADER_SIZE for segment in segments])
        self.next_id = next_id
        self.sequence = sequence
        self.commit_number = commit_number
        self.look_at_room()

    def may_put(self) -> bool:
        """Whether a small job would find room."""
        return not self.lacks(PUT_SIZE)

    def reopen(self) -> Segment:
        """Let the newest segment be the tail again; its file is the caller's to open."""
        tail = self.segments[-1]
        tail.is_closed = False
        tail.written = tail.durable = tail.end
        self.look_at_room()
        return tail

    def cut(self) -> Segment | None:
        """The newest segment, which is closed, has so much space behind its records that its file is to be cut."""
        if not self.segments:
            return None
        newest = self.segments[-1]
        if newest.size - newest.end <= self.segment_size >> 4:
            return None
        self._cut(newest)
        return newest

    def _cut(self, segment: Segment) -> None:
        """A segment has been cut; so that its records would fit in again, if it were a spare."""
        self.disk_size -= segment.size
        segment.size = cut_size(segment)
        self.disk_size += segment.size

    def check(self) -> None:
        """Verify every invariant there is."""
        live: dict[int, int] = {}
        for job in self.live.values():
            if not job.file and job.tube.is_cleared(job):
                continue
            assert job.file in self.by_sequence, f"job {job.id} is in no segment"
            live[job.file] = live.get(job.file, 0) + put_size(job)
        for segment in self.segments:
            assert self.by_sequence[segment.sequence] is segment
            assert segment.live == live.get(segment.sequence, 0)
            assert segment.durable <= segment.end <= segment.size
        assert sorted(self.by_sequence) == [segment.sequence for segment in self.segments]
        assert self.live_size == sum(live.values())
        sizes = [segment.size for segment in self.segments] + [spare.size for spare in self.spares]
        assert self.disk_size == sum(sizes)
        assert self.record_size == sum(segment.end - HEADER_SIZE for segment in self.segments)
        assert self.spare_room == sum(_capacity(spare) for spare in self.spares)
        assert self.largest_live >= max([segment.live for segment in self.segments[:-1]], default=0)
        assert self._waste() == sum(segment.size - segment.end for segment in self.segments) - self._tail_room()
        assert self.pending == sum(COMMIT_SIZE + batch.size for batch in self.batches)
        for batch in self.batches:
            assert batch.segment.sequence in self.by_sequence


def _capacity(spare: Spare) -> int:
    """How long a record can be that goes into it first."""
    return spare.size - SEGMENT_OVERHEAD


def cut_size(segment: Segment) -> int:
    """Bytes of a segment's file when it has been cut."""
    return min(segment.end + CLOCK_SIZE, segment.size)


class NoRoomError(Exception):
    """Even the room that is kept for changes is used up."""
