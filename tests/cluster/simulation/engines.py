"""An engine as the nodes of a simulation see it: slow, paused, cut off, failing over, full, wiped, with answers lost.

What it holds and decides is the memory engine's. Here is what lies between: each call takes time, waits for replicas
that lag, and may fail without anybody knowing whether it has happened; it may even happen long after it has failed.
"""

import contextvars
from functools import partial

from beanstalk_server.cluster.engine.interface import RENEW, TAKE, Answer, EngineError
from tests.cluster.memory_engine import MemoryCommitter, MemoryEngine, MemoryRegistry, Servers
from tests.cluster.simulation.virtual_loop import PROCESS, SECOND, this_thread

TIMEOUT = 1 * SECOND
"""Nanoseconds until a connection gives a call up."""

HOST = "engine"


class SimulatedServers(Servers):
    """Servers whose replicas lag behind a little.

    Args:
        world: the loop and the network, and what random moments are drawn from.
    """

    def __init__(self, loop, network, rng):
        super().__init__(2, clock=lambda: loop.now / SECOND)
        self.loop = loop
        self.network = network
        self.rng = rng
        self.offset = 0  # effects so far
        self.paused_until = 0
        self.lagging_until = 0
        self.down = set()  # replicas that apply nothing
        self.waits = []  # what is to be asked again when a replica has caught up
        self.generation = 0  # goes up with each failover

    def change(self, *effect):
        self.primary.apply(effect)
        self.offset += 1
        for replica in self.replicas:
            replica.waiting.append(effect)
            self._catch_up_soon(replica)

    def _catch_up_soon(self, replica):
        rng = self.rng
        delay = rng.randrange(30_000, 200_000) if rng.random() < 0.98 else rng.randrange(50_000_000)
        self.loop.call_in(
            max(delay, self.lagging_until - self.loop.now + delay),
            self._catch_up,
            replica,
            context=contextvars.Context(),
        )

    def _catch_up(self, replica):
        if replica not in self.replicas or replica.lags:
            return
        if self.loop.now < self.lagging_until:
            self._catch_up_soon(replica)
            return
        if replica.waiting:
            replica.catch_up(1)
            self._ask_again()

    def _ask_again(self):
        waits, self.waits = self.waits, []
        for wait in waits:
            wait()

    def lag_one(self, number, lags):
        """Let one replica apply nothing, or catch up."""
        replica = self.replicas[number]
        replica.lags = lags
        if not lags:
            replica.catch_up()
            self._ask_again()

    def confirmed_at(self, offset):
        """How many replicas have everything up to an offset."""
        return sum(self.offset - len(replica.waiting) >= offset for replica in self.replicas)

    def fail_over(self, number=None):
        super().fail_over(number)
        self.generation += 1
        self._ask_again()

    def wipe(self):
        super().wipe()
        self.generation += 1
        self._ask_again()


class _Connection:
    """What all connections of a process have in common: a call takes time, in a thread."""

    process = None

    def _wait(self):
        """What waits for replicas is `_call`."""

    def _call(self, method, waits, *args, **options):
        """Make a call of the class beside this one.

        Args:
            waits: whether it waits for replicas, if it changes something.
        """
        baton = this_thread()
        servers, network, loop = self.servers, self.servers.network, self.servers.loop
        if not self.is_open:
            raise EngineError("the connection is closed")
        call = partial(getattr(super(), method), *args, **options)
        if baton is None:  # on the event loop, which must not wait
            if network.is_cut(self.process.name, HOST) or servers.paused_until > loop.now or not servers.is_reachable:
                raise EngineError("the engine cannot be reached")
            before = servers.offset
            answer = call()
            confirmed = servers.confirmed_at(servers.offset) if waits and servers.offset > before else None
            return self._judge(answer, confirmed, args)
        return _Call(self, waits, call, args, baton).run()

    def _judge(self, answer, confirmed, args):
        """The answer to a call that a number of replicas have confirmed; None: it waits for none."""
        if confirmed is None:
            return answer
        if isinstance(answer, Answer):
            return answer._replace(replicas=confirmed)
        if confirmed < self.replicas:
            raise self._too_few(confirmed)
        return answer

    def _too_few(self, confirmed):
        return EngineError(f"{confirmed} of {self.replicas} replicas have confirmed")


def _through(method, *, waits=False):
    """A method that calls that of the connection in memory."""

    def call(self, *args, **options):
        return self._call(method, waits, *args, **options)

    return call


class SimulatedEngine(_Connection, MemoryEngine):
    """One connection of a process to one shard."""

    append = _through("append", waits=True)
    files, damage, read = map(_through, ("files", "damage", "read"))


class SimulatedRegistry(_Connection, MemoryRegistry):
    """One connection of a process to all leases."""

    shards = _through("shards", waits=True)
    members, request_move, check = map(_through, ("members", "request_move", "check"))

    def perform(self, calls, report=None):
        try:
            return self._call("perform", any(call.what in (TAKE, RENEW) for call in calls), calls, report)
        except EngineError as error:
            return [error for _ in calls]

    def _judge(self, answer, confirmed, args):
        if not isinstance(answer, list) or confirmed is None or confirmed >= self.replicas:
            return super()._judge(answer, confirmed, args)
        return [
            self._too_few(confirmed) if call.what in (TAKE, RENEW) else lease
            for call, lease in zip(args[0], answer, strict=True)
        ]


class SimulatedCommitter(_Connection, MemoryCommitter):
    """One connection of a process to all journals."""

    def append(self, calls):
        try:
            return self._call("append", True, calls)
        except EngineError as error:
            return [error for _ in calls]

    def _judge(self, answer, confirmed, args):
        if confirmed is None:
            return answer
        return [each._replace(replicas=confirmed) if isinstance(each, Answer) else each for each in answer]


class _Call:
    """One call on its way to the engine and back."""

    def __init__(self, engine, waits, call, args, baton):
        self.engine, self.waits, self.call, self.args, self.baton = engine, waits, call, args, baton
        self.servers = engine.servers
        self.loop = engine.servers.loop
        self.network = engine.servers.network
        self.result = None
        self.error = None
        self.is_over = False
        self.wake = None

    def run(self):
        self.baton.wait(self._begin)
        if not self.engine.is_open:
            raise EngineError("the connection is closed")
        if self.error is not None:
            raise self.error
        return self.result

    def _begin(self, wake):
        self.wake = wake
        self.network.carry(self.engine.process.name, HOST, self._arrive)
        self.loop.call_in(TIMEOUT, self._give_up, context=contextvars.Context())

    def _give_up(self):
        self._end(None, EngineError("the engine has not answered in time"))

    def _end(self, result, error):
        if not self.is_over:
            self.is_over = True
            self.result, self.error = result, error
            self.wake()

    def _arrive(self):
        servers = self.servers
        if not self.engine.process.is_alive and servers.rng.random() < 0.5:
            return
        if self.is_over and servers.rng.random() < 0.5:
            return  # the connection was given up, and the system has dropped what had not come
        if servers.paused_until > self.loop.now:
            self.loop.call_in(
                servers.paused_until - self.loop.now + servers.rng.randrange(1000),
                self._arrive,
                context=contextvars.Context(),
            )
            return
        before, generation = servers.offset, servers.generation
        try:
            answer, error = self.call(), None
        except EngineError as raised:
            answer, error = None, raised
        if error is not None or servers.offset == before:
            self._answer(answer, error)
            return
        offset = servers.offset
        if not self.waits:
            self._answer(answer, None)
            return
        deadline = self.loop.now + TIMEOUT // 2

        def look():
            if servers.generation != generation:
                self._answer(None, EngineError("the connection was lost"))
                return
            confirmed = servers.confirmed_at(offset)
            if confirmed >= self.engine.replicas or self.loop.now >= deadline:
                try:
                    self._answer(self.engine._judge(answer, confirmed, self.args), None)
                except EngineError as error:
                    self._answer(None, error)
            else:
                servers.waits.append(look)

        self.loop.call_in(TIMEOUT // 2, self._time_out_wait, look, context=contextvars.Context())
        look()

    def _time_out_wait(self, look):
        if look in self.servers.waits:
            self.servers.waits.remove(look)
            look()

    def _answer(self, answer, error):
        if self.servers.lost_answers:
            self.servers.lost_answers -= 1
            return  # it is given up some time
        self.network.carry(HOST, self.engine.process.name, lambda: self._end(answer, error))


class SimulatedConnector:
    """Makes the connections of the process that makes it."""

    def __init__(self, servers, replicas):
        self.servers = servers
        self.replicas = replicas
        self.process = PROCESS.get()

    def engine(self, shard=0):
        return self._of_process(SimulatedEngine(self.servers, self.replicas, shard))

    def registry(self):
        return self._of_process(SimulatedRegistry(self.servers, self.replicas))

    def committer(self):
        return self._of_process(SimulatedCommitter(self.servers, self.replicas))

    def _of_process(self, connection):
        connection.process = self.process
        return connection
