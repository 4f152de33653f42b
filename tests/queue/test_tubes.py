"""The table of tubes, compared with a list in beanstalkd's order; and the list of tubes that a client watches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server.queue import client as clients
from beanstalk_server.queue import tubes
from beanstalk_server.queue.client import Client
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.tubes import DEFAULT, TubeTable


def lines(names):
    return b"".join(b"- %b\n" % name.encode() for name in names)


def without(names, name):
    """The names that are left when one goes and the last takes its place."""
    kept = list(names)
    last = kept.pop()
    return [last if other == name else other for other in kept]


def listed(table):
    table.write_pages()
    return b"".join(table.pages())


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.booleans()), max_size=200))
def test_the_table_is_a_list_in_which_the_last_tube_takes_the_place_of_one_that_goes(steps):
    table, model = TubeTable(), [DEFAULT]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tubes, "PAGE", 3)
        table = TubeTable()
        for is_added, number, is_listed in steps:
            name = f"t{number}"
            tube = table.get(name)
            assert (tube is not None) == (name in model) == (name in table)
            if is_added and tube is None:
                assert table.add(name).name == name
                model.append(name)
            elif not is_added and tube is not None:
                assert table.drop_unneeded(tube)
                model = without(model, name)
            table.check()
            assert [tube.name for tube in table.values()] == model
            assert (len(table), set(table)) == (len(model), set(model))
            if is_listed:
                assert listed(table) == lines(model)
        assert listed(table) == lines(model)


def test_the_default_tube_is_always_there():
    table = TubeTable()
    assert not table.drop_unneeded(table.default)
    assert table[DEFAULT] is table.default
    assert listed(table) == b"- default\n"


@pytest.mark.parametrize("count", ["using", "watching", "buried_count"])
def test_a_tube_that_is_needed_stays(count):
    table = TubeTable()
    tube = table.add("t")
    setattr(tube, count, 1)
    assert not table.drop_unneeded(tube)
    assert table["t"] is tube
    setattr(tube, count, 0)
    assert table.drop_unneeded(tube)
    assert "t" not in table


def test_a_tube_that_has_gone_does_not_take_its_successor_with_it():
    table = TubeTable()
    gone = table.add("t")
    assert table.drop_unneeded(gone)
    successor = table.add("t")
    assert not table.drop_unneeded(gone)
    assert table["t"] is successor


def test_a_change_costs_the_writing_of_one_page_and_not_of_the_list():
    table = TubeTable()
    for number in range(10 * tubes.PAGE):
        table.add(f"t{number}")
    assert table.write_pages() == 1, "a page is written when the next one begins"
    table.drop_unneeded(table["t5"])
    assert table.write_pages() <= 2
    assert table.write_pages() == 0
    table.check()


def test_a_broken_table_is_noticed():
    table = TubeTable()
    table.add("t").position = 0
    with pytest.raises(AssertionError, match="tube t does not know its position"):
        table.check()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=100))
def test_a_client_watches_a_list_of_tubes_with_an_index_or_without(steps):
    every = [Tube(f"t{number}", number) for number in range(10)]
    client, model = Client(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "WATCH_INDEX_THRESHOLD", 4)
        for is_added, number in steps:
            tube = every[number]
            position = client.watch_position(tube)
            assert position == (model.index(tube) if tube in model else -1)
            if is_added and position < 0:
                client.add_watched(tube)
                model.append(tube)
            elif not is_added and position >= 0:
                client.remove_watched(position)
                last = model.pop()
                model = [last if other is tube else other for other in model]
            assert client.watched == model
            if client.watch_index is not None:
                assert client.watch_index == {tube: position for position, tube in enumerate(model)}
