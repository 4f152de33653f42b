"""The client for asyncio against peers that the test plays: who hears what, what leaves when, what a loss means."""

import asyncio
import contextlib
import gc

import pytest
from beanstalk_client import (
    AsyncClient,
    ConnectionLostError,
    Job,
    NoAnswerError,
    NotFoundError,
    ReservationLostError,
    TimedOutError,
    UnreachableError,
)
from beanstalk_client.job import Origin
from fake_network import begin, connected, network, turns
from scripted_server import ASKED, extensions

from harness.waiting import WITHIN

pytestmark = pytest.mark.usefixtures("unnamed")  # their peers say what they expect, byte by byte


async def answer(peer, put, body):
    """Let the server insert the job."""
    await peer.expect(b"put 65536 0 60 1\r\n%b\r\n" % body)
    peer.say(b"INSERTED 7\r\n")
    assert await put == 7


async def reserved(queue, peer):
    """Job 5, which this client has reserved."""
    reserving = begin(queue.reserve(0))
    await turns()
    peer.say(b"RESERVED 5 1\r\nx\r\n")
    return await reserving


async def cancelled(reserve):
    """A reserve that has left, and was cancelled then."""
    reserving = begin(reserve)
    await turns()
    reserving.cancel()
    await turns()
    return reserving


async def take_back(peer):
    """Let the server take job 5 back."""
    await peer.expect(b"give-back 5\r\n")
    peer.say(b"GIVEN_BACK\r\n")
    await turns()


async def lack_give_back(peer, *jobs):
    """Do not know how to take these jobs back."""
    await peer.expect(b"".join([b"give-back %d\r\n" % job for job in jobs]))
    peer.say(len(jobs) * b"UNKNOWN_COMMAND\r\n")


@pytest.mark.parametrize("size", range(1, 60))
async def test_every_split_of_the_replies_gives_the_same(size, net):
    async with connected(net, encoding=None) as (queue, peer):
        work = [
            begin(each)
            for each in (queue.put(b"a"), queue.reserve(5), queue.delete(1), queue.stats(), queue.reserve(0))
        ]
        await turns()
        peer.say(b"INSERTED 1\r\nRESERVED 1 4\r\na\r\nb\r\nNOT_FOUND\r\nOK 10\r\n---\nid: 12\r\nTIMED_OUT\r\n", size)
        put, reserved, deleted, stats, late = await asyncio.gather(*work, return_exceptions=True)
        assert (put, reserved.id, reserved.body, stats) == (1, 1, b"a\r\nb", {"id": 12})
        assert type(deleted) is NotFoundError
        assert type(late) is TimedOutError


async def test_commands_of_one_turn_leave_in_one_write(client, peer):
    puts = [begin(client.put(str(number))) for number in range(10)]
    await turns()
    assert len(peer.writes) == 1
    peer.say(b"".join(b"INSERTED %d\r\n" % number for number in range(10)))
    assert await asyncio.gather(*puts) == list(range(10))


async def test_a_reply_never_goes_to_the_next_caller_when_its_own_is_cancelled(client, peer):
    first, second, third = (begin(client.put(str(number))) for number in range(3))
    await turns()
    second.cancel()
    await turns()
    peer.say(b"INSERTED 1\r\nINSERTED 2\r\nINSERTED 3\r\n")
    assert await first == 1
    assert await third == 3
    assert second.cancelled()


async def test_beanstalkd_is_given_back_what_a_cancelled_reserve_is_granted_with_its_own_priority(client, peer):
    reserve = begin(client.reserve(10))
    await peer.expect(b"reserve-with-timeout 10\r\n")
    reserve.cancel()
    await turns()
    peer.say(b"RESERVED 5 1\r\nx\r\n")
    await lack_give_back(peer, 5)
    await peer.expect(b"stats-job 5\r\n")
    peer.say(b"OK 19\r\n---\nid: 5\npri: 1234\r\n")
    await peer.expect(b"release 5 1234 0\r\n")
    peer.say(b"RELEASED\r\n")
    await turns()


async def test_a_job_that_comes_in_the_turn_in_which_its_reserve_is_cancelled_is_given_back(client, peer):
    reserve = begin(client.reserve(10))
    await peer.expect(b"reserve-with-timeout 10\r\n")
    peer.say(b"RESERVED 5 1\r\nx\r\n")
    reserve.cancel()
    await lack_give_back(peer, 5)
    await peer.expect(b"stats-job 5\r\n")
    assert reserve.cancelled()
    peer.say(b"FORBIDDEN\r\n")
    await peer.expect(b"release 5 65536 0\r\n")
    peer.say(b"RELEASED\r\n")


async def test_nobody_waits_for_a_job_to_be_given_back_when_the_connection_is_lost_at_once(client, peer):
    reserve = await cancelled(client.reserve(10))
    peer.say(b"RESERVED 5 1\r\nx\r\n")
    peer.hang_up()
    await asyncio.wait_for(client.close(), WITHIN)
    assert reserve.cancelled() and b"release" not in peer.take()


async def test_a_job_for_nobody_is_not_held_back_by_a_reserve_for_nobody(client, peer):
    first, second = begin(client.reserve()), begin(client.reserve(100))
    await turns()
    first.cancel()
    second.cancel()
    await turns()
    peer.say(b"RESERVED 5 1\r\nx\r\n")
    await turns()
    assert peer.is_left  # so the server gives it back


async def test_the_next_reserve_takes_over_one_that_nobody_waits_for(client, peer):
    for _ in range(3):
        reserve = await cancelled(client.reserve())
    reserve = begin(client.reserve())
    await turns()
    assert peer.take() == b"reserve\r\n"
    peer.say(b"RESERVED 5 1\r\nx\r\n")
    assert (await reserve).id == 5


async def test_a_command_leaves_a_connection_behind_that_only_waits_for_a_job_for_nobody(net):
    async with connected(net, use="a", greeting=b"USING a\r\n") as (queue, peer):
        reserve = begin(queue.reserve())
        await turns()
        reserve.cancel()
        put = begin(queue.put("x"))
        other = await net.peer(1)
        assert peer.is_left
        await other.expect(b"use a\r\n")
        other.say(b"USING a\r\n")
        await other.expect(ASKED)
        other.say(extensions("cancel-reserve"))
        await answer(other, put, b"x")
        other.take()
        reserve = begin(queue.reserve())
        await turns()
        reserve.cancel()
        await other.expect(b"reserve\r\ncancel-reserve\r\n")
        put = begin(queue.put("y"))
        await other.expect(b"put 65536 0 60 1\r\ny\r\n")
        other.say(b"CANCELLED\r\nINSERTED 2\r\n")
        assert await put == 2


async def test_a_connection_with_reservations_is_never_left_behind(net, client, peer):
    job = await reserved(client, peer)
    peer.take()
    waiting = begin(client.reserve())
    await turns()
    waiting.cancel()
    delete = begin(client.delete(job))
    await peer.expect(b"reserve\r\ndelete 5\r\n")
    peer.say(b"DEADLINE_SOON\r\nDELETED\r\n")
    await delete
    assert len(net.peers) == 1


async def test_after_a_loss_the_next_command_connects_again_for_all_who_wait(net):
    lost = []
    async with connected(net, on_reconnect=lost.append) as (queue, peer):
        job = await reserved(queue, peer)
        peer.hang_up()
        await turns()
        work = [begin(queue.put(str(number))) for number in range(5)]
        await turns()
        assert len(net.peers) == 2
        net.peers[1].say(b"".join(b"INSERTED %d\r\n" % number for number in range(5)))
        assert await asyncio.gather(*work) == list(range(5))
        assert lost == [{5}]
        assert not queue.holds(job)


async def test_what_may_be_said_twice_is_and_a_put_is_not(net, client, peer):
    put, stats, reserve = begin(client.put("x")), begin(client.stats()), begin(client.reserve())
    await turns()
    peer.hang_up(ConnectionResetError(104, "Connection reset by peer"))
    other = await net.peer(1)
    await other.expect(b"stats\r\nreserve\r\n")
    other.say(b"OK 9\r\n---\nid: 1\r\nRESERVED 1 1\r\nx\r\n")
    assert await stats == {"id": 1}
    assert (await reserve).id == 1
    with pytest.raises(ConnectionLostError, match="may have been executed") as caught:
        await put
    assert caught.value.maybe_done


async def test_a_put_that_has_not_left_yet_goes_to_the_next_connection(net, client, peer):
    put = begin(client.put("x"))
    await asyncio.sleep(0)  # the command is given, and leaves at the end of the turn
    peer.hang_up()
    other = await net.peer(1)
    await answer(other, put, b"x")


async def test_closing_ends_what_waits(net, client, peer):
    work = [begin(client.put("x")), begin(client.reserve())]
    await turns()
    await client.close()
    for result in await asyncio.gather(*work, return_exceptions=True):
        assert type(result) is ConnectionLostError
    with pytest.raises(ConnectionLostError, match="closed"):
        await client.put("x")
    assert peer.is_left
    assert len(net.peers) == 1


async def test_after_a_while_a_put_leaves_only_when_a_loss_would_have_been_read(net, client, peer):
    client._connection._heard -= 2  # seconds without a command

    async def hang_up_later():
        asyncio.get_running_loop().call_soon(peer.hang_up)  # as what is read in the next turn is handled

    put, end = begin(client.put("x")), begin(hang_up_later())
    other = await net.peer(1)
    await answer(other, put, b"x")
    await end


async def test_closing_is_over_when_its_task_is_cancelled(net):
    queue = AsyncClient("h:1")
    await queue.connect()
    closing = begin(queue.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await turns()
    assert net.peers[0].transport.is_lost


async def test_connecting_goes_on_for_who_still_waits_and_ends_with_the_last_who_does(net):
    net.silent.add(1)
    queue = AsyncClient(["h:1"])
    first, second = begin(queue.put("a")), begin(queue.put("b"))
    await turns()
    first.cancel()
    await turns()
    assert len(net.attempts) == 1
    assert queue._connecting is not None
    second.cancel()
    await turns()
    assert queue._connecting is None
    net.silent.clear()
    put = begin(queue.put("c"))
    peer = await net.peer()
    await answer(peer, put, b"c")
    await queue.close()


async def test_closing_ends_who_connects(net):
    net.silent.add(1)
    queue = AsyncClient("h:1")
    put = begin(queue.put("a"))
    await turns()
    await queue.close()
    with pytest.raises(ConnectionLostError, match="closed"):
        await put


async def test_a_server_that_closes_each_connection_at_once_is_told_after_some(net):
    async with AsyncClient("h:1") as queue:
        queue._on_reconnect = lambda _: net.peers[-1].hang_up()
        net.peers[0].hang_up()
        await turns()
        with pytest.raises(ConnectionLostError):
            await queue.put("x")
        assert len(net.peers) <= 5


GREETING = b"AUTHENTICATED\r\nUSING t\r\nWATCHING 2\r\nWATCHING 1\r\n"


async def test_a_loss_at_any_byte_of_the_set_up_is_an_attempt_that_failed(monkeypatch, loop_factory):
    monkeypatch.setattr("beanstalk_client.core.FIRST_PAUSE", 0)
    losses = [(size, 0) for size in range(len(GREETING))] + [(len(GREETING), turns) for turns in range(12)]
    again = 0
    options = {"use": "t", "watch": "t", "token": "s", "insecure_token": True, "greeting": GREETING}
    for size, later in losses:
        with network() as net:
            async with connected(net, **options) as (queue, peer):
                peer.hang_up()
                await turns()
                put = begin(queue.put("x"))
                losing = await net.peer(1)
                await turns()
                losing.take()
                losing.say(GREETING[:size])
                await turns(later)
                losing.hang_up()
                if b"put" in losing.take():  # it was set up, and what became of the put is not known
                    with pytest.raises(ConnectionLostError, match="h:1: ") as lost:
                        await put
                    assert lost.value.maybe_done
                    continue
                again += 1
                found = await net.peer(2)
                await turns()
                found.take()
                found.say(GREETING)
                await answer(found, put, b"x")
    assert len(GREETING) < again < len(losses)


async def test_a_command_waits_for_a_server_that_is_down_no_longer_than_it_is_told(net):
    async with connected(net, reconnect_timeout=0.01) as (queue, peer):
        net.refused.add(1)
        peer.hang_up()
        with pytest.raises(ConnectionLostError, match=r"^h:1: cannot connect within 0\.01 s: ") as lost:
            await asyncio.wait_for(queue.put("x"), WITHIN)
        assert not lost.value.maybe_done


async def test_a_connection_that_takes_longer_than_commands_wait_serves_those_that_follow(net):
    async with connected(net, use="t", greeting=b"USING t\r\n", reconnect_timeout=0.01) as (queue, peer):
        peer.hang_up()
        with pytest.raises(ConnectionLostError, match=r"within 0\.01 s: no answer"):
            await asyncio.wait_for(queue.put("x"), WITHIN)
        slow = await net.peer(1)
        await slow.expect(b"use t\r\n")
        slow.say(b"USING t\r\n")
        await queue.connect()
        put = begin(queue.put("y"))
        await answer(slow, put, b"y")


def test_what_still_connects_in_a_loop_that_is_closed_is_left_behind():
    queue = AsyncClient("h:1", reconnect_timeout=0.01)

    async def lose():
        with network() as net:
            await queue.connect()
            net.silent.add(1)
            net.peers[0].hang_up()
            with pytest.raises(ConnectionLostError, match="no answer"):
                await asyncio.wait_for(queue.put("x"), WITHIN)

    async def go_on():
        with network():
            await asyncio.wait_for(queue.connect(), WITHIN)
            await queue.close()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(lose())
    loop.close()
    asyncio.run(go_on())


async def test_who_comes_when_the_last_of_those_who_waited_is_cancelled_connects(net):
    net.silent.add(1)
    queue = AsyncClient("h:1")
    first = begin(queue.connect())
    await turns()
    net.silent.clear()
    first.cancel()
    await asyncio.sleep(0)
    await queue.connect()
    assert queue.is_connected
    await queue.close()


async def test_an_error_of_on_reconnect_reaches_who_has_connected(net):
    def on_reconnect(lost):
        raise ZeroDivisionError

    async with connected(net, on_reconnect=on_reconnect) as (queue, peer):
        peer.hang_up()
        await turns()
        with pytest.raises(ZeroDivisionError):
            await queue.put("x")
        put = begin(queue.put("y"))  # the connection is there
        await answer(net.peers[1], put, b"y")


async def test_commands_wait_while_the_server_does_not_read_and_go_out_in_order(client, peer):
    peer.stop_reading()
    puts = [begin(client.put(str(number))) for number in range(5)]
    await turns()
    assert peer.take() == b""
    peer.go_on_reading()
    await turns()
    assert peer.writes == [b"".join(b"put 65536 0 60 1\r\n%d\r\n" % number for number in range(5))]
    peer.say(b"".join(b"INSERTED %d\r\n" % number for number in range(5)))
    assert await asyncio.gather(*puts) == list(range(5))


async def test_a_release_that_waited_for_room_is_not_sent_to_another_connection(net, client, peer):
    job = await reserved(client, peer)
    peer.stop_reading()
    release, delete = begin(client.release(job)), begin(client.delete(job))
    await turns()
    peer.hang_up()
    for late in (release, delete):
        with pytest.raises(ReservationLostError):
            await late
    assert (await net.peer(1)).take() == b""


async def test_a_release_with_a_fraction_is_not_sent_to_another_connection(net, client, peer):
    reserving = begin(client.reserve())
    await peer.expect(b"reserve\r\n")
    peer.say(b"RESERVED 1 1\r\na\r\n")
    releasing = begin(client.release(await reserving, delay=0.5))
    await peer.expect(ASKED)
    peer.hang_up()
    again = await net.peer(1)
    await again.expect(ASKED)
    again.say(b"UNKNOWN_COMMAND\r\n")
    with pytest.raises(ReservationLostError):
        await releasing
    assert again.take() == b""


async def test_jobs_that_come_too_late_are_given_back_also_if_one_is_no_text(client, peer):
    reserving = begin(client.reserve_batch(2, 5))
    await peer.expect(b"reserve-batch 2 5\r\n")
    reserving.cancel()
    await asyncio.wait([reserving])
    peer.say(b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\n\xff\r\nRESERVED 2 1\r\na\r\n")
    await lack_give_back(peer, 1, 2)
    await peer.expect(b"stats-job 1\r\nstats-job 2\r\n")
    peer.say(b"NOT_FOUND\r\nOK 11\r\n---\npri: 7\n\r\n")
    await peer.expect(b"release 1 65536 0\r\nrelease 2 7 0\r\n")
    peer.say(2 * b"RELEASED\r\n")
    await turns()


def moved():
    """What moves the clock of the running loop by some seconds, and lets the loop see that."""
    loop = asyncio.get_running_loop()
    time, later = loop.time, 0.0
    loop.time = lambda: time() + later

    async def wait(seconds):
        nonlocal later
        later += seconds
        await turns()

    return wait


async def test_a_second_attempt_ends_with_the_time_of_the_call(net):
    wait = moved()
    async with connected(net, timeout=1000) as (queue, peer):
        stats = begin(queue.stats())
        await turns()
        await wait(900)
        peer.hang_up()
        other = await net.peer(1)
        put = begin(queue.put("x"))
        await turns()
        await wait(100)
        with pytest.raises(NoAnswerError, match="no answer within 1000 s"):
            await stats
        assert not put.done(), "which has time left"
        await other.expect(b"stats\r\nput 65536 0 60 1\r\nx\r\n")
        other.say(b"OK 4\r\n---\n\r\nINSERTED 5\r\n")
        assert await put == 5


async def in_pipeline(queue):
    async with queue.pipeline() as together:
        together.put("x")
        together.put("y")


async def keyed_in_pipeline(queue):
    async with queue.pipeline() as together:
        together.put("x")
        together.put_keyed("key", "y")


def job_of_server():
    origin = Origin()
    origin.server = "id"
    return Job(1, "", origin, False)


CALLS = {
    "put": lambda queue: queue.put("x"),
    "put_with": lambda queue: queue.put_with("x", tries=2),
    "put_delay": lambda queue: queue.put("x", delay=0.5),
    "delete_job": lambda queue: queue.delete(job_of_server()),
    "pipeline": in_pipeline,
    "keyed_in_pipeline": keyed_in_pipeline,
    "knows": lambda queue: queue.knows("put-with"),
    "reserve_0": lambda queue: queue.reserve(0),
    "reserve_1": lambda queue: queue.reserve(1),
}
RECONNECTS_SLOWLY = {
    "use": "t",
    "greeting": b"USING t\r\n",
    "timeout": 1000,
    "connect_timeout": 9000,
    "reconnect_timeout": 9000,
}
ASKS_FIRST = ("put_with", "put_delay", "delete_job", "keyed_in_pipeline")
KNOWN = b"OK 11\r\n---\nid: id\n\r\n"


@pytest.mark.parametrize("name", CALLS)
async def test_connecting_again_is_part_of_the_timeout(name, net):
    wait = moved()
    async with connected(net, **RECONNECTS_SLOWLY) as (queue, peer):
        peer.hang_up()
        call = begin(CALLS[name](queue))
        await (await net.peer(1)).expect(b"use t\r\n")
        await wait(999)
        assert not call.done()
        await wait(1)
        with pytest.raises(UnreachableError, match="within 1e\\+03 s: no answer") as lost:
            await asyncio.wait_for(call, WITHIN)
        assert isinstance(lost.value, NoAnswerError)
        assert not lost.value.maybe_done


@pytest.mark.parametrize("name", CALLS)
async def test_the_time_that_connecting_again_took_is_not_given_again(name, net):
    wait = moved()
    async with connected(net, **RECONNECTS_SLOWLY) as (queue, peer):
        peer.hang_up()
        call = begin(CALLS[name](queue))
        other = await net.peer(1)
        await other.expect(b"use t\r\n")
        await wait(900)
        other.say(b"USING t\r\n")
        await turns()
        assert other.take()
        await wait(99 if name != "reserve_1" else 100)
        assert not call.done()
        await wait(1)
        with pytest.raises(NoAnswerError, match=r"no answer within 100[01] s"):
            await asyncio.wait_for(call, WITHIN)
        assert queue.is_connected, "which other calls may use"


@pytest.mark.parametrize("name", ASKS_FIRST)
async def test_a_question_before_a_command_is_part_of_its_timeout(name, net):
    wait = moved()
    async with connected(net, timeout=1000) as (queue, peer):
        call = begin(CALLS[name](queue))
        await turns()
        asked = peer.take()
        await wait(900)
        peer.say(KNOWN if asked == b"stats\r\n" else extensions("put-with", "put-keyed", "durations"))
        await turns()
        assert peer.take()
        await wait(99)
        assert not call.done()
        await wait(1)
        with pytest.raises(NoAnswerError, match="no answer within 1000 s"):
            await asyncio.wait_for(call, WITHIN)


async def test_the_first_connection_is_no_part_of_the_timeout(net):
    wait = moved()
    async with contextlib.AsyncExitStack() as stack:
        queue = AsyncClient("h:1", use="t", timeout=1000, connect_timeout=9000)
        stack.push_async_callback(queue.close)
        call = begin(queue.put_with("x", tries=2))
        peer = await net.peer(0)
        await peer.expect(b"use t\r\n")
        await wait(900)
        peer.say(b"USING t\r\n")
        await turns()
        assert peer.take()
        await wait(900)
        assert not call.done()
        peer.say(extensions("put-with"))
        await turns()
        peer.say(b"INSERTED 3\r\n")
        assert await call == 3


@pytest.mark.parametrize("asked", [0, 5, None])
async def test_a_reply_that_drips_must_be_whole_in_time(asked, net):
    wait = moved()
    async with connected(net, timeout=1000, reconnect=False) as (queue, peer):
        call = begin(queue.reserve(asked))
        await turns()
        if asked is None:
            await wait(5000)
        for byte in b"RESERV":
            await wait(150)
            peer.say(bytes([byte]))
        await wait({0: 99, 5: 104, None: 999 - 5 * 150}[asked])
        assert not call.done()
        await wait(1)
        with pytest.raises(NoAnswerError, match=f"no answer within {1000 + (asked or 0)} s"):
            await asyncio.wait_for(call, WITHIN)


async def test_the_time_of_each_reply_of_a_pipeline_begins_with_the_one_before(net):
    wait = moved()
    async with connected(net, timeout=1000) as (queue, peer):
        peer.hang_up()
        call = begin(in_pipeline(queue))
        other = await net.peer(1)
        for _ in range(2):
            await wait(900)
            assert not call.done()
            other.say(b"INSERTED 1\r\n")
        await call
        call = begin(in_pipeline(queue))
        await wait(900)
        other.say(b"INSERTED 1\r\n")
        await wait(999)
        assert not call.done()
        await wait(1)
        with pytest.raises(NoAnswerError):
            await asyncio.wait_for(call, WITHIN)


async def test_a_pipeline_whose_time_is_over_gives_back_what_it_is_granted(net):
    wait = moved()
    async with connected(net, **RECONNECTS_SLOWLY) as (queue, peer):
        peer.hang_up()
        replies = []

        async def reserve():
            async with queue.pipeline(raise_errors=False) as together:
                replies.append(together.reserve(0))

        reserving = begin(reserve())
        other = await net.peer(1)
        await wait(900)
        other.say(b"USING t\r\n")
        await other.expect(b"use t\r\nreserve-with-timeout 0\r\n")
        await wait(100)
        await reserving
        assert type(replies[0].exception()) is NoAnswerError
        other.say(b"RESERVED 5 1\r\nx\r\n")
        await take_back(other)


@pytest.mark.parametrize("reply", [b"RESERVED 5 1\r\nx\r\n", b"OUT_OF_MEMORY\r\n"], ids=["job", "error"])
@pytest.mark.parametrize("is_late", [False, True], ids=["before", "same turn"])
async def test_a_reserve_that_is_cancelled_after_connecting_again_loses_no_job(reply, is_late, net, client, peer):
    peer.hang_up()
    reserve = begin(client.reserve(0))
    other = await net.peer(1)
    await other.expect(b"reserve-with-timeout 0\r\n")
    if is_late:
        other.say(reply)
    reserve.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reserve
    if not is_late:
        other.say(reply)
    if reply.startswith(b"RESERVED"):
        await take_back(other)
    gc.collect()  # of an error that no task has looked at, the loop tells now


async def test_the_next_address_is_tried(net):
    net.refused.add(1)
    async with AsyncClient(["h:1", "h:2", "h:3"]) as queue:
        assert [port for _, port, _ in net.attempts] == [1, 2]
        net.refused.add(2)
        net.peers[0].hang_up()
        await turns()
        await queue.connect()
        assert [port for _, port, _ in net.attempts] == [1, 2, 3]


async def test_fractions_of_a_second_are_said_as_the_server_knows_them(net, client, peer):
    together = [begin(client.put("a", delay=0.5)), begin(client.put("b", ttr=1.5))]
    await peer.expect(2 * ASKED)
    peer.say(2 * b"UNKNOWN_COMMAND\r\n")
    await peer.expect(b"put 65536 1 60 1\r\na\r\nput 65536 0 2 1\r\nb\r\n")
    peer.say(b"INSERTED 1\r\nINSERTED 2\r\n")
    assert await asyncio.gather(*together) == [1, 2]
    reserving = begin(client.reserve(2.5))
    await peer.expect(b"reserve-with-timeout 3\r\n")
    peer.hang_up()
    again = await net.peer(1)
    await again.expect(ASKED)
    again.say(extensions("durations"))
    await again.expect(b"reserve-with-timeout 2.500\r\n")
    again.hang_up()
    with pytest.raises(ConnectionLostError):
        await reserving
