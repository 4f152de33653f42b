"""The table of commands, and what is derived from it."""

from pathlib import Path

import pytest
from beanstalk_client import commands as client
from virtual import World

from beanstalk_server.access.rights import ADMIN, ANY_RIGHT, CONSUME, INSPECT, NO_RIGHT, PRODUCE
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.wire.authorization import (
    EVERY_TUBE,
    NO_TUBE,
    TUBE_IN_USE,
    TUBE_NAMED,
    TUBE_OF_JOB,
    TUBES_OF_JOBS,
    TWO_TUBES,
    WATCHED_TUBES,
)
from beanstalk_server.wire.commands import (
    AUTH,
    CHANGES,
    COUNTERS,
    DELETES,
    DIALECTS,
    EXTENSIONS,
    LONG_COMMANDS,
    LONGEST_COMMANDS,
    PROTOCOL,
)

ROWS = PROTOCOL + EXTENSIONS

RIGHTS = {
    "produce": PRODUCE,
    "consume": CONSUME,
    "inspect": INSPECT,
    "admin": ADMIN,
    "any": ANY_RIGHT,
    "none": NO_RIGHT,
}

SCOPES = {
    "the tube in use": TUBE_IN_USE,
    "the tube named": TUBE_NAMED,
    "the two tubes named": TWO_TUBES,
    "the tube of the job": TUBE_OF_JOB,
    "the tube of each job": TUBES_OF_JOBS,
    "the watched tubes": WATCHED_TUBES,
    "every tube (`*`)": EVERY_TUBE,
    "no tube": NO_TUBE,
}

ACCESS = Path(__file__).parents[2] / "docs/access.md"


def test_the_client_has_the_same_commands():
    assert {row.name for row in PROTOCOL} == client.BASE
    assert {row.name for row in EXTENSIONS} == client.EXTENSIONS


def test_no_two_commands_have_the_same_name():
    assert len({row.name for row in ROWS}) == len(ROWS) == 57


def test_the_table_in_the_documents_says_what_each_command_asks_for():
    """docs/access.md, "Rights by command", row by row."""
    section = ACCESS.read_text().split("## Rights by command")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    documented = [(name.strip("`"), RIGHTS[right], SCOPES[scope], refusal) for name, right, scope, refusal in rows]
    assert documented == [(row.name, row.right, row.scope, refusal_of(row)) for row in (*ROWS, AUTH)]


def refusal_of(row):
    if row.scope == NO_TUBE:
        return "never refused"
    if row.scope == TUBES_OF_JOBS:
        return "counts as not found"
    return "`NOT_FOUND`" if row.hides else "`FORBIDDEN`"


def test_every_command_that_is_counted_has_a_counter_of_its_own():
    assert sorted(row.counter for row in ROWS if row.is_counted) == list(range(COUNTERS))
    assert {row.name for row in ROWS if not row.is_counted} == {"kick-job", "reserve-job", "quit"}


def test_the_prefix_of_a_line_shows_what_its_command_needs():
    assert CHANGES == (
        b"reserve-job ",
        b"release ",
        b"bury ",
        b"kick ",
        b"kick-job ",
        b"reschedule ",
        b"reschedule-keyed ",
        b"redrive ",
        b"move-jobs ",
        b"release-batch ",
        b"reprioritize ",
        b"reprioritize-keyed ",
        b"give-back ",
    )
    assert DELETES == (
        b"delete ",
        b"pause-tube ",
        b"cancel ",
        b"cancel-keyed ",
        b"clear-tube ",
        b"cancel-group ",
        b"delete-batch ",
    )
    assert (
        b"put-keyed ",
        b"replace-keyed ",
        b"reschedule-keyed ",
        b"put-with ",
        b"list-jobs ",
        b"stats-tubes ",
        b"move-jobs ",
        *LONGEST_COMMANDS,
        b"reprioritize-keyed ",
    ) == LONG_COMMANDS
    assert LONGEST_COMMANDS == (b"delete-batch ", b"release-batch ", b"touch-batch ")
    assert {row.needs for row in ROWS if row.has_body} == {DELETIONS}
    assert {row.needs for row in ROWS} == {ALL, DELETIONS, NONE}


def test_the_commands_that_tell_of_other_clients_cost_more_and_wait_for_hang_ups():
    asking = {row.name for row in ROWS if row.cost}
    assert asking == {"stats", "stats-job", "stats-tube", "stats-tubes", "stats-group", "list-clients"}


def test_both_dialects_have_every_command_count_it_alike_and_ask_for_the_same_right():
    def told(row):
        return row.counter, row.right, row.scope, row.hides

    for dialect in DIALECTS.values():
        found = {**dialect.without_arguments, **dialect.with_arguments}
        assert {name.decode(): told(row) for name, row in found.items()} == {row.name: told(row) for row in ROWS}


# --compat 1.12, as Debian's beanstalkd answers

TIMED_OUT = b"TIMED_OUT\r\n"
BAD = b"BAD_FORMAT\r\n"


@pytest.mark.parametrize(
    ("timeout", "reply"),
    [
        (b" 0", TIMED_OUT),
        (b" 0.000", TIMED_OUT),
        (b" 0x", TIMED_OUT),
        (b" ", TIMED_OUT),
        (b" soon", TIMED_OUT),
        (b" +0", TIMED_OUT),
        (b" -0", TIMED_OUT),
        (b" - 1", TIMED_OUT),
        (b" \t\n0", TIMED_OUT),
        (b" 4294967296", TIMED_OUT),
        (b" -4294967296", TIMED_OUT),
        (b" -9223372036854775808", TIMED_OUT),
        (b" -9223372036854775809", BAD),
        (b" 9223372036854775808", BAD),
        (b" 99999999999999999999999", BAD),
        (b"", BAD),
        (b"\t0", BAD),
        (b" soon\0", BAD),
        (b" 0\0", BAD),
    ],
)
def test_compat_1_12_reads_a_timeout_that_is_not_a_number_as_0(timeout, reply):
    client = World(compat="1.12").connect()
    assert client.send(b"reserve-with-timeout" + timeout + b"\r\n") == reply
    assert client.yaml(b"stats")["cmd-reserve-with-timeout"] == ("1" if reply == TIMED_OUT else "0")


@pytest.mark.parametrize("timeout", [b"-1", b"2147483648", b"4294967295", b"9223372036854775807", b"-2147483648"])
def test_compat_1_12_waits_for_ever_when_the_timeout_is_negative(timeout):
    world = World(compat="1.12")
    client = world.connect()
    assert client.send(b"reserve-with-timeout " + timeout + b"\r\n") == b""
    assert world.is_idle()


@pytest.mark.parametrize("timeout", [b"1", b"+1", b"4294967297", b"-4294967295", b"\t1", b"1 second"])
def test_compat_1_12_waits_for_a_second(timeout):
    world = World(compat="1.12")
    client = world.connect()
    assert client.send(b"reserve-with-timeout " + timeout + b"\r\n") == b""
    world.sleep(0.9)
    assert client.read() == b""
    world.sleep(0.2)
    assert client.read() == TIMED_OUT


def test_compat_1_12_puts_quotes_around_the_version_only():
    world = World(compat="1.12")
    client = world.connect()
    client.send(b"put-keyed k 0 0 60 1\r\nx\r\n")
    lines = b"".join(client.send(command + b"\r\n") for command in (b"stats", b"stats-tube default", b"stats-job 1"))
    assert [line for line in lines.split(b"\n") if b'"' in line] == [b'version: "1.12"']
    assert client.yaml(b"stats-job 1")["tube"] == "default"
    assert client.yaml(b"stats-tube default")["name"] == "default"
