"""Slots of deliveries: slow hosts do not delay others, and no host is forgotten while it matters."""

import asyncio
import random

import pytest
from beanstalk_client.deliver.slots import (
    LONGEST,
    MOST_IDLE_HOSTS,
    SHORTEST,
    SHORTEST_STEP,
    DeliverySlots,
    PutOff,
    Stopped,
)
from effort import seeded


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def check(slots):
    assert 0 <= slots.busy <= slots.at_once
    assert 0 <= slots.waiting <= slots.waiting_room
    assert slots.waiting == sum(len(each.waiting) for each in slots._hosts.values())
    assert sum(each.busy for each in slots._hosts.values()) == slots.busy + len(slots._ready)
    assert all(0 <= each.busy <= slots.per_host for each in slots._hosts.values())
    assert slots.busy == slots.at_once or not slots._ready


async def test_so_many_at_once_to_each_host_and_in_order():
    slots = DeliverySlots(at_once=10, per_host=2, waiting_room=8)
    begun = []

    async def job(name):
        await slots.begin("a", 0)
        begun.append(name)

    jobs = [asyncio.ensure_future(job(name)) for name in range(4)]
    await settle()
    assert begun == [0, 1] and slots.waiting == 2
    await slots.begin("b", 0)
    slots.end("a", 1)
    await settle()
    assert begun == [0, 1, 2]
    slots.end("a", 1)
    await asyncio.gather(*jobs)
    assert begun == [0, 1, 2, 3] and slots.waiting == 0 and slots.busy == 3
    check(slots)


async def test_a_host_has_a_quarter_of_the_waiting_room():
    slots = DeliverySlots(at_once=10, per_host=1, waiting_room=8)
    await slots.begin("slow", 0)
    jobs = [asyncio.ensure_future(slots.begin("slow", 0)) for _ in range(2)]
    await settle()
    with pytest.raises(PutOff):
        await slots.begin("slow", 0)
    await slots.begin("quick", 0)
    check(slots)
    for job in jobs:
        job.cancel()


async def test_nobody_waits_where_there_is_no_room():
    slots = DeliverySlots(at_once=10, per_host=1, waiting_room=2)
    jobs = []
    for name in "abcd":
        await slots.begin(name, 0)
    for name in "ab":
        jobs.append(asyncio.ensure_future(slots.begin(name, 0)))
    await settle()
    with pytest.raises(PutOff):
        await slots.begin("c", 0)
    await slots.begin("e", 0)
    for job in jobs:
        job.cancel()


def put_off(slots, now):
    """For how long a job of the slow host is put off."""
    with pytest.raises(PutOff) as off:
        slots.begin("slow", now).send(None)
    return off.value.delay


async def test_what_is_put_off_comes_back_when_those_before_it_have_had_their_turn():
    slots = DeliverySlots(at_once=10, per_host=2, waiting_room=0)
    await slots.begin("slow", 0)
    slots.end("slow", 0.2)
    for _ in range(2):
        await slots.begin("slow", 100)
    step = 0.2 / 2
    delays = [put_off(slots, 100) for _ in range(10_000)]
    assert delays[:3] == pytest.approx([step, 2 * step, 3 * step])
    assert delays == sorted(delays) and delays[-1] == LONGEST
    assert put_off(slots, 100 + 9_990 * step) == pytest.approx(11 * step)  # most have had their turn since
    assert put_off(slots, 100_000) == pytest.approx(step)


async def test_while_nobody_knows_how_quick_a_host_is_its_jobs_come_back_less_and_less_often():
    slots = DeliverySlots(at_once=10, per_host=1, waiting_room=0)
    await slots.begin("slow", 1000)
    assert put_off(slots, 1000) == SHORTEST
    assert put_off(slots, 1000.2) == pytest.approx(0.2)
    assert put_off(slots, 1030) == pytest.approx(30)
    assert put_off(slots, 5000) == LONGEST
    burst = [put_off(slots, 5000) for _ in range(1000)]
    assert burst[0] == burst[-1] == LONGEST


async def test_a_burst_is_spread():
    slots = DeliverySlots(at_once=10, per_host=1, waiting_room=0)
    await slots.begin("slow", 0)
    assert [put_off(slots, 0) for _ in range(200)][-1] == pytest.approx(200 * SHORTEST_STEP)


async def test_how_long_it_takes_is_learnt():
    slots = DeliverySlots(at_once=10, per_host=1, waiting_room=0)
    await slots.begin("slow", 0)
    first = put_off(slots, 0)
    for now, lasted, longer in ((1000, 10, True), (2000, 20, True), (3000, 0, False), (4000, 0, False)):
        slots.end("slow", lasted)
        await slots.begin("slow", 0)
        last, first = first, put_off(slots, now)
        assert (first > last) is longer
    for _ in range(1000):
        slots.end("slow", 0)
        await slots.begin("slow", 0)
    assert put_off(slots, 20_000) == SHORTEST


async def test_those_that_have_their_host_wait_for_all_others_in_order():
    slots = DeliverySlots(at_once=2, per_host=2, waiting_room=4)
    begun = []

    async def job(name):
        await slots.begin(name, 0)
        begun.append(name)

    jobs = [asyncio.ensure_future(job(name)) for name in "abcd"]
    await settle()
    assert begun == ["a", "b"] and slots.waiting == 0
    slots.end("a", 1)
    await settle()
    assert begun == ["a", "b", "c"]
    slots.end("c", 1)
    await asyncio.gather(*jobs)
    check(slots)


async def test_stop_tells_all_that_wait_and_all_that_come():
    slots = DeliverySlots(at_once=1, per_host=1, waiting_room=8)
    await slots.begin("a", 0)
    jobs = [asyncio.ensure_future(slots.begin(name, 0)) for name in "aabc"]
    await settle()
    slots.stop()
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(each) for each in results] == [Stopped] * 4
    with pytest.raises(Stopped):
        await slots.begin("d", 0)
    slots.end("a", 1)
    assert slots.busy == 0
    check(slots)


async def test_hosts_are_forgotten_when_they_are_many():
    slots = DeliverySlots(at_once=1, per_host=1, waiting_room=0)
    for number in range(3 * MOST_IDLE_HOSTS):
        await slots.begin(f"host-{number}", 0)
        slots.end(f"host-{number}", 0.1)
    assert len(slots._hosts) <= MOST_IDLE_HOSTS


@seeded(10)
async def test_whatever_comes_ends_and_is_cancelled_everybody_has_a_turn(seed):
    chance = random.Random(seed)

    slots = DeliverySlots(at_once=3, per_host=2, waiting_room=8)
    jobs, begun, had, left = [], [], 0, 0

    async def job(name):
        await slots.begin(name, 0)
        begun.append(name)

    for _ in range(400):
        action = chance.random()
        if action < 0.5:
            jobs.append(asyncio.ensure_future(job(chance.choice("abc"))))
        elif action < 0.8 and begun:
            slots.end(begun.pop(chance.randrange(len(begun))), 0.1)
        elif jobs:
            chance.choice(jobs).cancel()
        if chance.random() < 0.5:
            await settle()
            check(slots)
    while not all(each.done() for each in jobs):
        await settle()
        while begun:
            slots.end(begun.pop(), 0.1)
    while begun:
        slots.end(begun.pop(), 0.1)
    for each in jobs:
        if not each.cancelled() and each.exception() is None:
            had += 1
        else:
            left += 1
    assert had and left and slots.busy == slots.waiting == 0 and not slots._ready
    check(slots)
