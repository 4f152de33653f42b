"""The log of refused clients: the first of each minute one by one, and then how many there were."""

import pytest
from rounds import Loop

from beanstalk_server.server.bounded import REFUSALS as ONE_BY_ONE
from beanstalk_server.server.bounded import REFUSALS_INTERVAL as INTERVAL
from beanstalk_server.server.bounded import ForbiddenCommands, Refusals


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def refusals(loop):
    refusals = Refusals()
    refusals.start(loop)
    return refusals


def refuse(refusals, count):
    for number in range(count):
        refusals.note(f"192.0.2.7:{number}", "0.0.0.0:11300", "unknown token")


def test_each_refusal_is_a_line_while_there_are_few(loop, refusals, caplog):
    for _ in range(3):
        refuse(refusals, ONE_BY_ONE)
        loop.sleep(INTERVAL)
    assert len(caplog.messages) == 3 * ONE_BY_ONE
    assert caplog.messages[0] == "192.0.2.7:0 refused at 0.0.0.0:11300: unknown token"


def test_of_many_the_first_are_logged_and_the_others_counted(loop, refusals, caplog):
    refuse(refusals, ONE_BY_ONE + 1000)
    assert len(caplog.messages) == ONE_BY_ONE
    loop.sleep(INTERVAL)
    assert caplog.messages[ONE_BY_ONE:] == ["1000 more clients were refused within 60 s"]
    loop.sleep(10 * INTERVAL)
    refuse(refusals, ONE_BY_ONE + 1)
    loop.sleep(INTERVAL)
    assert caplog.messages[2 * ONE_BY_ONE + 1 :] == ["1 more client was refused within 60 s"]


def test_nothing_wakes_a_server_that_refuses_nobody(loop, refusals):
    refuse(refusals, 1)
    loop.sleep(INTERVAL)
    assert not loop.soon
    assert not loop.later


def test_the_count_is_logged_when_the_server_stops(refusals, caplog):
    refusals.stop()
    refuse(refusals, ONE_BY_ONE + 5)
    refusals.stop()
    assert caplog.messages[ONE_BY_ONE:] == ["5 more clients were refused within 60 s"]


def test_forbidden_commands_are_logged_with_what_they_need_and_then_counted(loop, caplog):
    forbidden = ForbiddenCommands()
    forbidden.start(loop)
    for _ in range(ONE_BY_ONE + 2):
        forbidden.note("", "web", "put needs the right to produce in tube mail")
    loop.sleep(INTERVAL)
    assert caplog.messages[0] == (
        "forbidden for user web at an unnamed client: put needs the right to produce in tube mail"
    )
    assert caplog.messages[ONE_BY_ONE:] == ["2 more commands were forbidden within 60 s"]
