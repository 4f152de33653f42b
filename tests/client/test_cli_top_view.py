"""What a key makes of what is on the screen, and what it orders."""

import pytest
from beanstalk_client.cli.top_samples import COLUMNS, SORT_KEYS, TUBE_FIGURES, Samples
from beanstalk_client.cli.top_view import (
    BINDINGS,
    KEYS,
    LISTED,
    PAUSE,
    JobsOfTube,
    Mode,
    Order,
    View,
)
from hypothesis import given
from hypothesis import strategies as st


def figures(**some):
    return dict.fromkeys(TUBE_FIGURES, "0") | {key.replace("_", "-"): str(value) for key, value in some.items()}


def samples_of(**ready):
    samples = Samples()
    for name, count in ready.items():
        samples.take_tube(1.0, name, figures(current_jobs_ready=count) if count is not None else {})
    return samples


def view_of(samples, room=10, **arguments):
    view = View(samples, **arguments)
    view.fit(room)
    view.rank()
    return view


def press(view, *keys):
    """Press keys; return what the last one orders."""
    order = None
    for key in keys:
        order = view.press(key)
    return order


SOME = samples_of(mail=3, bill=9, log=3, news=None)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], ["bill", "log", "mail", "news"]),
        (["r"], ["log", "mail", "bill", "news"]),  # the same column again; what is not known stays last
        (["!"], ["log", "mail", "bill", "news"]),
        (["!", "!"], ["bill", "log", "mail", "news"]),
        (["t"], ["bill", "log", "mail", "news"]),
        (["t", "t"], ["news", "mail", "log", "bill"]),
        (["<"], ["bill", "log", "mail", "news"]),
        (["<", "<", "<", "<", "<", "<", "<", "<", "<", "<", "!"], ["log", "mail", "bill", "news"]),
    ],
)
def test_tubes_are_in_the_order_that_was_chosen(keys, expected):
    view = view_of(SOME)
    press(view, *keys)
    assert view.ranked == expected


def test_every_column_can_be_reached_and_sorts():
    view = view_of(SOME)
    seen = set()
    for _ in COLUMNS:
        seen.add(view.sort)
        press(view, "right")
        assert sorted(view.ranked) == ["bill", "log", "mail", "news"]
    assert seen == set(COLUMNS)


def test_the_selection_follows_its_tube():
    samples = samples_of(mail=3, bill=9, log=1)
    view = view_of(samples)
    press(view, "down")
    assert view.selected_name == "mail"
    samples.take_tube(2.0, "mail", figures(current_jobs_ready=99))
    view.rank()
    assert (view.selected_name, view.selected) == ("mail", 0)
    del samples.tubes["mail"]
    view.rank()
    assert view.selected_name == "bill"


def test_the_selection_stays_on_the_screen():
    samples = samples_of(**{f"t{number:03}": number for number in range(100)})
    view = view_of(samples, room=10, sort="tube")
    press(view, "page-down", "down")
    assert (view.selected_name, view.visible[-1]) == ("t011", "t011")
    press(view, "end")
    assert (view.selected_name, view.visible[0]) == ("t099", "t090")
    press(view, "home")
    assert (view.selected_name, view.visible[0]) == ("t000", "t000")
    press(view, "end")
    view.fit(3)
    assert view.visible == ["t097", "t098", "t099"]


def test_at_most_so_many_tubes_are_listed():
    samples = samples_of(**{f"t{number}": number for number in range(LISTED + 50)})
    view = view_of(samples)
    assert (len(view.ranked), view.matching, view.ranked[0]) == (LISTED, LISTED + 50, f"t{LISTED + 49}")
    press(view, "t", "t")
    assert len(view.ranked) == LISTED


def test_a_prefix_is_typed():
    view = view_of(SOME)
    press(view, "/", "m")
    assert (view.mode, view.ranked) == (Mode.PREFIX, ["mail"])
    press(view, "x")
    assert view.ranked == []
    press(view, "backspace", "enter")
    assert (view.mode, view.prefix) == (Mode.TUBES, "m")
    press(view, "escape")
    assert len(view.ranked) == 4
    press(view, "/", "q")  # typed, not obeyed
    assert view.prefix == "q"
    press(view, "ctrl-u", "-")
    assert (view.prefix, view.message) == ("", "no name of a tube begins so")
    press(view, "ä", "up", "escape")
    assert (view.mode, view.prefix) == (Mode.TUBES, "")


def test_pausing_asks_as_long_as_the_selection_may_change():
    samples = samples_of(mail=3, bill=9)
    view = view_of(samples)
    assert press(view, "P") is None
    assert "bill" in view.question[0]
    assert press(view, "y") == Order("pause", "bill", PAUSE)
    assert press(view, "down", "P") == Order("pause", "mail", PAUSE)
    samples.take_tube(2.0, "mail", figures(pause_time_left=5))
    assert press(view, "P") == Order("pause", "mail", 0)


@pytest.mark.parametrize(
    ("some", "order", "words"),
    [
        ({"current_jobs_buried": 12, "current_jobs_delayed": 3}, Order("kick", "mail", 12), "12 buried jobs of mail"),
        ({"current_jobs_delayed": 1}, Order("kick", "mail", 1), "1 delayed job of mail"),
    ],
)
def test_kicking_asks(some, order, words):
    samples = Samples()
    samples.take_tube(1.0, "mail", figures(**some))
    view = view_of(samples)
    assert press(view, "K") is None
    assert words in view.question[0]
    assert press(view, "n") is None
    assert (view.message, view.mode) == ("nothing was done", Mode.TUBES)
    assert press(view, "K", "y") == order


def test_clearing_asks_for_a_capital_letter():
    samples = Samples()
    samples.take_tube(1.0, "mail", figures(current_jobs_ready=1000, current_jobs_buried=5, current_jobs_reserved=7))
    view = view_of(samples)
    assert press(view, "C") is None
    assert "1,005 jobs of mail" in view.question[0]
    assert press(view, "y") is None
    assert press(view, "C", "enter") is None
    assert press(view, "C", "Y") == Order("clear", "mail")


def test_where_there_is_nothing_nothing_is_ordered():
    samples = Samples()
    view = view_of(samples)
    for key in ("P", "K", "C", "enter"):
        assert press(view, key) is None
        assert view.message == "no tube is selected"
    samples.take_tube(1.0, "mail", figures())
    view.rank()
    for key in ("K", "C"):
        assert press(view, key) is None
        assert (view.mode, view.message[:11]) == (Mode.TUBES, "mail has no")
    del samples.tubes["mail"]
    press(view, "P")
    assert view.message == "mail has gone"


def test_looking_into_a_tube():
    samples = samples_of(mail=3)
    view = view_of(samples)
    assert press(view, "enter") == Order("look", "mail")
    assert (view.mode, view.jobs) == (Mode.JOBS, None)
    view.show_jobs(JobsOfTube("bill", 1.0))  # of a tube that was looked into before
    assert view.jobs is None
    view.show_jobs(JobsOfTube("mail", 1.0, [{"id": str(number)} for number in range(3)]))
    press(view, "down", "down", "down", "down")
    assert view.jobs_top == 2
    assert press(view, " ") == Order("look", "mail")
    assert press(view, "C") is None
    assert press(view, "escape") is None
    assert view.mode is Mode.TUBES
    view.show_jobs(JobsOfTube("mail", 1.0))
    assert view.jobs is None


def test_the_end():
    for keys in (["q"], ["ctrl-c"], ["/", "ctrl-c"], ["?", "ctrl-c"], ["ctrl-d"]):
        assert press(view_of(SOME), *keys) == Order("quit")
    view = view_of(SOME)
    assert press(view, "?", "q") is None  # any key leaves the help
    assert press(view, " ") == Order("refresh")
    assert press(view, "ctrl-l") == Order("redraw")


def test_only_capital_letters_change_something():
    changing = {"pause the tube, or resume it", "kick its buried jobs, or its delayed ones (asks)"}
    changing |= {"delete all its jobs (asks)"}
    assert {key for key, binding in BINDINGS.items() if binding.meaning in changing} == {"P", "K", "C"}
    assert {key for key in BINDINGS if key.isupper()} == {"P", "K", "C"}


def test_no_key_does_two_things():
    assert len(BINDINGS) == sum(len(binding.keys.split()) for binding in KEYS) + len(SORT_KEYS)
    for key, column in SORT_KEYS.items():
        view = view_of(SOME, sort="tube" if column != "tube" else "ready")
        press(view, key)
        assert view.sort == column


keys = st.one_of(st.sampled_from([*BINDINGS, "y", "Y", "m", "backspace", "unknown", "tab"]), st.characters())


@given(st.lists(keys, max_size=30), st.integers(0, 5), st.integers(-1, 30))
def test_no_keys_confuse_the_view(pressed, tubes, room):
    samples = samples_of(**{f"m{number}": number for number in range(tubes)})
    view = view_of(samples, room)
    for key in pressed:
        order = view.press(key)
        assert order is None or isinstance(order, Order)
        assert 0 <= view.selected <= max(len(view.ranked) - 1, 0)
        assert view.selected_name is None or view.selected_name in view.visible
        assert (view.mode is Mode.QUESTION) == (view.question is not None)
        assert all(name.startswith(view.prefix) for name in view.ranked)
