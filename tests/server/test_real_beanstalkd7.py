"""Directories that the real beanstalkd has written, and directories that it is started on."""

import os
import random
import shutil
import time

import pytest
from effort import seeded

from beanstalk_server.queue.job import BURIED, DELAYED, READY, STATES
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.beanstalkd import reader, writer
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.disk import RealDirectory
from harness.caller import Caller


def files(path):
    return [path / name for name in file_names(os.listdir(path))]


def read(path, *arguments):
    return reader.read(RealDirectory(path), *arguments)


def write(path, *arguments, **settings):
    return writer.write(RealDirectory(path), *arguments, **settings)


@pytest.fixture
def restarted(launch_beanstalkd, tmp_path):
    """Starts another beanstalkd on a copy of a directory."""

    def start(directory, *options):
        shutil.copytree(directory, tmp_path / "copy")
        return launch_beanstalkd(tmp_path / "copy", *options)

    return start


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "jobs"
    path.mkdir()
    return path


def take(directory):
    """Read a directory; return the contents and the jobs by id. Nothing may be damaged."""
    warnings = []
    contents = read(directory, warnings.append)
    assert warnings == []
    assert contents.damages == []
    return contents, {job.id: job for job in contents.jobs()}


def assert_same(jobs, shown, restarts=0):
    """The jobs are what beanstalkd has shown. At each start it counts one more bury for a buried job."""
    assert jobs.keys() == shown.keys()
    for job_id, (body, stats, at) in shown.items():
        job = jobs[job_id]
        assert job.key == ""
        assert job.body == body
        late = job.state == DELAYED and job.deadline <= at * SECOND
        state = "ready" if late or stats["state"] == "reserved" else STATES[job.state]
        assert stats["state"] in (state, "reserved"), (job, stats)
        same = {
            "id": job.id,
            "tube": job.tube,
            "pri": job.priority,
            "delay": job.delay // SECOND,
            "ttr": job.ttr // SECOND,
            "reserves": job.reserves,
            "timeouts": job.timeouts,
            "releases": job.releases,
            "buries": job.buries + (restarts if job.state == BURIED else 0),
            "kicks": job.kicks,
        }
        if stats["state"] == "reserved":
            del same["reserves"]  # a reservation is not written
        assert {name: stats[name] for name in same} == same
        assert abs(stats["age"] - (at - job.created_at / SECOND)) < 1.5
        if stats["state"] == "delayed":
            assert abs(stats["time-left"] - (job.deadline / SECOND - at)) < 1.5


@seeded(2)
def test_any_history(launch_beanstalkd, restarted, directory, seed):
    """Whatever beanstalkd does, we read what beanstalkd itself reads when it starts again."""
    chance = random.Random(seed)
    server = launch_beanstalkd(directory, "-s", str(chance.choice([4096, 10_000, 100_000])))
    tubes = ["a", "b", "c"]
    held, known = [], []
    for _ in range(1500):
        tube = chance.choice(tubes)
        if chance.random() < 0.4:
            body = chance.randbytes(chance.choice([0, 1, 10, 100, 2000]))
            known.append(server.put(body, tube, chance.randrange(9), chance.choice([0, 0, 1000]), 1000))
        if chance.random() < 0.01:
            server.kill()
            held.clear()
            server = launch_beanstalkd(directory, "-s", "10000")
        if known and chance.random() < 0.6:
            job_id = chance.choice(known)
            if server.reserve_job(job_id):
                held.append(job_id)
        if held and chance.random() < 0.8:
            job_id = held.pop(chance.randrange(len(held)))
            priority = chance.randrange(9)
            server.ask(
                chance.choice([f"delete {job_id}", f"bury {job_id} {priority}", f"release {job_id} {priority} 1000"])
            )
        if known and chance.random() < 0.1:
            server.ask(f"kick-job {chance.choice(known)}")
    server.kill()
    _, jobs = take(directory)
    assert len(jobs) > 50
    after = restarted(directory, "-s", "10000")
    assert_same(jobs, after.shows(known), restarts=1)
    for tube in tubes:
        assert after.buried(tube) == [job.id for job in jobs.values() if (job.tube, job.state) == (tube, BURIED)]


def test_a_thousand_jobs_are_served_by_beanstalkd_as_they_were_written(launch_beanstalkd, directory):
    chance = random.Random(1)
    now = time.time_ns()
    jobs = [
        StoredJob(
            n, chance.choice(["a", "b-c", "d" * 200]), "key" * (n % 2), chance.choice([READY, DELAYED, BURIED]),
            chance.randrange(2**32), chance.randrange(2**32) * SECOND, chance.randrange(1, 2**32) * SECOND,
            chance.randbytes(chance.choice([0, 1, 100, 1000, 65_533])),
            now - chance.randrange(10**6) * SECOND, now + chance.randrange(-100, 10**6) * SECOND,
            0, *(chance.randrange(2**31) for _ in range(5)),
        )
        for n in chance.sample(range(1, 5000), 1000)
    ]  # fmt: skip
    written = write(directory, jobs, next_id=1_000_000)
    assert written.keyed == sum(bool(job.key) for job in jobs)
    assert written.body_limit == 65_535
    server = launch_beanstalkd(directory)
    assert_same({job.id: job.replace(key="") for job in jobs}, server.shows(range(1, 5000)), restarts=1)
    assert server.peek(999_999) is None
    assert server.put() == 1_000_000
    for tube in ("a", "b-c", "d" * 200):
        assert server.buried(tube) == [job.id for job in jobs if (job.tube, job.state) == (tube, BURIED)]
    assert server.stop() == ""


@pytest.mark.parametrize("size", [4096, 100_000])
def test_bodies_that_are_longer_than_a_file(launch_beanstalkd, directory, size):
    now = time.time_ns()
    jobs = {n: StoredJob(n, "t", "", READY, n, 0, SECOND, b"x" * 60_000, now, 0) for n in range(1, 11)}
    assert write(directory, jobs.values(), size=size).files == 10
    server = launch_beanstalkd(directory, "-s", str(size))
    assert_same(jobs, server.shows(range(1, 20)))
    for n in jobs:
        assert server.ask(f"delete {n}") == b"DELETED\r\n"
    assert server.kill() == ""
    assert take(directory)[1] == {}


def test_beanstalkd_needs_a_body_limit_with_room_for_the_line_end(launch_beanstalkd, directory):
    """Without it, beanstalkd stops reading at the longest body that it takes from a client; this server reads on."""
    server = launch_beanstalkd(directory)
    ids = [server.put(b"before"), server.put(b"x" * 65_535), server.put(b"after")]
    shown = server.shows(ids)
    server.kill()
    _, jobs = take(directory)
    assert_same(jobs, shown)
    assert jobs.keys() == {*ids}
    (directory.parent / "again").mkdir()
    written = write(directory.parent / "again", jobs.values())
    assert written.body_limit == 65_537
    server = launch_beanstalkd(directory.parent / "again", "-z", str(written.body_limit))
    assert_same(jobs, server.shows(ids))
    server.kill()
    server = launch_beanstalkd(directory.parent / "again")
    assert [server.peek(n) is not None for n in ids] == [True, False, False]
    assert "is too big" in server.kill()


def test_the_next_id_outlives_the_last_job(launch_beanstalkd, directory):
    write(directory, [], next_id=77)
    server = launch_beanstalkd(directory)
    assert server.put() == 77
    server.kill()
    assert take(directory)[0].last_id == 77


def tubes_of(caller):
    size = int(caller.ask(b"list-tubes\r\n").split()[1])
    return [line[2:] for line in caller.read(size + 2).decode().splitlines() if line.startswith("- ")]


def test_the_order_of_tubes_is_what_the_files_say_after_a_restart(launch, launch_beanstalkd, tmp_path):
    """Those of beanstalkd say in which order jobs made tubes, and those here which jobs there are. Neither say which
    tubes clients made.
    """
    starts = {
        "beanstalkd": lambda path: launch_beanstalkd(path),
        "here": lambda path: launch("-p", "0", "-b", str(path)),
    }
    orders = {}
    for name, start in starts.items():
        path = tmp_path / name
        path.mkdir()
        server = start(path)
        caller = Caller(server.address)
        caller.ask(b"watch t9\r\n")
        for number in range(1, 6):
            caller.ask(b"use t%d\r\n" % number)
            assert caller.ask(b"put 0 0 60 1\r\nx\r\n") == b"INSERTED %d\r\n" % number
        caller.ask(b"use t9\r\n")
        caller.ask(b"put 0 0 60 1\r\nx\r\n")
        caller.ask(b"delete 3\r\n")
        before = tubes_of(caller)
        caller.close()
        server.kill()
        caller = Caller(start(path).address)
        orders[name] = (before, tubes_of(caller))
        caller.close()
    live = ["default", "t9", "t1", "t2", "t5", "t4"]
    assert orders == {
        "beanstalkd": (live, ["default", "t1", "t2", "t9", "t4", "t5"]),
        "here": (live, ["default", "t1", "t2", "t4", "t5", "t9"]),
    }
