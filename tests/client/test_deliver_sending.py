"""One attempt, against receivers that misbehave in every way."""

import asyncio
import contextlib
import json
import random
import threading
from ipaddress import ip_network

import pytest
import receivers
from beanstalk_client.deliver import sending
from beanstalk_client.deliver.addresses import Guard
from beanstalk_client.deliver.request import Request
from beanstalk_client.deliver.sending import FailedError, Limits, Names, RequestSender
from beanstalk_client.deliver.signatures import Secrets
from effort import seeded
from receivers import Receiver, response
from standardwebhooks import Webhook

from harness.waiting import WITHIN, eventually_async

LOOPBACK = (ip_network("127.0.0.0/8"),)
QUICK = Limits(timeout=0.5)
SECRET = "whsec_" + "c2VjcmV0" * 4
OTHER = "whsec_" + "b3RoZXIu" * 4


async def names(host, port, family):
    """A name server: whatever ends in .test is here."""
    if not host.endswith(".test"):
        raise OSError(-2, "Name or service not known")
    return ["127.0.0.1"]


@contextlib.asynccontextmanager
async def sending_to(ways=None, *, guard=None, certificate=None, **options):
    """A sender and a receiver, with this certificate (authority and names), while the block lasts."""
    options = {"lookup": names, "limits": Limits(timeout=20)} | options
    async with Receiver(ways, certificate and receivers.server_tls(*certificate)) as receiver:
        sender = RequestSender(guard or Guard(allowed_networks=LOOPBACK), **options)
        try:
            yield sender, receiver
        finally:
            await sender.close()


async def outcome(sender, request):
    """The answer, or why there is none."""
    try:
        return await sender.send(request, "msg_1")
    except FailedError as error:
        return error


async def attempt(way, *, request=None, **options):
    """The answer to one request, or why there is none."""
    async with sending_to({"/": way}, **options) as (sender, receiver):
        found = await outcome(sender, Request(receiver.url(), **(request or {"body": b"hello"})))
    assert not isinstance(found, FailedError) or (found.reason.isprintable() and len(found.reason) < 400)
    return found


# What is sent


async def test_what_is_sent():
    async with sending_to(clock=lambda: 1700000000.9) as (sender, receiver):
        request = Request(
            receiver.url("/a%2Fb?c=%20d"),
            method="PUT",
            headers={"X-Order": "17", "content-type": "text/plain"},
            body="hä",
        )
        answer = await sender.send(request, "msg_1")
        assert (answer.status, answer.retry_after, answer.excerpt) == (200, "", "")
        (asked,) = receiver.asked
        assert (asked.method, asked.target, asked.body) == ("PUT", "/a%2Fb?c=%20d", "hä".encode())
        assert asked.headers == {
            "host": f"127.0.0.1:{receiver.port}",
            "x-order": "17",
            "content-type": "text/plain",
            "content-length": "3",
            "accept": "*/*",
            "accept-encoding": "identity",
            "user-agent": asked.headers["user-agent"],
            "webhook-id": "msg_1",
            "webhook-timestamp": "1700000000",
        }
        assert asked.headers["user-agent"].startswith("beanstalk-deliver/")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "PATCH"])
async def test_methods_without_a_body(method):
    async with sending_to({"/": b"HTTP/1.1 204 No\r\n\r\n"}) as (sender, receiver):
        assert (await sender.send(Request(receiver.url(), method=method), "a")).status == 204
        assert (receiver.asked[0].method, receiver.asked[0].body) == (method, b"")
        assert "content-type" not in receiver.asked[0].headers


async def test_a_job_may_name_its_own_agent():
    async with sending_to() as (sender, receiver):
        await sender.send(Request(receiver.url(), headers={"USER-AGENT": "me", "Accept": "a/b"}), "a")
        assert (receiver.asked[0].headers["user-agent"], receiver.asked[0].headers["accept"]) == ("me", "a/b")


async def test_a_large_body_arrives():
    body = bytes(range(256)) * 20_000

    async with sending_to() as (sender, receiver):
        await sender.send(Request(receiver.url(), body=body), "a")
        assert receiver.asked[0].body == body


async def test_it_is_signed_and_each_attempt_has_its_time():
    moments = iter([1_700_000_000, 1_700_000_060])
    body = json.dumps({"order": "größe"}).encode()

    secrets = Secrets.parse(f"127.0.0.1 {SECRET} {OTHER}")
    async with sending_to(secrets=secrets, clock=lambda: next(moments)) as (sender, receiver):
        for _ in range(2):
            await sender.send(Request(receiver.url(), body=body), "msg_1")
        first, second = (each.headers for each in receiver.asked)
        assert first["webhook-id"] == second["webhook-id"]
        assert [each["webhook-timestamp"] for each in (first, second)] == ["1700000000", "1700000060"]
        assert first["webhook-signature"] != second["webhook-signature"]
        from datetime import UTC, datetime

        for fields in (first, second):
            moment = datetime.fromtimestamp(int(fields["webhook-timestamp"]), UTC)
            assert fields["webhook-signature"] == " ".join(
                Webhook(each).sign("msg_1", moment, body.decode()) for each in (SECRET, OTHER)
            )


async def test_connections_are_kept_and_one_that_was_closed_meanwhile_is_no_failure():
    async def closing(asked, writer):
        writer.write(response())
        await writer.drain()
        if asked.target == "/?last":
            asked.writer = writer

    async def late(asked, writer):
        if len(late.seen) == 0:
            late.seen.append(asked)
            return True
        writer.write(response())
        await writer.drain()
        return False

    late.seen = []
    async with sending_to({"/": closing}) as (sender, receiver):
        for _ in range(3):
            assert (await sender.send(Request(receiver.url("/"), body="x"), "a")).status == 200
        assert receiver.connections == 1
        receiver.ways["/late"] = late
        assert (await sender.send(Request(receiver.url("/late"), body="x"), "a")).status == 200
        assert receiver.connections == 2 and receiver.targets() == ["/"] * 3 + ["/late"] * 2


@pytest.mark.parametrize("stray", [response(202), b"HTTP/1.1 202 Accepted\r\n", b"\r\n", b"x"])
async def test_what_comes_while_no_response_is_awaited_closes_the_connection(stray, monkeypatch):
    monkeypatch.setattr(sending, "KEEP_ALIVE", 1000.0)
    writers = []

    async def keep(asked, writer):
        writers.append(writer)
        writer.write(response())
        await writer.drain()

    async with sending_to({"/": keep}) as (sender, receiver):
        assert (await sender.send(Request(receiver.url("/"), body="x"), "a")).status == 200
        writers[0].write(stray)
        await eventually_async(writers[0].is_closing, "the connection is closed")
        assert (await sender.send(Request(receiver.url("/"), body="y"), "b")).status == 200
        assert [asked.body for asked in receiver.asked] == [b"x", b"y"]


# What is answered


@pytest.mark.parametrize("status", [200, 204, 302, 400, 410, 429, 500, 503, 999])
async def test_the_status_decides(status):
    answer = await attempt(response(status, b"" if status == 204 else b"why\n\x1b[31m not", Retry_After="7"))
    assert (answer.status, answer.retry_after) == (status, "7")
    assert answer.excerpt == ("" if status < 300 else r"why\n\x1b[31m not")


@pytest.mark.parametrize(
    ("way", "status"),
    [
        (receivers.endless_body, 200),
        (receivers.endless_chunks, 500),
        (receivers.then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"), 200),
        (receivers.then_reset(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort"), 200),
        (receivers.then_close(b"HTTP/1.0 200\r\n\r\nno length"), 200),
        (receivers.then_close(b"HTTP/1.1 503 \r\n\r\n"), 503),
        (response(200, receivers.BOMB, Content_Encoding="gzip"), 200),
        (response(500, receivers.BOMB, Content_Encoding="gzip"), 500),
        (response(200, b"no gzip", Content_Encoding="gzip"), 200),
        (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 500),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n", 200),
        (b"HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nlonger than that", 202),
        (b"HTTP/1.1 201 OK\nTransfer-Encoding: chunked\n\nzz\n", 201),
        (b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 410 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 410),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nlonger than that", 200),
        (b"HTTP/1.1 204 No\r\n\r\na body that may not be", 204),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 abc OK\r\n\r\n", 200),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", 101),
        (b"HTTP/1.1 103 Early\r\n\r\n" * 20 + response(), 200),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + response(404), 404),
        (response(200, b"x", Set_Cookie="a=b; Domain=example.com", Content_Type="\xff/\xff; charset=nonsense"), 200),
    ],
)
async def test_what_comes_behind_the_status_does_not_count(way, status):
    answer = await attempt(way)
    assert answer.status == status and len(answer.excerpt) <= 500


async def test_what_is_wrong_behind_the_status_costs_the_connection():
    async with sending_to({"/": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) as (sender, receiver):
        for _ in range(3):
            assert (await sender.send(Request(receiver.url("/"), body=b"hello"), "msg_1")).status == 200
        assert receiver.connections == 3


async def test_no_more_is_read_than_is_allowed(monkeypatch):
    read = []
    original = RequestSender._read

    async def reading(self, answer):
        content = await original(self, answer)
        read.append(len(content))
        return content

    monkeypatch.setattr(RequestSender, "_read", reading)
    assert (await attempt(receivers.endless_body, limits=Limits(timeout=20, response=1000))).status == 200
    assert (await attempt(response(500, receivers.BOMB, Content_Encoding="gzip"))).status == 500
    assert read == [1000, 65_536]


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("beanstalk_client.deliver.sending.BODY_WITHIN", 0.02)
    assert (await attempt(receivers.silent_body)).status == 200


@pytest.mark.parametrize(
    ("way", "kind", "said"),
    [
        (receivers.never, "timeout", " within 0.5 s"),
        (receivers.drip, "timeout", " within 0.5 s"),
        (receivers.endless_interim, "protocol", "more than 20 interim responses"),
        (receivers.endless_headers, "protocol", "the response is not HTTP"),
        (receivers.endless_header, "protocol", "the response is not HTTP"),
        (receivers.endless_status_line, "protocol", "the response is not HTTP"),
        (receivers.close, "connect", "closed before a response"),
        (receivers.reset, "connect", "connection lost"),
        (receivers.then_close(b"HTTP/1.1 20"), "connect", "closed before a response"),
        (receivers.then_close(b"HTTP/1.1 200 OK\r\nX: y\r\n"), "connect", "closed before a response"),
        (receivers.then_reset(b"HTTP/1.1 200 OK\r\nX: y\r\n"), "connect", "connection lost"),
        (receivers.then_close(b"SSH-2.0-OpenSSH_9.6\r\n"), "protocol", "the response is not HTTP"),
        (receivers.then_close(b"\x00\x01\xff\x1b[31m\r\n\r\n"), "protocol", "the response is not HTTP"),
        (receivers.then_close(b"HTTP/1.1 abc OK\r\n\r\n"), "protocol", "the response is not HTTP"),
        (receivers.then_close(b"HTTP/1.1 20000 OK\r\n\r\n"), "protocol", "the response is not HTTP"),
        (receivers.then_close(b"HTTP/9.9 200 OK\r\n\r\n"), "protocol", "the response is not HTTP"),
        (
            receivers.then_close(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
            "protocol",
            "the response is not HTTP",
        ),
        (
            receivers.then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
            "protocol",
            "not HTTP",
        ),
        (receivers.then_close(b"HTTP/1.1 200 OK\r\nb\x00d: y\r\n\r\n"), "protocol", "the response is not HTTP"),
    ],
)
async def test_what_is_no_answer_is_a_failure_with_its_reason(way, kind, said):
    limits = QUICK if kind == "timeout" else Limits(timeout=20)
    failure = await attempt(way, limits=limits)
    assert isinstance(failure, FailedError), failure.status
    assert failure.kind == kind and said in failure.reason, failure.reason


async def test_a_job_may_ask_for_less_time_and_not_for_more():
    assert (await attempt(receivers.never, request={"timeout": 0.01})).reason.endswith(" within 0.01 s")
    assert (await attempt(receivers.never, request={"timeout": 99}, limits=QUICK)).reason.endswith(" within 0.5 s")


async def test_nobody_listens():
    async with sending_to() as (sender, _receiver):
        with pytest.raises(FailedError, match="cannot connect: ") as failed:
            await sender.send(Request("http://127.0.0.1:1/"), "a")
        assert failed.value.kind == "connect"


async def test_connections_that_are_never_made_end_in_time():
    async def lookup(host, port, family):
        await asyncio.Event().wait()

    async with sending_to(lookup=lookup, limits=Limits(timeout=20, connect_timeout=0.05)) as (sender, receiver):
        with pytest.raises(FailedError, match=r"no connection within 0\.05 s") as failed:
            await sender.send(Request(receiver.url(host="a.test")), "a")
        assert failed.value.kind == "timeout"


class NameServer(asyncio.DatagramProtocol):
    """Says that whatever is asked for is here, but for names that begin with slow, of which it says nothing."""

    def __init__(self):
        self.asked = set()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.asked.add(data[13 : 13 + data[12]].decode())
        if data[13:17] != b"slow":
            question = data[12 : data.index(0, 12) + 5]
            found = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\1" if question[-4:-2] == b"\0\1" else b""
            counts = b"\0\1\0" + bytes([bool(found)]) + b"\0\0\0\0"
            self.transport.sendto(data[:2] + b"\x81\x80" + counts + question + found, address)


async def test_names_whose_servers_are_silent_hold_up_no_others():
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    async with Receiver() as receiver:
        names = Names(nameservers=["127.0.0.1"], udp_port=port, tcp_port=port)
        sender = RequestSender(Guard(allowed_networks=LOOPBACK), lookup=names, limits=Limits(timeout=WITHIN))
        slow = [
            asyncio.create_task(outcome(sender, Request(receiver.url(host=f"slow{number}.test"))))
            for number in range(200)
        ]
        await eventually_async(lambda: len(server.asked) == len(slow), "all slow names to be asked for")
        threads = threading.active_count()
        assert (await sender.send(Request(receiver.url(host="quick.test")), "a")).status == 200
        assert threads < 20
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        await sender.close()
    transport.close()


@pytest.mark.parametrize("options", [{}, {"lookup": None}])  # None: the system's own, which may be without a network
async def test_a_name_that_does_not_exist(options):
    async with sending_to(**options) as (sender, _):
        failure = await outcome(sender, Request("http://nowhere.invalid/"))
        assert failure.kind == "dns" and "cannot resolve the host name: " in failure.reason


@pytest.mark.parametrize(
    "host", ["xn--a", "xn--zzzzzz-.test", "a" * 63 + ".test", "-".join("a" * 30) + ".invalid", "1.x"]
)
async def test_whatever_the_host_is_called_it_is_a_failure(host):
    async with sending_to(lookup=None) as (sender, _receiver):
        assert (await outcome(sender, Request(f"http://{host}/"))).kind in ("dns", "protocol", "forbidden")


@pytest.mark.parametrize("error", [UnicodeError("label empty or too long"), ValueError("x"), OSError("y")])
async def test_whatever_a_resolver_raises_it_is_a_failure(error):
    async def lookup(host, port, family):
        raise error

    async with sending_to(lookup=lookup) as (sender, receiver):
        assert isinstance(await outcome(sender, Request(receiver.url(host="a.test"))), FailedError)


@seeded(5)
async def test_whatever_is_answered_it_is_an_answer_or_a_failure(seed):
    """Answers that were good, with bytes of them changed, left out and said twice."""
    chance = random.Random(seed)
    good = (
        response(503, b"why", Retry_After="7", Location="/x", Content_Encoding="gzip"),
        b"HTTP/1.1 307 Go\r\nLocation: /y\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\na: b\r\n\r\n",
        b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\nHTTP/1.0 200 OK\r\nSet-Cookie: a=b; Path=/\r\n\r\nbody",
    )

    async def bad(asked, writer):
        answer = bytearray(chance.choice(good))
        for _ in range(chance.randrange(6)):
            begin = chance.randrange(len(answer))
            end = begin + chance.randrange(8)
            answer[begin:end] = chance.choice(
                [b"", bytes([chance.randrange(256)]), answer[begin:end] * 2, b"\r\n", b"9" * 9]
            )
        writer.write(bytes(answer))
        await writer.drain()
        return True

    async with sending_to() as (sender, receiver):
        for path in ("/", "/x", "/y"):
            receiver.ways[path] = bad
        for number in range(40):
            found = await outcome(sender, Request(receiver.url(), json=number))
            if isinstance(found, FailedError):
                assert found.reason.isprintable() and found.kind in ("protocol", "connect", "redirect", "forbidden")
            else:
                assert 100 <= found.status <= 999 and (found.excerpt.isprintable())


# TLS


@pytest.fixture(scope="module")
def certificates():
    return receivers.authority()


@pytest.mark.parametrize(("host", "is_trusted"), [("good.test", True), ("other.test", True), ("good.test", False)])
async def test_a_certificate_is_verified_and_so_is_its_name(certificates, host, is_trusted):
    trust = receivers.client_tls(certificates) if is_trusted else None
    async with sending_to(certificate=(certificates, host), tls=trust) as (sender, receiver):
        found = await outcome(sender, Request(receiver.url(host="good.test")))
    if host == "good.test" and is_trusted:
        assert found.status == 200
    else:
        assert found.kind == "tls" and "certificate verification failed" in found.reason


async def test_what_speaks_no_tls():
    async def plain(_, writer):
        writer.write(b"HTTP/1.1 400 speak plainly\r\n\r\n")
        await writer.drain()

    async with sending_to({"connection": plain}) as (sender, receiver):
        with pytest.raises(FailedError) as failed:
            await sender.send(Request(receiver.url().replace("http:", "https:")), "a")
        assert failed.value.kind in ("tls", "connect"), failed.value.reason


# Redirects


def leads_to(url, status=302):
    return response(status, Location=url)


async def test_a_redirect_keeps_method_and_body():
    async with sending_to() as (sender, receiver):
        for status in (301, 302, 307, 308):
            receiver.asked.clear()
            receiver.ways["/a"] = leads_to("b?c", status)
            assert (await sender.send(Request(receiver.url("/a"), body="x", headers={"X-Key": "k"}), "m")).status == 200
            assert [(each.method, each.target, each.body) for each in receiver.asked] == [
                ("POST", "/a", b"x"),
                ("POST", "/b?c", b"x"),
            ]
            assert receiver.asked[1].headers["x-key"] == "k"  # it is the same origin


async def test_see_other_is_asked_for_without_the_body():
    async with sending_to({"/a": leads_to("/b", 303)}) as (sender, receiver):
        request = Request(receiver.url("/a"), body="x", headers={"Content-Type": "text/plain", "X-Key": "k"})
        assert (await sender.send(request, "m")).status == 200
        asked = receiver.asked[1]
        assert (asked.method, asked.target, asked.body) == ("GET", "/b", b"")
        assert "content-type" not in asked.headers and asked.headers["x-key"] == "k"
        assert (await sender.send(Request(receiver.url("/a"), method="HEAD"), "m")).status == 200
        assert receiver.asked[3].method == "HEAD"


async def test_another_origin_learns_no_credentials_and_gets_its_own_signature():
    async with sending_to(secrets=Secrets.parse(f"one.test {SECRET}\ntwo.test {OTHER}")) as (sender, receiver):
        request = Request(
            receiver.url("/a", "one.test"),
            json={"a": 1},
            headers={"Authorization": "Bearer hunter2", "Cookie": "c", "X-Api-Key": "k", "Accept": "a/b"},
        )
        receiver.ways["/a"] = leads_to(receiver.url("/b", "two.test"))
        assert (await sender.send(request, "msg_1")).status == 200
        first, second = (each.headers for each in receiver.asked)
        assert first["authorization"] == "Bearer hunter2"
        assert not {"authorization", "cookie", "x-api-key"} & set(second)
        assert (second["accept"], second["content-type"]) == ("a/b", "application/json")
        assert receiver.asked[1].body == b'{"a":1}'
        assert first["webhook-id"] == second["webhook-id"] == "msg_1"
        assert Webhook(SECRET).verify(b'{"a":1}', first) == Webhook(OTHER).verify(b'{"a":1}', second) == {"a": 1}
        receiver.ways["/a"] = leads_to(receiver.url("/b", "three.test"))
        await sender.send(request, "msg_1")
        assert "webhook-signature" not in receiver.asked[-1].headers


@pytest.mark.parametrize("location", ["/a/../b/stolen", "/a/%2e%2e/b/stolen", "../b/stolen", "/a/.%2E/b/stolen"])
async def test_a_redirect_is_signed_with_the_secret_of_where_it_leads(location):
    secrets = Secrets.parse(f"127.0.0.1/a/* {SECRET}\n127.0.0.1/b/* {OTHER}")
    async with sending_to(secrets=secrets) as (sender, receiver):
        receiver.ways["/b/x"] = leads_to(receiver.url(location) if location[0] == "/" else location, 307)
        assert (await sender.send(Request(receiver.url("/b/x"), body="17"), "m")).status == 200
        assert receiver.asked[1].target == "/b/stolen"
        assert Webhook(OTHER).verify(b"17", receiver.asked[1].headers) == 17


@pytest.mark.parametrize(
    ("location", "kind", "said"),
    [
        ("/a/..%2fb", "redirect", "refused: "),
        ("/a", "redirect", "more than 3 redirects"),
        ("file:///etc/passwd", "redirect", "refused: "),
        ("gopher://example.com/", "redirect", "refused: "),
        ("http://2130706433/", "redirect", "refused: "),
        ("http://0x7f.1/", "redirect", "refused: "),
        ("http://user:password@example.com/", "redirect", "refused: "),
        ("http://[::1", "redirect", "refused: "),
        ("http://example.com/\x7f", "redirect", "refused: "),
        ("\xff\xfe", "redirect", "refused: "),
        ("http://10.0.0.1/", "forbidden", "redirect to 10.0.0.1: address 10.0.0.1 is forbidden"),
        ("http://[::1]/", "forbidden", "address ::1 is forbidden"),
        ("http://[::ffff:169.254.169.254]/", "forbidden", "address 169.254.169.254 is forbidden"),
        ("http://secret.test/", "forbidden", "host secret.test is forbidden"),
        ("http://metadata.test/", "forbidden", "address 169.254.169.254 is forbidden"),
        ("http://127.0.0.1:22/", "forbidden", "port 22 is not allowed"),
    ],
)
async def test_redirects_that_are_not_followed(location, kind, said):
    async def lookup(host, port, family):
        return ["169.254.169.254"]

    guard = Guard(allowed_networks=LOOPBACK, forbidden_hosts=["secret.test"])
    async with sending_to({"/a": leads_to(location, 307)}, guard=guard, lookup=lookup) as (sender, receiver):
        sender._guard.allowed_ports = frozenset([80, receiver.port])
        with pytest.raises(FailedError, match=said.replace("[", r"\[")) as failed:
            await sender.send(Request(receiver.url("/a"), body="x"), "a")
        assert failed.value.kind == kind
        assert set(receiver.targets()) == {"/a"}
        assert "password" not in failed.value.reason or "user or password" in failed.value.reason


@pytest.mark.parametrize("most", [0, 1, 2])
async def test_how_many_redirects_are_followed_is_a_setting(most):
    ways = {"/a": leads_to("/b"), "/b": leads_to("/c")}
    async with sending_to(ways, limits=Limits(redirects=most)) as (sender, receiver):
        found = await outcome(sender, Request(receiver.url("/a")))
        assert found.status == 200 if most == 2 else found.reason == f"more than {most} redirects"


async def test_a_redirect_without_a_place_is_an_answer():
    assert (await attempt(response(302))).status == 302
    assert (await attempt(response(304, Location="/x"))).status == 304


async def test_all_redirects_together_have_one_time():
    async def slow(asked, writer):
        await asyncio.sleep(0.02)
        writer.write(leads_to("/"))
        await writer.drain()

    failure = await attempt(slow, limits=Limits(timeout=0.1, redirects=1000))
    assert failure.reason.endswith(" within 0.1 s")


async def test_never_from_https_to_http(certificates):
    options = {"certificate": (certificates, "good.test"), "tls": receivers.client_tls(certificates)}
    async with sending_to({"/a": leads_to("http://good.test/")}, **options) as (sender, receiver):
        found = await outcome(sender, Request(receiver.url("/a", "good.test")))
        assert "from https to http" in found.reason


# The guard


@pytest.mark.parametrize(
    ("host", "options"),
    [("127.0.0.1", {}), ("a.test", {}), ("localhost", {"lookup": None})],  # None: the system's own
)
async def test_loopback_is_forbidden_unless_it_is_opened(host, options):
    async with sending_to(guard=Guard(), **options) as (sender, receiver):
        failure = await outcome(sender, Request(receiver.url(host=host)))
        assert failure.kind == "forbidden" and "is forbidden" in failure.reason and receiver.connections == 0


async def test_a_name_whose_address_changes_between_two_questions_is_judged_by_what_is_connected_to(monkeypatch):
    """Rebinding: each answer of the name server is judged, and so is the very socket."""
    answers = []

    async def lookup(host, port, family):
        return answers.pop(0)

    monkeypatch.setattr("beanstalk_client.deliver.sending.DNS_CACHE", 0)

    async with sending_to(guard=Guard(), lookup=lookup) as (sender, receiver):
        asked = []

        def make(info):
            asked.append(info[4][0])
            raise OSError(101, "Network is unreachable")

        sender._direct.connector._socket_factory = make
        for found in (["93.184.215.14"], ["127.0.0.1"], ["127.0.0.1", "93.184.215.14"], ["::1", "::ffff:127.0.0.1"]):
            answers.append(found)
            failure = await outcome(sender, Request(receiver.url(host="rebinding.test")))
            assert failure.kind == ("connect" if "93.184.215.14" in found else "forbidden")
        assert asked == ["93.184.215.14"] * 2 and receiver.connections == 0 and not answers


async def test_a_socket_is_refused_even_if_a_resolver_is_fooled():
    async with sending_to(guard=Guard()) as (sender, receiver):

        async def fooled(host, port=0, family=0):
            return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": 2, "proto": 6, "flags": 0}]

        sender._resolver.resolve = fooled
        with pytest.raises(FailedError, match=r"address 127\.0\.0\.1 is forbidden") as failed:
            await sender.send(Request(receiver.url(host="a.test")), "a")
        assert failed.value.kind == "forbidden" and receiver.connections == 0


async def test_of_several_addresses_only_those_that_are_allowed_are_tried():
    async def lookup(host, port, family):
        return ["10.0.0.1", "::1", "127.0.0.1"]

    async with sending_to(lookup=lookup) as (sender, receiver):
        assert (await sender.send(Request(receiver.url(host="many.test")), "a")).status == 200


# Proxies


async def test_proxies_of_the_environment_are_used_only_if_that_is_asked_for(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async with sending_to() as (sender, receiver):
        monkeypatch.setenv("HTTP_PROXY", receiver.url())
        monkeypatch.setenv("http_proxy", receiver.url())
        monkeypatch.setenv("no_proxy", "direct.test")
        assert (await sender.send(Request(receiver.url("/a", "one.test")), "a")).status == 200
        proxied = RequestSender(Guard(), lookup=names, proxies_of_environment=True)
        try:
            assert (await proxied.send(Request("http://two.example/b"), "a")).status == 200
            with pytest.raises(FailedError, match="is forbidden"):
                await proxied.send(Request(receiver.url("/c", "direct.test")), "a")
            with pytest.raises(FailedError, match="is forbidden"):
                await proxied.send(Request("http://10.0.0.1/d"), "a")
        finally:
            await proxied.close()
        assert receiver.targets() == ["/a", "http://two.example/b"]
