"""Schedulers at a server in virtual time: one, many at once, slow ones, dead ones."""

import datetime
import random
import threading

import pytest
from beanstalk_client.blocking import Client
from beanstalk_client.errors import BadFormatError, ConnectionLostError, DrainingError, NotFoundError, TimedOutError
from beanstalk_client.schedules import MOMENT, Cron, Every, Schedule, Scheduler
from beanstalk_client.schedules import scheduler as scheduler_module
from beanstalk_client.schedules.moments import between
from beanstalk_client.tasks import Tasks
from beanstalk_client.version import VERSION
from effort import seeded
from virtual import World
from virtual_client import VirtualSocket

from beanstalk_server.queue.units import SECOND

BEGAN = 1_800_000_000 - 1_800_000_000 % 86400
"""A midnight in UTC, at which the virtual server is started."""

MINUTE = 60
HOUR = 3600
DAY = 86400


class Times:
    """A server, and a worker that notes what it is told to do, and when."""

    def __init__(self, **options):
        self.world = World(**options)
        self.offset = BEGAN * SECOND - self.world.now
        self.world.info.clock_offset = lambda: self.offset
        self.queues = []
        self.worker = self.queue(watch="work")
        self.fired = []  # (moment, when)
        self.is_working = True

    def now(self):
        return (self.world.now + self.offset) / SECOND

    def clocks(self):
        """What a scheduler's own clocks say."""
        return (self.now(),) * 2

    def work(self):
        while True:
            try:
                job = self.worker.reserve(timeout=0)
            except TimedOutError:
                return
            moment = TASKS.serializer.read(job.body)["args"][0]
            self.fired.append((datetime.datetime.fromisoformat(moment).timestamp(), self.now()))
            self.worker.delete(job)

    def sleep(self, seconds):
        """Time passes, and the worker works. Nobody sets the clock, so the server need not look at it all the time."""
        world, broker = self.world, self.world.broker
        end = world.now + round(seconds * SECOND)
        while True:
            if broker.wall.check_timer.is_linked():
                broker.wheel.remove(broker.wall.check_timer)
            event = broker.next_event()
            if event > end:
                break
            world.now = max(world.now, event)
            broker.advance(world.now)
            world.settle()
            if self.is_working:
                self.work()
        world.now = end

    def moments(self):
        return [moment for moment, _ in self.fired]

    def queue(self, **options):
        self.queues.append(Client(VirtualSocket(self.world), encoding=None, **options))
        return self.queues[-1]

    def close(self):
        for queue in self.queues:
            queue.close()


TASKS = Tasks()


@TASKS.task(tube="work")
def note(moment, padding=""):
    raise AssertionError("the worker of these tests only reads what it is told to do")


def schedule(moments, name="note", **options):
    return Schedule(name, moments, note, args=[MOMENT], **options)


def every(**interval):
    return Every(datetime.timedelta(**interval))


def scheduler(*schedules, **options):
    return Scheduler(lambda: None, schedules, **options)


@pytest.fixture
def times(monkeypatch):
    times = Times()
    monkeypatch.setattr(scheduler_module, "_clocks", times.clocks)
    yield times
    times.close()


@pytest.fixture
def queue(times):
    return times.queue()


def go_on(times, schedulers, until, queue):
    """Let schedulers make their passes until a moment, and for a second more."""
    until += 1
    due = dict.fromkeys(schedulers, times.now())
    while (now := times.now()) < until:
        for each in schedulers:
            if due[each] <= now:
                due[each] = now + each.make_pass(queue)
        times.sleep(max(min(*due.values(), until) - now, 0.001))


def test_what_is_planned_fires_though_all_schedulers_are_dead(times):
    scheduler(schedule(every(minutes=5)), ahead=1800).make_pass(times.queue())
    times.sleep(2 * HOUR)
    assert times.moments() == list(range(BEGAN + 300, BEGAN + 1801, 300))


def test_the_next_firing_is_planned_though_it_is_a_month_away(times):
    scheduler(schedule(Cron("0 6 1 * *", "Europe/Berlin"))).make_pass(times.queue())
    times.sleep(40 * DAY)
    assert [datetime.datetime.fromtimestamp(each, datetime.UTC).isoformat() for each in times.moments()] == [
        "2027-02-01T05:00:00+00:00"
    ]


@pytest.mark.parametrize(("missed", "made_up"), [("skip", []), ("once", [3300]), ("all", range(900, 3301, 300))])
def test_what_was_missed_is_made_up_for_by_one_of_many(times, missed, made_up):
    many = [scheduler(schedule(every(minutes=5), missed=missed)) for _ in range(3)]
    many[0].make_pass(times.queue())
    times.sleep(HOUR - 100)
    times.fired.clear()
    go_on(times, many, BEGAN + HOUR + 301, times.queue())
    assert times.moments() == [*(BEGAN + each for each in made_up), BEGAN + HOUR, BEGAN + HOUR + 300]


@pytest.mark.parametrize(("missed", "late"), [("skip", [1800]), ("once", range(300, 1801, 300))])
def test_of_firings_that_no_worker_takes_skip_leaves_the_last(times, missed, late):
    mine, queue = scheduler(schedule(every(minutes=5), missed=missed)), times.queue()
    times.is_working = False
    go_on(times, [mine], BEGAN + 1800, queue)
    times.is_working = True
    go_on(times, [mine], BEGAN + 2400, queue)
    assert times.moments() == [BEGAN + each for each in (*late, 2100, 2400)]


def test_in_memory_skip_leaves_the_last_as_well():
    tasks, ran = Tasks(), []
    tasks.every(minutes=5, missed="skip", args=[MOMENT])(tasks.task(name="note")(ran.append))
    with tasks.in_memory(now=BEGAN) as queue:
        queue.advance(1801)
        assert queue.run() == 1
    assert [datetime.datetime.fromisoformat(each).timestamp() - BEGAN for each in ran] == [1800]


def test_a_firing_has_what_its_schedule_demands(times, queue):
    demands = {"ttl": "90s", "tries": 3, "limit": "tidy", "limit_count": 2}
    scheduler(schedule(every(minutes=5), missed="skip", **demands)).make_pass(queue)
    (planned, _) = queue.list_jobs("work", "delayed")
    found = queue.stats_job(planned["id"])
    assert (found["max-tries"], found["limit"]) == (3, "tidy")
    times.is_working = False
    times.sleep(300)
    assert queue.stats_job(planned["id"])["expires-in"] in (89, 90)


def test_another_demand_replaces_the_firings_that_are_planned():
    demands = ({}, {"missed": "skip"}, {"ttl": 300}, {"tries": 3}, {"limit": "a"})
    assert len({schedule(every(minutes=5), **each).work() for each in demands}) == 5


@pytest.mark.parametrize("demand", [{"ttl": -1}, {"tries": -1}, {"limit": "a b"}, {"limit": "a", "limit_count": 0}])
def test_a_demand_that_no_server_takes_is_refused_at_once(demand):
    with pytest.raises(ValueError, match=next(reversed(demand))):
        schedule(every(minutes=5), **demand)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"args": 5}, "args is 5: must be a list or a tuple"),
        ({"args": "abc"}, "args is 'abc': must be a list or a tuple"),
        ({"kwargs": 5}, "kwargs is 5: must be a dict"),
        ({"delay": 5}, "unknown option delay of a schedule: must be one of ttl, tries, limit, limit_count"),
        ({"limit_count": 2}, "limit_count requires limit"),
    ],
)
def test_an_argument_of_a_schedule_that_cannot_be_is_refused_at_once(options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        Schedule("note", Every("5m"), note, **options)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Schedule(5, Every(60), Tasks().task(print)), "name of a schedule is 5: must be a string"),
        (lambda: Cron(5), "expression is 5: must be a string"),
        (lambda: Cron("* * * * *", 5), "tz is 5: must be a string"),
        (lambda: Every(float("inf")), "bad interval inf: must be whole seconds, from 1"),
        (lambda: scheduler(group=5), "group is 5: must be a string"),
        (lambda: scheduler(ahead=1e12), "below 1e"),
        (lambda: scheduler(hold=1e12), "below 1e"),
        (lambda: Scheduler(5, []), "connect is 5: must be a function"),
        (lambda: Scheduler(print, "abc"), "schedules is 'abc': must be a list or a tuple"),
    ],
)
def test_what_no_scheduler_could_plan_is_refused_at_once(make, error):
    with pytest.raises((TypeError, ValueError), match=error):
        make()


def test_a_server_that_does_not_have_an_attribute_is_told_of(times, queue, caplog):
    put_with = queue.put_with

    def put(*args, **options):
        if "limit" in options:
            raise BadFormatError
        return put_with(*args, **options)

    queue.put_with = put
    scheduler(schedule(every(minutes=5), limit="tidy"), schedule(every(minutes=5), "other")).make_pass(queue)
    assert [job["key"][:15] for job in queue.list_jobs("work", "delayed")] == ["schedules/other"] * 2
    (record,) = caplog.records
    assert record.event == "schedule-refused"
    text = "the server does not support these attributes of put-with: tries, limit; "
    assert f"{text}use beanstalk-server {VERSION} or later" in record.getMessage()


def test_schedulers_whose_own_clocks_are_wrong_agree_with_the_server(times, monkeypatch):
    monkeypatch.setattr(scheduler_module, "_clocks", lambda: (times.now() + 9 * DAY, 17.0))
    go_on(times, [scheduler(schedule(every(minutes=5)))], BEGAN + HOUR, times.queue())
    assert times.moments() == list(range(BEGAN + 300, BEGAN + HOUR + 1, 300))
    assert all(0 <= when - moment < 1.1 for moment, when in times.fired)


def test_the_server_s_clock_is_asked_though_somebody_has_kicked_all_jobs(times, queue):
    one = scheduler(schedule(every(minutes=5)))
    one.make_pass(queue)
    queue.use("schedules")
    assert queue.kick(100) == 2  # the clock and the plan
    go_on(times, [one], BEGAN + HOUR, queue)
    assert times.moments() == list(range(BEGAN + 300, BEGAN + HOUR + 1, 300))


def test_what_a_tube_has_lost_comes_back(times, queue):
    one = scheduler(schedule(Cron("0 12 * * *")))
    one.make_pass(queue)
    assert queue.clear_tube("work") == 1
    go_on(times, [one], BEGAN + DAY, queue)
    assert times.moments() == [BEGAN + DAY / 2]


def test_a_firing_whose_job_is_deleted_stays_off_until_its_moment_is_past(times, queue):
    one = scheduler(schedule(Cron("0 12 * * *")), hold=HOUR)  # half a day ahead, which is longer than keys are held
    one.make_pass(queue)
    queue.use("work")
    queue.delete(queue.peek_delayed())
    go_on(times, [one], BEGAN + 2 * DAY, queue)
    assert times.moments() == [BEGAN + 1.5 * DAY]


def test_another_expression_calls_the_old_firings_off(times, queue):
    scheduler(schedule(Cron("0 12 * * *"))).make_pass(queue)
    go_on(times, [scheduler(schedule(Cron("0 18 * * *"), missed="all"))], BEGAN + DAY, queue)
    assert times.moments() == [BEGAN + DAY * 3 / 4]


def test_of_two_definitions_the_one_that_was_started_last_counts_and_the_other_when_it_is_gone(times, queue):
    old, new = scheduler(schedule(every(minutes=5))), scheduler(schedule(every(minutes=7)))
    go_on(times, [old], BEGAN + 200, queue)
    go_on(times, [new, old], BEGAN + HOUR, queue)
    assert times.moments() == list(between(every(minutes=7), BEGAN + 200, BEGAN + HOUR))
    times.fired.clear()
    go_on(times, [old], BEGAN + 2 * HOUR, queue)
    assert times.moments()[-6:] == list(range(BEGAN + HOUR + 2100, BEGAN + 2 * HOUR + 1, 300))


def test_a_definition_whose_plan_could_not_be_written_is_not_taken_for_superseded(times, queue):
    scheduler(schedule(Cron("0 12 * * *"))).make_pass(queue)
    new = scheduler(schedule(Cron("0 18 * * *")))

    class Losing:
        """A client whose server is lost before the plan is written."""

        def __getattr__(self, name):
            return getattr(queue, name)

        def put_with(self, *args, key, **options):
            if key == "plan/note":
                raise ConnectionLostError("lost", maybe_done=False)
            return queue.put_with(*args, key=key, **options)

    with pytest.raises(ConnectionLostError):
        new.make_pass(Losing())
    go_on(times, [new], BEGAN + DAY, queue)
    assert times.moments() == [BEGAN + DAY * 3 / 4]


def test_a_schedule_that_nobody_has_any_more_is_called_off(times, queue):
    both = scheduler(schedule(Cron("0 12 * * *"), "removed"), schedule(Cron("0 18 * * *"), "kept"))
    both.make_pass(queue)
    go_on(times, [scheduler(schedule(Cron("0 18 * * *"), "kept"))], BEGAN + DAY, queue)
    assert times.moments() == [BEGAN + DAY * 3 / 4]
    with pytest.raises(NotFoundError):
        queue.peek_keyed("plan/removed")


def test_a_schedule_of_another_group_is_left_alone(times, queue):
    scheduler(schedule(Cron("0 12 * * *"), "theirs"), group="theirs").make_pass(queue)
    go_on(times, [scheduler(schedule(Cron("0 18 * * *"), "ours"))], BEGAN + DAY, queue)
    assert times.moments() == [BEGAN + DAY / 2, BEGAN + DAY * 3 / 4]


def test_a_server_in_drain_mode_loses_no_firing(times, queue):
    one = scheduler(schedule(every(minutes=5), missed="all"))
    one.make_pass(queue)
    queue.drain()
    times.sleep(HOUR)
    with pytest.raises(DrainingError):
        one.make_pass(queue)
    queue.undrain()
    go_on(times, [one], BEGAN + 2 * HOUR, queue)
    assert sorted(times.moments()) == list(range(BEGAN + 300, BEGAN + 2 * HOUR + 1, 300))


def test_what_is_refused_of_one_schedule_keeps_no_other_from_firing(times, caplog):
    too_big = Schedule("big", every(minutes=5), note, args=[MOMENT, "x" * 70000])
    go_on(times, [scheduler(too_big, schedule(every(minutes=5)))], BEGAN + HOUR, times.queue())
    assert times.moments() == list(range(BEGAN + 300, BEGAN + HOUR + 1, 300))
    assert "schedule big not planned, retrying: JobTooBigError: " in caplog.text


def test_a_lock_that_a_worker_of_the_wrong_tube_has_buried_is_nobody_s(times):
    queue, worker = times.queue(use="schedules"), times.queue(watch="schedules")
    queue.put_keyed("lock", b"")
    worker.bury(worker.reserve(timeout=0))
    go_on(times, [scheduler(schedule(every(minutes=5)))], BEGAN + HOUR, queue)
    assert times.moments() == list(range(BEGAN + 300, BEGAN + HOUR + 1, 300))


def test_a_plan_that_a_worker_of_the_wrong_tube_has_reserved_keeps_no_other_from_being_written(times, caplog):
    queue, worker = times.queue(), times.queue(watch="schedules")
    queue.use("schedules")
    queue.put_keyed("plan/note", b"")
    assert worker.reserve(timeout=0).body == b""
    scheduler(schedule(every(minutes=5)), schedule(every(minutes=7), "other")).make_pass(queue)
    queue.use("schedules")
    assert b"every 420 s" in queue.peek_keyed("plan/other").body
    assert "schedule note not planned, retrying: TooLateError: " in caplog.text


def test_how_far_ahead_is_planned_is_a_duration():
    one = scheduler(ahead="30m", hold=datetime.timedelta(days=2))
    assert (one.ahead, one.hold) == (1800, 2 * DAY)
    tasks = Tasks()
    tasks.every("5m")(tasks.task(name="a")(print))
    tasks.every("5m", minutes=1)(tasks.task(name="b")(print))
    assert [schedule.moments.text() for schedule in tasks.schedules] == ["every 300 s", "every 360 s"]


def test_the_end_of_a_turn_does_not_hide_why_its_pass_failed(times, monkeypatch):
    def fail(*_):
        raise RuntimeError("why the pass failed")

    def refuse(*_):
        raise DrainingError

    mine, queue = scheduler(schedule(every(minutes=5))), times.queue()
    queue.cancel = refuse
    with pytest.raises(DrainingError):
        mine.make_pass(queue)
    times.sleep(MINUTE)
    monkeypatch.setattr(mine, "_make_pass", fail)
    with pytest.raises(RuntimeError, match="why the pass failed"):
        mine.make_pass(queue)


def test_the_tube_of_plans_is_no_task_s():
    with pytest.raises(ValueError, match="the tube of the plans"):
        scheduler(schedule(every(minutes=5)), group="work")


def test_a_plan_that_nobody_can_read_is_written_anew(times, queue, caplog):
    queue.use("schedules")
    queue.put_keyed("plan/note", b"hello", delay=DAY)
    go_on(times, [scheduler(schedule(every(minutes=5)))], BEGAN + HOUR, queue)
    assert times.moments() == list(range(BEGAN + 300, BEGAN + HOUR + 1, 300))
    assert any("schedule note: the plan is unreadable, starting a new one" in message for message in caplog.messages)


def test_a_plan_that_somebody_has_made_up_stops_no_scheduler(times, queue, caplog):
    scheduler(schedule(every(minutes=5))).make_pass(queue)
    queue.use("schedules")
    made_up = queue.peek_keyed("plan/note").body.replace(b'"renewed_until": ', b'"renewed_until": 1, "work": "", "x": ')
    made_up = made_up[: made_up.index(b', "x"')] + b"}"
    queue.put_keyed("plan/" + 190 * "x", made_up, delay=DAY)  # no key is long enough to call its firings off
    queue.put_with(made_up.replace(b'"tube": "work"', b'"tube": "no tube"'), key="plan/note", delay=DAY, replace=True)
    go_on(times, [scheduler(schedule(every(minutes=5)))], BEGAN + HOUR, queue)
    assert times.moments() == list(range(BEGAN + 300, BEGAN + HOUR + 1, 300))
    assert any("schedule note: the plan is unreadable, starting a new one" in message for message in caplog.messages)
    assert any("xxx not planned, retrying: ValueError" in message for message in caplog.messages)


def test_more_than_a_pass_may_put_is_put_by_the_passes_that_follow(times, queue):
    one = scheduler(schedule(every(seconds=1), missed="all"), ahead=DAY)
    one.make_pass(queue)
    times.sleep(3 * HOUR)
    while one.make_pass(queue) == 0:
        times.work()
    times.work()
    assert sorted(times.moments()) == list(range(BEGAN + 2, BEGAN + 3 * HOUR + 1))  # the first start was in BEGAN + 1


def test_a_server_that_was_wiped_begins_anew(times):
    one = scheduler(schedule(every(minutes=5), missed="all"))
    go_on(times, [one], BEGAN + 1000, times.queue())
    again = Times()
    again.offset += 2 * HOUR * SECOND
    go_on(again, [one], BEGAN + 3 * HOUR, again.queue())
    assert again.moments() == list(range(BEGAN + 2 * HOUR + 300, BEGAN + 3 * HOUR + 1, 300))
    again.close()


def test_a_server_that_loses_its_jobs_between_two_passes_gets_a_new_plan_within_seconds(
    times, queue, monkeypatch, caplog
):
    class Stopped:
        """Waits in virtual time; after the last step, the scheduler is to stop."""

        def __init__(self, *steps):
            self.steps = list(steps)
            self.waits = []

        def is_set(self):
            return not self.steps

        def wait(self, seconds):
            times.sleep(seconds)
            self.waits.append(seconds)
            self.steps.pop(0)()
            return self.is_set()

    def lose():
        times.queue().clear_tube("schedules")
        times.queue().clear_tube("work")

    one = scheduler(schedule(every(minutes=5)))
    monkeypatch.setattr(one, "_connect", times.queue)
    monkeypatch.setattr(one, "_stopped", Stopped(int, lose, int, int))
    one.run()
    assert one._stopped.waits == [scheduler_module.LOOK_AFTER] * 4
    assert caplog.messages == ["the server has lost the plan of schedule note: planning it anew"]
    times.sleep(300)
    assert len(times.fired) == 1


def test_a_plan_that_is_lost_and_cannot_be_planned_anew_is_told_of_once(times, queue, caplog):
    one = scheduler(schedule(every(minutes=5)))
    one.make_pass(queue)
    times.queue().clear_tube("schedules")
    waits = []
    one._stopped.wait = lambda seconds: waits.append(seconds) or len(waits) == 9
    one._wait(queue, 150)
    assert (len(waits), len(caplog.messages)) == (1, 1)
    one._wait(queue, 150)  # after a pass in which the server has refused the plan
    assert (len(waits), len(caplog.messages)) == (9, 1)


def test_a_scheduler_that_stands_still_in_a_pass_for_longer_than_keys_are_held_puts_nothing_anew(times):
    rules = schedule(every(minutes=5), missed="all")
    slow = Actor(times, lambda: scheduler(rules, hold=HOUR))
    for _ in range(6):
        slow.step()  # the last one told it that nothing is planned yet
    go_on(times, [scheduler(rules, hold=HOUR)], BEGAN + 3 * HOUR, times.queue())
    while slow.passes == 0:
        slow.step()
    times.work()
    slow.kill()
    assert times.moments() == list(range(BEGAN + 300, BEGAN + 3 * HOUR + 1, 300))


class Killed(BaseException):
    """A scheduler is no more."""


class Actor:
    """A scheduler in a thread of its own, which makes one command at a time, when told to, and can be killed."""

    def __init__(self, times, make):
        self.times = times
        self.client = times.queue()
        self.scheduler = make()
        self.due = times.now()
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._is_killed = False
        self.passes = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __getattr__(self, name):
        def command(*args, **kwargs):
            self._wait()
            result = getattr(self.client, name)(*args, **kwargs)
            return list(result) if name == "list_jobs" else result

        return command

    def step(self):
        """One command, if one is due."""
        if self.due <= self.times.now():
            self._go.release()
            self._done.acquire()

    def kill(self):
        self._is_killed = True
        self._go.release()
        self._thread.join()
        self.client.close()

    def _run(self):
        try:
            self._go.acquire()
            self._check()
            while True:
                try:
                    pause = self.scheduler.make_pass(self)
                except scheduler_module.LockLostError:
                    pause = 0
                self.due = self.times.now() + pause
                self.passes += 1
        except Killed:
            pass

    def _wait(self):
        """The command before this one is done; wait until this one may be made."""
        self._check()
        self._done.release()
        self._go.acquire()
        self._check()

    def _check(self):
        if self._is_killed:
            raise Killed


@seeded(2)
def test_each_moment_fires_once_whoever_dies_or_stands_still(times, seed):
    chance = random.Random(seed)
    rules = {"minutes": every(minutes=1), "sevens": Cron("*/7 * * * *"), "hours": every(hours=1)}

    def make():
        return scheduler(*(schedule(moments, name, missed="all") for name, moments in rules.items()))

    actors = [Actor(times, make) for _ in range(8)]
    while not actors[0].passes:
        actors[0].step()  # schedules begin with the first pass
    still = {}
    deaths = stops = 0
    while times.now() < BEGAN + 3 * HOUR:
        for each in chance.sample(actors, len(actors)):
            if still.get(each, 0) > times.now():
                continue
            for _ in range(chance.randrange(6)):
                each.step()
            what = chance.random()
            if what < 0.02:
                each.kill()
                actors[actors.index(each)] = Actor(times, make)
                deaths += 1
            elif what < 0.03:
                still[each] = times.now() + chance.uniform(0, HOUR)
                stops += 1
        times.sleep(chance.choice([0.01, 0.1, 1, 20]))
    for each in actors:
        each.kill()
    assert deaths > 15 and stops > 5
    expected = sorted(moment for moments in rules.values() for moment in between(moments, BEGAN, int(times.now()) - 60))
    fired = [moment for moment in sorted(times.moments()) if moment <= int(times.now()) - 60]
    assert fired == expected
    assert all(when >= moment for moment, when in times.fired)
