"""A network in memory for asyncio's clients: connections whose other ends are the test's own, piece by piece.

No sockets, no waiting: `Network` takes the place of a loop's create_connection, and each connection is a `Peer`.
"""

import asyncio
import contextlib

from beanstalk_client import AsyncClient

from harness.waiting import WITHIN


def begin(work):
    return asyncio.ensure_future(work)


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


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
        is_dropped: whether it is served no more.
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
        """All that the client has sent, and the test has not taken yet."""
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

    Attributes:
        refused: ports on which no server listens.
        silent: ports that never answer.
        attempts: the addresses to which a client connected, or tried to, with the arguments.
        peers: connections, in their order.
    """

    def __init__(self):
        self.refused = set()
        self.silent = set()
        self.attempts = []
        self.peers = []

    async def create_connection(self, factory, host=None, port=None, **options):
        self.attempts.append((host, port, options))
        await asyncio.sleep(0)
        if port in self.silent:
            await asyncio.Event().wait()
        if port in self.refused:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        transport = Transport(asyncio.get_running_loop(), protocol)
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
    found, loop = Network(), asyncio.get_running_loop()
    before, loop.create_connection = loop.create_connection, found.create_connection
    try:
        yield found
    finally:
        loop.create_connection = before


class NetworkedLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections are those of a network; it notes what is wrong when a test is over."""

    def __init__(self, network, complaints):
        super().__init__()
        self._complaints = complaints
        self.create_connection = network.create_connection
        self.set_exception_handler(lambda _, context: complaints.append(context))

    def run_until_complete(self, future):
        try:
            return super().run_until_complete(future)
        finally:
            self._complaints += asyncio.all_tasks(self)


class Loops:
    """Makes event loops whose connections are those of a network.

    Attributes:
        complaints: errors that no task has retrieved, and tasks that are left over.
    """

    def __init__(self):
        self.network = Network()
        self.complaints = []

    def __call__(self):
        return NetworkedLoop(self.network, self.complaints)


@contextlib.asynccontextmanager
async def connected(net, greeting=b"", **how):
    """A client without a name, and the peer that it has connected to."""
    queue = AsyncClient("h:1", **{"reconnect_timeout": WITHIN, "name": "", **how})
    connecting = begin(queue.connect())
    peer = await net.peer(0)
    await turns()
    peer.take()
    peer.say(greeting)
    await connecting
    try:
        yield queue, peer
    finally:
        await queue.close()
