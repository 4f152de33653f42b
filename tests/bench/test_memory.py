"""The bench that measures what a job costs in memory."""

import pytest

from beanstalk_server.queue.memory import BODY_COST, HELD_COST, JOB_COST, KEY_COST, TERMS_COST, TIMER_COST
from bench.memory import BODY, KINDS, main, measure
from bench.servers import Server

PLAIN = JOB_COST + BODY_COST + len(BODY)
KEY = 12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cost"),
    [
        ("delayed", PLAIN),
        ("key", PLAIN + KEY_COST + KEY),
        ("ttl", PLAIN + TERMS_COST + TIMER_COST),
        ("held key", HELD_COST + KEY),
    ],
)
def test_jobs_of_each_kind_are_put_and_counted(kind, cost):
    server = Server("interpreted")
    try:
        resident, said = measure(server, kind, 500)
    finally:
        server.stop()
    assert resident > 0
    assert said == cost


def test_every_kind_is_one_that_a_server_takes(capsys):
    assert main(["--peer", "interpreted", "--jobs", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(KINDS)
