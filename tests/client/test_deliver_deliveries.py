"""What becomes of a job: each attempt, each failure, and what is told of it. Without a queue and without a network."""

import asyncio
import json
import logging
from ipaddress import ip_network

import pytest
from beanstalk_client.consumer import DONE, GIVE_BACK, Bury, Release
from beanstalk_client.deliver.addresses import Guard
from beanstalk_client.deliver.deliveries import MOST_REMEMBERED, Deliveries, derived_id
from beanstalk_client.deliver.sending import Answer, FailedError
from beanstalk_client.deliver.slots import DeliverySlots
from beanstalk_client.deliver.verdicts import Rules
from beanstalk_client.errors import ConnectionLostError, NotFoundError

NOW = 1_800_000_000.0


class RequestSender:
    """Answers what it is told to, in order; the last again and again."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []

    def check(self, request):
        Guard(allowed_networks=[ip_network("127.0.0.0/8")]).check_host(request.host, request.port)

    async def send(self, request, id):
        self.sent.append((request.url, id))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        if asyncio.iscoroutine(answer):
            return await answer
        return answer


class Job:
    """A job in hand."""

    tube = "webhooks"

    is_called_off = False

    def __init__(self, body, id=7, **found):
        self.body = body
        self.job_id = id
        self.found = {"reserves": 1, "kicks": 0, "pri": 17, "tube": "webhooks", **found}
        self.asked = 0

    async def stats(self):
        self.asked += 1
        if isinstance(self.found.get("error"), Exception):
            raise self.found["error"]
        return self.found


def answer(status, retry_after="", excerpt=""):
    return Answer(status, retry_after, excerpt)


def request(**members):
    return json.dumps({"url": "https://example.com/hook/secret", **members}).encode()


class World:
    def __init__(self, *answers, slots=None, rules=None, report=True):
        self.sender = RequestSender(*answers)
        self.slots = slots or DeliverySlots(10, 10, 10)
        self.reports = []
        self.handle = Deliveries(
            self.sender,
            self.slots,
            rules or Rules(tries=3, backoff=10),
            self.report if report else None,
            clock=lambda: NOW,
            chance=lambda: 0.5,
        )

    async def report(self, tube, job, body):
        self.reports.append((tube, job, json.loads(body)))

    def outcome(self, job):
        found = asyncio.run(self.handle(job))
        assert self.slots.busy == 0
        return (type(found), round(found.delay, 3), found.priority) if isinstance(found, Release) else found


@pytest.fixture(autouse=True)
def told(caplog):
    caplog.set_level(logging.DEBUG, logger="beanstalk_client.deliver")
    return caplog


def events(told):
    return [record.event for record in told.records]


def test_what_is_taken_is_done_and_costs_no_question(told):
    world, job = World(answer(204)), Job(request(id="order-17"))
    assert world.outcome(job) is DONE
    assert job.asked == 0 and world.sender.sent == [("https://example.com/hook/secret", "order-17")]
    (record,) = told.records
    assert (record.event, record.job, record.tube, record.host) == ("delivered", 7, "webhooks", "example.com")
    assert (record.status, record.webhook_id, record.levelname) == (204, "order-17", "INFO")


def test_a_job_without_an_id_has_the_same_in_each_attempt_and_no_other_job_has_it():
    world = World(answer(500))
    for _ in range(2):
        world.outcome(Job(request()))
    (_, first), (_, second) = world.sender.sent
    assert first == second == derived_id(7, request())
    assert len({derived_id(7, b"a"), derived_id(8, b"a"), derived_id(7, b"b")}) == 3


@pytest.mark.parametrize(
    ("given", "reserves", "delay"),
    [
        (answer(500), 1, 10),
        (answer(500), 2, 20),
        (answer(302), 1, 10),
        (answer(429, "100"), 2, 105),
        (answer(503, "Fri, 15 Jan 2027 08:01:00 GMT"), 1, 63),
        (answer(503, "nonsense"), 2, 20),
        (answer(500, "100"), 1, 10),
        (FailedError("timeout", "no answer within 30 s"), 1, 10),
        (FailedError("forbidden", "address ::1 is forbidden"), 1, 10),
    ],
)
def test_what_fails_is_tried_again_with_its_own_priority(told, given, reserves, delay):
    world = World(given)
    assert world.outcome(Job(request(), reserves=reserves)) == (Release, delay, 17)
    (record,) = told.records
    assert (record.event, record.tries, record.levelname) == ("delivery-failed", reserves, "WARNING")
    assert record.delay == pytest.approx(delay) and f"try {reserves} of 3" in record.getMessage()
    assert world.reports == []


def test_after_its_last_try_it_is_buried_with_the_reason(told):
    world = World(answer(500, excerpt="out of order"))
    found = world.outcome(Job(request(id="order-17"), reserves=3))
    assert isinstance(found, Bury) and found.priority == 17
    assert events(told) == ["delivery-buried"] and told.records[0].levelname == "ERROR"
    ((tube, job, report),) = world.reports
    assert (tube, job) == ("webhooks.errors", 7)
    assert report.pop("buried").startswith("20") and ":" in report.pop("sender")
    assert report == {
        "job": 7,
        "tube": "webhooks",
        "error": "example.com: status 500 (try 3 of 3)",
        "tries": 3,
        "kind": "status",
        "host": "example.com",
        "webhook_id": "order-17",
        "status": 500,
        "answer": "out of order",
    }


def test_a_kick_gives_a_job_its_tries_back():
    world = World(answer(500))
    assert world.outcome(Job(request(), reserves=4, buries=1)) == (Release, 10, 17)
    assert isinstance(world.outcome(Job(request(), reserves=6, buries=1)), Bury)


def test_what_the_server_gives_up_is_reported_and_released(told):
    world = World(answer(500))
    job = Job(request(), tries=1, **{"max-tries": 2})
    assert world.outcome(job) == (Release, 0, 17)
    assert events(told) == ["delivery-buried"]
    assert world.reports[0][2]["tries"] == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"hello", "the body is not JSON"),
        (request(headers={"Host": "a"}), "a job must not set the header Host"),
        (b'{"url": "http://10.0.0.1/"}', "address 10.0.0.1 is forbidden"),
        (b'{"url": "http://0x7f.1/"}', "dotted decimal"),
    ],
)
def test_what_is_no_request_is_buried_at_once_with_the_reason(told, body, said):
    world = World(answer(200))
    found = world.outcome(Job(body))
    assert isinstance(found, Bury) and found.priority == 17 and world.sender.sent == []
    assert said in world.reports[0][2]["error"] and said in told.records[0].getMessage()
    assert events(told) == ["delivery-buried"]


def test_the_log_has_no_secrets(told):
    """What `no_secrets` looks for in each test's log, here with more of it in the job and in the answers."""
    secret = request(headers={"Authorization": "hunter2"}, body="hunter2")
    for given in (answer(200), answer(500, excerpt="hunter2"), answer(410, excerpt="hunter2")):
        World(given).outcome(Job(secret))
    assert events(told) == ["delivered", "delivery-failed", "delivery-buried"]


@pytest.fixture(autouse=True)
def no_secrets(told):
    yield
    for record in told.records:
        assert "hunter2" not in str(vars(record)) and "/hook/secret" not in str(vars(record))


@pytest.mark.parametrize("error", [ConnectionLostError("lost"), NotFoundError()])
def test_without_the_servers_word_it_is_tried_again(error):
    world = World(answer(500))
    assert world.outcome(Job(request(), error=error)) == (Release, 10, None)
    found = World(answer(410)).outcome(Job(request(), error=error))
    assert isinstance(found, Bury) and found.priority is None


def test_a_report_that_cannot_be_put_is_told(told):
    world = World(answer(410))

    async def fail(*_):
        raise ConnectionLostError("lost")

    world.handle._report = fail
    assert isinstance(world.outcome(Job(request())), Bury)
    assert events(told) == ["delivery-buried", "report-lost"]
    assert told.records[-1].getMessage().endswith("report not saved: lost")


async def test_what_is_put_off_has_not_been_tried(told):
    slots = DeliverySlots(1, 1, 0)
    world = World(answer(500), slots=slots)

    await slots.begin("example.com", 0)
    for _ in range(5):
        off = await world.handle(Job(request()))
        assert isinstance(off, Release) and off.delay > 0
    slots.end("example.com", 1)
    assert (await world.handle(Job(request(), reserves=6))).delay == 10  # the first
    assert (await world.handle(Job(request(), reserves=7))).delay == 20
    assert isinstance(await world.handle(Job(request(), reserves=8)), Bury)
    assert world.handle._put_off == {}
    assert events(told) == ["delivery-put-off"] * 5 + ["delivery-failed"] * 2 + ["delivery-buried"]


def test_not_more_is_remembered_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("beanstalk_client.deliver.deliveries.MOST_REMEMBERED", 10)
    assert MOST_REMEMBERED > 10
    handle = World(answer(200)).handle
    for job in [*range(20), 10]:
        handle._remember(job)
    assert sorted(handle._put_off) == list(range(10, 20)) and handle._put_off[10] == 2


async def test_what_waits_when_the_sender_stops_goes_back_untried():
    slots = DeliverySlots(1, 1, 8)
    world = World(answer(200), slots=slots)

    await slots.begin("example.com", 0)
    waiting = asyncio.ensure_future(world.handle(Job(request())))
    await asyncio.sleep(0)
    slots.stop()
    assert await waiting is GIVE_BACK
    assert world.sender.sent == []


async def test_what_is_cut_off_is_told_and_frees_its_turn(told):
    world = World(asyncio.Event().wait())
    job = Job(request())
    task = asyncio.ensure_future(world.handle(job))
    for _ in range(3):
        await asyncio.sleep(0)
    assert world.slots.busy == 1
    job.is_called_off = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.slots.busy == 0
    assert events(told) == ["delivery-cut-off"]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("a fault"), SystemExit(1)])
def test_an_attempt_that_the_sender_did_not_cut_off_has_failed(told, error):
    world = World(error)
    assert world.outcome(Job(request())) == (Release, 10.0, 17)
    assert events(told) == ["bug-sender", "delivery-failed"]
    assert isinstance(world.outcome(Job(request(), reserves=3)), Bury)
    assert [body["kind"] for _, _, body in world.reports] == ["fault"]
