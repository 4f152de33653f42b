"""A network in memory: connections with a delay, links that are cut and heal, hosts that go without a word.

A connection behaves as TCP does. While two hosts are cut off from each other, what is sent waits, and arrives when they
are not any more, unless one of the two ends has been closed meanwhile. When a process dies and its host lives, the
other end learns that it has been reset; when its host dies, the other end learns nothing.
"""

import contextvars
import socket
from functools import partial

from tests.cluster.simulation.virtual_loop import SECOND

MICROSECOND = SECOND // 1_000_000
HIGH = 1 << 16
CONNECT_TIMEOUT = 30 * SECOND


class Network:
    """Connects processes, whose names are their hosts.

    Args:
        rng: decides how long everything takes.
    """

    def __init__(self, loop, rng):
        self.loop = loop
        self.rng = rng
        self.cuts = set()  # (from, to): hosts between which nothing arrives
        self.stalled = {}  # cut -> what happens when it heals
        self.listeners = {}  # (host, port) -> (process, make_protocol)
        self.ends = {}  # every open End, in the order of their making
        self.dead_hosts = set()
        self.watched = {}  # descriptor -> End
        self.slow_until = 0
        self.messages = 0

    def delay(self):
        """Nanoseconds that a message takes."""
        rng = self.rng
        if self.loop.now < self.slow_until:
            return rng.randrange(50 * 1000 * MICROSECOND)
        if rng.random() < 0.01:
            return rng.randrange(20 * 1000 * MICROSECOND)
        return rng.randrange(20 * MICROSECOND, 300 * MICROSECOND)

    def is_instant(self):
        """Whether the engine answers before anything else happens, this time."""
        return self.rng.random() < 0.1

    def is_cut(self, one, other):
        return (one, other) in self.cuts

    def cut(self, one, other, *, both=True):
        self.cuts.add((one, other))
        if both:
            self.cuts.add((other, one))

    def heal(self, one, other):
        for cut in ((one, other), (other, one)):
            self.cuts.discard(cut)
            for deliver in self.stalled.pop(cut, ()):  # in their order, and none overtakes them
                deliver()

    def heal_all(self):
        for one, other in list(self.cuts):
            self.heal(one, other)

    def later(self, call, delay=None):
        """Make a call when a message would arrive."""
        delay = self.delay() if delay is None else delay
        self.loop.call_in(delay, call, context=contextvars.Context())

    def carry(self, one, other, deliver, not_before=0):
        """Let something arrive from one host at another; return when, at the earliest."""
        self.messages += 1
        arrives = max(self.loop.now + self.delay(), not_before)

        def arrive():
            if self.is_cut(one, other):
                self.stalled.setdefault((one, other), []).append(deliver)
            else:
                deliver()

        self.later(arrive, arrives - self.loop.now)
        return arrives

    def listen(self, process, make_protocol, host, port):
        self.listeners[process.name, port] = process, make_protocol
        process.on_death.append(lambda: self._unlisten(process, port))
        return Server(self, process, port)

    def _unlisten(self, process, port):
        if self.listeners.get((process.name, port), (None,))[0] is process:
            del self.listeners[process.name, port]

    async def connect(self, process, make_protocol, host, port):
        """As loop.create_connection."""
        loop = self.loop
        answered = loop.create_future()

        def end(error):
            if not answered.done():
                answered.set_exception(error)

        def knock():
            if host in self.dead_hosts:
                self.later(lambda: end(TimeoutError("no answer")), CONNECT_TIMEOUT)
                return
            listener = self.listeners.get((host, port))
            if listener is None or not listener[0].is_alive:
                self.carry(host, process.name, lambda: end(ConnectionRefusedError(111, "Connection refused")))
                return
            server, make = listener
            near, far = End(self, process, host), End(self, server, process.name)
            near.peer, far.peer = far, near
            server.soon(far.begin, make)
            self.carry(host, process.name, lambda: process.soon(accept, near))

        def accept(near):
            if answered.done():
                near.abort()
                return
            protocol = make_protocol()
            near.begin(lambda: protocol)
            answered.set_result((near, protocol))

        self.carry(process.name, host, knock)
        return await answered

    def watch(self, descriptor, on_hangup):
        """As HangupWatch.watch."""
        end = self.watched.get(descriptor)
        if end is None or end.is_gone:
            return False
        end.on_hangup = on_hangup
        return True

    def unwatch(self, descriptor):
        if descriptor in self.watched:
            self.watched[descriptor].on_hangup = None

    def process_died(self, process, host_too):
        """Let the others know what they would notice."""
        for end in list(self.ends):
            if end.process is process:
                self.ends.pop(end)
                end.is_gone = True
                if not host_too:
                    peer = end.peer
                    self.carry(process.name, peer.process.name, peer.reset, peer.last_arrival)


class Server:
    """As asyncio.Server, and as its socket."""

    family = socket.AF_UNSPEC

    def __init__(self, network, process, port):
        self.network, self.process, self.port = network, process, port
        self.sockets = [self]

    async def start_serving(self):
        """It has served since it was made: no time passes in between."""

    def getsockname(self):
        return self.process.name, self.port

    def fileno(self):
        return -1

    def close(self):
        self.network._unlisten(self.process, self.port)

    async def wait_closed(self):
        pass


class End:
    """One end of a connection: a transport."""

    family = socket.AF_UNSPEC

    def __init__(self, network, process, peer_name):
        self.network = network
        self.process = process
        self.peer_name = peer_name
        self.peer = None
        self.protocol = None
        self.is_gone = False  # nothing is sent or received any more
        self.closing = False
        self.reading = True
        self.input = []  # what has come and is not read: bytes, or None for the end
        self.sent_eof = False
        self.last_arrival = 0  # at this end
        self.in_flight = 0
        self.high, self.low = HIGH, HIGH >> 2
        self.is_paused = False
        self.on_hangup = None
        self.descriptor = len(network.watched)
        network.watched[self.descriptor] = self
        network.ends[self] = None

    def begin(self, make_protocol):
        self.protocol = make_protocol()
        self.protocol.connection_made(self)
        if self.is_gone:  # it was reset before anybody knew of it
            self.process.soon(self.protocol.connection_lost, ConnectionResetError(104, "Connection reset by peer"))
        else:
            self._deliver_all()

    # As asyncio.Transport

    def get_extra_info(self, name, default=None):
        return (self.peer_name, 1) if name == "peername" else self if name == "socket" else default

    def fileno(self):
        return self.descriptor

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = HIGH if high is None else high
        self.low = self.high >> 2 if low is None else low

    def get_write_buffer_size(self):
        return self.in_flight

    def is_closing(self):
        return self.closing

    def set_protocol(self, protocol):
        self.protocol = protocol

    def get_protocol(self):
        return self.protocol

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True
        if self.input:
            self.process.soon(self._deliver_all)

    def is_reading(self):
        return self.reading and not self.closing

    def write(self, data):
        if self.closing or self.is_gone or not data:
            return
        if self.network.rng.random() < 0.05 and len(data) > 1:
            cut = self.network.rng.randrange(1, len(data))
            pieces = [data[:cut], data[cut:]]
        else:
            pieces = [data]
        for piece in pieces:
            self.in_flight += len(piece)
            self._send(bytes(piece))
        if self.in_flight > self.high and not self.is_paused:
            self.is_paused = True
            self.protocol.pause_writing()

    def write_eof(self):
        if not (self.closing or self.sent_eof):
            self.sent_eof = True
            self._send(None)

    def can_write_eof(self):
        return True

    def close(self):
        if self.closing:
            return
        if not self.sent_eof and not self.is_gone:
            self._send(None)
        self.closing = True
        self.process.soon(self._lose, None)

    def abort(self):
        if self.is_gone:
            return
        self.closing = True
        peer = self.peer
        peer.last_arrival = self.network.carry(self.process.name, peer.process.name, peer.reset, peer.last_arrival)
        self.process.soon(self._lose, None)

    # What happens to it

    def _send(self, data):
        peer = self.peer
        peer.last_arrival = self.network.carry(
            self.process.name, peer.process.name, lambda: peer.arrive(data), peer.last_arrival
        )

    def arrive(self, data):
        if self.is_gone or not self.process.is_alive:
            if not self.process.is_alive and self.process.name not in self.network.dead_hosts:
                self.network.carry(self.process.name, self.peer.process.name, self.peer.reset)
            return
        self.process.soon(self._take, data)

    def _take(self, data):
        if self.is_gone:
            return
        self.input.append(data)
        if data is None and not self.reading and self.on_hangup is not None:
            on_hangup, self.on_hangup = self.on_hangup, None
            on_hangup()
        if self.protocol is not None:
            self._deliver_all()

    def _deliver_all(self):
        while self.input and self.reading and not self.closing:
            data = self.input.pop(0)
            if data is None:
                if not self.protocol.eof_received():
                    self.close()
                return
            peer = self.peer
            self.network.carry(self.process.name, peer.process.name, partial(peer.taken, len(data)))
            self.protocol.data_received(data)

    def taken(self, size):
        if not self.is_gone and self.process.is_alive:
            self.process.soon(self._note_taken, size)

    def _note_taken(self, size):
        self.in_flight -= size
        if self.is_paused and self.in_flight <= self.low and not self.closing and not self.is_gone:
            self.is_paused = False
            self.protocol.resume_writing()

    def reset(self):
        if not self.is_gone and self.process.is_alive:
            self.process.soon(self._reset)

    def _reset(self):
        if not self.is_gone:
            self.closing = True
            self._lose(ConnectionResetError(104, "Connection reset by peer"))

    def _lose(self, error):
        if not self.is_gone:
            self.is_gone = True
            self.network.ends.pop(self, None)
            if self.protocol is not None:
                self.protocol.connection_lost(error)
