"""A worker under stress: its tasks run as often as documented, never two at once, and it stops in time.

More of it: PYTHONPATH=client:tests:tests/client python -m tests.client.stress --seconds 600
"""

import pytest
from effort import seeded

from tests.client.stress.program import generators
from tests.client.stress.round import run


def test_no_generator_function_is_a_task():
    assert [*generators()] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@seeded(2)
def test_each_task_runs_as_often_as_documented(seed, tmp_path):
    one = run(seed, tmp_path / "round")
    assert not one.problems, "\n".join([f"python -m tests.client.stress --seed {seed}", str(one), *one.problems])
