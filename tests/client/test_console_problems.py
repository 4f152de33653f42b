"""What is wrong now, in words."""

import pytest
from beanstalk_client.console.problems import problems_of
from beanstalk_client.observe.sampler import Sampler

CALM = {"current-jobs-ready": 0, "current-watching": 1, "total-jobs": 0, "cmd-delete": 0}


def told(*tubes, server=None, problem=""):
    sampler = Sampler(None, lambda: 100.0)
    sampler.error = OSError(problem) if problem else None
    if server is not None:
        sampler.samples.take_server(90.0, {"uptime": 1} | server)
    for name, figures in tubes:
        sampler.samples.take_tube(90.0, name, CALM | figures)
        if figures.get("throttled"):
            sampler.throttled.add(name)
    return [found.text for found in problems_of(sampler)]


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"current-jobs-ready": 3, "current-watching": 0}, "1 tube has ready jobs and no worker."),
        ({"current-jobs-ready": 3, "pause-time-left": 9}, "1 tube with ready jobs is paused."),
        ({"current-jobs-buried": 1}, "1 job is buried in 1 tube."),
        ({"current-jobs-buried": 2000}, "2,000 jobs are buried in 1 tube."),
        ({"throttled": 1}, "1 tube is throttled by its policy."),
    ],
)
def test_what_is_wrong_with_a_tube(figures, text):
    assert told(("a", figures)) == [text]


def test_several_tubes_are_one_problem():
    alone = {"current-jobs-ready": 1, "current-watching": 0}
    assert told(("a", alone), ("b", alone), ("a.errors", alone), ("a.results", alone)) == [
        "2 tubes have ready jobs and no worker."
    ]


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"draining": "true"}, "The server is in drain mode: it accepts no new jobs."),
        ({"current-memory": 92, "max-memory": 100}, "Jobs use 92% of --max-memory."),
        ({"refused-jobs": 2}, "2 puts were refused by policies since the server started."),
        (
            {"cluster-role": "standby", "cluster-leader": "x"},
            "The answering node is not the leader: its role is standby.",
        ),
    ],
)
def test_what_is_wrong_with_the_server(figures, text):
    assert told(server=figures) == [text]


def test_a_calm_server_has_no_problem():
    assert told(("a", {}), server={"draining": "false", "max-memory": 0}) == []
    assert told(problem="gone") == ["The server does not answer: gone"]
