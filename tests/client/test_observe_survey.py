"""Which tubes are asked about in an interval: all of them in turn, the visible ones each time, and never too many."""

import bisect

from beanstalk_client import ForbiddenError, NotFoundError, UnknownCommandError
from beanstalk_client.observe.samples import TUBE_FIGURES, Samples
from beanstalk_client.observe.survey import COMPARISONS, LISTED, NEXT_JOBS, PAGE, PAGES, SURVEYED, VISIBLE, Survey
from hypothesis import given
from hypothesis import strategies as st


class FakeServer:
    """Tubes with ready jobs, and every question that was asked."""

    def __init__(self, names, has_pages=True):
        self.tubes = dict.fromkeys(names, "1")
        self.has_pages = has_pages
        self.asked = []

    def figures(self, name):
        return dict.fromkeys(TUBE_FIGURES.values(), "0") | {"name": name, "current-jobs-ready": self.tubes[name]}

    def answer(self, question):
        self.asked.append(question)
        match question.split(" "):
            case ["stats"]:
                return {"current-tubes": len(self.tubes), "id": "a"}
            case ["stats-tubes" | "list-jobs", *_] if not self.has_pages:
                return UnknownCommandError()
            case ["stats-tubes", first, count]:
                names = sorted(self.tubes)
                at = 0 if first == "-" else bisect.bisect_left(names, first)
                end = at + int(count)
                return self.page(names[at:end], names[end] if end < len(names) else "")
            case ["stats-tube", name]:
                if name not in self.tubes:
                    return NotFoundError()
                return self.figures(name)
            case ["list-tubes"]:
                return list(self.tubes)
            case ["list-jobs", _, "ready", "0", "1"]:
                return "", [{"id": 1, "age": 7}]

    def page(self, names, following):
        return following, [self.figures(name) for name in names]


class Watcher:
    """A survey of a server, interval by interval."""

    def __init__(self, server):
        self.server = server
        self.samples = Samples()
        self.survey = Survey(self.samples)
        self.now = 0.0

    def interval(self, visible=(), prefix="", seconds=1.0):
        """One interval; returns the questions that were asked in it."""
        self.server.asked = []
        questions = self.survey.begin(self.now, seconds, visible, prefix)
        while questions:
            for question in questions:
                self.survey.take(self.now, question, self.server.answer(question))
            questions = self.survey.more(self.now)
        self.now += seconds
        return self.server.asked

    def kinds(self, **arguments):
        asked = self.interval(**arguments)
        kinds = ("stats", "stats-tubes", "stats-tube", "list-tubes", "list-jobs")
        return {kind: [question for question in asked if question.split(" ")[0] == kind] for kind in kinds}


def names_of(count):
    return [f"tube-{number:06}" for number in range(count)]


def test_few_tubes_are_all_seen_in_each_interval():
    watcher = Watcher(FakeServer(["mail", "bill", "+plus", "$dollar"]))
    for _ in range(3):
        kinds = watcher.kinds(visible=["mail"])
        assert kinds["stats-tubes"] == [f"stats-tubes - {SURVEYED}"]
        assert set(watcher.samples.tubes) == set(watcher.server.tubes)
        assert watcher.survey.is_complete
    assert kinds["stats-tube"] == []  # the page has it
    del watcher.server.tubes["mail"]
    watcher.interval()
    assert "mail" not in watcher.samples.tubes


def test_the_first_interval_of_a_hundred_thousand_tubes_asks_for_one_page():
    watcher = Watcher(FakeServer(names_of(100_000)))
    assert watcher.interval() == ["stats", f"stats-tubes - {SURVEYED}"]
    assert len(watcher.samples.tubes) == SURVEYED
    assert not watcher.survey.is_complete


def test_a_hundred_thousand_tubes_take_two_hundred_seconds():
    watcher = Watcher(FakeServer(names_of(100_000)))
    for second in range(200):
        assert not watcher.survey.is_complete
        pages = watcher.kinds()["stats-tubes"]
        assert sum(int(page.split()[2]) for page in pages) == SURVEYED, second
    assert watcher.survey.is_complete
    assert len(watcher.samples.tubes) == 100_000
    assert watcher.samples.oldest("", watcher.now) == 200.0


def test_visible_tubes_are_asked_about_each_time_within_a_bound():
    watcher = Watcher(FakeServer(names_of(5000)))
    watcher.interval()
    visible = names_of(300)
    kinds = watcher.kinds(visible=visible)
    assert kinds["stats-tube"] == [f"stats-tube {name}" for name in visible[:VISIBLE]]
    assert len(watcher.kinds(visible=visible, seconds=0.1)["stats-tube"]) == VISIBLE // 10
    assert len(watcher.kinds(visible=visible, seconds=60)["stats-tube"]) == VISIBLE


def test_a_long_interval_asks_for_a_bounded_number_of_pages_one_after_the_other():
    watcher = Watcher(FakeServer(names_of(50_000)))
    assert [page.split()[1] for page in watcher.kinds(seconds=60)["stats-tubes"]] == [
        "-",
        *names_of(50_000)[PAGE : 5 * PAGE : PAGE],
    ]


def test_a_short_interval_asks_for_less():
    watcher = Watcher(FakeServer(names_of(50_000)))
    assert watcher.kinds(seconds=0.1)["stats-tubes"] == [f"stats-tubes - {SURVEYED // 10}"]


def test_a_visible_tube_that_has_gone_is_forgotten_at_once():
    watcher = Watcher(FakeServer(names_of(5000)))
    watcher.interval()
    del watcher.server.tubes["tube-000007"]
    watcher.interval(visible=["tube-000007"])
    assert "tube-000007" not in watcher.samples.tubes


def test_a_prefix_narrows_the_rounds():
    watcher = Watcher(FakeServer([*names_of(5000), "zmail-1", "zmail-2", "zn"]))
    watcher.interval()
    assert not watcher.survey.is_complete
    kinds = watcher.kinds(prefix="zmail-")
    assert kinds["stats-tubes"] == [f"stats-tubes zmail- {SURVEYED}"]
    assert watcher.survey.is_complete
    assert {name for name in watcher.samples.tubes if name > "z"} == {"zmail-1", "zmail-2"}
    del watcher.server.tubes["zmail-1"]
    watcher.interval(prefix="zmail-")
    assert "zmail-1" not in watcher.samples.tubes
    assert "tube-000000" in watcher.samples.tubes  # no one has asked whether it has gone


def test_ages_of_next_jobs_are_asked_in_rotation():
    watcher = Watcher(FakeServer(names_of(30)))
    watcher.interval()
    watcher.server.tubes["tube-000003"] = "0"
    watcher.interval()
    asked = [question.split()[1] for _ in range(3) for question in watcher.kinds(visible=names_of(30))["list-jobs"]]
    assert len(asked) == 3 * NEXT_JOBS
    assert set(asked) == set(names_of(30)) - {"tube-000003"}
    assert watcher.samples.tubes["tube-000001"].next_age == 7


def test_a_server_that_goes_round_in_circles_is_not_followed():
    class Circle(FakeServer):
        def page(self, names, following):
            return super().page(names, "aaa")

    watcher = Watcher(Circle(["bbb", "ccc"]))
    for _ in range(5):
        assert len(watcher.interval(seconds=60)) <= 2 + PAGES


def test_refused_figures_are_told():
    class Strict(FakeServer):
        def answer(self, question):
            answer = super().answer(question)
            return ForbiddenError() if question.split(" ")[0] in ("stats", "stats-tubes") else answer

    watcher = Watcher(Strict(["mail"]))
    assert len(watcher.interval()) == 2
    assert watcher.survey.is_refused
    assert watcher.survey.has_pages is None


# Stock beanstalkd


def test_stock_beanstalkd_is_asked_for_names_and_for_each_tube():
    watcher = Watcher(FakeServer(["mail", "bill"], has_pages=False))
    kinds = watcher.kinds()
    assert (len(kinds["stats-tubes"]), len(kinds["list-tubes"])) == (1, 1)
    assert kinds["stats-tube"] == ["stats-tube bill", "stats-tube mail"]
    assert watcher.survey.is_complete
    kinds = watcher.kinds(visible=["mail"])
    assert kinds["stats-tubes"] == []
    assert kinds["stats-tube"] == ["stats-tube mail", "stats-tube bill"]
    assert kinds["list-jobs"] == []
    watcher.server.tubes = {"new": "1"}
    watcher.interval()
    assert set(watcher.samples.tubes) == {"new"}


def test_stock_beanstalkd_with_many_tubes_compares_few_names():
    count = 20_000
    watcher = Watcher(FakeServer(names_of(count), has_pages=False))
    visible = names_of(10)
    listed = 0
    seen = set()
    for _ in range(200):
        kinds = watcher.kinds(visible=visible)
        listed += len(kinds["list-tubes"])
        asked = [question.split()[1] for question in kinds["stats-tube"]]
        assert len(asked) * count <= COMPARISONS
        assert set(visible) <= set(asked)
        assert len(set(asked)) == len(asked)
        seen |= set(asked)
    assert listed == 1
    assert len(seen) == 10 + 200 * (COMPARISONS // count - 10)


def test_the_list_of_stock_beanstalkd_is_asked_for_seldom():
    count = 4 * LISTED
    watcher = Watcher(FakeServer(names_of(count), has_pages=False))
    rounds = [len(watcher.kinds(seconds=2.0)["list-tubes"]) for _ in range(200)]
    assert max(rounds) == 1
    assert 2 <= sum(rounds) <= 200 * 2 * LISTED // count


def test_stock_beanstalkd_with_a_prefix_nothing_begins_with():
    watcher = Watcher(FakeServer(["mail"], has_pages=False))
    watcher.interval()
    watcher.interval(prefix="x")
    assert watcher.survey.is_complete
    watcher.server.tubes["xy"] = "1"
    watcher.interval(prefix="x")
    assert "xy" in watcher.samples.tubes


some_names = st.sets(st.text("ab+-(", min_size=1, max_size=4).filter(lambda name: name[0] != "-"), max_size=12)


@given(
    before=some_names,
    after=some_names,
    prefix=st.sampled_from(["", "a", "ab", "(", "+"]),
    has_pages=st.booleans(),
    seconds=st.sampled_from([0.001, 0.002, 0.003, 1.0]),
    visible=st.lists(st.sampled_from(["a", "ab", "b", "(", "gone"]), max_size=3),
)
def test_when_tubes_no_longer_change_two_rounds_see_just_those_that_there_are(
    before, after, prefix, has_pages, seconds, visible
):
    watcher = Watcher(FakeServer(before, has_pages))
    for _ in range(5):
        watcher.interval(visible, prefix, seconds)
    watcher.server.tubes = dict.fromkeys(after, "2")
    for _ in range(80):
        asked = watcher.interval(visible, prefix, seconds)
        assert len(asked) <= 2 * len(before | after) + len(visible) + 12
    seen = {name for name in watcher.samples.tubes if name.startswith(prefix)}
    assert seen == {name for name in after if name.startswith(prefix)}
