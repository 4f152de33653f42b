"""Every conversation passes with clients that a standby passes on to its leader."""

import sys

import pytest

from conformance import report
from conformance.conversation import read_all
from conformance.pool import started
from harness.servers import INTERPRETED, ROOT, imported


@pytest.fixture
def passing_server(tmp_path):
    """A program that takes the command line of beanstalk-server, and passes its clients on to a leader of its own."""
    path = f"PYTHONPATH={ROOT} " if imported() == INTERPRETED else ""
    program = tmp_path / "standing-by"
    program.write_text(f'#!/bin/sh\n{path}exec {sys.executable} -P {ROOT / "tests" / "standing_by.py"} "$@"\n')
    program.chmod(0o755)
    return str(program)


def test_every_conversation_passes_through_a_standby(passing_server):
    run = started(passing_server, read_all())
    assert run.passed, report.failures([run])
    assert {outcome.status for outcome in run.outcomes} == {"passed"}
