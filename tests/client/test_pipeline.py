"""Pipelines of both clients: few writes, replies in their places, and no deadlock however much is sent and answered."""

import asyncio
import contextlib
import socket
import threading

import pytest
from beanstalk_client import ConnectionLostError, NoAnswerError, NotFoundError, UnsupportedError
from fake_network import begin, turns
from scripted_server import ASKED, CLOSE, RESET, SILENCE

from harness.waiting import WITHIN

MANY = 100_000
"""Commands of a large pipeline."""


async def test_the_commands_of_a_pipeline_leave_in_one_write(client, peer):

    async def work():
        async with client.pipeline() as together:
            first, second, third = together.put("a"), together.delete(5), together.stats_tube("t")
        return first, second, third

    working = begin(work())
    await turns()
    assert peer.writes == [b"put 65536 0 60 1\r\na\r\ndelete 5\r\nstats-tube t\r\n"]
    peer.say(b"INSERTED 1\r\nDELETED\r\nOK 9\r\n---\nid: 1\r\n")
    first, second, third = await working
    assert (first.result(), second.result(), third.result()) == (1, None, {"id": 1})


@pytest.mark.parametrize("raises", [True, False])
async def test_the_first_error_is_raised_when_all_replies_are_there(raises, client, peer):
    replies = []

    async def work():
        async with client.pipeline(raise_errors=raises) as together:
            replies.extend([together.delete(1), together.delete(2), together.put("a")])

    working = begin(work())
    await turns()
    peer.say(b"NOT_FOUND\r\nDELETED\r\n")
    await turns()
    assert not working.done()
    peer.say(b"INSERTED 1\r\n")
    [error] = await asyncio.gather(working, return_exceptions=True)
    assert type(error) is (NotFoundError if raises else type(None))
    with pytest.raises(NotFoundError):
        replies[0].result()
    assert (replies[1].result(), replies[2].result()) == (None, 1)


async def test_a_block_that_is_left_by_an_error_sends_nothing(client, peer):
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 the block is what is tested
        async with client.pipeline() as together:
            reply = together.put("a")
            raise ZeroDivisionError
    await turns()
    assert peer.take() == b""
    with pytest.raises(RuntimeError, match="no reply yet"):
        reply.result()
    with pytest.raises(RuntimeError, match="ended"):
        together.put("b")


async def test_a_pipeline_sends_no_body_to_a_server_that_would_take_it_for_commands(client, peer):

    async def work():
        async with client.pipeline(raise_errors=False) as together:
            return together.put("a"), together.put_with("quit", key="k"), together.put("b")

    working = begin(work())
    await peer.expect(ASKED)
    peer.say(b"UNKNOWN_COMMAND\r\n")
    await peer.expect(b"put 65536 0 60 1\r\na\r\nput 65536 0 60 1\r\nb\r\n")
    peer.say(b"INSERTED 1\r\nINSERTED 2\r\n")
    first, with_key, last = await working
    assert (first.result(), last.result()) == (1, 2)
    with pytest.raises(UnsupportedError):
        with_key.result()


async def test_a_pipeline_that_loses_its_connection_says_what_was_not_answered(net, client, peer):

    async def work():
        async with client.pipeline(raise_errors=False) as together:
            return [together.put(str(number)) for number in range(3)]

    working = begin(work())
    await turns()
    peer.say(b"INSERTED 1\r\n")
    peer.hang_up()
    first, *lost = await working
    assert first.result() == 1
    for reply in lost:
        with pytest.raises(ConnectionLostError, match="may have been executed"):
            reply.result()
    assert len(net.peers) == 1  # nothing was said again


async def test_a_pipeline_waits_while_the_server_does_not_read(client, peer):
    body = "x" * 40_000

    async def work():
        async with client.pipeline() as together:
            for _ in range(100):
                together.put(body)

    peer.stop_reading()
    working = begin(work())
    await turns()
    assert peer.take() == b""
    peer.go_on_reading()
    await turns()
    peer.say(b"INSERTED 1\r\n" * 100)
    await working
    assert len(peer.writes) == 50  # two bodies fill one


async def test_what_a_cancelled_pipeline_is_granted_is_given_back(client, peer):

    async def work():
        async with client.pipeline() as together:
            for _ in range(3):
                together.reserve(0)

    working = begin(work())
    await turns()
    peer.take()
    peer.say(b"RESERVED 1 1\r\nx\r\n")
    working.cancel()
    await peer.expect(b"give-back 1\r\n")
    peer.say(b"TIMED_OUT\r\nRESERVED 2 1\r\nx\r\nGIVEN_BACK\r\n")
    await peer.expect(b"give-back 2\r\n")
    peer.say(b"GIVEN_BACK\r\n")
    await turns()


@contextlib.contextmanager
def echoing(answer):
    """A server of one connection, in a thread, that answers each line before it reads on: so it does not read while
    its answers are not read.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(WITHIN)

    def serve():
        sock, _ = listener.accept()
        with sock, sock.makefile("rb") as lines:
            sock.settimeout(WITHIN)
            with contextlib.suppress(OSError):
                for line in lines:
                    if line.split()[0] != b"put":
                        sock.sendall(answer)
                        continue
                    lines.read(int(line.split()[4]) + 2)
                    sock.sendall(b"INSERTED 1\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.close()
        thread.join(WITHIN)


BODY = b"y" * 200_000
LARGE = b"FOUND 1 %d\r\n%b\r\n" % (len(BODY), BODY)


def test_replies_larger_than_all_buffers_do_not_block_what_is_still_to_be_sent(connect):
    with echoing(LARGE) as address, connect(address, encoding=None, name="") as queue:
        with queue.pipeline() as together:
            found = [(together.peek(1), together.put(BODY)) for _ in range(100)]
        assert all(peeked.result().body == BODY and put.result() == 1 for peeked, put in found)


def test_a_hundred_thousand_commands(connect, beanstalkd):
    with connect(beanstalkd.address) as queue:
        with queue.pipeline() as together:
            replies = [together.put(str(number)) for number in range(MANY)]
        assert [reply.result() for reply in replies] == list(range(1, MANY + 1))


def test_a_pipeline_raises_what_was_not_understood(connect, run):
    with connect(run().address) as queue:
        with queue.pipeline() as together:
            job_id = together.put_with("x", key="k")
            together.use("other")
        assert queue.using() == "other"
        assert queue.peek(job_id.result()).body == "x"
        with pytest.raises(NotFoundError), queue.pipeline() as together:  # noqa: PT012 its end raises
            put = together.put("y")
            together.delete(4711)
            last = together.put("z")
        assert (put.result(), last.result()) == (2, 3)


@pytest.mark.parametrize("reply", [b"", b"INSERTED 1\r\n"], ids=["no reply", "a reply"])
@pytest.mark.parametrize("give_up", [CLOSE, RESET, SILENCE], ids=["closed", "reset", "silent"])
def test_a_server_that_goes_while_a_large_pipeline_is_sent(connect, scripted, give_up, reply):
    server = scripted([(b"put 65536 0 60 60000\r\n" + b"x" * 60_000 + b"\r\n", reply, give_up)])
    with connect(server.address, timeout=0.1 if give_up is SILENCE else 60, reconnect=False) as queue:
        with queue.pipeline(raise_errors=False) as together:
            replies = [together.put("x" * 60_000) for _ in range(500)]
        errors = [type(reply.exception()) for reply in replies]
        assert errors[0] is not type(None) or (reply and replies[0].result() == 1)
        assert set(errors[1:]) <= {NoAnswerError, ConnectionLostError}
        assert (NoAnswerError in errors) == (give_up is SILENCE)
        with pytest.raises(ConnectionLostError):
            queue.put("y")
