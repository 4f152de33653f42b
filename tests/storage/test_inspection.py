"""The tools for a binlog report what is in it, change nothing, and refuse what they cannot judge."""

import asyncio
import base64
import json
import shutil
import time
from pathlib import Path

import pytest
from crc32c import crc32c
from virtual import RecordingClient, put

from beanstalk_server.cli.server import main
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.job import DELAYED, HELD
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.replay import Replay
from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.table import IdTable
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.beanstalkd import reader, writer
from beanstalk_server.storage.binlog import Binlog
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import DAMAGED, UNUSABLE, StorageError
from beanstalk_server.storage.inspection import Inspection, inspect
from beanstalk_server.storage.recovery import recover
from beanstalk_server.storage.segment import MAGIC, VERSION, segment_names
from beanstalk_server.storage.shown import shown_job

NOW = 5 * SECOND
OFFSET = 1_700_000_000 * SECOND
BAD_OPTION = 5


class Server:
    """A broker with a binlog in a directory, and one client that reserves whatever it wants."""

    def __init__(self, path, segment_size):
        self.binlog = Binlog(
            RealDirectory(path),
            segment_size=segment_size,
            clock=lambda: NOW,
            wall_clock=lambda: OFFSET + NOW,
            boot=b"another machine.",
        )
        self.broker = Broker(self.binlog, NOW)
        self.broker.restore(OFFSET, NOW)
        self.client = RecordingClient(self.broker)

    def put(self, body=b"body", tube="default", delay=0, key=""):
        self.broker.use(self.client, tube)
        assert put(self.broker, self.client, 10, delay, 60 * SECOND, body, NOW, key) == DONE
        return self.broker.next_id - 1

    def bury(self, number):
        assert self.broker.reserve_job(self.client, number, NOW) == DONE
        self.broker.bury(self.client, number, 7, NOW)

    def delete(self, number):
        self.broker.delete(self.client, number, NOW)

    def stored(self):
        return {job.id: self.binlog.stored(job) for job in self.broker.jobs.values()}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "jobs"


@pytest.fixture
def keep(path):
    """Has a server do something; returns the jobs that it has then, and leaves them in the directory."""

    def keep(work, segment_size=4096):
        async def live():
            server = Server(path, segment_size)
            await work(server)
            await server.binlog.commit()
            stored = server.stored()
            await server.binlog.close()
            return stored

        return asyncio.run(live())

    return keep


async def every_state(server):
    server.put(b"ready", "a", key="name")
    server.put(b"\xff\0", "b", delay=90 * SECOND + SECOND // 4)
    for number in (server.put(b"first put, last buried"), server.put(b"first buried"))[::-1]:
        server.bury(number)
    server.delete(server.put(b"gone"))


async def many(server, count=200):
    """Many jobs, of which every third stays; three segments and more."""
    for n in range(count):
        number = server.put(b"%0200d" % n)
        if n % 3:
            await server.binlog.commit()
            server.delete(number)


def found(path, what):
    """What an inspection finds, and the damages that it reports."""
    damages = []
    with inspect(RealDirectory(path)) as binlog:
        return list(getattr(binlog, what)(damages.append)), damages


def counted(path):
    with inspect(RealDirectory(path)) as binlog:
        return binlog.count()


def segment_paths(path):
    return [path / name for _, name in segment_names(RealDirectory(path))]


def content(path):
    return {file.relative_to(path): (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*")}


def spoil(file, offset, data=None):
    """Write something else, or invert a byte."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        data = data or bytes([opened.read(1)[0] ^ 0xFF])
        opened.seek(offset)
        opened.write(data)


def tear(path, data=b"\x01" * 21):
    """Tear the end of the newest segment, as a crash does; return the offset."""
    with inspect(RealDirectory(path)) as binlog:
        binlog.count()
        end = binlog.tail.end
        name = binlog.segments[-1][1]
    spoil(path / name, end, data)
    return end


# What is found


def test_live_jobs_are_those_that_the_server_has(path, keep):
    stored = keep(every_state)
    live, damages = found(path, "live")
    assert damages == []
    assert {job.id: job for job in live} == stored
    assert [job.id for job in live] == [1, 2, 4, 3]


def test_ids_that_are_used_up_are_known(path, keep):
    keep(every_state)
    with inspect(RealDirectory(path)) as binlog:
        assert len(list(binlog.live(pytest.fail))) == 4
        assert binlog.next_id == 6


def test_each_segment_is_counted(path, keep):
    keep(many)
    counts = counted(path)
    records, _ = found(path, "records")
    assert len(counts) > 2
    assert [count.name for count in counts] == [file.name for file in segment_paths(path)]
    assert sum(count.live for count in counts) == 67
    assert sum(count.dead for count in counts) == sum(count.records for count in counts) - 67
    for count, file in zip(counts, segment_paths(path), strict=True):
        own = [record for record in records if record["segment"] == count.name]
        assert count.commits == sum(record["type"] == "commit" for record in own)
        assert count.records == len(own) - count.commits - sum(record["type"] == "clock" for record in own)
        assert count.damages == []
        assert 0 < count.bytes <= file.stat().st_size


def test_the_last_put_and_the_last_change_are_live(path, keep):
    async def work(server):
        number = server.put()
        for _ in range(3):
            server.bury(number)
            server.broker.kick_job(server.client, number, NOW)
        other = server.put()
        server.bury(other)
        server.delete(other)

    keep(work)
    (count,) = counted(path)
    kinds = [record["type"] for record in found(path, "records")[0]]
    assert kinds.count("change") > 2
    assert (count.live, count.records) == (2, len(kinds) - kinds.count("commit") - 1)


def test_records_are_shown_with_all_their_fields(path, keep):
    keep(every_state)
    records, _ = found(path, "records")
    assert [record["type"] for record in records[:4]] == ["commit", "clock", "put", "put"]
    commit, clock, first, second = records[:4]
    assert commit.keys() == {"segment", "offset", "type", "number", "durable", "length", "next-id", "written-at"}
    assert (commit["number"], commit["next-id"]) == (1, 6)
    assert (clock["clock-offset"], clock["boot"]) == (1_700_000_000, "616e6f74-6865-7220-6d61-6368696e652e")
    assert first == {
        "segment": "segment.0000000001", "offset": 118, "type": "put", "id": 1, "tube": "a", "key": "name",
        "state": "ready", "pri": 10, "delay": 0, "ttr": 60, "created-at": 1_700_000_005, "reserves": 0,
        "timeouts": 0, "releases": 0, "buries": 0, "kicks": 0, "body": "ready",
    }  # fmt: skip
    assert (second["state"], second["delay"], second["due-at"]) == ("delayed", 90.25, 1_700_000_095.25)
    assert base64.b64decode(second["body-base64"]) == b"\xff\0"
    change = next(record for record in records if record["type"] == "change")
    assert (change["id"], change["state"], change["pri"], change["buries"]) == (4, "buried", 7, 1)
    assert "due-at" not in change
    assert [record["id"] for record in records if record["type"] == "delete"] == [5]


async def cleared(server):
    for tube in ("a", "a", "b", "a"):
        server.put(tube=tube)
    server.bury(1)
    assert server.broker.reserve_job(server.client, 2, NOW) == DONE
    server.broker.clear(server.client, "a")
    server.put(tube="a")


def test_what_was_cleared_is_dead(path, keep):
    stored = keep(cleared)
    assert set(stored) == {2, 3, 5}
    live, damages = found(path, "live")
    assert ([job.id for job in live], damages) == ([2, 3, 5], [])
    (count,) = counted(path)
    assert (count.records, count.live) == (7, 3), "five puts, a change and a clear"
    (record,) = [record for record in found(path, "records")[0] if record["type"] == "clear"]
    assert (record["tube"], record["reserved"]) == ("a", [2])


async def one_key_for_two(server):
    server.put(key="k")
    server.broker.tubes.default.keys.remove(server.broker.jobs[1])  # a bug
    server.put(key="k")


def test_verify_reports_a_key_that_names_two_jobs(path, keep, capsys):
    keep(one_key_for_two)
    assert main(["binlog", "verify", str(path)]) == DAMAGED
    assert ": job 1 has the key 'k' in tube 'default', and so has job 2" in capsys.readouterr().out
    assert [(job.id, job.key) for job in found(path, "live")[0]] == [(1, ""), (2, "k")], "as a start does"


def test_progress_ends_at_the_size(path, keep):
    keep(many)
    told = []
    with inspect(RealDirectory(path)) as binlog:
        binlog.count(told.append)
        assert told == sorted(told)
        assert binlog.size() - 4096 < told[-1] <= binlog.size()


def test_the_tools_change_nothing(path, keep, capsys):
    keep(many)
    tear(path)
    before = content(path)
    for arguments in (["verify"], ["dump"], ["dump", "--live"], ["export", "--to", str(path.parent / "back")]):
        assert main(["binlog", *arguments, str(path)]) == 0
    assert content(path) == before


# What a crash leaves, and what is damaged


def test_a_torn_tail_is_no_damage(path, keep):
    stored = keep(many)
    before = counted(path)
    records, _ = found(path, "records")
    tear(path)
    after = counted(path)
    assert after[-1].torn == 21
    after[-1].torn = 0
    assert after == before
    assert found(path, "records") == (records, [])
    assert {job.id for job in found(path, "live")[0]} == stored.keys()


def test_damage_is_named_and_passed_over(path, keep):
    keep(many)
    records, _ = found(path, "records")
    names = [file.name for file in segment_paths(path)]
    puts = [record for record in records if record["type"] == "put"]
    spoilt = [next(record for record in puts if record["segment"] == name) for name in (names[0], names[-2])]
    for record in spoilt:
        spoil(path / record["segment"], record["offset"] + 20)
    kept, damages = found(path, "records")
    assert kept == [record for record in records if record not in spoilt]
    assert [(damage.segment, damage.offset) for damage in damages] == [
        (put["segment"], put["offset"]) for put in spoilt
    ]
    assert all(damage.what == "bad checksum" and damage.skipped == 276 + 7 for damage in damages)
    assert [damage for count in counted(path) for damage in count.damages] == damages
    assert found(path, "live")[1] == damages


def test_a_missing_segment_is_named(path, keep):
    keep(many)
    first, second, third = segment_paths(path)[:3]
    second.unlink()
    _, damages = found(path, "records")
    assert [(damage.segment, damage.what) for damage in damages] == [(second.name, "the file is missing")]
    assert [count.name for count in counted(path)][:3] == [first.name, second.name, third.name]


@pytest.mark.parametrize("offset", [0, 12, 30], ids=["magic", "sequence", "checksum"])
def test_a_damaged_header_is_the_only_damage_reported(path, keep, offset):
    keep(many)
    second = segment_paths(path)[1]
    spoil(second, offset)
    _, damages = found(path, "records")
    assert [(damage.segment, damage.offset) for damage in damages] == [(second.name, 0)]
    salvaged = {job.id for job in found(path, "live")[0]}
    replay = Replay(IdTable())
    recover(RealDirectory(path), replay, salvage=True, segment_size=4096, draw_salt=lambda: 1)
    assert set(replay.jobs) == salvaged
    assert [file.name for file in (path / "damaged").iterdir()] == [second.name]


def test_a_segment_without_a_commit_is_damaged(path, keep):
    keep(every_state)
    (file,) = segment_paths(path)
    spoil(file, 32, bytes(file.stat().st_size - 32))
    ((damage,),) = [count.damages for count in counted(path)]
    assert (damage.offset, damage.what) == (32, "no commit")


def test_a_segment_under_the_name_of_another_is_damaged(path, keep):
    keep(many)
    (number, _), *_ = segment_names(RealDirectory(path))
    first, second = segment_paths(path)[:2]
    shutil.copy(first, second)
    _, damages = found(path, "records")
    assert damages[0].segment == second.name
    assert damages[0].what == f"the header belongs to segment {number}"


# What is refused


def refusal(path):
    with pytest.raises(StorageError) as error, inspect(RealDirectory(path)) as binlog:
        binlog.count()
    return str(error.value), error.value.status


def test_a_directory_that_a_server_uses_is_refused(path, keep):
    async def work(server):
        server.put()
        assert refusal(path) == (f"{path}: another server uses this directory", UNUSABLE)

    keep(work)
    assert counted(path)


def test_a_directory_that_is_missing_is_not_made(path):
    assert refusal(path) == (f"{path}: cannot be used: No such file or directory", UNUSABLE)
    assert not path.exists()


def test_a_directory_without_a_binlog_is_refused(path):
    path.mkdir()
    assert refusal(path) == (f"{path}: holds no binlog: name the directory that is given to -b", UNUSABLE)
    assert list(path.iterdir()) == []


def test_a_binlog_in_which_nothing_was_written_yet_is_empty(path):
    path.mkdir()
    (path / "lock").touch()
    assert counted(path) == []


def test_a_copy_without_a_lock_gets_none(path, keep):
    keep(many)
    (path / "lock").unlink()
    assert counted(path)
    assert not (path / "lock").exists()


def test_a_copy_on_which_a_server_is_started_meanwhile_is_reported(path, keep):
    keep(many)
    (path / "lock").unlink()
    with (
        pytest.raises(StorageError, match="a server was started on this directory during the run"),
        inspect(RealDirectory(path)),
    ):
        (path / "lock").touch()


def test_files_of_beanstalkd_are_refused(path):
    path.mkdir()
    writer.write(RealDirectory(path), [], next_id=5)
    message, status = refusal(path)
    assert message.startswith(f"{path}: holds files of beanstalkd (binlog.1)")
    assert status == UNUSABLE


def test_an_interrupted_start_is_refused(path, keep):
    keep(many)
    (path / "rewriting").mkdir()
    message, status = refusal(path)
    assert message.startswith(f"{path}/rewriting: the start of beanstalk-server was interrupted")
    assert status == UNUSABLE


def test_a_newer_version_is_refused(path, keep):
    keep(many)
    file = segment_paths(path)[0]
    header = MAGIC + (VERSION + 1).to_bytes(4, "little") + file.read_bytes()[12:28]
    spoil(file, 0, header + crc32c(header).to_bytes(4, "little"))
    message = f"{file}: format version {VERSION + 1} is newer than this server supports (up to {VERSION})"
    assert refusal(path) == (message, UNUSABLE)


def test_a_segment_that_cannot_be_read_is_named(path, keep):
    keep(many)
    file = segment_paths(path)[0]
    file.unlink()
    file.mkdir()
    message, status = refusal(path)
    assert (message, status) == (f"{file.name}: cannot be used: Is a directory", UNUSABLE) or message.startswith(
        str(path)
    )


# The command line


def test_verify_prints_a_row_for_each_segment(path, keep, capsys):
    keep(many)
    end = tear(path)
    assert main(["binlog", "verify", str(path)]) == 0
    out, err = capsys.readouterr()
    head, *rows, total = [line.split(maxsplit=6) for line in out.splitlines()]
    assert head == ["segment", "records", "live", "dead", "commits", "bytes", "state"]
    assert [row[0] for row in rows] == [file.name for file in segment_paths(path)]
    assert [row[6] for row in rows] == ["whole"] * (len(rows) - 1) + ["torn tail: 21 bytes, never acknowledged"]
    assert rows[-1][5] == str(end)
    assert total[6] == "whole"
    for column in range(1, 6):
        assert int(total[column]) == sum(int(row[column]) for row in rows)
    assert err == ""


def test_verify_reports_all_damage(path, keep, capsys):
    keep(many)
    first = segment_paths(path)[0]
    puts = [record["offset"] for record in found(path, "records")[0] if record["type"] == "put"]
    spoil(first, puts[0] + 20)
    spoil(first, puts[2] + 20)
    assert main(["binlog", "verify", str(path)]) == DAMAGED
    _, row, another, *_, total = capsys.readouterr().out.splitlines()
    assert f"damaged at offset {puts[0]}: bad checksum; " in row
    assert another.strip().startswith(f"damaged at offset {puts[2]}: ")
    assert total.endswith("damaged in 2 places")


def test_dump_prints_a_line_for_each_record(path, keep, capsys):
    keep(every_state)
    assert main(["binlog", "dump", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == found(path, "records")[0]


def test_dump_prints_a_line_for_each_live_job(path, keep, capsys):
    keep(every_state)
    assert main(["binlog", "dump", "--live", str(path)]) == 0
    jobs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(job["id"], job["state"]) for job in jobs] == [(1, "ready"), (2, "delayed"), (4, "buried"), (3, "buried")]
    assert [job.get("buried-as") for job in jobs] == [None, None, 1, 2]
    assert jobs[2]["body"] == "first buried"


def test_dump_continues_after_damage(path, keep, capsys):
    keep(many)
    put = next(record for record in found(path, "records")[0] if record["type"] == "put")
    spoil(path / put["segment"], put["offset"] + 20)
    tear(path)
    records, (damage,) = found(path, "records")
    assert main(["binlog", "dump", str(path)]) == DAMAGED
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(records)
    told, torn = err.splitlines()
    assert told == f"{path}/{put['segment']}: {damage}"
    assert "skipped a torn tail of 21 bytes" in torn


def test_export_writes_what_beanstalkd_reads(path, keep, capsys):
    stored = keep(every_state)
    back = path.parent / "back"
    assert main(["binlog", "export", str(path), "--to", str(back)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"exported 4 jobs to {back}: 1 file, ")
    assert said[1:] == ["dropped 1 key: beanstalkd has no keys"]
    contents = reader.read(RealDirectory(back), pytest.fail)
    assert contents.last_id == 5
    jobs = list(contents.jobs())
    assert [job.id for job in jobs] == [1, 2, 4, 3]
    for job in jobs:
        told = stored[job.id]
        # beanstalkd counts one more bury for each at its start
        assert job == told.replace(key="", buries=0, bury_sequence=0)


def test_export_says_what_is_lost_of_policies(path, capsys):
    shutil.copytree(Path(__file__).parent / "versions" / "3", path)
    assert main(["binlog", "export", str(path), "--to", str(path.parent / "back")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("exported 17 jobs to ")
    assert said[1:] == [
        "dropped 4 keys: beanstalkd has no keys",
        "dropped 1 held key",
        "dropped the attributes of 6 jobs (tries, ttl, origin and others)",
    ]
    contents = reader.read(RealDirectory(path.parent / "back"), pytest.fail)
    jobs = {job.id: job for job in contents.jobs()}
    assert (jobs[16].state, jobs[19].tube, jobs[20].tube) == (DELAYED, "dead", "dead")
    assert 22 not in jobs
    assert contents.last_id == 23


def test_export_says_that_pauses_end(path, keep, capsys):
    async def work(server):
        server.put()
        assert server.broker.pause(server.client, "default", 60 * SECOND, NOW) == DONE

    keep(work)
    assert main(["binlog", "export", str(path), "--to", str(path.parent / "back")]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["dropped 1 tube pause"]


def test_export_says_which_bodies_beanstalkd_does_not_take(path, keep, capsys):
    async def work(server):
        server.put(b"x" * 65_534)

    keep(work)
    assert main(["binlog", "export", str(path), "--to", str(path.parent / "back")]) == 0
    assert "start beanstalkd with -z 65536 or more" in capsys.readouterr().out


def test_export_refuses_what_is_damaged(path, keep, capsys):
    keep(many)
    put = next(record for record in found(path, "records")[0] if record["type"] == "put")
    spoil(path / put["segment"], put["offset"] + 20)
    back = path.parent / "back"
    assert main(["binlog", "export", str(path), "--to", str(back)]) == DAMAGED
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{put['segment']}: damaged at offset {put['offset']}" in err
    assert "--salvage" in err
    assert not back.exists()


@pytest.mark.parametrize("name", ["binlog.1", "segment.0000000001"])
def test_export_refuses_a_directory_that_is_in_use(path, keep, capsys, name):
    keep(every_state)
    back = path.parent / "back"
    back.mkdir()
    (back / name).touch()
    assert main(["binlog", "export", str(path), "--to", str(back)]) == UNUSABLE
    assert capsys.readouterr().err.count("\n") == 1
    assert [file.name for file in back.iterdir()] == [name]


def test_export_refuses_its_own_directory(path, keep, capsys):
    path.mkdir()
    (path / "lock").touch()
    assert main(["binlog", "export", str(path), "--to", str(path)]) == UNUSABLE
    assert "name another directory" in capsys.readouterr().err


def test_export_refuses_a_tube_that_beanstalkd_cannot_have(path, keep, capsys, monkeypatch):
    keep(every_state)
    bad = Inspection.live
    monkeypatch.setattr(Inspection, "live", lambda *arguments: (job.replace(tube="-a") for job in bad(*arguments)))
    back = path.parent / "back"
    assert main(["binlog", "export", str(path), "--to", str(back)]) == UNUSABLE
    assert "does not allow the tube name '-a'" in capsys.readouterr().err
    assert not back.exists()


def test_export_names_a_directory_that_cannot_be_made(path, keep, capsys):
    keep(every_state)
    (path.parent / "file").touch()
    assert main(["binlog", "export", str(path), "--to", str(path.parent / "file" / "back")]) == UNUSABLE
    assert "cannot write: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["check"], ["verify"], ["verify", "a", "b"], ["export", "a"], ["dump", "-x", "a"]]
)
def test_a_bad_option_is_reported_in_one_line(arguments, capsys):
    assert main(["binlog", *arguments]) == BAD_OPTION
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("beanstalk-server binlog: ")
    assert err.count("\n") == 1


def test_a_directory_that_cannot_be_used_is_reported_in_one_line(path, capsys):
    assert main(["binlog", "verify", str(path)]) == UNUSABLE
    assert capsys.readouterr().err == f"beanstalk-server binlog: {path}: cannot be used: No such file or directory\n"


def test_a_large_binlog_is_quick(path, keep):
    """This asserts no speed: it guards against work that grows with the square of the jobs."""

    async def work(server):
        for _ in range(20_000):
            server.put(b"x" * 50)
        await server.binlog.commit()

    keep(work, 1 << 20)
    begin = time.process_time()
    counts = counted(path)
    assert sum(count.live for count in counts) == 20_000
    assert time.process_time() - begin < 10


def test_a_token_is_shown_with_the_id_of_its_job():
    token = StoredJob(9, "t", "-order-17", HELD, deadline=5 * SECOND, created_at=SECOND, has_terms=True)
    token.set_token_job(2**64 - 1)
    assert shown_job(token) == {
        "id": 9,
        "tube": "t",
        "once": "order-17",
        "state": "held",
        "job": 2**64 - 1,
        "created-at": 1,
        "held-until": 5,
    }
