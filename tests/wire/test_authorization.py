"""Sessions with a user: what is refused and how, and what becomes of a client whose user changes."""

from itertools import pairwise

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import BodilessJournal, World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.journal import ALL, DELETIONS, NONE
from beanstalk_server.queue.policy import Policy
from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL
from beanstalk_server.wire.session import ADMISSION, SESSION_QUANTUM, WATCHED_SLICE

BAD = b"BAD_FORMAT\r\n"
FORBIDDEN = b"FORBIDDEN\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
UNKNOWN = b"UNKNOWN_COMMAND\r\n"

ROOT = User("root", produce=["*"], consume=["*"], inspect=["*"], admin=["*"])
NOBODY = User("nobody")
BILLING = User("billing", produce=["mail", "bill"], consume=["bill"], inspect=["default"])


def watched(client):
    return names(client.send(b"list-tubes-watched\r\n"))


def names(reply):
    """What a list has."""
    size, text = reply.split(b"\r\n", 1)
    assert size == b"OK %d" % (len(text) - 2)
    return text.decode().split()[2::2]


def test_a_session_without_a_user_cannot_have_authentication(world):
    """It would be open to everybody until somebody authenticates."""
    with pytest.raises(ValueError, match="requires user"):
        world.connect(None, {}.get)
    assert world.broker.connections == 0


# What is refused, and how


def test_a_client_may_always_quit(world):
    client = world.connect(NOBODY)
    assert client.send(b"quit\r\nlist-tube-used\r\n") == b""
    assert client.session.closed


def test_the_body_of_a_refused_put_is_swallowed_to_its_end(world):
    client = world.connect(BILLING)
    body = b"use bill\r\nquit\r\n"
    put = b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body)
    assert client.send(put + b"list-tube-used\r\n") == FORBIDDEN + b"USING default\r\n"
    assert b"".join(client.send(bytes([byte])) for byte in put) == FORBIDDEN
    assert client.send(put.replace(b"put", b"put-keyed k") + put.replace(b"put", b"replace-keyed k")) == FORBIDDEN * 2
    assert world.connect(ROOT).yaml(b"stats")["current-producers"] == "0"
    assert world.connect().put() == 1, "no id has been taken"
    assert world.info.forbidden == 4


def test_forbidden_goes_before_job_too_big_and_draining_and_malformed_lines_before_both(world):
    client = world.connect(BILLING)
    assert client.send(b"put 0 0 60 70000\r\n" + b"x" * 70002) == FORBIDDEN
    assert client.send(b"put 0 0 60 70000 x\r\n" + b"x" * 70002) == FORBIDDEN
    assert client.send(b"put 0 0 60 1 x\r\nput 0 0 60\r\nput 0 0 60 1" + b" " * 300 + b"\r\n") == BAD * 3
    assert world.info.forbidden == 2, "those that have been answered so"
    assert client.send(b"put 0 0 60 1\r\nabc") == FORBIDDEN, "the body's end is not looked at"
    world.broker.drain()
    assert client.send(b"put 0 0 60 1\r\nx\r\n") == FORBIDDEN
    assert client.send(b"use bill\r\nput 0 0 60 1\r\nx\r\n") == b"USING bill\r\nDRAINING\r\n"
    assert client.send(b"put 0 0 60 70000\r\n" + b"x" * 70002) == b"JOB_TOO_BIG\r\n"


def test_lines_that_only_begin_like_a_command_are_checked_too(world):
    world.connect().send(b"watch other\r\nwatch mail\r\n")
    client = world.connect(BILLING)
    assert client.send(b"pause-tubeother 1\r\npause-tube  other 1\r\npause-tubemail 1\r\n") == NOT_FOUND * 2 + FORBIDDEN
    assert client.send(b"pause-tube -other 1\r\npause-tube other\r\n") == BAD * 2
    assert client.send(b"reserve \r\nstats x\r\nreserve\0\r\nusebill\r\nkickstart\r\n") == BAD * 3 + UNKNOWN * 2
    assert world.connect().yaml(b"stats-tube other")["pause"] == "0"
    assert client.send(b"quitter\r\n") == b"" and client.session.closed


def test_the_older_dialect_refuses_the_same():
    world = World(compat="1.12")
    client = world.connect(BILLING)
    assert client.send(b"reserve-with-timeout soon\r\nstats\r\nuse other\r\n") == FORBIDDEN * 3
    assert client.send(b"watch bill\r\nreserve-with-timeout soon\r\n") == b"WATCHING 1\r\nTIMED_OUT\r\n"


@pytest.mark.parametrize("admits", [DELETIONS, NONE])
def test_a_command_that_the_journal_does_not_admit_is_refused_when_it_does(world, admits):
    world.connect().put()
    client = world.connect(BILLING)
    world.broker.set_admission(admits)
    assert client.send(b"kick-job 1\r\n") == b"" and client.session.wait == ADMISSION
    world.broker.set_admission(ALL)
    client.go_on()
    assert client.read() == FORBIDDEN


# Dead letters


def dead_letters():
    """A world whose tube "dead" has dead letters: 1 from a, 2 from b, 3 from a."""
    world = World(policies={name: Policy(max_tries=1, dead_tube="dead") for name in "ab"})
    root = world.connect(ROOT)
    for tube in (b"a", b"b", b"a"):
        root.send(b"use %b\r\n" % tube)
        job = root.put()
        assert root.send(b"reserve-job %d\r\nrelease %d 0 0\r\n" % (job, job)).endswith(b"RELEASED\r\n")
    return world, root


def test_redrive_sends_jobs_only_to_tubes_that_the_user_may_administer():
    world, root = dead_letters()
    user = world.connect(User("u", inspect=["*"], admin=["dead", "a"]))
    assert world.connect(User("v", admin=["dead"])).send(b"redrive dead 5\r\n") == b"REDRIVEN 0\r\n"
    assert user.send(b"redrive dead 1\r\nredrive dead 5\r\n") == b"REDRIVEN 1\r\nREDRIVEN 1\r\n"
    assert [root.yaml(b"stats-job %d" % job)["tube"] for job in (1, 2, 3)] == ['"a"', '"dead"', '"a"']
    assert root.send(b"redrive dead 5\r\n") == b"REDRIVEN 1\r\n"
    world.check()


def test_stats_job_names_no_origin_to_which_the_user_has_no_right():
    world, _ = dead_letters()
    user = world.connect(User("u", produce=["a"], inspect=["dead"]))
    assert [user.yaml(b"stats-job %d" % job)["origin"] for job in (1, 2)] == ['"a"', '""']


# list-tubes


def many_tubes(world, count):
    owner = world.connect()
    for number in range(count):
        owner.send(b"watch t%d\r\n" % number)
    return owner


@pytest.mark.parametrize(
    "patterns", [["t1*", "x*"], [f"t*{number}" for number in range(100, 300)]], ids=["few", "many"]
)
def test_a_long_list_of_tubes_takes_many_turns_and_is_as_it_was_when_it_was_asked_for(world, patterns):
    owner = many_tubes(world, 3000)
    user = User("u", inspect=patterns)
    client = world.connect(user)
    session = client.session
    expected = [name for name in names(owner.send(b"list-tubes\r\n")) if user.rights(name)]
    session.receive(b"list-tubes\r\nlist-tube-used\r\n", world.now)
    turns = 1
    while not (reply := client.read()):
        assert world.answered.pop() is client, "it is promised another turn"
        assert not world.answered
        owner.send(b"ignore t%d\r\nwatch t1-%d\r\n" % (turns, turns))
        session.run(world.now)
        assert session.cost <= 2 * SESSION_QUANTUM or session.has_replies
        turns += 1
    assert turns > 1
    assert names(reply.removesuffix(b"USING default\r\n")) == expected


def test_a_long_list_waits_while_its_client_does_not_read_and_comes_before_the_end(world):
    many_tubes(world, 3000)
    client = world.connect(User("u", inspect=["t7"]))
    client.session.receive(b"list-tubes\r\n", world.now)
    client.session.pause_output()
    world.settle()
    assert client.read() == b""
    client.session.resume_output()
    assert client.shut_down() == b"OK 9\r\n---\n- t7\n\r\n"
    assert client.session.closed


# auth


@pytest.fixture
def tokens():
    return {"secret": BILLING, "other": User("other", consume=["default"])}


@pytest.fixture
def client(world, tokens):
    return world.connect(BILLING, tokens.get)


def test_auth_is_no_command_where_nobody_can_authenticate(world):
    for user in (None, BILLING, ROOT):
        client = world.connect(user)
        assert client.send(b"auth secret\r\nauth\r\nlist-tube-used\r\n") == UNKNOWN * 2 + b"USING default\r\n"


def test_who_authenticates_anew_is_that_user_from_then_on(world, client):
    assert client.send(b"watch bill\r\nuse bill\r\nauth other\r\nuse bill\r\n") == (
        b"WATCHING 1\r\nUSING bill\r\nAUTHENTICATED\r\n" + FORBIDDEN
    )
    assert watched(client) == [], "it watches what it may, and nothing new by itself"
    assert client.send(b"watch default\r\nauth secret\r\nuse bill\r\nreserve\r\n") == (
        b"WATCHING 1\r\nAUTHENTICATED\r\nUSING bill\r\n" + FORBIDDEN
    )


@pytest.mark.parametrize(
    "token", [b"wrong", b"", b" secret", b"secret ", b"Secret", b"secret\0", b"\xff\xfe", "ä".encode()]
)
def test_a_token_that_is_nobodys_ends_the_conversation(client, token):
    assert client.send(b"auth " + token + b"\r\nuse bill\r\n") == b"UNAUTHORIZED\r\n"
    assert client.session.closed
    assert client.send(b"use bill\r\n") == b""


def test_the_empty_token_is_nobodys_whatever_the_config_says(world):
    client = world.connect(BILLING, {"": ROOT}.get)
    assert client.send(b"auth \r\n") == b"UNAUTHORIZED\r\n"


def test_lines_that_are_no_auth(client):
    assert client.send(b"auth\r\nauthx\r\nAUTH secret\r\nauth\0\r\n") == UNKNOWN * 3 + BAD
    assert client.send(b"auth " + b"x" * 300 + b"\r\n") == BAD
    assert not client.session.closed


def test_auth_is_not_counted_and_stats_has_the_same_keys(world, client):
    before = world.connect().yaml(b"stats")
    client.send(b"auth secret\r\n")
    assert list(world.connect().yaml(b"stats")) == list(before)
    assert sum(count.value for count in world.info.counts) == 2


def test_what_finds_users_may_fail_and_lets_nobody_in(world, caplog):
    def broken(token):
        raise OSError("no such file")

    client = world.connect(BILLING, broken)
    assert client.send(b"auth secret\r\nuse default\r\nuse other\r\n") == (
        b"INTERNAL_ERROR\r\nUSING default\r\n" + FORBIDDEN
    )
    assert "secret" not in caplog.text


def test_no_token_is_logged(world, tokens, caplog):
    caplog.set_level("INFO")
    for caller in (world.connect(BILLING, tokens.get), world.connect()):
        caller.session.logs_commands = True
        caller.send(b"auth secret\r\nuse bill\r\nAuth secret\r\n  auth secret\r\nauth\tsecret\r\nauth secret x\r\n")
        for line in (
            b"Bearer secret",
            b'"auth" secret',
            b"secret",
            b"token: secret",
            b"use x\nsecret",
            b"use Bearer secret",
        ):
            caller.send(line + b"\r\n")
    assert "secret" not in caplog.text
    assert caplog.text.count("auth ...") == 4
    assert caplog.text.count("unknown command of 13 bytes") == 5
    assert "use bill" in caplog.text


auth_lines = st.sampled_from(
    [
        b"auth secret\r\n",
        b"auth other\r\n",
        b"auth \r\n",
        b"auth\r\n",
        b"auth",
        b"auth " + b"s" * 300 + b"\r\n",
        b"auth secret\n",
        b"auth secret\r",
        b"auth secret\r\nauth other\r\nuse default\r\n",
        b"use bill\r\nput 0 0 60 13\r\nauth secret\r\n\r\n",
        b"put 0 0 60 13\r\nauth secret\r\n\r\n",
        b"watch default\r\n",
        b"list-tubes\r\nlist-tubes-watched\r\nlist-tube-used\r\n",
        b"auth wrong\r\n",
    ]
)


@settings(max_examples=examples(50))
@given(
    data=st.lists(st.one_of(auth_lines, auth_lines, st.binary(max_size=8)), max_size=10).map(b"".join),
    cuts=st.lists(st.integers(0, 1000), max_size=20),
)
def test_auth_is_the_same_wherever_its_bytes_are_split(data, cuts):
    finds = {"secret": BILLING, "other": User("other", consume=["default"])}.get
    whole = World().connect(BILLING, finds)
    replies = whole.send(data)
    world = World()
    split = world.connect(BILLING, finds)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    pieces = b"".join([split.send(data[start:end]) for start, end in pairwise(places)])
    assert pieces == replies
    assert split.session.closed == whole.session.closed
    assert split.session.user.name == whole.session.user.name
    world.check()


# change_user


def test_a_reserve_that_waits_is_forbidden_when_a_tube_is_withdrawn(world):
    client = world.connect(User("u", consume=["default", "a"]))
    assert client.send(b"watch a\r\nreserve-with-timeout 9\r\nlist-tubes-watched\r\n") == b"WATCHING 2\r\n"
    client.session.change_user(User("u", consume=["a"]))
    world.settle()
    assert client.read() == FORBIDDEN + b"OK 8\r\n---\n- a\n\r\n"
    world.connect().put()
    world.sleep(10)
    assert client.send(b"reserve-with-timeout 0\r\nwatch default\r\n") == b"TIMED_OUT\r\n" + FORBIDDEN


def test_a_reserve_goes_on_waiting_when_none_of_its_tubes_is_withdrawn(world):
    client = world.connect(User("u", consume=["default", "a"]))
    assert client.send(b"reserve\r\n") == b""
    client.session.change_user(User("u", consume=["default"]))
    world.settle()
    assert client.read() == b""
    world.connect().put()
    assert client.read() == b"RESERVED 1 1\r\nx\r\n"


def test_a_put_is_decided_by_its_line(world):
    client = world.connect(User("u", produce=["default"]))
    client.send(b"put 0 0 60 4\r\nbo")
    client.session.change_user(NOBODY)
    assert client.send(b"dy\r\nput 0 0 60 4\r\nbo") == b"INSERTED 1\r\n"
    client.session.change_user(ROOT)
    assert client.send(b"dy\r\nput 0 0 60 4\r\nbody\r\n") == FORBIDDEN + b"INSERTED 2\r\n"


@pytest.mark.parametrize("command", [b"reserve", b"reserve-batch 2 0", b"reserve-job 1", b"peek 1"])
def test_an_answer_whose_body_is_on_its_way_is_given_all_the_same(command):
    world = World(BodilessJournal())
    client = world.connect(User("u", consume=["default"], inspect=["default"]))
    world.connect().put()
    assert client.send(command + b"\r\n" + command + b"\r\n") == b""
    client.session.change_user(NOBODY)
    assert client.read() == b""
    world.broker.journal.end_fetch()
    world.settle()
    refused = FORBIDDEN if command in (b"reserve", b"reserve-batch 2 0") else NOT_FOUND
    assert client.read().endswith(b" 1 1\r\nx\r\n" + refused)
    world.check()


@pytest.mark.parametrize(
    ("command", "answer"), [(b"kick 9999", b"KICKED 2000\r\n"), (b"clear-tube a", b"CLEARED 2000\r\n")]
)
def test_a_kick_or_a_clear_under_way_is_ended_and_the_next_is_refused(world, command, answer):
    owner = world.connect()
    owner.send(b"use a\r\n")
    for _ in range(2000):
        owner.put(delay=100)
    client = world.connect(User("u", admin=["a"]))
    client.send(b"use a\r\n")
    client.session.receive(command + b"\r\n" + command + b"\r\n", world.now)
    assert client.session.pending is not None
    client.session.change_user(User("u", consume=["a"]))
    world.settle()
    assert client.read() == answer + FORBIDDEN


def test_commands_that_have_come_and_are_not_done_yet_are_the_new_users(world):
    client = world.connect(ROOT)
    client.session.pause_output()
    client.session.queue_input(b"use a\r\nput 0 0 60 1\r\nx\r\n")
    client.session.change_user(NOBODY)
    client.session.resume_output()
    client.go_on()
    assert client.read() == FORBIDDEN * 2


def test_a_session_that_was_open_may_get_a_user(world):
    client = world.connect()
    client.send(b"watch a\r\nwatch b\r\n")
    client.session.change_user(User("u", consume=["b"]))
    assert watched(client) == ["b"]


def test_a_client_that_is_gone_or_has_quit_loses_nothing_more(world):
    gone, quitting, other = world.connect(ROOT), world.connect(ROOT), world.connect()
    for number in range(2000):
        gone.send(b"watch t%d\r\n" % number)
        other.send(b"watch t%d\r\n" % number)
    assert gone.send(b"reserve\r\n") == b""
    gone.session.disconnect(world.now)  # in slices
    gone.session.change_user(NOBODY)
    world.check()
    assert quitting.send(b"quit\r\n") == b""
    quitting.session.change_user(NOBODY)
    world.settle()
    quitting.disconnect()


@pytest.mark.parametrize("withdrawn", ["t1*", "t*"])
def test_the_tubes_of_a_client_that_watches_very_many_are_withdrawn_in_slices(world, withdrawn):
    client = world.connect(ROOT)
    for number in range(3 * WATCHED_SLICE):
        client.send(b"watch t%d\r\n" % number)
    before = watched(client)
    kept = [name for name in before if not User("", consume=[withdrawn]).rights(name)]
    assert client.send(b"reserve\r\nlist-tubes-watched\r\n") == b""
    client.session.change_user(User("u", consume=kept))
    assert len(client.session.watched) >= 2 * WATCHED_SLICE
    world.connect().session.receive(b"use t1\r\nput 0 0 60 1\r\nx\r\n", world.now)
    turns = 0
    assert client.read() == FORBIDDEN
    while not (reply := client.read()):
        assert client in world.answered
        world.answered.clear()
        client.session.run(world.now)
        turns += 1
    assert turns >= 3
    assert sorted(names(reply)) == sorted(kept)
    world.settle()


def test_a_client_that_watches_very_many_waits_on_if_the_rights_are_the_same(world):
    client = world.connect(User("u", consume=["t*"]))
    for number in range(3 * WATCHED_SLICE):
        client.send(b"watch t%d\r\n" % number)
    assert client.send(b"reserve\r\n") == b""
    client.session.change_user(User("u", consume=["t*"]))
    world.settle()
    assert client.read() == b""
    world.connect().send(b"use t7\r\nput 0 0 60 1\r\nx\r\n")
    assert client.read() == b"RESERVED 1 1\r\nx\r\n"


def test_a_change_of_user_during_another_is_not_lost(world):
    client = world.connect(ROOT)
    for number in range(3 * WATCHED_SLICE):
        client.send(b"watch t%d\r\n" % number)
    client.session.change_user(User("u", consume=["t*"]))
    client.session.change_user(User("u", consume=["t1*"]))
    client.session.change_user(User("u", consume=["t1*"]))
    world.settle()
    assert all(name.startswith("t1") for name in watched(client))


def test_an_auth_with_very_many_watched_tubes_is_answered_before_they_are_withdrawn_and_no_command_is(world):
    client = world.connect(ROOT, {"nobody": NOBODY}.get)
    for number in range(3 * WATCHED_SLICE):
        client.send(b"watch t%d\r\n" % number)
    client.session.receive(b"auth nobody\r\nlist-tubes-watched\r\n", world.now)
    assert client.read() == b"AUTHENTICATED\r\n"
    world.settle()
    assert client.read() == b"OK 4\r\n---\n\r\n"


def test_every_row_says_what_it_asks_for():
    """A command that asks for no right must be one that was meant to."""
    unasked = {row.name for row in PROTOCOL + EXTENSIONS if not row.right or not row.scope}
    assert unasked == {
        "ignore",
        "quit",
        "cancel-reserve",
        "reserve-mode",
        "touch-all",
        "list-extensions",
        "client-name",
    } | {
        "list-tubes",
        "list-tube-used",
        "list-tubes-watched",
        "stats-tubes",
    }


# What it costs


def test_a_client_pays_for_the_rights_that_have_to_be_found_and_not_for_those_that_are_remembered(world):
    client = world.connect(User("u", produce=[f"*x*{number}" for number in range(100)]))
    session = client.session
    lines = b"".join(b"use tube%d\r\n" % number for number in range(SESSION_QUANTUM))
    turns = []
    for _ in range(2):
        session.receive(lines, world.now)
        count = 1
        while session.has_more:
            session.run(world.now)
            count += 1
        turns.append(count)
        assert client.read() == FORBIDDEN * SESSION_QUANTUM
    assert turns[0] > 4 * turns[1]
