"""Where records go: which segment has room, which job is where, what is garbage, and what should be done about it.

The log is told of changes and encodes them; it hands out what has to be written and says what should be done next to
have room ahead and no garbage behind. It does nothing itself: must never touch a file.

Segments stand in the order of their numbers; the last one, the tail, is appended to. Room ahead is the rest of the
tail and the spares: files of zeros that are no segments yet. Garbage is got rid of at the other end: the jobs that the
oldest segment still has are put into the tail once more, and it goes. Always the oldest, so that no record goes
before one that it undoes: a DELETE before its PUT, or a PUT before an earlier one of the same job.

Four rules, in bytes, S being the size of a segment:

- Whatever is accepted leaves enough room to move the jobs of the oldest segment. What is free beside that is the
  *surplus*: `_surplus` counts it, and takes into account that a record does not span two files.
- A put leaves a surplus of a *headroom* besides, an eighth of S and a sixteenth of the live records, for changes and
  deletions. They are never refused: when the surplus is used up, the log is *congested*, and whoever wants to change
  something waits until cleaning has turned garbage into room. There is enough garbage then, because only garbage has
  used up the headroom.
- Half of S more than that is wanted ahead.
- All files together take no more than twice the live records and two segments. Only a job that must be moved, and for
  which there is no place, may exceed that, while it is moved; and a put that is larger than the step in which it is
  looked at.

The log is congested, too, when much is waiting to be written: a commit has a size, so that nobody waits long for his.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.job import Job, stored_deadline, stored_state
from beanstalk_server.queue.table import JobTable
from beanstalk_server.storage.record import (
    CHANGE_SIZE,
    COMMIT_SIZE,
    DELETE_SIZE,
    PUT_SIZE,
    encode_change,
    encode_commit,
    encode_delete,
    encode_put,
    put_size,
)
from beanstalk_server.storage.segment import HEADER_SIZE, Segment

SLICE: Final = 1 << 16
LARGE_SLICE: Final = 1 << 18
"""Bytes of records that one slice of cleaning moves; the large one, about two milliseconds, while somebody waits."""

COMMIT_LIMIT: Final = 1 << 20
"""Bytes of records that may wait to be written, before whoever wants to add to them waits too."""

ONE: Final = COMMIT_SIZE + CHANGE_SIZE
"""Bytes of a change in a commit of its own: what there must be room for, for a change to be accepted."""

FIRST: Final = HEADER_SIZE + COMMIT_SIZE
"""Bytes of a file that its first record does not get."""

GLANCE: Final = 16
"""What it takes to look at a record that is garbage, in the same unit."""

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
        on_congestion: called when it becomes congested, and when it no longer is.
    """

    def __init__(
        self,
        live: JobTable,
        segment_size: int,
        draw_salt: Callable[[], int],
        on_congestion: Callable[[bool], None],
    ) -> None:
        self.live = live
        self.segment_size = segment_size
        self.draw_salt = draw_salt
        self.on_congestion = on_congestion
        self.clock_offset = 0  # wall clock less the server's clock, nanoseconds
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
        self.pending = 0  # bytes of records that are to be written
        self.largest = segment_size  # bytes of the largest segment, or of a usual one
        self.largest_record = 0  # no job has a longer one, in bytes
        self.stuck_on = 0  # bytes of the record that cleaning found no place for, or 0
        self.disk_is_full = False  # what is given away now may not be had again
        self.is_congested = False
        # Offsets in the tail: up to here, nothing needs to be looked at.
        self.put_end = 0
        self.end = 0

    # What the journal is told

    def put(self, job: Job) -> bool:
        """Take note of a whole job, which takes the place of the one with its id. False when there is no room."""
        size = put_size(job)
        segments = self.segments
        if (not segments or segments[-1].end + size + COMMIT_SIZE > self.put_end) and not self._may_put(size):
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

    def _append_put(self, job: Job, size: int) -> None:
        segment = self._make_place(size)
        created_at = job.created_at + self.clock_offset
        deadline = stored_deadline(job, self.clock_offset)
        self._append(segment, encode_put(job, stored_state(job), created_at, deadline, segment.seed))
        job.file = segment.sequence
        segment.ids.append(job.id)
        segment.live += size
        if size > segment.largest_record:
            segment.largest_record = size
            self.largest_record = max(self.largest_record, size)
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
        portion = self.portions[-1]
        portion.chunks.append(record)
        portion.size += size
        segment.end += size
        self.record_size += size
        self.pending += size
        self.written += 1

    def _make_place(self, size: int) -> Segment:
        """The segment that the next record goes into; a portion of it is open.

        Raises:
            NoRoomError: all room is used up.
        """
        if self.segments:
            segment = self.segments[-1]
            is_open = bool(self.portions) and self.portions[-1].segment is segment
            needed = size if is_open else size + COMMIT_SIZE
            if needed <= self._tail_room():
                if not is_open:
                    self._open_portion(segment, None)
                return segment
        spare = self._smallest(size)
        if spare is not None:
            return self._begin_segment(spare)
        raise NoRoomError("no space is left, not even what was set aside")

    def _begin_segment(self, spare: Spare) -> Segment:
        """Make a spare the tail; a portion of it is open."""
        self.spares.remove(spare)
        self.spare_room -= _capacity(spare)
        if self.segments:
            before = self.segments[-1]
            # What is left of its space is worth giving back, where it can be had again.
            before.is_cut = not self.disk_is_full and before.size - before.end > self.segment_size >> 4
        self.sequence += 1
        segment = Segment(self.sequence, spare.size, self.draw_salt())
        self.segments.append(segment)
        self.largest = max(self.largest, segment.size)
        self.by_sequence[segment.sequence] = segment
        self._open_portion(segment, spare)
        return segment

    def _open_portion(self, segment: Segment, spare: Spare | None) -> None:
        self.portions.append(Portion(segment, spare))
        segment.end += COMMIT_SIZE
        self.record_size += COMMIT_SIZE
        self.pending += COMMIT_SIZE

    # What is to be written

    def take(self, written_at: int) -> list[Portion]:
        """What has to be written now, in this order; the next record begins a new portion.

        Args:
            written_at: wall clock, nanoseconds.
        """
        portions = self.portions
        self.portions = []
        self.pending = 0
        for portion in portions:
            segment = portion.segment
            self.number += 1
            portion.chunks[0] = encode_commit(
                self.number, segment.durable, portion.size, self.next_id, written_at, segment.seed
            )
        if self.is_congested:
            self.look_at_room()
        return portions

    def take_mark(self, written_at: int) -> list[Portion]:
        """What has to be written so that it is known how much has reached the disk: a commit, of nothing if need be.

        None, when there is no place for it, or no segment.
        """
        if self.portions:
            return self.take(written_at)
        if not self.segments or self.segments[-1].is_closed:
            return []
        if self._tail_room() >= COMMIT_SIZE:
            self._open_portion(self.segments[-1], None)
        elif self.spares and self._surplus_if(0, _capacity(self.spares[0]), self.spares[0], True) >= 0:
            self.seal()  # that there is a next segment says it too
        return self.take(written_at)

    # Room

    def _tail_room(self) -> int:
        if not self.segments:
            return 0
        tail = self.segments[-1]
        return 0 if tail.is_closed else tail.size - tail.end

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

    def _to_move(self, size: int) -> int:
        """Bytes that moving the oldest segment takes at the most, when there is one more job of this size."""
        live = min(self.live_size + size, max(self.largest - FIRST, size))
        oldest = self._oldest()
        if oldest is not None and oldest.cleaned:  # its space comes back when the rest of it has been moved
            live = oldest.live + max(live - (oldest.size - FIRST), 0)
        return live + max(live - max(self.largest_record, size), 0) // SLICE * COMMIT_SIZE

    def _surplus(self) -> int:
        """Bytes of small records that fit beside the jobs of the oldest segment, wherever those are moved.

        A number below 0 when those may not fit.
        """
        return self._surplus_if(0, self._tail_room(), None, self._oldest() is not None)

    def _surplus_if(self, size: int, tail_room: int, taken: Spare | None, has_oldest: bool) -> int:
        """`_surplus`, if there were one more job of this size, so much room in the tail, and one spare less.

        Args:
            has_oldest: whether there is a segment before the tail; else what has to be moved is in the tail itself.
        """
        left = self._to_move(size)
        record = max(self.largest_record, size)
        tail_room = max(tail_room - 2 * COMMIT_SIZE, 0)  # what is moved is a commit, and a mark follows
        total = 0
        for capacity in sorted([_capacity(spare) for spare in self.spares if spare is not taken], reverse=True):
            if left <= capacity:
                total += capacity - left
                left = 0
            else:
                left -= max(capacity - record, 0)  # the next record may be the one that does not fit any more
        if left <= 0:
            return total + tail_room
        if not has_oldest:
            return -left
        return tail_room - left if left <= tail_room else max(tail_room - record, 0) - left

    def _may_put(self, size: int) -> bool:
        """Whether a job fits, and leaves the headroom."""
        needed = size + COMMIT_SIZE
        tail_room = self._tail_room()
        headroom = self.headroom()
        if needed <= tail_room:
            return self._surplus_if(size, tail_room - needed, None, len(self.segments) > 1) >= headroom
        spare = self._smallest(size)  # the rest of the tail is given up
        if spare is None:
            return False
        return self._surplus_if(size, _capacity(spare) - size, spare, len(self.segments) > 0) >= headroom

    def lacks(self, size: int) -> int:
        """How large a spare would have to be, in bytes, for a put to find room, or to be nearer to it; 0 if it fits.

        Args:
            size: of the put record.
        """
        if self._may_put(size):
            return 0
        taken = None
        if size + COMMIT_SIZE > self._tail_room():
            taken = self._smallest(size)
            if taken is None:
                return max(FIRST + size, self.segment_size)
        return self._spare_size(size, taken)

    def spare_size(self) -> int:
        """How large the next spare should be: a segment, or larger for a job that is larger."""
        if self.stuck_on:
            return max(FIRST + self.stuck_on, self.segment_size)
        return self._spare_size(0, None)

    def _spare_size(self, size: int, taken: Spare | None) -> int:
        if max(self.largest_record, size) + FIRST > self.segment_size:
            to_move = self._to_move(size)
            if not any(_capacity(spare) >= to_move for spare in self.spares if spare is not taken):
                return max(FIRST + to_move, self.segment_size)
        return self.segment_size

    def look_at_room(self) -> None:
        """Find out how far puts and changes may go, and whether the log is congested."""
        tail_room = self._tail_room()
        surplus = self._surplus()
        step = min(self.segment_size >> 4, SLICE)
        soon = self.headroom() + step
        # Where not even cleaning is certain to find room, changes go on as long as there is any.
        left = surplus if surplus >= 0 else max(tail_room, self.spare_room)
        is_congested = self.pending > COMMIT_LIMIT or left < ONE
        if surplus < soon and not is_congested and (self.disk_is_full or self._is_at_limit()):
            is_congested = self._can_clean()  # and so make the room that puts need
        if tail_room:
            end = self.segments[-1].end
            room = min(tail_room, max(COMMIT_LIMIT - self.pending, 0))
            self.put_end = end + min(room, max(surplus - soon, 0) >> 1)
            self.end = end + min(room, surplus - soon if surplus >= soon else min(left - ONE, step))
        else:
            self.put_end = self.end = 0
        self._set_congested(is_congested)

    def _set_congested(self, is_congested: bool) -> None:
        if is_congested != self.is_congested:
            self.is_congested = is_congested
            self.on_congestion(is_congested)

    def _much_garbage(self) -> int:
        """Bytes of garbage that are worth a cleaning."""
        much = (self.segment_size >> 4) + (self.live_size >> 5)
        return much >> 3 if self.is_congested else much

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
        limit = self.limit()
        headroom = self.headroom()
        is_short = surplus < headroom + (self.segment_size >> 1)
        is_large = self.disk_size > limit
        if is_short and may_allocate and self.disk_size + self.spare_size() <= limit:
            return ALLOCATE
        if is_large and self._droppable() is not None:
            return DROP_SPARE
        is_worth_it = self._garbage() >= self._much_garbage()
        if surplus < ONE and not is_worth_it:
            # Behind the records of a segment there may be more room than a job needs; a change can use it.
            is_worth_it = self._garbage() + self._waste() >= self.segment_size >> 6
        if (is_short or is_large) and is_worth_it:
            if oldest is not None:
                return CLEAN
            if self.segments and self.spares and (is_large or 0 <= surplus < ONE):
                return SEAL
        if surplus < headroom and may_allocate:
            return ALLOCATE
        return NOTHING

    def _is_at_limit(self) -> bool:
        return self.disk_size + self.segment_size > self.limit()

    def _can_clean(self) -> bool:
        return self._oldest() is not None and not self.stuck_on and self._garbage() >= self._much_garbage()

    def _droppable(self) -> Spare | None:
        """A spare that is not needed; the largest."""
        wanted = self.headroom() + (self.segment_size >> 1)
        tail_room = self._tail_room()
        has_oldest = self._oldest() is not None
        for spare in sorted(self.spares, key=_capacity, reverse=True):
            if self._surplus_if(0, tail_room, spare, has_oldest) >= wanted:
                return spare
        return None

    def wants(self, size: int) -> bool:
        """Whether a file of this size should become a spare, when it is a segment no longer."""
        if self.disk_is_full:
            return size > FIRST + ONE
        surplus = self._surplus()
        is_short = surplus < self.headroom() + (self.segment_size >> 1)
        return is_short and size >= self.spare_size() and self.disk_size + size <= self.limit()

    def seal(self) -> None:
        """Write no more into the tail, so that it can be cleaned; a spare is the tail now."""
        self._begin_segment(self.spares[0])
        self.look_at_room()

    def _oldest(self) -> Segment | None:
        """The oldest segment, if it is not the tail."""
        return self.segments[0] if len(self.segments) > 1 else None

    def _garbage(self) -> int:
        """Bytes of records that cleaning everything would get rid of: its own commits are not among them."""
        commits = (4 + self.segment_size // SLICE) * COMMIT_SIZE
        return self.record_size - self.live_size - len(self.segments) * commits

    def _waste(self) -> int:
        """Bytes behind the records of segments that nothing is appended to."""
        taken = self.disk_size - self.spare_room - len(self.spares) * FIRST
        return taken - self.record_size - len(self.segments) * HEADER_SIZE - self._tail_room()

    # Cleaning

    def clean(self) -> bool:
        """Put jobs that the oldest segment has into the tail once more: a slice of them.

        Returns:
            Whether it has none any more. `remove_oldest` may follow when all that is to be written is on the disk.
        """
        segment = self.segments[0]
        budget = LARGE_SLICE if self.is_congested else SLICE
        ids = segment.ids
        last = len(ids)
        while budget > 0 and segment.cleaned < last and segment.live:
            number: int = ids[segment.cleaned]
            job = self.live.get(number)
            if job is None or job.file != segment.sequence:
                budget -= GLANCE
            else:
                size = put_size(job)
                if size + COMMIT_SIZE > self._tail_room() and self._smallest(size) is None:
                    self.stuck_on = size
                    break
                self._forget(job)
                self._append_put(job, size)
                self.migrated += 1
                budget -= size
            segment.cleaned += 1
        self.look_at_room()
        return not segment.live

    def close_segments(self) -> None:
        """All but the tail are on the disk, some cut to what is in them."""
        for segment in reversed(self.segments[:-1]):
            if segment.is_closed:
                break
            segment.is_closed = True
            if segment.is_cut:
                self.disk_size -= segment.size - segment.end
                segment.size = segment.end

    def remove_oldest(self) -> Segment:
        """The oldest segment is none any more: what becomes of its file is the caller's."""
        segment = self.segments.pop(0)
        assert not segment.live, f"{segment.name} still has jobs"
        del self.by_sequence[segment.sequence]
        self.disk_size -= segment.size
        self.record_size -= segment.end - HEADER_SIZE
        self.stuck_on = 0
        if self.largest > self.segment_size:
            self.largest = max([other.size for other in self.segments] + [self.segment_size])
        if segment.largest_record == self.largest_record:
            self.largest_record = max([other.largest_record for other in self.segments], default=0)
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

    def adopt(self, segments: list[Segment], spares: list[Spare], next_id: int, sequence: int, number: int) -> None:
        """Begin behind what is there at the start.

        Args:
            segments: oldest first; nothing is appended to them, unless `reopen` follows.
            spares: files of zeros.
            next_id: the smallest id that has never been given.
            sequence, number: of the last segment and the last commit.
        """
        self.segments = segments
        self.by_sequence = {segment.sequence: segment for segment in segments}
        for job in self.live.values():
            size = put_size(job)
            segment = self.by_sequence[job.file]
            segment.live += size
            segment.largest_record = max(segment.largest_record, size)
            self.live_size += size
        self.largest_record = max([segment.largest_record for segment in segments], default=0)
        self.largest = max([segment.size for segment in segments] + [self.segment_size])
        self.disk_size = sum([segment.size for segment in segments])
        for spare in spares:
            self.add_spare(spare)
        self.record_size = sum([segment.end - HEADER_SIZE for segment in segments])
        self.next_id = next_id
        self.sequence = sequence
        self.number = number
        self.look_at_room()

    def may_put(self) -> bool:
        """Whether a small job would find room."""
        return self._may_put(PUT_SIZE)

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
        self.disk_size -= newest.size - newest.end
        newest.size = newest.end
        return newest

    def check(self) -> None:
        """Verify every invariant there is."""
        live: dict[int, int] = {}
        for job in self.live.values():
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
        assert self.largest >= max([segment.size for segment in self.segments] + [self.segment_size])
        assert self.largest_record >= max([put_size(job) for job in self.live.values()], default=0)
        assert self._waste() == sum(segment.size - segment.end for segment in self.segments) - self._tail_room()
        assert self.pending == sum(COMMIT_SIZE + portion.size for portion in self.portions)
        for portion in self.portions:
            assert portion.segment.sequence in self.by_sequence


def _capacity(spare: Spare) -> int:
    """How long a record can be that goes into it first."""
    return spare.size - FIRST


class NoRoomError(Exception):
    """Even the room that is kept for changes is used up."""
