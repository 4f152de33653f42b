"""A node of a cluster without sockets: the clients of one node, shards that it leads or that others lead, and links.

Everything is real but the sockets, the engine and the event loop, which a test turns by hand (rounds.py).
"""

import functools
import itertools

from rounds import Loop, Rounds, Transport

from beanstalk_server.link.link import NONCE_BYTES, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.queue.journal import Journal
from beanstalk_server.routing.clients import Clients
from beanstalk_server.server.connection import Connection
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.link_transport import LinkTransport
from beanstalk_server.server.process import this_process
from beanstalk_server.wire.places import Places


class Socket(Transport):
    """The transport of a client, as the event loop has it."""

    def __init__(self, client, loop):
        super().__init__()
        self.protocol = client
        self.loop = loop
        self.lost = False

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_extra_info(self, name):
        return ("192.0.2.1", 5) if name == "peername" else super().get_extra_info(name)

    def write(self, data):
        if not self.aborted:  # else it is lost, as with a real one
            super().write(data)

    def close(self):
        super().close()
        self._lose()

    def abort(self):
        super().abort()
        self._lose()

    def _lose(self):
        if not self.lost:
            self.lost = True
            self.loop.call_soon(self._tell)

    def _tell(self):
        protocol, self.protocol = self.protocol, None
        protocol.connection_lost(None)


class Caller:
    """A client of the node."""

    def __init__(self, node, client):
        self.node = node
        self.socket = Socket(client, node.loop)
        client.connection_made(self.socket)

    @property
    def protocol(self):
        return self.socket.protocol

    def has_connection(self):
        """Whether it is served as by a single server, and not routed."""
        return isinstance(self.protocol, Connection)

    def send(self, data, *, settle=True):
        """Let the event loop report these bytes; return what has been written by then."""
        assert self.socket.reading
        self.protocol.data_received(data)
        if settle:
            self.node.loop.settle()
        return self.read()

    def read(self):
        written, self.socket.written = self.socket.written, b""
        return written

    def shut_down(self):
        assert self.protocol.eof_received()
        self.node.loop.settle()

    def hang_up(self):
        """Shut down the sending side while nothing is read."""
        self.protocol.on_hangup()
        self.node.loop.settle()

    def disconnect(self):
        self.socket.abort()
        self.node.loop.settle()


class SlowJournal(Journal):
    """Its commits end when a test says so."""

    keeps = True

    def __init__(self):
        self.is_slow = False
        self.on_end = None

    def begin_commit(self, may_wait, on_end):
        if self.is_slow:
            self.on_end = on_end
        else:
            on_end(None)
        return True

    def end_commit(self):
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(None)


class Shard(Rounds):
    """One shard, as its leader has it, here or elsewhere."""

    def commit(self):
        """Answer what has been executed, and make it durable, as a leader does before it hands over."""
        self.connections.send_replies()
        self.journal.is_slow = False
        for _ in range(3):
            self.journal.end_commit()
            self.loop.settle()
        self.connections.send_replies()  # of what was told meanwhile to wait no longer


class Leader:
    """Another node, which leads a shard, and the link to it."""

    def __init__(self, node, index):
        self.loop = node.loop
        self.clients = node.clients
        self.index = index
        self.shard = node.shards[index]
        self.users = node.users
        self.listener_policy = ListenerPolicy("link")
        self.listener_policy.is_link = self.listener_policy.carried = True
        self.here = self.there = None
        self.is_carrying = False

    def open_link(self):
        """Open a link to it; its clients follow."""
        nonce = bytes(NONCE_BYTES)
        follow = functools.partial(self.clients.follow, self.index)
        self.there = Link(
            dials=False, find=lambda _: ("s", 1), nonce=nonce, on_output=self.carry_soon, accept=self.accept
        )
        self.here = Link(
            dials=True,
            shard=self.index,
            secret="s",
            epoch=1,
            nonce=nonce,
            on_output=self.carry_soon,
            on_open=follow,
        )
        self.loop.settle()

    def carry_soon(self):
        if not self.is_carrying:
            self.is_carrying = True
            self.loop.call_soon(self.carry)

    def carry(self):
        """Carry what has been said, one way and the other."""
        self.is_carrying = False
        for link, other in ((self.here, self.there), (self.there, self.here)):
            if link is not None and other is not None and (data := link.take_output()):
                other.receive(data)

    def accept(self, payload):
        opening = Opening.decode(payload)
        user = None if opening.user is None else self.users.get(opening.user)
        connections = self.shard.connections
        dialect = connections.server_info.linked_dialect
        connection = Connection(connections, self.listener_policy, user, opening.name, dialect, opening.counted)

        def begin(_):
            connection.session.restore(opening.used, opening.watched)

        def change_user(_, name):
            connection.change_user(self.users[name])

        return LinkTransport(self.loop, connection, begin, change_user)

    def hand_over(self):
        """End the link cleanly: everything that was executed is answered, and the rest is not executed."""
        shard = self.shard
        shard.turns.suspend()
        shard.commit()
        self.there.say_goodbye("it hands over", is_clean=True)
        self.here.receive(self.there.take_output())
        self.end_link(is_clean=True)
        shard.turns.resume()

    def end_link(self, *, is_clean=False):
        """End the link. What is under way is lost."""
        here, there, self.here, self.there = self.here, self.there, None, None
        self.clients.lose(self.index, here)
        for channel in there.take_channels():
            channel.on_lost(is_clean=False)
        for channel in here.take_channels():
            channel.on_lost(is_clean=is_clean)


class ShardedNode:
    """A node, and the shards of its cluster. It leads those that `lead` names; the others have no leader."""

    def __init__(self, shards=2, leads=(), verbosity=0):
        self.loop = Loop()
        self.places = Places(shards)
        self.users = {}
        self.shards = [Shard(SlowJournal(), self.loop, shards=shards, shard=index) for index in range(shards)]
        self.listeners = Listeners()
        self.hangups = HangupWatch()
        info = this_process(65535, 0)
        self.clients = Clients(shards, self.listeners, self.hangups, verbosity, info, self.loop.clock)
        self.clients.start(self.loop)
        self.listener_policy = ListenerPolicy()
        self.leaders = {}  # other nodes, by shard
        for index in leads:
            self.lead(index)

    @property
    def first(self):
        """The shard of the default tube."""
        return self.clients.first_shard

    def tube(self, index, number=0):
        """The name of a tube of this shard."""
        found = (b"t%d" % n for n in range(10000) if self.places.of_tube(b"t%d" % n) == index)
        return next(itertools.islice(found, number, None))

    def connect(self, user=None):
        caller = Caller(self, self.clients.make_client(self.listener_policy, user))
        self.loop.settle()
        return caller

    def lead(self, index):
        """Lead a shard here."""
        connections = self.shards[index].connections
        connections.closing = False
        self.clients.lead(index, connections)
        self.loop.settle()

    def stop_leading(self, index, *, is_clean=True):
        """Lead it no more; return how many clients were disconnected."""
        shard = self.shards[index]
        shard.turns.suspend()
        if is_clean:
            shard.commit()
        closed = self.run(self.clients.stop_leading(index, is_clean))
        self.loop.settle()
        shard.connections.closing = True
        shard.turns.resume()
        return closed

    def run(self, task):
        """Run what takes several rounds; return its result."""
        while True:
            try:
                task.send(None)
            except StopIteration as end:
                return end.value
            self.loop.go_round()

    def link(self, index):
        """Let another node lead it, with the same jobs."""
        self.shards[index].connections.closing = False
        self.leaders[index] = Leader(self, index)
        self.leaders[index].open_link()

    def unlink(self, index, *, is_clean=True):
        """Let that node lead it no more."""
        leader = self.leaders.pop(index)
        if is_clean:
            leader.hand_over()
        else:
            leader.end_link()
        self.loop.settle()

    def connections(self):
        """How many clients the statistics of all shards count."""
        return sum(shard.broker.connections for shard in self.shards)
