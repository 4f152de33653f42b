"""Every conversation passes with a node of a cluster, whether it leads or stands by."""

import sys
from pathlib import Path

import pytest

from conformance import report
from conformance.conversation import read_all
from conformance.pool import started
from harness.servers import ROOT

PROGRAM = Path(__file__).with_name("node_program.py")


@pytest.fixture
def node(request, redis, tmp_path):
    """The path of a program that starts a node in this role."""
    program = tmp_path / request.param
    line = f"PYTHONPATH={ROOT} exec {sys.executable} -P {PROGRAM} {request.param} {redis.url}"
    program.write_text(f'#!/bin/sh\n{line} "$@"\n')
    program.chmod(0o755)
    return str(program)


def of_a_node(conversation):
    """Whether a conversation is about a node, too: it has a binlog, and more keys at the end of stats, and it has been
    up for some seconds before it leads."""
    if conversation.title == "stats: uptime":
        return False
    return not {"| file: 0", "| max-memory: 0", "| binlog-oldest-index: 0"} & {
        step.source for step in conversation.steps
    }


def of_a_standby(conversation):
    """Whether it is about one that stands by: the memory that jobs take is the leader's, and so is drain mode."""
    return not conversation.memory and not any(step.action == "signal" for step in conversation.steps)


@pytest.mark.parametrize("node", ["leader"], indirect=True)
def test_every_conversation_passes_with_a_leader(node):
    conversations = list(filter(of_a_node, read_all()))
    assert len(conversations) > 400
    run = started(node, conversations)
    assert run.passed, report.failures([run])


@pytest.mark.parametrize("node", ["standby"], indirect=True)
def test_every_conversation_passes_with_a_standby(node):
    conversations = list(filter(of_a_standby, filter(of_a_node, read_all())))
    assert len(conversations) > 400
    run = started(node, conversations)
    assert run.passed, report.failures([run])
