"""Clients of a server with I/O processes notice nothing of them: every conversation passes, with no difference."""

from conformance import report
from conformance.conversation import read_all
from conformance.pool import started
from harness.servers import imported


def test_every_conversation_passes():
    run = started(imported(), read_all(), options=["--io-processes", "2"])
    assert run.passed, report.failures([run])
