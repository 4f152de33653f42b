"""The client for Python programs at a server in virtual time: the one that waits for an answer moves the clock."""

import socket

from beanstalk_client import Client

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
        """What has come; if nothing has, time passes until it does."""
        world = self.world
        while not self.received:
            if self.gettimeout() == 0:
                raise BlockingIOError
            self._look_at_no_wall_clock()
            event = world.broker.next_event()
            assert event < END_OF_TIME, "it waits for something that never comes"
            world.sleep(max(event - world.now, 0) / SECOND)
            self.received += self.caller.read()
        taken, self.received = self.received[:size], self.received[size:]
        return taken

    def close(self):
        if self.fileno() >= 0:
            self.caller.disconnect()
        super().close()

    def _look_at_no_wall_clock(self):
        """Nobody sets it: to look at it each half second of a month would take minutes."""
        broker = self.world.broker
        if broker.wall.check_timer.is_linked():
            broker.wheel.remove(broker.wall.check_timer)


def connect(world, **options):
    """A client of a World."""
    return Client(VirtualSocket(world), **options)
