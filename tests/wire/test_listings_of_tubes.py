"""stats-tubes: pages of tubes in the order of their names, while others come and go."""

import pytest
import yaml
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.policy import Policy
from beanstalk_server.wire.listings import PAGE_ENTRIES
from beanstalk_server.wire.session import SESSION_QUANTUM


def page(client, first="-", count=PAGE_ENTRIES):
    """What a page says: where the next one begins, and its entries."""
    return read(client.send(b"stats-tubes %b %d\r\n" % (first.encode(), count)))


def read(reply):
    head, _, text = reply.partition(b"\r\n")
    assert head == b"OK %d" % (len(text) - 2)
    document = yaml.safe_load(text)
    assert list(document) == ["next", "tubes"]
    return document["next"], document["tubes"]


def names(entries):
    return [entry["name"] for entry in entries]


def watch(client, *tubes):
    client.send(b"".join(b"watch %b\r\n" % tube.encode() for tube in tubes))


def test_tubes_are_in_the_order_of_the_bytes_of_their_names(world):
    client = world.connect()
    odd = ["b", "B", "a" * 200, "a", "_", "$", "a-", "a+", "(x)", "9", "default-1", "/", ";", "."]
    watch(client, *odd)
    following, entries = page(client)
    assert (following, names(entries)) == ("", sorted(["default", *odd]))


def test_an_entry_has_every_key_of_stats_tube_in_its_order(world):
    world.policies["limited"] = Policy(max_jobs=5)
    client = world.connect()
    client.send(b"use limited\r\nput 0 0 60 1\r\nx\r\npause-tube limited 9\r\n")
    _, entries = page(client)
    for entry in entries:
        shown = client.send(b"stats-tube %b\r\n" % entry["name"].encode()).partition(b"\r\n")[2]
        assert list(entry.items()) == list(yaml.safe_load(shown).items())
    assert [len(entry) for entry in entries] == [14, 25]


def test_the_next_page_begins_where_this_one_ends(world):
    client = world.connect()
    watch(client, "a", "b", "c")
    following, entries = page(client, count=3)
    assert (following, names(entries)) == ("default", ["a", "b", "c"])
    assert page(client, following, 1)[1][0]["name"] == "default"
    assert page(client, "default", 1)[0] == ""
    assert names(page(client, "bb", 2)[1]) == ["c", "default"]
    assert page(client, "e", 2) == ("", [])


def test_a_page_has_a_thousand_tubes_at_most(world):
    client = world.connect()
    watch(client, *[f"t{number:04}" for number in range(PAGE_ENTRIES)])
    following, entries = page(client, count=2**32 - 1)
    assert (following, len(entries)) == (f"t{PAGE_ENTRIES - 1:04}", PAGE_ENTRIES)


@pytest.mark.parametrize("compat", ["1.12", "1.13"])
def test_names_are_in_quotes_in_either_dialect(compat):
    assert World(compat=compat).connect().send(b"stats-tubes - 1\r\n").count(b'"default"') == 1


@pytest.mark.parametrize(
    "line",
    [b"stats-tubes", b"stats-tubes ", b"stats-tubes -", b"stats-tubes - 0", b"stats-tubes a -1", b"stats-tubes a 1 ",
     b"stats-tubes -a 1", b"stats-tubes a* 1", b"stats-tubes a 4294967296", b"stats-tubes \xff 1", b"stats-tubes a 1\0",
     b"stats-tubes " + b"a" * 201 + b" 1", b"stats-tubes a " + b"1" * 400],
)  # fmt: skip
def test_what_is_malformed_is_refused(world, line):
    client = world.connect()
    assert client.send(line + b"\r\n") == b"BAD_FORMAT\r\n"
    assert client.yaml(b"stats")["cmd-stats-tubes"] == "0"


def test_the_longest_line_is_understood(world):
    client = world.connect()
    assert read(client.send(b"stats-tubes %b 4294967295\r\n" % (b"z" * 200))) == ("", [])
    place = world.connect(dialect=world.info.linked_dialect)
    assert read(place.send(b"here-stats-tubes %b 1000\r\n" % (b"z" * 200))) == ("", [])


def test_a_user_sees_the_tubes_that_it_may_inspect(world):
    watch(world.connect(), *[f"{first}{number}" for first in "ab" for number in range(40)])
    user = world.connect(User("u", inspect=["b1*", "a7"], produce=["b*"], consume=["*"]))
    following, entries = page(user, count=2)
    assert (following, names(entries)) == ("b10", ["a7", "b1"]), "and not the name of what it may not see"
    assert len(page(user)[1]) == 12
    assert page(world.connect(User("worker", consume=["*"]))) == ("", []), "as stats-tube tells it nothing"
    assert len(page(world.connect(User("root", inspect=["*"])))[1]) == 81


def test_a_long_page_takes_many_turns_and_has_what_stays(world):
    owner, client = world.connect(), world.connect()
    stays = [f"s{number:04}" for number in range(500)]
    watch(owner, *stays, *[f"t{number:04}" for number in range(500)])
    session = client.session
    session.receive(b"stats-tubes - 1000\r\nlist-tube-used\r\n", world.now)
    turns = 0
    while not (reply := client.read()):
        assert world.answered.pop() is client, "it is promised another turn"
        assert not world.answered
        owner.send(b"ignore t%04d\r\nignore t%04d\r\nwatch r%d\r\n" % (turns, 499 - turns, turns))
        session.run(world.now)
        assert session.cost <= 2 * SESSION_QUANTUM or session.has_replies
        turns += 1
    assert turns > 10
    _, entries = read(reply.removesuffix(b"USING default\r\n"))
    assert [name for name in names(entries) if name in set(stays)] == stays
    assert names(entries) == sorted(set(names(entries)))


tubes = st.sampled_from([f"{first}{second}" for first in "ab" for second in "0123456789"])


@settings(max_examples=examples(20))
@given(
    start=st.sets(tubes),
    churn=st.lists(st.lists(st.tuples(st.booleans(), tubes), max_size=3), max_size=30),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
)
def test_each_tube_that_stays_is_in_one_page(start, churn, counts):
    world = World()
    owner, client = world.connect(), world.connect()
    watch(owner, *start)
    stays, first, listed = set(start) | {"default"}, "-", []
    rounds = 0
    while first:
        first, entries = page(client, first, counts[rounds % len(counts)])
        listed += names(entries)
        for is_added, name in churn[rounds] if rounds < len(churn) else ():
            owner.send(b"%b %b\r\n" % (b"watch" if is_added else b"ignore", name.encode()))
            if not is_added:
                stays.discard(name)
        rounds += 1
    assert listed == sorted(set(listed))
    assert stays <= set(listed)
    world.check()
