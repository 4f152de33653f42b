"""Clients of a server with I/O processes notice nothing of them: conversations pass, with no difference."""

from selected import each_selection

from conformance import report
from conformance.compare.pool import started
from conformance.conversation import read_all
from harness.servers import imported


@each_selection
def test_conversations_pass(select, at_once):
    run = started(imported(), select(read_all()), at_once, ["--io-processes", "2"])
    assert run.passed, report.failures([run])
