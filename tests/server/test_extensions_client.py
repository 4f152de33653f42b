"""The client for the extension commands, the example, and a race of cancels against thousands of deadlines."""

import datetime
import math
import random
import re
import sys
import threading
import time
from pathlib import Path

import beanstalk_client
import greenstalk
import pytest
from beanstalk_client import Client, ExistsError, TooLateError, commands

from beanstalk_server import TubeConfig
from harness import servers
from harness.waiting import eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "undo_delete.py"


@pytest.fixture
def server(run):
    return run()


def test_pages_of_tubes_are_asked_for_as_they_are_needed(server, monkeypatch):
    monkeypatch.setattr(commands, "PAGE_ENTRIES", 2)
    with Client(server.address, use="mail-2", watch=[f"mail-{number}" for number in range(5)]) as queue:
        queue.put("x", delay=9)
        found = {entry["name"]: entry for entry in queue.stats_tubes()}
        assert list(found) == ["default", *[f"mail-{number}" for number in range(5)]]
        for name, entry in found.items():
            assert entry == queue.stats_tube(name) | {"name": name}
        assert [entry["name"] for entry in queue.stats_tubes(prefix="mail", first="mail-3")] == ["mail-3", "mail-4"]
        assert [entry["name"] for entry in queue.stats_tubes(prefix="d")] == ["default"]
        assert not list(queue.stats_tubes(prefix="n"))


def test_pages_of_jobs_are_asked_for_as_they_are_needed(server, monkeypatch):
    monkeypatch.setattr(commands, "PAGE_ENTRIES", 2)
    with Client(server.address, use="t", watch="t") as queue:
        with pytest.raises(beanstalk_client.NotFoundError):
            next(queue.list_jobs("nobody"))
        ids = [queue.put("x" * number, priority=9 - number) for number in range(5)]
        found = list(queue.list_jobs("t"))
        assert [entry["id"] for entry in found] == ids[::-1]
        assert [entry["size"] for entry in found] == [4, 3, 2, 1, 0]
        for entry in found:
            shown = queue.stats_job(entry["id"])
            assert {key: shown[key] for key in shown if key not in ("tube", "file")}.items() <= entry.items()
        assert not list(queue.list_jobs("t", "buried"))
        jobs = queue.list_jobs("t")
        next(jobs)
        queue.clear_tube("t")
        queue.use("default")
        queue.watch("default")
        queue.ignore("t")
        assert len(list(jobs)) == 1, "the rest of the page, and no more"


@pytest.mark.parametrize("encoding", ["utf-8", None])
def test_every_command_of_the_client(server, encoding):
    def body(text):
        return text if encoding else text.encode()

    with Client(server.address, encoding=encoding, use="t", watch="t") as queue:
        first = queue.put_keyed("a", body("one"), delay=5.5)
        with pytest.raises(ExistsError) as exists:
            queue.put_keyed("a", body("two"))
        assert exists.value.id == first
        assert queue.replace_keyed("a", body("three"), priority=1, delay=100, ttr=30) == first
        second = queue.replace_keyed("b", body("four"), delay=100)
        assert second == first + 1
        job = queue.peek_keyed("a")
        assert (job.id, job.body) == (first, body("three"))
        queue.reschedule(job, 50)
        queue.reschedule_keyed("b", 0.25)
        job = queue.reserve(timeout=60)
        assert job.id == second
        for refused in (
            lambda: queue.cancel(job),
            lambda: queue.cancel_keyed("b"),
            lambda: queue.reschedule(job.id, 1),
            lambda: queue.reschedule_keyed("b", 1),
            lambda: queue.replace_keyed("b", body("five")),
        ):
            with pytest.raises(TooLateError):
                refused()
        queue.delete(job)
        with pytest.raises(beanstalk_client.NotFoundError):
            queue.cancel_keyed("b")
        queue.cancel(first)
        third, fourth = queue.put(body("x")), queue.put(body("y"))
        assert [(job.id, job.body) for job in queue.reserve_batch(9)] == [(third, body("x")), (fourth, body("y"))]
        with pytest.raises(beanstalk_client.TimedOutError):
            queue.reserve_batch(9, timeout=0.01)
        queue.put(body("z"))
        assert queue.clear_tube("t") == 1
        with pytest.raises(beanstalk_client.NotFoundError):
            queue.clear_tube("nowhere")
        if encoding is None:
            with pytest.raises(TypeError):
                queue.put_keyed("a", "text")


def test_a_body_that_cannot_be_decoded_leaves_the_client_in_step(server):
    with Client(server.address) as queue, Client(server.address, encoding=None) as other:
        for body in (b"one", b"\xff", b"three"):
            other.put(body)
        with pytest.raises(UnicodeDecodeError):
            queue.reserve_batch(3)
        assert queue.using() == "default"


def test_every_attribute_of_a_put(server):
    with Client(server.address) as queue:
        first = queue.put_with("one", 7, 100, 30, key="k", hold=100)
        with pytest.raises(ExistsError) as exists:
            queue.put_with("two", key="k")
        assert exists.value.id == first
        assert queue.put_with("two", key="k", replace=True, hold=0.25) == first
        queue.delete(queue.reserve(timeout=0))
        with pytest.raises(ExistsError) as exists:
            queue.put_keyed("k", "three")
        assert exists.value.id == first
        eventually(lambda: queue.stats()["held-keys"] == 0, "the key is free")

        tried = queue.put_with("work", tries=2, backoff=100)
        queue.release(queue.reserve(timeout=0))
        stats = queue.stats_job(tried)
        assert (stats["state"], stats["tries"], stats["max-tries"]) == ("delayed", 1, 2)
        with pytest.raises(beanstalk_client.BuriedError):
            queue.release(queue.reserve_job(tried))
        assert queue.stats_job(tried)["reason"] == "released"

        queue.put_with("milk", ttl=0.05)
        eventually(lambda: queue.stats()["expired-jobs"] == 1, "it has expired")
        with pytest.raises(beanstalk_client.NotFoundError):
            queue.peek_ready()


@pytest.mark.parametrize("as_datetime", [True, False])
def test_a_job_comes_at_a_time_of_the_wall_clock_and_not_before(server, as_datetime):
    with Client(server.address) as queue:
        at = time.time() + 0.3
        number = queue.put_with("now", at=datetime.datetime.fromtimestamp(at, datetime.UTC) if as_datetime else at)
        assert queue.stats_job(number)["state"] == "delayed"
        job = queue.reserve(timeout=30)
        assert time.time() >= at - 1e-6  # a datetime has microseconds
        assert job.id == number
        past = queue.put_with("then", at=0)
        assert queue.reserve(timeout=0).id == past


@pytest.mark.parametrize(
    "attributes",
    [
        {"replace": True},
        {"hold": 1},
        {"at": 1.0, "delay": 1},
        {"at": -1.0},
        {"at": 2**32},
        {"tries": -1},
        {"tries": 2**32},
        {"ttl": -1},
        {"backoff": math.nan},
        {"key": "k", "hold": math.inf},
    ],
)
def test_attributes_that_make_no_sense_are_refused_before_a_body_can_be_taken_for_a_command(server, attributes):
    with Client(server.address) as queue:
        job = queue.put("precious")
        with pytest.raises(ValueError, match=r"must be|may be given"):
            queue.put_with(f"delete {job}", **attributes)
        assert queue.peek(job).body == "precious"


def test_dead_letters_are_sent_back(run):
    server = run(tubes=[TubeConfig(match="work", max_tries=1, dead_tube="dead")])
    with Client(server.address, use="work", watch=["work", "dead"]) as queue:
        numbers = [queue.put("x") for _ in range(3)]
        for _ in numbers:
            queue.release(queue.reserve(timeout=0))
            queue.bury(queue.reserve(timeout=0))
        assert queue.stats_job(numbers[0])["origin"] == "work"
        assert (queue.redrive("dead", 2), queue.redrive("dead", 2)) == (2, 1)
        assert queue.stats_tube("work")["current-jobs-ready"] == 3
        with pytest.raises(beanstalk_client.NotFoundError):
            queue.redrive("nowhere", 1)


def test_jobs_move_to_another_tube(server):
    with Client(server.address, use="from") as queue:
        ready, delayed = queue.put("x"), queue.put("y", delay=100)
        assert queue.move_jobs("from", "ready", "to", 9) == 1
        assert queue.move_jobs("from", "delayed", "to", 9) == 1
        assert [queue.stats_job(job)["tube"] for job in (ready, delayed)] == ["to", "to"]
        with pytest.raises(beanstalk_client.NotFoundError):
            queue.move_jobs("nowhere", "ready", "to", 1)
        with pytest.raises(ValueError, match="bad state"):
            queue.move_jobs("from", "reserved", "to", 1)


def test_drain_mode_begins_and_ends(server):
    with Client(server.address) as queue:
        queue.drain()
        with pytest.raises(beanstalk_client.DrainingError):
            queue.put("x")
        queue.undrain()
        assert queue.put("x")


@pytest.mark.parametrize("key", ["", "space 42", "-k", "k" * 201, "k\r\n", "ä"])
def test_a_malformed_key_is_refused_before_its_body_can_be_taken_for_a_command(server, key):
    with Client(server.address) as queue:
        job = queue.put("precious")
        with pytest.raises(ValueError, match="bad key"):
            queue.put_keyed(key, f"delete {job}")
        assert queue.peek(job).body == "precious"


def test_an_undo_is_done_although_a_reminder_is_on_its_way(server):
    namespace = {"__name__": "example"}
    exec(EXAMPLE.read_text(), namespace)
    namespace["REMINDERS"] = (0, 50, 50)
    with Client(server.address) as queue:
        namespace["ask_for_deletion"](queue, "red")
        assert namespace["undo"](queue, "red") == 2
        assert queue.stats_tube("default")["current-jobs-delayed"] == 0
        with pytest.raises(beanstalk_client.NotFoundError):
            namespace["undo"](queue, "red")


def test_an_unmodified_greenstalk_works_in_tubes_with_keyed_jobs(server):
    with Client(server.address) as ours, greenstalk.Client(server.address) as stock:
        ours.put_keyed("k", "keyed", priority=1)
        stock.put("plain", priority=2)
        job = stock.reserve()
        assert job.body == "keyed"
        assert stock.stats_job(job)["key"] == "k"
        stock.release(job, delay=100, priority=1)
        assert stock.peek_delayed().body == "keyed"
        assert stock.kick(1) == 1
        job = stock.reserve()
        stock.bury(job, priority=1)
        stock.kick_job(job)
        stock.touch(stock.reserve())
        stock.delete(job)
        assert stock.reserve(timeout=0).body == "plain"
        assert stock.stats()["cmd-put-keyed"] == 1
        assert ours.put_keyed("k", "again") > job.id


@pytest.mark.parametrize("loop_factory", ["uvloop"], indirect=True)
def test_the_example_prints_what_its_docstring_promises(server):
    promised = re.search(r"It prints:\n\n(.*?)\n\"\"\"", EXAMPLE.read_text(), re.DOTALL)[1]
    host, port = server.address
    done = servers.run([sys.executable, str(EXAMPLE), f"{host}:{port}"])
    assert done.stderr == ""
    assert done.stdout.splitlines() == [line.strip() for line in promised.splitlines()]


@pytest.mark.parametrize("loop_factory", ["uvloop"], indirect=True)
@pytest.mark.parametrize(("count", "until_due"), [(10_000, 2), pytest.param(100_000, 15, marks=pytest.mark.slow)])
def test_jobs_due_in_one_second_are_each_cancelled_or_received(server, capsys, count, until_due):
    """The first may be due `until_due` seconds after the start; the last is a second later."""
    rng = random.Random(11)
    ids = list(range(1, count + 1))
    rng.shuffle(ids)
    producer, worker = server.connect(), server.connect()
    cancellers = [server.connect() for _ in range(4)]
    started = time.monotonic()
    for first in range(0, count, 1000):
        # On a very slow machine, the last are due as soon as they are put.
        left = max(0.0, started + until_due - time.monotonic())
        producer.send(b"".join(b"put 0 %.3f 60 1\r\nx\r\n" % (left + rng.random()) for _ in range(1000)))
        for number in range(first + 1, first + 1001):
            assert producer.line() == b"INSERTED %d\r\n" % number
    cancelled, received = [], []
    has_cancelled, has_received = threading.Event(), threading.Event()

    def cancel(caller, numbers):
        """Cancel them in the course of that second, but the first before a job is received, and the last after it."""
        for first in range(0, len(numbers), 250):
            batch = numbers[first : first + 250]
            if first:
                # Real time: each batch when about as many jobs have come due.
                time.sleep(max(0, started + until_due + first / len(numbers) - time.monotonic()))
            if first + 250 >= len(numbers):
                has_received.wait()
            caller.send(b"".join(b"cancel %d\r\n" % number for number in batch))
            for number in batch:
                answer = caller.line()
                if answer == b"CANCELLED\r\n":
                    cancelled.append(number)
                else:
                    assert answer in (b"TOO_LATE\r\n", b"NOT_FOUND\r\n")
            has_cancelled.set()

    threads = [
        threading.Thread(target=cancel, args=(caller, ids[i::4]), daemon=True) for i, caller in enumerate(cancellers)
    ]
    for thread in threads:
        thread.start()
    assert has_cancelled.wait(60)
    while True:
        is_over = not any(thread.is_alive() for thread in threads)
        answer = worker.ask(b"reserve-batch 500 %d\r\n" % (2 if is_over else 1))
        if answer == b"TIMED_OUT\r\n" and is_over and producer.ask(b"peek-delayed\r\n") == b"NOT_FOUND\r\n":
            break
        batch = []
        for _ in range(int(answer.split()[1]) if answer != b"TIMED_OUT\r\n" else 0):
            batch.append(int(worker.line().split()[1]))
            worker.read(3)
        received += batch
        worker.send(b"".join(b"delete %d\r\n" % number for number in batch))
        for _ in batch:
            assert worker.line() == b"DELETED\r\n"
        if batch:
            has_received.set()
        if is_over and len(received) + len(cancelled) == count:
            break
    both = set(received) & set(cancelled)
    neither = set(ids) - set(received) - set(cancelled)
    with capsys.disabled():
        print(
            f"\n  {count:,} jobs: {len(received):,} received, {len(cancelled):,} cancelled, "
            f"{len(both)} both, {len(neither)} neither"
        )
    assert not both
    assert not neither
    assert len(received) == len(set(received))
    assert received and cancelled
    for caller in [producer, worker, *cancellers]:
        caller.close()
