"""A sampler for all viewers: what it asks for and how often, what it keeps, and what it does with refusals."""

import asyncio
import math

from beanstalk_client.errors import BadFormatError, ConnectionLostError, ForbiddenError, UnknownCommandError
from beanstalk_client.observe.sampler import KEPT, LOOKED_WITHIN, MAX_SHOWN, MAX_TRACKED, STEP, Sampler, Series, Shared
from hypothesis import given
from hypothesis import strategies as st


class Server:
    """A client whose server has these tubes; it notes what it is asked."""

    def __init__(self, tubes, refuses=None):
        self.tubes = tubes
        self.refuses = refuses or {}
        self.asked = []
        self.counters = {"cmd-release": 0, "cmd-bury": 0, "job-timeouts": 0}

    async def execute(self, command):
        name, *words = command.data.decode().split()
        self.asked.append((name, *words))
        if name in self.refuses:
            raise self.refuses[name]
        if name == "stats":
            return {
                "id": "a",
                "uptime": 1,
                "current-tubes": len(self.tubes),
                "total-jobs": 0,
                "current-jobs-ready": sum(self.tubes.values()),
                **self.counters,
            }
        if name == "stats-tubes":
            names = [each for each in sorted(self.tubes) if words[0] == "-" or each >= words[0]]
            count = int(words[1])
            return (names[count : count + 1] or [""])[0], [self.entry(each) for each in names[:count]]
        if name == "stats-tube":
            return self.entry(words[0])
        if name == "list-tubes":
            return list(self.tubes)
        if name == "list-jobs":
            return "", [{"age": 5}] if self.tubes[words[0]] else []
        raise AssertionError(name)

    def entry(self, name):
        return {
            "name": name,
            "current-jobs-ready": self.tubes[name],
            "current-watching": 0,
            "total-jobs": 1,
            "cmd-delete": 0,
        }

    async def close(self):
        pass


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def sampler_of(server, looked=True):
    clock = Clock()
    sampler = Sampler(server, clock)
    if looked:
        sampler._looked = clock.now
    return sampler, clock


async def rounds(sampler, clock, number, seconds=2.0):
    for _ in range(number):
        await sampler.sample()
        clock.now += seconds
        sampler._looked = clock.now


async def test_a_sample_costs_one_page_however_many_tubes_there_are():
    server = Server({f"tube-{number:06}": number for number in range(5000)})
    sampler, clock = sampler_of(server)
    await rounds(sampler, clock, 1)
    assert [words for words in server.asked if words[0] == "stats-tubes"] == [("stats-tubes", "-", "1000")]
    assert len(server.asked) < 20
    await rounds(sampler, clock, 5)
    assert len(sampler.samples.tubes) == 5000
    server.asked.clear()
    sampler.show([f"tube-{number:06}" for number in range(4000)])
    await rounds(sampler, clock, 1)
    assert len([words for words in server.asked if words[0] == "stats-tube"]) <= MAX_SHOWN
    assert len(sampler._tracked) <= MAX_TRACKED


async def test_a_prefix_narrows_what_is_asked_for():
    server = Server({"mail": 1, "news": 2})
    sampler, clock = sampler_of(server)
    sampler.prefix = "news"
    await rounds(sampler, clock, 1)
    assert ("stats-tubes", "news", "1000") in server.asked and set(sampler.samples.tubes) == {"news"}


async def test_without_viewers_only_the_server_is_asked():
    server = Server({"a": 1})
    sampler, clock = sampler_of(server, looked=False)
    await sampler.sample()
    assert server.asked == [("stats",)]
    clock.now += LOOKED_WITHIN
    assert not sampler.is_looked_at


async def test_fifty_who_look_cost_what_one_does():
    server = Server({"a": 1})
    sampler = Sampler(server)
    await asyncio.gather(*[sampler.look(["a"]) for _ in range(50)])
    assert len([words for words in server.asked if words[0] == "stats"]) == 1
    await sampler.close()


async def test_a_server_without_pages_is_asked_for_names_and_tubes():
    server = Server({"a": 1, "b": 2}, {"stats-tubes": BadFormatError(), "list-jobs": UnknownCommandError()})
    sampler, clock = sampler_of(server)
    await rounds(sampler, clock, 3)
    assert set(sampler.samples.tubes) == {"a", "b"} and sampler.problem == ""


async def test_who_may_not_see_the_server_sees_the_sums_of_the_tubes():
    server = Server({"a": 1, "b": 2}, {"stats": ForbiddenError()})
    sampler, clock = sampler_of(server)
    await rounds(sampler, clock, 2)
    assert sampler.survey.is_refused and sampler.totals["ready"] == 3
    assert [value for value in sampler.history("ready") if value is not None] == [3]


async def test_a_server_that_is_away_is_a_problem_until_it_is_back():
    server = Server({"a": 1})
    sampler, clock = sampler_of(server)
    await rounds(sampler, clock, 1)
    assert sampler.survey.has_pages
    server.refuses |= dict.fromkeys(("stats", "stats-tubes"), ConnectionLostError("gone"))
    await rounds(sampler, clock, 1)
    assert "gone" in sampler.problem and sampler.survey.has_pages is None
    server.refuses.clear()
    await rounds(sampler, clock, 1)
    assert sampler.problem == "" and sampler.error is None and sampler.totals["ready"] == 1


async def test_a_server_that_is_slow_is_a_problem_until_it_answers():
    server = Server({"a": 1})
    sampler, clock = sampler_of(server)
    answers, asked = asyncio.Event(), server.execute

    async def slowly(command):
        await answers.wait()
        return await asked(command)

    server.execute = slowly
    sampling = asyncio.create_task(sampler.sample())
    await asyncio.sleep(0)
    assert sampler.problem == ""
    clock.now += 4
    assert sampler.problem == "no answer for 4 s"
    answers.set()
    await sampling
    assert sampler.problem == ""


async def test_failures_are_releases_burials_and_timeouts():
    server = Server({})
    sampler, clock = sampler_of(server)
    await rounds(sampler, clock, 1)
    server.counters = {"cmd-release": 3, "cmd-bury": 2, "job-timeouts": 1}
    await rounds(sampler, clock, 1)
    assert sampler.failures == 3.0


async def test_a_held_back_tube_is_noted_and_forgotten():
    server = Server({"a": 1})
    sampler, clock = sampler_of(server)
    entry = server.entry
    server.entry = lambda name: {**entry(name), "throttled": 1}
    await rounds(sampler, clock, 1)
    assert sampler.throttled == {"a"}
    server.entry = lambda name: {**entry(name), "throttled": 0}
    await rounds(sampler, clock, 1)
    assert sampler.throttled == set()


@given(st.lists(st.tuples(st.floats(0, 30_000), st.none() | st.integers(0, 1000)), max_size=60), st.floats(0, 5000))
def test_a_series_is_the_mean_of_each_step(values, later):
    series, model = Series(), {}
    values.sort(key=lambda each: each[0])
    for now, value in values:
        series.add(now, value)
        if value is not None:
            model.setdefault(int(now // STEP), []).append(value)
    now = max([moment for moment, _ in values], default=0.0) + later
    found = series.last(now)
    expected = [model.get(step) for step in range(int(now // STEP) - KEPT + 1, int(now // STEP) + 1)]
    assert KEPT - 1 <= len(found) <= KEPT
    for got, wanted in zip(found, expected, strict=False):
        assert (got is None) == (wanted is None)
        assert got is None or math.isclose(got, sum(wanted) / len(wanted), rel_tol=1e-4, abs_tol=1e-3)


async def test_what_several_ask_for_is_fetched_once():
    clock, fetched = Clock(), []

    async def fetch():
        fetched.append(1)
        await asyncio.sleep(0)
        return len(fetched)

    shared = Shared(clock)
    assert await asyncio.gather(*[shared.get(fetch, 2) for _ in range(10)]) == [1] * 10
    clock.now += 3
    assert await shared.get(fetch, 2) == 2
