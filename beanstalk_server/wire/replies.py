"""The replies, as bytes."""

from __future__ import annotations

from typing import Final

AUTHENTICATED: Final = b"AUTHENTICATED\r\n"
BAD_FORMAT: Final = b"BAD_FORMAT\r\n"
BURIED: Final = b"BURIED\r\n"
CANCELLED: Final = b"CANCELLED\r\n"
DEADLINE_SOON: Final = b"DEADLINE_SOON\r\n"
DELETED: Final = b"DELETED\r\n"
DRAINING: Final = b"DRAINING\r\n"
EXPECTED_CRLF: Final = b"EXPECTED_CRLF\r\n"
FORBIDDEN: Final = b"FORBIDDEN\r\n"
GIVEN_BACK: Final = b"GIVEN_BACK\r\n"
INTERNAL_ERROR: Final = b"INTERNAL_ERROR\r\n"
JOB_TOO_BIG: Final = b"JOB_TOO_BIG\r\n"
KICKED: Final = b"KICKED\r\n"
NAMED: Final = b"NAMED\r\n"
NOT_DRAINING: Final = b"NOT_DRAINING\r\n"
NOT_FOUND: Final = b"NOT_FOUND\r\n"
NOT_IGNORED: Final = b"NOT_IGNORED\r\n"
NOTHING: Final = b"NOTHING\r\n"
OTHER_SHARD: Final = b"OTHER_SHARD\r\n"
OUT_OF_MEMORY: Final = b"OUT_OF_MEMORY\r\n"
PAUSED: Final = b"PAUSED\r\n"
RELEASED: Final = b"RELEASED\r\n"
REPRIORITIZED: Final = b"REPRIORITIZED\r\n"
RESCHEDULED: Final = b"RESCHEDULED\r\n"
SAVED: Final = b"SAVED\r\n"
TIMED_OUT: Final = b"TIMED_OUT\r\n"
TOO_LATE: Final = b"TOO_LATE\r\n"
TOUCHED: Final = b"TOUCHED\r\n"
UNAUTHORIZED: Final = b"UNAUTHORIZED\r\n"
UNKNOWN_COMMAND: Final = b"UNKNOWN_COMMAND\r\n"
UNRESERVED: Final = b"UNRESERVED\r\n"


def best(priority: int, job_id: int) -> bytes:
    return b"BEST %d %d\r\n" % (priority, job_id)


def reserved_batch(jobs: list[tuple[int, bytes]]) -> bytes:
    replies = [b"RESERVED %d %d\r\n%b\r\n" % (job_id, len(body), body) for job_id, body in jobs]
    return b"".join([b"RESERVED_BATCH %d\r\n" % len(jobs), *replies])


def exists(job_id: int) -> bytes:
    return b"EXISTS %d\r\n" % job_id


def replaced(job_id: int) -> bytes:
    return b"REPLACED %d\r\n" % job_id


def too_late(job_id: int) -> bytes:
    return b"TOO_LATE %d\r\n" % job_id


def found(job_id: int, body: bytes) -> bytes:
    return b"FOUND %d %d\r\n%b\r\n" % (job_id, len(body), body)


def using(name: str) -> bytes:
    return b"USING %b\r\n" % name.encode("ascii")


def watching(count: int) -> bytes:
    return b"WATCHING %d\r\n" % count


def ok(yaml: bytes) -> bytes:
    """The reply to a stats or list command, around its YAML document."""
    return b"OK %d\r\n%b\r\n" % (len(yaml), yaml)


def ok_list(pieces: list[bytes]) -> bytes:
    """The reply to list-tubes, around the lines of its tubes; joined once, because it may be long."""
    if len(pieces) == 1:  # as almost always; it takes two thirds of the time
        return b"OK %d\r\n---\n%b\r\n" % (len(b"---\n") + len(pieces[0]), pieces[0])
    size = len(b"---\n") + sum([len(piece) for piece in pieces])
    return b"".join([b"OK %d\r\n---\n" % size, *pieces, b"\r\n"])


def reserve_mode(mode: str) -> bytes:
    return f"RESERVE_MODE {mode}\r\n".encode()


def put_batch(count: int, first_id: int, last_id: int) -> bytes:
    return b"INSERTED_BATCH %d %d %d\r\n" % (count, first_id, last_id)


def counted(word: bytes, count: int, missing: int) -> bytes:
    """How many jobs a command concerned, and how many of those that it named it did not find; -1 if it named none."""
    return b"%b %d\r\n" % (word, count) if missing < 0 else b"%b %d %d\r\n" % (word, count, missing)
