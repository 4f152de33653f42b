"""What keys change on the screen of `beanstalk top`."""

import pytest
from beanstalk_client.cli.top_state import HELP, LISTED, Action, JobsOfTube, Mode, View
from beanstalk_client.observe.samples import COLUMNS, SORT_KEYS, TUBE_FIGURES, Samples
from hypothesis import given
from hypothesis import strategies as st


def figures(**some):
    return dict.fromkeys(TUBE_FIGURES.values(), "0") | {
        key.replace("_", "-"): str(value) for key, value in some.items()
    }


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
    """Press keys; return the action of the last one."""
    return [view.press(key) for key in keys][-1] if keys else None


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


def test_the_number_of_listed_tubes_is_bounded():
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
    assert (view.prefix, view.message) == ("", "no tube has this prefix")
    press(view, "ä", "up", "escape")
    assert (view.mode, view.prefix) == (Mode.TUBES, "")


def test_looking_into_a_tube():
    samples = samples_of(mail=3)
    view = view_of(samples)
    assert press(view, "enter") is Action.FETCH
    assert (view.mode, view.tube, view.jobs) == (Mode.JOBS, "mail", None)
    view.show_jobs(JobsOfTube("bill", 1.0))  # of a tube that was looked into before
    assert view.jobs is None
    view.show_jobs(JobsOfTube("mail", 1.0, [{"id": str(number)} for number in range(3)]))
    press(view, "down", "down", "down", "down")
    assert view.jobs_top == 2
    assert press(view, " ") is Action.FETCH
    assert press(view, "r") is None
    assert press(view, "escape") is None
    assert view.mode is Mode.TUBES
    view.show_jobs(JobsOfTube("mail", 1.0))
    assert view.jobs is None


def test_without_tubes_there_are_no_jobs_to_show():
    view = view_of(Samples())
    assert press(view, "enter") is None
    assert (view.mode, view.message) == (Mode.TUBES, "no tube is selected")


def test_the_end():
    for keys in (["q"], ["ctrl-d"]):
        assert press(view_of(SOME), *keys) is Action.QUIT
    view = view_of(SOME)
    assert press(view, "?", "q") is None  # any key leaves the help
    assert press(view, " ") is Action.SAMPLE


def test_each_sort_key_sorts_by_its_column():
    for key, column in SORT_KEYS.items():
        view = view_of(SOME, sort="tube" if column != "tube" else "ready")
        press(view, key)
        assert view.sort == column


MORE = ("up", "down", "page-up", "page-down", "home", "end", "backspace", " ")
keys = st.one_of(st.sampled_from([*SORT_KEYS, *", ".join(HELP).split(", "), *MORE]), st.characters())


@given(st.lists(keys, max_size=30), st.integers(0, 5), st.integers(-1, 30))
def test_no_keys_confuse_the_view(pressed, tubes, room):
    samples = samples_of(**{f"m{number}": number for number in range(tubes)})
    view = view_of(samples, room)
    for key in pressed:
        view.press(key)
        assert 0 <= view.selected <= max(len(view.ranked) - 1, 0)
        assert not view.ranked or view.selected_name in view.visible
        assert all(name.startswith(view.prefix) for name in view.ranked)
