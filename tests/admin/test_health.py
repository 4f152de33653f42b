"""Whether a server is well, in each of its conditions."""

import pytest
from operator_site import Operators

from beanstalk_server.admin.health import Condition

STARTS = "starting: recovering the jobs"


def test_a_server_that_serves_is_ready():
    operators = Operators()
    for path in ("/healthz", "/readyz", "/readyz/cluster"):
        assert operators.ask(path)[::2] == (200, "ok\n")


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        (Condition(is_starting=True), STARTS),
        (Condition(is_draining=True), "draining: refuses new jobs"),
        (Condition(is_stranded=True, is_standby=True), "standby: cannot reach a leader"),
        (Condition(is_suspended=True), "suspended: the lease was not renewed in time"),
        (Condition(has_failed=True), "failed: no more changes are acknowledged"),
        (Condition(has_failed=True, is_stopping=True, is_draining=True), "failed: no more changes are acknowledged"),
        (Condition(is_stopping=True, is_draining=True), "stopping"),
    ],
)
def test_a_server_that_does_not_serve_is_alive_and_says_why(condition, reason):
    operators = Operators()
    operators.condition = condition
    assert operators.ask("/healthz")[::2] == (200, "ok\n")
    assert operators.ask("/readyz")[::2] == (503, f"{reason}\n")
    assert operators.ask("/readyz/cluster")[::2] == (503, f"{reason}\n")


def test_a_node_that_serves_through_a_leader_is_ready_as_a_part_of_its_cluster_only():
    operators = Operators()
    operators.condition = Condition(is_standby=True)
    assert operators.ask("/readyz")[::2] == (503, "standby: another node leads\n")
    assert operators.ask("/readyz/cluster")[::2] == (200, "ok\n")


@pytest.mark.parametrize("condition", [Condition(is_starting=True), Condition(is_stopping=True)])
def test_nothing_is_shown_before_and_behind_the_time_in_which_a_server_serves(condition):
    operators = Operators()
    operators.condition = condition
    for path in ("/metrics", "/stats.json"):
        assert operators.ask(path)[::2] == (503, f"{condition.hindrance()}\n")


def test_a_server_that_drains_still_shows_its_metrics():
    operators = Operators()
    operators.condition = Condition(is_draining=True)
    assert operators.ask("/metrics")[0] == 200
