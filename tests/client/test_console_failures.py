"""Failures in groups, and what is wrong now in words."""

import json

import pytest
from beanstalk_client.console.bodies import Report
from beanstalk_client.console.failures import MAX_TEXT, Failed, _read_body, group, same_error


def failed(job_id, error="", task="send", tube="mails", buried="", reason="", state="buried"):
    report = Report(job_id, tube, task, error, 1, buried, "w", []) if error else None
    return Failed(job_id, tube, state, 10, 5, reason, report, task)


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("ValueError: order 17 is gone", "ValueError: order 4711 is gone", True),
        ("KeyError: 'a'", "KeyError: 'b'", True),
        ("at 0x7f08", "at 0x7fff", True),
        ("ValueError: a", "KeyError: a", False),
    ],
)
def test_errors_are_the_same_but_for_numbers_and_quoted_text(one, other, are_same):
    assert (same_error(one) == same_error(other)) == are_same


def test_jobs_are_grouped_by_tube_task_and_error():
    jobs = [
        failed(1, "ValueError: order 1", buried="2026-01-01"),
        failed(2, "ValueError: order 2", buried="2026-01-03"),
        failed(3, "ValueError: order 3", buried="2026-01-02"),
        failed(4, "ValueError: order 4", task="other"),
        failed(5, reason="timed-out"),
        failed(6, reason="expired", tube="dead", state="dead"),
    ]
    groups = group(jobs)
    assert next([job.id for job in each.jobs] for each in groups) == [1, 2, 3]
    assert (groups[0].first, groups[0].last, groups[0].error) == ("2026-01-01", "2026-01-03", "ValueError: order 2")
    assert groups[0].example.id == 2
    assert {each.error for each in groups[1:]} == {
        "ValueError: order 4",
        "its time to run ended",
        "it expired",
    }
    assert next(each.key for each in group(jobs[::-1])) == groups[0].key


def test_texts_of_a_report_are_cut_before_they_are_kept_and_matched():
    long = "x" * 10_000
    texts = dict.fromkeys(("tube", "task", "error", "buried", "worker"), long)
    found = _read_body(json.dumps({"job": 1, "traceback": ["y"], **texts}).encode())
    assert found == Report(
        1, long[:MAX_TEXT], long[:MAX_TEXT], long[:MAX_TEXT], 0, long[:MAX_TEXT], long[:MAX_TEXT], []
    )
    assert same_error("'" * MAX_TEXT + "1") == same_error("'" * MAX_TEXT + "x" * 60_000)
    assert _read_body(json.dumps({"task": long, "args": [], "kwargs": {}}).encode()) == long[:MAX_TEXT]
    assert _read_body(json.dumps({"task": long * 7, "args": [], "kwargs": {}}).encode()) == ""
