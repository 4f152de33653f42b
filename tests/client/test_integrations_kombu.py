"""Queues and messages of kombu over this server and over beanstalkd."""

import contextlib
import datetime
import os
import socket
import ssl
import time

import kombu
import kombu.pidbox
import pytest
from beanstalk_client.blocking import Client
from beanstalk_client.errors import (
    ConnectionLostError,
    ForbiddenError,
    JobTooBigError,
    UnauthorizedError,
    UnsupportedError,
)
from beanstalk_client.integrations import kombu as transport_module
from beanstalk_client.integrations.kombu import RETRY, TLSTransport, Transport, key_of, moment
from hypothesis import given
from hypothesis import strategies as st
from kombu.asynchronous import Hub
from tls_peers import Files

from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.settings.sections import ListenerConfig, UserConfig
from harness.servers import unused_port
from harness.waiting import eventually


def url_of(server):
    return "beanstalk://{}:{}".format(*server.address)


@pytest.fixture
def server(run):
    return run()


@pytest.fixture
def connect():
    """Makes connections of kombu, and ends them."""
    with contextlib.ExitStack() as stack:

        def start(server, **options):
            url = server if isinstance(server, str) else url_of(server)
            return stack.enter_context(kombu.Connection(url, transport_options=options))

        yield start


@pytest.fixture
def look():
    """Makes clients that look at what is on a server."""
    with contextlib.ExitStack() as stack:

        def start(server):
            return stack.enter_context(Client(server.address, encoding=None))

        yield start


def consume(connection, queue, count, *, prefetch=0, act=lambda message: message.ack()):
    """Receive this many messages."""
    got = []

    def receive(body, message):
        got.append(message)
        act(message)

    with kombu.Consumer(
        connection, [kombu.Queue(queue)], callbacks=[receive], accept=["json", "pickle", "text/plain"]
    ) as consumer:
        consumer.qos(prefetch_count=prefetch)
        while len(got) < count:
            connection.drain_events(timeout=60)
    return got


def in_seconds(seconds):
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)).isoformat()


def task(task_id="4f2c", eta=None, retries=0):
    return {"id": task_id, "task": "t", "eta": eta, "retries": retries}


def counts(client, tube="q"):
    stats = client.stats_tube(tube)
    return {state: stats[f"current-jobs-{state}"] for state in ("ready", "delayed", "reserved", "buried")}


NONE = {"ready": 0, "delayed": 0, "reserved": 0, "buried": 0}


def test_what_is_put_is_got_in_order_with_its_headers(either, connect):
    with contextlib.closing(connect(either).SimpleQueue("q")) as queue:
        for number in range(20):
            queue.put({"n": number}, headers={"h": number})
        assert queue.qsize() == 20
        for number in range(20):
            message = queue.get(timeout=60)
            assert (message.payload, message.headers) == ({"n": number}, {"h": number})
            assert message.delivery_info["redelivered"] is False
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.2)
        with pytest.raises(queue.Empty):
            queue.get_nowait()


@pytest.mark.parametrize("body", ["text Ω", b"\xff\x00bytes", {"deep": [1, None, "x"]}])
def test_bodies_come_as_they_went(either, connect, body):
    connection = connect(either)
    producer = connection.Producer(serializer="pickle" if isinstance(body, bytes) else "json")
    producer.publish(body, routing_key="q", declare=[kombu.Queue("q")])
    (message,) = consume(connection, "q", 1)
    assert message.payload == body


def test_what_is_acknowledged_is_deleted_before_the_connection_ends(either, connect, look):
    connection = connect(either)
    with contextlib.closing(connection.SimpleQueue("q")) as queue:
        for number in range(50):
            queue.put(number)
        for _ in range(50):
            queue.get(timeout=60).ack()
    connection.release()
    client = look(either)
    client.use("q")
    eventually(lambda: counts(client) == NONE, "nothing is left")


def test_what_is_not_acknowledged_comes_again_when_the_connection_ends(either, connect):
    first, second = connect(either), connect(either)
    first.SimpleQueue("q").put("x")
    first.SimpleQueue("q").get(timeout=60)
    first.release()
    message = second.SimpleQueue("q").get(timeout=60)
    assert message.payload == "x"
    assert message.delivery_info["redelivered"] is True


def test_what_is_requeued_comes_again_and_what_is_rejected_is_buried(either, connect, look):
    connection, client = connect(either), look(either)
    queue = connection.SimpleQueue("q")
    queue.put("x")
    queue.get(timeout=60).requeue()
    message = queue.get(timeout=60)
    assert message.delivery_info["redelivered"] is True
    message.reject()
    eventually(lambda: counts(client) == NONE | {"buried": 1}, "it is buried")


def test_what_is_rejected_is_deleted_if_that_is_wanted(server, connect, look):
    queue = connect(server, reject="delete").SimpleQueue("q")
    client = look(server)
    queue.put("x")
    queue.get(timeout=60).reject()
    eventually(lambda: counts(client) == NONE, "it is gone")
    with pytest.raises(ValueError, match="must be 'bury' or 'delete'"):
        connect(server, reject="burn").channel()


def test_the_highest_priority_comes_first(either, connect):
    connection = connect(either)
    queue = connection.SimpleQueue("q")
    for priority in (None, 3, 9, 6, 9, 0):
        queue.put(priority, priority=priority)
    assert [message.payload for message in consume(connection, "q", 6)] == [9, 9, 6, 3, None, 0]


def test_no_more_is_reserved_than_the_prefetch_count_allows(either, connect, look):
    connection, client = connect(either), look(either)
    queue = connection.SimpleQueue("q")
    for number in range(10):
        queue.put(number)
    got = []
    with kombu.Consumer(connection, [kombu.Queue("q")], callbacks=[lambda body, message: got.append(message)]) as c:
        c.qos(prefetch_count=3)
        while len(got) < 3:
            connection.drain_events(timeout=60)
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)
        assert counts(client)["reserved"] == 3
        got[0].ack()
        connection.drain_events(timeout=60)
        assert len(got) == 4
        assert counts(client) == NONE | {"ready": 6, "reserved": 3}


def test_nothing_is_reserved_that_nobody_looks_for(either, connect, look):
    connection, client = connect(either), look(either)
    with kombu.Consumer(connection, [kombu.Queue("q")], callbacks=[lambda body, message: None]):
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)
        client.use("q")
        client.put(b"{}")
        assert counts(client)["ready"] == 1


def test_jobs_that_are_no_messages_are_buried_and_hold_nobody_up(either, connect, look, caplog):
    connection, client = connect(either), look(either)
    client.use("q")
    bodies = (
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"properties": {"delivery_info": {}}}',
        b'{"properties": 5, "body": ""}',
        b'{"properties": {"delivery_info": {}, "body_encoding": "base64"}, "body": "a"}',
        b'{"properties": {"delivery_info": {}, "body_encoding": "no such thing"}, "body": "a"}',
        b'{"properties": {"delivery_info": {}}, "headers": 5, "body": ""}',
        b'{"__type__": "decimal", "__value__": "a"}',
        20_000 * b"[",
    )
    for body in bodies:
        client.put(body)
    connection.SimpleQueue("q").put("x", priority=0)
    with kombu.Consumer(connection, [kombu.Queue("q")], accept=["text/plain"]) as consumer:
        consumer.register_callback(lambda body, message: message.ack())

        def drained():
            with contextlib.suppress(socket.timeout):
                connection.drain_events(timeout=0)
            return counts(client)["buried"] == len(bodies)

        eventually(drained, "all others are buried")
    assert counts(client)["ready"] == 0
    assert caplog.text.count("was buried: it is not a kombu message") == len(bodies)


def test_exchanges_route_to_the_queues_that_are_bound_in_this_process(either, connect):
    connection = connect(either)
    topic = kombu.Exchange("t", type="topic")
    queues = [kombu.Queue(name, topic, routing_key=key) for name, key in (("a", "x.*"), ("b", "x.#"), ("c", "y"))]
    producer = connection.Producer(exchange=topic)
    producer.publish("hello", routing_key="x.1", declare=queues)
    assert [connection.SimpleQueue(name).qsize() for name in "abc"] == [1, 1, 0]


def test_a_broadcast_reaches_every_queue_that_is_bound_by_a_connection_that_is_alive(either, connect, look):
    exchange = kombu.Exchange("all", type="fanout")
    first, second, third = connect(either), connect(either), connect(either)
    for connection, name in ((first, "a"), (second, "b")):
        kombu.Queue(name, exchange, channel=connection.default_channel).declare()
    third.Producer().publish("to both", exchange=exchange, declare=[exchange])
    assert [connection.SimpleQueue(name).qsize() for connection, name in ((first, "a"), (second, "b"))] == [1, 1]
    second.release()
    client = look(either)
    eventually(lambda: "all/fanout/b" not in client.tubes(), "the server knows that it has gone")
    third.Producer().publish("to one", exchange=exchange)
    assert [third.SimpleQueue(name).qsize() for name in "ab"] == [2, 1]
    kombu.Queue("b", exchange, channel=third.default_channel).declare()
    assert third.SimpleQueue("b").qsize() == 0  # what was said to one who is gone is not for the next
    kombu.Queue("a", exchange, channel=first.default_channel).delete()
    third.Producer().publish("to the other", exchange=exchange)
    assert [third.SimpleQueue(name).qsize() for name in "ab"] == [0, 1]


@pytest.mark.parametrize("is_evented", [False, True])
def test_who_is_bound_stays_so_when_a_connection_is_lost_on_which_nothing_is_said(
    run, connect, monkeypatch, is_evented
):
    server = run()
    connection, sender, got = connect(server), connect(server), []
    exchange = kombu.Exchange("all", type="fanout")
    hub = Hub()
    if is_evented:
        hub.call_repeatedly(0.01, lambda: None)
        connection.transport.register_with_event_loop(connection.connection, hub)
    queue = kombu.Queue("a", exchange, channel=connection.default_channel)
    with kombu.Consumer(connection, [queue], callbacks=[lambda body, message: got.append(body)], no_ack=True):
        monkeypatch.setattr(transport_module, "WAIT", 0.01)
        connection.transport.commands._connection._sock.shutdown(socket.SHUT_RDWR)

        def heard():
            sender.Producer().publish("hello", exchange=exchange, declare=[exchange])
            with contextlib.suppress(socket.timeout):
                hub.run_once() if is_evented else connection.drain_events(timeout=0.02)
            return got

        eventually(heard, "it is bound again")
        connection.close()
    hub.close()


def test_a_reply_reaches_who_waits_for_it_and_nobody_else(server, connect, look):
    asker, answerer = connect(server), connect(server)
    exchange = kombu.Exchange("replies", type="direct", durable=False)
    kombu.Queue("5.replies", exchange, routing_key="5", durable=False, channel=asker.default_channel).declare()
    for key in ("5", "6"):
        answerer.Producer().publish("yes", exchange=exchange, routing_key=key, declare=[exchange])
    assert consume(asker, "5.replies", 1)[0].payload == "yes"
    assert "6.replies" not in look(server).tubes()


def test_several_queues_are_consumed_at_once_and_one_may_be_cancelled(either, connect):
    connection, got = connect(either), []
    a, b = connection.SimpleQueue("a"), connection.SimpleQueue("b")
    a.put(1)
    b.put(2)

    def receive(body, message):
        got.append(body)
        message.ack()

    with kombu.Consumer(connection, [kombu.Queue("a"), kombu.Queue("b")], callbacks=[receive]) as consumer:
        while len(got) < 2:
            connection.drain_events(timeout=60)
        consumer.cancel_by_queue("a")
        a.put(3)
        b.put(4)
        while len(got) < 3:
            connection.drain_events(timeout=60)
    assert sorted(got) == [1, 2, 4]
    assert a.qsize() == 1


def test_without_acknowledgements_messages_are_deleted_when_they_come(either, connect, look):
    queue = connect(either).SimpleBuffer("q")
    client = look(either)
    queue.put("x")
    assert queue.get(timeout=60).payload == "x"
    eventually(lambda: counts(client) == NONE, "it is gone")


def test_one_message_may_be_fetched(either, connect):
    connection = connect(either)
    connection.SimpleQueue("q").put("x")
    queue = kombu.Queue("q", channel=connection.default_channel)
    message = queue.get()
    assert message.payload == "x"
    assert queue.get() is None
    message.ack()


def test_purge_takes_what_nobody_has_reserved(either, connect, look):
    connection, client = connect(either), look(either)
    queue = connection.SimpleQueue("q")
    queue.put(0, priority=9)
    queue.put(1, headers=task(eta=in_seconds(1000)))
    queue.put(2)
    reserved = queue.get(timeout=60)
    while queue.buffer:
        queue.buffer.pop().requeue()
    eventually(lambda: counts(client) == NONE | {"reserved": 1, "ready": 1, "delayed": 1}, "one is reserved")
    assert queue.clear() == 2
    assert counts(client) == NONE | {"reserved": 1}
    reserved.ack()
    assert connection.SimpleQueue("nobody").clear() == 0


# Later


def test_what_has_an_eta_is_delayed_and_not_early(either, connect, look):
    connection, client = connect(either), look(either)
    due = in_seconds(0.3)
    connection.SimpleQueue("q").put("x", headers=task(eta=due))
    assert counts(client) == NONE | {"delayed": 1}
    (message,) = consume(connection, "q", 1)
    assert time.time() >= datetime.datetime.fromisoformat(due).timestamp()
    assert message.headers["eta"] is None  # so that Celery does not hold it once more
    assert message.headers["due"] == due


def test_what_has_an_eta_that_is_past_comes_at_once(either, connect, look):
    connection, client = connect(either), look(either)
    connection.SimpleQueue("q").put("x", headers=task(eta=in_seconds(-5)))
    connection.SimpleQueue("q").put("y", headers=task(eta="whenever"))
    assert counts(client) == NONE | {"ready": 2}
    x, y = consume(connection, "q", 2)
    assert (x.headers["eta"], y.headers["eta"]) == (None, "whenever")


@given(st.datetimes(datetime.datetime(2000, 1, 1), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC)))
def test_the_moment_of_an_eta_is_at_most_a_millisecond_late_and_never_early(eta):
    found = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(seconds=moment(eta.isoformat()))
    assert datetime.timedelta(microseconds=-1) <= found - eta <= datetime.timedelta(milliseconds=1)
    assert moment(eta) == moment(eta.replace(tzinfo=None)) == moment(eta.isoformat().replace("+00:00", "Z"))


def test_every_second_retry_has_another_key():
    assert [key_of(task("a", retries=n)) for n in range(4)] == ["a", "a" + RETRY, "a", "a" + RETRY]
    assert [key_of(task(name)) for name in ("", "-a", "ä", "a b", 5, None, "x" * 192)] == [""] * 7


def test_a_task_can_be_cancelled_until_it_is_due(server, connect, look):
    connection, client = connect(server), look(server)
    queue = connection.SimpleQueue("q")
    channel = connection.default_channel
    queue.put(1, headers=task("one", in_seconds(1000)))
    queue.put(2, headers=task("two", in_seconds(1000), retries=1))
    queue.put(3, headers=task("three"))
    assert channel.cancel_task("one", ["other", "q"])
    assert not channel.cancel_task("one", ["other", "q"])
    assert channel.cancel_task("two", ["q"])
    assert not channel.cancel_task("three", ["q"])
    assert not channel.cancel_task("no key", ["q"])
    assert counts(client) == NONE | {"ready": 1}


def test_beanstalkd_cannot_cancel(beanstalkd, connect):
    connection = connect(beanstalkd)
    connection.SimpleQueue("q").put(1, headers=task("one", in_seconds(1000)))
    with pytest.raises(UnsupportedError, match="does not support cancel-keyed"):
        connection.default_channel.cancel_task("one", ["q"])


def test_a_delayed_message_that_is_published_again_is_there_once(server, connect, look):
    connection, client = connect(server), look(server)
    queue, headers = connection.SimpleQueue("q"), task(eta=in_seconds(1000))
    for _ in range(2):
        queue.put("x", headers=headers)
    assert counts(client)["delayed"] == 1


def test_another_message_of_the_same_task_is_not_lost(server, connect, look):
    connection, client = connect(server), look(server)
    queue, eta = connection.SimpleQueue("q"), in_seconds(1000)
    queue.put("x", headers=task(eta=eta))
    queue.put("y", headers=task(eta=eta))
    queue.put("x", headers=task(eta=in_seconds(2000)))
    assert counts(client)["delayed"] == 3


def test_what_expires_is_not_received(server, connect, look):
    connection, client = connect(server), look(server)
    connection.SimpleQueue("q").put("x", expiration=0.05)
    connection.SimpleQueue("q").put("y", expiration=1000)
    eventually(lambda: counts(client)["ready"] == 1, "it has expired")
    assert consume(connection, "q", 1)[0].payload == "y"


# Names


@given(st.text(min_size=1, max_size=30))
def test_any_queue_has_a_tube_and_any_tube_its_queue(name):
    channel = Transport.Channel.__new__(Transport.Channel)
    channel.queue_name_prefix = "x-"
    tube = channel.tube(name)
    assert channel.queue(tube) == name
    assert tube.isascii() and set(tube) <= set("-+/;.$_()") | set(filter(str.isalnum, tube))


def test_queues_are_tubes_behind_a_prefix(server, connect, look):
    connect(server, queue_name_prefix="app.").SimpleQueue("mail@host").put("x")
    assert "app.mail$40host" in look(server).tubes()


# With an event loop


def test_an_idle_loop_asks_once_and_hears_of_a_message_at_once(server, connect, look):
    connection, client, got = connect(server), look(server), []
    hub = Hub()
    hub.call_repeatedly(0.001, lambda: None)  # so that no look takes long
    connection.transport.register_with_event_loop(connection.connection, hub)
    queue = kombu.Queue("q", channel=connection.default_channel)
    consumer = kombu.Consumer(connection, [queue], callbacks=[lambda body, message: got.append(message)])
    consumer.qos(prefetch_count=2)
    consumer.consume()
    for _ in range(100):
        hub.run_once()
    assert client.stats()["cmd-reserve-batch"] == 1
    producer = connection.Producer()
    for number in range(3):
        producer.publish(number, routing_key="q")

    def looked(count):
        hub.run_once()
        return len(got) == count

    eventually(lambda: looked(2), "as many have come as may")
    assert counts(client) == NONE | {"reserved": 2, "ready": 1}
    got[0].ack()
    eventually(lambda: looked(3), "the next has come")
    consumer.cancel()
    connection.close()
    assert list(hub.readers) == []
    hub.run_once()
    hub.close()


def test_two_channels_of_a_connection_are_drained_together(either, connect):
    connection, got = connect(either), []
    with contextlib.ExitStack() as stack:
        for name in ("a", "b"):
            channel = stack.enter_context(connection.channel())
            consumer = kombu.Consumer(channel, [kombu.Queue(name)], no_ack=True)
            consumer.register_callback(lambda body, message: got.append(body))
            stack.enter_context(consumer)
        for name in ("b", "a", "b"):
            connection.Producer().publish(name, routing_key=name)
            connection.drain_events(timeout=60)
        assert got == ["b", "a", "b"]
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0)


# Addresses, and who is there


def test_of_several_addresses_one_that_answers_is_taken(either, connect):
    host, port = either.address
    queue = connect(f"beanstalk://127.0.0.1:{unused_port()},{host}:{port}").SimpleQueue("q")
    queue.put("x")
    assert queue.get(timeout=60).payload == "x"


def test_of_several_urls_the_next_is_taken(either, connect):
    connection = connect(f"beanstalk://127.0.0.1:{unused_port()};{url_of(either)}")
    queue = connection.SimpleQueue("q")
    queue.put("x")
    assert queue.get(timeout=60).payload == "x"


def test_a_server_that_is_not_there_is_a_connection_error(connect):
    connection = connect(f"beanstalk://127.0.0.1:{unused_port()}")
    with pytest.raises(connection.connection_errors):
        connection.transport.establish_connection()


def test_a_transport_may_be_named_by_its_path(run):
    name = f"{Transport.__module__}:{Transport.__name__}"
    with kombu.Connection(url_of(run()), transport=name) as connection:
        assert isinstance(connection.transport, Transport)
        assert connection.connected or connection.connect()


@pytest.mark.parametrize(
    ("url", "keywords", "address"),
    [
        ("beanstalk://", {}, "beanstalk://127.0.0.1"),
        ("beanstalk://a:1,b:2/", {}, "beanstalk://a:1,b:2"),
        ("beanstalk://unix:/run/b", {}, "beanstalk://unix:/run/b"),
        ("beanstalks://:t@a", {}, "beanstalks://:t@a"),
        ("a", {"transport": "beanstalk", "port": 5}, "beanstalk://a:5"),
        ("a", {"transport": "beanstalks", "password": "t"}, "beanstalks://:t@a"),
        ("::1", {"transport": "beanstalk"}, "beanstalk://[::1]"),
    ],
)
def test_urls_are_passed_on(url, keywords, address):
    transport = kombu.Connection(url, **keywords).transport
    assert transport.addresses() == address
    assert isinstance(transport, TLSTransport) == address.startswith("beanstalks")


TOKEN = new_token()
ALL = UserConfig(name="all", token_sha256=(hash_of_token(TOKEN),), produce=("*",), consume=("*",), inspect=("*",))


def test_tls_and_a_token_go_along(run, tmp_path):
    files = Files(tmp_path)
    host, port = run(listeners=(files.listener(auth="token"),), users=(ALL,)).address
    for ssl_option in ({"ca_certs": files.ca}, ssl.create_default_context(cafile=files.ca)):
        with kombu.Connection(f"beanstalk://:{TOKEN}@{host}:{port}", ssl=ssl_option) as connection:
            assert TOKEN not in connection.as_uri() + repr(connection)
            queue = connection.SimpleQueue("q")
            for number in range(30):
                queue.put(number)
            assert [message.payload for message in consume(connection, "q", 30, prefetch=4)] == list(range(30))
    stranger = kombu.Connection(f"beanstalk://:wrong@{host}:{port}", ssl=ssl_option)
    with stranger, pytest.raises(UnauthorizedError):
        stranger.connect()


WORKER = UserConfig(
    name="worker",
    token_sha256=(hash_of_token(TOKEN),),
    **dict.fromkeys(("produce", "consume", "inspect"), ("shop", "*.celery.pidbox", "celery.pidbox/fanout/*")),
)


def test_a_worker_needs_no_more_rights_than_the_documents_say(run, connect):
    listener = ListenerConfig(address="127.0.0.1:0", auth="token")
    host, port = run(listeners=(listener,), users=(WORKER,)).address
    connection = connect(f"beanstalk://:{TOKEN}@{host}:{port}")
    node = kombu.pidbox.Mailbox("celery", type="fanout").Node("w@h", channel=connection.default_channel)
    node.listen()
    asker = connect(f"beanstalk://:{TOKEN}@{host}:{port}")
    kombu.pidbox.Mailbox("celery", type="fanout")(asker)._broadcast("ping")
    assert connection.SimpleQueue("w@h.celery.pidbox").qsize() == 1
    queue = connection.SimpleQueue("shop")
    queue.put("x")
    assert queue.clear() == 1
    with pytest.raises(ForbiddenError):
        connection.SimpleQueue("bank").put("x")


# What goes wrong


def test_what_the_server_refuses_the_publisher_learns(run, connect):
    queue = connect(run(max_job_size=300)).SimpleQueue("q")
    with pytest.raises(JobTooBigError):
        queue.put("x" * 300)


def test_a_lost_connection_is_an_error_for_those_who_consume_and_the_next_one_goes_on(server, connect):
    connection = connect(server)
    queue = connection.SimpleQueue("q")
    queue.put("x")
    message = queue.get(timeout=60)
    for slot in connection.default_channel.reservations.slots:
        slot.connection._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(connection.connection_errors):
        queue.get(timeout=60)
    with pytest.raises(ConnectionLostError):
        message.ack()
    connection.close()
    again = connection.SimpleQueue("q").get(timeout=60)
    assert again.delivery_info["redelivered"] is True
    with pytest.raises(ConnectionLostError, match="the channel is closed"):
        message.ack()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_forked_neither_uses_nor_keeps_its_parents_connections(server, connect, look):
    connection, client = connect(server), look(server)
    queue = connection.SimpleQueue("q")
    queue.put("x")
    assert queue.get(timeout=60).payload == "x"  # and it is reserved
    before = client.stats()["total-connections"]
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # nothing here may raise, or there are two pytests
        status = 1
        with contextlib.suppress(BaseException):
            os.close(writing)
            queue.put("y")
            status = 0
            os.read(reading, 1)  # it lives on
        os._exit(status)
    try:
        eventually(lambda: client.stats_tube("q")["current-jobs-ready"] == 1, "the child has put something")
        assert client.stats()["total-connections"] == before + 1
        connection.release()
        other = connect(server)
        assert {message.payload for message in consume(other, "q", 2)} == {"x", "y"}
    finally:
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        os.close(reading)
