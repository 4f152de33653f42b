"""`beanstalk show`: which sentence follows from what a server and a report say of a job."""

import pytest
from beanstalk_client.cli.show import why_there

JOB = {"id": 17, "tube": "mail", "time-left": 40, "reserves": 3, "releases": 0}
COUNTED = {"tries": 3, "max-tries": 13, "reason": "released", "origin": ""}
TUBE = {"name": "mail", "pause-time-left": 0, "current-watching": 2}
REPORT = {"worker": "web1:77", "buried": "2026-05-04T12:30:00+00:00", "tries": 13, "error": "KeyError: 'x'"}


@pytest.mark.parametrize(
    ("job", "tube", "report", "why"),
    [
        (
            {"state": "reserved"},
            {},
            None,
            "a worker has reserved it; its time to run ends in 40 s unless the worker touches it (reserves: 3)",
        ),
        (
            {"state": "reserved", "client": "shop/web-3/4711", "reserved-for": 20},
            {},
            None,
            "shop/web-3/4711 reserved it 20 s ago; its time to run ends in 40 s unless the worker touches it "
            "(reserves: 3)",
        ),
        ({"state": "delayed"}, {}, None, "it is ready in 40 s"),
        ({"state": "delayed", "releases": 2}, {}, None, "a worker released it (releases: 2); it is ready in 40 s"),
        (
            {"state": "delayed", **COUNTED},
            {},
            None,
            "failure 3 of 13: a worker released it; it is ready in 40 s",
        ),
        (
            {"state": "delayed", **COUNTED, "max-tries": 0, "reason": "timed-out"},
            {},
            None,
            "failure 3: its time to run ended; it is ready in 40 s",
        ),
        ({"state": "buried"}, {}, None, "it was buried without a report"),
        (
            {"state": "buried"},
            {},
            REPORT,
            "web1:77 buried it at 2026-05-04T12:30:00+00:00 (reserves: 3): KeyError: 'x'",
        ),
        (
            {"state": "buried", **COUNTED, "tries": 13, "reason": "disconnected"},
            {},
            None,
            "failure 13 of 13: its worker disconnected; there is no report",
        ),
        ({"state": "ready"}, {}, None, "it is waiting for a worker to reserve it"),
        ({"state": "ready"}, {"current-watching": 0}, None, "no client is watching its tube"),
        (
            {"state": "ready"},
            {"pause-time-left": 9},
            None,
            "its tube is paused for 9 s more (beanstalk resume mail)",
        ),
        (
            {"state": "ready"},
            {"pause-time-left": 2**32 - 60},
            None,
            "its tube is paused until resumed (beanstalk resume mail)",
        ),
        ({"state": "ready"}, {"throttled": 1}, None, "its tube has reached the rate or max-reserved of its policy"),
        (
            {"state": "ready", **COUNTED},
            {},
            None,
            "failure 3 of 13: a worker released it; it is waiting for a worker to reserve it",
        ),
        (
            {"state": "ready", **COUNTED, "tries": 0, "reason": "expired", "origin": "mail"},
            {"current-watching": 0},
            None,
            "it comes from mail (it expired); no client is watching its tube",
        ),
    ],
)
def test_the_sentence(job, tube, report, why):
    assert why_there(JOB | job, TUBE | tube, report) == why
