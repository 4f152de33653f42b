"""Users: their rights to tubes."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.access.rights import ADMIN, ANY_RIGHT, CONSUME, INSPECT, PRODUCE, REMEMBERED, User

NAMES = st.text("ab-.", min_size=1, max_size=5)
PARTS = st.sampled_from(["a", "b", "-", ".", "*", "?", "[ab]", "[!a]", "[+--]"])
PATTERNS = st.lists(st.lists(PARTS, min_size=1, max_size=5).map("".join), max_size=3)


def test_a_user_has_the_rights_that_its_patterns_give():
    user = User("billing", produce=["mail-*", "bill-*"], consume=["bill-*"], inspect=["*"])
    assert user.rights("bill-1") == PRODUCE | CONSUME | INSPECT
    assert user.rights("mail-1") == PRODUCE | INSPECT
    assert user.rights("mail") == INSPECT
    assert user.everywhere == INSPECT


@pytest.mark.parametrize("tube", ["mail-1.results", "mail-1.errors"])
@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("mail-*", False),
        ("mail-?*", False),
        ("mail-*s", False),
        ("mail-1.[er]*s", False),
        ("**", False),
        ("mail-*.results", True),
        ("mail-*.errors", True),
        ("*.results", True),
        ("*.errors", True),
        ("mail-1.results", True),
        ("mail-1.errors", True),
        ("*", True),
    ],
)
@pytest.mark.parametrize("right", ["produce", "consume", "inspect", "admin"])
def test_a_pattern_matches_tubes_of_results_and_reports_only_if_it_names_them(right, pattern, fits, tube):
    user = User("u", **{right: [pattern]})
    expected = fits and (pattern == "*" or pattern[pattern.rindex(".") :] == tube[tube.rindex(".") :])
    assert bool(user.rights(tube)) == expected
    assert user.select([tube], ANY_RIGHT) == [tube] * expected


def test_only_the_end_of_a_name_makes_a_tube_private():
    user = User("u", produce=["mail-*"])
    for tube in ("mail-1", "mail-results", "mail-1.results.old", "mail-1.errors-"):
        assert user.rights(tube) == PRODUCE


def test_a_user_without_patterns_has_no_right():
    assert User("nobody").rights("default") == 0


@given(NAMES, PATTERNS, PATTERNS, PATTERNS, PATTERNS)
def test_rights_are_found_again_as_they_were(name, produce, consume, inspect, admin):
    user = User("u", produce=produce, consume=consume, inspect=inspect, admin=admin)
    lists = {PRODUCE: produce, CONSUME: consume, INSPECT: inspect, ADMIN: admin}
    expected = sum(right for right, found in lists.items() if any(fnmatch.fnmatchcase(name, each) for each in found))
    assert user.rights(name) == user.rights(name) == expected


def test_a_user_remembers_a_bounded_number_of_tubes():
    user = User("u", consume=["a-*"])
    for number in range(3 * REMEMBERED):
        assert user.rights(f"a-{number}") == CONSUME
    assert len(user._remembered) <= REMEMBERED


def test_many_patterns_that_are_names_or_beginnings_weigh_little():
    many = [f"{name}{end}" for name in range(1000, 2000) for end in ("", "-*")]
    assert User("u", produce=many).weight < 10
    assert User("u", produce=["*-mail", "a?"] * 10).weight > 100
    assert User("u", consume=["*"]).weight < 10


def test_users_have_the_same_rights_if_they_have_the_same_patterns():
    first, same = User("a", consume=["b-*", "c"]), User("other", consume=["b-*", "c"])
    assert first.has_rights_of(same) and same.has_rights_of(first)
    for other in (
        User("a", consume=["b-*"]),
        User("a", produce=["b-*", "c"]),
        User("a", consume=["b-*", "c"], admin=["c"]),
        User("a", consume=["b-*", "c", "*"]),
        User("a", consume=["b-*", "c"], admin=["*"]),
        User("a"),
    ):
        assert not first.has_rights_of(other) and not other.has_rights_of(first)


def test_select_finds_the_tubes_with_a_right_asked_for():
    tubes = ["a", "b-1", "c", "b-2", "default"]
    user = User("u", consume=["b-*"], admin=["c"], inspect=["b-*"])
    assert user.select(tubes, ANY_RIGHT) == ["b-1", "c", "b-2"]
    assert user.select(tubes, INSPECT) == ["b-1", "b-2"]
    everywhere = User("u", consume=["*"])
    assert everywhere.select(tubes, ANY_RIGHT) == tubes
    assert everywhere.select(tubes, INSPECT) == User("u").select(tubes, ANY_RIGHT) == []


@given(st.lists(NAMES), PATTERNS, PATTERNS)
def test_select_agrees_with_the_rights(names, produce, admin):
    user = User("u", produce=produce, admin=admin)
    for asked in (ANY_RIGHT, PRODUCE):
        assert user.select(names, asked) == [name for name in names if user.rights(name) & asked]


def test_all_rights_are_any_right():
    user = User("root", produce=["*"], consume=["*"], inspect=["*"], admin=["*"])
    assert user.everywhere == user.rights("any") == ANY_RIGHT
