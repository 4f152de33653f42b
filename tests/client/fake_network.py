"""A network in memory for asyncio's clients: connections whose other ends are the test's own, piece by piece.

No sockets, no waiting: `Network` takes the place of a loop's create_connection, and each connection is a `Peer`.
"""

import asyncio
import contextlib


class Transport(asyncio.Transport):
    """The client's end of a connection.

    Attributes:
        writes: each piece that the client wrote.
    """

    def __init__(self, loop, protocol):
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._closing = False
        self.writes = []
        self.unread = bytearray()  # what the peer has not taken yet
        self.is_full = False
        self.is_lost = False

    def write(self, data):
        if self._closing:
            return
        self.writes.append(bytes(data))
        self.unread += data

    def is_closing(self):
        return self._closing

    def get_extra_info(self, name, default=None):
        return default

    def get_write_buffer_size(self):
        return len(self.unread) if self.is_full else 0

    def abort(self):
        self.close()

    def close(self, error=None):
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._end, error)

    def _end(self, error):
        self.is_lost = True
        self._protocol.connection_lost(error)


class Peer:
    """The server's end of a connection, for a test to play.

    Attributes:
        is_dropped: whether nobody serves it any more.
    """

    def __init__(self, transport, protocol):
        self.transport = transport
        self._protocol = protocol
        self.is_dropped = False

    @property
    def writes(self):
        """What the client wrote, write by write, since this was asked last."""
        writes, self.transport.writes = self.transport.writes, []
        return writes

    def take(self):
        """All that the client has sent, and nobody has taken yet."""
        data = bytes(self.transport.unread)
        self.transport.unread.clear()
        return data

    async def expect(self, data):
        """Take this, which the client has sent or sends within the next turns of the loop; and nothing else."""
        for _ in range(50):
            if len(self.transport.unread) >= len(data):
                break
            await asyncio.sleep(0)
        assert self.take() == data

    def say(self, data, size=0):
        """Send this to the client, in pieces of this many bytes."""
        size = size or len(data) or 1
        for start in range(0, len(data), size):
            self._protocol.data_received(data[start : start + size])

    def hang_up(self, error=None):
        """End the connection, as the server would or as an error does."""
        if error is None and not self._protocol.eof_received():
            self.transport.close()
        elif error is not None:
            self.transport.close(error)

    def stop_reading(self):
        self.transport.is_full = True
        self._protocol.pause_writing()

    def go_on_reading(self):
        self.transport.is_full = False
        self._protocol.resume_writing()

    @property
    def is_left(self):
        """Whether the client has closed the connection."""
        return self.transport.is_closing()


class Network:
    """What a client reaches when it connects.

    Args:
        loop: the running loop, whose create_connection this is until `close`.

    Attributes:
        refused: ports on which nobody listens.
        silent: ports that never answer.
        attempts: the addresses to which somebody connected, or tried to, with the arguments.
        peers: connections, in their order.
    """

    def __init__(self, loop):
        self._loop = loop
        self.refused = set()
        self.silent = set()
        self.attempts = []
        self.peers = []
        loop.create_connection = self._create_connection

    def close(self):
        del self._loop.create_connection

    async def _create_connection(self, factory, host=None, port=None, **options):
        self.attempts.append((host, port, options))
        await asyncio.sleep(0)
        if port in self.silent:
            await asyncio.Event().wait()
        if port in self.refused:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        transport = Transport(self._loop, protocol)
        self.peers.append(Peer(transport, protocol))
        protocol.connection_made(transport)
        return transport, protocol

    async def peer(self, number=0):
        """A connection, which is there or comes within the next turns of the loop."""
        for _ in range(50):
            if len(self.peers) > number:
                return self.peers[number]
            await asyncio.sleep(0)
        raise AssertionError(f"there is no connection {number}")


@contextlib.contextmanager
def network():
    """The network of the running loop."""
    found = Network(asyncio.get_running_loop())
    try:
        yield found
    finally:
        found.close()
