"""A client that is passed on: it gets what it would get from the leader itself, and stays when the leader goes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linked import Cluster, Passed, pieces
from virtual import World

from beanstalk_server.access.user import User
from beanstalk_server.cluster.passing import REPEATABLE, PassingSession, ReplyFramer, Watched
from beanstalk_server.link.link import WINDOW
from beanstalk_server.queue.journal import NONE
from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL, QUIT

commands = st.sampled_from(
    [
        b"put 0 0 1 3\r\nabc\r\n",
        b"put 5 1 1 0\r\n\r\n",
        b"put 0 0 1 3\r\nabcd\r\n",
        b"put 0 0 1 3 trailing\r\nabc\r\n",
        b"put 0 0 1 70000 trailing\r\n" + b"x" * 70002,
        b"put 0 0 1 70000\r\n" + b"x" * 70002,
        b"put 0 0 1 60000\r\n" + b"y" * 60000 + b"\r\n",
        b"put 0 0 1 500\r\n" + b"\r\n" * 251,
        b"put -1 0 1 3\r\n",
        b"put-keyed k 0 0 60 3\r\nabc\r\n",
        b"replace-keyed k 0 9 60 3\r\nabc\r\n",
        b"put-keyed " + b"k" * 200 + b" 1 0 60 2\r\nab\r\n",
        b"cancel 1\r\n",
        b"peek-keyed k\r\n",
        b"use a\r\n",
        b"use -\r\n",
        b"watch a\r\n",
        b"watch b\r\n",
        b"ignore default\r\n",
        b"ignore a\r\n",
        b"list-tubes-watched\r\n",
        b"list-tube-used\r\n",
        b"reserve\r\n",
        b"reserve-with-timeout 0\r\n",
        b"reserve-batch 3 0\r\n",
        b"reserve-job 1\r\n",
        b"delete 1\r\n",
        b"release 1 0 0\r\n",
        b"bury 1 0\r\n",
        b"kick 9\r\n",
        b"touch 1\r\n",
        b"peek-ready\r\n",
        b"peek 2\r\n",
        b"stats\r\n",
        b"stats-job 1\r\n",
        b"stats-tube default\r\n",
        b"list-tubes\r\n",
        b"pause-tube default 0\r\n",
        b"clear-tube default\r\n",
        b"auth of a client that nobody asks\r\n",
        b"nonsense\r\n",
        b"x" * 224,
        b"y" * 500 + b"\r\n",
        b"\r",
        b"\n",
        b"\r\r\n",
        b"\0\r\n",
        b"put ",
        b"quit",
        b"quit\r\n",
    ]
)
conversations = st.lists(st.one_of(commands, st.binary(max_size=8)), max_size=12).map(b"".join)
places = st.lists(st.integers(0, 90_000), max_size=20)


class Reference:
    """The same client without anything in between."""

    def __init__(self, world=None, **keywords):
        self.world = world or World()
        self.caller = self.world.connect(**keywords)

    def send(self, data):
        return self.caller.send(data)


@settings(max_examples=400)
@given(data=conversations, cuts=places, link_cuts=places, ends=st.booleans())
def test_a_client_gets_byte_for_byte_what_it_would_get_from_the_leader_itself(data, cuts, link_cuts, ends):
    reference = Reference()
    replies = reference.send(data)
    cluster = Cluster(cut=lambda sent: pieces(sent, link_cuts))
    client = cluster.connect()
    arrived = b"".join(cluster.send(client, piece) for piece in pieces(data, cuts))
    if ends:
        replies += reference.caller.shut_down()
        client.end()
        arrived += cluster.read(client)
    assert arrived == replies
    assert client.closed == reference.caller.session.closed
    if not client.closed:
        served = cluster.served[0].session
        assert client.session.used == served.use.name == reference.caller.session.use.name
        watched = [tube.name for tube in served.watched]
        assert client.session.watched.names == watched == [tube.name for tube in reference.caller.session.watched]
    cluster.world.check()


@given(data=conversations)
def test_bytes_that_come_one_by_one_are_answered_alike(data):
    data = data[:2000]
    replies = Reference().send(data)
    cluster = Cluster(cut=lambda sent: [bytes([byte]) for byte in sent])
    client = cluster.connect()
    assert b"".join(cluster.send(client, bytes([byte])) for byte in data) == replies


def token(given):
    return {"a": User("ann", produce=["*"], consume=["*"]), "b": User("bob", consume=["b"], inspect=["*"])}.get(given)


auths = st.sampled_from([b"auth a\r\n", b"auth b\r\n", b"auth b\r\n", b"auth \r\n", b"auth x\r\n", b"auth\r\n"])


@given(
    data=st.lists(st.one_of(commands, auths), max_size=12).map(b"".join),
    cuts=places,
    link_cuts=places,
)
def test_a_client_that_authenticates_is_answered_in_its_order(data, cuts, link_cuts):
    ann = token("a")
    replies = Reference(user=ann, authenticate=token).send(data)
    cluster = Cluster(cut=lambda sent: pieces(sent, link_cuts), users=lambda name: token(name[0]))
    client = cluster.connect(token, ann)
    arrived = b"".join(cluster.send(client, piece) for piece in pieces(data, cuts))
    assert arrived == replies
    if not client.closed:
        assert client.session.watched.names == [tube.name for tube in cluster.served[0].session.watched]


def test_another_user_is_told_to_the_leader_when_all_before_it_has_been_answered():
    cluster = Cluster(users=lambda name: token(name[0]))
    client = cluster.connect(token, token("a"))
    other = cluster.connect(token, token("a"))
    assert cluster.send(client, b"reserve\r\nauth b\r\nput 0 0 60 1\r\nx\r\n") == b""
    assert cluster.served[0].session.user.name == "ann"
    assert cluster.send(other, b"put 0 0 60 1\r\nj\r\n") == b"INSERTED 1\r\n"
    assert cluster.read(client) == b"RESERVED 1 1\r\nj\r\nAUTHENTICATED\r\nFORBIDDEN\r\n"
    assert cluster.served[0].session.user.name == "bob"
    assert b"auth" not in cluster.served[0].received


def test_each_of_two_users_is_told_to_the_leader():
    cluster = Cluster(users=lambda name: token(name[0]))
    client = cluster.connect(token, token("a"))
    assert cluster.send(client, b"auth b\r\nauth a\r\nwatch a\r\n") == (
        b"AUTHENTICATED\r\nAUTHENTICATED\r\nWATCHING 1\r\n"  # bob may not watch default
    )


def test_every_command_may_be_given_again_or_changes_something():
    changes = {
        command.name
        for command in PROTOCOL + EXTENSIONS
        if command.needs != NONE or command.name in ("touch", "pause-tube")
    }
    assert {command.name for command in PROTOCOL + EXTENSIONS} == REPEATABLE | changes | {QUIT.name}
    assert not REPEATABLE & changes


# When the leader goes


def test_a_client_that_waits_for_a_job_gets_it_from_the_next_leader():
    cluster = Cluster()
    client = cluster.connect()
    assert cluster.send(client, b"use a\r\nwatch b\r\nwatch c\r\nignore default\r\n") == (
        b"USING a\r\nWATCHING 2\r\nWATCHING 3\r\nWATCHING 2\r\n"
    )
    assert cluster.send(client, b"reserve\r\n") == b""
    cluster.cut_link()
    assert not client.closed
    cluster.take_over(World())
    client.begin(cluster.standby)
    cluster.settle()
    assert [tube.name for tube in cluster.served[0].session.watched] == ["c", "b"]
    other = cluster.connect()
    assert cluster.send(other, b"use b\r\nput 0 0 60 1\r\nj\r\n") == b"USING b\r\nINSERTED 1\r\n"
    assert cluster.read(client) == b"RESERVED 1 1\r\nj\r\n"
    assert cluster.send(client, b"delete 1\r\nlist-tube-used\r\n") == b"DELETED\r\nUSING a\r\n"


def test_tubes_are_restored_by_what_has_been_confirmed_and_the_rest_is_given_again():
    cluster = Cluster()
    client = cluster.connect()
    cluster.send(client, b"use a\r\nwatch a\r\n")
    client.receive_from_client(b"use b\r\nignore default\r\nwatch c\r\nlist-tubes-watched\r\n")  # answered by nobody
    cluster.cut_link()
    assert client.session.used == "a"
    cluster.take_over(World())
    client.begin(cluster.standby)
    assert cluster.read(client) == b"USING b\r\nWATCHING 1\r\nWATCHING 2\r\nOK 12\r\n---\n- a\n- c\n\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        b"put 0 0 60 1\r\nx\r\n",
        b"put 0 0 60 10\r\nhalf of",
        b"reserve\r\ndelete 1\r\n",
        b"reserve\r\ntouch 1\r\n",
        b"unknown\r\n",
        b"quit\r\n",
        b"x" * 400,
        b"x" * 400 + b"\r\n",
    ],
)
def test_a_client_that_waits_for_a_change_is_disconnected(sent):
    cluster = Cluster()
    client = cluster.connect()
    client.receive_from_client(sent)
    cluster.cut_link()
    assert client.closed


@pytest.mark.parametrize("sent", [b"", b"reserve\r\n", b"put 0 0 60", b"peek 1\r\nstats\r\nwatch x\r\nput"])
def test_a_client_that_waits_for_no_change_stays(sent):
    cluster = Cluster()
    client = cluster.connect()
    client.receive_from_client(sent)
    cluster.cut_link()
    assert not client.closed


def test_a_client_that_has_half_of_a_reply_is_disconnected():
    cluster = Cluster()
    client = cluster.connect()
    cluster.send(client, b"put 0 0 60 60000\r\n" + b"j" * 60000 + b"\r\n")
    cluster.send(client, b"put 0 0 60 60000\r\n" + b"j" * 60000 + b"\r\n")
    client.reads = False
    client.receive_from_client(b"reserve\r\nreserve\r\n")
    arrived = cluster.read(client)
    assert 60030 < len(arrived) < WINDOW  # the rest waits for credit
    cluster.cut_link()
    assert client.closed


def test_what_comes_while_nobody_leads_goes_to_the_next_leader():
    client = Passed()
    client.receive_from_client(b"use a\r\nput 0 0 60 1\r\n")
    client.receive_from_client(b"x\r\npeek 1\r\nquit\r\n")
    cluster = Cluster()
    client.begin(cluster.standby)
    assert cluster.read(client) == b"USING a\r\nINSERTED 1\r\nFOUND 1 1\r\nx\r\n"
    assert client.closed


def test_a_change_that_the_leader_had_no_room_for_is_passed_to_the_next_one():
    cluster = Cluster()
    client = cluster.connect()
    peeks = WINDOW // len(b"peek 1\r\n")
    client.receive_from_client(b"peek 1\r\n" * peeks)
    client.receive_from_client(b"put 0 0 60 1\r\nx\r\n")
    cluster.cut_link()
    assert not client.closed
    cluster.take_over(World())
    client.begin(cluster.standby)
    assert cluster.read(client) == b"NOT_FOUND\r\n" * peeks + b"INSERTED 1\r\n"


def test_a_client_that_has_shut_down_its_sending_side_has_done_so_for_the_next_leader():
    cluster = Cluster()
    client = cluster.connect()
    client.receive_from_client(b"reserve\r\n")
    client.end()
    cluster.cut_link()
    assert not client.closed
    cluster.take_over(World())
    client.begin(cluster.standby)
    assert cluster.read(client) == b"TIMED_OUT\r\n"
    assert client.closed


@settings(max_examples=200)
@given(data=conversations, cuts=places, lost_at=st.integers(0, 12))
def test_a_client_that_stays_gets_each_reply_once(data, cuts, lost_at):
    """A leader that goes after any piece, with any part of the bytes answered: whoever stays is answered by the next
    one what has not been answered, each command once."""
    parts = pieces(data, cuts)
    cluster = Cluster()
    client = cluster.connect()
    arrived = b"".join(cluster.send(client, part) for part in parts[:lost_at])
    if client.closed:
        return
    for part in parts[lost_at : lost_at + 1]:
        client.receive_from_client(part)  # nobody answers
    framer = ReplyFramer()
    answered = len(framer.feed(arrived))
    cluster.cut_link()
    if client.closed:
        return
    world = World()
    cluster.take_over(world)
    client.begin(cluster.standby)
    for part in parts[lost_at + 1 :]:
        client.receive_from_client(part)
    answered += len(framer.feed(cluster.read(client)))
    assert not framer.is_within
    replies = len(ReplyFramer().feed(Reference().send(data)))
    pending = cluster.served[0].session.pending is not None
    assert answered == replies or pending


def test_the_commands_of_a_client_that_is_passed_on_no_more_are_all_that_has_not_been_answered():
    cluster = Cluster(users=lambda name: token(name[0]))
    client = cluster.connect(token, token("a"))
    cluster.send(client, b"use b\r\n")
    client.receive_from_client(b"reserve\r\nwatch b\r\nauth b\r\nput 0 0 60 1\r\nx")
    assert client.session.may_stay
    cluster.cut_link()
    assert client.session.take_all() == b"reserve\r\nwatch b\r\nauth b\r\nput 0 0 60 1\r\nx"


class Moving:
    """A client that is served by a plain session, or passed on to one, in the same world."""

    def __init__(self):
        self.cluster = Cluster()
        self.world = self.cluster.world
        self.plain = self.world.connect()
        self.passed = None

    def send(self, data):
        if self.plain is not None:
            return self.plain.send(data)
        return self.cluster.send(self.passed, data)

    def move(self):
        """Change from one to the other, if nothing would be lost."""
        if self.plain is not None:
            session = self.plain.session
            if not session.can_move():
                return b""
            data = session.take_commands(self.world.now)
            state = {"used": session.use.name, "watched": [tube.name for tube in session.watched]}
            self.plain.disconnect()
            self.plain = None
            self.passed = Passed(**state)
            self.passed.receive_from_client(data)
            self.passed.begin(self.cluster.standby)
            return self.cluster.read(self.passed)
        session = self.passed.session
        if not session.may_stay:
            return b""
        self.passed.close_channel(at_once=True)
        self.cluster.settle()
        self.plain = self.world.connect()
        self.plain.session.restore(session.used, session.watched.names)
        return self.plain.send(session.take_all())


KEEPING = commands.filter(lambda command: not command.startswith((b"reserve", b"stats", b"list-tubes\r", b"touch")))


@settings(max_examples=300)
@given(data=st.lists(st.one_of(KEEPING, st.binary(max_size=8)), max_size=12).map(b"".join), cuts=places)
def test_a_client_that_moves_to_and_fro_is_answered_as_if_it_had_not(data, cuts):
    """With commands that tell nothing of other clients, and reserve nothing: that would be ready after each move."""
    reference = Reference()
    replies = reference.send(data)
    moving = Moving()
    arrived = b""
    for piece in pieces(data, cuts):
        arrived += moving.send(piece)
        arrived += moving.move()
    assert arrived == replies
    moving.world.check()


def test_a_client_moves_in_the_middle_of_a_line():
    moving = Moving()
    assert moving.send(b"use a\r\nuse") == b"USING a\r\n"
    assert moving.move() == b""
    assert moving.passed is not None
    assert moving.send(b" b\r\nlist-tube-") == b"USING b\r\n"
    assert moving.move() == b""
    assert moving.plain is not None
    assert moving.send(b"used\r\n") == b"USING b\r\n"


def test_nothing_that_follows_a_quit_is_kept_or_passed_on():
    session = PassingSession()
    session.begin(65535)
    session.receive(b"peek 1\r\nquit\r\npeek 2\r\n")
    assert session.take_commands(100) == b"peek 1\r\nquit\r\n"
    session.receive(b"peek 3\r\n")
    assert session.input_size == 0
    assert session.take_commands(100) == b""


# Replies that are not those of the commands


def test_replies_that_belong_to_no_command_are_passed_and_the_client_goes_with_its_leader():
    session = PassingSession()
    session.begin(65535)
    session.receive(b"peek 1\r\n")
    assert session.take_commands(100) == b"peek 1\r\n"
    session.note_replies(b"NOT_FOUND\r\nNOT_FOUND\r\n")
    session.receive(b"put")
    assert session.take_commands(2) == b"pu"
    assert session.take_commands(2) == b"t"
    assert session.take_commands(2) == b""
    assert not session.may_stay


def test_a_leader_that_answers_a_put_before_its_body_is_believed():
    session = PassingSession()
    session.begin(65535)
    session.receive(b"put 0 0 1 100\r\n")
    assert session.take_commands(100) == b"put 0 0 1 100\r\n"
    session.note_replies(b"INTERNAL_ERROR\r\n")
    session.receive(b"peek 1\r\n")
    assert session.take_commands(100) == b"peek 1\r\n"
    assert not session.may_stay


def test_a_line_without_an_end_is_no_reply():
    framer = ReplyFramer()
    framer.feed(b"x" * 2000)
    assert framer.is_lost
    framer = ReplyFramer()
    assert framer.feed(b"OK so\r\n") == [b"OK so"]
    assert framer.is_lost


@given(cuts=places)
def test_replies_are_found_wherever_they_are_split(cuts):
    data = (
        b"INSERTED 1\r\nRESERVED 1 7\r\na\r\nb\r\nc\r\nRESERVED_BATCH 2\r\nRESERVED 3 0\r\n\r\nRESERVED 4 2\r\n\r\n\r\n"
    )
    data += b"OK 3\r\n---\r\n"
    framer = ReplyFramer()
    found = [line for piece in pieces(data, [cut % len(data) for cut in cuts]) for line in framer.feed(piece)]
    assert found == [b"INSERTED 1", b"RESERVED 1 7", b"RESERVED_BATCH 2", b"OK 3"]
    assert not framer.is_within


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcde")), max_size=30))
def test_tubes_are_watched_in_the_order_in_which_a_session_has_them(steps):
    caller = World().connect()
    caller.session.restore("default", ["a", "b"])
    watched = Watched(["a", "b"])
    for adds, name in steps:
        if adds:
            caller.send(b"watch %b\r\n" % name.encode())
            watched.add(name)
        elif caller.send(b"ignore %b\r\n" % name.encode()) != b"NOT_IGNORED\r\n":
            watched.remove(name)
    assert watched.names == [tube.name for tube in caller.session.watched]
