"""The commands that nodes give each other for a client that several shards serve."""

import pytest
from virtual import World

from beanstalk_server.access.rights import User


@pytest.fixture
def place(world):
    return world.connect(dialect=world.info.linked_dialect, counted=False)


@pytest.fixture
def producer(world):
    return world.connect()


def counted(world, command):
    return int(world.connect().yaml(b"stats")[f"cmd-{command}"])


def test_a_server_that_answers_as_1_12_has_them_too():
    world = World(compat="1.12")
    assert world.connect(dialect=world.info.linked_dialect).send(b"probe\r\n") == b"NOTHING\r\n"


def test_stats_has_no_rows_for_them(world, place):
    assert set(place.yaml(b"stats")) == set(world.connect().yaml(b"stats"))


# probe


def test_a_probe_finds_the_best_job_of_the_watched_tubes_and_reserves_nothing(place, producer):
    assert place.send(b"probe\r\n") == b"NOTHING\r\n"
    producer.put(priority=7)
    producer.send(b"use a\r\n")
    producer.put(priority=5)
    producer.put(priority=5)
    assert place.send(b"probe\r\n") == b"BEST 7 1\r\n"
    assert place.send(b"watch a\r\nprobe\r\nprobe\r\n") == b"WATCHING 2\r\nBEST 5 2\r\nBEST 5 2\r\n"
    assert producer.yaml(b"stats")["current-jobs-reserved"] == "0"
    producer.send(b"pause-tube a 9\r\n")
    assert place.send(b"probe\r\n") == b"BEST 7 1\r\n"


def test_a_probe_tells_that_a_reserve_would_be_answered_deadline_soon(world, place, producer):
    producer.put(ttr=2)
    place.send(b"reserve\r\n")
    assert place.send(b"probe\r\n") == b"NOTHING\r\n"
    world.sleep(1.1)
    assert place.send(b"probe\r\n") == b"DEADLINE_SOON\r\n"
    producer.put()
    assert place.send(b"probe\r\n") == b"BEST 0 2\r\n", "as a reserve, which would get the job"
    assert place.send(b"unwatch default\r\nprobe\r\n") == b"WATCHING 0\r\nDEADLINE_SOON\r\n"


@pytest.mark.parametrize("command", ["reserve", "reserve-with-timeout", "reserve-batch"])
def test_a_probe_counts_the_command_that_it_is_for(world, place, command):
    assert place.send(b"probe %b\r\n" % command.encode()) == b"NOTHING\r\n"
    assert place.send(b"probe\r\nawait 0 0\r\n") == b"NOTHING\r\nTIMED_OUT\r\n"
    found = {each: counted(world, each) for each in ("reserve", "reserve-with-timeout", "reserve-batch")}
    assert found == {each: int(each == command) for each in found}


@pytest.mark.parametrize("word", ["put", "", "reserve ", "\xff"])
def test_a_probe_is_for_no_other_command(place, word):
    assert place.send(b"probe %b\r\n" % word.encode("latin-1")) == b"BAD_FORMAT\r\n"


# await


def test_an_await_waits_as_long_as_it_says(world, place, producer):
    assert place.send(b"await 0 0\r\n") == b"TIMED_OUT\r\n"
    assert place.send(b"await 1500 0\r\n") == b""
    world.sleep(1.4)
    assert place.read() == b""
    world.sleep(0.2)
    assert place.read() == b"TIMED_OUT\r\n"
    assert place.send(b"await -1 0\r\n") == b""
    world.sleep(10**6)
    producer.put()
    assert place.read() == b"RESERVED 1 1\r\nx\r\n"


def test_an_await_with_a_limit_reserves_a_batch(place, producer):
    for _ in range(3):
        producer.put()
    assert place.send(b"await 0 2\r\n") == b"RESERVED_BATCH 2\r\nRESERVED 1 1\r\nx\r\nRESERVED 2 1\r\nx\r\n"
    assert place.send(b"await 0 1\r\n") == b"RESERVED_BATCH 1\r\nRESERVED 3 1\r\nx\r\n"
    assert place.send(b"await -1 5\r\n") == b""
    producer.put()
    assert place.read() == b"RESERVED_BATCH 1\r\nRESERVED 4 1\r\nx\r\n"


@pytest.mark.parametrize(
    "arguments", ["", "0", "-2 0", "0 -1", "x 0", "0 0 0", "1.5 0", "0 4294967296", "3" * 20 + " 0"]
)
def test_a_malformed_await_is_refused(place, arguments):
    assert place.send(b"await %b\r\n" % arguments.encode()) == b"BAD_FORMAT\r\n"


def test_a_place_without_watched_tubes_waits_for_its_timeout(world, place, producer):
    assert place.send(b"unwatch default\r\nawait 1000 0\r\n") == b"WATCHING 0\r\n"
    producer.put()
    world.check()
    assert place.read() == b""
    world.sleep(1.1)
    assert place.read() == b"TIMED_OUT\r\n"


def test_an_await_does_not_wait_for_a_client_that_has_hung_up(place):
    place.send(b"await -1 0\r\n")
    place.session.forbid_waiting()
    place.go_on()
    assert place.read() == b"TIMED_OUT\r\n"
    assert place.send(b"await -1 0\r\n") == b"TIMED_OUT\r\n"


# An await that is not wanted any more


def test_an_await_can_be_stopped(world, place, producer):
    place.send(b"await -1 0\r\n")
    place.session.stop_waiting()
    world.settle()
    assert place.read() == b"TIMED_OUT\r\n"
    producer.put()
    assert place.read() == b""
    assert place.send(b"await -1 0\r\n") == b"RESERVED 1 1\r\nx\r\n"


def test_to_stop_an_await_that_has_been_answered_does_nothing(world, place, producer):
    producer.put()
    place.send(b"await -1 0\r\n")
    place.session.stop_waiting()
    world.settle()
    assert place.read() == b""
    assert place.send(b"await 1000 0\r\n") == b"", "the next one waits"


def test_an_await_that_has_not_had_its_turn_can_be_stopped(world, place):
    place.session.queue_input(b"use a\r\nawait -1 0\r\n")
    place.session.stop_waiting()
    place.go_on()
    assert place.read() == b"USING a\r\nTIMED_OUT\r\n"
    assert place.send(b"await 1000 0\r\n") == b"", "the next one waits"


def test_an_await_that_has_not_had_its_turn_may_get_a_job_when_it_is_stopped(place, producer):
    producer.put()
    place.session.queue_input(b"await -1 0\r\n")
    place.session.stop_waiting()
    place.go_on()
    assert place.read() == b"RESERVED 1 1\r\nx\r\n"
    assert place.send(b"await 1000 0\r\n") == b"", "the next one waits"


# unreserve


def test_a_job_that_is_unreserved_is_ready_as_if_nothing_had_been(world, place, producer):
    producer.put(priority=1)
    producer.put(priority=1)
    place.send(b"await 0 0\r\n")
    assert place.send(b"unreserve 1\r\n") == b"UNRESERVED\r\n"
    job = producer.yaml(b"stats-job 1")
    assert (job["state"], job["reserves"], job["releases"], job["timeouts"]) == ("ready", "0", "0", "0")
    assert place.send(b"probe\r\n") == b"BEST 1 1\r\n", "it has its old place"


# unuse and unwatch


def test_a_place_uses_the_default_tube_instead_of_one_that_is_used_elsewhere_now(world, place):
    assert place.send(b"use a\r\nunuse\r\nlist-tube-used\r\n") == b"USING a\r\nUSING default\r\nUSING default\r\n"
    assert "a" not in world.broker.tubes


def test_a_place_can_watch_nothing(world, place):
    assert place.send(b"watch a\r\nunwatch default\r\nunwatch a\r\n") == b"WATCHING 2\r\nWATCHING 1\r\nWATCHING 0\r\n"
    assert place.send(b"unwatch a\r\nwatch a\r\n") == b"WATCHING 0\r\nWATCHING 1\r\n"
    assert counted(world, "ignore") == 3


# Rights


def test_a_user_reserves_through_a_place_what_it_may_consume(world, producer):
    producer.put()
    place = world.connect(User("worker", consume=["a"], produce=["b"]), dialect=world.info.linked_dialect)
    assert place.session.watched == []
    assert place.send(b"probe\r\nawait 0 0\r\n") == b"NOTHING\r\nTIMED_OUT\r\n"
    assert place.send(b"watch a\r\nwatch b\r\n") == b"WATCHING 1\r\nFORBIDDEN\r\n"
