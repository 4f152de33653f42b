"""An engine as the nodes of a simulation see it: slow, paused, cut off, failing over, full, wiped, with answers lost.

What it holds and decides is the memory engine's. Here is what lies between: each call takes time, waits for replicas
that lag, and may fail without anybody knowing whether it has happened; it may even happen long after it has failed.

Redis ends a wait for replicas by itself. PostgreSQL does not (`Servers.locks`): the change is not visible before the
wait has ended, and the shard is locked for other calls. An operator may cancel the wait: the change is visible then,
and perhaps on no replica.
"""

import contextvars
from functools import partial

from beanstalk_server.cluster.engine.interface import OBSERVE, RENEW, TAKE, Answer, EngineError
from tests.cluster.memory_engine import MemoryEngine, Servers
from tests.cluster.simulation.bit_rot import BitRot
from tests.cluster.simulation.virtual_loop import PROCESS, SECOND, this_thread

TIMEOUT = 1 * SECOND
"""Nanoseconds until a connection gives a call up."""

HOST = "engine"


class SimulatedServers(Servers):
    """Servers whose replicas lag behind a little.

    Args:
        world: the loop and the network, and what random moments are drawn from.
        locks: whether a call that waits for replicas locks its shards, as PostgreSQL does.
    """

    def __init__(self, loop, network, rng, *, locks=False):
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
        self.locks = locks
        self.locked = {}  # by shard: the call that waits, and the lease before it
        self.bit_rot = BitRot(self)

    def datasets(self):
        """What each server holds."""
        return [self.primary, *(replica.dataset for replica in self.replicas)]

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

    def cancel_waits(self):
        """End all waits for replicas: what has waited is visible now, and not confirmed."""
        for call, _ in list(self.locked.values()):
            call.cancel()

    def leases(self, shards):
        """The leases as they are visible."""
        return {shard: self.locked[shard][1] for shard in shards if shard in self.locked}

    def fail_over(self, number=None):
        super().fail_over(number)
        self._lose_connections()

    def wipe(self):
        super().wipe()
        self._lose_connections()

    def _lose_connections(self):
        self.generation += 1
        self.locked.clear()
        self._ask_again()


class SimulatedEngine(MemoryEngine):
    """One connection of the process that makes it: a call takes time, in a thread."""

    def __init__(self, servers, replicas):
        super().__init__(servers, replicas)
        self.process = PROCESS.get()

    def _wait(self):
        """What waits for replicas is `_call`."""

    def _call(self, method, *args, judge=None, shards=()):
        """Make a call of the engine in memory.

        Args:
            shards: those that it may change.
            judge: returns the answer when it is known how many replicas have confirmed it; None if it waits for none.
        """
        baton = this_thread()
        servers, network, loop = self.servers, self.servers.network, self.servers.loop
        if not self.is_open:
            raise EngineError("the connection is closed")
        call = partial(getattr(super(), method), *args)
        if baton is None:  # on the event loop, which must not wait
            if network.is_cut(self.process.name, HOST) or servers.paused_until > loop.now or not servers.is_reachable:
                raise EngineError("the engine cannot be reached")
            before = servers.offset
            answer = call()
            if judge is not None and servers.offset > before:
                return judge(answer, servers.confirmed_at(servers.offset))
            return answer
        return _Call(self, judge, call, baton, shards).run()

    def _too_few(self, confirmed):
        return (
            EngineError(f"{confirmed} of {self.replicas} replicas have confirmed")
            if confirmed < self.replicas
            else None
        )

    def shards(self, wanted):
        def judge(answer, confirmed):
            if error := self._too_few(confirmed):
                raise error
            return answer

        return self._call("shards", wanted, judge=judge)

    def perform(self, calls, report=None):
        def judge(leases, confirmed):
            error = self._too_few(confirmed)
            return [
                error if error and call.what in (TAKE, RENEW) else lease
                for call, lease in zip(calls, leases, strict=True)
            ]

        if any(call.what != OBSERVE or call.lease.renewals for call in calls):
            return self._each("perform", calls, report, judge=judge)
        found = self._each("perform", calls, report, judge=judge, locks=False)
        before = self.servers.leases([call.shard for call in calls])
        return [
            lease if isinstance(lease, EngineError) else before.get(call.shard, lease)
            for call, lease in zip(calls, found, strict=True)
        ]

    def append(self, calls):
        def judge(answers, confirmed):
            return [each._replace(replicas=confirmed) if isinstance(each, Answer) else each for each in answers]

        return self._each("append", calls, judge=judge)

    def _each(self, method, calls, *args, judge, locks=True):
        shards = {call.shard for call in calls} if locks else ()
        try:
            return self._call(method, calls, *args, judge=judge, shards=shards)
        except EngineError as error:
            return [error for _ in calls]

    def files(self, shard):
        return self._call("files", shard)

    def damage(self, shard):
        return self._call("damage", shard)

    def read(self, shard, name, offset, size):
        data = self._call("read", shard, name, offset, size)
        self.servers.bit_rot.note_read(self.process, shard, name, offset, data)
        return data

    def members(self):
        return self._call("members")

    def check(self):
        return self._call("check")


class _Call:
    """One call on its way to the engine and back."""

    def __init__(self, engine, judge, call, baton, shards):
        self.engine, self.judge, self.call, self.baton = engine, judge, call, baton
        self.servers = engine.servers
        self.shards = shards if engine.servers.locks else ()
        self.cancel = None  # ends the wait for replicas
        self.gave_up_at = 0  # when it waits for a lock no more
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
        if any(shard in servers.locked for shard in self.shards):
            self._wait_for_lock()
            return
        before, generation = servers.offset, servers.generation
        leases = {shard: servers.primary.of(shard).lease for shard in self.shards}
        try:
            answer, error = self.call(), None
        except EngineError as raised:
            answer, error = None, raised
        if error is not None or servers.offset == before:
            self._answer(answer, error)
            return
        offset = servers.offset
        if self.judge is None:
            self._answer(answer, None)
            return
        deadline = None if servers.locks else self.loop.now + TIMEOUT // 2
        for shard, lease in leases.items():
            servers.locked[shard] = self, lease

        def look(is_canceled=False):
            if servers.generation != generation:
                self._answer(None, EngineError("the connection was lost"))
                return
            confirmed = 0 if is_canceled else servers.confirmed_at(offset)
            is_late = deadline is not None and self.loop.now >= deadline
            if confirmed >= self.engine.replicas or is_late or is_canceled:
                for shard in leases:
                    servers.locked.pop(shard, None)
                try:
                    self._answer(self.judge(answer, confirmed), None)
                except EngineError as error:
                    self._answer(None, error)
            else:
                servers.waits.append(look)

        def cancel():
            if look in servers.waits:
                servers.waits.remove(look)
                look(is_canceled=True)

        self.cancel = cancel
        if deadline is not None:
            self.loop.call_in(TIMEOUT // 2, self._time_out_wait, look, context=contextvars.Context())
        look()

    def _wait_for_lock(self):
        """Try again soon, or fail."""
        self.gave_up_at = self.gave_up_at or self.loop.now + TIMEOUT // 2
        if self.loop.now >= self.gave_up_at:
            self._answer(None, EngineError("canceling statement due to lock timeout"))
        else:
            pause = self.servers.rng.randrange(1_000_000, 10_000_000)
            self.loop.call_in(pause, self._arrive, context=contextvars.Context())

    def _time_out_wait(self, look):
        if look in self.servers.waits:
            self.servers.waits.remove(look)
            look()

    def _answer(self, answer, error):
        if self.servers.lost_answers:
            self.servers.lost_answers -= 1
            return  # it is given up some time
        self.network.carry(HOST, self.engine.process.name, lambda: self._end(answer, error))
