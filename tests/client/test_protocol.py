"""The client's half of the protocol: the results of commands when replies come whole, in pieces and as nonsense."""

import copy
import datetime
import pickle
import socket

import pytest
from beanstalk_client import commands, errors, replies
from beanstalk_client.cli import parser
from beanstalk_client.commands import make
from beanstalk_client.errors import RIGHTS, of_command
from beanstalk_client.job import Job
from beanstalk_client.protocol import Protocol
from beanstalk_client.session import Session, read_patience
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import ASKED, extensions

from beanstalk_server.access.rights import ADMIN, ANY_RIGHT, CONSUME, INSPECT, PRODUCE
from beanstalk_server.settings.kinds import DURATION
from beanstalk_server.wire.authorization import (
    EVERY_TUBE,
    TUBE_IN_USE,
    TUBE_NAMED,
    TUBE_OF_JOB,
    TWO_TUBES,
    WATCHED_TUBES,
)
from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL

PAGE = (
    b'---\nnext: "17-4711"\njobs:\n- {id: 3, state: "ready", reason: "a \\"b\\", c", key: ""}\n- {id: 4, state: "x"}\n'
)


def ok(data):
    return b"OK %d\r\n%b\r\n" % (len(data), data)


def plain(result):
    """A result as what can be compared."""
    if isinstance(result, commands.Job):
        return ("job", result.id, result.body)
    if isinstance(result, list):
        return [plain(one) for one in result]
    if isinstance(result, Exception):
        return (type(result), str(result))
    return result


CONVERSATIONS = {
    "put": (make.put(b"x\r\ny", 1, 2.5, 3), b"INSERTED 18446744073709551615\r\n", 2**64 - 1),
    "put keyed": (make.put_keyed("k", b""), b"INSERTED 2\r\n", 2),
    "replace": (make.replace_keyed("k", b""), b"INSERTED 2\r\n", 2),
    "replaced": (make.put_with(b"", key="k", replace=True), b"REPLACED 2\r\n", 2),
    "cancel": (make.cancel(5), b"CANCELLED\r\n", None),
    "cancel keyed": (make.cancel_keyed("k"), b"CANCELLED\r\n", None),
    "reschedule": (make.reschedule(5, 0.25), b"RESCHEDULED\r\n", None),
    "reschedule keyed": (make.reschedule_keyed("k", 9), b"RESCHEDULED\r\n", None),
    "reserve": (make.reserve(), b"RESERVED 5 7\r\n1\r\n\r\n34\r\n", ("job", 5, b"1\r\n\r\n34")),
    "reserve with timeout": (make.reserve(3), b"RESERVED 5 0\r\n\r\n", ("job", 5, b"")),
    "reserve job": (make.reserve_job(5), b"RESERVED 5 1\r\n!\r\n", ("job", 5, b"!")),
    "batch": (
        make.reserve_batch(3, 1),
        b"RESERVED_BATCH 3\r\nRESERVED 5 1\r\na\r\nRESERVED 6 0\r\n\r\nRESERVED 7 2\r\n\r\n\r\n",
        [("job", 5, b"a"), ("job", 6, b""), ("job", 7, b"\r\n")],
    ),
    "delete": (make.delete(5), b"DELETED\r\n", None),
    "release": (make.release(5), b"RELEASED\r\n", None),
    "bury": (make.bury(5), b"BURIED\r\n", None),
    "touch": (make.touch(5), b"TOUCHED\r\n", None),
    "kick": (make.kick(9), b"KICKED 3\r\n", 3),
    "kick job": (make.kick_job(9), b"KICKED\r\n", None),
    "peek": (make.peek(5), b"FOUND 5 1\r\n\n\r\n", ("job", 5, b"\n")),
    "peek ready": (make.peek_ready(), b"FOUND 5 1\r\n1\r\n", ("job", 5, b"1")),
    "peek delayed": (make.peek_delayed(), b"FOUND 5 1\r\n1\r\n", ("job", 5, b"1")),
    "peek buried": (make.peek_buried(), b"FOUND 5 1\r\n1\r\n", ("job", 5, b"1")),
    "peek keyed": (make.peek_keyed("k"), b"FOUND 5 1\r\n1\r\n", ("job", 5, b"1")),
    "use": (make.use("mails"), b"USING mails\r\n", "mails"),
    "using": (make.using(), b"USING mails\r\n", "mails"),
    "watch": (make.watch("mails"), b"WATCHING 2\r\n", 2),
    "ignore": (make.ignore("mails"), b"WATCHING 1\r\n", 1),
    "watching": (make.watching(), ok(b"---\n- default\n- mails\n"), ["default", "mails"]),
    "tubes": (make.tubes(), ok(b'---\n- "default"\n'), ["default"]),
    "pause": (make.pause_tube("mails", 1.5), b"PAUSED\r\n", None),
    "clear": (make.clear_tube("mails"), b"CLEARED 0\r\n", 0),
    "redrive": (make.redrive("dead", 5), b"REDRIVEN 5\r\n", 5),
    "move": (make.move_jobs("a", "ready", "b", 5), b"MOVED 5\r\n", 5),
    "drain": (make.drain(), b"DRAINING\r\n", None),
    "undrain": (make.undrain(), b"NOT_DRAINING\r\n", None),
    "auth": (commands.auth("secret"), b"AUTHENTICATED\r\n", None),
    "stats": (make.stats(), ok(b'---\nid: 12\nos: "a: b"\nempty:\nversion: 1.13\n'), None),
    "stats job": (make.stats_job(5), ok(b"---\nid: 5\ntube: mails\n"), {"id": 5, "tube": "mails"}),
    "stats tube": (make.stats_tube("t"), ok(b"---\n"), {}),
    "list jobs": (
        make._job_page("t"),
        ok(PAGE),
        ("17-4711", [{"id": 3, "state": "ready", "reason": 'a "b", c', "key": ""}, {"id": 4, "state": "x"}]),
    ),
    "no jobs": (make._job_page("t"), ok(b'---\nnext: ""\njobs: []\n'), ("", [])),
    "stats tubes": (make._tube_page(), ok(b'---\nnext: ""\ntubes:\n- {name: "a"}\n'), ("", [{"name": "a"}])),
    "clients": (make.list_clients(), ok(b'---\n- {name: "a", age: 5}\n'), [{"name": "a", "age": 5}]),
    "no clients": (make.list_clients(), ok(b"---\n[]\n"), []),
}
CONVERSATIONS["stats"] = (*CONVERSATIONS["stats"][:2], {"id": 12, "os": "a: b", "empty": "", "version": "1.13"})

ERRORS = {
    **{word + b"\r\n": (error, f"{word.decode()}: {error.meaning}") for word, error in errors.REPLIES.items()},
    b"EXISTS 17\r\n": (errors.ExistsError, "EXISTS: job 17 already has the key, or its key is still held"),
    b"TOO_LATE 17\r\n": (errors.TooLateError, str(errors.TooLateError())),
    b"BURIED\r\n": (errors.BuriedError, str(errors.BuriedError())),
    b"BURIED 17\r\n": (errors.BuriedError, f"BURIED: job 17: {errors.BuriedError.meaning}"),
    b"NEW_WORD 1 two\r\n": (errors.UnknownResponseError, "NEW_WORD 1 two"),
}

NONSENSE = [
    b"\r\n",
    b"\n\r\n",
    b"INSERTED 1 \r\n",
    b"INSERTED  1\r\n",
    b"INSERTED +1\r\n",
    b"INSERTED 1_0\r\n",
    b"INSERTED \r\n",
    b"INSERTED 123456789012345678901\r\n",
    b"RESERVED 5 1\r\nxx\r\n",
    b"RESERVED 5 -1\r\n",
    b"RESERVED 5 99999999999999\r\n",
    b"RESERVED 1\r\nx\r\n",
    b"RESERVED 5 1 1\r\nx\r\n",
    b"RESERVED_BATCH 0\r\n",
    b"RESERVED_BATCH 2\r\nRESERVED 5 1\r\nx\r\nTIMED_OUT\r\n",
    b"RESERVED_BATCH 2\r\nRESERVED_BATCH 2\r\n",
    b"DELETED 5\r\n",
    b"deleted\r\n",
    b"HTTP/1.1 400 Bad Request\r\n",
    b"-ERR unknown command\r\n",
    b"USING \xff\r\n",
    b"USING a b\r\n",
    b"EXISTS\r\n",
    b"EXISTS x\r\n",
    b"NEW_WORD \x00\r\n",
    b"x" * 1025 + b"\r\n",
    b"OK 1 4\r\n---\n\r\n",
    b"OK 3\r\n---\r\n",
    b"OK 6\r\n---\nab\r\n",
]


def say(conversation, pieces, encoding=None):
    """Send commands, receive the pieces, and return what has become of each command."""
    protocol = Protocol(Session(encoding))
    for command in conversation:
        assert protocol.send(command) is command.data
    done = []
    for piece in pieces:
        done += protocol.receive(piece)
    assert protocol.pending == len(conversation) - len(done)
    assert [command for command, _ in done] == list(conversation)[: len(done)]
    return [plain(result) for _, result in done], protocol


def splits(data):
    """Every way to cut it in two, each byte by itself, and whole."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_reply_in_any_pieces_becomes_a_result(name):
    command, reply, result = CONVERSATIONS[name]
    for pieces in splits(reply):
        found, protocol = say([command], pieces)
        assert found == [result]
        assert not protocol.is_lost


@pytest.mark.parametrize("reply", ERRORS)
def test_a_reply_that_is_an_error_is_a_result_of_any_command(reply):
    for name, (command, _, _) in CONVERSATIONS.items():
        if (reply, name) in [(b"BURIED\r\n", "bury"), (b"DRAINING\r\n", "drain")]:
            continue
        if reply == b"BAD_FORMAT\r\n" and name in ("batch", "stats tubes"):  # beanstalkd's, to what it does not know
            assert say([command], [reply])[0] == [(errors.UnknownCommandError, str(errors.UnknownCommandError()))]
            continue
        for pieces in splits(reply) if name in ("put", "batch") else [[reply]]:
            found, protocol = say([command], pieces)
            assert found == [ERRORS[reply]]
            assert not protocol.is_lost


@pytest.mark.parametrize("reply", NONSENSE)
def test_a_reply_that_makes_no_sense_ends_the_connection_for_all_that_is_pending(reply):
    expects = {b"RESERVED": "reserve", b"RESERVED_BATCH": "batch", b"DELETED": "delete", b"USING": "use"}
    name = expects.get(reply.split()[0] if reply.split() else b"", "stats" if reply.startswith(b"OK") else "put")
    command = CONVERSATIONS[name][0]
    after = make.delete(6)
    for pieces in splits(reply + b"\r\n"):
        found, protocol = say([after, command, after], [b"DELETED\r\n", *pieces])
        assert found[0] is None
        assert [error for error, _ in found[1:]] == [errors.ConnectionLostError] * 2
        assert "may have been executed" in found[1][1]
        assert protocol.is_lost
        assert protocol.receive(b"DELETED\r\n") == []


def test_the_reply_to_another_command_makes_no_sense():
    for name, (command, _, _) in CONVERSATIONS.items():
        for other, (_, reply, _) in CONVERSATIONS.items():
            if reply.split()[0] != CONVERSATIONS[name][1].split()[0] and (name, other) != ("replace", "replaced"):
                found, protocol = say([command], [reply])
                fine = {b"INSERTED", b"REPLACED", b"BURIED", b"DRAINING"}
                if command.name.startswith("reserve"):
                    fine.add(b"CANCELLED")  # it has been called off
                assert protocol.is_lost or reply.split()[0] in fine, (name, other, found)


def test_a_reply_to_nothing_makes_no_sense():
    protocol = Protocol()
    assert protocol.receive(b"D") == []
    assert protocol.is_lost


def test_all_commands_in_one_conversation_in_pieces_of_every_size():
    conversation = [command for command, _, _ in CONVERSATIONS.values()]
    data = b"".join(reply for _, reply, _ in CONVERSATIONS.values())
    for size in range(1, 60):
        found, protocol = say(conversation, [data[at : at + size] for at in range(0, len(data), size)])
        assert found == [result for _, _, result in CONVERSATIONS.values()]
        assert protocol.pending == 0
        assert not protocol.is_lost


def test_a_body_that_cannot_be_decoded_leaves_the_conversation_in_step():
    data = b"RESERVED_BATCH 2\r\nRESERVED 5 1\r\n\xff\r\nRESERVED 6 1\r\na\r\nRESERVED 7 2\r\n\xc3\xa4\r\n"
    found, protocol = say([make.reserve_batch(2), make.reserve()], [data], "utf-8")
    assert found[0][0] is errors.UndecodableError
    assert found[1] == ("job", 7, "ä")
    assert protocol.session.reserved == {5, 6, 7}


def test_a_large_body_is_awaited_without_being_looked_at_again():
    protocol = Protocol()
    protocol.send(make.reserve())
    assert protocol.receive(b"RESERVED 5 1000000\r\n") == []
    assert protocol.missing == 1_000_002
    for _ in range(100):
        assert protocol.receive(b"x" * 10_000) == []
    assert protocol.missing == 2
    ((_, job),) = protocol.receive(b"\r\n")
    assert (job.id, job.body) == (5, b"x" * 1_000_000)
    assert protocol.missing == 1


def test_no_command_shows_its_token_or_its_body():
    assert repr(commands.auth("secret")) == "<auth>"
    assert repr(make.put(b"secret")) == "<put>"


def test_reservations_uses_and_watches_are_noted_as_the_replies_come():
    session = Session(use="a", watch=["b", "default"])
    protocol = Protocol(session)
    assert [command.data for command in session.greet()] == [b"use a\r\n", b"watch b\r\n"]
    script = [
        (make.use("c"), b"USING c\r\n"),
        (make.use("d"), b"FORBIDDEN\r\n"),
        (make.watch("e"), b"WATCHING 3\r\n"),
        (make.watch("f"), b"OUT_OF_MEMORY\r\n"),
        (make.ignore("default"), b"WATCHING 2\r\n"),
        (make.ignore("b"), b"NOT_IGNORED\r\n"),
        *[(make.reserve(), b"RESERVED %d 0\r\n\r\n" % number) for number in range(1, 8)],
        (make.peek(9), b"FOUND 9 0\r\n\r\n"),
        (make.delete(1), b"DELETED\r\n"),
        (make.delete(2), b"NOT_FOUND\r\n"),
        (make.release(3), b"RELEASED\r\n"),
        (make.release(4), b"BURIED\r\n"),
        (make.bury(5), b"BURIED\r\n"),
        (make.bury(6), b"INTERNAL_ERROR\r\n"),
    ]
    for command, reply in script:
        protocol.send(command)
        (_done,) = protocol.receive(reply)
    assert session.reserved == {6, 7}
    assert [command.data for command in session.greet()] == [
        b"use c\r\n", b"watch b\r\n", b"watch e\r\n", b"ignore default\r\n",
    ]  # fmt: skip
    session.lose()
    assert session.take_lost() == {6, 7}
    assert session.take_lost() == frozenset()
    assert session.reserved == set()


def test_a_job_of_a_connection_that_is_lost_is_held_no_more():
    session = Session()
    protocol = Protocol(session)
    protocol.send(make.reserve())
    protocol.send(make.peek(6))
    (_, job), (_, seen) = protocol.receive(b"RESERVED 5 0\r\n\r\nFOUND 6 0\r\n\r\n")
    assert session.fit(make.touch(job)).data == b"touch 5\r\n"
    session.origin.server = "the same"
    session.lose()
    session.origin.server = "the same"
    new = Job(7, b"", session.origin)
    for lost in (make.touch(job), make.release(seen), make.bury(job), make.touch_batch([8, job])):
        with pytest.raises(errors.ReservationLostError, match="the connection that reserved the job was lost"):
            session.fit(lost)
    for batch in (make.touch_batch, make.release_batch):
        with pytest.raises(errors.ReservationLostError, match="different connections"):
            batch([new, job])
    for known in (make.touch(5), make.touch(new), make.delete_batch([new, job])):
        assert session.fit(known) is known


@pytest.mark.parametrize(
    ("reply", "known"),
    [
        (extensions("reserve-batch", "put-with", "durations"), {"reserve-batch", "put-with", "durations"}),
        (extensions("durations"), {"durations"}),
        (extensions("something-of-the-future"), set()),
        (b"UNKNOWN_COMMAND\r\n", set()),
    ],
)
def test_one_question_for_each_connection_tells_all_that_the_server_knows(reply, known):
    session = Session()
    protocol = Protocol(session)
    (question,) = session.probes("put-with")
    assert protocol.send(question) == ASKED
    protocol.receive(reply)
    asked = {*commands.EXTENSIONS, commands.FRACTIONS}
    assert [session.probes(each) for each in asked] == [[]] * len(asked)
    assert {each for each in asked if session.knows(each)} == known
    assert session.needs(make.put_with(b"")) == session.needs(make.put(b"", delay=0.5)) == ""
    session.lose()
    assert [probe.data for each in asked for probe in session.probes(each)] == [ASKED] * len(asked)
    assert session.probes("put") == []
    assert session.knows("put")


@pytest.mark.parametrize(
    ("known", "sent"), [("durations", b"release 1 65536 0.500\r\n"), ("save", b"release 1 65536 1\r\n")]
)
def test_a_command_is_said_as_the_server_knows_it(known, sent):
    session = Session()
    protocol = Protocol(session)
    protocol.send(make.list_extensions())
    protocol.receive(extensions(known))
    assert session.fit(make.release(1, delay=0.5)).data == sent
    with pytest.raises(errors.UnsupportedError, match="put-with"):
        session.fit(make.put_with(b""))


@pytest.mark.parametrize("reply", [b"BAD_FORMAT", b"FORBIDDEN", b"INTERNAL_ERROR", b"UNAUTHORIZED", b"OUT_OF_MEMORY"])
def test_a_refusal_does_not_tell_what_the_server_knows(reply):
    session = Session()
    protocol = Protocol(session)
    protocol.send(make.list_extensions())
    protocol.receive(reply + b"\r\n")
    assert session.known == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: make.put(b"", -1),
        lambda: make.put(b"", 2**32),
        lambda: make.put(b"", 0, -1),
        lambda: make.put(b"", 0, 2**32),
        lambda: make.put(b"", 0, 0, float("nan")),
        lambda: make.put_keyed("a b", b""),
        lambda: make.put_keyed("", b""),
        lambda: make.put_keyed("k\r\n", b""),
        lambda: make.put_with(b"", hold=1),
        lambda: make.put_with(b"", replace=True),
        lambda: make.put_with(b"", once="a:1"),
        lambda: make.put_with(b"", once_ttl=1),
        lambda: make.put_with(b"", delay=1, at=1),
        lambda: make.put_with(b"", at=2**32),
        lambda: make.put_with(b"", tries=-1),
        lambda: make.put_with(b"", key="ä"),
        lambda: make.use("-a"),
        lambda: make.use("a" * 201),
        lambda: make.watch("a\n"),
        lambda: make.delete(-1),
        lambda: make.delete(2**64),
        lambda: make.release(1, 2**32),
        lambda: make.bury(1, -1),
        lambda: make.reserve(-1),
        lambda: make.reserve(2**31),
        lambda: make.reserve_batch(0),
        lambda: make._job_page("t", "dead"),
        lambda: make._job_page("t", "ready", "x y"),
        lambda: make.move_jobs("t", "reserved", "u", 1),
        lambda: commands.auth("a b"),
        lambda: commands.auth(""),
        lambda: commands.probe("put"),
        lambda: commands.probe("auth"),
    ],
)
def test_what_no_server_would_take_is_no_command(make):
    with pytest.raises(ValueError, match=r"must be|cannot be combined|require|is not an extension"):
        make()


def test_durations_are_rounded_up_to_the_millisecond():
    durations = {1: b"1", 0.25: b"0.250", 1.1: b"1.100", 0.0004: b"0.001", 2.0: b"2", 59.9999: b"60.000"}
    assert {duration: commands.seconds("delay", duration) for duration in durations} == durations


@pytest.mark.parametrize(
    "make",
    [
        lambda duration: make.put(b"x", 1, duration, duration),
        lambda duration: make.put_keyed("k", b"x", 1, duration, duration),
        lambda duration: make.replace_keyed("k", b"x", 1, duration, duration),
        lambda duration: make.put_with(b"x", 1, duration, duration, backoff=duration, ttl=duration),
        lambda duration: make.put_with(b"x", key="k", at=5, hold=duration, once="t", once_ttl=duration),
        lambda duration: make.reschedule(1, duration),
        lambda duration: make.reschedule_keyed("k", duration),
        lambda duration: make.reserve(duration),
        lambda duration: make.reserve_batch(5, duration),
        lambda duration: make.release(1, 1, duration),
        lambda duration: make.pause_tube("t", duration),
    ],
)
def test_every_duration_may_be_a_text_or_a_timedelta(make):
    for text, seconds in (("5m", 300), ("1.5s", 1.5), ("250ms", 0.25), ("2h", 7200), ("0s", 0)):
        expected = make(seconds)
        for duration in (text, datetime.timedelta(seconds=seconds)):
            made = make(duration)
            assert (made.data, made.wait) == (expected.data, expected.wait)
    for duration in ("5 minutes", "-5m", "m", "", "1e3", "90"):
        with pytest.raises(ValueError, match=f" is '{duration}': must be seconds"):
            make(duration)
    with pytest.raises(ValueError, match=r"is -1\.0: must be from 0"):
        make(datetime.timedelta(seconds=-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make.put(b"x", delay=None), "delay is None: must be seconds, a timedelta, or a number with a unit"),
        (lambda: make.reserve([1]), r"timeout is \[1\]: must be seconds"),
        (lambda: make.put(b"x", "high"), "priority is 'high': must be a whole number"),
        (lambda: make.delete("7"), "id is '7': must be a whole number"),
        (lambda: make.delete(7.5), "id is 7.5: must be a whole number"),
        (lambda: make.touch(None), "id is None: must be a whole number"),
        (lambda: make.kick("all"), "limit is 'all': must be a whole number"),
        (lambda: make.use(None), "tube is None: must be a string"),
        (lambda: make.cancel_keyed(17), "key is 17: must be a string"),
        (lambda: make.put_with(b"x", at="2027-01-04"), "at is '2027-01-04': must be a datetime, or Unix time"),
    ],
)
def test_a_value_of_a_wrong_type_is_named_with_what_would_be_right(make, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        make()


@settings(max_examples=examples(100))
@given(st.from_regex(r"[0-9]{1,4}(ms|[smhd])", fullmatch=True))
def test_a_text_is_the_duration_that_the_config_file_and_the_operators_read(text):
    assert commands.seconds_of(text) == parser.duration(text)
    if text.strip("0123456789") in {*"smhd"}:
        assert commands.seconds_of(text) == DURATION.take(text)


def test_what_a_client_waits_for_is_a_duration():
    assert read_patience("1m", datetime.timedelta(seconds=9), "2s") == (60, 9, 2)
    assert read_patience(0.5, None, 1) == (0.5, None, 1)
    with pytest.raises(ValueError, match="connect_timeout is 0: must be seconds, more than 0"):
        read_patience("0s", None, 1)


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownResponseError(b"NEW", [b"1"]),
        errors.BuriedError(5),
        errors.BuriedError(),
        errors.ExistsError(4),
        errors.ConnectionLostError("gone", reason="so", maybe_done=True),
        errors.unreachable("h:1", ConnectionRefusedError(111, "Connection refused")),
        errors.unreachable("h:1", socket.gaierror(-2, "Name or service not known")),
        errors.ReservationLostError("job 3"),
        replies.undecodable(UnicodeError("x"), Job(1, b"a")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_go_from_process_to_process(error):
    for same in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(same), str(same), repr(same)) == (type(error), str(error), repr(error))
        assert vars(same).keys() == vars(error).keys()
        assert getattr(same, "errno", 0) == getattr(error, "errno", 0)


@pytest.mark.parametrize("reply", [b"\x1b[2J\n2026-05-04 ERROR forged", "\u202e\u2028\x9b".encode(), b"\0" * 900])
def test_what_a_server_says_steers_no_terminal_and_forges_no_line(reply):
    for command in (make.stats(), make.put(b"", 0, 0, 1), make.touch(1)):
        protocol = Protocol()
        protocol.send(command)
        ((_, lost),) = protocol.receive(reply + b"\r\n")
        assert str(lost).startswith("invalid reply from the server (") and str(lost).isprintable()
        assert len(lost.reason) < 300
    protocol = Protocol()
    protocol.send(make.stats())
    ((_, lost),) = protocol.receive(b"OK %d\r\n---\n%b\r\n" % (len(reply) + 4, reply))
    assert lost.reason.isprintable() and len(lost.reason) < 300


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (make.reserve(), b"RESERVED 1 %d\r\n"),
        (make.peek(1), b"FOUND 1 %d\r\n"),
        (make.stats(), b"OK %d\r\n"),
    ],
)
def test_no_more_is_awaited_than_a_job_may_have(command, reply):
    protocol = Protocol()
    protocol.send(command)
    assert protocol.receive(reply % 2**30) == []
    for size in (2**30 + 1, 9_999_999_999, 10**30):
        protocol = Protocol()
        protocol.send(command)
        ((_, lost),) = protocol.receive(reply % size)
        assert isinstance(lost, errors.ConnectionLostError) and protocol.is_nonsense


def test_a_batch_has_at_most_as_many_jobs_as_servers_give():
    for count, is_nonsense in ((512, False), (513, True), (99_999_999_999, True)):
        protocol = Protocol()
        protocol.send(make.reserve_batch(512))
        protocol.receive(b"RESERVED_BATCH %d\r\n" % count)
        assert protocol.is_nonsense == is_nonsense


@pytest.mark.parametrize("kind", [errors.ExistsError, errors.BuriedError, *errors.REPLIES.values()])
def test_an_error_says_what_was_asked_of_whom_and_what_it_means(kind):
    error = kind(17) if kind is errors.ExistsError else kind()
    assert kind.meaning and kind.reply
    errors.of_command(error, make.put_keyed("order-17", b"secret", 0, 0, 60).line, "queue:1")
    found = str(pickle.loads(pickle.dumps(error)))
    assert found.startswith(f"queue:1: {kind.reply}: ") and found.endswith(" (put-keyed order-17 0 0 60 6)")
    assert "secret" not in found


def test_a_token_is_in_no_error():
    assert commands.auth("hunter2").line == "auth"


NAMES = {PRODUCE: "produce", CONSUME: "consume", INSPECT: "inspect", ADMIN: "admin", ANY_RIGHT: "any"}
SCOPES = {
    TUBE_IN_USE: "used",
    TUBE_NAMED: "named",
    TWO_TUBES: "named",
    TUBE_OF_JOB: "job",
    WATCHED_TUBES: "watched",
    EVERY_TUBE: "all",
}


def test_the_client_names_the_right_that_each_command_needs():
    needed = {
        command.name: (NAMES[command.right], SCOPES[command.scope])
        for command in PROTOCOL + EXTENSIONS
        if command.scope in SCOPES
    }
    assert needed == RIGHTS


def test_a_refusal_names_the_right_and_the_tube():
    protocol = Protocol()
    for command, reply, said in [
        (make.use("mail"), b"USING mail\r\n", None),
        (make.put(b"a"), b"FORBIDDEN\r\n", ("produce", "mail", "lacks the right to produce in tube mail:")),
        (make.use("b"), b"FORBIDDEN\r\n", ("any", "b", "lacks any right in tube b:")),
        (make.stats(), b"FORBIDDEN\r\n", ("inspect", "*", "lacks the right to inspect in tube *:")),
        (make.reserve(0), b"FORBIDDEN\r\n", ("consume", "", "lacks the right to consume in the tubes it watches:")),
        (make.delete(5), b"FORBIDDEN\r\n", ("consume", "", "lacks the right to consume:")),
    ]:
        protocol.send(command)
        ((_, error),) = protocol.receive(reply)
        if said:
            of_command(error, command.line, "queue:1")
            assert (error.right, error.tube) == said[:2]
            assert said[2] in str(error)
