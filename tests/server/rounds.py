"""A server without sockets: real connections over transports that only record, in rounds that a test runs.

The same steps give the same bytes, as in tests/virtual.py; but here the server's own part is real too: whose turn it
is, when replies leave, when a client is read from.
"""

import heapq
from itertools import count

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.units import SECOND
from beanstalk_server.server.bounded import MalformedPuts
from beanstalk_server.server.commits import CommitGate, Gathering
from beanstalk_server.server.connection import Connection, Connections
from beanstalk_server.server.front.listener_policy import ListenerPolicy
from beanstalk_server.server.front.listeners import Listeners
from beanstalk_server.server.hangups import HangupWatch
from beanstalk_server.server.process import this_process
from beanstalk_server.server.timers import Timers
from beanstalk_server.server.turns import Turns


class Call:
    """What `call_soon` and `call_later` return."""

    def __init__(self, callback, arguments):
        self.callback, self.arguments = callback, arguments
        self.cancelled = False

    def cancel(self):
        self.cancelled = True

    def run(self):
        if not self.cancelled:
            self.callback(*self.arguments)


class Loop:
    """An event loop that does nothing by itself. `clock` is in nanoseconds."""

    def __init__(self):
        self.now = 7 * SECOND
        self.soon = []
        self.later = []
        self._order = count()

    def clock(self):
        return self.now

    def call_soon(self, callback, *arguments):
        self.soon.append(Call(callback, arguments))
        return self.soon[-1]

    def call_later(self, delay, callback, *arguments):
        call = Call(callback, arguments)
        heapq.heappush(self.later, (self.now + round(delay * SECOND), next(self._order), call))
        return call

    def go_round(self):
        """Call what is to be called soon, and what is due; return whether there was anything."""
        calls, self.soon = self.soon, []
        while self.later and self.later[0][0] <= self.now:
            calls.append(heapq.heappop(self.later)[2])
        for call in calls:
            call.run()
        return bool(calls)

    def settle(self):
        while self.go_round():
            pass

    def sleep(self, seconds):
        end = self.now + round(seconds * SECOND)
        self.settle()
        while self.later and self.later[0][0] <= end:
            self.now = max(self.now, self.later[0][0])
            self.settle()
        self.now = end


class SteppingClock:
    """A loop's clock that moves on with each look at it, by this many nanoseconds."""

    def __init__(self, loop, step=0):
        self.loop, self.step = loop, step

    def __call__(self):
        self.loop.now += self.step
        return self.loop.now


class Transport:
    """Records what is written to it."""

    def __init__(self):
        self.written = b""
        self.on_write = None  # called with what is written, instead of keeping it
        self.reading = True
        self.closed = self.aborted = False

    def write(self, data):
        assert not self.is_closing()
        if self.on_write is None:
            self.written += data
        else:
            self.on_write(data)

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True

    def is_closing(self):
        return self.closed or self.aborted

    def pause_reading(self):
        assert self.reading
        self.reading = False

    def resume_reading(self):
        assert not self.reading
        self.reading = True

    def set_write_buffer_limits(self, high):
        self.limit = high

    def get_extra_info(self, name):
        assert name == "socket"
        return self

    def fileno(self):
        return -1


class Rounds:
    """The parts of a server that need no sockets, and a loop to move them by.

    Args:
        loop: an asyncio event loop instead, where a journal's commits are to be awaited.
        make_alarm: the timers', in place of the loop's.
        shards, shard: how many there are, and which of them this is.
        gathering: that of all of them in the loop, if there are others.
    """

    def __init__(self, journal=None, loop=None, make_alarm=None, shards=1, shard=0, gathering=None):
        self.loop = loop or Loop()
        self.clock = self.loop.clock if isinstance(self.loop, Loop) else lambda: round(self.loop.time() * SECOND)
        self.journal = journal or Journal()
        self.broker = Broker(self.journal, self.clock(), stride=shards, offset=shard)
        self.wall_offset = 1_800_000_000 * SECOND  # the wall clock minus the clock
        self.turns = Turns(self.clock)
        self.timers = Timers(self.broker, self.turns, self.clock_offset)
        self.failures = []
        self.gate = CommitGate(
            self.journal,
            self.broker,
            self.turns,
            lambda: self.failures.append(self.gate.failure),
            gathering or Gathering(),
        )
        self.hangups = HangupWatch()
        self.listeners = Listeners()
        malformed_puts = self.listeners._logs[MalformedPuts] = MalformedPuts()
        malformed_puts.start(self.loop)
        self.process = this_process(65535, self.clock())
        self.process.clock_offset = self.clock_offset
        self.connections = Connections(
            self.broker, self.process, self.turns, self.gate, self.hangups, self.listeners, 0
        )
        self.turns.start(self.loop)
        self.timers.start(self.loop)
        if make_alarm is not None:
            self.timers.use_alarm(make_alarm)
        self.gate.start(self.loop)

    def clock_offset(self):
        return self.wall_offset

    def connect(self):
        return Caller(self)


class Caller:
    """One client, by the calls that the event loop would make for it."""

    def __init__(self, rounds):
        self.connection = Connection(rounds.connections, ListenerPolicy())
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def send(self, data):
        """Let the event loop report these bytes; return what has been written by then."""
        self.connection.data_received(data)
        return self.read()

    def read(self):
        written, self.transport.written = self.transport.written, b""
        return written

    def shut_down(self):
        assert self.connection.eof_received(), "the server closes the connection, when all replies are sent"

    def lose(self):
        self.connection.connection_lost(None)
