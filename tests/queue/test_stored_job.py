"""A job as it is stored: what is stored in each state, and that a restart restores all of it."""

import pytest

from beanstalk_server.queue.job import BURIED, DELAYED, NEW, READY, RESERVED, Job
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import FIELDS, LAST_MOMENT, StoredChange, StoredJob, stored_job
from beanstalk_server.queue.table import JobTable
from beanstalk_server.queue.tube import Tube

BOOT = bytes(16)
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
    numbers = {name: number for number, name in enumerate(FIELDS, 1)}
    texts = {"tube": "t", "key": "k", "body": b"body", "state": BURIED, "deadline": 0}
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
    assert len(set(map(repr, job.values()))) == len(FIELDS), "no two fields could be confused"
    texts = {"tube": "other", "key": "other", "body": b"other"}
    for name in FIELDS:
        other = job.replace(**{name: texts.get(name, 99)})
        assert other != job
    assert eval(repr(job)) == job
    assert job != job.values()


@pytest.mark.parametrize(
    "fields", [{}, {"state": DELAYED, "deadline": 17, "bury_sequence": 0}, {"state": READY, "bury_sequence": 0}]
)
def test_all_that_is_stored_comes_back(fields):
    stored = a_stored_job(**fields)
    replay = Replay(JobTable())
    replay.put(stored)
    replay.finish(BOOT)
    (job,) = replay.jobs.values()
    assert stored_job(job, 0) == stored


def test_a_change_restores_everything_that_can_change():
    whole = a_stored_job()
    change = StoredChange(whole.id)
    numbers = ("priority", "delay", "deadline", "reserves", "timeouts", "releases", "buries", "kicks")
    for number, name in enumerate(numbers):
        setattr(change, name, 100 + number)
    change.state = DELAYED
    replay = Replay(JobTable())
    job = replay.put(whole)
    replay.change(change)
    stored = stored_job(job, 0)
    restored = StoredChange()
    restored.describe(job, 0)
    changeable = ("id", "state", "bury_sequence", *numbers)
    assert set(FIELDS) - set(changeable) == {"tube", "key", "ttr", "body", "created_at"}
    assert [getattr(restored, name) for name in changeable] == [getattr(change, name) for name in changeable]
    assert (stored.tube, stored.key, stored.ttr, stored.body, stored.created_at) == (
        whole.tube, whole.key, whole.ttr, whole.body, whole.created_at
    )  # fmt: skip


def test_a_clear_deletes_the_jobs_before_it_except_those_that_it_spares():
    replay = Replay(JobTable())
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
