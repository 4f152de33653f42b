"""Deliveries from a real server to receivers that misbehave: each job is delivered or buried with the reason."""

import asyncio
import collections
import contextlib
import json
import os
import signal
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest
import receivers
from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.deliver.addresses import Guard
from beanstalk_client.deliver.request import Request
from beanstalk_client.deliver.sending import Limits, RequestSender
from beanstalk_client.deliver.serving import Deliverer
from beanstalk_client.deliver.slots import DeliverySlots
from beanstalk_client.deliver.verdicts import Rules
from receivers import Receiver, response

from harness import servers
from harness.waiting import eventually_asked

ROOT = Path(__file__).parents[2]
TUBE = "webhooks"
LOOPBACK = (ip_network("127.0.0.0/8"),)
RULES = Rules(tries=3, backoff=0.01, backoff_max=0.05, retry_after_max=0.05)


@pytest.fixture
def server(run):
    return run().address


async def lookup(host, port, family):
    """Every name is here: hosts that are many, on one machine."""
    if host.startswith("nowhere"):
        raise OSError(-2, "Name or service not known")
    return ["127.0.0.1"]


@contextlib.asynccontextmanager
async def delivering(address, *, at_once=50, per_host=10, waiting=100, limits=None, rules=RULES, tls=None, guard=None):
    """A sender that runs while the block does."""

    def make_sender():
        return RequestSender(
            guard or Guard(allowed_networks=LOOPBACK), limits=limits or Limits(timeout=20), lookup=lookup, tls=tls
        )

    slots = DeliverySlots(at_once, per_host, waiting)
    deliverer = Deliverer(lambda: AsyncClient(address, encoding=None), [TUBE], make_sender, slots, rules, grace=20)
    running = asyncio.ensure_future(deliverer.run())
    try:
        yield deliverer
    finally:
        if not running.done():
            deliverer.stop()
        await running


async def is_done(queue, count=0):
    """Whether no job of the tube is left to be sent, and this many are buried."""
    found = await queue.stats_tube(TUBE)
    left = sum(found[f"current-jobs-{each}"] for each in ("ready", "reserved", "delayed", "urgent"))
    return left == 0 and found["current-jobs-buried"] == count


async def reports(queue):
    """The reports of buried jobs, by job."""
    await queue.watch(TUBE + ".errors")
    found = {}
    for _ in range((await queue.stats_tube(TUBE + ".errors"))["current-jobs-ready"]):
        job = await queue.reserve(0)
        report = json.loads(job.body)
        assert report["job"] not in found
        found[report["job"]] = report
        await queue.delete(job)
    return found


WAYS = {
    "/good": (response(), ""),
    "/redirect": (response(307, Location="/good"), ""),
    "/gone": (response(410), "status 410"),
    "/error": (response(500, b"out of order"), "status 500 (try 3 of 3)"),
    "/busy": (response(429, Retry_After="99999999999999999999"), "status 429 (try 3 of 3)"),
    "/never": (receivers.never, " within 0.3 s (try 3 of 3)"),
    "/close": (receivers.close, "closed before a response (try 3 of 3)"),
    "/loop": (response(302, Location="/loop"), "more than 3 redirects (try 3 of 3)"),
    "/inside": (
        response(302, Location="http://10.0.0.1/"),
        "address 10.0.0.1 is forbidden; --allow-net 10.0.0.1 allows it (try 3 of 3)",
    ),
}


async def test_each_is_delivered_or_buried_with_the_reason_and_none_is_lost(server):
    """Five of each way, each way on a host of its own, and no way disturbs another."""
    five = range(5)

    ways = {path: way for path, (way, _) in WAYS.items()}
    async with Receiver(ways) as receiver, AsyncClient(server, encoding=None, use=TUBE) as queue:
        expected = {}
        for path, (_, reason) in WAYS.items():
            for number in five:
                url = receiver.url(path, f"{path[1:]}.test")
                quick = path == "/never"
                job = Request(url, json=number, id=f"{path[1:]}-{number}", timeout=0.3 if quick else None)
                expected[await queue.put(job.to_body())] = (f"{path[1:]}-{number}", reason)
        for number in five:
            url = f"http://nowhere-{number}.test/"
            expected[await queue.put(Request(url, id=f"no-{number}").to_body())] = ("", "cannot resolve the host name")
            url = f"http://127.0.0.1:{servers.unused_port()}/"
            expected[await queue.put(Request(url, id=f"nobody-{number}").to_body())] = ("", "cannot connect")
            expected[await queue.put(b"nonsense %d" % number)] = ("", "the body is not JSON")
            expected[await queue.put(b'{"url": "http://0x7f.1/"}')] = ("", "dotted decimal")
        buried = [job for job, (_, reason) in expected.items() if reason]
        async with delivering(server, limits=Limits(timeout=20)):
            await eventually_asked(lambda: is_done(queue, len(buried)), "all are delivered or buried", 60)
        found = await reports(queue)
        assert sorted(found) == sorted(buried)
        for job, report in found.items():
            assert expected[job][1] in report["error"], report
        asked = collections.Counter(each.headers["webhook-id"] for each in receiver.asked)
        for name, reason in expected.values():
            if name and not reason:
                assert asked[name] == (2 if name.startswith("redirect") else 1), name
            elif name.startswith("loop"):
                assert asked[name] == 3 * 4
            elif name.startswith("never"):
                assert asked[name] <= 3, name  # on a busy machine, there may be no connection within that time
            elif name:
                assert asked[name] == (1 if name.startswith("gone") else 3), name


async def test_a_slow_host_holds_up_no_other(server, monkeypatch):
    monkeypatch.setattr("beanstalk_client.deliver.slots.LONGEST", 0.2)

    go_on = asyncio.Event()
    now = most = 0

    async def slow(asked, writer):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await go_on.wait()
        now -= 1
        writer.write(response())
        await writer.drain()

    async with (
        Receiver({"/slow": slow}) as receiver,
        AsyncClient(server, encoding=None, use=TUBE) as queue,
        delivering(server, at_once=10, per_host=2, waiting=8, limits=Limits(timeout=300)),
    ):
        for number in range(100):
            await queue.put(Request(receiver.url("/slow", "slow.test"), id=f"slow-{number}").to_body())
        for number in range(100):
            await queue.put(Request(receiver.url("/good", "good.test"), id=f"good-{number}").to_body())

        async def others_are_done():
            return receiver.targets().count("/good") == 100

        await eventually_asked(others_are_done, "the other host has got all of its own")
        assert (now, most) == (2, 2)
        go_on.set()
        await eventually_asked(lambda: is_done(queue), "the slow host has got all of its own")
        asked = collections.Counter(each.headers["webhook-id"] for each in receiver.asked)
        assert len(asked) == 200 and set(asked.values()) == {1} and most == 2


async def test_beanstalkd_will_do(beanstalkd):
    async with (
        Receiver({"/gone": response(410)}) as receiver,
        AsyncClient(beanstalkd.address, encoding=None, use=TUBE) as queue,
        delivering(beanstalkd.address),
    ):
        for number in range(10):
            await queue.put(Request(receiver.url(f"/{number}")).to_body())
        gone = await queue.put(Request(receiver.url("/gone")).to_body())
        await eventually_asked(lambda: is_done(queue, 1), "they are delivered")
        assert sorted(receiver.targets()) == sorted([f"/{number}" for number in range(10)] + ["/gone"])
        assert (await reports(queue))[gone]["error"] == "127.0.0.1: status 410"


# The program


@contextlib.asynccontextmanager
async def program(address, *options):
    """`beanstalk-deliver` as a process, which is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "beanstalk_client.deliver", "--tube", TUBE),
        *("--server", f"{address[0]}:{address[1]}", "--allow-net", "127.0.0.0/8", *options),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "client"), str(ROOT)])},
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    process.lines = []

    async def read():
        async for line in process.stderr:
            process.lines.append(line.decode())

    reading = asyncio.ensure_future(read())
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


async def test_told_to_stop_it_lets_requests_end_and_gives_the_others_back(server):
    go_on = asyncio.Event()

    async def slow(asked, writer):
        await go_on.wait()
        writer.write(response())
        await writer.drain()

    async with Receiver({"/": slow}) as receiver, AsyncClient(server, encoding=None, use=TUBE) as queue:
        for _ in range(5):
            await queue.put(Request(receiver.url()).to_body())

        async def all_are_taken():
            return receiver.now == 2 and (await queue.stats_tube(TUBE))["current-jobs-reserved"] == 5

        async def others_are_back():
            return (await queue.stats_tube(TUBE))["current-jobs-ready"] == 3

        async with program(server, "--per-host", "2", "--waiting", "100") as process:
            await eventually_asked(all_are_taken, "two requests are on their way")
            process.send_signal(signal.SIGTERM)
            await eventually_asked(others_are_back, "those that wait are given back")
            go_on.set()
            assert await process.wait() == 0
        assert (await queue.stats_tube(TUBE))["current-jobs-reserved"] == 0
        assert (await queue.stats_tube(TUBE))["current-jobs-ready"] == 3
        assert len(receiver.asked) == 2


async def test_told_twice_it_cuts_requests_off_and_they_come_again_with_their_id(server):
    async with Receiver({"/": receivers.never}) as receiver, AsyncClient(server, encoding=None, use=TUBE) as queue:
        await queue.put(Request(receiver.url(), id="order-17").to_body())

        async def is_asked():
            return receiver.now == 1

        async with program(server, "--log-format", "json") as process:
            await eventually_asked(is_asked, "a request is on its way")
            process.send_signal(signal.SIGTERM)
            await eventually_asked(lambda: said(process, "deliverer-stopping"), "it has heard the first")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        events = [json.loads(line)["event"] for line in process.lines]
        assert " to public addresses and to 127.0.0.0/8" in json.loads(process.lines[0])["message"]
        assert events == [
            "deliverer-started",
            "deliverer-stopping",
            "deliverer-grace-over",
            "delivery-cut-off",
            "deliverer-stopped",
        ]
        assert (await queue.stats_tube(TUBE))["current-jobs-ready"] == 1
        receiver.ways.clear()
        async with program(server, "--log-format", "json") as process:
            await eventually_asked(lambda: is_done(queue), "it is delivered")
            await eventually_asked(lambda: said(process, "delivered"), "the delivery is logged")
        assert [each.headers["webhook-id"] for each in receiver.asked] == ["order-17"] * 2
        (line,) = [json.loads(each) for each in process.lines if '"delivered"' in each]
        assert (line["job"], line["tube"], line["status"], line["host"]) == (1, TUBE, 200, "127.0.0.1")


async def said(process, event):
    return any(event in line for line in process.lines)


async def test_killed_in_the_middle_each_is_delivered_at_least_once(server):
    chaos = asyncio.Event()

    async def slow(asked, writer):
        if len(receiver.asked) > 50:
            chaos.set()
        await asyncio.sleep(0.002)
        writer.write(response())
        await writer.drain()

    async with Receiver({"/": slow}) as receiver, AsyncClient(server, encoding=None, use=TUBE) as queue:
        for number in range(150):
            await queue.put(Request(receiver.url("/"), id=f"n-{number}").to_body())
        async with program(server) as process:
            await asyncio.wait_for(chaos.wait(), 60)
            process.kill()
            await process.wait()
        async with program(server):
            await eventually_asked(lambda: is_done(queue), "all are delivered")
        asked = collections.Counter(each.headers["webhook-id"] for each in receiver.asked)
        assert len(asked) == 150
        assert sum(number > 1 for number in asked.values()) <= 60  # those that it had in hand


async def test_secrets_are_read_anew_on_sighup_and_bad_ones_are_refused(server, tmp_path):
    from standardwebhooks import Webhook, WebhookVerificationError

    old, new = "whsec_" + "b2xk" * 8, "whsec_" + "bmV3" * 8
    path = tmp_path / "secrets"
    path.write_text(f"* {old}\n")

    def verifies(secret, asked):
        try:
            Webhook(secret).verify(asked.body, asked.headers)
        except WebhookVerificationError:
            return False
        return True

    async with Receiver() as receiver, AsyncClient(server, encoding=None, use=TUBE) as queue:

        async def send():
            await queue.put(Request(receiver.url(), json={}).to_body())
            await eventually_asked(lambda: is_done(queue), "it is delivered")
            return receiver.asked[-1]

        async with program(server, "--secrets", str(path), "--log-format", "json") as process:
            asked = await send()
            assert verifies(old, asked) and not verifies(new, asked)
            path.write_text("* hunter2\n")
            process.send_signal(signal.SIGHUP)
            await eventually_asked(lambda: said(process, "secrets-refused"), "the bad file is refused")
            assert verifies(old, await send())
            path.write_text(f"* {new} {old}\n")
            process.send_signal(signal.SIGHUP)
            await eventually_asked(lambda: said(process, "secrets-read"), "the new file is read")
            asked = await send()
            assert verifies(old, asked) and verifies(new, asked)
        assert not any("hunter2" in line or old in line or new in line for line in process.lines)


async def test_a_tube_that_is_not_there_is_warned_of(server, caplog):
    async def is_watched(queue):
        return TUBE in await queue.tubes()

    async with AsyncClient(server, encoding=None) as queue, delivering(server):
        await eventually_asked(lambda: is_watched(queue), "it has started")
    told = [record for record in caplog.records if getattr(record, "event", "") == "tube-missing"]
    assert [(record.tube, record.levelname) for record in told] == [(TUBE, "WARNING")]
