"""Every conversation passes with this server and with beanstalkd, and together they show the whole protocol."""

from collections import Counter

import pytest
from selected import seventy, words

from conformance import report
from conformance.compare import differences, page, servers
from conformance.compare.pool import started
from conformance.conversation import GROUPS, read, read_all
from conformance.extensions import NAMES, needed_by
from harness.servers import BEANSTALKD, imported

CONVERSATIONS = read_all()

REPLIES = """
OUT_OF_MEMORY BAD_FORMAT UNKNOWN_COMMAND
INSERTED ...  EXPECTED_CRLF JOB_TOO_BIG DRAINING USING ...
DEADLINE_SOON TIMED_OUT RESERVED ... NOT_FOUND DELETED RELEASED BURIED TOUCHED WATCHING ... NOT_IGNORED
FOUND ... KICKED ... KICKED OK ... PAUSED
""".replace(" ...", "...").split()
"""Every reply that beanstalkd's doc/protocol.txt names, in its order, `...` where something follows the word.

Two are left out, because no conversation can provoke them: INTERNAL_ERROR, which the document calls a bug, and the
`BURIED <id>` of a put, for which memory would have to run out at the very moment when a heap grows.
"""


def test_there_are_enough_and_no_two_have_the_same_title():
    assert len(CONVERSATIONS) >= 250
    titles = Counter((found.theme, found.title) for found in CONVERSATIONS)
    assert [title for title, count in titles.items() if count > 1] == []


def test_every_reply_of_the_protocol_occurs():
    shown = {reply.replace(" ", "") for found in CONVERSATIONS if not found.only for reply in page.replies(found)}
    assert [reply for reply in REPLIES if reply not in shown] == []


def test_every_command_occurs():
    sent = {command for found in CONVERSATIONS for command in page.commands(found)}
    assert [command for command in page.COMMANDS if command not in sent] == []


def test_each_conversation_of_extensions_needs_some_and_those_of_the_protocol_need_none():
    needing = {group: {bool(needed_by(each)) for each in CONVERSATIONS if each.group == group} for group in GROUPS}
    assert needing == {"protocol": {False}, "binlog": {False, True}, "extensions": {True}}
    assert all(found.restarts == (found.group == "binlog") for found in CONVERSATIONS)


def test_the_extensions_and_their_versions_are_those_that_this_server_lists():
    with servers.started(imported()) as server:
        assert server.extensions.keys() == NAMES
        needed = [needed_by(found) for found in CONVERSATIONS]
        latest = {name: max(each.get(name, 1) for each in needed) for name in NAMES}
        assert server.extensions == latest


def test_every_difference_that_is_named_is_intended():
    intended = differences.names()
    assert [(found.place, found.differs) for found in CONVERSATIONS if found.differs not in {"", *intended}] == []


def test_seventy_of_them_show_every_command_and_every_reply():
    chosen = seventy(CONVERSATIONS)
    assert len(chosen) == 70
    assert set().union(*map(words, CONVERSATIONS)) == set().union(*map(words, chosen))
    assert sum(found.waits for found in chosen) < 2


def parts():
    """All conversations: those that wait, those that do not, and in batches those that need a server of their own."""
    alone = [found for found in CONVERSATIONS if found.options is not None]
    shared = [found for found in CONVERSATIONS if found.options is None]
    yield pytest.param([found for found in shared if found.waits], 12, id="waiting")
    yield pytest.param([found for found in shared if not found.waits], 2, id="not-waiting")
    for first in range(0, len(alone), 7):
        yield pytest.param(alone[first : first + 7], 1, id=f"alone-{first}")


@pytest.mark.parametrize(("conversations", "at_once"), list(parts()))
@pytest.mark.parametrize("program", ["ours", BEANSTALKD], indirect=True)
def test_every_conversation_passes(program, conversations, at_once):
    run = started(program, conversations, at_once)
    assert run.passed, report.failures([run])


def of_versions(conversations):
    """Those that show a difference between versions of beanstalkd."""
    return [
        found
        for found in conversations
        if found.guards & {"before 1.13", "since 1.13"} or any('{"' in step.source for step in found.steps)
    ]


@pytest.mark.parametrize("select", [of_versions, pytest.param(list, id="all", marks=pytest.mark.slow)])
def test_every_conversation_passes_with_compat_1_12(select):
    run = started(imported(), select(CONVERSATIONS), options=["--compat", "1.12"])
    assert run.name == "ours as beanstalkd 1.12"
    assert run.passed, report.failures([run])
    held = [outcome.conversation for outcome in run.outcomes if outcome.status == "passed"]
    assert any("before 1.13" in conversation.guards for conversation in held)


def test_a_conversation_that_is_wrong_fails_and_shows_what_came():
    wrong = """
== an id that is another
> put 0 0 60 1
> x
< INSERTED {job}
> peek {job}
< FOUND {job+1} 1
== something more than expected
> list-tube-used
> use another
< USING default
== something less
> reserve
within 0.1
< TIMED_OUT
== a size that is wrong
> list-tubes
< OK {size}
| ---
<
== silence where there is a reply
> list-tube-used
is silent
== a connection that is not closed
> list-tube-used
< USING default
within 0.1
is closed
== quotes where there are none
> list-tube-used
< USING {"default"}
"""
    run = started(imported(), list(read(wrong, "wrong.txt")), 2)
    assert not run.passed
    assert [outcome.status for outcome in run.outcomes] == ["failed"] * 7
    found, *others = [outcome.transcript[-1] for outcome in run.outcomes]
    assert found.startswith('received  "FOUND ')  # what fails is run again, with another id
    assert others == [
        'received  client: "USING another\\r\\n"',
        "received  nothing within 0.1 s",
        'received  "- default\\n"',
        'received  "USING default\\r\\n"',
        "received  the connection is open",
        'received  "USING default\\r\\n"',
    ]
    shown = report.failures([run])
    assert "wrong.txt:2: an id that is another\n    > put 0 0 60 1\n" in shown
    assert '    expected  < FOUND {job+1} 1\n    received  "FOUND' in shown
    assert "0 of 7" in page.table([run])
