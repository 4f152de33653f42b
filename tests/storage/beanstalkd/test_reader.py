"""beanstalkd's binlog files: hand-made ones, and those that `write` makes."""

import errno
import os
import struct

import pytest
from effort import BASE_SEED, some_of
from hypothesis import given
from hypothesis import strategies as st
from memory_disk import MemoryDirectory

from beanstalk_server.queue.stored_job import StoredJob
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.beanstalkd import reader, writer
from beanstalk_server.storage.beanstalkd.format import file_names
from beanstalk_server.storage.beanstalkd.reader import UnknownVersionError
from beanstalk_server.storage.beanstalkd.writer import Written
from beanstalk_server.storage.disk import RealDirectory
from beanstalk_server.storage.errors import StorageError

NOW = 1_700_000_000 * SECOND
DELETED, READY, RESERVED, BURIED, DELAYED, COPY = range(6)
HEADER = struct.pack("<i", 7)


def files(path):
    return [path / name for name in file_names(os.listdir(path))]


def read(path, *arguments, **settings):
    return reader.read(RealDirectory(path), *arguments, **settings)


def write(path, *arguments, **settings):
    return writer.write(RealDirectory(path), *arguments, **settings)


def record(
    id,
    tube="",
    body=None,
    state=READY,
    pri=1,
    delay=0,
    ttr=60 * SECOND,
    created=None,
    deadline=0,
    counts=(0, 0, 0, 0, 0),
    size=None,
    crlf=b"\r\n",
):
    """A record as beanstalkd writes it; a short one if there is no tube. Short ones are of jobs with four bytes."""
    name = tube.encode()
    size = (4 if body is None else len(body)) + 2 if size is None else size
    created = NOW + id if created is None else created
    data = struct.pack("<i", len(name)) + name
    data += struct.pack("<QIxxxxqqixxxxqq5IBxxx", id, pri, delay, ttr, size, created, deadline, *counts, state)
    return data if body is None else data + body + crlf


def record5(id, tube="", body=None, state=READY, delay=0, deadline=0, counts=(0, 0, 0, 0, 0), created=None):
    """The same in version 5, in microseconds."""
    name = tube.encode()
    size = (4 if body is None else len(body)) + 2
    created = (NOW // 1000 + id) if created is None else created
    data = struct.pack("<Q", len(name)) + name
    data += struct.pack("<QIxxxxqqixxxxqq5IB", id, 1, delay, 60_000_000, size, created, deadline, *counts, state)
    return data if body is None else data + body + b"\r\n"


def stored(id, tube="t", body=b"body", state=READY, **fields):
    """What is expected of `record` with the same arguments."""
    fields = {"priority": 1, "delay": 0, "ttr": 60 * SECOND, "created_at": NOW + id, "deadline": 0} | fields
    return StoredJob(id, tube, "", state, body=body, **fields)


def read_all(directory, **settings):
    """Read; return the contents, the jobs, and the warnings."""
    warnings = []
    contents = read(directory, warnings.append, **settings)
    jobs = list(contents.jobs())
    assert len(contents) == len(jobs)
    assert len({job.id for job in jobs}) == len(jobs)
    assert all(job.id <= contents.last_id for job in jobs)
    for odd in [*contents.damages, *filter(None, [contents.torn])]:
        assert str(odd) in warnings
    return contents, jobs, warnings


@pytest.fixture
def given_files(tmp_path):
    """Makes binlog.1, binlog.2 and so on of these bytes, and reads them."""

    def make(*contents, header=HEADER):
        for path in files(tmp_path):
            path.unlink()
        for number, data in enumerate(contents, 1):
            (tmp_path / f"binlog.{number}").write_bytes(header + data)
        return read_all(tmp_path)

    make.directory = tmp_path
    return make


def clean(result):
    """The jobs of what was read without any warning."""
    contents, jobs, warnings = result
    assert warnings == []
    assert contents.damages == []
    assert contents.torn is None
    return jobs


def damaged(result, offset, words, file=1):
    """The jobs of what was read with just this damage."""
    contents, jobs, warnings = result
    (damage,) = contents.damages
    assert damage.offset == offset
    assert words in damage.what
    assert damage.path.name == f"binlog.{file}"
    assert warnings == [str(damage)]
    assert contents.torn is None
    return jobs


class TestFiles:
    def test_are_in_the_order_of_their_numbers(self, tmp_path):
        for number in (10, 9, 0, 100):
            (tmp_path / f"binlog.{number}").touch()
        assert [path.name for path in files(tmp_path)] == ["binlog.0", "binlog.9", "binlog.10", "binlog.100"]

    def test_are_only_those_that_beanstalkd_opens(self, tmp_path):
        for name in ("binlog.07", "binlog.", "binlog.1.partial", "binlog.-1", "lock", "binlog.x", "xbinlog.1"):
            (tmp_path / name).touch()
        assert files(tmp_path) == []

    def test_none_is_an_empty_queue(self, tmp_path):
        contents, jobs, warnings = read_all(tmp_path)
        assert (contents.last_id, jobs, warnings) == (0, [], [])

    def test_a_missing_directory_is_an_os_error(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none", print)

    def test_one_that_is_missing_between_others_is_damage(self, given_files):
        given_files(record(1, "t", b"body"), b"", record(2, "t", b"body"))
        (given_files.directory / "binlog.2").unlink()
        jobs = damaged(read_all(given_files.directory), 0, "binlog.2 (after binlog.1) is missing", file=3)
        assert [job.id for job in jobs] == [1, 2]

    def test_an_unknown_version_is_named(self, given_files):
        with pytest.raises(UnknownVersionError, match=r"binlog.1: unknown version 6: .* version 7 or 5$"):
            given_files(b"", header=struct.pack("<i", 6))

    @pytest.mark.parametrize("size", range(4))
    def test_one_without_a_version_holds_nothing(self, given_files, size):
        given_files(record(1, "t", b"body"), b"")
        (given_files.directory / "binlog.2").write_bytes(HEADER[:size])
        contents, jobs, (warning,) = read_all(given_files.directory)
        assert jobs == [stored(1)]
        assert f"binlog.2: offset 0: only {size} bytes, no version" in warning
        assert contents.damages == []

    def test_one_of_zeros_holds_nothing(self, given_files):
        contents, jobs, (warning,) = given_files(bytes(4096), header=bytes(4))
        assert jobs == contents.damages == []
        assert "only zeros" in warning


class TestRecords:
    def test_a_full_one_is_a_job(self, given_files):
        counts = (1, 2, 3, 4, 5)
        data = record(
            7, "t", b"a\r\nb\0", pri=2**32 - 1, delay=3 * SECOND, deadline=NOW + 5, state=DELAYED, counts=counts
        )
        (job,) = clean(given_files(data))
        assert job == StoredJob(
            7, "t", "", DELAYED, 2**32 - 1, 3 * SECOND, 60 * SECOND, b"a\r\nb\0", NOW + 7, NOW + 5, 0, 1, 2, 3, 4, 5
        )

    @pytest.mark.parametrize(
        ("number", "state"), [(READY, READY), (RESERVED, READY), (BURIED, BURIED), (DELAYED, DELAYED)]
    )
    def test_states(self, given_files, number, state):
        assert clean(given_files(record(1, "t", b"body", state=number))) == [stored(1, state=state)]
        jobs = clean(given_files(record(1, "t", b"body") + record(1, state=number)))
        assert jobs == [stored(1, state=state)]

    def test_a_short_one_updates_all_but_tube_and_body(self, given_files):
        update = record(1, state=DELAYED, pri=9, delay=8, ttr=7, deadline=6, counts=(5, 4, 3, 2, 1))
        (job,) = clean(given_files(record(1, "t", b"body"), update))
        assert job == StoredJob(1, "t", "", DELAYED, 9, 8, 7, b"body", NOW + 1, 6, 0, 5, 4, 3, 2, 1)

    def test_a_short_one_of_an_unknown_job_is_ignored_but_for_its_id(self, given_files):
        result = given_files(record(9) + record(1, "t", b"body") + record(8, state=DELETED))
        assert clean(result) == [stored(1)]
        assert result[0].last_id == 9

    def test_a_deleted_job_is_gone_but_its_id_is_not_forgotten(self, given_files):
        result = given_files(record(1, "t", b"body") + record(2, "t", b"body"), record(2, state=DELETED) + record(2))
        assert clean(result) == [stored(1)]
        assert result[0].last_id == 2

    def test_a_second_full_one_replaces_the_first_in_its_place(self, given_files):
        again = record(1, "t", b"ydob", state=BURIED)
        jobs = clean(given_files(record(1, "t", b"body") + record(2, "t", b"body", state=BURIED), again))
        assert jobs == [stored(1, body=b"ydob", state=BURIED), stored(2, state=BURIED)]

    def test_jobs_come_in_the_order_of_their_first_records(self, given_files):
        data = b"".join(record(n, "t", b"body") for n in (3, 1, 2))
        updates = b"".join(record(n, state=BURIED) for n in (2, 3, 1))
        assert [job.id for job in clean(given_files(data, updates))] == [3, 1, 2]

    def test_tubes_with_the_longest_name_and_jobs_without_a_body(self, given_files):
        name = "+" * 200
        assert clean(given_files(record(1, name, b""))) == [stored(1, tube=name, body=b"")]

    def test_more_tubes_than_names_are_remembered(self, given_files, monkeypatch):
        monkeypatch.setattr(reader, "_MOST_NAMES", 3)
        jobs = clean(given_files(b"".join(record(n, f"t{n % 7}", b"body") for n in range(1, 100))))
        assert [job.tube for job in jobs] == [f"t{n % 7}" for n in range(1, 100)]

    def test_version_5_has_microseconds(self, given_files):
        data = record5(1, "t", b"body") + record5(2, "t", b"body") + record5(3) + record5(2, state=DELETED)
        data += record5(1, state=DELAYED, delay=5_000_000, deadline=NOW // 1000, counts=(1, 2, 3, 4, 5))
        result = given_files(data + bytes(100), header=struct.pack("<i", 5))
        assert result[0].last_id == 3
        assert clean(result) == [
            StoredJob(
                1, "t", "", DELAYED, 1, 5 * SECOND, 60 * SECOND, b"body", NOW + 1000, NOW, 0, 1, 2, 3, 4, 5
            )
        ]  # fmt: skip

    def test_both_versions_in_one_directory(self, given_files):
        given_files(b"", record(1, "t", b"body", created=NOW + 1000, state=BURIED))
        (given_files.directory / "binlog.1").write_bytes(struct.pack("<i", 5) + record5(1, "t", b"body"))
        assert clean(read_all(given_files.directory)) == [stored(1, state=BURIED, created_at=NOW + 1000)]


FIRST = record(1, "t", b"body") + record(2, "t", b"body", state=BURIED)
FIRST_JOBS = [stored(1), stored(2, state=BURIED)]
OFFSET = 4 + len(FIRST)
LAST = record(3, "t", b"body")


class TestDamage:
    @pytest.mark.parametrize(
        ("data", "words"),
        [
            (struct.pack("<i", -1) + bytes(100), "a tube name of -1 bytes"),
            (struct.pack("<i", 201) + bytes(300), "a tube name of 201 bytes"),
            (record(3, "-t", b"body"), "invalid tube name b'-t'"),
            (record(3, "a b", b"body"), "invalid tube name b'a b'"),
            (record(3, "t", b"body", state=COPY), "impossible job state: 5"),
            (record(1, state=77), "impossible job state: 77"),
            (record(1, state=BURIED, size=7), "the body of job 1 had 4 bytes, and now has 5"),
            (record(1, "t", b"long body"), "the body of job 1 had 4 bytes, and now has 9"),
            (record(3, "t", b"body", size=1), "impossible body size: 1 bytes"),
            (record(3, "t", b"body", size=-1), "impossible body size: -1 bytes"),
            (record(3, "t", b"body", size=2**30 + 3), "impossible body size: 1073741827 bytes"),
            (record(3, "t", b"body", crlf=b"\n\r"), "a body that does not end in CR LF"),
            (record(3, "t", b"body", delay=-1), "impossible delay: -1 ns"),
            (record(3, "t", b"body", delay=2**32 * SECOND + 1), "impossible delay:"),
            (record(3, "t", b"body", ttr=-1), "impossible ttr: -1 ns"),
            (record(3, "t", b"body", created=-1), "impossible creation time: -1 ns after 1970"),
            (record(3, "t", b"body", deadline=-1), "impossible deadline: -1 ns after 1970"),
            (record(1, "t", b"body", state=DELETED), "job 1 is deleted but has a body"),
            (record(0, "t", b"body"), "zeros, followed by other bytes"),
            (bytes(200), "zeros, followed by other bytes"),
            (record(3, "t", b"body", size=2000), "a record that is longer than the file and contains other records"),
        ],
    )  # fmt: skip
    def test_leaves_the_rest_of_the_file_unread(self, given_files, data, words):
        jobs = damaged(given_files(FIRST + data + LAST + record(1, state=DELETED)), OFFSET, words)
        assert jobs == FIRST_JOBS
        jobs = damaged(given_files(FIRST + data + LAST, record(4, "t", b"body")), OFFSET, words)
        assert jobs == [*FIRST_JOBS, stored(4)]

    def test_says_how_much_is_not_read(self, given_files):
        _, _, (warning,) = given_files(record(3, "t", b"body", state=COPY))
        assert warning.endswith(
            "/binlog.1: offset 4: impossible job state: 5; the last 91 bytes of the file are not read"
        )

    def test_an_update_with_another_time_of_creation_is_of_another_job(self, given_files):
        update = record(1, state=DELETED, created=NOW)
        jobs = damaged(given_files(FIRST + update + LAST), OFFSET, "job 1 has a different creation time")
        assert jobs == [*FIRST_JOBS, stored(3)]

    @pytest.mark.parametrize("again", [{"created": NOW}, {"tube": "u"}])
    def test_the_last_of_two_jobs_with_one_id_is_taken(self, given_files, again):
        data = record(1, **({"tube": "t", "body": b"new"} | again))
        jobs = damaged(given_files(FIRST + data + LAST), OFFSET, "job 1 is put twice")
        second = stored(1, body=b"new", tube=again.get("tube", "t"), created_at=again.get("created", NOW + 1))
        assert jobs == [FIRST_JOBS[1], second, stored(3)]


class TestEnds:
    @pytest.mark.parametrize("count", [1, 3, 4, 50, 83, 84, 85, 10_000, 3_000_000])
    def test_zeros_are_an_end(self, given_files, count):
        assert clean(given_files(FIRST + bytes(count))) == FIRST_JOBS

    def test_a_torn_tail_of_the_last_file_is_a_warning(self, given_files):
        contents, jobs, warnings = given_files(FIRST, LAST + record(4, "t", b"body")[:-3])
        assert jobs == [*FIRST_JOBS, stored(3)]
        assert contents.damages == []
        assert contents.torn.path.name == "binlog.2"
        assert contents.torn.offset == 4 + len(LAST)
        assert (
            contents.torn.what
            == f"the file ends in the middle of a record; the last {len(LAST) - 3} bytes of the file are not read"
        )
        assert warnings == [str(contents.torn)]

    @pytest.mark.parametrize("after", [[b""], [bytes(100), b""]])
    def test_files_without_records_do_not_count_as_later(self, given_files, after):
        contents, jobs, _ = given_files(FIRST, LAST[:-3], *after)
        assert jobs == FIRST_JOBS
        assert contents.damages == []
        assert contents.torn.path.name == "binlog.2"

    @pytest.mark.parametrize("after", [[LAST], [b"", LAST]])
    def test_a_torn_tail_of_an_earlier_file_is_damage(self, given_files, after):
        jobs = damaged(given_files(FIRST + record(4, "t", b"body")[:-3], *after), OFFSET, "the file ends in the middle")
        assert jobs == [*FIRST_JOBS, stored(3)]

    def test_two_torn_tails_are_damage_and_a_torn_tail(self, given_files):
        contents, jobs, _ = given_files(FIRST + LAST[:-1], LAST[:-1])
        assert jobs == FIRST_JOBS
        assert [damage.path.name for damage in contents.damages] == ["binlog.1"]
        assert contents.torn.path.name == "binlog.2"

    def test_a_torn_second_full_record_leaves_the_first(self, given_files):
        contents, jobs, _ = given_files(FIRST, record(1, "t", b"body", state=BURIED)[:-1])
        assert jobs == FIRST_JOBS
        assert contents.torn is not None

    @pytest.mark.parametrize("after", [b"", LAST])
    def test_a_put_that_beanstalkd_was_killed_in_is_a_warning_in_any_file(self, given_files, after):
        put = record(4, "tube", b"a body")
        for cut in (4, 8, len(put) - 8):  # it writes the length, the name, the record and the body one after the other
            contents, jobs, (warning,) = given_files(FIRST + put[:cut] + bytes(500), after)
            assert [job.id for job in jobs] == [1, 2] + [3] * bool(after)
            assert contents.damages == []
            assert contents.torn is None
            assert f"binlog.1: offset {OFFSET}: an unfinished record, never acknowledged" in warning

    def test_a_put_that_turns_into_zeros_at_any_byte_never_was(self, given_files):
        put = record(300, "tube", b"a body", deadline=NOW, counts=(1, 2, 3, 4, 5))
        for cut in range(1, len(put)):
            contents, jobs, (warning,) = given_files(FIRST + put[:cut] + bytes(500))
            assert jobs == FIRST_JOBS
            assert contents.damages == []
            assert "unfinished" in warning

    def test_a_change_that_turns_into_zeros_in_its_time_of_creation_never_was(self, given_files):
        for cut in range(8, 52):
            contents, jobs, (warning,) = given_files(FIRST + record(1, state=BURIED)[:cut] + bytes(500))
            assert jobs == FIRST_JOBS
            assert contents.damages == []
            assert "unfinished" in warning


def a_history():
    """Yield records of every kind, each with the live jobs after it."""
    full = {n: stored(n, tube=f"tube{n}", body=b"body", priority=1) for n in range(1, 9)}
    jobs = {}
    for n in range(1, 8):
        jobs[n] = full[n]
        yield record(n, f"tube{n}", b"body"), list(jobs.values())
    for n in (2, 5):
        del jobs[n]
        yield record(n, state=DELETED), list(jobs.values())
    for n, state in ((1, BURIED), (3, DELAYED), (6, BURIED)):
        jobs[n] = jobs[n].replace(state=state, deadline=NOW, releases=1, buries=2, kicks=256)
        yield record(n, state=state, deadline=NOW, counts=(0, 0, 1, 2, 256)), list(jobs.values())
    jobs[1] = jobs[1].replace(state=READY, body=b"ydob")
    yield record(1, "tube1", b"ydob", state=RESERVED, deadline=NOW, counts=(0, 0, 1, 2, 256)), list(jobs.values())
    yield record(2, state=BURIED), list(jobs.values())


def test_a_file_that_is_cut_at_any_byte_gives_the_jobs_of_what_is_left(given_files):
    data, jobs, begin, seen = b"", [], 0, 0
    steps = list(a_history())
    whole = b"".join(piece for piece, _ in steps)
    for piece, after in steps:
        for cut in range(begin, begin + len(piece)):
            contents, found, warnings = given_files(whole[:cut])
            assert found == jobs
            assert contents.damages == []
            rest = whole[begin:cut]
            assert bool(warnings) == bool(rest.strip(b"\0"))
            assert (contents.torn is not None) == bool(warnings)
            seen += 1
        data, jobs, begin = data + piece, after, begin + len(piece)
    assert clean(given_files(whole)) == jobs
    assert seen == len(whole)


def test_a_flipped_bit_never_fails_the_reader(given_files):
    """Nor does it cost more than the job that it is in without a warning."""
    steps = list(a_history())
    whole = HEADER + b"".join(piece for piece, _ in steps)
    expected = {job.id: job for job in steps[-1][1]}
    path = given_files.directory / "binlog.1"
    for bit in some_of(range(len(whole) * 8), 600, BASE_SEED):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            _, jobs, warnings = read_all(given_files.directory)
        except UnknownVersionError:
            assert bit < 32
            continue
        if not warnings:
            wrong = {job.id for job in jobs if expected.get(job.id) != job} | expected.keys() - {job.id for job in jobs}
            assert len(wrong) <= 2, (bit, wrong)


@given(st.binary(max_size=600), st.sampled_from([7, 5]))
def test_any_bytes_can_be_read(tmp_path_factory, data, version):
    directory = tmp_path_factory.mktemp("any")
    (directory / "binlog.1").write_bytes(struct.pack("<i", version) + data)
    read_all(directory)


@given(st.randoms(use_true_random=False), st.integers(1, 30), st.sampled_from([7, 5]))
def test_any_damage_can_be_read(tmp_path_factory, random, count, version):
    directory = tmp_path_factory.mktemp("any")
    if version == 7:
        whole = bytearray(b"".join(piece for piece, _ in a_history()))
    else:
        whole = bytearray(b"".join(record5(n, "t", b"body") + record5(n, state=n % 5) for n in range(1, 20)))
    for _ in range(count):
        whole[random.randrange(len(whole))] = random.randrange(256)
    (directory / "binlog.1").write_bytes(struct.pack("<i", version) + whole)
    read_all(directory)


NAMES = st.from_regex(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9\-+/;.$_()]{0,199}", fullmatch=True)
COUNTS = st.integers(0, 2**32 - 1)
DURATIONS = st.integers(0, (2**32 - 1) * SECOND)
TIMES = st.integers(0, 2**63 - 1)
JOBS = st.builds(
    StoredJob, st.integers(1, 2**64 - 2), NAMES, st.just(""), st.sampled_from([READY, DELAYED, BURIED]), COUNTS,
    DURATIONS, DURATIONS, st.binary(max_size=300), TIMES, TIMES, st.just(0), COUNTS, COUNTS, COUNTS, COUNTS, COUNTS
)  # fmt: skip


class TestWrite:
    @given(st.lists(JOBS, unique_by=lambda job: job.id), st.integers(100, 2000), st.integers(1, 2**64 - 1))
    def test_what_is_written_is_read(self, tmp_path_factory, jobs, size, next_id):
        directory = tmp_path_factory.mktemp("written")
        written = write(directory, jobs, next_id=next_id, size=size)
        result = read_all(directory)
        assert clean(result) == jobs
        assert result[0].last_id == max([next_id - 1, *(job.id for job in jobs)])
        paths = files(directory)
        assert written.jobs == len(jobs)
        assert written.files == len(paths)
        assert written.body_limit == max([len(job.body) + 2 for job in jobs], default=0)
        assert [path.name for path in paths] == [f"binlog.{number}" for number in range(1, len(paths) + 1)]
        assert list(directory.iterdir()) == [] or len(list(directory.iterdir())) == len(paths)

    def test_files_are_no_larger_than_asked_for_unless_one_job_is(self, tmp_path):
        jobs = [stored(n, body=b"x" * (3000 if n == 5 else 100)) for n in range(1, 11)]
        assert write(tmp_path, jobs, size=400).files == 6
        assert [path.stat().st_size for path in files(tmp_path)] == [378, 378, 3091, 378, 378, 191]

    def test_nothing_to_write_is_no_file(self, tmp_path):
        assert write(tmp_path, []) == Written(0, 0, 0, 0, 0, 0, 0, 0, 0)
        assert list(tmp_path.iterdir()) == []

    def test_keys_are_counted(self, tmp_path):
        jobs = [stored(n).replace(key="key" * (n % 2)) for n in range(1, 6)]
        assert write(tmp_path, jobs).keyed == 3

    @pytest.mark.parametrize("name", ["binlog.1", "binlog.9.partial", "binlog."])
    def test_a_directory_with_binlog_files_is_refused(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"precious")
        with pytest.raises(StorageError, match=f"{name} already exists: name a directory without binlog files$"):
            write(tmp_path, [stored(1)])
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"precious"]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"tube": "a b"}, "job 3: beanstalkd does not allow the tube name 'a b'"),
            ({"tube": "ä"}, "does not allow the tube name 'ä'"),
            ({"tube": "a" * 201}, "does not allow the tube name"),
            ({"priority": 2**32}, "job 3: cannot be written in beanstalkd's format"),
        ],
    )
    def test_a_job_that_beanstalkd_cannot_have_is_refused_and_nothing_is_left(self, tmp_path, change, words):
        jobs = [stored(1), stored(2), stored(3).replace(**change)]
        with pytest.raises(ValueError, match=words):
            write(tmp_path, jobs, size=100)
        assert list(tmp_path.iterdir()) == []

    def test_a_body_that_is_too_long_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(writer, "LONGEST_BODY", 5)
        with pytest.raises(ValueError, match="job 1: a body of 4 bytes; beanstalkd allows at most 3"):
            write(tmp_path, [stored(1)])
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
    def test_a_disk_that_fails_leaves_nothing(self, operation):
        directory = MemoryDirectory()
        directory.fail[operation] = errno.EIO
        with pytest.raises(OSError, match="failed on demand"):
            writer.write(directory, [stored(1), stored(2)], size=100)
        assert directory.nodes == {}
        assert directory.opened == 0
