"""Encodes records by `struct`, from the tables of docs/binlog-format.md: the server must write the same bytes."""

import struct

from crc32c import crc32c

from beanstalk_server.queue.job import BURIED, READY

U32 = 0xFFFFFFFF


def encode_record(kind, seed, *parts):
    rest = b"".join((bytes((kind,)), *parts))
    rest = struct.pack("<I", 8 + len(rest)) + rest
    return struct.pack("<I", crc32c(rest, seed)) + rest


def encode_put(job, seed):
    tube, key = job.tube.encode(), job.key.encode()
    times = struct.pack("<qqqq", job.delay, job.ttr, job.created_at, moment(job))
    rest = bytes((job.state, len(tube), len(key)))
    parts = (struct.pack("<QI", job.id, job.priority), times, counters(job), rest)
    if not job.has_terms:
        return encode_record(2, seed, *parts, tube, key, job.body)
    present, terms = encode_terms(job)
    for bit, form, number in (
        (2, "<I", job.max_tries),
        (3, "<Q", job.backoff),
        (4, "<Q", job.ttl),
        (5, "<Q", job.key_hold),
    ):
        if number:
            present |= 1 << bit
            terms += struct.pack(form, number)
    labels = encode_labels(job)
    if labels:
        present |= 1 << 7
    return encode_record(7, seed, *parts, bytes((present,)), terms, labels, tube, key, job.body)


def encode_change(change, seed):
    fields = struct.pack("<QIqq", change.id, change.priority, change.delay, moment(change))
    parts = (fields, counters(change), bytes((change.state,)))
    if not change.has_terms:
        return encode_record(3, seed, *parts)
    present, terms = encode_terms(change)
    if change.limit:
        present |= 1 << 2
        terms += struct.pack("<I", change.limit_count)
    if not change.keeps_key:
        present |= 1 << 7
    tube = change.tube.encode()
    return encode_record(8, seed, *parts, bytes((len(tube), present)), terms, tube)


def encode_delete(job_id, seed):
    return encode_record(4, seed, struct.pack("<Q", job_id))


def encode_clear(tube_name, reserved_ids, seed):
    return encode_record(5, seed, name(tube_name), struct.pack(f"<{len(reserved_ids)}Q", *reserved_ids))


def encode_clock(clock_offset, boot, seed):
    return encode_record(6, seed, struct.pack("<q", clock_offset), boot)


def encode_leave(job_id, group_id, end, seed):
    return encode_record(9, seed, struct.pack("<QQB", job_id, group_id, end))


def moment(job):
    """What a record has in the field of the deadline."""
    if job.state == BURIED:
        return job.bury_sequence
    return job.ready_since if job.state == READY else job.deadline


def counters(job):
    numbers = (job.reserves, job.timeouts, job.releases, job.buries, job.kicks)
    return struct.pack("<IIIII", *[number & U32 for number in numbers])


def encode_terms(job):
    """The terms that can change, after the bits that say which of them there are."""
    present, terms = (1 << 6 if job.at else 0), b""
    if job.tries or job.reason:
        present |= 1 << 0
        terms += struct.pack("<IB", job.tries & U32, job.reason)
    if job.origin:
        present |= 1 << 1
        terms += name(job.origin)
    return present, terms


def encode_labels(job):
    present, labels = (1 << 4 if job.after_waits else 0), b""
    for bit, label in enumerate((job.share, job.limit, job.group, job.after)):
        if label:
            present |= 1 << bit
            labels += name(label)
            if bit == 1:
                labels += struct.pack("<I", job.limit_count)
    return bytes((present,)) + labels if labels else b""


def name(text):
    return bytes((len(text),)) + text.encode()
