"""The queue in memory beside a real server, both in virtual time: the same script of calls, the same answers."""

import asyncio
import contextlib

import pytest
from beanstalk_client.errors import BeanstalkdError, JobTooBigError, TimedOutError
from beanstalk_client.job import Job
from beanstalk_client.memory import MemoryQueue
from beanstalk_client.schedules import MOMENT, Scheduler
from beanstalk_client.tasks import Tasks
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual import World
from virtual_client import connect

from beanstalk_server.queue.units import SECOND

TUBE = "default"

KEYS = ("a", "b")

STATES = ("ready", "delayed", "reserved", "buried")
COMMON = ("name", "state", "waiting-jobs", *(f"current-jobs-{each}" for each in STATES))

delays = st.sampled_from([0, 0, 3, 10])
priorities = st.sampled_from([5, 65536])
keys = st.sampled_from(KEYS)
times = st.sampled_from([1000, 2000])
limits = st.sampled_from([0, 0, 2.5, 7.5])  # at a server, the age of a job begins before its body
which = st.integers(0, 7)
groups = st.sampled_from(["", "g", "h"])

STEPS = st.one_of(
    st.tuples(st.just("put"), priorities, delays),
    st.tuples(st.just("put_with"), priorities, delays, keys, st.booleans(), st.sampled_from([0, 2]), delays),
    st.tuples(
        st.just("replace"), priorities, st.one_of(delays, st.none()), times, keys, st.booleans(), limits, groups, groups
    ),
    st.tuples(st.just("put_once"), keys, st.booleans(), st.booleans(), st.sampled_from(["t", "u"]), limits, groups),
    st.tuples(st.just("put_at"), st.integers(-5, 20)),
    st.tuples(st.just("put_demanding"), st.sampled_from([0, 1, 2]), st.sampled_from([0, 4]), st.sampled_from([0, 5])),
    st.tuples(st.just("put_grouped"), delays, groups, groups, st.booleans()),
    st.tuples(st.just("cancel_group"), st.sampled_from(["g", "h"])),
    st.tuples(st.just("stats_group"), st.sampled_from(["g", "h"])),
    st.tuples(st.just("cancel"), which),
    st.tuples(st.just("cancel_keyed"), keys),
    st.tuples(st.just("reserve")),
    st.tuples(st.just("delete"), which),
    st.tuples(st.just("release"), which, priorities, delays),
    st.tuples(st.just("bury"), which, priorities),
    st.tuples(st.just("give_back"), which),
    st.tuples(st.just("save"), which, st.sampled_from([b"", b"saved", 65536 * b"x"])),
    st.tuples(st.just("reprioritize"), which, st.integers(4, 6)),
    st.tuples(st.just("reprioritize_keyed"), keys, st.integers(4, 6)),
    st.tuples(st.just("kick_job"), which),
    st.tuples(st.just("kick"), st.integers(1, 3)),
    st.tuples(st.just("pass"), st.sampled_from([1.01, 3.01, 7.01, 30.01])),  # never just at the end of a tick
)


class Real:
    """A server in virtual time."""

    def __init__(self):
        self.world = World()
        self.client = connect(self.world, encoding=None)
        self.began = 1_900_000_000.0
        offset = round(self.began * SECOND) - self.world.now
        self.world.info.clock_offset = lambda: offset
        self.moment = self.began

    def sleep(self, seconds):
        self.world.sleep(seconds)
        self.moment += seconds

    def close(self):
        self.client.close()
        self.world.check()


class Fake:
    """A queue in memory."""

    def __init__(self):
        self.queue = MemoryQueue(Tasks(), now=1_900_000_000.0)
        self.client = self.queue.client(TUBE)

    @property
    def moment(self):
        return self.queue.now

    def sleep(self, seconds):
        self.queue.advance(seconds)

    def close(self):
        pass


FIELDS = ("id", "tube", "state", "pri", "age", "delay", "ttr", "reserves", "releases", "buries", "kicks", "timeouts")


OF_JOB = ("cancel", "delete", "release", "bury", "kick_job", "give_back", "save", "reprioritize")


def follow(side, script):
    """What a queue answers to each step of a script, and what it says of its jobs behind it."""
    told, ids = [], []
    client = side.client
    for name, *arguments in script:
        side.sleep(0.001)  # as time passes at a server from one command to the next
        chosen = ids[arguments[0] % len(ids)] if ids and name in OF_JOB else 0
        try:
            answer = _do(side, client, name, arguments, chosen, ids)
        except Exception as error:
            answer = type(error).__name__
        told.append((name, answer))
        told.append([_look(client, job_id) for job_id in ids])
    return told


REFUSED = {
    "priority below 0": lambda client: client.put(b"", -1),
    "priority too large": lambda client: client.put(b"", 2**32),
    "negative delay": lambda client: client.put(b"", delay=-1),
    "delay too long": lambda client: client.put(b"", delay="50000d"),
    "negative ttr": lambda client: client.put(b"", ttr=-1),
    "no duration": lambda client: client.put(b"", ttr="soon"),
    "body too big": lambda client: client.put(65536 * b"x"),
    "keyed body too big": lambda client: client.put_with(65536 * b"x", key="taken"),
    "text for bytes": lambda client: client.put("x"),
    "nothing for bytes": lambda client: client.put(None),
    "bad key": lambda client: client.put_with(b"", key="a b"),
    "key too long": lambda client: client.put_with(b"", key=201 * "k"),
    "negative ttl": lambda client: client.put_with(b"", ttl=-1),
    "negative hold": lambda client: client.put_with(b"", key="k", hold=-1),
    "negative backoff": lambda client: client.put_with(b"", backoff=-1),
    "negative tries": lambda client: client.put_with(b"", tries=-1),
    "moment too late": lambda client: client.put_with(b"", at=2**32),
    "moment before 1970": lambda client: client.put_with(b"", at=-1),
    "moment and delay": lambda client: client.put_with(b"", at=5, delay=5),
    "hold without a key": lambda client: client.put_with(b"", hold=5),
    "bad token": lambda client: client.put_with(b"", once="a:b"),
    "time of no token": lambda client: client.put_with(b"", once_ttl=5),
    "mistyped demand": lambda client: client.put_with(b"", tris=5),
    "cancel by a bad key": lambda client: client.cancel_keyed("a b"),
    "cancel of a bad id": lambda client: client.cancel(-1),
    "delete of a bad id": lambda client: client.delete(-1),
    "again without replace": lambda client: client.put_with(b"", key="k", again=True),
    "within without replace": lambda client: client.put_with(b"", key="k", within=5),
    "negative within": lambda client: client.put_with(b"", key="k", replace=True, within=-1),
    "give back of a bad id": lambda client: client.give_back(-1),
    "save of a bad id": lambda client: client.save(-1, b""),
    "save of text for bytes": lambda client: client.save(1, "x"),
    "saved body too big": lambda client: client.save(1, 65536 * b"x"),
    "bad priority": lambda client: client.reprioritize(1, -1),
    "bad priority by key": lambda client: client.reprioritize_keyed("taken", 2**32),
    "priority by a bad key": lambda client: client.reprioritize_keyed("a b", 1),
    "release to a bad priority": lambda client: client.release(1, -1),
    "release for a bad delay": lambda client: client.release(1, 1, -1),
    "bury with a bad priority": lambda client: client.bury(1, 2**32),
    "kick of fewer than none": lambda client: client.kick(-1),
    "kick of a bad id": lambda client: client.kick_job(-1),
    "statistics of a bad id": lambda client: client.stats_job(2**64),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_the_client_or_a_server_refuses_is_refused_in_memory(call):
    told = []
    for side in (Real(), Fake()):
        side.client.put_with(b"", key="taken")
        with pytest.raises((BeanstalkdError, TypeError, ValueError)) as raised:
            call(side.client)
        error = raised.value
        told.append((type(error), error.reply if isinstance(error, BeanstalkdError) else str(error)))
        side.close()
    if told[0][0] is TypeError:  # which names the method, or the function
        told = [(kind, text.partition("()")[2]) for kind, text in told]
    assert told[0] == told[1]


def test_a_time_to_run_of_less_than_a_second_is_one_second():
    for side in (Real(), Fake()):
        assert side.client.stats_job(side.client.put(b"", ttr=0))["ttr"] == 1
        side.close()


@pytest.mark.parametrize("tube", ["", "a b", "-a", 201 * "t", "é"])
def test_a_name_that_no_tube_has_is_refused_in_memory(tube):
    tasks = Tasks()
    task = tasks.task(name="note")(print)
    task.tube = tube  # which is refused where a task is made
    with tasks.in_memory() as queue:
        with pytest.raises(ValueError, match="bad tube"):
            task.put()
        assert not queue.jobs()


MONDAY = 1_798_444_800  # 2026-12-28T08:00:00Z, nine o'clock in Berlin


@pytest.fixture
def planned():
    """Tasks with two schedules, and what their runs have noted."""
    tasks, noted = Tasks(), []

    @tasks.cron("30 9 * * *", tz="Europe/Berlin", args=[MOMENT])
    @tasks.task
    def report(moment):
        noted.append(moment)

    @tasks.every("20m")
    @tasks.task(tube="upkeep", priority=3)
    def tidy():
        noted.append("tidy")

    return tasks, noted


def test_schedules_fire_in_memory_each_at_its_moment(planned):
    tasks, noted = planned
    with tasks.in_memory(now=MONDAY) as queue:
        assert queue.jobs() == [], "a first start fires nothing of the past"
        assert queue.run(1199) == 0
        assert queue.run("1h") == 4
        assert noted == ["tidy", "2026-12-28T09:30:00+01:00", "tidy", "tidy"]
        queue.advance("1d")
        jobs = queue.jobs()
        assert [job.tube for job in jobs].count("upkeep") == 72 == len(jobs) - 1
        assert ("schedules/report/20261229T083000Z", "default") in [(job.key, job.tube) for job in jobs]
        assert {job.priority for job in queue.jobs("upkeep")} == {3}
        assert queue.run() == 73
        assert asyncio.run(queue.arun(1200)) == 1


def test_a_schedule_that_a_test_adds_fires_from_then_on():
    tasks = Tasks()
    with tasks.in_memory(now=MONDAY) as queue:
        queue.advance(600)
        note = tasks.task(name="note")(print)
        tasks.every("5m")(note)
        assert queue.run(299) == 0
        assert queue.run(1) == 1


def test_schedules_can_be_left_to_others_and_are_refused_as_by_a_scheduler(planned):
    tasks, _ = planned
    with tasks.in_memory(now=MONDAY, schedules=False) as queue:
        assert queue.run("1d") == 0
    tasks.every("5m")(tasks.task(tube="schedules", name="lost")(print))
    with pytest.raises(ValueError, match="the tube of the plans"), tasks.in_memory():
        pass


def test_a_firing_fires_in_memory_when_it_does_at_a_server():
    """Beside a scheduler at a server in virtual time."""
    fired = []
    for side in (Real(), Fake()):
        tasks, moments = Tasks(), []
        tasks.every("7m")(tasks.task(name="note")(print))
        if isinstance(side, Real):
            scheduler = Scheduler(tasks.connect, tasks.schedules, ahead=3600, clock=lambda side=side: side.moment)
            scheduler.make_pass(side.client)
            side.client.use(TUBE)
        else:
            side.queue = MemoryQueue(tasks, now=side.moment)
            side.client = side.queue.client(TUBE)
        for _ in range(3600):
            side.sleep(1)
            with contextlib.suppress(TimedOutError):
                side.client.delete(side.client.reserve(0))
                moments.append(side.moment)
        fired.append(moments)
        side.close()
    assert fired[0] == fired[1]
    assert len(fired[0]) == 9


def test_the_largest_job_is_as_large_as_the_server_is_told():
    tasks = Tasks()
    note = tasks.task(name="note")(print)
    with tasks.in_memory(max_job_size=1000) as queue:
        note.put("x" * (1000 - len(note.body(""))))
        with pytest.raises(JobTooBigError):
            note.put("x" * (1001 - len(note.body(""))))
        assert len(queue.jobs()) == 1


def _do(side, client, name, arguments, chosen, ids):
    if name == "put":
        priority, delay = arguments
        ids.append(client.put(b"x", priority, delay, 1000))
        return ids[-1]
    if name == "put_with":
        priority, delay, key, replace, hold, _ = arguments
        made = client.put_with(b"x", priority, delay, 1000, key=key, replace=replace, hold=hold)
        if made not in ids:
            ids.append(made)
        return made
    if name == "replace":
        priority, delay, ttr, key, again, within, group, after = arguments
        options = {"at": side.moment + 7.5} if delay is None else {"delay": delay, "within": within, "group": group}
        if options.get("within") == 0 and after != group:
            options["after"] = after
        made = client.put_with(b"replaced", priority, ttr=ttr, key=key, replace=True, again=again, **options)
        if made not in ids:
            ids.append(made)
        return made
    if name == "put_once":
        key, replace, again, once, once_ttl, group = arguments
        again = again and replace
        options = {"key": key, "replace": replace, "again": again, "group": group}
        made = client.put_with(b"once", ttr=1000, once=once, once_ttl=once_ttl, **options)
        if made not in ids:
            ids.append(made)
        return made
    if name == "put_at":
        ids.append(client.put_with(b"x", at=side.moment + arguments[0] + 0.5, ttr=1000))
        return ids[-1]
    if name == "put_demanding":
        tries, backoff, ttl = arguments
        ids.append(client.put_with(b"x", tries=tries, backoff=backoff, ttl=ttl, ttr=1000))
        return ids[-1]
    if name == "put_grouped":
        delay, group, after, waits = arguments
        after = "" if after == group else after
        ids.append(client.put_with(b"x", delay=delay, group=group, after=after, after_waits=waits, ttr=1000))
        return ids[-1]
    if name == "cancel_group":
        return client.cancel_group(*arguments)
    if name == "stats_group":
        found = client.stats_group(*arguments)
        return {key: value for key, value in found.items() if key in COMMON}
    if name in ("cancel_keyed", "reprioritize_keyed"):
        return getattr(client, name)(*arguments)
    if name == "reserve":
        job = client.reserve(0)
        return job.id, job.body
    if name == "kick":
        return client.kick(*arguments)
    if name == "pass":
        return side.sleep(*arguments)
    if name == "release":
        return client.release(Job(chosen, b""), arguments[1], arguments[2])
    if name == "bury":
        return client.bury(Job(chosen, b""), arguments[1])
    if name in ("save", "reprioritize"):
        return getattr(client, name)(chosen, arguments[1])
    return getattr(client, name)(chosen)


def _look(client, job_id):
    try:
        found = client.stats_job(job_id)
    except Exception as error:
        return type(error).__name__
    return {name: found[name] for name in FIELDS}


def replaced_while_reserved(*end):
    """A script: a job is replaced twice while it is reserved, then its reservation ends, and the next one begins."""
    put, last = (("replace", 5, 0, ttr, "a", True, 0, "g", "") for ttr in (1000, 2000))
    first = ("replace", 7, 3, 1000, "a", True, 0, "h", "")
    saves = (("save", 0, b"saved"),) * 2
    return [put, ("reserve",), saves[0], first, saves[1], last, end, ("pass", 3.01), ("reserve",), ("delete", 0)]


@settings(max_examples=examples(100))
@given(st.lists(STEPS, max_size=25))
@example(replaced_while_reserved("delete", 0))
@example(replaced_while_reserved("release", 0, 65536, 10))
@example(replaced_while_reserved("bury", 0, 65536))
@example(replaced_while_reserved("give_back", 0))
def test_the_queue_in_memory_answers_as_a_server_does(script):
    answers = []
    for side in (Real(), Fake()):
        answers.append(follow(side, script))
        side.close()
    assert answers[0] == answers[1]


def test_who_waits_for_a_job_that_expires_waits_from_that_moment_on():
    tasks = Tasks()
    with tasks.in_memory() as queue:
        client = queue.client()
        client.put_with(b"member", group="g", ttl=10)
        client.put_with(b"waiting", after="g", delay=30)
        queue.advance(40)
        assert [(job.body, job.state) for job in queue.jobs()] == [(b"waiting", "ready")]
