"""A session of one shard of several: what it does itself, and what leads its client away."""

from zlib import crc32

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import Caller, World

from beanstalk_server.access.user import User
from beanstalk_server.routing.settled import SettledSession
from beanstalk_server.wire.places import Places

SHARDS = 4
HERE = crc32(b"default") % SHARDS
NAMES = [b"tube-%d" % number for number in range(40)]
HERE_TOO = next(name for name in NAMES if crc32(name) % SHARDS == HERE)
ELSEWHERE = next(name for name in NAMES if crc32(name) % SHARDS != HERE)
OWN_ID = SHARDS + HERE
OTHER_ID = OWN_ID + 1


class Resident(Caller):
    """A client that is served by one shard, as far as that goes."""

    def __init__(self, world, user=None, authenticate=None, **how):
        self.world = world
        self.calls = 0
        self.session = SettledSession(
            Places(SHARDS),
            HERE,
            self.on_unsettled,
            world.broker,
            world.info,
            lambda: world.answered.append(self),
            user=user,
            authenticate=authenticate,
            **how,
        )

    def on_unsettled(self):
        self.calls += 1


@pytest.fixture
def world():
    return World(shards=SHARDS, shard=HERE)


@pytest.fixture
def client(world):
    return Resident(world)


def needs_routing(line):
    world = World(shards=SHARDS, shard=HERE)
    client = Resident(world)
    reply = client.send(line + b"\r\nlist-tube-used\r\n")
    counts = list(world.info.counts)
    assert client.session.is_away == bool(client.calls) == (reply == b"")
    if not client.session.is_away:
        return False
    assert not any(counts), "nothing of it has been done"
    assert client.session.take_replies() == b""
    assert client.session.unsettle() == line + b"\r\nlist-tube-used\r\n"
    return True


BY_NAME = [
    b"use %b",
    b"watch %b",
    b"pause-tube %b 1",
    b"pause-tube%b 1",
    b"stats-tube %b",
    b"clear-tube %b",
    b"redrive %b 5",
    b"move-jobs %b ready x 5",
    b"list-jobs %b ready 0 1",
]
BY_ID = [
    b"peek %d",
    b"reserve-job %d",
    b"delete %d",
    b"delete   %d",
    b"release %d 0 0",
    b"bury %d 0",
    b"kick-job %d",
    b"touch %d",
    b"stats-job %d",
    b"cancel %d",
    b"reschedule %d 5",
]
AT_HOME = [
    b"ignore %b" % ELSEWHERE,
    b"peek-ready",
    b"peek-delayed",
    b"peek-buried",
    b"peek-keyed %b" % ELSEWHERE,
    b"cancel-keyed k",
    b"reschedule-keyed k 0",
    b"reserve-with-timeout 0",
    b"reserve-batch 9 0",
    b"kick 9",
    b"list-tube-used",
    b"list-tubes-watched",
    b"put 0 0 0 x",
    b"pup",
    b"",
    b"p",
    b"nonsense",
    b"auth x",
    b"use",
    b"use -x",
    b"use %b " % ELSEWHERE,
    b"pause-tube -x 1",
    b"pause-tube %b" % ELSEWHERE,
    b"list-jobs %b ready 0 0" % ELSEWHERE,
    b"stats-tubes - 0",
    b"delete x",
    b"delete",
    b"release %d 0" % OTHER_ID,
    b"probe",
    b"unwatch %b" % ELSEWHERE,
]


@pytest.mark.parametrize("line", BY_NAME)
def test_a_line_that_names_a_tube_leads_away_if_that_is_elsewhere(line):
    assert needs_routing(line % ELSEWHERE)
    assert not needs_routing(line % HERE_TOO)


@pytest.mark.parametrize("line", BY_ID)
def test_a_line_that_names_a_job_leads_away_if_that_is_elsewhere(line):
    assert needs_routing(line % OTHER_ID)
    assert not needs_routing(line % OWN_ID)


@pytest.mark.parametrize("line", [b"stats", b"list-tubes", b"stats-tubes - 1", b"list-clients", b"drain", b"undrain"])
def test_a_line_that_concerns_all_shards_leads_away(line):
    assert needs_routing(line)


@pytest.mark.parametrize("line", AT_HOME)
def test_all_others_are_done_at_home_also_those_that_are_malformed_or_unknown(line):
    assert not needs_routing(line)


def test_a_quit_is_done_at_home(client):
    client.send(b"quit now\r\n")
    assert client.session.closed
    assert not client.session.is_away


def test_a_put_of_any_size_is_done_at_home(client):
    assert client.put() == OWN_ID
    assert client.send(b"put-keyed k 0 0 60 1\r\nx\r\n") == b"INSERTED %d\r\n" % (OWN_ID + SHARDS)
    assert client.send(b"put 0 0 60 65536\r\n" + b"x" * 65536 + b"\r\n") == b"JOB_TOO_BIG\r\n"


def test_what_comes_before_is_answered_and_what_comes_behind_is_kept(client):
    lines = b"peek 5\r\nuse %b\r\nput 0 0 60 9\r\nuse x" % ELSEWHERE
    assert client.send(b"use %b\r\nlist-tube-used\r\n" % HERE_TOO + lines[len(b"peek 5\r\n") :]) == (
        b"USING %b\r\n" * 2 % (HERE_TOO, HERE_TOO)
    )
    assert client.session.is_away
    assert client.send(b" and more") == b"", "nothing more is done"
    assert client.calls == 1
    assert client.session.unsettle() == lines[len(b"peek 5\r\n") :] + b" and more"


def test_nothing_is_answered_after_the_client_has_hung_up_and_been_led_away(client):
    client.session.queue_input(b"stats\r\n")
    assert client.shut_down() == b""
    assert not client.session.closed
    client.session.forbid_waiting()
    client.go_on()
    assert client.read() == b""
    assert client.session.unsettle() == b"stats\r\n"


def test_a_session_that_has_left_home_goes_on_as_a_place(world, client):
    client.put()
    client.send(b"reserve\r\nuse %b\r\nuse %b\r\n" % (HERE_TOO, ELSEWHERE))
    client.session.unsettle()
    assert client.send(b"unuse\r\nprobe\r\n") == b"USING default\r\nNOTHING\r\n"
    assert client.send(b"touch %d\r\n" % OWN_ID) == b"TOUCHED\r\n"
    assert client.send(b"delete %d\r\n" % OTHER_ID) == b"NOT_FOUND\r\n", "no line leads away any more"
    assert client.send(b"await -1 0\r\n") == b""
    client.session.stop_waiting()
    world.settle()
    assert client.read() == b"TIMED_OUT\r\n"


def test_a_place_can_be_the_home_of_its_client(world):
    client = Resident(world, is_place=True)
    assert client.send(b"delete %d\r\nunuse\r\n" % OTHER_ID) == b"NOT_FOUND\r\nUSING default\r\n"
    client.session.unroute(["default"])
    assert client.send(b"unuse\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert client.send(b"delete %d\r\n" % OTHER_ID) == b""
    assert client.session.unsettle() == b"delete %d\r\n" % OTHER_ID


def test_a_client_that_has_been_led_away_can_go(world, client):
    client.put()
    client.send(b"reserve\r\nstats\r\n")
    client.disconnect()
    world.check()
    assert world.broker.reserved == 0


def test_a_client_that_has_been_led_away_can_move_to_another_server(client):
    client.session.receive(b"use %b\r\nstats\r\npeek 1\r\n" % HERE_TOO, client.world.now)
    assert not client.session.can_move(), "it has not been sent a reply yet"
    client.read()
    assert client.session.can_move()
    assert client.session.take_commands(client.world.now) == b"stats\r\npeek 1\r\n"


def test_a_user_is_led_away_before_its_rights_are_looked_at(world):
    client = Resident(world, User("u"))
    assert client.send(b"use %b\r\n" % HERE_TOO) == b"FORBIDDEN\r\n"
    assert client.send(b"use %b\r\n" % ELSEWHERE) == b""
    assert client.session.is_away


def test_a_client_authenticates_at_home(world):
    client = Resident(world, User("u"), lambda token: User("v", produce=["*"]) if token == "t" else None)
    assert client.send(b"auth t\r\nuse %b\r\n" % HERE_TOO) == b"AUTHENTICATED\r\nUSING %b\r\n" % HERE_TOO


names = st.sampled_from(NAMES)
ids = st.integers(1, 40)
lines = st.one_of(
    st.builds(lambda line, name: line % name, st.sampled_from([*BY_NAME, b"ignore %b"]), names),
    st.builds(lambda line, job_id: line % job_id, st.sampled_from(BY_ID), ids),
    st.sampled_from([*AT_HOME, b"reserve-with-timeout 0", b"put 0 0 60 1\r\nx", b"put-keyed k 1 0 60 1\r\nx"]),
)


@settings(max_examples=examples(100))
@given(st.lists(lines, max_size=30))
def test_at_home_everything_is_as_with_a_plain_session(conversation):
    here, plain = World(shards=SHARDS, shard=HERE), World(shards=SHARDS, shard=HERE)
    client, twin = Resident(here), plain.connect()
    for line in conversation:
        reply = client.send(line + b"\r\n")
        if client.session.is_away:
            assert client.session.unsettle() == line + b"\r\n"
            client.session.unroute([tube.name for tube in client.session.watched])
        else:
            assert reply == twin.send(line + b"\r\n")
    assert here.info.counts == plain.info.counts
