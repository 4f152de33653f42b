"""Records of all kinds of jobs are the bytes of the reference, and come back as they were encoded. Only whole ones are
taken for records."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from memory_disk import MemoryDirectory, MemoryFile, Node
from reference_records import encode_change, encode_clear, encode_clock, encode_delete, encode_leave, encode_put

from beanstalk_server.queue.groups import ENDS, Group
from beanstalk_server.queue.job import BURIED, DELAYED, GROUP, HELD, NOT_IN_MEMORY, READY, REASONS, Job
from beanstalk_server.queue.policy import Labels
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import FIELDS, GROUP_COUNTERS, StoredJob, stored_job
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.tube import Tube
from beanstalk_server.storage.record import (
    CHANGE,
    CHANGE_SIZE,
    CHANGE_WITH,
    CHANGE_WITH_SIZE,
    LEAVE,
    LEAVE_SIZE,
    LONGEST_CHANGE,
    PUT,
    PUT_SIZE,
    PUT_WITH,
    Scanner,
)
from beanstalk_server.storage.record_writer import (
    LARGE,
    RecordWriter,
    change_size,
    encode_commit,
    own_size,
    put_size,
    short_checksum,
)
from beanstalk_server.storage.segment import LARGEST_OFFSET, VERSION, Segment, encode_header
from beanstalk_server.storage.segment_reader import SegmentReader

SEED = 17
LABELS = ("share", "limit", "limit_count", "group", "after", "after_waits")
LASTS = {"key", "ttr", "body", "created_at", "max_tries", "backoff", "ttl", "key_hold", *LABELS}
CHANGEABLE = [name for name in FIELDS if name not in LASTS]

U32 = st.integers(0, 0xFFFFFFFF)
U64 = st.integers(1, (1 << 64) - 1)
MOMENTS = st.integers(-(1 << 62), 1 << 62)
DURATIONS = st.integers(0, 0xFFFFFFFF * 1_000_000_000)
SOME_DURATIONS = st.just(0) | DURATIONS
NAMES = st.text("abc-+/;.$_()0", max_size=200)


@st.composite
def jobs(draw, has_terms=True):
    """A stored job as `describe` makes it."""
    job = StoredJob(
        id=draw(st.integers(1, 1 << 63)),
        tube=draw(NAMES) or "t",
        key=draw(NAMES),
        state=draw(st.sampled_from((READY, DELAYED, BURIED, HELD) if has_terms else (READY, DELAYED, BURIED))),
        priority=draw(U32),
        delay=draw(DURATIONS),
        ttr=draw(DURATIONS),
        body=draw(st.binary(max_size=50)),
        created_at=draw(MOMENTS),
        reserves=draw(U32),
        timeouts=draw(U32),
        releases=draw(U32),
        buries=draw(U32),
        kicks=draw(U32),
        has_terms=has_terms,
    )
    if job.state in (DELAYED, HELD):
        job.deadline = draw(MOMENTS)
    if job.state == BURIED:
        job.bury_sequence = draw(st.integers(0, 1 << 62))
    if not has_terms:
        return job
    job.max_tries, job.tries = draw(st.just(0) | U32), draw(st.just(0) | U32)
    job.backoff, job.ttl, job.key_hold = draw(SOME_DURATIONS), draw(SOME_DURATIONS), draw(SOME_DURATIONS)
    job.reason = draw(st.integers(0, len(REASONS) - 1))
    job.origin = draw(NAMES)
    if job.state == READY:
        job.ready_since = draw(MOMENTS)
    if job.state == DELAYED and draw(st.booleans()):
        job.at = job.deadline
    job.share, job.limit, job.group, job.after = draw(NAMES), draw(NAMES), draw(NAMES), draw(NAMES)
    job.limit_count = draw(U32) if job.limit else 0
    job.after_waits = bool(job.after) and draw(st.booleans())
    return job


def change_of(job, keeps_key=True):
    """What can change of a stored job."""
    change = StoredJob(**{name: getattr(job, name) for name in CHANGEABLE})
    change.keeps_key = keeps_key
    if job.limit:
        change.limit, change.limit_count = job.limit, job.limit_count
    return change


def scanned(data, version=VERSION):
    scanner = Scanner(SEED, version)
    scanner.data = data
    return scanner


def values(change):
    return {name: getattr(change, name) for name in (*CHANGEABLE, "keeps_key", "limit_count")}


def live(stored):
    """A job that is stored so."""
    job = Job(stored.id, stored.priority, stored.delay, stored.ttr, stored.body, Tube(stored.tube, 0), 0)
    job.key = stored.key
    if stored.has_terms:
        terms = job.own_terms()
        terms.max_tries, terms.backoff, terms.ttl, terms.key_hold = (
            stored.max_tries, stored.backoff, stored.ttl, stored.key_hold
        )  # fmt: skip
        terms.tries, terms.reason, terms.origin = stored.tries, stored.reason, stored.origin
        if stored.has_labels():
            labels = {name: getattr(stored, name) for name in LABELS}
            terms.labels = Labels(**(labels | {"after_waits": bool(stored.after_waits)}))
    return job


TUBES = NAMES.map(lambda name: Tube(name or "t", 0))
LENGTHS = st.sampled_from((0, 1, 100, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE))


@st.composite
def records(draw):
    """The name of a method, its arguments without the size, and the record that is right."""
    name = draw(st.sampled_from(("put", "change", "delete", "leave", "clear", "clock")))
    if name in ("put", "change"):
        job = draw(st.booleans().flatmap(jobs))
        job.body = bytes(draw(LENGTHS))
        if name == "put":
            return name, (job,), encode_put(job, SEED)
        change = change_of(job, draw(st.booleans()))
        return name, (change,), encode_change(change, SEED)
    if name == "delete":
        arguments = (draw(U64),)
    elif name == "leave":
        arguments = (draw(U64), draw(U64), draw(st.integers(0, len(ENDS) - 1)))
    elif name == "clear":
        arguments = (draw(NAMES), draw(st.lists(U64)))
    else:
        arguments = (draw(MOMENTS), draw(st.binary(min_size=16, max_size=16)))
    encode = {"delete": encode_delete, "leave": encode_leave, "clear": encode_clear, "clock": encode_clock}[name]
    return name, arguments, encode(*arguments, SEED)


@given(st.lists(records(), max_size=5))
def test_a_commit_has_the_records_of_the_reference_one_after_the_other(changes):
    writer = RecordWriter(SEED)
    for name, arguments, record in changes:
        size = (len(record),) if name in ("put", "change") else ()
        getattr(writer, name)(*arguments, *size)
    assert b"".join(writer.chunks()) == b"".join(record for _, _, record in changes)


@given(st.binary(max_size=40), U32)
def test_the_checksum_of_a_short_record_is_that_of_any_other(data, seed):
    assert short_checksum(data, seed) == crc32c(data, seed)


def test_a_large_body_is_not_copied():
    writer = RecordWriter(SEED)
    job = Job(1, 0, 0, 1, bytes(LARGE), Tube("t", 0), 0)
    writer.put_new(job, put_size(job), 0)
    assert [chunk for chunk in writer.chunks() if chunk is job.body]


# No offset of -2^62: with such a moment, it would be -2^63, which only the record of a new job can hold.
@given(
    st.builds(Job, U64, U32, SOME_DURATIONS, DURATIONS, st.binary(max_size=50), TUBES, MOMENTS),
    NAMES,
    st.integers(-(1 << 61), 1 << 62),
)
def test_a_new_job_is_written_as_any_other(job, key, clock_offset):
    if key:
        job.key = key
    if job.delay:
        job.deadline = job.created_at + job.delay
    writer = RecordWriter(SEED)
    writer.put_new(job, put_size(job), clock_offset)
    assert b"".join(writer.chunks()) == encode_put(stored_job(job, clock_offset), SEED)


@given(jobs(), jobs(has_terms=False), st.booleans())
def test_records_with_terms_and_without_come_back_one_after_the_other(with_terms, without, keeps_key):
    change, plain = change_of(with_terms, keeps_key), change_of(without)
    encoded = [
        encode_put(with_terms, SEED),
        encode_put(without, SEED),
        encode_change(change, SEED),
        encode_change(plain, SEED),
        encode_put(with_terms, SEED),
    ]
    scanner = scanned(b"".join(encoded))
    kinds = []
    for expected in (with_terms, without, change, plain, with_terms):
        assert scanner.next(), scanner.fault
        kinds.append(scanner.kind)
        assert scanner.job_id() == expected.id
        if scanner.kind in (PUT, PUT_WITH):
            assert scanner.put() == expected
        elif expected is change:
            assert values(scanner.change()) == values(expected)
        else:
            found = scanner.change()
            found.tube = expected.tube  # such a record does not say it
            assert values(found) == values(expected)
    assert kinds == [PUT_WITH, PUT, CHANGE_WITH, CHANGE, PUT_WITH]
    assert not scanner.next()


@given(st.booleans().flatmap(lambda has_terms: jobs(has_terms)))
def test_sizes_are_known_before_a_record_is_made(stored):
    job = live(stored)
    assert put_size(job) == len(encode_put(stored, SEED)) == PUT_SIZE + own_size(job) + len(stored.body)
    assert change_size(job) == len(encode_change(change_of(stored), SEED)) <= LONGEST_CHANGE


def test_the_longest_change():
    job = live(StoredJob(1, "t" * 255, has_terms=True, tries=1, origin="o" * 255, limit="l", limit_count=1))
    assert change_size(job) == LONGEST_CHANGE


@pytest.mark.parametrize("version", [4, 5])
def test_a_change_has_the_number_of_its_limit(version):
    """Since version 5: in an older segment, that is damage."""
    stored = StoredJob(1, "t", has_terms=True, tries=3, origin="o", limit="l", limit_count=7)
    other = StoredJob(2, "t", has_terms=True)
    scanner = scanned(encode_change(change_of(stored), SEED) + encode_change(change_of(other), SEED), version)
    if version == 4:
        assert not scanner.next()
        assert scanner.fault == "bad terms of a change-with record"
        return
    for limit_count in (7, 0):
        assert scanner.next(), scanner.fault
        assert scanner.change().limit_count == limit_count


def test_a_job_without_terms_is_written_as_it_always_was():
    """And one with terms of which nothing is set takes one byte more, or two."""
    stored = StoredJob(1, "t", "k", body=b"body")
    assert len(encode_put(stored, SEED)) == PUT_SIZE + 6
    assert len(encode_change(change_of(stored), SEED)) == CHANGE_SIZE
    stored.has_terms = True
    assert len(encode_put(stored, SEED)) == PUT_SIZE + 7
    assert len(encode_change(change_of(stored), SEED)) == CHANGE_WITH_SIZE + 1


def test_a_long_body_is_left_where_it_is():
    stored = StoredJob(1, "t", "k", body=b"a long body", has_terms=True, tries=3, origin="o")
    scanner = scanned(encode_put(stored, SEED))
    assert scanner.next()
    assert scanner.put(5).body is NOT_IN_MEMORY
    assert scanner.put(5) == stored.replace(body=NOT_IN_MEMORY)


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_segment_has_no_records_of_terms(version):
    stored = StoredJob(1, "t", has_terms=True)
    for record in (encode_put(stored, SEED), encode_change(change_of(stored), SEED)):
        scanner = scanned(record, version)
        assert not scanner.next()
        assert scanner.fault == "unknown record type"


def spoiled(record, at, value):
    """The record with another byte, and the checksum that goes with it."""
    rest = record[4:at] + bytes((value,)) + record[at + 1 :]
    return crc32c(rest, SEED).to_bytes(4, "little") + rest


STORED = StoredJob(1, "t", "k", has_terms=True, tries=2, reason=1, origin="o")
LABELLED = StoredJob(1, "t", has_terms=True, share="s", limit="l", limit_count=2, group="g", after="a")


@pytest.mark.parametrize(
    ("record", "at", "value", "fault"),
    [
        (encode_put(STORED, SEED), 73, 2, "bad job state"),
        (encode_put(STORED, SEED), 73, 8, "bad job state"),
        (encode_put(STORED, SEED), PUT_SIZE, 0x83, "bad labels of a put-with record"),
        (encode_put(STORED, SEED), PUT_SIZE, 0x43, "bad terms of a put-with record"),
        (encode_put(STORED, SEED), PUT_SIZE, 0x3F, "put-with record is too short for its names"),
        (encode_put(STORED, SEED), PUT_SIZE + 5, 5, "bad reason"),
        (encode_put(STORED, SEED), PUT_SIZE + 6, 9, "put-with record is too short for its names"),
        (encode_put(LABELLED, SEED), PUT_SIZE + 1, 0, "bad labels of a put-with record"),
        (encode_put(LABELLED, SEED), PUT_SIZE + 1, 0x2F, "bad labels of a put-with record"),
        (encode_put(LABELLED, SEED), PUT_SIZE + 1, 0x13, "bad labels of a put-with record"),
        (encode_put(LABELLED, SEED), PUT_SIZE + 2, 0, "bad labels of a put-with record"),
        (encode_put(LABELLED, SEED), PUT_SIZE + 2, 99, "bad labels of a put-with record"),
        (encode_put(STORED, SEED), 74, 9, "put-with record is too short for its names"),
        (encode_change(change_of(STORED), SEED), 57, 5, "bad job state"),
        (encode_change(change_of(STORED), SEED), CHANGE_SIZE, 9, "change-with record is too short for its names"),
        (encode_change(change_of(STORED), SEED), CHANGE_SIZE, 0, "bad length of a change-with record"),
        (encode_change(change_of(STORED), SEED), CHANGE_SIZE + 1, 0x0B, "bad terms of a change-with record"),
        (encode_change(change_of(STORED), SEED), CHANGE_SIZE + 1, 0x43, "bad terms of a change-with record"),
        (encode_change(change_of(STORED), SEED), CHANGE_SIZE + 6, 9, "bad reason"),
    ],
)  # fmt: skip
def test_a_record_that_means_nothing_is_damage_although_its_checksum_is_right(record, at, value, fault):
    assert scanned(record).next()
    scanner = scanned(spoiled(record, at, value))
    assert not scanner.next()
    assert scanner.fault == fault


@given(st.integers(0, 1 << 63), st.integers(0, 1 << 63), st.integers(0, len(ENDS) - 1))
def test_what_a_group_counts_comes_back(job_id, group_id, end):
    record = encode_leave(job_id, group_id, end, SEED)
    scanner = scanned(record)
    assert scanner.next() and scanner.kind == LEAVE and len(record) == LEAVE_SIZE
    assert scanner.leave() == (group_id, end, job_id)
    assert scanner.job_id() == job_id
    before = scanned(record, 3)
    assert not before.next() and before.fault == "unknown record type"
    spoilt = scanned(spoiled(record, LEAVE_SIZE - 1, len(ENDS)))
    assert not spoilt.next() and spoilt.fault == "bad end of a leave record"


def test_a_group_is_stored_as_a_job_without_a_tube():
    group = Group("a/group", 5, 7)
    for end, count in enumerate((1, 2, 3, 4)):
        for _ in range(count):
            group.count(end)
    stored = stored_job(group, 100)
    assert {end: getattr(stored, name) for end, name in GROUP_COUNTERS.items()} == {
        "done": 1, "cancelled": 2, "expired": 3, "dead": 4
    }  # fmt: skip
    record = encode_put(stored, SEED)
    assert len(record) == put_size(group)
    scanner = scanned(record)
    assert scanner.next() and scanner.put() == stored
    assert (stored.tube, stored.key, stored.state, stored.created_at) == ("", "a/group", GROUP, 105)
    before = scanned(record, 3)
    assert not before.next() and before.fault == "bad job state"


def test_a_segment_before_version_4_has_no_labels():
    scanner = scanned(encode_put(LABELLED, SEED), 3)
    assert not scanner.next()
    assert scanner.fault == "bad terms of a put-with record"


@given(jobs(), st.data())
def test_no_part_of_a_record_is_taken_for_one(stored, data):
    """Whatever terms say of their own length: it is never beyond the record that they are in."""
    record = data.draw(st.sampled_from([encode_put(stored, SEED), encode_change(change_of(stored), SEED)]))
    length = data.draw(st.integers(9, len(record) - 1))
    rest = length.to_bytes(4, "little") + record[8:length]
    scanner = scanned(crc32c(rest, SEED).to_bytes(4, "little") + rest)
    if scanner.next():
        assert scanner.kind == PUT_WITH, "only a body may be shorter"
        assert scanner.put().body == stored.body[: length - len(record)]
    else:
        assert scanner.fault


def test_what_is_scanned_is_what_a_restart_keeps():
    """From a job in memory to a record and back."""
    held = live(STORED).held_key()
    held.deadline = 5
    stored = stored_job(held, 100)
    scanner = scanned(encode_put(stored, SEED))
    assert scanner.next()
    assert (scanner.put().state, scanner.put().deadline, scanner.put().key) == (HELD, 105, "k")


@pytest.mark.parametrize("size", [1 << 20, LARGEST_OFFSET + 1])
def test_a_segment_knows_the_places_of_the_jobs_that_are_read(size):
    segment = Segment(1, size, 5)
    stored = [StoredJob(job_id, "t", body=bytes(job_id % 999)) for job_id in (1, (1 << 64) - 1, 7)]
    puts = [encode_put(job, segment.seed) for job in stored]
    commit = encode_commit(1, 0, sum(map(len, puts)), 8, 0, segment.seed)
    data = b"".join((encode_header(1, 5), commit, *puts))
    replay = Replay(IdTable())
    SegmentReader(MemoryFile(MemoryDirectory(), Node(data)), segment.name).replay(replay, segment, 0)
    for job, record in zip(stored, puts, strict=True):
        place = segment.place_of(replay.jobs[job.id])
        assert (place.job_id, place.size) == (job.id, len(record))
        assert data[place.offset :][: place.size] == record
