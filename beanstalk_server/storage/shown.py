"""Turns jobs and records into what the tools show: one JSON object each, in the words of docs/binlog.md."""

from __future__ import annotations

from base64 import b64encode
from typing import Final
from uuid import UUID

from beanstalk_server.queue.groups import ENDS
from beanstalk_server.queue.job import BURIED, DELAYED, GROUP, HELD, READY, REASONS, STATES, TOKEN_MARK
from beanstalk_server.queue.stored_job import GROUP_COUNTERS, LAST_MOMENT, StoredJob
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage import record

_COUNTERS: Final = ("reserves", "timeouts", "releases", "buries", "kicks")


def shown_job(job: StoredJob) -> dict[str, object]:
    """A job in the words of stats-job; durations in seconds, moments in seconds since 1970."""
    if job.state == GROUP:
        return {
            "id": job.id,
            "group": job.key,
            "state": STATES[job.state],
            "created-at": _seconds(job.created_at),
            **{end: getattr(job, field) for end, field in GROUP_COUNTERS.items()},
        }
    if job.state == HELD and not job.key:
        return {"id": job.id, "tube": job.tube, "state": "paused", "paused-until": _seconds(job.deadline)}
    if job.is_token():
        return {
            "id": job.id,
            "tube": job.tube,
            "once": job.key.removeprefix(TOKEN_MARK),
            "state": STATES[job.state],
            "job": job.token_job(),
            "created-at": _seconds(job.created_at),
            "held-until": _seconds(job.deadline),
        }
    return {
        "id": job.id,
        "tube": job.tube,
        **({"key": job.key} if job.key else {}),
        "state": STATES[job.state],
        "pri": job.priority,
        "delay": _seconds(job.delay),
        "ttr": _seconds(job.ttr),
        "created-at": _seconds(job.created_at),
        **_shown_deadline(job),
        **_shown_counters(job),
        **_shown_demands(job),
        **_shown_terms(job),
        **_shown_body(job.body),
    }


def shown_record(scanner: record.Scanner) -> dict[str, object]:
    """The current record of a scanner; its fields are those of docs/binlog-format.md."""
    kind = record.TYPES[scanner.kind]
    if scanner.kind in (record.PUT, record.PUT_WITH):
        return {"type": kind, **shown_job(scanner.put())}
    if scanner.kind in (record.CHANGE, record.CHANGE_WITH):
        change = scanner.change()
        return {
            "type": kind,
            "id": change.id,
            **({"tube": change.tube} if change.has_terms else {}),
            **({} if change.keeps_key else {"key": ""}),
            "state": STATES[change.state],
            "pri": change.priority,
            "delay": _seconds(change.delay),
            **_shown_deadline(change),
            **_shown_counters(change),
            **_shown_terms(change),
        }
    if scanner.kind == record.DELETE:
        return {"type": kind, "id": scanner.job_id()}
    if scanner.kind == record.LEAVE:
        group_id, end, job_id = scanner.leave()
        return {"type": kind, **({"id": job_id} if job_id else {}), "group": group_id, "end": ENDS[end]}
    if scanner.kind == record.CLEAR:
        tube_name, reserved_ids = scanner.clear()
        return {"type": kind, "tube": tube_name, "reserved": reserved_ids}
    if scanner.kind == record.CLOCK:
        clock_offset, boot = scanner.clock()
        return {"type": kind, "clock-offset": _seconds(clock_offset), "boot": str(UUID(bytes=boot))}
    commit_number, durable, length, next_id, written_at = scanner.commit()
    return {
        "type": kind,
        "number": commit_number,
        "durable": durable,
        "length": length,
        "next-id": next_id,
        **({"written-at": _seconds(written_at)} if written_at else {}),
    }


def _shown_deadline(job: StoredJob) -> dict[str, object]:
    if job.state == DELAYED and job.deadline == LAST_MOMENT and job.has_terms:
        return {}  # it waits for a group
    if job.state == DELAYED:
        return {"at" if job.at else "due-at": _seconds(job.deadline)}
    if job.state == READY and job.ready_since:
        return {"ready-since": _seconds(job.ready_since)}
    if job.state == HELD:
        return {"held-until": _seconds(job.deadline)}
    return {"buried-as": job.bury_sequence} if job.state == BURIED else {}


def _shown_counters(job: StoredJob) -> dict[str, object]:
    return {name: getattr(job, name) for name in _COUNTERS}


def _shown_demands(job: StoredJob) -> dict[str, object]:
    """What is demanded of the job itself, apart from the policy of its tube."""
    return {
        **({"max-tries": job.max_tries} if job.max_tries else {}),
        **({"backoff": _seconds(job.backoff)} if job.backoff else {}),
        **({"ttl": _seconds(job.ttl)} if job.ttl else {}),
        **({"hold": _seconds(job.key_hold)} if job.key_hold else {}),
        **({"share": job.share} if job.share else {}),
        **({"limit": f"{job.limit}:{job.limit_count}"} if job.limit else {}),
        **({"group": job.group} if job.group else {}),
        **({"after": f"{job.after}:wait" if job.after_waits else job.after} if job.after else {}),
    }


def _shown_terms(job: StoredJob) -> dict[str, object]:
    if not job.has_terms:
        return {}
    return {
        "tries": job.tries,
        **({"reason": REASONS[job.reason]} if job.reason else {}),
        **({"origin": job.origin} if job.origin else {}),
    }


def _shown_body(body: bytes) -> dict[str, object]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body-base64": b64encode(body).decode()}


def _seconds(nanoseconds: int) -> int | float:
    """Nanoseconds as seconds, to the microsecond, which a JSON number holds exactly."""
    return round(nanoseconds / SECOND, 6) if nanoseconds % SECOND else nanoseconds // SECOND
