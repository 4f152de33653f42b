"""A site for operators without sockets: connections on transports in memory, and a loop whose rounds a test counts."""

from types import SimpleNamespace

from virtual import World

from beanstalk_server.admin.health import Condition
from beanstalk_server.admin.http import HttpConnection, HttpConnections
from beanstalk_server.admin.metrics import Figures, rows_of
from beanstalk_server.admin.scrapes import Scrapes, Table
from beanstalk_server.admin.site import Site
from beanstalk_server.wire.commands import statistics_of


class Loop:
    """What is to be called soon, and what later."""

    def __init__(self):
        self.now = 0.0
        self.rounds = 0
        self._soon = []
        self._later = []

    def time(self):
        return self.now

    def call_soon(self, function, *arguments):
        self._soon.append((function, arguments))

    def call_later(self, delay, function, *arguments):
        handle = SimpleNamespace(when=self.now + delay, function=function, arguments=arguments)
        handle.cancel = lambda: self._later.remove(handle) if handle in self._later else None
        self._later.append(handle)
        return handle

    def turn(self):
        """One round of an event loop; return whether there was anything to do."""
        soon, self._soon = self._soon, []
        for function, arguments in soon:
            function(*arguments)
        self.rounds += bool(soon)
        return bool(soon)

    def settle(self):
        while self.turn():
            pass

    def sleep(self, seconds):
        self.settle()
        end = self.now + seconds
        while due := sorted((each for each in self._later if each.when <= end), key=lambda each: each.when):
            self.now = due[0].when
            self._later.remove(due[0])
            due[0].function(*due[0].arguments)
            self.settle()
        self.now = end


class Transport:
    """What a connection writes, and what becomes of it."""

    def __init__(self):
        self.protocol = None
        self.written = b""
        self.is_read = True
        self.has_ended = False
        self._is_closing = False

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
        if not self._is_closing:
            self._is_closing = True
            self.protocol.connection_lost(None)

    def is_closing(self):
        return self._is_closing

    def pause_reading(self):
        assert self.is_read
        self.is_read = False

    def resume_reading(self):
        assert not self.is_read
        self.is_read = True

    def set_write_buffer_limits(self, high):
        pass


class Door:
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
        return [Table(self.world.broker.tubes, True)]

    def figures(self):
        rows = rows_of(statistics_of(self.world.broker, self.world.info, self.world.now))
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

    def connect(self, door=None, user=None):
        transport = Transport()
        transport.protocol = HttpConnection(self.connections, door or Door(), user)
        transport.protocol.connection_made(transport)
        return transport

    def send(self, transport, data):
        """Send bytes; return what comes back."""
        transport.protocol.data_received(data)
        self.loop.settle()
        return transport.take()

    def ask(self, path, *headers, method="GET", door=None, user=None):
        """Ask once; return the status, the headers and the body."""
        transport = self.connect(door, user)
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
