"""The server reads directories of every version of the format: those in `versions/` were written by the servers of
their time, with the script at the end of this file. `jobs.json` says which jobs they hold.
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path

import pytest
from checking import check_broker
from virtual import RecordingClient, put

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import READY
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels, Policy
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import UNKNOWN_IDS, Binlog
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.inspection import inspect
from beanstalk_server.storage.segment import VERSION, segment_names
from beanstalk_server.storage.shown import shown_job

NOW = 5 * SECOND
OFFSET = 1_700_000_000 * SECOND
VERSIONS = Path(__file__).parent / "versions"
NEXT_IDS = {1: 15 + UNKNOWN_IDS, 2: 15, 3: 24, 4: 29, 5: 31}
"""Version 1 had no mark of a clean stop, after which ids go on without a gap."""


def opened(path):
    """A binlog at a moment that never changes, in a boot of its own."""
    return Binlog(
        RealDirectory(path),
        segment_size=4096,
        clock=lambda: NOW,
        wall_clock=lambda: OFFSET + NOW,
        boot=b"another machine.",
        draw_salt=lambda: 1234567,
    )


def jobs_in(path):
    with inspect(RealDirectory(path)) as binlog:
        return sorted((shown_job(job) for job in binlog.live(pytest.fail)), key=lambda job: job["id"])


def test_there_is_a_directory_of_each_version():
    assert sorted(path.name for path in VERSIONS.iterdir()) == [str(version) for version in range(1, VERSION + 1)]


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_directory_of_each_version_is_read_and_written_to(tmp_path, version):
    path = tmp_path / "jobs"
    shutil.copytree(VERSIONS / str(version), path)
    expected = json.loads((path / "jobs.json").read_text())
    (path / "jobs.json").unlink()
    directory = RealDirectory(path)
    assert {directory.open(name).read(8, 1)[0] for _, name in segment_names(directory)} == {version}
    assert jobs_in(path) == expected

    async def live():
        binlog = opened(path)
        broker = Broker(binlog, NOW)
        states = [job["state"] for job in expected]
        assert broker.restore(OFFSET, NOW) == len(states) - states.count("held") - states.count("group")
        assert len(broker.held) == states.count("held")
        assert len(broker.groups.by_id) == states.count("group")
        check_broker(broker)
        put(broker, RecordingClient(broker), 0, 0, 60 * SECOND, b"new", NOW)
        await binlog.commit()
        await binlog.close()

    asyncio.run(live())
    *old, new = sorted(jobs_in(path), key=lambda job: job["id"])
    assert old == expected
    assert (new["id"], new["body"]) == (NEXT_IDS[version], "new"), "no id is given twice"


# How the directories were written: python tests/storage/test_versions.py tests/storage/versions/N


async def write(path):
    """Every record and every state, in three segments."""
    binlog = opened(path)
    policies = {
        "tried": Policy(max_tries=1, dead_tube="dead", backoff=100 * SECOND),
        "again": Policy(backoff=100 * SECOND),
        "held": Policy(ttl=1000 * SECOND, key_hold=1000 * SECOND),
    }
    broker = Broker(binlog, NOW, policy_of=lambda name: policies.get(name, NO_POLICY))
    broker.restore(OFFSET, NOW)
    client = RecordingClient(broker)

    def add(body, delay=0, tube="mail", key=""):
        broker.use(client, tube)
        assert put(broker, client, 10, delay, 60 * SECOND, body, NOW, key) == DONE
        return broker.next_id - 1

    def add_with(body, tube="mail", **attributes):
        broker.use(client, tube)
        assert broker.put_with(client, Attributes(**attributes), 10, 0, 60 * SECOND, body, NOW, NOW) == DONE
        return broker.next_id - 1

    def reserved(job_id):
        assert broker.reserve_job(client, job_id, NOW) == DONE
        return job_id

    add(b"ready")  # 1
    add(b"\xff\0\r\n", delay=90 * SECOND + SECOND // 4)
    add(b"has a key", key="name", tube="other")
    add(b"", key="gone")
    await binlog.commit()
    for job_id in (add(b"first put, last buried"), add(b"first buried"))[::-1]:  # 5 and 6
        broker.bury(client, reserved(job_id), 4294967295, NOW)
    broker.release(client, reserved(add(b"released with a delay")), 3, 500 * SECOND, NOW)
    broker.bury(client, reserved(add(b"kicked")), 2, NOW)
    broker.kick_job(client, 8, NOW)
    broker.delete(client, 4, NOW)
    await binlog.commit()
    for _ in range(3):
        add(b"x" * 2500)  # 9 to 11
        await binlog.commit()
    broker.delete(client, 9, NOW)
    add(b"cleared", tube="cleared")  # 12
    reserved(add(b"reserved when its tube was cleared", tube="cleared"))
    broker.clear(client, "cleared")
    broker.delete(client, add(b"the former last id"), NOW)  # 14
    await binlog.commit()
    demanded = {"max_tries": 5, "backoff": 2 * SECOND, "ttl": 3000 * SECOND, "key_hold": 4 * SECOND}
    add_with(b"demanded", key="demanded", **demanded)  # 15
    add_with(b"at", at=OFFSET + 999 * SECOND)
    add(b"ready since now", tube="held")  # 17
    add(b"has the key", tube="dead", key="shared")
    for key in ("shared", "own"):  # 19 and 20
        broker.release(client, reserved(add(b"a dead letter", tube="tried", key=key)), 10, 0, NOW)
    broker.release(client, reserved(add(b"tried again", tube="again")), 10, 0, NOW)  # 21
    broker.delete(client, add(b"its key is held", tube="held", key="held"), NOW)  # 22
    add_with(b"has labels", labels=Labels(share="customer", limit="user", limit_count=2))  # 23
    add_with(b"of a group", labels=Labels(group="batch"))  # 24, and the group 25
    broker.delete(client, reserved(add_with(b"done", labels=Labels(group="batch"))), NOW)  # 26
    add_with(b"comes after the group", labels=Labels(after="batch", after_waits=True))  # 27
    for count in (4, 3):
        add_with(b"may be moved", tube="limited", labels=Labels(limit="user", limit_count=count))  # 28 and 29
    broker.move(client, "limited", READY, "moved", 1, NOW)
    broker.delete(client, add(b"the last id"), NOW)  # 30
    await binlog.commit()
    await binlog.close()
    for name in ("lock", *(file.name for file in path.glob("spare.*"))):
        (path / name).unlink()
    (path / "jobs.json").write_text(json.dumps(jobs_in(path), indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1])))
