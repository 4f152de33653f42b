"""Policies of tubes: which section is for a tube, and what it asks of a broker."""

import fnmatch

import pytest
from fields import fields_of
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server import TubeConfig
from beanstalk_server.access.policies import Policies, differences
from beanstalk_server.queue.policy import NO_POLICY, Policy
from beanstalk_server.queue.units import MILLISECOND, SECOND
from beanstalk_server.settings.kinds import interval_of
from beanstalk_server.settings.sections import TUBE_KEYS
from beanstalk_server.tube_names import NONE, FirstMatch

NAMES = st.text("ab-.", min_size=1, max_size=5)
PARTS = st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[+--]"])
PATTERNS = st.lists(PARTS, min_size=1, max_size=5).map("".join)


def shown(policy):
    """What a policy says, by name."""
    return {name: getattr(policy, name) for name in fields_of(Policy)}


def test_a_policy_says_what_its_section_says():
    tube = TubeConfig(
        match="a",
        max_jobs=1,
        max_bytes=2,
        max_delay="1d",
        max_job_size=3,
        max_tries=4,
        count_disconnects=False,
        dead_tube="dead",
        backoff=0.5,
        backoff_max="10m",
        ttl="24h",
        key_hold=300,
        max_held_keys=7,
        max_reserved=5,
        rate="100/s",
        burst=6,
        share="/",
        weight=9,
        measures=True,
    )
    assert shown(Policies([tube]).of("a")) == {
        "max_jobs": 1,
        "max_bytes": 2,
        "max_delay": 86400 * SECOND,
        "max_job_size": 3,
        "max_tries": 4,
        "count_disconnects": False,
        "dead_tube": "dead",
        "backoff": SECOND // 2,
        "backoff_max": 600 * SECOND,
        "ttl": 86400 * SECOND,
        "key_hold": 300 * SECOND,
        "max_held_keys": 7,
        "max_reserved": 5,
        "interval": 10 * MILLISECOND,
        "burst": 6,
        "share": "/",
        "weight": 9,
        "measures": True,
    }
    assert len(TUBE_KEYS) - 1 == len(fields_of(Policy)), "each setting has its key"


def test_every_setting_alone_makes_a_policy_that_differs_in_nothing_else():
    for name, value in {"max_jobs": 1, "ttl": 1, "dead_tube": "d", "rate": "1/s", "backoff_max": 1}.items():
        policy = Policies([TubeConfig(match="a", **{name: value})]).of("a")
        differing = [key for key, said in shown(policy).items() if said != shown(NO_POLICY)[key]]
        assert differing == ["interval" if name == "rate" else name]


@pytest.mark.parametrize(
    ("rate", "interval"),
    [
        ("1/s", SECOND),
        ("100/s", 10 * MILLISECOND),
        ("3/s", 333_333_334),  # no less: the rate is kept
        ("5/m", 12 * SECOND),
        ("1000/h", 3600 * MILLISECOND),
        ("1/d", 86400 * SECOND),
        ("1/10s", 10 * SECOND),
        ("7/2m", 17_142_857_143),
        ("1000000000/s", 1),
    ],
)
def test_a_rate_is_a_time_from_one_to_the_next(rate, interval):
    assert interval_of(rate) == interval
    assert Policies([TubeConfig(match="a", rate=rate)]).of("a").interval == interval


@pytest.mark.parametrize("rate", ["", "5", "/s", "5/", "5/w", "0/s", "05/s", "5/0s", "5 / s", "-5/s", "1.5/s", "5/s\n"])
def test_what_is_not_a_rate(rate):
    with pytest.raises(ValueError, match=r"^"):
        interval_of(rate)


@given(NAMES, st.lists(st.lists(PATTERNS, min_size=1, max_size=3), max_size=5))
def test_the_first_section_that_matches_counts(name, matches):
    tubes = [TubeConfig(match=patterns, max_jobs=index) for index, patterns in enumerate(matches, 1)]
    fitting = [index for index, each in enumerate(matches) if any(fnmatch.fnmatchcase(name, one) for one in each)]
    policies = Policies(tubes)
    assert FirstMatch(matches).of(name) == (fitting[0] if fitting else NONE)
    assert policies.of(name).max_jobs == (fitting[0] + 1 if fitting else 0)


def test_a_tube_without_a_section_and_one_whose_section_says_nothing_have_no_policy():
    policies = Policies([TubeConfig(match="free"), TubeConfig(match="[a-z]*", max_jobs=1)])
    assert policies.of("free") is NO_POLICY
    assert policies.of("A") is NO_POLICY
    assert policies.of("b").max_jobs == 1
    assert Policies([]).of("b") is NO_POLICY


def test_a_policy_that_says_the_same_stays_the_same_object():
    old = Policies([TubeConfig(match="a", ttl=60), TubeConfig(match="b", ttl=1, dead_tube="d")])
    new = Policies([TubeConfig(match="b", ttl=2, dead_tube="d"), TubeConfig(match=["c", "a"], ttl="1m")], old)
    assert new.of("a") is new.of("c") is old.of("a")
    assert new.of("b") is not old.of("b")
    newer = Policies([TubeConfig(match="b", ttl=2, dead_tube="d")], new)
    assert newer.of("b") is new.of("b")
    assert newer.local(lambda _: False)("b") is new.local(lambda _: False)("b")


def test_a_broker_without_the_dead_tube_has_none():
    policies = Policies(
        [
            TubeConfig(match="a", max_tries=1, dead_tube="here"),
            TubeConfig(match="b", max_tries=1, dead_tube="there"),
            TubeConfig(match="c", dead_tube="there"),
            TubeConfig(match="d", max_tries=1),
        ]
    )
    find = policies.local(lambda name: name == "here")
    assert find("a") is policies.of("a")
    assert (find("b").max_tries, find("b").dead_tube) == (1, "")
    assert find("c") is NO_POLICY  # nothing is left of it
    assert find("d") is policies.of("d")
    assert find("e") is NO_POLICY


def test_what_a_reload_changes_is_said_for_each_section():
    old = [TubeConfig(match="a", ttl=60), TubeConfig(match=["b", "c"], max_jobs=5), TubeConfig(match="d")]
    new = [
        TubeConfig(match=["b", "c"], max_jobs=6, rate="5/m"),
        TubeConfig(match="a", ttl="1m"),
        TubeConfig(match="e", dead_tube="dead"),
        TubeConfig(match="f"),
    ]
    assert differences(old, new) == [
        'tube "b", …: max-jobs = 6, was 5, rate = "5/m", was ""',
        'tube "e" added: dead-tube = "dead"',
        'tube "f" added: no policy',
        'tube "d" removed',
        "the order of the sections changed",
    ]
    assert differences(old, old) == differences([], []) == []
    many = [TubeConfig(match=f"t{number}") for number in range(50)]
    assert differences([], many)[-1] == "and 30 more"
