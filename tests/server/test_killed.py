"""A server that is killed again and again under load keeps what it has acknowledged, and brings nothing back.

All commands and replies are recorded. After some kills they are compared with the jobs of the server (histories.py).
"""

import random
import time

import pytest
from load import Load

from harness.servers import launch, unused_port
from harness.waiting import eventually
from tests.cluster.simulation.commands import policed_tubes, policies_text

SEGMENT = 65536
CLIENTS = 4
AUDIT = 5
"""Kills from one comparison to the next."""

ON_DISK = ("--body-threshold", "0", "--body-cache", "1000")


def kill_again_and_again(directory, rounds, *options):
    rng = random.Random(rounds)
    config = directory / "config.toml"
    config.write_text(policies_text(policed_tubes(1)))
    (directory / "binlog").mkdir()
    line = ["-p", str(unused_port()), "-b", str(directory / "binlog"), "-s", str(SEGMENT), "--config", str(config)]
    began = time.monotonic()
    acknowledged = first_id = 0
    process = launch(*line, *options)
    try:
        for killed in range(0, rounds, AUDIT):
            with Load([process.address], CLIENTS, rng, pause=0) as load:
                for _ in range(min(AUDIT, rounds - killed)):
                    work = sum(load.answered()) + rng.randrange(100, 2000)  # the server is killed after it
                    eventually(lambda work=work, load=load: sum(load.answered()) >= work, "clients are answered")
                    moment = time.monotonic_ns()
                    process.kill()
                    assert "Traceback" not in process.log, process.log
                    process = launch(*line, *options)
                    load.history.took_over(moment, time.monotonic_ns())
            problems, jobs, ends = load.problems(process.address)
            problems += [f"returned: job {job} was deleted long ago" for job in jobs if job < first_id]
            assert not problems, "\n".join([*problems[:10], process.log[-500:]])
            first_id = max(ends)
            acknowledged += load.history.counts()[0]
        assert process.stop() == 0
        assert "Traceback" not in process.log, process.log
    finally:
        process.kill()
    print(f"killed {rounds} times: {acknowledged:,} commands answered, no problems ({time.monotonic() - began:.0f} s)")


@pytest.mark.parametrize("options", [(), ON_DISK], ids=["sync", "on-disk"])
def test_a_server_that_is_killed_keeps_what_it_has_acknowledged(tmp_path, options):
    kill_again_and_again(tmp_path, 4, *options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "rounds"),
    [((), 50), (("-f", "50"), 40), (("-F",), 8), (ON_DISK, 40), ((*ON_DISK, "-F"), 8)],
    ids=["sync", "f50", "F", "on-disk", "on-disk-F"],
)
def test_it_does_so_however_often(tmp_path, options, rounds):
    kill_again_and_again(tmp_path, rounds, *options)
