"""A routed client, and shards in memory whose leaders it is routed to, all in virtual time."""

from collections import deque

from virtual import World

from beanstalk_server.link.link import WINDOW
from beanstalk_server.routing.router import Router
from beanstalk_server.wire.places import Places
from beanstalk_server.wire.session import Session


class ServedPlace:
    """A client's place at the leader of a shard: a session there. Bytes are under way until the cluster settles."""

    def __init__(self, cluster, client, branch, opening):
        self.cluster = cluster
        self.client = client
        self.branch = branch
        self.opening = opening
        self.world = cluster.worlds[branch.shard]
        user = None if opening.user is None else cluster.users(opening.user)
        self.session = Session(
            self.world.broker,
            self.world.info,
            lambda: self.world.answered.append(self),
            user=user,
            dialect=self.world.info.linked_dialect,
            counted=opening.counted,
        )
        self.session.restore(opening.used, opening.watched, opening.mode)
        self.there = deque()  # bytes, and what else is to be done there
        self.back = deque()
        self.output = b""
        self.credit = self.window = WINDOW
        self.received = b""
        self.is_open = True

    # What the router calls

    def room(self):
        return min(self.credit, self.cluster.room)

    def send(self, data):
        assert self.is_open and 0 < len(data) <= self.room()
        self.credit -= len(data)
        self.there.extend(piece for piece in self.cluster.cut(data) if piece)

    def consumed(self, size):
        assert self.is_open
        self.window += size
        assert self.window <= WINDOW

    def stop_waiting(self):
        self.there.append(self.session.stop_waiting)

    def has_nothing(self):
        return not (self.there or self.back or self.output) and self.session.has_nothing()

    def change_user(self, name):
        self.there.append(lambda: self.session.change_user(self.cluster.users(name)))

    def hang_up(self):
        self.there.append(self.session.forbid_waiting)

    def leave(self):
        assert self.is_open
        self.end()
        self.session.disconnect(self.world.now)

    # What the cluster calls

    def end(self):
        self.is_open = False
        self.cluster.places.remove(self)

    def arrive(self):
        """Let the next bytes arrive at the leader; return whether there were any."""
        if not self.there:
            return False
        world = self.world
        world.now += 1000
        arrived = self.there.popleft()
        if isinstance(arrived, bytes):
            self.received += arrived
            self.credit += len(arrived)
            self.session.queue_input(arrived)
            self.go_on()
            self.branch.on_room()
        else:
            arrived()
            self.go_on()
        return True

    def go_on(self):
        session = self.session
        session.run(self.world.now)
        while session.has_more:
            session.run(self.world.now)
        self.output += session.take_replies()
        if self.output:
            session.pause_output()
        self.send_back()

    def send_back(self):
        taken = self.output[: self.window]
        self.output = self.output[len(taken) :]
        if taken:
            self.window -= len(taken)
            self.back.extend(piece for piece in self.cluster.cut(taken) if piece)
        if not self.output and self.session.output_paused:
            self.session.resume_output()
            self.world.answered.append(self)

    def return_piece(self):
        """Let the next piece of the replies arrive at the router; return whether there was any."""
        if not self.back and self.output and self.window:
            self.send_back()
        if not self.back:
            return False
        self.branch.on_data(self.back.popleft())
        return True


class RoutedClient:
    """A client, and the owner of its router."""

    def __init__(self, cluster, authenticate=None, user=None, **state):
        self.cluster = cluster
        self.arrived = b""
        self.closed = False
        self.reads = True
        self.turns = 0
        self.router = Router(
            Places(cluster.shards), self, lambda: cluster.now, "a client", 65535, authenticate, user, **state
        )

    def open(self, branch, opening):
        if branch.shard in self.cluster.without_leader:
            return None
        place = ServedPlace(self.cluster, self, branch, opening)
        self.cluster.places.append(place)
        return place

    def on_output(self):
        self.arrived += self.router.take_replies()
        while self.router.has_more:
            self.turns += 1
            self.router.run()
            self.arrived += self.router.take_replies()
        if self.router.closed and not self.closed:
            self.closed = True
            self.router.close()
        if self.arrived and not self.reads:
            self.router.pause_output()

    def start(self):
        self.router.start()
        self.on_output()

    def give(self, data):
        """Send bytes, which arrive at the router and no further."""
        self.router.receive(data)
        self.on_output()

    def send(self, data):
        """Send bytes; return what has come back by now, with anything that had come before."""
        self.give(data)
        return self.read()

    def read(self):
        self.reads = True
        while True:
            if self.router.output_paused:
                self.router.resume_output()
                self.on_output()
            self.cluster.settle()
            if not self.router.output_paused:
                break
        arrived, self.arrived = self.arrived, b""
        return arrived

    def shut_down(self):
        """Shut down the sending side; return what comes back."""
        self.router.end_input()
        self.on_output()
        return self.read()

    def place(self, shard):
        """Its place at a shard."""
        return self.router.branches[shard].place


class RoutedCluster:
    """Shards, each in a world of its own.

    Args:
        cut: takes bytes that are under way apart.
        room: the most that a place takes at a time.
    """

    def __init__(self, shards=1, cut=lambda data: [data], users=None, room=WINDOW, **how):
        self.shards = shards
        self.cut = cut
        self.users = users
        self.room = room
        self.worlds = [World(shards=shards, shard=shard, **how) for shard in range(shards)]
        self.places = []
        self.clients = []
        self.without_leader = set()

    @property
    def now(self):
        return self.worlds[0].now

    def connect(self, authenticate=None, user=None, **state):
        client = self.make_client(authenticate, user, **state)
        client.start()
        self.settle()
        return client

    def make_client(self, authenticate=None, user=None, **state):
        """A client that has not been started."""
        self.clients.append(RoutedClient(self, authenticate, user, **state))
        return self.clients[-1]

    def settle(self, most=-1):
        """Let everything happen that needs no time to pass.

        Args:
            most: how many pieces arrive somewhere, at most; all of them if it is negative.
        """
        moves = True
        while moves:
            moves = False
            for place in list(self.places):
                while most and place.is_open and place.arrive():
                    moves = True
                    most -= 1
            for world in self.worlds:
                world.settle()
            for place in list(self.places):
                while most and place.is_open and place.return_piece():
                    moves = True
                    most -= 1

    def sleep(self, seconds):
        for world in self.worlds:
            world.sleep(seconds)
        now = max(world.now for world in self.worlds)
        for world in self.worlds:
            world.now = now
        self.settle()

    def lose(self, shard, is_clean=False, comes_back=False):
        """Let the leader of a shard go: its places are lost, and what its clients had reserved is ready.

        Args:
            is_clean: what it has executed is answered before.
            comes_back: another leads at once.
        """
        self.without_leader.add(shard)
        for place in [place for place in self.places if place.branch.shard == shard]:
            if is_clean:
                while place.back:
                    place.branch.on_data(place.back.popleft())
                if place.is_open and place.output:
                    place.branch.on_data(place.output)
            if place.is_open:
                place.end()
                put = place.session.put
                if put is not None and put.attributes is None:
                    place.world.broker.next_id -= self.shards  # another leader has not given this id
                place.session.disconnect(place.world.now)
                place.branch.on_lost(is_clean)
        if comes_back:
            self.lead(shard)

    def lead(self, shard):
        """Let somebody lead a shard again."""
        self.without_leader.discard(shard)
        for client in self.clients:
            branch = client.router.branches.get(shard)
            if branch is not None and not client.router.closed:
                branch.on_leader()

    def check(self):
        for world in self.worlds:
            world.check()
