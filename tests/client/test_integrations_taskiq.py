"""taskiq's broker: beside taskiq's own receiver, and with a server that says what became of the jobs."""

import asyncio
import contextlib
import datetime
import logging
import time
import uuid
from typing import Annotated

import pytest
from beanstalk_client import Client
from beanstalk_client.errors import ExistsError, NotFoundError, UnauthorizedError, UnknownCommandError
from beanstalk_client.integrations.taskiq import BeanstalkBroker
from taskiq import AckableMessage, BrokerMessage, Context, SmartRetryMiddleware, TaskiqDepends
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq.brokers.inmemory_broker import InmemoryResultBackend
from taskiq.exceptions import SendTaskError
from tls_peers import Files, client_context

from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.settings.sections import UserConfig
from harness.waiting import eventually_async


@pytest.fixture
def tube():
    return uuid.uuid4().hex


def message(body=b"{}", **labels):
    return BrokerMessage(task_id="1", task_name="a", message=body, labels={k: str(v) for k, v in labels.items()})


@contextlib.asynccontextmanager
async def broker_of(address, tube, **settings):
    """A broker with the tasks `double` and `fail`, whose results are kept in this process."""
    broker = BeanstalkBroker(address, tube=tube, **settings).with_result_backend(InmemoryResultBackend())

    @broker.task(task_name="double")
    async def double(number: int) -> int:
        return 2 * number

    @broker.task(task_name="slow_double")
    def slow_double(number: int) -> int:
        return 2 * number

    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@contextlib.asynccontextmanager
async def received(broker, **settings):
    """Lets taskiq's receiver run beside the block, and ends it as `taskiq worker` does: by a cancellation."""
    receiver = asyncio.create_task(run_receiver_task(broker, **settings))
    try:
        yield
    finally:
        receiver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await receiver


def jobs(address, tube):
    """How many jobs the tube has in each state."""
    with Client(address) as client:
        try:
            found = client.stats_tube(tube)
        except NotFoundError:
            return {}
        states = {state: found[f"current-jobs-{state}"] for state in ("ready", "reserved", "delayed", "buried")}
        return {state: number for state, number in states.items() if number}


def the_job(address, tube, state):
    with Client(address, use=tube, encoding=None) as client:
        job = getattr(client, f"peek_{state}")()
        return client.stats_job(job.id)


async def all_of(listening, number):
    return [await asyncio.wait_for(anext(listening), 60) for _ in range(number)]


def readable(broker):
    """Bodies that a broker takes for messages."""
    return broker.formatter.dumps(broker.find_task("double").kicker()._prepare_message(1)).message


async def test_tasks_run_and_their_results_come_back(address, tube):
    async with broker_of(address, tube) as broker, received(broker):
        sent = [await broker.find_task(name).kiq(n) for n in range(5) for name in ("double", "slow_double")]
        results = [(await task.wait_result(timeout=60)).return_value for task in sent]
        assert results == [2 * number for number in range(5) for _ in range(2)]
        await eventually_async(lambda: jobs(address, tube) == {}, "all jobs are deleted")


async def test_a_message_is_yielded_once_to_one_of_two_listeners(address, tube):
    async with broker_of(address, tube) as broker:
        first, second = broker.listen(), broker.listen()
        asked = [asyncio.ensure_future(anext(first)), asyncio.ensure_future(anext(second))]
        body = readable(broker)
        await broker.kick(message(body))
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        assert len(done) == len(waiting) == 1
        (got,) = (task.result() for task in done)
        assert isinstance(got, AckableMessage)
        assert got.data == body
        assert jobs(address, tube) == {"reserved": 1}
        await got.ack()
        await eventually_async(lambda: jobs(address, tube) == {}, "the job is deleted")
        for task in waiting:
            task.cancel()


async def test_no_more_jobs_are_reserved_than_the_broker_may_have_and_those_not_begun_are_given_back(address, tube):
    async with broker_of(address, tube, at_once=3) as broker:
        for _ in range(10):
            await broker.kick(message(readable(broker)))
        listening = broker.listen()
        first = (await all_of(listening, 1))[0]
        await eventually_async(lambda: jobs(address, tube) == {"ready": 7, "reserved": 3}, "three are reserved")
        await first.ack()
        await eventually_async(lambda: jobs(address, tube) == {"ready": 6, "reserved": 3}, "another one is taken")
        (running,) = await all_of(listening, 1)
        await listening.aclose()
        await eventually_async(lambda: jobs(address, tube) == {"ready": 8, "reserved": 1}, "two are given back")
        await running.ack()
        await eventually_async(lambda: jobs(address, tube) == {"ready": 8}, "the one that ran is deleted")


async def test_what_is_never_acknowledged_is_ready_again_once_the_broker_is_shut_down(address, tube):
    async with broker_of(address, tube) as broker:
        await broker.kick(message(readable(broker)))
        await all_of(broker.listen(), 1)
        assert jobs(address, tube) == {"reserved": 1}
    assert jobs(address, tube) == {"ready": 1}


async def test_a_job_is_touched_while_its_message_is_not_acknowledged(address, tube):
    async with broker_of(address, tube, ttr=3) as broker:
        await broker.kick(message(readable(broker)))
        (got,) = await all_of(broker.listen(), 1)
        with Client(address, watch=tube) as client:
            await asyncio.sleep(4)  # real time: its time to run is over
            assert client.stats_tube(tube)["current-jobs-reserved"] == 1
            assert client.stats()["job-timeouts"] == 0
        await got.ack()


async def test_a_delay_is_kept_by_the_server(address, tube):
    async with broker_of(address, tube) as broker:
        await broker.find_task("double").kicker().with_labels(delay=900).kiq(1)
        assert the_job(address, tube, "delayed")["delay"] == 900


async def test_a_delay_with_a_fraction_is_rounded_up_where_the_server_counts_whole_seconds(ours, stock, tube):
    async with broker_of(ours, tube) as broker, broker_of(stock, tube) as old:
        began = time.time()
        await broker.kick(message(readable(broker), delay=0.2))
        await all_of(broker.listen(), 1)
        assert time.time() - began >= 0.2
        await old.kick(message(readable(broker), delay=2.5))
        assert the_job(stock, tube, "delayed")["delay"] == 3


async def test_a_message_comes_at_its_moment_and_not_earlier(ours, tube):
    async with broker_of(ours, tube) as broker:
        moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.3)
        await broker.find_task("double").kicker().with_labels(at=moment).kiq(1)
        assert jobs(ours, tube) == {"delayed": 1}
        await all_of(broker.listen(), 1)
        assert datetime.datetime.now(datetime.UTC) >= moment


async def test_a_message_that_waits_is_cancelled_by_its_key_and_for_good(ours, tube):
    async with broker_of(ours, tube) as broker:
        task = broker.find_task("double")
        await task.kicker().with_labels(delay=900, key="order-17").kiq(1)
        await task.kicker().with_labels(key="order-18").kiq(1)
        await task.kicker().with_labels(key="order-19", delay=900, queue_name=tube + "x").kiq(1)
        assert await broker.cancel("order-17")
        assert not await broker.cancel("order-17")
        assert not await broker.cancel("order-18"), "it was ready"
        assert not await broker.cancel("order-19"), "it is in another tube"
        assert await broker.cancel("order-19", tube + "x")
        assert jobs(ours, tube) == {"ready": 1}


async def test_a_key_that_is_taken_is_an_error_unless_the_message_replaces(ours, tube):
    async with broker_of(ours, tube) as broker:
        await broker.kick(message(key="a", delay=900))
        with pytest.raises(SendTaskError) as raised:
            await broker.find_task("double").kicker().with_labels(key="a").kiq(1)
        assert isinstance(raised.value.__cause__, ExistsError)
        await broker.kick(message(key="a", delay=800, replace=True))
        assert the_job(ours, tube, "delayed")["delay"] == 800


async def test_what_is_demanded_of_a_job_is_in_its_labels(ours, tube):
    async with broker_of(ours, tube, priority=7, ttr="9s") as broker:
        await broker.kick(message(tries=3, backoff="2s", ttl="50s"))
        found = the_job(ours, tube, "ready")
        assert (found["pri"], found["ttr"]) == (7, 9)
        await broker.kick(message(priority=3, ttr="5s", queue_name=tube + "x"))
        found = the_job(ours, tube + "x", "ready")
        assert (found["pri"], found["ttr"]) == (3, 5)


async def test_urgent_messages_come_first(address, tube):
    async with broker_of(address, tube, at_once=1) as broker:
        bodies = {}
        for priority in (5, 1, 3):
            bodies[priority] = readable(broker)
            await broker.kick(message(bodies[priority], priority=priority))
        listening, came = broker.listen(), []
        for _ in range(3):
            (got,) = await all_of(listening, 1)
            came.append(got.data)
            await got.ack()
        assert came == [bodies[1], bodies[3], bodies[5]]


@pytest.mark.parametrize(
    "labels",
    [{"delay": "soon"}, {"delay": -1}, {"delay": "nan"}, {"at": "tomorrow"}, {"at": "2030-01-01 08:00:00"},
     {"priority": -1}, {"priority": 2**32}, {"ttr": "x"}, {"key": "a b"}, {"queue_name": "a b"}, {"tries": "many"}],
    ids=str,
)  # fmt: skip
async def test_a_label_that_makes_no_sense_is_an_error_and_nothing_is_put(ours, tube, labels):
    async with broker_of(ours, tube) as broker:
        with pytest.raises(SendTaskError) as raised:
            await broker.find_task("double").kicker().with_labels(**labels).kiq(1)
        assert isinstance(raised.value.__cause__, ValueError)
        assert jobs(ours, tube) == {}


@pytest.mark.parametrize("labels", [{"at": 2e9}, {"key": "a"}, {"tries": 2}], ids=str)
async def test_beanstalkd_is_asked_for_nothing_that_it_does_not_have(stock, tube, labels):
    async with broker_of(stock, tube) as broker:
        with pytest.raises(UnknownCommandError):
            await broker.kick(message(**labels))
        with pytest.raises(UnknownCommandError):
            await broker.cancel("a")
        assert jobs(stock, tube) == {}
        await broker.kick(message())
        assert jobs(stock, tube) == {"ready": 1}


async def test_what_nobody_can_run_is_buried_and_the_log_says_why(address, tube, caplog):
    async with broker_of(address, tube) as broker:
        other = BeanstalkBroker(address, tube=tube)
        foreign = other.register_task(lambda: None, task_name=f"foreign-{tube}")
        broker.global_task_registry.pop(foreign.task_name, None)
        await broker.kick(message(b"no message"))
        await foreign.kiq()
        await other.shutdown()
        with caplog.at_level(logging.ERROR, "beanstalk_client.taskiq"):
            async with received(broker):
                await (await broker.find_task("double").kiq(1)).wait_result(timeout=60)
                await eventually_async(lambda: jobs(address, tube) == {"buried": 2}, "both are buried")
        assert [record.event for record in caplog.records] == ["message-buried"] * 2
        assert "not a taskiq message" in caplog.text
        assert f"task 'foreign-{tube}' is not registered" in caplog.text


@pytest.mark.parametrize("ack_type", AcknowledgeType, ids=str)
async def test_a_job_is_deleted_when_taskiq_acknowledges(ours, tube, ack_type):
    async with broker_of(ours, tube) as broker:
        begun, go_on = asyncio.Event(), asyncio.Event()

        @broker.task(ack_type=ack_type.value)
        async def wait(context: Annotated[Context, TaskiqDepends()]):
            begun.set()
            await go_on.wait()
            if ack_type is AcknowledgeType.MANUAL:
                await context.ack()

        async with received(broker):
            sent = await wait.kiq()
            await begun.wait()
            if ack_type is AcknowledgeType.WHEN_RECEIVED:
                await eventually_async(lambda: jobs(ours, tube) == {}, "it is deleted before it runs")
            else:
                assert jobs(ours, tube) == {"reserved": 1}
            go_on.set()
            assert not (await sent.wait_result(timeout=60)).is_err
            await eventually_async(lambda: jobs(ours, tube) == {}, "the job is deleted")


@pytest.mark.parametrize("labels", [{}, {"key": "order-17"}, {"key": "order-17", "hold": 60}], ids=str)
async def test_a_task_that_fails_is_sent_again_by_taskiqs_retries_even_if_its_job_has_a_key(ours, tube, labels):
    async with broker_of(ours, tube) as broker:
        broker.add_middlewares(SmartRetryMiddleware(default_delay=0.01))
        runs = []

        @broker.task(retry_on_error=True, max_retries=3)
        async def fail():
            runs.append(time.time())
            raise OSError("again")

        async with received(broker):
            sent = await fail.kicker().with_labels(**labels).kiq()
            assert (await sent.wait_result(timeout=60)).is_err
        assert len(runs) == 3
        assert jobs(ours, tube) == {}


async def test_a_task_may_send_itself_again(ours, tube):
    async with broker_of(ours, tube) as broker:
        runs = []

        @broker.task
        async def again(context: Annotated[Context, TaskiqDepends()]):
            runs.append(context.message.labels.get("X-Taskiq-requeue"))
            if len(runs) < 3:
                await context.requeue()

        async with received(broker):
            await (await again.kicker().with_labels(key="a").kiq()).wait_result(timeout=60)
        assert runs == [None, "1", "2"]


async def test_a_server_that_is_killed_and_comes_back_costs_no_task(restartable, tube):
    done = []
    async with broker_of(restartable.address, tube, ttr=60) as broker:
        go_on = asyncio.Event()

        @broker.task
        async def note(number: int):
            if number < 5:
                await go_on.wait()
            done.append(number)

        async with received(broker):
            for number in range(10):
                await note.kiq(number)
            await eventually_async(lambda: len(done) == 5, "five are done")
            restartable.kill()
            restartable.start()
            go_on.set()
            with contextlib.suppress(SendTaskError):  # this shows the broker that its connection is lost
                await note.kiq(10)
            await note.kiq(10)
            await eventually_async(lambda: len(set(done)) == 11, "each is done")
            await eventually_async(lambda: jobs(restartable.address, tube) == {}, "no job is left")
    assert sorted(set(done)) == list(range(11))


async def test_a_broker_speaks_tls_and_gives_its_token_and_says_when_it_is_not_let_in(run, tmp_path):
    token = new_token()
    user = UserConfig(name="a", token_sha256=(hash_of_token(token),), produce=("mails",), consume=("mails",))
    files = Files(tmp_path)
    server = run(listeners=(files.listener(auth="token"),), users=(user,))

    settings = {"tls": client_context(), "server_name": "localhost"}
    async with broker_of(server.address, "mails", token=token, **settings) as broker, received(broker):
        sent = await broker.find_task("double").kiq(2)
        assert (await sent.wait_result(timeout=60)).return_value == 4
    async with broker_of(server.address, "mails", token=new_token(), **settings) as broker:
        with pytest.raises(UnauthorizedError):
            await anext(broker.listen())
        with pytest.raises(UnauthorizedError) as raised:
            await broker.kick(message())
        assert token not in str(raised.value)


def test_arguments_that_make_no_sense_are_refused_at_once():
    with pytest.raises(ValueError, match="at_once is 0"):
        BeanstalkBroker(at_once=0)
    with pytest.raises(ValueError, match="a sequence of names"):
        BeanstalkBroker(tubes="mails")
    with pytest.raises(ValueError, match="bad tube"):
        BeanstalkBroker(tube="a b")
    with pytest.raises(ValueError, match="bad address"):
        BeanstalkBroker("a:b:c")
    with pytest.raises(ValueError, match="without TLS"):
        BeanstalkBroker("queue.example.com:11300", token="secret")
