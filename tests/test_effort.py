"""The seeds of random tests: those that have failed first, and that a line of failing_seeds.txt is about a test."""

import re

import effort
from effort import BASE_SEED, TESTS, failing_seeds, seeds, some_of


def test_the_seeds_of_a_run_begin_at_its_base_seed():
    assert seeds(100)[0] == BASE_SEED
    assert len(seeds(100)) == len(set(seeds(100))) == effort.examples(100)


def test_a_seed_that_has_failed_comes_first_and_for_its_test_only(tmp_path, monkeypatch):
    path = tmp_path / "failing_seeds.txt"
    path.write_text("# a comment\nqueue/test_x.py::test_y 987654321987 lost a job\n")
    lines = failing_seeds(path)
    monkeypatch.setattr(effort, "failing_seeds", lambda: lines)
    assert seeds(100, "queue/test_x.py::test_y") == [987654321987, *seeds(100)]
    assert seeds(100, "queue/test_x.py::test_z") == seeds(100)


def test_each_line_of_failing_seeds_is_about_a_test_with_seeds():
    for test, _, _ in failing_seeds():
        path, _, name = test.partition("::")
        before, *_ = re.split(rf"\n(?:async )?def {name}\(", (TESTS / path).read_text())
        assert "@seeded(" in before.rpartition("\n\n")[2], f"failing_seeds.txt: {test} is no test with seeds"


def test_some_of_draws_cases_in_their_order_or_takes_all():
    cases = range(10_000_000)
    drawn = some_of(cases, 100, 1)
    assert drawn == sorted(set(drawn)) == some_of(cases, 100, 1) != some_of(cases, 100, 2)
    assert len(drawn) == effort.examples(100)
    assert some_of("abc", 100_000, 1) == ["a", "b", "c"]
