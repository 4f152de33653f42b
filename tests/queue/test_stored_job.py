"""A job as it is stored: what is stored in each state, and that a restart restores all of it."""

import pytest

from beanstalk_server.queue.job import BURIED, DELAYED, EXPIRED, HELD, NEW, READY, RESERVED, Job
from beanstalk_server.queue.policy import Labels
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import FIELDS, LAST_MOMENT, StoredJob, stored_job
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.tube import Tube

BOOT = bytes(16)
LABELS = ("share", "limit", "limit_count", "group", "after", "after_waits")
LASTS = ("key", "ttr", "body", "created_at", "max_tries", "backoff", "ttl", "key_hold", *LABELS)
CHANGEABLE = [name for name in FIELDS if name not in LASTS]
OFFSET = 1_000_000  # the wall clock minus the server's clock, in nanoseconds


def a_job(state=READY, delay=5):
    job = Job(7, 3, delay, 60, b"body", Tube("t", 0), 1000)
    job.key = "k"
    job.state = state
    job.deadline = 2000
    job.reserves = 1
    extras = job.own_extras()
    extras.timeouts, extras.releases, extras.buries, extras.kicks, extras.bury_sequence = 2, 3, 4, 5, 6
    return job


def a_stored_job(**fields):
    """A stored job with a different value in each field."""
    numbers = {name: number for number, name in enumerate(FIELDS, 10)}
    texts = {"tube": "t", "key": "k", "body": b"body", "state": BURIED, "deadline": 0, "has_terms": True, "at": 0}
    texts |= {"reason": EXPIRED, "origin": "o", "ready_since": 0}
    texts |= {"share": "s", "limit": "l", "limit_count": 1000, "group": "g", "after": "a", "after_waits": True}
    return StoredJob(**(numbers | texts | fields))


@pytest.mark.parametrize(
    ("state", "delay", "stored_as"),
    [
        (READY, 5, READY),
        (RESERVED, 5, READY),
        (NEW, 0, READY),
        (NEW, 5, DELAYED),
        (DELAYED, 5, DELAYED),
        (BURIED, 0, BURIED),
    ],
)
def test_a_job_is_stored_in_the_state_that_it_should_come_back_in(state, delay, stored_as):
    stored = stored_job(a_job(state, delay), OFFSET)
    assert stored.state == stored_as
    assert stored.deadline == (2000 + OFFSET if stored_as == DELAYED else 0)
    assert stored.bury_sequence == (6 if stored_as == BURIED else 0)
    assert (stored.id, stored.tube, stored.key, stored.priority, stored.delay) == (7, "t", "k", 3, delay)
    assert (stored.ttr, stored.body, stored.created_at) == (60, b"body", 1000 + OFFSET)
    assert (stored.reserves, stored.timeouts, stored.releases, stored.buries, stored.kicks) == (1, 2, 3, 4, 5)


def test_moments_stay_within_what_64_bits_hold():
    job = a_job(DELAYED)
    job.deadline = LAST_MOMENT - OFFSET + 1
    assert stored_job(job, OFFSET).deadline == LAST_MOMENT


def test_stored_jobs_with_the_same_values_are_equal():
    job = a_stored_job()
    assert job == StoredJob(*job.values())
    named = [
        name for name in FIELDS if name not in ("deadline", "at", "ready_since", "after_waits")
    ]  # 0, 0, 0, and True
    assert len({repr(getattr(job, name)) for name in named}) == len(named), "no two fields could be confused"
    texts = {"tube": "other", "key": "other", "body": b"other", "origin": "other", "has_terms": False}
    texts |= {"share": "other", "limit": "other", "group": "other", "after": "other", "after_waits": False}
    for name in FIELDS:
        other = job.replace(**{name: texts.get(name, 99)})
        assert other != job
    assert eval(repr(job)) == job
    assert job != job.values()


WITHOUT_TERMS = dict.fromkeys(("max_tries", "backoff", "ttl", "key_hold", "tries", "reason"), 0) | {
    "has_terms": False, "origin": "", "share": "", "limit": "", "limit_count": 0, "group": "", "after": "",
    "after_waits": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"state": DELAYED, "deadline": 17, "bury_sequence": 0},
        {"state": DELAYED, "deadline": 17, "at": 17, "bury_sequence": 0},
        {"state": READY, "bury_sequence": 0},
        {"state": READY, "bury_sequence": 0, "ready_since": 18},
        WITHOUT_TERMS,
        {"state": DELAYED, "deadline": 17, "bury_sequence": 0} | WITHOUT_TERMS,
        {"state": READY, "bury_sequence": 0} | WITHOUT_TERMS,
    ],
)
def test_all_that_is_stored_comes_back(fields):
    stored = a_stored_job(**fields)
    replay = Replay(IdTable())
    replay.put(stored)
    replay.finish(BOOT)
    (job,) = replay.jobs.values()
    assert (job.terms() is not None) == stored.has_terms
    assert stored_job(job, 0) == stored


def test_of_a_held_key_comes_back_what_is_left_of_its_job():
    stored = a_stored_job(state=HELD, deadline=19)
    replay = Replay(IdTable())
    replay.put(stored)
    replay.finish(BOOT)
    (held,) = replay.held.values()
    assert not replay.jobs
    left = {name: getattr(stored, name) for name in ("id", "tube", "key", "state", "created_at", "deadline")}
    assert stored_job(held, 0) == StoredJob(**left, has_terms=True)


def test_the_terms_of_one_job_are_not_taken_for_those_of_the_next():
    """The same object describes one job after the other."""
    with_terms, without = a_job(), a_job()
    terms = with_terms.own_terms()
    terms.max_tries, terms.backoff, terms.ttl, terms.key_hold, terms.tries = 1, 2, 3, 4, 5
    terms.reason, terms.origin, terms.ready_since = EXPIRED, "o", 6
    terms.labels = Labels(share="s", limit="l", limit_count=7, group="g", after="a", after_waits=True)
    stored = StoredJob()
    stored.describe(with_terms, OFFSET)
    assert (stored.ready_since, stored.tries, stored.origin) == (6 + OFFSET, 5, "o")
    stored.describe(without, OFFSET)
    assert stored == stored_job(without, OFFSET)
    assert not stored.has_terms


@pytest.mark.parametrize("state", [NEW, DELAYED])
def test_a_moment_of_the_wall_clock_is_stored_as_it_is(state):
    job = a_job(state, 0)
    job.own_terms().at = 77
    stored = stored_job(job, OFFSET)
    assert (stored.state, stored.deadline, stored.at) == (DELAYED, 77, 77)


def test_a_ready_job_of_which_nobody_knows_since_when():
    job = a_job()
    job.own_terms()
    assert stored_job(job, OFFSET).ready_since == 0


def a_change(whole, **fields):
    """A change that changes nothing but these fields."""
    change = StoredJob(**{name: fields.get(name, getattr(whole, name)) for name in CHANGEABLE})
    change.keeps_key = fields.get("keeps_key", True)
    return change


@pytest.mark.parametrize("has_terms", [True, False])
def test_a_change_restores_everything_that_can_change(has_terms):
    whole = a_stored_job(**({} if has_terms else WITHOUT_TERMS))
    change = StoredJob(whole.id)
    numbers = ["priority", "delay", "deadline", "reserves", "timeouts", "releases", "buries", "kicks"]
    if has_terms:
        change.has_terms, change.tube, change.origin, change.reason = True, "dead", "t", 1
        numbers.append("tries")
    for number, name in enumerate(numbers):
        setattr(change, name, 100 + number)
    change.state = DELAYED
    replay = Replay(IdTable())
    job = replay.put(whole)
    replay.change(change)
    replay.finish(BOOT)
    stored = stored_job(job, 0)
    restored = StoredJob()
    restored.describe_change(job, 0)
    assert restored.keeps_key == change.keeps_key
    for name in CHANGEABLE:
        assert getattr(restored, name) == getattr(change, name), name
    for name in LASTS:
        assert getattr(stored, name) == getattr(whole, name), name
    assert job.tube.name == ("dead" if has_terms else "t")


def test_a_change_can_make_the_terms_of_a_job():
    """Its own demands stay none: what the job remembers comes from the policy of its tube."""
    replay = Replay(IdTable())
    job = replay.put(a_stored_job(**WITHOUT_TERMS))
    replay.change(a_change(a_stored_job(max_tries=0, backoff=0, ttl=0, key_hold=0, tries=1)))
    terms = job.terms()
    assert (terms.tries, terms.reason, terms.origin, terms.max_tries) == (1, EXPIRED, "o", 0)
    assert (terms.key, terms.timeouts, terms.recorded) == ("k", job.extras.timeouts, len("t") + len("k"))


def test_a_job_that_moves_can_lose_its_key():
    replay = Replay(IdTable())
    whole = a_stored_job()
    job = replay.put(whole)
    replay.change(a_change(whole, tube="dead", keeps_key=False))
    replay.finish(BOOT)
    assert (job.tube.name, job.key) == ("dead", "")
    assert sorted(replay.jobs) == [whole.id]


def test_a_clear_ends_the_jobs_that_have_moved_to_the_tube_and_not_those_that_have_left_it():
    replay = Replay(IdTable())
    jobs = [a_stored_job(id=number, key="") for number in range(4)]
    for job in jobs:
        replay.put(job)
    replay.change(a_change(jobs[1], tube="dead"))
    replay.clear("dead", [])
    replay.change(a_change(jobs[2], tube="dead"))
    replay.clear("t", [])
    replay.change(a_change(jobs[0], tube="dead"))  # a job that is gone stays gone
    replay.finish(BOOT)
    assert [(job.id, job.tube.name) for job in replay.jobs.values()] == [(2, "dead")]


def test_a_held_key_is_no_job_and_ends_with_a_delete_or_a_clear():
    replay = Replay(IdTable())
    jobs = [a_stored_job(id=number, key=f"k{number}") for number in range(5)]
    for job in jobs:
        replay.put(job)
    for job in jobs[1:]:
        replay.change(a_change(job, state=HELD, deadline=50))
    assert sorted(replay.jobs) == [0]
    assert [(held.id, held.key, held.deadline) for held in replay.held.values()] == [
        (number, f"k{number}", 50) for number in (1, 2, 3, 4)
    ]
    replay.delete(2)
    replay.put(a_stored_job(id=3, key="k3", state=HELD, deadline=50, body=b""))  # what cleaning writes
    assert sorted(replay.held) == [1, 3, 4]
    replay.clear("t", [1])
    replay.put(a_stored_job(id=4, key="k4", state=HELD, deadline=50, body=b""))
    replay.finish(BOOT)
    assert not replay.jobs
    assert sorted(replay.held) == [4]


def test_a_held_key_is_free_if_a_later_job_has_it():
    replay = Replay(IdTable())
    held, later = a_stored_job(id=1), a_stored_job(id=2)
    replay.put(held)
    replay.change(a_change(held, state=HELD, deadline=50))
    job = replay.put(later)
    replay.finish(BOOT)
    assert replay.give_up_shared_keys() == []
    assert job.key == "k"
    assert not replay.held


def test_moments_go_with_the_servers_clock_but_for_one_of_the_wall_clock():
    replay = Replay(IdTable(), clock_offset=1500)
    replay.clock(1000, BOOT)
    for number, fields in enumerate(
        [
            {"state": DELAYED, "deadline": 10_000},
            {"state": DELAYED, "deadline": 10_000, "at": 10_000},
            {"state": READY, "ready_since": 9_000},
            {"state": READY},
        ]
    ):
        replay.put(a_stored_job(id=number, key="", created_at=8_000, **fields))
    replay.put(a_stored_job(id=9, state=HELD, deadline=11_000, created_at=8_000))
    replay.clock(1200, BOOT)
    replay.put(a_stored_job(id=4, key="", created_at=8_200, state=READY, ready_since=9_200))
    replay.change(a_change(a_stored_job(id=9), state=HELD, deadline=11_200))  # no job has this id any more
    replay.finish(BOOT)
    jobs = [replay.jobs[number] for number in range(5)]
    assert [job.created_at for job in jobs] == [8_500] * 5
    assert [job.deadline for job in jobs[:2]] == [10_500, 10_000]
    assert [job.terms().ready_since for job in jobs[2:]] == [9_500, 0, 9_500]
    assert replay.held[9].deadline == 11_500


def test_a_clear_deletes_the_jobs_before_it_except_those_that_it_spares():
    replay = Replay(IdTable())
    for job_id in (1, 2, 3):
        replay.put(a_stored_job(id=job_id, key=""))
    replay.put(a_stored_job(id=4, key="", tube="other"))
    replay.clear("t", [2, 4, 9])
    replay.put(a_stored_job(id=3, key=""))
    replay.put(a_stored_job(id=5, key=""))
    replay.clear("other", [])
    replay.clear("other", [4])  # it was gone already
    replay.clear("unknown", [5])
    replay.finish(BOOT)
    assert sorted(replay.jobs) == [2, 3, 5]
    assert replay.last_id == 5
