"""Servers that are wrong in one thing: the report names each fault, and the run ends."""

import time

import pytest
from wrong_server import answers, closes_at, floods, hangs, wrong_server

from conformance import report, run, runner, servers
from conformance.conversation import read
from conformance.servers import UnusableError

CONVERSATIONS = """
== the tube in use
> put 0 0 60 5
> hello
< INSERTED {job}
> list-tube-used
< USING default
== a job is deleted
> put 0 0 60 1
> x
< INSERTED {job}
> delete {job}
< DELETED
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(runner, "TIMEOUT", 1.0)
    monkeypatch.setattr(runner, "PATIENCE", 0.3)
    monkeypatch.setattr(servers, "ANSWERS_WITHIN", 1.0)
    monkeypatch.setattr(runner, "MOST", 1 << 22)


def against(server, restart_command=""):
    began = time.monotonic()
    found = run.against(server.address, list(read(CONVERSATIONS, "some.txt", "protocol")), restart_command)
    assert time.monotonic() - began < 30
    return found


def statuses(found):
    return [outcome.status for outcome in found.outcomes]


def test_a_server_that_is_right_passes():
    with wrong_server() as server:
        found = against(server)
    assert found.passed, report.failures([found])
    assert report.summary(found) == "          passed  failed  not run\nprotocol       2       0        0\n"


@pytest.mark.parametrize(
    ("fault", "received"),
    [
        (answers(b"list-tube-used", b"USING another\r\n"), '"USING another\\r\\n"'),
        (answers(b"list-tube-used", b"USING default\n"), '"USING default\\n"'),
        (answers(b"list-tube-used", b""), "nothing within 0.3 s"),
        (answers(b"list-tube-used", b"USING"), '"USING" and no more within 0.3 s'),
        (answers(b"list-tube-used", b"\x00\xff{\\\r\n"), '"\\0\\xff\\{\\\\\\r\\n"'),
        (closes_at(b"list-tube-used"), "the end of the connection"),
    ],
    ids=["another reply", "no CR", "silence", "a part of the reply", "garbage", "a closed connection"],
)
def test_a_failure_shows_what_was_sent_expected_and_received(fault, received):
    with wrong_server(fault) as server:
        found = against(server)
    assert statuses(found) == ["failed", "passed"]
    assert report.failures([found]).splitlines() == [
        "protocol/some.txt:2: the tube in use",
        "    > put 0 0 60 5",
        "    > hello",
        "    < INSERTED 2",  # the second try
        "    > list-tube-used",
        "    expected  < USING default",
        f"    received  {received}",
        "",
    ]
    assert "protocol       1       1        0\n" in report.summary(found)


def test_garbage_without_an_end_ends_the_conversation():
    with wrong_server(floods(b"list-tube-used")) as server:
        found = against(server)
    assert statuses(found) == ["failed", "passed"]
    assert "\\xff\\0garbage" in found.outcomes[0].transcript[-1]


@pytest.mark.parametrize(
    ("fault", "received"),
    [
        (answers(b"delete", b"DELETED\r\n"), 'job 1, peeked again after delete: "DELETED\\r\\n"'),
        (answers(b"delete", b"NOT_FOUND\r\n"), 'job 1, delete: "NOT_FOUND\\r\\n"'),
        (answers(b"delete", b""), 'no reply to "delete 1" within 1 s'),
        (closes_at(b"delete"), 'no reply to "delete 1": the server closed the connection'),
        (answers(b"list-tubes", b"OK 99\r\n---\r\n"), "5 of 99 bytes that were announced"),
        (answers(b"list-tubes", b"OK\r\n"), '"OK\\r\\n" as the reply to list-tubes'),
    ],
)
def test_the_rest_is_not_run_when_jobs_cannot_be_deleted(fault, received):
    with wrong_server(fault) as server:
        found = against(server)
    assert statuses(found) == ["failed", "skipped"]
    assert found.outcomes[0].transcript[-2:] == [
        "expected  no job and no tube except default after deleting all jobs",
        f"received  {received}",
    ]
    assert "not run, protocol:\n    1  jobs were left that could not be deleted\n" in report.summary(found)


def test_a_tube_that_stays_is_reported_once():
    with wrong_server(answers(b"list-tubes", b"OK 22\r\n---\n- default\n- left\n\n\r\n")) as server:
        found = against(server)
    assert statuses(found) == ["passed", "passed"]  # on the second try
    assert [outcome.tries for outcome in found.outcomes] == [2, 1]


def test_the_rest_is_not_run_when_the_server_stops_answering():
    with wrong_server(hangs(b"list-tube-used")) as server:
        found = against(server)
    assert statuses(found) == ["failed", "skipped"]
    assert found.outcomes[0].transcript[-2:] == ["expected  < USING default", "received  nothing within 0.3 s"]
    assert "not run, protocol:\n    1  the server stopped answering\n" in report.summary(found)


def test_a_server_that_stops_answering_is_restarted(tmp_path):
    hung = tmp_path / "hung"
    with wrong_server(hangs(b"list-tube-used", until_missing=hung)) as server:
        found = against(server, f"rm {hung}")
    assert statuses(found) == ["failed", "passed"]


def test_a_restart_that_fails_is_the_reason_why_the_rest_is_not_run():
    with wrong_server(hangs(b"list-tube-used")) as server:
        found = against(server, "echo no such unit; exit 3")
    assert found.outcomes[1].reason == "--restart: the command exited with status 3: no such unit"


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (answers(b"stats", b"HTTP/1.1 400 Bad Request\r\n"), "not that of a beanstalk server"),
        (closes_at(b"stats"), "not that of a beanstalk server"),
        (answers(b"stats", b"OK 4\r\n---\n\r\n"), "stats has no `version`"),
        (answers(b"stats", b'OK 20\r\n---\nversion: "1.13"\n\r\n'), "stats has no number of jobs"),
    ],
)
def test_a_server_without_statistics_is_refused(fault, complaint):
    with wrong_server(fault) as server, pytest.raises(UnusableError, match=complaint):
        against(server)
