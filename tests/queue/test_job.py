"""A job's numbers, which take little memory and lose nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue.job import NO_EXTRAS, Job
from beanstalk_server.queue.stored_job import stored_job
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.units import MILLISECOND, SECOND

TUBE = Tube("t", 0)
MAX_U32 = 2**32 - 1

numbers = st.one_of(st.integers(0, MAX_U32), st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**31 + 1, MAX_U32]))
durations = st.one_of(
    st.integers(0, 2**32 * SECOND - 1),
    st.integers(0, MAX_U32).map(lambda seconds: seconds * SECOND),
    st.integers(0, 2**31 * 1000).map(lambda milliseconds: milliseconds * MILLISECOND),
    st.integers(-2, 2).map(lambda rest: (2**31 - 1) * MILLISECOND + rest),
    st.integers(-2, 2).map(lambda rest: 2**31 * MILLISECOND + rest),
    st.integers(-2, 2).map(lambda rest: (2**31 - 1) * SECOND + rest),
    st.integers(-2, 2).map(lambda rest: 2**31 * SECOND + rest),
    st.just(MAX_U32 * SECOND),
    st.just(2**61),  # more than a client can ask for
)


def new_job(priority=0, delay=0, ttr=SECOND):
    return Job(7, priority, delay, ttr, b"body", TUBE, 0)


@given(numbers, durations, durations, numbers, st.tuples(numbers, durations, durations, numbers))
def test_every_number_that_a_client_may_give_is_kept(priority, delay, ttr, reserves, then):
    job = new_job(priority, delay, ttr)
    job.reserves = reserves
    assert (job.priority, job.delay, job.ttr, job.reserves) == (priority, delay, ttr, reserves)
    job.priority, job.delay, job.ttr, job.reserves = then
    assert (job.priority, job.delay, job.ttr, job.reserves) == then
    fresh = job.renewed(priority, delay, ttr, b"", job.created_at)
    assert (fresh.priority, fresh.delay, fresh.ttr, fresh.reserves) == (priority, delay, ttr, then[3])
    assert (job.priority, job.delay, job.ttr, job.reserves) == then, "and those of the old one stay"
    stored = stored_job(job, 0)
    assert (stored.priority, stored.delay, stored.ttr, stored.reserves) == then
    assert (NO_EXTRAS.delay_rest, NO_EXTRAS.ttr_rest) == (0, 0)


@pytest.mark.parametrize("duration", [0, MILLISECOND, 3600_250 * MILLISECOND, MAX_U32 // 2 * SECOND])
def test_whole_milliseconds_and_long_whole_seconds_take_no_extras(duration):
    assert new_job(0, duration, duration).extras is NO_EXTRAS


def test_a_job_may_be_reserved_more_often_than_32_bits_can_count():
    job = new_job()
    job.reserves = 2**31 - 1
    job.reserves += 1
    assert job.reserves == 2**31
    job.reserves = MAX_U32
    job.reserves += 1
    assert job.reserves == 0, "as beanstalkd counts"


def test_a_key_is_in_the_extras_and_none_is_needed_for_no_key():
    job = new_job()
    job.key = ""
    assert job.key == "" and job.extras is NO_EXTRAS
    job.key = "k"
    job.own_extras().releases = 3
    fresh = job.renewed(0, 0, SECOND, b"", job.created_at)
    assert (fresh.key, fresh.extras.releases) == ("k", 3)
    job.key = ""
    assert (job.key, fresh.key) == ("", "k")
    assert NO_EXTRAS.key == ""
