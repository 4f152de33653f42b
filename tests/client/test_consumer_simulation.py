"""A consumer and a whole server in virtual time, drawn from a seed: no job is lost or forgotten, whatever is lost else.

The loop's clock is the server's: it goes on when nobody has anything to do. What is said takes its time on the way, in
either direction; connections are lost, the server is silent for a while, dies and comes back with its jobs or with
none, is paused. What must be true of each seed:

    each job ends        by its handler: it was deleted, buried or is not there because the server had no journal
    no job is forgotten  times to run are longer than the simulation: what is reserved and not in hand never ends
    nobody is idle       while jobs are ready and slots are free, and the server is reached
    slots                never more runs than there are
    no job runs twice    at the same time, after any loss
    unique jobs          the latest version is done, though others replace it while it runs; no two versions run at the
                         same time, unless the server has died: then a job with its id may be another one
    what was saved       is what the next run has
"""

import asyncio
import random
import selectors

import pytest
from beanstalk_client import AsyncClient
from beanstalk_client.consumer import DONE, Bury, Consumer, Release
from beanstalk_client.errors import ReservationLostError, TooLateError
from effort import seeded, seeds
from virtual import MemoryJournal, World

from beanstalk_server.queue.units import SECOND

TUBE = "work"

LONG = 100_000
"""A time to run that no simulation takes, in seconds."""

FAULTS_FOR = 60.0
"""Seconds in which there are losses."""

IDLE_FOR = 12.0
"""Seconds for which the server may have ready jobs and a consumer slots: twice the longest pause of attempts."""

INSTANT = 1e-7
"""Seconds between two pieces of a connection: what is due at the same moment has no order."""

OVER_AFTER = 1200.0
"""Seconds after which a simulation must be over: jobs that are released come back much sooner."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes on by as much as it would have waited for input, or to the server's next event."""

    def __init__(self):
        super().__init__(Selector(self))
        self.now = 0.0
        self.machine = None

    def time(self):
        return self.now


class Selector(selectors.SelectSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        if timeout != 0 and self.loop.machine is not None:
            timeout = self.loop.machine.pass_time(timeout)
        self.loop.now += timeout or 0
        return super().select(0)


class Machine:
    """The server and the network before it.

    Attributes:
        is_up: whether it takes connections.
        is_stalled: whether it does nothing with what it is sent.
    """

    def __init__(self, loop, rng, *, one_by_one=False, journalled=True):
        self.loop = loop
        self.rng = rng
        self.one_by_one = one_by_one  # as with a server that does not know reserve-batch
        self.journal = MemoryJournal() if journalled else None
        self.world = World(journal=self.journal)
        self.world.info.instance = "first"
        self.callers = {}  # by peer
        self.is_up = True
        self.is_stalled = False
        self.held = []  # what has arrived while it was stalled
        loop.create_connection = self.connect
        loop.machine = self

    # The network

    async def connect(self, factory, host=None, port=None, **_):
        await asyncio.sleep(self.latency())
        if not self.is_up:
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = factory()
        transport = Line(self, protocol)
        self.callers[transport] = self.world.connect()
        protocol.connection_made(transport)
        return transport, protocol

    def latency(self):
        return self.rng.choice((0.0001, 0.001, 0.02)) * self.rng.random()

    def arrive(self, line, data):
        """The server gets this from a client."""
        if line not in self.callers:
            return
        if self.is_stalled:
            self.held.append((line, data))
            return
        if self.one_by_one:
            data = data.replace(b"reserve-batch", b"xeserve-batch")
        self.serve(line, self.callers[line].send(data))

    def serve(self, line, reply):
        if self.one_by_one:
            reply = reply.replace(b"\nreserve-batch: ", b"\nxeserve-batch: ")
        if reply:
            line.carry_back(reply)
        self.pump()

    def pump(self):
        for line, caller in list(self.callers.items()):
            reply = caller.read()
            if reply:
                line.carry_back(reply)

    def pass_time(self, timeout):
        """Let time pass until the loop or the server has something to do; return how much."""
        event = (self.world.broker.next_event() - self.world.now) / SECOND
        if self.is_stalled:
            event = float("inf")
        seconds = min(max(0.0, event), float("inf") if timeout is None else timeout)
        assert seconds < 1e9, "nothing will ever happen"
        if self.is_stalled:
            self.world.now += round(seconds * SECOND)
        else:
            self.world.sleep(seconds)
            self.world.settle()
            self.pump()
        return seconds

    # What goes wrong

    def hang_up(self, line):
        self.callers.pop(line).disconnect()
        line.lose()

    def drop(self):
        for line in list(self.callers):
            self.hang_up(line)

    def stall(self, seconds):
        self.is_stalled = True

        def resume():
            self.is_stalled = False
            held, self.held = self.held, []
            for line, data in held:
                self.arrive(line, data)

        self.loop.call_later(seconds, resume)

    def die(self, seconds):
        """It is gone for this long, and comes back with what its journal has."""
        self.is_up = False
        lines = list(self.callers)
        self.callers.clear()
        for line in lines:
            line.lose()
        now = self.world.now
        self.journal = self.journal.restarted() if self.journal else None
        self.world = World(journal=self.journal)
        self.world.info.instance = f"of {now}"
        self.world.now = now
        if self.journal:
            self.world.broker.restore(self.journal.clock_offset(), now)

        def start():
            self.is_up = True

        self.loop.call_later(seconds, start)


class Line(asyncio.Transport):
    """The client's end of a connection, over which each piece takes its time."""

    def __init__(self, machine, protocol):
        super().__init__()
        self.machine = machine
        self.protocol = protocol
        self.closing = False
        self.there = self.back = 0.0  # when the last piece arrives

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.closing

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        if not self.closing:
            self.there = max(self.there + INSTANT, self.machine.loop.time() + self.machine.latency())
            self.machine.loop.call_at(self.there, self.machine.arrive, self, bytes(data))

    def carry_back(self, data):
        cut = self.machine.rng.randint(0, len(data))
        for piece in (data[:cut], data[cut:]):
            self.back = max(self.back + INSTANT, self.machine.loop.time() + self.machine.latency())
            self.machine.loop.call_at(self.back, self.hear, piece)

    def hear(self, data):
        if data and not self.closing:
            self.protocol.data_received(data)

    def lose(self):
        """The connection breaks: what is under way to the client may still arrive, or not."""
        if self.machine.rng.random() < 0.5:
            self.closing = True
            self.machine.loop.call_soon(self.protocol.connection_lost, ConnectionResetError(104, "reset"))
        else:
            self.back = max(self.back + INSTANT, self.machine.loop.time() + self.machine.latency())
            self.machine.loop.call_at(self.back, self.end)

    def end(self):
        if not self.closing:
            self.closing = True
            self.protocol.eof_received()
            self.protocol.connection_lost(None)

    def abort(self):
        self.close()

    def close(self):
        if self.closing:
            return
        self.closing = True
        self.machine.loop.call_soon(self.protocol.connection_lost, None)
        at = max(self.there, self.machine.loop.time() + self.machine.latency())
        self.machine.loop.call_at(at, self.leave)

    def leave(self):
        if self in self.machine.callers:
            self.machine.callers.pop(self).disconnect()
            self.machine.pump()


class Simulation:
    """One seed.

    Attributes:
        done: the bodies whose handler has said that they are.
        at_work: how often each body runs at present.
        life: of a server without a journal; what was put in a former one is gone.
        troubles: what does not hold, of what cannot be raised where it is seen.
    """

    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        random.seed(seed)  # the consumer's own pauses
        self.loop = VirtualLoop()
        self.loop.set_exception_handler(self.note)
        self.troubles = []
        self.at_once = rng.choice((1, 2, 3, 10))
        self.journalled = rng.random() < 0.8
        self.losses = rng.choice((0, 0.05, 0.3))
        self.slow = rng.choice((0.0, 0.2, 2.0))
        self.short_ttr = rng.random() < 0.3
        self.machine = Machine(self.loop, rng, one_by_one=rng.random() < 0.3, journalled=self.journalled)
        self.done = set()
        self.put = []
        self.at_work = {}
        self.life = 0
        self.life_of = {}
        self.saves = rng.random() < 0.5
        self.latest = {}  # by key: the last version that was put
        self.saved = {}  # by what was put: what the server has instead
        self.has_died = False

    def note(self, _, context):
        self.troubles.append(context)

    def must(self, holds, what):
        """Note what does not hold: a handler that raises it would only have failed."""
        if not holds:
            self.troubles.append(f"{self.loop.time():.3f}: {what}")

    def run(self):
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(asyncio.wait_for(self.story(), OVER_AFTER))
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
        assert not self.troubles, self.troubles

    async def handle(self, delivery):
        body, _, saved = delivery.body.partition(b" ")
        key = body.partition(b"-")[0]
        running = [one for one in self.at_work if one == body or (one.startswith(key + b"-") and not self.has_died)]
        self.must(not running, f"{body} runs beside {running}")
        if self.losses == 0:
            self.must(saved == self.saved.get(body, b""), f"{body} has {saved}, not what was saved")
        if self.losses == 0:
            self.must(body not in self.done, f"{body} is done, and runs again")
        self.at_work[body] = self.at_work.get(body, 0) + 1
        try:
            self.must(sum(self.at_work.values()) <= self.at_once, "more runs than slots")
            if self.rng.random() < 0.7:
                await asyncio.sleep(self.rng.random() * self.slow)
            if self.rng.random() < 0.02:
                await asyncio.sleep(20 * self.rng.random())
            if self.saves and self.rng.random() < 0.5:
                await self.save(delivery, body, b"%d" % self.rng.randrange(1000))
        finally:
            self.at_work[body] -= 1
            if not self.at_work[body]:
                del self.at_work[body]
        chance = self.rng.random()
        if chance < 0.05:
            return Release()
        if chance < 0.1:
            return Release(self.rng.choice((0.5, 1, 3)))
        if chance < 0.12:
            raise RuntimeError("oh")
        if chance < 0.14:
            return Bury()
        self.done.add(body)
        return DONE

    async def save(self, delivery, body, value):
        try:
            await delivery.save(body + b" " + value)
        except (ReservationLostError, TooLateError):
            self.must(self.losses or self.latest.get(body.partition(b"-")[0]) != body, f"{body} is not saved")
        else:
            self.saved[body] = value

    async def story(self):
        rng = self.rng
        consumer = Consumer(
            lambda: AsyncClient("127.0.0.1:11300", encoding=None, connect_timeout=3.0),
            [TUBE],
            self.handle,
            at_once=self.at_once,
        )
        self.consumer = consumer
        task = self.loop.create_task(consumer.run())
        idle_since = None
        number = 0
        while self.loop.time() < FAULTS_FOR:
            await asyncio.sleep(rng.choice((0.001, 0.05, 0.5)) * rng.random())
            if task.done():
                task.result()
                raise AssertionError("it has ended")
            if self.saves and self.machine.is_up and not self.machine.is_stalled and rng.random() < 0.05:
                number += 1
                self.put_unique(b"key%d" % rng.randrange(3), number)
                self.machine.pump()
            if self.machine.is_up and not self.machine.is_stalled and rng.random() < 0.1:
                for _ in range(rng.choice((1, 1, 3, 30))):
                    number += 1
                    if number <= 300:
                        self.put_one(b"%d" % number)
                self.machine.pump()
            self.go_wrong()
            idle_since = self.look(idle_since)
        if not self.machine.is_up:
            await asyncio.sleep(3)
        empty = 0
        while empty < 3:
            await asyncio.sleep(0.5)
            idle_since = self.look(idle_since)
            self.kick()
            empty = empty + 1 if self.is_empty() else 0
        consumer.stop()
        await task
        for body in (*self.put, *self.latest.values()):
            if body not in self.done:
                assert self.life_of[body] != self.life, f"{body} is gone, and its handler has not said so"
        assert not consumer._in_hand
        assert consumer._running == 0
        assert consumer._asked == 0

    def put_unique(self, key, number):
        """Put a version of a unique job, in the place of the one that there may be, and even of one that runs."""
        body = b"%b-%d" % (key, number)
        caller = self.machine.world.connect()
        caller.send(b"use %b\r\n" % TUBE.encode())
        line = b"put-with 0 %d %d %d key=%b replace=1 again=1\r\n" % (self.rng.choice((0, 1)), LONG, len(body), key)
        reply = caller.send(line + body + b"\r\n").split()[0]
        assert reply in (b"INSERTED", b"REPLACED", b"AGAIN")
        caller.disconnect()
        former = self.latest.get(key)
        if reply == b"INSERTED" and former and self.life_of[former] == self.life:
            self.must(former in self.done, f"{former} is gone, and its handler has not said so")
        self.latest[key] = body
        self.life_of[body] = self.life

    def put_one(self, body):
        caller = self.machine.world.connect()
        caller.send(b"use %b\r\n" % TUBE.encode())
        ttr = self.rng.choice((2, 3, LONG)) if self.short_ttr else LONG
        delay = self.rng.choice((0, 0, 0, 1))
        assert caller.send(b"put 0 %d %d %d\r\n%b\r\n" % (delay, ttr, len(body), body)).startswith(b"INSERTED")
        caller.disconnect()
        self.put.append(body)
        self.life_of[body] = self.life

    def go_wrong(self):
        rng, machine = self.rng, self.machine
        if rng.random() > self.losses or not machine.is_up:
            return
        what = rng.randrange(6)
        if what < 2:
            machine.drop()
        elif what < 4 and machine.callers:
            machine.hang_up(rng.choice(list(machine.callers)))
        elif what == 4 and not machine.is_stalled:
            machine.stall(rng.random() * 3)
        elif what == 5 and not machine.is_stalled and rng.random() < 0.5:
            self.has_died = True
            if not self.journalled:
                self.life += 1
            machine.die(rng.random() * 2)

    def states(self):
        caller = self.machine.world.connect()
        try:
            reply = caller.send(b"stats-tube %b\r\n" % TUBE.encode())
        finally:
            caller.disconnect()
        if not reply.startswith(b"OK"):
            return dict.fromkeys(("ready", "reserved", "delayed", "buried"), 0)
        found = dict(line.split(": ", 1) for line in reply.decode().split("\n")[2:-2])
        return {state: int(found[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried")}

    def look(self, idle_since):
        if not self.machine.is_up or self.machine.is_stalled:
            return None
        if self.states()["ready"] and self.consumer._running < self.at_once:
            now = self.loop.time()
            if idle_since is None:
                return now
            assert now - idle_since < IDLE_FOR, f"idle since {idle_since}, now {now}: {self.states()}"
            return idle_since
        return None

    def kick(self):
        caller = self.machine.world.connect()
        caller.send(b"use %b\r\nkick 100\r\n" % TUBE.encode())
        caller.disconnect()
        self.machine.pump()

    def is_empty(self):
        return not any(self.states().values())


@seeded(8)
def test_no_job_is_lost_or_forgotten(seed):
    Simulation(seed).run()


@pytest.mark.slow
def test_no_job_is_lost_or_forgotten_in_any_of_many_simulations():
    for seed in seeds(50):
        Simulation(seed).run()
