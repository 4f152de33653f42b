"""A cluster with policies whose leaders are killed again and again: what promises.py says, under every leader.

`pytest -m slow -rP --kills 40 tests/cluster/test_killed_leaders_with_policies.py` kills this many, and prints what
clients were told. With shards, every second leader is stopped instead, and hands over.
"""

import contextlib
import random
import time

import pytest
from promises import AUDIT, CLIENTS, CONFIG, Auditor, Book, Worker

from harness.engines import KINDS
from harness.nodes import Node, leader, spread
from harness.waiting import eventually

SHARDS, NODES = 8, 3


def kill_leaders(directory, rounds, *, shards=1, nodes=2):
    rng = random.Random(rounds)
    book = Book(shards)
    config = directory / "config.toml"
    config.write_text(CONFIG)
    options = ["--lease-ttl", "4", "--config", str(config), *(["--shards", str(shards)] if shards > 1 else [])]
    redriven = kicked = killed = 0
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        engine = KINDS["alone"](directory / "engine")
        stack.callback(engine.close)
        running = []
        for _ in range(nodes):
            running.append(Node(engine.url, options))
            stack.callback(running[-1].kill)
        for number in range(rounds + 1):
            if shards > 1:
                spread(engine, running, shards)
            leads = leader(engine, running, shard=number % shards)
            book.new_life()
            if number % AUDIT == 0 or number == rounds:
                auditor = Auditor(book, leads.address, rng)  # it asks one thing after the other
                auditor.audit()
                assert not book.problems, (number, book.problems, book.stories[:5])
                redriven += auditor.redrive()
                kicked += auditor.kick()
                auditor.close()
            if number == rounds:
                break
            workers = [
                Worker(book, running[place % nodes].address, place, random.Random(rng.random()))
                for place in range(CLIENTS)
            ]
            for worker in workers:
                worker.start()
            work = book.told.total() + rng.randrange(200, 2000)  # until then it works, and then it is killed
            eventually(
                lambda work=work, workers=workers: book.told.total() >= work or any(each.failure for each in workers),
                "clients are answered",
            )
            book.begin_kill()
            if shards > 1 and number % 2:
                assert leads.process.stop() == 0, leads.process.log
            else:
                leads.kill()
                killed += 1
            for worker in workers:
                worker.stops = True
            for worker in workers:
                worker.join(60)
                assert not worker.is_alive() and worker.failure is None, worker.failure
            assert not book.problems, (number, book.problems, book.stories[:5])
            assert "Traceback" not in leads.process.log
            leads.start()
    told = ", ".join(f"{count:,} {word.decode()}" for word, count in sorted(book.told.items()))
    print(
        f"killed {killed} leaders, stopped {rounds - killed}, {shards} shards on {nodes} nodes: {told}; "
        f"{redriven} dead letters redriven, {kicked} buried in place ({time.monotonic() - began:.0f} s)"
    )
    assert book.told[b"RELEASED"] > rounds and book.told[b"EXISTS"] and redriven
    assert bool(kicked) == (shards > 1)


def test_a_cluster_with_policies_whose_leader_is_killed_forgets_no_try(tmp_path):
    kill_leaders(tmp_path, 1)


@pytest.mark.slow
def test_it_forgets_no_try_and_frees_no_key_however_often(tmp_path, request):
    kill_leaders(tmp_path, request.config.getoption("kills"))


@pytest.mark.slow
def test_nor_does_one_with_shards_whose_dead_tube_is_in_one_of_them(tmp_path, request):
    kill_leaders(tmp_path, max(4, request.config.getoption("kills")), shards=SHARDS, nodes=NODES)
