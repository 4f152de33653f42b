"""How shards are spread over nodes: by figures alone, without nodes."""

import random
from collections import Counter

from effort import seeded

from beanstalk_server.cluster.spreading import successors, transfers


def spread(counts):
    """The figures after all transfers."""
    after = Counter(counts)
    for giver, taker in transfers(counts):
        after[giver] -= 1
        after[taker] += 1
    return dict(after)


def is_even(counts):
    return max(counts.values()) - min(counts.values()) <= 1


def test_a_node_alone_keeps_everything():
    assert transfers({"a": 8}) == []


def test_without_nodes_there_is_nothing_to_give():
    assert transfers({}) == []
    assert successors([1, 2], {}) == {}


def test_a_node_that_joins_gets_its_share_and_no_more():
    assert spread({"a": 4, "b": 4, "c": 0}) == {"a": 3, "b": 3, "c": 2}
    assert transfers({"a": 4, "b": 4, "c": 0}) == [("a", "c"), ("b", "c")]


def test_what_is_even_is_left_alone_however_it_came_about():
    for counts in ({"a": 3, "b": 2}, {"a": 2, "b": 3}, {"a": 1, "b": 0, "c": 1}, {"a": 0, "b": 0}, {"a": 2, "b": 2}):
        assert transfers(counts) == []


def test_fewer_shards_than_nodes_lie_at_different_nodes():
    assert spread({"a": 3, "b": 0, "c": 0, "d": 0}) == {"a": 1, "b": 1, "c": 1, "d": 0}


def test_whoever_has_most_gives_first_and_whoever_has_fewest_takes_first():
    assert transfers({"a": 7, "b": 5, "c": 1, "d": 0}) == [
        ("a", "d"),
        ("a", "c"),
        ("a", "d"),
        ("b", "c"),
        ("b", "d"),
    ]


def test_nodes_that_have_seen_the_same_decide_the_same_in_whatever_order_they_have_seen_it():
    counts = {"a": 9, "b": 9, "c": 0, "d": 0, "e": 1}
    names = list(counts)
    for _ in range(20):
        random.shuffle(names)
        assert transfers({name: counts[name] for name in names}) == transfers(counts)


@seeded(50)
def test_any_figures_become_even_with_the_fewest_transfers(seed):
    rng = random.Random(seed)
    counts = {f"n{number}": rng.randrange(20) for number in range(rng.randrange(1, 12))}
    after = spread(counts)
    assert is_even(after)
    assert sum(after.values()) == sum(counts.values())
    kept = sum(min(counts[node], after[node]) for node in counts)
    assert len(transfers(counts)) == sum(counts.values()) - kept
    assert transfers(after) == []


@seeded(20)
def test_nodes_that_see_late_what_the_others_have_done_come_to_rest(seed):
    rng = random.Random(seed)
    names = [f"n{number}" for number in range(rng.randrange(2, 9))]
    counts = dict.fromkeys(names, 0) | {names[0]: 64}
    seen = {name: dict(counts) for name in names}
    done = 0
    for _ in range(2000):
        name = rng.choice(names)
        if rng.random() < 0.5:
            seen[name] = dict(counts)
        seen[name][name] = counts[name]  # it knows what it leads itself
        for giver, taker in transfers(seen[name]):
            if giver == name and counts[name]:
                counts[giver] -= 1
                counts[taker] += 1
                seen[name][giver] -= 1
                seen[name][taker] += 1
                done += 1
                break
    assert is_even(counts)
    assert done < 3 * 64


def test_what_a_dead_node_led_goes_to_whoever_leads_fewest():
    assert successors([5, 1, 7], {"b": 2, "c": 0}) == {1: "c", 5: "c", 7: "b"}


def test_shards_that_nobody_has_ever_led_are_spread_evenly():
    found = successors(range(8), {"a": 0, "b": 0, "c": 0})
    assert sorted(Counter(found.values()).values()) == [2, 3, 3]


def test_all_nodes_name_the_same_heirs():
    assert successors([3, 1], {"b": 0, "a": 0}) == successors([1, 3], {"a": 0, "b": 0}) == {1: "a", 3: "b"}


def test_a_thousand_shards_of_one_node_are_given_to_63_others():
    counts = {f"node {number}": 0 for number in range(64)} | {"node 0": 1024}
    given = transfers(counts)
    assert {giver for giver, _ in given} == {"node 0"}
    assert sorted(Counter(taker for _, taker in given).values()) == [16] * 63
    assert len(successors(range(1024), counts)) == 1024
