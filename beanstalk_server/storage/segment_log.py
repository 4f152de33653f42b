"""The log in memory: turns changes into records, and decides which segment each record goes to.

`upkeep.py` decides whether records fit and when to clean; `segment_writer.py` writes the batches. Must never touch a
file.

Cleaning moves the live jobs of the oldest segment to the tail, so that the segment can be removed. It always takes the
oldest, so that no record is removed before one that it undoes: a DELETE before its PUT, or a PUT before an earlier one
of the same job.

What is moved is written as it is now: a job that has got terms since, or has moved to a tube with a longer name, takes
more than before, and the room has to know that; and a held key takes less than the job whose key it was. A group is
written with what it has counted so far, so the LEAVE records before that are not needed any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_server.queue.groups import Group
from beanstalk_server.queue.job import NOT_IN_MEMORY, HeldKey, Holder, Job, Terms, Token
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.storage import upkeep
from beanstalk_server.storage.bodies import Bodies
from beanstalk_server.storage.record import (
    CHANGE_SIZE,
    CLOCK_SIZE,
    COMMIT_SIZE,
    DELETE_SIZE,
    LEAVE_SIZE,
    NO_BOOT,
    PUT_SIZE,
)
from beanstalk_server.storage.record_writer import (
    RecordWriter,
    change_size,
    clear_size,
    encode_commit,
    hold_size,
    own_size,
    put_size,
)
from beanstalk_server.storage.segment import Location, Segment

CLOCK_TOLERANCE: Final = 10_000_000
"""Nanoseconds. A step of the wall clock up to this long is not recorded, because the two clocks are read one after the
other, and the process may have to wait in between. Short steps that add up are recorded."""

GARBAGE_COST: Final = 16
"""Bytes of the budget of a cleaning slice that a garbage record costs."""

LENDING_SIZE: Final = 1 << 20
"""Bytes of records that are read at once so that cleaning can move them."""

LENDING_SCAN: Final = 4096
"""How many records of the oldest segment are looked at for this."""

SMALL_CLEAR: Final = 1024
"""Bytes. A clear up to this size may use the headroom, as changes do; a larger one must leave it, as a put does."""


class NoRoomError(Exception):
    """A record fits nowhere: even the headroom is used up."""


class CommitBatch:
    """The records of one commit, which are written to one segment in one piece."""

    def __init__(self, segment: Segment, spare: upkeep.Spare | None) -> None:
        self.segment = segment
        self.spare = spare  # the file that becomes the segment, if this is its first batch
        self.offset = segment.end
        self.records = RecordWriter(segment.seed)
        self.size = 0  # bytes of its records, without the COMMIT
        self.chunks: list[bytes] = []  # its COMMIT and its records, once it is taken


class SegmentLog:
    """The segments, and the batches that wait to be written.

    Args:
        live: the broker's table of jobs.
        held: its table of held keys.
        segment_size: bytes.
        draw_salt: draws a random number of 32 bits.
        bodies: decides which bodies stay in memory.
        boot: 16 bytes that identify the boot of the machine.
        on_admission: called with ALL, DELETIONS or NONE when what the binlog admits changes.
        groups: the broker's table of groups that have begun.
    """

    def __init__(
        self,
        live: IdTable[Job],
        held: IdTable[HeldKey],
        segment_size: int,
        draw_salt: Callable[[], int],
        bodies: Bodies,
        boot: bytes = NO_BOOT,
        on_admission: Callable[[int], None] = lambda _: None,
        groups: IdTable[Group] | None = None,
    ) -> None:
        self.live = live
        self.held = held
        self.groups: IdTable[Group] = groups if groups is not None else IdTable()
        self.bodies = bodies
        self.draw_salt = draw_salt
        self.boot = boot
        self.clock_offset = 0  # nanoseconds; added to the times of jobs, gives wall clock
        self.recorded_offset = 0  # nanoseconds; wall clock less the server's clock, as recorded last
        self.has_recorded_clock = False  # a CLOCK has been recorded since the start
        self.segments: list[Segment] = []  # oldest first
        self.slots: list[Segment | None] = [None]  # the segments by their slots; 0 is the slot of none
        self._free_slots: list[int] = []
        self.room = upkeep.Room(self.segments, segment_size, on_admission)
        self.batches: list[CommitBatch] = []  # waiting to be written; the last one is open
        self.sequence = 0  # of the last segment
        self.commit_number = 0  # of the last commit
        self.next_id = 1
        self._stored = StoredJob()  # reused for each record
        self.written = 0  # how many records
        self.migrated = 0  # how many of them cleaning has moved
        self.may_leave_tail = False  # cleaning has moved all jobs that fit into the tail
        self.wanted: list[Location] = []  # cleaning waits for these bodies, which are not in memory
        self._lent: dict[int, bytes] = {}  # bodies that were read for cleaning, by the offsets in the oldest segment

    def adopt(
        self, segments: list[Segment], spares: list[upkeep.Spare], next_id: int, sequence: int, commit_number: int
    ) -> None:
        """Continue after the segments found at the start.

        Args:
            segments: oldest first, in the slots 1, 2, 3, … Nothing is appended to them, unless `reopen` follows.
            spares: those found at the start.
            next_id: the smallest id that has never been given.
            sequence, commit_number: those of the last segment and the last commit.
        """
        self.segments.extend(segments)
        self.slots.extend(segments)
        for slot, segment in enumerate(segments, 1):
            assert segment.slot == slot
            segment.written = segment.end
            segment.live = 0
        with_terms: list[Job] = []
        for job in self.live.values():
            segment = self.segment_of(job)
            segment.live += segment.sizes[job.place]
            if isinstance(job.extras, Terms):
                with_terms.append(job)
        for held in self.held.values():
            self.segment_of(held).live += self._recorded_size(held)
        for group in self.groups.values():
            self.segment_of(group).live += self._recorded_size(group)
        self.next_id = next_id
        self.sequence = sequence
        self.commit_number = commit_number
        room = self.room
        room.adopt()
        for job in with_terms:
            self._review_growth(job)
        for held in self.held.values():
            self._count_growth(held, 0, self._growth_of(held))
        for spare in spares:
            room.add_spare(spare)
        room.review()

    def segment_of(self, job: Holder) -> Segment:
        """The segment that holds the record of a job."""
        segment = self.slots[job.file]
        assert segment is not None, "the job has been put"
        return segment

    def place_to_read(self, job: Holder) -> Location:
        """Where the record of a job is. It stays there until `release` is called with the place."""
        segment = self.segment_of(job)
        segment.reads += 1
        return segment.place_of(job)

    def release(self, place: Location) -> None:
        """Undo `place_to_read`."""
        place.segment.reads -= 1

    def body_size(self, job: Job) -> int:
        extras = job.extras
        own = extras.recorded if isinstance(extras, Terms) else len(job.tube.name) + len(extras.key)
        size: int = self.segment_of(job).sizes[job.place]
        return size - PUT_SIZE - own

    # Changes to record

    def put(self, job: Job) -> bool:
        """Record a whole job, which replaces any job with its id; return False if it does not fit."""
        is_new = job.id >= self.next_id
        size = put_size(job)
        if is_new and self.segments and not isinstance(job.extras, Terms):
            segment = self.segments[-1]
            if segment.end + size + upkeep.BATCH_OVERHEAD <= self.room.put_end:
                if not self.batches or self.batches[-1].segment is not segment:
                    self._open_batch(segment, None)
                self._count_record(size).put_new(job, size, self.clock_offset)
                self._note_place(job, size)
                self._note_new(job, size)
                return True
        if not self._may_put(size):
            return False
        if not is_new:
            old = self.live.get(job.id)
            if old is not None:
                self._forget(old)
        self._append_put(job, size)
        self._note_new(job, size)
        return True

    def _note_new(self, job: Job, size: int) -> None:
        """Note a job that has been recorded in this many bytes: its id is used up, and its body is in memory."""
        threshold = self.bodies.threshold
        if size > threshold and len(job.body) > threshold:
            self.bodies.add(job)
        if job.id >= self.next_id:
            self.next_id = job.id + 1

    def put_batch(self, jobs: list[Job]) -> bool:
        """Record whole jobs with new ids in one commit, so that all survive or none; return False if they do not fit
        into one ordinary segment, or if there is no room."""
        total = sum(map(put_size, jobs))
        if total > self.room.segment_size - upkeep.SEGMENT_OVERHEAD or not self._may_put(total):
            return False
        self._make_place(total, True)
        segment = self.segments[-1]
        for job in jobs:
            size = put_size(job)
            self._append_put(job, size)
            self._note_new(job, size)
        assert self.segments[-1] is segment, "a batch is in one commit"
        return True

    def put_once(self, job: Job, token: Token) -> bool:
        """Record a whole job and its token in one commit; return False if they do not fit."""
        size, token_size = put_size(job), put_size(token)
        total = size + token_size
        if not self._may_put(total):
            return False
        old = self.live.get(job.id) if job.id < self.next_id else None
        if old is not None:
            self._forget(old)
        self._make_place(total, True)
        segment = self.segments[-1]
        self._append_put(job, size)
        self._note_new(job, size)
        self._append_put(token, token_size, False)  # or a segment that is made for this job would be too full for it
        self.next_id = token.id + 1
        assert self.segments[-1] is segment, "both are in one commit"
        return True

    def begin_group(self, group: Group) -> bool:
        """Record a group; return False if it does not fit."""
        size = put_size(group)
        if not self._may_put(size):
            return False
        self._append_put(group, size)
        if group.id >= self.next_id:
            self.next_id = group.id + 1
        return True

    def pause(self, pause: HeldKey) -> bool:
        """Record a pause; return False if it does not fit."""
        size = put_size(pause)
        if not self._may_put(size):
            return False
        self._append_put(pause, size)
        if pause.id >= self.next_id:
            self.next_id = pause.id + 1
        return True

    def _may_put(self, size: int) -> bool:
        """Whether a whole job of this many bytes may be recorded."""
        room = self.room
        if room.is_before_put_end(size):
            return True
        room.review()
        return room.is_before_put_end(size) or not room.spare_needed(size)

    def change(self, job: Job) -> None:
        """Record what has changed in a job.

        Raises:
            NoRoomError: the headroom is used up; `hold` and `delete` raise it, too.
        """
        extras = job.extras
        has_terms = isinstance(extras, Terms)
        size = change_size(job) if has_terms else CHANGE_SIZE
        records = self._begin_record(size)
        stored = self._stored
        stored.describe_change(job, self.clock_offset)
        records.change(stored, size)
        if has_terms and job.file:
            self._review_growth(job)
        self._review_room()

    def hold(self, held: HeldKey) -> None:
        """Record that a job is gone but for its key. Its record stands for the held key from now on."""
        if not held.file:  # the job has no record
            self.append(held)
            return
        job = self.live[held.id]
        size = hold_size(held)
        records = self._begin_record(size)
        stored = self._stored
        stored.describe(held, self.clock_offset)
        records.change(stored, size)
        self.bodies.discard(job)
        self._count_growth(held, self._growth_of(job), self._growth_of(held))
        job.file = 0
        self.room.stuck_on = 0
        self._review_room()

    def _review_growth(self, job: Job) -> None:
        """Find out by how many bytes the record of a job with terms would be longer if it were written now."""
        terms = job.own_terms()
        growth: int = max(own_size(job) - terms.recorded, 0)
        if growth != terms.growth:
            self._count_growth(job, terms.growth, growth)
            terms.growth = growth

    def _growth_of(self, job: Holder) -> int:
        """By how many bytes its record would be longer if it were written now: a held key's is shorter, as it has no
        body, and always by as much."""
        if not isinstance(job, Job):
            return put_size(job) - self._recorded_size(job)
        extras = job.extras
        return extras.growth if isinstance(extras, Terms) else 0

    def _count_growth(self, job: Holder, old: int, growth: int) -> None:
        """Count what a job will take beyond its record, or what will be left of it if that is less."""
        room = self.room
        room.grow(max(growth, 0) - max(old, 0))
        freed = min(old, 0) - min(growth, 0)
        if freed:
            self.segment_of(job).live -= freed
            room.live_size -= freed

    def _recorded_size(self, job: Holder) -> int:
        """Bytes of the record of a job, or held key, that has one."""
        size: int = self.segment_of(job).sizes[job.place]
        return size

    def _size_if_moved(self, job: Holder) -> int:
        """The same, if it were written now."""
        if not isinstance(job, Job):
            return put_size(job)
        size = self._recorded_size(job)
        extras = job.extras
        return size + own_size(job) - extras.recorded if isinstance(extras, Terms) else size

    def delete(self, job: Holder) -> None:
        """Record that a job is gone, a held key is free, or a group is forgotten."""
        self._begin_record(DELETE_SIZE).delete(job.id)
        self._forget(job)
        self.room.stuck_on = 0
        self._review_room()

    def leave_group(self, group: Group, end: int, job: Job | None) -> None:
        """Record that a member has left a group, and that it is gone, if it is given."""
        self._begin_record(LEAVE_SIZE).leave(0 if job is None else job.id, group.id, end)
        if job is not None:
            self._forget(job)
        self.room.stuck_on = 0
        self._review_room()

    def clear(self, tube_name: str, reserved_ids: list[int]) -> bool:
        """Record that all jobs of a tube but these are gone; False if that does not fit. Then `forget` each of them."""
        size = clear_size(tube_name, reserved_ids)
        room = self.room
        has_place = size + upkeep.BATCH_OVERHEAD <= room.tail_room() or room.smallest_spare(size) is not None
        if not has_place or (size > SMALL_CLEAR and room.spare_needed(size)):
            return False
        self._begin_record(size).clear(tube_name, reserved_ids)
        self._review_room()
        return True

    def forget(self, job: Holder) -> None:
        """Count the record of a job as garbage when a clear removes the job from the table."""
        self._forget(job)
        self.room.stuck_on = 0

    def append(self, job: Holder) -> None:
        """Record a whole job, a held key or a group, even if it needs the headroom.

        Raises:
            NoRoomError: it fits nowhere.
        """
        self._append_put(job, put_size(job))

    def _append_put(self, job: Holder, size: int, is_job: bool = True) -> None:
        records = self._begin_record(size, is_job)
        stored = self._stored
        stored.describe(job, self.clock_offset)
        records.put(stored, size)
        stored.body = b""  # it may be large, and must not outlive the job
        if isinstance(job, Job):
            extras = job.extras
            if isinstance(extras, Terms):
                extras.recorded = size - PUT_SIZE - len(job.body)
                extras.growth = 0
        self._note_place(job, size)

    def _note_place(self, job: Holder, size: int) -> None:
        """Note that the last record is that of this job, held key or group, which refers to it from now on."""
        segment = self.segments[-1]
        job.file = segment.slot
        job.place = len(segment.ids)
        segment.ids.append(job.id)
        segment.offsets.append(segment.end - size)
        segment.sizes.append(size)
        segment.live += size
        self.room.live_size += size
        self._review_room()

    def _forget(self, job: Holder) -> None:
        """Count the record of a job, a held key or a group as garbage."""
        if job.file:
            if isinstance(job, Job):
                extras = job.extras
                if isinstance(extras, Terms):
                    self._count_growth(job, extras.growth, 0)
                    extras.growth = 0
                self.bodies.discard(job)
            else:
                self._count_growth(job, self._growth_of(job), 0)
            segment = self.segment_of(job)
            size: int = segment.sizes[job.place]
            segment.live -= size
            self.room.live_size -= size
            job.file = 0

    def _begin_record(self, size: int, is_job: bool = False) -> RecordWriter:
        """Find the place of the next record, and count it there; return the writer of its commit.

        Raises:
            NoRoomError: the record fits nowhere.
        """
        self._make_place(size, is_job)
        return self._count_record(size)

    def _count_record(self, size: int) -> RecordWriter:
        """Count a record in the open batch; return the writer of its commit."""
        batch = self.batches[-1]
        batch.size += size
        self._count(batch.segment, size)
        self.written += 1
        return batch.records

    def _count(self, segment: Segment, size: int) -> None:
        room = self.room
        segment.end += size
        room.record_size += size
        room.pending += size

    def _review_room(self) -> None:
        """Review what is admitted, if a record ends where that is due."""
        if self.segments[-1].end > self.room.change_end:
            self.room.review()

    def _make_place(self, size: int, is_job: bool) -> None:
        """Find the segment that the next record goes into, and open a batch for it.

        Raises:
            NoRoomError: the record fits nowhere.
        """
        room = self.room
        if self.segments:
            segment = self.segments[-1]
            is_open = bool(self.batches) and self.batches[-1].segment is segment
            needed = size if is_open else size + upkeep.BATCH_OVERHEAD
            if needed <= room.tail_room() and not (is_job and room.would_overfill(segment, size)):
                if not is_open:
                    self._open_batch(segment, None)
                return
        spare = room.smallest_spare(size)
        if spare is None:
            raise NoRoomError("the disk is full, and the space reserved for changes is used up")
        self._begin_segment(spare)

    def _begin_segment(self, spare: upkeep.Spare) -> None:
        """Make a spare the tail, and open a batch for it."""
        self.room.begin_segment(spare)
        self.sequence += 1
        segment = Segment(self.sequence, spare.size, self.draw_salt())
        self.segments.append(segment)
        if self._free_slots:
            segment.slot = self._free_slots.pop()
            self.slots[segment.slot] = segment
        else:
            segment.slot = len(self.slots)
            self.slots.append(segment)
        self._open_batch(segment, spare)

    def _open_batch(self, segment: Segment, spare: upkeep.Spare | None) -> None:
        self.batches.append(CommitBatch(segment, spare))
        self._count(segment, COMMIT_SIZE)
        if spare is not None or not self.has_recorded_clock:
            self._record_clock()

    def _record_clock(self) -> None:
        batch = self.batches[-1]
        segment = batch.segment
        batch.records.clock(self.recorded_offset, self.boot)
        batch.size += CLOCK_SIZE
        self._count(segment, CLOCK_SIZE)
        self.has_recorded_clock = True

    # Batches to write

    def take(self, written_at: int, clock_offset: int) -> list[CommitBatch]:
        """Hand out the batches to write, in this order. The next record begins a new batch.

        If the wall clock was set, a CLOCK at the end records that, because it concerns all records before it.

        Args:
            written_at: wall clock, nanoseconds.
            clock_offset: wall clock less the server's clock, nanoseconds.

        Raises:
            RuntimeError: a record has another length than was counted for it. Written, it would damage the segment.
        """
        batches = self.batches
        if batches and abs(clock_offset - self.recorded_offset) > CLOCK_TOLERANCE and self._has_place_for_clock():
            self.set_clocks(clock_offset)
            self._record_clock()
        self.batches = []
        self.room.pending = 0
        for batch in batches:
            segment = batch.segment
            self.commit_number += 1
            commit = encode_commit(
                self.commit_number, segment.durable, batch.size, self.next_id, written_at, segment.seed
            )
            records = batch.records.chunks()
            size = sum(map(len, records))
            if size != batch.size:
                raise RuntimeError(f"a commit of {batch.size} bytes has records of {size} bytes; this is a bug")
            batch.chunks = [commit, *records]
        if self.room.admits != ALL:
            self.room.review()
        return batches

    def set_clocks(self, clock_offset: int) -> None:
        """Use this as the wall clock less the server's clock from now on, in nanoseconds."""
        self.clock_offset = self.recorded_offset = clock_offset

    def _has_place_for_clock(self) -> bool:
        tail = self.segments[-1]
        return tail.size - tail.end >= CLOCK_SIZE

    def checkpoint(self, written_at: int, clock_offset: int) -> list[CommitBatch]:
        """Hand out a commit, even one without records, so that the log says how much of it is on the disk.

        It is left out if it fits nowhere, or if the log has no segment to append to.
        """
        if self.batches:
            return self.take(written_at, clock_offset)
        if not self.segments or self.segments[-1].is_closed:
            return []
        if self.room.tail_room() >= upkeep.BATCH_OVERHEAD:
            self._open_batch(self.segments[-1], None)
        else:
            spare = self.room.smallest_spare(CHANGE_SIZE)
            if spare is not None and self.room.may_begin(spare):
                self.seal()  # the next segment says so, too: it begins only when all of this one is on the disk
        return self.take(written_at, clock_offset)

    def confirm(self, batches: list[CommitBatch], synced: Segment | None) -> None:
        """Note that the batches from `take` or `checkpoint` have been written.

        Args:
            synced: the segment that was written last, if all of it is on the disk now.
        """
        has_begun = False
        for batch in batches:
            batch.segment.written = batch.offset + COMMIT_SIZE + batch.size
            if batch.spare is not None:
                batch.segment.durable = batch.segment.written
                has_begun = True
        if synced is not None:  # including what was written before without a sync
            synced.durable = synced.written
        if has_begun:
            self._close_segments()
        if self.bodies.size > self.bodies.cache_size:
            self.drop_bodies()

    def drop_bodies(self) -> None:
        """Let bodies leave memory whose records have been written, the oldest first, while the cache is too small."""
        bodies = self.bodies
        while bodies.size > bodies.cache_size:
            job = bodies.oldest()
            segment = self.segment_of(job)
            if segment.offsets[job.place] >= segment.written:
                break
            bodies.drop_oldest()

    # The end of segments

    def seal(self) -> None:
        """Make a spare the tail, so that the present tail can be cleaned."""
        spare = self.room.smallest_spare(CHANGE_SIZE)
        assert spare is not None, "`next_step` has returned SEAL"
        self._begin_segment(spare)
        self.room.review()

    def clean(self) -> bool:
        """Move a slice of the jobs of the oldest segment to the tail.

        Returns:
            Whether no job is left in it. Then `remove_oldest` may follow, once all records are on the disk. If not, and
            `wanted` is not empty, these bodies have to be read and lent to the next call.
        """
        segment = self.segments[0]
        room = self.room
        budget = upkeep.CLEANING_SLICE if room.admits == ALL else upkeep.URGENT_CLEANING_SLICE
        room.is_cleaning = True
        self.wanted = []
        ids = segment.ids
        while budget > 0 and segment.live:
            if segment.cleaned == len(ids):  # all jobs that fit into the tail have been moved
                segment.cleaned = 0
                self.may_leave_tail = True
            job_id: int = ids[segment.cleaned]
            job: Holder | None = self.live.get(job_id)
            if job is None and self.held:
                job = self.held.get(job_id)
            if job is None and self.groups:
                job = self.groups.get(job_id)
            if job is None or job.file != segment.slot or job.place != segment.cleaned:
                budget -= GARBAGE_COST
            elif job.tube.is_cleared(job):  # a PUT would bring it back
                self._forget(job)
                budget -= GARBAGE_COST
            else:
                size = self._size_if_moved(job)
                if not room.fits_tail(size):
                    if room.disk_is_full and not self.may_leave_tail:  # smaller jobs may still fit
                        budget -= GARBAGE_COST
                        segment.cleaned += 1
                        continue
                    if not room.may_move_into(room.smallest_spare(size), segment):
                        room.stuck_on = size
                        break
                    self.may_leave_tail = False
                if not self._move(job, segment.offsets[segment.cleaned]):
                    self._want_bodies(segment)
                    break
                budget -= size
            segment.cleaned += 1
        room.review()
        return not segment.live

    def _move(self, job: Holder, offset: int) -> bool:
        """Record a job, held key or group of the oldest segment once more, whose record is at this offset; False if
        its body is not there."""
        if not isinstance(job, Job):
            self._forget(job)
            self.append(job)
            self.migrated += 1
            return True
        if job.body is NOT_IN_MEMORY:
            body = self._lent.pop(offset, None)
            if body is None:
                return False
            self._forget(job)
            self.bodies.memory.return_body(job, body)
        else:
            self._forget(job)
        self._append_put(job, put_size(job))
        self.bodies.add(job, is_moved=True)
        self.migrated += 1
        return True

    def _want_bodies(self, segment: Segment) -> None:
        """Want the bodies of the next jobs that cleaning will move."""
        self._lent.clear()
        size = 0
        ids = segment.ids
        for index in range(segment.cleaned, min(segment.cleaned + LENDING_SCAN, len(ids))):
            job = self.live.get(ids[index])
            if job is not None and job.file == segment.slot and job.place == index and job.body is NOT_IN_MEMORY:
                self.wanted.append(self.place_to_read(job))
                size += segment.sizes[index]
                if size >= LENDING_SIZE:
                    break

    def lend(self, bodies: dict[Location, bytes]) -> None:
        for place in self.wanted:
            self._lent[place.offset] = bodies[place]
            self.release(place)
        self.wanted = []

    def remove_oldest(self) -> Segment:
        """Drop the oldest segment, which holds no live job. The caller removes or recycles its file."""
        segment = self.segments.pop(0)
        assert not segment.live, f"{segment.name} still has jobs"
        self.slots[segment.slot] = None
        self._free_slots.append(segment.slot)
        self.may_leave_tail = False
        self._lent.clear()
        self.room.remove_oldest(segment)
        return segment

    def _close_segments(self) -> None:
        """Close all segments but the tail; the files of some were cut after the last record."""
        for segment in reversed(self.segments[:-1]):
            if segment.is_closed:
                break
            segment.is_closed = True
            if segment.is_cut:
                self.room.resize(segment, cut_size(segment))
        self.room.review()

    def reopen(self) -> Segment:
        """Make the newest segment the tail again. The caller opens its file."""
        tail = self.segments[-1]
        tail.is_closed = False
        tail.written = tail.durable = tail.end
        self.room.review()
        return tail

    def cut_newest(self) -> Segment | None:
        """Cut the newest segment, which is closed, if much of it is unused; return it. The caller cuts its file."""
        if not self.segments:
            return None
        newest = self.segments[-1]
        if newest.size - newest.end <= self.room.segment_size >> 4:
            return None
        self.room.resize(newest, cut_size(newest))
        return newest

    def check(self) -> None:
        live: dict[int, int] = {}
        growth = 0
        for job in [*self.live.values(), *self.held.values(), *self.groups.values()]:
            if not job.file and job.tube.is_cleared(job):
                continue
            assert job.file, f"job {job.id} is in no segment"
            found = self.segment_of(job)
            assert found.ids[job.place] == job.id
            growth += max(self._growth_of(job), 0)
            live[job.file] = live.get(job.file, 0) + found.sizes[job.place] + min(self._growth_of(job), 0)
            if isinstance(job, Job):
                assert self._growth_of(job) >= 0, f"job {job.id} would be written without its body"
                if job.body is NOT_IN_MEMORY:
                    assert found.offsets[job.place] < found.written
                elif isinstance(job.extras, Terms):
                    assert self.body_size(job) == len(job.body)
        assert self.room.growth == growth
        for segment in self.segments:
            assert self.slots[segment.slot] is segment
            assert len(segment.ids) == len(segment.offsets) == len(segment.sizes)
            assert segment.live == live.get(segment.slot, 0)
            assert segment.durable <= segment.end <= segment.size
        taken = [slot for slot, held in enumerate(self.slots) if held is not None]
        assert taken == sorted(segment.slot for segment in self.segments)
        assert sorted([0, *taken, *self._free_slots]) == list(range(len(self.slots)))
        assert self.room.live_size == sum(live.values())
        assert self.room.pending == sum(COMMIT_SIZE + batch.size for batch in self.batches)
        for batch in self.batches:
            assert self.slots[batch.segment.slot] is batch.segment
        self.room.check()
        self.bodies.check()


def cut_size(segment: Segment) -> int:
    """Bytes that are left of a file that is cut: enough to take the same records again as a spare."""
    return min(segment.end + CLOCK_SIZE, segment.size)
