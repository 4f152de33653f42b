"""The engine under workers: slots, links, what becomes of jobs, and what losses of the server change about it."""

import asyncio

import pytest
import uvloop
from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.consumer import DONE, Bury, Consumer, Release
from beanstalk_client.errors import (
    Error,
    JobTooBigError,
    NotFoundError,
    ReservationLostError,
    TooLateError,
    UnauthorizedError,
)
from consuming import (
    BEANSTALKD,
    SERVERS,
    Handler,
    connected,
    consuming,
    emptied,
    new_tube,
    restartable,
    run,
    running,
    states,
    until,
)


@pytest.fixture
def tube():
    return new_tube()


def lose(consumer):
    """Abort the connections that have jobs in hand."""
    for link in consumer._links:
        if link.in_hand:
            link.client._connection.abort()


async def test_each_job_runs_once_and_is_deleted(server, tube):
    handler = Handler()
    async with connected(server, tube) as client, consuming(server, tube, handler):
        for number in range(100):
            await client.put(b"%d" % number)
        await emptied(client, tube)
    assert sorted(handler.began, key=int) == [str(number) for number in range(100)]  # two links may race


async def test_five_empty_jobs_cost_one_reserve(tube):
    with running(SERVERS[0]) as server:
        handler = Handler()
        async with connected(server, tube) as client:
            async with client.pipeline() as pipeline:
                for number in range(1000):
                    pipeline.put(b"%d" % number)
            before = (await client.stats())["cmd-reserve-batch"]
            async with consuming(server, tube, handler, at_once=10):
                await emptied(client, tube)
            assert (await client.stats())["cmd-reserve-batch"] - before <= 204


async def test_no_more_run_at_a_time_than_there_are_slots(server, tube):
    handler = Handler()
    gates = [handler.gate(str(number)) for number in range(7)]
    async with connected(server, tube) as client, consuming(server, tube, handler, at_once=3):
        for number in range(7):
            await client.put(b"%d" % number)
        await until(lambda: len(handler.began) == 3, "three run")
        for number in range(7):
            while (await states(client, tube))["reserved"] != min(3, 7 - number):
                await asyncio.sleep(0.005)
            gates[number].set()
            await until(lambda number=number: len(handler.ended) == number + 1, "one more has ended")
            await until(lambda number=number: len(handler.began) == min(7, number + 4), "its slot is taken")
        await emptied(client, tube)
    assert handler.most == 3


async def test_a_long_job_does_not_hold_back_the_others_of_its_batch(server, tube):
    handler = Handler()
    gate = handler.gate("long")
    async with connected(server, tube) as client:
        await client.put(b"long")
        for number in range(9):
            await client.put(b"%d" % number)
        async with consuming(server, tube, handler, at_once=10):
            while await states(client, tube) != {"ready": 0, "reserved": 1, "delayed": 0, "buried": 0}:
                await asyncio.sleep(0.005)
            await client.put(b"another")
            await until(lambda: "another" in handler.ended, "it runs beside the long one")
            gate.set()
            await emptied(client, tube)
        assert len(handler.ended) == 11 and handler.ended[-1] == "long"


async def test_jobs_that_come_one_by_one_run_at_once_and_over_few_connections(server, tube):
    handler = Handler()
    for number in range(4):
        handler.gate(str(number))
    made = []

    def connect():
        made.append(AsyncClient(server.address, encoding=None))
        return made[-1]

    consumer = Consumer(connect, [tube], handler, at_once=4)
    task = asyncio.ensure_future(consumer.run())
    async with connected(server, tube) as client:
        for _ in range(3):
            for number in range(4):
                await client.put(b"%d" % number)
                await until(lambda: handler.at_once == consumer.running > 0, "it runs")
            await until(lambda: consumer.running == 4, "all run")
            for gate in handler.gates.values():
                gate.set()
            await emptied(client, tube)
            for gate in handler.gates.values():
                gate.clear()
    consumer.stop()
    await task
    assert len(made) <= 5


async def test_what_is_released_or_buried_keeps_its_priority(server, tube):
    handler = Handler({"again": Release(delay=1000), "sunk": Bury(), "changed": Release(1000, priority=7)})
    async with connected(server, tube) as client, consuming(server, tube, handler):
        ids = [await client.put(body, 1234) for body in (b"again", b"sunk", b"changed")]
        while (found := await states(client, tube))["delayed"] != 2 or not found["buried"]:
            await asyncio.sleep(0.005)
        again, sunk, changed = [await client.stats_job(job_id) for job_id in ids]
    assert (again["state"], again["pri"], again["delay"]) == ("delayed", 1234, 1000)
    assert (sunk["state"], sunk["pri"]) == ("buried", 1234)
    assert (changed["state"], changed["pri"]) == ("delayed", 7)


async def test_a_handler_that_fails_costs_its_job_a_minute(server, tube, caplog):
    handler = Handler({"bad": RuntimeError("oh")})
    async with connected(server, tube) as client, consuming(server, tube, handler):
        job_id = await client.put(b"bad")
        await client.put(b"good")
        while (await states(client, tube))["delayed"] != 1:
            await asyncio.sleep(0.005)
        assert (await client.stats_job(job_id))["delay"] == 60
    assert handler.ended == ["bad", "good"]
    assert [record.event for record in caplog.records] == ["bug-handler"]


async def test_a_job_is_touched_as_long_as_it_runs(server, tube):
    handler = Handler()
    gates = [handler.gate("one"), handler.gate("two")]
    async with connected(server, tube) as client, consuming(server, tube, handler, at_once=3):
        ids = [await client.put(b"one", ttr=3), await client.put(b"two", ttr=4)]
        while (await client.stats_job(ids[1]))["age"] < 5:
            await asyncio.sleep(0.2)
        for job_id in ids:
            found = await client.stats_job(job_id)
            assert (found["state"], found["timeouts"], found["reserves"]) == ("reserved", 0, 1)
        for gate in gates:
            gate.set()
        await emptied(client, tube)
    assert handler.began == ["one", "two"]


async def test_who_stops_finishes_what_is_in_hand_and_takes_no_more(server, tube):
    handler = Handler()
    gate = handler.gate("long")
    async with connected(server, tube) as client:
        async with consuming(server, tube, handler, at_once=2) as consumer:
            await client.put(b"long")
            await until(lambda: handler.began, "it runs")
            consumer.stop()
            await client.put(b"late")
            gate.set()
        assert await states(client, tube) == {"ready": 1, "reserved": 0, "delayed": 0, "buried": 0}
        assert handler.began == ["long"]


async def test_what_arrives_while_it_stops_is_ready_again(server, tube):
    for _ in range(30):
        handler = Handler()
        async with connected(server, tube) as client:
            async with consuming(server, tube, handler) as consumer:
                await until(lambda consumer=consumer: any(link.waiting for link in consumer._links), "it waits")
                put = asyncio.ensure_future(client.put(b"x"))
                await asyncio.sleep(0)
                consumer.stop()
                await put
            if handler.began:
                await emptied(client, tube)
                assert handler.ended == ["x"]
            else:
                job = await client.reserve(5)
                assert job.body == b"x"
                await client.delete(job)


async def test_who_ends_gives_back_what_runs(server, tube):
    handler = Handler()
    handler.gate("long")
    async with connected(server, tube) as client:
        async with consuming(server, tube, handler, at_once=2) as consumer:
            job_id = await client.put(b"long", 77)
            await until(lambda: handler.began, "it runs")
            consumer.end()
        found = await client.stats_job(job_id)
        releases = 0 if await client.knows("give-back") else 1
        assert (found["state"], found["pri"], found["releases"]) == ("ready", 77, releases)


async def test_a_consumer_that_is_cancelled_gives_its_jobs_back(server, tube):
    handler = Handler()
    handler.gate("long")
    consumer = Consumer(lambda: AsyncClient(server.address, encoding=None), [tube], handler)
    task = asyncio.ensure_future(consumer.run())
    async with connected(server, tube) as client:
        await client.put(b"long")
        await until(lambda: handler.began, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.delete(await client.reserve(5))


async def test_a_delivery_tells_of_its_job(server, tube):
    told = []

    async def handle(delivery):
        await delivery.touch()
        told.append((delivery.job_id, delivery.body, delivery.tube, await delivery.stats()))
        return DONE

    async with connected(server, tube) as client, consuming(server, tube, handle):
        job_id = await client.put(b"x", 5)
        await emptied(client, tube)
    assert told[0][:3] == (job_id, b"x", tube)
    assert (told[0][3]["tube"], told[0][3]["pri"]) == (tube, 5)


class Saving(Handler):
    """A handler whose first run saves a body when it may; it notes what comes of that."""

    def __init__(self, body, outcomes=None):
        super().__init__(outcomes)
        self.may_save = asyncio.Event()
        self.saved = []
        self._body = body

    async def __call__(self, delivery):
        if not self.began:
            self.began.append(delivery.body.decode())
            await self.may_save.wait()
            try:
                await delivery.save(self._body)
                self.saved.append(delivery.body)
            except Error as error:
                self.saved.append(error)
            self.began.pop()
        return await super().__call__(delivery)


@pytest.mark.parametrize("loses", [False, True])
@pytest.mark.parametrize("at_once", [1, 2])
async def test_the_next_attempt_gets_what_was_saved(our_server, tube, at_once, loses):
    """Also if the connection is lost before, and the job is taken back or comes back; its run goes on."""
    handler = Saving(b"half", {"half": DONE})
    async with connected(our_server, tube) as client, consuming(our_server, tube, handler, at_once=at_once) as consumer:
        job_id = await client.put_with(b"x", tries=9)
        await until(lambda: handler.began, "it runs")
        await until(lambda: all(one._found for one in consumer._in_hand.values()), "it was touched")
        gate = handler.gate("half")
        if loses:
            lose(consumer)
        handler.may_save.set()
        await until(lambda: handler.saved, "it has saved")
        assert handler.saved == [b"half"]
        await until(lambda: handler.began == ["half"], "its run goes on")
        assert (await client.peek(job_id)).body == b"half"
        lose(consumer)
        handler.saved.clear()
        gate.set()
        await emptied(client, tube)
    assert handler.ended == ["half"], "what was saved is not taken for another job"


async def test_what_is_released_after_a_save_runs_with_it(our_server, tube):
    handler = Saving(b"half", {"half": Release()})
    handler.may_save.set()
    async with connected(our_server, tube) as client, consuming(our_server, tube, handler):
        job_id = await client.put(b"x")
        await until(lambda: len(handler.ended) > 2, "it runs again and again")
        handler.outcomes.clear()
        await emptied(client, tube)
        with pytest.raises(NotFoundError):
            await client.peek(job_id)
    assert set(handler.ended) == {"half"}


@pytest.mark.parametrize(("body", "error"), [(65536 * b"x", JobTooBigError), (b"half", TooLateError)])
async def test_what_cannot_be_saved_is_refused(our_server, tube, body, error):
    handler = Saving(body)
    async with connected(our_server, tube) as client, consuming(our_server, tube, handler):
        job_id = await client.put_with(b"x", key="k")
        await until(lambda: handler.began, "it runs")
        if error is TooLateError:
            assert await client.put_with(b"new", key="k", replace=True, again=True) == job_id
        handler.may_save.set()
        await emptied(client, tube)
    assert [type(each) for each in handler.saved] == [error]
    assert handler.ended == (["x", "new"] if error is TooLateError else ["x"])


async def test_nothing_is_saved_in_a_job_that_another_worker_has_had(our_server, tube, monkeypatch):
    handler = Saving(b"half")
    async with connected(our_server, tube) as client, consuming(our_server, tube, handler, at_once=1) as consumer:
        job_id = await client.put(b"x")
        await until(lambda: handler.began, "it runs")
        await until(lambda: all(one._found for one in consumer._in_hand.values()), "it was touched")
        (delivery,) = consumer._in_hand.values()
        recognizes, reached = delivery._link.client.recognizes, asyncio.Event()

        async def recognizes_later(job):
            await reached.wait()
            return await recognizes(job)

        monkeypatch.setattr(delivery._link.client, "recognizes", recognizes_later)
        lose(consumer)
        handler.may_save.set()
        job = await client.reserve(30)
        reached.set()
        await until(lambda: handler.saved, "that was refused")
        assert [type(each) for each in handler.saved] == [ReservationLostError]
        assert (await client.peek(job_id)).body == b"x"
        await client.delete(job)


async def test_beanstalkd_saves_nothing(tube):
    with running(BEANSTALKD) as server:
        handler = Saving(b"half")
        handler.may_save.set()
        async with connected(server, tube) as client, consuming(server, tube, handler):
            await client.put(b"x")
            await emptied(client, tube)
    assert [str(error) for error in handler.saved] == ["the server does not support save; beanstalk-server does"]


@pytest.mark.parametrize("outcome", [DONE, Release(1000), Bury()])
@pytest.mark.parametrize("at_once", [1, 2])
async def test_a_job_that_was_replaced_before_its_connection_is_lost_runs_again(our_server, tube, at_once, outcome):
    """The outcome of its former version says nothing of the new one, which runs behind it."""
    handler = Handler({"x": outcome})
    gate = handler.gate("x")
    options = {"key": "k", "replace": True, "again": True}
    async with connected(our_server, tube) as client, consuming(our_server, tube, handler, at_once=at_once) as consumer:
        job_id = await client.put_with(b"x", key="k")
        await until(lambda: handler.began, "it runs")
        await until(lambda: all(one._found for one in consumer._in_hand.values()), "it was touched")
        assert await client.put_with(b"new", **options) == job_id
        lose(consumer)
        if at_once > 1:
            await until(lambda: any(one._reissue for one in consumer._in_hand.values()), "it has come back")
        gate.set()
        await emptied(client, tube)
    assert handler.ended == ["x", "new"]
    assert handler.most == 1


async def test_of_several_tubes_each_is_served(server):
    handler = Handler()
    tubes = [new_tube(), new_tube()]
    consumer = Consumer(lambda: AsyncClient(server.address, encoding=None), tubes, handler)
    task = asyncio.ensure_future(consumer.run())
    for tube in tubes:
        async with connected(server, tube) as client:
            await client.put(tube.encode())
            await emptied(client, tube)
    consumer.stop()
    await task
    assert handler.ended == tubes


@pytest.mark.parametrize("program", SERVERS)
async def test_a_job_runs_on_beyond_a_restart_and_then_once_more(program, tmp_path, tube, caplog):
    """The server has another id, so its job may be another one: it waits until the run in hand has ended."""

    with restartable(program, tmp_path) as server:
        handler = Handler()
        gate = handler.gate("long")
        async with connected(server, tube) as client:
            job_id = await client.put(b"long", ttr=2)
            async with consuming(server, tube, handler, at_once=2) as consumer:
                await until(lambda: handler.began, "it runs")
                server.kill()
                server.start()
                while (await client.stats_job(job_id))["state"] != "reserved":
                    await asyncio.sleep(0.02)
                while (await client.stats_job(job_id))["age"] < 3:
                    await asyncio.sleep(0.02)
                assert (await client.stats_job(job_id))["state"] == "reserved", "what waits is touched"
                assert consumer.running == 2
                assert handler.began == ["long"]
                gate.set()
                await emptied(client, tube)
        assert handler.began == handler.ended == ["long", "long"]
        assert handler.most == 1
        (lost,) = [record for record in caplog.records if record.event == "outcome-lost"]
        assert "the server was restarted or has no id" in lost.getMessage()


@pytest.mark.parametrize("outcome", [DONE, Bury(), Release(1000)])
async def test_what_runs_on_over_a_lost_connection_is_taken_back(server, tube, caplog, outcome):
    """Its slot is the only one, so nothing asks for jobs meanwhile; what becomes of it is then done as ever."""

    caplog.set_level("INFO")
    handler = Handler({"x": outcome})
    gate = handler.gate("x")
    async with connected(server, tube) as client, consuming(server, tube, handler, at_once=1) as consumer:
        job_id = await client.put(b"x", 7)
        await until(lambda: handler.began, "it runs")
        await until(lambda: all(one._found for one in consumer._in_hand.values()), "it was touched")
        lose(consumer)
        await until(lambda: any(record.event == "job-taken-back" for record in caplog.records), "it is taken back")
        assert (await client.stats_job(job_id))["state"] == "reserved"
        gate.set()
        if outcome is DONE:
            await emptied(client, tube)
        else:
            wanted = "buried" if isinstance(outcome, Bury) else "delayed"
            while (found := await client.stats_job(job_id))["state"] != wanted:
                await asyncio.sleep(0.005)
            assert found["pri"] == 7
    assert handler.began == ["x"]


@pytest.mark.parametrize("is_being_taken_back", [False, True])
async def test_a_release_over_a_lost_connection_is_not_one_failure_more(run, tube, is_being_taken_back, monkeypatch):
    """The server has counted the loss as one. A second one would bury the job before its last attempt."""

    server = run()

    handler = Handler({"x": Release(1000)})
    gate = handler.gate("x")
    async with connected(server, tube) as client, consuming(server, tube, handler, at_once=1) as consumer:
        job_id = await client.put_with(b"x", tries=2)
        await until(lambda: handler.began, "it runs")
        await until(lambda: all(one._found for one in consumer._in_hand.values()), "it was touched")
        (delivery,) = consumer._in_hand.values()
        recognizes, reached = delivery._link.client.recognizes, asyncio.Event()

        async def recognizes_later(job):
            await reached.wait()
            return await recognizes(job)

        monkeypatch.setattr(delivery._link.client, "recognizes", recognizes_later)
        lose(consumer)
        if is_being_taken_back:
            await until(lambda: delivery._regain, "it is being taken back while it runs")
        gate.set()
        await until(lambda: handler.ended, "it has failed")
        await until(lambda: delivery._regain, "it is being taken back")
        reached.set()
        while (await client.stats_job(job_id))["state"] != "buried":
            await asyncio.sleep(0.005)
    assert handler.began == ["x", "x"]


async def test_a_job_that_never_ran_keeps_its_last_attempt_when_its_release_is_lost(run, tube, monkeypatch):
    server = run()
    handler = Handler()
    async with connected(server, tube) as client, consuming(server, tube, handler, at_once=1) as consumer:
        begin, look_up, losses = consumer._begin, consumer._look_up, []

        def begin_at_the_end(link, jobs):
            if jobs and not losses:
                consumer.end()
            begin(link, jobs)

        async def look_up_and_lose(link, deliveries):
            await look_up(link, deliveries)
            if deliveries and not losses:
                losses.append(deliveries)
                link.client._connection.abort()

        monkeypatch.setattr(consumer, "_begin", begin_at_the_end)
        monkeypatch.setattr(consumer, "_look_up", look_up_and_lose)
        await until(lambda: any(link.waiting for link in consumer._links), "it waits")
        job_id = await client.put_with(b"x", tries=2)
        await until(lambda: losses and not consumer._links, "it has stopped")
        found = await client.stats_job(job_id)
        assert (found["state"], handler.began) == ("ready", [])


@pytest.mark.parametrize("program", SERVERS)
async def test_what_is_done_while_the_server_is_away_runs_again_when_it_is_back(program, tmp_path, tube):
    with restartable(program, tmp_path) as server:
        handler = Handler()
        gate = handler.gate("0")
        async with connected(server, tube) as client, consuming(server, tube, handler, at_once=1):
            await client.put(b"0")
            await until(lambda: handler.began, "it runs")
            server.kill()
            gate.set()
            await until(lambda: handler.ended, "it is done")
            server.start()
            await emptied(client, tube)
        assert handler.began == ["0", "0"]
        assert handler.most == 1


@pytest.mark.parametrize("program", SERVERS)
async def test_another_job_with_the_id_and_body_of_a_lost_one_runs(program, tube):
    """A server without a binlog begins its ids anew. What is put then may be the same job, so it runs afterwards."""

    with restartable(program) as server:
        handler = Handler()
        gate = handler.gate("x")
        async with consuming(server, tube, handler, at_once=2):
            async with connected(server, tube) as client:
                assert await client.put(b"x") == 1
                await until(lambda: handler.began, "it runs")
            server.kill()
            server.start()
            async with connected(server, tube) as client:
                assert await client.put(b"x") == 1
                while not (await states(client, tube))["reserved"]:
                    await asyncio.sleep(0.005)
                gate.set()
                await emptied(client, tube)
        assert handler.ended == ["x", "x"]
        assert handler.most == 1


@pytest.mark.parametrize("program", SERVERS)
async def test_another_job_with_the_id_of_a_lost_one_runs_at_once(program, tube):
    with restartable(program) as server:
        handler = Handler()
        gate = handler.gate("x")
        async with consuming(server, tube, handler, at_once=2):
            async with connected(server, tube) as client:
                assert await client.put(b"x") == 1
                await until(lambda: handler.began, "it runs")
            server.kill()
            server.start()
            async with connected(server, tube) as client:
                assert await client.put(b"y") == 1
                await until(lambda: handler.ended == ["y"], "the other one runs, too")
                await emptied(client, tube)
                gate.set()
                await until(lambda: handler.ended == ["y", "x"], "the first one ends")
                assert await client.put(b"z") == 2
                await emptied(client, tube)


async def test_a_job_whose_connection_is_lost_before_its_first_touch_runs_once(server, tube):
    """An idle worker takes it at once, so that its age says nothing; the id of the server does."""

    handler = Handler()
    gate = handler.gate("x")
    async with connected(server, tube) as client, consuming(server, tube, handler, at_once=3) as consumer:
        while not (await client.stats_tube(tube))["current-waiting"]:
            await asyncio.sleep(0.005)
        for number in range(5):
            job_id = await client.put(b"x")
            await until(lambda number=number: len(handler.began) == number + 1, "it runs")
            lose(consumer)
            while (await client.stats_job(job_id))["reserves"] < 2:
                await asyncio.sleep(0.005)
            await until(lambda: consumer.running == 1, "it is known for the same")
            gate.set()
            await emptied(client, tube)
            gate.clear()
    assert handler.ended == ["x"] * 5
    assert handler.most == 1


@pytest.mark.parametrize("outcome", [Bury(), Release(1000)])
async def test_what_becomes_of_a_job_that_has_come_back_is_done(server, tube, outcome):
    handler = Handler({"x": outcome})
    gate = handler.gate("x")
    async with connected(server, tube) as client, consuming(server, tube, handler, at_once=2) as consumer:
        job_id = await client.put(b"x", 7)
        await until(lambda: handler.began, "it runs")
        lose(consumer)
        while (await client.stats_job(job_id))["reserves"] < 2:
            await asyncio.sleep(0.005)
        gate.set()
        wanted = "buried" if isinstance(outcome, Bury) else "delayed"
        while (found := await client.stats_job(job_id))["state"] != wanted:
            await asyncio.sleep(0.005)
        assert found["pri"] == 7
    assert handler.began == ["x"]


async def test_it_waits_for_a_server_that_is_not_there_yet(tmp_path, tube):
    with restartable(SERVERS[0], tmp_path) as server:
        handler = Handler()
        server.kill()
        async with consuming(server, tube, handler):
            await asyncio.sleep(0.05)
            server.start()
            async with connected(server, tube) as client:
                await client.put(b"x")
                await emptied(client, tube)
        assert handler.ended == ["x"]


@pytest.mark.parametrize("program", SERVERS)
async def test_that_the_server_is_back_is_told_before_there_is_a_job(program, tube, caplog):
    caplog.set_level("INFO")

    def events():
        return [record.event for record in caplog.records if hasattr(record, "event")]

    with restartable(program) as server:
        async with consuming(server, tube, Handler(), connect_timeout=0.2):
            async with connected(server, tube) as client:
                while not (await client.stats_tube(tube))["current-waiting"]:  # ends with the test's own deadline
                    await asyncio.sleep(0.005)
            server.kill()
            await until(lambda: events() == ["server-lost"], "the loss to be told")
            await asyncio.to_thread(server.start)
            await until(lambda: events() == ["server-lost", "server-back"], "the return to be told")
        assert "may have been executed" not in caplog.text


def test_it_runs_on_uvloop(server, tube):
    async def story():
        handler = Handler()
        async with connected(server, tube) as client, consuming(server, tube, handler):
            await client.put(b"x")
            await emptied(client, tube)
        assert handler.ended == ["x"]

    loop = uvloop.new_event_loop()
    loop.run_until_complete(asyncio.wait_for(story(), 60))
    loop.close()


def test_who_is_not_let_in_is_told():
    class Refused:
        async def connect(self):
            raise UnauthorizedError

        async def close(self):
            pass

    consumer = Consumer(Refused, ["x"], Handler())
    with pytest.raises(UnauthorizedError):
        run(consumer.run())


def test_a_fault_of_a_client_ends_a_consumer():
    class Faulty:
        async def connect(self):
            raise LookupError("a fault")

        async def close(self):
            pass

    with pytest.raises(LookupError, match="a fault"):
        run(Consumer(Faulty, ["x"], Handler()).run())


def test_a_consumer_has_a_tube_and_a_slot(server):
    with pytest.raises(ValueError, match="needs at least one tube"):
        Consumer(lambda: None, [], Handler())
    with pytest.raises(ValueError, match="at_once is 0"):
        Consumer(lambda: None, ["x"], Handler(), at_once=0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tubes": "abc"}, "tubes is 'abc': must be a list or a tuple"),
        ({"tubes": ["a b"]}, "bad tube 'a b'"),
        ({"at_once": 1.5}, "at_once is 1.5: must be a whole number"),
        ({"last_attempts": float("nan")}, "last_attempts is nan: must be from 0"),
        ({"mode": "quick"}, "bad mode 'quick'"),
        ({"handle": 5}, "handle is 5: must be a function"),
        ({"connect": 5}, "connect is 5: must be a function"),
    ],
)
def test_an_argument_of_a_consumer_that_cannot_be_is_refused_at_once(options, error):
    with pytest.raises((TypeError, ValueError), match=error):
        Consumer(**{"connect": print, "tubes": ["a"], "handle": print, **options})
