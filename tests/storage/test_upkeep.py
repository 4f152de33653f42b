"""The room of a binlog decides what fits and what to do next; here its segments and spares are made up."""

import pytest

from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.storage.segment import HEADER_SIZE, Segment
from beanstalk_server.storage.upkeep import (
    ALLOCATE,
    BATCH_OVERHEAD,
    CLEAN,
    COMMIT_LIMIT,
    DROP_SPARE,
    LONE_CHANGE_SIZE,
    NOTHING,
    SEAL,
    SEGMENT_OVERHEAD,
    Room,
    Spare,
)

S = 65536
FULL = S - SEGMENT_OVERHEAD
"""Bytes of records that fill a segment."""

REPORTED = []
"""What the last room has reported as admitted."""


def room(*segments, spares=(), size=S):
    """A room with segments of (bytes of records, bytes of them that are live, size), oldest first."""
    made = []
    for number, (used, live, *sizes) in enumerate(segments, 1):
        segment = Segment(number, *(sizes or [size]), 0)
        segment.end = HEADER_SIZE + used
        segment.live = live
        segment.is_closed = number < len(segments)
        made.append(segment)
    room = Room(made, size, REPORTED.append)
    REPORTED.clear()
    room.adopt()
    for number, spare_size in enumerate(spares, 1):
        room.add_spare(Spare(f"spare.{number}", spare_size))
    room.review()
    room.check()
    return room


def test_the_first_thing_that_is_wanted_is_a_spare():
    empty = room()
    assert (empty.admits, empty.next_step(True), empty.next_step(False)) == (ALL, ALLOCATE, NOTHING)
    assert empty.spare_size() == S
    assert empty.spare_needed(100) == S
    assert not empty.may_put()


def test_with_two_spares_nothing_is_left_to_do_and_small_jobs_fit():
    ahead = room(spares=[S, S])
    assert ahead.next_step(True) == NOTHING
    assert ahead.spare_needed(100) == 0
    assert ahead.may_put()


def test_a_job_that_is_larger_than_a_segment_needs_a_spare_of_its_own():
    assert room(spares=[S, S]).spare_needed(3 * S) == 3 * S + SEGMENT_OVERHEAD


def test_the_smallest_spare_that_fits_is_taken():
    several = room(spares=[4 * S, S, 2 * S])
    assert several.smallest_spare(100).size == S
    assert several.smallest_spare(FULL + 1).size == 2 * S
    assert several.smallest_spare(4 * S) is None


def test_a_put_far_from_the_end_needs_no_review():
    fresh = room((1000, 900), spares=[S, S])
    assert fresh.is_before_put_end(100)
    assert not fresh.is_before_put_end(S)
    fresh.segments[-1].end = fresh.put_end - BATCH_OVERHEAD - 99
    assert not fresh.is_before_put_end(100)


def test_a_put_leaves_the_headroom_and_changes_use_it():
    used = FULL - S // 8  # so that less than the headroom is left
    crowded = room((used, used), spares=[S])
    crowded.disk_is_full = True
    crowded.review()
    assert crowded.spare_needed(100) == S
    assert crowded.admits == ALL
    assert crowded.tail_room() > LONE_CHANGE_SIZE


@pytest.mark.parametrize(("garbage", "admits"), [(0, DELETIONS), (FULL // 2, NONE)])
def test_when_changes_have_used_up_the_headroom_they_wait_for_cleaning_or_for_deletions(garbage, admits):
    """For cleaning, if there is garbage: that makes room soon."""
    crowded = room((FULL, FULL - garbage), (FULL, FULL), spares=[S + LONE_CHANGE_SIZE])
    crowded.disk_is_full = True
    crowded.review()
    assert crowded.admits == admits
    assert REPORTED[-1] == admits


def test_while_many_records_wait_to_be_written_every_change_waits():
    busy = room((1000, 900), spares=[S, S])
    busy.pending = COMMIT_LIMIT + 1
    busy.review()
    assert busy.admits == NONE
    busy.pending = 0
    busy.review()
    assert REPORTED == [NONE, ALL], "and each change is reported once"


def test_a_segment_without_live_jobs_is_removed_first():
    assert room((FULL, 0), (100, 100)).next_step(False) == CLEAN


def test_garbage_is_cleaned_when_the_files_take_too_much():
    large = room((FULL, 10_000), (FULL, 10_000), (FULL, 10_000), (1000, 1000), spares=[S])
    assert large.disk_size > large.limit()
    assert large.next_step(True) == CLEAN


def test_the_cleaning_of_a_segment_is_completed_once_it_is_begun():
    steady = room((FULL, FULL), (1000, 1000), spares=[S, S])
    assert steady.next_step(True) == NOTHING
    steady.is_cleaning = True
    assert steady.next_step(True) == CLEAN
    steady.stuck_on = 2 * S
    assert (steady.next_step(True), steady.next_step(False)) == (ALLOCATE, NOTHING)
    assert steady.spare_size() == 2 * S + SEGMENT_OVERHEAD
    steady.add_spare(Spare("spare.3", 3 * S))
    assert not steady.stuck_on


def test_a_spare_too_many_is_dropped_and_the_last_usual_one_is_kept():
    large = room((1000, 1000), spares=[S, S, 4 * S])
    assert large.next_step(True) == DROP_SPARE
    assert large.drop_spare().size == 4 * S
    large.check()
    large.drop_spare()
    assert large.has_usual_spare()


def test_the_only_segment_is_sealed_so_that_it_can_be_cleaned():
    assert room((3 * S, 1000, 4 * S), spares=[S]).next_step(True) == SEAL


def test_a_spare_that_becomes_the_tail_is_no_longer_spare_room():
    before = room((FULL, FULL), spares=[S, S])
    before.begin_segment(before.spares[0])
    before.segments.append(Segment(2, S, 0))
    before.review()
    before.check()
    assert before.spare_room == FULL
    assert before.largest_live == FULL
    assert not before.segments[0].is_cut


def test_a_segment_made_for_one_large_job_never_holds_more_than_an_ordinary_one_can_take():
    large = room((10_000, 10_000, 4 * S), spares=[S])
    assert large.fits_tail(FULL - 10_000)
    assert not large.fits_tail(FULL - 9_999)


def test_a_file_is_recycled_when_room_is_short_and_on_a_full_disk():
    assert not room((1000, 1000), spares=[S, S]).should_recycle(S)
    assert room((FULL, FULL), spares=[S]).should_recycle(S)
    assert not room((FULL, FULL), spares=[S]).should_recycle(2 * S)
    full = room((1000, 1000), spares=[S, S])
    full.disk_is_full = True
    assert full.should_recycle(4096)
    assert not full.should_recycle(SEGMENT_OVERHEAD)


def test_the_kept_spare_is_used_only_if_another_file_can_replace_it():
    few = room((FULL // 2, 100, S // 2), (FULL, FULL), spares=[S])
    (kept,) = few.spares
    assert not few.may_move_into(kept, few.segments[0]), "the file of the oldest is too small to take its place"
    few.add_spare(Spare("spare.2", S))
    assert few.may_move_into(kept, few.segments[0])
    assert not few.may_move_into(None, few.segments[0])
