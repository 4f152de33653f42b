"""Routed clients and their shards in memory: whatever is sent waits in a queue, and a test says what arrives next.

Each place of a client has two queues, one for each direction, in which nothing overtakes anything. The shards are real
brokers and sessions, each with its own clock. `explore` goes through everything that can happen in every order.
"""

from collections import deque
from functools import cache

from checking import check_broker
from virtual import World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.units import SECOND
from beanstalk_server.routing.router import Router
from beanstalk_server.wire.places import Places
from beanstalk_server.wire.session import Session

STOP = "stop"
HANG_UP = "hang up"
CLOSE = "close"
GOODBYE = "goodbye"


@cache
def tube_of(shard, shards, number=0):
    """The name of a tube of this shard."""
    places = Places(shards)
    found = [name for name in (b"t%d" % index for index in range(2000)) if places.of_tube(name) == shard]
    return found[number]


class ShardWorld(World):
    """A shard: its broker outlives its leaders, as what it has recorded would."""

    def __init__(self, shard, shards, users=None, **how):
        super().__init__(shards=shards, shard=shard, **how)
        self.users = users  # finds one by its name
        self.shard = shard
        self.is_led = True
        self.is_near = False  # the router's node leads it, too, and may look
        self.places = []

    def settle(self):
        super().settle()
        for place in self.places:
            place.flush()


class MemoryPlace:
    """A place of a router, with the session that it is open at."""

    def __init__(self, world, branch, opening):
        self.world = world
        self.branch = branch
        self.down = deque()
        self.up = deque()
        self.session = None
        self.window = 1 << 20
        self.owed = 0
        world.places.append(self)
        self.down.append(opening)

    # What the branch calls

    def room(self):
        return self.window

    def send(self, data):
        assert data and len(data) <= self.window
        self.down.append(data)

    def consumed(self, size):
        self.owed -= size
        assert self.owed >= 0, "more has been consumed than has come"

    def stop_waiting(self):
        self.down.append(STOP)

    def has_nothing(self):
        session = self.session
        return self.world.is_near and session is not None and not (self.down or self.up) and session.has_nothing()

    def change_user(self, name):
        self.down.append(User(name))

    def hang_up(self):
        self.down.append(HANG_UP)

    def leave(self):
        self.branch = None
        self.down.append(CLOSE)

    # What arrives at the shard

    def deliver_down(self):
        message = self.down.popleft()
        world = self.world
        session = self.session
        if session is None:
            session = self.session = Session(
                world.broker,
                world.info,
                lambda: world.answered.append(self),
                user=None if message.user is None else world.users(message.user),
                dialect=world.info.linked_dialect,
                counted=message.counted,
            )
            session.restore(message.used, message.watched)
        elif message == CLOSE:
            self.end()
            return
        elif message == STOP:
            session.stop_waiting()
        elif message == HANG_UP:
            session.forbid_waiting()
        elif isinstance(message, User):
            session.change_user(world.users(message.name))
        else:
            session.receive(message, world.now)
        self.go_on()
        world.settle()

    def go_on(self):
        session = self.session
        if session is None or session.closed:
            return
        session.run(self.world.now)
        while session.has_more:
            session.run(self.world.now)

    def flush(self):
        if self.session is not None:
            replies = self.session.take_replies()
            if replies:
                self.up.append(replies)

    @property
    def is_open(self):
        """Whether the shard knows the client."""
        return self in self.world.places

    def end(self):
        """The shard forgets the client."""
        self.world.places.remove(self)
        self.down.clear()
        if self.session is not None:
            self.session.disconnect(self.world.now)
        self.world.settle()

    # What arrives at the router

    def deliver_up(self):
        message = self.up.popleft()
        branch = self.branch
        if branch is None:
            return
        if message == GOODBYE:
            self.lose(True)
        else:
            self.owed += len(message)
            branch.on_data(message)

    def lose(self, is_clean):
        """The router gets to know that the leader is gone."""
        branch, self.branch = self.branch, None
        self.up.clear()
        if branch is not None:
            branch.on_lost(is_clean)
            if self.world.is_led:
                branch.on_leader()


class RoutedClient:
    """One client, and the router that serves it. It is the router's owner, too."""

    def __init__(self, cluster, **how):
        self.cluster = cluster
        self.arrived = b""
        self.places = {}
        self.now = cluster.worlds[0].now
        self.opened = {}  # how often each shard has been
        self.router = Router(
            Places(len(cluster.worlds)),
            self,
            lambda: self.now,
            name="a client",
            max_job_size=65535,
            **how,
        )
        self.router.start()

    def open(self, branch, opening):
        world = self.cluster.worlds[branch.shard]
        if not world.is_led:
            return None
        self.opened[branch.shard] = self.opened.get(branch.shard, 0) + 1
        place = self.places[branch.shard] = MemoryPlace(world, branch, opening)
        return place

    def on_output(self):
        self.arrived += self.router.take_replies()
        if self.router.closed:
            self.router.close()

    def send(self, data):
        """Send bytes, which the router gets at once."""
        self.router.receive(data)
        self.on_output()

    def hang_up(self):
        """Shut down the sending side."""
        self.router.forbid_waiting()
        self.router.end_input()
        self.on_output()

    def deliver_down(self, shard):
        self.places[shard].deliver_down()

    def deliver_up(self, shard):
        self.places[shard].deliver_up()
        self.on_output()

    def disconnect(self):
        """Be gone: nothing more is sent or taken."""
        self.router.close()


class ShardedCluster:
    """Shards, and the clients that are routed to them."""

    def __init__(self, shards, **how):
        self.worlds = [ShardWorld(shard, shards, **how) for shard in range(shards)]
        self.clients = []

    def connect(self, **how):
        client = RoutedClient(self, **how)
        self.clients.append(client)
        return client

    def tube(self, shard, number=0):
        return tube_of(shard, len(self.worlds), number)

    # Time

    def sleep(self, seconds):
        """Let time pass for everybody alike. Messages take none."""
        end = self.worlds[0].now + round(seconds * SECOND)
        while True:
            self.settle()
            now = min(max(min(world.broker.next_event() for world in self.worlds), self.worlds[0].now), end)
            for client in self.clients:
                client.now = max(client.now, now)
            for world in self.worlds:
                world.sleep(max(now - world.now, 0) / SECOND)
                world.now = max(world.now, now)
            if now == end:
                self.settle()
                return

    # Messages

    def messages(self):
        """What can arrive next: (client, shard, "down" or "up")."""
        found = []
        for number, client in enumerate(self.clients):
            for shard, place in sorted(client.places.items()):
                if place.down and place.is_open:
                    found.append((number, shard, "down"))
                if place.up:
                    found.append((number, shard, "up"))
        return found

    def deliver(self, message):
        number, shard, direction = message
        client = self.clients[number]
        if direction == "down":
            client.deliver_down(shard)
        else:
            client.deliver_up(shard)

    def settle(self, choose=lambda messages: messages[0]):
        """Deliver until there is nothing more."""
        while messages := self.messages():
            self.deliver(choose(messages))

    def send(self, client, data):
        """Send bytes; return what has come back by now, with anything that had come before."""
        client.send(data)
        return self.read(client)

    def read(self, client):
        self.settle()
        arrived, client.arrived = client.arrived, b""
        return arrived

    # Leaders

    def lose(self, shard):
        """The leader of this shard is gone, with all that is under way there."""
        for place in self._end(shard):
            place.lose(False)
        for client in self.clients:
            client.on_output()

    def hand_over(self, shard):
        """The leader of this shard says goodbye: what it has executed is answered, and that is on its way."""
        for place in self._end(shard):
            place.up.append(GOODBYE)

    def _end(self, shard):
        """Let a leader forget its clients, to whom it says nothing more; return their places."""
        world = self.worlds[shard]
        world.is_led = False
        places = world.places.copy()
        world.places.clear()
        for place in places:
            place.down.clear()
            if place.session is not None:
                place.session.disconnect(world.now)
        world.settle()
        return places

    def lead(self, shard):
        """Another one leads this shard."""
        self.worlds[shard].is_led = True
        for client in self.clients:
            branch = client.router.branches.get(shard)
            if branch is not None:
                branch.on_leader()
            client.on_output()

    # What must hold

    def check(self):
        for world in self.worlds:
            check_broker(world.broker)

    def jobs(self):
        """All jobs: (shard, id, state, how often they have been reserved)."""
        return [
            (world.shard, job.id, STATES[job.state], job.reserves)
            for world in self.worlds
            for job in world.broker.jobs.values()
        ]


# Everything that can happen, in every order


def explore(make):
    """Let everything happen in every order; return how many states there are.

    Args:
        make: begins anew. What it returns says what can happen (`enabled`), does one of it (`do`), tells states apart
            (`state`), and checks what must hold (`check`) after each step.
    """
    seen = set()
    pending = [[]]
    while pending:
        path = pending.pop()
        scenario = make()
        for event in path:
            scenario.do(event)
        while True:
            try:
                scenario.check()
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter " + "\n      ".join(map(str, path))) from error
            state = scenario.state()
            if state in seen:
                break
            seen.add(state)
            events = scenario.enabled()
            if not events:
                break
            pending.extend([*path, event] for event in events[1:])
            path = [*path, events[0]]
            scenario.do(events[0])
    return len(seen)


@cache
def compiled_names(kind):
    """The names of the attributes of such an instance that a compiler has told, or its slots."""
    names = [getattr(each, "__slots__", getattr(each, "__mypyc_attrs__", ())) for each in kind.__mro__]
    return tuple(dict.fromkeys(name for each in names for name in each))


def names_of(found):
    """The names of the attributes of an instance."""
    return (*compiled_names(type(found)), *getattr(found, "__dict__", ()))


def frozen(found, known=None):
    """What a router is made of, such that two that are alike are equal. Whatever is not of the cluster is left out."""
    known = {} if known is None else known
    if isinstance(found, (int, bytes, str, type(None))):
        return found
    if isinstance(found, (list, tuple, deque)):
        return tuple([frozen(each, known) for each in found])
    if isinstance(found, (set, frozenset)):
        return frozenset(found)
    if isinstance(found, dict):
        return tuple([(frozen(key, known), frozen(value, known)) for key, value in found.items()])
    if id(found) in known:
        return known[id(found)]
    owner = getattr(found, "__self__", None)
    if owner is not None and names_of(owner):
        return frozen(owner, known), found.__name__
    module = type(found).__module__
    if not module.startswith(("beanstalk_server.routing", "beanstalk_server.wire.framing")):
        return type(found).__name__
    known[id(found)] = len(known)
    return type(found).__name__, tuple([frozen(getattr(found, name, None), known) for name in names_of(found)])
