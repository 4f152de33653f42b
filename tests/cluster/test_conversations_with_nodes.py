"""Conversations pass with a node of a cluster, whether it leads or stands by; with shards, all but those that
show one of the listed differences, whether it leads all shards, half of them or none.
"""

import contextlib
import re
import sys
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest
from selected import each_selection

from conformance import report
from conformance.compare import pool, servers
from conformance.compare.pool import started
from conformance.conversation import DIRECTORY, read, read_all
from harness.nodes import lease
from harness.servers import ROOT
from harness.waiting import eventually

PROGRAM = Path(__file__).with_name("node_program.py")
SHARDS = 8

LED = {"leader": [SHARDS], "half": [SHARDS // 2, SHARDS // 2], "standby": [SHARDS]}
"""How many shards each node leads, by the role of the one that is asked."""


def program_of(role, redis, shards, directory):
    """The path of a program that starts a node in this role."""
    program = directory / role
    line = f"PYTHONPATH={ROOT} exec {sys.executable} -P {PROGRAM} {role} {redis.url} {shards} {directory}"
    program.write_text(f'#!/bin/sh\n{line} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def node(request, redis, tmp_path):
    return program_of(request.param, redis, 1, tmp_path)


@pytest.fixture
def parted(request, redis, tmp_path, monkeypatch):
    """The same with shards: each server that is started has its share of them before it is talked to."""
    role = request.param
    start = servers.started

    def is_led(port):
        name = (tmp_path / str(port)).read_text()
        leaders = Counter()
        for shard in range(SHARDS):
            address = lease(redis, shard, name).get("address", "")
            if not address:
                return False
            leaders[address] += 1
        return sorted(leaders.values()) == LED[role]

    @contextlib.contextmanager
    def started_and_led(*arguments):
        with start(*arguments) as process:
            eventually(lambda: is_led(process.address[1]), f"the shards are led as for {role}", 60)
            yield process

    monkeypatch.setattr(pool.servers, "started", started_and_led)
    return program_of(role, redis, SHARDS, tmp_path)


def of_a_node(conversation):
    """Whether a conversation is about a node, too: it has a binlog, and more keys at the end of stats, and it has been
    up for some seconds before it leads. tests/cluster/test_kills.py restarts nodes."""
    if conversation.title == "stats: uptime" or conversation.restarts:
        return False
    return not {"| file: 0", "| max-memory: 0", "| binlog-oldest-index: 0"} & {
        step.source for step in conversation.steps
    }


def of_a_standby(conversation):
    """Whether it is about one that stands by: the memory that jobs take is the leader's, and so is drain mode."""
    return not conversation.memory and not any(step.action == "signal" for step in conversation.steps)


@each_selection
@pytest.mark.parametrize(
    ("node", "is_fit"), [("leader", of_a_node), ("standby", of_a_standby)], indirect=["node"], ids=["leader", "standby"]
)
def test_conversations_pass_with_a_node(node, is_fit, select, at_once):
    conversations = [each for each in read_all() if of_a_node(each) and is_fit(each)]
    assert len(conversations) > 400
    run = started(node, select(conversations), at_once)
    assert run.passed, report.failures([run])


# With shards

SHOWN = {
    "put-keyed: the same key in another tube is another job": "ids",
    "the best job over all watched tubes": "ids",
    "stats-tube: deletes are counted in the tube of the job": "ids",
    "reserve-batch: the best jobs over all watched tubes": "reserve-batch",
    "the first tube may be ignored too": "list-tubes",
    "list-clients: who is connected, and what each is about": "list-clients",
}
"""Conversations that show a difference of a cluster with shards, by their titles, and which row of docs/cluster.md that
is; otherwise, ids are S times as far from each other, and this says all that is different."""

OF_DEFAULT = crc32(b"default") % SHARDS


def with_ids_of_shards(source):
    """The text of conversations with the ids that jobs of the default tube have, where it names some, or counts on."""
    source = re.sub(r"\{(a|first|job)\+(\d+)\}", lambda found: f"{{{found[1]}+{int(found[2]) * SHARDS}}}", source)
    words = (
        "INSERTED|RESERVED|FOUND|id:|peek|delete|touch|release|bury|kick-job|stats-job|reserve-job|cancel|reschedule"
    )
    source = re.sub(
        rf"((?:{words}) )([1-9])(?![\d.])", lambda found: f"{found[1]}{int(found[2]) * SHARDS + OF_DEFAULT}", source
    )
    # Another row: those who are routed are not counted.
    return re.sub(r"(cmd-list-tube(?:-used|s-watched)): 1", r"\1: {0..1}", source)


def all_with_ids_of_shards():
    return [
        each
        for path in sorted(DIRECTORY.glob("*/*.txt"))
        for each in read(with_ids_of_shards(path.read_text()), path.name)
        if of_a_node(each) and of_a_standby(each)
    ]


@each_selection
@pytest.mark.parametrize(
    "parted", ["half", *(pytest.param(role, marks=pytest.mark.slow) for role in ("leader", "standby"))], indirect=True
)
def test_conversations_pass_with_shards_but_those_that_show_a_listed_difference(parted, select, at_once):
    conversations = [each for each in all_with_ids_of_shards() if each.title not in SHOWN]
    assert len(conversations) > 400
    run = started(parted, select(conversations), at_once)
    assert run.passed, report.failures([run])
