"""Where records go: which segment has room, which job is where, what is garbage, and what should be done about it.

The log is told of changes and encodes them; it hands out what has to be written and says what should be done next to
have room ahead and no garbage behind. It does nothing itself: must never touch a file.

Segments stand in the order of their numbers; the last one, the tail, is appended to. Room ahead is the rest of the
tail and the spares: files of zeros that are no segments yet. Garbage is got rid of at the other end: the jobs that the
oldest segment still has are put into the tail once more, and it goes. Always the oldest, so that no record goes
before one that it undoes: a DELETE before its PUT, or a PUT before an earlier one of the same job.

Three rules, in bytes, S being the size of a segment:

- A put must leave room for deletes and other changes, which are never refused: RESERVE for each job, a sixteenth of S,
  the garbage that they make before it is worth cleaning, and room to move what the oldest segment has.
- Half of S more than that is wanted ahead.
- All files together take no more than twice the live records and two segments, but for what is being cleaned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.job import Job, stored_deadline, stored_state, stored_time
from beanstalk_server.queue.table import JobTable
from beanstalk_server.storage.disk import File
from beanstalk_server.storage.record import (
    CHANGE_SIZE,
    CLOCK_SIZE,
    COMMIT_SIZE,
    DELETE_SIZE,
    NO_BOOT,
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

RESERVE: Final = COMMIT_SIZE + DELETE_SIZE
"""Bytes that are kept for each job: its deletion, in a commit of its own. (Less for the smallest jobs, so that the
reserve does not outgrow them.)"""

OPENING: Final = COMMIT_SIZE + CLOCK_SIZE
"""Bytes that may stand before the first record of a portion. (Behind its last, there is always room for one more
CLOCK.)"""

TOLERANCE: Final = 10_000_000
"""A wall clock that differs from what was told by no more is not told anew, in nanoseconds: a tick. The two clocks are
read one after the other, and a process may have to wait in between. What adds up is told when it is more."""

SLICE: Final = 1 << 16
MOST: Final = 1 << 18
"""Bytes of records that one slice of cleaning moves, as a rule and at the most: about two milliseconds."""

GLANCE: Final = 16
"""What it takes to look at a record that is garbage, in the same unit."""

SMALL: Final = 1024
"""A clear of no more bytes is taken from the room that is kept for changes; a larger one needs room as a put does."""

NOTHING: Final = 0
ALLOCATE: Final = 1
CLEAN: Final = 2
DROP_SPARE: Final = 3
SEAL: Final = 4
"""What should be done next."""


class Spare:
    """A file of zeros that will be a segment."""

    def __init__(self, name: str, file: File, size: int) -> None:
        self.name = name
        self.file = file
        self.size = size


class Portion:
    """Records that go into one segment in one piece."""

    def __init__(self, segment: Segment, spare: Spare | None) -> None:
        self.segment = segment
        self.spare = spare  # the file that becomes the segment with this portion, if it is its first
        self.offset = segment.end
        self.chunks: list[bytes] = [b""]  # the first is its COMMIT record
        self.size = 0  # bytes of its records, without that one


class Log:
    """The segments and what is to be written.

    Args:
        live: the broker's table of jobs.
        segment_size: bytes.
        draw_salt: draws a random number of 32 bits.
        boot: tells the boots of all machines apart, 16 bytes.
    """

    def __init__(self, live: JobTable, segment_size: int, draw_salt: Callable[[], int], boot: bytes = NO_BOOT) -> None:
        self.live = live
        self.segment_size = segment_size
        self.draw_salt = draw_salt
        self.boot = boot
        self.clock_offset = 0  # wall clock less the server's clock, as it is told to the replay; nanoseconds
        self.has_told_clock = False  # since the start
        self.segments: list[Segment] = []  # oldest first
        self.by_sequence: dict[int, Segment] = {}
        self.spares: list[Spare] = []
        self.spare_room = 0  # bytes of records that fit into them
        self.portions: list[Portion] = []  # to be written; the last one is open
        self.sequence = 0  # of the last segment
        self.number = 0  # of the last commit
        self.next_id = 1
        self.live_size = 0  # bytes of the records of all jobs
        self.record_size = 0  # bytes of all records that there are
        self.disk_size = 0  # bytes of all segments and spares
        self.written = 0  # records
        self.migrated = 0
        self.appended = 0  # bytes, since the last cleaning
        self.is_stuck = False  # the last cleaning did not fit

    # What the journal is told

    def put(self, job: Job) -> bool:
        """Take note of a whole job, which takes the place of the one with its id. False when there is no room."""
        size = put_size(job)
        if not self._has_room(size, self.reserve() + RESERVE):
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

    def delete(self, job: Job) -> None:
        """Take note that a job is gone."""
        segment = self._make_place(DELETE_SIZE)
        self._append(segment, encode_delete(job, segment.seed))
        self._forget(job)
        self.is_stuck = False

    def clear(self, tube_name: str, reserved_ids: list[int]) -> bool:
        """Take note that all jobs of a tube but these are gone; `forget` follows for each. False without room."""
        size = clear_size(tube_name, reserved_ids)
        if not self._has_room(size, 0 if size <= SMALL else self.reserve() + RESERVE):
            return False
        segment = self._make_place(size)
        self._append(segment, encode_clear(tube_name, reserved_ids, segment.seed))
        return True

    def forget(self, job: Job) -> None:
        """A job that a clear has ended is garbage, and in the table no more."""
        self._forget(job)
        self.is_stuck = False

    def _append_put(self, job: Job, size: int) -> None:
        segment = self._make_place(size)
        created_at = stored_time(job.created_at, self.clock_offset)
        deadline = stored_deadline(job, self.clock_offset)
        self._append(segment, encode_put(job, stored_state(job), created_at, deadline, segment.seed))
        job.file = segment.sequence
        segment.ids.append(job.id)
        segment.live += size
        self.live_size += size

    def _forget(self, job: Job) -> None:
        """A job's record is garbage."""
        if job.file:
            size = put_size(job)
            self.by_sequence[job.file].live -= size
            self.live_size -= size
            job.file = 0

    def _append(self, segment: Segment, record: bytes) -> None:
        size = len(record)
        portion = self.portions[-1]
        portion.chunks.append(record)
        portion.size += size
        segment.end += size
        self.record_size += size
        self.appended += size
        self.written += 1

    def _make_place(self, size: int) -> Segment:
        """The segment that the next record goes into; a portion of it is open.

        Raises:
            NoRoomError: all room is used up.
        """
        if self.segments:
            segment = self.segments[-1]
            is_open = bool(self.portions) and self.portions[-1].segment is segment
            needed = size if is_open else size + OPENING
            if needed <= self._tail_room():
                if not is_open:
                    self._open_portion(segment, None)
                return segment
        for spare in self.spares:
            if size <= _capacity(spare):
                return self._begin_segment(spare)
        raise NoRoomError("no space is left, not even what was set aside")

    def _begin_segment(self, spare: Spare) -> Segment:
        """Make a spare the tail; a portion of it is open."""
        self.spares.remove(spare)
        self.spare_room -= _capacity(spare)
        self.sequence += 1
        segment = Segment(self.sequence, spare.size, self.draw_salt())
        segment.file = spare.file
        self.segments.append(segment)
        self.by_sequence[segment.sequence] = segment
        self._open_portion(segment, spare)
        return segment

    def _open_portion(self, segment: Segment, spare: Spare | None) -> None:
        self.portions.append(Portion(segment, spare))
        segment.end += COMMIT_SIZE
        self.record_size += COMMIT_SIZE
        if spare is not None or not self.has_told_clock:
            self._tell_clock()

    def _tell_clock(self) -> None:
        portion = self.portions[-1]
        segment = portion.segment
        portion.chunks.append(encode_clock(self.clock_offset, self.boot, segment.seed))
        portion.size += CLOCK_SIZE
        segment.end += CLOCK_SIZE
        self.record_size += CLOCK_SIZE
        self.has_told_clock = True

    # What is to be written

    def take(self, written_at: int, clock_offset: int) -> list[Portion]:
        """What has to be written now, in this order; the next record begins a new portion.

        If the wall clock has been set, that is told at the end: it is true of all that stands before.

        Args:
            written_at: wall clock, nanoseconds.
            clock_offset: that less the server's clock.
        """
        portions = self.portions
        if portions and abs(clock_offset - self.clock_offset) > TOLERANCE and self._has_place_for_clock():
            self.clock_offset = clock_offset
            self._tell_clock()
        self.portions = []
        for portion in portions:
            segment = portion.segment
            self.number += 1
            portion.chunks[0] = encode_commit(
                self.number, segment.durable, portion.size, self.next_id, written_at, segment.seed
            )
        return portions

    def _has_place_for_clock(self) -> bool:
        tail = self.segments[-1]
        return tail.size - tail.end >= CLOCK_SIZE

    def take_mark(self, written_at: int, clock_offset: int) -> list[Portion]:
        """What has to be written so that it is known how much has reached the disk: a commit, of nothing if need be.

        None, when there is no place for it, or no segment.
        """
        if self.portions:
            return self.take(written_at, clock_offset)
        if not self.segments or self.segments[-1].is_closed:
            return []
        if self._tail_room() >= OPENING:
            self._open_portion(self.segments[-1], None)
        elif self.spares:  # that there is a next segment says it too
            self.seal()
        return self.take(written_at, clock_offset)

    # Room

    def room(self) -> int:
        """Bytes of records that fit into the tail and the spares."""
        return self._tail_room() + self.spare_room

    def _tail_room(self) -> int:
        if not self.segments:
            return 0
        tail = self.segments[-1]
        return 0 if tail.is_closed else max(tail.size - tail.end - CLOCK_SIZE, 0)

    def _has_room(self, size: int, reserve: int) -> bool:
        """Whether a record fits, and leaves so much room."""
        needed = size + OPENING
        tail_room = self._tail_room()
        if needed <= tail_room:
            return tail_room + self.spare_room - needed >= reserve
        if self.spare_room - needed < reserve:  # the rest of the tail is given up
            return False
        return any(size <= _capacity(spare) for spare in self.spares)

    def lacks(self, size: int) -> int:
        """How large a spare would have to be for a put of so many bytes to find room, or to be nearer to it; else 0."""
        if self._has_room(size, self.reserve() + RESERVE):
            return 0
        whole = HEADER_SIZE + OPENING + size + CLOCK_SIZE
        if whole <= self.segment_size or self._has_room(size, 0):
            return self.segment_size
        return -(-whole // 4096) * 4096

    def reserve(self) -> int:
        """Bytes that puts leave for deletes and other changes."""
        size = self.segment_size
        live = self.live_size
        deletions = min(RESERVE * len(self.live), (live * 3) >> 3)
        return deletions + (size >> 4) + min(live, size) + self._much_garbage()

    def _much_garbage(self) -> int:
        """Bytes of garbage that are worth a cleaning."""
        return max(self.segment_size >> 4, min(self.live_size, self.segment_size) >> 2)

    def add_spare(self, spare: Spare) -> None:
        self.spares.append(spare)
        self.spare_room += _capacity(spare)
        self.disk_size += spare.size
        self.is_stuck = False

    # What should be done

    def next_step(self, may_allocate: bool) -> int:
        """What should be done next: ALLOCATE a spare, CLEAN the oldest segment, DROP_SPARE, SEAL the tail, or NOTHING.

        Args:
            may_allocate: not right after the disk was found to be full.
        """
        size = self.segment_size
        limit = 2 * self.live_size + 2 * size
        oldest = self._oldest()
        room = self.room() - self.reserve()
        wanted = size >> 1
        if oldest is not None and not oldest.live:
            return CLEAN
        is_short = room < wanted
        is_large = self.disk_size > limit
        if is_short and may_allocate and self.disk_size + size <= limit:
            return ALLOCATE
        if is_large and self.spares and room >= _capacity(self.spares[-1]):
            return DROP_SPARE
        if (is_short or is_large) and not self.is_stuck and self._garbage() >= self._much_garbage():
            if oldest is not None:
                return CLEAN
            if is_large and self.segments and self.spares:
                return SEAL
        return NOTHING

    def seal(self) -> None:
        """Write no more into the tail, so that it can be cleaned; a spare is the tail now."""
        self._begin_segment(self.spares[0])

    def _oldest(self) -> Segment | None:
        """The oldest segment, if it is not the tail."""
        return self.segments[0] if len(self.segments) > 1 else None

    def _garbage(self) -> int:
        """Bytes of records that cleaning everything would get rid of."""
        return self.record_size - self.live_size - OPENING * len(self.segments)  # each begins with that

    # Cleaning

    def clean(self) -> bool:
        """Put jobs that the oldest segment has into the tail once more: a slice of them.

        A slice is the larger the more has been appended since the last: who cleans must be faster than who litters.

        Returns:
            Whether it has none any more. `remove` may follow when all that is to be written has reached the disk.
        """
        segment = self.segments[0]
        slice_size = min(SLICE + 2 * self.appended, MOST)
        budget = slice_size
        ids = segment.ids
        last = len(ids)
        while segment.cleaned < last and segment.live:
            number: int = ids[segment.cleaned]
            job = self.live.get(number)
            if job is None or job.file != segment.sequence:
                segment.cleaned += 1
                budget -= GLANCE
            elif job.tube.is_cleared(job):  # to put it again would bring it back
                self._forget(job)
                segment.cleaned += 1
                budget -= GLANCE
            else:
                size = put_size(job)
                if not self._has_room(size, 0):
                    self.is_stuck = True
                    break
                self._forget(job)
                self._append_put(job, size)
                segment.cleaned += 1
                self.migrated += 1
                budget -= size
            if budget <= 0:
                break
        self.appended = max(self.appended - (slice_size >> 1), 0)
        return not segment.live

    def close_segments(self) -> None:
        """All but the tail have been cut to what is in them."""
        for segment in reversed(self.segments[:-1]):
            if segment.is_closed:
                break
            segment.is_closed = True
            self.disk_size -= segment.size - segment.end
            segment.size = segment.end

    def remove_oldest(self) -> Segment:
        """The oldest segment is none any more: what becomes of its file is the caller's."""
        segment = self.segments.pop(0)
        assert not segment.live, f"{segment.name} still has jobs"
        del self.by_sequence[segment.sequence]
        self.disk_size -= segment.size
        self.record_size -= segment.end - HEADER_SIZE
        self.is_stuck = False
        return segment

    def drop_spare(self) -> Spare:
        """The last spare is none any more: its file is the caller's to remove."""
        spare = self.spares.pop()
        self.spare_room -= _capacity(spare)
        self.disk_size -= spare.size
        return spare

    def adopt(self, segments: list[Segment], next_id: int, sequence: int, number: int) -> None:
        """Begin behind what is there at the start.

        Args:
            segments: oldest first; nothing is appended to them.
            next_id: the smallest id that has never been given.
            sequence, number: of the last segment and the last commit.
        """
        self.segments = segments
        self.by_sequence = {segment.sequence: segment for segment in segments}
        for job in self.live.values():
            size = put_size(job)
            self.by_sequence[job.file].live += size
            self.live_size += size
        self.disk_size = sum([segment.size for segment in segments])
        self.record_size = sum([segment.end - HEADER_SIZE for segment in segments])
        self.next_id = next_id
        self.sequence = sequence
        self.number = number

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
        for portion in self.portions:
            assert portion.segment.sequence in self.by_sequence


def _capacity(spare: Spare) -> int:
    """How long a record can be that goes into it first."""
    return spare.size - HEADER_SIZE - OPENING - CLOCK_SIZE


class NoRoomError(Exception):
    """Even the room that is kept for changes is used up."""
