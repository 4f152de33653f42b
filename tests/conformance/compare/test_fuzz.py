"""Differential fuzzing: a few rounds with the same scripts each time, and a check that it finds differences."""

import pytest
from hypothesis import strategies as st

from conformance import report
from conformance.compare.differential import Pair, comparable
from conformance.compare.fuzz import compare_round
from conformance.compare.pool import started
from conformance.compare.strategies import Leave, Say, line, valid
from conformance.conversation import read
from harness.servers import imported

KINDS = (
    b"BAD_FORMAT UNKNOWN_COMMAND INSERTED EXPECTED_CRLF JOB_TOO_BIG USING DEADLINE_SOON TIMED_OUT RESERVED NOT_FOUND "
    b"DELETED RELEASED BURIED TOUCHED WATCHING NOT_IGNORED FOUND KICKED --- PAUSED (hung"
).split()
"""Replies that on average every hundredth script must provoke; `---` is a YAML document."""


@pytest.fixture
def pair(beanstalkd):
    with Pair(beanstalkd, imported()) as pair:
        yield pair


@pytest.mark.slow
def test_hundreds_of_scripts_are_answered_the_same(pair):
    found = [conversation for seed in range(2) if (conversation := compare_round(pair, seed))]
    assert not found, "\n".join(found)
    assert pair.scripts >= 400
    assert pair.voids < pair.scripts / 20
    assert pair.replies.total() > 10 * pair.scripts
    assert pair.replies[b"RESERVED"] > pair.scripts
    assert [kind for kind in KINDS if pair.replies[kind] < pair.scripts / 100] == []


@pytest.mark.slow
def test_a_difference_shrinks_to_a_conversation_that_shows_it(pair, beanstalkd):
    different = st.builds(Say, st.integers(0, 3), st.tuples(valid, line(b"cancel", b"1")), st.integers(0, 3))
    found = compare_round(
        pair, 7, 100, st.lists(st.one_of(different, st.builds(Leave, st.integers(0, 3), st.booleans())))
    )
    assert found is not None
    (conversation,) = read(found, "found.txt")
    assert len(conversation.steps) < 12
    held = [started(program, [conversation]) for program in (beanstalkd, imported())]
    assert [run.passed for run in held] == [True, False], report.failures(held)


def test_every_reply_is_written_so_that_it_can_be_expected(pair, beanstalkd):
    commands = (
        b"put 0 0 60 3\r\na \r\r\nput 0 100 60 0\r\n\r\nreserve\r\nstats-job {base+001}\r\nstats-job {base+002}\r\n",
        b"peek {base+002}\r\nbury {base+001} 0\r\nkick 5\r\nwatch a\r\nlist-tubes-watched\r\n",
        b"stats\r\nstats-tube a\r\n\xff\r\n",
    )
    pair.compare([Say(0, commands, 0), Say(1, (b"reserve\r\nuse a\r\n",), 0), Leave(0, False), Leave(1, True)])
    (conversation,) = read(pair.conversation("written"), "written.txt")
    held = [started(program, [conversation]) for program in (beanstalkd, imported())]
    assert all(run.passed for run in held), report.failures(held)


def test_values_that_may_differ_between_two_servers_are_not_compared():
    ours = b'---\npid: 1\nhostname: "h"\nid: 0123456789abcdef\ntube: "a"\ncmd-put: 1\ncmd-put-keyed: 2\n\r\n'
    theirs = b"---\npid: 22\nhostname: h\nid: 0000000000000000\ntube: a\ncmd-put: 1\n\r\n"
    assert comparable(ours) == comparable(theirs)
    assert comparable(theirs) != comparable(theirs.replace(b"cmd-put: 1", b"cmd-put: 2"))
    assert comparable(theirs) != comparable(theirs.replace(b"tube: a", b"tube: b"))
