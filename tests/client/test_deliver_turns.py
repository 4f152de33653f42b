"""Whose turn it is: slow hosts hold up nobody, and nothing is forgotten."""

import asyncio
import random

import pytest
from beanstalk_client.deliver.turns import LONGEST, MOST_IDLE_HOSTS, SHORTEST, SHORTEST_STEP, PutOff, Stopped, Turns
from effort import seeded


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def check(turns):
    assert 0 <= turns.busy <= turns.at_once
    assert 0 <= turns.waiting <= turns.waiting_room
    assert turns.waiting == sum(len(each.waiting) for each in turns._hosts.values())
    assert sum(each.busy for each in turns._hosts.values()) == turns.busy + len(turns._ready)
    assert all(0 <= each.busy <= turns.per_host for each in turns._hosts.values())
    assert turns.busy == turns.at_once or not turns._ready


async def test_so_many_at_once_to_each_host_and_in_order():
    turns = Turns(at_once=10, per_host=2, waiting_room=8)
    begun = []

    async def job(name):
        await turns.begin("a", 0)
        begun.append(name)

    jobs = [asyncio.ensure_future(job(name)) for name in range(4)]
    await settle()
    assert begun == [0, 1] and turns.waiting == 2
    await turns.begin("b", 0)
    turns.end("a", 1)
    await settle()
    assert begun == [0, 1, 2]
    turns.end("a", 1)
    await asyncio.gather(*jobs)
    assert begun == [0, 1, 2, 3] and turns.waiting == 0 and turns.busy == 3
    check(turns)


async def test_a_host_has_a_quarter_of_the_waiting_room():
    turns = Turns(at_once=10, per_host=1, waiting_room=8)
    await turns.begin("slow", 0)
    jobs = [asyncio.ensure_future(turns.begin("slow", 0)) for _ in range(2)]
    await settle()
    with pytest.raises(PutOff):
        await turns.begin("slow", 0)
    await turns.begin("quick", 0)
    check(turns)
    for job in jobs:
        job.cancel()


async def test_nobody_waits_where_there_is_no_room():
    turns = Turns(at_once=10, per_host=1, waiting_room=2)
    jobs = []
    for name in "abcd":
        await turns.begin(name, 0)
    for name in "ab":
        jobs.append(asyncio.ensure_future(turns.begin(name, 0)))
    await settle()
    with pytest.raises(PutOff):
        await turns.begin("c", 0)
    await turns.begin("e", 0)
    for job in jobs:
        job.cancel()


def put_off(turns, now):
    """For how long a job of the slow host is put off."""
    with pytest.raises(PutOff) as off:
        turns.begin("slow", now).send(None)
    return off.value.delay


async def test_what_is_put_off_comes_back_when_those_before_it_have_had_their_turn():
    turns = Turns(at_once=10, per_host=2, waiting_room=0)
    await turns.begin("slow", 0)
    turns.end("slow", 0.2)
    for _ in range(2):
        await turns.begin("slow", 100)
    step = 0.2 / 2
    delays = [put_off(turns, 100) for _ in range(10_000)]
    assert delays[:3] == pytest.approx([step, 2 * step, 3 * step])
    assert delays == sorted(delays) and delays[-1] == LONGEST
    assert put_off(turns, 100 + 9_990 * step) == pytest.approx(11 * step)  # most have had their turn since
    assert put_off(turns, 100_000) == pytest.approx(step)


async def test_while_nobody_knows_how_quick_a_host_is_its_jobs_come_back_less_and_less_often():
    turns = Turns(at_once=10, per_host=1, waiting_room=0)
    await turns.begin("slow", 1000)
    assert put_off(turns, 1000) == SHORTEST
    assert put_off(turns, 1000.2) == pytest.approx(0.2)
    assert put_off(turns, 1030) == pytest.approx(30)
    assert put_off(turns, 5000) == LONGEST
    burst = [put_off(turns, 5000) for _ in range(1000)]
    assert burst[0] == burst[-1] == LONGEST


async def test_a_burst_is_spread():
    turns = Turns(at_once=10, per_host=1, waiting_room=0)
    await turns.begin("slow", 0)
    assert [put_off(turns, 0) for _ in range(200)][-1] == pytest.approx(200 * SHORTEST_STEP)


async def test_how_long_it_takes_is_learnt():
    turns = Turns(at_once=10, per_host=1, waiting_room=0)
    await turns.begin("slow", 0)
    first = put_off(turns, 0)
    for now, lasted, longer in ((1000, 10, True), (2000, 20, True), (3000, 0, False), (4000, 0, False)):
        turns.end("slow", lasted)
        await turns.begin("slow", 0)
        last, first = first, put_off(turns, now)
        assert (first > last) is longer
    for _ in range(1000):
        turns.end("slow", 0)
        await turns.begin("slow", 0)
    assert put_off(turns, 20_000) == SHORTEST


async def test_those_that_have_their_host_wait_for_all_others_in_order():
    turns = Turns(at_once=2, per_host=2, waiting_room=4)
    begun = []

    async def job(name):
        await turns.begin(name, 0)
        begun.append(name)

    jobs = [asyncio.ensure_future(job(name)) for name in "abcd"]
    await settle()
    assert begun == ["a", "b"] and turns.waiting == 0
    turns.end("a", 1)
    await settle()
    assert begun == ["a", "b", "c"]
    turns.end("c", 1)
    await asyncio.gather(*jobs)
    check(turns)


async def test_stop_tells_all_that_wait_and_all_that_come():
    turns = Turns(at_once=1, per_host=1, waiting_room=8)
    await turns.begin("a", 0)
    jobs = [asyncio.ensure_future(turns.begin(name, 0)) for name in "aabc"]
    await settle()
    turns.stop()
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(each) for each in results] == [Stopped] * 4
    with pytest.raises(Stopped):
        await turns.begin("d", 0)
    turns.end("a", 1)
    assert turns.busy == 0
    check(turns)


async def test_hosts_are_forgotten_when_they_are_many():
    turns = Turns(at_once=1, per_host=1, waiting_room=0)
    for number in range(3 * MOST_IDLE_HOSTS):
        await turns.begin(f"host-{number}", 0)
        turns.end(f"host-{number}", 0.1)
    assert len(turns._hosts) <= MOST_IDLE_HOSTS


@seeded(10)
async def test_whatever_comes_ends_and_is_cancelled_everybody_has_a_turn(seed):
    chance = random.Random(seed)

    turns = Turns(at_once=3, per_host=2, waiting_room=8)
    jobs, begun, had, left = [], [], 0, 0

    async def job(name):
        await turns.begin(name, 0)
        begun.append(name)

    for _ in range(400):
        action = chance.random()
        if action < 0.5:
            jobs.append(asyncio.ensure_future(job(chance.choice("abc"))))
        elif action < 0.8 and begun:
            turns.end(begun.pop(chance.randrange(len(begun))), 0.1)
        elif jobs:
            chance.choice(jobs).cancel()
        if chance.random() < 0.5:
            await settle()
            check(turns)
    while not all(each.done() for each in jobs):
        await settle()
        while begun:
            turns.end(begun.pop(), 0.1)
    while begun:
        turns.end(begun.pop(), 0.1)
    for each in jobs:
        if not each.cancelled() and each.exception() is None:
            had += 1
        else:
            left += 1
    assert had and left and turns.busy == turns.waiting == 0 and not turns._ready
    check(turns)
