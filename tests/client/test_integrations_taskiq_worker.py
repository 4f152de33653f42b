"""`taskiq worker` as a process, with this package's broker: what becomes of tasks when it, or the server, ends."""

import asyncio
import collections
import contextlib

import pytest
import taskiq_shop
from working import Shop

from harness.waiting import eventually


@pytest.fixture
def shop(restartable, tmp_path):
    module = ("taskiq", "worker", "taskiq_shop:broker", "--workers", "1")
    with contextlib.closing(Shop(restartable.address, tmp_path, *module)) as shop:
        yield shop


def send(shop, calls):
    """Send tasks: their names, labels and arguments."""

    async def main():
        broker = taskiq_shop.BeanstalkBroker(shop.url, tube="shop")
        for name, labels, *args in calls:
            await getattr(taskiq_shop, name).kicker().with_broker(broker).with_labels(**labels).kiq(*args)
        await broker.shutdown()

    asyncio.run(main())


@pytest.mark.slow
def test_a_worker_that_is_told_to_stop_ends_what_runs_and_gives_back_what_does_not(shop):
    send(shop, [("bake", {}, number, 0.5) for number in range(20)])
    worker = shop.start("--max-async-tasks", "3")
    eventually(lambda: len(shop.notes) == 3, "three cakes are in the oven")
    assert shop.jobs("shop") == (10, 10, 0), "it has reserved ten at most"
    assert shop.stop(worker) == 0
    counted = collections.Counter(note.split()[0] for note in shop.notes)
    assert counted["begun"] == counted["done"]
    assert 3 <= counted["done"] < 20
    assert shop.jobs("shop") == (20 - counted["done"], 0, 0)


def test_a_worker_that_is_killed_costs_no_task(shop):
    send(shop, [("bake", {}, number, 0.2) for number in range(30)])
    worker = shop.start()
    eventually(lambda: "done" in " ".join(shop.notes), "a cake is done")
    shop.kill(worker)
    shop.start()
    eventually(lambda: shop.jobs("shop") == (0, 0, 0), "nothing is left to do")
    done = collections.Counter(note for note in shop.notes if note.startswith("done"))
    assert len(done) == 30
    assert sum(done.values()) <= 40, "those that it had reserved may have run twice: ten at most"


@pytest.mark.slow
def test_a_task_is_tried_again_in_another_process(shop):
    send(shop, [("deliver", {}, 17), ("grind", {}, 18)])
    shop.start()
    eventually(lambda: len(shop.notes) == 4, "all attempts are made")
    assert sorted(shop.notes) == ["17 0", "17 1", "17 2", "18"]
