"""A server that is killed again and again keeps what it has acknowledged, and brings nothing back: jobs, tries, held
keys, dead letters, moments, groups and limits (promises.py)."""

import random
import time

import pytest
from promises import AUDIT, CLIENTS, CONFIG, Auditor, Book, Worker

from harness.servers import launch
from harness.waiting import eventually

ON_DISK = ("--body-threshold", "0", "--body-cache", "1000")


def kill_again_and_again(directory, rounds, *options):
    rng = random.Random(rounds)
    book = Book()
    config = directory / "config.toml"
    config.write_text(CONFIG)
    binlog = directory / "binlog"
    binlog.mkdir()
    began = time.monotonic()
    redriven = 0
    for round_number in range(rounds + 1):
        process = launch("-p", "0", "-b", str(binlog), "-s", "65536", "--config", str(config), *options)
        try:
            book.new_life()
            if round_number % AUDIT == 0 or round_number == rounds:
                auditor = Auditor(book, process.address, rng)
                auditor.audit()
                assert not book.problems, (round_number, book.problems, book.stories[:5], process.log[-500:])
                redriven += auditor.redrive()
                auditor.kick()
                auditor.close()
            assert "Traceback" not in process.log, process.log
            if round_number == rounds:
                assert process.stop() == 0
                break
            workers = [Worker(book, process.address, number, random.Random(rng.random())) for number in range(CLIENTS)]
            for worker in workers:
                worker.start()
            work = book.told.total() + rng.randrange(200, 2000)  # until then it works, and then it is killed
            eventually(
                lambda work=work, workers=workers: book.told.total() >= work or any(each.failure for each in workers),
                "clients are answered",
            )
            book.begin_kill()
        finally:
            process.kill()
        for worker in workers:
            worker.join(60)
            assert worker.failure is None, worker.failure
        assert not book.problems, (round_number, book.problems, book.stories[:5], process.log[-500:])
    told = ", ".join(f"{count:,} {word.decode()}" for word, count in sorted(book.told.items()))
    how = f" with {' '.join(options)}" if options else ""
    print(f"killed {rounds} times{how}: {told}; {redriven} dead letters redriven ({time.monotonic() - began:.0f} s)")
    assert book.told[b"RELEASED"] > rounds and book.told[b"EXISTS"] and redriven
    assert book.told[b"(after a group)"] and book.told[b"(limited)"]


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
