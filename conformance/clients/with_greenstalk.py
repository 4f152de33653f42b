"""greenstalk (Python): every public method and every exception that a server can bring about."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import greenstalk
import pytest


def produce_and_work(address: tuple[str, int]) -> None:
    """Jobs come best first and on time, and nothing is left."""
    with (
        greenstalk.Client(address, use="mails") as producer,
        greenstalk.Client(address, watch=["mails", "other"]) as worker,
    ):
        assert producer.using() == "mails"
        assert sorted(worker.watching()) == ["mails", "other"]
        began = time.monotonic()
        late = producer.put("late", delay=1)
        second = producer.put("second", priority=20)
        first = producer.put("first", priority=10)
        assert producer.peek_ready().id == first
        assert producer.peek_delayed().id == late
        assert producer.peek(second).body == "second"
        done: list[tuple[int, str]] = []
        while len(done) < 3:
            job = worker.reserve(timeout=10)
            done.append((job.id, job.body))
            worker.delete(job)
        assert done == [(first, "first"), (second, "second"), (late, "late")]
        assert time.monotonic() - began >= 0.99
        with pytest.raises(greenstalk.TimedOutError):
            worker.reserve(timeout=0)
        assert producer.stats_tube("mails")["total-jobs"] == 3


def bury_and_kick(address: tuple[str, int]) -> None:
    with greenstalk.Client(address) as client:
        first, second = client.put("first"), client.put("second")
        for _ in range(2):
            job = client.reserve()
            client.bury(job, priority=7)
        assert client.peek_buried().id == first
        assert client.kick(1) == 1
        client.kick_job(second)
        assert client.stats_job(first)["kicks"] == 1
        assert client.stats_job(second)["pri"] == 7
        job = client.reserve_job(second)
        client.release(job, priority=1, delay=100)
        assert client.stats_job(job)["state"] == "delayed"
        assert client.kick(10) == 1
        client.delete(first)
        client.delete(second)
        with pytest.raises(greenstalk.NotFoundError):
            client.delete(first)


def let_a_ttr_run_out(address: tuple[str, int]) -> None:
    """The worker is warned, may go on with a touch, and loses the job if it does nothing."""
    with greenstalk.Client(address) as slow, greenstalk.Client(address) as quick:
        number = slow.put("work", ttr=2)
        job = slow.reserve()
        with pytest.raises(greenstalk.DeadlineSoonError):
            slow.reserve(timeout=5)
        slow.touch(job)
        time.sleep(1.2)  # real time: the ttr would be over without the touch
        assert slow.stats_job(job)["state"] == "reserved"
        time.sleep(1)  # real time: now it is, but beanstalkd may not know before it hears of this client
        assert slow.using() == "default"
        job = quick.reserve(timeout=10)
        assert (job.id, quick.stats_job(job)["timeouts"]) == (number, 1)
        with pytest.raises(greenstalk.NotFoundError):
            slow.touch(job)
        quick.delete(job)


def lose_a_connection(address: tuple[str, int]) -> None:
    """What a worker held when its connection went is for the next."""
    with greenstalk.Client(address) as producer:
        number = producer.put("work")
        lost = greenstalk.Client(address)
        assert lost.reserve().id == number
        with pytest.raises(greenstalk.TimedOutError):
            producer.reserve(timeout=0)
        lost.close()
        with greenstalk.Client(address) as again:
            job = again.reserve(timeout=10)
            assert job.id == number
            again.delete(job)


def look_around(address: tuple[str, int]) -> None:
    with greenstalk.Client(address, encoding=None) as client:
        body = bytes(range(256))
        number = client.put(body)
        assert client.peek(number).body == body
        client.delete(number)
        client.use("own")
        assert client.watch("own") == 2
        assert client.ignore("default") == 1
        with pytest.raises(greenstalk.NotIgnoredError):
            client.ignore("own")
        assert client.tubes() == ["default", "own"]
        client.pause_tube("own", 1)
        assert client.stats_tube("own")["pause"] == 1
        with pytest.raises(greenstalk.NotFoundError):
            client.pause_tube("nobody", 1)
        stats = client.stats()
        assert stats["current-jobs-ready"] == stats["current-jobs-buried"] == 0
        assert stats["max-job-size"] == 65535
        with pytest.raises(greenstalk.JobTooBigError):
            client.put(b"x" * 65536)
        with pytest.raises(greenstalk.BadFormatError):
            client.use("-")
        for peek in (client.peek_ready, client.peek_delayed, client.peek_buried):
            with pytest.raises(greenstalk.NotFoundError):
                peek()


def rows(statistics: Mapping[str, object]) -> Mapping[str, object]:
    """All of them: greenstalk's types know those that beanstalkd has."""
    return statistics


def meet_limits(address: tuple[str, int]) -> None:
    """A put that a tube has no room for is refused; the next one may succeed."""
    with greenstalk.Client(address, use="max-jobs") as client:
        first = client.put("one")
        client.put("two")
        with pytest.raises(greenstalk.DrainingError):
            client.put("three")
        client.delete(first)
        client.put("three")
        client.use("max-bytes")
        client.put("ten bytes!")
        with pytest.raises(greenstalk.DrainingError):
            client.put("!")
        client.use("max-delay")
        with pytest.raises(greenstalk.DrainingError):
            client.put("late", delay=2)
        client.delete(client.put("late", delay=1))
        client.use("max-job-size")
        with pytest.raises(greenstalk.JobTooBigError):
            client.put("longer")
        client.delete(client.put("short"))
        stats = rows(client.stats())
        refused = [stats[f"refused-{what}"] for what in ("jobs", "bytes", "delay", "size")]
        assert refused == [1, 1, 1, 1]


def run_out_of_tries(address: tuple[str, int]) -> None:
    """A job that has failed too often is buried, or goes to another tube, however it has failed."""
    with greenstalk.Client(address, watch=["max-tries", "dead-tube"]) as client:
        client.use("max-tries")
        number = client.put("released")
        with pytest.raises(greenstalk.BuriedError):
            client.release(client.reserve())
        assert client.peek_buried().id == number
        client.kick_job(number)
        client.delete(client.reserve())
        client.use("dead-tube")
        dead = greenstalk.Client(address, watch="dead")
        number = client.put("released")
        client.release(client.reserve())
        assert dead.reserve(timeout=10).id == number
        stats = rows(dead.stats_job(number))
        assert (stats["tube"], stats["origin"], stats["reason"]) == ("dead", "dead-tube", "released")
        dead.delete(number)
        number = client.put("too slow", ttr=1)
        job = client.reserve()
        dead.delete(dead.reserve(timeout=10))
        with pytest.raises(greenstalk.NotFoundError):
            client.touch(job)
        number = client.put("lost")
        client.reserve()
    job = dead.reserve(timeout=10)
    assert (job.id, rows(dead.stats_job(job))["reason"]) == (number, "disconnected")
    dead.delete(job)
    dead.close()


def be_told_to_wait(address: tuple[str, int]) -> None:
    """After a failure, and while as many are reserved as may be, a worker gets no job, but may look at the next."""
    with greenstalk.Client(address, use="backoff", watch=["backoff", "max-reserved", "rate"]) as client:
        number = client.put("again")
        client.release(client.reserve())
        with pytest.raises(greenstalk.TimedOutError):
            client.reserve(timeout=0)
        assert client.peek_delayed().id == number
        assert rows(client.stats_job(number))["time-left"] in (99, 100)
        client.kick_job(number)
        client.delete(client.reserve())
        for tube in ("max-reserved", "rate"):
            client.use(tube)
            client.put("first")
            second = client.put("second")
            job = client.reserve()
            with pytest.raises(greenstalk.TimedOutError):
                client.reserve(timeout=0)
            assert client.peek_ready().id == second
            assert rows(client.stats_tube(tube))["throttled"] == 1
            client.delete(job)
            if tube == "max-reserved":
                assert client.reserve(timeout=10).id == second
            client.delete(second)


def come_too_late(address: tuple[str, int]) -> None:
    """A job that has expired is gone, or in another tube; one whose key is held is gone like any other."""
    with greenstalk.Client(address, use="ttl", watch=["dead", "key-hold"]) as client:
        job = client.reserve()
        client.delete(job)  # it has a key, which stays taken
        gone = client.put("deleted")
        client.use("ttl-dead")
        moved = client.put("moved")
        assert client.reserve(timeout=10).id == moved
        assert rows(client.stats_job(moved))["reason"] == "expired"
        client.delete(moved)
        for each in (job.id, gone):
            for command in (client.peek, client.reserve_job, client.stats_job, client.kick_job, client.delete):
                with pytest.raises(greenstalk.NotFoundError):
                    command(each)
        assert rows(client.stats())["held-keys"] == 1


ORDINARY = (produce_and_work, bury_and_kick, let_a_ttr_run_out, lose_a_connection, look_around)
POLICIES = (meet_limits, run_out_of_tries, be_told_to_wait, come_too_late)


def main(address: tuple[str, int], policies: bool) -> None:
    for story in POLICIES if policies else ORDINARY:
        story(address)


if __name__ == "__main__":
    main((sys.argv[1], int(sys.argv[2])), policies="policies" in sys.argv[3:])
