"""Two ends of a link in memory, and clients that are passed on over it to a server in virtual time."""

from itertools import pairwise

from virtual import World

from beanstalk_server.cluster.passing import PassingSession
from beanstalk_server.link.link import NONCE_BYTES, Channel, Link
from beanstalk_server.link.opening import Opening
from beanstalk_server.wire.session import Session

SECRET = "known to both"


def pieces(data, cuts):
    """The data, cut at some of these places."""
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(data)}), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


def link(*, dials, secret=SECRET, epoch=7, accept=None, max_job_size=65535, opened=None, node=None):
    return Link(
        dials=dials,
        secret=secret,
        epoch=epoch,
        node=node or ("standby" if dials else "leader"),
        nonce=bytes([dials]) * NONCE_BYTES,
        on_output=lambda: None,
        on_open=lambda end: opened.append(end) if opened is not None else None,
        accept=accept and (lambda payload: accept(Opening.decode(payload))),
        max_job_size=max_job_size,
    )


class Wire:
    """What connects two ends: bytes arrive when `run` is called, in pieces that `cut` chooses."""

    def __init__(self, standby, leader, cut=lambda data: [data]):
        self.standby = standby
        self.leader = leader
        self.cut = cut

    def run(self):
        """Carry bytes until there are no more."""
        while True:
            there, back = self.standby.take_output(), self.leader.take_output()
            if not there and not back:
                return
            for end, data in ((self.leader, there), (self.standby, back)):
                for piece in self.cut(data):
                    if piece:
                        end.receive(piece)


class Served(Channel):
    """A client at the leader: a plain session in a world."""

    def __init__(self, world, opening, users):
        super().__init__()
        self.world = world
        self.users = users
        user = None if opening.user is None else users(opening.user)
        self.session = Session(world.broker, world.info, lambda: world.answered.append(self), user=user)
        self.session.restore(opening.used, opening.watched)
        self.output = b""
        self.received = b""

    def on_data(self, data):
        self.received += data
        self.consumed(len(data))
        self.world.now += 1000
        self.session.receive(data, self.world.now)
        self.go_on()

    def on_end(self):
        self.session.end_input()
        self.go_on()

    def on_hangup(self):
        self.session.forbid_waiting()
        self.go_on()

    def on_user(self, name):
        self.session.change_user(self.users(name))

    def on_room(self):
        while self.output and (room := self.room()):
            self.send(self.output[:room])
            self.output = self.output[room:]
        if not self.output and self.session.closed:
            self.close_channel(at_once=False)

    def on_close(self, *, at_once):
        self.session.disconnect(self.world.now)

    on_lost = on_close

    def go_on(self):
        session = self.session
        session.run(self.world.now)
        while session.has_more:
            session.run(self.world.now)
        self.output += session.take_replies()
        self.on_room()


class Passed(Channel):
    """A client at a standby."""

    def __init__(self, authenticate=None, user=None, **state):
        super().__init__()
        self.session = PassingSession(authenticate, user, **state)
        self.arrived = b""
        self.closed = False
        self.ended = False
        self.reads = True  # what arrives is taken by the client

    def begin(self, link):
        session = self.session
        user = None if session.user is None else session.user.name
        assert link.open(self, Opening("a client", user, session.used, session.watched.names).encode())
        session.begin(link.max_job_size)
        self.ended = False
        self.pump()

    def pump(self):
        session = self.session
        while room := self.room():
            data = session.take_commands(room)
            self.arrived += session.take_replies()
            if session.user_has_changed:
                session.user_has_changed = False
                self.send_user(session.user.name)
                continue
            if session.closed:
                self.closed = True
                self.close_channel(at_once=True)
            if not data:
                break
            self.send(data)
        if self.link and session.has_ended and not self.ended:
            self.ended = True
            self.send_end()

    on_room = pump

    def on_data(self, data):
        self.session.note_replies(data)
        self.arrived += data
        if self.reads:
            self.consumed(len(data))
        self.pump()

    def on_close(self, *, at_once):
        self.closed = True

    def on_lost(self):
        self.closed = not self.session.lose_leader()

    def receive_from_client(self, data):
        self.session.receive(data)
        self.pump()

    def end(self):
        self.session.end_input()
        self.pump()


class Cluster:
    """A standby and a leader, joined by a link."""

    def __init__(self, world=None, cut=lambda data: [data], users=None):
        self.world = world or World()
        self.users = users
        self.cut = cut
        self.served = []
        self.take_over(self.world)

    def take_over(self, world):
        """Let a leader with this world take the place of the one before."""
        self.world = world
        self.served = []
        self.standby = link(dials=True)
        self.leader = link(dials=False, accept=self._accept, max_job_size=world.info.max_job_size)
        self.wire = Wire(self.standby, self.leader, self.cut)
        self.wire.run()

    def _accept(self, opening):
        self.served.append(Served(self.world, opening, self.users))
        return self.served[-1]

    def connect(self, authenticate=None, user=None):
        client = Passed(authenticate, user)
        client.begin(self.standby)
        self.settle()
        return client

    def settle(self):
        self.wire.run()
        self.world.settle()
        self.wire.run()

    def send(self, client, data):
        """Send bytes; return what has come back by now, with anything that had come before."""
        client.receive_from_client(data)
        return self.read(client)

    def read(self, client):
        self.settle()
        arrived = client.arrived
        client.arrived = b""
        return arrived

    def cut_link(self):
        """End the link, at both ends."""
        for end in (self.standby, self.leader):
            for channel in end.take_channels():
                channel.on_lost() if end is self.standby else channel.on_close(at_once=True)
