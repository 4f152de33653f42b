"""A routed client gets what it would get from one server, whichever shards its commands concern."""

import pytest
from checking import check_broker
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from linked import pieces
from routed import RoutedCluster
from virtual import Caller, World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.wheel import TICK
from beanstalk_server.wire.commands import PLACE_COMMANDS
from beanstalk_server.wire.places import Places


class OneQueue(Broker):
    """A broker of one server that gives ids as the shards of a cluster do."""

    def __init__(self, shards, now):
        super().__init__(Journal(), now, TICK)
        self.stride = shards
        self.places = Places(shards)
        self.next_ids = list(range(shards, 2 * shards))  # of each shard
        self.session = None
        self.has_next_id = False  # a put with attributes takes its id by `take_id`

    def take_id(self):
        return self._with_next_id(super().take_id)

    def put_with(self, *arguments):
        return self._with_next_id(super().put_with, *arguments)

    def put_batch(self, *arguments):
        return self._with_next_id(super().put_batch, *arguments)

    def _with_next_id(self, call, *arguments):
        if self.has_next_id:
            return call(*arguments)
        self.has_next_id = True
        shard = self.places.of_tube(self.session.use.name.encode())
        self.next_id = self.next_ids[shard]
        result = call(*arguments)
        self.next_ids[shard] = self.next_id
        self.next_id = max(self.next_ids)
        self.has_next_id = False
        return result


class Reference:
    """The same client at one server."""

    def __init__(self, shards, **how):
        self.world = World()
        self.world.broker = OneQueue(shards, self.world.now)
        self.caller = Caller(self.world, **how)
        self.world.broker.session = self.caller.session

    def send(self, data):
        return self.caller.send(data)


def tube(shard, shards, which=0):
    """The name of a tube of a shard."""
    names = (b"t%d" % number for number in range(10_000))
    return [name for name in names if Places(shards).of_tube(name) == shard][which]


TUBES = [b"a", b"b", b"c", b"mails", b"default"]

SIMPLE = [
    b"put 0 0 1 3\r\nabc\r\n",
    b"put 5 1 1 0\r\n\r\n",
    b"put 0 0 1 3\r\nabcd\r\n",
    b"put 0 0 1 3 trailing\r\nabc\r\n",
    b"put 0 0 1 70000 trailing\r\n" + b"x" * 70002,
    b"put 0 0 1 70000\r\n" + b"x" * 70002,
    b"put 0 0 1 60000\r\n" + b"y" * 60000 + b"\r\n",
    b"put 0 0 1 500\r\n" + b"\r\n" * 251,
    b"put -1 0 1 3\r\n",
    b"put  1  0  60  1\r\nz\r\n",
    b"put-keyed k 0 0 60 3\r\nabc\r\n",
    b"replace-keyed k 0 9 60 3\r\nabc\r\n",
    b"put-keyed " + b"k" * 200 + b" 1 0 60 2\r\nab\r\n",
    b"cancel-keyed k\r\n",
    b"reschedule-keyed k 3\r\n",
    b"peek-keyed k\r\n",
    b"put-with 0 0 60 3\r\nabc\r\n",
    b"put-with 0 1 60 3 key=k replace=1 tries=2\r\nabc\r\n",
    b"put-with 0 0 60 3 tries=2 more\r\nabc\r\n",
    b"put-with 0 0 60 70000 tries=0\r\n" + b"x" * 70002,
    b"put-with 0 0 60 3 key=" + b"k" * 200 + b" backoff=0.5 ttl=100 hold=3 tries=10\r\nabc\r\n",
    b"redrive a 3\r\n",
    b"put-batch 0 0 1 12\r\n1\r\na\r\n1\r\nb\r\n\r\n",
    b"put-batch 0 0 1 3\r\nabc\r\n",
    b"put-batch 0 0 1 9999999\r\n",
    b"delete-batch 2 3 4 5 6 7\r\n",
    b"delete-batch 2 4 6\r\n",
    b"delete-batch 2 4  6\r\n",
    b"delete-batch " + b"12345678901234567890 " * 999 + b"3\r\n",
    b"release-batch 5 0 2 3 4 5\r\n",
    b"touch-batch 2 3 4\r\n",
    b"touch-all\r\n",
    b"cancel-reserve\r\n",
    b"cancel-reserve \r\n",
    b"watch a 3\r\n",
    b"watch b 0\r\n",
    b"redrive  a 3\r\n",
    b"redrive a\r\n",
    b"move-jobs a ready a 3\r\n",
    b"move-jobs a reserved b 3\r\n",
    b"move-jobs " + b"a" * 160 + b" buried " + b"a" * 160 + b" 3\r\n",
    b"list-jobs a ready 0 9\r\n",
    b"list-jobs default reserved 0 9\r\n",
    b"list-jobs a ready 5 9\r\n",
    b"list-jobs  a ready 0 9\r\n",
    b"stats-tubes x 1\r\n",
    b"stats-tubes - 0\r\n",
    b"stats-tubes\r\n",
    b"use -\r\n",
    b"use\r\n",
    b"watch -\r\n",
    b"ignore  a\r\n",
    b"list-tubes-watched\r\n",
    b"list-tube-used\r\n",
    b"kick 9\r\n",
    b"peek-ready\r\n",
    b"peek-delayed\r\n",
    b"peek-buried\r\n",
    b"delete  7\r\n",
    b"delete +7\r\n",
    b"delete\r\n",
    b"delete 99999999999999999999999\r\n",
    b"pause-tubea 0\r\n",
    b"pause-tube  a  0\r\n",
    b"pause-tube - 0\r\n",
    b"auth of a client that is not asked\r\n",
    b"nonsense\r\n",
    b"probe\r\n",
    b"await 0 0\r\n",
    b"unuse\r\n",
    b"unwatch default\r\n",
    b"unreserve 3\r\n",
    b"unuse\0\r\n",
    b"\r\n",
    b"x" * 224,
    b"y" * 500 + b"\r\n",
    b"\r",
    b"\n",
    b"\r\r\n",
    b"\0\r\n",
    b"put ",
    b"quit",
    b"quit\r\n",
    b"quitting\r\n",
    b"quit\0\r\n",
]
OF_ONE_SHARD = [b"stats\r\n", b"stats-tube default\r\n", b"list-tubes\r\n"]

named = st.builds(
    lambda command, tube: command % tube,
    st.sampled_from([b"use %b\r\n", b"watch %b\r\n", b"ignore %b\r\n", b"clear-tube %b\r\n", b"pause-tube %b 0\r\n"]),
    st.sampled_from(TUBES),
)
seen = st.builds(lambda tube: b"stats-tube %b\r\n" % tube, st.sampled_from(TUBES[:-1]))
by_id = st.builds(
    lambda command, job_id: command % job_id,
    st.sampled_from(
        [
            b"delete %d\r\n",
            b"release %d 0 0\r\n",
            b"release %d 0 5\r\n",
            b"bury %d 0\r\n",
            b"touch %d\r\n",
            b"peek %d\r\n",
            b"reserve-job %d\r\n",
            b"kick-job %d\r\n",
            b"stats-job %d\r\n",
            b"cancel %d\r\n",
            b"reschedule %d 2\r\n",
        ]
    ),
    st.integers(0, 30),
)
reserves = st.sampled_from(
    [b"reserve\r\n", b"reserve-with-timeout 0\r\n", b"reserve-batch 3 0\r\n", b"reserve-batch 0 0\r\n"]
)
puts = st.just(b"put 0 0 1 3\r\nabc\r\n")
simple = st.sampled_from(SIMPLE)
mixed = st.one_of(puts, simple, named, named, seen, by_id, by_id, st.binary(max_size=8))
cuts = st.lists(st.integers(0, 90_000), max_size=20)


def conversations(*kinds):
    return st.lists(st.one_of(*kinds), max_size=14).map(b"".join)


def compare(shards, data, how, back, ends=False, **keywords):
    reference = Reference(shards, **keywords)
    replies = reference.send(data)
    users = keywords.get("authenticate")
    cluster = RoutedCluster(shards, lambda sent: pieces(sent, back), users=users and (lambda name: users(name[0])))
    client = cluster.connect(**keywords)
    arrived = b"".join(client.send(piece) for piece in pieces(data, how))
    if ends:
        replies += reference.caller.shut_down()
        arrived += client.shut_down()
    assert arrived == replies
    session = reference.caller.session
    assert client.closed == session.closed
    if not client.closed:
        check_places(client, session)
    check_broker(reference.world.broker)
    cluster.check()


def check_places(client, session):
    """The router and its places have what a session at one server uses, watches and has reserved."""
    router = client.router
    assert router.used == session.use.name
    assert router.watched.names == [watched.name for watched in session.watched]
    held = {job_id for branch in router.branches.values() for job_id in branch.holdings}
    assert held == {job.id for job in session.reserved} or router.places.shards == 1
    for place in client.cluster.places:
        served, shard = place.session, place.branch.shard
        names = [name for name in router.watched.names if router.places.of_tube(name.encode()) == shard]
        assert {tube.name for tube in served.watched} == set(names)
        is_used = router.places.of_tube(router.used.encode()) == shard
        assert served.use.name == (router.used if is_used else "default")
        assert router.places.shards == 1 or router.branches[shard].holdings == {job.id for job in served.reserved}


@settings(max_examples=examples(100))
@given(data=conversations(mixed, reserves, st.sampled_from(OF_ONE_SHARD)), how=cuts, back=cuts, ends=st.booleans())
def test_with_one_shard_a_client_gets_byte_for_byte_what_it_would_get_from_the_leader_itself(data, how, back, ends):
    compare(1, data, how, back, ends)


waits = st.sampled_from([b"reserve\r\n", b"reserve-with-timeout 0\r\n", b"reserve-with-timeout x\r\n"])
watches = st.builds(lambda tube: b"watch %b\r\nuse %b\r\n" % (tube, tube), st.sampled_from(TUBES))
ranked = st.builds(lambda priority: b"put %d 0 60 1\r\nr\r\n" % priority, st.integers(0, 3))


@settings(max_examples=examples(110))
@given(
    shards=st.sampled_from([2, 3, 8]),
    data=conversations(mixed, waits, watches, ranked),
    how=cuts,
    back=cuts,
    ends=st.booleans(),
)
@example(
    shards=3,
    data=b"use a\r\nput 0 0 60 3\r\nabc\r\n"
    + b"x" * 300
    + b"\r\nuse b\r\npeek-ready\r\nwatch c\r\nreserve\r\nquit\r\n",
    how=range(400),
    back=range(400),
    ends=False,
)
def test_with_several_shards_a_client_gets_byte_for_byte_what_one_server_would_say(shards, data, how, back, ends):
    compare(shards, data, how, back, ends)


@settings(max_examples=examples(60))
@given(shards=st.sampled_from([2, 3]), data=conversations(mixed, reserves), how=cuts, back=cuts)
def test_a_client_of_one_shard_reserves_as_at_one_server(shards, data, how, back):
    """As long as it watches tubes of this shard only, which the reference knows too."""
    tubes = [tube(0, shards, which) for which in range(3)]
    for name, other in zip(TUBES, tubes, strict=False):
        data = data.replace(b" " + name + b"\r", b" " + other + b"\r")
    data = b"watch %b\r\nignore default\r\nuse %b\r\n" % (tubes[0], tubes[0]) + data
    for line in (b"watch mails", b"watch default", b"use default", b"use mails"):
        data = data.replace(line, b"watch " + tubes[1])
    compare(shards, data, how, back)


def test_a_line_with_a_stray_cr_is_no_command_that_a_leader_waits_for_the_end_of():
    client = RoutedCluster(8).connect()
    client.send(b"list-jobs a\rb\r\n" + b"x" * 300)
    assert client.send(b"\r\nlist-tube-used\r\n") == b"BAD_FORMAT\r\nUSING default\r\n"
    client.shut_down()
    assert client.closed


@pytest.mark.parametrize("shards", [1, 4])
def test_no_client_can_say_what_only_nodes_say(shards):
    client = RoutedCluster(shards).connect()
    for command in PLACE_COMMANDS:
        line = command.name.encode() + b" 1" * (command.read is not None)
        assert client.send(line + b"\r\n") == b"UNKNOWN_COMMAND\r\n"
    assert client.send(b"unuse\0\r\n") == b"BAD_FORMAT\r\n"


def test_commands_for_one_shard_go_there_in_one_piece_and_the_next_shard_waits():
    cluster = RoutedCluster(2)
    here, there = tube(0, 2), tube(1, 2)
    client = cluster.connect(used=here.decode(), watched=[here.decode()])
    first = b"put 0 0 60 1\r\nx\r\nreserve\r\npeek 2\r\nuse %b\r\n" % tube(0, 2, 1)
    client.give(first + b"stats-tube %b\r\npeek 2\r\n" % there)
    assert b"".join(client.place(0).there) == first
    assert not client.place(1).there
    client.read()
    assert client.place(1).received == b"stats-tube %b\r\n" % there


def test_many_replies_that_are_made_here_are_made_in_turns():
    cluster = RoutedCluster(2)
    client = cluster.connect(watched=[f"a-tube-with-a-long-name-{number}" for number in range(5000)])
    reply = client.send(b"list-tubes-watched\r\n")
    assert len(reply) > 100_000
    assert client.send(b"list-tubes-watched\r\n" * 100) == reply * 100
    assert client.turns >= 90


def test_a_client_that_does_not_read_begins_no_command_that_is_answered_here():
    cluster = RoutedCluster(2)
    client = cluster.connect()
    client.router.pause_output()
    client.give(b"list-tube-used\r\n" * 3 + b"peek 1\r\n")
    assert client.arrived == b""
    assert not client.place(1).there
    assert client.read() == b"USING default\r\n" * 3 + b"NOT_FOUND\r\n"


# Who it is


def token(given):
    return {"a": User("ann", produce=["*"], consume=["*"]), "b": User("bob", consume=["b"], inspect=["*"])}.get(given)


auths = st.sampled_from([b"auth a\r\n", b"auth b\r\n", b"auth b\r\n", b"auth \r\n", b"auth x\r\n", b"auth\r\n"])


@settings(max_examples=examples(100))
@given(shards=st.sampled_from([1, 2, 3]), data=conversations(mixed, auths), how=cuts, back=cuts)
def test_a_client_that_authenticates_is_answered_in_its_order(shards, data, how, back):
    ann = token("a")
    if shards == 1:
        data = data.replace(b"stats-tube", b"peek")  # which knows who uses what
    compare(shards, data, how, back, user=ann, authenticate=token)


def test_another_user_is_told_to_the_leaders_when_all_before_it_has_been_answered():
    cluster = RoutedCluster(2, users=lambda name: token(name[0]))
    client = cluster.connect(token, token("a"))
    other = cluster.connect(token, token("a"))
    client.send(b"watch %b\r\nignore default\r\n" % tube(0, 2))
    client.send(b"stats-tube default\r\n")
    assert client.send(b"reserve\r\nauth b\r\nput 0 0 60 1\r\nx\r\n") == b""
    assert [place.session.user.name for place in cluster.places if place.client is client] == ["ann"] * 2
    assert other.send(b"use %b\r\nput 0 0 60 1\r\nj\r\n" % tube(0, 2)).endswith(b"INSERTED 2\r\n")
    assert client.read() == b"RESERVED 2 1\r\nj\r\nAUTHENTICATED\r\nFORBIDDEN\r\n"
    assert [place.session.user.name for place in cluster.places if place.client is client] == ["bob"] * 2
    assert client.router.watched.names == []
    assert not any(b"auth" in place.received for place in cluster.places)


def test_rights_that_are_lost_are_lost_at_all_shards():
    cluster = RoutedCluster(2, users=lambda name: User(name, consume=["b"]) if cluster.reloaded else token("a"))
    cluster.reloaded = False
    client = cluster.connect(None, token("a"), watched=["b", tube(0, 2).decode(), tube(1, 2).decode()])
    cluster.reloaded = True
    client.router.change_user(User("ann", consume=["b"]))
    client.read()
    assert client.router.watched.names == ["b"]
    assert sorted(tube.name for place in cluster.places for tube in place.session.watched) == ["b"]


# Handed over


def test_all_that_has_not_been_answered_can_be_taken_when_the_leader_is_gone():
    cluster = RoutedCluster(2)
    here = tube(0, 2)
    client = cluster.connect(used=here.decode(), watched=[here.decode()])
    client.send(b"reserve-with-timeout 9\r\n")
    client.give(b"use %b\r\npeek 3\r\nput 0 0 60 1\r\nx" % here)
    cluster.lose(0)
    assert client.router.can_be_handed_over()
    taken = client.router.take_all()
    assert taken == b"reserve-with-timeout 8.999\r\nuse %b\r\npeek 3\r\nput 0 0 60 1\r\nx" % here
    assert client.router.input_size == 0


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_a_line_that_was_too_long_is_so_when_all_is_taken(shards, end):
    cluster = RoutedCluster(shards)
    here = tube(0, shards)
    client = cluster.connect(used=here.decode(), watched=[here.decode()])
    client.give(b"peek 2\r\n" + b"x" * 300 + end)
    cluster.lose(0)
    world = World()
    caller = Caller(world)
    assert caller.send(client.router.take_all() + b"\r\nlist-tube-used\r\n"[len(end) :]) == (
        b"NOT_FOUND\r\nBAD_FORMAT\r\nUSING default\r\n"
    )


def test_nothing_that_follows_a_quit_is_kept_or_passed_on():
    cluster = RoutedCluster(2)
    client = cluster.connect()
    client.give(b"peek 1\r\nquit\r\npeek 3\r\n")
    assert client.read() == b"NOT_FOUND\r\n"
    assert client.closed
    client.router.receive(b"peek 5\r\n")
    assert client.router.input_size == 0


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("target", [b"/", b"/" + b"a" * 300], ids=len)
def test_a_request_of_http_is_not_passed_on(shards, target):
    client = RoutedCluster(shards).connect()
    client.give(b"peek 1\r\nPOST %b HTTP/1.1\r\n\r\nput 0 0 60 1\r\nx\r\n" % target)
    assert client.read() == b"NOT_FOUND\r\nUNKNOWN_COMMAND\r\n"
    assert client.closed and client.router.speaks_http
    assert client.router.input_size == 0


def test_a_client_that_hangs_up_waits_for_nothing_and_is_closed_when_all_is_answered():
    cluster = RoutedCluster(2)
    client = cluster.connect(watched=[tube(0, 2).decode()])
    client.send(b"reserve\r\n")
    client.router.forbid_waiting()
    assert client.read() == b"TIMED_OUT\r\n"
    assert not client.closed
    assert client.send(b"stats-tube %b\r\nreserve\r\n" % tube(1, 2)).endswith(b"TIMED_OUT\r\n")
    client.give(b"put 0 0 60 1\r\nj\r\nput 0 0 60 1")
    assert client.shut_down() == b"INSERTED 3\r\n"
    assert client.closed
