"""A whole cluster in one process: nodes, clients, an engine, and faults; one seed, one run.

The nodes are the server's own, from their listeners on. What clients are told is judged by the checker of histories,
and at the end, when every fault is over, everybody must be answered, and the jobs that a fresh node finds in the engine
are what is left.
"""

import contextvars
import logging
import random
from collections import Counter
from functools import partial

from beanstalk_server.cluster import commit_sender
from beanstalk_server.cluster.lease import LEADING
from beanstalk_server.cluster.node import Node
from beanstalk_server.cluster.roles import LEADS, TakeOverError
from beanstalk_server.queue.job import STATES
from beanstalk_server.server.link_end import LinkEnd
from beanstalk_server.settings.options import Config
from beanstalk_server.settings.sections import TubeConfig
from beanstalk_server.storage.errors import DAMAGED
from tests.checking import check_broker
from tests.cluster.simulation.commands import command, ids_in, policed_tubes, terms_of, tubes_of, values_of
from tests.cluster.simulation.engines import SimulatedEngine, SimulatedServers
from tests.cluster.simulation.faults import GUEST, Faults
from tests.cluster.simulation.network import Network
from tests.cluster.simulation.patches import virtual
from tests.cluster.simulation.virtual_loop import PROCESS, SECOND, WALL, Process, VirtualLoop
from tests.histories import History, Recorder, Survivor, nanoseconds, problems_of

DRIFT = 0.001
SKEW = SECOND // 5
NODES = ("n1", "n2", "n3")
GAP = 1 * SECOND
"""How long a client may wait for an answer when nothing fails."""

KEEP_BUSY = 60.0
"""Virtual seconds with clients and faults in a run."""

SETTLE = 90
"""Virtual seconds until everything must be well again when no fault is left."""

log = logging.getLogger("beanstalk_server")


class SimulatedNode(Node):
    """A node that tells the cluster when it serves."""

    cluster = None
    process = None

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.has_started = False
        for shard in self.shards:
            self._watch(shard)

    def _watch(self, shard):
        take_over, note_damage = shard.take_over, shard._note_damage

        async def note_takeover(lease):
            read = self.cluster.servers.bit_rot.read[self.process, shard.index]
            read.clear()
            try:
                await take_over(lease)
            except TakeOverError as error:
                for flip in read:
                    flip.is_refused |= "damaged" in str(error)
                raise
            for flip in read:
                if flip.is_in_segment:
                    self.cluster.problem("served", f"{self.process} leads with the flipped {flip}")
            roles = shard.roles
            if (
                roles.tenure.state(roles._clock()) == LEADING
            ):  # else it is to give the lease back, and hands nothing out
                self.cluster.note_takeover(self, shard.index, lease)

        def note_refusal(error):
            self.cluster.note_refusal(self, shard.index, error)
            note_damage(error)

        shard.take_over, shard._note_damage = note_takeover, note_refusal

    async def start(self):
        await super().start()
        self.has_started = True

    def serves(self, index):
        """Whether it leads a shard, and hands out its jobs."""
        shard = self.shards[index]
        return shard.leads and not shard.service.turns.halted

    @property
    def contends(self):
        """Whether it takes shards that nobody leads."""
        return self._draining is None and all(shard.roles.contends for shard in self.shards)

    def count(self):
        """How many shards it leads."""
        return sum(shard.leads for shard in self.shards)


class Trace(logging.Handler):
    """Keeps the log, with virtual time; a bug in the server is a problem."""

    def __init__(self, cluster):
        super().__init__(logging.DEBUG)
        self.cluster = cluster
        self.lines = []

    def emit(self, record):
        self.cluster.trace(record.getMessage())
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
            self.cluster.problem("bug", f"{record.getMessage()}\n{text}")
        elif "bug" in record.getMessage():
            self.cluster.problem("bug", record.getMessage())


class Client:
    """One connection, which gives random commands until it has had enough."""

    def __init__(self, cluster, name, number, host):
        self.cluster = cluster
        self.name = name
        self.number = number
        self.host = host
        self.rng = random.Random(f"{cluster.seed} {name}")
        self.recorder = Recorder(cluster.history, name, lambda: cluster.loop.now)
        self.known = []
        self.transport = None
        self.left = False
        self.depth = self.rng.choice((1, 1, 1, 4))
        self.patience = self.rng.choice((0.01, 0.1, 0.5))
        self.sent = 0

    def connection_made(self, transport):
        self.transport = transport
        self.go_on()

    def data_received(self, data):
        for call in self.recorder.receive(data):
            self.known += ids_in(call)

    def eof_received(self):
        return False

    def connection_lost(self, error):
        self.leave(by_itself=False)

    def pause_writing(self):
        pass

    def resume_writing(self):
        pass

    def leave(self, *, by_itself):
        if not self.left:
            self.left = True
            if self.cluster.is_calm and not by_itself and self.transport is not None:
                node = self.transport.peer.process
                if node.is_alive and node not in self.cluster.leaving:
                    self.cluster.problem("disconnected", f"{self.name}, whose node {node} goes on")
            self.recorder.leave(by_itself=by_itself)
            self.cluster.client_left(self)

    def later(self, seconds):
        self.cluster.loop.call_in(
            round(seconds * SECOND), self.go_on, context=self.cluster.clients_process.context.copy()
        )

    def go_on(self):
        """Give a command, or hang up, or wait."""
        if self.left or self.cluster.is_over:
            return
        rng = self.rng
        self.later(rng.expovariate(1 / self.patience))
        if rng.random() < 0.002:
            self.leave(by_itself=True)
            (self.transport.abort if rng.random() < 0.5 else self.transport.close)()
            return
        while len(self.recorder.waiting) < self.depth:
            self.cluster.loop.now += 1
            cluster = self.cluster
            moment = WALL + cluster.loop.now
            self.give(*command(rng, self.known, self.number, self.sent, cluster.tubes, tuple(cluster.policed), moment))
            if rng.random() < 0.7:
                break

    def give(self, line, body=None):
        self.sent += 1
        self.transport.write(self.recorder.send(line, body))


class SimulatedCluster:
    """See above; `run` returns the problems.

    Args:
        seed: decides everything.
        seconds: virtual, with clients and faults.
        shards: how many the cluster has.
        is_calm: whether nothing fails: nodes only join and leave, and shards move. Then no client is disconnected but
            by its own node, and nobody waits long.
        locks: whether the engine is like PostgreSQL.
    """

    def __init__(self, seed, seconds=KEEP_BUSY, shards=1, *, is_calm=False, locks=False):
        self.seed = seed
        self.seconds = seconds
        self.shards = shards
        self.is_calm = is_calm
        self.tubes = tubes_of(shards)
        self.policed = policed_tubes(shards)
        self.rng = random.Random(f"faults {seed}")
        self.ttl = self.rng.choice((2, 4, 4, 8))
        self.replicas = self.rng.choice((1, 1, 1, 2))
        self.kept = self.rng.choice(
            (commit_sender.KEPT, commit_sender.KEPT, 5000)
        )  # bytes of commits that can be sent again
        self.client_count = self.rng.choice((3, 6, 12))
        self.history = History()
        self.problems = []
        self.faults = Counter()
        self.lines = []
        self.loop = VirtualLoop(self.on_error)
        self.network = self.loop.network = Network(self.loop, random.Random(f"network {seed}"))
        self.servers = SimulatedServers(self.loop, self.network, random.Random(f"engine {seed}"), locks=locks)
        self.clients_process = Process(self.loop, "clients")
        self.nodes = {}  # name -> SimulatedNode, while it runs
        self.epochs = {shard: [] for shard in range(shards)}
        self.is_over = False  # no more commands
        self.is_ending = False  # all nodes stop, and none is started by what was planned before
        self.clients = {}
        self.names = 0
        self.link_ends = {}  # those that have ended
        self.stopping = set()  # names of nodes that have been told to
        self.leaving = set()  # their processes
        self.refusing = set()  # nodes that have refused a shard
        self.injector = Faults(self)

    # What happens

    def trace(self, text):
        process = PROCESS.get()
        self.lines.append(f"{self.loop.now / SECOND:14.6f} {process.name if process else '-':8} {text}")

    def problem(self, kind, text):
        self.problems.append(f"{kind}: {text}")
        self.trace(f"PROBLEM {kind}: {text}")

    def on_error(self, context):
        error = context.get("exception")
        if error is not None:
            import traceback

            text = "".join(traceback.format_exception(error))
            self.problem("bug", f"{context.get('message')}\n{text}")
        else:
            self.problem("bug", str(context.get("message")))

    def note_takeover(self, node, shard, lease):
        now = self.loop.now
        self.history.took_over(now, now, shard)
        what = f"epoch {lease.epoch}" if self.shards == 1 else f"epoch {lease.epoch} of shard {shard}"
        self.trace(f"serves {what}")
        for other in self.nodes.values():
            serves = other is not node and other.process.is_alive and other.serves(shard)
            if serves and not other.process.is_paused:
                self.problem("two leaders", f"{node.process} serves {what}, and {other.process} still serves")
        epochs = self.epochs[shard]
        if epochs and lease.epoch <= epochs[-1]:
            self.problem("epoch", f"{what} after {epochs[-1]}")
        epochs.append(lease.epoch)

    def note_refusal(self, node, shard, error):
        """A node leads a shard no more, because its files are damaged: right if a bit of them has flipped."""
        self.trace(f"refused: {error}")
        if error.status != DAMAGED or not self.servers.bit_rot.read[node.process, shard]:
            self.problem("refused", f"{node.process} has refused shard {shard}, which is whole: {error}")
        self.refusing.add(node)
        self.injector.repair(node)

    def client_left(self, client):
        del self.clients[client.name]
        if not self.is_over:
            self.loop.call_in(
                self.rng.randrange(1, SECOND), self.connect_client, context=self.clients_process.context.copy()
            )

    # Nodes and clients

    def start_node(self, name):
        if name in self.nodes or name in self.network.dead_hosts or self.is_ending:
            return
        rng = self.rng
        process = Process(self.loop, name, 1 + rng.uniform(-DRIFT, DRIFT) / 2, rng.randrange(-SKEW // 2, SKEW // 2))
        self.trace(f"{name} starts")

        def start():
            node = SimulatedNode(
                Config(
                    cluster="redis://engine",
                    **({"shards": self.shards} if self.shards > 1 else {}),
                    advertise=f"{name}:7000",
                    lease_ttl=self.ttl,
                    replicas=self.replicas,
                    segment_size=65536,
                    port=0,
                    tubes=[TubeConfig(match=name, **values_of(policy)) for name, policy in self.policed.items()],
                ),
                connect=partial(SimulatedEngine, self.servers, self.replicas),
            )
            node.cluster, node.process = self, process
            self.nodes[name] = node
            self.loop.create_task(self._live(name, node))

        process.run(start)

    async def _live(self, name, node):
        await node.start()
        await node.failed.wait()
        if node in self.refusing:
            self.stop_node(name)
        else:
            self.problem("failed", f"{name}: {node.failure!r}")

    def kill_node(self, name, *, host_too=False):
        node = self.nodes.pop(name, None)
        if node is None:
            return
        self.stopping.discard(name)
        self.trace(f"{name} is killed{' with its host' if host_too else ''}")
        node.process.kill()
        if host_too:
            self.network.dead_hosts.add(name)
        self.network.process_died(node.process, host_too)

    def stop_node(self, name, *, then=None):
        node = self.nodes.get(name)
        if node is None or not node.has_started:
            return
        self.stopping.add(name)
        self.leaving.add(node.process)

        async def stop():
            await node.stop()
            self.stopping.discard(name)
            if self.nodes.get(name) is node:
                del self.nodes[name]
                self.trace(f"{name} has stopped")
                node.process.kill()
                self.network.process_died(node.process, host_too=False)
                if then is not None:
                    then()

        self.trace(f"{name} is to stop")
        node.process.run(self.loop.create_task, stop())

    def connect_client(self):
        if self.is_over:
            return
        names = [name for name in (*NODES, GUEST) if name in self.nodes]
        self.names += 1
        client = Client(self, f"client {self.names}", self.names, self.rng.choice(names or NODES))
        self.clients[client.name] = client
        self.loop.create_task(self._connect(client))

    async def _connect(self, client):
        try:
            await self.network.connect(self.clients_process, lambda: client, client.host, 11300)
        except OSError:
            client.leave(by_itself=False)

    # Who leads

    def leader(self, shard=0):
        """The node that serves a shard, if all is well with it."""
        leading = [
            node
            for node in self.nodes.values()
            if node.has_started
            and node.shards[shard].leads
            and node.shards[shard].roles.role == LEADS
            and not node.process.is_paused
        ]
        return leading[0] if len(leading) == 1 and leading[0].serves(shard) else None

    def leaders(self):
        """The node that serves each shard, if all is well with all of them."""
        found = [self.leader(shard) for shard in range(self.shards)]
        return found if all(found) else None

    def is_spread(self):
        """Whether each node that takes shards leads its share of them."""
        counts = [node.count() for node in self.nodes.values() if node.has_started and node.contends]
        return not counts or max(counts) - min(counts) <= 1

    def run(self):
        """Run it all; return the problems."""
        logger = logging.getLogger("beanstalk_server")
        handler = Trace(self)
        level, propagates, handlers = logger.level, logger.propagate, logger.handlers
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
        originals = self._watch_links()
        kept, commit_sender.KEPT = commit_sender.KEPT, self.kept
        try:
            with virtual(self.loop, random.Random(f"secrets {self.seed}")):
                self._run()
                logger.handlers = [logging.NullHandler()]
                self.loop.forget()
        finally:
            logger.handlers, logger.propagate = handlers, propagates
            logger.setLevel(level)
            commit_sender.KEPT = kept
            for name, original in originals.items():
                setattr(LinkEnd, name, original)
        return self.problems

    def _watch_links(self):
        """Let the history know when clients that were passed on may have lost what they hold."""
        cluster = self
        originals = {name: getattr(LinkEnd, name) for name in ("close", "say_goodbye", "connection_lost")}

        def watched(name, original):
            def ends(end, *args, **options):
                cluster.note_link_end(end)
                return original(end, *args, **options)

            return ends

        for name, original in originals.items():
            setattr(LinkEnd, name, watched(name, original))
        return originals

    def note_link_end(self, end):
        if end not in self.link_ends and hasattr(end, "transport"):
            self.link_ends[end] = None
            now = self.loop.now
            leads = not end.link.dials
            name = end.transport.peer_name if leads else end.transport.process.name
            clients = [client.name for client in self.clients.values() if client.host == name]
            self.history.cut(now, now, now if leads else now + SETTLE * SECOND, clients, self.shard_of(end))

    def shard_of(self, end):
        """The shard that a link is about; None if it has not said so."""
        return 0 if self.shards == 1 else end.link.shard

    def _run(self):
        clients = self.clients_process
        for name in NODES:
            self.start_node(name)
        for _ in range(self.client_count):
            clients.run(self.connect_client)
        self.loop.call_in(5 * SECOND, self.injector.strike, context=contextvars.Context())
        self.loop.run_until(lambda: bool(self.problems), self.loop.now + round(self.seconds * SECOND))
        if self.problems:
            return
        self._settle()
        if not self.problems:
            self._audit()

    def _until(self, condition, what, within=SETTLE):
        if not self.loop.run_until(lambda: condition() or bool(self.problems), self.loop.now + within * SECOND):
            self.problem("stuck", f"not within {within} s: {what}")
        return not self.problems

    def _settle(self):
        """End all faults; then everybody must be answered."""
        self.trace("all faults end")
        self.is_over = True
        self.injector.end_all()
        for name in NODES:
            self.start_node(name)

        def is_whole():
            runs = self.nodes.keys() >= set(NODES) and all(node.has_started for node in self.nodes.values())
            return runs and not self.stopping and self.leaders() is not None and self.is_spread()

        if not self._until(is_whole, "all nodes run, and each leads its share"):
            return
        waiting = [client for client in self.clients.values() if client.transport is not None]
        for client in waiting:
            if not client.transport.peer.process.is_alive:
                client.transport.reset()  # its host has died, and a client that only waits is never told

        def open_calls():
            return [
                call
                for client in waiting
                if not client.left
                for call in client.recorder.waiting[:1]
                if call.line != b"reserve"
            ]

        if not self._until(lambda: not open_calls(), "every client is answered"):
            self.trace(f"not answered: {open_calls()}")
            self.problems[-1] += f": {open_calls()}"
            return
        for client in waiting:
            if not client.left and not client.recorder.waiting:
                client.give(b"stats")
        self._until(lambda: not open_calls(), "every client still has a connection that works")

    def _audit(self):
        """Stop everything; the jobs that a fresh node finds are what is left."""
        for client in list(self.clients.values()):
            client.leave(by_itself=True)
            if client.transport is not None:
                client.transport.abort()
        if not self._until(lambda: self.leaders() is not None, "all shards are still led"):
            return
        for shard, node in enumerate(self.leaders()):
            check_broker(node.shards[shard].service.broker)
        self.is_ending = True
        for name in list(self.nodes):
            self.stop_node(name)
        if not self._until(lambda: not self.nodes, "all nodes stop"):
            return
        self.is_ending = False
        self.start_node("n1")
        if not self._until(lambda: self.leaders() is not None, "a fresh node leads"):
            return
        survivors = {}
        for shard, node in enumerate(self.leaders()):
            broker = node.shards[shard].service.broker
            check_broker(broker)
            for job in broker.jobs.values():
                survivors[job.id] = Survivor(bytes(job.body), job.tube.name, STATES[job.state], job.key)
        self.problems += problems_of(
            self.history,
            survivors,
            self.loop.now,
            notice=SETTLE * SECOND,
            drift=2 * DRIFT,
            skew=SKEW + SECOND // 100,
            shards=self.shards,
            policies=terms_of(self.policed, self.shards),
            wall=WALL,
        )
        if self.is_calm:
            self.problems += [f"slow: {call!r}" for call in slow_calls(self.history, GAP)]


def slow_calls(history, gap):
    """The commands that were answered later than they may be, although nothing has failed: a reserve may wait."""
    since = max(takeover.ended for takeover in {each.shard: each for each in reversed(history.takeovers)}.values())
    before = {}  # client -> when it was answered last
    found = []
    for call in history.calls:
        began = max(call.sent, before.get(call.client, 0), since)
        before[call.client] = call.answered
        words = call.line.split()
        if words[0] in (b"reserve-with-timeout", b"reserve-batch"):
            began += nanoseconds(words[-1])
        if words[0] != b"reserve" and call.reply is not None and call.answered > began + gap:
            found.append(call)
    return found


def run(seed, seconds=KEEP_BUSY, shards=1, **options):
    """Run one seed; return the SimulatedCluster, with its problems."""
    cluster = SimulatedCluster(seed, seconds, shards, **options)
    cluster.run()
    return cluster
