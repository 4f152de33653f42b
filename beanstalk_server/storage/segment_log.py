"""Encodes what a queue's changes are to leave in the segments, in batches, and moves jobs out of the oldest segment.

The log is told of changes; it keeps track of which segment holds which job, and hands out what has to be written. Where
there is room, and what should be done about it, `room.py` decides. The log does nothing by itself: it must never touch
a file.

Cleaning always takes the oldest segment, so that no record goes before one that it undoes: a DELETE before its PUT, or
a PUT before an earlier one of the same job.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.job import Job
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.stored_job import StoredChange, StoredJob
from beanstalk_server.queue.table import JobTable
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
from beanstalk_server.storage.room import (
    BATCH_OVERHEAD,
    CLEANING_SLICE,
    URGENT_CLEANING_SLICE,
    Room,
    Spare,
)
from beanstalk_server.storage.segment import Segment

CLOCK_TOLERANCE: Final = 10_000_000
"""A wall clock that differs from what was told by no more is not told anew, in nanoseconds: a tick. The two clocks are
read one after the other, and a process may have to wait in between. What adds up is told when it is more."""

GARBAGE_COST: Final = 16
"""What a record that is garbage costs a slice of cleaning, in bytes."""

SMALL_CLEAR: Final = 1024
"""A clear of no more bytes is taken from the room that is kept for changes; a larger one needs room as a put does."""


class NoRoomError(Exception):
    """Even the room that is kept for changes is used up."""


class CommitBatch:
    """Records that go into one segment in one piece."""

    def __init__(self, segment: Segment, spare: Spare | None) -> None:
        self.segment = segment
        self.spare = spare  # the file that becomes the segment with this batch, if it is its first
        self.offset = segment.end
        self.chunks: list[bytes] = [b""]  # the first is its COMMIT record
        self.size = 0  # bytes of its records, without that one


class SegmentLog:
    """The segments, and the batches that are to be written.

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
        self.draw_salt = draw_salt
        self.boot = boot
        self.clock_offset = 0  # nanoseconds from the times of jobs to the wall clock
        self.told_offset = 0  # wall clock less the server's clock, as a CLOCK says; nanoseconds
        self.has_told_clock = False  # since the start
        self.segments: list[Segment] = []  # oldest first
        self.by_sequence: dict[int, Segment] = {}
        self.room = Room(self.segments, segment_size, on_admission)
        self.batches: list[CommitBatch] = []  # to be written; the last one is open
        self.sequence = 0  # of the last segment
        self.commit_number = 0  # of the last commit
        self.next_id = 1
        self._change = StoredChange()  # these two are filled anew for each record
        self._stored = StoredJob()
        self.written = 0  # records
        self.migrated = 0  # of them, jobs that cleaning has moved
        self.may_leave_tail = False  # cleaning has nothing left that fits into it

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
        self.segments.extend(segments)
        for segment in segments:
            self.by_sequence[segment.sequence] = segment
            segment.live = 0
        for job in self.live.values():
            self.by_sequence[job.file].live += put_size(job)
        self.next_id = next_id
        self.sequence = sequence
        self.commit_number = commit_number
        room = self.room
        room.adopt()
        for spare in spares:
            room.add_spare(spare)
        room.review()

    # What the journal is told

    def put(self, job: Job) -> bool:
        """Take note of a whole job, which takes the place of the one with its id. False when there is no room."""
        size = put_size(job)
        room = self.room
        if not room.is_before_put_end(size):
            room.review()
            if not room.is_before_put_end(size) and room.spare_needed(size):
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
        change = self._change
        change.describe(job, self.clock_offset)
        self._append(segment, encode_change(change, segment.seed))
        if segment.end > self.room.change_end:
            self.room.review()

    def delete(self, job: Job) -> None:
        """Take note that a job is gone."""
        segment = self._make_place(DELETE_SIZE)
        self._append(segment, encode_delete(job.id, segment.seed))
        self._forget(job)
        self.room.stuck_on = 0
        if segment.end > self.room.change_end:
            self.room.review()

    def clear(self, tube_name: str, reserved_ids: list[int]) -> bool:
        """Take note that all jobs of a tube but these are gone; `forget` follows for each. False without room."""
        size = clear_size(tube_name, reserved_ids)
        room = self.room
        has_place = size + BATCH_OVERHEAD <= room.tail_room() or room.smallest_spare(size) is not None
        if not has_place or (size > SMALL_CLEAR and room.spare_needed(size)):
            return False
        segment = self._make_place(size)
        self._append(segment, encode_clear(tube_name, reserved_ids, segment.seed))
        if segment.end > room.change_end:
            room.review()
        return True

    def forget(self, job: Job) -> None:
        """A job that a clear has ended is garbage, and in the table no more."""
        self._forget(job)
        self.room.stuck_on = 0

    def append(self, job: Job) -> None:
        """Take note of a whole job, without regard to the headroom.

        Raises:
            NoRoomError: it fits nowhere.
        """
        self._append_put(job, put_size(job))

    def _append_put(self, job: Job, size: int) -> None:
        segment = self._make_place(size, True)
        stored = self._stored
        stored.describe(job, self.clock_offset)
        self._append(segment, encode_put(stored, segment.seed))
        stored.body = b""  # it may be large, and must not outlive the job
        job.file = segment.sequence
        segment.ids.append(job.id)
        segment.live += size
        room = self.room
        room.live_size += size
        if segment.end > room.change_end:
            room.review()

    def _forget(self, job: Job) -> None:
        """A job's record is garbage."""
        if job.file:
            size = put_size(job)
            self.by_sequence[job.file].live -= size
            self.room.live_size -= size
            job.file = 0

    def _append(self, segment: Segment, record: bytes) -> None:
        size = len(record)
        batch = self.batches[-1]
        batch.chunks.append(record)
        batch.size += size
        self._count(segment, size)
        self.written += 1

    def _count(self, segment: Segment, size: int) -> None:
        """So many bytes are appended."""
        room = self.room
        segment.end += size
        room.record_size += size
        room.pending += size

    def _make_place(self, size: int, is_job: bool = False) -> Segment:
        """The segment that the next record goes into; a batch of it is open.

        Raises:
            NoRoomError: all room is used up.
        """
        room = self.room
        if self.segments:
            segment = self.segments[-1]
            is_open = bool(self.batches) and self.batches[-1].segment is segment
            needed = size if is_open else size + BATCH_OVERHEAD
            if needed <= room.tail_room() and not (is_job and room.is_too_much(segment, size)):
                if not is_open:
                    self._open_batch(segment, None)
                return segment
        spare = room.smallest_spare(size)
        if spare is not None:
            return self._begin_segment(spare)
        raise NoRoomError("no space is left, not even what was set aside")

    def _begin_segment(self, spare: Spare) -> Segment:
        """Make a spare the tail; a batch of it is open."""
        self.room.begin_segment(spare)
        self.sequence += 1
        segment = Segment(self.sequence, spare.size, self.draw_salt())
        self.segments.append(segment)
        self.by_sequence[segment.sequence] = segment
        self._open_batch(segment, spare)
        return segment

    def _open_batch(self, segment: Segment, spare: Spare | None) -> None:
        self.batches.append(CommitBatch(segment, spare))
        self._count(segment, COMMIT_SIZE)
        if spare is not None or not self.has_told_clock:
            self._tell_clock()

    def _tell_clock(self) -> None:
        batch = self.batches[-1]
        segment = batch.segment
        batch.chunks.append(encode_clock(self.told_offset, self.boot, segment.seed))
        batch.size += CLOCK_SIZE
        self._count(segment, CLOCK_SIZE)
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
        if batches and abs(clock_offset - self.told_offset) > CLOCK_TOLERANCE and self._has_place_for_clock():
            self.set_clocks(clock_offset)
            self._tell_clock()
        self.batches = []
        self.room.pending = 0
        for batch in batches:
            segment = batch.segment
            self.commit_number += 1
            batch.chunks[0] = encode_commit(
                self.commit_number, segment.durable, batch.size, self.next_id, written_at, segment.seed
            )
        if self.room.admits != ALL:
            self.room.review()
        return batches

    def set_clocks(self, clock_offset: int) -> None:
        """The wall clock less the server's clock, which the times of jobs are by; nanoseconds."""
        self.clock_offset = self.told_offset = clock_offset

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
        if self.room.tail_room() >= BATCH_OVERHEAD:
            self._open_batch(self.segments[-1], None)
        else:
            spare = self.room.smallest_spare(CHANGE_SIZE)
            if spare is not None and self.room.may_begin(spare):
                self.seal()  # that there is a next segment says it too
        return self.take(written_at, clock_offset)

    def confirm(self, batches: list[CommitBatch], synced: Segment | None) -> None:
        """What `take` has given is written.

        Args:
            synced: the segment that was written last, if all of it is on the disk.
        """
        has_begun = False
        for batch in batches:
            batch.segment.written = batch.offset + COMMIT_SIZE + batch.size
            if batch.spare is not None:
                batch.segment.durable = batch.segment.written
                has_begun = True
        if synced is not None:  # what was written before, without a sync, is on the disk too
            synced.durable = synced.written
        if has_begun:
            self._close_segments()

    # What becomes of segments

    def seal(self) -> None:
        """Write no more into the tail, so that it can be cleaned; a spare is the tail now."""
        spare = self.room.smallest_spare(CHANGE_SIZE)
        assert spare is not None, "`next_step` has said SEAL"
        self._begin_segment(spare)
        self.room.review()

    def clean(self) -> bool:
        """Put jobs that the oldest segment has into the tail once more: a slice of them.

        Returns:
            Whether it has none any more. `remove_oldest` may follow when all that is to be written is on the disk.
        """
        segment = self.segments[0]
        room = self.room
        budget = CLEANING_SLICE if room.admits == ALL else URGENT_CLEANING_SLICE
        room.is_cleaning = True
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
                if not room.fits_tail(size):
                    if room.disk_is_full and not self.may_leave_tail:  # smaller jobs may still fit
                        budget -= GARBAGE_COST
                        segment.cleaned += 1
                        continue
                    if not room.may_move_into(room.smallest_spare(size), segment):
                        room.stuck_on = size
                        break
                    self.may_leave_tail = False
                self._forget(job)
                self._append_put(job, size)
                self.migrated += 1
                budget -= size
            segment.cleaned += 1
        room.review()
        return not segment.live

    def remove_oldest(self) -> Segment:
        """Drop the oldest segment, which has no job any more; to remove or recycle its file is left to the caller."""
        segment = self.segments.pop(0)
        assert not segment.live, f"{segment.name} still has jobs"
        del self.by_sequence[segment.sequence]
        self.may_leave_tail = False
        self.room.remove_oldest(segment)
        return segment

    def _close_segments(self) -> None:
        """All but the tail are on the disk, some cut to what is in them."""
        for segment in reversed(self.segments[:-1]):
            if segment.is_closed:
                break
            segment.is_closed = True
            if segment.is_cut:
                self.room.resize(segment, cut_size(segment))
        self.room.review()

    def reopen(self) -> Segment:
        """Let the newest segment be the tail again; to open its file is left to the caller."""
        tail = self.segments[-1]
        tail.is_closed = False
        tail.written = tail.durable = tail.end
        self.room.review()
        return tail

    def cut_newest(self) -> Segment | None:
        """Cut the newest segment, which is closed, if much space is behind its records; the caller cuts its file."""
        if not self.segments:
            return None
        newest = self.segments[-1]
        if newest.size - newest.end <= self.room.segment_size >> 4:
            return None
        self.room.resize(newest, cut_size(newest))
        return newest

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
        assert self.room.live_size == sum(live.values())
        assert self.room.pending == sum(COMMIT_SIZE + batch.size for batch in self.batches)
        for batch in self.batches:
            assert batch.segment.sequence in self.by_sequence
        self.room.check()


def cut_size(segment: Segment) -> int:
    """Bytes of a segment's file when it has been cut: so that its records would fit in again, if it were a spare."""
    return min(segment.end + CLOCK_SIZE, segment.size)
