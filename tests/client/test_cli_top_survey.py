"""Which tubes are asked about in an interval: all of them in turn, the visible ones each time, and never too many."""

import bisect

from beanstalk_client.cli import top_survey
from beanstalk_client.cli.top_samples import TUBE_FIGURES, Samples
from beanstalk_client.cli.top_survey import (
    COMPARISONS,
    LISTED,
    NEXT_JOBS,
    PAGE,
    SURVEYED,
    VISIBLE,
    Gone,
    Names,
    NextJob,
    Page,
    PageOfTubes,
    Refused,
    Stats,
    Survey,
    Tube,
    Unknown,
)
from hypothesis import given
from hypothesis import strategies as st


class FakeServer:
    """Tubes with ready jobs, and every question that was asked."""

    def __init__(self, names, has_pages=True):
        self.tubes = dict.fromkeys(names, "1")
        self.has_pages = has_pages
        self.asked = []

    def figures(self, name):
        return dict.fromkeys(TUBE_FIGURES, "0") | {"name": name, "current-jobs-ready": self.tubes[name]}

    def answer(self, question):
        self.asked.append(question)
        match question:
            case Stats():
                return {"current-tubes": str(len(self.tubes)), "id": "a"}
            case Page(first, count):
                if not self.has_pages:
                    return Unknown()
                names = sorted(self.tubes)
                at = 0 if first == "-" else bisect.bisect_left(names, first)
                following = names[at + count] if at + count < len(names) else ""
                return PageOfTubes([self.figures(name) for name in names[at : at + count]], following)
            case Tube(name):
                return self.figures(name) if name in self.tubes else Gone()
            case Names():
                return list(self.tubes)
            case NextJob():
                return 7 if self.has_pages else Unknown()


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
        return {kind: [q for q in asked if isinstance(q, kind)] for kind in (Stats, Page, Tube, Names, NextJob)}


def names_of(count):
    return [f"tube-{number:06}" for number in range(count)]


def test_few_tubes_are_all_seen_in_each_interval():
    watcher = Watcher(FakeServer(["mail", "bill", "+plus", "$dollar"]))
    for _ in range(3):
        kinds = watcher.kinds(visible=["mail"])
        assert kinds[Page] == [Page("-", SURVEYED)]
        assert set(watcher.samples.tubes) == set(watcher.server.tubes)
        assert watcher.survey.is_complete
    assert kinds[Tube] == []  # the page has it
    del watcher.server.tubes["mail"]
    watcher.interval()
    assert "mail" not in watcher.samples.tubes


def test_the_first_interval_of_a_hundred_thousand_tubes_asks_for_one_page():
    watcher = Watcher(FakeServer(names_of(100_000)))
    assert watcher.interval() == [Stats(), Page("-", SURVEYED)]
    assert len(watcher.samples.tubes) == SURVEYED
    assert not watcher.survey.is_complete


def test_a_hundred_thousand_tubes_take_two_hundred_seconds():
    watcher = Watcher(FakeServer(names_of(100_000)))
    for second in range(200):
        assert not watcher.survey.is_complete
        pages = watcher.kinds()[Page]
        assert sum(page.count for page in pages) == SURVEYED, second
    assert watcher.survey.is_complete
    assert len(watcher.samples.tubes) == 100_000
    assert watcher.samples.oldest("", watcher.now) == 200.0


def test_visible_tubes_are_asked_about_each_time_within_a_bound():
    watcher = Watcher(FakeServer(names_of(5000)))
    watcher.interval()
    visible = names_of(300)
    kinds = watcher.kinds(visible=visible)
    assert kinds[Tube] == [Tube(name) for name in visible[:VISIBLE]]
    assert len(watcher.kinds(visible=visible, seconds=0.1)[Tube]) == VISIBLE // 10
    assert len(watcher.kinds(visible=visible, seconds=60)[Tube]) == VISIBLE


def test_a_long_interval_asks_for_a_bounded_number_of_pages_one_after_the_other():
    watcher = Watcher(FakeServer(names_of(50_000)))
    assert [page.first for page in watcher.kinds(seconds=60)[Page]] == ["-", *names_of(50_000)[PAGE : 5 * PAGE : PAGE]]


def test_a_short_interval_asks_for_less():
    watcher = Watcher(FakeServer(names_of(50_000)))
    assert watcher.kinds(seconds=0.1)[Page] == [Page("-", SURVEYED // 10)]


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
    assert kinds[Page] == [Page("zmail-", SURVEYED)]
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
    asked = [question.name for _ in range(3) for question in watcher.kinds(visible=names_of(30))[NextJob]]
    assert len(asked) == 3 * NEXT_JOBS
    assert set(asked) == set(names_of(30)) - {"tube-000003"}
    assert watcher.samples.row("tube-000001", watcher.now).next_age == 7


def test_a_server_that_goes_round_in_circles_is_not_followed():
    class Circle(FakeServer):
        def answer(self, question):
            answer = super().answer(question)
            return PageOfTubes(answer.tubes, "aaa") if isinstance(answer, PageOfTubes) else answer

    watcher = Watcher(Circle(["bbb", "ccc"]))
    for _ in range(5):
        assert len(watcher.interval(seconds=60)) <= 2 + top_survey.PAGES


def test_refused_figures_are_told():
    class Strict(FakeServer):
        def answer(self, question):
            answer = super().answer(question)
            return Refused() if isinstance(question, Stats | Page) else answer

    watcher = Watcher(Strict(["mail"]))
    assert len(watcher.interval()) == 2
    assert watcher.survey.is_refused
    assert watcher.survey.has_pages is None


# Stock beanstalkd


def test_stock_beanstalkd_is_asked_for_names_and_for_each_tube():
    watcher = Watcher(FakeServer(["mail", "bill"], has_pages=False))
    kinds = watcher.kinds()
    assert (len(kinds[Page]), len(kinds[Names])) == (1, 1)
    assert kinds[Tube] == [Tube("bill"), Tube("mail")]
    assert watcher.survey.is_complete
    kinds = watcher.kinds(visible=["mail"])
    assert kinds[Page] == []
    assert kinds[Tube] == [Tube("mail"), Tube("bill")]
    assert kinds[NextJob] == []
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
        listed += len(kinds[Names])
        asked = [question.name for question in kinds[Tube]]
        assert len(asked) * count <= COMPARISONS
        assert set(visible) <= set(asked)
        assert len(set(asked)) == len(asked)
        seen |= set(asked)
    assert listed == 1
    assert len(seen) == 10 + 200 * (COMPARISONS // count - 10)


def test_the_list_of_stock_beanstalkd_is_asked_for_seldom():
    count = 4 * LISTED
    watcher = Watcher(FakeServer(names_of(count), has_pages=False))
    rounds = [len(watcher.kinds(seconds=2.0)[Names]) for _ in range(200)]
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
