"""A server with a binlog that is killed while it moves jobs: each is in one tube, and what was answered has moved."""

import random
import time

import pytest

from harness.caller import Caller
from harness.servers import launch

JOBS = 150
CHUNK = 40
STATES = (b"ready", b"delayed", b"buried")


class Mover:
    """Moves jobs from tube to tube, and back when there are no more, until the server is gone."""

    def __init__(self, address, source, target):
        self.caller = Caller(address)
        self.source, self.target = source, target
        self.moved = 0  # since the last turn: this many have surely moved

    def move_until(self, end):
        while time.monotonic() < end:  # real time: so long it works before it is killed
            self.ask()
            for _ in STATES:
                word, number = self.caller.line().split()
                assert word == b"MOVED"
                self.moved += int(number)
        self.ask()

    def ask(self):
        if self.moved == JOBS:  # perhaps by what was asked last in the life before
            self.source, self.target, self.moved = self.target, self.source, 0
        for state in STATES:
            self.caller.socket.sendall(b"move-jobs %b %b %b %d\r\n" % (self.source, state, self.target, CHUNK))


def found(address, ids):
    """What is told of each job: its tube, state, priority and key."""
    caller = Caller(address)
    told = {}
    caller.send(b"".join(b"stats-job %d\r\n" % job_id for job_id in ids))
    for job_id in ids:
        size = int(caller.line().split()[1])
        rows = dict(line.split(": ", 1) for line in caller.read(size + 2).decode().splitlines() if ": " in line)
        told[job_id] = (rows["tube"].strip('"'), rows["state"], rows["pri"], rows.get("key", ""))
    caller.close()
    return told


def fill(address):
    """Put jobs in three states into tube a; return what is told of each."""
    caller = Caller(address)
    assert caller.ask(b"use a\r\n") == b"USING a\r\n"
    assert caller.ask(b"watch a\r\n") == b"WATCHING 2\r\n"
    ids = []
    for number in range(JOBS):
        delay = 1000 if number % 3 == 1 else 0
        word, job_id = caller.ask(b"put-keyed k%d %d %d 60 4\r\nbody\r\n" % (number, number, delay)).split()
        assert word == b"INSERTED"
        ids.append(int(job_id))
        if number % 3 == 2:
            caller.ask(b"reserve-job %d\r\n" % ids[-1])
            caller.line()
            assert caller.ask(b"bury %d %d\r\n" % (ids[-1], number)) == b"BURIED\r\n"
    caller.close()
    return found(address, ids)


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--body-threshold", "0", "--body-cache", "1000"), marks=pytest.mark.slow)]
)
def test_every_job_is_in_one_tube_and_as_it_was_whenever_the_server_is_killed(tmp_path, options):
    rng = random.Random(1)
    source, target = b"a", b"b"
    before = {}
    for _ in range(3):
        process = launch("-p", "0", "-b", str(tmp_path), "-s", "65536", *options)
        try:
            before = before or fill(process.address)
            mover = Mover(process.address, source, target)
            there = [tube for tube, *_ in found(process.address, before).values()]
            mover.moved = there.count(target.decode())
            mover.move_until(time.monotonic() + rng.uniform(0.05, 0.3))
        finally:
            process.kill()
        mover.caller.close()
        source, target = mover.source, mover.target
        process = launch("-p", "0", "-b", str(tmp_path), "-s", "65536", *options)
        try:
            after = found(process.address, before)
            assert "Traceback" not in process.log
        finally:
            process.kill()
        assert {job_id: told[1:] for job_id, told in after.items()} == {
            job_id: told[1:] for job_id, told in before.items()
        }
        moved = [tube for tube, *_ in after.values()].count(target.decode())
        assert mover.moved <= moved <= mover.moved + CHUNK * len(STATES)
        assert {tube for tube, *_ in after.values()} <= {"a", "b"}
