"""The client for Python programs at a server in virtual time: whoever waits for an answer moves the clock."""

import errno
import socket

from beanstalk_server.client import Client
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wheel import END_OF_TIME


class VirtualSocket(socket.socket):
    """A socket, for a client, that is connected to a World."""

    def __init__(self, world):
        super().__init__(socket.AF_UNIX)
        self.world = world
        self.caller = world.connect()
        self.received = b""

    def getpeername(self):
        return "virtual"

    def sendall(self, data):
        self.received += self.caller.send(bytes(data))

    def send(self, data):
        self.sendall(data)
        return len(data)

    def recv(self, size):
        reader = Reader(self)
        if not self.received and self.gettimeout() == 0:
            raise BlockingIOError(errno.EAGAIN, "nothing has come")
        return reader.read_some(size)

    def makefile(self, mode):
        assert mode == "rb"
        return Reader(self)


class Reader:
    """What a client reads: if nothing has come, time passes until it has."""

    def __init__(self, sock):
        self._sock = sock

    def readline(self):
        self._wait_for(lambda: b"\n" in self._sock.received)
        return self._take(self._sock.received.index(b"\n") + 1)

    def read(self, size):
        self._wait_for(lambda: len(self._sock.received) >= size)
        return self._take(size)

    def read_some(self, size):
        self._wait_for(lambda: self._sock.received)
        return self._take(min(size, len(self._sock.received)))

    def close(self):
        self._sock.caller.disconnect()

    def _wait_for(self, is_there):
        world = self._sock.world
        while not is_there():
            self._look_at_no_wall_clock()
            event = world.broker.next_event()
            assert event < END_OF_TIME, "it waits for something that never comes"
            world.sleep(max(event - world.now, 0) / SECOND)
            self._sock.received += self._sock.caller.read()

    def _look_at_no_wall_clock(self):
        """Nobody sets it: to look at it each half second of a month would take minutes."""
        broker = self._sock.world.broker
        if broker.wall.check_timer.is_linked():
            broker.wheel.remove(broker.wall.check_timer)

    def _take(self, size):
        taken, self._sock.received = self._sock.received[:size], self._sock.received[size:]
        return taken


def connect(world, **options):
    """A client of a World."""
    return Client(VirtualSocket(world), **options)
