"""Conversations pass with clients that a standby passes on to its leader."""

import sys

import pytest
from selected import seventy

from conformance import report
from conformance.compare.pool import started
from conformance.conversation import read_all
from harness.servers import INTERPRETED, ROOT, imported


@pytest.fixture
def passing_server(tmp_path):
    """A program that takes the command line of beanstalk-server, and passes its clients on to a leader of its own."""
    path = f"PYTHONPATH={ROOT} " if imported() == INTERPRETED else ""
    program = tmp_path / "standing-by"
    program.write_text(f'#!/bin/sh\n{path}exec {sys.executable} -P {ROOT / "tests" / "standing_by.py"} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("select", [seventy, pytest.param(list, id="all", marks=pytest.mark.slow)])
def test_conversations_pass_through_a_standby(passing_server, select):
    run = started(passing_server, select([each for each in read_all() if not each.restarts]), 2)
    assert run.passed, report.failures([run])
    assert {outcome.status for outcome in run.outcomes} == {"passed"}
