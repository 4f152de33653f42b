"""What stats reports about the binlog's files, compared with beanstalkd."""

import pytest
from on_directory import Beanstalkd, Ours

NAMES = ("oldest-index", "current-index", "records-migrated", "records-written", "max-size")


def story(start):
    """What a server shows over time: the lines of stats, and the file of each job."""
    shown = []

    def show(server, jobs):
        stats = server.stats("stats")
        shown.append([stats[f"binlog-{name}"] for name in NAMES])
        shown.append([server.stats(f"stats-job {number}")["file"] for number in jobs])

    server = start()
    show(server, [])
    jobs = [server.put(bytes(500)) for _ in range(3)]
    show(server, jobs)
    jobs += [server.put(bytes(500)) for _ in range(12)]
    show(server, jobs)
    for number in (7, 14):
        assert server.ask(f"delete {number}") == b"DELETED\r\n"
        jobs.remove(number)
    show(server, jobs)
    assert server.reserve_job(15)
    show(server, jobs)
    assert server.ask("bury 15 1") == b"BURIED\r\n"
    assert server.ask("kick-job 15") == b"KICKED\r\n"
    show(server, jobs)
    server.stop()
    server = start()
    show(server, jobs)
    jobs.append(server.put(bytes(500)))
    show(server, jobs)
    server.stop()
    return shown


def test_stats_reports_the_files_as_beanstalkd_does(tmp_path):
    ours = story(lambda: Ours(tmp_path / "ours", "-s", "4096"))
    (tmp_path / "theirs").mkdir()
    assert ours == story(lambda: Beanstalkd(tmp_path / "theirs", "-s", "4096"))
    assert ours[0] == [1, 1, 0, 0, 4096]
    assert [len(set(files)) for files in ours[1::2]] == [0, 1, 3, 3, 3, 3, 3, 4]


@pytest.mark.parametrize("start", [Ours, Beanstalkd])
def test_stats_shows_the_size_of_a_file_as_configured(tmp_path, start):
    server = start(tmp_path, "-s", "4000")
    assert server.stats("stats")["binlog-max-size"] == 4000
    server.stop()


def test_jobs_that_are_rewritten_are_counted_and_have_another_file(tmp_path):
    server = Ours(tmp_path, "-s", "4096")
    old = server.put(b"old")
    assert server.stats(f"stats-job {old}")["file"] == 1
    for _ in range(100):
        assert server.ask(f"delete {server.put(bytes(500))}") == b"DELETED\r\n"
    stats = server.stats("stats")
    assert stats["binlog-records-migrated"] >= 1
    assert stats["binlog-records-written"] == 201 + stats["binlog-records-migrated"]
    assert 1 < stats["binlog-oldest-index"] <= server.stats(f"stats-job {old}")["file"]
    assert server.stats(f"stats-job {old}")["file"] <= stats["binlog-current-index"]
    server.stop()
