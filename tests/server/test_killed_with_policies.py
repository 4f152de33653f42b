"""A server with policies, killed again and again: tries, held keys, dead letters, moments, groups, limits
(promises.py)."""

import random
import time

import pytest
from promises import AUDIT, CLIENTS, CONFIG, Auditor, Book, Worker

from harness.servers import launch
from harness.waiting import eventually


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
    print(f"killed {rounds} times: {told}; {redriven} dead letters redriven ({time.monotonic() - began:.0f} s)")
    assert book.told[b"RELEASED"] > rounds and book.told[b"EXISTS"] and redriven
    assert book.told[b"(after a group)"] and book.told[b"(limited)"]


def test_a_server_with_policies_that_is_killed_forgets_no_try_and_frees_no_key(tmp_path):
    kill_again_and_again(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-f", "50"), ("--body-threshold", "0", "--body-cache", "1000")])
def test_it_does_so_however_often(tmp_path, options):
    kill_again_and_again(tmp_path, 40, *options)
