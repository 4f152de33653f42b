"""A site for operators without sockets: connections on transports in memory, and a loop whose rounds a test counts."""

import rounds
from virtual import World

from beanstalk_server.admin.health import Condition
from beanstalk_server.admin.http import HttpConnection, HttpConnections
from beanstalk_server.admin.metrics import Figures
from beanstalk_server.admin.scrapes import Scrapes, Table
from beanstalk_server.admin.site import Site
from beanstalk_server.queue.units import SECOND
from beanstalk_server.wire.commands import statistics_of


class Loop(rounds.Loop):
    """A loop that also tells the time as an event loop does."""

    def time(self):
        return self.now / SECOND


class Transport(rounds.Transport):
    """What a connection writes, and what becomes of it. It is lost as soon as it is closed."""

    protocol = None
    has_ended = False

    def write(self, data):
        assert not self.has_ended
        self.written += data

    def take(self):
        written, self.written = self.written, b""
        return written

    def write_eof(self):
        self.has_ended = True

    def close(self):
        self.abort()

    def abort(self):
        if not self.aborted:
            super().abort()
            self.protocol.connection_lost(None)


class RequestPolicy:
    """Where a request comes in."""

    def __init__(self, auth="none", user=None, tokens=(), users=()):
        self.auth = auth
        self.user = user
        self.tokens = dict(tokens)
        self.users = {each.name: each for each in users}

    def answers_to(self, host):
        return host != "evil.example"

    def authenticate(self, token):
        return self.tokens.get(token)

    def user_now(self, user):
        return self.users.get(user.name)


class Source:
    """The tubes of a world, and its statistics."""

    def __init__(self, world, **figures):
        self.world = world
        self.more = figures

    def tables(self):
        return [Table(self.world.broker, True)]

    def figures(self):
        rows = statistics_of(self.world.broker, self.world.info, self.world.now)
        return Figures(rows, **{"is_ready": True} | self.more)


class Operators:
    """A site, and those who ask it."""

    def __init__(self, limit=1000, clock=None, **figures):
        self.world = World()
        self.loop = Loop()
        self.condition = Condition()
        self.source = Source(self.world, **figures)
        self.scrapes = Scrapes(self.source, limit, clock or (lambda: self.world.now))
        self.scrapes.start(self.loop.call_soon)
        self.refused = []
        self.site = Site(self.scrapes, lambda: self.condition, limit, lambda *told: self.refused.append(told))
        self.gone = 0
        self.connections = HttpConnections(self.site, lambda transport: "somebody", self._note_end)
        self.connections.start(self.loop)

    def _note_end(self):
        self.gone += 1

    def connect(self, policy=None, user=None):
        transport = Transport()
        transport.protocol = HttpConnection(self.connections, policy or RequestPolicy(), user)
        transport.protocol.connection_made(transport)
        return transport

    def send(self, transport, data):
        """Send bytes; return what comes back."""
        transport.protocol.data_received(data)
        self.loop.settle()
        return transport.take()

    def ask(self, path, *headers, method="GET", policy=None, user=None):
        """Ask once; return the status, the headers and the body."""
        transport = self.connect(policy, user)
        lines = [f"{method} {path} HTTP/1.1", "Host: here", *headers]
        return parsed(self.send(transport, "\r\n".join([*lines, "", ""]).encode()))


def parsed(answer):
    """The status, the headers and the body of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body.decode()


def status(answer):
    return parsed(answer)[0] if answer else 0
