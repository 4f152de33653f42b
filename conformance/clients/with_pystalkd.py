"""pystalkd (Python). It takes what one read brings for a whole reply: a server that sent one in two would break it."""

from __future__ import annotations

import sys
import time

import pytest
from pystalkd.Beanstalkd import CommandFailed, Connection, DeadlineSoon


def produce_and_work(host: str, port: int) -> None:
    producer, worker = Connection(host, port, parse_yaml=False), Connection(host, port, parse_yaml=False)
    assert producer.use("mails") == "mails"
    assert worker.watch("mails") == 2
    assert worker.ignore("default") == 1
    began = time.monotonic()
    late = producer.put("late", delay=1)
    second = producer.put("second", priority=20)
    first = producer.put("first", priority=10)
    assert producer.peek_ready().job_id == first
    assert producer.peek_delayed().job_id == late
    done: list[tuple[int, str]] = []
    while len(done) < 3:
        job = worker.reserve(timeout=10)
        done.append((job.job_id, job.body))
        job.delete()
    assert done == [(first, "first"), (second, "second"), (late, "late")]
    assert time.monotonic() - began >= 0.99
    assert worker.reserve(timeout=0) is None
    assert "total-jobs: 3" in producer.stats_tube("mails")
    producer.close()
    worker.close()


def bury_and_kick(host: str, port: int) -> None:
    client = Connection(host, port, parse_yaml=False)
    number = client.put_bytes(b"body")
    job = client.reserve()
    client.touch(job.job_id)
    client.bury(job.job_id, 7)
    assert client.peek_buried().job_id == number
    assert client.kick(5) == 1
    client.reserve()
    client.release(number, 1, 100)
    client.kick_job(number)
    assert "kicks: 2" in client.stats_job(number)
    client.delete(number)
    with pytest.raises(CommandFailed):
        client.delete(number)
    client.close()


def let_a_ttr_run_out(host: str, port: int) -> None:
    slow, quick = Connection(host, port), Connection(host, port)
    number = slow.put("work", ttr=1)
    slow.reserve()
    with pytest.raises(DeadlineSoon):
        slow.reserve(timeout=5)
    time.sleep(1.2)  # real time: the ttr is over, but beanstalkd may not know before it hears of this client
    assert slow.using() == "default"
    job = quick.reserve(timeout=10)
    assert job.job_id == number
    with pytest.raises(CommandFailed):
        slow.touch(number)
    job.delete()
    slow.close()
    quick.close()


def lose_a_connection(host: str, port: int) -> None:
    worker = Connection(host, port)
    number = worker.put("work")
    assert worker.reserve().job_id == number
    worker.reconnect()
    job = worker.reserve(timeout=10)
    assert job.job_id == number
    job.delete()
    worker.close()


def be_refused_by_policies(host: str, port: int) -> None:
    """The replies of policies that clients tell apart (docs/policies.md). with_greenstalk.py meets every policy."""
    client = Connection(host, port, parse_yaml=False)
    client.use("max-jobs")
    client.put("one")
    client.put("two")
    with pytest.raises(CommandFailed, match="DRAINING"):
        client.put("three")
    client.use("max-job-size")
    with pytest.raises(CommandFailed, match="JOB_TOO_BIG"):
        client.put("longer")
    client.watch("max-tries")
    client.use("max-tries")
    client.put("released")
    job = client.reserve()
    with pytest.raises(CommandFailed, match="BURIED"):
        job.release()
    client.close()


ORDINARY = (produce_and_work, bury_and_kick, let_a_ttr_run_out, lose_a_connection)
POLICIES = (be_refused_by_policies,)


def main(host: str, port: int, policies: bool) -> None:
    for story in POLICIES if policies else ORDINARY:
        story(host, port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), policies="policies" in sys.argv[3:])
